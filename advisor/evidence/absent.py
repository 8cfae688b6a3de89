"""The trace of a run that was over before anything could be traced: every table empty."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

import numpy as np

from advisor.trace import tables
from advisor.trace.tables import Trace

Table = TypeVar("Table")

_DTYPES = {"Ints": np.int64, "Codes": np.int32, "NDArray[np.float64]": np.float64, "NDArray[np.bool_]": np.bool_}


def empty_table(table: type[Table]) -> Table:
    """One table of :mod:`advisor.trace.tables` without rows."""
    columns: dict[str, Any] = {
        field.name: np.empty(0, _DTYPES[str(field.type).removesuffix(" | None")])
        for field in fields(table)  # type: ignore[arg-type]
    }
    return table(**columns)


def empty_trace() -> Trace:
    """A trace without any event."""
    return Trace(
        path="",
        names=(),
        lanes=(),
        operators=empty_table(tables.Operators),
        annotations=empty_table(tables.Spans),
        steps=empty_table(tables.Spans),
        kernels=empty_table(tables.Kernels),
        copies=empty_table(tables.Copies),
        runtime=empty_table(tables.Spans),
        device_annotations=empty_table(tables.Spans),
        overheads=empty_table(tables.Spans),
        python=empty_table(tables.Spans),
        syncs=empty_table(tables.Spans),
        memory=empty_table(tables.MemoryEvents),
        flows={},
        devices=(),
        distributed={},
        base_ns=0,
    )
