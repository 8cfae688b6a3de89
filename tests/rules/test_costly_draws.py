"""Draws that go over all there is for a few, in a dataset and in the step; their fix comes before workers."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from advisor.diagnose import diagnose
from advisor.edit import Edit
from advisor.evidence import Evidence
from advisor.evidence.beside import Beside
from advisor.evidence.loading.random_draws import draw_of_few
from advisor.harness.layout import FetchPart, Site
from advisor.launch import Command, measure
from advisor.rule import Safety
from rules.costly_draws import CostlyDraws
from rules.loader_workers import LoaderWorkers
from rules.slow_transform import SlowTransform
from rules.work_beside_model import WorkBesideModel
from tests.conftest import PYTHON, QUICK
from tests.rules.test_slow_fetches import fed, found

DRAWS = CostlyDraws()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("noise = np.random.choice(self.n, 5, p=self.p)", "np.random.choice"),
        ("noise = torch.from_numpy(rng.choice(self.n, size=5, p=P))", "rng.choice"),
        ("return random.choices(self.words, weights=self.p, k=5)", "random.choices"),
        ("return torch.multinomial(self.p, 5, replacement=True)", "torch.multinomial"),
        ("return np.random.choice(self.n, 5, p=self.annealed)", ""),  # other weights later
        ("return np.random.choice(self.n, 5, p=self.p[i])", ""),  # each sample has its own
        ("return np.random.choice(self.n, 5, p=own)", ""),
        ("return self.rows[np.random.choice(self.n, 5)]", ""),
        ("return np.random.choice(self.n, 5, replace=False, p=self.p)", ""),  # each draw changes them
        ("return torch.multinomial(self.p, 5)", ""),
        ("return render(np.random.choice(self.n, 5, p=self.p))", ""),  # what takes the time is not told
    ],
)
def test_weights_that_are_added_up_for_each_draw(line: str, told: str, scene: Any, tmp_path: Path) -> None:
    path = tmp_path / "pairs.py"
    path.write_text(
        f"class Pairs:\n    def __getitem__(self, i):\n        own = self.weigh(i)\n        {line}\n\n"
        "    def anneal(self):\n        self.annealed = self.annealed ** 0.9\n"
    )
    made = scene(100.0)
    # Of the look less than half is the draw, as where the looking takes long; of an undisturbed fetch it is nearly all.
    parts = [FetchPart("line", "f", Site(str(path), 3), 0.06), FetchPart("line", "f", Site(str(path), 4), 0.055)]
    loader = fed(made, str(path), parts, fetch_ms=60.0, num_workers=0)
    loader.look_s = 0.12
    finding = found(DRAWS, made, tmp_path)
    assert (finding.parameters["what"] if finding is not None else "") == told
    if told:
        assert finding is not None and finding.evidence["share_of_fetch"] == pytest.approx(0.88)
        assert finding.safety is Safety.EXACT


DRAW = "class Pairs:\n    def __getitem__(self, i):\n        x = np.random.choice(9, p=P)\n        return x\n"


@pytest.mark.parametrize(("seconds", "expected"), [(0.055, True), (0.0004, False), (0.02, False)])
def test_draws_that_take_little_are_not_reported(seconds: float, expected: bool, scene: Any, tmp_path: Path) -> None:
    path = tmp_path / "pairs.py"
    path.write_text(DRAW)
    made = scene(100.0)
    fed(made, str(path), [FetchPart("line", "f", Site(str(path), 3), seconds)], fetch_ms=60.0, num_workers=0)
    finding = found(DRAWS, made, tmp_path)
    assert (finding is not None) == expected


def test_draws_come_before_workers_that_would_do_them(scene: Any, tmp_path: Path) -> None:
    path = tmp_path / "pairs.py"
    path.write_text(DRAW)
    made = scene(100.0)
    parts = [FetchPart("line", "f", Site(str(path), 3), 0.055)]
    fed(made, str(path), parts, fetch_ms=60.0, cpu_ms=60.0, num_workers=0)
    ranked = diagnose(made.evidence(tmp_path), rules=[LoaderWorkers(), SlowTransform(), DRAWS]).document.findings
    assert [each.rule for each in ranked] == ["costly-draws", "loader-workers"]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("x = np.random.choice(len(self.x), 1024, replace=False)", "np.random.choice"),
        ("x = self.x[np.random.choice(len(self.x), 1024, False)]", "np.random.choice"),
        ("return torch.from_numpy(self.x[np.random.permutation(len(self.x))[:1024]])", "np.random.permutation"),
        ("x = self.x[torch.randperm(len(self.x))[:1024]]", "torch.randperm"),
        ("x = np.random.choice(len(self.x), 1024, replace=True)", ""),
        ("x = np.random.choice(len(self.x), 1024)", ""),
        ("x = rng.choice(len(self.x), 1024, replace=False)", ""),  # a Generator, which does not
        ("x = self.x[torch.randperm(len(self.x))]", ""),  # all of it is used
        ("x = self.x[np.random.permutation(len(self.x))[::2]]", ""),
        ("x = self.turn(self.x[torch.randperm(len(self.x))[:1024]])", ""),  # what takes the time is not told
    ],
)
def test_a_few_of_an_order_of_all(line: str, told: str, scene: Any, tmp_path: Path) -> None:
    path = tmp_path / "clouds.py"
    path.write_text(f"class Clouds:\n    def __getitem__(self, i):\n        {line}\n        return x\n")
    made = scene(100.0)
    fed(made, str(path), [FetchPart("line", "f", Site(str(path), 3), 0.055)], fetch_ms=60.0, num_workers=0)
    finding = found(DRAWS, made, tmp_path)
    assert (finding.parameters["what"] if finding is not None else "") == told
    if told:
        assert finding is not None and finding.safety is None and "a random order for every sample" in finding.summary
        assert not list(SlowTransform().check(made.evidence(tmp_path)))  # which would know nothing better


SCRIPT = """\
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
torch.set_num_threads(1)
words = 50_000
counts = np.random.default_rng(0).random(words) ** 4


class Pairs(Dataset):
    def __init__(self):
        self.pairs = np.random.default_rng(1).integers(0, words, (8000, 2))
        self.p = counts ** 0.75
        self.p /= self.p.sum()

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        noise = np.random.choice(words, size=5, p=self.p)
        return self.pairs[i], noise

    def next(self):
        {later}


table = nn.Embedding(words, 16, sparse=True)
optimizer = torch.optim.SGD(table.parameters(), lr=0.05)
for pair, noise in DataLoader(Pairs(), batch_size=64):
    a, b = table(pair).unbind(1)
    loss = (a * b).sum(-1).sigmoid().mean() - (table(noise) * a[:, None]).sum(-1).sigmoid().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
# After each epoch, say: the sums would have to be made anew.
ANNEALS = "self.p = self.p ** 0.99 / (self.p ** 0.99).sum()"


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(("later", "told"), [("pass", True), (ANNEALS, False)], ids=["the same", "annealed"])
def test_weights_that_are_added_up_for_each_sample(later: str, told: bool, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(later=later))
    run = measure(Command(str(tmp_path / "train.py"), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK)
    found = diagnose(Evidence.from_run(run), rules=[LoaderWorkers(), SlowTransform(), CostlyDraws()]).found
    drawn = [each for each in found if each.rule.id == "costly-draws"]
    assert drawn == list(found[:1] if told else ())
    if told:
        fix = drawn[0].fix
        assert drawn[0].finding.site is not None and drawn[0].finding.site.line == 22
        assert isinstance(fix, Edit) and "self.cdf.searchsorted(" in next(iter(fix.texts.values()))


STEP = """\
import numpy as np
import torch
from torch import nn

np.random.seed(0)
torch.set_num_threads(1)
x = torch.randn(400_000, 8)
net = nn.Linear(8, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


def batch():
    rows = {drawn}
    return x[rows]


for step in range(80):
    batch_x = {batch}
    optimizer.zero_grad()
    net(batch_x).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(
    ("drawn", "batch", "fixed"),
    [
        ("np.random.choice(len(x), 64, replace=False)", "batch()", ".choice(len(x), 64, replace=False)"),
        ("0", "x[np.random.choice(len(x), 64, replace=False)]", ".choice(len(x), 64, replace=False)"),
        ("torch.randperm(len(x))[:64]", "batch()", ".choice(len(x), min(64, len(x)), replace=False)"),
        ("0", "x[np.random.choice(len(x), 64)]", ""),
    ],
    ids=["choice", "choice in the loop", "randperm", "with repetitions"],
)
def test_an_order_of_all_in_each_step(drawn: str, batch: str, fixed: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(STEP.format(drawn=drawn, batch=batch))
    run = measure(Command(str(tmp_path / "train.py"), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK)
    told = diagnose(Evidence.from_run(run), rules=[WorkBesideModel(), CostlyDraws()]).found
    assert [each.rule.id for each in told] == (["costly-draws"] if fixed else [])
    if fixed:
        assert isinstance(told[0].fix, Edit) and fixed in next(iter(told[0].fix.texts.values()))
        assert told[0].finding.evidence["share_of_step"] > 0.5


@pytest.mark.parametrize(
    ("source", "calls", "told"),
    [
        ("    rows = np.random.choice(n, k, replace=False)\n    return x[rows]\n", "", "np.random.choice"),
        ("    order = np.random.permutation(n)\n    return x[order[:k]]\n", "", "np.random.permutation"),
        ("    order = torch.randperm(n)\n    return x[order[:k]]\n", "randperm", "torch.randperm"),
        # All of the order is used, a part at a time.
        (
            "    order = torch.randperm(n)\n    for i in range(0, n, k):\n        yield x[order[i : i + k]]\n",
            "randperm",
            "",
        ),
        ("    order = torch.randperm(n)\n    return x[order[:k]], x[order[k:]]\n", "randperm", ""),
        ("    return x[torch.randperm(n)]\n", "randperm", ""),
        # Something else may take the time of the function's own lines.
        ("    rows = np.random.choice(n, k, replace=False)\n    return np.sort(x)[rows]\n", "", ""),
        ("    rows = np.random.choice(n, k, replace=False)\n    return [x[row] for row in rows]\n", "", ""),
        ("    rows = torch.randperm(n)[:k]\n    return x[rows]\n", "", ""),  # which a trace knows by its name
    ],
)
def test_which_draws_of_a_step_are_blamed(source: str, calls: str, told: str) -> None:
    found = Beside("train.py", 1, "batch", calls, 0.9)
    draw = draw_of_few(found, lambda _: f"def batch(x, n, k):\n{source}")
    assert (ast.unparse(draw.func) if draw is not None else "") == told


def test_in_a_loop_over_the_steps_other_phases_are_not_looked_at() -> None:
    text = "for i in range(9):\n    y.append(np.sin(i))\n\nfor step in range(99):\n"
    text += "    train(x[np.random.choice(n, k, replace=False)])\n"
    found = Beside("train.py", 0, "<module>", "", 0.9, loops=True)
    assert draw_of_few(found, lambda _: text) is not None
    assert draw_of_few(found, lambda _: f"{text}    z = np.sort(x)\n") is None
    assert draw_of_few(found, lambda _: f"{text}    z = [f(each) for each in x]\n") is None
