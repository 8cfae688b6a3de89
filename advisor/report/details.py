"""What the page shows besides the findings document: the picture of a step and the tables, taken from evidence."""

from __future__ import annotations

from dataclasses import dataclass, field

from advisor.evidence import Evidence, facts
from advisor.harness.layout import Site
from advisor.report import picture, wording

# A table on a page is for reading; whoever wants all rows has the trace.
MOST_ROWS = 15


@dataclass(frozen=True)
class Column:
    title: str
    numeric: bool = False
    code: bool = False


@dataclass(frozen=True)
class Table:
    """``rows`` hold finished text; ``more`` says how many rows were left out."""

    title: str
    meaning: str
    columns: tuple[Column, ...]
    rows: list[list[str]]
    more: int = 0


@dataclass(frozen=True)
class Details:
    """Everything beyond the document. Empty for a document of which nothing else is left."""

    picture: picture.Picture | None = None
    tables: list[Table] = field(default_factory=list)


def details(evidence: Evidence) -> Details:
    """The picture and the tables of one run or trace; tables without rows are left out."""
    tables = [
        _loaders(evidence),
        _kernels(evidence),
        _copies(evidence),
        _syncs(evidence),
        _operators(evidence),
    ]
    return Details(
        picture=picture.draw(evidence.trace, gaps=_gaps(evidence), steps=_steps(evidence)),
        tables=[table for table in tables if table.rows],
    )


def _steps(evidence: Evidence) -> tuple[tuple[int, int, int], ...]:
    """(number, start, end) of the steps by a device that is far behind the host; none where the trace's own will do."""
    steps = evidence.shown_steps
    if not steps.behind:
        return ()
    return tuple(zip(steps.number.tolist(), steps.start.tolist(), steps.end.tolist(), strict=True))


def _gaps(evidence: Evidence) -> tuple[tuple[int, int, str], ...]:
    if not evidence.device_is_gpu:
        return ()
    gaps = evidence.idle_gaps
    return tuple(
        (int(start), int(end), facts.IDLE_CLASSES[int(cause)])
        for start, end, cause in zip(gaps.start, gaps.end, gaps.cause, strict=True)
    )


def _loaders(evidence: Evidence) -> Table:
    rows = []
    for loader in evidence.loaders:
        record = loader.record
        settings = ["–"] * 3
        if record is not None:
            settings = [
                _known(record.batch_size),
                "yes" if record.pin_memory else "no",
                "yes" if record.persistent_workers else "no",
            ]
        rows.append(
            [
                _place(loader.site) or (record.owner if record else "") or "–",
                record.dataset if record and record.dataset else "–",
                settings[0],
                _known(loader.workers),
                settings[1],
                settings[2],
                wording.milliseconds(loader.fetch_s * 1e3) if loader.fetch_s is not None else "–",
                wording.milliseconds(loader.wait_s * 1e3),
                wording.percent(loader.wait_share),
            ]
        )
    return Table(
        "Loaders",
        "How long a batch takes to make, and how much of that the step has to wait for.",
        (
            Column("made at", code=True),
            Column("dataset", code=True),
            Column("batch", numeric=True),
            Column("workers", numeric=True),
            Column("pinned"),
            Column("persistent"),
            Column("time per batch", numeric=True),
            Column("wait per step", numeric=True),
            Column("of the step", numeric=True),
        ),
        rows,
    )


def _kernels(evidence: Evidence) -> Table:
    kernels = evidence.kernels
    words = {"on": "yes", "off": "no", "unknown": "unknown", "": "–"}
    rows = [
        [
            kernel.name[: picture.LONGEST_NAME],
            kernel.operator or "–",
            wording.number(kernel.count),
            wording.milliseconds(kernel.per_step_s * 1e3),
            wording.percent(kernel.share),
            words.get(kernel.matrix, kernel.matrix),
        ]
        for kernel in kernels[:MOST_ROWS]
    ]
    return Table(
        "Kernels",
        "What the device computes, by kernel. Matrix work on Tensor cores (AMD: matrix cores) runs many times faster.",
        (
            Column("kernel", code=True),
            Column("launched by", code=True),
            Column("calls", numeric=True),
            Column("time per step", numeric=True),
            Column("of kernel time", numeric=True),
            Column("Tensor cores"),
        ),
        rows,
        more=max(0, len(kernels) - MOST_ROWS),
    )


def _copies(evidence: Evidence) -> Table:
    rows = [
        [
            row.kind,
            "pageable" if row.pageable else "pinned or on the device",
            wording.number(row.count),
            wording.size(row.bytes),
            wording.milliseconds(row.total_s * 1e3),
            wording.milliseconds(row.exposed_s * 1e3),
            "yes" if row.blocking else "no",
            ", ".join(place for place in (_place(site.site) for site in row.sites[:3]) if place) or "–",
        ]
        for row in evidence.copies.rows
    ]
    return Table(
        "Copies",
        "Per step. Exposed time is not hidden behind any kernel; a copy from pageable memory cannot be asynchronous.",
        (
            Column("kind"),
            Column("host memory"),
            Column("count", numeric=True),
            Column("size", numeric=True),
            Column("time", numeric=True),
            Column("exposed", numeric=True),
            Column("blocks the host"),
            Column("called at", code=True),
        ),
        rows,
    )


def _syncs(evidence: Evidence) -> Table:
    rows = [
        [
            row.call,
            row.operator or "–",
            wording.number(row.count),
            wording.milliseconds(row.total_s * 1e3),
            ", ".join(place for place in (_place(site.site) for site in row.sites[:3]) if place) or "–",
        ]
        for row in evidence.syncs[:MOST_ROWS]
    ]
    return Table(
        "Host synchronizations",
        "Where the host stops until the device has caught up. Figures are per step.",
        (
            Column("call", code=True),
            Column("inside", code=True),
            Column("count", numeric=True),
            Column("time", numeric=True),
            Column("called at", code=True),
        ),
        rows,
        more=max(0, len(evidence.syncs) - MOST_ROWS),
    )


def _operators(evidence: Evidence) -> Table:
    found = evidence.operators.rows
    rows = [
        [
            row.name,
            wording.number(row.count),
            wording.milliseconds(row.self_s * 1e3),
            wording.percent(row.share),
            wording.milliseconds(row.device_s * 1e3) if row.device_s else "–",
            (row.shapes[0] if row.shapes else "") or "–",
        ]
        for row in found[:MOST_ROWS]
    ]
    return Table(
        "Operators",
        "What the host runs, without the operators that each one calls.",
        (
            Column("operator", code=True),
            Column("calls per step", numeric=True),
            Column("own time per step", numeric=True),
            Column("of the step", numeric=True),
            Column("kernel time", numeric=True),
            Column("shapes, most frequent", code=True),
        ),
        rows,
        more=max(0, len(found) - MOST_ROWS),
    )


def _place(site: Site | None) -> str:
    # The file's name alone: the folder is the script's, and columns are narrow.
    return f"{site.file.replace(chr(92), '/').rsplit('/', 1)[-1]}:{site.line}" if site and site.file else ""


def _known(amount: int | None) -> str:
    return "–" if amount is None else str(amount)
