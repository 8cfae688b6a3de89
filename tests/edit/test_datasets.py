"""Files that a dataset holds open, and a GPU that it uses, are seen before workers are forked."""

from __future__ import annotations

import libcst as cst
import pytest

from advisor.edit import Draft, Source
from advisor.edit.loading.datasets import (
    collates_on_gpu,
    moves_on,
    opened_at_first,
    opened_outside,
    opened_when_made,
    told_in_loop,
    uses_gpu,
)
from advisor.edit.locate import last_name

IMPORTS = """
import av, bz2, cv2, gzip, h5py, lzma, openslide, soundfile, zarr
import numpy as np
import pandas as pd
import torch
import xarray as xr
from pathlib import Path
from PIL import Image
"""


def draft_of(code: str) -> Draft:
    return Draft(Source("/x.py", IMPORTS + code))


def loader_in(draft: Draft) -> cst.Call:
    return next(call for call in draft.nodes(cst.Call) if last_name(draft, call) == "DataLoader")


def made_with(*lines: str, rest: str = "") -> Draft:
    body = "".join(f"        {line}\n" for line in lines)
    return draft_of(f"class D(Dataset):\n    def __init__(self, p, paths):\n{body}{rest}")


KEPT = {
    "cv2": ["self.video = cv2.VideoCapture(p)"],
    "av": ["self.video = av.open(p)"],
    "openslide": ["self.slide = openslide.OpenSlide(p)"],
    "soundfile": ["self.sound = soundfile.SoundFile(p)"],
    "xarray": ['self.rain = xr.open_dataset(p)["rain"]'],
    "pandas": ["self.store = pd.HDFStore(p)"],
    "bz2": ["self.file = bz2.open(p)"],
    "lzma": ["self.file = lzma.open(p)"],
    "gzip": ["self.file = gzip.open(p)"],
    "path": ["self.file = Path(p).open('rb')"],
    "path of its own": ["self.p = p", "self.file = (self.p / 'a').open()"],
    "image": ["self.images = [Image.open(each) for each in paths]"],
    "archive of arrays": ['self.arrays = np.load("a.npz")'],
    "entry": ["self.files[p] = h5py.File(p)"],
    "appended": ["self.files.append(h5py.File(p))"],
    "dict comprehension": ["self.files = {each: h5py.File(each) for each in paths}"],
    "list comprehension": ['self.files = [h5py.File(each)["x"] for each in paths]'],
    "display": ["self.files = (h5py.File(p), None)"],
    "unpacked": ["self.a, self.b = h5py.File(p), 3"],
    "annotated": ["self.file: h5py.File = h5py.File(p)"],
    "by a local name": ["file = h5py.File(p)", 'self.images = file["images"]'],
    "in a local list": ["files = []", "for each in paths:", "    files.append(h5py.File(each))", "self.files = files"],
    "if need be": ["self.file = h5py.File(p) if p else None"],
    "setattr": ['setattr(self, "file", h5py.File(p))'],
    "by a reader": ["self.rows = iter(open(p))"],
}


@pytest.mark.parametrize("lines", KEPT.values(), ids=KEPT.keys())
def test_a_file_that_is_kept_is_seen(lines: list[str]) -> None:
    assert opened_when_made(made_with(*lines), "D")


READ = {
    "with": ["with h5py.File(p) as file:", '    self.images = file["images"][:]'],
    "whole": ['self.images = h5py.File(p)["images"][()]'],
    "text": ["self.text = open(p).read()"],
    "parsed": ["self.labels = json.load(open(p))"],
    "array": ["self.rows = np.load(p)"],
    "one array of an archive": ['self.rows = np.load("a.npz")["rows"]'],
    "pixels": ['self.images = [Image.open(each).convert("RGB") for each in paths]'],
    "closed": ["file = h5py.File(p)", "self.n = len(file)", "file.close()"],
    "later": ["self.open = lambda: h5py.File(p)"],
    "no open file": ["self.rows = zarr.open(p)"],
    "in memory": ["self.file = h5py.File(io.BytesIO(p))"],
}


@pytest.mark.parametrize("lines", READ.values(), ids=READ.keys())
def test_a_file_that_was_read_is_none(lines: list[str]) -> None:
    assert not opened_when_made(made_with(*lines), "D")


ELSEWHERE = {
    "base": "class B(Dataset):\n    def __init__(self, p):\n        self.f = h5py.File(p)\nclass D(B):\n    pass\n",
    "super": (
        "class B(Dataset):\n    def __init__(self, p):\n        self.f = h5py.File(p)\n"
        "class D(B):\n    def __init__(self, p):\n        super().__init__(p)\n"
    ),
    "method": (
        "class D:\n    def __init__(self, p):\n        self.f = self.load(p)\n"
        "    def load(self, p):\n        return h5py.File(p)\n"
    ),
    "property": (
        "class D:\n    def __len__(self):\n        return len(self.f)\n    @property\n    def f(self):\n"
        "        self._f = self._f or h5py.File(self.p)\n        return self._f\n"
    ),
    "function": (
        "def load(p):\n    return h5py.File(p)\n"
        "class D:\n    def __init__(self, p):\n        self.f = load(p)\n"
    ),
    "class body": "class D:\n    f = h5py.File('a.h5')\n",
    "module": "F = h5py.File('a.h5')\nclass D:\n    def __getitem__(self, i):\n        return F['x'][i]\n",
}  # fmt: skip


@pytest.mark.parametrize("code", ELSEWHERE.values(), ids=ELSEWHERE.keys())
def test_a_file_that_is_opened_elsewhere_is_seen(code: str) -> None:
    assert opened_when_made(draft_of(code), "D").startswith("h5py.File(")


def test_a_base_method_that_is_replaced_counts_for_nothing() -> None:
    base = "class B(Dataset):\n    def __init__(self, p):\n        self.f = h5py.File(p)\n"
    assert not opened_when_made(draft_of(base + "class D(B):\n    def __init__(self, p):\n        self.p = p\n"), "D")


def test_a_file_that_is_opened_for_each_sample_is_not_kept() -> None:
    code = (
        "class D:\n    def __getitem__(self, i):\n        image = Image.open(self.p[i])\n        return tensor(image)\n"
    )
    assert not opened_at_first(draft_of(code), "D")


@pytest.mark.parametrize(
    ("code", "seen"),
    [
        ("loader = DataLoader(D(h5py.File(p)))", True),
        ('loader = DataLoader(D(h5py.File(p)["x"], 3))', True),
        ("file = h5py.File(p)\nloader = DataLoader(D(file=file))", True),
        ("files = [h5py.File(each) for each in paths]\nloader = DataLoader(D(files))", True),
        ("with h5py.File(p) as file:\n    loader = DataLoader(D(file))", True),
        ("with h5py.File(p) as file:\n    data = D(file)\nloader = DataLoader(data)", False),
        ('loader = DataLoader(D(h5py.File(p)["x"][:]))', False),
        ("log = open(p)\nloader = DataLoader(D(p))", False),
    ],
)
def test_a_file_that_the_dataset_is_given_is_seen(code: str, seen: bool) -> None:
    draft = draft_of("class D:\n    pass\n" + code + "\n")
    assert bool(opened_outside(draft, "D", loader_in(draft))) is seen


GPU = [
    ("x.cuda()", True),
    ('x.to("cuda:0").cpu()', True),
    ("x.to(device)", True),
    ("x.to(self.device)", True),
    ("torch.zeros(3, device='cuda')", True),
    ('torch.device("cuda:1")', True),
    ("x.to(torch.float32)", False),
    ("x.to(cpu_device)", False),
    ("x.to(mask.device)", False),
    ("x.to('cpu')", False),
]


@pytest.mark.parametrize(("code", "seen"), GPU)
def test_a_dataset_that_uses_the_gpu_is_seen(code: str, seen: bool) -> None:
    device = 'device = "cuda"\ncpu_device = torch.device("cpu")\n'
    made = "class D:\n    def __getitem__(self, i):\n        return self.load(i)\n"
    made += f"    def load(self, x):\n        {code}\n"
    assert bool(uses_gpu(draft_of(device + made), "D")) is seen
    draft = draft_of(f"{device}def collate(rows):\n    {code}\nDataLoader(ds, collate_fn=partial(collate, 3))\n")
    assert bool(collates_on_gpu(draft, loader_in(draft))) is seen


READS = """
level, rows = 1, [0]
level = 2

class D(Dataset):
    def __getitem__(self, i):
        step = 3
        return rows[i] * level + step

loader = DataLoader(D(), 4)
for epoch in range(9):
    for batch in loader:
        train(batch)
"""


@pytest.mark.parametrize("told", ["level += 1", "level = epoch", "rows.append(epoch)", "rows[0] = epoch"])
def test_what_the_dataset_reads_of_the_module_is_told_it(told: str) -> None:
    draft = draft_of(f"{READS}    {told}\n")
    assert told_in_loop(draft, loader_in(draft)) == told


@pytest.mark.parametrize(
    "other",
    [
        "    step = epoch",  # the method has one of its own
        "    losses.append(epoch)",
        "level = 7",  # behind the loop
        "def f():\n    for level in range(3):\n        level += 1",  # a function's own
    ],
)
def test_what_the_dataset_does_not_read_is_no_matter(other: str) -> None:
    draft = draft_of(f"{READS}{other}\n")
    assert told_in_loop(draft, loader_in(draft)) == ""


@pytest.mark.parametrize(
    ("lines", "moved"),
    [
        (["self.at[i] = (self.at[i] + 1) % 9", "return self.rows[self.at[i]]"], "self.at"),
        (["self.at = self.at + 1", "return self.rows[self.at]"], "self.at"),
        (["self.at += 1", "return self.rows[self.at % 9]"], "self.at"),
        (["return next(self.stream)"], "self.stream"),
        (["return self.take()"], "self.queue"),
        (["self.calls += 1", "return self.rows[i]"], ""),
        (["self.seen[i] += 1", "return self.rows[i]"], ""),
        (["self.file = self.file or h5py.File(p)", "return self.file[i]"], ""),
        (["self.file = h5py.File(p) if self.file is None else self.file", "return self.file[i]"], ""),
        (["self.cache[i] = self.load(i)", "self.cache.pop(i - 9)", "return self.cache[i]"], ""),
        (["row = self.rows[i]", "return row.pop()"], ""),
        (["count = next(x for x in self.rows if x)", "return count"], ""),
    ],
)
def test_where_one_sample_leaves_off_the_next_goes_on(lines: list[str], moved: str) -> None:
    body = "".join(f"        {line}\n" for line in lines)
    draft = draft_of(
        f"class D(Dataset):\n    def __getitem__(self, i):\n{body}\n"
        "    def take(self):\n        return self.queue.popleft()\n\n"
        "    def reset(self):\n        self.at = self.at + 9\n"
    )
    assert moves_on(draft, "D") == moved
