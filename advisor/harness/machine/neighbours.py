"""What other programs do on the same cores while steps are timed: a step of several threads waits for each of them."""

from __future__ import annotations

import os
import time

_BUSY = (0, 1, 2, 5, 6, 7)  # user, nice, system, irq, softirq, steal of /proc/stat (proc(5)); the others are idle
_LEAST_S = 1.0  # of a window: its clock ticks in hundredths of a second


class Neighbours:
    """Told when a window begins and ends, and asked in between for nothing. Linux only; elsewhere nothing is known.

    What the process `starter` has started is the script, with all ranks of its job: not others.
    """

    def __init__(self, starter: int = 0) -> None:
        self._starter = starter
        self._began: tuple[float, float, float] | None = None

    def begin(self) -> None:
        self._began = self._now()

    def end(self) -> tuple[float, float] | None:
        """Cores that others kept busy on average, and cores that were idle, of those that this process may use.

        None where that cannot be read, or the window was shorter than a second.
        """
        before, after = self._began, self._now()
        if before is None or after is None or after[0] - before[0] < _LEAST_S:
            return None
        seconds, busy, own = (later - earlier for earlier, later in zip(before, after, strict=True))
        return max(0.0, busy - own) / seconds, max(0.0, len(os.sched_getaffinity(0)) - busy / seconds)

    def _now(self) -> tuple[float, float, float] | None:
        """Now, the CPU seconds of all programs on the usable cores, and those of the script with all it has started."""
        try:
            # The moment is taken in between, as the two others are.
            busy, moment = busy_seconds(os.sched_getaffinity(0)), time.perf_counter()
            return moment, busy, own_seconds(started_by(self._starter))
        except (OSError, AttributeError, ValueError, IndexError):
            return None


def busy_seconds(cpus: set[int]) -> float:
    """CPU seconds since the machine started in which these were busy."""
    names, ticks = {f"cpu{each}" for each in cpus}, 0
    with open("/proc/stat", encoding="ascii") as file:
        for line in file:
            name, *fields = line.split()
            if name in names:
                ticks += sum(int(fields[place]) for place in _BUSY if place < len(fields))
    return ticks / os.sysconf("SC_CLK_TCK")


def started_by(starter: int) -> int:
    """The process that `starter` has started and that this one descends from, or is; this one where there is none."""
    pid, parent = os.getpid(), os.getppid()
    while parent not in (starter, 0):
        fields = _fields(str(parent))
        pid, parent = parent, int(fields[1]) if fields else 0
    return pid if parent else os.getpid()


def own_seconds(pid: int) -> float:
    """CPU seconds of a process, of its children that have ended, and of those that run, with theirs."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal() and (fields := _fields(name)):
            children.setdefault(int(fields[1]), []).append(int(name))
            ticks[int(name)] = sum(map(int, fields[11:15]))  # utime, stime, and those of children that were waited for
    total, todo = 0, [pid]
    while todo:
        each = todo.pop()
        total += ticks.get(each, 0)
        todo.extend(children.get(each, ()))
    return total / os.sysconf("SC_CLK_TCK")


def _fields(pid: str) -> list[str]:
    """What follows a process's name in /proc/PID/stat, its state first; nothing of one that has ended meanwhile."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []
