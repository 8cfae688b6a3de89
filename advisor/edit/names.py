"""What a name means in one file: imports and their aliases, and the edit that adds a missing one."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Collection, Sequence
from typing import cast
from weakref import WeakKeyDictionary

import libcst as cst
from libcst.helpers import get_full_name_for_node

from advisor.edit.draft import Draft, Statement

# Imports that were put into a draft: its tree does not show them until it is rendered.
_added: WeakKeyDictionary[Draft, set[str]] = WeakKeyDictionary()
# Calls that prepare a script, beside the standard library's.
_PREPARE = (
    *("torch.manual_seed", "torch.set_", "torch.backends.", "torch.cuda.", "torch.random.", "torch.device"),
    *("numpy.", "matplotlib.", "transformers.set_seed", "transformers.logging.", "lightning.seed_everything"),
)
_DEFINITIONS_AND_LOOPS = (cst.ClassDef, cst.FunctionDef, cst.For, cst.While, cst.With)


def _dotted(node: cst.CSTNode | None) -> str:
    return (get_full_name_for_node(node) or "") if node is not None else ""


def _simple(statement: cst.CSTNode) -> list[cst.BaseSmallStatement]:
    """The simple statements of one at module level that run on import: its own, or a ``try``'s first branch."""
    block = statement.body.body if isinstance(statement, cst.Try) else [statement]
    return [small for each in block if isinstance(each, cst.SimpleStatementLine) for small in each.body]


def bindings(draft: Draft) -> dict[str, str]:
    """Name in the file → full dotted name, for all module-level imports (``th`` → ``torch``)."""
    return _imported([small for statement in draft.module.body for small in _simple(statement)])


def _imported(statements: Sequence[cst.BaseSmallStatement]) -> dict[str, str]:
    found: dict[str, str] = {}
    for statement in statements:
        if isinstance(statement, cst.Import):
            for alias in statement.names:
                name = get_full_name_for_node(alias.name) or ""
                if alias.evaluated_alias:
                    found[alias.evaluated_alias] = name
                else:
                    top = name.partition(".")[0]
                    found[top] = top
        elif isinstance(statement, cst.ImportFrom) and not isinstance(statement.names, cst.ImportStar):
            module = "." * len(statement.relative) + _dotted(statement.module)
            for alias in statement.names:
                name = alias.evaluated_name
                dot = "" if not module or module.endswith(".") else "."
                found[alias.evaluated_alias or name] = f"{module}{dot}{name}"
    return found


def imports_anywhere(draft: Draft) -> list[tuple[str, str]]:
    """As :func:`bindings`, of all imports, in functions and branches, too; ``("*", module)`` for all of a module."""
    found: list[tuple[str, str]] = []
    for statement in (*draft.nodes(cst.Import), *draft.nodes(cst.ImportFrom)):
        found += _imported([statement]).items()
        if isinstance(statement, cst.Import):  # `import a.b.c` binds a, by which c is reached
            names = [get_full_name_for_node(each.name) or "" for each in statement.names if each.asname is None]
            found += [(each.partition(".")[0], each) for each in names if "." in each]
        if isinstance(statement, cst.ImportFrom) and isinstance(statement.names, cst.ImportStar):
            found.append(("*", "." * len(statement.relative) + _dotted(statement.module)))
    return found


def imported_as(draft: Draft, name: str) -> str:
    """The full name behind an imported name; empty when `name` is no import of this file."""
    return bindings(draft).get(name, "")


def full_name(draft: Draft, node: cst.CSTNode) -> str:
    """The dotted name of an expression with its first part resolved: ``DL`` → ``torch.utils.data.DataLoader``."""
    written = get_full_name_for_node(node) or ""
    first, dot, rest = written.partition(".")
    return (imported_as(draft, first) or first) + dot + rest


def plain_name(node: cst.CSTNode) -> str:
    """``self.net`` as it is written; "" for what is no name alone: an item, ``nets[0].head``, or what a call gives."""
    inner = node
    while isinstance(inner, cst.Attribute):
        inner = inner.value
    return _dotted(node) if isinstance(inner, cst.Name) else ""


def last_part(node: cst.CSTNode) -> str:
    """``h`` of ``h`` and of ``self.h``; "" for what is no name."""
    if isinstance(node, cst.Attribute):
        return node.attr.value
    return node.value if isinstance(node, cst.Name) else ""


def own_attribute(node: cst.CSTNode, items: bool = False) -> str:
    """``seen`` of ``self.seen``, with `items` of ``self.seen[i]``, too; "" for anything else."""
    while items and isinstance(node, cst.Subscript):
        node = node.value
    own = isinstance(node, cst.Attribute) and isinstance(node.value, cst.Name) and node.value.value == "self"
    return cst.ensure_type(node, cst.Attribute).attr.value if own else ""


def name_for(draft: Draft, dotted: str, bound: Collection[str] = ()) -> str | None:
    """How the file would write `dotted` with the imports it has: ``torch.autocast`` → ``th.autocast``.

    None when nothing that it imports reaches it. `bound` are names that stand for something else where it goes.
    """
    known = bindings(draft)
    best: tuple[int, str] | None = None
    for local, full in known.items():
        if local not in bound and (dotted == full or dotted.startswith(full + ".")):
            candidate = (len(full), local + dotted[len(full) :])
            if best is None or candidate > best:
                best = candidate
    return best[1] if best else None


def ensure_name(draft: Draft, dotted: str) -> str:
    """How to write `dotted` in this file; imports its top package when nothing reaches it yet."""
    written = name_for(draft, dotted)
    if written is not None:
        return written
    top = dotted.partition(".")[0]
    add_import(draft, f"import {top}")
    return dotted


def from_module(draft: Draft, module: str, name: str) -> str:
    """How to write ``module.name`` in this file, imported from the module where the file imports others from it."""
    written = name_for(draft, f"{module}.{name}")
    direct = next(
        (
            node
            for statement in draft.module.body
            for node in _simple(statement)
            if isinstance(node, cst.ImportFrom)
            and not node.relative
            and _dotted(node.module) == module
            and not isinstance(node.names, cst.ImportStar)
        ),
        None,
    )
    if direct is None or (written is not None and "." not in written):
        return written or ensure_name(draft, f"{module}.{name}")
    if name in all_names(draft):  # it means something else here
        return ensure_name(draft, f"{module}.{name}")
    draft.change(direct, lambda node: _with_name(cst.ensure_type(node, cst.ImportFrom), name))
    return name


def _with_name(statement: cst.ImportFrom, name: str) -> cst.ImportFrom:
    """The import with one name more: where it belongs when they are in order, else behind the others."""
    aliases = list(cast(Sequence[cst.ImportAlias], statement.names))
    names = [_dotted(each.name) for each in aliases]
    if name in names:
        return statement
    ordered = len(names) > 1 and names == sorted(names)
    index = sum(each < name for each in names) if ordered else len(names)
    comma = aliases[0].comma if isinstance(aliases[0].comma, cst.Comma) else None
    between = comma or cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    new = cst.ImportAlias(name=cst.Name(name))
    if index < len(aliases):
        aliases.insert(index, new.with_changes(comma=between))
    else:
        last = aliases[-1]
        aliases[-1:] = [last.with_changes(comma=between), new.with_changes(comma=last.comma)]
    return statement.with_changes(names=aliases)


def add_import(draft: Draft, statement: str) -> None:
    """Add an import at module level: after the first group of imports, else after docstring and ``__future__``.

    Asked for again, the same import of the same draft is not added twice.
    """
    added = _added.setdefault(draft, set())
    if statement in added:
        return
    added.add(statement)
    anchor = _import_anchor(draft)
    if anchor is not None:
        draft.insert_after(anchor, ("" if _is_import(anchor) else "\n") + statement)
        return
    body = draft.module.body
    if body:
        draft.insert_before(body[0], statement)


def after_imports(draft: Draft, *lines: str) -> bool:
    """Put statements below the last import at module level that stands above all that defines, loops or computes.

    Further down, where only there the name that the first of `lines` begins with is imported. False when the file
    has no import, and nothing was done.
    """
    name = lines[0].partition(".")[0]
    unbound = name in bindings(draft)  # a name that is not is imported by this edit: above them all
    last: Statement | None = None
    for statement in draft.module.body:
        names = _imported(_simple(statement))
        if _is_import(statement) or (isinstance(statement, cst.Try) and names) or name in names:
            last = statement
        elif not unbound and (isinstance(statement, _DEFINITIONS_AND_LOOPS) or _computes(draft, statement)):
            break
        unbound = unbound and name not in names
    if last is None:
        return False
    # A blank line sets the setting apart from the imports, as formatters want it.
    draft.insert_after(last, "\n" + lines[0], *lines[1:])
    return True


def _computes(draft: Draft, statement: cst.CSTNode) -> bool:
    """Whether a statement calls more than what prepares a script: the standard library, seeds and settings."""
    for call in draft.nodes(cst.Call, statement):
        name = full_name(draft, call.func)
        known = name.partition(".")[0] in sys.stdlib_module_names or name.startswith(_PREPARE)
        if not known and not (isinstance(call.func, cst.Name) and hasattr(builtins, call.func.value)):
            return True
    return False


def _is_import(statement: cst.CSTNode) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and all(
        isinstance(each, (cst.Import, cst.ImportFrom)) for each in statement.body
    )


def _import_anchor(draft: Draft) -> Statement | None:
    """The statement that a new import goes behind: the end of the first group of imports, or the docstring.

    Of the second, where variables of the environment are set between the two, which libraries read when imported.
    """
    anchor: Statement | None = None
    for index, statement in enumerate(draft.module.body):
        if _is_import(statement) or (index == 0 and is_docstring(statement)):
            anchor = statement
        elif not _sets_environment(draft, statement):
            break
    return anchor


def _sets_environment(draft: Draft, statement: cst.CSTNode) -> bool:
    """``os.environ["OMP_NUM_THREADS"] = "1"``, ``os.environ.setdefault(…)``."""
    names = {each.value for each in draft.nodes(cst.Name, statement)}
    return isinstance(statement, cst.SimpleStatementLine) and "environ" in names


def is_docstring(statement: cst.CSTNode) -> bool:
    return (
        isinstance(statement, cst.SimpleStatementLine)
        and len(statement.body) == 1
        and isinstance(statement.body[0], cst.Expr)
        and isinstance(statement.body[0].value, (cst.SimpleString, cst.ConcatenatedString))
    )


def framework_used(draft: Draft) -> str:
    """The framework whose trainer a file imports: ``lightning``, ``transformers``, ``accelerate``; else empty."""
    for full in bindings(draft).values():
        top, _, rest = full.partition(".")
        if top in ("lightning", "pytorch_lightning"):
            return "lightning"
        if (top, rest[-7:]) == ("transformers", "Trainer"):
            return top
        if (top, rest) == ("accelerate", "Accelerator"):
            return top
    return ""


def all_names(draft: Draft) -> set[str]:
    """Every identifier in the file: what a new variable must not be called."""
    return {name.value for name in draft.nodes(cst.Name)}


def fresh_name(draft: Draft, wanted: str, others: Collection[str] = ()) -> str:
    """`wanted`, or with a number behind it when the file, or one of `others`, uses it already."""
    taken = {*all_names(draft), *others}
    name, number = wanted, 2
    while name in taken:
        name, number = f"{wanted}{number}", number + 1
    return name
