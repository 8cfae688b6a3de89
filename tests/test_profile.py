"""`advisor profile` from a script to the report, as a user types it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from advisor.diagnose import evidence_of
from advisor.errors import BAD_TRACE, AdvisorError
from advisor.findings import json_schema
from advisor.harness import layout
from advisor.run import Run
from tests.conftest import PYTHON, Profiled

SLOW_LOADER = """\
import time
import torch
from torch.utils.data import DataLoader, Dataset


class Photos(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        time.sleep(0.004)  # a disk that is slow
        return torch.full((16,), float(index)), index % 2


def main():
    loader = DataLoader(Photos(), batch_size=16)  # one process
    model = torch.nn.Linear(16, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
"""


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which `advisor profile train.py` was run."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "train.py").write_text(SLOW_LOADER)
    done = subprocess.run(
        [sys.executable, "-m", "advisor.cli", "profile", "train.py", "--python", PYTHON, "--accept", "none"],
        cwd=folder,
        env={**os.environ, "XDG_STATE_HOME": str(folder / "state"), "OMP_NUM_THREADS": "1", "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    (folder / "printed").write_text(done.stdout)
    return folder


@pytest.mark.slow
@pytest.mark.xdist_group("profile")
def test_slow_loader_is_named_first_with_its_line_and_a_diff_that_applies(session: Path) -> None:
    folder = session / "advisor_runs" / "train-1"
    document = json.loads((folder / "findings.json").read_text())
    jsonschema.validate(document, json_schema())
    first = document["findings"][0]
    assert document["verdict"].startswith("input-bound")
    assert (first["rule"], first["file"], first["line"]) == ("loader-workers", "train.py", 16)
    assert first["predicted"]["speedup"]["likely"] > 1.5
    subprocess.run(["git", "init", "-q", "."], cwd=session, check=True)
    subprocess.run(["git", "apply"], input=first["fix"]["diff"], cwd=session, text=True, check=True)
    patched = (session / "train.py").read_text()
    (session / "train.py").write_text(SLOW_LOADER)
    assert "num_workers=" in patched
    assert "# one process" in patched


@pytest.mark.slow
@pytest.mark.xdist_group("profile")
def test_report_and_terminal_say_the_same(session: Path) -> None:
    folder = session / "advisor_runs" / "train-1"
    printed = (session / "printed").read_text()
    assert "loader-workers" in printed and "input-bound" in printed
    assert "loader-workers" in (folder / "report.html").read_text()
    assert "loader-workers" in (folder / "report.md").read_text()
    assert (folder / "fixes.patch").exists()
    assert (session / "advisor_runs" / ".gitignore").read_text() == "*\n"


@pytest.mark.slow
def test_run_on_a_gpu_whose_trace_holds_no_kernel_is_an_error(
    profiled: Callable[..., Profiled], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(profiled("flat.py").run_dir, folder)
    record = json.loads((folder / layout.RUN_JSON).read_text())
    evidence_of(Run.load(folder))
    record["device"]["type"] = "cuda"
    (folder / layout.RUN_JSON).write_text(json.dumps(record))
    with pytest.raises(AdvisorError, match="holds no kernel") as raised:
        evidence_of(Run.load(folder))
    assert raised.value.exit_status == BAD_TRACE


@pytest.mark.slow
@pytest.mark.parametrize("script, kind", [("flat.py", "Optimizer.step"), ("inference_loader.py", "Module.eval")])
def test_places_that_fixes_need_are_recorded_with_their_lines(
    profiled: Callable[..., Profiled], script: str, kind: str
) -> None:
    sites = [entry.site for entry in profiled(script).run.record.call_sites if entry.kind == kind]
    assert len(sites) == 1
    line = Path(sites[0].file).read_text().splitlines()[sites[0].line - 1]
    assert {"Optimizer.step": "optimizer.step()", "Module.eval": ".eval()"}[kind] in line


@pytest.mark.sessions
@pytest.mark.slow
def test_accept_that_takes_none_of_the_changes_says_so(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SLOW_LOADER)
    command = [sys.executable, "-m", "advisor.cli", "profile", "train.py", "--python", PYTHON]
    done = subprocess.run([*command, "--accept", "tf32-matmul"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "No change was tried: --accept tf32-matmul takes none of these" in done.stdout
    assert "loader-workers" in done.stdout.rpartition("--accept all does")[2]
