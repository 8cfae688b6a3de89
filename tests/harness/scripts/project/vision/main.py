"""`python -m vision.main --epochs 10` from the project's folder; relative imports fail any other way."""

import argparse

from .data import make_loaders
from .model import SmallNet
from .trainer import Trainer


def main():
    parser = argparse.ArgumentParser(prog="vision")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()
    Trainer(SmallNet(), *make_loaders(args.batch_size)).fit(args.epochs)


if __name__ == "__main__":
    main()
