"""Signals are convolved with long kernels directly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from advisor.edit import Draft
from advisor.edit.finding import only_line
from advisor.edit.names import full_name
from advisor.evidence.algebra.long_filters import LongFilter, long_filters
from advisor.evidence.worked import of_tensors, spent_s, without
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, at

if TYPE_CHECKING:
    from advisor.edit import Sources
    from advisor.evidence import Evidence


class FftConvolution(Rule):
    """``F.conv1d`` with a kernel of hundreds of taps or more multiplies all of them for every sample of the signal.

    Through Fourier transforms a signal of L samples and a kernel of K take about (L + K)·log(L + K) operations instead
    of L·K, and the backward likewise: rooms' impulse responses, matched filters, learned long filters. Reported where
    the convolutions of the run took at least twice as long as transforms of their sizes do.

    When not: the kernel is short, or each filter sums over many channels; or there is a stride or a dilation. Where
    numbers of very different sizes meet, the transform's rounding error is that of the largest.

    Source: Press et al., Numerical Recipes, "Convolution and Deconvolution Using the FFT". The gain is what the
    convolutions took in the run, less the transforms by a measured rate (`advisor/evidence/algebra/long_filters.py`).
    """

    id = "fft-convolution"
    title = "Convolve with long kernels through Fourier transforms"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        if evidence.compiled or evidence.device_is_gpu or not evidence.step_s:
            return
        counts, shares, comes = long_filters(evidence)
        counts = {each: times for each, times in counts.items() if times >= 0.5}
        if not counts:
            return
        shares = of_tensors(shares)
        gain = Gain.of(evidence.what_if(without(evidence, shares, comes)))
        if not gain.worth_it:
            return
        share = spent_s(evidence, shares) / (evidence.trace_step_s or 1.0)
        most = max(counts, key=lambda each: each.length * each.taps * each.filters * each.channels)
        site = only_line(most.function, lambda draft: _lines(draft, most))
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{share:.0%} of the step convolves signals of {most.length:,} samples with kernels of "
            f"{most.taps:,} taps directly at {at(site)}: through Fourier transforms that takes "
            f"{comes * 1e3:.1f} ms.",
            gain=gain,
            evidence={
                "convolution_share": share,
                "transforms_s": comes,
                "taps": most.taps,
                "samples": most.length,
                "convolutions_per_step": sum(counts.values()),
                "step_s": evidence.step_s,
            },
            site=site,
            parameters={
                "padding": most.padding,
                "taps": most.taps,
                "channels": most.channels,
                "groups": most.groups,
                "filters": most.filters,
            },
        )

    def fix(self, finding: Finding, sources: Sources) -> Advice:
        padding, taps, channels, groups, filters = (
            finding.parameters.get(each) for each in ("padding", "taps", "channels", "groups", "filters")
        )
        same = isinstance(padding, int) and isinstance(taps, int) and padding == taps // 2
        left = "k // 2" if same else str(padding)
        if channels == 1 and groups in (1, filters):
            product = "torch.fft.rfft(x, n) * torch.fft.rfft(weight.flip(-1), n).squeeze(1)"
        elif groups == 1:
            product = 'torch.einsum("bif,oif->bof", torch.fft.rfft(x, n), torch.fft.rfft(weight.flip(-1), n))'
        else:
            product = (
                f'torch.einsum("bgif,goif->bgof", torch.fft.rfft(x, n).unflatten(1, ({groups}, {channels})), '
                f"torch.fft.rfft(weight.flip(-1), n).unflatten(0, ({groups}, -1))).flatten(1, 2)"
            )
        return Advice(
            f"Convolve through Fourier transforms at {at(finding.site)}: with t, k = x.shape[-1], weight.shape[-1], "
            f"p = {left} (the padding) and n = 1 << (t + k - 2).bit_length(), spectrum = {product}, the result is "
            "torch.fft.irfft(spectrum, n)[..., k - 1 - p : t + p], plus the bias, if there is one (bias[:, None]).",
            "where the kernel and its padding come from only their author can tell",
        )

    EXAMPLES = (
        Example(
            before="import torch.nn.functional as F\n\ny = F.conv1d(x, ir, padding=2000)  # <-\n",
            after="",
            parameters={"padding": 2000, "taps": 4001, "channels": 1, "groups": 1, "filters": 1},
            advice="torch.fft.irfft(spectrum, n)[..., k - 1 - p : t + p]",
        ),
        Example(
            before="import torch.nn.functional as F\n\ny = F.conv1d(x, weight, groups=2)  # <-\n",
            after="",
            parameters={"padding": 0, "taps": 900, "channels": 2, "groups": 2, "filters": 4},
            advice="unflatten(1, (2, 2))",
        ),
    )
    LEAVES_ALONE = (Example("y = F.conv1d(x, weight, stride=4)  # <-\n", ""),)


def _lines(draft: Draft, found: LongFilter) -> list[int]:
    """The lines that convolve, in the function that begins there."""
    calls = [each for each in draft.nodes(cst.Call) if draft.function_line(each) == found.function[1]]
    named = ("torch.nn.functional.conv1d", "torch.conv1d")
    return [draft.line(each) for each in calls if full_name(draft, each.func) in named]
