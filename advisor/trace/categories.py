"""Which table an event belongs to, by the category names of 2021 to today, and what the names of copies say."""

from __future__ import annotations

import re
from typing import Literal

Table = Literal[
    "operators", "annotations", "kernels", "copies", "runtime", "device_annotations", "overheads", "python", "syncs"
]

# Category (lower case: PyTorch before 1.11 wrote "Kernel") → table. From Kineto's ActivityType names over the years.
_TABLES: dict[str, Table] = {
    "operator": "operators",
    "cpu_op": "operators",
    "hpu_op": "operators",
    "user_annotation": "annotations",
    "kernel": "kernels",
    "mtia_ccp_events": "kernels",
    "memcpy": "copies",
    "memset": "copies",
    "gpu_memcpy": "copies",
    "gpu_memset": "copies",
    "runtime": "runtime",
    "cuda_runtime": "runtime",
    "cuda_driver": "runtime",
    "xpu_runtime": "runtime",
    "xpu_driver": "runtime",
    "mtia_runtime": "runtime",
    "glow_runtime": "runtime",
    "privateuse1_runtime": "runtime",
    "privateuse1_driver": "runtime",
    "gpu_user_annotation": "device_annotations",
    "overhead": "overheads",
    "python_function": "python",
    "cuda_sync": "syncs",
}

STEP = re.compile(r"ProfilerStep#\d+")
# Ranges that torch itself opens with record_function; before PyTorch 1.12 they came as operators.
_ANNOTATION = re.compile(r"ProfilerStep#\d+|ProfilerStep\*|enumerate\(DataLoader\)#|Optimizer\.(step|zero_grad)#|## ")
# Operations of AMD's copy engines, which the first ROCm traces filed under kernels; of MTIA's, filed with its kernels.
_ENGINE_COPY = re.compile(r"(Copy(Host|Device)To(Host|Device)(2D)?|Fill(Buffer|Image))\b|dma_request$")

_KINDS = (
    (re.compile(r"\bHtoD\b|CopyHostToDevice|HostToDevice|Host *-> *Device", re.IGNORECASE), "HtoD"),
    (re.compile(r"\bDtoH\b|CopyDeviceToHost|DeviceToHost|Device *-> *Host", re.IGNORECASE), "DtoH"),
    (re.compile(r"\b(PtoP|peer)\b|PeerToPeer", re.IGNORECASE), "PtoP"),
    (re.compile(r"\bDtoD\b|CopyDeviceToDevice|DeviceToDevice|Device *-> *Device", re.IGNORECASE), "DtoD"),
    (re.compile(r"\bHtoH\b|HostToHost|Host *-> *Host", re.IGNORECASE), "HtoH"),
    (re.compile(r"memset|FillBuffer|FillImage", re.IGNORECASE), "Memset"),
)


def table_of(category: str | None) -> Table | None:
    """The table for events of `category`; None for those that are not kept."""
    if category is None:
        return None
    name = category.lower()
    if name in _TABLES:
        return _TABLES[name]
    if name.startswith(("hip", "roc", "hsa")):
        if "kernel" in name or "dispatch" in name:
            return "kernels"
        return "copies" if "memcpy" in name or "copy" in name or "memset" in name else "runtime"
    if name.startswith(("mtia", "xpu", "privateuse1")):
        if "kernel" in name:
            return "kernels"
        return "copies" if "memcpy" in name or "memset" in name else None
    return None


def is_step(name: str) -> bool:
    """Whether an annotation is one of the profiler's steps."""
    return STEP.fullmatch(name) is not None


def is_annotation(name: str) -> bool:
    """Whether an operator by category is by its name a range that somebody opened, not an operation."""
    return _ANNOTATION.match(name) is not None


def is_copy(name: str) -> bool:
    """Whether a kernel by category is by its name a copy or a fill."""
    return _ENGINE_COPY.match(name) is not None


def copy_kind(name: str) -> str:
    """HtoD, DtoH, DtoD, PtoP, HtoH or Memset, from names such as ``Memcpy HtoD (Pageable -> Device)``,
    ``CopyHostToDevice``; `name` itself where it says none of them."""
    return next((kind for pattern, kind in _KINDS if pattern.search(name)), name)


def is_pageable(name: str) -> bool:
    """Whether a copy's host side is pageable memory, as CUPTI's names say; AMD's do not say."""
    return "pageable" in name.lower()
