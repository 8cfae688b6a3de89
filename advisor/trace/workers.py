"""Processes that fill parts, seen from the reading one."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from multiprocessing import Pipe
from multiprocessing.connection import wait
from typing import IO, Any, cast

from advisor.trace.fill import Part
from advisor.trace.worker import SLOT, SLOTS, Packed, unpack

# Not multiprocessing's own processes: those import the main module again, which may be a script without a guard, or
# fork, which is unsafe where the caller has threads.
# Nothing is imported before sys.path is the caller's: with -c it begins with the current folder, and what lies there.
_START = (
    "import sys; sys.path[:] = sys.argv[3:]\n"
    "from advisor.trace.worker import main; main(int(sys.argv[1]), int(sys.argv[2]))"
)
# One thread each: the processes are the parallelism. (numpy's BLAS would start one per core at its import.)
_ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class Worker:
    """One process. ``ready`` when it has started; ``dead`` when it is gone, and with it what it had not answered."""

    def __init__(self) -> None:
        self.ready = False
        self.dead = False
        self._free = list(range(SLOTS))
        self._asked: list[tuple[int, object]] = []  # (slot, job), the oldest first
        self._lost_names: list[str] = []
        self._lost_lanes: list[tuple[str, str]] = []
        with _memory_file() as file:
            os.ftruncate(file.fileno(), SLOT * SLOTS)
            self._memory = mmap.mmap(file.fileno(), SLOT * SLOTS)
            self.connection, theirs = Pipe()
            with theirs:
                passed = (theirs.fileno(), file.fileno())
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _START, *map(str, passed), *map(str, sys.path)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=os.environ | _ONE_THREAD,
                    pass_fds=passed,
                )

    @property
    def room(self) -> int:
        """How many more pieces it can be given now."""
        return len(self._free) if self.ready and not self.dead else 0

    @property
    def busy(self) -> bool:
        """Whether something is to be heard of it: that it is ready, or an answer."""
        return not self.dead and (bool(self._asked) or not self.ready)

    def ask(self, array: bytes, job: object) -> bool:
        """Gives it a piece; False where it cannot be given."""
        if len(array) > SLOT:
            return False
        slot = self._free.pop()
        self._memory[slot * SLOT : slot * SLOT + len(array)] = array
        try:
            self.connection.send((slot, len(array)))
        except OSError:
            self.dead = True
            return False
        self._asked.append((slot, job))
        return True

    def answer(self) -> tuple[object, Part | None] | None:
        """The next (job, its part or None where it does not decode); None when it said that it is ready, or died."""
        try:
            packed = cast("Packed | None", self.connection.recv())
        except (EOFError, OSError):
            self.dead = True
            return None
        if not self.ready:
            self.ready = True
            return None
        slot, job = self._asked.pop(0)
        part = None
        if packed is not None:
            part = unpack(packed, self._memory)
            # Codes that were first met in a part which is of no use any more are still codes.
            part.names[:0], part.lanes[:0] = self._lost_names, self._lost_lanes
            self._lost_names, self._lost_lanes = [], []
        self._free.append(slot)
        return job, part

    def lose(self, part: Part) -> None:
        """Says that `part` of this worker will not be added to the columns."""
        self._lost_names += part.names
        self._lost_lanes += part.lanes

    def stop(self) -> None:
        """Ends the process, at once."""
        self.connection.close()
        self._process.kill()
        self._process.wait()


def _memory_file() -> IO[bytes]:
    """A file for shared memory. Not under /dev/shm, which is tiny in many containers."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("advisor-trace"), "r+b")
    return cast("IO[bytes]", tempfile.TemporaryFile())


def heard(workers: Iterable[Worker], timeout: float | None) -> list[Worker]:
    """Those of `workers` that have something to say, waiting for the first one."""
    by_connection: dict[Any, Worker] = {worker.connection: worker for worker in workers if worker.busy}
    return [by_connection[connection] for connection in wait(list(by_connection), timeout)]
