"""The loop around a line of Python, and whether its rounds could be done at once, as far as the source tells."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from advisor.evidence.bindings import bound, last_name, made_of, names_in, on_line
from advisor.evidence.python_loops.reports import without_reports
from advisor.harness.layout import CallSite, Site

Loop = ast.For | ast.ListComp | ast.GeneratorExp
_LOOPS = (ast.For, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_BODIES = (*_LOOPS, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
# Calls in a body that make it a loop over steps, not over the samples of one.
TRAINS = frozenset(("backward", "step", "zero_grad"))
_ADDS_UP = (ast.Add, ast.Sub, ast.Mult)
_ADAPTS = ("autograd.grad", "functional_call")  # each round may have weights of its own
MOSTLY = 0.8  # of a step's calls of models: beside many others the time of these is not known
LEAST_CALLS = 8  # a step: a few views of one sample, or heads of one net, are no loop over samples


@dataclass(frozen=True)
class CalledLoop:
    """A loop that calls a model in each of its rounds: its line, and how many calls that makes in a step."""

    site: Site
    calls: float


def called_loop(forwards: Sequence[CallSite], text_of: Callable[[str], str]) -> CalledLoop | None:
    """The loop with most of the `forwards`, a call in each round, where no round needs what another one computed.

    `text_of` gives a file's text, "" where there is none.
    """
    most = max(forwards, key=lambda each: each.calls_per_step, default=None)
    if most is None or most.calls_per_step < max(LEAST_CALLS, MOSTLY * sum(each.calls_per_step for each in forwards)):
        return None
    line = loop_of_calls(text_of(most.site.file), most.site.line)
    if line is None:
        return None
    site = replace(most.site, line=line, column=None, end_line=None, end_column=None)
    return CalledLoop(site, most.calls_per_step)


def busiest_loop(taken: Sequence[CallSite], text_of: Callable[[str], str]) -> Site | None:
    """The busiest loop of those that take parts of tensors at `taken`: its line, where its rounds are independent.

    None as well where the rounds of one that takes half as many parts need each other, for which of the loops the trace
    shows could not be told then. What takes parts in a function of no loop of its own belongs to that which hands it
    on, as long as no loop calls it by its name; and what a loader takes to make a batch is on the line of the loop over
    batches, which takes none.
    """
    texts = {each.site.file: text_of(each.site.file) for each in taken}
    # What a loader takes to make its batches may be more than what the loops of a step take; and no loop's own is what
    # each round gives names, ``source, target = edges``, or takes by the same number, ``h[-1]``.
    for others in (_by_iterator, _unpacks):
        taken = [each for each in taken if not others(texts[each.site.file], each)]
    taken = [each for each in taken if not _by_constants(texts[each.site.file], each, taken)]
    # What is unbound before a loop, or for no loop, is not to be found on the line of one.
    taken = [
        each
        for each in taken
        if not each.details.get("unbinds") or loop_over_parts(texts[each.site.file], each.site.line) is not None
    ]
    most = max(map(_parts, taken), default=0)
    busiest = sorted((each for each in taken if 2 * _parts(each) >= most), key=lambda each: -_parts(each))
    places = [
        _loop_of_parts(each, texts[each.site.file])
        for each in busiest
        if not _handed_on(texts[each.site.file], each.site.line)
    ]
    return places[0] if places and None not in places else None


def _handed_on(text: str, line: int) -> bool:
    """Whether `line` is in a function without a loop around it that no loop of the file calls by its name."""
    function = around(text, line)
    if not isinstance(function, ast.FunctionDef) or loop_over_parts(text, line) is not None:
        return False
    loops = [node for node in ast.walk(ast.parse(text)) if isinstance(node, _LOOPS)]
    called = {node.func for loop in loops for node in ast.walk(loop) if isinstance(node, ast.Call)}
    return not any(ast.unparse(each).rpartition(".")[2] == function.name for each in called)


def _by_iterator(text: str, taken: CallSite) -> bool:
    """Whether what a loop goes through takes the parts, by itself: there is no index on the line of its ``for``."""
    loop = around(text, taken.site.line + 1)
    if taken.details.get("iterates") is not False or not isinstance(loop, ast.For) or loop.lineno != taken.site.line:
        return False
    return not any(isinstance(node, ast.Subscript) for node in ast.walk(loop.iter))


def _unpacks(text: str, taken: CallSite) -> bool:
    """Whether a tensor is taken apart by as many names as it has parts, and by no loop."""
    scope = around(text, taken.site.line) if taken.details.get("iterates") else None
    return scope is not None and any(
        isinstance(node, ast.Assign)
        and node.lineno == taken.site.line
        and isinstance(node.targets[0], ast.Tuple)
        and len(node.targets[0].elts) == taken.details.get("rows")
        and isinstance(node.value, (ast.Name, ast.Attribute, ast.Subscript, ast.Call))
        for node in ast.walk(scope)
    )


def _by_constants(text: str, taken: CallSite, others: Sequence[CallSite]) -> bool:
    """Whether all that is taken on the line is taken by numbers that are written there, in a loop that takes more."""
    loop = around(text, taken.site.line)
    if taken.details.get("iterates") is not False or not isinstance(loop, ast.For):
        return False
    beside = (each.site for each in others if each is not taken)
    if not any(each.file == taken.site.file and on_line(loop, each.line) for each in beside):
        return False
    there = (each for each in ast.walk(loop) if isinstance(each, ast.Subscript) and on_line(each, taken.site.line))
    indices = [each.slice for each in there]
    return bool(indices) and not any(names_in(each) for each in indices)


def _parts(taken: CallSite) -> int:
    """How many parts of tensors were taken there."""
    rows = taken.details.get("rows")
    return taken.calls * (rows if isinstance(rows, int) else 1)


def _loop_of_parts(taken: CallSite, text: str) -> Site | None:
    found = loop_over_parts(text, taken.site.line)
    if found is None or calls_its_own(found[1]) or not independent(text, found[1]):
        return None
    return replace(taken.site, line=found[0], column=None, end_line=None, end_column=None)


def loop_over_parts(text: str, line: int) -> tuple[int, Loop] | None:
    """(line, loop) of the innermost loop around `line` whose own variable takes parts of something there.

    ``x[i]`` in a loop over i, or the ``for row in x`` itself. None where there is none, or `text` does not parse.
    """
    found: list[tuple[int, int, Loop]] = []
    for node in ast.walk(_tree(text)):
        if isinstance(node, (ast.For, ast.ListComp, ast.GeneratorExp)):
            target, source = over(node)
            # `for row in x:` is reached from the line of the `for`.
            first, last = node.lineno, node.end_lineno or node.lineno
            if first <= line <= last and (_takes(node, target, line) or source.lineno == line):
                found.append((last - first, source.lineno if isinstance(node, ast.For) else node.lineno, node))
    if not found:
        return None
    _, at, loop = min(found, key=lambda each: each[0])
    return at, loop


def loop_of_calls(text: str, line: int) -> int | None:
    """The line of the innermost loop around a call on `line`, if one model is called there for one part after another.

    None where the loop goes over models, or counts only, or its rounds need each other.
    """
    loop = around(text, line)
    if not isinstance(loop, (ast.For, ast.ListComp, ast.GeneratorExp)):
        return None
    target, source = over(loop)
    own = names_in(target)
    body: list[ast.AST] = [*loop.body] if isinstance(loop, ast.For) else [loop.elt]
    inside = [node for each in body for node in ast.walk(each)]
    made = made_of(own, bound(inside))
    if any(isinstance(node, ast.Call) and ast.unparse(node.func).endswith(_ADAPTS) for node in inside):
        return None
    calls = [node for node in inside if isinstance(node, ast.Call) and node.lineno <= line <= (node.end_lineno or 0)]
    if not any(names_in(each) & made for call in calls for each in (*call.args, *call.keywords)):
        return None  # it counts only
    if any(_chosen_by(call.func, own) for call in calls) or not independent(text, loop):
        return None
    return source.lineno if isinstance(loop, ast.For) else loop.lineno


def around(text: str, line: int) -> ast.For | ast.expr | ast.While | ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The innermost loop or function whose body holds `line`; None at the top of a file that has none there."""
    holding = [
        node
        for node in ast.walk(_tree(text))
        if isinstance(node, _BODIES) and _body_lines(node)[0] <= line <= _body_lines(node)[1]
    ]
    return min(holding, key=lambda node: _body_lines(node)[1] - node.lineno, default=None)


def is_repeated(text: str, site: Site) -> bool:
    """Whether a loop, or a comprehension, does what is at `site` in each of its rounds."""
    for node in (each for each in ast.walk(_tree(text)) if isinstance(each, _LOOPS)):
        begin, end = _body_lines(node)
        within = begin <= site.line <= end
        if within and not isinstance(node, (ast.For, ast.While)) and site.column is not None:  # others share its line
            last = (node.end_lineno or 0, node.end_col_offset or 0)
            within = (node.lineno, node.col_offset) <= (site.line, site.column) < last
        if within:
            return True
    return False


def outer_loop(text: str, loop: Loop) -> ast.For | ast.While | None:
    """The innermost loop of the same function that runs `loop` in each of its rounds."""
    line, place = line_of(loop), (loop.lineno, loop.col_offset)
    kinds = (ast.For, ast.While, ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = [each for each in ast.walk(_tree(text)) if isinstance(each, kinds)]
    bodies = [each for each in bodies if (each.lineno, each.col_offset) != place]
    holding = [each for each in bodies if _body_lines(each)[0] <= line <= _body_lines(each)[1]]
    inner = min(holding, key=lambda each: _body_lines(each)[1] - each.lineno, default=None)
    return inner if isinstance(inner, (ast.For, ast.While)) else None


def _tree(text: str) -> ast.Module:
    """The text parsed; nothing where it cannot be."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def _body_lines(node: ast.AST) -> tuple[int, int]:
    body = getattr(node, "body", None)
    first = body[0] if isinstance(body, list) else node
    return getattr(first, "lineno", 0), getattr(node, "end_lineno", None) or 0


def _chosen_by(function: ast.expr, own: set[str]) -> bool:
    """Whether what is called is another one in each round: ``for net in nets: net(x)``, ``nets[i](x)``."""
    if isinstance(function, ast.Subscript):
        return bool(names_in(function.slice) & own)
    return isinstance(function, ast.Name) and function.id in own


def calls_its_own(loop: Loop) -> bool:
    """Whether the rounds call something else each: experts, heads, layers of their own."""
    target, _ = over(loop)
    body: list[ast.AST] = [*loop.body] if isinstance(loop, ast.For) else [loop.elt]
    inside = [node for each in body for node in ast.walk(each)]
    own = made_of(names_in(target), [pair for pair in bound(inside) if isinstance(pair[1], ast.Subscript)])
    return any(_chosen_by(node.func, own) for node in inside if isinstance(node, ast.Call))


def line_of(loop: Loop) -> int:
    """The line that a trace's reader is sent to: where it says over what the loop goes."""
    return over(loop)[1].lineno if isinstance(loop, ast.For) else loop.lineno


def loops_at(text: str, line: int) -> list[Loop]:
    """The loops whose line that is; none where `text` does not parse."""
    return [node for node in ast.walk(_tree(text)) if isinstance(node, Loop) and line_of(node) == line]


def scope_at(text: str, function: int) -> ast.AST | None:
    """The only function that begins at that line, decorators included; for 0 the whole file. None where neither is."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    if not function:
        return tree
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    there = [each for each in functions if min([each.lineno, *(d.lineno for d in each.decorator_list)]) == function]
    return there[0] if len(there) == 1 else None


def differentiates(text: str, line: int) -> bool:
    """Whether the loop at `line` asks for gradients, ``torch.autograd.grad``, in its rounds."""
    calls = [node for loop in loops_at(text, line) for node in ast.walk(loop) if isinstance(node, ast.Call)]
    return any(last_name(each.func) == "grad" for each in calls)


def independent(text: str, loop: Loop) -> bool:
    """Whether no round of `loop` needs what an earlier one computed, sums and lists of results aside.

    Conservative: what cannot be told (an attribute that is assigned, a way out of the loop) counts as needed.
    """
    if not isinstance(loop, ast.For):
        calls = [node for node in ast.walk(loop) if isinstance(node, ast.Call)]
        return not any(_changes_its_object(call, text) for call in calls) and not _named_expressions(loop)
    nodes = [node for statement in loop.body for node in ast.walk(statement)]
    if any(isinstance(node, (ast.Break, ast.Return, ast.Yield, ast.YieldFrom, ast.Await)) for node in nodes):
        return False
    for node in nodes:
        if isinstance(node, ast.Call) and (_method(node) in TRAINS or _changes_its_object(node, text)):
            return False
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, (ast.Store, ast.Del)):
            return False
    return not carried(loop)


def over(loop: Loop) -> tuple[ast.expr, ast.expr]:
    """What a loop names its elements, and what it goes through."""
    if isinstance(loop, ast.For):
        return loop.target, loop.iter
    return loop.generators[0].target, loop.generators[0].iter


def _takes(loop: Loop, target: ast.expr, line: int) -> bool:
    """Whether a subscript on `line` has the loop's variable in its index, or what a round makes of it."""
    names = {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}
    for node in sorted((each for each in ast.walk(loop) if isinstance(each, ast.Assign)), key=lambda each: each.lineno):
        if node.lineno < line and any(isinstance(each, ast.Name) and each.id in names for each in ast.walk(node.value)):
            names |= {each.id for each in node.targets if isinstance(each, ast.Name)}
    subscripts = (node for node in ast.walk(loop) if isinstance(node, ast.Subscript))
    return any(
        isinstance(inner, ast.Name) and inner.id in names
        for node in subscripts
        if node.lineno <= line <= (node.end_lineno or node.lineno)
        for inner in ast.walk(node.slice)
    )


def _method(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _named_expressions(loop: ast.AST) -> bool:
    return any(isinstance(node, ast.NamedExpr) for node in ast.walk(loop))


def _changes_its_object(call: ast.Call, text: str) -> bool:
    """Whether a method ``self.name(…)`` that is written in this file assigns attributes of its object."""
    function = call.func
    if not (
        isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "self"
    ):
        return False
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.name == function.attr:
            stores = (each for each in ast.walk(node) if isinstance(each, ast.Attribute))
            if any(isinstance(each.ctx, ast.Store) for each in stores):
                return True
    return False


def carried(loop: ast.For) -> set[str]:
    """The names that the body assigns and reads before, and those that it collects results in and reads at all.

    Reports every so many rounds aside, which no other statement sees anything of.
    """
    own = names_in(loop.target)
    events = [event for statement in without_reports(loop.body) for event in _events(statement)]
    assigned = {name for kind, name in events if kind == "store"} - own
    collecting = {name for kind, name in events if kind == "collect"}
    done: set[str] = set()
    found: set[str] = set()
    for kind, name in events:
        if kind == "store":
            done.add(name)
        elif kind == "load" and name in collecting:
            found.add(name)
        elif kind == "count" and name in collecting:
            pass  # how many results there are by now, for a progress bar, is no result itself
        elif name in assigned - done:
            found.add(name)
    return found - _made_anew(loop) - _own_elements(loop, found)


def _own_elements(loop: ast.For, names: set[str]) -> set[str]:
    """Those of `names` of which each round mentions its own element only: ``logits[i, seen] = f(logits[i, seen])``.

    That is one which the loop counts: ``for i in range(…)``, ``for i, tokens in enumerate(…)``.
    """
    counts = loop.iter.func.id if isinstance(loop.iter, ast.Call) and isinstance(loop.iter.func, ast.Name) else ""
    count = loop.target.elts[0] if counts == "enumerate" and isinstance(loop.target, ast.Tuple) else loop.target
    inside = [node for statement in loop.body for node in ast.walk(statement)]
    if counts not in ("range", "trange", "enumerate") or not isinstance(count, ast.Name):
        return set()
    named = [node for node in inside if isinstance(node, ast.Name)]
    if any(node.id == count.id and not isinstance(node.ctx, ast.Load) for node in named):
        return set()
    own = {id(node.value) for node in inside if isinstance(node, ast.Subscript) and _first_of(node.slice) == count.id}
    others = {node.id for node in named if id(node) not in own}
    return names - others


def _first_of(index: ast.expr) -> str:
    """The name that an index begins with: ``i`` of ``x[i]`` and of ``x[i, :4]``; "" for anything else."""
    first = index.elts[0] if isinstance(index, ast.Tuple) and index.elts else index
    return first.id if isinstance(first, ast.Name) else ""


def _made_anew(loop: ast.For) -> set[str]:
    """The names that each round, whatever its branches do, gives a value before it mentions them otherwise.

    Those that only a loop in it mentions, where each round of that does so.
    """
    mentioned: set[str] = set()
    found: set[str] = set()
    for statement in loop.body:
        if isinstance(statement, ast.Assign):
            plain = {each.id for one in statement.targets for each in _stored(one)}
            found |= plain - mentioned - names_in(statement.value)
        elif isinstance(statement, ast.For):
            beside = [*(each for each in loop.body if each is not statement), statement.iter, *statement.orelse]
            found |= _made_anew(statement) - set[str]().union(*map(names_in, beside))
        mentioned |= names_in(statement)
    return found


def _stored(target: ast.expr) -> list[ast.Name]:
    """The names that an assignment's target binds: not that of ``rows[i]``, which changes what is there."""
    parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
    return [each for each in parts if isinstance(each, ast.Name)]


def _events(node: ast.AST) -> Iterator[tuple[str, str]]:
    """("load" | "count" | "store" | "collect", name) in the order in which Python does them; branches count as done."""
    if isinstance(node, ast.Assign) and (added := _added_up(node)):
        for each in added:
            yield from _events(each)
        yield "collect", ast.unparse(node.targets[0])
    elif isinstance(node, ast.Assign):
        yield from _events(node.value)
        for target in node.targets:
            yield from _events(target)
    elif isinstance(node, ast.AugAssign):
        yield from _events(node.value)
        if isinstance(node.target, ast.Name) and isinstance(node.op, _ADDS_UP):
            yield "collect", node.target.id
        elif isinstance(node.target, ast.Name):
            yield "load", node.target.id
            yield "store", node.target.id
        else:
            yield from _subscripted(node.target)
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        yield from _events(node.value)
        yield from _events(node.target)
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        yield from _subscripted(node)
    elif isinstance(node, ast.Call) and _method(node) in ("append", "add") and _named(node):
        for argument in node.args:
            yield from _events(argument)
        yield "collect", _named(node)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len":
        for each in node.args:
            yield from [("count", each.id)] if isinstance(each, ast.Name) else _events(each)
    elif isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
        inner = {each.id for one in node.generators for each in ast.walk(one.target) if isinstance(each, ast.Name)}
        for child in ast.walk(node):
            if isinstance(child, ast.Name) and child.id not in inner:
                yield "load", child.id
    elif isinstance(node, (ast.For, ast.comprehension)):
        yield from _events(node.iter)
        yield from _events(node.target)
        for child in [*getattr(node, "body", []), *getattr(node, "orelse", [])]:
            yield from _events(child)
    elif isinstance(node, ast.Name):
        yield ("store" if isinstance(node.ctx, ast.Store) else "load"), node.id
    else:
        for child in ast.iter_child_nodes(node):
            yield from _events(child)


def _added_up(node: ast.Assign) -> list[ast.expr]:
    """What ``total = total + a - b`` (or ``product = product * a``) adds up; nothing for any other assignment."""
    if len(node.targets) != 1 or not isinstance(target := node.targets[0], ast.Name):
        return []
    found: list[ast.expr] = []
    value, multiplies = node.value, set[bool]()
    while isinstance(value, ast.BinOp) and isinstance(value.op, _ADDS_UP):
        multiplies.add(isinstance(value.op, ast.Mult))
        found.append(value.right)
        value = value.left
    # A decaying mean, total * 0.9 + a, is no sum: each round needs the one before.
    alike = len(multiplies) == 1 and isinstance(value, ast.Name) and value.id == target.id
    return found[::-1] if alike else []


def _named(call: ast.Call) -> str:
    function = call.func
    return function.value.id if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) else ""


def _subscripted(node: ast.expr) -> Iterator[tuple[str, str]]:
    """``out[i] = …`` collects results in ``out``."""
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        yield from _events(node.slice)
        yield "collect", node.value.id
    else:
        for child in ast.iter_child_nodes(node):
            yield from _events(child)
