"""Scalars of each run, as TensorBoard event files beside its trace. Needs neither torch nor TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from advisor.errors import AdvisorError
from advisor.harness import layout
from advisor.harness.layout import RunRecord
from advisor.run import Run
from advisor.session import KILLED, SESSION_JSON
from advisor.tensorboard import hparams
from advisor.tensorboard.hparams import Tried

# Ends the names of our event files, so that those which the script wrote are never touched.
SUFFIX = ".advisor"

# How deep below the sessions' folder a run can be: <session>/<run>, and one more for a folder of such folders.
_DEEPEST = 3


def find_runs(folder: str | os.PathLike[str]) -> list[Path]:
    """The run folders below `folder` (itself included), in the order of their names.

    Of a session they are the script as it was and the first run of each trial; the repeats that a comparison or a
    search needed are left out: they show nothing new, and there are many.
    """
    root = Path(folder)
    found = []
    for where, folders, files in os.walk(root):
        here = Path(where)
        if layout.RUN_JSON in files:
            found.append(here)
            folders.clear()  # what a run holds is the script's own, or its repeats
        elif SESSION_JSON in files:
            found += [here / name for name in folders if _is_run(here / name)]
            folders.clear()
        elif len(here.relative_to(root).parts) >= _DEEPEST:
            folders.clear()
        folders.sort()
    return sorted(found)


def _is_run(folder: Path) -> bool:
    """Whether a session's folder is a run of it, and not what a killed one has left, set aside."""
    return (folder / layout.RUN_JSON).is_file() and KILLED not in folder.name


def write(folder: str | os.PathLike[str], tried: Tried | None = None) -> int:
    """Write the scalars of one run beside its ``run.json``; returns how many points. Up to date: nothing is done (0).

    ``tried`` (see :func:`advisor.tensorboard.hparams.describe`) makes it a row of the HParams tab as well.
    Raises AdvisorError when the run cannot be read or the folder cannot be written.
    """
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    path = Path(folder)
    written = sorted(path.glob(f"events.out.tfevents.*{SUFFIX}"))
    changed = (path / layout.RUN_JSON).stat().st_mtime
    # The name tells which fixes it says are on, so that a trial that came later is noticed.
    suffix = f".{tried.digest}{SUFFIX}" if tried is not None else SUFFIX
    if written and all(file.stat().st_mtime >= changed and file.name.endswith(suffix) for file in written):
        return 0
    record = Run.load(path).record
    count = 0
    try:
        for file in written:
            file.unlink()
        writer = EventFileWriter(str(path), filename_suffix=suffix)
        try:
            for tag, step, amount, wall_time in points(record):
                summary = Summary(value=[Summary.Value(tag=tag, simple_value=amount)])
                writer.add_event(Event(wall_time=wall_time, step=step, summary=summary))
                count += 1
            if tried is not None:
                ended = record.started + (record.wall_s or 0.0)
                if tried.speedup is not None:
                    speedup = Summary(value=[Summary.Value(tag=hparams.SPEEDUP, simple_value=tried.speedup)])
                    writer.add_event(Event(wall_time=ended, step=0, summary=speedup))
                    count += 1
                for summary in hparams.summaries(tried, record.started, ended):
                    writer.add_event(Event(wall_time=ended, step=0, summary=summary))
        finally:
            writer.close()
    except OSError as error:
        raise AdvisorError(f"cannot write the scalars of {path}: {error.strerror or error}.") from error
    return count


def points(record: RunRecord) -> Iterator[tuple[str, int, float, float]]:
    """(tag, step, value, Unix time) of everything worth a curve: step by step where it was timed, means at step 0."""
    timing = record.timing
    samples = timing.samples_per_step
    clock = record.started + (record.startup_s or 0.0)
    first = next((window.first_step for window in record.windows if window.name == "timing"), 0)
    for index, seconds in enumerate(timing.intervals):
        clock += seconds
        yield "step/ms", first + index, seconds * 1e3, clock
        if samples and seconds > 0:
            yield "step/samples_per_s", first + index, samples / seconds, clock
    for index, seconds in enumerate(timing.loader_wait_s):
        yield "step/loader_wait_ms", first + index, seconds * 1e3, clock
    for index, loss in enumerate(record.losses):
        yield "loss", index, loss, clock
    if timing.step_s:
        yield "run/mean_step_ms", 0, timing.step_s * 1e3, clock
        if samples:
            yield "run/samples_per_s", 0, samples / timing.step_s, clock
    peak = record.memory.peak_allocated
    if peak is not None:
        yield "run/peak_memory_gib", 0, peak / 2**30, clock
