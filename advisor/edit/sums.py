"""What the sums and lists of a function are for: one step's terms, what is differentiated later, or all the steps.

Told by names and by the order of the text, as :mod:`.gradients.accumulation` needs it; where it cannot be told, they
are taken for what may be differentiated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst
import libcst.matchers as m
from libcst.helpers import get_full_name_for_node

from advisor.edit.draft import Draft
from advisor.edit.locate import last_name
from advisor.edit.names import full_name

CUT_METHODS = frozenset(
    ["item", "detach", "tolist", "numpy", "argmax", "argmin", "sign", "backward", "size", "dim", "numel"]
)
CUT_FUNCTIONS = frozenset(["float", "int", "len", "bool", "str", "print", "round", "repr"])
CUT_ATTRIBUTES = frozenset(["data", "shape", "dtype", "device", "grad", "ndim"])
TAKES_IN = frozenset(["append", "appendleft", "extend", "add", "insert", "put", "update"])
# What keeps the graph when it is called with something that has one: torch's own, and losses by what people call them.
LOSS = re.compile(
    r"(^torch\.|^F\.|loss|crit|error|mse|nll|elbo|entropy|penalty|objective|sum$|mean$|stack$|cat$)", re.I
)
_OPENS = frozenset(["values", "items", "keys", "get", "pop", "copy", "append", "extend", "update"])
_DIFFERENTIATES = re.compile(
    r"backward|^(\w+_and_|compute_|calc_)?grad(s|ients?)?$|minimi[sz]e|scaler$|hessian|jacobian|vjp$", re.I
)
_TELLS = re.compile(r"log|print|plot|write|save|scalar|postfix|record|track|report|format|description", re.I)
_STEPS_BY_NAME = frozenset(["training_step", "validation_step", "test_step"])  # Lightning calls them once a step
_Loop = cst.For | cst.While


class Sums:
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
        target = root(target)
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
                is_it(node.iter) or any(is_it(each) for each in elements(node.target))
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
        for node in small_statements(self._draft, within):
            if self._draft.function(node) is not function:
                continue
            if isinstance(node, cst.Assign):
                targets = [each for one in node.targets for each in elements(one.target)]
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
        takes_in = m.Call(func=m.Attribute(attr=m.Name(m.MatchIfTrue(lambda name: name in TAKES_IN))))
        for node in _below(self._draft, within):
            if isinstance(node, cst.Assign):
                flows.extend((_key(to), node.value) for one in node.targets for to in elements(one.target))
            elif isinstance(node, (cst.AnnAssign, cst.AugAssign, cst.NamedExpr)) and node.value is not None:
                flows.append((_key(node.target), node.value))
            elif isinstance(node, (cst.For, cst.CompFor)):
                flows.extend((_key(to), node.iter) for to in elements(node.target))
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
                keeps = last in CUT_FUNCTIONS | CUT_METHODS | TAKES_IN or LOSS.search(name) or _TELLS.search(name)
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
                if name in CUT_FUNCTIONS or last in CUT_METHODS:
                    continue
            if isinstance(node, cst.Attribute) and node.attr.value in CUT_ATTRIBUTES:
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


def small_statements(draft: Draft, within: cst.CSTNode | None) -> Iterator[cst.BaseSmallStatement]:
    """All statements of one line in the file, or below `within`, in the order of the text."""
    return (node for node in _below(draft, within) if isinstance(node, cst.BaseSmallStatement))


def elements(target: cst.BaseExpression) -> list[cst.BaseExpression]:
    """What an assignment binds, tuples taken apart."""
    if isinstance(target, (cst.Tuple, cst.List)):
        return [inner for each in target.elements for inner in elements(each.value)]
    return [target]


def root(target: cst.BaseExpression) -> cst.BaseExpression:
    """The sum or list itself: ``history`` of ``history["loss"][step]``."""
    while isinstance(target, cst.Subscript):
        target = target.value
    return target


def _key(target: cst.BaseExpression) -> str:
    """A name, or an attribute by its own name, whoever's it is: ``losses``, ``.losses``; empty for anything else."""
    target = root(target)
    if isinstance(target, cst.Name):
        return target.value
    return f".{target.attr.value}" if isinstance(target, cst.Attribute) else ""
