"""Attention written out by hand: softmax(q @ k.T) @ v followed through the statements of a function, and made one call.

What is followed is read from the text alone: the product of two tensors, scaled, masked, through a softmax over the
last dimension, perhaps a dropout, into a second product. Whatever else happens to the values on the way (they are
returned, stored, looked at) ends it: then there is no :class:`Attention`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import libcst as cst
from libcst.helpers import get_full_name_for_node

from advisor.edit.algebra.attention_parts import SOFTMAX, SOFTMAXES, Parts, operand, primary
from advisor.edit.algebra.einsum import equation
from advisor.edit.algebra.results import unread_results
from advisor.edit.calls import argument
from advisor.edit.dataflow import targets_of
from advisor.edit.draft import Draft, Statement
from advisor.edit.in_place import places_written
from advisor.edit.names import ensure_name, full_name, name_for, plain_name
from advisor.edit.scopes import assignments

_NEGATIVE = re.compile(r"inf\b|finfo\(|-\s*1e[4-9]\d*|-\s*1e\d\d|-\s*\d{5,}")
_NEGATIVE_FLOAT = re.compile(r"inf\b|finfo\(|float")
_INFINITE = re.compile(r"inf\b|\binf|infinity", re.I)
_FUSED = "torch.nn.functional.scaled_dot_product_attention"
_OF_BATCHES = 3  # letters of an einsum where heads are part of the batch


@dataclass(frozen=True)
class Attention:
    """``product`` is the second matrix product; ``statements`` are those that only lead up to it, in order."""

    product: cst.BaseExpression
    q: str
    k: str
    v: str
    statements: tuple[Statement, ...]
    scale: str = "1.0"  # "" where it is the function's default
    mask: str = ""
    causal: bool = False
    dropout: str = ""
    batched: bool = False  # torch.bmm: three dimensions
    after: str = ""  # what puts the result's dimensions into the product's order: ".transpose(1, 2)"
    returned: tuple[cst.Name, ...] = ()  # the weights beside the result, which no caller in the file looks at
    stored: str = ""  # the attribute in which a caller keeps them all the same


@dataclass(frozen=True)
class _Scores:
    q: cst.BaseExpression
    k: cst.BaseExpression
    scale: str = "1.0"
    mask: str = ""
    causal: bool = False
    soft: bool = False
    dropout: str = ""  # the chance
    dropping: tuple[str, ...] = ()  # the conditions under which it is taken
    batched: bool = False
    trail: tuple[tuple[str, Statement], ...] = ()  # the names that these values went by, and where they were given


def attentions(draft: Draft) -> Iterator[Attention]:
    """Every attention in the functions of a file."""
    for function in draft.nodes(cst.FunctionDef):
        if isinstance(function.body, cst.IndentedBlock):
            found = _Reader(draft, function).read()
            if found is not None:
                yield found


def fuse(draft: Draft, found: Attention, dimensions: int) -> bool:
    """Have the attention computed by ``scaled_dot_product_attention``; False where that is not safe.

    `dimensions` of the scores: with three the heads are part of the batch, and the fused kernels want four.
    """
    if dimensions not in (3, 4) or (dimensions == 3 and found.mask):
        return False
    head = ".unsqueeze(1)" if dimensions == 3 else ""
    arguments = [primary(each) + head if head else each for each in (found.q, found.k, found.v)]
    if found.mask:
        arguments.append(f"attn_mask={found.mask}")
    if found.causal:
        arguments.append("is_causal=True")
    if found.dropout:
        arguments.append(f"dropout_p={found.dropout}")
    if found.scale:
        arguments.append(f"scale={found.scale}")
    name = _function(draft, found.product)
    if not name:
        return False
    tail = ".squeeze(1)" if dimensions == 3 else ""
    tail += found.after
    line = f"{name}({', '.join(arguments)}){tail}"
    start = draft.position(found.product).start
    before = draft.lines[start.line - 1][: start.column]
    if len(before) + len(line) > 100:
        # The block's own indentation is added where the lines are printed.
        line = f"{name}(\n" + "".join(f"{draft.module.default_indent}{each},\n" for each in arguments) + f"){tail}"
    draft.replace(found.product, line)
    for statement in found.statements:
        draft.remove(statement)
    for each in found.returned:
        draft.replace(each, "None")
    return True


def _function(draft: Draft, place: cst.CSTNode) -> str:
    """How to write the function at a place; "" where its functions have other values of all the names for it."""
    bound: set[str] = set()
    for function in draft.ancestors(place):
        if isinstance(function, cst.FunctionDef):
            bound |= {name.value for each in targets_of(draft, function) for name in draft.nodes(cst.Name, each)}
            bound |= {each.name.value for each in draft.nodes(cst.Param, function.params)}
    name = name_for(draft, _FUSED, bound)
    if name is None and "torch" not in bound:
        name = ensure_name(draft, "torch") + _FUSED.removeprefix("torch")
    return name or ""


class _Reader:
    """Follows scores through one function."""

    def __init__(self, draft: Draft, function: cst.FunctionDef) -> None:
        self.draft, self.function = draft, function
        self.parts = Parts(draft, function)
        self.known: dict[str, _Scores] = {}

    def read(self) -> Attention | None:
        products: list[cst.BaseExpression] = [
            *self.draft.nodes(cst.BinaryOperation, self.function.body),
            *self.draft.nodes(cst.Call, self.function.body),
        ]
        for product in products:
            if self.parts.weighted(product) is not None:
                self.known = {}
                found = self._up_to(product)
                if found is not None:
                    return found
        return None

    def _up_to(self, product: cst.BaseExpression) -> Attention | None:
        """The attention whose second product this is."""
        statement = self.draft.statement(product)
        if statement is None or self.draft.function(product) is not self.function:
            return None
        siblings = self.draft.siblings(statement)
        if not isinstance(statement, cst.SimpleStatementLine):
            return None
        for each in siblings[: next(i for i, other in enumerate(siblings) if other is statement)]:
            self._follow(each)
        factors = self.parts.weighted(product)
        scores = self._scores(factors[0]) if factors is not None else None
        if factors is None or scores is None or not scores.soft:
            return None
        taken = tuple(dict.fromkeys(each for _, each in scores.trail))
        names = {name for name, _ in scores.trail}
        inside = {id(node) for each in (*taken, product) for node in self.draft.nodes(cst.Name, each)}
        others = [
            node
            for node in self.draft.nodes(cst.Name, self.function.body)
            if node.value in names and id(node) not in inside
        ]
        returned, stored = unread_results(self.draft, self.function, others)
        if others and not returned:
            target = statement.body[0]
            # The result may take over the name: `att = att @ v`.
            if not (isinstance(target, cst.Assign) and self._only_rebound(statement, names, inside)):
                return None
        v = self.draft.code(factors[1])
        parts = (scores.q, scores.k, factors[1])
        if any(n.value in names for part in parts for n in self.draft.nodes(cst.Name, part)):
            return None
        if any(map(self._held, parts)):
            return None
        # `scores.size(-1)` in a mask, say: what gives it to the scores is not there any more.
        kept = " ".join((scores.mask, scores.scale, scores.dropout, *scores.dropping))
        if any(re.search(rf"\b{re.escape(name)}\b", kept) for name in names):
            return None
        key = self.parts.transposed(scores.k, scores.batched)
        return Attention(
            product,
            self.draft.code(scores.q),
            key,
            v,
            taken,
            "" if self.parts.is_default(scores.scale, scores.q, key) else scores.scale,
            scores.mask,
            scores.causal,
            f"{scores.dropout} if {' and '.join(scores.dropping)} else 0.0" if scores.dropping else scores.dropout,
            scores.batched,
            factors[2],
            returned,
            stored,
        )

    def _held(self, node: cst.BaseExpression) -> bool:
        """Whether it is a tensor that the module holds: learned queries have no dimension for the batch."""
        values = list(assignments(self.draft, node.value, self.function)) if isinstance(node, cst.Name) else [node]
        return any(isinstance(each, cst.Attribute) and plain_name(each).startswith("self.") for each in values)

    def _only_rebound(self, last: Statement, names: set[str], inside: set[int]) -> bool:
        """Whether the other uses of the names are only of what the last statement binds them to."""
        position = self.draft.position(last).start.line
        bound = {
            name.value
            for target in self.draft.nodes(cst.AssignTarget, last)
            for name in [target.target]
            if isinstance(name, cst.Name)
        }
        others = [
            node
            for node in self.draft.nodes(cst.Name, self.function.body)
            if node.value in names and id(node) not in inside
        ]
        return all(node.value in bound and self.draft.line(node) >= position for node in others) and all(
            not isinstance(self.draft.loop(last), (cst.For, cst.While)) for _ in others
        )

    # Statements

    def _follow(self, statement: Statement) -> None:
        """Take in a statement; what it does to known values in another way than those below forgets them."""
        if isinstance(statement, cst.If) and statement.orelse is None and isinstance(statement.body, cst.IndentedBlock):
            body = [each for each in statement.body.body if isinstance(each, cst.SimpleStatementLine)]
            test = self.draft.code(statement.test)
            if len(body) == len(statement.body.body) == 1 and self._assign(body[0], test, statement):
                return
        elif isinstance(statement, cst.SimpleStatementLine) and self._assign(statement, "", statement):
            return
        targets: list[cst.CSTNode] = [each.target for each in self.draft.nodes(cst.AssignTarget, statement)]
        targets += [each.target for each in self.draft.nodes(cst.AnnAssign, statement)]
        targets += [each.target for each in self.draft.nodes(cst.Del, statement)]
        targets += places_written(self.draft, statement)
        bound = {node.value for each in targets for node in self.draft.nodes(cst.Name, each)}
        for name, scores in list(self.known.items()):
            text = " ".join((self.draft.code(scores.q), self.draft.code(scores.k), scores.scale, scores.mask))
            if any(re.search(rf"\b{re.escape(each)}\b", text) for each in bound):
                del self.known[name]

    def _assign(self, statement: cst.SimpleStatementLine, test: str, whole: Statement) -> bool:
        if len(statement.body) != 1:
            return False
        small, name, result = statement.body[0], "", None
        if isinstance(small, cst.Assign) and len(small.targets) == 1 and isinstance(small.targets[0].target, cst.Name):
            name = small.targets[0].target.value
            result = self._scores(small.value)
        elif isinstance(small, cst.AugAssign) and isinstance(small.target, cst.Name):
            name = small.target.value
            result = self._combined(small.operator, self.known.get(name), small.value)
        elif isinstance(small, cst.Expr) and isinstance(small.value, cst.Call):  # scores.masked_fill_(…)
            called = small.value.func
            if isinstance(called, cst.Attribute) and isinstance(called.value, cst.Name):
                name = called.value.value
                result = self._masked(self.known.get(name), small.value)
        if result is None or not name:
            return False
        if test:
            before = self.known.get(name)
            if before is None or result.soft != before.soft or result.causal != before.causal:
                return False
            if result.dropout and not before.dropout:
                result = replace(result, dropping=(operand(test), *result.dropping))
            elif result.mask and not before.mask:
                result = replace(result, mask=f"{result.mask} if {test} else None")
            else:
                return False
        self.known[name] = replace(result, trail=(*result.trail, (name, whole)))
        return True

    # Expressions

    def _scores(self, node: cst.BaseExpression) -> _Scores | None:
        if isinstance(node, cst.Name):
            return self.known.get(node.value)
        if isinstance(node, cst.BinaryOperation) and not isinstance(node.operator, cst.MatrixMultiply):
            left = self._scores(node.left)
            if left is not None:
                return self._combined(node.operator, left, node.right)
            right = self._scores(node.right)
            commutes = isinstance(node.operator, (cst.Multiply, cst.Add))
            return self._combined(node.operator, right, node.left) if commutes else None
        factors = self.parts.factors(node) or self.parts.summed(node)
        if factors is not None:
            if any(known is not None and known.soft for known in map(self._scores, factors)):
                return None
            batched = isinstance(node, cst.Call) and (get_full_name_for_node(node.func) or "").endswith("bmm")
            batched = batched or len((equation(self.draft, node) or ("",))[0]) == _OF_BATCHES
            return _Scores(*factors, batched=batched)
        return self._called(node) if isinstance(node, cst.Call) else None

    def _combined(self, operator: cst.CSTNode, scores: _Scores | None, other: cst.BaseExpression) -> _Scores | None:
        if scores is None or scores.soft:
            return None
        code = self.draft.code(other)
        if isinstance(operator, (cst.Multiply, cst.MultiplyAssign, cst.Divide, cst.DivideAssign)):
            if scores.scale != "1.0" or scores.mask or scores.causal or not self.parts.is_number(other):
                return None
            divides = isinstance(operator, (cst.Divide, cst.DivideAssign))
            return replace(scores, scale=f"1 / {primary(code)}" if divides else code)
        if isinstance(operator, (cst.Add, cst.AddAssign)) and not scores.mask and not scores.causal:
            if self.parts.is_number(other):
                return None  # the function takes tensors
            return replace(scores, mask=self._floating(other, scores.q))
        return None

    def _floating(self, mask: cst.BaseExpression, q: cst.BaseExpression) -> str:
        """The mask in the queries' type where whole numbers may make one of theirs, which the function refuses."""
        code = self.draft.code(mask)
        whole = isinstance(mask, cst.BinaryOperation) and self.draft.nodes(cst.Integer, mask)
        if not whole or self.draft.nodes(cst.Float, mask) or _NEGATIVE_FLOAT.search(code):
            return code
        return f"{primary(code)}.to({primary(self.draft.code(q))}.dtype)"

    def _called(self, call: cst.Call) -> _Scores | None:
        if isinstance(call.func, cst.Attribute):
            method, target = call.func.attr.value, self._scores(call.func.value)
            if target is not None and method in ("masked_fill", "masked_fill_"):
                return self._masked(target, call)
            if target is not None and method == "softmax":
                return self._soft(target, call, ("dim",))
        if not call.args or call.args[0].star or call.args[0].keyword is not None:
            return None
        first = self._scores(call.args[0].value)
        if first is None:
            return None
        name = full_name(self.draft, call.func)
        if name in SOFTMAX:
            return self._soft(first, call, ("input", "dim"))
        if name == "torch.nn.functional.dropout" and first.soft and not first.dropout:
            return self._dropped(first, call)
        made = (
            call.func if isinstance(call.func, cst.Call) else self.parts.made(call.func)
        )  # nn.Softmax(dim=-1)(scores)
        if len(call.args) == 1 and first.soft and not first.dropout and self.parts.drops(call.func):
            code = self.draft.code(call.func)
            training = "self.training" if code.startswith("self.") else f"{code}.training"
            return replace(first, dropout=f"{code}.p", dropping=(training,))
        if made is None or len(call.args) != 1:
            return None
        if full_name(self.draft, made.func) in SOFTMAXES:
            return self._soft(first, made, ("dim",))
        return None

    def _soft(self, scores: _Scores, call: cst.Call, parameters: tuple[str, ...]) -> _Scores | None:
        dim = argument(call, "dim", parameters)
        if scores.soft or dim is None or self.draft.code(dim.value) != "-1" or argument(call, "dtype") is not None:
            return None
        return replace(scores, soft=True) if len(call.args) == len(parameters) else None

    def _dropped(self, scores: _Scores, call: cst.Call) -> _Scores | None:
        names = ("input", "p", "training", "inplace")
        p, training = argument(call, "p", names), argument(call, "training", names)
        chance = self.draft.code(p.value) if p is not None else "0.5"
        dropping = (operand(self.draft.code(training.value)),) if training is not None else ()
        return replace(scores, dropout=chance, dropping=dropping)

    def _masked(self, scores: _Scores | None, call: cst.Call) -> _Scores | None:
        if scores is None or scores.soft or scores.mask or scores.causal or len(call.args) != 2:
            return None
        if not isinstance(call.func, cst.Attribute) or call.func.attr.value not in ("masked_fill", "masked_fill_"):
            return None
        where, value = (arg.value for arg in call.args)
        if not _NEGATIVE.search(self.draft.code(value)):
            return None
        if self.parts.is_triangle(where):
            return replace(scores, causal=True)
        fill = self.draft.code(value)
        if _INFINITE.search(fill):
            return replace(scores, mask=self.parts.kept(where))
        # A row that is masked throughout gives about the mean of the values; with a mask of booleans zeros, or NaN.
        for name, _ in scores.trail:
            fill = re.sub(rf"\b{re.escape(name)}\.dtype\b", f"{primary(self.draft.code(scores.q))}.dtype", fill)
        if any(re.search(rf"\b{re.escape(name)}\b", fill) for name, _ in scores.trail):
            return None
        masked = f"{primary(self.draft.code(where))}.to({primary(self.draft.code(scores.q))}.dtype)"
        return replace(scores, mask=f"{masked} * {fill if isinstance(value, cst.UnaryOperation) else primary(fill)}")
