"""Whether results of a region may be made in inference mode, by what the files beside it do with them."""

from __future__ import annotations

from pathlib import Path

import libcst as cst
import pytest

from advisor.edit import Draft
from advisor.edit.gradless import refuses_inference_mode
from advisor.edit.sources import read_source

_EMBED = "import torch\n@torch.no_grad()\ndef embed(x):\n    return net(x)\n"
_TRAINS = "loss = head(embed(x)).sum()\nloss.backward()\n"


def _refused(folder: Path, other: str) -> bool:
    (folder / "features.py").write_text(_EMBED)
    (folder / "main.py").write_text(other)
    draft = Draft(read_source(str(folder / "features.py")))
    return refuses_inference_mode(draft, draft.nodes(cst.FunctionDef)[0])


@pytest.mark.parametrize("imports", ["from features import embed\n", "import features\nembed = features.embed\n"])
def test_results_that_a_file_beside_trains_on_are_ordinary_tensors(tmp_path: Path, imports: str) -> None:
    assert _refused(tmp_path, imports + _TRAINS)


def test_another_script_of_the_folder_that_trains_something_else_is_no_reason(tmp_path: Path) -> None:
    assert not _refused(tmp_path, "from models import embed\n" + _TRAINS)
    assert not _refused(tmp_path, "from features import embed\nprint(embed(x).argmax(1))\n")


def test_the_folder_above_is_looked_through(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "train.py").write_text("from package.features import embed\n" + _TRAINS)
    assert _refused(tmp_path / "package", "")


_PROBES = {
    "another file's": ("from probe import train_probe\ntrain_probe(embed(x))\n", True),
    "another file's, by its module": ("import probe\nprobe.train_probe(embed(x))\n", True),
    "not called": ("from probe import train_probe\nprint(embed(x))\n", False),
    "one that does not train": ("from probe import score\nscore(embed(x))\n", False),
}


@pytest.mark.parametrize(("code", "refused"), _PROBES.values(), ids=_PROBES.keys())
def test_what_a_called_function_of_another_file_trains_on(tmp_path: Path, code: str, refused: bool) -> None:
    probe = "def train_probe(x):\n    head(x).sum().backward()\n\ndef score(x):\n    return x.mean()\n"
    (tmp_path / "probe.py").write_text(probe)
    (tmp_path / "script.py").write_text(_EMBED + code)
    draft = Draft(read_source(str(tmp_path / "script.py")))
    assert refuses_inference_mode(draft, draft.nodes(cst.FunctionDef)[0]) is refused
