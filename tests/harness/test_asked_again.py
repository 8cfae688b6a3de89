"""Calls that give what an earlier one of the same step has given, by the same inputs."""

from __future__ import annotations

from collections.abc import Callable

import torch

from advisor.harness.watches.asked_again import AsksAgain

Asked = list[tuple[list[torch.Tensor], list[torch.Tensor | None]]]


def pattern(step: Callable[[int], Asked], steps: int = 2) -> list[int] | None:
    seen = AsksAgain(torch)
    for number in range(steps):
        for inputs, gradients in step(number):
            seen.asked(inputs, gradients)
        seen.step_ends()
    found = seen.found(steps)
    return found.before if found is not None else None


X, T = torch.zeros(4), torch.zeros(4)


def test_the_same_by_the_same() -> None:
    one, other = torch.rand(4), torch.rand(4)
    asked: Asked = [([X], [one]), ([X], [other]), ([X], [one.clone()]), ([X], [other.clone()]), ([X], [one.clone()])]
    assert pattern(lambda step: asked) == [-1, -1, 0, 1, 0]


def test_other_inputs_are_other_gradients() -> None:
    one = torch.rand(4)
    assert pattern(lambda step: [([X], [one]), ([T], [one.clone()])]) is None


def test_zeros_say_nothing() -> None:
    assert pattern(lambda step: [([X], [torch.zeros(4)]), ([X], [torch.zeros(4)])]) is None


def test_what_is_changed_in_place_afterwards_is_not_what_was_given() -> None:
    def step(number: int) -> Asked:
        given = torch.rand(4)
        kept = given.clone()
        return [([X], [given]), ([X], [kept])]

    assert pattern(step) == [-1, 0]
    seen, given = AsksAgain(torch), torch.rand(4)
    seen.asked([X], [given])
    asked_for = given.clone()
    given.zero_()
    seen.asked([X], [asked_for])
    seen.step_ends()
    found = seen.found(1)
    assert found is not None and found.before == [-1, 0]


def test_one_step_that_asks_otherwise_is_enough() -> None:
    one = torch.rand(4)
    again: Asked = [([X], [one]), ([X], [one.clone()])]
    assert pattern(lambda step: again if step == 0 else again[:1]) is None


def test_inputs_without_a_gradient_are_compared_too() -> None:
    one = torch.rand(4)
    asked: Asked = [([X, T], [one, None]), ([X, T], [one.clone(), None]), ([X, T], [one.clone(), one.clone()])]
    assert pattern(lambda step: asked) == [-1, 0, -1]


def test_another_step_begins_anew() -> None:
    one = torch.rand(4)
    assert pattern(lambda step: [([X], [one.clone()])]) is None
