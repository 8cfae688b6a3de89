"""What a step's forwards compute a second time: the same function of the same tensors, with the same weights.

An encoding that each step of a decoder projects again, a model that is called once for the loss and once for a metric.
Tensors are told apart by what they are, not by what is in them: their memory and how often it was written to. What
is computed again from the same counts as the same from there on, so that of a whole model that is called twice all of
it is seen. Whatever draws random numbers makes something new.
"""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType, ModuleType
from typing import Any

from ..layout import Repeated
from ..places import is_users
from .by_line import ByLine, when_differentiated

_MOST_CALLS = 20_000  # of a step: what comes after them is not looked at
_MOST_ITEMS = 256  # of a list that a function is given
_DRAWING = (
    *("dropout", "rand", "bernoulli", "multinomial", "normal", "poisson", "exponential", "uniform", "gumbel", "rrelu"),
)
# What a step makes anew to begin with, an initial state, is the same each time, and not worth a word.
CONSTANT = ("zeros", "ones", "full", "arange", "eye", "linspace", "zeros_like", "ones_like", "new_zeros", "new_ones")
_ASKING = ("__get__", "size", "dim", "numel", "stride", "data_ptr")  # of no work of their own

_PARAMETRIZE = os.path.join("torch", "nn", "utils", "parametrize.py")

Identity = tuple[Any, ...]


@dataclass
class _Made:
    """What a call gave the first time: what its tensors count as, and a few numbers of them."""

    results: list[Identity]
    numbers: list[Any]
    recorded: bool  # by autograd
    forward: int  # of the step's
    backwards: int  # how many had begun by then


@dataclass
class Repeats:
    """Told of each function of torch's that a watched forward calls; one for each training."""

    torch: ModuleType
    numbers: Callable[[Any], Any]  # a few of a tensor's, to compare them by
    alike: Callable[[Any, Any], bool]
    lines: ByLine[Repeated] = field(default_factory=ByLine)
    _calls: dict[Any, _Made] = field(default_factory=dict)
    # Identity of a tensor → what it counts as, and the tensor, whose memory goes to another once it is gone.
    _known: dict[Identity, tuple[Identity, Any]] = field(default_factory=dict)
    _fresh: int = 0
    _backwards: int = 0

    def clear(self) -> None:
        """Forget a step: in the next one other weights compute, and after the last one nothing is to lie about."""
        self._calls.clear()
        self._known.clear()

    def backward_begins(self) -> None:
        """A backward, after which the graphs of what was made before are gone, and gradients are of another loss."""
        self._backwards += 1

    def key(self, name: str, given: Any) -> Any:
        """What a call is that begins; None for one that is not looked at."""
        if name in _ASKING or draws(name, given[1]) or len(self._calls) > _MOST_CALLS:
            return None
        tensors: list[Identity] = []
        key = name, self._key(given, tensors)
        return key if tensors or name in CONSTANT else None

    def called(self, key: Any, result: Any, seconds: float, forward: int = 0, library: bool = False) -> None:
        """The call of that key took so long, and gave `result`, in that one of the step's forwards.

        What a `library` does twice in one forward is not the script's to keep.
        """
        made = [each for each in _flat(result) if isinstance(each, self.torch.Tensor)]
        if not made:
            return
        numbers, first = [self.numbers(each) for each in made], self._calls.get(key)
        recorded = any(each.requires_grad for each in made)
        if first is None or (recorded and not first.recorded):  # a loss cannot be made of what no_grad() gave
            results = [self._identity(each) for each in made]
            self._calls[key] = _Made(results, numbers, recorded, forward, self._backwards)
        elif len(first.results) == len(made) and all(map(self._same, first.numbers, numbers)):
            for each, same in zip(made, first.results, strict=True):
                self._known[_memory(each)] = same, _holder(each)
            if key[0] not in CONSTANT and not (library and first.forward == forward):
                self._count(key[0], seconds, made, again=first.backwards == self._backwards)

    def _count(self, name: str, seconds: float, made: list[Any], again: bool) -> None:
        """Add up what a call took; its backward only where it goes `again` through what one backward could."""
        line = self.lines.here(lambda site, frames: Repeated(site=site, called_from=frames))
        if line is None:
            return
        line.calls += 1
        line.seconds += seconds
        if again:
            when_differentiated(made, seconds, line, name)
        line.parametrized_s += seconds if _makes_weights() else 0.0

    def _same(self, one: Any, other: Any) -> bool:
        return one is not None and other is not None and self.alike(one, other)

    def _key(self, value: Any, tensors: list[Identity]) -> Any:
        """`value` by what it is; the tensors in it are put into `tensors`, too."""
        if isinstance(value, self.torch.Tensor):
            tensors.append(self._identity(value))
            return tensors[-1]
        if isinstance(value, (tuple, list, dict)) and len(value) > _MOST_ITEMS:
            self._fresh += 1
            return self._fresh  # it may be the same, but to tell takes too long
        if isinstance(value, (tuple, list)):
            return tuple(self._key(each, tensors) for each in value)
        if isinstance(value, dict):
            return tuple((name, self._key(each, tensors)) for name, each in value.items())
        if value is None or isinstance(value, (bool, int, float, str)):
            return type(value).__name__, value
        if isinstance(value, slice):
            return "slice", value.start, value.stop, value.step
        return str(value) if isinstance(value, self.torch.device) else (type(value).__name__, id(value))

    def _identity(self, tensor: Any) -> Identity:
        """What a tensor counts as: what it was computed as before, or itself."""
        own = _memory(tensor)
        known = self._known.get(own)
        if known is not None and known[1]() is not None:
            return known[0]
        base = tensor._base
        if base is not None:  # a part, or a transposed one, of something that counts as something else, maybe
            counts_as = (*self._identity(base), tensor.storage_offset(), *own[1:-1])
        else:
            self._fresh += 1
            counts_as = (*own, self._fresh)
        self._known[own] = counts_as, _holder(tensor)
        return counts_as


def draws(name: str, kwargs: dict[str, Any] | None) -> bool:
    """Whether a function of torch's draws random numbers; the dropout of a model in eval() does not."""
    if "dropout" in name and (kwargs or {}).get("training") is False:
        return False
    return any(each in name for each in _DRAWING)


def _makes_weights() -> bool:
    """Whether a parametrization is at work, between the user's code and this."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_users(frame):
        if frame.f_code.co_filename.endswith(_PARAMETRIZE):
            return True
        frame = frame.f_back
    return False


def _flat(result: Any) -> Any:
    return result if isinstance(result, (tuple, list)) else (result,)


def _memory(tensor: Any) -> Identity:
    if str(tensor.layout) != "torch.strided":  # sparse: its parts each have memory of their own
        return id(tensor), tuple(tensor.shape), tensor.layout, tensor.dtype, tensor._version
    with contextlib.suppress(RuntimeError):  # of inference mode: nobody counts how often they are written to
        return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor._version
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, -1


def _holder(tensor: Any) -> Any:
    """A weak reference to what holds the memory: while that lives, no other tensor gets it."""
    base = tensor._base
    return weakref.ref(tensor if base is None else base)
