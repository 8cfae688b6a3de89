"""Outputs that are still wanted when a CUDA graph writes the next ones over them."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor import rulecheck
from advisor.edit import Edit, Sources
from advisor.rule import Advice, Example
from advisor.rulebook import load_rules

RULE = next(each for each in load_rules() if each.id == "launch-bound")
KEPT = {
    "collected": "feats = []\nfor x in loader:\n    feats.append(model(x.cuda()))\nfeats = torch.cat(feats)\n",
    "collected as a view": "for x in loader:\n    out = model(x)\n    feats.append(out.detach()[:, 0].float())\n",
    "collected by a sum of lists": "feats = []\nfor x in loader:\n    feats += [model(x)]\n",
    "by a comprehension": "feats = torch.cat([model(x) for x in loader])\n",
    "in a dictionary": "found = {}\nfor name, x in loader:\n    found[name] = model(x)\n",
    "by a function": "def step(x):\n    return model(x)\n\nfor x in loader:\n    feats.append(step(x))\n",
    "by a generator": "def run():\n    for x in xs:\n        yield model(x)\n\nfor y in run():\n    feats.append(y)\n",
    "in an attribute": "class Runner:\n    def step(self, x):\n        self.last = model(x)\n",
    "a state": "h = None\nfor x in loader:\n    out, h = model(x, h)\n    print(out.argmax())\n",
    "a detached state": "h = None\nfor x in loader:\n    out, h = model(x, h)\n    h = h.detach()\n",
    "fed back": "for t in times:\n    x = model(x)\n",
    "the one before": "last = None\nfor x in loader:\n    out = model(x)\n    print(out - last)\n    last = out\n",
    "the best": "for x in loader:\n    out = model(x)\n    if out.mean() > top:\n        best = out\nsave(best)\n",
    "several of a step without a backward": (
        "for xs in loader:\n    outs = []\n    for x in xs:\n        outs.append(model(x))\n    print(sum(outs))\n"
    ),
    "a loss of the model's": "for x in loader:\n    loss = model(x)\n    loss.backward()\n    all.append(loss.data)\n",
}
COPIED = {
    "training": (
        "for x, y in loader:\n    x = x.cuda()\n    out = model(x)\n    loss = criterion(out, y)\n    loss.backward()\n"
        "    losses.append(loss.detach())\n    hits += (out.argmax(1) == y).sum()\n"
    ),
    "copies": (
        "for x in loader:\n    out = model(x)\n    feats.append(out.cpu())\n    other.append(out.clone())\n"
        "    third.append(out.to('cpu'))\n    fourth.append(out.argmax(1))\n    total += out.mean().item()\n"
    ),
    "into a tensor": "found = torch.empty(100, 8)\nfor i, x in enumerate(loader):\n    found[i] = model(x)\n",
    "a state that is copied": "h = None\nfor x in loader:\n    out, h = model(x, h)\n    h = h.clone()\n",
    "a step of a sum": "for t in times:\n    x = x - 0.1 * model(x)\n",
    "names used again": (
        "for x in loader:\n    if half:\n        with torch.autocast('cuda'):\n            x = model(x)\n"
        "    else:\n        x = model(x)\n    print(x.mean())\n"
    ),
    "a list of each step": (
        "for xs, y in loader:\n    outs: list = []\n    for x in xs:\n        outs.append(model(x))\n"
        "    loss = criterion(torch.stack(outs), y)\n    loss.backward()\n"
    ),
    "parts of one output": "for x in loader:\n    a, b = [each.detach() for each in model(x)]\n    print(a, b)\n",
    "levels of one output": (
        "for x in loader:\n    levels = []\n    for level in model(x):\n        levels.append(level)\n    print(1)\n"
    ),
    "levels of one output, in a function": (
        "def run(x):\n    out, parts = model(x), []\n    for part in out:\n        parts.append(part)\n    return 1\n"
    ),
    "the last one": "for x in loader:\n    with torch.no_grad():\n        out = model(x)\nprint(out)\n",
}


def _fix(code: str, folder: Path) -> object:
    path = folder / "train.py"
    text = f"import torch\nmodel = torch.compile(Net().cuda())  # <- compiled\n{code}"
    before, finding = rulecheck.marked(RULE, Example(text, ""), path)
    path.write_text(before)
    return RULE.fix(finding, Sources())


@pytest.mark.parametrize("code", KEPT.values(), ids=KEPT)
def test_outputs_that_are_kept(code: str, tmp_path: Path) -> None:
    fix = _fix(code, tmp_path)
    assert isinstance(fix, Advice) and "train.py:" in fix.why and "cudagraph_mark_step_begin" in fix.why


@pytest.mark.parametrize("code", COPIED.values(), ids=COPIED)
def test_outputs_that_are_not(code: str, tmp_path: Path) -> None:
    assert isinstance(_fix(code, tmp_path), Edit)


def test_the_recorded_call_counts_whatever_its_name(tmp_path: Path) -> None:
    text = "def run(x):\n    return m(x)  # <- forward\n\nm.net.compile()  # <- compiled\nfeats = []\n"
    text += "for x in xs:\n    feats.append(run(x))\n"
    before, finding = rulecheck.marked(RULE, Example(text, ""), tmp_path / "train.py")
    (tmp_path / "train.py").write_text(before)
    assert isinstance(RULE.fix(finding, Sources()), Advice)


@pytest.mark.parametrize(("kept", "edits"), [("embed(x)", False), ("embed(x).clone()", True)])
def test_a_function_s_output_that_another_file_keeps(kept: str, edits: bool, tmp_path: Path) -> None:
    text = "import torch\nmodel = torch.compile(Net().cuda())  # <- compiled\ndef embed(x):\n    return model(x)\n"
    before, finding = rulecheck.marked(RULE, Example(text, ""), tmp_path / "net.py")
    (tmp_path / "net.py").write_text(before)
    (tmp_path / "main.py").write_text(f"from net import embed\nfor x in loader:\n    feats.append({kept})\n")
    fix = RULE.fix(finding, Sources(modules={str(tmp_path / "net.py"): "net", str(tmp_path / "main.py"): ""}))
    assert isinstance(fix, Edit) is edits
    assert edits or (isinstance(fix, Advice) and "main.py:3" in fix.why)
