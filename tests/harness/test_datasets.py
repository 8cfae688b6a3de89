"""What is recorded of the dataset that samples come from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    ConcatDataset,
    Dataset,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)

from advisor.harness.layout import Loader
from advisor.harness.loading.datasets import describe_source


class Years(Dataset):
    def __init__(self, length: int = 10) -> None:
        self.rain, self.names = torch.rand(length, 3), ["gauge"] * length
        self.days = np.arange(length * 2.0).reshape(length, 2)

    def __len__(self) -> int:
        return len(self.rain)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rain[index]


class Months(Years):
    pass


PARTS = TensorDataset(torch.rand(4, 2), torch.rand(4))


@pytest.mark.parametrize(
    ("dataset", "source", "rows"),
    [
        (Years(), "Years", ["days", "rain"]),
        (Subset(Years(), [1, 2]), "Years", ["days", "rain"]),
        (random_split(Years(), [4, 6])[0], "Years", ["days", "rain"]),
        (ConcatDataset([Years(), Years(5)]), "Years", []),
        (ConcatDataset([Years()]), "Years", []),
        (Subset(ConcatDataset([PARTS]), [1]), "TensorDataset", []),
        (Subset(ConcatDataset([Subset(Years(), [1]), Subset(Years(5), [2])]), [0]), "Years", []),
        (ConcatDataset([Years(), Months()]), "ConcatDataset", []),
        (PARTS, "TensorDataset", ["tensors"]),
        (ConcatDataset([PARTS, PARTS]), "TensorDataset", []),
    ],
)
def test_the_dataset_below_what_chooses_and_joins(dataset: Dataset, source: str, rows: list[str]) -> None:
    record = Loader()
    describe_source(torch, record, dataset)
    assert record.source.rpartition(".")[2] == source
    assert record.rows == rows
    assert record.source_site is None or record.source_site.line > 0
    if source == "Years":
        assert record.source_site is not None and record.source_site.file == __file__


class Split(Dataset):
    """A part of another dataset, by hand."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset, self.chosen = dataset, [1, 2]


class Pairs(Dataset):
    def __init__(self) -> None:
        self.left, self.right = Years(), Years()


@pytest.mark.parametrize(
    ("dataset", "wraps"),
    [
        (Years(), ""),
        (Split(Years()), "Years"),
        (Subset(Split(Subset(Split(Years()), [0])), [0]), "Years"),
        (Pairs(), ""),
    ],
)
def test_what_a_dataset_holds_of_another_is_told(dataset: Dataset, wraps: str) -> None:
    record = Loader()
    describe_source(torch, record, dataset)
    assert record.wraps.rpartition(".")[2] == wraps


def test_indices_that_are_a_tensor_are_told() -> None:
    record = Loader()
    describe_source(torch, record, Subset(Years(), torch.tensor([1, 2])))
    assert record.chosen_by_tensor


@pytest.mark.parametrize(
    ("sampler", "told"),
    [
        (SubsetRandomSampler(torch.where(torch.arange(10) > 3)[0]), True),
        (torch.randperm(10), True),
        (SubsetRandomSampler(range(4)), False),
        (WeightedRandomSampler(torch.ones(10), 10), False),
        (SequentialSampler(PARTS), False),
        ([3, 1, 2], False),
        (None, False),
    ],
)
def test_a_sampler_that_chooses_by_a_tensor_is_told(sampler: Any, told: bool) -> None:
    record = Loader()
    describe_source(torch, record, Years(), sampler)
    assert record.chosen_by_tensor is told


def test_long_lists_that_a_dataset_looks_up_in() -> None:
    years = Years(600)
    years.few = ["a"] * 20  # type: ignore[attr-defined]
    years.mixed = [years.rain] * 600  # type: ignore[attr-defined]
    record = Loader()
    describe_source(torch, record, Subset(years, [1]))
    assert record.lists == {"self.names": 600}
