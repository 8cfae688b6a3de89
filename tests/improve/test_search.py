"""Sizes are searched, not guessed; what needs memory is tried with a smaller batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from advisor.diagnose import diagnose
from advisor.evidence import Evidence
from advisor.improve.bench import SEED, Bench
from advisor.improve.candidates import Candidates
from advisor.improve.offers import offers
from advisor.improve.state import State
from advisor.profile import profile
from advisor.rule import Safety
from advisor.session import Session, Settings
from tests.conftest import PYTHON, QUICK

SHORT = replace(QUICK, min_seconds=0.2, min_steps=10)

# A model so small that a step costs the same whatever the batch; memory ends at 32 samples.
SMALL = """\
import argparse
import torch
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
args = parser.parse_args()
torch.set_num_threads(1)
x = torch.randn(40000, 32)
data = TensorDataset(x, (x.sum(1) > 0).long())
loader = DataLoader(data, batch_size=args.batch_size, shuffle=True)
layers = [layer for _ in range(6) for layer in (torch.nn.Linear(32, 32), torch.nn.ReLU())]
model = torch.nn.Sequential(*layers, torch.nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters())
for x, y in loader:
    if len(x) >= 32:
        raise torch.OutOfMemoryError("tried to allocate 1 GiB")
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

# Many small operators: what a compiler fuses.
DEEP = """\
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)


class Deep(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(200, 16))
        self.head = torch.nn.Linear(16, 2)

    def forward(self, x):
        for scale in self.scale:
            x = torch.tanh(x * scale + 0.1) - 0.05
        return self.head(x)


def main():
    x = torch.randn(40000, 16)
    loader = DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=16)
    model = Deep()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader:
        if model._compiled_call_impl is not None and len(x) > 8:
            raise torch.OutOfMemoryError("tried to allocate 1 GiB")
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
@pytest.mark.sessions
def test_the_batch_is_doubled_until_memory_ends(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SMALL)
    # Time for the search, and for no more than a pair of runs: what is kept is not asked here.
    settings = Settings(script=str(path), python=PYTHON, cwd=str(tmp_path), accept="batch-size", timeout=120.0)
    done = profile(settings, tmp_path / "advisor_runs", options=SHORT)
    outcome = done.document.outcome
    assert outcome is not None
    trial = outcome.trials[0]
    assert [each.text for each in trial.searched] == [f"Use a batch of {size}" for size in (8, 16, 32)]
    assert [bool(each.error) for each in trial.searched] == [False, False, True]
    assert "tried to allocate 1 GiB" in trial.searched[-1].error
    assert trial.fix.arguments == {"--batch-size": "16"}
    assert trial.measured is not None and trial.measured.before_samples_per_s is not None
    speeds = [each.samples_per_s for each in trial.searched[:2]]
    assert speeds[0] is not None and speeds[1] is not None and speeds[1] > speeds[0]
    # Per sample, not per step.
    ratio = trial.measured.after_samples_per_s / trial.measured.before_samples_per_s  # type: ignore[operator]
    assert trial.measured.speedup == pytest.approx(ratio, rel=0.2)
    if trial.status == "kept":
        assert outcome.command == "python train.py --batch-size 16"
    assert done.edit is None, "an argument is no edit"


@pytest.mark.slow
@pytest.mark.sessions
def test_a_fix_out_of_memory_is_made_with_half_the_batch(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(DEEP)
    settings = Settings(script=str(path), python=PYTHON, cwd=str(tmp_path), accept="compile", timeout=120.0)
    session = Session.create(settings, tmp_path / "advisor_runs")
    bench = Bench(replace(SHORT, seed=SEED), timeout=120.0)
    baseline = bench.baseline(State(settings.command), session.baseline_dir)
    evidence = Evidence.from_run(baseline.run)
    diagnosis = diagnose(evidence)
    candidates = Candidates(bench, diagnosis.root, 0.02, lambda text: None, str)
    offer = next(each for each in offers(diagnosis) if each.diagnosed.rule.id == "compile")
    lighter = candidates.lighter(baseline, offer, evidence)
    assert lighter is not None
    assert "batch_size=8)" in lighter.fix.diff and "model.compile()" in lighter.fix.diff
    text = lighter.state.sources.text(str(path))
    assert "batch_size=8)" in text and "model.compile()" in text
    assert lighter.safety is Safety.BEHAVIOUR, "it is another batch"
    # It runs, where the compiled model with the whole batch is out of memory.
    run = bench.quick(lighter.state, session.folder / "lighter", baseline)
    assert run.record.timing.samples_per_step == 8
