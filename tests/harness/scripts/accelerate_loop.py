"""Accelerate, imported before torch: prepared model, optimizer, loader, schedule; accumulation by its context."""

import accelerate
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(torch.randn(25600, 128), torch.randint(0, 10, (25600,))), batch_size=16, shuffle=True)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 50)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    model.train()
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    accelerator.print("loss", loss.item())


if __name__ == "__main__":
    main()
