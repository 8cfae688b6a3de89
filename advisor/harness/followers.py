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
_HANDED_ON = 0.99  # cosine of two gradients of which one is made of the other


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
                if each.numel() >= _LEAST and bool(step.norm() > _ROUNDED * before.norm()):
                    moved.setdefault(_like(each), []).append((each, before, step))
            if moved and all(self._follow(like, each) for like, each in moved.items()):
                found |= {id(each) for each, _ in group}
        return found

    def _follow(self, like: Any, moved: list[tuple[Any, Any, Any]]) -> bool:
        """Whether each of these, all of one shape, has gone towards one that is held, and hands it no gradient."""
        held = self._held.get(like)
        if held is None:
            return False
        torch: Any = sys.modules["torch"]
        before, step = (torch.stack([each[at] for each in moved]) for at in (1, 2))
        towards = torch.stack([way for each, was in held for way in (was, _sample(each))])
        ways = towards[None] - before[:, None]
        lengths, whole = step.norm(dim=-1)[:, None], ways.norm(dim=-1)
        along = (ways * step[:, None]).sum(-1) >= _ALIKE * lengths * whole
        goes = (along & (lengths <= _BEYOND * whole)).tolist()
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
    return numbers[:: max(1, len(numbers) // _SAMPLED)].double()


def _hands_on(free: Any, held: Any) -> bool:
    """Whether the gradient of the one is made of the other's."""
    if free.grad is None or held.grad is None:
        return False
    if free.grad is held.grad:
        return True
    one, other = _sample(free.grad), _sample(held.grad)
    return bool(one @ other >= _HANDED_ON * one.norm() * other.norm()) and bool(one.any())
