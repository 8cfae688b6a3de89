"""Classes of modules: the user's own, where a layer may do by hand what torch has; and what each lets a script call."""

from __future__ import annotations

import inspect
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


def called_methods(cls: type, base: type) -> list[str]:
    """The names of the methods that `cls` itself defines for its users, and that `base` has not: no generators."""
    return [
        name
        for name, method in vars(cls).items()
        if inspect.isfunction(method) and not name.startswith("_") and not hasattr(base, name)
        if not (inspect.isgeneratorfunction(method) or inspect.iscoroutinefunction(method))
    ]
