"""Damaged files: read as far as they go, with a warning, or one clear error; never anything else."""

from __future__ import annotations

import gzip
import io
import json
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from advisor.errors import BAD_TRACE, USAGE, AdvisorError
from advisor.trace import Trace, read_trace

Read = Callable[[Any], Trace]
Document = dict[str, Any]


def events(trace: Trace) -> int:
    return sum(map(len, (trace.operators, trace.annotations, trace.steps, trace.kernels, trace.copies, trace.runtime,
                         trace.device_annotations, trace.overheads, trace.python, trace.syncs)))  # fmt: skip


@pytest.fixture
def long(document: Document) -> Document:
    """500 operators behind the others."""
    operators = [
        {"ph": "X", "cat": "cpu_op", "name": f"aten::op{number}", "pid": 100, "tid": 100, "ts": 2000 + number,
         "dur": 1, "args": {"External id": 100 + number}} for number in range(500)
    ]  # fmt: skip
    return document | {"traceEvents": document["traceEvents"] + operators}


@pytest.mark.parametrize("indent", [None, 2])
def test_a_truncated_file_gives_all_whole_events(document: Document, read: Read, indent: int | None) -> None:
    operator = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 2000.5, "dur": 1, "args": {"x": {"y": [1, "}"]}}}
    text = json.dumps(document | {"traceEvents": []}).removesuffix("]}") + json.dumps(operator, indent=indent)
    ends = [len(text)]
    for number in range(1, 50):
        text += ",\n" + json.dumps(operator | {"name": f"op{number}"}, indent=indent)
        ends.append(len(text))
    for cut in [*range(ends[0], len(text), 97), *ends, *(end - 1 for end in ends[1:]), *(end + 1 for end in ends)]:
        trace = read(text[:cut].encode())
        assert len(trace.operators) == sum(end <= cut for end in ends)
        assert any("incomplete" in warning for warning in trace.warnings)


def test_a_file_cut_behind_its_events_is_complete_but_for_the_warning(document: Document, read: Read) -> None:
    first = {"traceEvents": document["traceEvents"]} | document
    text = json.dumps(first)
    trace = read(text[: text.index('"schemaVersion"')].encode())
    assert events(trace) == events(read(document))
    assert any("incomplete" in warning for warning in trace.warnings)


def test_gzip_cut_short_gives_the_events_before_the_cut(long: Document, read: Read) -> None:
    packed = gzip.compress(json.dumps(long).encode(), 1)
    trace = read(packed[: len(packed) * 3 // 4])
    assert 100 < len(trace.operators) < 501
    assert any("gzip data end too early" in warning for warning in trace.warnings)
    with pytest.raises(AdvisorError, match=r"ends before its first event|is empty"):
        read(packed[:60])


def test_damaged_gzip_gives_the_events_before_the_damage(long: Document, read: Read) -> None:
    packed = bytearray(gzip.compress(json.dumps(long).encode(), 1))
    packed[-8] ^= 0xFF  # the checksum: everything was unpacked, but something is wrong
    trace = read(bytes(packed))
    assert len(trace.operators) >= 499
    assert any("gzip" in warning for warning in trace.warnings)


def test_zstd_cut_short(long: Document, read: Read) -> None:
    packed = pytest.importorskip("zstandard").compress(json.dumps(long).encode())
    for content in (packed[: len(packed) // 2], b"\x28\xb5\x2f\xfdgarbage"):
        with pytest.raises(AdvisorError) as caught:
            read(content)
        assert caught.value.exit_status == BAD_TRACE


def test_zstd_without_its_package_says_what_to_install(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(AdvisorError, match="pip install zstandard") as caught:
        read(b"\x28\xb5\x2f\xfd")
    assert caught.value.exit_status == USAGE


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"  \n ", "is empty"),
        (gzip.compress(b"", mtime=0), "is empty"),
        (b"hello", "is not JSON"),
        (b"\x89PNG\r\n\x1a\n\0\0", "is not JSON"),
        (b"{'traceEvents': []}", "is not JSON"),
        (b'{"a": 1,, "b": 2}', "is not JSON"),
        (b"{}", "no traceEvents"),
        (b'{"schema": 1, "findings": [{"ph": "X"}]}', "no traceEvents"),
        (b'{"traceEvents": null}', "not a list"),
        (b'{"traceEvents": {}}', "not a list"),
        (b'{"traceEvents": []}', "holds no event"),
        (b"[]", "holds no event"),
        (b"[1, 2, 3]", "holds no event"),
        (b'[{"name": "x"}, "y", null]', "holds no event"),
        (b'{"traceEvents": [{"ph": "X", "cat": "blink", "name": "n", "ts": 1, "dur": 2}]}', "holds no event"),
        (b'{"traceEvents": [', "holds no event"),
        (b'{"schemaVersion": 1, "deviceProp', "ends before its first event"),
        (b"\x1f\x8b\x08\x00garbage", "."),
        (b"[" * 100_000, "."),
        (b'{"a":' * 100_000, "."),
    ],
)
def test_what_is_no_trace_is_one_clear_error(read: Read, content: bytes, message: str) -> None:
    with pytest.raises(AdvisorError, match=message) as caught:
        read(content)
    assert caught.value.exit_status == BAD_TRACE
    assert "\n" not in str(caught.value)


def test_no_such_file_and_a_folder_are_wrong_usage(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.json", tmp_path):
        with pytest.raises(AdvisorError) as caught:
            read_trace(path)
        assert caught.value.exit_status == USAGE


def test_a_gzip_bomb_is_refused_and_the_limit_can_be_raised(document: Document, tmp_path: Path) -> None:
    path = tmp_path / "bomb.json.gz"
    event = json.dumps(document["traceEvents"][5]).encode() + b",\n"
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=9) as file:
        file.write(b'{"traceEvents": [')
        for _ in range(400):
            file.write(event * 100)
        file.write(event.rstrip(b",\n") + b"]}")
    path.write_bytes(buffer.getvalue())
    with pytest.raises(AdvisorError, match="raise the limit") as caught:
        read_trace(path, limit_bytes=4 << 20)
    assert caught.value.exit_status == BAD_TRACE
    assert len(read_trace(path, limit_bytes=1 << 30).operators) == 40_001


def test_without_a_limit_a_bomb_is_told_by_its_ratio(
    document: Document, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("advisor.trace.source.BOMB_SIZE", 1 << 20)
    event = json.dumps(document["traceEvents"][5])
    text = '{"traceEvents": [' + ", ".join([event] * 20_000) + "]}"
    bomb, plain = tmp_path / "bomb.json.gz", tmp_path / "plain.json"
    bomb.write_bytes(gzip.compress(text.encode(), 9))
    plain.write_text(text)
    assert bomb.stat().st_size * 100 < len(text)
    with pytest.raises(AdvisorError, match="raise the limit"):
        read_trace(bomb)
    assert len(read_trace(bomb, limit_bytes=1 << 30).operators) == 20_000
    assert len(read_trace(plain).operators) == 20_000


def test_blanks_without_end_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b'{"a": "' + b" " * (80 << 20), 1))
    with pytest.raises(AdvisorError) as caught:
        read_trace(path)
    assert caught.value.exit_status == BAD_TRACE


MENDED = {
    "trailing commas": lambda text: text.replace("}}]", "}},]").replace('"bp": "e"}', '"bp": "e",\n}'),
    "NaN": lambda text: text.replace('"est. achieved occupancy %": 50', '"est. achieved occupancy %": NaN'),
    "Infinity": lambda text: text.replace('"device": 0, "stream": 7,', '"bw": -Infinity, "device": 0, "stream": 7,'),
    "overflow": lambda text: text.replace('"device": 0, "stream": 7,', '"bytes ": 1e999, "device": 0, "stream": 7,'),
    "duplicate keys": lambda text: text.replace('"ts": 1300.0', '"ts": 1.0, "ts": 1300.0'),
    "control characters": lambda text: text.replace("train.py(3)", "train\t.py\x01(3)"),
    "single backslashes": lambda text: text.replace("train.py(3)", "C:\\Users\\q\\train.py(3)"),
    "lone surrogate": lambda text: text.replace("train.py(3)", "\\ud83d.py(3)"),
}


@pytest.mark.parametrize("damage", MENDED)
def test_json_that_is_not_quite_json_is_read_all_the_same(document: Document, read: Read, damage: str) -> None:
    expected = read(document)
    text = MENDED[damage](json.dumps(document))
    assert text != json.dumps(document)
    trace = read(text.encode())
    assert trace.warnings == ()
    assert events(trace) == events(expected)
    assert trace.kernels.start.tolist() == expected.kernels.start.tolist()
    assert trace.kernels.stream.tolist() == expected.kernels.stream.tolist()
    assert (trace.host, trace.devices) == (expected.host, expected.devices)


def test_invalid_utf8_costs_only_the_character(document: Document, read: Read) -> None:
    data = json.dumps(document).encode().replace(b"train.py(3)", b"tr\xe4in.py(3)").replace(b"node-7", b"n\xf6de")
    trace = read(data)
    assert trace.name(trace.python.name[0]) == "tr\ufffdin.py(3): step"
    assert trace.host == "n\ufffdde"
    assert events(trace) == events(read(document))


def test_fields_of_the_wrong_kind_cost_only_themselves(document: Document, read: Read) -> None:
    expected = read(document)
    operator = next(event for event in document["traceEvents"] if event.get("cat") == "cpu_op")
    operator["args"] = {"External id": [1], "Sequence number": {"a": 1}, "Input Dims": "x", "correlation": True}
    operator["name"] = ["not", "a", "name"]
    document["traceEvents"].insert(3, {"ph": {}, "cat": [], "args": 7})
    document["traceEvents"].insert(3, "no event")
    trace = read(document)
    assert (trace.operators.start[0], trace.operators.external[0], trace.operators.sequence[0]) == (1_200_125, -1, -1)
    assert trace.name(trace.operators.name[0]) == ""
    assert events(trace) == events(expected)


def test_an_event_without_its_end_costs_only_itself(long: Document, read: Read) -> None:
    text = json.dumps(long)
    at = text.index('"aten::op250')
    broken = text[:at] + text[at:].replace("}}", "", 1)
    trace = read(broken.encode())
    assert len(trace.operators) >= 499
    assert any("damaged" in warning for warning in trace.warnings)


def test_a_damaged_head_does_not_cost_the_events(document: Document, read: Read) -> None:
    text = json.dumps(document).replace('"name": "NVIDIA H100"', '"name": "NVIDIA H100')
    trace = read(text.encode())
    assert events(trace) == events(read(document))
    assert any("before the events" in warning for warning in trace.warnings)


def test_zlib_in_disguise_is_not_json(read: Read) -> None:
    with pytest.raises(AdvisorError, match="is not JSON"):
        read(zlib.compress(b'{"traceEvents": []}'))
