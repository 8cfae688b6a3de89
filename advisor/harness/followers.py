"""Parameters that no optimizer holds and that change all the same, because they follow others: moving averages.

The teacher of a mean teacher, BYOL's target, MoCo's key encoder. What changes them is the weight that they follow, and
no gradient of theirs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_SAMPLED, _LEAST = 64, 4  # numbers of a parameter that are looked at; fewer point anywhere by chance
# Cosine between a step of the parameter and the way to the one that it follows. Of 64 numbers at random one is so with
# seven standard deviations; an average in float32 that moves by a thousandth of the way is above 0.99.
_ALIKE = 0.9
_BEYOND = 1.01  # the way is gone a part of, or all, not more
_NEARLY_ALL = 0.9  # of the parameters that changed: where steps are tiny a few are rounded away


class Followers:
    """Told where a step ends; asked where the next one does."""

    def __init__(self, free: Iterable[Any], held: Iterable[Any]) -> None:
        """`free` are parameters that no optimizer holds, `held` those that one does."""
        self._held: dict[Any, list[tuple[Any, Any]]] = {}  # by shape
        for each in held:
            self._held.setdefault(each.shape, []).append((each, _sample(each)))
        self._free = [(each, _sample(each)) for each in free if each.shape in self._held and each.numel() >= _LEAST]

    def found(self) -> set[int]:
        """The identities of those that have moved since, towards one that is held; none where others have moved, too.

        Where a few go another way, the others are no followers either: somebody trains them. The one that is followed
        may have moved before, or since.
        """
        moved = [(each, before, _sample(each) - before) for each, before in self._free]
        moved = [each for each in moved if bool(each[2].any())]
        shapes = {each.shape for each, _, _ in moved}
        ways = {shape: [way for each, was in self._held[shape] for way in (was, _sample(each))] for shape in shapes}
        followers = {
            id(each) for each, before, step in moved if any(_goes(step, to - before) for to in ways[each.shape])
        }
        return followers if len(followers) >= _NEARLY_ALL * len(moved) else set()


def _sample(parameter: Any) -> Any:
    """Some numbers of it, spread over it, in float64."""
    numbers = parameter.detach().reshape(-1)
    return numbers[:: max(1, len(numbers) // _SAMPLED)].double()


def _goes(step: Any, way: Any) -> bool:
    length, whole = float(step.norm()), float(way.norm())
    return 0 < length <= _BEYOND * whole and float(step @ way) >= _ALIKE * length * whole
