"""float32 matrix products run off the Tensor Cores although TF32 is there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import libcst as cst

from advisor.edit import Drafts
from advisor.edit.guard import conditional
from advisor.edit.locate import last_name
from advisor.edit.names import after_imports, ensure_name, full_name
from advisor.edit.values import give_value
from advisor.evidence import Change
from advisor.evidence.matrix import format_of
from advisor.fixes import edited
from advisor.rule import Advice, Argument, Example, Finding, Gain, Rule, Safety, once_fed

if TYPE_CHECKING:
    from advisor.edit import Draft, Edit, Sources
    from advisor.evidence import Evidence

# A TF32 product's time over the float32 one's. The A100's peaks are 19.5 and 156 TFLOP/s (data sheet); PyTorch's
# CUDA notes measure 7x on a 10240-square product; smaller ones are held back by memory, so less is expected.
_SCALE = 0.35
# Where a GPU has as many TF32 as float32 operations a second (GeForce, A10G, L40) only what float32 does not reach of
# its peak can be gained: a product reaches some 20 of an A10's 31.2 TFLOP/s (NVIDIA/cutlass, issue 941), cuBLAS 29.2 of
# an RTX 4070 Ti's 35.5 (Yinghan-Li/YHs_Sample, issue 4).
_REACHED = 0.7
# Those of GeForce have these compute capabilities, which professional cards share with them.
_OF_GEFORCE = ((8, 6), (8, 9), (12, 0), (12, 1))
_LEAST_SHARE = 0.05  # of kernel time: less cannot make the step 3 % faster


class Tf32Matmul(Rule):
    """Matrix products in float32 run on the ordinary cores of a GPU that has TF32 Tensor Cores.

    From compute capability 8.0 (Ampere) on, Tensor Cores multiply float32 matrices with inputs rounded to 10 bits of
    mantissa (TF32) and float32 sums, several times faster. PyTorch uses that for convolutions by default, for matrix
    products only after ``torch.set_float32_matmul_precision("high")``. One line, no change of dtypes.

    When not: the computation needs all of float32 (solvers, long recurrences, double differences); the run already
    uses autocast, whose products are on the Tensor Cores anyway; ``NVIDIA_TF32_OVERRIDE=0`` is set, which no script
    can overrule.

    Source: PyTorch notes, "CUDA semantics: TensorFloat-32 (TF32) on Ampere (and later) devices"; NVIDIA, "Accelerating
    AI Training with NVIDIA TF32 Tensor Cores" on the variable.
    """

    id = "tf32-matmul"
    title = "Let float32 matrix products use TF32"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record, capability = evidence.record, evidence.capability
        if capability is None or capability < (8, 0):
            return  # AMD's devices have none: their table of capabilities is another one
        if record is not None and record.environment.variables.get("NVIDIA_TF32_OVERRIDE") == "0":
            return
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
        calls = [each for each in draft.nodes(cst.Call) if last_name(draft, each) == "set_float32_matmul_precision"]
        if calls:
            return _as_the_script_sets_it(drafts, draft, calls, text)
        if "allow_tf32" in draft.source.text or "fp32_precision" in draft.source.text:
            return Advice(text, "the script sets the precision itself, in another way")
        if not after_imports(draft, f'{ensure_name(draft, "torch")}.set_float32_matmul_precision("high")'):
            return Advice(text, "the script imports nothing at its top level")
        return edited(drafts, text)

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
        Example(
            before="""
import torch

PRECISION = "highest"

def main():
    torch.set_float32_matmul_precision(PRECISION)
""",
            after="""
import torch

PRECISION = "high"

def main():
    torch.set_float32_matmul_precision(PRECISION)
""",
        ),
        Example(  # an option decides, whose default the run had
            before="""
import torch

parser.add_argument("--precision", default="highest")
args = parser.parse_args()
if args.precision:
    torch.set_float32_matmul_precision(args.precision)
""",
            after="",
            options={"--precision": "high"},
        ),
    )
    LEAVES_ALONE = (
        Example("import torch\ntorch.backends.cuda.matmul.allow_tf32 = False\n", ""),
        Example(  # in that branch "highest" is what was asked for
            "import torch\nif args.strict:\n    torch.set_float32_matmul_precision('highest')\n", ""
        ),
        Example("import torch\nif args.fast:\n    torch.set_float32_matmul_precision('medium')\n", ""),
        Example("import torch\ntorch.set_float32_matmul_precision(pick(args))\n", ""),
    )


def _as_the_script_sets_it(
    drafts: Drafts, draft: Draft, calls: Sequence[cst.Call], text: str
) -> Edit | Argument | Advice:
    """Change what the script's own calls say, all that say "highest" as the run did, or the option that says it.

    A call in a branch is for those who ask for its precision; only an option may decide there, which is asked for, too.
    """
    itself = Advice(text, "the script decides on the precision itself")
    options: dict[str, str] = {}
    for call in calls:
        if len(call.args) != 1 or full_name(draft, call.func) != "torch.set_float32_matmul_precision":
            return itself
        option = give_value(drafts, draft, call.args[0].value, '"high"', "highest")
        if option is None or (not option and conditional(draft, call)):
            return itself
        options |= {option: "high"} if option else {}
    edit = drafts.edit(text)
    if options:
        return Argument(options) if edit is None else Advice(text, "an option and the source both say so")
    return edit or itself


def _scale(evidence: Evidence) -> float:
    """A TF32 product's time over the float32 one's, on this device."""
    if evidence.peak is None and evidence.capability in _OF_GEFORCE:
        return _REACHED
    single, tf32 = (evidence.peak.of(each) if evidence.peak else None for each in ("float32", "tf32"))
    return max(_SCALE, min(1.0, _REACHED * single / tf32)) if single and tf32 else _SCALE
