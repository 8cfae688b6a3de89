"""Peaks of accelerators: dense FLOP/s by dtype and memory bandwidth, as the makers publish them.

Dense figures throughout: where a data sheet prints only the sparse one, it is halved. For consumer GeForce cards the
fp16 figure is the one with fp32 accumulation, which is what PyTorch uses. AMD's MI250 figures are per GCD, which is
what PyTorch sees as a device.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Peak:
    """``flops``: dtype → FLOP/s (``float32`` without matrix cores, ``tf32``, ``float16``, ``bfloat16``, ``float8``);
    ``bandwidth``: bytes/s of device memory; ``source``: the maker's document."""

    name: str
    flops: Mapping[str, float]
    bandwidth: float
    source: str

    def of(self, dtype: str) -> float | None:
        """FLOP/s of `dtype`; None where the device does not have it."""
        return self.flops.get(dtype)

    @property
    def bf16(self) -> bool:
        return "bfloat16" in self.flops


def _peak(
    name: str,
    bandwidth_gb: float,
    source: str,
    *,
    fp32: float,
    fp16: float,
    tf32: float = 0.0,
    bf16: bool = True,
    fp8: float = 0.0,
) -> Peak:
    """A row of the table from figures in TFLOP/s and GB/s, as data sheets print them; 0 means "does not have it"."""
    tera = {"float32": fp32, "tf32": tf32, "float16": fp16, "bfloat16": fp16 if bf16 else 0.0, "float8": fp8}
    return Peak(name, {k: v * 1e12 for k, v in tera.items() if v}, bandwidth_gb * 1e9, source)


_GA102 = "NVIDIA Ampere GA102 whitepaper v2, table 2"
_AD102 = "NVIDIA Ada GPU architecture whitepaper v2, appendix A"
_GB202 = "NVIDIA RTX Blackwell GPU architecture whitepaper v1.1, appendix A"

# Pattern in the device's name (case ignored) → peak. The first match wins: special forms stand before general ones.
_TABLE: tuple[tuple[str, Peak], ...] = (
    (r"V100.*(PCIE|FHHL)", _peak("V100 PCIe", 900, "NVIDIA V100 data sheet, 2020", fp32=14.0, fp16=112, bf16=False)),
    (r"V100", _peak("V100 SXM2", 900, "NVIDIA V100 data sheet, 2020", fp32=15.7, fp16=125, bf16=False)),
    (r"\bT4\b", _peak("T4", 320, "NVIDIA T4 data sheet, 2019", fp32=8.1, fp16=65, bf16=False)),
    (r"A10G", _peak("A10G", 600, "NVIDIA A10G data sheet", fp32=35.0, tf32=35, fp16=70)),
    (r"\bA10\b", _peak("A10", 600, "NVIDIA A10 data sheet, 2021", fp32=31.2, tf32=62.5, fp16=125)),
    (
        r"A100.*PCIE.*80|A100 80GB PCIe",
        _peak("A100 80GB PCIe", 1935, "NVIDIA A100 data sheet, 2021", fp32=19.5, tf32=156, fp16=312),
    ),
    (r"A100.*80GB", _peak("A100 80GB", 2039, "NVIDIA A100 data sheet, 2021", fp32=19.5, tf32=156, fp16=312)),
    (r"A100|A800", _peak("A100", 1555, "NVIDIA A100 data sheet, 2020", fp32=19.5, tf32=156, fp16=312)),
    (r"\bA30\b", _peak("A30", 933, "NVIDIA A30 data sheet, 2022", fp32=10.3, tf32=82, fp16=165)),
    (r"\bA40\b", _peak("A40", 696, "NVIDIA A40 data sheet, 2021", fp32=37.4, tf32=74.8, fp16=149.7)),
    (r"RTX A6000", _peak("RTX A6000", 768, _GA102, fp32=38.7, tf32=77.4, fp16=154.8)),
    (r"L40S", _peak("L40S", 864, "NVIDIA L40S data sheet, 2023", fp32=91.6, tf32=183, fp16=362, fp8=733)),
    (r"\bL40\b", _peak("L40", 864, "NVIDIA L40 data sheet, 2023", fp32=90.5, tf32=90.5, fp16=181, fp8=362)),
    (r"\bL4\b", _peak("L4", 300, "NVIDIA L4 data sheet, 2023", fp32=30.3, tf32=60, fp16=121, fp8=242.5)),
    (r"RTX 6000 Ada", _peak("RTX 6000 Ada", 960, _AD102, fp32=91.1, tf32=182.1, fp16=364.2, fp8=728.5)),
    (r"RTX 3090 Ti", _peak("RTX 3090 Ti", 1008, _GA102, fp32=40.0, tf32=40.0, fp16=80)),
    (r"RTX 3090", _peak("RTX 3090", 936, _GA102, fp32=35.6, tf32=35.6, fp16=71)),
    (r"RTX 3080", _peak("RTX 3080", 760, _GA102, fp32=29.8, tf32=29.8, fp16=59.5)),
    (r"RTX 3070", _peak("RTX 3070", 448, _GA102, fp32=20.3, tf32=20.3, fp16=40.6)),
    (r"RTX 3060", _peak("RTX 3060", 360, _GA102, fp32=12.7, tf32=12.7, fp16=25.5)),
    (r"RTX 4090", _peak("RTX 4090", 1008, _AD102, fp32=82.6, tf32=82.6, fp16=165.2, fp8=330.3)),
    (r"RTX 4080", _peak("RTX 4080", 717, _AD102, fp32=48.7, tf32=48.7, fp16=97.5, fp8=194.9)),
    (r"RTX 4070 Ti", _peak("RTX 4070 Ti", 504, _AD102, fp32=40.1, tf32=40.1, fp16=80.2, fp8=160.4)),
    (r"RTX 4070", _peak("RTX 4070", 504, _AD102, fp32=29.1, tf32=29.1, fp16=58.3, fp8=116.6)),
    (r"RTX 5090", _peak("RTX 5090", 1792, _GB202, fp32=104.8, tf32=104.8, fp16=209.5, fp8=419)),
    (r"RTX 5080", _peak("RTX 5080", 960, _GB202, fp32=56.3, tf32=56.3, fp16=112.6, fp8=225.1)),
    (r"H100 NVL", _peak("H100 NVL", 3938, "NVIDIA H100 data sheet, 2023", fp32=60, tf32=417.5, fp16=835.5, fp8=1670)),
    (
        r"H100.*PCIe",
        _peak("H100 PCIe", 2039, "NVIDIA H100 whitepaper v1.04, table 3", fp32=51.2, tf32=378, fp16=756, fp8=1513),
    ),
    (r"H200 NVL", _peak("H200 NVL", 4800, "NVIDIA H200 data sheet, 2024", fp32=60, tf32=417.5, fp16=835.5, fp8=1670)),
    (r"H200|GH200", _peak("H200", 4800, "NVIDIA H200 data sheet, 2024", fp32=67, tf32=494.5, fp16=989.5, fp8=1979)),
    (
        r"H100|H800",
        _peak("H100 SXM", 3352, "NVIDIA H100 whitepaper v1.04, table 3", fp32=66.9, tf32=494.7, fp16=989.4, fp8=1978.9),
    ),
    (
        r"\bB200|GB200",
        _peak(
            "B200", 7700, "NVIDIA HGX B200 data sheet, 2024 (an eighth of it)", fp32=75, tf32=1125, fp16=2250, fp8=4500
        ),
    ),
    (r"MI210", _peak("MI210", 1638, "AMD Instinct MI210 brochure, 2022", fp32=22.6, tf32=0, fp16=181)),
    (r"MI250X", _peak("MI250X (one GCD)", 1638, "AMD Instinct MI200 series brochure, 2022", fp32=23.9, fp16=191.5)),
    (r"MI250", _peak("MI250 (one GCD)", 1638, "AMD Instinct MI200 series brochure, 2022", fp32=22.6, fp16=181)),
    (
        r"MI300A",
        _peak("MI300A", 5300, "AMD Instinct MI300A data sheet, 2023", fp32=122.6, tf32=490.3, fp16=980.6, fp8=1961.2),
    ),
    (
        r"MI325X",
        _peak("MI325X", 6000, "AMD Instinct MI325X data sheet, 2024", fp32=163.4, tf32=653.7, fp16=1307.4, fp8=2614.9),
    ),
    (
        r"MI300X",
        _peak("MI300X", 5300, "AMD Instinct MI300X data sheet, 2023", fp32=163.4, tf32=653.7, fp16=1307.4, fp8=2614.9),
    ),
)
_PATTERNS = tuple((re.compile(pattern, re.IGNORECASE), peak) for pattern, peak in _TABLE)

# Parts of a card, and those of laptops, whose clocks, power and memory are others: their names hold a card's name.
_NOT_THE_CARD = re.compile(r"\bMIG\b|Laptop|Max-Q|Mobile", re.IGNORECASE)

# Compute units → name, for AMD devices whose driver says only "AMD Radeon Graphics" (product pages of the same series).
_AMD_BY_UNITS = {104: "MI250", 110: "MI250X", 228: "MI300A", 304: "MI300X"}


def peak_of(name: str, *, multiprocessors: int | None = None, amd: bool = False) -> Peak | None:
    """The row for a device by its name; None for one that the table does not have, a part of a card, or a laptop's.

    An AMD device without a telling name is recognized by its number of compute units (`multiprocessors`).
    """
    if _NOT_THE_CARD.search(name):
        return None
    for pattern, peak in _PATTERNS:
        if pattern.search(name):
            return peak
    if (amd or name.startswith("AMD")) and multiprocessors in _AMD_BY_UNITS:
        return peak_of(_AMD_BY_UNITS[multiprocessors])
    return None
