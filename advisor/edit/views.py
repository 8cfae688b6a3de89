"""``x.view(n, -1)``: raises where a tensor keeps its channels innermost, as ``x.reshape(n, -1)`` does not.

Both give the same numbers and, where a view is possible, the same memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst
import libcst.matchers as m

from advisor.edit.calls import argument
from advisor.edit.draft import Draft
from advisor.edit.names import full_name, last_part
from advisor.edit.origin import parameter_names, scope_of

_INSTEAD = {"view": "reshape", "view_as": "reshape_as"}
_CONTIGUOUS = m.Call(func=m.Attribute(attr=m.Name("contiguous")), args=[])


def reshape_views(draft: Draft, forwards: Sequence[cst.Call]) -> str:
    """Have views of what may be an activation become reshapes; why not, as a clause, where one is written into.

    Those are the views in the file's modules and in the functions that they call, and those of what the calls at
    `forwards` give. A view of contiguous memory, or as another type, stays.
    """
    found = dict.fromkeys([*_in_modules(draft), *(view for call in forwards for view in _of_output(draft, call))])
    for view in found:
        if _written_into(draft, view):
            return "the model writes into a view, which may not be one of channels-last memory"
        name = cst.ensure_type(view.func, cst.Attribute).attr
        draft.change(name, lambda node: node.with_changes(value=_INSTEAD[cst.ensure_type(node, cst.Name).value]))
    return ""


def _in_modules(draft: Draft) -> Iterator[cst.Call]:
    functions = _functions(draft)
    for module in draft.nodes(cst.ClassDef):
        if any(isinstance(each, cst.FunctionDef) and each.name.value == "forward" for each in module.body.body):
            yield from _views(draft, module)
            called = {last_part(each.func) for each in draft.nodes(cst.Call, module)}
            for name in functions.keys() & called:
                yield from _views(draft, functions[name])


def _of_output(draft: Draft, forward: cst.Call) -> Iterator[cst.Call]:
    """``model(x).view(…)``; with ``out = model(x)`` the views of ``out``, and of what a function here calls it."""
    scope = scope_of(draft, forward)
    statement = draft.statement(forward)
    small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    name = last_part(small.targets[0].target) if isinstance(small, cst.Assign) and small.value is forward else ""
    for view in _views(draft, scope):
        receiver = cst.ensure_type(view.func, cst.Attribute).value
        if receiver is forward or (name and last_part(receiver) == name):
            yield view
    functions = _functions(draft)
    for call in draft.nodes(cst.Call, scope) if name else ():
        function = functions.get(last_part(call.func))
        if function is not None:
            names = parameter_names(draft, function)
            given = {each: found.value for each in names if (found := argument(call, each, names)) is not None}
            for view in _views(draft, function):
                parameter = last_part(cst.ensure_type(view.func, cst.Attribute).value)
                if parameter in given and last_part(given[parameter]) == name:
                    yield view


def _functions(draft: Draft) -> dict[str, cst.FunctionDef]:
    return {each.name.value: each for each in draft.module.body if isinstance(each, cst.FunctionDef)}


def _views(draft: Draft, region: cst.CSTNode) -> list[cst.Call]:
    """The views in `region` that the order in memory may forbid."""
    return [
        each
        for each in draft.nodes(cst.Call, region)
        if isinstance(each.func, cst.Attribute)
        and each.func.attr.value in _INSTEAD
        and not m.matches(each.func.value, _CONTIGUOUS | m.Name("self"))
        and all(arg.keyword is None for arg in each.args)
        and not _of_another_type(draft, each)
    ]


def _of_another_type(draft: Draft, view: cst.Call) -> bool:
    """``x.view(torch.int32)``, ``x.view(dtype)``: no matter of shapes."""
    if len(view.args) != 1 or view.args[0].star:
        return False
    given = view.args[0].value
    named = full_name(draft, given) if isinstance(given, (cst.Name, cst.Attribute)) else ""
    return named.startswith(("torch.", "numpy.")) or "dtype" in named or isinstance(given, cst.SimpleString)


def _written_into(draft: Draft, view: cst.Call) -> bool:
    """``x.view(-1)[i] = 0``, ``x.view(-1).zero_()``: of a copy, the tensor itself stays what it was.

    Likewise ``flat = x.view(-1)``, where `flat` is written into: ``flat[i] = 0``, ``flat += 1``, ``f(y, out=flat)``.
    """
    above = draft.parent(view)
    if isinstance(above, cst.Assign) and len(above.targets) == 1 and isinstance(above.targets[0].target, cst.Name):
        name, scope = above.targets[0].target.value, draft.function(view) or draft.module
        return any(_changes(draft, each) for each in draft.nodes(cst.Name, scope) if each.value == name)
    if isinstance(above, cst.Attribute):
        return above.attr.value.endswith("_") and not above.attr.value.endswith("__")
    target = draft.parent(above) if isinstance(above, cst.Subscript) and above.value is view else None
    return isinstance(target, (cst.AssignTarget, cst.AugAssign)) and target.target is above


def _changes(draft: Draft, name: cst.Name) -> bool:
    """Whether what the name stands for is written into here."""
    above = draft.parent(name)
    if isinstance(above, cst.Arg):
        return above.keyword is not None and above.keyword.value == "out"
    if isinstance(above, cst.Attribute) and above.value is name:
        return above.attr.value.endswith("_") and not above.attr.value.endswith("__")
    if isinstance(above, cst.AugAssign):
        return above.target is name
    target = draft.parent(above) if isinstance(above, cst.Subscript) and above.value is name else None
    return isinstance(target, (cst.AssignTarget, cst.AugAssign)) and target.target is above
