"""What narrow copies save, and where the edit of a script looks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from advisor.rules.copy_narrow_dtype import CASTS, CopyNarrowDtype

from advisor.edit import Edit, Sources
from advisor.harness.layout import Site
from advisor.rule import Advice, Example, Finding, Gain
from advisor.rulecheck import marked
from tests.rules.test_checks import TENSOR_CORE, copying, found

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


def waiting(scene: Any, copied_ms: float) -> Any:
    """A step of 20 ms: the copy's call lasts until the GPU is done with the last step; it computes again 9 ms later."""
    made = scene(20.0, "NVIDIA A100-SXM4-40GB")
    made.record.loaders = copying(scene).record.loaders
    image = made.record.loaders[0].tensors[0]
    made.operator("aten::to", 0.2, 10.2)
    start = 10.1 - copied_ms
    made.copy("Memcpy HtoD (Pageable -> Device)", start, 10.1, image.bytes, launched=0.3, returned=10.05)
    made.kernel(TENSOR_CORE, 19.9, 20.0 + start - 0.1, launched=19.85)
    before = {"grid": [1000, 1, 1], "block": [256, 1, 1]}  # the step that was not traced
    made._device("kernel", TENSOR_CORE, -1, 19.9, 20.0 + start - 0.1, 19.85, 19.855, "cudaLaunchKernel", **before)
    made.call("Tensor.to", 9, from_device="cpu", to_device="cuda", from_dtype="float32", bytes=image.bytes)
    return made


def test_waiting_for_the_gpu_is_nothing_that_fewer_bytes_save(scene: Any, tmp_path: Path) -> None:
    assert found(waiting(scene, 0.5), tmp_path, "copy-narrow-dtype") is None
    finding = found(waiting(scene, 3.0), tmp_path, "copy-narrow-dtype")
    assert finding is not None and finding.gain.likely == pytest.approx(20 / (20 - 0.75 * 3.0), rel=0.03)


@pytest.mark.parametrize("example", CopyNarrowDtype.LEAVES_ALONE[: len(CASTS)])
def test_a_copy_that_casts_is_said_to(example: Example, tmp_path: Path) -> None:
    before, finding = marked(CopyNarrowDtype(), example, tmp_path / "train.py")
    (tmp_path / "train.py").write_text(before)
    fix = CopyNarrowDtype().fix(finding, Sources())
    assert isinstance(fix, Advice) and fix.why.endswith("does more than to move the images to a device it names")
