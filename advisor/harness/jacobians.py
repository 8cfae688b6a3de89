"""Jacobians of whole batches (``torch.autograd.functional.jacobian``): do a sample's outputs depend on another sample?

The first ones of each line are looked at, each once it is there: a tensor in memory, whose parts off the diagonal are
all zeros or not. The script may keep the wrapper, ``from torch.autograd.functional import jacobian``.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from .looking import may_compute, unseen
from .places import user_site
from .profiling import Inert

if TYPE_CHECKING:
    from .sites import CallSites

KIND = "jacobian"
_FIRST, _MOST = 3, 100  # that are looked at, of each line and of all


class Jacobians:
    """What it sees goes to the call sites, under the kind ``jacobian``."""

    def __init__(self, torch: Any, sites: CallSites) -> None:
        self._torch = torch
        self._sites = sites
        self._seen = 0

    def wrapped(self, original: Any) -> Any:
        """The function that stands for torch's own."""
        compiling = self._torch.compiler.is_compiling

        def jacobian(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if self._seen < _MOST and not compiling():
                self._seen += 1
                self._look(result, args[1] if len(args) > 1 else kwargs.get("inputs"))
            return result

        return jacobian

    def _look(self, jacobian: Any, inputs: Any) -> None:
        entry = self._sites.add(KIND, user_site())
        if entry is None or entry.calls > _FIRST:
            return
        meets = True
        with contextlib.suppress(Exception):  # of several inputs or outputs, say: who knows
            meets = self._meets(jacobian, inputs)
        entry.details["meets"] = meets or entry.details.get("meets", False)

    def _meets(self, jacobian: Any, inputs: Any) -> bool:
        """Whether some part says how a sample's outputs depend on another sample, or nobody knows."""
        torch = self._torch
        with torch.no_grad(), unseen(torch), Inert.ours():
            by = jacobian.dim() - inputs.dim()
            if not may_compute(torch, jacobian) or jacobian.shape[0] != jacobian.shape[by]:
                return True  # of no batch
            samples = jacobian.shape[0]
            parts = (jacobian.detach().movedim(by, 1) != 0).reshape(samples, samples, -1).any(2)
            # Of nothing but zeros, as before a layer that begins with them, nothing is known.
            return not bool(parts.any()) or bool(parts.fill_diagonal_(False).any())
