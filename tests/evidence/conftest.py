"""Small Kineto traces for the tests of this room, written as JSON and read with the real reader. Times are µs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from advisor.trace import Trace, read_trace

THREAD = 100
BACKWARD_THREAD = 101


class TraceBuilder:
    """Events of one process and one GPU; every launch gets a correlation of its own."""

    def __init__(self, device: str = "NVIDIA A100-SXM4-40GB") -> None:
        self.events: list[dict[str, Any]] = []
        self.device = device
        self._correlation = 0

    def _host(self, category: str, name: str, start: float, end: float, thread: int, **args: Any) -> None:
        self.events.append(
            {
                "ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, "ts": start,
                "dur": end - start, "args": args,
            }
        )  # fmt: skip

    def step(self, number: int, start: float, end: float) -> None:
        self._host("user_annotation", f"ProfilerStep#{number}", start, end, THREAD)

    def annotation(self, name: str, start: float, end: float, thread: int = THREAD) -> None:
        self._host("user_annotation", name, start, end, thread)

    def load(self, start: float, end: float, workers: bool = False) -> None:
        kind = "_MultiProcessingDataLoaderIter" if workers else "_SingleProcessDataLoaderIter"
        self.annotation(f"enumerate(DataLoader)#{kind}.__next__", start, end)

    def operator(self, name: str, start: float, end: float, thread: int = THREAD, **args: Any) -> None:
        self._host("cpu_op", name, start, end, thread, **args)

    def runtime(self, name: str, start: float, end: float, thread: int = THREAD, correlation: int = 0) -> None:
        self._host("cuda_runtime", name, start, end, thread, correlation=correlation)

    def kernel(
        self,
        start: float,
        end: float,
        name: str = "void at::native::vectorized_elementwise_kernel<4>",
        *,
        launched: float | None = None,
        stream: int = 7,
        thread: int = THREAD,
        grid: int = 1000,
    ) -> None:
        """A kernel, launched by a call of 5 µs that begins at `launched` (None: no launch in the file)."""
        args = {"device": 0, "stream": stream, "grid": [grid, 1, 1], "block": [256, 1, 1]}
        self._device("kernel", name, start, end, "cudaLaunchKernel", launched, 5, thread, args)

    def copy(
        self,
        start: float,
        end: float,
        name: str = "Memcpy HtoD (Pinned -> Device)",
        *,
        launched: float | None = None,
        call: float = 5,
        stream: int = 7,
        size: int = 1000,
    ) -> None:
        args = {"device": 0, "stream": stream, "bytes": size}
        self._device("gpu_memcpy", name, start, end, "cudaMemcpyAsync", launched, call, THREAD, args)

    def _device(
        self, category: str, name: str, start: float, end: float, api: str, launched: float | None, call: float,
        thread: int, args: dict[str, Any],
    ) -> None:  # fmt: skip
        if launched is not None:
            self._correlation += 1
            self.runtime(api, launched, launched + call, thread, self._correlation)
            args = args | {"correlation": self._correlation}
        self.events.append(
            {
                "ph": "X", "cat": category, "name": name, "pid": 0, "tid": args["stream"], "ts": start,
                "dur": end - start, "args": args,
            }
        )  # fmt: skip

    def read(self, folder: Path) -> Trace:
        document = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": self.device, "numSms": 108, "totalGlobalMem": 40 << 30}],
            "traceEvents": self.events,
        }
        path = folder / "trace.json"
        path.write_text(json.dumps(document))
        return read_trace(path)


@pytest.fixture(scope="session")
def builder() -> type[TraceBuilder]:
    """Makes traces: ``build = builder()``."""
    return TraceBuilder
