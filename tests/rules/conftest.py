"""Evidence made for one test: a record, and a small Kineto trace read with the real reader. Times are ms."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from advisor.evidence import Evidence
from advisor.harness import layout
from advisor.harness.layout import CallSite, Loader, Model, RunRecord, Site, TensorInfo
from advisor.trace import Trace, read_trace

STEPS = 3
THREAD = 100


@dataclass
class Scene:
    """Three equal steps of `step_ms`, and what fills them: added per step, at an offset in ms."""

    step_ms: float
    gpu: str = ""  # the device's name; a CPU run without
    record: RunRecord = field(default_factory=RunRecord)
    _events: list[dict[str, Any]] = field(default_factory=list)
    _correlation: int = 0

    def __post_init__(self) -> None:
        record, seconds = self.record, self.step_ms / 1e3
        record.script, record.cwd = "/nowhere/train.py", "/nowhere"
        record.step_kind, record.complete = "optimizer", True
        record.timing = layout.Timing(
            steps=40, elapsed=40 * seconds, step_s=seconds, median_s=seconds, settled=True, samples_per_step=32.0,
            cpu_s=seconds,
        )  # fmt: skip
        record.profile_step_s = seconds
        record.environment = layout.Environment(
            platform="Linux-6.1-x86_64", usable_cpus=8.0, intraop_threads=1, compiler="/usr/bin/g++", triton="3.5",
            start_method="fork", shm_bytes=8 << 30, matmul_precision="highest", cudnn_benchmark=False,
            deterministic=False, torch="2.15.0+cu130", torch_cuda="13.0", cuda_available=bool(self.gpu),
        )  # fmt: skip
        record.device = layout.Device("cuda", self.gpu, capability=[8, 0], bf16=True) if self.gpu else layout.Device()
        record.models = [
            Model("Net", parameters=1000, parameter_bytes=4000, dtypes=["float32"], training=True, calls=40,
                  devices=["cuda:0" if self.gpu else "cpu"], layers={"Linear": 2})
        ]  # fmt: skip
        record.optimizers = [layout.OptimizerInfo("SGD", Site("/nowhere/train.py", 5), steps=40, boundary=True)]
        self.call("Module.call", 11, module="Net")
        self.call("backward", 12)
        for number in range(STEPS):
            self._add("user_annotation", f"ProfilerStep#{number}", number, 0.0, self.step_ms)

    def call(self, kind: str, line: int, per_step: float = 1.0, **details: Any) -> None:
        """A recorded call site."""
        site = Site("/nowhere/train.py", line)
        self.record.call_sites.append(CallSite(kind, site, calls=40, calls_per_step=per_step, details=details))

    def loader(self, wait_ms: float, fetch_ms: float, cpu_ms: float, **facts: Any) -> Loader:
        """A loader that feeds the steps, its wait at the start of each."""
        loader = Loader(
            site=Site("/nowhere/train.py", 8), batch_size=32, trains=True, fetched=100, epochs=1, dataset_length=6400,
            batches=200, wait_s=wait_ms / 1e3, fetch_s=fetch_ms / 1e3, fetch_cpu_s=cpu_ms / 1e3, fetch_spread=0.1,
            start_s=0.1, tensors=[TensorInfo([32, 3, 32, 32], "float32", "cpu", False, 32 * 3 * 32 * 32 * 4)], **facts,
        )  # fmt: skip
        self.record.loaders.append(loader)
        self.record.timing.loader_wait_s = [loader.wait_s or 0.0] * 40
        kind = "_MultiProcessingDataLoaderIter" if loader.num_workers else "_SingleProcessDataLoaderIter"
        self.each("user_annotation", f"enumerate(DataLoader)#{kind}.__next__", 0.0, wait_ms)
        return loader

    def each(self, category: str, name: str, start: float, end: float, **args: Any) -> None:
        """A host event in every step."""
        for number in range(STEPS):
            self._add(category, name, number, start, end, **args)

    def operator(self, name: str, start: float, end: float, **args: Any) -> None:
        self.each("cpu_op", name, start, end, **args)

    def kernel(self, name: str, start: float, end: float, launched: float) -> None:
        """A kernel in every step, launched by a call of 5 µs."""
        for number in range(STEPS):
            self._device("kernel", name, number, start, end, launched, launched + 0.005, "cudaLaunchKernel",
                         grid=[1000, 1, 1], block=[256, 1, 1])  # fmt: skip

    def copy(
        self, name: str, start: float, end: float, size: int, launched: float, returned: float, stream: int = 7
    ) -> None:
        """A copy in every step: the call returns at `returned`."""
        for number in range(STEPS):
            self._device("gpu_memcpy", name, number, start, end, launched, returned, "cudaMemcpyAsync", bytes=size,
                         stream=stream)  # fmt: skip

    def _device(
        self, category: str, name: str, number: int, start: float, end: float, launched: float, returned: float,
        call: str, **args: Any,
    ) -> None:  # fmt: skip
        self._correlation += 1
        args = {"device": 0, "stream": 7} | args | {"correlation": self._correlation}
        self._add("cuda_runtime", call, number, launched, returned, correlation=self._correlation)
        self._add(category, name, number, start, end, pid=0, tid=args["stream"], **args)

    def _add(
        self, category: str, name: str, number: int, start: float, end: float, pid: int = 1, tid: int = THREAD,
        **args: Any,
    ) -> None:  # fmt: skip
        begin = (number * self.step_ms + start) * 1e3
        self._events.append(
            {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": begin, "dur": (end - start) * 1e3,
             "args": args}
        )  # fmt: skip

    def evidence(self, folder: Path) -> Evidence:
        return Evidence(trace=self._trace(folder), record=self.record)

    def bare(self, folder: Path) -> Evidence:
        """The same without a record: a trace recorded elsewhere."""
        return Evidence.from_trace(self._trace(folder))

    def _trace(self, folder: Path) -> Trace:
        major, minor = self.record.device.capability or (0, 0)
        device = {"id": 0, "name": self.gpu, "numSms": 108, "totalGlobalMem": 40 << 30, "warpSize": 32,
                  "computeMajor": major, "computeMinor": minor}  # fmt: skip
        path = folder / "trace.json"
        path.write_text(json.dumps({"deviceProperties": [device] if self.gpu else [], "traceEvents": self._events}))
        return read_trace(str(path))


@pytest.fixture
def scene() -> type[Scene]:
    """Makes evidence: ``scene(step_ms=50)``."""
    return Scene
