"""Linear layers that compute outputs for all positions of a sequence of which the script then takes a few.

``self.head(states)[:, -1]``, or ``[mask]``, or a loss that ignores the labels of most: the products, what follows them
position by position, and the whole of their backward are done for each position, and all but those thrown away. So it
is with scores of a whole catalogue, ``scores.gather(1, candidates)``, of which each row's few candidates are taken.
Told by the shapes of the operators that follow each other, in the window that records them; the backward's by the
numbers that autograd gives to what it records.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from advisor.evidence.host import Host
from advisor.evidence.nesting import Nesting
from advisor.evidence.outside import users_functions
from advisor.evidence.shapes import Shape, given_values, input_shapes, shapes_at
from advisor.evidence.steps import assign, step_windows
from advisor.evidence.worked import self_shares, worked

if TYPE_CHECKING:
    from advisor.evidence import Evidence
    from advisor.harness.layout import CallSite, RunRecord
    from advisor.trace.tables import Ints, Trace

_LINEAR = "aten::linear"
_PRODUCT = "aten::matmul"  # with a matrix it is a layer, too: ``states @ embedding.weight.t()``
# Each position by itself, its last dimension at most.
_POSITIONWISE = {
    f"aten::{name}"
    for name in (
        *("linear", "relu", "gelu", "silu", "tanh", "sigmoid", "elu", "leaky_relu", "softplus", "hardswish", "mish"),
        *("dropout", "feature_dropout", "layer_norm", "rms_norm", "softmax", "log_softmax", "to", "contiguous"),
    )
}
# Number by number: what is taken of their outputs could have been taken before.
_ELEMENTWISE = {
    f"aten::{name}"
    for name in (
        *("relu", "gelu", "silu", "tanh", "sigmoid", "elu", "softplus", "logsigmoid", "dropout", "to", "contiguous"),
        *("add", "add_", "sub", "mul", "mul_", "div", "div_"),  # of a number, or one for each column
    )
}
_SELECT, _SLICE, _INDEX, _NONZERO = "aten::select", "aten::slice", "aten::index", "aten::nonzero"
_STRIDED = "aten::as_strided"
BY_MASK = -1  # in the place of the dimension: the positions of several, where a mask is True
BY_LABEL = -2  # likewise: those whose label a cross-entropy does not ignore
BY_PLACE = -3  # likewise: those that whole numbers name, x[rows, lengths - 1]
BY_COLUMN = -4  # likewise: of each position's outputs those that are named, x.gather(1, candidates)
_GATHERS = ("aten::gather", "aten::index_select")
_LEAST_COLUMNS, _MOST_TAKEN = 512, 0.5  # the outputs of a layer, and the share of them that is taken
_MOST_BETWEEN = 200  # operators from the layer to what takes of it: how candidates are drawn, say
LEAST_IGNORED = 0.5  # of the labels: a loss over padded sequences wastes less, and is no reason to look on
_CROSS_ENTROPY = "aten::cross_entropy_loss"
# The same numbers in another order, type or extent, between a linear layer and a loss.
_REARRANGES = {
    f"aten::{name}"
    for name in (
        *("view", "reshape", "flatten", "unflatten", "transpose", "permute", "swapaxes", "movedim", "contiguous"),
        *("clone", "to", "slice", "squeeze", "unsqueeze", "_unsafe_view", "view_as", "reshape_as", "alias", "t"),
    )
}
_OTHERS = {"aten::detach", "aten::is_pinned"}  # that use no value
# What may come between, where it is given nothing of the same shape: how a mask is made, and what it takes of labels.
_BETWEEN = {
    f"aten::{name}"
    for name in (
        *("slice", "select", "view", "reshape", "unsqueeze", "squeeze", "index", "arange", "sum", "cumsum", "clone"),
        *("rand", "rand_like", "randint", "zeros", "ones", "full", "zeros_like", "ones_like", "full_like"),
        *("ne", "eq", "gt", "ge", "lt", "le", "logical_not", "logical_and", "bitwise_not", "bitwise_and"),
        *("add", "sub", "rsub", "mul", "clamp", "to", "numpy_T", "argmax"),  # lengths - 1; a matrix that is multiplied
    )
}
_MOST_CHAINS = 16  # of a step: a loop that asks for them one by one is another matter
_DIMENSIONS = 3  # sequences, positions, numbers


@dataclass(frozen=True)
class PartlyUsed:
    """Per step, ``used`` of the ``shape``'s positions are taken, in the function of the user's at ``taken_in``.

    ``computed_in`` is the function that calls the last linear layer; both are (file, first line), 0 outside of all.
    ``weights`` are the numbers in the weights of the ``layers`` linear layers, as far as they are read in any case.
    ``index`` is the position, where it is one; ``dim`` the dimension that it is of, :data:`BY_MASK`, :data:`BY_PLACE`,
    :data:`BY_LABEL` or :data:`BY_COLUMN`. ``plain``: there is one layer, and nothing comes between it and what takes of
    it.
    """

    shape: Shape
    used: float
    dim: int
    index: int | None
    layers: int
    weights: int
    plain: bool
    taken_in: tuple[str, int]
    computed_in: tuple[str, int]


@dataclass(frozen=True)
class _Chain:
    """Operators position by position, and the one that takes ``used`` of what they give, at ``index`` of ``dim``."""

    rows: list[int]
    taking: int
    used: float
    dim: int
    index: int | None


def unused_outputs(evidence: Evidence) -> tuple[dict[PartlyUsed, float], dict[str, float]]:
    """What is computed for nothing: times per step; operator → share of its own time that goes into all of it."""
    trace, record = evidence.detail, evidence.record
    if trace is None or record is None or not len(trace.operators):
        return {}, {}
    operators, nesting, steps = trace.operators, Nesting(trace), step_windows(trace)
    step, ignored = assign(steps, operators.start), _ignored(record)
    back = Host(trace, steps).backward.contains(operators.start)
    outer = np.flatnonzero((step >= 0) & (nesting.parent < 0) & ~back)
    found: list[_Chain] = []
    for lane in np.unique(operators.lane[outer]).tolist():
        rows = outer[operators.lane[outer] == lane].tolist()
        labelled = list(_labelled(trace, rows, ignored)) if ignored else []
        for_loss = {row for chain in labelled for row in chain.rows}
        taken = (chain for chain in _chains(trace, rows) if chain.taking not in for_loss)
        chains = [*labelled, *_by_columns(trace, rows), *(chain for chain in taken if _layers(trace, chain))]
        if len(chains) > _MOST_CHAINS * len(steps):
            return {}, {}
        alone = (replace(chain, rows=_alone(trace, rows, chain, step)) for chain in chains)
        found += [chain for chain in alone if _layers(trace, chain)]
    if not found:
        return {}, {}
    asked = [row for each in found for row in (_layers(trace, each)[-1], each.taking)]
    places = users_functions(trace, np.array(asked), record)
    masked: dict[Shape, list[float]] = {}
    for chain in found:
        if chain.dim == BY_MASK:
            masked.setdefault(_first(trace, chain.taking), []).append(chain.used)
    counts: dict[PartlyUsed, float] = {}
    over = np.zeros(len(operators), np.bool_)
    for chain in found:
        if chain.taking not in places:
            continue
        layers, shape = _layers(trace, chain), _first(trace, chain.taking)
        each = PartlyUsed(
            shape=shape,
            used=fmean(masked[shape]) if chain.dim == BY_MASK else chain.used,  # one mask takes more than another
            dim=chain.dim,
            index=chain.index,
            layers=len(layers),
            weights=_weights(trace, chain, layers, record),
            plain=layers == chain.rows[-1:] and trace.name(int(operators.name[layers[-1]])) == _LINEAR,
            taken_in=places[chain.taking],
            computed_in=places.get(layers[-1], ("", 0)),
        )
        counts[each] = counts.get(each, 0.0) + 1 / len(steps)
        over |= worked(trace, [*chain.rows, chain.taking])
    return counts, self_shares(trace, nesting, over, step >= 0)


def _weights(trace: Trace, chain: _Chain, layers: list[int], record: RunRecord) -> int:
    """The numbers in the weights of the layers that are read, or written, whatever is taken.

    Of columns by their names one row for each, copied and then read; in training all have a gradient, zero or not, but
    are not read for it.
    """
    whole = sum(prod(shapes_at(trace, row)[1]) for row in layers)
    if chain.dim != BY_COLUMN:
        return whole
    named = 3 * _named(trace, chain.taking) * shapes_at(trace, layers[0])[0][-1]
    return named + (whole // 3 if any(each.steps for each in record.optimizers) else 0)


def loss_sites(record: RunRecord, classes: int) -> list[CallSite]:
    """Where cross-entropies over so many classes are asked for."""
    sites = [each for each in record.call_sites if each.kind == "cross_entropy"]
    return [each for each in sites if each.details.get("classes") == classes]


def _ignored(record: RunRecord) -> dict[int, float]:
    """Number of classes → share of their labels that the script's own cross-entropies ignore."""
    found: dict[int, float] = {}
    for classes in {each.details.get("classes") for each in record.call_sites if each.kind == "cross_entropy"}:
        if not isinstance(classes, int):
            continue
        told = [each.details for each in loss_sites(record, classes)]
        shares = [each.get("ignored") if each.get("own") is True else 0.0 for each in told]
        least = min(share if isinstance(share, float) else 0.0 for share in shares)
        if least >= LEAST_IGNORED:
            found[classes] = least
    return found


def _labelled(trace: Trace, rows: list[int], ignored: dict[int, float]) -> Iterator[_Chain]:
    """Linear layers, and what is position by position before them, whose outputs go into a cross-entropy alone."""
    names = [trace.name(int(code)) for code in trace.operators.name[rows]]
    for at, (row, name) in enumerate(zip(rows, names, strict=True)):
        scores = _first(trace, row)
        if name != _CROSS_ENTROPY or len(scores) < 2 or scores[1] not in ignored:
            continue
        between: list[int] = []
        for earlier in range(at - 1, -1, -1):
            shapes = shapes_at(trace, rows[earlier])
            if _is_layer(trace, rows[earlier], names[earlier]):
                given = _after(trace, rows[earlier], names[earlier], shapes[0] if shapes else ())
                if given and given[-1] == scores[1] and prod(given) >= prod(scores):
                    chain = [*_before(trace, rows[:earlier], shapes[0]), rows[earlier], *between]
                    yield _Chain(chain, row, 1.0 - ignored[scores[1]], BY_LABEL, None)
                    break
            if any(prod(shape) >= prod(scores) for shape in shapes):
                if names[earlier] not in _REARRANGES:
                    break
                between.insert(0, rows[earlier])


def _before(trace: Trace, rows: list[int], shape: Shape) -> list[int]:
    """The end of `rows` that gives a tensor of `shape`, position by position."""
    found: list[int] = []
    for row in reversed(rows):
        name, first = trace.name(int(trace.operators.name[row])), _first(trace, row)
        works = name in _POSITIONWISE or _is_layer(trace, row, name)
        if works and len(first) >= _DIMENSIONS and _after(trace, row, name, first) == shape:
            found.insert(0, row)
            shape = first
        elif name not in _OTHERS and (name not in _BETWEEN or shape in shapes_at(trace, row)):
            break
    return found


def _by_columns(trace: Trace, rows: list[int]) -> Iterator[_Chain]:
    """Linear layers, and what is number by number after them, of whose outputs each row's few are taken by name."""
    names = [trace.name(int(code)) for code in trace.operators.name[rows]]
    for at, (row, name) in enumerate(zip(rows, names, strict=True)):
        scores = _first(trace, row)
        taken = _named_share(trace, row, scores) if name in _GATHERS else None
        if taken is None or scores[-1] < _LEAST_COLUMNS or taken > _MOST_TAKEN:
            continue
        between: list[int] = []
        for earlier in range(at - 1, max(-1, at - _MOST_BETWEEN), -1):
            shapes = shapes_at(trace, rows[earlier])
            is_layer = _is_layer(trace, rows[earlier], names[earlier], flat=True)
            if is_layer and _after(trace, rows[earlier], names[earlier], shapes[0]) == scores:
                yield _Chain([rows[earlier], *between], row, taken, BY_COLUMN, None)
                break
            if scores in shapes and names[earlier] not in (*_OTHERS, *_GATHERS):
                if names[earlier] not in _ELEMENTWISE or shapes[0] != scores or shapes[1:2] == [scores]:
                    break
                between.insert(0, rows[earlier])


def _named(trace: Trace, row: int) -> int:
    """How many numbers an operator of :data:`_GATHERS` is given."""
    shapes = shapes_at(trace, row)
    return prod(shapes[2]) if len(shapes) > 2 and shapes[2] else 0


def _named_share(trace: Trace, row: int, scores: Shape) -> float | None:
    """The share of `scores` that such an operator takes of their last dimension; None where it is of another one."""
    named, given = _named(trace, row), given_values(trace, row)
    if len(scores) < 2 or not named or given[1:2] not in (["-1"], [str(len(scores) - 1)]):
        return None
    return named / (scores[-1] if trace.name(int(trace.operators.name[row])) == "aten::index_select" else prod(scores))


def _layers(trace: Trace, chain: _Chain) -> list[int]:
    flat = chain.dim == BY_COLUMN
    return [row for row in chain.rows if _is_layer(trace, row, trace.name(int(trace.operators.name[row])), flat)]


def _is_layer(trace: Trace, row: int, name: str, flat: bool = False) -> bool:
    """Whether an operator multiplies each position of sequences by the same matrix; `flat`: or each row of a matrix."""
    if name != _PRODUCT:
        return name == _LINEAR
    shapes = shapes_at(trace, row)
    return len(shapes) == 2 and len(shapes[0]) >= (2 if flat else _DIMENSIONS) and len(shapes[1]) == 2


def _chains(trace: Trace, rows: list[int]) -> Iterator[_Chain]:
    """Operators that follow each other position by position, up to one that takes of the positions."""
    chain: list[int] = []
    shape: Shape = ()
    names = [trace.name(int(code)) for code in trace.operators.name[rows]]
    for row, name in zip(rows, names, strict=True):
        works = name in _POSITIONWISE or _is_layer(trace, row, name)
        if name in _OTHERS or (not works and not chain):
            continue
        first = _first(trace, row)
        taken = _taken(trace, row, name, first) if chain and first == shape else None
        if taken is not None and taken[0] == 1.0:
            continue  # x[:, -1] takes all of the first dimension before it takes of the second
        if taken is not None:
            yield _Chain(chain, row, *taken)
        if works and len(first) >= _DIMENSIONS:
            chain = [*chain, row] if first == shape else [row]
            shape = _after(trace, row, name, first)
        elif name not in _BETWEEN or shape in shapes_at(trace, row):
            chain = []


def _after(trace: Trace, row: int, name: str, first: Shape) -> Shape:
    if name not in (_LINEAR, _PRODUCT):
        return first
    shapes = shapes_at(trace, row)
    return (*first[:-1], shapes[1][name == _PRODUCT]) if len(shapes) > 1 and len(shapes[1]) == 2 else ()


def _first(trace: Trace, row: int) -> Shape:
    shapes = shapes_at(trace, row)
    return shapes[0] if shapes else ()


def _taken(trace: Trace, row: int, name: str, shape: Shape) -> tuple[float, int, int | None] | None:
    """(share, dimension, index) of the positions that an operator takes; None for one that takes none by place."""
    if name == _INDEX:
        return _indexed(trace, row, shape)
    values = trace.operators.values
    if name not in (_SELECT, _SLICE) or values is None or values[row] < 0:
        return None
    try:
        _, dim, *bounds = (int(each) if each else 0 for each in json.loads(trace.name(int(values[row]))))
    except (ValueError, TypeError, RecursionError):
        return None
    if not 0 <= dim % len(shape) < len(shape) - 1:
        return None  # of the numbers of each position
    size = shape[dim % len(shape)]
    if name == _SELECT:
        return 1 / size, dim % len(shape), bounds[0]
    if len(bounds) < 3 or bounds[2] < 1:
        return None
    low, high = (min(max(each + size if each < 0 else each, 0), size) for each in bounds[:2])
    return len(range(low, high, bounds[2])) / size, dim % len(shape), None


def _indexed(trace: Trace, row: int, shape: Shape) -> tuple[float, int, None] | None:
    """What an index takes of all positions: by a mask, which it first makes numbers of (those of one position, as many
    as are True), or by such numbers, by which it then goes over a view with as many rows.
    """
    operators = trace.operators
    mask: Shape = ()
    for inner in range(row + 1, len(operators)):
        if operators.start[inner] >= operators.end[row]:
            break
        if operators.lane[inner] != operators.lane[row]:
            continue
        name, first = trace.name(int(operators.name[inner])), _first(trace, inner)
        if name == _NONZERO:
            mask = first
        elif name == _SELECT and mask and mask == shape[:-1] and len(first) == 2 and first[1] == len(mask):
            return first[0] / prod(mask), BY_MASK, None
        elif name == _STRIDED and not mask and (places := _places(trace, inner, shape)):
            return places / prod(shape[:-1]), BY_PLACE, None
    return None


def _places(trace: Trace, row: int, shape: Shape) -> int:
    """How many positions an index goes over, by the view that it makes of a tensor of `shape`; 0 where it is not clear.

    The view has a stride of 0 in the place of the dimensions that are indexed: here of all but the last.
    """
    values = trace.operators.values
    try:
        given = json.loads(trace.name(int(values[row]))) if values is not None and values[row] >= 0 else []
        size, stride = (json.loads(each) for each in given[1:3])
        known = len(size) == len(stride) >= 2 and size[-1] == shape[-1] and stride[-1] != 0 and not any(stride[:-1])
        return prod(size[:-1]) if known else 0
    except (ValueError, TypeError, RecursionError):
        return 0


def _alone(trace: Trace, rows: list[int], chain: _Chain, step: Ints) -> list[int]:
    """The end of the chain whose tensors nothing else in the step's forward takes, as far as shapes tell."""
    later: set[Shape] = set()
    for row in rows:
        if row <= chain.rows[-1] or row == chain.taking or step[row] != step[chain.taking]:
            continue
        if trace.operators.shapes[row] >= 0:
            name, first = trace.name(int(trace.operators.name[row])), _first(trace, row)
            taken = _taken(trace, row, name, first)
            if chain.dim == BY_COLUMN and name in _GATHERS and first == _first(trace, chain.taking):
                continue  # the positives, and the negatives
            if taken is None or taken[0] < 1.0:  # a slice of all of them is no use yet
                later.update(input_shapes(trace.name(int(trace.operators.shapes[row]))))
    alone: list[int] = []
    if chain.dim == BY_LABEL and _first(trace, chain.taking) in later:
        return alone
    for row in reversed(chain.rows):
        if _after(trace, row, trace.name(int(trace.operators.name[row])), _first(trace, row)) in later:
            break
        alone.insert(0, row)
    return alone
