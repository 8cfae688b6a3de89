"""The memory of the GPU over the timing window; what the script itself asks about it is answered as if we were not.

Peaks of a window can be had only by setting them back at its beginning. From then on the script's own questions get the
higher of the peak before and the peak since, until it sets them back itself. All of Python's ways to ask
(``max_memory_allocated``, ``memory_stats``, ``memory_summary``) come to the few functions that are wrapped here.
"""

from __future__ import annotations

import contextlib
from typing import Any

from ..layout import Memory
from ..patches import Patch

# In torch._C: torch.cuda's and, in newer versions, torch.accelerator's, which ask the same allocator.
_STATISTICS = ("_cuda_memoryStats", "_accelerator_getDeviceStats")
_RESETS = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")


class GpuMemory:
    """Figures of the caching allocator, and what the device has left; nothing where there is no GPU."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._statistics, self._reset = (getattr(torch._C, names[0], None) for names in (_STATISTICS, _RESETS))
        self._patches: list[Patch] = []
        self._device: int | None = None  # of the window
        self._before: dict[int, dict[str, Any]] = {}  # by device: statistics as they were when we set the peaks back
        self._peaks = (0, 0)  # of the window, up to where the script last set them back: allocated, reserved
        self._retries = 0

    def begin(self, device: int | None, memory: Memory) -> None:
        """The timing window begins; `device` is the index of the GPU that the steps run on, None without one."""
        self._device = None
        if device is None or self._statistics is None or self._reset is None:
            return
        with contextlib.suppress(Exception):  # a device that is full has no room for a context, either
            memory.free_at_start, memory.capacity = self._torch.cuda.mem_get_info(device)
        with contextlib.suppress(Exception):  # an allocator of the script's own may keep no statistics
            before = _higher_peaks(self._statistics(device), self._before.get(device, {}))
            self._wrap()
            self._before[device] = before
            self._reset(device)
            self._device, self._peaks, self._retries = device, (0, 0), before["num_alloc_retries"]

    def read(self, memory: Memory) -> None:
        """The figures of the window up to now."""
        if self._device is None or self._statistics is None:
            return
        with contextlib.suppress(Exception):
            self._note_peaks()
            memory.peak_allocated, memory.peak_reserved = self._peaks
            retries = int(self._statistics(self._device)["num_alloc_retries"])
            # Fewer than before: the script has set them back.
            memory.alloc_retries = retries - self._retries if retries >= self._retries else retries

    def _note_peaks(self) -> None:
        assert self._statistics is not None
        statistics = self._statistics(self._device)
        allocated, reserved = (int(statistics[name]["all"]["peak"]) for name in ("allocated_bytes", "reserved_bytes"))
        self._peaks = max(self._peaks[0], allocated), max(self._peaks[1], reserved)

    def _wrap(self) -> None:
        """Stand before the functions that tell of the peaks; once, and for good: ours cannot be put back."""
        if not self._patches:
            core = self._torch._C
            made = [(name, self._tells) for name in _STATISTICS] + [(name, self._sets_back) for name in _RESETS]
            self._patches = [Patch(core, name, make) for name, make in made if hasattr(core, name)]
        for patch in self._patches:
            patch.on()

    def _tells(self, original: Any) -> Any:
        def statistics(device: Any) -> Any:
            return _higher_peaks(original(device), self._before.get(device, {}))

        return statistics

    def _sets_back(self, original: Any) -> Any:
        def reset(device: Any) -> Any:
            if device == self._device:
                with contextlib.suppress(Exception):
                    self._note_peaks()
            result = original(device)
            self._before.pop(device, None)
            return result

        return reset


def _higher_peaks(now: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """The statistics `now`, nested as the allocator gives them, with the peaks of `before` where these are higher."""
    told = dict(now)
    for key in told.keys() & before.keys():
        if isinstance(told[key], dict):
            told[key] = _higher_peaks(told[key], before[key])
        elif key == "peak":
            told[key] = max(told[key], before[key])
    return told
