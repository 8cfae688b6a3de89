"""Steps of a script that has no other sign of one: the rounds of a loop, which Python's own tracing tells of.

A simulation, a sampler, functions of tensors: no module is called, no loader is asked, no gradient taken. Every line of
the user's functions that have loops is told of, until it is known which loop the script spends its time in: the
outermost one that goes round and round and computes with torch. While its rounds are timed no more is told of than the
lines of that one function.
"""

from __future__ import annotations

import ast
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from .looking import function_modes
from .places import is_user_file, is_users

_LEAST_ROUNDS = 3  # that compute, of a loop that may be chosen
_LEAST_ROUND_S = 1e-4  # a shorter round is no step: it is a loop inside of one, or over something small
_SILENT_S, _SILENT_ROUNDS = 1.0, 10  # without a round, and so many times as long as one: the loop is over


@dataclass
class _Loop:
    code: CodeType
    line: int
    depth: int  # of the user's frames that it runs in
    began: float
    last: float  # when its last round ended
    computed: int  # calls of torch's until then
    rounds: int = 0
    busy: int = 0  # of these, rounds in which torch computed

    @property
    def round_s(self) -> float:
        return (self.last - self.began) / self.rounds if self.rounds else 0.0

    def goes_on(self, now: float) -> bool:
        return now - self.last <= max(_SILENT_S, _SILENT_ROUNDS * self.round_s)


class LoopRounds:
    """Traces the thread that it is turned on in. `torch` gives torch, or None before the script has imported it.

    `round_over` is told of each round of the loop that was chosen, and whether it is another loop's than before;
    `settling` says whether the steps' time still settles, or has not begun to be measured. One is chosen `watched_s`
    seconds after a round has computed something: a loop that is over by then has made the data.
    """

    def __init__(
        self,
        torch: Callable[[], Any],
        round_over: Callable[[bool], None],
        settling: Callable[[], bool],
        watched_s: float,
    ) -> None:
        self._torch, self._round_over, self._settling = torch, round_over, settling
        self._watched_s = watched_s
        self._pid = os.getpid()
        self._headers: dict[CodeType, frozenset[int]] = {}
        self._of_file: dict[str, frozenset[int]] = {}
        self._loops: dict[tuple[CodeType, int], _Loop] = {}
        self._chosen: _Loop | None = None
        self._alone = False  # the chosen loop's function is the only one that is looked at
        self._computed = 0  # calls of torch's
        self._began = 0.0  # when the first round that computes was over
        self._mode: Any = None

    @property
    def place(self) -> str:
        """The loop whose rounds are the steps, ``sim.py:41``; "" while none is."""
        return f"{os.path.basename(self._chosen.code.co_filename)}:{self._chosen.line}" if self._chosen else ""

    def on(self) -> None:
        """Trace what is called in this thread from here on, unless somebody else does (a debugger)."""
        if sys.gettrace() is None:
            sys.settrace(self._called)

    def _called(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        if self._alone and self._chosen is not None:
            return self._ran if code is self._chosen.code else None
        return self._ran if self._loops_in(code) else None

    def _ran(self, frame: FrameType, event: str, arg: Any) -> Any:
        """A function that has loops goes on to its next line, which may be the first of a loop: at each round."""
        if event != "line":
            return self._ran
        code, line = frame.f_code, frame.f_lineno
        if self._alone and self._chosen is not None:
            if line == self._chosen.line and code is self._chosen.code:
                self._ends(time.perf_counter())
        elif line in self._loops_in(code) and os.getpid() == self._pid:
            self._goes_round(frame, code, line)
        return self._ran

    def _loops_in(self, code: CodeType) -> frozenset[int]:
        """The first lines of the loops of a function of the user's."""
        known = self._headers.get(code)
        if known is None:
            known = frozenset()
            if is_user_file(code.co_filename):
                lines = [line for _, _, line in code.co_lines() if line is not None]
                within = range(min(lines, default=0), max(lines, default=0) + 1)
                known = frozenset(line for line in self._loops_of(code.co_filename) if line in within)
            self._headers[code] = known
        return known

    def _loops_of(self, path: str) -> frozenset[int]:
        if path not in self._of_file:
            self._of_file[path] = loop_lines(path)
        return self._of_file[path]

    def _goes_round(self, frame: FrameType, code: CodeType, line: int) -> None:
        now = time.perf_counter()
        self._watch_torch()
        loop = self._loops.get((code, line))
        if loop is None:
            self._loops[code, line] = _Loop(code, line, _depth(frame), now, now, self._computed)
            return
        loop.rounds += 1
        loop.last = now
        if self._computed > loop.computed:
            loop.computed, loop.busy = self._computed, loop.busy + 1
            self._began = self._began or now
        known = self._chosen is not None and self._chosen.goes_on(now)
        if self._began and not known and now - self._began >= self._watched_s:
            self._choose(now)
        elif loop is self._chosen:
            self._ends(now)

    def _choose(self, now: float) -> None:
        """The outermost loop that goes on; it begins with its next round."""
        there = [each for each in self._loops.values() if each.busy >= _LEAST_ROUNDS and each.goes_on(now)]
        there = [each for each in there if each.round_s >= _LEAST_ROUND_S]
        chosen = min(there, key=lambda each: (each.depth, each.line), default=None)
        if chosen is not None and chosen is not self._chosen:
            another, self._chosen = self._chosen is not None, chosen
            if another:
                self._round_over(True)

    def _ends(self, now: float) -> None:
        assert self._chosen is not None
        self._chosen.last = now
        self._alone = not self._settling() and self._leave_torch()
        if not self._alone:
            self._watch_torch()
        self._round_over(False)

    # What computes.

    def _watch_torch(self) -> None:
        torch = self._torch()
        if self._mode is not None or torch is None:
            return
        if "torch._dynamo" in sys.modules:  # a mode is one of the things that what is compiled is compiled anew for
            self._computed += 1
            return
        self._mode = _counting(self)
        self._mode.__enter__()

    def _leave_torch(self) -> bool:
        """Whether nobody counts torch's functions any more: a mode is left only while it is the innermost."""
        if self._mode is None:
            return True
        modes = function_modes(self._torch())
        if modes and modes[-1] is not self._mode:
            return False
        if modes:
            self._mode.__exit__(None, None, None)
        self._mode = None
        return True

    def computes(self) -> None:
        """One of torch's functions is called."""
        self._computed += 1


def loop_lines(path: str) -> frozenset[int]:
    """The first lines of all loops of a file; none where it cannot be read."""
    try:
        with open(path, "rb") as source:
            tree = ast.parse(source.read())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return frozenset()
    return frozenset(each.lineno for each in ast.walk(tree) if isinstance(each, (ast.For, ast.AsyncFor, ast.While)))


def _depth(frame: FrameType | None) -> int:
    depth = 0
    while frame is not None:
        depth += is_users(frame)
        frame = frame.f_back
    return depth


def _counting(rounds: LoopRounds) -> Any:
    from torch.overrides import TorchFunctionMode

    class Counting(TorchFunctionMode):  # type: ignore[misc, unused-ignore]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            rounds.computes()
            return func(*args, **(kwargs or {}))

    return Counting()
