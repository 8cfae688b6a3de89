"""Whether a line of a dataset computes the same of a sample each time that it is asked for."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

# What may be another thing each time, or read from elsewhere, by its names.
_CHANGES = re.compile(
    r"rand|shuffle|choice|uniform|gauss|normal\b|normal_|bernoulli|perm(utation)?\b|augment|jitter|noise|mixup|cutout|dropout"
    r"|epoch|^(perf_|process_)?time(_ns)?$|perf_counter|monotonic|\bnow$|today|cache|open\b|read|load\b|next\b|drop\b|crop|flip|roll\b|shift|warp|training\b",
    re.IGNORECASE,
)


# Methods of lists, strings and dictionaries that change nothing, and give the same of the same.
_OF_DATA = frozenset(
    ("index", "count", "items", "keys", "values", "split", "rsplit", "splitlines", "strip", "lower", "upper", "find",
     "startswith", "endswith", "join", "tolist", "astype")
)  # fmt: skip


@dataclass(frozen=True)
class _File:
    """A file's own functions by name, those of one class among them, and what else may be called in it."""

    tree: ast.Module
    functions: dict[str, ast.FunctionDef]
    known: set[str]

    @classmethod
    def of(cls, text: str, line: int) -> _File | None:
        """With the methods of the class that has `line`, and no other's: a name may be in several."""
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            return None
        classes = [each for each in ast.walk(tree) if isinstance(each, ast.ClassDef)]
        around = [each for each in classes if first_line(each) <= line <= (each.end_lineno or 0)]
        innermost = max(around, key=lambda each: each.lineno, default=None)
        bodies = (tree.body, innermost.body if innermost is not None else [])
        functions = {each.name: each for body in bodies for each in body if isinstance(each, ast.FunctionDef)}
        for each in list(functions.values()):
            for inner in ast.walk(each):
                if isinstance(inner, ast.FunctionDef):
                    functions.setdefault(inner.name, inner)
        return cls(tree, functions, {*dir(builtins), *_imported(tree), *_lambdas(tree)})

    def keeps(self, name: str) -> bool:
        """Whether something is kept as ``self.name`` in the file: no method that a class has from elsewhere."""
        attributes = (each for each in ast.walk(self.tree) if isinstance(each, ast.Attribute) and each.attr == name)
        return any(isinstance(each.ctx, ast.Store) for each in attributes)


def computes_the_same(text: str, line: int, transform: tuple[str, int] | None = None) -> str:
    """The functions of the file that the statement on `line` of a method computes a sample with: "Scalogram.power".

    `transform` is the one object that the dataset holds and calls, by the text of its class's file and the line of the
    class: what it computes counts, too, by the name of the class.

    "" where the statement calls none, or something whose source is in neither (another attribute that is called), or
    that by its names may be different each time: drawn at random, augmented, read from a file.
    """
    file = _File.of(text, line)
    statement = _statement(file, line) if file is not None else None
    if file is None or statement is None:
        return ""
    called = _calls(file, [statement], transform)
    return ", ".join(called) if called is not None else ""


def transforms_the_same(text: str, line: int) -> str:
    """The name of a transform that gives the same for the same, by the line of its class, its method or the function.

    "" where its source calls something else than what is in the file, or may give another thing each time.
    """
    file, name, method = _called((text, line))
    same = file is not None and method is not None and _calls(file, method.body, None) is not None
    return name if same else ""


def hands_on_the_same(text: str, line: int) -> bool:
    """Whether the method around `line`, a dataset's, says nothing by its names of drawing, cutting or the epoch."""
    file = _File.of(text, line)
    functions = file.functions.values() if file is not None else ()
    methods = [each for each in functions if each.lineno <= line <= (each.end_lineno or 0)]
    return bool(methods) and not any(map(changes, methods))


def _calls(file: _File, nodes: Sequence[ast.AST], transform: tuple[str, int] | None) -> list[str] | None:
    """The functions that are called in there, and by these; None where one may give another thing each time."""
    called: dict[tuple[int, str], ast.FunctionDef] = {}
    todo: list[tuple[_File, ast.AST]] = [(file, each) for each in nodes]
    while todo:
        within, node = todo.pop()
        if changes(node):
            return None
        for call in (each for each in ast.walk(node) if isinstance(each, ast.Call)):
            own = _own_function(call.func)
            if own in within.functions:
                if (id(within), own) not in called:
                    called[id(within), own] = within.functions[own]
                    todo.extend((within, each) for each in within.functions[own].body)
            elif not _is_known(call.func, within.known, within.functions):
                of_self = within is file and isinstance(call.func, ast.Attribute) and bool(own) and file.keeps(own)
                other, cls, method = _called(transform) if of_self and transform is not None else (None, "", None)
                if other is None or method is None:
                    return None
                called[id(other), cls], transform = method, None
                todo.extend((other, each) for each in method.body)
    return [name for _, name in called]


def changes(node: ast.AST) -> bool:
    """Whether a name in there says that it may give another thing each time."""
    return any(_CHANGES.search(name) for name in _names(node))


def _statement(file: _File, line: int) -> ast.stmt | None:
    """The statement on `line` of a method that gives something a name, or back."""
    holding = [each for each in file.functions.values() if each.lineno <= line <= (each.end_lineno or 0)]
    method = max(holding, key=lambda each: each.lineno, default=None)
    statements = (each for each in ast.walk(method) if isinstance(each, ast.stmt)) if method is not None else ()
    there = [each for each in statements if each.lineno <= line <= (each.end_lineno or 0) and each is not method]
    statement = max(there, key=lambda each: each.lineno, default=None)
    return statement if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.Return)) else None


def _called(transform: tuple[str, int]) -> tuple[_File | None, str, ast.FunctionDef | None]:
    """The file and the name of the class that a transform is of, and the method that its call is; or the function.

    The line is that of the class, of the method, or of the function.
    """
    text, line = transform
    file = _File.of(text, line)
    for each in ast.walk(file.tree) if file is not None else ():  # a class before its methods
        if isinstance(each, ast.ClassDef):
            methods = {one.name: one for one in each.body if isinstance(one, ast.FunctionDef)}
            method = methods.get("__call__", methods.get("forward"))
            if _begins(each, line) or (method is not None and _begins(method, line)):
                return file, each.name, method
        elif isinstance(each, ast.FunctionDef) and _begins(each, line):
            return file, each.name, each
    return None, "", None


def _begins(node: ast.ClassDef | ast.FunctionDef, line: int) -> bool:
    """Whether it begins on `line`, which of what is decorated may be that of its decorator."""
    return first_line(node) <= line <= node.lineno


def first_line(node: ast.ClassDef | ast.FunctionDef) -> int:
    """Where it begins, decorators included, as Python counts a function's first line."""
    return min([node.lineno, *(each.lineno for each in node.decorator_list)])


def _imported(tree: ast.AST) -> Iterator[str]:
    imports = (each for each in ast.walk(tree) if isinstance(each, (ast.Import, ast.ImportFrom)))
    for alias in chain.from_iterable(each.names for each in imports):
        yield (alias.asname or alias.name).partition(".")[0]


def _lambdas(tree: ast.AST) -> Iterator[str]:
    """Names of expressions, which are looked at where they stand."""
    for each in ast.walk(tree):
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.Lambda):
            yield from (target.id for target in each.targets if isinstance(target, ast.Name))


def _own_function(function: ast.expr) -> str:
    """The name of what is called as ``name(…)`` or ``self.name(…)``."""
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "self":
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _is_known(function: ast.expr, known: set[str], written: Container[str]) -> bool:
    """Whether it is a library's function, a builtin, or a method of what is at hand, not of an attribute's object.

    But for methods that lists and strings have, where none by that name is `written` in the file.
    """
    if isinstance(function, ast.Name):
        return function.id in known
    root = function
    while isinstance(root, ast.Attribute):
        root = root.value
    of_self = isinstance(root, ast.Name) and root.id == "self"
    of_data = isinstance(function, ast.Attribute) and function.attr in _OF_DATA and function.attr not in written
    return isinstance(function, ast.Attribute) and (not of_self or of_data)


def _names(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute):
            yield each.attr
        elif isinstance(each, ast.Name):
            yield each.id
