"""Who may read the script's tensors in a way that no mode of torch's functions sees: other threads and processes,
compiled code, TorchScript, and what Python hands to a backward.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
import threading
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from ..places import is_user_file

_THREADS = ("concurrent.", "multiprocessing.pool")  # whose work is the script's
_FEEDS = "_feed"  # the thread of a queue between processes; each of a loader's workers has one
# Libraries whose compiled parts are called by way of torch's dispatcher, which the mode sees.
_KNOWN = ("torch", "torchvision", "torchaudio", "torchgen", "functorch")
# What an extension is linked with that takes tensors by itself: its name stands before the code, however long that is.
_NEEDS, _MOST_BYTES = b"libtorch_python", 4 << 20


def have_threads(workers: int) -> bool:
    """Whether another thread may work with the script's tensors: one of the user's, of a pool, of a queue.

    `workers` is how many processes of loaders there are, each of which has a queue of its own.
    """
    others = [each for each in threading.enumerate() if each is not threading.main_thread()]
    feeding = sum(getattr(getattr(each, "_target", None), "__name__", "") == _FEEDS for each in others)
    return any(map(may_read, others)) or feeding > workers


def has_script(torch: Any, module: Any) -> bool:
    return any(isinstance(each, torch.jit.ScriptModule) for each in module.modules())


def custom_forwards(torch: Any) -> set[Any]:
    """The code of the forwards of all custom autograd Functions there are."""
    found: set[Any] = set()
    todo: list[Any] = [torch.autograd.Function]
    while todo:
        cls = todo.pop()
        todo += cls.__subclasses__()
        found |= {_code_of(vars(cls).get(name)) for name in ("forward", "setup_context")}
    return found - {None}


def _code_of(method: Any) -> Any:
    return getattr(getattr(method, "__func__", method), "__code__", None)


def may_read(thread: threading.Thread) -> bool:
    """Whether a thread may work with the script's tensors: it runs the user's own code, or a pool's tasks."""
    target = getattr(thread, "_target", None)
    runs = target if target is not None else type(thread).run
    code = _code_of(runs)
    module = str(getattr(runs, "__module__", "") or "")
    return module.startswith(_THREADS) or (code is not None and is_user_file(code.co_filename))


def is_distributed(torch: Any) -> bool:
    """Whether processes exchange tensors, in calls that no mode sees."""
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())


def is_any_scripted(torch: Any) -> bool:
    """Whether there is a module of TorchScript's anywhere, which reads unseen: one that was loaded, say."""
    script = torch.jit.ScriptModule
    return any(script in type(each).__mro__ for each in gc.get_objects())


def has_extensions() -> bool:
    """Whether somebody's compiled module takes tensors by itself: what it reads, no mode sees."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith((".so", ".pyd")) or name.partition(".")[0] in _KNOWN:
            continue
        try:
            with open(file, "rb") as opened:
                if _NEEDS in opened.read(_MOST_BYTES):
                    return True
        except OSError:
            continue
    return False


def hanging_on(tensors: list[Any], torch: Any) -> Iterator[Any]:
    """What custom Functions have kept as attributes of their nodes, in the graph of these."""
    seen: set[Any] = set()
    todo = [each.grad_fn for each in tensors]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        todo += [each for each, _ in node.next_functions]
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            yield vars(node)


def held_by(function: Any) -> list[Any]:
    """What a function has besides its arguments; raises for an object's, whose attributes it may take."""
    if isinstance(function, functools.partial):
        return [function.args, function.keywords, *held_by(function.func)]
    if not isinstance(function, FunctionType):
        raise TypeError("no plain function")
    held = []
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # empty
            held.append(cell.cell_contents)
    return [held, function.__defaults__, function.__kwdefaults__]
