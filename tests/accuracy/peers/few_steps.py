"""Runs a script until it has made a few steps, and ends it: standard library and torch only.

    python few_steps.py STEPS SCRIPT [ARGUMENTS...]

With ANTI_PATTERNS set to a file, the steps are recorded from the first loader's start, as ``torch.profiler`` records
them with stacks and shapes, and what ``torch.profiler._pattern_matcher`` says of them is written there.
"""

import importlib
import json
import os
import runpy
import sys
import traceback
from collections.abc import Callable

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader

# Forwards without any optimizer step until a script counts as inference: a check of the validation comes before.
FORWARDS_PER_STEP = 5


class FewSteps:
    """Ends the process after `steps` optimizer steps, or so many forwards that it makes none."""

    def __init__(self, steps: int, report: str) -> None:
        self.left, self.forwards_left, self.report = steps, float(steps * FORWARDS_PER_STEP), report
        self.profiler: torch.profiler.profile | None = None
        self.depth = 0

    def watch(self) -> None:
        """Hook in: a step is an optimizer's, a forward that of an outermost module."""
        register_optimizer_step_post_hook(self._stepped)
        if self.report:
            iterate = DataLoader.__iter__

            def start(loader: DataLoader) -> object:
                self.record()
                return iterate(loader)

            DataLoader.__iter__ = start
        # Hooks, not a wrapper: the profiler's tracer knows Module.__call__ by its code.
        register_module_forward_pre_hook(self._enters)
        register_module_forward_hook(self._leaves, always_call=True)

    def record(self) -> None:
        """Start recording, once."""
        if self.report and self.profiler is None:
            self.profiler = torch.profiler.profile(with_stack=True, record_shapes=True)
            self.profiler.start()

    def _stepped(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        self.forwards_left = float("inf")
        self.left -= 1
        if self.left <= 0:
            self.end()

    def _enters(self, module: torch.nn.Module, args: object) -> None:
        self.record()
        self.depth += 1

    def _leaves(self, module: torch.nn.Module, args: object, output: object) -> None:
        self.depth -= 1
        if self.depth == 0:
            self.forwards_left -= 1
            if self.forwards_left <= 0:
                self.end()

    def end(self) -> None:
        """Report, and leave: nothing of the script runs any more."""
        if self.report:
            self.write()
            os._exit(0)
        raise SystemExit(0)

    def write(self) -> None:
        """What each pattern matched, as JSON."""
        if self.profiler is not None:
            self.profiler.stop()
        found, failed = [], []
        patterns = importlib.import_module("torch.profiler._pattern_matcher")
        for name in [name for name in vars(patterns) if name.endswith("Pattern") and name != "Pattern"]:
            if name == "NamePattern" or self.profiler is None:  # a tool for making patterns
                continue
            try:
                pattern = getattr(patterns, name)(self.profiler)
                pattern.match = readable(pattern.match)
                events = pattern.matched_events()
            except Exception as error:
                failed.append(f"{name}: {type(error).__name__}: {error}")
                continue
            if events:
                place = patterns.source_code_location(events[0])
                found.append({"code": name, "text": f"{pattern.description} ({len(events)} times, {place})"})
        with open(self.report, "w") as file:
            json.dump({"sayings": found, "error": "; ".join(failed)}, file)


def readable(match: Callable[[object], bool]) -> Callable[[object], bool]:
    """`match` for the events whose names can be read: some point to freed memory, and most patterns would give up."""

    def careful(event: object) -> bool:
        try:
            return match(event)
        except UnicodeDecodeError:
            return False

    return careful


def main() -> None:
    steps, script, sys.argv = int(sys.argv[1]), sys.argv[2], sys.argv[2:]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    watcher = FewSteps(steps, os.environ.pop("ANTI_PATTERNS", ""))
    watcher.watch()
    try:
        runpy.run_path(script, run_name="__main__")
    except BaseException:
        traceback.print_exc()
        raise
    if watcher.report:
        watcher.write()


if __name__ == "__main__":
    main()
