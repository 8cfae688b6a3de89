"""Where a value with a graph behind it is added to a sum or a list that outlives the step.

Followed through the text, from the call that made it: the names that it is given, arithmetic, losses computed from it,
and functions that return it, as far as the frames of the call go. What is cut from its graph on the way
(``.item()``, ``float()``, ``.argmax()``, a comparison) is followed no further.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m
from libcst.helpers import get_full_name_for_node

from advisor.edit.draft import Draft, Drafts
from advisor.edit.locate import call_at
from advisor.edit.names import full_name
from advisor.harness.layout import Site

_CUT_METHODS = frozenset(
    ["item", "detach", "tolist", "numpy", "argmax", "argmin", "sign", "backward", "size", "dim", "numel"]
)
_CUT_FUNCTIONS = frozenset(["float", "int", "len", "bool", "str", "print", "round", "repr"])
_CUT_ATTRIBUTES = frozenset(["data", "shape", "dtype", "device", "grad", "ndim"])
_TAKES_IN = frozenset(["append", "appendleft", "extend", "add", "insert", "put", "update"])
# What keeps the graph when it is called with something that has one: torch's own, and losses by what people call them.
_LOSS = re.compile(
    r"(^torch\.|^F\.|loss|crit|error|mse|nll|elbo|entropy|penalty|objective|sum$|mean$|stack$|cat$)", re.I
)


@dataclass(frozen=True)
class Accumulation:
    """``value`` is what ``statement`` adds; ``certain``: it is a tensor, whatever the functions on the way do."""

    draft: Draft
    statement: cst.SimpleStatementLine
    value: cst.BaseExpression
    certain: bool

    @property
    def line(self) -> int:
        return self.draft.line(self.statement.body[0])


def accumulation(drafts: Drafts, frames: Sequence[Site]) -> Accumulation | None:
    """The one place at which what the call at ``frames[0]`` returns is accumulated; None where that is not certain.

    `frames` are the calls around it, from the inside out.
    """
    for site in frames:
        draft = drafts[site.file]
        call = call_at(draft, site)
        if call is None:
            return None
        found, returned = _Flow(draft, call).follow()
        if len(found) == 1:
            return found[0]
        if found or not returned:
            return None
    return None


class _Flow:
    """What becomes of a call's result within its function."""

    def __init__(self, draft: Draft, call: cst.Call) -> None:
        self._draft = draft
        self._call = call
        self._names: dict[str, bool] = {}  # names that hold it; whether it is surely a tensor
        if m.matches(call.func, m.Attribute(value=m.Name(), attr=m.Name("backward"))):
            self._names[cst.ensure_type(cst.ensure_type(call.func, cst.Attribute).value, cst.Name).value] = True
        self._returned = False

    def follow(self) -> tuple[list[Accumulation], bool]:
        """Where it is accumulated, and whether the function returns it."""
        found: list[Accumulation] = []
        first = self._draft.line(self._call)
        scope = self._draft.function(self._call)
        for statement in self._draft.nodes(cst.SimpleStatementLine, scope):
            ends = self._draft.position(statement).end.line
            if ends < first or len(statement.body) != 1 or self._draft.function(statement) is not scope:
                continue
            one = self._statement(statement, statement.body[0])
            if one is not None:
                found.append(one)
        return found, self._returned

    def _statement(self, statement: cst.SimpleStatementLine, small: cst.BaseSmallStatement) -> Accumulation | None:
        if isinstance(small, cst.Return) and small.value is not None:
            self._returned = self._returned or bool(list(self._occurrences(small.value)))
        elif isinstance(small, cst.Assign):
            return self._assigned(statement, small)
        elif isinstance(small, cst.AugAssign) and isinstance(small.operator, cst.AddAssign):
            held = list(self._occurrences(small.value))
            if held and self._begun_in_loop(statement, small.target):
                self._hold(small.target, held)
            elif held:
                return self._taken(statement, small.value, held)
        elif isinstance(small, cst.Expr) and isinstance(small.value, cst.Call):
            call = small.value
            method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
            for arg in call.args if method in _TAKES_IN else ():
                held = list(self._occurrences(arg.value))
                if held and not self._begun_in_loop(statement, call.func):
                    return self._taken(statement, arg.value, held)
        return None

    def _assigned(self, statement: cst.SimpleStatementLine, small: cst.Assign) -> Accumulation | None:
        held = list(self._occurrences(small.value))
        if not held:
            return None
        target, value = small.targets[0].target, small.value
        if isinstance(target, cst.Subscript):
            return self._taken(statement, value, held)
        if isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.Add):
            sides = (value.left, value.right)
            for side, other in (sides, sides[::-1]):
                if side.deep_equals(target) and not self._begun_in_loop(statement, target):
                    return self._taken(statement, other, list(self._occurrences(other)))
        for each in small.targets:
            self._hold(each.target, held)
        return None

    def _hold(self, target: cst.BaseExpression, held: list[tuple[cst.BaseExpression, bool]]) -> None:
        elements = [each.value for each in target.elements] if isinstance(target, cst.Tuple) else [target]
        for element in elements:
            name = get_full_name_for_node(element)
            if name and isinstance(element, (cst.Name, cst.Attribute)):
                self._names[name] = len(elements) == 1 and all(certain for _, certain in held)

    def _taken(
        self, statement: cst.SimpleStatementLine, value: cst.BaseExpression, held: list[tuple[cst.BaseExpression, bool]]
    ) -> Accumulation | None:
        if not held:
            return None
        node, certain = held[0]
        displays = (cst.Tuple, cst.List, cst.Dict, cst.GeneratorExp, cst.ListComp)
        if not isinstance(node, cst.Name) and not isinstance(value, displays):
            node = value
        return Accumulation(self._draft, statement, node, certain and len(held) == 1)

    def _occurrences(self, value: cst.BaseExpression) -> Iterator[tuple[cst.BaseExpression, bool]]:
        """Each place in an expression that hands the graph on, and whether what the expression gives is a tensor."""
        todo: list[cst.CSTNode] = [value]
        while todo:
            node = todo.pop()
            name = get_full_name_for_node(node) if isinstance(node, (cst.Name, cst.Attribute)) else None
            if node is self._call or name in self._names:
                assert isinstance(node, cst.BaseExpression)
                certain = self._through(node, value)
                if certain is not None:
                    yield node, certain and (name is None or self._names[name])
            elif isinstance(node, (cst.Attribute, cst.Arg)):
                todo.append(node.value)
            else:
                todo.extend(reversed(node.children))

    def _through(self, node: cst.CSTNode, value: cst.CSTNode) -> bool | None:
        """Whether the graph surely gets from `node` to `value`; None where it is cut."""
        certain = True
        while node is not value:
            above = self._draft.parent(node)
            if above is None or isinstance(above, (cst.Comparison, cst.FormattedString, cst.Lambda)):
                return None
            if isinstance(above, cst.Attribute) and above.attr.value in _CUT_METHODS | _CUT_ATTRIBUTES:
                return None
            if isinstance(above, cst.Call) and above.func is not node:
                name = full_name(self._draft, above.func)
                if name in _CUT_FUNCTIONS or name.rpartition(".")[2] in _CUT_METHODS:
                    return None
                certain = certain and bool(_LOSS.search(name))
            node = above
        return certain

    def _begun_in_loop(self, statement: cst.SimpleStatementLine, target: cst.CSTNode) -> bool:
        """Whether the sum or list is begun anew in each round of the innermost loop: a loss of several terms."""
        if isinstance(target, cst.Attribute) and isinstance(target.attr, cst.Name) and target.attr.value in _TAKES_IN:
            target = target.value
        loop = self._draft.loop(statement)
        for assign in self._draft.nodes(cst.Assign, loop or self._draft.function(statement)):
            again = any(each.target.deep_equals(target) for each in assign.targets)
            added = isinstance(assign.value, cst.BinaryOperation) and any(
                side.deep_equals(target) for side in (assign.value.left, assign.value.right)
            )
            if again and not added and (loop is not None or not isinstance(target, cst.Attribute)):
                return True
        return False
