"""What a watched forward's calls add up to by the user's line that they come from, over a few steps."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Any, Generic, TypeVar

from ..layout import (
    AttentionMask,
    CopiedOperand,
    FourierProduct,
    Gathered,
    LoopedLayer,
    OneHot,
    Repeated,
    RepeatedRow,
    SameRow,
    Site,
    SparseProduct,
    ZeroRow,
)
from ..places import FRAMES, site_of, user_frames

# Lines whose results a backward may go through.
AnyLine = (
    Repeated
    | Gathered
    | OneHot
    | RepeatedRow
    | ZeroRow
    | SameRow
    | SparseProduct
    | FourierProduct
    | LoopedLayer
    | AttentionMask
)
Line = TypeVar(
    "Line",
    Repeated,
    Gathered,
    OneHot,
    RepeatedRow,
    ZeroRow,
    SameRow,
    SparseProduct,
    FourierProduct,
    LoopedLayer,
    CopiedOperand,
    AttentionMask,
)


class ByLine(Generic[Line]):
    """The lines seen so far; `here` is asked while a call of torch's is on the stack."""

    def __init__(self) -> None:
        self.lines: dict[int, Line] = {}
        self._sites: list[list[Site]] = []  # kept, that their identities are theirs alone
        self._sums: list[dict[int, dict[str, float]]] = []  # at each step's end, what was added up so far, by line

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

    def step_ends(self) -> None:
        """What was added up since the last one is one step's."""
        self._sums.append({key: _sums(line) for key, line in self.lines.items()})

    def per_step(self, steps: int, least_s: float) -> list[Line]:
        """Those of at least so many seconds in a step, the longest first, with what a step adds up.

        By the step in the middle, where their ends were told: another program may have held one of them up. Copies: a
        backward may still add to the lines themselves.
        """
        found = []
        for key, line in self.lines.items():
            copy = replace(line)
            for name, value in _of_a_step(_sums(line), [each.get(key, {}) for each in self._sums], steps).items():
                setattr(copy, name, value)
            if copy.seconds >= least_s:
                found.append(copy)
        return sorted(found, key=lambda each: -each.seconds)


Told = TypeVar("Told", Repeated, SameRow)


def unwatched(line: Told, share: float) -> Told:
    """The line where nobody watches: what its calls take is `share` of that, and by function adds up to the same."""
    went_back, whole = share * line.differentiated_s, sum(line.differentiated.values())
    by_name = {name: went_back * taken / whole for name, taken in line.differentiated.items() if whole}
    changed = replace(line, seconds=share * line.seconds, differentiated_s=went_back, differentiated=by_name)
    if isinstance(changed, Repeated):
        changed.parametrized_s *= share
    return changed


def _of_a_step(total: dict[str, float], ends: list[dict[str, float]], steps: int) -> dict[str, float]:
    """Of what was added up in so many steps, and by the end of each, a step's."""
    if len(ends) != steps:
        return {name: value / steps for name, value in total.items()}
    return {
        name: statistics.median(
            after - before for before, after in itertools.pairwise([0.0, *(each.get(name, 0.0) for each in ends)])
        )
        for name in total
    }


def _sums(line: object) -> dict[str, float]:
    return {name: value for name, value in vars(line).items() if isinstance(value, float)}


def when_differentiated(made: list[Any], seconds: float, line: AnyLine, name: str = "") -> None:
    """Count the seconds once a backward comes through what was made: ``torch.autograd.grad`` may go another way.

    Of a line that tells its functions apart, by the `name` of this one as well.
    """
    node = next((each.grad_fn for each in made if each.grad_fn is not None), None)
    if node is None:
        return
    left = [seconds]  # for one backward; a graph that is kept may see several

    def passed(gradients: Any) -> None:
        taken = left.pop() if left else 0.0
        line.differentiated_s += taken
        if isinstance(line, (Repeated, SameRow)):
            line.differentiated[name] = line.differentiated.get(name, 0.0) + taken

    node.register_prehook(passed)
