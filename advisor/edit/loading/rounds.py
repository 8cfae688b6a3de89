"""After how many batches the weights are updated: where a script's own loop counts them, to have it count others."""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterator, Sequence

import libcst as cst
import libcst.matchers as m

from advisor.edit.draft import Draft, Drafts
from advisor.edit.loading.batches import read_within, readers
from advisor.edit.names import last_part
from advisor.edit.origins.origin import origin_of
from advisor.edit.origins.values import bound_to
from advisor.edit.scopes import assignments, is_literal, literal_equals, scope_of

_ACCUMULATES = re.compile(r"accum|micro", re.IGNORECASE)
_OTHERS = re.compile(r"sched|warm|prof|bar\b", re.IGNORECASE)  # what is told to step, and is no optimizer
_COMPUTED = "computed"
_EVALUATES = re.compile(r"no_grad|inference_mode|\.eval\(")
_SUMS = re.compile(r"""reduction\s*=\s*["']sum["']|size_average\s*=\s*False""")


def counted_at(
    drafts: Drafts, draft: Draft, line: int, rounds: int, batch: Collection[str]
) -> tuple[tuple[cst.BaseExpression, ...] | None, str]:
    """The expressions that have to be another number, for weights to be updated after as many batches; or None and why.

    They are what the number of the batch is divided by to see that it is the last, and what the loss of the
    ``backward`` on `line` is divided by, each of them `rounds` now, once for each place that they have it from. None of
    them where that is computed from the batch size, which is called one of `batch`.
    """
    backwards = [each for each in draft.nodes(cst.Call) if draft.line(each) == line]
    within = scope_of(draft, backwards[0]) if backwards else draft.module
    loop = draft.loop(backwards[0]) if backwards else None
    counts = list(_conditions(draft, loop or within)) or ([] if loop else list(_conditions(draft, draft.module)))
    if not counts:
        return None, "where the script counts them cannot be told from the source"
    found: dict[Hashable, cst.BaseExpression] = {}
    for node, twice in counts:
        key = _key(drafts, draft, node, rounds, batch)
        if key is not None and twice:
            return None, f"the number stands twice on line {draft.line(node)}"
        if key is not None:
            found.setdefault(key, node)
    divisors = [
        node for node in _divisors(draft, within, backwards) if _key(drafts, draft, node, rounds, batch) is not None
    ]
    if not found or not divisors:
        return None, "where the script counts them cannot be told from the source"
    if loop is not None and (ends := _ends_by_count(draft, loop)):
        return None, f"line {ends} ends the loop by its number of batches, which would be of more samples"
    if _SUMS.search(_trained_by(draft)):
        return None, "a loss is a sum over the batch, which of a larger one is larger"
    for node in divisors:
        found.setdefault(_key(drafts, draft, node, rounds, batch), node)
    if left := _left_alone(draft, loop or within, rounds, [*(node for node, _ in counts), *divisors]):
        return None, left
    for node in found.values():
        if why := _makes(drafts, draft, node, rounds):
            return None, why
    return tuple(node for key, node in found.items() if key != _COMPUTED), ""


def _trained_by(draft: Draft) -> str:
    """The text of the file without functions that evaluate: what they compute goes back nowhere."""
    lines = [*draft.lines]
    for function in draft.nodes(cst.FunctionDef):
        code, where = draft.code(function), draft.position(function)
        if _EVALUATES.search(code) and "backward(" not in code:
            lines[where.start.line - 1 : where.end.line] = [""] * (where.end.line - where.start.line + 1)
    return "\n".join(lines)


def _ends_by_count(draft: Draft, loop: cst.For | cst.While) -> int | None:
    """The line where a loop is left after so many batches, if it is."""
    counted = isinstance(loop, cst.For) and m.matches(loop.iter, m.Call(m.Name("enumerate")))
    if not counted or not isinstance(loop, cst.For) or not isinstance(loop.target, cst.Tuple):
        return None
    counter = draft.code(loop.target.elements[0].value)
    for condition in draft.nodes(cst.If, loop):
        reads = any(each.value == counter for each in draft.nodes(cst.Name, condition.test))
        if reads and draft.nodes(cst.Break, condition.body):
            return draft.line(condition)
    return None


def _left_alone(draft: Draft, around: cst.CSTNode, rounds: int, known: Sequence[cst.BaseExpression]) -> str:
    """Where else a number is compared, or divided by, that may be the same count, in a clause; "" for nowhere."""
    compared: list[cst.BaseExpression] = [each.comparator for each in draft.nodes(cst.ComparisonTarget, around)]
    compared += [each.right for each in draft.nodes(cst.BinaryOperation, around) if _is(each, cst.Modulo)]
    for each in compared:
        if each not in known and any(literal_equals(each, number) for number in (rounds, rounds - 1)):
            return f"line {draft.line(each)} has such a number, too, which may mean the same"
    return ""


def _makes(drafts: Drafts, draft: Draft, node: cst.BaseExpression, rounds: int) -> str:
    """What is constructed with the number, too, in a clause: a model so wide, say; empty where nothing is seen."""
    origin = origin_of(drafts, draft, node, rounds)
    if origin is None or origin.option or origin.node is node or origin.draft is not draft:
        return ""
    name = bound_to(draft, origin.node)
    for each, called in readers(draft, name, read_within(draft, origin.node)):
        if called.rpartition(".")[2][:1].isupper():
            return f"line {draft.line(each)} reads {name}, too, for something else"
    return ""


def _conditions(draft: Draft, around: cst.CSTNode) -> Iterator[tuple[cst.BaseExpression, bool]]:
    """What counts are divided by, or compared with, for an update: each with whether it stands in more than one place.

    ``i % 8 == 7`` says it twice, and so may ``i % n == 7``.
    """
    for condition in draft.nodes(cst.If, around):
        if not _updates(draft, condition.body) and not _skips(condition.body):
            continue
        tests: list[cst.BaseExpression] = [condition.test]
        for name in draft.nodes(cst.Name, condition.test):
            given = assignments(draft, name.value, scope_of(draft, condition))
            tests += [each for each in given if each is not None and not is_literal(each)]
        for test in tests:
            remainders = [each for each in draft.nodes(cst.BinaryOperation, test) if _is(each, cst.Modulo)]
            for remainder in remainders:
                above = draft.parent(remainder)
                compared = [each.comparator for each in above.comparisons] if isinstance(above, cst.Comparison) else []
                literal = is_literal(remainder.right)
                yield (
                    remainder.right,
                    any(not literal_equals(each, 0) and (literal or is_literal(each)) for each in compared),
                )
            if not remainders and test is condition.test:
                for each in draft.nodes(cst.ComparisonTarget, test):
                    if isinstance(each.operator, (cst.Equal, cst.GreaterThanEqual)):
                        yield each.comparator, False


def _updates(draft: Draft, body: cst.BaseSuite) -> bool:
    """Whether an optimizer, or a scaler for one, is told something there: no schedule alone, and no profiler."""
    called = [each.func for each in draft.nodes(cst.Call, body) if isinstance(each.func, cst.Attribute)]
    return any(
        each.attr.value == "zero_grad" or (each.attr.value == "step" and not _OTHERS.search(draft.code(each.value)))
        for each in called
    )


def _skips(body: cst.BaseSuite) -> bool:
    last = body.body[-1] if body.body else None
    return isinstance(last, cst.SimpleStatementLine) and isinstance(last.body[-1], cst.Continue)


def _divisors(draft: Draft, within: cst.CSTNode, backwards: Sequence[cst.Call]) -> Iterator[cst.BaseExpression]:
    """What the loss is divided by: in the call of ``backward``, or where what that is given was assigned."""
    calls = [each for each in backwards if last_part(each.func).endswith("backward")]
    read = {name.value for call in calls for name in draft.nodes(cst.Name, call)}
    given = [arg.value for call in calls for arg in call.args]
    given += [call.func.value for call in calls if isinstance(call.func, cst.Attribute)]
    given += [arg.value for each in given if isinstance(each, cst.Call) for arg in each.args]  # scaler.scale(loss)
    for assign in draft.nodes(cst.Assign, within):
        if read.intersection(last_part(each.target) for each in assign.targets):
            given.append(assign.value)
    for each in given:
        if isinstance(each, cst.BinaryOperation) and _is(each, cst.Divide):
            yield each.right
    for statement in draft.nodes(cst.AugAssign, within):
        if isinstance(statement.operator, cst.DivideAssign) and last_part(statement.target) in read:
            yield statement.value


def _is(node: cst.BinaryOperation, operator: type[cst.BaseBinaryOp]) -> bool:
    return isinstance(node.operator, operator)


def _key(
    drafts: Drafts, draft: Draft, node: cst.BaseExpression, rounds: int, batch: Collection[str]
) -> Hashable | None:
    """What says that `node` is `rounds`: equal for all that have it from one place. None where it is something else."""
    origin = origin_of(drafts, draft, node, rounds)
    if origin is not None and origin.option:
        return origin.option if _ACCUMULATES.search(origin.option) else None
    if origin is not None and origin.says(rounds):
        return id(origin.node)
    computed = _computed(draft, node)
    if computed is not None and any(each.value in batch for each in draft.nodes(cst.Name, computed.right)):
        return _COMPUTED
    # A setting of a file, which is known when it is to be changed.
    return draft.code(node) if origin is None and _ACCUMULATES.search(draft.code(node)) else None


def _computed(draft: Draft, node: cst.BaseExpression) -> cst.BinaryOperation | None:
    """The division that a name is the result of, or an attribute, as far as its file assigns it once."""
    name = last_part(node)
    values = [
        each.value
        for each in draft.nodes(cst.Assign)
        if len(each.targets) == 1 and last_part(each.targets[0].target) == name
    ]
    if len(values) != 1 or not name:
        return None
    parts = [each for each in draft.nodes(cst.BinaryOperation, values[0]) if _is(each, cst.FloorDivide)]
    return parts[0] if len(parts) == 1 else None
