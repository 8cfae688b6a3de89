"""A model that is asked for one sample after another beside what it learns: a rollout, robot by robot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from advisor.evidence.called_from import keeps_state, loop_around
from advisor.evidence.coded import names_like
from advisor.evidence.rounds import LEAST_CALLS, MOSTLY
from advisor.evidence.steps import assign
from advisor.harness import layout

if TYPE_CHECKING:
    from advisor.evidence import Evidence
    from advisor.harness.layout import CallSite, Site

_NEXT = 4.0  # times what lies between two calls as a rule: beyond it something else went on


@dataclass(frozen=True)
class Asked:
    """The loop, its calls of the model in a step, and their seconds: as traced, from one call's begin to the next's."""

    site: Site
    calls: float
    seconds: float


def asked_one_by_one(evidence: Evidence, text_of: Callable[[str], str]) -> Asked | None:
    """The loop that makes most of a step's calls, each without gradients and for a single sample.

    None where a round needs what another one computed, as far as the source tells (:func:`loop_around`), or the model
    keeps a state. `text_of` gives a file's text, "" where there is none.
    """
    record, trace, steps = evidence.record, evidence.trace, evidence.steps
    sites = [each for each in record.call_sites if each.kind == "Module.call"] if record is not None else []
    most = max(sites, key=lambda each: each.calls_per_step, default=None)
    if record is None or most is None or most.details.get("grad", True) or not len(steps):
        return None
    if most.calls_per_step < max(LEAST_CALLS, MOSTLY * sum(each.calls_per_step for each in sites)):
        return None
    if not _single(most, sites):
        return None
    loop = loop_around(most.called_from, text_of)
    own = (pair for model in record.models for pair in model.own.items())
    if loop is None or any(keeps_state(text_of(path), cls) for cls, path in own):
        return None
    forwards = names_like(trace, trace.annotations.name, layout.FORWARD_RANGE.__eq__)
    forwards &= assign(steps, trace.annotations.start) >= 0
    apart = np.diff(np.sort(trace.annotations.start[forwards]))
    if not len(apart):
        return None
    seconds = float(np.minimum(apart, _NEXT * np.median(apart)).sum()) / 1e9 / len(steps)
    return Asked(loop, most.calls_per_step, seconds)


def _single(asked: CallSite, sites: list[CallSite]) -> bool:
    """Whether a call gets one sample: a batch of one, or what lacks the batch's dimension that another call gives."""
    shape = asked.details.get("shape")
    if not isinstance(shape, list) or not shape:
        return False
    others = [each.details.get("shape") for each in sites if each.details.get("module") == asked.details.get("module")]
    batched = any(isinstance(each, list) and each[1:] == shape and len(each) > 1 for each in others)
    return batched or (shape[0] == 1 and len(shape) > 1)
