"""Parameters that no optimizer holds and that change all the same, because they follow others: moving averages.

The teacher of a mean teacher, BYOL's target, MoCo's key encoder. What changes them is the weight that they follow, and
no gradient of theirs. A copy in 16 bits of weights that an optimizer holds follows them, too, but hands them its
gradients.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

_SAMPLED, _LEAST = 64, 4  # numbers of a parameter that are looked at; fewer point anywhere by chance
# Cosine between a step of the parameter and the way to the one that it follows. Of 64 numbers at random one is so with
# seven standard deviations; an average in float32 that moves by a thousandth of the way is above 0.99.
_ALIKE = 0.9
_BEYOND = 1.01  # the way is gone a part of, or all, not more
_ROUNDED = 1e-6  # of the parameter: a step as small as that points anywhere
_HANDED_ON = 0.9999  # cosine of two gradients of which one is made of the other: scaled, or in another type


class Followers:
    """Told where a step ends; asked where the next one does."""

    def __init__(self, free: Iterable[Iterable[Any]], held: Iterable[Any]) -> None:
        """`free` are each model's parameters that no optimizer holds, `held` those that one does."""
        self._held: dict[Any, list[tuple[Any, Any]]] = {}
        for each in held:
            self._held.setdefault(_like(each), []).append((each, _sample(each)))
        self._free = [[(each, _sample(each)) for each in group] for group in free]

    def found(self) -> set[int]:
        """The identities of those of models all of whose parameters that moved went towards one that is held.

        Where one goes another way, the others of its model are no followers either: somebody trains them. The one that
        is followed may have moved before, or since.
        """
        found = set[int]()
        for group in self._free:
            moved: dict[Any, list[tuple[Any, Any, Any]]] = {}
            for each, before in group:
                step = _sample(each) - before
                if bool(step.norm() > _ROUNDED * before.norm()):
                    moved.setdefault(_like(each), []).append((each, before, step))
            steps = [one for some in moved.values() for one in some]
            large = any(each.numel() >= _LEAST for each, _, _ in steps)
            if large and all(self._follow(like, some) for like, some in moved.items()):
                found |= {id(each) for each, _, _ in steps}
        return found

    def _follow(self, like: Any, moved: list[tuple[Any, Any, Any]]) -> bool:
        """Whether each of these, all of one shape, has gone towards one that is held, and hands it no gradient."""
        held = self._held.get(like)
        if held is None:
            return False
        torch: Any = sys.modules["torch"]
        towards = torch.stack([way for each, was in held for way in (was, _sample(each))])
        goes = torch.stack([_goes(step, towards - before) for _, before, step in moved]).tolist()
        for (each, _, _), row in zip(moved, goes, strict=True):
            followed = [held[at // 2][0] for at, does in enumerate(row) if does]
            if not followed or any(_hands_on(each, other) for other in followed):
                return False
        return True


def _like(parameter: Any) -> Any:
    return parameter.shape, parameter.device


def _sample(tensor: Any) -> Any:
    """Some numbers of it, spread over it, in float64."""
    numbers = tensor.detach().reshape(-1)
    return numbers[:: max(1, len(numbers) // _SAMPLED)].to(sys.modules["torch"].float64, copy=True)


def _goes(step: Any, ways: Any) -> Any:
    """For each way whether a step goes a part of it."""
    length, whole = step.norm(), ways.norm(dim=-1)
    return (ways @ step >= _ALIKE * length * whole) & (length <= _BEYOND * whole)


def _hands_on(free: Any, held: Any) -> bool:
    """Whether the gradient of the one is made of the other's."""
    if free.grad is None or held.grad is None:
        return False
    if free.grad is held.grad:
        return True
    if free.grad.is_sparse or held.grad.is_sparse:
        return False
    one, other = _sample(free.grad), _sample(held.grad)
    if int(((one != 0) & (other != 0)).sum()) < _LEAST:
        return False  # they point anywhere
    return bool(one @ other >= _HANDED_ON * one.norm() * other.norm())
