"""Data loaders, in ``run.json``: their settings, their times, and what a batch consists of."""

from __future__ import annotations

from dataclasses import dataclass, field

from .sites import Site

LONG_LIST = 500  # elements: going through so many takes microseconds, a dictionary some hundredths of one


@dataclass
class TensorInfo:
    """One tensor of a batch, as the loader delivered it."""

    shape: list[int] = field(default_factory=list)
    dtype: str = ""
    device: str = ""
    pinned: bool = False
    bytes: int = 0


LASTS, ALONE = 1, 2


@dataclass
class FetchPart:
    """A part of making a batch. ``kind``: line (of the outermost function of the user's that makes a sample) |
    transform (that the dataset holds; its line is part of a "line") | inside (a line of the function that takes nearly
    all of the longest "line", which calls it, directly or not) | pandas, npz, convolve (what a line of the user's, in
    any function, asks of pandas, a member that it has an archive read which was open before, or signals that it has
    NumPy convolve; part of a "line") | lasting (a property, or a method without arguments, of an object that there is
    one of for all samples; part of a "line") | object (the same of any object, all calls together) | collate. ``site``
    is where the code is written.
    """

    kind: str = ""
    name: str = ""
    site: Site = field(default_factory=Site)
    seconds: float = 0.0  # per batch, in the fetches that were looked at; what it calls included
    # Of a transform among those of a sample; of an "object" LASTS where none of those that are asked was made in the
    # fetch, and ALONE where what it is asked calls no other function of the user's.
    order: int = 0
    # The most that a transform (or line) is given, and gives; 0 where that is no image. Of "convolve" the numbers of
    # the longer signal, and of the shorter. Of "object" calls in a fetch, and objects that are asked.
    pixels_in: int = 0
    pixels_out: int = 0


@dataclass
class Loader:
    """One ``DataLoader`` that was iterated. Its index in the list is its identity."""

    site: Site | None = None  # where the user made it; None inside a library
    owner: str = ""  # module of the code that made it, e.g. "transformers.trainer"
    cls: str = "DataLoader"
    batch_size: int | None = None
    num_workers: int = 0
    pin_memory: bool = False
    persistent_workers: bool = False
    prefetch_factor: int | None = None
    drop_last: bool = False
    shuffle: bool | None = None  # by the sampler's class
    # The class of one that may go by what changes, of the sampler or of what that holds: by weights, or not of torch's.
    sampler: str = ""
    context: str = ""  # multiprocessing start method; "" without workers
    iterable: bool = False
    dataset: str = ""  # qualified class name
    dataset_file: str = ""
    dataset_line: int = 0
    dataset_length: int | None = None
    batches: int | None = None  # len(loader)
    transforms: list[str] = field(default_factory=list)  # class names along dataset.transform(.transforms)
    collate: str = ""  # qualified name of collate_fn
    batch_tensors: int = 0  # of a batch, where there are more than `tensors` describes
    tensors: list[TensorInfo] = field(default_factory=list)  # of its last observed batch
    # What none of the steps that were watched reads of a batch, and its bytes; and those of the whole batch.
    unread: dict[str, int] = field(default_factory=dict)
    unread_of: int = 0
    in_memory: bool = False  # TensorDataset or similar: fetching is indexing
    # The dataset that samples come from, below any Subset and any ConcatDataset of one class: its qualified class name,
    # where that was written, and which of its attributes are tensors or arrays in memory with a row for each sample
    # ("tensors" of a TensorDataset); none of several that are put together.
    source: str = ""
    source_site: Site | None = None
    wraps: str = ""  # the class of the dataset that it holds, and takes its samples from
    rows: list[str] = field(default_factory=list)
    # Lists of words or numbers that the dataset holds, or its module, "self.words" or "WORDS", with how many there are;
    # those of LONG_LIST at least.
    lists: dict[str, int] = field(default_factory=dict)
    chosen_by_tensor: bool = False  # the indices of a Subset, or of the sampler, are one
    trains: bool = False  # feeds the measured steps
    fetched: int = 0  # batches delivered in the run
    epochs: int = 0  # times iterated
    iterated: Site | None = None  # where the user's code asked for an iterator at first; None inside a library
    remade: int = 0  # loaders that were made at its place later, when it was gone: in each epoch, say
    # From the timing window; None where the loader was not used there.
    wait_s: float | None = None  # per step: blocked in __next__
    # Seconds to make one batch: measured in __next__ without workers, inside the worker with them.
    fetch_s: float | None = None
    fetch_cpu_s: float | None = None  # CPU seconds of that (all threads of that process but OpenBLAS's)
    # CPU seconds per batch of the threads that NumPy's OpenBLAS started: while one is made, in workers also in between.
    openblas_s: float | None = None
    fetch_spread: float | None = None  # standard deviation over mean, batch by batch
    fetches: list[list[float]] = field(default_factory=list)  # by worker, in order: seconds of its first batches
    start_s: float | None = None  # making the iterator (starting workers) and waiting for the first batch
    # From a few fetches before the timing window (:mod:`..loading.fetching`), in whatever process makes the batches.
    looks: int = 0  # fetches that were timed by part
    look_s: float | None = None  # seconds of one of them
    # Of a fetch on one thread of torch's, as in a worker, where the process that makes the batches has several: seconds
    # and CPU seconds (of that process).
    single_s: float | None = None
    single_cpu_s: float | None = None
    draws: bool | None = None  # any of the first fetches drew random numbers: a sample is another one in each epoch
    draws_own: bool = False  # with a generator that the dataset, or a module of its own, holds: workers get copies
    parts: list[FetchPart] = field(default_factory=list)  # the longest first, those inside of a line after all others
    # What is true of any of the DataFrames that samples are taken out of: "upcast" (all columns are numbers, of several
    # types, of which a row makes one), "date NAME" (that column has dates), "labels" (the index is not the number of
    # the row).
    frames: list[str] = field(default_factory=list)
    # Bytes that all members of an archive (.npz) that was open before take in memory, for each row of the one that a
    # sample is taken out of.
    archive_row_bytes: float | None = None
    listed: int = 0  # numbers of a sample that lists of Python's hold
    # What a fetch reads in the process that makes it: different files, how often one is opened, bytes in all.
    files_read: float | None = None
    file_opens: float | None = None
    file_bytes: float | None = None
    item_lines: float | None = None  # per sample: lines of the user's code that run to make it …
    item_calls: float | None = None  # … and calls of torch
    collate_lines: float | None = None  # the same in the collate function
    collate_calls: float | None = None
