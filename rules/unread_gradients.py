"""``torch.autograd.grad`` is asked for gradients that nobody reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.evidence import Change
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, at, by_way_of, where

if TYPE_CHECKING:
    from advisor.edit import Sources
    from advisor.evidence import Evidence

_LEAST_GAIN = 1.10
_LEAST_UNREAD = 0.5  # of the gradients: of a few what they take is not known
# Of what the call takes, for as large a part of the gradients: which of them are done first nobody has seen. Of four
# losses' gradients by a trunk, of which the last layer's are read, 43 % of a step went (measured; 1.76 times as fast).
_GOES = 0.9
_BASIS = "prior: as much of what these calls take as of the gradients is never read, but for a tenth"


class UnreadGradients(Rule):
    """A call of ``torch.autograd.grad`` computes the gradients of many tensors, and one or a few are read.

    Losses that are weighed against each other by the norm of their gradients at one layer, asked for all weights of the
    trunk; a penalty on the gradient at the input that asks for the parameters', too. The backward goes on until the
    last tensor that it is asked for: asked for the last shared layer alone, it ends there. Reported where the run has
    seen, in several steps, gradients that no function was given and nobody kept.

    When not: the steps that were watched are not like others, which read them. On a GPU it is not reported: there calls
    take no time of their own.

    Source: PyTorch docs, ``torch.autograd.grad``: "Computes and returns the sum of gradients of outputs with respect to
    the inputs", and of no others. Chen et al. 2018, "GradNorm", section 3.1: W is the last shared layer, "to save on
    compute costs". The gain is a prior.
    """

    id = "unread-gradients"
    title = "Ask for no more gradients than are read"
    safety = Safety.EXACT

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record, step_s = evidence.record, evidence.step_s
        if record is None or evidence.device_is_gpu or evidence.compiled or not step_s or not record.computed_s:
            return
        lines = [each for each in record.unread_gradients if each.unread >= _LEAST_UNREAD * each.asked]
        if not lines:
            return
        scale = min(1.0, step_s / record.computed_s)  # other programs may have held up the steps that were watched
        seconds = scale * sum(each.seconds * each.unread / each.asked for each in lines)
        gain = Gain.prior(evidence.what_if(Change(remove_host_s=_GOES * seconds)), _BASIS)
        if gain.likely < _LEAST_GAIN:
            return
        longest = lines[0]
        way = by_way_of(longest.site, [longest.site, *longest.called_from])
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"torch.autograd.grad at {at(longest.site)}{way} gives {longest.asked:,} gradients, of which "
            f"{longest.unread:,} are never read: {scale * longest.seconds * 1e3:.1f} ms of the step.",
            gain=gain,
            evidence={
                "gradients": longest.asked,
                "unread_gradients": longest.unread,
                "calls_per_step": longest.calls,
                "seconds": seconds,
                "step_s": step_s,
            },
            site=longest.site,
        )

    def fix(self, finding: Finding, sources: Sources) -> Advice:
        return Advice(
            f"Give torch.autograd.grad {where(finding.site)} those tensors alone whose gradients are read.",
            "which ones these are only its author can tell",
        )

    EXAMPLES = (
        Example(
            before="grads = torch.autograd.grad(loss, list(trunk.parameters()), retain_graph=True)  # <-\n",
            after="",
            advice="those tensors alone",
        ),
    )
    LEAVES_ALONE = (Example("(grad,) = torch.autograd.grad(loss, trunk.last.weight, retain_graph=True)  # <-\n", ""),)
