"""The model runs operator by operator where a compiler would fuse them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from advisor.edit import Drafts
from advisor.edit.compiling import compile_refused, keeps_wrapped_weights
from advisor.edit.gradients.derivatives import differentiates_twice
from advisor.edit.names import ensure_name
from advisor.edit.sources import text_of
from advisor.evidence import CAPTURES, COLD, Change
from advisor.evidence.fusion import (
    KEPT_ON_GPU,
    basis,
    not_in_place,
    operators_per_call,
    operators_vary,
    overhead_of_function_s,
    overhead_s,
    sized_by_data,
)
from advisor.evidence.gpu.matrix import is_optimizer
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
    file_list,
    forward_sites,
    model_files,
    once_fed,
    site_list,
    where,
)
from advisor.shared import compiled
from advisor.shared.frameworks import configured, construction

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence

# What Inductor leaves of the work that it can fuse on a GPU: elementwise kernels, and the launches between. On 163
# models PyTorch 2.0's announcement measured 1.21x (float32) to 1.51x (AMP) for training on an A100, matrix work nearly
# unchanged: that is about half of the rest.
_FUSED_SCALE = 0.5
_LAUNCH_SCALE = 0.6
# A prior and a one-time cost ask for more than what could just be measured. On a CPU what is predicted to gain a little
# gains nothing or loses (advisor/evidence/fusion.py: up to 1.3 predicted, 0.5 to 1.3 measured).
_LEAST_GAIN, _LEAST_ON_CPU = 1.10, 1.50
# Layers by the operators that a step of a bare trace calls; fewer launches than these are no model's.
_LAYERS = {"aten::linear", "aten::conv1d", "aten::conv2d", "aten::conv3d", "aten::layer_norm", "aten::batch_norm"}
_LAYERS |= {"aten::embedding", "aten::group_norm", "aten::scaled_dot_product_attention", "aten::relu", "aten::gelu"}
_LEAST_LAUNCHES = 20
_TRIED = 10  # times: a script that is only tried out may have so many fewer steps than the training that is meant
# Seconds: measured with torch 2.15 and Inductor on two cores, forward and backward, cold: an MLP (3 leaf layers) 5 s, a
# transformer encoder (18) 27 s, ResNet-18 (52) 19 s. A warm cache takes a fraction. A loop in Python is written out,
# round by round: a cell of 20 operators for 24 items took 75 s, and one whose loop makes thousands takes many minutes.
_COMPILE_BASE_S, _COMPILE_PER_LAYER_S, _COMPILE_PER_OPERATOR_S = 6.0, 0.5, 0.15
_MOST_OPERATORS = 2000
_MOST_SIZED_BY_DATA = 8.0  # calls a step of operators that end a graph

_FRAMEWORKS = {
    "transformers": "Pass TrainingArguments(torch_compile=True).",
    "lightning": "Call model.compile() (or torch.compile(model)) before trainer.fit(model).",
    "accelerate": 'Pass Accelerator(dynamo_backend="inductor").',
    "vllm": "Start vLLM without enforce_eager=True (--enforce-eager): it then compiles the model and replays it as "
    "CUDA graphs.",
    "sglang": "Start SGLang without --disable-cuda-graph, and with --enable-torch-compile.",
}


_SETTINGS = {"transformers": {"torch_compile": "True"}, "accelerate": {"dynamo_backend": '"inductor"'}}


class Compile(Rule):
    """The model runs one operator after the other, each reading and writing memory and launched by Python.

    ``model.compile()`` lets TorchInductor trace the model and generate fused kernels: elementwise work joins into few
    kernels, and Python's overhead between them goes. It pays where the step has much elementwise work or is bound by
    launches; matrix products and convolutions keep their speed. The first steps take long, once; the finding says
    after how many steps that is earned back. ``model.compile()`` changes neither the model's class nor its
    ``state_dict``. A copy that is made of it later (an average of its weights, say) is not compiled: compile that as
    well where it scores much.

    A step that calls no module (a fit of a differential equation, say) gets its most repeated function compiled.

    When not: a CPU run whose operators are few and large (measured: slower); input shapes change from step to step
    (each may compile again); the run is short; the model's Python branches on tensor values (each branch breaks the
    graph); no C++ compiler (or, on a GPU, no Triton) is installed.

    Source: PyTorch, "Introduction to torch.compile"; PyTorch 2.0 announcement (163 models). The gain is a prior: no
    model can know it before compiling.
    """

    id = "compile"
    title = "Compile the model"
    safety = Safety.NUMERIC
    takes_memory = True
    after = ("debug-modes-left-on", "amp-autocast", "channels-last")

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record = evidence.record
        layers = _layers(evidence)
        if layers is None and record is not None and not record.models and not evidence.device_is_gpu:
            yield from _of_a_function(evidence)
            return
        if evidence.compiled or layers is None or evidence.capture_share >= CAPTURES:
            return
        if call_sites(evidence, "torch.compile", "Module.compile", every_step=False):
            return
        if record is None and evidence.setup_share >= COLD:
            return  # what its operators take is what they take when they are called for the first time
        if not evidence.device_is_gpu and record is not None and record.shapes_vary:
            return  # each size is compiled anew, or for all sizes at once and to less use
        if not evidence.device_is_gpu and sized_by_data(evidence) > _MOST_SIZED_BY_DATA:
            return  # a graph ends at each of them
        if not evidence.device_is_gpu and operators_vary(evidence):
            return  # so does what is written out of it: another graph for each
        if any(differentiates_twice(text_of(path)) for path in model_files(evidence)):
            return
        change, share = _on_gpu(evidence) if evidence.device_is_gpu else _on_cpu(evidence)
        operators = operators_per_call(evidence)
        if not evidence.device_is_gpu and operators > _MOST_OPERATORS:
            return
        seconds = _COMPILE_BASE_S + max(_COMPILE_PER_LAYER_S * layers, _COMPILE_PER_OPERATOR_S * operators)
        estimate, fed = once_fed(evidence, change)
        gain = Gain.prior(estimate, basis(evidence), seconds)
        if gain.likely < (_LEAST_GAIN if evidence.device_is_gpu else _LEAST_ON_CPU) or _too_short(evidence, gain):
            return
        forwards = forward_sites(evidence)
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{share:.0%} of the step is elementwise work and calls of operators that a compiler can fuse; "
            f"compiling takes about {seconds:.0f} s once." + fed,
            gain=gain,
            evidence={"fusible_share": share, "leaf_layers": layers, "step_s": evidence.step_s},
            site=forwards[0].site if forwards else None,
            parameters={
                **compiled.places(evidence),
                **construction(evidence),
                "graphs": record is None and evidence.bound == "host" and not evidence.trains,
            },
            unmet=(*compiled.unmet(evidence), *not_in_place(evidence)),
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        function = finding.parameters.get("function")
        if function and finding.site is not None:
            return _decorate(sources, finding.site, str(function), " ".join(finding.unmet))
        text = f"Call .compile() on the model that is called {where(finding.site)}, once it is on its device."
        if finding.parameters.get("graphs"):
            text += ' With mode="reduce-overhead" its kernels are launched as one CUDA graph, if shapes do not change.'
        forwards, drafts = site_list(finding, "forward"), Drafts(sources)
        framework = compiled.framework(finding, drafts)
        if framework:
            text = _FRAMEWORKS[framework]
        if finding.unmet:
            return Advice(text, " ".join(finding.unmet))
        own = [path for path in file_list(finding, "own") if sources.has(path)]
        if framework:
            settings, why = _SETTINGS.get(framework), f"{framework} runs the model"
            told = (site.file for site in (*site_list(finding, "config"), *forwards))
            for path in dict.fromkeys((*told, *own)) if framework == "accelerate" else ():
                if refused := compile_refused(drafts[path], in_place=False) or keeps_wrapped_weights(drafts[path]):
                    return Advice(text, refused)
            return configured(finding, sources, framework, settings, text, why) if settings else Advice(text, why)
        if why := compiled.put(finding, drafts):
            return Advice(text, why)
        return edited(drafts, text)

    EXAMPLES = (
        Example(
            before="""
model = Net(config).to(device)  # the usual size  # <- moves
optimizer = AdamW(model.parameters())  # <- optimizer
for batch in loader:
    loss = model(batch)  # <- forward
""",
            after="""
model = Net(config).to(device)  # the usual size
model.compile()
optimizer = AdamW(model.parameters())
for batch in loader:
    loss = model(batch)
""",
        ),
        Example(
            before="""
class Trainer:
    def setup(self):
        self.net = Net()
        self.opt = SGD(  # <- optimizer
            self.net.parameters(),
            lr=0.1,
        )

    def step(self, x):
        return self.net(x)  # <- forward
""",
            after="""
class Trainer:
    def setup(self):
        self.net = Net()
        self.opt = SGD(
            self.net.parameters(),
            lr=0.1,
        )
        self.net.compile()

    def step(self, x):
        return self.net(x)
""",
        ),
        Example(  # inference
            before="model = load()\nmodel.eval()  # <- moves\nfor x in xs:\n    y = model(x)  # <- forward\n",
            after="model = load()\nmodel.eval()\nmodel.compile()\nfor x in xs:\n    y = model(x)\n",
        ),
        Example(
            before="net = Net()\nfor x in xs:\n    y = net(x)  # <- forward\n",
            after="net = Net()\nnet.compile()\nfor x in xs:\n    y = net(x)\n",
        ),
        Example(
            before="import torch\n\n\ndef step(v, w):  # <-\n    return v + torch.tanh(w), w\n",
            after="import torch\n\n\n@torch.compile\ndef step(v, w):\n    return v + torch.tanh(w), w\n",
            parameters={"function": "step"},
        ),
        Example(
            before="accelerator = Accelerator(cpu=True)  # <- config\nout = model(x)  # <- forward\n",
            after='accelerator = Accelerator(cpu=True, dynamo_backend="inductor")\nout = model(x)\n',
            parameters={"framework": "accelerate"},
        ),
        Example(  # names of weights that stay as they were
            before="""
accelerator = Accelerator()  # <- config
model.load_state_dict(torch.load(start))
model, optimizer = accelerator.prepare(model, optimizer)
out = model(x)  # <- forward
plain = accelerator.unwrap_model(model, keep_torch_compile=False)
torch.save({"model": plain.state_dict(), "optimizer": optimizer.state_dict()}, path)
accelerator.unwrap_model(model, keep_torch_compile=False).save_pretrained(path)
""",
            after="""
accelerator = Accelerator(dynamo_backend="inductor")
model.load_state_dict(torch.load(start))
model, optimizer = accelerator.prepare(model, optimizer)
out = model(x)
plain = accelerator.unwrap_model(model, keep_torch_compile=False)
torch.save({"model": plain.state_dict(), "optimizer": optimizer.state_dict()}, path)
accelerator.unwrap_model(model, keep_torch_compile=False).save_pretrained(path)
""",
            parameters={"framework": "accelerate"},
        ),
    )
    LEAVES_ALONE = (
        Example("@cached\ndef step(x):  # <-\n    return x\n", "", {"function": "step"}),
        Example("for net in nets:\n    net.to(device)  # <- moves\n    y = net(x)  # <- forward\n", ""),
        Example("model = Net()\ny = model(x)  # <- forward\n", "", {"framework": "accelerate"}),
        *(
            Example(f"import torch\nfrom torch import nn\nmodel = Net()\ny = model(x)  # <- forward\n{code}\n", "")
            for code in (
                "torch.jit.trace(model, x).save(path)",
                "torch.onnx.export(model, x, path)",
                "writer.add_graph(model, x)",
                "class Net(nn.Module):\n    def compile(self, optimizer, loss):\n        pass",
                "model.compile(optimizer, loss)",  # a base class's, of another file
                "net = nn.DataParallel(model)",
                "(g,) = torch.autograd.grad(y.sum(), x, create_graph=True)",
                "for x in xs:\n    h = model.body.register_forward_hook(keep)\n    model(x)\n    h.remove()",
            )
        ),
        Example("import torch\nmodel = torch.jit.load(path)\ny = model(x)  # <- forward\n", ""),
        *(
            Example(
                f"accelerator = Accelerator()  # <- config\nmodel = accelerator.prepare(model)\n{code}\n"
                "out = model(x)  # <- forward\n",
                "",
                {"framework": "accelerate"},
            )
            for code in (
                "torch.save(accelerator.unwrap_model(model).state_dict(), path)",
                "plain = accelerator.unwrap_model(model)\naccelerator.save(plain, path)",
                "torch.save(model.state_dict(), path)",
                "accelerator.unwrap_model(model).load_state_dict(best)",
                "plain.save_pretrained(path, state_dict=accelerator.get_state_dict(model))",
                "accelerator.save_model(model, path)",
                "accelerator.load_state(path)",
                "torch.onnx.export(model, x, path)",
                "for x in xs:\n    h = model.body.register_forward_hook(keep)\n    model(x)\n    h.remove()",
            )
        ),
    )


def _layers(evidence: Evidence) -> float | None:
    """Leaf layers of the models that are called; of a bare trace, calls of layers per step. None: no model is known."""
    if evidence.record is not None:
        models = [model for model in evidence.record.models if model.parameters]
        return sum(sum(model.layers.values()) for model in models) if models else None
    launches = sum(row.count for row in evidence.kernels) / max(1, len(evidence.steps))
    # What bounds the step has to be known, and something has to be launched again and again.
    if not evidence.device_is_gpu or launches < _LEAST_LAUNCHES or evidence.bound in ("unknown", "communication"):
        return None
    return sum(row.count for row in evidence.operators if row.name in _LAYERS) or None


def _on_gpu(evidence: Evidence) -> tuple[Change, float]:
    rows = [row for row in evidence.kernels if row.kind not in KEPT_ON_GPU and not is_optimizer(row.name)]
    busy = evidence.breakdown.share("kernel") + evidence.breakdown.share("exposed_communication")
    optimizing = evidence.host.optimizer.within(evidence.steps.start, evidence.steps.end).sum()
    model = 1.0 - float(optimizing) / max(1, evidence.steps.total_ns)  # the optimizer is not compiled
    launches = evidence.idle_between_launches * model
    share = busy * sum(row.share for row in rows) + launches
    scale = 1.0 - (1.0 - _LAUNCH_SCALE) * model
    return Change(kernel_scale={row.name: _FUSED_SCALE for row in rows}, launch_scale=scale), share


def _on_cpu(evidence: Evidence) -> tuple[Change, float]:
    saved = overhead_s(evidence)
    return Change(remove_host_s=saved), max(0.0, saved) / evidence.step_s if evidence.step_s else 0.0


def _of_a_function(evidence: Evidence) -> Iterator[Finding]:
    """A step without any module: the function of the user's that calls most of its operators."""
    if evidence.compiled or call_sites(evidence, "torch.compile", "Module.compile", every_step=False):
        return
    found, step_s = evidence.repeated_function, evidence.step_s
    if found is None or not step_s:
        return
    saved = overhead_of_function_s(evidence, found)
    gain = Gain.prior(evidence.what_if(Change(remove_host_s=saved)), basis(evidence), _COMPILE_BASE_S)
    if gain.likely < _LEAST_ON_CPU or _too_short(evidence, gain):
        return
    yield Finding(
        rule=Compile.id,
        title="Compile the function",
        summary=f"{found.name} ({os.path.basename(found.file)}:{found.line}) calls {found.operators:.0f} operators "
        f"{found.calls:.0f} times in every step, {saved / step_s:.0%} of which is the calling; compiling takes about "
        f"{_COMPILE_BASE_S:.0f} s once.",
        gain=gain,
        evidence={"fusible_share": saved / step_s, "operators_per_call": found.operators, "step_s": step_s},
        site=Site(found.file, found.line),
        parameters={"function": found.name},
        unmet=compiled.unmet(evidence),
    )


def _too_short(evidence: Evidence, gain: Gain) -> bool:
    """Whether the whole script, as far as its steps are known, is over long before compiling has paid for itself."""
    steps = evidence.record.total_steps if evidence.record is not None else None
    after = gain.pays_back_after(evidence.step_s or 0.0)
    return steps is not None and after is not None and after > _TRIED * steps


def _decorate(sources: Sources, site: Site, name: str, unmet: str) -> Edit | Advice:
    """The function at `site` with ``@torch.compile`` in front of it."""
    text = f"Have {name} compiled, at {at(site)}: @torch.compile in front of it."
    if unmet:
        return Advice(text, unmet)
    drafts = Drafts(sources)
    draft = drafts[site.file]
    if differentiates_twice(draft.source.text):
        return Advice(text, "the script differentiates a gradient once more, which compiled code does not support")
    found = [each for each in draft.nodes(cst.FunctionDef) if each.name.value == name]
    if len(found) != 1 or found[0].decorators or found[0].asynchronous is not None:
        return Advice(text, "which function it is cannot be told from the source")
    decorator = cst.Decorator(cst.parse_expression(ensure_name(draft, "torch.compile")))
    draft.change(found[0], lambda updated: updated.with_changes(decorators=[decorator]))
    return edited(drafts, text)
