"""What is installed: every room, the rules as ``advisor.rules``, templates and schema; the bounds that are tested."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest


def built_wheel(repo: Path, place: Path) -> zipfile.ZipFile:
    source = place / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(repo / name, source)
    for name in ("advisor", "rules"):
        shutil.copytree(repo / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    code = "from setuptools.build_meta import build_wheel; build_wheel('..')"
    subprocess.run([sys.executable, "-c", code], cwd=source, check=True, capture_output=True)
    (wheel,) = place.glob("*.whl")
    return zipfile.ZipFile(wheel)


@pytest.fixture(scope="module")
def wheel(repo: Path, tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return built_wheel(repo, tmp_path_factory.mktemp("wheel"))


def test_wheel_holds_every_file_of_the_package(repo: Path, wheel: zipfile.ZipFile) -> None:
    held = set(wheel.namelist())
    tracked = subprocess.run(
        ["git", "ls-files", "advisor", "rules"], cwd=repo, capture_output=True, text=True, check=True
    ).stdout.split()
    missing = [name for name in tracked if re.sub(r"^rules/", "advisor/rules/", name) not in held]
    assert tracked and missing == []


def test_wheel_offers_the_command_and_the_licence(wheel: zipfile.ZipFile) -> None:
    (entry_points,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert "advisor = advisor.cli:main" in wheel.read(entry_points).decode()
    assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())


def test_tool_itself_does_not_require_torch(wheel: zipfile.ZipFile) -> None:
    (metadata,) = (name for name in wheel.namelist() if name.endswith("METADATA"))
    lines = [line for line in wheel.read(metadata).decode().splitlines() if line.startswith("Requires-Dist:")]
    always = [re.split(r"[<>=; ]", line.removeprefix("Requires-Dist: "))[0] for line in lines if "extra ==" not in line]
    assert "click" in always
    assert not {"torch", "torchvision", "lightning", "transformers"} & set(always)


def test_oldest_torch_of_pyproject_is_the_one_that_is_tested(repo: Path) -> None:
    admitted = dict(re.findall(r'"(torch|torchvision)>=([\d.]+)"', (repo / "pyproject.toml").read_text()))
    makefile = (repo / "Makefile").read_text()
    tested = dict(re.findall(r"^OLDEST_(TORCH|TORCHVISION) := ([\d.]+)$", makefile, re.MULTILINE))
    assert admitted == {name.lower(): version for name, version in tested.items()}
