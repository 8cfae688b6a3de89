"""What every room's tests share: the reference traces, and scripts profiled once per test session."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FunctionType

import pytest
from filelock import FileLock

from advisor.errors import AdvisorError
from advisor.harness.layout import Options
from advisor.run import Run
from fixtures.expectations import TRACES

Command = Callable[..., subprocess.CompletedProcess[str]]

REPO = Path(__file__).resolve().parents[1]
SCRIPTS = REPO / "tests" / "harness" / "scripts"
# The interpreter that runs the scripts: `make test-oldest` names one with the oldest torch that is supported.
PYTHON = os.environ.get("ADVISOR_TEST_PYTHON", sys.executable)
# Windows as long as the tests need them: the defaults are for the figures' sake, these for the time's.
QUICK = Options(min_seconds=0.5, max_seconds=5.0, settle_max_seconds=5.0)
# What lies in a script's folder before it is run: the scripts overwrite, rotate away, append to and remove these.
EARLIER_FILES = (
    "out/best.pt",
    "out/checkpoint-1.pt",
    "out/log.csv",
    "output/checkpoint-5/model.safetensors",
    "output/checkpoint-5/trainer_state.json",
    "output/model.safetensors",
    "data/log.txt",
    "data/last.pt",
    "data/old_run/deep/1.pt",
    "data/old_run/empty/",
    "head.pt",
    "lightning_logs/version_0/metrics.csv",
)

OURS = tuple(f"{REPO / room}{os.sep}" for room in ("advisor", "tests"))

Tree = dict[str, tuple[int, str, int]]


def pytest_configure(config: pytest.Config) -> None:
    """The scripts' figures and findings are those of a CPU: a GPU of this machine stays out of sight, unless tests that
    are marked `gpu` are asked for."""
    if config.option.markexpr != "gpu" and os.path.exists("/proc/driver/nvidia"):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@dataclass(frozen=True)
class Profiled:
    """A script that was run under the harness, in a copy of its folder.

    ``before`` and ``after`` map each path in that folder to its mode, contents (a digest, or a link's target) and
    time of change. ``status``, ``message`` and ``detail`` are the AdvisorError's, when there was one.
    """

    folder: str
    run_dir: str
    before: Tree
    after: Tree
    seconds: float
    status: int = 0
    message: str = ""
    detail: str = ""

    @property
    def run(self) -> Run:
        assert not self.message, f"exit status {self.status}: {self.message}\n{self.detail}"
        return Run.load(self.run_dir)

    @property
    def output(self) -> str:
        """What the script printed."""
        return (Path(self.run_dir) / "output.log").read_text(errors="replace")


def tree(folder: Path) -> Tree:
    """Every file, link and folder below `folder`: mode, contents, and for files the time of the last change."""
    found: Tree = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            contents, changed = f"-> {os.readlink(path)}", 0
        elif stat.S_ISDIR(status.st_mode):
            contents, changed = "folder", 0
        else:
            contents, changed = hashlib.sha256(path.read_bytes()).hexdigest(), status.st_mtime_ns
        found[str(path.relative_to(folder))] = (status.st_mode, contents, changed)
    return found


def lay_out(folder: Path) -> None:
    """A copy of the scripts, with files in it that earlier runs of theirs might have left."""
    shutil.copytree(SCRIPTS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in EARLIER_FILES:
        path = folder / name
        if name.endswith("/"):
            path.mkdir(parents=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"an earlier run wrote this: " + name.encode())
            os.utime(path, (1_600_000_000, 1_600_000_000))
    (folder / "data" / "current").symlink_to("last.pt")


@pytest.fixture(scope="session", autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the list of unfinished runs to this session, so that no `advisor` outside repairs ours, or we theirs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))
        yield


@pytest.fixture(autouse=True)
def torch_as_it_was() -> Iterator[None]:
    """A test that leaves wrappers of ours in torch would change what the next one sees."""
    yield
    left = _ours_in_torch()
    assert not left, f"left in torch: {left}"


def _ours_in_torch() -> list[str]:
    """The functions of torch's in whose place one of ours stands, and our modes; none before a test imports torch."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "overrides"):
        return []
    owners = (torch, torch.Tensor, torch.nn.Module, torch.nn.functional, torch.autograd, torch.optim.Optimizer)
    found = [
        f"{owner.__name__}.{name}"
        for owner in owners
        for name, each in vars(owner).items()
        if isinstance(each, FunctionType) and each.__code__.co_filename.startswith(OURS)
    ]
    return found + [str(each) for each in torch.overrides._get_current_function_mode_stack()]


@pytest.fixture(scope="session")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Profiled]:
    """``profiled("gan.py", "--critic-steps", "5")``: that script's run, made once per test session.

    ``module=True`` runs ``python -m``; ``inside`` names the folder, below the scripts', to start in; ``timeout`` is in
    seconds. Processes of pytest-xdist share the runs.
    """
    base = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        base = base.parent

    def run(script: str, *arguments: str, module: bool = False, inside: str = "", timeout: float = 120.0) -> Profiled:
        key = hashlib.sha256(repr((script, arguments, module, inside, timeout)).encode()).hexdigest()[:12]
        place = base / "profiled" / f"{Path(script).stem}-{key}"
        place.parent.mkdir(exist_ok=True)
        with FileLock(f"{place}.lock"):
            result = place / "result.json"
            if not result.exists():
                shutil.rmtree(place, ignore_errors=True)  # a process that was killed halfway
                result.write_text(json.dumps(asdict(_profile(place, script, arguments, module, inside, timeout))))
            fields = json.loads(result.read_text())
        for name in ("before", "after"):
            fields[name] = {path: tuple(entry) for path, entry in fields[name].items()}
        return Profiled(**fields)

    return run


def _profile(
    place: Path, script: str, arguments: tuple[str, ...], module: bool, inside: str, timeout: float
) -> Profiled:
    from advisor.launch import Command, check_script, measure  # here: most rooms' tests start without it

    folder = place / "scripts"
    place.mkdir()
    lay_out(folder)
    cwd = folder / inside
    command = Command(
        script=script if module else str(cwd / script),
        argv=arguments,
        module=module,
        python=PYTHON,
        # Two scripts may run side by side on two cores.
        environment={"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        cwd=str(cwd),
    )
    before, started, error = tree(folder), time.monotonic(), AdvisorError("", 0)
    try:
        check_script(command)
        measure(command, place / "run", QUICK, timeout=timeout)
    except AdvisorError as raised:
        error = raised
    return Profiled(
        folder=str(folder),
        run_dir=str(place / "run"),
        before=before,
        after=tree(folder),
        seconds=time.monotonic() - started,
        status=error.exit_status,
        message=str(error),
        detail=error.detail,
    )


@pytest.fixture(scope="session")
def repo() -> Path:
    """The root of the repository."""
    return REPO


@pytest.fixture(scope="session")
def shared_traces() -> Path:
    """The folder of the reference traces; the test is skipped where it is absent (they are not part of the project)."""
    if not TRACES.is_dir():
        pytest.skip("the reference traces are not here")
    return TRACES


@pytest.fixture
def advisor(tmp_path: Path) -> Command:
    """The command in a process of its own, in an empty folder."""

    def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
        # What other runs on this machine left to put back is no business of ours: the state is our own.
        environment = {
            **os.environ,
            "COLUMNS": "80",
            "TMPDIR": str(tmp_path),
            "XDG_STATE_HOME": str(tmp_path),
            **dict(options.pop("env", {})),
        }  # type: ignore[call-overload]
        return subprocess.run(
            [sys.executable, "-m", "advisor.cli", *arguments],
            capture_output=True,
            text=True,
            encoding="utf-8",
            cwd=tmp_path,
            env=environment,
            timeout=120,
            **options,  # type: ignore[call-overload]
        )

    return run
