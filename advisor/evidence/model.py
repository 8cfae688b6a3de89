"""The step as a model: its replay or its sum, its loader, its cores; calibrated once per run, asked many times."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from advisor.evidence import batch, facts
from advisor.evidence.coded import for_names, names_like
from advisor.evidence.facts import LoaderFacts
from advisor.evidence.gpu.allocations import device_allocations
from advisor.evidence.gpu.replay import LOAD, Script, Variation, async_copies, replay, script_of
from advisor.evidence.gpu.syncs import sync_groups
from advisor.evidence.loading import pipeline, prefetch
from advisor.evidence.steps import assign
from advisor.evidence.whatif import Change, Estimate

if TYPE_CHECKING:
    from advisor.evidence import Evidence
    from advisor.trace.tables import Ints, Trace

# Operators that work on samples wherever they are called: they draw, transform, pick, or look each element up.
_OF_SAMPLES = re.compile(
    r"aten::_?(rand|normal|uniform|bernoulli|multinomial|fft|conv|mkldnn_conv|upsample|grid_sampler|one_hot|scatter"
    r"|gather|index|flip|roll|sort|topk|cumsum|histc|quantile|cdist|softmax|log_softmax|where|masked|sin|cos|exp)(_|\d|$)"
)
# What the model's own inaccuracy does to the time that it says is saved: a tenth more, a quarter less (losses
# likewise), but never more than so much of the new step. Predictions of savings err towards too much: of the public
# V100 traces of one training the one with workers saves three quarters of what the other predicts, and sleeping fetches
# measured with 0, 1, 2 and 4 workers come within 2 %.
OPTIMISM, PESSIMISM = 0.10, 0.25
LEAST_BELOW, MOST_ABOVE = 0.15, 0.35
# Runs of one script on a quiet machine differ by about this much; on a CPU, which is shared with whatever else runs
# there, by more: 100 scripts run three times within minutes on two cores had standard deviations of 9 % (median) and
# 14 % (root of the mean square).
NOISE, NOISE_ON_CPU = 0.01, 0.12
# Below the first factor on host time a bare trace is taken for disturbed by the profiler; the factor is never below the
# second: the estimate of the overhead is a rough one.
_DISTURBED, _LEAST_HOST_SCALE = 0.97, 0.4
# Host time without the profiler over that with it. Nine runs on an H200 whose step the host made: 0.48 to 0.93, 0.55 in
# the middle; of two that their kernels made, the fixed scripts showed half at most.
_FASTEST_HOST, _USUAL_HOST = 0.2, 0.5
# A replay in which the host's pace makes no more difference than the first, times the step, does not tell it, and one
# in which it makes so much more as the second tells it fully.
_FLAT, _TOLD = 1.03, 0.12
# Of a CPU step with a larger batch: how much of the operators' time, and of the whole step, may be the same for any
# batch. Five tiny nets took 4.3 to 7.2 times as many samples per second with eight times the batch: 0.88 to 0.98 was.
_MOST_CONSTANT, _MOST_FIXED = 0.97, 0.98
_BATCH_BELOW = 0.4  # of the likely time: those steps were up to a third shorter than it
_SLOWED = 0.01  # of a step: less is none
# high / low of an estimate never exceeds this: a wider range says nothing.
WIDEST = 2.0


@dataclass(frozen=True, eq=False)
class StepModel:
    """How the step of one run responds to changes. Seconds throughout."""

    evidence: Evidence
    step_s: float
    host_scale: float | None = None  # factor on traced host time; None: so that the replay takes `step_s`
    waits: bool = True  # False: a step whose data is always there

    @classmethod
    def of(cls, evidence: Evidence) -> StepModel:
        return evidence.step_model

    @classmethod
    def undisturbed(cls, evidence: Evidence) -> StepModel | None:
        """The step of a bare trace as it would be without the profiler; None where that is no different."""
        traced = cls(evidence, evidence.step_s or 0.0, 1.0)
        script = traced.script
        if evidence.record is not None or script is None or not script.host_ns:
            return None
        scale = 1.0 - evidence.profiler_overhead_s * 1e9 / script.host_ns
        scale = max(_LEAST_HOST_SCALE, scale)
        if scale > _DISTURBED:
            return None
        seconds = replay(script, replace(traced._as_traced, host_scale=scale)) / 1e9
        return cls(evidence, seconds, scale)

    @cached_property
    def fed(self) -> StepModel:
        """The same step when its data is always there."""
        seconds = self._with_wait(Change(), 0.0)[1]
        return StepModel(self.evidence, seconds, self._host_scale, False)

    # --- the loader

    def loader(self, index: int | None) -> LoaderFacts | None:
        """The loader that a change is about: by its index in the record, else the one waited for longest."""
        loaders = self.evidence.loaders if self.waits else ()
        if index is not None:
            return next((loader for loader in loaders if loader.index == index), None)
        return loaders[0] if loaders else None

    def _batches(self, loader: LoaderFacts) -> float:
        """How many of its batches a step takes: in line no more than what the step waits for them."""
        if loader.workers == 0 and loader.fetch_s:
            return max(1.0, min(self.batches_per_step, loader.wait_s / loader.fetch_s))
        return self.batches_per_step

    def _fetch(self, loader: LoaderFacts) -> tuple[float, float]:
        """(wall, CPU) seconds to make a step's batches as things are, in one process."""
        batches = self._batches(loader)
        if loader.fetch_s is not None:
            wall = loader.fetch_s * batches
        else:
            # Workers keep up exactly when nothing waits: all that is known otherwise is their throughput.
            waiting = loader.wait_share > 0.05
            wall = (loader.workers or 1) * self.step_s if waiting else loader.wait_s
        cpu = loader.fetch_cpu_s
        return wall, wall if cpu is None else cpu * batches

    def _in_line_s(self, loader: LoaderFacts) -> float:
        """CPU seconds per step that count as this process's while it makes the batches: spinning threads' as well."""
        measured = loader.record.fetch_cpu_s if loader.record is not None else None
        return self._fetch(loader)[1] if measured is None else measured * self._batches(loader)

    @cached_property
    def wait_s(self) -> float:
        """Seconds per step that the host is blocked in loaders."""
        if not self.waits:
            return 0.0
        return min(self.step_s, (self.evidence.data_wait_share or 0.0) * (self.evidence.step_s or 0.0))

    @cached_property
    def main_threads(self) -> float:
        """Threads that the step keeps busy on average outside of loading; at least one, as far as is known."""
        record = self.evidence.record
        if record is None or record.timing.cpu_s is None:
            return 1.0
        rest = self.step_s - self.wait_s
        in_line = sum(self._in_line_s(loader) for loader in self.evidence.loaders if loader.workers == 0)
        if rest <= 0:
            return 1.0
        own = record.timing.cpu_s - in_line - (record.timing.openblas_s or 0.0)
        return min(max(1.0, own / rest), max(1.0, self.cores or 1.0))

    @property
    def on_cpu(self) -> bool:
        """Whether it is a recorded step of a CPU."""
        return self.evidence.record is not None and not self.evidence.breakdown.on_device

    @cached_property
    def cores(self) -> float | None:
        record = self.evidence.record
        return max(1.0, record.environment.usable_cpus) if record is not None else None

    # --- the replay

    @cached_property
    def script(self) -> Script | None:
        """The traced course, for a step with device work."""
        return script_of(self.evidence.steps, self.evidence.device) if self.evidence.breakdown.on_device else None

    @cached_property
    def _as_traced(self) -> Variation:
        device = self.evidence.device
        duration = (device.items_end - device.items_start).astype(np.float64)
        return Variation(duration, load_ns=self._load_ns(self.wait_s))

    def _load_ns(self, seconds_per_step: float) -> float | None:
        """Time of one load in the replay, so that a step's loads take so long in all."""
        if self.script is None:
            return None
        loads = self.script.kind.count(LOAD)
        return seconds_per_step * 1e9 * self.script.steps / loads if loads else None

    @cached_property
    def _host_scale(self) -> float:
        """Factor on host time with which the replay takes the measured step; 1 for a bare trace, as it was traced."""
        if self.host_scale is not None:
            return self.host_scale
        script = self.script
        if script is None or self.evidence.record is None:
            return 1.0

        def replayed(scale: float) -> float:
            return replay(script, replace(self._as_traced, host_scale=scale)) / 1e9

        low, high = _FASTEST_HOST, 1.0
        fastest, traced = replayed(low), replayed(high)
        # A step that its kernels take does not say how fast the host is, and one that they nearly take says little.
        told = min(1.0, max(0.0, (traced / fastest - _FLAT) / _TOLD)) if fastest else 0.0
        if fastest > self.step_s or not told:
            return _USUAL_HOST
        if traced <= self.step_s:
            return told * high + (1.0 - told) * _USUAL_HOST
        for _ in range(7):
            middle = (low + high) / 2
            if replayed(middle) > self.step_s:
                high = middle
            else:
                low = middle
        return told * (low + high) / 2 + (1.0 - told) * _USUAL_HOST

    @cached_property
    def _base(self) -> Variation:
        return replace(self._as_traced, host_scale=self._host_scale)

    @cached_property
    def _base_ns(self) -> float:
        return replay(self.script, self._base) if self.script is not None else self.step_s * 1e9

    # --- answers

    def estimate(self, change: Change) -> Estimate:
        """The step after `change`, with a range."""
        if self.step_s <= 0:
            return Estimate(0.0, 0.0, 0.0, 0.0)
        loader = self.loader(change.loader)
        about_workers = loader is not None and (change.workers is not None or change.persistent is not None)
        before = self.step_s + (self._epoch_s(loader, Change()) if loader is not None and about_workers else 0.0)
        low, likely, high, limit = self._after(change, loader)
        floor = self._throughput(change, loader)
        if loader is not None and about_workers:
            extra = self._epoch_s(loader, change)
            low, likely, high = low + extra, likely + extra, high + extra
        scale = change.batch_scale
        low, likely, high, floor = low / scale, likely / scale, high / scale, floor / scale
        saved = before - likely
        below, above = (OPTIMISM, PESSIMISM) if saved > 0 else (PESSIMISM, OPTIMISM)
        noise = (NOISE_ON_CPU if self.on_cpu else NOISE) * likely if abs(saved) > 1e-4 * before else 0.0
        least_below = _BATCH_BELOW if scale > 1.0 and self.on_cpu else LEAST_BELOW
        low = min(low, likely) - min(below * abs(saved), least_below * likely) - noise
        high = max(high, likely) + min(above * abs(saved), MOST_ABOVE * likely)
        high = max(high, min(before, high + noise))  # noise makes a saving smaller, and no loss of it
        low = max(low, floor)
        if scale > 1.0:
            low = max(low, before / scale)  # a larger batch cannot save more than all that is paid per step
        return Estimate(before, *_narrow(low, likely, high), (limit,) if limit else ())

    def _after(self, change: Change, loader: LoaderFacts | None) -> tuple[float, float, float, str]:
        """(low, likely, high, limit) seconds of a step with the new batch."""
        workers = (loader.workers or 0) if loader is not None else 0
        unknown_workers = loader is not None and loader.workers is None
        if change.workers is not None:
            workers, unknown_workers = max(0, change.workers), False
        touches_loader = (
            change.workers is not None
            or change.fetch_s is not None
            or change.fetch_cpu_s is not None
            or change.batch_scale != 1.0
        )
        if loader is not None and change.prefetch is not None and not touches_loader:
            return self._with_wait(change, self.wait_s - self._prefetched_s(loader, change.prefetch))
        if loader is None or (not touches_loader and (loader.workers != 0 or unknown_workers)):
            return self._with_wait(change, self.wait_s)
        wall, cpu = self._fetch(loader)
        batches = self._batches(loader)
        new_wall = wall if change.fetch_s is None else change.fetch_s * batches
        new_cpu = cpu if change.fetch_cpu_s is None else change.fetch_cpu_s * batches
        if change.fetch_s is not None and change.fetch_cpu_s is None:
            new_cpu = cpu * new_wall / wall if wall > 0 else new_wall
        if workers:
            new_wall *= _of_one_thread(loader)
        new_wall, new_cpu = (batch.larger_fetch_s(each, change.batch_scale) for each in (new_wall, new_cpu))
        others = max(0.0, self.wait_s - loader.wait_s)
        if workers == 0:
            # What the fetch does not explain of the wait (collating, waking up) stays.
            overhead = max(0.0, loader.wait_s - wall) if loader.workers == 0 else 0.0
            return self._with_wait(change, others + new_wall + overhead)
        rest = self._with_wait(change, others)
        slowed_s = self._slowed_s(loader, cpu)
        threads = self._threads(change)
        if slowed_s > _SLOWED * self.step_s:
            threads = max(threads, self._wanted_threads)

        def period(seconds: float, fetch_s: float, fetch_cpu_s: float) -> pipeline.Period:
            return pipeline.period(
                max(0.1 * seconds, seconds - slowed_s),
                workers=workers,
                fetch_s=fetch_s,
                fetch_cpu_s=fetch_cpu_s,
                main_threads=threads,
                cores=self.cores,
                batches=batches,
            )

        low, likely, high = (period(seconds, new_wall, new_cpu) for seconds in rest[:3])
        limit = rest[3] if likely.limit == "step" else likely.limit
        if workers != loader.workers or change.batch_scale != 1.0:
            return low.low, likely.likely, high.high, limit
        # Fetches of workers that are there were measured beside the step: what they lose to each other is in them, and
        # counted twice where the step that is would come out longer than it is.
        known, alone = period(rest[1], wall, cpu).likely, period(rest[1], 0.0, 0.0).likely
        factor = min(1.0, self.step_s / known) if known else 1.0
        first, middle, last = (max(each * factor, min(alone, each)) for each in (low.low, likely.likely, high.high))
        return first, middle, last, limit

    def _slowed_s(self, loader: LoaderFacts, fetch_cpu_s: float) -> float:
        """Seconds per step that a CPU step's own work loses to the workers that it has now."""
        if not loader.workers or self.script is not None or self.cores is None:
            return 0.0
        computing = max(0.0, self.step_s - self.wait_s)
        threads = self._wanted_threads
        slowed = computing - pipeline.undisturbed_s(
            computing, workers=loader.workers, worker_cpu_s=fetch_cpu_s, threads=threads, cores=self.cores
        )
        # Between that and what a scheduler that spreads the loss evenly would take from each core.
        return (slowed + min(slowed, fetch_cpu_s / max(1.0, self.cores))) / 2

    @cached_property
    def _wanted_threads(self) -> float:
        """Threads that a CPU step's operators are split among; those that wait for a core are not seen to be busy."""
        record = self.evidence.record
        return float(record.environment.intraop_threads) if record is not None else 1.0

    def _prefetched_s(self, loader: LoaderFacts, factor: int) -> float:
        """Seconds of the wait that go away when each of the loader's workers makes `factor` batches ahead."""
        if loader.record is None:
            return 0.0
        batches = self.batches_per_step
        between = max(0.0, self.step_s - loader.wait_s) / batches
        return batches * prefetch.shorter_wait(loader.record, loader.wait_s / batches, between, factor)

    @cached_property
    def batches_per_step(self) -> float:
        """How many batches a step takes from each of its loaders: several where gradients are accumulated."""
        record = self.evidence.record
        samples = record.timing.samples_per_step if record is not None else None
        each = sum(loader.batch_size or 0 for loader in record.loaders if loader.trains) if record is not None else 0
        return max(1.0, samples / each) if samples and each else 1.0

    def _throughput(self, change: Change, loader: LoaderFacts | None) -> float:
        """Seconds below which workers cannot deliver a batch; 0 without new workers."""
        if loader is None or not change.workers:
            return 0.0
        wall, _ = self._fetch(loader)
        if change.fetch_s is not None:
            wall = change.fetch_s * self._batches(loader)
        fetch_s = batch.larger_fetch_s(wall * _of_one_thread(loader), change.batch_scale)
        return fetch_s / change.workers * 0.97

    def _threads(self, change: Change) -> float:
        """Busy threads of the step's own; a host that waits for a GPU does not lose by sharing its core."""
        if self.script is None:
            return self.main_threads
        return min(1.0, self.script.host_ns * self._host_scale * change.launch_scale / self._base_ns)

    def _epoch_s(self, loader: LoaderFacts, change: Change) -> float:
        """A step's share of starting the epoch's workers."""
        record = loader.record
        if record is None or not loader.batches:
            return 0.0
        workers = record.num_workers if change.workers is None else change.workers
        persistent = record.persistent_workers if change.persistent is None else change.persistent
        if workers == 0 or persistent:
            return 0.0
        if loader.workers and loader.start_s is not None:
            per_epoch = loader.start_s * max(1.0, workers / loader.workers)
        else:
            context = record.context or (self.evidence.record.environment.start_method if self.evidence.record else "")
            fetch_s = self._fetch(loader)[0] * _of_one_thread(loader) / self._batches(loader)
            per_epoch = pipeline.start_s(workers, fetch_s, context)
        return per_epoch / loader.batches * self._batches(loader)

    def _with_wait(self, change: Change, wait_s: float) -> tuple[float, float, float, str]:
        """The step when the host is blocked in loaders for `wait_s`."""
        if self.script is None:
            on_device = self.evidence.breakdown.on_device
            return self._without_host(change, wait_s) if on_device else self._on_cpu(change, wait_s)
        bounds = []
        for filling in (True, False) if change.batch_scale != 1.0 else (True,):
            varied = self._varied(change, wait_s, filling)
            # Kernels take as long as they were seen to, whatever the replay makes of the host beside them.
            kernels = float(varied.duration[self.script.items].sum()) / self.script.steps / 1e9
            least = kernels if self._in_line else 0.0
            bounds.append(max(least, replay(self.script, varied) / self._base_ns * self.step_s))
        low, high = min(bounds), max(bounds)
        likely = (low + high) / 2
        busy = float(varied.duration[self.script.items].sum()) / self.script.steps / 1e9
        device = busy / self._base_ns * 1e9 * self.step_s
        return low, likely, high, "device" if device >= 0.9 * likely else "host"

    @cached_property
    def _in_line(self) -> bool:
        """Whether the device works off one stream, piece by piece, in no more time than the step without the profiler.

        Kernels of one stream overlap with programmatic dependent launch, and where a graph's branches are shown as one.
        """
        assert self.script is not None
        items = self.script.items
        start, end = self.evidence.device.items_start[items], self.evidence.device.items_end[items]
        order = np.argsort(start, kind="stable")
        overlaps = bool((start[order[1:]] < end[order[:-1]]).any())
        busy_s = float(self._as_traced.duration[items].sum()) / self.script.steps / 1e9
        return len(set(self.script.stream)) == 1 and not overlaps and busy_s <= self.step_s

    def _without_host(self, change: Change, wait_s: float) -> tuple[float, float, float, str]:
        """Device work whose launches are not in the trace (a trimmed file): only the work itself can shrink or grow."""
        device = self.evidence.device
        steps = self.evidence.steps
        inside = (device.items_start >= steps.start[0]) & (device.items_start < steps.end[-1])
        seconds = []
        for filling in (True, False) if change.batch_scale != 1.0 else (True,):
            duration = self._as_traced.duration * self._factors(change, filling)
            growth = float(duration[inside].sum()) / max(1.0, float(self._as_traced.duration[inside].sum()))
            busy = 1.0 - self.evidence.breakdown.idle_share
            seconds.append(self.step_s * (1.0 + busy * (growth - 1.0)) + wait_s - self.wait_s)
        return min(seconds), sum(seconds) / len(seconds), max(seconds), "device"

    def _varied(self, change: Change, wait_s: float, filling: bool) -> Variation:
        """`change` in the terms of the replay."""
        script, evidence = self.script, self.evidence
        assert script is not None
        device = evidence.device
        quick: frozenset[int] = frozenset()
        dropped: frozenset[int] = frozenset()
        changed: list[Ints | None] = [change.remove_copies] if change.remove_copies is not None else []
        if change.copies_async is not False:
            changed.append(None if change.copies_async is True else change.copies_async)
        for only in changed:
            calls, waits = async_copies(script, device, only)
            quick, dropped = quick | calls, dropped | waits
        if change.remove_allocations:
            rows = np.flatnonzero(device_allocations(device.trace))
            dropped |= frozenset(np.flatnonzero(np.isin(script.row, rows)).tolist())
        if change.remove_syncs is not False:
            group, groups = sync_groups(evidence.steps, device, evidence.nesting)
            wanted = range(len(groups)) if change.remove_syncs is True else change.remove_syncs
            rows = np.flatnonzero(np.isin(group, list(wanted)))
            dropped |= frozenset(np.flatnonzero(np.isin(script.row, rows)).tolist())
        removed = change.remove_host_s + self._operator_savings(change) * self._host_scale
        scale = self._base.host_scale
        if removed and script.host_ns:
            scale = max(0.0, scale - removed * 1e9 / script.host_ns)
        duration = self._base.duration * self._factors(change, filling)
        return Variation(duration, scale, change.launch_scale, self._load_ns(wait_s), quick, dropped)

    def _factors(self, change: Change, filling: bool) -> NDArray[np.float64]:
        """Factor on the duration of every piece of device work."""
        device, trace = self.evidence.device, self.evidence.trace
        kernels = len(trace.kernels)
        factors = np.ones(kernels + len(trace.copies))
        if change.kernel_scale is not None:
            factors[:kernels] *= _per_kernel(change.kernel_scale, trace)
        scale = change.h2d_scale
        if isinstance(scale, np.ndarray) or scale != 1.0:
            to_device = names_like(trace, trace.copies.kind, "HtoD".__eq__)
            scales = _given(scale, len(trace.copies)) if isinstance(scale, np.ndarray) else scale
            factors[kernels:] *= np.where(to_device, scales, 1.0)
        if change.remove_copies is not None:
            factors[kernels + change.remove_copies] = 0.0
        if change.batch_scale != 1.0:
            factors *= batch.item_factors(device, change.batch_scale, self._units, filling=filling)
        return factors

    @cached_property
    def _units(self) -> int | None:
        record = self.evidence.record
        if record is not None and record.device.multiprocessors:
            return record.device.multiprocessors
        units = self.evidence.device_properties.get("numSms")
        return units if isinstance(units, int) else None

    def _operator_savings(self, change: Change) -> float:
        """Seconds per step, as traced, that `operator_scale` takes from the operators (the loader's own stay)."""
        if change.operator_scale is None:
            return 0.0
        rows = self.evidence.operators.rows
        factors = _per_row(change.operator_scale, [row.name for row in rows])
        own = ((row.self_s - row.loading_s) * (1 - factor) for row, factor in zip(rows, factors, strict=True))
        return float(sum(own))

    def _on_cpu(self, change: Change, wait_s: float) -> tuple[float, float, float, str]:
        """A CPU step: its parts add. Times of the trace are scaled to the measured step."""
        rest = max(0.0, self.step_s - self.wait_s)
        traced = self.evidence.trace_step_s or self.step_s
        breakdown = self.evidence.breakdown
        traced_rest = max(1e-12, traced - breakdown.mean_s(facts.LOADER))
        deflate = rest / traced_rest
        computing = max(0.0, rest - self._operator_savings(change) * deflate) * change.cpu_scale
        computing = max(0.0, computing - change.remove_host_s)
        if change.batch_scale == 1.0:
            total = computing + wait_s
            return total, total, total, "compute" if wait_s < 0.5 * total else "loader"
        fixed = self._fixed_share() * computing
        total = fixed + (computing - fixed) * change.batch_scale + wait_s
        # Not all of what looks fixed is (Python is not always), and larger activations miss the cache: a quarter of it.
        worst = computing * change.batch_scale + wait_s
        return total, total, (3 * total + worst) / 4, "compute"

    def _fixed_share(self) -> float:
        """Share of a CPU step's computing that does not depend on the batch."""
        breakdown, evidence = self.evidence.breakdown, self.evidence
        computing = 1.0 - breakdown.share(facts.LOADER)
        if computing <= 0 or not evidence.trace_step_s:
            return 0.0
        per_sample = (breakdown.share(facts.FORWARD) + breakdown.share(facts.BACKWARD)) * evidence.trace_step_s
        per_sample = min(per_sample, self.operators_s)  # Python between the operators does not grow
        models = evidence.record.models if evidence.record is not None else []
        # Never all of it: a layer that is only weights still multiplies them by every sample.
        least = (1.0 - _MOST_CONSTANT) * per_sample
        if self._multiplying_s < per_sample:  # else the processor is a faster one than its instructions say
            least = max(least, self._multiplying_s)
        weights_s = batch.weights_s(models, breakdown.share(facts.BACKWARD) > 0)
        constant = min(max(0.0, per_sample - least), self.calling_s + weights_s)
        grows = per_sample - constant + self._beside_s
        return min(_MOST_FIXED, max(0.0, 1.0 - grows / (computing * evidence.trace_step_s)))

    @cached_property
    def _beside_s(self) -> float:
        """Seconds per traced step of operators beside forward and backward that grow with the batch: noise, a mask.

        Less what calling them takes. Plain arithmetic is left out: the weights' averages and penalties are made by it.
        """
        host, operators, steps = self.evidence.host, self.evidence.trace.operators, self.evidence.steps
        elsewhere = host.optimizer.union(host.loader)
        beside = (assign(steps, operators.start) >= 0) & ~self._computing & ~elsewhere.contains(operators.start)
        drawn = names_like(self.evidence.trace, operators.name, lambda name: _OF_SAMPLES.match(name) is not None)
        beside &= (operators.lane == steps.lane) & drawn
        own = self.evidence.nesting.self_ns[beside]
        return float(np.maximum(0, own - batch.BATCH_FIXED_S * 1e9).sum()) / 1e9 / max(1, len(steps))

    @cached_property
    def operators_s(self) -> float:
        """Seconds per traced step in the operators of forward and backward themselves."""
        return float(self._self_ns.sum()) / 1e9 / max(1, len(self.evidence.steps))

    @cached_property
    def calling_s(self) -> float:
        """Of these, what no call of an operator is without: of a short one all that it takes."""
        trace, own = self.evidence.trace, self._self_ns
        names = trace.operators.name[self._computing]
        fixed = for_names(trace, names, lambda name: batch.CONVOLUTION_FIXED_S.get(name, 0.0) * 1e9, np.float64)
        constant = np.minimum(own, batch.BATCH_FIXED_S * 1e9)
        constant = np.maximum(constant, np.minimum(fixed, batch.MOST_CONVOLUTION_FIXED * own))
        return float(constant.sum()) / 1e9 / max(1, len(self.evidence.steps))

    @cached_property
    def _self_ns(self) -> NDArray[np.int64]:
        """Nanoseconds that each operator of forward and backward takes itself, of all traced steps."""
        return self.evidence.nesting.self_ns[self._computing]

    @cached_property
    def _computing(self) -> NDArray[np.bool_]:
        """Which of the trace's operators are of the forward and backward of steps."""
        host, start = self.evidence.host, self.evidence.trace.operators.start
        # Of a model whose own forward is not called (Lightning's training_step) only the operators tell.
        computing = host.forward.union(host.differentiated).union(host.backward)
        return (assign(self.evidence.steps, start) >= 0) & computing.contains(start)

    @property
    def _multiplying_s(self) -> float:
        """Seconds per step that the processor needs at least for the step's multiplications in float32."""
        record = self.evidence.record
        if record is None:
            return 0.0
        rate = batch.flop_per_s(record.environment.cpu_flags)
        flops = self.evidence.flops.by_dtype.get("float32", 0.0)
        return flops / rate / max(1, record.environment.intraop_threads)


def estimate(evidence: Evidence, change: Change, data_ready: bool = False) -> Estimate:
    """The step after `change`. Without any measured step: 0 seconds, all equal.

    With `data_ready` both steps are of a loader that keeps up: what a fix is worth once the data is there.
    """
    traced, undisturbed = evidence.step_model, evidence.undisturbed_model
    if data_ready:
        traced, undisturbed = traced.fed, undisturbed.fed if undisturbed is not None else None
    answer = traced.estimate(change)
    return spanning(undisturbed.estimate(change), answer) if undisturbed is not None else answer


def spanning(one: Estimate, other: Estimate) -> Estimate:
    """What lies between two estimates of a change, in the seconds of the second: both speedups are possible."""
    if one.before <= 0 or other.before <= 0:
        return other
    unit = other.before / one.before
    middle = float(np.sqrt(one.likely * unit * other.likely))
    low, likely, high = _narrow(min(one.low * unit, other.likely), middle, max(one.high * unit, other.likely))
    return replace(other, low=low, likely=likely, high=high)


def _per_kernel(factors: Mapping[str, float] | NDArray[np.float64], trace: Trace) -> NDArray[np.float64]:
    """One factor per kernel, from factors by name or given per kernel."""
    if isinstance(factors, Mapping):
        return for_names(trace, trace.kernels.name, lambda name: factors.get(name, 1.0), np.float64)
    return _given(factors, len(trace.kernels))


def _per_row(factors: Mapping[str, float] | NDArray[np.float64], names: list[str]) -> NDArray[np.float64]:
    """One factor per row, from factors by name or given per row."""
    if isinstance(factors, Mapping):
        return np.array([factors.get(name, 1.0) for name in names], np.float64)
    return _given(factors, len(names))


def _given(factors: NDArray[np.float64], rows: int) -> NDArray[np.float64]:
    if len(factors) != rows:
        raise ValueError(f"{len(factors)} factors for {rows} rows")
    return np.asarray(factors, np.float64)


def _narrow(low: float, likely: float, high: float) -> tuple[float, float, float]:
    """The range in order, positive, and at most WIDEST wide around the likely value."""
    likely = max(likely, 1e-9)
    low, high = min(max(low, 1e-9), likely), max(high, likely)
    if high > WIDEST * low:
        # Shrink both ends towards the likely value in proportion (on a log scale) until they are that close.
        above, below = np.log(high / likely), np.log(likely / low)
        shrink = np.log(WIDEST) / (above + below)
        low, high = likely * float(np.exp(-below * shrink)), likely * float(np.exp(above * shrink))
    return low, likely, high


def _of_one_thread(loader: LoaderFacts) -> float:
    """How much longer a batch takes in a worker, which has one thread, than it does in the script's own process."""
    return loader.single_s / loader.fetch_s if loader.single_s is not None and loader.fetch_s else 1.0
