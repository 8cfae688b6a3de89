"""Batches that no loader makes: how many samples a step takes, by what its model is given and who calls it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from advisor.evidence.python_loops.added_gradients import adds_up_gradients
from advisor.evidence.python_loops.called_from import keeps_state, loop_around
from advisor.evidence.python_loops.rounds import busiest_loop, called_loop
from advisor.evidence.python_loops.sample_gradients import loop_of_gradients
from advisor.evidence.python_loops.taken_loops import taken_loop
from advisor.harness.indexing import KIND

if TYPE_CHECKING:
    from advisor.evidence import Evidence
    from advisor.evidence.python_loops.loops import SampleLoop
    from advisor.harness.layout import CallSite, RunRecord, Site

# Of batches that no loader makes nobody knows what else grows with them: only a handful of samples is called few, and
# one is a step of a sequence, or of a game, as often as a batch.
_MOST_BY_HAND = 32
_MOST_COLLECTING = 0.1  # of a step, in collections of Python's own
_MOST_LOOPING = 0.3  # of a step, in a loop with as many rounds as the batch has samples
_MOST_REPEATS = 0.1  # of a model's calls get the tensor of the call before
_LEAST_ROUNDS = 2
_MOST_CALLS = 1.5  # a step: of several calls others can go together than those of one sample after another


def loop_place(evidence: Evidence, loop: SampleLoop, text_of: Callable[[str], str]) -> Site | None:
    """The line of `loop`, where the source has it as one over parts of a tensor whose rounds are independent."""
    sites = evidence.record.call_sites if evidence.record is not None else []
    taken = [each for each in sites if each.kind == KIND]
    if loop.nested:  # the inner loops take more parts, one after another; the outer one goes over as many as it rounds
        rounds = round(loop.rounds / max(1.0, loop.times))
        taken = [each for each in taken if each.details.get("iterates") and each.details.get("rows") == rounds]
    return busiest_loop(
        [each for each in taken if (loop.iterates if each.details.get("iterates") else loop.takes)], text_of
    )


def loops_over(evidence: Evidence, forwards: Sequence[CallSite], text_of: Callable[[str], str], batch: int) -> bool:
    """Whether a loop in Python with a round for each sample takes much of the step, or calls the model: it grows.

    As many rounds as samples, or independent ones over parts of a tensor: other rounds are time steps, or layers.
    """
    if called_loop(forwards, text_of) is not None:
        return True
    most = _MOST_LOOPING * (evidence.trace_step_s or 0.0)
    taken = taken_loop(evidence, text_of)
    if taken is not None and taken[0].forward_s + taken[0].backward_s >= most:
        return True
    loop = evidence.sample_loop
    if loop is None or loop.forward_s + loop.backward_s < most:
        return False
    if abs(loop.rounds / max(1.0, loop.times) - batch) <= 0.02 * batch:
        return True
    return loop_place(evidence, loop, text_of) is not None


def by_hand(evidence: Evidence, record: RunRecord, text_of: Callable[[str], str]) -> int | None:
    """Samples of each step, where no loader makes them: as many as the one model that is called gets rows.

    A model that is called several times in a step (by a solver, say) gets as many each time. None for a model that gets
    the same tensor again and again, which may well be all the data that there is; for more samples than anybody would
    call few; and where collecting garbage, or a loop over the samples, grows with them.
    """
    loops = evidence.sample_loop is not None or taken_loop(evidence, text_of) is not None
    found = _rows(evidence, record) if not loops else None
    return found[0] if found is not None else None


def accumulated(
    evidence: Evidence, record: RunRecord, backwards: Sequence[CallSite], text_of: Callable[[str], str]
) -> tuple[int, int] | None:
    """Samples that the one model is given at a time, and how often in a step, each time with a backward of its own.

    Gradients are accumulated over batches that no loader makes. None where that is not so, as for :func:`by_hand`, and
    where no loss is divided by their number, or one needs another: an attack's rounds, or a sequence's parts.
    """
    found = _rows(evidence, record)
    if found is None or found[1] < _LEAST_ROUNDS:
        return None
    if abs(sum(each.calls_per_step for each in backwards) - found[1]) > 0.02 * found[1]:
        return None
    if not all(adds_up_gradients(text_of(each.site.file), each.site.line) for each in backwards):
        return None
    stateful = any(keeps_state(text_of(path), cls) for model in record.models for cls, path in model.own.items())
    return None if stateful else found


def _rows(evidence: Evidence, record: RunRecord) -> tuple[int, int] | None:
    """Few rows that the one model that is called gets, and how often in a step it gets as many."""
    if (record.timing.gc_s or 0.0) > _MOST_COLLECTING * (evidence.step_s or 0.0):
        return None
    called = [model for model in record.models if model.calls]
    if len(called) != 1 or record.shapes_vary or called[0].repeats > _MOST_REPEATS * called[0].calls:
        return None
    shapes = [each.shape for each in called[0].inputs if each.shape]
    rows = shapes[0][0] if shapes else 0
    times = (record.timing.samples_per_step or 0.0) / rows if rows else 0.0
    return (rows, int(times)) if 1 < rows <= _MOST_BY_HAND and times >= 1.0 and times == int(times) else None


def one_by_one(record: RunRecord, forwards: Sequence[CallSite], text_of: Callable[[str], str]) -> Site | None:
    """The loop that calls the one model there is for a single sample in each step, and could for several.

    None where a step needs what the one before has computed, where requests are answered or timed one by one, and for
    a model that gets the same tensor again and again. `text_of` gives a file's text, "" where there is none.
    """
    called = [model for model in record.models if model.calls]
    if len(called) != 1 or called[0].repeats > _MOST_REPEATS * called[0].calls:
        return None
    shapes = [each.shape for each in called[0].inputs if each.shape]
    if not shapes or any(shape[0] != 1 for shape in shapes) or max(map(len, shapes)) < 2:
        return None
    if sum(each.calls_per_step for each in forwards) > _MOST_CALLS:
        return None
    if any(keeps_state(text_of(path), cls) for cls, path in called[0].own.items()):
        return None
    busiest = max(forwards, key=lambda each: each.calls_per_step, default=None)
    if busiest is None or loop_of_gradients(busiest.called_from, text_of) is not None:
        return None  # several samples at once would have the sum of their gradients, not those of each
    return loop_around(busiest.called_from, text_of)
