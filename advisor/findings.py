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


class Measured(msgspec.Struct, frozen=True, omit_defaults=True):
    """A trial's result: means over its runs, and the speedup per sample with its 95 % interval.

    Step times are milliseconds. ``smallest_gain`` is the smallest speedup that these runs could have told from none
    (1.03 = 3 %). ``loss_drift`` is the relative difference of the losses (or outputs) to those before the fix.
    """

    before_ms: float
    after_ms: float
    speedup: float
    low: float
    high: float
    loss_drift: float | None = None
    pairs: int = 0
    smallest_gain: float | None = None
    before_samples_per_s: float | None = None
    after_samples_per_s: float | None = None


class Numerics(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the script computed before and after a fix: its first losses, or its first outputs where it has none.

    ``drift`` is the relative root-mean-square difference of the two; ``tolerance`` what was allowed (None for fixes
    that change behaviour: there the two are shown side by side). ``repeats`` is the drift between unchanged runs.
    A value that is NaN or infinite is None.
    """

    kind: Literal["loss", "output"]
    before: list[float | None]
    after: list[float | None]
    drift: float | None = None
    tolerance: float | None = None
    repeats: float | None = None


class Searched(msgspec.Struct, frozen=True, omit_defaults=True):
    """One size that was tried on the way to the best: what it is, its run's folder, and what came of it."""

    text: str
    folder: str
    samples_per_s: float | None = None
    step_ms: float | None = None
    memory_share: float | None = None
    error: str = ""


class Trial(msgspec.Struct, frozen=True, omit_defaults=True):
    """One accepted fix, tried. ``before`` and ``after`` are run folders relative to the session, pair by pair.

    ``folder`` is the trial's own run (its trace is that of the patched script). ``reason`` says in a sentence why the
    fix was kept or not. ``fix.diff`` is against the source as patched by the fixes kept before.
    """

    number: int
    rule: str
    title: str
    safety: Literal["exact", "numeric", "behaviour"]
    status: Status
    reason: str
    predicted: Predicted
    fix: FixDocument
    folder: str
    before: list[str] = []
    after: list[str] = []
    measured: Measured | None = None
    numerics: Numerics | None = None
    searched: list[Searched] = []
    verdict_after: str = ""  # of the diagnosis of the patched script, where it was kept


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the session came to: from the script as it is (``baseline``) to the one with all kept fixes (``final``).

    ``speedup`` is measured between these two where both were run in alternation (``direct``), else it is the
    product of the kept fixes' speedups, with the interval that follows from theirs.
    ``command`` is how to run the script with the kept fixes, where arguments or variables belong to them.
    """

    trials: list[Trial]
    baseline_ms: float
    final_ms: float
    speedup: Range
    direct: bool = False
    baseline_samples_per_s: float | None = None
    final_samples_per_s: float | None = None
    kept: list[str] = []  # rules, in order
    runs: list[str] = []  # folders of the direct comparison: before, after, before, after …
    command: str = ""
    verdict: str = ""  # of the final script: what holds it back now
    ended: str = ""  # why the session ended: nothing left to try, budget used up, stopped by the user …
    seconds: float = 0.0  # spent in all


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
    its share of the step; the shares sum to 1. ``outcome`` is there when fixes were tried; all else is the script's
    as it was found.
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
    outcome: Outcome | None = None


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
