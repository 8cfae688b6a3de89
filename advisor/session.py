"""``Session``: the folder of one ``advisor profile``: its runs, its findings, its patch."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from advisor.errors import AdvisorError
from advisor.findings import Findings
from advisor.launch import Command

BASELINE = "baseline"
SESSION_JSON = "session.json"
PATCH = "fixes.patch"


@dataclass(frozen=True)
class Session:
    """One session's folder. Trials, beside ``baseline``, are runs as well."""

    folder: Path

    @classmethod
    def create(cls, command: Command, output: Path) -> Session:
        """A new folder ``<script>-<n>`` below `output`, with what was asked for in it.

        Raises AdvisorError when it cannot be made.
        """
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", command.name) or "script"
        try:
            output.mkdir(parents=True, exist_ok=True)
            ignore = output / ".gitignore"
            if not ignore.exists():
                ignore.write_text("*\n")
            matches = (re.fullmatch(rf"{re.escape(name)}-(\d+)", path.name) for path in output.iterdir())
            number = max((int(match[1]) for match in matches if match), default=0) + 1
            while True:  # another session may start at the same moment
                folder = output / f"{name}-{number}"
                try:
                    folder.mkdir()
                    break
                except FileExistsError:
                    number += 1
            session = cls(folder.resolve())
            about = {
                "script": command.script,
                "module": command.module,
                "argv": list(command.argv),
                "python": command.python,
                "cwd": os.path.abspath(command.cwd),
            }
            (session.folder / SESSION_JSON).write_text(json.dumps(about, indent=2) + "\n")
        except OSError as error:
            raise AdvisorError(
                f"the folder {output} cannot be written ({error.strerror or error}): choose another with --output."
            ) from error
        return session

    @property
    def baseline_dir(self) -> Path:
        return self.folder / BASELINE

    def write_patch(self, document: Findings) -> Path | None:
        """All proposed diffs, one after another, for reading; each alone applies with ``git apply``."""
        edits = [finding for finding in document.findings if finding.fix.diff]
        parts = [f"# {finding.rank}. {finding.title}\n{finding.fix.diff}" for finding in edits]
        if not parts:
            return None
        path = self.folder / PATCH
        # Bytes: a diff of a file with CRLF line ends must keep them.
        path.write_bytes("\n".join(parts).encode("utf-8", "surrogateescape"))
        return path
