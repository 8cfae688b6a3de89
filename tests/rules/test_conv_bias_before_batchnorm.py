"""Biases in front of batch norm, by the kernels that they cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from advisor.rules.conv_bias_before_batchnorm import ConvBiasBeforeBatchnorm

from advisor.edit import Sources
from advisor.rule import Finding

ADD, SUM, CONV = (
    "vectorized_elementwise_kernel<4, CUDAFunctor_add>",
    "reduce_kernel<512, 1>",
    "sm80_xmma_fprop_implicit",
)


def network(scene: Any, follower: str = "aten::batch_norm", bias: bool = True, learns: bool = True) -> Any:
    """A busy step of 10 ms: a convolution of 4 ms, its bias of 1 ms, what follows, and the backward of both."""
    made = scene(10.0, "NVIDIA A100-SXM4-40GB")
    forward = {"Sequence number": 7, "Fwd thread id": 0}
    for name in ("aten::conv2d", "aten::convolution", "aten::_convolution"):
        made.operator(name, 0.10, 0.20, **forward)
    made.operator("aten::cudnn_convolution", 0.11, 0.14, **forward)
    made.kernel(CONV, 0.2, 4.2, launched=0.12)
    if bias:
        made.operator("aten::add_", 0.15, 0.19, **forward)
        made.kernel(ADD, 4.2, 5.2, launched=0.16)
    if learns:
        made.operator("aten::add_", 0.21, 0.22)  # num_batches_tracked
    made.operator(follower, 0.23, 0.30, **{"Sequence number": 8})
    made.kernel("bn_fw_tr_1C11_kernel_NCHW", 5.2, 6.0, launched=0.25)
    backward = {"Sequence number": 7, "Fwd thread id": 1}
    made.operator("autograd::engine::evaluate_function: ConvolutionBackward0", 0.40, 0.60, **backward)
    made.operator("ConvolutionBackward0", 0.41, 0.59, **backward)
    made.operator("aten::convolution_backward", 0.42, 0.58)
    made.kernel("sm80_xmma_wgrad", 6.0, 8.4, launched=0.45)
    if bias:
        made.operator("aten::sum", 0.50, 0.55)
        made.kernel(SUM, 8.4, 9.4, launched=0.52)
    made.each("cuda_runtime", "cudaDeviceSynchronize", 0.65, 9.5)
    return made


def found(made: Any, folder: Path) -> Finding | None:
    findings = list(ConvBiasBeforeBatchnorm().check(made.evidence(folder)))
    return findings[0] if findings else None


def test_bias_and_its_gradient_are_found(scene: Any, tmp_path: Path) -> None:
    finding = found(network(scene), tmp_path)
    assert finding is not None
    assert finding.evidence["bias_kernels_s"] == pytest.approx(2e-3)
    assert finding.evidence["convolutions"] == 1
    assert finding.gain.likely == pytest.approx(10 / 8, rel=0.05)
    assert "bias=False" in ConvBiasBeforeBatchnorm().fix(finding, Sources()).text


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param({"follower": "aten::relu"}, id="no-norm"),
        pytest.param({"bias": False}, id="no-bias"),
        pytest.param({"learns": False}, id="frozen-norm"),
    ],
)
def test_left_alone(facts: dict[str, Any], scene: Any, tmp_path: Path) -> None:
    assert found(network(scene, **facts), tmp_path) is None


def test_left_alone_in_inference(scene: Any, tmp_path: Path) -> None:
    made = network(scene)
    made.record.optimizers = []
    assert found(made, tmp_path) is None


def test_a_sum_of_another_convolution_stays(scene: Any, tmp_path: Path) -> None:
    """Of two convolutions one has batch norm behind it; the other's bias is needed."""
    made = network(scene)
    made.operator("aten::convolution_backward", 0.61, 0.64, **{"Sequence number": 3})
    made.operator("aten::sum", 0.62, 0.63)
    made.kernel(SUM, 9.4, 9.8, launched=0.625)
    finding = found(made, tmp_path)
    assert finding is not None and finding.evidence["bias_kernels_s"] == pytest.approx(2e-3)
