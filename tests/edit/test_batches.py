"""Where a script that makes its batches by hand says how large they are."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from advisor.edit import Draft, Sources
from advisor.edit.loading.batches import said_sizes


def said(folder: Path, text: str, *argv: str) -> list[tuple[int, str]]:
    script = folder / "train.py"
    script.write_text(textwrap.dedent(text))
    draft = Draft(Sources().source(str(script)))
    return [(draft.line(each.node), each.option) for each in said_sizes(draft, 32, argv)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("BATCH_SIZE = 32\n", [(1, "")]),
        ("class Config:\n    batch_size: int = 32\n", [(2, "")]),
        ("def train(x, bs=32):\n    pass\n", [(1, "")]),
        ("cfg = {'train_batch_size': 32, 'width': 32}\n", [(1, "")]),
        ("run(minibatch=32, width=32)\n", [(1, "")]),
        ("self.bsz = 32\n", [(1, "")]),
        ("p.add_argument('-b', '--batch-size', default=32)\n", [(1, "--batch-size")]),
        ("p.add_argument('--bs', dest='rows', type=int, default=32)\n", [(1, "--bs")]),
        ("p.add_argument('--hidden', type=int, default=32)\n", []),
        ("eval_batch_size = 32\nwidth = 32\nbatch_size = 64\nbatches = 32\n", []),
        ("batch_size = 32 if big else 8\n", []),
        ("batch_size = 32\nrun(batch_size=32)\n", [(2, ""), (1, "")]),
    ],
)
def test_it_is_known_by_its_name_and_its_value(text: str, expected: list[tuple[int, str]], tmp_path: Path) -> None:
    assert said(tmp_path, text) == expected


def test_the_command_line_decides_over_the_default(tmp_path: Path) -> None:
    option = "p.add_argument('--batch-size', type=int, default={})\n"
    assert said(tmp_path, option.format(8), "--batch-size", "32") == [(1, "--batch-size")]
    assert said(tmp_path, option.format(8), "--batch-size=32") == [(1, "--batch-size")]
    assert said(tmp_path, option.format(32), "--batch-size", "16") == []
    assert said(tmp_path, option.format(8)) == []
