"""Whether a model's weights are channels-last is read as torch reads it, also where both orders look alike."""

from __future__ import annotations

import pytest
import torch

from advisor.harness.models import channels_innermost

CONVOLUTIONS = {
    "dense": (3, 8, 3, 1),
    "depthwise": (16, 16, 7, 16),
    "of one pixel": (16, 48, 1, 1),
    "of one channel": (1, 16, 4, 1),
    "to one channel": (16, 1, 3, 1),
    "one by one": (1, 1, 3, 1),
}


@pytest.mark.parametrize(("channels", "out", "kernel", "groups"), CONVOLUTIONS.values(), ids=CONVOLUTIONS.keys())
def test_weight_is_read_as_the_convolution_reads_it(channels: int, out: int, kernel: int, groups: int) -> None:
    made = torch.nn.Conv2d(channels, out, kernel, groups=groups)
    image = torch.randn(2, channels, 16, 16)
    assert not channels_innermost(made.weight)
    turned = made.to(memory_format=torch.channels_last)
    assert channels_innermost(turned.weight)
    # What comes out of it tells what torch has made of the weight, where there are channels to put in order.
    if out > 1:
        assert turned(image).is_contiguous(memory_format=torch.channels_last)
