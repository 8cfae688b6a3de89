"""Where steps end: the rules of the step finder, on sequences of events as scripts produce them."""

from __future__ import annotations

import itertools

import pytest

from advisor.harness.layout import Loader, Options, Timing
from advisor.harness.plan import Plan
from advisor.harness.steps import LeastFrequent, StepFinder
from advisor.harness.timing import Interval, summarize, usual_causes


def boundaries(finder: StepFinder, events: list[str]) -> list[int]:
    """Positions of the events that end a step: capitals are optimizers, `b` a batch, `f` a forward."""
    found = []
    for position, event in enumerate(events):
        if event.isupper():
            boundary = finder.optimizer_step(event)
        elif event == "b":
            boundary = finder.before_batch(0)
        else:
            boundary = finder.before_forward("model", grad_enabled=False)
        if boundary:
            found.append(position)
    return found


def test_every_step_of_the_only_optimizer_is_a_boundary() -> None:
    assert boundaries(StepFinder("auto"), list("AAAA")) == [0, 1, 2, 3]


def test_five_critic_steps_to_one_generator_step_make_one_step() -> None:
    found = boundaries(StepFinder("auto"), list("CCCCCG" * 6))
    assert found[-5:] == [11, 17, 23, 29, 35]  # only the generator's, once it is known


def test_two_optimizers_in_turn_end_the_step_with_the_second() -> None:
    assert boundaries(StepFinder("auto"), list("DG" * 5))[1:] == [1, 3, 5, 7, 9]


def test_an_optimizer_that_fell_silent_gives_way_to_the_one_that_goes_on() -> None:
    finder = StepFinder("auto")
    events = list("DG" * 3 + "D" * 60)
    assert boundaries(finder, events)[-1] == len(events) - 1
    assert finder.boundary_optimizer == "D"


def test_batches_and_forwards_are_only_remembered_while_training_is_expected() -> None:
    finder = StepFinder("auto", trains=lambda: True)
    assert boundaries(finder, list("bfbfbf")) == []
    assert finder.seen == {"optimizer_steps": 0, "batches": 3, "forwards": 3}
    assert boundaries(finder, list("bfAbfA")) == [2, 5]


def test_batches_are_the_steps_of_an_inference_script() -> None:
    finder = StepFinder("auto", trains=lambda: False)
    assert boundaries(finder, list("bfbfbfbf")) == [2, 4, 6]
    assert finder.kind == "loader"


def test_many_forwards_per_batch_are_one_step() -> None:
    finder = StepFinder("auto", trains=lambda: False)
    assert boundaries(finder, list("bfff" * 4)) == [4, 8, 12]


def test_forwards_are_the_steps_where_there_is_no_loader() -> None:
    finder = StepFinder("auto", trains=lambda: False)
    assert boundaries(finder, list("ffff")) == [0, 1, 2, 3]
    assert finder.kind == "forward"


def test_batches_without_a_model_are_no_steps() -> None:
    finder = StepFinder("auto", trains=lambda: False)
    assert boundaries(finder, list("bbbbbb")) == []


def test_an_optimizer_that_comes_late_takes_over_from_batches() -> None:
    finder = StepFinder("auto", trains=lambda: False)
    boundaries(finder, list("bfbfbf"))
    assert finder.optimizer_step("A")
    assert finder.restarted
    assert finder.kind == "optimizer"


def test_a_forced_kind_is_kept() -> None:
    finder = StepFinder("loader", trains=lambda: True)
    assert boundaries(finder, list("bfAbfAbfA")) == [0, 3, 6]


def test_explicit_steps_overrule_optimizers() -> None:
    finder = StepFinder("auto")
    assert finder.explicit()
    assert not finder.optimizer_step("A")
    assert finder.explicit()


def test_ties_keep_the_first_of_things_that_begin_a_step() -> None:
    chooser = LeastFrequent(keep_first=True)
    assert [chooser.event(key) for key in "ababab"] == [True, False, True, False, True, False]


def test_of_many_that_come_once_in_each_step_the_first_begins_it() -> None:
    """The parts of a model that is never called itself: none has fallen silent because the others have their turns."""
    chooser, parts = LeastFrequent(keep_first=True), list(range(30))
    begun = [key for key in [*parts[7:], *parts * 5] if chooser.event(key) and not chooser.switched]
    assert begun == [7] * 6


def test_a_model_that_comes_once_for_a_thousand_calls_of_another_begins_the_steps() -> None:
    finder = StepFinder("auto", trains=lambda: False)
    events = ["encode", *["cell"] * 1200] * 8
    begun = [at for at, key in enumerate(events) if finder.before_forward(key, False) and key == "encode"]
    assert begun == [0, *range(1201, len(events), 1201)]
    turns = finder.turns  # to the cell, after a few, and back, until it is known
    assert not any(finder.before_forward("cell", False) for _ in range(1200))
    assert finder.turns == turns


def test_a_model_that_comes_once_amid_thousands_of_calls_ends_no_measurement() -> None:
    finder = StepFinder("auto", trains=lambda: False)
    events = ["net"] * 3000 + ["check"] + ["net"] * 9000
    begun = [at for at, key in enumerate(events) if finder.before_forward(key, False)]
    assert sum(at > 3000 for at in begun) > 8000


@pytest.mark.parametrize("steps", [*range(2, 40), 100, 1000])
def test_a_plan_for_a_short_script_uses_no_more_intervals_than_there_are(steps: int) -> None:
    plan = Plan(Options(total_steps=steps))
    detail = plan.detail_warmup + plan.detail_active if plan.detail_active else 0
    assert plan.settle is not None
    assert plan.timing is not None
    used = plan.settle + plan.timing + plan.wait + plan.warmup + plan.active + detail
    assert used <= steps - 1
    assert plan.active >= 1


def test_an_evaluation_is_set_aside_by_its_cause_not_by_its_size() -> None:
    slow_step = Interval(0.5, frozenset[str](), 0.0, 8)
    step = Interval(0.1, frozenset[str](), 0.0, 8)
    evaluation = Interval(1.1, frozenset({"evaluation"}), 0.0, 8)
    timing = Timing()
    summarize(timing, [step, step, step, slow_step, evaluation], [])
    assert timing.step_s == pytest.approx(0.2)
    assert timing.aside == {"evaluation": pytest.approx(0.9)}
    assert timing.steps == 4


def test_what_comes_with_most_steps_is_part_of_the_step() -> None:
    rows = [Interval(0.1, frozenset({"checkpoint"}), 0.0, 8)] * 4 + [Interval(0.1, frozenset[str](), 0.0, 8)]
    assert usual_causes(rows) == {"checkpoint"}
    timing = Timing()
    summarize(timing, rows, [])
    assert timing.steps == 5
    assert timing.aside == {}


def test_the_wait_of_a_step_is_told_of_the_training_loader_only() -> None:
    training, evaluating = Loader(trains=True), Loader(trains=False)
    summarize(Timing(), [Interval(0.1, frozenset(), 0.04, 8)] * 3, [evaluating, training])
    assert training.wait_s == pytest.approx(0.04)
    assert evaluating.wait_s is None


def test_ratios_from_one_to_eight_find_the_outer_loop() -> None:
    for ratio in range(1, 9):
        events = list(itertools.chain.from_iterable(["I" * ratio + "O"] * 10))
        found = boundaries(StepFinder("auto"), list("".join(events)))
        assert len([position for position in found if position >= ratio]) == 10


def test_of_a_model_that_is_no_module_each_backward_is_a_step() -> None:
    finder = StepFinder("auto", trains=lambda: True)
    found = [finder.before_gradients(lambda: "line") for _ in range(60)]
    assert finder.kind == "forward"
    assert not any(found[:20]) and all(found[25:])


def test_of_several_gradients_in_a_step_one_is_its_boundary() -> None:
    finder = StepFinder("auto", trains=lambda: True)
    lines = ["derivative", "derivative", "loss"] * 40
    found = [finder.before_gradients(lambda line=line: line) for line in lines]  # type: ignore[misc]
    assert [line for line, boundary in zip(lines[60:], found[60:], strict=True) if boundary] == ["loss"] * 20


def test_gradients_beside_forwards_are_no_steps() -> None:
    finder = StepFinder("auto", trains=lambda: True)
    assert not finder.before_gradients(lambda: "line")  # before the hooks of the model are on
    for _ in range(60):
        finder.before_forward(1, True)
        assert not finder.before_gradients(lambda: "line")
    assert finder.kind == "forward" and finder.seen["forwards"] == 60
    trained = StepFinder("auto", trains=lambda: True)
    for _ in range(60):
        assert not trained.before_gradients(lambda: "line")
        assert trained.optimizer_step("SGD")
    assert trained.kind == "optimizer"
