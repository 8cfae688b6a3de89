"""Parquet files hold what the tables hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from advisor.errors import AdvisorError
from advisor.trace import Trace
from advisor.trace.export import export_parquet

polars = pytest.importorskip("polars")


def test_tables_come_back_with_names_written_out(
    document: dict[str, Any], read: Callable[[Any], Trace], tmp_path: Path
) -> None:
    trace = read(document)
    written = export_parquet(trace, tmp_path / "new" / "folder")
    assert {path.stem for path in written} == {
        "operators", "annotations", "steps", "kernels", "copies", "runtime", "device_annotations", "overheads",
        "python", "syncs", "memory",
    }  # fmt: skip
    kernels = polars.read_parquet(tmp_path / "new" / "folder" / "kernels.parquet")
    assert kernels["name"].to_list() == ["empty", "gemm"]
    assert kernels["start"].to_list() == trace.kernels.start.tolist()
    assert kernels["tid"].to_list() == ["7", "7"]
    operators = polars.read_parquet(tmp_path / "new" / "folder" / "operators.parquet")
    assert operators["shapes"].to_list() == ["[[64,32],[32,10]]"]
    assert operators["values"].to_list() == [None]
    copies = polars.read_parquet(tmp_path / "new" / "folder" / "copies.parquet")
    assert copies["kind"].to_list() == ["HtoD", "Memset"]


def test_a_folder_that_cannot_be_made_is_said(
    document: dict[str, Any], read: Callable[[Any], Trace], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AdvisorError, match="cannot write"):
        export_parquet(read(document), tmp_path / "file" / "x")
