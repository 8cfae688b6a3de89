"""A compiled model that the steps never call."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from advisor.edit import Edit, Sources
from advisor.harness.layout import Site
from advisor.rule import Advice, Finding
from rules.compile_conflicts import CompileConflicts

RULE = CompileConflicts()
PRELUDE = "import torch\n\nmodel = Net()\n"


def asked(scene: Any, folder: Path, text: str, **options: str) -> Any:
    """A step of 10 ms, 8 of them small operators, of a script whose fourth line calls torch.compile."""
    script = folder / "train.py"
    script.write_text(PRELUDE + textwrap.dedent(text))
    made = scene(10.0)
    made.call("torch.compile", 4, per_step=0.0, target="Net", name="", options=options)
    made.record.call_sites[-1].site = Site(str(script), 4)
    made.each("user_annotation", "advisor.forward", 0.0, 6.0)
    for number in range(800):
        made.operator("aten::mul", number * 0.01, number * 0.01 + 0.007)
    return made


def found(made: Any, folder: Path) -> Finding | None:
    findings = list(RULE.check(made.evidence(folder)))
    assert len(findings) <= 1
    return findings[0] if findings else None


DROPPED = "torch.compile(model)\nfor x in xs:\n    model(x).backward()\n"


def test_result_that_is_dropped_is_found_and_made_to_count(scene: Any, tmp_path: Path) -> None:
    finding = found(asked(scene, tmp_path, DROPPED), tmp_path)
    assert finding is not None and finding.site is not None and finding.site.line == 4
    assert finding.gain.low <= finding.gain.likely <= finding.gain.high <= 2.000001 * finding.gain.low
    edit = RULE.fix(finding, Sources())
    assert isinstance(edit, Edit)
    (text,) = edit.texts.values()
    assert "\nmodel.compile()\n" in text and "torch.compile" not in text


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        pytest.param("model = torch.compile(model)\nmodel.loss(x)\n", True, id="a method of the wrapper"),
        pytest.param("fast = torch.compile(model)\nmodel(x)\n", True, id="never used again"),
        pytest.param("fast = torch.compile(model)\nmodel(x)\nfast(x)\n", False, id="called later"),
        pytest.param("fast = torch.compile(model)\nmodel(x)\nexport(net=fast)\n", False, id="handed on later"),
        pytest.param("fast = torch.compile(Net(c))\nfast.loss(x)\nevaluate(fast)\n", True, id="it has no other name"),
        pytest.param("fast = torch.compile(model=model)\nmodel(x)\nfast(x)\n", False, id="called later, by keyword"),
        pytest.param("fast: Module = torch.compile(model)\nmodel(x)\nfast(x)\n", False, id="called later, annotated"),
    ],
)
def test_what_becomes_of_the_wrapper_decides(text: str, reported: bool, scene: Any, tmp_path: Path) -> None:
    assert (found(asked(scene, tmp_path, text), tmp_path) is not None) == reported


def test_model_that_was_compiled_is_left(scene: Any, tmp_path: Path) -> None:
    made = asked(scene, tmp_path, DROPPED)
    made.record.compiles = 1
    assert found(made, tmp_path) is None


def test_model_that_no_step_calls_is_left(scene: Any, tmp_path: Path) -> None:
    made = asked(scene, tmp_path, DROPPED)
    made.record.call_sites[-1].details["target"] = "Teacher"
    assert found(made, tmp_path) is None


def test_wrapper_that_is_called_and_given_up_is_another_rules(scene: Any, tmp_path: Path) -> None:
    made = asked(scene, tmp_path, "model = torch.compile(model)\nmodel(x)\n")
    made.record.models[0].compiled = True
    assert found(made, tmp_path) is None


def test_what_was_switched_off_on_purpose_is_left(scene: Any, tmp_path: Path) -> None:
    assert found(asked(scene, tmp_path, DROPPED, disable="True"), tmp_path) is None
    made = asked(scene, tmp_path, DROPPED)
    made.record.environment.variables["TORCHDYNAMO_DISABLE"] = "1"
    assert found(made, tmp_path) is None


def test_older_torch_and_scripts_that_look_into_the_wrapper_get_advice(scene: Any, tmp_path: Path) -> None:
    made = asked(scene, tmp_path, DROPPED)
    made.record.environment.torch = "2.1.2+cu121"
    finding = found(made, tmp_path)
    assert finding is not None and isinstance(RULE.fix(finding, Sources()), Advice)
    text = "model = torch.compile(model)\nmodel.loss(x)\ntorch.save(model._orig_mod.state_dict(), path)\n"
    finding = found(asked(scene, tmp_path, text), tmp_path)
    assert finding is not None
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Advice) and "_orig_mod" in fix.why


def test_model_that_cannot_be_compiled_in_place_is_to_be_wrapped(scene: Any, tmp_path: Path) -> None:
    made = asked(scene, tmp_path, DROPPED)
    made.record.models[0].compiles_in_place = False
    finding = found(made, tmp_path)
    assert finding is not None
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Advice) and "what torch.compile(model) returns" in fix.why


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("def compile(self, optimizer):\n    pass\n", id="a compile of its own"),
        pytest.param("torch.jit.trace(model, x)\n", id="traced later"),
        pytest.param("torch.onnx.export(model, x)\n", id="exported later"),
        pytest.param("writer.add_graph(model, x)\n", id="traced for TensorBoard"),
        pytest.param("model = torch.nn.DataParallel(model)\n", id="copied to several devices"),
    ],
)
def test_models_that_cannot_be_compiled_in_place_get_advice(text: str, scene: Any, tmp_path: Path) -> None:
    finding = found(asked(scene, tmp_path, DROPPED + text), tmp_path)
    assert finding is not None and isinstance(RULE.fix(finding, Sources()), Advice)


def test_comments_and_lines_stay(scene: Any, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    made = asked(scene, tmp_path, DROPPED)
    script.write_text(
        "import torch\n\n# PyTorch 2\nmodel = torch.compile(model, mode='x')  # slow at first\nmodel.loss(x)\n"
    )
    finding = found(made, tmp_path)
    assert finding is not None
    edit = RULE.fix(finding, Sources())
    assert isinstance(edit, Edit)
    wanted = "import torch\n\n# PyTorch 2\nmodel.compile(mode='x')  # slow at first\nmodel.loss(x)\n"
    assert edit.texts[str(script)] == wanted


def test_a_model_over_several_lines(scene: Any, tmp_path: Path) -> None:
    made = asked(scene, tmp_path, "net = torch.compile(\n    Net(c)\n    .to(device),\n)\nnet.loss(x)\n")
    finding = found(made, tmp_path)
    assert finding is not None and isinstance(RULE.fix(finding, Sources()), Edit)
