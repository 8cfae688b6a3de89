"""Writes an accepted patch to the user's files: nothing else of the program changes them."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from advisor.edit import Edit
from advisor.errors import AdvisorError


def write(edit: Edit, patch: Path | None = None) -> list[str]:
    """Write the edit's new contents; returns the paths written.

    Each file changes at once or not at all, and none does when any of them is no longer what the edit was made from.
    Links stay links, and a file keeps its mode and owner (other hard links to it keep the old text). Raises
    AdvisorError, naming `patch` as the other way.
    """
    if len({os.path.realpath(path) for path in edit.before}) < len(edit.before):
        raise AdvisorError(f"{', '.join(edit.before)}: two of these are one file; write the changes by hand.")
    otherwise = f"; the patch is in {patch}, for `git apply`" if patch is not None else ""
    for path, before in edit.before.items():
        try:
            with open(path, "rb") as file:
                now = file.read()
        except OSError as error:
            raise AdvisorError(
                f"{path} cannot be read any more ({error.strerror or error}): nothing was written{otherwise}."
            ) from error
        if now != before.encode():
            raise AdvisorError(f"{path} was changed since it was read: nothing was written{otherwise}.")
    written: list[str] = []
    for path, contents in edit.contents.items():
        try:
            _replace(path, contents)
        except OSError as error:
            done = f"written before it: {', '.join(written)}" if written else "nothing was written"
            raise AdvisorError(f"{path} cannot be written ({error.strerror or error}): {done}{otherwise}.") from error
        written.append(path)
    return written


def _replace(path: str, contents: bytes) -> None:
    target = os.path.realpath(path)  # a link stays one
    status = os.stat(target)
    if not os.access(target, os.W_OK):
        raise PermissionError(13, "it is read-only")  # replacing it would go through, and ignore its owner's wish
    handle, temporary = tempfile.mkstemp(prefix=f".{os.path.basename(target)}.", dir=os.path.dirname(target))
    try:
        with open(handle, "wb") as file:
            file.write(contents)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, stat.S_IMODE(status.st_mode))
        with contextlib.suppress(PermissionError):  # only root may give files away
            os.chown(temporary, status.st_uid, status.st_gid)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
