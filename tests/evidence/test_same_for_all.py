"""What each sample makes anew though all share it, by the source of a dataset."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.evidence.loading.same_for_all import asked_for_each, gives_the_same, same_for_all
from advisor.harness.layout import FetchPart, Loader, Site

TEXT = """\
import random

import torch
import torchaudio
from elsewhere import made

SIZE = 64


def filters(size=SIZE, width=2.0):
    triangle = lambda x: max(0.0, 1.0 - abs(x) / width)
    return torch.tensor([[triangle(i - j) for j in range(size)] for i in range(size)])


def drawn(size):
    return torch.randn(size)


class Sounds:
    def __init__(self, waves):
        self.waves, self.rate, self.epoch_size = waves, 16000, 5

    def grow(self):
        self.size = self.size + 1

    def __getitem__(self, i):
        wave = self.waves[i]
        {line}
        return bank @ wave
"""


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("bank = filters()", "filters"),
        ("bank = filters(SIZE, width=3.0)", "filters"),
        ("bank = filters(size=self.rate)", "filters"),
        ("bank = torch.hann_window(400)", "torch.hann_window"),
        ("bank = torchaudio.transforms.MelSpectrogram(self.rate, n_mels=64)", "torchaudio.transforms.MelSpectrogram"),
        ("bank = filters(len(wave))", ""),  # of the sample
        ("bank = filters(i)", ""),
        ("bank = filters(self.size)", ""),  # another one later
        ("bank = drawn(SIZE)", ""),
        ("bank = torch.rand(64)", ""),
        ("bank = random.choice([1, 2])", ""),
        ("bank = self.filters(SIZE)", ""),  # may count, or draw
        ("bank = torch.load('bank.pt')", ""),  # another kind
        ("bank = filters(torch.randint(9, ()))", ""),
        ("bank = unknown(SIZE)", ""),
        ("bank = made(SIZE)", ""),
    ],
)
def test_what_all_samples_share(line: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(TEXT.format(line=line))
    number = TEXT.splitlines().index("        {line}") + 1
    assert same_for_all(FetchPart("line", "__getitem__", Site(str(path), number), 0.1)) == told


ASKED = """\
import math

import numpy as np
from elsewhere import made


class Series:
    def __init__(self, values):
        self.values, self.fit_end = values, 100
        self.bank, self.seen_so_far = values.copy(), []

    def update(self, i, row):
        self.bank[i] = row
        self.seen_so_far.append(row)

    @property
    def mean(self):
        return self.values[: self.fit_end].mean(axis=0)

    @property
    def seen(self):
        self.count = self.count + 1
        return self.count

    def deviation(self):
        return np.sqrt(((self.values - self.mean) ** 2).mean(0)) + math.exp(-9)

    @property
    def scaled(self):
        {body}
"""


@pytest.mark.parametrize(
    ("body", "same"),
    [
        ("return (self.values - self.mean) / self.deviation()", True),
        ("return np.log1p(self.values[: self.fit_end])", True),
        ("scaled = self.values - self.mean; return scaled.astype(np.float32)", True),
        ("return self.values * self.count", False),  # another one later
        ("return self.bank / self.bank.max()", False),  # rows of it are
        ("return np.stack(self.seen_so_far)", False),  # it grows
        ("return self.values * self.seen", False),  # counts
        ("self.values = self.values - 1; return self.values", False),
        ("self.values[0] = 1.0; return self.values", False),
        ("return self.values + np.random.rand()", False),
        ("return self.values.pop()", False),
        ("return next(self.values)", False),
        ("return made(self.values)", False),  # who knows
        ("return self.transform(self.values)", False),  # what an attribute holds
        ("return open('values.csv').read()", False),
        ("return self.values[self.rng.poisson(3.0) :]", False),  # of a generator that it holds
        ("draw = self.rng; return self.values + draw.beta(1.0, 2.0)", False),
        ("return self.camera.grab()", False),
    ],
)
def test_what_an_object_computes_of_itself(body: str, same: bool, tmp_path: Path) -> None:
    path = tmp_path / "series.py"
    path.write_text(ASKED.format(body=body))
    decorated = ASKED.splitlines().index("        {body}") - 1
    asked = FetchPart("lasting", "scaled", Site(str(path), decorated, function="scaled"), 0.1)
    assert gives_the_same(asked) == (("Series.scaled", decorated + 1) if same else ("", 0))
    loader = Loader(fetch_s=0.125, look_s=0.125, parts=[asked])
    part, what, share = asked_for_each(loader)
    assert (part is not None, what) == (same, "Series.scaled" if same else "")
    assert share == (pytest.approx(0.8) if same else 0.0)
