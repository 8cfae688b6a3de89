"""Where a value with a graph behind it is added to a sum or a list that outlives the step.

Followed through the text, from the call that made it: the names that it is given, arithmetic, losses computed from it,
and functions that return it, as far as the frames of the call go. What is cut from its graph on the way
(``.item()``, ``float()``, ``.argmax()``, a comparison) is followed no further. A sum or a list of one step's terms, or
one that is differentiated later, is no accumulation: it is followed on to what holds it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

import libcst as cst
import libcst.matchers as m
from libcst.helpers import get_full_name_for_node

from advisor.edit.draft import Draft, Drafts
from advisor.edit.locate import call_at
from advisor.edit.names import full_name
from advisor.edit.sums import (
    CUT_ATTRIBUTES,
    CUT_FUNCTIONS,
    CUT_METHODS,
    LOSS,
    TAKES_IN,
    Sums,
    elements,
    root,
    small_statements,
)
from advisor.harness.layout import Site

_SEVERAL = re.compile(
    r"(^|\.)(split|chunk|unbind|max|min|sort|topk|kthvalue|mode|median|tensor_split|meshgrid|unique)$"
)
_CONTAINER_NAME = re.compile(r"dict|losses|outputs$|metrics", re.I)
_REDUCTIONS = frozenset(["mean", "sum", "square", "pow", "abs", "sqrt", "exp", "log"])
_DISPLAYS = (cst.Tuple, cst.List, cst.Set, cst.Dict, cst.GeneratorExp, cst.ListComp, cst.SetComp, cst.DictComp)
# What is known of a value: nothing; that it holds a graph (a tensor, or a model's dictionary of them); that it is a
# tensor, by the function that made it; the same, by the ``.backward()`` that it went through.
_UNKNOWN, _GRAPH, _TENSOR, _PROVEN = range(4)


@dataclass(frozen=True)
class Accumulation:
    """``value`` is what ``statement`` adds; ``certain``: it is a tensor, whatever the functions on the way do."""

    draft: Draft
    statement: cst.BaseSmallStatement
    value: cst.BaseExpression
    certain: bool

    @property
    def line(self) -> int:
        return self.draft.line(self.statement)


def accumulation(drafts: Drafts, frames: Sequence[Site]) -> Accumulation | None:
    """The one place at which what the call at ``frames[0]`` returns is accumulated; None where that is not certain.

    `frames` are the calls around it, from the inside out.
    """
    kind = _GRAPH
    for site in frames:
        draft = drafts[site.file]
        call = call_at(draft, site)
        if call is None:
            return None
        found, returned = _Flow(draft, call, kind).follow()
        if len(found) == 1:
            return found[0]
        if found or returned is None:
            return None
        kind = returned
    return None


class _Flow:
    """What becomes of a call's result within its function."""

    def __init__(self, draft: Draft, call: cst.Call, kind: int) -> None:
        self._draft = draft
        self._call = call
        self._kind = kind
        self._scope = draft.function(call)
        self._sums = Sums(draft, self._scope)
        self._names: dict[str, tuple[int, cst.CSTNode | None]] = {}  # names that hold it; from which block on
        self._returned: list[int] = []
        self._returns_else = False
        self._differentiated(call)

    def follow(self) -> tuple[list[Accumulation], int | None]:
        """Where it is accumulated, and what the function returns of it; None where it returns nothing of it."""
        found: list[Accumulation] = []
        first = self._draft.line(self._call)
        for small in small_statements(self._draft, self._scope):
            if self._draft.position(small).end.line < first or self._draft.function(small) is not self._scope:
                continue
            one = self._statement(small)
            if one is not None:
                found.append(one)
        if self._returned and self._returns_else:
            return found, _UNKNOWN
        return found, min(self._returned, default=None)

    def _statement(self, small: cst.BaseSmallStatement) -> Accumulation | None:
        if isinstance(small, cst.Return):
            kinds = [kind for _, kind in self._occurrences(small.value)] if small.value is not None else []
            self._returned.extend(kinds)
            self._returns_else = self._returns_else or not kinds
        elif isinstance(small, (cst.Assign, cst.AnnAssign)) and small.value is not None:
            targets = [each.target for each in small.targets] if isinstance(small, cst.Assign) else [small.target]
            return self._assigned(small, targets, small.value)
        elif isinstance(small, cst.AugAssign):
            held = list(self._occurrences(small.value))
            if held and isinstance(small.operator, cst.AddAssign) and self._outlives(small, small.target, held):
                return self._taken(small, small.value, held)
            if held:
                self._hold(small.target, held)
        elif isinstance(small, cst.Expr) and isinstance(small.value, cst.Call):
            call = small.value
            self._differentiated(call)
            if isinstance(call.func, cst.Attribute) and call.func.attr.value in TAKES_IN:
                given = [(arg.value, held) for arg in call.args if (held := list(self._occurrences(arg.value)))]
                for value, held in given:
                    if self._outlives(small, call.func.value, held):
                        taken = self._taken(small, value, held)
                        # One of several that are kept: without its graph the others still have theirs.
                        return taken if taken is None or len(given) == 1 else replace(taken, certain=False)
                    self._hold_in(call.func.value)
        return None

    def _outlives(
        self, small: cst.BaseSmallStatement, target: cst.BaseExpression, held: list[tuple[cst.BaseExpression, int]]
    ) -> bool:
        spent = all(self._known(node) == _PROVEN for node, _ in held) and "retain_graph" not in self._draft.source.text
        return self._sums.outlives(small, target, spent)

    def _differentiated(self, call: cst.Call) -> None:
        """After ``loss.backward()`` or ``accelerator.backward(loss)``, the loss is a tensor for certain."""
        if m.matches(call.func, m.Attribute(attr=m.Name("backward"))):
            given = [arg.value for arg in call.args if arg.keyword is None and isinstance(arg.value, cst.Name)]
            loss = given[0] if given else cst.ensure_type(call.func, cst.Attribute).value
            if isinstance(loss, cst.Name) and (call is self._call or loss.value in self._names):
                self._names[loss.value] = (_PROVEN, self._block(call))

    def _assigned(
        self, small: cst.BaseSmallStatement, targets: Sequence[cst.BaseExpression], value: cst.BaseExpression
    ) -> Accumulation | None:
        held, target = list(self._occurrences(value)), targets[0]
        if isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.Add):
            sides = (value.left, value.right)
            for side, other in (sides, sides[::-1]):
                if held and side.deep_equals(target) and self._outlives(small, target, held):
                    return self._taken(small, other, list(self._occurrences(other)))
        if held and isinstance(target, cst.Subscript):
            # What has a fixed key is replaced in the next step.
            fixed = m.matches(target, m.Subscript(slice=[m.SubscriptElement(m.Index(m.SimpleString() | m.Integer()))]))
            if not fixed and self._outlives(small, target, held):
                return self._taken(small, value, held)
        for each in targets:
            self._hold(each, held)
        return None

    def _hold(self, target: cst.BaseExpression, held: list[tuple[cst.BaseExpression, int]]) -> None:
        """Names that a value is given to: they hold it from here on, or no longer where there is nothing to hold."""
        if isinstance(target, cst.Subscript):
            if held:
                self._hold_in(target)
            return
        several = isinstance(target, (cst.Tuple, cst.List))
        for element in elements(target):
            name = get_full_name_for_node(element) if isinstance(element, (cst.Name, cst.Attribute)) else None
            if not name:
                continue
            if not held:
                self._names.pop(name, None)
                continue
            kind, block = _UNKNOWN if several else min(each for _, each in held), self._block(target)
            before, outer = self._names.get(name, (_UNKNOWN, None))
            if before >= _TENSOR and kind >= _TENSOR and outer is not None and outer in self._draft.ancestors(target):
                kind, block = min(kind, before), outer
            self._names[name] = (kind, block)

    def _hold_in(self, holder: cst.BaseExpression) -> None:
        name = get_full_name_for_node(root(holder))
        if name:
            self._names[name] = (_UNKNOWN, None)

    def _taken(
        self, small: cst.BaseSmallStatement, value: cst.BaseExpression, held: list[tuple[cst.BaseExpression, int]]
    ) -> Accumulation | None:
        if not held:
            return None
        node, kind = held[0]
        own = self._known(node)
        if isinstance(value, _DISPLAYS) or (isinstance(node, cst.Name) and own >= _TENSOR):
            kind = own
        else:
            node = value
        return Accumulation(self._draft, small, node, kind >= _TENSOR and len(held) == 1)

    def _occurrences(self, value: cst.BaseExpression) -> Iterator[tuple[cst.BaseExpression, int]]:
        """Each place in an expression that hands the graph on, and what is known of what the expression gives."""
        todo: list[cst.CSTNode] = [value]
        while todo:
            node = todo.pop()
            name = get_full_name_for_node(node) if isinstance(node, (cst.Name, cst.Attribute)) else None
            if node is self._call or name in self._names:
                assert isinstance(node, cst.BaseExpression)
                kind = self._through(node, value)
                if kind is not None:
                    yield node, kind
            elif isinstance(node, (cst.Attribute, cst.Arg)):
                todo.append(node.value)
            else:
                todo.extend(reversed(node.children))

    def _known(self, node: cst.BaseExpression) -> int:
        """What is known of a name that holds the graph, or of the call."""
        if node is self._call:
            return max(self._kind, self._given_by(self._call)) if self._kind else _UNKNOWN
        name = get_full_name_for_node(node) or ""
        kind, block = self._names[name]
        if block is None or block not in self._draft.ancestors(node):
            return _UNKNOWN  # bound on one of several ways here
        if kind == _TENSOR and (_CONTAINER_NAME.search(name) or self._sums.opened(name)):
            return _UNKNOWN
        return kind

    def _through(self, node: cst.BaseExpression, value: cst.CSTNode) -> int | None:
        """What is known of `value` with the graph of `node` in it; None where it is cut on the way."""
        kind, below = self._known(node), cast(cst.CSTNode, node)
        while below is not value:
            above = self._draft.parent(below)
            if above is None or isinstance(above, (cst.Comparison, cst.FormattedString, cst.Lambda)):
                return None
            if isinstance(above, cst.Attribute):
                if above.attr.value in CUT_METHODS | CUT_ATTRIBUTES:
                    return None
                if above.attr.value == "loss":
                    kind = _TENSOR
                elif not (kind >= _TENSOR or (kind == _GRAPH and above.attr.value in _REDUCTIONS)):
                    kind = _UNKNOWN
                elif above.attr.value in _REDUCTIONS:
                    kind = _TENSOR
            elif isinstance(above, cst.Call) and above.func is not below:
                name = full_name(self._draft, above.func)
                if name in CUT_FUNCTIONS or name.rpartition(".")[2] in CUT_METHODS:
                    return None
                kind = self._given_by(above)
            elif isinstance(above, cst.BinaryOperation):
                only_tensors = isinstance(above.operator, (cst.Subtract, cst.Divide, cst.Power, cst.MatrixMultiply))
                kind = _TENSOR if kind == _GRAPH and only_tensors else kind
            elif isinstance(above, (cst.Subscript, cst.IfExp, cst.BooleanOperation, *_DISPLAYS)):
                kind = _UNKNOWN
            below = above
        return kind

    def _given_by(self, call: cst.Call) -> int:
        """What a function makes of a graph: a tensor, if it is called like one that does and says nothing else."""
        name = full_name(self._draft, call.func)
        if not LOSS.search(name) or _SEVERAL.search(name) or _CONTAINER_NAME.search(name):
            return _UNKNOWN
        last = name.rpartition(".")[2]
        for function in self._draft.nodes(cst.FunctionDef):
            if function.name.value == last and not all(map(_may_be_tensor, self._draft.nodes(cst.Return, function))):
                return _UNKNOWN
        return _TENSOR

    def _block(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """The block from which on a name is bound; a ``with`` always runs its own."""
        for above in self._draft.ancestors(node):
            is_block = isinstance(above, (cst.Module, cst.IndentedBlock, cst.SimpleStatementSuite))
            if is_block and not isinstance(self._draft.parent(above), cst.With):
                return above
        return None


def _may_be_tensor(statement: cst.Return) -> bool:
    """Whether what a function returns is not plainly something else: several values, a number, nothing."""
    value = statement.value
    if value is None or isinstance(value, (*_DISPLAYS, cst.BaseNumber, cst.BaseString)):
        return False
    if isinstance(value, cst.Name):
        return value.value != "None" and not _CONTAINER_NAME.search(value.value)
    if isinstance(value, cst.Call):
        if isinstance(value.func, cst.Attribute):
            return value.func.attr.value not in CUT_METHODS - {"detach"}
        return not (isinstance(value.func, cst.Name) and value.func.value in CUT_FUNCTIONS)
    return True
