"""A mode like the harness's own: each of torch's functions is told of once it has run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class Watching(TorchFunctionMode):  # type: ignore[misc, unused-ignore]
    """Tells `listen` its name, positional and named arguments, and the result; what that computes is not told of."""

    def __init__(self, listen: Callable[[str, Any, Any, Any], object]) -> None:
        super().__init__()
        self._listen = listen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunction():
            self._listen(getattr(func, "__name__", ""), args, kwargs or {}, result)
        return result
