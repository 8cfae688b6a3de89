"""What of making a batch pandas takes, and what is told of the tables that samples come from."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from advisor.harness.loading import tracing
from advisor.harness.loading.tables import of_numbers, row_bytes
from tests.harness.test_fetching import seen

ROWS = 40


class Flights(Dataset[Any]):
    def __init__(self, frame: pd.DataFrame, columns: list[str]) -> None:
        self.frame, self.columns = frame, columns

    def __len__(self) -> int:
        return len(self.frame)

    def __getitem__(self, i: int) -> Any:
        row = self.frame.iloc[i]
        x = torch.tensor(row[self.columns].to_numpy(dtype="float32"))
        return x, float(row["late"])


class Noted(Flights):
    """Asks for one column after another, by a function of its own; the rest is no work of pandas'."""

    def __getitem__(self, i: int) -> Any:
        return torch.rand(100, 100) @ torch.rand(100, 100), self.late(i)

    def late(self, i: int) -> float:
        return float(self.frame["late"].iloc[i])


class Kept(Flights):
    def __init__(self, frame: pd.DataFrame, columns: list[str]) -> None:
        super().__init__(frame, columns)
        self.values = frame[columns].to_numpy()

    def __getitem__(self, i: int) -> Any:
        return torch.tensor(self.values[i].astype("float32"))


def frame(**more: Any) -> pd.DataFrame:
    numbers = np.random.default_rng(0).normal(size=(ROWS, 3))
    return pd.DataFrame({"a": numbers[:, 0], "b": numbers[:, 1], "late": numbers[:, 2], **more})


def lines(parts: list[Any]) -> dict[str, float]:
    """Seconds by the source of each line that asks pandas."""
    source = Path(__file__).read_text().splitlines()
    return {source[part.site.line - 1].strip(): part.seconds for part in parts if part.kind == "pandas"}


@pytest.mark.parametrize("workers", [0, 1])
def test_the_lines_that_ask_pandas_are_timed(workers: int, tmp_path: Path) -> None:
    data = Flights(frame(carrier="AA"), ["a", "b"])
    plain = list(DataLoader(data, batch_size=5))
    batches, record = seen(tmp_path, DataLoader(data, batch_size=5, num_workers=workers))
    for (x, y), (x2, y2) in zip(plain, batches, strict=True):
        assert torch.equal(x, x2) and torch.equal(y, y2)
    took = lines(record.parts)
    assert {each.split(" = ")[0].split(",")[0] for each in took} == {"row", "x", "return x"}
    assert max(took, key=lambda line: took[line]).startswith("x = ")
    assert record.look_s is not None and 0.3 * record.look_s < sum(took.values()) < record.look_s
    whole = sum(part.seconds for part in record.parts if part.kind == "line")
    assert sum(took.values()) < whole  # each is a part of its line
    assert record.frames == []


def test_a_function_that_the_dataset_calls_is_who_asks(tmp_path: Path) -> None:
    _, record = seen(tmp_path, DataLoader(Noted(frame(), ["a"]), batch_size=5))
    took = lines(record.parts)
    assert list(took) == ['return float(self.frame["late"].iloc[i])']


def test_arrays_of_columns_ask_nothing(tmp_path: Path) -> None:
    _, record = seen(tmp_path, DataLoader(Kept(frame(), ["a", "b"]), batch_size=5))
    assert not lines(record.parts) and record.frames == []


@pytest.mark.parametrize(
    ("table", "facts"),
    [
        (frame(), []),
        (frame(name="x"), []),
        (frame(stops=1), ["upcast"]),  # whole numbers among others: a row makes them floating
        (frame(stops=1, name="x"), []),  # a row of objects keeps them
        (frame(day=pd.Timestamp("2026-11-27")), ["date day"]),
        (frame().sample(frac=1.0, random_state=0), ["labels"]),
        (frame().iloc[::-1], ["labels"]),
        (frame().iloc[10:], ["labels"]),
        (frame().set_index(pd.Index([f"row {i}" for i in range(ROWS)])), ["labels"]),
    ],
    ids=["alike", "of objects", "upcast", "kept", "dates", "mixed up", "backwards", "a part", "named"],
)
def test_what_a_row_does_to_its_numbers_is_told(table: pd.DataFrame, facts: list[str], tmp_path: Path) -> None:
    _, record = seen(tmp_path, DataLoader(Flights(table, ["a", "b"]), batch_size=5))
    assert record.frames == facts


def test_a_column_that_is_kept_is_a_table(tmp_path: Path) -> None:
    class Labels(Flights):
        def __getitem__(self, i: int) -> Any:
            return float(self.columns.iloc[i])  # type: ignore[attr-defined]

    mixed = frame().sample(frac=1.0, random_state=0)
    _, record = seen(tmp_path, DataLoader(Labels(mixed, mixed["late"]), batch_size=5))
    assert record.frames == ["labels"]


@pytest.mark.parametrize("what", ["table_of", "is_users"])
def test_an_error_of_ours_ends_the_look_alone(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ValueError("ours")

    monkeypatch.setattr(tracing, what, fails)
    batches, record = seen(tmp_path, DataLoader(Flights(frame(), ["a"]), batch_size=5))
    assert len(batches) == ROWS // 5 and record.looks == 0 and sys.gettrace() is None


def test_an_error_of_ours_at_an_answer_ends_the_look_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ValueError("ours")

    monkeypatch.setattr(tracing, "row_bytes", fails)
    batches, record = seen(tmp_path, DataLoader(Archived(tmp_path, kept=True), batch_size=5))
    assert len(batches) == ROWS // 5 and record.looks == 0 and sys.gettrace() is None


class Archived(Dataset[Any]):
    """Members of archives: of some that stay open, or of one that is opened for each sample."""

    def __init__(self, folder: Path, kept: bool) -> None:
        self.paths = [folder / f"{number}.npz" for number in range(4)]
        for path in self.paths:
            np.savez_compressed(path, x=np.ones((10, 50, 50)), y=np.arange(10))
        self.fields = [np.load(path) for path in self.paths] if kept else None

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, i: int) -> Any:
        field = self.fields[i // 10] if self.fields else np.load(self.paths[i // 10])
        return torch.from_numpy(field["x"][i % 10])


@pytest.mark.parametrize("workers", [0, 1])
def test_members_of_open_archives_are_timed(workers: int, tmp_path: Path) -> None:
    _, record = seen(tmp_path, DataLoader(Archived(tmp_path, kept=True), batch_size=5, num_workers=workers))
    (part,) = [each for each in record.parts if each.kind == "npz"]
    source = Path(__file__).read_text().splitlines()
    assert part.name == "x" and 'field["x"]' in source[part.site.line - 1]
    assert record.look_s is not None and 0.5 * record.look_s < part.seconds < record.look_s
    # Of each row 2,500 numbers of eight bytes, and a label.
    assert record.archive_row_bytes == pytest.approx(2500 * 8 + 8, rel=0.01)


def test_an_archive_of_its_own_for_each_sample_is_none(tmp_path: Path) -> None:
    _, record = seen(tmp_path, DataLoader(Archived(tmp_path, kept=False), batch_size=5))
    assert not [each for each in record.parts if each.kind == "npz"] and record.archive_row_bytes is None


class Convolved(Dataset[Any]):
    """Signals in rooms, their own correlations, and one that is smoothed by five numbers."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, i: int) -> Any:
        wave, room = np.ones(400 + i), np.ones(300)
        wet = np.convolve(wave, room)
        alike = np.correlate(room, wave, "full")
        return torch.tensor([wet.sum(), alike.sum(), np.convolve(wave, np.ones(5)).sum()])


def test_signals_that_numpy_convolves_have_their_lengths(tmp_path: Path) -> None:
    _, record = seen(tmp_path, DataLoader(Convolved(), batch_size=5))
    parts = {each.site.line: each for each in record.parts if each.kind == "convolve"}
    first = Convolved.__getitem__.__code__.co_firstlineno
    assert [parts[line].name for line in sorted(parts)] == ["convolve", "correlate", "convolve"]
    assert [parts[line].pixels_out for line in sorted(parts)] == [300, 300, 5]
    assert all(400 <= each.pixels_in < 400 + ROWS and each.seconds > 0 for each in parts.values())
    assert min(parts) == first + 2


def test_an_archive_with_objects_in_it_is_not_to_be_read_whole(tmp_path: Path) -> None:
    """NumPy reads them only where it is told to, and nobody may ever have asked for them."""
    np.savez_compressed(tmp_path / "a.npz", x=np.ones((10, 4)), y=np.arange(10))
    np.savez_compressed(tmp_path / "b.npz", x=np.ones((10, 4)), meta=np.array({"fps": 25}, dtype=object))
    with np.load(tmp_path / "a.npz") as plain, np.load(tmp_path / "b.npz") as objects:
        assert row_bytes(plain, "x") == 0.0 and row_bytes(plain, plain["x"]) > 4 * 8
        assert of_numbers(plain) and not of_numbers(objects)
