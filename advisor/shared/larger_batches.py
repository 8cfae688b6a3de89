"""What a larger batch has to change: where its size is said, what is tied to it, and how many batches are added up.

Where the gradients of several are, those are two numbers, which have to change together.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import libcst as cst

from advisor.edit import Draft, Drafts, Sources
from advisor.edit.changes import is_set
from advisor.edit.loading.batches import Written, said_sizes
from advisor.edit.loading.rounds import counted_at
from advisor.edit.loading.tied import counted_by_hand, divided_by, fixed_by_hand, said_to_others
from advisor.edit.locate import call_at, last_name
from advisor.edit.origins.options import option_value
from advisor.edit.origins.values import EDITED, give, give_value
from advisor.edit.scopes import literal_equals
from advisor.edit.sources import text_of
from advisor.errors import AdvisorError
from advisor.evidence.python_loops.added_gradients import adds_up_gradients
from advisor.fixes import by_option, edited
from advisor.harness.layout import Site
from advisor.rule import Advice, Argument, Finding, at, call_sites, file_list, framework_of, site_list
from advisor.shared.frameworks import construction, told

if TYPE_CHECKING:
    from advisor.edit import Edit
    from advisor.evidence import Evidence
    from advisor.harness.layout import CallSite, Loader, RunRecord

# What says of how many batches the gradients are added up, by what is constructed with it.
ACCUMULATES = {
    "TrainingArguments": "gradient_accumulation_steps",
    "Trainer": "accumulate_grad_batches",
    "Accelerator": "gradient_accumulation_steps",
}
_OF_OBJECT = "gradient_accumulation_plugin"  # of Accelerator: says it instead, and more
Given = tuple[Draft, str]  # what `give` answers, in which file


def added_together(evidence: Evidence, loader: Loader) -> tuple[int, dict[str, object]]:
    """Of how many of the loader's batches the gradients are added up, and what a fix has to know; 1 where of one.

    As many as a framework is told; else those of a step, where the source around the ``backward`` shows that it is so.
    """
    made = construction(evidence)
    values, name = made.get("config_values"), ACCUMULATES.get(str(made.get("config_kind")), "")
    number = values.get(name) if isinstance(values, dict) else None
    rounds = evidence.step_model.batches_per_step
    by_trainer = framework_of(loader.owner) == "transformers"
    # Of arguments that a loop of the script's own reads its source has to say what they mean.
    of_it = by_trainer == (made.get("config_kind") == "TrainingArguments")
    if isinstance(number, int) and number > 1 and of_it and (by_trainer or number == rounds):
        return number, made
    backwards = call_sites(evidence, "backward")
    if rounds != int(rounds) or len(backwards) != 1 or abs(backwards[0].calls_per_step - rounds) > 0.02 * rounds:
        return 1, made
    site = backwards[0].site
    return (int(rounds), {"backward": (site,)}) if adds_up_gradients(text_of(site.file), site.line) else (1, made)


def added_up(
    drafts: Drafts,
    finding: Finding,
    rounds: int,
    fewer: int,
    batch: tuple[Draft, str, int],
    names: Collection[str],
    text: str,
) -> Edit | Argument | Advice:
    """The fix that adds up the gradients of `fewer` batches, not of `rounds`, beside larger ones.

    `batch` is the file that says how large they are, what :func:`advisor.edit.origins.values.give` has answered for it,
    and the size; `names` are what it is called.
    """
    draft, answer, size = batch
    counts, why = _told(drafts, finding, rounds, fewer)
    if counts is None and not why:
        counts, why = _counted(drafts, finding, rounds, fewer, names)
    if counts is None:
        return Advice(text, why)
    numbers = [(draft, answer, size), *((of, given, fewer) for of, given in counts)]
    if all(given == EDITED for _, given, _ in numbers):
        return edited(drafts, text)
    if any(given == EDITED for _, given, _ in numbers):
        return Advice(text, "one of the two numbers is an option of the command line, and the other is not")
    options = {}
    for of, option, number in numbers:
        word = option_value(drafts, of, option, str(number))
        if word is None:
            return Advice(text, f"{option} may not take {number}, by its type or choices")
        options[option] = word
    return Argument(options)


def _told(drafts: Drafts, finding: Finding, rounds: int, fewer: int) -> tuple[list[Given] | None, str]:
    """The setting of a framework; None and nothing where none was told, None and why where it cannot be changed."""
    places, kind = site_list(finding, "config"), str(finding.parameters.get("config_kind", ""))
    name = ACCUMULATES.get(kind, "")
    if len(places) != 1 or told(finding, name) != rounds:
        return None, ""
    of = str(finding.parameters.get("config_class") or kind)
    draft = drafts[places[0].file]
    call = call_at(draft, places[0], (of,))
    if call is None or last_name(draft, call) != of or told(finding, _OF_OBJECT) or is_set(drafts, draft, name):
        return None, f"where {kind} is told their number cannot be told from the source"
    remainders = [each for each in draft.nodes(cst.BinaryOperation) if isinstance(each.operator, cst.Modulo)]
    if any(literal_equals(each.right, rounds) for each in remainders):
        return None, f"the script counts up to {rounds} itself, too"
    given = give(drafts, draft, call, name, str(fewer), recorded=rounds)  # whoever reads it means the same by it
    return ([(draft, given)], "") if given is not None else (None, f"where its {name} comes from cannot be told")


def _counted(
    drafts: Drafts, finding: Finding, rounds: int, fewer: int, names: Collection[str]
) -> tuple[list[Given] | None, str]:
    """What the script's own loop counts up to."""
    places = site_list(finding, "backward")
    if len(places) != 1:
        return None, "where their number comes from cannot be told"
    draft = drafts[places[0].file]
    nodes, why = counted_at(drafts, draft, places[0].line, rounds, names)
    if nodes is None:
        return None, why
    found = []
    for node in nodes:
        given = give_value(drafts, draft, node, str(fewer), rounds)
        if given is None:
            return None, "where their number comes from cannot be told from the source"
        found.append((draft, given))
    return found, ""


def said_places(record: RunRecord, forwards: Sequence[CallSite], batch: int) -> tuple[tuple[Site, str], ...]:
    """Where the script says how large its batches are, each place with the option that sets it (or "")."""
    sources, found = Sources(), []
    for path in dict.fromkeys((record.script, *(each.site.file for each in forwards))):
        try:
            draft = Draft(sources.source(path))
        except AdvisorError:
            continue
        found += [(Site(path, draft.line(each.node)), each.option) for each in said_sizes(draft, batch, record.argv)]
    return tuple(found)


def tied_to(drafts: Drafts, finding: Finding, written: Written, size: int, of_more: bool) -> str:
    """What would have to change with the size that is written there, in a clause; empty where nothing is seen.

    With `of_more` an update of the weights is of more samples than before.
    """
    recorded, own = finding.parameters.get("recorded"), finding.site.file if finding.site is not None else ""
    for path in dict.fromkeys((own, *written.files, *file_list(finding, "files"))):
        if not isinstance(recorded, int) or not drafts.sources.editable(path):
            continue
        with contextlib.suppress(AdvisorError):
            draft = drafts[path]
            line = fixed_by_hand(draft, recorded)
            line = counted_by_hand(draft, recorded) if line is None else line
            line = said_to_others(draft, recorded, written.nodes) if line is None else line
            if line is not None:
                return f"the size stands as a number at {at(Site(path, line))}, too"
            # Of smaller batches more are accumulated: what is learned stays as it was.
            if of_more and size > recorded and (why := divided_by(drafts, draft, written.names, size)):
                return f"{why}, in {os.path.basename(path)}" if path != own else why
    return ""


def say_size(
    drafts: Drafts, said: tuple[tuple[Site, str], ...], written: Written, size: int, text: str, rate: str
) -> Edit | Argument | Advice:
    """The fix for batches that are made by hand, where there is one place that says how large."""
    if len(said) != 1:
        return Advice(text, f"the size stands in {len(said)} places: {', '.join(at(site) for site, _ in said)}")
    ((site, option),) = said
    draft = drafts[site.file]
    if option:
        return by_option(drafts, draft, option, str(size), text, rate)
    if not written.nodes:
        return Advice(text, "where the batch size comes from cannot be told from the source")
    draft.replace(written.nodes[0], str(size))
    return edited(drafts, text)
