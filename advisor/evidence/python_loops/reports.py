"""What a loop says of itself every so many rounds, and what it computes for that in each of them."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator, Sequence

from advisor.evidence.bindings import last_name, names_in, on_line
from advisor.evidence.python_loops.training_loops import training_loops

_LEAVES = (ast.Break, ast.Continue, ast.Return, ast.Yield, ast.YieldFrom, ast.Await, ast.NamedExpr)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_CHANGES = frozenset(
    ("append", "appendleft", "extend", "insert", "pop", "popleft", "remove", "clear", "update", "add", "setdefault")
)
# What is called to tell somebody who looks on, or of a server's answer.
_TELLS = re.compile(
    r"print|write\w*|log\w*|info|debug|warn\w*|error|track|raise_for_status|close|set_(postfix|description)\w*"
    r"|add_(scalar|text|image|histogram)s?"
)
_DATA = re.compile(r"(?i)data(set|loader)|sampler|subset")
_TRAINS = frozenset(("backward", "step", "zero_grad", "train", "eval"))


def is_periodic(statement: ast.stmt) -> bool:
    """Whether it is done every so many rounds: ``if step % 50 == 0:``, ``if not step % 50:``."""
    return isinstance(statement, ast.If) and any(map(_is_multiple, ast.walk(statement.test)))


def _is_multiple(test: ast.AST) -> bool:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _is_remainder(test.operand)
    if not isinstance(test, ast.Compare) or not all(isinstance(each, ast.Eq) for each in test.ops):
        return False
    return any(map(_is_remainder, (test.left, *test.comparators)))


def _is_remainder(node: ast.expr) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)


def without_reports(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """The statements of a loop's body but for those that only tell of it: no other one sees what these do."""
    return [each for each in body if not _is_report(each, body)]


def keeps_nothing(source: str) -> bool:
    """Whether a function, by its `source`, leaves nothing behind but what it returns, as far as can be told.

    It assigns no attribute, no global name, and changes no container or tensor that it has not made itself.
    """
    try:
        tree = ast.parse(textwrap.dedent(source))
    except (SyntaxError, ValueError):
        return False
    nodes = list(ast.walk(tree))
    if any(isinstance(each, (ast.Global, ast.Nonlocal, ast.Yield, ast.YieldFrom)) for each in nodes):
        return False
    own = {each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    changed = (each.func if isinstance(each, ast.Call) else each for each in nodes if _changes(each))
    return all(root_name(each) in own and _method(each) not in _TRAINS for each in changed)


def computed_for_reports(text: str, name: str) -> tuple[int, int] | None:
    """(line of the call, line of the ``if``) where a loop calls the function `name` for what it reports alone.

    ``auc = name(…)`` in each round, though `auc` is read in an ``if step % 50 == 0:`` only. None where the function is
    called elsewhere in a loop as well, and where `text` does not parse.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    calls = [each for each in ast.walk(tree) if isinstance(each, ast.Call) and last_name(each.func) == name]
    found = list(_for_reports(tree, name))
    return found[0] if len(found) == 1 and len(calls) == 1 else None


def is_used(text: str, line: int) -> bool:
    """Whether what the statement at `line` of a file makes is read again, by anything but what tells of the loop.

    False for a statement that gives no name a value: what it calls has done what it is for.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    at = [each for each in ast.walk(tree) if isinstance(each, ast.Assign) and on_line(each, line)]
    if not at:
        return False
    made = {name for target in at[0].targets for name in _stored(target)}
    if not made:
        return True  # an attribute, an item
    scope = _scope(tree, at[0])
    within = {id(node) for each in ast.walk(scope) if _only_tells(each) for node in ast.walk(each)}
    return any(id(each) not in within for each in _reads(scope, made))


def makes_data(text: str, line: int) -> bool:
    """Whether what the statement at `line` of a file makes tells a loop what to train with, and is no measure.

    Rows are taken by it, ``x[negatives[rows]]``, or a data set is made of it.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    at = [each for each in ast.walk(tree) if isinstance(each, ast.Assign) and on_line(each, line)]
    made = {name for each in at for target in each.targets for name in _stored(target)}
    if not made:
        return False
    calls = (each for each in ast.walk(_scope(tree, at[0])) if isinstance(each, ast.Call))
    if any(_DATA.search(last_name(each.func)) and made & names_in(each) for each in calls):
        return True
    items = (each for loop in training_loops(text) for each in ast.walk(loop) if isinstance(each, ast.Subscript))
    return any(
        bool(made & names_in(each.slice))
        or (isinstance(each.value, ast.Name) and each.value.id in made and bool(names_in(each.slice)))
        for each in items
        if isinstance(each.ctx, ast.Load)
    )


def _only_tells(node: ast.AST) -> bool:
    """Whether a statement prints or logs, or raises an error, or does so every so many rounds."""
    if isinstance(node, ast.If):
        return is_periodic(node) or all(isinstance(each, ast.Raise) or _only_tells(each) for each in node.body)
    called = node.value if isinstance(node, ast.Expr) else None
    return isinstance(called, ast.Call) and _TELLS.fullmatch(last_name(called.func)) is not None


def _for_reports(tree: ast.AST, name: str) -> Iterator[tuple[int, int]]:
    for loop in ast.walk(tree):
        if not isinstance(loop, (ast.For, ast.While)):
            continue
        for place, statement in enumerate(loop.body):
            if not (isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call)):
                continue
            made = set[str]().union(*map(_stored, statement.targets))
            if last_name(statement.value.func) != name or not made:
                continue
            reading = [each for each in loop.body[place + 1 :] if is_periodic(each) and made & names_in(each)]
            within = {id(node) for each in reading for node in ast.walk(each)}
            if reading and not any(id(each) not in within for each in _reads(_scope(tree, loop), made)):
                yield statement.lineno, reading[0].lineno


def _scope(tree: ast.AST, loop: ast.AST) -> ast.AST:
    """The innermost function around `loop`, else all of the file."""
    functions = [each for each in ast.walk(tree) if isinstance(each, _FUNCTIONS)]
    holding = [each for each in functions if any(node is loop for node in ast.walk(each))]
    return min(holding, key=lambda each: (each.end_lineno or each.lineno) - each.lineno, default=tree)


def _reads(scope: ast.AST, names: set[str]) -> Iterator[ast.Name]:
    """Where `names` of a scope are read, in functions in it that have none of their own by that name, too."""
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Load) and child.id in names:
            yield child
        own: set[str] = set()
        if isinstance(child, _FUNCTIONS):
            own = {each.arg for each in ast.walk(child.args) if isinstance(each, ast.arg)}
            own |= {
                each.id for each in ast.walk(child) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
            }
        yield from _reads(child, names - own)


def _is_report(statement: ast.stmt, body: Sequence[ast.stmt]) -> bool:
    if not isinstance(statement, ast.If) or not is_periodic(statement) or statement.orelse:
        return False
    inside = list(ast.walk(statement))
    if any(isinstance(each, (*_LEAVES, ast.Delete)) or _changes(each) for each in inside):
        return False
    stored = {each.id for each in inside if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    return not any(stored & names_in(each) for each in body if each is not statement)


def _changes(node: ast.AST) -> bool:
    """Whether something that others may see is changed: an attribute, an item, a container, a tensor in place."""
    if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store):
        return True
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    method = node.func.attr
    return method in _CHANGES | _TRAINS or (method.endswith("_") and not method.endswith("__"))


def _stored(target: ast.expr) -> set[str]:
    """The names that a target binds; none where it sets something else, too."""
    parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
    names = {each.id for each in parts if isinstance(each, ast.Name)}
    return names if len(names) == len(parts) else set()


def root_name(node: ast.AST) -> str:
    """The name that a dotted or subscripted expression begins with; "" where it begins with something else."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _method(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else ""
