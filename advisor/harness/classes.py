"""The user's own classes among a model's modules: where to look for what a layer does by hand."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from .places import is_user_file


def own_classes(modules: Iterable[object]) -> dict[str, str]:
    """Class name → source file, for the classes that a person wrote; a name that several files have is the last's."""
    found: dict[str, str] = {}
    for cls in {type(module) for module in modules}:
        file = getattr(sys.modules.get(cls.__module__), "__file__", None)
        if isinstance(file, str) and is_user_file(file):
            found[cls.__name__] = os.path.realpath(file)
    return found
