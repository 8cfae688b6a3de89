"""What is less certain about a run or a trace, in sentences for its reader."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from advisor.evidence import Evidence
    from advisor.harness.layout import Timing

CAPTURES = 0.2  # share of the steps: from here on a trace is about capturing graphs, not about the steps
COLD = 0.1  # likewise: from here on what is seen is a start, not the steps that come after it
_INFLATED = 1.5  # times: from here on the breakdown is not what an undisturbed step looks like
# Cores that others keep busy, where none is idle: a niced program on one of two cores, which gives way, but holds up
# threads that wait for each other, made the steps of five scripts 1.5 to 8 times as long.
_OTHERS, _IDLE = 0.2, 0.5
_WORTH_A_NOTE = 0.85  # the profiler's part of the host's time is said from 15 % on


def notes_of(evidence: Evidence) -> list[str]:
    """The run's own notes and the trace's warnings, and what the figures say of themselves."""
    notes = list(evidence.record.notes) if evidence.record is not None else []
    notes.extend(evidence.trace.warnings)
    if evidence.steps.pseudo and len(evidence.steps):
        notes.append("The trace has no step annotations: the whole trace is taken as one step.")
    if evidence.steps.boundary:
        notes.append(f"The trace has no step annotations: a step is taken to end with {evidence.steps.boundary}.")
    if evidence.device_steps.behind:
        notes.append("The host is far ahead of the device: steps are taken to end when the device is through.")
    if evidence.capture_share >= CAPTURES:
        notes.append(
            f"Graphs are captured for {evidence.capture_share:.0%} of the trace: what is captured does not run, and "
            "the device looks idle. A trace of their replay says what the steps are made of."
        )
    if evidence.setup_share >= COLD:
        notes.append(
            f"For {evidence.setup_share:.0%} of the trace the device idles while the driver sets itself up, as it does "
            "when kernels are launched for the first time. Record the trace after some steps of warm-up."
        )
    model = evidence.undisturbed_model if evidence.breakdown.on_device else None
    if model is not None and model.host_scale is not None and model.host_scale < _WORTH_A_NOTE:
        notes.append(
            f"About {1 - model.host_scale:.0%} of the host's time in this trace is the profiler's own, judged by "
            "operators that compute nothing; the predictions reach from the step as traced to one without it."
        )
    if evidence.record is not None and evidence.inflation >= _INFLATED:
        notes.append(
            f"A step took {evidence.inflation:.1f} times as long under the profiler: the shares of what makes many "
            "small calls are overstated. Step times and predictions are from steps without it."
        )
    if evidence.record is not None and (others := _crowded(evidence.record.timing)):
        notes.append(
            f"Other programs kept {others:.1f} cores busy while the steps were timed, and no core was free: the "
            "steps took longer for it, and the predictions may be far off. Measure again on a quiet machine."
        )
    if evidence.record is not None and evidence.record.timing.from_profile and not evidence.record.notes:
        notes.append("The script was over too soon: step times were taken before it had settled.")
    unsettled = evidence.record is not None and not evidence.record.timing.settled and evidence.record.timing.step_s
    if unsettled and not any("settle" in note for note in notes):
        notes.append("The step time had not settled when it was measured.")
    return notes


def _crowded(timing: Timing) -> float:
    """Cores that other programs kept busy where none was left; 0 where there was room, or nobody knows."""
    others, idle = timing.others_cores or 0.0, timing.idle_cores
    return others if others >= _OTHERS and idle is not None and idle < _IDLE else 0.0
