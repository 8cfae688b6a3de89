"""Images travel to the GPU as float32 although they are bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import libcst as cst
import libcst.matchers as m

from advisor.edit import Draft, Drafts
from advisor.edit.calls import argument
from advisor.edit.draft import Statement
from advisor.edit.images import SIZES, makes_arrays, passes_images_on
from advisor.edit.locate import call_at, last_name
from advisor.edit.names import add_import, ensure_name, fresh_name
from advisor.edit.origin import callers
from advisor.edit.regions import bound_names
from advisor.edit.sums import root
from advisor.evidence import Change
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
        normalize = _transform([draft, *others], loader) if loader is not None else None
        if normalize is None or copy is None:
            return Advice(text, "no transform of PIL images that ends in ToTensor and Normalize feeds only this loader")
        if loader is None or not _reads_only(draft, loader, copy):
            return Advice(text, "the loader's batches may be read elsewhere, or looked at before they are copied")
        if (way := _way_there(draft, copy)) is None:
            return Advice(text, f"the copy at {at(copies[0])} does more than to move the images to a device it names")
        if not _normalize_after(draft, copy, normalize, way):
            return Advice(
                text, "the copy is no assignment to a name inside a loop that the device is known in front of"
            )
        _deliver_bytes(draft, normalize)
        return drafts.edit(text) or Advice(text, "the file is not the script's own")

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


# The edit ---------------------------------------------------------------------------------------------------------


def _transform(files: Sequence[Draft], loader: cst.Call) -> cst.Call | None:
    """The ``Normalize(…)`` behind a ``ToTensor()`` at the end of the only Compose, if it feeds this loader alone.

    And if what it is given are PIL images, which nobody looks at on their way; `files` are the loader's, and others.
    """
    draft = files[0]
    composed = [call for call in draft.nodes(cst.Call) if last_name(draft, call) == "Compose"]
    if len(composed) != 1 or not composed[0].args or not isinstance(composed[0].args[0].value, cst.List):
        return None
    steps = [each.value for each in composed[0].args[0].value.elements]
    before, last = steps[:-2], steps[-2:]
    names = [last_name(draft, each) for each in last if isinstance(each, cst.Call)]
    pil = "PIL" in draft.source.text or "torchvision.datasets" in draft.source.text or "datasets." in draft.source.text
    way = _way(draft, composed[0], loader)
    if names != ["ToTensor", "Normalize"] or not pil or way is None:
        return None
    if any(makes_arrays(draft, each) for each in before):
        return None
    made_images = any(isinstance(each, cst.Call) and last_name(draft, each) == "ToPILImage" for each in before)
    if not all(passes_images_on(files, call, given, arrays=made_images) for given, call in way):
        return None
    normalize = cst.ensure_type(last[1], cst.Call)
    return normalize if len(normalize.args) == 2 and not any(arg.star for arg in normalize.args) else None


def _way(draft: Draft, value: cst.BaseExpression, loader: cst.Call) -> list[tuple[cst.BaseExpression, cst.Call]] | None:
    """The calls that a value is handed to on its way to this loader, each with what it is handed.

    None where it reaches anything else: inline, or through names each used once (and in ``len``).
    """
    way: list[tuple[cst.BaseExpression, cst.Call]] = []
    for _ in range(4):
        above = draft.parent(value)
        while isinstance(above, cst.Arg):
            call = draft.parent(above)
            if call is loader:
                return way
            if not isinstance(call, cst.Call):
                return None
            way.append((value, call))
            value, above = call, draft.parent(call)
        if not isinstance(above, cst.Assign) or len(above.targets) != 1:
            return None
        target = above.targets[0].target
        uses = [
            name
            for name in draft.nodes(cst.Name)
            if name is not target and m.matches(target, m.Name(name.value)) and not _keyword(draft, name)
        ]
        uses = [name for name in uses if not _measured(draft, name)]
        if len(uses) != 1:
            return None
        value = uses[0]
    return None


def _keyword(draft: Draft, name: cst.Name) -> bool:
    """Whether the name only labels an argument, a parameter or an attribute."""
    above = draft.parent(name)
    if isinstance(above, cst.Arg):
        return above.keyword is name
    if isinstance(above, cst.Attribute):
        return above.attr is name
    return isinstance(above, cst.Param) or _inside_other_function(draft, name)


def _inside_other_function(draft: Draft, name: cst.Name) -> bool:
    """Whether a parameter of the same name hides it: ``def __init__(self, transform)`` and what uses it there."""
    function = draft.function(name)
    return function is not None and any(
        each.name.value == name.value for each in (*function.params.params, *function.params.kwonly_params)
    )


def _measured(draft: Draft, name: cst.CSTNode) -> bool:
    above = draft.parent(draft.parent(name) or name)
    return m.matches(above or name, m.Call(func=m.Name("len")))


def _reads_only(draft: Draft, loader: cst.Call, copy: cst.Call) -> bool:
    """Whether the loop around the copy is all that reads the loader's batches, and the copy all that reads floats."""
    assign = draft.parent(loader)
    function = draft.function(copy)
    read: cst.CSTNode = loader
    if isinstance(assign, cst.Assign) and len(assign.targets) == 1:
        uses = _uses(draft, assign.targets[0].target)
        if len(uses) != 1:
            return False
        read = uses[0]
    loops = [each for each in draft.ancestors(copy) if isinstance(each, cst.For)]
    around = {id(each) for each in draft.ancestors(read)}
    iterated = next((each for each in loops if id(each.iter) in around | {id(read)}), None)
    if iterated is None and function is not None:  # train(model, loader)
        calls = callers(draft, function)
        if len(calls) != 1 or id(calls[0]) not in around:
            return False
        parameters = {each.name.value for each in function.params.params}
        iterated = next(
            (each for each in loops if parameters & {name.value for name in draft.nodes(cst.Name, each.iter)}), None
        )
    if iterated is None:
        return False
    copied = cst.ensure_type(copy.func, cst.Attribute).value
    receiver = root(copied)
    # Under another name, what was copied is still there behind the copy, and still bytes.
    stays = isinstance(copied, cst.Name) and _copied_to(draft.statement(copy), copy) != copied.value
    parts = draft.nodes(cst.Subscript, iterated.body)
    if any(each is not copied and each.deep_equals(copied) for each in parts):
        return False
    before = [
        name
        for name in draft.nodes(cst.Name, iterated.body)
        if m.matches(receiver, m.Name(name.value)) and name is not copied
        if stays or draft.line(name) < draft.line(copy)
    ]
    return all(
        m.matches(draft.parent(each) or each, SIZES)
        or _measured(draft, each)
        or any(isinstance(above, cst.AssignTarget) for above in draft.ancestors(each))
        for each in before
    )


def _uses(draft: Draft, target: cst.BaseExpression) -> list[cst.CSTNode]:
    """Where a loader is used by its name, other than for its length or an attribute."""
    nodes: list[cst.Name | cst.Attribute] = [*draft.nodes(cst.Name), *draft.nodes(cst.Attribute)]
    found = [each for each in nodes if each is not target and each.deep_equals(target)]
    found = [each for each in found if not isinstance(draft.parent(each), cst.Attribute)]
    return [
        each
        for each in found
        if not _measured(draft, each) and not (isinstance(each, cst.Name) and _keyword(draft, each))
    ]


def _way_there(draft: Draft, copy: cst.Call) -> tuple[str, str] | None:
    """How a constant gets where the copy goes: (what its factory is told, which method is called on it), one is "".

    None where the copy casts as well: the bytes would be cast before they travel, and normalized be float32 again.
    """
    function = cst.ensure_type(copy.func, cst.Attribute)
    if {last_name(draft, call) for call in draft.nodes(cst.Call, function.value)} - {"pin_memory", "contiguous"}:
        return None
    method = function.attr.value
    parameters = ("device", "non_blocking") if method == "cuda" else ("device",)
    given = argument(copy, "device", parameters)
    allowed = [given, *(argument(copy, name, parameters) for name in ("non_blocking", "memory_format"))]
    if any(arg.star or arg not in allowed for arg in copy.args):
        return None
    if method == "cuda" and given is not None:
        return "", f".cuda({draft.code(given.value)})"  # None is the current device here, and the CPU to a factory
    if method == "to" and given is None:
        return None
    return ', device="cuda"' if given is None else f", device={draft.code(given.value)}", ""


def _normalize_after(draft: Draft, copy: cst.Call, normalize: cst.Call, way: tuple[str, str]) -> bool:
    """Have the copied images normalized behind the statement that copies them, with constants made before the loop."""
    statement = draft.statement(copy)
    name = _copied_to(statement, copy)
    loop: Statement | None = draft.loop(copy)
    while loop is not None and (outer := draft.loop(loop)) is not None:
        loop = outer
    if statement is None or loop is None or not name or draft.block(loop) is None:
        return False
    if _bound_in(draft, loop) & {each.value for arg in copy.args for each in draft.nodes(cst.Name, arg.value)}:
        return False
    given = [argument(normalize, each, ("mean", "std")) for each in ("mean", "std")]
    values = [draft.code(each.value) for each in given if each is not None]
    if len(values) != 2 or _local_to_another(draft, normalize, loop):
        return False
    tensor = ensure_name(draft, "torch.tensor")
    mean, std = (fresh_name(draft, each) for each in ("mean", "std"))
    for constant, code in zip((mean, std), values, strict=True):
        draft.insert_before(loop, f"{constant} = {tensor}({code}{way[0]}).view(1, -1, 1, 1){way[1]}")
    draft.insert_after(statement, f"{name} = {name}.float().div_(255).sub_({mean}).div_({std})")
    return True


def _local_to_another(draft: Draft, normalize: cst.Call, loop: Statement) -> bool:
    """Whether a transform is given what only the function around it knows, and the loop is in another one."""
    function = draft.function(normalize)
    if function is None or function is draft.function(loop):
        return False
    local = bound_names(draft, function) | {each.name.value for each in draft.nodes(cst.Param, function.params)}
    return bool(local & {each.value for arg in normalize.args for each in draft.nodes(cst.Name, arg.value)})


def _bound_in(draft: Draft, loop: Statement) -> set[str]:
    targets = {name.value for each in draft.nodes(cst.For, loop) for name in draft.nodes(cst.Name, each.target)}
    return targets | bound_names(draft, loop)


def _copied_to(statement: cst.CSTNode | None, copy: cst.Call) -> str:
    """The name that the copied tensor is given by ``x = x.to(d)`` or ``x, y = x.to(d), y.to(d)``."""
    if not m.matches(statement or copy, m.SimpleStatementLine([m.Assign(targets=[m.AssignTarget()])])):
        return ""
    assign = cst.ensure_type(cst.ensure_type(statement or copy, cst.SimpleStatementLine).body[0], cst.Assign)
    target: cst.CSTNode = assign.targets[0].target
    value = assign.value
    if isinstance(target, cst.Tuple) and isinstance(value, cst.Tuple) and len(target.elements) == len(value.elements):
        pairs = zip(target.elements, value.elements, strict=True)
        target = next((each.value for each, given in pairs if given.value is copy), target)
    elif value is not copy:
        return ""
    return target.value if isinstance(target, cst.Name) else ""


def _deliver_bytes(draft: Draft, normalize: cst.Call) -> None:
    """Have the list of transforms end in PILToTensor."""
    element = draft.parent(normalize)
    holder = cst.ensure_type(draft.parent(element or normalize) or normalize, cst.List)
    convert = cst.ensure_type(holder.elements[-2].value, cst.Call)
    if isinstance(convert.func, cst.Attribute):
        draft.change(convert.func.attr, lambda _: cst.Name("PILToTensor"))
    else:
        draft.change(convert.func, lambda _: cst.Name("PILToTensor"))
        add_import(draft, "from torchvision.transforms import PILToTensor")

    def change(node: cst.CSTNode) -> cst.CSTNode:
        elements = list(cst.ensure_type(node, cst.List).elements)
        removed = elements.pop()
        elements[-1] = elements[-1].with_changes(comma=removed.comma)
        return node.with_changes(elements=elements)

    draft.change(holder, change)
