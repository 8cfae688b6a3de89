"""No harm: before a file that existed is changed for the first time, it is copied aside.

The script writes where it expects to. The parent puts everything back once the process is gone
(:mod:`advisor.restore` reads what is written here); after a ``kill -9`` the next ``advisor`` command does.

``journal.jsonl`` has one line per first touch of a path, written before the touch happens:

    {"op": "stash", "path": …, "stash": "journal/…", "inode": "journal/…", "mode": …, …}   a file that existed
    {"op": "link", "path": …, "target": …}                                                 a symbolic link that existed
    {"op": "dir", "path": …, "mode": …}                                                    a folder that existed
    {"op": "new", "path": …}                                                               did not exist
    {"op": "list", "path": …, "names": […]}             what was in a folder before native code wrote its own names

The first line of a path wins, whichever process wrote it. ``stash`` is a copy of the contents; ``inode`` is a second
hard link to the file itself, so that other hard links, owners and extended attributes survive a replacement. A file
that is about to be removed or replaced needs no copy: then ``stash`` is null and the link alone is kept (a large old
checkpoint costs no time and no room). Should the removal fail and the file be written after all, a copy follows in
a second line, and counts.

Not covered: what native code writes without telling Python (:mod:`.savers` knows the usual ones), and what a program
that is not Python writes to files that its command line does not name (:mod:`.programs`); such a program is noted.
"""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

from ..layout import JOURNAL_DIR, JOURNAL_LOG
from ..patches import Patch
from . import programs

_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_FICLONE = 0x40049409  # linux/fs.h: share the blocks of another file, copy on write
_CHUNK = 1 << 20  # bytes
_ROOM = 64 << 20  # bytes that stay free: a copy of ours must not fill the disk to the brim


class NoRoomError(OSError):
    """What the script is about to change could not be kept, so it must not be changed."""


class Journal:
    """Keeps what the script is about to change. Installed once per process as an audit hook.

    ``home`` names the folders of the script's own project: files there are never taken for passing ones, even when
    the project lies in a temporary or a cache folder.
    """

    def __init__(self, run_dir: str, note: Callable[[str], None], home: tuple[str, ...] = ()) -> None:
        self._run_dir = os.path.realpath(run_dir)
        self._folder = os.path.join(self._run_dir, JOURNAL_DIR)
        os.makedirs(self._folder, exist_ok=True)
        self._log = os.path.join(self._folder, JOURNAL_LOG)
        self._note = note
        self._seen: set[str] = set()
        self._held: dict[str, dict[str, Any]] = {}  # entries without a copy
        self._here = threading.local()
        # Another thread must not write a file whose copy is still being made. A fork takes the lock along.
        self._lock = threading.RLock()
        self._count = 0
        self._clones = True
        # Called with the path of each file that is opened for writing: checkpoints are a cause of slow steps.
        self.on_write: Callable[[str], None] | None = None
        # Called with the path of each file that is opened for reading: settings are among them.
        self.on_read: Callable[[Any], None] | None = None
        skip = ["/dev", "/proc", "/sys", self._run_dir]
        self._skipped = tuple(path + os.sep for path in skip)
        self._caches = tuple(os.path.realpath(path) + os.sep for path in cache_folders())
        temporary = {os.path.realpath(path) for path in (tempfile.gettempdir(), "/tmp", "/var/tmp")}
        # What tempfile, multiprocessing and Inductor name by themselves; other files there are results like any.
        self._passing = tuple(
            os.path.join(folder, prefix) for folder in temporary for prefix in ("tmp", "pymp-", "torchinductor_")
        )
        self._noted: set[str] = set()
        self._home = tuple(os.path.join(os.path.realpath(path), "") for path in (os.getcwd(), *home) if path)

    @property
    def enabled(self) -> bool:
        """Whether this thread's changes are kept; the others' always are."""
        return not getattr(self._here, "off", False)

    @enabled.setter
    def enabled(self, on: bool) -> None:
        self._here.off = not on

    def install(self) -> None:
        """From now on every change is kept before it happens; there is no way back."""
        os.register_at_fork(
            before=self._lock.acquire, after_in_parent=self._lock.release, after_in_child=self._lock.release
        )
        sys.addaudithook(self._audit)
        # No audit event tells the folder to which these are relative, or none is raised at all.
        opened = Patch(os, "open", self._wrap_open)
        opened.on()
        os.supports_dir_fd.add(opened.replacement)
        for name in ("mkfifo", "mknod"):
            if hasattr(os, name):
                made = Patch(os, name, self._wrap_make)
                made.on()
                os.supports_dir_fd.add(made.replacement)

    # Events, as listed in Python's audit events table.

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        handler = _HANDLERS.get(event)
        if handler is None or getattr(self._here, "busy", False) or not self.enabled:
            return
        self._here.busy = True
        try:
            with self._lock:
                handler(self, *arguments)
        except NoRoomError:
            raise
        except (OSError, ValueError, TypeError) as error:
            # The script's own call is about to meet the same trouble, or it is none of ours.
            self._note_once(f"could not be protected: {arguments[0]!r} ({error})")
        finally:
            self._here.busy = False

    def _open(self, path: Any, mode: Any, flags: Any) -> None:
        if isinstance(path, int):
            return
        read = isinstance(flags, int) and not flags & _WRITE_FLAGS
        if not read and not (isinstance(mode, str) and not set(mode) & set("wax+")):
            self.before_write(path)
        elif self.on_read is not None:
            self.on_read(path)

    def _rename(self, source: Any, target: Any, source_fd: int = -1, target_fd: int = -1) -> None:
        source_path, target_path = _absolute(source, source_fd), _absolute(target, target_fd)
        if not os.path.isdir(source_path) or os.path.islink(source_path):
            self._keep(source_path)
            self._keep(target_path, removal=True)
            return
        self._not_ours(source_path)
        self._keep_tree(source_path)
        for folder, folders, files in os.walk(source_path):
            moved = os.path.normpath(os.path.join(target_path, os.path.relpath(folder, source_path)))
            self._keep(moved)
            for name in files + _links(folder, folders):
                self._keep(os.path.join(moved, name))

    def _remove(self, path: Any, dir_fd: int = -1) -> None:
        self._keep(_absolute(path, dir_fd), removal=True)

    def _mkdir(self, path: Any, mode: int = 0o777, dir_fd: int = -1) -> None:
        absolute = _absolute(path, dir_fd)
        if not os.path.lexists(absolute):
            self._keep(absolute)

    def _rmtree(self, path: Any, dir_fd: Any = None) -> None:
        absolute = _absolute(path, -1 if dir_fd is None else dir_fd)
        self._not_ours(absolute)
        self._keep_tree(absolute, removal=True)

    def _metadata(self, path: Any, *arguments: Any) -> None:
        folder = arguments[-1] if arguments and isinstance(arguments[-1], int) else -1
        absolute = _of_descriptor(path) if isinstance(path, int) else _absolute(path, folder)
        if absolute:
            # The link as well: with follow_symlinks=False its own times are meant.
            self._keep(absolute)
            self._keep(os.path.realpath(absolute))

    def _link(self, source: Any, target: Any, source_fd: int = -1, target_fd: int = -1) -> None:
        # Writing through the new name changes the old file: both are kept.
        self._keep(_absolute(source, source_fd))
        self._keep(os.path.realpath(_absolute(source, source_fd)))
        self._keep(_absolute(target, target_fd))

    def _symlink(self, source: Any, target: Any, dir_fd: int = -1) -> None:
        self._keep(_absolute(target, dir_fd))

    def _truncate(self, path: Any, length: int = 0) -> None:
        name = _of_descriptor(path) if isinstance(path, int) else path
        if name:
            self.before_write(name)

    def _sqlite(self, database: Any) -> None:
        if not isinstance(database, (str, bytes, os.PathLike)):
            return
        name = programs.sqlite_file(os.fsdecode(database))
        for suffix in ("", "-wal", "-journal", "-shm") if name else ():
            self._keep(os.path.realpath(_absolute(name + suffix, -1)))

    def _bind(self, socket: Any, address: Any) -> None:
        if isinstance(address, (str, bytes)) and address[:1] not in ("\0", b"\0", "", b""):
            self._keep(_absolute(address, -1))

    def _popen(self, executable: Any, arguments: Any, cwd: Any = None, env: Any = None) -> None:
        words = [arguments] if isinstance(arguments, (str, bytes, os.PathLike)) else list(arguments)
        if executable and words:
            words[0] = executable
        self._program([os.fsdecode(word) for word in words], os.fsdecode(cwd) if cwd else os.getcwd(), env)

    def _system(self, command: Any) -> None:
        self._program(["sh", "-c", os.fsdecode(command)], os.getcwd(), None)

    def _spawn(self, path: Any, arguments: Any, env: Any = None) -> None:
        self._program([os.fsdecode(path), *map(os.fsdecode, arguments[1:])], os.getcwd(), env)

    def _program(self, words: list[str], cwd: str, env: Any) -> None:
        """Another program is started: keep what its command line names."""
        program = programs.look_at(words, cwd, env)
        for path in program.names:
            if program.removes:
                self._not_ours(_absolute(path, -1))
                self._keep_tree(_absolute(path, -1))  # with copies: `mv` leaves the file where it can be written
                continue
            for target in dict.fromkeys((_absolute(path, -1), os.path.realpath(path))):
                if not self._keep_some(target):
                    program = program.exceeding(target)
        if program.note:
            self._note_once(program.note)

    # What they share.

    def before_write(self, path: Any) -> None:
        """Call before `path` is opened for writing; native savers call it through their wrappers."""
        absolute = os.fsdecode(path)
        if os.path.islink(absolute) or not os.path.lexists(absolute):
            absolute = os.path.realpath(absolute)
        else:
            absolute = _absolute(absolute, -1)
        self._keep(absolute)
        if self.on_write is not None and not absolute.startswith(self._skipped):
            self.on_write(absolute)

    def guard(self, path: Any, folder: bool = False) -> None:
        """:meth:`before_write` from outside the audit hook; with `folder` for everything in that folder."""
        busy = getattr(self._here, "busy", False) or not self.enabled
        if busy or not isinstance(path, (str, bytes, os.PathLike)):
            return
        self._here.busy = True
        try:
            with self._lock:
                if folder:
                    self._keep_folder(os.path.realpath(os.fsdecode(path)))
                else:
                    self.before_write(path)
        finally:
            self._here.busy = False

    def _wrap_open(self, original: Any) -> Any:
        def open_(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> Any:
            if dir_fd is None:
                return original(path, flags, mode)
            if flags & _WRITE_FLAGS:
                self.guard(_absolute(path, dir_fd))
            return original(path, flags, mode, dir_fd=dir_fd)

        return open_

    def _wrap_make(self, original: Any) -> Any:
        def make(path: Any, *args: Any, **kwargs: Any) -> Any:
            folder = kwargs.get("dir_fd")
            self.guard(_absolute(path, -1 if folder is None else folder))
            return original(path, *args, **kwargs)

        return make

    def _not_ours(self, path: str) -> None:
        """The run folder, with all that must be put back, is not for the script to remove or to move."""
        if self._run_dir == path or self._run_dir.startswith(path + os.sep):
            raise NoRoomError(
                errno.EPERM,
                f"the script is about to remove or move {path}, which holds the advisor's own folder {self._run_dir}",
            )

    def _keep_tree(self, path: str, removal: bool = False) -> None:
        if os.path.islink(path) or not os.path.isdir(path):
            self._keep(path, removal)
            return
        for folder, folders, files in os.walk(path):
            self._keep(folder)
            for name in files + _links(folder, folders):
                self._keep(os.path.join(folder, name), removal)

    def _keep_some(self, path: str) -> bool:
        """Like :meth:`_keep_tree`, unless that is much: then False, and nothing is kept."""
        size = 0
        for folder, _, files in os.walk(path):
            for name in files:
                size += os.lstat(os.path.join(folder, name)).st_size
                if size > programs.MOST_BYTES:
                    return False
        if os.path.isfile(path) and os.path.getsize(path) > programs.MOST_BYTES:
            return False
        self._keep_tree(path)
        return True

    def _keep_folder(self, path: str) -> None:
        """Native code is about to write files of its own choice into this folder."""
        if not os.path.isdir(path):
            self._keep(path)
            return
        names = os.listdir(path)
        for name in names:
            if os.path.isfile(os.path.join(path, name)):
                self._keep(os.path.join(path, name))
        if f"{path}/*" not in self._seen and not path.startswith(self._skipped):
            self._write({"op": "list", "path": path, "names": names})
            self._seen.add(f"{path}/*")

    def _keep(self, path: str, removal: bool = False) -> None:
        if path in self._held and not removal:
            self._copy_held(path)
        if path in self._seen or path.startswith(self._skipped):
            if path.startswith(self._folder):
                raise NoRoomError(errno.EPERM, f"{path} is the advisor's own, to put files back")
            return
        if path.startswith(self._caches) and not path.startswith(self._home):
            self._seen.add(path)
            return
        try:
            status = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            if not path.startswith(self._passing) or path.startswith(self._home):
                self._write({"op": "new", "path": path})
        else:
            owner = {"uid": status.st_uid, "gid": status.st_gid}
            if stat.S_ISLNK(status.st_mode):
                self._write({"op": "link", "path": path, "target": os.readlink(path)})
            elif stat.S_ISDIR(status.st_mode):
                self._write({"op": "dir", "path": path, "mode": stat.S_IMODE(status.st_mode), **owner})
            elif stat.S_ISREG(status.st_mode):
                self._stash(path, status, owner, removal)
        self._seen.add(path)  # only now: what could not be kept is not changed at a second try either

    def _stash(self, path: str, status: os.stat_result, owner: dict[str, int], removal: bool) -> None:
        self._count += 1
        # The time as well: process ids are used again.
        name = os.path.join(JOURNAL_DIR, f"{os.getpid()}-{time.time_ns():x}-{self._count}")
        inode: str | None = f"{name}.inode"
        try:
            os.link(path, os.path.join(self._run_dir, f"{name}.inode"), follow_symlinks=False)
        except OSError:
            inode = None  # another file system, or one without hard links
        held = removal and inode is not None and status.st_nlink == 1
        if not held:
            self._copy(path, os.path.join(self._run_dir, name), status.st_size)
        entry = {
            "op": "stash",
            "path": path,
            "stash": None if held else name,
            "inode": inode,
            "ino": [status.st_dev, status.st_ino],
            "mode": stat.S_IMODE(status.st_mode),
            "mtime_ns": status.st_mtime_ns,
            "atime_ns": status.st_atime_ns,
            **owner,
        }
        self._write(entry)
        if held:
            self._held[path] = entry

    def _copy_held(self, path: str) -> None:
        """A file that should have been removed is still there, and about to be written."""
        entry = self._held[path]
        try:
            status = os.lstat(path)
        except OSError:
            return
        if [status.st_dev, status.st_ino] == entry["ino"]:
            name = entry["inode"].removesuffix(".inode")
            self._copy(path, os.path.join(self._run_dir, name), status.st_size)
            self._write({**entry, "stash": name})
            del self._held[path]

    def _copy(self, source: str, target: str, size: int) -> None:
        """Copy contents; share the blocks where the file system can."""
        if self._clones:
            try:
                import fcntl

                with io.FileIO(source) as reader, io.FileIO(target, "w") as writer:
                    fcntl.ioctl(writer.fileno(), _FICLONE, reader.fileno())
                return
            except (ImportError, OSError):
                self._clones = False
        free = shutil.disk_usage(self._folder).free
        if size > free - _ROOM:
            raise NoRoomError(
                errno.ENOSPC,
                f"the script is about to change {source} ({_size(size)}), and there is no room in {self._folder} to "
                f"keep a copy of it ({_size(free)} free)",
            )
        try:
            # Not by `open`: the overlay serves a patched file by that name.
            with io.FileIO(source) as reader, io.FileIO(target, "w") as writer:
                shutil.copyfileobj(reader, writer, _CHUNK)
        except OSError as error:
            raise NoRoomError(
                error.errno, f"no copy of {source} could be kept before the script changes it ({error.strerror})"
            ) from error

    def _write(self, entry: dict[str, Any]) -> None:
        # One write of one line: whole, also when several processes append, and in the kernel's hands if we are killed.
        # The empty line before it keeps it apart from one that a full disk cut short.
        line = ("\n" + json.dumps(entry) + "\n").encode()
        try:
            descriptor = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                written = os.write(descriptor, line)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise NoRoomError(error.errno, f"the journal {self._log} cannot be written ({error.strerror})") from error
        if written != len(line):
            raise NoRoomError(errno.ENOSPC, f"the journal {self._log} cannot be written (no space left)")

    def _note_once(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            self._note(text)


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
    "os.setxattr": Journal._metadata,
    "os.removexattr": Journal._metadata,
    "os.link": Journal._link,
    "os.symlink": Journal._symlink,
    "shutil.rmtree": Journal._rmtree,
    "sqlite3.connect": Journal._sqlite,
    "socket.bind": Journal._bind,
    "subprocess.Popen": Journal._popen,
    "os.system": Journal._system,
    "os.posix_spawn": Journal._spawn,
    "os.exec": Journal._spawn,
}


def cache_folders() -> list[str]:
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
        text = os.path.join(_of_descriptor(dir_fd), text)
    folder, name = os.path.split(os.path.abspath(text))
    # The folder's links are resolved, the last part's are not: a rename or removal acts on the link itself.
    return os.path.join(os.path.realpath(folder), name)


def _of_descriptor(descriptor: int) -> str:
    """The path behind an open file; "" where that cannot be told, or it has none."""
    try:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""
    return path if path.startswith(os.sep) and not path.endswith(" (deleted)") else ""


def _links(folder: str, folders: list[str]) -> list[str]:
    """Those of `folders` that are symbolic links: `os.walk` does not go there."""
    return [name for name in folders if os.path.islink(os.path.join(folder, name))]


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
