"""What a step's forwards multiply that is one-hot: a product that gives rows of the other matrix, which a lookup does.

Told by what is in the tensor, whoever made it.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from ..layout import OneHot
from ..looking import may_compute
from .by_line import ByLine, when_differentiated

_PRODUCTS = ("linear", "matmul", "mm", "__matmul__")
_CASTS = ("float", "to", "type", "type_as", "half", "double", "bfloat16")
_LEAST_COLUMNS, _LEAST_NUMBERS = 64, 1 << 14  # of what is multiplied: below that it takes next to no time


@dataclass
class OneHots:
    """Told of each function of torch's that a watched forward calls; one for each training."""

    torch: ModuleType
    lines: ByLine[OneHot] = field(default_factory=ByLine)
    # Identity of a tensor → the tensor, and the seconds that making it has taken so far.
    _made: dict[int, tuple[weakref.ref[Any], float]] = field(default_factory=dict)

    def clear(self) -> None:
        """Forget the tensors of a step."""
        self._made.clear()

    def called(self, name: str, args: tuple[Any, ...], result: Any, seconds: float) -> None:
        """A function of that name has run for so long, and gave `result`."""
        if not args or not isinstance(result, self.torch.Tensor) or not isinstance(args[0], self.torch.Tensor):
            return
        if name == "one_hot":
            self._made[id(result)] = weakref.ref(result), seconds
        elif name in _CASTS and (before := self._making_s(args[0])):
            self._made[id(result)] = weakref.ref(result), before + seconds
        elif name in _PRODUCTS and self._is_one_hot(args[0]):
            self._count(args[0], result, seconds)

    def _making_s(self, tensor: Any) -> float:
        alive, seconds = self._made.get(id(tensor), (None, 0.0))
        return seconds if alive is not None and alive() is tensor else 0.0

    def _is_one_hot(self, tensor: Any) -> bool:
        """Whether each row, of not too few numbers, is zeros and a single one."""
        torch: Any = self.torch
        if tensor.requires_grad or tensor.dim() < 2 or not tensor.is_floating_point() or tensor.device.type != "cpu":
            return False
        if tensor.shape[-1] < _LEAST_COLUMNS or tensor.numel() < _LEAST_NUMBERS or not may_compute(torch, tensor):
            return False
        first = tensor[(0,) * (tensor.dim() - 1)]  # most tensors are told by one of their rows
        if int(first.count_nonzero()) != 1:
            return False
        rows = tensor.numel() // tensor.shape[-1]
        return int(tensor.count_nonzero()) == rows and bool((tensor.amax(-1) == 1).all())

    def _count(self, given: Any, result: Any, seconds: float) -> None:
        rows, columns = given.numel() // given.shape[-1], given.shape[-1]
        line = self.lines.here(lambda site, frames: OneHot(site=site, called_from=frames, rows=rows, columns=columns))
        if line is None:
            return
        line.calls += 1
        line.seconds += seconds
        line.making_s += self._making_s(given)
        when_differentiated([result], seconds, line)
