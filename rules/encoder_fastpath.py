"""A transformer encoder computes its padding, which its fast path would skip."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.edit import Drafts, Sources
from advisor.edit.calls import argument
from advisor.edit.encoders import LAYER, activation_said, batch_first, calls_of, made_for_one, skips_padding
from advisor.edit.locate import call_at
from advisor.edit.origins.values import EDITED, give
from advisor.errors import AdvisorError
from advisor.evidence import Change
from advisor.evidence.encoders import called_encoder, encoder_share, saved_without_padding
from advisor.fixes import edited
from advisor.rule import Advice, Argument, Example, Finding, Gain, Rule, Safety, at, site_list

if TYPE_CHECKING:
    import libcst as cst

    from advisor.edit import Draft, Edit
    from advisor.evidence import Evidence
    from advisor.harness.layout import Site

_LEAST_PADDING = 0.2  # of the tokens: skipping fewer is eaten up by packing and unpacking them
_CURABLE = {"batch_first", "enable_nested_tensor"}  # the others are what the model was trained with
_BECAUSE = {
    "batch_first": "it takes sequences first",
    "enable_nested_tensor": "nested tensors are switched off",
    "activation": "its activation computes {} without being it",
}
_ENCODER = ("encoder_layer", "num_layers", "norm", "enable_nested_tensor", "mask_check")
_NOT_FOUND = "the call that makes it was not found"
_SHARED = "the layer that it copies is not its alone, as far as the source tells"
_NOT_TOLD = "where its argument comes from cannot be told from the source"
_BASIS = "prior: linear layers without the padding, the rest with it, and packing (thirty encoders on two CPUs)"

# What a forward may do with the encoder's output, padding included: none of these may be edited.
_OVER_PADDING = (
    "return self.encoder(x, src_key_padding_mask=padding).mean(1)",
    "h = self.encoder(x, src_key_padding_mask=padding).transpose(0, 1)\n        return h.mean(1)",
    "h = self.encoder(x, src_key_padding_mask=padding)\n        return torch.mean(h, 1)",
    "return self.norm(self.encoder(x, src_key_padding_mask=padding)).mean(1)",
    "h = self.encoder(x, src_key_padding_mask=padding)\n        return self.pool(h.transpose(1, 2))",
    "h = self.encoder(x, src_key_padding_mask=padding)\n        return h.flatten(1)",
    "h = self.encoder(x, src_key_padding_mask=padding)\n        return h[-1]",
    "h = self.encoder(x, src_key_padding_mask=padding)\n        return h[:, -1]",
    "return self.encoder(x, src_key_padding_mask=padding)",
    "h = self.encoder(x, src_key_padding_mask=padding)\n        return (h * self.scale).sum(1)",
    "h = self.encoder(x, src_key_padding_mask=padding)\n        return (h * padding[..., None]).sum(1)",
    "h = self.encoder(x, src_key_padding_mask=padding)\n        return (h * (~padding)[..., None]).mean(1)",
    "kept = ~padding\n        kept[:, -1] = True\n"
    "        return (self.encoder(x, src_key_padding_mask=padding) * kept[..., None]).sum(1)",
    "for _ in range(2):\n            x = self.encoder(x, src_key_padding_mask=padding)\n        return x[:, 0]",
    "if self.deep:\n            x = self.encoder(x, src_key_padding_mask=padding)\n        return x[0]",
)
_SEQUENCES_FIRST = (
    "return self.encoder(x.transpose(0, 1), src_key_padding_mask=padding)[:, 0]",  # the first sequence's tokens
    "h = self.encoder(x.transpose(0, 1), src_key_padding_mask=padding).transpose(0, 1)\n        return h[0]",
    "return self.tags(self.encoder(x.permute(1, 0, 2), src_key_padding_mask=padding).permute(1, 0, 2))",
)


def _pooled(body: str, nested: bool) -> Example:
    made = "layer, 2, enable_nested_tensor=False" if nested else "nn.TransformerEncoderLayer(64, 4), 2"
    code = f"""
class Pooled(nn.Module):
    def __init__(self):
        self.encoder = nn.TransformerEncoder({made})  # <- encoder{"" if nested else ", layer"}

    def forward(self, x, padding):
        {body}
"""
    return Example(code, "", {"nested": True} if nested else {"batch_first": True})


class EncoderFastpath(Rule):
    """A transformer encoder in inference computes all the padding, because its fast path is ruled out.

    In evaluation mode and without gradients, ``nn.TransformerEncoder`` can pack the tokens that the padding mask leaves
    and run its layers on those alone, as nested tensors. It does so only if its layers were made with
    ``batch_first=True`` and the activation "relu" or "gelu" (or torch's function of that name: a lambda around it is
    another), and ``enable_nested_tensor`` was not switched off. Weights do not depend on any of these: a trained
    encoder can be told so later. Reported where a run shows encoders that are called in a way that allows the fast
    path, made in one that does not, and how many of the tokens are padding.

    When not: the outputs at padded places are used (they become zeros); few tokens are padding, or the padding is in
    front of them; the model is compiled; attention is most of the work (many tokens, a narrow model): it is computed
    for the padding all the same. On a GPU it is not reported: its gain was not measured there.

    Source: PyTorch docs, ``torch.nn.TransformerEncoderLayer``, on the fast path's conditions; PyTorch blog,
    "A BetterTransformer for Fast Transformer Inference"; the gain is a prior, from CPU times of thirty encoders.
    """

    id = "encoder-fastpath"
    title = "Let the transformer encoder skip its padding"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record = evidence.record
        if record is None or evidence.trains or evidence.compiled or evidence.device_is_gpu:
            return
        encoder = called_encoder(evidence)
        if encoder is None:
            return
        wrong, padding = set(encoder.obstacles), encoder.padding or 0.0
        activation = _activation(encoder.layer_site) if "activation" in wrong else ""
        curable = _CURABLE | ({"activation"} if activation else set())
        if not wrong or wrong - curable or encoder.calls_with or not encoder.left_aligned or padding < _LEAST_PADDING:
            return
        saved = saved_without_padding(evidence, encoder)
        if saved <= 0.0:
            return
        gain = Gain.prior(evidence.what_if(Change(remove_host_s=saved)), _BASIS)
        if not gain.worth_it:
            return
        site = encoder.layer_site if wrong & {"batch_first", "activation"} else encoder.site
        because = next(said for name, said in _BECAUSE.items() if name in wrong).format(activation)
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{padding:.0%} of the tokens that the encoder computes are padding; {because}, so its fast path "
            "is not taken.",
            gain=gain,
            evidence={"padding_share": padding, "encoder_share": encoder_share(evidence), "step_s": evidence.step_s},
            site=site,
            parameters={
                "encoder": (encoder.site,) if encoder.site is not None else (),
                "layer": (encoder.layer_site,) if encoder.layer_site is not None else (),
                "batch_first": "batch_first" in wrong,
                "nested": "enable_nested_tensor" in wrong,
                "activation": activation,
            },
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        first, nested = bool(finding.parameters.get("batch_first")), bool(finding.parameters.get("nested"))
        activation = str(finding.parameters.get("activation") or "")
        wanted = {
            "batch_first=True": first,
            "enable_nested_tensor=True": nested,
            f'activation="{activation}"': bool(activation),
        }
        told = [name for name, needed in wanted.items() if needed]
        text = f"Make the encoder with {' and '.join(told)} at {at(finding.site)}" + (
            ", and feed it batches first." if first else "."
        )
        if not site_list(finding, "encoder"):
            return Advice(text, "where the encoder is made is unknown")
        drafts = Drafts(sources)
        why = _nested(drafts, finding, first) if nested else ""
        why = why or (_activated(drafts, finding, activation, first or nested) if activation else "")
        why = why or (_batches_first(drafts, finding) if first else "")
        if why:
            return Advice(text, why)
        return edited(drafts, text)

    EXAMPLES = (
        Example(
            before="""
class Ranker(nn.Module):
    def __init__(self):
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)  # <- encoder

    def forward(self, x, padding):
        hidden = self.encoder(x, src_key_padding_mask=padding)
        return self.score(hidden[:, 0])
""",
            after="""
class Ranker(nn.Module):
    def __init__(self):
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=True)

    def forward(self, x, padding):
        hidden = self.encoder(x, src_key_padding_mask=padding)
        return self.score(hidden[:, 0])
""",
            parameters={"nested": True},
        ),
        Example(  # by one name, before and behind it
            before="""
class Tagger(nn.Module):
    def __init__(self):
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)  # <- encoder

    def forward(self, x, padding):
        x = self.embed(x)
        x = self.encoder(x, src_key_padding_mask=padding)
        x = self.score(x[:, 0])
        return x.softmax(-1)
""",
            after="""
class Tagger(nn.Module):
    def __init__(self):
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=True)

    def forward(self, x, padding):
        x = self.embed(x)
        x = self.encoder(x, src_key_padding_mask=padding)
        x = self.score(x[:, 0])
        return x.softmax(-1)
""",
            parameters={"nested": True},
        ),
        Example(
            before="""
class Router(nn.Module):
    def __init__(self, dim):
        layer = nn.TransformerEncoderLayer(dim, 4)  # <- layer=nn.TransformerEncoderLayer(dim, 4)
        self.encoder = nn.TransformerEncoder(layer, 2)  # <- encoder

    def forward(self, x, padding):
        hidden = self.encoder(self.embed(x).transpose(0, 1), src_key_padding_mask=padding)
        # the first token stands for all of them
        return self.teams(hidden[0])
""",
            after="""
class Router(nn.Module):
    def __init__(self, dim):
        layer = nn.TransformerEncoderLayer(dim, 4, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, x, padding):
        hidden = self.encoder(self.embed(x), src_key_padding_mask=padding)
        # the first token stands for all of them
        return self.teams(hidden[:, 0])
""",
            parameters={"batch_first": True},
        ),
        Example(
            before="""
class Topic(nn.Module):
    def __init__(self, dim):
        layer = nn.TransformerEncoderLayer(dim, 4, batch_first=False)  # <- layer
        self.layers = nn.TransformerEncoder(layer, 2)  # <- encoder

    def forward(self, x, padding):
        return self.tags(self.layers(x.permute(1, 0, 2), src_key_padding_mask=padding).permute(1, 0, 2)[:, 0])
""",
            after="""
class Topic(nn.Module):
    def __init__(self, dim):
        layer = nn.TransformerEncoderLayer(dim, 4, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)

    def forward(self, x, padding):
        return self.tags(self.layers(x, src_key_padding_mask=padding)[:, 0])
""",
            parameters={"batch_first": True},
        ),
        Example(
            before="""
class Mean(nn.Module):
    def __init__(self, dim):
        layer = nn.TransformerEncoderLayer(dim, 4)  # <- layer
        self.encoder = nn.TransformerEncoder(layer, 2)  # <- encoder
        self.encoder.load_state_dict(torch.load("encoder.pt"))

    def forward(self, tokens):
        padding = tokens == 0
        x = self.embed(tokens)
        x = x * self.scale
        hidden = self.encoder(x.transpose(0, 1), src_key_padding_mask=padding).transpose(0, 1)
        kept = (~padding).unsqueeze(-1).float()
        return (hidden * kept).sum(1) / kept.sum(1)
""",
            after="""
class Mean(nn.Module):
    def __init__(self, dim):
        layer = nn.TransformerEncoderLayer(dim, 4, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.encoder.load_state_dict(torch.load("encoder.pt"))

    def forward(self, tokens):
        padding = tokens == 0
        x = self.embed(tokens)
        x = x * self.scale
        hidden = self.encoder(x, src_key_padding_mask=padding)
        kept = (~padding).unsqueeze(-1).float()
        return (hidden * kept).sum(1) / kept.sum(1)
""",
            parameters={"batch_first": True},
        ),
        Example(
            before="""
class Sum(nn.Module):
    def __init__(self):
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=NESTED)  # <- encoder
        self.other = nn.TransformerEncoder(another, 2, enable_nested_tensor=NESTED)

    def forward(self, tokens, x):
        h = self.encoder(x, src_key_padding_mask=tokens == 0)
        return ((tokens != 0)[..., None] * h).sum(dim=1)

NESTED = False
""",
            after="""
class Sum(nn.Module):
    def __init__(self):
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=True)
        self.other = nn.TransformerEncoder(another, 2, enable_nested_tensor=NESTED)

    def forward(self, tokens, x):
        h = self.encoder(x, src_key_padding_mask=tokens == 0)
        return ((tokens != 0)[..., None] * h).sum(dim=1)

NESTED = False
""",
            parameters={"nested": True},
        ),
        Example(
            before="""
from torch import nn
from torch.nn import functional as F
class Ranker(nn.Module):
    def __init__(self, dim):
        layer = nn.TransformerEncoderLayer(dim, 4, activation=lambda h: F.gelu(h), batch_first=True)  # <- layer
        self.encoder = nn.TransformerEncoder(layer, 2)  # <- encoder

    def forward(self, x, padding):
        hidden = self.encoder(x, src_key_padding_mask=padding)
        return self.score(hidden[:, 0])
""",
            after="""
from torch import nn
from torch.nn import functional as F
class Ranker(nn.Module):
    def __init__(self, dim):
        layer = nn.TransformerEncoderLayer(dim, 4, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, x, padding):
        hidden = self.encoder(x, src_key_padding_mask=padding)
        return self.score(hidden[:, 0])
""",
            parameters={"activation": "gelu"},
        ),
    )
    LEAVES_ALONE = (
        *(
            Example(
                "class Tagger(nn.Module):\n    def __init__(self):\n"
                "        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)  # <- encoder\n\n"
                "    def forward(self, x, padding):\n        x = self.encoder(x, src_key_padding_mask=padding)\n"
                f"        {then}\n        return x[:, 0]\n",
                "",
                {"nested": True},
            )
            for then in ("x += self.bias", "x = self.score(x.mean(1))", "if self.deep:\n            x = self.more(x)")
        ),
        *(_pooled(body, True) for body in _OVER_PADDING),
        *(_pooled(body.replace("(x,", "(x.transpose(0, 1),"), False) for body in _OVER_PADDING),
        *(_pooled(body, False) for body in _SEQUENCES_FIRST),
        Example(  # which of the list's encoders is called is not known
            """
class Stack(nn.Module):
    def __init__(self):
        self.encoders = nn.ModuleList(
            nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)  # <- encoder=nn.TransformerEncoder
            for _ in range(2)
        )

    def forward(self, x, padding):
        for encoder in self.encoders:
            x = encoder(x, src_key_padding_mask=padding)
        return x[:, 0]
""",
            "",
            {"nested": True},
        ),
        Example(  # another class calls it
            """
class Ranker(nn.Module):
    def __init__(self):
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)  # <- encoder

    def forward(self, x, padding):
        return self.encoder(x, src_key_padding_mask=padding)[:, 0]

def features(ranker, x, padding):
    return ranker.encoder(x, src_key_padding_mask=padding).mean(1)
""",
            "",
            {"nested": True},
        ),
        Example(
            """
class Positioned(nn.Module):
    def __init__(self):
        layer = nn.TransformerEncoderLayer(64, 4)  # <- layer
        self.encoder = nn.TransformerEncoder(layer, 2)  # <- encoder

    def forward(self, x, padding):
        return self.encoder(self.positions(x.transpose(0, 1)), src_key_padding_mask=padding)[0]
""",
            "",
            {"batch_first": True},
        ),
        Example(  # another encoder copies the layer, too
            """
class Two(nn.Module):
    def __init__(self, dim):
        layer = nn.TransformerEncoderLayer(dim, 4)  # <- layer
        self.encoder = nn.TransformerEncoder(layer, 2)  # <- encoder
        self.coarse = nn.TransformerEncoder(layer, 1)

    def forward(self, x, padding):
        return self.teams(self.encoder(x.transpose(0, 1), src_key_padding_mask=padding)[0])
""",
            "",
            {"batch_first": True},
        ),
        Example(
            """
from torch.nn import functional as F
class Two(nn.Module):
    def __init__(self, dim):
        layer = nn.TransformerEncoderLayer(dim, 4, activation=lambda h: F.gelu(h), batch_first=True)  # <- layer
        self.encoder = nn.TransformerEncoder(layer, 2)  # <- encoder
        self.other = nn.TransformerEncoder(layer, 2)

    def forward(self, x, padding):
        return self.score(self.encoder(x, src_key_padding_mask=padding)[:, 0])
""",
            "",
            {"activation": "gelu"},
        ),
    )


def _nested(drafts: Drafts, finding: Finding, sequence_first: bool) -> str:
    """Have the encoder use nested tensors; why not, where that is not safe."""
    draft, made = _encoder(drafts, finding)
    if made is None:
        return _NOT_FOUND
    why = "" if sequence_first else skips_padding(draft, calls_of(draft, made))
    if why:
        return why
    if give(drafts, draft, made, "enable_nested_tensor", "True", _ENCODER, False, alone=True) != EDITED:
        return _NOT_TOLD
    return ""


def _activated(drafts: Drafts, finding: Finding, activation: str, looked: bool) -> str:
    """Have the layers name their activation; `looked`: whether padding is skipped safely is somebody else's to tell."""
    draft, made = _encoder(drafts, finding)
    of_layer, layer = _layer(drafts, next(iter(site_list(finding, "layer")), None))
    if made is None or of_layer is None or layer is None:
        return _NOT_FOUND
    why = "" if looked else skips_padding(draft, calls_of(draft, made))
    if why:
        return why
    if not made_for_one(of_layer, layer):
        return _SHARED
    given = argument(layer, "activation", LAYER)
    if given is None or activation_said(of_layer, layer) != activation:
        return _NOT_TOLD
    of_layer.replace(given.value, f'"{activation}"')
    return ""


def _batches_first(drafts: Drafts, finding: Finding) -> str:
    """Have the layers take batches first, and the encoder's one call with them."""
    draft, made = _encoder(drafts, finding)
    of_layer, layer = _layer(drafts, next(iter(site_list(finding, "layer")), None))
    calls = calls_of(draft, made) if made is not None else []
    if of_layer is None or layer is None or len(calls) != 1:
        return "where it is made and called, or what else the script does with it, cannot be told from the source"
    if not made_for_one(of_layer, layer):
        return _SHARED
    why = batch_first(draft, calls[0])
    if why:
        return why
    if give(drafts, of_layer, layer, "batch_first", "True", LAYER, False, alone=True) != EDITED:
        return _NOT_TOLD
    return ""


def _encoder(drafts: Drafts, finding: Finding) -> tuple[Draft, cst.Call | None]:
    """The file in which the encoder is made, and the call that makes it."""
    (site,) = site_list(finding, "encoder")
    draft = drafts[site.file]
    return draft, call_at(draft, site, ("TransformerEncoder",))


def _layer(drafts: Drafts, site: Site | None) -> tuple[Draft | None, cst.Call | None]:
    """The same of the layer that the encoder copies."""
    draft = drafts[site.file] if site is not None else None
    return draft, call_at(draft, site, ("TransformerEncoderLayer",)) if draft is not None and site is not None else None


def _activation(site: Site | None) -> str:
    """The activation that the layer made there is given in other words; "" for all else."""
    try:
        draft, layer = _layer(Drafts(Sources()), site)
    except AdvisorError:
        return ""
    return activation_said(draft, layer) if draft is not None and layer is not None else ""
