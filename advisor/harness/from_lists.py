"""``torch.tensor`` of lists: how long it takes, number by number, in the steps before the timing window.

It reads a list of NumPy arrays element by element, as Python objects, which takes a hundred times as long as copying
the arrays; a list of numbers is at least made of such objects already.
"""

from __future__ import annotations

import sys
from typing import Any

from .layout import CallSite, Site

FROM_LIST = "from_list"
_LEAST_NUMBERS = 256  # below, the call itself takes longer
_NUMBERS = (bool, int, float)


class FromLists:
    """Calls by place, in the entries of the places that are seen."""

    def __init__(self, sites: Any) -> None:
        self._sites = sites
        self._seconds: dict[int, tuple[CallSite, int, float]] = {}  # by identity of the site: entry, calls, seconds
        self._others: set[int] = set()  # identities of sites that got something else, too
        self.steps = 0  # over which that was

    def saw(self, site: Site | None, data: Any, result: Any, seconds: float, loader: int, counts: bool) -> None:
        """One call has made `result` of `data`, for a batch of `loader` (-1: for none); `counts`: within a step."""
        if site is None:
            return
        given = given_as(data)
        known = self._seconds.get(id(site))
        if given is None or (known is not None and known[0].details["given"] != given):
            self._others.add(id(site))
        elif counts and (known is not None or result.numel() >= _LEAST_NUMBERS):
            dtype = str(result.dtype).removeprefix("torch.")
            details = {"given": given, "dtype": dtype, "numbers": result.numel(), "loader": loader}
            entry = self._sites.add(FROM_LIST, site, details)
            _, calls, before = known or (entry, 0, 0.0)
            self._seconds[id(site)] = entry, calls + 1, before + seconds

    def forget(self) -> None:
        """Steps are something else from here on."""
        for key, (entry, *_) in self._seconds.items():
            self._seconds[key] = entry, 0, 0.0
        self.steps = 0

    def fill(self) -> None:
        """Figures per step into the entries."""
        for key, (entry, calls, seconds) in self._seconds.items():
            entry.details["others"] = key in self._others
            entry.calls_per_step = calls / max(self.steps, 1)
            entry.seconds_per_step = seconds / max(self.steps, 1) if self.steps else 0.0


def given_as(data: Any) -> str | None:
    """``arrays``: NumPy's, of one shape and type; ``numbers``: Python's, in lists however deep; None: anything else."""
    if type(data) not in (list, tuple) or not data:
        return None
    array = getattr(sys.modules.get("numpy"), "ndarray", None)
    first = data[0]
    if array is not None and type(first) is array:
        alike = all(type(each) is array and (each.dtype, each.shape) == (first.dtype, first.shape) for each in data)
        return "arrays" if alike and first.dtype.kind in "biuf" else None
    while type(first) in (list, tuple) and first:
        data, first = first, first[0]
    return "numbers" if type(first) in _NUMBERS and all(type(each) is type(first) for each in data) else None
