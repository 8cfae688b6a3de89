"""Runs the user's script as ``__main__``, the way ``python script.py`` or ``python -m module`` would."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
import faulthandler
import gc
import io
import linecache
import os
import runpy
import signal
import sys
import time
from types import CodeType, ModuleType
from typing import Any

from .explicit_step import offer_step
from .how_ended import NoModuleError, exited, failed, watch
from .imports import PostImport
from .layout import Failure, Options, RunRecord
from .observer import Observer
from .options import home, read_options
from .overlay import Overlay
from .patches import Patch
from .ranks import stay_measured
from .seeds import seed_generators
from .settings_files import SettingsFiles
from .stop import Stop, end_process, leave
from .undo.journal import Journal, cache_folders
from .undo.savers import protect

HANG_FILE = "hang.txt"

# Standard modules that only we load, as far as a script with torch is concerned.
_OURS_ONLY = ("statistics", "decimal", "fractions", "shlex", "resource")

_FILE = io.IOBase.__bases__[0]  # without the registry of abstract classes, which would ask every type at length
_BUFFERED = (io.BufferedWriter, io.BufferedRandom, io.BytesIO)


def main(options_path: str) -> None:
    """Run the script, observe it, write the record; never returns a half-written one."""
    ending = _Ending()
    options = read_options(options_path)
    _die_with_parent(options.parent_pid)
    record = RunRecord(
        script=options.script, module=options.module, argv=list(options.argv), cwd=os.getcwd(), started=time.time()
    )
    if hasattr(signal, "SIGUSR2"):
        # The parent asks with this signal where a script hangs; a handler of the script's own replaces it.
        hang = open(os.path.join(options.run_dir, HANG_FILE), "w", encoding="utf-8")  # noqa: SIM115 – open to the end
        faulthandler.register(signal.SIGUSR2, file=hang, all_threads=False)
    if options.overlay:
        Overlay(options.overlay).install()
    imports = PostImport()
    journal = None
    if options.restore:
        notes: list[str] = record.notes
        journal = Journal(
            options.run_dir, lambda text: notes.append(text) if text not in notes else None, home(options)
        )
        served = {os.path.dirname(path) for path in options.overlay.values()}
        journal.on_read = SettingsFiles(record.settings, (options.run_dir, *served, *cache_folders())).read
    observer = Observer(options, record, imports, journal)
    observer.on_stop = watch
    if journal is not None:
        protect(imports, journal)
        journal.install()
    _watch_exit(observer)
    stay_measured(options, imports)
    offer_step(imports, observer)
    _arrange_path(options)
    if options.seed is not None:
        seed_generators(options.seed, imports)
    status = 1
    try:
        _forget_hidden(options)
        _run(options)
    except Stop:
        status = 0
    except SystemExit as error:
        status = exited(error, observer)
    except KeyboardInterrupt:
        observer.write(Failure(kind="interrupt", message="interrupted"))
        status = 130
    except BaseException as error:
        status = failed(error, observer)
    else:
        record.ended = record.ended or "finished"
        observer.write()
        status = 0
    if observer.windows is not None and observer.windows.leave_at_once:
        end_process(status)
    if observer.stop_requested:
        status = 0
    else:
        watch()
    if options.restore:
        ending.status = status
    sys.exit(status)  # threads, atexit: as Python ends, with the status that says whether the record is good


class _Ending:
    """Ends the process after the last exit handler, where `status` was set: made before any other one is registered.

    What Python would do then is to take modules and objects apart, one by one: a second or more with torch and its
    compiler, in each run. Nobody waits for what they do there where files are put back as they were, but for what is
    left in the buffers of files; where they are not put back the end is Python's own, as is that of a forked child.
    """

    def __init__(self) -> None:
        self.status: int | None = None
        self._pid = os.getpid()
        atexit.register(self._end)

    def _end(self) -> None:
        if self.status is not None and os.getpid() == self._pid:
            _write_buffers()
            with contextlib.suppress(OSError, AttributeError, TypeError):
                ctypes.CDLL(None).fflush(None)  # what C extensions printed
            end_process(self.status)


def _write_buffers() -> None:
    """What was written to files that the script has not closed, as Python does when it takes them apart."""
    gc.unfreeze()  # what the script hides from the collector, too
    files = [each for each in gc.get_objects() if issubclass(type(each), _FILE)]
    texts = [each for each in files if isinstance(each, io.TextIOWrapper)]
    buffers = [each for each in files if isinstance(each, _BUFFERED)]
    packed = [each for each in files if isinstance(each, io.BufferedIOBase) and not isinstance(each, _BUFFERED)]
    # What writes through another file comes first. Compressed ones have an end to write, and are closed for it.
    written = [(each, each.flush) for each in texts] + [(each, each.close) for each in packed]
    for each, write in written + [(each, each.flush) for each in buffers]:
        with contextlib.suppress(Exception):
            if each.writable():
                write()


def _run(options: Options) -> None:
    module, code = _load(options)
    sys.modules["__main__"] = module
    exec(code, module.__dict__)


def _load(options: Options) -> tuple[ModuleType, CodeType]:
    """The script's code and a real module for it: loader workers and pickles look for ``__main__`` there."""
    module = ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    if options.module:
        # runpy's own search, so that packages with __main__ and namespace packages behave as under `python -m`.
        # An ImportError of the package's own is not "no such module": that one comes as ours.
        _, spec, code = runpy._get_module_details(options.script, NoModuleError)  # type: ignore[attr-defined]
        module.__spec__ = spec
        module.__file__ = spec.origin
        module.__package__ = spec.parent
        module.__loader__ = spec.loader
        sys.argv = [spec.origin, *options.argv]
        return module, code
    # Absolute, as Python makes it: workers and `inspect` look for it after the script went to another folder, too.
    path = os.path.join(os.getcwd(), options.script)
    module.__file__ = path
    module.__spec__ = None
    module.__package__ = None
    sys.argv = [options.script, *options.argv]
    with io.open_code(path) as file:
        source = file.read()
    linecache.checkcache(path)
    return module, compile(source, path, "exec", dont_inherit=True)


def _arrange_path(options: Options) -> None:
    """``sys.path[0]`` as Python sets it: the script's folder, or the current one for ``-m``."""
    first = os.getcwd() if options.module else os.path.dirname(os.path.realpath(options.script))
    sys.path.insert(0, first)


def _watch_exit(observer: Observer) -> None:
    """``os._exit`` leaves no time for anything: what was measured is written before it."""
    pid = os.getpid()

    def make(original: Any) -> Any:
        def leave(status: int) -> Any:
            if os.getpid() == pid:  # not in a forked child, which always leaves like this
                with contextlib.suppress(Exception):
                    exited(SystemExit(status), observer, "os._exit")
            return original(status)

        return leave

    Patch(os, "_exit", make).on()


def _die_with_parent(parent: int) -> None:
    """On Linux: when ``advisor`` itself is killed, its script goes too (prctl(2), PR_SET_PDEATHSIG)."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    if parent and os.getppid() != parent:
        leave(1)  # it was killed before the system knew


def _forget_hidden(options: Options) -> None:
    """The script's own modules come first, as in plain Python, also where a standard one of that name is in our use.

    A folder with a `statistics.py` or a `profile.py` works under plain Python as long as nothing else asks for those.
    """
    for name in _OURS_ONLY:
        if any(os.path.exists(os.path.join(sys.path[0], name + ending)) for ending in (".py", "/__init__.py")):
            sys.modules.pop(name, None)
