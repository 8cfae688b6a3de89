"""The loop from which a model is called for one sample after another, through the functions in between."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from advisor.evidence.python_loops.reports import without_reports
from advisor.evidence.python_loops.rounds import around, loop_of_calls
from advisor.harness.layout import Site

# A round of these is one request, or a measurement of one: what comes next is not there yet, or is not to be with it.
_CLOCKS = re.compile(
    r"(perf_counter|monotonic|process_time|thread_time|time)(_ns)?|elapsed_time|synchronize|.*timer", re.I
)
_ASKS = frozenset(("input", "recv", "accept", "poll", "sleep", "imshow", "waitKey"))
_LIVE = re.compile(r"consumer|queue|socket|stdin|camera|requests?(\(.*\))?$", re.I | re.S)
_MUTATES = frozenset(("append", "extend", "insert", "pop", "popleft", "appendleft", "update", "copy_", "add_", "mul_"))


def loop_around(frames: Sequence[Site], text_of: Callable[[str], str]) -> Site | None:
    """The loop with a call of the model in each round, which reaches it through `frames`, from the inside out.

    None where a round needs what another one computed, changes an object on its way and reads it, or stands for one
    request of many: where a clock is read or something is waited for, in the loop or in a function between.
    """
    for frame in frames:
        text = text_of(frame.file)
        inside = around(text, frame.line)
        if inside is None or assigns(inside) or any(map(_is_a_request, _in_each_round(inside))):
            return None
        if isinstance(inside, ast.FunctionDef):
            continue
        line = loop_of_calls(text, frame.line)
        if line is None or any(_LIVE.search(ast.unparse(each)) for each in _sources(inside)):
            return None
        return replace(frame, line=line, column=None, end_line=None, end_column=None)
    return None


def loop_of_each(frames: Sequence[Site], text_of: Callable[[str], str]) -> Site | None:
    """The loop over several objects for each of which a function asks a model, one question after the other.

    The innermost loop around the call of the model has rounds that need each other, as those of one environment do; it
    is the one around the function with that loop whose rounds do not. None where there is no such loop.
    """
    if not frames or not isinstance(around(text_of(frames[0].file), frames[0].line), (ast.For, ast.While)):
        return None
    outside = next((at for at, each in enumerate(frames) if each.function != frames[0].function), len(frames))
    return loop_around(frames[outside:], text_of) if frames[0].function not in ("", "<module>") else None


def _in_each_round(inside: ast.AST) -> Iterator[ast.AST]:
    """What a loop or function does, but for a report every so many rounds, which may well tell the time so far."""
    if not isinstance(inside, (ast.For, ast.While)):
        yield from ast.walk(inside)
        return
    for statement in without_reports(inside.body):
        yield from ast.walk(statement)


def _sources(loop: ast.AST) -> list[ast.expr]:
    """What a loop or a comprehension goes over."""
    if isinstance(loop, ast.For):
        return [loop.iter]
    return [each.iter for each in getattr(loop, "generators", ())]


def keeps_state(text: str, cls: str) -> bool:
    """Whether a class's forward, written in `text`, assigns attributes: its next call may need them."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return True
    holders = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == cls)
    methods = (each for holder in holders for each in holder.body if isinstance(each, ast.FunctionDef))
    return any(assigns(each) for each in methods if each.name == "forward")


def assigns(node: ast.AST) -> bool:
    """Whether a function assigns attributes or global names, or it or a loop changes a container and reads it, too."""
    inside = list(ast.walk(node))
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and any(
        isinstance(each, (ast.Global, ast.Nonlocal))
        or (isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store))
        for each in inside
    ):
        return True
    changed = Counter(
        ast.unparse(each.value)
        for each in inside
        if isinstance(each, (ast.Subscript, ast.Attribute)) and isinstance(each.value, ast.Attribute)
        if isinstance(each.ctx, ast.Store) or (isinstance(each, ast.Attribute) and each.attr in _MUTATES)
    )
    read = Counter(ast.unparse(each) for each in inside if isinstance(each, ast.Attribute))
    counted = Counter(
        ast.unparse(each.args[0])
        for each in inside
        if isinstance(each, ast.Call) and ast.unparse(each.func) == "len" and each.args
    )
    return any(read[name] - counted[name] > number for name, number in changed.items())


def _is_a_request(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute) and node.attr == "stdin":
        return True
    if not isinstance(node, ast.Call):
        return False
    name = ast.unparse(node.func).rpartition(".")[2]
    return name in _ASKS or _CLOCKS.fullmatch(name) is not None
