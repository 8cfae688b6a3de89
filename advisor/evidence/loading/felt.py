"""How a step feels that its batches are made: it waits for them, or its workers have the cores that it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from advisor.evidence import Evidence
    from advisor.evidence.facts import LoaderFacts
    from advisor.harness.layout import RunRecord

_LEAST_WAIT = 0.02  # a step that waits less than 2 % of its time for data gains nothing measurable by that
_IDLE = 0.1  # share of the cores: with more of them idle, nobody waits for one
_LEAST_TAKEN = 0.1  # of the cores: what workers take that is less is within what a step varies by


def waits(facts: LoaderFacts) -> bool:
    """Whether a step waits for its batches for longer than it varies by."""
    return facts.wait_share >= _LEAST_WAIT


def no_core_idle(record: RunRecord) -> bool:
    """Whether the timed steps, with all that ran beside them, kept every core busy; False where that is unknown."""
    idle = record.timing.idle_cores
    return idle is not None and idle <= _IDLE * record.environment.usable_cpus


def felt(evidence: Evidence, facts: LoaderFacts) -> str:
    """A sentence about how a step feels it; "" where it does not.

    On a CPU workers that keep up cost the step nothing only while a core is left for them. Convolutions of sound in two
    workers on two cores, for which a step waited 1 % of its time, made its forward three times as long.
    """
    if waits(facts):
        return f"The step waits {facts.wait_s * 1e3:.1f} ms ({facts.wait_share:.0%}) for the next batch."
    record, step_s = evidence.record, evidence.step_s
    if record is None or not step_s or not facts.workers or not facts.fetch_cpu_s or evidence.device_is_gpu:
        return ""
    taken = facts.fetch_cpu_s * evidence.step_model.batches_per_step / step_s
    cores = record.environment.usable_cpus
    if not no_core_idle(record) or taken < _LEAST_TAKEN * cores:
        return ""
    return f"No core is idle, and of {cores:.0f} the workers take {taken:.1f} from the step."
