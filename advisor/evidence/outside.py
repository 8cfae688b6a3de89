"""Where the time of a step goes that is neither loading nor forward, backward or optimizer."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import os
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from advisor.evidence.facts import OTHER, Steps
from advisor.evidence.host import Host
from advisor.evidence.stacks import Function, Stacks
from advisor.evidence.steps import assign
from advisor.harness.layout import RunRecord
from advisor.trace.tables import Ints, Trace

OURS = "advisor/harness/"  # a wrapper of the harness's is no call of the user's
# Hooks of the harness's: what they look at there took 150 us of the stacks of a forward that takes 90.
LOOKS = ("_before", "_after")
_WORTH_NAMING = (
    0.25  # of what is outside of the step's own work: stacks make what is mostly Python look longer beside it
)
# What decorators call the function that they put in place of another: torch's no_grad, torchmetrics' update.
_WRAPPERS = ("decorate_context", "wrapped_func", "wrapper", "wrapped", "inner", "decorated")
_IN_PLACE = re.compile(r"\b_?\w+(?<!_)_\(|[-+*/]=")  # param.add_(…), torch._foreach_mul_(…), param.data -= …
# Where frameworks let a script look on at its training (Lightning's Callback and LightningModule, transformers'
# TrainerCallback): what is done there is seldom part of the step. Averages of the weights are.
_HOOKS = (
    *("on_train_batch_start", "on_train_batch_end", "on_before_zero_grad", "on_before_backward", "on_after_backward"),
    *("on_before_optimizer_step", "on_step_begin", "on_step_end", "on_pre_optimizer_step", "on_optimizer_step"),
)
_UPDATES = re.compile(r"\b(lerp_|copy_|mul_|add_|update_parameters|_foreach_\w+_|set_postfix)\b|ema\b", re.IGNORECASE)
LEAST_LOOKING_ON = 0.15  # of the step: what takes less there is not told of
_Place = tuple[str, int, str, str]  # file, line, name, what it calls


@dataclass(frozen=True)
class Outside:
    """A function of the user's, ``file`` and ``line`` of its definition, and which share of the traced steps it takes.

    ``called``: what takes the time there, where the function itself is the loop over steps; else "".
    """

    file: str
    line: int
    name: str
    called: str
    share: float

    def __str__(self) -> str:
        place = f"{os.path.basename(self.file)}:{self.line}"
        return f"{self.called}, called in {self.name} ({place})" if self.called else f"{self.name} ({place})"


def spent_in(found: Outside | None, shares: Mapping[str, float]) -> str:
    """The user's function in which a CPU step spends most of what is outside of its own work, in words.

    Empty where more of the step is something else, or no function takes enough of it to be named.
    """
    if found is None or shares[OTHER] < max(shares.values()):
        return ""
    return str(found) if found.share >= _WORTH_NAMING * shares[OTHER] else ""


def source_of(found: Outside, text: str) -> str:
    """The lines of a function, of its file's `text`; "" where it has not as many."""
    lines = text.splitlines()[max(0, found.line - 1) :]
    return "".join(inspect.getblock([f"{line}\n" for line in lines])) if lines else ""


def updates_weights(source: str) -> bool:
    """Whether a function changes weights by their gradients: looking at them may be left out, and costs no batch."""
    return ".grad" in source and _IN_PLACE.search(source) is not None


def looks_on(found: Outside, text: str) -> bool:
    """Whether it is a callback's, of its file's `text`, that looks on at a training and changes no weights."""
    return found.name in _HOOKS and _UPDATES.search(source_of(found, text)) is None


def users_files(record: RunRecord) -> set[str]:
    """The files of the user's that the record knows of."""
    files = {record.script, *(each.site.file for each in record.call_sites)}
    return files | {file for model in record.models for file in model.own.values()}


def own_files(record: RunRecord) -> set[str]:
    """Those, and the script's own modules, which nothing may have been recorded in."""
    return users_files(record) | set(record.modules)


def users_file(record: RunRecord, function: Function) -> str:
    """The file of the user's that a function is written in: one that the record knows of, or beside the script.

    Empty for a library's, and for what the harness wraps it in.
    """
    if OURS in function.path:
        return ""
    known = next((file for file in sorted(users_files(record)) if file and function.is_of(file)), "")
    beside = os.path.join(os.path.dirname(record.script), function.path)
    return known or (beside if function.path.endswith(".py") and os.path.isfile(beside) else "")


def users_functions(trace: Trace, rows: Ints, record: RunRecord) -> dict[int, tuple[str, int]]:
    """The user's function that each operator is called in: its file and first line."""
    found: dict[int, tuple[str, int]] = {}
    files: dict[Function, str] = {}
    start, lanes = trace.operators.start, trace.operators.lane
    for lane in np.unique(lanes[rows]).tolist():
        stacks = Stacks.of(trace, lane)
        for row in rows[lanes[rows] == lane].tolist():
            for each in stacks.up(int(np.searchsorted(stacks.start, start[row], side="right")) - 1):
                function = stacks.functions[each]
                if function not in files:
                    files[function] = users_file(record, function)
                if stacks.end[each] > start[row] and files[function]:
                    found[row] = files[function], _first_line(files[function], function)
                    break
    return found


def users_callers(trace: Trace, row: int, record: RunRecord) -> list[tuple[str, int]]:
    """The user's functions that an operator is called in, the innermost first: each one's file and first line."""
    return callers_of_each(trace, [row], record)[0]


def callers_of_each(trace: Trace, rows: Sequence[int], record: RunRecord) -> list[list[tuple[str, int]]]:
    """The same of several operators."""
    lanes, start = trace.operators.lane, trace.operators.start
    by_lane = {lane: Stacks.of(trace, lane) for lane in {int(lanes[row]) for row in rows}}
    known: dict[Function, tuple[str, int] | None] = {}
    found: list[list[tuple[str, int]]] = []
    for row in rows:
        stacks, around = by_lane[int(lanes[row])], list[tuple[str, int]]()
        for each in stacks.up(int(np.searchsorted(stacks.start, start[row], side="right")) - 1):
            function = stacks.functions[each]
            if function not in known:
                file = users_file(record, function)
                known[function] = (file, _first_line(file, function)) if file else None
            place = known[function]
            if stacks.end[each] > start[row] and place is not None:
                around.append(place)
        found.append(around)
    return found


def _first_line(file: str, function: Function) -> int:
    """As :func:`begins`; 0 outside of all. A comprehension, or a lambda, is part of what it is written in."""
    if function.name == "<module>":
        return 0
    return function_around(file, function.line) if function.name.startswith("<") else begins(file, function)


def begins(file: str, function: Function) -> int:
    """The first line of a function in `file`, decorators included, as Python counts it.

    Of one that ran when the profiler began a trace has the line that it was at: meant is the innermost function of
    that name around that line. Where the source does not tell, what the trace has.
    """
    named = [(first, last) for first, last, name in _functions(file) if name == function.name]
    return max((first for first, last in named if first <= function.line <= last), default=function.line)


def function_around(file: str, line: int) -> int:
    """The first line of the innermost function around a line of `file`, decorators included; 0 outside of all."""
    return max((first for first, last, _ in _functions(file) if first <= line <= last), default=0)


@functools.lru_cache(maxsize=64)
def _functions(file: str) -> tuple[tuple[int, int, str], ...]:
    """First line, last line and name of all functions of a file; empty for what cannot be parsed."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ()
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return tuple(
        (min([each.lineno, *(one.lineno for one in each.decorator_list)]), each.end_lineno or each.lineno, each.name)
        for each in functions
    )


def longest_outside(detail: Trace, steps: Steps, files: Collection[str]) -> Outside | None:
    """The user's function (in one of `files`) that takes most of the steps beside the step's own work.

    By the stacks of `detail`. None where it has none, or nothing of the kind.
    """
    stacks, host = Stacks.of(detail, steps.lane), Host(detail, steps)
    own = host.loader.union(host.backward).union(host.optimizer).union(host.forward)
    free = (assign(steps, stacks.start) >= 0) & ~stacks.holding(_own_work(host)) & ~own.contains(stacks.start)
    kinds = {each: any(each.is_of(file) for file in files) for each in set(stacks.functions)}
    users = [kinds[each] and each.name != "<module>" for each in stacks.functions]
    # Each call belongs to the outermost call around it that is free; what a function of the user's takes in there is
    # its own, and the rest its caller's.
    top = np.full(len(stacks), -1, np.int64)
    counted = np.zeros(len(stacks), np.bool_)
    charged: Counter[int] = Counter()
    for row in np.flatnonzero(free).tolist():
        outer, took = int(stacks.parent[row]), int(stacks.end[row] - stacks.start[row])
        inner = outer >= 0 and bool(free[outer])
        top[row] = top[outer] if inner else row
        counted[row] = users[row] or (inner and counted[outer])
        if not inner:
            charged[row] += took
        elif users[row] and not counted[outer]:
            charged[row] += took
            charged[int(top[row])] -= took
    taken: Counter[_Place] = Counter()
    for row, took in charged.items():
        place = _place(stacks, users, row)
        if place is not None:
            taken[place] += took
    if not taken:
        return None
    (path, line, name, called), took = taken.most_common(1)[0]
    function = Function(path, line, name)
    file = next((each for each in sorted(files) if function.is_of(each)), path)
    return Outside(file, begins(file, function), name, called, took / max(1, steps.total_ns))


def _own_work(host: Host) -> Ints:
    """When the step's own work begins: what the backward works on, the backward, the optimizer, the loader."""
    operators = host.trace.operators.start[host.graph_rows]
    return np.concatenate((operators, host.forward.start, host.backward.start, host.optimizer.start, host.loader.start))


def _place(stacks: Stacks, users: list[bool], row: int) -> _Place | None:
    """The innermost function of the user's that `row` is, or is called from; and what it calls there."""
    called = ""
    for each in stacks.up(row):
        function = stacks.functions[each]
        if users[each]:
            return function.path, function.line, function.name, called
        called = called or name_of(stacks, each)
    return None


def name_of(stacks: Stacks, row: int) -> str:
    """The name of the function that is called; of a wrapper (the harness's, a decorator's) that of what it wraps.

    That is the longest of the calls it makes, where that takes half of its time.
    """
    function = stacks.functions[row]
    while OURS in function.path or function.name in _WRAPPERS:
        inner = _longest_inside(stacks, row)
        if inner is None:
            break
        row, function = inner, stacks.functions[inner]
    return function.name


def _longest_inside(stacks: Stacks, row: int) -> int | None:
    """Of the calls that a call makes the longest; None where it makes none, or a decorator's none of half its time."""
    ours, end = OURS in stacks.functions[row].path, stacks.end[row]
    last = int(np.searchsorted(stacks.start, end))
    inside = row + 1 + np.flatnonzero(stacks.parent[row + 1 : last] == row)
    if ours:  # what it calls of its own is not what it wraps; how long that takes says nothing
        inside = np.array([each for each in inside if OURS not in stacks.functions[each].path], np.int64)
    if not len(inside):
        return None
    took = stacks.end[inside] - stacks.start[inside]
    longest = int(np.argmax(took))
    return int(inside[longest]) if ours or 2 * took[longest] >= end - stacks.start[row] else None
