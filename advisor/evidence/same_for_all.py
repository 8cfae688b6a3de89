"""What a dataset makes anew for each sample though it is the same for all of them: a bank of filters, a window."""

from __future__ import annotations

import ast

from advisor.evidence.bindings import names_in
from advisor.evidence.deterministic import changes, computes_the_same
from advisor.evidence.fetching import by_statement, own_parameters, parsed, set_later, share
from advisor.harness.layout import FetchPart, Loader

_COMPUTES = frozenset(("torch", "torchaudio", "torchvision", "numpy", "scipy", "librosa", "math", "skimage", "cv2"))


def made_for_each(loader: Loader) -> tuple[FetchPart | None, str, float]:
    """The longest line that makes what all samples share, what it calls, and the share of a fetch of all such lines."""
    lines = [(line, what) for line in by_statement(loader, "line") if (what := same_for_all(line))]
    longest, what = max(lines, key=lambda each: each[0].seconds, default=(None, ""))
    return longest, what, min(1.0, sum(share(loader, line) for line, _ in lines))


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
