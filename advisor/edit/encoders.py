"""``nn.TransformerEncoder`` fed with batches first: the transpositions around its call go."""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m
from libcst.helpers import get_full_name_for_node

from advisor.edit.draft import Draft
from advisor.edit.origin import assignments, scope_of

_SWAPS = (m.Arg(m.Integer("0")), m.Arg(m.Integer("1")))
_TRANSPOSE = m.Attribute(attr=m.OneOf(m.Name("transpose"), m.Name("swapaxes")))
_SWAPPED = m.OneOf(
    m.Call(func=_TRANSPOSE, args=[*_SWAPS]),
    m.Call(func=_TRANSPOSE, args=[*reversed(_SWAPS)]),
    m.Call(func=m.Attribute(attr=m.Name("permute")), args=[m.Arg(m.Integer(n)) for n in "102"]),
)
_FIRST_OR_LAST = m.OneOf(m.Integer(), m.UnaryOperation(operator=m.Minus(), expression=m.Integer()))
_ONE_TOKEN = m.Subscript(slice=[m.SubscriptElement(m.Index(value=_FIRST_OR_LAST))])
_ALL_TOKENS = m.Attribute(attr=m.OneOf(*map(m.Name, ("mean", "sum", "max", "amax", "min", "amin", "logsumexp"))))


def calls_of(draft: Draft, made: cst.Call) -> list[cst.Call]:
    """Where the module made by `made` is called, by the name that it is given: ``self.encoder(…)``."""
    statement = draft.statement(made)
    if not isinstance(statement, cst.SimpleStatementLine) or not isinstance(statement.body[0], cst.Assign):
        return []
    assign = statement.body[0]
    if assign.value is not made or len(assign.targets) != 1:
        return []
    name = get_full_name_for_node(assign.targets[0].target)
    holder = draft.enclosing_class(made) if name and name.startswith("self.") else draft.module
    found = draft.nodes(cst.Call, holder)
    return [each for each in found if name and get_full_name_for_node(each.func) == name]


def batch_first(draft: Draft, call: cst.Call) -> str:
    """Have the encoder's call take batches first, and what follows take its result so; why not, where unclear."""
    given = call.args[0] if call.args else None
    if given is None or given.keyword is not None or not m.matches(given.value, _SWAPPED):
        return "what the encoder is called with is not transposed right there"
    uses = _uses(draft, call)
    if uses is None:
        return "its result goes on in a way that the source does not tell"
    for use in uses:
        above = draft.parent(use)
        method = draft.parent(above) if above is not None else None
        if isinstance(above, cst.Subscript) and above.value is use and m.matches(above, _ONE_TOKEN):
            index = above.slice[0]
            every = cst.SubscriptElement(
                cst.Slice(lower=None, upper=None), cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
            )
            draft.change(above, lambda node, new=(every, index): node.with_changes(slice=new))  # type: ignore[misc]
        elif isinstance(above, cst.Attribute) and method is not None and m.matches(method, _SWAPPED):
            draft.change(method, _without_method)
        else:
            return "its result is used in another way than by one token, or transposed back"
    inner = given.value
    draft.change(inner, _without_method)
    return ""


def takes_all_tokens(draft: Draft, call: cst.Call) -> bool:
    """Whether the result is reduced over all tokens as it is: the padded ones, which become zeros, would count."""
    uses = _uses(draft, call)
    if uses is None:
        return False
    for use in uses:
        above = draft.parent(use)
        if above is not None and m.matches(above, _ALL_TOKENS):
            return True
    return False


def _without_method(node: cst.CSTNode) -> cst.CSTNode:
    """``x.transpose(0, 1)`` → ``x``."""
    return cst.ensure_type(cst.ensure_type(node, cst.Call).func, cst.Attribute).value


def _uses(draft: Draft, call: cst.Call) -> list[cst.BaseExpression] | None:
    """The call itself, or each use of the one name that it is given in its function; None where that is not clear."""
    above = draft.parent(call)
    if not isinstance(above, cst.Assign):
        return [call]
    target = above.targets[0].target
    scope = scope_of(draft, call)
    if len(above.targets) != 1 or not isinstance(target, cst.Name):
        return None
    if len(list(assignments(draft, target.value, scope))) != 1:
        return None
    return [each for each in draft.nodes(cst.Name, scope) if each.value == target.value and each is not target]
