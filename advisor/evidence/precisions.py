"""Which operators compute in a type that costs more than float32, by the input types of the detail window."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from advisor.evidence.batch import OPERATOR_FIXED_S
from advisor.evidence.coded import names_like, pairs
from advisor.evidence.coverage import Coverage
from advisor.evidence.nesting import Nesting
from advisor.evidence.steps import assign, step_windows
from advisor.evidence.worked import self_shares

if TYPE_CHECKING:
    from advisor.evidence import Evidence
    from advisor.evidence.facts import KernelRow, OperatorRow

_OF_LISTS = re.compile(r"aten::_(foreach|fused)_")  # their types are recorded as a list of tensors, no more
# Work in float32 over the same in float64: a register holds twice as many values, and memory moves half the bytes.
# Measured on a CPU with fixtures/planted/double_features: 0.47 to 0.49 of the step's CPU time.
_NARROWER = 0.47
# On GPUs whatever waits for memory takes half as long as well. Matrix work goes by the rates of the data sheets. GPUs
# for data centres (these capabilities) compute float64 at half of float32's rate, and on their Tensor Cores as fast as
# float32 off them (A100 9.7, 19.5 and 19.5 TFLOP/s, H200 34, 67 and 67); a T4 at a 32nd, GeForce at a 64th.
_FULL_RATE, _ON_TENSOR_CORES = ((6, 0), (7, 0), (8, 0), (9, 0), (10, 0)), re.compile(r"d884|dmma|tensorop_d|f64f64")
_SAME_RATE, _OF_A_FRACTION = 0.9, 0.06
# With TF32, which convolutions have by default, an eighth of float32's time is left (evidence/gpu/products.py).
_TF32_FROM, _TF32_SCALE = (8, 0), 0.16
_KERNEL_FIXED_S = 3e-6  # no kernel takes less, in whatever type
# oneDNN has no convolutions in float64, and PyTorch's own unfold the input: nine kinds of two cores with AVX-512, torch
# 2.14, took 0.04 to 0.48 of that in float32 and their backward 0.09 to 0.41, in the middle 0.2 and 0.3; convolutions of
# one by one, which need no unfolding, and of three channels 0.5 to 1.
_OWN_CONVOLUTION = 0.3
_FLOATING = ("float", "double", "c10::Half", "c10::BFloat16")
_COPY = "aten::copy_"
_CONVOLUTION_BACKWARD = "aten::convolution_backward"
_BACKWARD = "ToCopyBackward0"
_AROUND_COPIES = ("aten::_to_copy", "aten::to", _BACKWARD, f"autograd::engine::evaluate_function: {_BACKWARD}")
_KERNEL = re.compile(r"dgemm|double|f64|d884", re.IGNORECASE)


def typed_shares(evidence: Evidence, *types: str) -> Mapping[str, float]:
    """Operator → share of its calls whose first floating input is of one of `types`; without shapes recorded, empty.

    Types as the profiler writes them: "double", "c10::BFloat16", "c10::Half".
    """
    window = evidence.detail
    if window is None or not len(window.operators):
        return {}
    inside = assign(step_windows(window), window.operators.start) >= 0
    calls: dict[str, int] = {}
    typed: dict[str, int] = {}
    columns = pairs(window.operators.name[inside], window.operators.dtypes[inside])
    for name, dtypes, count in zip(*(column.tolist() for column in columns), strict=True):
        calls[window.name(name)] = calls.get(window.name(name), 0) + count
        if dtypes >= 0 and next(iter(_floating(window.name(dtypes))), "") in types:
            typed[window.name(name)] = typed.get(window.name(name), 0) + count
    return {name: count / calls[name] for name, count in typed.items()}


def casting_shares(evidence: Evidence, *types: str) -> Mapping[str, float]:
    """Operator → share of its time that goes into converting between float32 and one of `types`, as autocast does.

    Told by the copies, which alone show both types; of what leads to them there is one call for each.
    """
    window = evidence.detail
    if window is None or not len(window.operators):
        return {}
    operators = window.operators
    inside = assign(step_windows(window), operators.start) >= 0
    both = [{"float", each} for each in types]
    copies = inside & names_like(window, operators.name, _COPY.__eq__)
    casts = copies & names_like(window, operators.dtypes, lambda dtypes: set(_floating(dtypes)[:2]) in both)
    shares, spent = {}, operators.end - operators.start
    if total := int(spent[copies].sum()):
        shares[_COPY] = int(spent[casts].sum()) / total
    for around in _AROUND_COPIES:
        calls = int((inside & names_like(window, operators.name, around.__eq__)).sum())
        shares[around] = min(1.0, int(casts.sum()) / max(calls, 1))
    return shares


def in_own_convolutions(evidence: Evidence) -> Mapping[str, float]:
    """Operator → share of its time in convolutions of PyTorch's own, which is what those in float64 are on a CPU.

    They unfold one sample after another: hundreds of views and copies, which none of oneDNN's convolutions has.
    """
    window = evidence.detail
    if window is None or evidence.device_is_gpu or not len(window.operators):
        return {}
    operators, inside = window.operators, assign(step_windows(window), window.operators.start) >= 0
    double = names_like(window, operators.dtypes, lambda dtypes: next(iter(_floating(dtypes)), "") == "double")
    own = inside & double & names_like(window, operators.name, lambda name: "slow_conv" in name)
    if not own.any():
        return {}
    own |= inside & double & names_like(window, operators.name, _CONVOLUTION_BACKWARD.__eq__)
    within = np.zeros(len(operators), np.bool_)
    for lane in np.unique(operators.lane[own]).tolist():
        there = own & (operators.lane == lane)
        within |= Coverage.of(operators.start[there], operators.end[there]).contains(operators.start) & (
            operators.lane == lane
        )
    return self_shares(window, Nesting(window), within, inside)


def _in_float32(name: str) -> float:
    return _OWN_CONVOLUTION if "slow_conv" in name else _NARROWER


def in_float32(
    evidence: Evidence,
    shares: Mapping[str, float],
    left: Callable[[str], float] = _in_float32,
    lists: bool = False,
    unfolded: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Factor on the self time of each operator, were these shares of its calls to compute in float32.

    `left` says what is left of an operator's own work, its calling aside; by default, of float64. With `lists` the
    optimizer's operators on lists of tensors, whose types are not recorded, are among them. `unfolded` are the shares
    of :func:`in_own_convolutions`.
    """
    factors: dict[str, float] = {}
    for row in evidence.operators:
        share = 1.0 if lists and _OF_LISTS.match(row.name) else shares.get(row.name, 0.0)
        inside = (unfolded or {}).get(row.name, 0.0)
        if share or inside:
            alone = 1.0 - share * (1.0 - _factor(row, left(row.name)))
            factors[row.name] = inside * _OWN_CONVOLUTION + (1.0 - inside) * alone
    return factors


def kernels_in_float32(evidence: Evidence) -> dict[str, float]:
    """The same for kernels, by the type in their names."""
    return {row.name: _of_kernel(evidence, row) for row in evidence.kernels if _KERNEL.search(row.name)}


def _of_kernel(evidence: Evidence, row: KernelRow) -> float:
    left, capability = _NARROWER, evidence.capability
    if row.matrix and capability is not None:
        tf32 = capability >= _TF32_FROM and _has_tf32(evidence, row.kind)
        if capability not in _FULL_RATE:
            left = _OF_A_FRACTION
        elif _ON_TENSOR_CORES.search(row.name):
            left = _SAME_RATE * (_TF32_SCALE if tf32 else 1.0)
        elif tf32:
            left = _NARROWER * _TF32_SCALE
    each_s = row.total_s / max(1, row.count)
    return min(1.0, left + _KERNEL_FIXED_S / each_s) if each_s and left < _NARROWER else left


def _has_tf32(evidence: Evidence, kind: str) -> bool:
    """Whether float32 is multiplied as TF32 in the run: convolutions are by default, products where the script says."""
    environment = evidence.record.environment if evidence.record is not None else None
    if kind == "conv":
        return environment is None or environment.cudnn_tf32 is not False
    return environment is not None and environment.matmul_precision not in ("highest", "")


def _factor(row: OperatorRow, left: float) -> float:
    each = row.self_s / row.count if row.count else 0.0
    fixed = min(each, OPERATOR_FIXED_S)
    return (fixed + (each - fixed) * left) / each if each else 1.0


def _floating(text: str) -> list[str]:
    try:
        names = json.loads(text) if text else []
    except (ValueError, RecursionError):
        return []
    return [each for each in names if each in _FLOATING] if isinstance(names, list) else []
