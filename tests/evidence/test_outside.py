"""What a CPU step does beside loading, forward, backward and optimizer is seen as that, and its function is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from advisor.evidence import Evidence
from advisor.evidence.outside import Outside, begins, longest_outside, looks_on, source_of
from advisor.evidence.python_loops.reports import keeps_nothing
from advisor.evidence.stacks import Function
from advisor.evidence.steps import step_windows
from advisor.launch import Command, measure
from advisor.trace import read_trace
from tests.conftest import PYTHON, QUICK

SCRIPT = """
import torch

torch.set_num_threads(1)


def spectrum(model):
    return [torch.linalg.svdvals(each.detach())[0] for each in model.parameters() if each.ndim == 2]


def main():
    model = torch.nn.Sequential(torch.nn.Linear(192, 192), torch.nn.ReLU(), torch.nn.Linear(192, 192))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    largest = 0.0
    for _ in range(2000):
        loss = (model(torch.ones(8, 192)) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        SPECTRUM


main()
"""
INLINE = "largest += torch.linalg.svdvals(model[0].weight.detach()).max() + torch.linalg.svdvals(model[2].weight).max()"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "named"),
    [
        pytest.param("spectrum(model)", "linalg_svdvals, called in spectrum (train.py:6)", marks=pytest.mark.sessions),
        (f"largest = 0.0; {INLINE}", "linalg_svdvals, called in main (train.py:1"),
    ],
    ids=["function", "line"],
)
def test_metrics_of_every_step_are_not_the_forward(line: str, named: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.lstrip("\n").replace("SPECTRUM", line))
    command = Command(script=str(script), python=PYTHON, environment={"OMP_NUM_THREADS": "1"}, cwd=str(tmp_path))
    evidence = Evidence.from_run(measure(command, tmp_path / "run", QUICK, timeout=120))
    shares = evidence.shares
    assert shares["other"] > 0.5 > 2 * shares["forward"] > 0.0
    assert f"outside of forward, backward and optimizer, above all in {named}" in evidence.verdict


def test_function_that_ran_when_the_profiler_began_has_its_first_line(tmp_path: Path) -> None:
    """A trace has the line that it was at; of nested functions of one name the innermost around that line is meant."""
    script = tmp_path / "score.py"
    script.write_text(
        "class Scorer:\n    @inference_mode()\n    def score(self, x):\n        y = model(x)\n        return y\n\n"
        "def score():\n    def score():\n        return 1\n    return score()\n"
    )
    lines = {line: begins(str(script), Function(str(script), line, "score")) for line in (2, 3, 4, 7, 9, 10)}
    assert lines == {2: 2, 3: 2, 4: 2, 7: 7, 9: 8, 10: 7}
    assert begins(str(script), Function(str(script), 4, "other")) == 4
    assert begins(str(tmp_path / "gone.py"), Function("gone.py", 4, "score")) == 4


def test_work_of_a_function_that_ran_when_the_profiler_began_has_the_whole_function(tmp_path: Path) -> None:
    """Of its last lines alone nobody could tell that it trains."""
    script = tmp_path / "train.py"
    script.write_text("def learn(x):\n    x.zero_grad()\n    y = x * 2\n    y.backward()\n    return work(y)\n")
    events = [
        {"cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 1000},
        {"cat": "python_function", "name": f"{script}(3): learn", "ts": 0, "dur": 900},
    ]
    whole = [{"ph": "X", "pid": 1, "tid": 1, "args": {}, **each} for each in events]
    (tmp_path / "a.trace.json").write_text(json.dumps({"traceEvents": whole}))
    trace = read_trace(tmp_path / "a.trace.json")
    found = longest_outside(trace, step_windows(trace), [str(script)])
    assert found is not None and found.line == 1
    assert not keeps_nothing(source_of(found, script.read_text()))


@pytest.mark.parametrize(
    ("name", "body", "told"),
    [
        ("on_step_end", "self.ranks = ranks(model)", True),
        ("on_train_batch_end", "trainer.ema.lerp_(model.weight, 0.1)", False),
        ("on_step_end", "ema(model)", False),
        ("update", "self.ranks = ranks(model)", False),
    ],
)
def test_callbacks_that_look_on_change_no_weights(name: str, body: str, told: bool) -> None:
    text = f"class Watch:\n    def {name}(self, trainer, model):\n        {body}\n"
    assert looks_on(Outside("train.py", 2, name, "", 0.4), text) == told
