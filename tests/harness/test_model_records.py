"""What is remembered of a model is found out without a fault, whatever kind of module it is."""

from __future__ import annotations

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
