"""Why a larger batch is only advised, where more than its size would have to change."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from advisor.rules.batch_size import BatchSize

from advisor.edit import Edit, Sources
from advisor.evidence import Evidence
from advisor.harness.layout import Site
from advisor.launch import Command, measure
from advisor.rule import Advice, Argument, Finding, Gain
from tests.conftest import PYTHON, QUICK

RULE = BatchSize()
GAIN = Gain(1.1, 1.2, 1.3)
LOADER = "import torch\nloader = DataLoader(ds, batch_size={})\n"


def fixed(folder: Path, text: str, line: int, batch: int = 128, **parameters: object) -> Edit | Argument | Advice:
    script = folder / "train.py"
    script.write_text(text)
    known = {"batch": batch, "recorded": 32, **parameters}
    return RULE.fix(Finding(RULE.id, RULE.title, "", GAIN, {}, Site(str(script), line), known), Sources())


@pytest.mark.parametrize(
    ("size", "more", "why"),
    [
        ("32", "net = CharRNN(vocab, batch_size=32)", "the size stands as a number at train.py:3, too"),
        ("32", "labels = torch.ones(32)", "the size stands as a number at train.py:3, too"),
        ("BATCH", "BATCH = 32\naccumulate = 64 // BATCH", "line 4 divides by BATCH, too"),
    ],
)
def test_what_else_would_have_to_change_is_said(size: str, more: str, why: str, tmp_path: Path) -> None:
    fix = fixed(tmp_path, LOADER.format(size) + more + "\n", 2)
    assert isinstance(fix, Advice) and fix.why.startswith(why)


def test_count_beside_a_constant_of_another_file_is_seen(tmp_path: Path) -> None:
    (tmp_path / "config.py").write_text("BATCH = 32\nACCUMULATE = 64 // BATCH\n")
    fix = fixed(tmp_path, "from config import BATCH\nloader = DataLoader(ds, batch_size=BATCH)\n", 2)
    assert isinstance(fix, Advice) and fix.why.startswith("line 2 divides by BATCH") and "in config.py" in fix.why


def test_smaller_batches_may_be_accumulated(tmp_path: Path) -> None:
    text = LOADER.format("BATCH") + "BATCH = 32\naccumulate = 64 // BATCH\n"
    fix = fixed(tmp_path, text, 2, 16)
    assert isinstance(fix, Edit) and "BATCH = 16" in next(iter(fix.texts.values()))


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("accumulate = 64 // cfg['batch']", "line 3 divides by batch, too"),
        ("net = torch.nn.Linear(cfg['batch'], 8)", "line 3 reads cfg['batch'], too"),
        ("cfg['batch'] = 32", "where the batch size comes from"),
        ("cfg['batch'] = size()", "where the batch size comes from"),
        ("if quick:\n    cfg['batch'] = 4", None),
    ],
)
def test_setting_of_a_file(more: str, why: str | None, tmp_path: Path) -> None:
    (tmp_path / "cfg.yaml").write_text("batch: 32\n")
    script = tmp_path / "train.py"
    text = f"import torch\ncfg = yaml.safe_load(open('cfg.yaml'))\n{more}\nDataLoader(ds, batch_size=cfg['batch'])\n"
    script.write_text(text)
    line = 4 + more.count("\n")
    finding = Finding(RULE.id, RULE.title, "", GAIN, {}, Site(str(script), line), {"batch": 128, "recorded": 32})
    fix = RULE.fix(finding, Sources(settings=[str(tmp_path / "cfg.yaml")]))
    if why is None:
        assert isinstance(fix, Edit) and fix.texts == {str(tmp_path / "cfg.yaml"): "batch: 128\n"}
    else:
        assert isinstance(fix, Advice) and fix.why.startswith(why)


def by_hand(folder: Path, text: str, option: str = "") -> Edit | Argument | Advice:
    return fixed(folder, text, 1, said=((Site(str(folder / "train.py"), 1), option),))


def test_size_of_batches_that_are_made_by_hand(tmp_path: Path) -> None:
    fix = by_hand(tmp_path, "BATCH = 32\nx = data[:BATCH]\n")
    assert isinstance(fix, Edit) and next(iter(fix.texts.values())).startswith("BATCH = 128\n")
    fix = by_hand(tmp_path, "BATCH = 32\naccumulate = 64 // BATCH\n")
    assert isinstance(fix, Advice) and "divides by BATCH" in fix.why
    fix = by_hand(tmp_path, "BATCH = 32\nnet = Net(batch_size=32)\n")
    assert isinstance(fix, Advice) and "train.py:2" in fix.why


@pytest.mark.parametrize(
    ("declared", "more", "answer"),
    [
        ("type=int, default=32", "", {"--batch-size": "128"}),
        ("type=int, default=32, choices=[16, 32]", "", "--batch-size may not take 128, by its type or choices"),
        ("type=int, default=32", "accumulate = 64 // args.batch_size", "line 2 divides by batch_size, too"),
    ],
)
def test_option_of_batches_that_are_made_by_hand(
    declared: str, more: str, answer: dict[str, str] | str, tmp_path: Path
) -> None:
    fix = by_hand(tmp_path, f"p.add_argument('--batch-size', {declared})\n{more}\n", "--batch-size")
    if isinstance(answer, str):
        assert isinstance(fix, Advice) and fix.why.startswith(answer)
    else:
        assert isinstance(fix, Argument) and fix.options == answer


SCORES = """\
import json
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
net = torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(40)]).eval()
rows = {{str(number): [number] * 4 for number in range({rows})}}
with torch.inference_mode():
    for _ in range(100):
        for (x,) in DataLoader(TensorDataset(torch.randn(4000, 32)), batch_size=1):
            scores = net(x)
            text = json.dumps(rows, indent=1)
"""


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(("rows", "told"), [(1, True), (300, False)])
def test_what_is_done_with_each_output_grows_with_the_batch(rows: int, told: bool, tmp_path: Path) -> None:
    (tmp_path / "score.py").write_text(SCORES.format(rows=rows))
    command = Command(str(tmp_path / "score.py"), python=PYTHON, cwd=str(tmp_path))
    evidence = Evidence.from_run(measure(command, tmp_path / "run", QUICK, timeout=120))
    assert bool(list(RULE.check(evidence))) is told


ONE_BY_ONE = """\
from time import perf_counter

import torch

torch.set_num_threads(1)
net = torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(40)]).eval()


def kept(scores):
    left = sorted(range(32), key=lambda each: scores[each])
    return [a for a in left * {rounds} if all(abs(scores[a] - scores[b]) > 1e-4 for b in left if a != b)]


pictures = list(torch.randn(4000, 32))
"""
FOUND = """\
found = []
with torch.inference_mode():
    for picture in pictures * 100:
        scores = net(picture[None])[0]
        found.append(kept(scores.tolist()))
"""
LIMIT = """\
with torch.inference_mode():
    started = perf_counter()
    scores = [net(picture[None])[0].tolist() for picture in pictures]
    computed = perf_counter()
found = [kept(each) for each in scores]
print((perf_counter() - started) / (perf_counter() - computed))
"""


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(("rounds", "told"), [(0, True), (1, True), (8, False)])
def test_what_is_done_with_each_sample_is_done_as_often(rounds: int, told: bool, tmp_path: Path) -> None:
    common = ONE_BY_ONE.format(rounds=rounds)
    (tmp_path / "limit.py").write_text(common + LIMIT)
    limit = float(subprocess.check_output([PYTHON, str(tmp_path / "limit.py")], text=True))
    (tmp_path / "detect.py").write_text(common + FOUND)
    command = Command(str(tmp_path / "detect.py"), python=PYTHON, cwd=str(tmp_path))
    evidence = Evidence.from_run(measure(command, tmp_path / "run", QUICK, timeout=120))
    gains = [each.gain.likely for each in RULE.check(evidence)]
    assert len(gains) == told
    assert all(min(6.0, 0.6 * limit) < each < 1.4 * limit for each in gains)  # two runs on a busy machine differ


SCATTERED = """\
import numpy as np
import torch

torch.set_num_threads(1)
net = torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(40)]).eval()
maps = np.random.default_rng(0).random({size}, np.float32)


def enlarge(maps):
    return np.repeat(np.sort(maps), 2)


def smooth(maps):
    return np.sort(maps)[::2]


def thin(maps):
    return np.sort(maps) > 0.5


def gather(maps):
    return np.unique(maps)


with torch.inference_mode():
    for picture in list(torch.randn(4000, 32)) * 100:
        scores = net(picture[None])[0]
        found = enlarge(maps), smooth(maps), thin(maps), gather(maps)
"""


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(("size", "told"), [(32, True), (400_000, False)])
def test_what_several_functions_do_with_each_sample_is_done_as_often(size: int, told: bool, tmp_path: Path) -> None:
    (tmp_path / "detect.py").write_text(SCATTERED.format(size=size))
    command = Command(str(tmp_path / "detect.py"), python=PYTHON, cwd=str(tmp_path))
    evidence = Evidence.from_run(measure(command, tmp_path / "run", QUICK, timeout=120))
    assert bool(list(RULE.check(evidence))) is told
