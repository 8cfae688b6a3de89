"""Breaks of compiled graphs and their recompilation, by what Dynamo's books and the trace of a step say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from advisor.edit import Edit, Sources
from advisor.evidence.fusion import graphs_expected, graphs_per_step
from advisor.harness.layout import GraphBreak, Recompiled, Site
from advisor.harness.timing import Interval, summarize
from advisor.rule import Advice, Finding, Gain
from advisor.rulebook import load_rules

SCRIPT = "/nowhere/train.py"
ITEM = GraphBreak("Unsupported Tensor.item() call with capture_scalar_outputs=False", Site(SCRIPT, 21), True, 1)
SIZES = [
    "tensor 'x' size mismatch at index 1. expected 28, actual 56",
    "tensor 'x' size mismatch at index 1. expected 56",
]


def found(name: str, made: Any, folder: Path) -> Finding | None:
    (rule,) = [each for each in load_rules() if each.id == name]
    findings = list(rule.check(made.evidence(folder)))
    assert len(findings) <= 1
    return findings[0] if findings else None


def compiled(scene: Any, forward_ms: float = 6.0, **options: str) -> Any:
    """A step of 10 ms, 8 of them small operators, one after the other; the script asked for a compiled model."""
    made = scene(10.0)
    made.record.models[0].compiled = True
    made.call("torch.compile", 3, per_step=0.0, target="Net", name="", options=options)
    made.record.call_sites[-1].calls = 1
    made.each("user_annotation", "advisor.forward", 0.0, forward_ms)
    for number in range(800):
        made.operator("aten::mul", number * 0.01, number * 0.01 + 0.007)
    return made


def graphs(made: Any, number: int) -> None:
    for index in range(number):
        made.each("user_annotation", f"## Call CompiledFxGraph f{index} ##", 8.0 + index * 0.1, 8.05 + index * 0.1)


def test_function_that_is_given_up_runs_eagerly(scene: Any, tmp_path: Path) -> None:
    made = compiled(scene)
    made.record.graph_breaks = [ITEM]
    finding = found("compile-graph-breaks", made, tmp_path)
    assert finding is not None and finding.site == ITEM.site
    # Half of 8 ms; the range of a prior begins at no gain at all.
    assert 1.3 < finding.gain.likely < 2.0 and finding.gain.low == pytest.approx(1.0, abs=0.05)


def test_function_given_up_whose_pieces_run_costs_both(scene: Any, tmp_path: Path) -> None:
    def finding(pieces: int) -> Finding:
        made = compiled(scene)
        made.record.graph_breaks = [ITEM, GraphBreak("generic_jump TensorVariable()", Site(SCRIPT, 9), True, 3)]
        graphs(made, pieces)
        said = found("compile-graph-breaks", made, tmp_path)
        assert said is not None and said.site == ITEM.site
        return said

    alone, pieces = finding(0), finding(12)
    assert "12 graphs of what it calls" in pieces.summary and "graphs" not in alone.summary
    # Both halves of 8 ms go; of the pieces also what each graph more costs.
    assert pieces.gain.likely > alone.gain.likely


def test_eager_model_beside_a_compiled_function_is_not_the_functions(scene: Any, tmp_path: Path) -> None:
    made = compiled(scene, forward_ms=2.0)
    made.record.models[0].compiled = False
    made.record.graph_breaks = [GraphBreak(ITEM.reason, Site(SCRIPT, 21, function="augment"), True, 1)]
    assert found("compile-graph-breaks", made, tmp_path) is None
    made.record.models[0].compiled = True
    assert found("compile-graph-breaks", made, tmp_path) is not None


def test_break_of_the_first_call_only_is_not_reported(scene: Any, tmp_path: Path) -> None:
    made = compiled(scene)
    made.record.graph_breaks = [GraphBreak("generic_jump TensorVariable()", Site(SCRIPT, 21), False, 1)]
    graphs(made, 2)  # one forward, one backward
    assert found("compile-graph-breaks", made, tmp_path) is None


def test_graphs_that_really_run_are_counted(scene: Any, tmp_path: Path) -> None:
    made = scene(2.0)
    made.operator("aten::mm", 0.0, 1.5)
    made.call("Module.compile", 3, per_step=0.0, target="Net", name="", options={})
    made.record.call_sites[-1].calls = 1
    made.record.graph_breaks = [GraphBreak("generic_jump TensorVariable()", Site(SCRIPT, 30), False, 4)]
    graphs_of = [f"## Call CompiledFxGraph f{index} ##" for index in range(10)]
    for index, name in enumerate(graphs_of):
        made.each("user_annotation", name, index * 0.15, index * 0.15 + 0.1)
    finding = found("compile-graph-breaks", made, tmp_path)
    assert finding is not None and finding.evidence["graphs_per_step"] == 10
    assert finding.gain.likely == pytest.approx(2.0 / (2.0 - 4 * 0.11), rel=0.05)


@pytest.mark.parametrize("whole", [False, True], ids=["cell of an eager model", "model of like layers"])
def test_graph_that_runs_often_is_a_piece_of_a_whole_model_only(whole: bool, scene: Any, tmp_path: Path) -> None:
    made = scene(12.0)
    made.record.models[0].compiled = whole
    made.operator("aten::mm", 0.0, 1.5)
    made.call("torch.compile", 3, per_step=0.0, target="Cell", name="", options={})
    made.record.call_sites[-1].calls = 1
    made.record.graph_breaks = [GraphBreak("generic_jump TensorVariable()", Site(SCRIPT, 30), False, 1)]
    for call in range(50):
        for index, name in enumerate(("forward", "backward")):
            begin = call * 0.2 + index * 0.1
            # The first call has no derivative by its input: another graph.
            name += "_first" if not call else ""
            made.each("user_annotation", f"## Call CompiledFxGraph f{name} ##", begin, begin + 0.05)
    finding, evidence = found("compile-graph-breaks", made, tmp_path), made.evidence(tmp_path)
    assert (finding is not None) == whole
    assert graphs_per_step(evidence) == 100 and graphs_expected(evidence) == (2 if whole else 98)


def test_break_that_the_script_asks_for_is_left(scene: Any, tmp_path: Path) -> None:
    made = compiled(scene)
    reason = "Skip calling `torch.compiler.disable()`d function"
    made.record.graph_breaks = [GraphBreak(reason, Site(SCRIPT, 21), True, 1)]
    assert found("compile-graph-breaks", made, tmp_path) is None


def test_sizes_that_change_make_the_call_dynamic(scene: Any, tmp_path: Path) -> None:
    made = compiled(scene, dynamic="False")
    made.record.recompiled = [Recompiled(Site(SCRIPT, 17, function="forward"), 8, SIZES, given_up=True)]
    finding = found("compile-recompiles", made, tmp_path)
    assert finding is not None and finding.site is not None and finding.site.line == 3
    assert finding.parameters["static"] and finding.gain.likely > 1.3


def test_two_sizes_are_compiled_once_each(scene: Any, tmp_path: Path) -> None:
    made = compiled(scene, dynamic="False")
    made.record.recompiled = [Recompiled(Site(SCRIPT, 17, function="forward"), 2, SIZES, given_up=False)]
    assert found("compile-recompiles", made, tmp_path) is None


def test_limit_that_most_steps_do_not_feel_is_not_reported(scene: Any, tmp_path: Path) -> None:
    made = compiled(scene, dynamic="False")
    made.record.recompiled = [Recompiled(Site(SCRIPT, 17, function="forward"), 8, SIZES, given_up=True)]
    graphs(made, 2)
    assert found("compile-recompiles", made, tmp_path) is None


def test_guards_of_the_harness_are_no_reason(scene: Any, tmp_path: Path) -> None:
    made = compiled(scene)
    reasons = ["len(L['self']._forward_pre_hooks)", "___check_obj_id(L['self'], 1234)"]
    made.record.recompiled = [Recompiled(Site(SCRIPT, 17, function="forward"), 8, reasons, given_up=True)]
    assert found("compile-recompiles", made, tmp_path) is None


def test_number_that_changes_is_named(scene: Any, tmp_path: Path) -> None:
    made = compiled(scene)
    made.record.recompiled = [Recompiled(Site(SCRIPT, 17), 8, ["self.k == 0", "self.k == 1"], given_up=True)]
    finding = found("compile-recompiles", made, tmp_path)
    assert finding is not None and finding.site is not None and finding.site.line == 17
    (rule,) = [each for each in load_rules() if each.id == "compile-recompiles"]
    fix = rule.fix(finding, Sources())
    assert isinstance(fix, Advice) and "self.k" in fix.text


def test_number_of_items_that_changes_is_named(scene: Any, tmp_path: Path) -> None:
    made = compiled(scene)
    made.record.recompiled = [Recompiled(Site(SCRIPT, 17), 8, ["len(crops) == 2", "len(crops) == 3"], given_up=True)]
    finding = found("compile-recompiles", made, tmp_path)
    assert finding is not None and finding.parameters["number"] == "crops" and finding.parameters["cause"] == "length"


def test_layers_unfrozen_stage_by_stage_are_compiled_stage_by_stage(scene: Any, tmp_path: Path) -> None:
    made = compiled(scene)
    reason = "tensor 'self._modules['blocks']._modules['{}']._parameters['bias']' requires_grad mismatch. expected …"
    reasons = [reason.format(number) for number in range(8)]
    made.record.recompiled = [Recompiled(Site(SCRIPT, 17), 8, reasons, given_up=True)]
    finding = found("compile-recompiles", made, tmp_path)
    assert finding is not None and finding.parameters["cause"] == "grad"
    (rule,) = [each for each in load_rules() if each.id == "compile-recompiles"]
    fix = rule.fix(finding, Sources())
    assert isinstance(fix, Advice) and "torch.compiler.reset()" in fix.text


def forgetting(made: Any, resets: int = 4, compiles: int = 4, seconds: float = 0.3) -> Any:
    """Sixteen steps of 10 ms, then what was compiled is thrown away, and the next step waits for it."""
    clean = [Interval(0.01, frozenset(), 0.0, 32)] * 15
    summarize(
        made.record.timing, [*clean, Interval(0.01 + seconds, frozenset({"compilation"}), 0.0, 32)] * compiles, []
    )
    made.call("dynamo.reset", 9, per_step=0.0)
    made.record.call_sites[-1].calls = resets
    return made


def test_what_is_thrown_away_is_compiled_again(scene: Any, tmp_path: Path) -> None:
    finding = found("compile-recompiles", forgetting(compiled(scene)), tmp_path)
    assert finding is not None and finding.site is not None and finding.site.line == 9
    assert finding.evidence["compilation_share"] == pytest.approx(0.3 / 0.46)
    assert finding.gain.likely == pytest.approx(0.46 / 0.16) and finding.gain.high <= 2 * finding.gain.low


def test_a_number_that_changes_once_an_epoch_is_compiled_for_each(scene: Any, tmp_path: Path) -> None:
    made = forgetting(compiled(scene), resets=0)
    made.record.call_sites.pop()
    reasons = [f"self.epoch == {number}" for number in range(4)]
    made.record.recompiled = [Recompiled(Site(SCRIPT, 17, function="forward"), 5, reasons)]
    finding = found("compile-recompiles", made, tmp_path)
    assert (
        finding is not None
        and finding.parameters["number"] == "self.epoch"
        and finding.site == Site(SCRIPT, 17, function="forward")
    )
    assert finding.gain.likely == pytest.approx(0.46 / (0.16 + 0.3 / 8))
    made.record.recompiled[0].graphs = 3  # two values may be all that there are
    assert found("compile-recompiles", made, tmp_path) is None


@pytest.mark.parametrize("seldom", [{"resets": 1}, {"compiles": 2}, {"seconds": 0.004}])
def test_a_reset_that_costs_little_is_not_reported(seldom: Any, scene: Any, tmp_path: Path) -> None:
    assert found("compile-recompiles", forgetting(compiled(scene), **seldom), tmp_path) is None


def test_compiled_step_of_an_optimizer_is_not_the_model(scene: Any, tmp_path: Path) -> None:
    made = compiled(scene)
    made.record.models[0].compiled = False
    site = Site("/usr/lib/python3/site-packages/torch/optim/sgd.py", 106, function="step")
    made.record.recompiled = [Recompiled(site, 8, ["self.lr == 0.1", "self.lr == 0.09"], given_up=True)]
    assert found("compile-recompiles", made, tmp_path) is None


NETS = """
import torch
from torch import nn

class Breaks(nn.Module):
    def forward(self, x):
        y = x * 2
        if y.sum() > 0:
            y = y + 1
        return y

class Counts(nn.Module):
    def forward(self, x, n):
        return x[:n] * 2

breaks = torch.compile(Breaks(), backend="eager")
counts = torch.compile(Counts(), backend="eager", dynamic=False)
for i in range(12):
    breaks(torch.randn(4))
    counts(torch.randn(30), i + 2)
import dataclasses, json
from advisor.harness import graphs
print(json.dumps([[dataclasses.asdict(e) for e in part] for part in (graphs.graph_breaks(), graphs.recompiled())]))
"""


def test_dynamos_books_are_read(tmp_path: Path, repo: Path) -> None:
    script = tmp_path / "nets.py"
    script.write_text(NETS)
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(repo)},
    )
    breaks, again = json.loads(done.stdout.strip().splitlines()[-1])
    assert [(each["site"]["line"], each["skipped"]) for each in breaks] == [(8, False)]
    (counted,) = [each for each in again if each["given_up"]]
    assert counted["graphs"] == 8 and counted["site"]["line"] == 13
    assert counted["guarded"] is None or counted["guarded"]["line"] in (13, 14)
    assert counted["reasons"][0] in ("n == 2", "L['n'] == 2")


def test_dynamic_is_edited_where_it_is_written(tmp_path: Path) -> None:
    (rule,) = [each for each in load_rules() if each.id == "compile-recompiles"]
    script = tmp_path / "train.py"
    script.write_text("import torch\nOPTIONS = dict(dynamic=False)\nnet = torch.compile(Net(), **OPTIONS)\n")
    site = Site(str(script), 3)
    parameters = {"cause": "size", "static": True, "compile": (site,)}
    finding = Finding(rule.id, rule.title, "", Gain(1.0, 1.5, 1.6), {}, site, parameters)
    fix = rule.fix(finding, Sources())
    assert isinstance(fix, Edit) and "dict(dynamic=True)" in fix.texts[str(script)]
