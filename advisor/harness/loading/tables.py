"""What a dataset asks of a library: pandas' tables, NumPy's archives, convolutions of NumPy's."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

_NUMBERS, _DATES = tuple("biuf"), tuple("mM")  # kinds of NumPy's types
_ARCHIVES = ("numpy.lib._npyio_impl", "numpy.lib.npyio")  # since NumPy 2, and before
_MOST_MEMBERS = 200
_NUMERIC, _CONVOLVE = ("numpy._core.numeric", "numpy.core.numeric"), ("convolve", "correlate")  # likewise


def library_of(frame: FrameType) -> str:
    """What is asked where this frame of Python begins: "pandas", "npz" (a member of an archive), "convolve", or ""."""
    name = frame.f_globals.get("__name__")
    if not isinstance(name, str):
        return ""
    if name in _ARCHIVES:
        return "npz" if frame.f_code.co_name == "__getitem__" else ""
    if name in _NUMERIC:
        return "convolve" if frame.f_code.co_name in _CONVOLVE else ""
    return "pandas" if name.startswith("pandas.") else ""


def opens_archive(frame: FrameType) -> int:
    """The identity of the archive that is opened there; 0 where none is."""
    opens = frame.f_code.co_name == "__init__" and frame.f_globals.get("__name__") in _ARCHIVES
    return id(frame.f_locals.get("self")) if opens else 0


def table_of(frame: FrameType) -> Any:
    """The DataFrame, or the column of one, whose method or indexer runs; None for anything else, a row, say."""
    found: Any = frame.f_locals.get("self")
    found = getattr(found, "obj", found) if type(found).__name__.endswith("Indexer") else found
    if type(found).__name__ == "Series":
        return found if getattr(found.index.dtype, "kind", "") in "iu" else None
    return found if type(found).__name__ == "DataFrame" else None


def facts(table: Any) -> set[str]:
    """What :attr:`..layout.Loader.frames` says of a table of pandas."""
    whole = type(table).__name__ == "DataFrame"
    types = dict(table.dtypes) if whole else {table.name: table.dtype}
    kinds = {name: getattr(each, "kind", "") for name, each in types.items()}
    found = {f"date {name}" for name, kind in kinds.items() if kind in _DATES}
    if len({str(each) for each in types.values()}) > 1 and all(kind in _NUMBERS for kind in kinds.values()):
        found.add("upcast")
    index = table.index
    if type(index).__name__ != "RangeIndex" or index.start != 0 or index.step != 1:
        found.add("labels")
    return found


def row_bytes(archive: Any, member: Any) -> float:
    """Bytes of all members of an archive, as they are in memory, for each row of one of them; 0 where it has none."""
    rows = len(member) if getattr(member, "ndim", 0) else 0
    return float(sum(each.file_size for each in archive.zip.infolist()) / rows) if rows else 0.0


def of_numbers(archive: Any) -> bool:
    """Whether all members of an archive are arrays of no objects: others NumPy reads only where it is told to."""
    members = archive.zip.infolist()
    return len(members) <= _MOST_MEMBERS and all(_of_numbers(archive.zip, each) for each in members)


def _of_numbers(archive: Any, member: Any) -> bool:
    """Whether a member of an archive is an array of no objects, by what stands in front of its numbers."""
    format_of = sys.modules["numpy"].lib.format
    try:
        with archive.open(member) as file:
            version = format_of.read_magic(file)
            read = format_of.read_array_header_1_0 if version == (1, 0) else format_of.read_array_header_2_0
            return not read(file)[2].hasobject
    except Exception:  # it may be damaged, or no array at all
        return False


def lengths_of(frame: FrameType) -> tuple[int, int]:
    """The lengths of the two signals that NumPy convolves there, the longer one first; zeros for anything else."""
    sizes = sorted(int(getattr(frame.f_locals.get(name), "size", 0)) for name in ("a", "v"))
    return sizes[1], sizes[0]
