"""Gradients that travel in backwards which no step follows are found in traces, and by running two ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from advisor.edit import Edit, Sources
from advisor.evidence import Evidence
from advisor.launch import Command, measure
from rules.ddp_no_sync import DdpNoSync
from tests.conftest import PYTHON, QUICK

RULE = DdpNoSync()
BACKWARDS, STEP_MS = 4, 80.0


def made_of(scene: Any, exchanging: int = BACKWARDS, gpu: str = "") -> Any:
    """A step of four forwards and backwards, in the last `exchanging` of which gradients travel for 8 ms alone."""
    made = scene(step_ms=STEP_MS, gpu=gpu)
    for number in range(BACKWARDS):
        began, pace = number * 19.0, 0.1 if gpu else 1.0  # the host of a GPU runs ahead
        at = pace * began
        made.each("user_annotation", "DistributedDataParallel.forward", at, at + 4 * pace)
        made.operator("aten::addmm", at, at + 4 * pace)
        made.operator("autograd::engine::evaluate_function: AddmmBackward0", at + 4 * pace, at + 10 * pace)
        if gpu:
            made.kernel("gemm", began + 0.1, began + 10, at + pace)
        if number < BACKWARDS - exchanging:
            continue
        made.operator("c10d::allreduce_", at + 8 * pace, at + 8.1 * pace)
        if gpu:
            made.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", began + 10, began + 18, at + 9 * pace)
        else:
            made.each("user_annotation", "gloo:all_reduce", began + 8, began + 18, tid=7)
    made.each("user_annotation", "Optimizer.step#SGD.step", 77, 79)
    return made


@pytest.mark.parametrize("gpu", ["", "NVIDIA H200"])
def test_all_but_the_last_exchange_of_a_step_go(scene: Any, tmp_path: Path, gpu: str) -> None:
    (finding,) = RULE.check(made_of(scene, gpu=gpu).evidence(tmp_path))
    assert finding.evidence["exchanges_per_step"] == BACKWARDS and "4 backward passes" in finding.summary
    # What nothing hides of three of them, of a step of 80 ms: 8 ms each, and on a CPU what starts them.
    assert finding.gain.likely == pytest.approx(STEP_MS / (STEP_MS - 3 * 8), rel=0.1)


@pytest.mark.parametrize("exchanging", [0, 1])
def test_one_exchange_for_each_step_is_as_it_should_be(scene: Any, tmp_path: Path, exchanging: int) -> None:
    assert not list(RULE.check(made_of(scene, exchanging).evidence(tmp_path)))


def test_an_optimizer_after_each_backward_needs_each_exchange(scene: Any, tmp_path: Path) -> None:
    made = made_of(scene)
    for number in range(BACKWARDS - 1):
        made.each("user_annotation", "Optimizer.step#SGD.step", number * 19 + 18, number * 19 + 18.5)
    assert not list(RULE.check(made.evidence(tmp_path)))


def test_norms_that_are_synchronized_exchange_what_they_need(scene: Any, tmp_path: Path) -> None:
    made = made_of(scene)
    made.operator("SyncBatchNorm", 1, 2)
    assert not list(RULE.check(made.evidence(tmp_path)))


SCRIPT = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

ACCUMULATED = 4


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    torch.set_num_threads(1)
    model = DDP(nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 1024), nn.ReLU(), nn.Linear(1024, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for number in range(160):
        x = torch.randn(8, 64)
        loss = model(x).square().mean() / ACCUMULATED
        loss.backward()
        if (number + 1) % ACCUMULATED == 0:
            optimizer.step()
            optimizer.zero_grad()
    weights = sum(each.double().abs().sum() for each in model.parameters())
    if dist.get_rank() == 0:
        print(f"weights: {weights.item():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
"""


@pytest.mark.sessions
def test_a_script_of_two_ranks_exchanges_once_and_learns_the_same(tmp_path: Path) -> None:
    script = tmp_path / "train.py"

    def run(text: str) -> Any:
        script.write_text(text)
        words = ("--nproc-per-node", "2", "--standalone", str(script))
        command = Command("torch.distributed.run", words, module=True, python=PYTHON, cwd=str(tmp_path))
        return measure(command, tmp_path / "run", QUICK, timeout=120.0)

    (finding,) = RULE.check(Evidence.from_run(run(SCRIPT)))
    assert finding.gain.likely > 1.05
    assert finding.site is not None and "loss.backward()" in SCRIPT.splitlines()[finding.site.line - 1]
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Edit)
    patched = fix.texts[str(script)]
    assert "model.no_sync()" in patched
    printed = [output(tmp_path, text) for text in (SCRIPT, patched)]
    assert printed[0] == printed[1] and "weights" in printed[0]
    assert not list(RULE.check(Evidence.from_run(run(patched))))


def output(folder: Path, text: str) -> str:
    """What the script says of its weights when nobody looks, to four digits."""
    (folder / "plain.py").write_text(text)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "plain.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    weights = float(done.stdout.split("weights: ")[1])
    return f"weights {weights:.3e}"
