"""Takes statements out of a script whose results nothing reads, where they do nothing else, as far as can be told."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst
import libcst.matchers as m

from advisor.edit.draft import Draft, Drafts, Statement
from advisor.edit.locate import by_extent, innermost_at, last_name, start_of
from advisor.edit.names import full_name
from advisor.errors import AdvisorError
from advisor.harness.layout import Site

# Functions and methods of tensors that give a part or another view of one, or ask for its shape: the run takes no note
# of these.
_VIEWS = frozenset(
    (
        *("size", "dim", "numel", "view", "view_as", "reshape", "flatten", "unflatten", "transpose", "permute", "t"),
        *("squeeze", "unsqueeze", "expand", "expand_as", "detach", "chunk", "split", "unbind", "select", "narrow"),
        *("movedim", "swapaxes", "contiguous", "to", "float", "double", "unfold", "diagonal"),
    )
)
_BUILTINS = frozenset(
    (
        *("len", "range", "list", "tuple", "dict", "int", "float", "bool", "str", "max", "min", "abs", "sum", "zip"),
        *("enumerate", "reversed", "sorted", "isinstance", "slice", "super", "round", "getattr", "hasattr"),
    )
)
_CONTEXTS = frozenset(("no_grad", "inference_mode", "enable_grad", "set_grad_enabled", "autocast"))
_LOOKS = frozenset(("locals", "globals", "vars", "exec", "eval"))


def leave_out(drafts: Drafts, places: Sequence[Site], calls: Sequence[Site]) -> str:
    """Remove the statements of `places`; why not, if not: then nothing is to be done with the drafts.

    `calls` are all calls that the run saw there, and in the user's functions that they call: of torch's functions and
    modules, and of each other. What calls anything else, or keeps something anywhere but in a name of its own, stays.
    """
    removed: list[tuple[Draft, Statement]] = []
    functions: dict[int, tuple[Draft, cst.FunctionDef]] = {}
    for site in places:
        draft = drafts[site.file]
        statement = _statement(draft, site)
        if statement is None:
            return f"which statement of line {site.line} computes it cannot be told"
        if all(statement is not each for _, each in removed):
            removed.append((draft, statement))
    for site in calls:
        try:
            draft = drafts[site.file]
        except AdvisorError:
            return f"what {site.function or 'the script'} does besides cannot be read"
        function = innermost_at(draft, cst.FunctionDef, site.line)
        inside = any(each is draft and _holds(draft, statement, site) for each, statement in removed)
        if function is not None and not inside:
            functions[id(function)] = draft, function
    for draft, function in functions.values():
        if why := _does_more(draft, function, calls):
            return why
    for draft, statement in removed:
        if why := _kept(draft, statement, removed) or _calls_others(draft, statement, calls):
            return why
    chosen = _with_what_is_empty(removed)
    if chosen is None:
        return "nothing else is in its block"
    for draft, statement in chosen:
        draft.remove(statement)
    return ""


def _statement(draft: Draft, site: Site) -> Statement | None:
    """The simple statement that holds the place, in no ``try``; None for another one (``if f(x):``)."""
    there = innermost_at(draft, cst.SimpleStatementLine, site.line)
    statement = draft.statement(there) if there is not None else None
    if statement is None or any(isinstance(each, (cst.Try, cst.TryStar)) for each in draft.ancestors(statement)):
        return None
    return statement


def _holds(draft: Draft, statement: Statement, site: Site) -> bool:
    place = draft.position(statement)
    return place.start.line <= site.line <= place.end.line


def _kept(draft: Draft, statement: Statement, removed: list[tuple[Draft, Statement]]) -> str:
    """Why a statement cannot be left out, by where it keeps what it computes; "" if it can."""
    line = f"line {draft.line(statement)}"
    body = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    if not isinstance(body, (cst.Assign, cst.AnnAssign, cst.Expr)):
        return f"{line} is no statement that only computes it"
    targets: list[cst.BaseExpression] = [each.target for each in body.targets] if isinstance(body, cst.Assign) else []
    if isinstance(body, cst.AnnAssign):
        targets = [body.target]
    names = _names(targets)
    if names is None:
        return f"{line} keeps it as {draft.code(targets[0])}"
    if m.findall(statement, m.NamedExpr() | m.Await() | m.Yield() | m.Lambda()):
        return f"{line} does more than that"
    scope = draft.function(statement) or draft.module
    if any(last_name(draft, call) in _LOOKS for call in draft.nodes(cst.Call, scope)):
        return "the script looks at its variables by their names"
    if m.findall(scope, m.Global() | m.Nonlocal()) and isinstance(scope, cst.FunctionDef):
        return "its function has names that are not its own"
    inner = {id(node) for other, each in removed if other is draft for node in draft.nodes(cst.Name, each)}
    for name in draft.nodes(cst.Name, scope):
        if name.value in names and id(name) not in inner and _is_read(draft, name):
            return f"line {draft.line(name)} takes {name.value}, which is what {line} gives"
    return ""


def _names(targets: Sequence[cst.BaseExpression]) -> set[str] | None:
    """The variables that are assigned; None where anything else is."""
    found: set[str] = set()
    for target in targets:
        parts = target.elements if isinstance(target, (cst.Tuple, cst.List)) else ()
        inner = _names([each.value for each in parts]) if parts else None
        if inner is not None:
            found |= inner
        elif isinstance(target, cst.Name):
            found.add(target.value)
        else:
            return None
    return found


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


def _calls_others(draft: Draft, node: cst.CSTNode, calls: Sequence[Site]) -> str:
    """What `node` calls besides what the run saw there, and what only gives something; "" for nothing."""
    others = [each for each in draft.nodes(cst.Call, node) if not _is_harmless(draft, each)]
    seen: set[int] = set()
    for site in calls:
        found = [each for each in others if draft.line(each) == site.line]
        if site.end_column is not None:  # else, before Python 3.11, the only one of its line
            exact = by_extent(draft, others, site)
            found = [each for each in found if each is exact and start_of(draft, each) == (site.line, site.column)]
        seen.update(map(id, found if len(found) == 1 else ()))
    left = next((each for each in others if id(each) not in seen), None)
    if left is None:
        return ""
    return f"line {draft.line(left)} also calls {last_name(draft, left) or 'something else'}"


def _is_harmless(draft: Draft, call: cst.Call) -> bool:
    """Whether it only gives something, as far as its name tells: a view, a context of torch's, a builtin's result."""
    last = last_name(draft, call)
    if full_name(draft, call.func).startswith("torch."):
        return last in _VIEWS or last in _CONTEXTS
    return last in (_VIEWS if isinstance(call.func, cst.Attribute) else _BUILTINS)


def _does_more(draft: Draft, function: cst.FunctionDef, calls: Sequence[Site]) -> str:
    """What a function does besides computing; "" for nothing."""
    name = function.name.value
    targets: list[cst.BaseExpression] = [each.target for each in draft.nodes(cst.AssignTarget, function)]
    targets += [each.target for each in draft.nodes(cst.AugAssign, function)]
    targets += [each.target for each in draft.nodes(cst.AnnAssign, function)]
    for target in targets:
        if _names([target]) is None:
            return f"{name} also keeps {draft.code(target)} (line {draft.line(target)})"
    if m.findall(function, m.Global() | m.Nonlocal() | m.Yield() | m.Await() | m.Del() | m.NamedExpr()):
        return f"{name} does more than to compute it"
    return _calls_others(draft, function.body, calls)


def _with_what_is_empty(removed: list[tuple[Draft, Statement]]) -> list[tuple[Draft, Statement]] | None:
    """These, and in the place of all of a ``with torch.no_grad()`` that itself; None where a block would be empty."""
    chosen: list[tuple[Draft, Statement]] = []
    for draft, statement in removed:
        gone = {id(each) for other, each in removed if other is draft}
        block = draft.block(statement)
        if not all(id(each) in gone for each in draft.siblings(statement)):
            chosen.append((draft, statement))
            continue
        above = draft.parent(block) if block is not None else None
        if not isinstance(above, cst.With) or not all(_is_plain(draft, each) for each in above.items):
            return None
        outer = draft.block(above)
        if outer is None or len(outer.body) == 1:
            return None
        if all(above is not each for _, each in chosen):
            chosen.append((draft, above))
    return chosen


def _is_plain(draft: Draft, item: cst.WithItem) -> bool:
    """Whether a context only says how torch computes in it."""
    call = item.item
    return item.asname is None and isinstance(call, cst.Call) and last_name(draft, call) in _CONTEXTS
