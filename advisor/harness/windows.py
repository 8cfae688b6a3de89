"""The three windows – timing, profile, detail – as a state machine over the step boundaries."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Hashable
from itertools import islice
from types import ModuleType
from typing import Any

from .blocking import Blocking
from .caches import Caches
from .encoders import Encoders
from .indexing import Indexing
from .kept_graphs import Graphs
from .layout import Options, RunRecord, Timing, Window
from .loading.loaders import Loaders
from .looking import is_capturing
from .machine.garbage import Garbage
from .machine.gauges import DeviceClock, PageFaults, children_cpu, peak_resident
from .machine.gpu_memory import GpuMemory
from .machine.neighbours import Neighbours
from .machine.openblas import OpenBlas
from .models import Models
from .optimizers import Optimizers, nonfinite
from .pauses import Pauses
from .places import FRAMES, site_of, user_frames, user_site
from .plan import Plan
from .profiling import Inert, OurProfiler
from .python_calls import PythonCalls
from .replays import Replays
from .sites import CallSites
from .sizes import Sizes
from .status import StatusFile, tell_child_trains
from .steps import StepFinder
from .timing import (
    GROUP,
    LONGEST_PERIOD,
    SETTLED,
    Interval,
    compiled_frames,
    has_settled,
    pauses_to_come,
    summarize,
    usual_causes,
    whole_period,
)
from .tracebacks import Tracebacks
from .watches.together import ENOUGH_BESIDE, MOST_WATCHED, Watches

MOST_ACTIVE = 8  # the longest profile window: traces grow by megabytes a step
# Short steps are profiled until they fill so many seconds, or so many are: a process that is preempted once, for 16 ms,
# would make most of three steps of 6 ms.
LEAST_PROFILED_SECONDS, MOST_SHORT_STEPS = 0.1, 16
# A profiled step is given up after so many seconds and so many times the step's own length: work of another kind
# has begun (the next layer of a layer-wise training, say).
OVERDUE_SECONDS, OVERDUE_STEPS = 15.0, 10
# Seconds: a longer step is recorded with stacks only where it is known to make no more than so many calls. A step that
# is all Python makes about a million a second, and sorting them takes many times as long; the wrappers know the call
# sites without them.
LONGEST_WITH_STACKS, MOST_WITH_STACKS = 0.5, 400_000
# Times `settle_max_seconds`: so long may steps take, besides, in which Dynamo compiles: eight graphs of a function.
MOST_COMPILING = 4
# Times the least of the timing window: so long does it go on until it knows how often something heavy stops the steps.
_FOR_PAUSES = 4
MOST_REPEATS = 3  # how often a profile window is begun anew when an evaluation falls into it
_EACH_SECOND, _ONE_EACH = 0.4, 1.2  # of the steps take a batch, and so many batches do those


class Windows:
    """Listens to everything that happens in the script and decides what is measured when."""

    def __init__(
        self,
        torch: ModuleType,
        options: Options,
        record: RunRecord,
        status: StatusFile,
        openblas: OpenBlas,
    ) -> None:
        self._torch: Any = torch
        self._options = options
        self.record = record
        self._status = status
        self.pid = os.getpid()
        self.finder = StepFinder(options.step)
        self.plan = Plan(options)
        self._openblas = openblas
        self.loaders = Loaders(torch, options.run_dir, self, self._openblas)
        self.models = Models(torch, options.losses, self)
        self.sites = CallSites(torch, options.losses, self)
        self.blocking = Blocking(self.sites)
        self.indexing = Indexing(torch, self.sites)
        self.sizes = Sizes(torch, self.sites)
        self.inert = Inert(torch, self.note, self._profiler_on, self._profiler_off)
        self.graphs = Graphs(torch)
        self.encoders = Encoders(torch)
        self.garbage = Garbage(self._collect_called)
        self._tracebacks = Tracebacks(torch)
        self._python = PythonCalls(MOST_WITH_STACKS)
        self.phase = "waiting"
        self.boundaries = 0
        self._first_forwards = 0  # until the steps began: of modules that have found a parent since, maybe
        self._skip = options.skip
        self._last = 0.0
        self.ended_at = 0.0  # when the last step did, whether it was measured or not
        self._causes: set[str] = set()
        self._intervals: list[Interval] = []
        self._clock = DeviceClock(torch)
        self._gpu_memory = GpuMemory(torch)
        self._faults = PageFaults()
        self._caches = Caches()
        self._neighbours = Neighbours(options.parent_pid)
        self._pauses = Pauses()
        self._timing_began = 0.0
        self._whole_at: int | None = None  # intervals: with so many, what comes every so many steps has its share
        self._pauses_to_come: bool | None = None  # what stops the steps weighs much, and was seen too seldom
        self._profiler: OurProfiler | None = None
        self._overdue = 0
        self.leave_at_once = False
        self._cpu = (0.0, 0.0)
        self._openblas_s = 0.0  # of its threads, when the interval began
        self._compiled = 0
        self._rows: set[int] = set()  # that models got, step by step, before the timing window
        self._usual: set[str] = set()  # causes that come with most steps: part of the step
        self._intervals_with_loader: dict[int, int] = {}
        self._batches_of_loader: dict[int, int] = {}
        self._backwards = 0
        self._zero_checked = False
        self.optimizers = Optimizers()
        self.replays = Replays(torch, self._replayed)
        self._replaying = False
        self.watches = Watches(torch, self.models, self.optimizers, self.loaders)
        self.finished = False
        self._again = False  # measure anew from the next boundary on
        self.on_finish: Any = None
        self.on_profiled: Any = None

    def forget(self) -> None:
        """Watch nothing any more: this is a copy of the script's process, made by fork, whose steps are none of its."""
        # First of all: a thread that is not here may have had the locks that all the others would wait for, for ever.
        self.models.forget()
        self.optimizers.forget()
        self.finder = StepFinder("none")
        self.phase, self._profiler = "done", None
        self._zero_checked = True
        self.sites.count = False
        self.watches.stop()
        self._pauses = Pauses()  # its thread is not here, and may have held the lock that stop() would wait for
        self._probes(False)

    def note(self, text: str) -> None:
        if text not in self.record.notes:
            self.record.notes.append(text)

    # What happens in the script.

    def optimizer_made(self, optimizer: Any, site: Any, owner: str) -> None:
        if os.getpid() != self.pid:
            return
        self.finder.optimizer_made = True
        self.optimizers.made(optimizer, site, owner)
        self.models.announced = True
        self.models.hooks_on()

    def optimizer_step(self, optimizer: Any) -> None:
        if os.getpid() != self.pid:
            tell_child_trains(self._options.run_dir)
            return
        key = self.optimizers.stepped(optimizer)
        self.watches.stepped(optimizer)
        if self.phase != "timing":
            self.sites.add("Optimizer.step", user_site())
            self.blocking.stepped()
        if is_capturing(self._torch):
            self.replays.take_down(optimizer)
            return  # not done: no step ends here
        if self.finder.optimizer_step(key):
            self._boundary()
        elif self.finder.restarted:
            self._training_begins()
        else:
            self._check_overdue()

    def _replayed(self, optimizer: Any) -> None:
        """A CUDA graph was launched that holds a step: what came before were rehearsals of it."""
        if not self._replaying and self.finder.kind in ("", "optimizer") and self.phase != "done":
            self._replaying = True
            self._complete_in_detail()
            self._forget_measured("the script began to replay its step as a CUDA graph")
        self.optimizer_step(optimizer)

    def before_batch(self, index: int) -> None:
        if self.phase == "waiting":
            self.models.announced = True
            self.models.hooks_on()
        if self.finder.before_batch(index):
            self._boundary()
        else:
            self._check_overdue()

    def batch(self, index: int) -> None:
        if self.phase not in ("waiting", "settle") and not self.loaders.records[index].trains:
            self._evaluates()

    def delivered(self, index: int, batch: Any) -> None:
        """A loader has made this batch, outside of the timing window."""
        self.watches.batch(index, batch)

    def epoch(self, index: int) -> None:
        if self.phase not in ("waiting", "settle") and self.loaders.records[index].trains:
            self._causes.add("epoch start")

    def before_forward(
        self, module: Any, site: Any, key: Hashable, shape: list[int] | None, another: bool = False
    ) -> None:
        """`key` tells models apart, of which one made anew is the one that it was; `shape` is its first tensor's.

        `another`: it is one more pass over what the last forward was given.
        """
        if is_capturing(self._torch):
            return
        grad = self._torch.is_grad_enabled()
        if site is not None and self.phase != "timing":
            entry = self.sites.add("Module.call", site, {"module": type(module).__name__, "grad": grad, "shape": shape})
            if entry is not None and self.sites.count and not entry.called_from:
                entry.called_from = [site_of(each) for each in islice(user_frames(), FRAMES)]
        if self.finder.before_forward(key, grad, another):
            self._boundary()

    def forward_begins(self, module: Any, given: list[Any]) -> None:
        """A model is called with these tensors, and whatever else."""
        self.watches.forward_begins(module, given, in_step=self.in_step())
        self.indexing.forward_begins()

    def forward_ends(self, output: Any = None) -> None:
        self.watches.forward_ends(output)

    def array_made(self, name: str, result: Any, began: float, seconds: float) -> None:
        """`result` was made of an array, or of numbers, by a function of that name."""
        if name == "from_numpy":  # the others are seen by a mode
            self.watches.array_made(result, began, seconds)

    def mode_changed(self, training: bool) -> None:
        self.model_is_ready()
        if not training:
            self._evaluates()

    def model_is_ready(self) -> None:
        """A sign that a whole model is there: the script changes its mode, or loads its weights."""
        if self.phase == "waiting":
            self.models.announced = True
            self.models.hooks_on()
        elif self.finder.kind == "forward" and self.phase != "done":
            self.models.hook_new()  # one that is loaded anew for each batch is called before the watching thread looks

    def _evaluates(self) -> None:
        """An evaluation goes on, which is no step, also in the timing window: where the loop over steps asks for it."""
        if "evaluation" not in self._causes:
            self._causes.add("evaluation")
            if self.phase != "waiting":
                self.sites.add("evaluation", self.blocking.line())

    def training_asked(self) -> None:
        """The script itself wants training mode, in which a module is made anyway."""
        if self.phase != "timing":
            self.sites.add("Module.train", user_site())

    def saved(self, path: str) -> None:
        """A checkpoint is written, which is no step: also in the timing window its place is taken down."""
        if "checkpoint" not in self._causes:
            self._causes.add("checkpoint")
            if self.phase != "waiting":
                self.sites.add("checkpoint", user_site())

    def made_graph(self, tensor: Any, number: int = 0, loss: bool = False) -> None:
        """A model's output, or the loss where no output is seen: does its graph outlive the step?"""
        if self.phase == "settle" and not (loss and self.models.forwards):
            self.graphs.mark(tensor, number)

    def _profiler_on(self, profiler: str) -> Any:
        """The script starts a profiler of its own; the entry, or None where no user's code does."""
        return self.sites.add("debug_mode", user_site(3), {"mode": "profiler", "on": True, "class": profiler})

    def _profiler_off(self) -> None:
        """The script has ended its profiler while the steps were timed: they are others from here on."""
        self._again = self.phase == "timing"

    def gradients_asked(self) -> None:
        """``torch.autograd.grad`` is called, or a backward begins."""
        if self.phase == "waiting":
            self.models.hooks_on()  # a loop without optimizer and loader gives no earlier sign of its model
        # A place has one site, which serves as its identity.
        if not is_capturing(self._torch) and self.finder.before_gradients(lambda: id(user_site())):
            self._boundary()

    def backward(self, loss: Any) -> None:
        self.gradients_asked()
        self._backwards += 1
        self.watches.backward_begins(loss)
        self._check_overdue()
        if not self._zero_checked and self._backwards == 1 and self.boundaries >= 3 and not is_capturing(self._torch):
            self._zero_checked = True
            # Before the first backward of a step: are the gradients tensors full of zeros, or gone?
            self.optimizers.look_for_zeros()

    def differentiates(self, *given: Any) -> None:
        """A backward of these tensors begins, with these gradients."""
        self.watches.differentiates(*given)

    def _collect_called(self) -> None:
        self.optimizers.let_go()
        if self.phase != "timing":
            self.sites.add("gc.collect", user_site())

    def in_step(self) -> bool:
        """Whether what happens now is part of a step before the timing window, and of no evaluation beside it.

        A model that most steps put into eval() (for an attack, a rollout) is part of them.
        """
        if self.phase != "settle":
            return False
        return "evaluation" not in self._causes or "evaluation" in usual_causes(self._intervals)

    def fetching(self) -> bool:
        """Whether a batch is being made at this moment."""
        return self.loaders.fetching >= 0

    def recording(self) -> bool:
        """Whether a profiler takes down every operation at this moment, ours too."""
        return self._profiler is not None and self._profiler.taken >= self._profiler.lead

    def explicit_step(self) -> None:
        if os.getpid() == self.pid and not is_capturing(self._torch) and self.finder.explicit():
            self._boundary()

    def compiles(self) -> None:
        """The script is about to have something compiled or traced."""
        self.sites.leave_makers()
        self.watches.give_up()
        self.indexing.give_up()

    def scripts(self) -> None:
        """The script is about to have a function made TorchScript."""
        self.sites.leave_makers()
        self.watches.hide()

    def shapes_vary(self) -> None:
        self.record.shapes_vary = True

    # The boundary.

    def _boundary(self) -> None:
        now = self.ended_at = time.perf_counter()
        if self.finder.restarted:
            self._training_begins()
        if self._again:
            self._again = False
            self._restart("the script ended its own profiler")
        if self.finished:
            self.on_finish(again=True)
        if self._skip > 0:
            self._skip -= 1
            return
        if self.finder.training < (self._options.training or 0) or self.finder.turns < self._options.turns:
            return
        self.boundaries += 1
        if self.phase == "timing":
            self._clock.mark()
            self._interval(now)
            row = self._intervals[-1]
            self._pauses.step_ended(now, row.seconds, row.causes)
            self.graphs.look(len(self._intervals))
            if self._timing_full(now):
                self._end_timing()
            return
        self._slow_boundary(now)

    def _check_overdue(self) -> None:
        """End a profiled window whose boundary does not come: recording everything of an endless step fills the memory.

        Called by what happens within steps, in the script's own thread (a profiler must be ended where it was begun).
        """
        if self.phase not in ("profile", "detail") or self._profiler is None or is_capturing(self._torch):
            return
        limit = max(OVERDUE_SECONDS, OVERDUE_STEPS * (self.record.timing.step_s or 0.0))
        if time.perf_counter() - self._last < limit:
            return
        self.note(f"no step ended for {limit:.0f} s in the {self.phase} window, which was given up")
        self._complete_in_detail()
        profiler, self._profiler = self._profiler, None
        profiler.abandon()
        self._discard(profiler)
        self._overdue += 1
        if self._overdue > 1:
            self._complete()
        self._restart()

    def _complete(self) -> None:
        self.record.complete = True
        self.finished = True
        self.sites.count = False
        self.indexing.off()
        self._enter("done")
        self.on_finish(again=False)

    def _complete_in_detail(self) -> None:
        """End the script if only the detail window is missing, which cannot be filled any more."""
        if self.phase == "detail":
            self.leave_at_once = True
            self._complete()

    def _slow_boundary(self, now: float) -> None:
        """A boundary outside the timing window, where a few microseconds do not matter."""
        if self.phase == "waiting":
            self._begin(now)
            return
        self._status.status.step = self.boundaries
        self.models.step_ended()
        if self.sites.count:
            self.sites.counted_steps += 1
        if self.phase == "settle":
            self._interval(now)
            recent = self._intervals[-GROUP:]
            self._status.status.step_s = sum(interval.seconds for interval in recent) / len(recent)
            # A loader that fetches ahead delivers two batches before the first is used.
            first = 3 if self.finder.kind == "loader" else 2
            if self.models.forwards == self._first_forwards and first <= self.boundaries < first + 3:
                self.models.descend()
            else:
                self.models.hooks_on()
            self._caches.look()
            self.watches.step_ended(self.finder.kind)
            if self._settled(now):
                self.watches.stop()
                self._begin_timing()
        elif self.phase in ("profile", "detail"):
            self._interval(now)
            self._profiled_step()

    def _begin(self, now: float) -> None:
        self.record.startup_s = time.time() - self.record.started
        self._last = now
        self._enter("settle")
        self.models.hooks_off()  # those of modules that have found a parent since
        self.models.hooks_on()
        self._first_forwards = self.models.forwards
        self._clear_interval()
        if self.plan.settle == 0:
            self._begin_timing()

    def _training_begins(self) -> None:
        """Something else ends the steps from here on: often another training, maybe after a first step of a kind."""
        if self.phase == "done":
            return
        self._complete_in_detail()
        wanted = self._options.training
        if wanted is not None and self.finder.training > wanted and self.phase != "waiting":
            self.finished = True  # as if the script were over
            self.on_finish(again=False)
        another = self.finder.training > self.record.training
        if another:
            self.record.training_steps.append(self.boundaries)
        self.record.training, self.record.turns = self.finder.training, self.finder.turns
        self._forget_measured("what ends a step changed")
        if another:
            self.sites.forget()
            self.models.forget_outputs()

    def _forget_measured(self, why: str) -> None:
        """Begin to settle again, for steps that have nothing to do with those before."""
        self._restart(why)
        self.record.timing = Timing()
        self.record.windows.clear()

    def _restart(self, why: str = "what ends a step changed") -> None:
        """Begin to settle again; a timing window that is full stays."""
        if self.phase in ("waiting", "done"):
            return
        if self.phase in ("profile", "detail") and self._profiler is not None:
            self._profiler.abandon()
            self._profiler = None
        if self.phase != "settle":
            self.note(f"{why} while it was measured, so measuring began anew")
        self._pauses.stop()
        self._probes(True)
        self.loaders.timing, self.loaders.observe = False, True
        self.sites.from_lists.forget()
        self.watches.start()
        self._caches.forget()
        self._intervals.clear()
        self._intervals_with_loader.clear()
        self._batches_of_loader.clear()
        self.boundaries = 0
        self.phase = "waiting"

    def _enter(self, phase: str) -> None:
        self.phase = phase
        self._status.phase(phase)

    def _clear_interval(self) -> None:
        self._causes.clear()
        self._backwards = 0
        self.loaders.wait = 0.0
        self.loaders.samples = 0
        self.models.begin_interval()
        self.loaders.delivered.clear()
        self.garbage.take()
        self._openblas_s = self._openblas.cpu_s()
        self._faults.take()
        self._compiled = compiled_frames()

    def _interval(self, now: float) -> None:
        if compiled_frames() != self._compiled:
            self._causes.add("compilation")
        for index, batches in self.loaders.delivered.items():
            self._intervals_with_loader[index] = self._intervals_with_loader.get(index, 0) + 1
            self._batches_of_loader[index] = self._batches_of_loader.get(index, 0) + batches
        # Which module is the first in a step is then chance, and so are the rows that it gets.
        unknown = self.models.rows_differ and self.finder.kind == "forward"
        samples = self.loaders.samples or (0 if unknown else self.models.samples)
        waited, collected = self.loaders.wait, self.garbage.take()
        openblas = self._openblas.cpu_s() - self._openblas_s
        causes, faults = frozenset(self._causes), self._faults.take()
        row = Interval(now - self._last, causes, waited, samples, collected, openblas, faults)
        self._intervals.append(row)
        self._last = now
        self._clear_interval()

    # Settling.

    def _settled(self, now: float) -> bool:
        count = len(self._intervals)
        if self.plan.settle is not None:
            return count >= self.plan.settle
        if has_settled(self._intervals):
            self.record.timing.settled = True
            return True
        elapsed = sum(row.seconds for row in self._intervals)
        # Dynamo gives a function up after eight graphs: what is measured is to be what the script runs at then.
        compiling = sum(row.seconds for row in self._intervals if "compilation" in row.causes)
        most = self._options.settle_max_seconds
        late = count >= self._options.settle_max_steps or elapsed - min(compiling, MOST_COMPILING * most) >= most
        if late:
            self.note(
                f"the step time had not settled after {count} steps ({elapsed:.0f} s): successive groups of {GROUP} "
                f"steps still differed by more than {SETTLED:.0%}"
            )
        return late

    def _mark_training_loaders(self) -> None:
        """A loader feeds the steps when most of them, or each second one, took a batch from it.

        Where a script makes two steps of each batch, one with a batch more or less is chance; of an evaluation beside
        steps several batches come together.
        """
        steps = max(len(self._intervals), 1)
        for index, record in enumerate(self.loaders.records):
            fed, batches = (each.get(index, 0) for each in (self._intervals_with_loader, self._batches_of_loader))
            record.trains = fed * 2 >= steps or (fed >= _EACH_SECOND * steps and batches <= _ONE_EACH * fed)
        if not self._intervals:  # settling was cut to nothing: the loader used last it must be
            for index in list(self.loaders.delivered) or list(range(len(self.loaders.records)))[-1:]:
                self.loaders.records[index].trains = True

    # Timing.

    def _probes(self, on: bool) -> None:
        if on:
            self.sites.on()
            self.models.collect()
            self.models.hooks_on()
            return
        self.sites.off(all_but_gradients=self.finder.functional)
        self.blocking.off()
        self.indexing.off()
        self.sizes.off()
        self.encoders.off()
        boundaries = self.finder.kind == "forward"  # there the hook is the boundary
        self.models.stop_collecting(births=boundaries)
        if not boundaries:
            self.models.quiet()

    def _begin_timing(self) -> None:
        self._mark_training_loaders()
        if self.plan.timing == 0:
            self.record.timing.from_profile = True
            self._begin_profile()
            return
        self.inert.begin(timing=True)
        self._probes(False)
        self._clock.device = self._gpu()
        self.graphs.begin(self._clock.device)
        self._gpu_memory.begin(self._clock.device, self.record.memory)
        # The hooks that see how many rows a model gets are off in the timing window.
        self._rows = {row.samples for row in self._intervals[-GROUP:]}
        usual_s = statistics.median(row.seconds for row in self._intervals) if self._intervals else 0.0
        self.sites.from_lists.steps = sum("evaluation" not in row.causes for row in self._intervals)
        self._intervals.clear()
        self._whole_at, self._pauses_to_come = None, None
        self._enter("timing")
        self._neighbours.begin()
        self._caches.begin()
        self.loaders.start_timing()
        self._cpu = self._cpu_seconds()
        self._clear_interval()
        self._clock.reset()
        self._clock.mark()
        self._faults.begin()
        self._last = self._timing_began = time.perf_counter()
        if usual_s:
            self._pauses.begin(usual_s)

    def _cpu_seconds(self) -> tuple[float, float]:
        """Until now: of this process, of the loaders' workers."""
        return time.process_time(), children_cpu(self.loaders.worker_pids())

    def _gpu(self) -> int | None:
        """The index of the GPU that the steps run on, which need not be the current device; None where it is none."""
        if not self._torch.cuda.is_initialized():
            return None
        kind, _, index = self.device().partition(":")
        return int(index or 0) if kind == "cuda" else None

    def device(self) -> str:
        """The device of the parameters that are trained or called."""
        chosen = self.optimizers.get(self.finder.boundary_optimizer)
        for group in getattr(chosen, "param_groups", ()):
            for parameter in group["params"]:
                return str(parameter.device)
        return next(iter(self.models.devices()), "cpu")

    def _timing_full(self, now: float) -> bool:
        steps, elapsed = len(self._intervals), now - self._timing_began
        if self.plan.timing is not None:
            return steps >= self.plan.timing
        options = self._options
        # What a profiler of the script's own writes down piles up, and takes ever longer to be put in order.
        least = options.min_seconds * (0.4 if self.inert.timed else 1.0)
        if elapsed >= options.max_seconds + LONGEST_PERIOD:
            return True
        if steps < options.min_steps or elapsed < least:
            return elapsed >= options.max_seconds
        if self._whole_at is None:
            every = whole_period([row.seconds for row in self._intervals])
            self._whole_at = -(-steps // every) * every
        if steps < self._whole_at:
            return False
        if elapsed >= _FOR_PAUSES * least:
            return True
        if self._pauses_to_come is None:
            self._usual = usual_causes(self._intervals)
        if self._pauses_to_come is None or self._intervals[-1].causes - self._usual:
            self._pauses_to_come = pauses_to_come(self._intervals)
        return not self._pauses_to_come

    def _by_device(self) -> None:
        """On a GPU the steps' times are those between its own marks: the host runs ahead."""
        if by_device := self._clock.seconds():
            rows = zip(by_device, self._intervals, strict=False)
            self._intervals = [row._replace(seconds=measured) for measured, row in rows]
            self.record.timing.clock = "cuda"

    def _end_timing(self) -> None:
        cpu = [now - began for now, began in zip(self._cpu_seconds(), self._cpu, strict=True)]
        elapsed, steps = time.perf_counter() - self._timing_began, max(len(self._intervals), 1)
        timing = self.record.timing
        self._by_device()
        self.loaders.stop_timing()
        summarize(timing, self._intervals, self.loaders.records)
        if (kept := self._faults.kept()) is not None:
            timing.pages_kept = kept / steps
        timing.pauses = self._pauses.end()
        self.record.small_caches = self._caches.end(steps)
        self._count_samples()
        self._usual = usual_causes(self._intervals)
        timing.cpu_s, timing.children_cpu_s = cpu[0] / steps, max(cpu[1], 0.0) / steps
        record = self.record
        self.watches.record_gradients(record)
        self.watches.record_forwards(record)
        record.kept_graphs, record.growth_bytes, record.growth_steps = self.graphs.end(len(self._intervals))
        if beside := self._neighbours.end():
            timing.others_cores, timing.idle_cores = beside
        self._read_memory()
        self._window("timing", len(self._intervals), elapsed)
        if self._options.windows == "timing":
            self._complete()
            return
        self._probes(True)
        self._begin_profile()

    def _read_memory(self) -> None:
        self._gpu_memory.read(self.record.memory)
        self.record.memory.rss_peak = peak_resident()

    def _count_samples(self) -> None:
        """Without a loader, samples are the rows that the one model gets in each step."""
        timing = self.record.timing
        if timing.samples_per_step is None and len(self._rows) == 1:
            called = sum(1 for record in self.models.records() if record.calls)
            timing.samples_per_step = float(next(iter(self._rows))) or None if called == 1 else None

    def _window(self, name: str, steps: int, elapsed: float, repeats: int = 0) -> None:
        first = self.boundaries - steps
        self.record.windows.append(Window(name, first, steps, elapsed, complete=True, repeats=repeats))

    # Profile and detail.

    def _begin_profile(self) -> None:
        self.inert.begin()
        active = self.plan.active
        if not self.plan.cut:
            workers = max((record.num_workers for record in self.loaders.records if record.trains), default=0)
            active = min(max(active, workers), MOST_ACTIVE)
            step_s = self.record.timing.step_s or LEAST_PROFILED_SECONDS
            active = max(active, min(round(LEAST_PROFILED_SECONDS / step_s), MOST_SHORT_STEPS))
            every = whole_period(self.record.timing.intervals)
            active = max(active // every, 1) * every
        self._start_profiler("profile", self.plan.wait, self.plan.warmup, active, detail=False)

    def _start_profiler(
        self, name: str, wait: int, warmup: int, active: int, *, detail: bool, repeats: int = 0
    ) -> None:
        self._enter(name)
        self._repeats = repeats
        self.models.annotate = self.sites.annotate = self.sites.count = True
        self.blocking.on()
        self.encoders.on(compiled=bool(compiled_frames()), detail=detail)
        if detail:
            self.indexing.on()
            self.sizes.on()
        long = (self.record.timing.step_s or 0.0) > LONGEST_WITH_STACKS
        stacks = detail and (not long or self._python.few)
        if stacks:
            self.sites.leave_many_reads()
        self._profiler = OurProfiler(
            self._torch,
            self._options.run_dir,
            wait=wait,
            warmup=warmup,
            active=active,
            detail=detail,
            stacks=stacks,
            calls=self._python if long and not detail else None,
        )
        if not detail:
            self._tracebacks.on()
        if self._profiler.lead == 0:
            self._clock.drain()
        self._profiler.start()
        # On a GPU the host runs ahead: the device is asked how long the profiled steps took, as in the timing window.
        self._clock.reset()
        if self._profiler.lead == 0:
            self._clock.mark()
        self._clear_interval()
        self._last = time.perf_counter()

    def _profiled_step(self) -> None:
        profiler = self._profiler
        assert profiler is not None
        causes = self._intervals[-1].causes - self._usual - {"epoch start"}
        active = profiler.taken >= profiler.lead
        if causes and active and self._repeats < MOST_REPEATS and not self.plan.cut:
            # An evaluation in the middle would be taken for the step: begin this window anew.
            detail, length = self.phase == "detail", profiler.length - profiler.lead
            profiler.abandon()
            self._discard(profiler)
            lead = (0, self.plan.detail_warmup) if detail else (self.plan.wait, self.plan.warmup)
            self._start_profiler(self.phase, *lead, length, detail=detail, repeats=self._repeats + 1)
            return
        now = time.perf_counter()
        if profiler.taken + 1 in (profiler.lead, profiler.length):
            self._clock.drain()
            self._clock.mark()
        if not profiler.step():
            self._last = time.perf_counter()
            return
        elapsed = now - profiler.started_at
        elapsed = sum(self._clock.seconds()) or elapsed
        steps = profiler.length - profiler.lead
        self._window(self.phase, steps, elapsed, self._repeats)
        self._store(profiler)
        if self.phase == "profile":
            self._tracebacks.off()
            self.record.tracebacks_s = self._tracebacks.seconds / profiler.length
            self.record.profile_step_s = elapsed / steps
            if self.plan.detail_active:
                self.sites.count = False  # what is read for the record is no reading of the script's
                self.on_profiled()
                self._start_profiler("detail", 0, self.plan.detail_warmup, self.plan.detail_active, detail=True)
                return
        self._complete()

    def _discard(self, profiler: OurProfiler) -> None:
        if profiler.path and os.path.exists(profiler.path):
            os.remove(profiler.path)

    def _store(self, profiler: OurProfiler) -> None:
        if profiler.path is None:
            self.note(f"the {self.phase} window gave no trace")
            return
        relative = os.path.relpath(profiler.path, self._options.run_dir)
        (self.record.details if self.phase == "detail" else self.record.traces).append(relative)
        self._profiler = None

    # The end.

    def nonfinite_parameters(self) -> int:
        """How many of the optimizers' parameters are NaN or infinite now."""
        return nonfinite({id(one): one for one in self.optimizers.parameters()}.values(), self._torch)

    def conclude(self) -> None:
        """The script is over, by itself or by us: whatever was not measured is taken from what there was."""
        self.watches.stop_reading()
        if self.phase == "profile" and self._profiler is not None:
            profiler, self._profiler = self._profiler, None
            profiler.abandon()
            if profiler.path is not None:
                self._store(profiler)
                self.note("the script ended while it was profiled; the trace holds what there was")
        # A detail window that the script's end cut short may have recorded every call since its last step: sorting
        # those takes minutes, for a trace that nobody can use. The process leaves with the profiler still on.
        self.leave_at_once = self.leave_at_once or (self.phase == "detail" and self._profiler is not None)
        timing = self.record.timing
        if timing.step_s is None and self._intervals:
            if self.phase == "timing":
                self._by_device()
                self.loaders.stop_timing()
            else:
                self.loaders.without_timing()
                timing.from_profile = True
            if self.phase == "settle" and len(self._intervals) >= ENOUGH_BESIDE:
                # To watch takes several times as long as the step.
                del self._intervals[MOST_WATCHED.start : MOST_WATCHED.stop]
            self.watches.record_forwards(self.record)
            self._mark_training_loaders()
            summarize(timing, self._intervals, self.loaders.records)
            self._count_samples()
            self._read_memory()
