"""Norms and activations that functions of the user's write out: what of their work goes where torch's own is called."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from advisor.evidence.by_function import Calls, Function
from advisor.evidence.shapes import Shape, input_shapes
from advisor.evidence.worked import added_up

if TYPE_CHECKING:
    from advisor.edit.algebra.written_out import WrittenOut
    from advisor.evidence import Evidence

# One of these is in each that is looked for; the others are what it may be made of besides.
_MARKS = frozenset(f"aten::{each}" for each in ("tanh", "erf", "sigmoid", "exp", "sqrt", "rsqrt", "pow", "var", "std"))
_MARKS |= {"aten::var_mean"}
_ARITHMETIC = _MARKS | {
    f"aten::{each}" for each in ("add", "sub", "rsub", "mul", "div", "neg", "reciprocal", "square", "log", "sum")
}
# What torch's own takes of what is written out, forward and backward. Measured with torch 2.14 on one core and on two
# of an EPYC with AVX-512, 65 thousand and a million numbers: norms 0.14 to 0.40 and 0.07 to 0.24, those by var or std,
# which are slow, 0.05 to 0.08 and 0.10 to 0.24; a norm of all channels 0.17 to 0.34 and 0.10 to 0.18, softmax 0.25 to
# 0.29 and 0.10 to 0.25, GELU 0.15 to 0.28 and 0.18 to 0.46, by tanh 0.34 to 0.40 and 0.54 to 0.93, SiLU 0.53 to 0.65
# and 0.35 to 0.64.
_LEFT = {
    "layer_norm": (0.25, 0.12),
    "group_norm": (0.22, 0.14),
    "softmax": (0.27, 0.16),
    "gelu": (0.19, 0.27),
    "gelu_tanh": (0.36, 0.62),
    "silu": (0.58, 0.5),
}
_BY_SPREAD = (0.06, 0.15)
_FLOATS = {"float", "double", "c10::BFloat16", "c10::Half"}
_MOST_OPERATORS = 64  # of a function that does nothing else
_LEAST_NUMBERS = 1 << 12  # fewer take as long as calling does


@dataclass(frozen=True)
class Written:
    """``kind`` is written out in ``function``, of ``numbers`` numbers at most; ``uses``: shapes, by kind of call."""

    kind: str
    function: Function
    uses: frozenset[tuple[Shape, ...]]
    numbers: int


def written_out_functions(
    evidence: Evidence, forms: Callable[[Function, frozenset[tuple[Shape, ...]]], Sequence[WrittenOut]]
) -> tuple[dict[Written, float], dict[str, float]]:
    """Such calls per step; operator → share of its own time that goes where torch's functions are called instead.

    `forms` says what a function writes out that is called with tensors of such shapes.
    """
    calls = evidence.calls
    if calls is None:
        return {}, {}
    inside = {row: function for row, function in calls.functions(evidence, _marked(calls)).items() if function[1]}
    lanes = [rows for rows in calls.threads if not inside.keys().isdisjoint(rows)]
    functions = calls.functions(evidence, [row for rows in lanes for row in rows])
    counts: list[Written] = []
    parts: dict[tuple[float, float], list[int]] = {}
    for function in sorted(set(inside.values())):
        own = [rows for lane in lanes if (rows := [row for row in lane if functions.get(row) == function])]
        whole = [run for rows in own for run in _calls(calls, rows)]
        uses = frozenset(tuple(sorted(_operands(calls, run))) for run in whole)
        for form in forms(function, uses):
            runs = [run for rows in own for run in _runs(calls, rows, form.operators)] if form.operators else whole
            numbers = max((prod(shape) for run in runs for shape in _operands(calls, run)), default=0)
            if numbers < _LEAST_NUMBERS or not _of_one_type(calls, [row for run in runs for row in run]):
                continue
            taken = {row for run in runs for row in run}
            own = [[row for row in rows if row not in taken] for rows in own]
            counts += [Written(form.kind, function, uses, numbers)] * len(runs)
            left = _BY_SPREAD if form.spread else _LEFT[form.kind]
            parts.setdefault(left, []).extend(row for run in runs for row in run)
    shares = added_up(calls.shares(rows, *left) for left, rows in parts.items() if rows)
    return calls.per_step(counts), shares


def _marked(calls: Calls) -> list[int]:
    return [row for rows in calls.threads for row in rows if calls.name(row) in _MARKS]


def _operands(calls: Calls, rows: list[int]) -> list[Shape]:
    """The shapes that arithmetic operators are given."""
    return [shape for row in rows if calls.name(row) in _ARITHMETIC for shape in calls.shapes(row)]


def _of_one_type(calls: Calls, rows: list[int]) -> bool:
    """Whether all tensors that the operators are given have one type, with a point; numbers beside them have none."""
    operators, found = calls.trace.operators, set[str]()
    for shapes, types in {(int(operators.shapes[row]), int(operators.dtypes[row])) for row in rows}:
        if shapes >= 0 and types >= 0:
            pairs = zip(input_shapes(calls.trace.name(shapes)), _types(calls.trace.name(types)), strict=False)
            found |= {each for shape, each in pairs if shape}
    return len(found) == 1 and found <= _FLOATS


def _types(written: str) -> list[str]:
    try:
        types = json.loads(written)
    except ValueError:
        return []
    return [str(each) for each in types] if isinstance(types, list) else []


def _calls(calls: Calls, rows: list[int]) -> list[list[int]]:
    """The operators of a function's calls, by call: all do the same."""
    names = [calls.name(row) for row in rows]
    divisors = [n for n in range(1, min(len(names), _MOST_OPERATORS) + 1) if len(names) % n == 0]
    each = next((n for n in divisors if names[:n] * (len(names) // n) == names), len(names))
    return [rows[at : at + each] for at in range(0, len(rows), each)]


def _runs(calls: Calls, rows: list[int], operators: Sequence[str]) -> list[list[int]]:
    """Where these operators are, one behind another, on tensors of one shape; what is between and is none is passed."""
    rows = [row for row in rows if calls.name(row) in _ARITHMETIC]
    names, found, at = [calls.name(row) for row in rows], list[list[int]](), 0
    while at + len(operators) <= len(rows):
        run = rows[at : at + len(operators)]
        same = names[at : at + len(operators)] == list(operators)
        if same and len({shape for shape in _operands(calls, run) if shape}) == 1:
            found.append(run)
            at += len(operators)
        else:
            at += 1
    return found
