"""The call that takes most of what a CPU step does beside loading, model and optimizer."""

from __future__ import annotations

import ast
import itertools
import math
import os
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from advisor.evidence.bindings import run_there
from advisor.evidence.coverage import Coverage
from advisor.evidence.facts import OTHER, Steps
from advisor.evidence.host import Host
from advisor.evidence.outside import LOOKS, OURS, name_of
from advisor.evidence.stacks import MODULE, UNNAMED, Function, Stacks
from advisor.evidence.steps import assign
from advisor.harness.layout import Site
from advisor.trace.tables import Trace

if TYPE_CHECKING:
    from advisor.evidence import Evidence

_MOST = 0.6  # of what a function takes: then what it calls is what it is about
# A function that is called so often in a step is what a loop asks for each of its elements, and the loop's own lines go
# with it: a comparison of two boxes took 52 % of the step, the loop over pairs that asks for it 78 %.
_NEARLY_ALL, _MANY = 0.8, 500
_LEAST = 0.1  # of its time: then it does part of the step's own work
_ALL = 0.95  # of the step: no more is promised for what is beside the step's own work
_MOST_OPERATORS = 0.5  # of a step's: what makes so many has its part of what writing them down takes
# Steps that do with all that came before them take ever longer: each quarter of the timing window by so much, at least.
_QUARTERS, _LEAST_INTERVALS, _LONGER = 4, 5, 1.05
_WRITING_S, _HARDLY = 5e-6, 0.05  # seconds to write down one operator or call; that part of all is none
# What calls NumPy's compiled functions, ufuncs and generators, of which a trace knows nothing; none of its types.
_NUMPY = ("np", "numpy", "pd", "scipy", "rng")
_LIGHT = ("asarray", "ascontiguousarray", "float32", "float64", "int32", "int64", "default_rng")
_LOOPS = (ast.For, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Beside:
    """A function of the user's that takes ``part`` of what is beside the steps' own work.

    ``line`` is the function's first, or one in it; 0 for the script outside of all functions. ``calls`` names what it
    mostly calls there, and takes that part; "" where it is the function's own lines that do. ``written`` is how many
    operators and calls the trace writes down for it in each step, ``operators`` its share of the steps' operators.
    ``loops``: the steps' own work is called there, and what takes the part is none of it, nor of anything else that the
    trace knows: NumPy's compiled functions, say. ``function`` is the part that the function itself takes, and
    ``called_file`` where what it calls is written, as the trace has it.
    """

    file: str
    line: int
    name: str
    calls: str
    part: float
    written: float = 0.0
    loops: bool = False
    operators: float = 0.0
    function: float = 0.0
    called_file: str = ""

    def __str__(self) -> str:
        place = os.path.basename(self.file) + (f":{self.line}" if self.line else "")
        where = f"in {self.name} ({place})" if self.line else f"in {place}"
        return f"{self.calls}, called {where}" if self.calls else f"{self.name} ({place})"


def spent_beside(detail: Trace, steps: Steps, files: Collection[str]) -> Beside | None:
    """The innermost function of the user's, in one of `files`, that holds most of what is beside the steps' own work.

    By the stacks of `detail`, from the outermost call inwards for as long as one call takes most of what the one
    around it does. None where there are no stacks, where the user's functions share it between them, and where what
    was found does some of the steps' own work, unless its own lines take most of all.
    """
    stacks, host = Stacks.of(detail, steps.lane), Host(detail, steps)
    free = Coverage.of(steps.start, steps.end).minus(host.own_work)
    whole = int(free.within(steps.start, steps.end).sum())
    if not len(stacks) or not whole:
        return None
    looks = np.array([OURS in each.path and each.name in LOOKS for each in stacks.functions])
    taken = free.minus(Coverage.of(stacks.start[looks], stacks.end[looks])).within(stacks.start, stacks.end).tolist()
    inside: dict[int, list[int]] = {}
    for row, parent in enumerate(stacks.parent.tolist()):
        if taken[row]:
            inside.setdefault(parent, []).append(row)
    users: Function | None = None
    calls, held, told, holding = "", whole, 0, np.array([], np.int64)  # `told`: what that takes which has a name
    written_in = ""  # the file of what it calls
    alone = 0  # what the user's function takes
    rows = [-1]
    while True:
        function, rows, took = _longest(stacks, taken, inside, rows)
        if function is None or took < _MOST * held:
            break
        if users is not None and calls and not _is_users(function, files):
            continue  # what a library does for the call
        if users is not None and took < _NEARLY_ALL * held and len(rows) > _MANY * len(steps):
            break  # a loop that asks a small function: it is the loop that could do without
        held, holding = took, np.array(rows)
        if function.name not in UNNAMED and _is_users(function, files):
            users, calls, told, written_in = function, "", took, ""
            alone = took
        elif function.name in UNNAMED and _is_users(function, files):
            calls, told, written_in = "", alone, ""  # all(…), sum(…): what goes through the function's own expression
        elif users is not None and not function.is_of(users.path):
            calls, told, written_in = _named(stacks, taken, rows) or function.name, took, function.path
    if users is None:
        return None
    of_the_step = int(host.own_work.within(stacks.start[holding], stacks.end[holding]).sum())
    file = next(each for each in sorted(files) if users.is_of(each))
    line = 0 if users.name == MODULE else users.line
    if of_the_step > _LEAST * int((stacks.end[holding] - stacks.start[holding]).sum()):  # the loop over the steps
        called_there = (taken[inner] for row in holding.tolist() for inner in inside.get(row, ()))
        own = held - sum(called_there)
        runs = stacks.functions[int(holding[0])] == users
        return Beside(file, line, users.name, "", own / whole, 0.0, True) if runs and own >= _MOST * whole else None
    within = Coverage.of(stacks.start[holding], stacks.end[holding])
    operators = int(within.contains(detail.operators.start).sum())
    written = int(within.contains(stacks.start).sum()) + operators
    every = int((assign(steps, detail.operators.start) >= 0).sum())
    share = operators / every if every else 0.0
    by_function = alone / whole
    return Beside(
        file, line, users.name, calls, told / whole, written / len(steps), False, share, by_function, written_in
    )


def _named(stacks: Stacks, taken: list[int], rows: list[int]) -> str:
    """What the calls, all of one function, are calls of: of a decorator's function it may be several; "" then."""
    names: Counter[str] = Counter()
    for row in rows:
        names[name_of(stacks, row)] += taken[row]
    ((name, took),) = names.most_common(1)
    return name if took >= _MOST * sum(taken[row] for row in rows) else ""


def _is_users(function: Function, files: Collection[str]) -> bool:
    return any(function.is_of(file) for file in files)


def _longest(
    stacks: Stacks, taken: list[int], inside: dict[int, list[int]], rows: list[int]
) -> tuple[Function | None, list[int], int]:
    """Of what the calls `rows` call, the function that takes longest: its calls, and their time."""
    found: dict[Function, list[int]] = {}
    waiting = [inner for row in rows for inner in inside.get(row, ())]
    while waiting:
        row = waiting.pop()
        if OURS in stacks.functions[row].path:  # a wrapper of the harness's is no call of the user's
            waiting += inside.get(row, ())
        else:
            found.setdefault(stacks.functions[row], []).append(row)
    if not found:
        return None, [], 0
    function = max(found, key=lambda each: (sum(taken[row] for row in found[each]), each))
    return function, found[function], sum(taken[row] for row in found[function])


def share_of_step(evidence: Evidence, found: Beside, grows: bool = False) -> float:
    """The share of an undisturbed step that `found` takes; of one that `grows` the traced one is no measure in seconds.

    What makes the traced step longer, the writing down of operators, is hardly in Python's work and in NumPy's: by what
    four scripts gained it was 1.1 to 1.33 times its share of traced steps 1.11 to 1.64 times as long. None of it is in
    one long call of which little is written down: three took 0.837, 0.765 and 0.76 of the step by that, and 0.848,
    0.835 and 0.795 by what their absence gained. Most of it is in what makes most of the operators: boxes thinned out
    in a loop took 0.62 of the step by that, 0.80 of one traced 1.33 times as long.
    """
    share = evidence.breakdown.share(OTHER) * found.part
    last_s = lengthening(evidence.record.timing.intervals) if evidence.record is not None else None
    if last_s and evidence.step_s and evidence.trace_step_s:
        # The traced steps came last, and were longer also without the trace: it is the rest that stays as it is. What
        # goes over all that came before is not called in each step, with all that its function does.
        share = evidence.breakdown.share(OTHER) * max(found.part, found.function)
        rest = (1.0 - share) * evidence.trace_step_s / max(1.0, evidence.trace_step_s / last_s)
        return max(0.0, 1.0 - rest / evidence.step_s)
    alone = not grows and found.written * _WRITING_S < _HARDLY * share * (evidence.trace_step_s or 0.0)
    longer = evidence.inflation if alone else math.sqrt(evidence.inflation)
    taken = min(share * longer, max(share, _ALL))
    if found.operators < _MOST_OPERATORS or not evidence.step_s:
        return taken
    # What the trace has written down for it is taken off, in proportion to its operators.
    return min(taken, share * evidence.inflation - (evidence.inflation - 1.0) * found.operators)


def lengthening(intervals: Sequence[float]) -> float | None:
    """How long the last undisturbed steps took, where each quarter of them took longer than the one before; seconds."""
    size = len(intervals) // _QUARTERS
    if size < _LEAST_INTERVALS:
        return None
    middles = [statistics.median(intervals[size * each : size * (each + 1)]) for each in range(_QUARTERS)]
    grow = all(later > _LONGER * earlier for earlier, later in itertools.pairwise(middles))
    return statistics.median(intervals[-_LEAST_INTERVALS:]) if grow else None


def line_of(found: Beside, text_of: Callable[[str], str]) -> Site:
    """The line in the function that makes the call, where the source has one; else the function's own."""
    scope = _scope(found, text_of(found.file))
    lines = [
        each.lineno
        for each in (run_there(scope) if scope is not None else ())
        if isinstance(each, ast.Call) and ast.unparse(each.func).rpartition(".")[2] == found.calls
    ]
    return Site(found.file, min(lines, default=found.line or 1))


def lines_of(found: Beside, text_of: Callable[[str], str]) -> range:
    """The function's lines, as the source has it; none for a whole file."""
    scope = _scope(found, text_of(found.file))
    return range(scope.lineno, (scope.end_lineno or scope.lineno) + 1) if isinstance(scope, _FUNCTIONS) else range(0)


def nodes_of(found: Beside, text_of: Callable[[str], str]) -> list[ast.AST]:
    """What runs in the function itself, as the source has it."""
    scope = _scope(found, text_of(found.file))
    return list(run_there(scope)) if scope is not None else []


def is_alone(nodes: list[ast.AST], node: ast.AST, loops: bool) -> bool:
    """Whether nothing but one of a function's `nodes` may take what its own lines do, as far as the source shows.

    No other loop in Python, and, in the innermost loop around the node, no other call of what a trace does not know. Of
    a function that loops over the steps the other loops are not looked at: they are other phases of the script.
    """
    around = [each for each in nodes if isinstance(each, (ast.For, ast.While)) and _has(each, node)]
    near = list(run_there(max(around, key=lambda each: each.lineno))) if around else nodes
    if any(isinstance(each, _LOOPS) and not _has(each, node) for each in (near if loops else nodes)):
        return False
    inside = {id(each) for each in ast.walk(node)}
    calls = [
        each.func for each in near if isinstance(each, ast.Call) and id(each) not in inside and not _has(each, node)
    ]
    names = (ast.unparse(each) for each in calls if isinstance(each, ast.Attribute) and each.attr not in _LIGHT)
    return not any(name.partition(".")[0] in _NUMPY for name in names)


def _has(outer: ast.AST, node: ast.AST) -> bool:
    return any(each is node for each in ast.walk(outer))


def source_of(found: Beside, text_of: Callable[[str], str]) -> str:
    """The function, as the source has it; "" where it cannot be read."""
    scope = _scope(found, text_of(found.file))
    return ast.unparse(scope) if scope is not None else ""


def called_source(found: Beside, text_of: Callable[[str], str]) -> str:
    """The functions of the same file that the function calls by their names, methods of its object's among them."""
    text = text_of(found.file)
    scope = _scope(found, text)
    if scope is None:
        return ""
    asked = [each.func for each in ast.walk(scope) if isinstance(each, ast.Call)]
    called = {each.id for each in asked if isinstance(each, ast.Name)}
    called |= {each.attr for each in asked if isinstance(each, ast.Attribute) and ast.unparse(each.value) == "self"}
    return "\n".join(
        ast.unparse(each)
        for each in ast.walk(ast.parse(text))
        if isinstance(each, ast.FunctionDef) and each.name in called
    )


def _scope(found: Beside, text: str) -> ast.AST | None:
    """The function's definition, or the whole file."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    named = (each for each in ast.walk(tree) if isinstance(each, _FUNCTIONS) and each.name == found.name)
    return next((each for each in named if _first(each) <= found.line <= (each.end_lineno or 0)), tree)


def _first(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return min((function.lineno, *(each.lineno for each in function.decorator_list)))
