"""Objects of settings: what made them, and what their attributes were given there.

That is a class of the script's, a namespace of a library's, or a dict that is read by attributes; one may hold another,
as ``config.data.size`` does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import libcst as cst
from libcst.helpers import get_full_name_for_node

from advisor.edit.callers import Derived, Given, derived_from, own_method
from advisor.edit.calls import argument
from advisor.edit.displays import Display, displays_of
from advisor.edit.draft import Draft, Drafts
from advisor.edit.held import held_by
from advisor.edit.modules import beside, with_word
from advisor.edit.names import full_name, last_part
from advisor.edit.option_origin import Kind
from advisor.edit.scopes import (
    assignments,
    attribute_assignment,
    dict_entry,
    imports,
    scope_of,
    self_assignments,
    string_value,
)

Candidate = tuple[Draft, cst.BaseExpression | None, Kind]  # an expression that may give the value; None: computed
Maker = tuple[Draft, cst.Call | cst.Dict]  # what made an object, and the file that it stands in
_DEPTH = 8  # classes above one: guards against circles
# Attributes by names that the text does not tell.
_SETS = re.compile(r"\bsetattr\(|\b__dict__\.update\(|\bvars\([^()]*\)\.update\(|\b__dict__\[")
# Methods that make of an object something else than what its class says.
_MAGIC = ("__post_init__", "__new__", "__getattr__", "__getattribute__", "__setattr__")
# Libraries' objects whose attributes are what their keywords say, or what a dict has.
_NAMESPACES = (
    *("types.SimpleNamespace", "argparse.Namespace", "easydict.EasyDict", "munch.Munch", "munch.munchify", "box.Box"),
    *("addict.Dict", "omegaconf.OmegaConf.create", "ml_collections.ConfigDict", "yacs.config.CfgNode"),
    *("ml_collections.config_dict.ConfigDict", "mmengine.Config", "mmengine.ConfigDict"),
    "fvcore.common.config.CfgNode",
)


class Objects:
    """Looks objects up in the script's modules."""

    def __init__(self, drafts: Drafts) -> None:
        self._drafts = drafts

    def set_by_text(self, draft: Draft) -> bool:
        """Whether any of the modules gives attributes by names that the text does not tell."""
        files = {draft.source.path, *self._drafts.sources.modules}
        return any(_SETS.search(self._drafts.sources.text(each)) for each in files if self._drafts.sources.has(each))

    def set_somewhere(self, draft: Draft, name: str) -> bool:
        """Whether any of the modules gives an object, or a module, an attribute of that name, or may."""
        return self.set_by_text(draft) or bool(self.settings_of(draft, name))

    def settings_of(self, draft: Draft, name: str) -> list[tuple[Draft, cst.Attribute, cst.BaseExpression | None]]:
        """Where the modules assign ``something.name``, and what; ``self.name`` aside."""
        return [
            (user, target, value)
            for user in with_word(self._drafts, draft, name)
            for target in user.nodes(cst.Attribute)
            if target.attr.value == name and get_full_name_for_node(target.value) != "self"
            for value in attribute_assignment(user, target)
        ]

    def class_of(self, draft: Draft, node: cst.BaseExpression) -> Derived | None:
        """The script's class that an expression names."""
        module, _, name = full_name(draft, node).rpartition(".")
        other = beside(self._drafts, draft, module) if module else draft
        if other is None:
            return None
        found = [each for each in other.nodes(cst.ClassDef) if each.name.value == name]
        return (other, found[0]) if len(found) == 1 and not (module and imports(other, name, other.module)) else None

    def above(self, draft: Draft, holder: cst.ClassDef) -> list[Derived]:
        """The script's classes that a class is derived from, the nearest first."""
        found: list[Derived] = []
        todo = [(draft, holder)]
        while todo and len(found) < _DEPTH:
            of, each = todo.pop(0)
            bases = [above for base in each.bases if (above := self.class_of(of, base.value)) is not None]
            found += bases
            todo += bases
        return found

    def of_class(self, draft: Draft, holder: cst.ClassDef, name: str, depth: int) -> list[Given] | None:
        """What a class, and those derived from it, give ``self.name``; else what the nearest one above it does."""
        if own_method(holder, name) is not None or not depth:
            return [(draft, None)]  # computed
        found: list[Given] = []
        below = derived_from(self._drafts, draft, holder)
        if below is None:
            return [(draft, None)]
        above = self.above(draft, holder)
        for user, each in [(draft, holder), *below]:
            found += [(user, value) for value in self_assignments(user, each, name)]
            found += [(user, field_value(value)) for value in assignments(user, name, each)]
        for user, each in above:
            found += [(user, value) for value in self_assignments(user, each, name)]
        for user, each in above if not found else ():
            values = list(assignments(user, name, each))
            if values:
                return [(user, field_value(value)) for value in values]
        return found or None

    def makers(self, draft: Draft, node: cst.BaseExpression, depth: int) -> list[Maker] | None:
        """What may have made an object; None where that is not known of all that it may be."""
        if not depth:
            return None
        if isinstance(node, cst.Dict):
            return [(draft, node)]
        if isinstance(node, cst.Call):
            factory = _factory(node)
            if factory is not None:
                made = factory.body if isinstance(factory, cst.Lambda) else cst.Call(func=factory)
                return self.makers(draft, made, depth - 1)
            if self.class_of(draft, node.func) is not None or self._is_namespace(draft, node):
                return [(draft, node)]
            given_back = self._given_back(draft, node)
            return self.makers(*given_back, depth - 1) if given_back is not None else None
        found: list[Maker] = []
        for of, value in self._held(draft, node, depth) or ():
            makers = self.makers(of, value, depth - 1) if value is not None else None
            if makers is None:
                return None
            found += makers
        return found or None

    def _held(self, draft: Draft, node: cst.BaseExpression, depth: int) -> list[Given] | None:
        """What a name or an attribute may stand for."""
        if isinstance(node, cst.Name):
            values = held_by(self._drafts, draft, node)
            elsewhere = any(of is not draft for of, _ in values or ())
            return None if elsewhere and self.set_somewhere(draft, node.value) else values
        if not isinstance(node, cst.Attribute) or self.set_somewhere(draft, node.attr.value):
            return None
        if draft.code(node.value) == "self":
            holder = draft.enclosing_class(node)
            return self.of_class(draft, holder, node.attr.value, depth) if holder is not None else None
        makers = self.makers(draft, node.value, depth - 1)
        fields = self.fields(makers, node.attr.value, depth - 1) if makers else None
        return [(of, value) for of, value, _ in fields] if fields else None

    def fields(self, makers: Iterable[Maker], name: str, depth: int) -> list[Candidate] | None:
        """The values of ``config.name`` of what these made: what they pass, a field's default, what ``__init__`` sets.

        None where it may be anything else.
        """
        found: list[Candidate] = []
        for user, maker in makers:
            if isinstance(maker, cst.Dict) or self._is_namespace(user, maker):
                displays = self._displays(user, maker)
                if not displays or self._is_item_assigned(user, name):
                    return None
                found += [(of, dict_entry(display, name), "dict") for of, display in displays]
                continue
            of = self.class_of(user, maker.func)
            values = self.of_class(*of, name, depth) if of is not None else None
            if of is None or values is None:
                return None
            classes = [of, *self.above(*of)]
            if any(own_method(each, magic) is not None for _, each in classes for magic in _MAGIC):
                return None
            passed = argument(maker, name)
            made = next((own for _, each in classes if (own := own_method(each, "__init__")) is not None), None)
            if made is None and any(arg.star or arg.keyword is None for arg in maker.args):
                return None
            if made is None and passed is not None:
                found.append((user, passed.value, "constant"))
            else:
                found += [(*each, "constant" if made is not None else "default") for each in values]
        return found

    def is_namespace(self, draft: Draft, node: cst.BaseExpression, depth: int = _DEPTH) -> bool:
        """Whether an expression is a library's namespace, or a dict read by attributes, and nothing else."""
        makers = self.makers(draft, node, depth)
        return bool(makers) and all(
            isinstance(maker, cst.Call) and self._is_namespace(user, maker) for user, maker in makers or ()
        )

    def _is_namespace(self, draft: Draft, call: cst.Call) -> bool:
        of = self.class_of(draft, call.func)
        if of is not None:
            return any(last_part(base.value) == "dict" for base in of[1].bases)
        return full_name(draft, call.func) in _NAMESPACES

    def _displays(self, draft: Draft, maker: cst.Call | cst.Dict) -> list[Display]:
        """The dicts that a namespace has its attributes of."""
        if isinstance(maker, cst.Dict) or all(arg.keyword is not None for arg in maker.args):
            return [(draft, maker)]
        (first, *more) = maker.args
        return displays_of(self._drafts, draft, first.value) if not more and first.star != "*" else []

    def _is_item_assigned(self, draft: Draft, name: str) -> bool:
        """Whether any of the modules assigns ``something["name"]``, or updates a dict by such a keyword."""
        for user in with_word(self._drafts, draft, name):
            for item in user.nodes(cst.Subscript):
                index = item.slice[0].slice
                if isinstance(index, cst.Index) and string_value(index.value) == name:
                    above = user.parent(item)
                    if isinstance(above, (cst.AssignTarget, cst.AugAssign, cst.Del)):
                        return True
            for call in user.nodes(cst.Call):
                if last_part(call.func) in ("update", "setdefault") and argument(call, name) is not None:
                    return True
        return False

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


def field_value(value: cst.BaseExpression | None) -> cst.BaseExpression | None:
    """The default of a field: of ``field(default=32)`` and pydantic's ``Field(32)`` 32."""
    if not isinstance(value, cst.Call) or last_part(value.func) not in ("field", "Field", "ib"):
        return value
    default = argument(value, "default", ["default"] if last_part(value.func) == "Field" else [])
    return default.value if default is not None else value


def _factory(call: cst.Call) -> cst.BaseExpression | None:
    """What makes the default of a field: of ``field(default_factory=Data)`` Data."""
    if last_part(call.func) not in ("field", "Field", "ib"):
        return None
    made = argument(call, "default_factory") or argument(call, "factory")
    return made.value if made is not None else None
