"""cuDNN builds a plan for attention of every new shape, while the GPU waits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from advisor.edit import Drafts
from advisor.edit.names import after_imports, ensure_name
from advisor.edit.sources import text_of
from advisor.evidence import Change
from advisor.evidence.coded import names_like
from advisor.evidence.steps import assign
from advisor.fixes import edited
from advisor.rule import WIDEST, Advice, Example, Finding, Gain, Rule, Safety, once_fed

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence
    from advisor.trace.tables import Ints

_CALLS = ("aten::_cudnn_attention_forward", "aten::_cudnn_attention_backward")
# A call whose plan is there takes 0.1 to 0.2 ms of the host's time. Plans took 49 to 106 ms on an H200 (torch 2.11), 55
# to 70 ms on a Blackwell (flashinfer #5245), 440 and 550 ms on a B200 (FunASR #3704).
_PLAN_NS = 20_000_000
_LEAST_PLANS = 0.5  # a step, and in more than one step: a first one, or an epoch's last batch, is no habit
_SETTINGS = ("cudnn_sdp", "CUDNN_ATTENTION", "CUDNN_SDPA")
_LATER = 0.5  # of the time saved: lengths that have come before have their plan
_BASIS = "the plans' own time in this run; in a long one fewer lengths are new"


class CudnnAttentionPlans(Rule):
    """Attention runs in cuDNN, and batches have ever other lengths: cuDNN builds a plan for each shape it has not met.

    From Hopper on ``scaled_dot_product_attention`` prefers cuDNN where it may. cuDNN takes a plan for the very shape of
    its inputs, and building one takes some 50 to 500 ms, forward and backward each, in which nothing is launched; for
    batches padded to their longest sample nearly every step has a new shape at first. FlashAttention and the
    memory-efficient kernels take any length as it comes. Reported where steps of the run spend their time in such
    plans.

    When not: there are few lengths, and each has come once (later steps have their plans); the attention itself is most
    of the step and cuDNN is faster at it: then pad lengths to multiples of 64 or more, so that few shapes are left.

    Source: PyTorch docs, ``torch.backends.cuda.enable_cudnn_sdp``; PyTorch #155958; FunASR #3704, where a step of
    fine-tuning went from 245 to 100 ms on a B200.
    """

    id = "cudnn-attention-plans"
    title = "Keep attention of ever new lengths from cuDNN"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        operators, steps = evidence.trace.operators, evidence.steps
        if not evidence.device_is_gpu or not len(steps) or not evidence.trace_step_s:
            return
        step = assign(steps, operators.start)
        calls = np.flatnonzero((step >= 0) & names_like(evidence.trace, operators.name, _CALLS.__contains__))
        took = operators.end - operators.start
        took[calls] -= _waited(evidence, operators.start[calls], operators.end[calls])
        plans = calls[took[calls] >= _PLAN_NS]
        count = len(plans) / len(steps)
        if count < _LEAST_PLANS or len(np.unique(step[plans])) < 2:
            return
        building_s = float(took[plans].sum()) / 1e9 / len(steps)
        share = min(1.0, building_s / evidence.trace_step_s)
        estimate, fed = once_fed(evidence, Change(remove_host_s=share * (evidence.step_s or 0.0)))
        whole = Gain.of(estimate)
        low = max(1.0 + _LATER * (whole.low - 1.0), whole.high / WIDEST)
        gain = Gain(min(low, whole.likely), whole.likely, whole.high, _BASIS)
        if not gain.worth_it:
            return
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"cuDNN builds {count:.1f} plans for attention a step, each for a shape it has not met before: "
            f"{building_s * 1e3:.1f} ms of the host's time, in which nothing is launched." + fed,
            gain=gain,
            evidence={"plans_per_step": count, "plans_s": building_s, "step_s": evidence.step_s},
            parameters={"script": evidence.script, "chosen": _chosen(evidence)},
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Advice:
        call = "torch.backends.cuda.enable_cudnn_sdp(False)"
        text = f"Call {call} before the first step; or pad lengths to multiples of 64, so that few shapes are left."
        script = str(finding.parameters.get("script") or "")
        if not script or not sources.has(script):
            return Advice(text, "the script's file is unknown")
        drafts = Drafts(sources)
        draft = drafts[script]
        if finding.parameters.get("chosen") or any(each in draft.source.text for each in _SETTINGS):
            return Advice(text, "the script chooses the kernels of attention itself")
        if not after_imports(draft, f"{ensure_name(draft, 'torch')}.backends.cuda.enable_cudnn_sdp(False)"):
            return Advice(text, "the script imports nothing at its top level")
        return edited(drafts, text)

    EXAMPLES = (
        Example(
            before="import torch\n\nmodel = make()\n",
            after="import torch\n\ntorch.backends.cuda.enable_cudnn_sdp(False)\n\nmodel = make()\n",
        ),
        Example(
            before="from torch import nn\n\n\ndef main():\n    pass\n",
            after="from torch import nn\nimport torch\n\ntorch.backends.cuda.enable_cudnn_sdp(False)\n\n\n"
            "def main():\n    pass\n",
        ),
    )
    LEAVES_ALONE = (
        Example("import torch\ntorch.backends.cuda.enable_cudnn_sdp(True)\n", ""),
        Example("from torch.nn.attention import SDPBackend, sdpa_kernel\nKERNEL = SDPBackend.CUDNN_ATTENTION\n", ""),
    )


def _waited(evidence: Evidence, start: Ints, end: Ints) -> Ints:
    """ns of each call that the driver takes to give memory, or the device to be done."""
    runtime, host = evidence.trace.runtime, evidence.host
    rows = np.flatnonzero(host.allocation_rows | host.sync_rows)
    rows = rows[np.argsort(runtime.start[rows], kind="stable")]
    spent = np.append(0, np.cumsum(runtime.end[rows] - runtime.start[rows]))
    first, last = (np.searchsorted(runtime.start[rows], edge) for edge in (start, end))
    waited: Ints = spent[last] - spent[first]
    return waited


def _chosen(evidence: Evidence) -> bool:
    """Whether any of the script's modules says itself which kernels attention takes."""
    files = evidence.record.modules if evidence.record is not None else ()
    return any(each in text_of(file) for file in files for each in _SETTINGS)
