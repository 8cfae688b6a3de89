"""Rows that a dataset takes out of a DataFrame of pandas one by one: from arrays of its columns instead, made once.

``row = self.frame.iloc[i]`` makes a Series of each row, and ``row[columns]`` another one; ``self.values[i]`` of
``self.values = self.frame[columns].to_numpy()`` is a view of a row, or one of its numbers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import libcst as cst

from advisor.edit.draft import Draft, Drafts
from advisor.edit.loading.frame_reads import AS_ARRAY, UNKNOWN, Column, Reads, UnclearError
from advisor.edit.names import fresh_name, full_name

_TO_LIST = ("tolist", "to_list")
# What makes numbers, or an array, of what a row has, whatever type that is of.
_CONVERT = ("float", "int", "str", "bool", "list", "numpy.float32", "numpy.float64", "numpy.int64", "numpy.int32")
_MAKE = ("torch.tensor", "torch.as_tensor", "numpy.array", "numpy.asarray")  # with dtype=
_TENSORS = re.compile(r"torch\.(Float|Long|Double|Half|Int|Bool)Tensor$")
_COPY = ("torch.tensor", "numpy.array")
_TYPED = ("float", "long", "double", "half", "int", "bool")
_TYPE = re.compile(r"\b(float|int|long|double|half|bool)\d*\b")  # named in to(…) or type(…); else that is a device


def keep_columns(drafts: Drafts, draft: Draft, lines: Sequence[int], facts: Collection[str]) -> str:
    """Have the class keep the columns that its ``__getitem__`` reads at `lines`, and read those; else why not.

    `facts` is what was seen of the tables (:attr:`advisor.harness.layout.Loader.frames`).
    """
    try:
        _write(draft, Reads(drafts, draft, lines, facts), facts)
    except UnclearError as why:
        return str(why)
    return ""


def _write(draft: Draft, reads: Reads, facts: Collection[str]) -> None:
    """Ask for the changes. Raises UnclearError where a type may become another."""
    names: dict[str, str] = {}
    for each in reads.columns:
        if each.of_row and "upcast" in facts and not _is_typed(draft, each.node):
            raise UnclearError("a row makes one type of its columns' several, which its arrays would keep")
        if each.code not in names:
            names[each.code] = fresh_name(draft, f"{_identifier(each.name)}_values", names.values())
    for each in reads.columns:
        _replace(draft, each, f"self.{names[each.code]}[{reads.index}]")
    for statement in reads.rows:
        draft.remove(statement)
    if not isinstance(reads.last, (cst.SimpleStatementLine, cst.BaseCompoundStatement)):
        raise UnclearError(UNKNOWN)
    draft.insert_after(reads.last, *(f"self.{name} = {code}" for code, name in names.items()))


def _replace(draft: Draft, column: Column, code: str) -> None:
    """Have the array's row read where pandas' was, a copy of it where it would be handed on."""
    node = column.node
    if column.several is False:
        draft.replace(node, code)
        return
    end: cst.BaseExpression = node
    converted: cst.Call | None = None  # by .astype() of pandas
    typed = ""  # by .to_numpy() itself
    while isinstance(above := draft.parent(end), cst.Attribute) and above.value is end:
        method = draft.parent(above)
        called = method if isinstance(method, cst.Call) and method.func is above else None
        if above.attr.value in AS_ARRAY:
            end = called or above
            typed = _type_of(draft, called) if called is not None else ""
            break
        if called is None or above.attr.value not in ("astype", *_TO_LIST):
            raise UnclearError(UNKNOWN)
        converted = end = called
    copied = converted is not None or _call_of(draft, end) in (*_COPY, *_CONVERT)
    copied = copied or bool(_TENSORS.search(_call_of(draft, end)))
    taken_out = isinstance(above, cst.Attribute) and above.attr.value in AS_ARRAY
    if not (taken_out or copied or _call_of(draft, end) in _MAKE):  # a Series is asked for its labels
        raise UnclearError(UNKNOWN)
    astype = draft.parent(end)  # of the array that .values gives
    if taken_out and isinstance(astype, cst.Attribute) and astype.attr.value in ("astype", "copy", *_TO_LIST):
        copied = True
    if typed:
        code = f"{code}.astype({typed})"
    elif not copied:
        code = f"{code}.copy()"
    if converted is None:
        draft.replace(end, code)
        return
    if typed:
        raise UnclearError(UNKNOWN)
    draft.replace(node, code)
    if end is not converted:  # .astype(…).values
        draft.change(end, lambda updated: _without(updated))


def _type_of(draft: Draft, call: cst.Call) -> str:
    """The type that ``.to_numpy(…)`` is given."""
    if not call.args:
        return ""
    (arg, *more) = call.args
    if more or arg.star or (arg.keyword is not None and arg.keyword.value != "dtype"):
        raise UnclearError(UNKNOWN)
    return draft.code(arg.value)


def _call_of(draft: Draft, node: cst.BaseExpression) -> str:
    """The full name of what is called with it as the first argument; "" for nothing."""
    above = draft.parent(node)
    call = draft.parent(above) if isinstance(above, cst.Arg) else None
    if not isinstance(call, cst.Call) or call.args[0] is not above:
        return ""
    return full_name(draft, call.func)


def _is_typed(draft: Draft, node: cst.BaseExpression) -> bool:
    """Whether what is read there is given a type of its own."""
    end: cst.BaseExpression = node
    while isinstance(above := draft.parent(end), cst.Attribute) and above.value is end:
        called = draft.parent(above)
        if above.attr.value == "astype":
            return True
        if above.attr.value not in AS_ARRAY:
            return False
        if isinstance(called, cst.Call) and called.func is above:
            if called.args:
                return True
            end = called
        else:
            end = above
    name = _call_of(draft, end)
    if name in _CONVERT or _TENSORS.search(name):
        return True
    if name not in _MAKE:
        return False
    call = cst.ensure_type(draft.parent(draft.parent(end) or end) or end, cst.Call)
    if any(arg.keyword is not None and arg.keyword.value == "dtype" for arg in call.args):
        return True
    then = draft.parent(call)
    if not isinstance(then, cst.Attribute) or then.value is not call:
        return False
    method = draft.parent(then)
    named = isinstance(method, cst.Call) and any(_TYPE.search(draft.code(arg)) for arg in method.args)
    return then.attr.value in _TYPED or (then.attr.value in ("to", "type") and named)


def _without(node: cst.CSTNode) -> cst.CSTNode:
    """``x`` of ``x.values`` and of ``x.to_numpy()``."""
    inner = node.func if isinstance(node, cst.Call) else node
    return cst.ensure_type(inner, cst.Attribute).value


def _identifier(name: str) -> str:
    found = re.sub(r"\W+", "_", name).strip("_").lower()
    return found if found and not found[0].isdigit() else f"column_{found}".rstrip("_")
