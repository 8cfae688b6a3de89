"""What a dataset looks up in a long list, as its source has it."""

from __future__ import annotations

import ast
from collections.abc import Container

from advisor.evidence.bindings import names_in
from advisor.evidence.loading.fetching import parsed


def looked_up(file: str, line: int, lists: Container[str]) -> str:
    """Which of the `lists` ("self.words", "WORDS") the statement on `line` goes through to find something.

    ``self.words.index(word)``, or ``word in self.words``; "" where it does neither, or is one of several of a block, of
    which nobody knows what each takes.
    """
    tree = parsed(file)
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)) if tree is not None else ()
    for function in functions:
        statement = next((each for each in function.body if each.lineno <= line <= (each.end_lineno or 0)), None)
        if not isinstance(statement, (ast.Assign, ast.AnnAssign, ast.Return, ast.Expr)):
            continue
        own = set[str]().union(*(names_in(target) for target in _targets(function)))
        for node in ast.walk(statement):
            for searched in _searched(node):
                name = ast.unparse(searched)
                if name in lists and name not in own:
                    return name
    return ""


def _targets(function: ast.FunctionDef) -> list[ast.expr]:
    """What a function gives values itself: it may hide a list of its file's."""
    assigns = (node for node in ast.walk(function) if isinstance(node, ast.Assign))
    return [target for each in assigns for target in each.targets if isinstance(target, (ast.Name, ast.Tuple))]


def _searched(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "index":
        return [node.func.value]
    if isinstance(node, ast.Compare):
        pairs = zip(node.ops, node.comparators, strict=True)
        return [searched for how, searched in pairs if isinstance(how, (ast.In, ast.NotIn))]
    return []
