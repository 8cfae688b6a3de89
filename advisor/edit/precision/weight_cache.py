"""Whether autocast's copies of the weights in 16 bits stay right until the end of a region.

A weight is cast at its first use, and the copy serves until the outermost region ends: one made without gradients has
no graph, so that a later forward gives the weight none (pytorch #65766, #112583), and one made before an optimizer's
step is stale behind it.
"""

from __future__ import annotations

import builtins
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import libcst as cst
import libcst.matchers as m

from advisor.edit.calls import argument
from advisor.edit.draft import Draft, Drafts
from advisor.edit.locate import last_name
from advisor.edit.modules import beside
from advisor.edit.names import bindings, full_name, last_part
from advisor.edit.regions import LOSS
from advisor.edit.scopes import parameter_names, scope_of
from advisor.edit.sums import elements
from advisor.errors import AdvisorError

_Own = tuple[Draft, cst.FunctionDef]
_DEPTH = 6  # functions followed from one into the next
_MOST_FILES = 12  # of those that a script imports: to parse one takes a second for 3000 lines
_SWITCHES = re.compile(r"\b(no_grad|inference_mode|set_grad_enabled|enable_grad)\b")
_ON, _OFF, _EITHER = frozenset((True,)), frozenset((False,)), frozenset((True, False))
# Objects with a method ``step`` that changes no weights, and those whose ``step`` with arguments does.
_COUNTS, _OPTIMIZES = re.compile(r"sched|prof|env|bar\b|timer", re.I), re.compile(r"opt|scaler", re.I)
_NO_WEIGHTS = re.compile(r"^(log_?)?(softmax|sigmoid)$|^(relu|gelu|tanh|silu|act\w*|drop\w*|log\w*|print\w*)$", re.I)
_MODELS_HAVE = frozenset(("parameters", "named_parameters", "modules", "named_modules", "eval"))
# What is asked of a model or of its parameters without computing with them.
_NO_FORWARD = re.compile(
    r"\b(\w*parameters|\w*modules|\w*children|\w*buffers|eval|train|\w*state_dict|to|cpu|cuda|zero_grad|apply|"
    r"requires_grad_|register_\w+|weight\w*|bias|data|grad|config|device|dtype)\b"
)


def outlived(drafts: Drafts, draft: Draft, statements: Sequence[cst.CSTNode], trains: bool) -> str:
    """Why the copies would outlive what they were made of, or for, in these statements under one autocast; or none."""
    code = _Code(drafts)
    for statement in statements:
        line = next(_steps(code, draft, statement, ()), None)
        if line is not None:
            return f"a backward or an optimizer's step runs at line {line}, in front of the loss"
    return _without_graph(code, draft, statements) if trains else ""


# What calls lead to -----------------------------------------------------------------------------------------------


class _Code:
    """The functions that a script's calls lead to, in its file and in those beside it."""

    def __init__(self, drafts: Drafts) -> None:
        self._drafts = drafts
        self._models: dict[Draft, dict[str, str]] = {}
        self._functions: dict[Draft, dict[str, list[cst.FunctionDef]]] = {}

    def called(self, draft: Draft, call: cst.Call) -> list[_Own]:
        """The functions that a call may be of, and the methods of this file, by their names."""
        own = self.by_name(draft, call)
        if own or not isinstance(call.func, cst.Attribute) or _NO_FORWARD.fullmatch(call.func.attr.value):
            return own
        name = call.func.attr.value
        methods = [each for each in self._named(draft, name) if _is_method(draft, each)]
        return [] if name in ("step", "backward", "forward") else [(draft, each) for each in methods]

    def by_name(self, draft: Draft, call: cst.Call) -> list[_Own]:
        """The same of a plain name, of ``self.name`` and of what a file beside this one gives."""
        if isinstance(call.func, cst.Attribute) and m.matches(call.func.value, m.Name("self")):
            methods = [each for each in self._named(draft, call.func.attr.value) if _is_method(draft, each)]
            holder = draft.enclosing_class(call)
            inner = [each for each in methods if draft.enclosing_class(each) is holder]
            return [(draft, each) for each in inner or methods]
        if isinstance(call.func, cst.Name):
            named = self._named(draft, call.func.value)
            if own := [(draft, each) for each in named if not _is_method(draft, each)]:
                return own
        module, _, name = full_name(draft, call.func).rpartition(".")
        other = self._beside(draft, module)
        if other is None or not name:
            return []
        return [(other, each) for each in self._named(other, name) if not _is_method(other, each)]

    def methods(self, draft: Draft, name: str) -> list[_Own]:
        """The methods of that name, of classes in this file or where it imports from."""
        files = [draft, *self.imported(draft, name)]
        return [(file, each) for file in files for each in self._named(file, name) if _is_method(file, each)]

    def imported(self, draft: Draft, word: str) -> Iterator[Draft]:
        """The files beside this one that it imports, and those that they do, where `word` occurs."""
        todo, seen = [draft], {draft.source.path}
        while todo and len(seen) < _MOST_FILES:
            current = todo.pop(0)
            for full in bindings(current).values():
                for module in (full, full.rpartition(".")[0]):
                    other = self._beside(current, module)
                    if other is not None and other.source.path not in seen:
                        seen.add(other.source.path)
                        todo.append(other)
                        if word in other.source.text:
                            yield other

    def models(self, draft: Draft) -> dict[str, str]:
        """What may be a model by how a file uses it: how it is written, and what it is a part of."""
        if draft not in self._models:
            self._models[draft] = _models(draft)
        return self._models[draft]

    def _named(self, draft: Draft, name: str) -> list[cst.FunctionDef]:
        if draft not in self._functions:
            found = self._functions[draft] = {}
            for each in draft.nodes(cst.FunctionDef):
                found.setdefault(each.name.value, []).append(each)
        return self._functions[draft].get(name, [])

    def _beside(self, draft: Draft, module: str) -> Draft | None:
        return module_beside(self._drafts, draft, module)


def module_beside(drafts: Drafts, draft: Draft, module: str) -> Draft | None:
    """The user's file of a module that is imported; None for one that does not parse, of which nothing is known."""
    try:
        return beside(drafts, draft, module)
    except AdvisorError:
        return None


def _is_method(draft: Draft, function: cst.FunctionDef) -> bool:
    return isinstance(scope_of(draft, function), cst.ClassDef)


def _run(node: cst.CSTNode) -> Iterator[cst.Call]:
    """The calls of a statement that run with it: not those of what it only defines."""
    if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
        return
    if isinstance(node, cst.Call):
        yield node
    for child in node.children:
        yield from _run(child)


def _steps(code: _Code, draft: Draft, node: cst.CSTNode, inside: tuple[cst.FunctionDef, ...]) -> Iterator[int]:
    """Lines that change weights, or call what does."""
    for call in _run(node):
        own = code.called(draft, call) if len(inside) < _DEPTH else []
        changes = not code.by_name(draft, call) and _is_step(draft, call)
        if changes or any(
            next(_steps(code, other, each.body, (*inside, each)), None) is not None
            for other, each in own
            if each not in inside
        ):
            yield draft.line(call)


def _is_step(draft: Draft, call: cst.Call) -> bool:
    if not isinstance(call.func, cst.Attribute):
        return False
    name, owner = call.func.attr.value, draft.code(call.func.value)
    if name != "step":
        return name in ("backward", "manual_backward")
    return bool(_OPTIMIZES.search(owner)) if call.args else not _COUNTS.search(owner)


# With and without gradients -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Use:
    """A model that is called: whether a graph is recorded, whether a loop may do so again, through which calls."""

    model: str
    recorded: frozenset[bool]
    repeated: bool
    path: tuple[cst.Call, ...]
    draft: Draft
    node: cst.Call


def _without_graph(code: _Code, draft: Draft, statements: Sequence[cst.CSTNode]) -> str:
    roots: list[_Own] = []
    recorded = _EITHER if any(map(_switches_for_good, statements)) else _ON
    walk = _Walk(code, roots)
    if why := _both([use for each in statements for use in walk.through(draft, each, _Place(recorded))], draft):
        return why
    # The models themselves, each by its own: of two objects of one class every one has its weights.
    for file in (draft, *code.imported(draft, "grad")):
        roots += [
            (file, each)
            for each in file.nodes(cst.FunctionDef)
            if each.name.value == "forward" and _is_method(file, each) and _SWITCHES.search(file.source.text)
        ]
    seen: set[cst.FunctionDef] = set()
    while roots:  # walking may find more methods
        file, function = roots.pop()
        if function not in seen:
            seen.add(function)
            place = _Place(_decorated(file, function, _ON))
            if why := _both([*walk.through(file, function.body, place)], draft):
                return why
    return ""


@dataclass(frozen=True)
class _Place:
    """How a statement is reached; `names`: what the caller calls the parameters of the function."""

    recorded: frozenset[bool]
    repeated: bool = False
    path: tuple[cst.Call, ...] = ()
    names: tuple[tuple[str, str], ...] = ()


class _Walk:
    """Goes through what statements run; methods of models, with other names for what they hold, go to `roots`."""

    def __init__(self, code: _Code, roots: list[_Own]) -> None:
        self._code, self._roots = code, roots

    def through(self, draft: Draft, node: cst.CSTNode, place: _Place) -> Iterator[_Use]:
        """The uses of models in a statement, in the order of the text."""
        if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
            return
        repeated = place.repeated or isinstance(node, (cst.For, cst.While, cst.BaseComp))
        place = _Place(place.recorded, repeated, place.path, place.names)
        if isinstance(node, cst.Call):
            yield from self._call(draft, node, place)
        inner = place
        if isinstance(node, cst.With):
            for item in node.items:
                recorded = _switched(draft, item.item, inner.recorded)
                inner = _Place(recorded, repeated, place.path, place.names)
        for child in node.children:
            under = inner if isinstance(node, cst.With) and child is node.body else place
            yield from self.through(draft, child, under)

    def _call(self, draft: Draft, call: cst.Call, place: _Place) -> Iterator[_Use]:
        own = self._code.by_name(draft, call)
        if own and not (isinstance(call.func, cst.Name) and call.func.value in _BUILTINS):
            for other, function in own if len(place.path) < _DEPTH and call not in place.path else ():
                recorded = _decorated(other, function, place.recorded)
                names = tuple(self._passed(draft, call, other, function, place).items())
                under = _Place(recorded, place.repeated, (*place.path, call), names)
                yield from self.through(other, function.body, under)
            return
        models, recorded = self._code.models(draft), place.recorded
        called = _called_model(draft, call, models)
        if called and isinstance(call.func, cst.Attribute) and called.endswith("." + call.func.attr.value):
            methods = self._code.methods(draft, call.func.attr.value)
            if methods and draft.code(call.func) not in models:
                self._roots += methods
                called = called.rpartition(".")[0]
                modes = [_decorated(other, each, recorded) for other, each in methods]
                recorded = modes[0].union(*modes[1:])
        found = [called] if called else []
        if not (isinstance(call.func, cst.Name) and call.func.value in _BUILTINS):
            found += [models[code] for arg in call.args if (code := draft.code(arg.value)) in models]
        for each in found:
            yield _Use(_renamed(each, dict(place.names)), recorded, place.repeated, place.path, draft, call)

    def _passed(
        self, draft: Draft, call: cst.Call, other: Draft, function: cst.FunctionDef, place: _Place
    ) -> dict[str, str]:
        """What the caller calls each parameter that may be a model."""
        models, outer = self._code.models(draft), dict(place.names)
        same = isinstance(call.func, cst.Attribute) and m.matches(call.func.value, m.Name("self"))
        found = {"self": outer["self"]} if same and "self" in outer else {}
        names = parameter_names(other, function)
        for name in (*names, *(each.name.value for each in function.params.kwonly_params)):
            arg = argument(call, name, names)
            if arg is not None and isinstance(arg.value, (cst.Name, cst.Attribute)):
                code = draft.code(arg.value)
                found[name] = _renamed(models.get(code, code), outer)
        return found


_BUILTINS = frozenset(dir(builtins))


def _models(draft: Draft) -> dict[str, str]:
    known = {each.name.value for each in draft.nodes(cst.FunctionDef)}
    known |= {each.name.value for each in draft.nodes(cst.ClassDef)} | bindings(draft).keys() | _BUILTINS
    found: dict[str, str] = {}
    for call in draft.nodes(cst.Call):
        func: cst.BaseExpression = call.func.value if isinstance(call.func, cst.Subscript) else call.func
        name = last_part(func)
        if isinstance(func, cst.Attribute) and name in _MODELS_HAVE:
            func = func.value  # model.eval()
            if isinstance(func, (cst.Name, cst.Attribute)) and not m.matches(func, m.Name("self")):
                found[draft.code(func)] = draft.code(func)
            continue
        named = isinstance(func, cst.Name) or m.matches(func, m.Attribute(value=m.Name("self")))
        if named and name not in known and not LOSS.search(name) and not _NO_WEIGHTS.search(name):
            found[draft.code(func)] = draft.code(func)
    for loop in draft.nodes(cst.For):  # for layer in self.layers
        held = re.findall(r"\bself\.\w+", draft.code(loop.iter))
        for target in elements(loop.target):
            if draft.code(target) in found and held:
                found[draft.code(target)] = held[-1]
    return found


def _called_model(draft: Draft, call: cst.Call, models: Mapping[str, str]) -> str:
    """The model that is called, or a part of one; empty for what is none."""
    node = call.func.value if isinstance(call.func, cst.Subscript) else call.func
    rest = ""
    while isinstance(node, (cst.Name, cst.Attribute)):
        code = draft.code(node)
        if code in models:
            return "" if _NO_FORWARD.search(rest) else models[code] + rest
        if isinstance(node, cst.Name):
            break
        rest, node = f".{node.attr.value}{rest}", node.value
    return ""


def _renamed(name: str, names: Mapping[str, str]) -> str:
    first, dot, rest = name.partition(".")
    return names.get(first, first) + dot + rest


def _switched(draft: Draft, manager: cst.BaseExpression, recorded: frozenset[bool]) -> frozenset[bool]:
    """Whether a graph is recorded under a context manager."""
    texts = [draft.code(manager)]
    if isinstance(manager, cst.Name):
        texts = [
            draft.code(each.value)
            for each in draft.nodes(cst.Assign)
            if any(draft.code(target.target) == manager.value for target in each.targets)
        ]
    if isinstance(manager, cst.Call):
        name, given = last_name(draft, manager), [draft.code(arg.value) for arg in manager.args]
        if name == "enable_grad" or (name == "set_grad_enabled" and given == ["True"]):
            return _ON
        off = name in ("no_grad", "inference_mode") and given in ([], ["True"])
        if off or (name == "set_grad_enabled" and given == ["False"]):
            return _OFF
        texts.append(name)
    return _EITHER if any(map(_SWITCHES.search, texts)) else recorded


def _decorated(draft: Draft, function: cst.FunctionDef, recorded: frozenset[bool]) -> frozenset[bool]:
    """Whether a graph is recorded in a function."""
    for each in function.decorators:
        recorded = _switched(draft, each.decorator, recorded)
        if last_part(each.decorator) in ("no_grad", "inference_mode"):  # without brackets
            recorded = _OFF
    return _EITHER if _switches_for_good(function.body) else recorded


def _switches_for_good(node: cst.CSTNode) -> bool:
    """Whether ``set_grad_enabled(…)`` is a statement of its own."""
    named = m.Name("set_grad_enabled") | m.Attribute(attr=m.Name("set_grad_enabled"))
    return bool(m.findall(node, m.Expr(m.Call(func=named))))


def _both(uses: Sequence[_Use], draft: Draft) -> str:
    """Why no region may hold all these: a model that runs without gradients and with them."""
    for use in uses:
        if False not in use.recorded:
            continue
        again = use.repeated and True in use.recorded
        if again or any(
            True in other.recorded and _overlap(use.model, other.model) and not _apart(use, other)
            for other in uses
            if other is not use
        ):
            file = "" if use.draft is draft else f" of {os.path.basename(use.draft.source.path)}"
            return (
                f"{use.model} also runs without gradients at line {use.draft.line(use.node)}{file}, and autocast would "
                "keep its weights without gradients for the forward that needs them"
            )
    return ""


def _overlap(one: str, other: str) -> bool:
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def _apart(one: _Use, other: _Use) -> bool:
    """Whether two uses are on the two ways of an ``if`` that is come to once."""
    if one.path != other.path or one.repeated or other.repeated or one.draft is not other.draft:
        return False
    above = {*other.draft.ancestors(other.node)}
    for inner, outer in pairwise((one.node, *one.draft.ancestors(one.node))):
        if isinstance(outer, cst.If):
            second = outer.orelse if inner is outer.body else outer.body if inner is outer.orelse else None
            if second is not None and second in above:
                return True
    return False
