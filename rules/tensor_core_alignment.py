"""Matrix products of odd sizes run on the Tensor Cores' slower kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from advisor.edit import Drafts
from advisor.errors import AdvisorError
from advisor.evidence import Change
from advisor.evidence.gpu.alignment import misaligned_products
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, once_fed

if TYPE_CHECKING:
    from advisor.edit import Sources
    from advisor.evidence import Evidence

_NAMED = 3  # so many sizes are named, the costliest first
_LARGE = 1024  # from here on a multiple of 64 costs next to nothing, and fills whole tiles
_TILE = 64
_BASIS = (
    "the operations per second of the aligned products in the same steps, and at most twice as fast: so much it makes "
    "for one and the same product in a public trace of an A100 (1.25 and 0.62 ms)"
)


class TensorCoreAlignment(Rule):
    """A layer has a size that is no multiple of 16 bytes, so its matrix products run on kernels that load less at once.

    The fast kernels load 16 bytes at a time: 8 numbers of 16 bits, or 4 of TF32. A vocabulary of 50257 or a hidden
    size of 606 does not allow for that in one of its matrices, forward or backward; 50304 does, at 0.1 % more work.
    The rows that are added to a vocabulary are never looked up; their logits are cut off before the loss.

    When not: the size is that of published weights (pad them with rows of zeros); the product waits for memory and not
    for the cores; the GPU waits for the script anyway. Since cuBLAS 11 the Tensor Cores are used in any case, only less
    well.

    Source: NVIDIA, "Matrix Multiplication Background User's Guide", requirements to use Tensor Cores; PyTorch
    performance tuning guide, mixed precision: "set sizes to multiples of 8".
    """

    id = "tensor-core-alignment"
    title = "Make the sizes of layers multiples of 8"
    safety = Safety.BEHAVIOUR
    after = ("amp-autocast", "tf32-matmul")

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        if not evidence.device_is_gpu or evidence.amd or evidence.peak is None:
            return
        window = evidence.detail if evidence.detail is not None else evidence.trace
        found = misaligned_products(window, evidence.peak, evidence.capability)
        if not found.scale:
            return
        estimate, said = once_fed(evidence, Change(kernel_scale=found.scale))
        gain = Gain.prior(estimate, _BASIS)
        if not gain.worth_it:
            return
        sizes = tuple((size, _padded(size, found.multiple)) for size, _ in found.sizes[:_NAMED])
        named = ", ".join(str(size) for size, _ in sizes)
        files = tuple({model.file for model in evidence.record.models if model.file}) if evidence.record else ()
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"Matrix products take {found.seconds * 1e3:.2f} ms of each step in kernels for matrices that are "
            f"not aligned to 16 bytes, because of sizes that are no multiples of {found.multiple}: {named}.{said}",
            gain=gain,
            evidence={
                "misaligned_s": found.seconds,
                "sizes": named,
                "multiple": found.multiple,
                "step_s": evidence.step_s,
            },
            parameters={
                "sizes": sizes,
                "files": files,
                "script": evidence.record.script if evidence.record is not None else evidence.source,
            },
        )

    def fix(self, finding: Finding, sources: Sources) -> Advice:
        sizes = finding.parameters.get("sizes", ())
        pairs = [each for each in sizes if isinstance(each, tuple)] if isinstance(sizes, tuple) else []
        paths = [str(finding.parameters.get("script") or "")]
        more = finding.parameters.get("files", ())
        paths += [str(each) for each in more] if isinstance(more, tuple) else []
        texts = []
        for size, padded in pairs:
            places = _written(sources, paths, size)
            texts.append(f"{size} ({', '.join(places)})" if places else str(size))
            texts[-1] += f" → {padded}"
        listed = "; ".join(texts) if texts else "every size of a layer → a multiple of 8"
        return Advice(
            f"Pad the sizes of layers: {listed}. For a vocabulary that is the size of the embedding and of the last "
            "layer: cut the logits to the true size before the loss, or mask what is added.",
            "a model of other sizes has other weights: checkpoints have to be padded, too",
        )

    EXAMPLES = (
        Example(
            before="import torch\n\nvocabulary = 50257\nhead = torch.nn.Linear(768, vocabulary)\n",
            after="",
            parameters={"sizes": ((50257, 50304),)},
            advice="50257 (train.py:3) → 50304",
        ),
        Example(
            before="head = torch.nn.Linear(768, len(words))\n",
            after="",
            parameters={"sizes": ((1953, 1984), (125, 128))},
            advice="1953 → 1984; 125 → 128",
        ),
    )
    LEAVES_ALONE = (Example("head = torch.nn.Linear(768, 50257)\n", "", {"sizes": ((50257, 50304),)}),)


def _padded(size: int, multiple: int) -> int:
    step = _TILE if size >= _LARGE else multiple
    return -(-size // step) * step


def _written(sources: Sources, paths: list[str], size: int) -> list[str]:
    """Where the script says that number: "train.py:3"."""
    drafts, places = Drafts(sources), []
    for path in dict.fromkeys(filter(None, paths)):
        if not sources.editable(path):
            continue
        try:
            draft = drafts[path]
        except AdvisorError:
            continue
        numbers = [each for each in draft.nodes(cst.Integer) if each.evaluated_value == size]
        places += [f"{path.rpartition('/')[2]}:{draft.line(each)}" for each in numbers]
    return places[:_NAMED]
