"""What each sample makes anew though all share it, by the source of a dataset."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.evidence.same_for_all import same_for_all
from advisor.harness.layout import FetchPart, Site

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
