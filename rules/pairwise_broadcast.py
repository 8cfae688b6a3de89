"""Every pair of rows of two tensors is written out, only to be summed, or multiplied by weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod
from typing import TYPE_CHECKING

import libcst as cst

from advisor.edit import Draft, Drafts, Sources
from advisor.edit.algebra.pairwise import (
    COSINE,
    DISTANCE,
    OPERATORS,
    PRODUCT,
    SQUARES,
    Pairing,
    given_places,
    pairings,
    replace,
    without_pairs,
)
from advisor.edit.finding import only_line
from advisor.edit.gradients.derivatives import differentiates_twice
from advisor.edit.names import full_name
from advisor.edit.sources import text_of
from advisor.errors import AdvisorError
from advisor.evidence import Change
from advisor.evidence.algebra.joined import joined_pairs
from advisor.evidence.algebra.pairwise import Pairwise, freed_s, pairwise, passes_over
from advisor.evidence.worked import of_tensors, spent_s, without
from advisor.fixes import edited
from advisor.harness.layout import Site
from advisor.rule import WIDEST, Advice, Argument, Example, Finding, Gain, Rule, Safety, at, model_files, site_list

if TYPE_CHECKING:
    from advisor.edit import Edit
    from advisor.evidence import Evidence

_FLOATS = ("float", "double", "c10::BFloat16", "c10::Half")
_SINGLES = ("float", "double")  # what cdist takes
_LEAST_SUMMED = 8  # numbers per row: of points in a plane or in space cdist's backward takes as long as the pairs do
# On a CPU, what takes the place of the passes: nanoseconds a call, per sum, per number that is summed (rows times rows
# times features) and per number of the two tensors; in inference, and in training with the backward. Fitted to 7 sizes
# of 2 to 8 million numbers with torch 2.15 on two cores; most are within a factor of 1.5, by which the range is wider.
_COSTS = {
    False: {PRODUCT: (30e3, 0.5, 0.012, 0.0), COSINE: (60e3, 0.5, 0.012, 0.2), DISTANCE: (30e3, 1.0, 0.14, 0.0)},
    True: {PRODUCT: (100e3, 1.5, 0.036, 0.0), COSINE: (200e3, 1.5, 0.036, 2.0), DISTANCE: (100e3, 3.0, 0.3, 0.0)},
}
# Squared distances as a product of both and the squares of each (torch.baddbmm), in the same manner: 6 sizes of 0.15 to
# 2.1 million sums of 2 to 4 coordinates, on one and two cores, torch 2.15, took 0.5 to 2.0 ns a sum, and 1.1 to 4.9 in
# training.
_EXPANDED = {False: (50e3, 0.75, 0.0, 0.0), True: (150e3, 4.0, 0.0, 0.0)}
_SPREAD = 1.5
# What else the step does is quicker where large tensors no longer displace what it works on from the caches, nor pages
# have to be had anew: 0.4 to 0.65 of its time was left in three steps of which the passes were 0.81 to 0.96.
_RELIEF = 0.4
_LEAST_ELEMENTS = 1 << 16  # fewer stay in a core's own cache, and are not what a step is slow for
_LEFT_ON_GPU = (0.02, 0.1, 0.3)  # of the passes: best, likely, worst. A prior: no GPU has been asked.
# What is added for each pair is written once and, in training, its gradient read twice, at the 10 GB/s that a core gets
# from memory, as everywhere here.
_SUM_PASSES, _NUMBER_S = {False: 1, True: 3}, 4 / 10e9
_JOINS = ("torch.cat", "torch.concat", "torch.concatenate")
_BASIS = "prior: the passes over the pairs go, a matrix product or torch.cdist comes"


class PairwiseBroadcast(Rule):
    """Two tensors are broadcast against each other, every pair of rows is written to memory, and then summed away.

    ``(x[:, None] * y[None]).sum(-1)`` makes a tensor of rows times rows times features, reads it back to sum it, and
    training keeps it for the backward, which goes over it several times more. The same sums are a matrix product,
    ``x @ y.mT``, which writes only them. Squared, Euclidean and Manhattan distances are what ``torch.cdist`` computes,
    and cosine similarities a matrix product of normalized rows. Reported only where such passes were seen in the run,
    and the line that makes them was found in the source.

    When not: the differences or products themselves are used for something else. Distances on a GPU; products under
    autocast, which would round what they are given. Sums are rounded differently; distances are asked for without
    matrix products, which would lose digits of small ones. Of points with few coordinates, and where second derivatives
    are taken, ``torch.cdist`` is no help: there a product is advised for squared distances, which costs digits.

    Source: PyTorch, ``torch.cdist``, ``torch.nn.functional.normalize``; the gain was measured on a CPU.
    """

    id = "pairwise-broadcast"
    title = "Compute pairs without writing them out"
    safety = Safety.NUMERIC
    after = ("accidental-float64",)

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        if evidence.compiled or not evidence.step_s:
            return
        seen, sums = pairwise(evidence), _Sums()
        for pairs, number in seen.items():
            if number < 1 or prod(pairs.shape) < _LEAST_ELEMENTS:
                continue
            found = list(_found(evidence, sums, pairs))
            shares = passes_over(evidence, pairs) if found else {}
            if not shares:
                continue
            share = spent_s(evidence, shares) / (evidence.trace_step_s or 1.0)
            expanded = any(not _cdist_is_quicker(evidence, pairs, each) for each, _ in found)
            if evidence.device_is_gpu:
                gain = _on_gpu(evidence, shares)
            else:
                seconds = _seconds(pairs, found[0][0], evidence.trains, expanded)
                # Sums of two or three numbers each are about as large as what is summed: nothing is relieved of them.
                relief = 0.0 if expanded else _RELIEF
                gain = _on_cpu(evidence, shares, share * relief, number * seconds, freed_s(evidence, pairs))
            if not gain.worth_it:
                continue
            places = tuple({at(site): site for _, site in found}.values())
            shape = "x".join(map(str, pairs.shape))
            yield Finding(
                rule=self.id,
                title=self.title,
                summary=f"{share:.0%} of the step goes over {shape} numbers, all pairs of rows written out at "
                f"{', '.join(map(at, places))} to be summed.",
                gain=gain,
                evidence={"pairs_share": share, "pairs_shape": shape, "step_s": evidence.step_s},
                site=places[0],
                parameters={
                    "pairs": places,
                    "first": len(pairs.left),
                    "second": len(pairs.right),
                    "operator": pairs.operator,
                    "others": len(found) > 1 and _other_shapes(seen, pairs),
                    "rounds": _rounds(evidence, pairs),
                    "expanded": expanded,
                },
            )
        yield from _joined(evidence)

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        places, drafts = site_list(finding, "pairs"), Drafts(sources)
        if finding.parameters.get("joined"):
            return Advice(
                f"Have the layer that is given the pairs joined at {', '.join(map(at, places))} compute each row once: "
                "w, v = layer.weight.split(x.size(-1), 1); pairs = F.linear(x, w, layer.bias).unsqueeze(2) + "
                "F.linear(y, v).unsqueeze(1), where x.unsqueeze(2) and y.unsqueeze(1) are what was joined.",
                "which layer that is, and how its weights are divided, cannot be told from the source with certainty",
            )
        if finding.parameters.get("expanded"):
            return Advice(
                f"Compute the squares summed at {', '.join(map(at, places))} as |a|² + |b|² - 2ab, without the "
                "pairs: torch.baddbmm(a.square().sum(-1, keepdim=True) + b.square().sum(-1).unsqueeze(-2), a, b.mT, "
                "alpha=-2), of a and b without the dimensions that they give each other (torch.addmm where there is no "
                "batch).",
                "distances much smaller than the coordinates lose digits by it, and below zero clamp(min=0) is needed",
            )
        dimensions = [finding.parameters.get(name) for name in ("first", "second")]
        text = f"Compute what is summed at {', '.join(map(at, places)) or 'that line'} without writing out the pairs: "
        text += "as a matrix product, or with torch.cdist."
        if finding.parameters.get("rounds"):
            text += " Outside of autocast, which rounds what a matrix product is given to 16 bits."
            return Advice(text, "the script computes them in float32, and how exact they have to be it does not say")
        if finding.parameters.get("others"):
            return Advice(text, "the function meets tensors of other shapes or types there, too")
        first, second = (each if isinstance(each, int) else 3 for each in dimensions)
        operator = finding.parameters.get("operator")
        for site in places:
            draft = drafts[site.file]
            there = [each for each in pairings(draft) if draft.line(each.whole) == site.line]
            there = [each for each in there if operator in (None, OPERATORS[each.kind])]
            for found in there:
                code = without_pairs(draft, found, first, second)
                if code is None:
                    return Advice(text, "how the two give each other dimensions cannot be told from the source")
                replace(draft, found, code)
            if not there:
                return Advice(text, "what sums them was not found in the source")
        return edited(drafts, text)

    EXAMPLES = (
        Example(
            before="""
import torch

def scores(queries, catalogue):
    return (queries.unsqueeze(1) * catalogue.unsqueeze(0)).sum(dim=-1) / 0.1  # <- pairs
""",
            after="""
import torch

def scores(queries, catalogue):
    return (queries @ catalogue.mT) / 0.1
""",
        ),
        Example(
            before="""
import torch

diff = x[:, None, :] - centres[None, :, :]
dist = (diff ** 2).sum(-1)  # <- pairs
nearest = torch.sum((x[:, None] - bank[None]) ** 2, dim=2).sqrt().argmin(1)  # <- pairs
""",
            after="""
import torch

dist = torch.cdist(x, centres, compute_mode="donot_use_mm_for_euclid_dist").square()
nearest = torch.cdist(x, bank, compute_mode="donot_use_mm_for_euclid_dist").argmin(1)
""",
        ),
        Example(  # the dimension that one of them lacks on the left
            before="""
import torch
far = torch.norm(x[:, None] - y, dim=-1).max()  # <- pairs
near = (x.unsqueeze(1) - y).abs().sum(2)  # <- pairs
""",
            after="""
import torch
far = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist").max()
near = torch.cdist(x, y, p=1)
""",
            parameters={"second": 2},
        ),
        Example(
            before="""
import torch.nn.functional as F
from torch import nn

class Contrast(nn.Module):
    def __init__(self):
        self.alike = nn.CosineSimilarity(dim=2)

    def forward(self, z, other):
        one = self.alike(z.unsqueeze(1), z.unsqueeze(0))  # <- pairs
        return one, F.cosine_similarity(z[None], other[:, None], dim=-1)  # <- pairs
""",
            after="""
import torch.nn.functional as F
from torch import nn

class Contrast(nn.Module):
    def __init__(self):
        self.alike = nn.CosineSimilarity(dim=2)

    def forward(self, z, other):
        one = F.normalize(z, dim=-1) @ F.normalize(z, dim=-1).mT
        return one, F.normalize(other, dim=-1) @ F.normalize(z, dim=-1).mT
""",
        ),
        Example(
            before="""
import torch
scores = (q.unsqueeze(2) * k.unsqueeze(1)).sum(-1)  # <- pairs
mixed = (weights[..., None] * v.unsqueeze(1)).sum(2)  # <- pairs
crossed = (a[:, None] * b[:, :, None]).sum(-1)  # <- pairs
""",
            after="""
import torch
scores = q @ k.mT
mixed = weights @ v
crossed = b @ a.mT
""",
            parameters={"first": 4, "second": 4},
        ),
        Example(
            before="gap = (a.unsqueeze(2) - b.unsqueeze(1)).pow(2).sum(-1)  # <- pairs\n",
            after="",
            parameters={"first": 4, "second": 4, "expanded": True},
            advice="torch.baddbmm",
        ),
        Example(
            before="""
import torch
pairs = layer(torch.cat([x.unsqueeze(2).expand(-1, -1, n, -1), x.unsqueeze(1).expand(-1, n, -1, -1)], -1))  # <- pairs
""",
            after="",
            parameters={"joined": True},
            advice="layer.weight.split(x.size(-1), 1)",
        ),
    )
    LEAVES_ALONE = (
        Example("y = (x[:, None] * w).sum(-1, keepdim=True)  # <- pairs\n", ""),
        Example("y = (x * w).sum(-1)  # <- pairs\n", ""),
        Example("y = (x[:, None] * w[None]).sum(-1)  # <- pairs\n", "", {"others": True}),
        Example("y = (x[:, None] * w[None]).sum(-1)  # <- pairs\n", "", {"operator": "aten::sub"}),
        Example(
            "import torch.nn.functional as F\n"
            "def f(x, y):\n    N, F = x.shape\n    return cosine_similarity(x[:, None], y[None], dim=-1)  # <- pairs\n"
            "from torch.nn.functional import cosine_similarity\n",
            "",
        ),
        Example("import torch\ny = (x[:, None] * w[None].expand(n, m, k, d)).sum(-1)  # <- pairs\n", ""),
        Example("y = (x[:, None] * w[None]).sum(-1)  # <- pairs\n", "", {"rounds": True}),
        Example("y = (x[:, None] * rows).sum(n)  # <- pairs\n", ""),
        Example("d = x[:, None] - y\ne = (d ** 2).sum(-1)  # <- pairs\nf = d / e\n", ""),
        Example("y = (x[:, :, None] * w).sum(1)  # <- pairs\n", "", {"first": 3, "second": 3}),
    )


def _joined(evidence: Evidence) -> Iterator[Finding]:
    """Pairs that are joined and given to a linear layer."""
    counts, shares = joined_pairs(evidence)
    counts = {each: times for each, times in counts.items() if prod(each.shape) >= _LEAST_ELEMENTS and times >= 0.5}
    if not counts:
        return
    working = of_tensors(shares)
    passes = _SUM_PASSES[evidence.trains]
    sums = sum(prod(each.shape[:-1]) * each.columns * times for each, times in counts.items()) * passes
    copied = 1.0 - 1.0 / min(each.copies for each in counts)
    change = without(evidence, {name: each * copied for name, each in working.items()}, sums * _NUMBER_S)
    gain, share = Gain.of(evidence.what_if(change)), spent_s(evidence, working) / (evidence.trace_step_s or 1.0)
    if not gain.worth_it:
        return
    most = max(counts, key=lambda each: prod(each.shape) * counts[each])
    site, shape = _joining(most.joined_in), "x".join(map(str, most.shape))
    yield Finding(
        rule=PairwiseBroadcast.id,
        title="Compute pairs without joining them",
        summary=f"{share:.0%} of the step joins pairs of rows, {shape} numbers at {at(site)}, and multiplies each row "
        f"{most.copies} times by the same weights.",
        gain=gain,
        evidence={"pairs_share": share, "pairs_shape": shape, "step_s": evidence.step_s},
        site=site,
        parameters={"pairs": (site,), "joined": True},
    )


def _joining(function: tuple[str, int]) -> Site:
    """Where the function joins tensors, if it does once; else where it begins."""

    def joins(draft: Draft) -> list[int]:
        calls = [each for each in draft.nodes(cst.Call) if full_name(draft, each.func) in _JOINS]
        return [draft.line(each) for each in calls if draft.function_line(each) == function[1]]

    return only_line(function, joins)


class _Sums(dict[str, tuple[Draft, list[Pairing]] | None]):
    """The files of the user's with what they sum over pairs, looked through once; None for one that cannot be read."""

    def __missing__(self, path: str) -> tuple[Draft, list[Pairing]] | None:
        try:
            draft = Draft(Sources().source(path))
        except AdvisorError:
            self[path] = None
        else:
            self[path] = draft, list(pairings(draft))
        return self[path]


def _found(evidence: Evidence, sums: _Sums, pairs: Pairwise) -> Iterator[tuple[Pairing, Site]]:
    """The lines in the function of `pairs` that sum them, and can do without."""
    if len(set(pairs.dtypes)) > 1 or pairs.dtypes[0] not in _FLOATS:
        return
    file = sums[pairs.file]
    if file is None:
        return
    draft, there = file
    sizes = (pairs.left, pairs.right)
    for each in there:
        if OPERATORS[each.kind] != pairs.operator or not _within(draft, each, pairs.line):
            continue
        places = given_places(each, len(pairs.left), len(pairs.right))
        if places is None or without_pairs(draft, each, len(pairs.left), len(pairs.right)) is None:
            continue
        from_behind = each.dim % len(pairs.shape) - len(pairs.shape)
        if pairs.left[from_behind] != pairs.right[from_behind]:
            continue  # one number for all that is summed
        if not _cdist_is_quicker(evidence, pairs, each) and not _may_be_expanded(evidence, pairs, each):
            continue
        if all(shape[at] == 1 for shape, given in zip(sizes, places, strict=True) for at in given):
            yield each, Site(pairs.file, draft.line(each.whole))


def _other_shapes(seen: Iterable[Pairwise], pairs: Pairwise) -> bool:
    """Whether the same function lets two tensors meet in pairs that are not those: which of its lines, nobody knows."""
    return any(
        (each.operator, each.file, each.line) == (pairs.operator, pairs.file, pairs.line)
        and each.shape not in (each.left, each.right)
        and (each.left, each.right, each.dtypes) != (pairs.left, pairs.right, pairs.dtypes)
        for each in seen
    )


def _may_be_expanded(evidence: Evidence, pairs: Pairwise, found: Pairing) -> bool:
    """Whether squared distances may be made of a product and of the squares of both: that was measured on a CPU."""
    return found.kind == SQUARES and pairs.dtypes[0] in _SINGLES and not evidence.device_is_gpu


def _cdist_is_quicker(evidence: Evidence, pairs: Pairwise, found: Pairing) -> bool:
    """Whether torch.cdist is quicker, and can do what is asked; of what is no distance a matrix product always is."""
    if found.kind in (PRODUCT, COSINE):
        return True
    if evidence.device_is_gpu or pairs.dtypes[0] not in _SINGLES or pairs.shape[found.dim] < _LEAST_SUMMED:
        return False
    return not any(differentiates_twice(text_of(path)) for path in {*model_files(evidence), pairs.file})


def _rounds(evidence: Evidence, pairs: Pairwise) -> bool:
    """Whether a matrix product would be of 16 bits where the sums are of float32: under autocast."""
    models = evidence.record.models if evidence.record is not None else []
    return pairs.operator != "aten::sub" and pairs.dtypes[0] in _SINGLES and any(model.autocast for model in models)


def _within(draft: Draft, found: Pairing, line: int) -> bool:
    """Whether it stands in the function that begins at `line`, its decorators counted; 0: outside of all."""
    function = draft.function(found.whole)
    if function is None:
        return line == 0
    return draft.function_line(found.whole) <= line <= draft.line(function.body)


def _on_gpu(evidence: Evidence, shares: dict[str, float]) -> Gain:
    kernels = {row.name: shares[row.operator] for row in evidence.kernels if row.operator in shares}
    scaled = ({name: 1.0 - share * (1.0 - left) for name, share in kernels.items()} for left in _LEFT_ON_GPU)
    high, likely, low = (evidence.what_if(Change(kernel_scale=each)).speedup[1] for each in scaled)
    return Gain(max(low, high / WIDEST), max(likely, high / WIDEST), high, _BASIS)


def _on_cpu(evidence: Evidence, shares: dict[str, float], relief: float, added: float, freed: float) -> Gain:
    """The step without the passes and the `freed` seconds in which their memory is given back, the rest of it less by
    `relief`, and with `added` seconds of what does without.
    """
    gone, rest = {name: 1.0 - each for name, each in shares.items()}, 1.0 - relief
    costs = (added * _SPREAD - freed, added - freed, added / _SPREAD - freed)
    changes = (Change(operator_scale=gone, cpu_scale=rest, remove_host_s=-each) for each in costs)
    worst, usual, best = (evidence.what_if(each).speedup for each in changes)
    likely, most = usual[1], WIDEST**0.5
    return Gain(max(worst[0], likely / most), likely, min(best[2], likely * most), _BASIS)


def _seconds(pairs: Pairwise, found: Pairing, trains: bool, expanded: bool) -> float:
    """What a CPU takes for the same sums without the pairs, and for their gradients."""
    costs = _COSTS[trains][found.kind if found.kind in (PRODUCT, COSINE) else DISTANCE]
    call, sums, numbers, inputs = _EXPANDED[trains] if expanded else costs
    whole = prod(pairs.shape)
    ns = call + sums * whole / pairs.shape[found.dim] + numbers * whole
    return (ns + inputs * (prod(pairs.left) + prod(pairs.right))) * 1e-9
