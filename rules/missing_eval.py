"""A model that only infers is in training mode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from advisor.edit import Drafts
from advisor.edit.gradients.gradless import trained_beside, trains
from advisor.edit.models import binding, made_at, put_together
from advisor.evidence import Change
from advisor.evidence.coded import names_like
from advisor.evidence.norms import BATCH_NORMS, batch_norms
from advisor.evidence.steps import assign
from advisor.fixes import edited
from advisor.rule import (
    Advice,
    Argument,
    Example,
    Finding,
    Gain,
    Rule,
    Safety,
    call_sites,
    forward_sites,
    site_list,
    sites,
    where,
)

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence
    from advisor.harness.layout import Model
    from advisor.trace.intervals import Ints

_DROPOUTS = frozenset(
    f"aten::{name}{ending}"
    for name in ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
    for ending in ("", "_")
)
_DRAWS = ("aten::bernoulli_", "aten::native_dropout")  # what an active dropout calls, and one in eval mode does not
# What fused attention falls back to on a CPU where it has to drop some of its weights; of what that takes beside the
# dropout so much is left without, as in the rule attention-sdpa.
_ATTENTION, _ATTENTION_LEFT = "aten::_scaled_dot_product_attention_math", 0.2
_NORM = "aten::native_batch_norm"
# Batch norm with running statistics over one with the batch's own, CPU seconds measured with torch 2.15, one thread:
# 16x32x32x32 0.22 (1392 to 301 us), 16x64x56x56 0.17; 128x256, one-dimensional, 0.64.
_NORM_SCALE, _NORM_1D_SCALE = 0.22, 0.64
# On a GPU its kernels wait for memory: with the batch's own statistics they read what they are given twice and write it
# once, with those that are learned they read once (torch's batch_norm_collect_statistics and cuDNN's alike).
_NORM_KERNEL_SCALE = 0.67
# And the host calls less: it counts no batches, makes no statistics and, where gradients are recorded, keeps nothing
# for them. Microseconds per layer beside an H200, torch 2.11, 40 layers on 8x32x16x16: 61 to 23 with gradients, 34 to
# 19 without; dropout, of a small tensor, 23 to 6.
_NORM_HOST_S, _NORM_HOST_WITH_GRADIENTS_S, _DROPOUT_HOST_S = 15e-6, 38e-6, 17e-6


class MissingEval(Rule):
    """The script only infers, and its model is still in training mode, as a module is made.

    Dropout then draws a random number for each activation and throws some of them away; batch norm computes the
    statistics of each batch instead of using those it has learned, and goes on changing them. ``model.eval()`` ends
    both. It is more than a matter of time: in training mode the outputs are noisy, and depend on what else is in the
    batch. Reported only where the operators of dropout and batch norm are a part of the step worth having.

    When not: dropout is meant to be active (Monte Carlo dropout: not reported where the script asks for training mode
    itself, or calls the model several times on one input); batch norm is being adapted to new data.

    Source: PyTorch notes, "Autograd mechanics", "Evaluation mode (nn.Module.eval())". Dropout's time is the trace's;
    what batch norm saves is a prior, from CPU times measured in both modes, and so is what attention saves that drops
    none of its weights, and is fused then.
    """

    id = "missing-eval"
    title = "Put the model in evaluation mode"
    safety = Safety.BEHAVIOUR

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record = evidence.record
        if record is None or evidence.trains or len(evidence.host.backward):
            return
        if call_sites(evidence, "backward", "Module.train", every_step=False):
            return
        model = next((each for each in record.models if _forgotten(each)), None)
        others = {each.cls for each in record.models if each is not model}
        evaluated = {str(each.details.get("module")) for each in call_sites(evidence, "Module.eval", every_step=False)}
        if model is None or evaluated - others:
            return  # a part of the model may be in evaluation mode, and the rest in training mode on purpose
        dropout_s, change = _without(evidence, model)
        gain = Gain.of(evidence.what_if(change))
        if not gain.worth_it:
            return
        norm = evidence.operators.row(_NORM)
        norms = batch_norms(evidence) if _layers(model, "BatchNorm") else 0.0
        forwards = forward_sites(evidence)
        site = model.made or (forwards[0].site if forwards else None)
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{model.cls} infers in training mode, {dropout_s * 1e3:.2f} ms of the traced step in dropouts"
            + (f" and {norms:.0f} batch norms with each batch's own statistics" if norms else "")
            + "; its outputs are not those of the trained model either.",
            gain=gain,
            evidence={
                "dropout_s": dropout_s,
                "batch_norm_s": norm.self_s if norm is not None and _layers(model, "BatchNorm") else 0.0,
                "dropout_layers": _layers(model, "Dropout"),
                "batch_norm_layers": _layers(model, "BatchNorm"),
                "step_s": evidence.step_s,
            },
            site=site,
            parameters={
                "made": (model.made,) if model.made is not None else (),
                "forward": sites(forwards),
                "moves": sites(call_sites(evidence, "Module.to", "Module.cuda", every_step=False)),
            },
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        text = f"Call .eval() on the model {where(finding.site)}, before it infers."
        drafts = Drafts(sources)
        bound = next((each for site in site_list(finding, "made") if (each := made_at(drafts, site))), None)
        if bound is None and site_list(finding, "forward"):
            bound = binding(drafts, site_list(finding, "forward"), site_list(finding, "moves"), ())
        if bound is None:
            return Advice(text, "where the script makes its model cannot be told from the source")
        files = {site.file for site in site_list(finding, "forward")} | {bound.draft.source.path}
        if any(trains(drafts[path]) for path in files) or trained_beside(bound.draft, bound.statement):
            return Advice(text, "the script, or one beside it, also trains, where the model has to be in training mode")
        bound = put_together(bound)
        bound.draft.insert_after(bound.statement, f"{bound.name}.eval()")
        return edited(drafts, text)

    EXAMPLES = (
        Example(
            before="""
class Scorer:
    def __init__(self, path):
        self.model = Net(  # <- made
            width=64,  # as trained
        )
        self.model.load_state_dict(torch.load(path))
""",
            after="""
class Scorer:
    def __init__(self, path):
        self.model = Net(
            width=64,  # as trained
        )
        self.model.eval()
        self.model.load_state_dict(torch.load(path))
""",
        ),
        Example(  # made in a function of its own
            before="""
def load():
    return Net().to(device)  # <- made=Net()

def main():
    net = load()
    for x in batches:
        y = net(x)  # <- forward
""",
            after="""
def load():
    return Net().to(device)

def main():
    net = load()
    net.eval()
    for x in batches:
        y = net(x)
""",
        ),
        Example(  # a library makes it
            before="model = resnet18(weights=W)  # <- made\ny = model(x)  # <- forward\n",
            after="model = resnet18(weights=W)\nmodel.eval()\ny = model(x)\n",
        ),
        Example(  # once it has its own head
            before="""
model = mobilenet_v2(weights=W)  # <- made
model.classifier = nn.Sequential(nn.Dropout(0.5), nn.Linear(1280, 2))
model.load_state_dict(torch.load("m.pt"))
""",
            after="""
model = mobilenet_v2(weights=W)
model.classifier = nn.Sequential(nn.Dropout(0.5), nn.Linear(1280, 2))
model.eval()
model.load_state_dict(torch.load("m.pt"))
""",
        ),
        Example(  # whichever it is
            before="""
if args.deep:
    model = Deep()  # <- made
else:
    model = Shallow(width=args.width)
""",
            after="""
if args.deep:
    model = Deep()
else:
    model = Shallow(width=args.width)
model.eval()
""",
        ),
    )
    LEAVES_ALONE = (
        Example("for net in [Net() for _ in range(3)]:  # <- made=Net()\n    y = net(x)  # <- forward\n", ""),
        Example("y = self.models[0](x)  # <- forward=self.models[0](x)\n", ""),
        Example(  # its training is to be in training mode
            "net = Net()  # <- made\nif args.train:\n    fit(net)\nelse:\n    y = net(x)  # <- forward\n"
            "def fit(net):\n    net(x).sum().backward()\n",
            "",
        ),
        Example('nets = {}\nnets["a"] = Net()  # <- made=Net()\ny = nets["a"](x)  # <- forward=nets["a"](x)\n', ""),
    )


def _layers(model: Model, kind: str) -> int:
    """How many layers of a kind there are that evaluation mode changes."""
    return sum(count - model.unswitched.get(name, 0) for name, count in model.layers.items() if kind in name)


def _forgotten(model: Model) -> bool:
    """In training mode, with layers that then do something else, and not called again and again on one input.

    All calls on one tensor are a benchmark's; several on each of many are Monte Carlo dropout's.
    """
    draws = 0 < model.repeats < model.calls - 1
    switched = _layers(model, "Dropout") + _layers(model, "BatchNorm")
    return bool(model.training and model.calls and model.parameters and switched and not draws)


def _without(evidence: Evidence, model: Model) -> tuple[float, Change]:
    """Seconds per step in active dropouts, and the change that evaluation mode is."""
    drawing = any((row := evidence.operators.row(name)) is not None and row.count for name in _DRAWS)
    dropout_s = _inclusive_s(evidence) if drawing and _layers(model, "Dropout") else 0.0
    operators: dict[str, float] = {}
    kernels = {row.name: 0.0 for row in evidence.kernels if row.operator == "aten::native_dropout"}
    if _layers(model, "BatchNorm") and evidence.device_is_gpu:
        kernels |= {row.name: _NORM_KERNEL_SCALE for row in evidence.kernels if row.operator in BATCH_NORMS}
    elif _layers(model, "BatchNorm"):
        flat = _layers(model, "BatchNorm1d") == _layers(model, "BatchNorm")
        operators[_NORM] = _NORM_1D_SCALE if flat else _NORM_SCALE
    # Batches of several lengths: the traced steps may be shorter than the mean of all.
    scale = (evidence.step_s or 0.0) / (evidence.trace_step_s or 1.0)
    host_s = dropout_s * scale
    if dropout_s and not evidence.device_is_gpu:
        host_s += _unfused_s(evidence) * (1.0 - _ATTENTION_LEFT) * scale
    if evidence.device_is_gpu:
        norms = batch_norms(evidence)
        dropouts = row.count if (row := evidence.operators.row("aten::native_dropout")) is not None else 0.0
        each_s = _NORM_HOST_WITH_GRADIENTS_S if model.grad_enabled else _NORM_HOST_S
        drawn_s = dropouts * _DROPOUT_HOST_S if dropouts else host_s  # of others' dropouts all that they call
        host_s = norms * (each_s if _layers(model, "BatchNorm") else 0.0) + drawn_s
    return dropout_s, Change(
        remove_host_s=host_s, operator_scale=operators or None, kernel_scale=kernels or None
    )


def _dropouts(evidence: Evidence) -> Ints:
    """The rows of ``Trace.operators`` that are the outermost operators of dropouts, in the steps."""
    operators = evidence.trace.operators
    chosen = names_like(evidence.trace, operators.name, _DROPOUTS.__contains__)
    chosen &= assign(evidence.steps, operators.start) >= 0
    parent = evidence.nesting.parent
    return np.flatnonzero(chosen & ~((parent >= 0) & chosen[np.maximum(parent, 0)]))


def _inclusive_s(evidence: Evidence) -> float:
    """Seconds per traced step inside of dropouts, with all that they call."""
    operators, rows = evidence.trace.operators, _dropouts(evidence)
    return float((operators.end - operators.start)[rows].sum()) / 1e9 / max(1, len(evidence.steps))


def _unfused_s(evidence: Evidence) -> float:
    """Seconds per traced step of attention that is not fused because it drops some of its weights, these aside."""
    operators, parent = evidence.trace.operators, evidence.nesting.parent
    attention = names_like(evidence.trace, operators.name, _ATTENTION.__eq__)
    within = np.array([row for row in _dropouts(evidence).tolist() if parent[row] >= 0 and attention[parent[row]]], int)
    took = operators.end - operators.start
    return float(took[parent[within]].sum() - took[within].sum()) / 1e9 / max(1, len(evidence.steps))
