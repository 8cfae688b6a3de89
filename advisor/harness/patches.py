"""Replacing an attribute for a while: the one way in which the harness wraps anything."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

_MISSING = object()


class Patch:
    """One attribute of a class or a module, and what stands in for it while the patch is on.

    ``make(original)`` returns the replacement; it is made once, and anew where somebody else has replaced the attribute
    while the patch was off: ours goes around theirs. An attribute that a class only inherits is deleted again when the
    patch goes off, so that the class is as it was.
    """

    def __init__(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        self.owner = owner
        self.name = name
        self._make = make
        self._on = False
        self._replace()

    def _replace(self) -> None:
        self._own = vars(self.owner).get(self.name, _MISSING)
        self.original = getattr(self.owner, self.name)
        self.replacement = self._make(self.original)
        if callable(self.original):
            with contextlib.suppress(AttributeError, TypeError):  # a slot wrapper without a writable dictionary
                functools.update_wrapper(self.replacement, self.original)

    def on(self) -> None:
        if self._on:
            return
        if vars(self.owner).get(self.name, _MISSING) is not self._own:
            self._replace()
        setattr(self.owner, self.name, self.replacement)
        self._on = True

    def off(self) -> None:
        """Take the replacement away, unless somebody wrapped it in turn: then ours must stay below theirs."""
        if not self._on or vars(self.owner).get(self.name) is not self.replacement:
            return
        if self._own is _MISSING:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self._own)
        self._on = False
