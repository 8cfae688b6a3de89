"""Inference under no_grad, where each operator still does a little for autograd."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from advisor.edit import Draft, Drafts
from advisor.edit.gradients.gradless import makes_model, refuses_inference_mode
from advisor.edit.locate import call_at, last_name
from advisor.edit.names import ensure_name, full_name
from advisor.evidence import Change
from advisor.evidence.steps import assign
from advisor.fixes import edited
from advisor.rule import (
    WIDEST,
    Advice,
    Example,
    Finding,
    Gain,
    Rule,
    Safety,
    at,
    forward_sites,
    site_list,
    sites,
    where,
)

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence

# CPU seconds per operator call that inference mode saves over no_grad: least, likely, most. Measured with torch 2.15,
# one thread, 24 alternating blocks of 60 forwards, for eight small models: a chain of elementwise operators 0.07 us,
# of views 0.07, a handwritten GRU 0.11, an MLP 0.03, two transformer encoders 0.19 and 0.27, a CNN with batch norm
# 0.35, Linear with LayerNorm and GELU 0.05. In all they were 1.04 to 1.24 times as fast. One more, on two other
# processors, saved 0.01 and 0.03 us (accuracy's door_sensor_requests, 1.01 and 1.04 times as fast).
_CALL_S = (0.01e-6, 0.1e-6, 0.25e-6)
_LEAST_GAIN = 1.06  # a prior asks for more than what could just be measured
_NO_GRAD = ("torch.no_grad", "torch.autograd.no_grad", "torch.autograd.grad_mode.no_grad")
_BASIS = "prior: 0.1 us for each operator's call (eight small models on a CPU: 1.04 to 1.24 times as fast)"


class NoGradToInferenceMode(Rule):
    """A script that only infers does so under ``torch.no_grad()``, which leaves part of autograd's work in place.

    Without gradients no graph is made, but each tensor still gets a counter of its versions, and each view remembers
    what it is a view of, in case somebody differentiates later. ``torch.inference_mode()`` leaves that out. It is a
    tenth of a microsecond for each operator: nothing for large tensors, several percent for a small model that answers
    one request at a time.

    When not: the results become inputs of a training, or are changed in place outside of the block: tensors made in
    inference mode refuse both (the edit is not made where the file does either).

    Source: PyTorch notes, "Autograd mechanics", "Inference Mode": "the extreme version of no-grad mode"; C++ docs,
    "Inference Mode", on version counters and view tracking. The gain is a prior.
    """

    id = "no-grad-to-inference-mode"
    title = "Infer in inference mode instead of under no_grad"
    safety = Safety.EXACT
    after = ("missing-eval", "batch-size")

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record = evidence.record
        if record is None or evidence.trains or evidence.compiled or len(evidence.host.backward):
            return
        called = [model for model in record.models if model.calls and model.parameters]
        if not called or any(model.grad_enabled is not False or model.inference_mode for model in called):
            return
        calls = _calls(evidence)
        least, likely, most = (evidence.what_if(Change(remove_host_s=calls * each)).speedup[1] for each in _CALL_S)
        forwards = forward_sites(evidence)
        if likely < _LEAST_GAIN or not forwards:
            return
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"Each step calls {calls:,.0f} operators under no_grad, {at(forwards[0].site)}, and spends about "
            f"{calls * _CALL_S[1] * 1e6:,.0f} us on the versions and views of their results.",
            gain=Gain(max(least, most / WIDEST), likely, most, _BASIS),
            evidence={"operator_calls": calls, "step_s": evidence.step_s},
            site=forwards[0].site,
            parameters={"forward": sites(forwards)},
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Advice:
        text = f"Use torch.inference_mode() instead of torch.no_grad() {where(finding.site)}."
        drafts, done = Drafts(sources), set[cst.CSTNode]()
        for site in site_list(finding, "forward"):
            draft = drafts[site.file]
            call = call_at(draft, site)
            found = _around(draft, call) if call is not None else None
            if call is None or found is None:
                return Advice(text, "where gradients are switched off cannot be told from the source")
            region, switch = found
            if switch in done:
                continue
            if makes_model(draft, call, region) and any(each is region for each in draft.ancestors(call)):
                return Advice(text, "the model is made there, too, whose parameters have to stay ordinary tensors")
            done.add(switch)
            if refuses_inference_mode(drafts, draft, region):
                return Advice(text, "what is made there is changed in place, trained on or kept as a weight elsewhere")
            draft.replace(switch, ensure_name(draft, "torch.inference_mode"))
        return edited(drafts, text)

    EXAMPLES = (
        Example(
            before="""
import torch

class Service:
    @torch.no_grad()
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
        Example(
            before="""
import torch as th
from torch import no_grad

def main():
    model = load().eval()
    with no_grad():  # the night's files
        for x in batches():
            scores.append(model(x).sigmoid())  # <- forward=model(x)
""",
            after="""
import torch as th
from torch import no_grad

def main():
    model = load().eval()
    with th.inference_mode():  # the night's files
        for x in batches():
            scores.append(model(x).sigmoid())
""",
        ),
        Example(  # the one place of the file, a caller's
            before="""
import torch

def answer(model, x):
    return model(x)  # <- forward

with torch.no_grad():
    for x in xs:
        print(answer(net, x))
""",
            after="""
import torch

def answer(model, x):
    return model(x)

with torch.inference_mode():
    for x in xs:
        print(answer(net, x))
""",
        ),
        Example(  # numbers are counted up, and what is made of the results is changed
            before="""
import torch

@torch.no_grad()
def predict(model, x):
    model = model.eval()
    return model(x).softmax(1)  # <- forward=model(x)

total = 0.0
for x in xs:
    scores = predict(net, x)
    total += scores.sum().item()
    mask = scores > 0.5
    mask[0] = True
""",
            after="""
import torch

@torch.inference_mode()
def predict(model, x):
    model = model.eval()
    return model(x).softmax(1)

total = 0.0
for x in xs:
    scores = predict(net, x)
    total += scores.sum().item()
    mask = scores > 0.5
    mask[0] = True
""",
        ),
    )
    LEAVES_ALONE = (
        *(  # a module's: outside of inference mode it does not work with gradients
            Example(
                "import torch\nfrom torch import nn\n@torch.no_grad()\ndef calibrate(model, x):\n"
                f"    y = model(x)  # <- forward=model(x)\n    {code}\n",
                "",
            )
            for code in (
                "return nn.Linear(y.shape[1], 3)",
                "model.head.weight = nn.Parameter(y)",
                "model.register_buffer('scale', y.abs().max())",
            )
        ),
        Example(
            "import torch\nwith torch.no_grad():\n    out = model(x)  # <- forward\nout[out < 0] = 0\n",
            "",
        ),
        Example(
            "import torch\nwith torch.no_grad():\n    z = encoder(x)  # <- forward\nprobe(z).sum().backward()\n",
            "",
        ),
        Example(
            "import torch\nwith torch.no_grad():\n    self.h = net(x)  # <- forward\nself.h *= 0.9\n",
            "",
        ),
        Example(
            "import torch\n@torch.no_grad()\ndef f(x):\n    return net(x)  # <- forward\ny = f(x)[0]\ny[y < 0] = 0\n",
            "",
        ),
        Example(  # a part of it is changed in place, by another name
            """
import torch

with torch.no_grad():
    pred = model(x)  # <- forward=model(x)
mask = pred[0, 0]
mask[mask < 0.5] = 0
""",
            "",
        ),
        Example(
            """
import torch

@torch.no_grad()
def predict(model, x):
    return model(x)  # <- forward=model(x)

def post(scores):
    scores[scores < 0] = 0
    return scores

for x in xs:
    save(post(predict(net, x)))
""",
            "",
        ),
        Example(  # trained on by a framework
            """
import torch
import lightning as L

features = []
with torch.no_grad():
    for x in loader:
        features.append(backbone(x))  # <- forward=backbone(x)
L.Trainer().fit(Probe(), DataLoader(TensorDataset(torch.cat(features))))
""",
            "",
        ),
        Example(  # what is made there keeps its ordinary parameters
            """
import torch

@torch.no_grad()
def build():
    net = Net()
    print(net(x))  # <- forward=net(x)
    return net
""",
            "",
        ),
        Example(  # what is switched off is another function's, which makes the model
            "import torch\n@torch.no_grad()\ndef load():\n    return Net().eval()\n"
            "net = load()\ny = net(x)  # <- forward\n",
            "",
        ),
        Example("import torch\n@torch.no_grad()\ndef main():\n    net = Net()\n    y = net(x)  # <- forward\n", ""),
        Example("import torch\ntorch.set_grad_enabled(False)\ny = model(x)  # <- forward\n", ""),
    )


def _calls(evidence: Evidence) -> float:
    """Operators that a step calls inside of its models' forwards."""
    operators, steps = evidence.trace.operators, evidence.steps
    inside = (assign(steps, operators.start) >= 0) & evidence.host.forward.contains(operators.start)
    return float(inside.sum()) / max(1, len(steps))


def _around(draft: Draft, call: cst.Call) -> tuple[cst.With | cst.FunctionDef, cst.BaseExpression] | None:
    """The statement that switches gradients off around `call`, and the name in it that does.

    Where none of those around it does, the only one around a call of its function.
    """
    everywhere = list(_switches(draft))
    around = {id(each) for each in draft.ancestors(call)}
    found = [(region, switch) for region, switch in everywhere if id(region) in around]
    function = draft.function(call)
    if not found and function is not None:
        found = [each for each in everywhere if function.name.value in _called(draft, each[0])]
    return found[0] if len(found) == 1 else None


def _called(draft: Draft, region: cst.CSTNode) -> set[str]:
    """Last names of what is called in a region."""
    return {last_name(draft, each) for each in draft.nodes(cst.Call, region)}


def _switches(draft: Draft) -> Iterator[tuple[cst.With | cst.FunctionDef, cst.BaseExpression]]:
    for block in draft.nodes(cst.With):
        for item in block.items:
            if isinstance(item.item, cst.Call) and full_name(draft, item.item.func) in _NO_GRAD:
                yield block, item.item.func
    for function in draft.nodes(cst.FunctionDef):
        for each in function.decorators:
            name = each.decorator.func if isinstance(each.decorator, cst.Call) else each.decorator
            if full_name(draft, name) in _NO_GRAD:
                yield function, name
