"""What a compiler would leave of a step whose model was to be compiled, and runs operator by operator after all."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from advisor.evidence.coded import names_like
from advisor.evidence.whatif import Change

if TYPE_CHECKING:
    from advisor.evidence import Evidence

# Inductor names the ranges in which its graphs run: one for each forward, one for each backward.
_GRAPH = re.compile(r"^## Call CompiledFxGraph ")
# Elementwise operators and their derivatives. Those in place are the optimizer's, or of gradients: not the model's.
_ELEMENTWISE = re.compile(
    r"^aten::(add|sub|rsub|mul|div|neg|abs|sgn|square|sqrt|rsqrt|reciprocal|where|clamp|clamp_min|clamp_max|maximum"
    r"|minimum|relu|threshold_backward|hardtanh|leaky_relu|lerp|addcmul|addcdiv|masked_fill|lt|le|gt|ge|eq|ne)$"
)
_FUNCTIONS = re.compile(r"^aten::(tanh|sigmoid|exp|log|pow|sin|cos|erf|gelu|silu|softplus|elu)(_backward)?$")
# What is left of them. On a GPU, PyTorch 2.0's announcement (163 models, training on an A100) measured 1.21x (float32)
# to 1.51x (AMP), matrix work nearly unchanged: that is about half of the rest. On a CPU, measured with torch 2.15 and
# one thread, training, CPU time of a step: 23.7 ms eager and 17.3 compiled (1434 operator calls, half of the time
# elementwise), 9.0 and 5.1 (1016 calls): about half of the elementwise work, and 2 us for each call. A tanh takes the
# same instructions as before.
_ELEMENTWISE_LEFT, _FUNCTIONS_LEFT, _LAUNCHES_LEFT = 0.5, 0.8, 0.6
_CALL_S, _COMPILED_STEP_S = 2.0e-6, 0.2e-3
_MOST = 0.5  # of the step's calls are saved at most so much of its forward and backward
_FORWARD = 0.25  # of a step: a training's forward pass takes a third of it or more
_KEPT_ON_GPU = ("gemm", "conv", "attention", "communication")
_OTHERS = re.compile(r"multi_tensor_apply|FusedAdam|fused_adam|^triton_", re.IGNORECASE)  # optimizer, compiled already

BASIS = "prior: half of the elementwise work fused away (PyTorch 2.0, 163 models; two trainings on a CPU)"


def graphs_per_step(evidence: Evidence) -> float:
    """Graphs of Inductor's that run in a step, those of the backward counted."""
    return _graphs(evidence)[0]


def graphs_expected(evidence: Evidence) -> float:
    """As many would run if each compiled object were one graph, called as often as the models are.

    Where no whole model is compiled, a graph that runs again is one more call of what is, as of a cell that an eager
    model calls for each item of a sequence: it is expected as often as it runs. The pieces of a whole model may bear
    one name, too, those of like layers (so they do in torch 2.15), and then count.
    """
    record = evidence.record
    if record is None:
        return 0.0
    objects = sum(each.calls for each in record.call_sites if each.kind in ("torch.compile", "Module.compile"))
    passes = sum(each.calls_per_step for each in record.call_sites if each.kind == "Module.call")
    whole = max(1, objects) * (2 if evidence.trains else 1)
    expected = whole * max(1.0, passes)
    if any(model.compiled for model in record.models):
        return expected
    running, different = _graphs(evidence)
    cuts = max(0.0, min(running, different * max(1.0, passes)) - expected)
    return max(expected, running - cuts)


def _graphs(evidence: Evidence) -> tuple[float, float]:
    """(Inductor's graphs that run in a step, those of them that differ): means over the steps."""
    trace, steps = evidence.trace, evidence.steps
    if not len(steps):
        return 0.0, 0.0
    rows = names_like(trace, trace.annotations.name, lambda name: _GRAPH.match(name) is not None)
    begun, names = trace.annotations.start[rows], trace.annotations.name[rows]
    inside = (begun >= steps.start[0]) & (begun < steps.end[-1])
    step = np.searchsorted(steps.start, begun[inside], side="right")
    different = np.unique(np.stack([step, names[inside]]), axis=1).shape[1]
    return float(inside.sum()) / len(steps), different / len(steps)


def runs_model(evidence: Evidence) -> bool:
    """Whether what was to be compiled is the step's model, not a helper beside it.

    A compiled function is recorded as one call, whatever models it holds: it is then its share of the step that tells.
    """
    record, steps = evidence.record, evidence.steps
    if record is None or any(model.compiled for model in record.models):
        return True
    inside = float(evidence.host.forward.within(steps.start, steps.end).sum())
    return inside >= _FORWARD * max(1, steps.total_ns)


def fused(evidence: Evidence) -> Change:
    """The step with its eager elementwise work compiled."""
    if evidence.device_is_gpu:
        rows = [row for row in evidence.kernels if row.kind not in _KEPT_ON_GPU and not _OTHERS.search(row.name)]
        return Change(kernel_scale={row.name: _ELEMENTWISE_LEFT for row in rows}, launch_scale=_LAUNCHES_LEFT)
    scale = {row.name: _ELEMENTWISE_LEFT for row in evidence.operators if _ELEMENTWISE.match(row.name)}
    scale |= {row.name: _FUNCTIONS_LEFT for row in evidence.operators if _FUNCTIONS.match(row.name)}
    calls = sum(row.count for row in evidence.operators if row.name.startswith("aten::"))
    inside = max(0.0, 1.0 - evidence.breakdown.share("optimizer") - evidence.breakdown.share("loader"))
    computing = evidence.breakdown.share("forward") + evidence.breakdown.share("backward")
    saved = min(calls * inside * _CALL_S, _MOST * computing * (evidence.step_s or 0.0)) - _COMPILED_STEP_S
    return Change(operator_scale=scale, remove_host_s=saved)
