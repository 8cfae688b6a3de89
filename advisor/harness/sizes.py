"""Where the script calls what gives a tensor of a size that only the values tell: ``nonzero``, ``unique`` and the like.

On a GPU each of them waits until the values are there. (``x[mask]`` is one of them, too: :mod:`.indexing` sees it.) The
wrappers are in place in the detail window only: they tell the place; what the waiting costs, the trace of the profile
window says, in which they are not.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .patches import Patch
from .places import user_site
from .sites import CallSites

KIND = "sized"

_NAMES = ("nonzero", "argwhere", "unique", "unique_consecutive", "masked_select", "bincount", "repeat_interleave")


class Sizes:
    """The wrappers; what they see goes to the call sites, under the kind ``sized``."""

    def __init__(self, torch: ModuleType, sites: CallSites) -> None:
        self._torch: Any = torch
        self._sites = sites
        self._nested = threading.local()
        tensor, functional = self._torch.Tensor, self._torch.nn.functional
        self._methods = [Patch(tensor, name, self._seen(name)) for name in _NAMES]
        self._functions = [Patch(torch, name, self._seen(name)) for name in _NAMES]
        self._functions.append(Patch(functional, "one_hot", self._seen("one_hot")))
        self._functions.append(Patch(torch, "where", self._seen("where")))

    def on(self) -> None:
        """Put the wrappers in place; a compiled function that calls one of torch's would be compiled anew for it."""
        for patch in (*self._methods, *(() if _has_compiled() else self._functions)):
            patch.on()

    def off(self) -> None:
        for patch in (*self._functions, *self._methods):
            patch.off()

    def _seen(self, name: str) -> Callable[[Any], Any]:
        nested, compiling, tensors = self._nested, self._torch.compiler.is_compiling, self._torch.Tensor

        def make(original: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                if compiling() or getattr(nested, "on", False):
                    return original(*args, **kwargs)
                tensor = args[0] if args else kwargs.get("input", kwargs.get("condition"))
                if isinstance(tensor, tensors) and _unknown(name, args, kwargs, tensors):
                    self._sites.add(KIND, user_site(), {"operator": name, "device": tensor.device.type})
                nested.on = True  # x.unique() calls torch.unique(x)
                try:
                    return original(*args, **kwargs)
                finally:
                    nested.on = False

            return call

        return make


def _unknown(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: type) -> bool:
    """Whether the size of what this call gives is in the values alone."""
    if name == "one_hot":
        return bool((args[1] if len(args) > 1 else kwargs.get("num_classes", -1)) == -1)
    if name == "where":  # of a condition alone: the places where it holds
        return len(args) + len(kwargs) == 1
    if name == "repeat_interleave":
        repeats = args[1] if len(args) > 1 else kwargs.get("repeats")
        # torch.repeat_interleave(repeats) has one tensor only.
        return (repeats is None or isinstance(repeats, tensors)) and kwargs.get("output_size") is None
    return True


def _has_compiled() -> bool:
    """Whether Dynamo has compiled anything in this process."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    counters = getattr(dynamo, "counters", None)
    return bool(counters and counters.get("frames"))
