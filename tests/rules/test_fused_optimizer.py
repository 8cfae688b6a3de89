"""Whether the optimizer's part of the step, and what it is made of, speak for the fused one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from advisor.rules.fused_optimizer import FusedOptimizer

from advisor.edit import Edit, Sources
from advisor.evidence import Evidence
from advisor.harness import layout
from advisor.harness.layout import Site
from advisor.harness.optimizers import Optimizers
from advisor.launch import Command, measure
from advisor.rule import Advice, Finding, Gain
from tests.conftest import PYTHON, QUICK

RULE = FusedOptimizer()
A100 = "NVIDIA A100-SXM4-40GB"


def stepping(scene: Any, share: float, cls: str = "AdamW", parameters: int = 100, **facts: Any) -> Any:
    """A CPU run whose optimizer takes this share of a step of 50 ms."""
    made = scene(50.0)
    made.record.optimizers = [layout.OptimizerInfo(cls, Site("/nowhere/train.py", 5), steps=40, parameters=parameters)]
    for name, value in facts.items():
        setattr(made.record.optimizers[0], name, value)
    made.operator("aten::addmm", 0.0, 50.0 * (1 - share))
    made.each("user_annotation", f"Optimizer.step#{cls}.step", 50.0 * (1 - share), 49.99)
    made.operator("aten::lerp_", 50.0 * (1 - share) + 0.01, 49.9)
    return made


def found(made: Any, folder: Path) -> Finding | None:
    findings = list(FusedOptimizer().check(made.evidence(folder)))
    assert len(findings) <= 1
    for each in findings:
        assert each.gain.low <= each.gain.likely <= each.gain.high <= 2.000001 * each.gain.low
    return findings[0] if findings else None


def test_half_a_step_in_adam_is_found(scene: Any, tmp_path: Path) -> None:
    finding = found(stepping(scene, 0.5), tmp_path)
    assert finding is not None and finding.site == Site("/nowhere/train.py", 5)
    assert 1.5 < finding.gain.likely < 1.75  # a quarter of the optimizer's time is left: 1 / (0.5 + 0.12)
    assert finding.evidence["optimizer_step_share"] == pytest.approx(0.5, abs=0.01)


def test_parts_of_larger_weights_are_none_for_a_fused_kernel(scene: Any, tmp_path: Path) -> None:
    finding = found(stepping(scene, 0.5, sliced=2), tmp_path)
    assert finding is not None
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Advice) and "2 of the parameters are parts of larger tensors" in fix.why


@pytest.mark.parametrize(
    ("tensor", "dense"),
    [
        (torch.rand(6, 8), True),
        (torch.rand(6, 8).T, True),
        (torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last), True),
        (torch.rand(6, 1, 8)[:4], True),
        (torch.rand(6, 8)[:, :7], False),
        (torch.rand(6, 8)[::2], False),
        (torch.rand(8).expand(6, 8), False),
        (torch.rand(()), True),
        (torch.rand(6, 8).to_sparse(), True),
    ],
)
def test_whose_numbers_lie_side_by_side(tensor: torch.Tensor, dense: bool) -> None:
    optimizers, parameter = Optimizers(), torch.nn.Parameter(tensor, requires_grad=False)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.rand(3)), parameter], lr=0.1)
    optimizers.made(optimizer, None, "")
    optimizers.stepped(optimizer)
    (info,) = optimizers.records(None)
    assert (info.parameters, info.sliced) == (2, int(not dense))


def test_an_optimizer_that_costs_nothing_is_left_alone(scene: Any, tmp_path: Path) -> None:
    assert found(stepping(scene, 0.02), tmp_path) is None


def test_what_the_profiler_adds_to_many_small_calls_is_taken_off(scene: Any, tmp_path: Path) -> None:
    made = scene(50.0)
    made.record.timing.step_s, made.record.profile_step_s = 0.035, 0.050
    made.record.optimizers = [layout.OptimizerInfo("Adam", Site("/nowhere/train.py", 5), steps=40, parameters=100)]
    made.operator("aten::addmm", 0.0, 24.0)
    made.each("user_annotation", "Optimizer.step#Adam.step", 25.0, 49.99)
    for number in range(99):
        made.operator("aten::mul_", 25.0 + 0.2 * number, 25.1 + 0.2 * number)
    finding = found(made, tmp_path)
    assert finding is not None
    # 25 ms as traced; 15 ms of the step are the profiler's, nearly all of them for these 99 of 100 calls.
    assert 0.26 < finding.evidence["optimizer_step_share"] < 0.31  # type: ignore[operator]


def test_a_step_that_was_interrupted_does_not_count_for_all(scene: Any, tmp_path: Path) -> None:
    """Three steps of half a ms as timed; in the second the optimizer was not running for most of its 40 ms."""
    made = scene(50.0)
    made.record.timing.step_s = 0.0005
    made.record.optimizers = [layout.OptimizerInfo("Adam", Site("/nowhere/train.py", 5), steps=40, parameters=4)]
    made.operator("aten::addmm", 0.0, 0.2)
    for number, took in enumerate((0.2, 40.0, 0.2)):
        made._add("user_annotation", "Optimizer.step#Adam.step", number, 1.0, 1.0 + took)
    finding = found(made, tmp_path)
    assert finding is None or finding.gain.likely < 1.5


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param({"fused": True}, id="fused-already"),
        pytest.param({"cls": "LBFGS"}, id="has-no-fused-kernel"),
        pytest.param({"cls": "SGD", "parameters": 0}, id="sgd-of-large-tensors"),
    ],
)
def test_left_alone(facts: dict[str, Any], scene: Any, tmp_path: Path) -> None:
    made = stepping(scene, 0.5, **facts)
    made.record.models[0].parameters = 1_000_000
    assert found(made, tmp_path) is None


def test_sparse_gradients_leave_nothing_to_fuse(scene: Any, tmp_path: Path) -> None:
    made = stepping(scene, 0.5, cls="Adagrad")
    assert found(made, tmp_path) is not None
    made.operator("aten::embedding_sparse_backward", 1.0, 2.0)
    assert found(made, tmp_path) is None


def stepping_on_gpu(scene: Any, cls: str, **facts: Any) -> Any:
    """A GPU run that spends half of its 50 ms in the optimizer's kernels."""
    made = scene(50.0, A100)
    site = Site("/nowhere/train.py", 5)
    made.record.optimizers = [layout.OptimizerInfo(cls, site, steps=40, parameters=100, **facts)]
    made.operator("aten::empty", 0.0, 0.005)
    made.each("user_annotation", f"Optimizer.step#{cls}.step", 0.1, 1.0)
    made.kernel("gemm", 0.1, 25.0, launched=0.05)
    made.kernel("multi_tensor_apply_kernel", 25.0, 49.8, launched=0.5)
    made.each("cuda_runtime", "cudaDeviceSynchronize", 1.1, 49.9)
    return made


def test_kernels_of_a_gpu_shrink_by_their_traffic(scene: Any, tmp_path: Path) -> None:
    finding = found(stepping_on_gpu(scene, "AdamW"), tmp_path)
    assert finding is not None
    assert 1.3 < finding.gain.likely < 1.55  # half of the step shrinks to 7/20 of itself


def test_a_loop_over_parameters_on_a_gpu_is_mostly_launches(scene: Any, tmp_path: Path) -> None:
    """A hundred parameters of 10 000 numbers: 28 MB move in the fused kernel, and all but one launch go."""
    made = scene(50.0, A100)
    site = Site("/nowhere/train.py", 5)
    made.record.optimizers = [layout.OptimizerInfo("AdamW", site, steps=40, parameters=100, foreach=False)]
    made.record.models[0].parameters = 1_000_000
    made.operator("aten::empty", 0.0, 0.005)
    made.kernel("gemm", 0.1, 10.0, launched=0.05)
    made.each("user_annotation", "Optimizer.step#AdamW.step", 10.0, 49.0)
    for number in range(100):
        made.operator("aten::mul_", 10.0 + 0.39 * number, 10.3 + 0.39 * number)
        made.kernel(f"elementwise_{number}", 10.2 + 0.39 * number, 10.21 + 0.39 * number, launched=10.1 + 0.39 * number)
    finding = found(made, tmp_path)
    assert finding is not None and "100 parameters one by one" in finding.summary
    assert finding.gain.likely > 2


def test_plain_sgd_moves_as_much_fused_as_not(scene: Any, tmp_path: Path) -> None:
    assert found(stepping_on_gpu(scene, "SGD", momentum=0.9), tmp_path) is not None
    assert found(stepping_on_gpu(scene, "SGD", momentum=0.0), tmp_path) is None


def test_a_trainers_optimizer_is_named_in_its_own_terms(scene: Any, tmp_path: Path) -> None:
    finding = found(stepping(scene, 0.5, owner="transformers.trainer"), tmp_path)
    assert finding is not None
    fix = FusedOptimizer().fix(finding, Sources())
    assert isinstance(fix, Advice) and "adamw_torch_fused" in fix.text


OWN = """
import torch

torch.set_num_threads(1)


class Decoupled(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                m, v = state.get("m", torch.zeros_like(p)), state.get("v", torch.zeros_like(p))
                state["m"], state["v"] = 0.9 * m + 0.1 * p.grad, 0.99 * v + 0.01 * p.grad**2
                p.copy_(p - group["lr"] * (state["m"] / (state["v"].sqrt() + 1e-8) + 0.01 * p))


model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(24)))
optimizer = Decoupled(model.parameters(), lr=1e-4)
x = torch.randn(16, 32)
for step in range(2000):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
"""


PLAIN = """
import torch

torch.set_num_threads(1)
moments = {}


def update(parameters, lr):
    with torch.no_grad():
        for p in parameters:
            m, v = moments.get(p, (torch.zeros_like(p), torch.zeros_like(p)))
            moments[p] = m, v = 0.9 * m + 0.1 * p.grad, 0.99 * v + 0.01 * p.grad**2
            p -= lr * (m / (v.sqrt() + 1e-8) + 0.01 * p)
            p.grad = None


model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(24)))
x = torch.randn(16, 32)
for step in range(2000):
    model(x).square().mean().backward()
    update(model.parameters(), 1e-4)
"""


@pytest.mark.sessions
@pytest.mark.slow
@pytest.mark.parametrize(("text", "line"), [(OWN, 11), (PLAIN, 8)], ids=["a torch.optim.Optimizer", "a function"])
def test_an_optimizer_of_the_script_s_own_is_told_of(text: str, line: int, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(text)
    command = Command(script=str(path), python=PYTHON, environment={"OMP_NUM_THREADS": "1"}, cwd=str(tmp_path))
    evidence = Evidence.from_run(measure(command, tmp_path / "run", QUICK, timeout=240))
    (finding,) = RULE.check(evidence)
    assert finding.site is not None and finding.site.line == line
    assert finding.gain.likely > 1.2 and finding.evidence["parameters"] == 48
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Advice) and "fused=True" in fix.text


RESUMED = """\
import torch

optimizer = torch.optim.AdamW(model.parameters())
optimizer.load_state_dict(torch.load("last.pt")["optimizer"])
"""


@pytest.mark.parametrize("scaled", [True, False])
def test_checkpoint_of_before_is_told_of(scaled: bool, tmp_path: Path) -> None:
    path, helper = tmp_path / "train.py", tmp_path / "resume.py"
    path.write_text("".join(RESUMED.splitlines(keepends=True)[:3]))
    helper.write_text(RESUMED)  # the loading is in another of the script's files
    parameters = {"optimizers": (Site(str(path), 3),), "files": (str(helper),), "scaled": scaled}
    fix = RULE.fix(Finding(RULE.id, RULE.title, "", Gain(1.1, 1.2, 1.3), {}, parameters=parameters), Sources())
    if scaled:
        assert isinstance(fix, Advice) and "GradScaler" in fix.why
    else:
        assert isinstance(fix, Edit) and "A checkpoint from before" in fix.summary
