"""What a step computes and nothing ever reads: a branch of a model without a loss, a metric that nobody prints.

Three steps are watched whole, once those that look for constants are over: each call of torch's functions is one that
reads storages and writes storages. A call's work is read where what it wrote is asked for its numbers (``item()``,
``numpy()``, a condition, a backward), still exists two steps later, or is an input of a call whose work is read. What
is left was computed for nobody. Only on the CPU, where a call's time is its work.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType, ModuleType
from typing import Any

from .layout import Site, Unread
from .looking import function_modes, has_fast_path, is_replaced, is_taken_down, is_transformed
from .places import FRAMES, is_user_file, is_users, site_of
from .repeats import draws
from .timing import compiled_frames

_FIRST, _WATCHED = 6, 3  # steps that pass before (constants.py watches three of them), and that are watched
STEPS = slice(_FIRST, _FIRST + _WATCHED)  # of all steps, those that are
_JUDGED = _WATCHED - 1  # of these: what the last one computes may be read in the next
_MOST_CALLS = 100_000  # of them all: more take much memory, and long
_LEAST_S = 0.1e-3  # in a step: where the longest is shorter, none is worth a word
_MOST_LINES = 100
# Of a tensor, what is no number of it: a script that asks for a shape has not read what was computed.
_ASKS = frozenset(
    (
        *("size", "dim", "ndimension", "numel", "nelement", "stride", "storage_offset", "element_size", "get_device"),
        *("is_contiguous", "is_floating_point", "is_complex", "is_signed", "is_same_size", "is_inference", "is_pinned"),
        *("is_set_to", "is_conj", "is_neg", "is_tensor", "__len__", "__hash__", "__get__", "type"),
        *("result_type", "can_cast", "broadcast_shapes", "dense_dim", "sparse_dim", "requires_grad_", "retain_grad"),
    )
)
_WRITES = frozenset(
    f"__{name}__"
    for name in (
        *("setitem", "iadd", "isub", "imul", "idiv", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor"),
        *("ilshift", "irshift"),
    )
)
# Libraries whose compiled parts are called by way of torch's dispatcher, which the mode sees.
_KNOWN = ("torch", "torchvision", "torchaudio", "torchgen", "functorch")
# What an extension is linked with that takes tensors by itself: its name stands before the code, however long that is.
_NEEDS, _MOST_BYTES = b"libtorch_python", 4 << 20


@dataclass
class _Call:
    seconds: float
    step: int
    sites: tuple[Site, ...]  # the user's frames, from the inside out
    reads: tuple[int, ...]  # the calls that wrote what this one was given
    read: bool  # by the script itself
    draws: bool = False
    writes: tuple[Any, ...] = ()  # weak references to storages


@dataclass
class _Place:
    """A place in the source, and what is computed there in the steps that are judged."""

    whole: bool = True  # nothing there is read
    steps: set[int] = field(default_factory=set)


class UnreadResults:
    """Told where steps end, models are called and backwards begin; what fails here does not fail in the script."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch: Any = torch
        self._given_up = False
        self._mode: Any = None
        self._thread = 0
        self.start()

    def start(self) -> None:
        """Nothing is known yet, or not any more: another training begins."""
        self._ended = 0
        self._forget()
        self.found: list[Unread] = []
        self.computed_s = 0.0  # in a step, by all calls that were seen

    def _forget(self) -> None:
        self._calls: list[_Call] = []
        self._writer: dict[int, int] = {}  # a storage → the call that has written to it last
        self._custom: set[Any] = set()  # the code of custom autograd Functions
        self._step = 0
        self._lost = False

    def give_up(self) -> None:
        """Never watch again: a mode is one of the things that what is compiled is compiled anew for."""
        self._given_up = True
        self.stop()

    def stop(self) -> None:
        """Watch no more; what is known stays."""
        self._leave()
        self._forget()
        self._ended = STEPS.stop + 1

    def step_ended(self) -> None:
        """One of the steps that the timing window waits for is over."""
        self._ended += 1
        if self._ended == STEPS.start:
            self._enter()
        elif STEPS.start < self._ended < STEPS.stop:
            self._step += 1
            self._custom = _functions(self._torch)
        elif self._ended == STEPS.stop:
            watched = self._mode is not None and not self._lost
            self._leave()
            try:
                if watched:
                    self._judge()
            except Exception:
                self.found = []
            self._forget()

    def forward_begins(self, module: Any) -> None:
        """A model is called: one that would compute in another way while it is watched ends the watch.

        So does TorchScript's, which reads what it is given unseen.
        """
        if self._mode is not None and (has_fast_path(self._torch, module) or _has_script(self._torch, module)):
            self._lost = True
            self._leave()

    def backward(self, losses: Any) -> None:
        """A backward begins by these losses: they are read."""
        if self._mode is not None and not self._lost and threading.get_ident() == self._thread:
            try:
                with self._torch._C.DisableTorchFunction():
                    self._root(self._reads(_tensors((losses,), self._torch)))
            except Exception:
                self._lost = True

    def _enter(self) -> None:
        torch = self._torch
        if self._given_up or self._mode is not None or torch.cuda.is_initialized() or compiled_frames():
            return
        if threading.current_thread() is not threading.main_thread() or _has_threads():
            return
        if is_taken_down(torch) or is_transformed(torch) or is_replaced(torch):
            return
        # A mode of the script's own may be left before ours is, and what is left then is the last that was entered;
        # but for a device, which knows its place.
        if all(type(each).__name__ == "DeviceContext" for each in function_modes(torch)):
            self._forget()
            self._custom = _functions(torch)
            self._thread = threading.get_ident()
            mode = _listening(self)
            mode.__enter__()
            self._mode = mode

    def _leave(self) -> None:
        if self._mode is None or threading.get_ident() != self._thread:
            return
        modes = function_modes(self._torch)
        if modes and modes[-1] is self._mode:
            self._mode.__exit__(None, None, None)
            self._mode = None
        else:
            self._lost = True  # one of the script's is in the way: ours stays, and listens to nothing

    @property
    def listens(self) -> bool:
        return not self._lost and self._ended < STEPS.stop

    def lose(self) -> None:
        """Something could not be followed: nothing is said of these steps."""
        self._lost = True
        self._calls.clear()
        self._writer.clear()

    def called(self, name: str, args: Any, kwargs: Any, result: Any, seconds: float) -> None:
        """One of torch's functions has run. Called from the mode, in which no mode sees what is done here."""
        torch = self._torch
        sites, custom = self._around()
        given, made = _tensors((args, kwargs), torch), _tensors((result,), torch)
        if is_transformed(torch):
            self._root(self._reads(given))
            return
        named = kwargs or {}
        written = args[:1] if _is_in_place(name) or named.get("inplace") is True else (named.get("out"),)
        made += (into := _tensors(written, torch))
        reads = self._reads(given)
        if not made or name == "__get__":
            if name not in _ASKS:
                self._root(reads)
            return
        before = {_key(each) for each in given}
        if into:
            if not reads and before == {_key(each) for each in made}:
                return  # a number that counts, a buffer that is filled: batch norms count their batches
        else:
            made = [each for each in made if _key(each) not in before]
            if not made:
                return  # a view: what reads it reads what it is a view of
        call = _Call(seconds, self._step, sites, reads, custom, draws(name, named))
        call.writes = tuple(_weak(each) for each in made)
        self._calls.append(call)
        for each in made:
            self._writer[_key(each)] = len(self._calls) - 1
        if len(self._calls) > _MOST_CALLS:
            self.lose()

    def _around(self) -> tuple[tuple[Site, ...], bool]:
        """The user's frames, and whether a custom autograd Function computes.

        What such a Function saves is read by its own backward, in C++ or in another thread.
        """
        found: list[Site] = []
        custom = False
        frame: FrameType | None = sys._getframe(3)
        while frame is not None:
            if len(found) < FRAMES and is_users(frame):
                found.append(site_of(frame))
            custom = custom or frame.f_code in self._custom
            frame = frame.f_back
        return tuple(found), custom

    def _reads(self, tensors: list[Any]) -> tuple[int, ...]:
        """The calls that wrote what these hold."""
        found = {self._writer[key] for each in tensors if (key := _key(each)) in self._writer}
        return tuple(found)

    def _root(self, calls: tuple[int, ...]) -> None:
        for each in calls:
            self._calls[each].read = True

    def _judge(self) -> None:
        """Follow what is read to what it was computed of, and add up the rest by where it is computed."""
        calls = self._calls
        for number in range(len(calls) - 1, -1, -1):
            call = calls[number]
            call.read = call.read or not all(each.expired() for each in call.writes)
            if call.read:
                self._root(call.reads)
        judged = [each for each in calls if each.step < _JUDGED]
        self.computed_s = _least(judged)
        places: dict[int, _Place] = {}
        for call in judged:
            for known in set(map(id, call.sites)):
                place = places.setdefault(known, _Place())
                place.whole = place.whole and not call.read
                place.steps.add(call.step)
        lines: dict[int, tuple[_Call, int, list[_Call]]] = {}
        for call in judged:
            if call.read:
                continue
            around = [
                number
                for number, site in enumerate(call.sites)
                if places[id(site)].whole and len(places[id(site)].steps) == _JUDGED
            ]
            if around:
                lines.setdefault(id(call.sites[around[-1]]), (call, around[-1], []))[2].append(call)
        found = sorted(map(_line, lines.values()), key=lambda each: -each.seconds)[:_MOST_LINES]
        self.found = found if found and found[0].seconds >= _LEAST_S and not _has_extensions() else []


def _line(found: tuple[_Call, int, list[_Call]]) -> Unread:
    """Of calls that all are made for one place, which stands at that number among the frames of the first of them."""
    first, number, calls = found
    inside: dict[tuple[str, str], Site] = {}
    for each in calls:
        for site in each.sites[: next(at for at, one in enumerate(each.sites) if one is first.sites[number])]:
            inside.setdefault((site.file, site.function), site)
    outside = list(first.sites[number + 1 :])
    drawn = any(each.draws for each in calls)
    return Unread(first.sites[number], outside, list(inside.values()), len(calls) / _JUDGED, _least(calls), drawn)


def _least(calls: list[_Call]) -> float:
    """Seconds that these take in the shorter of the steps: another program may have held up the other."""
    return min(sum(each.seconds for each in calls if each.step == step) for step in range(_JUDGED))


def _tensors(values: Any, torch: Any) -> list[Any]:
    return list(_each_tensor(values, torch.Tensor, 0))


def _each_tensor(value: Any, tensor: type, depth: int) -> Iterator[Any]:
    if isinstance(value, tensor):
        yield value
    elif isinstance(value, (tuple, list)) and depth < 6:
        for each in value:
            yield from _each_tensor(each, tensor, depth + 1)
    elif isinstance(value, dict) and depth < 6:
        for each in value.values():
            yield from _each_tensor(each, tensor, depth + 1)


def _is_in_place(name: str) -> bool:
    return name in _WRITES if name.startswith("__") else name.endswith("_") and name not in _ASKS


def _key(tensor: Any) -> int:
    """Which storage it is; raises for a tensor that has none."""
    return int(tensor.untyped_storage()._cdata)


def _weak(tensor: Any) -> Any:
    """Tells whether its storage still exists; as long as it is held, no other storage has the same identity."""
    from torch.multiprocessing.reductions import StorageWeakRef

    holder: Any = StorageWeakRef
    return holder(tensor.untyped_storage())


def _has_script(torch: Any, module: Any) -> bool:
    return any(isinstance(each, torch.jit.ScriptModule) for each in module.modules())


def _functions(torch: Any) -> set[Any]:
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


def _has_threads() -> bool:
    """Whether another thread may work with the script's tensors: one of the user's, or of a pool."""
    for each in threading.enumerate():
        target = getattr(each, "_target", None)
        runs = target if target is not None else type(each).run
        module = str(getattr(runs, "__module__", "") or "")
        code = _code_of(runs)
        if each is threading.main_thread() or code is None:
            continue
        if module.startswith("concurrent.") or is_user_file(code.co_filename):
            return True
    return False


def _has_extensions() -> bool:
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


def _listening(unread: UnreadResults) -> Any:
    """A mode that times torch's functions, and changes none of them."""
    from torch.overrides import TorchFunctionMode

    class Listening(TorchFunctionMode):  # type: ignore[misc, unused-ignore]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if not unread.listens:
                return func(*args, **(kwargs or {}))
            began = time.perf_counter()
            result = func(*args, **(kwargs or {}))
            seconds = time.perf_counter() - began
            try:
                unread.called(getattr(func, "__name__", ""), args, kwargs, result, seconds)
            except Exception:
                unread.lose()
            return result

    return Listening()
