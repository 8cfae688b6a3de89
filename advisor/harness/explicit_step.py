"""``advisor.step()`` in a script, for loops whose steps nothing else tells."""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .imports import PostImport

if TYPE_CHECKING:
    from .observer import Observer  # not to be loaded by every worker

_HERE = os.path.dirname(os.path.abspath(__file__))


def offer_step(imports: PostImport, observer: Observer) -> None:
    """``import advisor; advisor.step()`` works in the script, whether or not we are installed for its Python."""

    def step() -> None:
        if observer.windows is not None:
            observer.windows.explicit_step()

    def loaded(module: ModuleType) -> None:
        if hasattr(module, "_on_step"):
            module.__dict__["_on_step"] = step

    imports.when_imported("advisor", loaded)
    find_advisor()


def find_advisor() -> None:
    """From now on ``import advisor`` finds our own where nobody else has one."""
    sys.meta_path.append(_Fallback())


class _Fallback:
    """Finds our own ``advisor`` when nobody else does: only its ``step`` is there for the script."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname != "advisor":
            return None
        import importlib.util

        return importlib.util.spec_from_file_location("advisor", os.path.join(os.path.dirname(_HERE), "__init__.py"))
