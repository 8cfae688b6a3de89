"""Graphs of autograd that outlive their step: a running sum of losses, a list of them, holds on to every one.

A mark, an object of ours that only the graph's own dictionary holds (``Node.metadata``), goes when the graph goes.
Marks are set on the model's outputs and on losses while the steps settle, and looked at when the timing window is over
and now and then before: what is kept until an epoch ends may be gone by then.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from dataclasses import replace
from typing import Any

from .layout import KeptGraphs, Site
from .places import site_of, user_frames

_KEY = "advisor"
_LEAST = 3  # graphs from one place that are still there: one or two may be meant to be
_MOST = 400  # marks in all
_LOOK_FROM = 32  # steps: a graph that is still there after so many was not kept for a few steps' sake


class _Mark:
    """Lives as long as the graph that holds it."""

    __slots__ = ("__weakref__",)


class Graphs:
    """The marks by the chain of user frames in which they were set, and the memory that a step adds."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._marks: dict[tuple[int, ...], tuple[list[Site], list[weakref.ref[_Mark]]]] = {}
        self._count = 0
        self._memory: int | None = None
        self._device: int | None = None  # index of the GPU that the steps run on
        self._seen: list[KeptGraphs] = []  # at the latest look that saw any, …
        self._seen_growth: float | None = None  # … with the bytes per step until then
        self._seen_steps = 0

    def mark(self, tensor: Any, number: int = 0) -> None:
        """Remember the graph behind `tensor`, and from where it was made; nothing for one without a graph.

        `number` tells the outputs of one call apart: the graph of one may go while that of another stays.
        """
        if self._count >= _MOST:
            return
        # A node of a library's own may have no dictionary.
        with contextlib.suppress(AttributeError, RuntimeError, TypeError):
            node = tensor.grad_fn
            if node is None or _KEY in node.metadata:
                return
            mark = _Mark()
            node.metadata[_KEY] = mark
            sites = [site_of(frame) for frame in user_frames(3)]
            key = (number, *(id(site) for site in sites))
            self._marks.setdefault(key, (sites, []))[1].append(weakref.ref(mark))
            self._count += 1

    def begin(self, device: int | None) -> None:
        """The timing window begins; `device` is the index of the GPU that the steps run on, None without one."""
        self._device = device
        self._memory = self._in_use()
        self._seen, self._seen_growth, self._seen_steps = [], None, 0

    def look(self, steps: int) -> None:
        """So many steps of the timing window are over; looks at few of them, each time after twice as many."""
        if steps < _LOOK_FROM or steps & (steps - 1) or not self._marks:
            return
        if seen := self._alive():
            self._seen, self._seen_growth, self._seen_steps = seen, self._growth(steps), steps

    def end(self, steps: int) -> tuple[list[KeptGraphs], float | None, int]:
        """Places whose graphs are kept, bytes that the process (or the device) took per step, over so many steps.

        These are `steps`, all of the timing window, unless graphs that were seen in it are gone at its end.
        """
        kept = self._alive()
        if kept or not self._seen:
            return kept, self._growth(steps), steps
        return [replace(each, released=True) for each in self._seen], self._seen_growth, self._seen_steps

    def _alive(self) -> list[KeptGraphs]:
        kept: dict[tuple[int, ...], KeptGraphs] = {}
        for key, (sites, marks) in self._marks.items():
            alive = sum(mark() is not None for mark in marks)
            if alive >= _LEAST and alive >= len(marks) - 1:
                kept.setdefault(key[1:], KeptGraphs(sites=sites, kept=alive, made=len(marks)))
        return list(kept.values())

    def _growth(self, steps: int) -> float | None:
        now = self._in_use()
        return None if now is None or self._memory is None or not steps else (now - self._memory) / steps

    def _in_use(self) -> int | None:
        """Bytes: allocated on the device, else the resident set (Linux: /proc/self/statm, second field, in pages)."""
        if self._device is not None:
            with contextlib.suppress(Exception):  # an allocator of the script's own may keep no statistics
                return int(self._torch.cuda.memory_allocated(self._device))
            return None
        try:
            with open("/proc/self/statm", encoding="ascii") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError, IndexError):
            return None
