"""`fixtures/cifar_resnet.py` as people make it faster by hand, one stage after another; each has the earlier ones too.

python by_hand.py --stage 5 --image-size 224 --images 10000

0  the script as it is
1  loader workers
2  pinned memory, copies that do not block
3  a larger batch
4  images travel as uint8, and become numbers on the device
5  autocast, with a still larger batch
6  torch.compile
"""

import argparse
import os
import time
from contextlib import nullcontext

import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
import torchvision.models as models
import torchvision.transforms as T
from PIL import Image
from torch.utils.data import DataLoader, Dataset

WORKERS, PINNED, LARGER_BATCH, UINT8, AUTOCAST, COMPILE = range(1, 7)


class GeneratedCIFAR10(Dataset):
    """Images of 32x32 pixels in ten classes: noise around one colour per class."""

    def __init__(self, length, transform=None, seed=0):
        rng = np.random.default_rng(seed)
        self.targets = rng.integers(0, 10, size=length)
        colours = rng.integers(0, 256, size=(10, 1, 1, 3))
        noise = rng.integers(-60, 61, size=(length, 32, 32, 3))
        self.data = np.clip(colours[self.targets] + noise, 0, 255).astype(np.uint8)
        self.transform = transform

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        image, target = Image.fromarray(self.data[index]), int(self.targets[index])
        if self.transform is not None:
            image = self.transform(image)
        return image, target


def main():
    parser = argparse.ArgumentParser(description="Train ResNet-18 on generated images")
    parser.add_argument("--stage", type=int, default=0, choices=range(7))
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--images", type=int, default=20000, help="images in an epoch")
    parser.add_argument("--image-size", type=int, default=32, help="side to which they are resized")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--larger-batch", type=int, default=512, help="from stage 3")
    parser.add_argument("--autocast-batch", type=int, default=1024, help="from stage 5")
    parser.add_argument("--workers", type=int, default=min(16, len(os.sched_getaffinity(0))), help="from stage 1")
    parser.add_argument("--lr", type=float, default=0.001)
    args = parser.parse_args()

    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")

    if args.stage >= UINT8:
        transform = T.Compose([T.Resize(args.image_size), T.PILToTensor()])
    else:
        transform = T.Compose(
            [
                T.Resize(args.image_size),
                T.ToTensor(),
                T.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
            ]
        )
    train_set = GeneratedCIFAR10(args.images, transform=transform)

    batch_size = args.batch_size
    if args.stage >= LARGER_BATCH:
        batch_size = args.larger_batch
    if args.stage >= AUTOCAST:
        batch_size = args.autocast_batch
    loading = {}
    if args.stage >= WORKERS:
        loading.update(num_workers=args.workers, persistent_workers=True)
    if args.stage >= PINNED:
        loading.update(pin_memory=device.type == "cuda")
    if args.stage >= COMPILE:
        loading.update(drop_last=True)  # one shape to compile for
    train_loader = DataLoader(train_set, batch_size=batch_size, shuffle=True, **loading)
    non_blocking = args.stage >= PINNED

    model = models.resnet18(num_classes=10).to(device)
    if args.stage >= COMPILE:
        model = torch.compile(model)
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)

    # A V100 has no bfloat16; float16 needs its gradients scaled.
    half = device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0)
    dtype = torch.float16 if half else torch.bfloat16
    autocast = torch.autocast(device.type, dtype=dtype) if args.stage >= AUTOCAST else nullcontext()
    scaler = torch.amp.GradScaler(device.type) if args.stage >= AUTOCAST and half else None

    model.train()
    for epoch in range(args.epochs):
        start = time.time()
        running_loss = 0.0
        for step, data in enumerate(train_loader):
            inputs = data[0].to(device, non_blocking=non_blocking)
            labels = data[1].to(device, non_blocking=non_blocking)
            if args.stage >= UINT8:
                inputs = inputs.float().div_(127.5).sub_(1.0)  # T.Normalize would read a value, and wait
            with autocast:
                outputs = model(inputs)
                loss = criterion(outputs, labels)
            optimizer.zero_grad()
            if scaler is not None:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            else:
                loss.backward()
                optimizer.step()
            running_loss += loss.item()
            if step % 50 == 49:
                print(f"epoch {epoch} step {step + 1}: loss {running_loss / 50:.3f}")
                running_loss = 0.0
        print(f"epoch {epoch} took {time.time() - start:.1f} s")


if __name__ == "__main__":
    main()
