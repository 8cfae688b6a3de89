"""Draws by weights that never change: the sums of the weights are computed once, and the very same numbers drawn.

``numpy.random.choice(n, k, p=p)`` adds up all of ``p`` in each call, and looks uniform numbers up in the sums
(numpy/random/mtrand.pyx and _generator.pyx, ``choice``); ``random.choices`` does so, too, unless it is given
``cum_weights`` (random.py). So the same generator gives the same draws when the sums are made before.
"""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m

from advisor.edit.calls import argument, has_starred, unpacked
from advisor.edit.draft import Draft, Drafts, Statement
from advisor.edit.in_place import is_in_place
from advisor.edit.modules import TooManyFilesError, with_word
from advisor.edit.names import ensure_name, fresh_name, full_name, last_part, own_attribute
from advisor.edit.scopes import assignments, is_bound_elsewhere, is_parameter, is_target, scope_of, variables

_CHOICE = ("a", "size")
# How a generator draws uniform numbers in [0, 1), as its own choice() does.
_UNIFORM = {
    "numpy.random": "random_sample",
    "numpy.random.RandomState": "random_sample",
    "numpy.random.default_rng": "random",
}
# Functions that leave what they are given as it was, and keep nothing of it.
_READS = frozenset((
    "len", "sum", "min", "max", "print", "list", "tuple", "sorted", "any", "all", "round", "float",
    *(f"numpy.{each}" for each in ("sum", "cumsum", "log", "sqrt", "exp", "power", "max", "min", "mean", "argmax",
                                   "argsort", "allclose", "isclose", "array", "count_nonzero", "searchsorted")),
    *(f"torch.{each}" for each in ("tensor", "sum", "cumsum")),
))  # fmt: skip
_CHANGES = frozenset((
    "sort", "fill", "put", "itemset", "partition", "resize", "setfield", "append", "extend", "insert", "remove", "pop",
    "clear", "reverse", "setflags",
))  # fmt: skip


_VIEWS = frozenset(("T", "view", "reshape", "ravel", "transpose", "squeeze", "flat", "data"))
_GIVE_WHAT_THEY_GET = frozenset(("asarray", "asanyarray", "ascontiguousarray", "from_numpy", "as_tensor", *_VIEWS))
_PLAIN = (cst.BinaryOperation, cst.Comparison, cst.Arg, cst.FormattedStringExpression)  # where one of them is read


@dataclass(frozen=True)
class _Kept:
    """Weights that are there once and for all after ``last``, the last statement that gives them a value."""

    name: cst.Name | cst.Attribute
    last: Statement


def drawn_from_sums(drafts: Drafts, draft: Draft, line: int) -> str:
    """Have the one draw by weights on `line` look them up in sums that are made once; why not, as a clause, or ""."""
    there = [each for each in draft.nodes(cst.Call) if draft.line(each) <= line <= draft.position(each).end.line]
    calls = [each for each in there if _given(each) is not None]
    if len(calls) != 1 or has_starred(calls[0]) or unpacked(calls[0]):
        return "which call draws cannot be told from the source"
    call, weights = calls[0], _given(calls[0])
    kept = _kept(drafts, draft, weights) if isinstance(weights, (cst.Name, cst.Attribute)) else None
    if kept is None:
        return "whether the weights stay the same cannot be told from the source"
    written = draft.code(kept.name)
    if full_name(draft, call.func) == "random.choices":
        weight = argument(call, "weights")
        if weight is None:
            return "which argument has the weights cannot be told from the source"
        sums = _sums_name(draft, kept, "cum_weights")
        made = f"list({ensure_name(draft, 'itertools.accumulate')}({written}))"
        draft.insert_after(kept.last, f"{sums} = {made}")
        draft.change(weight, lambda node: _renamed(cst.ensure_type(node, cst.Arg), sums))
        return ""
    uniform = _uniform(draft, call)
    if not uniform or not {*map(_keyword, call.args)} <= {"", "a", "size", "replace", "p"}:
        return "which generator draws cannot be told from the source"
    population, size = argument(call, "a", _CHOICE), argument(call, "size", _CHOICE)
    if population is None or not is_count(draft, population.value):
        return "what is drawn from may be more than numbers from 0 on"
    sums = _sums_name(draft, kept, "cdf")
    numpy = ensure_name(draft, "numpy")
    # Of a tensor, cumsum() would give a tensor.
    array = written if _of_numpy(draft, kept) else f"{numpy}.asarray({written})"
    made = f"{sums} = {numpy}.cumsum({array}, dtype=float)"
    draft.insert_after(kept.last, made, f"{sums} /= {sums}[-1]")
    one = size is None or m.matches(size.value, m.Name("None"))
    drawn = f'{sums}.searchsorted({uniform}({"" if size is None or one else draft.code(size.value)}), side="right")'
    draft.replace(call, f"int({drawn})" if one else drawn)
    return ""


def _keyword(arg: cst.Arg) -> str:
    return arg.keyword.value if arg.keyword is not None else ""


def _given(call: cst.Call) -> cst.BaseExpression | None:
    """The weights of a draw with replacement."""
    name = last_part(call.func)
    if name == "choices":
        found = argument(call, "weights")
    elif name == "choice":
        again = argument(call, "replace", (*_CHOICE, "replace"))
        found = argument(call, "p") if again is None or m.matches(again.value, m.Name("True")) else None
    else:
        return None
    return found.value if found is not None else None


def _renamed(arg: cst.Arg, sums: str) -> cst.Arg:
    return arg.with_changes(keyword=cst.Name("cum_weights"), value=cst.parse_expression(sums))


def _sums_name(draft: Draft, kept: _Kept, wanted: str) -> str:
    names = {each.attr.value for each in draft.nodes(cst.Attribute)}
    name = fresh_name(draft, wanted, names)
    return f"self.{name}" if isinstance(kept.name, cst.Attribute) else name


def _uniform(draft: Draft, call: cst.Call) -> str:
    """How the generator whose ``choice`` that is draws uniform numbers; "" where it may be another kind."""
    if not isinstance(call.func, cst.Attribute):
        return ""
    whose = call.func.value
    if full_name(draft, whose) == "numpy.random":
        return f"{draft.code(whose)}.{_UNIFORM['numpy.random']}"
    made = _only_value(draft, whose)
    method = _UNIFORM.get(full_name(draft, made.func), "") if isinstance(made, cst.Call) else ""
    return f"{draft.code(whose)}.{method}" if method else ""


def is_count(draft: Draft, node: cst.BaseExpression, depth: int = 2) -> bool:
    """Whether that is a number, or ``arange`` of one: what is drawn are then numbers from 0 on."""
    if isinstance(node, cst.Integer):
        return True
    if isinstance(node, cst.Call) and len(node.args) == 1 and not node.args[0].star:
        if m.matches(node.func, m.Name("len")) or m.matches(node.func, m.Name("int")):
            return True
        return full_name(draft, node.func) == "numpy.arange" and is_count(draft, node.args[0].value, depth)
    if isinstance(node, cst.Subscript) and last_part(node.value) == "shape":
        return True
    value = _only_value(draft, node) if depth and isinstance(node, (cst.Name, cst.Attribute)) else None
    return value is not None and is_count(draft, value, depth - 1)


def _only_value(draft: Draft, node: cst.BaseExpression) -> cst.BaseExpression | None:
    """The one value of a name of the module's, or of ``self.name`` in its class; None where there may be another."""
    if isinstance(node, cst.Attribute) and (name := own_attribute(node)):
        targets = [each for each in draft.nodes(cst.Attribute) if each.attr.value == name and is_target(draft, each)]
        above = draft.parent(targets[0]) if len(targets) == 1 and own_attribute(targets[0]) else None
        assign = draft.parent(above) if isinstance(above, cst.AssignTarget) else None
        same = bool(targets) and draft.enclosing_class(targets[0]) is draft.enclosing_class(node)
        return assign.value if same and isinstance(assign, cst.Assign) else None
    if not isinstance(node, cst.Name) or not _is_global(draft, node):
        return None
    values = list(assignments(draft, node.value, draft.module, elements=True))
    return values[0] if len(values) == 1 else None


def _is_global(draft: Draft, node: cst.Name) -> bool:
    """Whether a name is the module's: no function around it binds it, and none changes the module's."""
    scope = scope_of(draft, node)
    while scope is not draft.module:
        own = not isinstance(scope, cst.ClassDef) and any(True for _ in assignments(draft, node.value, scope))
        if own or is_parameter(scope, node.value):
            return False
        scope = scope_of(draft, scope)
    return not is_bound_elsewhere(draft, node.value)


def _kept(drafts: Drafts, draft: Draft, weights: cst.Name | cst.Attribute) -> _Kept | None:
    """The weights, where they are computed at one place and nothing may change them later; else None."""
    if _used_elsewhere(drafts, draft, last_part(weights)) or not _only_read(draft, weights):
        return None
    if isinstance(weights, cst.Name):
        if not _is_global(draft, weights):
            return None
        user = next((each for each in draft.module.body if each in (weights, *draft.ancestors(weights))), None)
        targets = [each for each in _targets(draft, weights) if scope_of(draft, each) is draft.module]
        last = _last(draft, targets, draft.module)
        before = last is not None and user is not None and draft.line(last) < draft.line(user)
        return _Kept(weights, last) if last is not None and before else None
    holder = draft.enclosing_class(weights)
    targets = _targets(draft, weights)
    inside = [each for each in targets if own_attribute(each) and draft.enclosing_class(each) is holder]
    function = draft.function(inside[0]) if inside else None
    if not own_attribute(weights) or len(inside) < len(targets) or function is None:
        return None
    begins = function.name.value == "__init__" and isinstance(function.body, cst.IndentedBlock)
    last = _last(draft, inside, function.body) if begins else None
    return _Kept(weights, last) if last is not None else None


def _of_numpy(draft: Draft, kept: _Kept) -> bool:
    """Whether the weights are an array or a list, by what they are assigned."""
    given = [draft.parent(above) for each in _targets(draft, kept.name) if (above := draft.parent(each)) is not None]
    values = [each.value for each in given if isinstance(each, cst.Assign)]
    called = [full_name(draft, call.func).partition(".")[0] for each in values for call in draft.nodes(cst.Call, each)]
    return "torch" not in called and ("numpy" in called or all(isinstance(each, cst.List) for each in values))


def _used_elsewhere(drafts: Drafts, draft: Draft, name: str) -> bool:
    """Whether another file of the script's knows of something by that name, and may change it."""
    try:
        for other in with_word(drafts, draft, name):
            if other is draft:
                continue
            asks = any(each.attr.value == name for each in other.nodes(cst.Attribute))
            if asks or any(last_part(each.name) == name for each in other.nodes(cst.ImportAlias)):
                return True
    except TooManyFilesError:
        return True
    return False


def _named(draft: Draft, weights: cst.Name | cst.Attribute) -> list[cst.Name | cst.Attribute]:
    """Where the file has a variable, or an attribute, of that name."""
    if isinstance(weights, cst.Name):
        return [*variables(draft, weights.value)]
    return [each for each in draft.nodes(cst.Attribute) if each.attr.value == weights.attr.value]


def _targets(draft: Draft, weights: cst.Name | cst.Attribute) -> list[cst.Name | cst.Attribute]:
    return [each for each in _named(draft, weights) if is_target(draft, each)]


def _last(draft: Draft, targets: list[cst.Name | cst.Attribute], block: cst.CSTNode) -> Statement | None:
    """The last statement of a block that gives them a value; None where one is in a branch or a loop of it.

    The first is a plain assignment of what is computed there: what somebody else made may be changed by them.
    """
    last: Statement | None = None
    for target in targets:
        line = next((each for each in draft.ancestors(target) if isinstance(each, cst.SimpleStatementLine)), None)
        above = draft.parent(target)
        assign = draft.parent(above) if isinstance(above, cst.AssignTarget) else above
        if line is None or draft.parent(line) is not block or not isinstance(assign, (cst.Assign, cst.AugAssign)):
            return None
        if isinstance(assign, cst.Assign) and (len(assign.targets) > 1 or _is_of_others(assign.value)):
            return None
        last = line
    return last


def _is_of_others(value: cst.BaseExpression) -> bool:
    """Whether a value may be somebody else's, who may change what stands in it."""
    given = isinstance(value, cst.Call) and last_part(value.func) in _GIVE_WHAT_THEY_GET
    return given or isinstance(value, (cst.Name, cst.Attribute, cst.Subscript))


def _only_read(draft: Draft, weights: cst.Name | cst.Attribute) -> bool:
    """Whether nothing in the file may change what stands in the weights, but for assignments to their name."""
    for node in _named(draft, weights):
        above = draft.parent(node)
        if is_target(draft, node) or isinstance(above, cst.BinaryOperation):
            continue
        if isinstance(above, cst.Subscript):
            if is_target(draft, above) or above.value is not node or not isinstance(draft.parent(above), _PLAIN):
                return False
        elif isinstance(above, cst.Attribute):
            if above.attr.value in _CHANGES or is_in_place(above.attr.value) or above.attr.value in _VIEWS:
                return False
        elif isinstance(above, cst.Arg):
            call = draft.parent(above)
            if _keyword(above) == "out" or not isinstance(call, cst.Call) or not _leaves(draft, call):
                return False
        else:
            return False  # by another name it may be changed
    return True


def _leaves(draft: Draft, call: cst.Call) -> bool:
    """Whether a call leaves what it is given as it is."""
    return full_name(draft, call.func) in _READS or last_part(call.func) in ("choice", "choices")
