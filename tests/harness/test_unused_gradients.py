"""Gradients that no optimizer takes: seen where they are computed in each step, and not taken for others."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from advisor.harness.optimizers import Optimizers
from advisor.harness.watches.unused_gradients import Unused
from advisor.launch import Command, measure
from tests.conftest import QUICK


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))  # type: ignore[no-any-return]


def looked(
    models: list[nn.Module],
    optimizers: list[torch.optim.Optimizer],
    step: Callable[[], None],
    ended: Callable[[], None] = lambda: None,
    steps: int = 4,
) -> Unused:
    """What is known after some steps, each `step` followed by the end of the step and then `ended`."""

    def held() -> Iterator[Any]:
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                yield from group["params"]

    def moved() -> Iterator[Any]:
        known = Optimizers()
        for optimizer in optimizers:
            known.made(optimizer, None, "")
        yield from known.moved()

    unused = Unused(lambda: models, held, lambda module: None, moved)
    for _ in range(steps):
        step()
        for optimizer in optimizers:
            optimizer.step()
        unused.step_ended()
        ended()
        for optimizer in optimizers:
            optimizer.zero_grad()
    hooked = [each for model in models for each in model.parameters() if each._post_accumulate_grad_hooks]
    assert not hooked
    return unused


def test_a_body_that_only_its_head_is_trained_of() -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.head.parameters(), lr=0.1)
    found = looked([net], [optimizer], lambda: net(torch.rand(3, 4)).sum().backward())
    (record,) = found.found
    assert (record.cls, record.tensors, record.bytes, record.trained) == ("Net", 4, 2 * 4 * (16 + 4), ["head"])
    assert (found.gradients, found.needed) == (6, 2)


@pytest.mark.parametrize("frozen", [False, True])
def test_what_is_frozen_in_a_part_that_is_trained_is_told(frozen: bool) -> None:
    net = Net()
    net.head = nn.Sequential(nn.Linear(4, 4).requires_grad_(not frozen), net.head)
    optimizer = torch.optim.SGD(net.head.parameters(), lr=0.1)
    (record,) = looked([net], [optimizer], lambda: net(torch.rand(3, 4)).sum().backward()).found
    assert (record.trained, record.frozen) == (["head"], frozen)


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_that_the_script_clears_are_computed_anew_all_the_same(to_none: bool) -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.head.parameters(), lr=0.1)
    found = looked(
        [net],
        [optimizer],
        lambda: net(torch.rand(3, 4)).sum().backward(),
        lambda: net.zero_grad(set_to_none=to_none),
    )
    assert [each.tensors for each in found.found] == [4]


def test_several_backwards_of_a_step_are_one_after_the_other() -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.head.parameters(), lr=0.1)

    def step() -> None:
        for _ in range(3):
            net(torch.rand(3, 4)).sum().backward()

    found = looked([net], [optimizer], step)
    assert (found.gradients, found.needed, len(found.found)) == (6, 2, 1)


def test_a_model_of_its_own_that_nobody_trains() -> None:
    encoder, probe = nn.Linear(4, 4), nn.Linear(4, 2)
    optimizer = torch.optim.Adam(probe.parameters())
    found = looked([encoder, probe], [optimizer], lambda: probe(encoder(torch.rand(3, 4))).sum().backward())
    assert [(each.cls, each.tensors, each.trained) for each in found.found] == [("Linear", 2, [])]
    assert (found.gradients, found.needed) == (4, 2)


def at_rates(net: Net, body: float | torch.Tensor, head: float = 0.1) -> torch.optim.Optimizer:
    groups = [{"params": net.body.parameters(), "lr": body}, {"params": net.head.parameters(), "lr": head}]
    return torch.optim.AdamW(groups, weight_decay=0.1)


def test_a_body_at_a_rate_of_zero() -> None:
    net = Net()
    optimizer = at_rates(net, 0.0)
    found = looked([net], [optimizer], lambda: net(torch.rand(3, 4)).sum().backward())
    (record,) = found.still()
    assert (record.tensors, record.trained, record.resting) == (4, ["head"], True)
    assert (found.gradients, found.needed) == (6, 2)
    optimizer.param_groups[0]["lr"] = 0.01  # its turn has come
    assert found.found and not found.still()


def test_a_schedule_that_begins_with_zero() -> None:
    """Gradual unfreezing: the moments of Adam's are gathered by then."""
    net = Net()
    optimizer = at_rates(net, 0.1)
    torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda step: float(step > 400), lambda step: 1.0])
    assert optimizer.param_groups[0]["lr"] == 0.0
    assert not looked([net], [optimizer], lambda: net(torch.rand(3, 4)).sum().backward()).still()


@pytest.mark.parametrize(
    ("body", "later", "head"), [(0.0, 0.01, 0.1), (0.01, 0.01, 0.1), (torch.tensor(0.0), None, 0.1), (0.0, 0.0, 0.0)]
)
def test_a_rate_that_is_zero_for_a_few_steps(body: Any, later: float | None, head: float) -> None:
    """Or never; or a tensor, which nobody asks; or all are zero, and nothing is trained."""
    net = Net()
    optimizer = at_rates(net, body, head)
    steps = iter(range(9))

    def ended() -> None:
        if later is not None and next(steps) == 1:
            optimizer.param_groups[0]["lr"] = later

    assert not looked([net], [optimizer], lambda: net(torch.rand(3, 4)).sum().backward(), ended).still()


def test_what_lies_before_a_trained_weight_is_needed_for_it() -> None:
    net = Net()  # the gradients of the head, which is not trained, are done first
    optimizer = torch.optim.SGD(net.body.parameters(), lr=0.1)
    found = looked([net], [optimizer], lambda: net(torch.rand(3, 4)).sum().backward())
    assert (found.gradients, found.needed) == (6, 6)


def trained_by_hand(net: Net, through_data: bool) -> Callable[[], None]:
    def step() -> None:
        net(torch.rand(3, 4)).sum().backward()
        with torch.no_grad():
            for each in net.body.parameters():
                assert each.grad is not None
                if through_data:
                    each.data -= 0.1 * each.grad
                else:
                    each.sub_(each.grad, alpha=0.1)

    return step


def frozen(net: Net) -> Callable[[], None]:
    """With gradients left from before."""
    net(torch.rand(3, 4)).sum().backward()

    def step() -> None:
        with torch.no_grad():
            features = net.body(torch.rand(3, 4))
        net.head(features).sum().backward()

    return step


def alone(net: Net) -> Callable[[], None]:
    def step() -> None:
        net(torch.rand(3, 4)).sum().backward()
        net.body(torch.rand(3, 4)).sum().backward()  # would fail if nothing of it needed gradients

    return step


def changing(net: Net) -> Callable[[], None]:
    numbers = iter(range(9))

    def step() -> None:
        net(torch.rand(3, 4)).sum().backward()
        if next(numbers) % 2 == 0:
            net.head(torch.rand(3, 4)).sum().backward()

    return step


@pytest.mark.parametrize(
    "steps_of",
    [lambda net: trained_by_hand(net, False), lambda net: trained_by_hand(net, True), frozen, alone, changing],
)
def test_gradients_that_somebody_takes_or_nobody_computes(steps_of: Callable[[Net], Callable[[], None]]) -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.head.parameters(), lr=0.1)
    found = looked([net], [optimizer], steps_of(net))
    assert not found.found and not found.gradients


def test_all_weights_trained_get_no_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    def hook(*_: object) -> None:
        raise AssertionError("a hook")

    monkeypatch.setattr(torch.Tensor, "register_post_accumulate_grad_hook", hook)
    net = Net()
    generator = torch.optim.SGD(net.head.parameters(), lr=0.1)
    critic = torch.optim.SGD(net.body.parameters(), lr=0.1)
    found = looked([net], [generator, critic], lambda: net(torch.rand(3, 4)).sum().backward())
    assert not found.found


def test_an_error_of_ours_ends_the_look_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.head.parameters(), lr=0.1)

    def hook(*_: object) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr(torch.Tensor, "register_post_accumulate_grad_hook", hook)
    assert not looked([net], [optimizer], lambda: net(torch.rand(3, 4)).sum().backward()).found


def test_a_model_is_saved_and_copied_while_it_is_looked_at() -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.head.parameters(), lr=0.1)

    def copied() -> None:
        for each in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
            assert not any(parameter._post_accumulate_grad_hooks for parameter in each.parameters())

    assert looked([net], [optimizer], lambda: net(torch.rand(3, 4)).sum().backward(), copied).found


SCRIPT = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(*[nn.Linear(256, 256) for _ in range(6)])
        self.head = nn.Linear(256, 3)

    def forward(self, x):
        return self.head(self.body(x))

net = Net()
optimizer = torch.optim.SGD(net.head.parameters(), lr=1e-3)
for step in range(4000):
    optimizer.zero_grad()
    net(torch.rand(64, 256)).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.sessions
def test_a_script_that_trains_a_head(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    record = measure(Command(str(script), cwd=str(tmp_path)), tmp_path / "run", QUICK).record
    (found,) = record.unused_gradients
    assert (found.cls, found.tensors, found.trained) == ("Net", 12, ["head"])
    assert (record.gradients, record.gradients_needed) == (14, 2)


def with_inputs(
    net: nn.Module, trained: nn.Module, make: Callable[[], torch.Tensor], frozen: nn.Module | None = None
) -> Unused:
    """What is known after four steps on what `make` gives."""
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    if frozen is not None:
        frozen.requires_grad_(False)
    unused = Unused(lambda: [net], lambda: trained.parameters(), lambda module: None)
    for _ in range(4):
        loss = net(make()).sum()
        unused.backward_begins(loss)
        loss.backward()
        optimizer.step()
        unused.step_ended()
        optimizer.zero_grad()
    assert not any(each._post_accumulate_grad_hooks for each in net.parameters())
    return unused


def test_what_comes_into_a_frozen_body_is_no_weight() -> None:
    net = Net()
    found = with_inputs(net, net.head, lambda: torch.rand(3, 4, requires_grad=True), net.body)
    assert (found.found, found.inputs, found.gradients, found.needed) == ([], 1, 3, 2)


def test_an_input_that_stays_the_same_is_none_either() -> None:
    net, points = Net(), torch.rand(3, 4, requires_grad=True)
    found = with_inputs(net, net.head, lambda: points, net.body)
    assert (found.found, found.inputs, found.gradients, found.needed) == ([], 1, 3, 2)


def test_an_input_beside_weights_that_nobody_trains() -> None:
    net = Net()
    found = with_inputs(net, net.head, lambda: torch.rand(3, 4, requires_grad=True))
    (record,) = found.found
    assert (record.tensors, found.inputs, found.gradients, found.needed) == (4, 1, 7, 2)


def test_an_input_that_needs_no_gradient_is_nothing_to_tell_of() -> None:
    net = Net()
    found = with_inputs(net, net.head, lambda: torch.rand(3, 4), net.body)
    assert (found.found, found.inputs, found.gradients) == ([], 0, 0)


def test_a_tensor_that_an_optimizer_has_is_a_weight() -> None:
    net, codes = Net(), torch.rand(3, 4, requires_grad=True)
    optimizer = torch.optim.SGD([codes], lr=0.1)
    unused = Unused(lambda: [net], lambda: [codes, *net.parameters()], lambda module: None)
    for _ in range(4):
        loss = net(codes).sum()
        unused.backward_begins(loss)
        loss.backward()
        optimizer.step()
        unused.step_ended()
    assert (unused.inputs, unused.gradients) == (0, 0)
