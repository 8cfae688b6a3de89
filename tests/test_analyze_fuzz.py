"""Whatever is done to a real trace, `advisor analyze` gives a report whose figures are sound, or one clear sentence."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from advisor import findings, report
from advisor.analyze import analyze
from advisor.errors import AdvisorError

torch = pytest.importorskip("torch")

BOUNDED = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
SMALL = ("a100-triton", "cpu-only-rank", "mi250-toy-training", "mi300x-compiled-triton")

NUMBERS = st.sampled_from(
    [0, -1, 0.5, 2**31, 2**53 + 1, 2**63 - 1, 2**64, 10**30, -(10**18), 1e-300, 1e300, math.inf, math.nan, 4.6e15, 1e15]
)
VALUES = NUMBERS | st.sampled_from([None, True, "", "7", "stream 7", "-1", "1e400", "NaN", "X", [], [[]], {}, {"a": 1}])


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """A training loop of two steps, recorded here, and the smallest of the public traces where they are."""
    from torch.profiler import ProfilerActivity, profile, schedule

    path = tmp_path_factory.mktemp("fuzz") / "t.json"
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=1, active=2),
        record_shapes=True,
        profile_memory=True,
        on_trace_ready=lambda done: done.export_chrome_trace(str(path)),
    ) as profiler:
        for _ in range(3):
            model(torch.randn(2, 8)).sum().backward()
            optimizer.step()
            profiler.step()
    found = [path.read_bytes()]
    shared = Path(__file__).parents[2] / "shared" / "traces"
    found += [gzip.decompress(path.read_bytes()) for name in SMALL if (path := shared / f"{name}.json.gz").exists()]
    return found


def check(content: bytes, folder: Path) -> None:
    """Analyzes `content` and writes the report; anything but a sound one, or an AdvisorError, fails the test."""
    path = folder / "t.json"
    path.write_bytes(content)
    try:
        document, evidence = analyze([path], limit_bytes=64 << 20)
    except AdvisorError as error:
        assert "\n" not in str(error)
        return
    report.write(document, folder / "report", evidence)
    assert not any("fault" in note or "failed and was left out" in note for note in document.notes), document.notes
    shares = document.breakdown
    assert all(0 <= share <= 1 for share in shares.values()), shares
    assert not shares or sum(shares.values()) == pytest.approx(1.0, abs=1e-6)
    for name, value in json.loads(findings.encode(document))["figures"].items():
        if isinstance(value, (int, float)):
            assert math.isfinite(value), name
            if name.endswith("_share"):
                assert 0 <= value <= 1, (name, value)
    for finding in document.findings:
        gain = finding.predicted.speedup
        assert 0 < gain.low <= gain.likely <= gain.high, finding.rule
        assert gain.high <= 2.0001 * gain.low, finding.rule


@given(data=st.data())
@BOUNDED
def test_bytes_flipped_cut_and_repeated(traces: list[bytes], tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(data.draw(st.sampled_from(traces)))
    for _ in range(data.draw(st.integers(1, 8))):
        at, length = data.draw(st.integers(0, len(content) - 1)), data.draw(st.integers(1, 400))
        change = data.draw(st.sampled_from(["flip", "drop", "repeat", "insert", "cut"]))
        if change == "flip":
            content[at] ^= data.draw(st.integers(1, 255))
        elif change == "drop":
            del content[at : at + length]
        elif change == "repeat":
            content[at:at] = content[at : at + length]
        elif change == "insert":
            content[at:at] = data.draw(st.sampled_from([b'"', b"{", b"}", b"]", b",", b"\\", b"NaN", b"\xff", b"\0"]))
        else:
            del content[max(at, 1) :]
        if not content:
            break
    check(bytes(content), tmp_path)


@given(data=st.data())
@BOUNDED
def test_fields_deleted_and_retyped(traces: list[bytes], tmp_path: Path, data: st.DataObject) -> None:
    document: dict[str, Any] = json.loads(data.draw(st.sampled_from(traces)))
    events = [event for event in document["traceEvents"] if isinstance(event, dict)]
    for _ in range(data.draw(st.integers(1, 12))):
        target: Any = data.draw(st.sampled_from([document, *data.draw(st.permutations(events[:8])), *events[-200:]]))
        if isinstance(target.get("args"), dict) and target["args"] and data.draw(st.booleans()):
            target = target["args"]
        keys = sorted(set(target) - {"traceEvents"})
        if not keys:
            continue
        key = data.draw(st.sampled_from(keys))
        if data.draw(st.booleans()):
            target[key] = data.draw(VALUES)
        else:
            del target[key]
    check(json.dumps(document).encode(), tmp_path)


@given(data=st.data())
@BOUNDED
def test_absurd_numbers_everywhere(traces: list[bytes], tmp_path: Path, data: st.DataObject) -> None:
    document: dict[str, Any] = json.loads(data.draw(st.sampled_from(traces)))
    every, number = data.draw(st.integers(2, 40)), data.draw(NUMBERS)
    key = data.draw(st.sampled_from(["ts", "dur", "pid", "tid", "correlation", "External id", "device", "stream",
                                     "bytes", "Bytes", "Sequence number", "id"]))  # fmt: skip
    for event in document["traceEvents"][data.draw(st.integers(0, every)) :: every]:
        for holder in (event, event.get("args")):
            if isinstance(holder, dict) and key in holder:
                holder[key] = number
    for properties in document.get("deviceProperties") or []:
        if data.draw(st.booleans()):
            properties[data.draw(st.sampled_from(sorted(properties)))] = data.draw(VALUES)
    check(json.dumps(document).encode(), tmp_path)
