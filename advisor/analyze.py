"""``advisor analyze``: evidence of traces that were recorded elsewhere, or of a run folder, diagnosed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from advisor.errors import AdvisorError
from advisor.evidence import Evidence
from advisor.findings import Findings
from advisor.harness import layout
from advisor.run import Run
from advisor.session import BASELINE
from advisor.source_sites import read_call_sites
from advisor.trace import DEFAULT_LIMIT, find_traces, read_trace


def analyze(
    paths: Sequence[str | os.PathLike[str]], source: Path | None = None, limit_bytes: int = DEFAULT_LIMIT
) -> tuple[Findings, Evidence]:
    """Diagnose what `paths` name; ``source`` is the script, for traces that do not know where it was.

    ``limit_bytes`` of JSON, decompressed, is the most that one trace may hold.

    Raises AdvisorError when there is nothing to read, or it cannot be read.
    """
    from advisor.diagnose import diagnose

    evidence = open_evidence(paths, source, limit_bytes)
    return diagnose(evidence).document, evidence


def open_evidence(
    paths: Sequence[str | os.PathLike[str]], source: Path | None = None, limit_bytes: int = DEFAULT_LIMIT
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
    return Evidence.from_trace(first, others, read_call_sites(source), str(source.resolve()))


def _run_folder(path: str | os.PathLike[str]) -> Path | None:
    for folder in (Path(path), Path(path) / BASELINE):
        if (folder / layout.RUN_JSON).is_file():
            return folder
    return None
