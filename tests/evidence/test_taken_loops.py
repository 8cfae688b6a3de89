"""Loops over parts of tensors are told by where the source has them, also where their rounds differ."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from advisor.edit.sources import text_of
from advisor.evidence import Evidence
from advisor.evidence.python_loops.loops import _begun_anew
from advisor.evidence.python_loops.rounds import is_repeated
from advisor.evidence.python_loops.taken_loops import at_once_s, taken_loop
from advisor.harness.layout import Site
from advisor.launch import Command, measure
from tests.conftest import PYTHON, QUICK

SCRIPT = """\
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
net = nn.Linear(8, 8)
moves = nn.Parameter(torch.randn(6, 6))


def made(x):
    {body}


optimizer = torch.optim.SGD([*net.parameters(), moves], lr=1e-3)
for step in range(60):
    x = torch.randn(16, 8)
    loss = (net(x) - made(x)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
SKIPS = """out = torch.zeros(16, 8)
    for i in range(16):
        if x[i, 0] < 0:
            continue
        if x[i, 1] > 0.5:
            out[i, 2] = x[i, 3].exp() + x[i, 4].sin()
        out[i, 5] = x[i, 6] * 2
    return out"""
WITHIN = """reach = torch.zeros(6)
    for t in range(8):
        after = []
        for tag in range(6):
            after.append(torch.logsumexp(reach + moves[tag], 0))
        reach = torch.stack(after)
    return reach.sum()"""
NEEDS = """h = torch.zeros(8)
    for i in range(16):
        h = torch.tanh(h + x[i]) if i % 2 else torch.sin(h * x[i])
    return h"""
BESIDE = SKIPS.replace("return out", "return out + torch.stack([x[5] for _ in range(60)]).mean(0)")


OTHERS = SKIPS.replace("out[i, 5] =", "numpy.linalg.svd(numpy.ones((150, 150)))\n        out[i, 5] =")


def found(folder: Path, body: str) -> tuple[Evidence, int | None, float, float]:
    """(the run, the loop's line, its rounds in a step, how often it runs)"""
    (folder / "train.py").write_text(SCRIPT.format(body=body))
    run = measure(Command(str(folder / "train.py"), python=PYTHON, cwd=str(folder)), folder / "run", QUICK)
    evidence = Evidence.from_run(run)
    loop = taken_loop(evidence, text_of)
    return (evidence, loop[1].line, loop[0].rounds, loop[0].times) if loop else (evidence, None, 0.0, 0.0)


@pytest.mark.slow
@pytest.mark.sessions
def test_rounds_that_skip_and_branch_are_one_loop(tmp_path: Path) -> None:
    evidence, line, rounds, times = found(tmp_path, SKIPS)
    assert line == 12 and 12 < rounds < 24 and times == 1
    loop = taken_loop(evidence, text_of)
    assert loop is not None and not loop[0].alike and loop[0].forward_s > 0 and loop[0].work_share < 0.2


@pytest.mark.slow
@pytest.mark.sessions
def test_a_loop_within_a_recurrence_runs_each_time_anew(tmp_path: Path) -> None:
    _, line, rounds, times = found(tmp_path, WITHIN)
    assert line == 14 and rounds == pytest.approx(48, rel=0.1) and times == pytest.approx(8, rel=0.3)


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize("body", [NEEDS, BESIDE], ids=["needs the round before", "parts taken elsewhere, too"])
def test_what_is_no_such_loop_is_left_alone(tmp_path: Path, body: str) -> None:
    _, line, _, _ = found(tmp_path, body)
    assert line is None


@pytest.mark.slow
@pytest.mark.sessions
def test_what_numpy_does_between_the_operators_stays(tmp_path: Path) -> None:
    evidence, line, _, _ = found(tmp_path, "import numpy\n    " + OTHERS)
    loop = taken_loop(evidence, text_of)
    assert line == 13 and loop is not None
    assert at_once_s(evidence, loop[0]) < 0.2 * (evidence.step_s or 0.0)


def test_what_a_line_is_repeated_by() -> None:
    text = "for t in range(9):\n    h = check(lambda a: a, x[:, t])\ny = z[0] + sum(r[1] for r in rows)\n"
    assert is_repeated(text, Site("a.py", 2, 24)) and not is_repeated(text, Site("a.py", 3, 4))
    assert is_repeated(text, Site("a.py", 3, 15)) and not is_repeated("for :", Site("a.py", 1))


def test_how_often_a_loop_begins_anew() -> None:
    rounds = [3, 3, 3, 5, 3, 3, 3, 5, 3, 3, 3]
    assert _begun_anew([np.array(rounds)]) == pytest.approx(2 / 11)
    assert _begun_anew([np.array([3, 5, 4, 9, 3])]) is None and _begun_anew([]) is None
