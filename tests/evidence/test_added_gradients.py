"""Whether a loss compares the samples of a batch: by the text of the files of a training."""

from __future__ import annotations

import pytest

from advisor.evidence.python_loops.added_gradients import compares_samples

COMPARES = (
    "loss = info_nce(a, b)",
    "criterion = nn.TripletMarginLoss()",
    "in_batch_negatives = scores.flatten()",
    "logits = net(a) @ net(b).T\nloss = F.cross_entropy(logits, torch.arange(len(a)))",
    "labels = torch.arange(x.size(0), device=x.device)\nloss = criterion(x @ y.t(), labels)",
    "targets = torch.arange(z.shape[0])\nloss = criterion(torch.cdist(z, z), targets)",
)
DOES_NOT = (
    "args = TrainingArguments(per_device_train_batch_size=2, gradient_accumulation_steps=16)",
    "def on_train_batch_end(self): main_batch = 3",
    "x = np.arange(len(losses))\nq = q.transpose(1, 2)",
    "rows = torch.arange(x.size(0))\nx = x[rows, ends]\ny = y.T",
    "loss = F.cross_entropy(logits, labels)",
)


@pytest.mark.parametrize("text", COMPARES)
def test_losses_that_compare_samples(text: str) -> None:
    assert compares_samples(text)


@pytest.mark.parametrize("text", DOES_NOT)
def test_losses_that_do_not(text: str) -> None:
    assert not compares_samples(text)
