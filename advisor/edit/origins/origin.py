"""Where the value of an expression comes from: the place to change it at, or the command-line option.

Only what the text decides is followed: a literal, a name assigned once, a parameter by its callers or its default, an
``argparse`` option, a class-level default, an entry of a dict display, the default of a variable of the environment.
Of several places the one is meant that says what the run saw. Everything else is None: a rule then gives advice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import libcst as cst

from advisor.edit.callers import calls_of, given, says_all
from advisor.edit.calls import argument
from advisor.edit.changes import is_set, renames, sets_by_text, settings_of
from advisor.edit.draft import Draft, Drafts
from advisor.edit.modules import TooManyFilesError, beside, with_neighbours, with_word
from advisor.edit.names import full_name, imported_as, last_part
from advisor.edit.origins.displays import displays_of
from advisor.edit.origins.held import held_by, held_by_module, is_local
from advisor.edit.origins.hparams import kept_parameter
from advisor.edit.origins.objects import Candidate, Maker, Objects, field_value, is_dataclass
from advisor.edit.origins.option_origin import Kind, Origin, click_option, decorations, is_click, option_of
from advisor.edit.scopes import (
    assigned_once,
    assignments,
    dict_entry,
    imports,
    is_bound_elsewhere,
    is_literal,
    is_parameter,
    literal_equals,
    mentions,
    parameter,
    scope_of,
    self_assignments,
    string_value,
)

UNKNOWN: Final = object()
_DEPTH = 8  # names followed from one to the next before giving up; guards against cycles
_CONVERSIONS = ("int", "float", "str")
# Calls that make an object like another one, with other values.
_LIKE = ("replace", "evolve", "_replace", "merge", "from_dict", "structured", "cls", "model_copy", "copy", "_make")
_CONDITIONAL = (cst.If, cst.Else, cst.While, cst.For, cst.Try, cst.ExceptHandler, cst.Match, cst.Lambda)
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
        self._objects = Objects(drafts)

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
        if isinstance(node, cst.IfExp):
            if asks_for_a_side(draft, node):
                return None
            return self._one_of([(draft, node.body, kind), (draft, node.orelse, kind)], depth - 1)
        if isinstance(node, cst.BooleanOperation):
            return self._or(draft, node, kind, depth - 1)
        return None

    def _or(self, draft: Draft, node: cst.BooleanOperation, kind: Kind, depth: int) -> Origin | None:
        """``args.size or 4``: an option that says something is what counts, and so is what is written.

        Of what is true or false, giving the one side another value may not be enough.
        """
        if not isinstance(node.operator, cst.Or) or isinstance(self._recorded, bool) or self._recorded is UNKNOWN:
            return None
        left = self.follow(draft, node.left, kind, depth)
        if left is None or left.option:
            return left
        if left.says(self._recorded):
            if not left.chosen:
                return left
            right = self.follow(draft, node.right, kind, depth)  # where the other ones are nothing
            return None if right is None or right.option or right.says(self._recorded) else left
        nothing = left.draft.code(left.node) in ("None", "False", "0", '""', "''")
        right = self.follow(draft, node.right, kind, depth) if nothing else None
        return replace(right, chosen=True) if right is not None else None

    def _one_of(self, candidates: Iterable[Candidate], depth: int) -> Origin | None:
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
        return replace(agreeing[0], chosen=True) if len(agreeing) == 1 else None

    # Names.

    def _name(self, draft: Draft, node: cst.Name, depth: int) -> Origin | None:
        scope = scope_of(draft, node)
        while isinstance(scope, (cst.FunctionDef, cst.ClassDef, cst.Lambda)):
            own = parameter(scope, node.value) if isinstance(scope, cst.FunctionDef) else None
            if (own is None and is_parameter(scope, node.value)) or imports(draft, node.value, scope):
                return None  # of a lambda, or *args, **kwargs
            if isinstance(scope, cst.FunctionDef):
                bound = list(assignments(draft, node.value, scope, elements=True))
                if (bound or own) and is_bound_elsewhere(draft, node.value):
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
        return self._one_of([(*each, "constant") for each in held_by_module(self._drafts, draft, name) or ()], depth)

    # Parameters.

    def _from_callers(self, draft: Draft, function: cst.FunctionDef, own: cst.Param, depth: int) -> Origin | None:
        if any(is_click(draft, each, what) for each in decorations(function) for what in ("command", "option")):
            return click_option(draft, function, own.name.value)
        default: Candidate = (draft, own.default, "default")
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
        if isinstance(base, cst.Name) and imported_as(draft, base.value) and not is_local(draft, base):
            other = beside(self._drafts, draft, imported_as(draft, base.value))
            if other is not None:
                return self._constant(other, name, depth) if not is_set(self._drafts, other, name) else None
        if is_set(self._drafts, draft, name):
            return self._set_once(draft, node, depth)
        kept = kept_parameter(draft, node)
        if kept is not None:
            return self._from_callers(draft, *kept, depth)
        makers = self._objects.makers(draft, base, depth)
        if makers:
            return self._field(makers, name, depth)
        if isinstance(base, cst.Attribute) and is_set(self._drafts, draft, base.attr.value):
            return None
        return self._option(draft, name) or self._class_default(draft, base, name, depth)

    def _field(self, makers: Iterable[Maker], name: str, depth: int) -> Origin | None:
        fields = self._objects.fields(makers, name, depth)
        return self._one_of(fields, depth) if fields else None

    def _set_once(self, draft: Draft, node: cst.Attribute, depth: int) -> Origin | None:
        """``args.size = 4``, or ``_C.DATA.SIZE = 4``: the one line that gives an object such an attribute, in any case.

        Where it says what the run saw, and nothing else does: no default, option, key or keyword of that name.
        """
        name, found = node.attr.value, settings_of(self._drafts, draft, node.attr.value)
        if self._recorded is UNKNOWN or sets_by_text(self._drafts, draft):
            return None
        written = _sections(draft, node)
        alike = [each for each in found if _sections(each[0], each[1])[1:] == written[1:]]
        if len(alike) != 1:
            return None
        of, target, value = alike[0]
        if value is None or not is_literal(value) or not literal_equals(value, self._recorded):
            return None
        if any(isinstance(above, _CONDITIONAL) for above in of.ancestors(target)):
            return None
        if not self._objects.is_same(draft, node, of, target, depth) or self._said_otherwise(draft, name):
            return None
        return Origin(of, "constant", value)

    def _said_otherwise(self, draft: Draft, name: str) -> bool:
        """Whether a class, a settings file, an option, a parameter, a key or a keyword may say the same."""
        if any(entry.keys[-1] == name for file in self._drafts.settings() for entry in file.entries):
            return True
        for each in with_word(self._drafts, draft, name):
            if option_of(each, name) is not None or mentions(each, name):
                return True
            if any(isinstance(each.parent(node), cst.Param) for node in each.nodes(cst.Name) if node.value == name):
                return True
            for holder in each.nodes(cst.ClassDef):
                if list(assignments(each, name, holder)) or self_assignments(each, holder, name):
                    return True
        return False

    def _named_attribute(self, draft: Draft, plain: list[cst.BaseExpression], depth: int) -> Origin | None:
        """``getattr(config, "size", 4)``: what the object was made with, or an option."""
        name = string_value(plain[1])
        if not name or is_set(self._drafts, draft, name):
            return None
        makers = self._objects.makers(draft, plain[0], depth)
        if makers:
            return self._field(makers, name, depth)
        if len(plain) > 2 and literal_equals(plain[2], self._recorded):
            return None  # the option, or what stands for it
        return self._option(draft, name) if self._is_parsed(draft, plain[0]) else None

    def _is_parsed(self, draft: Draft, base: cst.BaseExpression) -> bool:
        """Whether an object is what a parser gives back."""
        values = held_by(self._drafts, draft, base) if isinstance(base, cst.Name) else None
        made = [value.func for _, value in values or () if isinstance(value, cst.Call)]
        return bool(values) and len(made) == len(values or ()) and all(map(_parses, made))

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
        if holder is None or is_set(self._drafts, draft, name):
            return None
        fields = self._objects.of_self(draft, holder, name, depth)
        if fields is not None:
            return self._one_of(fields, depth)
        return self._option(draft, name)

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
                if not holder.bases and not is_dataclass(holder) and draft.code(base) != holder.name.value:
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
        found: list[Candidate] = []
        default: Candidate = (of, field_value(values[0]), "default")
        users = {id(each): each for each in (of, draft, *with_word(self._drafts, of, holder.name.value))}
        if any(renames(user, holder.name.value) for user in users.values()):
            return None
        for user in users.values():
            for call in user.nodes(cst.Call):
                if last_part(call.func) in _LIKE and _may_give(user, call, holder, name):
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

    def _item_or(
        self, draft: Draft, plain: list[cst.BaseExpression], of: Draft, display: cst.Dict | cst.Call
    ) -> Candidate:
        """What ``get(key)`` or ``get(key, default)`` of a dict gives."""
        key = string_value(plain[0])
        entry = dict_entry(display, key) if key else None
        if entry is not None or not key or len(plain) == 1 or not says_all(display):
            return of, entry, "dict"
        return draft, plain[1], "default"

    def _call(self, draft: Draft, node: cst.Call, depth: int) -> Origin | None:
        """``int(x)``, and what is the default of a variable of the environment."""
        plain = [arg.value for arg in node.args if arg.keyword is None and not arg.star]
        name = full_name(draft, node.func)
        if isinstance(node.func, cst.Attribute) and node.func.attr.value == "get" and plain and len(plain) < 3:
            displays = displays_of(self._drafts, draft, node.func.value)
            if displays and len(plain) == len(node.args):
                return self._one_of([self._item_or(draft, plain, *each) for each in displays], depth)
        if name == "getattr" and len(plain) == len(node.args) > 1:
            return self._named_attribute(draft, plain, depth)
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


def asks_for_a_side(draft: Draft, node: cst.IfExp) -> bool:
    """Whether the condition asks for what one of its sides reads, as ``n if n < 32 else 32`` does."""
    return any(not _read(draft, node.test).isdisjoint(_read(draft, side)) for side in _sides(node))


def _sides(node: cst.BaseExpression) -> list[cst.BaseExpression]:
    """What a condition, and those in it, choose between."""
    return [*_sides(node.body), *_sides(node.orelse)] if isinstance(node, cst.IfExp) else [node]


def _read(draft: Draft, within: cst.BaseExpression) -> set[str]:
    """Names, attributes and items that an expression reads, as they are written: ``args.size``."""
    kinds = (cst.Name, cst.Attribute, cst.Subscript)
    found = [node for kind in kinds for node in draft.nodes(kind, within)]
    return {draft.code(node) for node in found if node is within or not isinstance(draft.parent(node), kinds[1:])}


def _parses(made: cst.BaseExpression) -> bool:
    return last_part(made) in ("parse_args", "parse_known_args")


def _sections(draft: Draft, node: cst.Attribute) -> list[str]:
    """What an attribute is asked of, its own name last; the first is the object, of whatever name."""
    names = draft.code(node).split(".")
    return names[1:] if names[0] == "self" and len(names) > 2 else names


def _may_give(draft: Draft, call: cst.Call, holder: cst.ClassDef, name: str) -> bool:
    """Whether a call that makes an object like another one may give it another value for the field."""
    if any(argument(call, each) is not None for each in (name, "update")):
        return True
    if any(last_part(arg.value) == holder.name.value for arg in call.args):
        return True  # from_dict(Config, values)
    of = draft.enclosing_class(call)
    own = last_part(call.func) != "cls" or (of is not None and of.name.value == holder.name.value)
    return own and any(arg.star for arg in call.args)
