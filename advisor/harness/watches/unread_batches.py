"""What loaders deliver and a step never reads: a whole scan beside the patch of it, say.

By the storages of a batch's tensors: those that no function of torch's is given before the next batch comes, and that
nobody keeps. Followed while :mod:`.unread_results` watches a step's calls, and only then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

_MOST_TENSORS = 64  # of a batch
_LEAST_BYTES = 1 << 18  # of a tensor: less takes no time worth a word


@dataclass
class _Delivered:
    """A tensor of a batch: which loader's, what it is called in it, whether its storage still exists."""

    loader: int
    name: str
    key: int
    bytes: int
    holder: Any
    step: int
    read: bool = False


@dataclass
class UnreadBatches:
    """Told what is delivered and what is read. `key` says which storage a tensor has, `holder` tells whether it is."""

    tensor: type
    key: Callable[[Any], int]
    holder: Callable[[Any], Any]
    least: int = _LEAST_BYTES
    _all: list[_Delivered] = field(default_factory=list)
    _latest: dict[int, list[_Delivered]] = field(default_factory=dict)  # by storage, of which several may be parts
    _bytes: dict[tuple[int, int], int] = field(default_factory=dict)  # by loader and step

    def delivered(self, loader: int, batch: Any, step: int) -> None:
        """A loader has made a batch."""
        for name, tensor in _named(batch, self.tensor):
            size = tensor.numel() * tensor.element_size()
            self._bytes[loader, step] = self._bytes.get((loader, step), 0) + size
            if size < self.least or tensor.device.type != "cpu" or str(tensor.layout) != "torch.strided":
                continue
            each = _Delivered(loader, name, self.key(tensor), size, self.holder(tensor), step)
            self._all.append(each)
            self._latest.setdefault(each.key, []).append(each)

    def read(self, keys: Iterable[int]) -> None:
        """These storages are given to something."""
        if self._latest:
            for each in keys:
                for known in self._latest.get(each, ()):
                    known.read = True

    def whole(self, loader: int) -> int:
        """Bytes of all that a loader has delivered in the step in which that was most."""
        return max((size for (each, _), size in self._bytes.items() if each == loader), default=0)

    def unread(self, steps: int) -> dict[tuple[int, str], int]:
        """By loader and name the bytes of what in none of the first `steps` was read, or is kept."""
        found: dict[tuple[int, str], int] = {}
        used: set[tuple[int, str]] = set()
        for each in self._all:
            if each.read or (each.step < steps and not each.holder.expired()):
                used.add((each.loader, each.name))
            elif each.step < steps:
                found[each.loader, each.name] = each.bytes
        counts = {which: sum((each.loader, each.name) == which for each in self._all) for which in found}
        return {which: size for which, size in found.items() if which not in used and counts[which] >= steps}


def _named(batch: Any, tensor: type, name: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """The tensors of a batch that is made of dicts, lists and tuples: by their keys, or their numbers."""
    if isinstance(batch, tensor):
        yield name, batch
    elif depth < 3 and isinstance(batch, dict):
        for key, each in list(batch.items())[:_MOST_TENSORS]:
            yield from _named(each, tensor, f"{name}[{key!r}]", depth + 1)
    elif depth < 3 and isinstance(batch, (list, tuple)):
        for number, each in enumerate(batch[:_MOST_TENSORS]):
            yield from _named(each, tensor, f"{name}[{number}]", depth + 1)
