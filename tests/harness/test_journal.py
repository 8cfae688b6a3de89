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
from advisor.restore import Restored, restore

HARNESS = Path(bootstrap.__file__).parent
IMPORTS = "import os, pathlib, pickle, shutil, sqlite3, subprocess, sys, tempfile, threading\n"


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
            [sys.executable, "-c", IMPORTS + code],
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
    "SQLite": (
        "import shutil; c = sqlite3.connect('db'); c.execute('create table t (x)'); c.commit(); c.close()"
    ),
    "pipe and socket": (
        "import socket; os.mkfifo('pipe'); s = socket.socket(socket.AF_UNIX); s.bind('sock')"
    ),
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
        "os.system('rm -rf sub; mkdir -p sub/x out/y && echo hello > c; cp a b; cp a empty; mv link moved; touch out/z')"
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
