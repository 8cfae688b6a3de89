"""A property is computed once where nothing that it gives, or is made of, changes; else there is a reason why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.edit import Drafts, Sources
from advisor.edit.loading.kept_properties import keep_property

SERIES = """\
import numpy as np


class Series{bases}:
    def __init__(self, values):
        self.values = values

    {decorator}
    def scaled(self):
        return self.values - self.values.mean(0)
{more}
"""
READER = """\
import torch


class Windows:
    def __getitem__(self, i):
        {body}
{more}
"""


def kept(
    folder: Path, copied: bool = True, body: str = "return self.series.scaled[i]", **parts: str
) -> tuple[str, str]:
    """Why not, and the text of the file with the property then."""
    series, reader = folder / "series.py", folder / "windows.py"
    given = {"bases": "", "decorator": "@property", "more": "", **parts}
    series.write_text(SERIES.format(**given))
    reader.write_text(READER.format(body=body, more=given.get("later", "")))
    drafts = Drafts(Sources())
    line = SERIES.splitlines().index("    def scaled(self):") + 1
    why = keep_property(drafts[str(series)], line, [drafts[str(reader)]], copied)
    return why, drafts[str(series)].render()


@pytest.mark.parametrize(
    "body",
    [
        "return self.series.scaled[i]",
        "return torch.from_numpy(self.series.scaled[i : i + 9]), i",
        "x = self.series.scaled[i]\n        y = self.series.scaled[i + 1]\n        return torch.tensor(x), {0: y}",
        "x = self.series.scaled\n        return torch.tensor(x[i] * 2)",
        "x = self.series.scaled[i]\n        y, z = x[:5], x[5:]\n        return torch.from_numpy(y), z",
    ],
)
def test_it_is_kept_where_it_is_read(body: str, tmp_path: Path) -> None:
    why, text = kept(tmp_path, body=body)
    assert not why and "    @functools.cached_property\n    def scaled(self):" in text
    assert "import functools\n" in text


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"body": "x = self.series.scaled[i]\n        x += 1\n        return x"}, "may be changed where it is read"),
        ({"body": "x = self.series.scaled[i]\n        x[0] = 1\n        return x"}, "may be changed where it is read"),
        (
            {"body": "x = self.series.scaled\n        y, z = x[:5], x[5:]\n        z += 1\n        return y"},
            "where it is read",
        ),
        ({"body": "x = self.series.scaled\n        y, *z = x[:5], x[5:]\n        return y"}, "where it is read"),
        ({"body": "return self.augment(self.series.scaled[i])"}, "may be changed where it is read"),
        ({"body": "self.kept = self.series.scaled\n        return self.kept[i]"}, "may be changed where it is read"),
        ({"later": "\n    def grow(self, more):\n        self.series.values = more"}, "may be given another value"),
        ({"later": "\n    def grow(self, more):\n        self.series.values[0] = more"}, "may be given another value"),
        (
            {"later": "\n    def grow(self, more):\n        self.series.values.append(more)"},
            "may be given another value",
        ),
        ({"later": "\n    def grow(self, more):\n        self.series.values.mul_(more)"}, "may be given another value"),
        (
            {"later": "\n    def grow(self, more):\n        self.series.values[0].T[1] += 1"},
            "may be given another value",
        ),
        ({"decorator": "@other"}, "a method"),
        ({"decorator": "# none"}, "a method"),
        ({"bases": "(NamedTuple)"}, "no place"),
        ({"more": "\n    __slots__ = ('values',)"}, "no place"),
        ({"more": "\n    @scaled.setter\n    def scaled(self, value):\n        pass"}, "may be given a value"),
    ],
)
def test_it_is_left_alone_where_something_may_change(parts: dict[str, str], why: str, tmp_path: Path) -> None:
    reason, text = kept(tmp_path, **parts)
    assert why in reason and "cached" not in text


def test_samples_that_no_batch_copies_are_the_scripts_to_change(tmp_path: Path) -> None:
    assert "may be changed" in kept(tmp_path, copied=False)[0]
    assert not kept(tmp_path, copied=False, body="return self.series.scaled[i] * 2")[0]
