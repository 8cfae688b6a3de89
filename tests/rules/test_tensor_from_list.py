"""Tensors of lists: what counts as one, what it costs by the script's own steps, and what joining them saves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from advisor.edit import Edit, Sources
from advisor.evidence import Evidence
from advisor.harness.from_lists import given_as
from advisor.harness.layout import Site
from advisor.launch import Command, measure
from advisor.rule import Advice, Finding
from advisor.rulebook import load_rules
from rules.tensor_from_list import _computes
from tests.conftest import PYTHON, QUICK

SCRIPT = """\
import random

import numpy as np
import torch
from torch.utils.data import DataLoader

constants = torch.tensor([[0.5] * 2000] * 20)  # once
rows = [np.random.rand(64).astype("float32") for _ in range(4000)]
masks = [[bool((i + j) % 3) for j in range(300)] for i in range(64)]


def batches(samples):
    features, classes = zip(*samples)
    return torch.tensor(features), torch.tensor(classes)


def either(value):
    return torch.as_tensor(value)


loader = DataLoader([(row, i % 4) for i, row in enumerate(rows)], batch_size=100, collate_fn=batches)
model = torch.nn.Linear(64, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(30):
    for x, y in loader:
        mask = torch.tensor(masks)
        weights = torch.tensor([0.1, 0.2, 0.3, 0.4])
        noise = either([random.random() for _ in range(400)]) if epoch else either(0.5)
        loss = torch.nn.functional.cross_entropy(model(x), y, weight=weights) + 0 * noise.mean() + 0 * mask.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def check(evidence: Evidence) -> list[Finding]:
    (rule,) = [each for each in load_rules() if each.id == "tensor-from-list"]
    return list(rule.check(evidence))


@pytest.mark.parametrize(
    ("data", "given"),
    [
        ([np.zeros(3), np.ones(3)], "arrays"),
        ((np.zeros((2, 2), "uint8"),) * 3, "arrays"),
        ([[1.0, 2.0], [3.0, 4.0]], "numbers"),
        (([True], [False]), "numbers"),
        ([np.zeros(3), np.zeros(3, "float32")], None),  # NumPy and torch choose different types
        ([np.zeros(3), [1.0, 2.0, 3.0]], None),
        ([np.array(["a"])], None),
        ([1, 2.5], None),
        ([np.float32(1), np.float32(2)], None),
        ([torch.zeros(3)], None),
        ([], None),
        ([[], []], None),
        (np.zeros(3), None),
        (3.0, None),
        (None, None),
    ],
)
def test_what_is_given(data: Any, given: str | None) -> None:
    assert given_as(data) == given


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32", "uint8", "bool", "float16"])
def test_joined_arrays_make_the_same_tensor(dtype: str) -> None:
    arrays = [np.arange(6).reshape(2, 3).astype(dtype) for _ in range(3)]
    before, after = torch.tensor(arrays), torch.tensor(np.array(arrays))
    assert before.dtype == after.dtype and torch.equal(before, after)


@pytest.mark.parametrize(
    ("numbers", "joined"),
    [
        ([[0.1, 0.2], [1e-40, 3e38]], lambda each: np.array(each, dtype=np.float32)),
        ([[1, -(2**62)]], np.array),
        ([[True, False]], np.array),
    ],
)
def test_joined_numbers_make_the_same_tensor(numbers: Any, joined: Any) -> None:
    before, after = torch.tensor(numbers), torch.tensor(joined(numbers))
    assert before.dtype == after.dtype and torch.equal(before, after)


@pytest.mark.slow
def test_calls_of_each_step_are_seen(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    run = measure(Command(str(script), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK)
    calls = {call.site.line: call for call in run.record.call_sites if call.kind == "from_list"}
    line = {text.strip(): number for number, text in enumerate(SCRIPT.splitlines(), 1)}
    collated = line["return torch.tensor(features), torch.tensor(classes)"]
    masks, mixed = line["mask = torch.tensor(masks)"], line["return torch.as_tensor(value)"]
    # Not what is made once, and nothing of a few numbers.
    assert set(calls) - {mixed} == {collated, masks}
    assert calls[collated].details["given"] == "arrays" and calls[collated].details["loader"] == 0
    assert calls[masks].details | {"numbers": 19200.0, "dtype": "bool", "loader": -1} == calls[masks].details
    for call in (calls[collated], calls[masks]):
        assert not call.details["others"] and call.calls_per_step == pytest.approx(1.0, abs=0.2)
        assert 0 < call.seconds_per_step < 0.1
        call.seconds_per_step = 0.3 * (run.record.timing.step_s or 0.0)  # whatever else the machine does
    (finding,) = check(Evidence.from_run(run))
    assert finding.site is not None and finding.site.line in (collated, masks)
    rule = next(each for each in load_rules() if each.id == "tensor-from-list")
    edit = rule.fix(finding, Sources())
    assert isinstance(edit, Edit)
    diff = edit.diff(tmp_path)
    assert "torch.tensor(np.array(features))" in diff and "torch.tensor(np.array(masks))" in diff
    assert "as_tensor(value)" not in diff


def called(scene: Any, folder: Path, seconds: float, **details: Any) -> list[Finding]:
    """What is found where one call takes so many seconds of a step of 40 ms, 8 of which are an operator's."""
    made = scene(40.0)
    made.operator("aten::addmm", 1.0, 8.0)
    usual = {"dtype": "float32", "numbers": 100_000.0, "others": False, "loader": -1, "device": "cpu"}
    made.call("from_list", 20, **usual | details)
    made.record.call_sites[-1].seconds_per_step = seconds
    made.record.environment.packages = {"numpy": "2.4.0"}
    return check(made.evidence(folder))


def test_call_beside_the_fetches(scene: Any, tmp_path: Path) -> None:
    (finding,) = called(scene, tmp_path, 0.02, given="arrays")
    assert finding.gain.low < 40 / 20.4 < finding.gain.high
    assert finding.parameters["as_they_are"] and not finding.parameters["singles"]


def test_call_that_is_also_given_something_else_is_left_to_its_author(scene: Any, tmp_path: Path) -> None:
    (finding,) = called(scene, tmp_path, 0.02, given="numbers", others=True)
    (rule,) = [each for each in load_rules() if each.id == "tensor-from-list"]
    assert isinstance(rule.fix(finding, Sources()), Advice)
    assert finding.parameters["singles"]


def test_call_that_costs_little_is_not_reported(scene: Any, tmp_path: Path) -> None:
    assert called(scene, tmp_path, 0.0004, given="arrays") == []


def test_wait_for_the_gpu_is_not_the_reading_of_a_list(scene: Any, tmp_path: Path) -> None:
    assert called(scene, tmp_path, 0.02, given="arrays", device="cuda", numbers=512.0) == []
    (finding,) = called(scene, tmp_path, 0.02, given="arrays", device="cuda", numbers=100_000.0)
    assert finding.evidence["seconds_per_step"] == pytest.approx(0.0075)


ROWS = """\
import random

import torch

torch.set_num_threads(1)
memory = [([random.random() for _ in range(24)], random.randrange(4)) for _ in range(5000)]
model = torch.nn.Linear(24, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(400):
    states, actions = zip(*random.sample(memory, {rows}))
    x = torch.stack([torch.tensor(state) for state in states])
    y = torch.tensor(actions)
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(("rows", "told"), [(256, True), (4, False)])
def test_rows_made_one_by_one_are_joined(rows: int, told: bool, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ROWS.format(rows=rows))
    command = Command(str(tmp_path / "train.py"), python=PYTHON, cwd=str(tmp_path))
    findings = check(Evidence.from_run(measure(command, tmp_path / "run", QUICK, timeout=120)))
    assert bool(findings) is told
    for each in findings:
        assert each.site is not None and each.site.line == 11 and "of lists of numbers" in each.summary
        (rule,) = [each for each in load_rules() if each.id == "tensor-from-list"]
        fix = rule.fix(each, Sources())
        assert isinstance(fix, Edit)
        assert "x = torch.tensor(numpy.array(states, dtype=numpy.float32))" in next(iter(fix.texts.values()))


@pytest.mark.parametrize(
    ("line", "computes"),
    [
        ("centre = torch.tensor(row) * stride", True),
        ("centre = base + torch.tensor(row)", True),
        ("flipped = -torch.tensor(row)", True),
        ("rows.append(torch.tensor(row))", False),
        ("rows.append(torch.tensor(row) / 255)", False),  # all of them may be
        ("rows = torch.stack([torch.tensor(row) * scale for row in table])", False),
    ],
)
def test_single_tensors_in_arithmetic_are_no_rows(line: str, computes: bool, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"import torch\n{line}\n")
    begin = line.index("torch.tensor")
    site = Site(str(script), 2, begin, 2, line.index(")", begin) + 1)
    assert _computes(site) == computes
