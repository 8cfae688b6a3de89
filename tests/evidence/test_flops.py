"""FLOPs from recorded shapes, against PyTorch's own counter, and the peaks they are compared with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.flop_counter import FlopCounterMode

from advisor.evidence import Evidence
from advisor.evidence.convolutions import BACKWARD, FORWARD, Kinds, convolution_kinds
from advisor.evidence.gpu.devices import peak_of
from advisor.evidence.model import StepModel
from advisor.trace import read_trace


def traced(work: Callable[[], object], folder: Path) -> Evidence:
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler, record_function("ProfilerStep#1"):
        work()
    path = folder / "trace.json"
    profiler.export_chrome_trace(str(path))
    return Evidence.from_trace(read_trace(path))


def counted(work: Callable[[], object]) -> int:
    counter = FlopCounterMode(display=False)
    with counter:
        work()
    return int(counter.get_total_flops())


def training(model: nn.Module, batch: torch.Tensor) -> Callable[[], object]:
    def work() -> object:
        return model(batch).sum().backward()

    return work


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)), (16, 32)),
        (nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.Conv2d(8, 16, 3, dilation=2)), (4, 3, 33, 20)),
        (nn.Conv1d(4, 6, 5), (3, 4, 40)),
        (nn.ConvTranspose2d(4, 6, 3, stride=2), (2, 4, 9, 9)),
    ],
    ids=["linear", "conv2d", "conv1d", "transposed"],
)
def test_forward_and_backward_agree_with_pytorch(model: nn.Module, shape: tuple[int, ...], tmp_path: Path) -> None:
    work = training(model, torch.randn(shape))
    assert traced(work, tmp_path).flops.per_step == pytest.approx(counted(work), rel=1e-6)


def test_groups_divide_the_work_of_both_passes(tmp_path: Path) -> None:
    # (PyTorch's counter forgets the groups in the backward pass.)
    once = 2 * 2 * 16 * 10 * 10 * (8 // 4) * 3 * 3
    work = training(nn.Conv2d(8, 16, 3, groups=4), torch.randn(2, 8, 12, 12))
    assert traced(work, tmp_path).flops.per_step == 2 * once  # forward, and the weight's gradient


def test_inference_agrees_with_pytorch(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Flatten(), nn.Linear(8 * 64, 10)).eval()
    batch = torch.randn(2, 3, 8, 8)

    def work() -> object:
        with torch.no_grad():
            return model(batch)

    flops = traced(work, tmp_path).flops
    assert flops.per_step == pytest.approx(counted(work), rel=1e-6)
    assert flops.by_dtype == {"float32": flops.per_step}
    assert flops.achieved is not None and flops.mfu is None  # no peak of a CPU in the table


def test_attention_and_batched_products(tmp_path: Path) -> None:
    query, key, value = (torch.randn(2, 4, 32, 16, requires_grad=True) for _ in range(3))

    def work() -> object:
        return nn.functional.scaled_dot_product_attention(query, key, value)

    # By hand: PyTorch's own counter knows a CPU's fused attention in some versions only (2.15, not 2.14).
    assert traced(work, tmp_path).flops.per_step == 2 * (2 * 4) * (2 * 32 * 32 * 16)
    products = traced(lambda: torch.bmm(torch.ones(3, 4, 5), torch.ones(3, 5, 6)), tmp_path)
    assert products.flops.per_step == 2 * 3 * 4 * 5 * 6


def test_lower_precision_is_counted_by_its_dtype(tmp_path: Path) -> None:
    a = torch.ones(8, 8, dtype=torch.bfloat16)
    assert traced(lambda: a @ a, tmp_path).flops.by_dtype == {"bfloat16": 2 * 8**3}


def test_no_rate_without_shapes(shared_traces: Path) -> None:
    # Shapes, but no strides: the convolutions cannot be counted, and the gemms alone would mislead.
    flops = Evidence.from_trace(read_trace(shared_traces / "v100-resnet50-workers0.pt.trace.json.gz")).flops
    assert flops.uncounted > 50
    assert flops.achieved is None and flops.mfu is None


def test_share_of_the_peak(shared_traces: Path) -> None:
    evidence = Evidence.from_trace(read_trace(shared_traces / "h100-vit-inference.json.gz"))
    # ViT-B/16 in bf16: 17.6 GMACs an image, 4 images, of 989 TFLOP/s in 7.9 ms.
    assert evidence.flops.per_step == pytest.approx(4 * 2 * 17.56e9, rel=0.01)
    assert evidence.flops.peak_dtype == "bfloat16"
    assert evidence.flops.mfu == pytest.approx(1.405e11 / 7.894e-3 / 989.4e12, rel=0.01)


@pytest.mark.parametrize(
    ("name", "dtype", "tera"),
    [
        ("Tesla V100-SXM2-16GB", "float16", 125),
        ("Tesla V100-PCIE-32GB", "float16", 112),
        ("Tesla T4", "float16", 65),
        ("NVIDIA A10", "bfloat16", 125),
        ("NVIDIA A10G", "bfloat16", 70),
        ("NVIDIA A100-SXM4-80GB", "tf32", 156),
        ("NVIDIA A100-PG509-200", "float32", 19.5),
        ("NVIDIA L4", "bfloat16", 121),
        ("NVIDIA L40S", "bfloat16", 362),
        ("NVIDIA GeForce RTX 3090", "float16", 71),
        ("NVIDIA GeForce RTX 4090", "float16", 165.2),
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.4),
        ("NVIDIA H100 PCIe", "bfloat16", 756),
        ("NVIDIA H200", "bfloat16", 989.5),
        ("NVIDIA B200", "bfloat16", 2250),
        ("AMD Instinct MI210", "bfloat16", 181),
        ("AMD Instinct MI250X", "bfloat16", 191.5),
        ("AMD Instinct MI300X VF", "bfloat16", 1307.4),
    ],
)
def test_peaks(name: str, dtype: str, tera: float) -> None:
    peak = peak_of(name)
    assert peak is not None
    assert peak.of(dtype) == pytest.approx(tera * 1e12)
    assert peak.source


def test_old_cards_have_no_bfloat16_and_strangers_no_peak() -> None:
    volta = peak_of("Tesla V100-DGXS-32GB")
    assert volta is not None and not volta.bf16 and volta.of("bfloat16") is None
    assert peak_of("NVIDIA GeForce GTX 1080") is None
    assert peak_of("") is None


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA H100 80GB HBM3 MIG 3g.40gb",
        "NVIDIA GeForce RTX 3080 Laptop GPU",
        "NVIDIA GeForce RTX 3070 with Max-Q Design",
    ],
)
def test_parts_of_a_card_and_laptops_do_not_have_its_peak(name: str) -> None:
    assert peak_of(name) is None


def test_nameless_amd_device_is_known_by_its_units() -> None:
    assert peak_of("AMD Radeon Graphics") is None
    found = peak_of("", multiprocessors=304, amd=True)
    assert found is not None and found.name == "MI300X"


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (nn.Conv2d(8, 8, 3, padding=1, groups=8), "depthwise"),
        (nn.Conv2d(8, 16, 1), "pointwise"),
        (nn.Conv2d(8, 16, 3), ""),
        (nn.Conv2d(1, 16, 3), ""),  # one input channel, but one group only
    ],
    ids=["depthwise", "1x1", "3x3", "grey"],
)
def test_kinds_of_convolutions_by_their_shapes(model: nn.Conv2d, kind: str, tmp_path: Path) -> None:
    batch = torch.randn(2, model.in_channels, 12, 12, requires_grad=True)
    threads = torch.get_num_threads()
    torch.set_num_threads(max(2, threads))  # with one, small ones are computed by other operators
    try:
        kinds = convolution_kinds(traced(training(model, batch), tmp_path).trace)
    finally:
        torch.set_num_threads(threads)
    assert set(kinds) == {FORWARD, BACKWARD}
    for each in kinds.values():
        assert each == Kinds(float(kind == "depthwise"), float(kind == "pointwise"))


def test_convolutions_have_costs_of_their_own_beside_the_batch(builder: Any, tmp_path: Path) -> None:
    def larger(name: str, us: int) -> float:
        build = builder()
        build.step(1, 0, 20 * us)
        build.annotation("## forward ##", 10, 20 * us)
        for number in range(10):
            build.operator(name, 20 + number * us, 20 + (number + 1) * us)
        return StepModel.of(Evidence.from_trace(build.read(tmp_path))).calling_s

    # 45 us of each forward call, at most nine tenths of it; of another operator 3.5 us.
    assert larger(FORWARD, 100) == pytest.approx(450e-6)
    assert larger(FORWARD, 20) == pytest.approx(180e-6)
    assert larger("aten::gelu", 100) == pytest.approx(35e-6)
