"""What inference is told: only where autograd was seen at work, or a model in training mode, and at a cost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from advisor.rulebook import load_rules
from rules.half_inference import HalfInference
from tests.rules.conftest import STEPS
from tests.rules.test_checks import busy_gpu, found


def inferring(scene: Any, step_ms: float = 2.0, nodes: int = 200, **facts: Any) -> Any:
    """A CPU run that only infers, whose forward makes that many nodes of a graph in each step."""
    made = scene(step_ms)
    made.record.step_kind, made.record.optimizers = "forward", []
    made.record.call_sites = []
    made.call("Module.call", 11, module="Net", grad=True)
    (model,) = made.record.models
    model.training, model.output_grad, model.output = False, True, "tensor"
    for name, value in facts.items():
        setattr(model, name, value)
    made.each("user_annotation", "advisor.forward", 0.0, step_ms)
    each = 0.9 * step_ms / max(1, nodes)
    for step in range(STEPS):
        for node in range(nodes):
            number = {"Sequence number": step * nodes + node}
            made._add("cpu_op", "aten::mul", step, node * each, (node + 0.9) * each, **number)
    return made


def test_graph_that_nobody_uses_is_reported_with_its_nodes(scene: Any, tmp_path: Path) -> None:
    finding = found(inferring(scene), tmp_path, "missing-inference-mode")
    assert finding is not None
    assert finding.evidence["graph_nodes"] == 200
    # 200 nodes of 1.2 us are 0.24 of 2 ms.
    assert 1.08 < finding.gain.likely < 1.18
    assert finding.site is not None and finding.site.line == 11


def test_graph_of_few_nodes_in_a_long_step_is_left_alone(scene: Any, tmp_path: Path) -> None:
    assert found(inferring(scene, step_ms=50.0, nodes=40), tmp_path, "missing-inference-mode") is None


def test_output_without_a_graph_is_left_alone(scene: Any, tmp_path: Path) -> None:
    assert found(inferring(scene, output_grad=False), tmp_path, "missing-inference-mode") is None


def test_script_that_asks_for_gradients_is_left_alone(scene: Any, tmp_path: Path) -> None:
    made = inferring(scene)
    made.call("backward", 12, per_step=0.1)
    assert found(made, tmp_path, "missing-inference-mode") is None


def test_gradients_taken_without_backward_are_seen_in_the_trace(scene: Any, tmp_path: Path) -> None:
    made = inferring(scene)
    made.operator("autograd::engine::evaluate_function: MulBackward0", 1.8, 1.9)
    assert found(made, tmp_path, "missing-inference-mode") is None


def test_training_is_left_alone(scene: Any, tmp_path: Path) -> None:
    made = scene(2.0)
    made.record.models[0].output_grad = True
    assert found(made, tmp_path, "missing-inference-mode") is None


@pytest.mark.parametrize("masked", [True, False])
def test_attention_that_a_learned_mask_keeps_from_being_fused_counts(masked: bool, scene: Any, tmp_path: Path) -> None:
    made = inferring(scene, step_ms=10.0, nodes=20)
    heads = [[8, 4, 128, 32]] * 3
    made.operator("aten::_scaled_dot_product_attention_math", 2.0, 8.0,
                  **{"Input Dims": [*heads, [4, 128, 128] if masked else [], [], [], []]})  # fmt: skip
    evidence = made.evidence(tmp_path)
    evidence = replace(evidence, detail=evidence.trace)
    (rule,) = [each for each in load_rules() if each.id == "missing-inference-mode"]
    findings = list(rule.check(evidence))
    assert bool(findings) == masked
    if masked:
        assert findings[0].evidence["stepwise_attention_s"] == pytest.approx(6e-3)
        assert findings[0].gain.likely > 1.3


@pytest.mark.parametrize(("name", "told"), [("aten::linalg_eigvalsh", True), ("aten::linalg_eigh", False)])
def test_eigenvalues_whose_vectors_only_a_backward_needs(name: str, told: bool, scene: Any, tmp_path: Path) -> None:
    made = inferring(scene, step_ms=10.0, nodes=20)
    made.operator(name, 2.0, 8.0)
    finding = found(made, tmp_path, "missing-inference-mode")
    assert (finding is not None) == told
    if finding is not None:
        assert finding.evidence["eigenvectors_s"] == pytest.approx(6e-3)
        # Of 6 ms 0.45 are left: 10 ms become 6.7.
        assert finding.gain.low < 10 / 6.7 < finding.gain.high and "eigenvalues" in finding.summary


# no-grad-to-inference-mode


def under_no_grad(scene: Any, operators: int = 4000, **facts: Any) -> Any:
    """A CPU run of 3 ms a step that infers under no_grad, so many operators in a step."""
    known = {"output_grad": False, "grad_enabled": False, "inference_mode": False}
    return inferring(scene, 3.0, operators, **{**known, **facts})


def test_many_operators_under_no_grad_are_reported(scene: Any, tmp_path: Path) -> None:
    finding = found(under_no_grad(scene), tmp_path, "no-grad-to-inference-mode")
    assert finding is not None and finding.site is not None and finding.site.line == 11
    assert finding.evidence["operator_calls"] == 4000
    # 4000 calls of 0.1 us are 0.4 of 3 ms.
    assert 1.1 < finding.gain.likely < 1.2


@pytest.mark.parametrize(
    ("operators", "facts"),
    [
        (400, {}),
        (4000, {"inference_mode": True}),
        (4000, {"grad_enabled": True}),
        (4000, {"grad_enabled": None}),  # not seen
    ],
)
def test_few_operators_or_no_no_grad_are_left_alone(
    operators: int, facts: dict[str, Any], scene: Any, tmp_path: Path
) -> None:
    assert found(under_no_grad(scene, operators, **facts), tmp_path, "no-grad-to-inference-mode") is None


# missing-eval


def dropping(scene: Any, share: float = 0.2, **facts: Any) -> Any:
    """A CPU run that infers in training mode, that share of its step in an active dropout."""
    made = inferring(scene, 10.0, 0, output_grad=False, training=True, layers={"Linear": 2, "Dropout": 1}, **facts)
    made.operator("aten::addmm", 0.1, 1.0)
    made.operator("aten::dropout", 1.0, 1.0 + 10.0 * share)
    made.operator("aten::bernoulli_", 1.1, 0.9 + 10.0 * share)
    return made


def test_active_dropout_is_reported_with_its_time(scene: Any, tmp_path: Path) -> None:
    finding = found(dropping(scene), tmp_path, "missing-eval")
    assert finding is not None
    assert abs(float(finding.evidence["dropout_s"] or 0) - 2e-3) < 1e-5
    assert 1.2 < finding.gain.likely < 1.3


def test_attention_that_drops_none_of_its_weights_is_fused(scene: Any, tmp_path: Path) -> None:
    made = dropping(scene)
    made.operator("aten::_scaled_dot_product_attention_math", 4.0, 9.0)
    made.operator("aten::dropout", 6.0, 7.0)
    finding = found(made, tmp_path, "missing-eval")
    assert finding is not None
    assert abs(float(finding.evidence["dropout_s"] or 0) - 3e-3) < 1e-5
    # Of the attention's other 4 ms a fifth is left: 10 ms become 3.8.
    assert finding.gain.likely == pytest.approx(10 / 3.8, rel=0.05)


def test_active_dropout_that_costs_nothing_is_left_alone(scene: Any, tmp_path: Path) -> None:
    assert found(dropping(scene, share=0.025), tmp_path, "missing-eval") is None


def test_training_mode_that_was_asked_for_is_left_alone(scene: Any, tmp_path: Path) -> None:
    made = dropping(scene)
    made.call("Module.train", 7, per_step=0.0)
    assert found(made, tmp_path, "missing-eval") is None


def test_part_in_evaluation_mode_is_left_alone(scene: Any, tmp_path: Path) -> None:
    made = dropping(scene)
    made.call("Module.eval", 7, per_step=0.0, module="Backbone")
    assert found(made, tmp_path, "missing-eval") is None


def test_monte_carlo_dropout_is_left_alone_and_a_benchmark_is_not(scene: Any, tmp_path: Path) -> None:
    assert found(dropping(scene, repeats=36, calls=40), tmp_path, "missing-eval") is None
    assert found(dropping(scene, repeats=39, calls=40), tmp_path, "missing-eval") is not None


def test_batch_norm_of_images_saves_its_statistics(scene: Any, tmp_path: Path) -> None:
    made = inferring(scene, 10.0, 0, output_grad=False, training=True, layers={"Conv2d": 2, "BatchNorm2d": 2})
    made.operator("aten::mkldnn_convolution", 0.1, 7.0)
    made.operator("aten::native_batch_norm", 7.0, 9.5)
    finding = found(made, tmp_path, "missing-eval")
    assert finding is not None
    assert 1.15 < finding.gain.likely < 1.3


def test_batch_norm_on_a_gpu_reads_once_less(scene: Any, tmp_path: Path) -> None:
    made = scene(10.0, "NVIDIA A100-SXM4-40GB")
    made.record.call_sites = [each for each in made.record.call_sites if each.kind != "backward"]
    made.record.optimizers, model = [], made.record.models[0]
    model.training, model.layers = True, {"Conv2d": 2, "BatchNorm2d": 2}
    made.operator("aten::cudnn_convolution", 0.02, 0.06)
    made.kernel("implicit_convolve_sgemm", 0.1, 5.0, launched=0.03)
    made.operator("aten::cudnn_batch_norm", 0.1, 0.2)
    made.kernel("bn_fw_tr_1C11_kernel_NCHW", 5.0, 9.8, launched=0.15)
    made.each("cuda_runtime", "cudaDeviceSynchronize", 0.25, 9.9)
    finding = found(made, tmp_path, "missing-eval")
    assert finding is not None
    assert finding.gain.likely == pytest.approx(10 / (10 - 4.8 * 0.33), rel=0.03)


def norming(scene: Any, grad: bool = True) -> Any:
    """An inference of 10 ms beside a GPU that is idle for nearly all of it, 100 batch norms in training mode."""
    made = scene(10.0, "NVIDIA A100-SXM4-40GB")
    made.record.call_sites = [each for each in made.record.call_sites if each.kind != "backward"]
    made.record.optimizers, model = [], made.record.models[0]
    model.training, model.layers, model.grad_enabled, model.output_grad = True, {"BatchNorm2d": 100}, grad, grad
    for number in range(100):
        start = 0.1 * number
        known = {"Sequence number": number} if grad else {}
        made.operator("aten::cudnn_batch_norm", start, start + 0.09, **known)
        made.kernel("bn_fw_tr_1C11_kernel_NCHW", start + 0.06, start + 0.064, launched=start + 0.05)
    return made


@pytest.mark.parametrize(("grad", "saved_ms"), [(True, 3.8), (False, 1.5)])
def test_batch_norm_in_training_mode_takes_the_host_longer(
    grad: bool, saved_ms: float, scene: Any, tmp_path: Path
) -> None:
    finding = found(norming(scene, grad), tmp_path, "missing-eval")
    assert finding is not None
    assert finding.gain.likely == pytest.approx(10 / (10 - saved_ms), rel=0.05)
    assert "100 batch norms with each batch's own statistics" in finding.summary


def test_gradients_nobody_needs_cost_the_host_beside_a_gpu(scene: Any, tmp_path: Path) -> None:
    finding = found(norming(scene), tmp_path, "missing-inference-mode")
    assert finding is not None
    assert finding.gain.likely == pytest.approx(10 / (10 - 2.7 - 0.17), rel=0.05)
    assert "H200" in finding.gain.basis


# half-inference

# half-inference


def multiplying(scene: Any, rows: int = 256, products: int = 4, flags: tuple[str, ...] = ("avx512_bf16",)) -> Any:
    """A CPU run that only infers, 9.2 ms of its 10 in so many products of two matrices."""
    made = inferring(scene, 10.0, 0, output_grad=False)
    made.record.environment.cpu_flags = list(flags)
    each_ms = 9.6 / products
    for number in range(products):
        start = 0.1 + each_ms * number
        shapes = {"Input Dims": [[rows, 512], [512, 512]]}
        made.each("cpu_op", "aten::mm", start, start + each_ms * 23 / 24, **shapes)
    return made


def test_large_products_in_float32_are_reported(scene: Any, tmp_path: Path) -> None:
    finding = found(multiplying(scene), tmp_path, "half-inference")
    assert finding is not None
    assert 1.4 < finding.gain.likely < 2.1


def test_small_products_are_left_in_float32(scene: Any, tmp_path: Path) -> None:
    """Called, one takes longer than such a product in float32: 0.015 and 0.58 of 0.023 ms."""
    assert found(multiplying(scene, rows=4, products=400), tmp_path, "half-inference") is None


def test_one_row_is_as_much_work_as_reading_the_weights(scene: Any, tmp_path: Path) -> None:
    """Half of 9.2 ms, and 0.015 more for each product, whatever the processor makes of larger ones."""
    made = multiplying(scene, rows=1, products=48)
    evidence = made.evidence(tmp_path)
    (row,) = evidence.operators.rows  # as the window with shapes, which a scene does not have, would tell of them
    shown = replace(evidence.operators, rows=(replace(row, shapes=("[[1,512],[512,512]]",)),))
    vars(evidence)["operators"] = shown
    (finding,) = HalfInference().check(evidence)
    assert finding.gain.likely == pytest.approx(10 / (0.8 + 9.2 / 2 + 48 * 0.015), rel=0.02)


def test_processor_without_bfloat16_is_left_alone(scene: Any, tmp_path: Path) -> None:
    assert found(multiplying(scene, flags=("avx512f",)), tmp_path, "half-inference") is None


@pytest.mark.parametrize(("product", "proposed"), [(0.4, True), (1.9, False)])
def test_processor_that_is_slower_in_bfloat16_is_left_alone(
    product: float, proposed: bool, scene: Any, tmp_path: Path
) -> None:
    made = multiplying(scene)
    made.record.environment.rates = {"bfloat16": {"product": product, "convolution": 1.0}}
    assert (found(made, tmp_path, "half-inference") is not None) is proposed


def test_a_gpus_weights_are_converted_once_and_not_cast_in_each_step(scene: Any, tmp_path: Path) -> None:
    made = busy_gpu(scene, ("ampere_sgemm_32x32_sliced1x4_tn", 1.0))
    made.record.call_sites = [each for each in made.record.call_sites if each.kind != "backward"]
    made.record.optimizers, made.record.models[0].training = [], False
    made.record.models[0].parameters, made.record.models[0].output = 6_000_000_000, "tensor"
    finding = found(made, tmp_path, "half-inference")
    assert finding is not None and finding.parameters["dtype"] == "bfloat16" and finding.gain.likely > 1.5
    assert found(made, tmp_path, "amp-autocast") is None  # reading the weights is all that such a step does
    made.record.device.capability, made.record.device.bf16 = [7, 5], False
    older = found(made, tmp_path, "half-inference")
    assert older is not None and older.parameters["dtype"] == "float16"
    made.record.device.capability = [6, 1]
    assert found(made, tmp_path, "half-inference") is None


def test_weights_that_train_stay_in_float32(scene: Any, tmp_path: Path) -> None:
    made = multiplying(scene)
    made.record.optimizers = scene(1.0).record.optimizers
    assert found(made, tmp_path, "half-inference") is None
