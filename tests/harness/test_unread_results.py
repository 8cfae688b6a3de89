"""What a step computes and nothing reads: every way of reading a tensor is seen, and what is left is told."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from advisor.harness.layout import Unread
from advisor.harness.unread_results import STEPS, UnreadResults

SIZE = 200


def watched(step: Callable[[], Any]) -> list[Unread]:
    """What is found in the steps of a loop that calls `step`."""
    unread = UnreadResults(torch)
    for _ in range(STEPS.stop):
        step()
        unread.step_ended()
    return unread.found


def work() -> torch.Tensor:
    x = torch.randn(SIZE, SIZE)
    for _ in range(3):
        x = x @ x
    return x.sum()


READS: dict[str, Callable[[torch.Tensor], object]] = {
    "item": lambda x: x.item(),
    "float": float,
    "int": lambda x: int(x.nan_to_num(0.0, 0.0, 0.0)),
    "complex": complex,
    "index": lambda x: [0, 1][(x > 0).long()],
    "bool": bool,
    "if": lambda x: 1 if x > 0 else 2,
    "not": lambda x: not x,
    "max": lambda x: max(x, torch.zeros(())),
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "asarray": np.asarray,
    "np function": lambda x: np.mean([x, x]),
    "np array": lambda x: np.array([x, x]),
    "format": lambda x: f"{x:.3f}",
    "percent": lambda x: "%.3f" % x,  # noqa: UP031
    "str": str,
    "repr": repr,
    "iterate": lambda x: [float(each) for each in x[None]],
    "contains": lambda x: x in torch.zeros(2),
    "equal": lambda x: torch.equal(x, torch.zeros(())),
    "allclose": lambda x: torch.allclose(x, torch.zeros(())),
    "save": lambda x: torch.save(x, io.BytesIO()),
    "storage": lambda x: x.untyped_storage(),
    "pointer": lambda x: x.data_ptr(),
    "dlpack": lambda x: np.from_dlpack(x),
    "nonzero": lambda x: torch.nonzero(x[None], as_tuple=False).tolist(),
    "mask": lambda x: torch.zeros(1)[x[None] > 0].tolist(),
    "view": lambda x: x.view(1).expand(4).tolist(),
    "data": lambda x: x.data.item(),
    "out": lambda x: torch.add(x, 1.0, out=torch.zeros(())).item(),
    "custom op": lambda x: torch.ops.aten.add(x, x).item(),
    "tensor of it": lambda x: torch.tensor([x, x]).tolist(),
    "parameter": lambda x: HELD.append(nn.Parameter(x)),
    "kept": lambda x: HELD.append(x),
    "kept part": lambda x: HELD.append(x[None][0:1]),
    "kept array": lambda x: HELD.append(x.numpy()),
    "copied": lambda x: BUFFER.copy_(x),
    "written": lambda x: BUFFER.__setitem__(0, x),
    "added": lambda x: BUFFER.add_(x),
    "gathered": lambda x: BUFFER.index_add_(0, torch.zeros(1, dtype=torch.long), x[None]),
    "backward": lambda x: (x * WEIGHT).backward(),
    "all backwards": lambda x: torch.autograd.backward([x * WEIGHT]),
    "grad": lambda x: torch.autograd.grad(x * WEIGHT, WEIGHT)[0].item(),
    "gradient": lambda x: setattr(WEIGHT, "grad", x),
    "weights": lambda x: setattr(WEIGHT, "data", x),
    "vmap": lambda x: torch.func.vmap(torch.sin)(x[None]).tolist(),
    "func grad": lambda x: torch.func.grad(lambda y: y * x)(torch.ones(())).item(),
}
HELD: list[Any] = []
BUFFER = torch.zeros(1)
WEIGHT = nn.Parameter(torch.ones(()))


@pytest.mark.parametrize("how", READS)
def test_what_is_read_is_seen(how: str) -> None:
    def step() -> None:
        READS[how](work())

    assert not watched(step)
    HELD.clear()


def test_what_nobody_reads_is_found() -> None:
    def step() -> None:
        work().item()
        work()

    (found,) = watched(step)
    assert found.site.function == "step" and found.draws and found.calls == 5 and found.seconds > 0.0


ASKS: dict[str, Callable[[torch.Tensor], object]] = {
    "shape": lambda x: x.shape,
    "size": lambda x: x.size(),
    "dim": lambda x: x.dim(),
    "numel": lambda x: x.numel(),
    "device": lambda x: x.device,
    "dtype": lambda x: x.dtype,
    "type": lambda x: x.type(),
    "gradient": lambda x: x.requires_grad,
    "deleted": lambda x: [x].clear(),
}


@pytest.mark.parametrize("how", ASKS)
def test_to_ask_for_a_shape_is_not_to_read(how: str) -> None:
    def step() -> None:
        ASKS[how](work())

    assert len(watched(step)) == 1


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(SIZE, SIZE)
        self.decoder = nn.Sequential(nn.Linear(SIZE, SIZE), nn.BatchNorm1d(SIZE), nn.ReLU(inplace=True))
        self.head = nn.Linear(SIZE, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.encoder(x)
        decoded = self.decoder(hidden)
        return self.head(hidden), decoded


def test_a_branch_without_a_loss_is_found() -> None:
    net = Branches()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    given: list[Any] = [None]

    def step() -> None:
        given[0], _ = net(torch.randn(SIZE, SIZE))
        given[0].square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    (found,) = watched(step)
    assert found.site.function == "forward" and found.calls == 3 and not found.draws
    assert [each.function for each in found.called_from][:1] == ["step"]


def test_what_the_next_step_reads_is_read() -> None:
    state = [torch.zeros(SIZE, SIZE)]

    def step() -> None:
        state[0] = (state[0] @ torch.randn(SIZE, SIZE)).tanh()
        state[0].sum().item()

    assert not watched(step)


def test_what_is_looked_at_every_so_often_counts_as_read_then() -> None:
    steps = [0]

    def step() -> None:
        steps[0] += 1
        loss = work()
        if steps[0] % 2:
            loss.item()

    assert not watched(step)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mask = (x @ x @ x @ x) > 0
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient * ctx.mask


def test_what_a_function_keeps_for_its_backward_is_read() -> None:
    x = torch.randn(SIZE, SIZE, requires_grad=True)

    def step() -> None:
        Doubled.apply(x).sum().backward()
        x.grad = None

    assert not watched(step)


def test_a_thread_of_the_users_may_read_what_no_mode_sees() -> None:
    over = threading.Event()
    thread = threading.Thread(target=lambda: over.wait())
    thread.start()
    try:
        assert not watched(lambda: work() and None)
    finally:
        over.set()
        thread.join()


def test_the_script_s_own_mode_is_left_as_it_was() -> None:
    from torch.overrides import _get_current_function_mode_stack

    def step() -> None:
        with torch.device("cpu"):
            work()

    assert len(watched(step)) == 1
    assert not _get_current_function_mode_stack()
    unread = UnreadResults(torch)
    for _ in range(STEPS.start):
        unread.step_ended()
    with torch.device("cpu"):  # a step that ends inside: ours is not the last one that was entered
        for _ in range(STEPS.start, STEPS.stop):
            work()
            unread.step_ended()
        assert len(_get_current_function_mode_stack()) == 2
    unread.stop()
    assert not _get_current_function_mode_stack()


@pytest.mark.parametrize(
    "layer",
    [nn.TransformerEncoderLayer(16, 2, batch_first=True).eval(), nn.Sequential(torch.jit.script(nn.ReLU()))],
    ids=["fast path", "script"],
)
def test_a_model_that_reads_unseen_ends_the_watch(layer: nn.Module) -> None:
    unread = UnreadResults(torch)
    for _ in range(STEPS.stop):
        unread.forward_begins(layer)
        work()
        unread.step_ended()
    assert not unread.found


def test_dropout_is_a_draw() -> None:
    def step() -> None:
        F.dropout(torch.ones(SIZE, SIZE), 0.5)

    assert all(each.draws for each in watched(step))
