"""On a GPU: the script's own device is asked, not the current one; CUDA graphs are left alone; memory is the window's.

There need not be a GPU here: torch's functions that would ask one are replaced by what they would find.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from advisor.harness import models
from advisor.harness.encoders import Encoders
from advisor.harness.kept_graphs import Graphs
from advisor.harness.layout import Memory, Options, RunRecord
from advisor.harness.looking import is_capturing, may_compute
from advisor.harness.machine import environment
from advisor.harness.machine.gauges import DeviceClock
from advisor.harness.machine.gpu_memory import GpuMemory
from advisor.harness.machine.openblas import OpenBlas
from advisor.harness.models import Models
from advisor.harness.status import StatusFile
from advisor.harness.timing import Interval
from advisor.harness.windows import Windows
from advisor.launch import Command, measure
from tests.conftest import PYTHON, QUICK

GIB = 1 << 30


@pytest.fixture
def capturing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA graph is being captured, as torch tells it."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)


@pytest.fixture
def unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is made of the harness here goes with the test."""
    monkeypatch.setattr(torch, "compile", torch.compile)  # put back afterwards
    monkeypatch.setattr(models, "_active", None)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12", "535.183.01"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.126.09  Release Build\nGCC: 12", "580.126.09"),
        ("", ""),
    ],
)
def test_the_driver_s_version_is_read(text: str, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(
        name="NVIDIA H200", major=9, minor=0, total_memory=140 * GIB, multi_processor_count=132
    )
    cuda = SimpleNamespace(
        get_device_properties=lambda index: properties, device_count=lambda: 1, get_arch_list=lambda: ["sm_90"]
    )
    monkeypatch.setattr(environment, "_read", lambda path: text)
    found = environment.device(SimpleNamespace(cuda=cuda, version=SimpleNamespace(hip=None)), "cuda", 0)
    assert (found.driver, found.capability, found.bf16) == (version, [9, 0], True)


# The script's own device.


class Device:
    """``torch.cuda`` of a machine with two GPUs, of which the first is the current one, and maybe full."""

    def __init__(self, full: bool = False) -> None:
        self.current, self.full, self.capturing = 0, full, False
        self.asked: list[tuple[str, int]] = []
        self.Event = _events_of(self)

    def on(self, what: str, device: int | None = None) -> None:
        self.asked.append((what, self.current if device is None else device))
        if self.full:
            raise RuntimeError("CUDA error: out of memory")

    @contextlib.contextmanager
    def device(self, index: int) -> Iterator[None]:
        before, self.current = self.current, index
        yield
        self.current = before

    def is_initialized(self) -> bool:
        return True

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def synchronize(self, device: int | None = None) -> None:
        self.on("synchronize", device)

    def memory_allocated(self, device: int | None = None) -> int:
        self.on("memory", device)
        return GIB


def _events_of(device: Device) -> type:
    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            device.on("record")

        def synchronize(self) -> None:
            device.on("wait")

        def elapsed_time(self, other: Event) -> float:
            device.on("elapsed")
            return 20.0

    return Event


def machine(full: bool = False) -> tuple[Any, Device]:
    """torch with such a ``torch.cuda``, and this."""
    device = Device(full)
    return SimpleNamespace(cuda=device, autograd=torch.autograd), device


def test_time_is_taken_on_the_scripts_own_device() -> None:
    fake, device = machine()
    clock = DeviceClock(fake)
    clock.device = 1
    clock.mark()
    clock.drain()
    clock.mark()
    assert clock.seconds() == [0.02]
    assert device.asked and {index for _, index in device.asked} == {1} and device.current == 0
    assert {what for what, _ in device.asked} == {"record", "synchronize", "wait", "elapsed"}


def test_a_device_that_cannot_be_asked_costs_the_script_nothing() -> None:
    fake, device = machine(full=True)
    clock = DeviceClock(fake)
    clock.device = 1
    clock.mark()
    clock.drain()
    device.full = False
    clock.mark()
    clock.mark()
    assert clock.seconds() == [], "with a mark missing, seconds would be another step's"
    clock.reset()
    clock.mark()
    clock.mark()
    device.full = True
    assert clock.seconds() == []


def test_no_event_is_put_into_a_graph() -> None:
    fake, device = machine()
    clock = DeviceClock(fake)
    clock.device = 1
    device.capturing = True
    clock.mark()
    clock.drain()
    device.capturing = False
    clock.mark()
    assert device.asked == [("record", 1)] and clock.seconds() == []


def test_memory_that_graphs_keep_is_the_scripts_own_devices() -> None:
    fake, device = machine()
    graphs = Graphs(fake)
    graphs.begin(1)
    assert graphs.end(10) == ([], 0.0, 10) and device.asked == [("memory", 1)] * 2
    fake, device = machine(full=True)
    graphs = Graphs(fake)
    graphs.begin(1)
    assert graphs.end(10) == ([], None, 10)


@pytest.fixture
def windows(tmp_path: Path, unwatched: None) -> Iterator[Windows]:
    """The harness's, of a script; what is patched in torch is put back."""
    made = Windows(torch, Options(run_dir=str(tmp_path)), RunRecord(), StatusFile(str(tmp_path)), OpenBlas())
    yield made
    made.forget()


@pytest.mark.parametrize(("device", "index"), [("cuda:1", 1), ("cuda:0", 0), ("cuda", 0), ("cpu", None), ("mps", None)])
def test_the_device_is_the_one_of_the_parameters(
    device: str, index: int | None, windows: Windows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "device", lambda: device)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert windows._gpu() == index
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert windows._gpu() is None


def test_a_replay_of_a_captured_step_ends_a_step(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """No GPU here: a graph of which only Python's part is there, around real steps on the CPU."""
    replayed = list[int]()

    class Graph:
        def capture_end(self) -> None: ...

        def replay(self) -> None:
            replayed.append(1)

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    windows: Windows = request.getfixturevalue("windows")
    capturing = False
    monkeypatch.setattr("advisor.harness.windows.is_capturing", lambda _: capturing)
    windows.replays.install()
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    for _ in range(3):
        windows.optimizer_step(optimizer)
    assert windows.phase == "settle" and windows.boundaries == 3
    graph, other = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    other.capture_end()
    capturing = True
    windows.optimizer_step(optimizer)
    capturing = False
    graph.capture_end()
    assert windows.boundaries == 3
    for _ in range(4):
        other.replay()  # type: ignore[no-untyped-call]
    assert windows.boundaries == 3
    graph.replay()  # type: ignore[no-untyped-call]
    assert windows.phase == "settle" and windows.boundaries == 1, "the steps before were rehearsals"
    graph.replay()  # type: ignore[no-untyped-call]
    assert windows.boundaries == 2 and len(replayed) == 6
    assert not windows.record.notes


def test_replays_do_not_end_steps_that_the_script_names_itself(windows: Windows) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    for _ in range(3):
        windows.explicit_step()
    windows._replayed(optimizer)
    assert windows.boundaries == 3 and windows.finder.kind == "explicit"


def test_compiling_is_none_of_the_time_in_which_steps_are_to_settle(windows: Windows) -> None:
    """An H200: each new length was compiled anew, 12 s a step, and 30 s were over before Dynamo gave up."""
    compiling, plain = frozenset(["compilation"]), frozenset[str]()
    windows._intervals = [Interval(12.0, compiling, 0.0, 8) for _ in range(8)]
    assert not windows._settled(0.0)
    windows._intervals += [Interval(seconds, plain, 0.0, 8) for seconds in (11.0, 9.0)]
    assert not windows._settled(0.0)
    windows._intervals.append(Interval(10.5, plain, 0.0, 8))
    assert windows._settled(0.0) and not windows.record.timing.settled
    windows._intervals = [Interval(12.0 + 2 * (number % 3), compiling, 0.0, 8) for number in range(30)]
    assert windows._settled(0.0), "what compiles for ever is measured as it is"


# Memory of the timing window.


class Allocator:
    """Statistics of a GPU's memory, as the caching allocator counts and resets them."""

    def __init__(self) -> None:
        self.resets: list[int] = []
        self.retries = 3
        self.fails = False
        self._held: dict[int, tuple[int, int]] = {0: (0, 0), 1: (0, 0)}  # now, and the peak

    def hold(self, *amounts: int, device: int = 1) -> None:
        """So much is allocated, one after the other."""
        for amount in amounts:
            self._held[device] = amount, max(amount, self._held[device][1])

    def statistics(self, device: int) -> dict[str, Any]:
        if self.fails:
            raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats")
        now, peak = self._held[device]
        figures = {pool: {"current": now, "peak": peak, "allocated": 99 * GIB} for pool in ("all", "large_pool")}
        return {
            "allocated_bytes": figures,
            "reserved_bytes": {pool: {**each, "peak": peak + GIB} for pool, each in figures.items()},
            "oversize_segments": {"current": 1, "peak": peak // GIB},
            "num_alloc_retries": self.retries,
        }

    def reset(self, device: int) -> None:
        self.resets.append(device)
        self._held[device] = self._held[device][0], self._held[device][0]


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    made = Allocator()
    monkeypatch.setattr(torch._C, "_cuda_memoryStats", made.statistics, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_resetPeakMemoryStats", made.reset, raising=False)
    for name, function in (
        ("_accelerator_getDeviceStats", made.statistics),
        ("_accelerator_resetPeakStats", made.reset),
    ):
        if hasattr(torch._C, name):
            monkeypatch.setattr(torch._C, name, function)
    monkeypatch.setattr(torch.cuda.memory, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (50 * GIB + device, 80 * GIB))
    made.hold(20 * GIB, 2 * GIB, device=0)
    made.hold(30 * GIB, 2 * GIB)  # a checkpoint beside the model, an evaluation, cuDNN's trials
    return made


def test_peaks_are_those_of_the_window(allocator: Allocator) -> None:
    memory, gpu = Memory(), GpuMemory(torch)
    gpu.begin(1, memory)
    allocator.hold(6 * GIB, 3 * GIB)
    allocator.retries = 5
    gpu.read(memory)
    assert (memory.peak_allocated, memory.peak_reserved, memory.alloc_retries) == (6 * GIB, 7 * GIB, 2)
    assert memory.free_at_start == 50 * GIB + 1 and memory.capacity == 80 * GIB, "of the script's own device"
    gpu.begin(1, memory)  # anew
    gpu.read(memory)
    assert (memory.peak_allocated, memory.alloc_retries) == (3 * GIB, 0)
    assert allocator.resets == [1, 1], "the other device is none of ours"


def test_the_scripts_own_questions_are_answered_as_without_us(allocator: Allocator) -> None:
    memory, gpu = Memory(), GpuMemory(torch)
    before = torch.cuda.memory_stats(1), torch.cuda.memory_stats(0)
    for _ in range(2):
        gpu.begin(1, memory)
        assert (torch.cuda.memory_stats(1), torch.cuda.memory_stats(0)) == before
    allocator.hold(6 * GIB, 3 * GIB)
    assert torch.cuda.max_memory_allocated(1) == 30 * GIB and torch.cuda.max_memory_reserved(1) == 31 * GIB
    assert torch.cuda.memory_stats(1)["oversize_segments.peak"] == 30
    assert torch.cuda.memory_allocated(1) == 3 * GIB
    if hasattr(torch._C, "_accelerator_getDeviceStats"):
        assert torch._C._accelerator_getDeviceStats(1)["allocated_bytes"]["all"]["peak"] == 30 * GIB
    allocator.hold(40 * GIB, 4 * GIB)
    assert torch.cuda.max_memory_allocated(1) == 40 * GIB


@pytest.mark.parametrize("name", ["_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats"])
def test_a_script_that_sets_the_peaks_back_hides_none_from_us(name: str, allocator: Allocator) -> None:
    if not hasattr(torch._C, name):
        pytest.skip("not in this version")
    memory, gpu = Memory(), GpuMemory(torch)
    gpu.begin(1, memory)
    allocator.hold(6 * GIB, 3 * GIB)
    getattr(torch._C, name)(0)
    assert torch.cuda.max_memory_allocated(1) == 30 * GIB
    getattr(torch._C, name)(1)
    assert torch.cuda.max_memory_allocated(1) == 3 * GIB and torch.cuda.max_memory_allocated(0) == 2 * GIB
    allocator.hold(4 * GIB, 1 * GIB)
    allocator.retries = 1  # set back, too
    gpu.read(memory)
    assert torch.cuda.max_memory_allocated(1) == 4 * GIB
    assert memory.peak_allocated == 6 * GIB and memory.alloc_retries == 1


def test_what_cannot_be_had_of_the_memory_is_left_out(allocator: Allocator, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(device: int) -> tuple[int, int]:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch.cuda, "mem_get_info", full)
    memory, gpu = Memory(), GpuMemory(torch)
    gpu.begin(1, memory)
    gpu.read(memory)
    assert memory.free_at_start is None and memory.peak_allocated == 2 * GIB
    allocator.fails = True
    memory, gpu = Memory(), GpuMemory(torch)
    gpu.begin(1, memory)
    gpu.read(memory)
    assert memory == Memory() and allocator.resets == [1]
    gpu.begin(None, memory)  # the steps run on no GPU
    gpu.read(memory)
    assert memory == Memory()


# CUDA graphs.


class Silent:
    """Hears what the hooks report, and does nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


@pytest.fixture
def watched(unwatched: None) -> Iterator[Models]:
    """The models of a script; what is patched in torch is put back."""
    made = Models(torch, 0, Silent())
    made.install()
    yield made
    made.hooks_off()
    for patch in (*made._births, *made._jit):
        patch.off()


def hooks_of(module: Any) -> int:
    return len(module._forward_pre_hooks) + len(module._forward_hooks)


def test_modules_have_no_hooks_while_graphs_are_made_of_them(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    def make_graphed_callables(module: torch.nn.Module, sample_args: Any) -> Any:
        assert not hooks_of(module)
        watched.hooks_on()  # the thread that looks for models
        assert not hooks_of(module)
        forward = module.forward
        module.forward = lambda *given: forward(*given)  # type: ignore[method-assign]
        return module

    for owner in (torch.cuda, torch.cuda.graphs):
        monkeypatch.setattr(owner, "make_graphed_callables", make_graphed_callables)
    watched: Models = request.getfixturevalue("watched")
    model, given = torch.nn.Linear(4, 2), torch.zeros(3, 4)
    watched.hooks_on()
    for number, owner in enumerate((torch.cuda, torch.cuda.graphs), 1):
        assert hooks_of(model) == 2
        graphed = owner.make_graphed_callables(model, (given,))
        assert graphed is model and hooks_of(model) == 2
        graphed(given)
        (record,) = watched.records()
        assert record.calls == number and record.output == "tensor"


def test_torchs_own_check_for_hooks_passes(watched: Models) -> None:
    model = torch.nn.Linear(4, 2)
    watched.hooks_on()
    with pytest.raises(Exception) as raised:  # for lack of a GPU, or as these tensors are on none
        torch.cuda.make_graphed_callables(model, (torch.zeros(3, 4),))
    assert "hooks" not in str(raised.value) and hooks_of(model) == 2


def test_nothing_is_computed_into_a_graph(watched: Models, capturing: None) -> None:
    assert is_capturing(torch) and not may_compute(torch, torch.ones(2))
    model = torch.nn.Linear(4, 2)
    watched.hooks_on()
    model(torch.zeros(3, 4))
    assert not any(record.calls for record in watched.records())


def test_padding_is_not_read_in_a_graph(capturing: None, monkeypatch: pytest.MonkeyPatch) -> None:
    encoders = Encoders(torch)
    encoders._detail = True
    layer = torch.nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 1)
    given, padding = torch.zeros(2, 5, 8), torch.zeros(2, 5, dtype=torch.bool)
    encoders._observe(encoder, given, None, padding)
    assert encoders.records()[0].padding is None
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    encoders._observe(encoder, given, None, padding)
    assert encoders.records()[0].padding == 0.0


def test_gradients_are_not_read_in_a_graph(windows: Windows, capturing: None, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = list[int]()
    monkeypatch.setattr(windows.optimizers, "look_for_zeros", lambda: looks.append(1))
    windows.phase, windows.boundaries = "settle", 5
    windows.backward(torch.zeros(()))
    assert not looks
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    windows._backwards = 0
    windows.backward(torch.zeros(()))
    assert looks == [1]


CAPTURED = """
import contextlib
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 4)

    def forward(self, x):
        return self.layer(x)

class Graphed(Net):
    pass

@contextlib.contextmanager
def capture():
    kept = torch.cuda.is_initialized, torch.cuda.is_current_stream_capturing
    torch.cuda.is_initialized = torch.cuda.is_current_stream_capturing = lambda: True
    try:
        yield
    finally:
        torch.cuda.is_initialized, torch.cuda.is_current_stream_capturing = kept

first, second = Net(), Graphed()
optimizer = torch.optim.SGD(first.parameters(), lr=0.01)
other = torch.optim.SGD(second.parameters(), lr=0.01, momentum=0.9)

try:
    torch.cuda.make_graphed_callables(first, (torch.randn(8, 16),))
except Exception as error:  # there is no GPU
    assert "hooks" not in str(error), error

for number in range(5000):
    optimizer.zero_grad()
    first(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()
    if number % 2:
        with capture():
            other.zero_grad()
            loss = second(torch.randn(8, 16)).square().mean()
            loss.backward()
            other.step()
            loss.tolist()
"""


@pytest.mark.slow
@pytest.mark.oldest
def test_what_is_captured_is_no_step(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(CAPTURED)
    record = measure(Command(str(script), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK).record
    assert record.failure is None and record.complete and record.step_kind == "optimizer", record.notes
    (boundary,) = [each for each in record.optimizers if each.boundary]
    assert boundary.momentum == 0.0, "the other steps less often, but into graphs only"
    assert {each.cls for each in record.models if each.calls} == {"Net"}
    assert [each for each in record.call_sites if each.kind == "Tensor.tolist"] == []
