"""Traces recorded elsewhere: what their numbers alone support, and nothing more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advisor.analyze import analyze
from advisor.diagnose import Diagnosis, diagnose
from advisor.edit import Sources
from advisor.evidence import Evidence
from advisor.findings import Findings
from tests.evidence.conftest import TraceBuilder

A100 = "NVIDIA A100-SXM4-40GB"
SGEMM = "ampere_sgemm_128x64_tn"
DGEMM = "ampere_dgemm_64x64_nn"
TENSOR_CORE = "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x4_tn"
CONVERSION = "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>"
CONVOLUTION = "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_stage4_warpsize2x2x1"
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4>"

# What is found in each reference trace, in order, and how its verdict begins.
FOUND = {
    "v100-resnet50-workers0.pt.trace.json.gz": (["loader-workers", "amp-autocast", "compile"], "input-bound"),
    "v100-resnet50-workers4.pt.trace.json.gz": (["amp-autocast", "compile", "copy-pinned-async"], "GPU-bound"),
    "a100-ddp-training.json.gz": (["batch-size", "compile"], "host-bound"),
    "h100-vit-inference.json.gz": (["launch-bound", "batch-size", "compile"], "host-bound"),
    "h100-bert-small-inference.json.gz": (["launch-bound", "batch-size", "compile"], "host-bound"),
    "b200-eager-inference.json.gz": (["batch-size", "compile"], "host-bound"),
    "mi300x-qwen-inference.json.gz": (["compile"], "GPU-bound"),
    "mi300x-vllm-decode-graphs.json.gz": ([], "nothing worth changing"),
    "mi300x-compiled-triton.json.gz": ([], "nothing worth changing"),
    "mi300x-sglang-decode.json.gz": ([], "the GPU is idle for 98%"),
    "mi250-toy-training.json.gz": ([], "host-bound"),
    "a100-triton.json.gz": ([], "host-bound"),
    "cpu-only-rank.json.gz": ([], "nothing worth changing"),
    "no-gpu-rank.json.gz": ([], "nothing worth changing"),
    "two-ranks": ([], "the GPU is idle for 55%"),
}


@pytest.mark.parametrize("name", FOUND)
def test_reference_trace(name: str, shared_traces: Path) -> None:
    document, evidence = analyze([shared_traces / name])
    expected, verdict = FOUND[name]
    assert [each.rule for each in document.findings] == expected
    assert document.verdict.startswith(verdict)
    _check(document, evidence)


def _check(document: Findings, evidence: Evidence) -> None:
    for each in document.findings:
        gain = each.predicted.speedup
        assert 0 < gain.low <= gain.likely <= gain.high <= 2.0 * gain.low * 1.000001
        assert each.fix.kind == "advice" and each.fix.why_advice  # no source: what is missing is said
    if evidence.breakdown.idle_share > 0.5:
        assert "nothing worth changing" not in document.verdict
    assert not [note for note in document.notes if "failed" in note]


def test_volta_gets_float16_with_a_scaler_and_no_tf32(shared_traces: Path) -> None:
    document, _ = analyze([shared_traces / "v100-resnet50-workers4.pt.trace.json.gz"])
    (amp,) = [each for each in document.findings if each.rule == "amp-autocast"]
    assert "float16" in amp.fix.text and "GradScaler" in amp.fix.text


def test_serving_engines_are_told_in_their_own_terms(shared_traces: Path) -> None:
    document, _ = analyze([shared_traces / "b200-eager-inference.json.gz"])
    texts = {each.rule: each.fix.text for each in document.findings}
    assert "enforce_eager" in texts["compile"] and "max_num_seqs" in texts["batch-size"]


def busy(scene: Any, *kernels: tuple[str, float], capability: tuple[int, int] = (8, 0)) -> Any:
    """Three steps of 50 ms whose kernels follow each other without a gap; (name, share of the step)."""
    made = scene(50.0, A100)
    made.record.device.capability = list(capability)
    made.operator("aten::linear", 0.0, 0.005)
    made.each("cuda_runtime", "cudaDeviceSynchronize", 0.3, 49.99)
    start = 0.3
    for index, (name, share) in enumerate(kernels):
        made.kernel(name, start, start + share * 49.6, launched=0.01 + 0.01 * index)
        start += share * 49.6
    return made


def rules(made: Any, folder: Path) -> set[str]:
    return {each.rule for each in diagnosis(made, folder).document.findings}


def diagnosis(made: Any, folder: Path) -> Diagnosis:
    found = diagnose(made.bare(folder))
    assert not [note for note in found.document.notes if "failed" in note]
    return found


def test_float32_products_on_ampere_want_tf32_or_autocast(scene: Any, tmp_path: Path) -> None:
    assert rules(busy(scene, (SGEMM, 0.7), (ELEMENTWISE, 0.3)), tmp_path) >= {"tf32-matmul", "amp-autocast"}


@pytest.mark.parametrize(
    ("kernel", "capability"),
    [
        pytest.param(DGEMM, (8, 0), id="float64"),
        pytest.param(TENSOR_CORE, (8, 0), id="float16"),
        pytest.param(SGEMM, (6, 1), id="no-tensor-cores"),
    ],
)
def test_neither_is_proposed_where_it_cannot_help(
    kernel: str, capability: tuple[int, int], scene: Any, tmp_path: Path
) -> None:
    found = rules(busy(scene, (kernel, 0.9), (ELEMENTWISE, 0.1), capability=capability), tmp_path)
    assert not found & {"tf32-matmul", "amp-autocast"}


def test_what_autocast_leaves_in_float32_is_left_alone(scene: Any, tmp_path: Path) -> None:
    found = rules(busy(scene, (TENSOR_CORE, 0.6), (SGEMM, 0.2), (ELEMENTWISE, 0.2)), tmp_path)
    assert not found & {"tf32-matmul", "amp-autocast"}


def test_layout_conversions_want_channels_last(scene: Any, tmp_path: Path) -> None:
    assert "channels-last" in rules(busy(scene, (CONVERSION, 0.2), (CONVOLUTION, 0.8)), tmp_path)
    assert "channels-last" not in rules(busy(scene, (CONVOLUTION, 1.0)), tmp_path)


def with_values(*settings: str) -> list[str]:
    """Of ``aten::_convolution``: what is no tensor among its arguments, as a trace has it."""
    return ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", *settings]


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (with_values("False", "False", "True", "True"), True),
        (with_values("True", "False", "True", "True"), False),  # measured already
        (with_values("False", "True", "True", "True"), False),  # runs are to be repeatable
        (None, False),  # a trace without values does not say
        ([], False),
    ],
)
def test_heuristics_of_cudnn_are_told_by_what_convolutions_were_called_with(
    values: list[str] | None, found: bool, scene: Any, tmp_path: Path
) -> None:
    made = busy(scene, (CONVOLUTION, 0.9), (ELEMENTWISE, 0.1))
    inputs: dict[str, Any] = {"Input Dims": [[8, 3, 32, 32], [16, 3, 3, 3], [16]]}
    made.operator("aten::convolution", 0.1, 0.2, **inputs)
    if values is not None:
        inputs["Concrete Inputs"] = values
    made.operator("aten::_convolution", 0.12, 0.18, **inputs)
    assert ("cudnn-benchmark" in rules(made, tmp_path)) == found


def test_hidden_pageable_copies_are_not_reported(scene: Any, tmp_path: Path) -> None:
    made = busy(scene, (TENSOR_CORE, 1.0))
    made.copy("Memcpy HtoD (Pageable -> Device)", 5.0, 9.0, 1 << 24, launched=0.05, returned=0.2, stream=9)
    assert "copy-pinned-async" not in rules(made, tmp_path)


def test_exposed_pageable_copies_are_reported(scene: Any, tmp_path: Path) -> None:
    made = scene(20.0, A100)
    made.operator("aten::to", 0.2, 9.15)
    made.copy("Memcpy HtoD (Pageable -> Device)", 0.5, 9.0, 1 << 26, launched=0.3, returned=9.1)
    made.kernel(TENSOR_CORE, 9.3, 19.8, launched=9.2)
    assert "copy-pinned-async" in rules(made, tmp_path)


def launches(scene: Any, kernel: str = ELEMENTWISE, length_ms: float = 0.02) -> Any:
    """Forty short kernels a step, each launched when the one before is done for long."""
    made = scene(10.0, A100)
    for index in range(40):
        start = 0.2 * index
        made.operator("aten::linear", start, start + 0.19)
        made.kernel(kernel, start + 0.1, start + 0.1 + length_ms, launched=start + 0.09)
    return made


def test_launches_want_a_compiler_or_a_larger_batch(scene: Any, tmp_path: Path) -> None:
    assert rules(launches(scene), tmp_path) == {"compile", "batch-size"}


def test_compiled_kernels_are_not_compiled_again(scene: Any, tmp_path: Path) -> None:
    assert "compile" not in rules(launches(scene, "triton_poi_fused_add_mul_0"), tmp_path)


def test_a_busy_device_gets_no_larger_batch(scene: Any, tmp_path: Path) -> None:
    assert "batch-size" not in rules(busy(scene, *[(ELEMENTWISE, 0.02)] * 50), tmp_path)


def test_reading_a_value_each_step_is_found_where_it_costs(scene: Any, tmp_path: Path) -> None:
    made = scene(20.0, A100)
    made.kernel(TENSOR_CORE, 0.5, 10.0, launched=0.1)
    made.operator("aten::item", 1.0, 10.2)
    made.each("cuda_runtime", "cudaStreamSynchronize", 1.1, 10.1)
    for index in range(40):
        start = 10.5 + 0.2 * index
        made.kernel(ELEMENTWISE, start + 0.03, start + 0.12, launched=start)
    assert "host-sync" in rules(made, tmp_path)


def test_reading_a_value_that_is_there_already_costs_nothing(scene: Any, tmp_path: Path) -> None:
    made = busy(scene, (TENSOR_CORE, 1.0))
    made.operator("aten::item", 0.02, 0.06)
    made.each("cuda_runtime", "cudaStreamSynchronize", 0.03, 0.05)
    assert "host-sync" not in rules(made, tmp_path)


def test_kernels_without_any_operator_are_diagnosed(scene: Any, tmp_path: Path) -> None:
    made = scene(10.0, A100)
    made.kernel(TENSOR_CORE, 0.1, 9.9, launched=0.05)
    assert diagnosis(made, tmp_path).document.verdict.startswith("nothing worth changing: ")


def test_a_device_that_idles_is_never_nothing_worth_changing(scene: Any, tmp_path: Path) -> None:
    made = scene(50.0, A100)
    made.kernel(TENSOR_CORE, 40.1, 49.9, launched=40.0)
    found = diagnosis(made, tmp_path)
    assert found.document.findings == []
    assert found.document.verdict.startswith("host-bound: the GPU is idle for 80%")
    assert "none of the rules" in found.document.verdict


def test_the_source_turns_advice_into_diffs(shared_traces: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nfrom torch.utils.data import DataLoader\n\nmodel = make()\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\nloader = DataLoader(data(), batch_size=32)\n"
        "for batch in loader:\n    images, labels = batch[0].to('cuda'), batch[1].to('cuda')\n"
        "    out = model(images)\n    loss = criterion(out, labels)\n    optimizer.zero_grad()\n"
        "    loss.backward()\n    optimizer.step()\n"
    )
    for workers, pinned in ((0, False), (4, True)):
        document, _ = analyze([shared_traces / f"v100-resnet50-workers{workers}.pt.trace.json.gz"], script)
        assert {each.fix.kind for each in document.findings} == {"edit"}
        diffs = {each.rule: each.fix.diff or "" for each in document.findings}
        assert "GradScaler" in diffs["amp-autocast"] and "model.compile()" in diffs["compile"]
        assert ("pin_memory=True" in diffs.get("copy-pinned-async", "")) is pinned
        if not workers:
            assert "num_workers=" in diffs["loader-workers"]
    assert Sources().text(str(script)).count("\n") == 13  # diagnosing changes nothing


def test_no_more_is_promised_than_the_host_was_seen_to_wait(scene: Any, tmp_path: Path) -> None:
    """A value that is there already, in front of steps whose kernels go on for longer than the host."""
    made = scene(20.0, A100)
    made.operator("aten::item", 0.1, 0.2)
    made.each("cuda_runtime", "cudaStreamSynchronize", 0.15, 0.16)
    for index in range(40):
        made.kernel(ELEMENTWISE, 0.5 + 0.5 * index, 0.6 + 0.5 * index, launched=0.3 + 0.45 * index)
    made.kernel(TENSOR_CORE, 20.5, 23.0, launched=19.0)
    assert "host-sync" not in rules(made, tmp_path)


def retrying(scene: Any, *steps: int) -> Any:
    """Steps of 20 ms, in some of which the allocator gives blocks back and takes others."""
    made = scene(20.0, A100)
    made.kernel(TENSOR_CORE, 0.5, 8.0, launched=0.1)
    made.kernel(TENSOR_CORE, 14.0, 18.0, launched=13.9)
    for number in steps:
        for call, start in (("cudaFree", 8.1), ("cudaFree", 9.1), ("cudaMalloc", 10.1), ("cudaMalloc", 12.0)):
            made._add("cuda_runtime", call, number, start, start + 0.9)
    return made


@pytest.mark.parametrize(("steps", "told"), [((0, 1, 2), True), ((0,), False), ((0, 1), False)])
def test_memory_that_comes_and_goes_in_every_step_is_told(
    steps: tuple[int, ...], told: bool, scene: Any, tmp_path: Path
) -> None:
    assert ("allocator-retries" in rules(retrying(scene, *steps), tmp_path)) == told


def test_a_trace_of_one_step_does_not_say_that_memory_comes_and_goes(tmp_path: Path) -> None:
    build = TraceBuilder()
    build.kernel(500, 8000, launched=100)
    for call, start in (("cudaFree", 8100), ("cudaMalloc", 9100), ("cudaMalloc", 11000)):
        build.runtime(call, start, start + 900)
    build.kernel(14000, 18000, launched=13900)
    found = diagnose(Evidence.from_trace(build.read(tmp_path))).document.findings
    assert "allocator-retries" not in {each.rule for each in found}


def updating(scene: Any, name: str, operators: list[str], forward: int = 0) -> Any:
    """Steps of 8 ms: an optimizer with as many operators as there are, behind so many of a forward."""
    made, every = scene(8.0, A100), 8.0 / (len(operators) + forward)
    made.each("user_annotation", f"Optimizer.step#{name}.step", forward * every, 8.0)
    for index, operator in enumerate(["aten::linear"] * forward + operators):
        start = index * every
        made.operator(operator, start, start + 0.9 * every)
        made.kernel(ELEMENTWISE, start + 0.9 * every, start + 0.95 * every, launched=start + 0.8 * every)
    return made


UPDATE = ["aten::mul_", "aten::add_", "aten::addcmul_", "aten::sqrt", "aten::add_", "aten::addcdiv_"]


@pytest.mark.parametrize(
    ("name", "said"),
    [("Lookahead", "torch._foreach_add_"), ("AdamW", "fused=True to AdamW"), ("RMSprop", "foreach=True to RMSprop")],
)
def test_an_optimizer_of_many_small_operators_is_told(name: str, said: str, scene: Any, tmp_path: Path) -> None:
    made = diagnosis(updating(scene, name, UPDATE * 12), tmp_path).document
    (finding,) = [each for each in made.findings if each.rule == "fused-optimizer"]
    assert finding.summary.startswith(f"{name} takes 100% of the step: it calls 72 operators")
    assert finding.predicted.speedup.likely > 2 and said in finding.fix.text
    # What is left of the step has nothing to do with a batch.
    assert "batch-size" not in {each.rule for each in made.findings}


def test_an_optimizer_over_lists_of_tensors_is_left_alone(scene: Any, tmp_path: Path) -> None:
    made = updating(scene, "AdamW", ["aten::_foreach_mul_", "aten::_foreach_add_"] * 30)
    assert "fused-optimizer" not in rules(made, tmp_path)
    assert "fused-optimizer" not in rules(updating(scene, "SGD", ["aten::add_"] * 10, 50), tmp_path)
    assert "fused-optimizer" not in rules(updating(scene, "LBFGS", UPDATE * 12), tmp_path)  # the model, many times


def test_workers_of_unknown_number_are_doubled_where_cores_are_free(tmp_path: Path) -> None:
    build = TraceBuilder()
    for number in range(3):
        at = 50_000.0 * number
        build.step(number, at, at + 50_000)
        build.load(at, at + 40_000, workers=True)
        build.kernel(at + 40_300, at + 49_000, launched=at + 40_100)
    (finding,) = diagnose(Evidence.from_trace(build.read(tmp_path))).document.findings
    assert finding.rule == "loader-workers" and "twice as many workers" in finding.fix.text
    gain = finding.predicted.speedup
    assert gain.low == pytest.approx(1.0, abs=0.01) and 1.6 < gain.likely <= gain.high < 2.01


def test_a_tensor_that_the_gpu_makes_itself_takes_time_there(scene: Any, tmp_path: Path) -> None:
    made = scene(100.0, A100)
    made.operator("aten::randn", 0.1, 30.0)
    made.operator("aten::to", 30.1, 95.1)
    made.copy("Memcpy HtoD (Pageable -> Device)", 32.0, 95.0, 1 << 29, launched=30.5, returned=95.0)
    made.kernel(ELEMENTWISE, 95.3, 95.6, launched=95.2)
    (finding,) = [each for each in diagnosis(made, tmp_path).document.findings if each.rule == "tensor-born-on-cpu"]
    # Of 63 ms of copying six stay, and of the other 37 the 7 that neither make nor copy.
    assert 5 < finding.predicted.speedup.likely < 100 / 6
