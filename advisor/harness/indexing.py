"""Where the script takes a tensor apart in Python: ``x[i]`` with a number, a mask or some rows, and ``for row in x``.

Of note are loops that do so for each sample of a batch, and masks, whose result has a size that only the values tell.
It is watched in the detail window only: that tells the place; how long the loop takes, the profile window says.

``x[i]`` is seen by a mode, for a class with a ``__getitem__`` of Python's is a sequence to whoever asks for one, and
stays one when it is taken away again: ``torch.tensor([loss])`` then asks a tensor without dimensions for its length.
"""

from __future__ import annotations

import sys
import threading
import weakref
from types import ModuleType
from typing import Any

from .fast_paths import FastPaths
from .ignored_labels import KIND as LOSS
from .ignored_labels import IgnoredLabels
from .looking import function_modes, is_replaced, may_compute
from .patches import Patch
from .places import is_users, user_site
from .sites import CallSites
from .sizes import KIND as SIZED
from .timing import compiled_frames

KIND = "Tensor.index"
PART = "Tensor.part"
_TAKES = ("__getitem__", "__setitem__")
# Indices, before a forward and in it: a loop that takes more is known by these, and stacks record all that is called.
_MOST = 5000
_PLAIN = (int, slice, type(None), type(...))
_BY_PART = {"iterates": False}


def _is_number(value: Any) -> bool:
    return bool(value.numel() == 1 and value.device.type == "cpu")


class Indexing:
    """What it sees goes to the call sites, under the kind ``Tensor.index``."""

    def __init__(self, torch: ModuleType, sites: CallSites) -> None:
        self._torch: Any = torch
        self._sites = sites
        self.labels = IgnoredLabels(sites)
        self._iterates = Patch(self._torch.Tensor, "__iter__", self._iterated)
        self._mode: Any = None
        self._fast_paths = FastPaths(torch)
        self._on = self._given_up = False
        self.seen = 0  # indices, since it was last begun to count
        self._written: dict[int, weakref.ref[Any]] = {}  # what a line has written last
        self._thread = 0  # whose steps these are, and the mode

    def on(self) -> None:
        """Watch from here on: a boundary between two steps."""
        self.labels.begin()
        self.seen = 0
        self._iterates.on()
        self._on = True
        self._thread = threading.get_ident()
        self._begin()

    def off(self) -> None:
        self._iterates.off()
        self._on = False
        self._end()

    def give_up(self) -> None:
        """Never again: a mode is one of the things that what is compiled is compiled anew for."""
        self._given_up = True
        self._end()

    def forward_begins(self) -> None:
        """A model is called."""
        self.seen = 0

    def _begin(self) -> None:
        if self._mode is not None or self._given_up or compiled_frames() or not self._in_its_thread():
            return
        if is_replaced(self._torch):
            return
        # A mode of the script's own may be left before ours is, and what is left then is the last that was entered;
        # but for a device, which knows its place.
        if all(type(each).__name__ == "DeviceContext" for each in function_modes(self._torch)):
            mode = _taking(self)
            mode.__enter__()
            self._mode = mode
            self._fast_paths.on()

    def _end(self) -> None:
        modes = function_modes(self._torch) if self._mode is not None and self._in_its_thread() else ()
        if modes and modes[-1] is self._mode:
            self._mode.__exit__(None, None, None)
            self._mode = None
            self._fast_paths.off()

    def _in_its_thread(self) -> bool:
        return threading.get_ident() == self._thread

    def taken(self, tensor: Any, key: Any, *value: Any) -> None:
        """``tensor[key]``, or ``tensor[key] = value``."""
        self.seen += 1
        if not self._on:
            return
        keys = key if type(key) is tuple else (key,)
        if keys and (type(keys[0]) in (int, list) or self._is_of_rows(keys[0])):
            self._sites.add(KIND, user_site(), _BY_PART)
        masked = False
        for each in keys:
            masked = masked or (type(each) not in _PLAIN and self._is_mask(each))
        # A number, on the CPU, is filled in where the mask is set, without counting how often.
        if masked and (not value or (isinstance(value[0], self._torch.Tensor) and not _is_number(value[0]))):
            self._sites.add(SIZED, user_site(), {"operator": "mask", "device": tensor.device.type})
        if is_users(sys._getframe(2)):
            self._part(tensor, keys, value)

    def unbound(self, tensor: Any, dim: int = 0) -> None:
        """``tensor.unbind(dim)`` in the user's own code: iterating over a tensor does so, too, and is known already."""
        if self._on and is_users(sys._getframe(2)):
            self._sites.add(KIND, user_site(), {"iterates": True, "rows": int(tensor.shape[dim]), "unbinds": True})

    def _part(self, tensor: Any, keys: tuple[Any, ...], value: tuple[Any, ...]) -> None:
        """``x[:, i]`` or ``x[:, i] = y`` that a graph is recorded of: its backward makes a tensor as large as x."""
        torch, given = self._torch, value[0] if value else None
        if not isinstance(given, torch.Tensor):
            given = None
        if not (tensor.requires_grad or (given is not None and given.requires_grad)) or not torch.is_grad_enabled():
            return
        along = _taken_along(keys, tensor.dim()) if may_compute(torch, tensor) else None
        entry = self._sites.add(PART, user_site()) if along is not None else None
        if along is None or entry is None:
            return
        known, shape = entry.details, list(tensor.shape)
        size = int(shape.pop(along))
        fits = not value or (given is not None and list(given.shape) == shape and not self._is_same(entry, given))
        other = (known.get("dim", along), known.get("keys", len(keys))) != (along, len(keys))
        known.update(
            dim=along,
            keys=len(keys),
            mixed=known.get("mixed", False) or other,
            size=known.get("size", 0) + size,
            numbers=known.get("numbers", 0) + sum(type(each) is int for each in keys),
            written=bool(value),
            fits=known.get("fits", True) and fits,
        )

    def _is_same(self, entry: Any, given: Any) -> bool:
        """Whether a line has written the same tensor before, or a part of it: a buffer that is filled anew."""
        whole = given._base if given._base is not None else given
        before = self._written.get(id(entry))
        self._written[id(entry)] = weakref.ref(whole)
        return before is not None and before() is whole

    def _is_mask(self, key: Any) -> bool:
        return isinstance(key, self._torch.Tensor) and key.dtype == self._torch.bool and key.dim() > 0

    def _is_of_rows(self, key: Any) -> bool:
        is_tensor = type(key) not in _PLAIN and isinstance(key, self._torch.Tensor)
        return is_tensor and (key.dim() < 2 or key.dtype == self._torch.bool)

    def _iterated(self, original: Any) -> Any:
        compiling = self._torch.compiler.is_compiling

        def iterate(tensor: Any) -> Any:
            if not compiling():
                rows = (
                    int(tensor.shape[0]) if tensor.dim() and not tensor.is_nested else 0
                )  # without dimensions torch says what is wrong
                self._sites.add(KIND, user_site(), {"iterates": True, "rows": rows})
            return original(tensor)

        return iterate


def _taken_along(keys: tuple[Any, ...], dimensions: int) -> int | None:
    """Which dimension the first number among `keys` takes one of, where all in front of it are whole.

    Of ``x[:, i]`` and ``x[:, i, :5]`` it is 1, of ``x[..., i]`` the last; None for ``x[mask, i]``.
    """
    along = 0
    for key in keys:
        if type(key) is int:
            return along
        if key is Ellipsis:
            along += dimensions - sum(each is not None and each is not Ellipsis for each in keys)
        elif type(key) is slice and key == slice(None):
            along += 1
        else:
            return None
    return None


def _taking(indexing: Indexing) -> Any:
    """A mode that sees where tensors are indexed, and changes nothing."""
    from torch.overrides import TorchFunctionMode

    class Taking(TorchFunctionMode):  # type: ignore[misc, unused-ignore]
        takes_encoders = "whole"

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            try:
                name = func.__name__
                if name in _TAKES and indexing.seen < _MOST:
                    indexing.taken(*args)
                elif name == "unbind":
                    indexing.unbound(*args, **(kwargs or {}))
                elif name == LOSS:
                    indexing.labels.saw(sys._getframe(1), args, kwargs or {})
            except Exception:
                pass  # what cannot be looked at must not cost the script its run
            return func(*args, **(kwargs or {}))

    return Taking()
