"""Attention that is written out in a way that only its author can make one call: where it is, for them to look at.

Values are followed through the statements of a function whatever their shapes are made on the way: scores, the product
of two tensors; weights, a softmax of scores over the last dimension, which may be written out itself, even in another
function; and the product that takes the weights. Weights that are taken by anything else (returned, stored, averaged)
are looked at, and then nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from advisor.edit.algebra.attention_parts import SOFTMAX, SOFTMAXES, Parts
from advisor.edit.calls import argument
from advisor.edit.draft import Draft
from advisor.edit.names import full_name

_SCORES, _WEIGHTS = "scores", "weights"
_EXPONENTS, _SUMS = "exponents", "sums"  # of a softmax that is written out
_LAST = ("-1", "2", "3")  # the last dimension of three or four; that it is the keys' the run says
# What gives the same numbers, or numbers that a mask and a scale can make of them.
_LAYOUT = (
    *("view", "reshape", "transpose", "permute", "flatten", "unflatten", "squeeze", "unsqueeze", "contiguous"),
    *("to", "type_as", "float", "half", "bfloat16", "expand", "clone"),
)
_ARITHMETIC = ("masked_fill", "masked_fill_", "add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_")
_HARMLESS = ("shape", "dtype", "device", "ndim", "size", "dim")
_FACTORS = {"torch.einsum": slice(1, 3), "torch.baddbmm": slice(1, 3)}
_OPERATORS = (cst.Add, cst.Subtract, cst.Multiply, cst.Divide)
_AUGMENTED = (cst.AddAssign, cst.SubtractAssign, cst.MultiplyAssign, cst.DivideAssign)


def written_out(draft: Draft) -> Iterator[cst.BaseExpression]:
    """The second products of attentions in the functions of a file."""
    for function in draft.nodes(cst.FunctionDef):
        product = _Flow(draft, function).read()
        if product is not None:
            yield product


class _Flow:
    """What is known of the values of one function, statement by statement, nested ones in the order of the text."""

    def __init__(self, draft: Draft, function: cst.FunctionDef, known: dict[str, str] | None = None) -> None:
        self.draft, self.function = draft, function
        self.parts = Parts(draft, function)
        self.known = {} if known is None else known
        self.called = known is not None
        self.returned: list[str] = []
        self.products: list[cst.BaseExpression] = []
        self.looked_at = False

    def read(self) -> cst.BaseExpression | None:
        self._block(self.function.body)
        return self.products[0] if self.products and not self.looked_at else None

    def makes_weights(self) -> bool:
        """Whether what the function returns, always, are weights made of the scores that it is handed."""
        self.read()
        return bool(self.returned) and {*self.returned} == {_WEIGHTS} and not self.products

    def _block(self, block: cst.BaseSuite) -> None:
        for statement in block.body:
            if isinstance(statement, cst.SimpleStatementLine):
                for each in statement.body:
                    self._follow(each)
            elif isinstance(statement, cst.BaseSmallStatement):  # of a block on one line
                self._follow(statement)
            elif isinstance(statement, cst.If):
                self._branches(statement)
            elif not isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
                self._nested(statement)

    def _nested(self, statement: cst.CSTNode) -> None:
        for child in statement.children:
            if isinstance(child, cst.BaseSuite):
                self._block(child)
            elif not isinstance(child, cst.BaseExpression):  # else, except, finally, case
                self._nested(child)

    def _branches(self, statement: cst.If) -> None:
        """Each branch by itself: a softmax in both, one with a mask before it, is of scores twice.

        What a name is afterwards both have to say, or the one that what follows is run after.
        """
        before = dict(self.known)
        self._block(statement.body)
        after, self.known = self.known, before
        otherwise: cst.BaseSuite | None = None
        if isinstance(statement.orelse, cst.If):
            self._branches(statement.orelse)
        elif statement.orelse is not None:
            otherwise = statement.orelse.body
            self._block(otherwise)
        if otherwise is not None and _leaves_function(otherwise):
            self.known = after
        elif not _leaves_function(statement.body):
            for name in {*after, *self.known}:
                kinds = {after.get(name, ""), self.known.get(name, "")}
                self.known[name] = kinds.pop() if len(kinds) == 1 else self._ends(*kinds)

    def _follow(self, statement: cst.BaseSmallStatement) -> None:
        if isinstance(statement, (cst.Assign, cst.AnnAssign)) and statement.value is not None:
            kind = self._kind(statement.value)
            targets = statement.targets if isinstance(statement, cst.Assign) else (statement,)
            for each in targets:
                if isinstance(each.target, cst.Name):
                    self.known[each.target.value] = kind
                    continue
                self._ends(kind)
                for name in self.draft.nodes(cst.Name, each.target):
                    self.known.pop(name.value, None)
        elif isinstance(statement, cst.AugAssign):
            kind, by = self._kind(statement.target), self._kind(statement.value)
            self._ends(kind, by)
            if (kind, by) == (_EXPONENTS, _SUMS) and isinstance(statement.operator, cst.DivideAssign):
                self.known[self.draft.code(statement.target)] = _WEIGHTS
            elif isinstance(statement.target, cst.Name) and not isinstance(statement.operator, _AUGMENTED):
                self.known.pop(statement.target.value, None)
        elif isinstance(statement, cst.Expr):
            self._kind(statement.value)
        elif isinstance(statement, cst.Return) and statement.value is not None:
            self.returned.append(self._kind(statement.value))
            self._ends(self.returned[-1])
        elif not isinstance(statement, cst.Del):
            self._ends(*(self._kind(each) for each in _inner(statement)))

    def _ends(self, *kinds: str) -> str:
        """What takes these is no part of an attention."""
        self.looked_at |= _WEIGHTS in kinds
        return ""

    def _kind(self, node: cst.BaseExpression) -> str:
        if isinstance(node, cst.Name):
            return self.known.get(node.value, "")
        if isinstance(node, cst.Attribute):
            kind = self._kind(node.value)
            return "" if node.attr.value in _HARMLESS else self._ends(kind)
        factors = self._factors(node)
        if factors:
            kinds = [self._kind(each) for each in factors]
            if kinds.count(_WEIGHTS) != 1:
                self._ends(*kinds)
                return _SCORES
            self.products.append(node)
            return ""
        if isinstance(node, cst.BinaryOperation):
            kinds = [self._kind(node.left), self._kind(node.right)]
            if kinds == [_EXPONENTS, _SUMS] and isinstance(node.operator, cst.Divide):
                return _WEIGHTS
            self._ends(*kinds)
            return _SCORES if _SCORES in kinds and isinstance(node.operator, _OPERATORS) else ""
        if isinstance(node, cst.IfExp):
            kinds = [self._kind(node.body), self._kind(node.orelse)]
            return kinds[0] if kinds[0] == kinds[1] else self._ends(*kinds)
        if isinstance(node, cst.Call):
            return self._called(node)
        return self._ends(*(self._kind(each) for each in _inner(node)))

    def _factors(self, node: cst.BaseExpression) -> Sequence[cst.BaseExpression]:
        """The factors of a product of tensors; none of anything else."""
        found = self.parts.factors(node)
        if found is not None or not isinstance(node, cst.Call):
            return found or ()
        places = _FACTORS.get(full_name(self.draft, node.func) or "")
        factors = [arg.value for arg in node.args if not arg.star and arg.keyword is None][places] if places else []
        return factors if len(factors) == 2 else ()

    def _called(self, call: cst.Call) -> str:
        values = [self._kind(each.value) for each in call.args]
        name = full_name(self.draft, call.func) or ""
        if name in SOFTMAX and _SCORES in values[:1]:
            return _WEIGHTS if self._over_keys(call, ("input", "dim")) else ""
        if name == "torch.exp" and values == [_SCORES]:
            return _EXPONENTS
        if name == "torch.sum" and values[:1] == [_EXPONENTS]:
            return _SUMS if self._over_keys(call, ("input", "dim")) else ""
        if name == "torch.where" and _WEIGHTS not in values:
            return _SCORES if _SCORES in values else ""
        if values == [_SCORES] and self._own_softmax(call):
            return _WEIGHTS
        made = call.func if isinstance(call.func, cst.Call) else self.parts.made(call.func)
        if values == [_SCORES] and made is not None and full_name(self.draft, made.func) in SOFTMAXES:
            return _WEIGHTS if self._over_keys(made, ("dim",)) else ""
        if values[:1] == [_WEIGHTS] and (name == "torch.nn.functional.dropout" or self.parts.drops(call.func)):
            return _WEIGHTS
        self._ends(*values)
        return self._of_tensor(call, call.func) if isinstance(call.func, cst.Attribute) else ""

    def _of_tensor(self, call: cst.Call, method: cst.Attribute) -> str:
        """What ``scores.masked_fill(…)`` and its like return."""
        kind, name = self._kind(method.value), method.attr.value
        if not kind or name in _LAYOUT:
            return kind
        if kind == _SCORES and name == "softmax":
            return _WEIGHTS if self._over_keys(call, ("dim",)) else ""
        if kind == _SCORES and name in _ARITHMETIC:
            return kind
        if kind == _SCORES and name in ("exp", "exp_"):
            return _EXPONENTS
        if kind == _EXPONENTS and name == "sum":
            return _SUMS if self._over_keys(call, ("dim",)) else ""
        return "" if name in _HARMLESS else self._ends(kind)

    def _own_softmax(self, call: cst.Call) -> bool:
        """Whether a function in the same file is called that makes weights of scores, its first parameter."""
        name = call.func.value if isinstance(call.func, cst.Name) and not self.called else ""
        for function in self.draft.nodes(cst.FunctionDef):
            parameters = function.params.params
            if function.name.value == name and function is not self.function and parameters:
                known = {parameters[0].name.value: _SCORES}
                return _Flow(self.draft, function, known).makes_weights()
        return False

    def _over_keys(self, call: cst.Call, parameters: tuple[str, ...]) -> bool:
        dim = argument(call, "dim", parameters)
        return dim is not None and self.draft.code(dim.value) in _LAST


def _leaves_function(block: cst.BaseSuite) -> bool:
    """Whether what follows the block is not run after it."""
    last = block.body[-1] if block.body else None
    if isinstance(last, cst.SimpleStatementLine):
        last = last.body[-1]
    return isinstance(last, (cst.Return, cst.Raise, cst.Continue, cst.Break))


def _inner(node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """The nearest expressions in a node; an argument's keyword is none."""
    for child in (node.value,) if isinstance(node, cst.Arg) else node.children:
        if isinstance(child, cst.BaseExpression):
            yield child
        else:
            yield from _inner(child)
