"""Activations that fill the memory at a small batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from advisor.rules.activation_checkpointing import ActivationCheckpointing

from advisor.edit import Sources
from advisor.harness.layout import Site
from advisor.launch import Command, measure
from advisor.rule import Advice, Finding, Gain
from advisor.run import Run
from tests.conftest import PYTHON, QUICK

GIB = 1 << 30


def full(scene: Any, peak: int = 36 * GIB, weights: int = 3 * GIB, busy_ms: float = 6.0) -> Any:
    """A training whose GPU computes for 6 of 10 ms, with 36 of 40 GiB taken, 12 of them by parameters and the like."""
    made = scene(10.0, "NVIDIA A100-SXM4-40GB")
    made.loader(0.0, 1.0, 1.0, num_workers=2).batch_size = 4
    model = made.record.models[0]
    model.parameter_bytes, model.blocks, model.own = weights, {"Head": 1, "Layer": 12}, {"Layer": "/nowhere/net.py"}
    made.record.memory.peak_allocated, made.record.memory.capacity = peak, 40 * GIB
    made.operator("aten::mm", 0.1, 0.3)
    made.each("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 1.0, 1.2)
    made.kernel("gemm", 0.3, 0.3 + busy_ms, launched=0.15)
    return made


def found(made: Any, folder: Path) -> Finding | None:
    findings = list(ActivationCheckpointing().check(made.evidence(folder)))
    return findings[0] if findings else None


def test_activations_that_leave_no_room_are_found(scene: Any, tmp_path: Path) -> None:
    finding = found(full(scene), tmp_path)
    assert finding is not None and finding.gain.likely == 1.0, "it saves memory, not time"
    assert finding.evidence["activation_bytes"] == 24 * GIB
    assert "90% of the GPU's memory is taken with 4 samples a step, 67% of that by activations" in finding.summary
    fix = ActivationCheckpointing().fix(finding, Sources())
    assert isinstance(fix, Advice) and "each of the 12 Layer blocks" in fix.text


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param({"peak": 20 * GIB}, id="room-left"),
        pytest.param({"weights": 8 * GIB}, id="parameters-take-it"),
        pytest.param({"busy_ms": 9.5}, id="gpu-busy"),
    ],
)
def test_left_alone(facts: dict[str, Any], scene: Any, tmp_path: Path) -> None:
    assert found(full(scene, **facts), tmp_path) is None


def test_a_few_samples_that_fill_all_of_it_are_told_of(scene: Any, tmp_path: Path) -> None:
    made = full(scene, peak=38 * GIB, busy_ms=9.5)
    finding = found(made, tmp_path)
    assert finding is not None and finding.summary.endswith("of the step: a longer sample has no room.")
    assert "95% of the GPU's memory is taken with 4 samples a step" in finding.summary
    made.record.loaders[0].batch_size = 64
    assert found(made, tmp_path) is None


def test_left_alone_where_it_is_done_already(scene: Any, tmp_path: Path) -> None:
    made = full(scene)
    made.record.models[0].checkpointing = True
    assert found(made, tmp_path) is None
    made = full(scene)
    own = tmp_path / "net.py"
    own.write_text("from torch.utils import checkpoint\n")
    made.record.models[0].own = {"Layer": str(own)}
    assert found(made, tmp_path) is None


def test_a_class_of_torchs_that_repeats_is_a_block_too(scene: Any, tmp_path: Path) -> None:
    made = full(scene)
    model = made.record.models[0]
    model.blocks, model.own = {"Head": 1, "TransformerEncoderLayer": 12}, {"Head": "/nowhere/net.py"}
    finding = found(made, tmp_path)
    assert finding is not None and finding.parameters["block"] == "TransformerEncoderLayer"


def test_left_alone_without_blocks_and_on_a_cpu(scene: Any, tmp_path: Path) -> None:
    made = full(scene)
    made.record.models[0].blocks = {"Net": 1, "Head": 1}
    assert found(made, tmp_path) is None
    made = scene(10.0)
    made.record.models[0].blocks = {"Layer": 12}
    made.operator("aten::mm", 0.1, 9.0)
    assert found(made, tmp_path) is None


def test_a_file_that_cannot_say_how_is_left_alone(tmp_path: Path) -> None:
    settings, script = tmp_path / "args.json", tmp_path / "train.py"
    settings.write_text('{"output_dir": "out", "gradient_checkpointing": false}\n')
    script.write_text("(args,) = parser.parse_json_file('args.json')\n")
    parameters = {
        "framework": "transformers", "theirs": True, "config": (Site(str(script), 1),),
        "config_kind": "TrainingArguments", "config_values": {"gradient_checkpointing": False},
    }  # fmt: skip
    finding = Finding("activation-checkpointing", "", "", Gain(1.0, 1.0, 1.0), {}, parameters=parameters)
    fix = ActivationCheckpointing().fix(finding, Sources(settings=[str(settings)]))
    assert isinstance(fix, Advice) and fix.why
    assert 'gradient_checkpointing_kwargs={"use_reentrant": False}' in fix.text


SCRIPT = """
import torch
from torch import nn

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    def forward(self, x):
        return x + self.inner(x)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer() for _ in range(3)])
        self.gradient_checkpointing = FLAG

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
while True:
    optimizer.zero_grad()
    net(torch.randn(4, 8)).mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("flag", [True, pytest.param(False, marks=pytest.mark.sessions)])
def test_the_harness_counts_blocks_and_asks_the_model(flag: bool, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.replace("FLAG", str(flag)))
    measure(Command(str(path), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK, timeout=120)
    (model,) = Run.load(tmp_path / "run").record.models
    assert model.blocks == {"Layer": 3}, "containers are none, nor is the model itself"
    assert model.checkpointing is flag
