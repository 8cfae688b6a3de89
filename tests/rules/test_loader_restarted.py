"""An iterator for each batch is told of, and nothing that would start workers for each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Sampler, TensorDataset, WeightedRandomSampler

from advisor.edit import Edit, Sources
from advisor.evidence import Evidence
from advisor.evidence.loading.fetching import begins_anew
from advisor.harness.layout import Loader, Site
from advisor.harness.loading.loaders import own_sampler
from advisor.launch import Command, measure
from advisor.rule import Advice, Finding
from rules.batched_indexing import BatchedIndexing
from rules.loader_restarted import LoaderRestarted
from rules.loader_workers import LoaderWorkers
from tests.conftest import PYTHON, QUICK

RULE = LoaderRestarted()

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
x = torch.randn(200_000, 8)
loader = DataLoader(TensorDataset(x), batch_size=16, shuffle={shuffle})
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
{loop}
    loss = model(rows).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
ANEW = "for step in range(400):\n    (rows,) = next(iter(loader))"
GOES_ON = "for (rows,), _ in zip(loader, range(4000)):"


def fed(made: Any, **facts: Any) -> Loader:
    """A step of 60 ms that waits 50 for a batch, whose making takes 8; 30 iterators have given 30 batches."""
    loader: Loader = made.loader(wait_ms=50.0, fetch_ms=8.0, cpu_ms=8.0, shuffle=True)
    loader.epochs = loader.fetched = 30
    loader.iterated = Site("/nowhere/train.py", 12)
    for name, value in facts.items():
        setattr(loader, name, value)
    return loader


def found(made: Any, tmp_path: Path) -> Finding | None:
    findings = list(RULE.check(made.evidence(tmp_path)))
    assert len(findings) <= 1
    return findings[0] if findings else None


class Priorities(Sampler[int]):
    def __init__(self) -> None:
        self.left = 9

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.left))

    def __len__(self) -> int:
        return self.left


def test_a_sampler_of_the_scripts_own_may_go_by_what_has_changed(scene: Any, tmp_path: Path) -> None:
    data = TensorDataset(torch.zeros(9))
    assert own_sampler(DataLoader(data, sampler=Priorities())) == "Priorities"
    assert own_sampler(DataLoader(data, batch_size=None, sampler=BatchSampler(Priorities(), 3, False))) == "Priorities"
    assert own_sampler(DataLoader(data, batch_sampler=BatchSampler(Priorities(), 3, False))) == "Priorities"
    assert own_sampler(DataLoader(data, shuffle=True)) == own_sampler(DataLoader(data, batch_size=None)) == ""
    assert own_sampler(DataLoader(data, sampler=WeightedRandomSampler([1.0] * 9, 9))) == "WeightedRandomSampler"
    made = scene(60.0)
    fed(made, sampler="Priorities")
    finding = found(made, tmp_path)
    assert finding is not None
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Advice) and "Priorities draw no more samples" in fix.text


def test_what_starting_takes_is_saved(scene: Any, tmp_path: Path) -> None:
    made = scene(60.0)
    fed(made)
    finding = found(made, tmp_path)
    assert finding is not None and finding.site is not None and finding.site.line == 12
    assert finding.gain.likely == pytest.approx(60 / (60 - 42))
    assert finding.gain.low < finding.gain.likely < finding.gain.high
    assert "200 batches" in finding.summary and "worker" not in finding.summary
    evidence = made.evidence(tmp_path)
    assert not list(LoaderWorkers().check(evidence)) and not list(BatchedIndexing().check(evidence))


def test_kept_workers_make_batches_beside_the_step(scene: Any, tmp_path: Path) -> None:
    made = scene(60.0)
    fed(made, num_workers=2, fetch_s=0.04, fetch_cpu_s=0.04)
    finding = found(made, tmp_path)
    assert finding is not None and "starts 2 workers" in finding.summary
    # Two workers make a batch in 20 ms, beside 6 of the step, which took 10 while others started.
    assert finding.gain.likely == pytest.approx(60 / 20)


@pytest.mark.parametrize(
    "facts",
    [{"epochs": 3}, {"epochs": 4, "fetched": 4}, {"batches": 2}, {"batches": None}, {"fetched": 100, "batches": 12}],
    ids=["few epochs", "a few looks", "two batches", "a stream", "several of each"],
)
def test_short_epochs_are_no_new_iterators(facts: dict[str, Any], scene: Any, tmp_path: Path) -> None:
    made = scene(60.0)
    assert not begins_anew(fed(made, **facts))
    assert found(made, tmp_path) is None


def test_the_first_batch_again_and_again_is_for_the_author(scene: Any, tmp_path: Path) -> None:
    made = scene(60.0)
    fed(made, shuffle=False)
    finding = found(made, tmp_path)
    assert finding is not None
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Advice) and "the same each time" in fix.text


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize("loop", [ANEW, GOES_ON], ids=["anew", "goes on"])
def test_scripts_are_told_apart_by_running_them(loop: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(shuffle=True, loop=loop))
    run = measure(Command(str(script), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK, timeout=120)
    findings = list(RULE.check(Evidence.from_run(run)))
    assert len(findings) == (loop is ANEW)
    for finding in findings:
        fix = RULE.fix(finding, Sources())
        assert isinstance(fix, Edit)
        (after,) = fix.after.values()
        assert "(rows,) = next(batches)" in after.text
        compile(after.text, "train.py", "exec")
