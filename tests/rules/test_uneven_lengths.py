"""Batches of different lengths are found by running scripts that make them, those of like ones left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from advisor.edit import Edit, Sources
from advisor.evidence import Evidence
from advisor.harness.layout import Site
from advisor.harness.tokens import padding, unevenness
from advisor.launch import Command, measure
from advisor.rule import Advice, Finding, Gain, Safety
from rules.uneven_lengths import UnevenLengths
from tests.conftest import PYTHON, QUICK

SCRIPT = """\
import random

import torch
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
torch.set_num_threads(1)
draw = random.Random(0)
lengths = [min(int(draw.lognormvariate(3.4, 0.85)) + 6, 300) for _ in range(4000)]
texts = [[draw.randrange(1, 500) for _ in range(length)] for length in lengths]
{order}


def collate(rows):
    width = {width}
    ids = torch.zeros(len(rows), width, dtype=torch.int64)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = torch.tensor(row)
    return ids


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(500, 64{padding})
        layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids):
        found = self.layers(self.words(ids), src_key_padding_mask=ids == 0)
        return (found * (ids != 0).unsqueeze(-1)).sum(1)


model = Encoder().train()
{body}
"""
SCORES = """\
with torch.inference_mode():
    for _ in range(50):
        for ids in DataLoader(texts, batch_size=16, collate_fn=collate):
            model(ids)
"""
TRAINS = """\
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for _ in range(50):
    for ids in DataLoader(texts, batch_size=16, shuffle=True, collate_fn=collate):
        loss = model(ids).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
LONGEST = "max(map(len, rows))"


def found(
    folder: Path, body: str, order: str = "", width: str = LONGEST, padding: str = ""
) -> tuple[Evidence, list[Finding]]:
    script = folder / "embed.py"
    script.write_text(SCRIPT.format(body=body, order=order, width=width, padding=padding))
    run = measure(Command(str(script), python=PYTHON, cwd=str(folder)), folder / "run", QUICK, timeout=120)
    evidence = Evidence.from_run(run)
    return evidence, list(UnevenLengths().check(evidence))


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(
    ("body", "safety", "advice"),
    [
        pytest.param(SCORES, Safety.NUMERIC, "put the results back", id="inference"),
        pytest.param(TRAINS, Safety.BEHAVIOUR, "LengthGroupedSampler", id="training"),
    ],
)
def test_short_texts_beside_long_ones_are_told(body: str, safety: Safety, advice: str, tmp_path: Path) -> None:
    evidence, (finding,) = found(tmp_path, body)
    assert evidence.record is not None
    share = evidence.record.models[0].uneven
    assert share is not None and 0.6 < share < 0.8 and evidence.record.models[0].padded == 0.0
    text = SCRIPT.format(body=body, order="", width=LONGEST, padding="").splitlines()
    assert (finding.safety or UnevenLengths.safety) is safety and finding.gain.likely > 1.5
    assert finding.site is not None and "DataLoader" in text[finding.site.line - 1]
    fix = UnevenLengths().fix(finding, Sources())
    assert isinstance(fix, Advice) and advice in fix.text


CUT = "texts = [text[:100] for text in texts]"


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(("body", "advice"), [(SCORES, "put the results back"), (TRAINS, "LengthGroupedSampler")])
def test_texts_that_all_are_padded_to_the_longest_of_all(body: str, advice: str, tmp_path: Path) -> None:
    evidence, (finding,) = found(tmp_path, body, CUT, "100", ", padding_idx=0")
    assert evidence.record is not None
    (model,) = evidence.record.models
    assert model.uneven is None and model.padded is not None and 0.03 <= model.padded < 0.2
    assert model.short is not None and 0.4 < model.short < 0.7
    assert "the 100 columns that every batch has" in finding.summary
    fix = UnevenLengths().fix(finding, Sources())
    assert isinstance(fix, Advice) and advice in fix.text and fix.text.startswith("Pad each batch to its own longest")


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(
    "parts",
    [
        pytest.param({"order": "texts.sort(key=len, reverse=True)"}, id="sorted"),
        pytest.param(
            {"order": "texts = [text[:90] for text in texts]", "width": "96 if rows[0][0] % 2 else 128"},
            id="two widths",
        ),
        pytest.param({"order": CUT, "width": "100"}, id="no padding by its number"),  # boards end in zeros, too
        pytest.param({"width": "300"}, id="one width"),  # what pads to it comes first
        pytest.param(
            {"order": "texts = [text[:40] * 9 for text in texts]\ntexts = [t[:40] for t in texts]"}, id="full"
        ),
        pytest.param({"order": "texts = [text[:6] + text[:1] * (k % 3) for k, text in enumerate(texts)]"}, id="short"),
    ],
)
def test_silent_where_batches_are_of_like_lengths(parts: dict[str, str], tmp_path: Path) -> None:
    evidence, findings = found(tmp_path, SCORES, **parts)
    assert evidence.record is not None and evidence.record.models[0].calls and not findings


SOUNDS = """\
import random

import torch
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
torch.set_num_threads(1)
draw = random.Random(0)
sounds = [torch.randn(min(int(draw.lognormvariate(7.2, 0.8)) + 400, 12000)) for _ in range(1200)]
{order}


def collate(rows):
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)


class Listener(nn.Module):
    def __init__(self):
        super().__init__()
        self.ears = nn.Sequential(
            nn.Conv1d(1, 24, 16, stride=4), nn.ReLU(), nn.Conv1d(24, 48, 8, stride=2), nn.ReLU(), nn.Conv1d(48, 48, 8)
        )

    def forward(self, sound):
        return self.ears(sound.unsqueeze(1)).mean(2)


model = Listener()
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for _ in range(50):
    for sound in DataLoader(sounds, batch_size=16, {drawn}collate_fn=collate):
        loss = model(sound).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.sessions
def test_short_recordings_beside_long_ones_are_told(tmp_path: Path) -> None:
    evidences = []
    for name, parts in (
        ("mixed", {"order": "", "drawn": "shuffle=True, "}),
        ("sorted", {"order": "sounds.sort(key=len)", "drawn": ""}),
    ):
        script = tmp_path / f"{name}.py"
        script.write_text(SOUNDS.format(**parts))
        run = measure(Command(str(script), python=PYTHON, cwd=str(tmp_path)), tmp_path / name, QUICK, timeout=120)
        evidences.append(Evidence.from_run(run))
    (finding,) = UnevenLengths().check(evidences[0])
    assert finding.gain.likely > 1.5 and "of the values that Listener is called with" in finding.summary
    fix = UnevenLengths().fix(finding, Sources())
    assert isinstance(fix, Advice) and "Make batches of samples of like length" in fix.text
    assert not list(UnevenLengths().check(evidences[1]))


LENGTHS = torch.tensor([5, 40, 12, 20])
MASK = (torch.arange(40) < LENGTHS[:, None]).long()
IDS = torch.randint(5, 100, (4, 40), generator=torch.Generator().manual_seed(0))
PADDED = 1.0 - float(LENGTHS.sum()) / 160


@pytest.mark.parametrize(
    ("given", "share"),
    [
        pytest.param([IDS * MASK], PADDED, id="ids"),
        pytest.param([(IDS * MASK).flip(1)], PADDED, id="in front"),
        pytest.param([IDS * MASK, torch.zeros_like(IDS), MASK], PADDED, id="types and mask"),
        pytest.param([IDS * MASK, MASK, torch.where(MASK == 1, IDS, -100)], PADDED, id="labels"),
        pytest.param([torch.arange(160).reshape(4, 40)], 1 / 160, id="whole rows"),  # but for one number
        pytest.param([IDS * MASK, torch.ones_like(IDS)], 0.0, id="a mask of ones"),
        pytest.param([torch.zeros_like(IDS)], 0.0, id="one number alone"),
    ],
)
def test_what_fills_rows_up_is_counted(given: list[torch.Tensor], share: float) -> None:
    assert float(unevenness(torch, given)) == pytest.approx(share)


def test_counting_waits_for_no_device() -> None:
    """What is read from a tensor is a number that a GPU would have to be waited for."""

    class Reads(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            assert func is not torch.ops.aten._local_scalar_dense.default
            return func(*args, **(kwargs or {}))

    with Reads():
        padding(torch, [IDS * MASK, MASK])
        unevenness(torch, [IDS * MASK, MASK])


@pytest.mark.parametrize(
    ("takes", "edited"),
    [
        (("train_sampling_strategy", "length_column_name"), 'train_sampling_strategy="group_by_length"'),
        (("group_by_length",), "group_by_length=True"),
    ],
)
def test_trainer_is_told_by_its_version(takes: tuple[str, ...], edited: str, tmp_path: Path) -> None:
    script, rows = tmp_path / "train.py", tmp_path / "rows.py"
    script.write_text('from transformers import TrainingArguments\n\nargs = TrainingArguments("out", seed=1)\n')
    rows.write_text('class Rows:\n    def __getitem__(self, at):\n        return {"input_ids": self.rows[at]}\n')
    parameters = {
        "trains": True,
        "framework": "transformers",
        "dataset": str(rows),
        "config": (Site(str(script), 3),),
        "config_takes": takes,
    }
    finding = Finding(UnevenLengths.id, UnevenLengths.title, "", Gain(1.5, 2.0, 2.5), {}, parameters=parameters)
    fix = UnevenLengths().fix(finding, Sources())
    assert isinstance(fix, Edit)
    (after,) = fix.after.values()
    assert edited in after.text
    good = rows.read_text()
    for other in (
        "class Rows:\n    def __getitem__(self, at):\n        return self.rows[at]  # a dict with input_ids, perhaps\n",
        f"{good}\nclass Held:\n    def __getitem__(self, at):\n        return self.texts[at]\n",
        f"{good}\nscores = trainer.predict(held_out).predictions\n",
    ):
        rows.write_text(other)
        assert isinstance(UnevenLengths().fix(finding, Sources()), Advice)
