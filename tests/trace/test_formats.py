"""What real programs write, and what they might: all of it becomes the same columns."""

from __future__ import annotations

import copy
import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from advisor.errors import AdvisorError
from advisor.trace import Trace, read_trace

Read = Callable[[Any], Trace]
Document = dict[str, Any]


def same(a: Trace, b: Trace) -> bool:
    """Whether two traces hold the same events (names by text, lanes aside)."""
    for table in ("operators", "annotations", "steps", "kernels", "copies", "runtime", "device_annotations",
                  "overheads", "python", "syncs", "memory"):  # fmt: skip
        left, right = getattr(a, table), getattr(b, table)
        for column in left.__dataclass_fields__:
            x, y = getattr(left, column), getattr(right, column)
            if column in ("name", "kind", "shapes", "dtypes"):
                if [a.name(code) for code in x] != [b.name(code) for code in y]:
                    return False
            elif not np.array_equal(x, y, equal_nan=column == "occupancy"):
                return False
    return True


def each(document: Document, category: str) -> list[dict[str, Any]]:
    return [event for event in document["traceEvents"] if event.get("cat") == category]


def test_every_table_is_filled(document: Document, read: Read) -> None:
    trace = read(document)
    assert trace.warnings == ()
    assert [trace.name(code) for code in trace.steps.name] == ["ProfilerStep#7"]
    assert [trace.name(code) for code in trace.annotations.name] == ["Optimizer.step#SGD.step"]
    assert [trace.name(code) for code in trace.device_annotations.name] == ["ProfilerStep#7"]
    assert (trace.steps.start[0], trace.steps.end[0]) == (1_000_500, 1_900_750)
    operators = trace.operators
    assert (operators.start[0], operators.end[0], operators.external[0]) == (1_200_125, 1_240_625, 5)
    assert (operators.sequence[0], trace.name(operators.shapes[0])) == (11, "[[64,32],[32,10]]")
    assert trace.name(operators.dtypes[0]) == '["float","long int"]'
    kernels = trace.kernels
    assert [trace.name(code) for code in kernels.name] == ["empty", "gemm"]  # sorted; duration 0 is kept
    assert kernels.end[1] - kernels.start[1] == 100_001
    assert (kernels.grid[1], kernels.block[1], kernels.occupancy[1]) == (8, 128, 50)
    assert (kernels.correlation.tolist(), kernels.external.tolist()) == ([-1, 77], [-1, 5])
    assert kernels.grid[0] == 0 and np.isnan(kernels.occupancy[0])
    assert trace.runtime.correlation.tolist() == [77]
    copies = trace.copies
    assert [trace.name(kind) for kind in copies.kind] == ["HtoD", "Memset"]
    assert (copies.bytes.tolist(), copies.pageable.tolist()) == ([4096, 64], [True, False])
    memory = trace.memory
    assert (memory.at[0], memory.bytes[0], memory.allocated[0], memory.reserved[0]) == (1_201_000, -512, 1024, 2048)
    assert (memory.device_type[0], memory.device[0]) == (1, 0)
    assert (len(trace.python), len(trace.overheads), len(trace.syncs)) == (1, 1, 1)
    assert trace.flows == {"ac2g": 2}
    assert trace.devices[0]["name"] == "NVIDIA H100" and trace.distributed["rank"] == 3
    assert (trace.base_ns, trace.host) == (1711964646000000000, "node-7")
    lane = trace.lanes[operators.lane[0]]
    assert (lane.pid, lane.tid, lane.process, lane.thread) == ("100", "100", "python3", "thread 100")


def test_layout_and_order_of_keys_do_not_matter(document: Document, read: Read) -> None:
    expected = read(document)
    events = document["traceEvents"]
    shuffled = {key: document[key] for key in reversed(document)}
    assert next(iter(shuffled)) == "traceEvents"
    first = {"traceEvents": events} | document
    backwards = [dict(reversed(event.items())) for event in events]
    for variant in (
        json.dumps(shuffled),
        json.dumps(first, indent=4),
        json.dumps(first, separators=(",", ":")),
        "\n" + json.dumps(document, indent=2) + "\n\n",
        json.dumps(document).replace("}, {", "},\r\n\t{"),
        json.dumps(document | {"traceEvents": backwards}),
        "\ufeff" + json.dumps(document),
        json.dumps({"metadata": {"traceEvents": [1]}, "note": 'say "traceEvents": [ here'} | document),
    ):
        trace = read(variant.encode())
        assert same(trace, expected)
        assert trace.warnings == ()
        assert (trace.base_ns, trace.devices, trace.distributed) == (
            expected.base_ns, expected.devices, expected.distributed)  # fmt: skip


def test_events_are_found_however_blocks_fall(document: Document, tmp_path: Path, monkeypatch: Any) -> None:
    expected_path = tmp_path / "a.json"
    tricky = copy.deepcopy(document)
    tricky["traceEvents"][5]["name"] = 'lambda: [{"a":1}, {"ph": "X"}]} , {'  # looks like the border of two events
    tricky["traceEvents"][5]["args"]["nested"] = [{"a": "]"}, {"b": [{}, {}]}]
    expected_path.write_text(json.dumps(tricky))
    expected = read_trace(expected_path)
    text = json.dumps(tricky, indent=1)
    for size in (1, 2, 7, 64, 100, 333, 1000):
        path = tmp_path / "b.json"
        path.write_text(text)
        monkeypatch.setattr("advisor.trace.source.READ", size)
        monkeypatch.setattr("advisor.trace.source.BLOCK", size)
        trace = read_trace(path)
        assert same(trace, expected) and trace.warnings == ()
        assert (trace.base_ns, trace.host) == (expected.base_ns, "node-7")


def test_a_bare_list_of_events_is_a_trace(document: Document, read: Read) -> None:
    events = document["traceEvents"]
    trace = read(events)
    assert same(trace, read(document)) and trace.warnings == ()
    assert (trace.base_ns, trace.devices, trace.distributed) == (0, (), {})
    assert same(read(json.dumps(events, indent=2).encode()), trace)


@pytest.mark.parametrize("times", ["integer", "string", "float", "epoch-integer", "epoch-fraction", "epoch-string"])
def test_times_are_exact_to_the_nanosecond(times: str, read: Read) -> None:
    random.seed(0)
    expected, events = [], []
    for number in range(300):
        base = 1_709_168_406_000_000_000 if times.startswith("epoch") else 4_383_347_000_000_000
        ns = base + number * 1_000_000 + random.randrange(1000) * (1 if "integer" not in times else 1000)
        micros = f"{ns // 1000}.{ns % 1000:03d}" if "integer" not in times else str(ns // 1000)
        stamp = f'"{micros}"' if "string" in times else micros
        events.append(
            f'{{"ph":"X","cat":"cpu_op","name":"op","pid":1,"tid":1,"ts":{stamp},"dur":{number}.{number:03d}}}'
        )
        expected.append((ns, ns + number * 1000 + number))
    trace = read(('{"traceEvents":[' + ",".join(events) + "]}").encode())
    assert list(zip(trace.operators.start.tolist(), trace.operators.end.tolist(), strict=True)) == expected


def test_epoch_times_of_any_length_are_exact(read: Read) -> None:
    stamps = ["1709168406823373", "1709168406823373.5", "1709168406823374.25", "1.709168406823375125e15",
              "1709168406823376.001", '"1709168406823377.002"']  # fmt: skip
    events = [f'{{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":{stamp},"dur":1}}' for stamp in stamps]
    trace = read(("[" + ",".join(events) + "]").encode())
    assert [start - 1709168406823000000 for start in trace.kernels.start.tolist()] == [
        373000, 373500, 374250, 375125, 376001, 377002]  # fmt: skip


def test_one_thread_as_string_and_number_is_one_lane(document: Document, read: Read) -> None:
    for event in each(document, "cuda_runtime"):
        event |= {"pid": "100", "tid": "100"}
    for event in each(document, "gpu_memcpy"):
        event["tid"] = "stream 7"
    trace = read(document)
    assert trace.runtime.lane[0] == trace.operators.lane[0]
    assert set(trace.copies.lane.tolist()) == set(trace.kernels.lane.tolist())


def test_odd_processes_and_threads(document: Document, read: Read) -> None:
    events = each(document, "cpu_op") + each(document, "cuda_runtime") + each(document, "python_function")
    odd = [(-1, 0), ("Spans", "PyTorch Profiler"), ("", "")]
    for event, (pid, tid) in zip(events, odd, strict=True):
        event |= {"pid": pid, "tid": tid}
    trace = read(document)
    assert {(lane.pid, lane.tid) for lane in trace.lanes} >= {("-1", "0"), ("Spans", "PyTorch Profiler"), ("", "")}


def test_device_and_stream_come_from_the_lane_when_not_in_the_arguments(document: Document, read: Read) -> None:
    for event in each(document, "kernel"):
        event |= {"pid": 3, "tid": "stream 20", "args": {}}
    trace = read(document)
    assert trace.kernels.device.tolist() == [3, 3]
    assert trace.kernels.stream.tolist() == [20, 20]


def test_numbers_may_be_strings_floats_or_null(document: Document, read: Read) -> None:
    expected = read(document)
    for event in document["traceEvents"]:
        if event["ph"] == "X" and event["cat"] != "Trace":
            event["ts"] = str(event["ts"])
            event["args"] = {
                key: str(value) if isinstance(value, int) and number % 2 else float(value) if isinstance(value, int)
                else value for number, (key, value) in enumerate(event["args"].items())
            } | {"memory bandwidth (GB/s)": None, "queued": None}  # fmt: skip
    assert same(read(document), expected)
    each(document, "kernel")[0]["args"] |= {"correlation": None, "grid": None, "device": None, "stream": "n/a"}
    kernels = read(document).kernels
    assert (kernels.correlation[1], kernels.grid[1], kernels.device[1], kernels.stream[1]) == (-1, 0, 0, 7)


def test_both_spellings_of_external_id(document: Document, read: Read) -> None:
    expected = read(document)
    text = json.dumps(document).replace("External id", "external id")
    assert same(read(text.encode()), expected)


@pytest.mark.parametrize(
    ("then", "now"),
    [("Operator", "cpu_op"), ("Operator", "user_annotation"), ("Kernel", "kernel"), ("Memcpy", "gpu_memcpy"),
     ("Memset", "gpu_memset"), ("Runtime", "cuda_runtime"), ("cuda_driver", "cuda_runtime"),
     ("hip_runtime", "cuda_runtime"), ("hipApi", "cuda_runtime"), ("mtia_runtime", "cuda_runtime"),
     ("mtia_ccp_events", "kernel"), ("hip_memcpy", "gpu_memcpy"), ("xpu_runtime", "cuda_runtime"),
     ("cpu_op", "user_annotation")],
)  # fmt: skip
def test_categories_of_all_years(document: Document, read: Read, then: str, now: str) -> None:
    expected = read(document)
    for event in each(document, now):
        event["cat"] = then
    assert same(read(document), expected)


def test_memory_events_without_a_category(document: Document, read: Read) -> None:
    expected = read(document)
    del each(document, "cpu_instant_event")[0]["cat"]
    assert same(read(document), expected)


def test_a_step_repeated_on_the_gpu_or_the_cpu_counts_once(document: Document, read: Read) -> None:
    step = each(document, "user_annotation")[0]
    document["traceEvents"].append(step | {"tid": 101, "ts": step["ts"] + 1})
    document["traceEvents"].append(step | {"name": "ProfilerStep#8", "ts": 3000})
    document["traceEvents"].append(step | {"ts": 9000})  # a second profile of the same process counts anew
    steps = read(document).steps
    assert steps.start.tolist() == [1_000_500, 3_000_000, 9_000_000]


@pytest.mark.parametrize(
    ("name", "kind", "pageable"),
    [("Memcpy HtoD (Pageable -> Device)", "HtoD", True), ("Memcpy HtoD (Pinned -> Device)", "HtoD", False),
     ("Memcpy DtoH (Device -> Pageable)", "DtoH", True), ("Memcpy DtoH (Device -> Pinned)", "DtoH", False),
     ("Memcpy DtoD (Device -> Device)", "DtoD", False), ("Memcpy PtoP (Device -> Device)", "PtoP", False),
     ("Memcpy HtoD (Host -> Device)", "HtoD", False), ("CopyHostToDevice", "HtoD", False),
     ("CopyDeviceToHost", "DtoH", False), ("CopyDeviceToDevice", "DtoD", False), ("Memset (Device)", "Memset", False),
     ("FillBuffer", "Memset", False), ("Memcpy HtoA (Pageable -> Array)", "Memcpy HtoA (Pageable -> Array)", True)],
)  # fmt: skip
def test_kinds_of_copies(document: Document, read: Read, name: str, kind: str, pageable: bool) -> None:
    each(document, "gpu_memcpy")[0]["name"] = name
    trace = read(document)
    assert trace.name(trace.copies.kind[0]) == kind
    assert bool(trace.copies.pageable[0]) is pageable


def test_copies_that_early_rocm_filed_under_kernels_are_copies(document: Document, read: Read) -> None:
    each(document, "kernel")[0] |= {"name": "CopyHostToDevice"}
    trace = read(document)
    assert len(trace.kernels) == 1
    assert [trace.name(kind) for kind in trace.copies.kind] == ["HtoD", "Memset", "HtoD"]
    assert trace.copies.correlation[2] == 77


def test_missing_duration_is_none_and_negative_counts_as_none(document: Document, read: Read) -> None:
    del each(document, "cpu_op")[0]["dur"]
    each(document, "cuda_runtime")[0]["dur"] = -3
    trace = read(document)
    assert trace.operators.start[0] == trace.operators.end[0]
    assert trace.runtime.start[0] == trace.runtime.end[0]
    assert any("negative" in warning for warning in trace.warnings)


def test_absurd_times_are_left_out_and_said_so(document: Document, read: Read) -> None:
    each(document, "cpu_op")[0]["ts"] = 1e300
    each(document, "kernel")[0]["ts"] = None
    each(document, "cuda_runtime")[0]["dur"] = 1e17
    trace = read(document)
    assert (len(trace.operators), len(trace.kernels), len(trace.runtime)) == (0, 1, 0)
    assert trace.warnings == ("3 event(s) without a usable time were left out",)


@pytest.mark.parametrize("value", [[], [{}], [{"id": 0, "name": ""}], [None, 3], {}, None, "x"])
def test_odd_device_properties(document: Document, read: Read, value: Any) -> None:
    document["deviceProperties"] = value
    assert all(isinstance(device, dict) for device in read(document).devices)
    del document["deviceProperties"]
    assert read(document).devices == ()


def test_odd_values_around_the_events(document: Document, read: Read) -> None:
    document |= {"host_name": {"a": 1}, "distributedInfo": [1], "baseTimeNanoseconds": "1711964646000000000"}
    text = json.dumps(document).replace('"numSms": 132', '"numSms": 1e999')
    trace = read(text.encode())
    assert (trace.host, trace.distributed, trace.base_ns) == ("", {}, 1711964646000000000)
    assert trace.devices[0]["numSms"] is None


@pytest.mark.parametrize("packing", ["gzip", "two members", "zstd", "plain under a .gz name"])
def test_compression_is_told_by_content(document: Document, read: Read, tmp_path: Path, packing: str) -> None:
    expected = read(document)
    data = json.dumps(document).encode()
    if packing == "gzip":
        data = gzip.compress(data)
    elif packing == "two members":
        data = gzip.compress(data[:500]) + gzip.compress(data[500:])
    elif packing == "zstd":
        data = pytest.importorskip("zstandard").compress(data)
    path = tmp_path / "t.json.gz"
    path.write_bytes(data)
    trace = read_trace(path)
    assert same(trace, expected) and trace.warnings == ()


def test_a_long_compressed_trace_is_read_block_by_block(document: Document, tmp_path: Path) -> None:
    noise = random.Random(0)
    events = [
        {"ph": "X", "cat": "cpu_op", "name": f"aten::{noise.random()}", "pid": 1, "tid": noise.randrange(5),
         "ts": number * 10 + noise.randrange(1000) / 1000, "dur": noise.randrange(9), "args": {"External id": number}}
        for number in range(40_000)
    ]  # fmt: skip
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(json.dumps(document | {"traceEvents": events}).encode(), 1))
    trace = read_trace(path)
    assert trace.operators.external.tolist() == list(range(40_000))
    assert [trace.name(code) for code in trace.operators.name[::997]] == [event["name"] for event in events[::997]]


def test_a_url_is_opened_with_fsspec(document: Document, read: Read) -> None:
    import fsspec

    with fsspec.open("memory://runs/a.pt.trace.json.gz", "wb") as file:
        file.write(gzip.compress(json.dumps(document).encode()))
    assert same(read_trace("memory://runs/a.pt.trace.json.gz"), read(document))
    with pytest.raises(AdvisorError, match="there is no file"):
        read_trace("memory://runs/b.json")
