"""The loops over samples that a run shows, of which one operator could do all rounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from advisor.evidence.python_loops.groups import group_loop
from advisor.evidence.python_loops.handmade import loop_place
from advisor.evidence.python_loops.stateful import remembers
from advisor.evidence.python_loops.taken_loops import taken_loop

if TYPE_CHECKING:
    from advisor.evidence import Evidence
    from advisor.evidence.python_loops.loops import SampleLoop
    from advisor.harness.layout import Site


def loops_over_samples(evidence: Evidence, text_of: Callable[[str], str]) -> list[tuple[SampleLoop, Site]]:
    """What each costs, and its line: by the operators that its rounds repeat, or by what takes parts of tensors.

    None that needs the rows of a group side by side, or whose rounds call what remembers the one before. `text_of`
    gives a file's text, "" where there is none.
    """
    record, alike = evidence.record, evidence.sample_loop
    found: list[tuple[SampleLoop, Site]] = []
    if alike is not None and (place := loop_place(evidence, alike, text_of)) is not None:
        found.append((alike, place))
    if (taken := taken_loop(evidence, text_of)) is not None:
        found.append(taken)
    return [
        (loop, place)
        for loop, place in found
        if group_loop(text_of(place.file), place.line) is not None
        and not (record is not None and remembers(record, place, text_of))
    ]
