"""Which lines of a dataset compute the same of a sample each time."""

from __future__ import annotations

import pytest

from advisor.evidence.loading.deterministic import computes_the_same, hands_on_the_same, transforms_the_same

DATASET = """
import numpy as np
import time
import torch
from datetime import datetime
from scipy import signal as sig

class Others(Dataset):
    def power(self, x):
        return np.random.rand(9)

class Wings(Dataset):
    def __init__(self, features):
        self.features = features

    def power(self, x):
        return np.abs(np.fft.rfft(sig.detrend(x) * window(len(x)))) ** 2

    @staticmethod
    def stamps(lines):
        return [datetime.strptime(each, "%Y").timetuple().tm_yday for each in lines]

    def rolled(self, x):
        return np.roll(x, np.random.randint(9))

    def __getitem__(self, i):
        HERE
        return x, self.y[i]

def window(n):
    return np.hanning(n)
"""


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("x = torch.from_numpy(self.power(self.light[i]))", "power, window"),
        ("x = self.power(self.light[i]).astype('float32').clip(0, 1)", "power, window"),
        ("x: torch.Tensor = self.power(self.light[i])", "power, window"),
        ("x = self.stamps(self.light[i])", "stamps"),
        ("x = self.power(self.light[i] * time.time())", ""),
        ("x = self.rolled(self.light[i])", ""),
        ("x = self.power(self.light[i] + torch.randn(9))", ""),
        ("x = self.transform(self.power(self.light[i]))", ""),  # whatever that is
        ("x = self.pipe.run(self.power(self.light[i]))", ""),
        ("x = self.power(np.load(self.paths[i]))", ""),
        ("x = given(self.power(self.light[i]))", ""),
        ("x = np.abs(self.light[i])", ""),  # nothing of its own
        ("x += self.power(self.light[i])", ""),
    ],
)
def test_what_computes_the_same_each_time(line: str, found: str) -> None:
    text = DATASET.replace("HERE", line)
    at = next(number for number, each in enumerate(text.splitlines(), 1) if line in each)
    assert computes_the_same(text, at) == found


def test_text_that_is_no_python() -> None:
    assert computes_the_same("def f(:\n", 1) == ""
    assert computes_the_same("x = 3\n", 1) == ""


FEATURES = """
import numpy as np

class Jitter:
    def __call__(self, x):
        return x + np.random.normal(0, 1, len(x))
    def bank(self): return np.random.rand(9)

@final
class Bands:
    def __call__(self, x):
        return self.bank @ spectrum(x)

def spectrum(x):
    return np.abs(np.fft.rfft(x)) ** 2
"""


@pytest.mark.parametrize(
    ("line", "at", "found"),
    [
        ("x = torch.from_numpy(self.features(self.light[i]))", 9, "Bands, spectrum"),
        ("x = self.features(self.light[i])", 11, "Bands, spectrum"),
        ("x = self.features(self.power(self.light[i]))", 9, "power, window, Bands, spectrum"),
        ("x = self.features(self.light[i])", 4, ""),  # another each time
        ("x = self.features(self.light[i])", 14, "spectrum"),
        ("x = self.features(self.light[i])", 1, ""),  # no class, and no function
        ("x = self.other(self.features(self.light[i]))", 9, ""),  # which of them it is, nobody knows
        ("x = self.prepared(self.light[i])", 9, ""),  # a method that it has from elsewhere
    ],
)
def test_what_the_one_transform_computes_counts(line: str, at: int, found: str) -> None:
    text = DATASET.replace("HERE", line)
    place = next(number for number, each in enumerate(text.splitlines(), 1) if line in each)
    named = computes_the_same(text, place, (FEATURES, at))
    assert set(named.split(", ")) == set(found.split(", "))
    assert computes_the_same(text, place, ("def f(:", 1)) == ""


TRANSFORMS = """
import torch

class Detrend:
    def __call__(self, item):
        return {**item, "x": item["x"] - line(item["x"])}

class Window:
    def __call__(self, item):
        at = torch.randint(9, ())
        return {**item, "x": item["x"][at:]}

class Others:
    def __call__(self, item):
        return unknown(item)

def line(x):
    return x.mean(-1, keepdim=True)
"""


@pytest.mark.parametrize(
    ("at", "name"),
    [(4, "Detrend"), (5, "Detrend"), (8, ""), (9, ""), (13, ""), (17, "line"), (2, "")],
)
def test_transforms_that_give_the_same_for_the_same(at: int, name: str) -> None:
    assert transforms_the_same(TRANSFORMS, at) == name


def test_a_dataset_that_cuts_its_record_first_hands_on_another_one_each_time() -> None:
    for text, told in (("x = self.records[i]", True), ("x = self.records[i][torch.randint(9, ()):]", False)):
        line = next(number for number, each in enumerate(DATASET.splitlines(), 1) if "HERE" in each)
        assert hands_on_the_same(DATASET.replace("HERE", text), line) is told
    assert not hands_on_the_same("def f(:", 1) and not hands_on_the_same("x = 3\n", 1)
