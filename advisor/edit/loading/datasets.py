"""What a dataset does that worker processes would share, or not hear of: files that it opens, what it is told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import libcst as cst
import libcst.matchers as m
from libcst.helpers import get_full_name_for_node

from advisor.edit.calls import DATALOADER_PARAMETERS, argument
from advisor.edit.draft import Draft
from advisor.edit.locate import last_name
from advisor.edit.names import full_name, imported_as, last_part, own_attribute
from advisor.edit.scopes import (
    assigned_once,
    assignments,
    is_bound_elsewhere,
    is_parameter,
    is_target,
    scope_of,
    variables,
)
from advisor.edit.sums import TAKES_IN, elements

_Seen = set[tuple[str, cst.CSTNode]]  # names that were followed, by the scope that they belong to
# Open files that several processes must not read through: one position for all of them (POSIX, fork(2)), or a library
# that keeps a state of its own (h5py's documentation, "Parallel HDF5"; sqlite.org, "How To Corrupt"; lmdb's
# mdb_env_open: "Do not use opened LMDB databases after fork()"). None of them can be pickled for a spawned worker.
# What is called `open` is one as well: gzip.open, av.open, Image.open, which reads later, and a Path's own.
_OPENERS = frozenset((
    "open", "h5py.File", "zipfile.ZipFile", "tarfile.TarFile", "sqlite3.connect", "netCDF4.Dataset", "tables.open_file",
    "gzip.GzipFile", "bz2.BZ2File", "lzma.LZMAFile", "cv2.VideoCapture", "decord.VideoReader", "imageio.get_reader",
    "torchvision.io.VideoReader", "openslide.OpenSlide", "openslide.open_slide", "tifffile.TiffFile",
    "soundfile.SoundFile", "xarray.open_dataset", "xarray.open_mfdataset", "xarray.open_dataarray", "pandas.HDFStore",
    "duckdb.connect", "psycopg2.connect", "psycopg.connect", "pymysql.connect", "pymongo.MongoClient",
))  # fmt: skip
_OPENS_LATER = ("zarr.open", "fsspec.open", "webbrowser.open")  # nothing is open when they have returned
_READS_THROUGH = ("iter", "csv.reader", "csv.DictReader", "dict", "io.TextIOWrapper", "io.BufferedReader")
# Methods and attributes whose value reads through the file.
_HANDS_OUT = ("begin", "cursor", "enter_context", "get", "sel", "isel")
_VIEWS = ("variables", "root")
_FETCHES = ("__getitem__", "__getitems__", "__iter__", "__next__")
_TAKES_OUT = ("pop", "popleft")
_AT_ONCE = ("__init__", "__post_init__", "__len__")  # a sampler asks for the length before there are workers
_STEPS = 20  # assignments that are followed from a loader's dataset to what it is made of


def opened_when_made(draft: Draft, cls: str) -> str:
    """The call by which `cls` opens a file when it is made, and keeps it; "" where none is seen in this file."""
    opened = _opened(draft, [*_reached(draft, cls, _AT_ONCE), *_with_bases(draft, cls)])
    if opened:
        return opened
    for method in _reached(draft, cls, _FETCHES):
        for name in draft.nodes(cst.Name, method):
            above = draft.parent(name)
            value = assigned_once(draft, name.value, draft.module)  # a file of the module
            if value is None or (isinstance(above, cst.Attribute) and above.attr is name):
                continue
            if isinstance(value, (cst.ListComp, cst.DictComp)):
                value = value.elt if isinstance(value, cst.ListComp) else value.value
            while isinstance(value, cst.Subscript) and not _reads_all(draft, value):
                value = value.value
            if isinstance(value, cst.Call) and _opens(draft, value):
                return draft.code(value)
    return ""


def opened_at_first(draft: Draft, cls: str) -> str:
    """The call by which `cls` opens a file when it is asked for its first sample; "" where none is seen."""
    return _opened(draft, _reached(draft, cls, _FETCHES))


def opened_outside(draft: Draft, cls: str, call: cst.Call) -> str:
    """The call by which the script opens a file that it gives to `cls`; "" where none is seen in its file.

    A file that a ``with`` closes counts where the DataLoader `call` is made in that ``with``.
    """
    around = set(draft.ancestors(call))
    for opener in draft.nodes(cst.Call):
        if not _opens(draft, opener):
            continue
        item = draft.parent(opener)
        if isinstance(item, cst.WithItem):
            name = last_part(item.asname.name) if item.asname is not None else ""
            if name and draft.parent(item) in around and _name_is_kept(draft, name, opener, [], cls, set()):
                return draft.code(opener)
        elif _is_kept(draft, opener, [], cls, set()):
            return draft.code(opener)
    return ""


def _opened(draft: Draft, within: Sequence[cst.FunctionDef | cst.ClassDef]) -> str:
    """The first call in methods, or in the body of a class, whose open file is kept."""
    functions = [each for each in within if isinstance(each, cst.FunctionDef)]
    for each in within:
        for call in draft.nodes(cst.Call, each):
            if isinstance(each, cst.ClassDef) and scope_of(draft, call) is not each:
                continue
            if _opens(draft, call) and _is_kept(draft, call, functions, "", set()):
                return draft.code(call)
    return ""


def _opens(draft: Draft, call: cst.Call) -> bool:
    """Whether a call opens a file, and leaves it open: none that is in memory."""
    name = full_name(draft, call.func)
    if any(last_part(each.func) == "BytesIO" for each in draft.nodes(cst.Call, call)):
        return False
    if name == "numpy.load":  # one array of a .npy file is read at once
        return bool(call.args) and ".npz" in draft.code(call.args[0])
    return name in _OPENERS or (last_part(call.func) == "open" and name not in (*_OPENS_LATER, "self.open"))


def _is_kept(draft: Draft, node: cst.BaseExpression, methods: Sequence[cst.FunctionDef], cls: str, seen: _Seen) -> bool:
    """Whether an attribute of ``self`` keeps `node`, or what reads through it, and not what was read.

    Also where one of `methods` returns it to another. With a `cls`: whether an object of that class is given it.
    """
    at: cst.CSTNode = node
    while (above := draft.parent(at)) is not None:
        if isinstance(above, cst.Subscript):
            if _reads_all(draft, above):
                return False
        elif isinstance(above, cst.Arg):
            call = draft.parent(above)
            if not isinstance(call, cst.Call):
                return False
            if cls and last_part(call.func) == cls:
                return True
            if isinstance(call.func, cst.Attribute) and call.func.attr.value in (*TAKES_IN, "setdefault"):
                return _target_keeps(draft, call.func.value, node, methods, cls, seen)
            if last_part(call.func) == "setattr":
                return not cls
            through = full_name(draft, call.func) in _READS_THROUGH or last_part(call.func) in _HANDS_OUT
            if not through and not _opens(draft, call):
                return False
            above = call
        elif isinstance(above, cst.Attribute):
            call = draft.parent(above)
            if above.attr.value in _HANDS_OUT and isinstance(call, cst.Call) and call.func is above:
                above = call
            elif above.attr.value not in _VIEWS:
                return False
        elif isinstance(above, cst.Assign):
            return any(_target_keeps(draft, each.target, node, methods, cls, seen) for each in above.targets)
        elif isinstance(above, (cst.AnnAssign, cst.AugAssign)):
            return _target_keeps(draft, above.target, node, methods, cls, seen)
        elif isinstance(above, cst.NamedExpr):
            if _target_keeps(draft, above.target, node, methods, cls, seen):
                return True
        elif isinstance(above, cst.Return):
            return _returned_is_kept(draft, above, methods, cls, seen)
        elif not isinstance(above, _PARTS):
            return False
        at = above
    return False


# What has `at` as a part: a list of open files, one that is opened if need be.
_PARTS = (
    cst.List, cst.Tuple, cst.Set, cst.Dict, cst.Element, cst.DictElement, cst.ListComp, cst.SetComp, cst.DictComp,
    cst.GeneratorExp, cst.IfExp, cst.BooleanOperation, cst.BinaryOperation,
)  # fmt: skip


def _reads_all(draft: Draft, node: cst.Subscript) -> bool:
    """Whether ``[:]``, ``[()]`` or an entry of an .npz file: what is in memory then."""
    index = node.slice[0].slice if len(node.slice) == 1 else None
    if isinstance(node.value, cst.Call) and full_name(draft, node.value.func) == "numpy.load":
        return True
    return not isinstance(index, cst.Index) or isinstance(index.value, (cst.Tuple, cst.Ellipsis))


def _target_keeps(
    draft: Draft, target: cst.BaseExpression, node: cst.CSTNode, methods: Sequence[cst.FunctionDef], cls: str,
    seen: _Seen,
) -> bool:  # fmt: skip
    """Whether what is assigned to `target`, or added to it, is kept: in an attribute, or by way of a local name."""
    for each in elements(target):
        if own_attribute(each, items=True):
            if not cls:
                return True
            continue
        while isinstance(each, cst.Subscript):
            each = each.value
        if isinstance(each, cst.Name):
            if not cls and isinstance(scope_of(draft, node), cst.ClassDef):
                return True
            if _name_is_kept(draft, each.value, node, methods, cls, seen):
                return True
    return False


def _name_is_kept(
    draft: Draft, name: str, node: cst.CSTNode, methods: Sequence[cst.FunctionDef], cls: str, seen: _Seen
) -> bool:
    """Whether a name of the scope of `node`, which is an open file, is kept; not what ``.load()`` has read."""
    scope = scope_of(draft, node)
    if (name, scope) in seen:
        return False
    seen.add((name, scope))
    uses = [each for each in draft.nodes(cst.Name, scope) if each.value == name]
    if any(m.matches(above, m.Attribute(attr=m.Name("load"))) for each in uses if (above := draft.parent(each))):
        return False
    for each in uses:
        above = draft.parent(each)
        keyword = isinstance(above, cst.Arg) and above.keyword is each
        if not keyword and _is_kept(draft, each, methods, cls, seen):
            return True
    return False


def _returned_is_kept(
    draft: Draft, statement: cst.Return, methods: Sequence[cst.FunctionDef], cls: str, seen: _Seen
) -> bool:
    """Whether who calls the function around a ``return`` keeps what it returns."""
    function = draft.function(statement)
    if function is None or (function.name.value, function) in seen:
        return False
    name = function.name.value
    seen.add((name, function))
    within: Sequence[cst.CSTNode] = methods or [draft.module]
    calls = [call for each in within for call in draft.nodes(cst.Call, each)]
    return any(last_part(call.func) == name and _is_kept(draft, call, methods, cls, seen) for call in calls)


def uses_gpu(draft: Draft, cls: str) -> str:
    """The code by which `cls` uses the GPU when it makes a sample; "" where none is seen in this file."""
    return _on_gpu(draft, _reached(draft, cls, _FETCHES))


def collates_on_gpu(draft: Draft, call: cst.Call) -> str:
    """The code by which the collate function of a DataLoader uses the GPU; "" where none is seen in its file."""
    given = argument(call, "collate_fn", DATALOADER_PARAMETERS)
    if given is None:
        return ""
    names = {each.value for each in draft.nodes(cst.Name, given)}
    within: list[cst.CSTNode] = [given]
    for function in draft.nodes(cst.FunctionDef):
        if function.name.value in names and not isinstance(_holder(draft, function), cst.ClassDef):
            within.append(function)
    for each in names:
        within += _reached(draft, each, ("__call__",))
    return _on_gpu(draft, within)


def _on_gpu(draft: Draft, within: Iterable[cst.CSTNode]) -> str:
    for each in within:
        for call in draft.nodes(cst.Call, each):
            made = full_name(draft, call.func) == "torch.device" and "cuda" in draft.code(call)
            if made or moves_to_gpu(draft, call):
                return draft.code(call)
    return ""


def moves_to_gpu(draft: Draft, call: cst.Call) -> bool:
    """Whether a call puts something on the GPU, or on what may be it: ``.cuda()``, ``.to(device)``, ``device="cuda"``.

    A device by its name alone, unless the module says that it is the CPU.
    """
    if isinstance(call.func, cst.Attribute) and call.func.attr.value == "cuda":
        return True
    to = isinstance(call.func, cst.Attribute) and call.func.attr.value == "to"
    for index, arg in enumerate(call.args):
        keyword = arg.keyword.value if arg.keyword is not None else ""
        named = keyword == "device" or (not keyword and index == 0 and to)
        if named and _is_gpu(draft, arg.value):
            return True
    return False


def _is_gpu(draft: Draft, node: cst.BaseExpression) -> bool:
    if isinstance(node, cst.Name):
        value = assigned_once(draft, node.value, draft.module)
        if value is not None and "cuda" not in (code := draft.code(value)) and "cpu" in code:
            return False
    if isinstance(node, cst.Attribute):  # not a sample's own: x.to(mask.device)
        of = node.value
        known = isinstance(of, cst.Name) and (
            of.value == "self" or assigned_once(draft, of.value, draft.module) is not None
        )
        if not known:
            return False
    if isinstance(node, (cst.Name, cst.Attribute)):
        name = last_part(node).lower()
        return name.startswith("dev") or any(each in name for each in ("device", "cuda", "gpu"))
    return "cuda" in draft.code(node)


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
        changed |= {name for each in targets if (name := own_attribute(each, items=True))}
    names = {*_data_of(draft, call), "dataset"} if changed else set()
    inside = {each for each in draft.nodes(cst.ClassDef) if each.name.value == cls}
    for read in draft.nodes(cst.Attribute) if changed else ():
        stored = isinstance(draft.parent(read), cst.AssignTarget) or not inside.isdisjoint(draft.ancestors(read))
        if read.attr.value in changed and last_part(read.value) in names and not stored:
            return draft.code(read)
    return ""


def fills(written: Draft, cls: str) -> str:
    """An attribute in which `cls` keeps what it has made of a sample, for the next time; "" for none.

    Each worker would fill one of its own, with samples that others have made before.
    """
    for function in _reached(written, cls, _FETCHES):
        for assign in written.nodes(cst.Assign, function):
            for target in (each.target for each in assign.targets):
                name = own_attribute(target, items=True) if isinstance(target, cst.Subscript) else ""
                tests = [each.test for each in written.nodes(cst.If, function)] if name else []
                if any(f"self.{name}" in written.code(each) for each in tests):
                    return f"self.{name}"
    return ""


def moves_on(written: Draft, cls: str) -> str:
    """An attribute of `cls` by which one sample leaves off where the next one goes on; "" for none.

    ``self.at = (self.at + 1) % n``, ``next(self.stream)``, ``self.queue.pop()``, or a count that something else is read
    by. Each worker would go on from its own copy, and give what the others give.
    """
    methods = _reached(written, cls, ("__getitem__", "__getitems__"))
    kept = {name for each in methods for name in _stored_items(written, each)}
    for function in methods:
        for assign in written.nodes(cst.Assign, function):
            made_once = isinstance(assign.value, (cst.BooleanOperation, cst.IfExp))  # self.file = self.file or open()
            read = set[str]() if made_once else _own_read(written, [assign.value])
            if moved := [name for each in assign.targets if (name := own_attribute(each.target, items=True)) in read]:
                return f"self.{moved[0]}"
        for call in written.nodes(cst.Call, function):
            of = call.func.value if isinstance(call.func, cst.Attribute) else None
            taken = own_attribute(of) if of is not None and last_part(call.func) in _TAKES_OUT else ""
            if m.matches(call, m.Call(func=m.Name("next"), args=[m.Arg(), m.ZeroOrMore()])):
                taken = own_attribute(call.args[0].value)
            if taken and taken not in kept:  # of a cache the oldest goes
                return f"self.{taken}"
    counts = [each.target for one in methods for each in written.nodes(cst.AugAssign, one)]
    found = {own_attribute(each, items=True) for each in counts} & _own_read(written, methods, beside=counts)
    return f"self.{min(found)}" if found else ""


def _stored_items(draft: Draft, function: cst.CSTNode) -> Iterator[str]:
    for each in draft.nodes(cst.AssignTarget, function):
        if isinstance(each.target, cst.Subscript):
            yield own_attribute(each.target, items=True)


def _own_read(draft: Draft, within: Iterable[cst.CSTNode], beside: Iterable[cst.CSTNode] = ()) -> set[str]:
    """The attributes of ``self`` whose values are read there, but for those in what is `beside`."""
    left_out = {each for node in beside for each in draft.nodes(cst.Attribute, node)}
    reads = (each for node in within for each in draft.nodes(cst.Attribute, node) if each not in left_out)
    return {name for each in reads if not is_target(draft, each) and (name := own_attribute(each))}


def _reached(draft: Draft, cls: str, names: Iterable[str]) -> list[cst.FunctionDef]:
    """Methods of `cls` by their names, its bases' in the same file as well, and the functions that they call in turn.

    A base's method that `cls` has one of its own for is reached by ``super()`` or by the base's name.
    """
    classes = _with_bases(draft, cls)
    methods: list[dict[str, cst.FunctionDef]] = [{} for _ in classes]
    functions: dict[str, cst.FunctionDef] = {}
    for function in draft.nodes(cst.FunctionDef):
        holder = _holder(draft, function)
        if isinstance(holder, cst.ClassDef) and holder in classes:
            methods[classes.index(holder)][function.name.value] = function
        elif isinstance(holder, cst.Module):
            functions[function.name.value] = function

    def from_class(name: str, first: int) -> Iterator[cst.FunctionDef]:
        yield from [each[name] for each in methods[first:] if name in each][:1]

    todo = [function for name in names for function in from_class(name, 0)] if classes else []
    found: list[cst.FunctionDef] = []
    while todo:
        method = todo.pop()
        if method in found:
            continue
        found.append(method)
        own = next((index for index, each in enumerate(methods) if method in each.values()), 0)
        for read in draft.nodes(cst.Attribute, method):  # self.load(), and a property
            name = read.attr.value
            if own_attribute(read, items=True):
                todo += from_class(name, 0)
            elif isinstance(read.value, cst.Call) and last_part(read.value.func) == "super":
                todo += from_class(name, own + 1)
            else:
                by_name = (i for i, each in enumerate(classes) if each.name.value == last_part(read.value))
                todo += [function for index in by_name for function in from_class(name, index)]
        for call in draft.nodes(cst.Call, method):
            if isinstance(call.func, cst.Name) and call.func.value in functions:
                todo.append(functions[call.func.value])
    return found


def _with_bases(draft: Draft, cls: str) -> list[cst.ClassDef]:
    """The class of that name and the bases that this file defines, nearest first."""
    defined = {each.name.value: each for each in draft.nodes(cst.ClassDef)}
    todo, found = [cls], list[cst.ClassDef]()
    while todo:
        each = defined.get(todo.pop(0))
        if each is not None and each not in found:
            found.append(each)
            todo += [last_part(base.value) for base in each.bases]
    return found


def _holder(draft: Draft, node: cst.CSTNode) -> cst.CSTNode:
    """The class, function or module that a definition stands in."""
    return next(
        (each for each in draft.ancestors(node) if isinstance(each, (cst.ClassDef, cst.FunctionDef))), draft.module
    )


def told_in_loop(draft: Draft, call: cst.Call) -> str:
    """What the script tells the dataset of a DataLoader between its epochs, as code; "" where nothing is seen.

    Workers that live on have a copy of the dataset, and of what it is made of, that does not hear of it.
    """
    names, read = _data_of(draft, call), _read_by(draft, call)
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
            if any(_changes(node, names | read, here) or _is_of(draft, node, read) for node in _changed(small)):
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
        elif isinstance(node, cst.Name) or own_attribute(node, items=True):
            name = last_part(node)
            if name in names or name in defined or name in ("True", "False", "None") or imported_as(draft, name):
                continue
            names.add(name)
            for assign in draft.nodes(cst.Assign):
                if any(last_part(each) == name for target in assign.targets for each in elements(target.target)):
                    todo.append(assign.value)
    return names


def _read_by(draft: Draft, call: cst.Call) -> set[str]:
    """The module's variables that the class of a DataLoader's dataset reads when it makes a sample."""
    given = argument(call, "dataset", DATALOADER_PARAMETERS)
    if given is None:
        return set()
    made = {last_part(each.func) for each in draft.nodes(cst.Call, given)}
    for assign in draft.nodes(cst.Assign):
        if any(last_part(target.target) == last_part(given.value) for target in assign.targets):
            made |= {last_part(each.func) for each in draft.nodes(cst.Call, assign.value)}
    found: set[str] = set()
    for cls in made:
        for method in _reached(draft, cls, _FETCHES):
            bound = {each.value for each in draft.nodes(cst.Name, method) if is_target(draft, each)}
            names = {each.value for each in draft.nodes(cst.Name, method.body) if not is_parameter(method, each.value)}
            found |= {each for each in names - bound if variables(draft, each, method.body)}
    # What is first the variable of a loop, or the like, is most often another thing that is called alike.
    return {each for each in found if next(assignments(draft, each, draft.module, elements=True), None) is not None}


def _is_of(draft: Draft, node: cst.BaseExpression, names: set[str]) -> bool:
    """Whether a target is one of the module's variables `names`, and not another function's own."""
    if not isinstance(node, cst.Name) or node.value not in names:
        return False
    return scope_of(draft, node) is draft.module or is_bound_elsewhere(draft, node.value)


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
