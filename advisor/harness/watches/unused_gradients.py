"""Gradients that each step computes and no optimizer takes: of weights that were meant to stay as they are.

Or that one takes at a rate of zero, and leaves where they are.
``Adam(model.head.parameters())`` trains the head alone, and the backward goes through the rest of the model all the
same, unless its weights are told that they need no gradients. So it does where what comes into a frozen model was told
that it needs some.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ..layout import Site, UnusedGradients
from .autograd_graph import leaves_beside
from .gradient_watch import MOST_PARTS, GradientWatch, size_of, weights_of, whole_parts

_MOST_WALKS = 8  # through a graph, before the first step of an optimizer ends


@dataclass
class _Seen:
    """A parameter as it was when a step ended, and its gradient."""

    parameter: weakref.ref[Any]
    gradient: weakref.ref[Any]
    version: int  # of the gradient
    size: Any  # the parameter's 2-norm, on its device

    def computed_anew(self) -> bool:
        gradient: Any = getattr(self.parameter(), "grad", None)
        if gradient is None:
            return False
        version = gradient._version
        return self.gradient() is not gradient or version != self.version

    def unchanged(self) -> bool:
        """Whether nobody trains it, with an optimizer of their own, say."""
        parameter = self.parameter()
        return parameter is not None and bool(size_of(parameter) == self.size)


class Unused(GradientWatch):
    """Looks at the models where steps end, until it knows.

    At the end of one step it is asked which parameters have a gradient and no optimizer; at the next, of which it was
    computed anew. Are there any, hooks tell in the step that follows in which order the gradients are done: what the
    backward does after the last that an optimizer takes is for nothing. A script without such parameters gets no hooks.
    """

    def __init__(
        self,
        roots: Callable[[], Iterable[Any]],
        held: Callable[[], Iterable[Any]],
        made: Callable[[Any], Site | None],
        moved: Callable[[], Iterable[Any]] | None = None,
    ) -> None:
        """`roots` are the models, `held` the parameters that optimizers have, `made` says where a module was made;
        `moved` are those of `held` whose rate is not zero.
        """
        self._held, self._moved = held, moved or held
        super().__init__(roots, made)

    def _clear(self) -> None:
        self._seen: dict[int, _Seen] = {}
        self._order: list[int] = []  # the parameters, by identity, as their gradients are done
        self._inputs: set[int] = set()  # of those, tensors that are no weights
        self._goes_on = False  # there are such
        self._walks = _MOST_WALKS
        self._resting: list[weakref.ref[Any]] = []  # of those, what an optimizer has at a rate of zero
        self.found: list[UnusedGradients] = []
        self.gradients = self.needed = self.inputs = 0

    def backward_begins(self, loss: Any) -> None:
        """A backward of `loss` begins: it may go on to tensors that are no weights."""
        looks = self._ask == self._first and self._walks > 0 and not self._goes_on
        if not looks and self._ask != self._third:
            return
        self._walks -= 1
        try:
            known = {*map(id, self._held()), *map(id, self._parameters(frozen=True)), *self._inputs}
            others = leaves_beside(loss, known)
            self._goes_on |= bool(others)
            for each in others if self._ask == self._third else ():
                self._inputs.add(id(each))
                self._hook(each, self._done)
        except Exception:  # what fails here does not fail in the script
            self.stop()

    def _trained(self) -> list[Any]:
        """What optimizers move, or, where all rates are zero for a while, hold."""
        return list(self._moved()) or list(self._held())

    def _first(self) -> None:
        held = set(map(id, self._trained()))
        idle = [each for each in self._parameters() if each.grad is not None and id(each) not in held]
        self._seen = {
            id(each): _Seen(weakref.ref(each), weakref.ref(each.grad), each.grad._version, size_of(each))
            for each in idle
        }
        self._ask = self._second if held and (idle or self._goes_on) else self.stop

    def _second(self) -> None:
        self._seen = {key: seen for key, seen in self._seen.items() if seen.computed_anew()}
        if not self._seen and not self._goes_on:
            self.stop()
            return
        self._ask = self._third
        asked = {*self._seen, *map(id, self._trained())}
        for each in self._parameters():
            if id(each) in asked:
                self._hook(each, self._done)

    def _third(self) -> None:
        self.stop()
        idle = {key for key, seen in self._seen.items() if seen.unchanged()}
        passes = list(_passes(self._order))
        if len(idle) < len(self._seen) or not passes:
            return
        idle |= self._inputs
        # A backward of nothing but these would fail once they need no gradients.
        if not idle or any(idle.issuperset(each) for each in passes):
            return
        if len({(len(each), _last_of_others(each, idle)) for each in passes}) > 1:
            return
        moved, held = set(map(id, self._trained())), set(map(id, self._held()))
        if not moved.isdisjoint(idle):
            return  # the rate was zero for a few steps
        self._resting = [seen.parameter for key, seen in self._seen.items() if key in held]
        self.inputs = len(self._inputs.intersection(passes[0]))
        self.gradients, self.needed = len(passes[0]), _last_of_others(passes[0], idle)
        for root in self._roots():
            if tensors := [each for each in weights_of(root) if id(each) in idle]:
                inner = getattr(root, "_orig_mod", root)
                trained = list(islice(whole_parts(inner, moved), MOST_PARTS))
                weights = (each for part in trained for each in weights_of(inner.get_submodule(part)))
                self.found.append(
                    UnusedGradients(
                        cls=type(inner).__name__,
                        made=self._made(inner),
                        tensors=len(tensors),
                        bytes=sum(each.numel() * each.element_size() for each in tensors),
                        trained=trained,
                        frozen=not all(each.requires_grad for each in weights),
                        resting=any(id(each) in held for each in tensors),
                    )
                )

    def still(self) -> list[UnusedGradients]:
        """What was found, unless a rate that was zero is no more."""
        moved = set(map(id, self._trained())) if self._resting else set()
        return [] if any(id(each()) in moved for each in self._resting) else self.found

    def _done(self, parameter: Any) -> None:
        self._order.append(id(parameter))


def _passes(order: list[int]) -> Iterator[list[int]]:
    """The backward passes of a step: in each a gradient is done once."""
    one: dict[int, None] = {}
    for key in order:
        if key in one:
            yield list(one)
            one = {}
        one[key] = None
    if one:
        yield list(one)


def _last_of_others(one: list[int], idle: set[int]) -> int:
    """How many gradients of a pass are done when the last of those is that are not `idle`."""
    return max((number for number, key in enumerate(one, 1) if key not in idle), default=0)
