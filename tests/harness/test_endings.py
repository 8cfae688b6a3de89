"""However a run ends – by itself, oddly, interrupted, killed – the user's folder is as it was, and it is said how."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from advisor.errors import AdvisorError
from advisor.harness import layout
from advisor.harness.layout import Options, RunRecord, Status
from advisor.launch import Command, measure
from tests.conftest import PYTHON, QUICK, Tree, tree

pytestmark = [pytest.mark.slow, pytest.mark.oldest]

TRAINING = """\
import sys, time
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def step():
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    time.sleep(0.002)

"""
# Changes what was there and makes new files, then waits; torch is not the point.
HARMFUL = """\
import os, shutil, subprocess, sys, time
open("best.pt", "w").write("changed")
os.replace("state.json", "state.old")
shutil.rmtree("old")
os.makedirs("made/deep")
endless = "import time\\nwhile True:\\n    open('log.csv', 'a').write('x'); time.sleep(0.01)"
subprocess.Popen([sys.executable, "-c", endless], start_new_session=True)
if not os.fork():
    os.setsid()
    while True:
        open("made/deep/worker", "a").write("x")
        time.sleep(0.01)
while not os.path.exists("made/deep/worker") or os.path.getsize("log.csv") < 20:
    time.sleep(0.01)
open("ready", "w")
while True:
    time.sleep(1)
"""
_HEARD = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)


class User:
    """A user's folder with earlier results, and the advisor's command in it."""

    def __init__(self, base: Path) -> None:
        self.folder = base / "user"
        self.output = base / "advisor_runs"
        (self.folder / "old" / "checkpoint").mkdir(parents=True)
        for name in ("best.pt", "log.csv", "state.json", "old/checkpoint/1.pt"):
            (self.folder / name).write_text(f"earlier {name}")
        self.environment = {**os.environ, "XDG_STATE_HOME": str(base / "state"), "OMP_NUM_THREADS": "1"}
        self.started: list[subprocess.Popen[str]] = []

    def script(self, text: str, name: str = "script.py") -> Path:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    def measure(
        self, script: str, *argv: str, module: bool = False, timeout: float = 60.0, options: Options = QUICK
    ) -> RunRecord:
        command = Command(
            script if module else str(self.folder / script),
            argv,
            module,
            PYTHON,
            {"OMP_NUM_THREADS": "1"},
            str(self.folder),
        )
        return measure(command, self.run_dir, options, timeout=timeout).record

    @property
    def run_dir(self) -> Path:
        return self.output / "script-1" / "baseline"

    @property
    def printed(self) -> str:
        return (self.run_dir / layout.OUTPUT_LOG).read_text(errors="replace")

    def advisor(self, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "advisor.cli", *arguments],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            # As at a terminal: what a shell runs in the background is deaf to Ctrl-C and Ctrl-\, and to a hangup.
            preexec_fn=lambda: [signal.signal(each, signal.SIG_DFL) for each in _HEARD],
        )
        self.started.append(process)
        return process

    def profile(self, *arguments: str) -> subprocess.Popen[str]:
        return self.advisor("profile", "script.py", "--python", PYTHON, "-o", str(self.output), *arguments)

    def wait_for(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, [p.communicate() for p in self.started if p.poll() is not None]
            time.sleep(0.01)

    def wait_until_ready(self) -> None:
        self.wait_for(lambda: (self.folder / "ready").exists())

    def phase(self) -> str:
        try:
            return Status(**json.loads((self.run_dir / layout.STATUS_JSON).read_text())).phase
        except (OSError, ValueError):
            return ""

    def processes(self) -> list[int]:
        """What still runs for the run, or was started by it."""
        marker, found = str(self.run_dir).encode(), []
        ours = {os.getpid(), *(process.pid for process in self.started)}
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and int(folder.name) not in ours:
                try:
                    if marker in (folder / "environ").read_bytes() + (folder / "cmdline").read_bytes():
                        found.append(int(folder.name))
                except OSError:
                    continue
        return found

    def record(self) -> dict[str, object]:
        data: dict[str, object] = json.loads((self.run_dir / layout.RUN_JSON).read_text())
        return data


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    user = User(tmp_path)
    yield user
    for process in user.started:
        if process.poll() is None:
            process.kill()
        process.communicate()
    for pid in user.processes():
        os.kill(pid, signal.SIGKILL)


def assert_as_before(user: User, before: Tree) -> None:
    assert tree(user.folder) == before
    assert user.processes() == []
    assert not (user.run_dir / layout.JOURNAL_DIR).exists()
    assert list((Path(user.environment["XDG_STATE_HOME"]) / "advisor" / "pending").glob("*")) == []


# Interrupted and killed.


@pytest.mark.parametrize(
    "end",
    ["Ctrl-C", "Ctrl-C to advisor alone", "Ctrl-C, and again", "SIGTERM", "SIGHUP", "SIGQUIT"],
)
def test_interrupted_run_leaves_nothing(user: User, end: str) -> None:
    user.script(HARMFUL)
    before = tree(user.folder)
    advisor = user.profile()
    user.wait_until_ready()
    assert tree(user.folder) != before and len(user.processes()) >= 3
    if end == "Ctrl-C":
        os.killpg(advisor.pid, signal.SIGINT)
    else:
        advisor.send_signal(signal.SIGINT if end.startswith("Ctrl-C") else signal.Signals[end])
    if end == "Ctrl-C, and again":
        time.sleep(0.02)
        advisor.send_signal(signal.SIGINT)
    _, said = advisor.communicate(timeout=30)
    assert advisor.returncode == 130
    assert said.splitlines()[-1] == "advisor: interrupted"
    assert_as_before(user, before)
    assert user.record()["ended"] == "failed" and user.record()["complete"] is False
    assert user.record()["failure"]["kind"] == "interrupt"  # type: ignore[index]
    assert (user.run_dir / layout.FILES_DIR / "made" / "deep" / "worker").exists()


@pytest.mark.parametrize("killed", ["advisor", "script", "both", "all"])
def test_killed_run_is_put_back_by_the_next_command(user: User, killed: str) -> None:
    user.script(HARMFUL)
    before = tree(user.folder)
    advisor = user.profile()
    user.wait_until_ready()
    script = next(
        pid for pid in user.processes() if b"bootstrap.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
        and os.getpgid(pid) == pid and Path(f"/proc/{pid}/stat").read_text().split()[3] == str(advisor.pid)
    )  # fmt: skip
    victims = {"advisor": [advisor.pid], "script": [script], "both": [script, advisor.pid]}
    for pid in victims.get(killed, [*user.processes(), advisor.pid]):
        os.kill(pid, signal.SIGKILL)
    _, said = advisor.communicate(timeout=30)
    if killed == "script":
        assert advisor.returncode == 1 and "killed by SIGKILL" in said
    else:
        assert advisor.returncode == -signal.SIGKILL
        user.wait_for(lambda: script not in user.processes(), 10)  # it dies with its parent
        following = user.advisor("rules")
        _, said = following.communicate(timeout=30)
        assert following.returncode == 0 and "was killed" in said
    assert_as_before(user, before)
    assert user.record()["ended"] == "killed"
    again = user.advisor("rules")
    assert again.communicate(timeout=30)[1] == "" and again.returncode == 0


def test_process_with_an_environment_of_its_own_is_ended_too(user: User) -> None:
    # The run folder's name among its arguments is for the test to know it by.
    apart = "sys.orig_argv[-1]], env={}, start_new_session=True)\n"
    user.script("import subprocess, sys\nsubprocess.Popen(['/bin/sh', '-c', 'sleep 300; true', " + apart + HARMFUL)
    before = tree(user.folder)
    advisor = user.profile()
    user.wait_until_ready()
    advisor.send_signal(signal.SIGINT)
    advisor.communicate(timeout=30)
    assert advisor.returncode == 130
    assert_as_before(user, before)


def test_live_run_is_not_touched_by_another_command(user: User) -> None:
    user.script(HARMFUL)
    before = tree(user.folder)
    advisor = user.profile()
    user.wait_until_ready()
    other = user.advisor("rules")
    assert other.communicate(timeout=30)[1] == ""
    assert (user.folder / "best.pt").read_text() == "changed" and len(user.processes()) >= 3
    assert advisor.poll() is None
    advisor.send_signal(signal.SIGINT)
    advisor.communicate(timeout=30)
    assert_as_before(user, before)


@pytest.mark.sessions
def test_interrupted_while_it_measures(user: User) -> None:
    user.script(TRAINING + "while True:\n    step(); torch.save(model.state_dict(), 'best.pt'); time.sleep(0.02)\n")
    before = tree(user.folder)
    advisor = user.profile()
    user.wait_for(lambda: user.phase() in ("timing", "profile"))
    advisor.send_signal(signal.SIGINT)
    _, said = advisor.communicate(timeout=30)
    assert advisor.returncode == 130, said
    assert_as_before(user, before)


def test_time_limit_ends_everything(user: User) -> None:
    user.script(HARMFUL)
    before = tree(user.folder)
    advisor = user.profile("--timeout", "4")
    _, said = advisor.communicate(timeout=60)
    assert advisor.returncode == 124 and "time limit of 4 s" in said
    assert_as_before(user, before)
    assert user.record()["failure"]["kind"] == "timeout"  # type: ignore[index]


def test_ignored_hangup_stays_ignored(user: User) -> None:
    user.script("import time\nopen('ready', 'w')\ntime.sleep(1.5)\n")
    advisor = subprocess.Popen(
        ["nohup", sys.executable, "-m", "advisor.cli", "profile", "script.py", "-o", str(user.output)],
        cwd=user.folder, env=user.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    user.started.append(advisor)
    user.wait_until_ready()
    advisor.send_signal(signal.SIGHUP)
    advisor.communicate(timeout=30)
    assert advisor.returncode == 3  # the script came to its own end


# Odd scripts that come to an end.

ODD = (
    "\ufeff#!/usr/bin/env python\n"
    + TRAINING
    + """
import atexit, io, multiprocessing, os, pickle, signal, threading
import statistics  # a module beside this file, which hides a standard one

class Point:
    def __init__(self, x):
        self.x = x

def double(point):
    return Point(2 * point.x)

if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2, signal.SIGHUP):
        signal.signal(number, lambda *a: None)
    sys.addaudithook(lambda *a: None)
    sys.excepthook = lambda *a: None
    atexit.register(lambda: open("best.pt", "w").write("at exit"))
    print(sys.argv[1:], statistics.OWN, __name__, repr(sys.stdin.read()))
    print(pickle.loads(pickle.dumps(Point(3))).x, type(sys.modules["__main__"].Point).__name__)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print("doubled", pool.apply(double, (Point(4),)).x)
    if not os.fork():
        open("state.json", "w").write("by a fork")
        sys.exit(5)  # through the harness's own frames
    os.wait()
    print("much\\n" * 200_000)
    sys.stdout = io.StringIO()
    os.chdir("old")
    open("checkpoint/1.pt", "w").write("relative")
    while True:
        step()
"""
)


def test_odd_script_is_measured_and_undone(user: User) -> None:
    user.script(ODD)
    user.script("OWN = 'own statistics'\n", "statistics.py")
    before = tree(user.folder)
    record = user.measure("script.py", "--step", "5", "-m", "--", "--output=x")
    assert record.complete and record.ended == "stopped", record.notes
    lines = user.printed.splitlines()
    assert lines[0] == "['--step', '5', '-m', '--', '--output=x'] own statistics __main__ ''"
    assert lines[1:3] == ["3 type", "doubled 8"]
    assert tree(user.folder) == before


TAKEN_APART = (
    TRAINING
    + """
import atexit, multiprocessing, os, tempfile, threading

class Apart:
    def __del__(self):
        os.write(1, b"taken apart\\n")

if __name__ == "__main__":
    kept = Apart()
    atexit.register(print, "first handler", end=" ")
    atexit.register(print, "second handler", end=" ")
    folder = tempfile.TemporaryDirectory()
    print(folder.name)
    late = threading.Thread(target=lambda: (threading.main_thread().join(), print("thread", end=" ")))
    late.start()
    worker = multiprocessing.get_context("fork").Process(target=threading.Event().wait, daemon=True)
    worker.start()
    print(worker.pid)
    while True:
        step()
"""
)


@pytest.mark.parametrize("restore", [True, False])
def test_exit_handlers_are_the_last_to_run_where_files_are_put_back(user: User, restore: bool) -> None:
    user.script(TAKEN_APART)
    record = user.measure("script.py", options=replace(QUICK, restore=restore))
    assert record.complete and record.ended == "stopped", record.notes
    folder, worker, *said = user.printed.splitlines()
    assert said[-1] == "thread second handler first handler " + ("" if restore else "taken apart")
    assert not Path(folder).exists() and not Path("/proc", worker).exists()


LEFT_OPEN = (
    TRAINING
    + """
import bz2, gzip

if __name__ == "__main__":
    plain, binary, both = open("plain.txt", "w"), open("binary", "wb"), open("both", "w+b")
    packed, lines, small = gzip.open("packed.gz", "wb"), gzip.open("lines.gz", "wt"), bz2.open("small.bz2", "w")
    read = open("best.pt")
    read.read(3)
    for file in (plain, lines):
        file.write("left open")
    for file in (binary, both, packed, small):
        file.write(b"left open")
    while True:
        step()
"""
)


def test_what_is_in_the_buffers_of_open_files_is_written(user: User) -> None:
    user.script(LEFT_OPEN)
    record = user.measure("script.py")
    assert record.complete and record.ended == "stopped", record.notes
    kept = {path.name: path for path in (user.run_dir / "files").rglob("*") if path.is_file()}
    assert kept["plain.txt"].read_text() == kept["binary"].read_text() == kept["both"].read_text() == "left open"
    assert gzip.decompress(kept["packed.gz"].read_bytes()) == b"left open"
    assert gzip.decompress(kept["lines.gz"].read_bytes()) == b"left open"
    assert bz2.decompress(kept["small.bz2"].read_bytes()) == b"left open"


@pytest.mark.sessions
def test_package_that_leaves_by_the_back_door(user: User) -> None:
    user.script(TRAINING, "package/training.py")
    user.script("", "package/__init__.py")
    user.script(
        "import os, sys\nfrom .training import step\nprint(sys.argv, __package__)\n"
        "for _ in range(60): step()\nopen('best.pt', 'w').write('x')\nos._exit(3)\n",
        "package/__main__.py",
    )
    before = tree(user.folder)
    record = user.measure("package", "a", module=True)
    # Two steps are enough: what its own exit status was does not matter then.
    assert record.steps > 20 and record.timing.step_s is not None and record.timing.step_s >= 0.002
    assert f"['{user.folder / 'package' / '__main__.py'}', 'a'] package" in user.printed
    assert tree(user.folder) == before


@pytest.mark.sessions
def test_thread_without_an_end_does_not_hold_up_the_run(user: User) -> None:
    user.script(
        TRAINING + "import threading\nthreading.Thread(target=time.sleep, args=(3600,)).start()\nwhile True: step()\n"
    )
    before, started = tree(user.folder), time.monotonic()
    assert user.measure("script.py").complete
    assert time.monotonic() - started < 40
    assert tree(user.folder) == before


# Scripts that fail: one sentence, the status, nothing changed.

FAILING = {
    "exit": ("import sys; sys.exit(7)", 1, "sys.exit(7)"),
    "back door": ("import os; os._exit(7)", 1, "os._exit(7)"),
    "raises": ("def f():\n    raise ValueError('bad\\nluck')\nf()", 1, "ValueError: bad"),
    "reads": ("input()", 1, "EOFError"),
    "no torch": ("print('done')", 3, "never imported torch"),
    "full disk": ("raise OSError(28, 'No space left on device')", 2, "free some space"),
    "out of memory": ("raise MemoryError", 1, "out of memory"),
    "no handle": ("raise RuntimeError('CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling x')", 1, "out of memory"),
    "exec": ("import os; os.execv('/bin/true', ['true'])", 1, "os.exec"),
    "killed": ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", 1, "SIGTERM"),
    "interrupts itself": ("raise KeyboardInterrupt", 1, "interrupted"),
    "huge file": ("open('huge', 'r+').write('x')", 2, "no room"),
    "no such import": ("import no_such_module_at_all", 1, "No module named"),
    "run folder": ("import shutil; shutil.rmtree('../advisor_runs')", 2, "--output"),
}


@pytest.mark.parametrize("name", FAILING)
def test_failing_script_is_said_in_one_sentence(user: User, name: str) -> None:
    code, status, said = FAILING[name]
    user.script(f"open('best.pt', 'w').write('changed'); open('new', 'w').write('x')\n{code}\n")
    before = tree(user.folder)
    if name == "huge file":
        with open(user.folder / "huge", "wb") as file:
            file.truncate(1 << 42)
    with pytest.raises(AdvisorError) as raised:
        user.measure("script.py")
    assert raised.value.exit_status == status, str(raised.value)
    assert said in str(raised.value)
    assert "advisor/harness" not in raised.value.detail
    if name == "huge file":
        (user.folder / "huge").unlink()
    assert tree(user.folder) == before


def test_traceback_is_as_plain_python_shows_it(user: User) -> None:
    script = user.script(
        "def f():\n    try:\n        1 / 0\n    except ZeroDivisionError:\n        raise ValueError(3)\nf()\n"
    )
    alone = subprocess.run([PYTHON, str(script)], cwd=user.folder, capture_output=True, text=True)
    with pytest.raises(AdvisorError) as raised:
        user.measure("script.py")
    assert raised.value.detail == alone.stderr


@pytest.mark.parametrize(
    "module, status, said",
    [("no_such_module.x", 2, "python -m"), ("broken.inner", 1, "needs_this"), ("empty_package", 2, "__main__")],
)
def test_module_that_does_not_run(user: User, module: str, status: int, said: str) -> None:
    user.script("import needs_this\n", "broken/__init__.py")
    user.script("", "broken/inner.py")
    user.script("", "empty_package/__init__.py")
    with pytest.raises(AdvisorError) as raised:
        user.measure(module, module=True)
    assert raised.value.exit_status == status and said in str(raised.value)


def test_interpreter_without_torch_is_named(user: User) -> None:
    user.script("import torch\n")
    plain = "/usr/bin/python3"
    if not Path(plain).exists() or not subprocess.run([plain, "-c", "import torch"], capture_output=True).returncode:
        pytest.skip("no interpreter without torch is here")
    with pytest.raises(AdvisorError, match=r"has no torch.*--python") as raised:
        measure(Command(str(user.folder / "script.py"), python=plain, cwd=str(user.folder)), user.run_dir, QUICK)
    assert raised.value.exit_status == 1


def test_interpreter_that_is_none(user: User) -> None:
    user.script("import torch\n")
    with pytest.raises(AdvisorError, match="--python") as raised:
        measure(Command(str(user.folder / "script.py"), python="/bin/true", cwd=str(user.folder)), user.run_dir, QUICK)
    assert raised.value.exit_status == 2


def test_output_folder_that_cannot_be_made(user: User) -> None:
    user.script("import torch\n")
    user.output.write_text("a file is in the way")
    with pytest.raises(AdvisorError, match="--output") as raised:
        user.measure("script.py")
    assert raised.value.exit_status == 2


def test_script_that_dies_in_the_last_window_is_reported_from_what_was_measured_before(user: User) -> None:
    die = "import glob, os, signal\n"
    loop = (
        "while True:\n    step()\n"
        "    if glob.glob(os.environ['ADVISOR_OPTIONS'].replace('options.json', 'run.partial.json')):\n"
        "        step()\n        os.kill(os.getpid(), signal.SIGSEGV)\n"
    )
    user.script(die + TRAINING + loop)
    record = user.measure("script.py")
    assert record.ended == "killed"
    assert record.timing.step_s is not None
    assert record.traces and not record.details
    assert any("SIGSEGV" in note for note in record.notes)


@pytest.mark.sessions
def test_steps_in_child_processes_are_said_instead_of_waited_for(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advisor.launch._CHILDREN_SECONDS", 1.0)
    children = (
        "def train(rank):\n    while True:\n        step()\n\n"
        "if __name__ == '__main__':\n    torch.multiprocessing.spawn(train, nprocs=1)\n"
    )
    user.script(TRAINING + children)
    with pytest.raises(AdvisorError, match="processes that it starts itself") as raised:
        user.measure("script.py")
    assert raised.value.exit_status == 3


@pytest.mark.sessions
def test_script_at_a_terminal_may_ask_for_its_size_and_gets_no_answer(user: User) -> None:
    user.script(
        "import os, sys\nprint('size', *os.popen('stty size').read().split())\n"
        "try:\n    input('go on? ')\nexcept EOFError:\n    print('nobody answers')\n"
        + TRAINING
        + "for _ in range(8): step()\n"
    )
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "advisor.cli", "profile", "script.py", "--python", PYTHON, "-o", str(user.output)]
    done = subprocess.run(
        command, cwd=user.folder, env=user.environment, stdin=theirs, capture_output=True, text=True, timeout=120
    )
    os.close(ours)
    os.close(theirs)
    assert done.returncode == 0, done.stderr
    assert user.printed.startswith("size 24 80\n")
    assert "nobody answers" in user.printed
