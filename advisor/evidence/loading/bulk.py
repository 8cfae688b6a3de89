"""Datasets whose samples are rows of what is in memory: whether a whole batch can be indexed at once, and its cost."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from advisor.evidence.facts import LoaderFacts
from advisor.harness.layout import Loader

TENSOR_DATASET = "torch.utils.data.dataset.TensorDataset"
DEFAULT_COLLATE = "torch.utils.data._utils.collate.default_collate"
# Indexing and stacking a sample's row takes 4 to 5 us per tensor, a row of one call for the whole batch 0.3 us besides
# what is copied; the call itself about 0.1 ms with its sampler. Measured with TensorDataset, torch 2.15, batches of 32
# to 1,024 rows of 32 and of 12,288 numbers, two cores.
_CALL_S, _PER_ROW, _BYTES_PER_S = 0.1e-3, 1.0 / 15.0, 5e9
# What gives the same for each row of a batch as for a row: elementwise, or a change of type.
_METHODS = frozenset({"float", "double", "half", "bfloat16", "long", "int", "bool", "clone", "copy", "astype", "to"})
_FUNCTIONS = frozenset({"torch.tensor", "torch.as_tensor", "torch.from_numpy"})
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div)
_ROW, _NUMBER = "row", "number"


def indexed_at_once(loader: Loader) -> bool:
    """Whether the dataset, given a list of indices, returns what the default collation makes of its samples."""
    if not loader.rows or loader.iterable or loader.collate != DEFAULT_COLLATE:
        return False
    if loader.rows == ["tensors"] and loader.source == TENSOR_DATASET:
        return True
    site = loader.source_site
    try:
        tree = ast.parse(Path(site.file).read_bytes()) if site is not None else None
    except (OSError, SyntaxError, ValueError):
        return False
    written = [
        node
        for node in ast.walk(tree or ast.Module([], []))
        if isinstance(node, ast.ClassDef) and site is not None and _first_line(node) == site.line
    ]
    return len(written) == 1 and _takes_lists(written[0], set(loader.rows))


def fetch_s(facts: LoaderFacts) -> float:
    """Seconds to make one batch when it is indexed at once, from what the making of one takes now."""
    now = facts.fetch_cpu_s or facts.fetch_s or 0.0
    batch = sum(tensor.bytes for tensor in facts.record.tensors) if facts.record is not None else 0
    return min(facts.fetch_s or 0.0, _CALL_S + _PER_ROW * now + batch / _BYTES_PER_S)


def _first_line(node: ast.ClassDef) -> int:
    """Where `inspect` says that a class begins: at its decorators."""
    return min([node.lineno, *(each.lineno for each in node.decorator_list)])


def _takes_lists(written: ast.ClassDef, rows: set[str]) -> bool:
    """Whether ``__getitem__`` does nothing but index `rows` of ``self`` and change types, row by row alike."""
    methods = [each for each in written.body if isinstance(each, ast.FunctionDef) and each.name == "__getitem__"]
    if len(methods) != 1 or methods[0].decorator_list or len(methods[0].args.args) != 2:
        return False
    owner, index = (each.arg for each in methods[0].args.args)
    known: dict[str, str] = {}
    for statement in methods[0].body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue  # what it says of itself
        if isinstance(statement, ast.Return):
            return statement.value is not None and _is_sample(statement.value, owner, index, rows, known)
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            return False
        for target, value in _pairs(statement.targets[0], statement.value):
            if not isinstance(target, ast.Name) or target.id in (owner, index):
                return False
            if _kind(value, owner, index, rows, known) == _ROW:
                known[target.id] = _ROW
            elif _is_sample(value, owner, index, rows, known):
                known[target.id] = "sample"
            else:
                return False
    return False


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """``x, y = a, b`` as its two assignments."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        yield from zip(target.elts, value.elts, strict=True)
    else:
        yield target, value


def _is_sample(value: ast.expr, owner: str, index: str, rows: set[str], known: Mapping[str, str]) -> bool:
    """Whether it is a row, or a tuple, list or dictionary of rows."""
    if isinstance(value, (ast.Tuple, ast.List)):
        parts: list[ast.expr] = value.elts
    elif isinstance(value, ast.Dict):
        if not all(isinstance(key, ast.Constant) for key in value.keys):
            return False
        parts = value.values
    elif isinstance(value, ast.Name) and known.get(value.id) == "sample":
        return True
    else:
        parts = [value]
    return bool(parts) and all(_kind(part, owner, index, rows, known) == _ROW for part in parts)


def _kind(value: ast.expr, owner: str, index: str, rows: set[str], known: Mapping[str, str]) -> str:
    """What an expression is: a row, a number that is written there, or "" for anything else."""
    if isinstance(value, ast.Constant):
        return _NUMBER if isinstance(value.value, (int, float)) and not isinstance(value.value, bool) else ""
    if isinstance(value, ast.Name):
        return _ROW if known.get(value.id) == _ROW else ""
    if isinstance(value, ast.Subscript):
        held = value.value
        of_self = isinstance(held, ast.Attribute) and isinstance(held.value, ast.Name) and held.value.id == owner
        by_index = isinstance(value.slice, ast.Name) and value.slice.id == index
        return _ROW if of_self and by_index and isinstance(held, ast.Attribute) and held.attr in rows else ""
    if isinstance(value, ast.BinOp) and isinstance(value.op, _ARITHMETIC):
        sides = {_kind(each, owner, index, rows, known) for each in (value.left, value.right)}
        return _ROW if sides == {_ROW, _NUMBER} else ""
    if isinstance(value, ast.Call) and all(_is_type(word.value) for word in value.keywords):
        if isinstance(value.func, ast.Attribute) and value.func.attr in _METHODS and all(map(_is_type, value.args)):
            return _kind(value.func.value, owner, index, rows, known)
        if ast.unparse(value.func) in _FUNCTIONS and value.args and all(map(_is_type, value.args[1:])):
            return _kind(value.args[0], owner, index, rows, known)
    return ""


def _is_type(value: ast.expr) -> bool:
    """``torch.float32``, ``np.int64``: a type, as far as its name tells."""
    return isinstance(value, ast.Attribute) and value.attr.rstrip("0123456789") in (
        "float",
        "int",
        "uint",
        "bool",
        "long",
        "double",
        "half",
        "bfloat",
    )
