"""Datasets that hand PIL images to their transform, and nobody else what comes of them."""

from __future__ import annotations

import libcst as cst
import pytest

from advisor.edit import Draft, Source
from advisor.edit.loading.images import makes_arrays, passes_images_on
from advisor.edit.locate import last_name

IMPORTS = """
import cv2
import numpy as np
import torch
from PIL import Image
from torchvision import datasets, transforms as T
"""
MADE = "\ndata = Faces(paths, transform=augment)\n"
KEEPS = """
    def __init__(self, paths, transform=None):
        self.paths = paths
        self.t = transform or T.ToTensor()
"""


def draft_of(code: str) -> Draft:
    return Draft(Source("/x.py", IMPORTS + code))


def passes(code: str, arrays: bool = False) -> bool:
    """What is said of the transform that ``Faces(…)`` is given, or of the dataset that ``Kept(…)`` is."""
    draft = draft_of(code)
    calls = [each for each in draft.nodes(cst.Call) if last_name(draft, each) in ("Faces", "Kept", "ImageFolder")]
    call = [each for each in calls if draft.function(each) is None][-1]
    given = [arg.value for arg in call.args if draft.code(arg.value) in ("augment", "faces")]
    return passes_images_on([draft], call, given[0], arrays)


def dataset(*lines: str, rest: str = "", keeps: str = KEEPS) -> str:
    body = "".join(f"        {line}\n" for line in lines)
    return f"class Faces(Dataset):{keeps}\n    def __getitem__(self, i):\n{body}{rest}{MADE}"


OPENED = 'img = Image.open(self.paths[i]).convert("RGB")'
AS_IT_IS = {
    "returned": [OPENED, "return self.t(img), 3"],
    "by a name": [OPENED, "img = self.t(img)", "return img, self.y[i]"],
    "if there is one": [OPENED, "if self.t is not None:", "    img = self.t(img)", "return img, 3"],
    "of a pair": [OPENED, "img, y = self.t(img), self.y[i]", "y = torch.tensor(y + 1)", "return img, y"],
    "a dictionary": [OPENED, "sample = {'image': self.t(img), 'y': i}", "return sample"],
    "an item": ["sample = {'y': i}", OPENED, "sample['image'] = self.t(img)", "sample['y'] += 1", "return sample"],
    "its size": [OPENED, "img = self.t(img)", "return img, img.shape[1], len(img)"],
    "an array once": ["img = np.load(self.paths[i])", "img = Image.fromarray(img)", "return self.t(img)"],
    "resized": ["img = np.load(self.paths[i])", "img = Image.fromarray(img)", "img = img.resize((8, 8))",
                "return self.t(img)"],
    "turned by an array": [OPENED, "img = img.rotate(np.random.uniform(-9, 9))", "return self.t(img)"],
    "two of them": [OPENED, "q = self.t(img)", "k = self.t(img)", "return q, k"],
}  # fmt: skip
OTHERWISE = {
    "array": ['img = np.array(Image.open(self.paths[i]).convert("RGB"))', "return self.t(img), 3"],
    "inline": ["return self.t(np.asarray(Image.open(self.paths[i]))), 3"],
    "cv2": ["img = cv2.imread(self.paths[i])", "img = cv2.cvtColor(img, 4)", "return self.t(img)"],
    "reversed": ["img = cv2.imread(self.paths[i])[..., ::-1].copy()", "return self.t(img)"],
    "own function": ["return self.t(self.read(self.paths[i]))"],
    "kept arrays": ["return self.t(self.images[i])"],
    "albumentations": [OPENED, 'img = self.crop(np.array(img))["image"]', "return self.t(img)"],
    "computed with": [OPENED, "img = self.t(img)", "return img - img.mean(), 3"],
    "computed with at once": [OPENED, "return (self.t(img) - 0.5).abs(), 3"],
    "changed in place": [OPENED, "img = self.t(img)", "img -= img.mean()", "return img"],
    "another method": [OPENED, "return self.t(img).mean(0), 3"],
    "handed on": [OPENED, "return erase(self.t(img)), 3"],
    "an item": [OPENED, "sample = {'image': self.t(img)}", "sample['image'] = sample['image'] * 2", "return sample"],
    "kept": [OPENED, "self.last = self.t(img)", "return self.last"],
    "another's": [OPENED, "return apply(self.t, img)"],
}
READS = """
    def read(self, path):
        return cv2.imread(path)

    def load(self):
        self.images = np.load("images.npy")
"""


@pytest.mark.parametrize("lines", AS_IT_IS.values(), ids=AS_IT_IS.keys())
def test_an_image_that_is_returned_as_it_is(lines: list[str]) -> None:
    assert passes(dataset(*lines))


@pytest.mark.parametrize("lines", OTHERWISE.values(), ids=OTHERWISE.keys())
def test_an_array_or_an_image_that_is_looked_at(lines: list[str]) -> None:
    assert not passes(dataset(*lines, rest=READS))


def test_a_transform_that_takes_arrays_is_given_them() -> None:
    assert passes(dataset(*OTHERWISE["array"]), arrays=True)
    assert not passes(dataset(*OTHERWISE["computed with"]), arrays=True)


def test_by_way_of_a_method() -> None:
    loads = f"\n    def load(self, i):\n        {OPENED}\n        return self.t(img)\n"
    assert passes(dataset("return self.load(i), 3", rest=loads))
    assert not passes(dataset("return self.load(i) / 2, 3", rest=loads))


def test_a_class_of_torchvision_and_one_that_inherits_it() -> None:
    assert passes('faces = datasets.ImageFolder("a", transform=augment)\n')
    assert not passes('faces = datasets.ImageFolder("a", transform=augment, loader=cv2.imread)\n')
    inherits = "class Faces(datasets.CIFAR10):\n    def __getitem__(self, i):\n        {}\n" + MADE
    assert passes(inherits.format("img, y = super().__getitem__(i)\n        return img, int(y), i"))
    assert not passes(inherits.format("img, y = super().__getitem__(i)\n        return img / 2, y, i"))
    assert passes("class Faces(datasets.CIFAR10):\n    pass\n" + MADE)


AROUND = """
class Kept(Dataset):
    def __init__(self, data, keep):
        self.data = data

    def __getitem__(self, i):
        image, y = self.data[i]
        return RETURNED

kept = Kept(faces, 3)
"""


@pytest.mark.parametrize(("returned", "whole"), [("image, y, i", True), ("image * 2, y, i", False)])
def test_a_dataset_around_another(returned: str, whole: bool) -> None:
    assert passes(AROUND.replace("RETURNED", returned)) is whole


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ("T.RandomCrop(32, padding=4)", False),
        ("T.Lambda(lambda image: np.array(image))", True),
        ("T.Lambda(np.asarray)", True),
        ("Gray()", True),
        ("Jitter(np.random.uniform())", False),
    ],
)
def test_transforms_that_make_arrays(step: str, told: bool) -> None:
    draft = draft_of(
        "class Gray:\n    def __call__(self, image):\n        return cv2.cvtColor(np.array(image), 6)\n\n"
        "class Jitter:\n    def __call__(self, image):\n        return image.rotate(self.angle)\n"
        f"steps = [{step}]\n"
    )
    assert makes_arrays(draft, draft.nodes(cst.List)[0].elements[0].value) is told
