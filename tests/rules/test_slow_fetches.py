"""What the making of a batch is held up by: a transform, a line of the dataset, the collate function."""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from advisor.edit import Edit, Sources
from advisor.evidence.loading.fetching import longest_statement, made_at, read_again
from advisor.harness.layout import FetchPart, Loader, Site, TensorInfo
from advisor.harness.layout.loading import ALONE, LASTS
from advisor.rule import Advice, Finding
from rules.loader_workers import LoaderWorkers
from rules.slow_collate import SlowCollate
from rules.slow_transform import SlowTransform

TRANSFORM, COLLATE = SlowTransform(), SlowCollate()

LEAVES = """from torchvision import transforms as T

class Leaves:
    def __getitem__(self, index):
        photo = self.photos[index]
        return self.transform(photo)

train = T.Compose([
    T.RandomHorizontalFlip(),
    T.ColorJitter(0.3),
    T.Resize((64, 64)),
])
test = T.Compose([T.Resize((64, 64))])
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(LEAVES)
    return str(path)


def fed(made: Any, script: str, parts: list[FetchPart], **facts: Any) -> Loader:
    """A loader whose worker takes 100 ms for each batch, of which the step waits 60; it is made of `parts`."""
    loader: Loader = made.loader(**{"wait_ms": 60.0, "fetch_ms": 100.0, "cpu_ms": 95.0, "num_workers": 1, **facts})
    made.record.script = loader.dataset_file = script
    loader.looks, loader.look_s, loader.parts = 2, 0.12, parts
    loader.epochs = 3
    loader.transforms = ["RandomHorizontalFlip", "ColorJitter", "Resize"]
    return loader


def chain(script: str, jitter_ms: float = 96.0, before: int = 102400) -> list[FetchPart]:
    library = Site("/env/site-packages/torchvision/transforms/transforms.py", 1268)
    return [
        FetchPart("line", "__getitem__", Site(script, 6), 0.115),
        FetchPart("line", "__getitem__", Site(script, 5), 0.002),
        FetchPart("transform", "RandomHorizontalFlip.forward", library, 0.002, 0, before, before),
        FetchPart("transform", "ColorJitter", library, jitter_ms / 1e3, 1, before, before),
        FetchPart("transform", "Resize", library, 0.01, 2, before, 4096),
    ]


def found(rule: Any, made: Any, tmp_path: Path) -> Finding | None:
    findings = list(rule.check(made.evidence(tmp_path)))
    assert len(findings) <= 1
    return findings[0] if findings else None


def test_a_transform_before_the_resize_is_found_where_it_is_made(scene: Any, script: str, tmp_path: Path) -> None:
    made = scene(100.0)
    fed(made, script, chain(script))
    finding = found(TRANSFORM, made, tmp_path)
    assert finding is not None and finding.site is not None
    assert LEAVES.splitlines()[finding.site.line - 1].strip() == "T.ColorJitter(0.3),"
    assert "25 times as many pixels as Resize leaves" in finding.summary
    # 80 % of the fetch become 3 %: the step takes the 40 ms in which it does not wait.
    assert finding.gain.low <= 100 / 40 <= finding.gain.high <= 2.000001 * finding.gain.low
    fix = TRANSFORM.fix(finding, Sources())
    assert isinstance(fix, Advice) and "Move ColorJitter after Resize, at train.py:10" in fix.text


def test_a_chain_made_in_a_module_beside_the_script_is_found_there(scene: Any, script: str, tmp_path: Path) -> None:
    main = tmp_path / "main.py"
    main.write_text("from train import train, Leaves\n")
    made = scene(100.0)
    loader = fed(made, script, chain(script))
    made.record.script = loader.dataset_file = str(main)
    finding = found(TRANSFORM, made, tmp_path)
    assert finding is not None and finding.site is not None
    assert (finding.site.file, finding.site.line) == (script, 10)


@pytest.mark.parametrize("name", ["RandomAffine", "RandomPerspective", "ElasticTransform", "GaussianBlur", "add_noise"])
def test_what_depends_on_the_size_is_not_to_be_moved(name: str, scene: Any, script: str, tmp_path: Path) -> None:
    made = scene(100.0)
    parts = chain(script)
    parts[3].name = f"{name}.forward"
    fed(made, script, parts)
    finding = found(TRANSFORM, made, tmp_path)
    assert finding is not None and finding.parameters["kind"] == ("blur" if name == "GaussianBlur" else "heavy")


@pytest.mark.parametrize("name", ["RandPatch", "RandomCrop"])
def test_noise_goes_below_what_cuts_a_part_out(name: str, scene: Any, script: str, tmp_path: Path) -> None:
    made = scene(100.0)
    parts = chain(script)
    parts[3].name, parts[4].name = "RandNoise", name
    fed(made, script, parts).transforms = ["RandomHorizontalFlip", "RandNoise", name]
    finding = found(TRANSFORM, made, tmp_path)
    assert finding is not None and finding.parameters["what"] == f"RandNoise after {name}"


def test_a_resize_that_leaves_most_pixels_makes_nothing_late(scene: Any, script: str, tmp_path: Path) -> None:
    made = scene(100.0)
    fed(made, script, chain(script, before=6400), num_workers=0)
    assert found(TRANSFORM, made, tmp_path) is None


@pytest.mark.parametrize(
    "facts",
    [{"wait_ms": 1.0}, {"fetch_ms": 4.0, "cpu_ms": 4.0, "wait_ms": 1.5}],
    ids=["hidden by the worker", "a small part of the step"],
)
def test_transforms_that_hold_nothing_up_are_not_reported(
    facts: dict[str, float], scene: Any, script: str, tmp_path: Path
) -> None:
    made = scene(100.0)
    fed(made, script, chain(script), **facts)
    assert found(TRANSFORM, made, tmp_path) is None


def looping(script: str) -> list[FetchPart]:
    return [
        FetchPart("line", "__getitem__", Site(script, 6), 0.11),
        FetchPart("transform", "Bands.__call__", Site(script, 3), 0.109),
    ]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loop_over_pieces_of_a_tensor_is_found(workers: int, scene: Any, script: str, tmp_path: Path) -> None:
    made = scene(100.0)
    loader = fed(made, script, looping(script), num_workers=workers)
    loader.item_lines, loader.item_calls = 1185.0, 1246.0
    finding = found(TRANSFORM, made, tmp_path)
    assert finding is not None and finding.site == Site(script, 6)
    assert "1246 calls of torch for each sample" in finding.summary
    fix = TRANSFORM.fix(finding, Sources())
    assert isinstance(fix, Advice) and "unfold()" in fix.text and "train.py:6" in fix.text


_PIECES = {
    "windows of a signal": ("for i in range(0, len(x), 8):\n    out.append(np.mean(x[i : i + 8]))", True),
    "from a start": ("for i in range(9):\n    first = i * 8\n    out[i] = x[first : first + 8].std()", True),
    "cells of a picture": ("for i in range(9):\n    for j in range(9):\n        out[i, j] = x[i, j] - 1", True),
    "a smoother": ("for t in range(1, n):\n    m[t] = 0.9 * m[t - 1] + x[t]", True),
    "pairs of words": ("for i in range(len(x)):\n    out.append(x[i] + x[i + 1])", False),
    "pieces of a text": ("for i in range(len(x)):\n    out.append(x[i : i + 3])", False),
    "words": ("for i in range(len(x)):\n    out[i] = vocabulary[x[i]]", False),
    "rows, by NumPy": ("x = np.apply_along_axis(lambda row: row - row.mean(), 1, self.x[i])", True),
    "no index": ("for word in x:\n    out.append(np.mean(table[word][0:3]))", False),
    "no loop": ("i = 3\nout[0, i] = np.mean(x[i : i + 8])\n\n\n\n", False),
}


@pytest.mark.parametrize("name", _PIECES)
def test_a_loop_over_pieces_of_an_array_is_told_by_its_indices(name: str, scene: Any, tmp_path: Path) -> None:
    body, expected = _PIECES[name]
    script = tmp_path / "train.py"
    lines = ["class Grid:", "    def __getitem__(self, i):", *(f"        {line}" for line in body.splitlines())]
    script.write_text("\n".join(lines))
    last = len(lines) if "no loop" not in name else 4
    made = scene(100.0)
    loader = fed(made, str(script), [FetchPart("line", "__getitem__", Site(str(script), last), 0.11)], num_workers=0)
    loader.item_lines, loader.item_calls = 468.0, 1.0
    finding = found(TRANSFORM, made, tmp_path)
    assert (finding is not None) == expected
    if finding is not None:
        assert finding.parameters["kind"] == "loop" and "468 lines of Python" in finding.summary


def test_loops_of_the_function_that_a_line_calls_have_their_share_of_the_line(scene: Any, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "def smooth(x):\n    y = x.copy()\n    for t in range(1, len(x)):\n        y[t] = y[t - 1] * 0.9 + x[t]\n"
        "    y = numpy.log(y)\n    for t in range(len(x)):\n        y[t] = y[t] - numpy.median(x[t : t + 9])\n"
        "    return y\nclass Sounds:\n    def __getitem__(self, i):\n        return smooth(self.x[i])\n"
    )
    inside = [FetchPart("inside", "smooth", Site(str(script), line), took) for line, took in ((4, 0.1), (7, 0.2))]
    inside.append(FetchPart("inside", "smooth", Site(str(script), 5), 0.1))
    made = scene(100.0)
    line = FetchPart("line", "__getitem__", Site(str(script), 11), 0.11)
    loader = fed(made, str(script), [line, *inside], num_workers=0)
    loader.item_lines, loader.item_calls = 468.0, 1.0
    finding = found(TRANSFORM, made, tmp_path)
    assert finding is not None and finding.site == Site(str(script), 7)
    # The line takes nearly all of the fetch, the two loops three quarters of the line.
    assert finding.evidence["share_of_fetch"] == pytest.approx(0.75 * 0.11 / loader.look_s)


def test_few_large_operators_are_no_loop(scene: Any, script: str, tmp_path: Path) -> None:
    made = scene(100.0)
    loader = fed(made, script, looping(script), num_workers=0)
    loader.item_lines, loader.item_calls = 300.0, 60.0
    loader.batch_size = 1  # 60 calls in 95 ms
    assert found(TRANSFORM, made, tmp_path) is None


def test_python_without_workers_is_for_workers_first(scene: Any, script: str, tmp_path: Path) -> None:
    made = scene(100.0)
    parts = [FetchPart("line", "__getitem__", Site(script, 6), 0.11)]
    loader = fed(made, script, parts, num_workers=0)
    loader.item_lines, loader.item_calls = 6000.0, 1.0
    assert found(TRANSFORM, made, tmp_path) is None
    loader.num_workers = 2
    finding = found(TRANSFORM, made, tmp_path)
    assert finding is not None and finding.site == Site(script, 6)


def test_what_waits_for_a_server_is_no_slow_transform(scene: Any, script: str, tmp_path: Path) -> None:
    made = scene(100.0)
    fed(made, script, looping(script), num_workers=2)
    assert found(TRANSFORM, made, tmp_path) is not None
    made = scene(100.0)
    fed(made, script, looping(script), num_workers=2, cpu_ms=10.0)
    assert found(TRANSFORM, made, tmp_path) is None


def collating(name: str, file: str, seconds: float) -> list[FetchPart]:
    return [FetchPart("collate", name, Site(file, 24), seconds), FetchPart("line", "__getitem__", Site(file, 6), 0.01)]


def test_a_collate_number_by_number_is_found_where_it_is_written(scene: Any, script: str, tmp_path: Path) -> None:
    made = scene(100.0)
    loader = fed(made, script, collating("to_batch", script, 0.11))
    loader.collate_lines, loader.collate_calls = 359.0, 237.0
    finding = found(COLLATE, made, tmp_path)
    assert finding is not None and finding.site == Site(script, 24)
    assert "to_batch (train.py:24) takes 92% of making a batch" in finding.summary
    assert finding.gain.high <= 2.000001 * finding.gain.low
    fix = COLLATE.fix(finding, Sources())
    assert isinstance(fix, Advice) and "pad_sequence" in fix.text and "to_batch (train.py:24)" in fix.text


@pytest.mark.parametrize(
    ("name", "file", "seconds", "calls", "facts"),
    [
        ("default_collate", "/env/site-packages/torch/utils/data/_utils/collate.py", 0.11, 60.0, {}),
        ("to_batch", "", 0.11, 2.0, {}),
        ("to_batch", "", 0.02, 237.0, {}),
        ("to_batch", "", 0.11, 237.0, {"wait_ms": 1.0}),
    ],
    ids=["torch's own, of large tensors", "stacks whole samples", "a small part", "hidden by the worker"],
)
def test_a_collate_that_holds_nothing_up_is_not_reported(
    name: str, file: str, seconds: float, calls: float, facts: Any, scene: Any, script: str, tmp_path: Path
) -> None:
    made = scene(100.0)
    loader = fed(made, script, collating(name, file or script, seconds), **facts)
    loader.collate_lines, loader.collate_calls = calls, calls
    assert found(COLLATE, made, tmp_path) is None


TORCHS = "/env/site-packages/torch/utils/data/_utils/collate.py"
OF_TRANSFORMERS = "/env/site-packages/transformers/data/data_collator.py"


@pytest.mark.parametrize(
    ("name", "file", "listed", "seconds", "tells"),
    [
        ("default_collate", TORCHS, 512, 0.11, "one tensor then"),
        ("default_data_collator", OF_TRANSFORMERS, 12288, 0.11, "np.asarray(numbers"),
        ("default_data_collator", OF_TRANSFORMERS, 12288, 0.02, ""),
        ("default_data_collator", OF_TRANSFORMERS, 0, 0.11, ""),
        ("__call__", OF_TRANSFORMERS, 512, 0.11, ""),
    ],
    ids=["torch's own", "of transformers", "a small part", "arrays", "that pads tokens"],
)
def test_numbers_in_lists_are_found_where_the_dataset_is_written(
    name: str, file: str, listed: int, seconds: float, tells: str, scene: Any, script: str, tmp_path: Path
) -> None:
    made = scene(100.0)
    loader = fed(made, script, collating(name, file, seconds))
    loader.listed, loader.source, loader.source_site = listed, "data.Windows", Site(script, 3)
    finding = found(COLLATE, made, tmp_path)
    assert (finding is not None) == bool(tells)
    if finding is not None:
        assert finding.site == Site(script, 3) and f"Windows gives {listed:,} numbers" in finding.summary
        assert finding.gain.likely > 1.5
        fix = COLLATE.fix(finding, Sources())
        assert isinstance(fix, Advice) and tells in fix.text


def test_the_lines_of_a_loop_are_one_statement(tmp_path: Path) -> None:
    path = tmp_path / "data.py"
    path.write_text(
        "def __getitem__(self, i):\n    x = self.load(i)\n    for j in range(9):\n        x = a(x)\n        x = b(x)\n"
        "    return x\n"
    )
    seconds = {2: 0.03, 3: 0.005, 4: 0.02, 5: 0.025, 6: 0.001}
    parts = [FetchPart("line", "__getitem__", Site(str(path), line), took) for line, took in seconds.items()]
    longest = longest_statement(Loader(parts=parts))
    assert longest is not None
    assert longest.site.line == 5 and longest.seconds == pytest.approx(0.05)


def test_a_transform_that_is_made_twice_is_told_by_its_chain(script: str) -> None:
    part = FetchPart("transform", "Resize", Site(), 0.1, order=2)
    names = ["RandomHorizontalFlip", "ColorJitter", "Resize"]
    site = made_at([script], part, names)
    assert site is not None and site.line == 11
    assert made_at([script], part, ["Resize", "ToTensor", "Resize"]) is None


PHOTOS = """import numpy as np
from PIL import Image, ImageEnhance

class Photos:
    def __getitem__(self, index):
        photo = Image.open(self.paths[index]).convert("RGB")
        photo = photo.{first}
        photo = ImageEnhance.Contrast(photo).enhance(1.3)
        photo = photo.{smaller}
        return np.asarray(photo)
"""


def inline(
    folder: Path, first: str = "rotate(12)", smaller: str = "resize((64, 64))", left: int = 4096
) -> tuple[str, list[FetchPart]]:
    path = folder / "photos.py"
    path.write_text(PHOTOS.format(first=first, smaller=smaller))
    full = 102400
    lines = ((6, 0, full, 0.02), (7, full, full, 0.05), (8, full, full, 0.03), (9, full, left, 0.015))
    return str(path), [
        FetchPart("line", "__getitem__", Site(str(path), line), seconds, 0, given, gave)
        for line, given, gave, seconds in lines
    ]


def test_lines_on_pixels_that_a_later_line_throws_away(scene: Any, tmp_path: Path) -> None:
    made = scene(100.0)
    path, parts = inline(tmp_path)
    fed(made, path, parts)
    (finding,) = TRANSFORM.check(made.evidence(tmp_path))
    assert finding.site is not None and finding.site.line == 7
    assert "photos.py:7, 8 take 67% of making a batch, on 25 times as many pixels" in finding.summary
    advice = TRANSFORM.fix(finding, Sources())
    assert isinstance(advice, Advice) and "Move what lines 7, 8 do below line 9" in advice.text
    assert finding.gain.likely > 1.5


@pytest.mark.parametrize(
    ("facts", "lines"),
    [
        ({"smaller": "crop((0, 0, 64, 64))"}, [8]),  # a crop would have cut the corners off
        ({"first": "filter(ImageFilter.GaussianBlur(3))"}, [8]),  # reaches three pixels, whatever the picture's size
        ({"first": "convert('L')"}, [8]),  # decodes
        ({"smaller": "read_mask(index, photo)"}, []),  # another picture
        ({"left": 90_000}, []),
    ],
)
def test_lines_that_need_the_whole_picture_stay(
    facts: dict[str, Any], lines: list[int], scene: Any, tmp_path: Path
) -> None:
    made = scene(100.0)
    path, parts = inline(tmp_path, **facts)
    fed(made, path, parts)
    found = list(TRANSFORM.check(made.evidence(tmp_path)))
    assert [each.site.line for each in found if each.site is not None] == lines


def test_another_array_is_no_smaller_picture(scene: Any, tmp_path: Path) -> None:
    path, parts = inline(tmp_path)
    text = Path(path).read_text()
    for smaller in ("small = photo.resize((64, 64))", "boxes = boxes[boxes[:, 2] > 4]", "mask = mask.resize((64, 64))"):
        Path(path).write_text(text.replace("photo = photo.resize((64, 64))", smaller))
        linecache.clearcache()
        made = scene(100.0)
        fed(made, path, parts)
        assert not list(TRANSFORM.check(made.evidence(tmp_path))), smaller


def test_a_rotation_goes_below_a_resize_and_not_below_a_crop(scene: Any, script: str, tmp_path: Path) -> None:
    for smaller, kind in (("Resize", "early"), ("RandomResizedCrop", "heavy")):
        made = scene(100.0)
        parts = chain(script)
        parts[3].name, parts[4].name = "RandomRotation", smaller
        fed(made, script, parts)
        finding = found(TRANSFORM, made, tmp_path)
        assert finding is not None and finding.parameters["kind"] == kind


@pytest.mark.parametrize(
    ("line", "seconds", "expected"),
    [
        ("rows = json.load(open(self.paths[index]))", 0.09, True),
        ("rows = pd.read_csv(self.paths[index])", 0.09, True),
        ("rows = json.loads(self.paths[index].read_text())", 0.09, True),
        ("rows = json.loads(self.lines[index])", 0.09, False),  # in memory already
        ("rows = pickle.loads(self.db[index])", 0.09, False),
        ("rows = np.load(self.paths[index])", 0.09, False),
        ("rows = json.load(open(self.paths[index]))", 0.02, False),  # what follows takes more
    ],
)
def test_a_file_of_text_that_is_read_for_each_sample(
    line: str, seconds: float, expected: bool, scene: Any, tmp_path: Path
) -> None:
    path = tmp_path / "sites.py"
    path.write_text(f"class Sites:\n    def __getitem__(self, index):\n        {line}\n        return f(rows)\n")
    made = scene(100.0)
    parts = [("line", 3, seconds), ("line", 4, 0.03)]
    fed(made, str(path), [FetchPart(kind, "f", Site(str(path), at), took) for kind, at, took in parts], num_workers=0)
    finding = found(TRANSFORM, made, tmp_path)
    assert (finding is not None) == expected
    if finding is not None:
        assert finding.site is not None and finding.site.line == 3 and finding.parameters["kind"] == "parse"
        advice = TRANSFORM.fix(finding, Sources())
        assert isinstance(advice, Advice) and "__init__" in advice.text


@pytest.mark.parametrize(("loop", "told"), [("", False), ("for epoch in range(30):\n    train()\n", True)])
def test_what_is_read_in_one_epoch_only_is_read_once(loop: str, told: bool, scene: Any, tmp_path: Path) -> None:
    path = tmp_path / "sites.py"
    line = "return f(json.load(open(self.paths[index])))"
    path.write_text(f"class Sites:\n    def __getitem__(self, index):\n        {line}\n{loop}")
    made = scene(100.0)
    fed(made, str(path), [FetchPart("line", "f", Site(str(path), 3), 0.1)], num_workers=0).epochs = 1
    finding = found(TRANSFORM, made, tmp_path)
    assert (finding is not None) is told


@pytest.mark.parametrize(
    ("lines", "changed", "expected"),
    [
        (["with np.load(self.paths[i]) as file:", "    x = file['x']"], {}, "np.load"),
        (["", "x = Image.open(self.paths[i]).convert('RGB')"], {}, "Image.open"),
        (["", "x = cv2.imread(self.paths[i])"], {}, "cv2.imread"),
        (["", "x = Image.open(self.paths[i])"], {"epochs": 1}, ""),  # nobody knows whether there is another
        (["", "x = Image.open(self.paths[i])"], {"dataset_length": 10_000_000}, ""),
        (["", "x = Image.open(self.paths[i])"], {"dataset_length": None}, ""),
        (["", "x = np.fft.rfft(self.rows[i])"], {}, ""),
        (["image = Image.open(self.paths[i])", "x = np.asarray(image.convert('L'))"], {}, "Image.open"),
        (["", "x = torch.from_numpy(np.load(self.paths[i])['x'][2:]).float()"], {}, "np.load"),
        (["image = cv2.imread(self.paths[i])", "x = self.augment(image=image)['image']"], {}, ""),
        (["wave = np.load(self.paths[i])", "x = wave + np.random.normal(0, 1, wave.shape)"], {}, ""),
        (["", "x = torch.load(io.BytesIO(self.memory[i]))"], {}, ""),
        (["", "x = self.transform(Image.open(self.paths[i]))"], {"transform": 0.07}, ""),
    ],
)
def test_files_that_are_decoded_in_every_epoch(
    lines: list[str], changed: dict[str, Any], expected: str, scene: Any, tmp_path: Path
) -> None:
    path = tmp_path / "tiles.py"
    body = "".join(f"        {each}\n" for each in lines)
    path.write_text(f"class Tiles:\n    def __getitem__(self, i):\n{body}        return f(x)\n")
    made = scene(100.0)
    parts = [FetchPart("line", "__getitem__", Site(str(path), 4), 0.1)]
    if "transform" in changed:
        parts.append(FetchPart("transform", "Blur", Site(str(path), 4), changed["transform"]))
    loader = fed(made, str(path), parts, num_workers=0)
    loader.tensors = [TensorInfo([32, 3, 64, 64], "float32", "cpu", False, 32 * 3 * 64 * 64 * 4)]
    loader.dataset_length, loader.epochs = changed.get("dataset_length", 500), changed.get("epochs", 3)
    made.record.environment.usable_cpus = 1
    finding = found(TRANSFORM, made, tmp_path)
    assert (finding.parameters["kind"] == "decode" if finding is not None else False) == bool(expected)
    if expected:
        assert finding is not None and finding.parameters["what"] == expected and "25 MB" in finding.summary
        assert finding.site is not None and finding.site.line == 4


@pytest.mark.parametrize(
    ("draws", "transforms", "later", "told"),
    [
        (False, ["torchvision.transforms.transforms.Resize"], "", True),
        (False, [], "", True),
        (True, [], "", False),
        (None, [], "", False),  # nobody has asked
        (False, ["torchvision.transforms.transforms.RandomCrop"], "", False),
        (False, ["my.transforms.Resize", "my.Mix"], "", False),
        (False, [], "    def set_size(self, size):\n        self.size = size\n", False),
    ],
)
def test_all_of_a_sample_is_kept_where_nothing_of_it_is_drawn(
    draws: bool | None, transforms: list[str], later: str, told: bool, scene: Any, tmp_path: Path
) -> None:
    """Decoding is a third of it, which alone is not worth a word."""
    path = tmp_path / "tiles.py"
    path.write_text(
        "class Tiles:\n    def __getitem__(self, i):\n        x = Image.open(self.paths[i]).convert('L')\n"
        f"        y = self.shrink(x)\n        return self.sharpen(y, self.size)\n{later}"
    )
    made = scene(100.0)
    parts = [
        FetchPart("line", "__getitem__", Site(str(path), at), took) for at, took in ((3, 0.035), (4, 0.033), (5, 0.03))
    ]
    loader = fed(made, str(path), parts, num_workers=0)
    loader.tensors = [TensorInfo([32, 3, 64, 64], "float32", "cpu", False, 32 * 3 * 64 * 64 * 4)]
    loader.dataset_length, loader.epochs, loader.draws, loader.transforms = 500, 3, draws, transforms
    made.record.environment.usable_cpus = 1
    finding = found(TRANSFORM, made, tmp_path)
    assert (finding is not None) is told
    if finding is not None:
        assert finding.parameters["kind"] == "decode" and "nothing is drawn" in finding.summary


HELPER = """class Sites:
    def __getitem__(self, index):
        rows = self.read(self.paths[index])
        return f(rows)

    @staticmethod
    def read(path):
        found = LINE
        return found[1:]
"""


@pytest.mark.parametrize(
    ("line", "inside_s", "kind"),
    [
        ("pd.read_csv(path)", 0.085, "parse"),
        ("pd.read_csv(path)", 0.06, None),  # the line does other things, too
        ("np.load(path)", 0.085, None),  # another file for each sample
        ("np.load(Sites.path)", 0.085, "again"),
    ],
)
def test_a_line_is_what_nearly_all_of_it_calls(
    line: str, inside_s: float, kind: str | None, scene: Any, tmp_path: Path
) -> None:
    path = tmp_path / "sites.py"
    path.write_text(HELPER.replace("LINE", line))
    made = scene(100.0)
    parts = [("line", 3, 0.09), ("inside", 8, inside_s), ("inside", 9, 0.001)]
    fed(made, str(path), [FetchPart(name, "f", Site(str(path), at), took) for name, at, took in parts], num_workers=0)
    finding = found(TRANSFORM, made, tmp_path)
    assert (finding.parameters["kind"] if finding is not None else None) == kind
    if finding is not None:
        assert finding.site == Site(str(path), 8)
        assert finding.gain.likely > (2 if kind == "parse" else 1.4)  # the line that calls it is no work beside it


HELD = """class Patches:
    def __getitem__(self, i):
        self.at = self.paths[i]
        return self.take()

    def take(self):
        return np.load(self.at)
"""


def test_what_the_samples_set_is_not_the_same_for_all(scene: Any, tmp_path: Path) -> None:
    path = tmp_path / "patches.py"
    path.write_text(HELD)
    made = scene(100.0)
    parts = [FetchPart(kind, "f", Site(str(path), at), 0.11) for kind, at in [("line", 4), ("inside", 7)]]
    fed(made, str(path), parts, num_workers=0)
    assert found(TRANSFORM, made, tmp_path) is None
    path.write_text(path.read_text().replace("self.at = ", "at = "))
    finding = found(TRANSFORM, made, tmp_path)
    assert finding is not None and finding.site == Site(str(path), 7)


ARCHIVE = """import numpy as np

class Patches:
    def __init__(self, path, rows):
        self.path, self.archive, self.rows = path, np.load(path), rows
        self.held = np.load(path)
        self.read = {"x": rows}

    def __getitem__(self, i):
        path = self.path
        return LINE
"""


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("self.held['x'][i]", "self.held['x']"),
        ("torch.from_numpy(self.held['x'][i]).float()", "self.held['x']"),
        ("np.load(self.path)[i]", "np.load(self.path)"),
        ("torch.load('all.pt', weights_only=True)[i]", "torch.load('all.pt', weights_only=True)"),
        ("pd.read_parquet(self.path).iloc[i]", "pd.read_parquet(self.path)"),
        ("np.load(self.paths[i])", ""),  # a file of its own
        ("np.load(f'{self.path}/{i}.npy')", ""),
        ("np.load(path)[i]", ""),  # a variable's: what it holds is not looked into
        ("self.held[i]", ""),
        ("self.read['x'][i]", ""),
        ("self.loads(self.path)[i]", ""),
    ],
)
def test_what_is_the_same_for_all_samples_is_read_once(line: str, what: str, scene: Any, tmp_path: Path) -> None:
    script = tmp_path / "patches.py"
    script.write_text(ARCHIVE.replace("LINE", line))
    made = scene(100.0)
    fed(made, str(script), [FetchPart("line", "__getitem__", Site(str(script), 11), 0.11)], num_workers=0)
    finding = found(TRANSFORM, made, tmp_path)
    assert (finding is not None) == bool(what)
    if finding is not None:
        assert finding.parameters["what"] == what and finding.site == Site(str(script), 11)
        advice = TRANSFORM.fix(finding, Sources())
        assert isinstance(advice, Advice) and f"Read {what} once" in advice.text
        # Of 100 ms in which a batch is made the step waits for 60: all of them go.
        assert finding.gain.likely > 2


TOKENS = """class Mails:
    def __getitem__(self, i):
        return self.tokenizer(self.texts[i])
"""


RECORDS = """
import torch

class Records:
    def __getitem__(self, index):
        item = {cut}self.records[index]
        return self.transform(item)

class Bandpass:
    def __call__(self, x):
        return torch.fft.irfft(torch.fft.rfft(x) * self.gain)

class Window:
    def __call__(self, x):
        return x[torch.randint(9, ()):]

for epoch in range(30):
    train()
"""


@pytest.mark.parametrize(
    ("cut", "order", "told"),
    [
        pytest.param("", (0, 1), True, id="before what draws"),
        pytest.param("", (1, 0), False, id="behind it"),
        pytest.param("augmented(9) + ", (0, 1), False, id="of another one each time"),
    ],
)
def test_transforms_before_the_first_that_draws_are_done_once(
    cut: str, order: tuple[int, int], told: bool, scene: Any, tmp_path: Path
) -> None:
    made, path = scene(100.0), tmp_path / "train.py"
    path.write_text(RECORDS.replace("{cut}", cut))
    script = str(path)
    parts = [
        FetchPart("line", "__getitem__", Site(script, 7), 0.115),
        FetchPart("transform", "Bandpass", Site(script, 10), 0.1, order[0]),
        FetchPart("transform", "Window", Site(script, 14), 0.005, order[1]),
    ]
    fed(made, script, parts)
    finding = found(TRANSFORM, made, tmp_path)
    assert (finding is not None and finding.parameters["kind"] == "leading") is told
    if told and finding is not None:
        assert "Bandpass takes 83% of making a batch" in finding.summary and finding.site == Site(script, 10)
        fix = TRANSFORM.fix(finding, Sources())
        assert isinstance(fix, Advice) and "Give each record to Bandpass once" in fix.text


def test_texts_that_are_tokenized_anew_are_for_workers_first(scene: Any, tmp_path: Path) -> None:
    script = tmp_path / "mails.py"
    script.write_text(TOKENS)
    made = scene(100.0)
    parts = [FetchPart("line", "__getitem__", Site(str(script), 3), 0.11), FetchPart("transform", "TokenizersBackend")]
    parts[1].seconds = 0.1
    fed(made, str(script), parts, num_workers=0)
    assert found(TRANSFORM, made, tmp_path) is None
    made.record.environment.usable_cpus = 1.0  # where a worker would take the step's own core
    finding = found(TRANSFORM, made, tmp_path)
    assert finding is not None and finding.site == Site(str(script), 3) and finding.parameters["kind"] == "tokenize"
    advice = TRANSFORM.fix(finding, Sources())
    assert isinstance(advice, Advice) and "before the training" in advice.text


SHARDS = """
import numpy as np

class Shards:
    def __init__(self, paths):
        self.paths = paths
        self.kept = np.load(paths[0])

    def __getitem__(self, i):
        LINE
        return x
"""


KEPT = """import numpy as np

class Fields:
    def __init__(self, paths):
        self.fields = [np.load(path) for path in paths]

    def __getitem__(self, i):
        field, row = self.locate(i)
        return field["images"][row], field["labels"][row]
"""


@pytest.mark.parametrize(
    ("changed", "lines", "expected"),
    [
        ({}, 0, True),
        ({}, 1, False),
        ({"dataset": "mine.Dataset"}, 0, False),
        ({"epochs": 1}, 0, False),
        ({"collate": "transformers.data.data_collator.DataCollatorWithPadding"}, 0, False),
    ],
)
def test_rows_that_a_library_formats_in_every_epoch(
    changed: dict[str, Any], lines: int, expected: bool, scene: Any, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text('ds.set_format("torch")\nloader = DataLoader(ds, 32)\n')
    made = scene(100.0)
    parts = [FetchPart("line", "augment", Site(str(script), 1), 0.1)] * lines
    loader = fed(made, str(script), [FetchPart("collate", "default_collate", seconds=0.001), *parts], num_workers=0)
    loader.dataset, loader.epochs = changed.get("dataset", "datasets.arrow_dataset.Dataset"), changed.get("epochs", 3)
    loader.tensors = [TensorInfo([32, 1, 48, 48], "float32", "cpu", False, 32 * 48 * 48 * 4)]
    loader.dataset_length, loader.transforms, loader.site = 500, [], Site(str(script), 2)
    loader.collate = changed.get("collate", "torch.utils.data._utils.collate.default_collate")
    made.record.environment.usable_cpus = 1
    finding = found(TRANSFORM, made, tmp_path)
    assert (finding is not None and finding.parameters["kind"] == "formatted") == expected
    if finding is not None and expected:
        advice = TRANSFORM.fix(finding, Sources())
        assert isinstance(advice, Advice) and "TensorDataset" in advice.text and "train.py:2" in advice.text


@pytest.mark.parametrize(("row_bytes", "edit"), [(1000.0, True), (1e6, False), (None, False)])
def test_members_of_archives_that_stay_open_are_read_once(
    row_bytes: float | None, edit: bool, scene: Any, tmp_path: Path
) -> None:
    script = tmp_path / "fields.py"
    script.write_text(KEPT)
    made = scene(100.0)
    site = Site(str(script), 9)
    parts = [
        FetchPart("line", "__getitem__", site, 0.115),
        FetchPart("npz", "images", site, 0.09),
        FetchPart("npz", "labels", site, 0.01),
    ]
    loader = fed(made, str(script), parts, num_workers=0)
    loader.archive_row_bytes = row_bytes
    finding = found(TRANSFORM, made, tmp_path)
    assert finding is not None and finding.site == site
    assert finding.parameters["what"] == "field['images']" and "(with 1 more) takes 83%" in finding.summary
    fix = TRANSFORM.fix(finding, Sources())
    assert isinstance(fix, Edit) is edit
    if isinstance(fix, Edit):
        (after,) = fix.after.values()
        assert "self.fields = [dict(np.load(path)) for path in paths]" in after.text


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("with np.load(self.paths[i // 9]) as shard: x = shard['x'][i % 9]", ("shard['x']", True)),
        ("x = np.load(self.paths[i // 9])['x'][i % 9]", ("np.load(self.paths[i // 9])['x']", True)),
        ("shard = np.load(self.paths[i // 9]); x = shard['x'][i % 9]", ("shard['x']", True)),
        ("s, r = divmod(i, 9); shard = np.load(self.paths[s]); x = shard['x'][r]", ("shard['x']", True)),
        ("x = self.kept['x'][i]", ("self.kept['x']", False)),
        ("z = np.load(self.paths[i]); x = z['x'][None]", ("", True)),
        ("z = np.load(self.paths[i]); x = z['x'][()]", ("", True)),
        ("z = np.load(self.paths[i]); x = z['x'][:, :3]", ("", True)),
        ("p = self.paths[i]; s = self.starts[i]; x = np.load(p)['x'][s : s + 9]", ("", True)),  # a window of its own
        ("p = self.paths[i]; s = self.starts[i]; x = np.load(p)['x'][s]", ("", True)),
        ("x = np.load(self.paths[i])['x']", ("", True)),  # a file for each sample
        ("shard = self.open(i); x = shard['x'][i % 9]", ("", True)),  # which may be in memory
        ("x = np.load(self.paths[i // 9], mmap_mode='r')[i % 9]", ("", True)),
        # The part is taken further on.
        (
            "z = np.load(self.paths[i // 9]); x, y = z['x'], z['y']; t = self.corner(i); x = x[:, t : t + 9]",
            ("z['x']", True),
        ),
        ("z = np.load(self.paths[i // 9]); x = z['x'].astype('f4'); x = ((x - x.mean()) / 2)[i % 9]", ("z['x']", True)),
        ("p, n = self.items[i]; z = np.load(p); x = z['x'] / 255; x = x[n]", ("z['x']", True)),
        ("p, n = self.items[i]; x = np.load(p)['x'][n]", ("np.load(p)['x']", True)),
        ("p, y = self.items[i]; t = randint(9); x = np.load(p)['x']; x = x[t : t + 9]", ("", True)),  # a random crop
        ("z = np.load(self.paths[i // 9]); x = z['x']; t = randint(9); x = x[:, t : t + 9]", ("", True)),
        ("z = np.load(self.paths[i]); x = z['x']; t = self.corner(i); x = x[:, t : t + 9]", ("", True)),
        ("z = np.load(self.paths[i // 9]); x = z['x'].sum() * self.w[i]", ("", True)),
    ],
)
def test_archives_that_are_read_whole_for_one_row_are_told(
    line: str, expected: tuple[str, bool], tmp_path: Path
) -> None:
    path = tmp_path / "shards.py"
    path.write_text(SHARDS.replace("LINE", line))
    assert read_again(FetchPart("line", "__getitem__", Site(str(path), 10), 1.0)) == expected


@pytest.mark.parametrize(
    ("line", "changed", "expected"),
    [
        ("x = self.bands(self.rows[i])", {}, True),
        ("x = self.bands(self.rows[i])", {"cpu_ms": 2.0}, False),  # 60 us a sample
        ("x = self.bands(self.rows[i])", {"epochs": 1}, False),
        ("x = self.bands(self.rows[i])", {"epochs": 1, "loop": "for epoch in range(args.epochs):"}, True),
        ("x = self.bands(self.rows[i])", {"epochs": 1, "loop": "for _epoch in tqdm(range(4)):"}, True),
        ("x = self.bands(self.rows[i])", {"epochs": 1, "loop": "for epoch in range(1):"}, False),
        ("x = self.bands(self.rows[i])", {"dataset_length": 1_000_000}, False),
        ("x = self.bands(self.rows[i] * np.random.rand())", {}, False),
        ("x = np.log(self.rows[i])", {}, False),
    ],
)
def test_what_is_computed_in_every_epoch_anew(
    line: str, changed: dict[str, Any], expected: bool, scene: Any, tmp_path: Path
) -> None:
    path = tmp_path / "rows.py"
    path.write_text(
        f"import numpy as np\n\nclass Rows:\n    def __getitem__(self, i):\n        {line}\n        return x\n\n"
        "    def bands(self, row):\n        return np.abs(np.fft.rfft(row)).reshape(32, -1).mean(1)\n\n"
        f"def main(args):\n    {changed.get('loop', 'if args:')}\n        pass\n"
    )
    made = scene(100.0)
    parts = [FetchPart("line", "__getitem__", Site(str(path), 5), 0.1)]
    loader = fed(made, str(path), parts, cpu_ms=changed.get("cpu_ms", 95.0), fetch_ms=changed.get("cpu_ms", 100.0))
    loader.tensors = [TensorInfo([32, 3, 64, 64], "float32", "cpu", False, 32 * 3 * 64 * 64 * 4)]
    loader.dataset_length, loader.epochs = changed.get("dataset_length", 500), changed.get("epochs", 3)
    loader.site = Site(str(path), 1)
    finding = found(TRANSFORM, made, tmp_path)
    assert (finding is not None and finding.parameters["kind"] == "compute") == expected
    if expected:
        assert finding is not None and finding.site == Site(str(path), 5)
        assert "bands computes the same" in finding.summary
        advice = TRANSFORM.fix(finding, Sources())
        assert isinstance(advice, Advice) and "Compute what bands returns at rows.py:5 once" in advice.text


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("x = torch.from_numpy(self.x[i].toarray()[0]).float()", "self.x"),
        ("x = torch.as_tensor(features[i].todense()).squeeze(0)", "features"),
        ("x = self.x[i]", ""),
        ("x = self.graph(i).toarray()", ""),
    ],
)
def test_rows_of_sparse_matrices_one_by_one(line: str, told: str, scene: Any, tmp_path: Path) -> None:
    path = tmp_path / "rows.py"
    path.write_text(f"class Rows:\n    def __getitem__(self, i):\n        {line}\n        return x\n")
    made = scene(100.0)
    fed(made, str(path), [FetchPart("line", "__getitem__", Site(str(path), 3), 0.1)])
    finding = found(TRANSFORM, made, tmp_path)
    assert (finding.parameters["what"] if finding is not None else "") == told
    if finding is not None and told:
        advice = TRANSFORM.fix(finding, Sources())
        assert isinstance(advice, Advice) and f"x = {told}[indices].toarray()" in advice.text


@pytest.mark.parametrize(("wait_ms", "told"), [(75.0, True), (50.0, False)])
def test_what_is_better_kept_than_made_by_workers(wait_ms: float, told: bool, scene: Any, tmp_path: Path) -> None:
    path = tmp_path / "rows.py"
    path.write_text(
        "import numpy as np\n\nclass Rows:\n    def __getitem__(self, i):\n        x = self.bands(self.rows[i])\n"
        "        return x\n\n    def bands(self, row):\n        return np.abs(np.fft.rfft(row))\n"
    )
    made = scene(100.0)
    made.record.environment.usable_cpus = 2.0
    parts = [FetchPart("line", "__getitem__", Site(str(path), 5), wait_ms / 1e3)]
    loader = fed(made, str(path), parts, wait_ms=wait_ms, fetch_ms=wait_ms, cpu_ms=wait_ms, num_workers=0)
    loader.dataset_length, loader.epochs, loader.look_s = 500, 3, wait_ms / 1e3
    assert list(LoaderWorkers().check(made.evidence(tmp_path)))  # they would be worth it in both
    finding = found(TRANSFORM, made, tmp_path)
    assert (finding is not None) == told
    assert finding is None or "workers would do as much beside the step" in finding.summary


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, True),
        ({"transforms": ["ToTensor", "RandomCrop"]}, False),
        ({"source": "torchvision.datasets.folder.ImageFolder"}, False),  # which reads files
        ({"source": "__main__.MNIST"}, False),
        ({"source": "__main__.Split", "wraps": "torchvision.datasets.mnist.MNIST"}, True),
        ({"source": "__main__.Split", "wraps": "__main__.Scans"}, False),
        ({"epochs": 1}, False),
        ({"epochs": 1, "script": "trainer = Trainer(max_epochs=4)\n"}, True),
        ({"epochs": 1, "script": "trainer = Trainer(max_epochs=1)\n"}, False),
        ({"dataset_length": 10_000_000}, False),
        ({"seconds": 0.03}, False),
    ],
)
def test_pictures_in_memory_that_each_epoch_transforms_alike(
    changed: dict[str, Any], expected: bool, scene: Any, tmp_path: Path
) -> None:
    path = tmp_path / "digits.py"
    path.write_text("loader = DataLoader(data)\n" + changed.get("script", ""))
    library = Site("/env/site-packages/torchvision/transforms/transforms.py", 129)
    made = scene(100.0)
    loader = fed(made, str(path), [FetchPart("transform", "ToTensor", library, changed.get("seconds", 0.09))])
    loader.transforms = changed.get("transforms", ["ToTensor", "Normalize"])
    loader.tensors = [TensorInfo([32, 1, 28, 28], "float32", "cpu", False, 32 * 28 * 28 * 4)]
    loader.source, loader.site = changed.get("source", "torchvision.datasets.mnist.MNIST"), Site(str(path), 1)
    loader.wraps = changed.get("wraps", "")
    loader.dataset_length, loader.epochs = changed.get("dataset_length", 60_000), changed.get("epochs", 3)
    finding = found(TRANSFORM, made, tmp_path)
    assert (finding is not None and finding.parameters["kind"] == "pictures") == expected
    if expected:
        assert finding is not None and finding.site == Site(str(path), 1) and "188 MB" in finding.summary
        advice = TRANSFORM.fix(finding, Sources())
        assert isinstance(advice, Advice) and "TensorDataset(x, y)" in advice.text


ROOMS = """import numpy as np
from scipy import signal
import helpers

class Rooms:
    def __getitem__(self, i):
        wet = np.convolve(self.waves[i], self.rooms[i % 7])
        slow = signal.resample_poly(wet, 3, 2)
        return np.abs(helpers.cut(slow))
"""


def in_rooms(scene: Any, tmp_path: Path, line: int, parts: Sequence[FetchPart] = ()) -> Finding | None:
    made, path = scene(100.0), tmp_path / "rooms.py"
    path.write_text(ROOMS)
    (tmp_path / "helpers.py").write_text("def cut(x):\n    return x[:100]\n")
    fed(made, str(path), [FetchPart("line", "__getitem__", Site(str(path), line), 0.11), *parts])
    return found(TRANSFORM, made, tmp_path)


@pytest.mark.parametrize(("taps", "told"), [(8000, True), (2400, True), (1200, False)])
def test_long_kernels_are_for_fourier_transforms(taps: int, told: bool, scene: Any, tmp_path: Path) -> None:
    site = Site(str(tmp_path / "rooms.py"), 7)
    finding = in_rooms(scene, tmp_path, 7, [FetchPart("convolve", "convolve", site, 0.108, 0, 16000, taps)])
    assert (finding is not None and finding.parameters["kind"] == "convolve") is told
    if finding is not None and told:
        assert f"np.convolve goes through 16,000 numbers for each of {taps:,}" in finding.summary
        fix = TRANSFORM.fix(finding, Sources())
        assert isinstance(fix, Edit)
        assert "wet = signal.fftconvolve(self.waves[i], self.rooms[i % 7])" in next(iter(fix.texts.values()))


@pytest.mark.parametrize(("line", "what"), [(8, "signal.resample_poly"), (9, ""), (7, "")])
def test_what_a_library_computes_for_each_sample(line: int, what: str, scene: Any, tmp_path: Path) -> None:
    finding = in_rooms(scene, tmp_path, line)
    assert (finding.parameters["what"] if finding is not None else "") == what


VISITS = """import json
import random

class Visit:
    def __init__(self, raw):
        self.raw = raw

    @property
    def events(self):
        return BODY

    def pages(self):
        return [each["page"] for each in self.events]

class Visits:
    def __getitem__(self, index):
        visit = self.visits[index]
        return visit.pages(), len(visit.events)
"""
PARSES = 'json.loads(self.raw)["events"]'


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({}, "object"),
        ({"which": ALONE}, "twice"),  # another object for each sample
        ({"which": ALONE, "calls": 34}, ""),  # each of which is asked once
        ({"calls": 32}, "object"),  # again in every epoch
        ({"epochs": 1}, "twice"),
        ({"dataset_length": 10_000_000}, "twice"),  # which do not fit into memory
        ({"body": "random.choice(json.loads(self.raw))"}, ""),
        ({"body": "self.reader.next()"}, ""),
        ({"seconds": 0.015}, ""),
        # Looking at other parts took most of the time of a look, and the method has none of its own.
        ({"seconds": 0.03}, "twice"),
        ({"seconds": 0.03, "which": LASTS}, "twice"),
    ],
)
def test_what_an_object_is_asked_again(changed: dict[str, Any], kind: str, scene: Any, tmp_path: Path) -> None:
    path = tmp_path / "visits.py"
    path.write_text(VISITS.replace("BODY", changed.get("body", PARSES)))
    calls, seconds = changed.get("calls", 96), changed.get("seconds", 0.09)
    order = changed.get("which", LASTS + ALONE)
    parts = [
        FetchPart("line", "__getitem__", Site(str(path), 17), 0.06),
        FetchPart("object", "events", Site(str(path), 8, function="events"), seconds, order, calls, 32),
        FetchPart("object", "pages", Site(str(path), 12, function="pages"), seconds / 2, LASTS, 32, 32),
    ]
    made = scene(100.0)
    loader = fed(made, str(path), parts)
    loader.tensors = [TensorInfo([32, 50], "int64", "cpu", False, 32 * 50 * 8)]
    loader.dataset_length, loader.epochs = changed.get("dataset_length", 5000), changed.get("epochs", 3)
    finding = found(TRANSFORM, made, tmp_path)
    assert (str(finding.parameters["kind"]) if finding is not None else "") == kind
    if finding is not None and kind:
        assert finding.site is not None and finding.site.line == 9 and "Visit.events" in finding.summary
        fix = TRANSFORM.fix(finding, Sources())
        # Who reads it may change a part of it: each gets its own now.
        assert isinstance(fix, Advice) and "functools.cached_property" in fix.text


@pytest.mark.parametrize(
    ("files", "opens", "read_mb", "told"),
    [(8.0, 64.0, 40.0, True), (8.0, 8.0, 40.0, False), (8.0, 64.0, 0.2, False), (64.0, 64.0, 40.0, False)],
    ids=["again and whole", "each once", "parts of them", "each sample's own"],
)
def test_files_that_a_batch_reads_again(
    files: float, opens: float, read_mb: float, told: bool, scene: Any, tmp_path: Path
) -> None:
    path = tmp_path / "legs.py"
    path.write_text("class Legs:\n    def __getitem__(self, i):\n        x = self.cache.get(i)\n        return x\n")
    made = scene(100.0)
    loader = fed(made, str(path), [FetchPart("line", "__getitem__", Site(str(path), 3), 0.11)])
    loader.tensors = [TensorInfo([64, 7, 64], "float32", "cpu", False, 64 * 7 * 64 * 4)]
    loader.files_read, loader.file_opens, loader.file_bytes = files, opens, read_mb * 1e6
    finding = found(TRANSFORM, made, tmp_path)
    assert (finding is not None and finding.parameters["kind"] == "files") is told
    if told:
        assert finding is not None and "8 files are opened 64 times" in finding.summary
        fix = TRANSFORM.fix(finding, Sources())
        assert isinstance(fix, Advice) and "Keep 8 files in memory" in fix.text


LOOKUPS = """WORDS = open("words.txt").read().split()

class Texts:
    def __getitem__(self, i):
        ids = [{search} for word in tokens(self.texts[i])]
        return ids
"""


def test_a_list_that_is_looked_up_in_beside_other_work(scene: Any, tmp_path: Path) -> None:
    made, path = scene(100.0), tmp_path / "texts.py"
    path.write_text(
        "class T:\n    def __getitem__(self, i):\n        with self.lock:\n            if i in self.bad:\n"
        "                return None\n            x = heavy(i)\n        return x\n"
    )
    loader = fed(made, str(path), [FetchPart("line", "__getitem__", Site(str(path), 6), 0.11)])
    loader.lists = {"self.bad": 30_000}
    finding = found(TRANSFORM, made, tmp_path)
    assert finding is None or finding.parameters["kind"] != "lookup"


@pytest.mark.parametrize(
    ("search", "lists", "what"),
    [
        ("self.words.index(word)", {"self.words": 30_000}, "self.words"),
        ("place[word] if word in WORDS else 0", {"WORDS": 900}, "WORDS"),
        ("self.words.index(word)", {"self.labels": 30_000}, ""),  # a short one, or a dictionary
        ("self.words[word]", {"self.words": 30_000}, ""),
    ],
)
def test_words_that_are_looked_up_in_a_list(
    search: str, lists: dict[str, int], what: str, scene: Any, tmp_path: Path
) -> None:
    made, path = scene(100.0), tmp_path / "texts.py"
    path.write_text(LOOKUPS.format(search=search))
    loader = fed(made, str(path), [FetchPart("line", "__getitem__", Site(str(path), 5), 0.11)])
    loader.lists = lists
    finding = found(TRANSFORM, made, tmp_path)
    looked_up = finding is not None and finding.parameters["kind"] == "lookup"
    assert (str(finding.parameters["what"]) if finding is not None and looked_up else "") == what
    if finding is not None and looked_up:
        fix = TRANSFORM.fix(finding, Sources())
        assert isinstance(fix, Advice) and f"enumerate({what})" in fix.text
