"""What a step computes and nothing reads: every way of reading a tensor is seen, and what is left is told."""

from __future__ import annotations

import concurrent.futures
import gc
import io
import multiprocessing.pool
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from advisor.harness.layout import Unread, Weighted
from advisor.harness.watches.unread_results import STEPS, UnreadResults

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


def left() -> None:
    work()


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
    "argmin as an index": lambda x: torch.zeros(3)[(x > 0).long()].tolist(),
    "slice": lambda x: torch.zeros(3)[: (x > 0).long() + 1].tolist(),
    "narrow": lambda x: torch.zeros(3).narrow(0, (x > 0).long(), 1).tolist(),
    "shape of a mask's": lambda x: torch.zeros(1)[x[None] > 0].shape,
    "shape of nonzero": lambda x: x[None].nonzero().shape,
    "how many differ": lambda x: len(x[None].unique()),
    "hook": lambda x: hooked(WEIGHT * 2.0, lambda gradient: gradient * x),
    "saved": lambda x: Scaled.apply(WEIGHT, x).backward(),
    "given gradient": lambda x: torch.autograd.backward([WEIGHT * 2.0], [x]),
    "own distance": lambda x: F.triplet_margin_with_distance_loss(
        *torch.zeros(3, 1, 1), distance_function=lambda a, b: (a - b + x).norm(dim=1)
    ).item(),
    "optimizer": lambda x: stepped(x),
}


def hooked(y: torch.Tensor, hook: Callable[[torch.Tensor], torch.Tensor]) -> None:
    y.register_hook(hook)
    y.backward()


def stepped(x: torch.Tensor) -> None:
    WEIGHT.grad = None
    (WEIGHT * x.nan_to_num(0.0, 0.0, 0.0)).backward()
    torch.optim.LBFGS([WEIGHT], max_iter=1).step(lambda: (WEIGHT * 0.0).sum())  # type: ignore[arg-type, return-value]


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return weight * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        return gradient * ctx.saved_tensors[0], None


HELD: list[Any] = []
BUFFER = torch.zeros(1)
WEIGHT = nn.Parameter(torch.ones(()))


@pytest.mark.parametrize("how", READS)
def test_what_is_read_is_seen(how: str) -> None:
    def step() -> None:
        READS[how](work())
        left()

    (found,) = watched(step)  # what is left, or nothing was watched
    assert "left" in {each.function for each in found.inside}
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
    assert found.site.function == "forward" and found.calls == 3 and found.updates and not found.draws
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
        assert not watched(left)
    finally:
        over.set()
        thread.join()
    assert watched(left)


def in_thread() -> None:
    thread = threading.Thread(target=print, args=(work().item(),), kwargs={"file": io.StringIO()})
    thread.start()
    thread.join()
    left()


def in_own_thread() -> None:
    thread = threading.Thread(target=lambda x: x.item(), args=(work(),))
    thread.start()
    thread.join()
    left()


def in_pool() -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(print, work(), file=io.StringIO()).result()
    left()


def by_processes_pool() -> None:
    with multiprocessing.pool.ThreadPool(1) as pool:
        pool.apply(lambda x: x.item(), (work(),))
    left()


@pytest.mark.parametrize(
    ("step", "expected"), [(in_thread, 1), (in_own_thread, 0), (in_pool, 0), (by_processes_pool, 0)]
)
def test_a_thread_that_a_step_starts_may_read_too(step: Callable[[], None], expected: int) -> None:
    start = threading.Thread.start
    assert len(watched(step)) == expected
    assert threading.Thread.start is start


def test_what_a_queue_hands_to_another_process_is_read_unseen() -> None:
    queue: Any = multiprocessing.get_context("spawn").Queue()
    queue.put(1)  # now it has a thread
    try:
        assert not watched(left)
    finally:
        queue.close()
        queue.join_thread()


def test_what_a_second_look_sees_counts() -> None:
    steps = [0]

    def step() -> None:
        steps[0] += 1
        loss = work()
        if steps[0] == STEPS.stop:  # in the last of the steps that are watched
            loss.item()
        left()

    (found,) = watched(step)
    assert "left" in {each.function for each in found.inside}


@pytest.mark.parametrize("shared", [True, False])
def test_statistics_of_a_norm_that_is_used_are_read(shared: bool) -> None:
    norms = nn.BatchNorm1d(SIZE), nn.BatchNorm1d(SIZE)

    def step() -> None:
        norms[0](torch.randn(SIZE, SIZE) @ torch.randn(SIZE, SIZE)).sum().item()
        norms[0 if shared else 1](torch.randn(SIZE, SIZE) @ torch.randn(SIZE, SIZE))

    found = watched(step)
    assert sum(each.updates for each in found) == (not shared) and bool(found) is not shared


def test_a_training_that_begins_anew_is_not_watched_by_the_mode_of_the_one_before() -> None:
    from torch.overrides import _get_current_function_mode_stack

    unread = UnreadResults(torch)
    for _ in range(STEPS.start + 1):
        left()
        unread.step_ended()
    assert len(_get_current_function_mode_stack()) == 1
    unread.start()
    assert not _get_current_function_mode_stack()
    for _ in range(STEPS.stop):
        left()
        unread.step_ended()
    assert len(unread.found) == 1 and unread.computed_s >= unread.found[0].seconds


def test_a_user_s_own_tensors_are_not_told_that_they_are_looked_at() -> None:
    told = []

    class Told(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            told.append(func.__name__)
            return super().__torch_function__(func, types, args, kwargs or {})

    x = torch.randn(SIZE, SIZE).as_subclass(Told)
    counts = []

    def step() -> None:
        told.clear()
        (x @ x).sum().item()
        counts.append(list(told))

    watched(step)
    assert all(each == counts[0] for each in counts)


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


@pytest.mark.parametrize("known", [True, False])
def test_a_model_that_reads_unseen_ends_the_watch(known: bool) -> None:
    assert not _beside(nn.Sequential(torch.jit.script(nn.ReLU())), known)
    gc.collect()  # the model
    assert watched(left)


def _beside(layer: nn.Module, known: bool) -> list[Unread]:
    unread = UnreadResults(torch, lambda: [layer] if known else [])
    for _ in range(STEPS.stop):
        if not known:
            unread.forward_begins(layer)
        left()
        unread.step_ended()
    return unread.found


def test_a_loaded_script_reads_unseen_too(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(nn.ReLU()), str(tmp_path / "relu.pt"))
    relu = torch.jit.load(str(tmp_path / "relu.pt"))
    assert not watched(lambda: relu(work()).item())


def test_dropout_is_a_draw() -> None:
    def step() -> None:
        F.dropout(torch.ones(4 * SIZE, 4 * SIZE), 0.5)

    (found,) = watched(step)
    assert found.draws


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_layers_with_a_dropout_of_their_own_draw(share: float) -> None:
    x, lstm = torch.ones(20, SIZE, 64), nn.LSTM(64, 64, 2, dropout=share)

    def step() -> None:
        lstm(x)

    (found,) = watched(step)
    assert found.draws is (share > 0.0)


def test_what_a_library_calls_is_told() -> None:
    from torchvision.ops import box_iou

    boxes = torch.rand(400, 4)

    def step() -> None:
        box_iou(boxes, boxes)

    (found,) = watched(step)
    assert found.library


def weighed(step: Callable[[], Any]) -> list[Weighted]:
    """What is found of rows that are multiplied by zero, in the steps of a loop that calls `step`."""
    unread = UnreadResults(torch)
    for _ in range(STEPS.stop):
        step()
        unread.step_ended()
    return unread.weighted


NET = nn.Sequential(nn.Linear(SIZE, SIZE), nn.GELU(), nn.Linear(SIZE, SIZE))
FEW = (torch.arange(SIZE) % 4 == 0).float()  # a quarter of the rows
TURNS = torch.arange(SIZE) % 4


def in_turn(x: torch.Tensor) -> torch.Tensor:
    """What a loop over samples takes of a packed batch: some rows each time, and all of them in the end."""
    y = NET(x)
    return torch.stack([y[each == TURNS].mean(0) for each in range(4)])


ROWS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], bool]] = {
    "a mask": (lambda x: NET(x) * FEW[:, None], True),
    "the other way round": (lambda x: FEW.view(-1, 1) * NET(x), True),
    "in place": (lambda x: NET(x).mul_(FEW[:, None]), True),
    "rows of a mask": (lambda x: NET(x)[FEW > 0], True),
    "a loss": (lambda x: (NET(x) - x).square().mean(1) * FEW, True),
    "a gate of x": (lambda x: NET(x) * (x[:, :1] > 1.0), True),
    "most of them": (lambda x: NET(x) * (1.0 - FEW)[:, None], False),
    "of the rows themselves": (lambda x: (y := NET(x)) * (y[:, :1] > 1.0), False),
    "read elsewhere": (lambda x: (y := NET(x)) * FEW[:, None] + y.mean(), False),
    "columns": (lambda x: NET(x) * FEW, False),
    "a graph": (lambda x: (torch.ones(SIZE, SIZE) @ NET(x)) * FEW[:, None], False),
    "a batch norm": (lambda x: F.batch_norm(NET(x), None, None, training=True) * FEW[:, None], False),
    "attention": (lambda x: F.scaled_dot_product_attention(*[NET(x)[None]] * 3)[0] * FEW[:, None], False),
    "each in its turn": (in_turn, False),
    "twice the same": (lambda x: (y := NET(x)) * FEW[:, None] + y.square() * FEW[:, None], True),
    "other rows": (lambda x: NET(x.view(2, -1, SIZE)).view(SIZE, SIZE) * FEW[:, None], False),
}


@pytest.mark.parametrize("how", ROWS)
def test_rows_that_come_to_nothing_are_found(how: str) -> None:
    compute, expected = ROWS[how]

    def step() -> None:
        compute(torch.randn(SIZE, SIZE)).sum().backward()

    found = weighed(step)
    ours = [each for each in found if each.calls == 3]
    assert len(ours) == expected
    for each in ours:
        assert 0.7 < each.zero < 0.9 and each.rows == SIZE and each.differentiated_s == each.seconds > 0.0


LOG: list[torch.Tensor] = []
TERMS: dict[str, tuple[Callable[[torch.Tensor], Any], bool]] = {
    "a number": (lambda x: 0.0 * x, True),
    "the other way round": (lambda x: x * 0, True),
    "by name": (lambda x: torch.mul(x, 0.0), True),
    "a tensor": (lambda x: torch.tensor(0.0) * x, True),
    "with others": (lambda x: sum(weight * x for weight in (0.0, 0.0)), True),
    "a little": (lambda x: 1e-9 * x, False),
    "a weight that learns": (lambda x: torch.zeros((), requires_grad=True) * x, False),
    "with one that is none": (lambda x: 0.0 * x + x.square(), False),
    "a flag": (lambda x: x * False, False),
    "logged": (lambda x: (LOG.append(x.detach()), 0.0 * x)[1], False),
    "printed": (lambda x: (x.item(), 0.0 * x)[1], False),
}


@pytest.mark.parametrize("how", TERMS)
def test_terms_with_a_weight_of_nothing_are_found(how: str) -> None:
    weigh, expected = TERMS[how]
    other = nn.Linear(SIZE, SIZE)

    def step() -> None:
        x = torch.randn(SIZE, SIZE)
        # Across the rows, too: what comes to nothing is for nothing whatever it was computed of.
        term = (NET(x).t() @ x).softmax(0).square().mean()
        (other(x).mean() + weigh(term)).backward()

    found = [each for each in weighed(step) if each.by_number]
    LOG.clear()
    assert bool(found) is expected
    assert not expected or sum(each.calls for each in found) >= 6


@pytest.mark.parametrize("lost", [False, True])
def test_rows_are_not_told_of_where_somebody_may_read_unseen(lost: bool) -> None:
    script = torch.jit.script(nn.ReLU()) if lost else None

    def step() -> None:
        (NET(torch.randn(SIZE, SIZE)) * FEW[:, None]).sum().item()

    assert bool(weighed(step)) is not lost
    del script
    gc.collect()


@pytest.mark.parametrize(("columns", "of_rows"), [(SIZE, False), (1, True)])
def test_columns_are_of_what_comes_to_nothing(columns: int, of_rows: bool) -> None:
    def step() -> None:
        x = torch.randn(SIZE, SIZE)
        x = x * x.square().mean(1, keepdim=True).rsqrt()  # no row of these is zero
        y = NET(x)
        ((y.mean(1) * FEW) if of_rows else (y * FEW[:, None])).sum().item()

    assert {each.columns for each in weighed(step)} == {columns}


@pytest.mark.parametrize("how", ["vmap", "grad"])
def test_transforms_of_functions_end_the_watch(how: str) -> None:
    def step() -> None:
        x = work()
        if how == "vmap":
            torch.func.vmap(lambda y: y * x)(torch.ones(2)).tolist()
        else:
            torch.func.grad(lambda y: y * x)(torch.ones(())).item()
        left()

    assert not watched(step)


def test_experts_that_a_gate_asks_for_some_rows() -> None:
    experts = [nn.Linear(SIZE, SIZE) for _ in range(4)]
    gate = torch.zeros(SIZE, 4)
    gate[:100, 0], gate[100:, 1:] = 1.0, torch.eye(3)[torch.arange(SIZE - 100) % 3]

    def step() -> None:
        x = torch.randn(SIZE, SIZE)
        sum(gate[:, i, None] * expert(x) for i, expert in enumerate(experts)).sum().item()  # type: ignore[union-attr]

    found = weighed(step)[0]
    # By their time, of which the first one's is anything: half of its rows are zeros, and five in six of the others'.
    assert found.calls == 4 and 0.5 <= found.zero <= 0.84 and found.differentiated_s == found.seconds
