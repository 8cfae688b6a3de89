"""A multivariate normal distribution is given a covariance that it has to factor, and the factor was there before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.edit import Draft, Drafts, Sources
from advisor.edit.algebra.covariances import covariances, factored
from advisor.errors import AdvisorError
from advisor.evidence.algebra.covariances import Factored, factored_covariances
from advisor.evidence.worked import of_tensors, spent_s, without
from advisor.fixes import edited
from advisor.harness.layout import Site
from advisor.rule import Advice, Argument, Example, Finding, Gain, Rule, Safety, at, site_list, where

if TYPE_CHECKING:
    from advisor.edit import Edit
    from advisor.evidence import Evidence
_NO_MATRICES = (
    "With a diagonal, torch.distributions.Independent(Normal(mean, std), 1) needs no matrices at all and is faster "
    "still, where what it is compared with (a prior) becomes one, too; it draws other samples."
)


class CovarianceFactor(Rule):
    """``MultivariateNormal`` is given a covariance matrix, factors it, and the script had the factor before.

    ``MultivariateNormal(mean, covariance_matrix=L @ L.mT)`` multiplies a factor with itself only to have it computed
    again: by a Cholesky decomposition for each matrix, one more to check that there is one, and, in training, a
    backward through it. ``scale_tril=L`` is the same distribution. So it is with a diagonal: the factor of
    ``torch.diag_embed(variance)`` is ``torch.diag_embed(variance.sqrt())``. Reported where the decompositions were seen
    in the run, and the source makes the covariance of its factor.

    A covariance that is a narrow matrix by its own transpose plus a diagonal, ``V @ V.mT + torch.diag_embed(d)``, needs
    no decomposition of its size at all: ``LowRankMultivariateNormal(mean, V, d)`` decomposes one of as many rows as V
    has columns, by the matrix determinant lemma and Woodbury's identity.

    When not: the factor is not lower triangular with positive numbers on its diagonal, which ``scale_tril`` has to be.
    With a diagonal, ``Independent(Normal(mean, std), 1)`` needs no matrices at all, but draws other samples.

    Source: PyTorch, ``torch.distributions.MultivariateNormal``: using scale_tril is more efficient, as all computations
    internally are based on it. The gain is what these operators took in the run.
    """

    id = "covariance-factor"
    title = "Give the distribution the factor of its covariance"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        if evidence.compiled or not evidence.step_s:
            return
        counts, shares = factored_covariances(evidence)
        if not counts:
            return
        sites = [site for each in counts if (site := _made_in(each)) is not None]
        if len(sites) < len(counts):
            return
        low = max(counts, key=lambda each: each.size if each.rank else 0)
        shares = of_tensors(shares)
        gain = Gain.of(evidence.what_if(without(evidence, shares)))
        share = spent_s(evidence, shares) / (evidence.trace_step_s or 1.0)
        if not gain.worth_it:
            return
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{share:.0%} of the step multiplies out covariances at {', '.join(map(at, sites))}, checks "
            + (
                f"and factors them, {low.size}x{low.size}, though they are of rank {low.rank} but for a diagonal."
                if low.rank
                else "and factors them again."
            ),
            gain=gain,
            evidence={
                "covariance_share": share,
                "distributions_per_step": sum(counts.values()),
                "step_s": evidence.step_s,
            },
            site=sites[0],
            parameters={"distributions": tuple(sites), "low": bool(low.rank)},
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        sites, drafts = site_list(finding, "distributions"), Drafts(sources)
        if finding.parameters.get("low"):
            return self._of_low_rank(sites, drafts)
        text = f"Give MultivariateNormal {where(sites[0]) if sites else 'there'} the factor: scale_tril=L for "
        text += "covariance_matrix=L @ L.mT."
        diagonal = False
        for site in sites:
            draft = drafts[site.file]
            there = [each for each in covariances(draft) if draft.line(each.call) == site.line]
            if not there or not all(each.certain and "#" not in draft.code(each.call) for each in there):
                return Advice(text, "whether that is lower triangular cannot be told from the source with certainty")
            for each in there:
                factored(draft, each)
                diagonal |= each.diagonal
        return edited(drafts, f"{text} {_NO_MATRICES}" if diagonal else text)

    def _of_low_rank(self, sites: tuple[Site, ...], drafts: Drafts) -> Advice:
        parts = [
            each.parts
            for site in sites
            for each in covariances(drafts[site.file])
            if drafts[site.file].line(each.call) == site.line and each.parts is not None
        ]
        matrix, diagonal = parts[0] if parts else ("V", "d")
        return Advice(
            f"Make the distribution {where(sites[0]) if sites else 'there'} a LowRankMultivariateNormal(mean, "
            f"cov_factor={matrix}, cov_diag={diagonal}), which never has the covariance as a matrix"
            + (f" (cov_diag has a number for each of its rows: {diagonal} expanded to that)." if parts else "."),
            "it draws other samples, and has no scale_tril, of which only its author can tell whether they are needed",
        )

    EXAMPLES = (
        Example(
            before="""
import torch
from torch.distributions import MultivariateNormal

def joint(mean, loadings, noise):
    covariance = torch.diag_embed(noise) + loadings @ loadings.mT
    return MultivariateNormal(mean, covariance)  # <- distributions
""",
            after="",
            parameters={"low": True},
            advice="LowRankMultivariateNormal(mean, cov_factor=loadings, cov_diag=noise)",
        ),
        Example(
            before="""
import torch
from torch.distributions import MultivariateNormal

def posterior(loc, raw, diag):
    factor = raw.tril(-1) + torch.diag_embed(diag.exp())
    return MultivariateNormal(loc, covariance_matrix=factor @ factor.mT)  # <- distributions
""",
            after="""
import torch
from torch.distributions import MultivariateNormal

def posterior(loc, raw, diag):
    factor = raw.tril(-1) + torch.diag_embed(diag.exp())
    return MultivariateNormal(loc, scale_tril=factor)
""",
        ),
        Example(
            before="""
import torch
from torch.distributions import MultivariateNormal

class Actor:
    def act(self, state):
        mean = self.actor(state)
        covariance = torch.diag_embed(self.variance.expand_as(mean))
        return MultivariateNormal(mean, covariance)  # <- distributions
""",
            after="""
import torch
from torch.distributions import MultivariateNormal

class Actor:
    def act(self, state):
        mean = self.actor(state)
        return MultivariateNormal(mean, scale_tril=torch.diag_embed(self.variance.expand_as(mean).sqrt()))
""",
        ),
        Example(
            before="""
import torch.distributions as D

def prior(mean, factor):
    return D.MultivariateNormal(mean, factor @ factor.transpose(-1, -2))  # <- distributions
""",
            after="",
            advice="scale_tril=L",
        ),
    )
    LEAVES_ALONE = (
        Example(
            "from torch.distributions import MultivariateNormal\nd = MultivariateNormal(m, c)  # <- distributions\n", ""
        ),
        Example(
            "from torch.distributions import MultivariateNormal\nfrom torch import tril\n"
            "a = x.tril()\nd = MultivariateNormal(m, a @ b.mT)  # <- distributions\n",
            "",
        ),
    )


def _made_in(found: Factored) -> Site | None:
    """The only distribution of the function, where its covariance is made of a factor."""
    path, line = found.function
    try:
        draft = Draft(Sources().source(path))
    except AdvisorError:
        return None
    there = list(covariances(draft, line))
    if len(there) != 1 or not (there[0].parts is not None if found.rank else there[0].factor):
        return None
    return Site(path, draft.line(there[0].call))
