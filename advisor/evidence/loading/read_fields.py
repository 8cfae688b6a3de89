"""Which fields of a batch the text of a training loop reads: in some of its steps, maybe in none that was watched."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
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
    return any(_reads(loop, key) for text in texts for loop in _training_loops(text))


def _training_loops(text: str) -> Iterator[ast.For | ast.AsyncFor | ast.While]:
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError):
        return
    for loop in nodes:
        if isinstance(loop, _LOOPS) and any(
            isinstance(each, ast.Attribute) and each.attr.endswith("backward") for each in ast.walk(loop)
        ):
            yield loop


def _reads(loop: ast.For | ast.AsyncFor | ast.While, key: str | int) -> bool:
    names = {each.id for each in ast.walk(loop) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)}
    statements = [each for each in ast.walk(loop) if isinstance(each, ast.Assign)]
    unused = {id(each.value) for each in statements if not any(_stored(target) & names for target in each.targets)}
    if any(_takes(each, key) and id(each) not in unused for each in ast.walk(loop)):
        return True
    targets = [target for each in statements for target in each.targets]
    targets += [each.target for each in ast.walk(loop) if isinstance(each, (ast.For, ast.AsyncFor))]
    return isinstance(key, int) and any(_stored(each) & names for target in targets for each in _at(target, key))


def _takes(node: ast.AST, key: str | int) -> bool:
    """``batch["scan"]``, ``batch.get("scan")``."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.ctx, ast.Load) and isinstance(node.slice, ast.Constant) and node.slice.value == key
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr not in _TAKES:
        return False
    first = node.args[0] if node.args else None
    return isinstance(first, ast.Constant) and first.value == key


def _at(target: ast.expr, number: int) -> Iterator[ast.expr]:
    """The element of that number of an unpacking, or of one within it: ``for step, (x, y, scan) in enumerate(…)``."""
    for each in ast.walk(target):
        if isinstance(each, (ast.Tuple, ast.List)) and len(each.elts) > number:
            yield each.elts[number]


def _stored(target: ast.expr) -> set[str]:
    return {each.id for each in ast.walk(target) if isinstance(each, ast.Name)}
