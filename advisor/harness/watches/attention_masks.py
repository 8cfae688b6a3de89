"""How much of fused attention's work a mask leaves for nothing: a window, the texts of a packed sequence.

``scaled_dot_product_attention`` computes all pairs of queries and keys, tile by tile, whatever the mask says; where one
mask, the same for all samples and heads, leaves most tiles nothing, they need not be computed.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from ..layout import AttentionMask
from ..looking import may_compute, times_written
from .by_line import ByLine, when_differentiated

_FUNCTION = "scaled_dot_product_attention"
_LEAST_TOKENS = 256  # queries, and keys: below that there is next to nothing to be saved
_TILE = 64
_NOTHING = -1e4  # added to a score: what stands for minus infinity, in float16 as well
_KNOWN = 64  # masks

_Tiles = tuple[float, int, bool]


@dataclass
class AttentionMasks:
    """Told of each function of torch's that a watched forward calls; one for each training."""

    torch: ModuleType
    lines: ByLine[AttentionMask] = field(default_factory=ByLine)
    # Identity of a mask's memory → what holds it, how often it had been written to, and what it leaves.
    _known: dict[Any, tuple[weakref.ref[Any], int, _Tiles]] = field(default_factory=dict)

    def called(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, seconds: float) -> None:
        """A function of that name has run for so long, and gave `result`."""
        if name != _FUNCTION or len(args) < 2:
            return
        mask = kwargs.get("attn_mask", args[3] if len(args) > 3 else None)
        query, key = args[:2]
        if mask is None or not all(may_compute(self.torch, each) for each in (query, key, mask)):
            return
        queries, keys = (int(each.shape[-2]) for each in (query, key))
        if min(queries, keys) < _LEAST_TOKENS or mask.requires_grad or mask.device.type != "cpu":
            return
        if tuple(mask.shape[-2:]) != (queries, keys) or mask.numel() != queries * keys:
            return  # each sample has its own: padding
        filled, reach, band = self._of(mask)
        line = self.lines.here(lambda site, frames: AttentionMask(site, frames, queries=queries, keys=keys))
        if line is None:
            return
        line.reach, line.band = max(line.reach, reach), line.band and band
        line.calls += 1
        line.seconds += seconds
        line.needed += seconds * filled
        when_differentiated([result], seconds, line)

    def _of(self, mask: Any) -> _Tiles:
        """The share of the tiles that the mask leaves something of, and how far from its key a query may be."""
        base = mask if mask._base is None else mask._base
        place = mask.data_ptr(), tuple(mask.shape), mask.stride()
        alive, version, found = self._known.get(place, (None, -1, (1.0, 0, False)))
        if alive is not None and alive() is base and version == times_written(mask):
            return found
        if len(self._known) >= _KNOWN:
            self._known.clear()
        found = self._look(mask.detach().reshape(mask.shape[-2:]))
        self._known[place] = weakref.ref(base), times_written(mask), found
        return found

    def _look(self, mask: Any) -> _Tiles:
        torch: Any = self.torch
        with torch.no_grad():
            allowed = mask if mask.dtype is torch.bool else mask > _NOTHING
            tiles = torch.nn.functional.max_pool2d(allowed[None].float(), _TILE, _TILE, ceil_mode=True)
            places = torch.arange(max(allowed.shape), device="cpu")
            rows, columns = allowed.any(1).nonzero()[:, 0], allowed.to(torch.uint8)
            first = columns.argmax(1)
            last = allowed.shape[1] - 1 - columns.flip(1).argmax(1)
            apart = torch.maximum((places[: len(first)] - first).abs(), (places[: len(last)] - last).abs())
            band = bool((allowed[1:, 1:] == allowed[:-1, :-1]).all())
            return float(tiles.mean()), int(apart[rows].max()) if len(rows) else 0, band
