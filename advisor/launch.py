"""Starts the harness as a child in the user's interpreter, waits for it, and leaves the machine as it was."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from advisor import __version__, endings, errors
from advisor.errors import AdvisorError
from advisor.harness import layout
from advisor.harness.layout import Options, RunRecord, Status
from advisor.harness.plan import SETTLE, Plan
from advisor.pending import Claim, descendants, end_processes, register
from advisor.restore import Restored, mark, restore
from advisor.run import Run

_BOOTSTRAP = Path(__file__).parent / "harness" / "bootstrap.py"
_SITE = Path(__file__).parent / "harness" / "site"
_POLL_SECONDS = 0.1
# What the harness itself may need to end after its record is written (its own grace is 10 s).
_ENDING_SECONDS = 20.0
HANG_FILE = "hang.txt"
# Of the timing window what is known of one that came to its end only.
_OF_WHOLE_WINDOWS = ("cpu_s", "children_cpu_s", "page_faults", "pages_kept", "system_s")

# What scripts that train in several processes are started with, and the modules that those commands run.
_LAUNCHERS = dict(zip(("torchrun", "accelerate"), layout.LAUNCHERS, strict=True))

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
        """Short name for folders: the script's without its ending; of a launcher's command that of what it starts."""
        if self.module and self.script in layout.LAUNCHERS:
            return next((Path(each).stem for each in self.argv if each.endswith(".py")), self.script)
        return self.script.rpartition(".")[2] if self.module else Path(self.script).stem


def launcher(script: str) -> str | None:
    """The module to run where `script` is the name of a launcher, as ``torchrun``, and no file; None otherwise."""
    return None if Path(script).exists() else _LAUNCHERS.get(script)


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
        if not environment and not _has_torch(path) and importlib.util.find_spec("torch") is not None:
            path = sys.executable  # installed beside torch, and called by its path without activating anything
    return path


def _has_torch(python: str) -> bool:
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    try:
        return subprocess.run([python, "-c", code], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what it warns of, it says to its own user
            compile(source, str(path), "exec", dont_inherit=True)
    except OSError as error:
        raise AdvisorError(f"{command.script} cannot be read: {error.strerror or error}.") from error
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
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
    while (again := next_try(record, options)) is not None:
        note, options = again
        notes.append(note)
        first = record
        notes += _mostly_something_else(first)
        _clear(run_dir)
        record = _once(command, run_dir, options, deadline, timeout, progress)
        alike = options.total_steps and first.training == record.training
        alike = alike and (first.timing.clock, record.timing.clock) != ("host", "cuda")
        undisturbed = first.timing.from_profile and not record.timing.from_profile and record.timing.steps >= _ENOUGH
        if alike and first.timing.step_s is not None and record.timing.steps < first.timing.steps and not undisturbed:
            # The first run had more undisturbed steps than the cut one: its times are the better ones.
            keep = record.timing
            record.timing = replace(first.timing, **{name: getattr(keep, name) for name in _OF_WHOLE_WINDOWS})
        if options.total_steps and first.training == record.training and (Plan(options).settle or 0) < SETTLE:
            _as_watched(record, first)
        if options.total_steps and first.ended in ("finished", "stopped"):  # by us: the training was over
            record.total_steps = options.total_steps
        record.notes[:0] = notes
        _write_record(run_dir, record)
    endings.check(record, command.python, run_dir)
    _write_record(run_dir, record)
    return Run.load(run_dir)


def _as_watched(record: RunRecord, first: RunRecord) -> None:
    """Give a run that was too short to watch its forwards what the one before it has seen of them.

    Not what was frozen: whether it stays so the rest of that run had to show.
    """
    record.recomputed, record.repeated, record.gathered = first.recomputed, first.repeated, first.gathered
    record.one_hot = first.one_hot
    record.remade_weights, record.remade_share = first.remade_weights, first.remade_share
    record.remade_bytes = first.remade_bytes
    record.repeated_rows, record.zero_rows = first.repeated_rows, first.zero_rows
    record.sparse_products, record.looped_layers = first.sparse_products, first.looped_layers
    record.attention_masks = first.attention_masks
    record.same_rows, record.copied_operands = first.same_rows, first.copied_operands
    record.fourier_products = first.fourier_products
    record.unread, record.weighted, record.computed_s = first.unread, first.weighted, first.computed_s
    record.unread_gradients, record.asked_again = first.unread_gradients, first.asked_again
    for loader, before in zip(record.loaders, first.loaders, strict=False):
        if loader.site == before.site:
            loader.unread, loader.unread_of = before.unread, before.unread_of


def next_try(record: RunRecord, options: Options) -> tuple[str, Options] | None:
    """Whether another run would tell more, and with which options; None when this one is as good as it gets."""
    if record.complete:
        return None
    if options.total_steps:
        if (options.training is None and not options.turns) or record.steps >= 2 or record.failure is not None:
            return None
        why = "what ends its steps is another thing than in the run before it"
        return why, replace(options, training=None, turns=0)
    training, steps = training_of(record), record.steps
    if training is not None and options.training is None and steps < _FEW and record.training_steps:
        steps = max(
            record.training_steps
        )  # of several trainings that are all too short the longest, not a last few steps
        training = len(record.training_steps) - 1 - record.training_steps[::-1].index(steps)
    if steps >= 2:
        turns = record.turns if record.step_kind in ("loader", "forward") else 0
        cut = replace(options, total_steps=steps, training=training, turns=turns)
        same = training in (None, record.training)
        if options.windows == "timing" and same and (Plan(cut).timing or 0) <= record.timing.steps:
            return None  # its timing window would be no longer: `measure` would keep this one's times
        return (
            f"the script was over after {steps} steps, before everything was measured: it was run again with "
            "shorter windows, and its figures are less certain",
            cut,
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


def _mostly_something_else(record: RunRecord) -> list[str]:
    """A note on a script that goes on for much longer after its last step than its steps take."""
    steps_s, rest_s = record.steps * (record.timing.step_s or 0.0), record.after_s or 0.0
    if not steps_s or rest_s < max(_LEAST_REST_S, _MOSTLY * steps_s):
        return []
    told = f"its {record.steps} steps take {steps_s:.2g} s, and the script goes on for {rest_s:.0f} s after them, "
    told += "which is not measured"
    if record.step_kind == "optimizer":
        told += f": if that is what matters, `--step forward --skip {record.steps}` measures what calls the model there"
    return [told]


def training_of(record: RunRecord) -> int | None:
    """The training that another run has to measure to be of the same steps; None where it has but one kind of them."""
    return record.training if record.step_kind == "optimizer" else None


# Steps of a last training from which on it is the one to measure, though an earlier one may have more: the critic's
# before a GAN's generator takes its first one, say.
_FEW = 10

# Undisturbed steps that tell more than however many that were watched, of a run that was over before it had settled.
_ENOUGH = 10

# Seconds after a script's last step, and how many times as long as its steps, that are worth a word.
_LEAST_REST_S, _MOSTLY = 5.0, 3.0

# How long steps may go on in child processes alone before the run is given up.
_CHILDREN_SECONDS = 15.0


def _clear(run_dir: Path) -> None:
    for entry in run_dir.iterdir():
        if entry.name in (layout.FILES_DIR, layout.JOURNAL_DIR, layout.OVERLAY_DIR):
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
    with _Protected(run_dir, tuple(options.keep_dirs)) as protected:
        try:
            options_path, output = _prepare(command, run_dir, options, protected)
        except OSError as error:
            raise AdvisorError(
                f"the folder {run_dir} cannot be written ({error.strerror or error}): choose another with --output."
            ) from error
        started = time.monotonic()
        with output:
            try:
                child = protected.start(
                    [command.python, str(_BOOTSTRAP), str(options_path)],
                    stdout=output,
                    env=_environment(command, run_dir, options_path, options.seed),
                    cwd=command.cwd,
                )
            except OSError as error:
                raise AdvisorError(f"{command.python} cannot be started: {error.strerror or error}.") from error
        try:
            status = _wait(child, run_dir, deadline, progress, protected)
        except _TimeUpError:
            where = _where_it_hangs(child, run_dir)
            message = f"the time limit of {timeout:.0f} s (--timeout) was reached {endings.doing(run_dir)}{where}."
            mark(run_dir, "killed", message, "timeout")
            raise AdvisorError(message, errors.TIME_LIMIT, detail=endings.tail(run_dir)) from None
    record = endings.read_record(run_dir) or endings.partial_record(run_dir, status)
    if record is None:
        end = endings.died(command.python, run_dir, status, time.monotonic() - started)
        mark(run_dir, "killed", str(end), "killed")
        raise end
    record.advisor = __version__
    record.notes.extend(f"could not be put back as it was: {failure}" for failure in protected.restored.failed)
    _write_record(run_dir, record)
    return record


def _prepare(command: Command, run_dir: Path, options: Options, protected: _Protected) -> tuple[Path, IO[bytes]]:
    run_dir.mkdir(parents=True, exist_ok=True)
    protected.claim = register(run_dir)
    (run_dir / layout.FILES_DIR).mkdir(exist_ok=True)
    options_path = run_dir / layout.OPTIONS_JSON
    filled = replace(
        options,
        run_dir=str(run_dir),
        script=command.script,
        module=command.module,
        argv=list(command.argv),
        cwd=os.path.abspath(command.cwd),
        parent_pid=os.getpid(),
    )
    options_path.write_text(json.dumps(layout.to_dict(filled)))
    earlier = (layout.RUN_JSON, layout.PARTIAL_JSON, layout.CHILD_TRAINS, layout.MEASURED_RANK)
    for name in earlier:  # of another run into this folder
        (run_dir / name).unlink(missing_ok=True)
    return options_path, (run_dir / layout.OUTPUT_LOG).open("wb")


@contextmanager
def _standard_input() -> Iterator[int]:
    """What the script reads: nothing, at once. At a terminal it is a terminal too, because scripts ask it for its size.

    A script that waits for an answer would seem to hang: its question is in the log.
    """
    if sys.stdin is None or not sys.stdin.isatty():
        yield subprocess.DEVNULL
        return
    ours, theirs = os.openpty()
    columns, rows = shutil.get_terminal_size()
    with suppress(OSError):
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    os.write(ours, b"\x04" * 255)  # Ctrl-D for whoever reads; `ours` stays open, or the script would get a hang-up
    try:
        yield theirs
    finally:
        os.close(theirs)


class _TimeUpError(Exception):
    pass


def _wait(
    child: subprocess.Popen[bytes],
    run_dir: Path,
    deadline: float | None,
    progress: Progress | None,
    protected: _Protected,
) -> int:
    """The child's exit status. Progress is told at most once a second, and not in the timing window."""
    told, phase, ending = 0.0, "", None
    record = run_dir / layout.RUN_JSON
    while True:
        try:
            return child.wait(_POLL_SECONDS if phase != "timing" else 4 * _POLL_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        protected.check()
        now = time.monotonic()
        if deadline is not None and now > deadline:
            raise _TimeUpError
        if endings.children_train(run_dir, _CHILDREN_SECONDS):
            raise AdvisorError(endings.CHILDREN_TRAIN, errors.NO_STEP)
        if ending is None and record.exists():
            ending = now + _ENDING_SECONDS
        if ending is not None and now > ending:
            return 0  # measured and written; whatever it still does, it does in vain
        if progress is not None and now - told >= 1.0:
            told = now
            current = endings.status(run_dir)
            if current is not None and not (current.phase == phase == "timing"):
                phase = current.phase
                progress(current)


class _Protected:
    """From the moment the run folder is ours until every file is back: no signal leaves things half done.

    Ctrl-C, SIGTERM, SIGHUP and SIGQUIT are only remembered while this is entered; :meth:`check` raises the
    KeyboardInterrupt at a place of its own choosing, and leaving does at the latest, when everything is back.
    """

    def __init__(self, run_dir: Path, keep: tuple[str, ...]) -> None:
        self.restored = Restored()
        self.claim: Claim | None = None
        self._run_dir = run_dir
        self._keep = keep
        self._child: subprocess.Popen[bytes] | None = None
        self._interrupted = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> _Protected:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            # Ignored ones stay so (nohup, a background job). Only the main thread may set handlers: a program that
            # uses us as a library elsewhere keeps its own.
            with suppress(ValueError):
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._previous[number] = signal.signal(number, self._hear)
        return self

    def _hear(self, number: int, frame: object) -> None:
        self._interrupted = True

    def check(self) -> None:
        """A sign of life to other commands; raises KeyboardInterrupt when one was heard."""
        if self._interrupted:
            raise KeyboardInterrupt
        if self.claim is not None:
            self.claim.beat()

    def start(self, arguments: list[str], stdout: IO[bytes], env: dict[str, str], cwd: str) -> subprocess.Popen[bytes]:
        """The child, in a session of its own: the terminal's Ctrl-C is for us alone."""
        with _standard_input() as stdin:
            self._child = subprocess.Popen(
                arguments,
                stdin=stdin,
                stdout=stdout,
                stderr=subprocess.STDOUT,
                env=env,
                cwd=cwd,
                start_new_session=True,
            )
        return self._child

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            self._clean_up()
        finally:
            for number, handler in self._previous.items():
                signal.signal(number, handler)
        if self._interrupted and kind is None:
            raise KeyboardInterrupt

    def _clean_up(self) -> None:
        if self._child is not None:
            # Only as long as it lives does one see whose children they are.
            children = descendants(self._child.pid) if self._child.poll() is None else []
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()
            for pid in children:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        if self.claim is None:
            return
        try:
            end_processes(self._run_dir)
            self.restored = restore(self._run_dir, self._keep)
            if self._interrupted:
                mark(self._run_dir, "failed", "interrupted by the user before the run was complete")
        finally:
            self.claim.release()


def _environment(command: Command, run_dir: Path, options_path: Path, seed: int | None) -> dict[str, str]:
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
            # `git status`, which trackers ask, else rewrites the user's index.
            "GIT_OPTIONAL_LOCKS": "0",
        }
    )
    # Kineto complains on every machine without a GPU unless told not to.
    environment.setdefault("KINETO_LOG_LEVEL", "99")
    if seed is not None:
        environment.setdefault("PYTHONHASHSEED", str(seed % 2**32))  # the order of a set of strings
    environment.update(command.environment)
    return environment


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
