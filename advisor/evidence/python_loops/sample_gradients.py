"""Gradients of each sample by a forward and a backward of its own: a loop that clears, goes back and reads."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from advisor.evidence.bindings import bound, last_name, made_of, names_in
from advisor.evidence.python_loops.called_from import keeps_state
from advisor.evidence.python_loops.reports import root_name
from advisor.evidence.python_loops.rounds import LEAST_CALLS, MOSTLY, Loop, around, carried, line_of, over

if TYPE_CHECKING:
    from advisor.evidence import Evidence
    from advisor.harness.layout import CallSite, RunRecord, Site

# Operators that torch.vmap takes one sample after another, or that know the batch: nothing is won with them.
_ALONE = ("aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu", "aten::batch_norm")
# Methods and functions by which weights get other values: the next round's gradients are then those of another model.
_UPDATES = frozenset(("step", "load_state_dict", "vector_to_parameters", "create_graph", "requires_grad_"))
_KEEPS_WEIGHTS = frozenset(("zero_", "detach_"))
_LEAVES = (ast.Break, ast.Return, ast.Yield, ast.YieldFrom, ast.Await, ast.Global, ast.Nonlocal)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_ALL_AT_ONCE = 64  # samples, of a loop over all that there are: more at once win little, and take memory
_DEEPEST = 3  # functions that call one another in a round


@dataclass(frozen=True)
class SampleGradients:
    """The loop, how many samples it goes through at a time, and how many numbers the model's weights have.

    ``each_a_step``: nothing but the loop's rounds tells the steps apart, so that each is a sample.
    """

    site: Site
    samples: int
    each_a_step: bool
    parameters: int


def sample_gradients(evidence: Evidence, text_of: Callable[[str], str]) -> SampleGradients | None:
    """The loop that makes nearly all calls of a model, one sample each, and reads the gradients of each.

    `text_of` gives a file's text, "" where there is none.
    """
    record = evidence.record
    sites = [each for each in record.call_sites if each.kind == "Module.call"] if record is not None else []
    most = max(sites, key=lambda each: each.calls_per_step, default=None)
    if record is None or most is None or record.shapes_vary or not _one_sample(most):
        return None
    if most.calls_per_step < MOSTLY * sum(each.calls_per_step for each in sites):
        return None
    if any(evidence.operators.row(name) is not None for name in _ALONE):
        return None
    models = [each for each in record.models if each.calls and each.cls == most.details.get("module")]
    if len(models) != 1 or any(keeps_state(text_of(path), cls) for cls, path in models[0].own.items()):
        return None
    found = loop_of_gradients(most.called_from, text_of)
    if found is None:
        return None
    site, batch = found
    each_a_step = _each_a_step(record, most)
    samples = batch if each_a_step else round(most.calls_per_step)
    if samples is None or samples < LEAST_CALLS:
        return None
    return SampleGradients(site, samples, each_a_step, models[0].parameters)


def _one_sample(call: CallSite) -> bool:
    shape = call.details.get("shape")
    return isinstance(shape, list) and len(shape) > 1 and shape[0] == 1 and bool(call.details.get("grad", True))


def _each_a_step(record: RunRecord, call: CallSite) -> bool:
    updating = any(each.steps for each in record.optimizers)
    return not updating and round(call.calls_per_step) == 1


def loop_of_gradients(frames: Sequence[Site], text_of: Callable[[str], str]) -> tuple[Site, int | None] | None:
    """(the loop's line, samples it goes through at a time), for a call of the model that is reached through `frames`.

    From the inside out. Each round clears the gradients of the weights, goes back for its own sample, and reads them;
    none changes the weights, or needs what another has computed. The number is None where the source does not tell it.
    """
    through: list[ast.AST] = []
    for place, frame in enumerate(frames):
        text = text_of(frame.file)
        inside = around(text, frame.line)
        if isinstance(inside, ast.FunctionDef):
            through += inside.body
            continue
        if not isinstance(inside, Loop):
            return None
        tree = ast.parse(text)
        body: list[ast.AST] = [*inside.body] if isinstance(inside, ast.For) else [inside.elt]
        if not _is_of_samples(inside, body, frame.line) or not _apart(inside, body, [*through, *_called(tree, body)]):
            return None
        outer = [loop for each in frames[place:] for loop in _loops_at(text_of(each.file), each.line)]
        outer = [loop for loop in outer if ast.dump(loop) != ast.dump(inside)]
        site = replace(frame, line=line_of(inside), column=None, end_line=None, end_column=None)
        return site, _batch(tree, inside, outer)
    return None


def _is_of_samples(loop: Loop, body: list[ast.AST], line: int) -> bool:
    """Whether what is called on `line` gets what the round's own sample is made of."""
    inside = [node for each in body for node in ast.walk(each)]
    made = made_of(names_in(over(loop)[0]), bound(inside))
    calls = [node for node in inside if isinstance(node, ast.Call) and node.lineno <= line <= (node.end_lineno or 0)]
    return any(names_in(each) & made for call in calls for each in (*call.args, *call.keywords))


def _apart(loop: Loop, body: list[ast.AST], functions: list[ast.AST]) -> bool:
    """Whether each round has gradients of the weights to itself, with the weights that all others have."""
    own = [node for each in body for node in ast.walk(each)]
    nodes = own + [node for each in functions for node in ast.walk(each)]
    if any(isinstance(each, _LEAVES) for each in own) or (isinstance(loop, ast.For) and carried(loop)):
        return False
    asked = [each for each in nodes if isinstance(each, ast.Call) and ast.unparse(each.func).endswith("autograd.grad")]
    went_back = bool(asked) or any(isinstance(each, ast.Call) and last_name(each.func) == "backward" for each in nodes)
    read = _read(nodes)
    if not went_back or not (asked or (read and any(map(_clears, nodes)))):
        return False
    weights = {root_name(each.value) for each in read} | _weights(nodes, asked)
    made = made_of(names_in(over(loop)[0]), bound(own))
    return not weights & made and not any(_changes(each, weights) for each in nodes)


def _read(nodes: list[ast.AST]) -> list[ast.Attribute]:
    """Where gradients are read, not set to zero or asked whether they are there."""
    aside = set[int]()
    for node in nodes:
        if isinstance(node, ast.Compare):
            aside |= {id(each) for each in (node.left, *node.comparators)}
        elif isinstance(node, ast.Call) and last_name(node.func) in _KEEPS_WEIGHTS:
            aside |= {id(each) for each in ast.walk(node.func)}
    return [
        each
        for each in nodes
        if isinstance(each, ast.Attribute) and each.attr == "grad" and isinstance(each.ctx, ast.Load)
        if id(each) not in aside and ast.unparse(each) != "torch.autograd.grad" and root_name(each.value)
        if last_name(each.value) not in ("autograd", "func")
    ]


def _clears(node: ast.AST) -> bool:
    """``zero_grad()``, ``p.grad = None``, ``p.grad.zero_()``."""
    if isinstance(node, ast.Call):
        function = node.func
        name = last_name(function)
        return name == "zero_grad" or (name == "zero_" and ".grad" in ast.unparse(function))
    return isinstance(node, ast.Attribute) and node.attr == "grad" and isinstance(node.ctx, ast.Store)


def _weights(nodes: list[ast.AST], asked: list[ast.Call]) -> set[str]:
    """The names that a round gives weights: those of ``autograd.grad``, and what loops over them call each one."""
    lists = set[str]()
    for call in asked:
        for each in (*call.args[1:2], *(one.value for one in call.keywords if one.arg == "inputs")):
            lists |= names_in(each)
    found = set(lists)
    for target, value in bound(nodes):
        for name, given in _one_by_one(target, value):
            of_model = any(
                isinstance(each, ast.Attribute) and each.attr.endswith("parameters") for each in ast.walk(given)
            )
            if of_model or (isinstance(given, ast.Name) and given.id in lists):
                found |= names_in(name)
    return found


def _one_by_one(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """(what is bound, to an element of what): ``for a, b in zip(x, y)`` binds a to x's, b to y's."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and isinstance(target, ast.Tuple):
        if value.func.id == "zip" and len(value.args) == len(target.elts):
            for each, given in zip(target.elts, value.args, strict=True):
                yield from _one_by_one(each, given)
            return
        if value.func.id == "enumerate" and len(target.elts) == 2 and value.args:
            yield from _one_by_one(target.elts[1], value.args[0])
            return
    yield target, value


def _changes(node: ast.AST, weights: set[str]) -> bool:
    """Whether weights may get other values, or something else is written that a later round may read."""
    if isinstance(node, (ast.Global, ast.Nonlocal, ast.Yield, ast.YieldFrom, ast.Await)):
        return True
    if isinstance(node, ast.keyword):
        return node.arg in _UPDATES
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, (ast.Store, ast.Del)):
        return node.attr != "grad"
    if isinstance(node, ast.AugAssign):
        return root_name(node.target) in weights and ".grad" not in ast.unparse(node.target)
    if not isinstance(node, ast.Call):
        return False
    name = last_name(node.func)
    if name in _UPDATES:
        return True
    in_place = name.endswith("_") and not name.endswith("__") and name not in _KEEPS_WEIGHTS
    return in_place and root_name(node.func) in weights and ".grad" not in ast.unparse(node.func)


def _called(tree: ast.AST, body: list[ast.AST]) -> list[ast.AST]:
    """The bodies of the file's own functions that a round calls by their names, and of those that these call."""
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS)}
    found: dict[str, list[ast.stmt]] = {}
    looking = body
    for _ in range(_DEEPEST):
        names = {last_name(node.func) for each in looking for node in ast.walk(each) if isinstance(node, ast.Call)}
        new = [name for name in names if name in functions and name not in found and name != "forward"]
        found |= {name: functions[name].body for name in new}
        looking = [statement for name in new for statement in functions[name].body]
    return [statement for each in found.values() for statement in each]


def _loops_at(text: str, line: int) -> list[ast.For | ast.While]:
    """All loops around `line`."""
    loops = (node for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.For, ast.While)))
    return [each for each in loops if each.lineno <= line <= (each.end_lineno or each.lineno)]


def _batch(tree: ast.AST, loop: Loop, outer: list[ast.For | ast.While]) -> int | None:
    """How many samples the loop goes through, where the source tells it: by the loop over batches around it."""
    if not outer:
        return _ALL_AT_ONCE
    own = over(loop)[1]
    if isinstance(own, ast.Call) and last_name(own.func) == "range" and len(own.args) == 1:
        number = _number(tree, own.args[0])
        if number is not None:
            return number
    for each in outer:
        if isinstance(each, ast.For):
            for call in ast.walk(each.iter):
                if isinstance(call, ast.Call) and last_name(call.func) == "range" and len(call.args) == 3:
                    return _number(tree, call.args[2])
                if isinstance(call, ast.Call) and last_name(call.func) == "split" and call.args:
                    return _number(tree, call.args[0])
    return None


def _number(tree: ast.AST, node: ast.expr) -> int | None:
    """The number that an expression is: written as such, or by a name that the file binds once, to one."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, int) else None
    if not isinstance(node, ast.Name):
        return None
    values: list[ast.expr | None] = []
    for each in ast.walk(tree):
        if isinstance(each, ast.Assign):
            for target in each.targets:
                if isinstance(target, ast.Name) and target.id == node.id:
                    values.append(each.value)
                elif isinstance(target, ast.Tuple) and node.id in names_in(target):
                    parts = each.value.elts if isinstance(each.value, ast.Tuple) else []
                    names = [one.id if isinstance(one, ast.Name) else "" for one in target.elts]
                    values.append(parts[names.index(node.id)] if node.id in names[: len(parts)] else None)
        elif isinstance(each, ast.arguments):
            names = [one.arg for one in (*each.posonlyargs, *each.args)]
            if node.id in names:
                at = names.index(node.id) - len(names) + len(each.defaults)
                values.append(each.defaults[at] if at >= 0 else None)
    value = values[0] if len(values) == 1 else None
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, int) else None
