"""Rows of a DataFrame that become rows of arrays: the samples are the same, by value and by type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from advisor.edit import Drafts, Sources
from advisor.edit.loading.frame_columns import keep_columns
from advisor.harness.loading.tables import facts

CLASS = """
import numpy as np
import torch

TARGET = "late"
NUMBERS = ["a", "b"]


class Flights:
    def __init__(self, frame):
        self.frame = frame
        self.numbers = ["b", "a"]
        self.name = "carrier"
        self.late = frame["late"]
        self.unused = None

    def __len__(self):
        return len(self.frame)

    def __getitem__(self, i):
{body}
"""
ROW = "row = self.frame.iloc[i]"


def table() -> pd.DataFrame:
    rng = np.random.default_rng(1)
    return pd.DataFrame(
        {
            "a": rng.normal(size=9),
            "b": rng.normal(size=9).astype("float32"),
            "stops": rng.integers(0, 4, size=9),
            "late": rng.normal(size=9) > 0,
            "carrier": pd.Series(["AA", "DL", "UA"] * 3, dtype="object"),
            "gate": pd.Series(["x", None, "z"] * 3, dtype="category"),
        }
    )


def numbers() -> pd.DataFrame:
    """Of one type each, of which a row makes another."""
    return table()[["a", "b", "stops"]].assign(late=lambda rows: rows.stops % 2)


def edited(path: Path, body: list[str], seen: set[str], more: str = "") -> tuple[str, str, str]:
    """The class as it is and as the edit makes it, and why there is none."""
    text = CLASS.format(body="\n".join(f"        {line}" for line in body)) + more
    path.write_text(text)
    drafts = Drafts(Sources())
    draft = drafts[str(path)]
    lines = [number for number, line in enumerate(text.splitlines(), 1) if line.strip() in body and "self." in line]
    why = keep_columns(drafts, draft, lines, seen)
    return text, "" if why else draft.render(), why


def samples(text: str, frame: pd.DataFrame) -> list[Any]:
    made: dict[str, Any] = {}
    exec(compile(text, "flights.py", "exec"), made)
    data = made["Flights"](frame)
    return [data[i] for i in (*range(len(data)), -1)]


def same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, tuple):
        for a, b in zip(one, other, strict=True):
            same(a, b)
    elif isinstance(one, (torch.Tensor, np.ndarray)):
        assert one.dtype == other.dtype and one.shape == other.shape
        assert np.array_equal(np.asarray(one), np.asarray(other))
    else:
        assert one == other or (one != one and other != other)


@pytest.mark.parametrize(
    "body",
    [
        [ROW, 'return row["a"], row["stops"], row["carrier"], row.b, row.gate, row["late"]'],
        [ROW, "x = torch.tensor(row[self.numbers].values.astype('float32'))", "return x, torch.tensor(row[TARGET])"],
        [ROW, "return torch.tensor(list(row[NUMBERS])), np.array(row[['a', 'stops']], dtype='float32')"],
        [ROW, "return row[NUMBERS].to_numpy(dtype='float32'), torch.from_numpy(row[self.numbers].to_numpy(float))"],
        [ROW, "return torch.from_numpy(row[self.numbers].to_numpy().astype('float64')), str(row[self.name])"],
        [ROW, "return row[NUMBERS].astype('float32').values, row[self.numbers].astype(float).to_numpy()"],
        ["return self.frame.iloc[i, 0], self.frame.iloc[i, -1], self.frame.iat[i, 2]"],
        ["return self.frame.iloc[i, :2].values.astype('float32'), self.frame.iloc[i, 1:3].astype('float32').values"],
        ["return self.frame.loc[i, 'a'] if i >= 0 else 0, self.frame['b'].iloc[i], self.frame.stops.iloc[i]"],
        ["return self.frame.iloc[i]['a'], self.frame.iloc[i].carrier, self.late.iloc[i]"],
        ["j = i", "return self.frame['carrier'].iloc[i], len(self.frame), j"],
        ["if torch.is_tensor(i):", "    i = i.tolist()", ROW, "return row['a']"],
        [ROW, "return [float(row[each]) for each in ()], row['a'] + row['stops'], row.a ** 2"],
    ],
    ids=range(13),
)
def test_samples_are_the_same(body: list[str], tmp_path: Path) -> None:
    frame = table()
    text, after, why = edited(tmp_path / "flights.py", body, facts(frame))
    if "row[each]" in "".join(body):
        assert why
        return
    assert not why
    assert not any(word in after.split("def __getitem__")[1] for word in ("iloc", "iat", ".loc", "self.frame["))
    assert after.split("def __len__")[0].count(".to_numpy()") >= 1
    if "frame.loc" in after:
        frame.index = range(9)
    before = samples(text, frame)
    for one, other in zip(before, samples(after, frame), strict=True):
        same(one, other)


@pytest.mark.parametrize(
    ("values", "edit"),
    [
        ('float(row["stops"]), int(row.late)', True),
        ('torch.tensor(row["stops"], dtype=torch.long), torch.tensor(row.late).float()', True),
        ('torch.tensor(row[["stops", "late"]].values.astype("int64"))', True),
        ("row[NUMBERS].astype('float32').values, row.values, self.frame.stops.iloc[i]", True),
        ('torch.tensor(row["stops"]).to(torch.float32)', True),
        ('torch.tensor(row["stops"])', False),
        ('torch.tensor(row["stops"]).to("cpu")', False),
        ('row["stops"]', False),
        ("torch.tensor(row[['stops', 'late']].values)", False),
    ],
)
def test_a_row_of_one_type_is_left_where_that_shows(values: str, edit: bool, tmp_path: Path) -> None:
    frame = numbers()
    assert facts(frame) == {"upcast"}
    text, after, why = edited(tmp_path / "flights.py", [ROW, f"return {values}"], facts(frame))
    assert bool(after) == edit, why
    for one, other in zip(samples(text, frame), samples(after or text, frame), strict=True):
        same(one, other)


def test_what_is_handed_on_is_a_copy(tmp_path: Path) -> None:
    frame = numbers()
    body = ["x = np.asarray(self.frame.iloc[i].values)", "x.setflags(write=True)", "x += 1", "return torch.tensor(x)"]
    text, after, why = edited(tmp_path / "flights.py", body, facts(frame))
    assert not why and ".copy()" in after
    for _ in range(2):
        for one, other in zip(samples(text, frame), samples(after, frame), strict=True):
            same(one, other)
    made: dict[str, Any] = {}
    exec(after, made)
    data = made["Flights"](frame)
    assert torch.equal(data[3], data[3])


@pytest.mark.parametrize(
    ("body", "seen", "more", "why"),
    [
        ([ROW, "return encode(row)"], set(), "", "cannot be told"),
        (["row = self.frame[NUMBERS].iloc[i]", "return row['a']"], set(), "", "cannot be told"),
        (["row = self.frame[NUMBERS].iloc[i]", "return torch.tensor(row.values)"], set(), "", "cannot be told"),
        ([ROW, "return row.mean()"], set(), "", "cannot be told"),
        ([ROW, "return row.name"], set(), "", "cannot be told"),
        ([ROW, "return row[self.numbers]"], set(), "", "cannot be told"),
        ([ROW, "return row[self.numbers].sum()"], set(), "", "cannot be told"),
        (["k = pick(i)", ROW, "return row[k]"], set(), "", "cannot be told"),
        ([ROW, "row['a'] = 0", "return row['a']"], set(), "", "cannot be told"),
        ([ROW, "row = row.fillna(0)", "return row['a']"], set(), "", "cannot be told"),
        (["i = self.order[i]", ROW, "return row['a']"], set(), "", "changed before"),
        (["return self.frame.iloc[self.order[i]]['a']"], set(), "", "cannot be told"),
        (["return self.other.iloc[i]['a']"], set(), "", "self.other comes from"),
        (["return self.frame['a'][i]"], {"labels"}, "", "labels"),
        ([ROW, "return row['day']"], {"date day"}, "", "dates"),
        ([ROW, "return row.day"], {"date day"}, "", "dates"),
        ([ROW, "return row.values"], {"date day"}, "", "dates"),
        ([ROW, "return row['a']"], set(), "\n    def mix(self):\n        self.frame = mixed()\n", "may change"),
        ([ROW, "return row['a']"], set(), "\n    def mix(self):\n        self.frame['a'] += 1\n", "may change"),
        ([ROW, "return row['a']"], set(), "\n    def mix(self):\n        self.frame.drop(1, inplace=True)\n", "may ch"),
        ([ROW, "return row['a']"], set(), "\nFlights(x).frame = y\n", "something else may set"),
        ([ROW, "return row['a']"], set(), "\nclass Late(Flights):\n    pass\n", "Late, which is derived"),
    ],
)
def test_what_is_not_sure_is_left_alone(body: list[str], seen: set[str], more: str, why: str, tmp_path: Path) -> None:
    _, after, said = edited(tmp_path / "flights.py", body, seen, more)
    assert not after and why in said


def test_dates_that_are_not_read_are_none_of_its_business(tmp_path: Path) -> None:
    _, after, why = edited(tmp_path / "flights.py", [ROW, "return row['a']"], {"date day"})
    assert after, why


_BRANCH = [ROW, "if TARGET:", "    return row['a']", "return row['stops']"]


@pytest.mark.parametrize(
    ("made", "edits"), [("train = Flights(one)\n", True), ("both = Flights(one), Flights(two)\n", False)]
)
def test_a_column_that_one_branch_reads(made: str, edits: bool, tmp_path: Path) -> None:
    """Another table may not have it."""
    _, after, why = edited(tmp_path / "flights.py", _BRANCH, set(), f"\n{made}")
    assert bool(after) is edits and (edits or "not every sample" in why)
