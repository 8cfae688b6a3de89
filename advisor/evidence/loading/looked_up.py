"""What a dataset looks up in a long list, as its source has it."""

from __future__ import annotations

import ast
from collections.abc import Container

from advisor.evidence.loading.fetching import parsed


def looked_up(file: str, line: int, lists: Container[str]) -> str:
    """Which of the `lists` ("self.words", "WORDS") the statement on `line` goes through to find something.

    ``self.words.index(word)``, or ``word in self.words``; "" where it does neither.
    """
    tree = parsed(file)
    statements = (node for node in ast.walk(tree) if isinstance(node, ast.stmt)) if tree is not None else ()
    around = [each for each in statements if each.lineno <= line <= (each.end_lineno or 0) and not _holds_others(each)]
    for statement in around:
        for node in ast.walk(statement):
            for searched in _searched(node):
                if (name := ast.unparse(searched)) in lists:
                    return name
    return ""


def _searched(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "index":
        return [node.func.value]
    if isinstance(node, ast.Compare):
        pairs = zip(node.ops, node.comparators, strict=True)
        return [searched for how, searched in pairs if isinstance(how, (ast.In, ast.NotIn))]
    return []


def _holds_others(statement: ast.stmt) -> bool:
    """Whether it is a class or a function: its lines are statements of their own. A loop is one with them."""
    return isinstance(statement, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
