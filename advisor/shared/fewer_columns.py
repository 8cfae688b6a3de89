"""What a step would take on fewer columns of token ids: without those that are padding."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from advisor.evidence import Change
from advisor.evidence.batch import OPERATOR_FIXED_S, weights_s
from advisor.evidence.facts import BACKWARD, FORWARD, OTHER
from advisor.evidence.model import spanning
from advisor.evidence.nesting import Nesting
from advisor.evidence.shapes import shapes_at
from advisor.evidence.steps import assign, step_windows
from advisor.rule import Gain

if TYPE_CHECKING:
    from advisor.evidence import Evidence
    from advisor.harness.layout import Model

LEAST_PADDED = 0.2  # of the columns: batches of similar lengths differ by less from run to run
_ATTENTION = "scaled_dot_product"
_OF_PICTURES = re.compile(r"conv|pool|batch_norm|upsample")
# Fewer columns fit into the caches. Encoders of 2 to 4 layers, 128 to 384 wide, with 256 columns over 128, 64, 32 and
# 16 of them, two cores: 2.1 to 3.2, 4.1 to 6.6, 7.7 to 11.8 and 13 to 19, what calls and attention take included:
# powers of 0.9 to 1.7. The one here was chosen with these and two measured cases at hand (clause_tagger_multiples 6.7,
# comment_scores_padded 16.8), whose gains are no test of it.
_BY_COLUMNS = 1.25
# On a GPU attention's part is between the two: a power of the columns that are kept.
_WITH_ATTENTION = 1.5
# Of the time in forward and backward: making lists and tensors of so many columns, beside them. A DistilBERT's step of
# 65 ms had 3 ms of it, and 1 when a thirteenth of the columns was left.
_MOST_MAKING = 0.1


def on_columns(evidence: Evidence, model: Model) -> float:
    """Which share of the operators' work is on a model's columns of token ids, where it is given pictures besides.

    By the shapes of the window that has them: those of tokens begin with samples and columns, heads in between, or with
    all tokens of the batch. 1.0 where the model is given nothing else, no shapes are known, or as many samples as there
    are columns.
    """
    detail, width = evidence.detail, model.width
    ids = next((each.shape for each in model.inputs if len(each.shape) == 2 and each.shape[1] == width), None)
    others = any(len(each.shape) > 2 and "float" in each.dtype for each in model.inputs)
    if detail is None or ids is None or not others or ids[0] == width:
        return 1.0
    inside = assign(step_windows(detail), detail.operators.start) >= 0
    own, on, whole = Nesting(detail).self_ns, 0.0, 0.0
    for row in np.flatnonzero(inside & (own > 0)).tolist():
        shapes = [each for each in shapes_at(detail, row) if len(each) > 1]
        if shapes:
            whole += float(own[row])
            of_pictures = _OF_PICTURES.search(detail.name(int(detail.operators.name[row]))) is not None
            if not of_pictures and any(_of_tokens(each, ids[0], width) for each in shapes):
                on += float(own[row])
    return on / whole if whole else 1.0


def _of_tokens(shape: tuple[int, ...], samples: int, columns: int) -> bool:
    if len(shape) == 2:
        return samples * columns in shape
    if len(shape) == 3:
        return shape[:2] == (columns, samples) or (shape[0] % samples == 0 and columns in shape[1:])
    return len(shape) == 4 and shape[0] == samples and columns in shape[1:3]


def columns_spared(evidence: Evidence, padded: float, basis: str, attention: float = 2.0, share: float = 1.0) -> Gain:
    """The gain of a step that computes on a share of `padded` fewer columns of token ids, a prior by that `basis`.

    There is as much less work as there are fewer columns; attention's part shrinks with their power `attention`: their
    square, where all batches become narrower alike. Only that `share` of all work is on these columns.

    On a CPU between two: only what the operators of forward and backward do themselves shrinks, or all of the time in
    these, and as much again of making the tensors as that may be. What calls and weights take stays. On a GPU as if the
    batch were smaller by those columns: what does not grow with it stays.
    """
    kept = 1.0 - padded
    attends = [row for row in evidence.operators if _ATTENTION in row.name]
    traced_s = evidence.trace_step_s
    if evidence.device_is_gpu or not traced_s:
        scale = 1.0 - share * (1.0 - kept ** (_WITH_ATTENTION if attends else 1.0))
        return Gain.of_less(evidence.what_if(Change(batch_scale=scale)), scale, basis)
    breakdown, record = evidence.breakdown, evidence.record
    within_s = (breakdown.share(FORWARD) + breakdown.share(BACKWARD)) * traced_s
    within_s += min(_MOST_MAKING * within_s, breakdown.share(OTHER) * traced_s)
    start = evidence.trace.operators.start
    called = (assign(evidence.steps, start) >= 0) & ~evidence.host.loader.contains(start)  # of a sample others are
    stays_s = int(called.sum()) / max(1, len(evidence.steps)) * OPERATOR_FIXED_S
    stays_s += weights_s(record.models if record is not None else [], evidence.trains)
    square_s = sum(row.self_s for row in attends)
    estimates = []
    for whole_s in (evidence.step_model.operators_s, within_s):
        spared = max(0.0, whole_s - square_s - stays_s) * (1.0 - kept**_BY_COLUMNS) + square_s * (1.0 - kept**attention)
        spared *= share
        change = Change(remove_host_s=spared * (evidence.step_s or traced_s) / traced_s)
        estimates.append(evidence.what_if(change))
    return Gain.prior(spanning(*estimates), basis)
