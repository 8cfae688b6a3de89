"""Layers that one line of a forward calls again and again in a step: a head on each state of a loop over time."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from ..layout import LoopedLayer
from ..looking import may_compute
from ..places import is_users
from .by_line import ByLine, when_differentiated

_LINEAR, _LAYERS = "linear", "linear.py"
_LEAST_WEIGHTS = 1 << 12  # of a layer: a smaller one's call is all that it takes
_LEAST_CALLS = 4.0  # of one layer in a step
_MOST_ROWS = 128  # of a call: with more the product is as fast as one of all


@dataclass
class LoopedLayers:
    """Told of each function of torch's that a watched forward calls; one for each training."""

    torch: ModuleType
    lines: ByLine[LoopedLayer] = field(default_factory=ByLine)
    _weights: dict[int, set[int]] = field(default_factory=dict)  # identities of those of each line

    def called(self, name: str, args: tuple[Any, ...], result: Any, seconds: float) -> None:
        """A function of that name has run for so long, and gave `result`."""
        if name != _LINEAR or len(args) < 2 or not all(may_compute(self.torch, each) for each in args[:2]):
            return
        given, weight = args[:2]
        if weight.dim() != 2 or weight.numel() < _LEAST_WEIGHTS or given.device.type != "cpu":
            return
        rows = given.numel() // max(1, given.shape[-1])
        if not 0 < rows <= _MOST_ROWS:
            return
        outputs, inputs = (int(size) for size in weight.shape)
        if not _is_called_directly():
            return
        line = self.lines.here(lambda site, frames: LoopedLayer(site, frames, inputs=inputs, outputs=outputs))
        if line is None:
            return
        self._weights.setdefault(id(line.site), set()).add(id(weight))
        line.calls += 1
        line.rows += rows
        line.seconds += seconds
        when_differentiated([result], seconds, line)

    def per_step(self, steps: int, least_s: float) -> list[LoopedLayer]:
        """The lines that call a layer several times in each."""
        found = self.lines.per_step(steps, least_s)
        return [each for each in found if each.calls >= _LEAST_CALLS * len(self._weights[id(each.site)])]


def _is_called_directly() -> bool:
    """Whether a line of the script's calls the layer itself, not a module that has it and may keep something."""
    frame = sys._getframe(2)
    while frame is not None and not is_users(frame):
        code = frame.f_code
        if code.co_name == "forward" and not code.co_filename.endswith(_LAYERS):
            return False
        frame = frame.f_back  # type: ignore[assignment]
    return True
