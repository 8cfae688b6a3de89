"""What a step waits for outside of the process is put down to the line of the loop that reaches it."""

from __future__ import annotations

import textwrap
import timeit
from pathlib import Path
from typing import Any

import pytest

from advisor.edit import Edit, Sources
from advisor.evidence import Change, Evidence
from advisor.harness.layout import CallSite, Site
from advisor.launch import Command, measure
from advisor.rule import Advice
from rules.blocking_work_between_steps import BlockingWorkBetweenSteps
from tests.conftest import PYTHON, QUICK

RULE = BlockingWorkBetweenSteps()
A100 = "NVIDIA A100-SXM4-40GB"


def waiting(made: Any, ms: float, what: str, per_step: float = 1.0) -> Any:
    made.record.call_sites.append(
        CallSite(
            "blocking",
            Site("/nowhere/train.py", 20),
            40,
            per_step,
            ms / 1e3,
            details={"seconds": {what: 40 * ms / 1e3}},
        )
    )
    return made


def test_waiting_in_every_step_is_found(scene: Any, tmp_path: Path) -> None:
    made = waiting(scene(50.0), 30.0, "os.fsync at log.py:7")
    (finding,) = RULE.check(made.evidence(tmp_path))
    assert finding.site == Site("/nowhere/train.py", 20)
    assert "30.0 ms" in finding.summary and "os.fsync at log.py:7" in finding.summary
    assert finding.gain.low <= 50 / 20.6 <= finding.gain.high <= 2.000001 * finding.gain.low
    assert isinstance(RULE.fix(finding, Sources()), Advice)


@pytest.mark.parametrize(("ms", "per_step"), [(1.0, 1.0), (30.0, 0.1)], ids=["short", "every tenth step"])
def test_little_waiting_is_not_reported(ms: float, per_step: float, scene: Any, tmp_path: Path) -> None:
    made = waiting(scene(50.0), ms, "os.fsync at log.py:7", per_step)
    assert not list(RULE.check(made.evidence(tmp_path)))


@pytest.mark.parametrize(
    ("test", "reported"),
    [
        ("validation < best", False),
        ("score > self.max_score", False),
        ("is_best", False),
        ("step % 1 == 0", True),
        ("step > 3", True),
    ],
)
def test_what_is_done_when_something_got_better_is_not_done_in_every_step(
    test: str, reported: bool, scene: Any, tmp_path: Path
) -> None:
    made = waiting(scene(50.0), 30.0, "torch.save at train.py:3")
    script = tmp_path / "train.py"
    script.write_text(f"for x in xs:\n    if {test}:\n        torch.save(model, path)\n    log(x)\n")
    for each in made.record.call_sites:
        if each.kind == "blocking":
            each.site = Site(str(script), 3)
    assert bool(list(RULE.check(made.evidence(tmp_path)))) is reported


@pytest.mark.parametrize(
    ("loop", "reported"),
    [
        ("while len(buffer) < 256:\n        time.sleep(0.03)", False),
        ("while count < 256:\n        time.sleep(0.03)\n        count += poll()", False),
        ("while True:\n        train_step(x)\n        time.sleep(0.03)", True),
        ("while step < 256:\n        step += train_step(x)\n        time.sleep(0.03)", True),
        ("for x in xs:\n        loss(x).backward()\n        time.sleep(0.03)", True),
    ],
)
def test_a_sleep_that_waits_for_something_is_not_reported(
    loop: str, reported: bool, scene: Any, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"def train():\n    {loop}\n")
    line = next(number for number, text in enumerate(script.read_text().split("\n"), 1) if "sleep" in text)
    made = waiting(scene(50.0), 30.0, f"time.sleep at train.py:{line}")
    made.record.call_sites[-1].site = Site(str(script), line)
    findings = list(RULE.check(made.evidence(tmp_path)))
    assert bool(findings) is reported
    assert all(isinstance(RULE.fix(each, Sources()), Edit) for each in findings)


@pytest.mark.parametrize("beside", ["Thread(target=sensor).start()", "pool.submit(read)", "class Actor(Process):"])
def test_a_sleep_that_leaves_others_time_is_not_reported(beside: str, scene: Any, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    known = ((beside, "sensor.latest()", False), (beside, "xs[step]", True), ("threads = 4", "sensor.latest()", True))
    for before, taken, reported in known:
        text = f"{before}\nfor step in xs:\n    loss({taken}).backward()\n    time.sleep(0.03)\n"
        script.write_text(text.replace(":\nfor", ":\n    pass\nfor"))
        line = script.read_text().splitlines().index("    time.sleep(0.03)") + 1
        made = waiting(scene(50.0), 30.0, f"time.sleep at train.py:{line}")
        made.record.call_sites[-1].site, made.record.script = Site(str(script), line), str(script)
        assert bool(list(RULE.check(made.evidence(tmp_path)))) is reported


@pytest.mark.parametrize(
    ("line", "wait", "reported"),
    [
        ("state, reward = env.step(action)", "socket.socket.recv at env.py:8", False),
        ("state, reward = env.step(action)", "time.sleep at env.py:8", False),
        ("state, reward = env.step(action)", "os.fsync at env.py:8", True),
        ("state, reward = collect(action)", "subprocess.Popen.wait at env.py:8", False),
        ("state, reward = collect(action)", "time.sleep at env.py:8", True),
        ("reply = tracker.post(loss)", "http.client.HTTPConnection.getresponse at tracker.py:8", True),
        ("tracker.post(state)", "http.client.HTTPConnection.getresponse at tracker.py:8", True),
    ],
)
def test_an_answer_that_the_step_needs_is_not_reported(
    line: str, wait: str, reported: bool, scene: Any, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"for x in xs:\n    {line}\n    reply.raise_for_status()\n    train(state, reward)\n")
    made = waiting(scene(50.0), 30.0, wait)
    made.record.call_sites[-1].site = Site(str(script), 2)
    assert bool(list(RULE.check(made.evidence(tmp_path)))) is reported


def test_wait_hidden_behind_the_gpu_is_not_reported(scene: Any, tmp_path: Path) -> None:
    made = scene(50.0, A100)
    made.operator("aten::empty", 0.0, 0.005)
    made.each("cuda_runtime", "cudaDeviceSynchronize", 20.0, 49.99)
    made.kernel("ampere_sgemm_128x64_tn", 0.1, 49.9, launched=0.01)
    waiting(made, 10.0, "time.sleep at train.py:20")
    assert not list(RULE.check(made.evidence(tmp_path)))


SCRIPT = """
import os
import threading
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __len__(self):
        return 2000

    def __getitem__(self, index):
        time.sleep(0.001)
        return torch.ones(8), torch.zeros(1)


class Remote(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.own = torch.nn.Linear(8, 1)

    def forward(self, x):
        time.sleep(0.0025)
        return self.own(x)


class Log:
    def __init__(self, path):
        self.file = open(path, "w")

    def write(self, text):
        self.file.write(text + str(sum(range(200_000))))
        os.fsync(self.file.fileno())
        time.sleep(0.004)


def train_step(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = (model(x) - y).pow(2).mean()
    loss.backward()
    optimizer.step()
    return loss


def heartbeat():
    while True:
        time.sleep(0.001)


def main():
    threading.Thread(target=heartbeat, daemon=True).start()
    model = Remote()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    log = Log("log.txt")
    for x, y in DataLoader(Slow(), batch_size=4):
        loss = train_step(model, optimizer, x, y)
        log.write("step")
        time.sleep(0.003)


main()
"""


def test_waits_are_put_down_to_the_loops_own_lines(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT).lstrip("\n"))
    command = Command(script=str(script), python=PYTHON, environment={"OMP_NUM_THREADS": "1"}, cwd=str(tmp_path))
    evidence = Evidence.from_run(measure(command, tmp_path / "run", QUICK, timeout=120))
    assert evidence.record is not None
    lines = script.read_text().splitlines()
    found = {lines[each.site.line - 1].strip(): each for each in evidence.record.call_sites if each.kind == "blocking"}
    # Neither the loader's wait nor the other thread's; the log's two waits are one line's.
    assert set(found) == {'log.write("step")', "time.sleep(0.003)", "loss = (model(x) - y).pow(2).mean()"}
    assert 0.004 < found['log.write("step")'].seconds_per_step < 0.02
    assert {each.partition(" at ")[0] for each in found['log.write("step")'].details["seconds"]} == {
        "os.fsync", "time.sleep"
    }  # fmt: skip
    step, log, sleep = sorted(RULE.check(evidence), key=lambda each: each.site.line)
    assert isinstance(RULE.fix(log, Sources()), Advice)
    # The sum is work that goes with the waits; a sleep alone has none, and what computes the step is the step.
    summing = min(timeit.repeat(lambda: sum(range(200_000)), number=1))
    assert 0.3 * summing < log.evidence["works_s"] < 4 * summing and sleep.evidence["works_s"] == 0.0
    assert step.evidence["works_s"] == 0.0
    assert log.gain.likely > evidence.what_if(Change(remove_host_s=log.evidence["blocked_s"])).speedup[1]
    edit = RULE.fix(sleep, Sources())
    assert isinstance(edit, Edit)
    assert edit.texts[str(script)] == script.read_text().replace("        time.sleep(0.003)\n", "")


HOOKED = """
import lightning
import torch


class Histograms(lightning.Callback):
    def __init__(self):
        self.rows = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        counts = {}
        for name, parameter in module.named_parameters():
            for value in parameter.detach().flatten().tolist():
                counts[round(value, 2)] = counts.get(round(value, 2), 0) + 1
        self.rows.append(len(counts))


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1))

    def training_step(self, batch, index):
        return self.layers(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)


loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(60_000, 64)), batch_size=32)
trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                            enable_progress_bar=False, enable_model_summary=False, callbacks=[CALLBACKS])
trainer.fit(Net(), loader)
"""


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize("callbacks", ["Histograms()", "", "Ema()"])
def test_what_a_callback_works_in_every_step(callbacks: str, tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    path = tmp_path / "train.py"
    text = HOOKED.replace("CALLBACKS", callbacks)
    if callbacks == "Ema()":  # averages of the weights are part of the step
        average = "module.ema.lerp_(module.ema, 0.1); self.rows.append"
        text = text.replace("Histograms", "Ema").replace("self.rows.append", average)
        text = text.replace("self.layers =", "self.register_buffer('ema', torch.zeros(3)); self.layers =")
    path.write_text(text)
    command = Command(script=str(path), python=PYTHON, environment={"OMP_NUM_THREADS": "1"}, cwd=str(tmp_path))
    findings = list(RULE.check(Evidence.from_run(measure(command, tmp_path / "run", QUICK, timeout=240))))
    assert bool(findings) == (callbacks == "Histograms()")
    if findings:
        (finding,) = findings
        assert finding.site is not None and finding.site.file == str(path) and finding.site.line == 10
        assert finding.gain.likely > 1.5
        assert isinstance(RULE.fix(finding, Sources()), Advice)
