"""cuDNN picks convolution algorithms by heuristics although the shapes never change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from advisor.edit import Drafts
from advisor.edit.names import after_imports, ensure_name, full_name
from advisor.evidence import Change
from advisor.rule import Advice, Argument, Example, Finding, Gain, Rule, Safety

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence

# A convolution's time with the algorithm that cuDNN measured to be fastest over that of its heuristic choice: a
# prior, no measurement of this run. The tuning guide names no figure; on common image models it is a few to 20 %.
_SCALE = 0.9
_LEAST_SHARE = 0.3  # of kernel time in convolutions: below, 10 % of it is less than 3 % of the step


class CudnnBenchmark(Rule):
    """Convolutions run with the algorithm that a heuristic picked, and their shapes stay the same.

    With ``torch.backends.cudnn.benchmark = True`` cuDNN tries its algorithms when it meets a shape for the first time
    and keeps the fastest. That costs once per shape, seconds in all for a usual image model.

    When not: input shapes change (each new one is tried again); the run must be reproducible bit by bit (the choice
    may differ between runs); memory is nearly full (some of the fast algorithms need a large workspace).

    Source: PyTorch performance tuning guide, "Enable cuDNN auto-tuner". The gain is a prior, not measured here.
    """

    id = "cudnn-benchmark"
    title = "Let cuDNN measure which convolution algorithm is fastest"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record = evidence.record
        if not evidence.device_is_gpu or record is None or record.device.hip:
            return
        setting = record.environment
        if setting.cudnn_benchmark is not False or setting.deterministic or record.shapes_vary is not False:
            return
        convolutions = [row for row in evidence.kernels if row.kind == "conv"]
        share = sum(row.share for row in convolutions)
        if share < _LEAST_SHARE:
            return
        estimate = evidence.what_if(Change(kernel_scale={row.name: _SCALE for row in convolutions}))
        gain = Gain.of(estimate, basis="prior: convolutions 10 % faster")
        if gain.worth_it:
            yield Finding(
                rule=self.id,
                title=self.title,
                summary=f"{share:.0%} of the kernels' time is convolutions, always of the same shapes.",
                gain=Gain(1.0, gain.likely, gain.high, gain.basis),
                evidence={"convolution_share": share, "cudnn_benchmark": False},
                parameters={"script": record.script if not record.module else ""},
            )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        text = "Set torch.backends.cudnn.benchmark = True before the first step."
        script = str(finding.parameters.get("script") or "")
        if not script or not sources.has(script):
            return Advice(text, "the script's file is unknown")
        drafts = Drafts(sources)
        draft = drafts[script]
        for assign in draft.nodes(cst.Assign):
            target = assign.targets[0].target
            if full_name(draft, target).endswith("cudnn.benchmark"):
                if not (isinstance(assign.value, cst.Name) and assign.value.value == "False"):
                    return Advice(text, "the script computes the setting itself")
                draft.replace(assign.value, "True")
                return drafts.edit(text) or Advice(text, "the file is not the script's own")
        if not after_imports(draft, f"{ensure_name(draft, 'torch.backends.cudnn')}.benchmark = True"):
            return Advice(text, "the script imports nothing at its top level")
        return drafts.edit(text) or Advice(text, "the file is not the script's own")

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
    )
    LEAVES_ALONE = (Example("import torch\ntorch.backends.cudnn.benchmark = not args.deterministic\n", ""),)
