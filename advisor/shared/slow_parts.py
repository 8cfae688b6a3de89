"""Parts of making a sample that are slow by what they do: too early, anew for each sample, piece by piece."""

from __future__ import annotations

import linecache
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from advisor.evidence.loading.fetching import (
    beside,
    early,
    is_users,
    longest_statement,
    looped,
    made_at,
    member_of,
    mentions,
    read_again,
    share,
)
from advisor.evidence.loading.looked_up import looked_up
from advisor.evidence.loading.missed_caches import missed_cache
from advisor.evidence.loading.same_for_all import asked_for_each, made_for_each
from advisor.rule import at

if TYPE_CHECKING:
    from advisor.evidence import Evidence
    from advisor.evidence.facts import LoaderFacts
    from advisor.harness.layout import FetchPart, Loader, Site

_MUCH = 0.1  # share of the fetch from which on a part is work of its own
MOST = 0.5  # share of the fetch from which on a part is what it is made of
_WORTH_MOVING = 0.1  # share of the fetch that transforms on pixels thrown away later must take
# Per sample: from so many calls of torch, or lines that pick pieces of an array, out of so many lines on, a loop in
# Python works on small pieces.
_CALLS, _LINES = 50, 100
_SMALL = 100e-6  # seconds per call or line: above it they compute more than they cost to be called
# Features of a signal, window by window and band by band, took 2.37 ms of CPU per sample, all windows at once 0.09 ms;
# a batch of sequences filled in number by number 29 ms, from whole sequences 1.4 ms (one thread, 2 cores): 25 and 20
# times less, of which this is the lesser.
_LOOP = 20.0
_LOOP_BASIS = "features of signals in one operator instead of a loop: 25 times less CPU (measured)"
# What reads a whole file of text, number by number.
_PARSER = re.compile(
    r"\b(json\.load|json\.loads(?=\(.*\bread)|yaml\.\w*load\w*|np\.loadtxt|loadtxt|genfromtxt|csv\.(reader|DictReader)"
    r"|etree\.parse|read_(csv|json|excel|table|fwf|xml))\("
)
# 5,000 rows of six numbers took 15 ms (np.loadtxt), 24 ms (json) or 27 ms (csv) of CPU, np.load of the same 0.13 ms.
_PARSED = 20.0
_PARSED_BASIS = "text of 5,000 rows against the same numbers in a binary file: 100 to 200 times less CPU (measured)"
# A row of a member of an .npz, 1,500 pictures of 48 x 48, compressed: 12 ms of CPU; of the array in memory 0.3 us.
READ = 1000.0
READ_BASIS = "a row of an .npz's member against one of the array in memory: 12 ms and 0.3 us (measured)"
# Of what it takes, for an attribute is read instead; and of a fetch at most: looking makes loops in Python longer than
# the rest, and of one that was told to take 98 % of it 93.5 % went (measured).
_MADE_ONCE, _MOST_MADE = 0.98, 0.94
# Of a line that looks something up in a list. 250 words of one of 30,000 took 53 ms by `in` and index(), all of them
# equally often, and 0.02 by a dictionary; to tokenize them, on the same line, 0.5. Of a fetch of which such a line was
# told to take 80 %, at least 90 % went.
_LOOKED_UP, _LOOKED_UP_BASIS = 0.95, "prior: a list of thousands is most of a line that looks something up in it"
_SPARSE_ROW = re.compile(r"((?:\b\w+\.)*\b\w+)\[\w+\]\.(?:toarray|todense)\(")
# 1024 rows of 108 numbers, a seventh of them not zero, took 24 ms one by one and 0.5 ms at once; of 5,000, a hundredth
# of them not zero, 26 and 1.5 ms (SciPy's CSR, one thread): 50 and 17 times less, of which this is the lesser.
_SPARSE_ROWS = 17.0
_SPARSE_BASIS = "rows of a sparse matrix, a batch at once: 17 to 50 times less CPU (measured)"
# NumPy's convolution over that by Fourier transforms (SciPy's), by the kernel's length: of signals of 8,000 to 160,000
# numbers of 4 bytes 0.7 to 1.3 at 512, 2.2 to 3.1 at 1,024, 4.1 to 5 at 2,000, 5 to 6.4 at 4,000, 14 to 27 at 8,000,
# of 8 bytes up to twice as much (one thread, AVX-512): 1 for each so many, of which this is the lesser. Of 1,280, in
# half of a fetch for which a step waited 56 % of its time, 1.07 was left of 1.19.
_TAPS, _LEAST_TIMES, _MOST_TIMES = 600, 3.0, 20.0
# A batch opens its files so many times each, and reads so many times as many bytes as it has: they are read whole, for
# one of their samples. A part that is read by itself is not, and a picture has more bytes than its file.
_AGAIN, _WHOLE = 2.0, 4.0


@dataclass(frozen=True)
class SlowPart:
    """A part of making a batch that takes most of it, and what is known of it.

    ``kind`` says by what it is slow, ``said`` tells of it in a sentence; ``share`` of the fetch is what it takes and
    ``saved`` what of that can go, by ``basis``, which is empty where the run itself shows it. ``what`` is its name, and
    ``bytes`` the size of all that would be kept in memory, where that is known; ``other_s`` is by how much the rest of
    a step would be shorter without it.
    """

    kind: str
    said: str
    site: Site | None
    share: float
    saved: float
    what: str
    basis: str = ""
    bytes: float | None = None
    other_s: float = 0.0


def slow_part(evidence: Evidence, facts: LoaderFacts, loader: Loader) -> SlowPart | None:
    """The first that is found of those that say by themselves how they could be faster."""
    found = _too_early(evidence, loader) or _lines_too_early(loader) or _reads_again(loader) or _parses(loader)
    found = found or _never_kept(loader) or _looks_up(loader)
    found = found or _makes_again(loader) or _asks_again(loader) or _rows_of_sparse(loader) or _convolves(loader)
    return found or _files_again(loader) or _loop(facts, loader)


def short_name(part: FetchPart) -> str:
    """The name of a transform without its module."""
    return part.name.rpartition(".")[2] or part.name


def _too_early(evidence: Evidence, loader: Loader) -> SlowPart | None:
    """Transforms on pixels that a later one throws away; what they cost is in proportion to the pixels."""
    found = early(loader)
    saved = sum(share(loader, each.part) * (1.0 - each.kept) for each in found)
    if not found or saved < _WORTH_MOVING:
        return None
    worst = max(found, key=lambda each: each.part.seconds * (1.0 - each.kept))
    name, smaller = short_name(worst.part), short_name(worst.smaller)
    script = evidence.record.script if evidence.record is not None else ""
    files = [file for file in (script, loader.dataset_file, loader.site.file if loader.site else "") if is_users(file)]
    near = [] if any(mentions(file, name) for file in files) else beside(files)
    site = made_at([*files, *near], worst.part, loader.transforms)
    line = longest_statement(loader)
    part = share(loader, worst.part)
    return SlowPart(
        "early",
        f"{name} takes {part:.0%} of making a batch, on {1 / worst.kept:.0f} times as many pixels as {smaller} leaves "
        "after it.",
        site or (line.site if line is not None else None),
        part,
        saved,
        f"{name} after {smaller}",
    )


def _lines_too_early(loader: Loader) -> SlowPart | None:
    """The same for a dataset that changes the picture in lines of its own."""
    found = early(loader, "line")
    saved = sum(share(loader, each.part) * (1.0 - each.kept) for each in found)
    if not found or saved < _WORTH_MOVING:
        return None
    worst = max(found, key=lambda each: each.part.seconds * (1.0 - each.kept))
    smaller = max(found, key=lambda each: each.smaller.site.line).smaller
    lines = sorted({each.part.site.line for each in found})
    part = sum(share(loader, each.part) for each in found)
    listed = f"{os.path.basename(worst.part.site.file)}:{', '.join(map(str, lines))}"
    one = len(lines) == 1
    return SlowPart(
        "early",
        f"{listed} take{'s' if one else ''} {part:.0%} of making a batch, on {1 / worst.kept:.0f} times as many pixels "
        f"as {at(smaller.site)} leaves after it.",
        worst.part.site,
        part,
        saved,
        f"what line{'' if one else 's'} {', '.join(map(str, lines))} do{'es' if one else ''} below line "
        f"{smaller.site.line}",
    )


def _parses(loader: Loader) -> SlowPart | None:
    """A file of text that is read anew for each sample."""
    line = longest_statement(loader)
    if line is None or share(loader, line) < MOST:
        return None
    said = _PARSER.search(linecache.getline(line.site.file, line.site.line))
    if said is None:
        return None
    part = share(loader, line)
    return SlowPart(
        "parse",
        f"{at(line.site)} takes {part:.0%} of making a batch: {said[1]} reads a file for every sample.",
        line.site,
        part,
        max(part, 1.0 - _other_work(loader, line)) * (1.0 - 1.0 / _PARSED),
        said[1],
        _PARSED_BASIS,
    )


def _never_kept(loader: Loader) -> SlowPart | None:
    """What a cache of the user's own is meant to keep, and never finds again."""
    missed = missed_cache(loader)
    if missed is None:
        return None
    return SlowPart(
        "missed",
        f"{at(missed.site)} takes {missed.share:.0%} of making a batch: {missed.cache} is asked for {missed.asked} and "
        f"filled under {missed.filled}, so that it never has what it is asked for.",
        missed.site,
        missed.share,
        min(_MOST_MADE, missed.share * _MADE_ONCE),
        missed.cache,
    )


def _looks_up(loader: Loader) -> SlowPart | None:
    """Words whose place in a long list is looked for from its beginning, for each of them."""
    line = longest_statement(loader)
    known = looked_up(line.site.file, line.site.line, loader.lists) if line is not None and loader.lists else ""
    part = share(loader, line) if line is not None else 0.0
    if line is None or not known or part < MOST:
        return None
    return SlowPart(
        "lookup",
        f"{at(line.site)} takes {part:.0%} of making a batch: it goes through {known}, a list of "
        f"{loader.lists[known]:,}, from its beginning for each of what it looks up.",
        line.site,
        part,
        min(_MOST_MADE, part * _LOOKED_UP),
        known,
        _LOOKED_UP_BASIS,
    )


def _files_again(loader: Loader) -> SlowPart | None:
    """Files of many samples that are read again within one batch, though a cache may be meant to keep them."""
    line, files, opens = longest_statement(loader), loader.files_read or 0.0, loader.file_opens or 0.0
    size = sum(each.bytes for each in loader.tensors)
    if line is None or not files or not size or opens < _AGAIN * files or (loader.file_bytes or 0.0) < _WHOLE * size:
        return None
    part = share(loader, line)
    if part < MOST:
        return None
    return SlowPart(
        "files",
        f"{at(line.site)} takes {part:.0%} of making a batch: {files:.0f} files are opened {opens:.0f} times for it, "
        f"and {(loader.file_bytes or 0.0) / 1e6:,.3g} MB read for a batch of {size / 1e6:,.2g} MB.",
        line.site,
        part,
        part * (1.0 - files / opens),
        f"{files:.0f} files",
    )


def _makes_again(loader: Loader) -> SlowPart | None:
    """What all samples share, and each of them makes: filters, a window, a table."""
    line, what, part = made_for_each(loader)
    if line is None or part < MOST:
        return None
    return SlowPart(
        "same",
        f"{at(line.site)} takes {part:.0%} of making a batch: {what}() makes the same for every sample.",
        line.site,
        part,
        min(_MOST_MADE, part * _MADE_ONCE),
        what,
    )


def _asks_again(loader: Loader) -> SlowPart | None:
    """What an object that all samples share computes of itself, whenever a sample asks it."""
    method, what, part = asked_for_each(loader)
    if method is None or part < MOST:
        return None
    return SlowPart(
        "asked",
        f"{what} ({at(method.site)}) takes {part:.0%} of making a batch: it computes the same for every sample.",
        method.site,
        part,
        min(_MOST_MADE, part * _MADE_ONCE),
        what,
    )


def _rows_of_sparse(loader: Loader) -> SlowPart | None:
    """A row of one of SciPy's sparse matrices, taken out for each sample."""
    line = longest_statement(loader)
    said = _SPARSE_ROW.search(linecache.getline(line.site.file, line.site.line)) if line is not None else None
    if line is None or said is None or share(loader, line) < MOST:
        return None
    part = share(loader, line)
    return SlowPart(
        "sparse",
        f"{at(line.site)} takes {part:.0%} of making a batch: rows of the sparse matrix {said[1]} are taken out one by "
        "one.",
        line.site,
        part,
        part * (1.0 - 1.0 / _SPARSE_ROWS),
        said[1],
        _SPARSE_BASIS,
    )


def _convolves(loader: Loader) -> SlowPart | None:
    """Signals that NumPy convolves with long kernels, number by number."""
    long = [part for part in loader.parts if part.kind == "convolve" and part.pixels_out >= _LEAST_TIMES * _TAPS]
    part = min(1.0, sum(share(loader, each) for each in long))
    if not long or part < _MUCH:
        return None
    most = max(long, key=lambda each: each.seconds)
    saved = sum(share(loader, each) * (1.0 - _TAPS / min(each.pixels_out, _MOST_TIMES * _TAPS)) for each in long)
    return SlowPart(
        "convolve",
        f"{at(most.site)} takes {part:.0%} of making a batch: np.{most.name} goes through {most.pixels_in:,} numbers "
        f"for each of {most.pixels_out:,}.",
        most.site,
        part,
        min(part, saved),
        f"np.{most.name}",
    )


def _reads_again(loader: Loader) -> SlowPart | None:
    """What is the same for all samples, and read from its file for each of them."""
    members = [part for part in loader.parts if part.kind == "npz"]
    part = min(1.0, sum(share(loader, each) for each in members))
    if part >= MOST:
        what = member_of(members[0].site, members[0].name)
        also = f" (with {len(members) - 1} more)" if len(members) > 1 else ""
        return SlowPart(
            "again",
            f"{at(members[0].site)}{also} takes {part:.0%} of making a batch: {what} is read from its file anew for "
            "every sample, whole, for a part of it.",
            members[0].site,
            part,
            part * (1.0 - 1.0 / READ),
            what,
            READ_BASIS,
            (loader.archive_row_bytes or 0.0) * (loader.dataset_length or 0) or None,
        )
    for kind in ("line", "inside"):
        read = [(part, *read_again(part)) for part in loader.parts if part.kind == kind]
        lines = [each for each in read if each[1]]
        part = min(1.0, sum(share(loader, each) for each, _, _ in lines))
        if part >= MOST:
            break
    else:
        return None
    line, what, one_row = max(lines, key=lambda each: each[0].seconds)
    said = "whole, for a part of it" if one_row else "and is the same each time"
    return SlowPart(
        "again",
        f"{at(line.site)} takes {part:.0%} of making a batch: {what} is read from its file anew for every sample, "
        f"{said}.",
        line.site,
        part,
        part * (1.0 - 1.0 / READ),
        what,
        READ_BASIS,
    )


def _other_work(loader: Loader, parse: FetchPart) -> float:
    """Share of the fetch in other parts that each take much of it.

    What short lines seem to take is mostly the looking at them: two data sets whose line took 75 and 79 % made batches
    in a tenth of the time and less once it was gone.
    """
    calling = next((part.site for part in loader.parts if part.kind == "line"), None)  # the longest comes first
    own = [parse.site, calling] if parse.kind == "inside" else [parse.site]
    others = [part for part in loader.parts if part.kind in ("line", "collate") and part.site not in own]
    return sum(share(loader, part) for part in others if share(loader, part) >= _MUCH)


def _loop(facts: LoaderFacts, loader: Loader) -> SlowPart | None:
    """A loop in Python over small pieces of a tensor or an array."""
    line, lines, calls = longest_statement(loader), loader.item_lines or 0.0, loader.item_calls or 0.0
    if line is None or lines < _LINES:
        return None
    part, often, times = share(loader, line), f"{calls:.0f} calls of torch", calls
    if calls < _CALLS:
        if (loop := looped(loader)) is None:
            return None
        (line, part), times = loop, lines
        often = f"{lines:.0f} lines of Python, one piece after another,"
    if part < MOST or (facts.fetch_cpu_s or 0.0) * part / (times * (loader.batch_size or 1)) > _SMALL:
        return None
    what = _named(loader, line)
    often += f" for each sample ({what})." if what else " for each sample."
    return SlowPart(
        "loop",
        f"{at(line.site)} takes {part:.0%} of making a batch: {often}",
        line.site,
        part,
        part * (1.0 - 1.0 / _LOOP),
        what,
        _LOOP_BASIS,
    )


def _named(loader: Loader, line: FetchPart) -> str:
    """The transform that takes nearly all of what `line` does."""
    parts = [part for part in loader.parts if part.kind == "transform" and part.seconds >= 0.8 * line.seconds]
    return short_name(max(parts, key=lambda part: part.seconds)) if parts else ""
