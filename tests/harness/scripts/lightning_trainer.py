"""Lightning: its optimizer step is a closure, it validates before training and writes checkpoints of its own."""

import os

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 10))

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, index):
        x, y = batch
        self.log("val_loss", nn.functional.cross_entropy(self.net(x), y))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def loader(length, **options):
    return DataLoader(TensorDataset(torch.randn(length, 128), torch.randint(0, 10, (length,))), batch_size=32, **options)


if __name__ == "__main__":
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        default_root_dir=os.path.dirname(os.path.abspath(__file__)),
        enable_progress_bar=False,
        log_every_n_steps=20,
    )
    trainer.fit(Classifier(), loader(3200, shuffle=True), loader(320))
