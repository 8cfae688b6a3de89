"""Numbers that loops read out of tensors one by one are found by running scripts, and counted by the trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advisor.edit import Sources
from advisor.edit.sources import text_of
from advisor.evidence import Evidence
from advisor.evidence.python_loops.read_values import BEFORE_S, READ_S, read_values
from advisor.launch import Command, measure
from advisor.rule import Advice, Finding
from rules.values_one_by_one import ValuesOneByOne
from tests.conftest import PYTHON, QUICK

RULE = ValuesOneByOne()
SCRIPT = """\
import torch

torch.set_num_threads(1)


def matches(read, truth):
    row = list(range(len(truth) + 1))
    for i in range(len(read)):
        diagonal, row[0] = row[0], i + 1
        for j in range(len(truth)):
            same = {same}
            diagonal, row[j + 1] = row[j + 1], min(row[j] + 1, row[j + 1] + 1, diagonal + (not same))
    return row[-1]


model = torch.nn.Linear(64, 32).eval()
with torch.inference_mode():
    for _ in range(600):
        best = model(torch.rand(24, 64)).argmax(-1)
        truth = torch.randint(32, (24,))
        {before}
        matches(best, truth)
"""
LISTS = "best, truth = best.tolist(), truth.tolist()"


def found(folder: Path, same: str, before: str = "pass") -> Finding | None:
    (folder / "read.py").write_text(SCRIPT.format(same=same, before=before))
    run = measure(Command(str(folder / "read.py"), python=PYTHON, cwd=str(folder)), folder / "run", QUICK)
    findings = list(RULE.check(Evidence.from_run(run)))
    assert len(findings) <= 1
    return findings[0] if findings else None


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize("same", ["read[i].item() == truth[j].item()", "int(read[i]) == int(truth[j])"])
def test_numbers_of_two_tensors_are_counted(same: str, tmp_path: Path) -> None:
    finding = found(tmp_path, same)
    assert finding is not None and finding.site is not None and finding.site.line == 11
    assert finding.evidence["reads_per_step"] == pytest.approx(2 * 24 * 24, rel=0.02)
    assert finding.evidence["operators_per_step"] == pytest.approx(4 * 24 * 24, rel=0.02)
    assert finding.gain.likely > 1.5
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Advice) and "read.py:11" in fix.text


@pytest.mark.slow
@pytest.mark.sessions
def test_lists_are_left_alone(tmp_path: Path) -> None:
    assert found(tmp_path, "read[i] == truth[j]", LISTS) is None


def reading(scene: Any, folder: Path, *, device: str = "cpu", elsewhere: int = 0, looped: bool = True) -> Any:
    """A step of 10 ms in which 100 numbers are read, by two indices and a comparison each."""
    script = folder / "train.py"
    loop = "for i in range(n):\n    if x[i, j] > 0:\n        k += 1\n"
    script.write_text(loop if looped else "\nif x[0, 0] > 0: k = 1\n")
    made = scene(10.0)
    made.record.script = str(script)
    for number in range(100):
        start = 1.0 + 0.05 * number
        for place, name in enumerate(("select", "select", "gt", "is_nonzero")):
            made.operator(f"aten::{name}", start + 0.01 * place, start + 0.01 * place + 0.008)
        made.operator("aten::item", start + 0.031, start + 0.037)  # within is_nonzero
    made.call("Tensor.item", 2, per_step=0.0, device=device)
    made.record.call_sites[-1].site.file, made.record.call_sites[-1].calls = str(script), 900
    if elsewhere:
        made.call("Tensor.item", 1, per_step=0.0, device="cpu", inside="library.metrics")
        made.record.call_sites[-1].calls = elsewhere
    return made.evidence(folder)


def test_what_comes_right_before_a_number_is_read_is_counted(scene: Any, tmp_path: Path) -> None:
    values = read_values(reading(scene, tmp_path), text_of)
    assert values is not None and (values.reads, values.operators) == (100, 400)
    assert values.seconds == pytest.approx(100 * READ_S + 300 * BEFORE_S)
    assert values.left_s < 0.2 * values.seconds


@pytest.mark.parametrize(
    "other", [{"device": "cuda"}, {"elsewhere": 900}, {"looped": False}], ids=["on a GPU", "a library's", "in no loop"]
)
def test_other_numbers_are_not(other: dict[str, Any], scene: Any, tmp_path: Path) -> None:
    assert read_values(reading(scene, tmp_path, **other), text_of) is None
