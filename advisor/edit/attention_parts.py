"""What the parts of an attention that is written out by hand are: products, masks, dropouts, numbers.

Told from the text alone, for the statements of one function of one file.
"""

from __future__ import annotations

import re

import libcst as cst
from libcst.helpers import get_full_name_for_node

from advisor.edit.calls import argument
from advisor.edit.draft import Draft
from advisor.edit.einsum import equation, reordering
from advisor.edit.names import full_name
from advisor.edit.origin import assignments, scope_of

SOFTMAX = ("torch.softmax", "torch.nn.functional.softmax")
SOFTMAXES = ("torch.nn.Softmax", "torch.nn.modules.Softmax")
_PRODUCTS = ("torch.matmul", "torch.bmm")
_DROPOUTS = ("torch.nn.Dropout", "torch.nn.modules.Dropout")
_TRANSPOSED = {("-2", "-1"), ("-1", "-2"), ("2", "3"), ("3", "2"), ("1", "2"), ("2", "1")}
_TENSORS = re.compile(r"\btorch\.|\bTensor|\bnn\.|Parameter|\bth\.")


class Parts:
    """Expressions in ``function``, which may be a method of ``holder``."""

    def __init__(self, draft: Draft, function: cst.FunctionDef) -> None:
        self.draft, self.function = draft, function
        self.holder = draft.enclosing_class(function)

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
        """``self.bias[:, :, :T, :T] == 0`` of a buffer made by ``torch.tril``: the causal mask."""
        if not isinstance(where, cst.Comparison) or len(where.comparisons) != 1 or self.holder is None:
            return False
        target, of = where.comparisons[0], where.left
        if not isinstance(target.operator, cst.Equal) or self.draft.code(target.comparator) != "0":
            return False
        if not isinstance(of, cst.Subscript) or len(of.slice) < 2 or not isinstance(of.value, cst.Attribute):
            return False
        rows, columns = (self.draft.code(each.slice) for each in of.slice[-2:])
        if rows != columns or not re.fullmatch(r"\s*:\s*\w+\s*", rows):
            return False
        for call in self.draft.nodes(cst.Call, self.holder):
            if (get_full_name_for_node(call.func) or "") != "self.register_buffer" or len(call.args) < 2:
                continue
            name, made = call.args[0].value, call.args[1].value
            if isinstance(name, cst.SimpleString) and name.evaluated_value == of.value.attr.value:
                if isinstance(made, cst.Name):
                    values = list(assignments(self.draft, made.value, scope_of(self.draft, call)))
                    made = values[0] if len(values) == 1 and values[0] is not None else made
                return re.match(r"(torch|th)\.tril\(\s*(torch|th)\.ones\(", self.draft.code(made)) is not None
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
        if _TENSORS.search(self.draft.code(node)):
            return False
        for attribute in (node, *self.draft.nodes(cst.Attribute, node)):
            code = self.draft.code(attribute)
            if not isinstance(attribute, cst.Attribute) or not code.startswith("self."):
                continue
            made = [
                each.value
                for each in self.draft.nodes(cst.Assign, self.holder or self.function)
                if any(self.draft.code(target.target) == code for target in each.targets)
            ]
            if not made or any(_TENSORS.search(self.draft.code(value)) for value in made):
                return False
        for name in self.draft.nodes(cst.Name, node):
            assigned = [
                each.value
                for each in self.draft.nodes(cst.Assign, self.function.body)
                if any(self.draft.code(target.target) == name.value for target in each.targets)
            ]
            if any(_TENSORS.search(self.draft.code(value)) for value in assigned):
                return False
        return True

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
