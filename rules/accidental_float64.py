"""Matrix work runs in double precision that nobody asked for."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

import libcst as cst
import libcst.matchers as m

from advisor.edit import Draft, Drafts, Sources
from advisor.edit.arrays import written_later
from advisor.edit.calls import argument, call_method
from advisor.edit.gradients.derivatives import differentiates_twice
from advisor.edit.locate import call_at, last_name
from advisor.edit.names import full_name, last_part
from advisor.edit.origins.values import give_value
from advisor.edit.precision.default_type import leaves_default_type
from advisor.edit.scopes import assigned_once, assignments, dict_display, dict_entry, scope_of
from advisor.edit.sources import text_of
from advisor.errors import AdvisorError
from advisor.evidence import Change
from advisor.evidence.precisions import in_float32, in_own_convolutions, kernels_in_float32, typed_shares
from advisor.fixes import edited
from advisor.harness.layout import Site
from advisor.rule import (
    Advice,
    Argument,
    Example,
    Finding,
    Gain,
    Rule,
    Safety,
    at,
    call_sites,
    model_files,
    site_list,
    sites,
    where,
)

if TYPE_CHECKING:
    from advisor.edit import Edit
    from advisor.evidence import Evidence
    from advisor.harness.layout import CallSite, RunRecord, TensorInfo

_LEAST_SHARE = 0.3  # of the matrix work's FLOPs: less is a step of an algorithm that somebody wanted precise
_LEAST_BYTES = 1024  # a conversion of less than a hundred values is no matrix
# Solves and decompositions lose in float32 what their results are wanted for, and L-BFGS its line search: PyTorch docs,
# torch.linalg ("ill-conditioned"); the precision is then asked for.
_SOLVES = re.compile(r"^aten::(linalg_|_linalg_|cholesky|triangular_solve|lu_solve|svd$|lstsq|_?eigh?$|inverse$)")
_NORMS = re.compile(r"^aten::_?linalg_(vector_norm|norm|matrix_norm|cross|vecdot|multi_dot|matmul|diagonal)$")
# What a loop of products is to come to: conjugate gradients, Sinkhorn, a power iteration. Of float32 the last digit is
# 6e-8 of a number.
_DIGITS = r"\d+(\.\d*)?e-(0*[7-9]|1\d)\b"
_TOLERANCE = re.compile(
    rf"(?im)^(?!.*(close|assert)).*\b\w*(tol(erance)?|thresh(old)?)\b[^\n#=]*= *[^\n#=;]*\b{_DIGITS}"
    rf"|\bwhile\b[^\n#]*[<>]=? *{_DIGITS}|\bif\b[^\n#]*[<>]=? *{_DIGITS}[^\n#]*:\s*(break|return)\b"
)
_LOSS_WEIGHTS = ("weight", "pos_weight")  # parameters of losses, which want the type of what they weigh
_MAKERS = ("from_numpy", "tensor", "as_tensor")
_FOLLOWS = m.Attribute(value=m.Name() | m.Attribute() | m.Subscript(), attr=m.Name("dtype"))
# What makes tensors of the default type, whatever else it is given.
_OF_DEFAULT_TYPE = frozenset(
    f"torch.{name}"
    for name in (
        "zeros", "ones", "empty", "eye", "linspace", "logspace", "rand", "randn", "hann_window", "hamming_window",
        "blackman_window", "bartlett_window", "kaiser_window",
    )
)  # fmt: skip
# ``args.dtype`` is a setting, and no tensor's.
_SETTING = re.compile(r"(arg|cfg|conf|opt|param|hp|flag|setting|self)\w*\.dtype$", re.IGNORECASE)
# Float32 keeps seconds since 1970 to 128 seconds, and Julian days to a quarter of one.
# The first is asked of single names in a file, the other of a call's code.
_TIME = re.compile(r"unix|time_?stamp|(^|_)(stamps?|julian|mjd|epoch_s)($|_)|start_epoch", re.IGNORECASE)
_TIMES = re.compile(r"unix|posix|timestamp|julian|mjd", re.IGNORECASE)
_WIDE = m.Attribute(attr=m.Name("float64") | m.Name("double"))


class AccidentalFloat64(Rule):
    """Matrix products run in float64, twice the work and the memory of float32 at least.

    NumPy computes in float64, and ``torch.from_numpy`` keeps it; the model then refuses its input ("expected scalar
    type Float but found Double"), and ``model.double()`` looks like the remedy. Everything is done in double precision
    from there on: on a CPU half as many values fit into a vector register and a cache line, on GPUs float64 runs at a
    half to a 64th of float32's rate. Found by the types of the matrix operators' inputs, not by what the script
    says: a sum or a scalar in float64 costs nothing. On a CPU all other operators count, too, where the parameters are
    in float32 and arrays of NumPy's, made tensors as they were, have converted what is computed from them.

    When not: the problem needs the digits (ill-conditioned solves, physics, long sums, times, checking gradients).

    Source: torch.set_default_dtype and torch.from_numpy (types kept); NVIDIA A100 data sheet and CUDA C++ programming
    guide, "Arithmetic Instructions" (throughput of float64); Intel's optimization manual (vector width).
    """

    id = "accidental-float64"
    title = "Compute in float32 instead of float64"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record = evidence.record
        total, double = evidence.flops.per_step, evidence.flops.by_dtype.get("float64", 0.0)
        of_products = bool(total) and double >= _LEAST_SHARE * total
        if record is None or _needs_digits(evidence, record) or not (of_products or _promoted(evidence, record)):
            return
        whole = any(model.dtypes == ["float64"] for model in record.models)
        change = Change(
            operator_scale=in_float32(
                evidence, typed_shares(evidence, "double"), lists=whole, unfolded=in_own_convolutions(evidence)
            ),
            kernel_scale=kernels_in_float32(evidence) or None,
        )
        gain = Gain.of(evidence.what_if(change))
        if not gain.worth_it:
            return
        casts, default, made = _casts(evidence), _default(evidence), call_sites(evidence, "float64", every_step=False)
        places = (*default, *casts, *made)  # what is converted is often so to what the default made
        source = _left_by(default) or (f"; {at(made[0].site)} makes it of an array" if made else "")
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=(
                f"{double / total:.0%} of the matrix work of each step is in float64"
                if of_products
                else f"{_share_of_time(evidence):.0%} of the time of each step's operators goes into float64, to which "
                "the parameters' float32 is converted"
            )
            + (f", parameters included{source}." if whole else f"{source}."),
            gain=gain,
            evidence={
                "float64_share_of_flops": double / total if total else 0.0,
                "float64_share_of_operators": _share_of_time(evidence),
                "step_s": evidence.step_s,
            },
            site=places[0].site if places else None,
            parameters={
                "casts": sites(casts),
                "others": sites(tuple(each for each in casts if _from_another(each))),
                "default": sites(default),
                "made": sites(made),
                "mixed": sites(tuple(each for each in made if each.details.get("others"))),
                "unseen": _unseen(record, bool(default or made or any(c.kind.startswith("Tensor") for c in casts))),
            },
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        text = f"Have data and model in float32, {where(finding.site)}: x.float(), no .double()."
        casts, default, made = (site_list(finding, name) for name in ("casts", "default", "made"))
        if not (casts or default or made):
            return Advice(text, "where float64 comes from was not seen")
        if finding.parameters.get("unseen"):
            return Advice(text, str(finding.parameters["unseen"]))
        drafts = Drafts(sources)
        left = next((name for each in default if (name := leaves_default_type(drafts[each.file], each))), "")
        if left:
            return Advice(
                f"Have {left}() put the default type back before it returns, torch.set_default_dtype(torch.float32), "
                f"or give its own tensors dtype=torch.float64 instead of setting the default {where(default[0])}, "
                "which stays for all that is made after it, the model included. What it returns has to be converted, "
                "x.float().",
                f"which of what {left}() computes needs the digits only its author knows",
            )
        settings = _Settings(drafts, bool(default))
        changed: list[cst.CSTNode] = []
        for site in (*casts, *default, *made):
            names = _MAKERS if site in made else ("double", "to", "set_default_dtype")
            call = call_at(drafts[site.file], site, names)
            changed += [call] if call is not None else []
            if call is not None and site not in default and _may_be_times(drafts[site.file], call):
                return Advice(text, f"the values at {at(site)} may be times, which float32 keeps to minutes at best")
            if call is not None and site in default and _deals_with_times(drafts[site.file]):
                return Advice(
                    f"{text} Give times dtype=torch.float64 where they are made.",
                    f"what {at(site)} is for may be times, which float32 keeps to minutes at best",
                )
            if call is not None and site in made and argument(call, "dtype") is None:
                if site in site_list(finding, "mixed"):
                    return Advice(text, f"the call at {at(site)} makes tensors of other types, too, labels perhaps")
                if written_later(drafts[site.file], call):
                    return Advice(
                        text, f"the array at {at(site)} is written to later, and the tensor shares its memory"
                    )
            if (
                call is not None
                and site in site_list(finding, "others")
                and last_name(drafts[site.file], call) == "double"
            ):
                drafts[site.file].change(cst.ensure_type(call.func, cst.Attribute).attr, lambda _: cst.Name("float"))
                continue
            if call is None or not _narrow(drafts[site.file], call, settings, bool(made), bool(default)):
                return Advice(text, f"what makes float64 at {at(site)} cannot be told from the source")
        for path in dict.fromkeys(site.file for site in (*casts, *default, *made)):
            if (line := _relied_on(drafts[path], changed)) is not None:
                return Advice(text, f"float64 is also expected at {at(Site(path, line))}, which has to change with it")
        if settings.options:
            both = drafts.edit(text) is not None
            return Advice(text, "an option and the source both say so") if both else Argument(settings.options)
        return edited(drafts, text)

    EXAMPLES = (
        Example(
            before="""
model = Net().double()  # the data is  # <- casts
for x in arrays:
    x = torch.from_numpy(x).to(device)  # <- made=torch.from_numpy(x)
    model(x)
""",
            after="""
model = Net()  # the data is
for x in arrays:
    x = torch.from_numpy(x).float().to(device)
    model(x)
""",
        ),
        Example(
            before="""
x = torch.tensor(features, dtype=torch.float64)  # <- made
model.to(device, dtype=torch.double)  # <- casts
""",
            after="""
x = torch.tensor(features, dtype=torch.float32)
model.to(device, dtype=torch.float32)
""",
        ),
        Example(
            before="torch.set_default_dtype(torch.float64)  # <- default\nmain()\n",
            after="torch.set_default_dtype(torch.float32)\nmain()\n",
        ),
        Example(  # as a tensor of the default type is
            before="import torch\ntorch.set_default_dtype(torch.float64)  # <- default\n"
            "window = torch.hann_window(256, device=device)\nwave = pcm.to(window.dtype)  # <- casts\n",
            after="import torch\ntorch.set_default_dtype(torch.float32)\n"
            "window = torch.hann_window(256, device=device)\nwave = pcm.to(window.dtype)\n",
        ),
        Example(
            before="x = torch.from_numpy(a)  # <- made\nmodel.to(x.dtype)  # <- casts\n",
            after="x = torch.from_numpy(a).float()\nmodel.to(x.dtype)\n",
        ),
        Example(
            before="x = torch.from_numpy(a)  # <- made\nmodel.to(rows.values.dtype)  # <- casts\n",
            after="x = torch.from_numpy(a).float()\nmodel.to(rows.values.dtype)\n",
        ),
        Example(
            before="model.double()  # <- casts\nx = th.as_tensor(array)  # <- made\n",
            after="x = th.as_tensor(array).float()\n",
        ),
        Example(
            before="x = torch.from_numpy(a)  # <- made\nmodel.to(device=x.device, dtype=x.dtype)  # <- casts\n",
            after="x = torch.from_numpy(a).float()\nmodel.to(device=x.device, dtype=x.dtype)\n",
        ),
        Example(  # whole numbers
            before="model = Net().double()  # <- casts\nx = counts.double()  # <- casts, others\n",
            after="model = Net()\nx = counts.float()\n",
        ),
        Example(  # several of a kind; filled before it is converted
            before="""
model = Net().double()  # <- casts
for rows in batches:
    rows[:, 0] = 0.0
    x = torch.from_numpy(rows)  # <- made
    parts = torch.stack([torch.from_numpy(part) for part in parts])  # <- made=torch.from_numpy(part)
""",
            after="""
model = Net()
for rows in batches:
    rows[:, 0] = 0.0
    x = torch.from_numpy(rows).float()
    parts = torch.stack([torch.from_numpy(part).float() for part in parts])
""",
        ),
        Example(  # a type that is named somewhere else
            before="""
import torch

class Config:
    dtype = "float64"

cfg = Config()
dtype = getattr(torch, cfg.dtype)
x = torch.as_tensor(array, dtype=dtype)  # <- made
model = Net().to(dtype)  # <- casts=Net().to(dtype)
""",
            after="""
import torch

class Config:
    dtype = "float32"

cfg = Config()
dtype = getattr(torch, cfg.dtype)
x = torch.as_tensor(array, dtype=dtype)
model = Net().to(dtype)
""",
        ),
        Example(
            before="""
import torch

TYPES = {"float32": torch.float32, "float64": torch.float64}
parser.add_argument("--dtype", default="float64", choices=TYPES)
args = parser.parse_args()
torch.set_default_dtype(TYPES[args.dtype])  # <- default
x = torch.as_tensor(array, dtype=torch.get_default_dtype())  # <- made=torch.as_tensor
""",
            after="",
            options={"--dtype": "float32"},
        ),
    )
    LEAVES_ALONE = (
        Example(  # for a solver
            """
def solve(n):
    torch.set_default_dtype(torch.float64)  # <- default
    u = torch.zeros(100)
    for _ in range(n):
        u = u + 0.1 * flux(u)
    return u
""",
            "",
        ),
        Example("x = torch.from_numpy(a)  # <- made\nmodel.to(self.args.dtype)  # <- casts\n", ""),
        *(  # float64 is expected elsewhere, too
            Example(f"import torch\nx = x.double()  # <- casts\n{code}\n", "")
            for code in (
                "assert x.dtype == torch.float64",
                "if x.dtype != torch.double:\n    raise TypeError(x.dtype)",
                "w = torch.tensor([1.0, 2.0]).double()\ncriterion = nn.CrossEntropyLoss(weight=w)",
                "loss = F.nll_loss(y, t, weight=torch.ones(2, dtype=torch.float64))",
            )
        ),
        Example("model.to(x.dtype)  # <- casts\n", ""),
        Example("for x, y in loader:  # <- made\n    model(x)\n", ""),
        Example(
            "# Unix time stamps\ntorch.set_default_dtype(torch.float64)  # <- default\n\n"
            "def stamps(start, n):\n    return start + torch.arange(n) * 3600.0\n",
            "",
        ),
        Example("torch.set_default_dtype(getattr(torch, args.dtype))  # <- default\n", ""),
        *(  # of whatever type that is
            Example(
                f"import torch\ntorch.set_default_dtype(torch.float64)  # <- default\nx = {made}\n"
                "net.to(x.dtype)  # <- casts\n",
                "",
            )
            for made in ("torch.load(path)", "torch.zeros(3, dtype=kind)", "rows[0]")
        ),
        Example("net = Net().double()  # <- casts\n", "", {"unseen": "workers"}),
        Example("model = Net().double()  # <- casts\nt = torch.tensor(unix_seconds)  # <- made\n", ""),
        Example("model = Net().double()  # <- casts\nt = batch['timestamp'].double()  # <- casts, others\n", ""),
        Example(
            """
model = Net().double()  # <- casts
rows = table[["posix_time", "speed"]].to_numpy()
x = torch.from_numpy(rows)  # <- made
""",
            "",
        ),
        Example(  # inputs and labels
            """
model = Net().double()  # <- casts
for batch in batches:
    batch = {k: torch.from_numpy(v) for k, v in batch.items()}  # <- made, mixed=torch.from_numpy(v)
    loss = F.cross_entropy(model(batch["x"]), batch["y"])
""",
            "",
        ),
        Example(  # one memory
            """
model.double()  # <- casts
buffer = np.zeros((100, 8))
states = torch.from_numpy(buffer)  # <- made
for i, s in enumerate(env):
    buffer[i % 100] = s
    model(states)
""",
            "",
        ),
    )


def _promoted(evidence: Evidence, record: RunRecord) -> bool:
    """Whether much else than products is in float64 because arrays were, though all parameters are in float32.

    Who wants the digits has the parameters in float64, too, or says so somewhere.
    """
    if evidence.device_is_gpu or _casts(evidence) or _default(evidence):
        return False
    called = [model for model in record.models if model.calls]
    if not called or any(model.dtypes != ["float32"] for model in called):
        return False
    made = call_sites(evidence, "float64", every_step=False)
    return bool(made) and _share_of_time(evidence) >= _LEAST_SHARE


def _share_of_time(evidence: Evidence) -> float:
    """Share of the operators' own time whose first floating input is in float64."""
    shares, rows = typed_shares(evidence, "double"), evidence.operators
    total = sum(row.self_s for row in rows)
    return sum(row.self_s * shares.get(row.name, 0.0) for row in rows) / total if total else 0.0


def _needs_digits(evidence: Evidence, record: RunRecord) -> bool:
    """Whether the steps solve equations, take line searches, go on until a residual is as small as float32 cannot say,
    or differentiate twice in a precision that was chosen.

    A physics-informed network does: each derivative loses digits, and who sets the default type by hand knows that.
    Not one who sets it for a solver, which leaves it behind.
    """
    if any(each.steps and each.cls == "LBFGS" for each in record.optimizers):
        return True
    if any(_TOLERANCE.search(text_of(path)) for path in model_files(evidence)):
        return True
    if _default(evidence) and any(differentiates_twice(text_of(path)) for path in model_files(evidence)):
        return not _left_by(_default(evidence))
    return any(_SOLVES.match(row.name) and not _NORMS.match(row.name) for row in evidence.operators)


def _left_by(default: tuple[CallSite, ...]) -> str:
    """Which functions leave the default type behind that they set for themselves, in words; "" where any does not."""
    drafts, names = Drafts(Sources()), list[str]()
    for each in default:
        try:
            names.append(leaves_default_type(drafts[each.site.file], each.site))
        except AdvisorError:
            names.append("")
    return f"; {names[0]}() leaves it as the default type, {where(default[0].site)}" if names and all(names) else ""


def _may_be_times(draft: Draft, call: cst.Call) -> bool:
    """Whether what a call makes float64 is a time, by its name or that of what it was made of."""
    scope = scope_of(draft, call)
    names = {name.value for name in draft.nodes(cst.Name, call)}
    made_of = [value for name in names for value in assignments(draft, name, scope) if value is not None]
    return any(_TIMES.search(draft.code(each)) for each in (call, *made_of))


def _deals_with_times(draft: Draft) -> bool:
    """Whether a function, a parameter or a variable of the file has the name of a time."""
    named = [each.name.value for each in draft.nodes(cst.FunctionDef)]
    named += [each.name.value for each in draft.nodes(cst.Param)]
    targets = (each.target for each in draft.nodes(cst.AssignTarget))
    named += [each.value for each in targets if isinstance(each, cst.Name)]
    return any(_TIME.search(each) for each in named)


def _relied_on(draft: Draft, changed: Collection[cst.CSTNode]) -> int | None:
    """The line where float64 is asked for, or a loss is given weights of it: float32 would fail there.

    Not where the call that makes these is one of the `changed`.
    """
    for compared in draft.nodes(cst.Comparison):
        types = (compared.left, *(each.comparator for each in compared.comparisons))
        if any(_names_wide(draft, each) for each in types) and _insists(draft, compared):
            return draft.line(compared)
    for arg in draft.nodes(cst.Arg):
        if arg.keyword is None or arg.keyword.value not in _LOSS_WEIGHTS:
            continue
        value = arg.value
        if isinstance(value, cst.Name):
            value = assigned_once(draft, value.value, scope_of(draft, value)) or value
        calls = draft.nodes(cst.Call, value)
        double = any(m.matches(each, m.Call(func=m.Attribute(attr=m.Name("double")), args=[])) for each in calls)
        double |= any(_names_wide(draft, each) for each in draft.nodes(cst.Attribute, value))
        if double and not any(each in changed for each in calls):
            return draft.line(arg)
    return None


def _insists(draft: Draft, test: cst.Comparison) -> bool:
    """Whether a comparison is asserted, or something is raised by it."""
    for above in draft.ancestors(test):
        if isinstance(above, (cst.Assert, cst.If)):
            return isinstance(above, cst.Assert) or bool(m.findall(above.body, m.Raise()))
    return False


def _names_wide(draft: Draft, node: cst.BaseExpression) -> bool:
    return full_name(draft, node) in ("torch.float64", "torch.double")


def _casts(evidence: Evidence) -> tuple[CallSite, ...]:
    """Where modules, and tensors of some size, are converted to float64."""
    modules = [
        each
        for each in call_sites(evidence, "Module.double", "Module.to", every_step=False)
        if each.kind == "Module.double" or "torch.float64" in each.details.get("arguments", ())
    ]
    tensors = [
        each
        for each in call_sites(evidence, "Tensor.double", "Tensor.to", every_step=False)
        if each.details.get("to_dtype") == "float64"
        and each.details.get("from_dtype") != "float64"
        and each.details.get("bytes", 0) >= _LEAST_BYTES
    ]
    return (*modules, *tensors)


def _from_another(cast: CallSite) -> bool:
    """Whether a tensor's cast to float64 is not from float32: whole numbers, say, which a model refuses as they are."""
    return cast.kind == "Tensor.double" and cast.details.get("from_dtype") not in (None, "float32")


def _default(evidence: Evidence) -> tuple[CallSite, ...]:
    found = call_sites(evidence, "default_dtype", every_step=False)
    return tuple(each for each in found if each.details.get("dtype") == "float64")


def _unseen(record: RunRecord, seen: bool) -> str:
    """Why float64 data would remain that no edit reaches, or "": a model in float32 would refuse it."""
    if any(loader.num_workers and _has_double(loader.tensors) for loader in record.loaders):
        return "the dataset makes float64 tensors in its workers, where they were not seen"
    if not seen and any(_has_double(model.inputs) for model in record.models):
        return "where the model's float64 input is made was not seen"
    return ""


def _has_double(tensors: list[TensorInfo]) -> bool:
    return any(each.dtype == "float64" for each in tensors)


class _Settings:
    """Where types are named, which a call only looks up: ``getattr(torch, cfg.dtype)``; each is changed once.

    ``defaults``: that ``torch.get_default_dtype()`` will give float32. ``options`` are to be passed to the script.
    """

    def __init__(self, drafts: Drafts, defaults: bool) -> None:
        self.drafts, self.defaults = drafts, defaults
        self.options: dict[str, str] = {}
        self._done: set[tuple[str, str]] = set()

    def narrow(self, draft: Draft, value: cst.BaseExpression) -> bool:
        """Have the type that `value` looks up be float32; False where that is not known to be safe."""
        if isinstance(value, cst.Name):
            given = list(assignments(draft, value.value, scope_of(draft, value)))
            if len(given) != 1 or given[0] is None:
                return False
            value = given[0]
        if isinstance(value, cst.Call) and full_name(draft, value.func) == "torch.get_default_dtype":
            return self.defaults
        name = _looked_up(draft, value)
        key = (draft.source.path, draft.code(name) if name is not None else "")
        if name is None or key in self._done:
            return name is not None
        for said in ("float64", "double"):
            done = give_value(self.drafts, draft, name, '"float32"', said)
            if done is not None:
                self._done.add(key)
                self.options |= {done: "float32"} if done else {}
                return True
        return False


def _looked_up(draft: Draft, value: cst.BaseExpression) -> cst.BaseExpression | None:
    """What names the type in ``getattr(torch, name)`` or ``{"float32": torch.float32, …}[name]``."""
    if isinstance(value, cst.Call) and m.matches(value, m.Call(func=m.Name("getattr"), args=[m.Arg(), m.Arg()])):
        return value.args[1].value if full_name(draft, value.args[0].value) == "torch" else None
    if not isinstance(value, cst.Subscript) or len(value.slice) != 1 or not isinstance(value.slice[0].slice, cst.Index):
        return None
    known = value.value if isinstance(value.value, cst.Dict) else dict_display(draft, value.value)
    return value.slice[0].slice.value if known is not None and dict_entry(known, "float32") is not None else None


def _narrow(draft: Draft, call: cst.Call, settings: _Settings, followed: bool, default: bool = False) -> bool:
    """Have a call that makes or converts to float64 give float32; `followed`: what makes the data is changed, too.

    Likewise `default`, the type of what is made without one.
    """
    name = last_name(draft, call)
    if name in _MAKERS:
        asked = argument(call, "dtype")
        if asked is not None:
            return _float32(draft, asked.value) or settings.narrow(draft, asked.value)
        above = draft.parent(call)
        if not (isinstance(above, cst.Attribute) and above.attr.value == "float"):
            call_method(draft, call, "float")
        return True
    types = [arg for arg in call.args if not _is_device(draft, arg)]
    if name == "to" and followed and len(types) == 1 and _follows(draft, types[0].value):
        return True  # model.to(x.dtype): as the data is, and that changes
    if name == "to" and default and len(types) == 1 and _made_by_default(draft, types[0].value):
        return True  # samples.to(self.window.dtype)
    if name in ("to", "set_default_dtype"):
        wide = [arg.value for arg in call.args if m.matches(arg.value, _WIDE)]
        if not wide:
            return any(settings.narrow(draft, arg.value) for arg in call.args if not arg.star)
        return len(wide) == 1 and _float32(draft, wide[0])
    statement = draft.statement(call)
    small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    if isinstance(statement, cst.SimpleStatementLine) and isinstance(small, cst.Expr) and small.value is call:
        draft.remove(statement)
        return True
    if not isinstance(call.func, cst.Attribute) or call.args:
        return False
    draft.change(call, lambda updated: cst.ensure_type(cst.ensure_type(updated, cst.Call).func, cst.Attribute).value)
    return True


def _is_device(draft: Draft, arg: cst.Arg) -> bool:
    """Whether ``to()`` is told a device by the argument, or how to copy there."""
    if arg.keyword is not None:
        return arg.keyword.value in ("device", "non_blocking", "copy")
    return last_part(arg.value) in ("device", "dev")


def _made_by_default(draft: Draft, value: cst.BaseExpression) -> bool:
    """Whether it is the type of a tensor that the file makes in one place, of the default type."""
    if not m.matches(value, _FOLLOWS):
        return False
    name = draft.code(cst.ensure_type(value, cst.Attribute).value)
    values = [each.value for each in draft.nodes(cst.Assign) for to in each.targets if draft.code(to.target) == name]
    made = values[0] if len(values) == 1 else None
    if not isinstance(made, cst.Call) or argument(made, "dtype") is not None:
        return False
    return full_name(draft, made.func) in _OF_DEFAULT_TYPE


def _follows(draft: Draft, value: cst.BaseExpression) -> bool:
    return m.matches(value, _FOLLOWS) and not _SETTING.search(draft.code(value))


def _float32(draft: Draft, value: cst.BaseExpression) -> bool:
    if not isinstance(value, cst.Attribute) or not m.matches(value, _WIDE):
        return False
    draft.change(value.attr, lambda _: cst.Name("float32"))
    return True
