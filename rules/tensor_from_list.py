"""``torch.tensor`` is given lists, and reads their numbers one by one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import libcst as cst
import libcst.matchers as m

from advisor.edit import Drafts
from advisor.edit.calls import argument, has_starred, wrap_call
from advisor.edit.finding import found_in
from advisor.edit.locate import call_at
from advisor.edit.names import ensure_name, full_name
from advisor.evidence import Change
from advisor.evidence.loading.fetching import without
from advisor.evidence.loading.from_lists import numbers_in, reading_s
from advisor.fixes import edited
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, at, call_sites, site_list, sites

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.edit.draft import Draft
    from advisor.evidence import Evidence
    from advisor.harness.layout import CallSite, Site

# So much of the time is left when NumPy joins the list before: measured with torch 2.15 and NumPy 2.4, 128 arrays of
# 100 float32 values 0.97 and 0.012 ms, lists of 32 times 16,384 truth values 53 and 12 ms, of 128 times 100 floats 1.04
# and 0.15 ms. Rows that are made one by one and stacked, 64 to 256 of 4 to 200 floats: 0.06 to 0.30.
_LEFT = {"arrays": 0.02, "numbers": 0.22}
# What an array of the same numbers lacks: nothing; the type float32, which torch gives to floats; or a type that the
# call names.
_NEEDS = ("as_they_are", "singles", "said")
# Rows of a batch that are made into tensors one by one, to be stacked; so many at least, of as few numbers each.
_ROWS, _SINGLE_ROWS, _SAID_ROWS = "rows", "single_rows", "said_rows"  # each in need of the same
_MANY, _FEW = 64, 256
_PLAIN = m.Integer() | m.Float()
_SCALED = m.BinaryOperation(left=_PLAIN) | m.BinaryOperation(right=_PLAIN)  # which may be done to all rows at once
_ALL = (*_NEEDS, _ROWS, _SINGLE_ROWS, _SAID_ROWS)


class TensorFromList(Rule):
    """``torch.tensor`` makes a tensor of a list of arrays, or of lists of numbers, and reads each number by itself.

    Given a list, ``torch.tensor`` takes one Python object out of it after the other, also where the list holds NumPy
    arrays: some 75 ns for each number, a hundred times as long as it takes to copy the arrays. (PyTorch warns of it:
    "Creating a tensor from a list of numpy.ndarrays is extremely slow".) ``np.array`` joins them first, in one go. A
    replay buffer's samples, a collate function's lists and masks that Python makes are the usual cases. Rows that are
    made into tensors one by one, ``torch.stack([torch.tensor(row) for row in rows])``, cost several microseconds each.

    When not: the numbers need not be in lists at all: a buffer that is an array, or a mask that is a comparison of
    tensors, takes no time worth mentioning.

    Source: PyTorch's own warning in ``torch.tensor``; the rest was measured.
    """

    id = "tensor-from-list"
    title = "Join arrays before a tensor is made of them"
    safety = Safety.EXACT

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        calls = [each for each in call_sites(evidence, "from_list") if each.seconds_per_step]
        record = evidence.record
        if not calls or record is None or "numpy" not in record.environment.packages:
            return
        calls = [each for each in calls if not each.details.get("others")] or calls
        calls = [each for each in calls if not _is_row(each) or not _computes(each.site)]
        if not calls:
            return
        gain = Gain.of(evidence.what_if(_without(evidence, calls)))
        if not gain.worth_it:
            return
        most = max(map(numbers_in, calls))  # the first of those that read about as much, not what took longest
        calls.sort(key=lambda each: (numbers_in(each) < most / 2, each.site.file, each.site.line))
        taken = sum(map(reading_s, calls))
        numbers = sum(numbers_in(each) for each in calls)
        places = ", ".join(dict.fromkeys(at(each.site) for each in calls))
        rows = [each for each in calls if _is_row(each)]
        what = "lists of arrays" if any(each.details["given"] == "arrays" for each in calls) else "lists of numbers"
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=(f"{sum(each.calls_per_step for each in rows):,.0f} t" if len(rows) == len(calls) else "T")
            + f"ensors are made of {what} at {places}: {numbers:,.0f} numbers in each step, which torch reads one by "
            f"one, in {taken * 1e3:.2f} ms.",
            gain=gain,
            evidence={
                "numbers_per_step": numbers,
                "seconds_per_step": taken,
                "step_s": evidence.step_s,
            },
            site=calls[0].site,
            parameters={
                **{name: sites(tuple(each for each in calls if _needs(each) == name)) for name in _ALL},
                "others": any(each.details.get("others") for each in calls),
            },
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Advice:
        found = {name: site_list(finding, name) for name in _ALL}
        where = ", ".join(dict.fromkeys(at(site) for each in found.values() for site in each)) or "your script"
        text = f"Join what the tensors of {where} are made of with np.array first."
        if finding.parameters.get("others"):
            return Advice(text, "the same call is also given something else, or makes tensors of other types")
        drafts = Drafts(sources)
        for name, places in found.items():
            for site in places:
                draft = drafts[site.file]
                call = call_at(draft, site, ("tensor", "as_tensor"))
                if call is None or not (_join(draft, call, name) if name in _NEEDS else _stack(draft, call, name)):
                    return Advice(text, f"what the call at {at(site)} is given cannot be told from the source")
        return edited(drafts, text)

    EXAMPLES = (
        Example(
            before="""
import numpy as np
import torch

def sample(batch):
    states, actions = zip(*batch)
    states = torch.tensor(states, dtype=torch.float)  # <- as_they_are
    return states, torch.as_tensor(list(actions))
""",
            after="""
import numpy as np
import torch

def sample(batch):
    states, actions = zip(*batch)
    states = torch.tensor(np.array(states), dtype=torch.float)
    return states, torch.as_tensor(list(actions))
""",
        ),
        Example(
            before="""
import torch

mask = torch.tensor([[a == b for b in bank] for a in rolls], device=device)  # <- as_they_are
weights = torch.tensor(weights_of(batch))  # <- singles
scaled = torch.tensor(data=scales, dtype=torch.float32)  # <- singles
""",
            after="""
import torch
import numpy

mask = torch.tensor(numpy.array([[a == b for b in bank] for a in rolls]), device=device)
weights = torch.tensor(numpy.array(weights_of(batch), dtype=numpy.float32))
scaled = torch.tensor(data=numpy.array(scales), dtype=torch.float32)
""",
        ),
        Example(
            before="""
import numpy as np
import torch

class Memory:
    def sample(self, n):
        states, actions = zip(*random.sample(self.steps, n))
        states = torch.stack([torch.tensor(s, dtype=torch.float) for s in states])  # <- single_rows=torch.tensor
        goals = torch.stack([torch.tensor(g) for g in self.goals])  # <- single_rows=torch.tensor
        steps = zip(*self.steps)
        steps = torch.stack([torch.tensor(s) for s in steps])  # <- rows=torch.tensor
        doors = torch.stack([torch.tensor(d) for d in [each.door for each in self.steps]])  # <- rows=torch.tensor
        return states, torch.tensor(actions), goals
""",
            after="""
import numpy as np
import torch

class Memory:
    def sample(self, n):
        states, actions = zip(*random.sample(self.steps, n))
        states = torch.tensor(np.array(states), dtype=torch.float)
        goals = torch.tensor(np.array(list(self.goals), dtype=np.float32))
        steps = zip(*self.steps)
        steps = torch.tensor(np.array(list(steps)))
        doors = torch.tensor(np.array([each.door for each in self.steps]))
        return states, torch.tensor(actions), goals
""",
        ),
    )
    LEAVES_ALONE = (
        Example("import torch\nx = torch.stack([torch.tensor(f(r)) for r in rows])  # <- rows=torch.tensor\n", ""),
        Example("import torch\nx = torch.stack([torch.tensor(r) for r in rows if r])  # <- rows=torch.tensor(r)\n", ""),
        Example(
            "import torch\nx = torch.stack([torch.tensor(r, dtype=kind) for r in x])  # <- single_rows=torch.tensor\n",
            "",
        ),
        Example("import torch\nx = torch.stack([torch.tensor(r) for r in rows])  # <- said_rows=torch.tensor\n", ""),
        Example(  # what is said of it would be lost
            "import torch\nx = torch.stack([\n    torch.tensor(r) for r in rows  # drawn  # <- rows=torch.tensor\n])\n",
            "",
        ),
        Example("import torch\nx = torch.stack([torch.tensor(r) for r in rows], 1)  # <- rows=torch.tensor(r)\n", ""),
        Example("x = torch.tensor(*batch)  # <- as_they_are\n", ""),
        Example("x = torch.tensor(rows)  # <- as_they_are\n", "", {"others": True}),
        Example("def tensor_of(rows, dtype=None):\n    return torch.tensor(rows, dtype=dtype)  # <- singles\n", ""),
        Example("import torch\nx = torch.tensor(rows, dtype=self.dtype)  # <- singles\n", ""),
        Example("torch.set_default_dtype(torch.bfloat16)\nx = torch.tensor(rows)  # <- said\n", ""),
    )


def _without(evidence: Evidence, calls: Sequence[CallSite]) -> Change:
    """The step when NumPy joins the lists: those of batches for the loader that most is saved for, and all others."""
    saved: dict[object, float] = {}
    for call in calls:
        seconds = reading_s(call) * (1 - _LEFT[str(call.details["given"])])
        loader = call.details.get("loader", -1)
        saved[loader] = saved.get(loader, 0.0) + seconds
    between = Change(remove_host_s=saved.pop(-1, 0.0))
    fed = {facts.index: facts for facts in evidence.loaders if facts.index in saved and facts.wait_s}
    if not fed:
        return between
    facts = max(fed.values(), key=lambda each: saved[each.index])
    return replace(without(facts, min(saved[facts.index] / facts.wait_s, 1.0)), remove_host_s=between.remove_host_s)


def _is_row(call: CallSite) -> bool:
    return call.calls_per_step >= _MANY and numbers_in(call) < _FEW * call.calls_per_step


def _needs(call: CallSite) -> str:
    """What the joined array needs to become the same tensor: one of :data:`_ALL`."""
    dtype = call.details.get("dtype")
    if call.details["given"] == "arrays" or dtype in ("int64", "bool", "float64"):
        needs = 0
    else:
        needs = 1 if dtype == "float32" else 2
    return (_ROWS, _SINGLE_ROWS, _SAID_ROWS)[needs] if _is_row(call) else _NEEDS[needs]


def _computes(site: Site) -> bool:
    """Whether the tensor that is made there goes into arithmetic by itself: then there are no rows to be joined."""

    def operands(draft: Draft) -> list[bool]:
        call = call_at(draft, site, ("tensor", "as_tensor"))
        above = draft.parent(call) if call is not None else None
        if call is None or not isinstance(above, (cst.BinaryOperation, cst.UnaryOperation)):
            return [False]
        if isinstance(above, cst.BinaryOperation) and m.matches(above, _SCALED):
            return [False]
        # All rows of a comprehension may be joined, and computed with at once.
        return [not any(isinstance(each, (cst.ListComp, cst.GeneratorExp)) for each in draft.ancestors(call))]

    return any(found_in((site.file, site.line), operands))


def _join(draft: Draft, call: cst.Call, needs: str) -> bool:
    """Have NumPy join what `call` is given; False where that cannot be told."""
    data = argument(call, "data", ("data",))
    dtype = argument(call, "dtype")
    said = dtype is not None
    if data is None or has_starred(call) or (needs == "said" and not said):
        return False
    if dtype is not None and needs == "singles" and not full_name(draft, dtype.value).startswith("torch."):
        return False  # a name may be None, and so may an attribute
    join = ensure_name(draft, "numpy.array")
    if needs == "singles" and not said:
        draft.replace(data.value, f"{join}({draft.code(data.value)}, dtype={ensure_name(draft, 'numpy.float32')})")
    else:
        wrap_call(draft, data.value, join)
    return True


def _stack(draft: Draft, call: cst.Call, needs: str) -> bool:
    """``torch.stack([torch.tensor(row) for row in rows])`` as a tensor of all rows, joined; whether it is that.

    Floats become torch's float32, where the call does not say so.
    """
    comp = draft.parent(call)
    if not isinstance(comp, (cst.ListComp, cst.GeneratorExp)) or comp.elt is not call or has_starred(call):
        return False
    over, data = comp.for_in, argument(call, "data", ("data",))
    argued = draft.parent(comp)
    stack = draft.parent(argued) if isinstance(argued, cst.Arg) else None
    named = isinstance(over.target, cst.Name) and data is not None and isinstance(data.value, cst.Name)
    if not named or over.ifs or over.inner_for_in is not None or not isinstance(stack, cst.Call):
        return False
    whole = full_name(draft, stack.func) == "torch.stack" and len(stack.args) == 1
    if not whole or data is None or draft.code(over.target) != draft.code(data.value) or "#" in draft.code(stack):
        return False
    dtype = argument(call, "dtype")
    unsure = dtype is not None and not full_name(draft, dtype.value).startswith("torch.")
    if (needs == _SINGLE_ROWS and unsure) or (needs == _SAID_ROWS and (dtype is None or unsure)):
        return False  # a name may be None, and so may an attribute
    rows = draft.code(over.iter)
    if not isinstance(over.iter, (cst.ListComp, cst.List, cst.Tuple)) and not _unzipped(draft, over.iter):
        rows = f"list({rows})"  # it may be an iterator
    more = f", dtype={ensure_name(draft, 'numpy.float32')}" if needs == _SINGLE_ROWS and dtype is None else ""
    joined = f"{ensure_name(draft, 'numpy.array')}({rows}{more})"
    others = [draft.code(each).strip().rstrip(",") for each in call.args if each is not data]
    draft.replace(stack, f"{draft.code(call.func)}({', '.join([joined, *others])})")
    return True


def _unzipped(draft: Draft, node: cst.BaseExpression) -> bool:
    """Whether a name is one of those that ``zip(*batch)`` gives, which are tuples."""
    if not isinstance(node, cst.Name):
        return False
    before = [
        each
        for each in draft.nodes(cst.Assign, draft.function(node))
        if draft.line(each) < draft.line(node) and node.value in re.split(r"\W+", draft.code(each.targets[0].target))
    ]
    several = bool(before) and isinstance(before[-1].targets[0].target, (cst.Tuple, cst.List))
    return several and draft.code(before[-1].value).startswith("zip(*")
