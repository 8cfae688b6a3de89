"""Steps that a script takes down as a CUDA graph, optimizer and all, and replays: no optimizer is called any more."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from .patches import Patch


class Replays:
    """Tells ``replayed(optimizer)`` after each replay of a graph, once for each optimizer of which it holds a step."""

    def __init__(self, torch: Any, replayed: Callable[[Any], None]) -> None:
        self._replayed = replayed
        self._taken_down: list[weakref.ref[Any]] = []
        self._graphs: weakref.WeakKeyDictionary[Any, list[weakref.ref[Any]]] = weakref.WeakKeyDictionary()
        graph = torch.cuda.CUDAGraph
        self._patches = [Patch(graph, "capture_end", self._captured), Patch(graph, "replay", self._replays)]

    def install(self) -> None:
        for patch in self._patches:
            patch.on()

    def take_down(self, optimizer: Any) -> None:
        """The step that `optimizer` has just made became a part of the graph that is being captured."""
        if all(each() is not optimizer for each in self._taken_down):  # several steps of one are a step of the script's
            self._taken_down.append(weakref.ref(optimizer))

    def _captured(self, original: Any) -> Any:
        def capture_end(graph: Any) -> Any:
            taken_down, self._taken_down = self._taken_down, []
            if taken_down:
                self._graphs[graph] = taken_down
            return original(graph)

        return capture_end

    def _replays(self, original: Any) -> Any:
        def replay(graph: Any) -> Any:
            result = original(graph)
            for each in self._graphs.get(graph, ()) if self._graphs else ():
                optimizer = each()
                if optimizer is not None:
                    self._replayed(optimizer)
            return result

        return replay
