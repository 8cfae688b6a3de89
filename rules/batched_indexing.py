"""A dataset in memory is indexed sample by sample, and stacked again: one index for the whole batch does the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from advisor.edit import Draft, Drafts
from advisor.edit.calls import DATALOADER_PARAMETERS, argument, has_starred, unpacked
from advisor.edit.locate import call_at
from advisor.edit.names import fresh_name, from_module, full_name, last_part
from advisor.edit.scopes import assigned_once, scope_of
from advisor.edit.sums import elements
from advisor.evidence import Change
from advisor.evidence.loading import bulk
from advisor.evidence.loading.felt import waits
from advisor.evidence.loading.fetching import begins_anew
from advisor.fixes import edited
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, at, file_list, model_files, where

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence

_LEAST_GAIN = 1.1  # of a fetch that takes a fraction of a millisecond, the rest is not known better than that
_LEAST_ROWS = 8  # in a batch
_BASIS = "TensorDataset, 32 to 1,024 rows: indexing a batch at once takes a fifteenth per row (measured)"
_MODULE = "torch.utils.data"
_POSITIONAL = 3  # dataset, batch_size, shuffle: nobody passes more of them by position
_KNOWN = frozenset(
    (*DATALOADER_PARAMETERS, "generator", "prefetch_factor", "persistent_workers", "pin_memory_device", "in_order")
)
_GONE = ("batch_size", "batch_sampler", "sampler", "drop_last")  # attributes of a loader that mean something else then
_BY_TENSOR = (
    "The indices of the Subset or of the sampler are a tensor, of which torch takes several elements for several "
    "dimensions: give it indices.tolist()."
)
_NUMBERS = frozenset({"tolist", "item", "int", "numpy"})  # make numbers of a tensor's elements
_NO_TENSORS = frozenset({"torch.Generator", "torch.manual_seed"})
_SCOPES = (cst.Lambda, cst.CompFor, cst.IfExp, cst.BooleanOperation, cst.GeneratorExp, cst.ListComp, cst.DictComp)


class BatchedIndexing(Rule):
    """The samples are rows of tensors in memory, and the loader indexes them one by one and stacks them again.

    ``DataLoader`` asks a dataset for one sample after another and collates what it gets: about 5 µs per tensor and
    sample, for a thousand rows of a table 10 ms, and a small model's step takes one. A tensor (or array) takes a list
    of indices as well, and gives all rows at once. With ``batch_size=None`` the loader hands each element of its
    sampler to the dataset as it is, so a ``BatchSampler`` as the sampler makes it ask for whole batches: the same
    rows in the same order, in as many batches. Reported for ``TensorDataset``, and for datasets of the script's own
    whose ``__getitem__`` only indexes tensors or arrays that were seen in memory, and changes types.

    When not: ``__getitem__`` does something for each sample (a random augmentation, a length of its own); the script
    has a ``collate_fn``; the step does not wait for data. Afterwards ``loader.batch_size`` is None.

    Source: PyTorch docs, ``torch.utils.data``, "Disable automatic batching": "it may be cheaper to directly load
    batched data"; ``BatchSampler``. The cost per row was measured for this project
    (:mod:`advisor.evidence.loading.bulk`).
    """

    id = "batched-indexing"
    title = "Index whole batches of a dataset in memory"
    safety = Safety.EXACT

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        for facts in evidence.loaders:
            loader = facts.record
            if loader is None or not facts.fetch_s or not waits(facts) or begins_anew(loader):
                continue
            if loader.cls != "DataLoader" or not loader.tensors or loader.tensors[0].device != "cpu":
                continue
            rows = loader.tensors[0].shape[0] if loader.tensors[0].shape else 0
            if rows < _LEAST_ROWS or not bulk.indexed_at_once(loader):
                continue
            fetch_s = bulk.fetch_s(facts)
            change = Change(fetch_s=fetch_s, fetch_cpu_s=fetch_s, loader=facts.index)
            gain = Gain.prior(evidence.what_if(change), _BASIS)
            if gain.likely < _LEAST_GAIN:
                continue
            name = loader.source.rpartition(".")[2]
            yield Finding(
                rule=self.id,
                title=self.title,
                summary=f"Each batch indexes {name} {rows} times and stacks the rows again, "
                f"{facts.fetch_s / rows * 1e6:.1f} µs for each of them: the step waits {facts.wait_s * 1e3:.1f} ms "
                f"({facts.wait_share:.0%}) for data that is in memory.",
                gain=gain,
                evidence={
                    "data_wait_s": facts.wait_s,
                    "data_wait_share": facts.wait_share,
                    "fetch_s": facts.fetch_s,
                    "fetch_at_once_s": fetch_s,
                    "rows": rows,
                    "workers": facts.workers,
                    "step_s": evidence.step_s,
                },
                site=facts.site,
                parameters={"files": model_files(evidence)},
                unmet=(_BY_TENSOR,) if loader.chosen_by_tensor else (),
            )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Advice:
        text = (
            f"Have the loader {where(finding.site)} ask its dataset for whole batches: batch_size=None, and "
            "sampler=BatchSampler(RandomSampler(dataset), batch_size, drop_last)."
        )
        site = finding.site
        if site is None:
            return Advice(text, "its place is unknown")
        if finding.unmet:
            return Advice(text, " ".join(finding.unmet))
        drafts = Drafts(sources)
        draft = drafts[site.file]
        call = call_at(draft, site, ("DataLoader",))
        if call is None:
            return Advice(text, "the call cannot be told from others on its line")
        for path in dict.fromkeys((site.file, *file_list(finding, "files"))):
            if sources.has(path) and (read := _reads_loader(drafts[path])):
                return Advice(text, f"{at(site)} is read by {read}, which is another thing then")
        if why := _ask_for_batches(draft, call):
            return Advice(text, why)
        return edited(drafts, text)

    EXAMPLES = (
        Example(
            before="""
from torch.utils.data import DataLoader, TensorDataset

train_set = TensorDataset(x, y)
loader = DataLoader(train_set, batch_size=1024, shuffle=True, pin_memory=True)  # <-
for xb, yb in loader:
    step(xb, yb)
""",
            after="""
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

train_set = TensorDataset(x, y)
loader = DataLoader(train_set, batch_size=None, sampler=BatchSampler(RandomSampler(train_set), 1024, drop_last=False), pin_memory=True)
for xb, yb in loader:
    step(xb, yb)
""",  # noqa: E501
        ),
        Example(
            before="""
import torch.utils.data as data

def make(self, x, y, g):
    return data.DataLoader(  # <-
        data.TensorDataset(x, y),  # in memory
        self.hp.batch,
        True,
        drop_last=True,
        generator=g,
    )
""",
            after="""
import torch.utils.data as data

def make(self, x, y, g):
    dataset = data.TensorDataset(x, y)
    return data.DataLoader(
        dataset,  # in memory
        batch_size=None,
        sampler=data.BatchSampler(data.RandomSampler(dataset, generator=g), self.hp.batch, drop_last=True),
        generator=g,
    )
""",
        ),
        Example(
            before="import torch\nl = torch.utils.data.DataLoader(rows, batch_size=args.bs, shuffle=args.mix)  # <-\n",
            after="import torch\nl = torch.utils.data.DataLoader(rows, batch_size=None, "
            "sampler=torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(rows) if args.mix else "
            "torch.utils.data.SequentialSampler(rows), args.bs, drop_last=False))\n",
        ),
        Example(
            before="from torch.utils.data import DataLoader\nmine = Mine(rows)\n"
            "l = DataLoader(rows, sampler=mine, batch_size=64)  # <-\n",
            after="from torch.utils.data import DataLoader, BatchSampler\nmine = Mine(rows)\n"
            "l = DataLoader(rows, sampler=BatchSampler(mine, 64, drop_last=False), batch_size=None)\n",
        ),
        Example(
            before="""
import torch
from torch.utils.data import BatchSampler, DataLoader

class Mixed(torch.utils.data.Sampler):
    def __iter__(self):
        yield from torch.randperm(self.count).tolist()

l = DataLoader(rows, 64, sampler=Mixed(rows))  # <-
""",
            after="""
import torch
from torch.utils.data import BatchSampler, DataLoader

class Mixed(torch.utils.data.Sampler):
    def __iter__(self):
        yield from torch.randperm(self.count).tolist()

l = DataLoader(rows, batch_size=None, sampler=BatchSampler(Mixed(rows), 64, drop_last=False))
""",
        ),
        Example(
            before="from torch.utils.data import DataLoader\nfor x, y in DataLoader(rows, 64):  # <-\n    step(x, y)\n",
            after="from torch.utils.data import DataLoader, BatchSampler, SequentialSampler\n"
            "for x, y in DataLoader(rows, batch_size=None, "
            "sampler=BatchSampler(SequentialSampler(rows), 64, drop_last=False)):\n    step(x, y)\n",
        ),
    )
    LEAVES_ALONE = (
        Example("l = DataLoader(rows, 64)  # <-\nn = len(l) * l.batch_size\n", ""),
        Example("both = {'train': DataLoader(rows, 64)}  # <-\nn = len(both['train'].sampler)\n", ""),
        Example("l: DataLoader = DataLoader(rows, 64)  # <-\nn = l.batch_size\n", ""),
        Example("l = DataLoader(rows, 64, collate_fn=mine)  # <-\n", ""),
        Example("l = DataLoader(rows, **settings)  # <-\n", ""),
        Example("l = DataLoader(rows, batch_sampler=mine)  # <-\n", ""),
        Example(  # its elements are tensors
            """
class Mixed(torch.utils.data.Sampler):
    def __iter__(self):
        yield from torch.randperm(self.count)

mixed = Mixed(rows)
l = DataLoader(rows, 64, sampler=mixed)  # <-
""",
            "",
        ),
        Example("ls = [DataLoader(TensorDataset(x), 64) for x in xs]  # <- DataLoader\n", ""),
        *(
            Example(f"{made}\nl = DataLoader(rows, 64, {given})  # <-\n", "")
            for made, given in (
                ("mine = DistributedSampler(rows) if several else None", "sampler=mine"),
                ("mine = several and DistributedSampler(rows)", "sampler=mine"),
                ("mine = None\nif several:\n    mine = DistributedSampler(rows)", "sampler=mine"),
                ("mine = DistributedSampler(rows)", "shuffle=mine is None, sampler=mine"),
                ("", "shuffle=True, generator=torch.Generator().manual_seed(0)"),
            )
        ),
        Example("def make(rows, sampler=None):\n    return DataLoader(rows, 64, sampler=sampler)  # <-\n", ""),
        Example("l = DataLoader(rows, 64, sampler=self.sampler)  # <-\n", ""),
    )


def _ask_for_batches(draft: Draft, call: cst.Call) -> str:
    """Have the loader's sampler make the batches; why not, as a clause, where that cannot be written."""
    keywords = {arg.keyword.value for arg in call.args if arg.keyword is not None}
    positional = sum(arg.keyword is None for arg in call.args)
    if has_starred(call) or unpacked(call) or positional > _POSITIONAL or keywords - _KNOWN:
        return "what the loader is given cannot be told from the source"
    given = {name: argument(call, name, DATALOADER_PARAMETERS) for name in _KNOWN}
    dataset, size = given["dataset"], given["batch_size"]
    if dataset is None or size is None:
        return "what the loader is given cannot be told from the source"
    if given["collate_fn"] is not None or given["batch_sampler"] is not None:
        return "the loader makes its batches in a way of its own"
    name = _named(draft, call, dataset.value)
    if not name:
        return "the dataset has no name that the sampler could be given"

    def written(kind: str) -> str:
        return from_module(draft, _MODULE, kind)

    generator = given["generator"]
    if generator is not None and not isinstance(generator.value, (cst.Name, cst.Attribute)):
        return "its generator has no name that the sampler could be given, too"
    seeded = f", generator={draft.code(generator.value)}" if generator is not None else ""
    shuffle, sampler = given["shuffle"], given["sampler"]
    mixed = draft.code(shuffle.value) if shuffle is not None else "False"
    batches = written("BatchSampler")
    if sampler is not None and draft.code(sampler.value) != "None":
        if _goes_through_a_tensor(draft, sampler.value):
            return "the sampler gives elements of a tensor, of which torch takes several for several dimensions"
        if shuffle is not None or not isinstance(_made(draft, sampler.value), cst.Call):
            return "whether there is a sampler is known when the script runs"
        rows = draft.code(sampler.value)
    elif mixed == "True":
        rows = f"{written('RandomSampler')}({name}{seeded})"
    elif mixed in ("False", "None"):
        rows = f"{written('SequentialSampler')}({name})"
    else:
        if not isinstance(shuffle.value if shuffle is not None else None, (cst.Name, cst.Attribute)):
            mixed = f"({mixed})"
        rows = f"{written('RandomSampler')}({name}{seeded}) if {mixed} else {written('SequentialSampler')}({name})"
    last = draft.code(given["drop_last"].value) if given["drop_last"] is not None else "False"
    code = f"{batches}({rows}, {draft.code(size.value)}, drop_last={last})"
    if "\n" in code:
        return "what the loader is given goes over several lines"
    _give(draft, call, given, name, code)
    return ""


def _made(draft: Draft, sampler: cst.BaseExpression) -> cst.BaseExpression | None:
    """What a name stands for, where it is assigned once; any other expression is itself."""
    if not isinstance(sampler, cst.Name):
        return sampler
    scopes = (scope_of(draft, sampler), draft.module)
    return next(filter(None, (assigned_once(draft, sampler.value, each) for each in scopes)), None)


def _goes_through_a_tensor(draft: Draft, sampler: cst.BaseExpression) -> bool:
    """Whether a sampler of the file's own goes through what torch computes, and makes no numbers of its elements."""
    made = _made(draft, sampler)
    name = last_part(made.func) if isinstance(made, cst.Call) else ""
    for method in draft.nodes(cst.FunctionDef):
        holder = draft.enclosing_class(method)
        if method.name.value != "__iter__" or holder is None or holder.name.value != name:
            continue
        called = {full_name(draft, each.func) or last_part(each.func) for each in draft.nodes(cst.Call, method)}
        if _NUMBERS.isdisjoint(each.rpartition(".")[2] for each in called):
            return any(each.startswith("torch.") for each in called - _NO_TENSORS)
    return False


def _give(draft: Draft, call: cst.Call, given: dict[str, cst.Arg | None], name: str, code: str) -> None:
    """Have the call's arguments changed: each stays in its place, and what the sampler replaces goes."""
    place = {name: list(call.args).index(arg) for name, arg in given.items() if arg is not None}
    tight = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    equal = next((arg.equal for arg in call.args if isinstance(arg.equal, cst.AssignEqual)), tight)

    def keyword(arg: cst.Arg, word: str, value: str) -> cst.Arg:
        return arg.with_changes(keyword=cst.Name(word), equal=equal, value=cst.parse_expression(value))

    def change(node: cst.CSTNode) -> cst.CSTNode:
        updated = cst.ensure_type(node, cst.Call)
        args: list[cst.Arg | None] = list(updated.args)
        first = updated.args[place["dataset"]]
        if draft.code(first.value) != name:
            args[place["dataset"]] = first.with_changes(value=cst.parse_expression(name))
        size = updated.args[place["batch_size"]]
        args[place["batch_size"]] = keyword(size, "batch_size", "None")
        sampling = place.get("sampler", place.get("shuffle"))
        if sampling is not None:
            args[sampling] = keyword(updated.args[sampling], "sampler", code)
        for gone in ("shuffle", "drop_last"):
            if gone in place and place[gone] != sampling:
                args[place[gone]] = None
        kept = [arg for arg in args if arg is not None]
        if sampling is None:
            index = kept.index(
                next(arg for arg in kept if arg.keyword is not None and arg.keyword.value == "batch_size")
            )
            between = (
                first.comma
                if isinstance(first.comma, cst.Comma)
                else cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
            )
            old = kept[index]
            new = keyword(old, "sampler", code)
            kept[index : index + 1] = [
                old.with_changes(comma=between, whitespace_after_arg=cst.SimpleWhitespace("")),
                new,
            ]
        if kept[-1] is not updated.args[-1] and args[-1] is None:
            # What followed the last argument (its line break, no comma) follows the one that is the last now.
            tail = updated.args[-1]
            kept[-1] = kept[-1].with_changes(comma=tail.comma, whitespace_after_arg=tail.whitespace_after_arg)
        return updated.with_changes(args=kept)

    draft.change(call, change)


def _named(draft: Draft, call: cst.Call, dataset: cst.BaseExpression) -> str:
    """A name for the dataset, which is given one where it is made in the call; "" where that cannot be written."""
    if _is_name(dataset):
        return draft.code(dataset)
    statement = draft.statement(call)
    if statement is None or isinstance(statement, (cst.While, cst.FunctionDef, cst.ClassDef, cst.With, cst.If)):
        return ""
    for above in draft.ancestors(call):
        if above is statement:
            break
        if isinstance(above, _SCOPES):
            return ""
    if "\n" in draft.code(dataset):
        return ""
    name = fresh_name(draft, "dataset")
    draft.insert_before(statement, f"{name} = {draft.code(dataset)}")
    return name


def _is_name(node: cst.BaseExpression) -> bool:
    """``rows``, ``self.rows``: what may be written twice."""
    while isinstance(node, cst.Attribute):
        node = node.value
    return isinstance(node, cst.Name)


def _reads_loader(draft: Draft) -> str:
    """Where a file reads what a loader that is not asked for batches has no more: ``loader.batch_size``."""
    given = [(target.target, each.value) for each in draft.nodes(cst.Assign) for target in each.targets]
    given += [(each.target, each.value) for each in draft.nodes(cst.AnnAssign) if each.value is not None]
    # A list of them, or a mapping, has as well; what a function gives is not looked into.
    loaders = {
        last_part(each)
        for target, value in given
        if any(last_part(call.func) == "DataLoader" for call in draft.nodes(cst.Call, value))
        for each in elements(target)
    } - {""}
    for node in draft.nodes(cst.Attribute):
        value: cst.BaseExpression = node.value
        while isinstance(value, cst.Subscript):
            value = value.value
        name = last_part(value)
        if node.attr.value in _GONE and (
            name in loaders or "load" in name.lower() or name.lower() in ("dl", "iterator", "it")
        ):
            return draft.code(node)
    return ""
