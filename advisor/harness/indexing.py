"""Where the script takes a tensor apart in Python: ``x[i]`` with a number, a mask or some rows, and ``for row in x``.

Of note are loops that do so for each sample of a batch, and masks, whose result has a size that only the values tell.
The wrappers are in place in the detail window only: they tell the place; how long the loop takes, the profile window
says, in which they are not.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from .patches import Patch
from .places import user_site
from .sites import CallSites
from .sizes import KIND as SIZED

KIND = "Tensor.index"


def _is_number(value: Any) -> bool:
    return bool(value.numel() == 1 and value.device.type == "cpu")


class Indexing:
    """The wrappers; what they see goes to the call sites, under the kind ``Tensor.index``."""

    def __init__(self, torch: ModuleType, sites: CallSites) -> None:
        self._torch: Any = torch
        self._sites = sites
        self._patches = [
            Patch(self._torch.Tensor, "__getitem__", self._taken),
            Patch(self._torch.Tensor, "__setitem__", self._taken),
            Patch(self._torch.Tensor, "__iter__", self._iterated),
        ]

    def on(self) -> None:
        for patch in self._patches:
            patch.on()

    def off(self) -> None:
        for patch in self._patches:
            patch.off()

    def _taken(self, original: Any) -> Any:
        compiling, tensors, mask = self._torch.compiler.is_compiling, self._torch.Tensor, self._torch.bool

        def take(tensor: Any, key: Any, *value: Any) -> Any:
            if not compiling():
                first = key[0] if type(key) is tuple and key else key
                tensor_of_rows = isinstance(first, tensors) and (first.dim() < 2 or first.dtype == mask)
                if type(first) in (int, list) or tensor_of_rows:
                    self._sites.add(KIND, user_site(), {"iterates": False})
                keys = key if type(key) is tuple else (key,)
                masked = any(isinstance(each, tensors) and each.dtype == mask and each.dim() for each in keys)
                # A number, on the CPU, is filled in where the mask is set, without counting how often.
                if masked and (not value or (isinstance(value[0], tensors) and not _is_number(value[0]))):
                    self._sites.add(SIZED, user_site(), {"operator": "mask", "device": tensor.device.type})
            return original(tensor, key, *value)

        return take

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
