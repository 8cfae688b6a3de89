"""Weights that a forward makes anew, by a parametrization or an older norm of weights: what that takes in a step."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

# Files of torch.nn.utils that make weights: the newer norms, and a user's own, do so by parametrize.
_ENDS = tuple(
    os.path.join("torch", "nn", "utils", f"{name}.py") for name in ("parametrize", "weight_norm", "spectral_norm")
)
_MOST_FRAMES = 24  # between a function of torch's and what makes the weight: a user's own has some of its own


@dataclass
class RemadeWeights:
    """Told of each function of torch's that a watched forward calls; one for each training."""

    seconds: dict[str, float] = field(default_factory=dict)  # by what makes them
    bytes: int = 0  # of all that was made
    making: bool = False  # the last function that was told of made one

    def called(self, result: Any, seconds: float) -> None:
        """A function has run for so long and given this."""
        maker = _weight_maker()
        self.making = bool(maker)
        if maker:
            self.seconds[maker] = self.seconds.get(maker, 0.0) + seconds
            self.bytes += getattr(result, "nbytes", 0)

    def total(self) -> float:
        """Seconds in all that was watched."""
        return sum(self.seconds.values())

    def per_step(self, steps: int, undisturbed: float) -> dict[str, float]:
        """Seconds of a step, by what makes the weights; where nobody watches it takes `undisturbed` of the time."""
        return {maker: undisturbed * seconds / steps for maker, seconds in self.seconds.items()}


def _weight_maker() -> str:
    """What is making a weight now, of the callers of whoever asks; "" where nothing is."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_MOST_FRAMES):
        if frame is None:
            break
        path = frame.f_code.co_filename
        if path.endswith(_ENDS):
            return os.path.basename(path).removesuffix(".py")
        frame = frame.f_back
    return ""
