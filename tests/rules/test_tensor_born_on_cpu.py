"""Tensors made on the CPU and copied: found where the copy, the wait or the making costs, and the source says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from advisor.rules.copy_pinned_async import CopyPinnedAsync
from advisor.rules.tensor_born_on_cpu import TensorBornOnCpu

from advisor.edit import Edit, Sources
from advisor.evidence import Evidence
from advisor.harness.layout import CallSite, Site
from advisor.rule import Finding, Safety

A100 = "NVIDIA A100-SXM4-40GB"
KERNEL = "void at::native::vectorized_elementwise_kernel<4>"
PAGEABLE = "Memcpy HtoD (Pageable -> Device)"
SIZE = 4 << 20


def stepping(scene: Any, folder: Path, line: str, maker: str = "aten::ones", made_ms: float = 0.3) -> Any:
    """A step of 20 ms: work for 8, then a tensor is made on the CPU and copied, then launches without any lead."""
    path = folder / "train.py"
    path.write_text(f"import torch\n\nfor x in loader:\n    x = x.to(device, non_blocking=True)\n    {line}\n")
    made = scene(20.0, A100)
    made.operator("aten::to", 0.0, 0.04)
    made.copy("Memcpy HtoD (Pinned -> Device)", 0.05, 0.3, 1 << 20, launched=0.02, returned=0.03)
    made.kernel(KERNEL, 0.5, 8.5, launched=0.1)
    made.operator(maker, 0.2, 0.2 + made_ms)
    made.operator("aten::to", 0.3 + made_ms, 9.0 + made_ms)
    made.copy(PAGEABLE, 8.6, 8.9, SIZE, launched=0.4 + made_ms, returned=0.6 + made_ms)
    made.each("cuda_runtime", "cudaStreamSynchronize", 0.62 + made_ms, 8.95 + made_ms)
    for index in range(40):
        start = 9.1 + made_ms + 0.2 * index
        made.kernel(KERNEL, start + 0.03, start + 0.12, launched=start)
    details = {"from_device": "cpu", "to_device": "cuda"}
    places = (CallSite("Tensor.to", Site(str(path), 4), 40, 1.0, 0.0, details | {"bytes": 1 << 20}),
              CallSite("Tensor.to", Site(str(path), 5), 40, 1.0, 0.0, details | {"bytes": SIZE}))  # fmt: skip
    made.record.call_sites += places
    return made


def found(made: Any, folder: Path) -> Finding | None:
    findings = list(TensorBornOnCpu().check(made.evidence(folder)))
    assert len(findings) <= 1
    for each in findings:
        assert each.gain.low <= each.gain.likely <= each.gain.high <= 2.000001 * each.gain.low
    return findings[0] if findings else None


def test_a_mask_made_on_the_cpu_makes_the_step_wait(scene: Any, tmp_path: Path) -> None:
    finding = found(stepping(scene, tmp_path, "mask = torch.ones(1024, 1024).to(device)"), tmp_path)
    assert finding is not None and finding.site is not None and finding.site.line == 5
    # The host launches what follows while the GPU works: of 20 ms some 13 are left.
    assert 1.3 < finding.gain.likely < 1.7 and finding.safety is None
    assert finding.evidence["copies_per_step"] == 1
    assert finding.evidence["made_s"] == pytest.approx(0.3e-3, rel=0.01)
    fix = TensorBornOnCpu().fix(finding, Sources())
    assert isinstance(fix, Edit)
    assert "torch.ones(1024, 1024, device=device)\n" in fix.texts[str(tmp_path / "train.py")]


def test_random_numbers_become_others(scene: Any, tmp_path: Path) -> None:
    line = "noise = torch.randn(1024, 1024).to(device)"
    finding = found(stepping(scene, tmp_path, line, "aten::randn"), tmp_path)
    assert finding is not None and finding.safety is Safety.BEHAVIOUR


@pytest.mark.parametrize(
    "line",
    [
        "y = y.to(device)",
        "y = torch.tensor(values).to(device)",
        "y = torch.stack(parts).to(device)",
        "y = collate(torch.zeros(3)).to(device)",
    ],
)
def test_what_comes_from_the_host_anyway_is_left_alone(line: str, scene: Any, tmp_path: Path) -> None:
    assert found(stepping(scene, tmp_path, line), tmp_path) is None


def test_without_the_operator_that_makes_it_in_the_trace_there_is_no_finding(scene: Any, tmp_path: Path) -> None:
    line = "mask = torch.ones(1024, 1024).to(device)"
    assert found(stepping(scene, tmp_path, line, "aten::stack"), tmp_path) is None


def test_a_batch_of_the_same_size_cannot_be_told_from_it(scene: Any, tmp_path: Path) -> None:
    made = stepping(scene, tmp_path, "mask = torch.ones(1024, 1024).to(device)")
    made.record.call_sites[-2].details["bytes"] = SIZE
    assert found(made, tmp_path) is None


def test_a_small_tensor_behind_which_nothing_waits_is_not_reported(scene: Any, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("import torch\n\nfor x in loader:\n    i = torch.arange(8).to(device)\n")
    made = scene(20.0, A100)
    made.operator("aten::arange", 0.02, 0.03)
    made.operator("aten::to", 0.04, 0.06)
    made.copy(PAGEABLE, 0.05, 0.052, 64, launched=0.045, returned=0.05)
    made.each("cuda_runtime", "cudaStreamSynchronize", 0.051, 0.055)
    made.kernel(KERNEL, 0.1, 19.9, launched=0.09)
    details = {"from_device": "cpu", "to_device": "cuda", "bytes": 64}
    made.record.call_sites.append(CallSite("Tensor.to", Site(str(path), 4), 40, 1.0, 0.0, details))
    assert found(made, tmp_path) is None


def test_a_bare_trace_tells_where_nothing_is_between_the_making_and_the_copy(scene: Any, tmp_path: Path) -> None:
    line = "mask = torch.ones(1024, 1024).to(device)"
    made = stepping(scene, tmp_path, line)
    (finding,) = TensorBornOnCpu().check(made.bare(tmp_path))
    assert 1.3 < finding.gain.likely < 1.8 and finding.site is None
    (tmp_path / "train.py").write_text(f"import torch\n\nfor x in loader:\n    {line}\n")
    bare = made.bare(tmp_path)
    sourced = Evidence.from_trace(bare.trace, source=str(tmp_path / "train.py"))
    (finding,) = TensorBornOnCpu().check(sourced)
    assert isinstance(TensorBornOnCpu().fix(finding, Sources()), Edit)
    (tmp_path / "train.py").write_text("for x in loader:\n    x = x.to(device)\n")
    assert not list(TensorBornOnCpu().check(sourced))


@pytest.mark.parametrize("between", ["aten::stack", "loader", "kernel"])
def test_a_bare_trace_with_something_between_tells_nothing(between: str, scene: Any, tmp_path: Path) -> None:
    made = stepping(scene, tmp_path, "mask = torch.ones(1024, 1024).to(device)", made_ms=0.01)
    if between == "loader":
        made.each("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0.24, 0.3)
    else:
        made.operator("aten::mul" if between == "kernel" else between, 0.24, 0.3)
    assert not list(TensorBornOnCpu().check(made.bare(tmp_path)))


def test_copy_of_what_a_factory_makes_is_not_asked_to_be_pinned(scene: Any, tmp_path: Path) -> None:
    """One cause, one finding: `copy-pinned-async` has batches to speak of, or nothing."""
    rows = {}
    for line, maker in (
        ("mask = torch.ones(n, n).to(device)", "aten::ones"),
        ("mask = load(n).to(device)", "aten::cat"),
    ):
        made = stepping(scene, tmp_path, line, maker)
        next(each for each in made.record.call_sites if each.site.line == 4).details["non_blocking"] = True
        rows[line] = [each.rule for each in CopyPinnedAsync().check(made.evidence(tmp_path))]
    assert list(rows.values()) == [[], ["copy-pinned-async"]]


def test_small_batch_beside_it_does_not_make_it_two_findings(scene: Any, tmp_path: Path) -> None:
    """The batch's copy waits for next to nothing, and the factory's for the GPU: that is the only cause."""
    made = stepping(scene, tmp_path, "mask = torch.ones(n, n).to(device)")
    assert found(made, tmp_path) is not None
    assert not list(CopyPinnedAsync().check(made.evidence(tmp_path)))
    assert not list(CopyPinnedAsync().check(made.bare(tmp_path)))


def test_list_of_numbers_that_is_made_on_the_gpu_is_none(scene: Any, tmp_path: Path) -> None:
    """torch.tensor(numbers, device="cuda"): an empty tensor on the CPU, and its copy."""
    made = stepping(scene, tmp_path, "mask = torch.tensor(v, device=device)", "aten::empty", made_ms=0.01)
    assert not list(TensorBornOnCpu().check(made.bare(tmp_path)))
