"""Checkpoints are reported by their share of the time, where they come regularly and often enough to be known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advisor.edit import Edit, Sources
from advisor.harness.timing import Interval, summarize
from advisor.rule import Finding, Safety
from rules.checkpoint_heavy import CheckpointHeavy

RULE = CheckpointHeavy()


def saving(scene: Any, step_ms: float, save_ms: float, every: int, count: int = 4) -> Any:
    """Clean steps with a checkpoint after each `every` of them, summed up as the harness does."""
    made = scene(step_ms)
    made.operator("aten::addmm", 0.1, step_ms - 0.1)
    rows = []
    for number in range(1, every * count + 1):
        saves = number % every == 0
        rows.append(Interval((step_ms + save_ms * saves) / 1e3, frozenset({"checkpoint"} if saves else ()), 0.0, 32))
    summarize(made.record.timing, rows, [])
    made.call("checkpoint", 23, per_step=0.0)
    return made


def found(made: Any, folder: Path) -> list[Finding]:
    return list(RULE.check(made.evidence(folder)))


def test_share_and_gain_come_from_the_seconds_beside_the_steps(scene: Any, tmp_path: Path) -> None:
    (finding,) = found(saving(scene, 20.0, 60.0, every=5), tmp_path)
    assert finding.site is not None and finding.site.line == 23
    assert finding.evidence["checkpoint_share"] == pytest.approx(60 / 160)
    # 160 ms for five steps; with 2 % of the time for checkpoints 100 / 0.98
    assert finding.gain.likely == pytest.approx(160 / (100 / 0.98), rel=0.02)
    assert finding.gain.low < finding.gain.likely < finding.gain.high <= 2 * finding.gain.low
    assert finding.parameters["every"] == 145 and finding.parameters["now"] == 5


@pytest.mark.parametrize(
    ("save_ms", "every", "count"),
    [(60.0, 60, 4), (60.0, 5, 2), (60.0, 1, 20)],
    ids=["seldom", "seen twice", "in each step"],
)
def test_others_are_none(save_ms: float, every: int, count: int, scene: Any, tmp_path: Path) -> None:
    assert found(saving(scene, 20.0, save_ms, every, count), tmp_path) == []


def test_the_number_that_decides_becomes_another(scene: Any, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n\nSAVE_EVERY = 5\nfor step, x in enumerate(batches):\n    train(net, x)\n"
        "    if step % SAVE_EVERY == 0:\n        torch.save(net.state_dict(), 'last.pt')\n"
    )
    made = saving(scene, 20.0, 60.0, every=5)
    made.record.call_sites[-1].site.file, made.record.call_sites[-1].site.line = str(script), 7
    (finding,) = found(made, tmp_path)
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Edit)
    (after,) = fix.after.values()
    assert "SAVE_EVERY = 145\n" in after.text


LOOP = "for step, x in enumerate(batches):\n    train(net, x)\n    if step % 5 == 0:\n        {save}\n"
OWN = "def keep(step):\n    torch.save(net.state_dict(), f'{step}.pt')  # <-\n\n"
SAVE = "torch.save(net, 'last.pt')"


@pytest.mark.parametrize(
    ("text", "safety"),
    [
        (LOOP.format(save=SAVE + "  # <-"), Safety.BEHAVIOUR),
        (LOOP.format(save=SAVE + "  # <-") + SAVE, None),
        (LOOP.format(save=SAVE + "  # <-") + "numpy.save('losses', losses)", Safety.BEHAVIOUR),
        (SAVE + "\n" + LOOP.format(save=SAVE + "  # <-"), Safety.BEHAVIOUR),
        (OWN + LOOP.format(save="keep(step)"), Safety.BEHAVIOUR),
        (OWN + LOOP.format(save="keep(step)") + "print(step)\nkeep(step)", None),
        (OWN + LOOP.format(save="keep(step)") + "if True:\n    keep(step)", None),
        ("def f(:  # <-", Safety.BEHAVIOUR),
    ],
)
def test_the_last_one_is_to_be_saved_as_well(text: str, safety: Safety | None, scene: Any, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    line = next(number for number, each in enumerate(text.splitlines(), 1) if "# <-" in each)
    made = saving(scene, 20.0, 60.0, every=5)
    made.record.call_sites[-1].site.file, made.record.call_sites[-1].site.line = str(script), line
    (finding,) = found(made, tmp_path)
    assert finding.safety is safety
    fix = RULE.fix(finding, Sources())
    told = fix.summary if isinstance(fix, Edit) else str(getattr(fix, "text", ""))
    assert ("behind the loop" in told) is (safety is not None)


def test_a_script_that_is_short_keeps_two(scene: Any, tmp_path: Path) -> None:
    made = saving(scene, 20.0, 60.0, every=5)
    made.record.total_steps = 40
    assert [each.parameters["every"] for each in found(made, tmp_path)] == [20]
    made.record.total_steps = 14
    assert not found(made, tmp_path)


@pytest.mark.parametrize(("strategy", "reported"), [("steps", True), ("epoch", False)])
def test_what_a_trainer_is_told_need_not_be_seen_thrice(
    strategy: str, reported: bool, scene: Any, tmp_path: Path
) -> None:
    made = saving(scene, 20.0, 60.0, every=5, count=1)
    made.call("TrainingArguments", 7, per_step=0.0, values={"save_strategy": strategy, "save_steps": 5})
    assert [each.parameters["now"] for each in found(made, tmp_path)] == [5] * reported
