"""Images travel to the GPU as float32 although they are bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.edit import Drafts
from advisor.edit.calls import DATALOADER_PARAMETERS, argument
from advisor.edit.loading.normalizing import (
    deliver_bytes,
    normalize_after,
    normalizing_behind,
    reads_only_copies,
    way_there,
)
from advisor.edit.locate import call_at
from advisor.edit.names import last_part
from advisor.evidence import Change
from advisor.fixes import edited
from advisor.rule import (
    Advice,
    Argument,
    Example,
    Finding,
    Gain,
    Rule,
    Safety,
    at,
    call_sites,
    file_list,
    site_list,
    sites,
)

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence
    from advisor.harness.layout import Loader, TensorInfo

# CPU seconds that ToTensor and Normalize take beyond PILToTensor, per image and per value (measured with torchvision
# 0.29 on images of 32x32 to 224x224: 45, 71, 187 us).
_IMAGE_S, _VALUE_S = 42e-6, 0.96e-9
_LAUNCHES_S = 30e-6  # host time of the four small kernels that convert and normalize instead
_BYTES = 4  # float32 over uint8

# Copies that cast: bytes cast before they travel are bytes no longer, and float32 is what comes of normalizing them.
CASTS = (
    "x.to(device, torch.bfloat16)",
    "x.to(device, dtype=torch.bfloat16, non_blocking=True)",
    "x.to(dtype=torch.float16, device=device)",
    "x.to(torch.float64).cuda()",
    "x.to(*where)",
    "x.to(**how)",
)


def _copied(copy: str) -> str:
    """A script for the examples, which copies its images by `copy`."""
    return f"""
import torch
from torchvision import transforms as T, datasets
t = T.Compose([T.ToTensor(), T.Normalize(0.5, 0.5)])
loader = DataLoader(datasets.MNIST("a", transform=t))  # <- loaders
for x, y in loader:
    x = {copy}  # <- copies={copy}
"""


def _normalized(copy: str, constant: str) -> str:
    """The same script after the fix."""
    return f"""
import torch
from torchvision import transforms as T, datasets
t = T.Compose([T.PILToTensor()])
loader = DataLoader(datasets.MNIST("a", transform=t))
mean = {constant}
std = {constant}
for x, y in loader:
    x = {copy}
    x = x.float().div_(255).sub_(mean).div_(std)
"""


class CopyNarrowDtype(Rule):
    """Images are converted to float32 on the CPU and travel to the GPU at four times their size.

    ``ToTensor`` and ``Normalize`` turn each byte of an image into a float32 before the batch is collated, pinned and
    copied. Sent as ``uint8``, a batch is a quarter of the size; converting and normalizing it on the GPU is a matter
    of microseconds, for the whole batch at once, and the CPU is spared both. The arithmetic is the same, up to how
    the GPU rounds a division.

    When not: the transforms need floats on the CPU (they come after ``ToTensor``); the same data set also feeds code
    that expects normalized images; the copy is small and hidden, and the loader is not what the step waits for.

    Source: torchvision, "Transforming and augmenting images: Performance considerations" (uint8 images); NVIDIA
    DALI's and FFCV's pipelines, which normalize on the device.
    """

    id = "copy-narrow-dtype"
    title = "Send images as bytes and normalize them on the GPU"
    safety = Safety.NUMERIC
    after = ("copy-pinned-async",)

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        if not evidence.device_is_gpu or evidence.record is None:
            return
        for facts in evidence.loaders:
            loader = facts.record
            images = _float_images(loader) if loader is not None else None
            size = evidence.copies.h2d_bytes
            if loader is None or images is None or not size:
                continue
            converts = "ToTensor" in loader.transforms
            saved = images.bytes * (1 - 1 / _BYTES)
            spared = images.shape[0] * (_IMAGE_S + _VALUE_S * _values(images)) if converts else 0.0
            change = Change(
                h2d_scale=max(1 / _BYTES, 1 - saved / size),
                fetch_s=max(0.0, facts.fetch_s - spared) if facts.fetch_s is not None else None,
                fetch_cpu_s=max(0.0, facts.fetch_cpu_s - spared) if facts.fetch_cpu_s is not None else None,
                loader=facts.index,
                remove_host_s=-_LAUNCHES_S,
            )
            gain = Gain.of(evidence.what_if(change))
            if not gain.worth_it:
                continue
            copies = tuple(
                each
                for each in call_sites(evidence, "Tensor.to", "Tensor.cuda")
                if each.details.get("to_device") == "cuda"
                and each.details.get("from_dtype") == "float32"
                and each.details.get("bytes") == images.bytes
            )
            yield Finding(
                rule=self.id,
                title=self.title,
                summary=f"Each step copies {images.bytes / 1e6:.1f} MB of float32 images "
                f"({'x'.join(map(str, images.shape))}); as bytes they are {images.bytes / _BYTES / 1e6:.1f} MB.",
                gain=gain,
                evidence={
                    "image_bytes": images.bytes,
                    "h2d_bytes": size,
                    "h2d_s": evidence.copies.h2d_s,
                    "conversion_cpu_s": spared,
                },
                site=facts.site,
                parameters={
                    "loaders": (loader.site,) if loader.site is not None else (),
                    "copies": sites(copies),
                    "converts": converts,
                    "files": (loader.dataset_file,) if loader.dataset_file else (),
                },
            )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        text = (
            f"Let the loader made at {at(finding.site)} deliver uint8 images (PILToTensor instead of ToTensor and "
            "Normalize), and convert and normalize them on the GPU: x.float().div_(255).sub_(mean).div_(std)."
        )
        loaders, copies = site_list(finding, "loaders"), site_list(finding, "copies")
        if not loaders or len(copies) != 1 or not finding.parameters.get("converts", True):
            return Advice(text, "the transform, or the one copy that it feeds, is not in sight")
        drafts = Drafts(sources)
        draft = drafts[loaders[0].file]
        if copies[0].file != loaders[0].file:
            return Advice(text, "loader and copy are in different files")
        loader, copy = call_at(draft, loaders[0], ("DataLoader",)), call_at(draft, copies[0], ("to", "cuda"))
        others = (drafts[path] for path in file_list(finding, "files") if sources.editable(path))
        normalize = normalizing_behind([draft, *others], loader) if loader is not None else None
        if normalize is None or copy is None:
            return Advice(text, "no transform of PIL images that ends in ToTensor and Normalize feeds only this loader")
        collate = argument(loader, "collate_fn", DATALOADER_PARAMETERS) if loader is not None else None
        if collate is not None and not last_part(collate.value).endswith(("None", "default_collate")):
            return Advice(text, "the loader's collate function may compute with the images")
        if loader is None or not reads_only_copies(draft, loader, copy):
            return Advice(text, "the loader's batches may be read elsewhere, or looked at before they are copied")
        if (way := way_there(draft, copy)) is None:
            return Advice(text, f"the copy at {at(copies[0])} does more than to move the images to a device it names")
        if not normalize_after(draft, copy, normalize, way):
            return Advice(
                text, "the copy is no assignment to a name inside a loop that the device is known in front of"
            )
        deliver_bytes(draft, normalize)
        return edited(drafts, text)

    EXAMPLES = (
        Example(
            before="""
import torch
import torchvision.transforms as T
from torchvision.datasets import CIFAR10

transform = T.Compose([
    T.RandomHorizontalFlip(),  # cheap
    T.ToTensor(),
    T.Normalize((0.5, 0.5, 0.5), (0.2, 0.2, 0.2)),
])
train_set = CIFAR10("data", transform=transform)
loader = DataLoader(train_set, batch_size=256)  # <- loaders
for epoch in range(10):
    for images, labels in loader:
        images = images.to(device)  # <- copies
        out = model(images)
""",
            after="""
import torch
import torchvision.transforms as T
from torchvision.datasets import CIFAR10

transform = T.Compose([
    T.RandomHorizontalFlip(),  # cheap
    T.PILToTensor(),
])
train_set = CIFAR10("data", transform=transform)
loader = DataLoader(train_set, batch_size=256)
mean = torch.tensor((0.5, 0.5, 0.5), device=device).view(1, -1, 1, 1)
std = torch.tensor((0.2, 0.2, 0.2), device=device).view(1, -1, 1, 1)
for epoch in range(10):
    for images, labels in loader:
        images = images.to(device)
        images = images.float().div_(255).sub_(mean).div_(std)
        out = model(images)
""",
        ),
        Example(
            before="""
import torch as th
from PIL import Image
from torchvision.transforms import Compose, Normalize, ToTensor

def main():
    data = Images(transform=Compose([ToTensor(), Normalize((0.1307,), (0.3081,))]))
    mean = 3
    loader = DataLoader(data)  # <- loaders
    print(len(data))
    for step, batch in enumerate(loader):
        x, y = batch[0].cuda(non_blocking=True), batch[1].cuda()  # <- copies=batch[0].cuda(non_blocking=True)
""",
            after="""
import torch as th
from PIL import Image
from torchvision.transforms import Compose, Normalize, ToTensor
from torchvision.transforms import PILToTensor

def main():
    data = Images(transform=Compose([PILToTensor()]))
    mean = 3
    loader = DataLoader(data)
    print(len(data))
    mean2 = th.tensor((0.1307,), device="cuda").view(1, -1, 1, 1)
    std = th.tensor((0.3081,), device="cuda").view(1, -1, 1, 1)
    for step, batch in enumerate(loader):
        x, y = batch[0].cuda(non_blocking=True), batch[1].cuda()
        x = x.float().div_(255).sub_(mean2).div_(std)
""",
        ),
        Example(
            before="""
import torch
from PIL import Image
from torchvision import transforms as T

class Faces(Dataset):
    def __init__(self, arrays, transform=None):
        self.arrays, self.t = np.load(arrays), transform

    def __getitem__(self, i):
        img = Image.fromarray(self.arrays[i])
        if self.t is not None:
            img = self.t(img)
        return img, 3

loader = DataLoader(Faces(arrays, T.Compose([T.ToTensor(), T.Normalize(0.5, 0.5)])))  # <- loaders
for x, y in loader:
    x = x.cuda()  # <- copies
""",
            after="""
import torch
from PIL import Image
from torchvision import transforms as T

class Faces(Dataset):
    def __init__(self, arrays, transform=None):
        self.arrays, self.t = np.load(arrays), transform

    def __getitem__(self, i):
        img = Image.fromarray(self.arrays[i])
        if self.t is not None:
            img = self.t(img)
        return img, 3

loader = DataLoader(Faces(arrays, T.Compose([T.PILToTensor()])))
mean = torch.tensor(0.5, device="cuda").view(1, -1, 1, 1)
std = torch.tensor(0.5, device="cuda").view(1, -1, 1, 1)
for x, y in loader:
    x = x.cuda()
    x = x.float().div_(255).sub_(mean).div_(std)
""",
        ),
        Example(
            before="""
import torch
from torchvision import transforms as T, datasets
t = T.Compose([T.ToTensor(), T.Normalize(0.5, 0.5)])
loader = DataLoader(datasets.MNIST("a", transform=t))  # <- loaders
def train(model, batches):
    for x, y in batches:
        n = x.size(0)
        x = x.to(device)  # <- copies
for epoch in range(9):
    train(model, loader)
    print(epoch, len(loader))
""",
            after="""
import torch
from torchvision import transforms as T, datasets
t = T.Compose([T.PILToTensor()])
loader = DataLoader(datasets.MNIST("a", transform=t))
def train(model, batches):
    mean = torch.tensor(0.5, device=device).view(1, -1, 1, 1)
    std = torch.tensor(0.5, device=device).view(1, -1, 1, 1)
    for x, y in batches:
        n = x.size(0)
        x = x.to(device)
        x = x.float().div_(255).sub_(mean).div_(std)
for epoch in range(9):
    train(model, loader)
    print(epoch, len(loader))
""",
        ),
        Example(  # a device by its name, or by its number
            before=_copied("x.to(non_blocking=True, device=device)"),
            after=_normalized(
                "x.to(non_blocking=True, device=device)",
                "torch.tensor(0.5, device=device).view(1, -1, 1, 1)",
            ),
        ),
        Example(
            before=_copied("x.cuda(args.gpu, non_blocking=True)"),
            after=_normalized(
                "x.cuda(args.gpu, non_blocking=True)",
                "torch.tensor(0.5).view(1, -1, 1, 1).cuda(args.gpu)",
            ),
        ),
    )
    LEAVES_ALONE = (
        *(Example(_copied(copy), "") for copy in CASTS),
        Example(  # what it is given is local to another function
            """
import torch
from torchvision import transforms as T, datasets

def loader_of(root):
    mean, std = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)
    t = T.Compose([T.ToTensor(), T.Normalize(mean, std)])
    return DataLoader(datasets.MNIST(root, transform=t))  # <- loaders

def train(root):
    loader = loader_of(root)
    for x, y in loader:
        x = x.to(device)  # <- copies
""",
            "",
        ),
        Example(  # the transform also feeds another loader
            """
import torch
from torchvision import transforms as T, datasets
t = T.Compose([T.ToTensor(), T.Normalize(0.5, 0.5)])
train, test = datasets.MNIST("a", transform=t), datasets.MNIST("b", transform=t)
loader = DataLoader(train)  # <- loaders
for x, y in loader:
    x = x.to(device)  # <- copies
""",
            "",
        ),
        Example(  # PILToTensor takes no array
            """
import torch
from PIL import Image
from torchvision import transforms as T
class Faces(Dataset):
    def __init__(self, paths, transform):
        self.paths, self.t = paths, transform
    def __getitem__(self, i):
        img = np.array(Image.open(self.paths[i]).convert("RGB"))
        return self.t(img), 3
loader = DataLoader(Faces(paths, T.Compose([T.ToTensor(), T.Normalize(0.5, 0.5)])))  # <- loaders
for x, y in loader:
    x = x.to(device)  # <- copies
""",
            "",
        ),
        Example(  # the data set goes on computing with floats
            """
import torch
from PIL import Image
from torchvision import transforms as T
class Faces(Dataset):
    def __init__(self, paths, transform):
        self.paths, self.t = paths, transform
    def __getitem__(self, i):
        img = self.t(Image.open(self.paths[i]))
        return img - img.mean(), 3
loader = DataLoader(Faces(paths, T.Compose([T.ToTensor(), T.Normalize(0.5, 0.5)])))  # <- loaders
for x, y in loader:
    x = x.to(device)  # <- copies
""",
            "",
        ),
        Example(  # floats are needed on the CPU
            """
import torch
from torchvision import transforms as T, datasets
t = T.Compose([T.ToTensor(), T.Normalize(0.5, 0.5), T.RandomErasing()])
loader = DataLoader(datasets.MNIST("a", transform=t))  # <- loaders
for x, y in loader:
    x = x.to(device)  # <- copies
""",
            "",
        ),
        Example(  # read by somebody else, too
            """
import torch
from torchvision import transforms as T, datasets
t = T.Compose([T.ToTensor(), T.Normalize(0.5, 0.5)])
loader = DataLoader(datasets.MNIST("a", transform=t))  # <- loaders
for epoch in range(9):
    for x, y in loader:
        x = x.to(device)  # <- copies
    evaluate(model, loader)
""",
            "",
        ),
        Example(  # looked at before
            """
import torch
from torchvision import transforms as T, datasets
t = T.Compose([T.ToTensor(), T.Normalize(0.5, 0.5)])
loader = DataLoader(datasets.MNIST("a", transform=t))  # <- loaders
for x, y in loader:
    log_images(x)
    x = x.to(device)  # <- copies
""",
            "",
        ),
        Example(  # looked at behind the copy, by its old name
            """
import torch
from torchvision import transforms as T, datasets
t = T.Compose([T.ToTensor(), T.Normalize(0.5, 0.5)])
loader = DataLoader(datasets.MNIST("a", transform=t))  # <- loaders
for images, y in loader:
    x = images.to(device)  # <- copies
    save_grid(images)
""",
            "",
        ),
        *(  # on a machine without a GPU there is no copy; a batch that is padded with zeros
            Example(
                "import torch\nfrom torchvision import transforms as T, datasets\n"
                "t = T.Compose([T.ToTensor(), T.Normalize(0.5, 0.5)])\n"
                f"loader = DataLoader(datasets.MNIST('a', transform=t){more})  # <- loaders\n"
                f"for x, y in loader:\n    {copy}  # <- copies\n",
                "",
            )
            for more, copy in (
                ("", "if cuda:\n        x = x.cuda()"),
                (", collate_fn=padded", "x = x.cuda()"),
            )
        ),
        Example(  # a device that is not known before the loop
            """
import torch
from torchvision import transforms as T, datasets
t = T.Compose([T.ToTensor(), T.Normalize(0.5, 0.5)])
loader = DataLoader(datasets.MNIST("a", transform=t))  # <- loaders
for x, y in loader:
    device = pick()
    x = x.to(device)  # <- copies
""",
            "",
        ),
        Example(  # a function for two loaders
            """
import torch
from torchvision import transforms as T, datasets
t = T.Compose([T.ToTensor(), T.Normalize(0.5, 0.5)])
loader = DataLoader(datasets.MNIST("a", transform=t))  # <- loaders
def run(batches):
    for x, y in batches:
        x = x.to(device)  # <- copies
run(loader)
run(other)
""",
            "",
        ),
    )


def _float_images(loader: Loader) -> TensorInfo | None:
    """The batch's float32 images (N, 1 or 3, H, W) on the CPU, unless they are in memory that way already."""
    if loader.in_memory:
        return None
    for tensor in loader.tensors:
        plain = tensor.dtype.endswith("float32") and tensor.device == "cpu"
        if plain and len(tensor.shape) == 4 and tensor.shape[1] in (1, 3) and min(tensor.shape[2:]) >= 16:
            return tensor
    return None


def _values(images: TensorInfo) -> int:
    return images.shape[1] * images.shape[2] * images.shape[3]
