"""Tensors that are made on the CPU only to be moved: ``torch.zeros(n).cuda()`` → ``torch.zeros(n, device="cuda")``."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m

from advisor.edit.calls import add_argument, argument, unpacked
from advisor.edit.draft import Draft, Drafts
from advisor.edit.locate import call_at
from advisor.edit.names import full_name, last_part
from advisor.edit.regions import bound_names
from advisor.edit.scopes import scope_of
from advisor.errors import AdvisorError
from advisor.harness.layout import Site

# Functions of torch that make a tensor out of nothing but sizes and numbers, and take `device`.
_LIKE = {"zeros_like", "ones_like", "full_like", "empty_like"}  # of a tensor on the CPU, whose sizes alone matter
PLAIN = frozenset({"zeros", "ones", "full", "empty", "eye", "arange", "tril_indices", "triu_indices"} | _LIKE)
RANDOM = frozenset(("rand", "randn", "randint", "randperm", "rand_like", "randn_like"))
# What may stand between the factory and the move: on the GPU it does the same, and takes no other tensor.
_SHAPES = {"unsqueeze", "squeeze", "view", "reshape", "expand", "repeat", "flatten", "t", "transpose", "permute"}
_TYPES = {"float", "double", "half", "bfloat16", "long", "int", "bool"}
_METHODS = frozenset(_SHAPES | _TYPES | {"contiguous", "clone", "tril", "triu", "mul", "add", "sub", "div"})
_DRAWS = frozenset(("uniform_", "normal_", "bernoulli_", "exponential_", "random_"))
_AROUND = frozenset(("torch.tril", "torch.triu"))
_NOT_ALONE = ("device", "out", "generator", "requires_grad", "pin_memory", "layout")

# ``torch.rand(n) > 0.5``, ``torch.rand(n) * 2 - 1``
_NUMBER = m.Integer() | m.Float()
_WITH_NUMBER = m.Comparison(comparisons=[m.ComparisonTarget(comparator=_NUMBER)]) | m.BinaryOperation(right=_NUMBER)

_DEVICE = re.compile(r"(?i)(^|_)(device|dev)s?$|(^|_)(rank|gpu)$")


@dataclass(frozen=True)
class Born:
    """``factory``: the call that makes the tensor; ``name``: of torch's function; ``random``: numbers are drawn."""

    factory: cst.Call
    name: str
    random: bool
    assigned: cst.CSTNode | None = None  # the statement that the tensor comes from, where it is an earlier one


def makes_in_forward(draft: Draft, makers: Collection[str], keyword: str, unless: Collection[str] = ()) -> bool:
    """Whether a method of a module in this file, its constructor aside, or a function of the file that one calls, calls
    one of `makers` without that keyword.

    A method of `unless` behind the call (``torch.zeros(3).type_as(x)``) does as well as the keyword.
    """
    for method in module_code(draft):
        for call in draft.nodes(cst.Call, method):
            named = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
            behind = draft.parent(call)
            said = isinstance(behind, cst.Attribute) and behind.attr.value in unless
            if named in makers and argument(call, keyword) is None and not said:
                return True
    return False


def module_code(draft: Draft) -> list[cst.FunctionDef]:
    """The methods of modules in this file, constructors aside, and the functions of the file that they call."""
    methods = _module_methods(draft)
    functions = {each.name.value: each for each in draft.module.body if isinstance(each, cst.FunctionDef)}
    found = [*methods]
    for function in found:  # which grows meanwhile
        called = {last_part(call.func) for call in draft.nodes(cst.Call, function)}
        found += [functions.pop(name) for name in sorted(functions.keys() & called)]
    return found


def _module_methods(draft: Draft) -> list[cst.FunctionDef]:
    found: list[cst.FunctionDef] = []
    for module in draft.nodes(cst.ClassDef):
        methods = [each for each in module.body.body if isinstance(each, cst.FunctionDef)]
        if any(each.name.value == "forward" for each in methods):
            found += [each for each in methods if each.name.value != "__init__"]
    return found


def born(draft: Draft, move: cst.Call) -> Born | None:
    """What makes the tensor that `move` (``….to(…)``, ``….cuda(…)``) takes to the GPU; None where it is no factory."""
    if not isinstance(move.func, cst.Attribute):
        return None
    receiver = move.func.value
    if isinstance(receiver, cst.Name):
        made = _assigned_before(draft, move, receiver.value)
        return _made(draft, made[1], made[0]) if made is not None else None
    return _made(draft, receiver, None)


def born_at(drafts: Drafts, site: Site) -> Born | None:
    """What makes the tensor that is moved at a recorded place, as far as the source on disk tells."""
    if not drafts.sources.editable(site.file):
        return None
    try:
        draft = drafts[site.file]
    except AdvisorError:
        return None
    move = call_at(draft, site, ("to", "cuda"))
    return born(draft, move) if move is not None else None


def make_there(draft: Draft, move: cst.Call, made: Born) -> bool:
    """Have the factory make the tensor where `move` takes it; False, with nothing changed, where it is not certain."""
    device = _device_of(draft, move)
    if device is None or _bound_between(draft, made, move):
        return False
    add_argument(draft, made.factory, "device", device)
    if not _only_moves(move) or move.lpar:
        return True  # it changes the type, too: on the GPU
    statement = draft.statement(move)
    again = made.assigned is not None and m.matches(
        statement or move, m.SimpleStatementLine([m.Assign([m.AssignTarget(m.Name())], m.Call())])
    )
    if again and statement is not None:
        assign = cst.ensure_type(cst.ensure_type(statement, cst.SimpleStatementLine).body[0], cst.Assign)
        target = cst.ensure_type(assign.targets[0].target, cst.Name).value
        if assign.value is move and m.matches(move.func, m.Attribute(value=m.Name(target))):
            draft.remove(statement)  # mask = mask.cuda()
            return True
    draft.change(move, lambda updated: cst.ensure_type(cst.ensure_type(updated, cst.Call).func, cst.Attribute).value)
    return True


def _made(draft: Draft, node: cst.BaseExpression, assigned: cst.CSTNode | None) -> Born | None:
    draws = False
    while True:
        if isinstance(node, cst.Subscript):
            if not all(_keeps_all(each) for each in node.slice):
                return None
            node = node.value
            continue
        if m.matches(node, _WITH_NUMBER):
            node = node.left  # type: ignore[attr-defined]
            continue
        if not isinstance(node, cst.Call):
            return None
        name = full_name(draft, node.func)
        if name.startswith("torch.") and name[6:] in PLAIN | RANDOM:
            if unpacked(node) or any(argument(node, each) is not None for each in _NOT_ALONE):
                return None
            return Born(node, name[6:], draws or name[6:] in RANDOM, assigned)
        if name in _AROUND and node.args:
            node = node.args[0].value
            continue
        if not isinstance(node.func, cst.Attribute) or node.func.attr.value not in _METHODS | _DRAWS:
            return None
        if not all(_is_number(draft, each) for each in node.args):
            return None
        draws = draws or node.func.attr.value in _DRAWS
        node = node.func.value


def _is_number(draft: Draft, arg: cst.Arg) -> bool:
    """Sizes, numbers and types: what cannot be another tensor, which would have to be on the GPU, too."""
    numbers = _NUMBER | m.UnaryOperation(expression=_NUMBER) | m.SimpleString() | m.Tuple()
    named = m.matches(arg.value, m.Name() | m.Attribute()) and full_name(draft, arg.value).startswith("torch.")
    if m.matches(arg.value, numbers) or named:
        return True
    shape = m.Subscript(value=m.Attribute(attr=m.Name("shape")))
    sized = m.Call(func=m.Name("len")) | m.Call(func=m.Attribute(attr=m.Name("size"))) | shape
    above = draft.parent(arg)
    takes_sizes = m.matches(
        above or arg,
        m.Call(func=m.Attribute(attr=m.Name("view") | m.Name("reshape") | m.Name("expand") | m.Name("repeat"))),
    )
    return m.matches(arg.value, sized) or takes_sizes


def _keeps_all(element: cst.SubscriptElement) -> bool:
    """``None``, ``:`` and ``...`` in a subscript."""
    whole = m.Slice(lower=None, upper=None, step=None) | m.Index(m.Name("None")) | m.Index(m.Ellipsis())
    return m.matches(element.slice, whole)


def _assigned_before(draft: Draft, move: cst.Call, name: str) -> tuple[cst.CSTNode, cst.BaseExpression] | None:
    """(statement, value) of the assignment to `name` that `move` sees, in its own block and with no use between.

    None where the tensor on the CPU is used for anything else: by another name, or once more.
    """
    statement = draft.statement(move)
    if statement is None:
        return None
    siblings = draft.siblings(statement)
    uses = sum(each.value == name for each in draft.nodes(cst.Name, statement))
    rebound = m.matches(statement, m.SimpleStatementLine([m.Assign([m.AssignTarget(m.Name(name))])]))
    if not rebound:
        scope = scope_of(draft, move)
        elsewhere = sum(each.value == name and scope_of(draft, each) is scope for each in draft.nodes(cst.Name, scope))
        if uses > 1 or elsewhere > 2:
            return None
    before = siblings[: next(index for index, each in enumerate(siblings) if each is statement)]
    for each in reversed(before):
        names = [node.value for node in draft.nodes(cst.Name, each)]
        if name not in names:
            continue
        alone = m.SimpleStatementLine([m.Assign([m.AssignTarget(m.Name(name))])])
        if not m.matches(each, alone) or names.count(name) != 1 or uses > 2:
            return None
        return each, cst.ensure_type(cst.ensure_type(each, cst.SimpleStatementLine).body[0], cst.Assign).value
    return None


def _bound_between(draft: Draft, made: Born, move: cst.Call) -> bool:
    """Whether a name of the device is bound after the factory's statement: it would not be known there yet."""
    statement = draft.statement(move)
    if made.assigned is None or statement is None:
        return False
    siblings = draft.siblings(statement)
    places = [index for index, each in enumerate(siblings) if each is made.assigned or each is statement]
    between = siblings[places[0] + 1 : places[-1]]
    used = {name.value for arg in move.args for name in draft.nodes(cst.Name, arg.value)}
    return any(used & bound_names(draft, each) or draft.nodes(cst.Import, each) for each in between)


def _device_of(draft: Draft, move: cst.Call) -> str | None:
    """The device that `move` names, as code; None where that may be a tensor, a type, or nothing."""
    method = cst.ensure_type(move.func, cst.Attribute).attr.value
    if any(each.star for each in move.args):
        return None
    given = argument(move, "device", ("device",))
    if method == "cuda":
        if given is None:
            return '"cuda"'
        return draft.code(given.value) if m.matches(given.value, m.Integer() | m.SimpleString()) else None
    if given is None:
        return None
    last = given.value.attr.value if isinstance(given.value, cst.Attribute) else draft.code(given.value)
    written_out = m.matches(given.value, m.SimpleString()) or full_name(draft, given.value).startswith("torch.device")
    made = isinstance(given.value, cst.Call) and full_name(draft, given.value.func) == "torch.device"
    named = m.matches(given.value, m.Name() | m.Attribute()) and _DEVICE.search(last)
    return draft.code(given.value) if written_out or made or named or given.keyword is not None else None


def _only_moves(move: cst.Call) -> bool:
    """Nothing but the device and `non_blocking` is passed."""
    rest = [each for each in move.args if each.keyword is None or each.keyword.value not in ("device", "non_blocking")]
    return len(rest) <= 1 and all(each.keyword is None for each in rest)
