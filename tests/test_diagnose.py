"""What a rule that only tells of what no other explains has to say beside others."""

from __future__ import annotations

import pytest

from advisor.diagnose import Diagnosed, _explained
from advisor.harness.layout import Site
from advisor.rule import Advice, Finding, Gain
from advisor.rulebook import load_rules

RULES = {each.id: each for each in load_rules()}


def found(rule: str, line: int, likely: float, within: range = range(0), file: str = "train.py") -> Diagnosed:
    gain = Gain(likely / 1.2, likely, likely * 1.2)
    finding = Finding(rule, "", "", gain, {}, Site(file, line), {"within": within})
    return Diagnosed(RULES[rule], finding, Advice("", ""))


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (found("fft-convolution", 21, 1.5), False),  # at the same line
        (found("fft-convolution", 25, 1.5), True),
        (found("fft-convolution", 21, 1.5, file="augment.py"), True),
        (found("fft-convolution", 25, 3.0), False),  # promises more than half
        (found("amp-autocast", 21, 3.0), True),  # of the model's own operators
    ],
)
def test_what_another_rule_explains_is_not_told_again(other: Diagnosed, told: bool) -> None:
    both = [found("work-beside-model", 21, 5.0), other]
    assert _explained(both) == (both if told else [other])


@pytest.mark.parametrize(("line", "told"), [(25, False), (31, True)])
def test_a_whole_function_s_lines_count(line: int, told: bool) -> None:
    both = [found("work-beside-model", 21, 5.0, range(20, 30)), found("fft-convolution", line, 1.5)]
    assert _explained(both) == (both if told else both[1:])
