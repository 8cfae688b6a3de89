"""A picture of one real step: lanes of boxes, small enough to travel inside the page.

The number of boxes is bounded: where a step has more events than that, those shorter than a cell of time are
merged with their neighbours in the same cell, and the cell is the smallest one that meets the bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np
from numpy.typing import NDArray

from advisor.report.lanes import Boxes, Painter
from advisor.trace.tables import Trace

# 4,000 boxes are about 100 KB of JSON and are drawn in a few milliseconds, so that zooming stays smooth.
MOST_BOXES = 4000
LONGEST_NAME = 240  # characters; C++ template names run to thousands


class Lane(msgspec.Struct, frozen=True):
    """Boxes of one thread, stream or engine, as columns of one length. ``start`` counts ns from the step's start."""

    name: str
    rows: int
    start: list[int]
    duration: list[int]
    row: list[int]
    label: list[int]  # index into Picture.names
    family: list[int]  # index into Picture.families
    count: list[int]  # events in the box: 1, or more where they were merged


class Picture(msgspec.Struct, frozen=True):
    """One step. ``title`` says which; ``merged_below_ns`` is 0 where every event has a box of its own."""

    title: str
    duration_ns: int
    names: list[str]
    families: list[str]
    lanes: list[Lane]
    events: int
    merged_below_ns: int
    left_out: list[str]

    @property
    def boxes(self) -> int:
        return sum(len(lane.start) for lane in self.lanes)


def draw(
    trace: Trace,
    gaps: tuple[tuple[int, int, str], ...] = (),
    most_boxes: int = MOST_BOXES,
    steps: Sequence[tuple[int, int, int]] = (),
) -> Picture | None:
    """The picture of the step that is nearest to the mean one, or of the whole trace where it has no steps.

    ``steps`` are (number, start ns, end ns), where they are others than the trace's own. ``gaps`` are idle times of the
    device as (start ns, end ns, the breakdown's class), drawn in a lane of their own. None when the trace has nothing
    to draw.
    """
    window = _typical_step(trace, steps)
    if window is None:
        return None
    title, begin, end = window
    painter = Painter(trace, begin, end)
    lanes = [
        *painter.loader(),
        *painter.threads(),
        *painter.idle(gaps),
        *painter.copies(),
        *painter.streams(),
    ]
    lanes = [lane for lane in lanes if len(lane.start)]
    if not lanes:
        return None
    cell = _cell_that_fits(lanes, end - begin, most_boxes)
    codes: dict[int, int] = {}
    drawn = [_merged(lane, cell, begin, codes) for lane in lanes]
    names = [painter.text(code)[:LONGEST_NAME] for code in codes]
    return Picture(
        title=title,
        duration_ns=end - begin,
        names=names,
        families=painter.families,
        lanes=drawn,
        events=sum(len(lane.start) for lane in lanes),
        merged_below_ns=cell,
        left_out=painter.left_out,
    )


def _typical_step(trace: Trace, steps: Sequence[tuple[int, int, int]]) -> tuple[str, int, int] | None:
    """(title, start, end) of the step whose duration is nearest to the mean."""
    if steps:
        mean = sum(end - start for _, start, end in steps) / len(steps)
        number, start, end = min(steps, key=lambda each: abs(each[2] - each[1] - mean))
        return f"step {number}", start, end
    if len(trace.steps):
        durations = trace.steps.end - trace.steps.start
        index = int(np.argmin(np.abs(durations - durations.mean())))
        if durations[index] > 0:
            named = trace.name(int(trace.steps.name[index])).partition("#")[2] or str(index)
            return f"step {named}", int(trace.steps.start[index]), int(trace.steps.end[index])
    tables = [table for table in (trace.kernels, trace.copies, trace.operators, trace.annotations) if len(table)]
    if not tables:
        return None
    begin = min(int(table.start.min()) for table in tables)
    end = max(int(table.end.max()) for table in tables)
    return ("the whole trace (it marks no steps)", begin, end) if end > begin else None


def _firsts(lane: Boxes, cell: int) -> NDArray[np.intp]:
    """First of each group when events shorter than `cell` that start in one cell and row are merged."""
    alone = np.ones(len(lane.start), dtype=bool)
    if cell > 0:
        short = lane.end - lane.start < cell
        same = (lane.start[1:] // cell == lane.start[:-1] // cell) & (lane.row[1:] == lane.row[:-1])
        alone[1:] = ~(same & short[1:] & short[:-1])
    return np.flatnonzero(alone)


def _cell_that_fits(lanes: list[Boxes], duration: int, most_boxes: int) -> int:
    cell = 0
    while sum(len(_firsts(lane, cell)) for lane in lanes) > most_boxes and cell < duration:
        # From 1/65536 of the step, far below a pixel, in factors of two.
        cell = max(1, cell * 2 if cell else duration >> 16)
    return cell


def _merged(lane: Boxes, cell: int, begin: int, codes: dict[int, int]) -> Lane:
    start, end, first = lane.start, lane.end, _firsts(lane, cell)
    bounds = np.append(first, len(start))
    longest = np.array(
        [low + int(np.argmax(end[low:high] - start[low:high])) for low, high in pairwise(bounds.tolist())],
        dtype=np.int64,
    )
    begins = np.minimum.reduceat(start, first)
    ends = np.maximum.reduceat(end, first)
    return Lane(
        name=lane.name,
        rows=int(lane.row.max()) + 1,
        start=(begins - begin).tolist(),
        duration=(ends - begins).tolist(),
        row=lane.row[first].tolist(),
        label=[codes.setdefault(int(code), len(codes)) for code in lane.label[longest]],
        family=lane.family[longest].tolist(),
        count=np.diff(bounds).tolist(),
    )
