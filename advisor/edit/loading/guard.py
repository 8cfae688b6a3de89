"""The ``if __name__ == "__main__":`` guard that a flat script needs before its loader may start workers.

Under the start methods ``spawn`` and ``forkserver`` (the default on macOS and Windows, and on Linux from Python
3.14) every worker imports the script again; without a guard that import starts workers itself and Python raises
"An attempt has been made to start a new process before the current process has finished its bootstrapping phase"
(docs.python.org, multiprocessing, "Safe importing of main module"). What stays outside the guard, every worker does
again: it must not delete, write, log in or take the GPU.
"""

from __future__ import annotations

import symtable

import libcst as cst
import libcst.matchers as m
from libcst.helpers import get_full_name_for_node

from advisor.edit.calls import argument
from advisor.edit.draft import Draft
from advisor.edit.loading.datasets import moves_to_gpu
from advisor.edit.names import full_name, imported_as, last_part
from advisor.edit.scopes import scope_of

_NAME = m.Name("__name__")
_MAIN = m.SimpleString('"__main__"') | m.SimpleString("'__main__'")
_GUARD = m.If(
    test=m.Comparison(left=_NAME, comparisons=[m.ComparisonTarget(m.Equal(), _MAIN)])
    | m.Comparison(left=_MAIN, comparisons=[m.ComparisonTarget(m.Equal(), _NAME)])
)
_READING = m.SimpleString(value=m.MatchIfTrue(lambda code: set("wax+").isdisjoint(code)))
_DOCSTRING = m.SimpleStatementLine([m.Expr(m.SimpleString())])
_PLAIN = m.Integer() | m.Float() | m.SimpleString() | m.Name() | m.UnaryOperation()
_PLAINS = [m.ZeroOrMore(m.Element(_PLAIN))]
_VALUE = _PLAIN | m.Tuple(elements=_PLAINS) | m.List(elements=_PLAINS)
_CONSTANT = m.SimpleStatementLine([m.Assign(value=_VALUE) | m.AnnAssign(value=_VALUE)])
# Calls that set something for the whole process, which a worker needs, too.
_SETS = ("set_default_dtype", "set_default_tensor_type", "setNumThreads")
# Methods that train or evaluate, by the names that trainers give them.
_RUNS = ("fit", "fit_one_cycle", "evaluate", "predict", "test", "run")

# Calls that each worker may make again, by their full names, …
_HARMLESS = frozenset((
    "abs", "bool", "bytes", "dict", "enumerate", "float", "frozenset", "getattr", "hasattr", "int", "isinstance", "len",
    "list", "max", "min", "object", "print", "range", "reversed", "round", "set", "slice", "sorted", "str", "sum",
    "super", "tuple", "type", "zip",
    "random.seed", "torch.cuda.is_available", "torch.cuda.device_count", "torch.cuda.is_bf16_supported",
    "torch.cuda.manual_seed_all", "torch.backends.mps.is_available",
    "torch.random.fork_rng", "transformers.set_seed", "lightning.seed_everything",
    "pytorch_lightning.seed_everything", "accelerate.utils.set_seed", "cv2.setNumThreads", "cv2.ocl.setUseOpenCL",
    "os.getenv", "os.cpu_count", "os.getcwd", "os.getpid", "os.listdir", "os.fspath", "os.environ.get",
    "os.environ.setdefault", "os.environ.update", "os.sched_getaffinity", "platform.system", "glob.glob",
    "functools.partial", "operator.itemgetter", "operator.attrgetter", "matplotlib.use", "json.load", "json.loads",
    "yaml.safe_load", "yaml.load", "tomllib.load", "tomli.load", "OmegaConf.load", "omegaconf.OmegaConf.load",
    "omegaconf.OmegaConf.create", "types.SimpleNamespace", "time.time", "time.perf_counter", "datetime.datetime.now",
    "multiprocessing.freeze_support", "faulthandler.enable",
))  # fmt: skip
# … by the package or class that they are of, …
_HARMLESS_OF = (
    "logging.", "loguru.", "warnings.", "math.", "re.", "string.", "argparse.", "pathlib.", "os.path.", "sys.path.",
    "typing.", "collections.", "itertools.", "dataclasses.", "enum.", "numpy.", "torch.utils.data.",
    "torch.backends.", "torch.autograd.set_", "torchvision.transforms.", "albumentations.",
    "matplotlib.pyplot.style.", "matplotlib.rcParams.", "multiprocessing.set_", "torch.multiprocessing.set_",
    "transformers.logging.", "transformers.utils.logging.", "datasets.logging.", "datasets.disable_",
    "rich.console.", "tqdm.",
)  # fmt: skip
_NOT_HARMLESS = ("torch.set_default_device", "torch.compile", "numpy.memmap", "numpy.lib.format.open_memmap")
# … and of whatever object, by the method: a parser's, a string's, a list's, a path's.
_HARMLESS_METHODS = frozenset((
    "add_argument", "add_argument_group", "add_mutually_exclusive_group", "add_parser", "add_subparsers",
    "parse_args", "parse_known_args", "parse_args_into_dataclasses", "set_defaults", "manual_seed",
    "append", "extend", "insert", "add", "update", "setdefault", "get", "items", "keys", "values", "copy", "index",
    "count", "sort", "format", "join", "split", "rsplit", "splitlines", "strip", "rstrip", "lstrip", "lower", "upper",
    "title", "replace", "startswith", "endswith", "encode", "decode", "exists", "is_file", "is_dir", "resolve",
    "absolute", "expanduser", "glob", "rglob", "iterdir", "with_suffix", "with_name", "relative_to", "as_posix",
    "read", "read_text", "readlines", "info", "debug", "warning", "setLevel", "addHandler", "setFormatter", "strftime",
    "isoformat", "reshape", "view", "tolist", "item", "mean", "std", "sum", "min", "max",
    "abs", "sqrt", "exp", "float", "long", "int", "double", "half", "clone", "numpy", "astype", "squeeze", "unsqueeze",
    "permute", "flatten", "size", "dim", "square", "norm", "spawn", "group", "groups", "match",
))  # fmt: skip
# What no worker may do again, by the last part of its name, even where it needs what comes of it.
_HARMS = frozenset((
    "rmtree", "remove", "unlink", "removedirs", "rmdir", "rename", "move", "copyfile", "copytree", "copy2", "symlink",
    "system", "Popen", "check_call", "check_output", "call", "login", "init", "init_process_group", "start_run",
    "SummaryWriter", "FileHandler", "dump", "save", "savez", "savez_compressed", "savetxt", "save_pretrained",
    "push_to_hub", "to_csv", "to_parquet", "to_pickle", "write", "writelines", "write_text", "write_bytes", "savefig",
    "urlretrieve", "input", "backward",
))  # fmt: skip


def has_main_guard(draft: Draft) -> bool:
    """Whether the module has an ``if __name__ == "__main__":`` at its top level."""
    return any(m.matches(statement, _GUARD) for statement in draft.module.body)


def conditional(draft: Draft, node: cst.CSTNode) -> bool:
    """Whether an ``if`` or a ``match`` around `node` in its function decides if it runs; the main guard aside."""
    for above in draft.ancestors(node):
        if isinstance(above, (cst.FunctionDef, cst.ClassDef, cst.Lambda)):
            return False
        if isinstance(above, cst.Match) or (isinstance(above, cst.If) and not m.matches(above, _GUARD)):
            return True
    return False


def add_main_guard(draft: Draft, call: cst.Call | None = None) -> bool:
    """Have the doing part of a flat script guarded, from behind its last definition to its end.

    True when the script has a guard already around what makes `call`, or will have one; False when it cannot be
    guarded safely, with nothing changed. Without a call, one that is made in a module that the script imports.
    """
    body = list(draft.module.body)
    top = _top_statement(draft, call) if call is not None else None
    if top is None and call is not None:
        return False
    if has_main_guard(draft):
        needed = _needed_by_workers(draft)
        if any(_gives(draft, each, needed) for each in body if m.matches(each, _GUARD)):
            return False  # in a worker, which does not run what is guarded, the names would not be there
        if repeated_by_workers(draft):
            return False
        return top is None or isinstance(top, (cst.FunctionDef, cst.ClassDef)) or m.matches(top, _GUARD)
    if not any(_does(statement) for statement in body):
        return True  # a module of definitions: whoever imports it has the guard
    start = _start(draft)
    if start >= len(body) or any(_loops(draft, each) for each in body[:start]) or repeated_by_workers(draft):
        return False
    draft.wrap(body[start], body[-1], 'if __name__ == "__main__"')
    return True


def repeated_by_workers(draft: Draft) -> str:
    """What the script does outside its guard, or the one it would get, that no worker may do again; "" for nothing.

    A user who wrote a guard knows what is outside it; where one is put, all but the harmless must come behind it.
    What gives a worker its names is needed there, so that only what is known to do harm counts.
    """
    body, guarded = list(draft.module.body), has_main_guard(draft)
    needed = _needed_by_workers(draft)
    for statement in body if guarded else body[: _start(draft)]:
        if _defines(statement) or m.matches(statement, _GUARD):
            continue
        allowed = guarded or _gives(draft, statement, needed)
        for call in draft.nodes(cst.Call, statement):
            if scope_of(draft, call) is draft.module and _repeats_harm(draft, call, allowed):
                return draft.code(call)
    return ""


def _start(draft: Draft) -> int:
    """Where in its body the doing part of a flat script begins: behind what defines, and what workers need."""
    body, needed = list(draft.module.body), _needed_by_workers(draft)
    start = max((index + 1 for index, each in enumerate(body) if _defines(each)), default=0)
    while start < len(body) and _constant(body[start]):
        start += 1
    return max([start, *(i + 1 for i, each in enumerate(body) if i >= start and _gives(draft, each, needed))])


def _repeats_harm(draft: Draft, call: cst.Call, unknown: bool) -> bool:
    """Whether a call, or one in a function of the module that it reaches, would do harm in each worker.

    `unknown`: whether a call that nothing is known of is let pass.
    """
    functions: dict[str, list[cst.FunctionDef]] = {}
    for each in draft.module.body:
        if isinstance(each, cst.FunctionDef):
            functions[each.name.value] = [each]
        elif isinstance(each, cst.ClassDef):
            own = [inner for inner in each.body.body if isinstance(inner, cst.FunctionDef)]
            functions[each.name.value] = [inner for inner in own if inner.name.value in ("__init__", "__post_init__")]
            bases = [last_part(base.value) for base in each.bases]
            if any(base not in ("object", "NamedTuple", "Enum", "Dataset", *functions) for base in bases):
                del functions[each.name.value]
    todo, seen = [call], set[str]()
    while todo:
        each_call = todo.pop()
        name = last_part(each_call.func)
        if isinstance(each_call.func, cst.Name) and name in functions:
            if name not in seen:
                seen.add(name)
                todo += [inner for function in functions[name] for inner in draft.nodes(cst.Call, function)]
        elif _harms(draft, each_call) or not (unknown or _harmless(draft, each_call)):
            return True
    return False


def _harms(draft: Draft, call: cst.Call) -> bool:
    name, last = full_name(draft, call.func), last_part(call.func)
    if last in ("mkdir", "makedirs"):
        return not _is_true(argument(call, "exist_ok"))
    if last == "open":
        of_path = isinstance(call.func, cst.Attribute) and not imported_as(draft, _first(call.func))
        mode = argument(call, "mode", ("mode",) if of_path else ("file", "mode"))
        return mode is not None and not m.matches(mode.value, _READING)
    if last == "basicConfig" and argument(call, "filemode") is not None:
        return True  # "w", or it would not be given
    if name == "os.replace" or name.startswith("subprocess.") or _is_true(argument(call, "download")):
        return True
    return last in _HARMS or moves_to_gpu(draft, call)


def _harmless(draft: Draft, call: cst.Call) -> bool:
    """Whether it is known that a call does nothing that lasts, and is over at once."""
    name, last = full_name(draft, call.func), last_part(call.func)
    if last in ("mkdir", "makedirs", "open"):
        return True  # what of these does harm is told before
    if name in _NOT_HARMLESS:
        return False
    if name == f"torch.{last}" or (last.endswith("Loss") and name.startswith("torch.nn.")):
        return True
    method = isinstance(call.func, cst.Attribute) and last in _HARMLESS_METHODS
    return name in _HARMLESS or name.startswith(_HARMLESS_OF) or method


def _is_true(arg: cst.Arg | None) -> bool:
    return arg is not None and m.matches(arg.value, m.Name("True"))


def _top_statement(draft: Draft, node: cst.CSTNode) -> cst.CSTNode | None:
    chain = [node, *draft.ancestors(node)]
    return chain[-2] if len(chain) > 1 else None


def _defines(statement: cst.CSTNode) -> bool:
    if isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
        return True
    return isinstance(statement, cst.SimpleStatementLine) and any(
        isinstance(each, (cst.Import, cst.ImportFrom)) for each in statement.body
    )


def _does(statement: cst.CSTNode) -> bool:
    """Whether a top-level statement does more than define, import or document."""
    return not (_defines(statement) or _constant(statement) or m.matches(statement, _DOCSTRING))


def _constant(statement: cst.CSTNode) -> bool:
    return m.matches(statement, _CONSTANT)


def _loops(draft: Draft, statement: cst.CSTNode) -> bool:
    """Whether importing this statement may iterate a loader, in a loop or in what it calls: no worker may run it."""
    if isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
        return False
    if m.findall(statement, m.For() | m.While() | m.CompFor() | m.Call(func=m.Name("next"))):
        return True
    functions = {each.name.value: each for each in draft.module.body if isinstance(each, cst.FunctionDef)}
    todo, seen = [statement], set[str]()
    while todo:
        for call in draft.nodes(cst.Call, todo.pop()):
            of, _, name = (get_full_name_for_node(call.func) or "").rpartition(".")
            if not of and name in functions and name not in seen:
                seen.add(name)
                todo.append(functions[name])
                code = draft.code(functions[name])
                if "loader" in code.lower() or ".backward(" in code:
                    return True
            if of and name in _RUNS and not imported_as(draft, of.partition(".")[0]):
                return True
            if name == "set_start_method" and argument(call, "force", ("method", "force")) is None:
                return True  # in a worker, whose method is set already, it raises
    return False


def _needed_by_workers(draft: Draft) -> set[str]:
    """The module's names that code reads which a worker may run, directly or in what that calls.

    That is the code of every class, and of the functions that are handed on: as ``collate_fn``, to a transform.
    """
    try:
        tables = symtable.symtable(draft.source.text, draft.source.path, "exec").get_children()
    except SyntaxError:
        return {name.value for name in draft.nodes(cst.Name)}
    passed = {name.value for name in draft.nodes(cst.Name) if _handed_on(draft, name)}
    todo = {each.get_name() for each in tables if each.get_type() == "class" or each.get_name() in passed}
    needed: set[str] = set()
    while todo:
        name = todo.pop()
        found = {read for each in tables if each.get_name() == name for read in _globals(each)} - needed
        needed |= found
        todo |= found
    return needed


def _handed_on(draft: Draft, name: cst.Name) -> bool:
    """Whether a name stands for a value: no definition's own, and not what is called."""
    above = draft.parent(name)
    if isinstance(above, (cst.FunctionDef, cst.Param)) or (isinstance(above, cst.Call) and above.func is name):
        return False
    if isinstance(above, cst.Attribute):  # model.train(), beside a function train
        return above.attr is not name
    return not (isinstance(above, cst.Arg) and above.keyword is name)


def _globals(table: symtable.SymbolTable) -> set[str]:
    """The names that a function or class reads from its module."""
    own = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global()}
    return own.union(*map(_globals, table.get_children()))


def _gives(draft: Draft, statement: cst.CSTNode, needed: set[str]) -> bool:
    """Whether a statement of the module gives `needed` names their values, adds to these, or sets up the process."""
    todo = [statement]
    while todo:
        node = todo.pop()
        todo.extend(node.children)
        names, sets = _given(draft, node)
        if (sets or names & needed) and scope_of(draft, node) is draft.module:
            return True
    return False


def _given(draft: Draft, node: cst.CSTNode) -> tuple[set[str], bool]:
    """The names that a part of a statement binds or fills, and whether it sets something for the whole process."""
    if isinstance(node, (cst.AssignTarget, cst.AnnAssign, cst.AugAssign, cst.For, cst.NamedExpr)):
        sets = isinstance(node.target, cst.Attribute) and bool(imported_as(draft, _first(node.target)))
        return _names_in(node.target), sets
    if isinstance(node, cst.AsName):
        return _names_in(node.name), False
    if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
        return {node.name.value}, False
    if isinstance(node, cst.ImportAlias):
        return {_first(node.name)}, False
    if isinstance(node, cst.Expr) and isinstance(node.value, cst.Call):  # LABELS.update(…)
        first, _, method = (get_full_name_for_node(node.value.func) or "").partition(".")
        names = {first} if method and not imported_as(draft, first) else set[str]()
        return names, method.rpartition(".")[2] in _SETS
    return set(), False


def _first(node: cst.BaseExpression) -> str:
    return (get_full_name_for_node(node) or "").partition(".")[0]


def _names_in(node: cst.CSTNode) -> set[str]:
    return {cst.ensure_type(name, cst.Name).value for name in m.findall(node, m.Name())}
