"""The numerics guard: the same computation before and after, by the first losses or outputs."""

from __future__ import annotations

import math

import pytest

from advisor.harness.layout import RunRecord
from advisor.improve.numerics import compare_numerics, drift, not_finite
from advisor.rule import Safety


def run(losses: list[float] | None = None, outputs: list[float] | None = None, samples: float = 32) -> RunRecord:
    record = RunRecord(losses=losses or [], outputs=outputs or [])
    record.timing.samples_per_step = samples
    return record


STEADY = [2.3, 2.2, 2.1, 2.0]


def test_equal_losses_have_no_drift() -> None:
    found, wrong = compare_numerics(Safety.EXACT, [run(STEADY)] * 3, [run(STEADY)] * 3)
    assert found is not None and found.drift == 0 and not wrong


def test_an_exact_fix_that_changes_the_batches_is_found_out() -> None:
    shuffled = [2.2, 2.3, 2.0, 2.1]
    found, wrong = compare_numerics(Safety.EXACT, [run(STEADY)] * 3, [run(shuffled)] * 3)
    assert found is not None and found.drift == pytest.approx(drift(STEADY, shuffled))
    assert "it changes what is computed: the first 4 losses differ by 0.046" in wrong
    assert not compare_numerics(Safety.NUMERIC, [run(STEADY)] * 3, [run(shuffled)] * 3)[1]


def test_the_scripts_own_drift_between_repeats_is_allowed() -> None:
    noisy = [[2.3, 2.2, 2.1, 2.0], [2.25, 2.24, 2.05, 2.03], [2.31, 2.18, 2.12, 1.98]]
    found, wrong = compare_numerics(
        Safety.EXACT, [run(losses) for losses in noisy], [run([2.28, 2.21, 2.07, 2.02])] * 3
    )
    assert not wrong
    assert found is not None and found.repeats is not None and found.repeats > 0.01


def test_behaviour_is_shown_not_judged() -> None:
    found, wrong = compare_numerics(Safety.BEHAVIOUR, [run(STEADY)], [run([1.0, 0.5, 0.2, 0.1])])
    assert found is not None and found.tolerance is None and not wrong


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("safety", list(Safety))
def test_a_loss_that_breaks_fails_any_fix(bad: float, safety: Safety) -> None:
    found, wrong = compare_numerics(safety, [run(STEADY)], [run([2.3, bad, bad, bad])])
    assert "NaN or infinite" in wrong
    assert found is not None and found.after[1] is None


def test_a_script_that_diverges_by_itself_is_no_fixs_fault() -> None:
    broken = [2.3, math.nan, math.nan, math.nan]
    assert not not_finite([run(broken)], [run(broken)])


def test_only_the_steps_that_all_runs_have_are_compared() -> None:
    found, wrong = compare_numerics(Safety.EXACT, [run(STEADY), run(STEADY[:3])], [run([*STEADY[:3], 9.0])] * 2)
    assert found is not None and len(found.after) == 3 and not wrong


def test_without_losses_outputs_are_compared() -> None:
    found, wrong = compare_numerics(Safety.EXACT, [run(outputs=[0.5, 0.6])], [run(outputs=[0.5, 0.7])])
    assert found is not None and found.kind == "output"
    assert "outputs differ" in wrong


def test_outputs_of_a_larger_batch_are_means_over_the_same_samples() -> None:
    before, after = run(outputs=[0.4, 0.6, 0.5, 0.7]), run(outputs=[0.5, 0.6], samples=64)
    found, wrong = compare_numerics(Safety.NUMERIC, [before], [after])
    assert found is not None and found.drift == pytest.approx(0.0, abs=1e-12) and not wrong


def test_a_script_without_both_has_nothing_to_compare() -> None:
    assert compare_numerics(Safety.EXACT, [run()], [run()]) == (None, "")


def test_weights_that_break_after_the_first_losses_fail_the_fix() -> None:
    after = run(STEADY)
    after.nonfinite_parameters = 3
    assert not_finite([run(STEADY)], [after]) == "the weights became NaN or infinite"


def test_a_value_that_is_nan_before_as_well_says_nothing_of_the_others() -> None:
    broken = [2.3, math.inf, 2.1, 2.0]
    found, wrong = compare_numerics(Safety.EXACT, [run(broken)] * 2, [run(broken)] * 2)
    assert found is not None and found.drift == 0 and not wrong
    assert compare_numerics(Safety.EXACT, [run(broken)] * 2, [run([2.3, math.inf, 2.5, 2.0])] * 2)[1]


def test_huge_and_vanishing_losses_have_a_drift() -> None:
    assert drift([1e300, 1e300], [1e300, 2e300]) == pytest.approx(0.5**0.5)
    assert drift([0.0, 0.0], [1e-12, 0.0]) < 1e-3
    assert drift([0.0, 0.0], [1.0, 0.0]) > 1
