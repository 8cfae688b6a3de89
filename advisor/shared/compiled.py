"""What the rules share that propose to compile a model in place: what must be there, and where the call goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advisor.edit import Drafts
from advisor.edit.compiling import compile_refused
from advisor.edit.models import binding
from advisor.edit.names import framework_used
from advisor.evidence.fusion import too_old_for_triton
from advisor.rule import (
    Finding,
    call_sites,
    file_list,
    forward_sites,
    framework_of,
    optimizer_sites,
    own_files,
    serving_engine,
    site_list,
    sites,
    unless_source,
)

if TYPE_CHECKING:
    from advisor.evidence import Evidence


def unmet(evidence: Evidence) -> tuple[str, ...]:
    """What is missing of what a compiler needs, in sentences."""
    record = evidence.record
    if record is None:
        unknown = "The trace does not say whether its PyTorch is 2.0 or later, nor whether there is a C++ compiler."
        return (*too_old_for_triton(evidence), *unless_source(evidence, unknown))
    found = [*too_old_for_triton(evidence)]
    if evidence.device_is_gpu and not record.environment.triton:
        found.append("Triton is not installed: pip install triton.")
    if not record.environment.compiler:
        found.append("There is no C++ compiler: install one (apt-get install g++).")
    if record.shapes_vary:
        found.append("Input shapes change between steps: pad them to a few sizes first, or compile with dynamic=True.")
    return tuple(found)


def places(evidence: Evidence) -> dict[str, object]:
    """What :func:`put` has to know of a finding, as its parameters."""
    optimizers = evidence.record.optimizers if evidence.record is not None else []
    owners = [owner for each in optimizers if (owner := framework_of(each.owner))]
    moves = call_sites(evidence, "Module.to", "Module.cuda", "Module.eval", every_step=False)
    return {
        "forward": sites(forward_sites(evidence)),
        "moves": sites(moves),
        "optimizer": optimizer_sites(evidence),
        "own": own_files(evidence),
        "framework": owners[0] if owners else serving_engine(evidence),
    }


def framework(finding: Finding, drafts: Drafts) -> str:
    """Whose loop calls the model; "" where it is the script's own."""
    named = str(finding.parameters.get("framework") or "")
    forwards = site_list(finding, "forward")
    return named or next((each for site in forwards if (each := framework_used(drafts[site.file]))), "")


def put(finding: Finding, drafts: Drafts, arguments: str = "") -> str:
    """Have the model that is called at the finding's places be compiled once it is there; why not, as a clause.

    `arguments` are those of ``model.compile()``.
    """
    forwards = site_list(finding, "forward")
    if not forwards:
        return "the place of the forward is unknown"
    bound = binding(drafts, forwards, site_list(finding, "moves"), site_list(finding, "optimizer"))
    if bound is None:
        return "where the script makes its model cannot be told from the source"
    own = [path for path in file_list(finding, "own") if drafts.sources.has(path)]
    for path in dict.fromkeys((bound.draft.source.path, *(site.file for site in forwards), *own)):
        if why := compile_refused(drafts[path], bound.name):
            return why
    bound.draft.insert_after(bound.statement, f"{bound.name}.compile({arguments})")
    return ""
