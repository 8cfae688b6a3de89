"""Loops in Python over a model's parameters, beside forward, backward and optimizer: few small operators for each.

An average of the weights, a penalty on them, an update written by hand, their norms for a log. The same operators again
and again, in one function of the user's, each time for a tensor that has the shape of a parameter.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from advisor.evidence.coded import names_like
from advisor.evidence.gradients.backwards import backward_s
from advisor.evidence.host import Host
from advisor.evidence.nesting import Nesting
from advisor.evidence.outside import users_functions
from advisor.evidence.python_loops.loops import LEAST_ROUNDS, repeating
from advisor.evidence.shapes import Shape, input_shapes
from advisor.evidence.steps import assign, by_step, step_windows

if TYPE_CHECKING:
    from advisor.evidence import Evidence
    from advisor.evidence.facts import Steps
    from advisor.trace.tables import Ints, Trace

_LONGEST_BODY = 24  # operators: what does more for each parameter is more than an average or a norm
_LARGE = 1 << 16  # elements: buffers of norms are small
# The operators of a round that moves an average.
_AVERAGES = ({"aten::lerp_"}, {"aten::mul_", "aten::add_"})
_FITS = 0.9  # of the rounds: their tensors have the shape of a parameter
_ACCUMULATES = "torch::autograd::AccumulateGrad"
# Seconds per element that an operator reads, beside being called: what stays, whatever calls it. One thread, torch
# 2.14: 48 tensors of up to 512 x 512, lerp_ and norm() 0.2 ns; std() and what is not known take up to 1.6.
_CHEAP_S, _DEAR_S = 0.2e-9, 1.6e-9
_FLOATS = {"float", "double", "c10::BFloat16", "c10::Half"}
_DEAR = ("std", "var", "svd", "histc", "quantile", "median", "sort", "exp", "log", "linalg_matrix")


@dataclass(frozen=True)
class ParameterLoop:
    """A loop of the user's, of the function that begins at (file, line); 0 outside of all. Seconds of an untraced step.

    ``operators`` are the names of one round, ``rounds`` how often they are called in a step; ``seconds`` from the first
    to the last, ``backward_s`` of the backward for them, ``work_s`` an estimate of the work on the elements. ``alike``:
    all tensors that a round works on are of one shape and type. ``untrained``: the share of the elements that belong to
    large tensors of no trained parameter's shape.
    """

    function: tuple[str, int]
    operators: tuple[str, ...]
    rounds: float
    seconds: float
    backward_s: float
    work_s: float
    alike: bool
    untrained: float = 0.0

    @property
    def averages(self) -> bool:
        """Whether its rounds are those of an average that moves, by their operators."""
        return _averages(self.operators)


@dataclass(frozen=True)
class _Run:
    """The rows of ``Trace.operators`` that repeat themselves, and how many of them are one round."""

    rows: Ints
    period: int

    def names(self, trace: Trace) -> tuple[str, ...]:
        """Of one round, in order of their names: where it begins is chance."""
        return tuple(sorted(trace.name(int(code)) for code in trace.operators.name[self.rows[: self.period]]))


def parameter_loops(evidence: Evidence) -> tuple[ParameterLoop, ...]:
    """The loops over parameters in each step of a training, the longest first; none without stacks and shapes."""
    trace, detail, record = evidence.trace, evidence.detail, evidence.record
    if detail is None or record is None or not len(evidence.host.backward):
        return ()
    shapes = _trained(detail)
    runs = [run for run in _runs(detail, step_windows(detail)) if _fits(detail, run, shapes)]
    if not runs:
        return ()
    middles = [int(run.rows[len(run.rows) // 2]) for run in runs]
    functions = users_functions(detail, np.array(middles, np.int64), record)
    seen: dict[tuple[str, ...], list[tuple[_Run, tuple[str, int]]]] = {}
    for run, middle in zip(runs, middles, strict=True):
        if middle in functions:
            seen.setdefault(run.names(detail), []).append((run, functions[middle]))
    timed: dict[tuple[str, ...], list[_Run]] = {}
    for run in _runs(trace, evidence.steps):
        timed.setdefault(run.names(trace), []).append(run)
    found = []
    for names, known in seen.items():
        places = {place for _, place in known}
        # The window without stacks does not say whose operators these are: one function's, or nobody's.
        if len(places) > 1 or names not in timed:
            continue
        rounds = sum(len(run.rows) // run.period for run in timed[names])
        detailed = sum(len(run.rows) // run.period for run, _ in known)
        work = sum(_work_s(detail, run.rows) for run, _ in known) / detailed
        steps = len(evidence.steps)
        found.append(
            ParameterLoop(
                places.pop(),
                names,
                rounds / steps,
                _undisturbed_s(evidence, timed[names], [_seconds(trace, run) for run in timed[names]]),
                _undisturbed_s(
                    evidence, timed[names], [backward_s(trace, evidence.nesting, run.rows) for run in timed[names]]
                ),
                work * rounds / steps,
                all(_alike(detail, run) for run, _ in known),
                _untrained(detail, [run for run, _ in known], shapes),
            )
        )
    return tuple(sorted(found, key=lambda each: -each.seconds - each.backward_s))


def repeated_runs(codes: Ints) -> list[tuple[int, int, int]]:
    """(start, end, period) of the stretches of `codes` that repeat themselves LEAST_ROUNDS times or more.

    None of them overlap: the longest first, and of one stretch the shortest period.
    """
    candidates = []
    for period in range(1, min(_LONGEST_BODY, len(codes) // LEAST_ROUNDS) + 1):
        for start, end in zip(*(each.tolist() for each in repeating(codes, period)), strict=True):
            whole = (end - start) // period * period
            if whole >= LEAST_ROUNDS * period:
                candidates.append((start, start + whole, period))
    taken = np.zeros(len(codes), np.bool_)
    found = []
    for start, end, period in sorted(candidates, key=lambda each: (each[0] - each[1], each[2])):
        # What comes before a loop may look like its end: a longer one then has the last operator of the one before it.
        while start < end and taken[start]:
            start += 1
        rest = np.flatnonzero(taken[start:end])
        end = start + int(rest[0]) if len(rest) else end
        end = start + (end - start) // period * period
        if end - start >= LEAST_ROUNDS * period:
            taken[start:end] = True
            found.append((start, end, period))
    return sorted(found)


def _runs(trace: Trace, steps: Steps) -> list[_Run]:
    """What repeats itself in the steps beside forward, backward, optimizer and loader."""
    operators, host = trace.operators, Host(trace, steps)
    if not len(steps) or not len(operators):
        return []
    outer = np.flatnonzero((operators.lane == steps.lane) & (Nesting(trace).parent < 0))
    elsewhere = host.backward.union(host.loader).union(host.optimizer).union(host.forward)
    outer = outer[~elsewhere.contains(operators.start[outer])]
    outer = outer[np.argsort(operators.start[outer], kind="stable")]
    found = []
    for rows in by_step(outer, assign(steps, operators.start[outer]), len(steps)):
        codes = operators.name[rows].astype(np.int64)
        found += [_Run(rows[start:end], period) for start, end, period in repeated_runs(codes)]
    return found


def _trained(detail: Trace) -> set[Shape]:
    """The shapes of the parameters that gradients are added up for."""
    rows = np.flatnonzero(names_like(detail, detail.operators.name, _ACCUMULATES.__eq__))
    codes = {int(detail.operators.shapes[row]) for row in rows.tolist()}
    return {shape for code in codes if code >= 0 for shape in input_shapes(detail.name(code)) if shape}


def _given(detail: Trace, row: int) -> list[tuple[Shape, str]]:
    """The shape and the type of each input of an operator; () for a number, and a tensor of one."""
    shapes, types = int(detail.operators.shapes[row]), int(detail.operators.dtypes[row])
    given = input_shapes(detail.name(shapes)) if shapes >= 0 else []
    written = detail.name(types).strip("[]").split(",") if types >= 0 else []
    named = [each.strip(' "') for each in written] if len(written) == len(given) else [""] * len(given)
    return list(zip(given, named, strict=True))


def _tensors(detail: Trace, row: int) -> list[tuple[Shape, str]]:
    return [(shape, name) for shape, name in _given(detail, row) if shape]


def _fits(detail: Trace, run: _Run, shapes: set[Shape]) -> bool:
    """Whether nearly all rounds work on a tensor with the shape of a parameter.

    An average may go through frozen weights as well, which have other shapes.
    """
    rows = run.rows.reshape(-1, run.period).tolist()
    fits = sum(any(shape in shapes for row in each for shape, _ in _tensors(detail, row)[:1]) for each in rows)
    return fits >= (1 if _averages(run.names(detail)) else _FITS * len(rows))


def _averages(operators: tuple[str, ...]) -> bool:
    return set(operators) in _AVERAGES


def _untrained(detail: Trace, runs: list[_Run], shapes: set[Shape]) -> float:
    """The share of the elements that these read which belong to large tensors of none of the shapes."""
    whole = other = 0
    for row in (each for run in runs for each in run.rows.tolist()):
        for shape, _ in _tensors(detail, row)[:1]:
            whole += prod(shape)
            other += prod(shape) if shape not in shapes and prod(shape) >= _LARGE else 0
    return other / whole if whole else 0.0


def _alike(detail: Trace, run: _Run) -> bool:
    """Whether the tensors of each operator are of one shape, all tensors of one floating type, and weights numbers.

    A number of Python's is written as a "Scalar", or as a double of no dimensions.
    """
    given = [_given(detail, row) for row in run.rows.tolist()]
    types = {name for inputs in given for shape, name in inputs if shape}
    others = {name for inputs in given for shape, name in inputs if not shape}
    shapes = ({shape for shape, _ in inputs if shape} for inputs in given)
    numbers = not others & (_FLOATS - {"double"})
    return numbers and len(types) == 1 and types <= _FLOATS and all(len(each) < 2 for each in shapes)


def _undisturbed_s(evidence: Evidence, runs: list[_Run], seconds: list[float]) -> float:
    """Seconds of a step without the profiler, by the share that `seconds` have of the traced step that they are in.

    Of steps that all have the loop the median: a pause of the machine's makes one traced step many times as long.
    """
    steps = evidence.steps
    at = assign(steps, evidence.trace.operators.start[np.array([run.rows[0] for run in runs], np.int64)])
    shares = np.bincount(at, weights=seconds, minlength=len(steps)) / np.maximum(steps.durations_s, 1e-9)
    return float(np.median(shares) if (shares > 0).all() else shares.mean()) * (evidence.step_s or 0.0)


def _seconds(trace: Trace, run: _Run) -> float:
    operators = trace.operators
    return (int(operators.end[run.rows[-1]]) - int(operators.start[run.rows[0]])) / 1e9


def _work_s(detail: Trace, rows: Ints) -> float:
    """Seconds in which these operators work on the elements that they read."""
    total = 0.0
    for row in rows.tolist():
        name = detail.name(int(detail.operators.name[row])).removeprefix("aten::")
        total += sum(prod(shape) for shape, _ in _tensors(detail, row)) * (
            _DEAR_S if name.startswith(_DEAR) else _CHEAP_S
        )
    return total
