"""Device memory given back in every step: by the script, or for lack of a fitting block."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from advisor.rules.allocator_retries import AllocatorRetries
from advisor.rules.empty_cache_in_loop import EmptyCacheInLoop

from advisor.edit import Edit, Sources
from advisor.evidence import Evidence
from advisor.harness.layout import Memory
from advisor.rule import Advice, Finding, Rule, Variable

A100 = "NVIDIA A100-SXM4-40GB"
KERNEL = "void at::native::vectorized_elementwise_kernel<4>"


def freeing(scene: Any, blocks: int = 8, each_ms: float = 0.4, free: str = "cudaFree") -> Any:
    """A step of 20 ms: so many blocks are taken while the GPU works, and all are given back when it has finished."""
    made = scene(20.0, A100)
    start = 0.1
    for _ in range(blocks):
        made.each("cuda_runtime", "cudaMalloc", start, start + each_ms)
        made.kernel(KERNEL, start + each_ms + 0.02, start + each_ms + 0.5, launched=start + each_ms + 0.01)
        start += each_ms + 0.6
    for index in range(blocks):
        made.each("cuda_runtime", free, start + each_ms * index, start + each_ms * (index + 0.95))
    made.kernel(KERNEL, 19.0, 19.95, launched=18.9)
    return made


def found(rule: Rule, made: Any, folder: Path) -> Finding | None:
    findings = list(rule.check(made.evidence(folder)))
    assert len(findings) <= 1
    for each in findings:
        assert each.gain.low <= each.gain.likely <= each.gain.high <= 2.000001 * each.gain.low
    return findings[0] if findings else None


@pytest.mark.parametrize("free", ["cudaFree", "hipFree"])
def test_a_cache_that_each_step_empties_is_found(free: str, scene: Any, tmp_path: Path) -> None:
    made = freeing(scene, free=free)
    made.call("empty_cache", 14)
    finding = found(EmptyCacheInLoop(), made, tmp_path)
    assert finding is not None and finding.site is not None and finding.site.line == 14
    # Eight times 0.4 ms to take the blocks, which run beside nothing, and as long to give them back.
    assert finding.gain.likely == pytest.approx(20 / 13.7, rel=0.1)
    assert finding.evidence["frees_per_step"] == finding.evidence["allocations_per_step"] == 8
    assert finding.evidence["allocation_s"] == pytest.approx((8 * 0.4 + 8 * 0.38) * 1e-3, rel=0.01)


def test_a_call_that_finds_nothing_to_free_is_not_reported(scene: Any, tmp_path: Path) -> None:
    made = freeing(scene, blocks=0)
    made.call("empty_cache", 14)
    assert found(EmptyCacheInLoop(), made, tmp_path) is None


def test_a_call_after_each_epoch_is_not_reported(scene: Any, tmp_path: Path) -> None:
    made = freeing(scene)
    made.call("empty_cache", 14, 0.01)
    assert found(EmptyCacheInLoop(), made, tmp_path) is None


def test_a_bare_trace_needs_the_script(scene: Any, tmp_path: Path) -> None:
    bare = freeing(scene).bare(tmp_path)
    assert not list(EmptyCacheInLoop().check(bare))
    path = tmp_path / "train.py"
    path.write_text("import torch\n\nfor x in loader:\n    step(x)\n    torch.cuda.empty_cache()\n")
    (finding,) = EmptyCacheInLoop().check(Evidence.from_trace(bare.trace, source=str(path)))
    fix = EmptyCacheInLoop().fix(finding, Sources())
    assert isinstance(fix, Edit) and "empty_cache" not in fix.texts[str(path)]
    path.write_text("import torch\n\nfor x in loader:\n    step(x)\ntorch.cuda.empty_cache()\n")
    assert not list(EmptyCacheInLoop().check(Evidence.from_trace(bare.trace, source=str(path))))


def fragmented(scene: Any, retries: int = 12, peak: int = 20 << 30) -> Any:
    made = freeing(scene)
    made.record.memory = Memory(peak_allocated=peak, peak_reserved=39 << 30, capacity=40 << 30, alloc_retries=retries)
    return made


def test_retries_in_the_steps_want_segments_that_grow(scene: Any, tmp_path: Path) -> None:
    finding = found(AllocatorRetries(), fragmented(scene), tmp_path)
    assert finding is not None and not finding.unmet and finding.gain.low <= 1.1
    fix = AllocatorRetries().fix(finding, Sources())
    assert fix == Variable({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})


def test_retries_before_the_steps_are_not_reported(scene: Any, tmp_path: Path) -> None:
    # cuDNN's trials of its algorithms ask for large workspaces, once.
    made = freeing(scene, blocks=0)
    made.record.memory = Memory(peak_allocated=20 << 30, capacity=40 << 30, alloc_retries=3)
    assert found(AllocatorRetries(), made, tmp_path) is None


@pytest.mark.parametrize("retries", [0, None])
def test_memory_that_never_ran_out_is_left_alone(retries: int | None, scene: Any, tmp_path: Path) -> None:
    made = fragmented(scene)
    made.record.memory.alloc_retries = retries
    assert found(AllocatorRetries(), made, tmp_path) is None


def test_a_cache_emptied_by_hand_is_the_other_rule_s(scene: Any, tmp_path: Path) -> None:
    made = fragmented(scene)
    made.call("empty_cache", 14)
    assert found(AllocatorRetries(), made, tmp_path) is None


@pytest.mark.parametrize("what", ["full", "set", "rocm", "windows"])
def test_where_it_cannot_help_it_is_advice_that_says_why(what: str, scene: Any, tmp_path: Path) -> None:
    made = fragmented(scene, peak=(38 << 30) if what == "full" else (20 << 30))
    record = made.record
    if what == "set":
        record.environment.variables["PYTORCH_CUDA_ALLOC_CONF"] = "max_split_size_mb:128"
    if what == "rocm":
        record.device.hip = "6.2"
    if what == "windows":
        record.environment.platform = "Windows-10"
    finding = found(AllocatorRetries(), made, tmp_path)
    assert finding is not None and len(finding.unmet) == 1
    fix = AllocatorRetries().fix(finding, Sources())
    assert isinstance(fix, Advice) and fix.why == finding.unmet[0]


def test_of_a_bare_trace_the_script_tells_whether_it_empties_the_cache(scene: Any, tmp_path: Path) -> None:
    bare = freeing(scene).bare(tmp_path)
    (finding,) = AllocatorRetries().check(bare)
    assert isinstance(AllocatorRetries().fix(finding, Sources()), Advice)
    path = tmp_path / "train.py"
    path.write_text("for x in loader:\n    step(x)\n")
    (finding,) = AllocatorRetries().check(Evidence.from_trace(bare.trace, source=str(path)))
    assert isinstance(AllocatorRetries().fix(finding, Sources()), Variable)
    path.write_text("for x in loader:\n    step(x)\n    torch.cuda.empty_cache()\n")
    assert not list(AllocatorRetries().check(Evidence.from_trace(bare.trace, source=str(path))))
    assert not list(AllocatorRetries().check(freeing(scene, blocks=0).bare(tmp_path)))
