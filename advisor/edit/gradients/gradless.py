"""Regions without gradients: whether they may run in inference mode, by what the source does with their results."""

from __future__ import annotations

import ast
import contextlib
import glob
import os
import re
from collections.abc import Iterator, Sequence

import libcst as cst
import libcst.matchers as m
from libcst.helpers import get_full_name_for_node

from advisor.edit.dataflow import Dataflow
from advisor.edit.draft import Draft, Drafts
from advisor.edit.in_place import is_in_place, places_written
from advisor.edit.locate import last_name
from advisor.edit.models import model_name
from advisor.edit.modules import TooManyFilesError, with_neighbours, with_word
from advisor.edit.names import full_name, last_part
from advisor.edit.scopes import is_literal
from advisor.edit.sources import text_of
from advisor.edit.sums import TAKES_IN, elements, root

_DIFFERENTIATES = ("backward", "grad", "requires_grad", "requires_grad_", "zero_grad")
_TRANSFORMS = ("jacrev", "jacfwd", "vjp", "jvp", "hessian", "jacobian", "grad_and_value")  # torch.func
_TRAINS = ("backward", "zero_grad")
_WEIGHTS = frozenset(("weight", "bias", "logit_scale", "parameters"))
# What records a graph inside a region without gradients: of tensors made in inference mode there is none.
_RECORDS = ("torch.enable_grad", "torch.set_grad_enabled", "torch.autograd.grad")
_TRAINERS = re.compile(r"(Trainer|Learner)$")
_TRAINS_TEXT = re.compile(r"\.backward\(|\.zero_grad\(|Trainer\(|Learner\(")
_MOST_FILES = 200
# Of torch.nn, what has parameters or buffers of its own.
_WITH_WEIGHTS = re.compile(
    r"(Linear|Bilinear|Conv\w+|Lazy\w+|\w*Norm\w*|Embedding\w*|(LSTM|GRU|RNN)\w*|Transformer\w*|MultiheadAttention"
    r"|PReLU|Parameter|Buffer)$"
)
# What shares the memory of the tensor that it is asked of, or may give that tensor itself.
_VIEWS = frozenset((
    "view", "view_as", "reshape", "reshape_as", "flatten", "unflatten", "ravel", "squeeze", "unsqueeze", "transpose",
    "t", "swapaxes", "swapdims", "permute", "movedim", "moveaxis", "expand", "expand_as", "broadcast_to", "narrow",
    "select", "diagonal", "unfold", "unbind", "chunk", "split", "tensor_split", "hsplit", "vsplit", "real", "imag",
    "view_as_real", "view_as_complex", "as_strided", "atleast_1d", "atleast_2d", "atleast_3d", "detach",
    "contiguous", "to", "cpu", "cuda", "float", "double", "half", "bfloat16", "type", "type_as", "requires_grad_",
    "values", "items", "get", "pop", "popitem", "popleft", "copy",  # of what holds several
))  # fmt: skip
_NO_TENSORS = frozenset((
    "item", "tolist", "numpy", "len", "float", "int", "bool", "str", "round", "range", "open",
    "time", "perf_counter", "monotonic",
))  # fmt: skip


def differentiates(draft: Draft, function: cst.FunctionDef) -> bool:
    """Whether a function asks for gradients itself."""
    called = {each.attr.value for each in draft.nodes(cst.Attribute, function)}
    imported = {each.value for each in draft.nodes(cst.Name, function)}
    if called & {*_DIFFERENTIATES} or (called | imported) & {*_TRANSFORMS}:
        return True
    return any(map(_steps_or_trains, draft.nodes(cst.Call, function)))


def _steps_or_trains(call: cst.Call) -> bool:
    """``optimizer.step()``, ``model.train()``; an environment's step is given an action, a sampler's a tensor."""
    name, given = call.func.attr.value if isinstance(call.func, cst.Attribute) else "", call.args[:1]
    if name == "step":
        return not given or m.matches(given[0].value, m.Lambda() | m.Name("closure"))
    return name == "train" and not (given and m.matches(given[0].value, m.Name("False")))


def makes_model(draft: Draft, call: cst.Call, region: cst.CSTNode) -> bool:
    """Whether a function or a block also makes the model that it calls: its parameters must be ordinary tensors."""
    name = model_name(draft, call)
    if isinstance(region, cst.FunctionDef) and (not name or region.name.value in ("__init__", "main")):
        return True
    first = name.partition(".")[0]
    for assign in draft.nodes(cst.Assign, region):
        targets = [each for target in assign.targets for each in elements(target.target)]
        if any(draft.code(each) in (name, first) for each in targets) and _makes(assign.value, first):
            return True
    return any(draft.code(each.name) == first for each in draft.nodes(cst.AsName, region))


def _makes(value: cst.BaseExpression, name: str) -> bool:
    """Whether a value is made by a call, and not only what `name` is already: ``model.eval()``."""
    if not isinstance(value, cst.Call):
        return False
    while isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute):
        value = value.func.value
    return not isinstance(value, cst.Name) or value.value != name


def deferred(draft: Draft, call: cst.Call) -> bool:
    """Whether it is in what its function returns to be run later: ``return lambda x: model(x)``, a generator."""
    for above in draft.ancestors(call):
        if isinstance(above, (cst.Lambda, cst.GeneratorExp)) and isinstance(draft.parent(above), cst.Return):
            return True
        if isinstance(above, cst.FunctionDef):
            return False
    return False


def _makes_weights(draft: Draft, region: cst.CSTNode) -> bool:
    """Whether it makes a module with parameters, a parameter or a buffer: outside, autograd refuses to keep those."""
    own = {draft.enclosing_class(each) for each in draft.nodes(cst.FunctionDef) if each.name.value == "forward"}
    modules = {each.name.value for each in own if each is not None}
    for call in draft.nodes(cst.Call, region):
        name, full = last_name(draft, call), full_name(draft, call.func)
        if name == "register_buffer" or (isinstance(call.func, cst.Name) and full in modules):
            return True
        if full.startswith("torch.nn.") and _WITH_WEIGHTS.match(name):
            return True
    return False


def refuses_inference_mode(drafts: Drafts, draft: Draft, region: cst.CSTNode) -> bool:
    """Whether what `region` makes must not be made in inference mode: it is changed in place outside of it, by
    whatever name, or the file, or one beside it that uses it, trains something, too; or it is a module's."""
    if trains(draft) or trained_beside(draft, region) or _makes_weights(draft, region):
        return True
    if any(full_name(draft, each.func) in _RECORDS and not _off(each) for each in draft.nodes(cst.Call)):
        return True
    views = _Views(draft, region)
    if any(views.carries(each) and not views.inside(each) for each in _meets_weights(draft)):
        return True
    if _changes(views) or _resets(drafts, views):
        return True
    function = region if isinstance(region, cst.FunctionDef) else draft.function(region)
    return function is not None and _changed_elsewhere(drafts, draft, function)


def _changes(views: _Views) -> bool:
    """Whether something of what the views are of is changed in place outside of their region."""
    for node in places_written(views.draft):
        stored = node.value if isinstance(node, cst.Subscript) else node
        if not views.inside(node) and views.carries(stored) and not views.is_container(stored):
            return True
    return False


def _resets(drafts: Drafts, views: _Views) -> bool:
    """Whether a state that a model computes is changed in place outside of its forward: ``self.h.zero_()``.

    In this file and those that it imports from: the model may be in one of these.
    """
    files = list(with_neighbours(drafts, views.draft))
    forwards = _run_by_forward(files)
    kept = {name for draft, each in forwards for name in _kept(draft, each)}
    for draft in files if kept else ():
        own = [each for of, each in forwards if of is draft]
        outside = [each for each in places_written(draft) if draft.function(each) not in own]
        outside = [each for each in outside if draft is not views.draft or not views.inside(each)]
        named = {
            name.value
            for loop in draft.nodes(cst.For)
            for read in draft.nodes(cst.Attribute, loop.iter)
            if read.attr.value in kept  # for state in self.states.values()
            for name in draft.nodes(cst.Name, loop.target)
        }
        for stored in map(root, outside):
            if isinstance(stored, cst.Attribute) and stored.attr.value in kept:
                return True
            if isinstance(stored, cst.Name) and stored.value in named:
                return True
    return False


def _run_by_forward(files: Sequence[Draft]) -> list[tuple[Draft, cst.FunctionDef]]:
    """The functions that models' forwards are, or call, by their names; each with its file."""
    named, before = {"forward", "__call__"}, 0
    running: list[tuple[Draft, cst.FunctionDef]] = []
    while len(named) > before:
        before = len(named)
        running = [(of, each) for of in files for each in of.nodes(cst.FunctionDef) if each.name.value in named]
        named |= {last_part(call.func) for of, each in running for call in of.nodes(cst.Call, each.body)}
    return [(of, each) for of, each in running if each.name.value != "__init__"]


def _kept(draft: Draft, function: cst.FunctionDef) -> Iterator[str]:
    """The attributes that a function gives what it computes, or puts it into."""
    for assign in draft.nodes(cst.Assign, function):
        for target in (part for each in assign.targets for part in elements(each.target)):
            stored = root(target)
            if isinstance(stored, cst.Attribute) and not is_literal(assign.value):
                yield stored.attr.value
    for call in draft.nodes(cst.Call, function):
        of = call.func.value if isinstance(call.func, cst.Attribute) else None
        if isinstance(of, cst.Attribute) and last_part(call.func) in TAKES_IN:
            yield of.attr.value


def _changed_elsewhere(drafts: Drafts, draft: Draft, function: cst.FunctionDef) -> bool:
    """Whether another of the script's modules changes in place what it gets from a function of this file."""
    holder, name = draft.enclosing_class(function), function.name.value
    cls = holder.name.value if holder is not None and name == "__call__" else ""
    try:
        users = [each for each in with_word(drafts, draft, cls or name) if each is not draft]
    except TooManyFilesError:
        return True
    for user in users:
        names = {name}
        if cls:
            made = [each for each in user.nodes(cst.Assign) if isinstance(each.value, cst.Call)]
            made = [each for each in made if last_name(user, cst.ensure_type(each.value, cst.Call)) == cls]
            names = {last_part(target.target) for each in made for target in each.targets}
        calls = [each for each in user.nodes(cst.Call) if last_part(each.func) in names]
        if calls and _changes(_Views(user, None, calls)):
            return True
    return False


def _meets_weights(draft: Draft) -> Iterator[cst.BaseExpression]:
    """What modules that the file makes are given, and what is multiplied with weights: with gradients on autograd
    would have to keep it, which it refuses to for tensors of inference mode.
    """
    made = {
        last_part(each)
        for assign in draft.nodes(cst.Assign)
        if isinstance(assign.value, cst.Call) and last_name(draft, assign.value)[:1].isupper()
        for target in assign.targets
        for each in elements(target.target)
    } - {""}
    for call in draft.nodes(cst.Call):
        if last_part(call.func) in made:
            yield from (arg.value for arg in call.args)
    for product in draft.nodes(cst.BinaryOperation):
        for one, other in ((product.left, product.right), (product.right, product.left)):
            names = {each.attr.value for each in draft.nodes(cst.Attribute, other)}
            if names & _WEIGHTS:
                yield one


def _off(call: cst.Call) -> bool:
    """``set_grad_enabled(False)``"""
    return len(call.args) == 1 and m.matches(call.args[0].value, m.Name("False"))


def trains(draft: Draft, within: cst.CSTNode | None = None) -> bool:
    """Whether the file, or a part of it, trains: what was made in inference mode cannot be an input of that."""
    names = {each.attr.value for each in draft.nodes(cst.Attribute, within)}
    trainer = any(_TRAINERS.search(last_name(draft, call)) for call in draft.nodes(cst.Call, within))
    return bool(names & {*_TRAINS}) or (trainer and bool(names & {"fit", "train"}))


def trained_beside(draft: Draft, region: cst.CSTNode) -> bool:
    """Whether a file of the same folder, the one above or one beside it imports the function of `region` and trains.

    Likewise a function that trains, of a file beside this one, and is called here: with features, say.
    """
    if _calls_trainer(draft):
        return True
    function = region if isinstance(region, cst.FunctionDef) else draft.function(region)
    if function is None:
        return False
    path = os.path.abspath(draft.source.path)
    module = re.escape(os.path.splitext(os.path.basename(path))[0])
    imports = re.compile(rf"^\s*(from|import)\s.*\b{module}\b", re.M)
    named = re.compile(rf"\b{re.escape(function.name.value)}\b")
    folder = os.path.dirname(path)
    above = os.path.dirname(folder)
    places = [os.path.join(glob.escape(each), "*.py") for each in (folder, above)]
    if glob.glob(places[1]) or os.path.exists(os.path.join(folder, "__init__.py")):  # a project's, not anybody's
        places.append(os.path.join(glob.escape(above), "*", "*.py"))
    for pattern in places:
        for other in sorted(glob.glob(pattern))[:_MOST_FILES]:
            text = text_of(other) if other != path else ""
            if named.search(text) and imports.search(text) and _TRAINS_TEXT.search(text):
                return True
    return False


def _calls_trainer(draft: Draft) -> bool:
    """Whether this file calls a function that a file beside it defines, and that calls backward."""
    folder, called = os.path.dirname(os.path.abspath(draft.source.path)), set[str]()
    for call in draft.nodes(cst.Call):
        called.add(full_name(draft, call.func))
    for name in sorted(each for each in called if "." in each):
        module, _, function = name.rpartition(".")
        path = os.path.join(folder, *module.lstrip(".").split(".")) + ".py"
        text = text_of(path)
        if not text or not _TRAINS_TEXT.search(text):
            continue
        with contextlib.suppress(SyntaxError, ValueError):
            for node in ast.walk(ast.parse(text)):
                named = isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == function
                if named and _TRAINS_TEXT.search(ast.unparse(node)):
                    return True
    return False


def keeps_graph(draft: Draft, call: cst.Call, region: cst.CSTNode) -> bool:
    """Whether what is made of a model's output, with its graph, outlives the region: it may be differentiated later."""
    graph, function = Dataflow(draft, [call]), draft.function(call)
    for assign in draft.nodes(cst.Assign):
        kept = [each for target in assign.targets for each in elements(target.target) if not isinstance(each, cst.Name)]
        if kept and graph.carries(assign.value):
            return True
    for each in draft.nodes(cst.Call):
        takes = isinstance(each.func, cst.Attribute) and each.func.attr.value in TAKES_IN
        if takes and any(graph.carries(arg.value) for arg in each.args):
            return True
    returns: list[cst.Return | cst.Yield] = [*draft.nodes(cst.Return), *draft.nodes(cst.Yield)]
    for end in returns:
        value = end.value.item if isinstance(end.value, cst.From) else end.value
        if function is not None and draft.function(end) is function and graph.carries(value):
            return True
    if isinstance(region, cst.FunctionDef):
        return False
    inside = {*draft.nodes(cst.Name, region)}
    return any(each not in inside and graph.carries(each) for each in draft.nodes(cst.Name))


class _Views(Dataflow):
    """What a region makes, and views of it: outside of inference mode nothing of that may be changed in place."""

    cut_attributes = frozenset(["shape", "dtype", "device", "ndim", "grad"])
    through_sums = False

    def __init__(self, draft: Draft, region: cst.CSTNode | None, calls: Sequence[cst.Call] = ()) -> None:
        self._region = region  # None where it is in another file, which `calls` run it from
        super().__init__(draft, calls)

    def inside(self, node: cst.CSTNode) -> bool:
        """Whether an expression is in the region."""
        return self._region is not None and any(above is self._region for above in self.draft.ancestors(node))

    def handles(self, call: cst.Call) -> bool:
        return self.inside(call)

    def carries(self, node: cst.CSTNode | None) -> bool:
        if node is not None and self.inside(node):
            return not self._plain(node)
        return super().carries(node)

    def called(self, call: cst.Call) -> bool:
        if isinstance(call.func, cst.Attribute) and self.carries(call.func.value):
            name = call.func.attr.value
            return name in _VIEWS or is_in_place(name)
        name = (get_full_name_for_node(call.func) or "").rpartition(".")[2]
        return name in _VIEWS and bool(call.args) and self.carries(call.args[0].value)

    def computed(self, node: cst.BaseExpression) -> bool:
        return False

    def _plain(self, node: cst.CSTNode) -> bool:
        """Whether an expression is no tensor for certain."""
        if isinstance(node, cst.Call):
            return last_name(self.draft, node) in _NO_TENSORS
        if isinstance(node, cst.BinaryOperation):
            return self._plain(node.left) and self._plain(node.right)
        if isinstance(node, (cst.Tuple, cst.List, cst.Dict)):
            return all(self._plain(each.value) for each in node.elements)
        constant = cst.BaseNumber | cst.SimpleString | cst.FormattedString | cst.UnaryOperation | cst.Lambda
        return isinstance(node, constant) or m.matches(node, m.Name("None") | m.Name("True") | m.Name("False"))
