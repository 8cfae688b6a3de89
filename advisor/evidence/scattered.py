"""A function of the user's, without torch in it, that takes much of a CPU step, in the model's own forward too.

A settings file that each look-up parses again, a schedule that is asked for each layer: the calls are short, come from
many places, and add up. Or one place in the forward asks for it: graphs of a batch put together in Python. By the
stacks of a few steps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from advisor.evidence.coverage import Coverage
from advisor.evidence.facts import Steps
from advisor.evidence.host import Host
from advisor.evidence.outside import LOOKS, OURS
from advisor.evidence.stacks import MODULE, UNNAMED, Function, Stacks
from advisor.evidence.steps import assign
from advisor.trace.tables import Ints, Trace

_MODELS = ("forward", "__call__")  # a model by itself: what else it asks for is meant
_LEAST = 0.1  # of the traced step: a function that takes less is not looked at
_MOST_OPERATORS = 0.1  # of a function's time: what computes more with torch is some of the step's own work
_SAME = 0.8  # of a function's time: what it calls and takes that is what it is about
# To write an operator down, with its shapes, takes as long as so many calls of Python's: 6 us and 0.2 us, measured
# where a step of 32.6 ms took 64.2 ms with 872 operators and 128,252 calls; most of these were made by one function,
# which took 2.5 ms by itself and 7.6 ms there.
CALL_S, OPERATOR_S = 0.2e-6, 6e-6
_OPERATOR = OPERATOR_S / CALL_S


@dataclass(frozen=True)
class Scattered:
    """A function in ``file`` from ``line`` on, ``share`` of an undisturbed step, in ``calls`` calls per step.

    ``around`` names the functions that are about it, from the outermost to itself; ``callers`` is how many others of
    the user's call the outermost. ``library`` is what it mostly calls of a library, "" where that is its own lines.
    ``in_forward``: a model's forward calls it, each time.
    """

    file: str
    line: int
    name: str
    share: float
    calls: float
    callers: int
    library: str
    around: tuple[str, ...]
    in_forward: bool = False


@dataclass(frozen=True)
class _Sum:
    rows: list[int]  # calls that are in no other call of the same function
    taken: int  # ns
    written: float  # calls that the trace has written down there, and operators, each as many as it takes time


def free_in_forward(trace: Trace, steps: Steps) -> float:
    """The share of the steps in which a model's forward runs, and no operator."""
    host = Host(trace, steps)
    whole = float((steps.end - steps.start).sum())
    return float(_free(host).within(steps.start, steps.end).sum()) / whole if whole else 0.0


def _free(host: Host) -> Coverage:
    return host.forward.minus(Coverage.of(host.trace.operators.start, host.trace.operators.end))


def scattered(
    detail: Trace, steps: Steps, files: Collection[str], step_s: float, free_share: float = 0.0
) -> Scattered | None:
    """The function that takes most, wherever it is called; `step_s` of a step without a trace.

    What a forward asks for takes, where that is more, its part of what forwards do beside operators: `free_share` of
    the steps that were traced without Python's calls, of which a step of all Python has ten thousands. (0.22 and 0.49
    of two steps of which it took 0.21 and 0.70; by the calls that were written down it is 0.12 and less than nothing.)

    What writing the trace down takes is taken off by how much of it was written down there. What loads data, and what
    the backward and the optimizer call, is left out. None where there are no stacks, or no such function.
    """
    stacks, host = Stacks.of(detail, steps.lane), Host(detail, steps)
    number = len(steps)
    if not len(stacks) or not number or not step_s:
        return None
    aside = host.loader.union(host.backward).union(host.optimizer)
    counted = (assign(steps, stacks.start) >= 0) & ~aside.contains(stacks.start)
    operators = np.sort(detail.operators.start)
    working = Coverage.of(detail.operators.start, detail.operators.end)
    traced_s = float((steps.end - steps.start).mean()) / 1e9
    calls, computed = (int((assign(steps, each) >= 0).sum()) for each in (stacks.start, operators))
    writing_s = max(0.0, traced_s - step_s) * number / max(1.0, calls + _OPERATOR * computed)
    known = {each: any(each.is_of(file) for file in files) for each in set(stacks.functions)}
    # Where a model's call begins a step, the harness works within what calls the model.
    ours = np.array([OURS in each.path and each.name in LOOKS for each in stacks.functions], np.bool_)
    looks = Coverage.of(stacks.start[ours], stacks.end[ours])
    found = {
        function: each
        for function, each in _sums(stacks, np.flatnonzero(counted), operators, known, looks).items()
        if each.taken >= _LEAST * traced_s * 1e9 * number and _computes_nothing(stacks, each, working)
    }
    # A traced call takes longer by what is written down in it: few calls of compiled code by nothing.
    spent = {function: each.taken / 1e9 - writing_s * each.written for function, each in found.items()}
    chain: list[Function] = []
    left = found
    while left:
        function = max(left, key=lambda each: (spent[each], each))
        if chain and spent[function] < _SAME * spent[chain[-1]]:
            break
        chain.append(function)
        within = Coverage.of(*(side[found[function].rows] for side in (stacks.start, stacks.end)))
        left = {
            each: one
            for each, one in left.items()
            if each not in chain and bool(within.contains(stacks.start[one.rows]).all())
        }
    if not chain:
        return None
    inner, outer = found[chain[-1]], found[chain[0]]
    callers = {caller for row in outer.rows if (caller := _caller(stacks, row, known)) is not None}
    function = chain[-1]
    share = spent[function] / number / step_s
    in_forward = bool(host.forward.contains(stacks.start[outer.rows]).all())
    free = float(_free(host).within(steps.start, steps.end).sum())
    if in_forward and free:
        share = max(share, min(1.0, inner.taken / free) * free_share)
    return Scattered(
        next(each for each in sorted(files) if function.is_of(each)),
        function.line,
        function.name,
        share,
        len(inner.rows) / number,
        len(callers),
        _library(stacks, inner, known),
        tuple(each.name for each in chain),
        in_forward,
    )


def _sums(
    stacks: Stacks, rows: Ints, operators: Ints, known: dict[Function, bool], looks: Coverage
) -> dict[Function, _Sum]:
    """Of each named function of the user's what its calls among `rows`, in the order of time, add up to.

    What the harness `looks` at within them is left out.
    """
    found: dict[Function, list[int]] = {}
    for row in rows.tolist():
        function = stacks.functions[row]
        if not known[function] or function.name in (*UNNAMED, MODULE, *_MODELS):
            continue
        calls = found.setdefault(function, [])
        if not calls or stacks.start[row] >= stacks.end[calls[-1]]:  # else in a call of itself
            calls.append(row)
    sums = {}
    for function, calls in found.items():
        start, end = stacks.start[calls], stacks.end[calls]
        inside, computed = (
            int((np.searchsorted(each, end) - np.searchsorted(each, start)).sum()) for each in (stacks.start, operators)
        )
        written = inside + _OPERATOR * computed
        sums[function] = _Sum(calls, int((end - start).sum() - looks.within(start, end).sum()), written)
    return sums


def _computes_nothing(stacks: Stacks, found: _Sum, working: Coverage) -> bool:
    torch = int(working.within(stacks.start[found.rows], stacks.end[found.rows]).sum())
    return torch <= _MOST_OPERATORS * found.taken


def _caller(stacks: Stacks, row: int, known: dict[Function, bool]) -> Function | None:
    """The user's function that the call `row` is made in; a comprehension belongs to the function that it is in."""
    above: Iterator[int] = stacks.up(int(stacks.parent[row]))
    functions = (stacks.functions[each] for each in above)
    return next((each for each in functions if known[each] and each.name not in UNNAMED), None)


def _library(stacks: Stacks, found: _Sum, known: dict[Function, bool]) -> str:
    """The function of a library that takes most of these calls' time, by its name."""
    rows = set(found.rows)
    taken: dict[str, int] = {}
    for row, parent in enumerate(stacks.parent.tolist()):
        if parent in rows and not known[stacks.functions[row]]:
            name = stacks.functions[row].name
            taken[name] = taken.get(name, 0) + int(stacks.end[row] - stacks.start[row])
    name = max(taken, key=lambda each: (taken[each], each), default="")
    return name if name and taken[name] >= _SAME * found.taken else ""
