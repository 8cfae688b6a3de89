"""A PyTorch that was built before the GPU it runs on existed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety

if TYPE_CHECKING:
    from advisor.edit import Sources
    from advisor.evidence import Evidence

_BINARY = re.compile(r"sm_(\d+)(\d)[af]?$")  # compiled for it; sm_90a is compute capability 9.0
_BASIS = "what it gains cannot be told before it was tried: no kernel of this torch was compiled for the GPU"


class TorchTooOld(Rule):
    """This build of PyTorch has no kernels for the GPU, whose driver therefore compiles them from an older one's.

    A wheel holds machine code for the compute capabilities that were known when it was built, and beside it PTX, from
    which the driver makes code for any later GPU: at the first use of each kernel, which can take minutes at the start,
    and without what the new GPU can do that the old could not (its Tensor Cores' own instructions, larger shared
    memory). Libraries that come with the wheel, cuBLAS and cuDNN, choose their kernels by the GPUs that they know.

    When not: a version is pinned for a reason, a model that only loads there, say. That an older PyTorch lacks what one
    of the other rules would use is not reported: they all work with PyTorch 2.6, the oldest that is supported.

    Source: NVIDIA, CUDA C++ Programming Guide, "Binary Compatibility" (code runs on the same major capability with the
    same or a later minor one) and "Just-in-Time Compilation"; PyTorch docs, ``torch.cuda.get_arch_list``.
    """

    id = "torch-too-old"
    title = "Install a PyTorch that was built for this GPU"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record, own = evidence.record, evidence.capability
        if record is None or own is None or record.device.hip or not record.device.architectures:
            return
        built = record.device.architectures
        found = [(int(match[1]), int(match[2])) for each in built if (match := _BINARY.match(each))]
        if not found or own < max(found) or any(major == own[0] and minor <= own[1] for major, minor in found):
            return
        environment, name = record.environment, f"sm_{own[0]}{own[1]}"
        cuda = f" for CUDA {environment.torch_cuda}" if environment.torch_cuda else ""
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"The GPU is {name} ({evidence.device_name}); torch {environment.torch}{cuda} was compiled for "
            f"{', '.join(built)}. Its kernels are compiled anew from an older GPU's when they are first used.",
            gain=Gain(1.0, 1.0, 1.0, _BASIS),
            evidence={"capability": name, "compiled_for": ", ".join(built), "torch": environment.torch},
            parameters={"capability": name},
        )

    def fix(self, finding: Finding, sources: Sources) -> Advice:
        name = finding.parameters.get("capability", "this GPU")
        return Advice(
            'Install a newer PyTorch (python -m pip install --upgrade torch, of a newer CUDA: pytorch.org, "Get '
            f'Started"); torch.cuda.get_arch_list() then has {name}.',
            "which versions go with your other packages, only you know",
        )

    EXAMPLES = (Example("model = Net().cuda()\n", "", {"capability": "sm_120"}, advice="then has sm_120"),)
    LEAVES_ALONE = (Example("model = Net().cuda()\n", ""),)
