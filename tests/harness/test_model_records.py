"""What is remembered of a model is found out without a fault, whatever kind of module it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from advisor.harness.model_records import ModelRecords


class Scores(nn.Module):
    def forward(self, ids: torch.Tensor, logits_to_keep: int = 0) -> torch.Tensor:
        return ids[:, -logits_to_keep:]


def test_parameters_of_a_forward_are_known() -> None:
    record = ModelRecords(torch).describe(Scores())
    assert (record.cls, record.takes) == ("Scores", ["ids", "logits_to_keep"])


def test_module_whose_forward_has_no_signature_is_described() -> None:
    """TorchScript's forward is an object that answers nothing that is asked of it by name."""
    record = ModelRecords(torch).describe(torch.jit.script(nn.Linear(2, 3)))
    assert (record.takes, record.parameters) == ([], 9)


@pytest.mark.parametrize(
    ("change", "expected"),
    [(lambda _: None, True), (lambda net: setattr(net.config, "attn_logit_softcapping", 50.0), False)],
)
def test_whether_a_model_of_transformers_may_fuse_its_attention(change: Callable[[Any], None], expected: bool) -> None:
    from transformers import BertConfig, BertModel

    net = BertModel(BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2))
    change(net)
    assert ModelRecords(torch).describe(nn.ModuleList([net])).fuses_attention is expected
    assert ModelRecords(torch).describe(Scores()).fuses_attention is None


def test_a_model_of_transformers_that_says_it_cannot() -> None:
    from transformers import Gemma2Config, Gemma2Model

    sizes = {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 4,
    }
    net = Gemma2Model(Gemma2Config(vocab_size=9, num_hidden_layers=1, **sizes))
    assert ModelRecords(torch).describe(net).fuses_attention is False


class MCDropout(nn.Dropout):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, self.p, True)


class Quiet(nn.Dropout):
    pass


@pytest.mark.parametrize(
    ("layer", "switched"),
    [
        (nn.BatchNorm1d(3), True),
        (nn.BatchNorm1d(3, affine=False), True),
        (nn.BatchNorm1d(3, track_running_stats=False), False),
        (nn.LazyBatchNorm1d(), True),
        (nn.Dropout(0.1), True),
        (nn.Dropout2d(0.1), True),
        (nn.Dropout(0.0), False),
        (Quiet(0.1), True),
        (MCDropout(0.1), False),
        (nn.LayerNorm(3), True),
    ],
)
def test_what_evaluation_mode_does_not_change(layer: nn.Module, switched: bool) -> None:
    record = ModelRecords(torch).describe(nn.Sequential(layer, nn.Linear(3, 3)))
    name = type(layer).__name__
    assert record.layers[name] == 1 and record.unswitched == ({} if switched else {name: 1})
