"""Tensors that a model's own code makes in float32, by name, and where they meet its weights in 16 bits.

A product of both raises: "mat1 and mat2 must have the same dtype". What is cast back before (``.to(x.dtype)``,
``.type_as(x)``) does not, nor does what the model returns.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterator
from functools import cached_property

import libcst as cst
import libcst.matchers as m

from advisor.edit.born import module_code
from advisor.edit.calls import argument
from advisor.edit.dataflow import Dataflow
from advisor.edit.draft import Draft, Drafts
from advisor.edit.locate import last_name
from advisor.edit.names import bindings, full_name, last_part
from advisor.edit.preceding import is_untouched, last_given
from advisor.edit.precision.autocast import MULTIPLIES, OTHER_TYPE
from advisor.edit.precision.weight_cache import module_beside
from advisor.edit.scopes import parameter_names

_WIDE = frozenset(("torch.float32", "torch.float", "torch.float64", "torch.double"))
_MAKES_NONE = frozenset(("finfo", "set_default_dtype", "autocast"))  # of what a type is passed to
_FLOATS = frozenset(("zeros", "ones", "rand", "randn", "linspace", "logspace", "eye"))  # of torch's functions
_BY_NUMBERS = frozenset(("tensor", "full"))
_NO_TYPE = frozenset(("device", "non_blocking", "copy", "memory_format"))  # parameters of ``to``
_DEVICE = re.compile(r"device|rank|gpu|^dev$", re.I)
_NO_WEIGHTS = re.compile(
    r"drop|(^|_)act|relu|gelu|silu|softmax|sigmoid|tanh|pool|flatten|identity|upsample|(^|_)pad|loss|criterion", re.I
)
_BACK = 4  # assignments that are followed back from where a name is read
_FACTORS = {"scaled_dot_product_attention": 3, "conv1d": 2, "conv2d": 2, "conv3d": 2}  # of the positional arguments


def is_wide(draft: Draft, node: cst.BaseExpression) -> bool:
    """Whether an expression is the type float32 or float64, by its name."""
    return full_name(draft, node) in _WIDE


def asks_wide(draft: Draft, call: cst.Call) -> bool:
    """Whether a call says that its result is float32 or float64: ``x.float()``, ``.to(torch.float32)``, ``dtype=``."""
    name = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
    if name in ("float", "double") and not call.args:
        return True
    given = [arg.value for arg in call.args if arg.keyword is None or arg.keyword.value == "dtype"]
    return name not in _MAKES_NONE and any(is_wide(draft, each) for each in given)


def is_function(draft: Draft, call: cst.Call) -> bool:
    """Whether a call is of a function of torch's, by its name, and not of a method of what another call gave."""
    return full_name(draft, call.func).startswith("torch.") and "(" not in draft.code(call.func)


def wide_meets_weights(drafts: Drafts, draft: Draft, model: str) -> int | None:
    """The line of the file at which a module takes float32 that it made to weights, or hands it to one that may.

    `model` is the class of the model as a whole, whose result may be float32.
    """
    flow = _Wide(drafts, draft)
    for function in module_code(draft):
        for product, factors in _products(draft, function):
            if len({flow.carries(each) for each in factors}) > 1:
                return draft.line(product)
        for call in draft.nodes(cst.Call, function):
            if flow.has_weights(call) and any(flow.carries(arg.value) for arg in call.args):
                return draft.line(call)
    return next((draft.line(each) for each in flow.handed_on(model)), None)


class _Wide(Dataflow):
    """What is float32 in a file because its code says so."""

    cut_methods = OTHER_TYPE - {"float", "double"} | {"bfloat16", "bucketize", "searchsorted"}

    def __init__(self, drafts: Drafts, draft: Draft, follow: bool = True) -> None:
        self._inside = {*module_code(draft)}
        classes = {draft.enclosing_class(each): each for each in self._inside if each.name.value == "forward"}
        self._classes = {each.name.value: forward for each, forward in classes.items() if each is not None}
        self._forwards: dict[str, list[cst.FunctionDef]] = {}  # by what their modules are called: self.attention
        for assign in draft.nodes(cst.Assign):
            made = self._classes.get(last_part(assign.value.func)) if isinstance(assign.value, cst.Call) else None
            if made is not None:
                for target in assign.targets:
                    self._forwards.setdefault(draft.code(target.target), []).append(made)
        seeds = [*_seeds(draft)]
        if follow:
            seeds += _imported(drafts, draft)
        self._known = {*dir(builtins), *bindings(draft), *(each.name.value for each in draft.nodes(cst.FunctionDef))}
        self._known |= {each.name.value for each in draft.nodes(cst.ClassDef)}
        self._back = 0
        super().__init__(draft, seeds)

    def carries(self, node: cst.CSTNode | None) -> bool:
        found = super().carries(node)
        if not found or not isinstance(node, cst.Name) or self._back == _BACK:
            return found
        given = last_given(self.draft, node)  # x = x.to(q.dtype): it was float32 before
        values = [given] if given is not None else self._passed(node)
        self._back += 1
        try:
            return values is None or any(map(self.carries, values))
        finally:
            self._back -= 1

    def called(self, call: cst.Call) -> bool:
        return not self._narrows(call) and super().called(call)

    def handles(self, call: cst.Call) -> bool:
        """What the script calls the model with is converted there."""
        return self._inside.isdisjoint(self.draft.ancestors(call))

    def has_weights(self, call: cst.Call) -> bool:
        """Whether a call is, or may be, of a module of which the file does not show what it does."""
        func = call.func.value if isinstance(call.func, cst.Subscript) else call.func  # self.layers[i](x)
        name = last_part(func)
        if self._own(call) or _NO_WEIGHTS.search(name):
            return False
        part = m.matches(func, m.Attribute(value=m.Name("self")) | m.Attribute(attr=m.Name("forward")))
        return part or (isinstance(func, cst.Name) and name not in self._known)

    def handed_on(self, model: str) -> Iterator[cst.FunctionDef]:
        """The forwards that return float32 to who knows whom."""
        known = [each for found in self._forwards.values() for each in found]
        for name, forward in self._classes.items():
            if forward in self._returning and forward not in known and name != model:
                yield forward

    def returning(self) -> set[str]:
        """The functions of the file that give float32."""
        return {each.name.value for each in self._returning}

    def _own(self, call: cst.Call) -> list[cst.FunctionDef]:
        return super()._own(call) or self._forwards.get(self.draft.code(call.func), [])

    def _passed(self, name: cst.Name) -> list[cst.BaseExpression] | None:
        """What a parameter is given in this file, where it is still that; None where a name is anything else."""
        function = self.draft.function(name)
        if function is None or self._holder(name) != (function, name.value) or not is_untouched(self.draft, name):
            return None
        names = parameter_names(self.draft, function)
        found = [argument(call, name.value, names) for call in self._callers.get(function, ())]
        return [each.value for each in found if each is not None]

    @cached_property
    def _callers(self) -> dict[cst.FunctionDef, list[cst.Call]]:
        found: dict[cst.FunctionDef, list[cst.Call]] = {}
        for call in self._calls:
            for function in () if self.handles(call) else self._own(call):
                found.setdefault(function, []).append(call)
        return found

    def _narrows(self, call: cst.Call) -> bool:
        """``.to(x.dtype)``, ``.to(q)``, ``.type_as(x)``, ``.long()``"""
        name = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
        if name not in ("to", "type"):
            return name in self.cut_methods
        typed = [arg.value for arg in call.args if arg.keyword is None or arg.keyword.value not in _NO_TYPE]
        plain = [each for each in typed if isinstance(each, (cst.Name, cst.Attribute))]
        return any(not _DEVICE.search(last_part(each)) and not is_wide(self.draft, each) for each in plain)


def _seeds(draft: Draft) -> Iterator[cst.BaseExpression]:
    """What modules and functions make in float32; not what becomes a parameter or a buffer, which `.to` converts."""
    made: list[cst.BaseExpression] = [*draft.nodes(cst.Call), *draft.nodes(cst.BinaryOperation)]
    modules = {draft.enclosing_class(each) for each in module_code(draft)} | {None}
    for each in made:
        asked = isinstance(each, cst.Call) and asks_wide(draft, each)
        asked = asked or (isinstance(each, cst.Call) and _makes_floats(draft, each))
        if (asked or _counts_in_floats(draft, each)) and draft.enclosing_class(each) in modules:
            function = draft.function(each)
            if function is None or function.name.value != "__init__" or _is_plain_attribute(draft, each):
                yield each


def _makes_floats(draft: Draft, call: cst.Call) -> bool:
    """A constructor's ``torch.zeros(n)``, ``torch.tensor([0.5])``: of the default type, which is float32."""
    name, function = full_name(draft, call.func), draft.function(call)
    if function is None or function.name.value != "__init__" or argument(call, "dtype") is not None:
        return False
    module, _, made = name.rpartition(".")
    if module != "torch" or made not in _FLOATS | _BY_NUMBERS:
        return False
    if made in _FLOATS:
        return True
    number = argument(call, "data", ("data",)) if made == "tensor" else None
    if number is not None and m.matches(number.value, m.Float() | m.UnaryOperation(expression=m.Float())):
        return False  # of no dimension: it takes the type of what it meets
    return bool(draft.nodes(cst.Float, call)) or re.search(r"\bfloat\(|\binf\b", draft.code(call)) is not None


def _counts_in_floats(draft: Draft, node: cst.BaseExpression) -> bool:
    """``torch.arange(0.0, n)``, ``torch.arange(n) / n``, ``torch.FloatTensor([n])``"""
    if isinstance(node, cst.BinaryOperation):
        return isinstance(node.operator, cst.Divide) and bool(re.match(r"\(?\w+\.arange\(", draft.code(node.left)))
    name = full_name(draft, cst.ensure_type(node, cst.Call).func)
    given = cst.ensure_type(node, cst.Call).args
    floats = any(isinstance(arg.value, cst.Float) for arg in given) and all(arg.keyword is None for arg in given)
    return name == "torch.FloatTensor" or (name == "torch.arange" and floats)


def _is_plain_attribute(draft: Draft, node: cst.BaseExpression) -> bool:
    """Whether what a constructor makes is kept as ``self.x``, a tensor that is neither parameter nor buffer."""
    kept = next((each for each in draft.ancestors(node) if isinstance(each, cst.Assign)), None)
    if kept is None or not draft.code(kept.targets[0].target).startswith("self."):
        return False
    makes = [last_part(each.func) for each in draft.nodes(cst.Call, kept.value)]  # layers have a parameter `dtype`, too
    return not any(name[:1].isupper() and name != "FloatTensor" for name in makes)


def _imported(drafts: Drafts, draft: Draft) -> Iterator[cst.Call]:
    """The calls of functions in files beside this one that give float32."""
    known: dict[str, set[str]] = {}
    for call in draft.nodes(cst.Call):
        module, _, name = full_name(draft, call.func).rpartition(".")
        if module not in known:
            other = module_beside(drafts, draft, module)
            known[module] = _Wide(drafts, other, follow=False).returning() if other is not None else set()
        if name in known[module]:
            yield call


def _products(draft: Draft, within: cst.CSTNode) -> Iterator[tuple[cst.CSTNode, list[cst.BaseExpression]]]:
    """Products, and what they want to have one type."""
    for each in draft.nodes(cst.BinaryOperation, within):
        if isinstance(each.operator, cst.MatrixMultiply):
            yield each, [each.left, each.right]
    for call in draft.nodes(cst.Call, within):
        name = last_name(draft, call)
        if name in MULTIPLIES or name in _FACTORS:
            factors = [arg.value for arg in call.args if arg.keyword is None][: _FACTORS.get(name)]
            method = isinstance(call.func, cst.Attribute) and not is_function(draft, call)
            factors += [cst.ensure_type(call.func, cst.Attribute).value] if method else []
            yield call, [each for each in factors if not isinstance(each, (cst.BaseString, cst.BaseNumber))]
