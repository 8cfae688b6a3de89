"""What the parts of an attention that is written out by hand are: products, masks, dropouts, numbers.

Told from the text alone, for the statements of one function of one file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import libcst as cst

from advisor.edit.algebra.einsum import equation, reordering
from advisor.edit.algebra.numbers import Numbers, related_classes
from advisor.edit.calls import argument
from advisor.edit.draft import Draft
from advisor.edit.names import full_name, last_part
from advisor.edit.scopes import assignments, is_parameter, scope_of, string_value

SOFTMAX = ("torch.softmax", "torch.nn.functional.softmax")
SOFTMAXES = ("torch.nn.Softmax", "torch.nn.modules.Softmax")
_PRODUCTS = ("torch.matmul", "torch.bmm")
_DROPOUTS = ("torch.nn.Dropout", "torch.nn.modules.Dropout")
_TRANSPOSED = {("-2", "-1"), ("-1", "-2"), ("2", "3"), ("3", "2"), ("1", "2"), ("2", "1")}
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
        self.numbers = Numbers(draft)

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
        related = related_classes(self.draft, self.holder)
        for call in self.draft.nodes(cst.Call):
            given = argument(call, "name", _BUFFER)
            if last_part(call.func) != "register_buffer" or given is None or string_value(given.value) != name:
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
