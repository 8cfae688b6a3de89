"""``advisor profile`` from the script to the report: measure, diagnose, write."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from advisor import report
from advisor.diagnose import diagnose
from advisor.errors import BAD_TRACE, AdvisorError
from advisor.evidence import Evidence
from advisor.findings import Findings
from advisor.harness.layout import Options, Status
from advisor.launch import Command, check_script, find_python, measure
from advisor.run import Run
from advisor.session import Session


def profile(
    script: str,
    arguments: tuple[str, ...] = (),
    *,
    module: bool = False,
    python: str | None = None,
    output: Path,
    step: str = "auto",
    skip: int = 0,
    timeout: float | None = None,
    progress: Callable[[Status], None] | None = None,
) -> tuple[Findings, dict[str, str]]:
    """Profile one script into a new session below `output`; returns the findings and what is where.

    ``timeout`` is in seconds. Raises AdvisorError for everything that can go wrong with the script or the folder.
    """
    command = Command(
        script=script if module else os.path.abspath(script),
        argv=arguments,
        module=module,
        python=find_python(python),
        cwd=os.getcwd(),
    )
    check_script(command)
    session = Session.create(command, output)
    options = Options(step=step, skip=skip)
    run = measure(command, session.baseline_dir, options, timeout=timeout, progress=progress)
    _check_trace(run)
    evidence = Evidence.from_run(run)
    document = diagnose(evidence).document
    files = report.write(document, session.folder, evidence)
    patch = session.write_patch(document)
    if patch is not None:
        files["patch"] = str(patch)
    files["traces"] = str(session.baseline_dir)
    return document, files


def _check_trace(run: Run) -> None:
    """A run that used the GPU and whose trace has no GPU work would make an empty diagnosis: that is an error."""
    if run.record.device.type == "cuda" and run.trace is not None and len(run.trace.kernels) == 0:
        raise AdvisorError(
            "the script used the GPU, but its trace holds no kernel: another profiler may hold the GPU's counters, or "
            "this user may not read them (on NVIDIA: NVreg_RestrictProfilingToAdminUsers); end the one, or ask for the "
            "other, and profile again.",
            BAD_TRACE,
        )
