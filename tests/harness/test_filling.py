"""What fills samples of different lengths up: recordings, spectrograms, pictures of lines."""

from __future__ import annotations

import pytest
import torch

from advisor.harness.filling import features, filled, lengthwise
from advisor.harness.layout import Model
from advisor.harness.model_records import ModelRecords

LENGTHS = [30, 64, 12, 40]
PADDED = 1.0 - sum(LENGTHS) / (4 * 64)
INSIDE = torch.arange(64) < torch.tensor(LENGTHS)[:, None]


def noise(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0)) + 0.1


def by_bin(given: torch.Tensor) -> torch.Tensor:
    """Normalized by means of each bin, after the padding."""
    return given - torch.linspace(-1, 1, given.shape[1])[None, :, None]


@pytest.mark.parametrize(
    ("given", "dimension", "share"),
    [
        pytest.param(noise(4, 64) * INSIDE, 1, PADDED, id="recordings"),
        pytest.param((noise(4, 1, 64) * INSIDE[:, None]), 2, PADDED, id="with a channel"),
        pytest.param(noise(4, 64, 3) * INSIDE[..., None], 1, PADDED, id="series"),
        pytest.param(by_bin(noise(4, 20, 64) * INSIDE[:, None]), 2, PADDED, id="normalized spectrograms"),
        pytest.param((noise(4, 8, 64) * 99).where(INSIDE[:, None], 255).to(torch.uint8), 2, PADDED, id="lines of text"),
        pytest.param(noise(4, 64), 1, 0.0, id="whole"),
        pytest.param(noise(4, 64) * INSIDE.flip(1), 1, 0.0, id="in front"),
        pytest.param(torch.cat([noise(4, 60), torch.zeros(4, 4)], 1), 1, 4 / 64, id="alike"),
        pytest.param(noise(4, 20, 64) * INSIDE[:, None], 1, 0.0, id="along the bins"),
    ],
)
def test_what_fills_samples_up_is_counted(given: torch.Tensor, dimension: int, share: float) -> None:
    assert float(filled(torch, given, dimension)) == pytest.approx(share)


def test_features_are_the_largest_tensor() -> None:
    sound, ids = noise(4, 400), torch.ones(4, 40, dtype=torch.int64)
    assert features(torch, [ids, sound]) is sound
    assert features(torch, [ids.repeat(1, 20), sound]) is None  # texts
    assert features(torch, [sound[0]]) is None and features(torch, [sound[:1]]) is None
    assert features(torch, []) is None and features(torch, [noise(4, 400).to("meta")]) is None


@pytest.mark.parametrize(
    ("shape", "before", "dimension"),
    [
        ((4, 64), (4, 70), 1),
        ((3, 1, 64), (4, 1, 70), 2),
        ((4, 64, 8), (4, 64, 8), 0),
        ((4, 64, 64), (4, 70, 70), 0),  # pictures
        ((64, 64), (70, 70), 0),  # an adjacency
        ((64, 64), (64, 70), 1),
        ((4, 8), (4, 9), 0),
        ((4, 64), (4, 64, 1), 0),
        ((4, 64), (), 0),
    ],
)
def test_batches_differ_in_one_length(shape: tuple[int, ...], before: tuple[int, ...], dimension: int) -> None:
    assert lengthwise(shape, before) == dimension


def recorded(batches: list[torch.Tensor]) -> Model:
    records, module = ModelRecords(torch), torch.nn.Identity()
    for batch in batches:
        records.observe(module, [], True)
        records.ask_padding(module, [batch])
    records.read_padding()
    (record,) = records.called()
    return record


def test_batches_of_their_own_lengths_are_told() -> None:
    batches = [(noise(4, 80 + n) * (torch.arange(80 + n) < 40 + 10 * torch.arange(4)[:, None])) for n in range(10)]
    share = recorded(batches).filled
    assert share is not None and 0.3 < share < 0.4
    assert recorded([batches[0]] * 10).filled is None  # one length that all are padded to
    assert recorded([batches[n % 2] for n in range(10)]).filled is None  # two of them
