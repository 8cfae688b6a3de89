"""Floating-point operations of the matrix operators, from their recorded shapes, and the share of the device's peak.

A multiplication and an addition are two operations. Counted are gemms, convolutions and attention, forward and
backward; the rest of a network is bound by memory and does not enter model FLOP/s (as in PaLM, appendix B, which
defines MFU).
Attention's recomputation in its backward pass is not model work and is left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import Any

import numpy as np

from advisor.evidence.coded import Mask, names_like
from advisor.evidence.facts import Flops, MatrixWork, Steps
from advisor.evidence.gpu.devices import Peak
from advisor.evidence.shapes import Shape, input_shapes
from advisor.evidence.steps import assign
from advisor.trace.tables import Trace

# With more than this share of the matrix operators uncounted (no shapes, no strides) a rate would mislead.
MISSING_SHARE = 0.02

_DTYPES = {
    "float": "float32",
    "double": "float64",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "c10::Float8_e4m3fn": "float8",
    "c10::Float8_e5m2": "float8",
    "c10::Float8_e4m3fnuz": "float8",
    "c10::Float8_e5m2fnuz": "float8",
}


def _mm(shapes: Sequence[Shape], _values: Sequence[str]) -> float:
    (m, k), (_, n) = shapes[0], shapes[1]
    return 2.0 * m * k * n


def _addmm(shapes: Sequence[Shape], values: Sequence[str]) -> float:
    return _mm(shapes[1:], values)


def _bmm(shapes: Sequence[Shape], _values: Sequence[str]) -> float:
    (b, m, k), (_, _, n) = shapes[0], shapes[1]
    return 2.0 * b * m * k * n


def _baddbmm(shapes: Sequence[Shape], values: Sequence[str]) -> float:
    return _bmm(shapes[1:], values)


def _linear(shapes: Sequence[Shape], _values: Sequence[str]) -> float:
    return 2.0 * prod(shapes[0]) * shapes[1][0]  # [..., k] · [n, k]ᵀ


def _convolution(shapes: Sequence[Shape], values: Sequence[str]) -> float:
    inputs, weight = shapes[0], shapes[1]
    stride, padding, dilation = (_numbers(values[i]) for i in (3, 4, 5))
    if values[6] == "True":  # transposed: every input element meets the whole kernel
        return 2.0 * prod(inputs) * prod(weight[1:])
    sizes = [
        (size + 2 * p - d * (kernel - 1) - 1) // s + 1
        for size, kernel, s, p, d in zip(
            inputs[2:],
            weight[2:],
            _fill(stride, len(inputs) - 2),
            _fill(padding, len(inputs) - 2),
            _fill(dilation, len(inputs) - 2),
            strict=True,
        )
    ]
    return 2.0 * inputs[0] * prod(sizes) * prod(weight)


def _convolution_backward(shapes: Sequence[Shape], values: Sequence[str]) -> float:
    gradient, inputs, weight = shapes[0], shapes[1], shapes[2]
    transposed = values[7] == "True" if len(values) > 7 else False
    once = 2.0 * (prod(inputs) if transposed else prod(gradient)) * prod(weight[1:])
    wanted = values[10] if len(values) > 10 else "[True, True, True]"
    return once * sum(part.strip(" []") == "True" for part in wanted.split(",")[:2])


def _attention(shapes: Sequence[Shape], values: Sequence[str]) -> float:
    query, key, value = shapes[0], shapes[1], shapes[2]
    work = 2.0 * prod(query) * key[-2] + 2.0 * prod(query[:-1]) * key[-2] * value[-1]
    causal = len(values) > 4 and "True" in values[3:6]
    return work / 2 if causal else work


def _attention_backward(shapes: Sequence[Shape], values: Sequence[str]) -> float:
    return 2.0 * _attention(shapes[1:], [])  # four products for two; whether it is causal is among other arguments


Count = Callable[[Sequence[Shape], Sequence[str]], float]

# Operators that do the work themselves: what only wraps one of these (aten::linear, aten::matmul, aten::conv2d,
# aten::einsum, aten::scaled_dot_product_attention) is not listed, so nothing counts twice.
_COUNTS: dict[str, Count] = {
    "aten::mm": _mm,
    "aten::_scaled_mm": _mm,
    "aten::_int_mm": _mm,
    "aten::addmm": _addmm,
    "aten::bmm": _bmm,
    "aten::baddbmm": _baddbmm,
    "aten::mkldnn_linear": _linear,
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
}
for _kind in ("flash", "efficient", "cudnn", "fused", "flash_attention_for_cpu"):
    _base = f"aten::_scaled_dot_product_{_kind}" + ("" if _kind.endswith("cpu") else "_attention")
    _COUNTS[_base] = _attention
    _COUNTS[f"{_base}_backward"] = _attention_backward
_COUNTS["aten::_scaled_dot_product_fused_attention_overrideable"] = _attention


@dataclass(frozen=True)
class Counted:
    """FLOPs per step by dtype; matrix operators per step with and without usable shapes."""

    by_dtype: Mapping[str, float]
    calls: float
    missing: float

    @property
    def usable(self) -> bool:
        """Enough of the work is counted to speak of FLOP/s."""
        return bool(self.by_dtype) and self.missing <= MISSING_SHARE * (self.calls + self.missing)


def count_flops(trace: Trace, steps: Steps) -> Counted:
    """Count the matrix operators that start inside the steps.

    `trace` is a window with shapes; each distinct (operator, shapes, values, dtypes) is looked at once.
    """
    return count_within(trace, assign(steps, trace.operators.start) >= 0, len(steps))


def count_within(trace: Trace, inside: Mask, times: int) -> Counted:
    """Count the matrix operators among the rows `inside`, a part of them for each of so many `times`."""
    operators = trace.operators
    inside = inside & names_like(trace, operators.name, _COUNTS.__contains__)
    if not inside.any():
        return Counted({}, 0, 0)
    values = operators.values if operators.values is not None else np.full(len(operators), -1, np.int32)
    columns = np.stack([c[inside] for c in (operators.name, operators.shapes, values, operators.dtypes)])
    distinct, numbers = np.unique(columns, axis=1, return_counts=True)
    totals: dict[str, float] = {}
    calls = missing = 0
    for (name, shapes, value, dtypes), number in zip(distinct.T.tolist(), numbers.tolist(), strict=True):
        work = _evaluate(_COUNTS[trace.name(name)], trace.name(shapes), trace.name(value))
        if work is None:
            missing += number
            continue
        calls += number
        dtype = _dtype(trace.name(dtypes))
        totals[dtype] = totals.get(dtype, 0.0) + work * number / times
    return Counted(totals, calls / times, missing / times)


def flops_facts(
    counted: Counted,
    step_s: float | None,
    peak: Peak | None,
    matrix: MatrixWork,
    on_device: bool,
) -> Flops:
    """Achieved FLOP/s and its share of the device's peak for the dtypes of the work."""
    by_dtype = counted.by_dtype
    total = sum(by_dtype.values())
    achieved = total / step_s if step_s and counted.usable else None
    # float32 matrix work that runs on the Tensor Cores is TF32.
    tf32 = matrix.on_s > matrix.off_s
    names = {dtype: "tf32" if dtype == "float32" and tf32 else dtype for dtype in by_dtype}
    main = names[max(by_dtype, key=lambda d: by_dtype[d])] if by_dtype else ""
    rate = None
    if peak is not None and on_device and total:
        rates = {dtype: peak.of(name) or peak.of("float32") for dtype, name in names.items()}
        needed = sum(work / speed for dtype, work in by_dtype.items() if (speed := rates[dtype]))
        rate = total / needed if needed else None
    mfu = achieved / rate if achieved and rate else None
    if mfu is not None and mfu > 1.0:
        mfu = None  # no device does that: shapes of a damaged file, or times that are not the work's
    return Flops(total, dict(by_dtype), achieved, rate, main, mfu, counted.missing)


def _evaluate(count: Count, shapes: str, values: str) -> float | None:
    given = _parse(values)
    arguments = [str(value) for value in given] if isinstance(given, list) else []
    try:
        work = count(input_shapes(shapes), arguments)
    except (ValueError, IndexError, KeyError, TypeError, ZeroDivisionError, OverflowError):
        return None  # shapes of another overload, or without the strides: counted as missing
    return work if 0 < work < inf else None


def _parse(text: str) -> Any:
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None


def _dtype(text: str) -> str:
    """The first floating type among an operator's inputs."""
    names = _parse(text)
    for name in names if isinstance(names, list) else ():
        if isinstance(name, str) and name in _DTYPES:
            return _DTYPES[name]
    return "float32"


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.strip("[]").split(",") if part.strip()]


def _fill(numbers: list[int], length: int) -> list[int]:
    return numbers * length if len(numbers) == 1 else numbers
