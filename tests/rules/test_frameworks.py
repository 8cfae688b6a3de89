"""What a script tells its framework is changed where the script says it, and nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advisor.edit import Edit, Sources
from advisor.harness.layout import Site
from advisor.rule import Advice, Argument, Finding, Gain
from advisor.rulebook import load_rules
from advisor.shared.frameworks import configured
from rules.amp_autocast import AmpAutocast
from rules.fused_optimizer import FusedOptimizer
from tests.rules.test_checks import busy_cpu

WORKERS = {"dataloader_num_workers": "2", "dataloader_persistent_workers": "True"}
CLASS = {"transformers": "TrainingArguments", "lightning": "Trainer", "accelerate": "Accelerator"}


def fixed(
    tmp_path: Path, framework: str, settings: dict[str, str], code: str, line: int = 1, **parameters: object
) -> Edit | Argument | Advice:
    """The fix for the call on that line; parameters are the finding's, without their ``config_``."""
    path = tmp_path / "train.py"
    path.write_text(code)
    known = {"config": (Site(str(path), line),), "config_kind": CLASS[framework]}
    known |= {f"config_{name}": value for name, value in parameters.items()}
    finding = Finding("a-rule", "A rule", "", Gain(1.1, 1.2, 1.3), {}, parameters=known)
    return configured(finding, Sources(), framework, settings, "Do it.", "nobody knows")


def text_of(fix: Edit | Argument | Advice) -> str:
    assert isinstance(fix, Edit), fix
    (text,) = fix.texts.values()
    return text


def test_settings_are_passed_and_what_is_so_already_is_left_alone(tmp_path: Path) -> None:
    values = {"dataloader_num_workers": 0, "dataloader_persistent_workers": True}
    fix = fixed(tmp_path, "transformers", WORKERS, "args = TrainingArguments('out')\n", values=values)
    assert text_of(fix) == "args = TrainingArguments('out', dataloader_num_workers=2)\n"


def test_subclass_of_the_arguments_takes_them_too(tmp_path: Path) -> None:
    code = "args = Mine(output_dir='out')\n"
    fix = fixed(tmp_path, "transformers", {"bf16": "True"}, code, takes=("bf16",), **{"class": "Mine"})
    assert text_of(fix) == "args = Mine(output_dir='out', bf16=True)\n"


def test_value_is_changed_where_it_is_defined(tmp_path: Path) -> None:
    code = "PRECISION = '32-true'\ntrainer = L.Trainer(precision=PRECISION)\n"
    fix = fixed(tmp_path, "lightning", {"precision": '"bf16-mixed"'}, code, 2, values={"precision": "32-true"})
    assert text_of(fix) == 'PRECISION = "bf16-mixed"\ntrainer = L.Trainer(precision=PRECISION)\n'


def together(tmp_path: Path, code: str, more: str = "") -> Edit | Argument | Advice:
    """Two settings of which neither may change alone, seen as 2 and 16."""
    (tmp_path / "train.py").write_text(code + more)
    values = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 16}
    known = {"config": (Site(str(tmp_path / "train.py"), 1),), "config_kind": "TrainingArguments"}
    finding = Finding("a-rule", "A rule", "", Gain(1.1, 1.2, 1.3), {}, parameters={**known, "config_values": values})
    settings = {"per_device_train_batch_size": "16", "gradient_accumulation_steps": "2"}
    return configured(finding, Sources(), "transformers", settings, "Do it.", "nobody knows", together=True)


def test_settings_that_go_together_are_all_changed_or_none(tmp_path: Path) -> None:
    made = "args = TrainingArguments('o', per_device_train_batch_size={}, gradient_accumulation_steps={})\n"
    assert text_of(together(tmp_path, made.format(2, 16))) == made.format(16, 2)
    assert isinstance(together(tmp_path, made.format(2, "rounds()")), Advice)
    assert isinstance(together(tmp_path, made.format("size()", 16)), Advice)
    both = together(tmp_path, made.format("N", "N"), "N = 4\n")
    assert isinstance(both, (Edit, Advice)) and (not isinstance(both, Edit) or "N = 4\n" in text_of(both))
    shared = text_of(together(tmp_path, made.format("BS", "ACC"), "BS = 2\nACC = 16\nprint(BS, ACC)\n"))
    assert shared == made.format(16, 2) + "BS = 2\nACC = 16\nprint(BS, ACC)\n"
    assert isinstance(together(tmp_path, made.format(2, 16), "args.gradient_accumulation_steps = 16\n"), Advice)
    parser = "p = argparse.ArgumentParser()\np.add_argument('--{}', type=int, default=16)\na = p.parse_args()\n"
    mixed = together(tmp_path, made.format(2, "a.rounds"), parser.format("rounds"))
    assert isinstance(mixed, Advice) and "as well" in mixed.why
    fix = together(tmp_path, "(args,) = parser.parse_args_into_dataclasses()\n")
    assert isinstance(fix, Argument)
    assert fix.options == {"--per_device_train_batch_size": "16", "--gradient_accumulation_steps": "2"}


def test_command_line_that_a_parser_reads_gets_the_options(tmp_path: Path) -> None:
    code = "model_args, args = parser.parse_args_into_dataclasses()\n"
    fix = fixed(tmp_path, "transformers", WORKERS, code)
    assert isinstance(fix, Argument)
    assert fix.options == {"--dataloader_num_workers": "2", "--dataloader_persistent_workers": "True"}


def test_dict_on_a_command_line_is_json(tmp_path: Path) -> None:
    settings = {"accelerator_config": '{"non_blocking": True}'}
    fix = fixed(tmp_path, "transformers", settings, "(args,) = parser.parse_args_into_dataclasses()\n")
    assert isinstance(fix, Argument) and fix.options == {"--accelerator_config": '{"non_blocking": true}'}


@pytest.mark.parametrize("reads", ["parse_json_file('args.json')", "parse_dict(values)"])
def test_file_that_a_parser_reads_is_edited(reads: str, tmp_path: Path) -> None:
    settings = tmp_path / "args.json"
    settings.write_text('{"output_dir": "out",\n "dataloader_num_workers": 0}\n')
    (tmp_path / "train.py").write_text(f"(args,) = parser.{reads}\n")
    made = {"config": (Site(str(tmp_path / "train.py"), 1),), "config_kind": "TrainingArguments"}
    finding = Finding(
        "x", "x", "", Gain(1.1, 1.2, 1.3), {}, parameters={**made, "config_values": {"dataloader_num_workers": 0}}
    )
    fix = configured(finding, Sources(settings=[str(settings)]), "transformers", WORKERS, "Do it.", "nobody knows")
    assert isinstance(fix, Edit)
    assert fix.texts == {str(settings): '{"output_dir": "out",\n "dataloader_num_workers": 2}\n'}
    assert fix.site == Site(str(tmp_path / "train.py"), 1), "where the settings are made"


@pytest.mark.parametrize(
    ("name", "code", "declared", "answer"),
    [
        ("bf16", "True", "type=int, default=0", {"--bf16": "1"}),
        ("bf16", "True", 'action="store_true"', {"--bf16": ""}),
        ("precision", '"bf16-mixed"', 'default="32-true"', {"--precision": "bf16-mixed"}),
        ("precision", '"bf16-mixed"', "type=int, default=32", None),
        ("precision", '"bf16-mixed"', 'choices=["32-true", "16-mixed"]', None),
    ],
)
def test_option_is_given_what_it_takes(
    tmp_path: Path, name: str, code: str, declared: str, answer: dict[str, str] | None
) -> None:
    script = f"p.add_argument('--{name}', {declared})\nargs = p.parse_args()\nL.Trainer({name}=args.{name})\n"
    fix = fixed(tmp_path, "lightning", {name: code}, script, 3)
    if answer is None:
        assert isinstance(fix, Advice) and fix.why.startswith(f"--{name} may not take")
    else:
        assert isinstance(fix, Argument) and fix.options == answer


ADVICE = {
    "a file": ("args = parser.parse_json_file('args.json')\n", {}, "dataloader_num_workers: 2"),
    "a given list": ("args = parser.parse_args_into_dataclasses(words)\n", {}, ""),
    "a mapping": ("args = TrainingArguments(**yaml.safe_load(file))\n", {}, ""),
    "a class that makes it": ("main = Experiment('out')\n", {}, ""),
    "an older version": ("args = TrainingArguments('out')\n", {"takes": ("bf16",)}, ""),
    "told so already": ("args = TrainingArguments('out', **more)\n", {"values": {"dataloader_num_workers": 2}}, ""),
    "two on a line": ("a, b = TrainingArguments('a'), TrainingArguments('b')\n", {}, ""),
}


@pytest.mark.parametrize(("code", "parameters", "said"), ADVICE.values(), ids=ADVICE.keys())
def test_what_cannot_be_edited_is_advice(tmp_path: Path, code: str, parameters: dict[str, object], said: str) -> None:
    fix = fixed(tmp_path, "transformers", WORKERS, code, **parameters)
    assert isinstance(fix, Advice) and fix.why
    assert said in fix.text and "train.py:1" in fix.text


@pytest.mark.parametrize(
    ("fused", "values", "edited"),
    [(True, {"gradient_clip_val": 1.0}, False), (True, {}, True), (False, {"gradient_clip_val": 1.0}, True)],
)
def test_lightning_clips_no_gradients_of_a_fused_optimizer_in_16_bits(
    tmp_path: Path, fused: bool, values: dict[str, object], edited: bool
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nimport lightning as L\ntrainer = L.Trainer(gradient_clip_val=1.0)\no = torch.optim.Adam(ps)\n"
    )
    made = {"config": (Site(str(script), 3),), "config_kind": "Trainer", "config_values": values}
    parameters = {**made, "framework": "lightning", "dtype": "bfloat16", "device": "cpu", "fused": fused}
    finding = Finding("amp-autocast", "x", "", Gain(1.1, 1.2, 1.3), {}, parameters=parameters)
    assert isinstance(AmpAutocast().fix(finding, Sources()), Edit) is edited
    # The other way round.
    values = {**values, "precision": "bf16-mixed" if fused else "32-true"}
    parameters = {**made, "config_values": values, "optimizers": (Site(str(script), 4),)}
    finding = Finding("fused-optimizer", "x", "", Gain(1.1, 1.2, 1.3), {}, parameters=parameters)
    assert isinstance(FusedOptimizer().fix(finding, Sources()), Edit) is edited


def test_construction_of_another_framework_is_none(tmp_path: Path) -> None:
    fix = fixed(tmp_path, "transformers", WORKERS, "L.Trainer()\n", kind="Trainer")
    assert fix == Advice("Do it.", "nobody knows")


@pytest.mark.parametrize(("enabled", "found"), [(True, 0), (False, 1)])
def test_autocast_that_a_framework_has_on_is_not_asked_for(
    scene: Any, tmp_path: Path, enabled: bool, found: int
) -> None:
    made = busy_cpu(scene)
    made.record.environment.cpu_flags = ["amx_bf16"]
    made.call("TrainingArguments", 3, 0.0, **{"class": "TrainingArguments", "values": {"bf16": enabled}})
    # Inside the model's own call, where the harness asks whether autocast is on.
    made.call("autocast", 11, device="cpu", dtype="bfloat16", enabled=enabled)
    (rule,) = [each for each in load_rules() if each.id == "amp-autocast"]
    findings = list(rule.check(made.evidence(tmp_path)))
    assert len(findings) == found
    assert all(each.parameters["config_kind"] == "TrainingArguments" for each in findings)
