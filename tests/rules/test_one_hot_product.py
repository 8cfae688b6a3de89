"""Products with one-hot rows are known by what is in the rows, and become lookups with the same numbers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from advisor.edit import Edit, Sources
from advisor.evidence import Evidence
from advisor.harness.watches.constants import Constants
from advisor.harness.watches.one_hot import OneHots
from advisor.harness.watches.sameness import Sameness
from advisor.launch import Command, measure
from advisor.run import Run
from rules.one_hot_product import OneHotProduct
from rules.recomputed_constants import RecomputedConstants
from tests.conftest import PYTHON, QUICK

SCRIPT = """\
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Words(nn.Module):
    def __init__(self, words=3000):
        super().__init__()
        self.words = words
        self.inner = nn.Linear(words, 64)
        self.out = nn.Linear(64, 8)

    def forward(self, ids):
        {rows}
        return self.out(self.inner(x).tanh())


model = Words()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
losses = []
for step in range(300):
    loss = model(torch.randint(3000, (128,))).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
"""
ONE_HOT = "x = F.one_hot(ids, self.words).float()"
SOFT = "x = F.one_hot(ids, self.words).float() * 0.9 + 0.1 / self.words"


@pytest.mark.parametrize("columns", [2, 4, 3000])
def test_one_hot_rows_are_told_apart_by_where_the_ones_are(columns: int) -> None:
    constants, alike = Constants(torch), Sameness(torch).alike
    ids = torch.arange(128) % columns
    one, other = (F.one_hot(each, columns) for each in (ids, (ids + 1) % columns))
    assert alike(constants._numbers(one), constants._numbers(one.clone()))
    assert not alike(constants._numbers(one), constants._numbers(other))
    assert not alike(constants._numbers(one.float()), constants._numbers(other.float()))


@pytest.mark.parametrize("shape", [(50, 2), (64, 64), (7, 32, 4)])
def test_all_columns_are_looked_at(shape: tuple[int, ...]) -> None:
    places = Constants(torch)._places(torch.zeros(shape))
    assert len(places) == len(shape)
    for place, size in zip(places, shape, strict=True):
        assert {*(place % 2).tolist()} == {0, 1} and int(place.max()) < size


def run_of(folder: Path, rows: str) -> Run:
    folder.mkdir()
    script = folder / "train.py"
    script.write_text(SCRIPT.format(rows=rows))
    return measure(Command(str(script), python=PYTHON, cwd=str(folder)), folder / "run", QUICK, timeout=120)


@pytest.mark.slow
@pytest.mark.sessions
def test_products_with_one_hot_rows_are_lookups(tmp_path: Path) -> None:
    run = run_of(tmp_path / "hot", ONE_HOT)
    evidence = Evidence.from_run(run)
    (line,) = run.record.one_hot
    assert (line.rows, line.columns, line.calls) == (128, 3000, pytest.approx(1.0))
    assert line.making_s > 0 and line.differentiated_s == pytest.approx(line.seconds)
    # What is mostly one number is told apart by where the others are: other ids are no constant.
    assert not list(RecomputedConstants().check(evidence))
    (finding,) = OneHotProduct().check(evidence)
    assert finding.gain.likely > 1.5 and "3,000 numbers" in finding.summary
    fix = OneHotProduct().fix(finding, Sources())
    assert isinstance(fix, Edit)
    (after,) = fix.after.values()
    made: list[dict[str, Any]] = [{}, {}]
    for text, names in zip((Path(run.record.script).read_text(), after.text), made, strict=True):
        exec(compile(text.replace("range(300)", "range(5)"), "train.py", "exec"), names)
    assert all(math.isclose(a, b, rel_tol=1e-4) for a, b in zip(made[0]["losses"], made[1]["losses"], strict=True))
    assert made[0]["losses"] != [made[0]["losses"][0]] * 5


@pytest.mark.slow
@pytest.mark.sessions
def test_soft_rows_are_multiplied(tmp_path: Path) -> None:
    run = run_of(tmp_path / "soft", SOFT)
    assert run.record.one_hot == [] and not list(OneHotProduct().check(Evidence.from_run(run)))


IDS = torch.tensor([3, 99, 0, 3] * 50)
HOT = F.one_hot(IDS, 100).float()


@pytest.mark.parametrize(
    ("rows", "hot"),
    [
        pytest.param(HOT, True, id="rows"),
        pytest.param(HOT.view(4, 50, 100), True, id="of sequences"),
        pytest.param(HOT.double(), True, id="in float64"),
        pytest.param(HOT * 0.5, False, id="scaled"),
        pytest.param(HOT[:, :32], False, id="narrow"),
        pytest.param(HOT.index_fill(0, torch.tensor([5]), 0.0), False, id="a row of zeros"),
        pytest.param(HOT + HOT.roll(1, 1), False, id="two of them"),
        pytest.param(torch.rand(200, 100), False, id="numbers"),
        pytest.param(HOT.clone().requires_grad_(), False, id="learned"),
        pytest.param(F.one_hot(IDS, 100), False, id="whole numbers"),
    ],
)
def test_rows_are_known_by_what_is_in_them(rows: torch.Tensor, hot: bool) -> None:
    hots = OneHots(torch)
    hots.called("linear", (rows, torch.rand(8, rows.shape[-1])), torch.rand(200, 8), 0.5)
    assert len(hots.lines.lines) == hot
