"""The line of a user's function that a finding is about, as the source has it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from advisor.edit.draft import Draft
from advisor.edit.sources import Sources
from advisor.errors import AdvisorError
from advisor.harness.layout import Site

_Found = TypeVar("_Found")


def found_in(function: tuple[str, int], find: Callable[[Draft], Iterable[_Found]]) -> list[_Found]:
    """What `find` finds in the file of a function, (file, first line); nothing where that cannot be read."""
    try:
        return list(find(Draft(Sources().source(function[0]))))
    except AdvisorError:
        return []


def only_line(function: tuple[str, int], lines: Callable[[Draft], Iterable[int]]) -> Site:
    """The one line of `lines` in the file of a function, (file, first line); where that begins if there is not one."""
    path, line = function
    there = set(found_in(function, lines))
    return Site(path, there.pop() if len(there) == 1 else max(1, line))
