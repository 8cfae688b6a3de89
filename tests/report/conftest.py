"""Findings documents to render in tests: a rich one, an empty one, a hostile one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import msgspec
import pytest
from playwright.sync_api import Browser, sync_playwright

from advisor.findings import (
    FindingDocument,
    Findings,
    FixDocument,
    Measured,
    Numerics,
    Outcome,
    Predicted,
    Range,
    Searched,
    Trial,
)

WORKERS_DIFF = """\
--- a/train.py
+++ b/train.py
@@ -38,5 +38,5 @@
 def main():
     dataset = CIFAR(images=4096)
-    loader = DataLoader(dataset, batch_size=32, shuffle=True)  # one process
+    loader = DataLoader(dataset, batch_size=32, shuffle=True, num_workers=4, persistent_workers=True)  # one process
     for images, labels in loader:
         train(model, images, labels)
"""


@pytest.fixture
def rich_document() -> Findings:
    """An input-bound training run on a GPU, with a finding of every kind of fix."""
    return Findings(
        verdict="input-bound: 61% of the step waits for data",
        script="train.py",
        step_ms=51.2,
        samples_per_s=625.0,
        device="NVIDIA H200",
        figures={"gpu_busy_share": 0.31, "kernel_busy_ms": 15.9, "peak_memory_share": 0.08, "steps": 3},
        breakdown={
            "kernel": 0.27,
            "exposed_copy": 0.04,
            "exposed_communication": 0.0,
            "idle_loader": 0.61,
            "idle_sync": 0.05,
            "idle_unknown": 0.03,
        },
        findings=[
            FindingDocument(
                rank=1,
                rule="loader-workers",
                title="Let worker processes load the data",
                summary="The step waits 31.2 ms of 51.2 ms for the next batch, which one process prepares.",
                safety="exact",
                file="train.py",
                line=40,
                evidence={"data_wait_share": 0.61, "fetch_s": 0.0312, "num_workers": 0, "usable_cpus": 16.0},
                predicted=Predicted(speedup=Range(low=1.9, likely=2.3, high=2.5)),
                fix=FixDocument(
                    kind="edit",
                    text="Four workers keep up with the step; they stay alive between epochs.",
                    diff=WORKERS_DIFF,
                ),
                status="kept",
                measured=Measured(before_ms=51.2, after_ms=22.0, speedup=2.33, low=2.2, high=2.45, loss_drift=0.0),
            ),
            FindingDocument(
                rank=2,
                rule="compile",
                title="Compile the model",
                summary="41% of the kernel time is in element-wise kernels that a compiler would fuse.",
                safety="numeric",
                file="models/resnet.py",
                line=12,
                evidence={"elementwise_share": 0.41, "kernels_per_step": 412},
                predicted=Predicted(
                    speedup=Range(low=1.03, likely=1.05, high=1.08),
                    basis="median of the TorchBench dashboard",
                    one_time_s=40.0,
                    pays_back_after_steps=16400,
                ),
                fix=FixDocument(
                    kind="advice", text="Wrap the model: `torch.compile(model)`.", why_advice="two calls on line 12"
                ),
            ),
            FindingDocument(
                rank=3,
                rule="batch-size",
                title="Use a larger batch",
                summary="8% of the memory is used.",
                safety="behaviour",
                evidence={"peak_memory_bytes": 11_811_160_064, "batch_size": 32},
                predicted=Predicted(speedup=Range(low=1.2, likely=1.4, high=1.6)),
                fix=FixDocument(
                    kind="argument", text="Scale the learning rate with it.", arguments={"--batch-size": "256"}
                ),
            ),
        ],
        notes=["The step time had not settled after 200 steps."],
        environment={"python": "3.11.2", "torch": "2.15.0", "packages": {"torchvision": "0.29"}, "cpu_flags": ["avx2"]},
    )


@pytest.fixture
def empty_document() -> Findings:
    """A script with nothing to change, of which little is known."""
    return Findings(
        verdict="nothing worth changing: kernels fill 97% of the step",
        script=None,
        step_ms=None,
        samples_per_s=None,
        device="",
        figures={},
        findings=[],
    )


HOSTILE = (
    "</script><script>document.title='owned'</script><img src=x onerror=\"document.title=1\">[bold]`|*{{7*7}}\x1b[2J"
)


@pytest.fixture
def hostile_document() -> Findings:
    """Text that would run, or change the markup, where it is not escaped: in every field that holds text."""
    return Findings(
        verdict=HOSTILE,
        script=HOSTILE,
        step_ms=1.0,
        samples_per_s=1.0,
        device=HOSTILE,
        figures={HOSTILE: HOSTILE},
        breakdown={HOSTILE: 1.0},
        findings=[
            FindingDocument(
                rank=1,
                rule=HOSTILE,
                title=HOSTILE,
                summary=HOSTILE,
                safety="exact",
                file=HOSTILE,
                line=1,
                evidence={HOSTILE: HOSTILE},
                predicted=Predicted(speedup=Range(low=1.1, likely=1.2, high=1.3), basis=HOSTILE),
                fix=FixDocument(
                    kind="edit", text=HOSTILE, diff=f"--- a/x\n+++ b/x\n@@ -1 +1 @@\n-{HOSTILE}\n+{HOSTILE}\n"
                ),
            )
        ],
        notes=[HOSTILE],
        environment={HOSTILE: HOSTILE},
        ranks=[{HOSTILE: HOSTILE}],
    )


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """A real browser. Skipped where none is installed; on continuous integration that is a failure."""
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        if os.environ.get("CI"):
            pytest.fail("continuous integration has to install chromium")
        pytest.skip("no Chromium is installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


BATCH_DIFF = """\
--- a/train.py
+++ b/train.py
@@ -40,1 +40,1 @@
-    loader = DataLoader(dataset, batch_size=32, shuffle=True, num_workers=4, persistent_workers=True)  # one process
+    loader = DataLoader(dataset, batch_size=128, shuffle=True, num_workers=4, persistent_workers=True)  # one process
"""


def _losses(start: float, rate: float) -> list[float | None]:
    return [round(start * rate**step, 4) for step in range(50)]


def _runs(folder: str, pairs: int, first: str = "baseline") -> dict[str, list[str]]:
    numbers = range(2, pairs + 1)
    return {
        "before": [first, *(f"{folder}/pairs/{number}-before" for number in numbers)],
        "after": [folder, *(f"{folder}/pairs/{number}-after" for number in numbers)],
    }


@pytest.fixture
def tried_outcome() -> Outcome:
    """Two fixes kept, one of each way not to be: made up, with the shape of a session on one GPU."""
    workers = Trial(
        number=1,
        rule="loader-workers",
        title="Let worker processes load the data",
        safety="exact",
        status="kept",
        reason="measured faster by more than 2%, with all of its 95 % interval",
        predicted=Predicted(speedup=Range(low=1.9, likely=2.3, high=2.5)),
        fix=FixDocument(kind="edit", text="Four workers keep up with the step.", diff=WORKERS_DIFF),
        folder="01-loader-workers",
        **_runs("01-loader-workers", 3),
        measured=Measured(
            before_ms=80.4,
            after_ms=38.2,
            speedup=2.1,
            low=2.05,
            high=2.16,
            loss_drift=0.0,
            pairs=3,
            smallest_gain=1.027,
            before_samples_per_s=398.0,
            after_samples_per_s=838.0,
        ),
        numerics=Numerics("loss", _losses(2.31, 0.99), _losses(2.31, 0.99), 0.0, 0.001, 0.0),
        verdict_after="compute-bound: 71% of the step is kernels",
    )
    compiled = Trial(
        number=2,
        rule="compile",
        title="Compile the model",
        safety="numeric",
        status="reverted",
        reason="no gain of 2%: that much is outside of its 95 % interval",
        predicted=Predicted(speedup=Range(low=1.1, likely=1.2, high=1.3), basis="median of the TorchBench dashboard"),
        fix=FixDocument(kind="edit", text="Compile it.", diff=WORKERS_DIFF),
        folder="02-compile",
        **_runs("02-compile", 4, "01-loader-workers"),
        measured=Measured(
            before_ms=38.2, after_ms=38.2, speedup=1.0, low=0.98, high=1.02, pairs=4, smallest_gain=1.021
        ),
        numerics=Numerics("loss", _losses(2.31, 0.99), _losses(2.311, 0.99), 0.0004, 0.05, 0.0),
    )
    tf32 = Trial(
        number=3,
        rule="tf32",
        title="Allow TF32",
        safety="numeric",
        status="inconclusive",
        reason="the runs differ too much among themselves",
        predicted=Predicted(speedup=Range(low=1.02, likely=1.03, high=1.05)),
        fix=FixDocument(kind="environment", text="Set it.", environment={"NVIDIA_TF32_OVERRIDE": "1"}),
        folder="03-tf32",
        **_runs("03-tf32", 6, "01-loader-workers"),
        measured=Measured(
            before_ms=38.2, after_ms=37.6, speedup=1.016, low=0.99, high=1.043, pairs=6, smallest_gain=1.04
        ),
    )
    autocast = Trial(
        number=4,
        rule="amp-autocast",
        title="Compute in bfloat16",
        safety="numeric",
        status="failed",
        reason="RuntimeError: expected scalar type Float but found BFloat16",
        predicted=Predicted(speedup=Range(low=1.3, likely=1.5, high=1.8)),
        fix=FixDocument(kind="edit", text="Autocast.", diff=BATCH_DIFF),
        folder="04-amp-autocast",
    )
    batch = Trial(
        number=5,
        rule="batch-size",
        title="Use a larger batch",
        safety="behaviour",
        status="kept",
        reason="measured faster by more than 2%, with all of its 95 % interval",
        predicted=Predicted(speedup=Range(low=1.2, likely=1.3, high=1.4)),
        fix=FixDocument(kind="argument", text="Scale the learning rate with it.", arguments={"--batch-size": "128"}),
        folder="05-batch-size-128",
        **_runs("05-batch-size-128", 3, "05-batch-size-128/pairs/1-before"),
        measured=Measured(
            before_ms=38.1,
            after_ms=103.8,
            speedup=1.468,
            low=1.41,
            high=1.53,
            loss_drift=0.04,
            pairs=3,
            smallest_gain=1.041,
            before_samples_per_s=840.0,
            after_samples_per_s=1233.0,
        ),
        numerics=Numerics("loss", _losses(2.31, 0.99), _losses(2.33, 0.985), 0.12, None, 0.0),
        searched=[
            Searched("batch size 64", "05-batch-size/search-64", 1102.0, 58.1, 0.16),
            Searched("batch size 128", "05-batch-size-128", 1233.0, 103.8, 0.31),
            Searched("batch size 256", "05-batch-size/search-256", error="CUDA out of memory"),
        ],
        verdict_after="compute-bound: 88% of the step is kernels",
    )
    return Outcome(
        trials=[workers, compiled, tf32, autocast, batch],
        baseline_ms=80.0,
        final_ms=103.8,
        speedup=Range(low=2.9, likely=3.08, high=3.3),
        direct=True,
        baseline_samples_per_s=400.0,
        final_samples_per_s=1233.0,
        kept=["loader-workers", "batch-size"],
        runs=[f"final/{number}-{which}" for number in (1, 2, 3) for which in ("before", "after")],
        command="python train.py --batch-size 128",
        verdict="compute-bound: 88% of the step is kernels",
        ended="nothing is left to try",
        seconds=745.0,
    )


@pytest.fixture
def tried_document(rich_document: Findings, tried_outcome: Outcome) -> Findings:
    """The rich document, after its fixes were tried."""
    return msgspec.structs.replace(rich_document, outcome=tried_outcome)


@pytest.fixture
def hostile_outcome(hostile_document: Findings) -> Findings:
    """The hostile document, with hostile text in the outcome as well."""
    fix = FixDocument(
        kind="edit", text=HOSTILE, diff=f"--- a/x\n+++ b/x\n@@ -1 +1 @@\n-{HOSTILE}\n+y\n", arguments={HOSTILE: HOSTILE}
    )
    trials = [
        Trial(
            number=number,
            rule=HOSTILE,
            title=HOSTILE,
            safety="behaviour",
            status=status,
            reason=HOSTILE,
            predicted=Predicted(speedup=Range(low=1.1, likely=1.2, high=1.3)),
            fix=fix,
            folder=HOSTILE,
            before=[HOSTILE],
            after=[HOSTILE],
            measured=Measured(before_ms=2.0, after_ms=1.0, speedup=2.0, low=1.9, high=2.1, pairs=1),
            numerics=Numerics("loss", [1.0, None], [None, 1.0]),
            searched=[Searched(HOSTILE, HOSTILE, error=HOSTILE)],
            verdict_after=HOSTILE,
        )
        for number, status in ((1, "kept"), (2, "failed"))
    ]
    outcome = Outcome(
        trials=trials,  # type: ignore[arg-type]
        baseline_ms=2.0,
        final_ms=1.0,
        speedup=Range(low=1.9, likely=2.0, high=2.1),
        kept=[HOSTILE],
        runs=[HOSTILE],
        command=HOSTILE,
        verdict=HOSTILE,
        ended=HOSTILE,
    )
    return msgspec.structs.replace(hostile_document, outcome=outcome)
