"""Puts back what a measured script changed: the other end of :mod:`advisor.harness.undo.journal`.

Runs when the script's processes are gone; for a run whose ``advisor`` was killed, the next command does it.
"""

from __future__ import annotations

import contextlib
import errno
import filecmp
import json
import os
import shutil
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from advisor.errors import AdvisorError
from advisor.harness import layout
from advisor.pending import claim, end_processes, forget, registered
from advisor.run import decode_record

# Beside the journal: one line when a path's turn begins, and one when it is done.
PROGRESS = "restored.jsonl"
# Where an earlier version goes when the file was changed by somebody else after the run was killed.
EARLIER_DIR = "earlier"

Entry = dict[str, Any]


@dataclass
class Restored:
    """What was done: files put back, new files moved to the run folder, and what could not be put back."""

    put_back: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


def restore(run_dir: Path, keep: tuple[str, ...] = (), died: float | None = None) -> Restored:
    """Put every journaled path of `run_dir` back as it was; new files go to its ``files`` folder.

    Safe to repeat, and to interrupt: what is done is not done again, and a copy is only given up when the whole
    journal is. Folders in `keep` keep their new files. With `died`, the time at which a killed run ended, a file that
    was changed later is somebody's own work: it stays, and its earlier version is put into the run folder.
    """
    log = run_dir / layout.JOURNAL_DIR / layout.JOURNAL_LOG
    if not log.exists():  # the script changed nothing
        _finish(run_dir)
        return Restored()
    return _Restoring(run_dir, log, keep, died).run()


def _finish(run_dir: Path) -> None:
    # The log first: copies that are half removed must never be taken for something to put back.
    with contextlib.suppress(OSError):
        (run_dir / layout.JOURNAL_DIR / layout.JOURNAL_LOG).unlink(missing_ok=True)
    shutil.rmtree(run_dir / layout.JOURNAL_DIR, ignore_errors=True)
    forget(run_dir)


class _Restoring:
    def __init__(self, run_dir: Path, log: Path, keep: tuple[str, ...], died: float | None) -> None:
        self.run_dir = run_dir
        self.died = died
        self.result = Restored()
        self.unfinished = False
        self.cwd = _working_folder(run_dir)
        self.progress = log.with_name(PROGRESS)
        self.begun, self.done = _read_progress(self.progress)
        kept = tuple(os.path.realpath(path) + os.sep for path in keep)
        self.entries = {
            path: entry
            for path, entry in _first_entries(log).items()
            if not (entry["op"] == "new" and path.startswith(kept))
        }

    def run(self) -> Restored:
        new = sorted(path for path, entry in self.entries.items() if entry["op"] == "new")
        folders = sorted((path for path, entry in self.entries.items() if entry["op"] == "dir"), key=len)
        for path in [path for path in new if os.path.islink(path) or not os.path.isdir(path)]:
            self._guarded(path, self._move_away, path)
        for path in folders:
            self._guarded(path, self._open_folder, path, last=False)
        for path, entry in self.entries.items():
            if entry["op"] == "stash":
                self._guarded(path, self._put_back, path, entry)
            elif entry["op"] == "link":
                self._guarded(path, self._put_link_back, path, entry)
        for path in sorted(new, key=len, reverse=True):
            if os.path.isdir(path) and not os.path.islink(path):
                self._guarded(path, self._clear_folder, path)
        for path in reversed(folders):
            self._guarded(path, self._close_folder, path, self.entries[path])
        if not self.unfinished:
            _finish(self.run_dir)
        return self.result

    def _guarded(self, path: str, action: Any, *arguments: Any, last: bool = True) -> None:
        if path in self.done:
            return
        if self._changed_since(path):
            self._leave(path)
            return
        try:
            if path not in self.begun:
                self.begun.add(path)
                self._log("begin", path)
            action(*arguments)
            if last:
                self._log("done", path)
        except OSError as error:
            self.unfinished = True
            self.result.failed.append(f"{path}: {error.strerror or error}")

    def _log(self, what: str, path: str) -> None:
        with contextlib.suppress(OSError), self.progress.open("a") as file:  # a full disk must not stop us
            file.write(json.dumps({"what": what, "path": path}) + "\n")

    def _changed_since(self, path: str) -> bool:
        if self.died is None or path in self.begun:
            return False
        try:
            status = os.lstat(path)
        except OSError:
            return False  # gone: an earlier file is put back
        # A folder's own time changes with what is in it, so it says nothing; what is in it has its own.
        return not stat.S_ISDIR(status.st_mode) and status.st_ctime > self.died

    def _leave(self, path: str) -> None:
        entry = self.entries[path]
        text = f"{path}: it was changed after the run was killed, and is left as it is"
        if entry["op"] == "stash":
            place = self._place_for(path, EARLIER_DIR)
            try:
                shutil.copyfile(self.run_dir / (entry["stash"] or entry["inode"]), place)
            except OSError as error:
                self.unfinished = True
                self.result.failed.append(f"{text} (its earlier contents: {error.strerror or error})")
                return
            text += f"; its earlier contents are in {place}"
        self._log("done", path)
        self.result.failed.append(text)

    # What is new.

    def _move_away(self, path: str) -> None:
        """A file of the script's own: to the run folder."""
        try:
            status = os.lstat(path)
        except OSError:
            return
        if not stat.S_ISREG(status.st_mode) and not stat.S_ISLNK(status.st_mode):
            os.remove(path)  # a socket or a pipe: nothing that could be kept
            return
        place = self._place_for(path, layout.FILES_DIR)
        shared = status.st_nlink > 1 and stat.S_ISREG(status.st_mode)
        if shared:  # with a file that is about to be put back: its contents would change with that one's
            try:
                shutil.copy2(path, place)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                shared = False
        if shared:
            os.remove(path)
        else:
            shutil.move(path, place)
        self.result.moved.append(path)

    def _place_for(self, path: str, folder: str) -> str:
        """Where a file goes: by its place relative to the run's working folder, else by its whole path."""
        relative = os.path.relpath(path, self.cwd)
        if relative.startswith(".."):
            relative = os.path.join("_outside", path.lstrip(os.sep))
        for number in range(1000):  # a second run of the script may have made a folder where the first had a file
            place = self.run_dir / folder / (f"_{number}" if number else "") / relative
            with contextlib.suppress(FileExistsError, NotADirectoryError):
                place.parent.mkdir(parents=True, exist_ok=True)
                if not place.is_dir() or place.is_symlink():
                    return str(place)
        raise FileExistsError(errno.EEXIST, "no free name in the run folder", path)

    def _clear_folder(self, path: str) -> None:
        """A folder that the script made: what native code left in it is new as well."""
        for folder, folders, files in os.walk(path):
            os.chmod(folder, 0o700)
            for name in files + [name for name in folders if os.path.islink(os.path.join(folder, name))]:
                self._move_away(os.path.join(folder, name))
        for folder, _, _ in os.walk(path, topdown=False):
            os.rmdir(folder)

    # What was there before.

    def _open_folder(self, path: str) -> None:
        """Make sure that a folder is there and that files can be put into it; its own mode comes last."""
        if os.path.lexists(path) and (os.path.islink(path) or not os.path.isdir(path)):
            self._move_away(path)
        os.makedirs(path, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            os.chmod(path, 0o700)

    def _close_folder(self, path: str, entry: Entry) -> None:
        status = os.lstat(path)
        _own(path, status, entry)
        if stat.S_IMODE(status.st_mode) != entry["mode"]:
            os.chmod(path, entry["mode"])

    def _put_back(self, path: str, entry: Entry) -> None:
        inode = self.run_dir / entry["inode"] if entry["inode"] else None
        if inode is not None and not inode.exists():
            inode = None  # already back in its place
        stash = self.run_dir / entry["stash"] if entry["stash"] else None
        if inode is None and stash is None:
            return
        if self._is_as_it_was(path, entry, inode, stash):
            return
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.isdir(path) and not os.path.islink(path):
            self._clear_folder(path)
        if inode is not None:
            _into(str(inode), path, entry, stash)
        elif stash is not None and _is_file(path, entry["ino"]):
            _write_over(str(stash), path)
            _dress(path, entry)
        elif stash is not None:
            temporary = f"{path[:-1] if len(os.path.basename(path)) > 200 else path}.advisor-restore"
            shutil.copyfile(stash, temporary)
            _dress(temporary, entry)
            os.replace(temporary, path)
        self.result.put_back.append(path)

    def _is_as_it_was(self, path: str, entry: Entry, inode: Path | None, stash: Path | None) -> bool:
        try:
            now = os.lstat(path)
        except OSError:
            return False
        if not stat.S_ISREG(now.st_mode) or now.st_mtime_ns != entry["mtime_ns"]:
            return False
        if stat.S_IMODE(now.st_mode) != entry["mode"] or (now.st_uid, now.st_gid) != (entry["uid"], entry["gid"]):
            return False
        if stash is None:
            return bool([now.st_dev, now.st_ino] == entry["ino"])
        if inode is not None and [now.st_dev, now.st_ino] != entry["ino"]:
            return False  # the same contents in another file: other hard links would be cut off
        return filecmp.cmp(path, stash, shallow=False)

    def _put_link_back(self, path: str, entry: Entry) -> None:
        if os.path.islink(path) and os.readlink(path) == entry["target"]:
            return
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.isdir(path) and not os.path.islink(path):
            self._clear_folder(path)
        elif os.path.lexists(path):
            self._move_away(path)
        os.symlink(entry["target"], path)
        self.result.put_back.append(path)


def _into(inode: str, path: str, entry: Entry, stash: Path | None) -> None:
    """Give the kept file its contents again, where it has lost them, and its place."""
    if stash is not None and not filecmp.cmp(inode, stash, shallow=False):
        try:
            _write_over(str(stash), inode)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            # No room to write, but the copy has its room already: it becomes the file.
            shutil.copystat(inode, stash)
            inode = str(stash)
    _dress(inode, entry)
    if not os.path.lexists(path) or not os.path.samefile(inode, path) or os.path.islink(path):
        try:
            os.replace(inode, path)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            shutil.copyfile(inode, path)
            _dress(path, entry)


def _write_over(source: str, target: str) -> None:
    """The contents of `source` into the file `target`, which stays the same file: its hard links see it too."""
    if not os.access(target, os.W_OK):
        os.chmod(target, 0o600)
    with open(source, "rb") as reader, open(target, "r+b") as writer:
        shutil.copyfileobj(reader, writer, 1 << 20)
        writer.truncate()


def _dress(path: str, entry: Entry) -> None:
    _own(path, os.stat(path), entry)
    os.chmod(path, entry["mode"])
    os.utime(path, ns=(entry["atime_ns"], entry["mtime_ns"]))


def _own(path: str, status: os.stat_result, entry: Entry) -> None:
    if (status.st_uid, status.st_gid) != (entry["uid"], entry["gid"]):
        with contextlib.suppress(PermissionError):  # only root may give files away
            os.chown(path, entry["uid"], entry["gid"])


def _is_file(path: str, ino: list[int]) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return [status.st_dev, status.st_ino] == ino


# What the journal says.


def _first_entries(log: Path) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    listed: dict[str, list[str]] = {}
    for line in log.read_bytes().splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue  # empty, or the last line of a process that a full disk cut short: nothing was touched yet
        path = entry["path"]
        if entry["op"] == "list":
            listed.setdefault(path, entry["names"])
            continue
        first = entries.setdefault(path, entry)
        if first["op"] == entry["op"] == "stash" and first["stash"] is None and first["ino"] == entry["ino"]:
            entries[path] = {**first, "stash": entry["stash"]}
    for folder, names in listed.items():
        with contextlib.suppress(OSError):
            for name in sorted(set(os.listdir(folder)) - set(names)):
                path = os.path.join(folder, name)
                entries.setdefault(path, {"op": "new", "path": path})
    return entries


def _read_progress(path: Path) -> tuple[set[str], set[str]]:
    begun: set[str] = set()
    done: set[str] = set()
    with contextlib.suppress(OSError):
        for line in path.read_bytes().splitlines():
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                (done if entry["what"] == "done" else begun).add(entry["path"])
    return begun, done


def _working_folder(run_dir: Path) -> str:
    """Where the script was started: the recovering command may be somewhere else."""
    try:
        return os.path.realpath(str(json.loads((run_dir / layout.OPTIONS_JSON).read_bytes())["cwd"]))
    except (OSError, ValueError, KeyError, TypeError):
        return os.path.realpath(os.getcwd())


# Runs whose ``advisor`` was killed.


def recover(*places: Path) -> list[tuple[Path, Restored]]:
    """End what is left of killed runs, put their files back, and say so in their records.

    Runs on the user's list are seen to, and those in the folders of sessions `places`; a live one is not touched.
    """
    recovered = []
    for run_dir in registered(*places):
        ours = claim(run_dir)
        if ours is None:
            continue
        try:
            # What is still running may have written until now.
            survivors = end_processes(run_dir)
            done = restore(run_dir, died=None if survivors else ours.died)
            mark(run_dir, "killed", "the run was killed before it was complete")
            recovered.append((run_dir, done))
        finally:
            ours.release()
    return recovered


def mark(run_dir: Path, ended: str, message: str, kind: str = "interrupt") -> None:
    """Say in ``run.json`` that the run is partial, unless it says how it ended already."""
    path = run_dir / layout.RUN_JSON
    record = layout.RunRecord()
    with contextlib.suppress(OSError, AdvisorError):
        record = decode_record(path.read_bytes())
    if record.complete or record.ended:
        return
    record.ended = ended
    record.failure = layout.Failure(kind=kind, message=message)
    with contextlib.suppress(OSError):
        temporary = path.with_suffix(".part")
        temporary.write_text(json.dumps(layout.to_dict(record)))
        temporary.replace(path)
