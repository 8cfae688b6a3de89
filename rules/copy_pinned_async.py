"""Batches are copied to the GPU from pageable memory, and the script waits for each copy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst
import numpy as np
from numpy.typing import NDArray

from advisor.edit import Draft, Drafts, Sources
from advisor.edit.born import born_at
from advisor.edit.calls import DATALOADER_PARAMETERS, argument, has_starred
from advisor.edit.copied import made_by_others, overwritten
from advisor.edit.locate import call_at, last_name
from advisor.edit.modules import TooManyFilesError, with_word
from advisor.edit.names import bindings, plain_name
from advisor.edit.origins.values import EDITED, bound_to, give
from advisor.edit.scopes import assigned_once, scope_of
from advisor.evidence import Change
from advisor.evidence.coded import names_like
from advisor.evidence.gpu.births import MAKERS, births_anywhere
from advisor.evidence.gpu.copies import blocking_time
from advisor.evidence.gpu.syncs import COPY_OPERATORS
from advisor.evidence.steps import assign
from advisor.fixes import edited
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
    framework_of,
    site_list,
    sites,
)
from advisor.shared.frameworks import configured, construction, framework_set_up, told

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence
    from advisor.harness.layout import CallSite, Loader, Site
    from advisor.trace.tables import Ints

# Bytes per second that pinned memory reaches, where the run has no such copies to go by: on the slowest bus still in
# use, PCIe 3.0 x16 (15.75 GB/s on paper), about 12 in NVIDIA's bandwidthTest; the data centres' GPUs of compute
# capability 8.0 have PCIe 4.0 and reach some 25, those of 9.0 and 10.0 have 5.0 and reach 55 (nvbandwidth's sample
# output), of which less is counted on, as virtual machines have less. A pageable copy goes through a staging buffer at
# a fraction of the bus.
_PINNED_RATE, _PINNED_RATES = 12e9, {(8, 0): 22e9, (9, 0): 40e9, (10, 0): 40e9}
_LEAST_FACTOR = 0.15
_LARGE, _TELLING = 1 << 20, 4 << 20  # bytes: smaller copies are about starting them; of fewer in all nothing is told
_SAID_S = 5e-6  # less is 0.00 ms
_ABOUT = 1.1  # counts of the run and of the trace differ by so much, where an epoch ends in between

_FRAMEWORKS = {
    "transformers": "Pass TrainingArguments(dataloader_pin_memory=True, "
    'accelerator_config={"non_blocking": True}): the first is the default.',
    "lightning": "Give the DataLoader that you hand to the Trainer pin_memory=True; Lightning does the rest.",
    "accelerate": "Give the DataLoader that you hand to accelerator.prepare() pin_memory=True, and pass "
    "Accelerator(dataloader_config=DataLoaderConfiguration(non_blocking=True)).",
}


# Buffers that the next round, or the next call, writes to while the copy still waits for its turn.
_WRITTEN_AGAIN = (
    """
class Replay:
    def __init__(self, n, d):
        self.buf = torch.empty(n, d).pin_memory()

    def sample(self, idx):
        torch.index_select(self.data, 0, idx, out=self.buf)
        return self.buf.to("cuda")  # <- copies
""",
    """
class Replay:
    def fill(self, rows):
        for i, row in enumerate(rows):
            self.buf[i] = row

    def sample(self, n):
        if self.buf is None:
            self.buf = torch.empty(64, 8).pin_memory()
        return self.buf[:n].to("cuda")  # <- copies
""",
    """
buf = torch.empty(64, 8).pin_memory()

def load(batch):
    buf.copy_(batch)
    return buf.cuda()  # <- copies
""",
    """
def move(x):
    return x.to(device)  # <- copies

def train(loader):
    buf = torch.empty(64, 8).pin_memory()
    for batch in loader:
        buf.copy_(batch)
        step(move(buf))
""",
)


class CopyPinnedAsync(Rule):
    """Copies to the GPU start in pageable memory, so each of them blocks the script and the GPU waits.

    The driver cannot copy from pageable memory by itself: it first copies into a buffer of its own, and the call
    returns only when that is done. From pinned (page-locked) memory the GPU reads directly, at the full rate of the
    bus, and with ``non_blocking=True`` the script goes on to launch kernels meanwhile. Neither helps alone: from
    pageable memory ``non_blocking`` still waits, and a pinned copy without it does too.
    ``DataLoader(pin_memory=True)`` pins batches in a thread of its own.

    When not: the machine's memory is short (pinned pages cannot be swapped); the copies are hidden behind kernels
    already; copies from the GPU to the CPU, where ``non_blocking`` needs a synchronization before the data is read.

    Source: CUDA C++ Best Practices Guide, "Pinned Memory"; PyTorch tutorial "A guide on good usage of non_blocking
    and pin_memory() in PyTorch".
    """

    id = "copy-pinned-async"
    title = "Copy batches from pinned memory, without waiting"
    safety = Safety.EXACT

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        if not evidence.device_is_gpu:
            return
        rows = evidence.copies.of("HtoD")
        pageable = [row for row in rows if row.pageable]
        seconds, size = sum(row.total_s for row in rows), sum(row.bytes for row in rows)
        if not size or not any(row.blocking for row in rows):
            return
        record = evidence.record
        training = [each for each in record.loaders if each.trains] if record is not None else []
        loaders = [each for each in training if not each.pin_memory]
        copies = tuple(
            each
            for each in call_sites(evidence, "Tensor.to", "Tensor.cuda")
            if each.details.get("from_device") == "cpu"
            and each.details.get("to_device") == "cuda"
            and not each.details.get("non_blocking")
        )
        # What a factory makes on the CPU needs no better copy, but none: that is tensor-born-on-cpu's.
        drafts = Drafts(Sources())
        batches = tuple(each for each in copies if born_at(drafts, each.site) is None)
        if (copies and not batches) or _waits_for_births(evidence):
            return
        copies = batches
        changed = _changed(evidence, training, copies)
        gain = Gain.of(evidence.what_if(Change(copies_async=changed, h2d_scale=_factors(evidence, changed))))
        if not gain.worth_it:
            return
        made = [each.site for each in loaders if each.site is not None]
        if record is None and pageable:  # the trace says that it does not pin
            made = [each.site for each in call_sites(evidence, "DataLoader", every_step=False)]
        blocked, waiting = sum(row.blocking_s for row in rows), sum(row.waiting_s for row in rows)
        owners = [owner for each in loaders if (owner := framework_of(each.owner))]
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"Each step copies {_size(size)} to the GPU, "
            f"{sum(row.bytes for row in pageable) / size:.0%} of it from pageable memory; the host is blocked for "
            f"{blocked * 1e3:.2f} ms"
            + (f", {waiting * 1e3:.2f} ms of it until the GPU gets to the copies." if waiting >= _SAID_S else "."),
            gain=gain,
            evidence={
                "h2d_bytes": size,
                "h2d_s": seconds,
                "h2d_exposed_s": sum(row.exposed_s for row in rows),
                "h2d_blocking_s": blocked,
                "h2d_waiting_s": waiting,
                "h2d_pageable_share": sum(row.bytes for row in pageable) / size,
            },
            site=copies[0].site if copies else None,
            parameters={
                "copies": sites(copies),
                "of_libraries": sites(tuple(each for each in copies if _in_a_library(each))),
                "loaders": tuple(made),
                "by_hand": bool(pageable) and record is not None and not record.loaders,
                "framework": owners[0] if owners else "",
                **construction(evidence),
            },
            unmet=_unmet(loaders),
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        copies, loaders = site_list(finding, "copies"), site_list(finding, "loaders")
        text = _in_words(*loaders, *copies)
        if finding.unmet:
            return Advice(text, " ".join(finding.unmet))
        framework = str(finding.parameters.get("framework") or "")
        if framework == "transformers":
            settings = {"accelerator_config": '{"non_blocking": True}', "dataloader_pin_memory": "True"}
            return configured(finding, sources, framework, settings, _FRAMEWORKS[framework], "transformers copies")
        if framework:
            return Advice(_FRAMEWORKS[framework], f"{framework} makes the loader")
        if framework_set_up(finding) == "accelerate":
            return self._prepared(finding, sources)
        if finding.parameters.get("by_hand"):
            return Advice(
                f"At {at(finding.site)} copy with x.pin_memory().to(device, non_blocking=True) if there is a GPU.",
                "the batch is made by hand, and pin_memory() raises on a machine without a GPU",
            )
        if not copies and not loaders:
            return Advice(text, "the places are unknown")
        drafts = Drafts(sources)
        others = site_list(finding, "of_libraries")
        tensors = tuple(site for site in copies if site not in others and not _is_of_others(drafts, site))
        if copies and not tensors:
            return Advice(text, "what is copied is what other code returns, whose `to` may not take non_blocking")
        copies, text = tensors, _in_words(*loaders, *tensors)
        for site in loaders:
            draft = drafts[site.file]
            call = call_at(draft, site, ("DataLoader",))
            if call is None or give(drafts, draft, call, "pin_memory", "True", DATALOADER_PARAMETERS, False) != EDITED:
                return Advice(text, f"whether the loader at {at(site)} pins memory is decided elsewhere")
        for site in copies:
            draft = drafts[site.file]
            call = call_at(draft, site, ("to", "cuda"))
            function = call.func if call is not None else None
            if isinstance(function, cst.Attribute) and overwritten(draft, function, function.value):
                return Advice(
                    text, f"what is copied at {at(site)} is written to again, perhaps before the copy is done"
                )
            if call is not None and _also_to_cpu(drafts, draft, call):
                return Advice(
                    text,
                    f"the copy at {at(site)} is also one to the CPU, whose values would be read before they are there",
                )
            if call is None or not _without_waiting(drafts, draft, call):
                return Advice(text, f"the copy at {at(site)} cannot be changed safely")
        return edited(drafts, text)

    def _prepared(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        """The fix where Accelerate copies: what it is told, and the script's own loader."""
        text, why = _FRAMEWORKS["accelerate"], "accelerate copies"
        settings = {"dataloader_config": "accelerate.DataLoaderConfiguration(non_blocking=True)"}
        if told(finding, "dataloader_config") is not None:
            return Advice(text, "the script has a dataloader_config of its own")

        def pin(drafts: Drafts, draft: Draft, call: cst.Call) -> str:
            for site in site_list(finding, "loaders"):
                of = drafts[site.file]
                made = call_at(of, site, ("DataLoader",))
                if made is None or give(drafts, of, made, "pin_memory", "True", DATALOADER_PARAMETERS, False) != EDITED:
                    return f"whether the loader at {at(site)} pins memory is decided elsewhere"
            return ""

        return configured(finding, sources, "accelerate", settings, text, why, pin)

    EXAMPLES = (
        Example(
            before="""
loader = DataLoader(dataset, batch_size=64)  # <- loaders
for images, labels in loader:
    images = images.to(device)  # to the GPU  # <- copies
    labels = labels.cuda()  # <- copies
""",
            after="""
loader = DataLoader(dataset, batch_size=64, pin_memory=True)
for images, labels in loader:
    images = images.to(device, non_blocking=True)  # to the GPU
    labels = labels.cuda(non_blocking=True)
""",
        ),
        Example(  # net.train() is no call of this function
            before="""
def train(net, loader, device="cpu"):
    net.train()
    for x in loader:
        net(x.to(device))  # <- copies

loader = DataLoader(dataset, batch_size=64)  # <- loaders
train(net, loader, device="cuda")
""",
            after="""
def train(net, loader, device="cpu"):
    net.train()
    for x in loader:
        net(x.to(device, non_blocking=True))

loader = DataLoader(dataset, batch_size=64, pin_memory=True)
train(net, loader, device="cuda")
""",
        ),
        Example(
            before="""
kwargs = {"num_workers": 2, "pin_memory": False}
loader = torch.utils.data.DataLoader(  # <- loaders
    dataset,
    **kwargs,
)
x, y = x.to(device), y  # <- copies
""",
            after="""
kwargs = {"num_workers": 2, "pin_memory": True}
loader = torch.utils.data.DataLoader(
    dataset,
    **kwargs,
)
x, y = x.to(device, non_blocking=True), y
""",
        ),
        Example(  # another batch each time
            before="""
for batch in loader:
    batch["x"] = batch["x"].to(device)  # <- copies
    for name, y in batch["labels"].items():
        y[y < 0] = 0
        step(y.to(device))  # <- copies=y.to(device)
""",
            after="""
for batch in loader:
    batch["x"] = batch["x"].to(device, non_blocking=True)
    for name, y in batch["labels"].items():
        y[y < 0] = 0
        step(y.to(device, non_blocking=True))
""",
        ),
        Example(  # what a transform of others returns stays as it is
            before="""
import torch

loader = DataLoader(dataset)  # <- loaders
for images, targets in loader:
    images = transform(images)[0].to(device)  # <- copies
    targets = torch.stack(targets).to(device)  # <- copies=torch.stack(targets).to(device)
""",
            after="""
import torch

loader = DataLoader(dataset, pin_memory=True)
for images, targets in loader:
    images = transform(images)[0].to(device)
    targets = torch.stack(targets).to(device, non_blocking=True)
""",
        ),
        Example(  # pinned already: only the waiting goes
            before="""
batch = {k: v.to("cuda", non_blocking=False) for k, v in batch.items()}  # <- copies
""",
            after="""
batch = {k: v.to("cuda", non_blocking=True) for k, v in batch.items()}
""",
        ),
        Example(
            before="""
from accelerate import Accelerator

accelerator = Accelerator()  # <- config
loader = accelerator.prepare(DataLoader(dataset, batch_size=64))  # <- loaders=DataLoader(dataset, batch_size=64)
""",
            after="""
from accelerate import Accelerator
import accelerate

accelerator = Accelerator(dataloader_config=accelerate.DataLoaderConfiguration(non_blocking=True))
loader = accelerator.prepare(DataLoader(dataset, batch_size=64, pin_memory=True))
""",
            parameters={"config_kind": "Accelerator"},
        ),
        Example(
            before='args = TrainingArguments("out", bf16=True)  # <- config\n',
            after='args = TrainingArguments("out", bf16=True, accelerator_config={"non_blocking": True})\n',
            parameters={"framework": "transformers", "config_values": {"dataloader_pin_memory": True}},
        ),
    )
    LEAVES_ALONE = (
        Example(  # an object of a library's, which moves its tensors itself
            "for batch in loader:\n    batch = batch.to(device)  # <- copies, of_libraries\n",
            "",
        ),
        Example(
            "Accelerator(dataloader_config=config)  # <- config\n",
            "",
            {"config_kind": "Accelerator", "config_values": {"dataloader_config": "…"}},
        ),
        Example(  # back, too
            """
def move(batch, device):
    return {name: each.to(device) for name, each in batch.items()}  # <- copies

for batch in loader:
    out = model(move(batch, "cuda"))
    seen.append(move(out, "cpu"))
""",
            "",
        ),
        *(
            Example(f"import torch\n{move}\nfor x in loader:\n    y = {back}\n    print(y.numpy())\n", "")
            for move, back in (
                (
                    "cpu = torch.device('cpu')\ndef move(t, d):\n    return t.to(d)  # <- copies",
                    "move(net(move(x, gpu)), cpu)",
                ),
                ("def move(t, d='cpu'):\n    return t.to(d)  # <- copies", "move(net(move(x, 'cuda')))"),
                ("move = lambda t, d: t.to(d)  # <- copies", "move(net(move(x, 'cuda')), 'cpu')"),
            )
        ),
        Example("loader = DataLoader(ds, pin_memory=torch.cuda.is_available())  # <- loaders\n", ""),
        Example("x = x.to(device, torch.float32, False)  # <- copies\n", ""),
        Example("x = x.to(device)  # <- copies\n", "", {"by_hand": True}),
        Example(  # one buffer for all batches
            """
buffer = torch.empty(64, 8).pin_memory()
for batch in loader:
    buffer.copy_(batch)
    x = buffer.to(device)  # <- copies
""",
            "",
        ),
        Example("for i, s in games:\n    rows[i] = s\n    x = rows.to(device)  # <- copies\n", ""),
        *(Example(text, "") for text in _WRITTEN_AGAIN),
        Example(  # torchvision's ImageList has a method of its own
            """
loader = DataLoader(dataset)  # <- loaders
for images, targets in loader:
    images = transform(images)[0].to(device)  # <- copies
""",
            "",
        ),
    )


def _in_words(*places: Site) -> str:
    """What to do, and where."""
    text, where = "Give the loader pin_memory=True and the copies to the GPU non_blocking=True", map(at, places)
    return f"{text}, at {', '.join(dict.fromkeys(where))}." if places else f"{text}."


def _unmet(loaders: list[Loader]) -> tuple[str, ...]:
    """Why the batches cannot be pinned: memory of the GPU, which a part of them is in, is none to pin."""
    device = next((t.device for each in loaders for t in each.tensors if t.device not in ("", "cpu")), "")
    said = f"The dataset or its collate function puts a part of the batches on {device}, and pinning that raises."
    return (f"{said} Have them stay on the CPU there, and move each batch in the loop.",) if device else ()


def _size(size: float) -> str:
    """Bytes in megabytes, or in kilobytes where that would be 0.0."""
    return f"{size / 1e6:.1f} MB" if size >= 5e4 else f"{size / 1e3:.1f} kB"


def _waits_for_births(evidence: Evidence) -> bool:
    """Whether the host is blocked mostly by copies of tensors that a factory has made right before."""
    blocked, _, _ = blocking_time(evidence.device)
    copies = evidence.trace.copies
    inside = (assign(evidence.steps, copies.start) >= 0) & names_like(evidence.trace, copies.kind, "HtoD".__eq__)
    born = births_anywhere(evidence.steps, evidence.device, evidence.nesting, MAKERS).rows
    return bool(2 * blocked[born].sum() > blocked[inside].sum())


def _changed(evidence: Evidence, loaders: list[Loader], places: tuple[CallSite, ...]) -> Ints:
    """Rows of ``Trace.copies`` that the fix changes: of the loaders' batches, or made at these places.

    Where there are more copies than these, their bytes tell: a forward uploads besides, when it makes a tensor of
    numbers. Where the bytes differ from batch to batch it is the largest copies of each step.
    """
    steps, copies = evidence.steps, evidence.trace.copies
    step = assign(steps, copies.start)
    rows = np.flatnonzero((step >= 0) & names_like(evidence.trace, copies.kind, "HtoD".__eq__))
    rows = rows[_by_themselves(evidence, rows)]
    sizes = {tensor.bytes for each in loaders for tensor in each.tensors}
    sizes |= {int(place.details.get("bytes", 0)) for place in places}
    expected = sum(place.calls_per_step for place in places) or float(sum(len(each.tensors) for each in loaders))
    if not expected or len(rows) <= _ABOUT * expected * len(steps):
        return rows
    same = rows[np.isin(copies.bytes[rows], list(sizes))]
    if _ABOUT * len(same) >= expected * len(steps):
        return same
    largest = rows[np.lexsort((-copies.bytes[rows], step[rows]))]
    rank = np.arange(len(largest)) - np.searchsorted(step[largest], step[largest])
    return largest[rank < max(1, round(expected))]


def _by_themselves(evidence: Evidence, rows: Ints) -> NDArray[np.bool_]:
    """Which of these copies no other operator makes for itself, as indexing does with an index on the CPU."""
    trace = evidence.trace
    launch = evidence.device.items_launch[len(trace.kernels) + rows]
    others = names_like(trace, trace.operators.name, lambda name: name not in COPY_OPERATORS)
    alone = np.ones(len(rows), np.bool_)
    known = np.flatnonzero(launch >= 0)
    outer = evidence.nesting.outermost_around(trace.runtime, launch[known])
    alone[known[outer >= 0]] = ~others[outer[outer >= 0]]
    return alone


def _factors(evidence: Evidence, changed: Ints) -> NDArray[np.float64]:
    """New over old device time of each copy, when those of `changed` that are pageable run at the pinned rate."""
    copies = evidence.trace.copies
    factors = np.ones(len(copies))
    slow = changed[copies.pageable[changed]]
    taken = float((copies.end - copies.start)[slow].sum(dtype=np.float64)) / 1e9
    if taken:
        size = float(copies.bytes[slow].sum(dtype=np.float64))
        factors[slow] = min(1.0, max(_LEAST_FACTOR, size / _pinned_rate(evidence) / taken))
    return factors


def _pinned_rate(evidence: Evidence) -> float:
    """Bytes per second of the trace's own copies from pinned memory, or what the device's bus is known for."""
    copies = evidence.trace.copies
    said = names_like(evidence.trace, copies.name, lambda name: "HtoD" in name and "Pinned" in name)
    pinned = said & (copies.bytes >= _LARGE)
    taken = float((copies.end - copies.start)[pinned].sum(dtype=np.float64)) / 1e9
    size = float(copies.bytes[pinned].sum(dtype=np.float64))
    if size >= _TELLING:
        return size / taken
    return _PINNED_RATES.get(evidence.capability or (0, 0), _PINNED_RATE)


def _in_a_library(copy: CallSite) -> bool:
    """Whether what the script moves is an object of a library's, whose ``to`` moves the tensors: it may take less."""
    return str(copy.details.get("inside", "torch.")).partition(".")[0] != "torch"


def _is_of_others(drafts: Drafts, site: Site) -> bool:
    """Whether what is copied at a place is, by the text, no tensor: of a class that has a ``to`` of its own."""
    draft = drafts[site.file]
    call = call_at(draft, site, ("to", "cuda"))
    function = call.func if call is not None else None
    return isinstance(function, cst.Attribute) and made_by_others(drafts, draft, function.value)


def _without_waiting(drafts: Drafts, draft: Draft, call: cst.Call) -> bool:
    method = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
    positional = [arg for arg in call.args if arg.keyword is None]
    # .to(device, dtype, non_blocking) and .cuda(device, non_blocking): set by position, and not simply to see.
    if argument(call, "non_blocking") is None and len(positional) > (1 if method == "cuda" else 2):
        return False
    return give(drafts, draft, call, "non_blocking", "True", (), False) == EDITED


_TO_CPU = re.compile(r"""(torch\.device\()?["']cpu["']\)?""")


def _also_to_cpu(drafts: Drafts, draft: Draft, call: cst.Call) -> bool:
    """Whether the function that copies is somewhere told "cpu": without waiting, values are read before they come."""
    named = _function_around(draft, call)
    if named is None:
        return False
    name, parameters, is_method = named
    in_order = [each.name.value for each in parameters.params if each.name.value not in ("self", "cls")]
    every = (*parameters.params, *parameters.kwonly_params)
    left_out = [each.name.value for each in every if each.default is not None and _is_cpu(draft, each.default)]
    try:
        users = list(with_word(drafts, draft, name))
    except TooManyFilesError:
        return True  # too many to look at
    for user in users:
        bound = bindings(user)
        for each in user.nodes(cst.Call):
            # net.train() is no call of a function train(net, device="cpu"); helpers.move(x) may be.
            of_object = isinstance(each.func, cst.Attribute) and plain_name(each.func).partition(".")[0] not in bound
            if last_name(user, each) != name or (of_object and not is_method):
                continue
            if any(_is_cpu(user, arg.value) for arg in each.args):
                return True
            if not has_starred(each) and any(argument(each, one, in_order) is None for one in left_out):
                return True
    return False


def _function_around(draft: Draft, call: cst.Call) -> tuple[str, cst.Parameters, bool] | None:
    """The name and the parameters of the function that copies, or of the lambda, and whether it is a method."""
    for above in draft.ancestors(call):
        if isinstance(above, cst.FunctionDef):
            return above.name.value, above.params, isinstance(scope_of(draft, above), cst.ClassDef)
        if isinstance(above, cst.Lambda) and (name := bound_to(draft, above)):
            return name, above.params, False
    return None


def _is_cpu(draft: Draft, value: cst.BaseExpression) -> bool:
    """Whether that is the CPU, or a name that is given it."""
    given = [value]
    if isinstance(value, cst.Name):
        scopes = (scope_of(draft, value), draft.module)
        given += [each for of in scopes if (each := assigned_once(draft, value.value, of)) is not None]
    return any(_TO_CPU.fullmatch(draft.code(each)) for each in given)
