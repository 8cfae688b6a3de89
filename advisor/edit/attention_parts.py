"""What the parts of an attention that is written out by hand are: products, masks, dropouts, numbers.

Told from the text alone, for the statements of one function of one file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import libcst as cst

from advisor.edit.calls import argument, has_starred, unpacked
from advisor.edit.draft import Draft
from advisor.edit.einsum import equation, reordering
from advisor.edit.names import full_name, imported_as, last_part
from advisor.edit.origin import assignments, callers, is_parameter, parameter_names, scope_of

SOFTMAX = ("torch.softmax", "torch.nn.functional.softmax")
SOFTMAXES = ("torch.nn.Softmax", "torch.nn.modules.Softmax")
_PRODUCTS = ("torch.matmul", "torch.bmm")
_DROPOUTS = ("torch.nn.Dropout", "torch.nn.modules.Dropout")
_TRANSPOSED = {("-2", "-1"), ("-1", "-2"), ("2", "3"), ("3", "2"), ("1", "2"), ("2", "1")}
_TENSORS = re.compile(r"\btorch\.|\bTensor|\bnn\.|Parameter|\bth\.")
_SETTINGS = re.compile(r"(config|cfg|conf|(?<!kw)args|opts?|options|hparams|settings|flags)$", re.I)
_ANNOTATED = {"int", "float"}
_AROUND = {"None", "Optional", "Union", "typing", "Final", "ClassVar"}  # of an annotation that is one of those
_SIZES = ("ndim", "in_features", "out_features", "embed_dim", "num_heads")  # of tensors and torch's own layers
_COUNTS = ("size", "dim", "numel", "item")
_OF_NUMBERS = ("abs", "round", "pow", "max", "min", "numpy.sqrt", "numpy.log", "numpy.log2", "numpy.exp")
_CONVERSIONS = ("bool", "byte", "float", "half", "int", "long", "to", "type", "contiguous")
_ROWS_AND_COLUMNS = 2
_BUFFER = ("name", "tensor")
_OF_LAYERS = ("bias", "weight")
_DEPTH = 8  # names followed from one to the next; guards against cycles


class Parts:
    """Expressions in ``function``, which may be a method of ``holder``."""

    def __init__(self, draft: Draft, function: cst.FunctionDef) -> None:
        self.draft, self.function = draft, function
        self.holder = draft.enclosing_class(function)
        self.numbers = _Numbers(draft)

    def factors(self, node: cst.CSTNode) -> tuple[cst.BaseExpression, cst.BaseExpression] | None:
        """The factors of a matrix product."""
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.MatrixMultiply):
            return node.left, node.right
        if not isinstance(node, cst.Call) or any(arg.star or arg.keyword is not None for arg in node.args):
            return None
        values = [arg.value for arg in node.args]
        if len(values) == 2 and full_name(self.draft, node.func) in _PRODUCTS:
            return values[0], values[1]
        if len(values) == 1 and isinstance(node.func, cst.Attribute) and node.func.attr.value in ("matmul", "bmm"):
            return node.func.value, values[0]
        return None

    def weighted(self, node: cst.CSTNode) -> tuple[cst.BaseExpression, cst.BaseExpression, str] | None:
        """The factors of a second product, and what has its result's dimensions in order."""
        factors = self.factors(node)
        if factors is not None:
            return *factors, ""
        letters = equation(self.draft, node)
        if letters is None or not isinstance(node, cst.Call):
            return None
        weights, values, result = letters
        heads, query, key = weights[:-2], weights[-2], weights[-1]
        (number,) = {*values} - {*weights} or {""}
        if {*values} != {*heads, key, number} or {*result} != {*heads, query, number}:
            return None
        v = _reordered(node.args[2].value, self.draft, values, heads + key + number)
        return node.args[1].value, v, reordering(heads + query + number, result)

    def summed(self, node: cst.CSTNode) -> tuple[cst.BaseExpression, cst.BaseExpression] | None:
        """The factors of ``torch.einsum("bihd,bjhd->bhij", q, k)``, as of a matrix product of theirs."""
        letters = equation(self.draft, node)
        if letters is None or not isinstance(node, cst.Call):
            return None
        queries, keys, scores = letters
        heads, query, key = scores[:-2], scores[-2], scores[-1]
        (number,) = {*queries} - {*scores} or {""}
        if {*queries} != {*heads, query, number} or {*keys} != {*heads, key, number}:
            return None
        q = _reordered(node.args[1].value, self.draft, queries, heads + query + number)
        k = _reordered(node.args[2].value, self.draft, keys, heads + key + number)
        return q, cst.parse_expression(f"{primary(self.draft.code(k))}.transpose(-2, -1)")

    def transposed(self, k: cst.BaseExpression, batched: bool) -> str:
        """The keys, rows as the function wants them: a transposition written out is taken back."""
        if isinstance(k, cst.Attribute) and k.attr.value == "mT":
            return self.draft.code(k.value)
        if isinstance(k, cst.Call) and isinstance(k.func, cst.Attribute) and k.func.attr.value == "transpose":
            dims = tuple(self.draft.code(arg.value) for arg in k.args)
            of_three = {"1", "2"} == set(dims)
            if dims in _TRANSPOSED and (batched or not of_three):
                return self.draft.code(k.func.value)
        return f"{primary(self.draft.code(k))}.transpose(-2, -1)"

    def kept(self, masked: cst.BaseExpression) -> str:
        """True where `masked` is False."""
        if isinstance(masked, cst.Comparison) and len(masked.comparisons) == 1:
            target = masked.comparisons[0]
            if isinstance(target.operator, cst.Equal) and self.draft.code(target.comparator) in ("0", "False"):
                return f"{self.draft.code(masked.left)} != {self.draft.code(target.comparator)}"
        if isinstance(masked, cst.UnaryOperation) and isinstance(masked.operator, cst.BitInvert):
            return self.draft.code(masked.expression)
        return f"~{primary(self.draft.code(masked))}"

    def is_triangle(self, where: cst.BaseExpression) -> bool:
        """``self.bias[:, :, :T, :T] == 0`` of a buffer that ``torch.tril`` made and nothing else changed."""
        if not isinstance(where, cst.Comparison) or len(where.comparisons) != 1 or self.holder is None:
            return False
        target, of = where.comparisons[0], where.left
        if not isinstance(target.operator, cst.Equal) or self.draft.code(target.comparator) != "0":
            return False
        if not isinstance(of, cst.Subscript) or len(of.slice) < _ROWS_AND_COLUMNS:
            return False
        if not isinstance(of.value, cst.Attribute) or self.draft.code(of.value.value) != "self":
            return False
        *before, rows, columns = (self.draft.code(each.slice).strip() for each in of.slice)
        if rows != columns or not re.fullmatch(r":\s*\w+", rows) or {*before} - {":", "0", "None", "..."}:
            return False
        name, made, holders = of.value.attr.value, list[int | None](), list[cst.ClassDef | None]()
        related = _related(self.draft, self.holder)
        for call in self.draft.nodes(cst.Call):
            given = argument(call, "name", _BUFFER)
            if last_part(call.func) != "register_buffer" or given is None or _said(given.value) != name:
                continue
            holder, tensor = self.draft.enclosing_class(call), argument(call, "tensor", _BUFFER)
            if self.draft.code(call.func).startswith("self.") and holder not in related:
                continue
            made.append(_dimensions(self.draft, tensor.value) if tensor is not None else None)
            holders.append(holder)
        if len({*made}) != 1 or made[0] is None or self.holder not in holders or self._is_changed(name, related):
            return False
        return "..." in before or len([*filter("None".__ne__, before)]) == made[0] - _ROWS_AND_COLUMNS

    def _is_changed(self, name: str, related: list[cst.ClassDef]) -> bool:
        """Whether anything in the file changes ``self.name`` of these classes, or gives it another value."""
        for node in self.draft.nodes(cst.Attribute):
            if node.attr.value != name or not (change := _change(self.draft, node)):
                continue
            if self.draft.code(node.value) == "self":
                if self.draft.enclosing_class(node) in related:
                    return True
            elif name not in _OF_LAYERS or change == "part":
                return True
            elif any(self.numbers.is_a(node.value, each.name.value) for each in related):
                return True  # any other may well be a layer's: `nn.init.zeros_(module.bias)`
        return False

    def drops(self, name: cst.BaseExpression) -> bool:
        """Whether this is an ``nn.Dropout``: the object's own, or what every call of the function gives it, or None."""
        if not isinstance(name, cst.Name):
            made = self.made(name)
            return made is not None and full_name(self.draft, made.func) in _DROPOUTS
        parameters = {
            each.name.value: each for each in (*self.function.params.params, *self.function.params.kwonly_params)
        }
        own = parameters.get(name.value)
        if (
            own is None
            or self.holder is not None
            or (own.default is not None and self.draft.code(own.default) != "None")
        ):
            return False
        if list(assignments(self.draft, name.value, self.function)):
            return False
        uses = [each for each in self.draft.nodes(cst.Name) if each.value == self.function.name.value]
        calls = [self.draft.parent(each) for each in uses if each is not self.function.name]
        values = []
        for call in calls:
            if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Name) or any(a.star for a in call.args):
                return False
            given = argument(call, name.value, tuple(parameters))
            if given is not None and self.draft.code(given.value) != "None":
                values.append(given.value)
        kinds = [self.made(each, self.draft.enclosing_class(each)) for each in values]
        return bool(values) and all(
            each is not None and full_name(self.draft, each.func) in _DROPOUTS for each in kinds
        )

    def made(self, name: cst.BaseExpression, holder: cst.ClassDef | None = None) -> cst.Call | None:
        """The call that ``self.name`` is made by, where the class assigns it exactly once."""
        code, holder = self.draft.code(name), holder or self.holder
        if holder is None or not code.startswith("self."):
            return None
        found = [
            each.value
            for each in self.draft.nodes(cst.Assign, holder)
            if any(self.draft.code(target.target) == code for target in each.targets)
        ]
        return found[0] if len(found) == 1 and isinstance(found[0], cst.Call) else None

    def is_number(self, node: cst.BaseExpression) -> bool:
        """Whether an expression is a Python number as far as the text tells: no tensor, no learned temperature."""
        return self.numbers.of(node) is True

    def is_default(self, scale: str, queries: cst.BaseExpression, key: str) -> bool:
        """``1 / math.sqrt(q.size(-1))``, which the function does by itself."""
        names = {self.draft.code(queries), key}
        sizes = {f"{name}.{size}" for name in names for size in ("size(-1)", "shape[-1]")}
        plain = re.sub(r"[\s()]", "", scale)
        return any(
            plain in (re.sub(r"[\s()]", "", form) for form in (f"1 / math.sqrt({s})", f"1.0 / math.sqrt({s})"))
            or plain in (re.sub(r"[\s()]", "", form) for form in (f"1 / ({s} ** 0.5)", f"{s} ** -0.5"))
            for s in sizes
        )


class _Numbers:
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
        related, kinds = _related(self.draft, holder), list[bool | None]()
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
                    kinds += [False] if _said(call.args[0].value) == name else []
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


def _said(node: cst.BaseExpression) -> str:
    """The text of a string that is written out."""
    value = node.evaluated_value if isinstance(node, cst.SimpleString) else ""
    return value if isinstance(value, str) else ""


def _related(draft: Draft, holder: cst.ClassDef) -> list[cst.ClassDef]:
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


def _dimensions(draft: Draft, node: cst.BaseExpression, depth: int = _DEPTH) -> int | None:
    """How many dimensions a lower triangle of ones has, those of size 1 before its rows included; None: no such."""
    if isinstance(node, cst.Name):
        scope = scope_of(draft, node)
        values = list(assignments(draft, node.value, scope))
        if not depth or len(values) != 1 or values[0] is None or is_parameter(scope, node.value):
            return None
        return None if _is_changed(draft, node.value, scope) else _dimensions(draft, values[0], depth - 1)
    if isinstance(node, cst.Subscript):
        before = _dimensions(draft, node.value, depth)
        indices = [draft.code(each.slice).strip() for each in node.slice]
        added = indices.count("None")
        others = indices[added:]
        return None if before is None or {*others} - {":", "..."} or "None" in others else before + added
    if not isinstance(node, cst.Call):
        return None
    if full_name(draft, node.func) == "torch.tril":
        ones = node.args[0].value if len(node.args) == 1 and not node.args[0].star else None
        known = isinstance(ones, cst.Call) and full_name(draft, ones.func) == "torch.ones"
        return _squares(draft, ones.args) if known and isinstance(ones, cst.Call) else None
    if not isinstance(node.func, cst.Attribute):
        return None
    before, method = _dimensions(draft, node.func.value, depth), node.func.attr.value
    if before is None or method in _CONVERSIONS:
        return before
    if method in ("view", "reshape"):
        return _squares(draft, node.args)
    if method == "unsqueeze" and len(node.args) == 1:
        at = draft.code(node.args[0].value)
        first = at.isdigit() and int(at) <= before - _ROWS_AND_COLUMNS
        return before + 1 if first or at == "-3" else None
    return None


def _squares(draft: Draft, args: Sequence[cst.Arg]) -> int | None:
    """How many sizes these arguments say, where the last two are the same and those before them 1."""
    if any(arg.star or (arg.keyword is not None and arg.keyword.value not in ("dtype", "device")) for arg in args):
        return None
    sizes = [arg.value for arg in args if arg.keyword is None]
    if len(sizes) == 1 and isinstance(sizes[0], (cst.Tuple, cst.List)):
        sizes = [each.value for each in sizes[0].elements if isinstance(each, cst.Element)]
    *before, rows, columns = ("", "", *map(draft.code, sizes))
    return len(sizes) if rows == columns and {*before} <= {"", "1"} and len(sizes) >= _ROWS_AND_COLUMNS else None


def _is_changed(draft: Draft, name: str, scope: cst.CSTNode, depth: int = _DEPTH) -> bool:
    """Whether a scope changes the tensor that a name of its own stands for, where that tensor lies."""
    uses = [each for each in draft.nodes(cst.Name, scope) if each.value == name and scope_of(draft, each) is scope]
    return any(_change(draft, each, depth) not in ("", "bound") for each in uses)


def _change(draft: Draft, use: cst.Name | cst.Attribute, depth: int = _DEPTH) -> str:
    """What a use of a tensor's name does to the tensor.

    "part": a store into a part of it, also through a view (``.squeeze()[0] = 1``), and one that has a name. "whole":
    ``+=``, a method as ``fill_``, a function as ``nn.init.ones_``. "bound": it stands for another one. "": nothing.
    """
    top: cst.CSTNode = use
    above, change = draft.parent(top), "whole"
    if isinstance(above, cst.Attribute) and above.value is not top:
        return ""  # the end of another name
    while (
        (isinstance(above, (cst.Attribute, cst.Subscript)) and above.value is top)
        or (isinstance(above, cst.Call) and above.func is top)
        or isinstance(above, (cst.Element, cst.Tuple))
    ):
        if isinstance(above, cst.Call) and last_part(top).endswith("_"):
            return change
        change = "part" if isinstance(above, cst.Subscript) else change
        top, above = above, draft.parent(above)
    if isinstance(above, cst.AugAssign) and above.target is top:
        return change
    if isinstance(above, cst.AssignTarget) or (isinstance(above, cst.AnnAssign) and above.target is top):
        return "bound" if isinstance(top, (cst.Name, cst.Tuple)) or top is use else "part"
    if isinstance(above, cst.Arg) and above.value is top:
        call = draft.parent(above)
        into = above.keyword is not None and above.keyword.value == "out"
        return change if into or (isinstance(call, cst.Call) and last_part(call.func).endswith("_")) else ""
    if isinstance(above, cst.Assign) and depth:
        views = [each.target for each in above.targets if isinstance(each.target, cst.Name)]
        if any(_is_changed(draft, each.value, scope_of(draft, each), depth - 1) for each in views):
            return "part"
    return ""


def _reordered(node: cst.BaseExpression, draft: Draft, letters: str, wanted: str) -> cst.BaseExpression:
    """`node`, whose dimensions are named by `letters`, with its dimensions in the order `wanted`."""
    order = reordering(letters, wanted)
    return cst.parse_expression(primary(draft.code(node)) + order) if order else node


def operand(test: str) -> str:
    """A condition that an ``and`` may follow."""
    return f"({test})" if re.search(r"\b(or|if|lambda)\b|:=", test) else test


def primary(code: str) -> str:
    """Code that a ``.name`` or an operator may follow."""
    if "\n" in code:  # within the parentheses of a call; not where it goes
        return f"({code})"
    node = cst.parse_expression(code)
    plain = (cst.Name, cst.Attribute, cst.Call, cst.Subscript, cst.Integer, cst.Float)
    return code if isinstance(node, plain) or node.lpar else f"({code})"
