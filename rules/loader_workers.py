"""Too few loader workers: the step waits for data that could be prepared beside it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from advisor.edit import Draft, Drafts
from advisor.edit.calls import DATALOADER_PARAMETERS, argument
from advisor.edit.loading.datasets import told_in_loop
from advisor.edit.loading.workers import only_with_workers
from advisor.edit.locate import call_at
from advisor.edit.origins.values import EDITED, give, in_mapping
from advisor.edit.sources import text_of
from advisor.evidence import Change
from advisor.evidence.loading.felt import waits
from advisor.evidence.loading.fetching import begins_anew
from advisor.evidence.loading.prefetch import DEFAULT, SHM_SHARE, made_ahead_bytes
from advisor.fixes import by_option, edited
from advisor.rule import Advice, Argument, Example, Finding, Gain, Rule, Safety, at, framework_of, where
from advisor.shared.frameworks import configured, construction
from advisor.shared.new_workers import decides_more, not_started, would_share

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence
    from advisor.evidence.facts import LoaderFacts
    from advisor.harness.layout import Loader, RunRecord

_LEAST_STEPS = 2  # of a bare trace: a single one may be an epoch's first, which waits for workers to start
_TWICE = 2  # workers for the model, to which those of unknown number are one
_MOST = 16  # more workers than this have not helped one process in practice, and each holds a copy of the dataset
# Workers that make a batch in less than this share of the step's own time would keep up, if all batches took as long:
# eight instead of two brought 1.04 where 1.74 was predicted (accuracy's rain_radar_shards, whose files open slowly).
_KEEPS_UP = 0.9
# Where single batches take much longer than the others, the mean of a window says less of how many there will be: three
# workers instead of two brought 1.08 there where 2.08 was predicted, with a mean of 1.13 times the step's own time.
_BURSTY, _KEEPS_UP_BURSTY = 1.5, 1.5
_IMPORTING = ("spawn", "forkserver")  # start methods whose workers import the script again
_KEEP, _MORE = "Keep the workers from one epoch to the next", "Prepare batches in more worker processes"
# More workers help while cores are free, which a bare trace does not say.
_TWICE_BASIS = "prior: twice the workers make twice the batches, where cores are free"
_RANDOM = ("random", "jitter", "augment", "mix", "erasing", "crop")  # transforms that draw random numbers, by name


class LoaderWorkers(Rule):
    """The training process prepares the batches itself, or with too few workers, and the step waits for them.

    Without workers, ``DataLoader`` reads, decodes and collates every batch in the training process, between two
    steps: the device has nothing to do meanwhile. Worker processes prepare the next batches during the step. As many
    are needed as batches are prepared in the time of one step; more than the usable cores only compete with each
    other and with the step, unless they mostly wait for a disk or a network. The number given here is the smallest
    that the replay of this very run finds to be within 2 % of the best. ``persistent_workers`` keeps them from one
    epoch to the next; where there are enough of them, and each of many short epochs starts them anew, that alone is
    the fix.

    When not: the data is in memory and fetching is cheap (a batch from a worker takes half a millisecond to receive);
    the cores are already busy with the step; ``/dev/shm`` is too small for the batches in flight (a container's
    default is 64 MB; ``--shm-size`` raises it); an ``IterableDataset`` that does not divide its data with
    ``get_worker_info()`` would deliver everything once per worker. Random transforms draw other numbers in workers,
    of the same distribution. Workers that live on do not see what the script changes in its dataset from epoch to epoch
    (``set_epoch``).

    Source: PyTorch performance tuning guide, "Enable asynchronous data loading and augmentation"; torch.utils.data,
    "Single- and Multi-process Data Loading".
    """

    id = "loader-workers"
    title = "Prepare batches in worker processes"
    safety = Safety.EXACT
    # Workers would do in parallel what need not be done at all.
    after = ("batched-indexing", "costly-draws")

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        if evidence.record is None and len(evidence.steps) < _LEAST_STEPS:
            return
        for facts in evidence.loaders:
            if not waits(facts) and not _starts_again(facts):
                continue
            if facts.record is not None and begins_anew(facts.record):
                continue  # workers would be started for each batch
            chosen = _choose(evidence, facts)
            if chosen is None:
                continue
            workers, gain = chosen
            record = facts.record
            enough = facts.workers is not None and workers == facts.workers
            yield Finding(
                rule=self.id,
                title=_KEEP if enough else _MORE if _of_unknown_number(facts) else self.title,
                summary=_started(facts) if enough else _waited(evidence, facts),
                gain=gain,
                evidence={
                    "data_wait_share": facts.wait_share,
                    "data_wait_s": facts.wait_s,
                    "fetch_s": facts.fetch_s,
                    "fetch_cpu_s": facts.fetch_cpu_s,
                    "step_s": evidence.step_s,
                    "workers": facts.workers,
                    "start_s": facts.start_s,
                    "batches_per_epoch": facts.batches,
                    "usable_cpus": evidence.record.environment.usable_cpus if evidence.record else None,
                },
                site=facts.site,
                parameters=_parameters(evidence, facts, workers),
                unmet=() if enough else _unmet(evidence, record, workers),
                safety=Safety.BEHAVIOUR if record is not None and (_draws(record) or _told_of_epochs(record)) else None,
            )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        workers, site = finding.parameters["workers"], finding.site
        framework = str(finding.parameters.get("framework", ""))
        recorded = finding.parameters.get("recorded", 0)
        number = "" if workers == recorded else f"num_workers={workers}, "
        text = f"Give the loader at {at(site)} {number}persistent_workers=True."
        if framework:
            return self._told(finding, sources, framework, str(workers))
        if finding.parameters.get("more"):
            text = f"Give the DataLoader {where(site)} twice as many workers (num_workers), while cores are free."
            return Advice(text, "the trace does not say how many it has, nor how many cores there are")
        if site is None:
            return Advice(
                f"Give the DataLoader num_workers={workers}, persistent_workers=True.", "its place is unknown"
            )
        if finding.unmet:
            return Advice(text, " ".join(finding.unmet))
        drafts = Drafts(sources)
        draft = drafts[site.file]
        call = call_at(draft, site, ("DataLoader",))
        if call is None:
            return Advice(text, "the call cannot be told from others on its line")
        if number and (shared := would_share(finding, drafts, draft, call)):
            more, why = shared
            return Advice(" ".join(filter(None, (text, more))), why)
        told = told_in_loop(draft, call)
        if told and finding.parameters.get("imports_again"):
            why = f"workers would not hear of `{told}`, or be started anew in each epoch, which takes seconds"
            return Advice(text, why)
        if told and not number:
            return Advice(text, f"workers that live on would not hear of `{told}`")
        live_on = not told and not finding.parameters.get("remade")  # else they end with the epoch, or with the loader
        if not live_on:
            text = f"Give the loader at {at(site)} num_workers={workers}."
        if number:
            if meant := decides_more(drafts, draft, call):
                return Advice(text, meant)
            option = give(drafts, draft, call, "num_workers", str(workers), DATALOADER_PARAMETERS, recorded)
            if option is None:
                return Advice(text, "where the number of workers comes from cannot be told from the source")
            if option:
                why = not_started(finding, drafts, draft, call, "multiprocessing_context")
                if why or drafts.edit(text) is not None:  # an option alone changes no source
                    return Advice(text, why or "the script has to be changed as well, for its workers to start")
                return by_option(drafts, draft, option, str(workers), text)
            kept = only_with_workers(draft, call, "True", "False", given=True) if live_on else None
            if kept is not None:
                # What else reads the value may have no workers.
                own = argument(call, "persistent_workers", DATALOADER_PARAMETERS)
                if own is not None and kept != "True":
                    draft.replace(own.value, kept)  # which names what is known here, not where the value is written
                else:
                    mapped = in_mapping(draft, call, "persistent_workers")
                    alone = own is not None or mapped is not None
                    give(drafts, draft, call, "persistent_workers", kept, DATALOADER_PARAMETERS, alone=alone)
            if why := not_started(finding, drafts, draft, call, "multiprocessing_context"):
                return Advice(text, why)
        else:
            kept = only_with_workers(draft, call, "True", "False")
            if kept is None or give(drafts, draft, call, "persistent_workers", kept) != EDITED:
                return Advice(text, "whether the loader always has workers cannot be told from the source")
        return edited(drafts, text)

    def _told(self, finding: Finding, sources: Sources, framework: str, workers: str) -> Edit | Argument | Advice:
        """The fix for a loader that the framework makes: Trainer's, which its arguments describe."""
        text = _FRAMEWORKS[framework].format(workers=workers)
        if framework != "transformers":
            return Advice(text, f"{framework} makes the loader")
        if finding.unmet:
            return Advice(text, " ".join(finding.unmet))
        settings = {"dataloader_num_workers": workers, "dataloader_persistent_workers": "True"}
        if workers == str(finding.parameters.get("recorded", 0)):
            del settings["dataloader_num_workers"]

        def start(drafts: Drafts, draft: Draft, call: cst.Call) -> str:
            return not_started(finding, drafts, draft, call, "dataloader_multiprocessing_context")

        def kept(draft: Draft, call: cst.Call, name: str) -> str | None:
            given = "dataloader_num_workers" in settings
            code = only_with_workers(draft, call, "True", "False", "dataloader_num_workers", given)
            return code if name == "dataloader_persistent_workers" else settings[name]

        return configured(finding, sources, framework, settings, text, f"{framework} makes the loader", start, kept)

    EXAMPLES = (
        Example(
            before="loader = DataLoader(images, batch_size=64, shuffle=True)  # <-\n",
            after="loader = DataLoader(images, batch_size=64, shuffle=True, num_workers=2, persistent_workers=True)\n",
            parameters={"workers": 2},
        ),
        Example(
            before="""
class Trainer:
    def loaders(self):
        return torch.utils.data.DataLoader(  # <-
            self.train_set,  # 50,000 images
            batch_size=self.batch_size,
            num_workers=0,  # safe on any machine
            pin_memory=True,
        )
""",
            after="""
class Trainer:
    def loaders(self):
        return torch.utils.data.DataLoader(
            self.train_set,  # 50,000 images
            batch_size=self.batch_size,
            num_workers=4,  # safe on any machine
            pin_memory=True,
            persistent_workers=True,
        )
""",
            parameters={"workers": 4},
        ),
        Example(
            before="""
NUM_WORKERS = 1

def make(dataset):
    return DataLoader(dataset, 32, True, num_workers=NUM_WORKERS)  # <-
""",
            after="""
NUM_WORKERS = 3

def make(dataset):
    return DataLoader(dataset, 32, True, num_workers=NUM_WORKERS, persistent_workers=NUM_WORKERS > 0)
""",
            parameters={"workers": 3, "recorded": 1},
        ),
        Example(
            before="""
train_kwargs = {"batch_size": 64}
train_loader = DataLoader(dataset, **train_kwargs)  # <-
""",
            after="""
train_kwargs = {"batch_size": 64}
train_loader = DataLoader(dataset, num_workers=2, persistent_workers=True, **train_kwargs)
""",
            parameters={"workers": 2},
        ),
        Example(  # enough of them, started in each epoch
            before="loader = DataLoader(images, 64, num_workers=2)  # <-\n",
            after="loader = DataLoader(images, 64, num_workers=2, persistent_workers=True)\n",
            parameters={"workers": 2, "recorded": 2, "imports_again": True},
        ),
        Example(  # another loader may have none
            before="def make(data, n):\n    return DataLoader(data, num_workers=n)  # <-\n",
            after="def make(data, n):\n    return DataLoader(data, num_workers=n, persistent_workers=n > 0)\n",
            parameters={"workers": 2, "recorded": 2},
        ),
        Example(  # a flat script where workers import it again
            before="""
from torch.utils.data import DataLoader as DL

dataset = make_dataset()
loader = DL(dataset, batch_size=8)  # <-
for batch in loader:
    train(batch)
""",
            after="""
from torch.utils.data import DataLoader as DL

if __name__ == "__main__":
    dataset = make_dataset()
    loader = DL(dataset, batch_size=8, num_workers=2, persistent_workers=True)
    for batch in loader:
        train(batch)
""",
            parameters={"workers": 2, "imports_again": True},
        ),
        Example(  # no place for a guard: the start method that needs none
            before="""
for batch in DataLoader(dataset, batch_size=8):  # <-
    train(batch)

def later():
    pass
""",
            after="""
for batch in DataLoader(dataset, batch_size=8, num_workers=2, persistent_workers=True, multiprocessing_context="fork"):
    train(batch)

def later():
    pass
""",
            parameters={"workers": 2, "imports_again": True, "fork": True},
        ),
        Example(  # what cannot be sent to workers: the start method that sends nothing
            before="""
dataset = ImageFolder(root, transform=lambda image: image.resize((64, 64)))
loader = DataLoader(dataset)  # <-
""",
            after="""
dataset = ImageFolder(root, transform=lambda image: image.resize((64, 64)))
loader = DataLoader(dataset, num_workers=2, persistent_workers=True, multiprocessing_context="fork")
""",
            parameters={"workers": 2, "imports_again": True, "fork": True},
        ),
        Example(  # of two branches the one that was run; the other one has no workers to keep
            before="""
train_kwargs = {"batch_size": 64}
if use_cuda:
    cuda_kwargs = {"num_workers": 1, "pin_memory": True}
    train_kwargs.update(cuda_kwargs)
loader = DataLoader(dataset, **train_kwargs)  # <-
""",
            after="""
train_kwargs = {"batch_size": 64}
if use_cuda:
    cuda_kwargs = {"num_workers": 4, "pin_memory": True}
    train_kwargs.update(cuda_kwargs)
loader = DataLoader(dataset, **train_kwargs)
""",
            parameters={"workers": 4, "recorded": 1},
        ),
        Example(  # another caller may want none
            before="def make(ds, workers=0):\n    return DataLoader(ds, num_workers=workers)  # <-\n\nmake(ds)\n",
            after="def make(ds, workers=2):\n"
            "    return DataLoader(ds, num_workers=workers, persistent_workers=workers > 0)\n\nmake(ds)\n",
            parameters={"workers": 2},
        ),
        Example(  # another loader has none, and reads the same name
            before="""
keep = False
train = DataLoader(train_set, num_workers=0, persistent_workers=keep)  # <-
test = DataLoader(test_set, num_workers=0, persistent_workers=keep)
""",
            after="""
keep = False
train = DataLoader(train_set, num_workers=2, persistent_workers=True)
test = DataLoader(test_set, num_workers=0, persistent_workers=keep)
""",
            parameters={"workers": 2},
        ),
        Example(  # what it is told in each epoch, workers that live on would not hear
            before="""
loader = DataLoader(pairs, batch_size=8)  # <-
for epoch in range(9):
    pairs.draw_negatives(epoch)
    train(loader)
""",
            after="""
loader = DataLoader(pairs, batch_size=8, num_workers=2)
for epoch in range(9):
    pairs.draw_negatives(epoch)
    train(loader)
""",
            parameters={"workers": 2},
        ),
        Example(  # made anew in each epoch
            before="for epoch in range(9):\n    loader = DataLoader(rows, 8)  # <-\n    train(loader)\n",
            after="for epoch in range(9):\n    loader = DataLoader(rows, 8, num_workers=2)\n    train(loader)\n",
            parameters={"workers": 2, "remade": True},
        ),
        Example(  # as a part of it, and its transform
            before="""
aug = Erase(p=0.1)
pairs = Pairs(root, aug)
train_set, val_set = random_split(pairs, [0.9, 0.1])
loader = DataLoader(train_set, batch_size=8)  # <-
for epoch in range(9):
    aug.p = epoch / 10
    train(loader)
""",
            after="""
aug = Erase(p=0.1)
pairs = Pairs(root, aug)
train_set, val_set = random_split(pairs, [0.9, 0.1])
loader = DataLoader(train_set, batch_size=8, num_workers=2)
for epoch in range(9):
    aug.p = epoch / 10
    train(loader)
""",
            parameters={"workers": 2},
        ),
        Example(  # a file that was read whole
            before="""
import h5py

class Volumes(Dataset):
    def __init__(self, path):
        self.volumes = h5py.File(path, "r")["volumes"][:]

loader = DataLoader(Volumes("volumes.h5"))  # <-
""",
            after="""
import h5py

class Volumes(Dataset):
    def __init__(self, path):
        self.volumes = h5py.File(path, "r")["volumes"][:]

loader = DataLoader(Volumes("volumes.h5"), num_workers=2, persistent_workers=True)
""",
            parameters={"workers": 2, "source": "__main__.Volumes"},
        ),
        Example(  # what names a value of this place stays here
            before="""
class Config:
    workers = 0
    keep = False

cfg = Config()
loader = DataLoader(dataset, num_workers=cfg.workers, persistent_workers=cfg.keep)  # <-
""",
            after="""
class Config:
    workers = 2
    keep = False

cfg = Config()
loader = DataLoader(dataset, num_workers=cfg.workers, persistent_workers=cfg.workers > 0)
""",
            parameters={"workers": 2},
        ),
        Example(  # samples that are gathered before
            before="""
for path in paths:
    dataset.append(read(path))
loader = DataLoader(dataset)  # <-
""",
            after="""
for path in paths:
    dataset.append(read(path))
loader = DataLoader(dataset, num_workers=2, persistent_workers=True)
""",
            parameters={"workers": 2},
        ),
        Example(
            before="""
parser.add_argument("-j", "--workers", default=0, type=int)
args = parser.parse_args()
loader = DataLoader(dataset, num_workers=args.workers)  # <-
""",
            after="""
parser.add_argument("-j", "--workers", default=0, type=int)
args = parser.parse_args()
loader = DataLoader(dataset, num_workers=args.workers)
""",
            parameters={"workers": 4},
            options={"--workers": "4"},
        ),
        Example(  # Trainer makes the loader
            before="""
from transformers import Trainer, TrainingArguments

args = TrainingArguments(  # <- config
    "out",
    dataloader_num_workers=0,  # safe
)
Trainer(model, args, train_dataset=dataset).train()
""",
            after="""
from transformers import Trainer, TrainingArguments

args = TrainingArguments(
    "out",
    dataloader_num_workers=2,  # safe
    dataloader_persistent_workers=True,
)
Trainer(model, args, train_dataset=dataset).train()
""",
            parameters={"workers": 2, "framework": "transformers"},
        ),
        Example(
            before='args = TrainingArguments("out", dataloader_num_workers=cfg.workers)  # <- config\n'
            "class cfg:\n    workers = 0\n",
            after='args = TrainingArguments("out", dataloader_num_workers=cfg.workers, '
            "dataloader_persistent_workers=cfg.workers > 0)\nclass cfg:\n    workers = 2\n",
            parameters={"workers": 2, "framework": "transformers"},
        ),
        Example(
            before="parser = HfArgumentParser(TrainingArguments)\n"
            "(args,) = parser.parse_args_into_dataclasses()  # <- config\n",
            after="",
            parameters={"workers": 2, "framework": "transformers"},
            options={"--dataloader_num_workers": "2", "--dataloader_persistent_workers": "True"},
        ),
    )
    LEAVES_ALONE = (
        Example("TrainingArguments(**load(path))  # <- config\n", "", {"workers": 2, "framework": "transformers"}),
        Example("loader = DataLoader(dataset, **make_kwargs())  # <-\n", "", {"workers": 2}),
        Example(  # the parser would end the script
            "parser.add_argument('--workers', type=int, choices=[0, 4], default=0)\nargs = parser.parse_args()\n"
            "loader = DataLoader(dataset, num_workers=args.workers)  # <-\n",
            "",
            {"workers": 2},
        ),
        Example(  # a strength that grows, for workers that are there
            """
def warm_up(loader, epoch):
    loader.dataset.transform.strength = epoch / 10

loader = DataLoader(images, num_workers=2)  # <-
for epoch in range(10):
    warm_up(loader, epoch)
    train(loader)
""",
            "",
            {"workers": 2, "recorded": 2},
        ),
        Example(  # one position in one file
            """
from zipfile import ZipFile

class Slides(Dataset):
    def __init__(self, path):
        self.archive = ZipFile(path)

loader = DataLoader(Slides("slides.zip"))  # <-
""",
            "",
            {"workers": 2, "source": "__main__.Slides"},
        ),
        Example(  # what the workers count, the script would not see
            """
class Clips(Dataset):
    def __getitem__(self, index):
        try:
            return read(self.paths[index])
        except OSError:
            self.broken.append(index)
            return read(self.paths[0])

clips = Clips(paths)
for clip in DataLoader(clips):  # <-
    train(clip)
print(len(clips.broken), "clips could not be read")
""",
            "",
            {"workers": 2, "source": "__main__.Clips"},
        ),
        Example(  # opened at the first sample, which the script itself asks for
            """
import h5py

class Volumes(Dataset):
    def __getitem__(self, index):
        if self.file is None:
            self.file = h5py.File(self.path, "r")["volumes"]
        return self.file[index]

volumes = Volumes("volumes.h5")
channels = volumes[0].shape[0]
loader = DataLoader(volumes)  # <-
""",
            "",
            {"workers": 2, "source": "__main__.Volumes"},
        ),
        Example("loader = DataLoader(dataset, num_workers=os.cpu_count() // 4)  # <-\n", "", {"workers": 2}),
        Example(
            "p.add_argument('--workers', type=int, default=0)\nargs = p.parse_args()\n"
            "torch.set_num_threads(args.workers or 1)\nDataLoader(dataset, num_workers=args.workers)  # <-\n",
            "",
            {"workers": 2},
        ),
        *(
            Example(
                f"import torch\nN = 0\nloader = DataLoader(dataset, num_workers=N)  # <-\n{line}\n", "", {"workers": 2}
            )
            for line in ("for rank in range(N):\n    spawn(rank)", "torch.set_num_threads(N or 1)")
        ),
        Example(
            "kwargs = {}\nif cuda:\n    kwargs.update({'num_workers': 1})\nDataLoader(dataset, **kwargs)  # <-\n",
            "",
            {"workers": 2},
        ),
        Example(  # where it is put in later, twice would be an error
            "kwargs = {'batch_size': 8}\nkwargs.update(cuda_kwargs())\nDataLoader(dataset, **kwargs)  # <-\n",
            "",
            {"workers": 2},
        ),
        Example("loader = DataLoader(dataset)  # <-\n", "", {"workers": 2, "framework": "transformers"}),
        Example(  # no fork, and what cannot be sent
            "loader = DataLoader(dataset, collate_fn=lambda rows: rows)  # <-\n",
            "",
            {"workers": 2, "imports_again": True},
        ),
        Example(  # what only the guarded part knows
            """
class Rows(Dataset):
    def __getitem__(self, index):
        return torch.from_numpy(table[index])

if __name__ == "__main__":
    table = numpy.load("table.npy")
    loader = DataLoader(Rows())  # <-
""",
            "",
            {"workers": 2, "imports_again": True},
        ),
        Example(  # each worker would go on from its own place
            """
class Calls(Dataset):
    def __getitem__(self, index):
        species = index % len(self.at)
        self.at[species] = (self.at[species] + 1) % len(self.calls[species])
        return self.calls[species][self.at[species]]

loader = DataLoader(Calls(calls))  # <-
""",
            "",
            {"workers": 2, "source": "__main__.Calls"},
        ),
        Example(  # each worker would fill a memory of its own
            """
class Photos(Dataset):
    def __getitem__(self, index):
        if index not in self.seen:
            self.seen[index] = decode(self.paths[index])
        return self.seen[index]

loader = DataLoader(Photos(paths))  # <-
""",
            "",
            {"workers": 2, "source": "__main__.Photos"},
        ),
        Example(  # the option alone leaves the script without a guard
            "parser.add_argument('--workers', default=0)\nargs = parser.parse_args()\n"
            "for x in DataLoader(dataset, num_workers=args.workers):  # <-\n    train(x)\n",
            "",
            {"workers": 2, "imports_again": True},
        ),
    )


_FRAMEWORKS = {
    "transformers": "Pass TrainingArguments(dataloader_num_workers={workers}, dataloader_persistent_workers=True).",
    "lightning": "Give the DataLoader that you hand to the Trainer num_workers={workers}, persistent_workers=True.",
    "accelerate": "Give the DataLoader that you hand to accelerator.prepare() num_workers={workers}, "
    "persistent_workers=True.",
}


def _waited(evidence: Evidence, facts: LoaderFacts) -> str:
    """How long the step waits for data, in a sentence."""
    record, now = facts.record, facts.workers
    place = at(facts.site) if facts.site is not None else (record.owner if record is not None else "")
    return (
        f"The step waits {facts.wait_s * 1e3:.1f} ms ({facts.wait_share:.0%}) for the next batch"
        + (f" from the loader made at {place}" if place else "")
        + (f", which has {now or 'no'} worker{'' if now == 1 else 's'}." if now is not None else ".")
        + (" Use no more workers than the machine has free cores." if evidence.record is None else "")
    )


def _started(facts: LoaderFacts) -> str:
    """What starting the workers in each epoch costs, in a sentence."""
    place = f" of the loader made at {at(facts.site)}" if facts.site is not None else ""
    workers = f"{facts.workers} worker{'' if facts.workers == 1 else 's'}"
    return (
        f"Each epoch of {facts.batches} batches starts the {workers}{place} anew and waits {facts.start_s or 0:.2f} s "
        "until the first batch is there."
    )


def _too_few(evidence: Evidence, facts: LoaderFacts) -> bool:
    """Whether the step waits because its workers make too few batches: not because single ones take long."""
    if not waits(facts):
        return False
    if not facts.workers or not facts.fetch_s or evidence.record is None:
        return True
    fetching = facts.fetch_s * evidence.step_model.batches_per_step / facts.workers
    bursty = facts.record is not None and (facts.record.fetch_spread or 0.0) > _BURSTY
    return fetching >= (_KEEPS_UP_BURSTY if bursty else _KEEPS_UP) * max(0.0, (evidence.step_s or 0.0) - facts.wait_s)


def _starts_again(facts: LoaderFacts) -> bool:
    """Whether the loader was seen to start its workers for one epoch after the other."""
    record = facts.record
    if record is None or not record.num_workers or record.persistent_workers or record.epochs < 2:
        return False
    return facts.start_s is not None and bool(facts.batches) and not _made_anew(record)


def _made_anew(record: Loader) -> bool:
    """Whether the script makes a loader for each epoch: its workers end with it, kept or not."""
    return record.remade > 0 and record.epochs <= 2 * (record.remade + 1)


def _choose(evidence: Evidence, facts: LoaderFacts) -> tuple[int, Gain] | None:
    """The smallest number of workers within 2 % of the best, and its gain; None when none is worth it."""
    now = facts.workers or 0
    if _of_unknown_number(facts):
        gain = Gain.prior(evidence.what_if(Change(workers=_TWICE)), _TWICE_BASIS)
        return (_TWICE, gain) if gain.worth_it else None
    candidates: dict[int, Gain] = {}
    index = facts.index if facts.index >= 0 else None
    made_anew = facts.record is not None and _made_anew(facts.record)
    if _starts_again(facts):
        candidates[now] = Gain.of(evidence.what_if(Change(persistent=True, loader=index)))
    for workers in _candidates(evidence, facts, now) if _too_few(evidence, facts) else ():
        change = Change(workers=workers, persistent=not made_anew, loader=index)
        candidates[workers] = Gain.of(evidence.what_if(change))
    best = max((gain.likely for gain in candidates.values()), default=0.0)
    for workers, gain in candidates.items():
        if gain.worth_it and gain.likely >= 0.98 * best:
            return workers, gain
    return None


def _of_unknown_number(facts: LoaderFacts) -> bool:
    """Whether a bare trace says that there are workers, and not how many."""
    return facts.record is None and facts.workers is None


def _candidates(evidence: Evidence, facts: LoaderFacts, now: int) -> list[int]:
    record = evidence.record
    if record is None:
        return [each for each in (2, 4, 8) if each > now]  # another machine's cores are unknown
    cores = max(1, math.floor(record.environment.usable_cpus))
    fetch_s = facts.single_s or facts.fetch_s
    if fetch_s and facts.fetch_cpu_s is not None and facts.fetch_cpu_s > 0:
        # Workers that wait (disk, network) share a core: as many fit as waits overlap.
        cores = math.ceil(cores * min(4.0, fetch_s / facts.fetch_cpu_s))
    most = min(_MOST, max(cores, 1))
    loader = facts.record
    if loader is not None and loader.iterable and not _divides_its_data(loader):
        most = 1
    return [each for each in (1, 2, 3, 4, 6, 8, 12, 16) if now < each <= most]


def _parameters(evidence: Evidence, facts: LoaderFacts, workers: int) -> dict[str, object]:
    record, loader = evidence.record, facts.record
    parameters: dict[str, object] = {"workers": workers, "recorded": facts.workers or 0}
    if _of_unknown_number(facts):
        parameters["more"] = True
    if record is None or loader is None:
        return parameters
    owner = framework_of(loader.owner)
    if owner:
        parameters |= {"framework": owner, **construction(evidence)}
    # Workers started by fork have the parent's memory; the others import the script again. Where some did, they can.
    parameters["imports_again"] = not loader.num_workers and record.environment.start_method in _IMPORTING
    parameters["fork"] = _may_fork(record)
    parameters["unpicklable"] = _unpicklable(loader)
    parameters["script"] = record.script
    parameters["gpu"] = record.environment.cuda_available or evidence.device_is_gpu
    parameters["remade"] = _made_anew(loader)
    parameters["source"] = loader.source
    parameters["source_file"] = loader.source_site.file if loader.source_site is not None else ""
    return parameters


def _may_fork(record: RunRecord) -> bool:
    """Whether workers may be forked: on Linux, unless the script has asked for another start method."""
    return "linux" in record.environment.platform.lower() and record.environment.start_method != "spawn"


def _unpicklable(loader: Loader) -> str:
    """What workers of another process could not be sent, as far as its name tells."""
    local = [name for name in (loader.dataset, loader.collate) if "<l" in name]  # <lambda>, <locals>
    return local[0] if local else ("a Lambda transform" if "Lambda" in loader.transforms else "")


def _unmet(evidence: Evidence, loader: Loader | None, workers: int) -> tuple[str, ...]:
    record = evidence.record
    if record is None or loader is None:
        # With the script at hand its user can judge; the summary says what to judge.
        return () if evidence.source_sites else ("The trace alone does not say how many cores the machine has.",)
    found = []
    shm = record.environment.shm_bytes
    needed = made_ahead_bytes(loader, workers, loader.prefetch_factor or DEFAULT)
    if shm is not None and needed > SHM_SHARE * shm:
        found.append(
            f"/dev/shm has {shm / 1e6:.0f} MB free and {workers} workers keep {needed / 1e6:.0f} MB of batches there: "
            "enlarge it (docker run --shm-size) or pass prefetch_factor=1."
        )
    method, what = record.environment.start_method, _unpicklable(loader)
    if method in _IMPORTING and not loader.num_workers and not _may_fork(record) and what:
        found.append(f"Workers started by {method} cannot take {what}: move it to the top level of a module.")
    if loader.draws_own and (loader.num_workers or 0) < 2 <= workers:
        found.append(
            "The dataset draws random numbers with a generator of its own, of which all workers would have the same "
            "copy: make it anew in each, in worker_init_fn, of torch.initial_seed()."
        )
    device = next((each.device for each in loader.tensors if each.device not in ("", "cpu")), "")
    if device and not loader.num_workers:
        found.append(
            f"The dataset or its collate function puts the batches on {device} itself, which workers cannot use: have "
            "them stay on the CPU there, and move each batch in the loop."
        )
    return tuple(found)


def _draws(loader: Loader) -> bool:
    """Whether samples are made with random numbers, of which workers draw others."""
    return bool(loader.draws) or any(word in name.lower() for name in loader.transforms for word in _RANDOM)


def _told_of_epochs(loader: Loader) -> bool:
    """Whether the dataset is told of each epoch in the script's own process: workers that live on do not hear of it."""
    return "set_epoch" in text_of(loader.dataset_file)


def _divides_its_data(loader: Loader) -> bool:
    """Whether the dataset's own file asks which worker it is in."""
    return "get_worker_info" in text_of(loader.dataset_file)
