"""``model.compile()``: whether a script also does what a model that is compiled in place refuses."""

from __future__ import annotations

import libcst as cst

from advisor.edit.derivatives import differentiates_twice
from advisor.edit.draft import Draft
from advisor.edit.names import full_name, last_part

# What traces a module or a graph of it, by the ends of the names. For one that is compiled in place jit.trace and
# onnx.export with dynamo=False raise in torch 2.15; TensorBoard's add_graph and fvcore's FlopCountAnalysis call
# jit.trace. torch.export does not raise there; older versions were not tried.
_TRACERS = ("jit.trace", "jit.trace_module", "onnx.export", "export.export", ".add_graph", "FlopCountAnalysis")
# Guards do not look for hooks ("torch.compiler" in PyTorch's documentation, "nn.Module hooks support"): one that comes
# or goes later is not seen.
_HOOKS = ("register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook")
_SCRIPTED = ("jit.script", "jit.load")  # "compile is not supported on ScriptModules"


def compile_refused(draft: Draft, name: str = "") -> str:
    """Why a model must not be compiled in place, by what this file does, as a clause; "" where nothing is seen.

    `name` is the model's, if it is known: ``net``, ``self.net``.
    """
    if any(each.name.value == "compile" for each in draft.nodes(cst.FunctionDef)):
        return "the script has a compile of its own"
    own, called = name.rpartition(".")[2], draft.nodes(cst.Call)
    methods = [each.func for each in called if isinstance(each.func, cst.Attribute)]
    if own and any(each.attr.value == "compile" and last_part(each.value) == own for each in methods):
        return "the script calls a compile of the model's already"
    names = [full_name(draft, each.func) for each in called]
    if any(each.endswith(_TRACERS) for each in names):
        return "the script also traces or exports a model, which one that is compiled in place refuses"
    if differentiates_twice(draft.source.text):
        return "the script differentiates a gradient once more, which a compiled model does not support"
    if any(last_part(each.func) in _HOOKS and _in_training(draft, each) for each in called):
        return "the script hangs hooks on modules while it trains, which a compiled model does not look for"
    for assign in draft.nodes(cst.Assign) if own else ():
        makers = [full_name(draft, each.func) for each in draft.nodes(cst.Call, assign.value)]
        if any(last_part(each.target) == own for each in assign.targets) and any(n.endswith(_SCRIPTED) for n in makers):
            return "the model is TorchScript, which is compiled already"
    # A replica's compiled call would be that of the module it was copied from, on another device.
    if any(each.rpartition(".")[2] in ("DataParallel", "data_parallel") for each in names):
        return "DataParallel copies the model in every step, and would call the compiled original with each copy"
    return ""


def _in_training(draft: Draft, call: cst.Call) -> bool:
    """Whether a call is in a loop that trains or takes its hooks off again, and not in one over layers before that."""
    around = [each for each in draft.ancestors(call) if isinstance(each, (cst.For, cst.While))]
    ends = {"backward", "step", "remove"}
    function = draft.function(call)
    if function is not None and any(each.attr.value == "remove" for each in draft.nodes(cst.Attribute, function)):
        return True
    return any(each.attr.value in ends for loop in around for each in draft.nodes(cst.Attribute, loop))
