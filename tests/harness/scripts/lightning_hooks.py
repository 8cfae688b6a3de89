"""Lightning asks the module for its loader, with the constructor of DataLoader wrapped meanwhile."""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 10))

    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.randn(3200, 128), torch.randint(0, 10, (3200,))), batch_size=32)

    def training_step(self, batch, index):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    L.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False).fit(Classifier())
