"""A Fourier transform that is multiplied out is found by running a script that has one, and its gain is what it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advisor.edit import Sources
from advisor.evidence import Evidence
from advisor.harness.layout import FourierProduct, Site
from advisor.launch import Command, measure
from rules.fourier_product import FourierProducts
from tests.conftest import PYTHON, QUICK

RULE = FourierProducts()
FRAMES, LENGTH = 1952, 1024


def line(**facts: Any) -> FourierProduct:
    """1,952 frames of 1,024 numbers, as they were timed."""
    given: dict[str, Any] = {"length": LENGTH, "waves": LENGTH + 2, "calls": 1.0}
    work = {"multiplied": FRAMES * LENGTH * (LENGTH + 2.0), "transformed": FRAMES * LENGTH * 10.0}
    return FourierProduct(Site("stft.py", 26), **{**given, **work, "seconds": 19.6e-3, **facts})


def findings(scene: Any, tmp_path: Path, *lines: FourierProduct, gpu: str = "") -> list[Any]:
    made = scene(step_ms=60, gpu=gpu)
    made.record.fourier_products = list(lines)
    made.operator("aten::mm", 2, 50)
    return list(RULE.check(made.evidence(tmp_path)))


def test_nearly_all_of_the_product_goes(scene: Any, tmp_path: Path) -> None:
    (finding,) = findings(scene, tmp_path, line())
    assert finding.evidence["seconds_saved"] == pytest.approx(18.9e-3, rel=0.05)  # 18.9 were measured
    assert "1,026 sines and cosines" in finding.summary and "multiplies frames" in finding.summary
    assert "torch.stft" in RULE.fix(finding, Sources()).text


def test_of_a_transform_that_is_differentiated_less_does(scene: Any, tmp_path: Path) -> None:
    (finding,) = findings(scene, tmp_path, line(differentiated_s=19.6e-3, convolves=True))
    assert finding.evidence["seconds_saved"] == pytest.approx(29.6e-3, rel=0.1)  # 29.6 were measured
    assert "convolves a signal" in finding.summary


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param({"seconds": 3e-3}, id="of a long step"),
        pytest.param({"waves": 64, "multiplied": FRAMES * LENGTH * 64.0, "seconds": 1.3e-3}, id="a few waves"),
    ],
)
def test_what_would_save_little_is_left_alone(scene: Any, tmp_path: Path, facts: dict[str, Any]) -> None:
    assert not findings(scene, tmp_path, line(**facts))


def test_what_would_take_longer_is_no_part_of_it(scene: Any, tmp_path: Path) -> None:
    slow = line(waves=64, multiplied=FRAMES * LENGTH * 64.0, seconds=0.3e-3, differentiated_s=0.3e-3)
    (both,) = findings(scene, tmp_path, line(), slow)
    (alone,) = findings(scene, tmp_path, line())
    assert both.evidence == alone.evidence and "1 more" not in both.summary


def test_on_a_gpu_it_is_left_alone(scene: Any, tmp_path: Path) -> None:
    assert not findings(scene, tmp_path, line(), gpu="NVIDIA H200")


SCRIPT = """\
import math

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
n_fft, hop = 512, 128


class Spectrum(nn.Module):
    def __init__(self):
        super().__init__()
        angle = 2 * math.pi / n_fft * torch.outer(torch.arange(n_fft // 2 + 1), torch.arange(n_fft))
        window = torch.hann_window(n_fft)
        self.register_buffer("basis", torch.cat([angle.cos() * window, angle.sin() * window]))
        self.register_buffer("window", window)

    def forward(self, wave):
        if {fast}:
            spectrum = torch.stft(wave, n_fft, hop, window=self.window, center=False, return_complex=True)
            return spectrum.abs().square().mT
        real, imag = nn.functional.linear(wave.unfold(-1, n_fft, hop), self.basis).chunk(2, dim=-1)
        return real.square() + imag.square()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.spectrum = Spectrum()
        self.body = nn.Sequential(nn.Linear(n_fft // 2 + 1, 32), nn.ReLU(), nn.Linear(32, 5))

    def forward(self, wave):
        return self.body(self.spectrum(wave)).mean(1)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(200):
    loss = nn.functional.cross_entropy(model(torch.randn(4, 16000)), torch.randint(5, (4,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(("fast", "told"), [(False, True), (True, False)])
def test_a_transform_that_is_multiplied_out_is_found(tmp_path: Path, fast: bool, told: bool) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(fast=fast))
    run = measure(Command(str(tmp_path / "train.py"), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK)
    if not told:
        assert not run.record.fourier_products
        return
    (seen,) = run.record.fourier_products
    assert "linear" in SCRIPT.splitlines()[seen.site.line - 1] and (seen.length, seen.waves) == (512, 514)
    (finding,) = RULE.check(Evidence.from_run(run))
    assert finding.gain.likely > 1.2
