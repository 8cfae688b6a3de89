"""A script that trains in processes of its own is measured at rank 0, whoever starts them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from advisor.errors import AdvisorError
from advisor.harness.layout import LAUNCHERS, Options, RunRecord
from advisor.harness.machine.environment import share_of_cpus, usable_cpus
from advisor.launch import Command, launcher, measure
from tests.conftest import PYTHON, QUICK

TRAINING = """\
import os, signal, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x):
        return self.layer(x)


def train():
    torch.set_num_threads(1)
    rank = torch.distributed.get_rank()
    print(f"drawn by {rank}: {torch.rand(1).item():.6f}", flush=True)
    data = TensorDataset(torch.randn(64 * 200, 64))
    loader = DataLoader(data, batch_size=16, sampler=DistributedSampler(data))
    model = nn.parallel.DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (x,) in enumerate(loader):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step == 0 and "fail" in sys.argv:
            raise ValueError("a fault of the user's")
        if rank == 0 and step == 0 and "exit" in sys.argv:
            sys.exit(3)
        if rank == 0 and step == 0 and "kill" in sys.argv:
            os.kill(os.getpid(), signal.SIGKILL)
        if "short" in sys.argv and step == 11:
            break
    print(f"done by {rank}", flush=True)


"""
# What starts it, where two meet. A file of their own is none that a run of another test could meet.
MEETING = (
    "    torch.distributed.init_process_group('gloo'{})\n    train()\n    torch.distributed.destroy_process_group()\n"
)
AT = ", init_method='file://' + os.path.abspath(f'meeting-{os.getppid()}'), rank=rank, world_size=2"
LAUNCHED = TRAINING + "if __name__ == '__main__':\n" + MEETING.format("")
SPAWNED = (
    TRAINING
    + "def run(rank):\n"
    + MEETING.format(AT)
    + "\n\nif __name__ == '__main__':\n    torch.multiprocessing.spawn(run, nprocs=2)\n"
)
STARTED = (
    TRAINING
    + "def run(rank):\n"
    + MEETING.format(AT)
    + """

if __name__ == '__main__':
    torch.multiprocessing.set_start_method('spawn')
    started = [torch.multiprocessing.Process(target=run, args=(rank,)) for rank in range(2)]
    for each in started:
        each.start()
    for each in started:
        each.join()
"""
)
WAYS = [
    pytest.param(LAUNCHED, True, id="torchrun"),
    pytest.param(SPAWNED, False, id="spawn"),
    pytest.param(STARTED, False, id="processes"),
]
Go = Callable[..., RunRecord]


@pytest.fixture
def go(tmp_path: Path) -> Go:
    def run(text: str, launched: bool, *argv: str, options: Options = QUICK) -> RunRecord:
        (tmp_path / "train.py").write_text(text)
        if launched:
            words = ("--nproc-per-node", "2", "--standalone", str(tmp_path / "train.py"), *argv)
            command = Command("torch.distributed.run", words, module=True, python=PYTHON, cwd=str(tmp_path))
        else:
            command = Command(str(tmp_path / "train.py"), argv, python=PYTHON, cwd=str(tmp_path))
        return measure(command, tmp_path / "run", options, timeout=120.0).record

    return run


@pytest.mark.sessions
@pytest.mark.oldest
@pytest.mark.parametrize(("text", "launched"), WAYS)
def test_rank_zero_is_measured(go: Go, tmp_path: Path, text: str, launched: bool) -> None:
    record = go(text, launched)
    assert (record.rank, record.world_size, record.step_kind, record.failure) == (0, 2, "optimizer", None)
    assert record.script == str(tmp_path / "train.py") and not record.module
    assert record.complete and record.timing.step_s is not None and record.traces and record.details
    (loader,) = record.loaders
    assert loader.batch_size == 16 and record.timing.samples_per_step == 16
    assert any(each.cls == "DistributedDataParallel" for each in record.models)
    assert "train.py" in str(record.optimizers[0].site)
    cpus = usable_cpus()
    assert record.environment.usable_cpus == max(1.0, cpus / 2)
    printed = (tmp_path / "run" / "output.log").read_text()
    assert "done by" not in printed  # it is stopped when enough was measured


@pytest.mark.sessions
@pytest.mark.parametrize(("text", "launched"), WAYS[:2])
def test_a_job_that_is_over_early_is_run_again_with_shorter_windows(go: Go, text: str, launched: bool) -> None:
    record = go(text, launched, "short")
    assert record.total_steps == 12 and record.complete and record.timing.step_s is not None


ENDS = {"fail": "a fault of the user's", "exit": r"sys\.exit\(3\)", "kill": "rank 0 .* was gone"}


@pytest.mark.sessions
@pytest.mark.parametrize(("text", "launched"), WAYS)
@pytest.mark.parametrize("end", ENDS)
def test_what_ends_it_early_is_said(go: Go, text: str, launched: bool, end: str) -> None:
    with pytest.raises(AdvisorError, match=ENDS[end]):
        go(text, launched, end)


@pytest.mark.sessions
@pytest.mark.parametrize(("text", "launched"), WAYS[:2])
def test_what_the_ranks_draw_is_the_same_in_each_run(go: Go, tmp_path: Path, text: str, launched: bool) -> None:
    def drawn() -> set[str]:
        with pytest.raises(AdvisorError):
            go(text, launched, "fail", options=replace(QUICK, seed=7))
        return {line for line in (tmp_path / "run" / "output.log").read_text().splitlines() if "drawn by" in line}

    first = drawn()
    assert len(first) == 2 and drawn() == first


HELPED = """\
import os, subprocess, sys
import torch

if __name__ == "__main__":
    {first}
    subprocess.run([sys.executable, "helper.py"], check=True)
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2000):
        optimizer.zero_grad()
        model(torch.randn(16, 64)).square().mean().backward()
        optimizer.step()
"""
AT_FILE = "'file://' + os.path.abspath(f'alone-{os.getpid()}')"
JOINS = f"torch.distributed.init_process_group('gloo', init_method={AT_FILE}, rank=0, world_size=1)"


@pytest.mark.sessions
@pytest.mark.parametrize(
    ("first", "environment"),
    [
        pytest.param("pass", {"RANK": "0", "WORLD_SIZE": "1"}, id="told"),
        pytest.param(f"os.environ.update(RANK='0', WORLD_SIZE='1'); {JOINS}", {}, id="joins a group"),
    ],
)
def test_a_rank_that_starts_another_program_stays_the_one(
    tmp_path: Path, first: str, environment: dict[str, str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(HELPED.format(first=first))
    (tmp_path / "helper.py").write_text("import torch\nprint(torch.rand(1))\n")
    command = Command(str(script), python=PYTHON, cwd=str(tmp_path), environment=environment)
    record = measure(command, tmp_path / "run", QUICK, timeout=120.0).record
    assert (record.rank, record.world_size) == (0, 1) and record.complete and record.timing.step_s is not None


ALONE = """\
import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = accelerator.prepare(model, optimizer)
for _ in range(2000):
    loss = model(torch.randn(16, 64)).square().mean()
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
"""


@pytest.mark.sessions
def test_what_accelerate_launches_is_measured(tmp_path: Path) -> None:
    """In one process, which gets no variables at all; several it starts as torchrun does."""
    script = tmp_path / "train.py"
    script.write_text(ALONE)
    words = ("launch", "--cpu", "--num_processes", "1", "--mixed_precision", "no", str(script))
    command = Command(LAUNCHERS[1], words, module=True, python=sys.executable, cwd=str(tmp_path))
    record = measure(command, tmp_path / "run", QUICK, timeout=120.0).record
    assert (record.rank, record.world_size, record.script) == (0, 1, str(script))
    assert record.complete and record.timing.step_s is not None


@pytest.mark.parametrize(
    ("cpus", "world_size", "here", "share"),
    [(16.0, None, "", 16.0), (16.0, 8, "", 2.0), (16.0, 8, "4", 4.0), (2.0, 8, "", 1.0), (0.5, 1, "1", 0.5)],
)
def test_the_ranks_of_a_machine_share_its_cores(
    cpus: float, world_size: int | None, here: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", here)
    assert share_of_cpus(cpus, world_size) == share


def test_a_launcher_is_known_by_its_name_unless_there_is_such_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert launcher("torchrun") == "torch.distributed.run" and launcher("train.py") is None
    words = ("--nproc-per-node", "2", "code/train.py", "--lr", "0.1")
    assert Command("torch.distributed.run", words, module=True).name == "train"
    (tmp_path / "torchrun").touch()
    assert launcher("torchrun") is None


@pytest.mark.sessions
def test_torchrun_is_profiled_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LAUNCHED)
    words = ["torchrun", "--accept", "none", "--", "--nproc-per-node", "2", "--standalone", "train.py"]
    done = subprocess.run(
        [sys.executable, "-m", "advisor.cli", "profile", *words], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "rank 0 of 2" in done.stdout and (tmp_path / "advisor_runs" / "train-1" / "report.html").exists()
