"""The optimizer updates each parameter with a dozen small operators where one kernel can do it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import libcst as cst
import libcst.matchers as m
import numpy as np

from advisor.edit import Draft, Drafts
from advisor.edit.calls import argument
from advisor.edit.gradients.optimizer_state import gradients_given, loads_state
from advisor.edit.locate import call_at
from advisor.edit.names import framework_used, full_name, imports_anywhere
from advisor.edit.origins.values import bound_to, give
from advisor.edit.sources import text_of
from advisor.evidence import COLD, Change
from advisor.evidence.coded import names_like
from advisor.evidence.coverage import Coverage
from advisor.evidence.facts import OTHER
from advisor.evidence.outside import source_of
from advisor.evidence.steps import assign
from advisor.fixes import by_option, edited
from advisor.harness.layout import Site
from advisor.rule import (
    WIDEST,
    Advice,
    Argument,
    Example,
    Finding,
    Gain,
    Rule,
    Safety,
    at,
    call_sites,
    file_list,
    framework_of,
    model_files,
    site_list,
    where,
)
from advisor.shared.frameworks import configured, construction, told

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence
    from advisor.harness.layout import OptimizerInfo
    from advisor.trace.tables import Ints

# What is left of a step on a CPU: best, likely, worst. Measured with torch 2.15, one thread of an AVX-512 processor,
# tensors of 64 to 10 million elements, fused over for-loop: Adam and AdamW 0.10 to 0.39, Adagrad 0.14 to 0.39. SGD with
# momentum 0.15 to 0.24 below 30,000 elements, 0.37 to 0.57 in the millions, and 1.28 in one series at 100,000; without
# momentum 0.40 to 0.62 below 30,000 elements and 0.9 to 1.07 above.
_ON_CPU = {
    "Adam": (0.13, 0.24, 0.38),
    "AdamW": (0.13, 0.24, 0.38),
    "Adagrad": (0.14, 0.27, 0.39),
    "SGD": (0.22, 0.35, 0.60),
}
_SMALL = 30_000  # elements: SGD gains by fewer calls only, not by less traffic, so its tensors have to be small
# A prior asks for more than what could just be measured on a CPU: a small MLP has 1.26 for 1.30, but a recurrent net
# 1.06 for 1.08, in an interval from 0.8 to 1.4; two nets of a few layers 1.10 for 1.12 and 0.98 for 1.15.
_LEAST_ON_CPU = 1.20
_CPU_BASIS = "prior: a fused step takes 0.24 (Adam) to 0.35 (SGD) of a for-loop's, measured on a CPU"
# What is left of the kernels on a GPU, which move memory and hardly compute: reads and writes of a parameter's worth
# that the code makes, torch/optim/adam.py and sgd.py, `_multi_tensor_*` against the fused kernels. AdamW: 7 of 20, Adam
# 7 of 18, SGD with momentum 5 of 8.
_KERNELS_ON_GPU = {"Adam": 7 / 18, "AdamW": 7 / 20, "SGD": 5 / 8}
# Bytes that a fused Adam moves for a parameter: it reads it, its gradient and two moments, and writes all but the
# gradient, 4 bytes each; SGD with momentum less.
_FUSED_BYTES = 28
# The same of an optimizer that a script's author wrote with an operator for each term. One was measured, an Adam with
# decoupled decay over 246 small tensors: the fused AdamW made the step 2.4 times as fast.
_WRITTEN_OUT = (0.1, 0.2, 0.45)
_WRITTEN_BASIS = "prior: a fused step takes a tenth to half of one written out"
_CALLS_PER_PARAMETER, _LEAST_WRITTEN_OUT = 4, 1.2
_CALLED = re.compile(r"^aten::(?!view|detach|to$|as_strided|empty|result_type|can_cast)")
# What an update is made of, where no optimizer of torch's tells of itself.
_UPDATES = re.compile(r"\.grad\b[\s\S]*(\b(add|sub|mul|copy|addcdiv|addcmul|lerp)_\(|[-+*]=)|\bgrads?\b[\s\S]*_\(")
_ACCUMULATES = "torch::autograd::AccumulateGrad"
_STEP, _IN_LISTS = re.compile(r"^Optimizer\.step#(\w+)\.step$"), re.compile(r"^aten::_(foreach|fused)_")
# torch.optim's own, as of 2.14: those that fused does not know go over lists of tensors, by default on a GPU.
_OF_TORCH = {"ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"}
_MANY_CLOSURES = "LBFGS"  # its step calls the model many times
_LEAST_CALLS = 40  # per step of a bare trace: ten parameters, each with what makes up one update
_INTERRUPTED = 3.0  # times what the optimizer usually takes: what is above was not the optimizer
# Of the host's time: a dozen calls for each list of tensors become one; grouping the tensors stays. Beside an H200,
# torch 2.11, 600 small tensors: AdamW 6.2 to 2.7 ms, SGD with momentum 2.0 to 1.8. (40 of 4 million elements, AdamW on
# the GPU: 3.98 to 1.46 ms, 0.37 where 7/20 is taken for the traffic.)
_HOST_ON_GPU = {"Adam": 0.44, "AdamW": 0.44, "SGD": 0.88}
# With ``foreach=False`` each parameter has these calls and launches to itself, which are all but gone.
_HOST_OF_A_LOOP, _LEAST_OF_A_LOOP = 0.05, 0.02
_LOOP_BASIS = "prior: all but one of the loop's launches go, and what the fused kernel moves in memory stays"
_GPU_BASIS = "prior: memory traffic of the fused kernels over that of the foreach ones, the host's time beside an H200"

_MODULES = ("torch.optim.", "torch.optim.adam.", "torch.optim.adamw.", "torch.optim.sgd.", "torch.optim.adagrad.")
_SPARSE = "aten::embedding_sparse_backward"
_FRAMEWORKS = {"transformers": 'Pass TrainingArguments(optim="adamw_torch_fused").'}
# Loading puts a checkpoint's own settings back into the optimizer's groups. GradScaler goes by what the optimizer was
# made with, and hands its scale to a step that then is not fused, which fails (torch.optim.adam, torch.amp, 2.15).
_OLD_CHECKPOINT = "A checkpoint from before this change switches fused off again when it is loaded."
_GIVES_GRADIENTS = (
    "the script gives weights their gradients itself at {}, and a fused step takes those as they lie in memory: where "
    "that is another order than the weight's (a transposed or an expanded gradient), it computes something else"
)
_NOT_WITH_SCALER = "a checkpoint from before this change switches fused off again, and GradScaler's step fails then"


class FusedOptimizer(Rule):
    """The optimizer goes over its parameters with one small operator after the other.

    A step of Adam is about a dozen elementwise operations. On a CPU each parameter goes through all of them by itself,
    and the call of an operator takes longer than the arithmetic of a small tensor; large tensors are read and written
    over and over. On a GPU the operations run over lists of tensors, yet each of them still goes through memory.
    ``fused=True`` does all of it in one kernel that reads and writes everything once. ``GradScaler`` works with it
    and saves a synchronization, because the kernel itself skips a step whose gradients are infinite. An optimizer that
    the script's author wrote, one operator for each term and parameter, is told of, too.

    When not: gradients are sparse, or set by the script (``p.grad = g``); ``foreach=True`` or ``differentiable=True``
    is given; the script reads what the update's intermediate steps leave behind; Lightning clips gradients in 16 bits
    (it refuses); a training with a ``GradScaler`` goes on from a checkpoint of before, which switches ``fused`` off
    again (its step fails). The rounding differs in the last digits.

    Source: torch.optim, "Algorithms": "fused > foreach > for-loop" in speed; PyTorch 2.4 and 2.5 release notes (fused
    Adam, AdamW, SGD and Adagrad on a CPU). How much of a step is left is a prior, from measurements on a CPU.
    """

    id = "fused-optimizer"
    title = "Use the fused optimizer"
    safety = Safety.NUMERIC
    of_operators = True

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record = evidence.record
        if not evidence.step_s:
            return
        if record is None:
            yield from _of_bare_trace(evidence)
            return
        updating = [each for each in record.optimizers if each.steps]
        if any(each.written is not None for each in updating) or not updating:
            if len(updating) == 1:
                yield from _written_out(evidence, updating[0])
            elif not updating and not evidence.device_is_gpu:
                yield from _plain_class(evidence)
            return
        chosen = [each for each in record.optimizers if each.steps and each.cls in _ON_CPU and not each.fused]
        if not chosen or len(chosen) != sum(bool(each.steps) for each in record.optimizers):
            return  # of several optimizers the trace does not say whose step took how long
        if any("complex" in dtype for model in record.models for dtype in model.dtypes):
            return
        if evidence.operators.row(_SPARSE) is not None:
            return  # Embedding(sparse=True): fused optimizers take dense gradients only
        if evidence.device_is_gpu and any(each.cls not in _KERNELS_ON_GPU for each in chosen):
            return
        mean = sum(model.parameters for model in record.models) / max(1, sum(each.parameters for each in chosen))
        if not evidence.device_is_gpu and mean >= _SMALL:
            chosen = [each for each in chosen if each.cls != "SGD"]
            if len(chosen) != len(record.optimizers):
                return
        stepping = _stepping(evidence, chosen)
        seconds = _undisturbed_s(evidence, stepping)
        share = seconds / evidence.step_s
        gain = _on_gpu(evidence, chosen, stepping) if evidence.device_is_gpu else _on_cpu(evidence, chosen, seconds)
        if not gain.worth_it or (not evidence.device_is_gpu and gain.likely < _LEAST_ON_CPU):
            return
        places = tuple(each.site for each in chosen if each.site is not None)
        classes = " and ".join(dict.fromkeys(each.cls for each in chosen))
        count = sum(each.parameters for each in chosen)
        how = "as lists of tensors" if evidence.device_is_gpu and not _loops(chosen) else "one by one"
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{classes} takes {share:.0%} of the step to update {count} parameters {how}; the fused kernel "
            "reads and writes each of them once.",
            gain=gain,
            evidence={
                "optimizer_step_share": share,
                "optimizer_step_s": seconds,
                "parameters": count,
                "step_s": evidence.step_s,
            },
            site=places[0] if places else None,
            parameters={
                "optimizers": places,
                "classes": tuple(dict.fromkeys(each.cls for each in chosen)),
                "framework": next((name for each in chosen if (name := framework_of(each.owner))), ""),
                "scaled": bool(call_sites(evidence, "GradScaler.scale", every_step=False)),
                "files": model_files(evidence),
                **construction(evidence),
            },
            unmet=_unmet(evidence, chosen),
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        classes = finding.parameters.get("classes")
        known = [str(each) for each in classes] if isinstance(classes, tuple) else []
        if finding.parameters.get("written") and known and {*known} <= _OF_TORCH:
            fused = [each for each in known if each in _KERNELS_ON_GPU]
            said = [f"fused=True to {' and '.join(fused)}"] if fused else []
            rest = [each for each in known if each not in fused]
            said += [f"foreach=True to {' and '.join(rest)}"] if rest else []
            return Advice(f"Pass {' and '.join(said)}.", "the place of the optimizer is unknown")
        if finding.parameters.get("written"):
            text = (
                f"Take an optimizer of torch.optim with fused=True instead of the one {where(finding.site)}, where it "
                "computes the same update; else have torch.compile make one kernel of its step, or write it with "
                "torch._foreach_add_ and the like, for all parameters at once."
            )
            return Advice(text, "whether one of torch.optim's computes the same update is its author's to say")
        text = f"Pass fused=True to the optimizer made {where(finding.site)}."
        framework = str(finding.parameters.get("framework") or "")
        if framework in _FRAMEWORKS:
            text, why = _FRAMEWORKS[framework], f"{framework} makes the optimizer"
            if finding.unmet or told(finding, "optim") != "adamw_torch":
                return Advice(text, " ".join(finding.unmet) or why)
            if told(finding, "fp16") and any(
                "resume_from_checkpoint" in each for each in _texts(finding, sources).values()
            ):
                return Advice(text, _NOT_WITH_SCALER)
            return configured(finding, sources, framework, {"optim": '"adamw_torch_fused"'}, text, why)
        if finding.unmet:
            return Advice(text, " ".join(finding.unmet))
        places = site_list(finding, "optimizers")
        if not places:
            return Advice(text, "the place of the optimizer is unknown")
        drafts = Drafts(sources)
        texts = _texts(finding, sources)
        for path in texts:
            if (line := gradients_given(drafts[path])) is not None:
                return Advice(text, _GIVES_GRADIENTS.format(at(Site(path, line))))
        scaled = finding.parameters.get("scaled") or any("GradScaler" in each for each in texts.values())
        considered = ""
        for site in places:
            draft = drafts[site.file]
            call = call_at(draft, site, tuple(_ON_CPU))
            if call is None or not _is_torchs(draft, call):
                return Advice(text, f"the call at {at(site)} does not name an optimizer of torch.optim")
            if any(_excludes(argument(call, name)) for name in ("foreach", "differentiable")):
                return Advice(text, "foreach or differentiable is given, which exclude fused")
            clips = told(finding, "gradient_clip_val") and "mixed" in str(told(finding, "precision"))
            if (clips or finding.parameters.get("scaled")) and framework_used(draft) == "lightning":
                return Advice(text, "Lightning refuses to clip the gradients of a fused optimizer in 16 bits")
            if any(loads_state(drafts[path], {bound_to(draft, call)} - {""}) for path in texts):
                if scaled:
                    return Advice(text, _NOT_WITH_SCALER)
                considered = _OLD_CHECKPOINT
            option = give(drafts, draft, call, "fused", "True")
            if option is None:
                return Advice(text, "where its arguments come from cannot be told from the source")
            if option:
                return by_option(drafts, draft, option, "True", text, considered)
        return edited(drafts, text, f"{text} {considered}".strip())

    EXAMPLES = (
        Example(
            before="from torch.optim import *\nopt = Adam(ps)  # <- optimizers\n",
            after="from torch.optim import *\nopt = Adam(ps, fused=True)\n",
        ),
        Example(
            before="from torch import optim\nopt = optim.AdamW(ps, lr=1e-3, foreach=False)  # <- optimizers\n",
            after="from torch import optim\nopt = optim.AdamW(ps, lr=1e-3, foreach=False, fused=True)\n",
        ),
        Example(
            before="""
import torch

optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)  # <- optimizers
""",
            after="""
import torch

optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
""",
        ),
        Example(
            before="""
from torch.optim import Adam as Optim

class Trainer:
    def __init__(self, model):
        self.opt = Optim(  # <- optimizers
            model.parameters(),
            lr=1e-3,
            betas=(0.9, 0.95),
        )
""",
            after="""
from torch.optim import Adam as Optim

class Trainer:
    def __init__(self, model):
        self.opt = Optim(
            model.parameters(),
            lr=1e-3,
            betas=(0.9, 0.95),
            fused=True,
        )
""",
        ),
        Example(
            before="""
import torch.optim as optim

FUSED = False  # not on the old cluster
g = optim.SGD(gen.parameters(), lr=0.1, momentum=0.9, fused=FUSED)  # <- optimizers
""",
            after="""
import torch.optim as optim

FUSED = True  # not on the old cluster
g = optim.SGD(gen.parameters(), lr=0.1, momentum=0.9, fused=FUSED)
""",
        ),
        Example(
            before='args = TrainingArguments("out", optim="adamw_torch")  # <- config\n',
            after='args = TrainingArguments("out", optim="adamw_torch_fused")\n',
            parameters={"framework": "transformers", "config_values": {"optim": "adamw_torch"}},
        ),
        Example(  # with a scaler, and no state of the optimizer's that is loaded
            before="""
import torch

model.load_state_dict(torch.load(path)["model"])
optimizer = torch.optim.Adam(model.parameters())  # <- optimizers
scaler = torch.amp.GradScaler()
scaler.load_state_dict(torch.load(path)["scaler"])
""",
            after="""
import torch

model.load_state_dict(torch.load(path)["model"])
optimizer = torch.optim.Adam(model.parameters(), fused=True)
scaler = torch.amp.GradScaler()
scaler.load_state_dict(torch.load(path)["scaler"])
""",
            parameters={"scaled": True},
        ),
        *(
            Example(
                "import torch\nparser = argparse.ArgumentParser()\n"
                f"parser.add_argument('--fused', {declared})\nargs = parser.parse_args()\n"
                "optimizer = torch.optim.Adam(model.parameters(), fused=args.fused)  # <- optimizers\n",
                "",
                options=options,
                advice=advice,
            )
            for declared, options, advice in (
                ("type=int, default=0", {"--fused": "1"}, ""),
                ("default=False", {"--fused": "True"}, ""),
                ("choices=['yes', 'no']", {}, "fused=True"),
                ("action='store_true'", {}, "fused=True"),
            )
        ),
    )
    LEAVES_ALONE = (
        Example("from torch import optim\nopt = optim.Adam(ps, foreach=True)  # <- optimizers\n", ""),
        Example("from torch import optim\nopt = optim.Adam(ps, foreach=many)  # <- optimizers\n", ""),
        Example("from apex.optimizers import AdamW\nopt = AdamW(ps)  # <- optimizers\n", ""),
        Example("from torch.optim import Adam\nopt = Adam(ps, fused=on_gpu())  # <- optimizers\n", ""),
        Example("import torch\nopt = torch.optim.Adam(ps)  # <- optimizers\n", "", {"framework": "transformers"}),
        *(
            Example(f"import torch\nmade = torch.optim.Adam(ps)  # <- optimizers\n{loaded}\n", "", {"scaled": True})
            for loaded in (
                "made.load_state_dict(torch.load('last.pt')['second'])",
                "self.opt_d.load_state_dict(state)",
                "x.load_state_dict(torch.load('last.pt')['optimizer'])",
                "for o, s in zip(self.optimizers, states):\n    o.load_state_dict(s)",
                "accelerator.load_state('last')",
            )
        ),
        Example(
            "import torch\nopt = torch.optim.SGD(ps)  # <- optimizers\nscaler = torch.amp.GradScaler(enabled=amp)\n"
            "opt.load_state_dict(torch.load('last.pt')['opt'])\n",
            "",
        ),
        Example(
            "args = TrainingArguments('out', fp16=True)  # <- config\ntrainer.train(resume_from_checkpoint=last)\n",
            "",
            {"framework": "transformers", "config_values": {"optim": "adamw_torch", "fp16": True}},
        ),
    )


def _is_torchs(draft: Draft, call: cst.Call) -> bool:
    name, own = full_name(draft, call.func), {each.name.value for each in draft.nodes(cst.ClassDef)}
    if name in _ON_CPU and name not in own and ("*", "torch.optim") in imports_anywhere(draft):
        return [module for star, module in imports_anywhere(draft) if star == "*"] == ["torch.optim"]
    return any(name == module + cls for module in _MODULES for cls in _ON_CPU)


def _texts(finding: Finding, sources: Sources) -> dict[str, str]:
    """The texts, by path, of the files that make the optimizers, set up a framework or deal with the models."""
    made = (site.file for name in ("optimizers", "config") for site in site_list(finding, name))
    paths = dict.fromkeys((*made, *file_list(finding, "files")))
    return {path: sources.text(path) for path in paths if sources.has(path)}


def _written_out(evidence: Evidence, own: OptimizerInfo) -> Iterator[Finding]:
    """A torch.optim.Optimizer that the script's author wrote, by what it calls for each parameter."""
    stepping = _stepping(evidence, [own])
    if own.written is not None:
        calls = _called_in(evidence, stepping)
        yield from _one_by_one(
            evidence, own.cls, own.written, own.parameters, calls, _undisturbed_s(evidence, stepping)
        )


def _of_bare_trace(evidence: Evidence) -> Iterator[Finding]:
    """The optimizers of a trace recorded elsewhere, by the operators that they launch kernels with."""
    if not evidence.device_is_gpu or evidence.setup_share >= COLD:
        return
    annotations, operators = evidence.trace.annotations, evidence.trace.operators
    rows = names_like(evidence.trace, annotations.name, _STEP.match)
    host = evidence.host
    stepping = host.stepping(rows).minus(host.backward.union(host.forward, host.differentiated))
    inside = stepping.contains(operators.start) & (assign(evidence.steps, operators.start) >= 0)
    if names_like(evidence.trace, operators.name[inside], _IN_LISTS.match).any():
        return  # lists of tensors, or one kernel: what is left of that the trace alone does not tell
    calls = _called_in(evidence, stepping)
    tensors = evidence.operators.row(_ACCUMULATES)
    names = sorted({str(evidence.trace.name(code)) for code in annotations.name[rows].tolist()})
    classes = [match[1] for each in names if (match := _STEP.match(each))]
    if calls >= _LEAST_CALLS and not any(each.startswith(_MANY_CLOSURES) for each in classes):
        count = round(tensors.count) if tensors is not None else 0
        seconds = _undisturbed_s(evidence, stepping)
        for finding in _one_by_one(evidence, " and ".join(classes), None, count, calls, seconds):
            yield replace(finding, parameters={**finding.parameters, "classes": tuple(classes)})


def _plain_class(evidence: Evidence) -> Iterator[Finding]:
    """The same of a class, or function, of the author's that is no torch.optim.Optimizer: what is most of the rest."""
    found, host, steps = evidence.outside, evidence.host, evidence.steps
    if found is None or not len(host.backward) or not _UPDATES.search(source_of(found, text_of(found.file))):
        return
    own_work = host.forward.union(host.backward, host.differentiated, host.loader)
    calls = _called_in(evidence, Coverage.of(steps.start, steps.end).minus(own_work))
    tensors = evidence.operators.row(_ACCUMULATES)
    seconds = min(found.share, evidence.breakdown.share(OTHER)) * (evidence.step_s or 0.0)
    if tensors is not None:
        site = Site(found.file, found.line)
        yield from _one_by_one(evidence, found.name, site, round(tensors.count), calls, seconds)


def _one_by_one(
    evidence: Evidence, name: str, site: Site | None, tensors: int, calls: float, seconds: float
) -> Iterator[Finding]:
    """What updates `tensors` with `calls` operators in each step, `seconds` of it, where a fused step is quicker.

    Of a bare trace `site` is None, and `tensors` may be 0: unknown.
    """
    if calls < _CALLS_PER_PARAMETER * max(1, tensors) or not evidence.step_s:
        return
    low, likely, high = (evidence.what_if(Change(remove_host_s=seconds * (1.0 - each))) for each in _WRITTEN_OUT[::-1])
    gain = Gain(max(low.speedup[1], high.speedup[1] / WIDEST), likely.speedup[1], high.speedup[1], _WRITTEN_BASIS)
    if gain.likely < _LEAST_WRITTEN_OUT:
        return
    yield Finding(
        rule=FusedOptimizer.id,
        title="Update all parameters at once",
        summary=name
        + (f", written at {at(site)}," if site is not None else "")
        + f" takes {seconds / evidence.step_s:.0%} of the step: it calls {calls:,.0f} operators"
        + (f" for {tensors} parameters" if tensors else "")
        + ", one after the other.",
        gain=gain,
        evidence={
            "optimizer_step_share": seconds / evidence.step_s,
            "optimizer_step_s": seconds,
            "operator_calls": calls,
            "parameters": tensors,
            "step_s": evidence.step_s,
        },
        site=site,
        parameters={"written": True},
    )


def _called_in(evidence: Evidence, coverage: Coverage) -> float:
    """How many operators that compute a step calls in there."""
    operators = evidence.trace.operators
    inside = coverage.contains(operators.start) & (assign(evidence.steps, operators.start) >= 0)
    inside &= names_like(evidence.trace, operators.name, _CALLED.match)
    return float(inside.sum()) / max(1, len(evidence.steps))


# The numbers ------------------------------------------------------------------------------------------------------


def _stepping(evidence: Evidence, chosen: list[OptimizerInfo]) -> Coverage:
    """When the host is inside of these optimizers' steps; a closure's forward and backward left out."""
    names = {f"Optimizer.step#{each.cls}.step" for each in chosen}
    host, annotations = evidence.host, evidence.trace.annotations
    rows = names_like(evidence.trace, annotations.name, names.__contains__)
    return host.stepping(rows).minus(host.backward.union(host.forward).union(host.loader))


def _undisturbed_s(evidence: Evidence, stepping: Coverage) -> float:
    """Seconds of a step inside of the optimizer: what the profiler adds, it adds to each operator's call alike."""
    steps, operators = evidence.steps, evidence.trace.operators
    if not len(steps):
        return 0.0
    each_step = stepping.within(steps.start, steps.end) / 1e9
    usual = float(np.median(each_step))
    # Of a few short steps one that another process interrupted would count for all; zero where few steps update.
    traced = float(np.minimum(each_step, _INTERRUPTED * usual).mean() if usual else each_step.mean())
    inside = stepping.contains(operators.start)
    calls = sum(row.count for row in evidence.operators)
    added = max(0.0, (evidence.trace_step_s or 0.0) - (evidence.step_s or 0.0)) / max(1.0, calls)
    undisturbed = max(0.0, traced - added * float(inside.sum()) / len(steps))
    return min(undisturbed, (evidence.step_s or 0.0) * traced / max(evidence.trace_step_s or 0.0, 1e-12))


def _on_cpu(evidence: Evidence, chosen: list[OptimizerInfo], seconds: float) -> Gain:
    left = np.mean([_ON_CPU[each.cls] for each in chosen], axis=0)
    best, likely, worst = (evidence.what_if(Change(remove_host_s=seconds * (1.0 - float(each)))) for each in left)
    middle = likely.speedup[1]
    high = best.speedup[1] * 1.02
    return Gain(max(min(middle, worst.speedup[1] * 0.98), high / WIDEST), middle, max(middle, high), _CPU_BASIS)


def _on_gpu(evidence: Evidence, chosen: list[OptimizerInfo], stepping: Coverage) -> Gain:
    # Without momentum the foreach step of SGD is one operator already, which reads and writes as much as the fused one.
    left = float(np.mean([1.0 if _plain(each) else _KERNELS_ON_GPU[each.cls] for each in chosen]))
    trace, launch = evidence.trace, evidence.device.items_launch[: len(evidence.trace.kernels)]
    factors = np.ones(len(trace.kernels))
    known = np.flatnonzero(launch >= 0)
    launched = stepping.contains(trace.runtime.start[launch[known]])
    factors[known[launched]] = left
    host, basis = float(np.mean([_HOST_ON_GPU[each.cls] for each in chosen])), _GPU_BASIS
    if _loops(chosen):
        host, basis = _HOST_OF_A_LOOP, _LOOP_BASIS
        factors[known[launched]] = _of_a_loop(evidence, known[launched], left)
    removed = _undisturbed_s(evidence, stepping) * (1.0 - host)
    return Gain.prior(evidence.what_if(Change(kernel_scale=factors, remove_host_s=removed)), basis)


def _loops(chosen: list[OptimizerInfo]) -> bool:
    """Whether these optimizers were told not to take lists of tensors, which is what they do on a GPU otherwise."""
    return all(each.foreach is False for each in chosen)


def _of_a_loop(evidence: Evidence, kernels: Ints, most: float) -> float:
    """What is left of the kernels of such a loop: what moving the parameters' memory takes, of kernels that are mostly
    about starting; as much as of lists of tensors, `most`, where it is more.
    """
    table, record, peak = evidence.trace.kernels, evidence.record, evidence.peak
    spent_s = float((table.end - table.start)[kernels].sum()) / 1e9 / max(1, len(evidence.steps))
    if record is None or peak is None or not spent_s:
        return most
    weights = sum(model.parameters for model in record.models if model.calls)
    return min(most, max(_LEAST_OF_A_LOOP, weights * _FUSED_BYTES / peak.bandwidth / spent_s))


def _excludes(given: cst.Arg | None) -> bool:
    """Whether ``foreach`` or ``differentiable`` is given and may be true: only then do they exclude ``fused``."""
    return given is not None and not m.matches(given.value, m.Name("False") | m.Name("None"))


def _plain(optimizer: OptimizerInfo) -> bool:
    return optimizer.cls == "SGD" and optimizer.momentum == 0.0


def _unmet(evidence: Evidence, chosen: list[OptimizerInfo]) -> tuple[str, ...]:
    found = []
    if any(each.foreach for each in chosen):
        found.append("foreach=True is given, which excludes fused.")
    if sliced := sum(each.sliced for each in chosen):
        found.append(
            f"{sliced} of the parameters are parts of larger tensors, over which fused kernels go number by number: "
            "they would change others. Give the model copies of its own, nn.Parameter(part.clone())."
        )
    return tuple(found)
