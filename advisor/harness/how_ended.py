"""How the script ended, and that it really does."""

from __future__ import annotations

import contextlib
import errno
import os
import runpy
import sys
import threading
import traceback

from .layout import Failure
from .observer import Observer
from .stop import end_process
from .undo.journal import NoRoomError

# How long a script may take to end once it was told to stop (`finally` blocks, atexit) before it is ended.
_GRACE_SECONDS = 10.0
_HERE = os.path.dirname(os.path.abspath(__file__))
# As PyTorch, CUDA's libraries (CUBLAS_STATUS_ALLOC_FAILED) and the system say it, in small letters.
_NO_MEMORY = ("out of memory", "can't allocate memory", "_status_alloc_failed")


class NoModuleError(Exception):
    """``-m`` names a module that is not there."""


def exited(error: SystemExit, observer: Observer, how: str = "sys.exit") -> int:
    """Write the record of a script that ended itself; the status with which we end: 0 when the record is good."""
    code = error.code
    number = 0 if code is None else code if isinstance(code, int) else 1
    enough = observer.windows is not None and observer.windows.boundaries >= 2
    if number == 0 or enough:
        observer.record.ended = observer.record.ended or "finished"
        observer.write()
        return 0
    message = f"the script ended itself with {how}({code!r})"
    observer.write(Failure(kind="exit", message=message, exit_code=number))
    return 1


def failed(error: BaseException, observer: Observer, say: bool = True) -> int:
    """Write the record of a script that failed; the status with which we end.

    `say`: print its traceback, as Python does.
    """
    if observer.stop_requested:
        return 0  # a `finally` of the script's that failed because we stopped it
    kind = "exception"
    text = str(error)
    out_of_memory = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    if out_of_memory or any(each in text.lower() for each in _NO_MEMORY):
        kind = "oom"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        kind = "no_room"
    if isinstance(error, NoModuleError):
        observer.write(Failure(kind="no_module", message=f"there is no module to run: {text}"))
        return 1
    last = traceback.format_exception_only(type(error), error)[-1].strip()
    if isinstance(error, NoRoomError):
        kind, last = "no_room", error.strerror or str(error)
    own = _without_ours(error)
    observer.write(Failure(kind=kind, message=last, traceback=own))
    with contextlib.suppress(Exception):
        if say:
            sys.stderr.write(own)
    return 1


def _without_ours(error: BaseException) -> str:
    """The traceback as the script would have shown it: frames of the harness left out."""
    summary = traceback.TracebackException.from_exception(error)
    _clean(summary)
    return "".join(summary.format())


def _clean(summary: traceback.TracebackException) -> None:
    summary.stack = traceback.StackSummary.from_list([frame for frame in summary.stack if not _ours(frame.filename)])
    for linked in (summary.__cause__, summary.__context__):
        if linked is not None:
            _clean(linked)


def _ours(filename: str) -> bool:
    return os.path.abspath(filename).startswith(_HERE + os.sep) or filename in ("<frozen runpy>", runpy.__file__)


def watch() -> None:
    """The record is written; a script that does not end by itself now is ended."""
    timer = threading.Timer(_GRACE_SECONDS, end_process, (0,))
    timer.daemon = True
    timer.start()
