"""How fast a processor is in 16 bits is measured, and the script's own run is left as it was."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import pytest
import torch

from advisor.harness.machine.rates import more_threads
from advisor.launch import Command, measure
from tests.conftest import PYTHON, QUICK

# oneDNN computes as if the processor had nothing beyond it (oneDNN, "CPU Dispatcher Control").
AVX2_ALONE = {"ONEDNN_MAX_CPU_ISA": "AVX2", "OMP_NUM_THREADS": "2"}
x86 = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="oneDNN's AVX2 is x86's")

SCRIPT = """
import torch

model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(300):
    optimizer.zero_grad()
    model(torch.randn(32, 64)).square().mean().backward()
    optimizer.step()
"""


@x86
@pytest.mark.sessions
def test_a_run_measures_that_bfloat16_is_emulated(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    command = Command(script=str(path), python=PYTHON, environment=AVX2_ALONE, cwd=str(tmp_path))
    rates = measure(command, tmp_path / "run", QUICK, timeout=240).record.environment.rates
    assert rates["bfloat16"]["product"] > 5 and rates["bfloat16"]["convolution"] > 5


def test_nothing_of_the_script_changes(tmp_path: Path) -> None:
    code = """
import torch
from advisor.harness.machine.rates import flop_per_s, rates

torch.manual_seed(3)
torch.set_default_dtype(torch.float64)
torch.set_num_threads(2)
expected = torch.get_rng_state()
with torch.autocast("cpu", dtype=torch.bfloat16), torch.device("meta"):
    found, rate = rates(torch), flop_per_s(torch)
    assert torch.is_autocast_enabled("cpu") and torch.is_grad_enabled()
assert torch.equal(torch.get_rng_state(), expected)
assert torch.get_default_dtype() == torch.float64 and torch.get_num_threads() == 2
assert all(ratio > 0 for each in found.values() for ratio in each.values()), found
assert "bfloat16" in found
assert 1e9 < rate < 1e12, rate  # one thread's, from a small board's to well above any processor's
"""
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr


def test_more_threads_are_measured_where_there_are_fewer_than_cores() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        found = more_threads(torch, 2.0)
        assert torch.get_num_threads() == 1
        assert found.keys() == {"product", "convolution", "elementwise"}
        assert all(0 < times <= 2 for times in found.values())  # beside a busy program more threads wait for each other
        assert more_threads(torch, 1.9) == {}
        torch.set_num_threads(2)
        assert more_threads(torch, 2.0) == {}
    finally:
        torch.set_num_threads(before)
