"""What a method makes anew in each call, and is the same each time, is made once, in ``__init__``."""

from __future__ import annotations

import libcst as cst

from advisor.edit.draft import Draft
from advisor.edit.loading.only_read import LIBRARIES, only_read
from advisor.edit.locate import code_at
from advisor.edit.names import fresh_name, full_name, last_part
from advisor.edit.scopes import (
    assigned_once,
    assignments,
    imports,
    is_bound_elsewhere,
    is_parameter,
    is_target,
    scope_of,
    variables,
)

_BASES = frozenset(("object", "Dataset", "IterableDataset", "Module", "Protocol", "Generic", "ABC"))


def made_in_init(draft: Draft, line: int) -> str:
    """Have ``name = call(…)`` on `line` of a method be ``self.name`` from ``__init__`` on; why not, as a clause, or "".

    That the call gives the same each time is for the caller to know; it is given nothing that the method binds.
    """
    statement = code_at(draft, line)
    method = draft.function(statement) if statement is not None else None
    holder = draft.enclosing_class(statement) if statement is not None else None
    methods = [each for each in holder.body.body if isinstance(each, cst.FunctionDef)] if holder is not None else []
    inits = [each for each in methods if each.name.value == "__init__"]
    if (
        not isinstance(statement, cst.SimpleStatementLine)
        or holder is None
        or method not in methods
        or len(inits) != 1
        or len(statement.body) != 1
    ):
        return "the class has no __init__ of its own"
    bases = {last_part(each.value) for cls in draft.nodes(cst.ClassDef) for each in cls.bases}
    if holder.name.value in bases:
        return "a class made of this one may have an __init__ of its own"
    (assign,), (init,) = statement.body, inits
    if not isinstance(assign, cst.Assign) or not isinstance(target := assign.targets[0].target, cst.Name):
        return "what is made there has no name"
    name, body = target.value, init.body
    if assigned_once(draft, name, method) is not assign.value or scope_of(draft, statement) is not method:
        return "its name is given something else, too"
    uses = [each for each in variables(draft, name, method) if each is not target]
    known = isinstance(assign.value, cst.Call) and full_name(draft, assign.value.func).startswith(LIBRARIES)
    called = [each for each in uses if known and isinstance(draft.parent(each), cst.Call)]
    if any(scope_of(draft, each) is not method or not (each in called or only_read(draft, each)) for each in uses):
        return "it may be changed after it is made"
    mine, its = (next(iter(_first_parameter(each)), "") for each in (method, init))
    if not isinstance(body, cst.IndentedBlock) or draft.nodes(cst.Return, init) or not mine or mine != its:
        return "where __init__ ends cannot be told"
    if variables(draft, "__slots__", holder):
        return "the class has no place for it"
    if _reads_before(draft, methods, init, method, mine):
        return "__init__ may call what reads it before it is there"
    if not _means_the_same(draft, assign.value, (init, method), mine):
        return "in __init__ its arguments would mean something else"
    attribute = _attribute(draft, holder, name)
    draft.insert_after(body.body[-1], f"{mine}.{attribute} = {draft.code(assign.value)}")  # type: ignore[arg-type]
    draft.remove(statement, comments=False)
    for each in uses:
        draft.replace(each, f"{mine}.{attribute}")
    return ""


def _first_parameter(function: cst.FunctionDef) -> list[str]:
    return [each.name.value for each in function.params.params[:1]]


def _reads_before(
    draft: Draft, methods: list[cst.FunctionDef], init: cst.FunctionDef, method: cst.FunctionDef, mine: str
) -> bool:
    """Whether ``__init__`` may call the method: by its name, by that of one that does, or as ``self[i]``."""
    seen: set[cst.FunctionDef] = set()
    todo = [init]
    while todo:
        function = todo.pop()
        seen.add(function)
        for each in variables(draft, mine, function.body):
            above = draft.parent(each)
            if isinstance(above, cst.Attribute):
                todo += [one for one in methods if one.name.value == above.attr.value and one not in seen]
            elif not _of_super(draft, above):
                return True  # handed on, or called by an operator
    return method in seen


def _of_super(draft: Draft, argument: cst.CSTNode | None) -> bool:
    """Whether that is an argument of ``super(Sounds, self)``, or of ``Dataset.__init__(self)``."""
    call = draft.parent(argument) if isinstance(argument, cst.Arg) else None
    return isinstance(call, cst.Call) and last_part(call.func) in ("super", "__init__")


def _means_the_same(
    draft: Draft, value: cst.BaseExpression, functions: tuple[cst.FunctionDef, cst.FunctionDef], mine: str
) -> bool:
    """Whether what a value is made of is no function's own, and nobody outside ``__init__`` gives it a value."""
    init, _ = functions
    for each in draft.nodes(cst.Name, value):
        above = draft.parent(each)
        if isinstance(above, cst.Attribute) and above.attr is each:
            targets = [one for one in draft.nodes(cst.Attribute) if one.attr.value == each.value]
            if any(is_target(draft, one) and draft.function(one) is not init for one in targets):
                return False
        elif each.value != mine:
            if any(_binds(draft, each.value, one) for one in functions) or is_bound_elsewhere(draft, each.value):
                return False
            if len(list(assignments(draft, each.value, draft.module))) > 1:
                return False
    return True


def _binds(draft: Draft, name: str, function: cst.FunctionDef) -> bool:
    bound = any(True for _ in assignments(draft, name, function))
    return bound or is_parameter(function, name) or imports(draft, name, function)


def _attribute(draft: Draft, holder: cst.ClassDef, name: str) -> str:
    """What to call the attribute: as the variable, unless the class, or one that it is made of, may have that."""
    taken = {each.attr.value for each in draft.nodes(cst.Attribute)}
    taken |= {each.value for each in draft.nodes(cst.Name) if isinstance(scope_of(draft, each), cst.ClassDef)}
    if not {last_part(each.value) for each in holder.bases} <= _BASES:
        return fresh_name(draft, f"{name}_for_all", taken)
    return fresh_name(draft, name, taken) if name in taken else name
