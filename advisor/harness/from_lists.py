"""``torch.tensor`` of lists: how long it takes, number by number, in the steps before the timing window.

It reads a list of NumPy arrays element by element, as Python objects, which takes a hundred times as long as copying
the arrays; a list of numbers is at least made of such objects already.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from .layout import CallSite, Site

FROM_LIST = "from_list"
_LEAST_NUMBERS = 256  # below, the call itself takes longer …
_LEAST_CALLS = 64  # … which is worth a word where so many of a step are made in one place
_NUMBERS = (bool, int, float)


class FromLists:
    """Calls by place, in the entries of the places that are seen."""

    def __init__(self, sites: Any) -> None:
        self._sites = sites
        self._calls: dict[int, _Calls] = {}  # by identity of the site
        # By identity of the site: what it was given, and the type of what it made, when it was first called.
        self._kinds: dict[int, tuple[str | None, str]] = {}
        self._others: set[int] = set()  # identities of sites that got, or made, something else, too
        self.steps = 0  # over which the calls were counted

    def saw(self, site: Site | None, data: Any, result: Any, seconds: float, loader: int, counts: bool) -> None:
        """One call has made `result` of `data`, for a batch of `loader` (-1: for none); `counts`: within a step."""
        if site is None:
            return
        given, dtype = given_as(data), str(result.dtype).removeprefix("torch.")
        if self._kinds.setdefault(id(site), (given, dtype)) != (given, dtype):
            self._others.add(id(site))
        known = self._calls.get(id(site))
        if given is None or not counts:
            return
        if known is None:
            details = {"given": given, "dtype": dtype, "loader": loader, "device": result.device.type}
            known = self._calls[id(site)] = _Calls(site, details)
        if known.entry is None and result.numel() >= _LEAST_NUMBERS:
            known.entry = self._sites.add(FROM_LIST, site, known.details)
        known.calls += 1
        known.numbers += result.numel()
        known.seconds += seconds

    def forget(self) -> None:
        """Steps are something else from here on."""
        for known in self._calls.values():
            known.calls, known.numbers, known.seconds = 0, 0, 0.0
        self.steps = 0

    def fill(self) -> None:
        """Figures per step into the entries."""
        steps = max(self.steps, 1)
        for key, known in self._calls.items():
            if known.entry is None and self.steps and known.calls >= _LEAST_CALLS * steps:
                known.entry = self._sites.add(FROM_LIST, known.site, known.details)
            entry = known.entry
            if entry is not None:
                entry.details["others"] = key in self._others
                entry.details["numbers"] = known.numbers / steps
                entry.calls_per_step = known.calls / steps
                entry.seconds_per_step = known.seconds / steps if self.steps else 0.0


@dataclass
class _Calls:
    """Those of the steps that count, of one place; ``entry`` as soon as they are of note."""

    site: Site
    details: dict[str, Any]
    entry: CallSite | None = None
    calls: int = 0
    numbers: int = 0
    seconds: float = 0.0


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


def numbers_listed(sample: Any) -> int:
    """How many numbers a sample of a dataset holds in lists, as ``tolist()`` gives them; by each field's first row."""
    if isinstance(sample, dict):
        return sum(map(_size, sample.values()))
    if not isinstance(sample, (tuple, list)) or not sample:
        return 0
    return _size(sample) if type(sample[0]) in _NUMBERS else sum(map(_size, sample))


def _size(data: Any) -> int:
    if given_as(data) != "numbers":
        return 0
    size = 1
    while type(data) in (list, tuple):
        size, data = size * len(data), data[0]
    return size
