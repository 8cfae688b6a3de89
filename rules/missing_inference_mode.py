"""A script that only infers has autograd record every operator."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import libcst as cst
import libcst.matchers as m
import numpy as np

from advisor.edit import Draft, Drafts, Sources
from advisor.edit.draft import Statement
from advisor.edit.encoders import calls_of, skips_padding
from advisor.edit.gradients.gradless import (
    deferred,
    differentiates,
    keeps_graph,
    makes_model,
    refuses_inference_mode,
    trained_beside,
    trains,
)
from advisor.edit.locate import call_at
from advisor.edit.names import ensure_name
from advisor.edit.regions import suspends
from advisor.errors import AdvisorError
from advisor.evidence import Change
from advisor.evidence.algebra.scores import attention_scores, get_pages_anew
from advisor.evidence.coded import names_like
from advisor.evidence.encoders import called_encoder, saved_without_padding
from advisor.evidence.host import Host
from advisor.evidence.norms import batch_norms
from advisor.evidence.steps import assign, step_windows
from advisor.fixes import edited
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
    forward_sites,
    site_list,
    sites,
    where,
)

if TYPE_CHECKING:
    from advisor.edit import Edit
    from advisor.evidence import Evidence
    from advisor.harness.layout import Encoder

# CPU seconds measured with torch 2.15, one thread, with autograd less without. A node of the graph, made and dropped:
# 1.1 us in a chain of 80 elementwise operators (240 to 150 us), 1.2 in 20 small Linear layers with ReLU (280 to 210),
# 1.2 in a recurrent cell written out (760 to 520).
_NODE_S = 1.2e-6
# Beside a GPU the host makes larger ones: an H200's, torch 2.11, small tensors, 0.9 to 2.2 us in a chain of 80
# elementwise operators, 1.7 in 20 Linear layers with ReLU. A batch norm in training mode 27 us (61 to 34), with what
# the backward would need of it.
_NODE_ON_GPU_S, _NORM_ON_GPU_S = 1.7e-6, 27e-6
# A byte that the graph keeps is written to memory that is not in the cache, where the next operator would otherwise
# take over a buffer just freed. Linear and elementwise layers on one core with 1 MiB of second-level cache, by the size
# of a tensor: 0.07 to 0.13 ns up to 512 KiB, 0.02 up to 2 MiB, none from 4 MiB on, which no cache holds either way. 16
# layers of Linear, LayerNorm, GELU on 1024 rows (0.5 MiB each) 12.9 to 10.2 ms: 0.10; on 16384 rows no difference. With
# a third-level cache of 32 MiB, and where what is released goes back to the system, there is one (torch 2.14, EPYC, two
# cores): a U-2-Net of 320 pixels 200 to 182 ms, 0.03; ResNet-18, ResNet-50, MobileNetV2 of eight and four pictures
# 0.05, 0.09, 0.08; ResNet-18 of one 0.01, those layers on 16384 rows 0.01; none on 65536 (32 MiB each).
_BYTE_S = ((512 << 10, 0.10e-9), (2 << 20, 0.02e-9), (24 << 20, 0.03e-9))
# Attention with a mask that a learned bias is made into takes its steps one by one while gradients are recorded, and
# the fused kernel without (a mask that is a parameter itself rules that out in any mode). What is left of it, six
# shapes from 12x4x384x16 to 1x16x1024x64, one thread: 0.28, 0.37, 0.39, 0.48, 0.61, 0.68.
_STEPWISE, _STEPWISE_LEFT = "aten::_scaled_dot_product_attention_math", 0.44
# Large scores get new pages for each operation (evidence/algebra/scores.py): of six shapes over 30 MB 0.16 to 0.37, and
# one 0.52; of 28 MB 0.15 and 0.45, by what else is kept meanwhile.
_LARGE_BYTES, _LARGE_LEFT = 28e6, 0.25
# Eigenvalues and singular values come with their vectors while gradients are recorded, which only a backward needs.
# What is left without, batches of matrices from 32x16x16 to 1x256x256, torch 2.15, two cores: 0.32 to 0.69 of eigvalsh
# (0.49 in the middle), 0.26 to 0.55 of svdvals (0.39).
_VALUES, _VALUES_LEFT = ("aten::linalg_eigvalsh", "aten::linalg_svdvals"), 0.45
_MASKED = re.compile(r"\[(\[\d+(, ?\d+){3}\], ?){3}\[\d")  # the fused kernel takes four dimensions only
_BASIS = "prior: 1.2 us per node of the graph, 0.1 ns per byte that it keeps in small tensors (six models on a CPU)"
_GPU_BASIS = "prior: 1.7 us of the host per node of the graph, 27 per batch norm in training mode (beside an H200)"
_CPU = 0  # c10::DeviceType
_AUTOGRAD = "autograd"  # what is in the way of an encoder's fast path (harness/encoders.py)


class MissingInferenceMode(Rule):
    """The script only infers, and autograd records every operator for a backward that never comes.

    Each operator leaves a node in the graph, and the graph keeps every layer's activations alive until the output is
    dropped: new memory for each of them, where the buffers of the layer before, still in the cache, could be used
    again. Under ``torch.inference_mode()`` nothing is recorded. Reported only where an output was seen to carry a
    graph, no backward runs, and nodes and kept bytes are a part of the step worth having.

    When not: the script needs gradients after all (attributions, adversarial examples); its outputs go into training
    later (tensors made in inference mode cannot; ``torch.no_grad()`` serves there).

    Source: PyTorch notes, "Autograd mechanics", "Locally disabling gradient computation"; the gain is a prior, from
    CPU times measured with and without.
    """

    id = "missing-inference-mode"
    title = "Infer in inference mode"
    safety = Safety.EXACT

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record = evidence.record
        if record is None or evidence.trains or evidence.compiled or len(evidence.host.backward):
            return
        if call_sites(evidence, "backward", every_step=False):
            return
        models = [each for each in record.models if each.parameters and each.calls and each.output_grad]
        names = {each.cls for each in models}
        found = [each for each in forward_sites(evidence) if each.details.get("module") in names]
        if not found:
            return
        nodes, kept, moving_s = _nodes(evidence), *_kept(evidence)
        stepwise_s = 0.0 if evidence.device_is_gpu else _stepwise_s(evidence) / evidence.inflation
        vectors_s = 0.0 if evidence.device_is_gpu else _spent_s(evidence, _VALUES.__contains__) / evidence.inflation
        left = _LARGE_LEFT if get_pages_anew(evidence, attention_scores(evidence), _LARGE_BYTES) else _STEPWISE_LEFT
        saved = nodes * _NODE_S + moving_s + stepwise_s * (1.0 - left) + vectors_s * (1.0 - _VALUES_LEFT)
        if evidence.device_is_gpu:
            norms = batch_norms(evidence) if any(each.training for each in models) else 0.0
            saved = nodes * _NODE_ON_GPU_S + norms * _NORM_ON_GPU_S
        held = [each for each in record.encoders if each.calls and _is_held_back(each)]
        alone = called_encoder(evidence) if held and not evidence.device_is_gpu else None
        packed_s = saved_without_padding(evidence, alone) if alone is not None else 0.0
        saved += packed_s
        basis = _GPU_BASIS if evidence.device_is_gpu else _BASIS
        gain = Gain.prior(evidence.what_if(Change(remove_host_s=saved)), basis)
        if not gain.worth_it:
            return
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"Autograd makes {nodes:.0f} nodes a step"
            + (f", and keeps {kept / 1e6:.1f} MB for them" if kept else "")
            + "; no backward ever uses them."
            + (f" {stepwise_s * 1e3:.1f} ms go over attention that is not fused for their sake." if stepwise_s else "")
            + (f" {vectors_s * 1e3:.1f} ms find eigenvalues with their vectors for it." if vectors_s else "")
            + (f" {held[0].padding or 0.0:.0%} of an encoder's tokens, padding, could be skipped." if held else ""),
            gain=gain,
            evidence={
                "graph_nodes": nodes,
                "kept_bytes": kept,
                "stepwise_attention_s": stepwise_s,
                "eigenvectors_s": vectors_s,
                "padding_saved_s": packed_s,
                "step_s": evidence.step_s,
            },
            site=found[0].site,
            parameters={"forward": sites(tuple(found)), "skips": bool(held)},
            safety=_of_encoders(held) if held else None,
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        text = f"Call the model in torch.inference_mode() {where(finding.site)}."
        told = f"Record no gradients at {at(finding.site)}."
        if finding.parameters.get("skips"):
            unsure = finding.safety is Safety.BEHAVIOUR
            told += " Its encoder then skips padding, and gives zeros there"
            told += ": check that nothing reads them." if unsure else ", which nothing reads."
        forwards = site_list(finding, "forward")
        if not forwards:
            return Advice(text, "the place of the forward is unknown")
        drafts, done = Drafts(sources), set[cst.CSTNode]()
        for site in forwards:
            draft = drafts[site.file]
            call = call_at(draft, site)
            why = _infer(drafts, draft, call, done) if call is not None else f"the call {where(site)} was not found"
            if why:
                return Advice(text, why)
        return edited(drafts, text, told)

    EXAMPLES = (
        Example(
            before="""
import torch

class Service:
    def predict(self, rows):
        return self.net(rows).argmax(1).tolist()  # <- forward=self.net(rows)
""",
            after="""
import torch

class Service:
    @torch.inference_mode()
    def predict(self, rows):
        return self.net(rows).argmax(1).tolist()
""",
        ),
        Example(  # the model is made here as well: parameters stay out of it
            before="""
import torch as th

def main():
    model = load()
    # the night's files
    for x in batches():
        scores.append(model(x).sigmoid())  # <- forward=model(x)
    print(len(scores))
""",
            after="""
import torch as th

def main():
    model = load()
    # the night's files
    with th.inference_mode():
        for x in batches():
            scores.append(model(x).sigmoid())
    print(len(scores))
""",
        ),
        Example(  # changed in place by the caller, which a tensor made in inference mode refuses
            before="""
import torch

def predict(model, x):
    return model(x)  # <- forward

out = predict(net, x)
out[out < 0] = 0
""",
            after="""
import torch

@torch.no_grad()
def predict(model, x):
    return model(x)

out = predict(net, x)
out[out < 0] = 0
""",
        ),
        Example(
            before="import torch\nmodel = Net()\nout = model(x)  # once  # <- forward\n",
            after="import torch\nmodel = Net()\nwith torch.inference_mode():\n    out = model(x)  # once\n",
        ),
        Example(  # the model is made by a function of any name
            before="""
import torch

def run():
    net = load()
    for x in xs:
        print(net(x))  # <- forward=net(x)
    return net
""",
            after="""
import torch

def run():
    net = load()
    with torch.inference_mode():
        for x in xs:
            print(net(x))
    return net
""",
        ),
        Example(  # changed in place by another name, in a function that it is handed to
            before="""
import torch

class Segmenter:
    def predict(self, x):
        return self.net(x)  # <- forward=self.net(x)

def clean(scores):
    mask = scores[0, 0]
    mask[mask < 0.5] = 0
    return mask

for x in xs:
    save(clean(segmenter.predict(x)))
""",
            after="""
import torch

class Segmenter:
    @torch.no_grad()
    def predict(self, x):
        return self.net(x)

def clean(scores):
    mask = scores[0, 0]
    mask[mask < 0.5] = 0
    return mask

for x in xs:
    save(clean(segmenter.predict(x)))
""",
        ),
        *(
            Example(  # no place for tensors of inference mode
                before=f"import torch\n\ndef predict(x):\n    return net(x)  # <- forward\n\n{code}\n",
                after=f"import torch\n\n@torch.no_grad()\ndef predict(x):\n    return net(x)\n\n{code}\n",
            )
            for code in (
                "out = predict(x)\nF.relu(out, inplace=True)",
                "head = nn.Linear(8, 2)\nprint(head(predict(x)).argmax(1))",
                "z = predict(x)\nprint((z @ head.weight.T).argmax(1))",
                "torch.clamp_(predict(x), min=0)",
                "with torch.enable_grad():\n    (g,) = torch.autograd.grad(energy(predict(x), z), z)",
            )
        ),
        Example(  # what is made in the loop, and called once more behind it, keeps ordinary weights
            before="""
import torch

nets = []
for name in names:
    net = load(name)
    nets.append(net)
    print(net(x).argmax(1))  # <- forward=net(x)
print(nets[0](x))
""",
            after="""
import torch

nets = []
for name in names:
    net = load(name)
    nets.append(net)
    with torch.inference_mode():
        print(net(x).argmax(1))
print(nets[0](x))
""",
        ),
        Example(  # so do the weights that a function makes beside
            before="""
import torch
from torch import nn

def probe(model, x):
    features = model(x)  # <- forward=model(x)
    return features, nn.Linear(features.shape[1], 3)
""",
            after="""
import torch
from torch import nn

@torch.no_grad()
def probe(model, x):
    features = model(x)
    return features, nn.Linear(features.shape[1], 3)
""",
        ),
        Example(  # no weights
            before="""
import torch
from torch import nn

def probe(model, x):
    return nn.Softmax(dim=1)(model(x))  # <- forward=model(x)
""",
            after="""
import torch
from torch import nn

@torch.inference_mode()
def probe(model, x):
    return nn.Softmax(dim=1)(model(x))
""",
        ),
        Example(  # an evaluation in a file that trains keeps numbers
            before="""
import torch

def evaluate(model, loader):
    total, hits = 0.0, 0
    for x, y in loader:
        out = model(x)  # <- forward=model(x)
        total += criterion(out, y).item()
        hits += (out.argmax(1) == y).sum().item()
    return total, hits

for x, y in train_loader:
    criterion(net(x), y).backward()
""",
            after="""
import torch

@torch.no_grad()
def evaluate(model, loader):
    total, hits = 0.0, 0
    for x, y in loader:
        out = model(x)
        total += criterion(out, y).item()
        hits += (out.argmax(1) == y).sum().item()
    return total, hits

for x, y in train_loader:
    criterion(net(x), y).backward()
""",
        ),
    )
    LEAVES_ALONE = (
        *(  # called later, out of the function's reach
            Example(f"import torch\ndef scorer(model):\n    return {code}  # <- forward=model(x)\n", "")
            for code in ("lambda x: model(x)", "(model(x) for x in xs)")
        ),
        Example("import torch\nasync def serve(x):\n    return model(x)  # <- forward\n", ""),
        Example("import torch\ndef f(x):\n    y = model(x)  # <- forward\n    return torch.autograd.grad(y, x)\n", ""),
        Example(  # the mode would stay on in what takes the values
            "import torch\ndef f():\n    net = load()\n    for x in xs:\n        yield net(x)  # <- forward=net(x)\n",
            "",
        ),
        Example(  # REINFORCE: an episode of forwards, and one backward through what they kept
            """
import torch

def select_action(state):
    m = Categorical(policy(state))  # <- forward=policy(state)
    action = m.sample()
    policy.saved_log_probs.append(m.log_prob(action))
    return action.item()

def finish_episode():
    loss = torch.stack(policy.saved_log_probs).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
            "",
        ),
        Example(
            """
import torch

for step in range(9):
    action = net(obs).argmax(1)  # <- forward=net(obs)
    if step > 5:
        loss(net(batch)).backward()
""",
            "",
        ),
        Example(
            """
import torch

def embed(x):
    return encoder(x)  # <- forward=encoder(x)

L.Trainer().fit(probe, DataLoader(embed(images)))
""",
            "",
        ),
        Example(  # what its training goes through, too
            """
import torch
from torch import nn

class Coder(nn.Module):
    def encode(self, x):
        return self.encoder(x)  # <- forward=self.encoder(x)

    def forward(self, x):
        return self.decoder(self.encode(x))
""",
            "",
        ),
    )


# The numbers ------------------------------------------------------------------------------------------------------


def _nodes(evidence: Evidence) -> float:
    """Nodes of the graph per step: autograd's sequence numbers, each given to one."""
    operators, steps = evidence.trace.operators, evidence.steps
    inside = (assign(steps, operators.start) >= 0) & (operators.sequence >= 0)
    return len(np.unique(operators.sequence[inside])) / max(1, len(steps))


def _kept(evidence: Evidence) -> tuple[float, float]:
    """Bytes of host memory per step that a forward allocates and has not released when it ends; seconds they cost."""
    detail = evidence.detail
    if detail is None or not len(detail.memory.at):
        return 0.0, 0.0
    steps = step_windows(detail)
    inside = Host(detail, steps).forward.contains(detail.memory.at) & (detail.memory.device_type == _CPU)
    sizes = detail.memory.bytes[inside].astype(np.float64) / max(1, len(steps))
    seconds, above = 0.0, 0
    for limit, each in _BYTE_S:
        # Allocations less releases of one size: what is left of them.
        chosen = (np.abs(detail.memory.bytes[inside]) > above) & (np.abs(detail.memory.bytes[inside]) <= limit)
        seconds, above = seconds + max(0.0, float(sizes[chosen].sum())) * each, limit
    return max(0.0, float(sizes.sum())), seconds


def _stepwise_s(evidence: Evidence) -> float:
    """Seconds per traced step in attention that is computed step by step, with a mask."""
    detail = evidence.detail
    if detail is None:
        return 0.0
    shaped = names_like(detail, detail.operators.name, _STEPWISE.__eq__)
    # q, k, v, mask …: the shape of what is not given is empty.
    masked = [_MASKED.match(detail.name(int(code))) for code in detail.operators.shapes[shaped]]
    if not masked or not all(masked):
        return 0.0
    return _spent_s(evidence, _STEPWISE.__eq__)


def _spent_s(evidence: Evidence, named: Callable[[str], bool]) -> float:
    """Seconds per traced step in operators of these names, which do not call one another."""
    operators, steps = evidence.trace.operators, evidence.steps
    rows = names_like(evidence.trace, operators.name, named) & (assign(steps, operators.start) >= 0)
    return float((operators.end - operators.start)[rows].sum()) / 1e9 / max(1, len(steps))


# The edit ---------------------------------------------------------------------------------------------------------


def _infer(drafts: Drafts, draft: Draft, call: cst.Call, done: set[cst.CSTNode]) -> str:
    """Have the call run without gradients; why not, when that is not safe. `done` is what has been put under it."""
    function = draft.function(call)
    if deferred(draft, call):
        return "the call runs later, when what is made of it here is used"
    if function is not None and (function.asynchronous is not None or differentiates(draft, function)):
        return "its function is asynchronous, or asks for gradients itself"
    if function is not None and not makes_model(draft, call, function):
        if _forward_calls(draft, function):
            return f"a method of its class calls {function.name.value}(), which a training may do, too"
        if function not in done:
            done.add(function)
            if _trained_later(draft, call, function):
                return "the script trains, too, perhaps through what is kept of the output"
            mode = cst.parse_expression(f"{_mode(drafts, draft, function)}()")
            decorator = cst.Decorator(cst.ensure_type(mode, cst.Call))
            draft.change(
                function,
                lambda node, new=decorator: node.with_changes(decorators=[*node.decorators, new]),  # type: ignore[misc]
            )
        return ""
    region: Statement | None = draft.loop(call)
    if region is None or draft.block(region) is None or suspends(region) or makes_model(draft, call, region):
        region = draft.statement(call)
    loop = isinstance(region, (cst.For, cst.While))
    if loop and trains(draft, region):
        return "the loop trains, too"
    if region is None or suspends(region) or (isinstance(region, cst.BaseCompoundStatement) and not loop):
        return "the call is no statement of its own"
    if region not in done:
        done.add(region)
        if _trained_later(draft, call, region):
            return "the script trains, too, perhaps through what is kept of the output"
        draft.wrap(region, region, f"with {_mode(drafts, draft, region)}()")
    return ""


def _forward_calls(draft: Draft, function: cst.FunctionDef) -> bool:
    """Whether it is a method of a module that another one calls: ``encode``, which ``forward`` begins with."""
    holder = draft.enclosing_class(function)
    if holder is None or not any(each.name.value == "forward" for each in draft.nodes(cst.FunctionDef, holder)):
        return False
    own = m.Call(m.Attribute(m.Name("self"), m.Name(function.name.value)))
    return bool(m.findall(holder, own))


def _trained_later(draft: Draft, call: cst.Call, region: cst.CSTNode) -> bool:
    return (trains(draft) or trained_beside(draft, region)) and keeps_graph(draft, call, region)


def _mode(drafts: Drafts, draft: Draft, region: cst.CSTNode) -> str:
    refused = refuses_inference_mode(drafts, draft, region)
    return ensure_name(draft, "torch.no_grad" if refused else "torch.inference_mode")


def _is_held_back(encoder: Encoder) -> bool:
    """Whether an encoder skips its padding as soon as no gradients are recorded."""
    return not encoder.obstacles and encoder.calls_with == [_AUTOGRAD] and bool(encoder.left_aligned)


def _of_encoders(encoders: Sequence[Encoder]) -> Safety:
    """How safe it is that they skip their padding: what they give for it becomes zeros, and what is fused rounds else.

    NUMERIC where the source shows that nothing reads what any of them gives for padding, else BEHAVIOUR.
    """
    drafts = Drafts(Sources())
    for each in encoders:
        try:
            draft = drafts[each.site.file] if each.site is not None else None
        except AdvisorError:
            return Safety.BEHAVIOUR
        made = call_at(draft, each.site, ("TransformerEncoder",)) if draft is not None and each.site else None
        if made is None or draft is None or skips_padding(draft, calls_of(draft, made)):
            return Safety.BEHAVIOUR
    return Safety.NUMERIC
