"""The run folder: its names and the fields of ``run.json``, defined once for both sides.

The harness (inside the user's process, standard library and torch only) fills these dataclasses and writes
them with :mod:`json`; :mod:`advisor.run` decodes the same classes with msgspec. Times are seconds, sizes
bytes, unless the name carries another unit. Every field has a default, so that a run written by an older
version, or cut short, still decodes.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

SCHEMA = 1

# Names inside a run folder.
RUN_JSON = "run.json"
STATUS_JSON = "status.json"
OPTIONS_JSON = "options.json"
OUTPUT_LOG = "output.log"
PARTIAL_JSON = "run.partial.json"  # the record after the profile window, should the detail window kill the script
CHILD_TRAINS = "child-trains"  # exists when a process that the script started does optimizer steps
DETAIL_DIR = "detail"
FILES_DIR = "files"
JOURNAL_DIR = "journal"
JOURNAL_LOG = "journal.jsonl"
OVERLAY_DIR = "overlay"  # patched sources that are served to the script
TRACE_SUFFIX = ".pt.trace.json.gz"
DETAIL_SUFFIX = ".trace.json.gz"

# The annotations that the harness adds to the traces; `evidence` knows them by these names.
FORWARD_RANGE = "advisor.forward"
BACKWARD_RANGE = "advisor.backward"
CLOSURE_RANGE = "advisor.closure"  # what an optimizer's step has evaluated, before it steps
DRAIN_RANGE = "advisor.drain"  # the harness waits for the device, at the end of a profiled window
ENCODER_RANGE = "advisor.encoder"

MOST_MATRICES = 16  # of an optimizer that are written down

# Environment variable through which children of the script find the options file.
OPTIONS_ENV = "ADVISOR_OPTIONS"


@dataclass
class Options:
    """What the parent asks of the harness (``options.json``)."""

    run_dir: str = ""
    script: str = ""  # path, or the module's name when `module`
    module: bool = False
    argv: list[str] = field(default_factory=list)
    cwd: str = ""
    step: str = "auto"  # auto | optimizer | loader | forward
    skip: int = 0  # boundaries ignored before anything is measured
    # Which training of the script is measured (RunRecord's `training`): another run's. None: the first that is long
    # enough, else the last.
    training: int | None = None
    min_steps: int = 20  # timing window: at least so many steps …
    min_seconds: float = 5.0  # … and so many seconds …
    max_seconds: float = 60.0  # … and at most so many seconds
    settle_max_steps: int = 200
    settle_max_seconds: float = 30.0
    wait: int = 1
    warmup: int = 2
    active: int = 3
    seed: int | None = None  # seeds random, numpy and torch before the script when not None
    losses: int = 50  # how many of the first losses to keep
    total_steps: int = 0  # how many steps the script, or that training, has in all, known from another run; 0 = plenty
    overlay: dict[str, str] = field(default_factory=dict)  # absolute path → file holding the patched text
    keep_dirs: list[str] = field(default_factory=list)  # folders whose new files stay where they are
    windows: str = "all"  # all | timing: stop after the timing window (a repeat for a comparison)
    restore: bool = True  # journal what the script writes
    parent_pid: int = 0  # the advisor's: a script whose parent is another one has outlived it


@dataclass
class Site:
    """A call in the user's own source. Lines count from 1; columns are UTF-8 byte offsets from 0, as in `ast`.

    Columns are None before Python 3.11. ``end_line``/``end_column`` end the call expression.
    """

    file: str = ""
    line: int = 0
    column: int | None = None
    end_line: int | None = None
    end_column: int | None = None
    function: str = ""


@dataclass
class CallSite:
    """Calls of one kind made from one place.

    ``kind`` is one of: ``DataLoader``, ``Optimizer``, ``Optimizer.step``, ``zero_grad``, ``backward``,
    ``Module.to``, ``Module.cuda``, ``Module.half``, ``Module.eval``, ``Module.train``, ``Module.compile``,
    ``Module.call`` (a root module's forward; ``details``: "module", its class, "grad", whether gradients are on,
    "shape" of the first tensor that its last call was given), ``Tensor.to``, ``Tensor.cuda``, ``Tensor.cpu``,
    ``Tensor.item``, ``Tensor.numpy``, ``Tensor.tolist``, ``Tensor.print``, ``autocast``, ``GradScaler``,
    ``GradScaler.scale``, ``torch.compile``, ``DataParallel``, ``DistributedDataParallel``, ``debug_mode``,
    ``synchronize``, ``empty_cache``, ``gc.collect``, ``Module.double``, ``Tensor.double``, ``float64`` (a tensor of
    several float64 values made by ``torch.from_numpy``, ``tensor``, ``as_tensor``; ``details``: "others", the same call
    makes tensors of other types, too), ``default_dtype``, ``set_num_threads`` (``details``: "threads"),
    ``from_list`` (a tensor of many values that ``torch.tensor`` or ``as_tensor`` makes of a list; figures per step from
    before the timing window; ``details``: "given", ``arrays`` or ``numbers``, "dtype" and "device" of the tensor,
    "numbers" per step, "loader", the index of that whose batch it was made for, -1 for none, and "others", the same
    call got, or made, something else, too).

    ``evaluation``: the line of the loop over steps from which an evaluation is reached (a module is put into
    evaluation mode, or a loader that does not feed the steps gives a batch). ``debug_mode`` of ``details["mode"]``
    "profiler": the script's own, on from before the steps; ``details["timed"]``: it was on in the timing window, too.

    ``blocking``: a line of the loop over steps from which something outside of the process is waited for; ``details``:
    "seconds", in all, by what waits where. ``Tensor.index``: ``x[i]`` with a number, mask or rows, or (``details``:
    "iterates", "rows" of x) ``for row in x``, seen in the detail window only. ``Tensor.part``, likewise: ``x[:, i]``,
    or ``x[:, i] = y``, that a graph is recorded of, on a line of the script's own (``details``: "dim", which dimension
    the first number takes one of, "keys", how many the index has, "mixed", one of these was another before; added up
    over all calls "size" of that dimension, and "numbers" in the index; "written", something is written there, "fits",
    that has the part's shape and is another tensor each time).
    ``sized``: a call whose result has a size that depends on values (``details``: "operator": ``mask`` for ``x[mask]``,
    ``nonzero``, ``unique`` …; "device"), seen in the detail window only. ``cross_entropy``, likewise (``details``: how
    many "classes" it has, "ignored", the mean share of the labels that it ignores, "own", the script itself calls it).

    ``details["inside"]`` of what reads a tensor's value, or moves it: the module that does, where it is none of the
    script's.

    And where a framework is told its settings (:mod:`.frameworks`): ``TrainingArguments``, ``Trainer``,
    ``Trainer.fit``, ``Fabric``, ``Accelerator``.
    """

    kind: str = ""
    site: Site = field(default_factory=Site)
    calls: int = 0  # in the whole run, timing window aside (there the wrappers are off)
    # In the profile and detail windows. Of values read from tensors on the CPU a training's first 2000 are counted.
    calls_per_step: float = 0.0
    seconds_per_step: float = 0.0  # host time inside the call, in the profile window
    details: dict[str, Any] = field(default_factory=dict)
    # Of Module.call: the user's frames around its first call in the profiled windows, from the inside out, as far as
    # they were kept.
    called_from: list[Site] = field(default_factory=list)


@dataclass
class TensorInfo:
    """One tensor of a batch, as the loader delivered it."""

    shape: list[int] = field(default_factory=list)
    dtype: str = ""
    device: str = ""
    pinned: bool = False
    bytes: int = 0


@dataclass
class FetchPart:
    """A part of making a batch. ``kind``: line (of the outermost function of the user's that makes a sample) |
    transform (that the dataset holds; its line is part of a "line") | inside (a line of the function that takes nearly
    all of the longest "line", which calls it, directly or not) | pandas, npz, convolve (what a line of the user's, in
    any function, asks of pandas, a member that it has an archive read which was open before, or signals that it has
    NumPy convolve; part of a "line") | lasting (a property, or a method without arguments, of an object that there is
    one of for all samples; part of a "line") | collate. ``site`` is where the code is written.
    """

    kind: str = ""
    name: str = ""
    site: Site = field(default_factory=Site)
    seconds: float = 0.0  # per batch, in the fetches that were looked at; what it calls included
    order: int = 0  # of a transform among those of a sample
    # The most that a transform (or line) is given, and gives; 0 where that is no image. Of "convolve" the numbers of
    # the longer signal, and of the shorter.
    pixels_in: int = 0
    pixels_out: int = 0


@dataclass
class Loader:
    """One ``DataLoader`` that was iterated. Its index in the list is its identity."""

    site: Site | None = None  # where the user made it; None inside a library
    owner: str = ""  # module of the code that made it, e.g. "transformers.trainer"
    cls: str = "DataLoader"
    batch_size: int | None = None
    num_workers: int = 0
    pin_memory: bool = False
    persistent_workers: bool = False
    prefetch_factor: int | None = None
    drop_last: bool = False
    shuffle: bool | None = None  # by the sampler's class
    # The class of one that may go by what changes, of the sampler or of what that holds: by weights, or not of torch's.
    sampler: str = ""
    context: str = ""  # multiprocessing start method; "" without workers
    iterable: bool = False
    dataset: str = ""  # qualified class name
    dataset_file: str = ""
    dataset_line: int = 0
    dataset_length: int | None = None
    batches: int | None = None  # len(loader)
    transforms: list[str] = field(default_factory=list)  # class names along dataset.transform(.transforms)
    collate: str = ""  # qualified name of collate_fn
    batch_tensors: int = 0  # of a batch, where there are more than `tensors` describes
    tensors: list[TensorInfo] = field(default_factory=list)  # of its last observed batch
    # What none of the steps that were watched reads of a batch, and its bytes; and those of the whole batch.
    unread: dict[str, int] = field(default_factory=dict)
    unread_of: int = 0
    in_memory: bool = False  # TensorDataset or similar: fetching is indexing
    # The dataset that samples come from, below any Subset and any ConcatDataset of one class: its qualified class name,
    # where that was written, and which of its attributes are tensors or arrays in memory with a row for each sample
    # ("tensors" of a TensorDataset); none of several that are put together.
    source: str = ""
    source_site: Site | None = None
    wraps: str = ""  # the class of the dataset that it holds, and takes its samples from
    rows: list[str] = field(default_factory=list)
    chosen_by_tensor: bool = False  # the indices of a Subset, or of the sampler, are one
    trains: bool = False  # feeds the measured steps
    fetched: int = 0  # batches delivered in the run
    epochs: int = 0  # times iterated
    iterated: Site | None = None  # where the user's code asked for an iterator at first; None inside a library
    remade: int = 0  # loaders that were made at its place later, when it was gone: in each epoch, say
    # From the timing window; None where the loader was not used there.
    wait_s: float | None = None  # per step: blocked in __next__
    # Seconds to make one batch: measured in __next__ without workers, inside the worker with them.
    fetch_s: float | None = None
    fetch_cpu_s: float | None = None  # CPU seconds of that (all threads of that process but OpenBLAS's)
    # CPU seconds per batch of the threads that NumPy's OpenBLAS started: while one is made, in workers also in between.
    openblas_s: float | None = None
    fetch_spread: float | None = None  # standard deviation over mean, batch by batch
    fetches: list[list[float]] = field(default_factory=list)  # by worker, in order: seconds of its first batches
    start_s: float | None = None  # making the iterator (starting workers) and waiting for the first batch
    # From a few fetches before the timing window (:mod:`.fetching`), in whatever process makes the batches.
    looks: int = 0  # fetches that were timed by part
    look_s: float | None = None  # seconds of one of them
    # Of a fetch on one thread of torch's, as in a worker, where the process that makes the batches has several: seconds
    # and CPU seconds (of that process).
    single_s: float | None = None
    single_cpu_s: float | None = None
    draws: bool | None = None  # any of the first fetches drew random numbers: a sample is another one in each epoch
    draws_own: bool = False  # with a generator that the dataset, or a module of its own, holds: workers get copies
    parts: list[FetchPart] = field(default_factory=list)  # the longest first, those inside of a line after all others
    # What is true of any of the DataFrames that samples are taken out of: "upcast" (all columns are numbers, of several
    # types, of which a row makes one), "date NAME" (that column has dates), "labels" (the index is not the number of
    # the row).
    frames: list[str] = field(default_factory=list)
    # Bytes that all members of an archive (.npz) that was open before take in memory, for each row of the one that a
    # sample is taken out of.
    archive_row_bytes: float | None = None
    listed: int = 0  # numbers of a sample that lists of Python's hold
    item_lines: float | None = None  # per sample: lines of the user's code that run to make it …
    item_calls: float | None = None  # … and calls of torch
    collate_lines: float | None = None  # the same in the collate function
    collate_calls: float | None = None


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
    evaluation_every: float | None = None  # steps from one evaluation to the next; None before a second was seen
    checkpoint_every: float | None = None  # the same of checkpoints


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
    cpu_flags: list[str] = field(default_factory=list)  # those of environment._CPU_FLAGS
    # Of a run on a CPU, measured: type of 16 bits → "product", "convolution" → its seconds over float32's (rates.py).
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
    fault_s: float | None = None  # of a run on a CPU, measured: to touch a page anew instead of again (rates.py)
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


@dataclass
class Model:
    """A root module: one the script calls, that no other module holds."""

    cls: str = ""
    file: str = ""
    line: int = 0
    parameters: int = 0
    parameter_bytes: int = 0
    dtypes: list[str] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    training: bool | None = None
    compiled: bool = False
    layers: dict[str, int] = field(default_factory=dict)  # class name → how many, leaves only
    blocks: dict[str, int] = field(default_factory=dict)  # class name → how many: modules that have children
    own: dict[str, str] = field(default_factory=dict)  # the user's own classes among its modules: name → source file
    inputs: list[TensorInfo] = field(default_factory=list)
    tensor_first: bool | None = None  # in all its calls the first positional argument is a tensor itself
    channels_last: bool | None = None
    grad_enabled: bool | None = None  # while it was called
    inference_mode: bool | None = None
    autocast: str = ""  # dtype, "" when off
    calls: int = 0
    checkpointing: bool = False  # a module of it says so, as Hugging Face's and timm's do
    # All of its parts that are models of transformers say that the fused attention computes what theirs does; None
    # where it has none.
    fuses_attention: bool | None = None
    made: Site | None = None  # where the user's code makes it; None inside a library
    takes: list[str] = field(default_factory=list)  # the names of its forward's parameters
    output_grad: bool | None = None  # a tensor of its output can be differentiated: autograd recorded the forward
    output: str = ""  # what it returns: "tensor", or a class's name
    output_dtype: str = ""  # of the first tensor in it
    repeats: int = 0  # calls with the very tensor of the call before
    # compile() would compile its call. Older versions skip a forward that torch.nn has written: Sequential's, say.
    compiles_in_place: bool = True
    # The columns of the token ids it is called with, and the share of them that is padding in every row: the mean of
    # its first calls; None where no input looks like padded ids.
    width: int = 0
    padded: float | None = None
    # The share of these ids that fills the shorter rows up to the longest of their batch, where batches have widths of
    # their own.
    uneven: float | None = None
    # The same where all batches have one width: what is padding in some rows, and not in all.
    short: float | None = None
    # As `uneven`, of recordings, series, pictures of lines: of its largest input, where batches differ in one length
    # alone.
    filled: float | None = None
    # Calls with token ids that are one column longer than those of the call before; the columns of the longest, and the
    # fewest of a call that was no such one, with which a text begins.
    grown: int = 0
    grown_to: int = 0
    grown_from: int = 0


@dataclass
class GraphBreak:
    """A line of the script's own at which Dynamo had to end a graph. Source: its books, see :mod:`.graphs`."""

    reason: str = ""  # Dynamo's own words, their first line
    site: Site | None = None  # without columns
    skipped: bool = False  # the function was given up as a whole: none of it is compiled
    count: int = 0  # compilations that came upon it


@dataclass
class Recompiled:
    """A function that was compiled again because what a graph was made for did not hold any more."""

    site: Site | None = None  # its first line
    graphs: int = 0  # compiled of it in all
    reasons: list[str] = field(default_factory=list)  # the guards that failed, in Dynamo's words, each once
    guarded: Site | None = None  # the line that the first of them comes from, where Dynamo says so (torch 2.15)
    given_up: bool = False  # Dynamo's limit was reached: what fits none of the graphs runs eagerly


@dataclass
class KeptGraphs:
    """Graphs of autograd, made from one place while the steps settled, that were there in the timing window, too."""

    sites: list[Site] = field(default_factory=list)  # the user's frames in which they were made, from the inside out
    made: int = 0  # how many were looked at, and …
    kept: int = 0  # … how many of them were still alive
    released: bool = False  # there after RunRecord.growth_steps of its steps, gone at its end (an epoch was over, say)


@dataclass
class UnusedGradients:
    """Of a root module: the gradients that each step computes of parameters that no optimizer holds, or changes."""

    cls: str = ""
    made: Site | None = None  # where the user's code makes it; None inside a library
    tensors: int = 0
    bytes: int = 0
    # The outermost modules in it all of whose parameters optimizers hold, by their dotted names; "" among them where
    # optimizers hold some of a module's own parameters and not the others. Empty: nothing of it is trained.
    trained: list[str] = field(default_factory=list)
    resting: bool = False  # an optimizer holds some of these parameters, at a rate of zero


@dataclass
class GradientRun:
    """So many gradients one after the other, of which the same becomes.

    ``kind``: "used"; "weights", dropped, while the backward goes on through the operator that they are weights of, to
    what is used; "branch", dropped, and nothing is used that the backward comes to from there.
    """

    count: int = 0
    kind: str = "used"


@dataclass
class DiscardedGradients:
    """Of a root module: the gradients that some backwards of each step compute of its weights and nobody uses.

    They are dropped before an optimizer steps with them, or no optimizer holds these weights.
    """

    cls: str = ""
    made: Site | None = None  # where the user's code makes it; None inside a library
    name: str = ""  # what a function of the user's calls it in which steps end, or ``self.name``; "" for none, …
    file: str = ""  # … and that function's file
    tensors: int = 0
    bytes: int = 0
    held: bool = False  # by an optimizer, which uses the gradients of other backwards
    inside: bool = False  # all that is used of such a backward is what a hook reads of an activation's gradient
    # The outermost modules in it all of whose gradients are dropped, by their dotted names; "" among them where some of
    # a module's own are and others are not. Empty: all of them.
    parts: list[str] = field(default_factory=list)
    branch: bool = False  # nothing else is used that the backward comes to through it
    backwards: int = 0  # of a step that compute them …
    site: Site | None = None  # … all called there, which computes none of this model's that are used; else None


@dataclass
class SmallCache:
    """A cache of ``functools.lru_cache`` that is full, and lets something go for each thing that it takes."""

    site: Site = field(default_factory=Site)  # where its function is written
    size: int = 0  # entries
    hits: float = 0.0  # in a timed step, and …
    misses: float = 0.0
    again: float = 0.0  # of what was computed there anew, the share that was there before
    bytes: int = 0  # of an entry, on average


@dataclass
class Recomputed:
    """A line in a model's forward whose longer calls of torch were given the same and gave the same in three steps."""

    site: Site = field(default_factory=Site)
    called_from: list[Site] = field(default_factory=list)  # the user's frames in which it runs, from the inside out
    calls: int = 0  # in a step, and …
    seconds: float = 0.0  # … what they take, on the host
    whole: bool = False  # a line that calls a model, all of which is the same
    given: bool = False  # one that calls a library's, and what that makes of some of the tensors it is given there


@dataclass
class Repeated:
    """A line whose functions of torch were called once more in a step with the same tensors, and gave the same."""

    site: Site = field(default_factory=Site)
    called_from: list[Site] = field(default_factory=list)  # the user's frames in which it runs, from the inside out
    calls: float = 0.0  # beyond the first, in a step, and …
    seconds: float = 0.0  # … what they take, on the host; of that …
    differentiated_s: float = 0.0  # … whose results a backward goes through, and …
    parametrized_s: float = 0.0  # … by which torch.nn.utils.parametrize makes weights
    differentiated: dict[str, float] = field(default_factory=dict)  # those that one goes through by torch's name


@dataclass
class Gathered:
    """A line whose functions of torch were given rows that had been looked up, some of them several times."""

    site: Site = field(default_factory=Site)
    called_from: list[Site] = field(default_factory=list)  # the user's frames in which it runs, from the inside out
    looked_up_at: Site = field(default_factory=Site)  # the first time, where there are several
    joined: bool = False  # with columns of other origin, before it was called
    calls: float = 0.0  # in a step, and …
    linear: float = 0.0  # … how many of linear layers, …
    seconds: float = 0.0  # … what the copies take, on the host; of that …
    differentiated_s: float = 0.0  # … whose results a backward goes through
    looking_up_s: float = 0.0  # in a step, what looking these rows up takes, and …
    joining_s: float = 0.0  # … putting their columns beside others
    rows: int = 0  # of its first call, and …
    distinct: int = 0  # … how many of them can differ
    columns: int = 0  # of its last linear layer's rows, of which …
    looked_up: int = 0  # … so many were looked up, not only repeated, in …
    lookups: int = 0  # … so many lookups, of …
    parts: int = 0  # … so many parts, repeated ones too
    given: int = 0  # columns that the layer gives
    channels: bool = False  # a convolution of width 1: the columns are channels


@dataclass
class RepeatedRow:
    """A line that calls a module with rows that it had computed already, in this call or in one of the step before."""

    site: Site = field(default_factory=Site)
    called_from: list[Site] = field(default_factory=list)  # the user's frames in which it runs, from the inside out
    module: str = ""  # its class
    # How: ``block``, each row several times in a row; ``tile``, all rows again and again; ``calls``, some had been
    # given to an earlier call; "", in no order.
    order: str = ""
    rows: int = 0  # of its first call, and …
    distinct: int = 0  # … how many of them had not been computed
    dropout: bool = False  # equal rows gave other results, for dropout is on
    calls: float = 0.0  # in a step, and …
    seconds: float = 0.0  # … what the copies take, on the host; of that …
    differentiated_s: float = 0.0  # … whose results a backward goes through


@dataclass
class ZeroRow:
    """A line that multiplies rows of which many are zeros."""

    site: Site = field(default_factory=Site)
    called_from: list[Site] = field(default_factory=list)  # the user's frames in which it runs, from the inside out
    rows: int = 0  # of its first call, and …
    zeros: int = 0  # … how many of them are
    calls: float = 0.0  # in a step, and …
    seconds: float = 0.0  # … what these rows take, on the host; of that …
    differentiated_s: float = 0.0  # … whose results a backward goes through


@dataclass
class SparseProduct:
    """A line that multiplies with a matrix of which nearly all numbers are zeros: the same one in each step."""

    site: Site = field(default_factory=Site)
    called_from: list[Site] = field(default_factory=list)  # the user's frames in which it runs, from the inside out
    rows: int = 0  # of its first matrix, …
    columns: int = 0
    numbers: int = 0  # … and how many others it has than zero
    calls: float = 0.0  # in a step, of all its matrices, and …
    multiplied: float = 0.0  # … multiplications in them, with additions, …
    needed: float = 0.0  # … those of numbers that are none of zero, …
    turned: float = 0.0  # … and these numbers
    seconds: float = 0.0  # what the calls take, on the host; of that …
    differentiated_s: float = 0.0  # … whose results a backward goes through


@dataclass
class LoopedLayer:
    """A line that calls a linear layer several times in a step, on few rows each."""

    site: Site = field(default_factory=Site)
    called_from: list[Site] = field(default_factory=list)  # the user's frames in which it runs, from the inside out
    inputs: int = 0  # of its first weight, …
    outputs: int = 0
    calls: float = 0.0  # in a step, and …
    rows: float = 0.0  # … what they are given together
    seconds: float = 0.0  # what they take, on the host; of that …
    differentiated_s: float = 0.0  # … whose results a backward goes through


@dataclass
class SameRow:
    """A line that computes for each row of a tensor what is the same for all of them."""

    site: Site = field(default_factory=Site)
    called_from: list[Site] = field(default_factory=list)  # the user's frames in which it runs, from the inside out
    rows: int = 0  # of its first call
    calls: float = 0.0  # in a step, and …
    seconds: float = 0.0  # … what all rows but one take, on the host; of that …
    differentiated_s: float = 0.0  # … whose results a backward goes through
    differentiated: dict[str, float] = field(default_factory=dict)  # those that one goes through by torch's name


@dataclass
class Unread:
    """A place all of whose work is for nobody: what it computes, in the steps that were watched, is never read."""

    site: Site = field(default_factory=Site)  # the outermost call of the user's that is nothing but such work
    called_from: list[Site] = field(default_factory=list)  # the user's frames around it, from the inside out
    inside: list[Site] = field(default_factory=list)  # the calls in the user's functions that run for it
    calls: float = 0.0  # of torch's functions in a step, and …
    seconds: float = 0.0  # … what they take, on the host
    draws: bool = False  # random numbers, which others would get without it
    updates: bool = False  # the running statistics of batch norms, which an evaluation may read
    library: bool = False  # another library than torch calls some of it, which may do more than that


@dataclass
class UnreadGradient:
    """A call of ``torch.autograd.grad`` of whose gradients a part is never read."""

    site: Site = field(default_factory=Site)
    called_from: list[Site] = field(default_factory=list)  # the user's frames in which it runs, from the inside out
    asked: int = 0  # for how many gradients, and …
    unread: int = 0  # … how many of them nobody reads
    calls: float = 0.0  # in a step, and …
    seconds: float = 0.0  # … what they take, on the host


@dataclass
class AskedAgain:
    """Calls of ``torch.autograd.grad`` that give what an earlier one of the step has given."""

    site: Site = field(default_factory=Site)  # the first of them
    called_from: list[Site] = field(default_factory=list)  # the user's frames in which it runs, from the inside out
    before: list[int] = field(default_factory=list)  # for each call of a step, in order, that earlier one; else -1


@dataclass
class Weighted:
    """A place that computes rows of which most are multiplied by zero, and go nowhere else."""

    site: Site = field(default_factory=Site)  # the outermost call of the user's that is nothing but such work
    called_from: list[Site] = field(default_factory=list)  # the user's frames around it, from the inside out
    calls: float = 0.0  # of torch's functions in a step, and …
    seconds: float = 0.0  # … what they take, on the host; of that …
    differentiated_s: float = 0.0  # … which a backward may go through
    zero: float = 0.0  # share of the rows
    rows: int = 0
    columns: int = 0  # of what is multiplied by zero in the end


@dataclass
class OneHot:
    """A line that multiplies rows which are zeros and a single one."""

    site: Site = field(default_factory=Site)
    called_from: list[Site] = field(default_factory=list)  # the user's frames in which it runs, from the inside out
    calls: float = 0.0  # in a step, and …
    seconds: float = 0.0  # … what the products take, on the host; of that …
    differentiated_s: float = 0.0  # … whose results a backward goes through; …
    making_s: float = 0.0  # … and what making these rows takes, where the forward does
    rows: int = 0  # of its first call, and …
    columns: int = 0  # … numbers in each


@dataclass
class Frozen:
    """A line that computes of samples what depends on nothing else: no weight of it is trained."""

    site: Site = field(default_factory=Site)
    called_from: list[Site] = field(default_factory=list)  # the user's frames in which it runs, from the inside out
    calls: int = 0  # of torch's functions in a step, and …
    seconds: float = 0.0  # … what they take, on the host, which is …
    share: float = 0.0  # … that share of these very steps, what we did in them aside
    sample_bytes: float = 0.0  # of what it gives to what is trained, for each sample
    loaders: list[int] = field(default_factory=list)  # whose samples
    pools: list[int] = field(default_factory=list)  # or rows of a tensor that the script keeps: how many each has
    rows: int = 0  # of a batch
    whole: bool = False  # it calls a model, all of which is so


@dataclass
class Encoder:
    """One ``nn.TransformerEncoder`` that was called in the profiled windows."""

    site: Site | None = None  # where the user makes it
    layer_site: Site | None = None  # where the user makes the layer that it copies
    layers: int = 0
    width: int = 0  # of a token
    feedforward: int = 0  # of a layer's inner layer
    length: int = 0  # tokens of a sequence, padding counted, in its last call, …
    sequences: int = 0  # … and how many of these
    calls: int = 0
    obstacles: list[str] = field(default_factory=list)  # arguments that rule the fast path out; "class": of its own
    calls_with: list[str] = field(default_factory=list)  # what in its last call rules it out, in words
    padding: float | None = None  # share of the tokens that the padding mask masks, in its first observed call
    left_aligned: bool | None = None  # all padding is behind the tokens


@dataclass
class OptimizerInfo:
    cls: str = ""
    site: Site | None = None
    owner: str = ""
    written: Site | None = None  # its step, where the script's own author wrote the class
    steps: int = 0
    boundary: bool = False
    fused: bool | None = None
    foreach: bool | None = None
    momentum: float | None = None  # SGD's and RMSprop's
    parameters: int = 0
    matrices: list[list[int]] = field(default_factory=list)  # the largest shapes of its parameters with two dimensions
    zero_filled: int = 0  # parameters whose gradient was a zero-filled tensor after zero_grad


@dataclass
class Failure:
    """How the script ended, when it did not end as it should."""

    kind: str = ""  # exception | exit | oom | interrupt | no_room | no_module | killed | timeout
    message: str = ""
    traceback: str = ""  # our frames left out
    exit_code: int | None = None


@dataclass
class RunRecord:
    """``run.json``: all the facts of one run."""

    schema: int = SCHEMA
    advisor: str = ""
    script: str = ""
    module: bool = False
    argv: list[str] = field(default_factory=list)
    cwd: str = ""
    started: float = 0.0  # Unix time
    startup_s: float | None = None  # from the child's start to the first step
    wall_s: float | None = None
    complete: bool = False  # every window that was asked for was filled
    ended: str = ""  # stopped (by us) | finished (by itself) | failed | killed
    steps: int = 0  # steps seen in all, of the training that was measured
    # How often another optimizer had come to end the steps before: scripts that train one model after another have
    # several trainings.
    training: int = 0
    training_steps: list[int] = field(default_factory=list)  # of each training, the last one included
    step_kind: str = ""  # optimizer | loader | forward | explicit
    seen: dict[str, int] = field(default_factory=dict)  # optimizer_steps, batches, forwards
    environment: Environment = field(default_factory=Environment)
    device: Device = field(default_factory=Device)
    windows: list[Window] = field(default_factory=list)
    timing: Timing = field(default_factory=Timing)
    profile_step_s: float | None = None  # mean step under the profiler: the inflation is this over timing.step_s
    tracebacks_s: float | None = None  # per step of the profile window: anomaly detection writing down where it is
    memory: Memory = field(default_factory=Memory)
    loaders: list[Loader] = field(default_factory=list)
    optimizers: list[OptimizerInfo] = field(default_factory=list)
    models: list[Model] = field(default_factory=list)
    call_sites: list[CallSite] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)  # of the first backwards, without a gap, unscaled
    outputs: list[float] = field(default_factory=list)  # mean absolute output of the first forwards, or none
    # Likewise of their last hidden states, where they have them: a model without its head gives these and no scores.
    states: list[float] = field(default_factory=list)
    last_loss: float | None = None  # the last one that was seen, timing window aside, where it is not among `losses`
    # NaN or infinite: of all the losses that were seen (the first and the last ones), and of the optimizers' parameters
    # when the run ended, which tells of a loss that became NaN unseen.
    nonfinite_losses: int = 0
    nonfinite_parameters: int = 0
    settings: list[str] = field(default_factory=list)  # the user's JSON, YAML, TOML files that were read: paths
    modules: dict[str, str] = field(default_factory=dict)  # the user's own, the script among them: file → dotted name
    compiles: int = 0  # dynamo frames compiled in the run
    compile_s: float = 0.0
    graph_breaks: list[GraphBreak] = field(default_factory=list)
    recompiled: list[Recompiled] = field(default_factory=list)
    shapes_vary: bool | None = None  # more than one input shape among the observed batches
    rank: int | None = None
    world_size: int | None = None
    unused_gradients: list[UnusedGradients] = field(default_factory=list)
    discarded: list[DiscardedGradients] = field(default_factory=list)
    # The gradients that each backward of a step computes, in order. Empty where all are used.
    accumulated: list[list[GradientRun]] = field(default_factory=list)
    # The nodes of each of these backwards' graphs, leaves aside, in the order in which the forward made them: "branch"
    # for those that lead to gradients which nobody uses, and to no other, "weights" for those of which one of several
    # that they compute leads there. Empty where there are none.
    backward_nodes: list[list[GradientRun]] = field(default_factory=list)
    small_caches: list[SmallCache] = field(default_factory=list)
    recomputed: list[Recomputed] = field(default_factory=list)  # the longest first
    repeated: list[Repeated] = field(default_factory=list)  # likewise
    gathered: list[Gathered] = field(default_factory=list)  # likewise
    one_hot: list[OneHot] = field(default_factory=list)  # likewise
    repeated_rows: list[RepeatedRow] = field(default_factory=list)  # likewise
    zero_rows: list[ZeroRow] = field(default_factory=list)  # likewise
    sparse_products: list[SparseProduct] = field(default_factory=list)  # likewise
    looped_layers: list[LoopedLayer] = field(default_factory=list)  # likewise
    same_rows: list[SameRow] = field(default_factory=list)  # likewise
    unread: list[Unread] = field(default_factory=list)  # likewise
    weighted: list[Weighted] = field(default_factory=list)  # likewise
    unread_gradients: list[UnreadGradient] = field(default_factory=list)  # likewise
    asked_again: AskedAgain | None = None
    computed_s: float = 0.0  # what all of torch's functions take in a step in which that was looked for, on the host
    # What makes weights anew in each forward (parametrize, weight_norm, spectral_norm) → seconds of a step, and …
    remade_weights: dict[str, float] = field(default_factory=dict)
    remade_share: float = 0.0  # … how much all of it is of what torch's functions take in the forwards
    frozen: list[Frozen] = field(default_factory=list)  # likewise
    gradients: int = 0  # of parameters and other leaves that a backward pass computes, where some are unused, and …
    gradients_needed: int = 0  # … how many of them are done when the last of those is that an optimizer takes
    input_gradients: int = 0  # of them those of leaves that are no weights
    kept_graphs: list[KeptGraphs] = field(default_factory=list)
    growth_bytes: float | None = None  # per step of the timing window: resident set, or memory allocated on the GPU, …
    growth_steps: int = 0  # … over so many steps
    total_steps: int | None = None  # of the script or that training, where it came to its end before it was measured
    encoders: list[Encoder] = field(default_factory=list)
    traces: list[str] = field(default_factory=list)  # relative to the run folder
    details: list[str] = field(default_factory=list)
    aside: dict[str, float] = field(default_factory=dict)  # cause → seconds over the whole run after the first step
    after_s: float | None = None  # seconds from the last step to the end of a script that came to its end
    steps_wall_s: float | None = None  # seconds from the first step to the end of the run
    notes: list[str] = field(default_factory=list)  # what is less certain, what was not covered: sentences
    failure: Failure | None = None


@dataclass
class Status:
    """``status.json``: what the harness is doing, rewritten at most once a second, not in the timing window."""

    phase: str = "starting"  # starting | waiting | settle | timing | profile | detail | done
    step: int = 0
    step_s: float | None = None
    optimizer_steps: int = 0
    batches: int = 0
    forwards: int = 0
    since: float = 0.0  # Unix time when the phase began


def to_dict(record: Any) -> dict[str, Any]:
    """``dataclasses.asdict`` under a name that both sides use."""
    return dataclasses.asdict(record)
