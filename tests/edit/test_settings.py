"""A value that stands in the user's YAML, JSON or TOML is changed there, and nothing else is."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import libcst as cst
import pytest
import tomlkit
import yaml
from hypothesis import given
from hypothesis import strategies as st

from advisor.edit import Drafts, Source, Sources
from advisor.edit.calls import DATALOADER_PARAMETERS
from advisor.edit.locate import last_name
from advisor.edit.origins.origin import UNKNOWN
from advisor.edit.origins.settings import SettingsDraft
from advisor.edit.origins.values import EDITED, give
from advisor.errors import AdvisorError

YAML = """\
# what we train with
train: {lr: 0.1, batch_size: 4}   # small
eval:
    batch_size:   8  # as large as it gets
    half: no
loader:
  num_workers: 0
  order: 'shuffled'
"""


TOML = """\
# what we train with
title = "a run"
[train]
lr = 1e-1
batch_size = 4   # small
[loader.options]
num_workers = 0
pin = false
"""


def attempt(
    code: str, files: dict[str, str], recorded: object = 4, name: str = "batch_size", value: str = "64"
) -> tuple[str | None, dict[str, str]]:
    """What `give` answers for the file's only DataLoader, and the texts afterwards."""
    texts = {f"/nowhere/{path}": text for path, text in {"train.py": textwrap.dedent(code), **files}.items()}
    drafts = Drafts(Sources(texts, settings=[f"/nowhere/{path}" for path in files]))
    draft = drafts["/nowhere/train.py"]
    (call,) = [each for each in draft.nodes(cst.Call) if last_name(draft, each) == "DataLoader"]
    answer = give(drafts, draft, call, name, value, DATALOADER_PARAMETERS, recorded)
    edit = drafts.edit("")
    return answer, {Path(path).name: text for path, text in (edit.texts if edit else {}).items()}


READS = {
    "subscripts": "cfg = yaml.safe_load(open(path))\nDataLoader(ds, batch_size=cfg['train']['batch_size'])",
    "attributes": "cfg = OmegaConf.load(path)\nDataLoader(ds, batch_size=cfg.train.batch_size)",
    "get": "DataLoader(ds, cfg.get('train').get('batch_size', 32))",
    "a part of it": "part = cfg['train']\nDataLoader(ds, int(part['batch_size']))",
    "parameter of the one caller": (
        "def loader(train):\n    return DataLoader(ds, batch_size=train['batch_size'])\nloader(cfg['train'])"
    ),
    "attribute of its own": (
        "class Run:\n    def __init__(self, cfg):\n        self.train = cfg['train']\n"
        "    def go(self):\n        return DataLoader(ds, batch_size=self.train['batch_size'])"
    ),
    "unpacked": "DataLoader(ds, shuffle=True, **cfg['train'])",
    "another default in a dataclass": (
        "@dataclass\nclass C:\n    batch_size: int = 32\nc = C(**load(path)['train'])\nDataLoader(ds, c.batch_size)"
    ),
}


@pytest.mark.parametrize("code", READS.values(), ids=READS.keys())
def test_value_is_changed_where_the_file_has_it(code: str) -> None:
    answer, texts = attempt(code, {"config.yaml": YAML})
    assert answer == EDITED
    assert texts == {"config.yaml": YAML.replace("batch_size: 4", "batch_size: 64")}


def test_json_with_tabs_keeps_them() -> None:
    text = '{\n\t"name": "a\\tb",\n\t"lr": 1e-3,\n\t"batch_size":\t4\n}\n'
    answer, texts = attempt("DataLoader(ds, batch_size=SETTINGS['batch_size'])", {"settings.json": text})
    assert (answer, texts) == (EDITED, {"settings.json": text.replace("\t4", "\t64")})


REFUSED = {
    "what the run did not see": ("DataLoader(ds, batch_size=cfg['train']['batch_size'])", YAML, 16),
    "what it saw is unknown": ("DataLoader(ds, batch_size=cfg['train']['batch_size'])", YAML, UNKNOWN),
    "another kind": ("DataLoader(ds, batch_size=cfg['train']['batch_size'])", YAML.replace("4", "true"), 1),
    "two that say the same": (
        "DataLoader(ds, batch_size=sizes(cfg)['batch_size'])", "a: {batch_size: 4}\nb: {batch_size: 4}\n", 4,
    ),
    "computed": ("DataLoader(ds, batch_size=cfg['train']['batch_size'] // 2)", YAML, 4),
    "shared by an alias": ("DataLoader(ds, batch_size=cfg['batch_size'])", "n: &n 4\nbatch_size: *n\n", 4),
    "no settings": ("DataLoader(ds, batch_size=cfg['batch_size'])", "- 4\n- batch_size\n", 4),
    "no YAML": ("DataLoader(ds, batch_size=cfg['batch_size'])", "batch_size: [4\n", 4),
    "another mapping's key": ("extra = {'pin': True}\nDataLoader(ds, **extra, batch_size=n)", "batch_size: 4\n", 4),
    "a mapping that a function makes": ("DataLoader(ds, **kwargs_of(cfg)['x'])", "eval: {batch_size: 4}\n", 4),
    "a key of a mapping inside": ("DataLoader(ds, batch_size=opts.batch_size)", "eval: {batch_size: 4}\n", 4),
    "loop variable": ("for batch_size in (4, 8):\n    DataLoader(ds, batch_size=batch_size)", "batch_size: 4\n", 4),
    "computed attribute": (
        "class T:\n    def __init__(self, a):\n        self.batch_size = size_of(a)\n"
        "    def go(self):\n        return DataLoader(ds, batch_size=self.batch_size)",
        "batch_size: 4\n", 4,
    ),
    "parameter of several callers": (
        "def f(batch_size):\n    DataLoader(ds, batch_size=batch_size)\nf(4)\nf(g(8))", "batch_size: 4\n", 4,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("code", "text", "recorded"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_certain_is_left_alone(code: str, text: str, recorded: object) -> None:
    assert attempt(code, {"config.yaml": text}, recorded) == (None, {})


def test_of_several_files_and_sections_the_names_decide() -> None:
    files = {"a.yaml": "train: {batch_size: 4}\neval: {batch_size: 4}\n", "b.yaml": "test: {batch_size: 4}\n"}
    answer, texts = attempt("DataLoader(ds, batch_size=cfg.eval.batch_size)", files)
    assert answer == EDITED
    assert texts == {"a.yaml": "train: {batch_size: 4}\neval: {batch_size: 64}\n"}


def test_what_a_file_lacks_is_passed_beside_it() -> None:
    answer, texts = attempt("DataLoader(ds, **cfg['train'])", {"c.yaml": YAML}, 0, "num_workers", "2")
    assert answer == EDITED
    assert texts == {"train.py": "DataLoader(ds, num_workers=2, **cfg['train'])"}


def test_words_and_truth_are_written_as_the_file_would() -> None:
    for name, recorded, value, after in (
        ("eval.half", False, "True", YAML.replace("half: no", "half: true")),
        ("loader.order", "shuffled", "'sorted'", YAML.replace("'shuffled'", "sorted")),
        ("loader.order", "shuffled", "'no'", YAML.replace("'shuffled'", '"no"')),
        ("loader.order", "shuffled", "'a: b'", YAML.replace("'shuffled'", '"a: b"')),
    ):
        key = name.partition(".")[2]
        answer, texts = attempt(f"DataLoader(ds, {key}=cfg.{name})", {"c.yaml": YAML}, recorded, key, value)
        assert (answer, texts) == (EDITED, {"c.yaml": after})


def test_file_of_a_package_is_not_edited() -> None:
    path = "/usr/lib/site-packages/p/config.yaml"
    code = "DataLoader(ds, batch_size=cfg['batch_size'])"
    drafts = Drafts(Sources({"/nowhere/train.py": code, path: "batch_size: 4\n"}, settings=[path]))
    assert drafts.settings() == []


@pytest.mark.parametrize(
    ("code", "recorded", "name", "value", "expected"),
    [
        ("DataLoader(ds, cfg['train']['batch_size'])", 4, "batch_size", "64", "batch_size = 64   # small"),
        ("DataLoader(ds, **cfg['loader']['options'])", 0, "num_workers", "2", "num_workers = 2\n"),
        ("DataLoader(ds, pin_memory=cfg.loader.options.pin)", False, "pin_memory", "True", "pin = true\n"),
    ],
)
def test_toml_is_changed_in_its_place(code: str, recorded: object, name: str, value: str, expected: str) -> None:
    answer, texts = attempt(code, {"config.toml": TOML}, recorded, name, value)
    assert answer == EDITED
    before = {line.split("=")[0].strip() for line in expected.splitlines()}
    kept = [line for line in TOML.splitlines() if line.split("=")[0].strip() not in before]
    assert (
        expected in texts["config.toml"]
        and [line for line in texts["config.toml"].splitlines() if line.split("=")[0].strip() not in before] == kept
    )


SCALARS = st.one_of(
    st.integers(-9, 9999), st.booleans(), st.text("ab #:'\"-{}[],&*!|>%@\\\n\té", max_size=6), st.floats(-1e6, 1e6)
)
TREES = st.recursive(
    SCALARS, lambda inner: st.dictionaries(st.text("abc_", min_size=1, max_size=3), inner), max_leaves=8
)


@given(tree=st.dictionaries(st.sampled_from("abcd"), TREES), flow=st.booleans(), as_json=st.booleans(), data=st.data())
def test_only_the_one_value_changes(tree: dict[str, object], flow: bool, as_json: bool, data: st.DataObject) -> None:
    """Whatever the file looks like: what is read from it afterwards differs in the one place."""
    text = json.dumps(tree, indent=2) if as_json else yaml.safe_dump(tree, default_flow_style=flow, allow_unicode=True)
    load = json.loads if as_json else yaml.safe_load
    draft = SettingsDraft(Source("c.json" if as_json else "c.yaml", text))
    if not draft.entries:
        return
    entry = data.draw(st.sampled_from(draft.entries))
    inner = tree
    for key in entry.keys[:-1]:
        inner = inner[key]  # type: ignore[assignment]
    assert inner[entry.keys[-1]] == entry.value, "it is read as the script reads it"
    new = data.draw(SCALARS)
    assert draft.give(entry, repr(new))
    inner[entry.keys[-1]] = new
    assert load(draft.render()) == tree


def test_what_is_no_value_is_not_written() -> None:
    draft = SettingsDraft(Source("c.yaml", "a: 1\n"))
    assert not draft.give(draft.entries[0], "torch.float32") and not draft.give(draft.entries[0], "[1]")
    assert not draft.changed


TOML_TEXTS = st.text("ab #:'\"-{}[],=.\\é", max_size=6)
TOML_SCALARS = st.one_of(st.integers(-9, 9999), st.booleans(), TOML_TEXTS, st.floats(-1e6, 1e6))
TOML_TREES = st.recursive(
    TOML_SCALARS, lambda inner: st.dictionaries(st.text("abc_", min_size=1, max_size=3), inner), max_leaves=8
)


@given(tree=st.dictionaries(st.sampled_from("abcd"), TOML_TREES), data=st.data())
def test_only_the_one_value_of_a_toml_file_changes(tree: dict[str, object], data: st.DataObject) -> None:
    draft = SettingsDraft(Source("c.toml", tomlkit.dumps(tree)))
    if not draft.entries:
        return
    entry = data.draw(st.sampled_from(draft.entries))
    new = data.draw(TOML_SCALARS)
    inner = tree
    for key in entry.keys[:-1]:
        inner = inner[key]  # type: ignore[assignment]
    assert inner[entry.keys[-1]] == entry.value
    assert draft.give(entry, repr(new))
    inner[entry.keys[-1]] = new
    assert tomlkit.parse(draft.render()).unwrap() == tree


def test_broken_toml_is_told() -> None:
    with pytest.raises(AdvisorError, match="cannot be read as settings"):
        SettingsDraft(Source("c.toml", "a = [\n"))


@pytest.mark.parametrize("text", ["a: [", "\ta: 1", "a: 1\n b: 2"])
def test_broken_file_is_told(text: str) -> None:
    with pytest.raises(AdvisorError, match="cannot be read as settings"):
        SettingsDraft(Source("c.yaml", text))
