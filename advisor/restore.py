"""Puts back what a measured script changed: the other end of :mod:`advisor.harness.journal`.

Runs when the script's processes are gone; for a run whose ``advisor`` was killed, the next command does it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from advisor.harness import layout

OWNER_JSON = "owner.json"


@dataclass
class Restored:
    """What was done: files put back, new files moved to the run folder, and what could not be put back."""

    put_back: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


def restore(run_dir: Path, keep: tuple[str, ...] = ()) -> Restored:
    """Put every journaled path of `run_dir` back as it was; new files go to its ``files`` folder.

    Safe to repeat: what is already as it was is left alone. Folders in `keep` keep their new files.
    """
    result = Restored()
    log = run_dir / layout.JOURNAL_DIR / layout.JOURNAL_LOG
    if not log.exists():  # the script changed nothing
        _finish(run_dir)
        return result
    entries = _first_entries(log)
    kept = tuple(os.path.realpath(path) + os.sep for path in keep)
    for path, entry in entries.items():
        if entry["op"] == "new" and not path.startswith(kept) and not os.path.isdir(path):
            _guarded(result, path, _move_new, path, run_dir, result)
    for path in sorted((p for p, e in entries.items() if e["op"] == "dir"), key=len):
        _guarded(result, path, _make_folder, path, entries[path])
    for path, entry in entries.items():
        if entry["op"] == "stash":
            _guarded(result, path, _put_back, path, entry, run_dir, result)
        elif entry["op"] == "link":
            _guarded(result, path, _put_link_back, path, entry, result)
    for path in sorted((p for p, e in entries.items() if e["op"] == "new"), key=len, reverse=True):
        if os.path.isdir(path) and not os.path.islink(path) and not path.startswith(kept):
            _guarded(result, path, _clear_folder, path, run_dir, result)
    if not result.failed:
        _finish(run_dir)
    return result


def _finish(run_dir: Path) -> None:
    shutil.rmtree(run_dir / layout.JOURNAL_DIR, ignore_errors=True)
    _forget(run_dir)


def _first_entries(log: Path) -> dict[str, dict[str, Any]]:
    entries: dict[str, dict[str, Any]] = {}
    for line in log.read_bytes().splitlines():
        try:
            entry = json.loads(line.decode("utf-8", "surrogateescape"))
        except ValueError:
            continue  # the last line of a process killed in the middle of writing it: nothing was touched yet
        entries.setdefault(entry["path"], entry)
    return entries


def _guarded(result: Restored, path: str, action: Any, *arguments: Any) -> None:
    try:
        action(*arguments)
    except OSError as error:
        result.failed.append(f"{path}: {error.strerror or error}")


def _place_for(path: str, run_dir: Path) -> Path:
    """Where a new file goes: by its place relative to the current folder, else by its whole path."""
    relative = os.path.relpath(path, os.path.realpath(os.getcwd()))
    if relative.startswith(".."):
        relative = os.path.join("_outside", path.lstrip(os.sep))
    place = run_dir / layout.FILES_DIR / relative
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


def _move_new(path: str, run_dir: Path, result: Restored) -> None:
    if not os.path.lexists(path):
        return
    if not os.path.islink(path) and not os.path.isfile(path):
        os.remove(path)  # a socket or a pipe: nothing that could be kept
        return
    shutil.move(path, _place_for(path, run_dir))
    result.moved.append(path)


def _make_folder(path: str, entry: dict[str, Any]) -> None:
    if not os.path.isdir(path):
        os.makedirs(path)
        os.chmod(path, entry["mode"])


def _put_back(path: str, entry: dict[str, Any], run_dir: Path, result: Restored) -> None:
    stash = run_dir / entry["stash"]
    with contextlib.suppress(OSError):
        now = os.stat(path, follow_symlinks=False)
        same = now.st_size == stash.stat().st_size and now.st_mtime_ns == entry["mtime_ns"]
        if same and now.st_mode & 0o7777 == entry["mode"]:
            return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.advisor-restore"
    shutil.copyfile(stash, temporary)
    os.chmod(temporary, entry["mode"])
    os.utime(temporary, ns=(entry["atime_ns"], entry["mtime_ns"]))
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    os.replace(temporary, path)
    result.put_back.append(path)


def _put_link_back(path: str, entry: dict[str, Any], result: Restored) -> None:
    if os.path.islink(path) and os.readlink(path) == entry["target"]:
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.lexists(path):
        os.remove(path)
    os.symlink(entry["target"], path)
    result.put_back.append(path)


def _clear_folder(path: str, run_dir: Path, result: Restored) -> None:
    """A folder that the script made: what native code left in it is new as well."""
    if os.listdir(path):
        for folder, _, files in os.walk(path):
            for name in files:
                _move_new(os.path.join(folder, name), run_dir, result)
    for folder, _, _ in os.walk(path, topdown=False):
        os.rmdir(folder)


# Runs that are not put back yet, wherever they are.


def _registry() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(base) / "advisor" / "pending"


def register(run_dir: Path) -> None:
    """Remember that `run_dir` belongs to this process and must be put back when it is done, or dead."""
    folder = run_dir / layout.JOURNAL_DIR
    folder.mkdir(parents=True, exist_ok=True)
    (folder / OWNER_JSON).write_text(json.dumps({"pid": os.getpid(), "started": _started(os.getpid())}))
    with contextlib.suppress(OSError):
        _registry().mkdir(parents=True, exist_ok=True)
        (_registry() / _key(run_dir)).write_text(str(run_dir))


def _forget(run_dir: Path) -> None:
    with contextlib.suppress(OSError):
        (_registry() / _key(run_dir)).unlink(missing_ok=True)


def _key(run_dir: Path) -> str:
    return hashlib.sha256(str(run_dir).encode("utf-8", "surrogateescape")).hexdigest()[:24]


def _started(pid: int) -> str:
    """When a process started, in clock ticks since boot: a pid that was used again has another value."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _owner_alive(run_dir: Path) -> bool:
    try:
        owner = json.loads((run_dir / layout.JOURNAL_DIR / OWNER_JSON).read_text())
        os.kill(int(owner["pid"]), 0)
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return bool(owner.get("started", "") == _started(int(owner["pid"])))


def pending(*places: Path) -> list[Path]:
    """Run folders whose ``advisor`` died before it could put things back: registered ones, and those below `places`."""
    found: dict[Path, None] = {}
    with contextlib.suppress(OSError):
        for entry in _registry().iterdir():
            run_dir = Path(entry.read_text()).resolve()
            if not (run_dir / layout.JOURNAL_DIR).exists():
                entry.unlink(missing_ok=True)
            else:
                found[run_dir] = None
    for place in places:
        for folder in place.glob(f"*/*/{layout.JOURNAL_DIR}"):
            found[folder.parent.resolve()] = None
    return [run_dir for run_dir in found if not _owner_alive(run_dir)]


def recover(*places: Path) -> list[tuple[Path, Restored]]:
    """End what is left of killed runs and put their files back."""
    done = []
    for run_dir in pending(*places):
        end_processes(run_dir)
        done.append((run_dir, restore(run_dir)))
    return done


def end_processes(run_dir: Path) -> None:
    """Kill whatever still runs for `run_dir`, found by the variable that all its processes carry (Linux)."""
    marker = f"{layout.OPTIONS_ENV}={run_dir / layout.OPTIONS_JSON}".encode("utf-8", "surrogateescape")
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            if not name.isdigit() or int(name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                if marker in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                    os.kill(int(name), signal.SIGKILL)
