"""Whether a model's weights are channels-last is read as torch reads it, also where both orders look alike."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from advisor.harness import models
from advisor.harness.model_records import channels_innermost
from advisor.harness.models import Models

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


class Whatever(torch.nn.Module):
    """Takes anything."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Conv2d(3, 4, 1)

    def forward(self, given: Any, *, image: Any = None) -> Any:
        return given


class Silent:
    """Hears what the hooks report, and does nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


IMAGE = torch.zeros(2, 3, 8, 8)


@pytest.mark.parametrize(
    ("given", "tensor_first"),
    [
        ([IMAGE], True),
        ([{"image": IMAGE}], False),
        ([(IMAGE, IMAGE)], False),
        ([[IMAGE]], False),
        ([3], False),
        ([IMAGE, {"image": IMAGE}, IMAGE], False),
    ],
)
def test_whether_a_model_is_called_with_a_tensor_itself(
    given: list[Any], tensor_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", torch.compile)  # put back afterwards
    monkeypatch.setattr(models, "_active", None)
    watched = Models(torch, 0, Silent())
    watched.install()
    try:
        model = Whatever()
        watched.hooks_on()
        for each in given:
            model(each, image=IMAGE)
    finally:
        watched.hooks_off()
        watched.stop_collecting(births=False)
        for patch in watched._jit:
            patch.off()
    (record,) = watched.records()
    assert record.tensor_first is tensor_first and record.calls == len(given)
