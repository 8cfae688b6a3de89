"""``Evidence``: facts about the step, computed once, when asked for.

One facade over a run and its trace, or over a bare trace. Every property is a small pure function of a module beside
this one or in a package below; the records that they return are in :mod:`advisor.evidence.facts`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from advisor.evidence.absent import empty_trace
from advisor.evidence.beside import Beside, spent_beside
from advisor.evidence.breakdown import cpu_breakdown, device_breakdown
from advisor.evidence.by_function import Calls
from advisor.evidence.caches import Thrashing, thrashing
from advisor.evidence.facts import (
    IDLE_CLASSES,
    IDLE_LOADER,
    IDLE_SYNC,
    IDLE_UNKNOWN,
    LOADER,
    Aside,
    Breakdown,
    Copies,
    Flops,
    IdleGaps,
    KernelRow,
    LoaderFacts,
    MatrixWork,
    MemoryFacts,
    Operators,
    Steps,
    SyncRow,
    exact_shares,
)
from advisor.evidence.figures import mean_figures, trace_figures
from advisor.evidence.flops import count_flops, flops_facts
from advisor.evidence.fresh_memory import FreshMemory, fresh_memory
from advisor.evidence.gpu.copies import copy_facts
from advisor.evidence.gpu.device import DeviceWork
from advisor.evidence.gpu.devices import Peak, peak_of
from advisor.evidence.gpu.idle import idle_between_launches, idle_gaps, setting_up, stalled_in
from advisor.evidence.gpu.kernels import is_compiled, kernel_rows, launching_operators, matrix_work
from advisor.evidence.gpu.syncs import sync_rows
from advisor.evidence.host import Host
from advisor.evidence.loading.loaders import loader_facts
from advisor.evidence.memory import memory_facts
from advisor.evidence.model import StepModel, estimate
from advisor.evidence.nesting import Nesting
from advisor.evidence.notes import CAPTURES, COLD, notes_of
from advisor.evidence.operators import operator_rows
from advisor.evidence.outside import Outside, longest_outside, own_files, spent_in, users_files
from advisor.evidence.overhead import profiler_overhead
from advisor.evidence.python_loops.loops import SampleLoop, sample_loop
from advisor.evidence.repeated import Repeated, repeated_function
from advisor.evidence.scattered import Scattered, free_in_forward, scattered
from advisor.evidence.steps import device_windows, step_windows
from advisor.evidence.verdict import bound_of, verdict_of
from advisor.evidence.whatif import Change, Estimate
from advisor.findings import Scalar
from advisor.harness.layout import CallSite, Loader, RunRecord
from advisor.run import Run
from advisor.trace.tables import Ints, Trace

__all__ = ["CAPTURES", "COLD", "Change", "Estimate", "Evidence"]


@dataclass(frozen=True, eq=False)
class Evidence:
    """Facts about one run, or one trace.

    ``record`` is None for a bare trace: facts then come from the trace only. ``detail`` is the window with stacks and
    shapes (attribution, never durations). ``others`` are the traces of the other ranks. ``source_sites`` are call sites
    read from the script's source, for a trace that was recorded elsewhere; ``source`` is that script.
    """

    trace: Trace
    record: RunRecord | None = None
    run: Run | None = None
    detail: Trace | None = None
    others: tuple[Trace, ...] = ()
    source_sites: tuple[CallSite, ...] = ()
    source: str = ""

    @classmethod
    def from_run(cls, run: Run) -> Evidence:
        """Evidence of a run; a run without a trace (over too soon) gives what its record alone can say."""
        trace = run.trace if run.trace is not None else empty_trace()
        return cls(trace, run.record, run, run.detail, run.other_traces)

    @classmethod
    def from_trace(
        cls, trace: Trace, others: Iterable[Trace] = (), source_sites: Iterable[CallSite] = (), source: str = ""
    ) -> Evidence:
        """Evidence of a trace recorded elsewhere; `others` are its fellow ranks, `source_sites` its script's calls."""
        return cls(trace, others=tuple(others), source_sites=tuple(source_sites), source=source)

    # --- the step

    @cached_property
    def steps(self) -> Steps:
        """The step windows of the trace, as the host went through them; ``pseudo`` where it has no step annotations."""
        return step_windows(self.trace)

    @cached_property
    def device_steps(self) -> Steps:
        """The windows in which the device does the steps' work: others in a bare trace whose device is far behind."""
        return self.steps if self.record is not None else device_windows(self.steps, self.device)

    @cached_property
    def shown_steps(self) -> Steps:
        """The same for a picture of one step: in a run, too, a device may be far behind until its last step ends."""
        if self.record is None or not self.device_is_gpu:
            return self.device_steps
        return device_windows(self.steps, self.device, drained=True)

    @cached_property
    def step_s(self) -> float | None:
        """Mean seconds per step: the timing window's where there is a run, else the trace's; None without either."""
        timed = self.record.timing.step_s if self.record is not None else None
        return timed if timed else self.trace_step_s

    @cached_property
    def trace_step_s(self) -> float | None:
        """Mean seconds per step as traced, profiler included."""
        return self.device_steps.total_ns / 1e9 / len(self.device_steps) if len(self.device_steps) else None

    @cached_property
    def inflation(self) -> float:
        """Step under the profiler over step without, at least 1; 1 where unknown."""
        if self.record is None or not self.record.timing.step_s:
            return 1.0
        profiled = self.record.profile_step_s or self.trace_step_s
        return max(1.0, profiled / self.record.timing.step_s) if profiled else 1.0

    @cached_property
    def samples_per_s(self) -> float | None:
        """Samples per second of the timing window; None where samples or steps are unknown."""
        if self.record is None or not self.record.timing.samples_per_step or not self.step_s:
            return None
        return self.record.timing.samples_per_step / self.step_s

    @cached_property
    def breakdown(self) -> Breakdown:
        """Where the steps' time goes: device classes where there is device work, CPU classes otherwise."""
        if len(self.trace.kernels) or len(self.trace.copies):
            return device_breakdown(self.device_steps, self.device, self.idle_gaps)
        return cpu_breakdown(self.steps, self.host)

    @cached_property
    def shares(self) -> dict[str, float]:
        """Class → share of the step, as reported: the breakdown's, of the step as it was timed without a profiler.

        On a CPU a loader that works in the script's process is slowed by the profiler more than the rest (many small
        operators): the timing window's wait takes the place of the traced one, and the rest shares what remains. A
        GPU's work takes as long as ever: what the traced step takes longer, it idled; the first traced step begins
        with no work queued, besides.
        """
        shares, waited = self.breakdown.shares, self.data_wait_share
        if self.record is None:
            return shares
        if self.breakdown.on_device:
            return self._idling_less(shares)
        if waited is None or shares.get(LOADER, 1.0) == 1.0:
            return shares
        rest = (1.0 - waited) / (1.0 - shares[LOADER])
        parts = {name: waited if name == LOADER else share * rest for name, share in shares.items()}
        return exact_shares(tuple(parts), np.array([round(part * 1e12) for part in parts.values()], np.int64))

    def _idling_less(self, shares: dict[str, float]) -> dict[str, float]:
        """`shares` of a GPU's traced step with as much less idling as the step takes less when it is not traced."""
        idle = sum(share for name, share in shares.items() if name in IDLE_CLASSES)
        undisturbed, traced = self.step_s, self.trace_step_s
        if not idle or not undisturbed or not traced or undisturbed >= traced:
            return shares
        left = max(0.0, idle - (1.0 - undisturbed / traced)) / idle
        parts = {name: share * (left if name in IDLE_CLASSES else 1.0) for name, share in shares.items()}
        whole = sum(parts.values())
        return exact_shares(tuple(parts), np.array([round(part / whole * 1e12) for part in parts.values()], np.int64))

    @cached_property
    def idle_gaps(self) -> IdleGaps:
        """Every gap of the device inside the steps, with what the host did meanwhile."""
        return idle_gaps(self.device_steps, self.host, self.device)

    # --- the device

    @cached_property
    def device_is_gpu(self) -> bool:
        """Device work is in the trace, or the record says that a model was on a GPU."""
        if len(self.trace.kernels) or len(self.trace.copies):
            return True
        models = self.record.models if self.record is not None else []
        return any(not device.startswith(("cpu", "meta")) for model in models for device in model.devices)

    @cached_property
    def device_name(self) -> str:
        """The device's (or, for a CPU run, the processor's) name; "" where unknown."""
        if self.record is not None:
            if not self.device_is_gpu:
                return self.record.environment.cpu or "CPU"
            if self.record.device.name:
                return self.record.device.name
        if not self.device_is_gpu:
            return "CPU"
        name = str(self.device_properties.get("name") or "")
        if self.amd and name in ("", "AMD Radeon Graphics"):  # what drivers say that do not know the product
            units = self.device_properties.get("numSms")
            known = peak_of(name, multiprocessors=units if isinstance(units, int) else None, amd=True)
            return f"AMD Instinct {known.name}" if known is not None else name
        return name

    @cached_property
    def amd(self) -> bool:
        """The device is one of AMD's: its properties look like NVIDIA's, and mean something else."""
        if self.record is not None and self.record.device.name:
            return bool(self.record.device.hip)
        name = str(self.device_properties.get("name") or "")
        return self.device_properties.get("warpSize") == 64 or name.startswith("AMD")

    @cached_property
    def capability(self) -> tuple[int, int] | None:
        """CUDA compute capability; None for other devices and where neither record nor trace has it."""
        if not self.device_is_gpu or self.amd:
            return None
        if self.record is not None and self.record.device.capability:
            major, minor, *_ = (*self.record.device.capability, 0)
            return major, minor
        written = [self.device_properties.get(key) for key in ("computeMajor", "computeMinor")]
        found = [number for number in written if isinstance(number, int)]
        return (found[0], found[1]) if len(found) == 2 else None

    @cached_property
    def compiled(self) -> bool:
        """Dynamo or Inductor has been at work on the steps, or they replay captured graphs."""
        record = self.record
        if record is not None and (record.compiles or any(model.compiled for model in record.models)):
            return True
        return is_compiled(self.trace)

    @cached_property
    def capture_share(self) -> float:
        """Share of the steps in which launches are captured into a graph instead of running."""
        captured = self.host.capturing.within(self.steps.start, self.steps.end).sum()
        return float(captured) / self.steps.total_ns if len(self.steps) else 0.0

    @cached_property
    def idle_between_launches(self) -> float:
        """Share of the steps in which the device waits for launches, longer pauses of the host left out."""
        return idle_between_launches(self.idle_gaps, self.device_steps)

    @cached_property
    def setup_share(self) -> float:
        """Share of the steps in which the device idles because the driver sets itself up: a cold start."""
        taken = setting_up(self.host, self.device).within(self.steps.start, self.steps.end).sum()
        return float(taken) / self.steps.total_ns if len(self.steps) else 0.0

    @cached_property
    def trains(self) -> bool:
        """A backward pass or an optimizer runs in the steps."""
        if self.record is not None:
            return any(each.steps for each in self.record.optimizers)
        return bool(len(self.host.backward) or len(self.host.optimizer))

    @cached_property
    def script(self) -> str:
        """The file of the script, where edits of the whole program go; "" for a module, or where it is unknown."""
        if self.record is None:
            return self.source
        return self.record.script if not self.record.module else ""

    @cached_property
    def peak(self) -> Peak | None:
        """The device's row in the table of peaks; None for a CPU or a device that the table does not have."""
        if not self.device_is_gpu:
            return None
        units = self.device_properties.get("numSms")
        if self.record is not None and self.record.device.multiprocessors:
            units = self.record.device.multiprocessors
        return peak_of(self.device_name, multiprocessors=units if isinstance(units, int) else None, amd=self.amd)

    @cached_property
    def kernels(self) -> tuple[KernelRow, ...]:
        """Kernels in the steps by name, the most expensive first."""
        return kernel_rows(self.trace, self.device_steps, self._launchers)

    @cached_property
    def matrix(self) -> MatrixWork:
        """Matrix work on, off, and perhaps on the matrix cores."""
        return matrix_work(self.kernels)

    @cached_property
    def copies(self) -> Copies:
        """Copies in the steps, by kind and memory."""
        return copy_facts(self.device_steps, self.device, self.record)

    @cached_property
    def syncs(self) -> tuple[SyncRow, ...]:
        """Host synchronizations in the steps, the most expensive first."""
        return sync_rows(self.steps, self.device, self.nesting, self.record)

    @cached_property
    def memory(self) -> MemoryFacts:
        """Peak memory against capacity."""
        return memory_facts(self.record, self.trace, self.device_is_gpu)

    @cached_property
    def flops(self) -> Flops:
        """FLOPs per step from the detail window's shapes (or the trace's own), and the share of the peak."""
        window = self.detail if self.detail is not None else self.trace
        steps = step_windows(window) if window is self.detail else self.steps
        return flops_facts(count_flops(window, steps), self.step_s, self.peak, self.matrix, self.device_is_gpu)

    # --- the host

    @cached_property
    def loaders(self) -> tuple[LoaderFacts, ...]:
        """Loaders that feed the steps, the one with the longest wait first."""
        name = IDLE_LOADER if self.breakdown.on_device else LOADER
        found = loader_facts(self.record, self.steps, self.host, self.step_s, self.breakdown.share(name))
        made = [each.site for each in self.source_sites if each.kind == "DataLoader"]
        if len(found) == len(made) == 1 and found[0].site is None:
            found = (replace(found[0], site=made[0]),)
        return found

    @cached_property
    def feeding(self) -> Loader | None:
        """The record of the loader that most steps take a batch from, or of the one with the longest wait."""
        loaders = [each.record for each in self.loaders if each.record is not None]
        return next((each for each in loaders if each.trains), loaders[0] if loaders else None)

    @cached_property
    def data_wait_share(self) -> float | None:
        """Share of the step that the host is blocked in loaders; None where no loader is seen."""
        if not self.loaders:
            return None
        return min(1.0, sum(loader.wait_share for loader in self.loaders))

    @cached_property
    def operators(self) -> Operators:
        """Operators in the steps by name, the most self time first."""
        return operator_rows(self.trace, self.steps, self.nesting, self._launchers, self.host.loader, self.detail)

    @cached_property
    def calls(self) -> Calls | None:
        """What the script's functions call, with shapes; None where no window of a run tells of that."""
        known = self.record is not None and self.detail is not None and len(self.detail.operators)
        return Calls(self.detail) if known and self.detail is not None else None

    @cached_property
    def sample_loop(self) -> SampleLoop | None:
        """The longest loop of the step in Python over parts of a tensor; None where it has none of some rounds."""
        return sample_loop(self.trace, self.steps, self.host, self.nesting, self.detail)

    @cached_property
    def aside(self) -> Aside:
        """Wall time between the first step and the end of the run that is not steps."""
        if self.record is None:
            return Aside(None)
        return Aside(self.record.steps_wall_s, dict(self.record.aside))

    # --- conclusions

    @cached_property
    def bound(self) -> str:
        """input | device | host | sync | copy | communication | compute (a CPU step) | unknown."""
        return bound_of(self.shares, self.breakdown.on_device, self.data_wait_share)

    @cached_property
    def outside(self) -> Outside | None:
        """The user's function in which the steps spend most of what is beside their own work; None where unknown."""
        if self.detail is None or self.record is None:
            return None
        return longest_outside(self.detail, step_windows(self.detail), users_files(self.record))

    @cached_property
    def beside(self) -> Beside | None:
        """The user's function that most of what is beside the steps' own work is spent in; None where unknown.

        One that ``loops`` is the script's loop over the steps, by its own lines.
        """
        if self.detail is None or self.record is None:
            return None
        return spent_beside(self.detail, step_windows(self.detail), own_files(self.record))

    @cached_property
    def thrashing(self) -> Thrashing | None:
        """The user's cache that is too small, and takes most of the steps for it; None where none is known to be."""
        return thrashing(self)

    @cached_property
    def fresh_memory(self) -> FreshMemory | None:
        """What a CPU's steps get anew from the kernel; None where that is unknown."""
        if self.detail is None or self.record is None:
            return None
        return fresh_memory(self.record, self.detail, step_windows(self.detail))

    @cached_property
    def scattered(self) -> Scattered | None:
        """The user's function without torch in it that takes most of the steps by short calls; None where unknown."""
        if self.detail is None or self.record is None or not self.step_s:
            return None
        free_share = free_in_forward(self.trace, self.steps)
        return scattered(self.detail, step_windows(self.detail), own_files(self.record), self.step_s, free_share)

    @cached_property
    def repeated_function(self) -> Repeated | None:
        """The user's function that computes most of the forward, if a compiler could take it; None where unknown."""
        if self.detail is None or self.record is None:
            return None
        return repeated_function(self.detail, step_windows(self.detail), users_files(self.record))

    @cached_property
    def verdict(self) -> str:
        """One sentence: "input-bound: 61% of the step waits for data"."""
        cause = {"unknown": IDLE_UNKNOWN, "sync": IDLE_SYNC}.get(self.bound)
        waits_in = ""
        if cause and self.breakdown.on_device:
            waits_in = stalled_in(self.idle_gaps, self.host, self.device, cause)
        spent = ""
        if not self.breakdown.on_device:
            found = self.beside
            known = found is not None and not found.loops
            spent = str(found) if known else spent_in(self.outside, self.shares)
        return verdict_of(
            self.bound,
            self.shares,
            self.breakdown.on_device,
            self.data_wait_share,
            self.loaders,
            self.matrix,
            waits_in,
            spent,
        )

    @cached_property
    def figures(self) -> dict[str, Scalar]:
        """The figures of ``findings.json``: means over ranks where there are several."""
        figures = mean_figures(self.ranks) if self.ranks else trace_figures(self.trace)
        more: dict[str, Scalar] = {
            "step_ms": self.step_s * 1e3 if self.step_s else None,
            "samples_per_s": self.samples_per_s,
            "data_wait_share": self.data_wait_share,
            "tensor_core_share_low": self.matrix.share_low,
            "tensor_core_share_high": self.matrix.share_high,
            "matrix_off_tensor_cores_share": self.matrix.eligible_share if self.matrix.total_s else None,
            "peak_memory_share": self.memory.share,
            "flops_per_step": self.flops.per_step if self.flops.achieved else None,
            "flops_per_s": self.flops.achieved,
            "mfu": self.flops.mfu,
            "idle_share": self.breakdown.idle_share if self.breakdown.on_device else None,
            "profiler_inflation": self.inflation if self.record is not None else None,
            "aside_share": self.aside.share if self.aside.wall_s else None,
        }
        return figures | {key: value for key, value in more.items() if value is not None}

    @cached_property
    def ranks(self) -> list[dict[str, Scalar]]:
        """One entry of figures per rank where there are several, else empty."""
        if not self.others:
            return []
        return [{"rank": _rank(trace, i)} | trace_figures(trace) for i, trace in enumerate((self.trace, *self.others))]

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What is less certain, in sentences."""
        return tuple(dict.fromkeys(notes_of(self)))

    def what_if(self, change: Change, *, data_ready: bool = False) -> Estimate:
        """The step after `change`: low, likely and high seconds. `data_ready`: of a step that waits for no data."""
        return estimate(self, change, data_ready)

    @cached_property
    def step_model(self) -> StepModel:
        """The what-if model, calibrated to this run; of a bare trace the step as traced."""
        return StepModel(self, self.step_s or 0.0)

    @cached_property
    def undisturbed_model(self) -> StepModel | None:
        """The same for a bare trace without the profiler's overhead; None where there is nothing to take off."""
        return StepModel.undisturbed(self)

    @cached_property
    def profiler_overhead_s(self) -> float:
        """Seconds of host time per traced step that the profiler takes, as far as the trace alone can tell."""
        return profiler_overhead(self.trace, self.steps, self.nesting.parent, self.host.lanes)

    # --- what the properties above are made from

    @cached_property
    def host(self) -> Host:
        return Host(self.trace, self.steps)

    @cached_property
    def device(self) -> DeviceWork:
        return DeviceWork(self.trace, self.host)

    @cached_property
    def nesting(self) -> Nesting:
        return Nesting(self.trace)

    @cached_property
    def _launchers(self) -> Ints:
        return launching_operators(self.device, self.nesting)

    @cached_property
    def device_properties(self) -> dict[str, object]:
        """Properties of the device that the kernels ran on."""
        used = int(self.trace.kernels.device[0]) if len(self.trace.kernels) else 0
        found = [device for device in self.trace.devices if device.get("id") == used]
        return (found or list(self.trace.devices) or [{}])[0]


def _rank(trace: Trace, index: int) -> int:
    rank = trace.distributed.get("rank")
    return rank if isinstance(rank, int) else index
