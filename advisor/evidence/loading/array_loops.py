"""Loops in Python over the pieces of an array, known by the indices that they go through."""

from __future__ import annotations

import ast
import re

from advisor.evidence.bindings import bound, made_of, names_in

_COUNTS = ("range", "trange", "arange", "ndindex")  # what loops over the indices of an array go through
# What takes arrays: functions of a library of theirs, and methods that only arrays have.
_ARRAYS = re.compile(
    r"^(np|numpy|torch|F|nn|scipy|sp|cv2)\."
    r"|\.(mean|std|var|sum|max|min|ptp|dot|median|argmax|argmin|astype|float|clip|cumsum|norm)$"
)
_LOOPS_ITSELF = "apply_along_axis"  # NumPy's function that calls one of the user's for each row
_SIMPLE = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Return)  # statements without a block of their own
_OF_NUMBERS = (ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.MatMult)  # texts are added up as well


def computes_by_index(text: str, line: int) -> bool:
    """Whether `line` of `text` computes with a piece of an array that loops over ``range()`` around it pick.

    ``x[i, j]``, ``np.mean(x[i : i + width])``, ``x[i] * weight``. A piece that nothing is computed of may be one of a
    text. ``np.apply_along_axis`` is such a loop itself. False where `text` does not parse.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    around = [
        node for node in ast.walk(tree) if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    simple = [node for node in around if isinstance(node, _SIMPLE)]
    nodes = [node for statement in simple for node in ast.walk(statement)]
    if any(_called(node) == _LOOPS_ITSELF for node in nodes if isinstance(node, ast.Call)):
        return True
    loops = [node for node in around if isinstance(node, ast.For) and _called(node.iter) in _COUNTS]
    if not loops:
        return False
    picked = made_of({name for loop in loops for name in names_in(loop.target)}, bound(ast.walk(loops[0])))
    pieces = [node for node in nodes if isinstance(node, ast.Subscript) and picked & names_in(node.slice)]
    calls = any(_ARRAYS.search(ast.unparse(node.func)) for node in nodes if isinstance(node, ast.Call))
    terms = [node for node in nodes if isinstance(node, ast.BinOp) and isinstance(node.op, _OF_NUMBERS)]
    computed = {id(inner) for term in terms for inner in ast.walk(term)}
    return any(calls or id(piece) in computed or isinstance(piece.slice, ast.Tuple) for piece in pieces)


def _called(value: ast.expr) -> str:
    """The last name of what `value` calls: ``arange`` of ``np.arange(3)``; "" where it is no call."""
    return ast.unparse(value.func).rpartition(".")[2] if isinstance(value, ast.Call) else ""
