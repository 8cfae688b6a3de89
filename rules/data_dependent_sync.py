"""Operators whose result has a size that only the GPU knows: the script waits for it in every step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.edit import Sources
from advisor.edit.called import calls_in, masks_in
from advisor.evidence import Change
from advisor.evidence.gpu.sized import sized_syncs
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, at, once_fed, site_list, sites

if TYPE_CHECKING:
    from advisor.edit import Edit
    from advisor.evidence import Evidence
    from advisor.harness.layout import CallSite, Site

_KIND = "sized"
_NAMED = 4  # so many places are named

# What the harness calls it → what the trace calls it, where these differ.
_IN_TRACE = {"argwhere": "nonzero", "where": "nonzero", "masked_select": "mask", "unique_consecutive": "unique"}

_WRITTEN = {
    "mask": "x[mask]",
    "nonzero": "nonzero()",
    "unique": "unique()",
    "bincount": "bincount()",
    "repeat_interleave": "repeat_interleave()",
    "one_hot": "one_hot()",
}
_INSTEAD = {
    "mask": "Instead of x[mask] keep the whole tensor: torch.where(mask, x, y), x.masked_fill(~mask, 0), or weights in "
    "the loss, (loss * mask).sum() / mask.sum(); cross_entropy has ignore_index.",
    "nonzero": "Instead of nonzero() compute with the mask itself (torch.where with three arguments), or take a fixed "
    "number of places with topk().",
    "unique": "Do unique() where the batch is made, on the CPU, or sum by group into a tensor of known size "
    "(index_add_, scatter_add_).",
    "bincount": "Count into a tensor of known size: torch.zeros(n, device=x.device).scatter_add_(0, x, weights); "
    "bincount() reads the largest value back even with minlength.",
    "repeat_interleave": "Pass repeat_interleave() its output_size=, where the sum of the repeats is known.",
    "one_hot": "Pass one_hot() its num_classes=.",
}


class DataDependentSync(Rule):
    """The step calls operators whose result has a size that only the values tell, and the script waits for that size.

    ``x[mask]``, ``nonzero``, ``unique``, ``bincount``, ``repeat_interleave`` with a tensor, ``one_hot`` without a
    number of classes: to make the result the script has to know how large it is, so the operator reads that back from
    the GPU, which has first to finish everything launched before. A mask does so once more in the backward. The same
    can mostly be computed in tensors of fixed size: ``torch.where``, a weight of 0 or 1 in the loss, ``scatter_add_``.

    When not: most of the tensor is masked away, and what follows on the rest is expensive; the GPU has so much work
    queued that it never runs dry meanwhile; the size is needed for its own sake (detections, tokens to route).

    Source: PyTorch docs, ``torch.nonzero``: "When input is on CUDA, torch.nonzero() causes host-device
    synchronization"; ``torch.repeat_interleave``, of ``output_size``: "it will avoid stream synchronization needed to
    calculate output shape of the tensor"; performance tuning guide, "Avoid unnecessary CPU-GPU synchronization".
    """

    id = "data-dependent-sync"
    title = "Do not make tensors of a size that only the GPU knows"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        if not evidence.device_is_gpu or not evidence.breakdown.on_device:
            return
        found = sized_syncs(evidence.steps, evidence.device, evidence.nesting)
        if not found.rows:
            return
        estimate, said = once_fed(evidence, Change(remove_syncs=found.rows))
        gain = Gain.of(estimate)
        if not gain.worth_it:
            return
        places = _places(evidence, found.calls)
        named = ", ".join(_WRITTEN[call] for call in found.calls)
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"Each step waits for the GPU {found.count:.0f} time(s), {found.wait_s * 1e3:.2f} ms in all, to "
            f"learn the size of what {named} gives"
            + (f", at {', '.join(dict.fromkeys(map(at, places)))}." if places else ".")
            + said,
            gain=gain,
            evidence={
                "syncs_per_step": found.count,
                "sync_wait_s": found.wait_s,
                "operators": named,
                "step_s": evidence.step_s,
            },
            site=places[0] if places else None,
            parameters={"places": places, "calls": found.calls},
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Advice:
        calls = finding.parameters.get("calls", ())
        texts = [_INSTEAD[call] for call in calls if call in _INSTEAD] if isinstance(calls, tuple) else []
        where = ", ".join(dict.fromkeys(at(site) for site in site_list(finding, "places"))) or "your script"
        return Advice(
            f"In {where}: {' '.join(texts)}" if texts else f"Compute in tensors of a fixed size in {where}.",
            "which size is enough, and what the rest of the script does with the result, only its author knows",
        )

    EXAMPLES = (
        Example(
            before="for x, y in loader:\n    loss = criterion(model(x)[y > 0], y[y > 0])  # <- places\n",
            after="",
            parameters={"calls": ("mask",)},
            advice="train.py:2: Instead of x[mask] keep the whole tensor",
        ),
        Example(
            before="out = torch.repeat_interleave(h, counts, dim=0)  # <- places\n",
            after="",
            parameters={"calls": ("repeat_interleave",)},
            advice="output_size=",
        ),
    )
    LEAVES_ALONE = (
        Example("loss = torch.where(mask, x, y).sum()  # <- places\n", "", {"calls": ("mask",)}),
        Example("i = (x > 0).nonzero()  # <- places\n", "", {"calls": ("nonzero", "unique")}),
    )


def _places(evidence: Evidence, calls: tuple[str, ...]) -> tuple[Site, ...]:
    """Where the run has seen these calls on the GPU, the most frequent first; rare ones are not the steps' own.

    Of a bare trace where its script has them.
    """
    record = evidence.record
    if record is None and evidence.source:
        return _in_source(evidence.source, calls)
    seen = [
        each
        for each in (record.call_sites if record is not None else ())
        if each.kind == _KIND and each.details.get("device") == "cuda" and _called(each) in calls
    ]
    most = max((each.calls for each in seen), default=0)
    often = [each for each in seen if 2 * each.calls >= most]
    return sites(tuple(sorted(often, key=lambda each: (calls.index(_called(each)), -each.calls))))[:_NAMED]


def _in_source(path: str, calls: tuple[str, ...]) -> tuple[Site, ...]:
    sources, found = Sources(), []
    for call in calls:
        names = {call, *(name for name, other in _IN_TRACE.items() if other == call)}
        found += [*calls_in(sources, path, names), *(masks_in(sources, path) if call == "mask" else ())]
    return tuple(found[:_NAMED])


def _called(place: CallSite) -> str:
    operator = str(place.details.get("operator", ""))
    return _IN_TRACE.get(operator, operator)
