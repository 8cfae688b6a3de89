"""A loader delivers what the steps never read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.edit.sources import text_of
from advisor.evidence.loading.fetching import longest_statement, share, without
from advisor.evidence.loading.read_fields import is_read
from advisor.evidence.outside import own_files
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, where

if TYPE_CHECKING:
    from advisor.edit import Sources
    from advisor.evidence import Evidence
    from advisor.harness.layout import Loader

_LEAST_SHARE = 0.25  # of a batch's bytes
# Of the lines that make a sample, for what is left out: how much of them that is nobody has seen. Of a scan beside each
# patch of it, with 0.8: 1.8 times as fast, where 2.9 was measured (it filled the caches, too).
_OF_LINES = 0.8
_BASIS = "prior: by its bytes the collating, and four fifths of the dataset's lines, for what is left out"


class UnreadBatch(Rule):
    """Much of each batch is never read: a whole scan beside the patch that is cut out of it, the picture as it was.

    A dataset that serves a training and its evaluation, or a viewer, gives all that any of them wants; converted,
    stacked and handed on it costs each step the same, whoever reads it. Leave it out where the steps do not want it: a
    flag of the dataset, another one for the training. Reported where the run has seen several steps in a row whose
    batches held tensors that no function was given and nobody kept.

    When not: other steps than those that were watched read it, every hundredth, say, for a picture: not reported where
    the loop says so.

    Source: PyTorch docs, ``torch.utils.data``, ``default_collate``: each field of the samples is stacked. What the
    dataset does for it is a prior.
    """

    id = "unread-batch"
    title = "Leave out of the batches what the steps never read"
    safety = Safety.EXACT

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        for facts in evidence.loaders:
            loader, step_s = facts.record, evidence.step_s
            if loader is None or not loader.unread or not loader.trains or not facts.fetch_s or not step_s:
                continue
            texts = [text_of(path) for path in sorted(own_files(evidence.record))] if evidence.record else []
            sizes = {name: size for name, size in loader.unread.items() if not is_read(texts, name)}
            unread, whole = sum(sizes.values()), loader.unread_of
            part = min(1.0, unread / whole) if whole else 0.0
            if part < _LEAST_SHARE:
                continue
            gain = Gain.prior(evidence.what_if(without(facts, part * _made_for_it(loader))), _BASIS)
            if not gain.worth_it:
                continue
            line = longest_statement(loader)
            yield Finding(
                rule=self.id,
                title=self.title,
                summary=f"{part:.0%} of each batch was not read in the steps that were watched: {_listed(sizes)}, "
                f"{unread / 1e6:,.0f} MB. The step waits {facts.wait_s * 1e3:.1f} ms ({facts.wait_share:.0%}) for the "
                "next batch.",
                gain=gain,
                evidence={
                    "unread_bytes": unread,
                    "batch_bytes": whole,
                    "fetch_s": facts.fetch_s,
                    "data_wait_s": facts.wait_s,
                    "step_s": step_s,
                },
                site=(line.site if line is not None else None) or loader.source_site or loader.site,
                parameters={"what": _listed(sizes)},
            )

    def fix(self, finding: Finding, sources: Sources) -> Advice:
        what = finding.parameters.get("what") or "what is never read"
        return Advice(
            f"Leave batch{what} out of what the dataset gives, {where(finding.site)}, where no step of the training "
            "reads it.",
            "who else reads it, and what makes it, only its author can tell",
        )

    EXAMPLES = (
        Example(
            before="class Patches:\n    def __getitem__(self, i):\n        return self.sample(i)  # <-\n",
            after="",
            parameters={"what": "['scan']"},
            advice="Leave batch['scan'] out",
        ),
    )
    LEAVES_ALONE = (Example("for batch in loader:  # <-\n    train(batch['patch'])\n", ""),)


def _listed(sizes: dict[str, int]) -> str:
    return ", ".join(sorted(sizes, key=lambda name: -sizes[name])[:3])


def _made_for_it(loader: Loader) -> float:
    """The share of a fetch that goes by what is delivered: collating, and a part of what makes the samples."""
    collating = sum(share(loader, each) for each in loader.parts if each.kind == "collate")
    lines = sum(share(loader, each) for each in loader.parts if each.kind == "line")
    return min(1.0, collating + _OF_LINES * lines)
