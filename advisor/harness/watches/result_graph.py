"""The calls of a few steps as a graph of what reads what another has written, and what follows of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..layout import Site

LEAST_ZERO = 0.5  # of the rows: then leaving them out is worth picking the others
_LEAST_ROWS = 8
_HARDLY = 1e-6
_MULTIPLIES = frozenset(("mul", "multiply", "__mul__", "__rmul__", "mul_", "__imul__"))
_PRODUCTS = ("matmul", "mm", "__matmul__")
# What gives each row by that row alone: of these a part of the rows can be computed without the others. A batch norm,
# an attention of rows to each other, what a graph's edges add up cannot.
_BY_ROWS = frozenset(
    (
        *("linear", "bilinear", "embedding", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d"),
        *("relu", "relu_", "gelu", "silu", "tanh", "sigmoid", "elu", "leaky_relu", "softplus", "hardtanh", "mish"),
        *("dropout", "layer_norm", "group_norm", "rms_norm", "softmax", "log_softmax", "normalize", "clamp", "where"),
        *("add", "sub", "rsub", "mul", "div", "true_divide", "pow", "square", "abs", "exp", "log", "sqrt", "rsqrt"),
        *("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__", "__pow__", "neg"),
        *("mean", "sum", "norm", "logsumexp", "amax", "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "flatten"),
        *("cross_entropy", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "nll_loss", "kl_div", "cat", "to"),
        *("binary_cross_entropy", "binary_cross_entropy_with_logits", "gaussian_nll_loss", "float", "reshape"),
        *_PRODUCTS,
    )
)


@dataclass(frozen=True)
class Rows:
    """What a call multiplies by a number for each row: ``zero`` is the share of zeros among ``rows`` of these.

    All of it by one number, a 0, has no ``rows``. ``given`` are the calls that wrote what is multiplied, of so many
    ``columns``, and ``weights`` those that wrote the numbers.
    """

    given: tuple[int, ...]
    weights: tuple[int, ...]
    rows: int
    columns: int
    zero: float


@dataclass
class Call:
    """One call of torch's functions."""

    seconds: float
    step: int
    sites: tuple[Site, ...]  # the user's frames, from the inside out
    library: int  # how many of these frames lie inside of the first one of a library's other than torch
    reads: tuple[int, ...]  # the calls that wrote what this one was given
    root: bool  # the script itself reads what it gives
    draws: bool
    name: str = ""  # of the function
    statistics: int = 0  # the storage that a batch norm writes them to
    writes: tuple[Any, ...] = ()  # weak references to storages
    rows: int = 0  # the first dimension of what it gives
    recorded: bool = False  # by autograd
    rowwise: bool = False  # it gives each row by that row alone
    weighted: list[Rows] = field(default_factory=list)
    read: bool = False  # by what is read itself, as `follow` has it
    # The share of its rows that come to nothing, whatever they are, and the columns of what is multiplied by zero then,
    # as `follow_zeros` has it.
    zero: float = 0.0
    columns: int = 0
    by_number: bool = False  # all of what it gives is multiplied by the number 0 in the end


@dataclass
class Place:
    """A place in the source, and calls that are made for it."""

    site: Site
    called_from: list[Site]  # the user's frames around it, from the inside out
    calls: list[Call] = field(default_factory=list)

    def at(self, call: Call) -> int:
        """Which of a call's frames it is."""
        return next(number for number, site in enumerate(call.sites) if site is self.site)


def follow(calls: Sequence[Call], kept: Sequence[bool]) -> None:
    """From what is read, or kept, to what it was computed of, and to what updates the same statistics."""
    for call, keeps in zip(calls, kept, strict=True):
        call.read = call.root or keeps
    for _ in range(2):
        _back(calls)
        used = {each.statistics for each in calls if each.read}
        for call in calls:
            call.read = call.read or bool(call.statistics and call.statistics in used)
    _back(calls)


def _back(calls: Sequence[Call]) -> None:
    for call in reversed(calls):
        if call.read:
            for each in call.reads:
                calls[each].read = True


def by_place(calls: Sequence[Call], meant: Callable[[Call], bool], others: Sequence[Call], steps: int) -> list[Place]:
    """The outermost places all of whose calls are `meant`, in each of so many steps; `others` count as calls, too."""
    whole: dict[int, bool] = {}
    seen: dict[int, set[int]] = {}
    for call in (*calls, *others):
        for known in set(map(id, call.sites)):
            whole[known] = whole.get(known, True) and meant(call)
            seen.setdefault(known, set()).add(call.step)
    places: dict[int, Place] = {}
    for call in filter(meant, calls):
        around = [at for at, site in enumerate(call.sites) if whole[id(site)] and len(seen[id(site)]) == steps]
        if around:
            site = call.sites[around[-1]]
            place = places.setdefault(id(site), Place(site, list(call.sites[around[-1] + 1 :])))
            place.calls.append(call)
    return list(places.values())


def by_rows(name: str, given: Sequence[Any], rows: int) -> bool:
    """Whether a function that gives so many rows computes each of what stands in that row of what it is given."""
    if name not in _BY_ROWS or not given or rows < _LEAST_ROWS or not given[0].dim() or given[0].shape[0] != rows:
        return False
    return name not in _PRODUCTS or (len(given) == 2 and given[1].shape[0] != rows)


def zero_weights(torch: Any, name: str, args: Any) -> Iterator[tuple[Any, Any]]:
    """What a call multiplies by a number for each row, with these; or takes rows of, with the mask that names them."""
    tensor = torch.Tensor
    if len(args) < 2 or not isinstance(args[0], tensor) or not isinstance(args[1], tensor):
        return
    pairs = [(args[0], args[1]), (args[1], args[0])] if name in _MULTIPLIES else []
    if name == "__getitem__" and args[1].dtype == torch.bool:
        pairs = [(args[0], args[1])]
    for x, weights in pairs:
        rows = int(x.shape[0]) if x.dim() else 0
        if rows < _LEAST_ROWS or not weights.dim() or weights.shape[0] != rows or weights.numel() != rows:
            continue
        # x * w takes a w of one dimension for the columns of x.
        if weights.dim() == (1 if name == "__getitem__" else x.dim()) and weights.device.type == "cpu":
            yield x, weights


def times_zero(torch: Any, name: str, args: Any) -> Iterator[Any]:
    """What a call multiplies by the number 0: the weight that a term of the loss has, or a tensor of that alone."""
    if name not in _MULTIPLIES or len(args) < 2:
        return
    for x, number in ((args[0], args[1]), (args[1], args[0])):
        if not isinstance(x, torch.Tensor) or not x.requires_grad:
            continue
        if isinstance(number, torch.Tensor):
            alone = not number.dim() and not number.requires_grad and number.device.type == "cpu"
            number = number.item() if alone else None
        if isinstance(number, (int, float)) and not isinstance(number, bool) and number == 0:
            yield x


def zero_share(torch: Any, weights: Any) -> float:
    """The share of zeros among them; hardly more than 0 for none, as may be for one of several experts."""
    others = int(torch.count_nonzero(weights.detach()))
    return max(_HARDLY, 1.0 - others / int(weights.numel()))


def follow_zeros(calls: Sequence[Call], kept: Sequence[bool]) -> None:
    """From rows that are multiplied by zero to all that is computed for them alone.

    What is multiplied by a 0 is for nothing whatever its rows are computed of. Weights that are computed of these rows
    themselves cannot be known before.
    """
    least: dict[int, _Dropped] = {}
    for number in range(len(calls) - 1, -1, -1):
        call = calls[number]
        dropped = _NOTHING if call.root or kept[number] else least.get(number, _NOTHING)
        call.zero, call.columns, call.by_number = dropped.zero, dropped.columns, dropped.by_number
        if not call.read:
            continue
        cut: dict[int, _Dropped] = {}
        for rows in call.weighted:
            given = [each for each in rows.given if not rows.rows or calls[each].rows == rows.rows]
            behind = _before(calls, rows.weights, min(given)) if given else set()
            here = _Dropped(rows.zero, rows.columns, tuple(rows.weights), not rows.rows)
            cut.update((each, here) for each in given if each not in behind)
        for each in call.reads:
            by_rows = call.rowwise and calls[each].rows == call.rows
            passes = dropped if by_rows or dropped.by_number else _NOTHING
            here = max(cut.get(each, _NOTHING), passes)
            least[each] = least[each].and_by(here) if each in least else here


@dataclass(frozen=True, order=True)
class _Dropped:
    """The share of rows that come to nothing, the columns of what is multiplied by zero, and what gives the zeros."""

    zero: float = 0.0
    columns: int = 0
    weights: tuple[int, ...] = ()
    by_number: bool = False

    def and_by(self, other: _Dropped) -> _Dropped:
        """What two that read the same rows both drop: masks of its own for each part need all of them together."""
        if self.weights == other.weights or not min(self.zero, other.zero):
            return min(self, other)
        both = (*self.weights, *other.weights)
        zero, all_of_it = max(0.0, self.zero + other.zero - 1.0), self.by_number and other.by_number
        return replace(min(self, other), zero=zero, weights=both, by_number=all_of_it)


_NOTHING = _Dropped()


def _before(calls: Sequence[Call], of: Sequence[int], first: int) -> set[int]:
    """The calls from `first` on that these were computed of, and they themselves."""
    found: set[int] = set()
    todo = list(of)
    while todo:
        each = todo.pop()
        if each >= first and each not in found:
            found.add(each)
            todo += calls[each].reads
    return found
