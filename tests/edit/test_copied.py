"""What is copied to the GPU: a tensor by the text, and one that nobody writes to while the copy waits."""

from __future__ import annotations

from pathlib import Path

import libcst as cst
import pytest

from advisor.edit import Drafts, Sources
from advisor.edit.copied import made_by_others, overwritten
from advisor.edit.draft import Draft
from advisor.edit.locate import last_name

IMPORTS = """
import torch
import torch.nn.functional as F
import torchvision
from batches import get_batch
from torchvision import transforms as T
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from transformers import AutoTokenizer
"""
LOOP = "for images, targets in loader:\n    "
KEPT = """
class Step:
    def __init__(self, transform):
        self.transform, self.layer = transform, torch.nn.Linear(3, 4)

    def run(self, images):
        return {}.to(d)

"""


def last_copy(folder: Path, code: str) -> tuple[Drafts, Draft, cst.Attribute]:
    """The last copy of a script, as its ``x.to``."""
    (folder / "batches.py").write_text("def get_batch(split):\n    return x, y\n")
    script = folder / "train.py"
    script.write_text(IMPORTS + code + "\n")
    drafts = Drafts(Sources())
    draft = drafts[str(script)]
    call = [each for each in draft.nodes(cst.Call) if last_name(draft, each) in ("to", "cuda")][-1]
    return drafts, draft, cst.ensure_type(call.func, cst.Attribute)


TENSORS = {
    "of a loader": LOOP + "images.to(d)",
    "unknown": "x.to(d)",
    "of a pair": "for batch in loader:\n    x, y = batch\n    x.to(d)",
    "item of a batch": "for batch in loader:\n    batch[0].to(d)",
    "next": "batch = next(iter(loader))\nbatch[0].to(d)",
    "a dictionary's": "texts = tokenizer(lines)\ntexts['input_ids'].to(d)",
    "its values": "batch = tokenizer(lines)\nbatch = {k: v.to(d) for k, v in batch.items()}",
    "torch's": "x = torch.stack(rows)\nx.to(d)",
    "torch.nn.functional's": "F.pad(rows, (1, 1))[0].to(d)",
    "a tensor's method": LOOP + "images = images.float().unsqueeze(0)\n    images.to(d)",
    "own function": "def sample(n):\n    return rows[n]\n\nx, y = sample(3)\nx.to(d)",
    "own method": KEPT.format("self.sample()[0]") + "    def sample(self):\n        return 3",
    "own module": "x, y = get_batch('train')\nx.to(d)",
    "a transform's": "augment = T.Compose([T.ToTensor()])\naugment(image).to(d)",
    "a layer's": KEPT.format("self.layer(images)"),
    "given anew behind it": LOOP + "images.to(d)\n    images = transform(images)[0]",
    "sum": "x = transform(a)[0] + 1\nx.to(d)",
}
OTHERS = {
    "image list": LOOP + "images = transform(images)[0].to(d)",
    "by a name": LOOP + "images, targets = transform(images, targets)\n    images.to(d)",
    "torchvision's": "move = GeneralizedRCNNTransform(3, 4, m, s)\nmove(images)[0].to(d)",
    "a model's": "model = torchvision.models.detection.ssd300_vgg16()\nmodel.transform(images)[0].to(d)",
    "a tokenizer's": "tokenizer = AutoTokenizer.from_pretrained('a')\ntokenizer(lines).to(d)",
    "kept by the object": KEPT.format("self.transform(images)[0]"),
    "with another item": "x = tokenizer(a)\nif c:\n    x['y'] = 3\nx.to(d)",
}


@pytest.mark.parametrize("code", TENSORS.values(), ids=TENSORS.keys())
def test_what_is_a_tensor_as_far_as_the_text_tells(code: str, tmp_path: Path) -> None:
    drafts, draft, copy = last_copy(tmp_path, code)
    assert not made_by_others(drafts, draft, copy.value)


@pytest.mark.parametrize("code", OTHERS.values(), ids=OTHERS.keys())
def test_what_other_code_returns(code: str, tmp_path: Path) -> None:
    drafts, draft, copy = last_copy(tmp_path, code)
    assert made_by_others(drafts, draft, copy.value)


CLASS = """
class Replay:
    def __init__(self):
        self.buf = torch.zeros(64, 8)
        self.buf[0] = 1.0
"""
GET = """
    def get(self):
        return self.buf.cuda()
"""
WRITTEN = {
    "a batch, after its copy": """
for ids in loader:
    labels = ids.cuda()
    ids[torch.rand(ids.shape) < 0.15] = 3
""",
    "an item of a batch, after its copy": """
def step(batch):
    labels = batch["ids"].cuda()
    batch["ids"].masked_fill_(mask, 3)
    net(labels)
""",
    "out": """
    def sample(self, i):
        torch.index_select(self.data, 0, i, out=self.buf)
        return self.buf.cuda()
""",
    "elsewhere": """
    def put(self, x):
        self.buf.copy_(x)
"""
    + GET,
    "from outside": GET
    + """
def put(replay, i, x):
    replay.buf[i] = x
""",
    "a part": """
    def put(self, x):
        self.buf[:9] = x

    def get(self, n):
        return self.buf[:n].cuda()
""",
    "added to": """
    def put(self, x):
        self.buf += x

    def get(self):
        return self.buf.view(-1).cuda()
""",
    "in a loop": """
    def run(self):
        for x in loader:
            self.put(x)
            step(self.buf.cuda())

    def put(self, x):
        self.buf.copy_(x)
""",
    "made once": """
    def run(self):
        self.buf = torch.empty(3)
        for x in loader:
            self.buf.copy_(x)
            step(self.buf.cuda())
""",
    "the module's": """
buf = torch.empty(3)
def get(x):
    buf.copy_(x)
    return buf.cuda()
""",
    "in the module's loop": """
buf = torch.empty(3)
def put(x):
    buf.copy_(x)

for x in loader:
    put(x)
    buf.cuda()
""",
    "handed on": """
def run(buf):
    for x in loader:
        buf.copy_(x)
        step(move(buf))

def move(x):
    x = x.cuda()
    return x
""",
}
ANEW = {
    "never written": GET,
    "made before": """
    def get(self, x):
        self.buf = make(x)
        self.buf[x > 3] = 0
        return self.buf.cuda()
""",
    "made where it is written": """
    def fill(self):
        self.buf = torch.zeros(3)
        for i in range(3):
            self.buf[i] = i
"""
    + GET,
    "itself": """
    def move(self):
        for k in self.parts:
            self.parts[k] = self.parts[k].cuda()
""",
    "local": """
def get(x):
    rows = torch.empty(3)
    rows[0] = x
    return rows.cuda()
""",
    "another of that name": """
x = load()
def put(x):
    x[0] = 3

def get():
    return x.cuda()
""",
    "a batch": """
def move(x):
    return x.cuda()

for x in loader:
    x[x < 0] = 0
    step(move(x))
""",
    "once before": """
rows = torch.empty(9)
for i in range(9):
    rows[i] = i
for step in range(9):
    rows.cuda()
""",
    "rows of it": """
for i in range(9):
    rows[i] = i
    step(rows[mix].cuda())
""",
    "copies by the same names": """
for x, y in loader:
    x, y = x.cuda(), y.cuda()
    x[:, 3] = 0
    y += noise
""",
    "a copy by the same name": """
for ids in loader:
    ids = ids.cuda()
    ids[0] = 3
""",
}


@pytest.mark.parametrize("code", WRITTEN.values(), ids=WRITTEN.keys())
def test_a_buffer_that_is_written_to_again(code: str, tmp_path: Path) -> None:
    _, draft, copy = last_copy(tmp_path, CLASS + code)
    assert overwritten(draft, copy, copy.value)


@pytest.mark.parametrize("code", ANEW.values(), ids=ANEW.keys())
def test_another_tensor_each_time(code: str, tmp_path: Path) -> None:
    _, draft, copy = last_copy(tmp_path, CLASS + code)
    assert not overwritten(draft, copy, copy.value)
