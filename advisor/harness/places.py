"""Which frame is the user's: from a call inside torch or a library back to the line that a person wrote."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator
from itertools import islice
from types import CodeType, FrameType
from typing import Any

from .layout import Site

_HERE = os.path.dirname(os.path.realpath(__file__)) + os.sep  # compared with files whose links are followed
_STDLIB = tuple(
    os.path.realpath(path) + os.sep for path in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")} if path
)
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")

FRAMES = 8  # of the user's around a call: a loop that is farther out is not looked for
_MAKING = ("__init__", "__new__", "__post_init__", "__setstate__", "__deepcopy__", "__copy__")

_site_of: dict[tuple[CodeType, int], Site] = {}


class _Known(dict[CodeType, bool]):
    """What is known of code, asked for without a call: a profiler with stacks records each, for each tensor read."""

    def __init__(self, answer: Callable[[str], bool]) -> None:
        self._answer = answer

    def __missing__(self, code: CodeType) -> bool:
        known = self[code] = self._answer(code.co_filename)
        return known


@functools.lru_cache(maxsize=4096)
def is_user_file(filename: str) -> bool:
    """Whether a person wrote this file, as far as its place tells: not installed, not Python's, not ours."""
    if filename.startswith("<"):
        return False
    path = os.path.realpath(filename)
    if path.startswith(_HERE) or any(part in path for part in _INSTALLED):
        return False
    return not path.startswith(_STDLIB) and not _is_installed_elsewhere(path)


def _is_installed_elsewhere(path: str) -> bool:
    """Whether pip has installed into the nearest folder of ``sys.path`` around it (``--target``), not the script's."""
    with contextlib.suppress(Exception):  # whatever the script has put on its path
        own = _own_folders()
        folders = {os.path.realpath(each) for each in sys.path if isinstance(each, str) and each}
        around = [folder for folder in folders | own if path.startswith(folder + os.sep)]
        nearest = max(around, key=len, default="")
        return nearest not in own and bool(nearest) and _has_installed(nearest)
    return False


@functools.lru_cache(maxsize=1)
def _own_folders() -> frozenset[str]:
    """The script's folder and the one that it was started in, as they were when first asked for."""
    found = set()
    with contextlib.suppress(OSError):  # the folder is gone
        found.add(os.path.realpath(os.getcwd()))
    if sys.argv and sys.argv[0]:
        found.add(os.path.dirname(os.path.realpath(sys.argv[0])))
    return frozenset(found)


@functools.lru_cache(maxsize=64)
def _has_installed(folder: str) -> bool:
    """Whether pip has installed something right there."""
    with contextlib.suppress(OSError):
        return any(name.endswith(".dist-info") for name in os.listdir(folder))
    return False


def user_modules() -> dict[str, str]:
    """The files of the user's own modules that were imported, the script's among them, and what they are called."""
    found: dict[str, str] = {}
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        # Most are a library's by their name: no need to look for links on the way to each.
        if not isinstance(file, str) or not file.endswith(".py") or any(part in file for part in _INSTALLED):
            continue
        if not os.path.isabs(file):
            continue  # a library's that gives a name of its own (torch.ops)
        if is_user_file(file):
            found.setdefault(os.path.realpath(file), name)
    return found


_users, _ours = _Known(is_user_file), _Known(lambda file: os.path.realpath(file).startswith(_HERE))


def user_frame(depth: int = 2) -> FrameType | None:
    """The innermost frame of the user's own code above the caller, None when there is none."""
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None and not _users[frame.f_code]:
        frame = frame.f_back
    return frame


def user_frames(depth: int = 2) -> Iterator[FrameType]:
    """All frames of the user's own code around the caller, from the inside out."""
    frame = user_frame(depth)
    while frame is not None:
        if _users[frame.f_code]:
            yield frame
        frame = frame.f_back


def is_users(frame: FrameType) -> bool:
    """Whether `frame` runs the user's own code."""
    return _users[frame.f_code]


def is_users_code(code: CodeType) -> bool:
    """Whether `code` is the user's own."""
    return _users[code]


def is_ours(frame: FrameType) -> bool:
    """Whether `frame` runs code of the harness."""
    return _ours[frame.f_code]


def at(site: Site) -> str:
    """A place in words: "train.py:41"."""
    return f"{os.path.basename(site.file)}:{site.line}"


def site_of(frame: FrameType) -> Site:
    """The call that `frame` is executing. One object per place, so that it can serve as an identity."""
    return site_at(frame.f_code, frame.f_lasti)


def site_at(code: CodeType, instruction: int) -> Site:
    """The same by a frame's code and its last instruction: a frame that another thread runs is at another soon."""
    key = (code, instruction)
    if key not in _site_of:
        _site_of[key] = _make_site(code, instruction)
    return _site_of[key]


def _make_site(code: CodeType, instruction: int) -> Site:
    lines = (line for first, last, line in code.co_lines() if first <= instruction < last)
    site = Site(file=os.path.realpath(code.co_filename), line=next(lines, None) or 0, function=code.co_name)
    positions = getattr(code, "co_positions", None)  # Python 3.11
    if positions is not None:
        line, end_line, column, end_column = next(islice(positions(), instruction // 2, None), (None, None, None, None))
        if line is not None and column is not None:
            site.line, site.column, site.end_line, site.end_column = line, column, end_line, end_column
    return site


def definition_of(method: Any) -> Site | None:
    """Where a function is written, decorators looked through; None where no user wrote it."""
    while (inner := getattr(method, "__wrapped__", None)) is not None:
        method = inner
    code = getattr(method, "__code__", None)
    if code is None or not _users[code]:
        return None
    return Site(file=os.path.realpath(code.co_filename), line=code.co_firstlineno, function=code.co_name)


def user_site(depth: int = 2) -> Site | None:
    """:func:`site_of` the nearest user frame."""
    frame = user_frame(depth + 1)
    return None if frame is None else site_of(frame)


def maker_site(made: object, depth: int = 2) -> Site | None:
    """:func:`site_of` the nearest user frame that is none of `made`'s own methods: where the script makes it."""
    frame = user_frame(depth + 1)
    while frame is not None and (not _users[frame.f_code] or _is_method_of(made, frame)):
        frame = frame.f_back
    return None if frame is None else site_of(frame)


def owner(made: object, depth: int = 2) -> str:
    """Who makes `made`: the user's module or, when a library does it for them, the one that they called.

    ``trainer.train()`` of transformers makes its loaders through accelerate: the owner is transformers. A library that
    only wraps the constructor of what the user makes (lightning, around ``train_dataloader``) owns nothing.
    """
    frame: FrameType | None = sys._getframe(depth)
    library = ""
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if _users[frame.f_code]:
            return library or name
        passes_by = name.partition(".")[0] in ("_advisor_harness", "torch", "contextlib", "functools")
        if not passes_by and not _is_method_of(made, frame):
            library = name
        frame = frame.f_back
    return library


def _is_method_of(made: object, frame: FrameType) -> bool:
    """Whether `frame` runs a constructor of the object's class, or what wraps one.

    By the code alone: to ask a frame for its first argument (`f_locals`) keeps all that its function has alive, and
    writes into the dictionary that `locals()` gave it (Python 3.12 and older).
    """
    cls: Any = type(made)
    return frame.f_code in _constructors(cls, cls.__init__)


@functools.lru_cache(maxsize=4096)
def _constructors(cls: type, init: object) -> frozenset[CodeType]:
    """The code of `cls`'s constructors, as they are while its ``__init__`` is `init`: libraries wrap it for a while."""
    found = []
    for each in cls.__mro__:
        for name in _MAKING:
            method = vars(each).get(name)
            while method is not None:
                found.append(getattr(method, "__code__", None))
                method = getattr(method, "__wrapped__", None)
    return frozenset(code for code in found if code is not None)


def source_of(cls: type) -> tuple[str, int]:
    """(file, line) where a class was written; ("", 0) where that cannot be told."""
    return _source_of(cls)


@functools.lru_cache(maxsize=1024)
def _source_of(cls: type) -> tuple[str, int]:
    import inspect

    module = sys.modules.get(cls.__module__)
    file = getattr(module, "__file__", None)
    if not file:
        return "", 0
    try:
        return os.path.realpath(file), inspect.getsourcelines(cls)[1]
    except (OSError, TypeError):
        return os.path.realpath(file), 0
