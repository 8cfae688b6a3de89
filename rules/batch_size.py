"""The batch is small: each step's fixed costs are spread over few samples, and memory is left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import libcst as cst

from advisor.edit import Draft, Drafts, Sources
from advisor.edit.calls import argument
from advisor.edit.loading.batches import give_batch_size, said_at, value_written_at, written_at
from advisor.edit.loading.tied import divided_by, takes_first
from advisor.edit.locate import call_at
from advisor.edit.sources import text_of
from advisor.evidence import CAPTURES, COLD, Change
from advisor.evidence.facts import OTHER
from advisor.evidence.loading.fetching import stacks
from advisor.evidence.loading.from_lists import reading_s
from advisor.evidence.outside import source_of, updates_weights
from advisor.evidence.python_loops.added_gradients import compares_samples
from advisor.evidence.python_loops.handmade import accumulated, by_hand, loops_over, one_by_one
from advisor.evidence.steps import assign
from advisor.fixes import given_fix
from advisor.harness.layout import Site
from advisor.rule import (
    Advice,
    Argument,
    Example,
    Finding,
    Gain,
    Rule,
    Safety,
    at,
    call_sites,
    forward_sites,
    framework_of,
    model_files,
    serving_engine,
    where,
)
from advisor.shared.batch_gains import (
    LEAST_GAIN,
    chosen_scale,
    expected_memory,
    gains_by_scale,
    of_each_sample,
    paid_once,
    where_part_stays,
)
from advisor.shared.frameworks import configured, construction, told
from advisor.shared.larger_batches import ACCUMULATES, added_together, added_up, said_places, say_size, tied_to

if TYPE_CHECKING:
    from advisor.edit import Edit
    from advisor.evidence import Evidence
    from advisor.harness.layout import Loader, RunRecord

_TOGETHER = "Accumulate gradients over fewer, larger batches"
_EACH_DEVICE = "per_device_train_batch_size"  # of TrainingArguments
_MORE_TOGETHER = (16, 32)  # times as many samples at once, where as many go into a step as before
_SCALES = (2, 4, 8)  # more than eightfold is another training recipe, not a setting: it is not proposed unmeasured
_AT_A_TIME = (8, 16, 32)  # samples of inference that take them one by one: it is no training's recipe
_LARGEST = 64  # the loop goes on doubling on a GPU while that is faster; the tuning guides' own examples end at 16-fold
_BUSY = 0.8  # of the step: a device that computes for longer has nothing to give
_LEAST_LAUNCHES = 20  # per step of a bare trace: with fewer it is no model's step
_MOST_WAIT = 0.2  # a step that waits longer for data needs a faster loader: each sample costs what it costs

_FRAMEWORKS = {
    "transformers": "Pass TrainingArguments(per_device_train_batch_size={batch}).",
    "lightning": "Give the DataLoader that you hand to the Trainer batch_size={batch}.",
    "accelerate": "Give the DataLoader that you hand to accelerator.prepare() batch_size={batch}.",
}
_ENGINES = {
    "vllm": "Give vLLM more requests at a time, as far as latency allows (max_num_seqs, max_num_batched_tokens).",
    "sglang": "Give SGLang more requests at a time, as far as latency allows (--max-running-requests).",
}
_RATE = (
    "More samples per step mean fewer steps: raise the learning rate with the batch ({times} times for SGD, "
    "{root:.1f} times for Adam), warm it up over the first epochs, and compare the validation loss."
)
# Share of the step in which lists become tensors, number by number. It grows with the batch, and so does what Python
# does to make them; the model takes both for what does not: it said 3.8 times where such a mask took 220 of 340 ms.
_MOST_LISTS = 0.1
_MOST_OUTSIDE = 0.3  # of the step, in a function beside forward, backward and optimizer

# For examples: gradients of eight batches, of four samples each, are added up.
_OF_EIGHT = {"batch": 32, "recorded": 4, "times": 8, "together": 8}


class BatchSize(Rule):
    """The batch is so small that the device spends much of each step on what does not depend on the batch.

    Launching kernels, Python, and the optimizer cost the same for 16 samples as for 64, and small kernels leave most
    of a GPU idle. A larger batch spreads that over more samples, as far as memory reaches: what activations take
    grows with the batch, parameters and optimizer state do not. The gain given is per sample.

    This changes the training: with k times the batch there are k times fewer steps. The usual remedy is a learning
    rate raised k-fold (SGD) or by the square root of k (Adam), warmed up over the first epochs; above some batch
    size, different for each problem, results get worse. In inference it only changes latency, and where gradients are
    accumulated over small batches, fewer and larger ones give the same.

    When not: the step waits for data (then the loader comes first); the batch size is part of a recipe to reproduce;
    latency of single requests counts; small data sets.

    Source: Goyal et al. 2017, "Accurate, Large Minibatch SGD" (linear scaling, warm-up); Malladi et al. 2022, "On the
    SDEs and Scaling Rules for Adaptive Gradient Algorithms" (square root); McCandlish et al. 2018, "An Empirical
    Model of Large-Batch Training".
    """

    id = "batch-size"
    title = "Use a larger batch"
    safety = Safety.BEHAVIOUR
    after = ("debug-modes-left-on", "loader-workers", "amp-autocast", "channels-last")

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record = evidence.record
        if record is None:
            yield from self._of_bare_trace(evidence)
            return
        loader = evidence.feeding
        if loader is not None and (not loader.batch_size or (evidence.data_wait_share or 0.0) > _MOST_WAIT):
            return
        if record.tracebacks_s:  # what does not grow with the batch is anomaly detection, which has to go first
            return
        if _grows(evidence):
            return
        trains = any(each.steps for each in record.optimizers)
        alone = None if trains or loader is not None else one_by_one(record, forward_sites(evidence), text_of)
        if alone is not None:
            yield from self._of_one_by_one(evidence, record, alone)
            return
        if not trains and not any(model.calls for model in record.models):  # the batches are looked at, not computed on
            return
        if _beside_grows(evidence, trains):
            return
        backwards = call_sites(evidence, "backward") if trains and loader is None else ()
        rounds = accumulated(evidence, record, backwards, text_of)
        if rounds is not None:
            yield from self._of_accumulated(evidence, record, *rounds)
            return
        batch = loader.batch_size if loader is not None else by_hand(evidence, record, text_of)
        length = loader.dataset_length if loader is not None else None
        if loader is not None and batch and trains:
            together, parameters = added_together(evidence, loader)
            if together > 1:
                yield from self._of_told(evidence, record, loader, together, parameters)
                return
        gains = gains_by_scale(evidence, record, batch, length, trains, _SCALES) if batch else {}
        chosen = chosen_scale(evidence, gains)
        if chosen is None or not batch or loops_over(evidence, forward_sites(evidence), text_of, batch):
            return
        said = said_places(record, forward_sites(evidence), batch) if loader is None else ()
        if loader is None and not said:
            return
        scale, gain = chosen
        larger, share = batch * scale, evidence.memory.share
        forwards = forward_sites(evidence)
        made = loader.site if loader is not None else said[0][0]
        place = made or (forwards[0].site if forwards else None)
        largest = _LARGEST if evidence.device_is_gpu else _SCALES[-1]
        scales = [2**power for power in range(1, largest.bit_length())]
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"Each step takes {batch} samples"
            + (f" and {share:.0%} of the device's memory" if share is not None and evidence.device_is_gpu else "")
            + f"; with {larger} the costs that do not grow with the batch are spread over {scale} times as many.",
            gain=gain,
            evidence={
                "batch_size": batch,
                "peak_memory_share": share if evidence.device_is_gpu else None,
                "samples_per_s": evidence.samples_per_s,
                "expected_memory": expected_memory(record, scale, trains),
            },
            site=place,
            parameters={
                "batch": larger,
                "recorded": batch,
                "times": scale,
                "trains": trains,
                "framework": framework_of(loader.owner) if loader is not None else "",
                "said": said,
                "files": _files(evidence, record),
                **construction(evidence),
                "sizes": tuple(gains_by_scale(evidence, record, batch, length, trains, scales).items()),
            },
            unmet=_unmet(record, loader),
            safety=None if trains else Safety.NUMERIC,
        )

    def _of_one_by_one(self, evidence: Evidence, record: RunRecord, loop: Site) -> Iterator[Finding]:
        """Inference for one sample after another, in a loop of the script's own."""
        stays = of_each_sample(evidence)
        gains = gains_by_scale(evidence, record, 1, None, False, _AT_A_TIME)
        chosen = chosen_scale(evidence, {scale: where_part_stays(gain, stays) for scale, gain in gains.items()})
        if chosen is None or stays > _MOST_OUTSIDE:
            return
        batch, gain = chosen
        yield Finding(
            rule=self.id,
            title="Give the model several samples at a time",
            summary=f"The loop at {at(loop)} calls the model for one sample after another; {batch} at a time take less "
            f"than {batch} times as long, for most of what one takes does not depend on how many there are.",
            gain=gain,
            evidence={"batch_size": 1, "samples_per_s": evidence.samples_per_s},
            site=loop,
            parameters={"batch": batch, "recorded": 1, "times": batch, "trains": False, "alone": True},
            safety=Safety.NUMERIC,
        )

    def _of_accumulated(self, evidence: Evidence, record: RunRecord, rows: int, rounds: int) -> Iterator[Finding]:
        """Gradients that are accumulated over more and smaller batches than memory asks for."""
        if _compares(evidence):
            return
        scales = [scale for scale in _SCALES if rounds % scale == 0]
        chosen = chosen_scale(evidence, gains_by_scale(evidence, record, rows, None, True, scales))
        places = forward_sites(evidence)
        if chosen is None or not places:
            return
        scale, gain = chosen
        parameters: dict[str, object] = {"rounds": rounds}
        yield _added_up(evidence, record, rows, rounds, scale, gain, site=places[0].site, parameters=parameters)

    def _of_told(
        self, evidence: Evidence, record: RunRecord, loader: Loader, rounds: int, parameters: Mapping[str, object]
    ) -> Iterator[Finding]:
        """The same of a loader's batches, where a framework is told how many go together, or the script counts them."""
        if _compares(evidence):
            return
        batch = cast(int, loader.batch_size)
        scales = [scale for scale in (*_SCALES, *_MORE_TOGETHER) if rounds % scale == 0]
        gains = gains_by_scale(evidence, record, batch, None, True, scales)
        if not evidence.device_is_gpu:
            gains = {scale: paid_once(evidence, scale) for scale in gains}
        chosen = chosen_scale(evidence, gains)
        if chosen is None:
            return
        scale, gain = chosen
        known = {"together": rounds, "framework": framework_of(loader.owner), "files": _files(evidence, record)}
        found = _added_up(
            evidence, record, batch, rounds, scale, gain, site=loader.site, parameters={**known, **parameters}
        )
        yield replace(found, unmet=_unmet(record, loader))

    def _of_bare_trace(self, evidence: Evidence) -> Iterator[Finding]:
        """Twice the batch, whatever it is, where the host prepares launches and the device waits for them."""
        shares, memory = evidence.breakdown.shares, evidence.memory.share
        launches = sum(row.count for row in evidence.kernels) / max(1, len(evidence.steps))
        idle = shares.get("idle_launch", 0.0)
        if not evidence.device_is_gpu or evidence.bound != "host" or launches < _LEAST_LAUNCHES:
            return
        if evidence.capture_share >= CAPTURES or evidence.setup_share >= COLD:
            return
        if _launched_for_batch(evidence) < _LEAST_LAUNCHES:
            return  # an optimizer's step is the same for any batch
        if shares["kernel"] > 0.5 or idle < 0.5 * evidence.breakdown.idle_share or (memory or 0.0) > 0.5:
            return
        gain = Gain.of(evidence.what_if(Change(batch_scale=2.0)))
        if gain.likely < LEAST_GAIN:
            return
        unknown = "how large the batch is" + ("" if memory is not None else ", nor how much memory it takes")
        loader = evidence.loaders[0].site if evidence.loaders else None
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{launches:.0f} kernels keep the GPU busy for {1 - evidence.breakdown.idle_share:.0%} of the step;"
            " launching them takes as long for twice the batch.",
            gain=gain,
            evidence={
                "launches_per_step": launches,
                "idle_share": evidence.breakdown.idle_share,
                "peak_memory_share": memory,
            },
            site=loader,
            parameters={"times": 2, "trains": evidence.trains, "framework": serving_engine(evidence)},
            unmet=(f"The trace does not say {unknown}.",),
            safety=None if evidence.trains else Safety.NUMERIC,
        )

    def search(self, finding: Finding) -> tuple[Finding, ...]:
        """Each twice the one before: the best is where it gets no faster, or memory ends."""
        sizes, recorded = finding.parameters.get("sizes", ()), finding.parameters.get("recorded")
        if not isinstance(sizes, tuple) or not isinstance(recorded, int):
            return (finding,)
        return tuple(
            replace(
                finding,
                title=f"Use a batch of {recorded * times}",
                gain=gain,
                parameters={**finding.parameters, "batch": recorded * times, "times": times},
            )
            for times, gain in sizes
        )

    def relieve(self, evidence: Evidence) -> Finding | None:
        """Half the batch."""
        loader = evidence.feeding
        if loader is None or not loader.batch_size or loader.batch_size < 2:
            return None
        half = loader.batch_size // 2
        return Finding(
            rule=self.id,
            title=f"Use a batch of {half}",
            summary=f"Half as many samples at a time ({half}) take about half of the memory that the batch takes.",
            gain=Gain(1.0, 1.0, 1.0),
            evidence={"batch_size": loader.batch_size},
            site=loader.site,
            parameters={
                "batch": half,
                "recorded": loader.batch_size,
                "framework": framework_of(loader.owner),
                **construction(evidence),
            },
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        batch, times, site = finding.parameters.get("batch"), finding.parameters.get("times", 2), finding.site
        rate = ""
        if finding.parameters.get("trains") and isinstance(times, int):
            rate = _RATE.format(times=times, root=times**0.5)
        if finding.parameters.get("alone"):
            return Advice(
                f"Collect {batch} samples in the loop at {at(site)} and call the model once for them: torch.stack() "
                "inputs of one shape, pad sequences (on the left where the model goes on writing them) with a mask for "
                "what is padding, sort those of very different lengths first. More may be faster still.",
                "how its inputs go together only their author can tell",
            )
        rounds = finding.parameters.get("rounds")
        if isinstance(rounds, int) and isinstance(times, int):
            return Advice(
                f"Give the model {batch} samples at a time {where(site)}, and add up the gradients of "
                f"{rounds // times} such batches, not of {rounds}: where the loss is a mean over the batch, divided by "
                "their number, they come out the same (but for batch norms, which then see larger batches).",
                "which numbers of the script say how large a batch is, and how many go together, only its author knows",
            )
        framework = str(finding.parameters.get("framework") or "")
        if framework in _ENGINES:
            return Advice(_ENGINES[framework], f"{framework} makes the batches, from the requests that it has")
        if batch is None:
            text = f"Use a batch twice as large, {where(site)}, and more while the GPU idles. {rate}".strip()
            return Advice(text, " ".join(finding.unmet))
        together = finding.parameters.get("together")
        fewer = together // times if isinstance(together, int) and isinstance(times, int) else 0
        text = f"Use batch_size={batch} {where(site)}. {rate}".strip()
        if fewer:
            text = (
                f"Use batch_size={batch} {where(site)}, and "
                + (f"add up the gradients of {fewer} such batches" if fewer > 1 else "update the weights after each")
                + f", not after {together}: they come out the same (but for batch norms, which then see larger "
                "batches)."
            )
        if finding.unmet:
            return Advice(text, " ".join(finding.unmet))
        if framework:
            return self._told(finding, sources, framework, rate)
        if site is None:
            return Advice(text, "the place of the loader is unknown")
        drafts = Drafts(sources)
        draft = drafts[site.file]
        size, recorded = cast(int, batch), finding.parameters.get("recorded")
        known = finding.parameters.get("said")
        said = known if isinstance(known, tuple) else ()
        call = call_at(draft, site, ("DataLoader",)) if not said else None
        by_hand = said_at(drafts, said, cast(int, recorded))
        written = written_at(drafts, draft, call) if call is not None else by_hand
        if tied := tied_to(drafts, finding, written, size, of_more=not fewer):
            return Advice(text, tied)
        if call is not None and recorded == 1 and (line := takes_first(draft, call)) is not None:
            first = at(Site(draft.source.path, line))
            return Advice(text, f"of each batch the first sample is taken at {first}, and there would be more")
        if said:
            return say_size(drafts, said, written, size, text, rate)
        if call is None:
            return Advice(text, "the call cannot be told from others on its line")
        option, why = give_batch_size(drafts, draft, call, size, recorded)
        if option is None:
            return Advice(text, why)
        if fewer:
            return added_up(drafts, finding, cast(int, together), fewer, (draft, option, size), written.names, text)
        return given_fix(drafts, draft, option, str(size), text, rate)

    def _told(self, finding: Finding, sources: Sources, framework: str, rate: str) -> Edit | Argument | Advice:
        """The fix for a loader that the framework makes: Trainer's, whose arguments give the batch of one device."""
        batch, recorded = finding.parameters.get("batch"), finding.parameters.get("recorded")
        each = told(finding, _EACH_DEVICE)
        if isinstance(batch, int) and isinstance(recorded, int) and isinstance(each, int):
            batch = each * batch // recorded
        text = _FRAMEWORKS[framework].format(batch=batch)
        why = f"{framework} makes the loader"
        together, times = finding.parameters.get("together"), finding.parameters.get("times")
        settings = {_EACH_DEVICE: str(batch)}
        if isinstance(together, int) and isinstance(times, int):
            name = ACCUMULATES[str(finding.parameters.get("config_kind") or "TrainingArguments")]
            settings[name] = str(together // times)
            text = f"{text.rstrip('.')} with {name}={together // times}."
        if framework != "transformers" or told(finding, "auto_find_batch_size"):
            return Advice(text, why)
        size, before = cast(int, batch), each or recorded

        def accumulates(drafts: Drafts, draft: Draft, call: cst.Call) -> str:
            passed = argument(call, _EACH_DEVICE) if size > cast(int, before) else None
            written = value_written_at(drafts, draft, passed.value if passed is not None else None)
            counted = (divided_by(drafts, drafts[path], written.names, size) for path in written.files)
            return next(filter(None, counted), "")

        fix = configured(finding, sources, framework, settings, text, why, accumulates, together=len(settings) > 1)
        return Argument(fix.options, rate) if isinstance(fix, Argument) else fix

    EXAMPLES = (
        Example(
            before="loader = DataLoader(ds, 32, shuffle=True)  # small  # <-\n",
            after="loader = DataLoader(ds, 128, shuffle=True)  # small\n",
            parameters={"batch": 128, "recorded": 32, "times": 4, "trains": True},
        ),
        Example(
            before="""
@dataclass
class Config:
    batch_size: int = 16  # per device
    lr: float = 0.1

def main():
    cfg = Config(lr=0.2)
    loader = DataLoader(  # <-
        dataset,
        batch_size=cfg.batch_size,
    )
""",
            after="""
@dataclass
class Config:
    batch_size: int = 64  # per device
    lr: float = 0.1

def main():
    cfg = Config(lr=0.2)
    loader = DataLoader(
        dataset,
        batch_size=cfg.batch_size,
    )
""",
            parameters={"batch": 64, "recorded": 16},
        ),
        Example(
            before="""
parser.add_argument("--batch-size", type=int, default=64, metavar="N")
args = parser.parse_args()
train_kwargs = {"batch_size": args.batch_size}
loader = DataLoader(dataset, **train_kwargs)  # <-
""",
            after="",
            parameters={"batch": 256, "recorded": 64},
            options={"--batch-size": "256"},
        ),
        Example(
            before="""
import click

@click.command()
@click.option("--batch-size", "-b", default=64)
def main(batch_size):
    loader = DataLoader(dataset, batch_size=batch_size)  # <-
""",
            after="",
            parameters={"batch": 256, "recorded": 64},
            options={"--batch-size": "256"},
        ),
        Example(
            before="""
import torch
from torch import nn

BATCH = 32
sampler = BatchSampler(RandomSampler(ds), BATCH, drop_last=True)
loader = DataLoader(ds, batch_sampler=sampler)  # <-
noise = torch.randn(BATCH, 100)
net = nn.Sequential(nn.Linear(100, 32), nn.Unflatten(1, (32, 1)))
""",
            after="""
import torch
from torch import nn

BATCH = 128
sampler = BatchSampler(RandomSampler(ds), BATCH, drop_last=True)
loader = DataLoader(ds, batch_sampler=sampler)
noise = torch.randn(BATCH, 100)
net = nn.Sequential(nn.Linear(100, 32), nn.Unflatten(1, (32, 1)))
""",
            parameters={"batch": 128, "recorded": 32},
        ),
        Example(
            before='args = TrainingArguments("out", per_device_train_batch_size=8)  # <- config\n',
            after='args = TrainingArguments("out", per_device_train_batch_size=32)\n',
            parameters={"batch": 32, "recorded": 8, "framework": "transformers"},
        ),
        Example(  # as many samples in a step as before
            before="args = TrainingArguments(  # <- config\n"
            '    "out", per_device_train_batch_size=2, gradient_accumulation_steps=16\n)\n',
            after="args = TrainingArguments(\n"
            '    "out", per_device_train_batch_size=16, gradient_accumulation_steps=2\n)\n',
            parameters={
                "batch": 16,
                "recorded": 2,
                "times": 8,
                "together": 16,
                "framework": "transformers",
                "config_values": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 16},
            },
        ),
        Example(  # its own loop counts them
            before="""
ACCUMULATE = 8
loader = DataLoader(ds, batch_size=4, shuffle=True)  # <-
for i, (x, y) in enumerate(loader):
    loss = criterion(net(x), y) / ACCUMULATE
    loss.backward()  # <- backward
    if (i + 1) % ACCUMULATE == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
""",
            after="""
ACCUMULATE = 1
loader = DataLoader(ds, batch_size=32, shuffle=True)
for i, (x, y) in enumerate(loader):
    loss = criterion(net(x), y) / ACCUMULATE
    loss.backward()
    if (i + 1) % ACCUMULATE == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
""",
            parameters=_OF_EIGHT,
        ),
        Example(
            before="""
loader = DataLoader(ds, batch_size=4)  # <-
trainer = L.Trainer(max_epochs=3, accumulate_grad_batches=8)  # <- config
""",
            after="""
loader = DataLoader(ds, batch_size=32)
trainer = L.Trainer(max_epochs=3, accumulate_grad_batches=1)
""",
            parameters=_OF_EIGHT | {"config_kind": "Trainer", "config_values": {"accumulate_grad_batches": 8}},
        ),
        Example(
            before="""
parser.add_argument("--bs", type=int, default=4)
parser.add_argument("--accumulate", type=int, default=8)
args = parser.parse_args()
accelerator = Accelerator(gradient_accumulation_steps=args.accumulate)  # <- config
loader = DataLoader(ds, batch_size=args.bs)  # <-
""",
            after="",
            parameters=_OF_EIGHT | {"config_kind": "Accelerator", "config_values": {"gradient_accumulation_steps": 8}},
            options={"--bs": "32", "--accumulate": "1"},
        ),
        Example(  # what a schedule counts by is the same number
            before="""
ACCUMULATE = 8
accelerator = Accelerator(gradient_accumulation_steps=ACCUMULATE)  # <- config
loader = DataLoader(ds, batch_size=4)  # <-
total = 3 * len(loader) // ACCUMULATE
""",
            after="""
ACCUMULATE = 1
accelerator = Accelerator(gradient_accumulation_steps=ACCUMULATE)
loader = DataLoader(ds, batch_size=32)
total = 3 * len(loader) // ACCUMULATE
""",
            parameters=_OF_EIGHT | {"config_kind": "Accelerator", "config_values": {"gradient_accumulation_steps": 8}},
        ),
        Example(  # how many there are follows from how large they are
            before="""
MICRO_BATCH = 4
rounds = 32 // MICRO_BATCH
for i, x in enumerate(DataLoader(ds, batch_size=MICRO_BATCH)):  # <-
    (net(x).mean() / rounds).backward()  # <- backward
    if i % rounds == rounds - 1:
        optimizer.step()
""",
            after="""
MICRO_BATCH = 32
rounds = 32 // MICRO_BATCH
for i, x in enumerate(DataLoader(ds, batch_size=MICRO_BATCH)):
    (net(x).mean() / rounds).backward()
    if i % rounds == rounds - 1:
        optimizer.step()
""",
            parameters=_OF_EIGHT,
        ),
        Example(  # the first of what is in a batch is all of it
            before="for batch in DataLoader(rows, batch_size=1):  # <-\n    total += net(batch[0])\n",
            after="for batch in DataLoader(rows, batch_size=8):\n    total += net(batch[0])\n",
            parameters={"batch": 8, "recorded": 1},
        ),
        Example(  # fewer steps of an epoch, other loaders, labels that grow with the batch
            before="""
import torch

BATCH = 32

def evaluate(net, ds, batch_size=32):
    for x in DataLoader(ds, batch_size=batch_size):
        net(x)

loader = DataLoader(ds, batch_size=BATCH)  # <-
held_out = DataLoader(rest, batch_size=32)
steps = len(ds) // BATCH
real = torch.ones(BATCH)
places = torch.arange(64)
evaluate(net, rest, batch_size=32)
""",
            after="""
import torch

BATCH = 128

def evaluate(net, ds, batch_size=32):
    for x in DataLoader(ds, batch_size=batch_size):
        net(x)

loader = DataLoader(ds, batch_size=BATCH)
held_out = DataLoader(rest, batch_size=32)
steps = len(ds) // BATCH
real = torch.ones(BATCH)
places = torch.arange(64)
evaluate(net, rest, batch_size=32)
""",
            parameters={"batch": 128, "recorded": 32},
        ),
        *(
            Example(
                f"""
parser.add_argument("--batch-size", {declared})
args = parser.parse_args()
loader = DataLoader(dataset, batch_size=args.batch_size)  # <-
{more}
""",
                "",
                {"batch": 128, "recorded": 32},
                advice="batch_size=128",
            )
            for declared, more in (
                ("type=int, choices=[16, 32]", ""),
                ("default=32", ""),  # text, where it is given
                ("type=int, default=32", "accumulate = 64 // args.batch_size"),
            )
        ),
    )
    LEAVES_ALONE = (
        Example("DataLoader(ds, batch_size=total // world)  # <-\n", "", {"batch": 64, "recorded": 32}),
        Example("DataLoader(ds, batch_size=8)  # <-\n", "", {"batch": 64, "recorded": 32}),
        Example("DataLoader(ds, batch_sampler=Buckets(ds, 32))  # <-\n", "", {"batch": 64, "recorded": 32}),
        Example("Batches(ds)  # <-\n", "", {"batch": 64, "recorded": 32}),
        # The number means something else as well.
        Example("bs = hidden = 32\nDataLoader(ds, batch_size=bs)  # <-\n", "", {"batch": 64, "recorded": 32}),
        Example(
            "class Args:\n    n: int = 32\nargs = Args()\nnet = Net(args.n)\nDataLoader(ds, batch_size=args.n)  # <-\n",
            "",
            {"batch": 64, "recorded": 32},
        ),
        Example("N = 32\nnet = Net(N)\nDataLoader(ds, batch_size=N)  # <-\n", "", {"batch": 64, "recorded": 32}),
        *(
            Example(
                f"{given}\nnet = Net({value})\nDataLoader(ds, batch_size={value})  # <-\n",
                "",
                {"batch": 64, "recorded": 32},
            )
            for given, value in (
                ("p.add_argument('--n', type=int, default=32)\nargs = p.parse_args()", "args.n"),
                ("cfg = {'n': 32}", "cfg['n']"),
            )
        ),
        Example(
            "from torch import nn\nbs = 32\nnet = nn.Linear(bs, 10)\nDataLoader(ds, batch_size=bs)  # <-\n",
            "",
            {"batch": 64, "recorded": 32},
        ),
        Example(
            "import torch\nloader = DataLoader(ds, batch_size=32)  # <-\nstate = torch.zeros(2, 32, 128)\n",
            "",
            {"batch": 64, "recorded": 32},
        ),
        Example(
            "for x in DataLoader(ds, batch_size=32):  # <-\n    net(x.view(32, -1, 8))\n",
            "",
            {"batch": 64, "recorded": 32},
        ),
        *(
            Example(
                f"import torch\nloader = DataLoader(ds, batch_size=32)  # <-\n{code}\n",
                "",
                {"batch": 64, "recorded": 32},
            )
            for code in (
                "net = CharRNN(vocab, hidden=256, batch_size=32)",
                "targets = torch.arange(32)",
                "real = torch.full((32,), 1.0)",
                "start = state.repeat(1, 32, 1)",
            )
        ),
        *(
            Example(f"loader = DataLoader(pictures, batch_size=1)  # <-\n{code}\n", "", {"batch": 8, "recorded": 1})
            for code in (  # there is one in each
                "for name, x in loader:\n    save(name[0], net(x))",
                "for name, x in tqdm(loader):\n    y = net(x)\n    save(y.squeeze(0))",
                "bar = tqdm(loader)\nfor batch in bar:\n    save(net(batch['image'])[0, 1])",
            )
        ),
        Example(
            "BATCH = 16\nTOTAL = 64\nACCUM = TOTAL // BATCH\nloader = DataLoader(ds, batch_size=BATCH)  # <-\n",
            "",
            {"batch": 128, "recorded": 16},
        ),
        Example(
            "n = 64\nbs = 16\nargs = TrainingArguments(  # <- config\n    'out', per_device_train_batch_size=bs, "
            "gradient_accumulation_steps=n // bs\n)\n",
            "",
            {"batch": 64, "recorded": 16, "framework": "transformers"},
        ),
        Example(  # its loop counts them once more
            """
accelerator = Accelerator(gradient_accumulation_steps=8)  # <- config
for i, x in enumerate(DataLoader(ds, batch_size=4)):  # <-
    accelerator.backward(net(x).mean())
    if (i + 1) % 8 == 0:
        optimizer.step()
""",
            "",
            _OF_EIGHT | {"config_kind": "Accelerator", "config_values": {"gradient_accumulation_steps": 8}},
        ),
        Example(  # how many go together is computed
            "args = TrainingArguments(  # <- config\n    'out', per_device_train_batch_size=2, "
            "gradient_accumulation_steps=rounds(2)\n)\n",
            "",
            {"batch": 16, "recorded": 2, "times": 8, "together": 16, "framework": "transformers"},
        ),
        Example(  # another bs than the constant
            "bs = 32\nmake = lambda ds, bs: DataLoader(ds, batch_size=bs)  # <- \nmake(ds, 32)\n",
            "",
            {"batch": 64, "recorded": 32},
        ),
        Example(
            "kwargs = {'batch_size': 32}\ndef make(**kwargs):\n    return DataLoader(ds, **kwargs)  # <-\n",
            "",
            {"batch": 64, "recorded": 32},
        ),
    )


def _compares(evidence: Evidence) -> bool:
    """Whether a loss compares the samples of a batch: of fewer, larger ones the gradients are not the same."""
    return any(compares_samples(text_of(path)) for path in model_files(evidence))


def _grows(evidence: Evidence) -> bool:
    """Whether the step is busy, or what takes much of it is done for each number of a batch."""
    if evidence.device_is_gpu and evidence.shares.get("kernel", 0.0) > _BUSY:
        return True
    lists = [each for each in call_sites(evidence, "from_list") if each.details.get("loader", -1) == -1]
    return sum(map(reading_s, lists)) > _MOST_LISTS * (evidence.step_s or 0.0)


def _beside_grows(evidence: Evidence, trains: bool) -> bool:
    """Whether much of the step is done with each sample beside the model: a metric, say, or a picture is saved.

    An update of the weights is not: it takes as long for any batch.
    """
    found = evidence.outside
    outside = source_of(found, text_of(found.file)) if found is not None and found.share > _MOST_OUTSIDE else None
    if outside is not None and not updates_weights(outside):
        return True
    beside = evidence.beside if not trains else None
    if beside is None or beside.loops:
        return False
    return beside.part * evidence.breakdown.share(OTHER) > _MOST_OUTSIDE


def _added_up(
    evidence: Evidence,
    record: RunRecord,
    batch: int,
    rounds: int,
    scale: int,
    gain: Gain,
    *,
    site: Site | None,
    parameters: dict[str, object],
) -> Finding:
    """Gradients of `rounds` batches are added up, and could be of a `scale`-th as many, each `scale` times as large."""
    return Finding(
        rule=BatchSize.id,
        title=_TOGETHER,
        summary=f"Each step adds up the gradients of {rounds} batches of {batch} samples; of {rounds // scale} with "
        f"{batch * scale} they are the same, and what does not grow with a batch is done {scale} times less often.",
        gain=gain,
        evidence={
            "batch_size": batch,
            "batches_per_step": rounds,
            "samples_per_s": evidence.samples_per_s,
            "expected_memory": expected_memory(record, scale, True),
        },
        site=site,
        parameters={"batch": batch * scale, "recorded": batch, "times": scale, **parameters},
        safety=Safety.NUMERIC,
    )


def _launched_for_batch(evidence: Evidence) -> float:
    """Kernels per step of a bare trace that are not the optimizer's."""
    launch = evidence.device.items_launch[: len(evidence.trace.kernels)]
    launch = launch[launch >= 0]
    start = evidence.trace.runtime.start[launch]
    beside = (assign(evidence.steps, start) >= 0) & ~evidence.host.optimizer.contains(start)
    return float(beside.sum()) / max(1, len(evidence.steps)) if len(launch) else float("inf")


def _unmet(record: RunRecord, loader: Loader | None) -> tuple[str, ...]:
    """Why batches of several cannot be had by their size alone: samples of several shapes that nothing pads."""
    if loader is None or loader.batch_size != 1 or not record.shapes_vary:
        return ()
    if not stacks(loader):
        return ()
    return ("The samples differ in shape: more than one at a time need a collate_fn that pads them.",)


def _files(evidence: Evidence, record: RunRecord) -> tuple[str, ...]:
    """Where the batch's tensors are dealt with: also where a library's model was subclassed."""
    return tuple(dict.fromkeys((*model_files(evidence), *(each.file for each in record.models if each.file))))
