"""The line of a user's function that a finding is about, as the source has it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from advisor.edit.draft import Draft
from advisor.edit.sources import Sources
from advisor.errors import AdvisorError
from advisor.harness.layout import Site


def only_line(function: tuple[str, int], lines: Callable[[Draft], Iterable[int]]) -> Site:
    """The one line of `lines` in the file of a function, (file, first line); where that begins if there is not one."""
    path, line = function
    try:
        there = set(lines(Draft(Sources().source(path))))
    except AdvisorError:
        there = set()
    return Site(path, there.pop() if len(there) == 1 else max(1, line))
