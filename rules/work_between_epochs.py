"""Between two epochs the script does something else, for much of its time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.evidence.between_epochs import Stop, stop_of
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, at, call_sites, where
from advisor.shared.environments import acts_in_environment

if TYPE_CHECKING:
    from advisor.edit import Sources
    from advisor.evidence import Evidence

_HEAVY = 0.2  # of the time
_LEFT = 0.05  # of it: what is done once, or a few times, is not done for nothing
_BASIS = "measured: the share of the time in which the steps stand still there"
_RELOADS = "reload_dataloaders_every_n_epochs"
# What a loop plays, collects or searches for makes what is trained on.
_ROLLS_OUT = re.compile(
    r"(?i)roll_?out|episode|collect|(^|_)plays?($|_)|self_?play|game|mcts|explore|trajector|simulat|\benv\b|evaluat|validat"
)


class WorkBetweenEpochs(Rule):
    """Every so many steps the training stands still for something that is no evaluation and no checkpoint.

    A data module that computes the features of all clips anew whenever it is asked for its loader, a list of all pairs
    that is sorted for each epoch, texts that are tokenized again, a table that is put together again, plots of every
    layer. A step's own profile does not show it, for it comes between the steps. While they are timed undisturbed a
    thread looks at where the script is whenever a step takes three times as long as the one in the middle; what it sees
    says which lines, and the times of these steps say how much of the run.

    When not: each epoch is meant to have something new, which only this can make (a simulation, hard examples that the
    model chooses); then it may be done in other processes meanwhile, or with whole arrays.

    Source: Lightning, "Trainer", ``reload_dataloaders_every_n_epochs``; PyTorch docs, ``torch.utils.data``: a dataset
    is made once and goes through any number of epochs. The gain is measured, if hardly anything of it stays.
    """

    id = "work-between-epochs"
    title = "Take out of the epochs what they do not need each time"
    safety = Safety.BEHAVIOUR

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        found = stop_of(evidence) if evidence.trains else None
        if found is None or found.share < _HEAVY or _collects(evidence, found):
            return
        saved = found.each_s * (1.0 - _LEFT)
        function = f", in {found.site.function}()" if _named(found.site.function) else ""
        others = (each for each in found.called_from if each.function != found.site.function)
        around = next((each for each in others if each.line != found.site.line), None)
        way = f", called at {at(around)}" if around is not None else ""
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"Every {found.every:.0f} steps the training stands still for {found.each_s * 1e3:,.0f} ms at "
            f"{at(found.site)}{function}{way}: {found.share:.0%} of its time.",
            gain=Gain.of_pauses(found.period_s, saved, found.period_s - found.each_s, _BASIS),
            evidence={
                "share_of_time": found.share,
                "stands_still_s": found.each_s,
                "steps_between": found.every,
                "step_s": evidence.step_s,
            },
            site=found.site,
            parameters={"reloads": _reloads(evidence, found)},
        )

    def fix(self, finding: Finding, sources: Sources) -> Advice:
        if finding.parameters.get("reloads"):
            return Advice(
                f"Have Lightning ask for the loader once, Trainer({_RELOADS}=0), which is what it does unless it is "
                f"told otherwise: what is computed {where(finding.site)} is then computed once. If each epoch needs "
                "another loader, compute in setup() what stays the same.",
                "whether each epoch is to have other data only its author can tell",
            )
        return Advice(
            f"Do what is done {where(finding.site)} once, before the loop over epochs, where it gives the same each "
            "time, and keep it; less often, where it only shows something; and in the loader's workers, or for whole "
            "arrays at a time, where each epoch needs it anew.",
            "which of these it is only its author can tell",
        )

    EXAMPLES = (
        Example(
            before="for epoch in range(epochs):\n    pairs = all_pairs(rows)  # <-\n    train(model, pairs)\n",
            after="",
            advice="once, before the loop over epochs",
        ),
        Example(
            before="def train_dataloader(self):\n    return DataLoader(self.features(self.clips), 60)  # <-\n",
            after="",
            parameters={"reloads": True},
            advice="reload_dataloaders_every_n_epochs=0",
        ),
    )
    LEAVES_ALONE = (Example("pairs = all_pairs(rows)  # <-\nfor epoch in range(epochs):\n    train(pairs)\n", ""),)


def _named(function: str) -> bool:
    return bool(function) and not function.startswith("<")


def _collects(evidence: Evidence, found: Stop) -> bool:
    """Whether it makes what the model learns from by what the model does."""
    return acts_in_environment(evidence) or any(
        _ROLLS_OUT.search(each.function) for each in (found.site, *found.called_from)
    )


def _reloads(evidence: Evidence, found: Stop) -> bool:
    """Whether Lightning was told to ask for its loaders again, and that is where it does."""
    told = any(
        bool(each.details.get("values", {}).get(_RELOADS)) for each in call_sites(evidence, "Trainer", every_step=False)
    )
    return told and any(each.function == "train_dataloader" for each in (found.site, *found.called_from))
