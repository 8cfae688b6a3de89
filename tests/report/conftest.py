"""Findings documents to render in tests: a rich one, an empty one, a hostile one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from advisor.findings import FindingDocument, Findings, FixDocument, Measured, Predicted, Range

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
