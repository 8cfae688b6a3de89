"""What gradients cost that are dropped, by the nodes of the backward that make them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advisor.edit import Edit, Sources
from advisor.harness import layout
from advisor.harness.layout import DiscardedGradients as Record
from advisor.harness.layout import GradientRun, OptimizerInfo, Site
from advisor.rule import Advice, Finding
from rules.discarded_gradients import DiscardedGradients

NODE = "autograd::engine::evaluate_function: "
AMID = [[(2, "weights"), (1, "used")]]
SCRIPT = """
import torch

judge = Judge()
for real in loader:
    verdict = judge(maker(real))
    loss = verdict.mean()
    loss.backward()
    step(loss.item())
"""


def node(made: Any, name: str, start: float, end: float) -> None:
    made.operator(NODE + name, start, end)


def done(made: Any, at: float) -> None:
    node(made, "torch::autograd::AccumulateGrad", at, at + 0.1)


def found(
    made: Any, folder: Path, passes: list[list[tuple[int, str]]], text: str = SCRIPT, **record: Any
) -> Finding | None:
    script = folder / "train.py"
    script.write_text(text)
    made.record.script = str(script)
    made.record.call_sites = []
    made.record.accumulated = [[GradientRun(*each) for each in one] for one in passes]
    lines = text.splitlines()
    site = Site(str(script), lines.index("    loss.backward()") + 1)
    made_at = Site(str(script), lines.index("judge = Judge()") + 1) if "judge = Judge()" in lines else None
    model = Record("Judge", made_at, tensors=2, bytes=4000, held=True, site=site)
    for name, value in record.items():
        setattr(model, name, value)
    made.record.discarded = [model]
    return next(iter(DiscardedGradients().check(made.evidence(folder))), None)


def convolutions(made: Any) -> None:
    """Steps of 40 ms: the judge's two convolutions of 10 ms each, and then the maker's."""
    for start in (8.0, 18.4, 28.8):
        node(made, "ConvolutionBackward0", start, start + 10.0)
        done(made, start + 10.0)


def test_half_of_a_convolutions_node_is_its_weights(scene: Any, tmp_path: Path) -> None:
    made = scene(40.0)
    convolutions(made)
    finding = found(made, tmp_path, AMID)
    assert finding is not None and finding.site is not None and finding.site.line == 8
    assert finding.evidence["discarded_s"] == pytest.approx(2 * 0.0051)
    fix = DiscardedGradients().fix(finding, Sources())
    assert isinstance(fix, Edit)
    (text,) = fix.texts.values()
    before, after = text.index("judge.requires_grad_(False)"), text.index("judge.requires_grad_(True)")
    assert before < text.index("verdict =") < text.index("loss.backward()") < after < text.index("step(")


def test_of_a_products_node_the_later_product_is(scene: Any, tmp_path: Path) -> None:
    made = scene(40.0)
    node(made, "AddmmBackward0", 8.0, 20.0)
    made.operator("aten::mm", 8.5, 12.0)
    made.operator("aten::mm", 12.5, 19.0)
    done(made, 20.0)  # the bias's
    node(made, "TBackward0", 20.2, 20.4)
    done(made, 20.5)
    node(made, "AddmmBackward0", 21.0, 30.0)
    made.operator("aten::mm", 21.0, 29.0)
    done(made, 30.0)
    finding = found(made, tmp_path, AMID)
    assert finding is not None
    assert finding.evidence["discarded_s"] == pytest.approx(0.0075 + 0.0001 + 0.0002 + 0.0001)


def test_of_a_weight_that_is_used_several_times_each_use_counts(scene: Any, tmp_path: Path) -> None:
    made = scene(40.0)
    made.each("user_annotation", layout.BACKWARD_RANGE, 7.5, 31.0)
    for use, start in enumerate((8.0, 14.0, 20.0)):
        made.operator(f"{NODE}BmmBackward0", start, start + 5.0, **{"Sequence number": 2 - use})
        made.operator("aten::bmm", start + 0.5, start + 2.0)  # its input's
        made.operator("aten::bmm", start + 2.0, start + 4.5)
    done(made, 26.0)
    done(made, 28.0)
    made.record.backward_nodes = [[GradientRun(3, "weights")]]
    finding = found(made, tmp_path, [[(1, "weights"), (1, "used")]])
    assert finding is not None and finding.evidence["discarded_s"] == pytest.approx(3 * 0.003 + 0.0001)


def test_of_a_branch_all_is_for_nothing(scene: Any, tmp_path: Path) -> None:
    made = scene(40.0)
    convolutions(made)
    finding = found(made, tmp_path, [[(1, "used"), (2, "branch")]], branch=True)
    assert finding is not None and finding.evidence["discarded_s"] == pytest.approx(0.0208)
    first = found(made, tmp_path, [[(2, "branch"), (1, "used")]], branch=True)
    assert first is not None and first.evidence["discarded_s"] == pytest.approx(0.0205)
    fix = DiscardedGradients().fix(finding, Sources())
    assert isinstance(fix, Advice) and fix.text.startswith("Detach what Judge hands")


def test_a_model_that_nobody_trains_is_frozen_for_good(scene: Any, tmp_path: Path) -> None:
    made = scene(40.0)
    convolutions(made)
    text = SCRIPT + "image.requires_grad_()\n"
    finding = found(made, tmp_path, AMID, text, held=False)
    assert finding is not None
    fix = DiscardedGradients().fix(finding, Sources())
    assert isinstance(fix, Edit)
    assert "judge = Judge()\njudge.requires_grad_(False)\n" in next(iter(fix.texts.values()))
    clipped = found(made, tmp_path, AMID, SCRIPT + "clip_grad_norm_(student.parameters(), 1)\n", held=False)
    assert clipped is not None and isinstance(DiscardedGradients().fix(clipped, Sources()), Edit)
    said = found(made, tmp_path, AMID, SCRIPT + "judge.requires_grad_(True)\n", held=False)
    assert said is not None and isinstance(DiscardedGradients().fix(said, Sources()), Advice)


def test_an_optimizer_of_the_scripts_own_may_use_them(scene: Any, tmp_path: Path) -> None:
    made = scene(40.0)
    convolutions(made)
    own = tmp_path / "sam.py"
    own.write_text("class SAM(Optimizer):\n    def first_step(self):\n        self.climb([p.grad for p in self.all])\n")
    made.record.modules = {str(own): "sam"}
    assert found(made, tmp_path, AMID) is not None
    made.record.optimizers.append(OptimizerInfo("SAM"))
    assert found(made, tmp_path, AMID) is None


def test_a_model_is_known_by_its_name_where_its_making_says_none(scene: Any, tmp_path: Path) -> None:
    made = scene(40.0)
    convolutions(made)
    text = SCRIPT.replace("judge = Judge()", "judge = load(*paths)")
    finding = found(made, tmp_path, AMID, text, held=False, name="judge", file=str(tmp_path / "train.py"))
    assert finding is not None
    fix = DiscardedGradients().fix(finding, Sources())
    assert isinstance(fix, Edit)
    assert "judge = load(*paths)\njudge.requires_grad_(False)\n" in next(iter(fix.texts.values()))
    twice = found(made, tmp_path, AMID, text + "judge = other\n", held=False, name="judge", file="")
    assert twice is not None and isinstance(DiscardedGradients().fix(twice, Sources()), Advice)


@pytest.mark.parametrize("line", ["norm = judge.weight.grad.norm()\n", "g = [p.grad for p in judge.parameters()]\n"])
def test_a_script_that_reads_gradients_is_left_alone(line: str, scene: Any, tmp_path: Path) -> None:
    made = scene(40.0)
    convolutions(made)
    assert found(made, tmp_path, AMID, SCRIPT + line) is None


def test_a_line_that_was_seen_to_read_others_only_is_no_reason(scene: Any, tmp_path: Path) -> None:
    made = scene(40.0)
    convolutions(made)
    text = SCRIPT + "norm = student.weight.grad.norm()\n"
    line = len(text.splitlines())
    for seen, told in ((line, True), (line - 1, False)):
        made.record.gradients_read = [Site(str(tmp_path / "train.py"), seen)]
        assert (found(made, tmp_path, AMID, text) is not None) is told


@pytest.mark.parametrize("passes", [[[(1, "weights"), (1, "used")]], [[(4, "used")]], []])
def test_what_cannot_be_told_is_not_reported(passes: list[list[tuple[int, str]]], scene: Any, tmp_path: Path) -> None:
    made = scene(40.0)
    convolutions(made)
    assert found(made, tmp_path, passes) is None


def test_a_saving_that_is_small_is_not_reported(scene: Any, tmp_path: Path) -> None:
    made = scene(40.0)
    node(made, "NativeLayerNormBackward0", 8.0, 20.0)  # most of which is its input's
    done(made, 20.0)
    node(made, "ConvolutionBackward0", 21.0, 30.0)
    done(made, 30.0)
    assert found(made, tmp_path, [[(1, "weights"), (1, "used")]]) is None


ATTACK = SCRIPT.replace("    loss.backward()", "    image.requires_grad_()\n    loss.backward()\n    seen(image.grad)")


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        pytest.param(ATTACK, Edit, id="an attack"),
        pytest.param(ATTACK + "fit(judge, torch.optim.SGD)\n", Advice, id="and a training"),
        pytest.param(ATTACK + "other.backward()\n", Advice, id="and another backward"),
        pytest.param(ATTACK + "judge.register_full_backward_hook(keep)\n", Advice, id="and a hook"),
        pytest.param(SCRIPT, None, id="a benchmark"),
        pytest.param(ATTACK + "norms = [w.grad for w in judge.parameters()]\n", None, id="and what the weights get"),
    ],
)
def test_without_an_optimizer_the_gradients_of_something_else_are_read(
    scene: Any, tmp_path: Path, text: str, fix: type | None
) -> None:
    made = scene(40.0)
    made.record.optimizers = []
    convolutions(made)
    text = text.replace("opt.step()", "pass")
    finding = found(made, tmp_path, AMID, text, held=False)
    assert (finding is None) == (fix is None)
    if finding is not None and fix is not None:
        assert isinstance(DiscardedGradients().fix(finding, Sources()), fix)


def test_gradients_that_another_file_reads_are_read(scene: Any, tmp_path: Path) -> None:
    made = scene(40.0)
    convolutions(made)
    other = tmp_path / "pcgrad.py"
    other.write_text("class PCGrad:\n    def merge(self):\n        return [p.grad.clone() for p in self.all]\n")
    made.record.modules = {str(other): "pcgrad"}
    assert found(made, tmp_path, AMID) is None
