"""The threads of NumPy's OpenBLAS are known from others, and what they take is known from what the rest takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from advisor.launch import Command, measure
from tests.conftest import PYTHON, QUICK

pytest.importorskip("numpy")
if not os.path.exists("/proc/self/task"):
    pytest.skip("only Linux tells", allow_module_level=True)

SCRIPT = """
import json, threading, time
{before}
from advisor.harness.imports import PostImport
from advisor.harness.machine.openblas import OpenBlas

known, imports = OpenBlas(), PostImport()
imports.when_imported("numpy", known.numpy_loaded)
import numpy as np

def taken(work):
    time.sleep(0.4)  # until the threads sleep
    began = known.cpu_s()
    work()
    time.sleep(0.02)
    return known.cpu_s() - began

def spin():
    end = time.perf_counter() + 0.1
    while time.perf_counter() < end:
        pass

product, row = np.random.rand(400, 400), np.random.rand(400)
print(json.dumps({{
    "threads": known.threads,
    "product": taken(lambda: product @ product),
    "row": taken(lambda: row @ row),
    "python": taken(lambda: (lambda thread: (thread.start(), thread.join()))(threading.Thread(target=spin))),
}}))
"""


def seen(threads: int, before: str = "", script: str = "") -> dict[str, Any]:
    """What a process with so many threads of OpenBLAS prints; SCRIPT, with `before` in front, unless it is another."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": str(threads)}
    script = script or SCRIPT.format(before=before)
    ran = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(ran.stdout)
    if found["threads"] is None:
        pytest.skip("this NumPy has no OpenBLAS")
    return found


# A thread that Python does not know, as a library in C starts it.
OTHER = """
import ctypes
libc = ctypes.CDLL(None)
task = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda argument: time.sleep(3))
thread = ctypes.c_ulong()
assert libc.pthread_create(ctypes.byref(thread), None, task, None) == 0
"""
two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core, one thread")


@two_cores
def test_its_threads_take_time_after_a_product_and_after_nothing_else() -> None:
    found = seen(2)
    assert found["threads"] == 2
    assert found["product"] > 0.01  # 20 ms later it still looks for more
    assert found["row"] < 0.005 and found["python"] < 0.005


def test_one_thread_leaves_none_behind() -> None:
    found = seen(1)
    assert found["threads"] == 1 and found["product"] == 0.0


@two_cores
def test_threads_that_python_has_started_before_are_not_taken_for_its_own() -> None:
    waiting = "threading.Thread(target=lambda: time.sleep(3), daemon=True).start()"
    assert seen(2, waiting)["product"] > 0.01


@two_cores
def test_where_another_library_has_threads_too_nothing_is_said() -> None:
    found = seen(2, OTHER)
    assert found["threads"] == 2 and found["product"] == 0.0


FORKED = """
import json, os, time
from advisor.harness.imports import PostImport
from advisor.harness.machine.openblas import OpenBlas

known, imports = OpenBlas(), PostImport()
imports.when_imported("numpy", known.numpy_loaded)
import numpy as np

def taken():
    began = known.cpu_s()
    product @ product
    time.sleep(0.02)
    return known.cpu_s() - began

product = np.random.rand(400, 400)
before, (read, write) = taken(), os.pipe()
if not os.fork():
    exec(OTHER)  # torch has some of its own in a worker, from before the first batch
    os.write(write, json.dumps([taken(), taken()]).encode())
    os._exit(0)
child = json.loads(os.read(read, 1000))
print(json.dumps({"threads": known.threads, "before": before, "child": child, "after": [taken(), known.cpu_s()]}))
"""


@two_cores
def test_a_fork_has_threads_of_its_own() -> None:
    """OpenBLAS ends its threads before a fork; in the child, where there are no others, the new ones are known."""
    found = seen(2, script=f"OTHER = {OTHER!r}\n{FORKED}")
    assert found["before"] > 0.01 and found["child"][1] > 0.01
    now, total = found["after"]
    assert now >= 0.0 and total >= found["before"]  # it never falls


TRAINED = """\
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Projected(Dataset):
    def __init__(self):
        self.rows, self.onto = np.random.rand(64, 200, 200), np.random.rand(200, 200)

    def __len__(self):
        return 4096

    def __getitem__(self, index):
        return torch.from_numpy(self.rows[index % 64] @ self.onto).float().mean(0)


if __name__ == "__main__":
    torch.set_num_threads(2)
    model = torch.nn.Sequential(torch.nn.Linear(200, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for batch in DataLoader(Projected(), batch_size=8, num_workers={workers}, multiprocessing_context={context!r}):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
"""


@two_cores
@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(("workers", "context"), [(0, None), (1, "fork"), (1, "spawn")])
def test_a_run_records_what_they_take(workers: int, context: str | None, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINED.format(workers=workers, context=context))
    variables = {"OPENBLAS_NUM_THREADS": "2"}
    command = Command(str(tmp_path / "train.py"), python=PYTHON, cwd=str(tmp_path), environment=variables)
    record = measure(command, tmp_path / "run", QUICK, timeout=120.0).record
    if record.environment.openblas_threads is None:
        pytest.skip("this NumPy has no OpenBLAS")
    assert record.environment.openblas_threads == 2
    (loader,), timing = record.loaders, record.timing
    assert loader.openblas_s is not None and timing.openblas_s is not None and loader.fetch_cpu_s is not None
    assert loader.openblas_s > 0.2 * loader.fetch_cpu_s
    # Without workers they go on beside the model's operators; with them there are none in the script's own process.
    assert timing.openblas_s > loader.openblas_s if workers == 0 else timing.openblas_s < 1e-3
