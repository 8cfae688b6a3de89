"""Rows that a module computes again are found by what is in them, and only where it is the script that repeats them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from advisor.harness.layout import RepeatedRow
from advisor.harness.watches.repeated_rows import RepeatedRows
from tests.harness.watching import Watching


class Root(nn.Module):
    def __init__(self, part: nn.Module, forward: Callable[[nn.Module, torch.Tensor], Any]) -> None:
        super().__init__()
        self.part, self._forward = part, forward

    def forward(self, x: torch.Tensor) -> Any:
        return self._forward(self.part, x)


def watched(watch: RepeatedRows, root: nn.Module, x: torch.Tensor) -> Any:
    """Call the root as a watched forward is, each of torch's functions taking a second."""
    watch.forward_begins(root, [x])
    with Watching(lambda name, *_: watch.called(1.0) if name == "linear" else None):
        result = root(x)
    watch.forward_ends(result)
    return result


def found(
    part: nn.Module,
    forward: Callable[[nn.Module, torch.Tensor], Any],
    x: torch.Tensor | None = None,
    data: torch.Tensor | None = None,
) -> list[RepeatedRow]:
    watch = RepeatedRows(torch)
    if data is not None:
        watch.batch([data])
    watched(watch, Root(part, forward), torch.randn(16, 6) if x is None else x)
    return list(watch.lines.lines.values())


def layers(dropout: float = 0.0) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 80), nn.Dropout(dropout), nn.ReLU(), nn.Linear(80, 5))


TRIPLES = torch.randint(16, (3, 40))


@pytest.mark.parametrize(
    ("repeat", "order"),
    [
        pytest.param(lambda x: x.repeat_interleave(4, 0), "block", id="block"),
        pytest.param(lambda x: x.unsqueeze(1).expand(-1, 4, -1).reshape(64, 6), "block", id="expand"),
        pytest.param(lambda x: x.repeat(4, 1), "tile", id="tile"),
        pytest.param(lambda x: x[torch.arange(64) * 7 % 16 // 2 * 2 + torch.arange(64) // 32], "", id="index"),
    ],
)
def test_rows_that_are_repeated_before_a_module(repeat: Callable[[torch.Tensor], torch.Tensor], order: str) -> None:
    (line,) = found(layers(), lambda part, x: part(repeat(x)))
    assert (line.order, line.rows, line.distinct, line.dropout) == (order, 64, 16, False)
    assert (line.module, line.calls) == ("Sequential", 1) and line.seconds == pytest.approx(2 * 0.75)


def test_copies_are_counted_once_their_backward_comes() -> None:
    watch = RepeatedRows(torch)
    result = watched(watch, Root(layers(), lambda part, x: part(x.repeat(4, 1))), torch.randn(16, 6))
    (line,) = watch.lines.lines.values()
    assert line.differentiated_s == 0.0
    result.sum().backward()
    assert line.differentiated_s == line.seconds == pytest.approx(1.5)


def test_rows_that_an_earlier_call_was_given() -> None:
    """All but those of the first call are copies, and those that it has twice."""

    def triplets(part: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([part(x[TRIPLES[i]]) for i in range(3)])

    (line,) = found(layers(), triplets)
    assert line.calls == 3
    new = [int(TRIPLES[:i].unique().numel()) for i in (1, 2, 3)]
    assert line.seconds == pytest.approx(
        sum(2 * (40 - more + less) / 40 for more, less in zip(new, [0, *new], strict=False))
    )


def neighbours(part: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Each of 12 nodes with three others: 36 rows of 12 different ones."""
    return torch.stack([part(x[[i, (i + 1) % 12, (i + 5) % 12]]).amax(0) for i in range(12)])


def test_rows_that_each_of_many_small_calls_is_given() -> None:
    words = torch.zeros(12, 1000)  # nearly all zeros, wherever one looks
    words[torch.arange(12), 80 * torch.arange(12) + 7] = 1.0
    (line,) = found(nn.Linear(1000, 5), neighbours, words)
    assert (line.order, line.rows) == ("calls", 3)
    # In the first three calls, of less than eight rows and of one more, nothing is counted.
    assert 10.0 * 1 / 3 < line.seconds <= (36 - 12) / 3


def test_small_calls_that_write_a_text_are_left_alone() -> None:
    with torch.no_grad():
        assert found(layers(), neighbours, torch.randn(12, 6)) == []


def test_sequences_first_rows_are_columns() -> None:
    lstm = nn.LSTM(6, 8)
    (line,) = found(lstm, lambda part, x: part(x.repeat(1, 4, 1))[0], torch.randn(9, 16, 6))
    assert (line.order, line.rows, line.distinct) == ("tile", 64, 16)


IN_NO_ORDER = torch.arange(64) * 7 % 16 // 2


def batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8))


def rows_beyond(part: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Equal rows become different ones, by a look beyond them."""
    return part(x.repeat(4, 1))


class Across(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.cumsum(0)
        return self.layer(y)


def twice_after_a_step(part: nn.Module, x: torch.Tensor) -> torch.Tensor:
    before = part(x)
    with torch.no_grad():
        for each in part.parameters():
            each.mul_(1.5)
    return before + part(x.flip(0))


@pytest.mark.parametrize(
    ("part", "forward"),
    [
        pytest.param(layers(), lambda part, x: part(x), id="each-once"),
        pytest.param(layers(), lambda part, x: part(x) + part(x.clone()), id="a-whole-call-again"),
        pytest.param(batch_norm(), lambda part, x: part(x[IN_NO_ORDER]), id="batch-norm"),
        pytest.param(Across(), rows_beyond, id="looks-beyond-the-row"),
        pytest.param(layers(), twice_after_a_step, id="weights-that-changed"),
        pytest.param(layers(0.5), lambda part, x: part(x[IN_NO_ORDER]), id="dropout-in-no-order"),
        pytest.param(layers(), lambda part, x: part(torch.zeros(64, 6)), id="zeros"),
        pytest.param(layers(), lambda part, x: part(x[:2].repeat(3, 1)), id="few-rows"),
        pytest.param(nn.ReLU(), lambda part, x: part(x.repeat(4, 1)), id="no-weights"),
        pytest.param(
            nn.Embedding(9, 4), lambda part, x: part(torch.arange(8).repeat(8).view(64, 1)), id="only-looked-up"
        ),
    ],
)
def test_nothing_is_found(part: nn.Module, forward: Callable[[nn.Module, torch.Tensor], Any]) -> None:
    assert found(part, forward) == []


def test_a_batch_norm_of_as_many_of_each_row() -> None:
    (line,) = found(batch_norm(), lambda part, x: part(x.repeat(4, 1)))
    assert line.module == "Sequential" and line.order == "tile"


def test_dropout_alone_tells_ordered_copies_apart() -> None:
    (line,) = found(layers(0.5), lambda part, x: part(x.repeat_interleave(4, 0)))
    assert line.dropout and line.order == "block"


def through_a_state(part: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Each row's own state, whose rows are in another dimension."""
    start = torch.zeros(16, 5, 6) + 1.0 + torch.arange(6.0)
    return part(start, (torch.randn(2, 16, 8), torch.randn(2, 16, 8)))[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("part", "forward"),
    [
        pytest.param(layers(0.5), lambda part, x: part(x.repeat(2, 1)), id="two-views"),
        pytest.param(nn.LSTM(6, 8, 2, dropout=0.5, batch_first=True), through_a_state, id="a-state-of-each"),
    ],
)
def test_rows_that_are_repeated_for_the_dropout(part: nn.Module, forward: Any) -> None:
    assert [each for each in found(part, forward) if each.dropout] == []


def test_a_root_that_is_asked_several_times_for_its_dropout() -> None:
    watch = RepeatedRows(torch)
    watched(watch, layers(0.5), torch.randn(16, 6).repeat(5, 1))
    assert not watch.lines.lines


def test_rows_that_differ_in_their_ends_alone() -> None:
    """A context that several answers share: nearly all of the numbers are the same."""
    many = nn.Sequential(nn.Embedding(50, 8), nn.Flatten(), nn.Linear(512 * 8, 4))
    ids = torch.randint(50, (8, 512)).repeat_interleave(4, 0)
    ids[:, -1] = torch.arange(32)
    assert found(many, lambda part, x: part(ids)) == []
    long = torch.randn(8, 5000).repeat_interleave(4, 0)
    long[:, 4321] += torch.arange(32)
    assert found(nn.Linear(5000, 4), lambda part, x: part(long)) == []


class Reads(nn.Module):
    """A decoder's layer: what it looks at it is given by name."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.drop = nn.Linear(6, 6), nn.Dropout(0.5)

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        return self.drop(self.layer(x) + memory)


def test_dropout_hides_nothing_that_is_given_by_name() -> None:
    alone, repeated = torch.randn(64, 6), torch.randn(16, 6).repeat(4, 1)
    lines = found(Reads(), lambda part, x: part(x.repeat(4, 1), memory=alone))
    assert [each.module for each in lines] == []
    (line,) = found(Reads(), lambda part, x: part(x.repeat(4, 1), memory=repeated))
    assert line.module == "Reads" and line.dropout


def test_a_root_is_given_what_the_data_has() -> None:
    """Equal rows of the data are nobody's mistake; single ones that the script takes several times are."""
    rows = torch.randn(16, 6)
    again = rows[TRIPLES[0]]
    assert found(layers(), lambda part, x: part(x), again) == []
    assert found(layers(), lambda part, x: part(x), again, data=again) == []
    (line,) = found(layers(), lambda part, x: part(x), again, data=rows)
    assert line.module == "Root" and line.order == ""
    (line,) = found(layers(), lambda part, x: part(x), rows.repeat(3, 1))
    assert line.order == "tile"


def test_what_no_graph_was_recorded_of_serves_no_backward() -> None:
    def target_first(part: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            target = part(x)
        return part(x.flip(0)) - target

    assert found(layers(), target_first) == []

    # The other way round it does.
    def target_last(part: nn.Module, x: torch.Tensor) -> torch.Tensor:
        value = part(x)
        with torch.no_grad():
            return value - part(x.flip(0))

    (line,) = found(layers(), target_last)
    assert line.order == "calls" and line.distinct == 0


def test_a_backward_ends_what_may_be_used_again() -> None:
    watch = RepeatedRows(torch)
    x = torch.randn(16, 6)
    part = layers()
    watched(watch, Root(part, lambda part, x: part(x)), x).sum().backward()
    watch.backward_begins()
    watched(watch, Root(part, lambda part, x: part(x.flip(0))), x)
    assert not watch.lines.lines


def test_an_error_inside_leaves_no_call_behind() -> None:
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError(self.layer(x).shape)

    fails, other = Fails(), layers()

    def tries(part: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with pytest.raises(ValueError, match="64"):
            fails(x.repeat(4, 1))
        return part(x.repeat(4, 1))

    (line,) = found(other, tries)
    assert line.module == "Sequential" and line.seconds == pytest.approx(1.5)


def test_nothing_listens_once_the_forward_is_over() -> None:
    hooks = torch.nn.modules.module
    before = len(hooks._global_forward_hooks), len(hooks._global_forward_pre_hooks)
    found(layers(), lambda part, x: part(x.repeat(4, 1)))
    assert (len(hooks._global_forward_hooks), len(hooks._global_forward_pre_hooks)) == before
