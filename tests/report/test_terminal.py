"""The terminal report: readable at 80 columns, in a log file, and by somebody who copies from it."""

from __future__ import annotations

import io
import re
import subprocess
from pathlib import Path

import msgspec
import pytest
from rich.cells import cell_len
from rich.console import Console

from advisor.findings import Findings, Outcome
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


def test_the_outcome_follows_the_verdict_and_says_what_the_session_came_to(tried_document: Findings) -> None:
    lines = _shown(tried_document).strip().splitlines()
    assert lines[3:5] == [
        "What was tried",
        "400 → 1,233 samples/s: 3.08× (2.90–3.30) with loader-workers, batch-size",
    ]


def test_the_waterfall_s_bars_are_as_long_as_the_throughput(tried_document: Findings) -> None:
    lines = _shown(tried_document, width=100).splitlines()
    first, workers, batch, last = (
        next(line for line in lines if line.startswith(name))
        for name in ("as it was", "1. loader-workers", "5. batch-size", "all together")
    )
    assert last.count("#") / first.count("#") == pytest.approx(1233 / 400, rel=0.06)
    assert (workers.count("#") + workers.count("o", len("1. loader-workers"))) / first.count("#") == pytest.approx(
        838 / 400, rel=0.06
    )
    assert batch.rstrip().endswith("o") and batch.index("##") == first.index("##")


def test_the_prediction_lies_beside_the_measurement_on_one_scale(tried_document: Findings) -> None:
    lines = _shown(tried_document, width=100).splitlines()
    at = next(index for index, line in enumerate(lines) if line.startswith("1. loader-workers"))
    bar, measured, predicted = lines[at : at + 3]
    assert "measured  2.10× (2.05–2.16)" in measured
    assert "predicted 1.9–2.5×" in predicted
    # 2.05 to 2.16 of what it was before lies inside of 1.9 to 2.5, and around the bar's end
    assert predicted.index("[") <= measured.index("[") <= len(bar) - 1 <= measured.index("]") + 1
    assert measured.index("]") < predicted.index("]")


def test_what_was_not_kept_is_told_with_its_reason(tried_document: Findings) -> None:
    shown = " ".join(_shown(tried_document).split())
    rest = shown[shown.index("Tried and not kept") :]
    for said in (
        "2. compile (numeric): reverted No gain of 2%",
        "measured 1.00× (0.98–1.02) in 4 pairs of runs, predicted 1.1–1.3×",
        "3. tf32 (numeric): inconclusive",
        "the smallest gain that could have been seen was 4.0%",
        "4. amp-autocast (numeric): failed RuntimeError: expected scalar type Float but found BFloat16",
        "Run: 02-compile",
    ):
        assert said in rest, said


@pytest.mark.parametrize("width", [60, 80, 160])
def test_losses_of_a_fix_that_changes_the_training_are_side_by_side(tried_document: Findings, width: int) -> None:
    lines = _shown(tried_document, width=width).splitlines()
    at = next(index for index, line in enumerate(lines) if line.strip().startswith("loss number"))
    number, before, after = (line.split() for line in lines[at : at + 3])
    assert (number[2], before[1], after[3]) == ("1", "2.31", "2.33")
    assert (number[-1], before[-1], after[-1]) == ("50", "1.412", "1.111")
    assert len([line for line in lines if line.strip().startswith("loss number")]) == 1


def test_drift_of_the_others_is_told_with_its_tolerance(tried_document: Findings) -> None:
    shown = " ".join(_shown(tried_document).split())
    assert "The first 50 losses differ by 0.04% (allowed 5%, unchanged runs 0%)." in shown


def test_what_to_do_now_is_a_command_and_a_patch_to_copy(tried_document: Findings) -> None:
    shown = _shown(tried_document, width=60, patch="/home/me/a folder/" + "y" * 60 + "/fixes.patch")
    assert "python train.py --batch-size 128\n" in shown
    assert "git apply '/home/me/a folder/" + "y" * 60 + "/fixes.patch'\n" in shown


def test_kept_diffs_come_first(tried_document: Findings) -> None:
    later = msgspec.structs.replace(tried_document.findings[2], status="kept")
    findings = [*tried_document.findings[1:2], later]
    shown = _shown(msgspec.structs.replace(tried_document, findings=findings))
    assert shown.index("3. Use a larger batch") < shown.index("2. Compile the model")


@pytest.mark.parametrize("width", [20, 60, 80])
def test_the_outcome_is_no_wider_than_the_terminal(tried_document: Findings, width: int) -> None:
    document = msgspec.structs.replace(tried_document, findings=[], breakdown={}, notes=[])
    wide = [line for line in _shown(document, width=width).splitlines() if cell_len(line) > width]
    # The command is there to be copied; three columns of losses take what they need.
    assert [line for line in wide if "python train.py" not in line and width >= 60] == []


def test_the_outcome_on_an_ascii_terminal(tried_document: Findings) -> None:
    assert "3.08x (2.90-3.30)" in _shown(tried_document, encoding="ascii")


def test_a_session_in_which_nothing_helped_says_so(tried_document: Findings, tried_outcome: Outcome) -> None:
    trials = [trial for trial in tried_outcome.trials if trial.status != "kept"]
    outcome = msgspec.structs.replace(tried_outcome, trials=trials, kept=[], final_samples_per_s=400.0, command="")
    shown = _shown(msgspec.structs.replace(tried_document, outcome=outcome))
    assert "none of the 3 fixes tried was kept: 400 samples/s, as before" in shown
    assert "What to do now" not in shown and "all together" not in shown


def test_without_a_throughput_the_steps_get_shorter(tried_document: Findings, tried_outcome: Outcome) -> None:
    outcome = msgspec.structs.replace(
        tried_outcome,
        baseline_samples_per_s=None,
        trials=tried_outcome.trials[:1],
        kept=["loader-workers"],
        final_ms=38.2,
    )
    lines = _shown(msgspec.structs.replace(tried_document, outcome=outcome)).splitlines()
    assert "80 ms → 38.2 ms per step: 3.08× (2.90–3.30) with loader-workers" in lines
    first, last = (next(line for line in lines if line.startswith(name)) for name in ("as it was", "all together"))
    assert last.count("#") / first.count("#") == pytest.approx(38.2 / 80, abs=0.03)


def test_intervals_that_nobody_knows_are_left_out(tried_document: Findings, tried_outcome: Outcome) -> None:
    first = tried_outcome.trials[0]
    assert first.measured
    endless = msgspec.structs.replace(first.measured, low=0.0, high=float("inf"), smallest_gain=float("inf"), pairs=1)
    trial = msgspec.structs.replace(first, measured=endless)
    shown = _shown(
        msgspec.structs.replace(tried_document, outcome=msgspec.structs.replace(tried_outcome, trials=[trial]))
    )
    assert "measured 2.10× in 1 pair of runs" in shown
    assert "inf" not in shown.replace("information", "")


@pytest.mark.parametrize("name", ["hostile_document", "hostile_outcome"])
@pytest.mark.parametrize("colour", [False, True])
def test_texts_of_others_neither_become_markup_nor_move_the_cursor(
    name: str, colour: bool, request: pytest.FixtureRequest
) -> None:
    shown = _shown(request.getfixturevalue(name), colour=colour)
    assert "[bold]`|*{{7*7}}" in shown.replace("\n", "").replace(" ", "")
    assert "\x1b[2J" not in shown


def test_colours_are_used_where_there_are_colours(rich_document: Findings) -> None:
    shown = _shown(rich_document, colour=True)
    assert "█" in shown
    assert "\x1b[" in shown
    assert re.sub(r"\x1b\[[0-9;]*m", "", shown).count("\n") == _shown(rich_document).count("\n")
