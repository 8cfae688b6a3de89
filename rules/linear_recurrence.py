"""A linear recurrence is gone through in a Python loop, one state after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.edit.sources import text_of
from advisor.evidence import Change
from advisor.evidence.python_loops.recurrences import TakenRecurrence, taken_recurrence
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, at, where

if TYPE_CHECKING:
    from advisor.edit import Sources
    from advisor.evidence import Evidence

_LEAST_GAIN = 1.15
# Operations a second of the product with all powers, on one core with AVX-512; and seconds of one of the powers, with
# what leads to it and its backward. Of two scripts, 640 states of 400 steps and 192 of 320, the loops' 12.5 and 6.6 ms
# became 5 and less than one (1.55 and 2.41 times as fast).
_RATE, _POWER_S = 1e11, 6e-9
_LEFT = 0.05  # of the loop: the calls
_BASIS = "prior: a product with the matrix of powers instead of the rounds, and a twentieth of them"


class LinearRecurrence(Rule):
    """A loop in Python computes ``h = a * h + b * x[t]`` for one time step after another, with the same a in each.

    First-order smoothing, as PCEN normalizes spectrograms by, leaky integrators, discounted sums: each round calls a
    few small operators, and the backward as many nodes. But h at t is the sum of all b * x up to t, each times a power
    of a: ``powers[s, t] = a ** (t - s)`` for s up to t, else 0, and ``h = (b * x) @ powers`` gives all states in one
    product, which is differentiated as one, by a as well. Reported where the trace has the loop and the source says
    that nothing else happens in it.

    When not: the factor is another one in each round (a gate, a mask of episodes); something nonlinear is done to the
    state in between; thousands of steps, for which the matrix is computed for blocks of some hundred, the last state of
    each carried on to the next.

    Source: Martin and Cundy 2018, "Parallelizing Linear Recurrent Neural Nets Over Sequence Length"; Wang et al. 2017,
    "Trainable Frontend For Robust and Far-Field Keyword Spotting", equation 2 (PCEN). The gain is a prior.
    """

    id = "linear-recurrence"
    title = "Compute all states of a linear recurrence at once"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        found = taken_recurrence(evidence, text_of) if not evidence.compiled else None
        if found is None or not evidence.step_s:
            return
        spent = (found.loop.forward_s + found.loop.backward_s) / evidence.inflation
        saved = spent * (1.0 - _LEFT) - _product_s(evidence, found)
        gain = Gain.of(evidence.what_if(Change(remove_host_s=max(0.0, saved))), basis=_BASIS)
        if gain.likely < _LEAST_GAIN:
            return
        recurrence = found.recurrence
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"The loop at {at(recurrence.site)} goes through {found.rounds:.0f} states one after the other, "
            f"{recurrence.state} = {recurrence.factor} * {recurrence.state} + …, {spent / evidence.step_s:.0%} of the "
            "step with its backward, and the factor is the same in each.",
            gain=gain,
            evidence={
                "loop_s": spent,
                "rounds_per_step": found.loop.rounds,
                "numbers_per_state": found.states,
                "step_s": evidence.step_s,
            },
            site=recurrence.site,
            parameters={"state": recurrence.state, "factor": recurrence.factor},
        )

    def fix(self, finding: Finding, sources: Sources) -> Advice:
        factor, state = finding.parameters.get("factor") or "a", finding.parameters.get("state") or "h"
        return Advice(
            f"Compute all states of the loop {where(finding.site)} at once, with a = {factor}: t = "
            "torch.arange(steps); lag = t[None, :] - t[:, None]; "
            "powers = torch.where(lag >= 0, a ** lag.clamp(min=0), 0); "
            f"all {state} = inputs @ powers, where inputs (…, steps) are what each round adds, the first of them the "
            "state that the loop begins with. Where each channel has a factor of its own, each has its own powers; of "
            "thousands of steps block by block.",
            "where the states begin, and along which dimension, only its author can tell",
        )

    EXAMPLES = (
        Example(
            before="for t in range(1, x.shape[-1]):  # <-\n    h = (1 - s) * h + s * x[..., t]\n    out.append(h)\n",
            after="",
            parameters={"state": "h", "factor": "(1 - s)"},
            advice="all h = inputs @ powers",
        ),
    )
    LEAVES_ALONE = (Example("for t in range(steps):  # <-\n    h = torch.tanh(w @ h + x[t])\n", ""),)


def _product_s(evidence: Evidence, found: TakenRecurrence) -> float:
    """Seconds of the product that gives all states, and of its backward, where there is one: two more."""
    record = evidence.record
    cores = max(1.0, record.environment.usable_cpus) if record is not None else 1.0
    products = 3.0 if found.loop.backward_s else 1.0
    powers = _POWER_S * found.factors * found.rounds**2
    return powers + products * 2.0 * found.states * found.rounds**2 * found.loop.times / (_RATE * cores)
