"""Operators wait for threads that sleep: only those that have work for several, and where there are several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advisor.evidence.asleep import asleep_s
from advisor.harness.layout import CallSite, FetchPart, Site
from advisor.rule import Finding
from rules.blocking_work_between_steps import BlockingWorkBetweenSteps
from rules.slow_collate import SlowCollate


def computing(made: Any, ms: float, threads: int = 2) -> Any:
    """Steps that wait for 10 ms, then compute for `ms` in one large operator, and half of that in small ones."""
    made.record.environment.intraop_threads = threads
    made.operator("aten::mm", 10.0, 10.0 + ms)
    for number in range(round(ms / 2 / 0.02)):
        made.operator("aten::add", 10.0 + ms + 0.02 * number, 10.02 + ms + 0.02 * number)
    return made


@pytest.mark.parametrize(("ms", "likely", "most"), [(2.0, 2e-3, 2.6e-3), (8.0, 3e-3, 4.5e-3), (0.04, 0.0, 0.0)])
def test_large_operators_wait_and_are_soon_awake(
    ms: float, likely: float, most: float, scene: Any, tmp_path: Path
) -> None:
    evidence = computing(scene(30.0), ms).evidence(tmp_path)
    assert asleep_s(evidence, 20e-3) == pytest.approx((likely, most))


def test_what_a_step_computes_is_not_all_waiting(scene: Any, tmp_path: Path) -> None:
    evidence = computing(scene(30.0), 8.0).evidence(tmp_path)
    assert asleep_s(evidence, 4e-3) == pytest.approx((1.6e-3, 3e-3))
    assert asleep_s(evidence, -1e-3) == (0.0, 0.0)


def test_one_thread_waits_for_none(scene: Any, tmp_path: Path) -> None:
    assert asleep_s(computing(scene(30.0), 2.0, threads=1).evidence(tmp_path), 20e-3) == (0.0, 0.0)


def test_what_makes_a_batch_is_not_the_steps(scene: Any, tmp_path: Path) -> None:
    made = scene(30.0)
    made.loader(9.0, 9.0, 9.0)
    made.record.environment.intraop_threads = 2
    made.operator("aten::stack", 1.0, 4.0)
    assert asleep_s(made.evidence(tmp_path), 20e-3) == (0.0, 0.0)


def waiting(made: Any) -> Any:
    details = {"seconds": {"time.sleep at log.py:3": 0.4}}
    made.record.call_sites.append(CallSite("blocking", Site("/nowhere/train.py", 20), 40, 1.0, 0.01, details=details))
    return made


def collating(made: Any) -> Any:
    loader = made.loader(10.0, 10.0, 10.0)
    loader.looks, loader.look_s, loader.collate_lines = 2, 0.01, 400.0
    loader.parts = [FetchPart("collate", "pad", Site("/nowhere/train.py", 3), 0.0099)]
    return made


@pytest.mark.parametrize(
    ("rule", "idle"), [(BlockingWorkBetweenSteps(), waiting), (SlowCollate(), collating)], ids=["waits", "collates"]
)
def test_without_the_pause_the_threads_stay_awake(rule: Any, idle: Any, scene: Any, tmp_path: Path) -> None:
    def gain(threads: int) -> Finding:
        (finding,) = rule.check(idle(computing(scene(16.0), 2.0, threads)).evidence(tmp_path))
        assert finding.gain.high <= 2.000001 * finding.gain.low
        return finding

    one, two = gain(1).gain, gain(2).gain
    assert two.likely > 1.3 * one.likely and two.high > one.high
