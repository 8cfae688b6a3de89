"""Torch's encoders compute under the harness's modes what they compute without them, and the modes see from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import BaseTorchFunctionMode

from advisor.harness.indexing import Indexing
from advisor.harness.layout import Recomputed, Repeated, Unread
from advisor.harness.sites import CallSites
from advisor.harness.watches.constants import WATCHED, Constants
from advisor.harness.watches.unread_results import STEPS, UnreadResults

WIDTH, LENGTH = 64, 48
KINDS = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)
FUSED = ("aten::_transformer_encoder_layer_fwd", "aten::_native_multi_head_attention")


def layer_of(width: int = WIDTH) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(width, 4, 128, batch_first=True)


def encoder_of(layers: int = 2) -> nn.TransformerEncoder:
    return nn.TransformerEncoder(layer_of(), layers).eval()


def operators(call: Callable[[], Any]) -> set[str]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        call()
    return {each.name for each in profiler.events()}


@contextmanager
def indexing() -> Iterator[None]:
    watch = Indexing(torch, CallSites(torch, 0, None))
    watch.on()
    try:
        yield
    finally:
        watch.off()


@contextmanager
def unread() -> Iterator[None]:
    watch = UnreadResults(torch)
    for _ in range(STEPS.start):
        watch.step_ended()
    try:
        yield
    finally:
        watch.stop()


@contextmanager
def constants() -> Iterator[None]:
    watch, model = Constants(torch), nn.Linear(2, 2)
    for _ in range(WATCHED.start):
        watch.step_ended()
    watch.forward_begins(model, [torch.rand(2, 2)])
    try:
        yield
    finally:
        watch.forward_ends()
        watch.stop()


@pytest.mark.parametrize("watching", [indexing, unread, constants])
@pytest.mark.parametrize("kind", ["encoder", "layer", "attention"])
def test_they_keep_their_fast_path(watching: Callable[[], Any], kind: str) -> None:
    torch.manual_seed(0)
    x, padding = torch.rand(6, LENGTH, WIDTH), torch.arange(LENGTH) >= torch.tensor([[9], [48], [20], [3], [31], [48]])
    encoder, layer = encoder_of(), layer_of().eval()
    calls: dict[str, Callable[[], Tensor]] = {
        "encoder": lambda: encoder(x, src_key_padding_mask=padding),
        "layer": lambda: layer(x, src_key_padding_mask=padding),
        "attention": lambda: layer.self_attn(x, x, x, need_weights=False)[0],
    }
    before, call = [vars(each)["forward"] for each in KINDS], calls[kind]
    with torch.inference_mode():
        alone, fused = call(), operators(call).intersection(FUSED)
        assert fused
        with watching():
            assert [vars(each)["forward"] for each in KINDS] != before
            assert torch.equal(call(), alone) and operators(call).intersection(FUSED) == fused
    assert [vars(each)["forward"] for each in KINDS] == before


def test_another_mode_keeps_them_from_it_as_without_us() -> None:
    x, encoder = torch.rand(6, LENGTH, WIDTH), encoder_of()
    for modes in ((BaseTorchFunctionMode(), None), (None, BaseTorchFunctionMode()), (None, None)):
        below, above = (each or torch.no_grad() for each in modes)
        with torch.no_grad(), below, indexing() if modes[0] is None else torch.no_grad(), above:
            assert bool(operators(lambda: encoder(x)).intersection(FUSED)) == (modes == (None, None))


def test_what_is_trained_is_looked_into() -> None:
    sites, x, encoder = CallSites(torch, 0, None), torch.rand(6, LENGTH, WIDTH), encoder_of(1)
    encoder.layers[0].activation = lambda given: given[:, 0, None] * given  # type: ignore[union-attr]
    watch = Indexing(torch, sites)
    seen = []
    for grad in (True, False):
        watch.on()
        with torch.set_grad_enabled(grad):
            encoder(x)
        seen.append(watch.seen)
        watch.off()
    assert seen[0] > 0 and seen[1] == 0


def unread_of(step: Callable[[], Any]) -> list[Unread]:
    watch = UnreadResults(torch)
    for _ in range(STEPS.stop):
        step()
        watch.step_ended()
    return watch.found


def work(size: int = 200) -> Tensor:
    x = torch.randn(size, size)
    for _ in range(3):
        x = x @ x
    return x / x.abs().max()


def test_what_an_encoder_is_given_is_read() -> None:
    encoder = encoder_of()

    def step(reads: bool) -> None:
        with torch.no_grad():
            x, mask = work(LENGTH * WIDTH // 16).reshape(-1, LENGTH, WIDTH)[:4], work(LENGTH) > 0
            encoder(x, mask=mask, src_key_padding_mask=work()[:4, :LENGTH] > 2).sum().item()
            if not reads:
                work()

    assert not unread_of(lambda: step(True))
    (line,) = unread_of(lambda: step(False))
    assert line.site.function == "step"


def test_what_nobody_reads_of_an_encoder_is_told() -> None:
    x, encoder = torch.rand(6, LENGTH, WIDTH), encoder_of()

    def step() -> None:
        with torch.no_grad():
            encoder(x)  # for nobody
            encoder(x).sum().item()

    (line,) = unread_of(step)
    assert line.calls == 1.0 and line.site.function == "step"


def test_a_hook_in_an_encoder_may_read_anything() -> None:
    x, encoder, box = torch.rand(6, LENGTH, WIDTH), encoder_of(), [torch.zeros(())]
    encoder.layers[1].linear1.register_forward_hook(lambda *given: box[0].item() and None)  # type: ignore[union-attr]

    def step() -> None:
        with torch.no_grad():
            box[0] = work().sum()
            encoder(x).sum().item()
            box[0] = torch.zeros(())

    assert not unread_of(step)


def test_weights_that_a_step_makes_are_read() -> None:
    x, encoder = torch.rand(6, LENGTH, WIDTH), encoder_of()
    attention = encoder.layers[0].self_attn
    own = attention.in_proj_bias
    assert isinstance(attention, nn.MultiheadAttention) and own is not None

    def step() -> None:
        with torch.no_grad():
            attention._parameters["in_proj_bias"] = nn.Parameter(own + work().sum() * 1e-9)
            encoder(x).sum().item()

    assert not unread_of(step)


class Tagger(nn.Module):
    """An encoder that is asked twice for the same, or two of them, behind a table that is computed each time."""

    def __init__(self, encoders: int, times: int) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(encoder_of() for _ in range(encoders))
        self.times = times
        self.register_buffer("table", torch.rand(300, 300))

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.linalg.matrix_exp(self.table * 1e-3)[:LENGTH, :WIDTH]  # always the same
        x = x + positions
        found = [encoder(x) for encoder in self.encoders for _ in range(self.times)]
        return torch.stack(found).sum(0)


def constants_of(model: Tagger) -> tuple[list[Recomputed], list[Repeated]]:
    watch = Constants(torch)
    for _ in range(WATCHED.stop):
        x = torch.rand(6, LENGTH, WIDTH)
        with torch.no_grad():
            watch.forward_begins(model, [x])
            watch.forward_ends(model(x))
        watch.step_ended()
    return watch.found, watch.repeated


@pytest.mark.parametrize(("encoders", "times"), [(1, 1), (2, 1), (1, 3)])
def test_around_them_constants_and_repetitions_are_seen(encoders: int, times: int) -> None:
    recomputed, repeated = constants_of(Tagger(encoders, times).eval())
    assert {each.site.function for each in recomputed} == {"forward"}
    assert sum(each.calls for each in repeated) == pytest.approx(encoders * (times - 1))


class Ranker(nn.Module):
    """Each text is encoded once for each of its questions."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = encoder_of()

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        x, padding = x.repeat_interleave(4, 0), padding.repeat_interleave(4, 0)
        return self.encoder(x, src_key_padding_mask=padding).mean(1)  # type: ignore[no-any-return]


def test_rows_that_an_encoder_without_padding_computes_again_are_seen() -> None:
    watch, model = Constants(torch), Ranker().eval()
    for _ in range(WATCHED.stop):
        x, padding = torch.rand(6, LENGTH, WIDTH), torch.arange(LENGTH) >= torch.randint(1, LENGTH, (6, 1))
        padding[0] = False
        with torch.no_grad():
            watch.forward_begins(model, [x, padding])
            watch.forward_ends(model(x, padding))
        watch.step_ended()
    (line,) = watch.repeated_rows
    assert (line.module, line.order, line.rows, line.distinct) == ("TransformerEncoder", "block", 24, 6)
