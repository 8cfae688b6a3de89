"""The arguments of a call: finding, replacing, adding and removing them in the call's own layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import libcst as cst

from advisor.edit.draft import Draft

_LINE = 88  # a call on one line may grow to this before an argument goes on a line of its own (black's default)

# Positional parameters, in order, of the calls that rules edit. Source: signatures of torch 2.6 and 2.15.
DATALOADER_PARAMETERS = (
    "dataset",
    "batch_size",
    "shuffle",
    "sampler",
    "batch_sampler",
    "num_workers",
    "collate_fn",
    "pin_memory",
    "drop_last",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
)
ZERO_GRAD_PARAMETERS = ("set_to_none",)


def argument(call: cst.Call, name: str, parameters: Sequence[str] = ()) -> cst.Arg | None:
    """The argument passed for parameter `name`, by keyword or by position in `parameters`."""
    for arg in call.args:
        if arg.keyword is not None and arg.keyword.value == name:
            return arg
    if name in parameters:
        index = parameters.index(name)
        before = call.args[: index + 1]
        if len(before) > index and all(arg.keyword is None and not arg.star for arg in before):
            return before[index]
    return None


def unpacked(call: cst.Call) -> list[cst.Arg]:
    """The ``**mapping`` arguments."""
    return [arg for arg in call.args if arg.star == "**"]


def has_starred(call: cst.Call) -> bool:
    """Whether positional arguments come from ``*sequence``: which parameters they fill is then unknown."""
    return any(arg.star == "*" for arg in call.args)


def set_argument(draft: Draft, call: cst.Call, name: str, code: str, parameters: Sequence[str] = ()) -> None:
    """Have the call pass `code` for `name`: replaces what is passed, else adds a keyword argument."""
    existing = argument(call, name, parameters)
    if existing is not None:
        draft.replace(existing.value, code)
    else:
        add_argument(draft, call, name, code)


def add_argument(draft: Draft, call: cst.Call, name: str, code: str) -> None:
    """Have a keyword argument added behind the others, laid out as they are."""
    value = cst.parse_expression(code, draft.module.config_for_parsing)
    column = draft.position(call).start.column
    width = draft.position(call).end.column if draft.line(call) == draft.position(call).end.line else None

    def change(node: cst.CSTNode) -> cst.CSTNode:
        return _with_argument(cast(cst.Call, node), name, value, draft, column, width)

    draft.change(call, change)


def remove_argument(draft: Draft, call: cst.Call, name: str, parameters: Sequence[str] = ()) -> None:
    """Have the argument passed for `name` removed, if there is one. Later positional ones must not depend on it."""
    existing = argument(call, name, parameters)
    if existing is None:
        return
    index = list(call.args).index(existing)

    def change(node: cst.CSTNode) -> cst.CSTNode:
        updated = cast(cst.Call, node)
        args = list(updated.args)
        removed = args.pop(index)
        if args and index == len(args):
            # What followed the removed last argument (its line break, no comma) now follows its neighbour.
            args[-1] = args[-1].with_changes(comma=removed.comma, whitespace_after_arg=removed.whitespace_after_arg)
        changes: dict[str, object] = {"args": args}
        if not args:
            changes["whitespace_before_args"] = cst.SimpleWhitespace("")
        return updated.with_changes(**changes)

    draft.change(call, change)


def wrap_call(draft: Draft, node: cst.BaseExpression, function: str) -> None:
    """Have an expression ``x`` become ``function(x)``."""
    func = cst.parse_expression(function)
    draft.change(node, lambda updated: cst.Call(func=func, args=[cst.Arg(cast(cst.BaseExpression, updated))]))


def call_method(draft: Draft, node: cst.BaseExpression, method: str, arguments: str = "") -> None:
    """Have an expression ``x`` become ``x.method(arguments)``, in parentheses where it needs them."""
    call = cst.ensure_type(cst.parse_expression(f"_.{method}({arguments})"), cst.Call)

    def change(updated: cst.CSTNode) -> cst.CSTNode:
        func = cst.ensure_type(call.func, cst.Attribute)
        return call.with_changes(func=func.with_changes(value=as_primary(cast(cst.BaseExpression, updated))))

    draft.change(node, change)


def as_primary(node: cst.BaseExpression) -> cst.BaseExpression:
    """The expression as one that a ``.name`` may follow."""
    plain = (cst.Name, cst.Attribute, cst.Call, cst.Subscript, cst.SimpleString, cst.List, cst.Dict)
    if isinstance(node, plain) or node.lpar:
        return node
    return node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def _with_argument(
    call: cst.Call, name: str, value: cst.BaseExpression, draft: Draft, column: int, width: int | None
) -> cst.Call:
    args = list(call.args)
    keyword = next((arg for arg in reversed(args) if arg.keyword is not None), None)
    equal = (
        cast(cst.AssignEqual, keyword.equal)
        if keyword is not None
        else cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    )
    new = cst.Arg(value=value, keyword=cst.Name(name), equal=equal)
    if not args:
        return call.with_changes(args=[new])
    last = args[-1]
    if isinstance(last.value, cst.GeneratorExp) and not last.value.lpar:
        raise ValueError("a bare generator expression takes no further argument")
    indent = _break_between(call, args)
    added = len(draft.code(new)) + 2
    if indent is not None and not _one_per_line(call, args):
        # Several arguments share the lines of this call: stay on the last one while it has room.
        indent = None if _last_line(draft, call) + added <= _LINE else indent
    elif indent is None and width is not None and width + added > _LINE and len(args) > 1:
        indent = None
    separator: cst.BaseParenthesizableWhitespace = indent if indent is not None else cst.SimpleWhitespace(" ")
    if isinstance(last.comma, cst.Comma):
        tail = last.comma.whitespace_after
        kept = last.with_changes(comma=last.comma.with_changes(whitespace_after=_keep_comment(tail, separator)))
        new = new.with_changes(comma=cst.Comma(whitespace_after=_without_comment(tail)))
    else:
        tail = last.whitespace_after_arg
        kept = last.with_changes(
            comma=cst.Comma(whitespace_after=_keep_comment(tail, separator)),
            whitespace_after_arg=cst.SimpleWhitespace(""),
        )
        new = new.with_changes(whitespace_after_arg=_without_comment(tail))
    if last.star == "**":
        # Before the mapping: `f(a, new=1, **rest)` is how people write it.
        return _before_unpacking(call, args, new)
    return call.with_changes(args=[*args[:-1], kept, new])


def _before_unpacking(call: cst.Call, args: list[cst.Arg], new: cst.Arg) -> cst.Call:
    index = next(i for i, arg in enumerate(args) if arg.star == "**")
    if index > 0:
        comma = args[index - 1].comma
    else:
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    placed = new.with_changes(comma=_plain_comma(comma), whitespace_after_arg=cst.SimpleWhitespace(""))
    return call.with_changes(args=[*args[:index], placed, *args[index:]])


def _plain_comma(comma: object) -> cst.Comma:
    if isinstance(comma, cst.Comma):
        return comma.with_changes(whitespace_after=_without_comment(comma.whitespace_after))
    return cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))


def _break_between(call: cst.Call, args: list[cst.Arg]) -> cst.ParenthesizedWhitespace | None:
    """The line break and indentation that this call puts before an argument; None when it uses one line."""
    breaks: list[object] = [
        arg.comma.whitespace_after for arg in reversed(args[:-1]) if isinstance(arg.comma, cst.Comma)
    ]
    for candidate in (*breaks, call.whitespace_before_args):
        if isinstance(candidate, cst.ParenthesizedWhitespace):
            return cast(cst.ParenthesizedWhitespace, _without_comment(candidate)).with_changes(empty_lines=())
    return None


def _one_per_line(call: cst.Call, args: list[cst.Arg]) -> bool:
    breaks = [arg.comma.whitespace_after for arg in args[:-1] if isinstance(arg.comma, cst.Comma)]
    return (
        bool(breaks or isinstance(call.whitespace_before_args, cst.ParenthesizedWhitespace))
        and all(isinstance(each, cst.ParenthesizedWhitespace) for each in breaks)
        and (len(args) > 1 or isinstance(args[-1].comma, cst.Comma))
    )


def _last_line(draft: Draft, call: cst.Call) -> int:
    """Characters in the last line of the call's arguments, as far as the call alone can tell."""
    lines = draft.code(call).rstrip(")").rstrip().split("\n")
    return len(lines[-1]) + 1


def _keep_comment(
    tail: cst.BaseParenthesizableWhitespace, separator: cst.BaseParenthesizableWhitespace
) -> cst.BaseParenthesizableWhitespace:
    """The separator, with the comment that stood behind the argument that was last so far."""
    if not isinstance(tail, cst.ParenthesizedWhitespace) or tail.first_line.comment is None:
        return separator
    if isinstance(separator, cst.ParenthesizedWhitespace):
        return separator.with_changes(first_line=tail.first_line, empty_lines=tail.empty_lines)
    return tail


def _without_comment(tail: cst.BaseParenthesizableWhitespace) -> cst.BaseParenthesizableWhitespace:
    if not isinstance(tail, cst.ParenthesizedWhitespace):
        return tail
    line = tail.first_line
    return tail.with_changes(first_line=cst.TrailingWhitespace(newline=line.newline), empty_lines=())
