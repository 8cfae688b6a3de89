"""The regression gate: is the script slower than in an earlier session, by more than is allowed, and surely so?

The earlier session cannot be run again, so the runs of the two are compared as groups (:func:`compare.compare_groups`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from advisor.contrast import REPEATS, Contrast, Side, contrast, open_side
from advisor.errors import SCRIPT_FAILED, AdvisorError

if TYPE_CHECKING:
    from advisor.improve.bench import Bench, Version

# Runs of the script in all, where it is compared with an earlier session: three tell how much runs differ.
RUNS = 3
AGAINST_JSON = "against.json"


@dataclass(frozen=True)
class FailOn:
    """What makes the gate fail: a step that takes this share more time, or more (0.05 = 5 %)."""

    slower: float

    def __str__(self) -> str:
        return f"slower:{self.slower * 100:g}%"


@dataclass(frozen=True)
class Gate:
    """The outcome. ``sentences``: whether the script got slower; and, if so, what could not have been seen."""

    failed: bool
    sentences: tuple[str, ...]
    contrast: Contrast
    fail_on: FailOn | None = None


def parse_fail_on(text: str) -> FailOn:
    """``slower:5%`` as typed. Raises AdvisorError for anything else."""
    match = re.fullmatch(r"slower:(\d+(?:\.\d+)?)%", text.strip())
    if match is None:
        raise AdvisorError(f"--fail-on {text} is not understood: write slower:5% for a step that takes 5% more time.")
    return FailOn(float(match[1]) / 100)


def check(against: str | None, fail_on: str | None) -> None:
    """Say what is wrong with the two before anything is run. Raises AdvisorError."""
    if fail_on is not None:
        parse_fail_on(fail_on)
        if against is None:
            raise AdvisorError("--fail-on needs an earlier session to compare with: name its folder by --against.")
    if against is not None:
        open_side(against)


def repeat(bench: Bench, baseline: Version, session: Path, runs: int) -> None:
    """Time the script again until there are `runs` runs of it, the baseline's counted, or the time is used up.

    Raises AdvisorError when it fails.
    """
    from advisor.improve.bench import BudgetError, TrialError

    for number in range(2, runs + 1):
        bench.say(f"run {number} of {runs}, only timed")
        try:
            bench.again(baseline, session / REPEATS / str(number))
        except BudgetError:
            bench.say("the time (--budget) is used up: no further repeats")
            return
        except TrialError as error:
            raise AdvisorError(f"the script failed when it was repeated: {error}", SCRIPT_FAILED) from error


def judge(earlier: Path, now: Path, fail_on: FailOn | None = None) -> Gate:
    """Compare the session `now` with an `earlier` one (or a run of it).

    It fails when the step is estimated to take the share of ``fail_on`` more time, or more, and "not slower" is outside
    of the 95 % interval. Raises AdvisorError when the two cannot be compared.
    """
    before, after = open_side(earlier), open_side(now)
    if before.folder == after.folder:
        raise AdvisorError(f"--against {earlier} is this very session: name an earlier one.")
    result = contrast(before, after)
    comparison = result.comparison
    slower = 1 / comparison.speedup - 1
    failed = fail_on is not None and comparison.high < 1 and slower >= fail_on.slower
    sentences = [_sentence(result, fail_on, failed)]
    visible = comparison.smallest_gain() - 1
    if not failed and fail_on is not None and visible > max(fail_on.slower, 0.005):
        sentences.append(
            f"these runs differ too much among themselves, or are too few, to tell {_percent(fail_on.slower)}: a "
            f"slowdown of {_percent(visible)} or more would have been seen{_advice(before)}"
        )
    return Gate(failed, tuple(sentences), result, fail_on)


def _sentence(result: Contrast, fail_on: FailOn | None, failed: bool) -> str:
    comparison = result.comparison
    # In time, which is what a limit is in: the bounds change places.
    time, low, high = (1 / each - 1 for each in (comparison.speedup, comparison.high, comparison.low))
    per = "sample" if result.per_sample else "step"
    one, other = comparison.runs
    span = f"between {_signed(low)} and {_signed(high)} with 95% confidence, {one} earlier and {other} new runs"
    allowed = f"; --fail-on allows {_percent(fail_on.slower)}" if fail_on is not None else ""
    if failed:
        return f"slower than the earlier session: a {per} takes {_percent(time)} more time ({span}){allowed}"
    if comparison.high < 1:
        return f"a {per} takes {_percent(time)} more time than in the earlier session ({span}){allowed}"
    if comparison.low > 1:
        return f"not slower than the earlier session: a {per} takes {_percent(-time)} less time ({span})"
    return f"not told apart from the earlier session: the change of a {per}'s time is {span}{allowed}"


def _advice(before: Side) -> str:
    if len(before.runs) < RUNS:
        return f"; record the earlier session with --repeat {RUNS} or more"
    return "; repeat more often (--repeat), or on a quieter machine"


def _percent(share: float) -> str:
    return f"{share:.0%}" if abs(share) >= 0.1 or share * 100 == round(share * 100) else f"{share:.1%}"


def _signed(share: float) -> str:
    return ("+" if share > 0 else "") + _percent(share)


def write(gate: Gate, session: Path) -> Path:
    """Write ``against.json`` into the session's folder: the outcome, and the comparison behind it."""
    from advisor.report import comparison

    path = session / AGAINST_JSON
    document = {
        "schema": 1,
        "failed": gate.failed,
        "fail_on": str(gate.fail_on) if gate.fail_on is not None else None,
        "sentences": list(gate.sentences),
        "comparison": msgspec.json.decode(comparison.encode(gate.contrast)),
    }
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
    except OSError as error:
        raise AdvisorError(f"{path} cannot be written: {error.strerror or error}.") from error
    return path
