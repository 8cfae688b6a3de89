"""What a step multiplies frames of a signal with that is a matrix of sines and cosines: a Fourier transform.

Told by what is in the matrix, or in the filters of a convolution, whoever made it: each row a wave of its own with a
whole number of turns, all under one window. In losses as well, and in front of models: by :mod:`.unread_results`, which
watches whole steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from ..layout import FourierProduct
from ..looking import may_compute, storage_key, times_written, weak_storage
from .by_line import ByLine, when_differentiated

_PRODUCTS = ("matmul", "mm", "__matmul__")
_LEAST_LENGTH, _LEAST_WAVES = 128, 64  # below that the product takes next to no time
_MOST_LENGTH = 16_384  # such matrices of more nobody makes
_MOST_TIMES = 4  # as a sine and as a cosine, and both once more where all waves of a complex transform are there
_SAMPLED = 16  # waves that are looked at, spread over the matrix
_FIT = 0.9  # of them have to be such: near the lowest and the highest a window blurs which one it is
_AROUND, _NEARLY_ALL = 17, 0.9  # of its spectrum, and of its energy in these: a window makes a wave no broader
_LEFT = 0.02  # of a wave's energy, at most, that is none of a sine under the window: at its ends that is not known well
_MOST_LOOKED_AT = 200  # parts of matrices: in an inference all that is computed might be one
_SILENT = 1e-6  # of the loudest row's energy: the sine without a turn is zeros


@dataclass
class FourierProducts:
    """Told of each function of torch's that a watched step calls, outside of backwards; one for each training."""

    torch: ModuleType
    lines: ByLine[FourierProduct] = field(default_factory=ByLine)
    # Which storage, and which part of it → whether that is still there, how often it had been written to, and whether
    # it is a transform.
    _known: dict[Any, tuple[Any, int, bool]] = field(default_factory=dict)
    _looked_at: int = 0
    _over: bool = False

    def called(self, name: str, given: tuple[Any, Any], result: Any, seconds: float) -> None:
        """A function of that name has run for so long, given positional and named arguments, and gave `result`.

        What fails ends this looking, and nothing else.
        """
        if self._over:
            return
        try:
            self._called(name, given[0], given[1] or {}, result, seconds)
        except Exception:
            self._end()

    def _end(self) -> None:
        self._over, self.lines = True, ByLine()

    def _called(self, name: str, args: Any, named: Any, result: Any, seconds: float) -> None:
        torch: Any = self.torch
        if not isinstance(result, torch.Tensor) or torch.is_autocast_enabled("cpu"):
            return
        both: tuple[tuple[Any, bool], ...] = ()
        if name in _PRODUCTS and len(args) >= 2:
            both = ((args[1], True), (args[0], False))
        elif name == "linear" or (name == "conv1d" and (args[6] if len(args) > 6 else named.get("groups", 1)) == 1):
            both = ((args[1] if len(args) > 1 else named.get("weight"), False),)
        for matrix, turned in both:
            waves = self._waves(matrix, turned)
            if waves is not None:
                self._count(waves, name == "conv1d", result, seconds)
                return

    def _count(self, waves: Any, convolves: bool, result: Any, seconds: float) -> None:
        number, length = (int(size) for size in waves.shape)
        line = self.lines.here(lambda site, frames: FourierProduct(site, frames, convolves=convolves))
        if line is None:
            return
        if number * length > line.waves * line.length:
            line.length, line.waves = length, number
        frames = result.numel() / number
        line.calls += 1
        line.seconds += seconds
        line.multiplied += frames * number * length
        # A matrix of cosines alone has another one of sines beside it: one transform gives both.
        line.transformed += frames * length * math.log2(length) * min(1.0, max(0.5, number / (length + 2)))
        when_differentiated([result], seconds, line)

    def _waves(self, tensor: Any, turned: bool) -> Any:
        """The tensor as a matrix with a wave in each row, where it is one; None where it is none."""
        torch: Any = self.torch
        if not isinstance(tensor, torch.Tensor) or not may_compute(torch, tensor):
            return None
        if tensor.requires_grad or tensor.device.type != "cpu" or tensor.dtype not in (torch.float32, torch.float64):
            return None
        if tensor.dim() == 3 and tensor.shape[1] == 1 and not turned:  # the filters of a convolution
            matrix = tensor[:, 0]
        elif tensor.dim() == 2:
            matrix = tensor.T if turned else tensor
        else:
            return None
        if matrix.shape[0] < _LEAST_WAVES or not _LEAST_LENGTH <= matrix.shape[1] <= _MOST_LENGTH:
            return None
        key = storage_key(tensor), tensor.dtype, tuple(matrix.shape), matrix.stride(), matrix.storage_offset()
        known = self._known.get(key)
        if known is not None and (known[0].expired() or known[1] != times_written(tensor)):
            if known[2] and not known[0].expired():
                self._end()  # what was detached of a basis that is trained, say
                return None
            known = None
        if known is None:
            if self._looked_at >= _MOST_LOOKED_AT:
                return None
            self._looked_at += 1
            with torch.no_grad():
                known = weak_storage(tensor), times_written(tensor), self._is_transform(matrix)
            self._known[key] = known
        return matrix if known[2] else None

    def _is_transform(self, matrix: Any) -> bool:
        """Whether nearly all rows are waves with a whole number of turns, one after another, under one window."""
        torch: Any = self.torch
        last = len(matrix) - 1
        rows = matrix[[round(last * at / (_SAMPLED - 1)) for at in range(_SAMPLED)]].double()
        energy = rows.square().sum(1)
        rows = rows[energy > _SILENT * energy.max()]
        if len(rows) < _SAMPLED // 2:
            return False
        spectrum = torch.fft.rfft(rows).abs().square()
        turns = spectrum.argmax(1)
        around = spectrum.topk(_AROUND, dim=1).values.sum(1) >= _NEARLY_ALL * spectrum.sum(1)
        if len(turns.unique()) * 2 < len(turns) or around.double().mean() < _FIT:
            return False
        if not _in_a_row(torch.fft.rfft(matrix.double()).abs().argmax(1)):
            return False
        # Half of their squares' sum is the window's, as sine and cosine of a wave add up to one.
        window = (2 * matrix.double().square().mean(0)).sqrt()
        along_it = torch.arange(rows.shape[1], dtype=torch.float64, device="cpu")
        angle = 2 * math.pi / rows.shape[1] * torch.outer(turns.double(), along_it)
        left = rows
        for wave in (angle.cos() * window, angle.sin() * window):  # next to nothing of one in the other
            along = wave.square().sum(1, keepdim=True)
            part = (left * wave).sum(1, keepdim=True) / along.clamp(min=1e-30)
            left = left - torch.where(along > _SILENT * window.square().sum(), part, torch.zeros_like(part)) * wave
        fits = left.square().sum(1) <= _LEFT * rows.square().sum(1)
        return bool(fits.double().mean() >= _FIT)


def _in_a_row(turns: Any) -> bool:
    """Whether these are all numbers of turns from one to another, each a few times: no tones that somebody recorded."""
    each, times = turns.unique(return_counts=True)
    span = int(each.max() - each.min()) + 1
    return len(each) >= _FIT * span and int(times.max()) <= _MOST_TIMES
