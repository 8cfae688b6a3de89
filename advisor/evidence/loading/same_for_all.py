"""What a dataset makes anew for each sample though it is the same for all of them: a bank of filters, scaled data."""

from __future__ import annotations

import ast
from dataclasses import replace

from advisor.evidence.bindings import names_in
from advisor.evidence.loading.deterministic import changes, computes_the_same, first_line
from advisor.evidence.loading.fetching import by_statement, own_parameters, parsed, set_later, share
from advisor.harness.layout import FetchPart, Loader

# Methods of arrays and tensors that compute, and change nothing.
_OF_ARRAYS = frozenset(
    (
        *("mean", "std", "var", "max", "min", "amax", "amin", "sum", "prod", "cumsum", "cumprod", "median", "quantile"),
        *(
            "argmax",
            "argmin",
            "argsort",
            "astype",
            "float",
            "double",
            "half",
            "long",
            "int",
            "to",
            "abs",
            "sqrt",
            "exp",
        ),
        *("log", "log1p", "pow", "square", "clip", "clamp", "round", "reshape", "view", "flatten", "ravel", "squeeze"),
        *("unsqueeze", "transpose", "permute", "t", "copy", "clone", "repeat", "dot", "matmul", "norm", "all", "any"),
        *(
            "nonzero",
            "tolist",
            "item",
            "numpy",
            "sub",
            "add",
            "mul",
            "div",
            "unfold",
            "diff",
            "items",
            "keys",
            "values",
        ),
    )
)
_COMPUTES = frozenset(
    (
        *("torch", "torchaudio", "torchvision", "numpy", "scipy", "librosa", "math", "skimage", "cv2"),
        *("json", "orjson", "ujson", "pickle", "base64", "zlib", "gzip", "struct", "re"),
    )
)


def made_for_each(loader: Loader) -> tuple[FetchPart | None, str, float]:
    """The longest line that makes what all samples share, what it calls, and the share of a fetch of all such lines."""
    lines = [(line, what) for line in by_statement(loader, "line") if (what := same_for_all(line))]
    longest, what = max(lines, key=lambda each: each[0].seconds, default=(None, ""))
    return longest, what, min(1.0, sum(share(loader, line) for line, _ in lines))


def asked_for_each(loader: Loader) -> tuple[FetchPart | None, str, float]:
    """The property, or method, of an object that all samples share which takes longest, its name, its share of a fetch.

    Only one that by its source gives the same each time (:func:`gives_the_same`).
    """
    asked = [(part, *gives_the_same(part)) for part in loader.parts if part.kind == "lasting"]
    known = [(replace(part, site=replace(part.site, line=line)), name) for part, name, line in asked if name]
    longest, name = max(known, key=lambda each: each[0].seconds, default=(None, ""))
    return longest, name, share(loader, longest) if longest is not None else 0.0


def gives_the_same(part: FetchPart) -> tuple[str, int]:
    """A method whose source says that it computes, and changes nothing: its name, with its class, and line; else "".

    What it reads of its object no other method sets later; nothing in it, and in the methods that it asks in turn,
    draws, reads or counts by its name, and it calls libraries that compute, and methods of what it has at hand.
    """
    tree = parsed(part.site.file)
    libraries = _libraries(tree)
    for holder in (each for each in ast.walk(tree) if isinstance(each, ast.ClassDef)) if tree is not None else ():
        methods = {each.name: each for each in holder.body if isinstance(each, ast.FunctionDef)}
        method = methods.get(part.site.function)
        if method is None or not first_line(method) <= part.site.line <= method.lineno:
            continue
        later, todo, seen = set_later(holder) | _changed_later(holder), [method], {method.name}
        while todo:
            one = todo.pop()
            attributes = {each.attr for each in ast.walk(one) if isinstance(each, ast.Attribute)}
            if not _only_computes(one, libraries, set(methods)) or attributes & later:
                return "", 0
            todo.extend(methods[each] for each in attributes & set(methods) - seen)
            seen |= attributes
        return f"{holder.name}.{method.name}", method.lineno
    return "", 0


def _changed_later(holder: ast.ClassDef) -> set[str]:
    """The attributes of which methods other than ``__init__`` change a part, or that they ask to change themselves."""
    later = (each for each in holder.body if isinstance(each, ast.FunctionDef) and each.name != "__init__")
    found = set[str]()
    for node in (each for method in later for each in ast.walk(method)):
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            found |= {each.attr for each in ast.walk(node.value) if isinstance(each, ast.Attribute)}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr not in _OF_ARRAYS:
            found |= {each.attr for each in ast.walk(node.func.value) if isinstance(each, ast.Attribute)}
    return found


def _only_computes(method: ast.FunctionDef, libraries: set[str], methods: set[str]) -> bool:
    local = own_parameters(method) | {
        each.id for each in ast.walk(method) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
    }
    for node in method.body:
        for each in ast.walk(node):
            if isinstance(each, (ast.Global, ast.Nonlocal, ast.Yield, ast.YieldFrom, ast.Await, ast.With, ast.Delete)):
                return False
            if isinstance(each, (ast.Attribute, ast.Subscript)) and isinstance(each.ctx, ast.Store):
                return False
            if isinstance(each, ast.Call) and not _computes(each.func, libraries - local, methods):
                return False
        if changes(node):
            return False
    return True


def _computes(function: ast.expr, libraries: set[str], methods: set[str]) -> bool:
    """Whether that is a function of a library that computes, one of an array's methods, or of the object's own class.

    Not what an attribute holds that may be called, or a method that nobody knows: a generator's, a camera's.
    """
    if _root(function) in libraries:
        return True
    if not isinstance(function, ast.Attribute):
        return False
    of_self = isinstance(function.value, ast.Name) and function.value.id == "self"
    return function.attr in (methods if of_self else _OF_ARRAYS)


def same_for_all(line: FetchPart) -> str:
    """What a line ``name = call(…)`` of ``__getitem__`` calls, where that gives the same for each sample; else "".

    It is given nothing of the sample: numbers, names of the module, attributes that no other method sets later. What of
    the file's own functions it calls computes the same each time, and what it calls of libraries is not known to draw,
    read or count.
    """
    text, tree = _text(line.site.file), parsed(line.site.file)
    for holder in (each for each in ast.walk(tree) if isinstance(each, ast.ClassDef)) if tree is not None else ():
        for function in (each for each in holder.body if isinstance(each, ast.FunctionDef)):
            if function.name != "__getitem__":
                continue
            for node in function.body:
                if isinstance(node, ast.Assign) and node.lineno <= line.site.line <= (node.end_lineno or 0):
                    return _called(text, node, function, set_later(holder), _defined(tree), _libraries(tree))
    return ""


def _called(
    text: str, node: ast.Assign, function: ast.FunctionDef, later: set[str], defined: set[str], libraries: set[str]
) -> str:
    call = node.value
    if not isinstance(call, ast.Call) or len(node.targets) != 1 or not isinstance(node.targets[0], ast.Name):
        return ""
    local = own_parameters(function) | {
        each.id for each in ast.walk(function) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
    }
    attributes = {each.attr for each in ast.walk(call) if isinstance(each, ast.Attribute)}
    if names_in(call) & local or attributes & later:
        return ""
    # A method, or what an attribute holds, may go by what the object counts.
    roots = [_root(each.func) for each in ast.walk(call) if isinstance(each, ast.Call)]
    if any(not root or root == "self" for root in roots) or changes(call):
        return ""
    own = set(roots) & defined
    if set(roots) - defined - libraries:
        return ""  # a file of the script's own, say
    return ast.unparse(call.func) if not own or computes_the_same(text, node.lineno) else ""


def _root(function: ast.expr) -> str:
    while isinstance(function, ast.Attribute):
        function = function.value
    return function.id if isinstance(function, ast.Name) else ""


def _defined(tree: ast.Module | None) -> set[str]:
    """What the file defines itself, functions and classes."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    return {each.name for each in ast.walk(tree) if isinstance(each, kinds)} if tree is not None else set()


def _libraries(tree: ast.Module | None) -> set[str]:
    """The names by which the file calls libraries that compute."""
    imports = [each for each in ast.walk(tree) if isinstance(each, (ast.Import, ast.ImportFrom))] if tree else []
    names = {"range", "list", "tuple", "dict", "set", "sorted", "sum", "min", "max", "len", "int", "float"}
    for each in imports:
        of = (
            [each.module or ""] * len(each.names)
            if isinstance(each, ast.ImportFrom)
            else [one.name for one in each.names]
        )
        for module, alias in zip(of, each.names, strict=True):
            if module.partition(".")[0] in _COMPUTES:
                names.add((alias.asname or alias.name).partition(".")[0])
    return names


def _text(file: str) -> str:
    try:
        with open(file, encoding="utf-8") as source:
            return source.read()
    except (OSError, ValueError):
        return ""
