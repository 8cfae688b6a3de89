"""The numbers of a run decide what is found, and what is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from advisor.diagnose import diagnose
from advisor.edit import Edit, Sources
from advisor.harness.layout import Site, TensorInfo
from advisor.rule import Advice, Finding, Safety
from advisor.rulebook import load_rules

A100 = "NVIDIA A100-SXM4-40GB"
SGEMM = "ampere_sgemm_128x64_tn"
TENSOR_CORE = "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x4_tn"
CONVOLUTION = "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_stage4_warpsize2x2x1"
CONVERSION = "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>"
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4>"


def found(scene: Any, folder: Path, rule: str) -> Finding | None:
    """What one rule finds; it finds at most one thing here."""
    (checked,) = [each for each in load_rules() if each.id == rule]
    findings = list(checked.check(scene.evidence(folder)))
    assert len(findings) <= 1
    for each in findings:  # a wider range says nothing
        assert each.gain.low <= each.gain.likely <= each.gain.high <= 2.000001 * each.gain.low
    return findings[0] if findings else None


def busy_cpu(scene: Any, step_ms: float = 50.0, **operators: float) -> Any:
    """A CPU run that computes all the time, in the operators named (shares)."""
    made = scene(step_ms)
    made.each("user_annotation", "advisor.forward", 0.4, step_ms)
    start = 0.5
    for name, share in (operators or {"addmm": 0.99}).items():
        made.operator(f"aten::{name}", start, start + share * step_ms)
        start += share * step_ms
    return made


def busy_gpu(scene: Any, *kernels: tuple[str, float], step_ms: float = 50.0) -> Any:
    """A GPU run whose kernels follow each other without a gap; (name, share of the step)."""
    made = scene(step_ms, A100)
    made.operator("aten::empty", 0.0, 0.005)
    made.each("cuda_runtime", "cudaDeviceSynchronize", 0.1, step_ms - 0.005)  # the host is far ahead, and waits
    start = 0.1
    for index, (name, share) in enumerate(kernels):
        made.kernel(name, start, start + share * (step_ms - 0.15), launched=0.01 * index)
        start += share * (step_ms - 0.15)
    return made


# loader-workers


def test_waiting_loader_gets_workers(scene: Any, tmp_path: Path) -> None:
    made = scene(50.0)
    made.loader(wait_ms=35, fetch_ms=35, cpu_ms=3)
    made.operator("aten::addmm", 36.0, 49.0)
    finding = found(made, tmp_path, "loader-workers")
    assert finding is not None
    assert finding.gain.likely > 1.5
    assert finding.gain.high / finding.gain.low <= 2.0
    assert finding.parameters["workers"] in (2, 3, 4)
    assert finding.site == Site("/nowhere/train.py", 8)


def test_quick_loader_is_left_alone(scene: Any, tmp_path: Path) -> None:
    made = busy_cpu(scene)
    made.loader(wait_ms=0.3, fetch_ms=0.3, cpu_ms=0.3)
    assert found(made, tmp_path, "loader-workers") is None


def test_computing_fetch_on_busy_cores_is_left_alone(scene: Any, tmp_path: Path) -> None:
    made = scene(50.0)
    made.record.environment.usable_cpus = 2.0
    made.record.environment.intraop_threads = 2
    made.record.timing.cpu_s = 0.095
    made.loader(wait_ms=5, fetch_ms=5, cpu_ms=5)
    made.operator("aten::addmm", 6.0, 49.0)
    assert found(made, tmp_path, "loader-workers") is None


def test_small_shared_memory_makes_it_advice(scene: Any, tmp_path: Path) -> None:
    made = scene(50.0)
    made.record.environment.shm_bytes = 1 << 20
    made.loader(wait_ms=35, fetch_ms=35, cpu_ms=3)
    finding = found(made, tmp_path, "loader-workers")
    assert finding is not None
    (unmet,) = finding.unmet
    assert "/dev/shm" in unmet


def test_iterable_dataset_that_does_not_divide_its_data_gets_one_worker(scene: Any, tmp_path: Path) -> None:
    made = scene(50.0)
    made.loader(wait_ms=40, fetch_ms=40, cpu_ms=2, iterable=True)
    finding = found(made, tmp_path, "loader-workers")
    assert finding is None or finding.parameters["workers"] == 1


def test_random_transforms_change_behaviour(scene: Any, tmp_path: Path) -> None:
    made = scene(50.0)
    made.loader(wait_ms=35, fetch_ms=35, cpu_ms=3, transforms=["RandomCrop", "ToTensor"])
    finding = found(made, tmp_path, "loader-workers")
    assert finding is not None and finding.safety is Safety.BEHAVIOUR


def test_a_frameworks_loader_is_advice_naming_its_setting(scene: Any, tmp_path: Path) -> None:
    made = scene(50.0)
    made.loader(wait_ms=35, fetch_ms=35, cpu_ms=3, owner="transformers.trainer")
    finding = found(made, tmp_path, "loader-workers")
    assert finding is not None
    (rule,) = [each for each in load_rules() if each.id == "loader-workers"]
    fix = rule.fix(finding, Sources())
    assert isinstance(fix, Advice) and "dataloader_num_workers" in fix.text


# amp-autocast, tf32-matmul


def test_evaluation_is_not_the_forward_of_a_step(scene: Any, tmp_path: Path) -> None:
    made = busy_cpu(scene)
    made.record.environment.cpu_flags = ["amx_bf16"]
    made.call("Module.call", 9, per_step=0.75, module="Net", grad=False)
    amp = found(made, tmp_path, "amp-autocast")
    assert amp is not None and amp.site is not None and amp.site.line == 11


def test_loss_that_autocast_refuses_on_a_gpu_makes_it_advice(scene: Any, tmp_path: Path) -> None:
    made = busy_gpu(scene, (SGEMM, 0.7), (ELEMENTWISE, 0.3))
    made.operator("aten::binary_cross_entropy", 0.05, 0.06)
    amp = found(made, tmp_path, "amp-autocast")
    assert amp is not None and "BCEWithLogitsLoss" in amp.unmet[0]


def test_autocast_that_is_there_and_off_is_to_be_switched_on(scene: Any, tmp_path: Path) -> None:
    made = busy_cpu(scene)
    made.record.environment.cpu_flags = ["amx_bf16"]
    made.call("autocast", 10, device="cpu", dtype="bfloat16", enabled=False)
    script = tmp_path / "train.py"
    script.write_text("pass\n" * 12)
    for site in made.record.call_sites:
        site.site.file = str(script)
    amp = found(made, tmp_path, "amp-autocast")
    assert amp is not None
    (rule,) = [each for each in load_rules() if each.id == "amp-autocast"]
    fix = rule.fix(amp, Sources())
    assert isinstance(fix, Advice) and "Switch on the autocast at train.py:10" in fix.text


def test_float32_products_on_an_a100_want_tf32_or_autocast(scene: Any, tmp_path: Path) -> None:
    made = busy_gpu(scene, (SGEMM, 0.7), (ELEMENTWISE, 0.3))
    amp, tf32 = found(made, tmp_path, "amp-autocast"), found(made, tmp_path, "tf32-matmul")
    assert amp is not None and amp.parameters["dtype"] == "bfloat16" and amp.gain.likely > 1.3
    assert tf32 is not None and tf32.gain.likely > 1.3


def test_a_v100_gets_float16_and_no_tf32(scene: Any, tmp_path: Path) -> None:
    made = busy_gpu(scene, ("volta_sgemm_128x64_nn", 0.8), (ELEMENTWISE, 0.2))
    made.record.device.capability, made.record.device.bf16 = [7, 0], False
    amp = found(made, tmp_path, "amp-autocast")
    assert amp is not None and amp.parameters["dtype"] == "float16"
    assert found(made, tmp_path, "tf32-matmul") is None


def test_products_in_tf32_gain_from_16_bits_what_their_rate_doubles(scene: Any, tmp_path: Path) -> None:
    """A network of convolutions, which use TF32 by default."""
    made = busy_gpu(scene, (CONVOLUTION, 0.8), (ELEMENTWISE, 0.2))
    amp = found(made, tmp_path, "amp-autocast")
    assert amp is not None and "on the Tensor Cores as TF32" in amp.summary
    assert 1.2 < amp.gain.likely <= 1 / (0.8 * 0.5 + 0.2 * 0.5)
    assert found(made, tmp_path, "tf32-matmul") is None


def test_the_optimizers_kernels_stay_as_long_in_16_bits(scene: Any, tmp_path: Path) -> None:
    optimizer = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<4>>"
    beside = [
        found(busy_gpu(scene, (SGEMM, 0.5), (name, 0.5)), tmp_path, "amp-autocast") for name in (ELEMENTWISE, optimizer)
    ]
    assert beside[0] is not None and beside[1] is not None
    assert beside[1].gain.likely == pytest.approx(1 / (0.5 * 1.1 * 19.5 / 312 + 0.5), rel=0.02)
    assert beside[0].gain.likely > beside[1].gain.likely


def test_casting_the_weights_counts_and_rules_autocast_out_where_reading_them_is_all(
    scene: Any, tmp_path: Path
) -> None:
    """A language model that answers few requests at a time: its products take as long as reading its weights."""
    made = busy_gpu(scene, (SGEMM, 0.9), (ELEMENTWISE, 0.1))
    light = found(made, tmp_path, "amp-autocast")
    made.record.models[0].parameters = 500_000_000
    heavy = found(made, tmp_path, "amp-autocast")
    assert light is not None and heavy is not None and heavy.gain.likely < light.gain.likely
    made.record.call_sites = [each for each in made.record.call_sites if each.kind != "backward"]
    made.record.optimizers, made.record.models[0].training = [], False
    made.record.models[0].parameters = 6_000_000_000
    assert found(made, tmp_path, "amp-autocast") is None


def test_tf32_is_worth_little_where_float32_is_as_fast(scene: Any, tmp_path: Path) -> None:
    made = busy_gpu(scene, (SGEMM, 0.7), (ELEMENTWISE, 0.3))
    made.record.device.name, made.record.device.capability = "NVIDIA GeForce RTX 3090", [8, 6]
    tf32 = found(made, tmp_path, "tf32-matmul")
    assert tf32 is not None and tf32.gain.likely == pytest.approx(1 / (0.7 * 0.75 + 0.3), rel=0.02)


def test_products_on_tensor_cores_are_left_alone(scene: Any, tmp_path: Path) -> None:
    made = busy_gpu(scene, (TENSOR_CORE, 0.7), (ELEMENTWISE, 0.3))
    assert found(made, tmp_path, "amp-autocast") is None
    assert found(made, tmp_path, "tf32-matmul") is None


def test_autocast_that_is_on_is_not_proposed(scene: Any, tmp_path: Path) -> None:
    made = busy_gpu(scene, (SGEMM, 0.7), (ELEMENTWISE, 0.3))
    made.record.models[0].autocast = "bfloat16"
    assert found(made, tmp_path, "amp-autocast") is None


@pytest.mark.parametrize(("flags", "proposed"), [([], False), (["avx2", "avx512f"], False), (["avx512_bf16"], True)])
def test_autocast_on_a_cpu_needs_its_instructions(flags: list[str], proposed: bool, scene: Any, tmp_path: Path) -> None:
    made = busy_cpu(scene, addmm=0.9)
    made.record.environment.cpu_flags = flags
    assert (found(made, tmp_path, "amp-autocast") is not None) is proposed


@pytest.mark.parametrize(
    ("product", "convolution", "proposed"), [(0.5, 0.6, True), (1.9, 1.8, False), (0.5, 1.8, True)]
)
def test_autocast_on_a_cpu_is_for_those_that_were_measured_to_be_faster(
    product: float, convolution: float, proposed: bool, scene: Any, tmp_path: Path
) -> None:
    made = busy_cpu(scene, addmm=0.9)
    made.record.environment.cpu_flags = ["avx512_bf16"]
    made.record.environment.rates = {"bfloat16": {"product": product, "convolution": convolution}}
    assert (found(made, tmp_path, "amp-autocast") is not None) is proposed


def test_autocast_wants_long_products_where_their_size_was_not_seen(scene: Any, tmp_path: Path) -> None:
    made = busy_cpu(scene, empty=0.0)
    made.record.environment.cpu_flags = ["avx512_bf16"]
    for number in range(30):
        made.operator("aten::addmm", 1.0 + 1.5 * number, 2.5 + 1.5 * number)
    assert found(made, tmp_path, "amp-autocast") is None


def test_autocast_leaves_an_encoder_on_its_fast_path(scene: Any, tmp_path: Path) -> None:
    made = busy_cpu(scene, addmm=0.8)
    made.record.environment.cpu_flags = ["avx512_bf16"]
    assert found(made, tmp_path, "amp-autocast") is not None
    made.operator("aten::_transformer_encoder_layer_fwd", 1.0, 2.0)
    assert found(made, tmp_path, "amp-autocast") is None


def test_attention_and_norms_in_nhwc_gain_nothing_from_16_bits_on_a_cpu(scene: Any, tmp_path: Path) -> None:
    def likely(name: str, nhwc: bool = False) -> float:
        made = busy_cpu(scene, addmm=0.4)
        made.record.environment.cpu_flags = ["avx512_bf16"]
        made.record.models[0].channels_last = nhwc
        made.operator(name, 25.0, 45.0)
        amp = found(made, tmp_path, "amp-autocast")
        return amp.gain.likely if amp is not None else 1.0

    attention = "aten::_scaled_dot_product_flash_attention_for_cpu"
    assert likely("aten::bmm") > likely(attention) >= likely(f"{attention}_backward")
    norm = "aten::native_batch_norm_backward"
    assert likely(norm) > likely(norm, nhwc=True)


@pytest.mark.parametrize(("type_", "proposed"), [("float", True), ("double", False)])
def test_autocast_leaves_double_precision_as_it_is(type_: str, proposed: bool, scene: Any, tmp_path: Path) -> None:
    made = busy_cpu(scene, empty=0.0)
    made.record.environment.cpu_flags = ["avx512_bf16"]
    sizes = {"Input Dims": [[2000, 2000], [2000, 2000]], "Input type": [type_, type_]}
    made.operator("aten::mm", 1.0, 45.0, **sizes)
    assert (found(made, tmp_path, "amp-autocast") is not None) is proposed


@pytest.mark.parametrize("name", ["aten::_sparse_mm", "aten::_sparse_coo_tensor_with_dims_and_tensors"])
def test_products_of_sparse_matrices_are_no_faster_in_16_bits(name: str, scene: Any, tmp_path: Path) -> None:
    made = busy_cpu(scene, addmm=0.8)
    made.record.environment.cpu_flags = ["avx512_bf16"]
    made.operator(name, 0.45, 0.5)
    assert found(made, tmp_path, "amp-autocast") is None


@pytest.mark.parametrize(
    ("code", "proposed"),
    [
        ("z = odeint(f, z0, t, rtol=1e-3)\n", False),
        ("dy, = torch.autograd.grad(y, x, create_graph=True)\n", False),
        ("a = torch.sparse_csr_tensor(rows, columns, ones)\n", False),  # whose products are called as dense ones are
        ("a = edges.to_sparse_csr()\n", False),
        ("emb = nn.Embedding(9, 3, sparse=True)\n", True),
        ("y = model(x)\n", True),
    ],
)
def test_scripts_that_are_not_for_16_bits(code: str, proposed: bool, scene: Any, tmp_path: Path) -> None:
    made = busy_cpu(scene, addmm=0.9)
    made.record.environment.cpu_flags = ["avx512_bf16"]
    made.record.script = str(tmp_path / "train.py")
    (tmp_path / "train.py").write_text(code)
    assert (found(made, tmp_path, "amp-autocast") is not None) is proposed


# channels-last, cudnn-benchmark


def convolutional(made: Any, size: int = 224) -> Any:
    model = made.record.models[0]
    model.layers = {"Conv2d": 20, "BatchNorm2d": 20}
    model.inputs = [made.loader(0.0, 0.1, 0.1).tensors[0]]
    model.inputs[0].shape = [32, 3, size, size]
    model.channels_last = False
    made.record.shapes_vary = False
    return made


def test_layout_conversions_want_channels_last(scene: Any, tmp_path: Path) -> None:
    made = convolutional(busy_gpu(scene, (CONVERSION, 0.2), (CONVOLUTION, 0.6), (ELEMENTWISE, 0.2)))
    finding = found(made, tmp_path, "channels-last")
    assert finding is not None and finding.gain.likely > 1.15
    made.record.models[0].channels_last = True
    assert found(made, tmp_path, "channels-last") is None


def test_model_that_is_not_called_with_a_tensor_itself_gets_advice(scene: Any, tmp_path: Path) -> None:
    made = convolutional(busy_gpu(scene, (CONVERSION, 0.2), (CONVOLUTION, 0.6), (ELEMENTWISE, 0.2)))
    (rule,) = [each for each in load_rules() if each.id == "channels-last"]
    script = "import torch\n" * 6 + "model = Net()\noptimizer = SGD(model.parameters())\n\n\nout = model(batch)\n"
    made.record.optimizers[0].site = Site("/nowhere/train.py", 8)
    made.record.call_sites = []
    made.call("Module.call", 11, module="Net")
    for first, kind in ((True, Edit), (False, Advice), (None, Advice)):
        made.record.models[0].tensor_first = first
        finding = found(made, tmp_path, "channels-last")
        assert finding is not None and isinstance(rule.fix(finding, Sources({"/nowhere/train.py": script})), kind)


def test_small_images_on_a_cpu_stay_as_they_are(scene: Any, tmp_path: Path) -> None:
    assert channels_last(scene, tmp_path, groups=16, size=96) is not None
    assert channels_last(scene, tmp_path, groups=16, size=32) is None


def test_dense_convolutions_on_a_cpu_stay_as_they_are(scene: Any, tmp_path: Path) -> None:
    finding = channels_last(scene, tmp_path, groups=16, size=96)
    assert finding is not None and finding.evidence["depthwise_convolution_share"] == pytest.approx(0.9, abs=0.02)
    assert 1.6 < finding.gain.likely < 2.1, "90 % of the step takes 0.45 of its time"
    assert channels_last(scene, tmp_path, groups=1, size=96) is None


def channels_last(scene: Any, folder: Path, groups: int, size: int) -> Finding | None:
    """What is found of a step that is 90 % convolutions with 16 channels in so many groups."""
    image, weight = [4, 16, size, size], [16, 16 // groups, 7, 7]
    made = scene(50.0)
    made.each("user_annotation", "advisor.forward", 0.4, 50.0)
    made.operator("aten::mkldnn_convolution", 0.5, 20.5, **{"Input Dims": [image, weight, [16]]})
    made.operator("aten::convolution_backward", 20.5, 45.5, **{"Input Dims": [image, image, weight, [1]]})
    made.operator("aten::add", 45.5, 50.0)
    evidence = convolutional(made, size).evidence(folder)
    (rule,) = [each for each in load_rules() if each.id == "channels-last"]
    findings = list(rule.check(replace(evidence, detail=evidence.trace)))
    assert len(findings) < 2
    return findings[0] if findings else None


def test_changing_shapes_keep_the_heuristic(scene: Any, tmp_path: Path) -> None:
    made = convolutional(busy_gpu(scene, (CONVOLUTION, 0.9), (ELEMENTWISE, 0.1)))
    assert found(made, tmp_path, "cudnn-benchmark") is not None
    made.record.shapes_vary = True
    assert found(made, tmp_path, "cudnn-benchmark") is None


# copies and synchronizations


def copying(scene: Any, name: str = "Memcpy HtoD (Pageable -> Device)") -> Any:
    made = scene(20.0, A100)
    made.operator("aten::to", 0.2, 9.15)
    made.loader(0.1, 2.0, 2.0, num_workers=4, transforms=["Compose", "ToTensor", "Normalize"])
    image = made.record.loaders[0].tensors[0]
    image.shape, image.bytes = [64, 3, 224, 224], 64 * 3 * 224 * 224 * 4
    made.copy(name, 0.5, 9.0, image.bytes, launched=0.3, returned=9.1)
    made.call("Tensor.to", 9, from_device="cpu", to_device="cuda", from_dtype="float32", bytes=image.bytes)
    made.kernel(TENSOR_CORE, 9.3, 19.8, launched=9.2)
    return made


def test_blocking_pageable_copies_are_found(scene: Any, tmp_path: Path) -> None:
    finding = found(copying(scene), tmp_path, "copy-pinned-async")
    assert finding is not None and finding.gain.likely > 1.2
    assert finding.parameters["copies"] == (Site("/nowhere/train.py", 9),)
    assert finding.parameters["loaders"] == (Site("/nowhere/train.py", 8),)


def test_float_images_could_travel_as_bytes(scene: Any, tmp_path: Path) -> None:
    finding = found(copying(scene), tmp_path, "copy-narrow-dtype")
    assert finding is not None and finding.gain.likely > 1.2


def test_images_in_memory_are_no_bytes(scene: Any, tmp_path: Path) -> None:
    made = copying(scene)
    made.record.loaders[0].in_memory = True
    assert found(made, tmp_path, "copy-narrow-dtype") is None


def test_reading_the_loss_each_step_is_found_where_it_costs(scene: Any, tmp_path: Path) -> None:
    made = scene(20.0, A100)
    made.kernel(TENSOR_CORE, 0.5, 10.0, launched=0.1)
    made.operator("aten::item", 1.0, 10.2)
    made.each("cuda_runtime", "cudaStreamSynchronize", 1.1, 10.1)
    for index in range(40):  # launched one by one after the wait, so the device starts late
        start = 10.5 + 0.2 * index
        made.kernel(ELEMENTWISE, start + 0.03, start + 0.12, launched=start)
    made.call("Tensor.item", 14, device="cuda")
    finding = found(made, tmp_path, "host-sync")
    assert finding is not None and finding.parameters["syncs"] == (Site("/nowhere/train.py", 14),)
    # A scaler that asks each gradient for infinities reads, too: that the script cannot put off.
    made.call("Tensor.item", 17, device="cuda", inside="torch.amp.grad_scaler")
    both = found(made, tmp_path, "host-sync")
    assert both is not None and both.parameters["syncs"] == (Site("/nowhere/train.py", 14),)
    (rule,) = [each for each in load_rules() if each.id == "host-sync"]
    fix = rule.fix(both, Sources())
    assert isinstance(fix, Advice) and "train.py:14" in fix.text and "at train.py:17 pass fused=True" in fix.text


# zero-grad, batch-size, compile, device-unused


def test_filling_gradients_is_found_only_where_it_was_seen(scene: Any, tmp_path: Path) -> None:
    made = busy_cpu(scene, addmm=0.7, zero_=0.12, add_=0.15)
    assert found(made, tmp_path, "zero-grad") is None
    made.record.optimizers[0].zero_filled = 10
    finding = found(made, tmp_path, "zero-grad")
    assert finding is not None and finding.gain.likely > 1.05


def test_large_gradients_on_a_cpu_are_better_filled(scene: Any, tmp_path: Path) -> None:
    made = busy_cpu(scene, addmm=0.7, zero_=0.12, add_=0.15)
    made.record.optimizers[0].zero_filled = made.record.optimizers[0].parameters = 10
    made.record.models[0].parameter_bytes = 10 * (4 << 20)
    assert found(made, tmp_path, "zero-grad") is None
    made.record.models[0].parameter_bytes = 10 * (4 << 10)
    assert found(made, tmp_path, "zero-grad") is not None


def test_larger_batch_stays_within_memory(scene: Any, tmp_path: Path) -> None:
    made = scene(10.0, A100)
    for index in range(40):
        made.kernel(ELEMENTWISE, 0.2 * index + 0.03, 0.2 * index + 0.05, launched=0.2 * index)
    made.loader(0.05, 0.05, 0.05, num_workers=2)
    made.record.memory = layout_memory(peak=2 << 30)
    finding = found(made, tmp_path, "batch-size")
    assert finding is not None and finding.gain.likely > 1.5
    made.record.memory = layout_memory(peak=30 << 30)
    assert found(made, tmp_path, "batch-size") is None


def test_larger_batch_leaves_others_the_memory_that_they_hold(scene: Any, tmp_path: Path) -> None:
    made = scene(10.0, A100)
    for index in range(40):
        made.kernel(ELEMENTWISE, 0.2 * index + 0.03, 0.2 * index + 0.05, launched=0.2 * index)
    made.loader(0.05, 0.05, 0.05, num_workers=2)
    made.record.memory = replace(layout_memory(peak=2 << 30), free_at_start=36 << 30)
    assert found(made, tmp_path, "batch-size") is not None
    made.record.memory.free_at_start = 1 << 29
    assert found(made, tmp_path, "batch-size") is None


def test_frozen_weights_are_read_and_no_more(scene: Any, tmp_path: Path) -> None:
    """A probe on a ResNet-18 that stays as it is: 1.15 from four times the batch, and 1.9 to 3.7 was said."""
    made = busy_cpu(scene, step_ms=35.0, convolution=0.9)
    made.each("user_annotation", "advisor.backward", 32.0, 34.0)
    made.loader(0.05, 0.05, 0.05)
    (model,) = made.record.models
    model.parameters, model.frozen = 11_300_000, 0
    assert found(made, tmp_path, "batch-size") is not None
    model.frozen = 11_200_000
    assert found(made, tmp_path, "batch-size") is None


def test_batches_that_a_trainer_adds_up_are_fewer_and_larger(scene: Any, tmp_path: Path) -> None:
    made = busy_cpu(scene, step_ms=2.0, zeros=0.01)
    made.loader(0.05, 0.05, 0.05)
    made.record.loaders[0].owner = "transformers.trainer"
    alone = found(made, tmp_path, "batch-size")
    assert alone is not None and "together" not in alone.parameters and alone.safety is None
    made.call("TrainingArguments", 1, values={"gradient_accumulation_steps": 16}, takes=[])
    finding = found(made, tmp_path, "batch-size")
    assert finding is not None and finding.parameters["together"] == 16 and finding.safety is Safety.NUMERIC
    batch, times = finding.parameters["recorded"], finding.parameters["times"]
    assert finding.parameters["batch"] == batch * times and 16 % times == 0 and times > 1
    assert finding.evidence["batches_per_step"] == 16
    made.record.call_sites[-1].details["values"]["gradient_accumulation_steps"] = 7  # whose halves are no numbers
    assert found(made, tmp_path, "batch-size") is None


def test_lists_that_grow_with_the_batch_come_before_it(scene: Any, tmp_path: Path) -> None:
    made = busy_cpu(scene, step_ms=2.0, zeros=0.01)
    made.loader(0.05, 0.05, 0.05)
    made.call("from_list", 15, given="numbers", dtype="bool", device="cpu", numbers=5000.0, loader=-1)
    assert found(made, tmp_path, "batch-size") is not None
    made.record.call_sites[-1].seconds_per_step = 0.0005
    assert found(made, tmp_path, "batch-size") is None
    made.record.call_sites[-1].details |= {"device": "cuda", "numbers": 500.0}  # mostly a wait for the GPU
    assert found(made, tmp_path, "batch-size") is not None


def test_batches_that_nothing_computes_on_are_left(scene: Any, tmp_path: Path) -> None:
    """A script that prints its batches: what a step takes grows with them, whatever the model of a step says."""
    made = busy_cpu(scene, step_ms=2.0, zeros=0.01)
    made.loader(0.05, 0.05, 0.05)
    assert found(made, tmp_path, "batch-size") is not None
    made.record.optimizers[0].steps = made.record.models[0].calls = 0
    assert found(made, tmp_path, "batch-size") is None


@pytest.mark.parametrize(
    ("collate", "advised"), [("torch.utils.data._utils.collate.default_collate", True), ("__main__.pad", False)]
)
def test_samples_of_several_shapes_have_to_be_padded_first(
    collate: str, advised: bool, scene: Any, tmp_path: Path
) -> None:
    made = busy_cpu(scene, step_ms=2.0, zeros=0.01)
    loader = made.loader(0.05, 0.05, 0.05)
    loader.batch_size, loader.collate, made.record.shapes_vary = 1, collate, True
    finding = found(made, tmp_path, "batch-size")
    assert finding is not None and bool(finding.unmet) == advised
    (rule,) = [each for each in load_rules() if each.id == "batch-size"]
    if advised:
        fix = rule.fix(finding, Sources())
        assert isinstance(fix, Advice) and "pads them" in fix.why


@pytest.mark.parametrize("size", ["batch_size = 16", "batch_size = 32", "width = 32"])
def test_batches_made_by_hand_are_known_by_the_name_of_their_size(size: str, scene: Any, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"import torch\n{size}\nfor i in range(0, len(x), 32):\n    step(x[i : i + 32])\n")
    made = busy_cpu(scene, step_ms=2.0, zeros=0.01)
    made.record.script, made.record.models[0].inputs = str(script), [TensorInfo([32, 7], "float32", "cpu")]
    finding = found(made, tmp_path, "batch-size")
    assert (finding is not None) == (size == "batch_size = 32")
    if finding is not None:
        assert finding.site is not None and finding.site.line == 2
        (rule,) = [each for each in load_rules() if each.id == "batch-size"]
        edit = rule.fix(finding, Sources())
        assert isinstance(edit, Edit)
        assert f"batch_size = {finding.parameters['batch']}\n" in edit.texts[str(script)]
        # A solver calls the model several times with one batch.
        made.record.timing.samples_per_step = 4 * 32
        solved = found(made, tmp_path, "batch-size")
        assert solved is not None and solved.evidence["batch_size"] == 32
        # One tensor again and again is all the data that there is.
        made.record.models[0].repeats = 39
        assert found(made, tmp_path, "batch-size") is None


def layout_memory(peak: int) -> Any:
    from advisor.harness.layout import Memory

    return Memory(peak_allocated=peak, peak_reserved=peak, capacity=40 << 30)


def test_elementwise_work_wants_a_compiler(scene: Any, tmp_path: Path) -> None:
    made = busy_gpu(scene, (TENSOR_CORE, 0.4), (ELEMENTWISE, 0.6))
    finding = found(made, tmp_path, "compile")
    assert finding is not None and finding.gain.one_time_s > 0 and not finding.unmet
    made.record.environment.compiler = ""
    finding = found(made, tmp_path, "compile")
    assert finding is not None and finding.unmet
    made.record.environment.compiler, made.record.device.capability = "/usr/bin/g++", [6, 1]
    finding = found(made, tmp_path, "compile")
    assert finding is not None and "this one has 6.1" in finding.unmet[0]


def test_many_small_operators_on_a_cpu_want_a_compiler_and_large_ones_do_not(scene: Any, tmp_path: Path) -> None:
    small = scene(3.0)
    small.each("user_annotation", "advisor.forward", 0.01, 2.99)
    for index in range(1400):
        small.operator("aten::mul", 0.02 + 0.002 * index, 0.0215 + 0.002 * index)
    finding = found(small, tmp_path, "compile")
    assert finding is not None and finding.gain.likely > 1.2
    assert found(busy_cpu(scene, mul=0.5, addmm=0.45), tmp_path, "compile") is None


def small_operators(scene: Any) -> Any:
    small = scene(3.0)
    small.each("user_annotation", "advisor.forward", 0.01, 2.99)
    for index in range(1400):
        small.operator("aten::mul", 0.02 + 0.002 * index, 0.0215 + 0.002 * index)
    return small


def test_a_script_that_is_over_long_before_needs_no_compiler(scene: Any, tmp_path: Path) -> None:
    made = small_operators(scene)
    finding = found(made, tmp_path, "compile")
    assert finding is not None
    after = finding.gain.pays_back_after(0.003)
    assert after is not None
    made.record.total_steps = after // 9
    assert found(made, tmp_path, "compile") is not None
    made.record.total_steps = after // 11
    assert found(made, tmp_path, "compile") is None


def test_gradients_that_are_differentiated_are_not_compiled(scene: Any, tmp_path: Path) -> None:
    made = small_operators(scene)
    made.record.script = str(tmp_path / "train.py")
    (tmp_path / "train.py").write_text("force, = torch.autograd.grad(energy, x, create_graph=True)\n")
    assert found(made, tmp_path, "compile") is None


@pytest.mark.parametrize(("counts", "proposed"), [((400, 400, 402), True), ((200, 400, 600), False)])
def test_forwards_that_call_now_more_now_less_are_not_compiled(
    counts: tuple[int, ...], proposed: bool, scene: Any, tmp_path: Path
) -> None:
    made = scene(3.0)
    for part, count in enumerate(counts):
        made.each("user_annotation", "advisor.forward", part + 0.01, part + 0.99)
        for index in range(count):
            begin = part + 0.02 + 0.96 * index / count
            made.operator("aten::mul", begin, begin + 0.72 / count)
    assert (found(made, tmp_path, "compile") is not None) is proposed


def test_operators_outside_of_the_model_are_not_compiled(scene: Any, tmp_path: Path) -> None:
    loss = scene(3.0)
    loss.each("user_annotation", "advisor.forward", 0.01, 0.2)
    for index in range(1400):
        loss.operator("aten::mul", 0.02 + 0.002 * index, 0.0215 + 0.002 * index)
        loss.each("cpu_op", "aten::sub", 0.0205 + 0.002 * index, 0.0215 + 0.002 * index, **{"Sequence number": index})
    assert found(loss, tmp_path, "compile") is None


def test_compiling_leaves_something_of_the_step(scene: Any, tmp_path: Path) -> None:
    small = scene(1.0)
    small.each("user_annotation", "advisor.forward", 0.01, 0.99)
    for index in range(4000):
        small.operator("aten::view", 0.02 + 0.0002 * index, 0.02015 + 0.0002 * index)
    finding = found(small, tmp_path, "compile")
    assert finding is None or finding.gain.high < 4


def test_matrix_work_alone_needs_no_compiler(scene: Any, tmp_path: Path) -> None:
    assert found(busy_gpu(scene, (TENSOR_CORE, 0.97), (ELEMENTWISE, 0.03)), tmp_path, "compile") is None


def test_gpu_with_a_cpu_build_is_advice_to_install(scene: Any, tmp_path: Path) -> None:
    made = busy_cpu(scene)
    made.record.environment.gpus, made.record.environment.torch_cuda = ["NVIDIA A10"], ""
    finding = found(made, tmp_path, "device-unused")
    assert finding is not None and finding.parameters["cpu_build"]
    made.record.environment.gpus = []
    assert found(made, tmp_path, "device-unused") is None


# All of them together


def test_clean_cpu_script_is_left_alone(scene: Any, tmp_path: Path) -> None:
    made = busy_cpu(scene, addmm=0.95)
    made.loader(wait_ms=0.2, fetch_ms=2.0, cpu_ms=2.0, num_workers=2, persistent_workers=True)
    diagnosis = diagnose(made.evidence(tmp_path))
    assert diagnosis.document.findings == []
    assert diagnosis.document.verdict.startswith("nothing worth changing: ")
    assert len(diagnosis.document.verdict) > 40


def test_clean_gpu_script_is_left_alone(scene: Any, tmp_path: Path) -> None:
    made = busy_gpu(scene, (TENSOR_CORE, 0.96), (ELEMENTWISE, 0.04))
    made.record.models[0].autocast = "bfloat16"
    made.record.memory = layout_memory(peak=30 << 30)
    assert diagnose(made.evidence(tmp_path)).document.findings == []


@pytest.mark.parametrize(
    "rule", ["copy-pinned-async", "copy-narrow-dtype", "tf32-matmul", "cudnn-benchmark", "host-sync"]
)
def test_device_rules_are_silent_on_a_cpu(rule: str, scene: Any, tmp_path: Path) -> None:
    made = convolutional(busy_cpu(scene, mkldnn_convolution=0.5, item=0.2, copy_=0.2))
    made.call("Tensor.item", 14, device="cpu")
    made.call("Tensor.to", 9, from_device="cpu", to_device="cpu", from_dtype="float32", bytes=1000)
    assert found(made, tmp_path, rule) is None
