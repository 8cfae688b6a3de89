"""The HTML report: one file that holds everything it shows and loads nothing."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import jinja2
import msgspec
from markupsafe import Markup

from advisor import __version__
from advisor.findings import FindingDocument, Findings, Scalar
from advisor.report import diffs, outcome_page, parts, tried, wording
from advisor.report.colours import FAMILIES
from advisor.report.details import Details

# What the colours of the picture stand for.
_FAMILY_LABELS = {
    "kernel": "GPU kernel",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "loader": "data loading",
    "copy": "copy",
    "collective": "communication",
    "sync": "synchronization",
    "launch": "kernel launch",
    "host": "CPU operator",
    "python": "Python",
    "queued": "between queued kernels",
    "other": "other",
}


@dataclass(frozen=True)
class _Tile:
    label: str
    value: str
    note: str = ""


def render(document: Findings, shown: Details | None = None) -> str:
    """The whole page as text. ``shown`` adds the picture of a step and the tables; without it the page is shorter.

    Every text of the document is escaped: file names, operator names and diffs are anybody's text.
    """
    shown = shown or Details()
    script = _asset("report.js")
    picture = shown.picture
    return _template().render(
        document=document,
        version=__version__,
        script_name=wording.script(document.script),
        css=Markup(_stylesheet()),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        tiles=_tiles(document),
        parts=_parts(document),
        outcome=outcome_page.shown(document.outcome) if document.outcome is not None else None,
        findings=[_finding(finding) for finding in tried.arranged(document)],
        findings_title=tried.title(document),
        tried=any(finding.status != "proposed" for finding in document.findings),
        gauge=_gauge_of(document),
        picture=picture,
        picture_json=_script_safe(msgspec.json.encode(picture)) if picture else "",
        picture_time=wording.milliseconds(picture.duration_ns / 1e6) if picture else "",
        picture_events=wording.number(picture.events) if picture else "",
        picture_merged=wording.milliseconds(picture.merged_below_ns / 1e6)
        if picture and picture.merged_below_ns
        else "",
        picture_families=_families(shown),
        tables=shown.tables,
        ranks=_ranks(document),
        figures=[(wording.figure(key), wording.value(key, amount)) for key, amount in document.figures.items()],
        environment=wording.flattened(document.environment),
        safety=list(wording.SAFETY.items()),
    )


def _tiles(document: Findings) -> list[_Tile]:
    tiles = []
    if document.step_ms is not None:
        tiles.append(_Tile("step", wording.milliseconds(document.step_ms)))
    if document.samples_per_s is not None:
        tiles.append(_Tile("throughput", wording.number(document.samples_per_s), "samples per second"))
    if document.device:
        tiles.append(_Tile("device", document.device))
    busy = document.figures.get("gpu_busy_share")
    if isinstance(busy, (int, float)) and not isinstance(busy, bool):
        tiles.append(_Tile("GPU busy", wording.percent(busy), "of the time recorded"))
    if document.outcome is not None and document.outcome.kept:
        final = tried.final(document.outcome)
        tiles.append(_Tile("with the fixes kept", tried.ratio_of(document.outcome.speedup), final))
    elif any(finding.predicted.speedup.likely > 1.0 for finding in document.findings):
        best = max(document.findings, key=lambda finding: finding.predicted.speedup.likely)
        tiles.append(_Tile("largest single gain", wording.speedup(best.predicted.speedup), best.title))
    return tiles


def _parts(document: Findings) -> list[dict[str, Any]]:
    rows = []
    for key, share in parts.ordered(document.breakdown):
        part = parts.part(key)
        time = wording.milliseconds(document.step_ms * share) if document.step_ms else ""
        rows.append(
            {
                "label": part.label,
                "family": part.family,
                "meaning": part.meaning,
                "share": share,
                "percent": wording.percent(share),
                "time": time,
            }
        )
    return rows


def _finding(finding: FindingDocument) -> dict[str, Any]:
    return {
        "rank": finding.rank,
        "rule": finding.rule,
        "title": finding.title,
        "summary": finding.summary,
        "place": wording.place(finding),
        "speedup": wording.speedup(finding.predicted.speedup),
        "range": finding.predicted.speedup,
        "prediction": wording.prediction(finding),
        "safety": finding.safety,
        "safety_meaning": wording.SAFETY.get(finding.safety, ""),
        "kind": finding.fix.kind,
        "evidence": wording.evidence(finding.evidence),
        "text": finding.fix.text,
        "why_advice": finding.fix.why_advice,
        "settings": wording.settings(finding.fix),
        "diff": finding.fix.diff,
        "lines": diffs.lines(finding.fix.diff) if finding.fix.diff else [],
        "status": finding.status,
        "status_meaning": wording.STATUSES[finding.status],
        "measurement": wording.measurement(finding),
        "measured_speedup": f"{finding.measured.speedup:.2f}×" if finding.measured else "",
    }


def _gauge_of(document: Findings) -> Any:
    """A drawing function: each range on one scale from 1× to the largest of the page."""
    top = max([finding.predicted.speedup.high for finding in document.findings] + [1.05])

    def gauge(finding: Mapping[str, Any]) -> Markup:
        left, middle, right = (
            100 * min(1.0, max(0.0, (amount - 1) / (top - 1)))
            for amount in (finding["range"].low, finding["range"].likely, finding["range"].high)
        )
        return Markup(
            '<span class="gauge"><i style="left:{:.1f}%;width:{:.1f}%"></i><b style="left:{:.1f}%"></b></span>'
        ).format(left, max(right - left, 1.0), middle)

    return gauge


def _families(shown: Details) -> list[dict[str, str]]:
    if shown.picture is None:
        return []
    drawn = {index for lane in shown.picture.lanes for index in lane.family}
    return [
        {"name": name, "label": _FAMILY_LABELS.get(name, name)}
        for index, name in enumerate(shown.picture.families)
        if index in drawn
    ]


def _ranks(document: Findings) -> dict[str, Any] | None:
    if not document.ranks:
        return None
    keys: list[str] = list(dict.fromkeys(key for rank in document.ranks for key in rank))
    rows: list[list[str]] = [[_cell(key, rank) for key in keys] for rank in document.ranks]
    return {"columns": [wording.figure(key) for key in keys], "rows": rows}


def _cell(key: str, rank: Mapping[str, Scalar]) -> str:
    return wording.value(key, rank[key]) if key in rank else "–"


def _script_safe(data: bytes) -> Markup:
    """JSON that cannot end the script element that holds it."""
    text = data.decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_asset),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template("report.html.j2")


@cache
def _stylesheet() -> str:
    colours = "\n".join(f".f-{name}{{--c:{colour.page}}}" for name, colour in FAMILIES.items())
    return re.sub(r"</", r"<\\/", f"{_asset('report.css')}\n{_asset('outcome.css')}\n{colours}\n{diffs.styles()}")


@cache
def _asset(name: str) -> str:
    return (resources.files("advisor.report") / "templates" / name).read_text(encoding="utf-8")
