"""Call sites read from a script's source: only those that a reader would be sure of."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.errors import AdvisorError
from advisor.source_sites import read_call_sites

TRAIN = """\
import torch
from torch.utils.data import DataLoader


def train(model, loader, optimizer, device):
    for step, (images, labels) in enumerate(loader):
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        total = loss.item()
        if step % 100 == 0:
            print(labels.sum().item())


model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(dataset, batch_size=32)
train(model, loader, optimizer, "cuda")
"""


def _found(tmp_path: Path, text: str) -> list[tuple[str, str]]:
    """(kind, the call as written) of every site: positions are checked by cutting the call out of the text."""
    file = tmp_path / "train.py"
    file.write_text(text, encoding="utf-8")
    found = []
    for each in read_call_sites(file):
        site = each.site
        assert site.file == str(file.resolve())
        line = text.splitlines()[site.line - 1].encode()
        assert site.line == site.end_line
        found.append((each.kind, line[site.column : site.end_column].decode()))
    return found


def test_calls_of_the_training_loop_are_found_where_they_are(tmp_path: Path) -> None:
    assert sorted(_found(tmp_path, TRAIN)) == sorted(
        [
            ("DataLoader", "DataLoader(dataset, batch_size=32)"),
            ("Optimizer", "torch.optim.SGD(model.parameters(), lr=0.1)"),
            ("Tensor.to", "images.to(device)"),
            ("Tensor.to", "labels.to(device)"),
            ("zero_grad", "optimizer.zero_grad()"),
            ("Module.call", "model(images)"),
            ("backward", "loss.backward()"),
            ("Optimizer.step", "optimizer.step()"),
            ("Tensor.item", "loss.item()"),
        ]
    )


def test_parts_of_a_batch_are_copied_too(tmp_path: Path) -> None:
    text = "for batch in loader:\n    x = batch['x'].to(device)\n    y = other[0].to(device)\n    f(x).backward()\n"
    assert [call for kind, call in _found(tmp_path, text) if kind == "Tensor.to"] == ["batch['x'].to(device)"]


def test_columns_count_bytes(tmp_path: Path) -> None:
    text = TRAIN.replace("total = loss.item()", 'größe = "é"; total = loss.item()')
    assert ("Tensor.item", "loss.item()") in _found(tmp_path, text)


def test_of_two_loaders_the_one_that_the_loop_names_is_taken(tmp_path: Path) -> None:
    two = TRAIN.replace("loader = DataLoader(dataset", "test_loader = DataLoader(other)\nloader = DataLoader(dataset")
    assert [call for kind, call in _found(tmp_path, two) if kind == "DataLoader"] == [
        "DataLoader(dataset, batch_size=32)"
    ]


def test_where_two_loaders_are_possible_there_is_none(tmp_path: Path) -> None:
    two = TRAIN.replace("loader = DataLoader(dataset", "a = DataLoader(other)\nb = DataLoader(dataset")
    assert [call for kind, call in _found(tmp_path, two) if kind == "DataLoader"] == []


def test_where_two_loops_train_no_call_is_taken(tmp_path: Path) -> None:
    again = TRAIN.split("model = torch")[0].split("\n\n\n")[1].replace("def train", "def tune")
    kinds = {kind for kind, _ in _found(tmp_path, TRAIN + "\n\n" + again)}
    assert kinds == {"DataLoader"}


def test_a_scheduler_is_no_optimizer(tmp_path: Path) -> None:
    text = TRAIN.replace("        total =", "        scheduler.step()\n        total =")
    assert [call for kind, call in _found(tmp_path, text) if kind == "Optimizer.step"] == ["optimizer.step()"]


def test_a_file_that_is_not_python_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print 'old'")
    with pytest.raises(AdvisorError, match="not Python"):
        read_call_sites(tmp_path / "train.py")
