"""A loop in Python inside the step: the same few operators again and again, called one by one."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from advisor.evidence.coded import Mask, names_like
from advisor.evidence.facts import Steps
from advisor.evidence.flops import count_within
from advisor.evidence.gradients.backwards import backward_s
from advisor.evidence.host import Host
from advisor.evidence.nesting import Nesting
from advisor.evidence.steps import assign, by_step, step_windows
from advisor.trace.tables import Ints, Trace

LONGEST_BODY = 100  # operators: a longer body is no loop over samples, but the layers of a model
_ROUNDS_PER_WAY = 4  # what goes on differently in each round is no loop over samples
_OTHERS_BEHIND = 2.0  # times as long as usual is a round that others follow, before the loop is run again, …
_LEAST_RUNS = 3  # … so many times at least
LEAST_ROUNDS = 8  # a step: of fewer rounds little is won
_LEAST_ALIKE = 5  # of rounds that call modules, of which each has more operators
# Of a loop in a loop: operators of its body, and rounds from which it is one, whatever their number.
_INNER_BODY, _INNER_ROUNDS = 24, 3
# Seconds per element that an operator reads: what it works, beside being called. One thread, torch 2.15, AVX2: in-cache
# 0.1 ns for an addition and 2 ns for exp; of whole batches, which leave the cache, up to 0.5 ns for the first. What is
# not known to be cheap is taken for dear.
CHEAP_ELEMENT_S, ELEMENT_S = 0.5e-9, 2e-9
_CHEAP = frozenset(
    f"aten::{name}"
    for name in ("add", "sub", "rsub", "mul", "div", "neg", "abs", "square", "relu", "clamp", "clamp_min", "maximum",
                 "minimum", "masked_fill", "where", "eq", "ne", "lt", "le", "gt", "ge", "logical_not", "bitwise_not",
                 "bitwise_and", "sum", "mean", "max", "min", "amax", "amin", "copy_", "clone", "cat", "stack", "add_",
                 "sub_", "mul_", "div_", "masked_fill_", "fill_", "zero_", "to", "dot")
)  # fmt: skip
# Operators whose work is more than reading their inputs once: what they take beyond a call is work.
_MATRIX = ("mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "conv", "attention", "einsum", "lstm", "gru")
# So are decompositions, whatever they are called: singular values of 18 weights were taken for 18 rounds of small ones.
_DECOMPOSES = ("linalg_", "svd", "cholesky", "triangular", "lstsq", "fft")
# And those that look at each element many times, or at pairs of rows, and what is no operator of torch's own.
_WORKS = (
    *("cdist", "pdist", "ctc", "grid_sampler", "upsample", "interpolate", "sort", "topk", "unique", "embedding_bag"),
    *("kthvalue", "median", "histogram", "multinomial", "randperm", "searchsorted", "bucketize"),
)
# Python takes a third to a half of the time between a loop's operators. What takes more is something else, which one
# operator for all samples would not do (NumPy, pictures that are saved, a metric of a library's).
_BESIDE_OPERATORS = 3.0
# A matrix operator that takes less under the profiler is mostly its call: so long, or as long as a view takes for each
# operator that it calls in turn. (`linear` is six or more; on a slow processor each takes 5 us.)
_CALL_S = 20e-6
_ALIKE_ROUNDS = 0.6  # of a loop's rounds, for what lies between others to tell that it is begun anew
_LIKE_STEPS = 1.5  # so many times as many operators may a step of one window call as one of the other, …
_ENOUGH_ALIKE = 0.5  # … and of the steps so many have to
_TAKES, _ITERATES = ("aten::select", "aten::index"), "aten::unbind"


@dataclass(frozen=True)
class SampleLoop:
    """The longest loop of a step, all its runs together, means over the steps. Seconds as traced."""

    rounds: float  # how often the body runs in a step
    times: float  # how often the loop itself does
    operators: float  # outermost operators of the body
    forward_s: float  # from the first round's start to the last one's end, as far as operators or calling them take it
    backward_s: float  # of the backward, for what the rounds computed
    work_share: float  # of both: work on the samples, which stays when one operator does it for all
    takes: bool  # each round takes parts of tensors by number (select) or mask (index)
    iterates: bool  # the loop is over an unbound tensor
    nested: bool = False  # each round holds a loop of its own, of another length in each
    alike: bool = True  # the rounds call the same operators


@dataclass(frozen=True)
class AlikeLoop:
    """A loop whose rounds are alike, with rows of the window with shapes: the first of each run, and one whole round.

    ``flops``: the operations of its products in a step, those of the backward among them, which are no part of
    ``taken.work_share``; ``products_s``: what they take now, with their calls. ``even``: its runs have as many rounds.
    """

    taken: SampleLoop
    begins: tuple[int, ...]
    round: Ints
    flops: float
    products_s: float
    even: bool


@dataclass(frozen=True)
class _Stretch:
    """One run of the loop: rows of ``Trace.operators``."""

    inside: Ints
    body: float
    takes: bool
    iterates: bool
    nested: bool = False
    alike: bool = True

    @property
    def rounds(self) -> float:
        return len(self.inside) / self.body


def sample_loop(trace: Trace, steps: Steps, host: Host, nesting: Nesting, detail: Trace | None) -> SampleLoop | None:
    """The longest loop over parts of a tensor with at least LEAST_ROUNDS rounds, if every step has one.

    None as well where the window with shapes (`detail`) does not have it: how much its operators work is then unknown.
    """
    if detail is None or not (stretches := _stretches(trace, steps, host, nesting)):
        return None
    detail_steps = step_windows(detail)
    shaped = _stretches(detail, detail_steps, Host(detail, detail_steps), Nesting(detail))
    return _measured(trace, steps, nesting, stretches, detail, shaped) if shaped else None


def loop_between(
    trace: Trace,
    steps: Steps,
    host: Host,
    nesting: Nesting,
    detail: Trace,
    takes: Ints,
    each_round: float,
    again: bool = False,
) -> SampleLoop | None:
    """What a loop costs whose rounds have `takes` in them, `each_round` a round: operators of the window with shapes.

    From the first to the last of them, of what a step calls; in the window without stacks it is the same part of what a
    step calls there. None where the two windows' steps are nothing alike by the number of operators.

    `again`: a loop whose rounds need one another runs it each time anew. How often it does is told by what else that
    calls in between; None where the loop's own rounds are too different for that.
    """
    shaped_steps = step_windows(detail)
    there = _outer_by_step(detail, shaped_steps, Host(detail, shaped_steps), Nesting(detail))
    here = _outer_by_step(trace, steps, host, nesting)
    start = detail.operators.start
    runs: list[list[tuple[int, int, int]]] = []
    positions: list[Ints] = []
    split = False  # the loop was seen to be run again and again, and what lies between
    for rows in there:
        if not len(rows):
            return None
        at = np.searchsorted(start[rows], start[takes], side="right") - 1
        inside = (at >= 0) & (detail.operators.end[takes] <= detail.operators.end[rows[np.maximum(at, 0)]])
        at = np.sort(at[inside])
        positions.append(at)
        of_step, several = _runs_of(at, each_round)
        runs.append(of_step)
        split = split or several
    if not there or not all(runs):
        return None
    shaped, stretches = list[_Stretch](), list[_Stretch]()
    for number, rows in enumerate(there):
        shaped += [_stretch(rows[one:end], count / each_round) for one, end, count in runs[number]]
    sizes, alike = np.array([len(rows) for rows in there]), 0
    for rows in here:
        known = int(np.abs(sizes - len(rows)).argmin())
        scale = len(rows) / len(there[known])
        if max(scale, 1.0 / max(scale, 1e-9)) > _LIKE_STEPS:
            continue  # one that evaluates, too, say: where its loop is nobody knows
        alike += 1
        for one, end, count in runs[known]:
            part = rows[round(one * scale) : round(end * scale)]
            if len(part):
                stretches.append(_stretch(part, count * scale / each_round))
    if alike < _ENOUGH_ALIKE * len(here):
        return None
    found = _measured(trace, steps, nesting, stretches, detail, shaped, of_steps=alike) if stretches else None
    if found is None or found.rounds < LEAST_ROUNDS:
        return None
    if again and not split:
        share = _begun_anew([np.diff(each[:: max(1, round(each_round))]) for each in positions])
        return replace(found, times=found.times + share * found.rounds) if share is not None else None
    return found


def _runs_of(at: Ints, each_round: float) -> tuple[list[tuple[int, int, int]], bool]:
    """(start, end, takes) of each run of a loop that takes parts `at` these places; whether another loop runs it."""
    found: list[tuple[int, int, int]] = []
    every, split = max(1, round(each_round)), False
    for part in np.split(at, np.flatnonzero(np.diff(at) > LONGEST_BODY) + 1) if len(at) else []:
        if len(part) < 2 * each_round:
            continue
        several = _runs(part[::every])
        if len(several) > 1:
            found += [(one, end, count * every) for one, end, count in several]
            split = True
        else:
            found.append((int(part[0]), int(part[-1]) + 1, len(part)))
    return found, split


def _begun_anew(apart: list[Ints]) -> float | None:
    """Which share of rounds is the first of a loop's, by how many operators lie between them; None if that varies."""
    every = np.concatenate(apart) if apart else np.zeros(0, np.int64)
    if not len(every):
        return None
    most = np.bincount(every).max()
    return float(1.0 - most / len(every)) if most >= _ALIKE_ROUNDS * len(every) else None


def _stretch(inside: Ints, rounds: float) -> _Stretch:
    return _Stretch(inside, len(inside) / rounds, takes=True, iterates=False, alike=False)


def alike_loop(trace: Trace, steps: Steps, host: Host, nesting: Nesting, detail: Trace | None) -> AlikeLoop | None:
    """The longest loop whose rounds multiply, and call the same operators on tensors of the same shapes."""
    if detail is None or not (stretches := _stretches(trace, steps, host, nesting, alike=True)):
        return None
    detail_steps = step_windows(detail)
    shaped = _stretches(detail, detail_steps, Host(detail, detail_steps), Nesting(detail), alike=True)
    if not shaped or round(shaped[0].body) != round(stretches[0].body):
        return None
    operators, within = detail.operators, np.zeros(len(detail.operators), np.bool_)
    for each in shaped:
        body, shapes = round(each.body), operators.shapes[each.inside]
        if not np.array_equal(shapes[body:], shapes[:-body]):
            return None
        first, last = each.inside[0], each.inside[-1]
        within |= (operators.start >= operators.start[first]) & (operators.end <= operators.end[last])
    counted = count_within(detail, within & (operators.lane == operators.lane[shaped[0].inside[0]]), len(detail_steps))
    taken = _measured(trace, steps, nesting, stretches, detail, shaped, products_s=0.0)
    flops = (3.0 if taken.backward_s else 1.0) * sum(counted.by_dtype.values())
    first, begins = shaped[0], tuple(int(each.inside[0]) for each in shaped)
    multiplies = names_like(trace, trace.operators.name, _works)
    rows = np.concatenate([each.inside[multiplies[each.inside]] for each in stretches])
    forward = float((trace.operators.end[rows] - trace.operators.start[rows]).sum()) / 1e9 / len(steps)
    products_s = forward * (1.0 + taken.backward_s / max(taken.forward_s, 1e-9))
    even = len({len(each.inside) for each in stretches}) == 1
    return AlikeLoop(taken, begins, first.inside[: round(first.body)], flops, products_s, even)


def _measured(
    trace: Trace,
    steps: Steps,
    nesting: Nesting,
    stretches: list[_Stretch],
    detail: Trace,
    shaped: list[_Stretch],
    products_s: float | None = None,
    of_steps: int | None = None,
) -> SampleLoop:
    """What the runs of a loop take, those of all steps or of so many; `shaped` are those of the window with shapes.

    Work are also the products, as long as they take now, or `products_s` each time.
    """
    count = of_steps or len(steps)
    operators = trace.operators
    heavy = names_like(trace, operators.name, _works)
    views = names_like(trace, operators.name, _VIEWS.__contains__)
    begun = np.sort(operators.start[operators.lane == steps.lane])
    reading = sum(_reading_s(detail, each) for each in shaped) / sum(each.rounds for each in shaped)
    forward = backward = products = 0.0
    for each in stretches:
        inside = each.inside
        took = (operators.end[inside] - operators.start[inside]) / 1e9
        whole = (int(operators.end[inside[-1]]) - int(operators.start[inside[0]])) / 1e9
        forward += min(whole, _BESIDE_OPERATORS * float(took.sum()))
        backward += backward_s(trace, nesting, inside)
        called = np.searchsorted(begun, operators.end[inside]) - np.searchsorted(begun, operators.start[inside])
        single = took[views[inside] & (called == 1)]
        calling = np.maximum(_CALL_S, called * float(np.median(single)) if len(single) else 0.0)
        now = float(np.maximum(0.0, took - calling)[heavy[inside]].sum())
        products += now if products_s is None else products_s
    rounds = sum(each.rounds for each in stretches)
    return SampleLoop(
        rounds=rounds / count,
        operators=float(np.mean([each.body for each in stretches])),
        forward_s=forward / count,
        backward_s=backward / count,
        work_share=min(1.0, (reading * rounds + products) / max(forward, 1e-9)),
        times=len(stretches) / count,
        takes=all(each.takes for each in stretches),
        iterates=all(each.iterates for each in stretches),
        nested=any(each.nested for each in stretches),
        alike=all(each.alike for each in stretches),
    )


def longest_period(codes: Ints, longest: int) -> tuple[int, int, int]:
    """(start, end, period) of the longest stretch of `codes` that repeats itself at least once; (0, 0, 0) for none.

    Of periods up to `longest` with stretches of one length the shortest.
    """
    best = (0, 0, 0)
    for period in range(1, min(longest, len(codes) // 2) + 1):
        starts, ends = repeating(codes, period)
        if not len(starts):
            continue
        at = int(np.argmax(ends - starts))
        start, end = int(starts[at]), int(ends[at])
        if end - start >= 2 * period and end - start > best[1] - best[0]:
            best = (start, end, period)
    return best


def repeating(codes: Ints, period: int) -> tuple[Ints, Ints]:
    """Starts and ends of all stretches of `codes` in which each is the one `period` before it."""
    same = np.concatenate(([0], (codes[period:] == codes[:-period]).astype(np.int8), [0]))
    edges = np.flatnonzero(np.diff(same))
    return edges[::2], edges[1::2] + period


def branching_rounds(codes: Ints, takes: Mask) -> list[tuple[int, int, int]]:
    """(start, end, rounds) of each run of a loop whose rounds go on in a few ways (``continue``, ``if``), all often.

    They begin alike: with the same operator that takes a part, and the same after it. Of several such beginnings the
    one with the longest stretch; [] for none. The last round, whose end nothing marks, is left out, but of a loop that
    another one runs (over the samples, in each step of a recurrence): there it ends as the others do.
    """
    best: Ints = np.zeros(0, np.int64)
    first = np.flatnonzero(takes[:-1])
    for head in {(int(codes[row]), int(codes[row + 1])) for row in first.tolist()}:
        begins = first[(codes[first] == head[0]) & (codes[first + 1] == head[1])]
        apart = np.flatnonzero(np.diff(begins) > LONGEST_BODY)
        for run in np.split(begins, apart + 1):
            ways = {codes[one:other].tobytes() for one, other in pairwise(run.tolist())}
            enough = len(run) - 1 >= max(LEAST_ROUNDS, _ROUNDS_PER_WAY * len(ways))
            if enough and (not len(best) or run[-1] - run[0] > best[-1] - best[0]):
                best = run
    return _runs(best) if len(best) else []


def _runs(begins: Ints) -> list[tuple[int, int, int]]:
    """(start, end, rounds) of the runs of a loop whose rounds begin there: several where every so manieth is long.

    What follows the last round of a run, until the next begins, is none of the loop's.
    """
    lengths = np.diff(begins)
    if len(lengths) < _LEAST_RUNS:
        return [(int(begins[0]), int(begins[-1]), len(lengths))]
    usual = int(np.median(lengths))
    last = np.flatnonzero(lengths >= _OTHERS_BEHIND * usual)
    between = np.diff(last)
    if len(last) < _LEAST_RUNS or between.min() < 2 or (between == np.median(between)).mean() < _ALIKE_ROUNDS:
        return [(int(begins[0]), int(begins[-1]), len(lengths))]
    runs = np.split(begins, last + 1)
    return [(int(run[0]), int(run[-1]) + usual, len(run)) for run in runs if len(run) == int(np.median(between))]


def rounds_with_loops(codes: Ints) -> tuple[int, int, int]:
    """(start, end, rounds) of the longest loop whose rounds hold loops of a few operators, of different lengths.

    As a loop over sentences does that goes through the words of each: with each inner loop taken for one operator it
    repeats itself. (0, 0, 0) for none.
    """
    repeats = np.ones((_INNER_BODY + 1, len(codes)), np.int64)  # of codes[row : row + period], from each row on
    for period in range(1, min(_INNER_BODY, len(codes) // 2) + 1):
        same = codes[period:] == codes[:-period]
        ends = np.where(same, len(same), np.arange(len(same)))  # where the run of equal ones from a row on ends
        ends = np.minimum.accumulate(ends[::-1])[::-1]
        repeats[period, : len(same)] += (ends - np.arange(len(same))) // period
    known: dict[bytes, int] = {}
    words, begins, at = [], [], 0
    while at < len(codes):
        period = next((each for each in range(1, _INNER_BODY + 1) if repeats[each, at] >= _INNER_ROUNDS), 0)
        body = codes[at : at + max(1, period)].tobytes() + (b"loop" if period else b"")
        words.append(known.setdefault(body, len(known)))
        begins.append(at)
        at += int(repeats[period, at]) * period if period else 1
    start, end, period = longest_period(np.array(words, np.int64), LONGEST_BODY)
    if not period or end - start < LEAST_ROUNDS * period:
        return 0, 0, 0
    begins.append(len(codes))
    rounds = (end - start) // period
    return begins[start], begins[start + rounds * period], rounds


def _stretches(trace: Trace, steps: Steps, host: Host, nesting: Nesting, alike: bool = False) -> list[_Stretch]:
    """The runs of each step's loop; none at all where one step has none.

    With `alike` it need not take parts of tensors, but its rounds are all alike and multiply.
    """
    operators = trace.operators
    if not len(steps) or not len(operators):
        return []
    takes = names_like(trace, operators.name, _TAKES.__contains__)
    iterates = names_like(trace, operators.name, _ITERATES.__eq__)
    matrix = names_like(trace, operators.name, _is_matrix)
    found: list[_Stretch] = []
    for rows in _outer_by_step(trace, steps, host, nesting):
        codes = operators.name[rows].astype(np.int64)
        first = _of_modules(codes, matrix[rows]) if alike else longest_period(codes, LONGEST_BODY)
        before = len(found)
        for start, end in _again(codes, *first):
            inside, body = rows[start:end], first[2]
            by_number = int(takes[inside].sum()) >= len(inside) // body - 1
            # The unbinding is in front of the first round; zip(a, b) has two.
            unbound = bool(iterates[rows[max(0, start - 3) : start + body]].any())
            if len(inside) >= (_LEAST_ALIKE if alike else LEAST_ROUNDS) * body and (by_number or unbound or alike):
                whole = inside[: len(inside) // body * body] if alike else inside
                found.append(_Stretch(whole, body, by_number, unbound))
        if len(found) == before and alike:
            return []
        if len(found) == before:
            runs = branching_rounds(codes, takes[rows])
            unbound, nested = False, not runs
            if nested:
                begin, end, rounds = rounds_with_loops(codes)
                unbound = bool(iterates[rows[max(0, begin - 3) : end]].any())
                if rounds < LEAST_ROUNDS or not (unbound or int(takes[rows[begin:end]].sum()) >= rounds - 1):
                    return []
                runs = [(begin, end, rounds)]
            for begin, end, rounds in runs:
                each_round = (end - begin) / rounds
                found.append(_Stretch(rows[begin:end], each_round, not unbound, unbound, nested, not nested))
    return found


def _outer_by_step(trace: Trace, steps: Steps, host: Host, nesting: Nesting) -> list[Ints]:
    """The outermost operators of each step in their order, of its own thread.

    Loops over what makes a batch are the loader's matter, and those over parameters the optimizer's.
    """
    operators = trace.operators
    outer = np.flatnonzero((operators.lane == steps.lane) & (nesting.parent < 0))
    elsewhere = host.backward.union(host.loader).union(host.optimizer)
    outer = outer[~elsewhere.contains(operators.start[outer])]
    outer = outer[np.argsort(operators.start[outer], kind="stable")]
    return list(by_step(outer, assign(steps, operators.start[outer]), len(steps)))


def _of_modules(codes: Ints, matrix: Mask) -> tuple[int, int, int]:
    """As :func:`longest_period`, of the stretches that have enough rounds, in which something is multiplied."""
    best = (0, 0, 0)
    for period in range(1, min(LONGEST_BODY, len(codes) // _LEAST_ALIKE) + 1):
        for start, end in zip(*(each.tolist() for each in repeating(codes, period)), strict=True):
            long = end - start > best[1] - best[0] and end - start >= _LEAST_ALIKE * period
            if long and matrix[start : start + period].any():
                best = (start, end, period)
    return best


def _again(codes: Ints, start: int, end: int, period: int) -> list[tuple[int, int]]:
    """All stretches like codes[start:end], which repeats itself with `period`: the loop may run more than once."""
    if not period:
        return []
    body = np.sort(codes[start : start + period])
    runs = zip(*(each.tolist() for each in repeating(codes, period)), strict=True)
    return [run for run in runs if np.array_equal(np.sort(codes[run[0] : run[0] + period]), body)]


def _is_matrix(name: str) -> bool:
    short = name.removeprefix("aten::").strip("_")
    return short in _MATRIX or any(word in short for word in ("conv", "attention", "_cell", *_DECOMPOSES))


def _works(name: str) -> bool:
    """Whether what an operator takes beyond its call is work, which what it reads does not tell of."""
    others = "::" in name and not name.startswith(("aten::", "prim::", "prims::", "autograd::"))
    return others or _is_matrix(name) or any(word in name for word in _WORKS)


def _reading_s(detail: Trace, stretch: _Stretch) -> float:
    """Seconds in which the operators of a loop work on the elements that they read, matrix work and views aside.

    Rounds that pick their rows by a mask look through all of them, each time anew: that goes with the loop.
    """
    operators = detail.operators
    known: dict[int, float] = {}
    cheap = names_like(detail, operators.name, lambda name: name in _CHEAP)
    picks = names_like(detail, operators.name, _PICKS.__contains__)
    aside = names_like(detail, operators.name, lambda name: name in _VIEWS or _works(name)) | picks
    if picks[stretch.inside].any():
        aside |= names_like(detail, operators.name, _MASKS.__contains__)
    total = 0.0
    for row in stretch.inside[~aside[stretch.inside]].tolist():
        code = int(operators.shapes[row])
        if code not in known:
            known[code] = _size(detail.name(code))
        total += known[code] * (CHEAP_ELEMENT_S if cheap[row] else ELEMENT_S)
    return total


# Operators that look at their inputs without reading them.
_VIEWS = frozenset(
    f"aten::{name}"
    for name in ("select", "slice", "view", "reshape", "unsqueeze", "squeeze", "expand", "t", "transpose", "permute",
                 "detach", "unbind", "flatten", "as_strided", "lift_fresh", "detach_", "numpy_T")
)  # fmt: skip

# Operators that take some rows of their first input, and those that say which.
_PICKS = frozenset(("aten::index", "aten::index_select", "aten::masked_select"))
_MASKS = frozenset(("aten::eq", "aten::ne", "aten::lt", "aten::le", "aten::gt", "aten::ge", "aten::nonzero"))


def _size(written: str) -> float:
    """Elements of all shapes in "Input Dims" as written, one for a number."""
    try:
        shapes = json.loads(written) if written else []
    except ValueError:
        return 0.0
    sizes = [shape for shape in shapes if isinstance(shape, list)] if isinstance(shapes, list) else []
    read = sum(math.prod(each for each in shape if isinstance(each, int)) for shape in sizes)
    return float(max(read, _broadcast(sizes)))


def _broadcast(shapes: list[list[object]]) -> int:
    """Elements of what tensors of these shapes give together, as ``x[:, None] - y`` does; 0 where they do not fit."""
    largest: list[int] = []
    for shape in shapes:
        sizes = [each for each in shape if isinstance(each, int)][::-1]
        if len(sizes) < len(shape):
            return 0
        largest += [1] * (len(sizes) - len(largest))
        for at, size in enumerate(sizes):
            if size != largest[at] and 1 not in (size, largest[at]):
                return 0
            largest[at] = max(size, largest[at])
    return math.prod(largest) if shapes else 0
