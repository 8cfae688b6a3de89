"""NumPy's archives that a dataset keeps open: read when it is made, where each sample would read a member again."""

from __future__ import annotations

import libcst as cst

from advisor.edit.draft import Draft, Drafts
from advisor.edit.locate import innermost_at
from advisor.edit.modules import with_word
from advisor.edit.names import full_name, own_attribute

# What an open archive has beside its members, and a dictionary has not.
_OF_ARCHIVES = frozenset(("files", "close", "zip", "fid", "f", "max_header_size"))


def read_archives(drafts: Drafts, draft: Draft, line: int) -> str:
    """Have the class whose method stands at `line` read its archives into dictionaries; why not, as a clause, or ""."""
    holder = innermost_at(draft, cst.ClassDef, line)
    if holder is None:
        return "the class that keeps the archives is not the one that reads them"
    calls = [each for each in draft.nodes(cst.Call, holder) if full_name(draft, each.func) == "numpy.load"]
    kept = [each for each in calls if _is_kept(draft, each)]
    if len(kept) != 1 or len(calls) != 1:
        return "which call opens the archives cannot be told from the source"
    asks = any(each.attr.value in _OF_ARCHIVES for each in draft.nodes(cst.Attribute))
    names = [each for user in with_word(drafts, draft, "files") for each in user.nodes(cst.Attribute)]
    if asks or any(each.attr.value == "files" for each in names):
        return "something may ask for what only an open archive has"
    draft.change(kept[0], _as_dictionary)
    return ""


def _as_dictionary(node: cst.Call) -> cst.Call:
    return cst.Call(func=cst.Name("dict"), args=[cst.Arg(node)])


def _is_kept(draft: Draft, call: cst.Call) -> bool:
    """Whether an attribute of the object's is given what the call opens, or a list or a dictionary of such."""
    node: cst.CSTNode = call
    for above in draft.ancestors(call):
        if isinstance(above, cst.Assign):
            targets = [each.target for each in above.targets]
            return node is above.value and all(own_attribute(each, items=True) for each in targets)
        if isinstance(above, cst.AnnAssign):
            return node is above.value and bool(own_attribute(above.target, items=True))
        several = isinstance(above, (cst.ListComp, cst.List, cst.Element))
        if several or (isinstance(above, cst.DictComp) and above.value is node):
            node = above
        elif isinstance(above, cst.Arg):
            taking = draft.parent(above)
            func = taking.func if isinstance(taking, cst.Call) else None
            appends = isinstance(func, cst.Attribute) and func.attr.value == "append"
            return appends and bool(own_attribute(cst.ensure_type(func, cst.Attribute).value, items=True))
        else:
            return False
    return False

