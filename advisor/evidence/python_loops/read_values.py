"""Numbers that a loop in Python reads out of tensors on the CPU, one by one: ``x[i, j].item()``, ``float(x[i])``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from advisor.evidence.coded import names_like
from advisor.evidence.python_loops.rounds import is_repeated
from advisor.evidence.steps import assign

if TYPE_CHECKING:
    from advisor.evidence import Evidence
    from advisor.harness.layout import CallSite

_READS = ("aten::item", "aten::is_nonzero")  # the second calls the first
_KIND = "Tensor.item"
# What is computed of a part before its number is asked for: parts of it, comparisons, sums of two.
_BEFORE = {
    f"aten::{name}"
    for name in (
        *("select", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not", "add", "sub"),
        *("mul", "div", "bitwise_and", "bitwise_or", "abs", "neg"),
    )
}
_LEAST = 50  # reads in a step: fewer are not worth a line
_MOSTLY = 0.8  # of all reads seen in the script, in loops: those elsewhere cannot be told from them in the trace
# Seconds of one thread that Python and torch take for what a number costs: to read it, and for each operator before. In
# loops of nothing else x[i].item() took 0.8 us, x[i, j].item() 1.4, x[i, j, k].item() 1.8, `if x[i] > y[i]` 2.2 (torch
# 2.14, EPYC, both cores busy); a decoder's 10,000 reads by 27,000 indices came to 14 ms, with these to 15.
READ_S, BEFORE_S = 0.35e-6, 0.42e-6
# And to take it out of a list instead, which x.tolist() has made: 0.01 to 0.03 us, and as much to make the list.
LISTED_S = 0.05e-6


@dataclass(frozen=True)
class ReadValues:
    """``reads`` numbers per step, by ``operators`` in all, in loops at ``sites``, the busiest first.

    ``seconds`` per step are what they take, undisturbed, and ``left_s`` what the same numbers take out of lists.
    """

    reads: float
    operators: float
    seconds: float
    left_s: float
    sites: tuple[CallSite, ...]


def read_values(evidence: Evidence, text_of: Callable[[str], str]) -> ReadValues | None:
    """Those of the steps, by the profile window; None where there are few, or not nearly all are read in loops.

    `text_of` gives a file's text, "" where there is none.
    """
    record, trace = evidence.record, evidence.trace
    if record is None or not len(trace.operators) or not len(evidence.steps):
        return None
    seen = [each for each in record.call_sites if each.kind == _KIND]
    sites = [
        each
        for each in seen
        if each.details.get("device") == "cpu"
        and "inside" not in each.details
        and is_repeated(text_of(each.site.file), each.site)
    ]
    if not sites or sum(each.calls for each in sites) < _MOSTLY * sum(each.calls for each in seen):
        return None
    reads, before, share = _counted(evidence)
    if reads < _LEAST:
        return None
    return ReadValues(
        reads=reads,
        operators=reads + before,
        # The profiler's own time for so many operators makes the share of the traced step the most that it can be.
        seconds=min(reads * READ_S + before * BEFORE_S, share * (evidence.step_s or 0.0)),
        left_s=reads * LISTED_S,
        sites=tuple(sorted(sites, key=lambda each: -each.calls)),
    )


def _counted(evidence: Evidence) -> tuple[float, float, float]:
    """Per step: numbers that are read beside loader, optimizer and backward, and the operators right before each; and
    the share of the traced step from the first of these, or from the read before, to the read.
    """
    operators, host, nesting = evidence.trace.operators, evidence.host, evidence.nesting
    elsewhere = host.optimizer.union(host.loader, host.backward)
    rows = np.flatnonzero(
        (assign(evidence.steps, operators.start) >= 0)
        & (nesting.parent < 0)
        & (operators.lane == evidence.steps.lane)
        & ~elsewhere.contains(operators.start)
    )
    rows = rows[np.argsort(operators.start[rows], kind="stable")]
    names = operators.name[rows]
    reads = names_like(evidence.trace, names, _READS.__contains__)
    before = names_like(evidence.trace, names, _BEFORE.__contains__)
    if not reads.any():
        return 0.0, 0.0, 0.0
    place = np.arange(len(rows))
    last = np.maximum.accumulate(np.where(before, -1, place))
    runs = np.concatenate(([0], place[:-1] - last[:-1]))  # of `before`, up to the row
    read = np.flatnonzero(reads)
    first = read - runs[read]
    begin = operators.start[rows[first]]
    follows = first > 0
    follows[follows] = reads[first[follows] - 1]  # what Python does between two of them is a part of it
    begin[follows] = operators.end[rows[first[follows] - 1]]
    spent = float((operators.end[rows[read]] - begin).sum())
    steps, whole = evidence.steps, float((evidence.steps.end - evidence.steps.start).sum())
    return len(read) / len(steps), float(runs[read].sum()) / len(steps), spent / whole
