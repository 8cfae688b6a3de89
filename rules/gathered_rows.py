"""A layer is given rows that were looked up, the same ones many times, and computes each copy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from advisor.evidence import Change
from advisor.evidence.gradients.backwards import backward_over, backward_over_forward
from advisor.harness.layout import Gathered, Site
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, at, by_way_of, where

if TYPE_CHECKING:
    from advisor.edit import Sources
    from advisor.evidence import Evidence

_LEAST_GAIN = 1.10
_PRODUCTS, _OF_PRODUCTS = ("aten::addmm", "aten::mm"), ("AddmmBackward0", "MmBackward0")
_CONVOLUTIONS, _OF_CONVOLUTIONS = ("aten::convolution",), ("ConvolutionBackward0",)
_MOST_BACKWARD = 4.0  # over a layer's forward: two products of as many operations, and more passes
_LOOKUPS = ("aten::index", "aten::index_select", "aten::embedding")
_OF_LOOKUPS = ("IndexBackward0", "IndexSelectBackward0", "EmbeddingBackward0")
_ADDING = 1.5  # of numbers, over copying as many: two are read for each that is written


class GatheredRows(Rule):
    """Linear layers run on rows that were looked up, so that each of a few rows is computed many times.

    A graph network that takes ``phi(h[source])`` computes a node's message once per edge; ``phi(h)[source]`` computes
    it once per node, and gives the same, as linear layers and activations treat each row alike. So does a projection
    of embedded tokens, where there are fewer words than tokens. A layer on
    ``torch.cat([h[source], h[target], edge], -1)`` is the sum of three: those of the nodes can be computed before the
    lookup, too. So can those of a row that ``expand`` or ``repeat`` has several times: an atom beside each of its
    neighbours, what is known of a whole cloud beside each of its points, where a convolution of width 1 may be the
    layer. Reported where a run has seen it: functions of torch that were given such rows, or what such functions made
    of them.

    When not: the same line is given other rows as well, in the blocks behind the first one, say (not reported); dropout
    or a batch norm between the lookup and the layer is meant to see each copy; the rows are a few of very many. On a
    GPU it is not reported: there calls take no time of their own.

    Source: the time that these calls took, undisturbed; of their backward a prior, by the step's own. DGL user guide,
    "Writing efficient message passing code", which splits a layer on joined features in this way.
    """

    id = "gathered-rows"
    title = "Compute rows before they are looked up, not after"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record = evidence.record
        if record is None or evidence.device_is_gpu or not evidence.step_s:
            return
        # A line of all blocks, of which only the first is given rows of an embedding, cannot go before the lookup.
        gathered = [each for each in record.gathered if each.joined or not each.others]
        lines = [each for each in gathered if each.linear]
        if not lines:
            return
        seconds = _layers_s(evidence, gathered) + _moving_s(evidence, gathered)
        gain = Gain.of(evidence.what_if(Change(remove_host_s=seconds)))
        if gain.likely < _LEAST_GAIN:
            return
        longest = lines[0]
        way = by_way_of(longest.site, longest.called_from)
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"Layers at {at(longest.site)}{way} are given {longest.rows:,.0f} rows, of which only "
            f"{longest.distinct:,.0f} differ: they were {_done(longest)} at {at(longest.looked_up_at)}"
            + (", and joined with others." if longest.joined else "."),
            gain=gain,
            evidence={
                "rows": longest.rows,
                "different_rows": longest.distinct,
                "gathered_forward_s": sum(each.seconds for each in gathered),
                "seconds_saved": seconds,
                "step_s": evidence.step_s,
            },
            site=longest.site,
            parameters={
                "looked_up": longest.looked_up_at,
                "joined": longest.joined,
                "repeated": _done(longest) == "repeated",
                "channels": longest.channels,
            },
        )

    def fix(self, finding: Finding, sources: Sources) -> Advice:
        looked_up = finding.parameters.get("looked_up")
        place = f" {where(looked_up)}" if isinstance(looked_up, Site) else ""
        repeated = bool(finding.parameters.get("repeated"))
        if finding.parameters.get("joined") and finding.parameters.get("channels"):
            return Advice(
                f"Split the convolution {where(finding.site)}: conv1d(cat([h.repeat(1, 1, n), e], 1)) is "
                "F.conv1d(h, W[:, :c]) + F.conv1d(e, W[:, c:], b), with W its weight and c the channels of h; the sum "
                f"repeats what the first gives. Then what is repeated{place} is computed once.",
                "the channels that belong together only its author can tell",
            )
        if finding.parameters.get("joined"):
            many = "h.unsqueeze(1).expand(n, k, c)" if repeated else "h[i]"
            once = "F.linear(h, W[:, :c]).unsqueeze(1)" if repeated else "F.linear(h, W[:, :c])[i]"
            return Advice(
                f"Split the layer {where(finding.site)}: linear(cat([{many}, e], -1)) is {once} + "
                "F.linear(e, W[:, c:], b), with W the layer's weight and c the columns of h. Then the rows that are "
                f"{'repeated' if repeated else 'looked up'}{place} are computed once each.",
                "the columns that belong together only its author can tell",
            )
        called = f"Call the layers {where(finding.site)} with all rows first, and "
        if repeated:
            called += f"repeat{place} what they give: layers(h).expand(...) for layers(h.expand(...)). "
        else:
            called += f"look up{place} what they give: layers(h)[index] for layers(h[index]). "
        return Advice(
            f"{called}Linear layers and activations give the same.",
            f"how the result gets to where it is {'repeated' if repeated else 'looked up'} only its author can decide",
        )

    EXAMPLES = (
        Example(
            before="def forward(self, h, source):\n    return self.phi(h[source])  # <-\n",
            after="",
            advice="with all rows first",
        ),
        Example(
            before="m = self.edge(torch.cat([h[i], h[j], e], -1))  # <-\n",
            after="",
            parameters={"joined": True},
            advice="F.linear(h, W[:, :c])[i]",
        ),
        Example(
            before="m = self.edge(torch.cat([h.unsqueeze(1).expand(-1, k, -1), e], -1))  # <-\n",
            after="",
            parameters={"joined": True, "repeated": True},
            advice="F.linear(h, W[:, :c]).unsqueeze(1)",
        ),
        Example(
            before="y = self.conv1(torch.cat([whole.repeat(1, 1, points), local], 1))  # <-\n",
            after="",
            parameters={"joined": True, "repeated": True, "channels": True},
            advice="F.conv1d(h, W[:, :c])",
        ),
        Example(
            before="y = self.mix(z.repeat_interleave(steps, 0))  # <-\n",
            after="",
            parameters={"repeated": True},
            advice="layers(h).expand(...)",
        ),
    )
    LEAVES_ALONE = (Example("m = self.phi(h[source])  # <-\n", ""),)


def _done(line: Gathered) -> str:
    """What was done to the rows that there are several of."""
    if line.lookups == line.parts:
        return "looked up"
    return "looked up or repeated" if line.lookups else "repeated"


def _layers_s(evidence: Evidence, lines: Sequence[Gathered]) -> float:
    """Seconds a step of what layers, and what follows them, do for copies of rows; with their backward."""
    whole = backward_over_forward(evidence)
    of_layers = {
        False: backward_over(evidence, _PRODUCTS, _OF_PRODUCTS),
        True: backward_over(evidence, _CONVOLUTIONS, _OF_CONVOLUTIONS),
    }
    ratios = {channels: whole if ratio is None else min(_MOST_BACKWARD, ratio) for channels, ratio in of_layers.items()}
    return sum(
        each.seconds + each.differentiated_s * (ratios[each.channels] if each.linear else whole) for each in lines
    )


def _moving_s(evidence: Evidence, lines: Sequence[Gathered]) -> float:
    """Seconds a step that looking up what layers give takes less than what they are given; below 0 it takes more.

    Both by how many columns it is. What was joined is added then, each part to the others.
    """
    ratio = backward_over(evidence, _LOOKUPS, _OF_LOOKUPS) or 0.0
    saved = 0.0
    for each in lines:
        if not each.linear or not each.columns:
            continue
        both = each.looking_up_s * (1.0 + (ratio if each.differentiated_s else 0.0))
        if each.looked_up:
            saved += both * (1.0 - each.given * (each.lookups if each.joined else 1) / each.looked_up)
        if each.joined:
            saved += each.joining_s * (1.0 - _ADDING * each.parts * each.given / each.columns)
    return saved
