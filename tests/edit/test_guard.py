"""A flat script can be given loader workers under spawn, and then really runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import libcst as cst
import pytest

from advisor.edit import Draft, Drafts, Source, Sources
from advisor.edit.calls import add_argument
from advisor.edit.loading.guard import add_main_guard, repeated_by_workers
from advisor.edit.locate import last_name


def loader_in(draft: Draft) -> cst.Call:
    return next(call for call in draft.nodes(cst.Call) if last_name(draft, call) == "DataLoader")


FLAT = """
import multiprocessing

import torch
from torch.utils.data import DataLoader, Dataset

multiprocessing.set_start_method("spawn", force=True)


class Squares(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        return torch.tensor([scale * i])


scale = 2.0
# the data
loader = DataLoader(Squares(), batch_size=4)
for batch in loader:
    print(batch.sum().item())
"""


@pytest.mark.sessions
def test_guarded_script_runs_with_spawned_workers(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(FLAT)
    drafts = Drafts(Sources())
    draft = drafts[str(path)]
    call = loader_in(draft)
    add_argument(draft, call, "num_workers", "1")
    assert add_main_guard(draft, call)
    edit = drafts.edit("")
    assert edit is not None
    path.write_bytes(edit.contents[str(path)])
    result = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["12.0", "44.0"]


def test_guard_starts_behind_what_workers_need() -> None:
    draft = Draft(Source("/x.py", FLAT))
    assert add_main_guard(draft, loader_in(draft))
    text = draft.render()
    assert "\nscale = 2.0\n" in text
    assert '\n# the data\nif __name__ == "__main__":\n    loader = DataLoader(' in text
    assert "\n    for batch in loader:\n        print(batch.sum().item())\n" in text


HELPERS = """
import json
from torch.utils.data import DataLoader, Dataset

class Images(Dataset):
    def __getitem__(self, i):
        return load(i), LABELS[i], SCALE

def load(i):
    return open(ROOT + FILES[i])

ROOT = find_root()
FILES: list[str] = os.listdir(ROOT)
if ROOT:
    SCALE = compute()
with open("labels.json") as f:
    LABELS = json.load(f)
LABELS.update(more())
model = make_model()
loader = DataLoader(Images(), batch_size=8)
for x, f in loader:
    train(x)
"""


def test_guard_starts_behind_what_the_workers_functions_read() -> None:
    draft = Draft(Source("/x.py", HELPERS))
    assert add_main_guard(draft, loader_in(draft))
    assert '\nLABELS.update(more())\nif __name__ == "__main__":\n    model = make_model()\n' in draft.render()


def test_guard_starts_behind_what_a_function_that_is_handed_on_reads() -> None:
    code = (
        "def pad(rows):\n    return rows + [PAD]\nPAD = token()\n"
        "for x in DataLoader(ds, collate_fn=partial(pad)):\n    f(x)\n"
    )
    draft = Draft(Source("/x.py", code))
    assert add_main_guard(draft, loader_in(draft))
    assert '\nPAD = token()\nif __name__ == "__main__":\n    for x' in draft.render()


GUARDED = {
    "inside a guard": 'if __name__ == "__main__":\n    DataLoader(ds)\n',
    "inside a function of a guarded script": "def f():\n    DataLoader(ds)\nif '__main__' == __name__:\n    f()\n",
    "inside an imported module": "import torch\nN = 3\ndef f():\n    DataLoader(ds)\n",
}


@pytest.mark.parametrize("code", GUARDED.values(), ids=GUARDED.keys())
def test_guarded_code_is_left_alone(code: str) -> None:
    draft = Draft(Source("/x.py", code))
    assert add_main_guard(draft, loader_in(draft))
    assert not draft.changed


UNSAFE = {
    "definition behind the loop": "for x in DataLoader(ds):\n    pass\nclass A:\n    pass\nprint(A)\n",
    "worker needs what the loop makes": (
        "class D:\n    def __getitem__(self, i):\n        return k\nfor x in DataLoader(D()):\n    pass\n"
        "k = 3\nprint(k)\n"
    ),
    "worker needs what a loop fills in": (
        "class D:\n    def __getitem__(self, i):\n        return k[i]\nk = []\n"
        "for line in open(p):\n    k.append(line)\nfor x in DataLoader(D()):\n    pass\n"
    ),
    "a function that trains, called before the last definition": (
        "def train(loader):\n    for x in loader:\n        pass\ntrain(DataLoader(ds))\n"
        "def later():\n    pass\nlater()\n"
    ),
    "a trainer, run before the last definition": "trainer.fit(net, DataLoader(ds))\ndef later():\n    pass\nlater()\n",
    "a start method that workers would set again": (
        "import torch.multiprocessing as mp\nmp.set_start_method('spawn')\nimport os\n"
        "for x in DataLoader(ds):\n    pass\n"
    ),
    "outside an existing guard": 'for x in DataLoader(ds):\n    pass\nif __name__ == "__main__":\n    pass\n',
}


@pytest.mark.parametrize("code", UNSAFE.values(), ids=UNSAFE.keys())
def test_unsafe_script_is_refused(code: str) -> None:
    draft = Draft(Source("/x.py", code))
    assert not add_main_guard(draft, loader_in(draft))
    assert not draft.changed


LATE = "import os\nimport torch\nimport wandb\n{first}\nclass D:\n    pass\nfor x in DataLoader(D()):\n    f(x)\n"


@pytest.mark.parametrize(
    "first",
    [
        "shutil.rmtree(out_dir)",
        'log = open("log.txt", "w")',
        'log = Path("log.txt").open("a")',
        "wandb.init()",
        "model = Net().cuda()",
        'model = Net().to("cuda")',
        "os.makedirs(out_dir)",
        "model = make_model()",
        'torch.save(state, "first.pt")',
        'logging.basicConfig(filename="a.log", filemode="w")',
        "def prepare():\n    shutil.rmtree(out_dir)\nprepare()",
        "if torch.cuda.is_available():\n    subprocess.run(command)",
    ],
)
def test_what_no_worker_may_repeat_is_not_left_outside_the_guard(first: str) -> None:
    draft = Draft(Source("/x.py", LATE.format(first=first)))
    assert not add_main_guard(draft, loader_in(draft))
    assert not draft.changed
    assert repeated_by_workers(draft) in first


@pytest.mark.parametrize(
    "first",
    [
        "N = 3 * 4",
        "parser = argparse.ArgumentParser()\nparser.add_argument('--lr', type=float)\nargs = parser.parse_args()",
        "torch.manual_seed(0)\nrandom.seed(0)",
        'device = torch.device("cuda" if torch.cuda.is_available() else "cpu")',
        "log = logging.getLogger(__name__)\nlogging.basicConfig(level=logging.INFO)",
        'ROOT = Path("data") / "train"\nos.environ["A"] = "1"',
        "torch.set_num_threads(2)",
        'os.makedirs("out", exist_ok=True)',
        'with open("config.yaml") as f:\n    config = yaml.safe_load(f)',
        "def seed(n):\n    torch.manual_seed(n)\nseed(1)",
        "table = torch.rand(100, 3)\ntarget = torch.sin(table).mean(1)",
    ],
)
def test_what_is_harmless_may_stay_outside_the_guard(first: str) -> None:
    code = "import argparse, logging, os, random, torch, yaml\nfrom pathlib import Path\n" + LATE.format(first=first)
    draft = Draft(Source("/x.py", code))
    assert add_main_guard(draft, loader_in(draft))
    assert '\nif __name__ == "__main__":\n    for x in DataLoader' in draft.render()


def test_workers_of_a_guarded_script_must_not_repeat_harm_either() -> None:
    code = 'import shutil\n{}\nif __name__ == "__main__":\n    DataLoader(ds)\n'
    draft = Draft(Source("/x.py", code.format("shutil.rmtree(out_dir)")))
    assert not add_main_guard(draft, loader_in(draft))
    draft = Draft(Source("/x.py", code.format("config = load_config()")))  # of which nothing is known
    assert add_main_guard(draft, loader_in(draft))
