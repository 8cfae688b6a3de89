"""What a step's forwards compute for each sample, and is the same for all: a covariance that was expanded to the batch.

Told by what is in the result, whoever computed it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from .by_line import ByLine, when_differentiated
from .layout import SameRow
from .looking import may_compute
from .repeats import CONSTANT

_LEAST_ROWS, _MOST_ROWS = 8, 1 << 16
_LEAST_S = 0.02e-3  # of a call: shorter ones take next to nothing but being called …
_CALLING_S = 0.008e-3  # … which is what one for a single row takes as well


@dataclass
class SameRows:
    """Told of each function of torch's that a watched forward calls; one for each training."""

    torch: ModuleType
    lines: ByLine[SameRow] = field(default_factory=ByLine)

    def called(self, name: str, result: Any, seconds: float) -> None:
        """A function of that name has run for so long, and gave `result`."""
        made = result[0] if isinstance(result, (tuple, list)) and result else result
        if seconds < _LEAST_S or name in CONSTANT or not isinstance(made, self.torch.Tensor) or not self._alike(made):
            return
        rows = int(made.shape[0])
        line = self.lines.here(lambda site, frames: SameRow(site=site, called_from=frames, rows=rows))
        if line is None:
            return
        spared = (seconds - _CALLING_S) * (1.0 - 1.0 / rows)
        line.calls += 1
        line.seconds += spared
        when_differentiated([made], spared, line, name)

    def _alike(self, tensor: Any) -> bool:
        """Whether all of its rows are the same, to the last digit, and no view of one; and not nothing but zeros."""
        torch: Any = self.torch
        if tensor.dim() < 2 or not _LEAST_ROWS <= tensor.shape[0] <= _MOST_ROWS or not tensor.numel():
            return False
        if not tensor.is_floating_point() or tensor.device.type != "cpu" or not may_compute(torch, tensor):
            return False
        if tensor.layout is not torch.strided or tensor.stride(0) == 0:
            return False
        with torch.no_grad():
            rows = tensor.detach()
            for at in (0, -1):  # one number of each first: few tensors get beyond that
                column = rows[(slice(None),) + (at,) * (rows.dim() - 1)]
                if not bool((column == column[0]).all()):
                    return False
            return bool((rows[0] != 0).any()) and bool((rows == rows[:1]).all())
