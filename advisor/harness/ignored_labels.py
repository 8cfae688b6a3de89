"""Which share of the labels a cross-entropy ignores: ``F.cross_entropy(scores, labels, ignore_index=-100)``.

Where most positions of a sequence have no label, their scores, and the whole backward of these, are computed for
nothing. Seen in the detail window only, by the mode of :mod:`.indexing`: a wrapper in the function's place would be
another function to what asks for it by identity. The labels are read when the window is over, so that no operator of
ours is in its trace.
"""

from __future__ import annotations

import contextlib
from types import FrameType
from typing import Any

from .layout import CallSite
from .places import is_ours, is_users, user_site
from .sites import CallSites

KIND = "cross_entropy"
_MOST_KEPT, _MOST_BYTES = 32, 32 << 20  # labels of as many calls, in so much memory
_TORCHS = ("torch.nn.", "torch.overrides")


class IgnoredLabels:
    """What it is told of goes to the call sites, under the kind ``cross_entropy``."""

    def __init__(self, sites: CallSites) -> None:
        self._sites = sites
        self._kept: list[tuple[CallSite, Any, int, int]] = []

    def begin(self) -> None:
        """A detail window begins, perhaps anew."""
        self._kept = []

    def read(self) -> None:
        """The labels that were kept, into the entries of their places."""
        kept, self._kept = self._kept, []
        shares: dict[int, list[float]] = {}
        for entry, labels, version, ignored in kept:
            with contextlib.suppress(Exception):  # a kind of tensor that cannot be compared
                if labels._version != version:
                    continue  # the script has written to them since
                share = (labels == ignored).sum().item() / max(1, labels.numel())
                shares.setdefault(id(entry), []).append(share)
                entry.details["ignored"] = sum(shares[id(entry)]) / len(shares[id(entry)])

    def saw(self, caller: FrameType | None, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        """A call of ``cross_entropy(input, target, weight, size_average, ignore_index, …)``."""
        scores: Any = given[0] if given else named["input"]
        labels: Any = given[1] if len(given) > 1 else named["target"]
        ignored = given[4] if len(given) > 4 else named.get("ignore_index", -100)
        details = {"classes": int(scores.shape[min(1, scores.dim() - 1)]), "own": _is_own(caller)}
        entry = self._sites.add(KIND, user_site(), details)
        kept = sum(each.numel() * each.element_size() for _, each, _, _ in self._kept)
        fits = len(self._kept) < _MOST_KEPT and kept + labels.numel() * labels.element_size() <= _MOST_BYTES
        if entry is not None and fits and not labels.is_floating_point():
            self._kept.append((entry, labels, labels._version, int(ignored)))


def _is_own(frame: FrameType | None) -> bool:
    """Whether the script itself asks for the loss, by the function or by ``nn.CrossEntropyLoss``."""
    while frame is not None and (is_ours(frame) or str(frame.f_globals.get("__name__")).startswith(_TORCHS)):
        frame = frame.f_back
    return frame is not None and is_users(frame)
