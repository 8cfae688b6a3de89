"""The script's optimizers: which is which, also where one is made anew for each task or fold, and their records."""

from __future__ import annotations

import contextlib
import math
import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from .layout import MOST_MATRICES, OptimizerInfo, Site
from .places import definition_of


class Optimizers:
    """Keys of optimizers, and their records.

    One that is made where another was that is gone by the time it first steps goes on with that one's key: what takes
    turns with the others is the place. None is kept alive but the one that stepped last, whose parameters are looked at
    when the script is over, unless it collects garbage before that.
    """

    def __init__(self) -> None:
        # By identity, as a class may compare its objects in a way of its own: a reference, where it was made, by whom.
        self._made: dict[int, tuple[weakref.ref[Any], Site | None, str]] = {}
        self._keys: dict[int, int] = {}
        self._objects: dict[int, weakref.ref[Any]] = {}  # by key
        self._infos: dict[int, OptimizerInfo] = {}  # by key
        self._last: Any = None
        self._lock = threading.RLock()

    def forget(self) -> None:
        """In a process that was forked off: a thread that is not here may have had the lock."""
        self._lock = threading.RLock()

    def made(self, optimizer: Any, site: Site | None, owner: str) -> None:
        """The script has made it, at `site`, or `owner` has for it."""
        number = id(optimizer)
        self._made[number] = weakref.ref(optimizer, lambda _: self._forget(number)), site, owner

    def stepped(self, optimizer: Any) -> int:
        """It has done a step; its key."""
        if id(optimizer) not in self._keys:
            self._last = None  # which may be gone but for us
        key = self._key(optimizer)
        self._last = optimizer
        self._infos[key].steps += 1
        return key

    def let_go(self) -> None:
        """The script collects its garbage: what only we hold is a part of it."""
        self._last = None

    def get(self, key: Any) -> Any:
        """The optimizer that has this key now; None for one that is gone, or that there never was."""
        reference = self._objects.get(key)
        return reference() if reference is not None else None

    def parameters(self) -> Iterator[Any]:
        """What they update, of those that are there."""
        for optimizer in self._there():
            yield from parameters_of(optimizer)

    def moved(self) -> Iterator[Any]:
        """The same, without what they leave where it is: at a rate of zero that no schedule has set."""
        for optimizer in self._there():
            for group in getattr(optimizer, "param_groups", ()):
                if not _is_zero(group.get("lr")) or not _is_zero(group.get("initial_lr", 0)):
                    yield from group["params"]

    def groups(self) -> Iterator[Iterator[Any]]:
        """What each of them updates, of those that are there."""
        return map(parameters_of, self._there())

    def look_for_zeros(self) -> None:
        """Count the gradients that are full of zeros; a kind of tensor that cannot be asked has none."""
        for key in list(self._objects):
            with contextlib.suppress(Exception):
                if (optimizer := self.get(key)) is not None:
                    self._infos[key].zero_filled = zero_filled(parameters_of(optimizer))

    def records(self, boundary: Any) -> list[OptimizerInfo]:
        """All that stepped, in that order, and those that are there and did not; `boundary` is the key of one."""
        for key, info in self._infos.items():
            info.boundary = key == boundary
            if (optimizer := self.get(key)) is not None:
                _describe(info, optimizer)
        others = []
        for optimizer in self._there():
            if id(optimizer) not in self._keys:
                _, site, owner = self._made[id(optimizer)]
                others.append(OptimizerInfo(cls=type(optimizer).__name__, site=site, owner=owner))
                _describe(others[-1], optimizer)
        return [*self._infos.values(), *others]

    def _there(self) -> list[Any]:
        found = [reference() for reference, _, _ in list(self._made.values())]
        return [each for each in found if each is not None]

    def _key(self, optimizer: Any) -> int:
        number = id(optimizer)
        with self._lock:  # several threads may step their own for the first time
            key = self._keys.get(number)
            if key is None:
                if number not in self._made:
                    self.made(optimizer, None, "")
                _, site, owner = self._made[number]
                cls = type(optimizer).__name__
                gone = [each for each, reference in self._objects.items() if reference() is None]
                same = (each for each in gone if site is not None and self._infos[each].site is site)
                key = next((each for each in same if self._infos[each].cls == cls), len(self._infos))
                info = self._infos.setdefault(key, OptimizerInfo(cls=cls, site=site, owner=owner))
                self._keys[number], self._objects[key] = key, weakref.ref(optimizer)
                _describe(info, optimizer)
        return key

    def _forget(self, number: int) -> None:
        """It is gone, and another one may get its number."""
        self._made.pop(number, None)
        self._keys.pop(number, None)


def _is_zero(rate: Any) -> bool:
    """Whether it is a plain zero; to read one that is a tensor may wait for the device."""
    return isinstance(rate, (int, float)) and rate == 0


def parameters_of(optimizer: Any) -> Iterator[Any]:
    """What it updates."""
    for group in getattr(optimizer, "param_groups", ()):
        yield from group["params"]


def _describe(info: OptimizerInfo, optimizer: Any) -> None:
    """What can be known of it: one that a script's author wrote may lack some."""
    with contextlib.suppress(Exception):
        group: dict[str, Any] = next(iter(getattr(optimizer, "param_groups", ())), {})
        info.written = definition_of(getattr(type(optimizer), "step", None))
        info.fused, info.foreach = group.get("fused"), group.get("foreach")
        momentum = group.get("momentum")
        info.momentum = float(momentum) if isinstance(momentum, (int, float)) else None
        info.parameters = sum(1 for _ in parameters_of(optimizer))
        info.sliced = sum(not _is_dense(each) for each in parameters_of(optimizer))
        shapes = {tuple(each.shape) for each in parameters_of(optimizer) if each.dim() == 2}
        info.matrices = sorted(map(list, shapes), key=lambda shape: -shape[0] * shape[1])[:MOST_MATRICES]


def _is_dense(parameter: Any) -> bool:
    """Whether a tensor's numbers lie side by side, in whatever order of its dimensions; true of what is not strided."""
    if str(parameter.layout) != "torch.strided":
        return True
    expected = 1
    for stride, size in sorted(zip(parameter.stride(), parameter.shape, strict=True)):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True


def zero_filled(parameters: Iterable[Any]) -> int:
    """How many parameters hold a gradient full of zeros, judged by the first three that have one."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    filled = bool(gradients) and all(not bool(gradient.detach().any()) for gradient in gradients[:3])
    return len(gradients) if filled else 0


def nonfinite(parameters: Iterable[Any], torch: Any) -> int:
    """How many parameters hold a NaN or an infinity: what a loss leaves behind that became one unseen.

    Waits for the device; a sum needs no memory to speak of.
    """
    found = 0
    for parameter in parameters:
        # A part of one that lies on several devices (a DTensor) only all of them together could sum.
        if type(parameter) not in (torch.Tensor, torch.nn.Parameter):
            continue
        with contextlib.suppress(RuntimeError, TypeError, ValueError):
            half = parameter.element_size() <= 2  # its own sum overflows soon
            found += not math.isfinite(float(parameter.detach().sum(dtype=torch.float32 if half else None)))
    return found
