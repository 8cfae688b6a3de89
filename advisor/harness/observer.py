"""Installs everything that observes the script, once torch is there, and makes the record at the end."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import os
import re
import sys
import time
import weakref
from typing import Any

from . import graphs, places
from .frameworks import watch_frameworks
from .imports import PostImport
from .layout import CLOSURE_RANGE, PARTIAL_JSON, RUN_JSON, Failure, Options, RunRecord, to_dict
from .machine import environment, rates
from .machine.openblas import OpenBlas
from .patches import Patch
from .places import owner, user_site
from .status import StatusFile, measured_elsewhere
from .stop import Stop, end_process
from .undo.journal import Journal
from .windows import Windows

# Evaluations in one step of L-BFGS: from more on each is taken for a step. A step has 20 iterations by default and at
# most 25 evaluations; one that does the whole fit, thousands.
_MANY_EVALUATIONS = 50


def _is_torchs(optimizer: Any) -> bool:
    """Whether its step is known to take a closure first: one of a script's own may be given anything there."""
    return str(getattr(type(optimizer).step, "__module__", "")).startswith("torch.optim.")


class Observer:
    """One per run. The script's process has exactly one; its workers have none."""

    def __init__(self, options: Options, record: RunRecord, imports: PostImport, journal: Journal | None) -> None:
        self._options = options
        self.record = record
        self._journal = journal
        self._imports = imports
        self._status = StatusFile(options.run_dir)
        self.windows: Windows | None = None
        self._torch: Any = None
        self._written = False
        # L-BFGS optimizers that have stepped → whether it is their evaluations that are the steps.
        self._by_evaluation: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
        self.stop_requested = False
        self.on_stop: Any = None  # the runner's: watch that the script really ends
        self._status.start()
        self._openblas = OpenBlas()
        imports.when_imported("numpy", self._openblas.numpy_loaded)
        imports.when_imported("torch", self._torch_loaded)
        watch_frameworks(imports, lambda: self.windows.sites if self.windows is not None else None)

    def note(self, text: str) -> None:
        if text not in self.record.notes:
            self.record.notes.append(text)

    def _torch_loaded(self, torch: Any) -> None:
        # Parts of torch that the wrappers need and that `import torch` may leave for later.
        import torch.profiler
        import torch.utils.data
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        self._torch = torch
        if self._options.seed is not None:
            torch.manual_seed(self._options.seed)
        windows = self.windows = Windows(torch, self._options, self.record, self._status, self._openblas)
        windows.on_finish = self._finish
        windows.on_profiled = self._keep_partial
        windows.loaders.install(look=self._options.windows == "all")
        windows.models.install()
        windows.sites.on()
        windows.inert.install()
        windows.replays.install()
        windows.garbage.install()
        windows.encoders.install()
        windows.models.watch(
            lambda: windows.phase == "waiting", lambda: windows.finder.kind == "forward" and windows.phase != "done"
        )
        register_optimizer_step_pre_hook(self._optimizer_steps)
        register_optimizer_step_post_hook(self._optimizer_stepped)
        Patch(torch.optim.Optimizer, "__init__", self._optimizer_init).on()
        Patch(torch.nn.Module, "train", self._mode).on()
        Patch(torch.nn.Module, "load_state_dict", self._weights_loaded).on()
        if self._journal is not None:
            self._journal.on_write = self._wrote
        self._imports.when_imported("torchvision.tv_tensors._torch_function_helpers", windows.sites.keep_class)
        self._imports.when_imported("torch._dynamo", windows.sites.dynamo_loaded)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget_in_child)
        self._status.phase("waiting")
        windows.finder.seen = _SharedCounts(self._status)

    def _forget_in_child(self) -> None:
        """In a pool's process, or a loader's worker: what it does belongs to no step, and must not end the script."""
        with contextlib.suppress(Exception):
            if self.windows is not None:
                self.windows.forget()

    def _wrote(self, path: str) -> None:
        if self.windows is not None and _CHECKPOINT.search(path):
            self.windows.saved(path)

    def _optimizer_steps(self, optimizer: Any, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """Mark, in a trace, what a step has evaluated; count how often L-BFGS does: a fit may be one step of thousands.

        The first step decides: what counts as a step does not change while steps are measured.
        """
        if self._torch.compiler.is_compiling() or self.windows is None:
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not callable(closure):
            return None
        if isinstance(optimizer, self._torch.optim.LBFGS):
            closure = self._counted(optimizer, closure)
        elif self.windows.sites.annotate and ("closure" in kwargs or _is_torchs(optimizer)):
            closure = self._marked(closure)
        else:
            return None
        if "closure" in kwargs:
            return args, {**kwargs, "closure": closure}
        return (args[0], closure, *args[2:]), kwargs

    def _marked(self, closure: Any) -> Any:
        def evaluate(*args: Any, **kwargs: Any) -> Any:
            with self._torch.autograd.profiler.record_function(CLOSURE_RANGE):
                return closure(*args, **kwargs)

        return evaluate

    def _counted(self, optimizer: Any, closure: Any) -> Any:
        evaluated, first = 0, optimizer not in self._by_evaluation
        self._by_evaluation.setdefault(optimizer, False)

        def evaluate() -> Any:
            nonlocal evaluated
            evaluated += 1
            if first and evaluated > _MANY_EVALUATIONS:
                self._by_evaluation[optimizer] = True
            if self._by_evaluation[optimizer] and self.windows is not None:
                self.windows.optimizer_step(optimizer)
            return closure()

        return evaluate

    def _optimizer_stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        # A constant to Dynamo: a compiled optimizer step keeps its graph whole.
        if self._torch.compiler.is_compiling():
            return
        if self.windows is not None and not self._by_evaluation.get(optimizer, False):
            self.windows.optimizer_step(optimizer)

    def _optimizer_init(self, original: Any) -> Any:
        def init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            if self.windows is not None:
                self.windows.optimizer_made(optimizer, user_site(), owner(optimizer))

        return init

    def _mode(self, original: Any) -> Any:
        def train(module: Any, mode: bool = True) -> Any:
            # `train` calls itself for every child; only a change at the outermost says anything.
            if self.windows is not None and not mode and module.training:
                self.windows.mode_changed(False)
            if self.windows is not None and mode:
                self.windows.training_asked()
            return original(module, mode)

        return train

    def _weights_loaded(self, original: Any) -> Any:
        def load_state_dict(module: Any, *args: Any, **kwargs: Any) -> Any:
            loaded = original(module, *args, **kwargs)
            if self.windows is not None:
                self.windows.model_is_ready()
            return loaded

        return load_state_dict

    # The end.

    def _finish(self, again: bool) -> None:
        """Everything is measured. Called again when the script goes on after all: then there is no other way."""
        if not again:
            self.record.ended = "stopped"
            self.write()
            self.stop_requested = True
            if self.on_stop is not None:
                self.on_stop()
            raise Stop
        end_process(0)

    def _keep_partial(self) -> None:
        """Before the last window begins: all that is known so far, for a parent that finds nothing better."""
        if self.windows is None:
            return
        partial = copy.copy(self.record)
        partial.notes = list(self.record.notes)
        with contextlib.suppress(Exception):  # in the midst of the script, which this must not cost its run
            self._fill(self.windows, partial)
            self._store(partial, PARTIAL_JSON)

    def _store(self, record: RunRecord, name: str) -> None:
        path = os.path.join(self._options.run_dir, name)
        temporary = path + ".part"
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(to_dict(record), file, default=str)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)

    def write(self, failure: Failure | None = None) -> None:
        """Complete the record and write ``run.json``, atomically; the first call counts."""
        if self._written or os.getpid() != self._status._pid or measured_elsewhere(self._options.run_dir):
            return
        self._written = True
        record = self.record
        self._status.stop()
        if self._journal is not None:
            self._journal.enabled = False
        if failure is not None:
            record.failure = failure
            record.ended = "failed"
        record.wall_s = time.time() - record.started
        if self.windows is not None:
            try:
                self.windows.conclude()
                self._fill(self.windows, record)
                if record.ended == "finished" and record.steps:
                    record.after_s = time.perf_counter() - self.windows.ended_at
                record.nonfinite_parameters = self.windows.nonfinite_parameters()
                if record.device.type == "cpu" and failure is None and self._options.windows != "timing":
                    record.environment.rates = rates.rates(self._torch)
                    record.environment.flop_per_s = rates.flop_per_s(self._torch)
                    record.environment.fault_s = rates.fault(self._torch)
                    record.environment.more_threads = rates.more_threads(self._torch, record.environment.usable_cpus)
            except Exception as error:  # a fact that cannot be had must not cost the run
                self.note(f"the record is incomplete: {type(error).__name__}: {error}")
        self._store(record, RUN_JSON)
        if self._journal is not None:
            self._journal.enabled = True

    def _fill(self, windows: Windows, record: RunRecord) -> None:
        torch = self._torch
        record.step_kind = windows.finder.kind
        record.steps = windows.boundaries
        record.training_steps = [*record.training_steps[: record.training], record.steps]
        record.seen = dict(windows.finder.seen)
        record.environment = environment.environment(torch)
        if record.rank is None and torch.distributed.is_available() and torch.distributed.is_initialized():
            record.rank, record.world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        for name, variable in (("rank", "RANK"), ("world_size", "WORLD_SIZE")):
            if getattr(record, name) is None and os.environ.get(variable, "").isdigit():
                setattr(record, name, int(os.environ[variable]))
        record.environment.usable_cpus = environment.share_of_cpus(record.environment.usable_cpus, record.world_size)
        record.environment.openblas_threads = self._openblas.threads
        kind, _, index = windows.device().partition(":")
        record.device = environment.device(torch, kind, int(index or 0))
        record.memory.host_total, record.memory.host_available = environment.host_memory()
        record.loaders = windows.loaders.records
        windows.models.read_padding()
        windows.indexing.labels.read()
        record.models = windows.models.records()
        record.call_sites = windows.sites.records()
        record.modules = places.user_modules()
        record.losses, last = windows.sites.read_losses()
        record.last_loss = last[-1] if last else None
        record.nonfinite_losses = sum(not math.isfinite(loss) for loss in (*record.losses, *last))
        record.encoders = windows.encoders.records()
        record.outputs = windows.models.read_outputs()
        record.states = windows.models.read_states()
        record.aside = dict(record.timing.aside)
        record.steps_wall_s = record.timing.elapsed + sum(record.aside.values())
        record.optimizers = windows.optimizers.records(windows.finder.boundary_optimizer)
        utils = sys.modules.get("torch._dynamo.utils")
        if utils is not None:
            record.compiles = int(utils.counters["stats"]["unique_graphs"])
            times = getattr(utils, "compilation_time_metrics", {})
            record.compile_s = float(sum(times.get("compile_attempt_0", times.get("_compile.compile_inner", [0.0]))))
            try:
                record.graph_breaks, record.recompiled = graphs.graph_breaks(), graphs.recompiled()
            except Exception:  # books of another version: what they say is not worth a run
                self.note("what Dynamo says of its graphs could not be read")


# Endings under which training code saves its state, until it is whole under one more (``.pt.tmp``); a log file that
# grows is no checkpoint.
_CHECKPOINT = re.compile(r"\.(pt|pth|ckpt|bin|safetensors|tar|pkl|npz|h5)([._-]?(tmp|temp|part|partial|new))?$")


class _SharedCounts(dict[str, int]):
    """What the step finder has seen, shown in the status as it counts."""

    def __init__(self, status: StatusFile) -> None:
        super().__init__(optimizer_steps=0, batches=0, forwards=0)
        self._status = status.status

    def __setitem__(self, key: str, value: int) -> None:
        super().__setitem__(key, value)
        setattr(self._status, key, value)
