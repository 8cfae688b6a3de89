"""The loops of a script's text that train, by what they call."""

from __future__ import annotations

import ast
from collections.abc import Iterator

BatchLoop = ast.For | ast.AsyncFor | ast.While
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


def training_loops(text: str) -> Iterator[BatchLoop]:
    """The loops of a file that go back, and have no loop in them that does: over batches, not those over epochs."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError):
        return
    loops = [each for each in nodes if isinstance(each, _LOOPS) and _goes_back(each)]
    for loop in loops:
        if not any(each is not loop and each in loops for each in ast.walk(loop)):
            yield loop


def _goes_back(loop: ast.AST) -> bool:
    return any(isinstance(each, ast.Attribute) and each.attr.endswith("backward") for each in ast.walk(loop))
