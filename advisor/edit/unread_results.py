"""Takes statements out of a script whose results nothing reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst
import libcst.matchers as m

from advisor.edit.draft import Draft, Drafts, Statement
from advisor.edit.locate import call_at, innermost_at, last_name
from advisor.errors import AdvisorError
from advisor.harness.layout import Site
from advisor.rule import at

# Methods that ask a tensor for no numbers, and functions of Python's that do nothing else than give something.
_HARMLESS = frozenset(("size", "dim", "numel", "len", "range", "list", "tuple", "dict", "int", "float", "max", "min"))
# What a function may do besides computing with tensors, by the name of what it calls.
_EFFECTS = frozenset(
    (
        *(
            "print",
            "append",
            "extend",
            "insert",
            "update",
            "pop",
            "popitem",
            "clear",
            "remove",
            "discard",
            "setdefault",
        ),
        *("write", "writelines", "open", "save", "savefig", "dump", "put", "send", "log", "log_dict", "info", "debug"),
        *("warning", "setattr", "exec", "eval", "next", "step", "add_scalar", "add_scalars", "add_histogram", "input"),
        *("register_buffer", "register_hook", "register_forward_hook", "sleep", "barrier", "all_reduce", "all_gather"),
    )
)
_LOOKS = frozenset(("locals", "globals", "vars", "exec", "eval"))


def leave_out(drafts: Drafts, places: Sequence[Site], inside: Sequence[Site], others: Sequence[Site]) -> str:
    """Remove the statements of `places`; why not, if not: then nothing is to be done with the drafts.

    `inside` are places in the user's functions that run for them, one in each, and `others` those where something
    short is computed that nothing reads, either.
    """
    for site in inside:
        if why := _effect(drafts, site):
            return why
    removed: list[tuple[Draft, Statement]] = []
    for site in places:
        draft = drafts[site.file]
        statement = _statement(draft, site)
        if statement is None:
            return f"which statement it is that computes it cannot be told at {at(site)}"
        if all(statement is not each for _, each in removed):
            removed.append((draft, statement))
    unread = (*places, *others)
    for draft, statement in removed:
        why = _kept(draft, statement, [each for each in unread if drafts[each.file] is draft], removed)
        if why:
            return why
    for draft, statement in _with_what_is_empty(removed):
        draft.remove(statement)
    return ""


def _statement(draft: Draft, site: Site) -> Statement | None:
    """The statement of a line, or of a few lines, that holds the place; None for a compound one (``if f(x):``)."""
    there = innermost_at(draft, cst.SimpleStatementLine, site.line)
    return draft.statement(there) if there is not None else None


def _kept(draft: Draft, statement: Statement, unread: list[Site], removed: list[tuple[Draft, Statement]]) -> str:
    """Why a statement cannot be left out; "" if it can."""
    line = f"line {draft.line(statement)}"
    body = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    names: list[str] = []
    targets: list[cst.BaseAssignTargetExpression]
    if isinstance(body, cst.Assign):
        targets = [each.target for each in body.targets]
    elif isinstance(body, cst.AnnAssign):
        targets = [body.target]
    elif isinstance(body, cst.Expr):
        targets = []
    else:
        return f"{line} is no statement that only computes it"
    for target in targets:
        parts = target.elements if isinstance(target, (cst.Tuple, cst.List)) else [target]
        for part in parts:
            name = part.value if isinstance(part, (cst.Element, cst.StarredElement)) else part
            if not isinstance(name, cst.Name):
                return f"{line} keeps it as {draft.code(target)}"
            names.append(name.value)
    calls = {id(each) for site in unread if (each := call_at(draft, site)) is not None}
    for call in draft.nodes(cst.Call, statement):
        if id(call) not in calls and last_name(draft, call) not in _HARMLESS:
            return f"{line} also calls {last_name(draft, call) or 'something else'}"
    if m.findall(statement, m.NamedExpr() | m.Await() | m.Yield()):
        return f"{line} does more than that"
    scope = draft.function(statement) or draft.module
    if any(last_name(draft, call) in _LOOKS for call in draft.nodes(cst.Call, scope)):
        return "the script looks at its variables by their names"
    inner = {id(node) for other, each in removed if other is draft for node in draft.nodes(cst.Name, each)}
    for name in draft.nodes(cst.Name, scope):
        if name.value in names and id(name) not in inner and _is_read(draft, name):
            return f"line {draft.line(name)} takes {name.value}, which is what {line} gives"
    return ""


def _is_read(draft: Draft, name: cst.Name) -> bool:
    """Whether this stands for a variable, and is not written to only: no attribute's name, no keyword."""
    above = draft.parent(name)
    if isinstance(above, cst.Attribute):
        return above.value is name
    if isinstance(above, cst.Arg):
        return above.keyword is not name
    if isinstance(above, (cst.Param, cst.FunctionDef, cst.ClassDef, cst.AssignTarget, cst.AnnAssign)):
        return isinstance(above, cst.AnnAssign) and above.value is name
    if isinstance(above, (cst.Element, cst.StarredElement)):
        holder = draft.parent(draft.parent(name) or name)
        return not isinstance(draft.parent(holder) if holder is not None else None, cst.AssignTarget)
    return True


def _with_what_is_empty(removed: list[tuple[Draft, Statement]]) -> Iterator[tuple[Draft, Statement]]:
    """These, and in the place of all of a ``with`` block the whole of it."""
    done: set[int] = set()
    for draft, statement in removed:
        block = draft.block(statement)
        above = draft.parent(block) if block is not None else None
        gone = {id(each) for other, each in removed if other is draft}
        whole = isinstance(above, cst.With) and all(id(each) in gone for each in draft.siblings(statement))
        chosen = above if whole and isinstance(above, cst.With) and draft.block(above) is not None else statement
        if id(chosen) not in done:
            done.add(id(chosen))
            yield draft, chosen


def _effect(drafts: Drafts, site: Site) -> str:
    """What the function at `site` does besides computing; "" if nothing is known."""
    try:
        draft = drafts[site.file]
    except AdvisorError:
        return f"what {site.function or 'the script'} does besides cannot be read"
    function = innermost_at(draft, cst.FunctionDef, site.line)
    if function is None:
        return f"what {at(site)} does besides cannot be told"
    for call in draft.nodes(cst.Call, function):
        if last_name(draft, call) in _EFFECTS:
            return f"{function.name.value} also calls {last_name(draft, call)} (line {draft.line(call)})"
    targets = [each.target for each in draft.nodes(cst.AssignTarget, function)]
    targets += [each.target for each in draft.nodes(cst.AugAssign, function)]
    targets += [each.target for each in draft.nodes(cst.AnnAssign, function)]
    for target in targets:
        if isinstance(target, cst.Attribute):
            return f"{function.name.value} also keeps {draft.code(target)} (line {draft.line(target)})"
    if m.findall(function, m.Global() | m.Nonlocal() | m.Yield()):
        return f"{function.name.value} does more than to compute it"
    return ""
