"""Random draws go over all there is to draw from, for the few that they give."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.edit import Drafts
from advisor.edit.loading.subset_draws import drawn_as_few
from advisor.edit.loading.weighted_draws import drawn_from_sums
from advisor.edit.locate import code_at
from advisor.edit.sources import text_of
from advisor.evidence import Change
from advisor.evidence.beside import share_of_step
from advisor.evidence.facts import OTHER
from advisor.evidence.loading.felt import waits
from advisor.evidence.loading.fetching import share, without
from advisor.evidence.loading.random_draws import FEW, WEIGHTS, Draw, draw_of_few, longest_draw
from advisor.fixes import edited
from advisor.harness.layout import Site
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, at

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence
    from advisor.evidence.facts import LoaderFacts

_MOST = 0.5  # share of the fetch from which on a part is what it is made of
_LEAST = 0.25  # of the step
# Draws of five by weights, among 1,000 of them 33 us, 20,000 206 us, 100,000 766 us; looked up in sums that are there
# 3 to 4 us (NumPy's choice, one thread). Of a script that drew among 20,000 an eighth of a fetch was the rest of it,
# and looking took as long as drawing (``torch.tensor`` is wrapped meanwhile): so the share of the draws is what they
# took of a fetch that nobody looked at. A draw among a dozen took up to 65 us, on a slow machine.
_LEAST_DRAW_S, _REST_OF_DRAWS = 120e-6, 0.12
# A thousand of 20,000, 100,000 and a million without weights: choice(replace=False) 0.74, 2.5 and 37 ms, randperm 0.29,
# 0.9 and 26 ms; a Generator's choice() 0.09, 0.05 and 0.05 ms, made and seeded each time; randint 0.01 ms.
_DRAW_S = {WEIGHTS: 4e-6, FEW: 90e-6}
_BASIS = {
    WEIGHTS: "draws by weights from sums that are there: a tenth to a two hundredth of the CPU (measured)",
    FEW: "draws of a few without an order of all: an eighth to a five hundredth of the CPU (measured)",
}
_LEFT = 0.02  # of what they take of a step
_TITLES = {WEIGHTS: "Add the weights up once, not for each draw", FEW: "Draw a few without putting all in order"}


class CostlyDraws(Rule):
    """A random draw of a few goes over all there is to draw from: it adds up all weights, or puts all in an order.

    ``np.random.choice(n, k, p=p)`` adds up all of ``p`` for each call, and so does ``random.choices``: for negative
    samples out of a large vocabulary that takes most of making a batch. The sums can be made once, and the very same
    numbers drawn. ``np.random.choice(n, k, replace=False)``, ``np.random.permutation(n)[:k]`` and
    ``torch.randperm(n)[:k]`` put all n in a random order for the k they give: points of a cloud, rows of a large array,
    each step's batch. A NumPy ``Generator`` draws k of n without that, none twice, and ``torch.randint`` with
    repetitions. Reported where such a draw takes most of making a batch, or a quarter of the step.

    When not: the weights change between draws; or all of the order is used, part by part.

    Source: NumPy docs, ``random.Generator.choice``, and what NumPy's sources do; what draws take is measured
    (`rules/costly_draws.py`).
    """

    id = "costly-draws"
    title = "Draw a few without going over all"
    safety = Safety.BEHAVIOUR

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        for facts in evidence.loaders:
            loader = facts.record
            if loader is None or not loader.looks or not facts.fetch_s or not waits(facts):
                continue
            draw = longest_draw(loader)
            finding = self._for_samples(evidence, facts, draw) if draw is not None else None
            if finding is not None:
                yield finding
        yield from self._in_step(evidence)

    def _for_samples(self, evidence: Evidence, facts: LoaderFacts, draw: Draw) -> Finding | None:
        loader, fetch_s = facts.record, min(filter(None, (facts.single_s, facts.fetch_s)), default=0.0)
        if loader is None or not fetch_s:
            return None
        each_s = draw.line.seconds / (loader.batch_size or 1)
        if each_s < _LEAST_DRAW_S:
            return None
        part = max(share(loader, draw.line), min(1.0 - _REST_OF_DRAWS, draw.line.seconds / fetch_s))
        gain = Gain.prior(
            evidence.what_if(without(facts, part * (1.0 - _DRAW_S[draw.kind] / each_s))), _BASIS[draw.kind]
        )
        if part < _MOST or not gain.worth_it:
            return None
        does = "adds up all of its weights" if draw.kind == WEIGHTS else "puts all in a random order"
        return Finding(
            rule=self.id,
            title=_TITLES[draw.kind],
            safety=Safety.EXACT if draw.kind == WEIGHTS else None,  # the same numbers are drawn
            summary=f"{at(draw.line.site)} takes {part:.0%} of making a batch: {draw.what} {does} for every sample. "
            f"The step waits {facts.wait_s * 1e3:.1f} ms ({facts.wait_share:.0%}) for the next batch.",
            gain=gain,
            evidence={
                "share_of_fetch": part,
                "draw_s": each_s,
                "fetch_s": facts.fetch_s,
                "data_wait_s": facts.wait_s,
                "workers": facts.workers,
                "step_s": evidence.step_s,
            },
            site=draw.line.site,
            parameters={"kind": draw.kind, "what": draw.what},
        )

    def _in_step(self, evidence: Evidence) -> Iterator[Finding]:
        found = evidence.beside
        if found is None or evidence.device_is_gpu or not evidence.step_s:
            return
        draw = draw_of_few(found, text_of) if evidence.breakdown.share(OTHER) * found.part >= _LEAST else None
        if draw is None:
            return
        part, site, what = share_of_step(evidence, found), Site(found.file, draw.lineno), ast.unparse(draw.func)
        yield Finding(
            rule=self.id,
            title=_TITLES[FEW],
            summary=f"{what} at {at(site)} takes {part:.0%} of each step: it puts all in a random order for the few "
            "that are used.",
            gain=Gain.prior(
                evidence.what_if(Change(remove_host_s=part * evidence.step_s * (1.0 - _LEFT))), _BASIS[FEW]
            ),
            evidence={"share_of_step": part, "work_s": part * evidence.step_s, "step_s": evidence.step_s},
            site=site,
            parameters={"kind": FEW, "what": what},
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Advice:
        kind, what, site = finding.parameters.get("kind"), str(finding.parameters.get("what") or ""), finding.site
        if kind not in _ADVICE or site is None:
            return Advice("Draw without going over all there is to draw from.", "its place in the source is unknown")
        text, drafts = _ADVICE[kind].format(what=what, at=at(site)), Drafts(sources)
        draft = drafts[site.file]
        if kind == WEIGHTS:
            why = drawn_from_sums(drafts, draft, site.line)
            told = f"Add up once the weights that {what} at {at(site)} draws by; the draws are the same."
        else:
            there = code_at(draft, site.line)
            why = drawn_as_few(draft, there) if there is not None else "its place in the source is unknown"
            told = f"Draw the few that {what} at {at(site)} gives without an order of all: other numbers, as likely."
        return Advice(text, why) if why else edited(drafts, told)

    EXAMPLES = (
        Example(
            before="""
import numpy as np

words = 20_000
weights = np.load("counts.npy") ** 0.75
weights /= weights.sum()

class Pairs:
    def __getitem__(self, i):
        noise = np.random.choice(words, size=5, p=weights)  # <-
        return self.pairs[i], noise
""",
            after="""
import numpy as np

words = 20_000
weights = np.load("counts.npy") ** 0.75
weights /= weights.sum()
cdf = np.cumsum(weights, dtype=float)
cdf /= cdf[-1]

class Pairs:
    def __getitem__(self, i):
        noise = cdf.searchsorted(np.random.random_sample(5), side="right")
        return self.pairs[i], noise
""",
            parameters={"kind": WEIGHTS, "what": "np.random.choice"},
        ),
        Example(
            before="class Pairs:\n    def __getitem__(self, i):\n        return rng.choice(self.n, p=self.p)  # <-\n",
            after="",
            parameters={"kind": WEIGHTS, "what": "rng.choice"},
            advice="numpy.cumsum(p)",
        ),
        Example(
            before="import torch\n\nfor _ in range(steps):\n    x = data[torch.randperm(len(data))[:64]]  # <-\n",
            after="import torch\nimport numpy\n\nfor _ in range(steps):\n"
            "    x = data[torch.from_numpy(numpy.random.default_rng(torch.randint(2147483647, ()).item())"
            ".choice(len(data), min(64, len(data)), replace=False))]\n",
            parameters={"kind": FEW, "what": "torch.randperm"},
        ),
        Example(
            before="""
import numpy as np

def batch():
    rows = np.random.choice(len(X), 64, replace=False)  # <-
    return X[rows], y[rows]
""",
            after="""
import numpy as np

def batch():
    rows = np.random.default_rng(np.random.randint(2147483647)).choice(len(X), 64, replace=False)
    return X[rows], y[rows]
""",
            parameters={"kind": FEW, "what": "np.random.choice"},
        ),
        Example(
            before="import torch\n\norder = torch.randperm(n)  # <-\na, b = order[:k], order[k:]\n",
            after="",
            parameters={"kind": FEW, "what": "randperm"},
            advice="make one for each pass over the data",
        ),
    )
    LEAVES_ALONE = (
        *(
            Example(
                "import numpy as np\nn = 9\np = np.ones(n) / n\n\nclass Pairs:\n    def __getitem__(self, i):\n"
                f"        return np.random.choice({given})  # <-\n{later}",
                "",
                {"kind": WEIGHTS, "what": "np.random.choice"},
            )
            for given, later in (
                ("n, 5, False, p=p", ""),
                ("names, 5, p=p", ""),
                ("n, 5, p=p", "p[0] = 0\n"),
                ("n, 5, p=p", "p = np.roll(p, 1)\n"),
                ("n, 5, p=self.p[i]", ""),
                ("n, **more, p=p", ""),
            )
        ),
        Example("import torch\nx = data[torch.randint(n, (k,))]  # <-\n", "", {"kind": FEW, "what": "randint"}),
    )


_ADVICE = {
    WEIGHTS: (
        "Add up once the weights that {what} at {at} draws by: cdf = numpy.cumsum(p); cdf /= cdf[-1], when the dataset "
        'is made, and cdf.searchsorted(numpy.random.random_sample(k), side="right") for each sample, which gives the '
        "same draws (rng.random(k) of a Generator's). random.choices takes the sums as cum_weights; for many samples "
        "at once, draw for all of a batch in collate_fn."
    ),
    FEW: (
        "Of the random order that {what} at {at} puts all in few are used: make one for each pass over the data, and "
        "take the next ones of it each time; or draw k of n by a Generator, rng.choice(n, k, replace=False) of "
        "rng = numpy.random.default_rng(seed), which does not go over all, or by torch.randint(n, (k,)), with "
        "repetitions."
    ),
}
