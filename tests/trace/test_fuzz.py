"""Whatever is done to a file, the reader gives a sound Trace or an AdvisorError."""

from __future__ import annotations

import copy
import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from advisor.errors import AdvisorError
from advisor.trace import Trace, read_trace

Document = dict[str, Any]
BOUNDED = settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, -1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**30, -(10**30), 1e-300, 1e300, -1e18]),
    st.floats(),
    st.text(max_size=6),
    st.sampled_from(["stream 7", "7", "-1", "1e5", "NaN", "X", "kernel", "ProfilerStep#1", "[memory]", "\ud800"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def check(content: bytes) -> None:
    """Reads `content`; anything but a sound Trace or an AdvisorError fails the test."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "t.json")
        path.write_bytes(content)
        try:
            trace = read_trace(path, limit_bytes=64 << 20)
        except AdvisorError as error:
            assert "\n" not in str(error)
            return
    sound(trace)


def sound(trace: Trace) -> None:
    """Columns of one length, sorted, in range; codes that name something."""
    for table in (trace.operators, trace.annotations, trace.steps, trace.kernels, trace.copies, trace.runtime,
                  trace.device_annotations, trace.overheads, trace.python, trace.syncs):  # fmt: skip
        lengths = {len(getattr(table, column)) for column in table.__dataclass_fields__}
        assert lengths == {len(table)}
        assert (table.end >= table.start).all() and (np.diff(table.start) >= 0).all()
        assert ((table.name >= 0) & (table.name < len(trace.names))).all()
        assert ((table.lane >= 0) & (table.lane < len(trace.lanes))).all()
    assert len({len(getattr(trace.memory, column)) for column in trace.memory.__dataclass_fields__}) == 1
    assert all(isinstance(name, str) for name in trace.names)
    assert len(set(trace.names)) == len(trace.names)
    assert all(isinstance(device, dict) for device in trace.devices)


@given(st.data())
@BOUNDED
def test_flipped_cut_and_repeated_bytes(document: Document, data: st.DataObject) -> None:
    content = bytearray(json.dumps(document, indent=data.draw(st.sampled_from([None, 1]))).encode())
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, max(0, len(content) - 1)))
        length = data.draw(st.integers(0, 40))
        change = data.draw(st.sampled_from(["flip", "cut", "drop", "insert", "repeat"]))
        if change == "flip" and content:
            content[at] ^= data.draw(st.integers(1, 255))
        elif change == "cut":
            del content[at:]
        elif change == "drop":
            del content[at : at + length]
        elif change == "insert":
            content[at:at] = data.draw(
                st.sampled_from([b'"', b"{", b"}", b"[", b"]", b",", b"\\", b"NaN", b"\xff", b"\0"])
            )
        else:
            content[at:at] = content[at : at + length * 20]
    check(bytes(content))


@given(st.data())
@BOUNDED
def test_fields_deleted_and_retyped(document: Document, data: st.DataObject) -> None:
    changed = copy.deepcopy(document)
    for _ in range(data.draw(st.integers(1, 6))):
        target: Any = data.draw(st.sampled_from([changed, *changed["traceEvents"], *changed["traceEvents"]]))
        if not isinstance(target, dict):
            continue
        if isinstance(target.get("args"), dict) and data.draw(st.booleans()):
            target = target["args"]
        if not target:
            continue
        key = data.draw(st.sampled_from(sorted(target)))
        if data.draw(st.booleans()):
            target[key] = data.draw(VALUES)
        else:
            del target[key]
        if not isinstance(changed.get("traceEvents"), list) or not changed["traceEvents"]:
            break
    check(json.dumps(changed).encode())


@given(st.data())
@BOUNDED
def test_absurd_numbers_in_every_place(document: Document, data: st.DataObject) -> None:
    changed = copy.deepcopy(document)
    numbers = st.sampled_from(
        [
            10**18,
            -(10**18),
            10**19,
            10**400,
            1e308,
            1.5e15,
            4.6e15,
            -1,
            0.0001,
            "1e400",
            "-",
            "9" * 40,
            1709168406823373.25,
        ]
    )
    for event in changed["traceEvents"]:
        for holder in (event, event.get("args", {})):
            for key, value in holder.items():
                if isinstance(value, (int, float)) and data.draw(st.integers(0, 9)) == 0:
                    holder[key] = data.draw(numbers)
    check(json.dumps(changed).encode())


@given(st.integers(0, 10**6), st.integers(1, 255), st.integers(0, 10**6))
@BOUNDED
def test_damaged_gzip(document: Document, at: int, flip: int, cut: int) -> None:
    packed = bytearray(gzip.compress(json.dumps(document).encode()))
    packed[at % len(packed)] ^= flip
    check(bytes(packed))
    check(bytes(packed[: cut % len(packed)]))


@given(st.binary(max_size=300))
@BOUNDED
def test_any_bytes_at_all(content: bytes) -> None:
    check(content)
    check(b'{"traceEvents":[' + content)
    check(b"[{" + content)
