"""A Fourier transform of frames is multiplied out, with a matrix of sines and cosines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.evidence import Change
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, at, by_way_of, where
from advisor.shared.other_products import saved_s

if TYPE_CHECKING:
    from advisor.edit import Sources
    from advisor.evidence import Evidence
    from advisor.harness.layout import FourierProduct

_LEAST_GAIN = 1.10
# Seconds of two cores with AVX-512, for 32 signals cut into 30 to 10,000 frames of 256 to 2048 numbers: the product
# 9.5e-12 to 12e-12 of a multiplication with addition (a convolution 6e-12 to 10e-12); torch.stft 0.034e-9 to 0.05e-9 of
# a number and the logarithm of a frame's length, and its backward 0.27e-9 to 0.85e-9, mostly under 0.5e-9. Another
# machine is taken to be faster or slower in all of it.
_PRODUCT_S, _TRANSFORM_S, _BACKWARD_S, _CALL_S = 9.5e-12, 0.04e-9, 0.45e-9, 0.05e-3


class FourierProducts(Rule):
    """Frames of a signal are multiplied by all sines and cosines of a Fourier transform, one by one.

    A short-time Fourier transform written as ``frames @ basis``, or as ``F.conv1d`` with the basis as its filters (as
    ONNX exporters once needed it), takes n multiplications for each of the n waves of a frame; ``torch.stft`` and
    ``torch.fft.rfft`` take about log n, and their backward as well. Reported where a run has seen it: the matrix, or
    the filters, hold such waves, with or without a window, and nothing else.

    When not: the basis is trained (it is not reported then); an exporter or a device that knows no Fourier transform;
    only a few of the waves are needed. A basis that leaves the zeros out at a frame's ends, so that its waves have no
    whole number of turns in it, is not recognized. On a GPU it is not reported: there nobody has measured it.

    Source: Cooley and Tukey 1965, "An Algorithm for the Machine Calculation of Complex Fourier Series"; PyTorch docs,
    ``torch.stft``. The gain is by the time of the products in the run, and by what transforms took beside them on two
    cores.
    """

    id = "fourier-product"
    title = "Let torch.stft or torch.fft compute the Fourier transform"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record, step_s = evidence.record, evidence.step_s
        if record is None or not record.fourier_products or evidence.device_is_gpu or evidence.compiled or not step_s:
            return
        lines = [each for each in record.fourier_products if _saved_s(each) > 0]
        now = sum(each.seconds + each.differentiated_s for each in lines)
        saved = sum(map(_saved_s, lines))
        if not lines:
            return
        gain = Gain.of(evidence.what_if(Change(remove_host_s=min(saved, now))))
        if gain.likely < _LEAST_GAIN:
            return
        longest = lines[0]
        way = by_way_of(longest.site, [longest.site, *longest.called_from])
        others = f", and at {len(lines) - 1} more" if len(lines) > 1 else ""
        how = "convolves a signal with" if longest.convolves else "multiplies frames by"
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{min(now / step_s, 1.0):.0%} of the step {how} the {longest.waves:,} sines and cosines of a "
            f"Fourier transform of length {longest.length:,}, at {at(longest.site)}{way}{others}.",
            gain=gain,
            evidence={
                "length": longest.length,
                "waves": longest.waves,
                "fourier_products_s": now,
                "seconds_saved": saved,
                "step_s": step_s,
            },
            site=longest.site,
        )

    def fix(self, finding: Finding, sources: Sources) -> Advice:
        return Advice(
            f"Compute what {where(finding.site)} gives with torch.stft(signal, n_fft, hop_length, window=window, "
            "center=…, return_complex=True), for signals of one or two dimensions, or with torch.fft.rfft(frames * "
            "window): .real is the product with the cosines, .imag minus the one with the sines. With n_fft, window "
            "and padding as they are in the basis (center=True, the default, pads by itself) it is the same, rounding "
            "aside.",
            "how its frames are cut, padded and laid out, and what its waves are scaled by, only its author can tell",
        )

    EXAMPLES = (
        Example(
            before="real, imag = (frames @ self.basis).chunk(2, dim=-1)  # <-\n",
            after="",
            advice="torch.stft(signal",
        ),
    )
    LEAVES_ALONE = (Example("spec = torch.stft(wave, 512, 128, return_complex=True)  # <-\n", ""),)


def _saved_s(line: FourierProduct) -> float:
    """Seconds of a step that transforms would save of a line; negative where they take longer."""
    forward, backward = (each * line.transformed + _CALL_S * line.calls for each in (_TRANSFORM_S, _BACKWARD_S))
    return saved_s(line, _PRODUCT_S * line.multiplied, forward, backward)
