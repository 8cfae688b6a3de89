"""What a watched forward's calls add up to by the user's line that they come from, over a few steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Any, Generic, TypeVar

from .layout import Gathered, OneHot, Repeated, Site
from .places import FRAMES, site_of, user_frames

Line = TypeVar("Line", Repeated, Gathered, OneHot)


class ByLine(Generic[Line]):
    """The lines seen so far; `here` is asked while a call of torch's is on the stack."""

    def __init__(self) -> None:
        self.lines: dict[int, Line] = {}
        self._sites: list[list[Site]] = []  # kept, that their identities are theirs alone

    def here(self, make: Callable[[Site, list[Site]], Line]) -> Line | None:
        """The user's line that is running; `make` makes one of it and the frames that it is called from."""
        frames = [site_of(each) for each in islice(user_frames(), FRAMES)]
        if not frames:
            return None
        line = self.lines.get(id(frames[0]))
        if line is None:
            self._sites.append(frames)
            line = self.lines[id(frames[0])] = make(frames[0], frames)
        return line

    def per_step(self, steps: int, least_s: float) -> list[Line]:
        """Those of at least so many seconds in a step, the longest first, with a step's share of what was added up.

        Copies: a backward may still add to the lines themselves.
        """
        found = []
        for line in self.lines.values():
            if line.seconds >= steps * least_s:
                copy = replace(line)
                for name, value in vars(line).items():
                    if isinstance(value, float):
                        setattr(copy, name, value / steps)
                found.append(copy)
        return sorted(found, key=lambda each: -each.seconds)


def when_differentiated(made: list[Any], seconds: float, line: Repeated | Gathered | OneHot) -> None:
    """Count the seconds once a backward comes through what was made: ``torch.autograd.grad`` may go another way."""
    node = next((each.grad_fn for each in made if each.grad_fn is not None), None)
    if node is None:
        return
    left = [seconds]  # for one backward; a graph that is kept may see several

    def passed(gradients: Any) -> None:
        line.differentiated_s += left.pop() if left else 0.0

    node.register_prehook(passed)
