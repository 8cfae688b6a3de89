"""What a step's forwards multiply with that is a matrix of zeros but for a few numbers.

A graph's adjacency, a batch of graphs as blocks of one, an incidence, an interpolation: told by what is in it, whoever
made it, and by whether a step makes it anew.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from ..layout import SparseProduct
from ..looking import may_compute, times_written
from .by_line import ByLine, when_differentiated

# The functions, and which of their arguments is the left one.
_PRODUCTS = {"matmul": 0, "mm": 0, "__matmul__": 0, "addmm": 1}
_LEAST_NUMBERS = 1 << 18  # of the matrix: below that the product takes next to no time
_MOST_FILLED = 0.1  # of it: with more a sparse product is no faster


@dataclass
class SparseProducts:
    """Told of each function of torch's that a watched forward calls; one for each training."""

    torch: ModuleType
    lines: ByLine[SparseProduct] = field(default_factory=ByLine)
    # Identity of a matrix → it, how often it had been written to, and how many numbers it has.
    _known: dict[int, tuple[Callable[[], Any], int, int]] = field(default_factory=dict)

    def called(self, name: str, args: tuple[Any, ...], result: Any, seconds: float) -> None:
        """A function of that name has run for so long, and gave `result`."""
        which = _PRODUCTS.get(name)
        if which is None or len(args) < which + 2 or not all(map(self._plain, args[which : which + 2])):
            return
        matrix, other = args[which : which + 2]
        if matrix.dim() != 2 or matrix.numel() < _LEAST_NUMBERS or matrix.requires_grad or other.dim() < 2:
            return
        torch: Any = self.torch
        if torch.is_autocast_enabled("cpu"):  # which has no sparse product in 16 bits
            return
        filled, new = self._numbers(matrix)
        if not 0 < filled <= _MOST_FILLED * matrix.numel():
            return
        rows, columns = (int(size) for size in matrix.shape)
        line = self.lines.here(
            lambda site, frames: SparseProduct(site, frames, rows=rows, columns=columns, numbers=filled)
        )
        if line is None:
            return
        if new:
            line.made += 1
            line.made_numbers += rows * columns
        width = other.numel() / columns
        line.calls += 1
        line.seconds += seconds
        line.multiplied += rows * columns * width
        line.needed += filled * width
        line.turned += filled
        when_differentiated([result], seconds, line)

    def step_ends(self) -> None:
        """What was seen since the last one is one step's."""
        self.lines.step_ends()

    def per_step(self, steps: int, least_s: float) -> list[SparseProduct]:
        """The lines that multiply with such matrices."""
        return self.lines.per_step(steps, least_s)

    def _plain(self, tensor: Any) -> bool:
        torch: Any = self.torch
        plain = isinstance(tensor, torch.Tensor) and may_compute(torch, tensor) and tensor.device.type == "cpu"
        return plain and tensor.dtype in (torch.float32, torch.float64)

    def _numbers(self, matrix: Any) -> tuple[int, bool]:
        """How many of its numbers are none of zero, and whether it was not multiplied with before as it is."""
        alive, version, filled = self._known.get(id(matrix), (_gone, 0, 0))
        known = alive() is matrix and version == times_written(matrix)
        if not known:
            filled = int(self.torch.count_nonzero(matrix))
            self._known[id(matrix)] = weakref.ref(matrix), times_written(matrix), filled
        return filled, not known


def _gone() -> None:
    return None
