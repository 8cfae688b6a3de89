"""Padding beyond the longest sequence of a batch: counted in the run, told where it costs, mended where it is said."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from advisor.rules.padding import Padding

from advisor.edit import Edit, Sources
from advisor.evidence import Evidence
from advisor.harness import layout
from advisor.harness.layout import Model, Site
from advisor.harness.model_records import ModelRecords
from advisor.harness.tokens import is_filled_in, padding, token_ids
from advisor.launch import Command, measure
from advisor.rule import Advice, Argument, Finding
from advisor.shared.fewer_columns import columns_spared
from tests.conftest import QUICK

SCRIPT = """
import argparse
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--padding", default="max_length")
args = parser.parse_args()


class Tokenizer:
    def __call__(self, texts, padding, max_length, return_tensors):
        rows = [[3 + len(word) for word in text.split()] for text in texts]
        width = max_length if padding == "max_length" else max(map(len, rows))
        return torch.tensor([row + [0] * (width - len(row)) for row in rows])


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.out = nn.Embedding(99, 64), nn.Linear(64, 64)

    def forward(self, ids, mask):
        x = self.words(ids)
        for _ in range(6):
            x = torch.tanh(self.out(x))
        return x[mask].mean()


model, tok = Tagger(), Tokenizer()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(200):
    texts = ["x" * (8 + step % 7) + " bc def gh" * (10 + (step + row) % 30) for row in range(16)]
    ids = tok(texts, padding=PADDING, max_length=512, return_tensors="pt")
    loss = model(ids, ids > 0)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def ids_of(*lengths: int, width: int = 64, left: bool = False) -> torch.Tensor:
    rows = torch.zeros(len(lengths), width, dtype=torch.int64)
    for row, length in zip(rows, lengths, strict=True):
        row[:length] = torch.arange(5, 5 + length)
    return rows.flip(1) if left else rows


@pytest.mark.parametrize("left", [False, True])
def test_columns_that_are_padding_in_all_rows_are_counted(left: bool) -> None:
    ids = ids_of(10, 48, 30, left=left)
    mask = (ids > 0).long()
    for given in ((ids,), (ids, mask), (mask, torch.zeros_like(ids), ids), (ids[1:2], mask[1:2]), (ids.int(),)):
        assert float(padding(torch, token_ids(torch, list(given)))) == 0.25


@pytest.mark.parametrize(
    "given",
    [
        (ids_of(10, 64),),
        (torch.ones(4, 64, dtype=torch.int64),),  # a benchmark's
        (torch.ones(4, 64, dtype=torch.int64), ids_of(64, 20)),
        (ids_of(20, 10), torch.ones(2, 64, dtype=torch.int64)),  # a mask of ones: placeholders, no padding
        (ids_of(64, 60), torch.where(torch.arange(64) < 40, -100, ids_of(64, 60))),  # labels, of the answer only
        ((ids_of(64, 20, left=True) > 0).long(), torch.randn(2, 64, 8)),
    ],
)
def test_what_one_row_fills_is_no_padding(given: tuple[torch.Tensor, ...]) -> None:
    assert float(padding(torch, token_ids(torch, list(given)))) == 0.0


@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:The PyTorch API of nested")  # torch's own, once each
def test_tensors_of_other_layouts_are_not_asked() -> None:
    ids = torch.ones(4, 64, dtype=torch.int64)
    nested = torch.nested.nested_tensor([torch.ones(3), torch.ones(5)])
    for given in (ids.to_sparse(), ids.to_sparse_csr(), nested):
        assert token_ids(torch, [given]) == []


@pytest.mark.parametrize("given", [(torch.randn(4, 64),), (ids_of(1, 2, width=8),), (torch.zeros(0, 64).long(),), ()])
def test_what_is_no_row_of_ids_is_not_asked(given: tuple[torch.Tensor, ...]) -> None:
    assert token_ids(torch, list(given)) == []


def profiled(folder: Path, written: str, *options: str) -> Evidence:
    script = folder / "tag.py"
    script.write_text(SCRIPT.replace("PADDING", written))
    command = Command(str(script), options, module=False, python=sys.executable, environment={}, cwd=str(folder))
    return Evidence.from_run(measure(command, folder / "run", QUICK, timeout=120.0))


def found(evidence: Evidence) -> list[Finding]:
    return list(Padding().check(evidence))


@pytest.mark.slow
@pytest.mark.sessions
def test_a_run_that_pads_to_a_fixed_length_is_told_and_gains(tmp_path: Path) -> None:
    evidence = profiled(tmp_path, "args.padding")
    assert evidence.record is not None
    model = evidence.record.models[0]
    assert model.width == 512 and model.padded is not None and 0.7 < model.padded < 0.85
    (finding,) = found(evidence)
    script = tmp_path / "tag.py"
    assert finding.site == Site(str(script), 34)
    assert finding.gain.likely > 1.5
    # The model is the script's own: it may count on the width.
    fix = Padding().fix(finding, Sources())
    assert isinstance(fix, Advice) and "author" in fix.why
    finding.parameters["library"] = True
    fix = Padding().fix(finding, Sources())
    assert isinstance(fix, Argument) and fix.options == {"--padding": "longest"}
    script.write_text(SCRIPT.replace("PADDING", '"max_length"'))
    fix = Padding().fix(finding, Sources())
    assert isinstance(fix, Edit)
    (after,) = fix.after.values()
    assert 'padding="longest"' in after.text
    (tmp_path / "patched.py").write_text(after.text.replace("range(200)", "range(5)"))
    subprocess.run([sys.executable, str(tmp_path / "patched.py")], check=True, timeout=120)


@pytest.mark.slow
@pytest.mark.sessions
def test_batches_that_are_as_long_as_their_longest_are_left_alone(tmp_path: Path) -> None:
    evidence = profiled(tmp_path, "args.padding", "--padding", "longest")
    assert evidence.record is not None and evidence.record.models[0].padded == 0.0
    assert not found(evidence)


def test_what_pads_by_hand_is_the_place(scene: Any, tmp_path: Path) -> None:
    script = tmp_path / "classify.py"
    script.write_text(
        "def collate(rows):\n    return torch.tensor([row + [0] * (64 - len(row)) for row in rows])\n"
        "def train(loader):\n    for ids in loader:\n        model(ids).sum().backward()\n"
    )
    made = scene(50.0)
    made.record.script = str(script)
    made.record.models[0].layers = {"Embedding": 1}
    made.record.models[0].width, made.record.models[0].padded = 64, 0.9
    made.each("user_annotation", "advisor.forward", 0.0, 49.5)
    made.each("cpu_op", "aten::bmm", 1.0, 49.0)
    (finding,) = found(made.evidence(tmp_path))
    assert finding.site == Site(str(script), 2)
    fix = Padding().fix(finding, Sources())
    assert isinstance(fix, Advice) and "classify.py:2" in fix.why


def test_one_model_of_several_is_left_alone(scene: Any, tmp_path: Path) -> None:
    made = scene(50.0)
    made.record.models[0].layers = {"Embedding": 1}
    made.record.models[0].width, made.record.models[0].padded = 64, 0.9
    made.each("user_annotation", "advisor.forward", 0.0, 49.5)
    made.each("cpu_op", "aten::bmm", 1.0, 49.0)
    assert found(made.evidence(tmp_path))
    made.record.models.append(Model("UNet", calls=40))
    assert not found(made.evidence(tmp_path))


def test_a_text_that_is_generated_is_not_padded(scene: Any, tmp_path: Path) -> None:
    made = scene(50.0)
    (model,) = made.record.models
    model.layers, model.width, model.padded = {"Embedding": 1}, 64, 0.5  # the same word again and again
    made.each("user_annotation", "advisor.forward", 0.0, 49.5)
    made.each("cpu_op", "aten::bmm", 1.0, 49.0)
    assert found(made.evidence(tmp_path))
    model.grown = 36
    assert not found(made.evidence(tmp_path))


def test_sequences_that_are_packed_have_no_padding_any_more(scene: Any, tmp_path: Path) -> None:
    made = scene(50.0)
    made.record.models[0].layers = {"Embedding": 1}
    made.record.models[0].width, made.record.models[0].padded = 64, 0.9
    made.each("user_annotation", "advisor.forward", 0.0, 49.5)
    made.each("cpu_op", "aten::bmm", 1.0, 49.0)
    made.each("cpu_op", "aten::_pack_padded_sequence", 0.1, 0.2)
    assert not found(made.evidence(tmp_path))


@pytest.mark.parametrize("calls", [0, 4000])
def test_what_a_dataset_calls_is_none_of_the_steps_operators(calls: int, scene: Any, tmp_path: Path) -> None:
    """Thousands of small ones for each batch: what calling them takes does not depend on the columns."""
    made = scene(50.0)
    made.loader(wait_ms=5.0, fetch_ms=5.0, cpu_ms=5.0, num_workers=0)
    for number in range(calls):
        made.operator("aten::select", 0.001 * number, 0.001 * number + 0.0005)
    made.each("user_annotation", layout.FORWARD_RANGE, 8.0, 48.0)
    made.operator("aten::mm", 10.0, 45.0)
    assert columns_spared(made.evidence(tmp_path), 0.5, "").likely > 1.4


def test_padding_that_costs_nothing_is_left_alone(scene: Any, tmp_path: Path) -> None:
    made = scene(50.0)
    made.record.models[0].layers = {"Embedding": 1}
    made.record.models[0].width, made.record.models[0].padded = 64, 0.9
    made.each("user_annotation", "advisor.forward", 0.5, 2.0)
    made.each("cpu_op", "aten::bmm", 1.0, 2.0)
    made.each("cpu_op", "aten::sleep", 2.0, 49.0)
    assert not found(made.evidence(tmp_path))


def test_of_a_question_and_a_document_the_document_counts() -> None:
    question, document = torch.zeros(4, 20, dtype=torch.int64), torch.randint(1, 50, (4, 300))
    question[:, :6], document[:, 270:] = 7, 0
    for given in ([question, document], [document, question]):
        (ids,) = token_ids(torch, given)
        assert ids is document and float(padding(torch, [ids])) == pytest.approx(0.1)


def test_an_answer_that_is_written_into_is_no_padding() -> None:
    mask = 99
    before = torch.tensor([[5, 6, 7, mask, mask, mask], [8, 9, 1, mask, mask, mask]])
    more = before.clone()
    more[0, 3], more[1, 4] = 4, 2
    assert bool(is_filled_in(torch, before, more))
    assert not bool(is_filled_in(torch, None, before)) and not bool(is_filled_in(torch, before, before))
    assert not bool(is_filled_in(torch, before, more[:, :5])) and not bool(is_filled_in(torch, more, before))
    others = torch.tensor([[5, 1, 7, 2, mask, mask], [8, 3, 1, mask, mask, mask]])  # texts of another batch
    assert not bool(is_filled_in(torch, before, others))


@pytest.mark.parametrize("written", [True, False])
def test_a_model_that_writes_an_answer_is_given_no_padding(written: bool) -> None:
    records, model = ModelRecords(torch), torch.nn.Embedding(100, 4)
    ids = torch.full((3, 32), 99)
    ids[:, :8] = torch.randint(50, (3, 8))
    records.observe(model, [], True)
    for place in range(8, 20):
        if not written:
            ids = torch.cat([torch.randint(50, (3, place)), torch.full((3, 32 - place), 99)], 1)
        records.ask_padding(model, [ids])
        ids[:, place] = place
    records.read_padding()
    (record,) = records.called()
    assert (record.padded is None) is written
