"""The terminal report: readable at 80 columns, in a log file, and by somebody who copies from it."""

from __future__ import annotations

import io
import re
import subprocess
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from advisor.findings import Findings
from advisor.report import terminal


def _shown(document: Findings, *, colour: bool = False, encoding: str = "utf-8", width: int = 80, **files: str) -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict", newline="\n")
    console = Console(
        file=stream,
        width=width,
        force_terminal=colour,
        color_system="truecolor" if colour else None,
        legacy_windows=False,
    )
    terminal.show(document, console, files)
    stream.flush()
    return stream.buffer.getvalue().decode(encoding)


def _diff(shown: str) -> str:
    lines = shown.splitlines(keepends=True)
    start = next(index for index, line in enumerate(lines) if line.startswith("--- a/"))
    end = next(index for index in range(start, len(lines)) if not lines[index].strip())
    return "".join(lines[start:end])


def test_verdict_comes_first_and_the_numbers_follow(rich_document: Findings) -> None:
    lines = _shown(rich_document).strip().splitlines()
    assert lines[0] == "input-bound: 61% of the step waits for data"
    assert lines[1] == "train.py · NVIDIA H200 · 51.2 ms per step · 625 samples/s"


def test_nothing_but_diffs_and_paths_is_wider_than_the_terminal(rich_document: Findings) -> None:
    shown = _shown(rich_document, report="/a/very/long/path/that/must/not/be/broken/" + "x" * 80 + "/report.html")
    wide = [line for line in shown.splitlines() if cell_len(line) > 80]
    assert wide
    assert all(line[:1] in "+- " for line in wide)
    assert any(line.endswith("/report.html") for line in wide)


def test_a_log_file_gets_no_colours_no_boxes_and_no_trailing_blanks(rich_document: Findings) -> None:
    shown = _shown(rich_document)
    assert "\x1b" not in shown
    assert not re.search(r"[─│┌┐└┘━┃╭╮╰╯█]", shown)
    assert not [line for line in shown.splitlines() if line != line.rstrip()]


def test_an_ascii_terminal_can_show_everything(rich_document: Findings) -> None:
    shown = _shown(rich_document, encoding="ascii")
    assert "1.9-2.5x" in shown


def test_the_bar_is_as_long_as_the_line_and_each_class_as_long_as_its_share(rich_document: Findings) -> None:
    lines = _shown(rich_document).splitlines()
    bar = lines[lines.index("Where a step's time goes") + 1]
    assert len(bar) == 80
    assert bar.count("=") == round(0.61 * 80)
    assert bar.count("#") == round(0.27 * 80) or bar.count("#") == round(0.88 * 80) - round(0.61 * 80)


def test_the_diff_in_a_log_file_applies(rich_document: Findings, tmp_path: Path) -> None:
    before = "\n" * 37 + (
        "def main():\n    dataset = CIFAR(images=4096)\n"
        "    loader = DataLoader(dataset, batch_size=32, shuffle=True)  # one process\n"
        "    for images, labels in loader:\n        train(model, images, labels)\n"
    )
    (tmp_path / "train.py").write_text(before)
    diff = _diff(_shown(rich_document))
    subprocess.run(["git", "apply", "-"], input=diff, text=True, cwd=tmp_path, check=True)
    assert "num_workers=4, persistent_workers=True" in (tmp_path / "train.py").read_text()


def test_every_finding_is_told_with_evidence_range_safety_and_result(rich_document: Findings) -> None:
    shown = " ".join(_shown(rich_document).split())
    assert "1.9–2.5× faster, likely 2.30×" in shown
    assert "data wait 61%" in shown
    assert "exact: same batches, same arithmetic" in shown
    assert "kept: 51.2 ms → 22 ms per step: 2.33×" in shown
    assert "costs 40 s once, pays back after 16,400 steps" in shown
    assert "--batch-size 256" in shown
    assert "No edit was made: two calls on line 12" in shown


def test_notes_say_what_is_less_certain(rich_document: Findings) -> None:
    shown = _shown(rich_document)
    assert "Less certain, and why\n  - The step time had not settled after 200 steps." in shown


def test_a_script_with_nothing_to_change_gets_its_verdict_and_no_empty_tables(empty_document: Findings) -> None:
    shown = _shown(empty_document)
    assert "nothing worth changing" in shown
    assert "What to change" not in shown
    assert "Where a step" not in shown


@pytest.mark.parametrize("colour", [False, True])
def test_texts_of_others_neither_become_markup_nor_move_the_cursor(hostile_document: Findings, colour: bool) -> None:
    shown = _shown(hostile_document, colour=colour)
    assert "[bold]`|*{{7*7}}" in shown.replace("\n", "").replace(" ", "")
    assert "\x1b[2J" not in shown


def test_colours_are_used_where_there_are_colours(rich_document: Findings) -> None:
    shown = _shown(rich_document, colour=True)
    assert "█" in shown
    assert "\x1b[" in shown
    assert re.sub(r"\x1b\[[0-9;]*m", "", shown).count("\n") == _shown(rich_document).count("\n")
