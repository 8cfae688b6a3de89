"""Jacobians that are taken backwards, once for each output: by ``torch.func.jacrev``, and of whole batches."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from advisor.evidence.coded import Mask, names_like
from advisor.evidence.gradients.backwards import backward_s
from advisor.evidence.nesting import Nesting
from advisor.evidence.outside import users_functions
from advisor.evidence.shapes import input_shapes
from advisor.evidence.stacks import Stacks
from advisor.evidence.steps import assign, step_windows
from advisor.evidence.worked import self_shares, worked

if TYPE_CHECKING:
    from advisor.evidence import Evidence
    from advisor.trace.tables import Trace

# The parts of torch.func.jacrev (torch/_functorch/eager_transforms.py): all of it, and the backwards.
_FILE = "torch/_functorch/eager_transforms.py"
_WHOLE = "wrapper_fn"
_BACKWARDS = ("compute_jacobian_stacked", "compute_jacobian_preallocate_and_copy")
# Those of torch.autograd.functional.jacobian, which takes one row after another.
_LOOPED_FILE, _LOOPED, _A_ROW = "torch/autograd/functional.py", "jacobian", "_autograd_grad"
_RANDOM = re.compile(r"native_dropout|bernoulli|^aten::(rand|normal|uniform|multinomial|exponential|rrelu_with)")


@dataclass(frozen=True)
class Jacobian:
    """A Jacobian of ``outputs`` by ``inputs`` numbers, of a sample where it is mapped over a batch.

    ``function`` of the user's calls for it: (file, first line), 0 outside of all.
    """

    outputs: int
    inputs: int
    function: tuple[str, int]
    draws: bool = False  # random numbers, in what is differentiated


def reverse_jacobians(evidence: Evidence) -> tuple[dict[Jacobian, float], dict[str, float]]:
    """What ``jacrev`` is called for: times per step; operator → share of its own time, with the backward's for it."""
    trace, record = evidence.detail, evidence.record
    if trace is None or record is None or not len(trace.operators):
        return {}, {}
    operators, nesting, steps = trace.operators, Nesting(trace), step_windows(trace)
    step = assign(steps, operators.start)
    outer = np.flatnonzero((step >= 0) & (nesting.parent < 0))
    counts: dict[Jacobian, float] = {}
    over = np.zeros(len(operators), np.bool_)
    draws = names_like(trace, operators.name, _draws)
    begun = np.where(nesting.parent < 0, -1, operators.start[nesting.parent])  # the operator around each
    for lane in np.unique(operators.lane[outer]).tolist():
        stacks = Stacks.of(trace, lane)
        for call, whole in _calls(stacks):
            inside = _within(trace, lane, stacks, whole)
            # What functorch calls as it was written: what that becomes for a whole batch is nested in it.
            plain = inside & (begun < stacks.start[whole])
            outputs, inputs, basis = _sizes(trace, plain & _within(trace, lane, stacks, call), plain)
            rows = [row for row in outer.tolist() if inside[row]]  # none where one operator is around all of it
            if not outputs or not inputs or not rows:
                continue
            for place in users_functions(trace, np.array([basis]), record).values():
                each = Jacobian(outputs, inputs, place, bool(draws[inside].any()))
                counts[each] = counts.get(each, 0.0) + 1 / len(steps)
            over |= worked(trace, rows)
    return counts, self_shares(trace, nesting, over, step >= 0)


@dataclass(frozen=True)
class LoopedJacobian:
    """A Jacobian of ``shape`` outputs, of which each took a backward; ``function`` as of :class:`Jacobian`."""

    shape: tuple[int, ...]
    function: tuple[str, int]

    @property
    def outputs(self) -> int:
        """How many backwards it took."""
        return prod(self.shape)


def looped_jacobians(evidence: Evidence) -> tuple[dict[LoopedJacobian, float], float]:
    """What ``torch.autograd.functional.jacobian`` is called for: times per step; and the share of the steps it takes.

    With the backward for it, and all that is between its operators: Python asks for each row anew.
    """
    trace, record = evidence.detail, evidence.record
    if trace is None or record is None or not len(trace.operators):
        return {}, 0.0
    operators, nesting, steps = trace.operators, Nesting(trace), step_windows(trace)
    outer = (assign(steps, operators.start) >= 0) & (nesting.parent < 0)
    reshapes = names_like(trace, operators.name, "aten::reshape".__eq__)
    counts: dict[LoopedJacobian, float] = {}
    spent = 0.0
    for lane in np.unique(operators.lane[outer]).tolist():
        stacks = Stacks.of(trace, lane)
        for call, function in enumerate(stacks.functions):
            if function.name != _LOOPED or not function.path.endswith(_LOOPED_FILE):
                continue
            inside = _within(trace, lane, stacks, call)
            rows, backwards = np.flatnonzero(inside & outer), _asked(stacks, call)
            shapes = {input_shapes(trace.name(int(operators.shapes[row])))[0]: row for row in rows[reshapes[rows]]}
            fits = [(shape, int(row)) for shape, row in shapes.items() if shape and prod(shape) == backwards]
            if len(fits) != 1:
                continue
            ((shape, basis),) = fits
            for place in users_functions(trace, np.array([basis]), record).values():
                each = LoopedJacobian(tuple(shape), place)
                counts[each] = counts.get(each, 0.0) + 1 / len(steps)
                spent += int(stacks.end[call] - stacks.start[call]) / 1e9 + backward_s(trace, nesting, rows)
    return counts, spent * 1e9 / max(1, int((steps.end - steps.start).sum()))


def _asked(stacks: Stacks, call: int) -> int:
    """How many backwards a Jacobian takes."""
    rows = (
        row for row, each in enumerate(stacks.functions) if each.name == _A_ROW and each.path.endswith(_LOOPED_FILE)
    )
    return sum(call in stacks.up(row) for row in rows)


def _draws(name: str) -> bool:
    return _RANDOM.search(name) is not None


def _calls(stacks: Stacks) -> list[tuple[int, int]]:
    """(the backwards of a Jacobian, all of it), as rows of the stacks."""
    found = []
    for row, function in enumerate(stacks.functions):
        if function.name in _BACKWARDS and function.path.endswith(_FILE):
            whole = next((each for each in stacks.up(row) if stacks.functions[each].name == _WHOLE), None)
            if whole is not None:
                found.append((row, whole))
    return found


def _within(trace: Trace, lane: int, stacks: Stacks, call: int) -> Mask:
    operators = trace.operators
    inside = (operators.start >= stacks.start[call]) & (operators.end <= stacks.end[call])
    return np.asarray(inside & (operators.lane == lane))


def _sizes(trace: Trace, backwards: Mask, inside: Mask) -> tuple[int, int, int]:
    """(outputs, inputs, the operator that makes the basis); 0 where they are not seen.

    The basis has a row for each output, and what comes of it is divided by outputs, once for each tensor of the inputs.
    """
    operators, values = trace.operators, trace.operators.values
    if values is None:
        return 0, 0, -1
    outputs, basis = 0, -1
    for row in np.flatnonzero(backwards & names_like(trace, operators.name, "aten::new_zeros".__eq__)).tolist():
        try:
            outputs = max(outputs, int(json.loads(json.loads(trace.name(int(values[row])))[1])[0]))
        except (ValueError, TypeError, LookupError, RecursionError, OverflowError):
            continue
        basis = row
    inputs = 0
    for row in np.flatnonzero(inside & names_like(trace, operators.name, "aten::split_with_sizes".__eq__)).tolist():
        shape = next(iter(input_shapes(trace.name(int(operators.shapes[row])))), ())
        if shape and shape[0] == outputs and row > basis >= 0:
            inputs += prod(shape[1:])
    return outputs, inputs, basis
