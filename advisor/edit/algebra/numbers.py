"""Which expressions are Python numbers, and which tensors, as far as the text of a file tells."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import libcst as cst

from advisor.edit.callers import callers
from advisor.edit.calls import argument, has_starred, unpacked
from advisor.edit.draft import Draft
from advisor.edit.names import full_name, imported_as, last_part
from advisor.edit.scopes import assignments, is_parameter, parameter_names, scope_of, string_value

_TENSORS = re.compile(r"\btorch\.|\bTensor|\bnn\.|Parameter|\bth\.")
_SETTINGS = re.compile(r"(config|cfg|conf|(?<!kw)args|opts?|options|hparams|settings|flags)$", re.I)
_ANNOTATED = {"int", "float"}
_AROUND = {"None", "Optional", "Union", "typing", "Final", "ClassVar"}  # of an annotation that is one of those
_SIZES = ("ndim", "in_features", "out_features", "embed_dim", "num_heads")  # of tensors and torch's own layers
_COUNTS = ("size", "dim", "numel", "item")
_OF_NUMBERS = ("abs", "round", "pow", "max", "min", "numpy.sqrt", "numpy.log", "numpy.log2", "numpy.exp")


class Numbers:
    """Which expressions of a file are Python numbers: False where a tensor is in them, None where nothing tells."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.told: dict[tuple[cst.CSTNode, str], bool | None] = {}

    def of(self, node: cst.BaseExpression) -> bool | None:
        """What would fail with None is not given it, so None counts as a number here."""
        if _TENSORS.search(self.draft.code(node)) or isinstance(getattr(node, "operator", None), cst.MatrixMultiply):
            return False
        if isinstance(node, (cst.Integer, cst.Float)) or _is_none(node):
            return True
        if isinstance(node, cst.UnaryOperation):
            return self.of(node.expression)
        if isinstance(node, (cst.BinaryOperation, cst.BooleanOperation)):
            return _all((self.of(node.left), self.of(node.right)))
        if isinstance(node, cst.IfExp):
            return _all((self.of(node.body), self.of(node.orelse)))
        if isinstance(node, cst.Name):
            return self._name(node)
        if isinstance(node, cst.Attribute):
            return self._attribute(node)
        if isinstance(node, cst.Call):
            return self._call(node)
        if isinstance(node, cst.Subscript):
            index = node.slice[0].slice
            if len(node.slice) == 1 and isinstance(index, cst.Index):
                named = isinstance(index.value, cst.SimpleString) and self._is_settings(node.value)
                if named or self._is_shape(node.value):
                    return True
            return False if self.of(node.value) is False else None
        return None

    def _call(self, call: cst.Call) -> bool | None:
        name = full_name(self.draft, call.func)
        if name in ("int", "float", "len"):
            return True
        if name in _OF_NUMBERS or name.startswith("math."):
            return _all(self.of(arg.value) for arg in call.args)
        if not isinstance(call.func, cst.Attribute):
            return None
        method, value = call.func.attr.value, call.func.value
        if method in _COUNTS and len(call.args) == (1 if method == "size" else 0):
            return True
        if method == "get" and self._is_settings(value):
            return _all(self.of(arg.value) for arg in call.args[1:]) if call.args[1:] else True
        return False if self.of(value) is False else None

    def _attribute(self, node: cst.Attribute) -> bool | None:
        name, value = node.attr.value, node.value
        if full_name(self.draft, node).startswith("math.") or name in _SIZES or self._is_settings(value):
            return True
        if self.draft.code(value) != "self":
            return True if name.isupper() else None  # a constant of a module
        holder = self.draft.enclosing_class(node)
        return self._member(holder, name) if holder is not None else None

    def _name(self, node: cst.Name) -> bool | None:
        if node.value in ("True", "False"):
            return True
        scope = scope_of(self.draft, node)
        kinds = self._bound(scope, node.value)
        while not kinds and scope is not self.draft.module:
            scope = scope_of(self.draft, scope)
            if not isinstance(scope, cst.ClassDef):  # no method sees the names of its class
                kinds = self._bound(scope, node.value)
        if kinds:
            return _all(kinds)
        imported = imported_as(self.draft, node.value)
        return True if imported.startswith("math.") or node.value.isupper() else None

    # What names and attributes are given

    def _bound(self, scope: cst.CSTNode, name: str) -> list[bool | None]:
        """What a name is given in a scope, each time; what it is while that is being told counts for nothing."""
        if (scope, name) in self.told:
            return [self.told[scope, name]]
        self.told[scope, name] = True
        kinds = [*self._passed(scope, name)] if is_parameter(scope, name) else []
        for node in self.draft.nodes(cst.Name, scope):
            if node.value == name and scope_of(self.draft, node) is scope:
                kinds += self._given(node)
        del self.told[scope, name]
        if kinds:
            self.told[scope, name] = _all(kinds)
        return kinds

    def _member(self, holder: cst.ClassDef, name: str) -> bool | None:
        """What ``self.name`` is in a class, by all that it, its bases and its heirs in the file make it."""
        if (holder, name) in self.told:
            return self.told[holder, name]
        self.told[holder, name] = True
        related, kinds = related_classes(self.draft, holder), list[bool | None]()
        for node in self.draft.nodes(cst.Attribute):
            if node.attr.value == name and last_part(node.value) == "self":
                if self.draft.enclosing_class(node) in related:
                    kinds += self._given(node)
            elif node.attr.value == name and False in self._given(node):
                kinds.append(False)  # from outside
        for each in related:
            for own in self.draft.nodes(cst.Name, each.body):
                if own.value == name and scope_of(self.draft, own) is each:
                    kinds += self._given(own)
            for call in self.draft.nodes(cst.Call, each):
                if last_part(call.func) in ("register_buffer", "register_parameter") and call.args:
                    kinds += [False] if string_value(call.args[0].value) == name else []
        self.told[holder, name] = _all(kinds)
        return self.told[holder, name]

    def _given(self, target: cst.Name | cst.Attribute) -> list[bool | None]:
        """What a statement gives its target: nothing where this is no target, or where it is given None."""
        above, value = self.draft.parent(target), None
        if isinstance(above, cst.AssignTarget):
            value = cst.ensure_type(self.draft.parent(above), cst.Assign).value
        elif isinstance(above, (cst.AnnAssign, cst.AugAssign, cst.NamedExpr)) and above.target is target:
            if isinstance(above, cst.AnnAssign) and self._is_annotated(above.annotation):
                return [True]
            value = above.value
            if value is None:
                return []
        elif isinstance(above, (cst.For, cst.CompFor)) and above.target is target:
            ranged = isinstance(above.iter, cst.Call) and full_name(self.draft, above.iter.func) == "range"
            return [True if ranged else None]
        elif isinstance(above, (cst.Element, cst.StarredElement)):
            return self._unpacked(above)
        elif isinstance(above, cst.AsName):
            return [None]
        return [] if value is None or _is_none(value) else [self.of(value)]

    def _unpacked(self, element: cst.Element | cst.StarredElement) -> list[bool | None]:
        several: cst.CSTNode = element
        above = self.draft.parent(several)
        while isinstance(above, (cst.Element, cst.StarredElement, cst.Tuple, cst.List)):
            several, above = above, self.draft.parent(above)
        if not isinstance(above, cst.AssignTarget):
            return [None] if isinstance(above, (cst.For, cst.CompFor)) and above.target is several else []
        value = cst.ensure_type(self.draft.parent(above), cst.Assign).value
        if not isinstance(several, (cst.Tuple, cst.List)) or element not in several.elements:
            return [None]
        if self._is_shape(value):
            return [True if isinstance(element, cst.Element) else None]
        if isinstance(value, (cst.Tuple, cst.List)) and len(value.elements) == len(several.elements):
            own = value.elements[several.elements.index(element)]
            if isinstance(own, cst.Element):
                return [] if _is_none(own.value) else [self.of(own.value)]
        return [None]

    def _passed(self, function: cst.CSTNode, name: str) -> Iterator[bool | None]:
        """What a parameter is: by its annotation, its default, and what the file's own calls pass.

        Of ``__init__``, which mostly takes numbers and layers, a number unless something says otherwise.
        """
        named: Sequence[cst.Param] = ()
        if isinstance(function, cst.FunctionDef):
            given = function.params
            named = (*given.posonly_params, *given.params, *given.kwonly_params)
        own = next((each for each in named if each.name.value == name), None)
        if own is None or not isinstance(function, cst.FunctionDef):
            yield None
            return
        calls, names = self._calls(function), parameter_names(self.draft, function)
        passed = [found.value for call in calls if (found := argument(call, name, names)) is not None]
        kinds = [self.of(each) for each in passed if not _is_none(each)]
        if own.annotation is not None and _TENSORS.search(self.draft.code(own.annotation.annotation)):
            kinds.append(False)
        numeric = own.annotation is not None and self._is_annotated(own.annotation)
        default = own.default if own.default is not None and not _is_none(own.default) else None
        if default is not None:
            kinds.append(self.of(default))
        if False in kinds:
            yield False
        elif function.name.value == "__init__":
            silent = own.annotation is not None or (default is not None and self.of(default) is None)
            yield True if numeric or not silent else None
        elif numeric:
            yield True
        elif default is None and (not calls or any(has_starred(call) or unpacked(call) for call in calls)):
            yield None
        elif kinds:
            yield _all(kinds)

    def _calls(self, function: cst.FunctionDef) -> list[cst.Call]:
        """The calls of a function in this file; of a module's ``forward``, those of what its class makes."""
        holder = self.draft.enclosing_class(function)
        if holder is None or function.name.value not in ("forward", "__call__"):
            return callers(self.draft, function)
        return [call for call in self.draft.nodes(cst.Call) if self.is_a(call.func, holder.name.value)]

    def is_a(self, node: cst.BaseExpression, name: str) -> bool:
        """Whether an object is what the class of that name makes, by an assignment of that attribute or name."""
        if isinstance(node, cst.Call):
            return last_part(node.func) == name
        holder = self.draft.enclosing_class(node)
        within = holder if holder is not None and self.draft.code(node).startswith("self.") else self.draft.module
        return isinstance(node, (cst.Attribute, cst.Name)) and any(
            isinstance(each.value, cst.Call)
            and last_part(each.value.func) == name
            and any(self.draft.code(target.target) == self.draft.code(node) for target in each.targets)
            for each in self.draft.nodes(cst.Assign, within)
        )

    # What else is known of them

    def _is_shape(self, node: cst.BaseExpression) -> bool:
        """``x.shape``, ``x.size()``, a part of one, a name for one."""
        if isinstance(node, cst.Attribute):
            return node.attr.value == "shape"
        if isinstance(node, cst.Call):
            return last_part(node.func) == "size" and isinstance(node.func, cst.Attribute) and not node.args
        if isinstance(node, cst.Subscript):
            return isinstance(node.slice[0].slice, cst.Slice) and self._is_shape(node.value)
        if not isinstance(node, cst.Name):
            return False
        values = list(assignments(self.draft, node.value, scope_of(self.draft, node)))
        return bool(values) and all(
            each is not None and not isinstance(each, cst.Name) and self._is_shape(each) for each in values
        )

    def _is_settings(self, node: cst.BaseExpression) -> bool:
        """``config``, ``self.cfg``, ``args``, and a parameter ``c: ModelConfig``."""
        if _SETTINGS.search(last_part(node)):
            return True
        scope = scope_of(self.draft, node)
        if not isinstance(node, cst.Name) or not isinstance(scope, cst.FunctionDef):
            return False
        said = (
            self.draft.code(each.annotation.annotation).strip("\"' ")
            for each in (*scope.params.posonly_params, *scope.params.params, *scope.params.kwonly_params)
            if each.name.value == node.value and each.annotation is not None
        )
        return any(_SETTINGS.search(each) for each in said)

    def _is_annotated(self, annotation: cst.Annotation) -> bool:
        words = {*re.findall(r"\w+", self.draft.code(annotation.annotation))}
        return bool(words & _ANNOTATED) and not words - _ANNOTATED - _AROUND


def _all(kinds: Iterable[bool | None]) -> bool | None:
    """What an expression is that is made of such."""
    found = [*kinds]
    return False if False in found else True if found and None not in found else None


def _is_none(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Name) and node.value == "None"


def related_classes(draft: Draft, holder: cst.ClassDef) -> list[cst.ClassDef]:
    """A class, and those of the file that it inherits and that inherit it, over others or not."""
    classes, found = draft.nodes(cst.ClassDef), [holder]
    bases = {each: {last_part(base.value) for base in each.bases} for each in classes}
    above, below = {*bases[holder]}, {holder.name.value}
    for each in reversed(classes):  # in the order of the text a base comes first
        if each.name.value in above and each is not holder:
            above |= bases[each]
            found.append(each)
    for each in classes:
        if bases[each] & below and each is not holder:
            below.add(each.name.value)
            found.append(each)
    return found
