"""What a larger batch gains, by the model of the step, and as far as memory and the data go."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from advisor.evidence import Change
from advisor.evidence.coverage import Coverage
from advisor.evidence.facts import OPTIMIZER, OTHER
from advisor.evidence.spread import spread_s
from advisor.rule import Gain, forward_sites

if TYPE_CHECKING:
    from advisor.evidence import Evidence
    from advisor.harness.layout import RunRecord

_MEMORY_SHARE = 0.85  # of the device's memory: fragmentation and cuDNN's workspaces need the rest
_LEAST_BATCHES = 20  # an epoch of fewer steps than this is no training any more
# Changing the batch means tuning the learning rate again: it has to be worth more than noise.
LEAST_GAIN = 1.10
# A CPU's cores are busy with small batches already; more is mostly less overhead of Python. What is predicted to gain
# little gains less: 1.06 for 1.19 (a contrastive encoder of 256 samples), 1.16 for 1.15, 1.37 for 2.2 (a table's rows),
# 1.32 for 1.61 (a wide net, 256 samples).
_LEAST_ON_CPU = 1.75
# Copies of the parameters that stay whatever the batch: with gradients and Adam's two moments, or alone.
_TRAINING_COPIES, _INFERENCE_COPIES = 4, 1
# Of one sample's step, an assumption: less is what Python takes to put a tensor together, and to look at what the model
# gave.
_LEAST_APART_S = 1e-3


def gains_by_scale(
    evidence: Evidence, record: RunRecord, batch: int, length: int | None, trains: bool, scales: Iterable[int]
) -> dict[int, Gain]:
    """The predicted gain of each scale, as far as memory and data (`length` samples, if that is known) allow."""
    gains: dict[int, Gain] = {}
    for scale in scales:
        expected, capacity = expected_memory(record, scale, trains), evidence.memory.capacity
        if evidence.device_is_gpu and (expected is None or not capacity or expected > _MEMORY_SHARE * capacity):
            break
        if length is not None and length / (batch * scale) < (_LEAST_BATCHES if trains else 1):
            break
        gains[scale] = Gain.of(evidence.what_if(Change(batch_scale=float(scale))))
    return gains


def chosen_scale(evidence: Evidence, gains: dict[int, Gain]) -> tuple[int, Gain] | None:
    """The smallest scale within 3 % of the best that memory and data allow; None when none is worth it."""
    best = max((gain.likely for gain in gains.values()), default=0.0)
    least = max(LEAST_GAIN if evidence.device_is_gpu else _LEAST_ON_CPU, 0.97 * best)
    return next(((scale, gain) for scale, gain in gains.items() if gain.likely >= least), None)


def expected_memory(record: RunRecord, scale: int, trains: bool) -> int | None:
    """Bytes of peak memory to expect: what the batch does not change, and `scale` times the rest."""
    peak = record.memory.peak_allocated
    if peak is None:
        return None
    fixed = (_TRAINING_COPIES if trains else _INFERENCE_COPIES) * sum(each.parameter_bytes for each in record.models)
    return int(min(fixed, peak) + max(0, peak - fixed) * scale)


def paid_once(evidence: Evidence, scale: int) -> Gain:
    """The gain of batches `scale` times as large on a CPU, where the optimizer's step is one as before."""
    once = evidence.breakdown.share(OPTIMIZER)
    return Gain.of(evidence.what_if(Change(remove_host_s=spread_s(evidence, scale, once))))


def of_each_sample(evidence: Evidence) -> float:
    """The share of a step of one sample that is done with it beside the model: a picture is read, boxes are sorted out.

    Several samples at a time save nothing of that, and a step of theirs has it as often.
    """
    found, beside = evidence.outside, evidence.beside
    # What stands around the model's call, tensors made of a sample and of its output, is done for several at once, too.
    around = {(each.file, each.function) for one in forward_sites(evidence) for each in one.called_from}
    share = 0.0
    if found is not None and (found.called or (found.file, found.name) not in around):
        share = found.share
    if beside is not None and not beside.loops and (beside.calls or (beside.file, beside.name) not in around):
        share = max(share, beside.part * evidence.breakdown.share(OTHER))
    # What computes nothing with torch, wherever it stands: pictures are enlarged and their peaks looked for by NumPy, a
    # text is taken apart. What calling the model takes is shorter.
    apart = _apart(evidence) if not evidence.device_is_gpu else 0.0  # there much of it is waiting for the device
    return max(share, apart) if apart * (evidence.step_s or 0.0) >= _LEAST_APART_S else share


def _apart(evidence: Evidence) -> float:
    """The share of the traced steps in which neither a part of the step's own work runs nor an operator."""
    host, steps, operators = evidence.host, evidence.steps, evidence.trace.operators
    known = (host.forward, host.backward, host.optimizer, host.loader)
    busy = Coverage.of(operators.start, operators.end).union(*known)
    whole = float((steps.end - steps.start).sum())
    return 1.0 - float(busy.within(steps.start, steps.end).sum()) / whole if whole else 0.0


def where_part_stays(gain: Gain, share: float) -> Gain:
    """The gain of a change where this share of the step stays as it is."""
    low, likely, high = (1.0 / ((1.0 - share) / each + share) for each in (gain.low, gain.likely, gain.high))
    return replace(gain, low=low, likely=likely, high=high)
