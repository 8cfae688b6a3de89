"""What a dataset does that worker processes would share, or not hear of: files that it opens, what it is told."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst
import libcst.matchers as m
from libcst.helpers import get_full_name_for_node

from advisor.edit.calls import DATALOADER_PARAMETERS, argument
from advisor.edit.draft import Draft
from advisor.edit.locate import last_name
from advisor.edit.names import full_name, imported_as, last_part
from advisor.edit.origin import assigned_once, scope_of
from advisor.edit.sums import TAKES_IN, elements

# Open files that several processes must not read through: one position for all of them (POSIX, fork(2)), or a library
# that keeps a state of its own (h5py's documentation, "Parallel HDF5"; sqlite.org, "How To Corrupt"; lmdb's
# mdb_env_open: "Do not use opened LMDB databases after fork()"). None of them can be pickled for a spawned worker.
_OPENERS = frozenset((
    "open", "io.open", "gzip.open", "h5py.File", "zipfile.ZipFile", "tarfile.open", "sqlite3.connect", "lmdb.open",
    "netCDF4.Dataset", "rasterio.open", "tables.open_file",
))  # fmt: skip
_FETCHES = ("__getitem__", "__getitems__", "__iter__", "__next__")
_AT_ONCE = ("__init__", "__len__")  # a sampler asks for the length before there are workers
_STEPS = 20  # assignments that are followed from a loader's dataset to what it is made of


def opened_when_made(draft: Draft, cls: str) -> str:
    """The call by which `cls` opens a file when it is made, and keeps it; "" where none is seen in this file."""
    return _opened(draft, _reached(draft, cls, _AT_ONCE))


def opened_at_first(draft: Draft, cls: str) -> str:
    """The call by which `cls` opens a file when it is asked for its first sample; "" where none is seen."""
    return _opened(draft, _reached(draft, cls, _FETCHES))


def _opened(draft: Draft, methods: Iterable[cst.FunctionDef]) -> str:
    """The first call in `methods` whose open file an attribute keeps."""
    for method in methods:
        kept: list[cst.BaseExpression] = []
        for assign in draft.nodes(cst.Assign, method):
            if any(isinstance(each.target, cst.Attribute) for each in assign.targets):
                kept.append(assign.value)
        for annotated in draft.nodes(cst.AnnAssign, method):
            if isinstance(annotated.target, cst.Attribute) and annotated.value is not None:
                kept.append(annotated.value)
        for value in kept:
            opened = _file_of(draft, value, method)
            if opened is not None:
                return draft.code(opened)
    return ""


def _file_of(draft: Draft, value: cst.BaseExpression, method: cst.FunctionDef) -> cst.Call | None:
    """The call that opens what `value` is, or is a part of: ``h5py.File(path)["images"]``, and not what is read."""
    while isinstance(value, cst.Subscript):
        index = value.slice[0].slice if len(value.slice) == 1 else None
        if not isinstance(index, cst.Index) or isinstance(index.value, (cst.Tuple, cst.Ellipsis)):
            return None  # [:] and [()] read it all
        value = value.value
    if isinstance(value, cst.ListComp):
        value = value.elt
    if isinstance(value, cst.Name):
        value = assigned_once(draft, value.value, method) or value
    return value if isinstance(value, cst.Call) and full_name(draft, value.func) in _OPENERS else None


def is_asked(draft: Draft, call: cst.Call) -> bool:
    """Whether the script takes samples from the dataset of a DataLoader by itself: ``x, y = dataset[0]``."""
    names = _data_of(draft, call)
    for each in draft.nodes(cst.Subscript):
        stored = isinstance(draft.parent(each), (cst.AssignTarget, cst.Annotation))
        if last_part(each.value) in names and not stored:
            return True
    iterated = [each.iter for each in draft.nodes(cst.For)] + [each.iter for each in draft.nodes(cst.CompFor)]
    iterated += [each.args[0].value for each in draft.nodes(cst.Call) if m.matches(each, _ITERATES)]
    return any(last_part(each) in names for each in iterated)


_ITERATES = m.Call(func=m.Name("iter") | m.Name("enumerate"), args=[m.Arg(), m.ZeroOrMore()])


def kept_for_script(written: Draft, cls: str, draft: Draft, call: cst.Call) -> str:
    """An attribute that `cls` changes when it makes a sample, and the script reads from its dataset; "" for none.

    What each worker changes is its own copy, which the script never sees. `written` is the file of the class.
    """
    changed: set[str] = set()
    for function in _reached(written, cls, _FETCHES):
        targets: list[cst.BaseExpression] = [each.target for each in written.nodes(cst.AugAssign, function)]
        targets += [each.target for each in written.nodes(cst.AssignTarget, function)]
        targets += [
            each.func.value
            for each in written.nodes(cst.Call, function)
            if isinstance(each.func, cst.Attribute) and each.func.attr.value in TAKES_IN
        ]
        changed |= {name for each in targets if (name := _own_attribute(each))}
    names = {*_data_of(draft, call), "dataset"} if changed else set()
    inside = {each for each in draft.nodes(cst.ClassDef) if each.name.value == cls}
    for read in draft.nodes(cst.Attribute) if changed else ():
        stored = isinstance(draft.parent(read), cst.AssignTarget) or not inside.isdisjoint(draft.ancestors(read))
        if read.attr.value in changed and last_part(read.value) in names and not stored:
            return draft.code(read)
    return ""


def _reached(draft: Draft, cls: str, names: Iterable[str]) -> list[cst.FunctionDef]:
    """Methods of `cls` by their names, and those that they call in turn."""
    methods: dict[str, cst.FunctionDef] = {}
    for function in draft.nodes(cst.FunctionDef):
        holder = draft.enclosing_class(function)
        if holder is not None and holder.name.value == cls:
            methods[function.name.value] = function
    todo, found = [name for name in names if name in methods], dict[str, cst.FunctionDef]()
    while todo:
        name = todo.pop()
        found[name] = methods[name]
        called = {_own_attribute(each.func) for each in draft.nodes(cst.Call, methods[name])}
        todo += [each for each in called if each in methods and each not in found]
    return list(found.values())


def _own_attribute(node: cst.BaseExpression) -> str:
    """``seen`` of ``self.seen`` and of ``self.seen[i]``."""
    while isinstance(node, cst.Subscript):
        node = node.value
    own = isinstance(node, cst.Attribute) and isinstance(node.value, cst.Name) and node.value.value == "self"
    return cst.ensure_type(node, cst.Attribute).attr.value if own else ""


def told_in_loop(draft: Draft, call: cst.Call) -> str:
    """What the script tells the dataset of a DataLoader between its epochs, as code; "" where nothing is seen.

    Workers that live on have a copy of the dataset, and of what it is made of, that does not hear of it.
    """
    names = _data_of(draft, call)
    repeated = {last_name(draft, each) for each in draft.nodes(cst.Call) if draft.loop(each) is not None}
    for statement in draft.nodes(cst.SimpleStatementLine):
        loop, function = draft.loop(statement), draft.function(statement)
        again = function is not None and function.name.value in repeated and function is not draft.function(call)
        if (loop is None and not again) or (function is not None and function.name.value == "__init__"):
            continue
        if loop is not None and call in draft.nodes(cst.Call, loop):
            continue  # a loader is made in each round
        here = scope_of(draft, statement) is scope_of(draft, call)
        if here and draft.line(statement) < draft.line(call):
            continue
        for small in statement.body:
            if any(_changes(node, names, here) for node in _changed(small)):
                return draft.code(statement).strip()
    return ""


def _data_of(draft: Draft, call: cst.Call) -> set[str]:
    """The names of the dataset of a DataLoader and of what it is made of: of its transform, of the whole of a part."""
    given = argument(call, "dataset", DATALOADER_PARAMETERS)
    todo, names = [given.value] if given is not None else [], set[str]()
    defined = {each.name.value for each in draft.nodes(cst.FunctionDef)}
    defined |= {each.name.value for each in draft.nodes(cst.ClassDef)}
    for _ in range(_STEPS):
        if not todo:
            break
        node = todo.pop(0)
        if isinstance(node, cst.Call):
            todo += [arg.value for arg in node.args]
        elif isinstance(node, cst.Subscript):
            todo.append(node.value)
        elif isinstance(node, cst.Name) or _own_attribute(node):
            name = last_part(node)
            if name in names or name in defined or name in ("True", "False", "None") or imported_as(draft, name):
                continue
            names.add(name)
            for assign in draft.nodes(cst.Assign):
                if any(last_part(each) == name for target in assign.targets for each in elements(target.target)):
                    todo.append(assign.value)
    return names


def _changed(small: cst.BaseSmallStatement) -> list[cst.BaseExpression]:
    """What a statement may change: the targets of an assignment, the method that it calls for its effect."""
    if isinstance(small, cst.Expr):
        return [small.value.func] if isinstance(small.value, cst.Call) else []
    if isinstance(small, cst.Assign):
        return [each.target for each in small.targets]
    return [small.target] if isinstance(small, cst.AugAssign) else []


def _changes(node: cst.BaseExpression, names: set[str], here: bool) -> bool:
    """Whether a target or a method is of one of `names`, or of any ``….dataset``."""
    parts = (get_full_name_for_node(node) or "").split(".")
    through = parts if isinstance(node, cst.Subscript) else parts[:-1]
    # A list of another function that is called alike, to which samples are added.
    if parts[-1] in TAKES_IN and not here:
        return False
    return not names.isdisjoint(through) or "dataset" in through[1:]
