"""Steps that a script takes down as a CUDA graph, optimizer and all, and replays: no optimizer is called any more."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from .patches import Patch


class Replays:
    """Tells ``replayed(optimizer)`` after each replay of a graph that holds a step of that optimizer."""

    def __init__(self, torch: Any, replayed: Callable[[Any], None]) -> None:
        self._replayed = replayed
        self._taken_down: weakref.ref[Any] | None = None
        self._graphs: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = weakref.WeakKeyDictionary()
        graph = torch.cuda.CUDAGraph
        self._patches = [Patch(graph, "capture_end", self._captured), Patch(graph, "replay", self._replays)]

    def install(self) -> None:
        for patch in self._patches:
            patch.on()

    def take_down(self, optimizer: Any) -> None:
        """The step that `optimizer` has just made became a part of the graph that is being captured."""
        self._taken_down = weakref.ref(optimizer)

    def _captured(self, original: Any) -> Any:
        def capture_end(graph: Any) -> Any:
            taken_down, self._taken_down = self._taken_down, None
            if taken_down is not None:
                self._graphs[graph] = taken_down
            return original(graph)

        return capture_end

    def _replays(self, original: Any) -> Any:
        def replay(graph: Any) -> Any:
            result = original(graph)
            found = self._graphs.get(graph) if self._graphs else None
            optimizer = found() if found is not None else None
            if optimizer is not None:
                self._replayed(optimizer)
            return result

        return replay
