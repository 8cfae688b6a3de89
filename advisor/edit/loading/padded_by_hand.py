"""Where a script pads sequences itself: to a length that it has from elsewhere, not from the batch."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst
import libcst.matchers as m

from advisor.edit.draft import Draft
from advisor.edit.names import last_part

_LENGTH = m.Call(m.Name("len"), [m.Arg()])
_MAKES = ("zeros", "full", "ones", "new_zeros", "new_full", "new_ones")
_PADS = ("pad", *_MAKES)


def padded_by_hand(draft: Draft) -> Iterator[cst.CSTNode]:
    """What fills a sequence up to a length that is not a maximum taken in the same function, in source order.

    ``while len(ids) < length: ids.append(0)``, ``ids + [0] * (length - len(ids))``, and ``F.pad(ids, (0, length -
    len(ids)))`` or ``zeros(length - len(ids))``, where ``ids.shape[0]`` and ``ids.size(0)`` are lengths, too; and
    ``batch = full((n, length), 0)`` whose rows get what they have room for: ``batch[i, :k] = ids``.
    """
    found = [
        *(loop for loop in draft.nodes(cst.While) if _fills_up(draft, loop)),
        *(term for term in draft.nodes(cst.BinaryOperation) if _repeats(draft, term)),
        *(call for call in draft.nodes(cst.Call) if last_part(call.func) in _PADS and _by_difference(draft, call)),
        *(call for call in draft.nodes(cst.Call) if last_part(call.func) in _MAKES and _gets_rows(draft, call)),
    ]
    yield from sorted(found, key=draft.line)


def _fills_up(draft: Draft, loop: cst.While) -> bool:
    """``while len(x) < length:``, in whose body x gets longer."""
    test = loop.test
    if not m.matches(test, m.Comparison(_LENGTH, [m.ComparisonTarget(m.LessThan())])):
        return False
    length = cst.ensure_type(test, cst.Comparison).comparisons[0].comparator
    grows = m.Call(m.Attribute(attr=m.Name("append") | m.Name("extend"))) | m.AugAssign(operator=m.AddAssign())
    return bool(m.findall(loop.body, grows)) and not _is_longest(draft, length, loop)


def _repeats(draft: Draft, term: cst.BinaryOperation) -> bool:
    """``[0] * (length - len(x))``"""
    if not isinstance(term.operator, cst.Multiply):
        return False
    sides = (term.left, term.right)
    return any(isinstance(side, (cst.List, cst.Tuple)) for side in sides) and any(
        _missing(draft, side) for side in sides
    )


def _by_difference(draft: Draft, call: cst.Call) -> bool:
    """``pad(x, (0, length - len(x)))``"""
    return any(_missing(draft, term) for arg in call.args for term in draft.nodes(cst.BinaryOperation, arg))


def _gets_rows(draft: Draft, call: cst.Call) -> bool:
    """``batch = full((n, length), 0)``, and later ``batch[i, :k] = …``."""
    sizes = _sizes(call)
    statement, function = draft.parent(call), draft.function(call)
    if len(sizes) != 2 or function is None or not isinstance(statement, cst.Assign):
        return False
    if _is_longest(draft, sizes[1], call):
        return False
    made = {draft.code(each.target) for each in statement.targets}
    targets = [each.target for given in draft.nodes(cst.Assign, function) for each in given.targets]
    return any(draft.code(each.value) in made for each in targets if isinstance(each, cst.Subscript) and _is_part(each))


def _is_part(node: cst.Subscript) -> bool:
    """``batch[i, :k]``"""
    if len(node.slice) != 2:
        return False
    row, columns = (each.slice for each in node.slice)
    return isinstance(row, cst.Index) and isinstance(columns, cst.Slice) and columns.upper is not None


def _sizes(call: cst.Call) -> list[cst.BaseExpression]:
    """The sizes of what a call makes: of ``zeros((n, k))`` and of ``zeros(n, k)``."""
    plain = [arg.value for arg in call.args if arg.keyword is None and not arg.star]
    if plain and isinstance(plain[0], (cst.Tuple, cst.List)):
        return [each.value for each in plain[0].elements]
    return plain


def _missing(draft: Draft, term: cst.CSTNode) -> bool:
    """``length - len(x)``: how much is missing, of a length that the function has not taken from the batch."""
    if not isinstance(term, cst.BinaryOperation) or not isinstance(term.operator, cst.Subtract):
        return False
    size = m.Call(m.Attribute(attr=m.Name("size"))) | m.Subscript(m.Attribute(attr=m.Name("shape")))
    return m.matches(term.right, _LENGTH | size) and not _is_longest(draft, term.left, term)


def _is_longest(draft: Draft, length: cst.BaseExpression, at: cst.CSTNode) -> bool:
    """Whether a length is a maximum, or a name that the function around gives one to."""
    if _takes_most(length):
        return True
    function = draft.function(at)
    if function is None or not isinstance(length, cst.Name):
        return False
    for given in draft.nodes(cst.Assign, function):
        targets = [target.target for target in given.targets]
        if any(m.matches(target, m.Name(length.value)) for target in targets) and _takes_most(given.value):
            return True
    return False


def _takes_most(value: cst.BaseExpression) -> bool:
    """Whether `value` has a maximum in it: ``max(len(x) for x in rows)``, ``lengths.max()``."""
    calls = [cst.ensure_type(call, cst.Call) for call in m.findall(value, m.Call())]
    return any(last_part(call.func) in ("max", "amax") for call in calls)
