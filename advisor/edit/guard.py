"""The ``if __name__ == "__main__":`` guard that a flat script needs before its loader may start workers.

Under the start methods ``spawn`` and ``forkserver`` (the default on macOS and Windows, and on Linux from Python
3.14) every worker imports the script again; without a guard that import starts workers itself and Python raises
"An attempt has been made to start a new process before the current process has finished its bootstrapping phase"
(docs.python.org, multiprocessing, "Safe importing of main module").
"""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from advisor.edit.draft import Draft

_NAME = m.Name("__name__")
_MAIN = m.SimpleString('"__main__"') | m.SimpleString("'__main__'")
_GUARD = m.If(
    test=m.Comparison(left=_NAME, comparisons=[m.ComparisonTarget(m.Equal(), _MAIN)])
    | m.Comparison(left=_MAIN, comparisons=[m.ComparisonTarget(m.Equal(), _NAME)])
)
_DOCSTRING = m.SimpleStatementLine([m.Expr(m.SimpleString())])
_PLAIN = m.Integer() | m.Float() | m.SimpleString() | m.Name() | m.UnaryOperation()
_PLAINS = [m.ZeroOrMore(m.Element(_PLAIN))]
_VALUE = _PLAIN | m.Tuple(elements=_PLAINS) | m.List(elements=_PLAINS)
_CONSTANT = m.SimpleStatementLine([m.Assign(value=_VALUE) | m.AnnAssign(value=_VALUE)])
# Methods that a worker calls: what they need must exist without the guarded part of the script.
_RUN_BY_WORKERS = ("__getitem__", "__getitems__", "__iter__", "__len__", "__call__")


def has_main_guard(draft: Draft) -> bool:
    """Whether the module has an ``if __name__ == "__main__":`` at its top level."""
    return any(m.matches(statement, _GUARD) for statement in draft.module.body)


def add_main_guard(draft: Draft, call: cst.Call) -> bool:
    """Have the doing part of a flat script guarded, from behind its last definition to its end.

    True when the script has a guard already around what makes `call`, or will have one; False when it cannot be
    guarded safely, with nothing changed.
    """
    body = list(draft.module.body)
    top = _top_statement(draft, call)
    if top is None:
        return False
    if has_main_guard(draft):
        return isinstance(top, (cst.FunctionDef, cst.ClassDef)) or m.matches(top, _GUARD)
    if not any(_does(statement) for statement in body):
        return True  # a module of definitions: whoever imports it has the guard
    start = max((index + 1 for index, each in enumerate(body) if _defines(each)), default=0)
    while start < len(body) and _constant(body[start]):
        start += 1
    needed = _needed_by_workers(draft)
    start = max([start, *(i + 1 for i, each in enumerate(body) if i >= start and _assigned(each) & needed)])
    if start >= len(body) or any(map(_loops, body[:start])):
        return False
    index = next(i for i, each in enumerate(body) if each is top)
    if index >= start or not _loops(top):
        draft.wrap(body[start], body[-1], 'if __name__ == "__main__"')
        return True
    return False


def _top_statement(draft: Draft, node: cst.CSTNode) -> cst.CSTNode | None:
    chain = [node, *draft.ancestors(node)]
    return chain[-2] if len(chain) > 1 else None


def _defines(statement: cst.CSTNode) -> bool:
    if isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
        return True
    return isinstance(statement, cst.SimpleStatementLine) and any(
        isinstance(each, (cst.Import, cst.ImportFrom)) for each in statement.body
    )


def _does(statement: cst.CSTNode) -> bool:
    """Whether a top-level statement does more than define, import or document."""
    return not (_defines(statement) or _constant(statement) or m.matches(statement, _DOCSTRING))


def _constant(statement: cst.CSTNode) -> bool:
    return m.matches(statement, _CONSTANT)


def _loops(statement: cst.CSTNode) -> bool:
    """Whether importing this statement may iterate a loader."""
    if isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
        return False
    return bool(m.findall(statement, m.For() | m.While() | m.CompFor() | m.Call(func=m.Name("next"))))


def _needed_by_workers(draft: Draft) -> set[str]:
    needed: set[str] = set()
    collate = {
        cst.ensure_type(arg.value, cst.Name).value
        for arg in draft.nodes(cst.Arg)
        if arg.keyword is not None
        and arg.keyword.value in ("collate_fn", "worker_init_fn")
        and isinstance(arg.value, cst.Name)
    }
    for statement in draft.module.body:
        if isinstance(statement, cst.ClassDef):
            methods = [each for each in statement.body.body if isinstance(each, cst.FunctionDef)]
            if any(method.name.value in _RUN_BY_WORKERS for method in methods):
                needed |= {name.value for name in draft.nodes(cst.Name, statement)}
        elif isinstance(statement, cst.FunctionDef) and statement.name.value in collate:
            needed |= {name.value for name in draft.nodes(cst.Name, statement)}
    return needed


def _assigned(statement: cst.CSTNode) -> set[str]:
    if not isinstance(statement, cst.SimpleStatementLine):
        return set()
    targets = [target.target for each in statement.body if isinstance(each, cst.Assign) for target in each.targets]
    return {name.value for target in targets for name in _target_names(target)}


def _target_names(target: cst.CSTNode) -> list[cst.Name]:
    return [cst.ensure_type(name, cst.Name) for name in m.findall(target, m.Name())]
