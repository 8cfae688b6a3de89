"""What the harness sees of the making of a batch, and that the batch is the same as without it."""

from __future__ import annotations

import functools
import gc
import itertools
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, ImageEnhance
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from advisor.harness.layout import Loader
from advisor.harness.layout.loading import LASTS
from advisor.harness.loading import tracing
from advisor.harness.loading.fetching import _ORDER_WITH_THREADS, LOOKS_FILE, Looks, look_off, look_on, read_looks
from advisor.harness.loading.loaders import FETCH_FILE, _computed, fetch_patches
from advisor.harness.loading.transforms import pixels_of, transforms_of
from advisor.harness.machine.openblas import OpenBlas
from advisor.launch import Command, measure
from advisor.run import Run
from tests.conftest import QUICK


class Slow:
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.004)
        return x + 1


class Twice(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Chain:
    def __init__(self, *transforms: Any) -> None:
        self.transforms = list(transforms)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        for transform in self.transforms:
            x = transform(x)
        return x


class Rows(Dataset[torch.Tensor]):
    def __init__(self, transform: Any, length: int = 40) -> None:
        self.transform, self.length = transform, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        x = torch.full((4,), float(index))
        time.sleep(0.001)
        return self.transform(x)  # type: ignore[no-any-return]


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in range(40):
            time.sleep(0.002)
            yield torch.full((2,), float(number))


def loop(samples: list[torch.Tensor]) -> torch.Tensor:
    batch = torch.zeros(len(samples), len(samples[0]))
    for row, sample in enumerate(samples):
        for column in range(len(sample)):
            batch[row, column] = sample[column]
    return batch


def seen(folder: Path, loader: DataLoader[Any]) -> tuple[list[Any], Loader]:
    """All batches of `loader`, made under our eyes, and the record of what was seen."""
    patches = fetch_patches(str(folder), -1, OpenBlas())
    look_on(str(folder))
    try:
        for patch in patches:
            patch.on()
        batches = list(loader)
    finally:
        for patch in patches:
            patch.off()
    record = Loader()
    read_looks(str(folder), [record], lambda pid: 0)
    return batches, record


def took(record: Loader, kind: str, name: str) -> float:
    return sum(part.seconds for part in record.parts if part.kind == kind and part.name == name)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_fetch_is_taken_apart_by_line_transform_and_collate(tmp_path: Path, wrapped: bool) -> None:
    rows: Dataset[torch.Tensor] = Rows(Chain(Twice(), Chain(Slow())))
    data = Subset(rows, range(40)) if wrapped else rows
    plain = list(DataLoader(data, batch_size=5, collate_fn=loop))
    batches, record = seen(tmp_path, DataLoader(data, batch_size=5, collate_fn=functools.partial(loop)))
    assert all(torch.equal(a, b) for a, b in zip(plain, batches, strict=True))
    assert record.looks == 2
    assert record.look_s is not None and 0.025 <= record.look_s < 0.2
    assert 0.02 <= took(record, "transform", "Slow") < record.look_s
    assert took(record, "transform", "Twice") < 0.01
    longest = record.parts[0]
    source = Path(__file__).read_text().splitlines()
    assert (longest.kind, longest.site.file) == ("line", __file__)
    assert "return self.transform(x)" in source[longest.site.line - 1]
    assert took(record, "collate", "loop") > 0
    # Three lines make a sample, seven more those of the two chains, and of Slow and Twice; four times the loop.
    assert record.item_lines is not None and 8 <= record.item_lines <= 20
    assert record.collate_calls is not None and 8 <= record.collate_calls <= 20


def test_what_trainer_wraps_a_collate_function_in_is_not_taken_for_it(tmp_path: Path) -> None:
    from transformers.trainer_utils import RemoveColumnsCollator

    loader = DataLoader(Rows(Twice()), batch_size=5, collate_fn=RemoveColumnsCollator(loop, ["x"]))
    _, record = seen(tmp_path, loader)
    (part,) = (each for each in record.parts if each.kind == "collate")
    assert (part.name, part.site.file) == ("loop", __file__)


def open_slowly(index: int) -> float:
    number = float(index)
    time.sleep(0.004)  # the file
    return number


class Stored(Dataset[torch.Tensor]):
    def __init__(self, read: Callable[[int], float]) -> None:
        self.read = read

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        row = self.load(index)
        return row * 2

    def load(self, index: int) -> torch.Tensor:
        (number,) = functools.reduce(lambda found, each: [*found, self.read(each)], [index], [])  # through a library
        return torch.full((4,), number)


def test_the_line_is_found_in_the_function_that_the_longest_line_calls(tmp_path: Path) -> None:
    batches, record = seen(tmp_path, DataLoader(Stored(open_slowly), batch_size=5))
    assert [float(batch[0, 0]) for batch in batches[:3]] == [0.0, 10.0, 20.0]
    source = Path(__file__).read_text().splitlines()
    assert record.parts[0].kind == "line" and "self.load(index)" in source[record.parts[0].site.line - 1]
    inside = [part for part in record.parts if part.kind == "inside"]
    assert inside[0].name == "open_slowly" and source[inside[0].site.line - 1].endswith("# the file")
    assert 0.015 <= inside[0].seconds <= record.parts[0].seconds * 1.2
    assert record.looks == 2


class Scale:
    @property
    def factor(self) -> float:
        time.sleep(0.002)
        return self.half() * 2

    def half(self) -> float:
        return 1.0

    def times(self, number: int) -> int:
        return number


class Scaled(Rows):
    def __init__(self) -> None:
        super().__init__(Twice())
        self.scale = Scale()

    def __getitem__(self, index: int) -> torch.Tensor:
        own = Scale().factor  # of this sample alone
        return torch.full((4,), self.scale.factor * own * self.scale.times(index))


def test_properties_of_what_all_samples_share_are_timed(tmp_path: Path) -> None:
    class Alone(Scaled):
        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.full((4,), self.scale.factor * self.scale.times(index))

    _, record = seen(tmp_path, DataLoader(Alone(), batch_size=5))
    (part,) = (each for each in record.parts if each.kind == "lasting")
    source = Path(__file__).read_text().splitlines()
    assert part.name == "factor" and "def factor" in source[part.site.line]  # below its decorator
    assert 0.01 <= part.seconds < 0.05 and record.parts[0].kind == "line"


def test_an_object_of_each_sample_is_none_that_they_share(tmp_path: Path) -> None:
    _, record = seen(tmp_path, DataLoader(Scaled(), batch_size=5))
    assert not [each for each in record.parts if each.kind == "lasting"]


@pytest.mark.parametrize(
    ("image", "pixels"),
    [
        (torch.zeros(3, 20, 30), 600),
        (torch.zeros(20, 30, 3), 600),
        (torch.zeros(20, 30), 600),
        (torch.zeros(1, 10, 20, 30), 6000),  # a volume
        (torch.zeros(10, 20, 30), 6000),
        ({"image": torch.zeros(1, 20, 30), "label": torch.zeros(5, 6), "name": "a"}, 600),
        ((torch.zeros(3, 20, 30), 7), 600),
        ({}, 0),
        ({"inner": {"image": torch.zeros(3, 20, 30)}}, 0),
        (torch.zeros(9), 0),
        ("a", 0),
    ],
)
def test_pixels_of_pictures_and_volumes(image: Any, pixels: int) -> None:
    assert pixels_of(image) == pixels


def test_what_objects_are_asked_is_counted(tmp_path: Path) -> None:
    class Held(Rows):
        def __init__(self) -> None:
            super().__init__(Twice())
            self.scales = [Scale() for _ in range(40)]
            gc.collect()

        def __getitem__(self, index: int) -> torch.Tensor:
            own, passing = self.scales[index], Scale()
            return torch.full((4,), own.factor * own.factor * own.factor * passing.half())

    _, record = seen(tmp_path, DataLoader(Held(), batch_size=5))
    (part,) = (each for each in record.parts if each.kind == "object")  # what Scale.half() takes is nothing
    assert (part.name, part.order, part.pixels_in, part.pixels_out) == ("factor", LASTS, 15, 5)
    assert 0.03 <= part.seconds < 0.1


def test_objects_of_each_sample_do_not_last(tmp_path: Path) -> None:
    _, record = seen(tmp_path, DataLoader(Scaled(), batch_size=5))
    (part,) = (each for each in record.parts if each.kind == "object")
    assert (part.name, part.order, part.pixels_in) == ("factor", 0, 10)


def test_files_are_counted_with_how_often_they_are_opened(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(bytes(100_000))

    class Kept(Rows):
        def __getitem__(self, index: int) -> torch.Tensor:
            whole = (tmp_path / "ab"[index % 2]).read_bytes()
            return torch.tensor([float(whole[index])])

    _, record = seen(tmp_path, DataLoader(Kept(None), batch_size=10))
    assert (record.files_read, record.file_opens) == (2, 10)
    assert record.file_bytes == pytest.approx(1e6, rel=0.05)
    (tmp_path / "other").mkdir()
    _, record = seen(tmp_path / "other", DataLoader(Rows(Twice()), batch_size=10))
    assert (record.files_read, record.file_opens) == (0, 0)


def test_lines_that_are_mostly_the_tracing_are_none(tmp_path: Path) -> None:
    def crawl(index: int) -> float:
        total = 0.0
        for _ in range(20000):
            total += index
        return total

    _, record = seen(tmp_path, DataLoader(Stored(crawl), batch_size=5))
    assert record.looks == 2 and not [part for part in record.parts if part.kind == "inside"]


class Photos(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        photo = Image.new("RGB", (320, 240), (index, 0, 0))
        photo = ImageEnhance.Contrast(photo).enhance(1.5)  # turned up
        small = photo.resize((64, 48))
        pixels = torch.tensor(list(small.tobytes())).reshape(48, 64, 3)
        return pixels.float()


def test_a_line_says_how_many_pixels_it_was_given_and_gave(tmp_path: Path) -> None:
    batches, record = seen(tmp_path, DataLoader(Photos(), batch_size=5))
    assert len(batches) == 8
    source = Path(__file__).read_text().splitlines()
    found = {
        source[part.site.line - 1].split(" = ")[-1].split("(")[0]: (part.pixels_in, part.pixels_out)
        for part in record.parts
        if part.kind == "line"
    }
    assert found["ImageEnhance.Contrast"] == (320 * 240, 320 * 240)
    assert found["photo.resize"] == (320 * 240, 64 * 48)
    # Where the first picture came from is not seen.
    assert found["Image.new"] == (0, 0)


class Peeking(Dataset[torch.Tensor]):
    """One whose variables must not be asked."""

    @property
    def shape(self) -> tuple[int, int]:
        raise AssertionError("somebody looked")

    size = shape

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        own = self
        return torch.ones(3, 3) if own is self else torch.zeros(3, 3)


def test_variables_of_the_users_own_kinds_are_not_asked(tmp_path: Path) -> None:
    batches, record = seen(tmp_path, DataLoader(Peeking(), batch_size=5))
    assert len(batches) == 8 and record.looks == 2


def test_a_stream_is_seen_line_by_line(tmp_path: Path) -> None:
    batches, record = seen(tmp_path, DataLoader(Stream(), batch_size=5))
    assert [float(batch[0, 0]) for batch in batches[:3]] == [0.0, 5.0, 10.0]
    assert took(record, "line", "__iter__") >= 0.01


def test_an_error_in_the_dataset_is_the_scripts_own(tmp_path: Path) -> None:
    def fail(x: torch.Tensor) -> torch.Tensor:
        if float(x[0]) >= 10:
            raise KeyError("label")
        return x

    with pytest.raises(KeyError, match="label"):
        seen(tmp_path, DataLoader(Rows(fail), batch_size=5))
    assert sys.gettrace() is None


class Record:
    """A picture of the script's own, whose attributes are the keys of a dictionary."""

    def __init__(self, d: dict[str, Any]) -> None:
        self.d = d

    def __getattr__(self, key: str) -> Any:
        return self.d[key]


class Wraps(Record):
    def __call__(self, x: torch.Tensor) -> Any:
        return Record({"x": x + 1})


def test_attributes_that_cannot_be_asked_for_are_the_scripts_own(tmp_path: Path) -> None:
    loader = DataLoader(Rows(Wraps({})), batch_size=5, collate_fn=lambda rows: torch.stack([row.x for row in rows]))
    batches, record = seen(tmp_path, loader)
    assert len(batches) == 8 and float(batches[1][0, 0]) == 6.0
    assert record.looks == 2 and took(record, "transform", "Wraps") > 0


@pytest.mark.parametrize(("what", "when"), [("pixels_of", 1), ("pixels_of", 2), ("written_at", 1)])
def test_an_error_of_ours_ends_the_look_alone(
    tmp_path: Path, what: str, when: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = itertools.count(1)

    def fails(*_: object) -> int:
        if next(calls) >= when:
            raise ValueError("ours")
        return 0

    monkeypatch.setattr(tracing, what, fails)
    batches, record = seen(tmp_path, DataLoader(Rows(Twice()), batch_size=5))
    assert len(batches) == 8 and sys.gettrace() is None
    assert record.looks == 0 and record.item_lines  # what was counted is right all the same


def test_an_error_before_the_look_leaves_the_fetch_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> int:
        raise ValueError("ours")

    monkeypatch.setattr(tracing, "transforms_of", fails)
    batches, record = seen(tmp_path, DataLoader(Rows(Twice()), batch_size=5))
    assert len(batches) == 8 and record.looks == 0


class Ends(Dataset[torch.Tensor]):
    """In its third fetch, which is counted, the timing begins."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.traced: list[bool] = []

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 2:
            look_off(str(self.folder))
        total = 0
        for number in range(5000):
            total += number
        self.traced.append(sys.gettrace() is not None)
        return torch.tensor(float(total))


def test_a_look_that_is_going_on_ends_when_the_timing_begins(tmp_path: Path) -> None:
    data = Ends(tmp_path)
    batches, record = seen(tmp_path, DataLoader(data, batch_size=1))
    assert len(batches) == 4 and data.traced == [False, True, False, False]
    assert record.looks == 1 and record.item_lines is None
    # Nor does its time count for one of the measurement.
    assert (tmp_path / FETCH_FILE).stat().st_size == 3 * 40


def test_a_look_ends_that_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_END", 0.0)
    data = Ends(tmp_path)
    data.folder = tmp_path / "elsewhere"
    _, record = seen(tmp_path, DataLoader(data, batch_size=1))
    assert data.traced == [False] * 4
    assert record.looks == 0 and record.item_lines is None


def test_nothing_is_looked_at_while_the_timing_runs(tmp_path: Path) -> None:
    patches = fetch_patches(str(tmp_path), -1, OpenBlas())
    look_on(str(tmp_path))
    look_off(str(tmp_path))
    for patch in patches:
        patch.on()
    try:
        assert len(list(DataLoader(Rows(Twice()), batch_size=5))) == 8
    finally:
        for patch in patches:
            patch.off()
    assert not (tmp_path / LOOKS_FILE).exists()


def test_a_debugger_that_traces_is_left_alone(tmp_path: Path) -> None:
    def trace(*_: object) -> None:
        return None

    sys.settrace(trace)
    try:
        _, record = seen(tmp_path, DataLoader(Rows(Twice()), batch_size=5))
        assert sys.gettrace() is trace
    finally:
        sys.settrace(None)
    assert record.looks == 0


def test_transforms_are_found_through_chains_and_wrapped_datasets() -> None:
    slow, twice = Slow(), Twice()
    rows = Rows(Chain(slow, nn.Sequential(twice)))
    assert {id(each) for each in transforms_of(Subset(rows, [0]))} == {id(slow), id(twice)}
    assert list(transforms_of(torch.utils.data.TensorDataset(torch.zeros(3)))) == []


class Steps:
    """A script's own chain."""

    def __init__(self, *steps: Any) -> None:
        self.steps, self.seed = list(steps), 3

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        for step in self.steps:
            x = step(x)
        return x


class OneOf(Steps):
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.steps[random.choice(range(len(self.steps)))](x)  # type: ignore[no-any-return]


class Now(Steps):
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        for step in self.steps:
            if random.random() < 0.5:
                x = step(x)
        return x


@pytest.mark.parametrize("cls", [OneOf, Now])
def test_a_choice_of_several_is_no_chain(cls: type[Steps]) -> None:
    alone = cls(Slow(), Twice())
    assert list(transforms_of(Rows(alone))) == [alone]


@pytest.mark.parametrize("others", [[3.0], [nn.ReLU], [sorted]], ids=["numbers", "classes", "not of Python"])
def test_a_chain_of_the_script_s_own_is_one(others: list[Any]) -> None:
    slow, twice = Slow(), Twice()
    assert {id(each) for each in transforms_of(Rows(Steps(slow, Steps(twice))))} == {id(slow), id(twice)}
    alone = Steps(slow, *others)  # a list of something else
    assert list(transforms_of(Rows(alone))) == [alone]


SLOW, TWICE = Slow(), Twice()
CHAIN = Chain(SLOW, nn.Sequential(TWICE))


class ByName(Rows):
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.stack([CHAIN(torch.zeros(4)) for _ in range(1)])


class Formatted:
    """As a dataset of Hugging Face's keeps what ``set_transform`` was given."""

    def __init__(self, transform: Any) -> None:
        self._format_kwargs = {"transform": transform}


def test_transforms_that_a_dataset_knows_by_name_are_found() -> None:
    local = Chain(SLOW, TWICE)

    def both(batch: dict[str, Any]) -> dict[str, Any]:
        return {"x": [local(each) for each in batch["x"]]}

    for dataset in (ByName(None), Formatted(both)):
        assert {id(each) for each in transforms_of(dataset)} == {id(SLOW), id(TWICE)}


def test_transforms_known_by_name_are_timed(tmp_path: Path) -> None:
    _, record = seen(tmp_path, DataLoader(ByName(None), batch_size=5))
    assert record.look_s is not None and 0.02 <= took(record, "transform", "Slow") < record.look_s
    assert record.transforms == []  # of what was not described as a loader


class Half:
    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return image[:, ::2, ::2]


class Pictures(Rows):
    def __getitem__(self, index: int) -> torch.Tensor:
        return self.transform(torch.rand(3, 32, 48))  # type: ignore[no-any-return]


def test_transforms_are_seen_in_their_order_with_their_pixels(tmp_path: Path) -> None:
    _, record = seen(tmp_path, DataLoader(Pictures(Chain(Twice(), Half(), Slow())), batch_size=5))
    chain = sorted((part for part in record.parts if part.kind == "transform"), key=lambda part: part.order)
    assert [part.name for part in chain] == ["Twice", "Half", "Slow"]
    assert [(part.pixels_in, part.pixels_out) for part in chain] == [(1536, 1536), (1536, 384), (384, 384)]


SCRIPT = """
import torch
from torch.utils.data import DataLoader, Dataset

def crawl(x):
    total = 0.0
    for i in range(10000):
        total += i * 0.5
    return x + total

class Rows(Dataset):
    def __len__(self):
        return 100000
    def __getitem__(self, index):
        x = torch.randn(8)
        return crawl(x)

if __name__ == "__main__":
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in DataLoader(Rows(), batch_size=8, num_workers=1, multiprocessing_context=CONTEXT):
        optimizer.zero_grad()
        model(x / 1e6).mean().backward()
        optimizer.step()
"""


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.sessions)])
def test_workers_say_what_their_time_goes_to(tmp_path: Path, context: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("CONTEXT", repr(context)))
    command = Command(str(script), (), module=False, python=sys.executable, environment={}, cwd=str(tmp_path))
    measure(command, tmp_path / "run", QUICK, timeout=120.0)
    (loader,) = Run.load(str(tmp_path / "run")).record.loaders
    assert loader.looks == 2 and loader.look_s is not None
    longest = next(part for part in loader.parts if part.kind == "line")
    assert longest.site.file == str(script)
    assert "return crawl(x)" in SCRIPT.splitlines()[longest.site.line - 1]
    assert loader.item_lines is not None and 20000 <= loader.item_lines <= 20010
    assert len(loader.fetches) == loader.num_workers, "each worker's own, batch by batch"
    times = [seconds for each in loader.fetches for seconds in each]
    # The mean is of these and of one more: each worker's first is left out, as part of starting it.
    assert loader.fetch_s is not None
    first = loader.fetch_s * (len(times) + 1) - sum(times)
    assert 0.5 * min(times) < first < 20 * loader.fetch_s


@pytest.mark.parametrize(
    ("process_s", "thread_s", "computed_s"),
    [
        pytest.param(0.097, 0.098, 0.097, id="alone"),
        pytest.param(0.080, 0.007, 0.007, id="sleeps-while-another-spins"),
        pytest.param(0.120, 0.095, 0.095, id="computes-while-another-still-spins"),
        pytest.param(0.190, 0.098, 0.190, id="both-compute"),
        pytest.param(0.380, 0.001, 0.380, id="threads-of-its-own"),
    ],
)
def test_spinning_threads_are_none_of_a_fetch(process_s: float, thread_s: float, computed_s: float) -> None:
    assert _computed(0.1, process_s, thread_s, 2) == computed_s


class Threads(Rows):
    """Notes how many threads torch has when each sample is made."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(torch.get_num_threads())])


def test_some_fetches_are_made_on_one_thread_as_a_worker_makes_them(tmp_path: Path) -> None:
    asked = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        batches, record = seen(tmp_path, DataLoader(Threads(None), batch_size=4))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(asked)
    assert [int(batch[0]) for batch in batches] == [2, 2, 1, 2, 2, 2, 1, 2, 2, 2]
    assert record.single_s is not None and record.single_cpu_s is not None
    assert 0 < record.single_s < 0.1


class Short(IterableDataset[torch.Tensor]):
    """Ends in the fetch that would be the first on one thread: the third of batches of four."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in range(self.length):
            time.sleep(0.002)
            yield torch.full((2,), float(number))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(Short(8), id="a-stream-that-is-over"),
        pytest.param(Short(9), id="a-streams-last-batch"),
        pytest.param(Rows(Twice(), 9), id="a-last-batch-of-one"),
    ],
)
def test_what_is_no_whole_batch_is_not_timed_on_one_thread(data: Dataset[torch.Tensor], tmp_path: Path) -> None:
    asked = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        batches, record = seen(tmp_path, DataLoader(data, batch_size=4))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(asked)
    assert len(batches) in (2, 3) and record.single_s is None


IN_LINE = """\
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(2)
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, in DataLoader(TensorDataset(torch.randn(4000, 8)), batch_size=8):
    optimizer.zero_grad()
    model(x).mean().backward()
    optimizer.step()
"""


def test_threads_that_the_harness_sets_are_not_taken_for_the_scripts(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(IN_LINE)
    command = Command(str(tmp_path / "train.py"), python=sys.executable, cwd=str(tmp_path))
    measure(command, tmp_path / "run", QUICK, timeout=120.0)
    record = Run.load(str(tmp_path / "run")).record
    assert record.loaders[0].single_s is not None
    assert [(each.site.line, each.calls) for each in record.call_sites if each.kind == "set_num_threads"] == [(4, 1)]


@pytest.mark.parametrize(("seconds", "threads", "singles"), [(0.2, 2, 2), (0.4, 4, 1), (1.5, 2, 1), (0.6, 16, 0)])
def test_a_slow_fetch_is_not_made_on_one_thread_for_long(
    seconds: float, threads: int, singles: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    left = list(_ORDER_WITH_THREADS)
    Looks(torch, str(tmp_path))._plan(left, seconds)
    assert left.count("single") == singles
    assert ("timed" in left) is (seconds <= 1.0)


def test_with_one_thread_there_is_nothing_to_compare(tmp_path: Path) -> None:
    asked = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        _, record = seen(tmp_path, DataLoader(Rows(Twice()), batch_size=4))
    finally:
        torch.set_num_threads(asked)
    assert record.looks == 2 and record.single_s is None


def test_a_loader_that_waits_only_so_long_is_not_looked_at(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("CONTEXT", "'fork', timeout=20"))
    command = Command(str(script), (), module=False, python=sys.executable, environment={}, cwd=str(tmp_path))
    measure(command, tmp_path / "run", QUICK, timeout=120.0)
    (loader,) = Run.load(str(tmp_path / "run")).record.loaders
    assert loader.fetched and loader.looks == 0 and not loader.parts and loader.item_lines is None
