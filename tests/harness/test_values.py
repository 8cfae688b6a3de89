"""What a run's numbers are compared by: the same seeds, and the values of the first steps without a gap."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest

from advisor.harness.layout import Options, RunRecord
from advisor.launch import Command, measure
from tests.conftest import PYTHON, QUICK

pytestmark = [pytest.mark.slow, pytest.mark.oldest]

# The script does more steps than that; so many are taken for granted, so the windows lie where they always do.
CUT = replace(QUICK, total_steps=80)
SETTLE = 10


def run(folder: Path, name: str, source: str, options: Options, **environment: str) -> tuple[RunRecord, list[str]]:
    script = folder / "script.py"
    script.write_text(dedent(source))
    command = Command(
        str(script), python=PYTHON, cwd=str(folder), environment={"PYTHONWARNINGS": "ignore", **environment}
    )
    record = measure(command, folder / name, options).record
    return record, (folder / name / "output.log").read_text().splitlines()


DRAWS = """
import random
print("random", random.random())
import numpy
print("numpy", numpy.random.rand(), numpy.random.permutation(20))
import torch
from torch.utils.data import DataLoader, Dataset
print("torch", torch.rand(1).item())
print("order", hash("a string"), list({"a", "b", "c", "d", "e", "f"}))
class Draws(Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, index):
        return torch.tensor([random.random(), numpy.random.rand(), torch.rand(1).item()], dtype=torch.float32)
if __name__ == "__main__":
    for workers in (0, 2):
        print("batch", next(iter(DataLoader(Draws(), 4, shuffle=True, num_workers=workers))).tolist())
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x in DataLoader(Draws(), 4, shuffle=True):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.sessions
def test_every_run_of_a_seed_draws_the_same(tmp_path: Path) -> None:
    options = replace(CUT, windows="timing", seed=7)
    first, said = run(tmp_path, "first", DRAWS, options)
    second, said_again = run(tmp_path, "second", DRAWS, options)
    assert len(said) == 6 and said == said_again
    assert first.losses == second.losses != []
    _, otherwise = run(tmp_path, "other", DRAWS, replace(options, seed=8))
    assert all(one != other for one, other in zip(said, otherwise, strict=True))


def test_hash_seed_of_the_users_own_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "3")
    source = "import os\nprint(os.environ['PYTHONHASHSEED'])\n" + DRAWS
    _, said = run(tmp_path, "run", source, replace(CUT, windows="timing", seed=7))
    assert said[0] == "3"


# Each loss is the number of its backward, each output that of its forward.
COUNTED = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(4))
    def forward(self, number):
        return self.weight.square() + number
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
backwards = 0
for step in range(1000):
    for way in range(WAYS):
        loss = model(float(backwards)).mean()
        if BROKEN is not None and backwards >= BROKEN:
            loss = loss * float("nan")
        if way == 0:
            loss.backward()
        elif way == 1:
            torch.autograd.backward([loss])
        else:
            scaler.scale(loss).backward()
        backwards += 1
    optimizer.step()
    optimizer.zero_grad()
"""


def counted(folder: Path, options: Options, ways: int = 1, broken: int | None = None) -> RunRecord:
    return run(folder, "run", f"WAYS, BROKEN = {ways}, {broken}\n{COUNTED}", options)[0]


def test_losses_and_outputs_are_the_first_without_a_gap(tmp_path: Path) -> None:
    record = counted(tmp_path, CUT)
    # Those before the timing window, and none of after it.
    assert record.losses == record.outputs == [float(number) for number in range(SETTLE + 1)]
    assert record.last_loss is not None and record.last_loss >= SETTLE + record.timing.steps
    assert record.nonfinite_losses == record.nonfinite_parameters == 0


@pytest.mark.sessions
def test_no_more_than_asked_for_are_kept(tmp_path: Path) -> None:
    record = counted(tmp_path, replace(CUT, losses=4))
    assert record.losses == record.outputs == [0.0, 1.0, 2.0, 3.0]


def test_every_way_to_go_backward_is_seen_in_order_and_unscaled(tmp_path: Path) -> None:
    record = counted(tmp_path, replace(CUT, windows="timing"), ways=3)
    assert record.losses == [float(number) for number in range(3 * (SETTLE + 1))]


def test_losses_that_become_nan_are_kept_as_such(tmp_path: Path) -> None:
    record = counted(tmp_path, replace(CUT, windows="timing"), broken=5)
    assert [math.isnan(loss) for loss in record.losses] == [False] * 5 + [True] * (SETTLE + 1 - 5)
    assert record.nonfinite_losses == SETTLE + 1 - 5
    assert "NaN" in (tmp_path / "run" / "run.json").read_text()


@pytest.mark.parametrize("windows", ["all", pytest.param("timing", marks=pytest.mark.sessions)])
def test_nan_that_comes_in_the_timing_window_is_known(tmp_path: Path, windows: str) -> None:
    record = counted(tmp_path, replace(CUT, windows=windows), broken=SETTLE + 3)
    assert all(math.isfinite(loss) for loss in record.losses)
    assert record.nonfinite_parameters == 1
    assert (record.nonfinite_losses > 0) == (windows == "all")
    assert windows == "timing" or (record.last_loss is not None and math.isnan(record.last_loss))


INFERENCE = """
import torch, time
model = torch.nn.Linear(1, 1, bias=False).requires_grad_(False)
model.weight.fill_(-1.0)
for number in range(1000):
    model(torch.full((4, 1), float(number)))
    time.sleep(0.003)
"""


def test_outputs_of_inference_are_the_first_without_a_gap(tmp_path: Path) -> None:
    source = INFERENCE.replace("for number", "model.eval()\nfor number")
    record, _ = run(tmp_path, "run", source, replace(CUT, step="forward"))
    assert record.outputs == [float(number) for number in range(SETTLE)]  # each forward begins a step


@pytest.mark.sessions
def test_outputs_that_may_not_be_the_first_are_not_kept(tmp_path: Path) -> None:
    # Nothing tells of the model before it is called, so it is found some tenths of a second later.
    record, _ = run(tmp_path, "run", INFERENCE, replace(CUT, step="forward"))
    assert record.outputs == []


def test_a_value_that_a_library_reads_for_itself_is_told_from_one_that_the_script_reads(tmp_path: Path) -> None:
    source = """
    import torch
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(400):
        out = model(torch.randn(8, 4))
        loss = -torch.distributions.Normal(out, 1.0).log_prob(torch.zeros(8, 2)).mean()  # checks what it is given
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = loss.item()
        text = f"{loss:.3f}"
    """
    record, _ = run(tmp_path, "run", source, CUT)
    reads = {
        (each.kind, str(each.details.get("inside", "")).rpartition(".")[0])
        for each in record.call_sites
        if each.kind in ("Tensor.item", "Tensor.print") and each.calls_per_step
    }
    assert reads == {("Tensor.item", "torch.distributions"), ("Tensor.item", ""), ("Tensor.print", "")}


@pytest.mark.sessions
def test_what_making_a_batch_reads_of_the_cpus_tensors_is_not_looked_at(tmp_path: Path) -> None:
    source = """
    import torch
    from torch.utils.data import DataLoader, TensorDataset
    def collate(rows):
        return torch.tensor([sum(number.item() for number in row) for row, in rows])[:, None]
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.rand(4000, 16)), batch_size=8, collate_fn=collate)
    for x in loader:
        loss = model(x).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = loss.item()
        rows = list(range(x.argmax()))
    """
    record, _ = run(tmp_path, "run", source, CUT)
    lines = dedent(source).splitlines()
    reads = {lines[each.site.line - 1].strip() for each in record.call_sites if each.kind == "Tensor.item"}
    assert reads >= {"total = loss.item()", "rows = list(range(x.argmax()))"}
    assert not any("number.item()" in line for line in reads)
    (loader,) = record.loaders
    assert loader.collate_calls is not None and loader.collate_calls >= 16


@pytest.mark.sessions
def test_a_call_that_makes_tensors_of_several_types_is_known_for_it(tmp_path: Path) -> None:
    source = """
    import numpy, torch
    rows, labels = numpy.random.rand(400, 4), numpy.arange(400) % 2
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for i in range(400):
        y, x = (torch.from_numpy(each[i : i + 1]) for each in (labels, rows))
        x = x + torch.from_numpy(rows[i : i + 1])
        loss = torch.nn.functional.cross_entropy(model(x.float()), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    """
    record, _ = run(tmp_path, "run", source, CUT)
    made = {each.site.line: each.details.get("others", False) for each in record.call_sites if each.kind == "float64"}
    assert made == {7: True, 8: False}


@pytest.mark.sessions
def test_a_fit_that_is_one_step_of_many_evaluations_is_measured_by_evaluation(tmp_path: Path) -> None:
    source = """
    import torch
    x = torch.linspace(-3, 3, 256).unsqueeze(1)
    model = torch.nn.Sequential(torch.nn.Linear(1, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=100000, tolerance_change=0, tolerance_grad=0)
    def closure():
        optimizer.zero_grad()
        loss = (model(x) - torch.sin(3 * x)).square().mean()
        loss.backward()
        return loss
    optimizer.step(closure)
    print("the end")
    """
    record, output = run(tmp_path, "run", source, QUICK)
    assert record.complete and record.step_kind == "optimizer" and "the end" not in output
    (backward,) = (each for each in record.call_sites if each.kind == "backward")
    assert backward.calls_per_step == 1.0
    assert [each.cls for each in record.optimizers if each.steps] == ["LBFGS"]


@pytest.mark.sessions
def test_steps_of_lbfgs_that_become_longer_stay_the_steps(tmp_path: Path) -> None:
    source = """
    import torch
    x = torch.linspace(-3, 3, 64).unsqueeze(1)
    model = torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2, tolerance_change=0, tolerance_grad=0)
    def closure():
        optimizer.zero_grad()
        loss = (model(x) - torch.sin(3 * x)).square().mean()
        loss.backward()
        return loss
    for _ in range(80):
        optimizer.step(closure)
        optimizer.param_groups[0].update(max_iter=60, max_eval=100)
    """
    record, _ = run(tmp_path, "run", source, CUT)
    (backward,) = (each for each in record.call_sites if each.kind == "backward")
    assert record.complete and backward.calls_per_step > 50


@pytest.mark.sessions
def test_a_default_device_is_that_of_what_the_script_makes(tmp_path: Path) -> None:
    source = """
    import torch
    with torch.device("meta"):
        print(torch.tensor([1.0]).device, torch.as_tensor([1.0]).device, torch.zeros(1).device)
    torch.set_default_device("meta")
    print(torch.tensor([1.0]).device)
    torch.set_default_device("cpu")
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(400):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    """
    _, output = run(tmp_path, "run", source, CUT)
    assert output[:2] == ["meta meta meta", "meta"]


NUMBERS = """
import torch

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
table = torch.rand(20, 40)
for step in range(2000):
    total = 0.0
    for i in range(20):
        for j in range(40):
            total += table[i, j].item()
    optimizer.zero_grad()
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.sessions
def test_a_loop_that_reads_thousands_of_numbers_is_not_recorded_call_by_call(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(NUMBERS.lstrip("\n"))
    run = measure(Command(str(script), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK)
    (read,) = [each for each in run.record.call_sites if each.kind == "Tensor.item"]
    assert read.site.line == 10 and read.calls == 2000  # the first of a training, whatever comes later
    (taken,) = [each for each in run.record.call_sites if each.kind == "Tensor.index"]
    assert taken.site.line == 10 and taken.calls >= 800
    assert run.detail is not None
    names = [run.detail.name(int(code)) for code in run.detail.python.name]
    assert sum("item of Tensor" in each for each in names) >= 800
    assert not any("harness/sites.py" in each and each.endswith(": _source") for each in names)
