"""Whether a forward is one more pass over what the one before it was given: Monte Carlo dropout.

Gal and Ghahramani 2016, "Dropout as a Bayesian Approximation": the predictions of several passes with dropout are
averaged. One batch takes all of them, so where forwards are the steps, its step has ended with the last. A latency
benchmark calls a model with the same tensor, too, and each of its calls is a step: so other tensors have to come in
between, a few times, and no pass is one that is trained by.
"""

from __future__ import annotations

import weakref
from types import ModuleType
from typing import Any

from .looking import may_compute, times_written

_ALTERNATED = 2  # batches, each with several passes
_MOST = 256  # passes over one batch: more are a benchmark's
_NUMBERS = 16


class Passes:
    """Told of each outermost forward, in their order."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch: Any = torch
        self._module: weakref.ref[Any] | None = None
        self._given: list[tuple[weakref.ref[Any], Any]] = []  # tensors, and how often each had been written to
        self._passes = self._batches = 0  # over the same tensors so far; that had several
        self._dropouts: list[weakref.ref[Any]] | None = None  # of that module; None: not looked for

    def another(self, module: Any, tensors: list[Any]) -> bool:
        """`module` is called with these `tensors`: whether it was the last time, too, and draws other numbers now."""
        again = self._module is not None and self._module() is module
        if not again:
            self._module, self._dropouts, self._batches = weakref.ref(module), None, 0
        same = again and bool(tensors) and len(tensors) == len(self._given)
        same = same and all(
            known() is each and self._alike(written, self._written(each))
            for each, (known, written) in zip(tensors, self._given, strict=True)
        )
        if not same:
            self._given = [(weakref.ref(each), self._written(each)) for each in tensors]
            self._batches += self._passes > 1
            self._passes = 0
        self._passes += 1
        alternates = self._batches >= _ALTERNATED and self._passes <= _MOST
        return same and alternates and not self._torch.is_grad_enabled() and self._draws(module)

    def _written(self, tensor: Any) -> Any:
        """How often a tensor has been written to; of inference mode's, which nobody counts, a few numbers of it."""
        written = times_written(tensor)
        if written >= 0:
            return written
        if tensor.device.type != "cpu" or not may_compute(self._torch, tensor) or not tensor.numel():
            return object()  # it may be another one each time
        return tensor.detach().reshape(-1)[:: max(1, tensor.numel() // _NUMBERS)].clone()

    def _alike(self, before: Any, now: Any) -> bool:
        tensor = self._torch.Tensor
        if isinstance(before, tensor) and isinstance(now, tensor):
            return bool(before.shape == now.shape and self._torch.equal(before, now))
        return type(before) is int and before == now

    def _draws(self, module: Any) -> bool:
        if self._dropouts is None:
            found = module.modules() if isinstance(module, self._torch.nn.Module) else ()
            self._dropouts = [weakref.ref(each) for each in found if "dropout" in type(each).__name__.lower()]
        alive = (each() for each in self._dropouts)
        return any(each is not None and each.training and getattr(each, "p", 1.0) for each in alive)
