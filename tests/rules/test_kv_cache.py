"""Generation that computes all earlier tokens again: known by ids that grow from call to call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from advisor.rules.kv_cache import KVCache, kept_columns

from advisor.edit import Edit, Sources
from advisor.evidence import Evidence
from advisor.harness.layout import Model, Site, TensorInfo
from advisor.harness.tokens import columns, grown
from advisor.rule import Advice, Finding, Gain


def info(*shape: int, dtype: str = "int64") -> TensorInfo:
    return TensorInfo(list(shape), dtype)


@pytest.mark.parametrize(
    ("before", "now", "grew"),
    [
        ([info(4, 24)], [info(4, 25)], 25),
        ([info(4, 24), info(4, 24)], [info(4, 25), info(4, 25)], 25),  # with its mask
        ([info(2, 30), info(2, 1)], [info(2, 30), info(2, 2)], 2),  # a translation
        ([info(4, 2048, dtype="float32"), info(4, 15)], [info(4, 2048, dtype="float32"), info(4, 16)], 16),  # a caption
        ([info(4, 1), info(4, 24)], [info(4, 1), info(4, 25)], 0),  # a cache, and the mask for all of it
        ([info(4), info(4, 24)], [info(4), info(4, 25)], 0),
        ([info(4, 1, 64, dtype="float32"), info(4, 24)], [info(4, 1, 64, dtype="float32"), info(4, 25)], 0),
        ([info(4, 24)], [info(4, 24)], 0),
        ([info(4, 24)], [info(3, 25)], 0),
        ([info(4, 24)], [info(4, 30)], 0),
        ([], [info(4, 25)], 0),
        ([info(4, 24, dtype="float32")], [info(4, 25, dtype="float32")], 0),
        ([info(4, 24, 8)], [info(4, 25, 8)], 0),
    ],
)
def test_ids_that_grow_by_a_column(before: list[TensorInfo], now: list[TensorInfo], grew: int) -> None:
    assert grown(before, now) == grew


def test_the_columns_of_a_call_are_those_of_its_ids() -> None:
    assert columns([info(4, 24), info(4, 300, dtype="float32"), info(7)]) == 24
    assert columns([info(2, 30), info(2, 1)]) == 1
    assert columns([info(4, 24, 8)]) == 0


@pytest.mark.parametrize(
    ("facts", "left"),
    [
        ({"calls": 40, "grown": 36, "grown_from": 41, "grown_to": 50}, 50 / 455),  # ten tokens after 41
        ({"calls": 64, "grown": 63, "grown_from": 1, "grown_to": 64}, 64 / (64 * 32.5)),  # one text
        ({"calls": 30, "grown": 30, "grown_from": 0, "grown_to": 60}, 60 / (61 * 30)),  # nothing known of its beginning
    ],
)
def test_a_text_begins_with_what_has_no_cache_yet(facts: dict[str, int], left: float) -> None:
    assert kept_columns(Model("Net", **facts)) == pytest.approx(left, rel=0.02)


def generating(scene: Any, work_ms: float = 40.0, attends: bool = True, **facts: Any) -> Any:
    """A CPU run that calls a model with four texts of 50 tokens, a token more each time."""
    made = scene(50.0)
    made.record.step_kind, made.record.optimizers, made.record.call_sites = "forward", [], []
    made.call("Module.call", 11, module="Net", grad=False)
    (model,) = made.record.models
    model.training, model.layers, model.inputs = False, {"Embedding": 1, "Linear": 8}, [info(4, 50)]
    model.calls, model.grown, model.grown_from, model.grown_to = 40, 36, 41, 50
    for name, value in facts.items():
        setattr(model, name, value)
    made.each("user_annotation", "advisor.forward", 0.0, 49.0)
    if attends:
        made.each("cpu_op", "aten::_softmax", 48.0, 48.5)
    for number in range(8):
        made.each("cpu_op", "aten::addmm", number * 6.0, number * 6.0 + work_ms / 8)
    return made


def test_generation_without_a_cache_is_told(scene: Any, tmp_path: Path) -> None:
    (finding,) = KVCache().check(generating(scene).evidence(tmp_path))
    assert finding.site is not None and finding.site.line == 11
    assert finding.evidence["columns"] == 50
    # 40 of 50 ms are products of which a ninth is left.
    assert 2.5 < finding.gain.likely < 5.5
    fix = KVCache().fix(finding, Sources())
    assert isinstance(fix, Advice) and "past_key_values" in fix.text
    (finding,) = KVCache().check(generating(scene, own={"Net": "/nowhere/train.py"}).evidence(tmp_path))
    fix = KVCache().fix(finding, Sources())
    assert isinstance(fix, Advice) and "past_key_values" not in fix.text


@pytest.mark.parametrize(
    ("text", "attends", "told"),
    [
        ("mask = torch.triu(torch.full((n, n), -inf), 1)", True, True),
        ("F.scaled_dot_product_attention(q, k, v, is_causal=True)", True, True),
        ("nn.TransformerEncoder(layer, 2)(x)", True, False),
        ("self.cell = nn.GRU(8, 8)", False, True),
        ("self.cell = nn.GRU(8, 8, bidirectional=True)", False, False),
        ("self.cell = nn.GRU(8, 8)", True, False),
    ],
)
def test_what_looks_both_ways_has_nothing_to_keep(
    text: str, attends: bool, told: bool, scene: Any, tmp_path: Path
) -> None:
    (tmp_path / "net.py").write_text(text)
    made = generating(scene, attends=attends, own={"Net": str(tmp_path / "net.py")})
    assert bool(list(KVCache().check(made.evidence(tmp_path)))) is told


@pytest.mark.parametrize(("cls", "told"), [("BertModel", False), ("GPT2LMHeadModel", True), ("BertLMHeadModel", True)])
def test_a_library_says_so_by_its_name(cls: str, told: bool, scene: Any, tmp_path: Path) -> None:
    assert bool(list(KVCache().check(generating(scene, cls=cls).evidence(tmp_path)))) is told


def with_shapes(made: Any, folder: Path) -> Evidence:
    evidence = made.evidence(folder)
    return Evidence(trace=evidence.trace, record=evidence.record, detail=evidence.trace)


def test_a_recurrence_keeps_its_state(scene: Any, tmp_path: Path) -> None:
    made = generating(scene, attends=False, own={"Net": "/nowhere/train.py"})
    # What the next token is drawn by is no attention.
    made.each("cpu_op", "aten::_softmax", 48.0, 48.5, **{"Input Dims": [[4, 50280], [], []]})
    (finding,) = KVCache().check(with_shapes(made, tmp_path))
    fix = KVCache().fix(finding, Sources())
    assert isinstance(fix, Advice) and "state of its recurrence" in fix.text
    made.each("cpu_op", "aten::_softmax", 48.6, 48.9, **{"Input Dims": [[4, 8, 50, 50], [], []]})
    (finding,) = KVCache().check(with_shapes(made, tmp_path))
    fix = KVCache().fix(finding, Sources())
    assert isinstance(fix, Advice) and "keys and values" in fix.text


@pytest.mark.parametrize(
    "facts",
    [
        {"grown": 3},
        {"calls": 5, "grown": 5},
        {"layers": {"Linear": 8}},
        {"work_ms": 1.0},
    ],
)
def test_other_calls_are_left_alone(scene: Any, tmp_path: Path, facts: dict[str, Any]) -> None:
    assert not list(KVCache().check(generating(scene, **facts).evidence(tmp_path)))


def test_a_training_that_generates_is_told_by_its_forwards(scene: Any, tmp_path: Path) -> None:
    made = generating(scene)
    trained = scene(50.0)
    made.record.step_kind, made.record.optimizers = "optimizer", trained.record.optimizers
    made.call("Module.call", 21, 40.0, module="Net", grad=False)
    (finding,) = KVCache().check(made.evidence(tmp_path))
    assert finding.site is not None and finding.site.line == 21  # where it is called most often
    # Of 50 ms 49 are forwards, 36 of 40 of them the generating's: 44 ms, of which 13 are likely to be left.
    assert finding.gain.low < 50 / (50 - 44 * 0.7) < finding.gain.high <= 2.000001 * finding.gain.low
    made.record.device.type, made.gpu = "cuda", "NVIDIA A100-SXM4-40GB"
    made.kernel("ampere_sgemm_128x64_tn", 0.5, 40.0, launched=0.1)
    assert not list(KVCache().check(made.evidence(tmp_path)))


def test_generate_is_told_to_cache_in_the_file_that_says_otherwise(tmp_path: Path) -> None:
    script, settings = tmp_path / "rl.py", tmp_path / "generation.json"
    script.write_text("how = GenerationConfig(**load())\nids = policy.generate(prompt, generation_config=how)\n")
    settings.write_text('{\n  "max_new_tokens": 40,\n  "use_cache": false\n}\n')
    site = Site(str(script), 2)
    finding = Finding("kv-cache", "", "", Gain(1.2, 1.5, 2.0), {}, site, {"library": True, "generate": (site,)})
    fix = KVCache().fix(finding, Sources().with_files([str(settings)]))
    assert isinstance(fix, Edit)
    assert '-  "use_cache": false' in fix.diff(str(tmp_path)) and '+  "use_cache": true' in fix.diff(str(tmp_path))
    settings.write_text('{"dataset": {"use_cache": false, "path": "x"}, "max_new_tokens": 40}')
    fix = KVCache().fix(finding, Sources().with_files([str(settings)]))
    assert isinstance(fix, Advice) and "told otherwise" in fix.why
