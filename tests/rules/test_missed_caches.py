"""A cache that is asked for one key and filled under another, told by its source and by what was seen to run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advisor.edit import Edit, Sources
from advisor.harness.layout import FetchPart, Site
from advisor.rule import Advice, Finding
from rules.slow_transform import SlowTransform

RULE = SlowTransform()

HEAD = """import torch

kept, windows = {}, {}


def bank(top):
    return torch.linspace(0, 1, 80 * top).reshape(80, top)


class Clips:
    def __getitem__(self, i):
        return heard(self.clips[i], 8000)


def heard(x, top):
"""
BODY = """    key = f"{top}_{x.device}"
    if top not in kept:
        kept[key] = bank(top)
    return kept[key] @ x
"""


def told(scene: Any, tmp_path: Path, body: str, function_ms: float = 60.0, head: str = HEAD) -> Finding | None:
    """What the rule says where `bank` takes so much of a fetch of 100 ms, for which the step waits 60."""
    path = tmp_path / "clips.py"
    path.write_text(head + body)
    made = scene(100.0)
    loader = made.loader(wait_ms=60.0, fetch_ms=100.0, cpu_ms=95.0, num_workers=1)
    made.record.script = loader.dataset_file = str(path)
    loader.looks, loader.look_s, loader.epochs = 2, 0.1, 3
    loader.parts = [
        FetchPart("line", "__getitem__", Site(str(path), 12, function="__getitem__"), 0.09),
        FetchPart("lasting", "bank", Site(str(path), 6, function="bank"), function_ms / 1e3),
    ]
    findings = [each for each in RULE.check(made.evidence(tmp_path)) if each.parameters["kind"] == "missed"]
    return findings[0] if findings else None


def fixed(finding: Finding) -> str:
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Edit), fix
    return next(iter(fix.texts.values()))


def test_a_cache_that_is_filled_under_another_key_is_asked_for_that(scene: Any, tmp_path: Path) -> None:
    finding = told(scene, tmp_path, BODY)
    assert finding is not None and finding.site == Site(str(tmp_path / "clips.py"), 17)
    assert "kept is asked for top and filled under key" in finding.summary
    # Of 100 ms of making a batch 59 go: the step takes the 40 ms in which it does not wait, and a ms or two.
    assert finding.gain.low <= 100 / 41 <= finding.gain.high
    assert fixed(finding) == HEAD + BODY.replace("if top not", "if key not")


@pytest.mark.parametrize(
    "body",
    [
        BODY.replace("if top", "if key"),
        BODY.replace("if top not", 'if f"{top}_{x.device}" not'),  # the same, written out
        BODY.replace('f"{top}_{x.device}"', "str(top)"),  # which it may be
        BODY.replace('f"{top}_{x.device}"', "int(top)"),
        BODY.replace("    return", "    kept[top] = kept[key]\n    return"),  # it finds that
        BODY + "\n\ndef prepare(tops):\n    kept.update({each: bank_of(each) for each in tops})\n",
        BODY.replace("kept[key] = bank", "windows[key] = bank").replace("kept[key] @", "windows[key] @"),
        BODY.replace("if top not in kept", "if top not in (1, 2)"),
        BODY.replace("if top not in kept", "if top in kept"),
        BODY.replace("    key", "    kept = {}\n    key", 1),  # no cache
        BODY.replace("if top", 'if "bank"'),
        BODY.replace("        kept[key] =", "        for key in (key, 1):\n            kept[key] ="),
        BODY + "\n\ndef preview(top):\n    return bank(top)\n",  # which of the two was seen to run?
    ],
)
def test_what_finds_its_key_is_no_such_cache(body: str, scene: Any, tmp_path: Path) -> None:
    assert told(scene, tmp_path, body) is None


@pytest.mark.parametrize("text", ["torch.rand(80, top)", "next(BANKS)", "read(top)"])
def test_what_may_be_another_thing_each_time_is_no_such_value(text: str, scene: Any, tmp_path: Path) -> None:
    head = HEAD.replace("torch.linspace(0, 1, 80 * top).reshape(80, top)", text)
    assert told(scene, tmp_path, BODY, head=head) is None


def test_what_takes_a_small_part_of_a_batch_is_left_alone(scene: Any, tmp_path: Path) -> None:
    assert told(scene, tmp_path, BODY, function_ms=15.0) is None


@pytest.mark.parametrize(
    ("body", "after"),
    [
        (BODY.replace("if top not in kept", "if not top in kept.keys()"), "if not key in kept.keys()"),
        (
            BODY.replace('f"{top}_{x.device}"', "str(x.device)").replace("kept[key]", 'kept[key + "_" + str(top)]'),
            'if (key + "_" + str(top)) not in kept',
        ),
        (BODY.replace("kept[key]", "kept[(top, x.device)]"), "if (top, x.device) not in kept"),
        (BODY.replace("= bank(top)\n", "= bank(top)\n        windows[top] = 1\n"), "if key not"),
        (BODY.replace("= bank(top)\n", "= bank(top).to(x.device)\n"), "if key not"),
    ],
)
def test_it_is_asked_for_whatever_it_is_filled_under(body: str, after: str, scene: Any, tmp_path: Path) -> None:
    finding = told(scene, tmp_path, body)
    assert finding is not None and after in fixed(finding)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (BODY.replace("kept[key] = bank", "found = kept[key] = bank").replace("kept[key] @", "found @"), "found"),
        (BODY.replace("    key = ", "    if x.device.type:\n        key = "), "key is not known yet"),
        (BODY.replace("= bank(top)\n", "= bank(top)\n        windows[x.shape] = 1\n"), "depends on x.shape"),
        (BODY.replace("= bank(top)\n", "= bank(top)[:, :len(x)]\n"), "depends on x"),
        (BODY.replace("= bank(top)\n", "= bank(top)\n        x.seen = True\n"), "more is done there"),
        (BODY.replace("= bank(top)\n", "= bank(top)\n        print(top)\n"), "more is done there"),
        (BODY.replace("= bank(top)\n", "= bank(top)\n        return kept[key]\n"), "more is done there"),
        (BODY.replace("= bank(top)\n", "= bank(top) * x.gain\n"), "depends on x.gain"),
        (BODY.replace("@ x", "@ x + len(kept[top])"), "read under another key"),
        (BODY.replace("return kept[key] @ x", "w = kept[key]\n    w *= 2\n    return w @ x"), "may be written to"),
        (BODY.replace("return kept[key] @ x", "return kept[key]"), "may be written to"),
        (
            BODY.replace("{top}_{x.device}", "{x.device}").replace("= bank(top)\n", "= bank(top) * x.gain\n"),
            "depends on top",
        ),
        (  # both of a thousand have one key
            BODY.replace("{top}_{x.device}", "{top // 1000}"),
            "depends on top",
        ),
        (
            BODY.replace('    key = f"{top}_{x.device}"\n', "").replace(
                "kept[key] = bank(top)", "key = str(x.device)\n        kept[key] = bank(top)"
            ),
            "key is not known yet",
        ),
    ],
)
def test_where_another_key_would_leave_something_out_there_is_advice(
    body: str, why: str, scene: Any, tmp_path: Path
) -> None:
    finding = told(scene, tmp_path, body)
    assert finding is not None
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Advice) and why in fix.why
