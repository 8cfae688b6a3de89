"""What products of more than three dimensions copy before they begin, again and again.

``torch.matmul`` folds all dimensions before the last two into one, for which they have to lie in memory one after
another. Heads that ``permute`` or ``transpose`` put in front of positions do not: each product copies them first. What
many products of a step are given, keys and values that every step of a decoder looks at, could be copied once.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from ..layout import CopiedOperand, Site
from ..looking import may_compute, times_written
from ..places import site_of, user_frame
from .by_line import ByLine

_PRODUCTS = ("matmul", "__matmul__", "__rmatmul__")
# What gives the same numbers in another order of dimensions.
_PERMUTES = ("permute", "transpose", "swapaxes", "swapdims", "movedim", "moveaxis")
_LEAST_NUMBERS = 1 << 14  # of an operand: a smaller one is copied in less time than it takes to look at it
_MOST_HELD = 1 << 28  # bytes of operands that are kept until a step ends, so that their memory is no other's meanwhile
_OPERANDS = 2
_MATRIX = 2  # dimensions that a product multiplies over; those before them are folded into one


@dataclass
class _Operand:
    """The tensor itself, which holds its memory; what it takes to copy it once, in seconds, once that is known."""

    tensor: Any
    total: float  # of its numbers, where nobody counts how often it is written to
    seconds: float | None = None


@dataclass
class CopiedOperands:
    """Told of each function of torch's that a watched forward calls; one for each training."""

    torch: ModuleType
    lines: ByLine[CopiedOperand] = field(default_factory=ByLine)
    _operands: dict[tuple[Any, ...], _Operand] = field(default_factory=dict)
    _laid_out: dict[int, Site] = field(default_factory=dict)  # by address: the line that put its dimensions in order
    _held: int = 0

    def clear(self) -> None:
        """Forget the tensors of a step."""
        self._operands.clear()
        self._laid_out.clear()
        self._held = 0

    def called(self, name: str, args: tuple[Any, ...], result: Any) -> None:
        """A function of that name has run, and gave `result`."""
        if name in _PERMUTES:
            self._permuted(args, result)
        elif name in _PRODUCTS and len(args) == _OPERANDS and isinstance(result, self.torch.Tensor):
            for each in args:
                if self._is_copied(each, result):
                    self._count(each)

    def _permuted(self, args: tuple[Any, ...], result: Any) -> None:
        if not args or not self._large(args[0]) or not self._large(result):
            return
        if is_folded(args[0]) and not is_folded(result) and (frame := user_frame()) is not None:
            self._laid_out[result.data_ptr()] = site_of(frame)

    def _large(self, tensor: Any) -> bool:
        torch: Any = self.torch
        plain = isinstance(tensor, torch.Tensor) and may_compute(torch, tensor) and tensor.device.type == "cpu"
        return plain and tensor.dim() > _MATRIX + 1 and tensor.numel() >= _LEAST_NUMBERS

    def _is_copied(self, operand: Any, result: Any) -> bool:
        """Whether it has all dimensions of the result, so that it is not repeated for others, and cannot be folded."""
        return self._large(operand) and operand.shape[:-_MATRIX] == result.shape[:-_MATRIX] and not is_folded(operand)

    def _count(self, tensor: Any) -> None:
        key = tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, times_written(tensor)
        operand, total = self._operands.get(key), float(tensor.sum()) if key[-1] < 0 else 0.0
        if operand is None or operand.total != total:
            self._held += tensor.numel() * tensor.element_size()
            if self._held <= _MOST_HELD:
                self._operands[key] = _Operand(tensor.detach(), total)
            return
        if operand.seconds is None:
            began = time.perf_counter()
            operand.tensor.contiguous()
            operand.seconds = time.perf_counter() - began
        laid_out = self._laid_out.get(tensor.data_ptr(), Site())
        line = self.lines.here(
            lambda site, frames: CopiedOperand(site, frames, laid_out_at=laid_out, shape=list(tensor.shape))
        )
        if line is not None:
            line.calls += 1
            line.seconds += operand.seconds


def is_folded(tensor: Any) -> bool:
    """Whether the dimensions before the last two lie in memory one after another, as those of one dimension do."""
    sizes, strides = tensor.shape[:-_MATRIX], tensor.stride()[:-_MATRIX]
    there = [(size, stride) for size, stride in zip(sizes, strides, strict=True) if size > 1]
    return all(outer[1] == inner[0] * inner[1] for outer, inner in itertools.pairwise(there))
