"""Which lines of the forwards, and which whole forwards, gave the same of the same in all of the steps watched."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from ..layout import Recomputed, Site

MOST_TENSORS = 8  # of a call's, and of a model's
# Functions of these names give other last digits, or signs, from time to time: their threads share the work anew.
DECOMPOSES = "linalg_"

Key = tuple[int, str, int]
"""Identity of a site, name of the function, and which of the calls of a step it is."""


@dataclass
class Forward:
    """A model's call: numbers of the tensors that it was given, and, of one that is watched, what it did."""

    given: list[Any]
    # Identities of the tensors that it was given, or that what was made of those; and of these what is not of a graph.
    derived: set[int] = field(default_factory=set)
    batch: set[int] = field(default_factory=set)
    called_from: list[Site] = field(default_factory=list)  # the user's frames that call it; none of one not watched
    seconds: float = 0.0  # in torch's functions
    last: list[Any] = field(default_factory=list)  # what the last of these gave, and …
    result: list[Any] = field(default_factory=list)  # … once the forward is over, numbers of that
    differentiable: bool = False  # some of what they gave is: its weights are about to change
    much: bool = False  # more was made of these than is looked at


@dataclass
class Call:
    """A longer call of one of torch's functions."""

    seconds: float
    forward: int
    given: list[Any]  # numbers of what went in, and …
    made: list[Any]  # … of what came out
    of_batch: bool  # some of what went in was made of what the model was given, a graph aside
    inside: bool = False  # a library, which the script's line only calls


@dataclass
class Step:
    """What was watched of a step."""

    forwards: list[Forward] = field(default_factory=list)
    calls: dict[Key, Call] = field(default_factory=dict)
    count: dict[tuple[int, str], int] = field(default_factory=dict)
    short: int = 0  # of the calls


class Sameness:
    """Compares the steps that were watched, by the numbers that were kept of their tensors."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch: Any = torch

    def constants(
        self, steps: list[Step], sites: dict[int, tuple[Site, list[Site]]], timed: list[list[float]]
    ) -> list[Recomputed]:
        """What is constant, the longest first.

        `sites` are those of the calls, by identity, with the user's frames around; `timed` the seconds of each forward
        in steps that were not watched.
        """
        first, *others = steps
        shorter = undisturbed(steps, timed)
        found: dict[int, Recomputed] = {}
        for key, call in first.calls.items():
            again = [each.calls[key] for each in others if key in each.calls]
            if len(again) < len(others) or not all(self._same(call.given, each.given) for each in again):
                continue
            if not key[1].startswith(DECOMPOSES) and not all(self._same(call.made, each.made) for each in again):
                continue
            # Of a forward that was given the same in all steps, or what cannot be looked at, all may be the same.
            given = first.forwards[call.forward].given
            others_given = [each.forwards[one.forward].given for each, one in zip(others, again, strict=True)]
            alone = len(given) < MOST_TENSORS and not any(each.of_batch for each in (call, *again))
            if not alone and all(self._same(given, each, True) for each in others_given):
                continue
            site, frames = sites[key[0]]
            line = found.setdefault(key[0], Recomputed(site=site, called_from=frames))
            line.calls += 1
            line.given |= call.inside
            # One of the steps may have been disturbed by another program.
            line.seconds += shorter * statistics.median(step.calls[key].seconds for step in steps)
        return sorted([*found.values(), *self._whole_forwards(steps, timed)], key=lambda each: -each.seconds)

    def _whole_forwards(self, steps: list[Step], timed: list[list[float]]) -> list[Recomputed]:
        """Calls of models that were given the same in all steps, and gave the same, beside some that were not."""
        forwards = list(zip(*(each.forwards for each in steps), strict=False))
        if all(self._same(first.given, each.given, True) for first, *others in forwards for each in others):
            return []  # a script whose batches are all the same
        found = []
        for number, (first, *others) in enumerate(forwards):
            places = [each.called_from[:1] for each in (first, *others)]
            if (
                not (first.called_from and first.result and places.count(places[0]) == len(places))
                or not all(self._same(first.given, each.given) for each in others)
                or not all(self._same(first.result, each.result) for each in others)
            ):
                continue
            # Most of what it takes is in torch's functions; not the giving back of large tensors' memory.
            alone = [each[number] for each in timed if len(each) == len(forwards)]
            seconds = max(statistics.median(each.seconds for each in (first, *others)), min(alone, default=0.0))
            found.append(Recomputed(first.called_from[0], first.called_from, calls=1, seconds=seconds, whole=True))
        return found

    def _same(self, one: list[Any], other: list[Any], unknown: bool = False) -> bool:
        """Whether the numbers are the same; `unknown` for what could not be looked at."""
        if len(one) != len(other):
            return False
        pairs = zip(one, other, strict=True)
        return all(self.alike(a, b) if a is not None and b is not None else unknown for a, b in pairs)

    def alike(self, one: Any, other: Any) -> bool:
        """Whether the numbers of two tensors are the same, to the bit."""
        (shape, *numbers), (another, *others) = one, other
        if shape != another or [each is None for each in numbers] != [each is None for each in others]:
            return False
        pairs = zip(numbers, others, strict=True)
        return all(a is b or bool(self._torch.equal(a, b)) for a, b in pairs)


def undisturbed(steps: list[Step], timed: list[list[float]]) -> float:
    """How much shorter what calls take is where nobody watches, by the forwards then; at most 1.

    Between what they took and that share of the forwards, for what Python does around a call goes with it: of a step of
    three scripts 8.9, 29.6 and 6.15 ms went, of which the calls took 9.0, 29.3 and 6.9, and 8.0, 23 and 5.0 by that
    share.
    """
    whole = [sum(each) for each in timed if each and len(each) == len(steps[0].forwards)]
    watched = statistics.median(sum(each.seconds for each in step.forwards) for step in steps)
    return math.sqrt(min(1.0, min(whole) / watched)) if whole and watched > 0.0 else 1.0
