"""The entry point beside the package: `python project/train.py`."""

from vision.data import make_loaders
from vision.model import SmallNet
from vision.trainer import Trainer

if __name__ == "__main__":
    train_loader, test_loader = make_loaders()
    Trainer(SmallNet(), train_loader, test_loader).fit(epochs=10)
