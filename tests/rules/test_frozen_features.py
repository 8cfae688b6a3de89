"""Features of a frozen part are reported where the same samples come again, and where nothing changes them."""

from __future__ import annotations

import linecache
from pathlib import Path
from typing import Any

import pytest

from advisor.edit import Sources
from advisor.evidence import Evidence
from advisor.harness.layout import Frozen, Site
from advisor.launch import Command, measure
from advisor.rule import Advice
from advisor.run import Run
from rules.frozen_features import FrozenFeatures
from tests.conftest import PYTHON, QUICK

RULE = FrozenFeatures()
OVER_EPOCHS = "for epoch in range(args.epochs):\n    for x, y in loader:\n        loss = head(body(x)).mean()\n"


@pytest.fixture
def seen(scene: Any, tmp_path: Path) -> Any:
    """Findings of steps of 100 ms, 80 of which compute features of 40 bytes of 6,400 samples."""

    def make(source: str = OVER_EPOCHS, line: Any = None, gpu: str = "", **facts: Any) -> list[Any]:
        path = tmp_path / "train.py"
        path.write_text(source)
        linecache.clearcache()
        made = scene(step_ms=100, gpu=gpu)
        site = Site(str(path), 3)
        made.record.script = str(path)
        made.record.frozen = [
            Frozen(site, [site], calls=20, seconds=0.08, share=0.8, sample_bytes=40.0, **(line or {"loaders": [0]}))
        ]
        loader = made.loader(wait_ms=2.0, fetch_ms=2.0, cpu_ms=2.0, draws=False)
        for name, value in facts.items():
            setattr(made.record if name in ("total_steps", "step_kind", "optimizers") else loader, name, value)
        made.operator("aten::conv2d", 3, 85)
        return list(RULE.check(made.evidence(tmp_path)))

    return make


def test_frozen_features_are_reported_with_what_they_take(seen: Any) -> None:
    (finding,) = seen()
    assert 3.0 < finding.gain.likely < 4.5  # ten epochs: 72 of 100 ms
    assert finding.evidence["kept_bytes"] == 6400 * 40 and finding.evidence["frozen_s"] == pytest.approx(0.08)
    advice = RULE.fix(finding, Sources())
    assert isinstance(advice, Advice)
    assert "train.py:3" in advice.text and "for 6,400 samples" in advice.text and "second epoch" in advice.text


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param({"draws": True}, id="the samples are augmented"),
        pytest.param({"draws": None}, id="no fetch was seen"),
        pytest.param({"iterable": True}, id="a stream"),
        pytest.param({"dataset_length": None}, id="of unknown length"),
        pytest.param({"source": "for x, y in loader:\n    pass\n"}, id="no epochs"),
        pytest.param({"source": "for epoch in range(1):\n    for x, y in loader:\n        pass\n"}, id="one epoch"),
        pytest.param({"total_steps": 200}, id="it came to its end after one epoch"),
        pytest.param({"source": OVER_EPOCHS + "    rng = np.random.default_rng()\n"}, id="chance that nobody sees"),
        pytest.param(
            {"source": OVER_EPOCHS + "    if epoch == 5:\n        body.requires_grad_(True)\n"}, id="trained later"
        ),
        pytest.param(
            {"source": OVER_EPOCHS + "    teacher.load_state_dict(student.state_dict())\n"}, id="follows another one"
        ),
        pytest.param({"line": {}, "gpu": "NVIDIA A100"}, id="on a GPU"),
        pytest.param({"step_kind": "forward"}, id="inference"),
    ],
)
def test_what_may_change_or_never_comes_again_is_left_alone(seen: Any, facts: dict[str, Any]) -> None:
    assert seen() and not seen(**facts)


def test_what_does_not_fit_into_memory_is_left_alone(seen: Any) -> None:
    assert not seen(dataset_length=2 << 30)


def test_the_first_epoch_computes_them_still(seen: Any) -> None:
    """The gain of a training of two epochs is of one."""
    (finding,) = seen("for epoch in range(2):\n    for x, y in loader:\n        loss = head(body(x)).mean()\n")
    assert finding.evidence["epochs"] == 2 and 1.5 < finding.gain.likely < 1.8
    (finding,) = seen(total_steps=800)
    assert finding.evidence["epochs"] == 4


DRAWN = "for step in range({steps}):\n    rows = torch.randint(6400, (64,))\n    loss = head(body(x[rows])).mean()\n"


@pytest.mark.parametrize(
    ("source", "epochs"),
    [
        pytest.param(DRAWN.format(steps=1000), 10, id="steps"),
        pytest.param("STEPS = 1_000\n" + DRAWN.format(steps="STEPS"), 10, id="a name"),
        pytest.param('parser.add_argument("--num-steps", type=int, default=800)\n', 8, id="an option"),
        pytest.param(OVER_EPOCHS, None, id="epochs"),
        pytest.param("for epoch in range(30):\n    pass\n", 30, id="so many epochs"),
    ],
)
def test_rows_that_are_drawn_by_hand_come_again(seen: Any, source: str, epochs: int | None) -> None:
    (finding,) = seen(source, line={"loaders": [], "pools": [6400], "rows": 64})
    assert finding.evidence["epochs"] == epochs and finding.evidence["samples"] == 6400
    advice = RULE.fix(finding, Sources())
    assert isinstance(advice, Advice) and "over all rows that the batches are drawn from" in advice.text


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(DRAWN.format(steps=150), id="one and a half epochs"),
        pytest.param(DRAWN.format(steps="args.n"), id="nobody knows how many"),
        pytest.param(
            DRAWN.format(steps=9000) + "    if step > 500:\n        unfreeze(body)\n", id="trained"
        ),
        pytest.param(OVER_EPOCHS + "    body.load_state_dict(head.state_dict())\n", id="a snapshot"),
        pytest.param(OVER_EPOCHS + "    hard_update(body, head)\n", id="a target"),
        pytest.param(OVER_EPOCHS + "    x = augment(x0)\n", id="other pictures in each epoch"),
        pytest.param(OVER_EPOCHS + "    obs, reward = env.step(action)\n", id="a simulation's"),
        pytest.param('parser.add_argument("--warmup-steps", type=int, default=8000)\n', id="no steps of the training"),
    ],
)
def test_rows_that_may_never_come_again_do_not(seen: Any, source: str) -> None:
    assert not seen(source, line={"loaders": [], "pools": [6400], "rows": 64})


def test_a_script_that_came_to_its_end_has_so_many_epochs(seen: Any) -> None:
    assert not seen(DRAWN.format(steps=9000), {"loaders": [], "pools": [6400], "rows": 64}, total_steps=150)


SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
torch.set_num_threads(1)


class Pictures(Dataset):
    def __init__(self):
        self.pictures, self.kinds = torch.rand(240, 3, 32, 32), torch.randint(4, (240,))

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, i):
        picture = self.pictures[i]
        {augment}
        return picture, self.kinds[i]


body = nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.AdaptiveAvgPool2d(1))
body.requires_grad_(False)
body.{mode}()
head = nn.Sequential(nn.Flatten(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(head.parameters(), lr=1e-3)
for epoch in range(40):
    for pictures, kinds in DataLoader(Pictures(), batch_size=24, shuffle=True):
        loss = nn.functional.cross_entropy(head(body(pictures)), kinds)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
PARTS = {"augment": "", "mode": "eval"}


def run_of(folder: Path, **parts: str) -> Run:
    (folder / "train.py").write_text(SCRIPT.format(**{**PARTS, **parts}))
    command = Command(str(folder / "train.py"), python=PYTHON, cwd=str(folder))
    return measure(command, folder / "run", QUICK, timeout=120)


@pytest.mark.slow
@pytest.mark.sessions
def test_a_frozen_body_of_the_same_pictures_is_found(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    (line,) = run.record.frozen
    assert "head(body(pictures))" in SCRIPT.splitlines()[line.site.line - 1] and line.whole
    assert line.sample_bytes == 32 * 4 and run.record.loaders[0].draws is False
    (finding,) = RULE.check(Evidence.from_run(run))
    assert finding.gain.likely > 1.5 and finding.evidence["epochs"] == 40


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(
    "parts",
    [
        pytest.param({"augment": "picture = picture.flip(-1) if torch.rand(()) < 0.5 else picture"}, id="augmented"),
        pytest.param({"mode": "train"}, id="batch norm in training"),
    ],
)
def test_a_body_that_gives_something_else_in_each_epoch_is_not(tmp_path: Path, parts: dict[str, str]) -> None:
    run = run_of(tmp_path, **parts)
    findings = list(RULE.check(Evidence.from_run(run)))
    assert run.record.loaders[0].draws is bool(parts.get("augment"))
    assert bool(run.record.frozen) == bool(parts.get("augment")) or not run.record.frozen[0].whole
    assert not findings
