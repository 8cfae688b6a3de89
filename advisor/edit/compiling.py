"""Whether a script also does what a compiled model refuses: one compiled in place, or in Accelerate's wrapper."""

from __future__ import annotations

import re

import libcst as cst

from advisor.edit.calls import argument
from advisor.edit.draft import Draft
from advisor.edit.gradients.derivatives import differentiates_twice
from advisor.edit.names import full_name, last_part
from advisor.edit.scopes import assigned_once, scope_of

# What traces a module or a graph of it, by the ends of the names. For one that is compiled in place jit.trace and
# onnx.export with dynamo=False raise in torch 2.15; TensorBoard's add_graph and fvcore's FlopCountAnalysis call
# jit.trace. torch.export does not raise there; older versions were not tried.
_TRACERS = ("jit.trace", "jit.trace_module", "onnx.export", "export.export", ".add_graph", "FlopCountAnalysis")
# Guards do not look for hooks ("torch.compiler" in PyTorch's documentation, "nn.Module hooks support"): one that comes
# or goes later is not seen.
_HOOKS = ("register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook")
# Methods of an Accelerator that write or read the weights by the names that the prepared model has for them.
_OF_PREPARED = ("get_state_dict", "save_model", "save_state", "load_state")
_NO_MODEL = re.compile(r"opt|sched|scal|loader|sampler", re.IGNORECASE)  # what else has a state_dict, by its name
_SCRIPTED = ("jit.script", "jit.load")  # "compile is not supported on ScriptModules"


def compile_refused(draft: Draft, name: str = "", in_place: bool = True) -> str:
    """Why a model must not be compiled, by what this file does, as a clause; "" where nothing is seen.

    `name` is the model's, if it is known: ``net``, ``self.net``. Not `in_place`, no method of the model's is called
    for it.
    """
    if in_place and any(each.name.value == "compile" for each in draft.nodes(cst.FunctionDef)):
        return "the script has a compile of its own"
    own, called = name.rpartition(".")[2], draft.nodes(cst.Call)
    methods = [each.func for each in called if isinstance(each.func, cst.Attribute)]
    if own and any(each.attr.value == "compile" and last_part(each.value) == own for each in methods):
        return "the script calls a compile of the model's already"
    names = [full_name(draft, each.func) for each in called]
    if any(each.endswith(_TRACERS) for each in names):
        return "the script also traces or exports a model, which a compiled one refuses"
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


def keeps_wrapped_weights(draft: Draft) -> str:
    """What must not follow a compilation by ``Accelerator.prepare``, as a clause; "" where nothing is seen in the file.

    It returns a wrapper, in whose ``state_dict`` each name begins with ``_orig_mod.``; so it does in what
    ``unwrap_model`` returns, which keeps that wrapper unless it is told not to (accelerate 1.15).
    """
    own = {each.name.value for each in draft.nodes(cst.FunctionDef)}
    methods = [(each, each.func) for each in draft.nodes(cst.Call) if isinstance(each.func, cst.Attribute)]
    names = [func.attr.value for _, func in methods]
    # A model's save_pretrained is called through the wrapper, and writes the names that it had.
    written = any(name.startswith("save") and name != "save_pretrained" for name in names)
    for call, func in methods:
        name, of = func.attr.value, func.value
        kept = name in _OF_PREPARED and name not in own
        kept |= name == "unwrap_model" and written and not _unwrapped(draft, call)
        if name in ("state_dict", "load_state_dict") and not _unwrapped(draft, of):
            # What is loaded before the model is prepared goes by the names as they were.
            wrapped = name == "state_dict" or "unwrap_model" in draft.code(of)
            kept |= wrapped and not _NO_MODEL.search(last_part(of) or draft.code(of))
        if kept:
            return (
                "the script keeps or loads the prepared model's weights, whose names would begin with _orig_mod.; "
                "accelerator.unwrap_model(model, keep_torch_compile=False) has them as they are"
            )
    return ""


def _unwrapped(draft: Draft, node: cst.BaseExpression) -> bool:
    """Whether it is ``unwrap_model(model, keep_torch_compile=False)``, or a name for that."""
    call = assigned_once(draft, node.value, scope_of(draft, node)) if isinstance(node, cst.Name) else node
    if not isinstance(call, cst.Call) or last_part(call.func) != "unwrap_model":
        return False
    kept = argument(call, "keep_torch_compile", ("model", "keep_fp32_wrapper", "keep_torch_compile"))
    return kept is not None and draft.code(kept.value) == "False"


def _in_training(draft: Draft, call: cst.Call) -> bool:
    """Whether a call is in a loop that trains or takes its hooks off again, and not in one over layers before that."""
    around = [each for each in draft.ancestors(call) if isinstance(each, (cst.For, cst.While))]
    ends = {"backward", "step", "remove"}
    function = draft.function(call)
    if function is not None and any(each.attr.value == "remove" for each in draft.nodes(cst.Attribute, function)):
        return True
    return any(each.attr.value in ends for loop in around for each in draft.nodes(cst.Attribute, loop))
