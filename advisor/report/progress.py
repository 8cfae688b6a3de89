"""The line that moves while the script runs: which window, which step, how long a step takes."""

from __future__ import annotations

import time

from rich.console import Console
from rich.status import Status as Spinner

from advisor.harness.layout import Status

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
    """Shows the status on a terminal; where there is none, a line whenever the phase changes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._spinner: Spinner | None = None
        self._phase = ""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.pause()

    def pause(self) -> None:
        """Take the moving line away, for a question to the user; the next status brings it back."""
        if self._spinner is not None:
            self._spinner.stop()
            self._spinner = None

    def event(self, text: str) -> None:
        """A line that stays, above the moving one."""
        self.pause()
        self._phase = ""
        self._console.print(text if self._console.is_terminal else f"advisor: {text}", highlight=False, soft_wrap=True)

    def show(self, status: Status) -> None:
        """Called at most once a second; in the timing window the line stands still, without a spinner."""
        changed, self._phase = status.phase != self._phase, status.phase
        if not self._console.is_terminal:
            if changed:
                self._console.print(f"advisor: {sentence(status)}", highlight=False, soft_wrap=True)
            return
        if status.phase == "timing":
            if self._spinner is not None:
                self._spinner.stop()
                self._spinner = None
            if changed:
                self._console.print(sentence(status), style="dim", highlight=False)
            return
        if self._spinner is None:
            # One refresh a second is all that is ever redrawn: the script may need every core.
            self._spinner = Spinner(sentence(status), console=self._console, refresh_per_second=1)
            self._spinner.start()
        self._spinner.update(sentence(status))
