"""The threads that a script's operators run with: who asks for their number, and how another one is written there."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import libcst as cst

from advisor.edit import Drafts
from advisor.edit.locate import call_at
from advisor.edit.origins.values import give
from advisor.fixes import edited, given_fix, sets_variable
from advisor.harness.layout import Site
from advisor.rule import Advice, Argument, Finding, Variable, at, call_sites

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence
    from advisor.harness.layout import RunRecord

VARIABLE, UNSET = "OMP_NUM_THREADS", "not set"


def asked(record: RunRecord) -> str:
    """What the variable says, or that it says nothing."""
    return record.environment.variables.get(VARIABLE, UNSET)


def asking(evidence: Evidence, record: RunRecord, threads: int) -> list[Site]:
    """Where the script asks for so many: by a call, or by the variable."""
    calls = call_sites(evidence, "set_num_threads", every_step=False)
    if not calls and asked(record) == str(threads):
        return _assignments(record.script, str(threads))
    return [each.site for each in calls if each.details.get("threads") == threads]


def by_variable(record: RunRecord, threads: int, sites: list[Site]) -> bool:
    """Whether the variable decides, where nothing in the script does, and may be given."""
    return not sites and asked(record) in (str(threads), UNSET) and not sets_variable(record, VARIABLE)


def use_threads(finding: Finding, sources: Sources) -> Edit | Argument | Variable | Advice:
    """The fix of a finding whose parameters say how many ("cores"), how many there are ("recorded"), and "variable"."""
    cores, site = str(finding.parameters.get("cores", 1)), finding.site
    if site is None:
        if finding.parameters.get("variable"):
            return Variable({VARIABLE: cores})
        return Advice(
            f"Call torch.set_num_threads({cores}), or set {VARIABLE}={cores}, or leave both away.",
            "where the number of threads comes from was not seen",
        )
    text = f"Use {cores} threads at {at(site)}, one per core."
    drafts = Drafts(sources)
    draft = drafts[site.file]
    recorded = finding.parameters.get("recorded")
    call = call_at(draft, site, ("set_num_threads",))
    if call is None:
        return _assign(drafts, site, str(recorded), cores, text)
    option = give(drafts, draft, call, "int", cores, ("int",), recorded, alone=True) if call.args else None
    if option is None:
        return Advice(text, "where the number of threads comes from cannot be told from the source")
    return given_fix(drafts, draft, option, cores, text)


def _assignments(script: str, value: str) -> list[Site]:
    """Where the script gives the variable this value: ``os.environ["OMP_NUM_THREADS"] = "32"``, or by setdefault."""
    try:
        with open(script, encoding="utf-8") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return []
    found = []
    for statement in ast.walk(tree):
        if isinstance(statement, (ast.Assign, ast.Expr)):
            texts = [node.value for node in ast.walk(statement) if isinstance(node, ast.Constant)]
            if sorted(map(str, texts)) == sorted((VARIABLE, value)):
                found.append(Site(script, statement.lineno))
    return found


def _assign(drafts: Drafts, site: Site, value: str, cores: str, text: str) -> Edit | Advice:
    """Another value for the variable, in the one string of the line that is its value."""
    draft = drafts[site.file]
    strings = [node for node in draft.nodes(cst.SimpleString) if draft.line(node) == site.line]
    values = [node for node in strings if node.evaluated_value == value]
    if len(values) != 1 or not any(node.evaluated_value == VARIABLE for node in strings):
        return Advice(text, "the number of threads is not written there as such")
    quote = values[0].quote
    draft.replace(values[0], f"{quote}{cores}{quote}")
    return edited(drafts, text)
