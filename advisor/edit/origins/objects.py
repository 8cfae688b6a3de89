"""Objects of settings: what made them, and what their attributes were given there.

That is a class of the script's, a namespace of a library's, or a dict that is read by attributes; one may hold another,
as ``config.data.size`` does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import libcst as cst

from advisor.edit.callers import Derived, Given, derived_from, named, own_method
from advisor.edit.calls import argument
from advisor.edit.changes import is_item_set, is_set, key_of
from advisor.edit.draft import Draft, Drafts
from advisor.edit.modules import beside, with_word
from advisor.edit.names import full_name, imported_as, last_part
from advisor.edit.origins.displays import Display, displays_of
from advisor.edit.origins.held import held_by, held_by_module, is_local
from advisor.edit.origins.option_origin import Kind
from advisor.edit.scopes import (
    assignments,
    dict_entry,
    imports,
    is_target,
    scope_of,
    self_assignments,
)

Candidate = tuple[Draft, cst.BaseExpression | None, Kind]  # an expression that may give the value; None: computed
Maker = tuple[Draft, cst.Call | cst.Dict]  # what made an object, and the file that it stands in
_DEPTH = 8  # classes above one: guards against circles
# Methods that make of an object something else than what its class says.
_MAGIC = (
    *("__post_init__", "__attrs_post_init__", "model_post_init"),
    *("__new__", "__getattr__", "__getattribute__", "__setattr__"),
)
_VALIDATES = re.compile(r"@(?:\w+\.)?(?:validator|field_validator|root_validator|model_validator)\b")
_PLAIN_CLASS = ("dataclass", "define", "frozen", "mutable", "s", "attrs", "dataclass_json", "total_ordering")
# What is no parameter, or one by its keyword alone.
_OUT_OF_ORDER = re.compile(r"\b(ClassVar|InitVar|KW_ONLY|kw_only|init\s*=)")
# Attributes of attrs, which annotations alone are no fields of but with auto_attribs.
_FIELD = re.compile(r"=\s*(\w+\.)?(ib|attrib|field)\(")
_OF_ATTRIBUTES = re.compile(r"@(attr\.)?(s|attrs)\b(?!.*auto_attribs\s*=\s*True)", re.DOTALL)
# What has its attributes from files or from the environment, too.
_READS_ELSEWHERE = re.compile(r"Settings$")
# Methods and functions by which a namespace gets values that no name tells.
_MERGES = re.compile(r"^(update|setdefault|merge\w*|from_\w+|load\w*|set_nested_value|parse_args|parse_known_args)$")
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

    def class_of(self, draft: Draft, node: cst.BaseExpression) -> Derived | None:
        """The script's class that an expression names."""
        module, _, name = full_name(draft, node).rpartition(".")
        other = beside(self._drafts, draft, module) if module else draft
        if other is None:
            return None
        if isinstance(node, cst.Name) and is_local(draft, node):
            return None
        found = [each for each in other.nodes(cst.ClassDef) if each.name.value == name]
        if len(found) != 1 or scope_of(other, found[0]) is not other.module:
            return None
        return (other, found[0]) if not (module and imports(other, name, other.module)) else None

    def above(self, draft: Draft, holder: cst.ClassDef) -> list[Derived]:
        """The script's classes that a class is derived from, the nearest first."""
        found: list[Derived] = []
        todo = [(draft, holder)]
        while todo and len(found) < _DEPTH:  # as Python does where no class is above two others
            of, each = todo.pop(0)
            if each is not holder:
                found.append((of, each))
            bases = [above for base in each.bases if (above := self.class_of(of, base.value)) is not None]
            todo = [above for above in bases if above[1] is not each] + todo
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
        for user, each in below:  # what is mixed in has what the classes beside it are given
            above += [one for one in self.above(user, each) if one[1] is not holder and one not in [*above, *below]]
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
            if self.class_of(draft, node.func) is not None or self._is_namespace(draft, node) or _is_dict(node):
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
            return held_by(self._drafts, draft, node)
        if not isinstance(node, cst.Attribute) or is_set(self._drafts, draft, node.attr.value):
            return None
        if isinstance(node.value, cst.Name) and not is_local(draft, node.value):
            other = beside(self._drafts, draft, imported_as(draft, node.value.value))
            if other is not None:
                return held_by_module(self._drafts, other, node.attr.value)
        if draft.code(node.value) == "self":
            holder = draft.enclosing_class(node)
            fields = self.of_self(draft, holder, node.attr.value, depth) if holder is not None else None
        else:
            makers = self.makers(draft, node.value, depth - 1)
            fields = self.fields(makers, node.attr.value, depth - 1) if makers else None
        return [(of, value) for of, value, _ in fields] if fields else None

    def of_self(self, draft: Draft, holder: cst.ClassDef, name: str, depth: int) -> list[Candidate] | None:
        """The values of ``self.name`` in a class: what makes it passes, where it is a dataclass, or what it sets."""
        if not any(is_dataclass(each) for _, each in [(draft, holder), *self.above(draft, holder)]):
            values = self.of_class(draft, holder, name, depth)
            return [(*each, "constant") for each in values] if values is not None else None
        unknown: list[Candidate] = [(draft, None, "constant")]
        below = derived_from(self._drafts, draft, holder)
        if below is None:
            return unknown
        made = [named(self._drafts, user, each.name.value) for user, each in [(draft, holder), *below]]
        calls = [each for some in made for each in some or ()]
        return (self.fields(calls, name, depth) if calls and None not in made else None) or unknown

    def fields(self, makers: Iterable[Maker], name: str, depth: int) -> list[Candidate] | None:
        """The values of ``config.name`` of what these made: what they pass, a field's default, what ``__init__`` sets.

        None where it may be anything else.
        """
        found: list[Candidate] = []
        for user, maker in makers:
            if isinstance(maker, cst.Dict) or _is_dict(maker) or self._is_namespace(user, maker):
                displays = self._displays(user, maker)
                if not displays or self._may_be_changed(user, maker, name):
                    return None
                found += [(of, dict_entry(display, name), "dict") for of, display in displays]
                continue
            of = self.class_of(user, maker.func)
            values = self._of_made(user, maker, of, name, depth) if of is not None else None
            if values is None:
                return None
            found += values
        return found

    def _of_made(self, user: Draft, maker: cst.Call, of: Derived, name: str, depth: int) -> list[Candidate] | None:
        """The values of an attribute of what a class's call made."""
        values, classes = self.of_class(*of, name, depth), [of, *self.above(*of)]
        if not all(_is_plain(above, each) for above, each in classes):
            return None
        if any(own_method(each, "__init__") is not None for _, each in classes):
            return [(*each, "constant") for each in values] if values is not None else None
        order = _order(*of) if len(classes) == 1 else []
        if any(arg.star for arg in maker.args) or sum(arg.keyword is None for arg in maker.args) > len(order):
            return None
        passed = argument(maker, name, order)
        if passed is None or (values is None and name not in order):
            return [(*each, "default") for each in values] if values is not None else None
        if any(self_assignments(above, each, name) for above, each in classes):
            return None  # another value, later
        return [(user, passed.value, "constant")]

    def is_same(self, draft: Draft, node: cst.Attribute, of: Draft, target: cst.Attribute, depth: int) -> bool:
        """Whether an attribute that is read is the one of the same names that is assigned, as far as the text tells.

        What is assigned to is a library's node of settings that is written in capitals, ``_C.DATA.SIZE``, or both are
        of the same name or of what was made by the same call.
        """
        read, assigned = _root(node), _root(target)
        if read is None or assigned is None:
            return False
        makers = self.makers(of, assigned, depth) if target.attr.value.isupper() else None
        if makers and all(isinstance(made, cst.Call) and self._is_namespace(user, made) for user, made in makers):
            return True
        root, other = self._named(draft, read, depth), self._named(of, assigned, depth)
        return root is not None and root == other

    def _named(self, draft: Draft, node: cst.BaseExpression, depth: int) -> tuple[str, int, str] | None:
        """The one variable that an expression stands for: file, scope and name of where it is given its only value."""
        values = self._held(draft, node, depth)
        if not values or len(values) != 1 or not depth:
            return None
        of, value = values[0]
        if isinstance(value, cst.Call) and (given_back := self._given_back(of, value)) is not None:
            return self._named(*given_back, depth - 1)
        if isinstance(value, (cst.Name, cst.Attribute)):
            return self._named(of, value, depth - 1)
        return (of.source.path, of.line(value), of.code(value)) if value is not None else None

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

    def _may_be_changed(self, draft: Draft, maker: cst.Call | cst.Dict, name: str) -> bool:
        """Whether a namespace may get another value: by an item, a keyword, a dict that it is updated with, an option.

        A settings file that is read into it is looked at by the one who asks.
        """
        holder = next((each for each in draft.ancestors(maker) if isinstance(each, (cst.Assign, cst.AnnAssign))), None)
        targets = [each.target for each in holder.targets] if isinstance(holder, cst.Assign) else []
        targets += [holder.target] if isinstance(holder, cst.AnnAssign) else []
        for held in {last_part(each) for each in targets} - {""}:
            for user in with_word(self._drafts, draft, held):
                if any(_merges(user, each, held) for each in user.nodes(cst.Call)):
                    return True
                items = [each for each in user.nodes(cst.Subscript) if last_part(each.value) == held]
                if any(not key_of(each) and is_target(user, each) for each in items):
                    return True
        if is_item_set(self._drafts, draft, name):
            return True
        for user in with_word(self._drafts, draft, name):
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
        if isinstance(call.func, cst.Name) and is_local(draft, call.func):
            return None
        functions = [each for each in other.nodes(cst.FunctionDef) if each.name.value == name]
        if len(functions) != 1 or functions[0].decorators or scope_of(other, functions[0]) is not other.module:
            return None
        yields = [each for each in other.nodes(cst.Yield) if other.function(each) is functions[0]]
        returned = [
            each.value
            for each in other.nodes(cst.Return, functions[0])
            if each.value is not None and other.function(each) is functions[0]
        ]
        return (other, returned[0]) if len(returned) == 1 and not yields else None


def _is_dict(call: cst.Call) -> bool:
    """``dict(size=4)``."""
    return last_part(call.func) == "dict" and all(arg.keyword is not None for arg in call.args)


def is_dataclass(holder: cst.ClassDef) -> bool:
    """Whether a class is decorated to have its fields as the parameters of ``__init__``."""
    return any(name in ("dataclass", "define", "frozen", "s") for name in _decorators(holder))


def _order(draft: Draft, holder: cst.ClassDef) -> list[str]:
    """The fields of a dataclass or a named tuple, as its objects are made by position; empty for what is neither."""
    named_tuple = any(last_part(base.value) == "NamedTuple" for base in holder.bases)
    if not named_tuple and (not is_dataclass(holder) or holder.bases):
        return []
    lines = [each for each in holder.body.body if isinstance(each, cst.SimpleStatementLine)]
    if any(not isinstance(each, (cst.SimpleStatementLine, cst.FunctionDef)) for each in holder.body.body):
        return []
    parts = [each for line in lines for each in line.body]
    fields = [each for each in parts if isinstance(each, cst.AnnAssign)]
    if any(_OUT_OF_ORDER.search(draft.code(each)) for each in (*fields, *holder.decorators)):
        return []
    if any(_FIELD.search(draft.code(each)) for each in parts if isinstance(each, cst.Assign)):
        return []
    if any(_OF_ATTRIBUTES.search(draft.code(each)) for each in holder.decorators):
        return []
    return [last_part(each.target) for each in fields]


def _decorators(holder: cst.ClassDef) -> list[str]:
    decorators = [each.decorator for each in holder.decorators]
    return [last_part(each.func if isinstance(each, cst.Call) else each) for each in decorators]


def _is_plain(draft: Draft, holder: cst.ClassDef) -> bool:
    """Whether objects of the class are made of what is passed and of the defaults, and of nothing else."""
    if any(own_method(holder, magic) is not None for magic in _MAGIC) or holder.keywords:
        return False
    if any(_READS_ELSEWHERE.search(last_part(base.value)) for base in holder.bases):
        return False
    return all(each in _PLAIN_CLASS for each in _decorators(holder)) and not _VALIDATES.search(draft.code(holder))


def _root(node: cst.Attribute) -> cst.BaseExpression | None:
    """The object that the first attribute is asked of: ``config`` of ``config.data.size``, or ``self.config``."""
    inner: cst.BaseExpression = node
    while isinstance(inner, cst.Attribute):
        if isinstance(inner.value, cst.Name):
            return inner if inner.value.value == "self" else inner.value
        inner = inner.value
    return None


def _merges(draft: Draft, call: cst.Call, name: str) -> bool:
    """Whether a call puts values into the namespace of that name: ``name.update(…)``, ``OmegaConf.update(name, …)``.

    What a settings file says is known otherwise: ``merge_from_file``.
    """
    method = last_part(call.func)
    if not _MERGES.match(method) or method in ("merge_from_file", "merge_from_list"):
        return False
    inner = call.func.value if isinstance(call.func, cst.Attribute) else None
    while isinstance(inner, (cst.Attribute, cst.Subscript)) and last_part(inner) != name:
        inner = inner.value
    return name in [last_part(each) for each in (inner, *(arg.value for arg in call.args)) if each is not None]


def field_value(value: cst.BaseExpression | None) -> cst.BaseExpression | None:
    """The default of a field: of ``field(default=32)`` and pydantic's ``Field(32)`` 32."""
    if not isinstance(value, cst.Call) or last_part(value.func) not in ("field", "Field", "ib"):
        return value
    default = argument(value, "default", ["default"] if last_part(value.func) != "field" else [])
    return default.value if default is not None else value


def _factory(call: cst.Call) -> cst.BaseExpression | None:
    """What makes the default of a field: of ``field(default_factory=Data)`` Data."""
    if last_part(call.func) not in ("field", "Field", "ib"):
        return None
    made = argument(call, "default_factory") or argument(call, "factory")
    return made.value if made is not None else None
