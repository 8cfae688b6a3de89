"""``status.json``: what the parent shows while the script runs."""

from __future__ import annotations

import json
import os
import threading
import time

from .layout import CHILD_TRAINS, MEASURED_RANK, STATUS_JSON, Status, to_dict


class StatusFile:
    """Writes the status when the phase changes and, outside the timing window, once a second.

    The ticking thread sleeps through the timing window, so that nothing of ours runs there.
    """

    def __init__(self, run_dir: str) -> None:
        self._run_dir = run_dir
        self._path = os.path.join(run_dir, STATUS_JSON)
        self.status = Status(since=time.time())
        self._quiet = threading.Event()  # set while nothing may be written
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    def start(self) -> None:
        self.write()
        self._thread = threading.Thread(target=self._tick, name="advisor-status", daemon=True)
        self._thread.start()

    def _tick(self) -> None:
        while not self._stop.wait(1.0):
            if not self._quiet.is_set():
                self.write()
                continue
            while self._quiet.is_set() and not self._stop.is_set():
                # Five sleeps a minute: nothing that a step could feel.
                self._stop.wait(5.0)

    def phase(self, name: str) -> None:
        """Enter a phase of ``layout.Status.phase`` and say so at once."""
        self.status.phase = name
        self.status.since = time.time()
        if name == "timing":
            self._quiet.set()
        else:
            self._quiet.clear()
        self.write()

    def write(self) -> None:
        if os.getpid() != self._pid or measured_elsewhere(self._run_dir):
            return
        temporary = f"{self._path}.{threading.get_ident()}"
        try:
            with open(temporary, "w", encoding="utf-8") as file:
                json.dump(to_dict(self.status), file)
            os.replace(temporary, self._path)
        except OSError:
            pass  # progress is a courtesy; the record is what counts

    def stop(self) -> None:
        self._stop.set()


def measured_elsewhere(run_dir: str) -> bool:
    """Whether another process than this one is measured, because it is rank 0 of a job that the script has started."""
    try:
        with open(os.path.join(run_dir, MEASURED_RANK), encoding="utf-8") as file:
            return file.read().strip() != str(os.getpid())
    except OSError:
        return False


def tell_child_trains(run_dir: str) -> None:
    """Leave word that steps happen in a process that the script started, where nothing is measured."""
    path = os.path.join(run_dir, CHILD_TRAINS)
    if not os.path.exists(path):  # the first step's time is what counts
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"{os.getpid()}\n")
