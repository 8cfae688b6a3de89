"""Replacing an attribute for a while: the one way in which the harness wraps anything."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

_MISSING = object()


class Patch:
    """One attribute of a class or a module, and what stands in for it while the patch is on.

    ``make(original)`` returns the replacement; it is made once. An attribute that a class only inherits is
    deleted again when the patch goes off, so that the class is as it was.
    """

    def __init__(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        self.owner = owner
        self.name = name
        self._own = vars(owner).get(name, _MISSING)
        original = getattr(owner, name)
        self.replacement = make(original)
        if callable(original):
            with contextlib.suppress(AttributeError, TypeError):  # a slot wrapper without a writable dictionary
                functools.update_wrapper(self.replacement, original)
        self._on = False

    def on(self) -> None:
        if not self._on:
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
