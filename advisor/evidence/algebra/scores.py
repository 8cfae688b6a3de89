"""Attention scores that a run writes out: their shapes, and which share of each operator's work is on them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from advisor.evidence.coded import pairs
from advisor.evidence.steps import assign, step_windows

if TYPE_CHECKING:
    from advisor.evidence import Evidence

_FUSED = "scaled_dot_product"
_SOFTMAXES = ("aten::_softmax", "aten::exp")  # the latter where it is written out, too
_PRODUCTS = ("aten::bmm", "aten::matmul", "aten::baddbmm", "aten::expand", "aten::view", "aten::transpose")
# glibc gives blocks back that are freed and larger than M_MMAP_THRESHOLD, which grows to 32 MiB, and the end of the
# heap where it is larger than twice that: mallopt(3). The next tensor's pages are then made and cleared one by one.
GIVEN_BACK = 30e6
_LEAST_LENGTH = 16  # keys: the softmax over a handful of classes is no attention


def _shape(written: str) -> tuple[int, ...]:
    """The first input's shape, of shapes as the trace has them: ``[[2, 8, 128, 128], [], []]``."""
    first = re.match(r"\[+([\d, ]+)\]", written)
    return _numbers(first[1]) if first else ()


def _numbers(written: str) -> tuple[int, ...]:
    return tuple(int(number) for number in written.split(",") if number.strip())


def _calls(evidence: Evidence) -> Iterator[tuple[str, tuple[int, ...], float]]:
    """Operators of the detail window's steps by name and first shape, with their calls per step."""
    return ((name, _shape(written), number) for name, written, number in _written(evidence))


def _written(evidence: Evidence) -> Iterator[tuple[str, str, float]]:
    """Operators of the detail window's steps by name and all shapes as written, with their calls per step."""
    detail = evidence.detail
    if detail is None or not len(detail.operators):
        return
    steps = step_windows(detail)
    inside = assign(steps, detail.operators.start) >= 0
    names, codes = detail.operators.name[inside], detail.operators.shapes[inside]
    for name, code, number in zip(*pairs(names, codes), strict=True):
        if code >= 0:
            yield detail.name(int(name)), detail.name(int(code)), int(number) / len(steps)


def attention_scores(evidence: Evidence) -> Counter[tuple[int, ...]]:
    """Shapes of attention scores, with the softmaxes over them per step: of three or four dimensions, not few keys."""
    found: Counter[tuple[int, ...]] = Counter()
    products = {_rows(shape) for name, shape, _ in _calls(evidence) if name == "aten::bmm" and len(shape) == 3}
    for name, shape, number in _calls(evidence):
        # The second product takes the weights, heads as part of its batch, or of its rows where all share the keys.
        if name in _SOFTMAXES and len(shape) in (3, 4) and shape[-1] >= _LEAST_LENGTH and _rows(shape) in products:
            found[shape] += number  # type: ignore[assignment]
    return found


def get_pages_anew(evidence: Evidence, scores: Iterable[tuple[int, ...]], least: float = GIVEN_BACK) -> bool:
    """Whether the memory of all such scores, of `least` bytes each, is given back to the system when it is freed.

    Of 16-bit scores the limit is crossed later than this says.
    """
    record = evidence.record
    sizes = [4.0 * float(np.prod(shape)) for shape in scores]
    on_linux = record is not None and record.environment.platform.startswith("Linux")
    return on_linux and bool(sizes) and min(sizes) >= least


def _rows(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows of a matrix of scores, and their length."""
    return int(np.prod(shape[:-1])), shape[-1]


def score_shares(evidence: Evidence, scores: Counter[tuple[int, ...]], names: tuple[str, ...] = ()) -> dict[str, float]:
    """Operator → share of its work, by elements, that is on the scores; the products themselves left out."""
    on: Counter[str] = Counter()
    everything: Counter[str] = Counter()
    for name, shape, number in _calls(evidence):
        size = number * float(np.prod(shape)) if shape else 0.0
        everything[name] += size  # type: ignore[assignment]
        if shape in scores and name not in _PRODUCTS and _FUSED not in name and (not names or name in names):
            on[name] += size  # type: ignore[assignment]
    return {name: size / everything[name] for name, size in on.items() if size}


def head_width(evidence: Evidence, scores: Counter[tuple[int, ...]]) -> int:
    """Numbers per head: the inner dimension of the product that makes the scores."""
    batches = {(int(np.prod(shape[:-2])), shape[-2]) for shape in scores}
    inner = [s[-1] for name, s, _ in _calls(evidence) if name == "aten::bmm" and s[:2] in batches and len(s) == 3]
    return min(inner, default=64)


def widths_differ(evidence: Evidence, scores: Counter[tuple[int, ...]]) -> bool:
    """Whether the values of an attention have other numbers per head than its queries have.

    Of scores of L queries and S keys one product is ``(b, L, E) x (b, E, S)``, the other ``(b, L, S) x (b, S, Ev)``;
    their gradients are products of the same forms.
    """
    widths: dict[tuple[int, int, int], set[int]] = {(int(np.prod(s[:-2])), s[-2], s[-1]): set() for s in scores}
    for name, written, _ in _written(evidence):
        shapes = [_numbers(each) for each in re.findall(r"\[([\d, ]+)\]", written)] if name == "aten::bmm" else []
        if len(shapes) == 2 and len(shapes[0]) == len(shapes[1]) == 3:
            (batch, rows, inner), (_, _, columns) = shapes
            for key, width in (((batch, rows, columns), inner), ((batch, rows, inner), columns)):
                widths.get(key, set()).add(width)
    return any(len(each) > 1 for each in widths.values())


def product_share(evidence: Evidence, scores: Counter[tuple[int, ...]]) -> float:
    """Share of the batched products that make or take scores."""
    batches = {int(np.prod(shape[:-2])) for shape in scores}
    counts = [(number, s[:1]) for name, s, number in _calls(evidence) if name == "aten::bmm" and s]
    everything = sum(number for number, _ in counts)
    return sum(number for number, first in counts if first[0] in batches) / everything if everything else 0.0
