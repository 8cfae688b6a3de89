"""``advisor analyze``: evidence of traces that were recorded elsewhere, or of a run folder, diagnosed."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from advisor.errors import AdvisorError
from advisor.evidence import Evidence
from advisor.findings import Findings
from advisor.harness import layout
from advisor.run import Run
from advisor.session import BASELINE
from advisor.trace import find_traces, read_trace


def analyze(
    paths: Sequence[str | os.PathLike[str]], source: Path | None = None, limit_bytes: int | None = None
) -> tuple[Findings, Evidence]:
    """Diagnose what `paths` name; ``source`` is the script, for traces that do not know where it was.

    ``limit_bytes`` of JSON, decompressed, is the most that one trace may hold (default: what is no gzip bomb).

    Raises AdvisorError when there is nothing to read, or it cannot be read.
    """
    # The rules and what they edit with take as long to import as 100 MB take to read, where worker processes do most.
    importing = threading.Thread(target=_import_rules, daemon=True)
    importing.start()
    evidence = open_evidence(paths, source, limit_bytes)
    importing.join()
    from advisor.diagnose import diagnose

    return diagnose(evidence).document, evidence


def _import_rules() -> None:
    # A rule that cannot be imported is the diagnosis's to say.
    with contextlib.suppress(Exception):
        from advisor.rulebook import load_rules

        load_rules()


def open_evidence(
    paths: Sequence[str | os.PathLike[str]], source: Path | None = None, limit_bytes: int | None = None
) -> Evidence:
    """Evidence of one run folder (or a session: its baseline), or of traces, which are taken as ranks of one job.

    ``source`` gives traces the call sites that a run has recorded.
    """
    runs = [folder for folder in map(_run_folder, paths) if folder is not None]
    if runs:
        if len(paths) > 1:
            raise AdvisorError(f"{runs[0]} is a run: name one run, or traces, but not several runs at once.")
        return Evidence.from_run(Run.load(runs[0]))
    first, *others = [read_trace(path, limit_bytes=limit_bytes) for path in find_traces(paths)]
    if source is None:
        return Evidence.from_trace(first, others)
    from advisor.source_sites import read_call_sites

    return Evidence.from_trace(first, others, read_call_sites(source), str(source.resolve()))


def export_tables(evidence: Evidence, folder: Path) -> list[Path]:
    """Writes the tables of each trace as Parquet into a folder of its own in `folder`; returns these folders.

    The detail window of a run, whose durations mean nothing, comes with ``-detail`` behind its name. Raises
    AdvisorError where the folder cannot be written.
    """
    from advisor.trace.export import export_parquet, folder_name

    traces = [(folder_name(trace.path), trace) for trace in (evidence.trace, *evidence.others)]
    if evidence.detail is not None:
        traces.append((folder_name(evidence.detail.path) + "-detail", evidence.detail))
    written: dict[Path, None] = {}
    for name, trace in traces:
        numbered = (folder / f"{name}{suffix}" for suffix in ("", *(f"-{n}" for n in range(2, len(traces) + 1))))
        target = next(place for place in numbered if place not in written)
        export_parquet(trace, target)
        written[target] = None
    return list(written)


def _run_folder(path: str | os.PathLike[str]) -> Path | None:
    for folder in (Path(path), Path(path) / BASELINE):
        if (folder / layout.RUN_JSON).is_file():
            return folder
    return None
