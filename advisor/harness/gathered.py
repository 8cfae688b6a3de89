"""What a step's forwards compute of rows that were looked up: the same each time that one of them was taken.

``phi(h[source])`` computes a node's message once per edge, ``phi(h)[source]`` once per node. What treats each
row alike may as well come before the lookup: as long as nothing that differs from row to row has gone in, all copies of
a row give the same.
"""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass, field
from itertools import islice
from types import ModuleType
from typing import Any

from .layout import Gathered, Site
from .places import FRAMES, site_of, user_frames
from .repeats import draws, when_differentiated

_LEAST_COPIES = 1.5  # of a row, on average
# Of each row alone, and the same for equal ones. Dropout and batch norm are not.
_OF_ROWS = frozenset(
    (
        *("relu", "silu", "gelu", "elu", "selu", "celu", "mish", "leaky_relu", "tanh", "sigmoid", "softplus"),
        *("softsign", "hardswish", "exp", "square", "layer_norm", "rms_norm", "softmax", "log_softmax"),
    )
)
_LINEAR = "linear"


@dataclass
class _Rows:
    """A tensor whose rows were looked up, or are functions of such rows."""

    tensor: weakref.ref[Any]
    version: int
    share: float  # different rows over all
    columns: float  # of its last dimension, the share that was looked up
    site: Site


@dataclass
class Gathers:
    """Told of each function of torch's that a watched forward calls; one for each training."""

    torch: ModuleType
    lines: dict[int, Gathered] = field(default_factory=dict)
    _sites: list[tuple[Site, ...]] = field(default_factory=list)  # kept, that their identities are theirs alone
    _rows: dict[int, _Rows] = field(default_factory=dict)

    def clear(self) -> None:
        """Forget the tensors of a step."""
        self._rows.clear()

    def called(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, seconds: float) -> None:
        """A function of that name has run for so long, and gave `result`."""
        if not isinstance(result, self.torch.Tensor) or not args:
            return
        looked_up = _looked_up(self.torch, name, args, kwargs, result)
        if looked_up is not None:
            if looked_up * _LEAST_COPIES <= 1.0:
                self._keep(result, looked_up, 1.0, _here())
        elif name in ("cat", "concat", "concatenate"):
            self._joined(args, kwargs, result)
        elif name == _LINEAR or name in _OF_ROWS or ("dropout" in name and not draws(name, kwargs)):
            rows = self._known(args[0], written=result is args[0])
            if rows is None:
                return
            whole = rows.columns >= 1.0
            if whole or name == _LINEAR:
                self._count(rows, result, seconds, name)
            if whole:
                self._keep(result, rows.share, 1.0, rows.site)

    def _joined(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Columns side by side, some of which were looked up."""
        parts = args[0]
        dim = kwargs.get("dim", kwargs.get("axis", args[1] if len(args) > 1 else 0))
        if not isinstance(parts, (list, tuple)) or dim not in (-1, result.dim() - 1) or result.dim() < 2:
            return
        known = [(rows, each.shape[-1]) for each in parts if (rows := self._known(each)) is not None]
        width = sum(rows.columns * columns for rows, columns in known)
        if known and width:
            share = sum(rows.share * rows.columns * columns for rows, columns in known) / width
            self._keep(result, share, width / result.shape[-1], known[0][0].site)

    def _known(self, tensor: Any, written: bool = False) -> _Rows | None:
        """What is known of it, if nobody has written to it since, but for the call itself where that may have."""
        rows = self._rows.get(id(tensor))
        if rows is None or rows.tensor() is not tensor or tensor is None:
            return None
        return rows if tensor._version - rows.version in ((0, 1) if written else (0,)) else None

    def _keep(self, tensor: Any, share: float, columns: float, site: Site | None) -> None:
        if site is not None and tensor.dim() >= 2 and not tensor.is_inference():
            self._rows[id(tensor)] = _Rows(weakref.ref(tensor), tensor._version, share, columns, site)

    def _count(self, rows: _Rows, result: Any, seconds: float, name: str) -> None:
        frames = tuple(site_of(each) for each in islice(user_frames(), FRAMES))
        if not frames:
            return
        line = self.lines.get(id(frames[0]))
        if line is None:
            self._sites.append(frames)
            line = self.lines[id(frames[0])] = Gathered(
                site=frames[0], called_from=list(frames), looked_up_at=rows.site, joined=rows.columns < 1.0
            )
        saved = seconds * rows.columns * (1.0 - rows.share)
        line.calls += 1
        line.linear += name == _LINEAR
        line.rows += result.numel() // max(1, result.shape[-1])
        line.distinct += rows.share * (result.numel() // max(1, result.shape[-1]))
        line.seconds += saved
        when_differentiated([result], saved, line)


def _here() -> Site | None:
    frame = next(iter(user_frames()), None)
    return site_of(frame) if frame is not None else None


def _looked_up(torch: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> float | None:
    """Rows that there are over rows of the result, of a function that looks them up; None of another one."""
    rows, second = args[0], args[1] if len(args) > 1 else None
    taken = result.numel() // max(1, result.shape[-1]) if result.dim() else 0
    if name == "embedding":
        rows, dimensions = kwargs.get("weight", second), 1
    elif name == "index_select" and kwargs.get("dim", second) == 0:
        dimensions = 1
    elif name == "__getitem__":
        indices = second if isinstance(second, tuple) else (second,)
        dimensions = len(indices)
        if not all(isinstance(each, torch.Tensor) and each.dtype in (torch.int64, torch.int32) for each in indices):
            return None
    else:
        return None
    if not isinstance(rows, torch.Tensor) or rows.dim() <= dimensions or not taken:
        return None
    return float(math.prod(rows.shape[:-1])) / taken
