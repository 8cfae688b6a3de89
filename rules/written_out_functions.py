"""A norm or an activation is written out, for which torch has one function."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from advisor.edit import Draft, Drafts, Sources
from advisor.edit.algebra.written_out import WrittenOut, call_instead, written_out
from advisor.edit.finding import found_in, only_line
from advisor.edit.gradients.derivatives import differentiates_twice
from advisor.edit.sources import text_of
from advisor.evidence.algebra.written_out import Written, written_out_functions
from advisor.evidence.by_function import Function
from advisor.evidence.shapes import Shape
from advisor.evidence.worked import of_tensors, spent_s, without
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
    file_list,
    model_files,
    site_list,
    where,
)

if TYPE_CHECKING:
    from advisor.edit import Edit
    from advisor.evidence import Evidence

_NAMES = {
    "layer_norm": "torch.nn.functional.layer_norm",
    "group_norm": "torch.nn.functional.group_norm",
    "softmax": "torch.softmax",
    "gelu": "torch.nn.functional.gelu",
    "gelu_tanh": 'torch.nn.functional.gelu(…, approximate="tanh")',
    "silu": "torch.nn.functional.silu",
}


class WrittenOutFunctions(Rule):
    """A layer norm, GELU, SiLU or softmax that is written out takes a pass over memory for each of its operations.

    ``(x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + eps)``, as a well-known tutorial's transformer has it,
    ``0.5 * x * (1 + torch.tanh(…))`` of the first GPT and BERT, ``x * torch.sigmoid(x)``: two to ten operators, each of
    which reads and writes all numbers, keeps its result for the backward and has a backward of its own. torch's own
    function is one pass each way, and to rounding the same: a layer norm takes a tenth of the time, GELU a third. That
    the text computes just that is found out by computing it, with a few numbers; the deviation of a sample (``std``) is
    the one that a layer norm divides by, times a factor, which goes to the weight. An epsilon of a millionth or less
    beside the deviation, and not under the root, becomes its square there: of a row whose numbers are as small, more
    than the last digits are others.

    When not: the formula is what is being studied, and about to be changed; it is differentiated twice; what it is
    given, or gives, is written to in place behind it, for torch's own functions keep that for the backward.

    Source: PyTorch docs, ``torch.nn.functional.layer_norm``, ``gelu``, ``silu``; NVIDIA's "PyTorch Performance Tuning
    Guide", "Fuse pointwise operations". What torch's own takes is measured (`advisor/evidence/algebra/written_out.py`).
    """

    id = "written-out-functions"
    title = "Call torch's own function for what is written out"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        if evidence.compiled or evidence.device_is_gpu or not evidence.step_s:
            return
        counts, shares = written_out_functions(evidence, _forms)
        files = {*model_files(evidence), *(each.function[0] for each in counts)}
        if not counts or any(differentiates_twice(text_of(path)) for path in files):
            return  # the backward of torch's own, to be differentiated, is as many operators
        shares = of_tensors(shares)
        gain = Gain.of(evidence.what_if(without(evidence, shares)))
        if not gain.worth_it:
            return
        saved = spent_s(evidence, shares) / (evidence.trace_step_s or 1.0)
        most = max(counts, key=lambda each: each.numbers * counts[each])
        site = only_line(most.function, lambda draft: _lines(draft, most))
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{at(site)} writes out {_NAMES[most.kind]}, {counts[most]:g} times in a step: {saved:.0%} of the "
            "step that one pass over the numbers takes less.",
            gain=gain,
            evidence={
                "saved_share": saved,
                "calls_per_step": sum(counts.values()),
                "kinds": len({each.kind for each in counts}),
                "functions": len({each.function for each in counts}),
                "step_s": evidence.step_s,
            },
            site=site,
            parameters={
                "functions": tuple(Site(*each.function) for each in counts),
                "shapes": tuple(_text(each.uses) for each in counts),
                "name": _NAMES[most.kind],
                "files": tuple(sorted(files)),
            },
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        text = f"Call {finding.parameters.get('name', 'it')} {where(finding.site)}"
        functions, shapes = site_list(finding, "functions"), finding.parameters.get("shapes")
        if not functions or not isinstance(shapes, tuple):
            return Advice(f"{text}.", "its place is unknown")
        given = {(site.file, site.line): str(each) for site, each in zip(functions, shapes, strict=False)}
        text += f", and the like in {len(given) - 1} more" if len(given) > 1 else ""
        drafts = Drafts(sources)
        files = dict.fromkeys((*filter(sources.has, file_list(finding, "files")), *(file for file, _ in given)))
        for (file, line), each in given.items():
            for found in written_out(drafts[file], line, _shapes(each)):
                if why := call_instead(drafts[file], found, [drafts[path] for path in files if path != file]):
                    return Advice(f"{text}.", why)
        return edited(drafts, f"{text}.")

    EXAMPLES = (
        Example(
            before="""
import torch
from torch import nn

class LayerNorm(nn.Module):
    def __init__(self, features, eps=1e-6):
        super().__init__()
        self.a = nn.Parameter(torch.ones(features))
        self.b = nn.Parameter(torch.zeros(features))
        self.eps = eps

    def forward(self, x):  # <- functions
        mean = x.mean(-1, keepdim=True)
        std = x.std(-1, keepdim=True)
        return self.a * (x - mean) / (std + self.eps) + self.b
""",
            after="""
import torch
from torch import nn

class LayerNorm(nn.Module):
    def __init__(self, features, eps=1e-6):
        super().__init__()
        self.a = nn.Parameter(torch.ones(features))
        self.b = nn.Parameter(torch.zeros(features))
        self.eps = eps

    def forward(self, x):
        return nn.functional.layer_norm(x, x.shape[-1:], self.a * (1 - 1 / x.shape[-1]) ** 0.5, self.b, self.eps ** 2)
""",
            parameters={"shapes": ("8x32x64 8x32x1 64 8x32x64 64",)},
        ),
        Example(
            before="""
import math
import torch

def gelu(x):  # <- functions
    cdf = 0.5 * (1.0 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))
    return x * cdf
""",
            after="""
import math
import torch

def gelu(x):
    return torch.nn.functional.gelu(x, approximate="tanh")
""",
            parameters={"shapes": ("8x32x256",)},
        ),
        Example(
            before="""
import torch.nn.functional as F
from torch import nn

class Block(nn.Module):
    def forward(self, x):  # <- functions
        h = self.conv(x)
        h = h * h.sigmoid()
        return x + F.dropout(h, 0.1)
""",
            after="""
import torch.nn.functional as F
from torch import nn

class Block(nn.Module):
    def forward(self, x):
        h = self.conv(x)
        h = F.silu(h)
        return x + F.dropout(h, 0.1)
""",
            parameters={"shapes": ("8x16x32x32",)},
        ),
        Example(
            before="""
import torch
from torch import nn

class GlobalNorm(nn.Module):
    def forward(self, x):  # <- functions
        mean = x.mean(dim=(1, 2), keepdim=True)
        var = ((x - mean) ** 2).mean(dim=(1, 2), keepdim=True)
        return self.gamma * (x - mean) / torch.sqrt(var + 1e-8) + self.beta
""",
            after="""
import torch
from torch import nn

class GlobalNorm(nn.Module):
    def forward(self, x):
        return nn.functional.group_norm(x, 1, self.gamma.flatten(), self.beta.flatten(), 1e-8)
""",
            parameters={"shapes": ("4x128x500 4x1x1 1x128x1 4x128x500 1x128x1",)},
        ),
    )
    LEAVES_ALONE = (
        Example("def f(x):  # <- functions\n    return x * (1.702 * x).sigmoid()\n", "", {"shapes": ("8x32",)}),
        Example("def f(x, y):  # <- functions\n    return x * y.sigmoid()\n", "", {"shapes": ("8x32",)}),
        Example(
            "def f(x):  # <- functions\n    return x * ((x * x).mean(-1, keepdim=True) + 1e-6).rsqrt()\n",
            "",
            {"shapes": ("8x32x64 8x32x1 8x32x64",)},
        ),
        Example(
            "def f(x):  # <- functions\n    x -= x.mean(-1, keepdim=True)\n"
            "    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()\n",
            "",
            {"shapes": ("8x32x64 8x32x1 8x32x64",)},
        ),
        Example(
            "def f(x):  # <- functions\n    return (x - x.mean(-1, keepdim=True).detach()) / x.std(-1, keepdim=True)\n",
            "",
            {"shapes": ("8x32x64 8x32x1 8x32x64",)},
        ),
    )


def _text(uses: Iterable[tuple[Shape, ...]]) -> str:
    """Shapes by kind of call as ``"8x64x256 256; 8x32x256 256"``, for the findings' file."""
    return "; ".join(" ".join("x".join(map(str, shape)) for shape in each if shape) for each in sorted(uses))


def _shapes(text: str) -> list[tuple[Shape, ...]]:
    return [tuple(tuple(map(int, shape.split("x"))) for shape in each.split()) for each in text.split(";")]


def _forms(function: Function, uses: frozenset[tuple[Shape, ...]]) -> list[WrittenOut]:
    return found_in(function, lambda draft: written_out(draft, function[1], uses))


def _lines(draft: Draft, most: Written) -> list[int]:
    found = written_out(draft, most.function[1], most.uses)
    return [draft.line(each.node) for each in found if each.kind == most.kind]
