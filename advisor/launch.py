"""Starts the harness as a child in the user's interpreter, waits for it, and leaves the machine as it was."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from advisor import __version__, errors
from advisor.errors import AdvisorError
from advisor.harness import layout
from advisor.harness.layout import Options, RunRecord, Status
from advisor.restore import Restored, end_processes, register, restore
from advisor.run import Run, decode_record

_BOOTSTRAP = Path(__file__).parent / "harness" / "bootstrap.py"
_SITE = Path(__file__).parent / "harness" / "site"
_POLL_SECONDS = 0.1
# What the harness itself may need to end after its record is written (its own grace is 10 s).
_ENDING_SECONDS = 20.0
HANG_FILE = "hang.txt"

Progress = Callable[[Status], None]


@dataclass(frozen=True)
class Command:
    """What to run: a script's path, or a module's name, with its arguments, in an interpreter."""

    script: str
    argv: tuple[str, ...] = ()
    module: bool = False
    python: str = sys.executable
    environment: dict[str, str] = field(default_factory=dict)  # variables beyond our own, for a trial
    cwd: str = "."

    @property
    def name(self) -> str:
        """Short name for folders: the script's without its ending."""
        return self.script.rpartition(".")[2] if self.module else Path(self.script).stem


def find_python(chosen: str | None) -> str:
    """The interpreter that runs the script: the one named, else the active virtual environment's, else PATH's.

    Raises AdvisorError when there is none, or it is no Python of 3.10 or later.
    """
    if chosen:
        path = shutil.which(chosen)
        if path is None:
            raise AdvisorError(f"--python {chosen}: there is no such interpreter.")
    else:
        environment = os.environ.get("VIRTUAL_ENV") or os.environ.get("CONDA_PREFIX")
        candidates = [os.path.join(environment, "bin", "python")] if environment else []
        found = [shutil.which(name) for name in (*candidates, "python", "python3")]
        path = next((candidate for candidate in found if candidate), sys.executable)
    return path


def check_script(command: Command) -> None:
    """Say at once what is wrong with a script's path; a module is looked for by the interpreter that runs it."""
    if command.module:
        return
    path = Path(command.script)
    if not path.exists():
        raise AdvisorError(f"there is no file {command.script}: name the script that you run with python.")
    if path.is_dir():
        raise AdvisorError(f"{command.script} is a folder: name the script in it, or use -m for a package.")
    try:
        source = path.read_bytes()
        compile(source, str(path), "exec", dont_inherit=True)
    except OSError as error:
        raise AdvisorError(f"{command.script} cannot be read: {error.strerror or error}.") from error
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        reason = error.msg if isinstance(error, SyntaxError) else error
        if not _compiles_with(command.python, path):
            raise AdvisorError(f"{command.script} is not a Python script{line}: {reason}.") from error


def _compiles_with(python: str, path: Path) -> bool:
    """The script's interpreter may know newer syntax than ours: it has the last word."""
    code = "import sys; compile(open(sys.argv[1], 'rb').read(), sys.argv[1], 'exec')"
    return subprocess.run([python, "-c", code, str(path)], capture_output=True, check=False).returncode == 0


def measure(
    command: Command,
    run_dir: Path,
    options: Options,
    *,
    timeout: float | None = None,
    progress: Progress | None = None,
) -> Run:
    """Run the script under the harness into `run_dir`; again, cut to its length, when it was over too early.

    Raises AdvisorError when it failed before there was enough to report, hung, or showed no step.
    """
    deadline = time.monotonic() + timeout if timeout else None
    record = _once(command, run_dir, options, deadline, timeout, progress)
    notes: list[str] = []
    while (again := _next_try(record, options)) is not None:
        note, options = again
        notes.append(note)
        first = record
        _clear(run_dir)
        record = _once(command, run_dir, options, deadline, timeout, progress)
        if options.total_steps and first.timing.step_s is not None and record.timing.steps < first.timing.steps:
            # The first run had more undisturbed steps than the cut one: its times are the better ones.
            keep = record.timing
            record.timing = replace(first.timing, cpu_s=keep.cpu_s, children_cpu_s=keep.children_cpu_s)
        record.notes[:0] = notes
        _write_record(run_dir, record)
    _check(record, command, run_dir)
    return Run.load(run_dir)


def _next_try(record: RunRecord, options: Options) -> tuple[str, Options] | None:
    """Whether another run would tell more, and with which options; None when this one is as good as it gets."""
    if record.complete or options.total_steps:
        return None
    if record.steps >= 2:
        return (
            f"the script was over after {record.steps} steps, before everything was measured: it was run again with "
            "shorter windows, and its figures are less certain",
            replace(options, total_steps=record.steps),
        )
    seen = record.seen
    if options.step == "auto" and record.ended == "finished" and record.steps == 0 and not seen.get("optimizer_steps"):
        for kind, count in (("loader", seen.get("batches", 0)), ("forward", seen.get("forwards", 0))):
            if count >= 2:
                noun = "batches" if kind == "loader" else "forwards"
                return (
                    f"no optimizer step in the whole script, but {count} {noun}: these were taken as its steps",
                    replace(options, step=kind),
                )
    return None


def _clear(run_dir: Path) -> None:
    for entry in run_dir.iterdir():
        if entry.name in (layout.FILES_DIR, layout.JOURNAL_DIR):
            continue
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _once(
    command: Command,
    run_dir: Path,
    options: Options,
    deadline: float | None,
    timeout: float | None,
    progress: Progress | None,
) -> RunRecord:
    """One run of the script, from start to restored files."""
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        options_path = run_dir / layout.OPTIONS_JSON
        filled = replace(
            options,
            run_dir=str(run_dir),
            script=command.script,
            module=command.module,
            argv=list(command.argv),
            cwd=os.path.abspath(command.cwd),
        )
        options_path.write_text(json.dumps(layout.to_dict(filled)))
        register(run_dir)
        output = (run_dir / layout.OUTPUT_LOG).open("wb")
    except OSError as error:
        raise AdvisorError(
            f"the folder {run_dir} cannot be written ({error.strerror or error}): choose another with --output."
        ) from error
    with output, _restoring(run_dir, options) as restored:
        started = time.monotonic()
        try:
            child = subprocess.Popen(
                [command.python, str(_BOOTSTRAP), str(options_path)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_environment(command, run_dir, options_path),
                cwd=command.cwd,
                start_new_session=True,
            )
        except OSError as error:
            raise AdvisorError(f"{command.python} cannot be started: {error.strerror or error}.") from error
        try:
            status = _wait(child, run_dir, deadline, progress)
        except _TimeUpError:
            where = _where_it_hangs(child, run_dir)
            raise AdvisorError(
                f"the time limit of {timeout:.0f} s (--timeout) was reached {_doing(run_dir)}{where}.",
                errors.TIME_LIMIT,
                detail=_tail(run_dir),
            ) from None
        finally:
            _end(child, run_dir)
    record = _read_record(run_dir)
    if record is None:
        record = _died(command, run_dir, status, time.monotonic() - started)
    record.advisor = __version__
    record.notes.extend(f"could not be put back as it was: {failure}" for failure in restored.failed)
    _write_record(run_dir, record)
    return record


class _TimeUpError(Exception):
    pass


def _wait(child: subprocess.Popen[bytes], run_dir: Path, deadline: float | None, progress: Progress | None) -> int:
    """The child's exit status. Progress is told at most once a second, and not in the timing window."""
    told, phase, ending = 0.0, "", None
    record = run_dir / layout.RUN_JSON
    while True:
        try:
            return child.wait(_POLL_SECONDS if phase != "timing" else 4 * _POLL_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        now = time.monotonic()
        if deadline is not None and now > deadline:
            raise _TimeUpError
        if ending is None and record.exists():
            ending = now + _ENDING_SECONDS
        if ending is not None and now > ending:
            return 0  # measured and written; whatever it still does, it does in vain
        if progress is not None and now - told >= 1.0:
            told = now
            current = _status(run_dir)
            if current is not None and not (current.phase == phase == "timing"):
                phase = current.phase
                progress(current)


def _status(run_dir: Path) -> Status | None:
    try:
        return Status(**json.loads((run_dir / layout.STATUS_JSON).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _end(child: subprocess.Popen[bytes], run_dir: Path) -> None:
    """The child and everything it started are gone when this returns."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    end_processes(run_dir)


@contextmanager
def _restoring(run_dir: Path, options: Options) -> Iterator[Restored]:
    """Put files back on the way out, whatever happened; a second Ctrl-C has to wait for it."""
    result = Restored()

    def terminate(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    previous = {}
    for number in (signal.SIGTERM, signal.SIGHUP):
        with suppress(ValueError):  # not the main thread: a program that uses us as a library keeps its own handlers
            previous[number] = signal.signal(number, terminate)
    try:
        yield result
    except KeyboardInterrupt:
        _mark_interrupted(run_dir)
        raise
    finally:
        ignored = {}
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            with suppress(ValueError):
                ignored[number] = signal.signal(number, signal.SIG_IGN)
        done = restore(run_dir, tuple(options.keep_dirs))
        result.put_back, result.moved, result.failed = done.put_back, done.moved, done.failed
        for number, handler in {**ignored, **previous}.items():
            signal.signal(number, handler)


def _mark_interrupted(run_dir: Path) -> None:
    record = _read_record(run_dir) or RunRecord()
    record.complete = False
    record.ended = "failed"
    record.failure = layout.Failure(kind="interrupt", message="interrupted by the user before the run was complete")
    _write_record(run_dir, record)


def _environment(command: Command, run_dir: Path, options_path: Path) -> dict[str, str]:
    files = run_dir / layout.FILES_DIR
    environment = dict(os.environ)
    environment.update(
        {
            layout.OPTIONS_ENV: str(options_path),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(_SITE), environment.get("PYTHONPATH", "")))),
            # Byte code is read where it is, and written nowhere.
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUNBUFFERED": "1",
            # Experiment trackers: nothing leaves the machine, nothing is mixed into the user's own experiments.
            "WANDB_MODE": "offline",
            "WANDB_DIR": str(files),
            "MLFLOW_TRACKING_URI": (files / "mlruns").as_uri(),
            "COMET_OFFLINE_DIRECTORY": str(files),
            "COMET_START_ONLINE": "0",
            "NEPTUNE_MODE": "offline",
            "CLEARML_OFFLINE_MODE": "1",
            "SWANLAB_MODE": "offline",
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }
    )
    # Kineto complains on every machine without a GPU unless told not to.
    environment.setdefault("KINETO_LOG_LEVEL", "99")
    environment.update(command.environment)
    files.mkdir(parents=True, exist_ok=True)
    return environment


def _read_record(run_dir: Path) -> RunRecord | None:
    try:
        return decode_record((run_dir / layout.RUN_JSON).read_bytes())
    except (OSError, AdvisorError):
        return None


def _write_record(run_dir: Path, record: RunRecord) -> None:
    path = run_dir / layout.RUN_JSON
    temporary = path.with_suffix(".part")
    try:
        temporary.write_text(json.dumps(layout.to_dict(record)))
        temporary.replace(path)
    except OSError as error:
        raise AdvisorError(
            f"{path} cannot be written ({error.strerror or error}): free some space or choose --output."
        ) from error


# What went wrong, in one sentence each.


def _died(command: Command, run_dir: Path, status: int, seconds: float) -> RunRecord:
    """The child is gone and left no record: a signal, `os._exit`, or a Python that could not start."""
    output = _tail(run_dir)
    if status < 0:
        name = signal.Signals(-status).name
        why = ": the system may have run out of memory" if -status == signal.SIGKILL else ""
        raise AdvisorError(
            f"the script was killed by {name} after {seconds:.0f} s {_doing(run_dir)}{why}.",
            errors.SCRIPT_FAILED,
            detail=output,
        )
    raise AdvisorError(
        f"the script ended with status {status} after {seconds:.0f} s without leaving a record "
        "(os._exit, or an interpreter that does not work).",
        errors.SCRIPT_FAILED,
        detail=output,
    )


def _check(record: RunRecord, command: Command, run_dir: Path) -> None:
    """Raise when the run holds too little to report on."""
    failure = record.failure
    enough = record.timing.step_s is not None and record.steps >= 2
    if failure is not None and failure.kind == "no_module":
        raise AdvisorError(f"{failure.message}: name a module that `python -m` finds from this folder.")
    if failure is not None and not enough:
        output = failure.traceback or _tail(run_dir)
        raise AdvisorError(_sentence(failure, command), errors.SCRIPT_FAILED, detail=output)
    if failure is not None:
        record.notes.append(
            f"the script failed after {record.steps} steps ({failure.message}); reported is what ran before"
        )
        _write_record(run_dir, record)
    if not enough:
        raise AdvisorError(_no_step(record), errors.NO_STEP, detail="")


def _sentence(failure: layout.Failure, command: Command) -> str:
    message = failure.message
    if failure.kind == "exit":
        return f"{message} before two steps were done; run it with arguments that let it train."
    if failure.kind == "oom":
        return f"the script ran out of memory ({message}); make the batch or the model smaller and profile again."
    if failure.kind == "interrupt":
        return "the script was interrupted."
    if "No module named 'torch'" in message:
        return f"{command.python} has no torch: name the interpreter that you run the script with, by --python."
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
    return (
        f"no step was found (seen: {counts}): choose --step loader or --step forward, or call advisor.step() at the "
        "end of each step."
    )


def _doing(run_dir: Path) -> str:
    status = _status(run_dir)
    if status is None or status.phase == "starting":
        return "before the script did a step"
    if status.phase == "waiting":
        return (
            f"while waiting for the first step ({status.optimizer_steps} optimizer steps, {status.batches} batches, "
            f"{status.forwards} forwards seen)"
        )
    return f"in the {status.phase} window, at step {status.step}"


def _where_it_hangs(child: subprocess.Popen[bytes], run_dir: Path) -> str:
    """Ask the harness's fault handler which line the script is at."""
    try:
        os.kill(child.pid, signal.SIGUSR2)
        time.sleep(0.5)
        lines = (run_dir / HANG_FILE).read_text().splitlines()
    except OSError:
        return ""
    here = str(Path(__file__).parent)
    for line in lines:
        text = line.strip()
        if text.startswith("File") and here not in text and "site-packages" not in text and "/lib/python" not in text:
            return "; it was at " + text.removeprefix("File ")
    return ""


def _tail(run_dir: Path, lines: int = 15) -> str:
    try:
        text = (run_dir / layout.OUTPUT_LOG).read_text(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
