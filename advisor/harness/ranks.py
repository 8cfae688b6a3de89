"""The processes of a distributed job: rank 0's is measured, in the place of the one that has started it.

``torchrun``, ``accelerate launch`` and ``torch.multiprocessing.spawn`` train in processes of their own. A launcher
tells them their ranks by variables, all others join a group (``init_process_group``): from there on the one of rank 0
is observed as a script would be. The others run as they are, and wait for it in their collectives while it is looked
at. A process that was forked is left alone: it has what observes the one that it was forked from.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType, TracebackType
from typing import Any

from .explicit_step import find_advisor, offer_step
from .imports import PostImport
from .layout import LAUNCHERS, MEASURED_RANK, Options, RunRecord
from .patches import Patch
from .seeds import seed_generators
from .stop import Stop, end_process
from .undo.journal import Journal

# Set in ranks that are not measured, for the processes that they start.
_UNMEASURED = "ADVISOR_UNMEASURED"


def stay_measured(options: Options, imports: PostImport) -> None:
    """In the script's own process: once it is a rank itself, none that it starts is measured in its place."""
    if "RANK" in os.environ and options.script not in LAUNCHERS:
        _claim(options.run_dir)
    _when_joined(imports, lambda module: _claim(options.run_dir))


def _when_joined(imports: PostImport, told: Callable[[ModuleType], object]) -> None:
    """Call `told` with torch's module of distributed jobs once this process has joined the others of one."""

    def loaded(module: ModuleType) -> None:
        def make(original: Any) -> Any:
            def init_process_group(*args: Any, **kwargs: Any) -> Any:
                result = original(*args, **kwargs)
                told(module)
                return result

            return init_process_group

        Patch(module, "init_process_group", make).on()

    imports.when_imported("torch.distributed.distributed_c10d", loaded)


class Ranks:
    """One in each Python process that the script starts. `timed` times batches wherever they are made."""

    def __init__(self, options: Options, imports: PostImport, journal: Journal | None) -> None:
        self._options = options
        self._imports = imports
        self._journal = journal
        self._pid = os.getpid()
        self._observer: Any = None
        self._left: Any = None  # the status with which the script ends this process
        self.joined = _UNMEASURED in os.environ  # whether what others than rank 0 measure is not wanted here
        self.timed: list[Patch] = []

    def install(self) -> None:
        """Be told when this process joins others."""
        find_advisor()
        told = _told_rank(self._options)
        if told is not None and not self.joined:
            rank, world_size = told
            self._seed()
            self._imports.when_imported("torch", lambda torch: self._join(rank, world_size))
        _when_joined(self._imports, self._may_join)
        self._imports.when_imported("torch.multiprocessing.spawn", self._spawned)
        self._imports.when_imported("multiprocessing.process", self._started)

    def _seed(self) -> None:
        """As the script's own process is seeded: what the ranks draw without a seed is the same in each run."""
        seed = self._options.seed
        if seed is not None:
            seed_generators(seed, self._imports)
            self._imports.when_imported("torch", lambda torch: torch.manual_seed(seed))

    def _may_join(self, module: ModuleType) -> None:
        if not self.joined and os.getpid() == self._pid:
            self._join(module.get_rank(), module.get_world_size())

    def _spawned(self, module: ModuleType) -> None:
        """A function that was spawned fails inside torch's own, which ends the process without a word to it."""

        def make(original: Any) -> Any:
            def wrap(function: Any, *args: Any) -> Any:
                def run(*given: Any) -> None:
                    self._seed()
                    with self._failing():
                        function(*given)

                return original(run, *args)

            return wrap

        Patch(module, "_wrap", make).on()

    def _started(self, module: ModuleType) -> None:
        """What ``multiprocessing`` runs fails in it, and ends the process with no hook called."""

        def make(original: Any) -> Any:
            def run(process: Any) -> None:
                with self._failing():
                    original(process)

            return run

        Patch(module.BaseProcess, "run", make).on()

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Tell of what fails in there, as long as this process is the one that is measured."""
        try:
            yield
        except Exception as error:
            self._failed(error)
            raise

    def _join(self, rank: int, world_size: int) -> None:
        self.joined = True
        for patch in self.timed:
            patch.off()
        os.environ[_UNMEASURED] = "1"
        if _first_here(rank) and _claim(self._options.run_dir):
            del os.environ[_UNMEASURED]
            self._observe(rank, world_size)

    def _observe(self, rank: int, world_size: int) -> None:
        from .how_ended import watch  # with all that observes, which no other rank and no worker needs
        from .observer import Observer

        options = self._options
        main = getattr(sys.modules.get("__main__"), "__file__", None)  # of a launcher's command the script in it
        record = RunRecord(
            script=os.path.abspath(main) if main else options.script,
            module=options.module and not main,
            argv=list(options.argv),
            cwd=os.getcwd(),
            started=time.time(),
            rank=rank,
            world_size=world_size,
        )
        # It is seeded by now, and what the script has seeded since stays so.
        observer = self._observer = Observer(replace(options, seed=None), record, self._imports, self._journal)
        observer.on_stop = watch
        offer_step(self._imports, observer)
        atexit.register(self._ends)
        Patch(sys, "excepthook", self._uncaught).on()
        Patch(sys, "exit", self._leaves).on()

    def _uncaught(self, original: Any) -> Any:
        def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            if not isinstance(error, Stop):
                self._failed(error)
                original(kind, error, trace)

        return hook

    def _leaves(self, original: Any) -> Any:
        def leave(status: Any = None) -> None:
            self._left = status
            original(status)

        return leave

    def _failed(self, error: BaseException) -> None:
        from .how_ended import failed

        if self._observer is not None and os.getpid() == self._pid:
            failed(error, self._observer, say=False)  # whoever catches it does

    def _ends(self) -> None:
        if os.getpid() != self._pid:
            return
        from .how_ended import exited

        observer = self._observer
        exited(SystemExit(self._left), observer)
        if observer.windows is not None and observer.windows.leave_at_once:
            end_process(0)


def _told_rank(options: Options) -> tuple[int, int] | None:
    """This process's rank and their number, where a launcher says so, or starts the script in one process."""
    if sys.argv[0] == "-c":
        return None  # a process of multiprocessing's that a rank has started, with its variables
    rank, world_size = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
    if rank.isdigit() and world_size.isdigit():
        return int(rank), int(world_size)
    alone = options.module and options.script in LAUNCHERS and sys.argv[0] in options.argv
    return (0, 1) if alone else None


def _first_here(rank: int) -> bool:
    """Whether it is the first rank of its machine: of several machines' each `advisor` measures its own."""
    local = os.environ.get("LOCAL_RANK", "")
    return int(local) == 0 if local.isdigit() else rank == 0


def _claim(run_dir: str) -> bool:
    """Whether this process is the one that is measured: the first that asks."""
    with contextlib.suppress(FileExistsError):
        with open(os.path.join(run_dir, MEASURED_RANK), "x", encoding="utf-8") as file:
            file.write(f"{os.getpid()}\n")
        return True
    return False
