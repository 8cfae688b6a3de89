"""Facts about the machine and the interpreter, gathered once, after the script loaded torch."""

from __future__ import annotations

import contextlib
import mmap
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable
from typing import Any

from ..layout import Device, Environment

_PACKAGES = (
    *("torchvision", "transformers", "lightning", "pytorch_lightning", "accelerate", "timm", "numpy", "triton"),
    "opt_einsum",  # torch imports it by itself where it is installed
)
_VARIABLES = (
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "LD_PRELOAD",
    "GLIBC_TUNABLES",
    "MALLOC_MMAP_MAX_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "MALLOC_TRIM_THRESHOLD_",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "NVIDIA_TF32_OVERRIDE",
    "TORCHDYNAMO_DISABLE",
    "PYTHONHASHSEED",
)
_CPU_FLAGS = (
    *("avx2", "avx_ne_convert", "avx512f", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_fp16"),
    *("sve", "bf16"),  # Arm's
)

# "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun …", "… Open Kernel Module for x86_64  580.126.09 …"
_DRIVER = re.compile(r"\b\d{3,}\.\d+(\.\d+)?\b")


def usable_cpus() -> float:
    """Cores that this process may use: affinity and the cgroup's quota counted."""
    try:
        count = float(len(os.sched_getaffinity(0)))
    except AttributeError:
        count = float(os.cpu_count() or 1)
    quota = _cgroup_quota()
    return min(count, quota) if quota else count


def share_of_cpus(cpus: float, world_size: int | None) -> float:
    """Of `cpus` cores those of this process, where other ranks of its job compute on them, too.

    How many of them are on this machine a launcher says (``LOCAL_WORLD_SIZE``); all of `world_size` where none does.
    """
    said = os.environ.get("LOCAL_WORLD_SIZE", "")
    ranks = int(said) if said.isdigit() else world_size or 1
    return max(1.0, cpus / max(1, ranks)) if ranks > 1 else cpus


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _cgroup_quota() -> float | None:
    """Cores by the CPU quota of cgroup v2 or v1 (kernel.org, cgroup-v2.rst: cpu.max), None without one."""
    fields = _read("/sys/fs/cgroup/cpu.max").split()
    if len(fields) == 2 and fields[0].isdigit() and int(fields[1]) > 0:
        return int(fields[0]) / int(fields[1])
    quota = _read("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").strip()
    period = _read("/sys/fs/cgroup/cpu/cpu.cfs_period_us").strip()
    if quota.isdigit() and period.isdigit() and int(period) > 0:
        return int(quota) / int(period)
    return None


def host_memory() -> tuple[int | None, int | None]:
    """(total, available) bytes of host memory; the cgroup's limit counts as the total when it is smaller."""
    values: dict[str, int] = {}
    for line in _read("/proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        if rest.split()[:1] and rest.split()[0].isdigit():
            values[name] = int(rest.split()[0]) * 1024
    total, available = values.get("MemTotal"), values.get("MemAvailable")
    limit = _read("/sys/fs/cgroup/memory.max").strip() or _read("/sys/fs/cgroup/memory/memory.limit_in_bytes").strip()
    if limit.isdigit() and total is not None and int(limit) < total:
        used = _read("/sys/fs/cgroup/memory.current").strip()
        total = int(limit)
        if used.isdigit() and available is not None:
            available = min(available, total - int(used))
    return total, available


def _cpu() -> tuple[str, list[str]]:
    name, flags = platform.processor() or platform.machine(), []
    for line in _read("/proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        key = key.strip()
        if key == "model name":
            name = value.strip()
        elif key in ("flags", "Features"):
            present = set(value.split())
            flags = [flag for flag in _CPU_FLAGS if flag in present]
            break
    return name, flags


def _gpus() -> list[str]:
    """GPUs that the machine has, whether this build of torch can use them or not (from /proc, no process started)."""
    found = []
    root = "/proc/driver/nvidia/gpus"
    try:
        for name in sorted(os.listdir(root)):
            for line in _read(os.path.join(root, name, "information")).splitlines():
                key, _, value = line.partition(":")
                if key.strip() == "Model":
                    found.append(value.strip())
    except OSError:
        pass
    if not found and os.path.exists("/dev/kfd"):
        found.append("AMD GPU")
    if not found and os.path.exists("/dev/nvidia0"):
        found.append("NVIDIA GPU")
    return found


def huge_pages() -> bool:
    """Whether the kernel maps more than a page at a time where nobody asks for it."""
    return "[always]" in _read("/sys/kernel/mm/transparent_hugepage/enabled")


def glibc_version() -> str:
    """Its version: "glibc 2.36" is what it says of itself; "" for any other C library."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (ValueError, OSError, AttributeError):
        return ""
    return version if name == "glibc" else ""


def environment(torch: Any) -> Environment:
    """All of :class:`..layout.Environment`. Reading a fact must never fail a run: what raises stays at its default."""
    name, flags = _cpu()
    facts = Environment(
        python=platform.python_version(),
        implementation=platform.python_implementation(),
        platform=platform.platform(),
        torch=str(torch.__version__),
        torch_cuda=str(torch.version.cuda or ""),
        cpu=name,
        cpu_flags=flags,
        usable_cpus=usable_cpus(),
        intraop_threads=torch.get_num_threads(),
        interop_threads=torch.get_num_interop_threads(),
        compiler=next((path for name in ("c++", "g++", "clang++") if (path := shutil.which(name))), ""),
        gpus=_gpus(),
        glibc=glibc_version(),
        page_size=mmap.PAGESIZE,
        huge_pages=huge_pages(),
        variables={name: os.environ[name] for name in _VARIABLES if name in os.environ},
    )
    for package in _PACKAGES:
        module = sys.modules.get(package)
        version = getattr(module, "__version__", None)
        if isinstance(version, str):
            facts.packages[package] = version
    facts.triton = facts.packages.get("triton", "")
    if not facts.triton:
        import importlib.util

        with contextlib.suppress(ImportError, ValueError):
            facts.triton = "installed" if importlib.util.find_spec("triton") else ""
    with contextlib.suppress(OSError):
        facts.shm_bytes = shutil.disk_usage("/dev/shm").free
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is not None:
        facts.start_method = multiprocessing.get_start_method(allow_none=True) or (
            "forkserver" if sys.version_info >= (3, 14) else "fork" if sys.platform == "linux" else "spawn"
        )
    readers: dict[str, Callable[[], object]] = {
        "cudnn_benchmark": lambda: bool(torch.backends.cudnn.benchmark),
        "cudnn_deterministic": lambda: bool(torch.backends.cudnn.deterministic),
        "cudnn_tf32": lambda: bool(torch.backends.cudnn.allow_tf32),
        "matmul_precision": lambda: str(torch.get_float32_matmul_precision()),
        "deterministic": lambda: bool(torch.are_deterministic_algorithms_enabled()),
        "cuda_available": lambda: bool(torch.cuda.is_available()),
        "anomaly": lambda: bool(torch.is_anomaly_enabled()),
    }
    for field, read in readers.items():
        with contextlib.suppress(Exception):  # torch 2.15 raises when old and new precision settings were mixed
            setattr(facts, field, read())
    return facts


def device(torch: Any, kind: str, index: int) -> Device:
    """The device that the steps run on; ``kind`` is its torch type."""
    facts = Device(type=kind, index=index)
    if kind == "cuda":
        properties = torch.cuda.get_device_properties(index)
        facts.name = str(properties.name)
        facts.count = torch.cuda.device_count()
        facts.capability = [int(properties.major), int(properties.minor)]
        facts.architectures = [str(each) for each in torch.cuda.get_arch_list()]
        facts.memory = int(properties.total_memory)
        facts.multiprocessors = int(properties.multi_processor_count)
        facts.hip = str(torch.version.hip or "")
        # Native bfloat16 arithmetic since Ampere (CUDA C++ Programming Guide, compute capability 8.0); CDNA has it.
        facts.bf16 = properties.major >= 8 or bool(torch.version.hip)
        found = _DRIVER.search(_read("/proc/driver/nvidia/version").partition("\n")[0])
        facts.driver = found[0] if found is not None else ""
    elif kind == "cpu":
        name, flags = _cpu()
        facts.name, facts.count = name, 1
        facts.bf16 = any(flag in flags for flag in ("avx512_bf16", "amx_bf16", "bf16"))
        facts.memory = host_memory()[0]
    return facts
