"""Padding that a script does itself is seen where its length does not come from the batch."""

from __future__ import annotations

import pytest

from advisor.edit import Draft, Source
from advisor.edit.loading.padded_by_hand import padded_by_hand


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ("while len(ids) < 128:\n    ids.append(0)\n    mask.append(0)", [1]),
        ("def collate(rows):\n    for ids in rows:\n        while len(ids) < length:\n            ids += [0]", [3]),
        ("ids = ids[:LENGTH] + [PAD] * (LENGTH - len(ids))\nmask = [1] * n + [0] * (LENGTH - n)", [1]),
        ("ids = F.pad(ids, (0, max_length - ids.shape[0]), value=0)", [1]),
        ("ids = torch.cat([ids, torch.zeros(cfg.width - ids.size(0), dtype=torch.long)])", [1]),
        ("ids = np.pad(ids, (0, length - len(ids)))\nids = np.pad(ids, (1, 1))", [1]),
        (
            "def __call__(self, rows):\n    width = self.longest\n    ids = torch.full((len(rows), width), PAD)\n"
            "    for i, (row, _) in enumerate(rows):\n        ids[i, : min(len(row), width)] = row[:width]",
            [3],
        ),
        ("def f(r):\n    x = np.zeros((8, 128))\n    for i in range(8):\n        x[i, :len(r[i])] = r[i]", [2]),
        # Whole rows, and what is no batch of rows.
        ("def f(rows):\n    x = np.zeros((8, 128))\n    for i, row in enumerate(rows):\n        x[i, :] = row", []),
        ("def f(rows):\n    ids = np.zeros((8, 128))\n    ids[0] = rows[0]", []),
        # To the longest of the batch.
        (
            "def f(rows):\n    width = max(map(len, rows))\n    ids = torch.zeros(len(rows), width)\n"
            "    for i, row in enumerate(rows):\n        ids[i, :len(row)] = row",
            [],
        ),
        (
            "def collate(rows):\n    longest = max(len(row) for row in rows)\n"
            "    return [row + [0] * (longest - len(row)) for row in rows]",
            [],
        ),
        ("rows = [F.pad(row, (0, max(map(len, rows)) - len(row))) for row in rows]", []),
        ("def f(n):\n    width = lengths.max()\n    while len(row) < width:\n        row.append(0)", []),
        ("while len(queue) < 3:\n    train()", []),
        ("row = [0] * 3\nkept = half * (length - 1)", []),
    ],
)
def test_what_fills_up_to_a_fixed_length(code: str, lines: list[int]) -> None:
    draft = Draft(Source("/collate.py", code + "\n"))
    assert [draft.line(node) for node in padded_by_hand(draft)] == lines
