"""What other programs do on the usable cores is told from what the script and its own processes do."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from advisor.harness.machine.neighbours import Neighbours, busy_seconds, own_seconds, started_by
from tests.conftest import REPO

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/stat"), reason="only Linux tells")

SPIN = "import time\nend = time.perf_counter() + {0}\nwhile time.perf_counter() < end: pass"
# A process that starts another one, which computes, and waits for it.
PARENT = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', sys.argv[1]])"


def spin(seconds: float) -> None:
    began = time.process_time()
    while time.process_time() - began < seconds:
        pass


def test_what_a_process_and_its_children_compute_is_their_own() -> None:
    before = own_seconds(os.getpid())
    spin(0.2)
    assert own_seconds(os.getpid()) - before >= 0.18
    with subprocess.Popen([sys.executable, "-c", PARENT, SPIN.format(60)]) as child:
        try:
            began = time.monotonic()
            while own_seconds(child.pid) < 0.3 and time.monotonic() - began < 30:
                time.sleep(0.05)
            assert own_seconds(child.pid) >= 0.3  # the grandchild's
        finally:
            subprocess.run(["pkill", "-P", str(child.pid)], check=False)
            child.kill()


def test_the_script_is_what_its_starter_has_started() -> None:
    """As seen by a rank, which a launcher has started that the starter did: here this process."""
    assert started_by(os.getppid()) == os.getpid()
    rank = f"""import sys
sys.path.insert(0, {str(REPO)!r})
from advisor.harness.machine.neighbours import started_by
print(started_by({os.getpid()}), started_by(-1) == __import__('os').getpid())"""
    with subprocess.Popen([sys.executable, "-c", PARENT, rank], stdout=subprocess.PIPE, text=True) as launcher:
        printed, _ = launcher.communicate()
    assert printed.split() == [str(launcher.pid), "True"]


def test_what_computes_keeps_the_usable_cores_busy() -> None:
    cpus = os.sched_getaffinity(0)
    before = busy_seconds(cpus)
    spin(0.3)
    assert busy_seconds(cpus) - before >= 0.25
    assert busy_seconds(set()) == 0.0


def test_a_program_that_nobody_here_started_is_a_neighbour() -> None:
    # Its parent ends at once, and init takes it over.
    spinning = f"[sys.executable, '-c', {SPIN.format(60)!r}], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL"
    orphan = f"import subprocess, sys\nprint(subprocess.Popen({spinning}).pid)"
    pid = int(subprocess.run([sys.executable, "-c", orphan], capture_output=True, text=True, check=True).stdout)
    try:
        beside = Neighbours()
        beside.begin()
        time.sleep(2.0)
        found = beside.end()
    finally:
        os.kill(pid, 9)
    assert found is not None
    others, idle = found
    assert others > 0.3
    assert 0.0 <= idle <= len(os.sched_getaffinity(0)) - 0.3


def test_a_short_window_tells_nothing() -> None:
    beside = Neighbours()
    assert beside.end() is None  # it did not begin
    beside.begin()
    assert beside.end() is None
