"""How much of fused attention a mask leaves for nothing, where it is the same for all samples."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from advisor.harness.layout import AttentionMask
from advisor.harness.watches.attention_masks import AttentionMasks

TOKENS = 512


def seen(mask: Any, calls: int = 1, **facts: Any) -> list[AttentionMask]:
    masks = AttentionMasks(torch)
    q, k, v = (torch.randn(2, 2, facts.get("tokens", TOKENS), 8, requires_grad=True) for _ in range(3))
    for _ in range(calls):
        named = {"attn_mask": mask} if mask is not None else {}
        result = F.scaled_dot_product_attention(q, k, v, **named)
        masks.called("scaled_dot_product_attention", (q, k, v), named, result, 0.01)
        if facts.get("backward"):
            result.sum().backward()
    masks.lines.step_ends()
    return masks.lines.per_step(1, 0.0)


def window(size: int, tokens: int = TOKENS) -> torch.Tensor:
    apart = torch.arange(tokens)[:, None] - torch.arange(tokens)
    return (apart >= 0) & (apart < size)


def test_a_window_leaves_the_tiles_along_the_diagonal() -> None:
    (line,) = seen(window(64), calls=2, backward=True)
    assert (line.queries, line.keys, line.reach, line.calls) == (TOKENS, TOKENS, 63, 2)
    assert line.needed / line.seconds == pytest.approx(15 / 64)  # eight tiles, and seven beside them
    assert line.differentiated_s == pytest.approx(line.seconds)


def test_what_is_added_to_scores_is_a_mask_as_well() -> None:
    added = torch.zeros(TOKENS, TOKENS).masked_fill(~window(64), float("-inf"))
    (line,) = seen(added[None, None])
    assert line.needed / line.seconds == pytest.approx(15 / 64) and line.reach == 63


def test_texts_of_a_packed_sequence_reach_as_far_as_they_are_long() -> None:
    text = torch.arange(TOKENS) // 128
    (line,) = seen(text[:, None] == text)
    assert line.needed / line.seconds == pytest.approx(0.25) and line.reach == 127 and not line.band


def test_a_causal_mask_leaves_half() -> None:
    (line,) = seen(window(TOKENS))
    assert line.needed / line.seconds == pytest.approx(36 / 64) and line.reach == TOKENS - 1


def test_a_mask_that_is_written_to_is_looked_at_again() -> None:
    masks, mask = AttentionMasks(torch), window(64)
    before = masks._of(mask)
    mask.fill_(True)
    assert masks._of(mask) == (1.0, TOKENS - 1, True) != before


@pytest.mark.parametrize(
    "mask",
    [None, torch.ones(2, 1, TOKENS, TOKENS, dtype=torch.bool), torch.ones(2, 1, 1, TOKENS, dtype=torch.bool)],
    ids=["none", "of each sample", "of padding"],
)
def test_other_masks_are_not_looked_at(mask: Any) -> None:
    assert seen(mask) == []


def test_nor_are_those_of_few_tokens_or_that_learn() -> None:
    assert seen(window(16, 128), tokens=128) == []
    learns = torch.zeros(TOKENS, TOKENS, requires_grad=True)
    assert seen(learns) == []
