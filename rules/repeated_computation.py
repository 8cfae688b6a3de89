"""A step's forwards compute a second time what they have computed already."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.edit import Drafts
from advisor.edit.gradients.parametrized import cache_weights
from advisor.edit.sources import text_of
from advisor.evidence import Change
from advisor.evidence.gradients.function_backwards import backward_seconds
from advisor.evidence.python_loops.handmade import loop_place
from advisor.evidence.python_loops.rounds import around
from advisor.evidence.worked import added_up
from advisor.fixes import edited
from advisor.rule import (
    Advice,
    Example,
    Finding,
    Gain,
    Rule,
    Safety,
    at,
    by_way_of,
    forward_sites,
    site_list,
    sites,
    where,
)

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence
    from advisor.harness.layout import Site

_LEAST_GAIN = 1.10
_NEARLY_ALL = 0.9
_MOSTLY = 0.5  # of what a line computes again: a constant. A decoder's first word is the same in every step


class RepeatedComputation(Rule):
    """Within one step the forward computes the same from the same tensors, with the same weights, more than once.

    A decoder projects the encoded input to keys and values again in each of its steps; a context, a prompt or a
    graph is encoded anew for each item that is compared with it; the model is called once for the loss, and once more
    with the same batch for a metric; a parametrized weight (orthogonal, with a spectral norm) is made anew each time
    that it is read. Computed once, before the loop or in the first call, the result can be used as
    often as it is needed, and in training its backward runs once, too. Reported where a run has seen it: calls of
    torch's functions that were given the same tensors, unchanged, and gave the same numbers, in steps of their own.

    When not: what is kept has to stay in memory for as long as it is used. Batch norms that train count a batch twice
    when the model is called twice, and then see it once. On a GPU it is not reported: there calls take no time of their
    own.

    Source: the time that these calls took, undisturbed; of their backward a prior, by the step's own. PyTorch docs,
    ``torch.nn.utils.parametrize.cached``.
    """

    id = "repeated-computation"
    title = "Compute once what a step computes again"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record = evidence.record
        if record is None or not record.repeated or evidence.device_is_gpu or not evidence.step_s:
            return
        # What no step changes is to be computed once for all of them: recomputed-constants says so.
        constant: dict[tuple[str, int], float] = {}
        for one in record.recomputed:
            place = one.site.file, one.site.line
            constant[place] = constant.get(place, 0.0) + one.seconds
        repeated = [
            each
            for each in record.repeated
            if constant.get((each.site.file, each.site.line), 0.0) < _MOSTLY * each.seconds
        ]
        loop = evidence.sample_loop
        over_samples = loop_place(evidence, loop, text_of) if loop is not None else None
        repeated = [each for each in repeated if not _by_chance(each.site, over_samples)]
        if not repeated:
            return
        forward = sum(each.seconds for each in repeated)
        backward = backward_seconds(
            evidence, added_up(each.differentiated or {"": each.differentiated_s} for each in repeated)
        )
        gain = Gain.of(evidence.what_if(Change(remove_host_s=forward + backward)))
        if gain.likely < _LEAST_GAIN:
            return
        longest = repeated[0]
        way = by_way_of(longest.site, longest.called_from)
        weights = sum(each.parametrized_s for each in repeated) >= _NEARLY_ALL * forward
        function = f" in {longest.site.function}()" if longest.site.function not in ("", "<module>") else ""
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{(forward + backward) / evidence.step_s:.0%} of the step computes from the same tensors what it "
            f"has computed before, most of it{function} at {at(longest.site)}{way}, "
            f"{longest.calls:.3g} calls of torch more than once.",
            gain=gain,
            evidence={
                "repeated_forward_s": forward,
                "repeated_backward_s": backward,
                "calls_per_step": sum(each.calls for each in repeated),
                "step_s": evidence.step_s,
            },
            site=longest.site,
            parameters={
                "lines": tuple(each.site for each in repeated if each.seconds >= 0.1 * forward),
                "cached": sites(forward_sites(evidence)) if weights else (),
            },
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Advice:
        if forwards := site_list(finding, "cached"):
            text = f"Call the model {where(forwards[0])} under torch.nn.utils.parametrize.cached(): within it each "
            text += "parametrized weight is computed once."
            drafts = Drafts(sources)
            why = cache_weights(drafts, forwards)
            return Advice(text, why) if why else edited(drafts, text)
        lines = finding.parameters.get("lines")
        others = {at(each) for each in lines} - {at(finding.site)} if isinstance(lines, tuple) else set()
        also = f" (and at {', '.join(sorted(others))})" if others else ""
        return Advice(
            f"Keep what is computed {where(finding.site)}{also} the first time in a step, and use it again: compute it "
            "before the loop and pass it in, or take a metric from the outputs that the loss was computed from "
            "(outputs.detach()).",
            "how the result gets to where it is used again only its author can decide",
        )

    EXAMPLES = (
        Example(
            before="for t in range(steps):\n    k = self.k(memory)  # <-\n    h = self.step(h, k)\n",
            after="",
            advice="before the loop",
        ),
        Example(
            before="""
import torch
from torch import nn

for x, y in loader:
    loss = F.mse_loss(model(x), y)  # <- cached=model(x)
    loss.backward()
""",
            after="""
import torch
from torch import nn

for x, y in loader:
    with nn.utils.parametrize.cached():
        loss = F.mse_loss(model(x), y)
    loss.backward()
""",
        ),
        Example(  # what the first call has computed is there for the second
            before="""
from torch import nn

for x, y in loader:
    a = model(x)  # <- cached=model(x)
    b = model(y)  # <- cached=model(y)
    contrast(a, b).backward()
""",
            after="""
from torch import nn

for x, y in loader:
    with nn.utils.parametrize.cached():
        a = model(x)
        b = model(y)
    contrast(a, b).backward()
""",
        ),
        Example(  # the weights may be others in between
            before="""
from torch import nn

for x, y in loader:
    a = critic(x)  # <- cached=critic(x)
    update(critic_loss(a))
    b = critic(y)  # <- cached=critic(y)
    update(maker_loss(b))
""",
            after="""
from torch import nn

for x, y in loader:
    with nn.utils.parametrize.cached():
        a = critic(x)
    update(critic_loss(a))
    with nn.utils.parametrize.cached():
        b = critic(y)
    update(maker_loss(b))
""",
        ),
    )
    LEAVES_ALONE = (
        Example("for y in model(x):  # <- cached\n    use(y)\n", ""),
        Example(  # both graphs would go back through one weight
            "from torch import nn\n\nfor x, y in loader:\n    a = model(x)  # <- cached=model(x)\n"
            "    b = model(y)  # <- cached=model(y)\n    a.mean().backward()\n    b.mean().backward()\n",
            "",
        ),
        Example("k = self.k(memory)  # <-\n", ""),
    )


def _by_chance(site: Site, over_samples: Site | None) -> bool:
    """Whether it is in a loop over samples, some of which happen to be alike: what helps is to take all at once."""
    if over_samples is None or over_samples.file != site.file:
        return False
    inside = around(text_of(site.file), site.line)
    line = inside.iter.lineno if isinstance(inside, ast.For) else getattr(inside, "lineno", 0)
    return bool(line == over_samples.line)
