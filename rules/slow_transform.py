"""One transform, or one line of the dataset, takes most of the time in which a batch is made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.edit import Drafts
from advisor.edit.loading.archives import read_archives
from advisor.edit.loading.cache_keys import ask_for_the_key
from advisor.edit.loading.convolving import through_transforms
from advisor.edit.loading.kept_in_init import made_in_init
from advisor.edit.loading.kept_properties import keep_property
from advisor.evidence.loading.epochs import comes_round, epochs_of
from advisor.evidence.loading.felt import felt, waits
from advisor.evidence.loading.fetching import without
from advisor.evidence.loading.random_draws import longest_draw
from advisor.fixes import edited
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, at, file_list
from advisor.shared.made_again import FITS, made_again
from advisor.shared.slow_parts import slow_part

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence
    from advisor.harness.layout import Loader, Site

_LEAST_GAIN = 1.1  # where nobody knows how much cheaper it can be


class SlowTransform(Rule):
    """One transform or line of the dataset takes most of the time in which a batch is made, and the step waits for it.

    Seventeen things make it slow. A file of text (JSON, CSV) is read anew for each sample. Words are looked up in a
    list, which is gone through from its beginning for each of them. What is the same for all samples is read each time:
    a member of an ``.npz``, say, is decompressed whenever it is asked for; or it is made each time: a bank of filters,
    or data that a property scales whenever it is read. Or what a sample's own object is asked it computes anew, several
    times for one sample, or in every epoch. A cache of the script's own is filled under another key than it is asked
    for, and never has anything; or it keeps fewer files than the samples of a batch come from in turn, and each is read
    whole, again, for one of them. Rows of a sparse matrix of SciPy's are taken out one by one. The files of few
    samples, which would all fit into memory, are decoded in each epoch, and no core is left for workers. Pictures that
    one of torchvision's datasets has in memory go through the same transforms in each epoch, and rows of one of Hugging
    Face's become tensors anew. A transform works on a large picture of which a later ``Resize`` or crop leaves a small
    part: a change of colours costs as much per pixel, so it is as many times cheaper after it. A loop in Python works
    on pieces of a tensor, and each piece pays for several calls. A wide Gaussian blur of torchvision's multiplies the
    whole square around each pixel. Or a transform simply computes much, for one sample after another, where a cheaper
    version, one on tensors, or one for whole batches on the device would do. A few fetches before the measurement are
    timed by line and by transform, in whatever process makes them.

    When not: the loader's workers hide it, and have cores of their own (then nothing is reported); a smaller picture
    gives the transform another meaning (a blur or noise of a fixed size, the corners that a rotation leaves black:
    these are not advised to be moved); the loader has no workers yet, and they would do.

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
            if loader is None or not loader.looks or not facts.fetch_s or not (how := felt(evidence, facts)):
                continue
            found = slow_part(evidence, facts, loader) or made_again(evidence, facts, loader)
            if found is None or _draws(loader, found.site) or (found.kind == "heavy" and not waits(facts)):
                continue
            saved, other_s = found.saved, found.other_s
            if found.kind in _IN_LATER_EPOCHS:
                later = 1.0 - _first_of_all(evidence, loader)
                saved, other_s = saved * later, other_s * later
            estimate = evidence.what_if(without(facts, saved, other_s))
            gain = Gain.prior(estimate, found.basis) if found.basis else Gain.of(estimate)
            if not gain.worth_it or (found.kind == "heavy" and gain.likely < _LEAST_GAIN):
                continue
            yield Finding(
                rule=self.id,
                title=_TITLES.get(found.kind, self.title),
                # The same samples, read less often.
                safety=_SAFETY.get(found.kind, Safety.EXACT if found.kind in _TITLES else None),
                summary=f"{found.said} {how}",
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
                parameters={
                    "kind": found.kind,
                    "what": found.what,
                    "bytes": found.bytes,
                    "readers": _modules(evidence, loader),
                    "copied": bool(loader.batch_size) and loader.collate.endswith(".default_collate"),
                },
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
        if finding.site is not None and finding.parameters.get("kind") in ("asked", "object", "twice"):
            drafts = Drafts(sources)
            readers = [drafts[path] for path in file_list(finding, "readers") if sources.has(path)]
            copied = bool(finding.parameters.get("copied"))
            why = keep_property(drafts[finding.site.file], finding.site.line, readers, copied)
            return Advice(text, why) if why else edited(drafts, text)
        if finding.site is not None and finding.parameters.get("kind") == "missed":
            drafts = Drafts(sources)
            why = ask_for_the_key(drafts[finding.site.file], finding.site.line, what)
            return Advice(text, why) if why else edited(drafts, text)
        if finding.site is not None and finding.parameters.get("kind") == "convolve":
            drafts = Drafts(sources)
            reason = through_transforms(drafts[finding.site.file], finding.site.line)
            told = f"Convolve through Fourier transforms at {at(finding.site)}, with scipy.signal.fftconvolve."
            return Advice(text, reason or why) if reason is not None else edited(drafts, told)
        if finding.site is None or not isinstance(size, float) or not 0 < size <= FITS:
            return Advice(text, why)
        drafts = Drafts(sources)
        why = read_archives(drafts, drafts[finding.site.file], finding.site.line)
        told = f"Read the archives into memory once, when the dataset is made: about {size / 1e6:,.0f} MB."
        return Advice(text, why) if why else edited(drafts, told)

    EXAMPLES = (
        Example(
            before="""
import torch

class Series:
    def __init__(self, values):
        self.values = values

    @property
    def scaled(self):  # <-
        return self.values - self.values.mean(0)

class Windows(Dataset):
    def __getitem__(self, i):
        return torch.from_numpy(self.series.scaled[i : i + 96])
""",
            after="""
import torch
import functools

class Series:
    def __init__(self, values):
        self.values = values

    @functools.cached_property
    def scaled(self):
        return self.values - self.values.mean(0)

class Windows(Dataset):
    def __getitem__(self, i):
        return torch.from_numpy(self.series.scaled[i : i + 96])
""",
            parameters={"kind": "asked", "what": "Series.scaled", "copied": True},
        ),
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
            before="class Flat(Module):\n    def forward(self, x):  # <-\n        return x - gaussian_blur(x, 49)\n",
            after="",
            parameters={"kind": "blur", "what": "Flat"},
            advice="and then by columns, in Flat",
        ),
        Example(
            before="class Sites:\n    def __getitem__(self, i):\n        rows = json.load(self.open(i))  # <-\n",
            after="",
            parameters={"kind": "parse", "what": "json.load"},
            advice="Read what train.py:3 reads once",
        ),
        Example(
            before="kept = {}\n\ndef heard(x, top):\n    key = f'{top}_{x.device}'\n    if top not in kept:  # <-\n"
            "        kept[key] = bank(top).to(x.device)\n    return kept[key] @ x\n",
            after="kept = {}\n\ndef heard(x, top):\n    key = f'{top}_{x.device}'\n    if key not in kept:\n"
            "        kept[key] = bank(top).to(x.device)\n    return kept[key] @ x\n",
            parameters={"kind": "missed", "what": "kept"},
        ),
        Example(
            before="class Texts:\n    def __getitem__(self, i):\n        x = self.words.index(self.word[i])  # <-\n",
            after="",
            parameters={"kind": "lookup", "what": "self.words"},
            advice="enumerate(self.words)",
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


_TITLES = {
    "same": "Make once what all samples share",
    "asked": "Compute once what all samples share",
    "object": "Compute once what the samples are asked each time",
    "twice": "Compute once what a sample is asked several times",
    "missed": "Ask the cache for the key that it is filled under",
    "lookup": "Look up in a dictionary, not in a list",
    "tokenize": "Tokenize the texts once",
    "sparse": "Take the rows of a batch out of the sparse matrix at once",
    "again": "Read once what is the same for every sample",
    "parse": "Read the files of text once",
    "files": "Keep the files that a batch asks for until it has all of its samples",
    "decode": "Decode each sample's file once, not in every epoch",
    "compute": "Compute once what is the same in every epoch",
    "leading": "Transform once what is the same in every epoch",
    "pictures": "Transform the pictures once, not in every epoch",
    "formatted": "Make tensors of the columns once, not of their rows in every epoch",
    "blur": "Blur by rows, and then by columns",
    "convolve": "Convolve with long kernels through Fourier transforms",
}
_SAFETY = {"convolve": Safety.NUMERIC, "blur": Safety.NUMERIC}
# What is done once for each sample has its gain in the epochs that follow.
_IN_LATER_EPOCHS = ("object", "tokenize", "parse", "decode", "compute", "leading", "pictures", "formatted")
_ADVICE = {
    "asked": (
        "Keep what {what} ({at}) gives, and compute it once, not for each sample: functools.cached_property for a "
        "property.",
        "whether it stays the same only its author can tell",
    ),
    "object": (
        "Keep what {what} ({at}) gives with the object that is asked: functools.cached_property for a property (of a "
        "class without __slots__), or an attribute that __init__ computes.",
        "whether it stays the same, and all of them fit into memory, only its author can tell",
    ),
    "twice": (
        "Keep what {what} ({at}) gives with the object that is asked, for as long as its sample is made: "
        "functools.cached_property for a property (of a class without __slots__), or a variable.",
        "whether it stays the same only its author can tell",
    ),
    "same": (
        "Make what {what} gives at {at} once, where the dataset is made (self.name = {what}(...) in __init__), and use "
        "it for each sample.",
        "whether it stays the same only its author can tell",
    ),
    "missed": (
        "Ask {what} at {at} for the key that it is filled under, so that it finds what it has: what is made there is "
        "made once then, not for every sample.",
        "which of the two keys is meant only its author can tell",
    ),
    "lookup": (
        "Make a dictionary of {what} once, where the dataset is made, and look up in it at {at}: self.places = "
        "{{word: place for place, word in enumerate({what})}}, then self.places[word] for {what}.index(word), and "
        "self.places.get(word, -1) where it may not be there. (Of what is in the list twice it has the last place, "
        "index() the first.)",
        "whether the list changes, or has something twice, only its author can tell",
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
    "files": (
        "Keep {what} in memory at {at}, which is what one batch asks for: a cache that lets go of one before its next "
        "sample is asked for reads it again each time, so let it keep as many, and some more. Or draw the samples of a "
        "batch from fewer files, or write them so that one can be read by itself (np.save, then "
        "np.load(..., mmap_mode='r')).",
        "how much of it fits into memory, and in which order the samples may come, only its author can tell",
    ),
    "decode": (
        "Read each file once, not at {at} in every epoch anew: all samples as they are handed out fit into memory, in "
        "a list that __init__ fills, or a dictionary that __getitem__ fills as it goes (each worker then has its own, "
        "as long as persistent_workers=True keeps it). Or write them once without compression (np.save), of which "
        "np.load(..., mmap_mode='r') reads only what is asked for.",
        "whether they are the same in every epoch, and fit into memory, only their author can tell",
    ),
    "leading": (
        "Give each record to {what} once, where the dataset is made (or where it is asked for first), and leave the "
        "transforms that draw where they are.",
        "where records are kept, and whether what comes out fits into memory, only its author can tell",
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
    "formatted": (
        'Take all rows at once, before the training, rows = dataset.with_format("torch")[:], and hand TensorDataset('
        "rows[name], ...) of the columns that the model needs to the loader at {at}: {what} makes tensors of its rows "
        "anew whenever they are asked for.",
        "what else reads the batches by the columns' names only their author can tell",
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
    "blur": (
        "Blur by rows, and then by columns, in {what} at {at}: two depthwise conv2d, with the Gaussian's k weights as "
        "a kernel of (1, k) and of (k, 1), pad x once by k // 2 with mode='reflect'. The result is the same but for "
        "rounding, for 2k multiplications a pixel and not k * k.",
        "how large its kernel is, and which pictures it gets, only its author can tell",
    ),
    "heavy": (
        "Make {what} at {at} cheaper: do once, before the training, what is the same in every epoch; use a version on "
        "tensors (torchvision.transforms.v2 on uint8), or apply it to the whole batch on the device, after the loader.",
        "which of them keeps what the model learns from only its author can tell",
    ),
}


def _modules(evidence: Evidence, loader: Loader) -> tuple[str, ...]:
    """The script's own files, which may read, or change, what a dataset holds."""
    record = evidence.record
    return tuple(sorted({loader.dataset_file, *(record.modules if record is not None else ())}))


def _draws(loader: Loader, site: Site | None) -> bool:
    """Whether the line there draws at random at a cost of its own, which costly-draws tells of."""
    draw = longest_draw(loader)
    return draw is not None and draw.line.site == site


def _first_of_all(evidence: Evidence, loader: Loader) -> float:
    """The share of all epochs that the first one is; 0 where there are more of them than the source tells."""
    if not comes_round(evidence, loader):
        return 1.0
    epochs = epochs_of(evidence, loader)
    return 1.0 / epochs if epochs else 0.0
