"""The picture of one step: true to the trace, and small whatever the trace's size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from advisor.report.picture import MOST_BOXES, Lane, Picture, draw
from advisor.trace.reader import read_trace


def _picture(path: Path, **options: int) -> Picture:
    picture = draw(read_trace(path), **options)  # type: ignore[arg-type]
    assert picture is not None
    return picture


def _lane(picture: Picture, name: str) -> Lane:
    return next(lane for lane in picture.lanes if lane.name == name)


def _events(lane: Lane) -> int:
    return sum(lane.count)


def test_it_shows_the_step_nearest_to_the_mean(shared_traces: Path) -> None:
    trace = read_trace(shared_traces / "v100-resnet50-workers0.pt.trace.json.gz")
    durations = trace.steps.end - trace.steps.start
    picture = draw(trace)
    assert picture is not None
    assert abs(picture.duration_ns - durations.mean()) == np.abs(durations - durations.mean()).min()


def test_no_event_of_the_step_is_lost_by_merging(shared_traces: Path) -> None:
    path = shared_traces / "v100-resnet50-workers0.pt.trace.json.gz"
    full, small = _picture(path, most_boxes=10**9), _picture(path, most_boxes=300)
    assert full.merged_below_ns == 0
    assert full.boxes == full.events
    assert small.boxes <= 300
    for lane, merged in zip(full.lanes, small.lanes, strict=True):
        assert _events(lane) == _events(merged)


def test_boxes_are_bounded_whatever_the_trace(shared_traces: Path) -> None:
    for path in shared_traces.glob("*.json.gz"):
        trace = read_trace(path)
        for limit in (50, MOST_BOXES):
            picture = draw(trace, most_boxes=limit)
            # Rows that hold anything keep a box or two each, however small the bound.
            rows = sum(lane.rows for lane in picture.lanes) if picture else 0
            assert picture is None or picture.boxes <= max(limit, 2 * rows), path.name


def test_boxes_stay_inside_the_step_and_never_overlap_in_their_row(shared_traces: Path) -> None:
    for path in shared_traces.glob("*.json.gz"):
        picture = draw(read_trace(path))
        for lane in picture.lanes if picture else []:
            start, duration, row = (np.array(column) for column in (lane.start, lane.duration, lane.row))
            assert (start >= 0).all()
            assert (start + duration <= picture.duration_ns).all()  # type: ignore[union-attr]
            for each in range(lane.rows):
                mine = np.flatnonzero(row == each)
                ends = np.maximum.accumulate((start + duration)[mine])
                assert (start[mine][1:] >= ends[:-1]).all(), (path.name, lane.name)


def test_kernels_of_the_step_are_where_the_trace_has_them(shared_traces: Path) -> None:
    trace = read_trace(shared_traces / "h100-vit-inference.json.gz")
    picture = draw(trace, most_boxes=10**9)
    assert picture is not None
    lane = next(lane for lane in picture.lanes if lane.name.startswith("stream"))
    index = int(np.argmax(trace.kernels.end - trace.kernels.start))
    step = int(trace.steps.start[0])
    at = lane.start.index(int(trace.kernels.start[index]) - step)
    assert lane.duration[at] == int(trace.kernels.end[index] - trace.kernels.start[index])
    assert trace.name(int(trace.kernels.name[index])).startswith(picture.names[lane.label[at]])


def test_the_loader_has_a_lane_of_its_own(shared_traces: Path) -> None:
    picture = _picture(shared_traces / "v100-resnet50-workers0.pt.trace.json.gz")
    loader = _lane(picture, "loader")
    assert sum(loader.duration) / picture.duration_ns == pytest.approx(0.4, abs=0.1)
    assert {picture.families[family] for family in loader.family} == {"loader"}


def test_backward_runs_on_the_autograd_thread(shared_traces: Path) -> None:
    picture = _picture(shared_traces / "v100-resnet50-workers0.pt.trace.json.gz")
    lane = _lane(picture, "autograd thread")
    top = {picture.families[family] for family, row in zip(lane.family, lane.row, strict=True) if row == 0}
    assert top == {"backward"}


def test_collectives_are_told_from_kernels(shared_traces: Path) -> None:
    picture = _picture(shared_traces / "a100-ddp-training.json.gz")
    for lane in picture.lanes:
        for label, family in zip(lane.label, lane.family, strict=True):
            if picture.names[label].startswith("ncclKernel"):
                assert picture.families[family] == "collective"


def test_a_trace_without_steps_is_shown_whole_and_says_so(shared_traces: Path) -> None:
    picture = _picture(shared_traces / "mi300x-vllm-decode-graphs.json.gz")
    assert "no steps" in picture.title
    assert any(lane.name.startswith("stream") for lane in picture.lanes)


def test_idle_gaps_get_a_lane_coloured_by_their_cause(shared_traces: Path) -> None:
    trace = read_trace(shared_traces / "v100-resnet50-workers0.pt.trace.json.gz")
    nearest = np.argmin(np.abs((trace.steps.end - trace.steps.start) - (trace.steps.end - trace.steps.start).mean()))
    begin = int(trace.steps.start[nearest])
    picture = draw(trace, gaps=((begin + 1000, begin + 5_000_000, "idle_loader"), (begin - 10, begin - 5, "idle_sync")))
    assert picture is not None
    lane = _lane(picture, "device idle")
    assert [picture.names[label] for label in lane.label] == ["idle: waiting for data"]
    assert [picture.families[family] for family in lane.family] == ["loader"]
