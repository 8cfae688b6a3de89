"""Models, optimizers and compiled graphs of the script, in ``run.json``."""

from __future__ import annotations

from dataclasses import dataclass, field

from .loading import TensorInfo
from .sites import Site


@dataclass
class Model:
    """A root module: one the script calls, that no other module holds."""

    cls: str = ""
    file: str = ""
    line: int = 0
    parameters: int = 0
    parameter_bytes: int = 0
    frozen: int = 0  # of these parameters such as need no gradients
    dtypes: list[str] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    training: bool | None = None
    compiled: bool = False
    layers: dict[str, int] = field(default_factory=dict)  # class name → how many, leaves only
    unswitched: dict[str, int] = field(default_factory=dict)  # of these norms and dropouts that eval() does not change
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
    """A line of the script's own at which Dynamo had to end a graph. Source: its books, see :mod:`..graphs`."""

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
    sliced: int = 0  # of these such as are parts of larger tensors: their numbers do not lie side by side
    matrices: list[list[int]] = field(default_factory=list)  # the largest shapes of its parameters with two dimensions
    zero_filled: int = 0  # parameters whose gradient was a zero-filled tensor after zero_grad
