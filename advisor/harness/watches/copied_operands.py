"""What products of more than three dimensions copy before they begin, again and again.

``torch.matmul`` folds all dimensions before the last two into one, for which they have to lie in memory one after
another. Heads that ``permute`` or ``transpose`` put in front of positions do not: each product copies them first. What
many products of a step are given, keys and values that every step of a decoder looks at, could be copied once.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from ..layout import CopiedOperand, Site
from ..looking import each_tensor, may_compute, times_written
from ..places import site_of, user_frame
from .by_line import ByLine

_PRODUCTS = ("matmul", "__matmul__", "__rmatmul__")
# What gives the same numbers in another order of dimensions.
_PERMUTES = ("permute", "transpose", "swapaxes", "swapdims", "movedim", "moveaxis")
_PARTS = ("__getitem__", "select", "unbind")  # of what was permuted: keys and values of both
_VIEWS = ("view", "view_as")  # which fail where a copy has another layout
_OPERANDS = 2
_MATRIX = 2  # the last dimensions, of rows and columns; those before them are folded into one
_LEAST_NUMBERS = 1 << 14  # of an operand: a smaller one is copied in less time than it takes to look at it
_MOST_HELD = 1 << 28  # bytes that are kept until a step ends, so that their memory is no other's meanwhile


@dataclass
class _Operand:
    """What holds the memory of one; what it takes to copy it once, in seconds, once that is known."""

    tensor: Any
    total: float  # of its numbers, where nobody counts how often it is written to
    seconds: float | None = None


@dataclass
class _LaidOut:
    """A line that put dimensions in an order in which they cannot be folded."""

    site: Site
    tensor: Any
    written: int  # how often the tensor had been written to by then
    total: float


@dataclass
class CopiedOperands:
    """Told of each function of torch's that a watched forward calls; one for each training."""

    torch: ModuleType
    lines: ByLine[CopiedOperand] = field(default_factory=ByLine)
    _operands: dict[tuple[Any, ...], _Operand] = field(default_factory=dict)
    # By the memory that it begins at, and how the dimensions that are to be folded lie in it.
    _laid_out: dict[tuple[Any, ...], _LaidOut] = field(default_factory=dict)
    _held: dict[int, int] = field(default_factory=dict)  # bytes of each storage
    # Lines whose tensors have to be no copies, in any step: they are written to later, seen as something else, or put
    # into that order again for the next product.
    _views_only: list[Site] = field(default_factory=list)

    def clear(self) -> None:
        """Forget the tensors of a step."""
        for each in self._laid_out.values():
            if each.written != times_written(each.tensor):
                self._leave(each.site)
        self._operands.clear()
        self._laid_out.clear()
        self._held.clear()

    def called(self, name: str, args: tuple[Any, ...], result: Any) -> None:
        """A function of that name has run, and gave `result`."""
        if not args or not isinstance(args[0], self.torch.Tensor):
            return
        if name in _PERMUTES or name in _PARTS:
            for each in self._of_many(result):
                self._changed(args[0], each, permuted=name in _PERMUTES)
        elif name in _VIEWS:
            storage = args[0].untyped_storage().data_ptr() if self._laid_out and self._is_large(args[0]) else None
            for each in self._laid_out.values() if storage is not None else ():
                if each.tensor.untyped_storage().data_ptr() == storage:
                    self._leave(each.site)
        elif name in _PRODUCTS and len(args) == _OPERANDS and isinstance(result, self.torch.Tensor):
            torch: Any = self.torch
            if torch.is_autocast_enabled("cpu"):  # which makes copies of its own
                return
            for each in args:
                if self._is_large(each) and each.shape[:-_MATRIX] == result.shape[:-_MATRIX] and is_copied(each):
                    self._count(each)

    def _changed(self, before: Any, after: Any, *, permuted: bool) -> None:
        """`after` is `before` with its dimensions in another order, or a part of it."""
        if can_be_folded(after) or not self._is_large(before):
            return
        frame, known = user_frame() if permuted and can_be_folded(before) else None, self._laid_out.get(_place(before))
        if frame is not None:
            site = site_of(frame)
        elif known is not None and not permuted and after.shape == before.shape[1:]:  # of a copy it could be folded
            site = known.site
        else:
            return
        again = self._laid_out.get(_place(after))
        if again is not None and again.site is site and again.written == times_written(after):
            self._leave(site)
        if self._hold(after):
            self._laid_out[_place(after)] = _LaidOut(site, after.detach(), times_written(after), self._total(after))

    def _of_many(self, result: Any) -> Iterator[Any]:
        """The tensors that a function gave, of those that are large enough to matter."""
        return (each for each in each_tensor(result, self.torch.Tensor) if self._is_large(each))

    def _is_large(self, tensor: Any) -> bool:
        torch: Any = self.torch
        plain = isinstance(tensor, torch.Tensor) and may_compute(torch, tensor) and tensor.device.type == "cpu"
        return plain and tensor.is_floating_point() and tensor.dim() > _MATRIX + 1 and tensor.numel() >= _LEAST_NUMBERS

    def _count(self, tensor: Any) -> None:
        key = *_place(tensor), tuple(tensor.shape), tensor.stride(), tensor.dtype, times_written(tensor)
        operand, total = self._operands.get(key), self._total(tensor)
        if operand is None or operand.total != total:
            if self._hold(tensor) and not math.isnan(total):
                self._operands[key] = _Operand(tensor.detach(), total)
            return
        if operand.seconds is None:
            began = time.perf_counter()
            operand.tensor.contiguous()
            operand.seconds = time.perf_counter() - began
        line = self.lines.here(lambda site, frames: CopiedOperand(site, frames, shape=list(tensor.shape)))
        if line is None:
            return
        line.calls += 1
        line.seconds += operand.seconds
        known = self._laid_out.get(_place(tensor))
        if known is None or known.written != times_written(tensor) or not _alike(known.total, total):
            line.certain = False  # somebody wrote to it since, through it or through what it is a view of
        elif known.site not in line.laid_out:
            line.laid_out.append(known.site)
        line.certain &= not any(site in self._views_only for site in line.laid_out)

    def _leave(self, site: Site) -> None:
        """What that line lays out has to stay a view."""
        if site not in self._views_only:
            self._views_only.append(site)
        for line in self.lines.lines.values():
            line.certain &= site not in line.laid_out

    def _hold(self, tensor: Any) -> bool:
        """Whether its memory may be kept until the step ends."""
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._held:
            if sum(self._held.values()) + storage.nbytes() > _MOST_HELD:
                return False
            self._held[storage.data_ptr()] = storage.nbytes()
        return True

    def _total(self, tensor: Any) -> float:
        """The sum of its numbers, where nobody counts how often it is written to; else 0."""
        torch: Any = self.torch
        return float(tensor.sum(dtype=torch.float64)) if times_written(tensor) < 0 else 0.0


def _alike(one: float, other: float) -> bool:
    """Whether two sums are of the same numbers, added up in another order."""
    return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-6)


def _place(tensor: Any) -> tuple[Any, ...]:
    return tensor.data_ptr(), tuple(tensor.shape[:-_MATRIX]), tensor.stride()[:-_MATRIX]


def can_be_folded(tensor: Any) -> bool:
    """Whether the dimensions before the last two lie in memory one after another, as those of one dimension do."""
    return all(outer[1] == inner[0] * inner[1] for outer, inner in itertools.pairwise(_leading(tensor)))


def is_copied(tensor: Any) -> bool:
    """Whether a product copies it first, and would not if it were contiguous: nothing in it is there several times."""
    return not can_be_folded(tensor) and all(stride for _, stride in _leading(tensor))


def _leading(tensor: Any) -> list[tuple[int, int]]:
    """Sizes and strides of the dimensions before the last two, but for those of size 1."""
    leading = zip(tensor.shape[:-_MATRIX], tensor.stride()[:-_MATRIX], strict=True)
    return [(size, stride) for size, stride in leading if size > 1]
