"""Which share of the labels a cross-entropy ignores: ``F.cross_entropy(scores, labels, ignore_index=-100)``.

Where most positions of a sequence have no label, their scores, and the whole backward of these, are computed for
nothing. Watched in the detail window only, as :mod:`.sizes` is; the labels are read when it is over, so that no
operator of ours is in its trace.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from types import FrameType, ModuleType
from typing import Any

from .layout import CallSite
from .patches import Patch
from .places import is_users, user_site
from .sites import CallSites
from .sizes import has_compiled

KIND = "cross_entropy"
_MOST_KEPT, _MOST_BYTES = 32, 32 << 20  # labels of as many calls, in so much memory


class IgnoredLabels:
    """What it sees goes to the call sites, under the kind ``cross_entropy``."""

    def __init__(self, torch: ModuleType, sites: CallSites) -> None:
        self._torch: Any = torch
        self._sites = sites
        self._kept: list[tuple[CallSite, Any, int]] = []
        self._nested = threading.local()
        self._patch = Patch(self._torch.nn.functional, "cross_entropy", self._seen)

    def on(self) -> None:
        """Watch; a compiled function that calls it would be compiled anew for it."""
        if not has_compiled():
            self._patch.on()

    def off(self) -> None:
        """Watch no longer."""
        self._patch.off()

    def read(self) -> None:
        """The labels that were kept, into the entries of their places."""
        kept, self._kept = self._kept, []
        shares: dict[int, list[float]] = {}
        for entry, labels, ignored in kept:
            with contextlib.suppress(Exception):  # a kind of tensor that cannot be compared
                share = (labels == ignored).sum().item() / max(1, labels.numel())
                shares.setdefault(id(entry), []).append(share)
                entry.details["ignored"] = sum(shares[id(entry)]) / len(shares[id(entry)])

    def _keep(self, caller: FrameType | None, *given: Any, **named: Any) -> None:
        """Keep the labels of a call: ``cross_entropy(input, target, weight, size_average, ignore_index, …)``."""
        scores: Any = given[0] if given else named["input"]
        labels: Any = given[1] if len(given) > 1 else named["target"]
        ignored = given[4] if len(given) > 4 else named.get("ignore_index", -100)
        kept = sum(each.numel() * each.element_size() for _, each, _ in self._kept)
        if labels.is_floating_point() or kept + labels.numel() * labels.element_size() > _MOST_BYTES:
            return
        details = {"classes": int(scores.shape[min(1, scores.dim() - 1)]), "own": _is_own(caller)}
        entry = self._sites.add(KIND, user_site(), details)
        if entry is not None:
            self._kept.append((entry, labels.detach(), int(ignored)))

    def _seen(self, original: Any) -> Any:
        compiling, nested = self._torch.compiler.is_compiling, self._nested

        def cross_entropy(*args: Any, **kwargs: Any) -> Any:
            if compiling() or getattr(nested, "on", False):  # torch gives itself to a mode, under this name
                return original(*args, **kwargs)
            if len(self._kept) < _MOST_KEPT:
                with contextlib.suppress(Exception):  # what is wrong with it, torch says
                    self._keep(sys._getframe(1), *args, **kwargs)
            nested.on = True
            try:
                return original(*args, **kwargs)
            finally:
                nested.on = False

        return cross_entropy


def _is_own(frame: FrameType | None) -> bool:
    """Whether the script itself asks for the loss, by the function or by ``nn.CrossEntropyLoss``."""
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("torch.nn.modules"):
        frame = frame.f_back
    return frame is not None and is_users(frame)
