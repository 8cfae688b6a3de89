"""Serves patched sources under the names of the original files; the files themselves stay as they are.

Every way in which Python comes to a source is covered where it asks for the bytes:

- imports, ``python -m`` and a folder with a ``__main__.py`` go through ``SourceFileLoader.get_code``, which would take
  a valid ``.pyc`` of the original without looking at the source: for a patched file it must not;
- :func:`io.open_code` is what the runner, loaders and :mod:`runpy` read by (a spawned worker reads the script again);
- :mod:`linecache` answers tracebacks and :mod:`inspect` – with them ``@torch.jit.script``, which reads the lines of a
  function by their numbers and crashes when these are shifted;
- the main script of a Python that the script starts (``torchrun`` does) is read in C: :class:`_Main` stands in for it;
- settings (JSON, YAML, TOML) are read by :func:`open`, until the script itself writes the file.

Not covered: a script that reads a source by ``open`` and ``exec``; a Python that is started without its environment.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib.util
import io
import linecache
import os
import runpy
import sys
import traceback
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType, TracebackType
from typing import Any

from .patches import Patch
from .settings_files import SUFFIXES

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


class Overlay:
    """The patched sources of a run: absolute path → the file that holds the patched bytes."""

    def __init__(self, files: dict[str, str]) -> None:
        self._sources: dict[str, bytes] = {}
        self._data: dict[str, str] = {}
        for path, patched in files.items():
            if path.endswith(SUFFIXES):
                self._data[os.path.realpath(path)] = patched
                continue
            with open(patched, "rb") as file:
                source = file.read()
            # Python may come by either name: the one that was given, or that behind a linked folder.
            for name in (os.path.abspath(path), os.path.realpath(path)):
                self._sources[name] = source
        self._names = {os.path.basename(path) for path in self._sources}
        self._data_names = {os.path.basename(path) for path in self._data}

    def source(self, path: Any) -> bytes | None:
        """The patched bytes of `path`; None when it is not patched."""
        try:
            name = os.fsdecode(path)
        except TypeError:
            return None
        found = self._sources.get(name)
        # Resolving links asks the system for every folder on the way: only for paths that may be one of these.
        if found is None and (os.path.basename(name) in self._names or os.path.islink(name)):
            found = self._sources.get(os.path.realpath(name))
        return found

    def install(self) -> None:
        """From now on, in this process and those forked from it, patched files read as patched."""
        opened = Patch(io, "open_code", self._open_code)
        opened.on()
        import _io  # the import system's own name for it

        setattr(_io, "open_code", opened.replacement)  # noqa: B010 – mypy knows no such attribute
        Patch(SourceFileLoader, "get_code", self._get_code).on()
        Patch(linecache, "updatecache", self._update_cache).on()
        if self._data:
            by_name = Patch(builtins, "open", self._open)
            by_name.on()
            setattr(io, "open", by_name.replacement)  # noqa: B010 – pathlib's name for the same
            _paths_open_by(by_name.replacement)

    def serve_main(self) -> None:
        """In a Python that is starting: its main script is patched, too, should it be one of these."""
        sys.path_hooks.insert(0, _Main(self))

    def _open_code(self, original: Any) -> Any:
        def open_code(path: Any) -> Any:
            source = self.source(path)
            return original(path) if source is None else io.BytesIO(source)

        return open_code

    def _open(self, original: Any) -> Any:
        def open_(file: Any, mode: Any = "r", *args: Any, **kwargs: Any) -> Any:
            patched = self._patched_data(file, mode)
            return original(file if patched is None else patched, mode, *args, **kwargs)

        return open_

    def _patched_data(self, file: Any, mode: Any) -> str | None:
        """The file that stands in for `file`, should it be patched settings, opened to be read."""
        if not isinstance(file, (str, bytes, os.PathLike)):
            return None
        name = os.fsdecode(file)
        # By its name first: this runs at each open, and to ask whether a file is a link asks the system.
        if not name.endswith(SUFFIXES) or (os.path.basename(name) not in self._data_names and not os.path.islink(name)):
            return None
        path = os.path.realpath(name)
        if isinstance(mode, str) and set(mode) & set("wax+"):
            self._data.pop(path, None)  # what the script writes is what it reads again
        return self._data.get(path)

    def _get_code(self, original: Any) -> Any:
        def get_code(loader: SourceFileLoader, fullname: str) -> Any:
            path = loader.get_filename(fullname)
            source = self.source(path)
            # Compiled anew each time: what lies in __pycache__ is the original's, and nothing is written there.
            return original(loader, fullname) if source is None else loader.source_to_code(source, path)

        return get_code

    def _update_cache(self, original: Any) -> Any:
        def updatecache(filename: str, module_globals: Any = None) -> list[str]:
            source = self.source(filename)
            if source is None:
                lines: list[str] = original(filename, module_globals)
                return lines
            try:
                text = importlib.util.decode_source(source)
            except (SyntaxError, UnicodeDecodeError):
                return []
            lines = io.StringIO(text).readlines()
            if lines and not lines[-1].endswith("\n"):
                lines[-1] += "\n"
            # Without a time of change it is never compared with the file on disk, and thrown away.
            linecache.cache[filename] = (len(source), None, lines, filename)
            return lines

        return updatecache


def _paths_open_by(replacement: Any) -> None:
    """``Path.open`` of Python 3.10: a class of pathlib's took ``io.open`` for its own when it was imported.

    A builtin stays as it is there; a function of Python's would become a method, and be given the accessor as its file.
    """
    if sys.version_info >= (3, 11):
        return
    import pathlib

    accessor = getattr(pathlib, "_NormalAccessor", None)
    if accessor is not None and hasattr(accessor, "open"):
        accessor.open = staticmethod(replacement)


class _Main(Loader):
    """Stands in for the main script of a starting interpreter, which reads that one in C, past everything above.

    Before it does, it asks ``sys.path_hooks`` whether its path is a folder or an archive to be run
    (``pymain_get_importer`` in CPython's ``Modules/main.c``, 3.10 to 3.14). This hook says so of a patched script;
    :mod:`runpy` then asks it for the code of ``__main__``, and it runs the script as Python would have.
    """

    def __init__(self, overlay: Overlay) -> None:
        self._overlay = overlay
        self._path = ""

    def __call__(self, path: str) -> _Main:
        try:
            sys._getframe(1)
        except ValueError:  # nothing in Python has called this: it is the interpreter itself, and asks but once
            with contextlib.suppress(ValueError):
                sys.path_hooks.remove(self)
            if self._overlay.source(path) is not None:
                self._path = path
                return self
        raise ImportError(path)

    def find_spec(self, fullname: str, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != "__main__":
            return None
        return ModuleSpec(fullname, self, origin=self._path)

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        self.run(module.__dict__)

    def get_code(self, fullname: str) -> CodeType:
        return compile("__loader__.run(globals())", __file__, "exec")

    def run(self, namespace: dict[str, Any]) -> None:
        """Leave everything as ``python script.py`` has it, and run the patched script in `namespace`."""
        path = self._path
        sys.path_importer_cache[path] = None  # neither a folder nor an archive, after all
        if sys.path and sys.path[0] == path:
            sys.path[:1] = [] if getattr(sys.flags, "safe_path", False) else [os.path.dirname(os.path.realpath(path))]
        loader = SourceFileLoader("__main__", path)
        namespace.update(__file__=path, __spec__=None, __package__=None, __cached__=None, __loader__=loader)
        if sys.excepthook is sys.__excepthook__:
            sys.excepthook = _show
        source = self._overlay.source(path)
        assert source is not None
        exec(compile(source, path, "exec", dont_inherit=True), namespace)


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """The traceback as ``python script.py`` shows it: from the script on, and with the lines that ran.

    Before 3.13 the interpreter's own reads them from the file on disk.
    """
    while trace is not None and _ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    traceback.print_exception(kind, error, trace)


def _ours(filename: str) -> bool:
    return filename.startswith(_HERE) or filename in ("<frozen runpy>", runpy.__file__)
