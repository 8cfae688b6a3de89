"""The report as Markdown: for a pull request, an issue, or a terminal's pager."""

from __future__ import annotations

import re
from collections.abc import Iterable

from advisor.findings import FindingDocument, Findings, Outcome, Trial
from advisor.report import parts, tried, wording
from advisor.report.waterfall import waterfall


def render(document: Findings) -> str:
    """The whole report; GitHub's dialect (tables, fenced diffs). Texts are escaped: they are shown, not interpreted."""
    blocks = [f"# {_text(document.verdict)}", _text(" · ".join(wording.headline(document)))]
    if document.outcome is not None:
        blocks += _outcome(document.outcome)
    blocks += _breakdown(document)
    if document.findings:
        findings = tried.arranged(document)
        blocks += [f"## {tried.title(document)}", _ranking(findings)]
        for finding in findings:
            blocks += _finding(finding)
    if document.notes:
        blocks += ["## Less certain, and why", "\n".join(f"- {_text(note)}" for note in document.notes)]
    if document.figures:
        rows = [(wording.figure(key), wording.value(key, amount)) for key, amount in document.figures.items()]
        blocks += ["## Figures", _table(("figure", "value"), rows)]
    if document.environment:
        blocks += ["## Environment", _table(("what", "value"), wording.flattened(document.environment))]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _breakdown(document: Findings) -> list[str]:
    classes = parts.ordered(document.breakdown)
    if not classes:
        return []
    rows = []
    for key, share in classes:
        part = parts.part(key)
        time = wording.milliseconds(document.step_ms * share) if document.step_ms else ""
        rows.append((part.label, wording.percent(share), time, part.meaning))
    return ["## Where a step's time goes", _table(("", "share", "time", "meaning"), rows, right=(1, 2))]


def _outcome(outcome: Outcome) -> Iterable[str]:
    """The waterfall and the trials that were not kept, as tables; what to do now."""
    yield f"## {_text(tried.headline(outcome))}"
    yield _text(" ".join(text for text in (tried.basis(outcome), tried.ended(outcome)) if text))
    if outcome.kept:
        shape = waterfall(outcome)
        yield _table(
            ("", shape.unit, "measured", "predicted", "run"),
            [
                (
                    f"{bar.trial.number}. {bar.trial.rule}" if bar.trial else bar.label,
                    shape.text(bar.amount),
                    tried.measured(bar.trial) if bar.trial else "",
                    tried.predicted(bar.trial) if bar.trial else "",
                    bar.trial.folder if bar.trial else ("baseline" if bar.kind == "baseline" else ""),
                )
                for bar in shape.bars
            ],
            right=(1,),
        )
    rest = [trial for trial in outcome.trials if trial.status != "kept"]
    if rest:
        yield "Tried and not kept:"
        yield _table(
            ("", "result", "why", "numbers", "run"),
            [
                (f"{trial.number}. {trial.rule}", trial.status, tried.reason(trial), tried.figures(trial), trial.folder)
                for trial in rest
            ],
        )
    for trial in outcome.trials:
        yield from _numerics(trial)
    if outcome.kept:
        if outcome.command:
            yield "To run the script with what was kept:"
            yield _fenced(" ".join(outcome.command.splitlines()), "sh")
        if tried.now(outcome):
            yield f"With what was kept: {_text(tried.now(outcome))}"


def _numerics(trial: Trial) -> Iterable[str]:
    """What the script computes, before and with a fix."""
    if tried.numerics(trial):
        yield _text(f"{trial.number}. {trial.rule}: {tried.numerics(trial)}")
    compared = tried.side_by_side(trial)
    if compared:
        columns = tried.excerpt(compared, 8)
        heads = ("loss" if compared.kind == "loss" else "output", "before", "with the fix")
        rows = [[heads[at], *(column[at] if column else "…" for column in columns)] for at in range(3)]
        yield _table(rows[0], rows[1:], right=tuple(range(1, len(columns) + 1)))


def _ranking(findings: list[FindingDocument]) -> str:
    rows = [
        (
            str(finding.rank),
            finding.title,
            wording.place(finding),
            wording.speedup(finding.predicted.speedup),
            finding.safety,
            finding.fix.kind,
            finding.status + (f" {finding.measured.speedup:.2f}×" if finding.measured else ""),
        )
        for finding in findings
    ]
    return _table(("#", "change", "place", "predicted", "safety", "fix", "result"), rows, right=(0, 3))


def _finding(finding: FindingDocument) -> Iterable[str]:
    yield f"### {finding.rank}. {_text(finding.title)}"
    place = f" at {_code(wording.place(finding))}" if finding.file else ""
    yield f"{_code(finding.rule)}{place} – **{finding.safety}**: {wording.SAFETY.get(finding.safety, '')}"
    yield _text(finding.summary)
    yield f"Predicted: {_text(wording.prediction(finding))}"
    measured = wording.measurement(finding)
    if measured:
        yield f"Measured, and **{finding.status}**: {_text(measured)}"
    elif finding.status != "proposed":
        yield wording.STATUSES[finding.status]
    yield "\n".join(f"- {_text(name)}: {_text(text)}" for name, text in wording.evidence(finding.evidence))
    yield _text(finding.fix.text)
    if finding.fix.why_advice:
        yield f"No edit was made: {_text(finding.fix.why_advice)}"
    settings = wording.settings(finding.fix)
    if settings:
        yield _fenced("\n".join(settings), "")
    if finding.fix.diff:
        yield _fenced(finding.fix.diff.rstrip("\n"), "diff")


def _table(header: Iterable[str], rows: Iterable[Iterable[str]], right: tuple[int, ...] = ()) -> str:
    names = list(header)
    rule = ["---:" if index in right else "---" for index in range(len(names))]
    lines = [names, rule, *([_text(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _text(text: str) -> str:
    """`text` so that Markdown shows it as it is, on one line."""
    flat = " ".join(text.split())
    flat = flat.replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\`*_\[\]|#~])", r"\\\1", flat)


def _code(text: str) -> str:
    flat = " ".join(text.split())
    ticks = "`" * (_longest_run(flat) + 1)
    padding = " " if "`" in flat else ""
    return f"{ticks}{padding}{flat}{padding}{ticks}"


def _fenced(text: str, language: str) -> str:
    fence = "`" * max(3, _longest_run(text) + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)
