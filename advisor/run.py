"""``Run``: one run folder as an object; everything in it is read when first asked for."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec

from advisor.errors import BAD_TRACE, USAGE, AdvisorError
from advisor.harness import layout
from advisor.harness.layout import RunRecord
from advisor.trace.tables import Trace


@dataclass(frozen=True, eq=False)
class Run:
    """One run: its folder, its record (``run.json``), and its traces.

    Open one with :meth:`load`. ``traces`` and ``detail_traces`` are absolute paths, one per rank, rank 0 first; they
    may be empty (a script that was over before the profile window).
    """

    folder: Path
    record: RunRecord

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Run:
        """Read ``run.json`` of `folder`.

        Raises AdvisorError when the folder is no run, or its record cannot be read or was written by a newer version.
        """
        path = Path(folder)
        if not path.is_dir():
            raise AdvisorError(f"{path} is not a folder: name the run folder that `advisor profile` wrote.", USAGE)
        file = path / layout.RUN_JSON
        try:
            data = file.read_bytes()
        except FileNotFoundError:
            raise AdvisorError(
                f"{path} holds no {layout.RUN_JSON}: it is not a run folder, or the run ended before it could say "
                "anything; profile the script again.",
                USAGE,
            ) from None
        except OSError as error:
            raise AdvisorError(f"cannot read {file}: {error.strerror or error}.", USAGE) from error
        return cls(path.resolve(), decode_record(data, str(file)))

    @cached_property
    def traces(self) -> tuple[Path, ...]:
        """Profile-window traces that exist, as the record lists them."""
        return self._existing(self.record.traces)

    @cached_property
    def detail_traces(self) -> tuple[Path, ...]:
        """Detail-window traces that exist, as the record lists them."""
        return self._existing(self.record.details)

    @cached_property
    def trace(self) -> Trace | None:
        """The profile window of this rank (the first trace); None when the run has none."""
        return self._read(self.traces[0]) if self.traces else None

    @cached_property
    def detail(self) -> Trace | None:
        """The detail window of this rank; None when the run has none."""
        return self._read(self.detail_traces[0]) if self.detail_traces else None

    @cached_property
    def other_traces(self) -> tuple[Trace, ...]:
        """The profile windows of the other ranks."""
        return tuple(self._read(path) for path in self.traces[1:])

    def _existing(self, names: list[str]) -> tuple[Path, ...]:
        paths = (self.folder / name for name in names)
        return tuple(path for path in paths if path.is_file())

    @staticmethod
    def _read(path: Path) -> Trace:
        from advisor.trace.reader import read_trace  # here: the reader and its decoders load only when needed

        return read_trace(path)


def decode_record(data: bytes, where: str = layout.RUN_JSON) -> RunRecord:
    """Decode ``run.json``. Unknown fields are ignored (a newer writer), missing ones take their defaults.

    Numbers that JSON spells as another type (``1`` for a float) are taken, and NaN (a diverged loss), as Python's json
    writes it. Raises AdvisorError otherwise.
    """
    try:
        try:
            record = msgspec.json.decode(data, type=RunRecord, strict=False)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            record = msgspec.convert(json.loads(data), RunRecord, strict=False)
    except (msgspec.ValidationError, ValueError, RecursionError) as error:  # JSON errors are ValueErrors
        raise AdvisorError(
            f"{where} cannot be read ({error}): it is damaged or was not written by advisor; profile the script again.",
            BAD_TRACE,
        ) from error
    if record.schema > layout.SCHEMA:
        raise AdvisorError(
            f"{where} was written by a newer advisor (schema {record.schema}, this one knows {layout.SCHEMA}): "
            "upgrade advisor.",
            USAGE,
        )
    return record
