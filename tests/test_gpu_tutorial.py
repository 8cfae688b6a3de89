"""`make gpu` without a GPU: the stages by hand, the table from stored parts, small copies of runs."""

from __future__ import annotations

import functools
import importlib.util
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
import torch

from advisor.errors import AdvisorError
from advisor.findings import Findings, FixDocument, Measured, Outcome, Predicted, Range, Trial
from advisor.harness.layout import Loader, RunRecord, Timing
from advisor.run import Run
from tests.benchmarks.gpu_tutorial import by_hand, parts
from tests.benchmarks.gpu_tutorial.figures import Machine, Row, epoch_rate
from tests.benchmarks.gpu_tutorial.parts import Asked, Duel, HandPart, Last, LoopPart, Parts
from tests.benchmarks.gpu_tutorial.small_runs import record
from tests.benchmarks.gpu_tutorial.table import render
from tests.conftest import QUICK, REPO, Profiled

SHORT = replace(QUICK, min_seconds=0.2, min_steps=10)

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="here `make gpu` itself is the test")


# By hand -------------------------------------------------------------------------------------------------------------


def losses(script: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> list[float]:
    """The losses of a script's three steps on twelve images of 16 pixels, seeded."""
    seen: list[float] = []

    class Recording(torch.nn.CrossEntropyLoss):
        def forward(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            loss = super().forward(outputs, labels)
            seen.append(loss.item())
            return loss

    monkeypatch.setattr(torch.nn, "CrossEntropyLoss", Recording)
    monkeypatch.setattr(
        sys, "argv", ["train.py", "--image-size", "16", "--images", "12", "--batch-size", "4", *arguments]
    )
    torch.manual_seed(0)
    script.main()
    return seen


def stage(number: int, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    # Three steps in every stage: the larger batches are no larger.
    sizes = ("--larger-batch", "4", "--autocast-batch", "4", "--workers", "1")
    return losses(by_hand, monkeypatch, "--stage", str(number), *sizes)


@pytest.fixture(scope="module")
def original() -> list[float]:
    """The losses of `fixtures/cifar_resnet.py`."""
    spec = importlib.util.spec_from_file_location("cifar_resnet", REPO / "fixtures" / "cifar_resnet.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    with pytest.MonkeyPatch.context() as patch:
        return losses(script, patch)


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, *(pytest.param(each, marks=pytest.mark.sessions) for each in (1, 2, 3)), 4])
def test_stage_that_changes_no_arithmetic_has_the_losses_of_the_script(
    number: int, original: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(original) == 3
    assert stage(number, monkeypatch) == pytest.approx(original, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("number", (by_hand.AUTOCAST, pytest.param(by_hand.COMPILE, marks=pytest.mark.sessions)))
def test_autocast_and_compiled_stages_stay_near_the_losses_of_the_script(
    number: int, original: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    # What Dynamo takes is what is asked here; Inductor's C++ would be half a minute more.
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    found = stage(number, monkeypatch)
    assert len(found) == 3 and all(math.isfinite(loss) for loss in found)
    # The first alone: from there on batch norm over four images makes of bfloat16's rounding what it will, and
    # processors round differently (27 % between two of them at the second loss).
    assert found[0] == pytest.approx(original[0], rel=0.05)
    assert found[0] != pytest.approx(original[0], rel=1e-6), "autocast is off"


def test_batch_that_does_not_fit_is_halved_for_its_stage_and_those_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[tuple[str, ...]] = []

    def run(command: parts.Command, folder: Path, *_: object) -> str:
        tried.append(command.argv)
        if int(command.argv[command.argv.index("--autocast-batch") + 1]) > 256:
            raise AdvisorError("CUDA out of memory. Tried to allocate 2 GiB.")
        return "ran"

    monkeypatch.setattr(parts, "_run", run)
    tuned, notes = parts._Tuned(Asked(tmp_path, 60, sys.executable)), list[str]()
    assert tuned.run(parts.AUTOCAST, tmp_path / "run", 60, notes) == "ran"
    assert len(tried) == 3 and len(notes) == 2
    argv = tuned.command(6).argv
    assert argv[argv.index("--autocast-batch") + 1] == "256"
    assert argv[argv.index("--larger-batch") + 1] == "512"


def test_failure_that_is_no_lack_of_room_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object) -> str:
        raise AdvisorError("the script failed: no C compiler")

    monkeypatch.setattr(parts, "_run", run)
    with pytest.raises(AdvisorError, match="no C compiler"):
        parts._Tuned(Asked(tmp_path, 60, sys.executable)).run(6, tmp_path / "run", 60, notes := [])
    assert notes == []


# The table -----------------------------------------------------------------------------------------------------------

MACHINE = Machine("2026-11-21", "A GPU", "580.1", "2.11.0", "3.12.3", "A CPU", 16, 139.0)


def row(name: str, samples_per_s: float, speedup: float, **more: object) -> Row:
    return Row(name, step_ms=1e3 * 32 / samples_per_s, samples_per_s=samples_per_s, speedup=speedup, **more)


def a_trial(number: int, rule: str, status: str, reason: str) -> Trial:
    return Trial(
        number=number,
        rule=rule,
        title=f"Do as {rule} says",
        safety="exact",
        status=status,
        reason=reason,
        predicted=Predicted(Range(3.0, 3.5, 4.0)),
        fix=FixDocument("edit", "text"),
        folder=f"0{number}-{rule}",
        measured=Measured(80.0, 25.0, 3.2, 3.1, 3.3, pairs=3) if status == "kept" else None,
    )


def stored(folder: Path) -> Parts:
    """Parts as they would be stored, read back."""
    trials = [
        a_trial(1, "loader-workers", "kept", "measured faster"),
        a_trial(2, "compile", "failed", "out of memory: 4 | 5"),
    ]
    outcome = Outcome(trials, 80.0, 25.0, Range(3.1, 3.2, 3.3), direct=True, kept=["loader-workers"], ended="all tried")
    loop = LoopPart(
        MACHINE,
        Findings("input-bound", "train.py", 80.0, 400.0, "A GPU", {}, [], outcome=outcome),
        [row("as it is", 400.0, 1.0), row("workers", 1280.0, 3.2, interval=Range(3.1, 3.2, 3.3))],
        Last(["--images", "10000"]),
    )
    hand = HandPart(
        MACHINE,
        [
            row("as it is", 401.0, 1.0, gpu_busy=0.42, tensor_cores=(0.1, 0.3), peak_allocated_gib=2.5),
            row("loader workers", 1200.0, 2.99, epoch_samples_per_s=1100.0),
            Row("pinned memory", error="no room"),
        ],
        [["--stage", "0"], ["--stage", "1"], ["--stage", "2"]],
    )
    duel = Duel(MACHINE, 1, [(1.0, 0.5), (1.01, 0.5), (1.0, 0.501)], [(100.0, 199.0)] * 3)
    for name, part in (("loop", loop), ("hand", hand), ("duel", duel)):
        (folder / f"{name}.json").write_bytes(msgspec.json.encode(part))
    return Parts.read(folder)


def test_table_says_what_was_measured_and_why_fixes_were_not_kept(tmp_path: Path) -> None:
    text = render(stored(tmp_path))
    lines = text.splitlines()
    assert "2026-11-21, A GPU (139 GiB), driver 580.1, torch 2.11.0" in text
    (original,) = (line for line in lines if line.startswith("| 0 as it is | 79.8 ms"))
    assert "401" in original and "| 42% | 10%–30% | 2.5 GiB |" in original
    assert "| 2 pinned memory | failed: no room |" in text
    assert "3.50× (3.00–4.00) | 3.20× (3.10–3.30) | 3 | kept | measured faster |" in text
    assert "| – | – | failed | out of memory: 4 \\| 5 |" in text
    assert "400 → 1,280 samples/s, 3.20× (3.10–3.30), 1 fix kept" in text
    assert "best at stage 1" in text
    (beside,) = (line for line in lines if "Loop over hand" in line)
    assert "2.0" in beside and "the loop wins" in beside and "over epochs 1.99×" in beside
    for table in ("step |", "tried |"):
        assert any(table in line for line in lines)
    widths = [line.replace("\\|", "").count("|") for line in lines if line.startswith("|")]
    assert len(set(widths)) == 2, "each table's lines have as many cells as its head"


def test_table_names_the_parts_that_are_missing(tmp_path: Path) -> None:
    stored(tmp_path)
    (tmp_path / "loop.json").unlink()
    (tmp_path / "duel.json").unlink()
    text = render(Parts.read(tmp_path))
    assert "Not measured (`--part loop`)" in text and "Loop over hand" not in text


def test_throughput_over_epochs_counts_their_starts() -> None:
    # Ten steps of 0.1 s, and two epochs that began 0.5 s late: 1000 samples in 1.5 s.
    timing = Timing(step_s=0.1, aside={"epoch start": 1.0}, aside_counts={"epoch start": 2})
    loader = Loader(trains=True, batches=10, batch_size=104, dataset_length=1000)
    assert epoch_rate(RunRecord(timing=timing, loaders=[loader])) == pytest.approx(1000 / 1.5)
    assert epoch_rate(RunRecord(timing=Timing(step_s=0.1), loaders=[loader])) is None


# The rest ------------------------------------------------------------------------------------------------------------


def test_small_copy_of_a_run_can_be_read_and_names_no_path_of_this_machine(
    profiled: Callable[..., Profiled], tmp_path: Path
) -> None:
    run = profiled("flat.py").run
    assert record(run.folder, tmp_path / "small") == []
    small = Run.load(tmp_path / "small")
    assert small.trace is not None and len(small.trace.steps) == len(run.trace.steps)
    assert small.detail is not None
    text = (tmp_path / "small" / "run.json").read_text()
    assert str(run.folder) not in text and str(REPO) not in text


def test_traces_that_are_too_large_are_left_out_with_a_note(profiled: Callable[..., Profiled], tmp_path: Path) -> None:
    notes = record(profiled("flat.py").run.folder, tmp_path / "small", largest=1000)
    assert len(notes) == 2 and all("left out" in note for note in notes)
    small = Run.load(tmp_path / "small")
    assert small.trace is None and small.record.notes[-2:] == notes


def test_without_a_gpu_one_sentence_says_so_and_nothing_is_installed(tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    path = os.pathsep.join((str(tmp_path), os.environ["PATH"]))
    venv = tmp_path / "venv"
    done = subprocess.run(
        ["make", "gpu", f"VENV={venv}"],
        cwd=REPO,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and not venv.exists()
    assert done.stderr.splitlines()[0] == "make gpu needs a CUDA GPU, and nvidia-smi finds none here."


def test_torch_without_a_gpu_is_told_too(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(REPO / "tests" / "benchmarks")}
    done = subprocess.run(
        [sys.executable, "-m", "gpu_tutorial", "--folder", str(tmp_path / "runs")],
        cwd=REPO,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and not (tmp_path / "runs").exists()
    assert done.stderr == "This benchmark needs a CUDA GPU, and torch finds none here.\n"


# A loader that waits: with workers several of its batches are under way at a time.
SLOW = """\
import time
import torch
from torch.utils.data import DataLoader, Dataset


class Photos(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.full((16,), index / 4000), index % 2


def main():
    loader = DataLoader(Photos(), batch_size=8, shuffle=True)
    model = torch.nn.Linear(16, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
@pytest.mark.sessions
def test_what_the_loop_kept_runs_beside_the_hand_from_what_was_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "cifar_resnet.py"
    script.write_text(SLOW)
    monkeypatch.setattr(parts, "ORIGINAL", script)
    monkeypatch.setattr(parts, "BY_HAND", script)
    monkeypatch.setattr(parts, "STAGES", ("as it is",))
    monkeypatch.setattr(parts, "REPO", tmp_path)
    asked = Asked(tmp_path, 240.0, sys.executable, rounds=1, options=SHORT, accept="loader-workers")
    looped = parts.loop(asked)
    assert [trial.status for trial in looped.document.outcome.trials].count("kept") >= 1
    assert len(looped.rows) >= 2 and looped.rows[-1].workers
    assert list(looped.last.files) == ["cifar_resnet.py"]
    assert "num_workers" in looped.last.files["cifar_resnet.py"]
    shutil.rmtree(tmp_path / "loop")  # another machine, or the folder of runs is gone
    assert parts.hand(asked).rows[0].workers == 0
    assert len(parts.duel(asked).costs) == 3
    for number in (1, 2, 3):
        workers = [
            Run.load(tmp_path / "duel-1" / f"{number}-{side}").record.loaders[0].num_workers
            for side in ("hand", "loop")
        ]
        assert workers == [0, looped.rows[-1].workers]
    assert script.read_text() == SLOW
    assert "3 pairs of runs in alternation" in render(Parts.read(tmp_path))
