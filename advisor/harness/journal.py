"""No harm: before a file that existed is changed for the first time, it is copied aside.

The script writes where it expects to. The parent puts everything back once the process is gone
(:mod:`advisor.restore` reads what is written here); after a ``kill -9`` the next ``advisor`` command does.

``journal.jsonl`` has one line per first touch of a path, written before the touch happens:

    {"op": "stash", "path": …, "stash": "journal/000001", "mode": …, "mtime_ns": …}   a file that existed
    {"op": "link", "path": …, "target": …}                                            a symbolic link that existed
    {"op": "dir", "path": …, "mode": …}                                               a folder that existed
    {"op": "new", "path": …}                                                          did not exist

The first line of a path wins, whichever process wrote it. Not covered: what native code writes without telling
Python (HDF5, Parquet writers) and what a subprocess that is not Python writes; such a subprocess is noted.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any

from .layout import JOURNAL_DIR, JOURNAL_LOG

_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_FICLONE = 0x40049409  # linux/fs.h: share the blocks of another file, copy on write


class NoRoomError(OSError):
    """There is no room to keep a copy of a file that the script is about to change."""


class Journal:
    """Keeps what the script is about to change. Installed once per process as an audit hook."""

    def __init__(self, run_dir: str, note: Callable[[str], None]) -> None:
        self._run_dir = os.path.realpath(run_dir)
        self._folder = os.path.join(self._run_dir, JOURNAL_DIR)
        os.makedirs(self._folder, exist_ok=True)
        self._log = os.path.join(self._folder, JOURNAL_LOG)
        self._note = note
        self._seen: set[str] = set()
        self._busy = threading.local()
        self._count = 0
        self.enabled = True
        # Called with the path of each file that is opened for writing: checkpoints are a cause of slow steps.
        self.on_write: Callable[[str], None] | None = None
        skip = ["/dev", "/proc", "/sys", self._run_dir]
        self._skipped = tuple(path + os.sep for path in skip)
        self._caches = tuple(os.path.realpath(path) + os.sep for path in _cache_folders())
        temporary = {os.path.realpath(path) for path in (tempfile.gettempdir(), "/tmp", "/var/tmp")}
        # What tempfile, multiprocessing and Inductor name by themselves; other files there are results like any.
        self._passing = tuple(
            os.path.join(folder, prefix) for folder in temporary for prefix in ("tmp", "pymp-", "torchinductor_")
        )
        self._noted: set[str] = set()
        # Files of the script's own project are never passing, even when the project lies in a temporary folder.
        self._home = tuple(os.path.join(os.path.realpath(path), "") for path in (os.getcwd(), sys.path[0] or "."))

    def install(self) -> None:
        sys.addaudithook(self._audit)

    # Events, as listed in Python's audit events table.

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        handler = _HANDLERS.get(event)
        if handler is None or not self.enabled or getattr(self._busy, "on", False):
            return
        self._busy.on = True
        try:
            handler(self, *arguments)
        except NoRoomError:
            raise
        except (OSError, ValueError, TypeError) as error:
            # The script's own call is about to meet the same trouble, or it is none of ours.
            self._note_once(f"could not be protected: {arguments[0]!r} ({error})")
        finally:
            self._busy.on = False

    def _open(self, path: Any, mode: Any, flags: Any) -> None:
        if isinstance(path, int):
            return
        if isinstance(flags, int) and not flags & _WRITE_FLAGS:
            return
        if isinstance(mode, str) and not set(mode) & set("wax+"):
            return
        self.before_write(path)

    def _rename(self, source: Any, target: Any, source_fd: int = -1, target_fd: int = -1) -> None:
        source_path, target_path = _absolute(source, source_fd), _absolute(target, target_fd)
        if os.path.isdir(source_path) and not os.path.islink(source_path):
            self._keep_tree(source_path)
            for folder, _, files in os.walk(source_path):
                moved = os.path.join(target_path, os.path.relpath(folder, source_path))
                self._keep(os.path.normpath(moved))
                for name in files:
                    self._keep(os.path.normpath(os.path.join(moved, name)))
        else:
            self._keep(source_path)
            self._keep(target_path)

    def _remove(self, path: Any, dir_fd: int = -1) -> None:
        self._keep(_absolute(path, dir_fd))

    def _mkdir(self, path: Any, mode: int = 0o777, dir_fd: int = -1) -> None:
        absolute = _absolute(path, dir_fd)
        if not os.path.lexists(absolute):
            self._keep(absolute)

    def _rmtree(self, path: Any, dir_fd: Any = None) -> None:
        self._keep_tree(_absolute(path, -1 if dir_fd is None else dir_fd))

    def _metadata(self, path: Any, *_: Any) -> None:
        if not isinstance(path, int):
            self._keep(_real(_absolute(path, -1)))

    def _link(self, source: Any, target: Any, *fds: int) -> None:
        self._keep(_absolute(target, fds[-1] if fds else -1))

    def _truncate(self, path: Any, length: int = 0) -> None:
        if not isinstance(path, int):
            self.before_write(path)

    def _sqlite(self, database: Any) -> None:
        name = os.fsdecode(database) if isinstance(database, (str, bytes, os.PathLike)) else ""
        if not name or name == ":memory:" or name.startswith("file:"):
            if name.startswith("file:"):
                self._note_once(f"the SQLite database {name} was opened by URI; what is written to it is not put back")
            return
        for suffix in ("", "-wal", "-journal", "-shm"):
            self._keep(_real(_absolute(name + suffix, -1)))

    def _popen(self, executable: Any, arguments: Any, *_: Any) -> None:
        name = os.path.basename(os.fsdecode(executable if executable else arguments[0]))
        if not name.startswith("python") and name not in _HARMLESS:
            self._note_once(f"the script started {name!r}; files that it writes are not put back")

    # What they share.

    def before_write(self, path: Any) -> None:
        """Call before `path` is opened for writing; native savers call it through their wrappers."""
        real = _real(_absolute(path, -1))
        self._keep(real)
        if self.on_write is not None and not real.startswith(self._skipped):
            self.on_write(real)

    def guard(self, path: Any) -> None:
        """:meth:`before_write` from outside the audit hook."""
        if not self.enabled or getattr(self._busy, "on", False) or not isinstance(path, (str, bytes, os.PathLike)):
            return
        self._busy.on = True
        try:
            self.before_write(path)
        finally:
            self._busy.on = False

    def _keep_tree(self, path: str) -> None:
        if os.path.islink(path) or not os.path.isdir(path):
            self._keep(path)
            return
        for folder, folders, files in os.walk(path):
            self._keep(folder)
            for name in files + [name for name in folders if os.path.islink(os.path.join(folder, name))]:
                self._keep(os.path.join(folder, name))

    def _keep(self, path: str) -> None:
        if path in self._seen or path.startswith(self._skipped):
            return
        self._seen.add(path)
        if path.startswith(self._caches) and not path.startswith(self._home):
            return
        try:
            status = os.lstat(path)
        except OSError:
            if not path.startswith(self._passing) or path.startswith(self._home):
                self._write({"op": "new", "path": path})
            return
        if stat.S_ISLNK(status.st_mode):
            self._write({"op": "link", "path": path, "target": os.readlink(path)})
        elif stat.S_ISDIR(status.st_mode):
            self._write({"op": "dir", "path": path, "mode": stat.S_IMODE(status.st_mode)})
        elif stat.S_ISREG(status.st_mode):
            self._stash(path, status)

    def _stash(self, path: str, status: os.stat_result) -> None:
        self._count += 1
        name = f"{os.getpid()}-{threading.get_ident()}-{self._count:06d}"
        stash = os.path.join(self._folder, name)
        free = shutil.disk_usage(self._folder).free
        if status.st_size > free - (64 << 20):
            raise NoRoomError(
                f"the script is about to change {path} ({status.st_size / 1e9:.1f} GB), and there is no room in "
                f"{self._folder} to keep a copy of it ({free / 1e9:.1f} GB free)"
            )
        _copy(path, stash)
        self._write(
            {
                "op": "stash",
                "path": path,
                "stash": os.path.join(JOURNAL_DIR, name),
                "mode": stat.S_IMODE(status.st_mode),
                "mtime_ns": status.st_mtime_ns,
                "atime_ns": status.st_atime_ns,
            }
        )

    def _write(self, entry: dict[str, Any]) -> None:
        # One write of one line: whole, also when several processes append, and in the kernel's hands if we are killed.
        line = (json.dumps(entry) + "\n").encode("utf-8", "surrogateescape")
        descriptor = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)

    def _note_once(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            self._note(text)


# Programs that libraries start to look around; they write nothing of the user's.
_HARMLESS = frozenset(
    (
        "uname",
        "lscpu",
        "nvidia-smi",
        "rocm-smi",
        "rocminfo",
        "ldconfig",
        "gcc",
        "g++",
        "cc",
        "c++",
        "clang",
        "clang++",
        "ld",
        "as",
        "objdump",
        "nm",
        "which",
        "git",
        "sh",
        "hostname",
        "ptxas",
        "ccache",
        "whoami",
        "id",
        "file",
        "lspci",
    )
)

_HANDLERS: dict[str, Callable[..., None]] = {
    "open": Journal._open,
    "os.rename": Journal._rename,
    "os.remove": Journal._remove,
    "os.rmdir": Journal._remove,
    "os.mkdir": Journal._mkdir,
    "os.truncate": Journal._truncate,
    "os.chmod": Journal._metadata,
    "os.chown": Journal._metadata,
    "os.utime": Journal._metadata,
    "os.link": Journal._link,
    "os.symlink": Journal._link,
    "shutil.rmtree": Journal._rmtree,
    "sqlite3.connect": Journal._sqlite,
    "subprocess.Popen": Journal._popen,
}


def _cache_folders() -> list[str]:
    """Caches are made to be kept, and a program's own business: compiled kernels, downloads, fonts."""
    home = os.path.expanduser("~")
    folders = [os.path.join(home, ".cache"), os.path.join(home, ".triton")]
    names = ("XDG_CACHE_HOME", "TORCH_HOME", "HF_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "MPLCONFIGDIR")
    folders += [os.environ[name] for name in names if os.environ.get(name)]
    folders += [os.path.join(home, ".nv"), os.path.join(home, ".config", "matplotlib")]
    return folders


def _absolute(path: Any, dir_fd: int) -> str:
    text = os.fsdecode(path)
    if not os.path.isabs(text) and isinstance(dir_fd, int) and dir_fd >= 0:
        text = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), text)
    folder, name = os.path.split(os.path.abspath(text))
    # The folder's links are resolved, the last part's are not: a rename or removal acts on the link itself.
    return os.path.join(os.path.realpath(folder), name)


def _real(path: str) -> str:
    return os.path.realpath(path)


def _copy(source: str, target: str) -> None:
    """Copy contents; share the blocks where the file system can."""
    try:
        import fcntl

        with open(source, "rb") as reader, open(target, "wb") as writer:
            fcntl.ioctl(writer.fileno(), _FICLONE, reader.fileno())
        return
    except (ImportError, OSError):
        pass
    try:
        shutil.copyfile(source, target)
    except OSError as error:
        raise NoRoomError(f"no copy of {source} could be kept before the script changes it: {error}") from error
