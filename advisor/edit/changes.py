"""Whether anything of a name may be changed after it was given its value, or be meant by another name."""

from __future__ import annotations

import re

import libcst as cst
from libcst.helpers import get_full_name_for_node

from advisor.edit.draft import Draft, Drafts
from advisor.edit.modules import beside, with_word
from advisor.edit.names import full_name, last_part
from advisor.edit.scopes import attribute_assignment, is_target, parameter_names, string_value

# Calls that show or copy what they are given.
_READS = ("dict", "copy", "deepcopy", "print", "len", "str", "repr", "list", "sorted", "dumps", "dump", "isinstance")
# Attributes by names that the text does not tell.
_SETS = re.compile(
    r"\bsetattr\((?!\s*(?:module|model|m|mod|layer|net|parent|block|child|submodule)\b)|__setattr__\("
    r"|\b__dict__\.update\(|\b__dict__\[|\b__dict__\s*\|?=(?!=|\s*self\b)|\bvars\([^()]*\)(?:\.update\(|\[)|=\s*vars\([^()]+\)\s*$",
    re.MULTILINE,
)
_OVERRIDES = re.compile(r"\.(update|setdefault|merge\w*)\(")  # a mapping's values by another's
_DEPTH = 4  # functions that hand a value on to the next
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
            if node.value == name and not _only_read(drafts, each, node, _DEPTH):
                return True
    return False


def _only_read(drafts: Drafts, draft: Draft, node: cst.Name, depth: int) -> bool:
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
        return known or inner is not whole or _is_read_by(drafts, draft, call, above, depth)
    if isinstance(above, (cst.AugAssign, cst.Del, cst.For)):
        return isinstance(above, cst.For) and above.iter is inner
    if isinstance(above, cst.Assign):
        return inner is not whole  # another name for it
    if isinstance(above, cst.Element):
        while isinstance(above, (cst.Element, cst.Tuple, cst.List)):
            above = draft.parent(above)
        return inner is not whole and not isinstance(above, (cst.AssignTarget, cst.For))
    return True


def _is_read_by(drafts: Drafts, draft: Draft, call: cst.CSTNode | None, arg: cst.Arg, depth: int) -> bool:
    """Whether what is handed on is only read by a function, or a class, that is called by its plain name.

    By one of the script's that is looked at; one that is imported from elsewhere is taken to read it.
    """
    if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Name) or not depth:
        return False
    module, _, name = full_name(draft, call.func).rpartition(".")
    other = beside(drafts, draft, module) if module else draft
    if other is None:
        return bool(module)
    for each in other.nodes(cst.FunctionDef):
        holder = other.enclosing_class(each)
        if (holder.name.value if holder is not None and each.name.value == "__init__" else each.name.value) != name:
            continue
        names = parameter_names(other, each)
        index = call.args.index(arg)
        given = arg.keyword.value if arg.keyword is not None else names[index] if index < len(names) else ""
        inside = [node for node in other.nodes(cst.Name, each.body) if node.value == given]
        return bool(given) and all(_only_read(drafts, other, node, depth - 1) for node in inside)
    return any(each.name.value == name for each in other.nodes(cst.ClassDef))


def sets_by_text(drafts: Drafts, draft: Draft) -> bool:
    """Whether any of the modules gives objects attributes by names that the text does not tell."""
    return _says(drafts, draft, _SETS)


def _says(drafts: Drafts, draft: Draft, pattern: re.Pattern[str]) -> bool:
    files = {draft.source.path, *drafts.sources.modules}
    return any(pattern.search(drafts.sources.text(each)) for each in files if drafts.sources.has(each))


def settings_of(
    drafts: Drafts, draft: Draft, name: str
) -> list[tuple[Draft, cst.Attribute, cst.BaseExpression | None]]:
    """Where the modules assign ``something.name``, and what; ``self.name`` aside."""
    return [
        (user, target, value)
        for user in with_word(drafts, draft, name)
        for target in user.nodes(cst.Attribute)
        if target.attr.value == name and get_full_name_for_node(target.value) != "self"
        for value in attribute_assignment(user, target)
    ]


def is_set(drafts: Drafts, draft: Draft, name: str) -> bool:
    """Whether any of the modules gives an object, or a module, an attribute of that name, or may."""
    return sets_by_text(drafts, draft) or bool(settings_of(drafts, draft, name))


def key_of(item: cst.Subscript) -> str:
    """The key of ``values["key"]``; "" for any other item."""
    index = item.slice[0].slice
    return string_value(index.value) if isinstance(index, cst.Index) else ""


def is_item_set(drafts: Drafts, draft: Draft, name: str) -> bool:
    """Whether any of the modules gives an item of that key a value."""
    return any(
        key_of(item) == name and is_target(user, item)
        for user in with_word(drafts, draft, name)
        for item in user.nodes(cst.Subscript)
    )


def is_overridden(drafts: Drafts, draft: Draft, name: str) -> bool:
    """Whether the script may give what it read from a file another value: an item, an attribute, another mapping."""
    set_by_name = is_set(drafts, draft, name) or is_item_set(drafts, draft, name)
    return set_by_name or _says(drafts, draft, _OVERRIDES)


def is_renamed(drafts: Drafts, draft: Draft, name: str) -> bool:
    """Whether anything of that name gets another one, by which it may be changed: ``other = name``."""
    for each in with_word(drafts, draft, name):
        names = [node for node in each.nodes(cst.Name) if node.value == name]
        if renames(each, name) or any(isinstance(each.parent(node), (cst.Assign, cst.Element)) for node in names):
            return True
    return False
