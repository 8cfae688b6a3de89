"""What keeps a loader of the script's from having more workers, or its first: shared files, counts, how they start."""

from __future__ import annotations

import re

import libcst as cst

from advisor.edit import Draft, Drafts
from advisor.edit.calls import DATALOADER_PARAMETERS, argument
from advisor.edit.loading.batches import read_within, readers
from advisor.edit.loading.datasets import (
    collates_on_gpu,
    fills,
    is_asked,
    kept_for_script,
    moves_on,
    opened_at_first,
    opened_outside,
    opened_when_made,
    uses_gpu,
)
from advisor.edit.loading.guard import has_main_guard, repeated_by_workers
from advisor.edit.loading.workers import may_be_imported_again, unpicklable
from advisor.edit.names import full_name, last_part
from advisor.edit.origins.origin import origin_of
from advisor.edit.origins.values import EDITED, bound_to, give
from advisor.edit.scopes import is_literal
from advisor.rule import Finding
from advisor.shared.frameworks import takes

# What is told a number that is no loader's workers.
_COUNTS_OTHERS = re.compile(r"(^|\.)(range|set_num_(interop_)?threads|\w*Pool|\w*PoolExecutor)$")
_ON_CPU = "Have the samples made on the CPU, and move each batch in the loop."


def would_share(finding: Finding, drafts: Drafts, draft: Draft, call: cst.Call) -> tuple[str, str] | None:
    """What else has to be done before the loader may have more workers, in a sentence or "", and why.

    None where nothing is seen of the dataset that they would share: an open file, what the script counts with it, the
    GPU of the process that forked them.
    """
    none_yet = not finding.parameters.get("recorded", 0)
    on_gpu = none_yet and finding.parameters.get("gpu")
    if written := _dataset_draft(finding, drafts, draft):
        name = str(finding.parameters["source"]).rpartition(".")[2]
        anew = "Have each worker open the file anew, at its first sample."
        given = opened_outside(draft, name, call)
        opened = opened_when_made(written, name) or given
        opened = opened or (opened_at_first(written, name) if is_asked(draft, call) else "")
        if opened and opened == given:
            return anew, f"the dataset is given {opened}, and all workers would read through that one file"
        if opened:
            why = f"the dataset calls {opened} before there are workers, which would all read through that one file"
            return anew, why
        if none_yet and (counted := kept_for_script(written, name, draft, call)):
            return "", f"the script reads {counted}, which would be changed in the workers only"
        if moved := moves_on(written, name):
            return "", f"each worker would go on from its own copy of {moved}, and give what the others give"
        if none_yet and (kept := fills(written, name)):
            why = f"the dataset keeps what it has made in {kept}, of which each worker would fill its own"
            return "", f"{why}: a later epoch may not wait at all"
        if on_gpu and (used := uses_gpu(written, name)):
            return _ON_CPU, f"the dataset calls {used}, which forked workers cannot"
    if on_gpu and (used := collates_on_gpu(draft, call)):
        return _ON_CPU, f"the collate function calls {used}, which forked workers cannot"
    return None


def not_started(finding: Finding, drafts: Drafts, draft: Draft, call: cst.Call, context: str) -> str:
    """Have workers start where they import the script again; why they would not, or "".

    By a guard around what the script does, or by the start method that needs none and pickles nothing.
    """
    if not finding.parameters.get("imports_again"):
        return ""
    what = str(finding.parameters.get("unpicklable", "")) or unpicklable(draft)
    if not what and may_be_imported_again(drafts, draft, call, str(finding.parameters.get("script", ""))):
        return ""
    fork = finding.parameters.get("fork") and takes(finding, context)
    if fork and give(drafts, draft, call, context, '"fork"', DATALOADER_PARAMETERS) == EDITED:
        return ""
    if not what and (again := repeated_by_workers(draft)):
        return f"workers import the script again, and each would call `{again}`: move it under a main guard"
    if not what and has_main_guard(draft):
        return "what the workers need is made under the script's guard, where they do not see it"
    if what:
        return f"workers that import the script again cannot be sent {what}: move it to the top level of a module"
    return 'the script needs an `if __name__ == "__main__":` guard around what it does first'


def decides_more(drafts: Drafts, draft: Draft, call: cst.Call) -> str:
    """What else the constant decides that says how many workers there are, in a clause; "" where nothing is seen."""
    passed = argument(call, "num_workers", DATALOADER_PARAMETERS)
    if passed is None or passed.star or is_literal(passed.value):
        return ""
    for other in draft.nodes(cst.Call):
        read = [each for arg in other.args for each in draft.nodes(type(passed.value), arg)]
        if _COUNTS_OTHERS.search(full_name(draft, other.func)) and draft.code(passed.value) in map(draft.code, read):
            return f"line {draft.line(other)} reads {draft.code(passed.value)}, too, for `{last_part(other.func)}`"
    origin = origin_of(drafts, draft, passed.value)
    if origin is None or origin.option:
        return ""
    name, within = bound_to(origin.draft, origin.node), read_within(origin.draft, origin.node)
    for each, called in readers(origin.draft, name, within):
        if _COUNTS_OTHERS.search(called):
            return f"line {origin.draft.line(each)} reads {name}, too, for `{called.rpartition('.')[2]}`"
    return ""


def _dataset_draft(finding: Finding, drafts: Drafts, draft: Draft) -> Draft | None:
    """The file of the dataset's class, where that is known and its loader has one worker at most.

    Two share already what more would share.
    """
    path = str(finding.parameters.get("source_file") or draft.source.path)
    known = finding.parameters.get("source") and finding.parameters.get("recorded", 0) in (0, 1)
    return drafts[path] if known and drafts.sources.editable(path) else None
