"""The one exception for what users can cause, and the exit statuses."""

from __future__ import annotations

OK = 0
SCRIPT_FAILED = 1
USAGE = 2
NO_STEP = 3
BAD_TRACE = 4
FAIL_ON = 5
BUG = 70
TIME_LIMIT = 124
INTERRUPTED = 130


class AdvisorError(Exception):
    """Something a user can mend: printed as one line, what happened and what to do, without a traceback.

    ``exit_status`` is what the command ends with. ``detail`` holds lines to print below it, a script's own
    traceback for example.
    """

    def __init__(self, message: str, exit_status: int = USAGE, detail: str = "") -> None:
        super().__init__(message)
        self.exit_status = exit_status
        self.detail = detail
