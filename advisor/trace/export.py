"""A trace's tables as Parquet files, for whoever wants to query them with tools of their own."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from advisor.errors import USAGE, AdvisorError
from advisor.trace.tables import Trace

if TYPE_CHECKING:
    import polars

TABLES = (
    "operators", "annotations", "steps", "kernels", "copies", "runtime", "device_annotations", "overheads",
    "python", "syncs", "memory",
)  # fmt: skip
# Columns of codes into Trace.names: written as the strings they stand for, null where there is none.
_TEXTS = frozenset(("name", "kind", "shapes", "dtypes", "values"))


def export_parquet(trace: Trace, folder: str | os.PathLike[str]) -> list[Path]:
    """Writes ``<table>.parquet`` for each table, empty ones too, into `folder`, which is made; returns the files.

    Columns are those of :class:`Trace`, times in ns as ``start`` and ``end``; names are written out (as a dictionary,
    so that a name is stored once), and a lane as its ``pid`` and ``tid``. Raises AdvisorError (USAGE) where the folder
    cannot be written.
    """
    import polars

    names = polars.Series(trace.names, dtype=polars.Enum(trace.names))
    lanes = {part: _distinct(polars.Series([getattr(lane, part) for lane in trace.lanes])) for part in ("pid", "tid")}
    written: list[Path] = []
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
        for table in TABLES:
            rows = getattr(trace, table)
            columns: dict[str, polars.Series] = {}
            for column in rows.__dataclass_fields__:
                values = getattr(rows, column)
                if values is None:
                    continue
                if column in _TEXTS:
                    columns[column] = names.gather(polars.Series(values).set(polars.Series(values < 0), None))
                elif column == "lane":
                    columns |= {part: texts.gather(values) for part, texts in lanes.items()}
                else:
                    columns[column] = polars.Series(values)
            written.append(target / f"{table}.parquet")
            polars.DataFrame(columns).write_parquet(written[-1])
    except OSError as error:
        raise AdvisorError(f"cannot write to {target}: {error}", USAGE) from None
    return written


def _distinct(texts: polars.Series) -> polars.Series:
    """The same texts, each stored once."""
    import polars

    strings = texts.cast(polars.String)
    once: polars.Series = strings.cast(polars.Enum(strings.unique(maintain_order=True)))
    return once


def folder_name(path: str) -> str:
    """What to call the folder of a trace's tables: the name of its file, without what every trace is called."""
    name = re.split(r"[/\\]", path.rstrip("/\\"))[-1]
    return re.sub(r"(\.pt)?(\.trace)?\.json(\.gz|\.zst)?$", "", name) or "trace"
