"""A long file that worker processes decode gives the same tables as one process does, whatever is wrong with it."""

from __future__ import annotations

import functools
import gzip
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from advisor.errors import AdvisorError
from advisor.trace import Trace, decoding, read_trace, workers
from advisor.trace.worker import SLOT

TABLES = ("operators", "annotations", "steps", "kernels", "copies", "runtime", "device_annotations", "overheads",
          "python", "syncs", "memory")  # fmt: skip
BASE = 1_709_168_406_823_373  # µs of an epoch: float64 keeps a quarter of one


@pytest.fixture(autouse=True)
def any_file_is_worth_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """And they have started before the file is read, which otherwise goes on meanwhile."""
    start = decoding.Decoding._start

    def start_and_wait(self: decoding.Decoding) -> None:
        start(self)
        while not all(worker.ready or worker.dead for worker in self._workers):
            self._listen(None)

    monkeypatch.setattr(decoding, "WORTH_WORKERS", 0)
    monkeypatch.setattr(decoding.Decoding, "_start", start_and_wait)


@functools.cache
def made_up(epoch: bool = False) -> list[str]:
    """The texts of 40,000 events (8 MB) of all kinds, on several threads, with names that go on being new."""
    noise = random.Random(7)
    texts = []
    for number in range(40_000):
        micros, nanos = BASE * epoch + 10 * number, noise.randrange(1000)
        kind = number % 8
        event: dict[str, Any] = {
            "ph": "X",
            "pid": 100,
            "tid": noise.choice([100, "100", 101]),
            "dur": noise.randrange(9),
        }
        args: dict[str, Any] = {"External id": number, "pad": "x" * 40}
        if kind < 3:
            event |= {"cat": "cpu_op", "name": f"aten::op{number % 97 if kind else number}"}
            args |= {"Input Dims": [[kind, number % 13], []], "Input type": ["float", ""], "Sequence number": number}
        elif kind == 3:
            event |= {"cat": "cuda_runtime", "name": "cudaLaunchKernel"}
            args |= {"correlation": number}
        elif kind == 4:
            event |= {
                "cat": "kernel",
                "name": f"void k<{number % 31}>",
                "pid": 0,
                "tid": noise.choice([7, "stream 20"]),
            }
            args |= {"correlation": number - 1, "device": 0, "stream": 7, "grid": [number % 5 + 1, 1, 1]}
        elif kind == 5:
            event |= {"cat": "python_function", "name": "a},{b.py" + f"({number % 11}): 'f'"}
        elif kind == 6:
            event |= {"ph": "i", "name": "[memory]", "cat": "cpu_instant_event"}
            args |= {"Bytes": number, "Total Allocated": number, "Device Type": 1, "Device Id": 0}
        else:
            event |= {"ph": noise.choice("sf"), "cat": "ac2g", "name": "ac2g", "id": number}
        text = json.dumps(event | {"args": args})
        texts.append(text.replace("{", f'{{"ts": {micros}.{nanos:03d}, ', 1))
    return texts


def document(texts: list[str]) -> bytes:
    return (
        '{"deviceProperties": [{"id": 0}], "traceEvents": [\n' + ",\n".join(texts) + '\n], "host_name": "n"}'
    ).encode()


def differing(one: Trace, other: Trace) -> list[str]:
    """What is not the same in two traces of one file."""
    found = [name.name for name in fields(Trace) if name.name not in TABLES]
    found = [name for name in found if getattr(one, name) != getattr(other, name)]
    for table in TABLES:
        for column in getattr(one, table).__dataclass_fields__:
            left, right = (np.asarray(getattr(getattr(trace, table), column)) for trace in (one, other))
            if left.dtype != right.dtype or not np.array_equal(left, right, equal_nan=left.dtype.kind == "f"):
                found.append(f"{table}.{column}")
    return found


@pytest.fixture
def both(tmp_path: Path) -> Callable[[bytes], tuple[Trace, Trace]]:
    """Reads the same bytes in one process, and with two workers."""

    def read(content: bytes) -> tuple[Trace, Trace]:
        path = tmp_path / "t.json"
        path.write_bytes(content)
        return read_trace(path, workers=0), read_trace(path, workers=2)

    return read


Both = Callable[[bytes], tuple[Trace, Trace]]


@pytest.mark.parametrize("epoch", [False, True], ids=["relative", "epoch"])
def test_the_tables_are_the_same(both: Both, epoch: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    answered: list[object] = []
    answer = workers.Worker.answer
    monkeypatch.setattr(workers.Worker, "answer", lambda self: answered.append(found := answer(self)) or found)
    alone, together = both(document(made_up(epoch)))
    assert differing(alone, together) == []
    assert len(alone.operators) == 15_000 and len(alone.memory.at) == 5_000
    assert sum(found is not None for found in answered) >= 4, "the workers did nothing"
    if epoch:
        assert len(np.unique(alone.python.start % 1000)) > 900, "nanoseconds were lost"


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[: len(data) * 2 // 3],
    "torn events": lambda data: data.replace(b'"name": "aten::op7"', b'"name": "aten::op7', 40),
    "brackets gone": lambda data: data[:3_000_000] + data[3_000_000:].replace(b"}}", b"", 3),
    "invalid UTF-8": lambda data: data[:2_000_000] + data[2_000_000:].replace(b"aten::", b"at\xe9n::", 500),
    "other types": lambda data: data.replace(b'"External id": 2', b'"External id": {"a": 1}, "b": 2', 300),
    "NaN": lambda data: data.replace(b'"dur": 3', b'"dur": NaN', 1000),
    "the list ends early": lambda data: data[:4_000_000] + data[4_000_000:].replace(b"}},\n{", b"}}], \"more\": [{", 1),
    "a long string": lambda data: data[:3_000_000] + data[3_000_000:].replace(b'": "x', b'": "' + b"},{" * 200_000, 1),
    "one line break less": lambda data: data.replace(b"\n", b""),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_met_alike(both: Both, damage: str) -> None:
    good = document(made_up())
    bad = DAMAGE[damage](good)
    assert bad != good
    alone, together = both(bad)
    found = differing(alone, together)
    if alone.warnings:
        # Names that were met in pieces which are of no use any more may stand in other places.
        assert [alone.name(int(c)) for c in alone.operators.name] == [
            together.name(int(c)) for c in together.operators.name
        ]
        found = [name for name in found if not name.endswith((".name", ".shapes", ".dtypes", "names"))]
    assert found == []


def test_a_worker_that_dies_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(document(made_up()))
    pids: list[int] = []
    ask = workers.Worker.ask

    def killing(self: workers.Worker, array: bytes, job: object) -> bool:
        asked = ask(self, array, job)
        if self._process.pid not in pids:
            pids.append(self._process.pid)
            os.kill(self._process.pid, signal.SIGKILL)
        return asked

    monkeypatch.setattr(workers.Worker, "ask", killing)
    assert differing(read_trace(path, workers=0), read_trace(path, workers=2)) == []
    assert pids


def test_processes_end_with_the_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    begin = workers.Worker.__init__

    def noted(self: workers.Worker) -> None:
        begin(self)
        started.append(self._process)

    monkeypatch.setattr(workers.Worker, "__init__", noted)
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(document(made_up()), 1))
    read_trace(path, workers=2)
    with pytest.raises(AdvisorError, match="raise the limit"):
        read_trace(path, workers=2, limit_bytes=5_000_000)
    assert len(started) == 4
    assert all(process.poll() is not None for process in started)


def test_a_piece_that_no_slot_holds_is_decoded_here(both: Both) -> None:
    long = json.dumps({"ph": "X", "cat": "cpu_op", "name": "n" * 1_500_000, "ts": 1, "dur": 1, "pid": 1, "tid": 1})
    alone, together = both(document([long] * 8))
    assert differing(alone, together) == []
    assert len(alone.operators) == 8
    assert len(long) * 8 > SLOT


def test_a_script_without_a_guard_may_read_a_long_trace(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_bytes(document(made_up()))
    script = tmp_path / "script.py"
    script.write_text(
        "from advisor.trace import decoding, read_trace\n"
        "decoding.WORTH_WORKERS = 0\n"
        "print('once')\n"
        f"print(len(read_trace({str(tmp_path / 't.json')!r}, workers=2).operators))\n"
    )
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert ran.stdout.split() == ["once", "15000"], ran.stderr


def test_what_lies_in_the_current_folder_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("json", "numpy", "mmap", "advisor"):
        (tmp_path / f"{name}.py").write_text("open('imported', 'w')\nraise SystemExit\n")
    (tmp_path / "t.json").write_bytes(document(made_up()))
    answered: list[object] = []
    answer = workers.Worker.answer
    monkeypatch.setattr(workers.Worker, "answer", lambda self: answered.append(found := answer(self)) or found)
    monkeypatch.chdir(tmp_path)
    read_trace("t.json", workers=2)
    assert sum(found is not None for found in answered) >= 4, "the workers did nothing"
    assert not (tmp_path / "imported").exists()
