"""What watched forwards compute of the samples alone: the same for a sample in each epoch, unless the sample changes.

A call of torch's counts when all that goes into it is a tensor of a loader's batch, or rows of one that the script
keeps, what such calls made of one, or a tensor that stays as it is (a weight that nobody trains); when autograd records
nothing of it, nothing random is drawn, and no sample meets another one. That is told by three steps: their calls are
compared by place, and a tensor of other origin by its numbers.
"""

from __future__ import annotations

import statistics
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from types import FrameType, ModuleType
from typing import Any

from ..layout import Frozen, Site
from ..loading.drawing import shared_states
from ..loading.loaders import tensors_in
from ..looking import times_written
from ..places import FRAMES, site_of, user_frames
from .pools import Pools
from .repeats import CONSTANT, draws
from .scaled import scaling

_MOST_CALLS = 20_000  # of a step: what comes after them counts as trained
_MOST_BATCHES, _MOST_BYTES = 8, 1 << 30  # delivered ones that are kept to know their tensors again by
_MOST_TENSORS = 64  # of a call's: cat() of many, an LSTM's weights
_LEAST_S = 0.2e-3  # per step: shorter lines are not worth a word
# They go over all numbers, or over a dimension: over the samples, where that is the first one. That dimension is the
# second of their arguments, or where it says so the third.
_OVER = (
    *("mean", "sum", "std", "var", "amax", "amin", "max", "min", "median", "prod", "logsumexp", "argmax", "argmin"),
    *("softmax", "log_softmax", "softmin", "cumsum", "cumprod", "sort", "argsort", "topk", "norm", "normalize"),
    *("std_mean", "var_mean", "all", "any", "unique", "nonzero", "flip", "roll", "unbind"),
)
_THIRD = ("topk", "norm", "normalize", "roll")
_LAST = ("sort", "argsort", "topk", "normalize")  # of no dimension they go over another one than the first
# Products: of two matrices that each have a row for each sample one has a number for each pair of samples.
_BETWEEN = ("matmul", "mm", "__matmul__", "__rmatmul__", "linear", "cdist", "einsum", "addmm", "tensordot")
_IN_PLACE = {
    "__setitem__",
    *("__iadd__", "__isub__", "__imul__", "__idiv__", "__itruediv__", "__ifloordiv__", "__imod__", "__ipow__"),
    *("__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__"),
}

Key = tuple[int, int]
"""Which of a step's forwards, and which of its calls."""


@dataclass
class _Known:
    """Where a tensor comes from: while that very tensor is there, and was not written to since."""

    alive: weakref.ref[Any]
    version: int
    # ("batch", loader, which of its tensors), where a pool is a loader of a negative number, or its maker's key
    source: tuple[Any, ...]
    fixed: bool  # as far as this step tells
    of_batch: bool
    rows: int  # of the batch


@dataclass
class _Call:
    name: str
    scalars: Any
    sources: tuple[Any, ...]  # of what went in; None for a tensor of other origin, whose numbers are among …
    leaves: list[Any]
    seconds: float
    fixed: bool
    of_batch: bool
    bytes: int  # of what it made
    rows: int
    frames: list[Site]  # of the user, from the line on in which the model calls a part of it …
    whole: bool  # … or, without such a line, from the one on that calls the model


@dataclass
class _Step:
    began: float
    ended: float = 0.0
    ours: float = 0.0  # seconds of it that its being watched took
    calls: dict[Key, _Call] = field(default_factory=dict)
    drawn: set[int] = field(default_factory=set)  # forwards in which Python's or NumPy's generator moved
    given: dict[int, list[Key | None]] = field(default_factory=dict)  # what makes the forwards' outputs; None: unknown
    numbers: dict[tuple[int, int], Any] = field(default_factory=dict)  # of weights, by identity and version


class FrozenParts:
    """Told of batches, and of each function of torch's that a watched forward calls; one for each training.

    `numbers` gives a few of a tensor's, which `alike` compares; `trained` all tensors that optimizers update.
    """

    def __init__(
        self,
        torch: ModuleType,
        numbers: Callable[[Any], Any],
        alike: Callable[[Any, Any], bool],
        trained: Callable[[], Iterable[Any]],
    ) -> None:
        self._torch: Any = torch
        self._numbers, self._alike, self._trained = numbers, alike, trained
        self._steps: list[_Step] = []
        self._known: dict[int, _Known] = {}
        self._batches: list[tuple[int, list[tuple[Any, int]]]] = []  # (loader, its tensors and their versions)
        self._forward, self._number = -1, 0
        self._frame: FrameType | None = None
        self._given: list[Any] = []  # of the call that runs: its tensors, and …
        self._seen: list[_Known | None] = []  # … what was known of them before it could write to them
        self._sizes: dict[int, Any] = {}  # of the step's batches: a size → which of its sizes it is
        self._held: set[int] = set()  # identities of what optimizers update
        self._state: Any = None  # torch's generator, …
        self._others: Any = None  # … and Python's and NumPy's
        self._lasting: dict[int, tuple[weakref.ref[Any], Any]] = {}  # weights that counted as fixed
        self._pools = Pools(torch)

    def clear(self) -> None:
        """Nothing is to lie about."""
        for each in (self._steps, self._known, self._batches, self._given, self._seen, self._pools):
            each.clear()

    def batch(self, loader: int, tensors: list[Any]) -> None:
        """A loader has delivered these tensors."""
        self._batches.append((loader, [(each, times_written(each)) for each in tensors]))
        while len(self._batches) > _MOST_BATCHES or (len(self._batches) > 1 and self._bytes() > _MOST_BYTES):
            del self._batches[0]

    def _bytes(self) -> int:
        return sum(_bytes(each) for _, tensors in self._batches for each, _ in tensors)

    def step_begins(self) -> None:
        """A step that is watched begins; what the one before made of its batches is none of this one's."""
        self._steps.append(_Step(time.perf_counter()))
        self._known.clear()
        self._sizes.clear()
        self._forward = -1

    def step_ends(self) -> None:
        """It is over."""
        if self._steps:
            self._steps[-1].ended = time.perf_counter()

    def watching(self, seconds: float) -> None:
        """To watch has taken so long."""
        if self._steps:
            self._steps[-1].ours += seconds

    def forward_begins(self, given: list[Any], frame: FrameType | None) -> None:
        """A watched forward begins; `frame` is the user's that calls it."""
        if not self._steps:
            return
        self._forward, self._number, self._frame = self._forward + 1, 0, frame
        self._held = {id(each) for each in self._trained()}
        for each in given:
            if self._of(each) is None and (told := self._delivered(each) or self._drawn(each)) is not None:
                found, rows = told
                for number, size in enumerate(each.shape):
                    self._sizes.setdefault(int(size), (*found, number))
                self._known[id(each)] = _Known(weakref.ref(each), times_written(each), found, True, True, rows)
        self._state, self._others = self._torch.default_generator.get_state(), shared_states()

    def forward_ends(self, output: Any) -> None:
        """It is over, and gives this."""
        self._frame = None
        if self._steps:
            known = [self._of(each) for each in tensors_in(output, self._torch, limit=_MOST_TENSORS)]
            self._steps[-1].given[self._forward] = [None if each is None else _place(each.source) for each in known]
        if self._steps and self._others != shared_states():
            self._steps[-1].drawn.add(self._forward)

    def _delivered(self, tensor: Any) -> tuple[tuple[Any, ...], int] | None:
        """Which tensor of a batch a model is given, and the batch's rows: itself, a view, a copy, its numbers scaled.

        Each row may hold several of the model's: the frames of a film.
        """
        if not self._plain(tensor):
            return None
        for loader, tensors in reversed(self._batches):
            for number, (each, version) in enumerate(tensors):
                if not self._plain(each) or times_written(each) != version or each.numel() != tensor.numel():
                    continue
                rows = int(each.shape[0]) if each.dim() else 0
                view = each.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
                if each is tensor or (view and each.dtype == tensor.dtype and times_written(tensor) == version):
                    return ("batch", loader, number), rows
                if _fits(each, tensor) and bool(self._torch.equal(each.to(tensor.dtype).reshape(tensor.shape), tensor)):
                    return ("batch", loader, number), rows
                if (scale := scaling(self._torch, each, tensor)) is not None:
                    return ("batch", loader, number, scale), rows
        return None

    def _drawn(self, tensor: Any) -> tuple[tuple[Any, ...], int] | None:
        """The same for rows of a tensor that the script keeps."""
        if not self._plain(tensor) or (found := self._pools.find(tensor)) is None:
            return None
        return ("batch", -1 - found[0], 0, found[1]), int(tensor.shape[0])

    def _plain(self, tensor: Any) -> bool:
        strided = type(tensor) is self._torch.Tensor and tensor.layout is self._torch.strided
        return strided and tensor.device.type == "cpu" and not tensor.is_nested and not tensor.requires_grad

    def _of(self, tensor: Any) -> _Known | None:
        known = self._known.get(id(tensor))
        if known is None or known.alive() is not tensor or known.version != times_written(tensor):
            return None
        return known

    def begins(self, args: Any, kwargs: Any) -> None:
        """A function of torch's is about to run."""
        self._given = list(tensors_in((args, kwargs), self._torch, limit=_MOST_TENSORS)) if self._steps else []
        self._seen = [self._of(each) for each in self._given]

    def called(self, name: str, args: Any, kwargs: dict[str, Any], result: Any, seconds: float) -> None:
        """That function, of that name, has run for so long, and gave `result`."""
        if not self._steps or self._forward < 0:
            return
        torch, step = self._torch, self._steps[-1]
        given, known = self._given, self._seen
        self._given, self._seen = [], []
        written = _written(name, args, kwargs)
        made = list(tensors_in(result, torch, limit=_MOST_TENSORS))
        for each in (written, written._base) if written is not None else ():
            if each is not None and not any(each is other for other in made):
                made.append(each)
        if not made or not (given or name in CONSTANT):
            return  # what is made of no tensor is known by its numbers
        state, before = torch.default_generator.get_state(), self._state
        self._state = state
        rows = next((each.rows for each in known if each is not None and each.of_batch), 0)
        of_batch = any(each is not None and each.of_batch for each in known)
        fixed = torch.equal(state, before) and not draws(name, kwargs)
        fixed = fixed and len(given) < _MOST_TENSORS and len(step.calls) < _MOST_CALLS
        fixed = fixed and all(each.fixed for each in known if each is not None)
        fixed = fixed and not any(each.requires_grad or each.device.type != "cpu" for each in made)
        fixed = fixed and not (of_batch and self._meet(name, args, kwargs, given, known, made, rows))
        leaves: list[Any] = []
        if fixed:
            leaves = [self._leaf(each) for each, seen in zip(given, known, strict=True) if seen is None]
            fixed = all(each is not None for each in leaves)
        key = self._forward, self._number
        self._number += 1
        for each in made:
            self._known[id(each)] = _Known(weakref.ref(each), times_written(each), key, fixed, of_batch, rows)
        frames, whole = self._line() if fixed and of_batch else ([], False)
        step.calls[key] = _Call(
            name=name,
            scalars=_scalars((args, kwargs), torch, self._sizes) if fixed else None,
            sources=tuple(None if each is None else each.source for each in known),
            leaves=leaves,
            seconds=seconds,
            fixed=fixed,
            of_batch=of_batch,
            bytes=sum(map(_bytes, made)),
            rows=rows,
            frames=frames,
            whole=whole,
        )

    def _leaf(self, tensor: Any) -> Any:
        """Numbers of a tensor of other origin, to compare steps by; None for one that is trained, or not known."""
        if id(tensor) in self._held or (tensor._base is not None and id(tensor._base) in self._held):
            return None
        if tensor.requires_grad and not tensor.is_leaf:
            return None
        if not isinstance(tensor, self._torch.nn.Parameter):
            return self._numbers(tensor)
        numbers, key = self._steps[-1].numbers, (id(tensor), times_written(tensor))
        if key not in numbers:
            numbers[key] = self._numbers(tensor)
            self._lasting[id(tensor)] = weakref.ref(tensor), numbers[key]
        return numbers[key]

    def still(self) -> bool:
        """Whether the weights that counted as fixed are what they were, as far as they are there, and the pools."""
        there = [(each(), numbers) for each, numbers in self._lasting.values()]
        same = all(self._same(self._numbers(each), numbers) for each, numbers in there if each is not None)
        return same and self._pools.still()

    def _line(self) -> tuple[list[Site], bool]:
        """The user's frames from the one on in which the model calls the part that runs; whether there is none such,
        and the first of them is the line that calls the model.
        """
        frames = list(islice(user_frames(), 4 * FRAMES))
        at = next((number for number, each in enumerate(frames) if each is self._frame), None)
        if at is None:
            return [], False
        return [site_of(each) for each in frames[max(at - 1, 0) : at + FRAMES]], at == 0

    def _meet(
        self, name: str, args: Any, kwargs: Any, given: list[Any], known: list[_Known | None], made: Any, rows: int
    ) -> bool:
        """Whether samples of the batch meet one another in a call, or may."""
        if name == "batch_norm":
            return kwargs.get("training", args[5] if len(args) > 5 else True) is not False
        of_batch = [one for one, seen in zip(given, known, strict=True) if seen is not None and seen.of_batch]
        if name in _BETWEEN and sum(one.dim() == 2 for one in of_batch) > 1:
            return True
        if rows < 2:
            return False
        # The samples may be behind the tokens, and each may be cut into pieces, or heads.
        if not any(rows in each.shape or any(size and size % rows == 0 for size in each.shape[:2]) for each in made):
            return True
        first, plain = of_batch[0], name.removeprefix("__").removesuffix("__").removesuffix("_")
        if not first.dim() or first.shape[0] % rows:
            return False
        if plain == "getitem":
            index = args[1][0] if isinstance(args[1], tuple) and args[1] else args[1]
            return isinstance(index, int) or (isinstance(index, slice) and index != slice(None))
        return plain in _OVER and _over_first(plain, args, kwargs, first.dim())

    def found(self, watched: int) -> list[Frozen]:
        """The lines that compute it, the longest first, with what they take in a step."""
        if len(self._steps) != watched:
            return []
        fixed = self._fixed()
        # What is not fixed in one whose outputs are was for nothing else: whether a mask masks anything, say.
        whole = {forward for forward, keys in self._steps[0].given.items() if keys and {*keys} <= fixed}
        lines: dict[int, tuple[list[Site], list[Key]]] = {}
        for key in sorted(fixed):
            call = self._steps[0].calls[key]
            if call.of_batch and call.frames:
                # Where all of a model is fixed, it is the line that calls it which computes it.
                frames = call.frames if key[0] not in whole or call.whole else call.frames[1:]
                lines.setdefault(id(frames[0]), (frames, []))[1].append(key)
        loaders = self._loaders(fixed)
        long = [
            (frames, keys, set().union(*(loaders[key] for key in keys)))
            for frames, keys in lines.values()
            if self._seconds(keys) >= _LEAST_S
        ]
        kept = self._kept({key for _, keys, _ in long for key in keys})
        self._pools.use({-1 - each for _, _, whose in long for each in whose if each < 0})
        found = [
            Frozen(
                site=frames[0],
                called_from=frames,
                calls=len(keys),
                seconds=self._seconds(keys),
                share=self._share(keys),
                sample_bytes=sum(kept.get(key, 0.0) for key in keys),
                loaders=sorted(each for each in whose if each >= 0),
                pools=sorted(self._pools.rows(-1 - each) for each in whose if each < 0),
                rows=max(self._steps[0].calls[key].rows for key in keys),
                whole=keys[0][0] in whole,
            )
            for frames, keys, whose in long
        ]
        return sorted(found, key=lambda each: -each.seconds)

    def _seconds(self, keys: list[Key]) -> float:
        """Of these calls in a step. One of the steps may have been disturbed by another program."""
        return statistics.median(sum(step.calls[key].seconds for key in keys) for step in self._steps)

    def _share(self, keys: list[Key]) -> float:
        """Of a step that these calls take, what we did in it aside."""
        took = ((step, sum(step.calls[key].seconds for key in keys)) for step in self._steps)
        return statistics.median(seconds / max(step.ended - step.began - step.ours, 1e-9) for step, seconds in took)

    def _fixed(self) -> set[Key]:
        """The calls that are fixed in all of the steps, and were given the same in each, the batches aside."""
        first, *others = self._steps
        fixed: set[Key] = set()
        drawn: set[int] = set().union(*(step.drawn for step in self._steps))
        for key, call in first.calls.items():
            again = [step.calls[key] for step in others if key in step.calls]
            if not call.fixed or key[0] in drawn or len(again) < len(others):
                continue
            if all(_place(each) in {None, *fixed} for each in call.sources) and all(self._as(call, e) for e in again):
                fixed.add(key)
        return fixed

    def _as(self, call: _Call, other: _Call) -> bool:
        same = (call.name, call.scalars, call.sources) == (other.name, other.scalars, other.sources)
        same = same and other.fixed and len(call.leaves) == len(other.leaves)
        return same and all(map(self._same, call.leaves, other.leaves))

    def _same(self, one: Any, other: Any) -> bool:
        return one is not None and other is not None and self._alike(one, other)

    def _kept(self, those: set[Key]) -> dict[Key, float]:
        """Bytes per sample of what would be kept of `those` calls: what any other gets of them, or none does."""
        calls = self._steps[0].calls
        used: set[Key] = set()
        needed = {key for keys in self._steps[0].given.values() for key in keys if key in those}
        for key, call in calls.items():
            places = {place for each in call.sources if (place := _place(each)) is not None}
            used |= places
            if key not in those:
                needed |= places & those
        return {key: calls[key].bytes / max(calls[key].rows, 1) for key in needed | (those - used)}

    def _loaders(self, fixed: set[Key]) -> dict[Key, set[int]]:
        """The loaders, and pools, whose batches each of these calls is a function of."""
        found: dict[Key, set[int]] = {}
        for key in sorted(fixed):
            found[key] = set()
            for each in self._steps[0].calls[key].sources:
                place = _place(each)
                found[key] |= found[place] if place is not None else {each[1]} if each is not None else set()
        return found


def _place(source: tuple[Any, ...] | None) -> Key | None:
    """The call that a tensor comes from; None for one of the batch, or of other origin."""
    return (source[0], source[1]) if source is not None and source[0] != "batch" else None


def _over_first(name: str, args: Any, kwargs: dict[str, Any], dimensions: int) -> bool:
    """Whether a function that goes over dimensions goes over the first one, or over all."""
    at = 2 if name in _THIRD else 1
    named = [kwargs[each] for each in ("dim", "dims", "axis") if each in kwargs]
    given = named or (args[at:] if name == "flip" else args[at : at + 1])
    flat = [one for each in given for one in (each if isinstance(each, (tuple, list)) else (each,))]
    if any(hasattr(each, "dim") for each in flat):
        return False  # elementwise, of two tensors: torch.max(x, y)
    which = [each for each in flat if isinstance(each, int) and not isinstance(each, bool)]
    if not which:
        return not (name in _LAST and dimensions > 1)
    return 0 in which or -dimensions in which


def _written(name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    """The tensor that a function of that name writes to; None where it makes a new one."""
    if hasattr(kwargs.get("out"), "_base"):
        return kwargs["out"]
    in_place = name in _IN_PLACE or (name.endswith("_") and name[-2:] != "__") or kwargs.get("inplace") is True
    return args[0] if in_place and args and hasattr(args[0], "_base") else None


def _fits(delivered: Any, given: Any) -> bool:
    """Whether the one may be the other in another shape, with each row's numbers together."""
    rows = delivered.shape[0] if delivered.dim() else 0
    return bool(delivered.shape == given.shape or (rows and given.dim() and given.shape[0] % rows == 0))


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _scalars(value: Any, torch: Any, sizes: dict[int, Any]) -> Any:
    """What a call is given beside tensors; a size of the batch's by which one it is: the last batch may be smaller."""
    if isinstance(value, torch.Tensor):
        return "tensor"
    if isinstance(value, (tuple, list)):
        return tuple(_scalars(each, torch, sizes) for each in value[:_MOST_TENSORS])
    if isinstance(value, dict):
        return tuple((name, _scalars(each, torch, sizes)) for name, each in value.items())
    if isinstance(value, int) and not isinstance(value, bool):
        return sizes.get(value, value)
    if value is None or isinstance(value, (bool, float, str)):
        return value
    if isinstance(value, slice):
        return "slice", *(_scalars(each, torch, sizes) for each in (value.start, value.stop, value.step))
    return str(value) if isinstance(value, (torch.dtype, torch.device)) else type(value).__name__
