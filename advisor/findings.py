"""``findings.json``: the public contract, as typed structs, and its JSON Schema."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

SCHEMA = 1

Scalar = float | int | str | bool | None
FixKind = Literal["edit", "argument", "environment", "advice"]
Status = Literal["proposed", "kept", "reverted", "failed", "inconclusive", "skipped"]


class Range(msgspec.Struct, frozen=True):
    """A speedup: old time per sample over new, 1.0 = no change."""

    low: float
    likely: float
    high: float


class Predicted(msgspec.Struct, frozen=True, omit_defaults=True):
    speedup: Range
    basis: str = "model"
    one_time_s: float = 0.0
    pays_back_after_steps: int | None = None


class FixDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """``diff`` is a unified diff that ``git apply`` takes; ``text`` says the same in words."""

    kind: FixKind
    text: str
    diff: str = ""
    arguments: dict[str, str] = {}
    environment: dict[str, str] = {}
    why_advice: str = ""


class Measured(msgspec.Struct, frozen=True):
    before_ms: float
    after_ms: float
    speedup: float
    low: float
    high: float
    loss_drift: float | None = None


class FindingDocument(msgspec.Struct, frozen=True):
    rank: int
    rule: str
    title: str
    summary: str
    safety: Literal["exact", "numeric", "behaviour"]
    evidence: dict[str, Scalar]
    predicted: Predicted
    fix: FixDocument
    status: Status = "proposed"
    file: str | None = None
    line: int | None = None
    measured: Measured | None = None


class Findings(msgspec.Struct, frozen=True):
    """The document. ``figures`` are means over devices; ``ranks`` has one entry per rank when there are several.

    ``breakdown`` maps a class of time (kernel, exposed_copy, idle_loader …; on a CPU loader, forward …) to
    its share of the step; the shares sum to 1.
    """

    verdict: str
    script: str | None
    step_ms: float | None
    samples_per_s: float | None
    device: str
    figures: dict[str, Scalar]
    findings: list[FindingDocument]
    schema: int = SCHEMA
    breakdown: dict[str, float] = {}
    ranks: list[dict[str, Scalar]] = []
    notes: list[str] = []
    environment: dict[str, Any] = {}


def encode(document: Findings) -> bytes:
    """The document as JSON, indented, with a final newline."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def decode(data: bytes) -> Findings:
    return msgspec.json.decode(data, type=Findings)


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of :class:`Findings`."""
    schema = msgspec.json.schema(Findings)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "advisor findings.json"
    return schema
