"""Whether the making of a batch draws random numbers is told by the generators, and changes none of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, WeightedRandomSampler

from advisor.harness.layout import Loader
from advisor.harness.loading.fetching import look_off, look_on, read_looks
from advisor.harness.loading.loaders import fetch_patches
from advisor.harness.machine.openblas import OpenBlas

SHARED = np.random.default_rng(3)


class Rows(Dataset[torch.Tensor]):
    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor] = lambda x: x) -> None:
        self.change, self.rows = change, torch.arange(200.0).view(50, 4)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.change(self.rows[index])


class Jitter:
    def __init__(self, generator: Any) -> None:
        self.generator = generator

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if isinstance(self.generator, torch.Generator):
            return x + torch.rand(4, generator=self.generator)
        return x + self.generator.random()


class Late:
    """Has its generator behind two others, as a chain of transforms has."""

    def __init__(self) -> None:
        self.parts = {"all": [Jitter(np.random.default_rng(5))]}

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.parts["all"][0](x)


def closed_over() -> Callable[[torch.Tensor], torch.Tensor]:
    generator = random.Random(4)
    return lambda x: x + generator.random()


def seen(folder: Path, loader: DataLoader[Any]) -> tuple[list[Any], Loader]:
    """All batches of `loader`, made under our eyes, and what was seen."""
    patches = fetch_patches(str(folder), -1, OpenBlas())
    look_on(str(folder))
    try:
        for patch in patches:
            patch.on()
        batches = list(loader)
    finally:
        for patch in patches:
            patch.off()
        look_off(str(folder))
    record = Loader()
    read_looks(str(folder), [record], lambda pid: 0)
    return batches, record


@pytest.mark.parametrize(
    ("change", "draws"),
    [
        pytest.param(lambda: lambda x: x, False, id="none"),
        pytest.param(lambda: lambda x: x + torch.rand(4), True, id="torch's"),
        pytest.param(lambda: lambda x: x + random.random(), True, id="Python's"),
        pytest.param(lambda: lambda x: x + np.random.rand(), True, id="NumPy's"),
        pytest.param(lambda: lambda x: x + SHARED.random(), True, id="the module's"),
        pytest.param(closed_over, True, id="a function's own"),
        pytest.param(lambda: Jitter(random.Random(1)), True, id="an object's own"),
        pytest.param(lambda: Jitter(np.random.RandomState(1)), True, id="an object's own RandomState"),
        pytest.param(lambda: Jitter(torch.Generator().manual_seed(1)), True, id="an object's own of torch's"),
        pytest.param(Late, True, id="one far inside"),
    ],
)
@pytest.mark.parametrize("within", [False, True])
def test_a_dataset_that_draws_is_told_by_a_generator(
    tmp_path: Path, change: Callable[[], Callable[[torch.Tensor], torch.Tensor]], draws: bool, within: bool
) -> None:
    def loader() -> DataLoader[Any]:
        torch.manual_seed(0), random.seed(0), np.random.seed(0)
        data: Dataset[Any] = Rows(change())
        return DataLoader(Subset(data, range(50)) if within else data, batch_size=5, shuffle=True)

    shared = SHARED.bit_generator.state
    plain = list(loader())
    SHARED.bit_generator.state = shared
    batches, record = seen(tmp_path, loader())
    assert record.draws is draws
    assert all(torch.equal(one, other) for one, other in zip(plain, batches, strict=True))


def test_a_collate_function_that_draws_is_seen(tmp_path: Path) -> None:
    def mixed(rows: list[torch.Tensor]) -> torch.Tensor:
        batch = torch.stack(rows)
        return batch + batch[torch.randperm(len(batch))]

    assert seen(tmp_path, DataLoader(Rows(), batch_size=5, collate_fn=mixed))[1].draws is True


def test_a_worker_that_draws_is_seen(tmp_path: Path) -> None:
    loader = DataLoader(Rows(lambda x: x + torch.rand(4)), batch_size=5, num_workers=1, multiprocessing_context="fork")
    assert seen(tmp_path, loader)[1].draws is True


def test_to_choose_samples_at_random_is_no_drawing(tmp_path: Path) -> None:
    data = TensorDataset(torch.rand(50, 4))
    loader = DataLoader(data, batch_size=5, sampler=WeightedRandomSampler(torch.ones(50), 50))
    assert seen(tmp_path, loader)[1].draws is False


@pytest.mark.parametrize(
    ("change", "own"),
    [
        (lambda x: x + torch.rand(4), False),
        (lambda x: x + random.random() + np.random.rand(), False),
        (lambda x: x + SHARED.random(), True),
        (Jitter(np.random.RandomState(1)), True),
    ],
)
def test_generators_of_which_workers_get_copies(
    tmp_path: Path, change: Callable[[torch.Tensor], torch.Tensor], own: bool
) -> None:
    assert seen(tmp_path, DataLoader(Rows(change), batch_size=5))[1].draws_own is own
