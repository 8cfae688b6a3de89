"""Parts that a loop takes, or writes, one by one are found in a real run, and are taken apart once afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.edit import Edit, Sources
from advisor.edit.sources import text_of
from advisor.evidence import Evidence
from advisor.evidence.python_loops.parts import parts_one_by_one
from advisor.launch import Command, measure
from advisor.rule import Finding
from advisor.run import Run
from rules.parts_one_by_one import PartsOneByOne
from tests.conftest import PYTHON, QUICK

SCRIPT = """\
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
inner, outer = nn.Linear(4, 256), nn.Linear(256, 1)


def scan(u):
    state, seen, kept = torch.zeros(16, 256), [], torch.zeros(16, 64, 256)
    {body}


optimizer = torch.optim.SGD([*inner.parameters(), *outer.parameters()], lr=1e-3)
for step in range(60):
    x = torch.randn(16, 64, 4)
    loss = (outer(scan(inner(x))) - x.sum(-1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
TAKEN = """for t in range(64):
        state = 0.9 * state + u[:, t]
        seen.append(state)
    return torch.stack(seen, 1)"""
WRITTEN = """for t, part in enumerate(u.unbind(1)):
        state = 0.9 * state + part
        kept[:, t] = state
    return kept"""
ONCE = TAKEN.replace("for t in range(64):", "for part in u.unbind(1):").replace("u[:, t]", "part")
FEW = """for t in range(16):
        state = 0.9 * state + u[:, 4 * t]
    return u + state[:, None]"""
TOGETHER = """seen = torch.stack([u[:, t] * 2 for t in range(64)], 1)
    for t, part in enumerate(seen.unbind(1)):
        state = 0.9 * state + part
        kept[:, t] = state
    return kept"""


def findings(folder: Path, body: str) -> tuple[Evidence, list[Finding]]:
    (folder / "train.py").write_text(SCRIPT.format(body=body))
    run = measure(Command(str(folder / "train.py"), python=PYTHON, cwd=str(folder)), folder / "run", QUICK)
    evidence = Evidence.from_run(run)
    return evidence, list(PartsOneByOne().check(evidence))


@pytest.mark.slow
@pytest.mark.sessions
def test_a_scan_takes_its_input_apart_once(tmp_path: Path) -> None:
    _, (finding,) = findings(tmp_path, TAKEN)
    assert finding.site is not None and finding.site.line == 12
    assert finding.evidence["taken_per_step"] == 64 and finding.evidence["written_per_step"] == 0
    assert finding.gain.likely > 1.5
    fix = PartsOneByOne().fix(finding, Sources())
    assert isinstance(fix, Edit)
    text = next(iter(fix.texts.values()))
    assert "u_parts = u.unbind(1)" in text and "0.9 * state + u_parts[t]" in text
    (tmp_path / "after").mkdir()
    (tmp_path / "after" / "train.py").write_text(text)
    command = Command(str(tmp_path / "after" / "train.py"), python=PYTHON, cwd=str(tmp_path / "after"))
    after = measure(command, tmp_path / "run-after", QUICK)
    losses = Run.load(tmp_path / "run").record.losses
    assert losses and after.record.losses[:5] == pytest.approx(losses[:5], rel=1e-4)
    assert not list(PartsOneByOne().check(Evidence.from_run(after)))


@pytest.mark.slow
@pytest.mark.sessions
def test_what_is_written_is_found_and_its_loop_told(tmp_path: Path) -> None:
    _, (finding,) = findings(tmp_path, WRITTEN)
    assert finding.site is not None and finding.site.line == 13
    assert finding.evidence["written_per_step"] == 64 and finding.evidence["taken_per_step"] == 0
    fix = PartsOneByOne().fix(finding, Sources())
    assert isinstance(fix, Edit) and "kept_parts.append(state)" in next(iter(fix.texts.values()))


@pytest.mark.slow
@pytest.mark.sessions
def test_both_are_one_change(tmp_path: Path) -> None:
    _, (finding,) = findings(tmp_path, TOGETHER)
    assert finding.evidence["written_per_step"] == 64 and finding.evidence["taken_per_step"] == 64
    fix = PartsOneByOne().fix(finding, Sources())
    assert isinstance(fix, Edit)
    text = next(iter(fix.texts.values()))
    assert "u_parts = u.unbind(1)" in text and "kept_parts.append(state)" in text


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize("body", [ONCE, FEW], ids=["taken apart once", "few"])
def test_what_costs_nothing_is_left_alone(tmp_path: Path, body: str) -> None:
    evidence, found = findings(tmp_path, body)
    assert parts_one_by_one(evidence, text_of) is None and not found
