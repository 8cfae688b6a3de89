"""Whose run it is: the list of runs that are not put back yet, and the lock that says one is still alive.

A run's owner holds a lock on ``journal/owner.json`` for as long as it lives, and touches that file twice a second or
more. A run whose lock is free belongs to an ``advisor`` that was killed: the next command claims it and puts its files
back (:func:`advisor.restore.recover`).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advisor.harness import layout

OWNER_JSON = "owner.json"
# A run folder whose owner is not written yet, or is on another machine of a shared file system (where the lock may not
# be seen), counts as alive for so many seconds after its last sign of life.
_STARTING_SECONDS = 60.0
_ELSEWHERE_SECONDS = 3600.0
# A file that changed later than this after the last sign of life was not changed by the run.
_LAST_WRITES_SECONDS = 5.0


@dataclass
class Claim:
    """This process's hold on a run folder. ``died`` is when its former owner was last alive, as Unix time."""

    descriptor: int
    died: float | None = None

    def beat(self) -> None:
        """A sign of life."""
        with contextlib.suppress(OSError):
            os.utime(self.descriptor)

    def release(self) -> None:
        """Let go; harmless when done twice."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def register(run_dir: Path) -> Claim:
    """Remember that `run_dir` belongs to this process and must be put back when it is done, or dead.

    Raises OSError when the folder cannot be written.
    """
    folder = run_dir / layout.JOURNAL_DIR
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / OWNER_JSON, os.O_RDWR | os.O_CREAT, 0o644)
    with contextlib.suppress(OSError):  # a file system without locks: the process id must do
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    _sign(descriptor, None)
    with contextlib.suppress(OSError):  # without a home, a later command in the same folder finds it all the same
        _registry().mkdir(parents=True, exist_ok=True)
        (_registry() / _key(run_dir)).write_text(str(run_dir), errors="surrogateescape")
    return Claim(descriptor)


def claim(run_dir: Path) -> Claim | None:
    """Take over a run whose owner is dead; None while somebody else has it."""
    try:
        descriptor = os.open(run_dir / layout.JOURNAL_DIR / OWNER_JSON, os.O_RDWR)
    except FileNotFoundError:
        return _claim_unsigned(run_dir)
    except OSError:
        return None
    try:
        locks = True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError:
            locks = False
        last = _last_sign(run_dir)
        try:
            owner = json.loads(os.read(descriptor, 4096))
        except ValueError:
            owner = {}
        if _maybe_alive(owner, time.time() - os.fstat(descriptor).st_mtime, locks):
            os.close(descriptor)
            return None
        died = owner.get("died")
        died = float(died) if isinstance(died, (int, float)) else last
        _sign(descriptor, died)
    except OSError:
        os.close(descriptor)
        return None
    return Claim(descriptor, died)


def _claim_unsigned(run_dir: Path) -> Claim | None:
    try:
        age = time.time() - (run_dir / layout.JOURNAL_DIR).stat().st_mtime
        return register(run_dir) if age > _STARTING_SECONDS else None
    except OSError:
        return None


def _maybe_alive(owner: dict[str, Any], age: float, locks: bool) -> bool:
    if not owner:
        return age < _STARTING_SECONDS
    if owner.get("host") != platform.node():
        return age < _ELSEWHERE_SECONDS
    pid = owner.get("pid")
    return not locks and isinstance(pid, int) and _started(pid) == owner.get("started") != ""


def _sign(descriptor: int, died: float | None) -> None:
    pid = os.getpid()
    owner = {"pid": pid, "started": _started(pid), "host": platform.node(), "died": died}
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(owner).encode(), 0)


def _last_sign(run_dir: Path) -> float:
    """When anything of a run was last alive: its owner, the harness, or what the script prints."""
    journal = run_dir / layout.JOURNAL_DIR
    signs = (journal / OWNER_JSON, journal / layout.JOURNAL_LOG, *(run_dir / name for name in _SIGNS))
    times = [0.0]
    for path in signs:
        with contextlib.suppress(OSError):
            times.append(path.stat().st_mtime)
    return max(times) + _LAST_WRITES_SECONDS


_SIGNS = (layout.STATUS_JSON, layout.OUTPUT_LOG, layout.RUN_JSON)


def forget(run_dir: Path) -> None:
    """The run is put back: take it off the list."""
    with contextlib.suppress(OSError):
        (_registry() / _key(run_dir)).unlink(missing_ok=True)


def _registry() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(base) / "advisor" / "pending"


def _key(run_dir: Path) -> str:
    return hashlib.sha256(str(run_dir).encode("utf-8", "surrogateescape")).hexdigest()[:24]


def _started(pid: int) -> str:
    """When a process started, in clock ticks since boot: a pid that was used again has another value."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def registered(*places: Path) -> list[Path]:
    """Run folders that are not put back yet: those on the list, and those below `places`. Some may be alive."""
    found: dict[Path, None] = {}
    with contextlib.suppress(OSError):
        for entry in sorted(_registry().iterdir()):
            run_dir = Path(entry.read_text(errors="surrogateescape")).resolve()
            if not (run_dir / layout.JOURNAL_DIR).exists():
                entry.unlink(missing_ok=True)
            else:
                found[run_dir] = None
    for place in places:
        for folder in place.glob(f"*/*/{layout.JOURNAL_DIR}"):
            found[folder.parent.resolve()] = None
    return list(found)


def end_processes(run_dir: Path) -> int:
    """Kill whatever still runs for `run_dir`, found by the variable that all its processes carry (Linux).

    Returns how many there were.
    """
    marker = f"{layout.OPTIONS_ENV}={run_dir / layout.OPTIONS_JSON}".encode("utf-8", "surrogateescape")
    ended: set[int] = set()
    for _ in range(100):  # one that is forking may be a step ahead of us
        living = [pid for pid in _processes() if _carries(pid, marker)]
        for pid in living:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        ended.update(living)
        if not living:
            break
        time.sleep(0.02)
    return len(ended)


def descendants(pid: int) -> list[int]:
    """Children of `pid`, their children, and so on; also those with an environment or session of their own (Linux)."""
    parents: dict[int, list[int]] = {}
    for process in _processes():
        with contextlib.suppress(OSError, IndexError, ValueError):
            fields = Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()
            parents.setdefault(int(fields[1]), []).append(process)
    found = list(parents.get(pid, ()))
    for process in found:  # grows as it goes
        found.extend(parents.get(process, ()))
    return found


def _processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]
    except OSError:
        return []


def _carries(pid: int, marker: bytes) -> bool:
    try:
        return marker in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")  # empty for one that is dead
    except OSError:
        return False
