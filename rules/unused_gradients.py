"""The backward goes through weights that no optimizer trains."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import libcst as cst
import numpy as np

from advisor.edit import Draft, Drafts
from advisor.edit.callers import runs_twice
from advisor.edit.gradients.freezing import needed, tell_otherwise
from advisor.edit.locate import outermost_at
from advisor.edit.models import made_at
from advisor.edit.names import full_name, last_part, plain_name
from advisor.evidence import Change
from advisor.evidence.gradients.unused_gradients import unused_backward
from advisor.fixes import edited
from advisor.rule import (
    Advice,
    Argument,
    Example,
    Finding,
    Gain,
    Rule,
    Safety,
    file_list,
    model_files,
    optimizer_sites,
    site_list,
    where,
)

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence
    from advisor.harness.layout import Site
_OPTIMIZER = re.compile(r"(?i)optim|adam|sgd|lion|lamb|adafactor|adagrad|rmsprop|lbfgs|muon")


class UnusedGradients(Rule):
    """The optimizer has the head of the model only, and the backward goes through all the rest as well.

    ``Adam(model.head.parameters())`` trains nothing but the head. Autograd does not know: as long as the other weights
    require gradients, each backward pass computes theirs, twice the work of the forward, and the forward keeps all
    activations for it. Nobody takes these gradients, and where ``optimizer.zero_grad()`` is called nobody clears them.
    A group with a learning rate of zero is frozen as little: its weights stay, and all the work is done.
    ``requires_grad_(False)`` ends the backward where the last weight is that is trained; losses and updates stay what
    they were. Reported where gradients of weights that no optimizer holds, and that nothing else changes, were seen to
    be computed anew in each step; the gain is what the backward does after the last gradient that is used.

    When not: the script uses these gradients itself (it reads ``.grad``, clips by them), or trains the other weights
    later: then the fix is described, not made.

    Source: PyTorch notes, "Autograd mechanics", "Setting requires_grad": freezing parts of a model; the transfer
    learning tutorial, "ConvNet as fixed feature extractor".
    """

    id = "unused-gradients"
    title = "Freeze the weights that no optimizer trains"
    safety = Safety.EXACT

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record = evidence.record
        unused = unused_backward(evidence)
        if record is None or not record.unused_gradients or unused is None or evidence.compiled:
            return
        scale = np.ones(len(evidence.trace.kernels))
        scale[unused.kernels] = 0.0
        gain = Gain.of(
            evidence.what_if(
                Change(
                    remove_host_s=unused.seconds / evidence.inflation,
                    kernel_scale=scale if len(unused.kernels) else None,
                )
            )
        )
        if not gain.worth_it:
            return
        models = record.unused_gradients
        whole = [each for each in models if not each.trained]
        resting = any(each.resting for each in models)
        optimizers = optimizer_sites(evidence)
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"Each backward computes the gradients of {sum(each.tensors for each in models)} tensors of "
            f"{' and '.join(dict.fromkeys(each.cls for each in models))} that "
            f"{'an optimizer has at a rate of zero' if resting else 'no optimizer holds'}, in "
            f"{unused.seconds * 1e3:.1f} ms of the traced step.",
            gain=gain,
            evidence={
                "unused_backward_s": unused.seconds,
                "unused_tensors": sum(each.tensors for each in models),
                "unused_bytes": sum(each.bytes for each in models),
                "gradients": record.gradients,
                "gradients_needed": record.gradients_needed,
                "step_s": evidence.step_s,
            },
            site=next(iter(optimizers), None),
            parameters={
                "optimizers": optimizers,
                "made": tuple(each.made for each in whole if each.made is not None),
                "models": len(models),
                "trained": next((tuple(each.trained) for each in models if each.trained), ()),
                "files": model_files(evidence),
                "frozen": any(each.frozen for each in models),
                "resting": resting,
                "inputs": record.input_gradients > 0,
            },
            safety=Safety.NUMERIC if resting else None,  # a norm of all gradients, to clip by, is another one
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        if finding.parameters.get("resting"):
            text = "Call requires_grad_(False) on what is trained at a rate of zero, before the optimizer is made "
            return Advice(f"{text}{where(finding.site)}.", "whether the rate stays zero only its author can tell")
        text = "Call requires_grad_(False) on what no optimizer trains"
        if file_list(finding, "trained") and not finding.parameters.get("frozen"):
            text = "Call requires_grad_(False) on the model, and requires_grad_(True) on the part that is trained"
        text += f", before the optimizer is made {where(finding.site)}."
        if finding.parameters.get("inputs"):
            return Advice(text, "what comes into the model was told that it needs gradients, too")
        drafts = Drafts(sources)
        why = _needed(finding, drafts)
        if not why:
            why = _freeze(finding, drafts)
        elif not _needed(finding, drafts, told=True) and _told(finding, drafts):
            why = ""
        if why:
            return Advice(text, why)
        return edited(drafts, text)

    EXAMPLES = (
        Example(
            before="optimizer = SGD([{'params': rest, 'lr': 0.0}, {'params': head}], lr=0.1)  # <-\n",
            after="",
            parameters={"resting": True},
            advice="at a rate of zero",
        ),
        Example(
            before="""
model = resnet18()
model.fc = nn.Linear(512, 10)
optimizer = torch.optim.SGD(model.fc.parameters(), lr=0.1)  # <- optimizers
""",
            after="""
model = resnet18()
model.fc = nn.Linear(512, 10)
model.requires_grad_(False)
model.fc.requires_grad_(True)
optimizer = torch.optim.SGD(model.fc.parameters(), lr=0.1)
""",
            parameters={"models": 1, "trained": ("fc",)},
        ),
        Example(  # two parts, in groups of their own
            before="""
class Trainer:
    def __init__(self, net):
        self.net = net
        self.optimizer = optim.AdamW(  # <- optimizers
            [
                {"params": self.net.neck.parameters()},
                {"params": self.net.head[0].parameters(), "lr": 1e-3},
            ],
            lr=1e-4,
        )
""",
            after="",
            parameters={"models": 1, "trained": ("neck", "head.0")},
            advice="requires_grad_(False)",
        ),
        Example(
            before="""
class Trainer:
    def __init__(self, net):
        self.net = net
        self.optimizer = optim.AdamW(  # <- optimizers
            [
                {"params": self.net.neck.parameters()},
                {"params": self.net.out.head.parameters(), "lr": 1e-3},
            ],
            lr=1e-4,
        )
""",
            after="""
class Trainer:
    def __init__(self, net):
        self.net = net
        self.net.requires_grad_(False)
        self.net.neck.requires_grad_(True)
        self.net.out.head.requires_grad_(True)
        self.optimizer = optim.AdamW(
            [
                {"params": self.net.neck.parameters()},
                {"params": self.net.out.head.parameters(), "lr": 1e-3},
            ],
            lr=1e-4,
        )
""",
            parameters={"models": 1, "trained": ("neck", "out.head")},
        ),
        Example(  # pretrained vectors in it that stay as they are
            before="model.fc = Tagger(nn.Embedding.from_pretrained(vectors))\n"
            "optimizer = torch.optim.SGD(model.fc.parameters(), lr=0.1)  # <- optimizers\n",
            after="",
            parameters={"models": 1, "trained": ("fc",), "frozen": True},
            advice="on what no optimizer trains",
        ),
        Example(  # a model of its own, none of which is trained
            before="""
def main():
    encoder = load_encoder().to(device)  # <- made=load_encoder()
    probe = nn.Linear(64, 3)
    optimizer = torch.optim.Adam(probe.parameters())  # <- optimizers
""",
            after="""
def main():
    encoder = load_encoder().to(device)
    encoder.requires_grad_(False)
    probe = nn.Linear(64, 3)
    optimizer = torch.optim.Adam(probe.parameters())
""",
            parameters={"models": 1, "trained": ()},
        ),
        Example(  # a method says which
            before="""
class Probe(nn.Module):
    def trained(self):
        return list(self.head.parameters())

optimizer = torch.optim.AdamW(model.trained(), lr=1e-3)  # <- optimizers
""",
            after="""
class Probe(nn.Module):
    def trained(self):
        return list(self.head.parameters())

model.requires_grad_(False)
model.head.requires_grad_(True)
optimizer = torch.optim.AdamW(model.trained(), lr=1e-3)
""",
            parameters={"models": 1, "trained": ("head",)},
        ),
        Example(
            before="head = [p for n, p in model.named_parameters() if 'head' in n]\nopt = SGD(head)  # <- optimizers\n",
            after="",
            parameters={"models": 1, "trained": ("head",)},
            advice="requires_grad_(True) on the part that is trained",
        ),
        Example(  # what is clipped is what is trained
            before="""
import torch
model = Tagger()
opt = torch.optim.Adam(model.head.parameters(), 1e-3)  # <- optimizers
torch.nn.utils.clip_grad_norm_(model.head.parameters(), 1.0)
""",
            after="""
import torch
model = Tagger()
model.requires_grad_(False)
model.head.requires_grad_(True)
opt = torch.optim.Adam(model.head.parameters(), 1e-3)
torch.nn.utils.clip_grad_norm_(model.head.parameters(), 1.0)
""",
            parameters={"models": 1, "trained": ("head",)},
        ),
    )
    LEAVES_ALONE = (
        Example(  # one function makes this optimizer and the next, which has all weights
            """
import torch
def optimizer_of(params):
    return torch.optim.Adam(params)  # <- optimizers
encoder = load()  # <- made=load()
fit(optimizer_of(head.parameters()))
fit(optimizer_of([*encoder.parameters(), *head.parameters()]))
""",
            "",
            {"models": 1, "trained": ()},
        ),
        Example(  # one of two models is made in a library
            "enc = load()  # <- made=load()\nopt = torch.optim.SGD(probe.parameters())  # <- optimizers\n",
            "",
            {"models": 2, "trained": ()},
        ),
        *(
            Example(
                "model.encoder = load()\nopt = torch.optim.SGD(model.head.parameters())  # <- optimizers\n" + line,
                "",
                {"models": 1, "trained": ("head",)},
            )
            for line in (
                "norm = model.encoder.weight.grad.norm()\n",
                "clip_grad_norm_(model.parameters(), 1.0)\n",
                "model.encoder.requires_grad_(True)\n",
                "opt.add_param_group({'params': model.encoder.parameters()})\n",
                "fine = torch.optim.SGD(model.parameters())\n",
                "fine = Lion(model.parameters())\n",
                "y = checkpoint(model.encoder, x)\n",
            )
        ),
    )


def _files(finding: Finding) -> list[str]:
    """The files of the models, and where they and the optimizers are made."""
    places = (*site_list(finding, "optimizers"), *site_list(finding, "made"))
    return list(dict.fromkeys((*file_list(finding, "files"), *(site.file for site in places))))


def _told(finding: Finding, drafts: Drafts) -> bool:
    """Have the script's own ``requires_grad_(x)`` say False, where nothing of that model is trained."""
    return not file_list(finding, "trained") and tell_otherwise(drafts, _files(finding))


def _needed(finding: Finding, drafts: Drafts, told: bool = False) -> str:
    """What the script does that needs these gradients, or does not go with weights that need none; as a clause.

    With `told`, what it says itself of what needs gradients is left out.
    """
    optimizers, files = site_list(finding, "optimizers"), _files(finding)
    several = len(optimizers) != 1
    call = outermost_at(drafts[optimizers[0].file], optimizers[0]) if not several else None
    given = call.args[0].value if call is not None and call.args else None
    clipped = drafts[optimizers[0].file].code(given) if isinstance(given, cst.Call) else ""
    if why := needed(drafts, files, told=told, clipped=clipped):  # what is trained may be clipped
        return why
    for draft in (drafts[path] for path in files):
        for call in draft.nodes(cst.Call):
            name, place = full_name(draft, call.func), (draft.source.path, draft.line(call))
            makes = name.startswith("torch.optim.") and "lr_scheduler" not in name
            makes = makes or _makes_another(drafts, files, draft, call)
            known = place in [(site.file, site.line) for site in optimizers]
            several |= makes and (not known or runs_twice(drafts, draft, call))
    return "the script makes several optimizers" if several else ""


def _makes_another(drafts: Drafts, files: Sequence[str], draft: Draft, call: cst.Call) -> bool:
    """Whether a call makes an optimizer, by its name and what it is given, of a class that is not torch's."""
    name = last_part(call.func)
    if not _OPTIMIZER.search(name) or not any(".parameters(" in draft.code(arg) for arg in call.args):
        return False
    return not any(each.name.value == name for path in files for each in drafts[path].nodes(cst.FunctionDef))


def _freeze(finding: Finding, drafts: Drafts) -> str:
    """Freeze what is not trained; why not, as a clause."""
    trained, made = file_list(finding, "trained"), site_list(finding, "made")
    if finding.parameters.get("frozen"):
        return "what is trained has weights that are frozen, and are to stay so"
    if len(made) + bool(trained) != finding.parameters.get("models"):
        return "where the script makes these models is not known"
    for site in made:
        bound = made_at(drafts, site)
        if bound is None:
            return f"what the model made {where(site)} is called cannot be told from the source"
        bound.draft.insert_after(bound.statement, f"{bound.name}.requires_grad_(False)")
    optimizers = site_list(finding, "optimizers")
    return _freeze_rest(optimizers[0], trained, _files(finding), drafts) if trained else ""


def _freeze_rest(optimizer: Site, trained: Sequence[str], files: Sequence[str], drafts: Drafts) -> str:
    """Freeze a model but for the parts of it that are `trained`, which the optimizer names; why not, as a clause."""
    draft = drafts[optimizer.file]
    call = outermost_at(draft, optimizer)
    statement = draft.statement(call) if call is not None else None
    if call is None or statement is None or not call.args:
        return "the call that makes the optimizer was not found"
    parts = _weights_of(draft, call.args[0]) or _by_method(call.args[0].value, files, drafts)
    models = {name.removesuffix(f".{part}") for name in parts for part in trained if name.endswith(f".{part}")}
    if len(models) != 1 or {f"{model}.{part}" for model in models for part in trained} != set(parts):
        return "the parts that are trained cannot be told from what the optimizer is given"
    (model,) = models
    draft.insert_before(
        statement, f"{model}.requires_grad_(False)", *(f"{part}.requires_grad_(True)" for part in parts)
    )
    return ""


def _weights_of(draft: Draft, within: cst.CSTNode) -> list[str]:
    """What `within` calls ``parameters()`` of, by their names: "model.head"."""
    called = [each.func for each in draft.nodes(cst.Call, within) if isinstance(each.func, cst.Attribute)]
    return [name for each in called if each.attr.value == "parameters" and (name := plain_name(each.value))]


def _by_method(value: cst.BaseExpression, files: Sequence[str], drafts: Drafts) -> list[str]:
    """The same of ``model.trainable()``, by what the one method of that name in `files` returns of ``self``."""
    if not isinstance(value, cst.Call) or value.args or not isinstance(value.func, cst.Attribute):
        return []
    model, method = plain_name(value.func.value), value.func.attr.value
    found = [(of, each) for of in map(drafts.__getitem__, files) for each in of.nodes(cst.FunctionDef)]
    named = [(of, each) for of, each in found if each.name.value == method]
    if not model or len(named) != 1:
        return []
    draft, function = named[0]
    returns = draft.nodes(cst.Return, function)
    parts = _weights_of(draft, returns[0]) if len(returns) == 1 else []
    if not parts or not all(part.startswith("self.") for part in parts):
        return []
    return [f"{model}.{part.removeprefix('self.')}" for part in parts]
