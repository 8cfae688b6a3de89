"""Which fields of a batch the text of a training loop reads: in some of its steps, maybe in none that was watched."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from advisor.evidence.python_loops.training_loops import BatchLoop, training_loops

_TAKES = ("get", "pop")
_FIELD = re.compile(r"\['(?P<key>[^']+)'\]|\[(?P<number>\d+)\]")


def is_read(texts: Iterable[str], field: str) -> bool:
    """Whether a loop that goes back reads a `field` of its batches: ``['scan']``, or ``[2]`` of tuples.

    Under ``if step % 50 == 0:``, say. A name that is given it, and read nowhere in the loop, does not count.
    """
    known = _FIELD.fullmatch(field)
    if known is None:
        return False
    key: str | int = known["key"] or int(known["number"])
    return any(_reads(loop, key) for text in texts for loop in training_loops(text))


def _reads(loop: BatchLoop, key: str | int) -> bool:
    names = {each.id for each in ast.walk(loop) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)}
    statements = [each for each in ast.walk(loop) if isinstance(each, ast.Assign)]
    given = _batch(loop)
    batches = {given.id} if isinstance(given, ast.Name) else set()
    unused = {id(each.value) for each in statements if not any(_stored(target) & names for target in each.targets)}
    if any(_takes(each, key, batches) and id(each) not in unused for each in ast.walk(loop)):
        return True
    unpacked = [given] if given is not None else []
    for each in statements:  # x, y, scan = batch
        if isinstance(each.value, ast.Name) and each.value.id in batches:
            unpacked += each.targets
    parts = (each.elts for each in unpacked if isinstance(each, (ast.Tuple, ast.List)))
    return isinstance(key, int) and any(len(each) > key and bool(_stored(each[key]) & names) for each in parts)


def _batch(loop: BatchLoop) -> ast.expr | None:
    """What a loop calls its batches: ``batch`` of ``for step, batch in enumerate(loader):``."""
    if isinstance(loop, ast.While):
        return None
    call = loop.iter
    counted = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "enumerate"
    if counted and isinstance(loop.target, ast.Tuple):
        return loop.target.elts[-1]
    return loop.target


def _takes(node: ast.AST, key: str | int, batches: set[str]) -> bool:
    """``batch["scan"]``, ``batch.get("scan")``; by a number only of what the loop calls a batch."""
    if isinstance(node, ast.Subscript):
        there = isinstance(node.ctx, ast.Load) and isinstance(node.slice, ast.Constant) and node.slice.value == key
        return there and (isinstance(key, str) or (isinstance(node.value, ast.Name) and node.value.id in batches))
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr not in _TAKES:
        return False
    first = node.args[0] if node.args else None
    return isinstance(key, str) and isinstance(first, ast.Constant) and first.value == key


def _stored(target: ast.expr) -> set[str]:
    return {each.id for each in ast.walk(target) if isinstance(each, ast.Name)}
