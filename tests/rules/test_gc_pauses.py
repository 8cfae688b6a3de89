"""Time in the garbage collector is reported where the undisturbed steps lose it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from advisor.edit import Sources
from advisor.harness.machine.garbage import Garbage
from advisor.rule import Advice, Finding
from advisor.rulebook import load_rules


def found(made: Any, folder: Path) -> list[Finding]:
    (rule,) = [each for each in load_rules() if each.id == "gc-pauses"]
    return list(rule.check(made.evidence(folder)))


def collecting(scene: Any, gc_ms: float, asked_ms: float) -> Any:
    made = scene(50.0)
    made.operator("aten::addmm", 0.5, 20.0)
    made.call("gc.collect", 14)
    made.record.timing.gc_s, made.record.timing.gc_asked_s = gc_ms / 1e3, asked_ms / 1e3
    made.record.timing.gc_asked_steps = 40
    return made


def test_collections_that_the_script_asks_for(scene: Any, tmp_path: Path) -> None:
    (finding,) = found(collecting(scene, 25.0, 25.0), tmp_path)
    assert finding.site is not None and finding.site.line == 14
    assert finding.gain.low < 2.0 < finding.gain.high


def test_a_call_that_costs_nothing_is_not_reported(scene: Any, tmp_path: Path) -> None:
    assert found(collecting(scene, 0.2, 0.2), tmp_path) == []


def test_a_single_call_does_not_say_how_often_it_comes(scene: Any, tmp_path: Path) -> None:
    made = collecting(scene, 25.0, 25.0)
    made.record.timing.gc_asked_steps = 1
    assert found(made, tmp_path) == []


def test_automatic_collections_are_advice(scene: Any, tmp_path: Path) -> None:
    (finding,) = found(collecting(scene, 10.0, 0.0), tmp_path)
    (rule,) = [each for each in load_rules() if each.id == "gc-pauses"]
    fix = rule.fix(finding, Sources())
    assert isinstance(fix, Advice) and "gc.freeze" in fix.text


def test_collections_of_a_single_step_or_of_profiled_ones_are_chance(scene: Any, tmp_path: Path) -> None:
    made = collecting(scene, 25.0, 0.0)
    made.record.timing.steps = 1  # as in a public script that has two steps in all
    assert found(made, tmp_path) == []
    made = collecting(scene, 25.0, 0.0)
    made.record.timing.from_profile = True
    assert found(made, tmp_path) == []


def test_the_probe_tells_calls_from_automatic_collections() -> None:
    import gc

    calls: list[int] = []
    probe = Garbage(lambda: calls.append(1))
    probe.install()
    try:
        gc.collect()
        seconds, asked = probe.take()
        assert calls == [1] and 0.0 < asked <= seconds
        assert probe.take() == (0.0, 0.0)
        kept: list[list[int]] = [[] for _ in range(200_000)]  # sets the collector off
        seconds, asked = probe.take()
        assert seconds > 0.0 and asked == 0.0 and kept
    finally:
        gc.callbacks.remove(probe._collecting)
        probe._patch.off()
