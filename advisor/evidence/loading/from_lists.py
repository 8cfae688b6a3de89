"""What it takes to make tensors of lists, number by number."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from advisor.harness.layout import CallSite

# For each number: with torch 2.15, 128 arrays of 100 float32 values took 0.97 ms, 128 lists of 100 floats 1.04.
_NUMBER_S = 75e-9


def reading_s(call: CallSite) -> float:
    """Seconds per step in which a ``from_list`` call reads its list.

    Where the tensor then goes to a GPU most of the call may be a wait for that, which is not counted.
    """
    measured = call.seconds_per_step
    return measured if call.details.get("device") == "cpu" else min(measured, numbers_in(call) * _NUMBER_S)


def numbers_in(call: CallSite) -> float:
    """How many numbers it reads per step."""
    numbers = call.details.get("numbers")
    return float(numbers) if isinstance(numbers, (int, float)) else 0.0
