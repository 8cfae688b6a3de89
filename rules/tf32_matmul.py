"""float32 matrix products run off the Tensor Cores although TF32 is there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst
import libcst.matchers as m

from advisor.edit import Drafts
from advisor.edit.calls import argument
from advisor.edit.loading.guard import conditional
from advisor.edit.locate import last_name
from advisor.edit.names import after_imports, ensure_name, full_name
from advisor.edit.origins.values import give_value
from advisor.evidence import Change
from advisor.evidence.gpu.matrix import format_of
from advisor.evidence.gpu.products import left_of_products, reading_weights, shares_units
from advisor.fixes import edited
from advisor.rule import Advice, Argument, Example, Finding, Gain, Rule, Safety, once_fed

if TYPE_CHECKING:
    from advisor.edit import Draft, Edit, Sources
    from advisor.evidence import Evidence
    from advisor.evidence.facts import KernelRow

# A TF32 product's time over the float32 one's, where the device's peaks are not known (evidence/gpu/products.py where
# they are). The A100's are 19.5 and 156 TFLOP/s (data sheet); PyTorch's CUDA notes measure 7x on a 10240-square one;
# smaller ones are held back by memory, so less is expected. GeForce cards have as many TF32 as float32 operations a
# second: only what float32 does not reach of its peak can be gained.
_SCALE, _SCALE_OF_GEFORCE = 0.35, 0.75
_LEAST_SHARE = 0.05  # of kernel time: less cannot make the step 3 % faster


class Tf32Matmul(Rule):
    """Matrix products in float32 run on the ordinary cores of a GPU that has TF32 Tensor Cores.

    From compute capability 8.0 (Ampere) on, Tensor Cores multiply float32 matrices with inputs rounded to 10 bits of
    mantissa (TF32) and float32 sums, several times faster. PyTorch uses that for convolutions by default, for matrix
    products only after ``torch.set_float32_matmul_precision("high")``. One line, no change of dtypes. A script that
    switches it off itself, for convolutions too, is told of at its place.

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
        if record is not None and any(model.autocast for model in record.models):
            return
        kinds = ["gemm"] if precision in ("highest", "") else []
        if record is not None and record.environment.cudnn_tf32 is False:
            kinds.append("conv")  # they use it unless they are told not to
        products = [row for row in evidence.kernels if row.kind in kinds]
        off = [row for row in products if row.matrix == "off" and format_of(row.name) == "float32"]
        share = sum(row.share for row in off)
        narrow = sum(row.share for row in products if format_of(row.name) == "narrow")
        if share < _LEAST_SHARE or (record is None and narrow > share):
            return  # autocast is on, or the weights are in 16 bits: what is left is meant to be float32
        least = reading_weights(evidence, sum(row.per_step_s for row in off), 4)
        estimate, fed = once_fed(evidence, Change(kernel_scale={row.name: _scale(evidence, row, least) for row in off}))
        gain = Gain.of(estimate)
        if gain.worth_it:
            found = [kind for kind in kinds if any(row.kind == kind for row in off)]
            named = " and ".join({"gemm": "matrix products", "conv": "convolutions"}[each] for each in found)
            yield Finding(
                rule=self.id,
                title=self.title,
                summary=f"{share:.0%} of the kernels' time is float32 {named} off the Tensor Cores." + fed,
                gain=gain,
                evidence={
                    "matmul_off_tensor_cores_share": share,
                    "matmul_precision": precision,
                    "capability": ".".join(map(str, capability)),
                },
                parameters={"script": evidence.script, "kinds": tuple(found)},
            )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        given = finding.parameters.get("kinds")
        kinds = set(given) if isinstance(given, tuple) else {"gemm"}
        parts = ['torch.set_float32_matmul_precision("high")'] if "gemm" in kinds else []
        parts += ["torch.backends.cudnn.allow_tf32 = True"] if "conv" in kinds else []
        text = f"Call {parts[0]} before the first step." if "gemm" in kinds else f"Set {parts[0]}."
        if len(parts) == 2:
            text = f"Call {parts[0]} before the first step, and set {parts[1]}."
        script = str(finding.parameters.get("script") or "")
        if not script or not sources.has(script):
            return Advice(text, "the script's file is unknown")
        drafts = Drafts(sources)
        draft = drafts[script]
        says = list(_settings(draft))
        if says and not (kinds == {"gemm"} and all(map(_allows_convolutions, says))):
            return _as_the_script_sets_it(drafts, draft, says, kinds, "Allow TF32 where the script rules it out.")
        if not says and any(each in _COMMENT.sub("", draft.source.text) for each in _SETTINGS):
            return Advice(text, "the script sets the precision itself, in another way")
        if "conv" in kinds:
            return Advice(text, "where convolutions are told not to use TF32 was not found")
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
        Example(
            before="""
import torch

torch.backends.cuda.matmul.allow_tf32 = False  # as the paper had it
torch.backends.cudnn.allow_tf32 = False
model = Net().cuda()
""",
            after="""
import torch

torch.backends.cuda.matmul.allow_tf32 = True  # as the paper had it
torch.backends.cudnn.allow_tf32 = True
model = Net().cuda()
""",
            parameters={"kinds": ("gemm", "conv")},
        ),
        Example(  # convolutions only: what is said of products stays
            before="""
import torch

torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False
""",
            after="""
import torch

torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = True
""",
            parameters={"kinds": ("conv",)},
        ),
        Example(
            before='import torch\ntorch.backends.fp32_precision = "ieee"\n',
            after='import torch\ntorch.backends.fp32_precision = "tf32"\n',
        ),
        Example(  # convolutions use it, and a comment says nothing
            before="""
import torch

# torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.allow_tf32 = True
""",
            after="""
import torch

torch.set_float32_matmul_precision("high")

# torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.allow_tf32 = True
""",
            parameters={"kinds": ("gemm",)},
        ),
        Example(  # above what computes, whatever is imported behind it
            before="""
import torch
from nets import Net, fit

fit(Net())
import matplotlib.pyplot as plt
""",
            after="""
import torch
from nets import Net, fit

torch.set_float32_matmul_precision("high")

fit(Net())
import matplotlib.pyplot as plt
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
        Example("import torch\nif args.exact:\n    torch.backends.cuda.matmul.allow_tf32 = False\n", ""),
        Example("import torch\nwith torch.backends.cudnn.flags(allow_tf32=False):\n    train()\n", ""),
        Example(
            "import torch\ntorch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False\n", ""
        ),
        Example(  # what convolutions are told is not what products are
            "import torch\ntorch.backends.cudnn.allow_tf32 = False\n", "", {"kinds": ("gemm", "conv")}
        ),
        Example(  # in that branch "highest" is what was asked for
            "import torch\nif args.strict:\n    torch.set_float32_matmul_precision('highest')\n", ""
        ),
        Example("import torch\nif args.fast:\n    torch.set_float32_matmul_precision('medium')\n", ""),
        Example("import torch\ntorch.set_float32_matmul_precision(pick(args))\n", ""),
    )


# Where a script says it: the function, and what is assigned to, each with what it is for. ``fp32_precision`` is there
# since PyTorch 2.9; a script that mixes it with the others is told so by an error.
_CALL, _PRODUCTS, _CONVOLUTIONS = "torch.set_float32_matmul_precision", frozenset(("gemm",)), frozenset(("conv",))
_ASSIGNED = {
    "torch.backends.cuda.matmul.allow_tf32": _PRODUCTS,
    "torch.backends.cudnn.allow_tf32": _CONVOLUTIONS,
    "torch.backends.cuda.matmul.fp32_precision": _PRODUCTS,
    "torch.backends.cudnn.fp32_precision": _CONVOLUTIONS,
    "torch.backends.cudnn.conv.fp32_precision": _CONVOLUTIONS,
    "torch.backends.fp32_precision": _PRODUCTS | _CONVOLUTIONS,
}
_COMMENT = re.compile(r"#.*")
_SETTINGS = ("set_float32_matmul_precision", "allow_tf32", "fp32_precision")


@dataclass(frozen=True)
class _Says:
    """A place where the script sets the precision of ``kinds``: ``value`` is given as ``now`` and becomes ``then``."""

    node: cst.CSTNode
    kinds: frozenset[str]
    value: cst.BaseExpression | None  # None where it is not the plain call or assignment that is meant
    now: object
    then: str


def _settings(draft: Draft) -> Iterator[_Says]:
    for call in draft.nodes(cst.Call):
        if last_name(draft, call) == "set_float32_matmul_precision":
            plain = len(call.args) == 1 and full_name(draft, call.func) == _CALL
            yield _Says(call, _PRODUCTS, call.args[0].value if plain else None, "highest", '"high"')
    for assign in draft.nodes(cst.Assign):
        for each in assign.targets:
            name = full_name(draft, each.target)
            if kinds := _ASSIGNED.get(name):
                value = assign.value if len(assign.targets) == 1 else None
                old, new = (False, "True") if name.endswith("allow_tf32") else ("ieee", '"tf32"')
                yield _Says(assign, kinds, value, old, new)
    for call in draft.nodes(cst.Call):
        if (argument(call, "allow_tf32") or argument(call, "fp32_precision")) is not None:  # cudnn.flags(…)
            yield _Says(call, _PRODUCTS | _CONVOLUTIONS, None, None, "")


def _allows_convolutions(says: _Says) -> bool:
    """Whether it is ``torch.backends.cudnn.allow_tf32 = True``, which says nothing of products."""
    allowed = says.value is not None and m.matches(says.value, m.Name("True"))
    return allowed and says.kinds == _CONVOLUTIONS and says.then == "True"


def _as_the_script_sets_it(
    drafts: Drafts, draft: Draft, says: Sequence[_Says], kinds: set[str], text: str
) -> Edit | Argument | Advice:
    """Change what the script itself says of these kinds, all that says so as the run did, or the option that says it.

    A place in a branch is for those who ask for its precision; only an option may decide there, which is asked for,
    too.
    """
    itself = Advice(text, "the script decides on the precision itself")
    chosen = [each for each in says if each.kinds & kinds]
    if kinds - {kind for each in chosen for kind in each.kinds}:
        return itself
    options: dict[str, str] = {}
    for each in chosen:
        if each.value is None:
            return itself
        option = give_value(drafts, draft, each.value, each.then, each.now)
        if option is None or (not option and conditional(draft, each.node)):
            return itself
        options |= {option: each.then.strip('"')} if option else {}
    edit = drafts.edit(text)
    if options:
        return Argument(options) if edit is None else Advice(text, "an option and the source both say so")
    return edit or itself


def _scale(evidence: Evidence, row: KernelRow, least: float) -> float:
    """A TF32 product's time over the float32 one's, on this device."""
    left = left_of_products(evidence, row, "float32", "tf32", least)
    if left is None:
        return _SCALE_OF_GEFORCE if shares_units(evidence) else _SCALE
    return left
