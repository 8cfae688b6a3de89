"""What a compiler would leave of a step whose model was to be compiled, and runs operator by operator after all."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from advisor.evidence.coded import names_like
from advisor.evidence.coverage import Coverage
from advisor.evidence.gpu.matrix import is_optimizer
from advisor.evidence.pauses import without_pauses
from advisor.evidence.steps import assign
from advisor.evidence.whatif import Change

if TYPE_CHECKING:
    from advisor.evidence import Evidence
    from advisor.evidence.repeated import Repeated
    from advisor.trace.tables import Trace

# Inductor names the ranges in which its graphs run: one for each forward, one for each backward.
_GRAPH = re.compile(r"^## Call CompiledFxGraph ")
# What is left of elementwise work on a GPU: PyTorch 2.0's announcement (163 models, training on an A100) measured 1.21x
# (float32) to 1.51x (AMP), matrix work nearly unchanged: that is about half of the rest.
_ELEMENTWISE_LEFT, _LAUNCHES_LEFT = 0.5, 0.6
# On a CPU what goes is the overhead: Python, the dispatcher, autograd's nodes, small tensors. Inductor's C++ is no
# faster than ATen and oneDNN: matrix products are the same calls, a function such as tanh, computed once more in the
# backward, takes longer, and the numbers of a dropout are drawn one by one. Fitted to thirteen models, torch 2.15, one
# thread of an AVX2 machine, training, eager over compiled (predicted): a GRU written out in Python 4.1 (2.7), a chain
# of small activations 2.5 (2.0), nine of matrix work or large tensors 0.5 to 1.3 (0.9 to 1.3), two transformer encoders
# with dropout 0.5 and 0.8 (1.1 and 0.9).
_ATEN = re.compile(r"^aten::|^mkldnn::")
_OF_LIBRARIES = re.compile(
    r"^aten::(mm|addmm|bmm|baddbmm|addbmm|mv|addmv|dot|\w*conv\w*|mkldnn\w*|_scaled_dot\w*|_flash_attention\w*|\w*lstm\w*"
    r"|\w*gru\w*|embedding\w*|_embedding\w*|native_\w*norm\w*|\w*_pool\w*|_softmax\w*|sort|topk|gather|scatter\w*|index\w*"
    r"|_index_put_impl_|cumsum|nonzero|linalg\w*|_?fft\w*)$|^mkldnn::"
)
_TRITON_FROM = (7, 0)  # torch/_inductor/exc.py, GPUTooOldForTriton: "CUDA Capability >= 7.0"
_FUNCTIONS = re.compile(
    r"^aten::(tanh|sigmoid|exp|log|log1p|expm1|pow|sin|cos|erf|gelu|silu|softplus|elu|_log_softmax)"
    r"(_backward(_data)?)?$"
)
_RECURRENT = re.compile(r"^aten::(lstm|gru|rnn_tanh|rnn_relu)$")
# Dynamo ends a graph at them (torch._dynamo.config.capture_dynamic_output_shape_ops, which is off).
_SIZED_BY_DATA = re.compile(r"^aten::(nonzero|masked_select|_unique2|unique_dim)$")
_DRAWN = re.compile(r"^aten::(bernoulli_?|native_dropout)$")
# What is left of their own work, and which part of a call is its overhead: of a library's at most half.
_FUNCTIONS_LEFT, _DRAWN_LEFT, _OTHERS_LEFT = 1.2, 1.8, 0.9
# On processors with AVX-512: of ten more trainings, with elementwise work on large tensors, torch 2.14, two threads,
# 0.12 to 0.96 of that work was left, 0.7 in the middle; eager over compiled was 1.07 to 1.7, and 8.6 where all of it is
# summed up at once (by these 1.07 to 1.6, by the above 0.95 to 1.4). Where a script asks for a compiler, and gets next
# to nothing of it, they are what it loses; elsewhere the above are on the safe side.
_WIDE_VECTORS = "avx512f"
_FUNCTIONS_LEFT_WIDE, _OTHERS_LEFT_WIDE = 0.85, 0.6
_CALL_S, _LIBRARY_CALL_S = 4e-6, 5e-6
# A graph's guards and wrappers, forward and backward each: Python's work, which where an operator takes 1 us (of 2.5)
# takes that much less, too.
_COMPILED_CALL_S, _COMPILED_CALL_OPERATORS = 0.2e-3, 80.0
# A compiled function's, likewise: 0.05 ms where a small operator took 6 us, less than 0.022 ms where it took 2 us.
_FUNCTION_CALL_S, _FUNCTION_CALL_OPERATORS = 0.05e-3, 9.0
_PROFILED_S = 2e-6  # of an operator's time under the profiler are its own at most so much
_MOST = 0.9  # of a step
_FORWARD = 0.25  # of a step: a training's forward pass takes a third of it or more
KEPT_ON_GPU = ("gemm", "conv", "attention", "communication")
_COMPILED = "triton_"  # how the names of kernels begin that Inductor has made

_FEWEST_FORWARDS, _VARIES = 6, 0.1  # forwards; of their operators, and of the forwards that differ by that
_PAUSE_NS = 100_000  # between two operators of one function; Python does something else in a longer one

_ON_GPU = "prior: half of the elementwise work and launches fused away (PyTorch 2.0, 163 models)"
_ON_CPU = "prior: the overhead of operator calls goes, and of elementwise work a part (23 models measured on CPUs)"


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


def _left_out(name: str) -> bool:
    return is_optimizer(name) or name.startswith(_COMPILED)


def basis(evidence: Evidence) -> str:
    """What a prediction of :func:`fused` or :func:`overhead_s` rests on."""
    return _ON_GPU if evidence.device_is_gpu else _ON_CPU


def too_old_for_triton(evidence: Evidence) -> tuple[str, ...]:
    """A sentence where the GPU is older than those that Triton compiles for; nothing otherwise."""
    capability = evidence.capability
    if capability is None or capability >= _TRITON_FROM:
        return ()
    return (
        f"Triton compiles for GPUs of compute capability 7.0 and newer; this one has {capability[0]}.{capability[1]}.",
    )


def not_in_place(evidence: Evidence) -> tuple[str, ...]:
    """A sentence where ``model.compile()`` would compile nothing; nothing otherwise."""
    models = evidence.record.models if evidence.record is not None else []
    named = [model.cls for model in models if model.calls and not model.compiles_in_place]
    if not named:
        return ()
    return (
        f"This version of PyTorch compiles nothing of a {named[0]} in place: call what torch.compile(model) returns "
        "instead, or take a newer one.",
    )


def fused(evidence: Evidence) -> Change:
    """The step with its eager work compiled, what the optimizer and the loader do left as it is."""
    if evidence.device_is_gpu:
        rows = [row for row in evidence.kernels if row.kind not in KEPT_ON_GPU and not _left_out(row.name)]
        return Change(kernel_scale={row.name: _ELEMENTWISE_LEFT for row in rows}, launch_scale=_LAUNCHES_LEFT)
    wide = evidence.record is not None and _WIDE_VECTORS in evidence.record.environment.cpu_flags
    saved = _saved_s(evidence, _beside_modules(evidence), 1.0, wide)
    return Change(remove_host_s=saved - _called_s(evidence))


def _beside_modules(evidence: Evidence) -> Coverage:
    """When the host computes what backward, optimizer and loader are no part of, within a model or not."""
    host = evidence.host
    named = host.loader.union(host.backward).union(host.optimizer)
    outside = host.differentiated if len(host.forward) else host.operators.minus(named)
    return host.forward.union(_joined(outside).minus(named))


def overhead_s(evidence: Evidence) -> float:
    """Seconds per undisturbed CPU step that compiling the models would save; negative where it would cost.

    A loss written out in Python is not compiled with the model, nor is its backward.
    """
    steps, models = evidence.steps, evidence.host.forward
    forward = evidence.breakdown.share("forward") * steps.total_ns
    inside = float(models.within(steps.start, steps.end).sum())
    saved = _saved_s(evidence, models, min(1.0, inside / forward) if inside and forward else 1.0)
    # A function without torch in it is no operator's overhead: the compiler runs it as it is, or unrolls it.
    python = evidence.scattered
    stays = python.share * (evidence.step_s or 0.0) if python is not None and python.in_forward else 0.0
    return saved - stays - _called_s(evidence)


def overhead_of_function_s(evidence: Evidence, found: Repeated) -> float:
    """Seconds per undisturbed CPU step without a module that compiling the function `found` would save.

    What a call of the compiled function costs is Python's work, as an operator's call is: the machine's pace is known
    from the function's own operators, unless those are large.
    """
    passes = found.calls * (2.0 if evidence.trains else 1.0)
    each = found.share * (evidence.step_s or 0.0) / max(1.0, passes * found.operators)
    call_s = min(_FUNCTION_CALL_S, _FUNCTION_CALL_OPERATORS * each)
    return found.share * _saved_s(evidence, _beside_modules(evidence), 1.0) - passes * call_s


def operators_per_call(evidence: Evidence) -> float:
    """Operators, inner ones not counted, that a call of the steps' models makes: what a compiler has to take in."""
    models, operators = evidence.host.forward, evidence.trace.operators
    outer = (evidence.nesting.parent < 0) & (assign(evidence.steps, operators.start) >= 0)
    inside = float((outer & models.contains(operators.start)).sum())
    calls = float((assign(evidence.steps, models.start) >= 0).sum()) if len(models) else 0.0
    return inside / calls if calls else 0.0


def operators_vary(evidence: Evidence) -> bool:
    """Whether the step's outermost forwards call now more operators, now fewer: loops over items, branches, trees."""
    models, operators = evidence.host.forward, evidence.trace.operators
    rows = np.flatnonzero(assign(evidence.steps, models.start) >= 0) if len(models) else np.empty(0, np.intp)
    if len(rows) < _FEWEST_FORWARDS:
        return False
    outer = np.sort(operators.start[evidence.nesting.parent < 0])
    counts = np.searchsorted(outer, models.end[rows]) - np.searchsorted(outer, models.start[rows])
    middle = float(np.median(counts))
    return bool(np.mean(np.abs(counts - middle) > _VARIES * middle) > _VARIES)


def sized_by_data(evidence: Evidence) -> float:
    """Calls in each step's forwards of operators whose result is as large as the data says: a graph ends at each."""
    models, trace = evidence.host.forward, evidence.trace
    found = names_like(trace, trace.operators.name, _SIZED_BY_DATA.match)
    found &= (assign(evidence.steps, trace.operators.start) >= 0) & models.contains(trace.operators.start)
    return float(found.sum()) / max(1, len(evidence.steps))


def _saved_s(evidence: Evidence, forward: Coverage, backward_share: float, wide: bool = False) -> float:
    """Seconds per undisturbed CPU step that are saved when `forward`, and so much of the backward, are compiled.

    That is all of them, less what would be left of their operators: those of libraries are called as before, others are
    computed in fewer loops (of `wide` vectors), and nothing else goes between them. What calling the compiled costs is
    left out, and graphs that are compiled already are no part of it.
    """
    trace, steps = evidence.trace, evidence.steps
    step_s, traced_s, count = evidence.step_s, evidence.trace_step_s, len(evidence.steps)
    if not step_s or not traced_s:
        return 0.0
    inside = assign(steps, trace.operators.start) >= 0
    own_ns = evidence.nesting.self_ns
    undisturbed_ns = without_pauses(trace.operators, own_ns, steps)
    pauses = (own_ns - undisturbed_ns) / 1e9
    traced_s -= float(pauses.sum()) / count
    # An operator costs the profiler the same whatever it does; what is slow beyond that was slow in all parts alike.
    operators = float(inside.sum())
    each = min(_PROFILED_S, max(0.0, traced_s - step_s) * count / operators) if operators else 0.0
    pace = step_s / max(traced_s - operators / count * each, 1e-9)
    own = np.maximum(0.0, undisturbed_ns / 1e9 - each) * pace
    graphs = names_like(trace, trace.annotations.name, _GRAPH.match)
    compiled = Coverage.of(trace.annotations.start[graphs], trace.annotations.end[graphs])
    kept = compiled.union(_left_alone(trace))
    saved = 0.0
    for part, share in ((forward, 1.0), (evidence.host.backward, backward_share)):
        eager = part.minus(kept)
        within = inside & eager.contains(trace.operators.start)
        wall = float(eager.within(steps.start, steps.end).sum()) / 1e9 - float(pauses[within].sum())
        wall = (wall - float(within.sum()) * each) * pace
        saved += share * (wall - _left_s(evidence, own, within, wide)) / count
    return min(saved, _MOST * step_s)


def _called_s(evidence: Evidence) -> float:
    """Seconds per step that calling compiled models takes where none of their graphs runs yet.

    Each call has a graph, and one more behind each recurrent layer; in training each has one for its backward, too.
    """
    trace, steps, operators = evidence.trace, evidence.steps, evidence.trace.operators
    if not len(steps) or bool(names_like(trace, trace.annotations.name, _GRAPH.match).any()):
        return 0.0
    inside = assign(steps, operators.start) >= 0
    calls = float((assign(steps, evidence.host.forward.start) >= 0).sum()) / len(steps)
    layers = inside & names_like(trace, operators.name, _RECURRENT.match)
    graphs = max(1.0, calls) + float(layers.sum()) / len(steps)
    count = float(inside.sum()) / len(steps)
    each = min(_COMPILED_CALL_S, _COMPILED_CALL_OPERATORS * (evidence.step_s or 0.0) / max(1.0, count))
    return each * graphs * (2.0 if evidence.trains else 1.0)


def _left_alone(trace: Trace) -> Coverage:
    """When the host is in recurrent layers of torch.nn, which Dynamo leaves as they are, and in their backward."""
    operators = trace.operators
    layers = names_like(trace, operators.name, _RECURRENT.match)
    inside = Coverage.of(operators.start[layers], operators.end[layers])
    if not len(inside):
        return inside
    numbers = operators.sequence[inside.contains(operators.start) & (operators.sequence >= 0)]
    nodes = names_like(trace, operators.name, lambda name: name.startswith("autograd::engine::"))
    nodes &= np.isin(operators.sequence, numbers)
    return inside.union(Coverage.of(operators.start[nodes], operators.end[nodes]))


def _joined(parts: Coverage) -> Coverage:
    """The same with short pauses filled."""
    if not len(parts):
        return parts
    apart = parts.start[1:] - parts.end[:-1] > _PAUSE_NS
    return Coverage(parts.start[np.concatenate(([True], apart))], parts.end[np.concatenate((apart, [True]))])


def _left_s(evidence: Evidence, own: NDArray[np.float64], within: NDArray[np.bool_], wide: bool) -> float:
    """Seconds of the operators' `own` work that would be left, of the rows that lie `within`."""
    trace = evidence.trace
    rows = np.flatnonzero(within & names_like(trace, trace.operators.name, _ATEN.match))
    names, seconds = trace.operators.name[rows], own[rows]
    library = names_like(trace, names, _OF_LIBRARIES.match)
    functions, drawn = names_like(trace, names, _FUNCTIONS.match), names_like(trace, names, _DRAWN.match)
    of_functions, of_others = (
        (_FUNCTIONS_LEFT_WIDE, _OTHERS_LEFT_WIDE) if wide else (_FUNCTIONS_LEFT, _OTHERS_LEFT)
    )
    left = np.maximum(0.0, seconds - _CALL_S) * np.where(functions, of_functions, of_others)
    left = np.where(drawn, seconds * _DRAWN_LEFT, left)
    return float(np.where(library, np.maximum(seconds / 2, seconds - _LIBRARY_CALL_S), left).sum())
