"""Calls of ``torch.autograd.grad`` that give what an earlier one of the same step has given, by the same inputs.

A helper that takes one column of a gradient, asked for each column: u_x, u_y and u_t each go back through the whole
network. Told by :mod:`.unread_results` while it watches a step's calls, and only then.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from ..layout import AskedAgain, Site
from ..places import FRAMES, site_of, user_frames

_MOST_CALLS = 64  # of a step that are looked at
_MOST_NUMBERS = 1 << 23  # of what they give, all together


class AsksAgain:
    """Keeps copies of what each call of a step has given until the step is over.

    Copies: who follows whether the script keeps a gradient is not to find it kept here.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._steps: list[list[int]] = [[]]  # for each call the earlier one that gave the same, or -1
        self._given: list[tuple[tuple[int, ...], list[Any]]] = []  # in this step: by which inputs, and what
        self._numbers = 0  # that are kept
        self._lost = False  # something could not be compared
        self._frames: list[Site] = []  # the user's, around the first that an earlier one gave the same as

    def step_ends(self) -> None:
        self._given.clear()
        self._numbers = 0
        self._steps.append([])

    def asked(self, inputs: Any, gradients: Sequence[Any]) -> None:
        """A call has given these gradients by these inputs. What cannot be compared ends the looking."""
        try:
            if not self._lost:
                self._asked(inputs, gradients)
        except Exception:
            self._lost = True
            self._given.clear()

    def _asked(self, inputs: Any, gradients: Sequence[Any]) -> None:
        given = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        plain = [each.detach() if each is not None else None for each in gradients]
        numbers = sum(each.numel() for each in plain if each is not None)
        room = self._numbers + numbers <= _MOST_NUMBERS and len(self._given) < _MOST_CALLS
        which = tuple(map(id, given)) if room else ()
        earlier = (
            number
            for number, (known, values) in enumerate(self._given)
            if which and known == which and all(map(self._alike, plain, values))
        )
        before = next(earlier, -1)
        if before >= 0 and not self._frames:
            self._frames = [site_of(each) for each in islice(user_frames(), FRAMES)]
        self._steps[-1].append(before)
        self._numbers += numbers if which and before < 0 else 0
        copied = [each.clone() if each is not None else None for each in plain] if which and before < 0 else []
        self._given.append((which if before < 0 else (), copied))

    def _alike(self, one: Any, other: Any) -> bool:
        if one is None or other is None:
            return one is other
        return one.shape == other.shape and bool(self._torch.equal(one, other)) and bool(one.any())

    def found(self, steps: int) -> AskedAgain | None:
        """What the first `steps` steps asked for again, each alike; None where they did not, or for nothing."""
        first = self._steps[0]
        alike = all(each == first for each in self._steps[:steps])
        if self._lost or not self._frames or not alike or max(first, default=-1) < 0:
            return None
        return AskedAgain(site=self._frames[0], called_from=self._frames, before=first)
