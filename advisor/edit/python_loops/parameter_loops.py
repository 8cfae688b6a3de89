"""Loops over a model's parameters, as the source has them: what they are about, and the average of weights at once."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m

from advisor.edit.draft import Draft
from advisor.edit.names import ensure_name, full_name, last_part
from advisor.edit.scopes import literal_equals, parse_number, scope_of, variables

_OVER = re.compile(r"\b(named_)?parameters\(|\bstate_dict\(|\bparam_groups\b|\[[\"']params[\"']\]")
_VALUES = frozenset(("item", "tolist", "numpy", "cpu"))
# Functions by a plain name that take part of nothing else than what is written there.
_PLAIN_CALLS = frozenset((
    "float", "int", "abs", "len", "min", "max", "sum", "zip", "isinstance", "getattr", "hasattr", "print", "str",
    "norm",
))  # fmt: skip
_ROOTS = re.compile(r"sqrt|\babs\(|\*\* 0?\.5")
_IN_PLACE = re.compile(r"[a-z]\w*[a-z0-9]_")
_LEAVE = frozenset(("requires_grad_", "detach_"))  # methods by such a name that change no numbers

AVERAGE, PENALTY, UPDATE, GRADIENTS, VALUES, TOTAL, SUMS = (
    "average", "penalty", "update", "gradients", "values", "total", "sums"
)  # fmt: skip
_EXPLAINED = 0.6  # of a round's operators: so many the loop has to mention
_SIGNS = {"add": ("+", "sum("), "sub": ("-",), "rsub": ("-",), "mul": ("*",), "div": ("/",), "pow": ("**", "square"),
          "sum": ("mean",), "detach": ("data", "no_grad")}  # fmt: skip
_COMPS = (cst.ListComp, cst.SetComp, cst.DictComp, cst.GeneratorExp)
_Comprehension = cst.ListComp | cst.SetComp | cst.DictComp | cst.GeneratorExp


@dataclass(frozen=True)
class Loop:
    """A loop over parameters: a ``for``, or a comprehension. ``kind`` is what its rounds are about; "" for unknown.

    ``squares``: of a penalty, that it adds up squares. ``function_line`` is where the function around it begins; 0 for
    none.
    """

    node: cst.For | _Comprehension
    line: int
    function_line: int
    kind: str
    squares: bool = False


def loops_over_parameters(draft: Draft) -> Iterator[Loop]:
    """All such loops of a file, in the order of the text; of one in another the inner one."""
    lists = _lists(draft)
    for node in draft.nodes(cst.For):
        over = _is_over(draft, node.iter, lists)
        if over and not any(_is_over(draft, each.iter, lists) for each in draft.nodes(cst.For, node.body)):
            kind, squares = _kind(draft, node, node.target)
            yield Loop(node, draft.line(node), draft.function_line(node), kind, squares)
    comprehensions: list[_Comprehension] = [
        *draft.nodes(cst.ListComp),
        *draft.nodes(cst.SetComp),
        *draft.nodes(cst.DictComp),
        *draft.nodes(cst.GeneratorExp),
    ]
    for each in comprehensions:
        if _is_over(draft, each.for_in.iter, lists):
            kind, squares = _kind(draft, each, each.for_in.target)
            yield Loop(each, draft.line(each), draft.function_line(each), kind, squares)


def loop_of(draft: Draft, function_line: int, operators: Collection[str]) -> Loop | None:
    """The loop over parameters in a function that calls these operators; None where that is not certain.

    A comprehension may be a function of its own, which begins where it stands.
    """
    told = []
    for loop in loops_over_parameters(draft):
        if function_line in (loop.function_line, loop.line if isinstance(loop.node, _COMPS) else -1):
            said = draft.code(loop.node)
            explained = [any(each in said for each in _written_as(name)) for name in operators]
            told.append((sum(explained) / max(1, len(explained)), loop))
    most = max((share for share, _ in told), default=0.0)
    best = [loop for share, loop in told if share == most]
    if most < _EXPLAINED or len({(each.kind, each.squares) for each in best}) > 1 or not best[0].kind:
        return None
    return best[0]


def _written_as(operator: str) -> tuple[str, ...]:
    """How a line of Python may write an operator."""
    name = operator.removeprefix("aten::").strip("_")
    name = "norm" if name.endswith("norm") else name
    return name, *_SIGNS.get(name, ())


def averaged(draft: Draft, loop: Loop, whole: bool = True) -> bool:
    """Have the average of weights be of all at once, by ``torch._foreach_lerp_``; whether that could be done.

    For ``for p, q in zip(a, b): q.mul_(d).add_(p, alpha=1 - d)`` and the like, where nothing else happens meanwhile.
    `whole`: both are known to be gone through to their ends; one may else have more, as BYOL's online network has.
    """
    node = loop.node
    bare = node.with_changes(leading_lines=()) if isinstance(node, cst.For) else node  # what is above it stays
    if not isinstance(node, cst.For) or node.orelse is not None or "#" in draft.code(bare):
        return False
    pairs = _zipped(draft, node)
    parts = _lerp(draft, node) if pairs is not None else None
    if pairs is None or parts is None:
        return False
    kept, new, weight = parts
    lists = []
    for tensor in (kept, new):
        name = _root(tensor)
        if name not in pairs or not m.matches(tensor, m.Name() | m.Attribute(m.Name(), m.Name("data")) | _DETACHED):
            return False
        if not whole:
            lists.append(f"[{draft.code(tensor)} for {draft.code(node.target)} in {draft.code(node.iter)}]")
            continue
        plain = isinstance(tensor, cst.Name)
        lists.append(f"list({pairs[name]})" if plain else f"[{draft.code(tensor)} for {name} in {pairs[name]}]")
    if _root(kept) == _root(new) or _names(weight) & {*pairs} or _read_later(draft, node, {*pairs}):
        return False
    call = f"{ensure_name(draft, 'torch')}._foreach_lerp_({', '.join(lists)}, {draft.code(weight)})"
    (statement,) = draft.statements(call)
    draft.change(node, lambda old: statement.with_changes(leading_lines=cst.ensure_type(old, cst.For).leading_lines))
    return True


_DETACHED = m.Call(func=m.Attribute(m.Name(), m.Name("detach")), args=[])


def _lists(draft: Draft) -> set[str]:
    """The names and attributes that are given a list of parameters somewhere in the file."""
    found = set[str]()
    for assign in draft.nodes(cst.Assign):
        if _OVER.search(draft.code(assign.value)):
            found |= {draft.code(each.target) for each in assign.targets}
    return {each for each in found if re.fullmatch(r"[\w.]+", each)}


def _is_over(draft: Draft, iterated: cst.BaseExpression, lists: set[str]) -> bool:
    code = draft.code(iterated)
    if _OVER.search(code):
        return True
    names = {draft.code(each) for each in (*draft.nodes(cst.Name, iterated), *draft.nodes(cst.Attribute, iterated))}
    return bool(names & lists)


def _root(node: cst.BaseExpression) -> str:
    """The name at the bottom of ``q.data``, ``ema[name]``, ``q.detach()``."""
    while True:
        if isinstance(node, (cst.Attribute, cst.Subscript)):
            node = node.value
        elif isinstance(node, cst.Call):
            node = node.func
        else:
            return node.value if isinstance(node, cst.Name) else ""


def _names(node: cst.CSTNode) -> set[str]:
    return {each.value for each in m.findall(node, m.Name()) if isinstance(each, cst.Name)}


def _kind(draft: Draft, node: cst.For | _Comprehension, target: cst.BaseAssignTargetExpression) -> tuple[str, bool]:
    """What the rounds of a loop are about, by what they write, and whether squares are added up."""
    body: cst.CSTNode = node.body if isinstance(node, cst.For) else node
    said, own = draft.code(body), _names(target)
    calls = draft.nodes(cst.Call, body)
    over = draft.nodes(cst.Call, node.for_in.iter) if not isinstance(node, cst.For) else []
    plain = {each.func.value for each in calls if each not in over and isinstance(each.func, cst.Name)}
    asked = {last_part(each.func) for each in calls if each not in over}
    if not plain <= _PLAIN_CALLS or asked & {"backward", "step", "zero_grad", "numel"}:
        return "", False
    attributes = draft.nodes(cst.Attribute, body)
    graded = {_root(each) for each in attributes if each.attr.value == "grad"}
    written = [each for each in _written(draft, body) if _root(each) in own or isinstance(each, cst.Subscript)]
    adds = bool(_added(draft, body) - own) or _is_summed(draft, node)
    values = bool(asked & {*_VALUES, "float"})
    if written and graded:
        of_gradients = ["grad" in _names(each) for each in written]
        updates = any(_root(each) in graded and not on for each, on in zip(written, of_gradients, strict=True))
        return UPDATE if updates else GRADIENTS if all(of_gradients) else SUMS, False
    if written:
        return (AVERAGE if len(_names(body) & own) > 1 or "[" in said else ""), False
    if values:
        return (TOTAL if _added(draft, body) - own else VALUES), False
    if not adds:
        return "", False
    # The squares of a difference are another penalty than weight decay, and so are weighted ones.
    squared = list(_squares(draft, body))
    squares = bool(squared) and all(_is_own(draft, each, own) for each in squared) and not _ROOTS.search(said)
    return (TOTAL, False) if graded else (PENALTY, squares)


def _squares(draft: Draft, body: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """What is squared: ``x`` of ``x ** 2``, ``x * x``, ``x.pow(2)``, ``torch.square(x)``."""
    for each in draft.nodes(cst.BinaryOperation, body):
        power = isinstance(each.operator, cst.Power) and literal_equals(each.right, 2)
        if power or (isinstance(each.operator, cst.Multiply) and each.left.deep_equals(each.right)):
            yield each.left
    for call in draft.nodes(cst.Call, body):
        method = isinstance(call.func, cst.Attribute) and not full_name(draft, call.func).startswith("torch.")
        given = [cst.ensure_type(call.func, cst.Attribute).value] if method else []
        given += [each.value for each in call.args]
        squared = len(given) == 2 and last_part(call.func) == "pow" and literal_equals(given[1], 2)
        if squared or (len(given) == 1 and last_part(call.func) == "square"):
            yield given[0]


def _is_own(draft: Draft, node: cst.BaseExpression, own: set[str]) -> bool:
    """Whether it is one of the loop's own tensors, or its norm: ``p``, ``p.data``, ``p.norm(2)``, ``torch.norm(p)``."""
    if isinstance(node, cst.Call) and last_part(node.func) in ("norm", "vector_norm"):
        named = full_name(draft, node.func).startswith("torch.")
        if named and node.args:
            return _is_own(draft, node.args[0].value, own)
        return isinstance(node.func, cst.Attribute) and _is_own(draft, node.func.value, own)
    if isinstance(node, cst.Attribute) and node.attr.value == "data":
        node = node.value
    return isinstance(node, cst.Name) and node.value in own


def _is_summed(draft: Draft, node: cst.CSTNode) -> bool:
    """Whether a comprehension is what ``sum()`` or ``torch.stack()`` is given."""
    above = draft.parent(node)
    call = draft.parent(above) if isinstance(above, cst.Arg) else None
    return isinstance(call, cst.Call) and last_part(call.func) in ("sum", "stack", "cat", "norm", "fsum")


def _written(draft: Draft, body: cst.CSTNode) -> list[cst.BaseExpression]:
    """What is changed in place, or put in another's place: ``q`` of ``q.mul_()``, ``q.data = …``, ``ema[name] = …``."""
    found: list[cst.BaseExpression] = []
    for call in draft.nodes(cst.Call, body):
        func = call.func
        name = func.attr.value if isinstance(func, cst.Attribute) else ""
        if isinstance(func, cst.Attribute) and _IN_PLACE.fullmatch(name) and name not in _LEAVE:
            found.append(func.value)
    found += [each.target for each in draft.nodes(cst.AugAssign, body)]
    for assign in draft.nodes(cst.Assign, body):
        for target in (each.target for each in assign.targets):
            again = isinstance(target, cst.Subscript) and draft.code(target) in draft.code(assign.value)
            if isinstance(target, cst.Attribute) or again:  # what is kept anew by a name is only kept
                found.append(target)
    return found


def _added(draft: Draft, body: cst.CSTNode) -> set[str]:
    """The names of what is added up: ``total += …``, ``total = total + …``."""
    found = {each.target.value for each in draft.nodes(cst.AugAssign, body) if isinstance(each.target, cst.Name)}
    for assign in draft.nodes(cst.Assign, body):
        target = assign.targets[0].target
        if isinstance(target, cst.Name) and target.value in _names(assign.value):
            found.add(target.value)
    return found


def _zipped(draft: Draft, node: cst.For) -> dict[str, str] | None:
    """Name → what it goes through, of ``for a, b in zip(x, y)``."""
    target, over = node.target, node.iter
    if not isinstance(target, cst.Tuple) or not isinstance(over, cst.Call) or not m.matches(over.func, m.Name("zip")):
        return None
    given = [each for each in over.args if not m.matches(each, m.Arg(keyword=m.Name("strict")))]
    names = [each.value for each in target.elements]
    if len(given) != 2 or len(names) != 2 or any(each.keyword or each.star for each in given):
        return None
    if not all(m.matches(each.value, m.Call(func=m.Attribute(attr=m.Name("parameters")), args=[])) for each in given):
        return None
    pairs = zip(names, given, strict=True)
    found = {each.value: draft.code(arg.value) for each, arg in pairs if isinstance(each, cst.Name)}
    return found if len(found) == 2 else None


def _lerp(draft: Draft, node: cst.For) -> tuple[cst.BaseExpression, cst.BaseExpression, cst.BaseExpression] | None:
    """(what is kept, what is new, the weight of the new) of the average that is all that a loop does."""
    steps: list[cst.BaseExpression] = []
    block = node.body
    for line in block.body:
        if not isinstance(line, cst.SimpleStatementLine) and not isinstance(block, cst.SimpleStatementSuite):
            return None
        smalls = line.body if isinstance(line, cst.SimpleStatementLine) else [line]
        for small in smalls:
            if not isinstance(small, cst.Expr):
                return None
            steps.append(small.value)
    if len(steps) == 1:
        found = m.extract(steps[0], _LERP)
        if found is not None:
            return _three(found)
        found = m.extract(steps[0], _MUL_ADD)
    elif len(steps) == 2:
        first, second = m.extract(steps[0], _MUL), m.extract(steps[1], _ADD)
        same = first is not None and second is not None and _code(draft, first, "kept") == _code(draft, second, "kept")
        found = {**(first or {}), **(second or {})} if same else None
    else:
        return None
    if found is None:
        return None
    added = found["added"]
    assert isinstance(added, (cst.CSTNode))
    parts = _weighted(found, cst.ensure_type(added, cst.Arg).value)
    if parts is None:
        return None
    new, weight = parts
    kept, decay = found["kept"], found["decay"]
    assert isinstance(kept, cst.BaseExpression) and isinstance(decay, cst.BaseExpression)
    return (kept, new, weight) if _is_rest(draft, weight, decay) else None


_NUMBER = m.Name() | m.Attribute() | m.Float() | m.Integer() | m.BinaryOperation()
_KEPT = m.SaveMatchedNode(m.Name() | m.Attribute() | m.Call(), "kept")
_LERP = m.Call(
    func=m.Attribute(_KEPT, m.Name("lerp_")),
    args=[m.Arg(m.SaveMatchedNode(m.DoNotCare(), "new"), keyword=None), m.Arg(m.SaveMatchedNode(_NUMBER, "weight"))],
)
_MUL = m.Call(func=m.Attribute(_KEPT, m.Name("mul_")), args=[m.Arg(m.SaveMatchedNode(_NUMBER, "decay"), keyword=None)])
_ADDED = m.SaveMatchedNode(m.Arg(keyword=None), "added")
_ALPHA = m.Arg(m.SaveMatchedNode(_NUMBER, "alpha"), keyword=m.Name("alpha"))
_MUL_ADD = m.Call(func=m.Attribute(_MUL, m.Name("add_")), args=[_ADDED]) | m.Call(
    func=m.Attribute(_MUL, m.Name("add_")), args=[_ADDED, _ALPHA]
)
_ADD = m.Call(func=m.Attribute(_KEPT, m.Name("add_")), args=[_ADDED]) | m.Call(
    func=m.Attribute(_KEPT, m.Name("add_")), args=[_ADDED, _ALPHA]
)

_Found = dict[str, cst.CSTNode | object]


def _three(found: object) -> tuple[cst.BaseExpression, cst.BaseExpression, cst.BaseExpression] | None:
    assert isinstance(found, dict)
    kept, new, weight = (found[each] for each in ("kept", "new", "weight"))
    if not all(isinstance(each, cst.BaseExpression) for each in (kept, new, weight)):
        return None
    return kept, new, weight


def _code(draft: Draft, found: object, name: str) -> str:
    assert isinstance(found, dict)
    return draft.code(found[name])


def _weighted(found: object, added: cst.BaseExpression) -> tuple[cst.BaseExpression, cst.BaseExpression] | None:
    """(p, w) of ``add_(p, alpha=w)`` and of ``add_(w * p)``."""
    assert isinstance(found, dict)
    alpha = found.get("alpha")
    if isinstance(alpha, cst.BaseExpression):
        return added, alpha
    if not isinstance(added, cst.BinaryOperation) or not isinstance(added.operator, cst.Multiply):
        return None
    left, right = added.left, added.right
    if _is_number(left) and not _is_number(right):
        return right, left
    return (left, right) if _is_number(right) and not _is_number(left) else None


def _is_number(node: cst.BaseExpression) -> bool:
    """A number, or what is left of one: ``0.001``, ``(1 - decay)``."""
    if isinstance(node, cst.BinaryOperation):
        return isinstance(node.operator, cst.Subtract) and parse_number(node.left) == 1.0
    return isinstance(node, (cst.Float, cst.Integer))


def _is_rest(draft: Draft, weight: cst.BaseExpression, decay: cst.BaseExpression) -> bool:
    """Whether the two weights are one together: ``d`` and ``1 - d``, or numbers."""
    for one, other in ((weight, decay), (decay, weight)):
        if isinstance(one, cst.BinaryOperation) and isinstance(one.operator, cst.Subtract):
            return parse_number(one.left) == 1.0 and draft.code(one.right) == draft.code(other)
    first, second = parse_number(weight), parse_number(decay)
    return first is not None and second is not None and abs(first + second - 1.0) < 1e-12


def _read_later(draft: Draft, loop: cst.For, names: set[str]) -> bool:
    """Whether what the loop leaves in its names may be read outside of it: they are nowhere else in its scope."""
    scope = scope_of(draft, loop)
    inside = {*draft.nodes(cst.Name, loop)}
    for name in names:
        for each in variables(draft, name, scope):
            around = [above for above in draft.ancestors(each) if isinstance(above, (cst.For, cst.CompFor, *_COMPS))]
            bound = any(
                name in _names(above.target if isinstance(above, (cst.For, cst.CompFor)) else above.for_in.target)
                for above in around
            )
            if each not in inside and not bound:
                return True
    return False
