"""Forward and loss under ``torch.autocast``, where what comes out of them in 16 bits is used like that afterwards."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

import libcst as cst
import libcst.matchers as m

from advisor.edit.calls import argument, has_starred
from advisor.edit.dataflow import Dataflow, loops
from advisor.edit.draft import Draft, Drafts
from advisor.edit.locate import last_name, within_statement_at
from advisor.edit.names import bindings, ensure_name, full_name, plain_name
from advisor.edit.precision.grad_scaler import backward_calls
from advisor.edit.precision.weight_cache import module_beside, outlived
from advisor.edit.regions import LOSS, Region, between, forward_regions, separate_backward, suspends
from advisor.edit.scopes import parameter_names, scope_of
from advisor.edit.sums import CUT_FUNCTIONS, elements
from advisor.harness.layout import Site


def wrap_forwards(drafts: Drafts, forwards: Sequence[Site], backwards: Sequence[Site], device: str, dtype: str) -> str:
    """Have each region from a forward to its loss run under autocast; why not, when that is not safe."""
    for path in dict.fromkeys(site.file for site in forwards):
        draft = drafts[path]
        calls, losses = _forwards(draft, forwards), backward_calls(draft, backwards)
        if calls is None or losses is None:
            return "the calls cannot be told from others on their lines"
        torch = ensure_name(draft, "torch")
        header = f'with {ensure_name(draft, "torch.autocast")}("{device}", dtype={torch}.{dtype})'
        models = calls
        for loss in [each for each in losses if any(_within(draft, model, each) for model in models)]:
            differentiated = loss.func.value if isinstance(loss.func, cst.Attribute) else loss
            if why := outlived(drafts, draft, [differentiated], trains=True):
                return why
            if not separate_backward(draft, loss, header):
                return "forward and loss are not statements of their own in front of backward"
            models = [model for model in models if not _within(draft, model, loss)]
            losses.remove(loss)
        regions = forward_regions(draft, models, losses, trains=bool(backwards)) if models else []
        if regions is None:
            return "forward and loss are not statements of their own in front of backward"
        outputs = [each for each in calls if not LOSS.search(last_name(draft, each))]
        narrow = _Narrow(draft, outputs, regions, device, drafts)
        if why := next(narrow.refused(dtype), "") or ("" if backwards else next(narrow.summed(), "")):
            return why
        if why := next(_refused_elsewhere(narrow, drafts, dtype, device), ""):
            return why
        for first, last in regions:
            if any(map(suspends, between(draft, first, last))):
                return "the statement yields, and autocast would stay on in what takes the values"
            if why := outlived(drafts, draft, between(draft, first, last), trains=bool(backwards)):
                return why
            draft.wrap(first, last, header)
    return ""


def _forwards(draft: Draft, found: Sequence[Site]) -> list[cst.Call] | None:
    calls = [within_statement_at(draft, site) for site in found if site.file == draft.source.path]
    return None if None in calls else [call for call in calls if call is not None]


def _refused_elsewhere(narrow: _Narrow, drafts: Drafts, dtype: str, device: str) -> Iterator[str]:
    """The same of the script's other modules, which get the outputs from a function of this one."""
    for draft, calls in narrow.calls_elsewhere(drafts):
        for why in _Narrow(draft, calls, (), device, drafts).refused(dtype):
            yield why.replace(" at line ", f" at {os.path.basename(draft.source.path)}:")


def _within(draft: Draft, model: cst.Call, loss: cst.Call) -> bool:
    return draft.statement(model) is draft.statement(loss)


# What is made in 16 bits ------------------------------------------------------------------------------------------

# What keeps the type of what it is given, called as a function of whatever name; torch's own do unless listed below.
_ACTIVATION = re.compile(r"^(log_?)?(softmax|sigmoid)$|^(relu|gelu|tanh|silu|act|activation|dropout|normalize)$", re.I)
# What gives another type: float32 that was asked for, numbers of Python, indices, booleans.
OTHER_TYPE = frozenset((
    "float", "double", "long", "int", "short", "bool", "byte", "half", "type", "type_as", "item", "tolist", "numpy",
    "argmax", "argmin", "argsort", "nonzero", "bincount", "multinomial", "one_hot", "size", "dim", "numel",
    "eq", "ne", "gt", "lt", "ge", "le", "isnan", "isinf", "isfinite", "isclose", "allclose", "equal", "any", "all",
    "backward", "zeros", "ones", "full", "empty", "arange", "tensor", "get_default_dtype", "data_ptr", "is_cuda",
))  # fmt: skip
# Under autocast in float32, as losses are: on GPUs, where the list is longer than on CPUs. Source: torch.amp, "CUDA
# Ops that can autocast to float32".
FLOAT32_ON_GPU = frozenset((
    "softmax", "log_softmax", "softmin", "softplus", "exp", "expm1", "log",
    "log10", "log1p", "log2", "pow", "norm", "sum", "prod", "cumsum", "cumprod", "cosine_similarity", "cdist", "dist",
    "layer_norm", "group_norm", "normalize", "reciprocal", "rsqrt", "renorm",
))  # fmt: skip
_TYPE = re.compile(r"\b(float\w*|double|int\w*|long|bool|half|uint8)\b|dtype")
# Methods that write into a tensor, and want the same type as it has; with a tensor for an index so does ``x[i] = y``.
_WRITES = frozenset((
    "index_copy_", "index_add_", "index_put_", "scatter_", "scatter_add_", "scatter_reduce_", "masked_scatter_",
    "lerp_",
))  # fmt: skip
# Libraries that make NumPy arrays of what they are given.
_ARRAYS = frozenset((
    "numpy", "np", "sklearn", "scipy", "pandas", "matplotlib", "seaborn", "skimage", "plotly", "umap", "pylab",
))  # fmt: skip
_FILES = 3  # followed from one into the next, by what they import
_STRING = m.SimpleString() | m.ConcatenatedString()
# Of these autocast leaves the types on a CPU as they are, and they want one: torch 2.14 raises.
_AS_GIVEN_ON_CPU = frozenset(("mv", "addmv", "addr", "dot", "vdot", "inner", "lerp"))
MULTIPLIES = frozenset(("matmul", "mm", "bmm", "mv", "dot", "einsum", "addmm", "linear", "baddbmm"))


class _Narrow(Dataflow):
    """What `forwards` give, and what keeps its type; `regions` are to run under autocast."""

    cut_attributes = frozenset(["shape", "dtype", "device", "ndim", "grad", "indices", "loss"])
    cut_methods = OTHER_TYPE
    cut_functions = CUT_FUNCTIONS | OTHER_TYPE

    def __init__(
        self, draft: Draft, forwards: Sequence[cst.CSTNode], regions: Sequence[Region], device: str, drafts: Drafts,
        depth: int = _FILES,
    ) -> None:  # fmt: skip
        self._drafts, self._depth = drafts, depth
        self._libraries = _libraries(draft)
        self._statements = {each for first, last in regions for each in between(draft, first, last)}
        self._scopes = {draft.function(first) for first, _ in regions}
        self._on_gpu = device == "cuda"
        super().__init__(draft, forwards)

    def refused(self, dtype: str) -> Iterator[str]:
        """Why an output in 16 bits may not go where the file has it go."""
        if dtype == "bfloat16":
            yield from (
                f"outputs become NumPy arrays at line {line}, which have no bfloat16: add .float() to them"
                for line in self._arrays()
            )
        for line in self._stores():
            yield f"outputs are stored in a tensor of another type at line {line}: add .float() to them"
        for line in self._products():
            yield f"outputs are multiplied by a tensor of another type at line {line}, which autocast does not see to"

    def summed(self) -> Iterator[str]:
        """Running sums in 16 bits, which soon grow no more: begun with a number, each has its first output's type."""
        updates: list[tuple[cst.BaseExpression, cst.BaseExpression]] = [
            (each.target, each.value) for each in self.draft.nodes(cst.AugAssign)
        ]
        begun: dict[str, list[cst.BaseExpression]] = {}
        for target, value in self._assigned():
            name = self.draft.code(target)
            terms = [value.left, value.right] if isinstance(value, cst.BinaryOperation) else []
            if any(self.draft.code(each) == name for each in terms):  # total = total + out.mean()
                updates += [(target, each) for each in terms if self.draft.code(each) != name]
            else:
                begun.setdefault(name, []).append(value)
        for target, value in updates:
            first = begun.get(self.draft.code(target), [])
            if first and all(isinstance(each, cst.BaseNumber) for each in first) and self.carries(value):
                yield f"outputs are summed up at line {self.draft.line(target)}: add .float() to them"

    def _assigned(self) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
        """Names and what they are given, tuples taken apart."""
        for annotated in self.draft.nodes(cst.AnnAssign):
            if annotated.value is not None:
                yield annotated.target, annotated.value
        for assign in self.draft.nodes(cst.Assign):
            for target in (each.target for each in assign.targets):
                into, given = elements(target), elements(assign.value)
                if len(into) == len(given):
                    yield from zip(into, given, strict=True)

    def _arrays(self) -> Iterator[int]:
        for call in self.draft.nodes(cst.Call):
            given: list[cst.BaseExpression] = []
            if isinstance(call.func, cst.Attribute) and call.func.attr.value == "numpy":
                given = [call.func.value]
            elif self._is_array_library(call.func):
                given = [arg.value for arg in call.args]
            if any(map(self.carries, given)) or self._becomes_array_in(call):
                yield self.draft.line(call)

    def _is_array_library(self, function: cst.BaseExpression) -> bool:
        """Whether a function is one of such a library, or a method of what such a function gave."""
        node: cst.CSTNode = function
        while not isinstance(node, cst.Name):
            if self.draft.code(node) in self._libraries:  # self.axes.plot
                return True
            if not isinstance(node, (cst.Attribute, cst.Subscript, cst.Call)):
                return False
            node = node.func if isinstance(node, cst.Call) else node.value
        return node.value in self._libraries or full_name(self.draft, node).partition(".")[0] in _ARRAYS

    def _becomes_array_in(self, call: cst.Call) -> bool:
        """Whether a function of a file beside this one makes arrays of what a call hands to it."""
        passed = [arg for arg in call.args if self.carries(arg.value)] if self._depth else []
        module, _, name = full_name(self.draft, call.func).rpartition(".") if passed else ("", "", "")
        other = module_beside(self._drafts, self.draft, module)
        for function in other.nodes(cst.FunctionDef) if other is not None else ():
            if other is None or function.name.value != name or scope_of(other, function) is not other.module:
                continue
            names = parameter_names(other, function)
            every = [each.name.value for each in other.nodes(cst.Param, function.params)]
            taken = {each for each in every if argument(call, each, names) in passed}
            seeds = every if has_starred(call) or len(taken) < len(passed) else taken
            into = [each for each in other.nodes(cst.Name, function.body) if each.value in seeds]
            inner = _Narrow(other, into, (), "cuda" if self._on_gpu else "cpu", self._drafts, self._depth - 1)
            if next(inner._arrays(), None) is not None:
                return True
        return False

    def _stores(self) -> Iterator[int]:
        for assign in self.draft.nodes(cst.Assign):
            targets = [each for target in assign.targets for each in elements(target.target)]
            if self.carries(assign.value) and any(map(self._by_tensor, targets)):
                yield self.draft.line(assign)
        for call in self.draft.nodes(cst.Call):
            # torch.scatter_add(x, …), torch_scatter.scatter_add(x, …)
            of_module = plain_name(call.func).partition(".")[0] in bindings(self.draft)
            method = isinstance(call.func, cst.Attribute) and not of_module
            name = last_name(self.draft, call) if method else ""
            # Without an underscore they make a copy, whose type autocast sees to on a GPU.
            writes = name in _WRITES or (f"{name}_" in _WRITES and not (self._on_gpu and self._inside(call)))
            into = cst.ensure_type(call.func, cst.Attribute).value if writes else None
            if writes and not self.carries(into) and any(self.carries(arg.value) for arg in call.args):
                yield self.draft.line(call)

    def _products(self) -> Iterator[int]:
        """Products of an output and something else, where autocast does not see to it."""
        products: list[tuple[cst.BaseExpression, list[cst.BaseExpression]]] = [
            (each, [each.left, each.right])
            for each in self.draft.nodes(cst.BinaryOperation)
            if isinstance(each.operator, cst.MatrixMultiply)
        ]
        for call in self.draft.nodes(cst.Call):
            if last_name(self.draft, call) in MULTIPLIES | (frozenset() if self._on_gpu else _AS_GIVEN_ON_CPU):
                factors = [arg.value for arg in call.args if arg.keyword is None and not m.matches(arg.value, _STRING)]
                if isinstance(call.func, cst.Attribute) and not full_name(self.draft, call.func).startswith("torch."):
                    factors.append(call.func.value)
                products.append((call, factors))
        for product, factors in products:
            apart = not self._inside(product) and self.draft.function(product) in self._scopes
            as_given = isinstance(product, cst.Call) and last_name(self.draft, product) in _AS_GIVEN_ON_CPU
            apart |= as_given and not self._on_gpu and self._inside(product)
            if apart and len({self.carries(each) for each in factors}) > 1:
                yield self.draft.line(product)

    def called(self, call: cst.Call) -> bool:
        name = last_name(self.draft, call)
        if LOSS.search(name) or (self._on_gpu and name in FLOAT32_ON_GPU and self._inside(call)):
            return False
        if isinstance(call.func, cst.Attribute) and self.carries(call.func.value):
            other = name in self.cut_methods or (name == "to" and any(map(self._is_type, call.args)))
            return not other
        known = call.func.func if isinstance(call.func, cst.Call) else call.func  # nn.Sigmoid()(x)
        torch = full_name(self.draft, known).startswith("torch.") and name not in self.cut_functions
        if not torch and not _ACTIVATION.search(name):
            return False
        return any(self.carries(arg.value) for arg in call.args) and not any(
            arg.keyword is not None and arg.keyword.value == "dtype" for arg in call.args
        )

    def picks_other(self, node: cst.Subscript) -> bool:
        return super().picks_other(node) or bool(LOSS.search(self.draft.code(node.slice[0])))

    def leaves(self, target: cst.BaseExpression) -> bool:
        return bool(LOSS.search(self.draft.code(target)))

    def _inside(self, node: cst.CSTNode) -> bool:
        return any(above in self._statements for above in self.draft.ancestors(node))

    def _is_type(self, arg: cst.Arg) -> bool:
        return bool(_TYPE.search(self.draft.code(arg.value))) or (
            arg.keyword is not None and arg.keyword.value == "dtype"
        )

    def _by_tensor(self, target: cst.BaseExpression) -> bool:
        """Whether a target is a tensor with a tensor for an index, as far as the text tells."""
        if not isinstance(target, cst.Subscript) or self._is_display(target.value):
            return False
        return not all(self._is_number(each.slice) for each in target.slice)

    def _is_number(self, index: cst.BaseSlice) -> bool:
        if not isinstance(index, cst.Index):
            return True
        names = {each.value for each in self.draft.nodes(cst.Name, index)}
        counted = {
            self.draft.code(elements(loop.target)[0])
            for loop in loops(self.draft)
            if isinstance(loop.iter, cst.Call) and last_name(self.draft, loop.iter) in ("range", "enumerate", "items")
        }
        return names <= counted

    def _is_display(self, name: cst.BaseExpression) -> bool:
        """Whether a list or a dictionary, written out, is what a name is given."""
        code = self.draft.code(name)
        values = [
            each.value
            for each in self.draft.nodes(cst.Assign)
            if any(self.draft.code(target.target) == code for target in each.targets)
        ]
        made = m.Call(func=m.Name("dict") | m.Name("list") | m.Name("defaultdict") | m.Name("OrderedDict"))
        written = m.Dict() | m.List() | m.DictComp() | m.ListComp() | m.BinaryOperation(left=m.List())
        return any(m.matches(each, written) or m.matches(each, made) for each in values)


def _libraries(draft: Draft) -> set[str]:
    """Names, imported anywhere in the file, of libraries that take arrays, and of what their functions gave."""
    found: set[str] = set()
    for imported in draft.nodes(cst.Import):
        for alias in imported.names:
            top = draft.code(alias.name).partition(".")[0]
            found |= {alias.evaluated_alias or top} if top in _ARRAYS else set()
    for each in draft.nodes(cst.ImportFrom):
        top = draft.code(each.module).partition(".")[0] if each.module is not None and not each.relative else ""
        if top in _ARRAYS and not isinstance(each.names, cst.ImportStar):
            found |= {alias.evaluated_alias or alias.evaluated_name for alias in each.names}
    for assign in draft.nodes(cst.Assign):  # figure, axes = plt.subplots()
        first = assign.value.func if isinstance(assign.value, cst.Call) else None
        while isinstance(first, cst.Attribute):
            first = first.value
        own = isinstance(first, cst.Name) and first.value in found  # an array has methods that take no tensor
        if own and full_name(draft, first or assign.value) not in ("np", "numpy"):
            found |= {draft.code(element) for target in assign.targets for element in elements(target.target)}
    return found
