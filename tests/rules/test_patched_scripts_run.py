"""What a rule makes of a realistic script still runs, and still learns the same."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from advisor.edit import Edit, Sources
from advisor.harness.layout import Site
from advisor.rule import Finding, Gain
from advisor.rulebook import load_rules

pytestmark = pytest.mark.xdist_group("patched")  # all of them run in one process, once
SCRIPT = '''"""Trains a small convolutional net, as a newcomer would write it."""
import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision.transforms as T
from PIL import Image
from torch.utils.data import DataLoader, Dataset


class Faces(Dataset):
    def __init__(self, transform=None):
        self.transform = transform

    def __len__(self):
        return 32

    def __getitem__(self, index):
        image = Image.new("RGB", (16, 16), (index, 2 * index, 100))  # one colour each
        return self.transform(image), index % 2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.fc = nn.Linear(8, 2)

    def forward(self, x):
        return self.fc(F.relu(self.conv(x)).mean((2, 3)))


def main():
    torch.manual_seed(0)
    device = torch.device("cpu")
    transform = T.Compose([
        T.ToTensor(),
        T.Normalize((0.5, 0.5, 0.5), (0.2, 0.2, 0.2)),
    ])
    faces = Faces(transform=transform)
    loader = DataLoader(
        faces,
        batch_size=8,  # small
        num_workers=0,
        shuffle=False,
    )
    model = Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    history = []
    for epoch in range(3):
        running = 0.0
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)

            # forward
            logits = model(images)
            loss = F.cross_entropy(logits, labels)

            optimizer.zero_grad(set_to_none=False)
            loss.backward()
            optimizer.step()
            running += loss.item()
        history.append(f"{running / len(loader):.4f}")
    print("losses", *history)


if __name__ == "__main__":
    main()
'''

CALLS = {
    "loader": SCRIPT[SCRIPT.index("DataLoader(\n") : SCRIPT.index("\n    model = ")],
    "model": "Net().to(device)",
    "optimizer": "torch.optim.SGD(model.parameters(), lr=0.05)",
    "copy": "images.to(device)",
    "copy2": "labels.to(device)",
    "forward": "model(images)",
    "zero": "optimizer.zero_grad(set_to_none=False)",
    "backward": "loss.backward()",
    "step": "optimizer.step()",
    "item": "loss.item()",
}


def site_of(path: Path, name: str) -> Site:
    """The place of a call as Python 3.11 and newer record it."""
    for node in ast.walk(ast.parse(SCRIPT)):
        if isinstance(node, ast.Call) and ast.get_source_segment(SCRIPT, node) == CALLS[name]:
            return Site(str(path), node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)
    raise AssertionError(f"{name} is not in the script")


At = Callable[[str], Site]


def findings(at: At, script: Path) -> dict[str, tuple[str, Site | None, dict[str, object]]]:
    """Rule, site and parameters of each fix to try, by a name for it."""
    moves = {"forward": (at("forward"),), "moves": (at("model"),), "optimizer": (at("optimizer"),)}
    amp = moves | {"backward": (at("backward"),), "step": (at("step"),), "device": "cpu"}
    return {
        "loader-workers": ("loader-workers", at("loader"), {"workers": 2, "recorded": 0}),
        "batch-size": ("batch-size", at("loader"), {"batch": 16, "recorded": 8, "times": 2, "trains": True}),
        "zero-grad": ("zero-grad", at("zero"), {"zero_grad": (at("zero"),)}),
        "autocast bfloat16": ("amp-autocast", at("forward"), amp | {"dtype": "bfloat16"}),
        "autocast float16": ("amp-autocast", at("forward"), amp | {"dtype": "float16"}),
        "channels-last": ("channels-last", at("forward"), moves),
        "compile": ("compile", at("forward"), moves),
        "tf32-matmul": ("tf32-matmul", None, {"script": str(script)}),
        "cudnn-benchmark": ("cudnn-benchmark", None, {"script": str(script)}),
        "copy-pinned-async": (
            "copy-pinned-async", at("copy"), {"copies": (at("copy"), at("copy2")), "loaders": (at("loader"),)},
        ),
        "copy-narrow-dtype": ("copy-narrow-dtype", at("loader"), {"copies": (at("copy"),), "loaders": (at("loader"),)}),
        "host-sync": ("host-sync", at("item"), {"syncs": (at("item"),)}),
    }  # fmt: skip


NAMES = tuple(findings(lambda name: Site(), Path()))
# Relative change of the printed losses that the fix may make; None where another training is the point.
TOLERANCE = {"autocast bfloat16": 0.05, "autocast float16": 0.05, "batch-size": None}
RUNNER = """
import contextlib, io, json, runpy, sys, traceback
results = {}
for path in sys.argv[1:]:
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            runpy.run_path(path, run_name="__main__")
        results[path] = out.getvalue()
    except BaseException:
        results[path] = traceback.format_exc()
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the script prints, unchanged ("") and after each fix, all run in one process of their own."""
    rules = {rule.id: rule for rule in load_rules()}
    folder = tmp_path_factory.mktemp("patched")
    paths: dict[str, Path] = {}
    for name in ("", *NAMES):
        path = folder / (name.replace(" ", "_") or "unchanged") / "train.py"
        path.parent.mkdir()
        path.write_text(SCRIPT)
        paths[name] = path
        if name:
            rule, site, parameters = findings(lambda call, path=path: site_of(path, call), path)[name]
            fix = rules[rule].fix(Finding(rule, "", "", Gain(1, 1, 1), {}, site, parameters), Sources())
            assert isinstance(fix, Edit), f"{name}: {fix}"
            patch = fix.diff_bytes(str(path.parent))
            subprocess.run(["git", "apply", "-"], input=patch, cwd=path.parent, check=True)
    run = subprocess.run(
        [sys.executable, "-c", RUNNER, *map(str, paths.values())], capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr
    results = json.loads(run.stdout.splitlines()[-1])
    return {name: results[str(path)] for name, path in paths.items()}


def losses(output: str) -> list[float]:
    assert output.startswith("losses "), output
    return [float(each) for each in output.split()[1:]]


@pytest.mark.parametrize("name", NAMES)
def test_patched_script_runs_and_learns_the_same(name: str, outputs: dict[str, str]) -> None:
    before, after = losses(outputs[""]), losses(outputs[name])
    tolerance = TOLERANCE.get(name, 0.002)
    assert len(after) == len(before)
    if tolerance is not None:
        assert after == pytest.approx(before, rel=tolerance)
