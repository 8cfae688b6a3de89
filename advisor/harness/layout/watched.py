"""What was found in steps, in ``run.json``: see :mod:`..watches`, :mod:`..kept_graphs` and :mod:`..caches`."""

from __future__ import annotations

from dataclasses import dataclass, field

from .sites import Site


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
    frozen: bool = False  # some parameters of those modules need no gradients
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
    others: float = 0.0  # … how many of these on rows that nobody had looked up (which count for nothing else), …
    seconds: float = 0.0  # … what the copies take, on the host; of that …
    differentiated_s: float = 0.0  # … whose results a backward goes through
    looking_up_s: float = 0.0  # in a step, what looking these rows up takes, and …
    joining_s: float = 0.0  # … putting their columns beside others
    rows: int = 0  # of its first call, and …
    distinct: int = 0  # … how many of them can differ
    # Added up over a step: columns of the rows that its first linear layer is given, for each lookup, of which …
    columns: float = 0.0
    looked_up: float = 0.0  # … so many were looked up, not only repeated, and …
    given: float = 0.0  # … columns that the last layer of each chain gives
    lookups: int = 0  # in how many lookups its rows were, of …
    parts: int = 0  # … so many parts, repeated ones too
    channels: bool = False  # a convolution of width 1: the columns are channels


@dataclass
class CopiedOperand:
    """A line whose matrix products copied operands that an earlier product of the step had copied already."""

    site: Site = field(default_factory=Site)
    called_from: list[Site] = field(default_factory=list)  # the user's frames in which it runs, from the inside out
    laid_out: list[Site] = field(default_factory=list)  # the lines that put their dimensions into this order
    certain: bool = True  # all of these lines are known, and nobody relies on what was laid out being no copy
    shape: list[int] = field(default_factory=list)  # of the first one
    calls: float = 0.0  # in a step: copies that had been made before, and …
    seconds: float = 0.0  # … what making them again takes, on the host


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
    """A line that multiplies with a matrix of which nearly all numbers are zeros."""

    site: Site = field(default_factory=Site)
    called_from: list[Site] = field(default_factory=list)  # the user's frames in which it runs, from the inside out
    rows: int = 0  # of its first matrix, …
    columns: int = 0
    numbers: int = 0  # … and how many others it has than zero
    calls: float = 0.0  # in a step, of all its matrices, and …
    multiplied: float = 0.0  # … multiplications in them, with additions, …
    needed: float = 0.0  # … those of numbers that are none of zero, …
    turned: float = 0.0  # … and these numbers
    # Of a step's matrices those that no step before has had: how many, and their numbers, zeros as well.
    made: float = 0.0
    made_numbers: float = 0.0
    seconds: float = 0.0  # what the calls take, on the host; of that …
    differentiated_s: float = 0.0  # … whose results a backward goes through


@dataclass
class AttentionMask:
    """A line that computes fused attention under a mask that is the same for all samples and heads."""

    site: Site = field(default_factory=Site)
    called_from: list[Site] = field(default_factory=list)  # the user's frames in which it runs, from the inside out
    queries: int = 0  # of its first call
    keys: int = 0
    reach: int = 0  # how far from the place of a query the keys are that its mask leaves, at most
    band: bool = True  # which are as far for each query, but for the first and last ones
    calls: float = 0.0  # in a step, and …
    seconds: float = 0.0  # … what they take, on the host; of that …
    needed: float = 0.0  # … as much as the tiles are that the mask leaves anything of, and …
    differentiated_s: float = 0.0  # … whose results a backward goes through


@dataclass
class FourierProduct:
    """A line that multiplies frames by a constant matrix of the sines and cosines of a Fourier transform."""

    site: Site = field(default_factory=Site)
    called_from: list[Site] = field(default_factory=list)  # the user's frames in which it runs, from the inside out
    length: int = 0  # of a frame, in its first matrix, and …
    waves: int = 0  # … the sines and cosines that it has, under a window or none
    convolves: bool = False  # the matrix are the filters of a convolution
    calls: float = 0.0  # in a step, of all its matrices, and …
    multiplied: float = 0.0  # … multiplications in them, with additions, …
    transformed: float = 0.0  # … and of fast transforms of the frames: numbers times log2 of the length
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
    differentiated_s: float = 0.0  # … which a backward may go through …
    differentiated: dict[str, float] = field(default_factory=dict)  # … by function
    zero: float = 0.0  # share of the rows
    rows: int = 0
    columns: int = 0  # of what is multiplied by zero in the end
    by_number: bool = False  # which is one number for all of it: the weight of a term of the loss


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
