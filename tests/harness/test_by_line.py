"""What a line adds up to in a step is what it does in most, whatever held one of them up."""

from __future__ import annotations

import pytest

from advisor.harness.layout import OneHot
from advisor.harness.watches.by_line import ByLine


def lines(seconds: list[float], told: bool = True) -> list[OneHot]:
    """What is known after steps in each of which a line took so long."""
    seen: ByLine[OneHot] = ByLine()
    for each in seconds:
        line = seen.here(lambda site, frames: OneHot(site=site, called_from=frames, rows=8, columns=4))
        assert line is not None
        line.seconds += each
        line.calls += 1.0
        if told:
            seen.step_ends()
    return seen.per_step(len(seconds), 1e-3)


def test_the_step_in_the_middle_counts() -> None:
    (line,) = lines([0.002, 0.090, 0.003])
    assert line.seconds == pytest.approx(0.003) and line.calls == 1.0 and (line.rows, line.columns) == (8, 4)
    assert not lines([0.0001, 0.090, 0.0002])


def test_without_their_ends_steps_share_what_was_added_up() -> None:
    (line,) = lines([0.002, 0.004, 0.003], told=False)
    assert line.seconds == pytest.approx(0.003) and line.calls == 1.0
