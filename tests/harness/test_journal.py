"""Whatever a script does to files, they are afterwards as they were; its new files are in the run folder.

Each case runs a piece of plain Python in a process of its own, which keeps the journal as a script's child does.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from advisor.harness import bootstrap, layout
from advisor.harness.undo.programs import look_at
from advisor.restore import EARLIER_DIR, Restored, restore
from tests.conftest import PYTHON

pytestmark = pytest.mark.oldest
HARNESS = Path(bootstrap.__file__).parent
IMPORTS = "import os, pathlib, pickle, shutil, sqlite3, subprocess, sys, tempfile, threading\n"


def installed(name: str) -> bool:
    """Whether the interpreter under test, which need not be ours, has this package."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({name!r}) is None)"
    return subprocess.run([PYTHON, "-c", code], check=False).returncode == 0


class Sandbox:
    """A user's folder with files in it, and a run folder beside it."""

    def __init__(self, base: Path) -> None:
        self.folder = base / "user"
        self.run_dir = base / "advisor_runs" / "script-1" / "baseline"
        self.run_dir.mkdir(parents=True)
        (self.folder / "sub" / "deep").mkdir(parents=True)
        (self.folder / "empty").mkdir()
        for number, name in enumerate(("a", "b", "c", "sub/d", "sub/deep/e", "odd name\nand line", "café")):
            path = self.folder / name
            path.write_bytes(f"contents of {name}\n".encode() * 40)
            os.utime(path, (1_500_000_000 + number, 1_600_000_000 + number))
        odd = os.path.join(os.fsencode(self.folder), b"not-utf8-\xff")
        with open(odd, "wb") as file:
            file.write(b"bytes")
        (self.folder / "link").symlink_to("a")
        (self.folder / "folder-link").symlink_to("sub")
        (self.folder / "dangling").symlink_to("nowhere")
        os.link(self.folder / "b", self.folder / "b-twin")
        (self.folder / "read-only").write_text("precious")
        (self.folder / "read-only").chmod(0o444)
        options = layout.Options(run_dir=str(self.run_dir), script=str(self.folder / "x.py"), cwd=str(self.folder))
        (self.run_dir / layout.OPTIONS_JSON).write_text(json.dumps(layout.to_dict(options)))
        self.before = self.tree()

    def tree(self) -> dict[str, tuple[object, ...]]:
        found: dict[str, tuple[object, ...]] = {}
        for path in sorted(self.folder.rglob("*")):
            status = path.lstat()
            if stat.S_ISLNK(status.st_mode):
                entry: tuple[object, ...] = ("link", os.readlink(path))
            elif stat.S_ISDIR(status.st_mode):
                entry = ("folder", status.st_mode)
            elif not stat.S_ISREG(status.st_mode):
                entry = ("pipe or socket",)
            else:
                entry = (path.read_bytes(), status.st_mode, status.st_mtime_ns, status.st_ino, status.st_uid)
            found[str(path.relative_to(self.folder))] = entry
        return found

    def run(self, code: str, check: bool = True, **environment: str) -> str:
        child = subprocess.run(
            [PYTHON, "-c", IMPORTS + code],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
            env={
                **os.environ,
                "PYTHONDONTWRITEBYTECODE": "1",
                "PYTHONPATH": str(HARNESS / "site"),
                layout.OPTIONS_ENV: str(self.run_dir / layout.OPTIONS_JSON),
                **environment,
            },
        )
        if check:
            assert child.returncode == 0, child.stderr
        return child.stdout + child.stderr

    def changed(self) -> bool:
        return self.tree() != self.before

    def restore(self) -> Restored:
        return restore(self.run_dir)

    def moved(self, name: str) -> Path:
        return self.run_dir / layout.FILES_DIR / name


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    yield Sandbox(tmp_path)


CASES = {
    "open for writing": "open('a', 'w').write('x')",
    "append": "open('a', 'a').write('x')",
    "open for update": "f = open('a', 'r+'); f.seek(5); f.write('x')",
    "same size, same time": (
        "s = os.stat('a'); open('a', 'r+').write('CONTENTS'); os.utime('a', ns=(s.st_atime_ns, s.st_mtime_ns))"
    ),
    "truncate by path": "os.truncate('a', 3)",
    "truncate by descriptor": "f = os.open('a', os.O_RDWR); os.ftruncate(f, 0)",
    "bytes path": "open(b'a', 'wb').write(b'x')",
    "not UTF-8": "open(b'not-utf8-\\xff', 'ab').write(b'x'); open(b'new-\\xff', 'wb').write(b'x')",
    "newline in the name": "os.replace('a', 'odd name\\nand line')",
    "pathlib": "p = pathlib.Path('café'); p.write_text('x'); p.rename('other'); pathlib.Path('sub/d').unlink()",
    "atomic write": "open('a.tmp', 'w').write('x'); os.replace('a.tmp', 'a')",
    "rename chain": "os.rename('a', 'x'); os.rename('x', 'y'); os.rename('b', 'a'); os.rename('c', 'b')",
    "renamed, then written": "os.rename('a', 'z'); open('z', 'a').write('more')",
    "renamed away and made anew": "os.rename('a', 'a.bak'); open('a', 'w').write('x'); os.remove('a.bak')",
    "swap": "os.rename('a', 't'); os.rename('c', 'a'); os.rename('t', 'c')",
    "remove": "os.remove('a'); os.unlink('read-only')",
    "remove and make anew": "os.remove('a'); open('a', 'w').write('x'); os.remove('a')",
    "file becomes folder": "os.remove('a'); os.mkdir('a'); open('a/x', 'w').write('x')",
    "folder becomes file": "shutil.rmtree('sub'); open('sub', 'w').write('x')",
    "link becomes file": "os.remove('link'); open('link', 'w').write('x')",
    "file becomes link": "os.remove('a'); os.symlink('b', 'a')",
    "link becomes folder": "os.remove('folder-link'); os.mkdir('folder-link'); open('folder-link/x', 'w')",
    "write through a link": "open('link', 'w').write('x')",
    "write through a linked folder": "open('folder-link/d', 'w').write('x'); open('folder-link/n', 'w').write('x')",
    "write through a dangling link": "open('dangling', 'w').write('x')",
    "replace a link": "open('t', 'w').write('x'); os.replace('t', 'link')",
    "move a link": "os.rename('link', 'sub/link'); os.remove('dangling')",
    "hard link, written in place": "open('b', 'w').write('x')",
    "hard link, replaced": "open('t', 'w').write('x'); os.replace('t', 'b')",
    "hard link, written and then replaced": (
        "open('b', 'a').write('x'); open('t', 'w').write('x'); os.replace('t', 'b')"
    ),
    "new hard link to an old file": "os.link('a', 'twin'); open('twin', 'w').write('x')",
    "new hard link, old name removed": "os.link('a', 'twin'); os.remove('a'); open('twin', 'a').write('x')",
    "rmtree": "shutil.rmtree('sub')",
    "rmtree and made anew": "shutil.rmtree('sub'); os.makedirs('sub/deep'); open('sub/deep/e', 'w').write('x')",
    "rename a folder": "os.rename('sub', 'bus'); open('bus/d', 'w').write('x'); os.remove('bus/deep/e')",
    "rename a folder over an empty one": "os.replace('sub', 'empty')",
    "rename a folder twice": "os.rename('sub', 's1'); os.rename('s1', 's2'); open('s2/deep/e', 'a').write('x')",
    "rotate": "shutil.rmtree('empty'); os.rename('sub', 'empty'); shutil.copytree('empty', 'sub')",
    "rmdir": "os.rmdir('empty')",
    "removedirs": "os.remove('sub/deep/e'); os.remove('sub/d'); os.removedirs('sub/deep')",
    "shutil.move": "shutil.move('a', 'sub'); shutil.move('sub', 'empty')",
    "shutil.copy": "shutil.copy('a', 'b'); shutil.copy2('c', 'sub/d'); shutil.copyfile('a', 'new')",
    "copytree": "shutil.copytree('sub', 'copy'); shutil.copytree('empty', 'sub', dirs_exist_ok=True)",
    "folders made anew": "os.makedirs('x/y/z'); open('x/y/f', 'w').write('x')",
    "mode": "os.chmod('a', 0o600); os.chmod('sub', 0o711); os.chmod('link', 0o640)",
    "mode by descriptor": "f = os.open('a', os.O_RDONLY); os.fchmod(f, 0o600); os.utime(f, (1, 1))",
    "mode of a folder that is then closed": "open('sub/d', 'w'); os.remove('sub/deep/e'); os.chmod('sub/deep', 0)",
    "new folder that is then closed": "os.mkdir('n'); open('n/f', 'w').write('x'); os.chmod('n', 0)",
    "times": "os.utime('a', (1, 1)); pathlib.Path('b').touch()",
    "read-only file": "os.chmod('read-only', 0o644); open('read-only', 'w').write('x')",
    "read-only file, replaced": "open('t', 'w').write('x'); os.replace('t', 'read-only')",
    "chdir": "os.chdir('sub'); open('d', 'w').write('x'); os.chdir('deep'); os.remove('e'); open('../../n', 'w')",
    "folder descriptor": (
        "d = os.open('sub', os.O_RDONLY)\n"
        "f = os.open('d', os.O_WRONLY | os.O_TRUNC, dir_fd=d); os.write(f, b'x')\n"
        "os.unlink('deep/e', dir_fd=d); os.mkdir('n', dir_fd=d); os.rename('d', 'm', src_dir_fd=d, dst_dir_fd=d)"
    ),
    "SQLite": ("import shutil; c = sqlite3.connect('db'); c.execute('create table t (x)'); c.commit(); c.close()"),
    "pipe and socket": ("import socket; os.mkfifo('pipe'); s = socket.socket(socket.AF_UNIX); s.bind('sock')"),
    "threads": (
        "def work(n):\n"
        "    for i in range(30):\n"
        "        open('a', 'a').write('x'); open(f'new-{n}', 'a').write('x'); open(f'sub/d', 'w').write(str(i))\n"
        "threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]"
    ),
    "fork": (
        "p = os.fork()\n"
        "if not p:\n"
        "    open('a', 'w').write('child'); os.remove('c'); open('by-child', 'w').write('x'); os._exit(0)\n"
        "os.waitpid(p, 0); open('a', 'a').write('parent'); open('c', 'w').write('x'); open('by-child', 'a').write('x')"
    ),
    "a Python of its own": (
        "code = \"open('a', 'w').write('x'); import os; os.remove('c'); open('n', 'w').write('x')\"\n"
        "subprocess.run([sys.executable, '-c', code], check=True); open('a', 'a').write('y'); open('n', 'a').write('y')"
    ),
    "multiprocessing": (
        "import multiprocessing\n"
        "for method in ('fork', 'spawn', 'forkserver'):\n"
        "    p = multiprocessing.get_context(method).Process(target=os.replace, args=('a', f'by-{method}'))\n"
        "    p.start(); p.join(); assert p.exitcode == 0\n"
        "    open('a', 'w').write(method)"
    ),
    "shell": (
        "os.system('rm -rf sub; mkdir -p sub/x out/y && echo hello > c; cp a b; cp a empty; mv link moved')\n"
        "os.system('touch out/z')"
    ),
    "shell with a pattern": "subprocess.run('rm -f ?; sed -i s/o/0/ café', shell=True, check=True)",
    "programs": "subprocess.run(['rm', '-r', 'sub', 'a']); subprocess.check_call(['truncate', '--size=1', 'c'])",
    "raw descriptors": "f = os.open('a', os.O_WRONLY | os.O_TRUNC); os.write(f, b'x'); os.close(f)",
    "exclusive creation": "open('n', 'x').write('x')",
    "temporary file in the folder": (
        "f = tempfile.NamedTemporaryFile(dir='.', delete=False); f.write(b'x'); f.close(); os.replace(f.name, 'a')"
    ),
    "exit handler": "import atexit; atexit.register(lambda: open('a', 'w').write('x'))",
    "hook of its own": "sys.addaudithook(lambda *a: None); sys.excepthook = print; open('a', 'w').write('x')",
    "logging": "import logging; logging.basicConfig(filename='a', filemode='w'); logging.error('x')",
    "archives": "import zipfile, tarfile; shutil.make_archive('c', 'zip', 'sub'); shutil.unpack_archive('c.zip', '.')",
}


@pytest.mark.parametrize("name", CASES)
def test_everything_is_as_it_was(sandbox: Sandbox, name: str) -> None:
    sandbox.run(CASES[name])
    assert sandbox.changed()
    done = sandbox.restore()
    assert done.failed == []
    assert sandbox.tree() == sandbox.before
    assert sorted(sandbox.run_dir.iterdir()) != [] and not (sandbox.run_dir / layout.JOURNAL_DIR).exists()


MUCH = (
    "\n".join(
        CASES[name]
        for name in ("rename chain", "rmtree", "write through a link", "hard link, written and then replaced")
    )
    + "\nos.chmod('read-only', 0o600); os.makedirs('n/m'); open('n/m/f', 'w').write('x'); os.remove('café')"
)


def test_new_files_are_in_the_run_folder(sandbox: Sandbox) -> None:
    sandbox.run("os.makedirs('out/x'); open('out/x/f', 'w').write('new'); os.chdir('sub'); open('g', 'w').write('too')")
    done = sandbox.restore()
    assert sandbox.moved("out/x/f").read_text() == "new"
    assert sandbox.moved("sub/g").read_text() == "too"
    assert len(done.moved) == 2


def test_file_renamed_and_changed_is_kept_as_the_script_left_it(sandbox: Sandbox) -> None:
    sandbox.run("os.rename('a', 'z'); open('z', 'a').write('more')")
    sandbox.restore()
    assert sandbox.moved("z").read_text() == (sandbox.folder / "a").read_text() + "more"


def test_files_of_two_runs_do_not_collide(sandbox: Sandbox) -> None:
    sandbox.run("open('n', 'w').write('file')")
    sandbox.restore()
    sandbox.run("os.mkdir('n'); open('n/f', 'w').write('x')")
    assert sandbox.restore().failed == []
    sandbox.run("open('n', 'w').write('file')")
    assert sandbox.restore().failed == []
    assert sandbox.tree() == sandbox.before


def test_restoring_twice_is_harmless(sandbox: Sandbox) -> None:
    sandbox.run(MUCH)
    sandbox.restore()
    (sandbox.folder / "a").write_text("newer work")
    sandbox.restore()
    assert (sandbox.folder / "a").read_text() == "newer work"


@pytest.mark.parametrize("first", [1, *(pytest.param(each, marks=pytest.mark.sessions) for each in range(2, 6))])
def test_interrupted_restore_is_completed_by_the_next(sandbox: Sandbox, first: int) -> None:
    """Cut off, as by `kill -9`, at the n-th thing that it does to a file, for every n from `first` in steps of 5."""
    limit, ended = first, False
    while not ended:
        sandbox.run(MUCH)
        child = os.fork()
        if child == 0:
            _die_at(limit)
            sandbox.restore()
            os._exit(0)
        ended = os.waitpid(child, 0)[1] == 0
        assert sandbox.restore().failed == []
        assert sandbox.tree() == sandbox.before, limit
        limit += 5
    assert limit > 50


def _die_at(limit: int) -> None:
    seen = 0

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal seen
        touches = event.startswith(("os.", "shutil.")) or (event == "open" and arguments[1] != "r")
        seen += touches and event not in ("os.listdir", "os.scandir")
        if seen >= limit:
            os._exit(9)

    sys.addaudithook(hook)


def test_what_could_not_be_put_back_stays_for_the_next_time(sandbox: Sandbox) -> None:
    sandbox.run("open('a', 'w').write('x'); open('c', 'w').write('x')")
    stash = next((sandbox.run_dir / layout.JOURNAL_DIR).glob("*-1"))
    stash.rename(stash.with_suffix(".away"))
    inode = stash.with_name(stash.name + ".inode")
    done = sandbox.restore()
    assert [text.split(":")[0] for text in done.failed] == [str(sandbox.folder / "a")]
    (sandbox.folder / "c").write_text("newer work")  # already put back: not again
    stash.with_suffix(".away").rename(stash)
    assert inode.exists()
    assert sandbox.restore().failed == []
    assert (sandbox.folder / "a").read_bytes() == sandbox.before["a"][0]
    assert (sandbox.folder / "c").read_text() == "newer work"


def test_work_done_after_the_run_was_killed_is_left(sandbox: Sandbox) -> None:
    sandbox.run("open('a', 'w').write('x'); open('c', 'w').write('x'); open('n', 'w').write('x')")
    died = os.stat(sandbox.folder / "n").st_ctime
    while (sandbox.folder / "a").stat().st_ctime <= died:  # a coarse clock
        (sandbox.folder / "a").write_text("newer work")
    done = restore(sandbox.run_dir, died=died)
    assert (sandbox.folder / "a").read_text() == "newer work"
    assert (sandbox.folder / "c").read_bytes() == sandbox.before["c"][0]
    assert not (sandbox.folder / "n").exists()
    assert (sandbox.run_dir / EARLIER_DIR / "a").read_bytes() == sandbox.before["a"][0]
    assert len(done.failed) == 1 and "after the run was killed" in done.failed[0]


def test_too_large_to_copy_is_not_changed_and_said(sandbox: Sandbox) -> None:
    with open(sandbox.folder / "huge", "wb") as file:
        file.truncate(shutil.disk_usage(sandbox.folder).total * 2)  # sparse
    said = sandbox.run(
        "for _ in range(2):\n    try: open('huge', 'r+').write('x')\n    except OSError as e: print(e.strerror)\n"
        "open('a', 'w').write('x')"
    )
    assert said.count("no room") == 2 and "huge" in said
    with open(sandbox.folder / "huge", "rb") as file:
        assert file.read(1) == b"\0"
    os.remove(sandbox.folder / "huge")
    sandbox.restore()
    assert sandbox.tree() == sandbox.before


def test_removing_a_huge_file_costs_no_room(sandbox: Sandbox) -> None:
    size = shutil.disk_usage(sandbox.folder).total * 2
    with open(sandbox.folder / "huge", "wb") as file:
        file.truncate(size)
    sandbox.run("os.remove('huge'); open('huge', 'w').write('x')")
    assert (sandbox.folder / "huge").stat().st_size == 1
    assert sandbox.restore().failed == []
    assert (sandbox.folder / "huge").stat().st_size == size


def test_removal_that_failed_is_no_licence_to_write(sandbox: Sandbox) -> None:
    # The audit event comes before the removal, which fails here; the file is written afterwards.
    sandbox.run("sys.audit('os.remove', 'a', -1); open('a', 'w').write('x')")
    sandbox.restore()
    assert sandbox.tree() == sandbox.before


def test_run_folder_itself_cannot_be_removed(sandbox: Sandbox) -> None:
    said = sandbox.run("open('a', 'w').write('x'); shutil.rmtree('../advisor_runs')", check=False)
    assert "advisor's own folder" in said
    said = sandbox.run("os.system('rm -rf ../advisor_runs')", check=False)
    assert "advisor's own folder" in said
    sandbox.restore()
    assert sandbox.tree() == sandbox.before


def test_full_disk_under_the_journal_forbids_the_write(sandbox: Sandbox) -> None:
    # A limit on the size of files stands in for a full disk: the copy can be begun, and not ended.
    said = sandbox.run(
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))\n"
        "for name in ('a', 'c', 'a'):\n"
        "    try: open(name, 'w')\n"
        "    except OSError as e: print('refused', name)"
    )
    assert said.split() == ["refused", "a", "refused", "c", "refused", "a"]
    assert sandbox.tree() == sandbox.before


def test_what_cannot_be_followed_is_said(sandbox: Sandbox) -> None:
    record = layout.RunRecord()
    assert record.notes == []
    for words, expected in (
        (["python", "-I", "-c", "pass"], "apart from its environment"),
        (["wget", "http://example.org/x"], "'wget'"),
        (["nvidia-smi"], ""),
        (["git", "rev-parse", "HEAD"], ""),
        (["openssl", "sha512", "c"], ""),
        (["openssl", "genrsa"], "'openssl'"),
        (["sh", "-c", "cd sub && rm -rf deep"], ""),
    ):
        note = look_at(words, str(sandbox.folder), None).note
        assert expected in note and bool(expected) == bool(note)


@pytest.mark.parametrize(
    "command, expected",
    [
        ("rm -rf sub/deep", {"sub/deep"}),
        ("cd sub && rm -f d > log.txt", {"sub/d", "sub/log.txt"}),
        ("cp a c empty", {"a", "c", "empty", "empty/a", "empty/c"}),
        ("mkdir -p x/y/z", {"x"}),
        ("tar -xf a --directory=sub", {"a", "sub", "sub/a"}),
        ("rm -f sub/*", {"sub/d", "sub/deep"}),
        ("echo 'it''s", set()),
        ("rm -rf /", set()),
    ],
)
def test_command_lines_name_what_they_change(sandbox: Sandbox, command: str, expected: set[str]) -> None:
    names = look_at(["/bin/sh", "-c", command], str(sandbox.folder), None).names
    assert {os.path.relpath(name, sandbox.folder) for name in names} == expected


def test_native_savers_are_followed(sandbox: Sandbox) -> None:
    pytest.importorskip("torch")
    code = (
        "import torch\n"
        "torch.save([1], 'a'); torch.save([1], pathlib.Path('new.pt')); torch.save([1], open('c', 'wb'))\n"
        "w = torch._C.PyTorchFileWriter('sub/d'); w.write_end_of_file()\n"
        "torch.jit.save(torch.jit.script(torch.nn.ReLU()), 'café')\n"
        "torch.jit.script(torch.nn.ReLU()).save('sub/deep/e')\n"
    )
    if installed("safetensors"):
        code += "import safetensors.torch as s; s.save_file({'x': torch.ones(1)}, 'read-only')\n"
    if installed("tokenizers"):
        code += "import tokenizers as t; k = t.Tokenizer(t.models.WordLevel({'a': 0})); k.save('b')\n"
    if installed("numpy"):
        code += (
            "import numpy as np; np.save('odd name\\nand line', np.ones(3)); np.ones(3).tofile('n')\n"
            "np.memmap('b', dtype='uint8', mode='r+')[:3] = 1\n"
        )
    sandbox.run(code)
    changed = sandbox.tree()
    for name in ("a", "c", "sub/d", "café", "sub/deep/e"):
        assert changed[name] != sandbox.before[name]
    assert sandbox.restore().failed == []
    assert sandbox.tree() == sandbox.before
