import torch
from torch.utils.data import DataLoader, Dataset


class Shapes(Dataset):
    def __init__(self, length, seed):
        generator = torch.Generator().manual_seed(seed)
        self.images = torch.rand(length, 3, 24, 24, generator=generator)
        self.labels = torch.randint(0, 4, (length,), generator=generator)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return {"image": self.images[index], "label": self.labels[index]}


def make_loaders(batch_size=16):
    return (
        DataLoader(Shapes(1600, seed=1), batch_size=batch_size, shuffle=True, drop_last=True),
        DataLoader(Shapes(64, seed=2), batch_size=batch_size),
    )
