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

from .loading import FetchPart, Loader, TensorInfo
from .measured import Device, Environment, Memory, Pause, Timing, Window
from .script import Encoder, GraphBreak, Model, OptimizerInfo, Recompiled
from .sites import CallSite, Site
from .watched import (
    AskedAgain,
    AttentionMask,
    CopiedOperand,
    DiscardedGradients,
    FourierProduct,
    Frozen,
    Gathered,
    GradientRun,
    KeptGraphs,
    LoopedLayer,
    OneHot,
    Recomputed,
    Repeated,
    RepeatedRow,
    SameRow,
    SmallCache,
    SparseProduct,
    Unread,
    UnreadGradient,
    UnusedGradients,
    Weighted,
    ZeroRow,
)

__all__ = [
    "BACKWARD_RANGE",
    "CHILD_TRAINS",
    "CLOSURE_RANGE",
    "DETAIL_DIR",
    "DETAIL_SUFFIX",
    "DRAIN_RANGE",
    "ENCODER_RANGE",
    "FILES_DIR",
    "FORWARD_RANGE",
    "JOURNAL_DIR",
    "JOURNAL_LOG",
    "LAUNCHERS",
    "MEASURED_RANK",
    "MOST_MATRICES",
    "OPTIONS_ENV",
    "OPTIONS_JSON",
    "OUTPUT_LOG",
    "OVERLAY_DIR",
    "PARTIAL_JSON",
    "RUN_JSON",
    "SCHEMA",
    "STATUS_JSON",
    "TRACE_SUFFIX",
    "AskedAgain",
    "AttentionMask",
    "CallSite",
    "CopiedOperand",
    "Device",
    "DiscardedGradients",
    "Encoder",
    "Environment",
    "Failure",
    "FetchPart",
    "FourierProduct",
    "Frozen",
    "Gathered",
    "GradientRun",
    "GraphBreak",
    "KeptGraphs",
    "Loader",
    "LoopedLayer",
    "Memory",
    "Model",
    "OneHot",
    "OptimizerInfo",
    "Options",
    "Pause",
    "Recompiled",
    "Recomputed",
    "Repeated",
    "RepeatedRow",
    "RunRecord",
    "SameRow",
    "Site",
    "SmallCache",
    "SparseProduct",
    "Status",
    "TensorInfo",
    "Timing",
    "Unread",
    "UnreadGradient",
    "UnusedGradients",
    "Weighted",
    "Window",
    "ZeroRow",
    "to_dict",
]

SCHEMA = 1

# Names inside a run folder.
RUN_JSON = "run.json"
STATUS_JSON = "status.json"
OPTIONS_JSON = "options.json"
OUTPUT_LOG = "output.log"
PARTIAL_JSON = "run.partial.json"  # the record after the profile window, should the detail window kill the script
CHILD_TRAINS = "child-trains"  # exists when a process that the script started does optimizer steps
MEASURED_RANK = "measured-rank"  # exists when rank 0 of a job that the script starts is measured: its process
# The modules behind the commands that start a script's processes (``torchrun``, ``accelerate launch``).
LAUNCHERS = ("torch.distributed.run", "accelerate.commands.accelerate_cli")
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
    turns: int = 0  # nothing is measured before (RunRecord's `turns`): known from another run
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
    # How often another loader, or another model, had come to begin the steps before: of a decoder that is called fifty
    # times for each batch that is encoded, its calls are taken for the steps until the second batch.
    turns: int = 0
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
    gradients_read: list[Site] = field(default_factory=list)  # where the script reads some, and none that it discards
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
    attention_masks: list[AttentionMask] = field(default_factory=list)  # likewise
    copied_operands: list[CopiedOperand] = field(default_factory=list)  # likewise
    fourier_products: list[FourierProduct] = field(default_factory=list)  # likewise
    looped_layers: list[LoopedLayer] = field(default_factory=list)  # likewise
    same_rows: list[SameRow] = field(default_factory=list)  # likewise
    unread: list[Unread] = field(default_factory=list)  # likewise
    weighted: list[Weighted] = field(default_factory=list)  # likewise
    unread_gradients: list[UnreadGradient] = field(default_factory=list)  # likewise
    asked_again: AskedAgain | None = None
    computed_s: float = 0.0  # what all of torch's functions take in a step in which that was looked for, on the host
    # What makes weights anew in each forward (parametrize, weight_norm, spectral_norm) → seconds of a step, and …
    remade_weights: dict[str, float] = field(default_factory=dict)
    remade_share: float = 0.0  # … how much all of it is of what torch's functions take in the forwards, and …
    remade_bytes: float = 0.0  # … the size of what is made in a step
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
