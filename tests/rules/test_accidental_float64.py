"""Float64 is reported where matrix work is done in it, and where a script brings it in is what the fix changes."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from advisor.edit import Edit, Sources
from advisor.evidence import Evidence
from advisor.evidence.precisions import in_own_convolutions, kernels_in_float32
from advisor.harness.layout import CallSite, Site
from advisor.launch import Command, measure
from advisor.rule import Advice, Rule
from advisor.rulebook import load_rules
from advisor.trace import read_trace
from tests.conftest import PYTHON, QUICK

SCRIPT = """
import numpy as np
import torch

rng = np.random.default_rng(0)
x = torch.from_numpy(rng.normal(size=(512, 512)))
y = torch.as_tensor(rng.normal(size=512))
weights = torch.tensor([1.0, 2.0], dtype=torch.float64)  # a scale
model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Tanh(), torch.nn.Linear(512, 1)).double()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(60):
    optimizer.zero_grad()
    loss = ((model(x)[:, 0] - y) ** 2).mean() * weights[0]
    loss.backward()
    optimizer.step()
print(loss.dtype)
"""


def rule() -> Rule:
    (found,) = [each for each in load_rules() if each.id == "accidental-float64"]
    return found


def matrix_step(scene: Any, folder: Path, dtype: str, beside: str = "", optimizer: str = "SGD") -> Evidence:
    """A step whose products have inputs of `dtype`, as the detail window tells, and an operator `beside` them."""
    made = scene(50.0)
    made.operator("aten::mm", 1.0, 49.0)
    if beside:
        made.operator(beside, 49.0, 49.5)
    made.record.optimizers[0].cls = optimizer
    evidence = made.evidence(folder)
    shapes = {"Input Dims": [[512, 512], [512, 512]], "Input type": [dtype, dtype]}
    events = json.loads((folder / "trace.json").read_text())
    for event in events["traceEvents"]:
        if event["name"] == "aten::mm":
            event["args"].update(shapes)
    (folder / "detail.json").write_text(json.dumps(events))
    made_of: Evidence = replace(evidence, detail=read_trace(str(folder / "detail.json")))
    return made_of


def test_products_in_float64_are_reported(scene: Any, tmp_path: Path) -> None:
    (finding,) = rule().check(matrix_step(scene, tmp_path, "double"))
    assert 1.5 < finding.gain.likely < 2.1
    assert finding.evidence["float64_share_of_flops"] == 1.0


@pytest.mark.parametrize(
    ("beside", "optimizer", "reported"),
    [
        ("aten::linalg_cholesky_ex", "Adam", False),
        ("aten::triangular_solve", "SGD", False),
        ("", "LBFGS", False),
        ("aten::linalg_vector_norm", "Adam", True),
    ],
)
def test_solves_and_line_searches_want_their_digits(
    beside: str, optimizer: str, reported: bool, scene: Any, tmp_path: Path
) -> None:
    assert bool(list(rule().check(matrix_step(scene, tmp_path, "double", beside, optimizer)))) is reported


@pytest.mark.parametrize(
    ("text", "default", "reported"),
    [
        ("(slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)", True, False),
        ("loss.backward(create_graph=True)", False, True),
        ("loss.backward()", True, True),
        ("while residual.norm() > 1e-9:\n    residual = residual - matrix @ x", True, False),
        ("rounds, tol = 200, 1e-8", False, False),
        ("def solve(matrix, atol: float = 1e-10): ...", False, False),
        ("threshold = 0.5; optimizer = Adam(weights, eps=1e-8)", True, True),
        ("tolerance = 1e-4", True, True),
        ("for _ in range(99):\n    if residual.norm() < 1e-9:\n        break", True, False),
        ("std[std < 1e-8] = 1.0", True, True),
        ("if norm > 1e-8:\n    x = x / norm", True, True),
        ("assert torch.allclose(x, y, atol=1e-8)", True, True),
    ],
)
def test_derivatives_of_derivatives_in_a_chosen_type_want_their_digits(
    text: str, default: bool, reported: bool, scene: Any, tmp_path: Path
) -> None:
    evidence = matrix_step(scene, tmp_path, "double")
    script = tmp_path / "train.py"
    script.write_text(f"import torch\ntorch.set_default_dtype(torch.float64)\n{text}\n")
    assert evidence.record is not None
    evidence.record.script = str(script)
    if default:
        site = CallSite("default_dtype", Site(str(script), 2), calls=1, details={"dtype": "float64"})
        evidence.record.call_sites.append(site)
    assert bool(list(rule().check(evidence))) is reported


SOLVER = """
import torch

def solve(n):
    {before}torch.set_default_dtype(torch.float64)
    u = torch.zeros(100)
    for _ in range(n):
        u = u + 0.1 * flux(u)
    {after}
    return u

(slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
"""


@pytest.mark.parametrize(
    ("before", "after", "reported"),
    [
        ("", "u = u - u.mean()", True),
        ("", "torch.set_default_dtype(before)", False),
        ("optimizer.step(); ", "", False),
        ("net = Net(); ", "", False),
    ],
)
def test_what_a_solver_leaves_behind_was_not_chosen(
    before: str, after: str, reported: bool, scene: Any, tmp_path: Path
) -> None:
    """It sets the default type for what it computes itself, and a network of the same script gets it, too."""
    evidence = matrix_step(scene, tmp_path, "double")
    script = tmp_path / "train.py"
    script.write_text(SOLVER.format(before=before, after=after))
    assert evidence.record is not None
    evidence.record.script = str(script)
    site = CallSite("default_dtype", Site(str(script), 5), calls=1, details={"dtype": "float64"})
    evidence.record.call_sites.append(site)
    found = list(rule().check(evidence))
    assert bool(found) is reported
    for finding in found:
        assert "solve() leaves it as the default type" in finding.summary
        fix = rule().fix(finding, Sources())
        assert isinstance(fix, Advice) and "Have solve() put the default type back" in fix.text


def test_products_in_float32_are_not(scene: Any, tmp_path: Path) -> None:
    assert list(rule().check(matrix_step(scene, tmp_path, "float"))) == []


@pytest.mark.sessions
@pytest.mark.slow
def test_patched_script_computes_in_float32(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    command = Command(script=str(path), python=PYTHON, environment={"OMP_NUM_THREADS": "1"}, cwd=str(tmp_path))
    evidence = Evidence.from_run(measure(command, tmp_path / "run", QUICK, timeout=240))
    (finding,) = rule().check(evidence)
    assert finding.site is not None and ".double()" in SCRIPT.splitlines()[finding.site.line - 1]
    fix = rule().fix(finding, Sources())
    assert isinstance(fix, Edit)
    path.write_text(fix.texts[str(path)])
    run = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=120)
    assert run.stdout.strip() == "torch.float32", run.stderr


DILATED = """
import torch

torch.manual_seed(0)
torch.set_num_threads(1)
layers = [torch.nn.Conv1d(16, 16, 3, padding=2**i, dilation=2**i) for i in range(1, 5)]
model = torch.nn.Sequential(*layers).{dtype}()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(300):
    optimizer.zero_grad()
    model(torch.randn(16, 16, 200).{dtype}()).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.sessions
def test_what_convolutions_in_float64_do_for_each_sample_goes_with_them(tmp_path: Path) -> None:
    took = {}
    for dtype in ("double", "float"):
        script, folder = tmp_path / f"{dtype}.py", tmp_path / dtype
        script.write_text(DILATED.format(dtype=dtype))
        evidence = Evidence.from_run(measure(Command(str(script), python=PYTHON, cwd=str(tmp_path)), folder, QUICK))
        took[dtype] = evidence.step_s or 0.0
        if dtype == "double":
            (finding,) = rule().check(evidence)
            assert in_own_convolutions(evidence)["aten::select"] > 0.9
        else:
            assert not in_own_convolutions(evidence)
    measured = took["double"] / took["float"]
    assert finding.gain.likely > 1.8 and finding.gain.low <= measured * 1.5 and measured <= finding.gain.high * 2


@pytest.mark.parametrize(
    ("name", "capability", "kind", "precision", "left"),
    [
        pytest.param("ampere_dgemm_128x64_nn", [8, 0], "gemm", "highest", 0.47, id="half-the-rate"),
        pytest.param("cutlass_80_tensorop_d884gemm_64x64", [8, 0], "gemm", "highest", 0.9, id="on-tensor-cores"),
        pytest.param("cutlass_80_tensorop_d884gemm_64x64", [9, 0], "gemm", "high", 0.9 * 0.16, id="to-tf32"),
        pytest.param("ampere_dgemm_128x64_nn", [8, 9], "gemm", "highest", 0.06, id="geforce"),
        pytest.param("implicit_convolve_dgemm<double>", [9, 0], "conv", "highest", 0.47 * 0.16, id="convolutions"),
        pytest.param("elementwise_kernel<double>", [8, 9], "other", "highest", 0.47, id="waits-for-memory"),
    ],
)
def test_what_float32_leaves_of_a_gpu_s_kernel_is_by_its_units(
    name: str, capability: list[int], kind: str, precision: str, left: float, scene: Any, tmp_path: Path
) -> None:
    made = scene(50.0, "a GPU")
    made.record.device.capability, made.record.environment.matmul_precision = capability, precision
    made.kernel(name, 0.2, 49.0, launched=0.1)
    evidence = made.evidence(tmp_path)
    (row,) = evidence.kernels
    assert row.kind == kind
    assert kernels_in_float32(evidence) == {name: pytest.approx(left, abs=1e-3)}
