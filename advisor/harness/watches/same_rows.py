"""What a step's forwards compute for each sample, and is the same for all: a covariance that was expanded to the batch.

Told by what is in the result, whoever computed it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from ..layout import SameRow
from ..looking import may_compute
from .by_line import ByLine, when_differentiated
from .repeats import CONSTANT

_LEAST_ROWS, _MOST_ROWS = 8, 1 << 16
_LEAST_S = 0.02e-3  # of a call: shorter ones take next to nothing but being called …
_CALLING_S = 0.008e-3  # … which is what one for a single row takes as well
_READ_S = 0.5e-9  # to read a number of 4 bytes, at 8 GB/s


@dataclass
class SameRows:
    """Told of each function of torch's that a watched forward calls; one for each training."""

    torch: ModuleType
    lines: ByLine[SameRow] = field(default_factory=ByLine)
    _given: bool = False  # the running forward was given such rows: they are the data's, and what follows from them

    def forward_begins(self, given: Iterable[Any]) -> None:
        """A model is called with these tensors."""
        self._given = any(self._alike(each, zeros=True) for each in given)

    def called(self, args: tuple[Any, ...], name: str, result: Any, seconds: float) -> None:
        """A function of that name has run for so long, and gave `result`."""
        if seconds < _LEAST_S or self._given or name in CONSTANT:
            return
        made = [each for each in (result if isinstance(result, (tuple, list)) else (result,)) if self._is_tensor(each)]
        if not made or not all(self._alike(each) for each in made):
            return
        rows = int(made[0].shape[0])
        line = self.lines.here(lambda site, frames: SameRow(site=site, called_from=frames, rows=rows))
        if line is None:
            return
        # One row takes the call, and to read what all rows share: a matrix of weights.
        tensors = [each for each in args if self._is_tensor(each)]
        shared = sum(each.numel() for each in tensors if not each.dim() or int(each.shape[0]) != rows)
        spared = max(0.0, seconds - _CALLING_S - shared * _READ_S) * (1.0 - 1.0 / rows)
        line.calls += 1
        line.seconds += spared
        when_differentiated(made, spared, line, name)

    def _is_tensor(self, value: Any) -> bool:
        return isinstance(value, self.torch.Tensor)

    def _alike(self, tensor: Any, zeros: bool = False) -> bool:
        """Whether all of its rows are the same, to the last digit, and no view of one; nothing but `zeros` as well."""
        torch: Any = self.torch
        if not self._is_tensor(tensor) or tensor.device.type != "cpu" or not may_compute(torch, tensor):
            return False
        if tensor.dim() < 2 or not _LEAST_ROWS <= tensor.shape[0] <= _MOST_ROWS or not tensor.numel():
            return False
        if not tensor.is_floating_point() or tensor.stride(0) == 0:
            return False
        with torch.no_grad():
            rows = tensor.detach()
            for at in (0, -1):  # one number of each first: few tensors get beyond that
                column = rows[(slice(None),) + (at,) * (rows.dim() - 1)]
                if not bool((column == column[0]).all()):
                    return False
            return (zeros or bool((rows[0] != 0).any())) and bool((rows == rows[:1]).all())
