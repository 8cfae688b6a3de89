"""Whether a forward is one more pass over what the one before it was given: Monte Carlo dropout.

Gal and Ghahramani 2016, "Dropout as a Bayesian Approximation": the predictions of several passes with dropout are
averaged. One batch takes all of them, so where forwards are the steps, its step has ended with the last. A latency
benchmark calls a model with the same tensor, too, and each of its calls is a step: nothing is drawn in them.
"""

from __future__ import annotations

import weakref
from types import ModuleType
from typing import Any

from .looking import times_written


class Passes:
    """Told of each outermost forward, in their order."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch: Any = torch
        self._module: weakref.ref[Any] | None = None
        self._given: list[tuple[weakref.ref[Any], int]] = []  # tensors, and how often each had been written to
        self._dropouts: list[weakref.ref[Any]] | None = None  # of that module; None: not looked for

    def another(self, module: Any, tensors: list[Any]) -> bool:
        """`module` is called with these `tensors`: whether it was the last time, too, and draws other numbers now."""
        again = self._module is not None and self._module() is module
        if not again:
            self._module, self._dropouts = weakref.ref(module), None
        same = again and bool(tensors) and len(tensors) == len(self._given)
        same = same and all(
            known() is each and written == times_written(each)
            for each, (known, written) in zip(tensors, self._given, strict=True)
        )
        if not same:
            self._given = [(weakref.ref(each), times_written(each)) for each in tensors]
        return same and self._draws(module)

    def _draws(self, module: Any) -> bool:
        if self._dropouts is None:
            found = module.modules() if isinstance(module, self._torch.nn.Module) else ()
            self._dropouts = [weakref.ref(each) for each in found if "dropout" in type(each).__name__.lower()]
        alive = (each() for each in self._dropouts)
        return any(each is not None and each.training and getattr(each, "p", 1.0) for each in alive)
