"""A command as a whole process: its wall time, and the memory of all its processes together."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_LOOK_EVERY = 0.02  # seconds


@dataclass(frozen=True)
class Ran:
    """``memory`` in bytes: the sum, over the command's processes, of the most that each had resident (VmHWM).

    They need not have had it at the same time, and pages that they share count for each: the truth is not above it.
    """

    seconds: float
    memory: int
    status: int
    output: str


def run(command: Sequence[str], timeout: float = 3600) -> Ran:
    """Runs `command` (Linux: memory is read from /proc)."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    peaks: dict[int, int] = {}
    while process.poll() is None:
        for pid in _family(process.pid):
            peaks[pid] = max(peaks.get(pid, 0), _peak(pid))
        time.sleep(_LOOK_EVERY)
        if time.perf_counter() - began > timeout:
            process.kill()
    seconds = time.perf_counter() - began
    assert process.stdout is not None
    return Ran(seconds, sum(peaks.values()), process.returncode, process.stdout.read())


def _family(pid: int) -> list[int]:
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:
            continue
        for child in children:
            found += _family(int(child))
    return found


def _peak(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0
