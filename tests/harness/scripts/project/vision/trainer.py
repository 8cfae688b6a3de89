import logging

import torch
from torch import nn

log = logging.getLogger(__name__)


class Trainer:
    def __init__(self, model, train_loader, test_loader, lr=0.01):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = model.to(self.device)
        self.train_loader = train_loader
        self.test_loader = test_loader
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=lr)

    def step(self, batch):
        images = batch["image"].to(self.device)
        labels = batch["label"].to(self.device)
        self.optimizer.zero_grad()
        loss = self.criterion(self.model(images), labels)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        right = total = 0
        for batch in self.test_loader:
            scores = self.model(batch["image"].to(self.device))
            right += (scores.argmax(1).cpu() == batch["label"]).sum().item()
            total += len(scores)
        self.model.train()
        return right / total

    def fit(self, epochs):
        for epoch in range(epochs):
            for batch in self.train_loader:
                loss = self.step(batch)
            log.info("epoch %d", epoch)
            print(f"epoch {epoch}: loss {loss:.3f}, accuracy {self.evaluate():.2f}")
