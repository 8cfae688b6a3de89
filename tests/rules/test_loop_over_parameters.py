"""Loops over a model's parameters are found in real runs, each as what it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.edit import Edit, Sources
from advisor.evidence import Evidence
from advisor.launch import Command, measure
from advisor.rule import Advice, Finding
from rules.blocking_work_between_steps import BlockingWorkBetweenSteps
from rules.loop_over_parameters import LoopOverParameters
from tests.conftest import PYTHON, QUICK

SCRIPT = """\
import copy
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(*[each for _ in range({layers}) for each in (nn.Linear({width}, {width}), nn.Tanh())])
average = copy.deepcopy(model)
velocity = [torch.zeros_like(each) for each in model.parameters()]
optimizer = torch.optim.SGD(model.parameters(), lr=0.001, fused=True)
history = []


def after():
    {after}


for step in range({steps}):
    loss = model(torch.randn(8, {width})).square().mean()
    penalty = 0.0
    {before}
    optimizer.zero_grad()
    (loss + 1e-4 * penalty).backward()
    optimizer.step()
    after()
"""
PARTS = {"layers": "30", "width": "24", "steps": "500", "after": "pass", "before": "pass"}
AVERAGE = (
    "with torch.no_grad():\n        for p, q in zip(model.parameters(), average.parameters()):\n"
    "            q.mul_(0.99).add_(p, alpha=0.01)"
)


def findings(folder: Path, **parts: str) -> list[Finding]:
    (folder / "train.py").write_text(SCRIPT.format(**{**PARTS, **parts}))
    run = measure(Command(str(folder / "train.py"), python=PYTHON, cwd=str(folder)), folder / "run", QUICK)
    return list(LoopOverParameters().check(Evidence.from_run(run)))


@pytest.mark.slow
@pytest.mark.sessions
def test_an_average_of_weights_is_found_and_edited(tmp_path: Path) -> None:
    (finding,) = findings(tmp_path, after=AVERAGE)
    assert finding.site is not None and finding.site.line == 16
    assert finding.evidence["rounds_per_step"] == 60 and finding.evidence["operators_per_round"] == 2
    assert 1.07 <= finding.gain.likely < 2
    fix = LoopOverParameters().fix(finding, Sources())
    assert isinstance(fix, Edit)
    assert "torch._foreach_lerp_(list(average.parameters()), list(model" in next(iter(fix.texts.values()))


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(
    ("parts", "line", "kind"),
    [
        (
            {"before": "for p in model.parameters():\n        penalty = penalty + (p ** 2).sum()"},
            21,
            "squares",
        ),
        (
            {"after": "history.append({n: p.grad.norm().item() for n, p in model.named_parameters()})"},
            15,
            "values",
        ),
        (
            {
                "after": "with torch.no_grad():\n        for p, v in zip(model.parameters(), velocity):\n"
                "            v.mul_(0.9).add_(p.grad)\n            p -= 0.01 * v"
            },
            16,
            "update",
        ),
    ],
    ids=["penalty", "log", "momentum"],
)
def test_other_loops_are_told_as_what_they_are(parts: dict[str, str], line: int, kind: str, tmp_path: Path) -> None:
    (finding,) = findings(tmp_path, **parts)
    assert finding.site is not None and finding.site.line == line and finding.parameters["kind"] == kind
    assert finding.evidence["rounds_per_step"] == 60
    assert isinstance(LoopOverParameters().fix(finding, Sources()), Advice)


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(
    "parts",
    [
        {
            "after": "with torch.no_grad():\n        "
            "torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 0.01)"
        },
        {"after": AVERAGE, "layers": "4", "width": "1024", "steps": "60"},  # the work is in the elements
        {"after": "history.append([x.norm().item() for x in torch.randn(60, 24)])"},  # no parameters
    ],
    ids=["one call", "large", "samples"],
)
def test_silent_where_calls_are_not_the_matter(parts: dict[str, str], tmp_path: Path) -> None:
    assert not findings(tmp_path, **parts)


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize("name", ["after", "on_step_end"])
def test_what_a_callback_reads_for_the_log_is_told_of_once(name: str, tmp_path: Path) -> None:
    norms = "history.append({n: p.grad.norm().item() for n, p in model.named_parameters()})"
    text = SCRIPT.format(**{**PARTS, "after": norms}).replace("after()", f"{name}()")
    (tmp_path / "train.py").write_text(text)
    run = measure(Command(str(tmp_path / "train.py"), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK)
    evidence = Evidence.from_run(run)
    told = [each.rule for rule in (LoopOverParameters(), BlockingWorkBetweenSteps()) for each in rule.check(evidence)]
    assert told == ["loop-over-parameters" if name == "after" else "blocking-work-between-steps"]


FROZEN = """\
import copy
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
table = nn.Embedding(20000, 64)
table.weight.requires_grad_({trained})
model = nn.Sequential(table, *[each for _ in range(6) for each in (nn.Linear(64, 64), nn.Tanh())])
average = copy.deepcopy(model)
optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.001)
for step in range(400):
    loss = model(torch.randint(20000, (32, 8))).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        {names} = average.state_dict(), model.state_dict()
        for name, kept in ours.items():
            if kept.dtype.is_floating_point:
                kept.lerp_(theirs[name], 0.01)
"""


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize("trained", [False, True])
def test_frozen_weights_are_left_out_of_an_average(trained: bool, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FROZEN.format(trained=trained, names="ours, theirs"))
    run = measure(Command(str(tmp_path / "train.py"), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK)
    found = [each for each in LoopOverParameters().check(Evidence.from_run(run)) if each.parameters["kind"] == "frozen"]
    assert bool(found) is not trained
    for each in found:
        assert each.site is not None and each.site.line == 21 and each.gain.likely > 1.1
        fix = LoopOverParameters().fix(each, Sources())
        assert isinstance(fix, Advice) and "only what is trained" in fix.text
