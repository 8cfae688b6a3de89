"""Starts TensorBoard on a folder of sessions, and ends it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO

from advisor.errors import AdvisorError

HOST = "localhost"
_URL = re.compile(r"TensorBoard \S+ at (https?://\S+)")


class Server:
    """A running TensorBoard. ``url`` is where it answers; leaving the context ends it and its children.

    It has a process of its own, because torch-tb-profiler starts further ones that would run our main module again.
    """

    def __init__(self, folder: str | os.PathLike[str], port: int | None = None, host: str = HOST) -> None:
        """Start it on `folder` and wait until it listens.

        ``port`` 0 takes any free one, None TensorBoard's own choice (6006 or one of the next). Raises AdvisorError when
        the folder does not exist, or TensorBoard does not come up.
        """
        path = Path(folder)
        if not path.is_dir():
            raise AdvisorError(
                f"{path} is not a folder: name one that holds sessions (`advisor profile` writes advisor_runs)."
            )
        command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(path.resolve()), "--host", host]
        # The fast loader is a binary that not every platform has, and says so at length; our files are small.
        command += ["--load_fast=false"]
        if port is not None:
            command += ["--port", str(port)]
        # A session of its own: Ctrl-C reaches us first, and we end all of it.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
            env={**os.environ, "TORCH_PROFILER_LOG_LEVEL": "ERROR"},
        )
        try:
            self.url = self._wait_until_it_listens()
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def wait(self) -> int:
        """Until it ends by itself; returns its exit status."""
        return self._process.wait()

    def stop(self) -> None:
        """End it and what it started."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=5)
        if self._process.stderr is not None and not self._process.stderr.closed:
            with suppress(OSError, ValueError):
                self._process.stderr.close()

    def _wait_until_it_listens(self) -> str:
        errors = self._process.stderr
        assert errors is not None
        last: deque[str] = deque(maxlen=20)
        for line in errors:
            found = _URL.search(line)
            if found:
                # Nobody reads the rest, but a full pipe would stop it.
                threading.Thread(target=_drain, args=(errors,), daemon=True).start()
                return found[1]
            if line.strip():
                last.append(line.strip())
        reason = next(
            (line for line in reversed(last) if "port" in line.lower()), last[-1] if last else "no reason given"
        )
        reason = reason.removeprefix("ERROR: ").rstrip(".")
        raise AdvisorError(f"TensorBoard did not start ({reason}); try another port with --port.")


def _drain(stream: IO[str]) -> None:
    with suppress(ValueError, OSError):
        for _ in stream:
            pass
