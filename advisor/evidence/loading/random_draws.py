"""Random draws for each sample, or each step, that go over all there is to give a few."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from advisor.evidence.beside import Beside, is_alone, nodes_of
from advisor.evidence.bindings import names_in
from advisor.evidence.loading.fetching import AS_IT_IS, CASTS, by_statement, called, own_parameters, parsed, set_later
from advisor.harness.layout import FetchPart, Loader

WEIGHTS, FEW = "weights", "few"  # draws that add up all weights; that put all in a random order
_REPLACE = 3  # arguments of choice() by position, of which the last says whether with replacement
_COUNTS = frozenset(("len", "min", "int", "size"))
_CHOICE = re.compile(r"^(np|numpy)\.random\.choice$")
_ORDERS = re.compile(r"^(torch\.randperm|(np|numpy)\.random\.permutation)$")


@dataclass(frozen=True)
class Draw:
    """A line that draws: what with, as the source says it, and which kind of draw that is."""

    line: FetchPart
    what: str
    kind: str


def longest_draw(loader: Loader) -> Draw | None:
    """The statement of a dataset that draws for longest; of all, for looking may slow others more.

    ``torch.tensor`` is wrapped while fetches are looked at, and a line with two of them took longer than a draw there.
    """
    lines = [*by_statement(loader, "line"), *by_statement(loader, "inside")]
    drawing = [
        Draw(line, what, kind)
        for line in lines
        for kind, asks in ((WEIGHTS, draws_by_weight), (FEW, draws_few))
        if (what := asks(line))
    ]
    return max(drawing, key=lambda each: each.line.seconds, default=None)


def draws_by_weight(line: FetchPart) -> str:
    """What a line of a dataset draws with, out of many by weights that are the same for every sample; "" for nothing.

    ``np.random.choice(n, 5, p=self.p)`` adds all of them up in each call. The statement does nothing else that costs
    anything, and neither the function nor another method gives the weights a value.
    """
    for value, function, later in _values(line):
        found = _only(value, [each for each in _calls(value) if _weights(each) is not None])
        weights = _weights(found) if found is not None else None
        if found is not None and weights is not None and _is_kept(weights, function, later):
            return ast.unparse(found.func)
    return ""


def draws_few(line: FetchPart) -> str:
    """What a line of a dataset draws a few of many with, none twice, from an order of all of them; "" for nothing."""
    for value, _, _ in _values(line):
        orders = _first_of_orders(ast.walk(value)) if value is not None else []
        if (found := _only(value, [*orders, *filter(_gives_few, _calls(value))])) is not None:
            return ast.unparse(found.func)
    return ""


def draw_of_few(found: Beside, text_of: Callable[[str], str]) -> ast.Call | None:
    """The call that draws a few of an order of all in what a step does beside the model, if that takes its time.

    Not an order of which all is used, a part in each step.
    """
    nodes = nodes_of(found, text_of)
    calls = [each for each in nodes if isinstance(each, ast.Call)]
    draws = [*_first_of_orders(nodes), *_begun(nodes), *filter(_gives_few, calls)]
    if found.calls:
        return next((each for each in draws if called(each) == found.calls), None)
    # In a function's own lines it is none of torch's, which a trace knows.
    own = [each for each in draws if not ast.unparse(each.func).startswith("torch.")]
    return own[0] if len(own) == 1 and is_alone(nodes, own[0], found.loops) else None


def _values(line: FetchPart) -> Iterator[tuple[ast.expr | None, ast.FunctionDef, set[str]]]:
    """What the line's statement computes, in which function, and what other methods of its class set later."""
    tree = parsed(line.site.file)
    holders = [each for each in ast.walk(tree) if isinstance(each, (ast.Module, ast.ClassDef))] if tree else []
    for holder in holders:
        later = set_later(holder) if isinstance(holder, ast.ClassDef) else set[str]()
        functions = (each for each in holder.body if isinstance(each, ast.FunctionDef))
        for function in (each for each in functions if each.lineno <= line.site.line <= (each.end_lineno or 0)):
            for node in ast.walk(function):
                there = isinstance(node, ast.stmt) and node.lineno <= line.site.line <= (node.end_lineno or 0)
                if there and isinstance(node, (ast.Assign, ast.AnnAssign, ast.Return)):
                    yield node.value, function, later


def _calls(value: ast.expr | None) -> list[ast.Call]:
    return [each for each in ast.walk(value) if isinstance(each, ast.Call)] if value is not None else []


def _only(value: ast.expr | None, draws: list[ast.Call]) -> ast.Call | None:
    """The one draw in there, where nothing else that is called costs anything."""
    cheap = (each for each in _calls(value) if each not in draws)
    light = all(called(each) in AS_IT_IS | _COUNTS or CASTS.search(ast.unparse(each.func)) for each in cheap)
    return draws[0] if len(draws) == 1 and light else None


def _first_of_orders(nodes: Iterable[ast.AST]) -> list[ast.Call]:
    """The calls in there that put all in a random order, of which the first few are taken: ``randperm(n)[:k]``."""
    firsts = [each.value for each in nodes if isinstance(each, ast.Subscript) and _is_beginning(each.slice)]
    return [each for each in firsts if isinstance(each, ast.Call) and _ORDERS.match(ast.unparse(each.func))]


def _begun(nodes: list[ast.AST]) -> list[ast.Call]:
    """The same where the order has a name first, of which nothing but the first few is ever read."""
    names = [each for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)]
    begun = [
        each.value.id
        for each in nodes
        if isinstance(each, ast.Subscript) and isinstance(each.value, ast.Name) and _is_beginning(each.slice)
    ]
    return [
        each.value
        for each in nodes
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.Call) and isinstance(each.targets[0], ast.Name)
        if _ORDERS.match(ast.unparse(each.value.func))
        if begun.count(each.targets[0].id) == sum(one.id == each.targets[0].id for one in names) > 0
    ]


def _is_beginning(part: ast.expr) -> bool:
    """``:k``"""
    return isinstance(part, ast.Slice) and part.upper is not None and part.lower is None and part.step is None


def _weights(call: ast.Call) -> ast.expr | None:
    """What a call draws by: of NumPy's ``choice`` with replacement, of ``choices`` and of ``multinomial``."""
    given = {each.arg: each.value for each in call.keywords}
    name = called(call)
    if name == "choice":
        alone = len(call.args) < _REPLACE and ast.unparse(given.get("replace", ast.Constant(True))) == "True"
        return given.get("p") if alone else None
    if name == "choices":
        return given.get("weights", call.args[1] if len(call.args) == 2 else None)
    if name == "multinomial" and ast.unparse(call.func) == "torch.multinomial":
        again = given.get("replacement", call.args[2] if len(call.args) > 2 else ast.Constant(False))
        return given.get("input", call.args[0] if call.args else None) if ast.unparse(again) == "True" else None
    return None


def _gives_few(call: ast.Call) -> bool:
    """Whether a call gives some of many, none twice, each as likely as any, by an order of all of them."""
    given = {each.arg: each.value for each in call.keywords}
    again = given.get("replace", call.args[_REPLACE - 1] if len(call.args) >= _REPLACE else ast.Constant(True))
    weighed = "p" in given or len(call.args) > _REPLACE
    return bool(_CHOICE.match(ast.unparse(call.func))) and not weighed and ast.unparse(again) == "False"


def _is_kept(weights: ast.expr, function: ast.FunctionDef, later: set[str]) -> bool:
    """Whether the weights are those of a name or an attribute that neither this call nor another method makes."""
    if not isinstance(weights, (ast.Name, ast.Attribute)):
        return False
    own = own_parameters(function)
    own |= {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    attributes = {node.attr for node in ast.walk(weights) if isinstance(node, ast.Attribute)}
    return not names_in(weights) & own and not attributes & later
