"""Fourier transforms of slow lengths are found in a real run, and what is lengthened computes the same."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from advisor.edit import Draft, Edit, Sources
from advisor.edit.algebra.fft_lengths import convolution_length, lengthen
from advisor.edit.sources import Source
from advisor.evidence import Evidence
from advisor.evidence.algebra.fft_lengths import BACK, COMPLEX, REAL, fast_length, largest_factor, left, power_of_two
from advisor.launch import Command, measure
from advisor.rule import Advice, Finding
from rules.fft_length import FftLength
from tests.conftest import PYTHON, QUICK

SCRIPT = """\
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Filters(nn.Module):
    def __init__(self):
        super().__init__()
        self.taps = nn.Parameter(torch.randn(16, {taps}) / 64)

    def forward(self, u):
        n = u.shape[-1] + self.taps.shape[-1] - 1
        spectrum = torch.fft.rfft(u, n=n) * torch.fft.rfft(self.taps, n=n)
        return torch.fft.irfft(spectrum, n=n){taken}


model = Filters()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(400):
    loss = model(torch.randn(8, 16, 2048)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def findings(folder: Path, taps: int, taken: str = "[..., :2048]") -> list[Finding]:
    (folder / "train.py").write_text(SCRIPT.format(taps=taps, taken=taken))
    run = measure(Command(str(folder / "train.py"), python=PYTHON, cwd=str(folder)), folder / "run", QUICK)
    return list(FftLength().check(Evidence.from_run(run)))


@pytest.mark.slow
@pytest.mark.sessions
def test_transforms_of_a_prime_length_are_found_and_lengthened(tmp_path: Path) -> None:
    (finding,) = findings(tmp_path, 2046)
    assert finding.site is not None and finding.site.line == 15
    assert finding.evidence["length"] == finding.evidence["largest_factor"] == 4093 and finding.gain.likely > 1.5
    fix = FftLength().fix(finding, Sources())
    assert isinstance(fix, Edit)
    assert "n = 1 << (u.shape[-1] + self.taps.shape[-1] - 2).bit_length()" in next(iter(fix.texts.values()))


@pytest.mark.slow
@pytest.mark.sessions
def test_a_spectrum_that_is_used_as_it_is_gets_advice(tmp_path: Path) -> None:
    (finding,) = findings(tmp_path, 2046, taken="")
    fix = FftLength().fix(finding, Sources())
    assert isinstance(fix, Advice) and "4096 instead of 4093" in fix.text


@pytest.mark.slow
@pytest.mark.sessions
def test_lengths_of_small_factors_are_left_alone(tmp_path: Path) -> None:
    assert not findings(tmp_path, 2001)  # 4048 = 2^4 * 11 * 23


@pytest.mark.parametrize("number", [1, 2, 3, 49, 4048, 8190, 8191, 8193, 44_101])
def test_lengths(number: int) -> None:
    primes = [each for each in range(2, number + 1) if number % each == 0 and all(each % d for d in range(2, each))]
    assert largest_factor(number) == max(primes, default=1)
    fast = fast_length(number)
    assert fast >= number and fast % 2 == 0 and largest_factor(fast) <= 7
    assert not any(largest_factor(each) <= 7 for each in range(number + number % 2, fast, 2))
    assert power_of_two(number) >= number and math.log2(power_of_two(number)).is_integer()
    assert power_of_two(number) // 2 < number
    for operator in (REAL, BACK, COMPLEX):
        assert (left(operator, number) == 1.0) == (largest_factor(number) <= 61) and left(operator, number) <= 1.0


def result(text: str) -> torch.Tensor:
    torch.manual_seed(0)
    space: dict[str, object] = {}
    exec(text, space)
    return space["f"](torch.randn(2, 31), torch.randn(11))  # type: ignore[operator]


@pytest.mark.parametrize(
    "body",
    [
        "n = x.shape[-1] + k.shape[-1] - 1; a = fft.rfft(x, n=n); return fft.irfft(a * fft.rfft(k, n), n)[..., :31]",
        "m = x.size(-1) + len(k) - 1; z = fft.fft(x, m, dim=-1) * fft.fft(k, m); return fft.ifft(z, m)[..., : len(k)]",
    ],
)
def test_the_same_is_computed(body: str) -> None:
    text = "from torch import fft\n\ndef f(x, k):\n    " + body.replace("; ", "\n    ") + "\n"
    draft = Draft(Source("train.py", text))
    value = convolution_length(draft, 3)
    assert value is not None
    lengthen(draft, value)
    assert "bit_length" in draft.render()
    torch.testing.assert_close(result(draft.render()), result(text))
