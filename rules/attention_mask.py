"""Fused attention computes all pairs, under a mask that leaves nothing of most of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.evidence import Change
from advisor.evidence.gradients.backwards import backward_over_forward
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, at, by_way_of, where

if TYPE_CHECKING:
    from advisor.edit import Sources
    from advisor.evidence import Evidence
    from advisor.harness.layout import AttentionMask

_LEAST_GAIN = 1.15
_MOST_NEEDED = 0.4  # of the tiles; a causal mask leaves a little more than half of them
_WINDOW = 0.4  # of the keys: a mask that reaches no farther than that to either side is a window's
# Forward and backward, PyTorch 2.14 on two cores: keys and window, share of the tiles, share of the time that stayed.
# 512, 64: 0.23, 0.46; 512, 128: 0.33, 0.73; 1024, 64: 0.12, 0.25; 1024, 128: 0.18, 0.38; 1024, 256 of eight heads:
# 0.27, 0.64; 1536, 96: 0.12, 0.24; 2048, 128: 0.09, 0.19; 2048, 256: 0.15, 0.29.
_LEFT_OF_TILES = 2.2
_BASIS = "prior: what the tiles take that the mask leaves anything of, and the blocks' own copies"


class AttentionMasks(Rule):
    """Attention to a window of neighbours, or within the texts of a packed sequence, by a mask over all pairs.

    ``F.scaled_dot_product_attention`` goes through the scores of all queries and keys, tile by tile, and a mask only
    says which of them count: of 1,536 tokens that each look at the 96 before them a tenth of the tiles has anything in
    it. A block of queries needs its own block of keys and the one before it: with ``unfold`` all blocks become a batch,
    and the work grows with the length, not with its square. Reported where a run has seen it: one mask for all samples
    and heads, of whose tiles of 64 x 64 most are empty.

    When not: a mask of padding, of each sample its own (see padding and uneven-lengths); a causal mask alone, of which
    half is left. On a GPU it is not reported: there calls take no time of their own;
    ``torch.nn.attention.flex_attention`` skips empty tiles there, compiled, by a ``BlockMask``.

    Source: Beltagy et al. 2020, "Longformer", section 3.1 (a window's work is linear in the length); PyTorch docs,
    ``torch.nn.attention.flex_attention``, ``create_block_mask``. What blocks leave is a prior, by eight shapes on two
    cores.
    """

    id = "attention-mask"
    title = "Compute the part of attention that the mask leaves"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record, step_s = evidence.record, evidence.step_s
        if record is None or not record.attention_masks or evidence.device_is_gpu or evidence.compiled or not step_s:
            return
        lines = [each for each in record.attention_masks if each.seconds and _needed(each) <= _MOST_NEEDED]
        if not lines:
            return
        backward = backward_over_forward(evidence) if evidence.trains else 0.0
        now = sum(each.seconds + backward * each.differentiated_s for each in lines)
        saved = sum((each.seconds + backward * each.differentiated_s) * (1.0 - _left(each)) for each in lines)
        gain = Gain.prior(evidence.what_if(Change(remove_host_s=max(0.0, saved))), _BASIS)
        if gain.likely < _LEAST_GAIN:
            return
        longest = lines[0]
        way = by_way_of(longest.site, [longest.site, *longest.called_from])
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{min(now / step_s, 1.0):.0%} of the step computes attention of {longest.queries:,} x "
            f"{longest.keys:,} pairs at {at(longest.site)}{way}, and the mask leaves nothing of "
            f"{1.0 - _needed(longest):.0%} of their tiles"
            + (f": no query looks farther than {longest.reach:,} places." if _is_window(longest) else "."),
            gain=gain,
            evidence={
                "queries": longest.queries,
                "keys": longest.keys,
                "tiles_needed": _needed(longest),
                "reach": longest.reach,
                "attention_s": now,
                "step_s": step_s,
            },
            site=longest.site,
            parameters={"window": longest.reach if _is_window(longest) else 0},
        )

    def fix(self, finding: Finding, sources: Sources) -> Advice:
        window = finding.parameters.get("window")
        if window:
            how = (
                f"in blocks of {window} or so queries, each with the keys and values of its own block and of the one "
                "before it (and behind it, where the mask looks both ways): keys.unfold(2, 2 * w, w) makes them "
                "(of keys with a block of padding in front, which the mask of the first one leaves out), all blocks "
                "become a batch, and one small mask does for all others"
            )
        else:
            how = "for each part by itself, whose queries look at its own keys alone: parts of one length as a batch"
        return Advice(
            f"Compute the attention {where(finding.site)} {how}. On a GPU torch.nn.attention.flex_attention, compiled, "
            "with create_block_mask() of the same rule leaves the empty tiles out.",
            "how the mask comes about, and whether it stays the same, only its author can tell",
        )

    EXAMPLES = (
        Example(
            before="y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask[:t, :t])  # <-\n",
            after="",
            parameters={"window": 96},
            advice="keys.unfold(2, 2 * w, w)",
        ),
        Example(
            before="y = F.scaled_dot_product_attention(q, k, v, attn_mask=same_text)  # <-\n",
            after="",
            parameters={"window": 0},
            advice="for each part by itself",
        ),
    )
    LEAVES_ALONE = (Example("y = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # <-\n", ""),)


def _needed(line: AttentionMask) -> float:
    """The share of the tiles that the mask leaves anything of."""
    return line.needed / line.seconds


def _left(line: AttentionMask) -> float:
    """The share of what the attention takes that stays."""
    return min(1.0, _LEFT_OF_TILES * _needed(line))


def _is_window(line: AttentionMask) -> bool:
    return line.band and line.reach <= _WINDOW * line.keys
