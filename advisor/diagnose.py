"""Runs every rule over the evidence, asks each finding for its fix, ranks them, and writes the findings document."""

from __future__ import annotations

import dataclasses
import math
import os
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from advisor.edit import Edit, Sources, common_root
from advisor.errors import BAD_TRACE, AdvisorError
from advisor.evidence import Evidence
from advisor.findings import FindingDocument, Findings, FixDocument, Predicted, Range
from advisor.harness import layout
from advisor.rule import WORTH_IT, WORTH_IT_ON_CPU, Advice, Argument, Finding, Gain, Rule, Safety, Variable
from advisor.rulebook import load_rules
from advisor.run import Run

Fix = Edit | Argument | Variable | Advice

# Advice is not tried by itself: of two findings alike, the one with a fix at hand comes first.
_ADVICE_WEIGHT = 0.75
_MATTERS = 0.25  # of another one's expected gain


@dataclass(frozen=True)
class Diagnosed:
    """A finding, the rule that found it, and its fix."""

    rule: Rule
    finding: Finding
    fix: Fix

    @property
    def safety(self) -> Safety:
        return self.finding.safety or self.rule.safety


@dataclass(frozen=True)
class Diagnosis:
    """The findings document, and behind each of its entries, in the same order, the finding with its fix.

    Paths in the document and its diffs are relative to ``root``.
    """

    document: Findings
    found: tuple[Diagnosed, ...]
    root: str


def evidence_of(run: Run) -> Evidence:
    """The evidence for a diagnosis. Raises AdvisorError for a run that used the GPU and whose trace has no GPU work."""
    if run.record.device.type == "cuda" and run.trace is not None and len(run.trace.kernels) == 0:
        raise AdvisorError(
            "the script used the GPU, but its trace holds no kernel: another profiler may hold the GPU's counters, or "
            "this user may not read them (on NVIDIA: NVreg_RestrictProfilingToAdminUsers); end the one, or ask for the "
            "other, and profile again.",
            BAD_TRACE,
        )
    return Evidence.from_run(run)


def diagnose(
    evidence: Evidence,
    sources: Sources | None = None,
    root: str | None = None,
    rules: Sequence[Rule] | None = None,
) -> Diagnosis:
    """Find out what holds this run back.

    `sources` are the texts that fixes edit (default: the files on disk); `root` is what paths are relative to
    (default: the folder that the script ran in, or the deepest one that holds all edited files). A rule that raises
    is a note in the document and never ends the diagnosis.
    """
    sources = sources if sources is not None else Sources()
    if evidence.record is not None:
        sources = sources.with_files(evidence.record.settings, evidence.record.modules)
    notes: list[str] = []
    found: list[Diagnosed] = []
    for rule in rules if rules is not None else load_rules():
        found.extend(_apply(rule, evidence, sources, notes))
    ranked = rank(_explained(found))
    root = root if root is not None else _root(evidence, ranked)
    return Diagnosis(_document(evidence, ranked, root, notes), tuple(ranked), root)


def _apply(rule: Rule, evidence: Evidence, sources: Sources, notes: list[str]) -> list[Diagnosed]:
    try:
        findings = list(rule.check(evidence))
    except Exception as error:  # a rule's fault must not cost the user the other rules
        notes.append(_fault(rule, error))
        return []
    found = []
    for finding in findings:
        # What is no faster at all is there for something else: memory.
        if 1.0 < finding.gain.likely < _least_gain(evidence):
            continue
        try:
            fix: Fix = rule.fix(finding, sources)
        except AdvisorError as error:
            fix = Advice(f"{rule.title}.", f"no edit was made: {error}")
        except Exception as error:
            notes.append(_fault(rule, error))
            fix = Advice(f"{rule.title}.", "making the edit failed, which is a fault of the advisor")
        if isinstance(fix, Edit) and fix.site is not None:
            finding = dataclasses.replace(finding, site=fix.site)
        if not evidence.device_is_gpu:
            finding = dataclasses.replace(finding, gain=finding.gain.as_measured())
        found.append(Diagnosed(rule, finding, fix))
    return found


def _explained(found: Sequence[Diagnosed]) -> list[Diagnosed]:
    """Without the findings of fallback rules where another one promises half of their gain, or more, or is found there.

    Not one that makes the model's operators faster: what a fallback finds is beside them.
    """
    others = [each for each in found if not each.rule.fallback and not each.rule.of_operators]
    most = max((math.log(each.finding.gain.likely) for each in others), default=0.0)

    def explained(finding: Finding) -> bool:
        if most >= math.log(finding.gain.likely) / 2:
            return True
        if finding.site is None:
            return False
        lines, own = finding.parameters.get("within"), finding.site
        lines = lines if isinstance(lines, range) and lines else range(own.line, own.line + 1)
        sites = [each.finding.site for each in others if each.finding.site is not None]
        return any(each.file == own.file and each.line in lines for each in sites)

    return [each for each in found if not (each.rule.fallback and explained(each.finding))]


def _least_gain(evidence: Evidence) -> float:
    """The least likely speedup that is reported: one that could be told from none on this device."""
    return WORTH_IT if evidence.device_is_gpu else WORTH_IT_ON_CPU


def _fault(rule: Rule, error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{os.path.basename(frame.filename)}:{frame.lineno}"
    return f"the rule {rule.id} failed and was left out: {type(error).__name__}: {error} ({where})"


# Ranking ------------------------------------------------------------------------------------------------------------


def rank(found: Iterable[Diagnosed]) -> list[Diagnosed]:
    """Largest expected gain first; right before a finding those that its rule names in ``after``.

    Not those that promise next to nothing beside it: they would hide what matters, and what it promises hardly changes
    with them.
    """
    waiting = sorted(found, key=lambda each: (-_score(each), each.rule.id))
    ranked: list[Diagnosed] = []
    while waiting:
        _place(waiting[0], waiting, ranked)
    return ranked


def _place(each: Diagnosed, waiting: list[Diagnosed], ranked: list[Diagnosed]) -> None:
    """Move one from `waiting` to `ranked`, and before it those that it comes after, the best of them first."""
    waiting.remove(each)
    for other in tuple(waiting):
        first = other.rule.id in each.rule.after and each.rule.id not in other.rule.after
        if first and other in waiting and _score(other) >= _MATTERS * _score(each):
            _place(other, waiting, ranked)
    ranked.append(each)


def _score(each: Diagnosed) -> float:
    """Likely gain, weighed by how certain it is: the mean of the logarithms of the low end and the likely speedup."""
    gain = each.finding.gain
    expected = (math.log(max(gain.low, 0.1)) + math.log(max(gain.likely, 0.1))) / 2
    return expected * (_ADVICE_WEIGHT if isinstance(each.fix, Advice) else 1.0)


# The document -------------------------------------------------------------------------------------------------------


def _root(evidence: Evidence, found: Sequence[Diagnosed]) -> str:
    edited = [path for each in found if isinstance(each.fix, Edit) for path in each.fix.after]
    cwd = evidence.record.cwd if evidence.record is not None and evidence.record.cwd else os.getcwd()
    if all(os.path.abspath(path).startswith(cwd.rstrip(os.sep) + os.sep) for path in edited):
        return cwd
    return common_root(edited)


def _document(evidence: Evidence, found: Sequence[Diagnosed], root: str, notes: list[str]) -> Findings:
    record = evidence.record
    all_notes = [*evidence.notes, *(record.notes if record is not None else ()), *notes]
    return Findings(
        verdict=_verdict(evidence, found),
        script=record.script if record is not None else None,
        step_ms=evidence.step_s * 1e3 if evidence.step_s is not None else None,
        samples_per_s=evidence.samples_per_s,
        device=evidence.device_name,
        figures=dict(evidence.figures),
        findings=[entry(number, each, evidence, root) for number, each in enumerate(found, 1)],
        breakdown=dict(evidence.shares),
        ranks=list(evidence.ranks),
        notes=list(dict.fromkeys(all_notes)),
        environment=_environment(record) if record is not None else {},
    )


def _verdict(evidence: Evidence, found: Sequence[Diagnosed]) -> str:
    """What bounds the step; and where nothing was found, whether that is because nothing is wrong."""
    if found:
        return evidence.verdict
    least = f"{_least_gain(evidence) - 1:.0%}"
    if evidence.breakdown.on_device and evidence.bound != "device":
        return f"{evidence.verdict}; none of the rules has a fix that is predicted to make the step {least} faster"
    why = f"no fix known here is predicted to make the step {least} faster ({evidence.verdict})"
    return f"nothing worth changing: {why}"


def _environment(record: layout.RunRecord) -> dict[str, object]:
    facts = {**dataclasses.asdict(record.environment), "device": dataclasses.asdict(record.device)}
    if record.rank is not None and (record.world_size or 1) > 1:
        facts["rank"] = f"{record.rank} of {record.world_size}"
    return facts


def entry(number: int, each: Diagnosed, evidence: Evidence, root: str) -> FindingDocument:
    """A finding as ``findings.json`` has it; paths are relative to `root`."""
    finding, site = each.finding, each.finding.site
    return FindingDocument(
        rank=number,
        rule=each.rule.id,
        title=finding.title,
        summary=finding.summary,
        safety=each.safety.value,
        evidence=dict(finding.evidence),
        predicted=predicted(finding.gain, evidence.step_s),
        fix=fix_document(each.fix, root),
        file=_relative(site.file, root) if site is not None and site.file else None,
        line=site.line if site is not None else None,
    )


def predicted(gain: Gain, step_s: float | None) -> Predicted:
    """A gain as ``findings.json`` has it; `step_s` is the step's time now, for when a one-time cost is earned back."""
    pays_back = gain.pays_back_after(step_s) if step_s else None
    return Predicted(Range(gain.low, gain.likely, gain.high), gain.basis, gain.one_time_s, pays_back)


def fix_document(fix: Fix, root: str) -> FixDocument:
    """A fix as ``findings.json`` has it; diffs are relative to `root`."""
    if isinstance(fix, Edit):
        return FixDocument("edit", fix.summary, diff=fix.diff(root))
    if isinstance(fix, Argument):
        options = " ".join(f"{option} {value}".rstrip() for option, value in fix.options.items())
        text = f"Run the script with {options}. {fix.text}".strip()
        return FixDocument("argument", text, arguments=dict(fix.options))
    if isinstance(fix, Variable):
        values = " ".join(f"{name}={value}" for name, value in fix.values.items())
        return FixDocument(
            "environment", f"Run the script with {values} in its environment.", environment=dict(fix.values)
        )
    return FixDocument("advice", fix.text, why_advice=fix.why)


def _relative(path: str, root: str) -> str:
    path = os.path.abspath(path)
    return os.path.relpath(path, root) if path.startswith(os.path.abspath(root).rstrip(os.sep) + os.sep) else path
