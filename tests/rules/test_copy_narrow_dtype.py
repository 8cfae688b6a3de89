"""A dataset in a file of its own is looked at there."""

from __future__ import annotations

from pathlib import Path

import pytest
from advisor.rules.copy_narrow_dtype import CopyNarrowDtype

from advisor.edit import Edit, Sources
from advisor.harness.layout import Site
from advisor.rule import Finding, Gain

SCRIPT = """
import torch
import torchvision.transforms as T
from torch.utils.data import DataLoader
from datasets.faces import Faces
loader = DataLoader(Faces("a", T.Compose([T.ToTensor(), T.Normalize(0.5, 0.5)])))
for x, y in loader:
    x = x.cuda()
"""
DATASET = """
import numpy as np
from PIL import Image

class Faces:
    def __init__(self, folder, transform):
        self.transform = transform

    def __getitem__(self, i):
        image = Image.open(self.paths[i])
        return self.transform(IMAGE), 3
"""


@pytest.mark.parametrize(("image", "edited"), [("image", True), ("np.asarray(image)", False)])
def test_the_class_is_read_where_it_is_written(image: str, edited: bool, tmp_path: Path) -> None:
    script, dataset = tmp_path / "train.py", tmp_path / "datasets" / "faces.py"
    dataset.parent.mkdir()
    script.write_text(SCRIPT)
    dataset.write_text(DATASET.replace("IMAGE", image))
    parameters = {"loaders": (Site(str(script), 6),), "copies": (Site(str(script), 8),), "files": (str(dataset),)}
    finding = Finding("copy-narrow-dtype", "", "", Gain(1, 1, 1), {}, parameters["loaders"][0], parameters)
    assert isinstance(CopyNarrowDtype().fix(finding, Sources()), Edit) is edited
