"""How a run ended, in one sentence: what happened and what to do."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path

from advisor import errors
from advisor.errors import AdvisorError
from advisor.harness import layout
from advisor.harness.layout import RunRecord, Status
from advisor.run import decode_record

_TAIL_BYTES = 64 << 10
# Below this many free bytes a disk counts as full: a record and a trace need more.
_FULL_BYTES = 1 << 20


def read_record(run_dir: Path) -> RunRecord | None:
    """The record that the harness wrote; None where it wrote none."""
    try:
        return decode_record((run_dir / layout.RUN_JSON).read_bytes())
    except (OSError, AdvisorError):
        return None


CHILDREN_TRAIN = (
    "the script trains in processes that it starts itself, and only its own process is measured: profile the function "
    "that trains, in one process."
)


def partial_record(run_dir: Path, code: int) -> RunRecord | None:
    """The record that the harness kept before the last window, where the script died in that one; None without."""
    try:
        record = decode_record((run_dir / layout.PARTIAL_JSON).read_bytes())
    except (OSError, AdvisorError):
        return None
    how = _signal_name(-code) if code < 0 else f"status {code}"
    record.notes.append(
        f"the script ended with {how} while it was recorded who launches what: times are all there, shapes and some "
        "places are not"
    )
    record.complete, record.ended = True, "killed"  # another run would end alike
    return record


def children_train(run_dir: Path, seconds: float) -> bool:
    """Whether optimizer steps have gone on for so long in the script's children, and none in the script itself."""
    try:
        since = (run_dir / layout.CHILD_TRAINS).stat().st_mtime
    except OSError:
        return False
    now = status(run_dir)
    return now is not None and now.optimizer_steps == 0 and time.time() - since > seconds


def status(run_dir: Path) -> Status | None:
    """What the harness was last doing; None before it came to anything."""
    try:
        return Status(**json.loads((run_dir / layout.STATUS_JSON).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def died(python: str, run_dir: Path, code: int, seconds: float) -> AdvisorError:
    """The child is gone and left no record: a signal, a full disk, or a Python that could not start.

    ``code`` is its exit status, negative for a signal, after so many ``seconds``.
    """
    output = tail(run_dir)
    if shutil.disk_usage(run_dir).free < _FULL_BYTES:
        return AdvisorError(f"the disk that holds {run_dir} is full: free some space, or choose another with --output.")
    if code < 0:
        why = ": the system may have run out of memory" if -code == signal.SIGKILL else ""
        return AdvisorError(
            f"the script was killed by {_signal_name(-code)} after {seconds:.0f} s {doing(run_dir)}{why}.",
            errors.SCRIPT_FAILED,
            detail=output,
        )
    if (run_dir / layout.MEASURED_RANK).exists():
        return AdvisorError(
            f"the process that was measured, rank 0 of the script's job, was gone after {seconds:.0f} s "
            f"{doing(run_dir)}: it was killed, or ended from native code; the system may have run out of memory.",
            errors.SCRIPT_FAILED,
            detail=output,
        )
    if status(run_dir) is None:
        return AdvisorError(
            f"{python} could not run the advisor's part (it ended with status {code}): name a working Python, 3.10 or "
            "later, by --python.",
            detail=output,
        )
    return AdvisorError(
        f"the script ended with status {code} after {seconds:.0f} s and took the advisor's record with it (os.exec, or "
        "an end from native code): let it end by itself.",
        errors.SCRIPT_FAILED,
        detail=output,
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def check(record: RunRecord, python: str, run_dir: Path) -> None:
    """Raise AdvisorError when the run holds too little to report on; note what it failed of when it holds enough."""
    failure = record.failure
    enough = record.timing.step_s is not None and record.steps >= 2
    if failure is not None and failure.kind == "no_module":
        raise AdvisorError(f"{failure.message}: name a module that `python -m` finds from this folder.")
    if failure is not None and not enough:
        status = errors.USAGE if failure.kind == "no_room" else errors.SCRIPT_FAILED
        raise AdvisorError(_sentence(failure, python), status, detail=failure.traceback or tail(run_dir))
    if failure is not None:
        record.notes.append(
            f"the script failed after {record.steps} steps ({failure.message}); reported is what ran before"
        )
    if not enough and record.rank is None and (run_dir / layout.CHILD_TRAINS).exists():
        raise AdvisorError(CHILDREN_TRAIN, errors.NO_STEP)
    if not enough:
        raise AdvisorError(_no_step(record), errors.NO_STEP)


def _sentence(failure: layout.Failure, python: str) -> str:
    message = failure.message
    if failure.kind == "no_room":
        return f"{message}: free some space, or choose another folder with --output."
    if failure.kind == "exit":
        return f"{message} before two steps were done; run it with arguments that let it train."
    if failure.kind == "oom":
        return f"the script ran out of memory ({message}); make the batch or the model smaller and profile again."
    if failure.kind == "interrupt":
        return "the script was interrupted."
    if "No module named 'torch'" in message:
        return f"{python} has no torch: name the interpreter that you run the script with, by --python."
    if any(text in message for text in ("not compiled with CUDA", "No CUDA GPUs", "no NVIDIA driver")):
        return f"the script asks for CUDA, and there is none that this torch can use ({message})."
    return f"the script failed: {message}"


def _no_step(record: RunRecord) -> str:
    seen = record.seen
    counts = ", ".join(
        f"{seen.get(key, 0)} {noun}"
        for key, noun in (("optimizer_steps", "optimizer steps"), ("batches", "batches"), ("forwards", "forwards"))
    )
    if not record.environment.torch:
        return "no step was found: the script never imported torch; name the script that trains or predicts."
    if record.steps == 1:
        return f"only one step was found ({counts}): give the script more data or epochs to run through."
    kinds = (("optimizer", "optimizer_steps"), ("loader", "batches"), ("forward", "forwards"))
    ways = [f"--step {kind}" for kind, key in kinds if seen.get(key, 0) > 1]
    choose = f"choose {' or '.join(ways)}, or " if ways else ""
    return (
        f"no step was found (seen: {counts}): {choose}have the script `import advisor` and call `advisor.step()` at "
        "the end of each step (while it is profiled, that needs no installation)."
    )


def doing(run_dir: Path) -> str:
    """Where in a run its last sign of life was, to go into a sentence."""
    now = status(run_dir)
    if now is None or now.phase == "starting":
        return "before the script did a step"
    if now.phase == "waiting":
        return (
            f"while waiting for the first step ({now.optimizer_steps} optimizer steps, {now.batches} batches, "
            f"{now.forwards} forwards seen)"
        )
    return f"in the {now.phase} window, at step {now.step}"


def tail(run_dir: Path, lines: int = 15) -> str:
    """The last lines that the script printed."""
    try:
        with (run_dir / layout.OUTPUT_LOG).open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(file.tell() - _TAIL_BYTES, 0))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(line[:1000] for line in text.splitlines()[-lines:])
