"""float32 matrix products run off the Tensor Cores although TF32 is there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from advisor.edit import Drafts
from advisor.edit.locate import last_name
from advisor.edit.names import after_imports, ensure_name, full_name
from advisor.evidence import Change
from advisor.evidence.matrix import format_of
from advisor.rule import Advice, Argument, Example, Finding, Gain, Rule, Safety, once_fed

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence

# A TF32 product's time over the float32 one's. The A100's peaks are 19.5 and 156 TFLOP/s (data sheet); PyTorch's
# CUDA notes measure 7x on a 10240-square product; smaller ones are held back by memory, so less is expected.
_SCALE = 0.35
# Where a GPU has as many TF32 as float32 operations a second (GeForce, A10G, L40) only what float32 does not reach of
# its peak can be gained: a product reaches some 20 of an A10's 31.2 TFLOP/s (NVIDIA/cutlass, issue 941), cuBLAS 29.2 of
# an RTX 4070 Ti's 35.5 (Yinghan-Li/YHs_Sample, issue 4).
_REACHED = 0.7
_LEAST_SHARE = 0.05  # of kernel time: less cannot make the step 3 % faster


class Tf32Matmul(Rule):
    """Matrix products in float32 run on the ordinary cores of a GPU that has TF32 Tensor Cores.

    From compute capability 8.0 (Ampere) on, Tensor Cores multiply float32 matrices with inputs rounded to 10 bits of
    mantissa (TF32) and float32 sums, several times faster. PyTorch uses that for convolutions by default, for matrix
    products only after ``torch.set_float32_matmul_precision("high")``. One line, no change of dtypes.

    When not: the computation needs all of float32 (solvers, long recurrences, double differences); the run already
    uses autocast, whose products are on the Tensor Cores anyway.

    Source: PyTorch notes, "CUDA semantics: TensorFloat-32 (TF32) on Ampere (and later) devices".
    """

    id = "tf32-matmul"
    title = "Let float32 matrix products use TF32"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record, capability = evidence.record, evidence.capability
        if capability is None or capability < (8, 0):
            return  # AMD's devices have none: their table of capabilities is another one
        # In a bare trace the kernels say it: float32 products off the Tensor Cores are products without TF32.
        precision = record.environment.matmul_precision if record is not None else ""
        if precision not in ("highest", "") or (record is not None and any(model.autocast for model in record.models)):
            return
        products = [row for row in evidence.kernels if row.kind == "gemm"]
        off = [row for row in products if row.matrix == "off" and format_of(row.name) == "float32"]
        share = sum(row.share for row in off)
        narrow = sum(row.share for row in products if format_of(row.name) == "narrow")
        if share < _LEAST_SHARE or (record is None and narrow > share):
            return  # autocast is on, or the weights are in 16 bits: what is left is meant to be float32
        estimate, fed = once_fed(
            evidence, Change(kernel_scale=dict.fromkeys((row.name for row in off), _scale(evidence)))
        )
        gain = Gain.of(estimate)
        if gain.worth_it:
            yield Finding(
                rule=self.id,
                title=self.title,
                summary=f"{share:.0%} of the kernels' time is float32 matrix products off the Tensor Cores." + fed,
                gain=gain,
                evidence={
                    "matmul_off_tensor_cores_share": share,
                    "matmul_precision": precision,
                    "capability": ".".join(map(str, capability)),
                },
                parameters={"script": evidence.script},
            )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        text = 'Call torch.set_float32_matmul_precision("high") before the first step.'
        script = str(finding.parameters.get("script") or "")
        if not script or not sources.has(script):
            return Advice(text, "the script's file is unknown")
        drafts = Drafts(sources)
        draft = drafts[script]
        for call in draft.nodes(cst.Call):
            if last_name(draft, call) == "set_float32_matmul_precision" and len(call.args) == 1:
                if full_name(draft, call.func) != "torch.set_float32_matmul_precision":
                    return Advice(text, "the script sets the precision itself")
                draft.replace(call.args[0].value, '"high"')
                return drafts.edit(text) or Advice(text, "the script sets the precision itself")
        if "allow_tf32" in draft.source.text or "fp32_precision" in draft.source.text:
            return Advice(text, "the script sets the precision itself, in another way")
        if not after_imports(draft, f'{ensure_name(draft, "torch")}.set_float32_matmul_precision("high")'):
            return Advice(text, "the script imports nothing at its top level")
        return drafts.edit(text) or Advice(text, "the file is not the script's own")

    EXAMPLES = (
        Example(
            before="""
import torch
import torch.nn as nn

model = nn.Linear(4096, 4096).cuda()
""",
            after="""
import torch
import torch.nn as nn

torch.set_float32_matmul_precision("high")

model = nn.Linear(4096, 4096).cuda()
""",
        ),
        Example(
            before="""
import argparse

import torch as th


def main():
    pass
""",
            after="""
import argparse

import torch as th

th.set_float32_matmul_precision("high")


def main():
    pass
""",
        ),
        Example(
            before='import torch\ntorch.set_float32_matmul_precision("highest")  # exact\n',
            after='import torch\ntorch.set_float32_matmul_precision("high")  # exact\n',
        ),
    )
    LEAVES_ALONE = (Example("import torch\ntorch.backends.cuda.matmul.allow_tf32 = False\n", ""),)


def _scale(evidence: Evidence) -> float:
    """A TF32 product's time over the float32 one's, on this device."""
    single, tf32 = (evidence.peak.of(each) if evidence.peak else None for each in ("float32", "tf32"))
    return max(_SCALE, min(1.0, _REACHED * single / tf32)) if single and tf32 else _SCALE
