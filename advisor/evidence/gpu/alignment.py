"""Matrix products on Tensor Cores whose sizes are no multiples of 16 bytes: the kernels for them load less at once.

CUTLASS writes into a kernel's name how many elements it loads at a time (``align8``): with fewer than 16 bytes a load
the products take longer, unless memory is what they wait for. cuBLAS's own kernels (``nvjet_…``, ``…s16816gemm…``) do
not: of those, what a product's sizes are says it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from advisor.evidence.gpu.device import DeviceWork
from advisor.evidence.gpu.devices import Peak
from advisor.evidence.gpu.kernels import launching_operators
from advisor.evidence.gpu.matrix import cores_of, format_of, kind_of
from advisor.evidence.host import Host
from advisor.evidence.nesting import Nesting
from advisor.evidence.steps import assign, step_windows
from advisor.trace.tables import Trace

_NAME = re.compile(r"(?:tensorop|wmma)\w*?_align(\d+)")
# Bytes of an element, by format; a load of 16 bytes is what the fast kernels do (NVIDIA, "Matrix Multiplication
# Background User's Guide", requirements to use Tensor Cores).
_BYTES = {"narrow": 2, "tf32": 4}
_LOAD = 16
# Where a shape is in an operator's inputs: addmm has the bias in front.
_FIRST = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1}
_OF_ACTIVATIONS = ("aten::bmm", "aten::baddbmm")
# Products of fewer operations are about launching and filling the device, whatever their sizes.
_LEAST_FLOPS = 1e9
# New over old time is no less than this: in the two-rank reference trace (an A100's) the product of 8192 x 512 x 8192
# takes 1251 us unaligned and 617 us aligned, both in TF32.
_LEAST = 0.5
# From Hopper on cuBLAS's fast kernels take aligned sizes only, and odd ones fall to those of Turing. Products of 16
# bits on an H100, odd to aligned: 3.2 and, with even sizes, 2.3 (PyTorch 2.13); an H200's step with nine tenths of such
# products became 2.2 times as fast when its pointers were aligned, single products 7 to 8 times (notes that others have
# published with their code).
_LEAST_ON_HOPPER, _HOPPER = 0.14, (9, 0)
_BANDWIDTH = 0.8  # of the data sheet's, which is what kernels bound by memory reach


@dataclass(frozen=True)
class Misaligned:
    """``scale``: kernel name → new over old time; ``sizes``: (size, seconds per step), the longest first."""

    scale: dict[str, float]
    sizes: tuple[tuple[int, float], ...] = ()
    multiple: int = 8  # elements: what a size should be a multiple of
    seconds: float = 0.0


@dataclass(frozen=True)
class _Product:
    kernel: str
    seconds: float
    flops: float
    memory_s: float  # the least time in which its matrices come and go
    odd: tuple[int, ...]  # sizes that are no multiples
    multiple: int
    slow: bool  # by the kernel's name
    batched: bool  # of activations alone: what is odd is a length or a width of heads, and no layer's size


def misaligned_products(trace: Trace, peak: Peak | None, capability: tuple[int, int] | None = None) -> Misaligned:
    """Products that odd sizes slow down, and by how much; `trace` is a window with shapes.

    The yardstick are the aligned products of the same window: their operations per second. Without any of them, or
    without the device's bandwidth, nothing is said.
    """
    if peak is None or not len(trace.kernels):
        return Misaligned({})
    products = _products(trace, peak)
    even = [each for each in products if not each.slow and each.seconds > 2 * each.memory_s]
    slow = [each for each in products if each.slow and each.odd and not each.batched]
    if not even or not slow:
        return Misaligned({})
    most = _LEAST_ON_HOPPER if capability is not None and capability >= _HOPPER else _LEAST
    old: dict[str, float] = {}
    new: dict[str, float] = {}
    sizes: dict[int, float] = {}
    for each in slow:
        # What is smaller than this product runs at no higher a rate than it could.
        alike = [other for other in even if other.flops <= 4 * each.flops and other.multiple == each.multiple]
        rate = sum(other.flops for other in alike) / sum(other.seconds for other in alike) if alike else 0.0
        least = max(each.flops / rate, each.memory_s, most * each.seconds) if rate else each.seconds
        seconds = min(each.seconds, least)
        old[each.kernel] = old.get(each.kernel, 0.0) + each.seconds
        new[each.kernel] = new.get(each.kernel, 0.0) + seconds
        if seconds < each.seconds:
            for size in each.odd:
                sizes[size] = sizes.get(size, 0.0) + each.seconds
    # Kernels of these names whose product was not understood, or is not one with weights, stay as they are.
    for each in products:
        if each.slow and (not each.odd or each.batched) and each.kernel in old:
            old[each.kernel] += each.seconds
            new[each.kernel] += each.seconds
    scale = {name: new[name] / old[name] for name in old if new[name] < old[name]}
    ordered = tuple(sorted(sizes.items(), key=lambda item: -item[1]))
    multiple = max(slow, key=lambda each: each.seconds).multiple
    return Misaligned(scale, ordered, multiple, sum(old[name] for name in scale))


def _products(trace: Trace, peak: Peak) -> list[_Product]:
    steps = step_windows(trace)
    nesting, device = Nesting(trace), DeviceWork(trace, Host(trace, steps))
    operators = launching_operators(device, nesting)[: len(trace.kernels)]
    inside = (assign(steps, trace.kernels.start) >= 0) & (operators >= 0)
    found = []
    for row in np.flatnonzero(inside).tolist():
        name = trace.name(int(trace.kernels.name[row]))
        mark, size = _NAME.search(name), _BYTES.get(format_of(name), 0)
        operator = int(operators[row])
        called = trace.name(int(trace.operators.name[operator]))
        if not size or cores_of(name) != "on" or kind_of(name) != "gemm" or called not in _FIRST:
            continue
        shapes = _shapes(trace.name(int(trace.operators.shapes[operator])))[_FIRST[called] :]
        if len(shapes) < 2 or len(shapes[0]) < 2 or len(shapes[1]) < 2:
            continue
        (m, k), n, batch = shapes[0][-2:], shapes[1][-1], prod(shapes[0][:-2])
        flops = 2.0 * batch * m * n * k
        if flops < _LEAST_FLOPS:
            continue
        multiple = _LOAD // size
        # The rows of the first matrix are seldom what is loaded along; they are when nothing else is odd.
        odd = tuple(each for each in dict.fromkeys((n, k)) if each % multiple) or ((m,) if m % multiple else ())
        seconds = int(trace.kernels.end[row] - trace.kernels.start[row]) / 1e9 / len(steps)
        memory_s = size * batch * (m * k + k * n + m * n) / (_BANDWIDTH * peak.bandwidth) / len(steps)
        if mark is None and odd:
            continue  # how it loads is not known
        slow = mark is not None and int(mark[1]) < multiple
        batched = called in _OF_ACTIVATIONS
        found.append(_Product(name, seconds, flops / len(steps), memory_s, odd, multiple, slow, batched))
    return found


def _shapes(text: str) -> Sequence[Sequence[int]]:
    try:
        parsed = json.loads(text) if text else []
    except (ValueError, RecursionError):
        return []
    if not isinstance(parsed, list):
        return []
    shapes = [each for each in parsed if isinstance(each, list)]
    return [each for each in shapes if all(type(size) is int and size > 0 for size in each)]
