"""Datasets in memory that are indexed sample by sample: told where one index gives the same, and then it does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from advisor.rules.batched_indexing import BatchedIndexing
from torch.utils.data import default_collate, default_convert

from advisor.edit import Edit, Sources
from advisor.evidence import Evidence
from advisor.evidence.loading import bulk
from advisor.harness.layout import Loader, Site
from advisor.launch import Command, measure
from advisor.rule import Finding
from tests.conftest import QUICK

COLLATE = "torch.utils.data._utils.collate.default_collate"
HEAD = "import numpy as np\nimport torch\n"
CLASS = """
class Table(torch.utils.data.Dataset):
    '''Rows.'''

    def __init__(self):
        self.x, self.y = torch.randn(64, 5), torch.arange(64)
        self.pixels = np.random.default_rng(0).integers(0, 255, (64, 4, 4)).astype(np.uint8)
        self.target = np.linspace(0.0, 1.0, 64)
        self.words = [[1, 2]] * 64
        self.keep = 1.0

    def __len__(self):
        return 64

    def __getitem__(self, i):
"""


def described(folder: Path, body: str) -> tuple[Any, Loader]:
    """A dataset with such a ``__getitem__``, and what the harness would record of it."""
    text = HEAD + CLASS + "".join(f"        {line}\n" for line in body.splitlines())
    file = folder / "table.py"
    file.write_text(text)
    names: dict[str, Any] = {}
    exec(compile(text, str(file), "exec"), names)
    rows = ["pixels", "target", "x", "y"]
    line = text.splitlines().index("class Table(torch.utils.data.Dataset):") + 1
    return names["Table"](), Loader(source="table.Table", source_site=Site(str(file), line), rows=rows, collate=COLLATE)


@pytest.mark.parametrize(
    "body",
    [
        "return self.x[i], self.y[i]",
        "'''One row.'''\nreturn self.x[i]",
        "return {'x': self.x[i], 'target': self.target[i]}",
        "x = self.x[i]\ny = self.y[i]\nreturn x, y",
        "x, y = self.x[i], self.y[i]\nsample = {'x': x, 'y': y.float()}\nreturn sample",
        "image = torch.from_numpy(self.pixels[i]).float() / 255.0\nreturn image, torch.tensor(self.target[i])",
        "return [self.pixels[i].astype(np.float32) * 2 - 1, torch.as_tensor(self.y[i], dtype=torch.float32)]",
        "return self.x[i].clone(), self.target[i]",
    ],
)
def test_what_takes_lists_gives_the_same_batch(body: str, tmp_path: Path) -> None:
    dataset, loader = described(tmp_path, body)
    assert bulk.indexed_at_once(loader)
    indices = [5, 3, 3, 60]
    one_by_one, at_once = default_collate([dataset[i] for i in indices]), default_convert(dataset[indices])
    assert type(one_by_one) is type(at_once)
    torch.testing.assert_close(at_once, one_by_one, rtol=0, atol=0)


@pytest.mark.parametrize(
    "body",
    [
        "return self.x[i] + torch.randn(5), self.y[i]",
        "return self.x[i].mean(), self.y[i]",
        "return self.x[i].reshape(-1), self.y[i]",
        "return self.x[i], int(self.y[i])",
        "return self.words[i], self.y[i]",
        "return self.x[i], i",
        "return self.x[i % 8], self.y[i]",
        "return self.x[i][0], self.y[i]",
        "x = self.x[i]\nx[0] = 0.0\nreturn x",
        "x = self.x[i]\nif self.keep:\n    x = x * 2\nreturn x",
        "i = 3\nreturn self.x[i]",
        "return self.x[i] * self.x[i], self.y[i]",
        "return self.x[i] * self.keep",
        "return self.x[i].to(self.y.device)",
        "return ()",
        "print(i)\nreturn self.x[i]",
    ],
)
def test_what_does_more_for_a_sample_is_left_alone(body: str, tmp_path: Path) -> None:
    assert not bulk.indexed_at_once(described(tmp_path, body)[1])


def test_a_collate_function_or_rows_elsewhere_are_left_alone(tmp_path: Path) -> None:
    _, loader = described(tmp_path, "return self.x[i]")
    loader.collate = "__main__.pad"
    assert not bulk.indexed_at_once(loader)
    loader.collate, loader.rows = COLLATE, ["y"]
    assert not bulk.indexed_at_once(loader)
    assert not bulk.indexed_at_once(Loader(source=bulk.TENSOR_DATASET, collate=COLLATE)), "tensors on a device"


def run(scene: Any, wait_ms: float, **facts: Any) -> Any:
    made = scene(10.0)
    given = {"collate": COLLATE, "source": bulk.TENSOR_DATASET, "rows": ["tensors"], **facts}
    made.loader(wait_ms, wait_ms, wait_ms, **given)
    made.operator("aten::mm", wait_ms, 10.0)
    return made


def found(evidence: Evidence) -> Finding | None:
    findings = list(BatchedIndexing().check(evidence))
    return findings[0] if findings else None


def test_the_gain_is_the_wait_for_rows(scene: Any, tmp_path: Path) -> None:
    finding = found(run(scene, 6.0).evidence(tmp_path))
    assert finding is not None
    # 0.1 ms for the call, 0.4 for the rows, 0.08 to copy 393 kB.
    assert finding.gain.likely == pytest.approx(10.0 / (4.0 + 0.1 + 0.4 + 0.08), rel=0.02)
    assert "32 times" in finding.summary and "60%" in finding.summary


@pytest.mark.parametrize(
    ("wait_ms", "facts"),
    [
        pytest.param(0.15, {}, id="not-waited-for"),
        pytest.param(0.6, {}, id="little"),
        pytest.param(6.0, {"cls": "DataLoaderShard"}, id="made-by-accelerate"),
        pytest.param(6.0, {"rows": []}, id="elsewhere"),
    ],
)
def test_left_alone(wait_ms: float, facts: dict[str, Any], scene: Any, tmp_path: Path) -> None:
    assert found(run(scene, wait_ms, **facts).evidence(tmp_path)) is None


SCRIPT = """
import torch
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.manual_seed(0)
x = torch.randn(60000, 16)
part, _ = random_split(TensorDataset(x, x.sum(1)), [50000, 10000])
model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(EPOCHS):
    for rows, target in DataLoader(part, batch_size=512, shuffle=True, drop_last=True):
        optimizer.zero_grad()
        loss = (model(rows).squeeze(1) - target).square().mean()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
"""


@pytest.mark.sessions  # what it gains is a matter of time: beside another test 1.13 was predicted once
def test_a_part_of_a_tensor_dataset_trains_the_same_in_whole_batches(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("EPOCHS", "1000"))
    command = Command(str(script), (), module=False, python=sys.executable, environment={}, cwd=str(tmp_path))
    evidence = Evidence.from_run(measure(command, tmp_path / "run", QUICK, timeout=120.0))
    (facts,) = evidence.loaders
    assert facts.record is not None
    assert (facts.record.source, facts.record.rows) == (bulk.TENSOR_DATASET, ["tensors"])
    finding = found(evidence)
    assert finding is not None and finding.gain.likely > 1.5
    edit = BatchedIndexing().fix(finding, Sources())
    assert isinstance(edit, Edit)
    (after,) = edit.after.values()
    said = []
    for text in (script.read_text(), after.text):
        script.write_text(text.replace("range(1000)", "range(2)"))
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=120)
        said.append(done.stdout)
    assert said[0] == said[1] and said[0].count("\n") == 2
