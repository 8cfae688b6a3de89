"""What a step computes and nothing ever reads: a branch of a model without a loss, a metric that nobody prints. And
rows that are all multiplied by zero.

Three steps are watched whole, once those that look for constants are over: each call of torch's functions is one that
reads storages and writes storages. A call's work is read where what it wrote is asked for its numbers (``item()``,
``numpy()``, a condition, a backward), still exists two steps later, or is an input of a call whose work is read. What
is left was computed for nobody. Only on the CPU, where a call's time is its work.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable, Iterable
from itertools import islice
from types import FrameType, FunctionType, MethodType, ModuleType
from typing import Any, TypeVar

from ..fast_paths import FastPaths
from ..layout import AskedAgain, FourierProduct, Site, Unread, UnreadGradient, Weighted
from ..looking import (
    each_tensor,
    function_modes,
    is_replaced,
    is_taken_down,
    is_transformed,
    storage_key,
    unseen,
    weak_storage,
)
from ..patches import Patch
from ..places import FRAMES, is_users, site_of, user_frames
from ..profiling import Inert
from ..timing import compiled_frames
from .asked_again import AsksAgain
from .fourier_products import FourierProducts
from .repeats import draws
from .result_graph import (
    LEAST_ZERO,
    Call,
    Place,
    Rows,
    by_place,
    by_rows,
    follow,
    follow_zeros,
    times_zero,
    zero_share,
    zero_weights,
)
from .unread_batches import UnreadBatches
from .unseen_readers import (
    custom_forwards,
    hanging_on,
    has_extensions,
    has_script,
    have_threads,
    held_by,
    is_any_scripted,
    is_distributed,
    may_read,
)

Line = TypeVar("Line", Unread, Weighted)

_FIRST, _WATCHED = 6, 3  # steps that pass before (constants.py watches three of them), and that are watched
STEPS = slice(_FIRST, _FIRST + _WATCHED)  # of all steps, those that are
_JUDGED = _WATCHED - 1  # of these: what the last one computes may be read in the next
_MOST_CALLS = 100_000  # of them all: more take much memory, and long
_LEAST_S = 0.1e-3  # in a step, of all of them: less is not worth a word
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
# How many numbers these give depends on what they are given: to ask for a shape is to read it.
_SIZED = frozenset(
    ("nonzero", "nonzero_static", "argwhere", "unique", "unique_consecutive", "masked_select", "repeat_interleave")
)
_GRAD = "grad"
_DIFFERENTIATES = ("backward", _GRAD)
# Layers whose dropout is a number that they are given, before the flag that tells them to train.
_DROPPING = ("lstm", "gru", "rnn_tanh", "rnn_relu", "multi_head_attention_forward", "scaled_dot_product_attention")
_NO_LIBRARY = ("torch", "functorch", "_advisor_harness", "advisor")


class UnreadResults:
    """Told where steps end, models are called and backwards begin; what fails here does not fail in the script.

    `models` are the script's outermost modules, `workers` how many processes of loaders there are.
    """

    def __init__(
        self,
        torch: ModuleType,
        models: Callable[[], Iterable[Any]] = tuple,
        workers: Callable[[], int] = lambda: 0,
    ) -> None:
        self._torch: Any = torch
        self._models, self._workers = models, workers
        self._given_up = False
        self._mode: Any = None
        self._fast_paths = FastPaths(torch)
        self._thread = 0
        # What a custom Function saves; to ask its node for it later might compute checkpointed layers again.
        saves = Patch(self._torch.autograd.function.FunctionCtx, "save_for_backward", self._saves)
        self._patches = (saves, Patch(threading.Thread, "start", self._thread_starts))
        self.start()

    def start(self) -> None:
        """Nothing is known yet, or not any more: another training begins."""
        self._leave()
        self._ended = 0
        self._forget()
        self.found: list[Unread] = []
        self.weighted: list[Weighted] = []
        self.computed_s = 0.0  # in a step, by all calls that were seen
        self.gradients: list[UnreadGradient] = []
        self.again: AskedAgain | None = None
        self.fourier_products: list[FourierProduct] = []
        self.batches: dict[tuple[int, str], int] = {}  # bytes of what is delivered and never read, by loader and name …
        self.whole: dict[int, int] = {}  # … and of the whole batch

    def _forget(self) -> None:
        self._calls: list[Call] = []
        self._writer: dict[int, int] = {}  # a storage → the call that has written to it last
        self._custom: set[Any] = set()  # the code of custom autograd Functions
        self._spent = [0.0] * _WATCHED
        self._delivered = UnreadBatches(self._torch.Tensor, storage_key, weak_storage)
        # Likewise, by the identity of their places.
        self._gradients = UnreadBatches(self._torch.Tensor, storage_key, weak_storage, least=1)
        self._asked: dict[int, UnreadGradient] = {}  # likewise
        self._again = AsksAgain(self._torch)
        self._fourier = FourierProducts(self._torch)
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
            self._again.step_ends()
            self._fourier.lines.step_ends()
            self._custom = custom_forwards(self._torch)
        elif self._ended == STEPS.stop:
            watched = self._mode is not None and not self._lost
            self._leave()
            try:
                if watched:
                    self._judge()
            except Exception:
                self.found, self.weighted, self.batches, self.gradients = [], [], {}, []
                self.again, self.fourier_products = None, []
            self._forget()
        elif self._ended > STEPS.stop:
            self._leave()  # where a mode of the script's was in the way before

    def batch(self, loader: int, batch: Any) -> None:
        """A loader has delivered this."""
        if self._mode is None or not self.listens or threading.get_ident() != self._thread:
            return
        try:
            with unseen(self._torch):
                self._delivered.delivered(loader, batch, self._step)
        except Exception:
            self.lose()

    def forward_begins(self, module: Any) -> None:
        """A model is called: TorchScript's, which reads what it is given unseen, ends the watch."""
        if self._mode is None or not self.listens:
            return
        try:
            lost = has_script(self._torch, module)
        except Exception:
            lost = True
        if lost:
            self.lose()
            self._leave()

    def differentiates(self, *given: Any) -> None:
        """A backward of these begins, with these gradients: they are read, and what Python's Functions have kept."""
        self._reads_unseen(given, graph=True)

    def _reads_unseen(self, given: Any, graph: bool = False) -> None:
        """These are read by what no mode sees; with `graph` also what hangs on their graph's nodes."""
        if self._mode is None or not self.listens or threading.get_ident() != self._thread:
            return
        try:
            with unseen(self._torch):
                tensors = _tensors(given, self._torch)
                self._root(self._reads(tensors))
                self._is_read(tensors)
                if graph:
                    self._root(self._reads(_tensors(list(hanging_on(tensors, self._torch)), self._torch)))
        except Exception:
            self.lose()

    def _enter(self) -> None:
        torch = self._torch
        if self._given_up or self._mode is not None or torch.cuda.is_initialized() or compiled_frames():
            return
        if threading.current_thread() is not threading.main_thread() or have_threads(self._workers()):
            return
        if is_taken_down(torch) or is_transformed(torch) or is_replaced(torch) or is_distributed(torch):
            return
        try:
            if any(has_script(torch, each) for each in self._models()):
                return
        except Exception:
            return
        # A mode of the script's own may be left before ours is, and what is left then is the last that was entered;
        # but for a device, which knows its place.
        if all(type(each).__name__ == "DeviceContext" for each in function_modes(torch)):
            self._forget()
            self._custom = custom_forwards(torch)
            self._thread = threading.get_ident()
            mode = _listening(self)
            mode.__enter__()
            self._mode = mode
            self._fast_paths.on()
            for each in self._patches:
                each.on()

    def _leave(self) -> None:
        if self._mode is None or threading.get_ident() != self._thread:
            return
        for each in self._patches:
            each.off()
        modes = function_modes(self._torch)
        if modes and modes[-1] is self._mode:
            self._mode.__exit__(None, None, None)
            self._mode = None
            self._fast_paths.off()
        else:
            self._lost = True  # one of the script's is in the way: ours stays, and listens to nothing

    def _saves(self, original: Any) -> Any:
        def save_for_backward(context: Any, *tensors: Any) -> None:
            self._reads_unseen(tensors)
            original(context, *tensors)

        return save_for_backward

    def _thread_starts(self, original: Any) -> Any:
        def start(thread: threading.Thread) -> None:
            if self._mode is not None and may_read(thread):
                self.lose()
            original(thread)

        return start

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
        torch, named = self._torch, kwargs or {}
        self._spent[self._step] += seconds
        given = _tensors((args, named), torch)
        reads = self._reads(given)
        if name not in _ASKS and not (args and result is args[0]):  # x.to("cpu") is x
            self._is_read(given)
        if is_transformed(torch) or _in_backward(torch):
            self._root(reads)
            return
        if self._step < _JUDGED:
            self._fourier.called(name, (args, named), result, seconds)
        for each in (*args, *named.values()):
            if isinstance(each, (FunctionType, MethodType, functools.partial, torch.nn.Module)):
                held = _tensors(held_by(each), torch)
                self._root(self._reads(held))
                self._is_read(held)
        if name == _GRAD and isinstance(result, tuple):
            self._asks_for(result, seconds)
            self._again.asked(args[1] if len(args) > 1 else named.get("inputs"), result)
        made = _tensors((result,), torch)
        written = args[:1] if _is_in_place(name) or named.get("inplace") is True else (named.get("out"),)
        made += (into := _tensors(written, torch))
        if not made or name == "__get__":
            if name not in _ASKS:
                self._root(reads)
            return
        before = {storage_key(each) for each in given}
        if into:
            if not reads and before == {storage_key(each) for each in made}:
                return  # a number that counts, a buffer that is filled: batch norms count their batches
        else:
            own = {storage_key(each) for each in made}
            made = [each for each in made if storage_key(each) not in before]
            if not made:  # a view: what reads it reads what it is a view of, and not what told which part to take
                self._root(self._reads([each for each in given if storage_key(each) not in own]))
                return
        sites, library, custom = self._around()
        sized = name in _SIZED or (name == "__getitem__" and _by_mask(args, torch))
        call = Call(seconds, self._step, sites, library, reads, custom or sized, _draws(name, args, named))
        call.name, call.statistics = name, _statistics(name, args, named)
        call.writes = tuple(weak_storage(each) for each in made)
        call.rows = int(made[0].shape[0]) if made[0].dim() else 0
        call.recorded = any(each.requires_grad for each in made)
        call.rowwise = by_rows(name, given, call.rows)
        for x, weights in zero_weights(torch, name, args):
            rows = weights.numel()
            both = self._reads([x]), self._reads([weights])
            call.weighted.append(Rows(*both, rows, x.numel() // rows, zero_share(torch, weights)))
        call.weighted += (Rows(self._reads([x]), (), 0, 0, 1.0) for x in times_zero(torch, name, args))
        self._calls.append(call)
        for each in made:
            self._writer[storage_key(each)] = len(self._calls) - 1
        if len(self._calls) > _MOST_CALLS:
            self.lose()

    def _is_read(self, tensors: list[Any]) -> None:
        keys = list(map(storage_key, tensors))
        self._delivered.read(keys)
        self._gradients.read(keys)

    def _asks_for(self, gradients: tuple[Any, ...], seconds: float) -> None:
        """``torch.autograd.grad`` has given these."""
        frame: FrameType | None = sys._getframe(3)
        while frame is not None and not is_users(frame):
            frame = frame.f_back
        if frame is None:
            return
        site, around = site_of(frame), [site_of(each) for each in islice(user_frames(), FRAMES)]
        place = self._asked.setdefault(id(site), UnreadGradient(site, around, asked=len(gradients)))
        place.asked = min(place.asked, len(gradients))
        if self._step < _JUDGED:
            place.calls += 1.0 / _JUDGED
            place.seconds += seconds / _JUDGED
        self._gradients.delivered(id(site), gradients, self._step)

    def _around(self) -> tuple[tuple[Site, ...], int, bool]:
        """The user's frames, how many of them lie inside of any of a library's other than torch, and whether a custom
        autograd Function computes.

        What such a Function saves is read by its own backward, in C++ or in another thread.
        """
        found: list[Site] = []
        library, custom = FRAMES, False
        frame: FrameType | None = sys._getframe(3)
        while frame is not None:
            if len(found) < FRAMES:
                if is_users(frame):
                    found.append(site_of(frame))
                elif library == FRAMES and _is_librarys(frame):
                    library = len(found)
            custom = custom or frame.f_code in self._custom
            frame = frame.f_back
        return tuple(found), library, custom

    def _reads(self, tensors: Iterable[Any]) -> tuple[int, ...]:
        """The calls that wrote what these hold."""
        found = {self._writer[key] for each in tensors if (key := storage_key(each)) in self._writer}
        return tuple(found)

    def _root(self, calls: Iterable[int]) -> None:
        for each in calls:
            self._calls[each].root = True

    def _judge(self) -> None:
        """Follow what is read to what it was computed of, and add up the rest by where it is computed."""
        calls = self._calls
        follow(calls, [False] * len(calls))
        asked = [each for each in calls if each.read and each.step >= _JUDGED]  # not only kept, so far
        kept = [not all(each.expired() for each in call.writes) for call in calls]
        follow(calls, kept)
        self.computed_s = min(self._spent[:_JUDGED])
        judged = [each for each in calls if each.step < _JUDGED]
        found = _longest([_unread(each) for each in by_place(judged, lambda each: not each.read, asked, _JUDGED)])
        follow_zeros(calls, kept)
        rows = map(_weighted, by_place(judged, lambda each: each.zero > 0.0, [], _JUDGED))
        weighted = _longest([each for each in rows if each.zero >= LEAST_ZERO])
        batches = self._delivered.unread(_JUDGED)
        gradients = self._unread_gradients()
        self.again = self._again.found(_JUDGED)
        self.fourier_products = self._fourier.lines.per_step(_JUDGED, _LEAST_S)
        any_found = found or weighted or batches or gradients
        if any_found and not (has_extensions() or have_threads(self._workers()) or is_any_scripted(self._torch)):
            self.found, self.weighted, self.batches, self.gradients = found, weighted, batches, gradients
            self.whole = {loader: self._delivered.whole(loader) for loader, _ in batches}

    def _unread_gradients(self) -> list[UnreadGradient]:
        """Places that ask for gradients of which some are read, and others never."""
        for place, _ in self._gradients.unread(1):
            self._asked[place].unread += 1
        found = [each for each in self._asked.values() if 0 < each.unread < each.asked and each.seconds >= _LEAST_S]
        return sorted(found, key=lambda each: -each.seconds)


def _longest(lines: list[Line]) -> list[Line]:
    """The longest first; none where all of them together are not worth a word."""
    found = sorted(lines, key=lambda each: -each.seconds)[:_MOST_LINES]
    return found if sum(each.seconds for each in found) >= _LEAST_S else []


def _unread(place: Place) -> Unread:
    calls = place.calls
    inside: dict[int, Site] = {}
    library = False
    for each in calls:
        until = place.at(each)
        inside.update((id(site), site) for site in each.sites[:until])
        library = library or each.library <= until
    return Unread(
        place.site,
        place.called_from,
        list(inside.values()),
        calls=len(calls) / _JUDGED,
        seconds=_least(calls),
        draws=any(each.draws for each in calls),
        updates=any(each.statistics for each in calls),
        library=library,
    )


def _weighted(place: Place) -> Weighted:
    calls = place.calls
    seconds = sum(each.seconds for each in calls)
    return Weighted(
        place.site,
        place.called_from,
        calls=len(calls) / _JUDGED,
        seconds=_least(calls),
        differentiated_s=_least([each for each in calls if each.recorded]),
        differentiated=_by_name([each for each in calls if each.recorded]),
        zero=sum(each.seconds * each.zero for each in calls) / seconds if seconds else 0.0,
        rows=max(each.rows for each in calls),
        columns=max(each.columns for each in calls),
        by_number=all(each.by_number for each in calls),
    )


def _by_name(calls: list[Call]) -> dict[str, float]:
    """What these take in a step, by function."""
    names = {each.name for each in calls}
    return {name: _least([each for each in calls if each.name == name]) for name in sorted(names)}


def _least(calls: list[Call]) -> float:
    """Seconds that these take in the shorter of the steps: another program may have held up the other."""
    return min(sum(each.seconds for each in calls if each.step == step) for step in range(_JUDGED))


def _tensors(values: Any, torch: Any) -> list[Any]:
    return list(each_tensor(values, torch.Tensor))


def _is_in_place(name: str) -> bool:
    return name in _WRITES if name.startswith("__") else name.endswith("_") and name not in _ASKS


def _statistics(name: str, args: Any, kwargs: dict[str, Any]) -> int:
    """The storage that a norm in training writes its means to; 0 for none, and for anything else."""
    if not name.endswith(("batch_norm", "instance_norm")) or len(args) < 2 or args[1] is None:
        return 0
    trains = kwargs.get("training", kwargs.get("use_input_stats", args[5] if len(args) > 5 else False))
    return storage_key(args[1]) if trains else 0


def _draws(name: str, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a function of torch's draws random numbers."""
    if name not in _DROPPING:
        return draws(name, kwargs)
    told = [kwargs.get("training", True), *(each for each in args if type(each) is bool)]
    shares = [kwargs.get("dropout_p", 0.0), *(each for each in args if type(each) is float)]
    return any(each > 0.0 for each in shares) and any(told)


def _by_mask(args: Any, torch: Any) -> bool:
    """Whether ``x[mask]`` is asked for."""
    return any(each.dtype in (torch.bool, torch.uint8) for each in _tensors(args[1:], torch))


def _in_backward(torch: Any) -> bool:
    """Whether a backward runs in this thread: a hook of it, a layer that is computed again."""
    asks = getattr(torch._C, "_current_graph_task_id", None)
    return asks is not None and asks() != -1


def _is_librarys(frame: FrameType) -> bool:
    """Whether a frame that is not the user's runs neither torch nor Python's own modules nor ours."""
    package = str(frame.f_globals.get("__name__") or "").partition(".")[0]
    return package not in _NO_LIBRARY and package not in sys.stdlib_module_names


def _listening(unread: UnreadResults) -> Any:
    """A mode that times torch's functions, and changes none of them."""
    import torch
    from torch.overrides import TorchFunctionMode

    class Listening(TorchFunctionMode):  # type: ignore[misc, unused-ignore]
        takes_encoders = "with weights"

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if not unread.listens:
                return func(*args, **(kwargs or {}))
            name = getattr(func, "__name__", "")
            if name in _DIFFERENTIATES:
                unread.differentiates(args, kwargs)
            began = time.perf_counter()
            result = func(*args, **(kwargs or {}))
            seconds = time.perf_counter() - began
            try:
                with Inert.ours(), unseen(torch):
                    unread.called(name, args, kwargs, result, seconds)
            except Exception:
                unread.lose()
            return result

    return Listening()
