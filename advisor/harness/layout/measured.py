"""What was measured, and on what machine, in ``run.json``."""

from __future__ import annotations

from dataclasses import dataclass, field

from .sites import Site


@dataclass
class Window:
    """One window of the run, in steps of the measured kind."""

    name: str = ""  # settle | timing | profile | detail
    first_step: int = 0
    steps: int = 0
    elapsed: float = 0.0
    complete: bool = False
    repeats: int = 0  # how often it was begun anew because an evaluation or a checkpoint fell into it


@dataclass
class Pause:
    """A place that the script was at while steps took several times as long as the others, in the timing window."""

    cause: str = ""  # as in ``Timing.aside``; "" where nothing is known to have happened in them
    sites: list[Site] = field(default_factory=list)  # the user's frames, from the inside out
    loading: bool = False  # torch's loader ran inside of them: it started workers, or waited for a first batch
    seconds: float = 0.0  # beyond what a step takes, of all of them
    steps: list[int] = field(default_factory=list)  # in which it was seen there, by their numbers in the window


@dataclass
class Timing:
    """The timing window: no profiler, no probes.

    ``step_s`` = ``elapsed`` / ``steps`` over clean intervals; intervals in which something else happened are
    set aside by cause in ``aside``.
    """

    steps: int = 0
    elapsed: float = 0.0
    step_s: float | None = None
    median_s: float | None = None
    intervals: list[float] = field(default_factory=list)  # clean ones, in order
    loader_wait_s: list[float] = field(default_factory=list)  # per clean interval
    cpu_s: float | None = None  # CPU seconds per step, this process, all threads
    openblas_s: float | None = None  # … of them of the threads that NumPy's OpenBLAS started
    # Per step: pages that the kernel mapped when one of the process's threads first touched them, and kept of those;
    # and what the kernel took of the time of the thread that runs the steps, mostly for that.
    page_faults: float | None = None
    pages_kept: float | None = None
    system_s: float | None = None
    children_cpu_s: float | None = None  # CPU seconds per step of worker processes, where it can be read
    samples_per_step: float | None = None
    # Cores that other programs kept busy, of those that this one may use, and that nobody used; None where unknown.
    others_cores: float | None = None
    idle_cores: float | None = None
    gc_s: float | None = None  # seconds per step in Python's garbage collector (gc.callbacks) …
    gc_asked_s: float | None = None  # … of them in calls of gc.collect(), which came …
    gc_asked_steps: int = 0  # … in so many of the steps
    settled: bool = False
    clock: str = "host"  # host | cuda
    from_profile: bool = False  # too short a run: these times were taken under the profiler or before settling
    aside: dict[str, float] = field(default_factory=dict)  # cause → seconds in the window, beyond a step's own
    aside_counts: dict[str, int] = field(default_factory=dict)
    aside_gc_s: dict[str, float] = field(default_factory=dict)  # seconds of it in Python's garbage collector
    evaluation_every: float | None = None  # steps from one evaluation to the next; None before a second was seen
    checkpoint_every: float | None = None  # the same of checkpoints
    compilation_every: float | None = None  # … and of steps in which Dynamo compiles
    pauses: list[Pause] = field(default_factory=list)  # the longest first


@dataclass
class Memory:
    """Peaks of CUDA's caching allocator over the timing window, and of the process's resident set."""

    peak_allocated: int | None = None
    peak_reserved: int | None = None
    capacity: int | None = None
    free_at_start: int | None = None  # of the device, what no process holds when the timing window begins
    alloc_retries: int | None = None  # in the timing window
    rss_peak: int | None = None  # since the process began
    host_total: int | None = None
    host_available: int | None = None  # cgroup limit counted


@dataclass
class Device:
    type: str = "cpu"  # cpu | cuda (ROCm says cuda too, as torch does) | mps | xpu
    name: str = ""
    index: int = 0
    count: int = 0
    capability: list[int] = field(default_factory=list)
    architectures: list[str] = field(default_factory=list)  # that this torch was compiled for: "sm_90", "compute_90"
    memory: int | None = None
    multiprocessors: int | None = None
    driver: str = ""
    hip: str = ""
    bf16: bool = False  # native bfloat16 arithmetic on this device


@dataclass
class Environment:
    python: str = ""
    implementation: str = ""
    platform: str = ""
    torch: str = ""
    torch_cuda: str = ""  # CUDA version torch was built for; "" for a CPU build
    cuda_available: bool = False  # torch.cuda.is_available()
    packages: dict[str, str] = field(default_factory=dict)  # torchvision, transformers, lightning, accelerate …
    cpu: str = ""
    cpu_flags: list[str] = field(default_factory=list)  # those of machine.environment._CPU_FLAGS
    # Of a CPU run, measured (machine/rates.py): type of 16 bits → "product", "convolution" → its seconds over those of
    # float32.
    rates: dict[str, dict[str, float]] = field(default_factory=dict)
    # Where the script's operators run with fewer threads than there are cores, measured: "product", "convolution",
    # "elementwise" → how many times as fast it is with a thread for each core.
    more_threads: dict[str, float] = field(default_factory=dict)
    usable_cpus: float = 1.0  # affinity and cgroup quota counted
    intraop_threads: int = 1
    interop_threads: int = 1
    openblas_threads: int | None = None  # of NumPy's products; None where it has no OpenBLAS
    glibc: str = ""  # its version, whose malloc serves the process; "" where another C library does
    page_size: int = 4096
    flop_per_s: float | None = None  # likewise: that one thread multiplies large float32 matrices with (machine/rates)
    fault_s: float | None = None  # of a run on a CPU, measured: to touch a page anew instead of again (machine)
    huge_pages: bool = False  # the kernel maps more than a page at a time, unasked
    shm_bytes: int | None = None  # free in /dev/shm
    compiler: str = ""  # C++ compiler found, "" if none
    triton: str = ""
    start_method: str = ""
    cudnn_benchmark: bool | None = None
    matmul_precision: str = ""
    cudnn_tf32: bool | None = None
    deterministic: bool | None = None
    cudnn_deterministic: bool | None = None
    anomaly: bool | None = None
    gpus: list[str] = field(default_factory=list)  # what nvidia-smi or the driver shows, even to a CPU build
    variables: dict[str, str] = field(default_factory=dict)  # CUDA_LAUNCH_BLOCKING, OMP_NUM_THREADS …
