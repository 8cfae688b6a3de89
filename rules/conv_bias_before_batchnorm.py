"""Convolutions add a bias that the batch norm behind them takes away again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from advisor.evidence import Change
from advisor.evidence.gpu.biases import bias_kernels
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, once_fed

if TYPE_CHECKING:
    from advisor.edit import Sources
    from advisor.evidence import Evidence


class ConvBiasBeforeBatchnorm(Rule):
    """Convolutions have a bias, and the batch norm behind each of them subtracts it again with the mean.

    Batch norm takes the mean of each channel away, and with it whatever constant the convolution has added: the bias
    changes nothing, its gradient is zero but for rounding, and batch norm has a shift of its own. On a GPU the bias
    costs two kernels that read the whole output: one adds it, one sums its gradient. Reported where a trace of a
    training shows these kernels in front of a batch norm that counts its batches.

    When not: batch norm is frozen (it then subtracts a mean that it has kept); weights of a checkpoint that holds the
    biases are to be loaded (they would have to be dropped, and the running mean corrected by them); the model goes on
    to be used without its batch norm. Another number of parameters draws other random numbers: the same seed gives
    another run.

    Source: PyTorch performance tuning guide, "Disable bias for convolutions directly followed by a batch norm"; NVIDIA,
    "PyTorch Performance Tuning Guide" (GTC 2021), the same.
    """

    id = "conv-bias-before-batchnorm"
    title = "Leave out biases in front of batch norm"
    safety = Safety.BEHAVIOUR

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        # In inference batch norm subtracts a mean that it has kept, whatever the bias is.
        if not evidence.trains or not evidence.device_is_gpu or not evidence.breakdown.on_device or evidence.compiled:
            return
        found = bias_kernels(evidence.steps, evidence.device, evidence.nesting)
        if not len(found.rows):
            return
        scale = np.ones(len(evidence.trace.kernels))
        scale[found.rows] = 0.0
        estimate, said = once_fed(evidence, Change(kernel_scale=scale))
        gain = Gain.of(estimate)
        if not gain.worth_it:
            return
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{found.convolutions:.0f} convolution(s) a step add a bias in front of batch norm, in "
            f"{found.seconds * 1e3:.2f} ms of kernels." + said,
            gain=gain,
            evidence={
                "bias_kernels_s": found.seconds,
                "convolutions": found.convolutions,
                "step_s": evidence.step_s,
            },
        )

    def fix(self, finding: Finding, sources: Sources) -> Advice:
        return Advice(
            "Make each convolution whose output goes straight into batch norm with bias=False, as in "
            "nn.Conv2d(64, 128, 3, bias=False) in front of nn.BatchNorm2d(128).",
            "that nothing else reads those biases (an init loop, a checkpoint) only the model's author can tell",
        )

    EXAMPLES = (
        Example(
            before="net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))\n",
            after="",
            advice="bias=False",
        ),
    )
    LEAVES_ALONE = (Example("net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))\n", ""),)
