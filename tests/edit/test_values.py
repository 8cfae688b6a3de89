"""A value is changed where it is really written, or not at all."""

from __future__ import annotations

import textwrap
from pathlib import Path

import libcst as cst
import pytest

from advisor.edit import Drafts, Sources
from advisor.edit.calls import DATALOADER_PARAMETERS
from advisor.edit.locate import last_name
from advisor.edit.origins.origin import UNKNOWN
from advisor.edit.origins.values import EDITED, give


def attempt(code: str, recorded: object = UNKNOWN, others: dict[str, str] | None = None, name: str = "batch_size",
            alone: bool = False):  # fmt: skip
    """What `give` answers for the file's only DataLoader, and the texts afterwards."""
    code = textwrap.dedent(code).lstrip("\n")
    texts = {f"/nowhere/{path}": textwrap.dedent(text).lstrip("\n") for path, text in (others or {}).items()}
    drafts = Drafts(Sources({"/nowhere/train.py": code, **texts}))
    draft = drafts["/nowhere/train.py"]
    (call,) = [each for each in draft.nodes(cst.Call) if last_name(draft, each) == "DataLoader"]
    answer = give(drafts, draft, call, name, "64", DATALOADER_PARAMETERS, recorded, alone=alone)
    edit = drafts.edit("")
    return answer, {Path(path).name: text for path, text in (edit.texts if edit else {}).items()}


EDITS = {
    "literal": ("DataLoader(ds, batch_size=32)", "DataLoader(ds, batch_size=64)"),
    "positional": ("DataLoader(ds, 32, True)", "DataLoader(ds, 64, True)"),
    "absent": ("DataLoader(ds)", "DataLoader(ds, batch_size=64)"),
    "module constant": (
        "BATCH = 32  # images\ndef f():\n    return DataLoader(ds, batch_size=BATCH)",
        "BATCH = 64  # images\ndef f():\n    return DataLoader(ds, batch_size=BATCH)",
    ),
    "local name": (
        "def f():\n    bs = 32\n    return DataLoader(ds, bs)",
        "def f():\n    bs = 64\n    return DataLoader(ds, bs)",
    ),
    "parameter default": (
        "def f(bs=32):\n    return DataLoader(ds, bs)\nf()",
        "def f(bs=64):\n    return DataLoader(ds, bs)\nf()",
    ),
    "parameter from the one caller": (
        "def f(ds, bs=8):\n    return DataLoader(ds, bs)\nf(1, 32)",
        "def f(ds, bs=8):\n    return DataLoader(ds, bs)\nf(1, 64)",
    ),
    "self attribute from the constructor": (
        "class T:\n    def __init__(self, bs=32):\n        self.bs = bs\n"
        "    def go(self):\n        return DataLoader(ds, batch_size=self.bs)\nT().go()",
        "class T:\n    def __init__(self, bs=64):\n        self.bs = bs\n"
        "    def go(self):\n        return DataLoader(ds, batch_size=self.bs)\nT().go()",
    ),
    "class method that makes the object": (
        "class T:\n    def __init__(self, ds, bs):\n        self.loader = DataLoader(ds, bs)\n"
        "    @classmethod\n    def of(cls, bs):\n        return cls(None, bs=bs)\nT.of(32)",
        "class T:\n    def __init__(self, ds, bs):\n        self.loader = DataLoader(ds, bs)\n"
        "    @classmethod\n    def of(cls, bs):\n        return cls(None, bs=bs)\nT.of(64)",
    ),
    "dataclass default": (
        "@dataclass\nclass Config:\n    bs: int = 32\ncfg = Config()\nDataLoader(ds, cfg.bs)",
        "@dataclass\nclass Config:\n    bs: int = 64\ncfg = Config()\nDataLoader(ds, cfg.bs)",
    ),
    "dataclass construction": (
        "@dataclass\nclass Config:\n    bs: int = 8\ncfg = Config(bs=32)\nDataLoader(ds, cfg.bs)",
        "@dataclass\nclass Config:\n    bs: int = 8\ncfg = Config(bs=64)\nDataLoader(ds, cfg.bs)",
    ),
    "dict subscript": (
        'cfg = {"bs": 32}\nDataLoader(ds, cfg["bs"])',
        'cfg = {"bs": 64}\nDataLoader(ds, cfg["bs"])',
    ),
    "unpacked dict": (
        'kw = {"batch_size": 32, "shuffle": True}\nDataLoader(ds, **kw)',
        'kw = {"batch_size": 64, "shuffle": True}\nDataLoader(ds, **kw)',
    ),
    "unpacked dict call": (
        "kw = dict(batch_size=32)\nDataLoader(ds, **kw)",
        "kw = dict(batch_size=64)\nDataLoader(ds, **kw)",
    ),
    "unpacked dict without it": (
        'kw = {"shuffle": True}\nDataLoader(ds, **kw)',
        'kw = {"shuffle": True}\nDataLoader(ds, batch_size=64, **kw)',
    ),
}


@pytest.mark.parametrize(("before", "after"), EDITS.values(), ids=EDITS.keys())
def test_value_is_edited_at_its_origin(before: str, after: str) -> None:
    answer, texts = attempt(before + "\n", recorded=UNKNOWN)
    assert answer == EDITED
    assert texts == {"train.py": after + "\n"}


def test_constant_of_a_module_beside_it() -> None:
    answer, texts = attempt("from config import BATCH\nDataLoader(ds, BATCH)\n", 32, {"config.py": "BATCH = 32\n"})
    assert answer == EDITED
    assert texts == {"config.py": "BATCH = 64\n"}


ARGPARSE = """
import argparse
def main():
    p = argparse.ArgumentParser()
    p.add_argument("-b", "--batch-size", type=int, default=32)
    args = p.parse_args({parsed})
    run(args)
def run(args):
    DataLoader(ds, batch_size=args.batch_size)
"""


def test_command_line_option_is_named_not_edited() -> None:
    assert attempt(ARGPARSE.format(parsed="")) == ("--batch-size", {})


def test_option_parsed_from_a_given_list_is_edited_at_its_default() -> None:
    answer, texts = attempt(ARGPARSE.format(parsed="[]"))
    assert answer == EDITED
    assert "default=64" in texts["train.py"]


REFUSED = {
    "computed": "DataLoader(ds, batch_size=32 // world)",
    "two assignments": "bs = 32\nif fast:\n    bs = 64\nDataLoader(ds, bs)",
    "loop variable": "for bs in (8, 16):\n    DataLoader(ds, bs)",
    "unpacked tuple": "bs, n = sizes\nDataLoader(ds, bs)",
    "parameter of several callers": "def f(bs):\n    return DataLoader(ds, bs)\nf(1)\nf(2)",
    "unknown mapping": "def f(**kw):\n    return DataLoader(ds, **kw)",
    "key put into the mapping later": 'kw = {}\nkw["batch_size"] = 3\nDataLoader(ds, **kw)',
    "mapping merged later with another one": "kw = {}\nkw.update(more)\nDataLoader(ds, **kw)",
    "mapping merged later by operator": "kw = {}\nkw |= more()\nDataLoader(ds, **kw)",
    "key put into the mapping later by a name": "kw = {}\nkw[key] = 3\nDataLoader(ds, **kw)",
    "one value of several names": "bs = hidden = 32\nDataLoader(ds, bs)",
    "name of a nested target": "bs = 32\nfor i, (bs, x) in pairs:\n    DataLoader(ds, bs)",
    "parameter of a lambda": "bs = 32\nf = lambda bs: DataLoader(ds, bs)",
    "mapping that is a parameter": "kw = {'batch_size': 32}\ndef f(**kw):\n    DataLoader(ds, **kw)",
    "key in a mapping merged later": 'kw = {}\nkw.update({"batch_size": 3})\nDataLoader(ds, **kw)',
    "starred": "DataLoader(*things)",
    "attribute assigned elsewhere": "cfg.bs = 3\n@dataclass\nclass C:\n    bs: int = 32\nDataLoader(ds, cfg.bs)",
    "global": "bs = 32\ndef f():\n    global bs\n    bs = 3\nDataLoader(ds, bs)",
    "option set again": ARGPARSE.format(parsed="") + "    args.batch_size = 3\n",
    "positional option": ARGPARSE.format(parsed="").replace('"-b", "--batch-size"', '"batch_size"'),
}


@pytest.mark.parametrize("code", REFUSED.values(), ids=REFUSED.keys())
def test_uncertain_origin_is_refused(code: str) -> None:
    assert attempt(code + "\n") == (None, {})


CLICK = """
import click as cli
from click import command
@command()
@cli.option({option})
@cli.option("--epochs", default=3)
def main(bs, epochs):
    DataLoader(ds, batch_size=bs)
if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    ("option", "answer"),
    [
        ('"--bs", default=32', "--bs"),
        ('"-b", "--bs", type=int', "--bs"),
        ('"bs", "--batch-size", default=32', "--batch-size"),
        ('"--bs", default=32, callback=round_up', None),
        ('"--bs", is_flag=True', None),
        ('"--batch-size", "size", default=32', None),
    ],
)
def test_click_option_is_named(option: str, answer: str | None) -> None:
    assert attempt(CLICK.format(option=option)) == (answer, {})


def test_option_without_a_value_is_named_only_where_it_is_asked_for() -> None:
    code = ARGPARSE.format(parsed="").replace("type=int, default=32", 'action="store_true"')
    drafts = Drafts(Sources({"/nowhere/train.py": code}))
    draft = drafts["/nowhere/train.py"]
    (call,) = [each for each in draft.nodes(cst.Call) if last_name(draft, each) == "DataLoader"]
    assert give(drafts, draft, call, "batch_size", "True", DATALOADER_PARAMETERS) is None
    assert give(drafts, draft, call, "batch_size", "True", DATALOADER_PARAMETERS, flags=True) == "--batch-size!"
    assert give(drafts, draft, call, "batch_size", "False", DATALOADER_PARAMETERS, flags=True) is None


def test_literal_that_the_run_did_not_see_is_left_alone() -> None:
    assert attempt("DataLoader(ds, batch_size=32)\n", recorded=16) == (None, {})


ALONE = {
    "read nowhere else": ("BS = 32\nDataLoader(ds, BS)\n", "BS = 64\nDataLoader(ds, BS)\n"),
    "field read nowhere else": (
        "@dataclass\nclass C:\n    bs: int = 32\ncfg = C()\nDataLoader(ds, cfg.bs)\n",
        "@dataclass\nclass C:\n    bs: int = 64\ncfg = C()\nDataLoader(ds, cfg.bs)\n",
    ),
    "read again": ("BS = 32\nDataLoader(ds, BS)\nNet(BS)\n", "BS = 32\nDataLoader(ds, 64)\nNet(BS)\n"),
    "read again in the same call": ("BS = 32\nDataLoader(ds, BS, BS)\n", "BS = 32\nDataLoader(ds, 64, BS)\n"),
    "read again under another name": (
        "BS = 32\nsize = BS\nDataLoader(ds, size)\nNet(BS)\n",
        "BS = 32\nsize = BS\nDataLoader(ds, 64)\nNet(BS)\n",
    ),
    "field read again": (
        "@dataclass\nclass C:\n    bs: int = 32\ncfg = C()\nDataLoader(ds, cfg.bs)\nNet(cfg.bs)\n",
        "@dataclass\nclass C:\n    bs: int = 32\ncfg = C()\nDataLoader(ds, 64)\nNet(cfg.bs)\n",
    ),
    "key read again": (
        'cfg = {"bs": 32}\nDataLoader(ds, cfg["bs"])\nNet(cfg.get("bs"))\n',
        'cfg = {"bs": 32}\nDataLoader(ds, 64)\nNet(cfg.get("bs"))\n',
    ),
}


@pytest.mark.parametrize(("before", "after"), ALONE.values(), ids=ALONE.keys())
def test_alone_changes_what_nothing_else_reads(before: str, after: str) -> None:
    assert attempt(before, 32, alone=True) == (EDITED, {"train.py": after})


def test_alone_leaves_a_constant_of_another_module() -> None:
    answer, texts = attempt("from config import BS\nDataLoader(ds, BS)\n", 32, {"config.py": "BS = 32\n"}, alone=True)
    assert (answer, texts) == (EDITED, {"train.py": "from config import BS\nDataLoader(ds, 64)\n"})


def test_alone_leaves_what_other_calls_unpack_or_read() -> None:
    shared = 'kw = {"batch_size": 32}\nDataLoader(ds, **kw)\nother(**kw)\n'
    assert attempt(shared, 32, alone=True) == (None, {})
    assert attempt(shared.replace("other(**kw)\n", ""), 32, alone=True)[0] == EDITED
    parsed = ARGPARSE.format(parsed="")
    assert attempt(parsed, alone=True) == ("--batch-size", {})
    assert attempt(parsed + "    Net(args.batch_size)\n", alone=True) == (None, {})


@pytest.mark.parametrize(("more", "answer"), [("", EDITED), ('Net(cfg["bs"])\n', None)])
def test_alone_leaves_a_setting_that_is_read_again(tmp_path: Path, more: str, answer: str | None) -> None:
    settings = tmp_path / "settings.json"
    settings.write_text('{"bs": 32}\n')
    code = 'cfg = json.load(open("settings.json"))\nDataLoader(ds, batch_size=cfg["bs"])\n' + more
    drafts = Drafts(Sources({"/nowhere/train.py": code}, settings=[str(settings)]))
    draft = drafts["/nowhere/train.py"]
    (call,) = [each for each in draft.nodes(cst.Call) if last_name(draft, each) == "DataLoader"]
    assert give(drafts, draft, call, "batch_size", "64", DATALOADER_PARAMETERS, 32, alone=True) == answer
