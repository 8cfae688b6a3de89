"""Scripts that nobody prepared: each is run as it is, once, and must be understood and left unharmed."""

from __future__ import annotations

import itertools
import math
import os
import re
import statistics
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from advisor.evidence import Evidence
from advisor.harness.layout import Loader, OptimizerInfo, RunRecord
from advisor.trace import read_trace
from tests.conftest import PYTHON, SCRIPTS, Profiled

pytestmark = pytest.mark.slow
Profile = Callable[..., Profiled]


@dataclass(frozen=True)
class Case:
    """A script and what is known of it: what ends its step, how many samples go into one (None: cannot be seen)."""

    script: str
    arguments: tuple[str, ...] = ()
    kind: str = "optimizer"
    samples: float | None = None
    module: bool = False
    inside: str = ""
    boundary: str = ""  # the optimizer whose step it is, where there are several
    packages: bool = False  # needs packages that the oldest environment does not have
    variant: bool = False  # much like another one: in CI, and not in `make test`

    @property
    def name(self) -> str:
        return " ".join((self.script, *self.arguments))


CASES = (
    Case("flat.py", samples=32),
    Case("main_argparse.py", ("--batch-size", "8"), samples=8),
    Case("train.py", inside="project", samples=16),
    Case("vision.main", ("--batch-size", "8"), module=True, inside="project", samples=8),
    Case("gan.py", samples=64, variant=True),
    Case("gan.py", ("--critic-steps", "5"), samples=320),
    Case("accumulation.py", samples=32, variant=True),
    Case("scheduler.py", variant=True),
    Case("lbfgs.py", variant=True),
    Case("rollout.py", variant=True),
    Case("by_hand.py", kind="forward", samples=16),
    Case("functional.py", kind="forward", variant=True),
    Case("evaluate_checkpoint.py", samples=16, variant=True),
    Case("sanity_validation.py", samples=32, variant=True),
    Case("hf_trainer.py", samples=8, packages=True),
    Case("lightning_trainer.py", samples=32, packages=True),
    Case("lightning_hooks.py", samples=32, packages=True, variant=True),
    Case("accelerate_loop.py", samples=32),
    Case("iterable_dataset.py", samples=64, variant=True),
    Case("loader_subclass.py", samples=16, variant=True),
    Case("handwritten_batches.py", variant=True),
    Case("inference_loader.py", kind="loader", samples=8),
    Case("inference_plain.py", kind="forward", samples=1),
    Case("workers.py", ("--context", "fork"), samples=8),
    Case("workers.py", ("--context", "spawn"), samples=8, variant=True),
    Case("workers.py", ("--context", "forkserver"), samples=8, variant=True),
    Case("workers.py", ("--persistent",), samples=8, variant=True),
    Case("own_profiler.py"),
    Case("compiled.py"),
    Case("compiled.py", ("--fullgraph",), variant=True),
    Case("compiled.py", ("--fullgraph", "--function"), variant=True),
    Case("scripted.py", variant=True),
    Case("amp_scaler.py"),
    Case("scalars.py", variant=True),
    Case("swallows.py"),
    Case("five_steps.py", samples=16),
    Case("many_writes.py", variant=True),
    Case("whole_model.py", variant=True),
    Case("explicit_step.py", kind="explicit", variant=True),
)
FAILING = (
    Case("no_step.py"),
    Case("fails.py", ("raise", "--after", "0")),
    Case("fails.py", ("raise", "--after", "60"), variant=True),
    Case("fails.py", ("exit", "--after", "0"), variant=True),
    Case("fails.py", ("exit", "--after", "60"), variant=True),
    Case("fails.py", ("kill", "--after", "10")),
    Case("fails.py", ("segfault", "--after", "10")),
    Case("fails.py", ("memory", "--after", "0")),
    Case("fails.py", ("cuda", "--after", "0"), variant=True),
)


def _parameters(cases: tuple[Case, ...]) -> list[object]:
    # Tests of one script stay in one process; those without the big libraries also run with the oldest torch.
    return [
        pytest.param(
            case,
            id=case.name,
            marks=[
                pytest.mark.xdist_group(case.name),
                *([] if case.packages else [pytest.mark.oldest]),
                *([pytest.mark.sessions] if case.variant else []),
            ],
        )
        for case in cases
    ]


every_script = pytest.mark.parametrize("case", _parameters(CASES))
every_ending = pytest.mark.parametrize("case", _parameters(CASES + FAILING))


def one(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test for the cases with these names only."""
    chosen = tuple(case for case in CASES + FAILING if case.name in names)
    assert len(chosen) == len(names), names
    return pytest.mark.parametrize("case", _parameters(chosen))


def profile(profiled: Profile, case: Case) -> Profiled:
    return profiled(case.script, *case.arguments, module=case.module, inside=case.inside)


def record_of(profiled: Profile, case: Case) -> RunRecord:
    return profile(profiled, case).run.record


def trained_by(record: RunRecord) -> Loader:
    (loader,) = (loader for loader in record.loaders if loader.trains)
    return loader


def line_at(script: str, line: int) -> str:
    return (SCRIPTS / script).read_text().splitlines()[line - 1]


def boundary(record: RunRecord) -> OptimizerInfo:
    (optimizer,) = (optimizer for optimizer in record.optimizers if optimizer.boundary)
    return optimizer


# What holds for every script.


@every_ending
def test_folder_is_afterwards_as_it_was(profiled: Profile, case: Case) -> None:
    done = profile(profiled, case)
    assert done.after == done.before


@every_ending
def test_no_process_is_left(profiled: Profile, case: Case) -> None:
    run_dir = profile(profiled, case).run_dir.encode()
    left = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and process.name != str(os.getpid()):
            try:
                if run_dir in (process / "environ").read_bytes() + (process / "cmdline").read_bytes():
                    left.append((process / "cmdline").read_bytes())
            except OSError:
                continue
    assert left == []


@every_script
def test_step_is_found(profiled: Profile, case: Case) -> None:
    record = record_of(profiled, case)
    assert record.step_kind == case.kind
    assert record.timing.step_s is not None and record.timing.step_s > 0
    assert record.failure is None


@every_script
def test_samples_of_a_step_are_counted(profiled: Profile, case: Case) -> None:
    record = record_of(profiled, case)
    if case.samples is not None:
        assert record.timing.samples_per_step == case.samples


@every_script
def test_both_traces_hold_the_steps_they_should(profiled: Profile, case: Case) -> None:
    run = profile(profiled, case).run
    windows = {window.name: window for window in run.record.windows}
    for name, traces in (("profile", run.traces), ("detail", run.detail_traces)):
        (path,) = traces
        trace = read_trace(path)
        assert len(trace.steps) == windows[name].steps > 0
        assert len(trace.operators) > 10 * windows[name].steps


@every_script
def test_timing_window_adds_up(profiled: Profile, case: Case) -> None:
    timing = record_of(profiled, case).timing
    assert timing.step_s is not None
    assert len(timing.intervals) == timing.steps
    assert sum(timing.intervals) == pytest.approx(timing.elapsed, rel=0.02)
    assert timing.elapsed == pytest.approx(timing.steps * timing.step_s, rel=0.02)


@every_script
def test_losses_are_recorded_where_there_is_training(profiled: Profile, case: Case) -> None:
    losses = record_of(profiled, case).losses
    assert all(math.isfinite(loss) for loss in losses)
    assert bool(losses) == (case.kind == "optimizer" or case.script == "by_hand.py")


# What is particular to one.


@one("main_argparse.py --batch-size 8")
def test_step_time_is_that_of_the_scripts_own_clock(profiled: Profile, case: Case) -> None:
    done = profile(profiled, case)
    clock = [float(text) for text in re.findall(r"^clock (\S+)", done.output, re.MULTILINE)]
    record = done.run.record
    (window,) = (window for window in record.windows if window.name == "timing")
    # Step n ends at the optimizer's step; the script tells the time right after it. The harness closes its window
    # between the two, so the script's last step is longer; and a step may be cut off from its clock by another process.
    theirs = [after - before for before, after in itertools.pairwise(clock[window.first_step - 1 :])]
    ours = record.timing.intervals
    assert len(ours) == window.steps
    ratios = [mine / other for mine, other in zip(ours[:-1], theirs, strict=False)]
    assert statistics.median(ratios) == pytest.approx(1.0, rel=0.05)
    assert window.elapsed >= sum(ours) == pytest.approx(record.timing.step_s * window.steps)


@one("main_argparse.py --batch-size 8")
def test_waiting_for_a_slow_dataset_is_seen(profiled: Profile, case: Case) -> None:
    record = record_of(profiled, case)
    loader = trained_by(record)
    assert loader.site is not None and Path(loader.site.file).name == "main_argparse.py"
    # Eight samples of half a millisecond each; they sleep and use next to no processor.
    assert loader.fetch_s is not None and loader.fetch_cpu_s is not None and loader.wait_s is not None
    assert record.timing.step_s is not None and 0.004 <= loader.fetch_s < record.timing.step_s
    assert loader.fetch_cpu_s < loader.fetch_s / 2
    assert loader.wait_s == pytest.approx(loader.fetch_s, rel=0.3)


@one("gan.py --critic-steps 5")
def test_least_frequent_optimizer_ends_the_step(profiled: Profile, case: Case) -> None:
    record = record_of(profiled, case)
    ends = boundary(record)
    assert ends.site is not None
    source = (SCRIPTS / "gan.py").read_text().splitlines()
    assert "generator.parameters()" in source[ends.site.line - 1]
    others = [optimizer for optimizer in record.optimizers if not optimizer.boundary]
    assert [round(optimizer.steps / ends.steps) for optimizer in others] == [5]


@one("gan.py", "gan.py --critic-steps 5")
def test_both_networks_of_a_gan_are_known(profiled: Profile, case: Case) -> None:
    assert len(record_of(profiled, case).models) == 2


@one("accumulation.py")
def test_accumulated_batches_make_one_step(profiled: Profile, case: Case) -> None:
    record = record_of(profiled, case)
    backward = [site for site in record.call_sites if site.kind == "backward"]
    assert [site.calls_per_step for site in backward] == [4]


@one("lbfgs.py")
def test_closures_forwards_belong_to_one_step(profiled: Profile, case: Case) -> None:
    record = record_of(profiled, case)
    (forward,) = (site for site in record.call_sites if site.kind == "Module.call")
    assert forward.calls_per_step == pytest.approx(4, abs=1.1)


@one("evaluate_checkpoint.py")
def test_evaluation_and_checkpoints_are_set_aside(profiled: Profile, case: Case) -> None:
    record = record_of(profiled, case)
    assert record.timing.aside_counts.get("evaluation", 0) >= 1
    assert record.aside.get("evaluation", 0) > 0
    valid = [loader for loader in record.loaders if not loader.trains]
    assert [loader.batch_size for loader in valid] == [32]


@one("rollout.py")
def test_a_period_of_steps_is_profiled_whole(profiled: Profile, case: Case) -> None:
    windows = {window.name: window for window in record_of(profiled, case).windows}
    assert windows["profile"].steps == 12 and windows["timing"].steps % 12 == 0


@one("by_hand.py")
def test_training_without_an_optimizer_is_found_while_it_runs(profiled: Profile, case: Case) -> None:
    record = record_of(profiled, case)
    assert record.seen["forwards"] < 3000  # stopped as soon as enough was measured
    assert [site.calls_per_step for site in record.call_sites if site.kind == "backward"] == [1.0]


@one("sanity_validation.py")
def test_validation_before_training_is_no_step(profiled: Profile, case: Case) -> None:
    record = record_of(profiled, case)
    assert trained_by(record).batch_size == 32
    assert boundary(record).steps <= record.seen["optimizer_steps"]


@one("hf_trainer.py")
def test_loader_inside_a_library_names_its_owner(profiled: Profile, case: Case) -> None:
    loader = trained_by(record_of(profiled, case))
    assert loader.owner.startswith(("transformers", "accelerate"))


@one("accelerate_loop.py")
def test_loader_that_accelerate_makes_again_is_the_users_own(profiled: Profile, case: Case) -> None:
    loader = trained_by(record_of(profiled, case))
    assert loader.site is not None and loader.owner == "__main__"
    assert "DataLoader(TensorDataset(" in line_at("accelerate_loop.py", loader.site.line)


@one("hf_trainer.py", "lightning_trainer.py", "accelerate_loop.py")
def test_where_a_framework_is_told_its_settings_is_recorded(profiled: Profile, case: Case) -> None:
    kind, name, value = {
        "hf_trainer.py": ("TrainingArguments", "per_device_train_batch_size", 8),
        "lightning_trainer.py": ("Trainer", "accelerator", "cpu"),
        "accelerate_loop.py": ("Accelerator", "gradient_accumulation_steps", 2),
    }[case.script]
    kinds = ("TrainingArguments", "Trainer", "Fabric", "Accelerator")
    # transformers makes an Accelerator for itself, which is none of the script's.
    (made,) = (site for site in record_of(profiled, case).call_sites if site.kind in kinds)
    assert made.kind == made.details["class"] == kind
    assert f"{kind}(" in line_at(case.script, made.site.line)
    assert made.details["values"][name] == value
    assert name in made.details["takes"]


@one("lightning_trainer.py")
def test_what_an_optimizers_step_evaluates_ends_before_it_steps(profiled: Profile, case: Case) -> None:
    evidence = Evidence.from_run(profile(profiled, case).run)
    names, annotations = evidence.trace.names, evidence.trace.annotations
    closed = [row for row, name in enumerate(annotations.name.tolist()) if names[name] == "advisor.closure"]
    assert len(closed) == len(evidence.steps)
    stepping = evidence.host.optimizer
    # Lightning's closure ends with its hooks, behind the backward.
    for row in closed:
        assert not stepping.contains(annotations.end[row : row + 1] - 1).any()
        assert stepping.contains(annotations.end[row : row + 1] + 1).any()


@one("lightning_trainer.py")
def test_lightnings_loader_is_the_users_own(profiled: Profile, case: Case) -> None:
    loader = trained_by(record_of(profiled, case))
    assert loader.site is not None
    assert Path(loader.site.file).name == "lightning_trainer.py"


@one("lightning_hooks.py")
def test_loader_whose_constructor_is_wrapped_is_the_users_own(profiled: Profile, case: Case) -> None:
    loader = trained_by(record_of(profiled, case))
    assert loader.site is not None and loader.site.function == "train_dataloader"
    assert loader.owner == "__main__"


@one("iterable_dataset.py")
def test_stream_without_length_is_known_as_one(profiled: Profile, case: Case) -> None:
    loader = trained_by(record_of(profiled, case))
    assert loader.iterable and loader.batches is None


@one("loader_subclass.py")
def test_subclass_is_named(profiled: Profile, case: Case) -> None:
    assert trained_by(record_of(profiled, case)).cls == "AheadLoader"


@one("handwritten_batches.py")
def test_without_dataloader_there_is_none(profiled: Profile, case: Case) -> None:
    record = record_of(profiled, case)
    assert record.loaders == []
    assert [model.cls for model in record.models] == ["Language"]


@one("inference_loader.py", "inference_plain.py")
def test_inference_is_known_by_its_model(profiled: Profile, case: Case) -> None:
    record = record_of(profiled, case)
    (model,) = record.models
    assert model.training is False and model.grad_enabled is False
    (called,) = [each for each in record.call_sites if each.kind == "Module.call"]
    assert called.called_from and {each.file for each in called.called_from} == {record.script}
    assert record.optimizers == []
    assert record.outputs


@one(*(case.name for case in CASES if case.script == "workers.py"))
def test_workers_are_timed_where_they_work(profiled: Profile, case: Case) -> None:
    loader = trained_by(record_of(profiled, case))
    assert loader.num_workers == 2
    assert loader.context == (case.arguments[1] if "--context" in case.arguments else "fork")
    assert loader.persistent_workers == ("--persistent" in case.arguments)
    # Eight samples of a millisecond each, made in the worker.
    assert loader.fetch_s is not None and 0.008 <= loader.fetch_s < 0.05


@one("own_profiler.py")
def test_scripts_own_profiler_is_inert_and_said_so(profiled: Profile, case: Case) -> None:
    assert any("profiler" in note for note in record_of(profiled, case).notes)


@one(*(case.name for case in CASES if case.script == "compiled.py"))
def test_graph_breaks_no_more_than_without_us(profiled: Profile, case: Case) -> None:
    alone = subprocess.run(
        [PYTHON, str(SCRIPTS / case.script), *case.arguments, "--steps", "4"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ).stdout
    said = re.compile(r"^graphs \d+ breaks \d+$", re.MULTILINE)
    done = profile(profiled, case)
    assert said.findall(done.output) == said.findall(alone) != []
    assert done.run.record.compiles >= 1


@one("amp_scaler.py")
def test_losses_are_those_before_scaling(profiled: Profile, case: Case) -> None:
    done = profile(profiled, case)
    printed = float(re.findall(r"^loss (\S+)", done.output, re.MULTILINE)[0])
    assert done.run.record.losses[0] == pytest.approx(printed, rel=1e-3)


@one("swallows.py")
def test_loop_that_swallows_exceptions_is_stopped(profiled: Profile, case: Case) -> None:
    done = profile(profiled, case)
    assert done.run.record.ended == "stopped"
    assert done.seconds < 60


@one("five_steps.py")
def test_five_steps_are_reported_with_a_caveat(profiled: Profile, case: Case) -> None:
    record = record_of(profiled, case)
    assert record.seen["optimizer_steps"] == 5
    assert any("5 steps" in note for note in record.notes)
    assert record.timing.step_s is not None and record.timing.step_s >= 0.02


# What goes wrong.


@one("no_step.py")
def test_script_without_a_step_says_what_was_seen(profiled: Profile, case: Case) -> None:
    done = profile(profiled, case)
    assert done.status == 3
    assert "0 optimizer steps" in done.message and "advisor.step()" in done.message


@one("fails.py raise --after 0")
def test_traceback_of_a_failing_script_is_its_own(profiled: Profile, case: Case) -> None:
    done = profile(profiled, case)
    assert done.status == 1
    assert "the data of this batch is broken" in done.message
    assert "fails.py" in done.detail and "end_badly" in done.detail
    assert "advisor" + os.sep + "harness" not in done.detail


@one("fails.py raise --after 60", "fails.py exit --after 60")
def test_failure_after_enough_steps_is_reported_from_what_ran(profiled: Profile, case: Case) -> None:
    record = record_of(profiled, case)
    assert record.timing.step_s is not None
    assert record.traces


@one("fails.py exit --after 0")
def test_exit_of_its_own_before_a_step(profiled: Profile, case: Case) -> None:
    done = profile(profiled, case)
    assert done.status == 1 and "sys.exit(7)" in done.message


@one("fails.py kill --after 10", "fails.py segfault --after 10")
def test_killed_script_is_named_by_its_signal(profiled: Profile, case: Case) -> None:
    done = profile(profiled, case)
    assert done.status == 1
    assert {"kill": "SIGKILL", "segfault": "SIGSEGV"}[case.arguments[0]] in done.message


@one("fails.py memory --after 0")
def test_out_of_memory_is_said(profiled: Profile, case: Case) -> None:
    done = profile(profiled, case)
    assert done.status == 1 and "memory" in done.message


@one("fails.py cuda --after 0")
def test_cuda_asked_for_and_absent_is_said(profiled: Profile, case: Case) -> None:
    done = profile(profiled, case)
    assert done.status == 1 and "CUDA" in done.message


@pytest.mark.oldest
@pytest.mark.xdist_group("hang")
def test_hanging_script_is_ended_at_the_time_limit(profiled: Profile) -> None:
    done = profiled("fails.py", "hang", "--after", "10", timeout=15.0)
    assert done.status == 124
    assert "end_badly" in done.message  # where it hung
    assert done.seconds < 40
    assert done.after == done.before


def test_file_that_is_not_python_is_refused(tmp_path: Path) -> None:
    from advisor.errors import AdvisorError
    from advisor.launch import Command, check_script

    bad = tmp_path / "not_python.py"
    bad.write_text("for x in range(3)\n    print(x)\n")
    with pytest.raises(AdvisorError, match="line 1"):
        check_script(Command(str(bad)))
