"""Whether what a model is given are rows of one tensor that the script keeps: ``pictures[rows]``, drawn by hand.

No hook tells of an index outside a forward, so the tensor is looked for among all that are there: one whose rows have
as many numbers, and among them each of those that the model is given, as they are or on another scale. The pattern in
which a row's numbers rise and fall finds it again whatever the scale. Frames are not asked for their variables: that
keeps these alive (Python 3.12 and older).
"""

from __future__ import annotations

import contextlib
import gc
import math
import sys
import weakref
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from ..looking import times_written
from .scaled import scaling

_LEAST_BATCHES = 2  # that a pool holds
_MOST_SEARCHES = 6  # through all objects; each takes a few hundredths of a second
_MOST_TRIED = 16  # tensors that may be it, of those found in a search; and things in a list that is looked into
_MOST_LIKE = 64  # rows whose pattern is one of the batch's
_ROWS = 16  # of a batch whose numbers are compared, spread over it; of all others the pattern is
_PLACES = 40  # numbers of a row by which it is found: 39 times rising, level or falling are one int64
_LEAST_NUMBERS = 4  # of a row: of fewer every row is like another
_FEW = 8  # numbers of a channel: with fewer the pattern goes over all channels
_MOST_NUMBERS = 1 << 23  # of all rows at these places
_KINDS = "fiub"  # of an array's numbers


@dataclass
class _Pool:
    tensor: Any  # the tensor or array, or what gives it while it is there
    rows: int
    of_row: int  # numbers
    version: int
    codes: Any  # (rows,): the pattern of each, and …
    total: float  # … the sum of the numbers by which they are told
    places: list[int]


class Pools:
    """The tensors that batches were drawn from so far, in a few steps; one for each training."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch: Any = torch
        self._found: list[_Pool] = []
        self._used: list[_Pool] = []  # by weak references
        self._searches = 0

    def clear(self) -> None:
        """Let go of all of them."""
        self._found.clear()

    def use(self, pools: Collection[int]) -> None:
        """Remember of these whether they stay what they are, without keeping them."""
        self._used = [replace(self._found[each], tensor=weakref.ref(self._found[each].tensor)) for each in pools]

    def still(self) -> bool:
        """Whether all those are there, as they were."""
        there = [(each.tensor(), each) for each in self._used]
        return all(tensor is not None and self._unchanged(replace(each, tensor=tensor)) for tensor, each in there)

    def rows(self, pool: int) -> int:
        """How many rows it has."""
        return self._found[pool].rows

    def find(self, given: Any) -> tuple[int, Any] | None:
        """Which pool the rows of a tensor (batch, …) are of, and their scale; None for none."""
        rows = int(given.shape[0]) if given.dim() > 1 else 0
        of_row = given.numel() // rows if rows else 0
        if of_row < _LEAST_NUMBERS:
            return None
        channels = int(given.shape[1]) if given.dim() > 2 and of_row >= _FEW * given.shape[1] else 1
        with self._torch.no_grad():
            batch = given.reshape(rows, channels, -1)
            numbers = int(batch.shape[2])
            places = sorted({number * numbers // _PLACES for number in range(_PLACES)})
            for number, pool in enumerate(self._found):
                fits = pool.places == places and pool.of_row == of_row and self._unchanged(pool)
                if fits and (scale := self._holds(pool, batch)) is not None:
                    return number, scale
            if self._searches >= _MOST_SEARCHES:
                return None
            self._searches += 1
            for tried, candidate in enumerate(self._candidates(given, rows, of_row)):
                if tried == _MOST_TRIED:
                    break
                with contextlib.suppress(Exception):  # of a kind of numbers that torch does not know
                    made = self._pool(candidate, of_row, places)
                    if (scale := self._holds(made, batch)) is not None:
                        self._found.append(made)
                        return len(self._found) - 1, scale
        return None

    def _candidates(self, given: Any, rows: int, of_row: int) -> Iterator[Any]:
        """Tensors and arrays with as many numbers in a row, and several times as many rows."""
        torch: Any = self._torch
        array = getattr(sys.modules.get("numpy"), "ndarray", None)
        seen = {id(given)}
        for each in gc.get_objects():
            kind = type(each)
            values: list[Any] = []
            if kind is torch.Tensor:
                values = [each]
            elif array is not None and (kind is dict or (kind in (list, tuple) and len(each) <= _MOST_TRIED)):
                # Not one by one: a tuple that is just being filled has places without an object.
                values = [value for value in gc.get_referents(each) if type(value) is array]
            for value in values:
                if id(value) in seen or (kind is torch.Tensor and value.is_nested):
                    continue
                shape = value.shape
                fits = len(shape) > 1 and _LEAST_BATCHES * rows <= shape[0] <= _MOST_NUMBERS // _PLACES
                if fits and math.prod(shape[1:]) == of_row and self._plain(value):
                    seen.add(id(value))
                    yield value

    def _plain(self, value: Any) -> bool:
        if not isinstance(value, self._torch.Tensor):
            return value.dtype.kind in _KINDS
        strided = value.layout is self._torch.strided and value.device.type == "cpu"
        return strided and not value.requires_grad and not value.is_complex()

    def _pool(self, value: Any, of_row: int, places: list[int]) -> _Pool:
        codes, total = self._told(self._few(value, places))
        return _Pool(value, int(value.shape[0]), of_row, times_written(value), codes, total, places)

    def _few(self, value: Any, places: list[int]) -> Any:
        """(rows, places): the numbers there of each row, as float64."""
        at: list[list[int]] = []
        for size in reversed(value.shape[1:]):
            at.insert(0, [place % size for place in places])
            places = [place // size for place in places]
        index = (slice(None), *at)
        return self._torch.as_tensor(value[index]).double()

    def _told(self, few: Any) -> tuple[Any, float]:
        """The pattern of each row as one number, and the sum of all."""
        torch = self._torch
        rises = few.diff(dim=1).sign().to(torch.int64) + 1
        digits = torch.tensor([3**digit for digit in range(rises.shape[1])], dtype=torch.int64, device="cpu")
        return (rises * digits).sum(1), float(few.sum())

    def _unchanged(self, pool: _Pool) -> bool:
        if times_written(pool.tensor) != pool.version:
            return False
        codes, total = self._told(self._few(pool.tensor, pool.places))
        return total == pool.total and bool(self._torch.equal(codes, pool.codes))

    def _holds(self, pool: _Pool, batch: Any) -> Any:
        """The scale of rows (rows, channels, numbers) that are all the pool's; None where one is not."""
        torch = self._torch
        asked, _ = self._told(batch[:, 0, pool.places].double())
        if not bool(torch.isin(asked, pool.codes).all()):
            return None
        count = len(batch)
        some = sorted({*range(0, count, max(1, count // _ROWS) | 1), count - 1})
        found, exact = [], True
        for number in some:
            like = (pool.codes == asked[number]).nonzero().flatten()[:_MOST_LIKE].tolist()
            same = next((at for at in like if self._equal(pool.tensor[at], batch[number])), None)
            exact = exact and same is not None
            found.append(like[0] if same is None else same)
        if exact:
            return "as it was"
        few = batch[some]
        return scaling(torch, torch.as_tensor(pool.tensor[found]).reshape(few.shape), few)

    def _equal(self, row: Any, asked: Any) -> bool:
        numbers = self._torch.as_tensor(row).reshape(asked.shape)
        return bool(self._torch.equal(numbers.to(asked.dtype), asked))
