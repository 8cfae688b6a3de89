"""A small made-up trace, and a way to write and read it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from advisor.trace import Trace, read_trace

Document = dict[str, Any]

# The machine may be busy with other tests: examples have no time limit of their own.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


def event(cat: str, name: str, ts: Any, dur: Any, pid: Any = 100, tid: Any = 100, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


@pytest.fixture
def document() -> Document:
    """One step with a copy, an operator that launches a kernel, and what else a file of today holds."""
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100", "numSms": 132}],
        "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8},
        "baseTimeNanoseconds": 1711964646000000000,
        "host_name": "node-7",
        "traceEvents": [
            {"ph": "M", "name": "process_name", "ts": 10.0, "pid": 100, "tid": 0, "args": {"name": "python3"}},
            {"ph": "M", "name": "thread_name", "ts": 10.0, "pid": 100, "tid": 100, "args": {"name": "thread 100"}},
            event("user_annotation", "ProfilerStep#7", 1000.5, 900.25, **{"External id": 1}),
            event("gpu_user_annotation", "ProfilerStep#7", 1100.0, 800.0, 0, 7, **{"External id": 1}),
            event("user_annotation", "Optimizer.step#SGD.step", 1800.0, 50.0),
            event(
                "cpu_op",
                "aten::mm",
                1200.125,
                40.5,
                **{
                    "External id": 5,
                    "Sequence number": 11,
                    "Input Dims": [[64, 32], [32, 10]],
                    "Input type": ["float", "long int"],
                },
            ),
            event("cuda_runtime", "cudaLaunchKernel", 1210.0, 5.0, **{"External id": 5, "correlation": 77}),
            event(
                "kernel",
                "gemm",
                1300.0,
                100.001,
                0,
                7,
                **{
                    "External id": 5,
                    "correlation": 77,
                    "device": 0,
                    "stream": 7,
                    "grid": [4, 2, 1],
                    "block": [128, 1, 1],
                    "est. achieved occupancy %": 50,
                },
            ),
            event("kernel", "empty", 1250.0, 0, 0, 7, device=0, stream=7),
            event(
                "gpu_memcpy",
                "Memcpy HtoD (Pageable -> Device)",
                1150.0,
                20.0,
                0,
                7,
                device=0,
                stream=7,
                bytes=4096,
                correlation=70,
            ),
            event("gpu_memset", "Memset (Device)", 1180.0, 1.0, 0, 7, device=0, stream=7, bytes=64),
            {"ph": "s", "id": 77, "pid": 100, "tid": 100, "ts": 1210.0, "cat": "ac2g", "name": "ac2g"},
            {"ph": "f", "id": 77, "pid": 0, "tid": 7, "ts": 1300.0, "cat": "ac2g", "name": "ac2g", "bp": "e"},
            {
                "ph": "i",
                "cat": "cpu_instant_event",
                "s": "t",
                "name": "[memory]",
                "pid": 100,
                "tid": 100,
                "ts": 1201.0,
                "args": {
                    "Total Reserved": 2048,
                    "Total Allocated": 1024,
                    "Bytes": -512,
                    "Device Id": 0,
                    "Device Type": 1,
                },
            },
            event("python_function", "train.py(3): step", 1100.0, 700.0, **{"Python id": 1}),
            event("overhead", "Activity Buffer Request", 1050.0, 3.0, -1, 0),
            event("cuda_sync", "Stream Sync", 1500.0, 10.0, 0, 7, stream=7, correlation=78),
            event("Trace", "PyTorch Profiler (0)", 900.0, 2000.0, "Spans", "PyTorch Profiler"),
        ],
    }


@pytest.fixture
def read(tmp_path: Path) -> Callable[[Any], Trace]:
    """Writes what it is given (a document, or the file's very bytes) and reads it back."""

    def write_and_read(content: Any) -> Trace:
        path = tmp_path / "made-up.pt.trace.json"
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return read_trace(path)

    return write_and_read
