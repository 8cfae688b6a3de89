"""What stands between a forward and the loss of the same step: it is made of what the model says, and goes into it."""

from __future__ import annotations

import ast
from collections.abc import Collection

from advisor.evidence.bindings import bound, last_name, made_of, names_in, on_line, run_there

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def is_between(text: str, called: Collection[str], forwards: Collection[int]) -> bool:
    """Whether a function that goes back, of a file, calls one of the names `called` between its forward and its loss.

    `forwards` are the lines that call a model. A matching of what a model finds with what there is, say: it can be done
    neither before the step nor more seldom.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    scopes = [tree, *(each for each in ast.walk(tree) if isinstance(each, _FUNCTIONS))]
    return any(_is_between(list(run_there(scope)), called, forwards) for scope in scopes)


def _is_between(nodes: list[ast.AST], called: Collection[str], forwards: Collection[int]) -> bool:
    losses = {
        name
        for each in nodes
        if isinstance(each, ast.Call) and last_name(each.func) == "backward" and isinstance(each.func, ast.Attribute)
        for name in names_in(each.func.value)
    }
    if not losses:
        return False
    pairs = list(bound(nodes))
    lines = [(names_in(target), value) for target, value in pairs]
    said = {name for names, value in lines if any(on_line(value, line) for line in forwards) for name in names}
    outputs = made_of(said, pairs)
    for names, value in lines:
        calls = [each for each in ast.walk(value) if isinstance(each, ast.Call) and last_name(each.func) in called]
        given = {name for call in calls for argument in (*call.args, *call.keywords) for name in names_in(argument)}
        if given & outputs and made_of(names, pairs) & losses:
            return True
    return False
