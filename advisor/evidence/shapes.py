"""The shapes of an operator's inputs, as a trace has them."""

from __future__ import annotations

import json

Shape = tuple[int, ...]


def input_shapes(written: str) -> list[Shape]:
    """Of ``[[2, 1, 8], [4, 8], []]``; () for what is no tensor: a number, a list of tensors, damage."""
    try:
        given = json.loads(written) if written else []
    except (ValueError, RecursionError):
        return []
    return [_shape(each) for each in given] if isinstance(given, list) else []


def _shape(sizes: object) -> Shape:
    if not isinstance(sizes, list) or not all(type(size) is int and size >= 0 for size in sizes):
        return ()
    return tuple(sizes)
