"""Data loaders: their settings, how long the step waits for them, how long a batch takes to make.

Two clocks: the wait is taken around ``__next__`` in the script's own process; the time to make a batch around
the dataset fetcher, which with workers runs in the worker. Workers append theirs to a file in the run folder,
because a queue or shared memory of ours would have to travel through the loader's own start-up.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import statistics
import struct
import time
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from ..layout import Loader, Site, TensorInfo
from ..machine.openblas import OpenBlas
from ..patches import Patch
from ..places import owner, source_of, user_site
from .datasets import describe_source
from .fetching import Looks, look_off, look_on, read_looks
from .transforms import transforms_of

_LISTED, _COUNTED = 16, 1024  # tensors of a batch that are described, and that are counted
FETCH_FILE = "fetches.bin"
# Process, when it ended (CLOCK_MONOTONIC), seconds, CPU seconds, CPU seconds until now of OpenBLAS's threads.
_RECORD = struct.Struct("<qdddd")
# Single fetches of workers that are written down, of all workers of a loader: bursts that are rarer than that are not
# known from one window anyway.
_MOST_FETCHES = 1024
# Whose samplers go on where they were; but for one whose weights the script may change.
_LIBRARIES = ("torch", "accelerate", "transformers", "lightning", "pytorch_lightning", "builtins")
_WEIGHTED = ("WeightedRandomSampler",)


def tensor_info(tensor: Any) -> TensorInfo:
    """Shape, type and place of one tensor."""
    return TensorInfo(
        shape=[] if tensor.is_nested else [int(size) for size in tensor.shape],  # of a nested one it has none
        dtype=str(tensor.dtype).removeprefix("torch."),
        device=str(tensor.device.type),
        pinned=bool(tensor.device.type == "cpu" and tensor.is_pinned()),
        bytes=int(tensor.numel() * tensor.element_size()),
    )


def tensors_in(value: Any, torch: Any, limit: int = _LISTED) -> Iterator[Any]:
    """The tensors of a batch, in order, through mappings, sequences and plain objects; at most `limit`."""
    stack, found, visited = [value], 0, 0
    while stack and found < limit and visited < 1000:
        item = stack.pop()
        visited += 1
        if isinstance(item, torch.Tensor):
            found += 1
            yield item
        elif isinstance(item, dict) or (hasattr(item, "keys") and hasattr(item, "__getitem__")):
            stack.extend(reversed([item[key] for key in itertools.islice(item.keys(), 64)]))
        elif isinstance(item, (list, tuple)):
            stack.extend(reversed(item[:64]))
        elif hasattr(item, "__dict__") and type(item).__module__ != "builtins":
            stack.extend(reversed(list(vars(item).values())[:64]))


def own_sampler(loader: Any) -> str:
    """The class of a sampler that may go by what changes: of weights, or that somebody else than torch has written.

    By way of those that hold another one.
    """
    todo = [getattr(loader, "batch_sampler", None), getattr(loader, "sampler", None)]
    for _ in range(8):
        each = todo.pop(0) if todo else None
        name = type(each).__name__
        if each is not None and (type(each).__module__.partition(".")[0] not in _LIBRARIES or name in _WEIGHTED):
            return name
        todo.append(getattr(each, "sampler", None))
    return ""


def append_fetch(path: str, seconds: float, cpu_seconds: float, openblas_s: float) -> None:
    """One line of a worker's: a single appending write is whole even when several workers write at once."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, _RECORD.pack(os.getpid(), time.monotonic(), seconds, cpu_seconds, openblas_s))
    finally:
        os.close(descriptor)


def fetch_patches(
    run_dir: str, main_pid: int, openblas: OpenBlas, fetched: Any = None, current: Any = None
) -> list[Patch]:
    """Time the making of each batch, in this process or, in a worker, into the file.

    In this process ``fetched(seconds, cpu, openblas)`` is told, the last two in CPU seconds; those of OpenBLAS's
    threads are not among the others. ``current()`` is the index of the loader that is asked for a batch.
    """
    import torch
    from torch.utils.data._utils import fetch as module

    path, looks, threads = os.path.join(run_dir, FETCH_FILE), Looks(torch, run_dir), torch.get_num_threads

    def make(original: Any) -> Any:
        def fetch(self: Any, possibly_batched_index: Any) -> Any:
            began, began_cpu, began_thread = time.perf_counter(), time.process_time(), time.thread_time()
            began_beside = openblas.cpu_s()
            try:
                loader = current() if os.getpid() == main_pid else -1
                return looks.fetch(original, self, possibly_batched_index, loader)
            finally:
                seconds, cpu = time.perf_counter() - began, time.process_time() - began_cpu
                now_beside = openblas.cpu_s()
                others = now_beside - began_beside
                if os.getpid() == main_pid:
                    computed = _computed(seconds, cpu - others, time.thread_time() - began_thread, threads())
                    fetched(seconds, computed, others)
                elif not looks.late:
                    append_fetch(path, seconds, max(0.0, cpu - others), now_beside)

        return fetch

    return [Patch(module._MapDatasetFetcher, "fetch", make), Patch(module._IterableDatasetFetcher, "fetch", make)]


def _computed(seconds: float, process_s: float, thread_s: float, threads: int) -> float:
    """CPU seconds that went into a fetch of so many seconds, by those of the process and of the fetching thread.

    An idle thread of OpenMP's spins on for milliseconds after its last work, in which the fetching thread sleeps or
    computes alone: that is none of the fetch. What the `threads` compute together keeps all of them busy, and more than
    they could spin is computed by threads of the dataset's own.
    """
    together = process_s >= 1.7 * thread_s and thread_s >= 0.8 * seconds
    others = process_s - thread_s > 1.05 * (threads - 1) * seconds
    return process_s if together or others else min(process_s, thread_s)


class Loaders:
    """All loaders of the run. ``listener`` hears of batches and epochs: see :class:`..windows.Windows`."""

    def __init__(self, torch: ModuleType, run_dir: str, listener: Any, openblas: OpenBlas) -> None:
        self._torch: Any = torch
        self._run_dir = run_dir
        self._listener = listener
        self.records: list[Loader] = []
        self._objects: list[weakref.ref[Any]] = []
        self._datasets: list[Callable[[], Any]] = []  # what gives each loader's, while it is there
        self._iterators: dict[int, Callable[[], Any]] = {}  # and its last iterator
        self._made_at: dict[int, tuple[weakref.ref[Any], Site | None, str]] = {}
        self._timing_began = 0.0
        self._pids: dict[int, int] = {}  # worker's pid → loader
        self._worker_pids: set[int] = set()
        self._fetches: dict[int, list[tuple[float, float]]] = {}  # in this process, by loader
        self._openblas: dict[int, list[float]] = {}  # likewise
        self._starts: dict[int, list[float]] = {}
        self._current = -1
        self.observe = True  # look into batches; off in the timing window
        self.wait = 0.0  # seconds blocked since it was last set to 0
        self.delivered: dict[int, int] = {}  # loader → batches since it was last cleared
        self.samples = 0
        self.fetching = -1  # the loader that is asked for a batch at this moment
        self.timing = False
        self._batch_samples: dict[int, int] = {}
        data: Any = torch.utils.data.dataloader
        self.patches = [
            Patch(data.DataLoader, "__init__", self._made),
            Patch(data.DataLoader, "__iter__", self._iterated),
            Patch(data._BaseDataLoaderIter, "__next__", self._next),
            *fetch_patches(run_dir, os.getpid(), openblas, self._fetched, lambda: self._current),
        ]

    def install(self, look: bool = True) -> None:
        for patch in self.patches:
            patch.on()
        if look:
            look_on(self._run_dir)

    def start_timing(self) -> None:
        """Forget what was measured so far: the figures of the record come from the timing window."""
        look_off(self._run_dir)
        self._fetches.clear()
        self._openblas.clear()
        self.timing, self.observe = True, False
        self._timing_began = time.monotonic()

    def stop_timing(self) -> None:
        self.timing, self.observe = False, True
        self._read_fetches()

    def worker_pids(self) -> set[int]:
        return self._worker_pids

    def index(self, loader: Any) -> int:
        """The index of its record. One that is made where another was, which is gone, goes on with that one's."""
        known = [reference() for reference in self._objects]
        for index, other in enumerate(known):
            if other is loader:
                return index
        record = Loader()
        try:
            self._describe(loader, record)
        except Exception as error:  # a dataset whose length fails, say: what is not known is not recorded
            self._listener.note(f"a loader could not be looked at: {type(error).__name__}")
        for index, other in enumerate(known):
            if other is None and self._takes_over(loader, record, index):
                self._objects[index] = weakref.ref(loader)
                self._datasets[index] = _reference(loader.dataset)
                self.records[index].remade += 1
                return index
        self._objects.append(weakref.ref(loader))
        self._datasets.append(_reference(loader.dataset))
        self.records.append(record)
        return len(self._objects) - 1

    def _takes_over(self, loader: Any, record: Loader, index: int) -> bool:
        """Whether `loader`, of that `record`, is made as the one of `index` was, which is gone: anew for each epoch."""
        before = self.records[index]
        iterator, dataset = self._iterators.get(index, _nothing)(), self._datasets[index]()
        if before.site is None or before.site is not record.site or iterator is not None:
            return False
        # Of two that one line makes, for training and for evaluation, the data differ.
        if dataset is not None and dataset is not loader.dataset:
            return False
        same = ("cls", "batch_size", "num_workers", "shuffle", "drop_last", "dataset", "dataset_length")
        return all(getattr(record, name) == getattr(before, name) for name in same)

    def _made(self, original: Any) -> Any:
        def init(loader: Any, *args: Any, **kwargs: Any) -> None:
            original(loader, *args, **kwargs)
            site, made_by = self._made_anew(loader) or (user_site(), owner(loader))
            self._made_at[id(loader)] = (weakref.ref(loader), site, made_by)

        return init

    def _made_anew(self, loader: Any) -> tuple[Site | None, str] | None:
        """Where the script made the loader that Accelerate's ``prepare`` makes again: with its settings, over its data.

        None where it is no such one.
        """
        if owner(loader, 3).partition(".")[0] not in ("accelerate", "transformers"):
            return None
        for reference, site, made_by in list(self._made_at.values()):
            other = reference()
            if other is not None and other is not loader and _same_batches(loader, other):
                return site, made_by
        return None

    def _iterated(self, original: Any) -> Any:
        def iterate(loader: Any) -> Any:
            if getattr(loader, "timeout", 0):
                # A fetch that is looked at takes longer, and the script would end. Workers do not know of the timeout,
                # nor whose they are, so that none looks any more.
                look_off(self._run_dir)
            began = time.perf_counter()
            iterator = original(loader)
            elapsed = time.perf_counter() - began
            if os.getpid() != self._listener.pid:
                return iterator
            index = self.index(loader)
            self._iterators[index] = _reference(iterator)
            record = self.records[index]
            record.epochs += 1
            if record.epochs == 1:
                record.iterated = user_site()
            self._starts.setdefault(index, []).append(elapsed)
            if self.timing:
                self.wait += elapsed
            with contextlib.suppress(AttributeError):
                iterator._advisor_loader = index
            for worker in getattr(iterator, "_workers", ()):
                self._pids[worker.pid] = index
                self._worker_pids.add(worker.pid)
            self._listener.epoch(index)
            return iterator

        return iterate

    def _next(self, original: Any) -> Any:
        def fetch_next(iterator: Any) -> Any:
            index = getattr(iterator, "_advisor_loader", -1)
            if index < 0:
                return original(iterator)
            self._listener.before_batch(index)
            self._current = index
            self.fetching = index
            began = time.perf_counter()
            try:
                batch = original(iterator)
            finally:
                self.fetching = -1
            elapsed = time.perf_counter() - began
            self.wait += elapsed
            self.delivered[index] = self.delivered.get(index, 0) + 1
            record = self.records[index]
            record.fetched += 1
            starts = self._starts.get(index)
            if starts and starts[-1] >= 0 and record.num_workers:
                # The first batch of an epoch waits for the workers to start and to make it.
                record.start_s = starts[-1] + elapsed
                starts[-1] = -1.0
            if self.observe:
                try:
                    self._look(index, batch)
                    self._listener.delivered(index, batch)
                except Exception as error:  # of a batch that is no container of the usual kind
                    self._listener.note(f"a batch could not be looked at: {type(error).__name__}")
            self.samples += self._batch_samples.get(index) or record.batch_size or 0
            self._listener.batch(index)
            return batch

        return fetch_next

    def _fetched(self, seconds: float, cpu: float, openblas: float) -> None:
        self._openblas.setdefault(self._current, []).append(openblas)
        self._fetches.setdefault(self._current, []).append((seconds, cpu))

    def _look(self, index: int, batch: Any) -> None:
        record = self.records[index]
        infos = [tensor_info(tensor) for tensor in tensors_in(batch, self._torch)]
        shapes = [info.shape for info in infos]
        # A smaller last batch is no change of shape worth the name; other dimensions are.
        if record.tensors and [shape[1:] for shape in shapes] != [info.shape[1:] for info in record.tensors]:
            self._listener.shapes_vary()
        record.tensors = infos
        if len(infos) == _LISTED and not record.batch_tensors:
            record.batch_tensors = sum(1 for _ in tensors_in(batch, self._torch, limit=_COUNTED))
        first = next((shape[0] for shape in shapes if shape), None)
        self._batch_samples[index] = record.batch_size or first or 0

    def _describe(self, loader: Any, record: Loader) -> None:
        made = self._made_at.get(id(loader))
        if made is not None and made[0]() is loader:
            record.site, record.owner = made[1:]
        dataset = loader.dataset
        record.cls = type(loader).__name__
        record.batch_size = loader.batch_size
        if record.batch_size is None:
            size = getattr(loader.batch_sampler, "batch_size", None)
            record.batch_size = size if isinstance(size, int) else None
        record.num_workers = loader.num_workers
        record.pin_memory = bool(loader.pin_memory)
        record.persistent_workers = bool(loader.persistent_workers)
        record.prefetch_factor = loader.prefetch_factor
        record.drop_last = bool(loader.drop_last)
        context = getattr(loader, "multiprocessing_context", None)
        if record.num_workers:
            import multiprocessing

            record.context = context.get_start_method() if context else multiprocessing.get_start_method()
        record.iterable = isinstance(dataset, self._torch.utils.data.IterableDataset)
        if not record.iterable:
            record.shuffle = type(loader.sampler).__name__ != "SequentialSampler"
            record.sampler = own_sampler(loader)
        record.dataset = f"{type(dataset).__module__}.{type(dataset).__qualname__}"
        record.dataset_file, record.dataset_line = source_of(type(dataset))
        for field, measure in (("dataset_length", dataset), ("batches", loader)):
            with contextlib.suppress(TypeError, NotImplementedError, ValueError):
                setattr(record, field, len(measure))
        inner = dataset
        while hasattr(inner, "dataset") and inner.dataset is not inner:
            inner = inner.dataset
        record.in_memory = isinstance(inner, self._torch.utils.data.TensorDataset)
        describe_source(self._torch, record, dataset, getattr(loader, "sampler", None))
        transform = getattr(inner, "transform", None) or getattr(inner, "transforms", None)
        if transform is not None:
            steps = getattr(transform, "transforms", None)
            chain = steps if isinstance(steps, (list, tuple)) else [transform]
            record.transforms = [type(step).__name__ for step in chain]
        else:
            record.transforms = [type(step).__name__ for step in transforms_of(inner)]
        collate = loader.collate_fn
        name = getattr(collate, "__qualname__", type(collate).__name__)
        record.collate = f"{getattr(collate, '__module__', '')}.{name}"

    def _read_fetches(self) -> None:
        """Figures of the timing window into the records, and what was seen of fetches before it."""
        read_looks(self._run_dir, self.records, lambda pid: self._pids.get(pid, self._only_with_workers()))
        by_loader = {index: list(pairs) for index, pairs in self._fetches.items()}
        by_worker: dict[int, dict[int, list[float]]] = {}
        beside: dict[int, dict[int, list[float]]] = {}
        path = os.path.join(self._run_dir, FETCH_FILE)
        if os.path.exists(path):
            with open(path, "rb") as file:
                data = file.read()
            data = data[: len(data) // _RECORD.size * _RECORD.size]
            for pid, ended, seconds, cpu, openblas in _RECORD.iter_unpack(data):
                index = self._pids.get(pid, self._only_with_workers())
                if index is not None and ended >= self._timing_began:
                    by_loader.setdefault(index, []).append((seconds, cpu))
                    by_worker.setdefault(index, {}).setdefault(pid, []).append(seconds)
                    beside.setdefault(index, {}).setdefault(pid, []).append(openblas)
        for index, pairs in by_loader.items():
            if not 0 <= index < len(self.records) or not pairs:
                continue
            record = self.records[index]
            record.fetch_s = statistics.fmean(seconds for seconds, _ in pairs)
            record.fetch_cpu_s = statistics.fmean(cpu for _, cpu in pairs)
            if len(pairs) > 1 and record.fetch_s > 0:
                record.fetch_spread = statistics.stdev(seconds for seconds, _ in pairs) / record.fetch_s
            spans = [each for each in beside.get(index, {}).values() if len(each) > 1]
            if own := self._openblas.get(index):
                record.openblas_s = statistics.fmean(own)
            elif spans:
                batches = sum(len(each) - 1 for each in spans)
                record.openblas_s = sum(each[-1] - each[0] for each in spans) / batches
            # Epochs whose workers are started anew have others each: those that made most stand for all.
            longest = sorted(by_worker.get(index, {}).values(), key=len, reverse=True)[: record.num_workers]
            if not record.persistent_workers:  # the first one is part of starting the worker
                longest = [each[1:] for each in longest if len(each) > 1]
            most = _MOST_FETCHES // max(1, len(longest))
            record.fetches = [[round(seconds, 6) for seconds in each[:most]] for each in longest]

    def _only_with_workers(self) -> int | None:
        """Under forkserver a worker's pid may be unknown; then there must be only one loader with workers."""
        candidates = [index for index, record in enumerate(self.records) if record.num_workers]
        return candidates[0] if len(candidates) == 1 else None

    def without_timing(self) -> None:
        """The script ended before the timing window: take the figures from all there was."""
        self._timing_began = 0.0
        self._read_fetches()


def _same_batches(loader: Any, other: Any) -> bool:
    """Whether both take their samples from one dataset in one order: the very same sampler of batches, or a stream."""
    if loader.dataset is not other.dataset:
        return False
    if loader.batch_sampler is None:
        return other.batch_sampler is None and loader.batch_size == other.batch_size
    # With several processes it is wrapped in one that deals the batches out.
    dealt = getattr(loader.batch_sampler, "batch_sampler", loader.batch_sampler)
    return other.batch_sampler is loader.batch_sampler or other.batch_sampler is dealt


def _nothing() -> None:
    return None


def _reference(value: Any) -> Callable[[], Any]:
    """A weak reference, or what stands for one that is dead, to what can have none (a list)."""
    try:
        return weakref.ref(value)
    except TypeError:
        return _nothing
