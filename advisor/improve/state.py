"""``State``: the script with the fixes kept so far: its sources, its command line, its environment."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from advisor.diagnose import Fix
from advisor.edit import Edit, Source, Sources
from advisor.edit.sources import decode, read_source
from advisor.errors import AdvisorError
from advisor.launch import Command
from advisor.rule import Argument, Variable


@dataclass(frozen=True)
class State:
    """A version of the user's script that exists only in memory: files on disk stay as they are.

    ``before`` and ``after`` hold the edited files by absolute path, as they are on disk and as patched.
    """

    command: Command
    sources: Sources = field(default_factory=Sources)
    before: Mapping[str, Source] = field(default_factory=dict)
    after: Mapping[str, Source] = field(default_factory=dict)

    @classmethod
    def restored(cls, command: Command, overlay: Mapping[str, str]) -> State:
        """The state that :meth:`write_overlay` wrote for a run of an earlier process. Raises AdvisorError."""
        before = {path: read_source(path) for path in overlay}
        try:
            after = {path: decode(path, Path(file).read_bytes()) for path, file in overlay.items()}
        except OSError as error:
            raise AdvisorError(f"{error.filename} cannot be read ({error.strerror}): start a new session.") from error
        texts = {path: source.text for path, source in after.items()}
        return cls(command, Sources().patched(texts), before, after)

    def apply(self, fix: Fix) -> State:
        """This state with one more fix. Raises AdvisorError for advice, which nothing can be tried of."""
        if isinstance(fix, Edit):
            # What an earlier fix edited keeps its first text: the patch is against the files on disk.
            before = {**fix.before, **self.before}
            after = {**self.after, **fix.after}
            return replace(self, sources=self.sources.patched(fix.texts), before=before, after=after)
        if isinstance(fix, Argument):
            argv = with_options(self.command.argv, fix.options)
            return replace(self, command=replace(self.command, argv=argv))
        if isinstance(fix, Variable):
            environment = {**self.command.environment, **fix.values}
            return replace(self, command=replace(self.command, environment=environment))
        raise AdvisorError(f"this is advice, not a change that could be tried: {fix.text}")

    @property
    def fingerprint(self) -> dict[str, object]:
        """What tells this version of the script from others: its arguments, variables, and patched files' digests."""
        edit = self.edit
        files = {path: digest(data) for path, data in edit.contents.items()} if edit else {}
        return {
            "argv": list(self.command.argv),
            "environment": dict(self.command.environment),
            "python": self.command.python,
            "files": files,
        }

    @property
    def edit(self) -> Edit | None:
        """All edits as one, against the files on disk; None when no file changes."""
        changed = {path: source for path, source in self.after.items() if source.text != self.before[path].text}
        return Edit({path: self.before[path] for path in changed}, changed, "") if changed else None

    def diff_from(self, earlier: State, root: str) -> str:
        """What this state changes in the files of an earlier one, as a unified diff."""
        changed = {path: new for path, new in self.after.items() if earlier.sources.text(path) != new.text}
        return Edit({path: earlier.sources.source(path) for path in changed}, changed).diff(root)

    def write_overlay(self, folder: Path) -> dict[str, str]:
        """Put the patched texts into `folder`; returns absolute path → file holding its patched text."""
        edit = self.edit
        if edit is None:
            return {}
        folder.mkdir(parents=True, exist_ok=True)
        overlay = {}
        for number, (path, contents) in enumerate(sorted(edit.contents.items()), 1):
            file = folder / f"{number}-{os.path.basename(path)}"
            file.write_bytes(contents)
            overlay[path] = str(file)
        return overlay

    def invocation(self, original: Command) -> str:
        """The command line that runs the script with its arguments and variables; empty when they are `original`'s."""
        if self.command == original:
            return ""
        variables = [
            f"{name}={shlex.quote(value)}"
            for name, value in self.command.environment.items()
            if original.environment.get(name) != value
        ]
        script = self.command.script
        if not self.command.module:
            relative = os.path.relpath(script, self.command.cwd)
            script = script if relative.startswith("..") else relative
        words = ["python", *(["-m"] if self.command.module else []), script, *self.command.argv]
        return " ".join([*variables, shlex.join(words)])


def with_options(argv: Iterable[str], options: Mapping[str, str]) -> tuple[str, ...]:
    """`argv` with each option set to its value: in its place where it is there already, else behind all others.

    An empty value is a flag. ``--name=value`` is known as well as ``--name value``.
    """
    words = list(argv)
    for option, value in options.items():
        places = [at for at, word in enumerate(words) if word == option or word.startswith(option + "=")]
        if not places:
            end = words.index("--") if "--" in words else len(words)  # behind it there are no options
            words[end:end] = [option, value] if value else [option]
            continue
        at = places[-1]  # the last one counts to argparse
        if not value:
            continue
        if "=" in words[at]:
            words[at] = f"{option}={value}"
        else:
            words[at + 1 : at + 2] = [value]
    return tuple(words)


def digest(contents: bytes) -> str:
    """SHA-256, as text."""
    return hashlib.sha256(contents).hexdigest()


def digest_of(path: str) -> str:
    """The digest of a file's contents; empty when it cannot be read."""
    try:
        return digest(Path(path).read_bytes())
    except OSError:
        return ""
