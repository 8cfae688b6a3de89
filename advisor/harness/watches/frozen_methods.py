"""Models that nobody trains, called by another name than ``forward``: ``vae.encode(x)``, ``teacher.features(x)``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

from ..classes import called_methods
from ..loading.loaders import tensors_in
from ..patches import Patch
from .gradient_watch import weights_of

# Of what these hand down a script calls little, and their trainers much.
_BASES = ("lightning", "pytorch_lightning", "transformers", "diffusers", "torch")
_MOST_TENSORS = 8  # that a method is given


class FrozenMethods:
    """Tells `begins` and `ends` of calls of those methods of models, while it is on; the outermost ones alone.

    `begins` is given the model and the tensors, and says whether anybody watches; `ends` is given what comes back.
    """

    def __init__(
        self, torch: ModuleType, begins: Callable[[Any, list[Any]], bool], ends: Callable[[Any], None]
    ) -> None:
        self._torch: Any = torch
        self._begins, self._ends = begins, ends
        self._models: set[int] = set()
        self._of_tensors = False  # only calls that are given tensors
        self._patches: list[Patch] = []

    def on(self, models: Iterable[Any], trained: Iterable[Any], *, untrained: bool = False) -> None:
        """Listen to those of `models` that have no parameter among `trained`.

        Where nothing is trained, only if `untrained`: otherwise the forwards within a method may be steps of their own.
        Then to calls that are given a tensor: others, ``model.evaluate(loader)``, may hold many steps.
        """
        self.off()
        held = {id(each) for each in trained}
        if not held and not untrained:
            return
        self._of_tensors = not held
        frozen = [model for model in models if held.isdisjoint(map(id, weights_of(model)))]
        self._models = {id(model) for model in frozen}
        self._patches = [
            Patch(owner, name, self._listening)
            for owner, name in dict.fromkeys(each for model in frozen for each in self._methods(type(model)))
        ]
        for patch in self._patches:
            patch.on()

    def off(self) -> None:
        """Listen to none any more."""
        for patch in self._patches:
            patch.off()
        self._patches, self._models = [], set()

    def _methods(self, cls: type) -> Iterable[tuple[type, str]]:
        """Classes and names of what a script may call of such a model, beside its forward."""
        base = self._torch.nn.Module
        for owner in cls.__mro__[: cls.__mro__.index(base)]:
            if owner is not cls and owner.__module__.partition(".")[0] in _BASES:
                continue
            yield from ((owner, name) for name in called_methods(owner, base))

    def _listening(self, original: Any) -> Any:
        compiling = self._torch.compiler.is_compiling

        def call(*args: Any, **kwargs: Any) -> Any:
            if compiling() or not args or id(args[0]) not in self._models:
                return original(*args, **kwargs)
            if not self._watched(args[0], (args[1:], kwargs)):
                return original(*args, **kwargs)
            output = None
            try:
                output = original(*args, **kwargs)
            finally:
                self._ends(output)
            return output

        return call

    def _watched(self, model: Any, given: Any) -> bool:
        """Whether somebody watches this call, whose arguments are `given`."""
        with contextlib.suppress(Exception):
            if self._of_tensors and not any(map(self._has_tensor, (*given[0], *given[1].values()))):
                return False
            return self._begins(model, list(tensors_in(given, self._torch, limit=_MOST_TENSORS)))
        return False

    def _has_tensor(self, value: Any) -> bool:
        """Whether an argument is a tensor, or holds one itself; a loader and a data set do not."""
        if isinstance(value, Mapping):
            value = list(value.values())
        few = value[:1] if isinstance(value, (list, tuple)) else [value]
        return any(isinstance(each, self._torch.Tensor) for each in few)
