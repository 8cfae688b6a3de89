"""A model that only infers makes weights anew in each forward, which are the same each time."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from advisor.edit import Draft, Drafts
from advisor.edit.draft import Statement
from advisor.edit.models import Binding, binding, made_at
from advisor.edit.names import ensure_name, fresh_name, last_part
from advisor.evidence import Change
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

_LEAST_GAIN = 1.05
# What makes a weight reads it into the processor's caches, and the layer then finds it there: of weights that the last
# level does not hold the layer has to read them itself. Set on an EPYC with 32 MiB, two cores of which read 17 to 24e9
# bytes a second beyond it, and 71e9 within: a vocoder of 115 MB gained nothing where 1.06 to 1.51 was promised.
_CACHE_BYTES, _READ_RATE = 32 << 20, 20e9
_SAVES = ("save", "save_model", "save_pretrained", "save_file")
_LOADS = re.compile(r"load(?!er)", re.IGNORECASE)  # load_state_dict, load_checkpoint, but no DataLoader
_OUTSIDE = ("", "<module>")  # of all functions
_NORMS = {
    "parametrize": "torch.nn.utils.parametrize.remove_parametrizations(module, name)",
    "weight_norm": "torch.nn.utils.remove_weight_norm(module)",
    "spectral_norm": "torch.nn.utils.remove_spectral_norm(module)",
}


class ParametrizedInference(Rule):
    """A model that only infers makes weights anew in each forward, by a weight norm, a spectral norm and the like.

    ``torch.nn.utils.parametrizations.weight_norm`` and its like keep what a weight is made of, and make it whenever it
    is read, because an optimizer changes the parts. Without one the result is the same each time: a norm over the
    whole weight, a division and a product, beside a convolution of a short signal as long as that itself.
    ``torch.nn.utils.parametrize.remove_parametrizations`` makes it once and keeps it (``remove_weight_norm`` for the
    older one, as vocoders do before they speak). Reported where nothing is trained, and the run has timed it.

    When not: the model is trained on later, or saved in the form that it has.

    Source: PyTorch docs, ``torch.nn.utils.parametrize.remove_parametrizations``; "Parametrizations tutorial", "Removing
    parametrizations". The gain is the time of the functions that made the weights, without that of reading those
    weights, where they are more than a cache holds: the layers then read them themselves.
    """

    id = "parametrized-inference"
    title = "Make the weights once, before the inference"
    safety = Safety.EXACT

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record = evidence.record
        if record is None or not record.remade_weights or evidence.trains or evidence.device_is_gpu:
            return
        called = [model for model in record.models if model.calls]
        if record.optimizers or len(called) != 1 or not evidence.step_s:
            return
        # Not more of the step than of what torch's functions took, where the run says: watched, a cache holds less.
        seconds = min(sum(record.remade_weights.values()), (record.remade_share or 1.0) * evidence.step_s)
        (model,), forwards = called, forward_sites(evidence)
        reading = max(0.0, record.remade_bytes - _CACHE_BYTES) / _READ_RATE
        gain = Gain.of(evidence.what_if(Change(remove_host_s=max(0.0, seconds - reading))))
        if gain.likely < _LEAST_GAIN:
            return
        kind = max(record.remade_weights, key=lambda each: record.remade_weights[each])
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{seconds / evidence.step_s:.0%} of the step makes the weights of {model.cls} anew "
            f"(torch.nn.utils.{kind}), which are the same in every forward.",
            gain=gain,
            evidence={"remaking_s": seconds, "step_s": evidence.step_s},
            site=model.made or (forwards[0].site if forwards else None),
            parameters={
                "made": (model.made,) if model.made is not None else (),
                "forward": sites(forwards),
                "moves": sites(call_sites(evidence, "Module.to", "Module.eval", every_step=False)),
                "kinds": tuple(record.remade_weights),
            },
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        kinds = finding.parameters.get("kinds")
        kind = str(kinds[0]) if isinstance(kinds, tuple) and kinds else "parametrize"
        text = (
            f"Make the weights of the model {where(finding.site)} once, before it infers: {_NORMS[kind]} for each of "
        )
        text += "its modules that has such a weight."
        if not isinstance(kinds, tuple) or len(kinds) != 1 or kind not in _NORMS:
            return Advice(text, "its weights are made in more than one way")
        drafts, forwards = Drafts(sources), site_list(finding, "forward")
        bound = next((each for site in site_list(finding, "made") if (each := made_at(drafts, site))), None)
        if bound is None and forwards:
            bound = binding(drafts, forwards, site_list(finding, "moves"), ())
        if bound is None:
            return Advice(text, "where the script makes its model cannot be told from the source")
        draft = bound.draft
        outside = [site.line for site in forwards if site.file == draft.source.path and site.function in _OUTSIDE]
        called = min(outside, default=sys.maxsize)
        if draft.function(bound.statement) is None and called <= draft.line(_loaded(bound)):
            return Advice(text, "the model is called before all of it is loaded")
        if any(last_part(call.func) in _SAVES for call in draft.nodes(cst.Call)):
            return Advice(text, "the script saves something, maybe the model as it is")
        draft.insert_after(_loaded(bound), _removal(draft, kind, bound.name))
        return edited(drafts, text)

    EXAMPLES = (
        Example(
            before="""
import torch
from vocoder import Vocoder

vocoder = Vocoder().eval()  # <- made=Vocoder()
vocoder.load_state_dict(torch.load("vocoder.pt"))
with torch.inference_mode():
    waves = [vocoder(mel) for mel in mels]  # <- forward=vocoder(mel)
""",
            after="""
import torch
from vocoder import Vocoder

vocoder = Vocoder().eval()
vocoder.load_state_dict(torch.load("vocoder.pt"))
for module in list(vocoder.modules()):
    for name in list(getattr(module, "parametrizations", ())):
        torch.nn.utils.parametrize.remove_parametrizations(module, name)
with torch.inference_mode():
    waves = [vocoder(mel) for mel in mels]
""",
            parameters={"kinds": ("parametrize",)},
        ),
        Example(
            before="""
import torch

class Vocoder(torch.nn.Module):
    @classmethod
    def load(cls, checkpoint=None):
        model = cls()  # <- made=cls()
        if checkpoint is not None:
            model.load_state_dict(torch.load(checkpoint))
        return model.eval()
""",
            after="""
import torch

class Vocoder(torch.nn.Module):
    @classmethod
    def load(cls, checkpoint=None):
        model = cls()
        if checkpoint is not None:
            model.load_state_dict(torch.load(checkpoint))
        for module in list(model.modules()):
            for name in list(getattr(module, "parametrizations", ())):
                torch.nn.utils.parametrize.remove_parametrizations(module, name)
        return model.eval()
""",
            parameters={"kinds": ("parametrize",)},
        ),
        Example(
            before="""
from torch import nn

net = Judge()  # <- made
for x in DataLoader(pairs):
    scores = net(x)  # <- forward=net(x)
""",
            after="""
from torch import nn

net = Judge()
for module in list(net.modules()):
    if hasattr(module, "weight_g"):
        nn.utils.remove_weight_norm(module)
for x in DataLoader(pairs):
    scores = net(x)
""",
            parameters={"kinds": ("weight_norm",)},
        ),
    )
    LEAVES_ALONE = (
        Example(
            "import torch\nnet = Judge()  # <- made\ny = net(x)  # <- forward=net(x)\ntorch.save(net, 'judge.pt')\n",
            "",
            {"kinds": ("parametrize",)},
        ),
        Example("net = Judge()  # <- made\n", "", {"kinds": ("parametrize", "weight_norm")}),
        Example(
            "net = Judge()  # <- made\ny = net(x)  # <- forward=net(x)\nnet.load_state_dict(torch.load(path))\n",
            "",
            {"kinds": ("parametrize",)},
        ),
        Example("y = load()(x)  # <- forward=load()(x)\n", "", {"kinds": ("parametrize",)}),
    )


def _loaded(bound: Binding) -> Statement:
    """The last statement of the model's block that loads it; the one that makes it, where none does."""
    draft = bound.draft
    siblings = draft.siblings(bound.statement)
    found = bound.statement
    for each in siblings[siblings.index(bound.statement) + 1 :]:
        loads = any(_LOADS.search(last_part(call.func)) for call in draft.nodes(cst.Call, each))
        if isinstance(each, (cst.SimpleStatementLine, cst.If)) and loads and bound.name in draft.code(each):
            found = each
    return found


def _removal(draft: Draft, kind: str, model: str) -> str:
    """The loop that makes the weights and keeps them."""
    module, name = fresh_name(draft, "module"), fresh_name(draft, "name")
    if kind == "parametrize":
        remove = ensure_name(draft, "torch.nn.utils.parametrize.remove_parametrizations")
        inside = f'for {name} in list(getattr({module}, "parametrizations", ())):\n        {remove}({module}, {name})'
    else:
        part = {"weight_norm": "weight_g", "spectral_norm": "weight_orig"}[kind]
        remove = ensure_name(draft, f"torch.nn.utils.remove_{kind}")
        inside = f'if hasattr({module}, "{part}"):\n        {remove}({module})'
    return f"for {module} in list({model}.modules()):\n    {inside}"
