"""The line that moves while the script runs: which window, which step, how long a step takes."""

from __future__ import annotations

import time

from rich.console import Console
from rich.control import Control
from rich.segment import ControlType
from rich.status import Status as Spinner
from rich.text import Text

from advisor.harness.layout import Status
from advisor.report.lines import plain, print_unbroken

_WHAT = {
    "starting": "starting the script",
    "settle": "letting the step time settle",
    "timing": "timing undisturbed steps (nothing is redrawn meanwhile)",
    "profile": "profiling",
    "detail": "recording who launches what",
    "done": "measured; reading the trace",
}


def sentence(status: Status, now: float | None = None) -> str:
    """One line for a status; `now` is Unix time."""
    seconds = (time.time() if now is None else now) - status.since
    spent = f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
    if status.phase == "waiting" or (status.phase == "starting" and status.batches + status.forwards):
        return (
            f"waiting for the first step: {spent}, {status.optimizer_steps} optimizer steps, {status.batches} batches, "
            f"{status.forwards} forwards"
        )
    text = _WHAT.get(status.phase, status.phase)
    if status.phase == "starting":
        return f"{text}: {spent}"
    step = f", step {status.step}" if status.step else ""
    took = f", {status.step_s * 1e3:.1f} ms a step" if status.step_s else ""
    return f"{text}{step}{took}"


class Progress:
    """Shows the status on a terminal; where there is none, a line whenever the phase changes.

    A session of several runs tells its own events by :meth:`event`, a line each that stays. Where there is no terminal
    those are then all that is told: the phases of thirty runs would bury them.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._moves = console.is_terminal and not console.is_dumb_terminal
        self._spinner: Spinner | None = None
        self._still = False  # the cursor is at the end of a line that is to be taken away again
        self._phase = ""
        self._events = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.pause()

    def pause(self) -> None:
        """Take the moving line away, for a question to the user; the next status brings it back."""
        self._phase = ""
        if self._spinner is not None:
            self._spinner.stop()
            self._spinner = None
        if self._still:
            self._still = False
            self._console.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2)))

    def event(self, text: str) -> None:
        """Tell what happened in the session: a line that stays, above the moving one. For between two runs."""
        self._events += 1
        self.pause()
        line = plain(text, self._console)
        print_unbroken(line if self._moves else Text.assemble("advisor: ", line), self._console)

    def show(self, status: Status) -> None:
        """Called at most once a second; in the timing window the line stands still, without a spinner."""
        changed, phase = status.phase != self._phase, status.phase
        text = plain(sentence(status), self._console)
        if not self._moves:
            if changed and not self._events:
                print_unbroken(Text.assemble("advisor: ", text), self._console)
        elif phase == "timing":
            if changed:
                self.pause()
                text.truncate(self._console.width - 1, overflow="ellipsis")
                text.stylize("dim")
                self._console.print(text, end="", highlight=False, no_wrap=True)
                self._still = True
        elif self._spinner is None:
            self.pause()
            # One refresh a second is all that is ever redrawn: the script may need every core.
            self._spinner = Spinner(text, console=self._console, refresh_per_second=1)
            self._spinner.start()
        else:
            self._spinner.update(text)
        self._phase = phase
