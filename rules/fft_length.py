"""Fourier transforms are of a length with a large prime factor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from advisor.edit import Draft, Drafts, Sources
from advisor.edit.algebra.fft_lengths import convolution_length, lengthen
from advisor.edit.finding import only_line
from advisor.edit.names import full_name
from advisor.evidence.algebra.fft_lengths import SlowTransform, fast_length, largest_factor, slow_transforms
from advisor.evidence.worked import spent_s, without
from advisor.fixes import edited
from advisor.harness.layout import Site
from advisor.rule import Advice, Argument, Example, Finding, Gain, Rule, Safety, at, site_list, where

if TYPE_CHECKING:
    from advisor.edit import Edit
    from advisor.evidence import Evidence

_SAVED_ON_GPU = 0.75  # of these transforms: a prior, no GPU has been asked
_BASIS = "prior: transforms of a length that has small prime factors alone"


class FftLength(Rule):
    """Fourier transforms are of a length with a large prime factor, and take five to twenty times as long for it.

    Libraries have fast kernels for lengths of small prime factors, 2, 3, 5 and 7, and do all others by transforms of at
    least twice the length, several of them. ``n = a + b - 1``, which two signals make when one is convolved with the
    other, is a prime as often as not (4096 + 4096 - 1 is): any larger ``n`` gives the same numbers, with zeros behind
    them, and the next power of two is one of the fastest.

    When not: the spectrum itself is used, whose frequencies are those of the length; or the signal is taken to be
    periodic, where what is added would change it. Sums are rounded differently.

    Source: NVIDIA, cuFFT documentation, accuracy and performance: lengths of the form 2^a 3^b 5^c 7^d have optimized
    kernels; the gain on a CPU is measured (`advisor/evidence/algebra/fft_lengths.py`).
    """

    id = "fft-length"
    title = "Transform over a length of small prime factors"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        if evidence.compiled or not evidence.step_s:
            return
        counts, shares, saved = slow_transforms(evidence)
        counts = {each: times for each, times in counts.items() if times >= 0.5}
        if not counts:
            return
        if evidence.device_is_gpu:
            saved = {name: share * _SAVED_ON_GPU for name, share in shares.items()}
            gain = Gain.prior(evidence.what_if(without(evidence, saved)), _BASIS)
        else:
            gain = Gain.of(evidence.what_if(without(evidence, saved)))
        if not gain.worth_it:
            return
        share = spent_s(evidence, saved) / (evidence.trace_step_s or 1.0)
        most = max(counts, key=lambda each: each.length * counts[each])
        site, better = _first_of(most), fast_length(most.length)
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"Fourier transforms at {at(site)} are of length {most.length}, whose largest prime factor is "
            f"{largest_factor(most.length)}: {share:.0%} of the step that those of length {better} would not take.",
            gain=gain,
            evidence={
                "saved_share": share,
                "length": most.length,
                "largest_factor": largest_factor(most.length),
                "step_s": evidence.step_s,
            },
            site=site,
            parameters={
                "transforms": (site,),
                "function": most.function[1],
                "length": most.length,
                "alone": len({each.function for each in counts}) == 1,
            },
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        (site,) = site_list(finding, "transforms") or (None,)
        length = finding.parameters.get("length")
        better = f"{fast_length(length)} instead of {length}" if isinstance(length, int) else "the next power of two"
        text = f"Give the Fourier transforms {where(site)} a length n of small prime factors, {better}, "
        text += "and take of the result what was taken before."
        if site is None or not finding.parameters.get("alone", True):
            return Advice(text, "more than one function transforms over such lengths")
        drafts, function = Drafts(sources), finding.parameters.get("function")
        draft = drafts[site.file]
        value = convolution_length(draft, function if isinstance(function, int) else 0)
        if value is None:
            return Advice(text, "whether what is added would change the result cannot be told from the source")
        lengthen(draft, value)
        return edited(drafts, text)

    EXAMPLES = (
        Example(
            before="""
import torch

def convolve(u, k):
    length = u.shape[-1]
    n = length + k.shape[-1] - 1
    spectrum = torch.fft.rfft(u, n=n) * torch.fft.rfft(k, n=n)  # <- transforms
    return torch.fft.irfft(spectrum, n=n)[..., :length]
""",
            after="""
import torch

def convolve(u, k):
    length = u.shape[-1]
    n = 1 << (length + k.shape[-1] - 2).bit_length()
    spectrum = torch.fft.rfft(u, n=n) * torch.fft.rfft(k, n=n)
    return torch.fft.irfft(spectrum, n=n)[..., :length]
""",
            parameters={"function": 3, "length": 8191},
        ),
        Example(
            before="""
from torch import fft

def spectrum(x):
    return fft.rfft(x).abs()  # <- transforms
""",
            after="",
            parameters={"function": 3, "length": 4093},
            advice="4096 instead of 4093",
        ),
    )
    LEAVES_ALONE = (
        *(
            Example(
                f"import torch\n\ndef f(x, k, a):\n    {length}\n    s = torch.fft.rfft(x, n) * torch.fft.rfft(k, n)"
                f"{more}\n    return torch.fft.irfft(s, n)[..., :{end}]  # <- transforms\n",
                "",
                {"function": 3, "length": 4093},
            )
            for length, more, end in (
                ("n = x.shape[-1] + a - 1", "", "x.shape[-1]"),  # maybe shorter, and goes around
                ("n = x.shape[-1] + 1 - 1", "", "x.shape[-1]"),
                ("n = x.shape[-1] + k.shape[-1] - 1", "", "a"),  # maybe more than there is
                ("n = x.shape[-1] + k.shape[-1] - 1", " * torch.fft.rfft(k, n)", "x.shape[-1]"),
                ("n = x.shape[-1] + k.shape[-1] - 1\n    x = pad(x)", "", "x.shape[-1]"),
            )
        ),
        Example(
            "import torch\nn = a + b - 1\n"
            "y = torch.fft.irfft(torch.fft.rfft(x, n), n)[..., : a + b]  # <- transforms\n",
            "",
        ),
        Example(
            "import torch\nn = a + b - 1\n"
            "y = torch.fft.irfft(torch.fft.rfft(x, n, norm='ortho'), n, norm='ortho')[..., :a]  # <- transforms\n",
            "",
        ),
        Example(
            "import torch\nn = a + b - 1\n"
            "y = torch.fft.irfft(torch.fft.rfft(x, n) * known, n)[..., :a]  # <- transforms\n",
            "",
        ),
        Example(
            "import torch\nn = a + b - 1\ns = torch.fft.rfft(x, n) * torch.fft.rfft(k, n).conj()\n"
            "y = torch.fft.irfft(s / s.abs(), n)[..., :a]  # <- transforms\n",
            "",
        ),
        Example("import torch\nn = a + b - 1\ny = torch.fft.irfft(torch.fft.rfft(x, n), n)  # <- transforms\n", ""),
        Example(
            "import torch\nn = a + b\ny = torch.fft.irfft(torch.fft.rfft(x, n), n)[..., :a]  # <- transforms\n", ""
        ),
        Example(
            "import torch\nn = a + b - 1\ny = torch.fft.irfft(torch.fft.rfft(x, n), n)[..., :a] / n  # <- transforms\n",
            "",
        ),
        Example(
            "import torch\nn = a + b - 1\ny = torch.fft.irfft(torch.fft.rfft(x), n)[..., :a]  # <- transforms\n", ""
        ),
        Example(
            "import torch\nn = a + b - 1\ny = torch.fft.irfft(torch.fft.rfft(x, n), n)[..., -a:]  # <- transforms\n", ""
        ),
    )


def _first_of(found: SlowTransform) -> Site:
    """The first transform in the function; where it begins, if it has none by its name."""

    def first(draft: Draft) -> list[int]:
        calls = [each for each in draft.nodes(cst.Call) if full_name(draft, each.func).startswith("torch.fft.")]
        return sorted(draft.line(each) for each in calls if draft.function_line(each) == found.function[1])[:1]

    return only_line(found.function, first)
