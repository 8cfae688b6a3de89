"""What a program that the script starts may change: a guess from its command line, better than none.

Research scripts make, clear and copy folders with ``os.system("rm -rf out; mkdir -p out")``. Python raises an audit
event before such a command, but not for what it then does.
"""

from __future__ import annotations

import glob
import os
import shlex
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..layout import OPTIONS_ENV

# Copying more than this before, say, an `unzip` would cost more than it is worth; then it is said instead.
MOST_BYTES = 256 << 20

# Programs that libraries start to look around; they write nothing of the user's.
_HARMLESS = frozenset(
    word
    for line in (
        "uname lscpu nvidia-smi rocm-smi amd-smi rocminfo ldconfig gcc g++ cc c++ clang clang++ ld as objdump nm which",
        "hostname ptxas cuobjdump nvdisasm nvcc ccache whoami id file lspci free df du ls cat echo true false test [",
        "pwd date sleep head tail grep wc sort uniq cut env printenv tty stty tput clear cd export set md5sum",
    )
    for word in line.split()
)
# Of programs that can do more. PyTorch's compiler has openssl sum up its headers.
_READS = {
    "git": frozenset(("status", "rev-parse", "log", "diff", "show", "describe", "remote", "ls-files")),
    "openssl": frozenset(("md5", "sha1", "sha256", "sha384", "sha512", "version")),
}
_REMOVES = frozenset(("rm", "mv", "rmdir", "unlink", "shred"))
_SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh"))
_SEPARATORS = frozenset((";", "&&", "||", "|", "&", "(", ")", "\n"))


@dataclass(frozen=True)
class Program:
    """What is known of a command: the paths it names (with their patterns filled in), and what to tell the user."""

    names: tuple[str, ...] = ()
    removes: bool = False
    note: str = ""

    def exceeding(self, path: str) -> Program:
        return replace(self, note=f"{self.note.rstrip('.')}; {path} is too large to keep a copy of")


def look_at(words: list[str], cwd: str, env: Mapping[Any, Any] | None) -> Program:
    """What the command `words`, started in `cwd` with the environment `env` (None: ours), may change."""
    if not words:
        return Program()
    name = os.path.basename(words[0])
    if name in _SHELLS and "-c" in words[1:3]:
        return _shell(words[words.index("-c") + 1] if words[-1] != "-c" else "", cwd)
    if len(words) == 1 and any(character.isspace() for character in words[0]):
        return _shell(words[0], cwd)
    return _one(words, cwd, env)


def _shell(text: str, cwd: str) -> Program:
    lexer = shlex.shlex(text.replace("\n", " ; "), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        words = list(lexer)
    except ValueError:  # quotes that do not match
        words = text.split()
    commands: list[list[str]] = [[]]
    for word in words:
        if word in _SEPARATORS or set(word) <= set(";&|()"):
            commands.append([])
        else:
            commands[-1].append(word)
    found = Program()
    for command in filter(None, commands):
        if command[0] == "cd" and len(command) > 1:
            cwd = os.path.join(cwd, os.path.expanduser(os.path.expandvars(command[1])))
        one = _one(command, cwd, None)
        found = Program(found.names + one.names, found.removes or one.removes, found.note or one.note)
    return found


def _one(words: list[str], cwd: str, env: Mapping[Any, Any] | None) -> Program:
    name = os.path.basename(words[0])
    redirected = [words[i + 1] for i, word in enumerate(words[:-1]) if word.endswith((">", ">>", ">|", ">&"))]
    if name.startswith(("python", "pypy")):
        isolated = any(word.startswith("-") and set(word) & set("IES") for word in words[1:] if word[:2] != "--")
        inherits = env is None or OPTIONS_ENV in env or OPTIONS_ENV.encode() in env
        if inherits and not isolated:  # keeps the journal itself
            return Program(_paths(redirected, cwd))
        return Program(note=f"the script started {name!r} apart from its environment; what it writes is not put back")
    if name in _HARMLESS or not _READS.get(name, frozenset()).isdisjoint(words):
        return Program(_paths(redirected, cwd))
    names = _paths([*words[1:], *redirected], cwd, into=name not in ("rm", "rmdir", "unlink", "mkdir"))
    note = f"the script started {name!r}; files that it writes, other than those it was given, are not put back"
    return Program(names, name in _REMOVES, "" if name in _REMOVES or name == "mkdir" else note)


def _paths(words: list[str], cwd: str, into: bool = False) -> tuple[str, ...]:
    """Every path among `words` that is there, or whose folder is there, as an absolute one.

    With `into` a file that goes into a folder (``cp a folder``) is a path, too.
    """
    found: dict[str, None] = {}
    folders = []
    for word in words:
        for part in {word, word.partition("=")[2]} if word.startswith("-") else (word,):
            if not part or set(part) <= set("<>&|") or part.startswith(("-", "/dev/", "/proc/")) or "://" in part:
                continue
            path = os.path.join(cwd, os.path.expanduser(os.path.expandvars(part)))
            matches = [path] if os.path.lexists(path) or not glob.has_magic(part) else glob.glob(path)
            for match in matches:
                match = os.path.normpath(match)
                # Not a root of everything, and not the folder the script works in: those are too much to keep.
                if match in ("/", os.path.normpath(cwd)) or not os.path.isdir(os.path.dirname(match)):
                    parent = _first_missing(match)
                    if parent:
                        found[parent] = None
                    continue
                found[match] = None
                if os.path.isdir(match):
                    folders.append(match)
    for folder in folders[-1:] if into else ():
        for path in list(found):
            if path != folder:
                found[os.path.join(folder, os.path.basename(path))] = None
    return tuple(found)


def _first_missing(path: str) -> str:
    """The outermost folder that ``mkdir -p path`` would make; "" when there is none."""
    missing = ""
    while not os.path.lexists(path) and len(path) > 1:
        missing, path = path, os.path.dirname(path)
    return missing


def sqlite_file(database: str) -> str:
    """The file behind a database's name or URI; "" when there is none to be changed."""
    if not database or database == ":memory:":
        return ""
    if not database.startswith("file:"):
        return database
    parts = urllib.parse.urlsplit(database)
    query = urllib.parse.parse_qs(parts.query)
    if query.get("mode", [""])[0] in ("memory", "ro") or parts.path in ("", ":memory:"):
        return ""
    return urllib.parse.unquote(parts.path)
