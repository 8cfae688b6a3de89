"""What an encoder's padding costs is reported where the fast path would skip it, and only there."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from advisor.edit import Edit, Sources
from advisor.evidence import Evidence
from advisor.harness.encoders import Encoders
from advisor.harness.layout import ENCODER_RANGE, Encoder, Site
from advisor.launch import Command, measure
from advisor.rule import Finding, Safety
from advisor.rulebook import load_rules
from rules.missing_inference_mode import MissingInferenceMode
from tests.conftest import PYTHON, QUICK

(RULE,) = [each for each in load_rules() if each.id == "encoder-fastpath"]


def padded(scene: Any, **facts: Any) -> Any:
    """An inference of 50 ms, 40 of them in an encoder that takes sequences first, with 80 % padding."""
    made = scene(50.0)
    made.record.optimizers, made.record.call_sites = [], []
    made.call("Module.call", 11, module="Net", grad=False)
    made.operator("aten::addmm", 0.5, 49.0)
    made.each("user_annotation", ENCODER_RANGE, 1.0, 41.0)
    known: dict[str, Any] = {
        "site": Site("/nowhere/train.py", 5), "layer_site": Site("/nowhere/train.py", 4), "layers": 2, "width": 128,
        "feedforward": 1024, "length": 64, "calls": 8, "obstacles": ["batch_first"], "padding": 0.8,
        "left_aligned": True,
    }  # fmt: skip
    made.record.encoders = [Encoder(**{**known, **facts})]
    return made


def found(made: Any, folder: Path) -> list[Finding]:
    return list(RULE.check(made.evidence(folder)))


def test_linear_layers_shrink_with_the_padding_and_attention_does_not(scene: Any, tmp_path: Path) -> None:
    (finding,) = found(padded(scene), tmp_path)
    assert finding.site is not None and finding.site.line == 4
    # Of 40 ms the linear layers' 655,360 of 688,128 FLOPs by a fifth, attention's 32,768 by two and a half.
    left = (655_360 * 0.2 + 2.5 * 32_768) / 688_128
    assert finding.gain.likely == pytest.approx(50 / (10 + 40 * left), rel=0.05)
    assert finding.gain.high <= 2 * finding.gain.low


@pytest.mark.parametrize(("sequences", "reported"), [(64, True), (640, False)])
def test_packing_takes_its_time(sequences: int, reported: bool, scene: Any, tmp_path: Path) -> None:
    made = padded(scene, sequences=sequences)
    made.each("cpu_op", "aten::addmm", 2.0, 38.0)
    findings = found(made, tmp_path)
    # Of 36 ms of products a fifth is left, the 4 others stay or are attention's, by FLOPs 36 * 2.5 / 20; packing
    # 64 x 64 x 128 numbers in two layers takes 12.6 ms.
    left = 36 * 0.2 + 4.5 + 12e-6 * sequences * 64 * 128 * 2
    assert [each.gain.likely for each in findings] == ([pytest.approx(50 / (10 + left), rel=0.05)] if reported else [])


def test_nested_tensors_are_switched_on_where_the_encoder_is_made(scene: Any, tmp_path: Path) -> None:
    (finding,) = found(padded(scene, obstacles=["enable_nested_tensor"]), tmp_path)
    assert finding.site is not None and finding.site.line == 5


@pytest.mark.parametrize(
    ("activation", "named"),
    [
        ("lambda h: F.gelu(h)", "gelu"),
        ("partial(torch.relu)", "relu"),
        ("lambda h: F.gelu(h, approximate='tanh')", ""),
        ("lambda h: F.relu6(h)", ""),
        ("plain", "gelu"),
        ("doubled", ""),
        ("methods", ""),
        ("given", ""),  # what the constructor is given
        ("ACTIVATIONS[name]", ""),  # other layers may be made there, with others
    ],
)
def test_an_activation_in_other_words_is_named(activation: str, named: str, scene: Any, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nfrom functools import partial\nfrom torch.nn import functional as F\n"
        f"layer = torch.nn.TransformerEncoderLayer(128, 4, activation={activation}, batch_first=True)\n"
        "encoder = torch.nn.TransformerEncoder(layer, 2)\n"
        "def plain(h):\n    'As the paper has it.'\n    return F.gelu(h)\n"
        "def doubled(h):\n    return F.gelu(h) * 2\n"
        "class Net:\n    def methods(h):\n        return F.gelu(h)\n"
        "def given(h):\n    return F.gelu(h)\n"
        "def build(given):\n    return Net(given)\n"
    )
    sites = {"site": Site(str(script), 5), "layer_site": Site(str(script), 4)}
    findings = found(padded(scene, obstacles=["activation"], **sites), tmp_path)
    assert [each.parameters["activation"] for each in findings] == ([named] if named else [])
    if named:
        assert findings[0].site is not None and findings[0].site.line == 4
        assert f"computes {named} without being it" in findings[0].summary


@pytest.mark.parametrize(
    "facts",
    [
        {"obstacles": []},  # it takes the fast path
        {"obstacles": ["batch_first", "norm_first"]},  # as it was trained
        {"obstacles": ["activation"]},  # one that the fast path does not have
        {"calls_with": ["autograd"]},
        {"calls_with": ["no padding mask"]},
        {"left_aligned": False},
        {"padding": 0.1},
        {"width": 16, "feedforward": 32, "length": 512},  # nearly all of it is attention
    ],
)
def test_what_the_fast_path_would_not_help_is_not_reported(scene: Any, tmp_path: Path, facts: dict[str, Any]) -> None:
    assert found(padded(scene, **facts), tmp_path) == []


def test_an_encoder_that_takes_little_of_the_step_is_not_reported(scene: Any, tmp_path: Path) -> None:
    made = padded(scene)
    made.record.timing.step_s = made.record.profile_step_s = 0.05
    made._events = [each for each in made._events if each["name"] != ENCODER_RANGE]
    made.each("user_annotation", ENCODER_RANGE, 1.0, 2.0)
    assert found(made, tmp_path) == []


def observed(padding: torch.Tensor | None, mode: Any = torch.no_grad, **layer: Any) -> Encoder:
    """What the harness records of a real encoder, made and called under its wrappers."""
    encoders = Encoders(torch)
    encoders.install()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says itself that it takes the slow path
            made = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 2, 32, **layer), 2).eval()
        encoders.on(compiled=False, detail=True)
        with mode():
            made(torch.randn(4, 6, 16) if layer.get("batch_first") else torch.randn(6, 4, 16),
                 src_key_padding_mask=padding)  # fmt: skip
    finally:
        encoders.off()
    assert not hasattr(torch.nn.TransformerEncoder.forward, "__wrapped__")
    (record,) = encoders.records()
    return record


def test_the_harness_sees_why_the_fast_path_is_not_taken() -> None:
    padding = torch.arange(6) >= torch.tensor([[2], [3], [1], [6]])
    record = observed(padding)
    assert (record.obstacles, record.calls_with, record.left_aligned) == (["batch_first"], [], True)
    assert record.padding == pytest.approx(0.5) and (record.width, record.length) == (16, 6)
    assert record.site is not None and record.layer_site is not None and record.layer_site.file == __file__
    assert observed(padding, batch_first=True).obstacles == []
    assert observed(padding, batch_first=True, norm_first=True).obstacles == ["norm_first"]
    assert observed(padding.flip(1), batch_first=True).left_aligned is False
    assert observed(padding, torch.enable_grad, batch_first=True).calls_with == ["autograd"]
    assert observed(None, batch_first=True).calls_with == ["no padding mask"]


RECORDED = """\
import torch
from torch import nn

torch.set_num_threads(1)


class Tickets(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2)

    def forward(self, x, padding):
        h = self.body(x, src_key_padding_mask=padding)
        {pooled}


net = Tickets().eval()
x, lengths = torch.randn(16, 64, 128), torch.randint(4, {longest}, (16, 1))
padding = torch.arange(64) >= lengths
padding[0] = False
for _ in range(500):
    vectors = net(x, padding).detach().numpy()
"""


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(
    ("pooled", "longest", "safety"),
    [
        ("return h[:, 0]", 16, Safety.NUMERIC),
        ("return h.mean(1)", 16, Safety.BEHAVIOUR),  # of zeros, too, where nobody records gradients
    ],
)
def test_what_gradients_keep_an_encoder_from(pooled: str, longest: int, safety: Safety, tmp_path: Path) -> None:
    """Without them it skips padding: that is more than the graph costs, and changes what is read of padding."""
    (tmp_path / "embed.py").write_text(RECORDED.format(pooled=pooled, longest=longest))
    command = Command(str(tmp_path / "embed.py"), python=PYTHON, cwd=str(tmp_path))
    evidence = Evidence.from_run(measure(command, tmp_path / "run", QUICK, timeout=120))
    (finding,) = MissingInferenceMode().check(evidence)
    assert finding.gain.likely > 1.3 and finding.safety is safety and "could be skipped" in finding.summary
    fix = MissingInferenceMode().fix(finding, Sources())
    assert isinstance(fix, Edit) and ("check that" in fix.summary) is (safety is Safety.BEHAVIOUR)
