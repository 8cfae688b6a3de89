"""Where a value with a graph behind it is added to a sum or a list that outlives the step.

Followed through the text, from the call that made it: the names that it is given, arithmetic, losses computed from it,
and functions that return it, as far as the frames of the call go. What is cut from its graph on the way
(``.item()``, ``float()``, ``.argmax()``, a comparison) is followed no further. A sum or a list of one step's terms, or
one that is differentiated later, is no accumulation: it is followed on to what holds it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import libcst as cst
import libcst.matchers as m
from libcst.helpers import get_full_name_for_node

from advisor.edit.draft import Draft, Drafts
from advisor.edit.locate import call_at, last_name
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
_SEVERAL = re.compile(
    r"(^|\.)(split|chunk|unbind|max|min|sort|topk|kthvalue|mode|median|tensor_split|meshgrid|unique)$"
)
_CONTAINER_NAME = re.compile(r"dict|losses|outputs$|metrics", re.I)
_REDUCTIONS = frozenset(["mean", "sum", "square", "pow", "abs", "sqrt", "exp", "log"])
_OPENS = frozenset(["values", "items", "keys", "get", "pop", "copy", "append", "extend", "update"])
_DIFFERENTIATES = re.compile(
    r"backward|^(\w+_and_|compute_|calc_)?grad(s|ients?)?$|minimi[sz]e|scaler$|hessian|jacobian|vjp$", re.I
)
_TELLS = re.compile(r"log|print|plot|write|save|scalar|postfix|record|track|report|format|description", re.I)
_STEPS_BY_NAME = frozenset(["training_step", "validation_step", "test_step"])  # Lightning calls them once a step
_DISPLAYS = (cst.Tuple, cst.List, cst.Set, cst.Dict, cst.GeneratorExp, cst.ListComp, cst.SetComp, cst.DictComp)
_Loop = cst.For | cst.While
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
        self._ends = _Ends(draft, self._scope)
        self._names: dict[str, tuple[int, cst.CSTNode | None]] = {}  # names that hold it; from which block on
        self._returned: list[int] = []
        self._returns_else = False
        self._differentiated(call)

    def follow(self) -> tuple[list[Accumulation], int | None]:
        """Where it is accumulated, and what the function returns of it; None where it returns nothing of it."""
        found: list[Accumulation] = []
        first = self._draft.line(self._call)
        for small in _small_statements(self._draft, self._scope):
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
            if isinstance(call.func, cst.Attribute) and call.func.attr.value in _TAKES_IN:
                for arg in call.args:
                    held = list(self._occurrences(arg.value))
                    if held and self._outlives(small, call.func.value, held):
                        return self._taken(small, arg.value, held)
                    if held:
                        self._hold_in(call.func.value)
        return None

    def _outlives(
        self, small: cst.BaseSmallStatement, target: cst.BaseExpression, held: list[tuple[cst.BaseExpression, int]]
    ) -> bool:
        spent = all(self._known(node) == _PROVEN for node, _ in held) and "retain_graph" not in self._draft.source.text
        return self._ends.outlives(small, target, spent)

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
        for element in _elements(target):
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
        name = get_full_name_for_node(_root(holder))
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
        if kind == _TENSOR and (_CONTAINER_NAME.search(name) or self._ends.opened(name)):
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
                if above.attr.value in _CUT_METHODS | _CUT_ATTRIBUTES:
                    return None
                if above.attr.value == "loss":
                    kind = _TENSOR
                elif not (kind >= _TENSOR or (kind == _GRAPH and above.attr.value in _REDUCTIONS)):
                    kind = _UNKNOWN
                elif above.attr.value in _REDUCTIONS:
                    kind = _TENSOR
            elif isinstance(above, cst.Call) and above.func is not below:
                name = full_name(self._draft, above.func)
                if name in _CUT_FUNCTIONS or name.rpartition(".")[2] in _CUT_METHODS:
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
        if not _LOSS.search(name) or _SEVERAL.search(name) or _CONTAINER_NAME.search(name):
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


class _Ends:
    """What the sums and lists of a function are for."""

    def __init__(self, draft: Draft, scope: cst.FunctionDef | None) -> None:
        self._draft = draft
        self._scope = scope
        # Functions of the file that take a step, by name.
        self._stepping = {
            each.name.value
            for each in draft.nodes(cst.FunctionDef)
            if any(_DIFFERENTIATES.search(last_name(draft, call)) for call in draft.nodes(cst.Call, each))
        }

    def outlives(self, small: cst.BaseSmallStatement, target: cst.BaseExpression, spent: bool) -> bool:
        """Whether a sum or list keeps what several steps add to it, and nothing differentiates it later.

        Not so for one that starts anew in a loop around `small`, unless a loop within that one takes steps; nor for one
        that is handed on from where no step is seen to be taken, or given to a function no one knows: who gets it may
        differentiate it. `spent`: a backward has used up what is added, which no other can do again.
        """
        target = _root(target)
        key = _key(target)
        local = self._begun(target, self._scope) or self._scope is None
        if not key or self._reaches_backward(key, self._scope if local else None):
            return False
        loops = self._loops(small)
        for inner, loop in enumerate(loops):
            if self._begun(target, loop):
                steps = any(self._steps_in(each) for each in loops[:inner])
                return steps and (spent or not self._handed_on(key, only_calls=True))
        if local and not isinstance(target, cst.Attribute):
            if not loops and self._begun(target, self._scope):
                return False
            steps = any(map(self._steps_in, loops))
            return (steps and spent) or not self._handed_on(key, only_calls=steps)
        assert self._scope is not None or isinstance(target, cst.Attribute)
        if self._scope is None or self._scope.name.value in _STEPS_BY_NAME or self._steps_in(self._scope):
            return True
        parameters = {each.name.value for each in self._draft.nodes(cst.Param, self._scope)}
        return isinstance(target, cst.Name) and key not in parameters and self._begun(target, None)

    def opened(self, name: str) -> bool:
        """Whether a name is used as a dictionary, a list or a tuple anywhere, or given its values by a loop."""

        def is_it(node: cst.CSTNode | None) -> bool:
            return isinstance(node, (cst.Name, cst.Attribute)) and get_full_name_for_node(node) == name

        for node in _below(self._draft, self._scope):
            if isinstance(node, cst.Subscript) and is_it(node.value):
                return True
            if isinstance(node, cst.Attribute) and node.attr.value in _OPENS and is_it(node.value):
                return True
            if isinstance(node, (cst.For, cst.CompFor)) and (
                is_it(node.iter) or any(is_it(each) for each in _elements(node.target))
            ):
                return True
            if isinstance(node, (cst.StarredElement, cst.StarredDictElement)) and is_it(node.value):
                return True
            if isinstance(node, cst.Arg) and is_it(node.value) and self._takes_containers(node):
                return True
            if m.matches(node, m.ComparisonTarget(operator=m.In() | m.NotIn())) and is_it(node.children[-1]):
                return True
            unpacks = m.matches(node, m.Assign(targets=[m.AssignTarget(m.Tuple() | m.List())]))
            if unpacks and is_it(cst.ensure_type(node, cst.Assign).value):
                return True
            if isinstance(node, (cst.NamedExpr, cst.AsName)) and is_it(
                node.target if isinstance(node, cst.NamedExpr) else node.name
            ):
                return True
        return False

    def _takes_containers(self, arg: cst.Arg) -> bool:
        call = self._draft.parent(arg)
        name = full_name(self._draft, call.func) if isinstance(call, cst.Call) else ""
        return bool(arg.star) or name in ("isinstance", "len", "dict", "list", "tuple", "sum")

    def _loops(self, node: cst.CSTNode) -> list[_Loop]:
        """The loops around `node` within its function, from the inside out."""
        found: list[_Loop] = []
        loop = self._draft.loop(node)
        while loop is not None:
            found.append(loop)
            loop = self._draft.loop(loop)
        return found

    def _begun(self, target: cst.BaseExpression, within: cst.CSTNode | None) -> bool:
        """Whether `target` is given a value there that does not go on from the one it has."""
        key = _key(target)
        function = within if isinstance(within, cst.FunctionDef) else within and self._scope
        for node in _small_statements(self._draft, within):
            if self._draft.function(node) is not function:
                continue
            if isinstance(node, cst.Assign):
                targets = [each for one in node.targets for each in _elements(one.target)]
            elif isinstance(node, cst.AnnAssign) and node.value is not None:
                targets = [node.target]
            elif m.matches(node, m.Expr(m.Call(func=m.Attribute(attr=m.Name("clear"))))):
                cleared = cst.ensure_type(cst.ensure_type(node, cst.Expr).value, cst.Call).func
                targets = [cst.ensure_type(cleared, cst.Attribute).value]
                if any(each.deep_equals(target) for each in targets):
                    return True
                continue
            else:
                continue
            if any(each.deep_equals(target) for each in targets):
                assert isinstance(node, (cst.Assign, cst.AnnAssign)) and node.value is not None
                if not self._mentions(node.value, {key}):
                    return True
        return False

    def _steps_in(self, node: cst.CSTNode) -> bool:
        """Whether a step is taken there: something is differentiated, or an optimizer goes on."""
        names = {last_name(self._draft, call) for call in self._draft.nodes(cst.Call, node)}
        return bool(names & self._stepping) or any(
            name in ("step", "zero_grad") or _DIFFERENTIATES.search(name) for name in names
        )

    def _reaches_backward(self, key: str, within: cst.CSTNode | None) -> bool:
        """Whether something that is made of `key`, in any order of the statements, is differentiated."""
        made = self._made_of(key, within)
        calls = self._draft.nodes(cst.Call, within)
        return any(self._differentiates(call) and self._given(call, made) for call in calls)

    def _made_of(self, key: str, within: cst.CSTNode | None) -> set[str]:
        """`key`, and what is assigned from it or takes it in."""
        flows: list[tuple[str, cst.BaseExpression]] = []
        takes_in = m.Call(func=m.Attribute(attr=m.Name(m.MatchIfTrue(lambda name: name in _TAKES_IN))))
        for node in _below(self._draft, within):
            if isinstance(node, cst.Assign):
                flows.extend((_key(to), node.value) for one in node.targets for to in _elements(one.target))
            elif isinstance(node, (cst.AnnAssign, cst.AugAssign, cst.NamedExpr)) and node.value is not None:
                flows.append((_key(node.target), node.value))
            elif isinstance(node, (cst.For, cst.CompFor)):
                flows.extend((_key(to), node.iter) for to in _elements(node.target))
            elif m.matches(node, takes_in):
                call = cst.ensure_type(node, cst.Call)
                flows.extend((_key(cst.ensure_type(call.func, cst.Attribute).value), arg.value) for arg in call.args)
        made, size = {key}, 0
        while len(made) > size:
            size = len(made)
            made |= {to for to, value in flows if to and to not in made and self._mentions(value, made)}
        return made

    def _differentiates(self, call: cst.Call) -> bool:
        name = last_name(self._draft, call)
        optimizer = m.Arg(m.Name(m.MatchIfTrue(lambda value: re.search(r"optim|^opt$", value, re.I) is not None)))
        return (
            bool(_DIFFERENTIATES.search(name))
            or name in self._stepping
            or m.matches(call, m.Call(args=[m.ZeroOrMore(), optimizer, m.ZeroOrMore()]))
        )

    def _handed_on(self, key: str, only_calls: bool) -> bool:
        """Whether it is given to a function that may do anything with it, is returned, or kept in an object."""
        made = self._made_of(key, self._scope)
        if not only_calls and any(each.startswith(".") for each in made - {key}):
            return True
        for node in _below(self._draft, self._scope):
            if isinstance(node, (cst.Return, cst.Yield)) and node.value is not None and not only_calls:
                if self._mentions(node.value, made):
                    return True
            elif isinstance(node, cst.Call):
                name = full_name(self._draft, node.func)
                last = name.rpartition(".")[2] or last_name(self._draft, node)
                keeps = last in _CUT_FUNCTIONS | _CUT_METHODS | _TAKES_IN or _LOSS.search(name) or _TELLS.search(name)
                if not keeps and any(self._mentions(arg.value, made) for arg in node.args):
                    return True
        return False

    def _given(self, call: cst.Call, keys: set[str]) -> bool:
        """Whether a call is one of, or is given, what a graph may get into from one of `keys`."""
        parts: list[cst.CSTNode] = [arg.value for arg in call.args]
        return any(self._mentions(part, keys) for part in (*parts, call.func))

    def _mentions(self, value: cst.CSTNode, keys: set[str]) -> bool:
        """Whether a graph may get from one of `keys` into `value`."""
        todo = [value]
        while todo:
            node = todo.pop()
            if isinstance(node, cst.BaseExpression) and not isinstance(node, cst.Subscript) and _key(node) in keys:
                return True
            if isinstance(node, cst.Call):
                name = get_full_name_for_node(node.func) or ""
                last = node.func.attr.value if isinstance(node.func, cst.Attribute) else ""
                if name in _CUT_FUNCTIONS or last in _CUT_METHODS:
                    continue
            if isinstance(node, cst.Attribute) and node.attr.value in _CUT_ATTRIBUTES:
                continue
            if isinstance(node, (cst.Attribute, cst.Arg)):
                todo.append(node.value)
            else:
                todo.extend(node.children)
        return False


def _below(draft: Draft, within: cst.CSTNode | None) -> Iterator[cst.CSTNode]:
    """All nodes of the file, or below `within`, in the order of the text."""
    todo: list[cst.CSTNode] = [within or draft.module]
    while todo:
        node = todo.pop()
        yield node
        todo.extend(reversed(node.children))


def _small_statements(draft: Draft, within: cst.CSTNode | None) -> Iterator[cst.BaseSmallStatement]:
    return (node for node in _below(draft, within) if isinstance(node, cst.BaseSmallStatement))


def _elements(target: cst.BaseExpression) -> list[cst.BaseExpression]:
    """What an assignment binds, tuples taken apart."""
    if isinstance(target, (cst.Tuple, cst.List)):
        return [inner for each in target.elements for inner in _elements(each.value)]
    return [target]


def _root(target: cst.BaseExpression) -> cst.BaseExpression:
    """The sum or list itself: ``history`` of ``history["loss"][step]``."""
    while isinstance(target, cst.Subscript):
        target = target.value
    return target


def _key(target: cst.BaseExpression) -> str:
    """A name, or an attribute by its own name, whoever's it is: ``losses``, ``.losses``; empty for anything else."""
    target = _root(target)
    if isinstance(target, cst.Name):
        return target.value
    return f".{target.attr.value}" if isinstance(target, cst.Attribute) else ""


def _may_be_tensor(statement: cst.Return) -> bool:
    """Whether what a function returns is not plainly something else: several values, a number, nothing."""
    value = statement.value
    if value is None or isinstance(value, (*_DISPLAYS, cst.BaseNumber, cst.BaseString)):
        return False
    if isinstance(value, cst.Name):
        return value.value != "None" and not _CONTAINER_NAME.search(value.value)
    if isinstance(value, cst.Call):
        if isinstance(value.func, cst.Attribute):
            return value.func.attr.value not in _CUT_METHODS - {"detach"}
        return not (isinstance(value.func, cst.Name) and value.func.value in _CUT_FUNCTIONS)
    return True
