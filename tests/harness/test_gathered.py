"""Rows that were looked up are followed through what treats each of them alike, and no further."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from advisor.harness.layout import Gathered
from advisor.harness.watches.gathered import Gathers
from tests.harness.watching import Watching

NODES, EDGES = torch.randn(10, 8), torch.randint(10, (40,))
WEIGHT, WIDE = torch.randn(8, 8), torch.randn(8, 12)


def followed(compute: Callable[[], Any]) -> list[Gathered]:
    gathers = Gathers(torch)

    with Watching(lambda name, args, kwargs, result: gathers.called(name, args, kwargs, result, 1.0)):
        compute()
    return list(gathers.lines.lines.values())


def gated_and_dropped() -> torch.Tensor:
    rows = NODES[EDGES]
    rows *= torch.rand(40, 1)
    return F.dropout(rows, training=False)


@pytest.mark.parametrize(
    "look_up",
    [
        pytest.param(lambda: NODES[EDGES], id="index"),
        pytest.param(lambda: NODES.index_select(0, EDGES), id="index_select"),
        pytest.param(lambda: torch.index_select(NODES, dim=0, index=EDGES), id="index_select-by-name"),
        pytest.param(lambda: F.embedding(EDGES, NODES), id="embedding"),
        pytest.param(lambda: torch.embedding(NODES, EDGES), id="torch.embedding"),
        pytest.param(lambda: NODES.index_select(-2, EDGES), id="from-the-last-dimension"),
        pytest.param(lambda: NODES.view(2, 5, 8)[EDGES % 2, EDGES % 5], id="two-indices"),
    ],
)
def test_a_layer_on_rows_that_were_looked_up(look_up: Callable[[], Any]) -> None:
    (line,) = followed(lambda: F.linear(look_up(), WEIGHT))
    assert (line.calls, line.linear, line.rows, line.joined) == (1, 1, 40, False)
    assert line.distinct == 10 and line.seconds == pytest.approx(0.75)


def test_a_line_that_is_given_other_rows_as_well() -> None:
    def blocks() -> None:
        x = F.embedding(EDGES, NODES)
        for _ in range(3):
            x = F.linear(x, WEIGHT) * torch.randn(40, 8)

    (line,) = followed(blocks)
    assert (line.linear, line.others) == (1, 2)


@pytest.mark.parametrize(
    "repeat",
    [
        pytest.param(lambda: NODES.unsqueeze(1).expand(10, 4, 8), id="expand"),
        pytest.param(lambda: NODES.unsqueeze(1).expand(-1, 4, -1), id="expand-others-as-they-are"),
        pytest.param(lambda: NODES[:, None].repeat(1, 4, 1), id="repeat"),
        pytest.param(lambda: NODES.repeat_interleave(4, dim=0), id="repeat_interleave"),
        pytest.param(lambda: torch.broadcast_to(NODES[:, None], (10, 4, 8)), id="broadcast_to"),
    ],
)
def test_a_layer_on_rows_that_are_repeated(repeat: Callable[[], Any]) -> None:
    (line,) = followed(lambda: F.linear(repeat(), WEIGHT))
    assert (line.linear, line.rows, line.distinct, line.joined, line.looked_up) == (1, 40, 10, False, 0)
    assert line.seconds == pytest.approx(0.75)


CLOUDS, POINTS = torch.randn(5, 8, 1), torch.randn(5, 4, 20)


@pytest.mark.parametrize(
    "repeat",
    [
        pytest.param(lambda: CLOUDS.repeat(1, 1, 20), id="repeat"),
        pytest.param(lambda: CLOUDS.expand(-1, -1, 20).contiguous(), id="expand"),
        pytest.param(lambda: CLOUDS.unsqueeze(-1).expand(5, 8, 4, 5).flatten(2), id="pictures"),
    ],
)
def test_a_convolution_of_width_one_on_channels_that_are_repeated(repeat: Callable[[], Any]) -> None:
    (line,) = followed(lambda: F.conv1d(torch.cat([repeat(), POINTS], 1), torch.randn(6, 12, 1)))
    assert (line.joined, line.channels, line.linear, line.columns, line.given) == (True, True, 1, 12, 6)
    assert (line.rows, line.distinct) == (100, 5) and line.seconds == pytest.approx(0.95 * 8 / 12)


def test_rows_are_followed_into_another_arrangement() -> None:
    def fused() -> torch.Tensor:
        everywhere = NODES[:, None].expand(-1, 4, -1).flatten(0, 1)
        return F.linear(torch.cat([torch.randn(40, 4), everywhere], dim=1), WIDE)

    (line,) = followed(fused)
    assert (line.joined, line.rows, line.distinct, line.columns) == (True, 40, 10, 12)
    assert line.seconds == pytest.approx(0.75 * 8 / 12)


def test_what_is_moved_is_counted_once() -> None:
    """An atom's own row for each of its neighbours beside theirs, given to two layers."""

    def both() -> None:
        near, own = EDGES.view(10, 4), NODES.unsqueeze(1).expand(10, 4, 8)
        joined = torch.cat([own, NODES[near], torch.randn(10, 4, 4)], -1)
        for _ in range(2):
            F.linear(joined, torch.randn(6, 20))

    (line,) = followed(both)
    assert (line.joined, line.linear, line.columns, line.given) == (True, 2, 20, 12)
    assert (line.looked_up, line.lookups, line.parts) == (8, 1, 2)
    assert (line.looking_up_s, line.joining_s) == (1.0, 1.0)
    assert line.seconds == pytest.approx(2 * 0.75 * 16 / 20)


def test_what_one_line_is_given_by_several_lookups_adds_up() -> None:
    """A layer of a graph network for each of its rounds, the last of which gives fewer columns."""

    def rounds() -> None:
        for width in (8, 8, 2):
            F.linear(F.relu(F.linear(NODES[EDGES], torch.randn(5, 8))), torch.randn(width, 5))

    (line,) = followed(rounds)
    assert (line.calls, line.linear, line.looking_up_s) == (9, 6, 3.0)
    assert (line.columns, line.looked_up, line.given, line.lookups) == (24, 24, 18, 1)


def test_several_layers_on_the_same_rows_are_no_chain() -> None:
    def heads() -> None:
        rows = NODES[EDGES]
        for width in (8, 4):
            F.linear(rows, torch.randn(width, 8))

    (line,) = followed(heads)
    assert (line.linear, line.looked_up, line.given, line.looking_up_s) == (2, 8, 12, 1.0)


def test_layers_on_what_a_layer_gave_replace_it_once() -> None:
    def behind() -> None:
        for weight in (torch.randn(6, 8), *torch.randn(2, 1, 6)):
            rows = F.linear(NODES[EDGES] if weight.shape[1] == 8 else wide[0], weight)
            wide.append(rows)

    wide: list[torch.Tensor] = []
    (line,) = followed(behind)
    assert (line.linear, line.looked_up, line.given) == (3, 8, 2)


def test_rows_repeated_alike_are_the_same_together() -> None:
    def twice() -> torch.Tensor:
        both = [each.unsqueeze(1).expand(10, 4, 8) for each in (NODES, NODES + 1.0)]
        return F.linear(torch.cat(both, -1), torch.randn(8, 16))

    (line,) = followed(twice)
    assert not line.joined and line.seconds == pytest.approx(0.75)


def test_what_follows_is_counted_too() -> None:
    (line,) = followed(lambda: F.linear(F.relu(F.linear(NODES[EDGES], WEIGHT), inplace=True), WEIGHT))
    assert (line.calls, line.linear) == (3, 2)


def test_the_dropout_of_a_model_in_eval_changes_nothing() -> None:
    (line,) = followed(lambda: F.linear(F.dropout(NODES[EDGES], training=False), WEIGHT))
    assert (line.calls, line.linear) == (2, 1)


def test_of_joined_columns_those_count_that_were_looked_up() -> None:
    distances = torch.randn(40, 4)
    (line,) = followed(lambda: F.linear(F.linear(torch.cat([NODES[EDGES], distances], -1), WIDE), WEIGHT))
    assert line.joined and line.calls == 1
    assert line.seconds == pytest.approx(0.75 * 8 / 12)


def test_both_ends_of_an_edge_differ_together() -> None:
    """Each is looked up, but no two edges have the same both: of the first layer the parts can be computed before."""
    other, wide = torch.randint(10, (40,)), torch.randn(8, 16)
    (line,) = followed(
        lambda: F.linear(F.relu(F.linear(torch.cat([NODES[EDGES], NODES[other]], -1), wide)), WEIGHT)
    )
    assert (line.joined, line.calls) == (True, 1) and line.seconds == pytest.approx(0.75)


def test_two_columns_of_one_lookup_are_one() -> None:
    ends, wide = torch.stack([EDGES, EDGES]), torch.randn(8, 16)

    def twice() -> torch.Tensor:
        both = torch.cat([NODES[ends[0]], NODES[ends[0]]], -1)
        return F.linear(F.relu(F.linear(both, wide)), WEIGHT)

    (line,) = followed(twice)
    assert (line.joined, line.calls) == (False, 3)


@pytest.mark.parametrize(
    "compute",
    [
        pytest.param(lambda: F.linear(NODES, WEIGHT)[EDGES], id="before"),
        pytest.param(lambda: F.linear(NODES[torch.randperm(10)], WEIGHT), id="each-once"),
        pytest.param(lambda: F.linear(NODES[EDGES] * torch.rand(40, 1), WEIGHT), id="weighted"),
        pytest.param(lambda: F.linear(F.dropout(NODES[EDGES]), WEIGHT), id="dropout"),
        pytest.param(lambda: F.linear(NODES[EDGES].add_(torch.rand(40, 1)), WEIGHT), id="written-to"),
        pytest.param(lambda: F.linear(gated_and_dropped(), WEIGHT), id="written-to-and-dropout-of-eval"),
        pytest.param(lambda: F.linear(NODES[EDGES].softmax(0), WEIGHT), id="softmax-over-rows"),
        pytest.param(
            lambda: F.linear(F.layer_norm(NODES[EDGES.view(20, 2)], (2, 8)), WEIGHT), id="norm-over-two-dimensions"
        ),
        pytest.param(lambda: F.linear(NODES[NODES[:, 0] > 0], WEIGHT), id="mask"),
        pytest.param(lambda: F.linear(NODES[2:], WEIGHT), id="slice"),
        pytest.param(lambda: F.linear(NODES[:, :1].expand(10, 8), WEIGHT), id="columns-repeated"),
        pytest.param(lambda: F.linear(NODES.expand(1, 10, 8), WEIGHT), id="repeated-once"),
        pytest.param(lambda: F.linear(torch.cat([NODES[EDGES], NODES]), WEIGHT), id="joined-below"),
        pytest.param(lambda: F.linear(NODES[EDGES].view(80, 4), WEIGHT[:, :4]), id="rows-cut-in-two"),
        pytest.param(lambda: F.linear(NODES[EDGES].unsqueeze(1).flatten(0).view(8, 40), torch.ones(2, 40)), id="mixed"),
        pytest.param(lambda: F.conv1d(CLOUDS.repeat(1, 1, 20), torch.randn(6, 8, 3)), id="neighbours"),
        pytest.param(lambda: F.conv1d(CLOUDS.repeat(1, 1, 20), torch.randn(6, 8, 1), stride=2), id="strides"),
        pytest.param(lambda: F.conv1d(CLOUDS.repeat(1, 1, 20), torch.randn(6, 4, 1), None, 1, 0, 1, 2), id="groups"),
        pytest.param(lambda: F.conv1d(CLOUDS.repeat(1, 1, 20), torch.randn(6, 8, 1), padding=1), id="edges"),
        pytest.param(lambda: F.linear(CLOUDS.repeat(1, 1, 20), torch.randn(6, 20)), id="a-layer-across-places"),
        pytest.param(
            lambda: F.conv1d(CLOUDS.repeat(1, 1, 20).view(10, 4, 20), torch.randn(6, 4, 1)), id="channels-cut-in-two"
        ),
        pytest.param(
            lambda: F.conv1d(CLOUDS.repeat(1, 1, 20).view(10, 8, 10), torch.randn(6, 8, 1)), id="channels-mixed"
        ),
        pytest.param(
            lambda: F.conv1d(torch.cat([CLOUDS.repeat(1, 1, 20), CLOUDS.repeat(1, 1, 20)], 2), torch.randn(6, 8, 1)),
            id="joined-place-by-place",
        ),
    ],
)
def test_what_is_not_the_same_for_each_copy(compute: Callable[[], Any]) -> None:
    assert followed(compute) == []
