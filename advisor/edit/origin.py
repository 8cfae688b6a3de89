"""Where the value of an expression comes from: the place to change it at, or the command-line option.

Only what the text decides is followed: a literal, a name assigned once, a parameter by its callers or its default, an
``argparse`` option, a class-level default, an entry of a dict display, the default of a variable of the environment.
Of several places the one is meant that says what the run saw. Everything else is None: a rule then gives advice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import libcst as cst
from libcst.helpers import get_full_name_for_node

from advisor.edit.callers import Call, Derived, Given, calls_of, derived_from, given, named, own_method
from advisor.edit.calls import argument
from advisor.edit.changes import renames
from advisor.edit.displays import displays_of
from advisor.edit.draft import Draft, Drafts
from advisor.edit.modules import TooManyFilesError, beside, with_neighbours, with_word
from advisor.edit.names import full_name, imported_as, imports_anywhere, last_part
from advisor.edit.option_origin import Kind, Origin, click_option, decorations, is_click, option_of
from advisor.edit.scopes import (
    assigned_once,
    assignments,
    attribute_assignment,
    dict_entry,
    imports,
    is_literal,
    is_parameter,
    parameter,
    scope_of,
    self_assignments,
    string_value,
)

UNKNOWN: Final = object()
_Candidate = tuple[Draft, cst.BaseExpression | None, Kind]  # an expression that may give the value; None: computed
_DEPTH = 8  # names followed from one to the next before giving up; guards against cycles
_CONVERSIONS = ("int", "float", "str")
# Attributes by names that the text does not tell.
_SETS = re.compile(r"\bsetattr\(|\b__dict__\.update\(|\bvars\([^()]*\)\.update\(|\b__dict__\[")
# Methods that make of an object something else than what its class says.
_MAGIC = ("__post_init__", "__new__", "__getattr__", "__getattribute__", "__setattr__")
# Calls that make an object like another one, with other values.
_LIKE = ("replace", "evolve", "_replace", "merge", "from_dict", "structured", "cls", "model_copy", "copy")
# What gives a variable of the environment, or else its second argument.
_ENVIRONMENT = ("os.environ.get", "os.getenv", "environ.get", "getenv")


def origin_of(drafts: Drafts, draft: Draft, node: cst.BaseExpression, recorded: object = UNKNOWN) -> Origin | None:
    """Follow `node` to the one place that its value is written at; None when that is not certain.

    `recorded` is the value that the run saw, which tells apart what several callers pass, or several branches assign.
    """
    try:
        return _Trace(drafts, recorded).follow(draft, node, "literal", _DEPTH)
    except TooManyFilesError:
        return None


class _Trace:
    """Follows one value through the script's modules."""

    def __init__(self, drafts: Drafts, recorded: object) -> None:
        self._drafts = drafts
        self._recorded = recorded

    def follow(self, draft: Draft, node: cst.BaseExpression, kind: Kind, depth: int) -> Origin | None:
        """The origin of an expression; `kind` is what it is where it is a literal itself."""
        if depth == 0:
            return None
        if is_literal(node):
            return Origin(draft, kind, node)
        if isinstance(node, cst.Name):
            return self._name(draft, node, depth - 1)
        if isinstance(node, cst.Attribute):
            return self._attribute(draft, node, depth - 1)
        if isinstance(node, cst.Subscript):
            return self._subscript(draft, node, depth - 1)
        if isinstance(node, cst.Call):
            return self._call(draft, node, depth - 1)
        return None

    def _one_of(self, candidates: Iterable[_Candidate], depth: int) -> Origin | None:
        """The one origin of all candidates, or the only one of them that says what the run saw."""
        found: dict[object, Origin] = {}
        for draft, node, kind in candidates:
            origin = self.follow(draft, node, kind, depth) if node is not None else None
            if origin is None:
                return None
            found[origin.option or id(origin.node)] = origin
        if len(found) == 1:
            return next(iter(found.values()))
        if self._recorded is UNKNOWN:
            return None
        agreeing = [each for each in found.values() if each.option or each.says(self._recorded)]
        return agreeing[0] if len(agreeing) == 1 else None

    # Names.

    def _name(self, draft: Draft, node: cst.Name, depth: int) -> Origin | None:
        scope = scope_of(draft, node)
        while isinstance(scope, (cst.FunctionDef, cst.ClassDef, cst.Lambda)):
            own = parameter(scope, node.value) if isinstance(scope, cst.FunctionDef) else None
            if (own is None and is_parameter(scope, node.value)) or imports(draft, node.value, scope):
                return None  # of a lambda, or *args, **kwargs
            if isinstance(scope, cst.FunctionDef):
                bound = list(assignments(draft, node.value, scope))
                if (bound or own) and _is_bound_elsewhere(draft, node.value):
                    return None
                if own is not None:
                    return None if bound else self._from_callers(draft, scope, own, depth)
                if bound:
                    return self._assigned(draft, bound, depth)
            scope = scope_of(draft, scope)
        return self._constant(draft, node.value, depth)

    def _assigned(self, draft: Draft, bound: Iterable[cst.BaseExpression | None], depth: int) -> Origin | None:
        return self._one_of([(draft, each, "constant") for each in bound], depth)

    def _constant(self, draft: Draft, name: str, depth: int) -> Origin | None:
        """A name of a module: a constant there, or of another module: ``from config import BATCH_SIZE``."""
        if not depth or _is_bound_elsewhere(draft, name):
            return None
        bound = list(assignments(draft, name, draft.module))
        everywhere = imports_anywhere(draft)
        times = sum(each == name for each, _ in everywhere)
        stars = [beside(self._drafts, draft, module) for each, module in everywhere if each == "*"]
        if times + bool(bound) > 1 or any(any(assignments(of, name, of.module)) for of in stars if of is not None):
            return None  # one of several
        if bound:
            return self._assigned(draft, bound, depth)
        module, _, attribute = imported_as(draft, name).rpartition(".")
        other = beside(self._drafts, draft, module)
        if other is None or not attribute or self._set_somewhere(other, attribute):
            return None
        return self._constant(other, attribute, depth - 1)

    # Parameters.

    def _from_callers(self, draft: Draft, function: cst.FunctionDef, own: cst.Param, depth: int) -> Origin | None:
        if any(is_click(draft, each, what) for each in decorations(function) for what in ("command", "option")):
            return click_option(draft, function, own.name.value)
        default: _Candidate = (draft, own.default, "default")
        calls = calls_of(self._drafts, draft, function)
        if not calls:
            # What nothing of the script's calls, a library does: the default, where that was seen.
            return self._one_of([default], depth) if calls is not None and self._recorded is not UNKNOWN else None
        passed = given(self._drafts, draft, function, own.name.value)
        if passed is None:
            return None
        return self._one_of([(*each, "constant") if each[1] is not None else default for each in passed], depth)

    # Attributes.

    def _attribute(self, draft: Draft, node: cst.Attribute, depth: int) -> Origin | None:
        name, base = node.attr.value, node.value
        if isinstance(base, cst.Name) and base.value == "self":
            return self._of_self(draft, node, depth)
        if isinstance(base, cst.Name) and imported_as(draft, base.value) and not _is_local(draft, base):
            other = beside(self._drafts, draft, imported_as(draft, base.value))
            if other is not None:
                return self._constant(other, name, depth) if not self._set_somewhere(other, name) else None
        if self._set_somewhere(draft, name):
            return None
        makers = self._makers(draft, base, depth)
        if makers:
            return self._field(makers, name, depth)
        return self._option(draft, name) or self._class_default(draft, base, name, depth)

    def _set_somewhere(self, draft: Draft, name: str) -> bool:
        """Whether any of the modules gives an object, or a module, an attribute of that name, or may."""
        files = {draft.source.path, *self._drafts.sources.modules}
        texts = [self._drafts.sources.text(path) for path in files if self._drafts.sources.has(path)]
        if any(map(_SETS.search, texts)):
            return True
        return any(_attribute_assigned(each, name) for each in with_word(self._drafts, draft, name))

    def _option(self, draft: Draft, name: str) -> Origin | None:
        """The command-line option of that name: of this file, of one that it imports from, or by what the run saw."""
        near = {id(each) for each in with_neighbours(self._drafts, draft)}
        for each in with_word(self._drafts, draft, "add_argument"):
            option = option_of(each, name)
            if option is not None and (id(each) in near or option.says(self._recorded)):
                return option
        return None

    def _of_self(self, draft: Draft, node: cst.Attribute, depth: int) -> Origin | None:
        """``self.name``: what its class gives it, one derived from that, or else one above it."""
        name, holder = node.attr.value, draft.enclosing_class(node)
        if holder is None or self._set_somewhere(draft, name):
            return None
        classes = [(draft, holder), *self._above(draft, holder)]
        if any(_is_dataclass(each) for _, each in classes):
            calls = named(self._drafts, draft, holder.name.value)
            below = derived_from(self._drafts, draft, holder)
            for user, each in below or ():
                more = named(self._drafts, user, each.name.value)
                calls = [*calls, *more] if calls is not None and more is not None else None
            return self._field(calls, name, depth) if calls and below is not None else None
        values = self._of_class(draft, holder, name, depth)
        if values is not None:
            return self._one_of([(*each, "constant") for each in values], depth)
        return self._option(draft, name)

    def _of_class(
        self, draft: Draft, holder: cst.ClassDef, name: str, depth: int
    ) -> list[Given] | None:
        """What a class, and those derived from it, give ``self.name``; else what the nearest one above it does."""
        if own_method(holder, name) is not None or not depth:
            return [(draft, None)]  # computed
        found: list[Given] = []
        below = derived_from(self._drafts, draft, holder)
        if below is None:
            return [(draft, None)]
        above = self._above(draft, holder)
        for user, each in [(draft, holder), *below]:
            found += [(user, value) for value in self_assignments(user, each, name)]
            found += [(user, _field_value(value)) for value in assignments(user, name, each)]
        for user, each in above:
            found += [(user, value) for value in self_assignments(user, each, name)]
        for user, each in above if not found else ():
            values = list(assignments(user, name, each))
            if values:
                return [(user, _field_value(value)) for value in values]
        return found or None

    def _above(self, draft: Draft, holder: cst.ClassDef) -> list[Derived]:
        """The script's classes that a class is derived from, the nearest first."""
        found: list[Derived] = []
        todo = [(draft, holder)]
        while todo and len(found) < _DEPTH:
            of, each = todo.pop(0)
            bases = [above for base in each.bases if (above := self._class(of, base.value)) is not None]
            found += bases
            todo += bases
        return found

    def _class(self, draft: Draft, node: cst.BaseExpression) -> tuple[Draft, cst.ClassDef] | None:
        """The script's class that an expression names."""
        module, _, name = full_name(draft, node).rpartition(".")
        other = beside(self._drafts, draft, module) if module else draft
        if other is None:
            return None
        found = [each for each in other.nodes(cst.ClassDef) if each.name.value == name]
        return (other, found[0]) if len(found) == 1 and not (module and imports(other, name, other.module)) else None

    def _makers(self, draft: Draft, node: cst.BaseExpression, depth: int) -> list[Call] | None:
        """The calls of classes of the script's that may have made an object; None where others may."""
        if not depth:
            return None
        if isinstance(node, cst.Call):
            if self._class(draft, node.func) is not None:
                return [(draft, node)]
            made = self._given_back(draft, node)
            return self._makers(*made, depth - 1) if made is not None else None
        values: list[Given] | None = None
        if isinstance(node, cst.Attribute) and draft.code(node.value) == "self":
            holder = draft.enclosing_class(node)
            values = self._of_class(draft, holder, node.attr.value, depth) if holder is not None else None
        elif isinstance(node, cst.Name):
            values = self._values(draft, node)
        found: list[Call] = []
        for of, value in values or ():
            makers = self._makers(of, value, depth - 1) if value is not None else None
            if makers is None:
                return None
            found += makers
        return found or None

    def _given_back(self, draft: Draft, call: cst.Call) -> tuple[Draft, cst.BaseExpression] | None:
        """What a function of the script's gives back, by its only ``return``."""
        module, _, name = full_name(draft, call.func).rpartition(".")
        other = beside(self._drafts, draft, module) if module else draft
        if other is None:
            return None
        functions = [each for each in other.nodes(cst.FunctionDef) if each.name.value == name]
        if len(functions) != 1 or functions[0].decorators:
            return None
        returned = [each.value for each in other.nodes(cst.Return, functions[0]) if each.value is not None]
        return (other, returned[0]) if len(returned) == 1 and scope_of(other, functions[0]) is other.module else None

    def _values(self, draft: Draft, node: cst.Name) -> list[Given] | None:
        """What a name is given: by assignment, or by the calls of the function whose parameter it is."""
        scope = scope_of(draft, node)
        while True:
            bound = list(assignments(draft, node.value, scope))
            if _is_bound_elsewhere(draft, node.value):
                return None
            if bound and is_parameter(scope, node.value):
                return None
            if bound or scope is draft.module:
                return [(draft, each) for each in bound] or None
            if isinstance(scope, cst.FunctionDef) and parameter(scope, node.value) is not None:
                return given(self._drafts, draft, scope, node.value)
            if is_parameter(scope, node.value):
                return None
            scope = scope_of(draft, scope)

    def _field(self, makers: Iterable[Call], name: str, depth: int) -> Origin | None:
        """``config.size`` of what these calls made: what they pass, a field's default, or what ``__init__`` sets."""
        found: list[_Candidate] = []
        for user, call in makers:
            of = self._class(user, call.func)
            passed = argument(call, name)
            values = self._of_class(*of, name, depth) if of is not None else None
            if of is None or values is None:
                return None
            classes = [of, *self._above(*of)]
            if any(own_method(each, magic) is not None for _, each in classes for magic in _MAGIC):
                return None
            made = next((own for _, each in classes if (own := own_method(each, "__init__")) is not None), None)
            if made is None and any(arg.star or arg.keyword is None for arg in call.args):
                return None
            if made is None and passed is not None:
                found.append((user, passed.value, "constant"))
            else:
                found += [(*each, "constant" if made is not None else "default") for each in values]
        return self._one_of(found, depth)

    def _class_default(self, draft: Draft, base: cst.BaseExpression, name: str, depth: int) -> Origin | None:
        """A field of a (data)class: ``batch_size: int = 32``, unless the one construction passes another value.

        Of the one class of this file, or of one that it imports from, where nothing tells what the object is.
        """
        for each in with_neighbours(self._drafts, draft):
            holders: list[tuple[cst.ClassDef, list[cst.BaseExpression | None]]] = []
            for holder in each.nodes(cst.ClassDef):
                values = list(assignments(each, name, holder))
                if values:
                    holders.append((holder, values))
            if len(holders) > 1:
                return None
            if holders:
                holder = holders[0][0]
                if not holder.bases and not _is_dataclass(holder) and draft.code(base) != holder.name.value:
                    return None
                return self._only_field(draft, name, each, *holders[0], depth)
        return None

    def _only_field(
        self,
        draft: Draft,
        name: str,
        of: Draft,
        holder: cst.ClassDef,
        values: list[cst.BaseExpression | None],
        depth: int,
    ) -> Origin | None:
        found: list[_Candidate] = []
        default: _Candidate = (of, _field_value(values[0]), "default")
        users = {id(each): each for each in (of, draft, *with_word(self._drafts, of, holder.name.value))}
        if any(renames(user, holder.name.value) for user in users.values()):
            return None
        for user in users.values():
            for call in user.nodes(cst.Call):
                if last_part(call.func) in _LIKE and argument(call, name) is not None:
                    return None
                if last_part(call.func) == holder.name.value:
                    if any(arg.star or arg.keyword is None for arg in call.args):
                        return None
                    passed = argument(call, name)
                    found.append((user, passed.value, "constant") if passed is not None else default)
        return self._one_of(found or [default], depth) if len(values) == 1 else None

    # Items and calls.

    def _subscript(self, draft: Draft, node: cst.Subscript, depth: int) -> Origin | None:
        if len(node.slice) != 1 or not isinstance(node.slice[0].slice, cst.Index):
            return None
        key = string_value(node.slice[0].slice.value)
        displays = displays_of(self._drafts, draft, node.value)
        if not key or not displays:
            return None
        return self._one_of([(of, dict_entry(display, key), "dict") for of, display in displays], depth)

    def _call(self, draft: Draft, node: cst.Call, depth: int) -> Origin | None:
        """``int(x)``, and what is the default of a variable of the environment."""
        plain = [arg.value for arg in node.args if arg.keyword is None and not arg.star]
        name = full_name(draft, node.func)
        if name in _CONVERSIONS and len(plain) == len(node.args) == 1:
            origin = self.follow(draft, plain[0], "literal", depth)
            return replace(origin, converted=True) if origin is not None else None
        if isinstance(node.func, cst.Name) and not any(
            is_parameter(each, name) for each in draft.ancestors(node)
        ):  # get = os.environ.get
            held = assigned_once(draft, name, scope_of(draft, node)) or assigned_once(draft, name, draft.module)
            name = full_name(draft, held) if held is not None else name
        default = argument(node, "default")
        other = plain[1] if len(plain) == 2 else default.value if default is not None else None
        key = string_value(plain[0]) if plain else ""
        if name not in _ENVIRONMENT or other is None or not key:
            return None
        # What the script sets itself is no default.
        said = [
            each
            for of in with_word(self._drafts, draft, key)
            for each in of.nodes(cst.SimpleString)
            if string_value(each) == key
        ]
        return self.follow(draft, other, "default", depth) if len(said) == 1 else None


def _is_bound_elsewhere(draft: Draft, name: str) -> bool:
    """Whether a function may bind the name of a scope around it."""
    items = [item for each in draft.nodes(cst.Global) for item in each.names]
    items += [item for each in draft.nodes(cst.Nonlocal) for item in each.names]
    return any(item.name.value == name for item in items)


def _is_local(draft: Draft, node: cst.Name) -> bool:
    """Whether a function around the name binds it."""
    scope = scope_of(draft, node)
    while scope is not draft.module:
        if is_parameter(scope, node.value) or imports(draft, node.value, scope):
            return True
        if any(True for _ in assignments(draft, node.value, scope)):
            return True
        scope = scope_of(draft, scope)
    return False


def _is_dataclass(holder: cst.ClassDef) -> bool:
    decorators = [each.decorator for each in holder.decorators]
    names = [last_part(each.func if isinstance(each, cst.Call) else each) for each in decorators]
    return any(each in ("dataclass", "define", "frozen", "s") for each in names)


def _field_value(value: cst.BaseExpression | None) -> cst.BaseExpression | None:
    """The default of a field: of ``field(default=32)`` 32."""
    default = argument(value, "default") if isinstance(value, cst.Call) and last_part(value.func) == "field" else None
    return default.value if default is not None else value


def _attribute_assigned(draft: Draft, name: str) -> bool:
    """Whether the file assigns ``something.name``; ``self.name`` aside."""
    targets = [each for each in draft.nodes(cst.Attribute) if each.attr.value == name]
    others = [each for each in targets if get_full_name_for_node(each.value) != "self"]
    return any(attribute_assignment(draft, each) for each in others)
