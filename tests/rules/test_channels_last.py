"""A model in channels-last order: what its modules do with their tensors goes with the edit, in whatever file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from advisor.edit import Edit, Sources
from advisor.harness.layout import Site
from advisor.rule import Advice, Finding, Gain
from rules.channels_last import ChannelsLast

NET = """import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x):
        x = self.conv(x)
        return x.view(x.size(0), -1)
"""
TRAIN = "import torch\nfrom net import Net\n\nnet = Net()\nout = net(torch.rand(2, 3, 8, 8))\n"


def finding(folder: Path) -> Finding:
    (folder / "net.py").write_text(NET)
    (folder / "train.py").write_text(TRAIN)
    parameters = {"forward": (Site(str(folder / "train.py"), 5, 6, 5, 33),), "own": (str(folder / "net.py"),)}
    return Finding("channels-last", "", "", Gain(1.1, 1.2, 1.3), {}, None, parameters)


def test_views_in_the_file_of_the_model_become_reshapes(tmp_path: Path) -> None:
    edit = ChannelsLast().fix(finding(tmp_path), Sources())
    assert isinstance(edit, Edit)
    net, train = edit.texts[str(tmp_path / "net.py")], edit.texts[str(tmp_path / "train.py")]
    assert net == NET.replace(".view(", ".reshape(")
    scope: dict[str, object] = {}
    exec(net + train.replace("from net import Net\n", ""), scope)
    assert isinstance(scope["out"], torch.Tensor) and scope["out"].shape == (2, 288)


def test_views_in_a_file_that_may_not_be_edited_leave_advice(tmp_path: Path) -> None:
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "net.py").write_text(NET)
    found = finding(tmp_path)
    parameters = {**found.parameters, "own": (str(library / "net.py"),)}
    fix = ChannelsLast().fix(Finding("channels-last", "", "", found.gain, {}, None, parameters), Sources())
    assert isinstance(fix, Advice)


@pytest.mark.parametrize(
    "written", ["flat.scatter_(1, i, y)", "flat[i] = 0", "flat += 1", "torch.relu(y, out=flat)", "flat[i] += 1"]
)
def test_a_view_that_is_written_into_through_its_name_stays_one(tmp_path: Path, written: str) -> None:
    found = finding(tmp_path)
    body = f"out = torch.zeros_like(x)\n        flat = out.view(x.size(0), -1)\n        {written}\n        return out"
    (tmp_path / "net.py").write_text(NET.replace("return x.view(x.size(0), -1)", body))
    assert isinstance(ChannelsLast().fix(found, Sources()), Advice)


def test_a_view_that_is_only_read_through_its_name_becomes_a_reshape(tmp_path: Path) -> None:
    found = finding(tmp_path)
    body = "flat = x.view(x.size(0), -1)\n        y = flat[0]\n        y += 1\n        return flat"
    (tmp_path / "net.py").write_text(NET.replace("return x.view(x.size(0), -1)", body))
    assert isinstance(ChannelsLast().fix(found, Sources()), Edit)
