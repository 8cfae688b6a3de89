"""One transform, or one line of the dataset, takes most of the time in which a batch is made."""

from __future__ import annotations

import linecache
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from advisor.edit import Drafts
from advisor.edit.archives import read_archives
from advisor.edit.convolving import through_transforms
from advisor.edit.kept_in_init import made_in_init
from advisor.evidence.deterministic import computes_the_same
from advisor.evidence.epochs import comes_round, epochs_of
from advisor.evidence.fetching import (
    beside,
    call_of_a_library,
    computes,
    early,
    is_users,
    longest_statement,
    looped,
    made_at,
    member_of,
    mentions,
    read_again,
    reads_a_file,
    share,
    without,
)
from advisor.evidence.random_draws import longest_draw
from advisor.evidence.same_for_all import made_for_each
from advisor.evidence.whatif import Change
from advisor.fixes import edited
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, at

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence
    from advisor.evidence.facts import LoaderFacts
    from advisor.harness.layout import FetchPart, Loader, Site

_LEAST_WAIT = 0.02  # a step that waits less than 2 % of its time for data gains nothing measurable
_LEAST_GAIN = 1.1  # where nobody knows how much cheaper it can be
_MUCH = 0.1  # share of the fetch from which on a part is work of its own
_MOST = 0.5  # share of the fetch from which on a part is what it is made of
_WORTH_MOVING = 0.1  # share of the fetch that transforms on pixels thrown away later must take
# Per sample: from so many calls of torch, or lines that pick pieces of an array, out of so many lines on, a loop in
# Python works on small pieces.
_CALLS, _LINES = 50, 100
_TOKENIZER = re.compile("tokeniz", re.IGNORECASE)
_FEW_WORKERS = 4  # where so many gain nothing, more will not
_MUCH_BETTER = 1.25  # times as fast as with workers: from there on both are told of
_MANY_LINES = 500  # of the user's code for one sample: a loop in Python, whatever it works on
_LINE_S = 0.1e-6  # seconds that a line of Python takes, with a little of NumPy's scalars in it
_LOOP_LEFT = 0.2  # of what is a loop in Python, where nobody knows over what
_SMALL = 100e-6  # seconds per call or line: above it they compute more than they cost to be called
# Features of a signal, window by window and band by band, took 2.37 ms of CPU per sample, all windows at once 0.09 ms;
# a batch of sequences filled in number by number 29 ms, from whole sequences 1.4 ms (one thread, 2 cores): 25 and 20
# times less, of which this is the lesser.
_LOOP = 20.0
# What reads a whole file of text, number by number.
_PARSER = re.compile(
    r"\b(json\.load|json\.loads(?=\(.*\bread)|yaml\.\w*load\w*|np\.loadtxt|loadtxt|genfromtxt|csv\.(reader|DictReader)"
    r"|etree\.parse|read_(csv|json|excel|table|fwf|xml))\("
)
# 5,000 rows of six numbers took 15 ms (np.loadtxt), 24 ms (json) or 27 ms (csv) of CPU, np.load of the same 0.13 ms.
_PARSED = 20.0
_PARSED_BASIS = "text of 5,000 rows against the same numbers in a binary file: 100 to 200 times less CPU (measured)"
# A row of a member of an .npz, 1,500 pictures of 48 x 48, compressed: 12 ms of CPU; of the array in memory 0.3 us.
_READ = 1000.0
_READ_BASIS = "a row of an .npz's member against one of the array in memory: 12 ms and 0.3 us (measured)"
# Of what it takes, for an attribute is read instead; and of a fetch at most: looking makes loops in Python longer than
# the rest, and of one that was told to take 98 % of it 93.5 % went (measured).
_MADE_ONCE, _MOST_MADE = 0.98, 0.94
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
# Of what is looked up instead, a few microseconds a sample stay, from _LEAST_KEPT_S of CPU a sample on.
_KEPT, _LEAST_KEPT_S = 50.0, 100e-6
_KEPT_BASIS = "what is computed once is looked up in later epochs"
# Samples that are decoded again and again fit into most machines' memory.
_FITS = 2 << 30
# torchvision's datasets that hold all pictures as they are in memory, and its transforms that draw nothing at random.
_IN_MEMORY = ("MNIST", "FashionMNIST", "KMNIST", "EMNIST", "QMNIST", "USPS", "CIFAR10", "CIFAR100", "SVHN", "STL10")
_SAME = (
    *("ToTensor", "PILToTensor", "ToImage", "ToDtype", "ToPureTensor", "ConvertImageDtype", "Normalize"),
    *("Resize", "CenterCrop", "Grayscale", "Pad"),
)
# A batch of 32 pictures of MNIST through ToTensor takes 7.0 ms of two cores, of tensors made of it before 0.4.
_LEFT_OF_PICTURES = 0.06
# What calls a transform, or one of several, by chance, and is none of the parts that were timed.
_DRAWS = re.compile(r"Random(Apply|Choice|Order)|Sometimes|OneOf|SomeOf")
_LOOP_BASIS = "features of signals in one operator instead of a loop: 25 times less CPU (measured)"


class SlowTransform(Rule):
    """One transform or line of the dataset takes most of the time in which a batch is made, and the step waits for it.

    Ten things make it slow. A file of text (JSON, CSV) is read anew for each sample. What is the same for all samples
    is read each time: a member of an ``.npz``, say, is decompressed whenever it is asked for; or it is made each time:
    a bank of filters. Rows of a sparse matrix of SciPy's are taken out one by one. The files of few samples, which
    would all fit into memory, are decoded in each epoch, and no core is left for workers. Pictures that one of
    torchvision's datasets has in memory go through the same transforms in each epoch. A transform works on a large
    picture of which a later ``Resize`` or crop leaves a small part: a change of colours costs as much per pixel, so it
    is as many times cheaper after it. A loop in Python works on pieces of a tensor, and each piece pays for several
    calls. Or a transform simply computes much, for one sample after another, where a cheaper version, one on tensors,
    or one for whole batches on the device would do. A few fetches before the measurement are timed by line and by
    transform, in whatever process makes them.

    When not: the loader's workers hide it (then nothing is reported); a smaller picture gives the transform another
    meaning (a blur or noise of a fixed size, the corners that a rotation leaves black: these are not advised to be
    moved); the loader has no workers yet, and they would do.

    Source: torchvision, "Transforming images, videos, boxes and more", "Performance considerations" (tensors, uint8,
    resize early); PyTorch performance tuning guide, "Enable asynchronous data loading and augmentation".
    """

    id = "slow-transform"
    title = "Make the transform cheaper that the batches wait for"
    safety = Safety.BEHAVIOUR
    after = ("loader-workers",)

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        for facts in evidence.loaders:
            loader = facts.record
            if loader is None or not loader.looks or not facts.fetch_s or facts.wait_share < _LEAST_WAIT:
                continue
            found = _too_early(evidence, loader) or _lines_too_early(loader) or _reads_again(loader) or _parses(loader)
            found = found or _makes_again(loader) or _rows_of_sparse(loader) or _convolves(loader)
            found = found or _loop(facts, loader)
            found = found or _tokenizes(evidence, facts, loader)
            found = found or _decodes(evidence, facts, loader) or _computes_again(evidence, facts, loader)
            found = found or _pictures_again(evidence, facts, loader)
            found = found or _heavy(evidence, facts, loader)
            if found is None or _draws(loader, found.site):
                continue
            saved = found.saved
            if found.kind in _IN_LATER_EPOCHS:
                saved *= 1.0 - _first_of_all(evidence, loader)
            estimate = evidence.what_if(without(facts, saved))
            gain = Gain.prior(estimate, found.basis) if found.basis else Gain.of(estimate)
            if not gain.worth_it or (found.kind == "heavy" and gain.likely < _LEAST_GAIN):
                continue
            yield Finding(
                rule=self.id,
                title=_TITLES.get(found.kind, self.title),
                # The same samples, read less often.
                safety=_SAFETY.get(found.kind, Safety.EXACT if found.kind in _TITLES else None),
                summary=f"{found.said} The step waits {facts.wait_s * 1e3:.1f} ms ({facts.wait_share:.0%}) for the "
                "next batch.",
                gain=gain,
                evidence={
                    "share_of_fetch": found.share,
                    "fetch_s": facts.fetch_s,
                    "fetch_cpu_s": facts.fetch_cpu_s,
                    "data_wait_s": facts.wait_s,
                    "torch_calls_per_sample": loader.item_calls,
                    "lines_per_sample": loader.item_lines,
                    "workers": facts.workers,
                    "step_s": evidence.step_s,
                },
                site=found.site,
                parameters={"kind": found.kind, "what": found.what, "bytes": found.bytes},
            )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Advice:
        what = str(finding.parameters.get("what", "")) or "what is called there"
        text, why = _ADVICE.get(str(finding.parameters.get("kind", "")), _ADVICE["heavy"])
        text, size = text.format(at=at(finding.site), what=what), finding.parameters.get("bytes")
        if finding.site is not None and finding.parameters.get("kind") == "same":
            drafts = Drafts(sources)
            why = made_in_init(drafts[finding.site.file], finding.site.line)
            told = f"Make what {what} gives at {at(finding.site)} once, in __init__, and use it for each sample."
            return Advice(text, why) if why else edited(drafts, told)
        if finding.site is not None and finding.parameters.get("kind") == "convolve":
            drafts = Drafts(sources)
            reason = through_transforms(drafts[finding.site.file], finding.site.line)
            told = f"Convolve through Fourier transforms at {at(finding.site)}, with scipy.signal.fftconvolve."
            return Advice(text, reason or why) if reason is not None else edited(drafts, told)
        if finding.site is None or not isinstance(size, float) or not 0 < size <= _FITS:
            return Advice(text, why)
        drafts = Drafts(sources)
        why = read_archives(drafts, drafts[finding.site.file], finding.site.line)
        told = f"Read the archives into memory once, when the dataset is made: about {size / 1e6:,.0f} MB."
        return Advice(text, why) if why else edited(drafts, told)

    EXAMPLES = (
        Example(
            before="augment = Compose([ColorJitter(0.3), Resize((64, 64))])  # <-\n",
            after="",
            parameters={"kind": "early", "what": "ColorJitter after Resize"},
            advice="Move ColorJitter after Resize",
        ),
        Example(
            before="class Mails:\n    def __getitem__(self, i):\n        return self.tokenizer(self.texts[i])  # <-\n",
            after="",
            parameters={"kind": "tokenize", "what": "BertTokenizer"},
            advice="Tokenize all texts once",
        ),
        Example(
            before="class Tiles:\n    def __getitem__(self, i):\n        x = self.npz['x'][i]  # <- self.npz\n",
            after="",
            parameters={"kind": "again", "what": "self.npz['x']"},
            advice="keep the arrays",
        ),
        Example(
            before="""
import numpy as np

class Tiles:
    def __init__(self, paths):
        self.shards = [np.load(path) for path in paths]

    def __getitem__(self, i):
        shard, row = self.locate(i)
        return shard["x"][row]  # <-
""",
            after="""
import numpy as np

class Tiles:
    def __init__(self, paths):
        self.shards = [dict(np.load(path)) for path in paths]

    def __getitem__(self, i):
        shard, row = self.locate(i)
        return shard["x"][row]
""",
            parameters={"kind": "again", "what": "shard['x']", "bytes": 4e7},
        ),
        Example(
            before="""
import torch

class Sounds:
    def __init__(self, waves):
        self.waves = waves

    def __getitem__(self, i):
        bank = filters(64)  # <-
        return bank @ torch.stft(self.waves[i], 512).abs()
""",
            after="""
import torch

class Sounds:
    def __init__(self, waves):
        self.waves = waves
        self.bank = filters(64)

    def __getitem__(self, i):
        return self.bank @ torch.stft(self.waves[i], 512).abs()
""",
            parameters={"kind": "same", "what": "filters"},
        ),
        Example(
            before="class Signals(Dataset):\n    def __getitem__(self, i):\n        return bands(self.x[i])  # <- f\n",
            after="",
            parameters={"kind": "loop", "what": "bands"},
            advice="unfold",
        ),
        Example(
            before="class Sites:\n    def __getitem__(self, i):\n        rows = json.load(self.open(i))  # <-\n",
            after="",
            parameters={"kind": "parse", "what": "json.load"},
            advice="Read what train.py:3 reads once",
        ),
        Example(
            before="class Rooms:\n    def __getitem__(self, i):\n        x = np.convolve(self.x[i], self.ir)  # <-\n",
            after="",
            parameters={"kind": "convolve", "what": "np.convolve"},
            advice="scipy.signal.fftconvolve",
        ),
        Example(
            before="""
import numpy as np
from scipy.signal import resample_poly

class Rooms:
    def __getitem__(self, i):
        x = resample_poly(self.x[i], 2, 3)
        return np.convolve(x, self.ir, mode="full")[: len(x)]  # <-
""",
            after="""
import numpy as np
from scipy.signal import resample_poly, fftconvolve

class Rooms:
    def __getitem__(self, i):
        x = resample_poly(self.x[i], 2, 3)
        return fftconvolve(x, self.ir, mode="full")[: len(x)]
""",
            parameters={"kind": "convolve", "what": "np.convolve"},
        ),
    )
    LEAVES_ALONE = (
        *(
            Example(
                "import numpy as np\n\nclass Tiles:\n    def __init__(self, path):\n"
                f"        {made}\n\n    def __getitem__(self, i):\n        return self.read['x'][i]  # <- self.read\n",
                "",
                {"kind": "again", "what": "self.read['x']", "bytes": size},
            )
            for made, size in (
                ("self.read = np.load(path)", 4e9),
                ("self.read = np.load(path)", None),
                ("self.read = np.load(path); self.names = self.read.files", 4e7),
                ("self.read = open_all(np.load(path))", 4e7),
                ("self.read, self.other = np.load(path), np.load(path)", 4e7),
            )
        ),
        *(
            Example(
                f"import numpy as np\n{imported}\n\ndef heard(x, ir):\n    return {call}  # <-\n",
                "",
                {"kind": "convolve", "what": "np.convolve"},
            )
            for imported, call in (
                ("import torch", "np.convolve(x, ir)"),
                ("import scipy", "np.convolve(x, ir, 'same')"),  # of which of the two it has the length
                ("import scipy", "np.convolve(np.convolve(x, ir), ir)"),
                ("import scipy", "np.correlate(x, ir)"),
            )
        ),
        Example("loader = DataLoader(MNIST(root, transform=ToTensor()))  # <-\n", "", {"kind": "pictures"}),
        Example("x = Image.open(self.paths[i])  # <-\n", "", {"kind": "decode", "what": "Image.open"}),
        Example("x = self.rows[i]  # <-\n", "", {"kind": "parse", "what": "json.load"}),
        Example("augment = Compose([ColorJitter(0.3), Resize((64, 64))])  # <-\n", "", {"kind": "early"}),
        Example("x = self.transform(x)  # <-\n", "", {"kind": "heavy", "what": "Blur"}),
    )


@dataclass(frozen=True)
class _Found:
    kind: str
    said: str
    site: Site | None
    share: float  # of the fetch
    saved: float  # of the fetch
    what: str
    basis: str = ""
    bytes: float | None = None  # of all archives, where it is known


_TITLES = {
    "same": "Make once what all samples share",
    "tokenize": "Tokenize the texts once",
    "sparse": "Take the rows of a batch out of the sparse matrix at once",
    "again": "Read once what is the same for every sample",
    "parse": "Read the files of text once",
    "decode": "Decode each sample's file once, not in every epoch",
    "compute": "Compute once what is the same in every epoch",
    "pictures": "Transform the pictures once, not in every epoch",
    "convolve": "Convolve with long kernels through Fourier transforms",
}
_SAFETY = {"convolve": Safety.NUMERIC}
# What is done once for each sample has its gain in the epochs that follow.
_IN_LATER_EPOCHS = ("tokenize", "parse", "decode", "compute", "pictures")
_ADVICE = {
    "same": (
        "Make what {what} gives at {at} once, where the dataset is made (self.name = {what}(...) in __init__), and use "
        "it for each sample.",
        "whether it stays the same only its author can tell",
    ),
    "tokenize": (
        "Tokenize all texts once, before the training, not at {at} for each sample anew: tokenizer(texts, ...) takes "
        "the whole list (datasets.map(..., batched=True) does so, too, and keeps it on the disk); the dataset then "
        "gives the ids of its text.",
        "whether the texts are the same in every epoch only their author can tell",
    ),
    "sparse": (
        "Take all rows of a batch at once, not one by one at {at}: give the dataset __getitems__(self, indices), which "
        "the loader calls for a whole batch where there is one, with x = {what}[indices].toarray() in it, and which "
        "returns a list of samples.",
        "whether that is one matrix, and what else makes a sample, only its author can tell",
    ),
    "again": (
        "Read {what} once, not at {at}: in __init__, where it fits into memory (each worker then has it, too). Of an "
        ".npz each member is decompressed whenever it is asked for: keep the arrays, "
        "self.arrays = {{name: archive[name] for name in archive.files}}.",
        "how much of it fits into memory only its author can tell",
    ),
    "parse": (
        "Read what {at} reads once: in __init__, where it fits into memory (each worker then has it, too), else with "
        "functools.lru_cache on the function that reads a file; or write it once in a binary form (np.save, then "
        "np.load(..., mmap_mode='r')), which needs no parsing.",
        "how much of it fits into memory only its author can tell",
    ),
    "decode": (
        "Read each file once, not at {at} in every epoch anew: all samples as they are handed out fit into memory, in "
        "a list that __init__ fills, or a dictionary that __getitem__ fills as it goes (each worker then has its own, "
        "as long as persistent_workers=True keeps it). Or write them once without compression (np.save), of which "
        "np.load(..., mmap_mode='r') reads only what is asked for.",
        "whether they are the same in every epoch, and fit into memory, only their author can tell",
    ),
    "compute": (
        "Compute what {what} returns at {at} once for each sample, not in every epoch anew: all samples as they are "
        "handed out fit into memory, in a list that __init__ fills, or a dictionary that __getitem__ fills as it goes "
        "(each worker then has its own, as long as persistent_workers=True keeps it).",
        "whether it is the same in every epoch, and fits into memory, only its author can tell",
    ),
    "pictures": (
        "Apply {what} once, before the training: x = torch.stack([picture for picture, _ in data]), y = "
        "torch.tensor([label for _, label in data]), and hand TensorDataset(x, y) to the loader at {at}.",
        "whether the pictures stay as they are, and fit into memory, only their author can tell",
    ),
    "early": (
        "Move {what}, at {at}: on the smaller picture it does the same to a part of the pixels.",
        "whether the pictures are as good for training only its author can tell",
    ),
    "convolve": (
        "Let Fourier transforms do what {what} does at {at}: scipy.signal.fftconvolve(x, kernel) gives what "
        "np.convolve does, with kernel[::-1] (conjugated, if it is complex) what np.correlate does, but for rounding "
        "relative to the largest number. Its mode is 'full', as np.convolve's; np.correlate's is 'valid'.",
        "whether SciPy is to be had, and such rounding will do, only its author can tell",
    ),
    "loop": (
        "Compute in {what} at {at} with whole tensors instead of a loop over their pieces: unfold() gives all windows "
        "at once, reshape() and a sum over a dimension all bands, and one operator then takes the place of many. Where "
        "each piece needs the one before it, go through the pieces once for all samples of a batch, in collate_fn.",
        "what the loop computes only its author can say in other words",
    ),
    "heavy": (
        "Make {what} at {at} cheaper: do once, before the training, what is the same in every epoch; use a version on "
        "tensors (torchvision.transforms.v2 on uint8), or apply it to the whole batch on the device, after the loader.",
        "which of them keeps what the model learns from only its author can tell",
    ),
}


def _too_early(evidence: Evidence, loader: Loader) -> _Found | None:
    """Transforms on pixels that a later one throws away; what they cost is in proportion to the pixels."""
    found = early(loader)
    saved = sum(share(loader, each.part) * (1.0 - each.kept) for each in found)
    if not found or saved < _WORTH_MOVING:
        return None
    worst = max(found, key=lambda each: each.part.seconds * (1.0 - each.kept))
    name, smaller = _short(worst.part), _short(worst.smaller)
    script = evidence.record.script if evidence.record is not None else ""
    files = [file for file in (script, loader.dataset_file, loader.site.file if loader.site else "") if is_users(file)]
    near = [] if any(mentions(file, name) for file in files) else beside(files)
    site = made_at([*files, *near], worst.part, loader.transforms)
    line = longest_statement(loader)
    part = share(loader, worst.part)
    return _Found(
        "early",
        f"{name} takes {part:.0%} of making a batch, on {1 / worst.kept:.0f} times as many pixels as {smaller} leaves "
        "after it.",
        site or (line.site if line is not None else None),
        part,
        saved,
        f"{name} after {smaller}",
    )


def _lines_too_early(loader: Loader) -> _Found | None:
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
    return _Found(
        "early",
        f"{listed} take{'s' if one else ''} {part:.0%} of making a batch, on {1 / worst.kept:.0f} times as many pixels "
        f"as {at(smaller.site)} leaves after it.",
        worst.part.site,
        part,
        saved,
        f"what line{'' if one else 's'} {', '.join(map(str, lines))} do{'es' if one else ''} below line "
        f"{smaller.site.line}",
    )


def _parses(loader: Loader) -> _Found | None:
    """A file of text that is read anew for each sample."""
    line = longest_statement(loader)
    if line is None or share(loader, line) < _MOST:
        return None
    said = _PARSER.search(linecache.getline(line.site.file, line.site.line))
    if said is None:
        return None
    part = share(loader, line)
    return _Found(
        "parse",
        f"{at(line.site)} takes {part:.0%} of making a batch: {said[1]} reads a file for every sample.",
        line.site,
        part,
        max(part, 1.0 - _other_work(loader, line)) * (1.0 - 1.0 / _PARSED),
        said[1],
        _PARSED_BASIS,
    )


def _draws(loader: Loader, site: Site | None) -> bool:
    """Whether the line there draws at random at a cost of its own, which costly-draws tells of."""
    draw = longest_draw(loader)
    return draw is not None and draw.line.site == site


def _makes_again(loader: Loader) -> _Found | None:
    """What all samples share, and each of them makes: filters, a window, a table."""
    line, what, part = made_for_each(loader)
    if line is None or part < _MOST:
        return None
    return _Found(
        "same",
        f"{at(line.site)} takes {part:.0%} of making a batch: {what}() makes the same for every sample.",
        line.site,
        part,
        min(_MOST_MADE, part * _MADE_ONCE),
        what,
    )


def _rows_of_sparse(loader: Loader) -> _Found | None:
    """A row of one of SciPy's sparse matrices, taken out for each sample."""
    line = longest_statement(loader)
    said = _SPARSE_ROW.search(linecache.getline(line.site.file, line.site.line)) if line is not None else None
    if line is None or said is None or share(loader, line) < _MOST:
        return None
    part = share(loader, line)
    return _Found(
        "sparse",
        f"{at(line.site)} takes {part:.0%} of making a batch: rows of the sparse matrix {said[1]} are taken out one by "
        "one.",
        line.site,
        part,
        part * (1.0 - 1.0 / _SPARSE_ROWS),
        said[1],
        _SPARSE_BASIS,
    )


def _convolves(loader: Loader) -> _Found | None:
    """Signals that NumPy convolves with long kernels, number by number."""
    long = [part for part in loader.parts if part.kind == "convolve" and part.pixels_out >= _LEAST_TIMES * _TAPS]
    part = min(1.0, sum(share(loader, each) for each in long))
    if not long or part < _MUCH:
        return None
    most = max(long, key=lambda each: each.seconds)
    saved = sum(share(loader, each) * (1.0 - _TAPS / min(each.pixels_out, _MOST_TIMES * _TAPS)) for each in long)
    return _Found(
        "convolve",
        f"{at(most.site)} takes {part:.0%} of making a batch: np.{most.name} goes through {most.pixels_in:,} numbers "
        f"for each of {most.pixels_out:,}.",
        most.site,
        part,
        min(part, saved),
        f"np.{most.name}",
    )


def _reads_again(loader: Loader) -> _Found | None:
    """What is the same for all samples, and read from its file for each of them."""
    members = [part for part in loader.parts if part.kind == "npz"]
    part = min(1.0, sum(share(loader, each) for each in members))
    if part >= _MOST:
        what = member_of(members[0].site, members[0].name)
        also = f" (with {len(members) - 1} more)" if len(members) > 1 else ""
        return _Found(
            "again",
            f"{at(members[0].site)}{also} takes {part:.0%} of making a batch: {what} is read from its file anew for "
            "every sample, whole, for a part of it.",
            members[0].site,
            part,
            part * (1.0 - 1.0 / _READ),
            what,
            _READ_BASIS,
            (loader.archive_row_bytes or 0.0) * (loader.dataset_length or 0) or None,
        )
    for kind in ("line", "inside"):
        read = [(part, *read_again(part)) for part in loader.parts if part.kind == kind]
        lines = [each for each in read if each[1]]
        part = min(1.0, sum(share(loader, each) for each, _, _ in lines))
        if part >= _MOST:
            break
    else:
        return None
    line, what, one_row = max(lines, key=lambda each: each[0].seconds)
    said = "whole, for a part of it" if one_row else "and is the same each time"
    return _Found(
        "again",
        f"{at(line.site)} takes {part:.0%} of making a batch: {what} is read from its file anew for every sample, "
        f"{said}.",
        line.site,
        part,
        part * (1.0 - 1.0 / _READ),
        what,
        _READ_BASIS,
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


def _loop(facts: LoaderFacts, loader: Loader) -> _Found | None:
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
    if part < _MOST or (facts.fetch_cpu_s or 0.0) * part / (times * (loader.batch_size or 1)) > _SMALL:
        return None
    what = _named(loader, line)
    often += f" for each sample ({what})." if what else " for each sample."
    return _Found(
        "loop",
        f"{at(line.site)} takes {part:.0%} of making a batch: {often}",
        line.site,
        part,
        part * (1.0 - 1.0 / _LOOP),
        what,
        _LOOP_BASIS,
    )


def _tokenizes(evidence: Evidence, facts: LoaderFacts, loader: Loader) -> _Found | None:
    """A tokenizer that takes the same text apart in every epoch."""
    line = longest_statement(loader)
    found = [part for part in loader.parts if part.kind == "transform" and _TOKENIZER.search(part.name)]
    if line is None or not found:
        return None
    part = share(loader, found[0])
    if part < _MOST or _workers_do(evidence, facts, part):
        return None
    return _Found(
        "tokenize",
        f"{_short(found[0])} takes {part:.0%} of making a batch: each text is tokenized anew whenever it is asked for.",
        line.site,
        part,
        part,
        _short(found[0]),
    )


def _decodes(evidence: Evidence, facts: LoaderFacts, loader: Loader) -> _Found | None:
    """Files that are decoded in every epoch anew, though all samples together are small, and workers have no cores."""
    line = longest_statement(loader)
    what = reads_a_file(line) if line is not None else ""
    if line is None or not what or not computes(facts):
        return None
    # What transforms take may be on the same line, and be different each time.
    others = sum(share(loader, part) for part in loader.parts if part.kind == "transform")
    part, size = min(share(loader, line), 1.0 - others), _all_samples(loader)
    if not _better_kept(evidence, facts, loader, part):
        return None
    return _Found(
        "decode",
        f"{at(line.site)} takes {part:.0%} of making a batch: {what} decodes a file for every sample, in every epoch "
        f"anew, and all {loader.dataset_length:,} samples together are {size / 1e6:,.0f} MB.",
        line.site,
        part,
        part * (1.0 - 1.0 / _READ),
        what,
        _READ_BASIS,
    )


def _computes_again(evidence: Evidence, facts: LoaderFacts, loader: Loader) -> _Found | None:
    """The same for what the dataset's own functions compute of a sample, always the same by all that they call."""
    lines = [part for part in loader.parts if part.kind == "line"]
    line, size = max(lines, key=lambda part: part.seconds, default=None), _all_samples(loader)
    if line is None or not computes(facts):
        return None
    part = share(loader, line)
    if not _better_kept(evidence, facts, loader, part):
        return None
    what = computes_the_same("".join(linecache.getlines(line.site.file)), line.site.line, _transform(evidence, loader))
    if not what or part * (facts.fetch_cpu_s or 0.0) < _LEAST_KEPT_S * (loader.batch_size or 1):
        return None
    return _Found(
        "compute",
        f"{at(line.site)} takes {part:.0%} of making a batch, and {_of_workers(evidence, facts)}: {what} computes "
        f"the same of a sample in every epoch anew; all {loader.dataset_length:,} together are {size / 1e6:,.0f} MB.",
        line.site,
        part,
        part * (1.0 - 1.0 / _KEPT),
        what,
        _KEPT_BASIS,
    )


def _pictures_again(evidence: Evidence, facts: LoaderFacts, loader: Loader) -> _Found | None:
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
    return _Found(
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


def _transform(evidence: Evidence, loader: Loader) -> tuple[str, int] | None:
    """The one transform that the dataset holds, if the script's author wrote it: its file's text, its class's line."""
    transforms = [part for part in loader.parts if part.kind == "transform"]
    if len(transforms) != 1 or evidence.record is None:
        return None
    paths = {evidence.record.script, loader.dataset_file, loader.site.file if loader.site is not None else ""}
    if any(_DRAWS.search("".join(linecache.getlines(path))) for path in paths):
        return None  # what holds the transform may leave it out now and then
    site, folder = transforms[0].site, os.path.dirname(evidence.record.script)
    if "site-packages" in site.file or not site.file.startswith(os.path.join(folder, "")):
        return None
    return "".join(linecache.getlines(site.file)), site.line


def _better_kept(evidence: Evidence, facts: LoaderFacts, loader: Loader, part: float) -> bool:
    """Whether samples are better kept from one epoch to the next than made anew, of which that is the share `part`."""
    if part < _MOST or not comes_round(evidence, loader) or not 0 < _all_samples(loader) <= _FITS:
        return False
    return not _workers_do(evidence, facts, part)


def _first_of_all(evidence: Evidence, loader: Loader) -> float:
    """The share of all epochs that the first one is; 0 where there are more of them than the source tells."""
    if not comes_round(evidence, loader):
        return 1.0
    epochs = epochs_of(evidence, loader)
    return 1.0 / epochs if epochs else 0.0


def _all_samples(loader: Loader) -> float:
    """Bytes of all samples as they are handed out, by those of a batch; 0 where their number is unknown."""
    return sum(each.bytes for each in loader.tensors) / (loader.batch_size or 1) * (loader.dataset_length or 0)


def _workers_do(evidence: Evidence, facts: LoaderFacts, saved: float = 0.0) -> bool:
    """Whether worker processes would make a difference, where there are none: on few cores they may not.

    Not where to save the share `saved` of each fetch is much better.
    """
    best = _with_workers(evidence, facts)
    return best > 0.0 and Gain.of(evidence.what_if(without(facts, saved))).likely < _MUCH_BETTER * best


def _with_workers(evidence: Evidence, facts: LoaderFacts) -> float:
    """The gain of a few worker processes, where there are none and that is worth it; else 0."""
    cores = int(evidence.record.environment.usable_cpus) if evidence.record is not None else 1
    counts = range(1, max(1, min(cores, _FEW_WORKERS)) + 1) if not facts.workers else ()
    gains = [Gain.of(evidence.what_if(Change(workers=count, loader=facts.index))) for count in counts]
    return max((gain.likely for gain in gains if gain.worth_it), default=0.0)


def _heavy(evidence: Evidence, facts: LoaderFacts, loader: Loader) -> _Found | None:
    """What computes most of the time, in workers that do not keep up, or with cores that leave no place for any."""
    line = longest_statement(loader)
    if line is None or not computes(facts) or _workers_do(evidence, facts):
        return None
    longest = max(
        (part for part in loader.parts if part.kind == "transform"), key=lambda part: part.seconds, default=None
    )
    less, often = 0.5, ""
    if longest is not None and share(loader, longest) >= _MOST:
        what, part, site = _short(longest), share(loader, longest), line.site
    elif (loader.item_lines or 0.0) >= _MANY_LINES and share(loader, line) >= _MOST:
        what, part, site = "", share(loader, line), line.site
        python_s = (loader.item_lines or 0.0) * (loader.batch_size or 1) * _LINE_S
        often = f"{loader.item_lines:,.0f} lines of Python for each sample, "
        less = max(less, (1.0 - _LOOP_LEFT) * min(1.0, python_s / (loader.fetch_s or math.inf)))
    elif share(loader, line) >= _MOST and not reads_a_file(line) and (called := call_of_a_library(line)):
        what, part, site = called, share(loader, line), line.site
    else:
        return None
    return _Found(
        "heavy",
        f"{what or at(site)} takes {part:.0%} of making a batch, {often}and {_of_workers(evidence, facts)}.",
        site,
        part,
        part * less,
        what,
        f"{less:.0%} of what it takes, as a cheaper version of it may save",
    )


def _of_workers(evidence: Evidence, facts: LoaderFacts) -> str:
    workers = facts.workers or 0
    if not workers:
        shared = _with_workers(evidence, facts) > 0.0
        return "workers would do as much beside the step" if shared else "workers would take the step's cores"
    return f"the loader's {'worker does' if workers == 1 else f'{workers} workers do'} not keep up"


def _named(loader: Loader, line: FetchPart) -> str:
    """The transform that takes nearly all of what `line` does."""
    parts = [part for part in loader.parts if part.kind == "transform" and part.seconds >= 0.8 * line.seconds]
    return _short(max(parts, key=lambda part: part.seconds)) if parts else ""


def _short(part: FetchPart) -> str:
    return part.name.rpartition(".")[2] or part.name
