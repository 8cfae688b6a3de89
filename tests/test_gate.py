"""`--against` and `--fail-on`: a slower step fails the gate, noise does not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from advisor.errors import FAIL_ON, SCRIPT_FAILED, AdvisorError
from advisor.gate import FailOn, check, judge, parse_fail_on, write
from advisor.harness.layout import Environment, RunRecord, Timing
from tests.conftest import PYTHON

FIVE = FailOn(0.05)


def session(folder: Path, steps: Sequence[float], torch: str = "2.15.0") -> Path:
    """A session of timed runs: the baseline, then repeats."""
    for number, step_s in enumerate(steps, 1):
        run = folder / "baseline" if number == 1 else folder / "repeats" / str(number)
        run.mkdir(parents=True)
        timing = Timing(step_s=step_s, samples_per_step=32.0, settled=True)
        record = RunRecord(script="train.py", timing=timing, environment=Environment(torch=torch))
        (run / "run.json").write_text(json.dumps(asdict(record)))
    return folder


@pytest.mark.parametrize(("text", "share"), [("slower:5%", 0.05), ("slower:2.5%", 0.025), (" slower:100% ", 1.0)])
def test_what_is_allowed_is_a_percentage(text: str, share: float) -> None:
    assert parse_fail_on(text) == FailOn(pytest.approx(share))  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["slower:0.05", "slower", "5%", "faster:5%", "slower:-5%", "slower:x%", ""])
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(AdvisorError, match="write slower:5%"):
        parse_fail_on(text)


def test_a_limit_needs_something_to_compare_with(tmp_path: Path) -> None:
    with pytest.raises(AdvisorError, match="--against"):
        check(None, "slower:5%")
    with pytest.raises(AdvisorError, match="not a folder"):
        check(str(tmp_path / "gone"), "slower:5%")
    check(str(session(tmp_path / "there", [0.1])), "slower:5%")


def test_clearly_slower_fails_and_says_by_how_much(tmp_path: Path) -> None:
    earlier, now = session(tmp_path / "1", [0.100, 0.101, 0.099]), session(tmp_path / "2", [0.120, 0.121, 0.119])
    gate = judge(earlier, now, FIVE)
    assert gate.failed
    assert "a step takes 20% more time" in gate.sentences[0]
    assert "allows 5%" in gate.sentences[0]


def test_one_earlier_run_is_enough_where_the_difference_is_clear(tmp_path: Path) -> None:
    earlier, now = session(tmp_path / "1", [0.100]), session(tmp_path / "2", [0.120, 0.121, 0.119])
    assert judge(earlier, now, FIVE).failed


def test_slower_but_less_than_the_limit_passes(tmp_path: Path) -> None:
    earlier, now = session(tmp_path / "1", [0.100, 0.1001, 0.0999]), session(tmp_path / "2", [0.103, 0.1031, 0.1029])
    gate = judge(earlier, now, FIVE)
    assert not gate.failed
    assert "3% more time" in gate.sentences[0] or "3.0% more time" in gate.sentences[0]
    assert len(gate.sentences) == 1


def test_faster_passes(tmp_path: Path) -> None:
    gate = judge(session(tmp_path / "1", [0.1, 0.101, 0.1]), session(tmp_path / "2", [0.08, 0.081, 0.08]), FIVE)
    assert not gate.failed
    assert "20% less time" in gate.sentences[0]


def test_noise_beyond_the_limit_passes_and_says_what_it_could_not_see(tmp_path: Path) -> None:
    gate = judge(session(tmp_path / "1", [0.100]), session(tmp_path / "2", [0.100, 0.120, 0.110]), FIVE)
    assert not gate.failed
    assert "not told apart" in gate.sentences[0]
    assert "would have been seen" in gate.sentences[1]
    assert "--repeat 3" in gate.sentences[1]


def test_without_a_limit_nothing_fails(tmp_path: Path) -> None:
    gate = judge(session(tmp_path / "1", [0.1, 0.1, 0.1]), session(tmp_path / "2", [0.2, 0.2, 0.2]))
    assert not gate.failed
    assert "100% more time" in gate.sentences[0]


def test_the_session_itself_is_no_earlier_one(tmp_path: Path) -> None:
    folder = session(tmp_path / "1", [0.1])
    with pytest.raises(AdvisorError, match="this very session"):
        judge(folder, folder, FIVE)


def test_what_changed_is_written_beside_the_outcome(tmp_path: Path) -> None:
    earlier = session(tmp_path / "1", [0.100, 0.101, 0.099], torch="2.14.0")
    now = session(tmp_path / "2", [0.120, 0.121, 0.119])
    document = json.loads(write(judge(earlier, now, FIVE), now).read_text())
    assert document["failed"] is True
    assert document["fail_on"] == "slower:5%"
    assert document["comparison"]["differences"] == [{"what": "torch", "a": "2.14.0", "b": "2.15.0"}]


@pytest.mark.parametrize("earlier", [1, 3])
@pytest.mark.parametrize("spread", [0.01, 0.03, 0.08])
def test_an_unchanged_script_rarely_fails(earlier: int, spread: float) -> None:
    """Simulated: at most 2.5 times in 100, whatever the spread (one side of a 95 % interval)."""
    from advisor.compare import compare_groups

    random = np.random.default_rng(11)
    failed, sessions = 0, 1000
    for runs in np.exp(random.normal(0, spread, (sessions, earlier + 3))):
        comparison = compare_groups(runs[:earlier].tolist(), runs[earlier:].tolist())
        failed += comparison.high < 1 and 1 / comparison.speedup >= 1.05
    assert failed / sessions <= 0.025 + 3 * (0.025 * 0.975 / sessions) ** 0.5


SCRIPT = """\
import sys
import time

import torch

model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(100000):
    time.sleep(float(sys.argv[1]))
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.sessions
def test_the_command_exits_5_when_the_script_became_slower(tmp_path: Path) -> None:
    """Two sessions of one script: the second waits three times as long in every step."""
    (tmp_path / "train.py").write_text(SCRIPT)

    def profile(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "advisor.cli", "profile", "train.py", "--python", PYTHON, "--accept", "none"]
        return subprocess.run([*command, *arguments], capture_output=True, text=True, cwd=tmp_path, timeout=300)

    first = profile("--repeat", "2", "--", "0.02")
    assert first.returncode == 0, first.stderr
    earlier = tmp_path / "advisor_runs" / "train-1"
    assert (earlier / "repeats" / "2" / "run.json").is_file()

    slower = profile("--against", str(earlier), "--fail-on", "slower:5%", "--", "0.06")
    assert slower.returncode == FAIL_ON, slower.stderr
    assert "slower than the earlier session" in slower.stdout
    assert "script arguments" in slower.stdout
    now = tmp_path / "advisor_runs" / "train-2"
    assert sorted(path.name for path in (now / "repeats").iterdir()) == ["2", "3"]
    assert json.loads((now / "against.json").read_text())["failed"] is True


FAILS_WHEN_REPEATED = (
    """\
import os

if "repeats" in os.environ["ADVISOR_OPTIONS"]:
    raise ValueError("not twice")
"""
    + SCRIPT
)


@pytest.mark.sessions
@pytest.mark.slow
def test_a_script_that_fails_when_repeated_is_an_error_of_the_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FAILS_WHEN_REPEATED)
    command = [sys.executable, "-m", "advisor.cli", "profile", "train.py", "--python", PYTHON, "--repeat", "2"]
    done = subprocess.run([*command, "--", "0.01"], capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == SCRIPT_FAILED
    assert "failed when it was repeated: ValueError: not twice" in done.stderr


def test_a_resumed_session_is_not_given_another_gate(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "advisor.cli", "profile", "--resume", ".", "--repeat", "2"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 2
    assert "keeps its --against" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--against", "gone"], "gone is not a folder"),
        (["--fail-on", "slower:5%"], "--against"),
        (["--against", ".", "--fail-on", "slow"], "write slower:5%"),
    ],
)
def test_what_is_wrong_with_the_gate_is_said_before_anything_is_run(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit(7)\n")
    done = subprocess.run(
        [sys.executable, "-m", "advisor.cli", "profile", "train.py", *arguments],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "advisor_runs").exists()
