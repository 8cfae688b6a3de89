"""Gradients that are dropped before an optimizer uses them: seen in the steps of real optimizers, and no others."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from advisor.evidence import Evidence
from advisor.evidence.gradients.discarded import discarded_backward
from advisor.harness.optimizers import parameters_of
from advisor.harness.watches import autograd_graph
from advisor.harness.watches.discarded_gradients import Discarded
from advisor.launch import Command, measure
from fixtures.expectations import FIXTURES
from tests.conftest import PYTHON, QUICK

Step = Callable[[Discarded], None]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).relu())  # type: ignore[no-any-return]


def looked(models: list[nn.Module], optimizers: list[torch.optim.Optimizer], step: Step, steps: int = 6) -> Discarded:
    """What is known after some steps of a script; no hook is left."""
    found = Discarded(torch, lambda: models, lambda: map(parameters_of, optimizers), lambda module: None)
    for _ in range(steps):
        step(found)
        found.step_ended()
    held = [each for optimizer in optimizers for each in parameters_of(optimizer)]
    weights = [each for model in models for each in model.parameters()]
    assert not any(each._post_accumulate_grad_hooks for each in (*held, *weights))
    return found


def backward(found: Discarded, loss: torch.Tensor, retain_graph: bool = False) -> None:
    found.begins()
    if found.watching:
        found.backward(None, loss)
    loss.backward(retain_graph=retain_graph)  # type: ignore[no-untyped-call]


def runs(found: Discarded) -> list[list[tuple[int, str]]]:
    return [[(run.count, run.kind) for run in each] for each in found.accumulated]


def stepped(found: Discarded, optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()
    found.stepped(parameters_of(optimizer))


def adversaries(
    to_none: bool = True, detached: bool = True
) -> tuple[list[nn.Module], list[torch.optim.Optimizer], Step]:
    maker, judge = Net(), Net()
    makes, judges = torch.optim.SGD(maker.parameters(), lr=0.1), torch.optim.SGD(judge.parameters(), lr=0.1)

    def step(found: Discarded) -> None:
        made = maker(torch.rand(3, 4))
        judges.zero_grad(set_to_none=to_none)
        backward(found, judge(made.detach() if detached else made).sum())
        stepped(found, judges)
        makes.zero_grad(set_to_none=to_none)
        backward(found, judge(maker(torch.rand(3, 4))).sum())
        stepped(found, makes)

    return [maker, judge], [makes, judges], step


class Mapped(Net):
    """Says that its body is all there is to train, and freezes nothing."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:  # type: ignore[override]
        return self.body.named_parameters()

    def parameters(self) -> Iterator[nn.Parameter]:  # type: ignore[override]
        return (weight for _, weight in self.named_parameters())


def test_a_model_that_hands_a_part_of_its_weights_to_the_optimizer() -> None:
    net = Mapped()
    trains = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(found: Discarded) -> None:
        trains.zero_grad()
        backward(found, net(torch.rand(3, 4)).sum())
        stepped(found, trains)

    found = looked([net], [trains], step)
    (record,) = found.found
    assert (record.tensors, record.parts, record.held) == (2, ["head"], False)
    assert {kind for each in runs(found) for _, kind in each} == {"used", "weights"}


def test_the_judges_gradients_of_the_makers_loss() -> None:
    found = looked(*adversaries())
    (record,) = found.found
    assert (record.cls, record.tensors, record.bytes, record.parts) == ("Net", 4, 2 * 4 * (16 + 4), [])
    assert record.held and record.backwards == 1
    assert not record.branch
    assert runs(found) == [[(4, "used")], [(4, "weights"), (4, "used")]]


@pytest.mark.parametrize("looked_at", ["its own", "the maker's"])
def test_a_script_that_reads_gradients_drops_none_that_it_has_read(looked_at: str) -> None:
    """The judge's are clipped by hand after its own loss, and are read, or not, after the maker's, too."""
    maker, judge = Net(), Net()
    makes, judges = torch.optim.SGD(maker.parameters(), lr=0.1), torch.optim.SGD(judge.parameters(), lr=0.1)

    def step(found: Discarded) -> None:
        judges.zero_grad()
        backward(found, judge(maker(torch.rand(3, 4)).detach()).sum())
        for each in judge.parameters():
            each.grad.clamp_(-1, 1)  # type: ignore[union-attr]
        stepped(found, judges)
        makes.zero_grad()
        backward(found, judge(maker(torch.rand(3, 4))).sum())
        if looked_at == "the maker's":
            sum(each.grad.norm() for each in judge.parameters())  # type: ignore[union-attr]
        stepped(found, makes)

    found = looked([maker, judge], [makes, judges], step)
    assert "grad" not in vars(torch.Tensor)
    if looked_at == "the maker's":
        assert not found.found and not found.reads
        return
    assert [each.tensors for each in found.found] == [4]
    (site,) = found.reads
    assert "clamp_(-1, 1)" in Path(__file__).read_text().splitlines()[site.line - 1]


def test_a_loss_that_goes_further_back_than_its_optimizer() -> None:
    found = looked(*adversaries(detached=False))
    assert runs(found) == [[(4, "used"), (4, "branch")], [(4, "weights"), (4, "used")]]
    assert [(each.backwards, each.branch) for each in found.found] == [(1, True), (1, False)]


def test_a_judge_that_is_frozen_where_steps_end_is_watched_where_it_is_not() -> None:
    (maker, judge), optimizers, _ = adversaries()
    makes, judges = optimizers

    def step(found: Discarded) -> None:
        judge.requires_grad_(True)
        made = maker(torch.rand(3, 4))
        judges.zero_grad()
        backward(found, judge(made).sum(), retain_graph=True)
        stepped(found, judges)
        judge.requires_grad_(False)
        makes.zero_grad()
        backward(found, judge(made).sum())
        stepped(found, makes)

    found = looked([maker, judge], optimizers, step)
    assert runs(found) == [[(4, "used"), (4, "branch")], [(4, "used")]]
    assert [(each.backwards, each.branch) for each in found.found] == [(1, True)]


class TakesNoHook(nn.Parameter):
    """A tensor of another layout may not take one."""

    def register_post_accumulate_grad_hook(self, hook: object) -> None:  # type: ignore[override]
        raise RuntimeError("no hooks")


def test_a_weight_that_takes_no_hook_does_not_end_the_script() -> None:
    (maker, judge), optimizers, step = adversaries()
    judge.register_parameter("scale", TakesNoHook(torch.ones(4)))
    frozen = judge.get_parameter("scale").requires_grad_(False)

    def thawed(found: Discarded) -> None:
        frozen.requires_grad_(True)
        step(found)
        frozen.requires_grad_(False)

    found = looked([maker, judge], optimizers, thawed)
    assert not found.found and not found.watching


def test_gradients_that_are_filled_with_zeros_are_not_told_from_others() -> None:
    assert not looked(*adversaries(to_none=False)).found


def test_a_critic_that_is_a_part_of_the_agent() -> None:
    agent = nn.ModuleDict({"actor": Net(), "critic": Net()})
    actor, critic = agent["actor"], agent["critic"]
    acts, judges = torch.optim.Adam(actor.parameters()), torch.optim.Adam(critic.parameters())

    def step(found: Discarded) -> None:
        backward(found, critic(torch.rand(3, 4)).square().mean())
        stepped(found, judges)
        judges.zero_grad()
        backward(found, -critic(actor(torch.rand(3, 4))).mean())
        stepped(found, acts)
        acts.zero_grad()
        judges.zero_grad()

    found = looked([agent], [acts, judges], step)
    assert [each.parts for each in found.found] == [["critic"]]


def test_an_image_and_the_network_that_describes_it() -> None:
    network, image = Net(), nn.Parameter(torch.rand(3, 4))
    optimizer = torch.optim.Adam([image])

    def step(found: Discarded) -> None:
        optimizer.zero_grad()
        backward(found, network(image).square().mean())
        stepped(found, optimizer)

    found = looked([network], [optimizer], step)
    # The first layer hands its weight's on after the image's.
    assert runs(found) == [[(3, "weights"), (1, "used"), (1, "weights")]]
    assert [(each.cls, each.held) for each in found.found] == [("Net", False)]


def test_a_teacher_that_records_a_graph() -> None:
    teacher, student = Net(), Net()
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)

    def step(found: Discarded) -> None:
        x = torch.rand(3, 4)
        answer = student(x)
        optimizer.zero_grad()
        backward(found, (answer - teacher(x)).square().mean())
        stepped(found, optimizer)

    found = looked([teacher, student], [optimizer], step)
    assert runs(found) == [[(4, "branch"), (4, "used")]]
    assert [(each.held, each.branch) for each in found.found] == [(False, True)]


@pytest.mark.parametrize("moves", ["averaged", "averaged first", "copied", "trained by hand", "both"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_teacher_that_follows_its_student(moves: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    student = Net().to(dtype)
    teacher = copy.deepcopy(student)
    optimizer = torch.optim.Adam(student.parameters(), lr=0.01)

    @torch.no_grad()
    def moved() -> None:
        for its, own in zip(teacher.parameters(), student.parameters(), strict=True):
            if moves == "trained by hand" or (moves == "both" and its.ndim > 1):
                its -= 0.01 * its.grad
            else:
                its.lerp_(own, 1.0 if moves == "copied" else 0.02)

    def step(found: Discarded) -> None:
        x = torch.rand(3, 4, dtype=dtype)
        answer = student(x)
        optimizer.zero_grad()
        backward(found, (answer - teacher(x + 0.1 * torch.rand(3, 4, dtype=dtype))).square().mean())
        if moves == "averaged first":
            moved()
        stepped(found, optimizer)
        if moves != "averaged first":
            moved()

    found = looked([teacher, student], [optimizer], step)
    by_hand = moves in ("trained by hand", "both")
    assert runs(found) == ([] if by_hand else [[(4, "branch"), (4, "used")]])
    assert [(each.held, each.branch) for each in found.found] == ([] if by_hand else [(False, True)])


def test_a_teacher_that_follows_every_few_steps() -> None:
    torch.manual_seed(0)
    student, at = Net(), 0
    teacher = copy.deepcopy(student)
    optimizer = torch.optim.Adam(student.parameters(), lr=0.01)

    def step(found: Discarded) -> None:
        nonlocal at
        at += 1
        x = torch.rand(3, 4)
        optimizer.zero_grad()
        backward(found, (student(x) - teacher(x)).square().mean() + student(x).sum())
        stepped(found, optimizer)
        with torch.no_grad():
            for its, own in zip(teacher.parameters(), student.parameters(), strict=True):
                its.lerp_(own, 0.1 if at % 3 == 0 else 0.0)

    assert [(each.held, each.branch) for each in looked([teacher, student], [optimizer], step).found] == [(False, True)]


@pytest.mark.parametrize("same", [True, False])
def test_a_model_that_hands_its_gradients_to_what_it_follows(same: bool) -> None:
    torch.manual_seed(0)
    model = Net()
    masters = [nn.Parameter(each.detach().clone()) for each in model.parameters()]
    optimizer = torch.optim.SGD(masters, lr=0.1)

    def step(found: Discarded) -> None:
        model.zero_grad()
        backward(found, model(torch.rand(3, 4)).square().mean())
        for master, its in zip(masters, model.parameters(), strict=True):
            assert its.grad is not None
            master.grad = its.grad if same else its.grad.float() * 0.5
        stepped(found, optimizer)
        with torch.no_grad():
            for master, its in zip(masters, model.parameters(), strict=True):
                its.copy_(master)

    assert not looked([model], [optimizer], step).found


def test_a_target_that_goes_through_the_network_as_well() -> None:
    network, image = Net(), nn.Parameter(torch.rand(3, 4))
    optimizer = torch.optim.Adam([image])

    def step(found: Discarded) -> None:
        optimizer.zero_grad()
        target = torch.rand(3, 4)
        backward(found, (network(image) - network(target)).square().mean())
        stepped(found, optimizer)

    found = looked([network], [optimizer], step)
    (nodes,) = found.nodes
    # Of the image's pass what hands on the weights' gradients (T, twice), and what makes them beside its input's; of
    # the target's, made later, all of it: a layer is T and Addmm. The loss is three nodes, the first a difference.
    assert [(run.count, run.kind) for run in nodes] == [
        (1, "branch"),
        (1, "weights"),
        (1, "used"),
        (1, "branch"),
        (1, "weights"),
        (5, "branch"),
        (1, "weights"),
        (2, "used"),
    ]


def test_a_bias_that_nobody_trains_is_a_sum_and_no_product() -> None:
    network = Net()
    optimizer = torch.optim.Adam([network.body.weight, network.head.weight])

    def step(found: Discarded) -> None:
        optimizer.zero_grad()
        backward(found, network(torch.rand(3, 4)).square().mean())
        stepped(found, optimizer)

    found = looked([network], [optimizer], step)
    assert [each.tensors for each in found.found] == [2] and not any(found.nodes)


def test_each_use_of_a_weight_makes_a_part_of_its_gradient() -> None:
    """A world that is imagined for some steps: its weights' gradients are added up once, after all of them."""

    class World(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(2, 4, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.bmm(x, self.weight)

    world, image = World(), nn.Parameter(torch.rand(2, 3, 4))
    optimizer, learns = torch.optim.Adam([image]), torch.optim.Adam(world.parameters())

    def step(found: Discarded) -> None:
        learns.zero_grad()
        backward(found, world(torch.rand(2, 3, 4)).sum())
        stepped(found, learns)
        optimizer.zero_grad()
        x: torch.Tensor = image
        for _ in range(5):
            x = world(x)
        backward(found, x.sum())
        stepped(found, optimizer)

    found = looked([world], [optimizer, learns], step)
    assert [each.held for each in found.found] == [True]
    assert [[(run.count, run.kind) for run in each] for each in found.nodes] == [[], [(5, "weights"), (1, "used")]]


def test_what_lies_between_a_loss_and_an_input_that_somebody_else_needs() -> None:
    network, image = Net(), nn.Parameter(torch.rand(3, 4))
    optimizer = torch.optim.Adam([nn.Parameter(torch.rand(3)), image])
    leaf = torch.rand(3, 4, requires_grad=True)  # a hook of its own sees it

    def step(found: Discarded) -> None:
        optimizer.zero_grad()
        backward(found, network(image.detach() + leaf).square().mean())
        stepped(found, optimizer)

    found = looked([network], [optimizer], step)
    assert runs(found) == [[(4, "weights"), (1, "used")]]


def test_weights_that_are_trained_by_hand_are_used() -> None:
    network, image = Net(), nn.Parameter(torch.rand(3, 4))
    optimizer = torch.optim.Adam([image])

    def step(found: Discarded) -> None:
        backward(found, network(image).square().mean())
        stepped(found, optimizer)
        with torch.no_grad():
            for each in network.parameters():
                each -= 0.1 * each.grad

    assert not looked([network], [optimizer], step).found


def test_a_closure_that_an_optimizer_calls_several_times() -> None:
    net, other = Net(), Net()
    first, second = torch.optim.LBFGS(net.parameters(), max_iter=3), torch.optim.SGD(other.parameters(), lr=0.1)

    def step(found: Discarded) -> None:
        x = torch.rand(3, 4)

        def closure() -> torch.Tensor:
            first.zero_grad()
            loss = net(x).square().mean()
            backward(found, loss)
            return loss

        first.step(closure)
        found.stepped(parameters_of(first))
        second.zero_grad()
        backward(found, other(x).mean())
        stepped(found, second)

    assert not looked([net, other], [first, second], step).found


def test_a_network_that_no_optimizer_holds_in_the_closure_of_one_that_does_not() -> None:
    """Lightning has every optimizer call the backward by itself."""
    net, judge = Net(), Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(found: Discarded) -> None:
        x = torch.rand(3, 4)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = judge(net(x)).square().mean()
            backward(found, loss)
            return loss

        optimizer.step(closure)
        found.stepped(parameters_of(optimizer))

    (record,) = looked([net, judge], [optimizer], step).found
    assert record.tensors == len(list(judge.parameters())) and not record.held and not record.branch


def test_gradients_that_are_gathered_over_more_than_a_step_are_used() -> None:
    maker, judge = Net(), Net()
    makes, judges = torch.optim.SGD(maker.parameters(), lr=0.1), torch.optim.SGD(judge.parameters(), lr=0.1)
    done = 0

    def step(found: Discarded) -> None:
        nonlocal done
        done += 1
        backward(found, judge(torch.rand(3, 4)).sum())
        if done % 4 == 0:
            stepped(found, judges)
            judges.zero_grad()
        makes.zero_grad()
        backward(found, maker(torch.rand(3, 4)).sum())
        stepped(found, makes)

    assert not looked([maker, judge], [makes, judges], step).found


def test_a_step_that_was_left_out_once_is_no_pattern() -> None:
    models, optimizers, _ = adversaries()
    net, (optimizer, other) = models[0], optimizers
    done = 0

    def step(found: Discarded) -> None:
        nonlocal done
        done += 1
        optimizer.zero_grad()
        backward(found, net(torch.rand(3, 4)).sum())
        if done != 2:  # a GradScaler found an infinity
            stepped(found, optimizer)
        stepped(found, other)

    assert not looked(models, optimizers, step).found


def test_one_optimizer_of_one_model_gets_no_hooks() -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(found: Discarded) -> None:
        optimizer.zero_grad()
        assert not found.watching
        backward(found, net(torch.rand(3, 4)).sum())
        stepped(found, optimizer)

    assert not looked([net], [optimizer], step).found


def test_once_given_up_nothing_is_looked_at_again() -> None:
    models, optimizers, step = adversaries()
    found = looked(models, optimizers, step)
    assert found.found
    found.give_up()
    found.start()
    for _ in range(5):
        step(found)
        found.step_ended()
    assert not found.found and not found.watching


@pytest.mark.sessions
def test_what_they_cost_is_read_from_the_trace(tmp_path: Path) -> None:
    script = FIXTURES / "cases" / "shoe_sketches_critic" / "script.py"
    command = Command(script=str(script), python=PYTHON, cwd=str(tmp_path))
    result = measure(command, tmp_path / "run", QUICK, timeout=240)
    (record,) = result.record.discarded
    # Eight tensors of the critic; the painter has six.
    passes = [[(run.count, run.kind) for run in each] for each in result.record.accumulated]
    assert passes == [[(8, "used")], [(8, "weights"), (6, "used")]]
    assert (record.cls, record.tensors, record.held) == ("Critic", 8, True)
    assert record.site is not None
    assert script.read_text().splitlines()[record.site.line - 1].strip() == "painter_loss.backward()"
    evidence = Evidence.from_run(result)
    found = discarded_backward(evidence)
    assert found is not None
    # One of three passes through the critic, and of that half: a sixth of the backwards at most.
    whole = evidence.breakdown.mean_s("backward")
    assert whole / 20 < found.seconds < whole / 4


PERCEPTUAL = """\
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
features = nn.Sequential(*[each for _ in range(3) for each in (nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())])
sharpen = nn.Conv2d(16, 16, 3, padding=1)
optimizer = torch.optim.SGD(sharpen.parameters(), lr=1e-3)
for step in range(300):
    image = torch.randn(4, 16, 32, 32)
    loss = F.l1_loss(features(sharpen(image)), features(image))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def discarded_by(text: str, folder: Path) -> tuple[float, float]:
    """Seconds of a step of that script that go over gradients that are dropped, and all of its backwards'."""
    script = folder / "script.py"
    script.write_text(text)
    result = measure(Command(script=str(script), python=PYTHON, cwd=str(folder)), folder / "run", QUICK)
    evidence = Evidence.from_run(result)
    found = discarded_backward(evidence)
    assert found is not None
    return found.seconds, evidence.breakdown.mean_s("backward")


@pytest.mark.sessions
def test_what_a_target_costs_that_goes_through_a_frozen_network(tmp_path: Path) -> None:
    found, whole = discarded_by(PERCEPTUAL, tmp_path)
    # Of seven convolutions' backwards three are for nothing, and half of another three.
    assert 0.45 * whole < found < 0.8 * whole


PENALTY = """\
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
maker = nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 256))
judge = nn.Sequential(nn.Linear(256, 256), nn.LeakyReLU(), nn.Linear(256, 1))
first = torch.optim.Adam(judge.parameters(), lr=1e-4)
second = torch.optim.Adam(maker.parameters(), lr=1e-4)


def clear():
    first.zero_grad()
    second.zero_grad()


for step in range(300):
    real, made = torch.randn(64, 256), maker(torch.randn(64, 32))
    loss = judge(made).mean() - judge(real).mean()
    clear()
    loss.backward()
    first.step()
    between = (0.5 * real + 0.5 * made.detach()).requires_grad_()
    (slope,) = torch.autograd.grad(judge(between).sum(), between, create_graph=True)
    clear()
    (slope.norm(dim=1) - 1).square().mean().backward()
    first.step()
    clear()
    (-judge(maker(torch.randn(64, 32))).mean()).backward()
    second.step()
"""


@pytest.mark.sessions
def test_a_gradient_penalty_beside_it_hides_nothing(tmp_path: Path) -> None:
    """It comes to the images, too, twice in each step: what is made of them is no parameter's gradient."""
    found, whole = discarded_by(PENALTY, tmp_path)
    # The judge's loss goes back through the maker, which is a quarter of the backwards, and the maker's computes the
    # judge's gradients.
    assert 0.15 * whole < found < 0.55 * whole


def attack(read: str = "leaf", zeros: str = "before") -> tuple[Net, Step]:
    """A model that nobody trains; what is wanted is the gradient of a picture, or of what its body makes."""
    model = Net()
    seen: dict[str, Any] = {}

    def keeps(module: nn.Module, given: Any, output: torch.Tensor) -> None:
        seen["made"] = output
        if read == "hook":
            output.register_hook(lambda gradient: seen.update(gradient=gradient))
        elif read == "lost":
            seen["made"] = output.detach()  # nobody has the tensor itself any more
            output.register_hook(lambda gradient: seen.update(gradient=gradient))
        elif read == "kept":
            output.retain_grad()

    if read in ("hook", "kept", "lost"):
        model.body.register_forward_hook(keeps)
    elif read == "module":
        model.head.register_full_backward_hook(lambda module, given, gradients: seen.update(gradients=gradients))

    def step(found: Discarded) -> None:
        picture = torch.rand(3, 4).requires_grad_(read == "leaf")
        loss = model(picture).sum()
        if zeros == "before":
            model.zero_grad()
        backward(found, loss)
        if zeros == "behind":
            model.zero_grad()
        elif zeros == "by hand":
            with torch.no_grad():
                for each in model.parameters():
                    each -= 0.1 * each.grad

    return model, step


@pytest.mark.parametrize("zeros", ["before", "behind", "never"])
def test_an_attack_s_gradients_of_weights_are_for_nobody(zeros: str) -> None:
    model, step = attack(zeros=zeros)
    found = looked([model], [], step)
    (discarded,) = found.found
    assert discarded.tensors == 4 and not (discarded.held or discarded.inside or discarded.branch)
    assert runs(found) == [[(3, "weights"), (1, "used"), (1, "weights")]]  # as the trace has them


@pytest.mark.parametrize(
    ("read", "kinds"),
    [
        pytest.param("hook", {"head": "weights", "body": "branch"}, id="a tensor's hook"),
        pytest.param("lost", {"head": "weights", "body": "branch"}, id="the hook of a tensor that is gone"),
        pytest.param("kept", {"head": "weights", "body": "branch"}, id="a gradient that is kept"),
        pytest.param("module", {"head": "weights", "body": "branch"}, id="a module's hook"),
    ],
)
def test_a_heatmap_s_backward_goes_on_for_nobody(read: str, kinds: dict[str, str]) -> None:
    model, step = attack(read)
    found = looked([model], [], step)
    (discarded,) = found.found
    assert discarded.inside and discarded.tensors == 4 and not discarded.branch
    assert {kind for each in found.accumulated for run in each for kind in [run.kind]} == {*kinds.values()}


@pytest.mark.parametrize(
    ("read", "zeros"),
    [
        pytest.param("nothing", "before", id="it is called for the time that it takes"),
        pytest.param("leaf", "by hand", id="it is trained by hand"),
    ],
)
def test_a_backward_without_an_optimizer_may_be_what_is_wanted(read: str, zeros: str) -> None:
    model, step = attack(read, zeros)
    assert not looked([model], [], step).found


@pytest.mark.parametrize("drops", [True, False])
def test_an_attack_within_a_training_is_seen(drops: bool) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(found: Discarded) -> None:
        optimizer.zero_grad()
        delta = torch.zeros(3, 4, requires_grad=True)
        for _ in range(2):
            backward(found, model(torch.rand(3, 4) + delta).sum())
        if drops:
            optimizer.zero_grad()
        backward(found, model(torch.rand(3, 4) + delta.detach()).sum())
        stepped(found, optimizer)

    found = looked([model], [optimizer], step)
    of_attack = [(4, "weights"), (1, "used")]
    assert runs(found) == ([of_attack, of_attack, [(4, "used")]] if drops else [])
    assert [each.held for each in found.found] == ([True] if drops else [])


def test_gradients_are_told_of_where_the_graph_is_too_large_to_be_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autograd_graph, "_MOST_NODES", 1)
    models, optimizers, step = adversaries()
    found = looked(models, optimizers, step)
    assert [each.cls for each in found.found] == ["Net"] and found.found[0].held
    model, attacks = attack()
    assert not looked([model], [], attacks).found  # of an attack nobody knows then whether anybody reads something


def test_a_plain_training_gets_no_hooks() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watched = []

    def step(found: Discarded) -> None:
        optimizer.zero_grad()
        backward(found, model(torch.rand(3, 4)).sum())
        watched.append(found.watching)
        stepped(found, optimizer)

    found = Discarded(torch, lambda: [model], lambda: [parameters_of(optimizer)], lambda module: None)
    step(found)  # before the first step that ends, or in it, there may have been several
    for _ in range(6):
        step(found)
        found.step_ended()
    assert not any(watched)


@pytest.mark.parametrize("hook", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_weight_with_a_hook_of_the_script_s_is_read(hook: str) -> None:
    model, step = attack()
    for each in model.parameters():
        getattr(each, hook)(lambda _: None)
    found = Discarded(torch, lambda: [model], list, lambda module: None)
    for _ in range(6):
        step(found)
        found.step_ended()
    assert not found.found


def test_a_leaf_whose_gradient_is_gone_breaks_nothing() -> None:
    model, seen = Net(), []

    def takes(picture: torch.Tensor) -> None:
        seen.append(picture.grad)
        picture.grad = None

    def step(found: Discarded) -> None:
        picture = torch.rand(3, 4, requires_grad=True)
        picture.register_post_accumulate_grad_hook(takes)
        backward(found, model(picture).sum())

    looked([model], [], step)
    assert len(seen) == 6 and all(each is not None for each in seen)
