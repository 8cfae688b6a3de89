"""Attention is written out by hand where one fused function does it."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import libcst as cst

from advisor.edit import Draft, Drafts, Sources
from advisor.edit.algebra.attention import attentions, fuse
from advisor.edit.algebra.attention_flow import written_out
from advisor.edit.algebra.attention_weights import leave_weights, unread_weights
from advisor.edit.algebra.told_eager import EAGER, FUSED, KEYWORD, READS, told
from advisor.edit.gradients.derivatives import differentiates_twice
from advisor.edit.origins.origin import origin_of
from advisor.edit.origins.values import EDITED, give_value
from advisor.edit.sources import text_of
from advisor.errors import AdvisorError
from advisor.evidence import Change
from advisor.evidence.algebra.scores import (
    attention_scores,
    get_pages_anew,
    head_width,
    product_share,
    score_shares,
    widths_differ,
)
from advisor.evidence.gpu.matrix import format_of
from advisor.fixes import by_option, edited
from advisor.harness.layout import Site
from advisor.rule import (
    WIDEST,
    Advice,
    Argument,
    Example,
    Finding,
    Gain,
    Rule,
    Safety,
    at,
    model_files,
    site_list,
)

if TYPE_CHECKING:
    from advisor.edit import Edit
    from advisor.evidence import Evidence

_DROPOUTS = ("aten::native_dropout", "aten::bernoulli_")
_NAME, _MEMBER = re.compile(r"(?<![\w.])[a-z_]\w*"), re.compile(r"\bself\.(\w+)")
_LEARNS = r"([\w.]+\.)?[A-Z]\w*\("  # what makes a parameter or a module: by convention the name of a class
_HIDDEN = "the names by which the file knows the function stand for something else there"
_HOOKS = "register_forward_hook"  # the usual way to collect the weights that nobody takes
_LEAST_GAIN = 1.05  # several lines are written anew: it has to be worth more than what could just be measured
_LEAST_SHARE = 0.05  # of the step, in elementwise work on the scores: below it they are too small to be worth tiling
# What is left of the elementwise work on the scores (scaling, masking, softmax, their backward): best, likely, worst.
# On a GPU the scores never leave the chip (Dao et al. 2022: reads and writes of the N x N matrix are what goes). On a
# CPU, torch 2.15, one thread: a two-layer transformer of 4x8 heads of 16 numbers and 256 tokens takes 0.55 of its CPU
# time in all, where this work was 0.34 of the step and the products 0.25; attention by itself with heads of 32 and 64
# numbers 0.65 to 0.87 in training and 0.60 to 0.97 in inference; with heads of 64 the transformer 0.88.
_LEFT_ON_GPU, _LEFT_ON_CPU = (0.02, 0.1, 0.3), (0.05, 0.2, 0.5)
# Its products in 16 bits wait for memory as well, with heads of so few numbers: 64 of them make some 60 operations a
# byte of scores, and an A100 and an H200 do 200. A GPT written out became 1.66 times as fast with the function on an
# A100 (rasbt/LLMs-from-scratch, ch05/10), which a tenth left of the elementwise work alone does not explain.
_PRODUCTS_LEFT_ON_GPU, _FEW_NUMBERS = (0.4, 0.6, 1.0), 128
# So much of all operations on the scores, products too, is left where each of them gets its pages anew: seven shapes of
# 30 to 256 MB, torch 2.14 on two cores, 0.19 to 0.35 in training and 0.16 to 0.52 in inference, against 0.6 to 0.8 of
# five that are smaller; a whole transformer's step 0.15.
_LEFT_OF_LARGE = (0.12, 0.2, 0.35)
# A product with few numbers per head spends as long on writing the scores as a head of so many on computing them.
_HEAD = 16
_BASIS = "prior: the elementwise work on the scores goes, the matrix products stay"


class AttentionSdpa(Rule):
    """Attention is computed step by step: a product, a scaling, a mask, a softmax, another product.

    Each of these steps writes the matrix of scores, one number for each pair of tokens and head, to memory and reads
    it back, and training keeps several copies of it for the backward. ``F.scaled_dot_product_attention`` computes it
    in tiles that stay in the cache, keeps none, and takes the mask and the dropout along; ``nn.MultiheadAttention``
    calls it unless it is asked for the weights, as it is by default. Reported only where the softmax over such scores
    was seen in the run, and the lines that write it out, or drop those weights, were found in the model's own source,
    or what tells a model of the transformers library to (``attn_implementation="eager"``).

    When not: the attention weights themselves are returned, stored or looked at; on a CPU with a dropout of the weights
    (the function then takes the steps one by one, too; measured: up to a third slower); gradients are differentiated
    once more (a gradient penalty), for which the fused function has no derivative; rows that a mask leaves nothing of
    come out different. Dropout draws other random numbers than before.

    Source: PyTorch, ``torch.nn.functional.scaled_dot_product_attention``; Dao et al. 2022, "FlashAttention". The gain
    is a prior.
    """

    id = "attention-sdpa"
    title = "Use the fused attention"
    safety = Safety.NUMERIC
    after = ("amp-autocast",)

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record = evidence.record
        if record is None or evidence.compiled:
            return
        texts = [text_of(path) for path in model_files(evidence)]
        scores = attention_scores(evidence)
        if not scores or any(map(differentiates_twice, texts)):
            return
        if evidence.trains and not evidence.device_is_gpu and any(_places(evidence, _learned)):
            return  # a mask that needs a gradient has no fused kernel there: the function takes the steps one by one
        if not evidence.device_is_gpu and widths_differ(evidence, scores):
            return  # nor have values of another width than the queries
        places = tuple(_places(evidence, _fusible))
        hooked = any(_HOOKS in text for text in texts)
        joined: Counter[tuple[int, ...]] = Counter(
            {shape: number for shape, number in scores.items() if len(shape) == 3}
        )
        if joined and not hooked:
            # nn.MultiheadAttention joins the heads to the batch: other scores are somebody else's.
            unread = tuple(_places(evidence, unread_weights))
            scores = joined if unread and not places else scores
            places += unread
        drops = score_shares(evidence, scores, _DROPOUTS)
        if drops and not evidence.device_is_gpu:
            return
        shares = score_shares(evidence, scores)
        gain = _gain(evidence, scores, shares)
        if gain.likely < _LEAST_GAIN:
            return
        eager = () if places else tuple(_told_eager(evidence))
        places = places or eager or tuple(_places(evidence, written_out))
        if not places:
            return
        rows = [row for row in evidence.operators if row.name in shares]
        spent = sum((row.device_s if evidence.device_is_gpu else row.self_s) * shares[row.name] for row in rows)
        traced = evidence.trace_step_s or 1.0
        if spent < _LEAST_SHARE * traced:
            return
        shape = max(scores, key=lambda each: scores[each])
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{spent / traced:.0%} of the step goes over attention scores of {'x'.join(map(str, shape))} one "
            f"operation at a time, at {', '.join(at(each) for each in places)}.",
            gain=gain,
            evidence={
                "scores_share": spent / traced,
                "scores_shape": "x".join(map(str, shape)),
                "attentions_per_step": sum(scores.values()),
                "step_s": evidence.step_s,
            },
            site=places[0],
            parameters={"attention": places, "dimensions": len(shape), "told": bool(eager), "hooked": hooked},
            safety=Safety.BEHAVIOUR if drops else None,
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        places = site_list(finding, "attention")
        text = "Compute attention with torch.nn.functional.scaled_dot_product_attention" + (
            f" at {', '.join(at(each) for each in places)}." if places else "."
        )
        if not places:
            return Advice(text, "the place is unknown")
        dimensions, drafts = finding.parameters.get("dimensions"), Drafts(sources)
        if finding.parameters.get("told"):
            return _otherwise(drafts, places)
        for site in places:
            draft = drafts[site.file]
            unread = [each for each in unread_weights(draft) if site.line in _lines(draft, each)]
            for each in unread:
                leave_weights(draft, each)
            if unread:
                continue
            found = next((each for each in attentions(draft) if site.line in _lines(draft, each.product)), None)
            if found is None:
                return Advice(
                    text, "how its values are laid out, and what else becomes of them, only its author can tell"
                )
            if found.stored:
                return Advice(text, f"the weights are kept in {found.stored}, which only you can tell the use of")
            if finding.parameters.get("hooked") and (found.returned or found.dropout.partition(" ")[0].endswith(".p")):
                return Advice(text, "hooks may collect its weights, which the fused function does not give")
            if dimensions == 3 and len(places) > 1 and not found.batched:
                return Advice(text, "how many dimensions each of them has cannot be told from the source")
            if not fuse(draft, found, dimensions if isinstance(dimensions, int) else 4):
                batched = "its heads are part of the batch, where the mask needs a dimension of its own"
                return Advice(text, batched if found.mask and dimensions != 4 else _HIDDEN)
        return edited(drafts, text)

    EXAMPLES = (
        Example(  # a library's model, which is told to
            before="""
from transformers import AutoModel, BertConfig

def make(attention="eager"):
    return AutoModel.from_config(BertConfig(), attn_implementation=attention)  # <- attention

model = make()
""",
            after="""
from transformers import AutoModel, BertConfig

def make(attention="sdpa"):
    return AutoModel.from_config(BertConfig(), attn_implementation=attention)

model = make()
""",
            parameters={"told": True},
        ),
        Example(
            before="""
import math
import torch
import torch.nn as nn
from torch.nn import functional as F

class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.attn_dropout = nn.Dropout(config.dropout)
        self.register_buffer("bias", torch.tril(torch.ones(config.block, config.block)).view(1, 1, 64, 64))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.heads(x)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))  # (B, nh, T, T)
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        att = self.attn_dropout(att)
        y = att @ v  # (B, nh, T, hs)  # <- attention
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.c_proj(y)
""",
            after="""
import math
import torch
import torch.nn as nn
from torch.nn import functional as F

class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.attn_dropout = nn.Dropout(config.dropout)
        self.register_buffer("bias", torch.tril(torch.ones(config.block, config.block)).view(1, 1, 64, 64))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.heads(x)
        y = F.scaled_dot_product_attention(
            q,
            k,
            v,
            is_causal=True,
            dropout_p=self.attn_dropout.p if self.training else 0.0,
        )  # (B, nh, T, hs)
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.c_proj(y)
""",
        ),
        Example(
            before="""
import math
import torch

def attention(query, key, value, mask=None):
    d_k = query.size(-1)
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    weights = scores.softmax(dim=-1)
    return torch.matmul(weights, value)  # <- attention=torch.matmul(weights, value)
""",
            after="""
import math
import torch

def attention(query, key, value, mask=None):
    d_k = query.size(-1)
    return torch.nn.functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=(mask == 0).to(query.dtype) * -1e9 if mask is not None else None,
        scale=1 / math.sqrt(d_k),
    )
""",
        ),
        Example(
            before="""
import torch
import torch.nn.functional as F

def mix(q, k, v):
    return F.softmax(torch.bmm(q, k.transpose(1, 2)) / 8, dim=-1).bmm(v)  # <- attention
""",
            after="""
import torch
import torch.nn.functional as F

def mix(q, k, v):
    return F.scaled_dot_product_attention(
        q.unsqueeze(1),
        k.unsqueeze(1),
        v.unsqueeze(1),
        scale=1 / 8,
    ).squeeze(1)
""",
            parameters={"dimensions": 3},
        ),
        Example(
            before="""
import torch

def look(q, k, v, pad):
    scores = torch.einsum("bihd,bjhd->bhij", q, k) / 8.0
    scores = scores.masked_fill(pad[:, None, None, :], float("-inf"))
    weights = scores.softmax(dim=-1)
    return torch.einsum("bhij,bjhd->bihd", weights, v)  # <- attention=torch.einsum("bhij,bjhd->bihd", weights, v)
""",
            after="""
import torch

def look(q, k, v, pad):
    return torch.nn.functional.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=~pad[:, None, None, :],
        scale=1 / 8.0,
    ).transpose(1, 2)
""",
        ),
        Example(  # a dropout that is handed in, and weights that the only caller drops
            before="""
import math
import torch
from torch import nn

def attention(query, key, value, mask=None, dropout=None):
    d_k = query.size(-1)
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    weights = nn.Softmax(dim=-1)(scores)
    if dropout is not None:
        weights = dropout(weights)
    return torch.matmul(weights, value), weights  # <- attention=torch.matmul(weights, value)

class Heads(nn.Module):
    def __init__(self):
        self.dropout = nn.Dropout(0.1)

    def forward(self, q, k, v):
        x, _ = attention(q, k, v, dropout=self.dropout)
        return x
""",
            after="""
import math
import torch
from torch import nn

def attention(query, key, value, mask=None, dropout=None):
    d_k = query.size(-1)
    return nn.functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=(mask == 0).to(query.dtype) * -1e9 if mask is not None else None,
        dropout_p=dropout.p if dropout is not None and dropout.training else 0.0,
        scale=1 / math.sqrt(d_k),
    ), None

class Heads(nn.Module):
    def __init__(self):
        self.dropout = nn.Dropout(0.1)

    def forward(self, q, k, v):
        x, _ = attention(q, k, v, dropout=self.dropout)
        return x
""",
        ),
        Example(  # a module that makes weights unless told not to
            before="""
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.MultiheadAttention(64, 4, batch_first=True)
        self.cross = nn.MultiheadAttention(64, 4, batch_first=True)

    def forward(self, x, memory, pad):
        h, _ = self.attn(x, x, x, key_padding_mask=pad)  # <- attention=self.attn(x, x, x, key_padding_mask=pad)
        return x + self.cross(h, memory, memory)[0]
""",
            after="""
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.MultiheadAttention(64, 4, batch_first=True)
        self.cross = nn.MultiheadAttention(64, 4, batch_first=True)

    def forward(self, x, memory, pad):
        h, _ = self.attn(x, x, x, key_padding_mask=pad, need_weights=False)
        return x + self.cross(h, memory, memory)[0]
""",
        ),
        Example(  # somebody may look at what is kept
            before="""
from torch import nn

class Dot(nn.Module):
    def __init__(self):
        super(Dot, self).__init__()

    def forward(self, q, k, v):
        weights = (q @ k.transpose(-2, -1)).softmax(dim=-1)
        out = weights @ v  # <- attention=weights @ v
        return out, weights

class Heads(nn.Module):
    def __init__(self):
        super(Heads, self).__init__()
        self.dot = Dot()

    def forward(self, q, k, v):
        x, self.seen = self.dot(q, k, v)
        return x
""",
            after="",
            advice="scaled_dot_product_attention at train.py:9",
        ),
    )
    LEAVES_ALONE = (
        Example(  # of two, one may mix the samples of a batch: (B, D)
            """
import torch

def mix(q, k, v):
    return (q @ k.transpose(-2, -1)).softmax(dim=-1) @ v  # <- attention

def across(q, k, v):
    return (q @ k.transpose(-2, -1)).softmax(dim=-1) @ v  # <- attention
""",
            "",
            {"dimensions": 3},
        ),
        Example(  # a hook on the dropout collects the weights
            """
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.1)

    def forward(self, q, k, v):
        weights = self.drop((q @ k.mT).softmax(dim=-1))
        return weights @ v  # <- attention
""",
            "",
            {"hooked": True},
        ),
        Example(
            """
import torch

def f(q, k, v):
    scores = torch.bmm(q, k.transpose(1, 2))
    del q, k
    return torch.bmm(scores.softmax(dim=-1), v)  # <- attention
""",
            "",
            {"dimensions": 3},
        ),
        Example(  # the weights are returned
            """
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.MultiheadAttention(64, 4, batch_first=True)

    def forward(self, x):
        h, weights = self.attn(x, x, x)  # <- attention=self.attn(x, x, x)
        return h, weights.mean(1)
""",
            "",
        ),
        *(
            Example(  # what makes the mask, or scales, goes with the scores; learned queries lack a dimension
                f"""
import torch

class Dot(torch.nn.Module):
    def forward(self, q, k, v):
        scores = {scores}
        {then}
        return scores.softmax(dim=-1) @ v  # <- attention=scores.softmax(dim=-1) @ v
""",
                "",
            )
            for scores, then in (
                (
                    "q @ k.transpose(-2, -1)",
                    "scores = scores.masked_fill(self.mask[:, :, : scores.size(-2)] == 0, float('-inf'))",
                ),
                ("q @ k.transpose(-2, -1)", "scores = scores.masked_fill(scores == 0, -1e9)"),
                ("q @ k.transpose(-2, -1)", "scores = scores + self.bias[:, : scores.size(-1)]"),
                ("self.queries @ k.transpose(1, 2)", "pass"),
            )
        ),
        Example(  # the weights are looked at
            """
from torch import nn

class Dot(nn.Module):
    def forward(self, q, k, v):
        weights = (q @ k.transpose(-2, -1)).softmax(dim=-1)
        return weights @ v, weights  # <- attention=weights @ v

dot = Dot()
out, seen = dot(q, k, v)
print(seen.max())
""",
            "",
        ),
        Example(  # which is sometimes something else
            """
from torch import nn

def attention(q, k, v, drop=None):
    if drop is None:
        drop = nn.Identity()
    weights = (q @ k.transpose(-2, -1)).softmax(dim=-1)
    weights = drop(weights)
    return weights @ v  # <- attention

class Heads(nn.Module):
    def __init__(self):
        self.drop = nn.Dropout(0.1)

    def forward(self, q, k, v):
        return attention(q, k, v, self.drop) + attention(q, k, v)
""",
            "",
        ),
        Example(  # somebody else looks at them
            """
from torch import nn

class Heads(nn.Module):
    def attend(self, q, k, v):
        weights = (q @ k.transpose(-2, -1)).softmax(dim=-1)
        return weights @ v, weights  # <- attention=weights @ v

    def forward(self, q, k, v):
        out, _ = self.attend(q, k, v)
        return out

def heat(model, x):
    return model.heads.attend(x, x, x)[1].mean(1)
""",
            "",
        ),
        Example(  # a dropout that may be anything
            """
def attention(q, k, v, drop):
    weights = drop((q @ k.transpose(-2, -1)).softmax(dim=-1))
    return weights @ v  # <- attention

attention(q, k, v, DropHead(0.1))
""",
            "",
        ),
        Example(  # the sum over keys of another tensor's letters
            """
import torch

def f(q, k, v):
    s = torch.einsum("bihd,bjhd->bhij", q, k)
    return torch.einsum("bhji,bjhd->bihd", s.softmax(dim=-1), v)  # <- attention
""",
            "",
        ),
        Example(  # the weights are returned
            "import torch\ndef f(q, k, v):\n    w = (q @ k.mT).softmax(dim=-1)\n    return w @ v, w  # <- attention\n",
            "",
        ),
        Example(  # over the queries
            "import torch\ndef f(q, k, v):\n    return (q @ k.mT).softmax(dim=-2) @ v  # <- attention\n", ""
        ),
        Example(  # a learned temperature
            """
import torch

class A(torch.nn.Module):
    def __init__(self):
        self.t = torch.nn.Parameter(torch.ones(()))

    def forward(self, q, k, v):
        return (q @ k.mT * self.t).softmax(dim=-1) @ v  # <- attention
""",
            "",
        ),
        Example(  # a mask, and heads that are part of the batch
            """
import torch

def f(q, k, v, mask):
    s = torch.bmm(q, k.transpose(1, 2)).masked_fill(mask, float("-inf"))
    return torch.bmm(torch.softmax(s, dim=-1), v)  # <- attention
""",
            "",
            {"dimensions": 3},
        ),
    )


# The numbers ------------------------------------------------------------------------------------------------------


def _gain(evidence: Evidence, scores: Counter[tuple[int, ...]], shares: dict[str, float]) -> Gain:
    """The steps with the least, the likely and the most left of the work on the scores.

    A GPU's products in float32 stay.
    """
    on_gpu = evidence.device_is_gpu
    large = get_pages_anew(evidence, scores)
    speedups = []
    for number, left in enumerate(_LEFT_ON_GPU if on_gpu else _LEFT_ON_CPU):
        operators = {name: 1.0 - share * (1.0 - left) for name, share in shares.items()}
        if on_gpu:
            kernels = {row.name: operators[row.operator] for row in evidence.kernels if row.operator in operators}
            if head_width(evidence, scores) <= _FEW_NUMBERS:
                rest = 1.0 - product_share(evidence, scores) * (1.0 - _PRODUCTS_LEFT_ON_GPU[number])
                batched = [row.name for row in evidence.kernels if row.operator == "aten::bmm"]
                kernels |= {name: rest for name in batched if format_of(name) == "narrow"}
            change = Change(kernel_scale=kernels)
        else:
            writing = _HEAD / (_HEAD + head_width(evidence, scores))
            products = product_share(evidence, scores)
            operators["aten::bmm"] = 1.0 - products * writing * (1.25, 1.0, 0.0)[number]
            if large:
                spent = {**shares, "aten::bmm": products}
                operators = {name: 1.0 - share * (1.0 - _LEFT_OF_LARGE[number]) for name, share in spent.items()}
            change = Change(operator_scale=operators)
        speedups.append(evidence.what_if(change).speedup[1])
    high, likely, low = speedups
    return Gain(max(low, high / WIDEST), max(likely, high / WIDEST), high, _BASIS)


def _told_eager(evidence: Evidence) -> Iterator[Site]:
    """Where the script has a model of the transformers library compute attention one operation at a time."""
    record, sources = evidence.record, Sources()
    files = (record.modules or model_files(evidence)) if record is not None else ()
    if record is not None and any(model.fuses_attention is False for model in record.models):
        return
    if any(READS.search(text_of(path)) for path in files):
        return
    for path in files:
        if KEYWORD in text_of(path):
            with contextlib.suppress(AdvisorError):  # what does not parse says nothing
                draft = Draft(sources.source(path))
                yield from (Site(path, line) for line in dict.fromkeys(draft.line(each) for each in told(draft)))


def _otherwise(drafts: Drafts, places: Sequence[Site]) -> Edit | Argument | Advice:
    """Have a model of the transformers library compute attention with the fused function."""
    text = f"Have the model compute attention with attn_implementation={FUSED}, at {', '.join(map(at, places))}."
    for site in places:
        draft = drafts[site.file]
        for value in (each for each in told(draft) if draft.line(each) == site.line):
            origin = origin_of(drafts, draft, value, EAGER)
            # What is called otherwise may be the backend of something else, too.
            line = origin.draft.lines[origin.draft.line(origin.node) - 1] if origin is not None else ""
            answer = give_value(drafts, draft, value, FUSED, EAGER) if re.search("att", line, re.IGNORECASE) else None
            if answer is not None and answer != EDITED:
                return by_option(drafts, draft, answer, FUSED, text)
            if answer is None:
                return Advice(text, "where the value comes from cannot be told from the source")
    return edited(drafts, text)


def _places(evidence: Evidence, find: Callable[[Draft], Iterable[cst.BaseExpression]]) -> Iterator[Site]:
    """Where the model's own classes, and functions beside them, write attention out: the products that `find` finds."""
    record = evidence.record
    own = {name: file for model in record.models for name, file in model.own.items()} if record is not None else {}
    sources = Sources()
    for path in dict.fromkeys(own.values()):
        try:
            draft = Draft(sources.source(path))
        except AdvisorError:
            continue
        lines = [
            max(_lines(draft, product))
            for product in find(draft)
            if (holder := draft.enclosing_class(product)) is None or own.get(holder.name.value) == path
        ]
        yield from (Site(path, line) for line in dict.fromkeys(lines))


def _fusible(draft: Draft) -> Iterator[cst.BaseExpression]:
    return (found.product for found in attentions(draft))


def _learned(draft: Draft) -> Iterator[cst.BaseExpression]:
    """The products of those whose mask is made of a parameter, or of what an embedding or a layer gives."""
    for found in attentions(draft):
        function = draft.function(found.product)
        assigned = [*draft.nodes(cst.Assign, function)] if function is not None else []
        code, seen = found.mask, set[str]()
        while names := {name for name in _NAME.findall(code) if name not in seen}:
            seen |= names
            given = (each for each in assigned for one in each.targets if draft.code(one.target) in names)
            code += "".join(f"\n{draft.code(each.value)}" for each in given)
        members = "|".join(map(re.escape, _MEMBER.findall(code)))
        if members and re.search(rf"self\.({members})\s*(:[^=\n]+)?=\s*{_LEARNS}", draft.source.text):
            yield found.product


def _lines(draft: Draft, product: cst.BaseExpression) -> range:
    where = draft.position(product)
    return range(where.start.line, where.end.line + 1)
