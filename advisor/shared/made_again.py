"""Samples that each epoch makes anew, or that compute much, where worker processes would not hide it."""

from __future__ import annotations

import ast
import itertools
import linecache
import math
import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from advisor.evidence.loading.deterministic import computes_the_same, hands_on_the_same, transforms_the_same
from advisor.evidence.loading.epochs import comes_round
from advisor.evidence.loading.fetching import (
    call_of_a_library,
    computes,
    longest_statement,
    parsed,
    reads_a_file,
    set_later,
    share,
    stacks,
    without,
)
from advisor.evidence.loading.same_for_all import gives_the_same
from advisor.evidence.loading.spinning import gain_without_fetching_s
from advisor.evidence.python_loops.rounds import scope_at
from advisor.evidence.whatif import Change
from advisor.harness.layout.loading import ALONE, LASTS
from advisor.rule import Gain, at
from advisor.shared.slow_parts import MOST, READ, READ_BASIS, SlowPart, short_name

if TYPE_CHECKING:
    from advisor.evidence import Evidence
    from advisor.evidence.facts import LoaderFacts
    from advisor.harness.layout import FetchPart, Loader

_GENERATOR = re.compile(r"default_rng|RandomState|Generator\(|Random\(")  # which may be nobody else's
_LEAST_DECODED = 0.25  # of a fetch, where all that makes a sample would be kept
_TOKENIZER = re.compile("tokeniz", re.IGNORECASE)
_FEW_WORKERS = 4  # where so many gain nothing, more will not
_MUCH_BETTER = 1.25  # times as fast as with workers: from there on both are told of
_MANY_LINES = 500  # of the user's code for one sample: a loop in Python, whatever it works on
_MUCH_WAIT = 0.25  # of the step: from there on what it waits for is told of, whatever it does
# Of a fetch, what an object is asked, and times that it is, from which on it is told of.
_LEAST_ASKED, _TWICE = 0.2, 1.5
_LOOK_S, _MOST_OF_FETCH = 8e-6, 0.9  # of a call, with those of a library in it, that is looked at; of a fetch
_LINE_S = 0.1e-6  # seconds that a line of Python takes, with a little of NumPy's scalars in it
_LOOP_LEFT = 0.2  # of what is a loop in Python, where nobody knows over what
# Of what is looked up instead, a few microseconds a sample stay, from _LEAST_KEPT_S of CPU a sample on.
_KEPT, _LEAST_KEPT_S = 50.0, 100e-6
_KEPT_BASIS = "what is computed once is looked up in later epochs"
# Samples that are decoded again and again fit into most machines' memory.
FITS = 2 << 30
# torchvision's datasets that hold all pictures as they are in memory, and its transforms that draw nothing at random.
_IN_MEMORY = ("MNIST", "FashionMNIST", "KMNIST", "EMNIST", "QMNIST", "USPS", "CIFAR10", "CIFAR100", "SVHN", "STL10")
_SAME = (
    *("ToTensor", "PILToTensor", "ToImage", "ToDtype", "ToPureTensor", "ConvertImageDtype", "Normalize"),
    *("Resize", "CenterCrop", "Grayscale", "Pad"),
)
# A batch of 32 pictures of MNIST through ToTensor takes 7.0 ms of two cores, of tensors made of it before 0.4.
_LEFT_OF_PICTURES = 0.06
# A square of 23 x 23 around each pixel took 1.78 ms of CPU where its rows and then its columns took 0.32 (160 x 160
# pixels, grey), 5.16 and 1.22 (224 x 224, colours); of 49 x 49 7.9 and 0.5, 22.9 and 2.4; of 13 x 13 0.62 and 0.23,
# 1.73 and 0.81 (torch 2.14, one thread). Of small ones as long, which do not take most of a batch.
_BLUR, _BLURRED = re.compile(r"\b(gaussian_blur|GaussianBlur)\b"), 0.8
_BLURRED_BASIS = "a Gaussian blur of 23 x 23 by rows and by columns: 4 to 6 times less CPU (measured)"
# What calls a transform, or one of several, by chance, and is none of the parts that were timed.
_DRAWS = re.compile(r"Random(Apply|Choice|Order)|Sometimes|OneOf|SomeOf")


def made_again(evidence: Evidence, facts: LoaderFacts, loader: Loader) -> SlowPart | None:
    """What takes most of making a batch and is the same in every epoch, or else simply computes much."""
    found = _tokenizes(evidence, facts, loader) or _decodes(evidence, facts, loader)
    found = found or _asks_objects(evidence, facts, loader)
    found = found or _computes_again(evidence, facts, loader) or _pictures_again(evidence, facts, loader)
    found = found or _formats_again(evidence, facts, loader) or _transforms_again(evidence, facts, loader)
    return found or _blurs(evidence, facts, loader) or _heavy(evidence, facts, loader)


def _tokenizes(evidence: Evidence, facts: LoaderFacts, loader: Loader) -> SlowPart | None:
    """A tokenizer that takes the same text apart in every epoch."""
    line = longest_statement(loader)
    found = [part for part in loader.parts if part.kind == "transform" and _TOKENIZER.search(part.name)]
    if line is None or not found:
        return None
    part = share(loader, found[0])
    if part < MOST or _workers_do(evidence, facts, part):
        return None
    return SlowPart(
        "tokenize",
        f"{short_name(found[0])} takes {part:.0%} of making a batch: each text is tokenized anew whenever it is asked "
        "for.",
        line.site,
        part,
        part,
        short_name(found[0]),
    )


def _decodes(evidence: Evidence, facts: LoaderFacts, loader: Loader) -> SlowPart | None:
    """Files that are decoded in every epoch anew, though all samples together are small, and workers have no cores."""
    line = longest_statement(loader)
    what = reads_a_file(line) if line is not None else ""
    if line is None or not what or not computes(facts):
        return None
    # What transforms take may be on the same line, and be different each time.
    others = sum(share(loader, part) for part in loader.parts if part.kind == "transform")
    own, size = share(loader, line), _all_samples(loader)
    part = min(own, 1.0 - others)
    also = ""
    if own >= _LEAST_DECODED and _draws_nothing(evidence, loader):
        part = min(1.0, sum(share(loader, each) for each in loader.parts if each.kind == "line"))
        also = ", with what is made of it, of which nothing is drawn"
    if not _better_kept(evidence, facts, loader, part):
        return None
    return SlowPart(
        "decode",
        f"{at(line.site)} takes {part:.0%} of making a batch{also}: {what} decodes a file for every sample, in every "
        f"epoch anew, and all {loader.dataset_length:,} samples together are {size / 1e6:,.0f} MB.",
        line.site,
        part,
        part * (1.0 - 1.0 / READ),
        what,
        READ_BASIS,
    )


def _draws_nothing(evidence: Evidence, loader: Loader) -> bool:
    """Whether samples are the same whenever they are asked for, as far as can be seen: none of the first fetches drew
    random numbers, transforms are torchvision's that never do, and nothing else sets what the dataset goes by, neither
    its own class nor another place in the script.
    """
    names = {each.rpartition(".")[2] for each in loader.transforms}
    names |= {short_name(each) for each in loader.parts if each.kind == "transform"}
    if loader.draws is not False or loader.draws_own or not names <= {*_SAME, "Compose"}:
        return False
    longest = max((each for each in loader.parts if each.kind == "line"), key=lambda each: each.seconds, default=None)
    tree = parsed(longest.site.file) if longest is not None else None
    for holder in (each for each in ast.walk(tree) if isinstance(each, ast.ClassDef)) if tree is not None else ():
        if longest is not None and holder.lineno <= longest.site.line <= (holder.end_lineno or 0):
            read = {each.attr for each in ast.walk(holder) if isinstance(each, ast.Attribute)}
            if _GENERATOR.search(ast.unparse(holder)) or read & set_later(holder):
                return False
            paths = {longest.site.file, *(evidence.record.modules if evidence.record is not None else ())}
            return not any(read & _set_outside(path) for path in paths)
    return False


def _set_outside(path: str) -> set[str]:
    """The attributes of other objects than ``self`` that a file gives values."""
    tree = parsed(path)
    return {
        each.attr
        for each in (ast.walk(tree) if tree is not None else ())
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)
        if not (isinstance(each.value, ast.Name) and each.value.id == "self")
    }


def _computes_again(evidence: Evidence, facts: LoaderFacts, loader: Loader) -> SlowPart | None:
    """The same for what the dataset's own functions compute of a sample, always the same by all that they call."""
    lines = [part for part in loader.parts if part.kind == "line"]
    line, size = max(lines, key=lambda part: part.seconds, default=None), _all_samples(loader)
    if line is None or not computes(facts):
        return None
    part = share(loader, line)
    spinning = gain_without_fetching_s(evidence, facts) if part >= MOST else 0.0
    if not _better_kept(evidence, facts, loader, part, spinning):
        return None
    what = computes_the_same("".join(linecache.getlines(line.site.file)), line.site.line, _transform(evidence, loader))
    if not what or part * (facts.fetch_cpu_s or 0.0) < _LEAST_KEPT_S * (loader.batch_size or 1):
        return None
    return SlowPart(
        "compute",
        f"{at(line.site)} takes {part:.0%} of making a batch, and {_of_workers(evidence, facts)}: {what} computes "
        f"the same of a sample in every epoch anew; all {loader.dataset_length:,} together are {size / 1e6:,.0f} MB."
        + (" Threads of its products stay awake, and take the model's cores." if spinning else ""),
        line.site,
        part,
        part * (1.0 - 1.0 / _KEPT),
        what,
        _KEPT_BASIS,
        other_s=spinning,
    )


def _asks_objects(evidence: Evidence, facts: LoaderFacts, loader: Loader) -> SlowPart | None:
    """What an object computes of itself whenever it is asked: several times for a sample, and again in each epoch."""
    asked = [each for each in loader.parts if each.kind == "object" and each.pixels_out]
    asked = [each for each in asked if _of_fetch(loader, each) >= _LEAST_ASKED]
    known = [(part, name, line) for part in asked for name, line in (gives_the_same(part),) if name]
    # Of one that asks another the inner one, which is asked by others, too.
    most = max(known, key=lambda each: each[0].pixels_in / each[0].pixels_out, default=None)
    if most is None:
        return None
    part, name, line = most
    own, times = _of_fetch(loader, part), part.pixels_in / part.pixels_out
    site = replace(part.site, line=line)
    said = f"{name} ({at(site)}) takes {own:.0%} of making a batch: it "
    often = f"is asked {times:.2g} times of each object, and " if times >= _TWICE else ""
    if part.order & LASTS and _better_kept(evidence, facts, loader, own):
        said += f"{often}computes the same in every epoch anew."
        return SlowPart("object", said, site, own, own * (1.0 - 1.0 / _KEPT), name, _KEPT_BASIS)
    if not often:
        return None
    return SlowPart("twice", f"{said}{often}computes the same each time.", site, own, own * (1.0 - 1.0 / times), name)


def _of_fetch(loader: Loader, part: FetchPart) -> float:
    """The share of a fetch that an object's method takes.

    Where it calls nothing of the user's, looking makes it hardly longer, but for a little of each call, and other parts
    maybe much: then by its seconds.
    """
    alone_s = part.seconds - _LOOK_S * part.pixels_in if part.order & ALONE else 0.0
    return max(share(loader, part), min(_MOST_OF_FETCH, alone_s / (loader.fetch_s or part.seconds or 1.0)))


def _transforms_again(evidence: Evidence, facts: LoaderFacts, loader: Loader) -> SlowPart | None:
    """The same for the script's own transforms, as far as they come before the first that may draw something."""
    parts = sorted((each for each in loader.parts if each.kind == "transform"), key=lambda each: each.order)
    leading = list(itertools.takewhile(_is_the_same, parts))
    part = min(1.0, sum(share(loader, each) for each in leading))
    lines = [each for each in loader.parts if each.kind == "line"]
    line = max(lines, key=lambda each: each.seconds, default=None)
    if line is None or not hands_on_the_same("".join(linecache.getlines(line.site.file)), line.site.line):
        return None
    if part < MOST or not computes(facts) or not comes_round(evidence, loader) or _leaves_out(evidence, loader):
        return None
    if _workers_do(evidence, facts, part):
        return None
    what = " and ".join(dict.fromkeys(short_name(each) for each in leading))
    return SlowPart(
        "leading",
        f"{what} {'takes' if len(leading) == 1 else 'take'} {part:.0%} of making a batch, and "
        f"{_of_workers(evidence, facts)}: of a record they give the same whenever it is asked for, in every epoch "
        "anew, before anything is drawn.",
        max(leading, key=lambda each: each.seconds).site,
        part,
        part * (1.0 - 1.0 / _KEPT),
        what,
        _KEPT_BASIS,
    )


def _is_the_same(part: FetchPart) -> bool:
    file = part.site.file
    return "site-packages" not in file and bool(transforms_the_same("".join(linecache.getlines(file)), part.site.line))


def _leaves_out(evidence: Evidence, loader: Loader) -> bool:
    """Whether what holds the transforms may leave one out now and then, by the names in the script's files."""
    script = evidence.record.script if evidence.record is not None else ""
    paths = {script, loader.dataset_file, loader.site.file if loader.site is not None else ""}
    return any(_DRAWS.search("".join(linecache.getlines(path))) for path in paths)


def _pictures_again(evidence: Evidence, facts: LoaderFacts, loader: Loader) -> SlowPart | None:
    """The same for pictures that one of torchvision's datasets holds, and for its transforms without a draw."""
    module, _, cls = (loader.wraps or loader.source).rpartition(".")
    if not module.startswith("torchvision.datasets.") or cls not in _IN_MEMORY or not loader.transforms:
        return None
    names, size = [each.rpartition(".")[2] for each in loader.transforms], _all_samples(loader)
    if not {*names} <= {*_SAME} or not computes(facts):
        return None
    part = min(1.0, sum(share(loader, each) for each in loader.parts if each.kind == "transform"))
    if not _better_kept(evidence, facts, loader, part):
        return None
    what = ", ".join(names)
    return SlowPart(
        "pictures",
        f"{what} take{'s' if len(names) == 1 else ''} {part:.0%} of making a batch, and "
        f"{_of_workers(evidence, facts)}: of a picture of {cls} they give the same in every epoch; all "
        f"{loader.dataset_length:,} together are {size / 1e6:,.0f} MB.",
        loader.site,
        part,
        part if loader.wraps else 1.0 - _LEFT_OF_PICTURES,  # what holds them does its own
        what,
        _KEPT_BASIS,
    )


def _formats_again(evidence: Evidence, facts: LoaderFacts, loader: Loader) -> SlowPart | None:
    """Rows of a dataset of Hugging Face's, taken out of Arrow's memory and made into tensors, nothing else."""
    own = any(part.kind in ("line", "inside", "transform") for part in loader.parts)
    if loader.dataset != "datasets.arrow_dataset.Dataset" or own or not loader.parts or not computes(facts):
        return None
    if not stacks(loader):
        return None  # rows of different lengths are no columns
    part = 1.0 - sum(share(loader, each) for each in loader.parts)
    if not _better_kept(evidence, facts, loader, part):
        return None
    return SlowPart(
        "formatted",
        f"{part:.0%} of making a batch takes its rows out of the dataset and makes tensors of them, and "
        f"{_of_workers(evidence, facts)}: they are the same in every epoch; all {loader.dataset_length:,} together are "
        f"{_all_samples(loader) / 1e6:,.0f} MB.",
        loader.site,
        part,
        part * (1.0 - 1.0 / _KEPT),
        "datasets.Dataset",
        _KEPT_BASIS,
    )


def _blurs(evidence: Evidence, facts: LoaderFacts, loader: Loader) -> SlowPart | None:
    """A transform that is torchvision's Gaussian blur, or the script's own with one in it."""
    longest = _longest_transform(loader)
    if longest is None or share(loader, longest) < MOST or not computes(facts):
        return None
    function = scope_at("".join(linecache.getlines(longest.site.file)), longest.site.line)
    if not _BLUR.search(longest.name) and not (function is not None and _BLUR.search(ast.unparse(function))):
        return None
    what, part = short_name(longest), share(loader, longest)
    if _workers_do(evidence, facts, part * _BLURRED):
        return None
    line = longest_statement(loader)
    called = loader.site if line is None else line.site
    return SlowPart(
        "blur",
        f"{what} takes {part:.0%} of making a batch: for each pixel torchvision's Gaussian blur multiplies the whole "
        "square around it.",
        called if "site-packages" in longest.site.file else longest.site,
        part,
        part * _BLURRED,
        what,
        _BLURRED_BASIS,
    )


def _longest_transform(loader: Loader) -> FetchPart | None:
    transforms = (part for part in loader.parts if part.kind == "transform")
    return max(transforms, key=lambda part: part.seconds, default=None)


def _heavy(evidence: Evidence, facts: LoaderFacts, loader: Loader) -> SlowPart | None:
    """What computes most of the time, in workers that do not keep up, or with cores that leave no place for any."""
    line = longest_statement(loader)
    if line is None or not computes(facts) or _workers_do(evidence, facts):
        return None
    longest, less, often = _longest_transform(loader), 0.5, ""
    if longest is not None and share(loader, longest) >= MOST:
        what, part, site = short_name(longest), share(loader, longest), line.site
    elif (loader.item_lines or 0.0) >= _MANY_LINES and share(loader, line) >= MOST:
        what, part, site = "", share(loader, line), line.site
        python_s = (loader.item_lines or 0.0) * (loader.batch_size or 1) * _LINE_S
        often = f"{loader.item_lines:,.0f} lines of Python for each sample, "
        less = max(less, (1.0 - _LOOP_LEFT) * min(1.0, python_s / (loader.fetch_s or math.inf)))
    elif share(loader, line) >= MOST and not reads_a_file(line):
        what, part, site = call_of_a_library(line), share(loader, line), line.site
        if not what and not _waits_long(facts, loader, part):
            return None
    else:
        return None
    return SlowPart(
        "heavy",
        f"{what or at(site)} takes {part:.0%} of making a batch, {often}and {_of_workers(evidence, facts)}.",
        site,
        part,
        part * less,
        what,
        f"{less:.0%} of what it takes, as a cheaper version of it may save",
    )


def _waits_long(facts: LoaderFacts, loader: Loader, part: float) -> bool:
    """Whether the step waits long for the share `part` of its batches, in one process, and each sample takes long in
    it: none is only looked up.
    """
    each_s = part * (facts.fetch_s or 0.0) / (loader.batch_size or 1)
    return not facts.workers and facts.wait_share >= _MUCH_WAIT and each_s >= _LEAST_KEPT_S


def _transform(evidence: Evidence, loader: Loader) -> tuple[str, int] | None:
    """The one transform that the dataset holds, if the script's author wrote it: its file's text, its class's line."""
    transforms = [part for part in loader.parts if part.kind == "transform"]
    if len(transforms) != 1 or evidence.record is None:
        return None
    if _leaves_out(evidence, loader):
        return None
    site, folder = transforms[0].site, os.path.dirname(evidence.record.script)
    if "site-packages" in site.file or not site.file.startswith(os.path.join(folder, "")):
        return None
    return "".join(linecache.getlines(site.file)), site.line


def _better_kept(evidence: Evidence, facts: LoaderFacts, loader: Loader, part: float, other_s: float = 0.0) -> bool:
    """Whether samples are better kept from one epoch to the next than made anew, of which that is the share `part`.

    Beside what making them takes, a step would be shorter by `other_s`.
    """
    if part < MOST or not comes_round(evidence, loader) or not 0 < _all_samples(loader) <= FITS:
        return False
    return not _workers_do(evidence, facts, part, other_s)


def _all_samples(loader: Loader) -> float:
    """Bytes of all samples as they are handed out, by those of a batch; 0 where their number is unknown."""
    return sum(each.bytes for each in loader.tensors) / (loader.batch_size or 1) * (loader.dataset_length or 0)


def _workers_do(evidence: Evidence, facts: LoaderFacts, saved: float = 0.0, other_s: float = 0.0) -> bool:
    """Whether worker processes would make a difference, where there are none: on few cores they may not.

    Not where to save the share `saved` of each fetch, and `other_s` of the step beside, is much better.
    """
    best = _with_workers(evidence, facts)
    return best > 0.0 and Gain.of(evidence.what_if(without(facts, saved, other_s))).likely < _MUCH_BETTER * best


def _with_workers(evidence: Evidence, facts: LoaderFacts) -> float:
    """The gain of a few worker processes, where there are none and that is worth it; else 0."""
    cores = int(evidence.record.environment.usable_cpus) if evidence.record is not None else 1
    counts = range(1, max(1, min(cores, _FEW_WORKERS)) + 1) if not facts.workers else ()
    gains = [Gain.of(evidence.what_if(Change(workers=count, loader=facts.index))) for count in counts]
    return max((gain.likely for gain in gains if gain.worth_it), default=0.0)


def _of_workers(evidence: Evidence, facts: LoaderFacts) -> str:
    workers = facts.workers or 0
    if not workers:
        shared = _with_workers(evidence, facts) > 0.0
        return "workers would do as much beside the step" if shared else "workers would take the step's cores"
    return f"the loader's {'worker does' if workers == 1 else f'{workers} workers do'} not keep up"
