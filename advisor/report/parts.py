"""The classes of a step's time as a reader meets them: what they are called, what they mean, their colour."""

from __future__ import annotations

from dataclasses import dataclass

from advisor.evidence import facts
from advisor.report.wording import label


@dataclass(frozen=True)
class Part:
    """A class of a step's time. ``meaning`` explains it to somebody who reads such a report for the first time."""

    label: str
    meaning: str
    family: str  # its colour: a key of advisor.report.colours.FAMILIES


# class of the breakdown → (family, meaning)
_MEANINGS = {
    facts.KERNEL: ("kernel", "the device computes"),
    facts.EXPOSED_COMMUNICATION: ("collective", "the device exchanges data with other ranks and computes nothing"),
    facts.EXPOSED_COPY: ("copy", "the device only moves data and computes nothing"),
    facts.IDLE_LOADER: ("loader", "the device has nothing to do until the loader delivers the next batch"),
    facts.IDLE_SYNC: ("sync", "the script waited for the device, and now has to launch again from an empty queue"),
    facts.IDLE_LAUNCH: ("launch", "kernels end sooner than the host can launch the next ones"),
    facts.IDLE_OPERATORS: ("host", "the host runs operators on the CPU between two kernels"),
    facts.IDLE_PYTHON: ("python", "the host runs Python code between two operators"),
    facts.IDLE_QUEUED: ("queued", "the device itself pauses between kernels that are already queued"),
    facts.IDLE_UNKNOWN: ("other", "the trace does not say what the device waited for"),
    facts.LOADER: ("loader", "the step is blocked until the loader delivers the next batch"),
    facts.FORWARD: ("forward", "the model computes its outputs and the loss"),
    facts.BACKWARD: ("backward", "autograd computes the gradients"),
    facts.OPTIMIZER: ("optimizer", "the parameters are updated"),
    facts.OTHER: ("other", "the rest of the step: Python, logging, metrics"),
}


def part(key: str) -> Part:
    """What to call the breakdown's class `key`; a class unknown here is shown under its own name."""
    family, meaning = _MEANINGS.get(key, ("other", ""))
    return Part(facts.LABELS.get(key) or label(key), meaning, family)


def ordered(breakdown: dict[str, float]) -> list[tuple[str, float]]:
    """The classes of a breakdown that take any time, largest first."""
    return sorted(((key, share) for key, share in breakdown.items() if share > 0), key=lambda item: -item[1])
