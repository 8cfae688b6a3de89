"""The shapes of an operator's inputs, as a trace has them."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from advisor.trace.tables import Trace

Shape = tuple[int, ...]


def input_shapes(written: str) -> list[Shape]:
    """Of ``[[2, 1, 8], [4, 8], []]``; () for what is no tensor: a number, a list of tensors, damage."""
    return list(_read(written))


def list_shapes(written: str) -> list[Shape]:
    """Those in lists of tensors, as ``aten::cat`` is given: of ``[[[2, 8], [4, 8]], []]`` two; none where unknown."""
    return list(_read_lists(written))


def input_types(written: str) -> list[str]:
    """Of ``["float", "long int", ""]``; at least one, "" for what is no tensor and where they are not known."""
    return [each if isinstance(each, str) else "" for each in _decoded(written)] or [""]


def shapes_at(trace: Trace, row: int) -> list[Shape]:
    """Those of the operator in a row of ``Trace.operators``; none where the window did not record them."""
    code = int(trace.operators.shapes[row])
    return input_shapes(trace.name(code)) if code >= 0 else []


def given_values(trace: Trace, row: int) -> list[str]:
    """The inputs of an operator that are no tensors, as text, in their places; empty where they are not known."""
    values = trace.operators.values
    known = values is not None and values[row] >= 0
    return [str(each) for each in _decoded(trace.name(int(values[row])))] if known and values is not None else []


@functools.lru_cache(maxsize=4096)  # a trace says the same again and again
def _read(written: str) -> tuple[Shape, ...]:
    return tuple(map(_shape, _decoded(written)))


@functools.lru_cache(maxsize=4096)
def _read_lists(written: str) -> tuple[Shape, ...]:
    lists = [each for each in _decoded(written) if isinstance(each, list)]
    return tuple(_shape(one) for each in lists for one in each if isinstance(one, list))


def _decoded(written: str) -> list[object]:
    try:
        given = json.loads(written) if written else []
    except (ValueError, RecursionError):
        return []
    return given if isinstance(given, list) else []


def _shape(sizes: object) -> Shape:
    if not isinstance(sizes, list) or not all(type(size) is int and size >= 0 for size in sizes):
        return ()
    return tuple(sizes)
