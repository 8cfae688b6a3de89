"""What a step's forwards compute of rows that were looked up: the same each time that one of them was taken.

``phi(h[source])`` computes a node's message once per edge, ``phi(h)[source]`` once per node. What treats each
row alike may as well come before the lookup: as long as nothing that differs from row to row has gone in, all copies of
a row give the same. ``h.unsqueeze(1).expand(n, k, c)`` has each row k times, too, and so has a picture's or a cloud's
feature ``x.view(b, c, 1).repeat(1, 1, n)``: there the columns are channels, and a convolution of width 1 is the layer.
"""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

from ..layout import Gathered, Site
from ..places import site_of, user_frame
from .by_line import ByLine, when_differentiated
from .repeats import draws

_LEAST_COPIES = 1.5  # of a row, on average
_LEAST_DIMENSIONS = 3  # of a tensor whose second one is columns: samples, channels, places
# Of each row alone, and the same for equal ones. Dropout and batch norm are not.
_OF_ROWS = frozenset(
    (
        *("relu", "silu", "gelu", "elu", "selu", "celu", "mish", "leaky_relu", "tanh", "sigmoid", "softplus"),
        *("softsign", "hardswish", "exp", "square"),
    )
)
_NORMS = ("layer_norm", "rms_norm")  # of rows alone where they are of the last dimension
_LINEAR = "linear"
_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")
# The same rows in another arrangement, as long as there are as many columns.
_VIEWS = frozenset(("flatten", "unflatten", "view", "reshape", "contiguous", "unsqueeze", "squeeze"))
# What has each row several times, as long as there are as many columns as before.
_REPEATS = frozenset(("expand", "expand_as", "repeat", "tile", "repeat_interleave", "broadcast_to"))


@dataclass
class _Moved:
    """What moving rows took so far, in seconds: looking them up, and joining their columns; counted once."""

    looking_up_s: float = 0.0
    joining_s: float = 0.0
    line: Gathered | None = None  # whose layer was given them last


@dataclass(frozen=True)
class _Rows:
    """Rows that were looked up, or functions of such rows."""

    index: tuple[Any, ...]  # what they were looked up by; kept, that its memory is no other's
    share: float  # different rows over all
    columns: float  # of its last dimension, the share that was looked up
    joined: bool  # of rows of other origin, or looked up by something else: as a whole each is another
    site: Site
    width: int  # how many columns were looked up, in all; none of those that were only repeated
    lookups: int  # in how many lookups, of …
    parts: int  # … so many, repeated ones too
    moved: tuple[_Moved, ...]
    channels: bool = False  # the columns are the second dimension, of three and more
    # Columns that the layer before gave, of a chain of several; none once a layer behind it has been counted.
    given: list[int] = field(default_factory=list)


@dataclass
class Gathers:
    """Told of each function of torch's that a watched forward calls; one for each training."""

    torch: ModuleType
    lines: ByLine[Gathered] = field(default_factory=ByLine)
    counted: int = 0  # calls, in all
    # Identity of a tensor → the tensor, how often it had been written to, and its rows.
    _rows: dict[int, tuple[weakref.ref[Any], int, _Rows]] = field(default_factory=dict)

    def clear(self) -> None:
        """Forget the tensors of a step."""
        self._rows.clear()

    def called(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, seconds: float) -> None:
        """A function of that name has run for so long, and gave `result`."""
        if not isinstance(result, self.torch.Tensor) or not args:
            return
        looked_up = _looked_up(self.torch, name, args, kwargs, result)
        if looked_up is not None:
            share, index = looked_up
            if share * _LEAST_COPIES <= 1.0 and (site := _here()) is not None:
                width = 0 if name in _REPEATS else result.shape[-1]
                moved = (_Moved(looking_up_s=seconds if width else 0.0),)
                channels = not width and args[0].shape[-1] != result.shape[-1]
                self._keep(result, _Rows(index, share, 1.0, False, site, width, int(width > 0), 1, moved, channels))
        elif name in ("cat", "concat", "concatenate"):
            self._joined(args, kwargs, result, seconds)
        elif name in _VIEWS:
            rows = self._known(args[0])
            same = rows is not None and _columns(args[0], rows.channels) == _columns(result, rows.channels)
            if rows is not None and same and (not rows.channels or args[0].shape[0] == result.shape[0]):
                self._keep(result, rows)
        elif _of_rows(name, args, kwargs):
            rows = self._known(args[0], written=result is args[0] and name in _OF_ROWS)
            layer = name == _LINEAR or name in _CONVOLUTIONS
            if rows is None and layer:
                self._count_other()
            if rows is None or (rows.channels and name in _NORMS):
                return
            if layer and rows.channels != (name in _CONVOLUTIONS):
                return
            if not rows.joined or layer:
                self._count(rows, _columns(args[0], rows.channels), result, seconds, layer)
            if not rows.joined:
                self._keep(result, replace(rows, given=[_columns(result, rows.channels)]) if layer else rows)

    def _joined(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, seconds: float) -> None:
        """Columns side by side, some of which were looked up."""
        parts = args[0]
        dim = kwargs.get("dim", kwargs.get("axis", args[1] if len(args) > 1 else 0))
        if not isinstance(parts, (list, tuple)) or result.dim() < 2:
            return
        places = {False: (-1, result.dim() - 1), True: (1, 1 - result.dim())}
        known = [
            (rows, _columns(each, rows.channels))
            for each in parts
            if (rows := self._known(each)) is not None and dim in places[rows.channels]
        ]
        width = sum(rows.columns * columns for rows, columns in known)
        if len({rows.channels for rows, _ in known}) > 1:
            return
        if known and width:
            share = sum(rows.share * rows.columns * columns for rows, columns in known) / width
            first = known[0][0]
            same = len(known) == len(parts) and all(_same(rows.index, first.index) for rows, _ in known)
            self._keep(
                result,
                replace(
                    first,
                    share=share,
                    columns=width / _columns(result, first.channels),
                    joined=not same or any(rows.joined for rows, _ in known),
                    width=sum(rows.width for rows, _ in known),
                    lookups=sum(rows.lookups for rows, _ in known),
                    parts=sum(rows.parts for rows, _ in known),
                    moved=(_Moved(joining_s=seconds), *(each for rows, _ in known for each in rows.moved)),
                ),
            )

    def _known(self, tensor: Any, written: bool = False) -> _Rows | None:
        """What is known of it, if nobody has written to it since, but for the call itself where that may have."""
        known = self._rows.get(id(tensor))
        if known is None:
            return None
        (alive, version, rows), now = known, getattr(tensor, "_version", -1)
        return rows if alive() is tensor and version <= now <= version + written else None

    def _keep(self, tensor: Any, rows: _Rows) -> None:
        if tensor.dim() >= 2 and not tensor.is_inference():
            self._rows[id(tensor)] = weakref.ref(tensor), tensor._version, rows

    def _count_other(self) -> None:
        """A layer has been given rows of which nothing is known: of note on a line that looked up ones are given."""
        site = _here() if self.lines.lines else None
        line = self.lines.lines.get(id(site))
        if line is not None:
            line.others += 1

    def _count(self, rows: _Rows, columns: int, result: Any, seconds: float, layer: bool) -> None:
        given = _columns(result, rows.channels)
        taken = result.numel() // max(1, given)
        line = self.lines.here(
            lambda site, frames: Gathered(
                site=site,
                called_from=frames,
                looked_up_at=rows.site,
                joined=rows.joined,
                rows=taken,
                distinct=round(rows.share * taken),
            )
        )
        if line is None:
            return
        saved = seconds * rows.columns * (1.0 - rows.share)
        self.counted += 1
        line.calls += 1
        line.linear += layer
        line.seconds += saved
        if layer:
            line.channels, line.lookups, line.parts = rows.channels, rows.lookups, rows.parts
            again = rows.moved[0].line is line  # a layer behind another, or one more of the same rows
            if not again:
                line.columns += columns
                line.looked_up += rows.width
            line.given += given
            if again and rows.given:  # what a chain of layers gives is what its last one does
                line.given -= rows.given.pop()
            rows.moved[0].line = line
        for each in rows.moved:
            line.looking_up_s += each.looking_up_s
            line.joining_s += each.joining_s
            each.looking_up_s = each.joining_s = 0.0
        when_differentiated([result], saved, line)


def _here() -> Site | None:
    frame = user_frame()
    return site_of(frame) if frame is not None else None


def _of_rows(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a function treats each row alone, and equal ones alike."""
    if name in _NORMS:
        shape = kwargs.get("normalized_shape", args[1] if len(args) > 1 else ())
        return isinstance(shape, (list, tuple)) and len(shape) == 1
    if name in _CONVOLUTIONS:
        weight = kwargs.get("weight", args[1] if len(args) > 1 else None)
        return weight is not None and math.prod(weight.shape[2:]) == 1 and _is_plain(args, kwargs)
    return name == _LINEAR or name in _OF_ROWS or (name == "dropout" and not draws(name, kwargs))


def _is_plain(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a convolution of width 1 takes each place alone: no stride, nothing around, no groups."""
    given = dict(zip(("stride", "padding", "dilation", "groups"), args[3:], strict=False)) | kwargs
    wanted = {"stride": 1, "padding": 0, "groups": 1}
    return all(
        each in (value, "valid", "same") or (isinstance(each, tuple) and set(each) <= {value})
        for name, value in wanted.items()
        if (each := given.get(name, value)) is not None
    )


def _columns(tensor: Any, channels: bool) -> int:
    """How many columns the rows of a tensor have; 0 for none."""
    if channels:
        return int(tensor.shape[1]) if tensor.dim() >= _LEAST_DIMENSIONS else 0
    return int(tensor.shape[-1]) if tensor.dim() else 0


def _same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Whether two lookups are by the same rows: both hold their tensors, so that memory tells them apart."""

    def where(tensor: Any) -> Any:
        if not hasattr(tensor, "data_ptr"):
            return tensor
        return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor._version

    return list(map(where, one)) == list(map(where, other))


def _looked_up(
    torch: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> tuple[float, tuple[Any, ...]] | None:
    """Rows that there are over rows of the result, and by what, of a function that looks them up; None of another."""
    rows, second = args[0], args[1] if len(args) > 1 else None
    taken = result.numel() // max(1, result.shape[-1]) if result.dim() else 0
    if name == "embedding":  # of torch.nn.functional (indices, weight), of torch the other way round
        given = (rows, kwargs.get("weight", second))
        if not all(isinstance(each, torch.Tensor) for each in given):
            return None
        (rows, index) = given if given[0].is_floating_point() else given[::-1]
        indices: tuple[Any, ...] = (index,)
    elif name == "index_select":
        dim = kwargs.get("dim", second)
        if not isinstance(dim, int) or dim not in (0, -rows.dim()):
            return None
        indices = (kwargs.get("index", args[2] if len(args) > 2 else None),)
    elif name == "__getitem__":
        indices = second if isinstance(second, tuple) else (second,)
    elif name in _REPEATS:
        there = isinstance(rows, torch.Tensor) and rows.dim() >= 2 and rows.numel() > 0 and taken
        if not there:
            return None
        channels = rows.dim() == result.dim() >= _LEAST_DIMENSIONS and rows.shape[1] == result.shape[1]
        if rows.shape[-1] != result.shape[-1] and not channels:
            return None
        # Of two that are repeated alike the same rows come together, whatever they are.
        return rows.numel() / result.numel(), (name, rows.shape, result.shape)
    else:
        return None
    if not all(isinstance(each, torch.Tensor) and each.dtype in (torch.int64, torch.int32) for each in indices):
        return None
    if not isinstance(rows, torch.Tensor) or rows.dim() <= len(indices) or not taken:
        return None
    return float(math.prod(rows.shape[:-1])) / taken, indices
