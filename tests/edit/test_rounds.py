"""Where a script counts the batches whose gradients it adds up: each place that says how many, or why it is unclear."""

from __future__ import annotations

import textwrap

import pytest

from advisor.edit import Drafts, Sources
from advisor.edit.loading.rounds import counted_at

PATH = "/nowhere/train.py"


def counted(code: str, rounds: int = 8, batch: tuple[str, ...] = ()) -> tuple[list[tuple[int, str]] | None, str]:
    """The line and code of each place."""
    text = textwrap.dedent(code).lstrip("\n")
    line = 1 + next(number for number, each in enumerate(text.split("\n")) if "backward(" in each)
    drafts = Drafts(Sources({PATH: text}))
    nodes, why = counted_at(drafts, drafts[PATH], line, rounds, batch)
    return (None if nodes is None else [(drafts[PATH].line(each), drafts[PATH].code(each)) for each in nodes]), why


@pytest.mark.parametrize(
    ("loss", "more", "why"),
    [
        ("mse_loss(net(x), y)", "if i >= 800:\n        break", "ends the loop by its number of batches"),
        ("mse_loss(net(x), y, reduction='sum')", "print(i)", "a sum over the batch"),
    ],
)
def test_other_batches_would_not_be_the_same(loss: str, more: str, why: str) -> None:
    code = f"""\
for i, (x, y) in enumerate(loader):
    loss = {loss} / 8
    loss.backward()
    if (i + 1) % 8 == 0:
        optimizer.step()
    {more}
"""
    nodes, said = counted(code)
    assert nodes is None and why in said


@pytest.mark.parametrize(
    ("code", "places"),
    [
        pytest.param(
            """
            for i, x in enumerate(loader):
                (net(x) / 8).backward()
                if (i + 1) % 8 == 0:
                    optimizer.step()
            """,
            [(3, "8"), (2, "8")],
            id="numbers",
        ),
        pytest.param(
            """
            for i, x in enumerate(loader):
                if i % 8 == 0:
                    optimizer.zero_grad()
                loss = cross_entropy(net(x) / 8, y) / 8
                loss.backward()
                if (i + 1) % 8 == 0:
                    optimizer.step()
            """,
            [(2, "8"), (6, "8"), (4, "8")],
            id="gradients made zero in front",
        ),
        pytest.param(
            """
            N = 8
            for i, x in enumerate(loader):
                loss = net(x)
                loss /= N
                scaler.scale(loss).backward()
                update = (i + 1) % N == 0 or i + 1 == len(loader)
                if update:
                    scaler.step(optimizer)
            """,
            [(6, "N")],
            id="a flag",
        ),
        pytest.param(
            """
            accum = 8
            for i, x in enumerate(loader):
                loss = net(x) / accum
                loss.backward()
                if i % accum != accum - 1:
                    continue
                optimizer.step()
            """,
            [(5, "accum")],
            id="skipped",
        ),
        pytest.param(
            """
            class Trainer:
                def __init__(self, accum_iter=8):
                    self.accum_iter = accum_iter

                def epoch(self):
                    for x in self.loader:
                        self.seen += 1
                        loss = self.net(x) / self.accum_iter
                        loss.backward()
                        if self.seen % self.accum_iter == 0:
                            self.optimizer.step()
                        if self.seen % 50 == 0:
                            self.profiler.step()
            """,
            [(10, "self.accum_iter")],
            id="an attribute",
        ),
        pytest.param(
            """
            accum, seen = 8, 0
            for x in loader:
                loss = net(x) / accum
                loss.backward()
                seen += 1
                if seen == accum:
                    optimizer.step()
                    seen = 0
            """,
            [(6, "accum")],
            id="a count that starts again",
        ),
    ],
)
def test_each_place_that_says_how_many(code: str, places: list[tuple[int, str]]) -> None:
    assert counted(code) == (places, "")


def test_nothing_where_the_batch_size_says_it() -> None:
    code = """
    rounds = 64 // args.micro_batch
    for i, x in enumerate(loader):
        loss = net(x) / rounds
        loss.backward()
        if (i + 1) % rounds == 0:
            optimizer.step()
    """
    assert counted(code, batch=("micro_batch",)) == ([], "")
    assert counted(code, batch=("batch_size",))[0] is None


@pytest.mark.parametrize(
    ("code", "why"),
    [
        pytest.param("if i % 8 == 7:", "stands twice", id="twice"),
        pytest.param("if i % N == 7:", "stands twice", id="twice, once by name"),
        pytest.param("if count == 7:", "cannot be told", id="from 0"),
        pytest.param("if epoch % 8 == 0:\n        sched.step()\n    if ready(i):", "cannot be told", id="a schedule's"),
        pytest.param("seen = i % 8 == 1\n    if (i + 1) % 8 == 0:", "such a number, too", id="another count"),
        pytest.param("if i % every(8) == 0:", "cannot be told", id="computed"),
        pytest.param("if ready(i):", "cannot be told", id="elsewhere"),
        pytest.param("if (i + 1) % 4 == 0:", "cannot be told", id="another number"),
    ],
)
def test_what_cannot_be_told_is_said(code: str, why: str) -> None:
    script = (
        f"N = 8\nfor i, x in enumerate(loader):\n    (net(x) / 8).backward()\n    {code}\n        optimizer.step()\n"
    )
    places, reason = counted(script)
    assert places is None and why in reason


def test_number_that_is_also_a_width() -> None:
    code = """
    import torch
    n = 8
    net = torch.nn.Linear(n, 2)
    for i, x in enumerate(loader):
        loss = net(x) / n
        loss.backward()
        if (i + 1) % n == 0:
            optimizer.step()
    """
    places, why = counted(code)
    assert places is None and "reads n, too" in why


def test_loss_that_is_divided_by_something_else() -> None:
    code = """
    n = 8
    for i, x in enumerate(loader):
        loss = net(x) / len(x)
        loss.backward()
        if (i + 1) % n == 0:
            optimizer.step()
    """
    assert counted(code)[0] is None


@pytest.mark.parametrize(
    ("made", "loss", "why"),
    [
        ("def test():\n    net.eval()\n    F.nll_loss(net(x), y, reduction='sum')", "F.nll_loss(net(x), y) / n", ""),
        ("class A:\n    def test(self):\n        net.eval()\n        mse(a, b, reduction='sum')", "net(x) / n", ""),
        ("", "F.nll_loss(net(x), y, reduction='sum') / n", "a sum over the batch"),
        ("criterion = MSELoss(reduction='sum')", "criterion(net(x), y) / n", "a sum over the batch"),
    ],
    ids=["of an evaluation", "of a method's", "of the step", "made before"],
)
def test_loss_that_is_a_sum(made: str, loss: str, why: str) -> None:
    loop = f"for i, x in enumerate(loader):\n    loss = {loss}\n    loss.backward()\n    if (i + 1) % n == 0:\n"
    places, reason = counted(f"n = 8\n{made}\n{loop}        optimizer.step()\n")
    assert (places is None) == bool(why) and why in reason
