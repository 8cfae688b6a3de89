"""How figures are said to a reader: labels, units, ranges. Used by every renderer, so that all say the same."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from typing import Any

from advisor.findings import FindingDocument, Findings, FixDocument, Range, Scalar

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_SI_PREFIXES = ("", "K", "M", "G", "T", "P")

# Words that are not written like the rest of a label.
_SPELLING = {
    "amp": "AMP",
    "aten": "ATen",
    "bf16": "bf16",
    "cpu": "CPU",
    "cpus": "CPUs",
    "cuda": "CUDA",
    "cudnn": "cuDNN",
    "d2h": "D2H",
    "dtod": "DtoD",
    "dtoh": "DtoH",
    "flops": "FLOP/s",
    "flop": "FLOP",
    "fp16": "fp16",
    "fp32": "fp32",
    "gpu": "GPU",
    "h2d": "H2D",
    "htod": "HtoD",
    "mfu": "MFU",
    "nccl": "NCCL",
    "rccl": "RCCL",
    "shm": "/dev/shm",
    "tf32": "TF32",
}

SAFETY = {
    "exact": "same batches, same arithmetic: only the speed changes",
    "numeric": "rounding changes: results differ in the last digits",
    "behaviour": "training or results change: check that they are still as good",
}

FIX_KINDS = {
    "edit": "edit of your source",
    "argument": "command-line argument",
    "environment": "environment variable",
    "advice": "advice: no safe edit exists",
}

STATUSES = {
    "proposed": "proposed, not tried yet",
    "kept": "tried and kept",
    "reverted": "tried and reverted: the measurement did not confirm it",
    "failed": "tried, and the script failed with it",
    "inconclusive": "tried: the machine's own spread hides the difference",
    "skipped": "not tried",
}


# The figures whose name alone would not tell a newcomer what they count.
_FIGURES = {
    "kernels": "kernels recorded",
    "copies": "copies and memsets recorded",
    "steps": "steps recorded",
    "gpu_window_ms": "first to last GPU event",
    "gpu_busy_share": "GPU busy, of that",
    "kernel_busy_ms": "time with any kernel running",
    "kernel_sum_ms": "kernel time, all streams summed",
    "h2d_ms": "host-to-device copies",
    "h2d_bytes": "host-to-device bytes",
    "h2d_pageable": "host-to-device copies from pageable memory",
    "mean_step_ms": "step under the profiler",
    "kernel_busy_share_of_steps": "kernels running, of the steps",
    "step_ms": "step",
    "samples_per_s": "samples per second",
    "data_wait_share": "waiting for data, of the step",
    "tensor_core_share_low": "matrix work on Tensor cores, at least",
    "tensor_core_share_high": "matrix work on Tensor cores, at most",
    "float32_matrix_share": "float32 matrix work, of kernel time",
    "matrix_off_tensor_cores_share": "matrix work off Tensor cores, of kernel time",
    "peak_memory_share": "peak memory, of the capacity",
    "flops_per_step": "floating-point operations per step",
    "flops_per_s": "achieved FLOP/s",
    "mfu": "model FLOPs utilization (MFU)",
    "idle_share": "device idle, of the step",
    "profiler_inflation": "step under the profiler over step without",
    "aside_share": "wall time that is not steps",
}


def evidence(figures: Mapping[str, Scalar]) -> list[tuple[str, str]]:
    """A finding's figures as (label, text); what is unknown is left out, and equal labels are told apart."""
    known = {key: amount for key, amount in figures.items() if amount is not None}
    labels = [label(key) for key in known]
    rows = []
    for key, amount in known.items():
        name = label(key)
        if labels.count(name) > 1 and key.endswith("_share"):
            name += " share"
        elif labels.count(name) > 1 and key.endswith("bytes"):
            name += " size"
        rows.append((name, value(key, amount)))
    return rows


def figure(key: str) -> str:
    """What a figure of the document is called in a table of figures."""
    return _FIGURES.get(key) or label(key)


def label(key: str) -> str:
    """A figure's name as words: ``data_wait_share`` → ``data wait``, its unit being said by its value."""
    words = re.sub(r"_per_s$", " per second", key)
    words = re.sub(r"_(share|ms|us|bytes|percent|pct|s)$", "", words)
    return " ".join(_SPELLING.get(word, word) for word in re.split(r"[_\-\s]+", words) if word) or key


def value(key: str, amount: Scalar) -> str:
    """A figure as text; its unit is the one that its name carries (``_ms``, ``_share``, ``_bytes`` …)."""
    if amount is None:
        return "unknown"
    if isinstance(amount, bool):
        return "yes" if amount else "no"
    if isinstance(amount, str):
        return amount
    if isinstance(amount, float) and not math.isfinite(amount):
        return "unknown"
    name = key.lower()
    if re.search(r"(^|_)(share|mfu|utilization)(_(low|high)|_of_[a-z_]+)?$", name):
        return percent(amount)
    if name.endswith(("_percent", "_pct")):
        return percent(amount / 100)
    if re.search(r"(^|_)flops?(_s|_per_s)?$", name):
        return decimal(amount, "FLOP/s")
    if re.search(r"(^|_)flops?_per_step$", name):
        return decimal(amount, "FLOP")
    if name.endswith("_per_s"):
        return number(amount)
    if name.endswith("_ms"):
        return milliseconds(amount)
    if name.endswith("_us"):
        return milliseconds(amount / 1e3)
    if name.endswith(("_s", "_seconds")) or name == "seconds":
        return milliseconds(amount * 1e3)
    if name.endswith(("bytes", "_memory", "_capacity")) or name in ("memory", "capacity"):
        return size(amount)
    if name.endswith(("speedup", "inflation")):
        return f"{amount:.2f}×"
    return number(amount)


def percent(share: float) -> str:
    """A share of 1 as a percentage: whole above 10 %, one decimal below."""
    shown = share * 100
    if shown and abs(shown) < 0.05:
        return "<0.1%" if shown > 0 else "0%"
    return f"{shown:.0f}%" if abs(shown) >= 10 or shown == round(shown) else f"{shown:.1f}%"


def number(amount: float) -> str:
    """A plain count or rate: three significant digits, thousands separated."""
    if isinstance(amount, int) or (abs(amount) < 1e15 and amount == int(amount)):
        return f"{int(amount):,}"
    if abs(amount) >= 100:
        return f"{amount:,.0f}"
    return f"{amount:.3g}"


def milliseconds(ms: float) -> str:
    """A duration, given in milliseconds, in the unit that reads best."""
    size_of = abs(ms)
    if size_of == 0:
        return "0 ms"
    if size_of < 1e-3:
        return f"{ms * 1e6:.3g} ns"
    if size_of < 1:
        return f"{ms * 1e3:.3g} µs"
    if size_of < 1000:
        return f"{ms:.0f} ms" if size_of >= 100 else f"{ms:.3g} ms"
    if size_of < 120_000:
        return f"{ms / 1e3:.3g} s"
    return f"{ms / 60_000:.3g} min"


def size(count: float) -> str:
    """Bytes, in binary units."""
    amount = float(count)
    for unit in _BYTE_UNITS:
        if abs(amount) < 1024 or unit == _BYTE_UNITS[-1]:
            break
        amount /= 1024
    if unit == "B":
        return f"{amount:.0f} B"
    return f"{amount:,.0f} {unit}" if abs(amount) >= 100 else f"{amount:.3g} {unit}"


def decimal(amount: float, unit: str) -> str:
    """An amount in decimal units: ``3.2 TFLOP/s``."""
    amount = float(amount)
    for prefix in _SI_PREFIXES:
        if abs(amount) < 1000 or prefix == _SI_PREFIXES[-1]:
            break
        amount /= 1000
    return f"{amount:.3g} {prefix}{unit}"


def speedup(range_: Range) -> str:
    """``1.4–1.8×``; two decimals where the ends are close to each other or to 1. What is no faster saves memory."""
    if range_.likely <= 1.0:
        return "memory"
    decimals = 1 if range_.high - range_.low >= 0.15 and range_.low >= 1.05 else 2
    low, high = f"{range_.low:.{decimals}f}", f"{range_.high:.{decimals}f}"
    return f"{low}–{high}×" if low != high else f"{range_.likely:.2f}×"


def place(finding: FindingDocument) -> str:
    """``train.py:41``, or a dash where no place in the source is known."""
    if not finding.file:
        return "–"
    return f"{finding.file}:{finding.line}" if finding.line else finding.file


def prediction(finding: FindingDocument) -> str:
    """The predicted gain in one clause, with where it comes from when it is not this run's own model."""
    predicted = finding.predicted
    if predicted.speedup.likely <= 1.0:
        return "no faster: what it saves is memory"
    text = f"{speedup(predicted.speedup)} faster, likely {predicted.speedup.likely:.2f}×"
    if predicted.basis and predicted.basis != "model":
        text += f" ({predicted.basis})"
    if predicted.one_time_s:
        text += f"; costs {milliseconds(predicted.one_time_s * 1e3)} once"
        if predicted.pays_back_after_steps:
            text += f", pays back after {predicted.pays_back_after_steps:,} steps"
    return text


def measurement(finding: FindingDocument) -> str:
    """What a trial measured, in one clause; empty when there was none."""
    measured = finding.measured
    if measured is None:
        return ""
    text = (
        f"{milliseconds(measured.before_ms)} → {milliseconds(measured.after_ms)} per step: {measured.speedup:.2f}× "
        f"(95% interval {measured.low:.2f}–{measured.high:.2f}×)"
    )
    if measured.loss_drift is not None:
        text += f"; losses differ by {percent(measured.loss_drift)}"
    return text


def script(path: str | None) -> str:
    """The script as its user would name it: relative to the current folder where it lies below it."""
    if not path or not os.path.isabs(path):
        return path or ""
    relative = os.path.relpath(path)
    return path if relative.startswith(os.pardir) else relative


def headline(document: Findings) -> list[str]:
    """The run in a few words: script, device, step time, throughput; what is not known is left out."""
    rank = document.environment.get("rank")
    words = [script(document.script), f"rank {rank}" if rank else "", document.device]
    if document.step_ms is not None:
        words.append(f"{milliseconds(document.step_ms)} per step")
    if document.samples_per_s is not None:
        words.append(f"{number(document.samples_per_s)} samples/s")
    return [word for word in words if word]


def settings(fix: FixDocument) -> list[str]:
    """The fix as it is typed: ``--batch-size 256``, ``OMP_NUM_THREADS=4``."""
    return [f"{name} {setting}".rstrip() for name, setting in fix.arguments.items()] + [
        f"{name}={setting}" for name, setting in fix.environment.items()
    ]


def flattened(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The environment as rows of text; what is empty or unknown is left out."""
    return [(label(key), text) for key, entry in environment.items() if (text := _entry(key, entry))]


def _entry(key: str, entry: Any) -> str:
    if isinstance(entry, Mapping):
        inner = ((name, _entry(name, amount)) for name, amount in entry.items())
        return ", ".join(f"{_SPELLING.get(name, name)} {text}" for name, text in inner if text)
    if isinstance(entry, (list, tuple)):
        return ", ".join(str(item) for item in entry)
    return "" if entry is None or entry == "" else value(key, entry)
