"""Whether anything of a name may be changed after it was given its value, or be meant by another name."""

from __future__ import annotations

import libcst as cst

from advisor.edit.draft import Draft, Drafts
from advisor.edit.modules import with_word
from advisor.edit.names import imported_as, last_part

# Calls that show or copy what they are given.
_READS = ("dict", "copy", "deepcopy", "print", "len", "str", "repr", "list", "sorted", "dumps", "dump", "isinstance")
_CHANGES = ("update", "setdefault", "pop", "popitem", "clear", "__setitem__")


def renames(draft: Draft, name: str) -> bool:
    """``from data import make as m``."""
    aliases = [each for each in draft.nodes(cst.ImportAlias) if each.asname is not None]
    return any(last_part(each.name) == name != each.evaluated_alias for each in aliases)


def is_changed(drafts: Drafts, draft: Draft, name: str) -> bool:
    """Whether anything of that name, in any of the modules, is or may be changed: all that is sure is reading an item.

    That is ``name["key"]``, ``**name``, a copy, and what shows it.
    """
    for each in with_word(drafts, draft, name):
        if renames(each, name):
            return True
        for node in each.nodes(cst.Name):
            if node.value == name and not _only_read(each, node):
                return True
    return False


def _only_read(draft: Draft, node: cst.Name) -> bool:
    whole: cst.CSTNode = node
    above = draft.parent(node)
    if isinstance(above, cst.Attribute) and above.attr is node:
        whole, above = above, draft.parent(above)
    if isinstance(above, (cst.Param, cst.ImportAlias)) or (isinstance(above, cst.Arg) and above.keyword is node):
        return True
    inner = whole
    while isinstance(above, cst.Subscript) and above.value is inner:  # NAME["train"]["size"]
        inner, above = above, draft.parent(above)
    if isinstance(above, (cst.AssignTarget, cst.AnnAssign)) and above.target is inner:
        return inner is whole  # which gives the name its value
    if isinstance(above, cst.Attribute):
        return above.value is not inner or above.attr.value not in _CHANGES
    if isinstance(above, cst.Arg):
        call = draft.parent(above)
        if above.star == "**":
            return True
        # Of an item that is handed on nothing is changed here, of the whole it may be.
        known = isinstance(call, cst.Call) and last_part(call.func) in _READS
        return known or _is_followed(draft, call) or inner is not whole
    if isinstance(above, (cst.AugAssign, cst.Del, cst.For)):
        return isinstance(above, cst.For) and above.iter is inner
    if isinstance(above, cst.Assign):
        return inner is not whole  # another name for it
    if isinstance(above, cst.Element):
        while isinstance(above, (cst.Element, cst.Tuple, cst.List)):
            above = draft.parent(above)
        return inner is not whole and not isinstance(above, (cst.AssignTarget, cst.For))
    return True


def _is_followed(draft: Draft, call: cst.CSTNode | None) -> bool:
    """Whether what is handed on is a function's of the script's, whose parameter is looked at by its own name."""
    if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Name):
        return False
    name = call.func.value
    return bool(imported_as(draft, name)) or any(each.name.value == name for each in _definitions(draft))


def _definitions(draft: Draft) -> list[cst.FunctionDef | cst.ClassDef]:
    return [*draft.nodes(cst.FunctionDef), *draft.nodes(cst.ClassDef)]


def is_renamed(drafts: Drafts, draft: Draft, name: str) -> bool:
    """Whether anything of that name gets another one, by which it may be changed: ``other = name``."""
    for each in with_word(drafts, draft, name):
        names = [node for node in each.nodes(cst.Name) if node.value == name]
        if renames(each, name) or any(isinstance(each.parent(node), (cst.Assign, cst.Element)) for node in names):
            return True
    return False
