"""A linear layer computes outputs for all positions of which a few are used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.edit import Draft, Drafts, Sources
from advisor.edit.algebra.positions import columns_taken, keep_last, take_before, takings
from advisor.edit.locate import call_at
from advisor.errors import AdvisorError
from advisor.evidence import Change
from advisor.evidence.algebra.unused_outputs import (
    BY_COLUMN,
    BY_LABEL,
    BY_MASK,
    BY_PLACE,
    PartlyUsed,
    loss_sites,
    unused_outputs,
)
from advisor.evidence.worked import spent_s
from advisor.fixes import edited
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
    forward_sites,
    site_list,
    where,
)

if TYPE_CHECKING:
    import libcst as cst

    from advisor.edit import Edit
    from advisor.evidence import Evidence

_MOST_USED = 0.5  # of the positions
# Of transformers' models with a head for language, of newer versions.
_KEEPS = "logits_to_keep"
# Views, and what only calls others: as many of them as before.
_NO_WORK = {
    f"aten::{name}"
    for name in (
        *("view", "reshape", "t", "transpose", "expand", "as_strided", "linear", "to", "dropout", "layer_norm"),
        *("resolve_conj", "empty", "empty_like", "empty_strided", "zeros", "contiguous", "select", "slice"),
    )
}
# The weights are read for the outputs and for the inputs' gradients, and their own gradients written, whatever the
# number of positions: at the 10 GB/s that a core gets from memory, as everywhere here.
_BYTES, _BANDWIDTH = 4, 10e9


class UnusedOutputs(Rule):
    """A linear layer is applied to every position of a sequence, and only a few of its outputs are ever used.

    ``self.head(states)[:, -1]`` computes scores for all positions, of a vocabulary say, and throws all but the last
    away; in training their backward, which is nearly all zeros, is computed as well. Taken before the layer,
    ``self.head(states[:, -1])``, there is one row per sequence to compute; a library's model is told so
    (``logits_to_keep=1``). So it is with a mask, ``scores[is_answer]``, of the positions that have a loss, with
    ``scores[rows, lengths - 1]``, with a whole catalogue's scores, of which a ``gather`` takes those of some candidates
    (whose rows of the weight are enough), and with ``cross_entropy``, where it ignores most labels (-100, or what
    ``ignore_index`` says). The same holds for activations, norms and dropouts around it, which treat each position by
    itself. Reported where the run's operators follow each other like that, and nothing else takes an output of that
    shape.

    When not: the other outputs are used in other steps, in an evaluation that the steps do not have.

    Source: the shapes that the run recorded. The gain is what these operators took, by the share that is used, and a
    prior for reading the weights.
    """

    id = "unused-outputs"
    title = "Compute outputs only where they are used"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        if evidence.compiled or not evidence.step_s:
            return
        counts, shares = unused_outputs(evidence)
        wasteful = {each: times for each, times in counts.items() if each.used <= _MOST_USED and times >= 0.5}
        if not wasteful or len(wasteful) < len(counts):
            return
        working = {name: share for name, share in shares.items() if name.startswith("aten::") and name not in _NO_WORK}
        spent = spent_s(evidence, working)
        passes = 3 if evidence.trains else 1
        weights = sum(each.weights * times for each, times in wasteful.items()) * _BYTES * passes / _BANDWIDTH
        used = max(each.used for each in wasteful)
        left = used + (1.0 - used) * (min(1.0, weights / spent) if spent and not evidence.device_is_gpu else 0.0)
        scale = {name: 1.0 - share * (1.0 - left) for name, share in working.items()}
        if evidence.device_is_gpu:
            scale = {row.name: scale[row.operator] for row in evidence.kernels if row.operator in scale}
        change = Change(kernel_scale=scale) if evidence.device_is_gpu else Change(operator_scale=scale)
        gain, share = Gain.of(evidence.what_if(change)), spent / (evidence.trace_step_s or 1.0)
        if not gain.worth_it:
            return
        most = max(wasteful, key=lambda each: each.weights * wasteful[each])
        shape = "x".join(map(str, most.shape))
        if most.dim == BY_LABEL:
            sites = loss_sites(evidence.record, most.shape[1]) if evidence.record is not None else []
            site = sites[0].site if len(sites) == 1 else _first(most)
            takes = f"{at(site)} ignores {1.0 - most.used:.0%}: they have no label."
        elif most.dim == BY_COLUMN:
            site = _named_at(most)
            takes = f"{at(site)} takes {most.used:.2%} by name and nothing the rest."
        else:
            there = _taken_at(most)
            known = there is not None and there[1]
            site = Site(most.taken_in[0], there[0].line(there[1][0])) if there is not None and known else _first(most)
            takes = f"{at(site)} takes {most.used:.2g} and nothing the rest."
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{share:.0%} of the step computes {shape} outputs of linear layers, of which {takes}",
            gain=gain,
            evidence={"outputs_share": share, "outputs_shape": shape, "used": most.used, "step_s": evidence.step_s},
            site=site,
            parameters={
                "takes": (site,),
                "dim": most.dim,
                "index": most.index,
                "function": most.taken_in[1],
                "forward": tuple(each.site for each in forward_sites(evidence)),
                "keeps": _keeps(evidence) if (most.dim, most.index) == (1, -1) else "",
                "plain": most.plain and len(wasteful) == 1 and most.computed_in == most.taken_in,
            },
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        (site,) = site_list(finding, "takes") or (None,)
        if finding.parameters.get("dim") == BY_LABEL:
            return Advice(
                f"Give the linear layer only the positions that have a label, {where(site)}: has = labels != -100; "
                "loss = cross_entropy(layer(x[has]), labels[has]), where x are the states before the layer.",
                "the layer, its loss and the labels may be in different places",
            )
        if finding.parameters.get("dim") == BY_COLUMN:
            return Advice(
                f"Compute the outputs that are taken {where(site)} alone, by rows of the layer's weight: for x of (n, "
                'd) and names of (n, k) torch.einsum("nd,nkd->nk", x, weight[names]) + bias[names]; where all rows '
                "take the same ones, F.linear(x, weight[names], bias[names]).",
                "the layer and what takes of its outputs may be in different places",
            )
        dim = finding.parameters.get("dim")
        taken = "mask" if dim == BY_MASK else "rows, last" if dim == BY_PLACE else ":, -1"
        text = f"Take the positions that are used {where(site)} before the linear layer, not after it: "
        text += f"layer(x[{taken}]) for layer(x)[{taken}]."
        keeps = str(finding.parameters.get("keeps", ""))
        if keeps:
            text = f"Have the model compute the last position alone, whose scores are taken {where(site)}: {keeps}=1."
        if site is None or not (keeps or finding.parameters.get("plain", True)):
            return Advice(text, "the layer and what takes of its outputs are not in the same place")
        drafts = Drafts(sources)
        draft, index = drafts[site.file], finding.parameters.get("index")
        function = finding.parameters.get("function")
        there = [
            node
            for node in takings(
                draft,
                function if isinstance(function, int) else 0,
                dim if isinstance(dim, int) else 1,
                index if isinstance(index, int) else None,
            )
            if draft.line(node) == site.line
        ]
        if keeps:
            calls = [call_at(draft, each) for each in site_list(finding, "forward") if each.file == site.file]
            known = [each for each in calls if each is not None]
            if len(there) != 1 or not keep_last(draft, there[0], keeps, known):
                return Advice(text, "whether other positions are read as well cannot be told from the source")
            return edited(drafts, text)
        # Of labels a mask takes on the same line, too: only what a layer gives can be taken before it.
        if (len(there) != 1 and dim != BY_MASK) or not any(take_before(draft, node) for node in there):
            return Advice(text, "which layer the outputs are of cannot be told from the source")
        return edited(drafts, text)

    EXAMPLES = (
        Example(
            before="""
from torch import nn

class Tagger(nn.Module):
    def __init__(self):
        self.head = nn.Linear(64, 5000)

    def forward(self, x):
        states, _ = self.rnn(x)
        return self.head(states)[:, -1]  # <- takes
""",
            after="""
from torch import nn

class Tagger(nn.Module):
    def __init__(self):
        self.head = nn.Linear(64, 5000)

    def forward(self, x):
        states, _ = self.rnn(x)
        return self.head(states[:, -1])
""",
            parameters={"function": 7, "index": -1},
        ),
        Example(
            before="""
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        self.fc = nn.Linear(64, 10)

    def forward(self, x, h):
        out, h = self.lstm(x, h)
        out = self.fc(self.drop(out))
        return out[:, -1, :], h  # <- takes
""",
            after="""
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        self.fc = nn.Linear(64, 10)

    def forward(self, x, h):
        out, h = self.lstm(x, h)
        out = self.fc(self.drop(out)[:, -1, :])
        return out, h
""",
            parameters={"function": 7, "index": -1},
        ),
        Example(
            before="""
from torch import nn

class Filler(nn.Module):
    def __init__(self):
        self.words = nn.Linear(64, 8000)

    def loss(self, ids, targets):
        keep = targets >= 0
        return self.cost(self.words(self.encode(ids))[keep], targets[keep])  # <- takes
""",
            after="""
from torch import nn

class Filler(nn.Module):
    def __init__(self):
        self.words = nn.Linear(64, 8000)

    def loss(self, ids, targets):
        keep = targets >= 0
        return self.cost(self.words(self.encode(ids)[keep]), targets[keep])
""",
            parameters={"function": 7, "dim": BY_MASK},
        ),
        Example(  # the last word of each
            before="""
import torch
from torch import nn

class Next(nn.Module):
    def __init__(self):
        self.words = nn.Linear(64, 8000)

    def forward(self, ids, lengths):
        states, _ = self.rnn(ids)
        scores = self.words(states)
        return scores[torch.arange(len(ids)), lengths - 1]  # <- takes
""",
            after="""
import torch
from torch import nn

class Next(nn.Module):
    def __init__(self):
        self.words = nn.Linear(64, 8000)

    def forward(self, ids, lengths):
        states, _ = self.rnn(ids)
        scores = self.words(states[torch.arange(len(ids)), lengths - 1])
        return scores
""",
            parameters={"function": 8, "dim": BY_PLACE},
        ),
        Example(  # a library's model
            before="""
def score(self, batch):
    enc = self.pack(batch)
    logits = self.model(**enc).logits  # <- forward
    return logits[:, -1, :].index_select(1, self.letters)  # <- takes
""",
            after="""
def score(self, batch):
    enc = self.pack(batch)
    logits = self.model(logits_to_keep=1, **enc).logits
    return logits[:, -1, :].index_select(1, self.letters)
""",
            parameters={"function": 1, "index": -1, "keeps": "logits_to_keep"},
        ),
        Example(
            before="""
for _ in range(n):
    out = model(ids, past_key_values=cache)  # <- forward
    cache = out.past_key_values
    ids = out.logits[:, -1].argmax(-1, keepdim=True)  # <- takes
""",
            after="""
for _ in range(n):
    out = model(ids, past_key_values=cache, logits_to_keep=1)
    cache = out.past_key_values
    ids = out.logits[:, -1].argmax(-1, keepdim=True)
""",
            parameters={"index": -1, "keeps": "logits_to_keep"},
        ),
    )
    LEAVES_ALONE = (
        Example("scores = fc(x).gather(1, names)  # <- takes\n", "", {"dim": BY_COLUMN}),
        Example(  # another position is read, too
            "out = model(ids)  # <- forward\nlast = out.logits[:, -1]  # <- takes\nfirst = out.logits[:, 0]\n",
            "",
            {"index": -1, "keeps": "logits_to_keep"},
        ),
        Example(
            "out = model(ids)  # <- forward\nlast = out.logits[:, -1]  # <- takes\nlog(out)\n",
            "",
            {"index": -1, "keeps": "logits_to_keep"},
        ),
        Example(  # a function of the script's
            "def run(x):\n    return model(x)  # <- forward\n\nlast = run(ids).logits[:, -1]  # <- takes\n",
            "",
            {"index": -1, "keeps": "logits_to_keep"},
        ),
        Example(
            "logits = model(ids, labels=ids).logits  # <- forward\nlast = logits[:, -1]  # <- takes\n",
            "",
            {"index": -1, "keeps": "logits_to_keep"},
        ),
        Example("y = model(x)[keep]  # <- takes\n", "", {"dim": BY_MASK}),
        Example("y = model(x)[rows, last]  # <- takes\n", "", {"dim": BY_PLACE}),
        Example("import torch\nfc = torch.nn.Linear(3, 4)\ny = fc(x)[rows, :2]  # <- takes\n", "", {"dim": BY_PLACE}),
        Example("y = model(x)[:, -1]  # <- takes\n", "", {"index": -1}),
        Example("def f(out):\n    pred = out[:, -1]  # <- takes\n", "", {"function": 1, "index": -1}),
        Example(
            "import torch\nfc = torch.nn.Linear(3, 4)\nscores = fc(x)\nlast = scores[:, -1]  # <- takes\nlog(scores)\n",
            "",
            {"index": -1},
        ),
    )


def _keeps(evidence: Evidence) -> str:
    """The parameter that tells the one model that is called how many positions to score; "" where it has none."""
    called = [each for each in evidence.record.models if each.calls] if evidence.record is not None else []
    return _KEEPS if len(called) == 1 and _KEEPS in called[0].takes else ""


def _first(found: PartlyUsed) -> Site:
    """Where the function begins that takes of the outputs."""
    return Site(found.taken_in[0], max(1, found.taken_in[1]))


def _named_at(found: PartlyUsed) -> Site:
    """Where outputs are taken by name first; where no line is known to, the function begins."""
    try:
        lines = columns_taken(Draft(Sources().source(found.taken_in[0])), found.taken_in[1])
    except AdvisorError:
        lines = []
    return Site(found.taken_in[0], min(lines)) if lines else _first(found)


def _taken_at(found: PartlyUsed) -> tuple[Draft, list[cst.Subscript]] | None:
    """The indices that take of the outputs, as the source has them."""
    try:
        draft = Draft(Sources().source(found.taken_in[0]))
    except AdvisorError:
        return None
    return draft, list(takings(draft, found.taken_in[1], found.dim, found.index))
