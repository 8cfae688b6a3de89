"""Saving checkpoints takes a large part of the time of a training."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from advisor.edit import Drafts
from advisor.edit.every import done_every
from advisor.evidence.between_epochs import without_others
from advisor.evidence.bindings import last_name, on_line
from advisor.evidence.loading.fetching import parsed
from advisor.evidence.set_aside import FEWER, pauses_of
from advisor.fixes import given_fix
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
    epoch_steps,
    number_of,
    where,
)
from advisor.shared.frameworks import told_every

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence
    from advisor.harness.layout import Site

_HEAVY = 0.1  # of the time
_ENOUGH = 0.02  # of the time: what saving is brought down to
_BASIS = "measured: the checkpoints' share of the time"


class CheckpointHeavy(Rule):
    """The training stops to save so often that saving takes a large part of its time.

    A checkpoint is read when something went wrong, and then costs the steps since the last one: saved every 50 seconds,
    of which it takes one, that is 25 seconds of work on average. What happens between two steps while a file of weights
    is written (by its name: ``.pt``, ``.ckpt``, ``.safetensors`` ...) is timed and set aside from the steps; where the
    checkpoints come regularly, their seconds and the steps between them give their share of the run.

    When not: each of them is kept to be looked at; the machine may be taken away at any moment. What has to be saved
    that often can be copied in the step and written by a thread beside the next ones. Where nothing is saved behind the
    loop, the last checkpoint would be one of more steps before the end: that is said, and not counted as the same.

    Source: PyTorch docs, ``torch.distributed.checkpoint.async_save``; Hugging Face Transformers,
    ``TrainingArguments.save_steps``; Young 1974, "A first order approximation to the optimum checkpoint interval".
    """

    id = "checkpoint-heavy"
    title = "Save checkpoints less often"
    safety = Safety.EXACT

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record = evidence.record
        if record is None or not evidence.trains:
            return
        pauses = pauses_of(record.timing, "checkpoint", record.timing.checkpoint_every, told_every(evidence, "save"))
        pauses = without_others(record, pauses, "checkpoint") if pauses is not None else None
        if pauses is None or pauses.share < _HEAVY:
            return
        times = pauses.fewer(_ENOUGH, record.total_steps)
        if times < FEWER:
            return  # of the few that the script makes none is to go
        places = sorted(call_sites(evidence, "checkpoint", every_step=False), key=lambda place: -place.calls)
        site = places[0].site if places else None
        last, epoch = site is not None and _is_saved_behind(site, record.modules), epoch_steps(evidence)
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"Every {pauses.every:.0f} steps the training stops for {pauses.each_s * 1e3:.1f} ms to save a "
            "checkpoint" + (f", at {at(site)}" if site is not None else "") + f": {pauses.share:.0%} of its time.",
            gain=Gain.of_pauses(pauses.period_s, pauses.each_s * (1 - 1 / times), pauses.steps_s, _BASIS),
            evidence={
                "checkpoint_share": pauses.share,
                "checkpoint_s": pauses.each_s,
                "steps_between_checkpoints": pauses.every,
                "step_s": evidence.step_s,
            },
            site=site,
            safety=None if last else Safety.BEHAVIOUR,
            parameters={"every": round(pauses.every * times), "now": round(pauses.every), "last": last, "epoch": epoch},
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        every, now, site = finding.parameters.get("every"), finding.parameters.get("now"), finding.site
        text = f"Save a checkpoint every {every} steps {where(site)}"
        text += "" if finding.parameters.get("last") else ", and once more behind the loop"
        drafts = Drafts(sources)
        if site is not None and isinstance(every, int) and isinstance(now, int):
            seldom = done_every(drafts, site, every, now, number_of(finding, "epoch"))
            if seldom is not None:
                whole = f"{text}." if finding.parameters.get("last") else f"{text}, which this leaves to you."
                return given_fix(drafts, drafts[site.file], seldom, str(every), whole, whole)
        return Advice(
            f"{text}, or copy the weights there and have a thread write them, as "
            "torch.distributed.checkpoint.async_save does.",
            "how often the training has to be saved only its author knows",
        )

    EXAMPLES = (
        Example(
            before="""
import torch

for step, x in enumerate(batches):
    train(net, x)
    if step % 5 == 0:
        torch.save({"net": net.state_dict(), "step": step}, "last.pt")  # <-
        print(step)
""",
            after="""
import torch

for step, x in enumerate(batches):
    train(net, x)
    if step % 100 == 0:
        torch.save({"net": net.state_dict(), "step": step}, "last.pt")
        print(step)
""",
            parameters={"every": 100, "now": 5},
        ),
        Example(  # the batches are counted, and not the epochs
            before="""
import torch

for epoch in range(10):
    for step, x in enumerate(batches):
        train(net, x)
        if step % 5 == 0:
            torch.save(net.state_dict(), "last.pt")  # <-
""",
            after="""
import torch

for epoch in range(10):
    for step, x in enumerate(batches):
        train(net, x)
        if step % 100 == 0:
            torch.save(net.state_dict(), "last.pt")
""",
            parameters={"every": 100, "now": 5},
        ),
        Example(
            before="for x in batches:\n    train(net, x)\n    keep(net, 'last.pt')  # <-\n",
            after="",
            parameters={"every": 40, "now": 1},
            advice="async_save",
        ),
    )
    LEAVES_ALONE = (
        Example("for x in batches:\n    torch.save(net.state_dict(), 'net.pt')  # <-\n", "", {"every": 40, "now": 1}),
        *(
            Example(  # there would be none
                f"import torch\n\nN = 50\nfor step in {rounds}:\n    train(net)\n    if (step + 1) % 5 == 0:\n"
                "        torch.save(net.state_dict(), 'net.pt')  # <-\n",
                "",
                {"every": 100, "now": 5},
            )
            for rounds in ("range(50)", "range(1, 51)", "range(1, N + 1)")
        ),
        Example(  # what was saved is read again
            "import torch\n\nfor step, x in enumerate(batches):\n    if step % 5 == 0:\n"
            "        torch.save(net.state_dict(), 'net.pt')  # <-\n    old.load_state_dict(torch.load('net.pt'))\n",
            "",
            {"every": 100, "now": 5},
        ),
    )


def _is_saved_behind(site: Site, modules: Iterable[str]) -> bool:
    """Whether what is saved at `site`, in each of a loop's rounds, is saved behind the loop as well.

    By what is called at the line, or by the name of the function that the line stands in, which the script may call in
    another one of its `modules`.
    """
    paths = dict.fromkeys((site.file, *modules))
    trees = {path: tree for path in paths if (tree := parsed(path)) is not None}
    nodes = list(ast.walk(trees[site.file])) if site.file in trees else []
    calls = sorted(
        (each for each in nodes if isinstance(each, ast.Call) and each.lineno == site.line),
        key=lambda each: each.col_offset,
    )
    own = ast.unparse(calls[0].func) if calls else ""
    around = [each for each in nodes if isinstance(each, ast.FunctionDef) and on_line(each, site.line)]
    holder = around[-1].name if around else ""
    return any(_again_behind(tree, own if path == site.file else "", holder) for path, tree in trees.items())


def _again_behind(tree: ast.Module, own: str, holder: str) -> bool:
    """Whether a call of `own`, or of a function by the name `holder`, is in a loop, and another one behind that."""
    nodes: list[Any] = list(ast.walk(tree))
    calls = [each for each in nodes if isinstance(each, ast.Call)]
    saves = [each.lineno for each in calls if ast.unparse(each.func) == own or last_name(each.func) == holder != ""]
    blocks = [getattr(each, name, None) for each in nodes for name in ("body", "finalbody")]
    for body in (each for each in blocks if isinstance(each, list)):
        for number, statement in enumerate(body):
            loops = (each for each in ast.walk(statement) if isinstance(each, (ast.For, ast.While)))
            if not any(on_line(loop, line) for loop in loops for line in saves):
                continue
            behind = [*body[number + 1 :], *getattr(statement, "finalbody", ())]
            if any(on_line(each, line) for each in behind for line in saves):
                return True
    return False
