"""``x.view(n, -1)``: raises where a tensor keeps its channels innermost, as ``x.reshape(n, -1)`` does not.

Both give the same numbers and, where a view is possible, the same memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import libcst as cst
import libcst.matchers as m
from libcst.helpers import get_full_name_for_node

from advisor.edit.calls import argument
from advisor.edit.dataflow import Dataflow
from advisor.edit.draft import Draft, Drafts
from advisor.edit.in_place import written_in_place
from advisor.edit.modules import beside
from advisor.edit.names import full_name, last_part
from advisor.edit.scopes import parameter_names
from advisor.edit.sums import CUT_ATTRIBUTES, CUT_METHODS

_INSTEAD = {"view": "reshape", "view_as": "reshape_as"}
_CONTIGUOUS = m.Call(func=m.Attribute(attr=m.Name("contiguous")), args=[])
_PARAMETERS = "param_groups"  # an optimizer's: the model's weights, whose channels are innermost, too
# param.view(-1), or that of its gradient, in torch 2.15: a function of torch.nn.utils, and an optimizer; prunings.
_PRUNES = "torch.nn.utils.prune."
_VIEWS_WEIGHTS, _OF_WEIGHTS = "parameters_to_vector", "LBFGS"
_MAKES_SAMPLES = ("collate_fn", "transform", "target_transform", "worker_init_fn")


def with_imports(drafts: Drafts, files: Iterable[Draft]) -> list[Draft]:
    """The files, and the user's own that they import, directly or not, as far as these lie beside any of them."""
    found = list(dict.fromkeys(files))
    starts = tuple(found)
    for draft in found:  # which grows meanwhile
        for module in _imported_modules(draft):
            near = (beside(drafts, each, module) for each in (draft, *(() if module.startswith(".") else starts)))
            found += [each for each in dict.fromkeys(near) if each is not None and each not in found]
    return found


def reshape_views(files: Collection[Draft], models: Collection[str]) -> str:
    """Have views of what may be an activation become reshapes; why not, as a clause, where one is written into.

    Those are the views in the modules of `files` and in the functions that they call, in lambdas, and those of what
    comes of the models, which the files call by the names `models`. A view of contiguous memory, or as another type,
    stays.
    """
    for draft, flow in _flows(files, models).items():
        for call in draft.nodes(cst.Call):
            called = last_part(call.func)
            if full_name(draft, call.func).startswith(_PRUNES) and called.endswith("unstructured"):
                return f"{called} needs views of the weights, which raise in channels-last memory"
            if called == _VIEWS_WEIGHTS or (called == _OF_WEIGHTS and any(map(flow.carries, call.args))):
                return f"{called} needs views of the weights, which raise in channels-last memory"
        of_models = [view for view in _views(draft, draft.module) if flow.carries(_receiver(view))]
        found = dict.fromkeys((*_in_modules(draft), *of_models))
        if any(_written_into(draft, view) for view in found):
            return "a view of what the model computes is written into, which may be none of channels-last memory"
        # What these are called with is not known: one that is written into is more likely to be of something else.
        found |= dict.fromkeys(view for view in _handed_on(draft) if not _written_into(draft, view))
        for view in found:
            name = cst.ensure_type(view.func, cst.Attribute).attr
            draft.change(name, lambda node: node.with_changes(value=_INSTEAD[cst.ensure_type(node, cst.Name).value]))
    return ""


class _Activations(Dataflow):
    """Models, their weights, and what is made of either: tensors that may have their channels innermost."""

    cut_attributes = CUT_ATTRIBUTES - {"data", "grad"}
    cut_methods = CUT_METHODS - {"detach", "sign", "argmax", "argmin"}

    def carries(self, node: cst.CSTNode | None) -> bool:
        # Before all else: what a model's method, ``model.encode(x)``, returns may be seen in this file, too.
        by_model = isinstance(node, cst.Call) and not self._cuts(node) and self.carries(node.func)
        return by_model or super().carries(node)

    def called(self, call: cst.Call) -> bool:
        return not self._cuts(call) and any(self.carries(arg.value) for arg in call.args)

    def _cuts(self, call: cst.Call) -> bool:
        names = self.cut_methods if isinstance(call.func, cst.Attribute) else self.cut_functions
        return last_part(call.func) in names

    def computed(self, node: cst.BaseExpression) -> bool:
        if isinstance(node, cst.Comparison):  # a mask is laid out as what it is made of
            return any(map(self.carries, (node.left, *(each.comparator for each in node.comparisons))))
        return super().computed(node)

    def picks_other(self, node: cst.Subscript) -> bool:
        return False

    def given_by(self, caller: Dataflow) -> Iterator[cst.Name]:
        """The names in this file's functions that stand for what a call in another file hands them."""
        for call in caller.draft.nodes(cst.Call):
            for function in self._own(call):
                if given := self._given(function, call, caller):
                    yield from (each for each in self.draft.nodes(cst.Name, function.body) if each.value in given)

    def _take(self, call: cst.Call) -> None:
        super()._take(call)
        for function in self._own(call):
            self._held |= {(function, name) for name in self._given(function, call, self)}

    def _given(self, function: cst.FunctionDef, call: cst.Call, caller: Dataflow) -> set[str]:
        """The parameters that a call gives one; all of them where it is not known which, as of ``f(*model(x), y)``."""
        names = parameter_names(self.draft, function)
        every = {each.name.value for each in self.draft.nodes(cst.Param, function.params)} - {"self"}
        passed = {name: argument(call, name, names) for name in every}
        if any(arg not in passed.values() and caller.carries(arg.value) for arg in call.args):
            return every
        return {name for name, arg in passed.items() if caller.carries(arg)}


def _flows(files: Collection[Draft], models: Collection[str]) -> dict[Draft, _Activations]:
    """What comes of the models in each file, and of what the files hand to each other's functions."""
    seeds = {draft: set(_seeds(draft, {*models, _PARAMETERS})) for draft in files}
    flows = {draft: _Activations(draft, seeds[draft]) for draft in files}
    todo = list(files)
    while todo:
        caller = todo.pop()
        for draft in files:
            given = set(flows[draft].given_by(flows[caller])) - seeds[draft] if draft is not caller else None
            if given:
                seeds[draft] |= given
                flows[draft] = _Activations(draft, seeds[draft])
                todo.append(draft)
    return flows


def _seeds(draft: Draft, names: Collection[str]) -> Iterator[cst.CSTNode]:
    """The models by their names, and in a module's class the module itself and what it is called with."""
    for name in draft.nodes(cst.Name):
        if name.value in names:
            above = draft.parent(name)
            yield above if isinstance(above, cst.Attribute) and above.attr is name else name
    for module in _modules(draft):
        for name in draft.nodes(cst.Name, module):
            function = draft.function(name)
            inputs = parameter_names(draft, function) if function and function.name.value == "forward" else ()
            if name.value in ("self", *inputs):
                yield name


def _modules(draft: Draft) -> list[cst.ClassDef]:
    return [
        module
        for module in draft.nodes(cst.ClassDef)
        if any(isinstance(each, cst.FunctionDef) and each.name.value == "forward" for each in module.body.body)
    ]


def _in_modules(draft: Draft) -> Iterator[cst.Call]:
    functions = _functions(draft)
    for module in _modules(draft):
        yield from _views(draft, module)
        called = {last_part(each.func) for each in draft.nodes(cst.Call, module)}
        for name in functions.keys() & called:
            yield from _views(draft, functions[name])


def _handed_on(draft: Draft) -> Iterator[cst.Call]:
    """In lambdas and in functions that are handed on, ``Lambda(flat)``, the views of what they are called with."""
    functions = _functions(draft)
    found: list[tuple[cst.CSTNode, cst.FunctionDef | cst.Lambda]] = [(each, each) for each in draft.nodes(cst.Lambda)]
    for arg in draft.nodes(cst.Arg):
        if isinstance(arg.value, cst.Name) and arg.value.value in functions:
            found.append((arg.value, functions[arg.value.value]))
    for node, function in found:
        if _makes_samples(draft, node):
            continue
        parameters = {each.name.value for each in draft.nodes(cst.Param, function.params)}
        for view in _views(draft, function.body):
            if any(each.value in parameters for each in draft.nodes(cst.Name, _receiver(view))):
                yield view


def _makes_samples(draft: Draft, node: cst.CSTNode) -> bool:
    """Whether a function is given to what makes batches, which no model has seen."""
    for above in draft.ancestors(node):
        if isinstance(above, cst.Arg) and above.keyword is not None and above.keyword.value in _MAKES_SAMPLES:
            return True
        if isinstance(above, cst.Call) and full_name(draft, above.func).startswith("torchvision.transforms."):
            return True
    return False


def _imported_modules(draft: Draft) -> Iterator[str]:
    """The modules that a file imports, relative ones with their dots; of packages also their ``__init__``."""
    for plain in draft.nodes(cst.Import):
        for alias in plain.names:
            name = get_full_name_for_node(alias.name) or ""
            yield from (name, f"{name}.__init__")
    for statement in draft.nodes(cst.ImportFrom):
        package = "." * len(statement.relative)
        package += (get_full_name_for_node(statement.module) or "") if statement.module is not None else ""
        within = package if package.endswith(".") else f"{package}."
        yield from (package, f"{within}__init__")
        if not isinstance(statement.names, cst.ImportStar):
            yield from (within + alias.evaluated_name for alias in statement.names)


def _receiver(view: cst.Call) -> cst.BaseExpression:
    return cst.ensure_type(view.func, cst.Attribute).value


def _functions(draft: Draft) -> dict[str, cst.FunctionDef]:
    return {each.name.value: each for each in draft.module.body if isinstance(each, cst.FunctionDef)}


def _views(draft: Draft, region: cst.CSTNode) -> list[cst.Call]:
    """The views in `region` that the order in memory may forbid."""
    return [
        each
        for each in draft.nodes(cst.Call, region)
        if isinstance(each.func, cst.Attribute)
        and each.func.attr.value in _INSTEAD
        and each.args
        and not m.matches(each.func.value, _CONTIGUOUS | m.Name("self"))
        and all(arg.keyword is None for arg in each.args)
        and not _of_another_type(draft, each)
    ]


def _of_another_type(draft: Draft, view: cst.Call) -> bool:
    """``x.view(torch.int32)``, ``x.view(dtype)``: no matter of shapes."""
    if len(view.args) != 1 or view.args[0].star:
        return False
    given = view.args[0].value
    named = full_name(draft, given) if isinstance(given, (cst.Name, cst.Attribute)) else ""
    return named.startswith(("torch.", "numpy.")) or "dtype" in named or isinstance(given, cst.SimpleString)


def _written_into(draft: Draft, view: cst.Call) -> bool:
    """``x.view(-1)[i] = 0``, ``x.view(-1).zero_()``: of a copy, the tensor itself stays what it was.

    Likewise ``flat = x.view(-1)``, where `flat` is written into: ``flat[i] = 0``, ``flat += 1``, ``f(y, out=flat)``.
    """
    above = draft.parent(view)
    if isinstance(above, cst.Assign) and len(above.targets) == 1 and isinstance(above.targets[0].target, cst.Name):
        name, scope = above.targets[0].target, draft.function(view) or draft.module
        return any(name.deep_equals(each) for each in written_in_place(draft, scope))
    return any(each is view for each in written_in_place(draft, draft.statement(view)))
