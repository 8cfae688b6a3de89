"""Patched sources run instead of those on disk, by whichever way Python comes to them, and the disk stays as it is."""

from __future__ import annotations

import json
import os
import py_compile
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import dedent

import pytest

import advisor.harness
from advisor.harness.layout import OPTIONS_ENV
from advisor.harness.overlay import Overlay
from advisor.launch import Command, measure
from advisor.run import Run
from tests.conftest import PYTHON, QUICK, tree

# What is run is looked at, not how long it takes.
SHORT = replace(QUICK, windows="timing", min_steps=5, min_seconds=0.1, settle_max_steps=10)
SHIFT = "# A line more,\n# and another.\n"

TRAINING = """
import torch
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def train(batches):
    for x in batches:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
"""


@dataclass(frozen=True)
class Done:
    run: Run
    output: str
    lines: list[str]


Go = Callable[..., Done]


@pytest.fixture
def go(tmp_path: Path) -> Go:
    """``go("train.py", {"train.py": text, "helper.py": text}, {"helper.py": patched})``: run it with the overlay.

    The sources lie in ``project``, to which ``linked`` is a link; the overlay names files as in ``names``.
    """

    def run(
        script: str, sources: dict[str, str], patched: dict[str, str], *, module: bool = False, names: str = "project"
    ) -> Done:
        project = tmp_path / "project"
        (tmp_path / "linked").symlink_to(project)
        for name, text in sources.items():
            path = project / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dedent(text))
            if name != script and name.endswith(".py"):
                # As Python leaves it after an import: it would be used without a look at the source.
                py_compile.compile(str(path), doraise=True)
        overlay = {}
        for name, text in patched.items():
            served = tmp_path / "overlay" / name
            served.parent.mkdir(parents=True, exist_ok=True)
            served.write_text(dedent(text))
            overlay[str(tmp_path / names / name)] = str(served)
        before = tree(project)
        command = Command(
            script=script if module else str(project / script),
            module=module,
            python=PYTHON,
            environment={"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
            cwd=str(project),
        )
        result = measure(command, tmp_path / "run", replace(SHORT, overlay=overlay), timeout=120)
        assert tree(project) == before
        output = (tmp_path / "run" / "output.log").read_text()
        return Done(result, output, output.splitlines())

    return run


HELPER = """
import torch

def word():
    return "original"

@torch.jit.script
def scripted(x: torch.Tensor) -> torch.Tensor:
    return x + 1

def compiled(x):
    return x + 1

def fail():
    raise ValueError("on purpose")
"""


@pytest.mark.parametrize("names", ["project", "linked"])
@pytest.mark.slow
def test_main_script_and_imported_modules_run_as_patched(go: Go, names: str) -> None:
    main = (
        TRAINING
        + """
import inspect, traceback
import helper
print("main", "original")
print("helper", helper.word())
print("scripted", helper.scripted(torch.zeros(1)).item())
print("compiled", torch.compile(helper.compiled, backend="eager")(torch.zeros(1)).item())
print("source", inspect.getsource(helper.word).strip().splitlines()[-1].strip())
print("own source", inspect.getsource(train).strip().splitlines()[0])
try:
    helper.fail()
except ValueError:
    traceback.print_exc()
train(torch.randn(300, 4, 8))
"""
    )
    done = go(
        "train.py",
        {"train.py": main, "helper.py": HELPER},
        {
            "train.py": SHIFT + main.replace('"original"', '"patched"'),
            "helper.py": SHIFT
            + HELPER.replace('"original"', '"patched"').replace("x + 1", "x + 2").replace("on purpose", "as patched"),
        },
        names=names,
    )
    assert done.lines[:6] == [
        "main patched",
        "helper patched",
        "scripted 2.0",
        "compiled 2.0",
        'source return "patched"',
        "own source def train(batches):",
    ]
    assert 'raise ValueError("as patched")' in done.output
    # The call sites are those of the patched text.
    (backward,) = (site for site in done.run.record.call_sites if site.kind == "backward")
    assert backward.site.line == (SHIFT + main).splitlines().index("        model(x).square().mean().backward()") + 1


@pytest.mark.slow
def test_module_run_by_its_name_runs_as_patched(go: Go) -> None:
    main = TRAINING + 'from . import part\nprint("word", part.WORD, "here")\ntrain(torch.randn(300, 4, 8))\n'
    done = go(
        "package.train",
        {"package/__init__.py": "", "package/train.py": main, "package/part.py": 'WORD = "original"\n'},
        {"package/train.py": SHIFT + main.replace("here", "there"), "package/part.py": 'WORD = "patched"\n'},
        module=True,
    )
    assert done.lines[0] == "word patched there"


READS_SETTINGS = (
    TRAINING
    + """
import codecs, io, json, os, pathlib, subprocess, sys
here = pathlib.Path(__file__).parent
def shown(text):
    return json.loads(text)["word"]
print("open", shown(open(here / "settings.json").read()))
print("relative", shown(open("settings.json", mode="rb").read()))
print("pathlib", shown((here / "settings.json").read_text()))
print("codecs", shown(codecs.open(str(here / "settings.json"), "r", "utf-8").read()))
print("other", open(here / "data" / "settings.json").read())
print("child", subprocess.run([sys.executable, here / "child.py"], capture_output=True, text=True).stdout.strip())
train(torch.randn(300, 4, 8))
"""
)


def test_settings_are_read_as_patched_and_noted(go: Go, tmp_path: Path) -> None:
    sources = {
        "train.py": READS_SETTINGS,
        "settings.json": '{"word": "original"}',
        "data/settings.json": "another file",
        "child.py": "import json\nprint(json.load(open('settings.json'))['word'])\n",
    }
    done = go("train.py", sources, {"settings.json": '{"word": "patched"}'})
    said = dict(line.split(" ", 1) for line in done.lines[:6])
    assert {said.pop(each) for each in ("open", "relative", "pathlib", "codecs", "child")} == {"patched"}
    assert said == {"other": "another file"}
    assert done.run.record.settings == [str(tmp_path / "project" / "data" / "settings.json")], "not the overlay's own"


@pytest.mark.sessions
def test_settings_that_the_script_writes_are_its_own_again(go: Go, tmp_path: Path) -> None:
    """And what was there before is what is put back: the file's own text, not the patched one (`go` compares)."""
    script = """
    import json
    settings = json.load(open("settings.json"))
    with open("settings.json", "w") as file:
        json.dump({**settings, "more": 1}, file)
    print(sorted(json.load(open("settings.json"))), settings["word"])
    """
    sources = {
        "train.py": dedent(script) + TRAINING + "train(torch.randn(300, 4, 8))\n",
        "settings.json": '{"word": 1}',
    }
    assert go("train.py", sources, {"settings.json": '{"word": 2}'}).lines[0] == "['more', 'word'] 2"
    assert (tmp_path / "project" / "settings.json").read_text() == '{"word": 1}'


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    ["fork", *(pytest.param(each, marks=pytest.mark.sessions) for each in ("spawn", "forkserver"))],
)
def test_workers_make_batches_from_the_patched_dataset(go: Go, method: str) -> None:
    main = f"""
import torch
import names
class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return torch.full((8,), 1.0 * names.FACTOR)
if __name__ == "__main__":
    loader = torch.utils.data.DataLoader(
        Numbers(), 4, num_workers=1, multiprocessing_context="{method}", persistent_workers=True
    )
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for epoch in range(30):
        for x in loader:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        print("value", x.mean().item())
"""
    done = go(
        "train.py",
        {"train.py": main, "names.py": "FACTOR = 1\n"},
        {"train.py": SHIFT + main.replace("1.0 *", "2.0 *"), "names.py": "FACTOR = 10\n"},
    )
    assert done.lines[0] == "value 20.0"


CHILD = """
import sys
def where():
    return "child original", __spec__, sys.argv[1:], sys.path[0]
print(where())
if sys.argv[1:] == ["fail"]:
    raise ValueError("child original")
"""


@pytest.mark.sessions
@pytest.mark.slow
def test_scripts_that_the_script_starts_run_as_patched(go: Go) -> None:
    main = (
        TRAINING
        + """
import subprocess, sys
launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1", "--standalone"]
for command in ([sys.executable], launcher):
    subprocess.run([*command, "child.py", "plain"], check=True, stderr=subprocess.DEVNULL)
subprocess.run([sys.executable, "child.py", "fail"], check=False)
train(torch.randn(300, 4, 8))
"""
    )
    done = go(
        "train.py",
        {"train.py": main, "child.py": CHILD},
        {"child.py": SHIFT + CHILD.replace("child original", "child patched")},
    )
    here = os.path.dirname(done.run.record.script)
    said = str(("child patched", None, ["plain"], os.path.realpath(here)))
    assert done.lines[:2] == [said, said]
    failed = done.lines[done.lines.index("Traceback (most recent call last):") :]
    assert failed[1].strip().startswith('File "' + os.path.join(here, "child.py"))
    assert failed[2].strip() == 'raise ValueError("child patched")'


def interpreters() -> list[str]:
    """Every Python that the harness supports and that is here, one per version."""
    named = [sys.executable, *(f"python3.{minor}" for minor in range(10, 16))]
    candidates = [shutil.which(name) for name in named]
    candidates += [str(path) for path in sorted(Path.home().glob(".pyenv/versions/3.*/bin/python"))]
    found: dict[str, str] = {}
    for path in filter(None, candidates):
        asked = subprocess.run([path, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True)
        version = tuple(map(int, asked.stdout.split() or (0,)))
        if version >= (3, 10):
            found.setdefault(".".join(map(str, version)), path)
    return list(found.values())


@pytest.mark.parametrize("python", interpreters())
def test_main_script_in_any_python_sees_the_world_as_when_run_plainly(python: str, tmp_path: Path) -> None:
    """What a script can see of how it was started: the same for a file with that text and for one that is patched."""
    script, text = (
        tmp_path / "script.py",
        dedent("""
        '''A script.'''
        import inspect, json, multiprocessing, sys
        seen = {name: repr(value) for name, value in sorted(globals().items()) if name.startswith('_')}
        def where():
            return sys.argv, __file__, sys.modules['__main__'].__dict__ is globals()
        if __name__ == '__main__':
            seen['where'] = where()
            seen['path'] = sys.path[0]
            seen['source'] = inspect.getsource(where)
            with multiprocessing.get_context('spawn').Pool(1) as pool:
                seen['worker'] = pool.apply(where)
            seen['hooks'] = len(sys.path_hooks)
            print(json.dumps(seen))
            sys.exit(7)
        """),
    )
    served = tmp_path / "served.py"
    served.write_text(text)
    options = tmp_path / "options.json"
    options.write_text(json.dumps({"run_dir": str(tmp_path), "restore": False, "overlay": {str(script): str(served)}}))
    site = Path(advisor.harness.__file__).parent / "site"
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    said = []
    for on_disk, more in (
        (text, {}),
        ('print(\'{"from": "disk"}\')', {OPTIONS_ENV: str(options), "PYTHONPATH": str(site)}),
    ):
        script.write_text(on_disk)
        ran = subprocess.run(
            [python, "script.py", "--flag"],
            cwd=tmp_path,
            env={**environment, **more},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ran.stderr == ""
        assert ran.returncode == 7, ran.stdout
        seen = json.loads(ran.stdout)
        seen["__loader__"] = seen["__loader__"].partition(" at 0x")[0]
        said.append(seen)
    assert said[1] == said[0]


READS_BY_PATH = """
import pathlib, sys
here = pathlib.Path(sys.argv[1])
print((here / "settings.json").read_text(), (here / "other.json").read_text(), (here / "plain").read_text())
with (here / "settings.json").open("w") as file:
    file.write("its own")
print((here / "settings.json").read_text())
"""
INSTALLS = """
import sys
EARLY
sys.path.insert(0, sys.argv[2])
from harness.overlay import Overlay
Overlay({sys.argv[1] + "/settings.json": sys.argv[1] + "/served.json"}).install()
"""


@pytest.mark.parametrize("early", ["", "import pathlib"], ids=["after", "before"])
@pytest.mark.parametrize("python", interpreters())
def test_settings_are_read_as_patched_by_path_in_any_python(python: str, early: str, tmp_path: Path) -> None:
    """Python 3.10's pathlib keeps ``io.open`` as it was when pathlib was imported."""
    for name, text in {"settings": "original", "other": "other", "served": "patched"}.items():
        (tmp_path / f"{name}.json").write_text(text)
    (tmp_path / "plain").write_text("plain")
    # Under a name of its own: as a part of `advisor` it would need what an older Python here may not have.
    (tmp_path / "harness").symlink_to(Path(advisor.harness.__file__).parent)
    ran = subprocess.run(
        [python, "-c", INSTALLS.replace("EARLY", early) + READS_BY_PATH, str(tmp_path), str(tmp_path)],
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    assert ran.stdout.splitlines() == ["patched other plain", "its own"], ran.stderr


def test_a_file_of_another_kind_costs_no_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overlay = Overlay({str(tmp_path / "settings.json"): str(tmp_path / "served.json")})
    asked: list[str] = []

    def islink(name: str) -> bool:
        asked.append(name)
        return False

    monkeypatch.setattr(os.path, "islink", islink)
    for name in ("photo.png", "other.json", "settings.json"):
        overlay._patched_data(tmp_path / name, "r")
    assert asked == [str(tmp_path / "other.json")]


def test_without_patches_nothing_is_installed(tmp_path: Path) -> None:
    (tmp_path / "options.json").write_text(json.dumps({"run_dir": str(tmp_path), "restore": False}))
    site = Path(advisor.harness.__file__).parent / "site"
    code = "import io, sys; print('_advisor_harness.overlay' in sys.modules, io.open_code, len(sys.path_hooks))"
    said = subprocess.run(
        [PYTHON, "-c", code],
        env={**os.environ, OPTIONS_ENV: str(tmp_path / "options.json"), "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said.strip() == "False <built-in function open_code> 2"
