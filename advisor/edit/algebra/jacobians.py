"""``torch.func.jacrev``, by the name that a file has for it, becomes ``torch.func.jacfwd``."""

from __future__ import annotations

import libcst as cst

from advisor.edit.draft import Draft
from advisor.edit.names import full_name
from advisor.edit.scopes import variables

REVERSE, FORWARD = "jacrev", "jacfwd"
_FUNCTIONS = ("torch.autograd.Function", "torch.autograd.function.Function")
_MODULES = ("torch.func", "functorch")


def reverse_calls(draft: Draft) -> list[cst.Call]:
    """The calls of ``jacrev`` in a file."""
    names = [f"{module}.{REVERSE}" for module in _MODULES]
    calls = [each for each in draft.nodes(cst.Call) if isinstance(each.func, (cst.Name, cst.Attribute))]
    return [each for each in calls if full_name(draft, each.func) in names]


def has_functions(draft: Draft) -> bool:
    """Whether a file has an autograd Function that says nothing of its forward derivative (``jvp``)."""
    own = [
        each
        for each in draft.nodes(cst.ClassDef)
        if any(full_name(draft, base.value) in _FUNCTIONS for base in each.bases)
    ]
    return any(all(method.name.value != "jvp" for method in draft.nodes(cst.FunctionDef, each)) for each in own)


def forward(draft: Draft) -> bool:
    """Have the only call of ``jacrev`` in a file be one of ``jacfwd``, and its import; whether that could be done."""
    calls = reverse_calls(draft)
    # What jacfwd has no argument for; and the name as a string: of __all__, say.
    others = [each for call in calls for each in call.args if each.star or not _is_common(each)]
    named_so = [each for each in draft.nodes(cst.SimpleString) if each.evaluated_value == REVERSE]
    if len(calls) != 1 or others or named_so or sum(each.keyword is None for each in calls[0].args) > 2:
        return False
    func = calls[0].func
    if isinstance(func, cst.Attribute):
        draft.replace(func.attr, FORWARD)
        return True
    # By its own name: imported once, read once.
    named = variables(draft, REVERSE)
    imported = [each for each in named if isinstance(draft.parent(each), cst.ImportAlias)]
    if not isinstance(func, cst.Name) or func.value != REVERSE or len(named) != 2 or len(imported) != 1:
        return False
    taken = [each for each in draft.nodes(cst.Name) if each.value == FORWARD]
    if taken:  # imported as well, or something else
        return False
    draft.replace(func, FORWARD)
    draft.replace(imported[0], FORWARD)
    return True


def _is_common(argument: cst.Arg) -> bool:
    """Whether both take this argument."""
    return argument.keyword is None or argument.keyword.value in ("func", "argnums", "has_aux")
