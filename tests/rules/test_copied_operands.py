"""What every product of a step copies is copied once, where its dimensions are put in order, and computes the same."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from advisor.diagnose import diagnose
from advisor.evidence import Evidence
from advisor.findings import FindingDocument
from advisor.launch import Command, measure
from advisor.run import Run
from tests.conftest import PYTHON, QUICK

SCRIPT = """\
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
BATCH, LENGTH, HEADS, WIDTH = 32, 120, 8, 128


class Pointer(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(WIDTH, 2 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def heads(self, x):
        split = x.view(*x.shape[:2], HEADS, -1)
        return split{order}

    def forward(self, memory):
        keys, values = map(self.heads, self.project(memory).chunk(2, -1))
        state = memory.mean(1)
        for _ in range({rounds}):
            query = state.view(BATCH, HEADS, 1, -1)
            scores = torch.matmul(query, keys.transpose(-2, -1))
            state = self.out(torch.matmul(scores.softmax(-1), values).reshape(BATCH, -1))
        return state


model = Pointer().eval()
with torch.inference_mode():
    for step in range(400):
        print(model(torch.randn(BATCH, LENGTH, WIDTH)).sum().item())
"""


def script(order: str, rounds: int) -> str:
    return SCRIPT.format(order=order, rounds=rounds)


def told(folder: Path, text: str) -> list[FindingDocument]:
    (folder / "route.py").write_text(text)
    command = Command(str(folder / "route.py"), python=PYTHON, cwd=str(folder))
    run = measure(command, folder / "run", QUICK, timeout=120)
    return [each for each in diagnose(Evidence.from_run(run)).document.findings if each.rule == "copied-operands"]


def printed(folder: Path) -> list[float]:
    return [float(each) for each in subprocess.check_output([PYTHON, str(folder / "route.py")], text=True).split()]


@pytest.mark.slow
def test_keys_and_values_of_a_pointer_network(tmp_path: Path) -> None:
    (found,) = told(tmp_path, script(".transpose(1, 2)", 12))
    assert (found.file, found.line) in (("route.py", 24), ("route.py", 25))
    assert found.evidence["copies_per_step"] == 2 * 11 and found.evidence["shape"].startswith("32x8x")
    assert found.fix.kind == "edit" and "+        return split.transpose(1, 2).contiguous()\n" in found.fix.diff
    assert found.predicted.speedup.likely > 1.1
    before = printed(tmp_path)
    subprocess.run(["git", "apply"], input=found.fix.diff, cwd=tmp_path, text=True, check=True)
    assert ".contiguous()" in (tmp_path / "route.py").read_text()
    assert printed(tmp_path) == pytest.approx(before, rel=1e-3, abs=1e-2) and len(before) == 400


@pytest.mark.slow
@pytest.mark.sessions
def test_in_a_method_of_a_model_that_a_loader_gives_batches(tmp_path: Path) -> None:
    """``model.decode(batch)`` in an evaluation: nothing is trained, and the model itself is never called."""
    text = script(".transpose(1, 2)", 12).replace("def forward(self, memory)", "def decode(self, memory)")
    text = text.partition("    for step in")[0]
    data = "torch.utils.data.TensorDataset(torch.randn(64 * BATCH, LENGTH, WIDTH))"
    text += f"    loader = torch.utils.data.DataLoader({data}, batch_size=BATCH)\n"
    text += "    for epoch in range(10):\n        for (batch,) in loader:\n            print(model.decode(batch))\n"
    assert told(tmp_path, text)
    assert Run.load(tmp_path / "run").record.step_kind == "loader"


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(("order", "rounds"), [(".transpose(1, 2).contiguous()", 12), (".transpose(1, 2)", 1)])
def test_silent_where_nothing_is_copied_again(order: str, rounds: int, tmp_path: Path) -> None:
    assert not told(tmp_path, script(order, rounds))
