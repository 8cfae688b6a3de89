"""Workers that each epoch starts anew: kept, where that is worth something."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from advisor.rules.loader_workers import LoaderWorkers

from advisor.edit import Edit, Sources
from advisor.harness.layout import Site, TensorInfo
from advisor.rule import Advice, Argument, Finding, Gain, Safety


def run(scene: Any, **facts: Any) -> Any:
    """Epochs of 20 batches of 10 ms, each of which waits 0.15 s for its first batch."""
    made = scene(10.0)
    loader = made.loader(0.1, 5.0, 1.0, num_workers=2, persistent_workers=False)
    loader.epochs, loader.batches, loader.start_s = 5, 20, 0.15
    for name, value in facts.items():
        setattr(loader, name, value)
    made.operator("aten::mm", 0.1, 10.0)
    return made


def found(made: Any, folder: Path) -> Finding | None:
    findings = list(LoaderWorkers().check(made.evidence(folder)))
    return findings[0] if findings else None


def test_workers_started_for_each_short_epoch_are_kept(scene: Any, tmp_path: Path) -> None:
    finding = found(run(scene), tmp_path)
    assert finding is not None
    assert finding.parameters["workers"] == finding.parameters["recorded"] == 2
    assert "20 batches" in finding.summary and "0.15 s" in finding.summary
    # 150 ms over 20 steps of 10 ms.
    assert finding.gain.likely == pytest.approx(1.75, rel=0.02)


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param({"persistent_workers": True}, id="kept-already"),
        pytest.param({"epochs": 1}, id="one-epoch"),
        pytest.param({"batches": 2000}, id="long-epochs"),
        pytest.param({"batches": None}, id="endless"),
        pytest.param({"start_s": None}, id="not-measured"),
        pytest.param({"num_workers": 0}, id="no-workers"),
    ],
)
def test_left_alone(facts: dict[str, Any], scene: Any, tmp_path: Path) -> None:
    assert found(run(scene, **facts), tmp_path) is None


def waiting(scene: Any, method: str = "fork", **facts: Any) -> Any:
    """A loader without workers that the step waits for."""
    made = scene(50.0)
    made.record.environment.start_method = method
    loader = made.loader(wait_ms=35, fetch_ms=35, cpu_ms=3)
    for name, value in facts.items():
        setattr(loader, name, value)
    return made


def test_batches_that_the_dataset_puts_on_the_gpu_make_it_advice(scene: Any, tmp_path: Path) -> None:
    finding = found(waiting(scene, tensors=[TensorInfo([32, 3], "float32", "cuda", False, 384)]), tmp_path)
    assert finding is not None
    (unmet,) = finding.unmet
    assert "on cuda itself" in unmet


def test_a_lambda_is_no_hindrance_where_workers_may_be_forked(scene: Any, tmp_path: Path) -> None:
    finding = found(waiting(scene, "forkserver", collate="__main__.<lambda>"), tmp_path)
    assert finding is not None and not finding.unmet
    assert finding.parameters["fork"] and finding.parameters["unpicklable"] == "__main__.<lambda>"


def test_a_lambda_is_one_under_the_start_method_that_the_script_asks_for(scene: Any, tmp_path: Path) -> None:
    finding = found(waiting(scene, "spawn", collate="__main__.<lambda>"), tmp_path)
    assert finding is not None and not finding.parameters["fork"]
    assert "cannot take __main__.<lambda>" in finding.unmet[0]


def test_workers_that_started_once_can_start_again(scene: Any, tmp_path: Path) -> None:
    finding = found(waiting(scene, "spawn", collate="__main__.<lambda>", num_workers=1), tmp_path)
    assert finding is not None and not finding.unmet and not finding.parameters["imports_again"]


LOADERS = "from torch.utils.data import DataLoader\n\ndef make(ds):\n    return DataLoader(ds)\n"
FLAT = "from loaders import make\nfor x in make(data):\n    step(x)\n"
GUARDED = "from loaders import make\nif __name__ == '__main__':\n    for x in make(data):\n        step(x)\n"


def fixed(script: str, folder: Path, loaders: str = LOADERS, settings: str = "", **parameters: Any) -> dict[str, str]:
    """The texts that the fix gives, by file; a loader in another file than the script."""
    files = {"train.py": script, "loaders.py": loaders} | ({"cfg.yaml": settings} if settings else {})
    for name, text in files.items():
        (folder / name).write_text(text)
    line = next(number for number, text in enumerate(loaders.split("\n"), 1) if "DataLoader(" in text)
    site = Site(str(folder / "loaders.py"), line)
    parameters = {"workers": 2, "script": str(folder / "train.py")} | parameters
    finding = Finding("loader-workers", "", "", Gain(1.1, 1.2, 1.3), {}, site, parameters)
    fix = LoaderWorkers().fix(finding, Sources(settings=[str(folder / "cfg.yaml")] if settings else []))
    assert not isinstance(fix, Argument)
    return {Path(path).name: text for path, text in fix.texts.items()} if isinstance(fix, Edit) else {}


def test_the_script_that_imports_the_loader_is_guarded(tmp_path: Path) -> None:
    texts = fixed(FLAT, tmp_path, imports_again=True)
    assert texts["train.py"] == GUARDED.replace("'", '"')
    assert "num_workers=2" in texts["loaders.py"]
    assert list(fixed(GUARDED, tmp_path, imports_again=True)) == ["loaders.py"]


def test_a_module_of_loaders_is_never_guarded_itself(tmp_path: Path) -> None:
    loaders = "from torch.utils.data import DataLoader\nloader = DataLoader(ds)\n"
    assert "__main__" not in fixed(GUARDED, tmp_path, loaders, imports_again=True)["loaders.py"]


def test_a_script_that_cannot_be_guarded_forks(tmp_path: Path) -> None:
    script = "for x in make(data):\n    step(x)\nfrom loaders import make\n"
    texts = fixed(script, tmp_path, imports_again=True, fork=True)
    assert list(texts) == ["loaders.py"] and 'multiprocessing_context="fork"' in texts["loaders.py"]
    assert fixed(script, tmp_path, imports_again=True) == {}


def test_a_number_from_a_settings_file_may_be_none(tmp_path: Path) -> None:
    loaders = "cfg = yaml.safe_load(open('cfg.yaml'))\nloader = DataLoader(ds, num_workers=cfg['num_workers'])\n"
    texts = fixed(GUARDED, tmp_path, loaders, "num_workers: 0\n")
    assert texts["cfg.yaml"] == "num_workers: 2\n"
    assert "num_workers=cfg['num_workers'], persistent_workers=cfg['num_workers'] > 0)" in texts["loaders.py"]


ON_GPU = """
import torch
from torch.utils.data import DataLoader, Dataset
class D(Dataset):
    def __getitem__(self, i):
        return blur(self.rows[i].cuda()).cpu()
def collate(rows):
    return torch.stack(rows).to("cuda").mean(0).cpu()
loader = DataLoader(%s)
"""


@pytest.mark.parametrize(
    ("given", "source", "gpu", "says"),
    [
        ("D()", "__main__.D", True, "the dataset calls self.rows[i].cuda()"),
        ("rows, collate_fn=collate", "", True, "the collate function calls"),
        ("D()", "__main__.D", False, ""),
        ("rows, collate_fn=collate", "", False, ""),
    ],
)
def test_a_dataset_that_works_on_the_gpu_makes_it_advice(
    given: str, source: str, gpu: bool, says: str, scene: Any, tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    path.write_text(ON_GPU % given)
    made = waiting(scene, site=Site(str(path), 9), source=source)
    made.record.environment.cuda_available = gpu
    finding = found(made, tmp_path)
    assert finding is not None
    fix = LoaderWorkers().fix(finding, Sources())
    assert isinstance(fix, Advice if gpu else Edit)
    assert says in getattr(fix, "why", "")


@pytest.mark.parametrize("recorded", [0, 1])
def test_a_file_that_the_dataset_is_given_makes_it_advice(recorded: int, scene: Any, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"import h5py\nclass D:\n    pass\nloader = DataLoader(D(h5py.File(p)), num_workers={recorded})\n")
    finding = found(waiting(scene, site=Site(str(path), 4), source="__main__.D", num_workers=recorded), tmp_path)
    assert finding is not None
    fix = LoaderWorkers().fix(finding, Sources())
    assert isinstance(fix, Advice) and "is given h5py.File(p)" in fix.why


def test_what_each_worker_would_repeat_is_named(scene: Any, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("import shutil\nshutil.rmtree(out)\ndef f():\n    pass\nfor x in DataLoader(rows):\n    f(x)\n")
    made = waiting(scene, "spawn", site=Site(str(path), 5))
    made.record.script = str(path)
    finding = found(made, tmp_path)
    assert finding is not None
    fix = LoaderWorkers().fix(finding, Sources())
    assert isinstance(fix, Advice) and "shutil.rmtree(out)" in fix.why


@pytest.mark.parametrize(("draws", "own", "advised"), [(False, False, False), (True, False, False), (True, True, True)])
def test_generators_that_workers_would_have_copies_of(
    draws: bool, own: bool, advised: bool, scene: Any, tmp_path: Path
) -> None:
    made = scene(100.0)
    made.loader(80.0, 80.0, 5.0, num_workers=0, draws=draws, draws_own=own)
    finding = found(made, tmp_path)
    assert finding is not None and finding.parameters["workers"] >= 2
    assert bool(finding.unmet) is advised and (finding.safety is Safety.BEHAVIOUR) is draws
    assert not advised or "worker_init_fn" in finding.unmet[0]
