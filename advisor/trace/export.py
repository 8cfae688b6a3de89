"""A trace's tables as Parquet files, for whoever wants to query them with tools of their own."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from advisor.errors import USAGE, AdvisorError
from advisor.trace.tables import Trace

TABLES = (
    "operators", "annotations", "steps", "kernels", "copies", "runtime", "device_annotations", "overheads",
    "python", "syncs", "memory",
)  # fmt: skip
# Columns of codes into Trace.names: written as the strings they stand for, null where there is none.
_TEXTS = frozenset(("name", "kind", "shapes", "dtypes"))


def export_parquet(trace: Trace, folder: str | os.PathLike[str]) -> list[Path]:
    """Writes ``<table>.parquet`` for each table that has rows into `folder`, which is made; returns the files.

    Columns are those of :class:`Trace`, times in ns as ``start`` and ``end``; names are written out, and a lane
    as its ``pid`` and ``tid``. Raises AdvisorError (USAGE) where the folder cannot be written.
    """
    import polars

    written: list[Path] = []
    names = polars.Series(trace.names, dtype=polars.String)
    pids = polars.Series([lane.pid for lane in trace.lanes], dtype=polars.String)
    tids = polars.Series([lane.tid for lane in trace.lanes], dtype=polars.String)
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
        for table in TABLES:
            rows = getattr(trace, table)
            columns: dict[str, polars.Series] = {}
            for column in rows.__dataclass_fields__:
                values = getattr(rows, column)
                if column in _TEXTS:
                    codes = polars.Series(np.maximum(values, 0))
                    texts = names.gather(codes) if len(names) else names
                    columns[column] = texts.set(polars.Series(values < 0), None)
                elif column == "lane":
                    columns["pid"], columns["tid"] = pids.gather(values), tids.gather(values)
                else:
                    columns[column] = polars.Series(values)
            frame = polars.DataFrame(columns)
            if frame.height:
                written.append(target / f"{table}.parquet")
                frame.write_parquet(written[-1])
    except OSError as error:
        raise AdvisorError(f"cannot write to {target}: {error}", USAGE) from None
    return written
