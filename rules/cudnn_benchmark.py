"""cuDNN picks convolution algorithms by heuristics although the shapes never change."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst
import numpy as np

from advisor.edit import Drafts
from advisor.edit.loading.guard import conditional
from advisor.edit.names import after_imports, ensure_name, full_name
from advisor.evidence import Change
from advisor.evidence.coded import names_like
from advisor.evidence.gpu.matrix import kind_of
from advisor.evidence.gpu.varying import sizes_vary
from advisor.evidence.steps import assign, by_step
from advisor.fixes import edited
from advisor.rule import Advice, Argument, Example, Finding, Gain, Rule, Safety, once_fed, unless_source

if TYPE_CHECKING:
    from advisor.edit import Draft, Edit, Sources
    from advisor.evidence import Evidence
    from advisor.evidence.facts import KernelRow
    from advisor.harness.layout import RunRecord

# A convolution's time with the algorithm that cuDNN measured to be fastest over that of its heuristic choice: a
# prior, no measurement of this run. The tuning guide names no figure; on common image models it is a few to 20 %.
_SCALE = 0.9
_LEAST_SHARE = 0.4  # of kernel time in convolutions: 10 % of less is hardly more than what can be measured


class CudnnBenchmark(Rule):
    """Convolutions run with the algorithm that a heuristic picked, and their shapes stay the same.

    With ``torch.backends.cudnn.benchmark = True`` cuDNN tries its algorithms when it meets a shape for the first time
    and keeps the fastest. That costs once per shape, seconds in all for a usual image model.

    When not: input shapes change, sizes of batches among them (each new one is tried again); the run must be
    reproducible bit by bit (the choice may differ between runs); memory is nearly full (some of the fast algorithms
    need a large workspace).

    Source: PyTorch performance tuning guide, "Enable cuDNN auto-tuner". The gain is a prior, not measured here.
    """

    id = "cudnn-benchmark"
    title = "Let cuDNN measure which convolution algorithm is fastest"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        if evidence.capability is None or not (_heuristic(evidence.record) if evidence.record else _same(evidence)):
            return
        convolutions = [row for row in evidence.kernels if row.kind == "conv" or _is_convolution(row)]
        share = sum(row.share for row in convolutions)
        if share < _LEAST_SHARE:
            return
        names = {row.name for row in convolutions}
        if evidence.record and sizes_vary(evidence, lambda name: name in names or kind_of(name) == "conv"):
            return
        estimate, fed = once_fed(evidence, Change(kernel_scale={row.name: _SCALE for row in convolutions}))
        gain = Gain.prior(estimate, "prior: convolutions 10 % faster")
        if gain.worth_it:
            yield Finding(
                rule=self.id,
                title=self.title,
                summary=f"{share:.0%} of the kernels' time is convolutions, always of the same shapes." + fed,
                gain=gain,
                evidence={"convolution_share": share, "cudnn_benchmark": False if evidence.record else None},
                parameters={"script": evidence.script},
                unmet=unless_source(evidence, "The trace does not say whether the setting is on already."),
            )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        text = "Set torch.backends.cudnn.benchmark = True before the first step."
        if finding.unmet:
            return Advice(text, " ".join(finding.unmet))
        script = str(finding.parameters.get("script") or "")
        if not script or not sources.has(script):
            return Advice(text, "the script's file is unknown")
        drafts = Drafts(sources)
        draft = drafts[script]
        why = _switch_on(draft)
        return Advice(text, why) if why else edited(drafts, text)

    EXAMPLES = (
        Example(
            before="import torch\n\nmodel = make()\n",
            after="import torch\n\ntorch.backends.cudnn.benchmark = True\n\nmodel = make()\n",
        ),
        Example(
            before="import torch.backends.cudnn as cudnn\n\n\ndef main():\n    pass\n",
            after="import torch.backends.cudnn as cudnn\n\ncudnn.benchmark = True\n\n\ndef main():\n    pass\n",
        ),
        Example(
            before="import torch\n\ndef main():\n    torch.backends.cudnn.benchmark = False  # slow start\n",
            after="import torch\n\ndef main():\n    torch.backends.cudnn.benchmark = True  # slow start\n",
        ),
        Example(  # who gives a seed still gets the same results again
            before="""
import torch
import torch.backends.cudnn as cudnn

def main(args):
    if args.seed is not None:
        torch.manual_seed(args.seed)
        cudnn.deterministic = True
        cudnn.benchmark = False
""",
            after="""
import torch
import torch.backends.cudnn as cudnn

cudnn.benchmark = True

def main(args):
    if args.seed is not None:
        torch.manual_seed(args.seed)
        cudnn.deterministic = True
        cudnn.benchmark = False
""",
        ),
    )
    LEAVES_ALONE = (
        Example("import torch\ntorch.backends.cudnn.benchmark = not args.deterministic\n", ""),
        Example("import torch\nfrom torch.backends import cudnn\ncudnn.benchmark = cudnn.deterministic = False\n", ""),
        Example("from torch.backends import cudnn\nif args.debug:\n    cudnn.benchmark = False\n", ""),
        Example(
            "import torch\n\ndef seed_all(seed):\n    torch.backends.cudnn.deterministic = True\n"
            "    torch.backends.cudnn.benchmark = False\n",
            "",
        ),
        Example("import torch\ntorch.backends.cudnn.deterministic = True\n", ""),
    )


def _is_convolution(row: KernelRow) -> bool:
    """A matrix product that a convolution is made of."""
    return row.kind == "gemm" and re.match(r"aten::(cudnn_)?convolution", row.operator) is not None


def _heuristic(record: RunRecord) -> bool:
    """Whether cuDNN chooses by its heuristics now, and could measure instead: one shape only, no fixed choice."""
    setting = record.environment
    fixed = setting.deterministic or setting.cudnn_deterministic
    return setting.cudnn_benchmark is False and not fixed and record.shapes_vary is False


def _same(evidence: Evidence) -> bool:
    """Whether a bare trace has two steps at least, whose convolutions are the same, and called by heuristics.

    Both are among the operators' inputs, their sizes and the values of the others. Without these a trace says nothing:
    of the public ResNet-50 on a V100 the script has the setting on.
    """
    operators = evidence.trace.operators
    rows = names_like(evidence.trace, operators.name, re.compile(r"aten::(cudnn_)?convolution$").match)
    step, shapes = assign(evidence.steps, operators.start)[rows], operators.shapes[rows]
    seen = {tuple(each.tolist()) for each in by_step(shapes.astype(np.int64), step, len(evidence.steps))}
    same = len(evidence.steps) > 1 and len(seen) == 1 and all(code >= 0 for code in next(iter(seen)))
    if not same or operators.values is None:
        return False
    called = operators.values[names_like(evidence.trace, operators.name, "aten::_convolution".__eq__)]
    return len(called) > 0 and all(_by_heuristics(evidence.trace.name(code)) for code in set(called.tolist()))


def _by_heuristics(written: str) -> bool:
    """Of the values that ``aten::_convolution`` was called with, the tenth and next are `benchmark`, `deterministic`.

    Source: PyTorch's native_functions.yaml.
    """
    return re.findall(r'"([^"]*)"', written)[9:11] == ["False", "False"]


def _switch_on(draft: Draft) -> str:
    """Have the setting be True: where the script says False, else below its imports; why not, as a clause."""
    found = _given(draft, "cudnn.benchmark")
    seeded = [each for each in _given(draft, "cudnn.deterministic") if not _is_false(each)]
    # A branch for runs that can be repeated says it later than the imports do: there its own False holds.
    branches = {_block(draft, each) for each in found if _is_false(each)}
    branches &= {_block(draft, each) for each in seeded if conditional(draft, each)}
    if any(_block(draft, each) not in branches for each in seeded):
        return "the script wants results that can be repeated bit by bit"
    found = [each for each in found if _block(draft, each) not in branches]
    if any(conditional(draft, each) or not _is_false(each) for each in found):
        return "the script decides on the setting itself"
    if any(len(each.targets) > 1 for each in found):
        return "the script sets it together with something else"
    for each in found:
        draft.replace(each.value, "True")
    if not found and not after_imports(draft, f"{ensure_name(draft, 'torch.backends.cudnn')}.benchmark = True"):
        return "the script imports nothing at its top level"
    return ""


def _given(draft: Draft, name: str) -> list[cst.Assign]:
    """The statements that give the setting of that name a value."""
    return [
        each
        for each in draft.nodes(cst.Assign)
        if any(full_name(draft, target.target).endswith(name) for target in each.targets)
    ]


def _is_false(assign: cst.Assign) -> bool:
    return isinstance(assign.value, cst.Name) and assign.value.value == "False"


def _block(draft: Draft, assign: cst.Assign) -> cst.CSTNode | None:
    line = draft.parent(assign)
    return draft.parent(line) if line is not None else None
