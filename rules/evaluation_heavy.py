"""Evaluating takes a large part of the time of a training."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from advisor.edit.sources import text_of
from advisor.evidence.between_epochs import runs_everything, without_others
from advisor.evidence.coverage import Coverage
from advisor.evidence.python_loops.reports import makes_data
from advisor.evidence.set_aside import FEWER, pauses_of
from advisor.rule import (
    Advice,
    Argument,
    Example,
    Finding,
    Gain,
    Rule,
    Safety,
    at,
    call_sites,
    model_files,
    where,
)
from advisor.shared.environments import acts_in_environment
from advisor.shared.frameworks import construction, told_every

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence
    from advisor.harness.layout import RunRecord, Site

_HEAVY = 0.25  # of the time: an evaluation of a tenth of the data after each epoch is a few hundredths
_EACH = 0.9  # calls per step from which on each step makes one
_ENOUGH = 0.05  # of the time: what evaluating is brought down to
_DECIDES = re.compile(
    r"ReduceLROnPlateau|EarlyStopping|patience|early_stop|load_best_model|metric_for_best|ModelCheckpoint"
    r"|\bbest\w*\b.*\n(.*\n){0,6}.*\bsave\w*\("
)
_BASIS = "measured: the evaluations' share of the time"
# Of an evaluation, what gathering its logits takes, each batch's with all before it, and looking for the largest of all
# of them once more: a prior, of one (384 texts of 64 words, 8000 in the vocabulary), of which 0.74 went.
_GATHERED = 0.5
_GATHERED_BASIS = "prior: half of an evaluation gathers the logits"
# What tells it how often, and on how much, by what constructs its settings.
_TOLD = {
    "TrainingArguments": 'eval_steps={every}, eval_strategy="steps"',
    "Trainer": "val_check_interval={every}, check_val_every_n_epoch=None, limit_val_batches=…",
}


class EvaluationHeavy(Rule):
    """The training stops to evaluate so often that evaluating takes a large part of its time.

    An evaluation teaches the model nothing. One every few hundred steps shows the same curve as one every ten, a fixed
    part of the held-out samples tells a better model from a worse one nearly as well as all of them, and without
    gradients larger batches fit into memory. What happens between two steps while a module is put into evaluation mode,
    or a loader that does not feed the steps gives a batch, is timed and set aside from the steps; where the evaluations
    come regularly, their seconds and the steps between them give their share of the run. Where a ``Trainer`` keeps the
    logits of all samples for metrics that take the largest only, that is told of however seldom it evaluates.

    When not: early stopping needs the measure that often; the run is short and the curve is what it is made for; a
    rollout in evaluation mode that makes the next training data is no evaluation.

    Source: Hugging Face Transformers, ``TrainingArguments.eval_steps``; Lightning, "Trainer", ``val_check_interval``,
    ``check_val_every_n_epoch``, ``limit_val_batches``; torch.inference_mode.
    """

    id = "evaluation-heavy"
    title = "Evaluate less often"
    safety = Safety.EXACT

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record = evidence.record
        if record is None or not evidence.trains:
            return
        if (found := _in_each_step(evidence, record)) is not None:
            yield found
            return
        told_steps = told_every(evidence, "eval")
        gathers = _gathers(record) if told_steps else ""
        pauses = pauses_of(record.timing, "evaluation", record.timing.evaluation_every, told_steps)
        pauses = without_others(record, pauses, "evaluation") if pauses is not None else None
        if pauses is None or pauses.share < _HEAVY:
            return
        # A rollout in an environment makes what is trained on, in eval() and without gradients as well.
        if acts_in_environment(evidence):
            return
        times = pauses.fewer(_ENOUGH, record.total_steps)
        fewer = times >= FEWER
        if not fewer and not gathers:
            return  # of the few that the script makes none is to go
        saved_s = pauses.each_s * ((1 - 1 / times) if fewer else _GATHERED)
        places = sorted(call_sites(evidence, "evaluation", every_step=False), key=lambda place: -place.calls)
        site = places[0].site if places else None
        if site is not None and makes_data(text_of(site.file), site.line):
            return  # hard negatives, labels of its own
        told = _told_how_often(evidence, site)
        yield Finding(
            rule=self.id,
            title=self.title if fewer else "Keep of the logits what an evaluation takes",
            summary=f"Every {pauses.every:.0f} steps the training stops for {pauses.each_s * 1e3:.1f} ms to evaluate"
            + (f", at {at(site)}" if site is not None else "")
            + f": {pauses.share:.0%} of its time.",
            gain=Gain.of_pauses(pauses.period_s, saved_s, pauses.steps_s, _BASIS if fewer else _GATHERED_BASIS),
            evidence={
                "evaluation_share": pauses.share,
                "evaluation_s": pauses.each_s,
                "steps_between_evaluations": pauses.every,
                "step_s": evidence.step_s,
            },
            site=told["config"][0] if told else site,
            parameters={"every": round(pauses.every * times) if fewer else None, **told, "gathers": gathers},
            # What an evaluation finds decides on the training itself there, and would do so later.
            safety=Safety.BEHAVIOUR if any(_DECIDES.search(text_of(path)) for path in model_files(evidence)) else None,
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        every, kind = finding.parameters.get("every"), str(finding.parameters.get("config_kind", ""))
        by = f": {_TOLD[kind].format(every=every)} for the {kind} {where(finding.site)}" if kind else ""
        by = by or f" {where(finding.site)}"
        gathers = finding.parameters.get("gathers")
        logits = (
            f" {gathers} takes the largest of the logits, which the Trainer keeps whole for all samples: given "
            "preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1) it keeps what is taken."
        )
        if gathers and every is None:
            return Advice(
                f"{logits.strip()} {gathers} then gets the indices where it had the logits.",
                "what else the metrics need only their author can tell",
            )
        return Advice(
            f"Evaluate every {every} steps{by}, on a fixed part of the held-out samples, in larger batches and in "
            f"torch.inference_mode().{logits if gathers else ''}",
            "how often the training has to be looked at, only its author knows",
        )

    EXAMPLES = (
        Example(
            before="""
for step, (x, y) in enumerate(loader):
    train(model, x, y)
    if step % 10 == 0:
        best = max(best, validate(model, held_out))  # <-
""",
            after="",
            parameters={"every": 200},
            advice="every 200 steps at train.py:4",
        ),
        Example(
            before='args = TrainingArguments("out", eval_strategy="steps", eval_steps=4)  # <- config\n'
            "trainer = Trainer(model, args, train_dataset=train, eval_dataset=held_out)\ntrainer.train()\n",
            after="",
            parameters={"every": 120, "config_kind": "TrainingArguments"},
            advice="eval_steps=120",
        ),
        Example(
            before='args = TrainingArguments("out", eval_strategy="steps", eval_steps=200)  # <- config\n'
            "trainer = Trainer(model, args, compute_metrics=metrics, eval_dataset=held_out)\ntrainer.train()\n",
            after="",
            parameters={"every": None, "gathers": "metrics()", "config_kind": "TrainingArguments"},
            advice="preprocess_logits_for_metrics=",
        ),
    )
    LEAVES_ALONE = (Example("for x, y in loader:\n    train(x, y)\nvalidate(model)  # <-\n", "", {"every": 400}),)


def _gathers(record: RunRecord) -> str:
    """The function that computes metrics of logits by their largest only, for which a ``Trainer`` keeps all of them."""
    texts = [text_of(path) for path in record.modules]
    if any("preprocess_logits_for_metrics" in text for text in texts):
        return ""
    named = {name for text in texts for name in re.findall(r"\bcompute_metrics\s*=\s*(\w+)", text)}
    for text in texts:
        try:
            functions = [each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.FunctionDef)]
        except (SyntaxError, ValueError):
            continue
        for each in functions:
            if each.name in named and re.search(r"\bargmax\(", ast.unparse(each)):
                return f"{each.name}()"
    return ""


def _told_how_often(evidence: Evidence, site: Site | None) -> dict[str, Any]:
    """Where the script has told the framework how often to evaluate, if that is what evaluates at `site`."""
    if site is None or not runs_everything(site.file, site.line):
        return {}
    found = construction(evidence)
    return found if found.get("config_kind") in _TOLD else {}


def _in_each_step(evidence: Evidence, record: RunRecord) -> Finding | None:
    """An evaluation that is a part of every step: a loader is gone through in each of them, without gradients."""
    places = [each for each in call_sites(evidence, "evaluation") if each.calls_per_step >= _EACH]
    modes = [each for each in call_sites(evidence, "Module.eval") if each.calls_per_step >= _EACH]
    through = [each.epochs for each in record.loaders if (each.batches or 0) > 1]
    # A short script's times may be those of a first run with more steps than the one that its loaders were seen in.
    steps = min(record.timing.steps, record.steps)
    if not places or not modes or len(through) < 2 or max(through) < max(_EACH * steps, 2 * min(through)):
        return None
    start, end = evidence.steps.start, evidence.steps.end
    forward, graph = evidence.host.forward, evidence.host.differentiated
    plain = graph.within(forward.start, forward.end) == 0
    seconds = 0.0
    for first, last in zip(start.tolist(), end.tolist(), strict=True):
        here = (forward.start >= first) & (forward.end <= last)
        own = plain & here
        if not (here & ~plain).any():
            return None  # the forward that is trained by was not told from the others
        if own.any():  # from the first of its forwards to the last: what lies between belongs to it
            begun, over = int(forward.start[own].min()), int(forward.end[own].max())
            trained = Coverage(forward.start[~plain], forward.end[~plain]).total_within(begun, over)
            seconds += (over - begun - trained) / 1e9
    share = seconds * 1e9 / max(1, int((end - start).sum()))
    if share < _HEAVY or not evidence.step_s:
        return None
    step_s, site = evidence.step_s, places[0].site
    times = max(2, round(share * (1 - _ENOUGH) / (_ENOUGH * (1 - share))))
    saved = share * step_s * (1 - 1 / times)
    return Finding(
        rule=EvaluationHeavy.id,
        title=EvaluationHeavy.title,
        summary=f"Every step the training stops for {share * step_s * 1e3:.1f} ms to evaluate, at {at(site)}: "
        f"{share:.0%} of its time.",
        gain=Gain.of_pauses(step_s, saved, (1 - share) * step_s, _BASIS),
        evidence={
            "evaluation_share": share,
            "evaluation_s": share * step_s,
            "steps_between_evaluations": 1,
            "step_s": step_s,
        },
        site=site,
        parameters={"every": times},
    )
