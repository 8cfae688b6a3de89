"""What a step's forwards multiply of which most rows are zeros: places of a buffer that nothing was put into.

Told by what is in the tensor, whoever made it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from ..layout import ZeroRow
from ..looking import may_compute
from .by_line import ByLine, when_differentiated

# The functions, and which of their arguments has the rows.
_PRODUCTS = {"linear": 0, "matmul": 0, "mm": 0, "bmm": 0, "__matmul__": 0, "addmm": 1, "baddbmm": 1}
_LEAST_NUMBERS = 1 << 15  # of what is multiplied: below that it takes next to no time
_LEAST_ZERO = 0.5  # of the rows: with fewer the fullest of a few may set the size
_ASKED = 8  # numbers of each row, before all of them are
# Nodes of a graph: those that give the same memory, and those that make zeros which are no places of a buffer.
_VIEWS = ("ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0", "TransposeBackward0", "UnsqueezeBackward0")
_MASKS = ("MulBackward0", "EmbeddingBackward0", "MaskedFillBackward0", "WhereBackward0")


@dataclass
class ZeroRows:
    """Told of each function of torch's that a watched forward calls; one for each training."""

    torch: ModuleType
    lines: ByLine[ZeroRow] = field(default_factory=ByLine)

    def called(self, name: str, args: tuple[Any, ...], result: Any, seconds: float) -> None:
        """A function of that name has run for so long, and gave `result`."""
        which = _PRODUCTS.get(name)
        if which is None or len(args) <= which or not isinstance(args[which], self.torch.Tensor):
            return
        given = args[which]
        zero = self._zero(given)
        if not _LEAST_ZERO <= zero < 1.0 or _is_masked(given):
            return  # of zeros alone: a first state
        rows = given.numel() // given.shape[-1]
        line = self.lines.here(
            lambda site, frames: ZeroRow(site=site, called_from=frames, rows=rows, zeros=round(zero * rows))
        )
        if line is None:
            return
        line.calls += 1
        line.seconds += seconds * zero
        when_differentiated([result], seconds * zero, line)

    def _zero(self, tensor: Any) -> float:
        """The share of rows that are nothing but zeros."""
        torch: Any = self.torch
        if tensor.dim() < 2 or tensor.numel() < _LEAST_NUMBERS or not tensor.is_floating_point():
            return 0.0
        if tensor.device.type != "cpu" or not may_compute(torch, tensor):
            return 0.0
        with torch.no_grad():
            rows = tensor.detach()
            few = rows[..., :: max(1, rows.shape[-1] // _ASKED)]
            if float((few == 0).all(-1).double().mean()) < _LEAST_ZERO:
                return 0.0
            return float((rows == 0).all(-1).double().mean())


def _is_masked(tensor: Any) -> bool:
    """Whether it has just been multiplied, or looked up: zeros by a mask, or of a word for padding, are no places of a
    buffer.
    """
    node = tensor.grad_fn
    while node is not None and type(node).__name__ in _VIEWS:
        node = next((each for each, _ in node.next_functions if each is not None), None)
    return type(node).__name__ in _MASKS
