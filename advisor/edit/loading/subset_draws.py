"""A few of many are drawn without putting all of them in a random order first.

``numpy.random.choice(n, k, replace=False)`` permutes all n and gives the first k (numpy/random/mtrand.pyx, ``choice``);
a ``Generator`` draws k of n by Floyd's algorithm, or exchanges only k (numpy/random/_generator.pyx, ``choice``): none
twice, each as likely as before. It is seeded by what drew before, NumPy's global generator or torch's, so what the
script seeds decides its draws still.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst
import libcst.matchers as m

from advisor.edit.calls import argument, has_starred, unpacked
from advisor.edit.draft import Draft
from advisor.edit.loading.weighted_draws import is_count
from advisor.edit.names import ensure_name, full_name
from advisor.edit.scopes import assigned_once, bound_behind, is_bound_elsewhere, is_target, scope_of, variables

_CHOICE = ("a", "size", "replace", "p")
_PERMUTED = {"torch.randperm": "n", "numpy.random.permutation": "x"}
_SEEDS = 2**31 - 1
_COUNTED = m.OneOf(
    m.Integer(), m.Name(), m.Attribute(), m.Call(func=m.Name("len"), args=[m.Arg()]),
    m.Call(func=m.Attribute(attr=m.Name("size")), args=[m.Arg(m.Integer())]),
    m.Call(func=m.Attribute(attr=m.Name("numel")), args=[]),
    m.Subscript(value=m.Attribute(attr=m.Name("shape")), slice=[m.SubscriptElement(m.Index(m.Integer()))]),
)  # fmt: skip


def drawn_as_few(draft: Draft, within: cst.CSTNode) -> str:
    """Have the one draw below `within` choose no more than it gives; why not, as a clause, or ""."""
    found = list(_draws(draft, within))
    if len(found) != 1:
        return "which call draws cannot be told from the source"
    call, count = found[0]
    if count is None:
        draft.replace(call.func, f"{_generator(draft, call.func)}.choice")
        return ""
    if not count:
        return "how many of the permutation are read cannot be told from the source"
    name = full_name(draft, call.func)
    many = argument(call, _PERMUTED[name], (_PERMUTED[name],))
    if many is None or not m.matches(many.value, _COUNTED) or _does_more(draft, many.value):
        return "of how many it draws cannot be told from the source"
    if name != "torch.randperm" and not is_count(draft, many.value):
        return "what is permuted may be an array"
    few, of = _few(draft, call, count, many.value), draft.code(many.value)
    above = draft.parent(call)
    drawn = above if isinstance(above, cst.Subscript) else call  # with the ``[:k]`` right behind it
    if name != "torch.randperm":
        draft.replace(drawn, f"{_generator(draft, call.func)}.choice({of}, {few}, replace=False)")
        return ""
    if "set_default_device" in draft.source.text:
        return "the permutation may be made on another device"
    given = {each.keyword.value: draft.code(each.value) for each in call.args if each.keyword is not None}
    if not given.keys() <= {"n", "generator", "device"} or len(call.args) > len(given) + ("n" not in given):
        return "how the permutation is made cannot be told from the source"
    module = draft.code(call.func).rpartition(".")[0]
    seeded = "".join(f", {each}={given[each]}" for each in ("generator", "device") if each in given)
    seeded = seeded if "generator" in given else ""  # which has to be one of that device
    seed = f"{module}.randint({_SEEDS}, (){seeded}).item()"
    numbers = f"{ensure_name(draft, 'numpy')}.random.default_rng({seed}).choice({of}, {few}, replace=False)"
    moved = f".to({given['device']})" if "device" in given else ""
    draft.replace(drawn, f"{module}.from_numpy({numbers}){moved}")
    return ""


def _few(draft: Draft, call: cst.Call, count: str, of: cst.BaseExpression) -> str:
    """How many ``x[:count]`` of so many are: all where the count is None, and what a negative one leaves."""
    every = draft.code(of)
    if count.isdecimal() and every.isdecimal():
        return str(min(int(count), int(every)))
    holder = scope_of(draft, call)
    scope = holder.body if isinstance(holder, (cst.FunctionDef, cst.Lambda)) else holder
    named: list[cst.BaseExpression] = [*draft.nodes(cst.Name, scope), *draft.nodes(cst.Attribute, scope)]
    reads = [each for each in named if draft.code(each) == count and not is_target(draft, each)]
    known = count.isdecimal() or any(is_count(draft, each) for each in reads)
    return f"min({count}, {every})" if known else f"len(range({every})[:{count}])"


def _does_more(draft: Draft, many: cst.BaseExpression) -> bool:
    """Whether an expression, which will be there twice, calls more than ``len()`` or a method of a name."""
    calls = [each for each in draft.nodes(cst.Call, many) if each is not many]
    return bool(calls or draft.nodes(cst.NamedExpr, many) or draft.nodes(cst.Await, many))


def _generator(draft: Draft, function: cst.BaseExpression) -> str:
    """A generator that the old one seeds; `function` is one of the old one's."""
    old = draft.code(function).rpartition(".")[0]
    return f"{old}.default_rng({old}.randint({_SEEDS}))"


def _draws(draft: Draft, within: cst.CSTNode) -> Iterator[tuple[cst.Call, str | None]]:
    """Calls that put all in order, and how many of it are read: "" where that is unknown, None where the call says."""
    for call in draft.nodes(cst.Call, within):
        name = full_name(draft, call.func)
        plain = isinstance(call.func, cst.Attribute) and not has_starred(call) and not unpacked(call)
        if name == "numpy.random.choice" and plain:
            again, weights = (argument(call, each, _CHOICE) for each in ("replace", "p"))
            if weights is None and again is not None and m.matches(again.value, m.Name("False")):
                yield call, None
        elif name in _PERMUTED:
            yield call, _read(draft, call) if plain else ""


def _read(draft: Draft, call: cst.Call) -> str:
    """How many of a permutation are read, as the source says it: ``k`` of ``randperm(n)[:k]``; "" where it does not."""
    above = draft.parent(call)
    if isinstance(above, cst.Subscript) and above.value is call:
        return _first(draft, above)
    if not isinstance(above, cst.Assign) or len(above.targets) != 1:
        return ""
    target, scope = above.targets[0].target, scope_of(draft, call)
    name = target.value if isinstance(target, cst.Name) else ""
    if not name or assigned_once(draft, name, scope) is not call or is_bound_elsewhere(draft, name):
        return ""
    reads = [each for each in variables(draft, name) if draft.parent(each) is not above.targets[0]]
    part = draft.parent(reads[0]) if len(reads) == 1 else None
    if not isinstance(part, cst.Subscript) or part.value is not reads[0] or scope_of(draft, part) is not scope:
        return ""
    # A name, or an attribute, has to have its value where the permutation is made.
    return _first(draft, part) if not any(bound_behind(draft, each, call) for each in part.slice) else ""


def _first(draft: Draft, part: cst.Subscript) -> str:
    """``k`` of ``x[:k]``, a number or a name; else ""."""
    slices = [each.slice for each in part.slice]
    if len(slices) != 1 or not isinstance(slices[0], cst.Slice):
        return ""
    lower, upper, step = slices[0].lower, slices[0].upper, slices[0].step
    if not (lower is None or m.matches(lower, m.Integer("0"))) or step is not None or upper is None:
        return ""
    return draft.code(upper) if m.matches(upper, m.OneOf(m.Integer(), m.Name(), m.Attribute())) else ""
