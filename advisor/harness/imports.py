"""Do something right after a module was imported, without importing it ourselves.

The script decides when torch is loaded: variables that it sets before (``OMP_NUM_THREADS`` …) must still count.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Callback = Callable[[ModuleType], None]


class _CallingLoader(Loader):
    """Delegates to the real loader, then calls back; afterwards the spec names the real loader again."""

    def __init__(self, real: Any, callbacks: Callable[[], list[Callback]]) -> None:
        self._real = real
        self._callbacks = callbacks

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._real.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._real
        module.__loader__ = self._real
        self._real.exec_module(module)
        for callback in self._callbacks():
            callback(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class PostImport(MetaPathFinder):
    """A finder that finds nothing itself: it lets the others find, and wraps the loader of the names it waits for."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[Callback]] = {}
        self._searching: set[str] = set()

    def when_imported(self, name: str, callback: Callback) -> None:
        """Call ``callback(module)`` once ``name`` is imported; at once when it is already."""
        module = sys.modules.get(name)
        if module is not None:
            callback(module)
            return
        self._waiting.setdefault(name, []).append(callback)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._waiting or fullname in self._searching:
            return None
        self._searching.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        except (ImportError, ValueError):
            return None
        finally:
            self._searching.discard(fullname)
        if spec is None or spec.loader is None:
            return None
        # Who asks may only want to know whether there is such a module (transformers does, of torch): as long as nobody
        # has executed it, it is waited for.
        spec.loader = _CallingLoader(spec.loader, lambda: self._waiting.pop(fullname, []))
        return spec
