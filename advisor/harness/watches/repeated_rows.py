"""Which rows a step's modules compute more than once: a question for each of its answers, a sample in many triplets.

Told by what is in the tensors, whoever put it there: a module that treats each row of a batch alone gives the same for
equal ones, so that the others are copies. What each call gives is asked, too: where equal rows give other results the
module looks beyond its row, or its weights have changed in between. Rows that were repeated in order count as well
where dropout alone tells them apart. Rows that the data itself has twice are nobody's mistake.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from types import ModuleType
from typing import Any

from ..layout import RepeatedRow
from ..loading.loaders import tensors_in
from ..looking import each_tensor, may_compute, unseen
from .by_line import ByLine, when_differentiated

_LEAST_COPIES = 1.5  # of a row, on average, where it is repeated in one call; of those of several: of which a tenth …
_LEAST_KNOWN = 0.1  # … had been computed before
_LEAST_ROWS, _MOST_ROWS = 8, 1 << 16  # of a call, or of all so far that a backward will go through: then of each …
_LEAST_OF_MANY = 2  # … so many, a node's neighbours say
_MOST_KEPT = 1 << 17  # rows of all calls in a step
_SAMPLED = 64  # numbers of each row, spread over it by …
_STRIDES = (7919, 104729, 1299709, 15485863)  # … primes, one for each dimension in turn
_TOLERANCE = 1e-4  # of the largest number: a product rounds otherwise in another row of it
_LEAST_ALIKE = 0.99  # of the copies give what the first gave
_DISTINCT_DATA = 0.9  # of a loader's rows are single ones, where it is the script that takes some of them repeatedly
_MOST_S = 2.0  # of looking, in a training
_MOST_TENSORS = 16  # of a call
_ORDERED = ("block", "tile")  # how rows are repeated: aabb, abab
# Of a row, from so many on it is not for the dropout that it is repeated: contrastive learning takes each twice.
_MANY_TIMES = 3
_MOST_WHOLE = 4096  # numbers of a row that are all looked at: of ids of texts, which may differ in their ends, and …
_FEW_ROWS = 64  # … of so few rows of any kind: counts of words, say, are nearly all zeros


@dataclass
class _Seen:
    """What a module was given in a step so far, and gave, row by row."""

    hashes: list[Any] = field(default_factory=list)  # of a call's rows each …
    results: list[Any] = field(default_factory=list)  # … a few numbers of what they became, and …
    recorded: list[bool] = field(default_factory=list)  # … whether for a backward
    rows: int = 0


@dataclass
class _Call:
    """A module's call that has begun."""

    module: Any
    dim: int  # of the rows
    hashes: Any
    seen: _Seen
    first: Any  # for each row the first that is equal, counted over all calls so far
    copies: bool = False  # are there, so many that it is worth a word, but …
    left_alone: bool = False  # … not one of ours
    order: str = ""
    dropout: bool = False
    nested: int = 0  # calls of the same module inside of this one, while it is counted
    seconds: float = 0.0


@dataclass
class RepeatedRows:
    """Told of the modules that a watched forward calls, and of each function of torch's; one for each training."""

    torch: ModuleType
    followed: Callable[[], int] = int  # counts calls on rows whose lookup was seen: others tell of these
    watching: Callable[[float], None] = float  # type: ignore[assignment]  # told of the seconds that looking takes
    lines: ByLine[RepeatedRow] = field(default_factory=ByLine)
    _calls: list[_Call] = field(default_factory=list)  # that have begun, the innermost last
    _counted: _Call | None = None  # of them the one whose time is added up: nothing inside it is looked at
    _followed: int = 0  # when that began
    _seen: dict[Any, _Seen] = field(default_factory=dict)
    # Of the loaders' tensors whose rows are single ones: a row's shape, and the type.
    _data: set[tuple[Any, ...]] = field(default_factory=set)
    _of_data: bool = False  # the rows that the running forward was given are such as the data has
    _root: Any = None
    _hooks: list[Any] = field(default_factory=list)
    _kept: int = 0  # rows
    _spent_s: float = 0.0

    def clear(self) -> None:
        """Forget a step."""
        self.off()
        self.backward_begins()

    def backward_begins(self) -> None:
        """After it the graphs of what was computed before are gone, and weights may change."""
        self._seen.clear()
        self._kept = 0

    def batch(self, tensors: Iterable[Any]) -> None:
        """A loader has delivered these."""
        for each in tensors:
            rows = each.shape[0] if each.dim() else 0
            if _LEAST_ROWS <= rows <= _MOST_ROWS and _readable(self.torch, each):
                distinct = self._hashes([each], 0)[0].unique().numel()
                if distinct >= _DISTINCT_DATA * rows:
                    self._data.add((tuple(each.shape[1:]), each.dtype))

    def forward_begins(self, module: Any, given: list[Any]) -> None:
        """A root is called with these tensors; its parts are listened to from here on."""
        self.off()
        self._root = module
        if self._spent_s > _MOST_S:
            return
        self._begins(module, given)
        hooks = self.torch.nn.modules.module
        before = hooks.register_module_forward_pre_hook(self._before)
        self._hooks = [before, hooks.register_module_forward_hook(self._after, with_kwargs=True, always_call=True)]

    def forward_ends(self, output: Any) -> None:
        """It gives this."""
        try:
            if self._hooks:
                self._ends(self._root, output, {})
        finally:
            self.off()

    def off(self) -> None:
        """Listen to nothing."""
        for each in self._hooks:
            each.remove()
        self._hooks, self._calls, self._counted, self._of_data, self._root = [], [], None, False, None

    def called(self, seconds: float) -> None:
        """One of torch's functions has run for so long."""
        if self._counted is not None:
            self._counted.seconds += seconds

    # Modules.

    def _begins(self, module: Any, given: Iterable[Any]) -> None:
        if self._counted is not None:
            self._counted.nested += module is self._counted.module
            return
        if self._of_data:
            return
        tensors = list(given)
        if any(each.is_nested for each in tensors):  # an encoder's layers, that it gives what is not padding
            return
        dim = _rows_in(self.torch, module)
        rows = tensors[0].shape[dim] if tensors and tensors[0].dim() > dim else 0
        if not _LEAST_OF_MANY <= rows <= _MOST_ROWS or not self._is_looked_at(module):
            return
        of_rows = [each for each in tensors if each.dim() > dim and each.shape[dim] == rows]
        others = any(rows in each.shape for each in tensors if each.dim() <= dim or each.shape[dim] != rows)
        if not all(_readable(self.torch, each) for each in of_rows):
            return
        hashes, constant = self._hashes(of_rows, dim)
        key = id(module), rows <= _FEW_ROWS, *((each.shape[dim + 1 :], each.dtype) for each in of_rows)
        seen = self._seen.setdefault(key, _Seen())
        if self._kept + rows > _MOST_KEPT:
            return
        call = self._call(module, dim, hashes, constant, seen)
        if call.copies and not self._are_copies(call, of_rows):
            call.copies = False
        call.dropout = call.dropout and not others  # a state, say, that has its rows elsewhere
        if call.copies and module is self._root and not self._takes(of_rows, call.order):
            self._of_data = True  # and so in all parts of it
            return
        self._calls.append(call)
        if call.copies:
            self._counted, self._followed = call, self.followed()

    def _call(self, module: Any, dim: int, hashes: Any, constant: Any, seen: _Seen) -> _Call:
        torch: Any = self.torch
        before, rows = seen.rows, hashes.numel()
        every = torch.cat([*seen.hashes, hashes])
        _, group = every.unique(return_inverse=True)
        number = torch.arange(every.numel())
        first = torch.full_like(number, every.numel()).scatter_reduce_(0, group, number, "amin")[group][before:]
        copies = first != number[before:]
        within, known = int((copies & (first >= before)).sum()), int((first < before).sum())
        call = _Call(module, dim, hashes, seen, first)
        call.copies = rows >= _LEAST_COPIES * (rows - within) or known >= _LEAST_KNOWN * rows
        call.copies = call.copies and every.numel() >= _LEAST_ROWS
        if not call.copies:
            return call
        call.order = "calls" if known else _order(torch, first)
        ordered = call.order in _ORDERED
        # All that an earlier call was given is another rule's; one row again and again among others is padding. With as
        # many of each row a batch norm's mean and deviation are the same.
        whole = known == rows and bool((first == first[0] + number[:rows]).all())
        padding = constant[copies].double().mean() > 0.5 or (not ordered and _of_one(first[copies]) > 0.5)
        call.left_alone = whole or bool(padding) or (not ordered and _norms(torch, module))
        call.dropout = ordered and module is not self._root and rows >= _MANY_TIMES * (rows - within) and _drops(module)
        return call

    def _are_copies(self, call: _Call, tensors: list[Any]) -> bool:
        """Whether the rows that seem to be copies of others of this call are so in all of their numbers."""
        first = call.first - call.seen.rows
        copies = ((first >= 0) & (first != self.torch.arange(first.numel()))).nonzero()[:, 0]
        for each in tensors if copies.numel() else ():
            rows = each.detach().movedim(call.dim, 0)
            if not bool((rows[copies] == rows[first[copies]]).all()):
                return False
        return True

    def _ends(self, module: Any, output: Any, named: dict[str, Any]) -> None:
        """The call of `module` is over; those that an error has ended inside of it are, too."""
        if self._counted is not None and self._counted.module is module and self._counted.nested:
            self._counted.nested -= 1
            return
        if all(each.module is not module for each in self._calls):
            return
        while (call := self._calls.pop()).module is not module:
            self._counted = None if call is self._counted else self._counted
        counted, self._counted = self._counted is call, None if call is self._counted else self._counted
        rows, torch = call.hashes.numel(), self.torch
        result = next((each for each in tensors_in(output, torch) if each.is_floating_point()), None)
        if result is None or result.dim() <= call.dim or result.shape[call.dim] != rows:
            return
        if not _readable(torch, result):
            return
        few, seen, recorded = self._few(result, call.dim), call.seen, bool(result.requires_grad)
        if rows < _LEAST_ROWS and not recorded:  # one more token of each text that is written, say
            return
        if counted and not call.left_alone and self.followed() == self._followed:
            call.dropout = call.dropout and self._repeated_alike(call, _given(named, torch))
            self._count(call, few, result, recorded)
        seen.hashes.append(call.hashes)
        seen.results.append(few)
        seen.recorded.append(recorded)
        seen.rows += rows
        self._kept += rows

    def _count(self, call: _Call, few: Any, result: Any, recorded: bool) -> None:
        torch: Any = self.torch
        seen, rows, first = call.seen, few.shape[0], call.first
        own = torch.arange(rows) + seen.rows
        of_call = [torch.full((each.numel(),), which) for which, each in enumerate([*seen.hashes, call.hashes])]
        for_backward = torch.tensor([*seen.recorded, recorded])[torch.cat(of_call)[first]]
        copies = (first != own) & (for_backward | (not recorded))
        taken = int(copies.sum())
        if not taken:
            return
        given = torch.cat([*seen.results, few])[first]
        alike = ((few - given).abs() <= _TOLERANCE * few.abs().max()).all(1)
        same = bool(alike[copies].double().mean() >= _LEAST_ALIKE)
        if not same and not call.dropout:
            return
        line = self.lines.here(
            lambda site, frames: RepeatedRow(
                site=site,
                called_from=frames,
                module=type(call.module).__name__,
                rows=rows,
                distinct=rows - taken,
                order=call.order,
                dropout=not same,
            )
        )
        if line is None:
            return
        saved = call.seconds * taken / rows
        line.calls += 1
        line.seconds += saved
        when_differentiated([result], saved, line)

    def _repeated_alike(self, call: _Call, tensors: Iterable[Any]) -> bool:
        """Whether what a call was given by name, row by row, was repeated as its rows were."""
        rows, first = call.hashes.numel(), call.first - call.seen.rows
        of_rows = [each for each in tensors if each.dim() > call.dim and rows in each.shape]
        if any(each.shape[call.dim] != rows or not _readable(self.torch, each) for each in of_rows):
            return False
        hashes = [self._hashes([each], call.dim)[0] for each in of_rows]
        return all(bool((each == each[first]).all()) for each in hashes)

    def _takes(self, tensors: list[Any], order: str) -> bool:
        """Whether it is the script that gives a root equal rows, and not the data that has them."""
        if order in _ORDERED:
            return True
        return any((tuple(each.shape[1:]), each.dtype) in self._data for each in tensors)

    def _is_looked_at(self, module: Any) -> bool:
        """Whether it has weights, more than rows to look up."""
        nn: Any = self.torch.nn
        return not isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and next(module.parameters(), None) is not None

    # Hooks, which run while nothing of ours is to be seen by anybody.

    def _before(self, module: Any, args: Any) -> None:
        self._listening(lambda: self._begins(module, _given(args, self.torch)))

    def _after(self, module: Any, args: Any, named: Any, output: Any = None) -> None:
        """`named` is None, and nothing given, where an error has ended the call."""
        self._listening(lambda: self._ends(module, output, named))

    def _listening(self, told: Callable[[], None]) -> None:
        torch: Any = self.torch
        if threading.current_thread() is not threading.main_thread() or self._spent_s > _MOST_S:
            return
        began = time.perf_counter()
        try:
            with unseen(torch), torch.no_grad():
                told()
        except Exception:  # what fails here does not fail in the script
            self.off()
        spent = time.perf_counter() - began
        self._spent_s += spent
        self.watching(spent)

    # Numbers.

    def _few(self, tensor: Any, dim: int) -> Any:
        """A few of each row's numbers, spread over it."""
        torch: Any = self.torch
        rows = tensor.detach().movedim(dim, 0)
        sizes = rows.shape[1:]
        all_of_it = len(rows) <= _FEW_ROWS or not rows.is_floating_point()
        if rows[0].numel() <= (_MOST_WHOLE if all_of_it else _SAMPLED):
            return rows.reshape(rows.shape[0], -1).double().clone()  # not the script's own memory
        number = torch.arange(_SAMPLED)
        places = tuple(
            (number * _STRIDES[i % len(_STRIDES)] + number * number // (i + 2)) % size for i, size in enumerate(sizes)
        )
        every = (slice(None), *places)
        return rows[every].double()

    def _hashes(self, tensors: list[Any], dim: int) -> tuple[Any, Any]:
        """By what rows are told apart, and which of them are one number all over: padding, mostly."""
        torch: Any = self.torch
        few = [self._few(each, dim) for each in tensors]
        wide = [(each == each[:, :1]).all(1) for each in few if each.shape[1] > 1]
        rows = few[0].shape[0]
        constant = torch.stack(wide).all(0) if wide else torch.zeros(rows, dtype=torch.bool)
        bits = torch.cat(few, 1).contiguous().view(torch.int64)
        bits = bits ^ (bits >> 32)  # of what was a float32 the lower half is zeros
        odd = torch.arange(1, bits.shape[1] + 1) * 0x9E3779B97F4A7C1 | 1
        return (bits * odd).sum(1), constant  # whole numbers: the same in whatever order they are added up


def _given(values: Any, torch: Any) -> list[Any]:
    """The first tensors among a call's arguments."""
    return list(islice(each_tensor(values, torch.Tensor), _MOST_TENSORS))


def _order(torch: Any, first: Any) -> str:
    """How rows were repeated, by the first that equals each of them: ``block``, aabb; ``tile``, abab; "" neither."""
    rows, distinct = first.numel(), int(first.unique().numel())
    if rows % distinct or distinct == rows:
        return ""
    number, first = torch.arange(rows), first - first[0]
    times = rows // distinct
    if bool((first == number // times * times).all()):
        return "block"
    return "tile" if bool((first == number % distinct).all()) else ""


def _of_one(numbers: Any) -> float:
    """The share of the most frequent one."""
    return float(numbers.unique(return_counts=True)[1].max() / numbers.numel())


def _readable(torch: Any, tensor: Any) -> bool:
    return tensor.device.type == "cpu" and not tensor.is_complex() and may_compute(torch, tensor) and tensor.numel() > 0


def _drops(module: Any) -> bool:
    """Whether a part of it may drop some of what it is given."""
    for each in module.modules():
        shares = (getattr(each, "p", 0.0) if "Dropout" in type(each).__name__ else 0.0, getattr(each, "dropout", 0.0))
        if each.training and any(isinstance(share, (int, float)) and share > 0 for share in shares):
            return True
    return False


def _norms(torch: Any, module: Any) -> bool:
    """Whether a part of it computes statistics of its batch."""
    norms = torch.nn.modules.batchnorm._BatchNorm
    return any(isinstance(each, norms) and each.training for each in module.modules())


def _rows_in(torch: Any, module: Any) -> int:
    """Which dimension of its first argument has the rows that a module treats alone."""
    nn = torch.nn
    if isinstance(module, (nn.TransformerEncoder, nn.TransformerDecoder)):
        module = next(iter(module.layers), module)
    if isinstance(module, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)):
        module = getattr(module, "self_attn", module)
    if isinstance(module, (nn.RNNBase, nn.MultiheadAttention)):
        return 0 if module.batch_first else 1
    return 0
