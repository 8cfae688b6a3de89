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
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from .scaled import scaling

_LEAST_BATCHES = 2  # that a pool holds
_MOST_SEARCHES = 6  # through all objects; each takes a few hundredths of a second
_MOST_TRIED = 16  # tensors that may be it, of those found in a search
_MOST_LIKE = 64  # rows whose pattern is one of the batch's
_ROWS = 16  # of a batch that are looked for, spread over it
_PLACES = 48  # numbers of a row by which it is found
_LEAST_NUMBERS = 4  # of a row: of fewer every row is like another
_MOST_NUMBERS = 1 << 23  # of all rows at these places
_STEP = 7919  # a prime: the places are so far apart
_KINDS = "fiub"  # of an array's numbers


@dataclass
class _Pool:
    tensor: Any  # the tensor or array
    rows: int
    version: int
    few: Any  # (rows, places): of each row
    places: list[int]


class Pools:
    """The tensors that batches were drawn from so far, in a few steps; one for each training."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch: Any = torch
        self._found: list[_Pool] = []
        self._known: list[_Pool] = []  # by weak references
        self._searches = 0

    def clear(self) -> None:
        """Let go of all of them, but for what tells whether they are still what they were."""
        self._known += [replace(each, tensor=weakref.ref(each.tensor)) for each in self._found]
        self._found.clear()

    def still(self) -> bool:
        """Whether all those that were let go of are there, as they were."""
        there = [(each.tensor(), each) for each in self._known]
        return all(tensor is not None and self._unchanged(replace(each, tensor=tensor)) for tensor, each in there)

    def rows(self, pool: int) -> int:
        """How many rows it has."""
        return self._found[pool].rows

    def find(self, given: Any) -> tuple[int, Any] | None:
        """Which pool the rows of a tensor (batch, …) are of, and their scale; None for none."""
        rows = int(given.shape[0]) if given.dim() > 1 else 0
        if not rows or given.numel() < rows * _LEAST_NUMBERS:
            return None
        channels = int(given.shape[1]) if given.dim() > 2 else 1
        with self._torch.no_grad():
            some = self._torch.arange(0, rows, max(1, rows // _ROWS), device="cpu")
            batch = given[some].reshape(len(some), channels, -1)
            places = [(_STEP * number) % batch.shape[2] for number in range(min(_PLACES, batch.shape[2]))]
            for number, pool in enumerate(self._found):
                if pool.places == places and self._unchanged(pool) and (scale := self._holds(pool, batch)) is not None:
                    return number, scale
            if self._searches >= _MOST_SEARCHES:
                return None
            self._searches += 1
            for tried, candidate in enumerate(self._candidates(given, rows)):
                if tried == _MOST_TRIED:
                    break
                made = self._pool(candidate, places)
                if (scale := self._holds(made, batch)) is not None:
                    self._found.append(made)
                    return len(self._found) - 1, scale
        return None

    def _candidates(self, given: Any, rows: int) -> Iterator[Any]:
        """Tensors and arrays with as many numbers in a row, and several times as many rows."""
        torch, of_row = self._torch, given.numel() // rows
        array = getattr(sys.modules.get("numpy"), "ndarray", None)
        seen = {id(given)}
        for each in gc.get_objects():
            kind = type(each)
            if kind is torch.Tensor:
                values: Any = () if each.is_nested else (each,)
            elif array is not None and kind is dict:
                with contextlib.suppress(RuntimeError):  # another thread writes to it
                    values = [value for value in each.values() if type(value) is array]
            elif array is not None and kind in (list, tuple) and len(each) <= _MOST_TRIED:
                values = [value for value in each if type(value) is array]
            else:
                continue
            for value in values:
                shape = value.shape
                fits = len(shape) > 1 and _LEAST_BATCHES * rows <= shape[0] <= _MOST_NUMBERS // _PLACES
                if fits and id(value) not in seen and math.prod(shape[1:]) == of_row and self._plain(value):
                    seen.add(id(value))
                    yield value

    def _plain(self, value: Any) -> bool:
        if not isinstance(value, self._torch.Tensor):
            return value.dtype.kind in _KINDS
        strided = value.layout is self._torch.strided and value.device.type == "cpu"
        return strided and not value.requires_grad and not value.is_complex()

    def _pool(self, value: Any, places: list[int]) -> _Pool:
        return _Pool(value, int(value.shape[0]), _version(value), self._few(value, places), places)

    def _few(self, value: Any, places: list[int]) -> Any:
        """(rows, places): the numbers there of each row, as float64."""
        at: list[list[int]] = []
        for size in reversed(value.shape[1:]):
            at.insert(0, [place % size for place in places])
            places = [place // size for place in places]
        index = (slice(None), *at)
        return self._torch.as_tensor(value[index]).double()

    def _unchanged(self, pool: _Pool) -> bool:
        same = _version(pool.tensor) == pool.version
        return same and bool(self._torch.equal(self._few(pool.tensor, pool.places), pool.few))

    def _holds(self, pool: _Pool, batch: Any) -> Any:
        """The scale of rows (rows, channels, numbers) that are all the pool's; None where one is not."""
        torch = self._torch
        asked = batch[:, 0, pool.places].double()
        rises, asked_rises = pool.few.diff(dim=1).sign(), asked.diff(dim=1).sign()
        found, exact = [], True
        for number in range(len(batch)):
            like = (rises == asked_rises[number]).all(1).nonzero().flatten()[:_MOST_LIKE].tolist()
            same = next((at for at in like if self._equal(pool.tensor[at], batch[number])), None)
            if not like:
                return None
            exact = exact and same is not None
            found.append(like[0] if same is None else same)
        if exact:
            return "as it was"
        numbers = torch.as_tensor(pool.tensor[found]).reshape(batch.shape)
        return scaling(torch, numbers, batch)

    def _equal(self, row: Any, asked: Any) -> bool:
        numbers = self._torch.as_tensor(row).reshape(asked.shape)
        return bool(self._torch.equal(numbers.to(asked.dtype), asked))


def _version(value: Any) -> int:
    with contextlib.suppress(RuntimeError, AttributeError):  # of inference mode, or an array
        return int(value._version)
    return -1
