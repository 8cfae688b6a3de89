"""Sizes that only the GPU knows: found where the waiting costs, named by the call, never twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from advisor.rules.data_dependent_sync import DataDependentSync

from advisor.diagnose import diagnose
from advisor.edit import Sources
from advisor.evidence import Evidence
from advisor.launch import Command, measure
from advisor.rule import Advice, Finding
from advisor.run import Run
from tests.conftest import PYTHON, QUICK

A100 = "NVIDIA A100-SXM4-40GB"
KERNEL = "void at::native::vectorized_elementwise_kernel<4>"


def waiting(scene: Any, *operators: str, idle_after: bool = True) -> Any:
    """A step of 20 ms: the GPU computes for 10, the host waits for that in `operators`, and then launches slowly."""
    made = scene(20.0, A100)
    made.kernel(KERNEL, 0.5, 10.0, launched=0.1)
    for depth, name in enumerate(operators):
        made.operator(name, 1.0 + 0.01 * depth, 10.3 - 0.01 * depth)
    made.copy("Memcpy DtoH (Device -> Pinned)", 10.0, 10.003, 8, launched=1.05, returned=1.06)
    made.each("cuda_runtime", "cudaStreamSynchronize", 1.1, 10.1)
    for index in range(40 if idle_after else 0):
        start = 10.5 + 0.2 * index
        made.kernel(KERNEL, start + 0.03, start + 0.12, launched=start)
    if not idle_after:
        made.kernel(KERNEL, 10.13, 19.9, launched=10.12)
    return made


def reading(scene: Any, *operators: str) -> Any:
    """The same where the value goes to pageable memory: the call that copies it is the one that waits."""
    made = waiting(scene, *operators)
    kept = {"cudaLaunchKernel"}
    made._events = [
        each
        for each in made._events
        if each["name"] in kept or (each["cat"] != "cuda_runtime" and "DtoH" not in each["name"])
    ]
    made.copy("Memcpy DtoH (Device -> Pageable)", 10.0, 10.003, 8, launched=1.05, returned=10.1)
    return made


def found(made: Any, folder: Path) -> Finding | None:
    findings = list(DataDependentSync().check(made.evidence(folder)))
    assert len(findings) <= 1
    for each in findings:
        assert each.gain.low <= each.gain.likely <= each.gain.high <= 2.000001 * each.gain.low
    return findings[0] if findings else None


@pytest.mark.parametrize(
    ("operators", "named"),
    [
        pytest.param(("aten::index", "aten::nonzero"), "x[mask]", id="mask"),
        pytest.param(("aten::index_put_", "aten::_index_put_impl_", "aten::nonzero"), "x[mask]", id="mask-assigned"),
        pytest.param(
            ("autograd::engine::evaluate_function: IndexBackward0", "IndexBackward0", "aten::_index_put_impl_",
             "aten::nonzero"), "x[mask]", id="mask-backward",
        ),
        pytest.param(("aten::nonzero",), "nonzero()", id="nonzero"),
        pytest.param(("aten::_unique2",), "unique()", id="unique"),
        pytest.param(
            ("aten::repeat_interleave", "aten::item", "aten::_local_scalar_dense"), "repeat_interleave()", id="repeats"
        ),
    ],
)  # fmt: skip
def test_the_operator_that_waits_is_named(operators: tuple[str, ...], named: str, scene: Any, tmp_path: Path) -> None:
    finding = found(waiting(scene, *operators), tmp_path)
    assert finding is not None and finding.evidence["operators"] == named
    # Without the wait the host launches while the GPU computes: of 20 ms some 14 are left, of them 9.5 + 40 x 0.09 ms.
    assert 1.3 < finding.gain.likely < 1.7
    assert finding.evidence["sync_wait_s"] == pytest.approx(8.9e-3, rel=0.02)


def test_the_place_is_the_call_that_the_run_saw_on_the_gpu(scene: Any, tmp_path: Path) -> None:
    made = waiting(scene, "aten::index", "aten::nonzero")
    made.call("sized", 30, 0.25, operator="unique", device="cuda")
    made.call("sized", 31, 0.25, operator="mask", device="cpu")
    made.call("sized", 32, 0.25, operator="mask", device="cuda")
    finding = found(made, tmp_path)
    assert finding is not None and finding.site is not None and finding.site.line == 32
    fix = DataDependentSync().fix(finding, Sources())
    assert isinstance(fix, Advice) and "train.py:32" in fix.text and "torch.where" in fix.text


@pytest.mark.parametrize("operators", [("aten::item", "aten::_local_scalar_dense"), ("aten::to", "aten::copy_"), ()])
def test_other_waits_are_other_rules(operators: tuple[str, ...], scene: Any, tmp_path: Path) -> None:
    assert found(waiting(scene, *operators), tmp_path) is None


def test_a_wait_that_costs_nothing_is_not_reported(scene: Any, tmp_path: Path) -> None:
    # After the wait one long kernel is launched at once: only its launch is idle time.
    assert found(waiting(scene, "aten::nonzero", idle_after=False), tmp_path) is None


def test_one_wait_is_one_finding(scene: Any, tmp_path: Path) -> None:
    for operators, rule in (
        (("aten::index", "aten::nonzero"), "data-dependent-sync"),
        (("aten::item", "aten::_local_scalar_dense"), "host-sync"),
    ):
        made = waiting(scene, *operators)
        made.call("Tensor.item", 20, device="cuda")
        made.call("sized", 21, 0.25, operator="mask", device="cuda")
        rules = {each.rule for each in diagnose(made.evidence(tmp_path)).document.findings}
        assert rules & {"host-sync", "data-dependent-sync"} == {rule}


def test_a_bare_trace_says_what_waits(scene: Any, tmp_path: Path) -> None:
    findings = list(DataDependentSync().check(waiting(scene, "aten::_unique2").bare(tmp_path)))
    assert [each.evidence["operators"] for each in findings] == ["unique()"]


def test_a_bare_trace_takes_the_places_from_its_script(scene: Any, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("x = x[y > 0]\nfor x, y in loader:\n    a = x[0]\n    loss = f(x[y > 0])\n    u = x.unique()\n")
    bare = waiting(scene, "aten::index", "aten::nonzero").bare(tmp_path)
    (finding,) = DataDependentSync().check(Evidence.from_trace(bare.trace, source=str(path)))
    assert finding.site is not None and finding.site.line == 4


SCRIPT = """
import torch
import torch.nn.functional as F

net = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
counts = torch.full((64,), 2)
while True:
    y = net(torch.randn(64, 16))
    mask = y[:, 0] > -10
    kept = y[mask]  # sized: mask
    F.one_hot(torch.arange(5), 5)
    F.one_hot(torch.arange(5))  # sized: one_hot
    y.detach().repeat_interleave(2, 0)
    torch.repeat_interleave(y, counts, dim=0, output_size=128)
    torch.repeat_interleave(y, counts, dim=0)  # sized: repeat_interleave
    z = y.detach().clone()
    z[mask] = 0.0
    z[mask] = y.detach()[0]  # sized: mask
    z.long().unique()  # sized: unique
    (z > 0).nonzero()  # sized: nonzero
    torch.where(z > 0)  # sized: where
    torch.where(z > 0, z, y)
    z[mask] = torch.tensor(0.5)
    optimizer.zero_grad()
    kept.mean().backward()
    optimizer.step()
"""


def test_the_harness_records_where_sizes_come_from_values(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    command = Command(str(path), python=PYTHON, environment={"OMP_NUM_THREADS": "1"}, cwd=str(tmp_path))
    measure(command, tmp_path / "run", QUICK, timeout=120)
    record = Run.load(tmp_path / "run").record
    expected = {
        (number, line.rpartition(": ")[2]) for number, line in enumerate(SCRIPT.splitlines(), 1) if "# sized" in line
    }
    seen = {(each.site.line, each.details["operator"]) for each in record.call_sites if each.kind == "sized"}
    assert seen == expected


def test_a_copy_to_pageable_memory_waits_by_itself(scene: Any, tmp_path: Path) -> None:
    finding = found(reading(scene, "aten::index", "aten::nonzero"), tmp_path)
    assert finding is not None and finding.evidence["sync_wait_s"] == pytest.approx(8.9e-3, rel=0.02)
    assert 1.3 < finding.gain.likely < 1.7


def test_an_index_on_the_cpu_is_no_mask(scene: Any, tmp_path: Path) -> None:
    """It is copied to the GPU inside of the operator, which waits for that: nothing is read back."""
    made = waiting(scene, "aten::index", "aten::to", "aten::_to_copy", "aten::copy_")
    for each in made._events:
        each["name"] = each["name"].replace("DtoH (Device -> Pinned)", "HtoD (Pageable -> Device)")
    assert found(made, tmp_path) is None


def test_what_a_copy_to_the_gpu_waits_for_is_not_an_items(scene: Any, tmp_path: Path) -> None:
    made = scene(20.0, A100)
    made.kernel(KERNEL, 0.5, 10.0, launched=0.1)
    made.operator("aten::to", 1.0, 10.2)
    made.copy("Memcpy HtoD (Pageable -> Device)", 10.0, 10.05, 1 << 20, launched=1.05, returned=1.06)
    made.each("cuda_runtime", "cudaStreamSynchronize", 1.1, 10.1)
    for index in range(40):
        start = 10.5 + 0.2 * index
        made.kernel(KERNEL, start + 0.03, start + 0.12, launched=start)
    made.call("Tensor.item", 20, device="cuda")
    made.call("Tensor.to", 12, from_device="cpu", to_device="cuda")
    evidence = made.evidence(tmp_path)
    (row,) = evidence.syncs
    assert (row.direction, [site.kind for site in row.sites]) == ("HtoD", ["Tensor.to"])
    assert "host-sync" not in [each.rule for each in diagnose(evidence).document.findings]
