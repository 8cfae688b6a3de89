"""Whether the gradients of several batches are added up, by the source around a ``backward``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from advisor.evidence.bindings import bound, last_name, names_in
from advisor.evidence.python_loops.reports import root_name
from advisor.evidence.python_loops.rounds import around, carried

_UPDATES = frozenset(("step", "zero_grad"))
# Losses that compare the samples of a batch with each other, by name, or by labels that are the samples' own numbers.
_COMPARES = re.compile(r"(?i)info_?nce|nt_?xent|contrastive|triplet|sup_?con|\bin_?batch_neg|clip_?loss|barlow|vicreg")
_OWN_NUMBERS = re.compile(
    r"(\b(labels?|targets?|truth|y)\s*=\s*|(entropy|criterion|loss\w*)\([^\n]*)(torch\.)?arange\("
    r"\s*(len\(|\w+\.(size\(0\)|shape\[0\]))"
)
_TURNED = re.compile(r"\.(T|mT)\b|\.t\(\)|\btranspose\(|\bcdist\(")
_SIZES = frozenset(("numel", "size", "shape"))


def adds_up_gradients(text: str, line: int) -> bool:
    """Whether the ``backward`` on `line` is of a loss that is divided by the number of rounds that add up gradients.

    None of the rounds may need another: an attack's rounds change what the next one is given, and those of a sequence's
    parts hand on a state. The loop may be the one that calls the function with the ``backward``. False where there is
    none.
    """
    inside = around(text, line)
    if isinstance(inside, ast.FunctionDef):
        loop = _calling(text, inside.name)
        return loop is not None and _divided(inside, line) and not _need_each_other(loop[0], loop[1])
    if not isinstance(inside, ast.For):
        return False
    calls = [each for each in _backwards(inside.body) if each.lineno <= line <= (each.end_lineno or each.lineno)]
    start = set[str]().union(*(names_in(each) for each in calls))
    return _divided(inside, line) and not _need_each_other(inside, start)


def compares_samples(text: str) -> bool:
    """Whether a file says that it has a loss which compares the samples of a batch with each other.

    Of such a loss the gradients of several small batches are not those of one large batch.
    """
    return bool(_COMPARES.search(text) or (_OWN_NUMBERS.search(text) and _TURNED.search(text)))


def _calling(text: str, name: str) -> tuple[ast.For, set[str]] | None:
    """The one innermost loop that calls the function `name`, and the names that it is called with."""
    loops = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.For)]
    found = []
    for loop in loops:
        calls = [each for each in _inside(loop.body) if isinstance(each, ast.Call) and last_name(each.func) == name]
        if calls and not any(other is not loop and other in _inside(loop.body) for other in loops):
            found.append((loop, set[str]().union(*map(names_in, calls))))
    return found[0] if len(found) == 1 else None


def _divided(round_: ast.For | ast.FunctionDef, line: int) -> bool:
    """Whether the loss of the ``backward`` on `line` is divided there, by what is the same in each round."""
    nodes = list(ast.walk(round_))
    made = set[str]().union(*(names_in(target) for target, _ in bound(nodes)))
    for call in _backwards(round_.body):
        if not call.lineno <= line <= (call.end_lineno or call.lineno):
            continue
        given = [*([call.func.value] if isinstance(call.func, ast.Attribute) else []), *call.args]
        of = set[str]().union(*map(names_in, given))
        divisors = [*map(_divisor, (part for each in given for part in ast.walk(each)))]
        for node in nodes:
            if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div) and names_in(node.target) & of:
                divisors.append(node.value)
            elif isinstance(node, ast.Assign) and set[str]().union(*map(names_in, node.targets)) & of:
                divisors.append(_divisor(node.value))
        if any(each is not None and _same_in_each_round(each, made) for each in divisors):
            return True
    return False


def _divisor(node: ast.AST) -> ast.expr | None:
    return node.right if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) else None


def _same_in_each_round(divisor: ast.expr, made: set[str]) -> bool:
    """A number of rounds, not one of samples: that of what a round has made is the batch's."""
    if names_in(divisor) & made:
        return False
    return not any(isinstance(each, ast.Attribute) and each.attr in _SIZES for each in ast.walk(divisor))


def _need_each_other(loop: ast.For, start: set[str]) -> bool:
    """Whether what a round of `loop` computes with the names of `start` hangs on an earlier round, weights aside."""
    nodes = list(_inside(loop.body))
    feeding, before = set(start), 0
    pairs = [(names_in(target), names_in(value)) for target, value in bound(nodes)]
    while len(feeding) > before:
        before = len(feeding)
        feeding = feeding.union(*(values for targets, values in pairs if targets & feeding))
    if carried(loop) & feeding:
        return True
    made = names_in(loop.target).union(*(targets for targets, _ in pairs))
    written = {ast.unparse(each) for each in nodes if isinstance(each, ast.Attribute) and _is(each, ast.Store)}
    read = {ast.unparse(each) for each in nodes if isinstance(each, ast.Attribute) and _is(each, ast.Load)}
    if any(each.partition(".")[0] in feeding for each in written & read):
        return True
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr.endswith("_") and not node.attr.endswith("__"):
            root = root_name(node)
            if root in feeding - made and node.attr != "requires_grad_":  # changed in place, for the next round
                return True
    unconditional = {
        each for statement in loop.body if not isinstance(statement, ast.If) for each in ast.walk(statement)
    }
    return any(isinstance(each, ast.Call) and last_name(each.func) in _UPDATES for each in unconditional)


def _backwards(body: list[ast.stmt]) -> list[ast.Call]:
    """``loss.backward()``, ``accelerator.backward(loss)``, ``self.manual_backward(loss)``."""
    return [each for each in _inside(body) if isinstance(each, ast.Call) and last_name(each.func).endswith("backward")]


def _inside(body: list[ast.stmt]) -> Iterator[ast.AST]:
    for statement in body:
        yield from ast.walk(statement)


def _is(node: ast.Attribute, context: type[ast.expr_context]) -> bool:
    return isinstance(node.ctx, context)
