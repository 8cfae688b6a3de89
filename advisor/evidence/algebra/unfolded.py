"""Convolutions that are written out: patches of a picture, laid side by side, times one matrix of filters."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from advisor.evidence.batch import flop_per_s
from advisor.evidence.by_function import Called, Calls, Function
from advisor.evidence.shapes import Shape

if TYPE_CHECKING:
    from advisor.evidence import Evidence

_UNFOLDS = ("aten::im2col",)
_PRODUCTS = ("aten::matmul", "aten::bmm", "aten::linear", "aten::einsum")
_PASSES = ("aten::transpose", "aten::permute", "aten::mT", "aten::t", "aten::view", "aten::reshape", "aten::unsqueeze")
_AFTER = 6  # operators between the patches and their product
# Of the rate for large products: three layers of 3 to 64 channels took 34 ms with all else in a step of 2.9 Gflop, two
# cores with AVX-512 (0.6 at least, of 140 Gflop/s).
_OF_RATE = 0.7


@dataclass(frozen=True)
class WrittenOut:
    """Patches of ``kernel`` in ``function``, of so many channels, that one matrix makes so many of."""

    function: Function
    kernel: tuple[int, int]
    channels: int
    filters: int


@dataclass(frozen=True)
class _Product:
    """The row of the product that patches go into, its operations, and what it convolves."""

    product: int
    flops: float
    kernel: tuple[int, int]
    channels: int
    filters: int


def written_out(evidence: Evidence) -> tuple[dict[WrittenOut, float], dict[str, float], float]:
    """Such convolutions per step; operator → share of its own time that goes; seconds of a step that come instead."""
    calls, record = evidence.calls, evidence.record
    if calls is None or record is None:
        return {}, {}, 0.0
    found = {call.row: known for call in calls.named(_UNFOLDS, _AFTER) if (known := _product(calls, call)) is not None}
    functions = calls.functions(evidence, found)
    rows = [row for patches in functions for row in (patches, found[patches].product)]
    flops = sum(found[row].flops * (3 if calls.nodes([found[row].product]) else 1) for row in functions)
    flops /= len(calls.steps)
    counts = calls.per_step(
        WrittenOut(function, found[row].kernel, found[row].channels, found[row].filters)
        for row, function in functions.items()
    )
    rate = flop_per_s(record.environment.cpu_flags) * max(1, record.environment.intraop_threads) * _OF_RATE
    return counts, calls.shares(rows, 0.0), flops / rate


def _product(calls: Calls, call: Called) -> _Product | None:
    """The product right behind patches that makes a convolution of them."""
    picture = call.shapes[0] if call.shapes else ()
    values = calls.values(call.row)
    try:
        kernel = tuple(int(each) for each in json.loads(values[1]))
    except (ValueError, LookupError, TypeError):
        return None
    if len(picture) != 4 or len(kernel) != 2 or prod(kernel) < 2:
        return None
    patch = picture[1] * prod(kernel)
    for row in call.after:
        name = calls.name(row)
        if name in _PRODUCTS:
            matched = _filters(calls.shapes(row), picture[0], patch)
            if matched is None:
                return None
            filters, places = matched
            flops = 2.0 * picture[0] * places * patch * filters
            return _Product(row, flops, (kernel[0], kernel[1]), picture[1], filters)
        if name not in _PASSES:
            return None
    return None


def _filters(shapes: list[Shape], pictures: int, patch: int) -> tuple[int, int] | None:
    """(filters, places of a picture) of a product of patches (pictures, patch, places), either way, with a matrix."""
    for patches, matrix in ((shapes[1:2], shapes[:1]), (shapes[:1], shapes[1:2])):
        known = bool(patches) and bool(matrix) and len(patches[0]) == 3
        if not known or patches[0][0] != pictures or patch not in patches[0][1:]:
            continue
        weights = matrix[0][1:] if len(matrix[0]) == 3 and matrix[0][0] == 1 else matrix[0]
        if len(weights) == 2 and patch in weights:
            return prod(weights) // patch, prod(patches[0][1:]) // patch
    return None
