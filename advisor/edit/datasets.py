"""What a dataset does that worker processes would share, or not hear of: files that it opens, what it is told."""

from __future__ import annotations

import libcst as cst
from libcst.helpers import get_full_name_for_node

from advisor.edit.calls import DATALOADER_PARAMETERS, argument
from advisor.edit.draft import Draft
from advisor.edit.locate import last_name
from advisor.edit.names import full_name, last_part
from advisor.edit.origin import scope_of
from advisor.edit.sums import TAKES_IN

# Open files that several processes must not read through: one position for all of them (POSIX, fork(2)), or a library
# that keeps a state of its own (h5py's documentation, "Parallel HDF5"; sqlite.org, "How To Corrupt"; lmdb's
# mdb_env_open: "Do not use opened LMDB databases after fork()"). None of them can be pickled for a spawned worker.
_OPENERS = frozenset((
    "open", "io.open", "gzip.open", "h5py.File", "zipfile.ZipFile", "tarfile.open", "sqlite3.connect", "lmdb.open",
    "netCDF4.Dataset", "rasterio.open", "tables.open_file",
))  # fmt: skip


def opened_when_made(draft: Draft, cls: str) -> str:
    """The call by which `cls` opens a file when it is made, and keeps it; "" where none is seen in this file."""
    return next((code for function, code in _opened(draft, cls) if function == "__init__"), "")


def opened_at_first(draft: Draft, cls: str) -> str:
    """The call by which `cls` opens a file when it is asked for its first sample; "" where none is seen."""
    return next((code for function, code in _opened(draft, cls) if function != "__init__"), "")


def _opened(draft: Draft, cls: str) -> list[tuple[str, str]]:
    """Methods of `cls` that keep an open file in an attribute, and the calls that open it."""
    found = []
    for assign in draft.nodes(cst.Assign):
        value, holder, function = assign.value, draft.enclosing_class(assign), draft.function(assign)
        while isinstance(value, cst.Subscript):  # a group of the file
            value = value.value
        if holder is None or holder.name.value != cls or function is None or not isinstance(value, cst.Call):
            continue
        kept = any(isinstance(each.target, cst.Attribute) for each in assign.targets)
        if kept and full_name(draft, value.func) in _OPENERS:
            found.append((function.name.value, draft.code(value)))
    return found


def is_asked(draft: Draft, call: cst.Call) -> bool:
    """Whether the script takes samples from the dataset of a DataLoader by itself: ``x, y = dataset[0]``."""
    name = _dataset_of(call)
    return bool(name) and any(
        last_part(each.value) == name and not isinstance(draft.parent(each), (cst.AssignTarget, cst.Annotation))
        for each in draft.nodes(cst.Subscript)
    )


def told_in_loop(draft: Draft, call: cst.Call) -> str:
    """What the script tells the dataset of a DataLoader between its epochs, as code; "" where nothing is seen.

    Workers that live on have a copy of the dataset that does not hear of it.
    """
    name = _dataset_of(call)
    repeated = {last_name(draft, each) for each in draft.nodes(cst.Call) if draft.loop(each) is not None}
    for statement in draft.nodes(cst.SimpleStatementLine):
        loop, function = draft.loop(statement), draft.function(statement)
        again = function is not None and function.name.value in repeated and function is not draft.function(call)
        if loop is None and not again:
            continue
        if loop is not None and call in draft.nodes(cst.Call, loop):
            continue  # a loader is made in each round
        here = scope_of(draft, statement) is scope_of(draft, call)
        if here and draft.line(statement) < draft.line(call):
            continue
        for small in statement.body:
            if any(_changes(node, name, here) for node in _changed(small)):
                return draft.code(statement).strip()
    return ""


def _dataset_of(call: cst.Call) -> str:
    given = argument(call, "dataset", DATALOADER_PARAMETERS)
    return last_part(given.value) if given is not None else ""


def _changed(small: cst.BaseSmallStatement) -> list[cst.BaseExpression]:
    """What a statement may change: the targets of an assignment, the method that it calls for its effect."""
    if isinstance(small, cst.Expr):
        return [small.value.func] if isinstance(small.value, cst.Call) else []
    if isinstance(small, cst.Assign):
        return [each.target for each in small.targets]
    return [small.target] if isinstance(small, cst.AugAssign) else []


def _changes(node: cst.BaseExpression, name: str, here: bool) -> bool:
    """Whether a target or a method is the dataset's: `name`'s, or that of any ``….dataset``."""
    whole = isinstance(node, cst.Subscript)
    parts = (get_full_name_for_node(node) or "").split(".")
    through = parts if whole else parts[:-1]
    # A list of another function that is called alike, to which samples are added.
    if parts[-1] in TAKES_IN and not here:
        return False
    return (bool(name) and name in through) or "dataset" in through[1:]
