"""The threads of NumPy's OpenBLAS are known from others, and what they take is known from what the rest takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

numpy = pytest.importorskip("numpy")

if not os.path.exists("/proc/self/task"):
    pytest.skip("only Linux tells", allow_module_level=True)

SCRIPT = """
import json, threading, time
{before}
from advisor.harness.imports import PostImport
from advisor.harness.openblas import OpenBlas

known, imports = OpenBlas(), PostImport()
imports.when_imported("numpy", known.numpy_loaded)
import numpy as np

def taken(work):
    time.sleep({settle})  # until the threads sleep
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


def seen(threads: int, before: str = "") -> dict[str, float]:
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": str(threads)}
    script = SCRIPT.format(before=before, settle=0.4)
    ran = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(ran.stdout)
    if found["threads"] is None:
        pytest.skip("this NumPy has no OpenBLAS")
    return found


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
    # A timer of the C library starts a thread that Python does not know.
    other = """
import ctypes
libc = ctypes.CDLL(None)
task = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda argument: time.sleep(3))
thread = ctypes.c_ulong()
assert libc.pthread_create(ctypes.byref(thread), None, task, None) == 0
"""
    found = seen(2, other)
    assert found["threads"] == 2 and found["product"] == 0.0


FORKED = """
import json, os, time
from advisor.harness.imports import PostImport
from advisor.harness.openblas import OpenBlas

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
    os.write(write, json.dumps([taken(), taken()]).encode())
    os._exit(0)
child = json.loads(os.read(read, 1000))
print(json.dumps({"before": before, "child": child, "after": [taken(), known.cpu_s()]}))
"""


@two_cores
def test_a_fork_has_threads_of_its_own() -> None:
    """OpenBLAS ends its threads before a fork; in the child, where there are no others, the new ones are known."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "2"}
    ran = subprocess.run([sys.executable, "-c", FORKED], env=environment, capture_output=True, text=True, check=True)
    found = json.loads(ran.stdout)
    assert found["before"] > 0.01 and found["child"][1] > 0.01
    now, total = found["after"]
    assert now >= 0.0 and total >= found["before"]  # it never falls
