"""What several products of a step copy is told by its memory, and only where they do copy it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from advisor.harness.layout import CopiedOperand
from advisor.harness.watches.copied_operands import CopiedOperands, can_be_folded, is_copied
from tests.harness.watching import Watching

BATCH, LENGTH, HEADS, WIDTH, ROUNDS = 8, 40, 4, 32, 5
QUERY = torch.randn(BATCH, HEADS, 1, WIDTH)


def projected(length: int = LENGTH, batch: int = BATCH) -> torch.Tensor:
    return torch.randn(batch, length, HEADS, WIDTH)


def seen(compute: Callable[[], Any]) -> list[CopiedOperand]:
    copied = CopiedOperands(torch)
    with Watching(lambda name, args, _, result: copied.called(name, args, result)):
        compute()
    return list(copied.lines.lines.values())


def attended(keys: torch.Tensor, between: Callable[[torch.Tensor], object] = lambda _: None) -> None:
    for _ in range(ROUNDS):
        torch.matmul(QUERY, keys.transpose(-2, -1))
        between(keys)


@pytest.mark.parametrize(
    "lay_out",
    [
        pytest.param(lambda x: x.permute(0, 2, 1, 3), id="permute"),
        pytest.param(lambda x: x.transpose(1, 2), id="transpose"),
        pytest.param(lambda x: torch.movedim(x, 2, 1), id="movedim"),
    ],
)
def test_keys_that_each_round_copies(lay_out: Callable[[torch.Tensor], torch.Tensor]) -> None:
    (line,) = seen(lambda: attended(lay_out(projected())))
    assert (line.calls, line.shape) == (ROUNDS - 1, [BATCH, HEADS, WIDTH, LENGTH])
    assert line.certain and len(line.laid_out) == 1 and line.seconds > 0


def test_values_as_the_right_operand_and_by_the_operator() -> None:
    def glimpses() -> None:
        values, weights = projected().transpose(1, 2), torch.rand(BATCH, HEADS, 1, LENGTH)
        for _ in range(ROUNDS):
            weights @ values

    (line,) = seen(glimpses)
    assert line.calls == ROUNDS - 1


@pytest.mark.parametrize(
    "compute",
    [
        pytest.param(lambda: attended(projected().transpose(1, 2).contiguous()), id="copied once"),
        pytest.param(lambda: [QUERY @ projected().permute(0, 2, 3, 1) for _ in range(ROUNDS)], id="others each time"),
        pytest.param(lambda: attended(projected().transpose(1, 2), lambda keys: keys.add_(1.0)), id="written to"),
        pytest.param(lambda: attended(projected(2).transpose(1, 2)), id="small"),
        pytest.param(lambda: attended(projected(200, 1).transpose(1, 2)), id="one sample's, repeated for all"),
        pytest.param(lambda: attended(projected(200, 1).transpose(1, 2).expand(BATCH, -1, -1, -1)), id="expanded"),
        pytest.param(lambda: attended(torch.randn(LENGTH * 4, HEADS, WIDTH).transpose(0, 1)), id="of 3 dimensions"),
    ],
)
def test_what_is_not_copied_again(compute: Callable[[], Any]) -> None:
    assert not seen(compute)


@pytest.mark.parametrize(("written", "calls"), [(False, ROUNDS - 1), (True, None)])
def test_inference_mode_counts_no_writes(written: bool, calls: int | None) -> None:
    def infer() -> None:
        with torch.inference_mode():
            attended(projected().transpose(1, 2), lambda keys: keys[:, :, 3].mul_(1.5) if written else None)

    assert [each.calls for each in seen(infer)] == ([calls] if calls else [])


def test_a_step_that_is_over_is_forgotten() -> None:
    copied, keys = CopiedOperands(torch), projected().transpose(1, 2)
    with Watching(lambda name, args, _, result: copied.called(name, args, result)):
        for _ in range(ROUNDS):
            QUERY @ keys.mT
            copied.clear()
    assert not copied.lines.lines


@pytest.mark.parametrize(
    ("compute", "certain"),
    [
        pytest.param(lambda keys: None, True, id="as it was"),
        pytest.param(lambda keys: keys[:, :, 0].zero_(), False, id="written to"),
        pytest.param(lambda keys: keys.transpose(1, 2).view(BATCH, LENGTH, -1), False, id="viewed as it had been"),
    ],
)
@pytest.mark.parametrize("context", [torch.enable_grad, torch.inference_mode])
def test_what_was_done_with_it_before_is_no_copy(
    compute: Callable[[torch.Tensor], Any], certain: bool, context: Callable[[], Any]
) -> None:
    def done() -> None:
        with context():
            keys = projected().transpose(1, 2)
            compute(keys)
            attended(keys)

    assert [each.certain for each in seen(done)] == [certain]


def test_parts_of_what_was_permuted_are_laid_out_there() -> None:
    def both() -> None:
        keys, values = torch.randn(BATCH, LENGTH, 2, HEADS, WIDTH).permute(2, 0, 3, 1, 4)
        attended(keys)
        for _ in range(ROUNDS):
            torch.rand(BATCH, HEADS, 1, LENGTH) @ values

    lines = seen(both)
    assert sum(each.calls for each in lines) == 2 * (ROUNDS - 1) and all(each.certain for each in lines)


def again(keys: torch.Tensor) -> None:
    """Its dimensions are put into their order for each product."""
    for _ in range(ROUNDS):
        torch.matmul(QUERY, keys.transpose(1, 2).transpose(-2, -1))


def heads(keys: torch.Tensor) -> None:
    """Half of the heads, which a contiguous tensor of all has not one after another either."""
    for each in keys.transpose(1, 2).chunk(2, 1):
        for _ in range(ROUNDS):
            torch.matmul(QUERY[:, : HEADS // 2], each.mT)


def later(change: Callable[[torch.Tensor], object]) -> Callable[[torch.Tensor], None]:
    """Something is done after the last product, by what is no copy now."""

    def products(keys: torch.Tensor) -> None:
        attended(keys.transpose(1, 2))
        change(keys)

    return products


@pytest.mark.parametrize(
    "compute",
    [
        pytest.param(again, id="laid out anew"),
        pytest.param(heads, id="a part of the heads"),
        pytest.param(later(lambda keys: keys[:, 0].zero_()), id="written to later"),
        pytest.param(later(lambda keys: keys[1:].view(-1, LENGTH * HEADS * WIDTH // 2)[0]), id="not of its order"),
    ],
)
def test_what_a_copy_at_that_line_would_not_mend_is_uncertain(compute: Callable[[torch.Tensor], None]) -> None:
    copied = CopiedOperands(torch)
    with Watching(lambda name, args, _, result: copied.called(name, args, result)):
        compute(projected(80))
    copied.clear()
    found = list(copied.lines.lines.values())
    assert found and not any(each.certain for each in found)


def test_no_more_is_kept_than_some_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advisor.harness.watches.copied_operands._MOST_HELD", 3 * 8 * 40 * 4 * 32 * 4)
    kept = [projected().transpose(1, 2) for _ in range(3)]
    (line,) = seen(lambda: [attended(each) for each in (*kept, projected(4000).transpose(1, 2), kept[0])])
    assert line.calls == 3 * (ROUNDS - 1) + ROUNDS


def test_autocast_makes_copies_of_its_own() -> None:
    def cast() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            attended(projected().transpose(1, 2))

    assert not seen(cast)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3), (0, 1, 3, 2), (1, 0, 2, 3)])
@pytest.mark.parametrize("sizes", [(8, 40, 4, 16), (8, 1, 4, 16), (1, 40, 4, 16)])
def test_folded_is_what_matmul_does_not_copy(order: tuple[int, ...], sizes: tuple[int, ...]) -> None:
    """As the profiler sees it, and as ``view`` has it, which never copies."""
    tensor = torch.randn(sizes).permute(order)
    other = torch.randn(*tensor.shape[:-2], 1, tensor.shape[-2])
    with torch.profiler.profile() as profiled:
        torch.matmul(other, tensor)
    copied = any(event.name == "aten::clone" for event in profiled.events() or ())
    try:
        tensor.view(-1, *tensor.shape[-2:])
        could = True
    except RuntimeError:
        could = False
    assert can_be_folded(tensor) is could and is_copied(tensor) is copied is not could
