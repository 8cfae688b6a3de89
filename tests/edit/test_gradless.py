"""Whether results of a region may be made in inference mode, by what the files beside it do with them."""

from __future__ import annotations

from pathlib import Path

import libcst as cst
import pytest

from advisor.edit import Draft, Drafts, Sources
from advisor.edit.gradients.gradless import differentiates, refuses_inference_mode
from advisor.edit.sources import read_source

_EMBED = "import torch\n@torch.no_grad()\ndef embed(x):\n    return net(x)\n"
_TRAINS = "loss = head(embed(x)).sum()\nloss.backward()\n"


def _refused(folder: Path, other: str, embed: str = _EMBED) -> bool:
    (folder / "features.py").write_text(embed)
    (folder / "main.py").write_text(other)
    return _refuses(folder / "features.py", {str(folder / "features.py"): "features", str(folder / "main.py"): ""})


def _refuses(path: Path, modules: dict[str, str]) -> bool:
    drafts = Drafts(Sources(modules=modules))
    draft = drafts[str(path)]
    return refuses_inference_mode(drafts, draft, draft.nodes(cst.FunctionDef)[-1])


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
    assert _refuses(tmp_path / "script.py", {}) is refused


_DETECTOR = """import torch
class Detector:
    def __init__(self, net):
        self.net = net

    def detect(self, x):
        return self.net(x)
"""
_WRITES = {
    "a method's": ("out = Detector(net).detect(x)\nout[..., :2] *= scale\n", True),
    "by a function, where it is told so": ("out = Detector(net).detect(x)\nF.relu(out, inplace=True)\n", True),
    "read only": ("out = Detector(net).detect(x)\ntotal += len(out)\nprint(out[..., :2] * scale)\n", False),
}


@pytest.mark.parametrize(("code", "refused"), _WRITES.values(), ids=_WRITES.keys())
def test_what_another_module_changes_in_place(tmp_path: Path, code: str, refused: bool) -> None:
    assert _refused(tmp_path, "from features import Detector\n" + code, _DETECTOR) is refused


def test_what_another_module_changes_of_what_calling_an_object_gave(tmp_path: Path) -> None:
    called = _DETECTOR.replace("def detect", "def __call__")
    imports = "from features import Detector\ndetector = Detector(net)\n"
    assert _refused(tmp_path, imports + "out = detector(x)\nout[0] = 1\n", called)
    assert not _refused(tmp_path, imports + "out = detector(x)\nrows[0] = 1\n", called)


def test_folder_beside_is_looked_through(tmp_path: Path) -> None:
    for folder in ("models", "training"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / "training" / "run.py").write_text("from models.features import embed\n" + _TRAINS)
    assert _refused(tmp_path / "models", "")


@pytest.mark.parametrize(
    ("code", "asks"),
    [
        ("optimizer.step()", True),
        ("self.optimizers[0].step(closure)", True),
        ("model.train()", True),
        ("model.train(False)", False),
        ("obs, reward, done, _ = env.step(action.item())", False),
        ("x = scheduler.step(noise, t, x).prev_sample", False),
        ("self.step += 1", False),
        ("rows = cfg.train.rows", False),
    ],
)
def test_what_asks_for_gradients(tmp_path: Path, code: str, asks: bool) -> None:
    (tmp_path / "script.py").write_text(f"def run(self, x):\n    out = net(x)\n    {code}\n    return out\n")
    draft = Draft(read_source(str(tmp_path / "script.py")))
    assert differentiates(draft, draft.nodes(cst.FunctionDef)[0]) is asks


_STATES = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        self.states, self.seen, self.mean = {{}}, [], torch.zeros(3)
    def forward(self, x):
        self.states["h"] = self.cell(x, self.states["h"])
        return self.out(self.remember(x))
    def remember(self, x):
        self.cache[:, self.place] = x
        self.seen.append(x)
        return self.cache
    def reset(self):
        {reset}
"""
_FOLLOW = """
@torch.no_grad()
def follow(net, x):
    return net(x)
"""


@pytest.mark.parametrize(
    ("reset", "refused"),
    [
        ("for state in self.states.values():\n            state.zero_()", True),
        ("for name, state in self.states.items():\n            state[0] = 0", True),
        ('self.states["h"].zero_()', True),
        ("for each in self.seen:\n            each.mul_(0.5)", True),
        ("self.cache.zero_()", True),
        ("self.states.clear()", False),
        ("self.mean.zero_()", False),
        ("self.states = {}", False),
        ("for name in self.states:\n            print(name)", False),
    ],
)
@pytest.mark.parametrize("elsewhere", [False, True])
def test_states_of_a_list_or_a_dict_are_reset_as_well(
    tmp_path: Path, reset: str, refused: bool, elsewhere: bool
) -> None:
    model = _STATES.format(reset=reset)
    (tmp_path / "model.py").write_text(model)
    script = "import torch\nfrom model import Net\n" if elsewhere else model
    (tmp_path / "script.py").write_text(script + _FOLLOW)
    assert _refuses(tmp_path / "script.py", {}) is refused


_STATE = """
import torch
class Net(torch.nn.Module):
    def reset(self):
        {reset}
    def forward(self, x):
        self.h = self.cell(x, self.h)
        return self.out(self.h)
@torch.no_grad()
def follow(net, x):
    return net(x)
"""


@pytest.mark.parametrize(
    ("reset", "refused"), [("self.h.zero_()", True), ("self.h[0] = 0", True), ("self.h = None", False), ("pass", False)]
)
def test_a_state_that_is_changed_in_place_between_the_calls(reset: str, refused: bool, tmp_path: Path) -> None:
    assert _refused(tmp_path, "from features import follow\n", _STATE.format(reset=reset)) is refused
