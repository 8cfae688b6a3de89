"""What the table says of one version of the script: figures of its runs, and of the machine."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Sequence

import msgspec

from advisor import __version__, compare
from advisor.evidence import Evidence
from advisor.findings import Range
from advisor.harness.layout import RunRecord
from advisor.run import Run

_GIB = 2**30


class Machine(msgspec.Struct, frozen=True):
    """Where and when a part was measured; ``memory_gib`` is the device's."""

    date: str
    device: str
    driver: str
    torch: str
    python: str
    cpu: str
    cpus: float
    memory_gib: float | None = None
    advisor: str = __version__

    @classmethod
    def of(cls, record: RunRecord) -> Machine:
        environment, device = record.environment, record.device
        return cls(
            date=str(datetime.date.today()),
            device=device.name or device.type,
            driver=device.driver,
            torch=environment.torch,
            python=environment.python or platform.python_version(),
            cpu=environment.cpu,
            cpus=environment.usable_cpus,
            memory_gib=device.memory / _GIB if device.memory else None,
        )


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """One version of the script. Shares are of 1, or None where a run cannot have them (a CPU has no kernels).

    ``samples_per_s`` is the steps' own; ``epoch_samples_per_s`` counts the start of each epoch as well, when workers
    have nothing ready. ``speedup`` is over the script as it is, per sample; its interval is None where one run has to
    do.
    """

    name: str
    command: str = ""
    step_ms: float | None = None
    samples_per_s: float | None = None
    epoch_samples_per_s: float | None = None
    speedup: float | None = None
    interval: Range | None = None
    rounds: int = 0
    batch: int | None = None
    workers: int | None = None
    gpu_busy: float | None = None
    tensor_cores: tuple[float, float] | None = None
    peak_allocated_gib: float | None = None
    peak_reserved_gib: float | None = None
    losses: list[float | None] = []  # the first ones; None: not finite
    notes: list[str] = []
    error: str = ""


def row_of(name: str, runs: Sequence[Run], originals: Sequence[Run], command: str = "") -> Row:
    """The row of one version from its runs, the first of which is a whole one; `originals` are the unchanged ones'."""
    first = runs[0]
    record, shown = first.record, Evidence.from_run(first).figures
    loader = next((each for each in record.loaders if each.trains), None)
    low, high = shown.get("tensor_core_share_low"), shown.get("tensor_core_share_high")
    busy = shown.get("kernel_busy_share_of_steps")
    allocated, reserved = record.memory.peak_allocated, record.memory.peak_reserved
    comparison = compare.compare_groups(
        *compare.group_costs(*([run.record for run in group] for group in (originals, runs)))
    )
    rates = [rate for run in runs if (rate := epoch_rate(run.record)) is not None]
    step_s = _mean([run.record.timing.step_s for run in runs])
    return Row(
        name=name,
        command=command,
        step_ms=step_s * 1e3 if step_s is not None else None,
        samples_per_s=_mean([_rate(run.record) for run in runs]),
        epoch_samples_per_s=_mean(rates) if len(rates) == len(runs) else None,
        speedup=comparison.speedup,
        interval=None if comparison.assumed else Range(comparison.low, comparison.speedup, comparison.high),
        rounds=len(runs),
        batch=loader.batch_size if loader is not None else None,
        workers=loader.num_workers if loader is not None else None,
        gpu_busy=float(busy) if isinstance(busy, int | float) else None,
        tensor_cores=(float(low), float(high))
        if isinstance(low, float | int) and isinstance(high, float | int)
        else None,
        peak_allocated_gib=allocated / _GIB if allocated else None,
        peak_reserved_gib=reserved / _GIB if reserved else None,
        losses=[loss if abs(loss) < float("inf") else None for loss in record.losses],
        notes=list(record.notes),
    )


def epoch_rate(record: RunRecord) -> float | None:
    """Samples per second over whole epochs: an epoch's steps and what its start takes beyond a step.

    None where no epoch began in the timing window, and where the loader's length is unknown.
    """
    timing = record.timing
    loader = next((each for each in record.loaders if each.trains), None)
    starts = timing.aside_counts.get("epoch start", 0)
    if loader is None or not starts or not timing.step_s or not loader.batches or not loader.batch_size:
        return None
    samples = loader.batches * loader.batch_size
    if loader.dataset_length is not None:
        samples = min(samples, loader.dataset_length)
    return samples / (loader.batches * timing.step_s + timing.aside.get("epoch start", 0.0) / starts)


def _rate(record: RunRecord) -> float | None:
    timing = record.timing
    return timing.samples_per_step / timing.step_s if timing.samples_per_step and timing.step_s else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
