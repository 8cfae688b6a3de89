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


HELPERS = """def flat(x):
    return x.view(x.size(0), -1)


def dice(pred, target):
    return (pred.view(-1) * target.view(-1)).sum()
"""
# What a script does with its model; the views in it, and those of the helpers, that become reshapes.
USES = {
    "loss = ((net(x) - x) ** 2).view(2, -1)": (1, 0),
    "out = net(x).permute(0, 2, 3, 1).view(-1, 8)": (1, 0),
    "masks = [each.view(-1) for each in net(x)]": (1, 0),
    "kept = []\nkept.append(net(x))\nall_of_them = torch.cat(kept).view(-1)": (1, 0),
    "grads = torch.cat([each.grad.view(-1) for each in net.parameters()])": (1, 0),
    "for group in optimizer.param_groups:\n    first = group['params'][0].view(-1)": (1, 0),
    "def both(*pairs):\n    return pairs[0].view(-1)\nboth(*net(x), y)": (1, 0),
    "encoder = torch.nn.Sequential(Lambda(flat))\ndef flat(x):\n    return x.view(2, -1)": (1, 0),
    "compiled = torch.compile(net)\nout = compiled(x).view(-1)": (1, 0),
    "from helpers import dice\nloss = dice(net(x), y)": (0, 1),
    "from helpers import dice\nloss = dice(y, y)": (0, 0),
    "import helpers\nclass Head(torch.nn.Module):\n    def forward(self, x):\n        return helpers.flat(x)": (0, 1),
    "n = net(x).size(0)\nrows = torch.zeros(n).view(1, -1)": (0, 0),
    "hits = torch.zeros(9)\nhits.view(3, 3)[0] = 1": (0, 0),
    "loader = DataLoader(data, collate_fn=lambda rows: torch.stack(rows).view(2, -1))": (0, 0),
}


@pytest.mark.parametrize("use", USES)
def test_views_of_what_comes_of_the_model_become_reshapes(tmp_path: Path, use: str) -> None:
    found = finding(tmp_path)
    (tmp_path / "helpers.py").write_text(HELPERS)
    (tmp_path / "train.py").write_text(TRAIN + use + "\n")
    edit = ChannelsLast().fix(found, Sources())
    assert isinstance(edit, Edit)
    here, there = (edit.texts.get(str(tmp_path / name), "").count(".reshape(") for name in ("train.py", "helpers.py"))
    assert (here, there) == USES[use]


@pytest.mark.parametrize("imports", ["from .losses.overlap import dice", "from .losses import dice"])
def test_helpers_are_found_where_packages_have_them(tmp_path: Path, imports: str) -> None:
    found = finding(tmp_path)
    (tmp_path / "losses").mkdir()
    (tmp_path / "losses" / "__init__.py").write_text("from .overlap import dice\n")
    (tmp_path / "losses" / "overlap.py").write_text(HELPERS)
    (tmp_path / "train.py").write_text(f"{TRAIN}{imports}\nloss = dice(out, y)\n")
    edit = ChannelsLast().fix(found, Sources())
    assert isinstance(edit, Edit)
    assert edit.texts[str(tmp_path / "losses" / "overlap.py")] == HELPERS.replace("pred.view(", "pred.reshape(")


@pytest.mark.parametrize(
    "written",
    [
        "loss = torch.softmax(out, 1)\nloss.view(-1)[0] = 0",
        "for each in net.parameters():\n    each.data.view(-1).clamp_(-1, 1)",
        "from helpers import cut\ncut(out)",
        "from torch.nn.utils import parameters_to_vector\nnorm = parameters_to_vector(net.parameters()).norm()",
    ],
)
def test_a_view_that_no_reshape_can_stand_for_leaves_advice(tmp_path: Path, written: str) -> None:
    found = finding(tmp_path)
    (tmp_path / "helpers.py").write_text("def cut(x):\n    flat = x.view(-1)\n    flat[0] = 0\n")
    (tmp_path / "train.py").write_text(TRAIN + written + "\n")
    assert isinstance(ChannelsLast().fix(found, Sources()), Advice)
