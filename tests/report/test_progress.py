"""What is shown while scripts run: seldom redrawn, not at all while steps are timed, and plain in a log file."""

from __future__ import annotations

import io
import re
import time

import pytest
from rich.console import Console

from advisor.harness.layout import Status
from advisor.report.progress import Progress


class _Screen:
    """A console on a stream, and what a terminal of one line's height would make of it."""

    def __init__(self, terminal: bool, width: int = 80) -> None:
        self.stream = io.StringIO()
        self.console = Console(
            file=self.stream, force_terminal=terminal, width=width, legacy_windows=False, _environ={}
        )

    @property
    def written(self) -> str:
        return self.stream.getvalue()

    @property
    def lines(self) -> list[str]:
        """The lines that stay, in order: what was erased or written over is gone."""
        out, line = [], ""
        text = re.sub(r"\x1b\[[0-9;?]*[mlh]", "", self.written)
        for piece in re.findall(r"\x1b\[\d*[A-Z]|\r|\n|[^\x1b\r\n]+", text):
            if piece == "\n":
                out.append(line)
                line = ""
            elif piece == "\r":
                continue
            elif piece.endswith("K"):
                line = ""
            elif piece.endswith("A"):
                line = out.pop() if out else ""
            else:
                line = piece
        return [entry for entry in (*out, line) if entry]


def _status(phase: str, step: int = 0) -> Status:
    return Status(phase=phase, step=step, since=time.time())


RUN = ("starting", "settle", "timing", "done")


def test_events_stay_and_the_runs_own_lines_go() -> None:
    screen = _Screen(terminal=True)
    with Progress(screen.console) as progress:
        for number in (1, 2):
            progress.event(f"trial 1 of loader-workers: pair {number} of at least 3 (3:40 of 20:00 used)")
            for phase in RUN:
                progress.show(_status(phase))
        progress.event("kept: 2.10× (2.05–2.16), predicted 1.9–2.4×")
    assert screen.lines == [
        "trial 1 of loader-workers: pair 1 of at least 3 (3:40 of 20:00 used)",
        "trial 1 of loader-workers: pair 2 of at least 3 (3:40 of 20:00 used)",
        "kept: 2.10× (2.05–2.16), predicted 1.9–2.4×",
    ]


def test_in_a_log_file_events_are_all_that_a_session_tells() -> None:
    screen = _Screen(terminal=False)
    with Progress(screen.console) as progress:
        for phase in RUN:
            progress.show(_status(phase))
        progress.event("trial 1 of loader-workers: pair 1 of at least 3")
        for phase in RUN:
            progress.show(_status(phase))
        progress.event("reverted: no gain")
    assert "\x1b" not in screen.written
    lines = screen.written.splitlines()
    assert len(lines) == 4 + 2
    assert lines[-2:] == ["advisor: trial 1 of loader-workers: pair 1 of at least 3", "advisor: reverted: no gain"]


def test_in_a_log_file_a_phase_is_told_once() -> None:
    screen = _Screen(terminal=False)
    with Progress(screen.console) as progress:
        for step in range(5):
            progress.show(_status("settle", step))
    assert len(screen.written.splitlines()) == 1


def test_nothing_is_written_while_steps_are_timed() -> None:
    screen = _Screen(terminal=True)
    with Progress(screen.console) as progress:
        progress.show(_status("settle"))
        progress.show(_status("timing"))
        assert "timing undisturbed steps" in screen.lines[-1]
        written = screen.written
        time.sleep(2.2)  # a second is how often a moving line would be drawn
        progress.show(_status("timing", 3))
        assert screen.written == written
        progress.show(_status("profile"))
        assert screen.written != written
    assert screen.lines == []


def test_the_moving_line_is_redrawn_once_a_second() -> None:
    screen = _Screen(terminal=True)
    with Progress(screen.console) as progress:
        progress.show(_status("settle"))
        before = screen.written.count("settle")
        time.sleep(2.5)
        assert screen.written.count("settle") - before <= 3


def test_nothing_is_in_the_way_of_a_question() -> None:
    screen = _Screen(terminal=True)
    with Progress(screen.console) as progress:
        for phase in ("settle", "timing"):
            progress.show(_status(phase))
            progress.pause()
            assert screen.lines == []
            written = screen.written
            time.sleep(1.2)
            assert screen.written == written
        progress.show(_status("timing"))
        assert "timing" in screen.lines[-1]


def test_a_narrow_terminal_keeps_the_still_line_on_one_line() -> None:
    screen = _Screen(terminal=True, width=30)
    with Progress(screen.console) as progress:
        progress.show(_status("timing"))
        assert "\n" not in screen.written
        assert len(screen.lines[-1]) < 30


@pytest.mark.parametrize("terminal", [False, True])
def test_texts_of_events_neither_become_markup_nor_move_the_cursor(terminal: bool) -> None:
    screen = _Screen(terminal)
    with Progress(screen.console) as progress:
        progress.event("failed: [bold]no[/bold] \x1b[2J\x07[/x]")
    assert "failed: [bold]no[/bold] [2J[/x]" in screen.written
    assert "\x1b[2J" not in screen.written
