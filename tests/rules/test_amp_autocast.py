"""What 16 bits leave of a step on a GPU: with attention in float32, a GradScaler, or without any Tensor Cores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from advisor.rules.amp_autocast import AmpAutocast

from advisor.evidence import Change, Evidence
from advisor.evidence.halves import (
    casting_s,
    casts_on_host_s,
    in_16_bits,
    linear_with_casts,
    multiplies_sparse,
    scaling_s,
    single_precision,
)
from tests.rules.test_checks import CONVOLUTION, ELEMENTWISE, SGEMM, busy_gpu, found

ATTENTION = (
    "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float, cutlass::arch::Sm80, "
    "true, 64, 64, 64, true, true>::Params)"
)
IN_16_BITS = ATTENTION.replace("f32", "bf16").replace("float", "cutlass::bfloat16_t")
V100 = "Tesla V100-SXM2-16GB"


def inferring(made: Any) -> Any:
    """The same without any training."""
    made.record.call_sites = [each for each in made.record.call_sites if each.kind != "backward"]
    made.record.optimizers, made.record.models[0].training = [], False
    made.record.models[0].output = "tensor"
    return made


def test_attention_in_float32_is_told_of_by_the_name_of_its_kernels(scene: Any, tmp_path: Path) -> None:
    finding = found(busy_gpu(scene, (ATTENTION, 0.6), (SGEMM, 0.4)), tmp_path, "amp-autocast")
    assert finding is not None and finding.evidence["float32_matrix_share"] == pytest.approx(1.0)
    assert finding.gain.likely == pytest.approx(1 / (0.6 * 0.3 + 0.4 * 0.07), rel=0.05)
    half = found(inferring(busy_gpu(scene, (ATTENTION, 0.9), (ELEMENTWISE, 0.1))), tmp_path, "half-inference")
    assert half is not None and half.gain.likely > 2
    assert found(busy_gpu(scene, (IN_16_BITS, 1.0)), tmp_path, "amp-autocast") is None


def test_attention_in_float32_does_not_look_like_autocast_in_a_bare_trace(scene: Any, tmp_path: Path) -> None:
    evidence = busy_gpu(scene, (ATTENTION, 0.6), (SGEMM, 0.3), (ELEMENTWISE, 0.1)).bare(tmp_path)
    assert list(AmpAutocast().check(evidence))
    evidence = busy_gpu(scene, (IN_16_BITS, 0.6), (SGEMM, 0.3), (ELEMENTWISE, 0.1)).bare(tmp_path)
    assert not list(AmpAutocast().check(evidence))


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("NVIDIA GeForce GTX 1660 Ti", False),
        ("NVIDIA GeForce GTX 1650", False),
        ("NVIDIA T600 Laptop GPU", False),
        ("Quadro T1000", False),
        ("NVIDIA GeForce MX450", False),
        ("Tesla T4", True),
        ("NVIDIA GeForce RTX 2080 Ti", True),
        ("NVIDIA TITAN RTX", True),
        ("Quadro RTX 6000", True),
    ],
)
def test_turing_without_tensor_cores_is_left_alone(name: str, there: bool, scene: Any, tmp_path: Path) -> None:
    made = busy_gpu(scene, ("turing_sgemm_128x64_nn", 0.9), (ELEMENTWISE, 0.1))
    made.gpu = made.record.device.name = name
    made.record.device.capability, made.record.device.bf16 = [7, 5], False
    assert (found(made, tmp_path, "amp-autocast") is not None) is there
    assert (found(inferring(made), tmp_path, "half-inference") is not None) is there


def ahead(scene: Any, device: str = V100, capability: tuple[int, int] = (7, 0)) -> Any:
    """Steps of 50 ms whose host launches all in 21 ms, 20 of them in the optimizer, while the device is at a product.

    The product takes 44 ms, what the optimizer launches 5.
    """
    made = scene(50.0, device)
    made.record.device.capability, made.record.device.bf16 = list(capability), capability >= (8, 0)
    made.operator("aten::mm", 0.05, 0.2)
    made.kernel("volta_sgemm_128x64_nn", 0.2, 44.2, launched=0.1)
    made.each("user_annotation", "Optimizer.step#SGD.step", 1.0, 21.0)
    for number in range(10):
        made.kernel(ELEMENTWISE, 44.2 + 0.5 * number, 44.7 + 0.5 * number, launched=2.9 + 2.0 * number)
    made.each("cuda_runtime", "cudaDeviceSynchronize", 21.5, 49.5)
    return made


def test_a_scaler_has_the_device_wait_for_the_optimizers_launches(scene: Any, tmp_path: Path) -> None:
    """In 16 bits the product takes 6 ms, during which the optimizer is launched only where nothing is read before."""
    scaled = found(ahead(scene), tmp_path, "amp-autocast")
    assert scaled is not None and scaled.parameters["dtype"] == "float16"
    assert scaled.gain.likely == pytest.approx(50 / (6.1 + 20.5), rel=0.05)
    fused = ahead(scene)
    fused.record.optimizers[0].fused = True  # it looks for infinities itself
    unread = found(fused, tmp_path, "amp-autocast")
    assert unread is not None and unread.gain.likely > 2
    bfloat16 = found(ahead(scene, "NVIDIA A100-SXM4-40GB", (8, 0)), tmp_path, "amp-autocast")
    assert bfloat16 is not None and bfloat16.gain.likely > 2


def test_a_device_that_waits_for_the_optimizer_already_waits_no_longer(scene: Any, tmp_path: Path) -> None:
    made = scene(50.0, V100)
    made.kernel("volta_sgemm_128x64_nn", 0.2, 20.0, launched=0.1)
    made.each("cuda_runtime", "cudaStreamSynchronize", 0.2, 20.1)
    made.each("user_annotation", "Optimizer.step#SGD.step", 21.0, 41.0)
    for number in range(10):
        made.kernel(ELEMENTWISE, 23.0 + 2.0 * number, 23.5 + 2.0 * number, launched=22.9 + 2.0 * number)
    device_s, _ = scaling_s(made.evidence(tmp_path))
    assert device_s < 1e-3


def test_gradients_are_unscaled_in_memory(scene: Any, tmp_path: Path) -> None:
    made = busy_gpu(scene, ("volta_sgemm_128x64_nn", 1.0))
    made.gpu = made.record.device.name = V100
    made.record.models[0].parameters, made.record.optimizers[0].parameters = 900_000_000, 400
    device_s, host_s = scaling_s(made.evidence(tmp_path))
    assert device_s == pytest.approx(8e-3)  # read and written at 900 GB/s
    assert 1e-4 < host_s < 1e-3


def test_a_part_of_a_card_casts_no_faster_than_the_card(scene: Any, tmp_path: Path) -> None:
    made = busy_gpu(scene, (SGEMM, 1.0))
    made.record.models[0].parameters = 100_000_000
    whole = casting_s(made.evidence(tmp_path))
    made.gpu = made.record.device.name = "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
    assert casting_s(made.evidence(tmp_path)) > 3 * whole > 0


@pytest.mark.parametrize(
    ("operators", "sparse"),
    [
        (["aten::matmul", "aten::mm", "aten::crow_indices"], True),  # CSR, of whatever file's
        (["aten::mm", "aten::_sparse_addmm"], True),  # COO
        (["aten::mm", "aten::_nnz", "aten::_values", "aten::coalesce"], False),  # gradients of an embedding
    ],
)
def test_products_of_sparse_matrices_are_known_by_their_operators(operators: list[str], sparse: bool) -> None:
    assert multiplies_sparse(operators, []) is sparse


def on_amd(scene: Any, folder: Path, product: str, tokens: int = 0, sequences: int = 0) -> Evidence:
    """A CPU step of 50 ms: 30 of products of these shapes, 10 of attention's backward over sequences of so many."""
    made = scene(50.0)
    made.each("user_annotation", "advisor.forward", 0.2, 30.2)
    for name, begin, shapes in (("mm", 0.5, product), ("mm", 15.2, product)):
        made.operator(f"aten::{name}", begin, begin + 14.5, **{"Input Dims": json.loads(shapes)})
    if tokens:
        made.operator(
            "aten::_scaled_dot_product_flash_attention_for_cpu_backward", 31.0, 41.0,
            **{"Input Dims": [[sequences, 4, tokens, 32], [sequences, 4, tokens, 32]]},
        )  # fmt: skip
    environment = made.record.environment
    environment.intraop_threads = 2
    environment.cpu, environment.cpu_flags = "AMD EPYC", ["avx512f", "avx512_bf16"]
    environment.rates = {"bfloat16": {"product": 0.47, "convolution": 0.54}}
    evidence: Evidence = made.evidence(folder)
    return Evidence(trace=evidence.trace, record=evidence.record, detail=evidence.trace)


@pytest.mark.parametrize(
    ("shapes", "left"),
    [
        ("[[2048, 1024], [1024, 1024]]", 0.48),  # measured 0.48, casts included
        ("[[768, 256], [256, 256]]", 0.62),  # 0.64
        ("[[768, 128], [128, 128]]", 0.84),  # 0.90
        ("[[256, 128], [128, 128]]", 1.23),  # 1.24
        ("[[256, 16], [16, 16]]", 2.0),
    ],
)
def test_small_products_gain_less(shapes: str, left: float, scene: Any, tmp_path: Path) -> None:
    evidence = on_amd(scene, tmp_path, shapes)
    assert linear_with_casts(evidence)["aten::mm"] == pytest.approx(left, abs=0.02)
    assert evidence.record is not None
    evidence.record.environment.rates = {}
    assert linear_with_casts(evidence) == {}


@pytest.mark.parametrize(("sequences", "tokens", "told"), [(0, 0, True), (2, 512, True), (64, 64, False)])
def test_attention_over_many_tokens_takes_longer_backwards(
    sequences: int, tokens: int, told: bool, scene: Any, tmp_path: Path
) -> None:
    """Tokens of all sequences and heads: 4,096 of these 5 ms more than the products, 16,384 of them 21."""
    evidence = on_amd(scene, tmp_path, "[[2048, 1024], [1024, 1024]]", tokens, sequences)
    assert bool(list(AmpAutocast().check(evidence))) == told


def test_what_is_between_convolutions_is_in_16_bits_too(scene: Any, tmp_path: Path) -> None:
    """Batch norm, ReLU and pooling move half the bytes there; beside products of a transformer they stay float32."""
    made = scene(50.0, "NVIDIA A100-SXM4-40GB")
    made.operator("aten::empty", 0.0, 0.002)
    for number, (name, kernel, end) in enumerate(
        (("aten::cudnn_convolution", CONVOLUTION, 25.0), ("aten::cudnn_batch_norm", "bn_fw_tr", 49.8))
    ):
        made.operator(name, 0.01 + 0.02 * number, 0.025 + 0.02 * number)
        made.kernel(kernel, 0.1 if not number else 25.0, end, launched=0.015 + 0.02 * number)
    made.each("cuda_runtime", "cudaDeviceSynchronize", 0.06, 49.9)
    finding = found(made, tmp_path, "amp-autocast")
    assert finding is not None
    assert finding.gain.likely == pytest.approx(1 / (0.5 * 0.5 + 0.5 * 0.55), rel=0.03)


def test_casts_take_the_host_time_where_it_is_what_is_waited_for(scene: Any, tmp_path: Path) -> None:
    """Forty products that follow each other, launched every 0.1 ms: shorter ones wait for their launches, and casts."""
    made = scene(10.0, "NVIDIA A100-SXM4-40GB")
    for number in range(40):
        made.operator("aten::mm", 0.1 * number, 0.1 * number + 0.02)
        made.kernel(SGEMM, 0.24 * number + 0.03, 0.24 * number + 0.26, launched=0.1 * number + 0.01)
    made.each("cuda_runtime", "cudaDeviceSynchronize", 4.0, 9.9)
    evidence = made.evidence(tmp_path)
    assert casts_on_host_s(evidence) == pytest.approx(40 * 10e-6)
    with_casts = found(made, tmp_path, "amp-autocast")
    single = single_precision(evidence)
    assert with_casts is not None and single is not None
    without = evidence.what_if(Change(kernel_scale=in_16_bits(evidence, single, casting_s(evidence)))).speedup[1]
    assert with_casts.gain.likely < without - 0.01
