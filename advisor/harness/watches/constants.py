"""What a forward computes anew in each step although it never changes: a graph's Laplacian, a filter bank, a basis.

In three steps, while their time settles, each longer call of torch's functions in a forward is asked what it was given
and what it gives, by a few numbers of each tensor: a line whose calls were given the same and gave the same in all
three computes a constant, if what the models were given differed, or if nothing of that went into it but a graph: the
same in each step it is all that there is, no batch. A tensor that is made of an array or of numbers is taken to cost
what Python did since torch's call before. Of a library's own calls those count that work on what the script
gives its model. Only on the CPU, where a call's time is its work.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from itertools import islice
from types import ModuleType
from typing import Any

from ..fast_paths import HELD, FastPaths
from ..layout import (
    AttentionMask,
    CopiedOperand,
    Frozen,
    Gathered,
    LoopedLayer,
    OneHot,
    Recomputed,
    Repeated,
    RepeatedRow,
    SameRow,
    Site,
    SparseProduct,
    ZeroRow,
)
from ..loading.loaders import tensors_in
from ..looking import (
    function_modes,
    is_replaced,
    is_taken_down,
    is_transformed,
    may_compute,
    stored_at,
    stored_values,
    unseen,
)
from ..places import FRAMES, site_of, user_frame, user_frames
from ..profiling import Inert
from ..timing import compiled_frames
from .attention_masks import AttentionMasks
from .by_line import unwatched
from .copied_operands import CopiedOperands
from .frozen import FrozenParts
from .frozen_methods import FrozenMethods
from .gathered import Gathers
from .looped_layers import LoopedLayers
from .one_hot import OneHots
from .remade import RemadeWeights
from .repeated_rows import RepeatedRows
from .repeats import Repeats
from .same_rows import SameRows
from .sameness import DECOMPOSES, MOST_TENSORS, Call, Forward, Sameness, Step, undisturbed
from .sparse_products import SparseProducts
from .zero_rows import ZeroRows

_FIRST, _WATCHED = 3, 3  # steps that pass before, and that are watched
WATCHED = slice(_FIRST, _FIRST + _WATCHED)  # of all steps, those that are
_LEAST_S = 0.2e-3  # of a line: shorter ones are not worth a word
# Of a call; where a step has made many, only longer ones are looked at. An encoder that ran again for each word of a
# translation, in calls of 0.02 to 0.4 ms, was two thirds of its step and 40 % of it by those over 0.2 ms.
_SHORT_S, _LONG_S, _MOST_SHORT = 0.02e-3, 0.2e-3, 500
_SAMPLED = 64  # numbers of each tensor, spread over it by
_STRIDES = (7919, 104729, 1299709, 15485863)  # primes, one for each dimension in turn
# What Python and NumPy did between torch's last call and one that makes a tensor of their numbers is taken to be for
# these, at most so long for each number, of so many at least.
_NUMBER_S, _LEAST_NUMBERS = 2e-6, 256
_LEAST_NODES = 32  # of a graph; a batch of fewer rows may have as many columns of something else
_MOST_METHODS = 16  # of a step: more are a rollout's, by a policy that lags behind
_MOST_FORWARDS, _MOST_CALLS = 200, 1000  # of a step: in a rollout of many the three would take long, and much memory
_FROM_ARRAY, _OF_NUMBERS = "from_numpy", ("tensor", "as_tensor")
# They make room, which the script may write to afterwards.
_ROOM = frozenset(
    f"{new}{name}" for name in ("empty", "zeros", "ones", "full", "empty_like", "zeros_like", "ones_like", "full_like")
    for new in ("", "new_")
)  # fmt: skip


class Constants:
    """Told where forwards begin and end, and steps end; what fails here does not fail in the script."""

    def __init__(
        self,
        torch: ModuleType,
        trained: Callable[[], Iterable[Any]] = tuple,
        models: Callable[[], Iterable[Any]] = tuple,
    ) -> None:
        self._torch: Any = torch
        self._trained, self._models = trained, models  # what optimizers update; the roots
        self._methods = FrozenMethods(torch, self._method_begins, self._method_ends)
        self._method = False  # of a model that nobody trains one runs: no forward in it counts
        self._methods_called = 0  # of those, in this step
        self._sameness = Sameness(torch)
        self._mode: Any = None  # on, while a watched forward runs
        self._fast_paths = FastPaths(torch)
        self._caller: Any = None  # the user's frame that calls it
        self._given_up = False
        self._hidden = False
        self._sites: dict[int, tuple[Site, list[Site]]] = {}
        self.start()

    def start(self) -> None:
        """Nothing is known yet, or not any more: another training begins."""
        self._ended = 0
        self._timed: list[list[float]] = []  # seconds of each forward, in the steps that pass before
        self._began = 0.0
        self._last = 0.0  # when the last of torch's functions in the forward was over, and looked at
        self._steps: list[Step] = []
        self.found: list[Recomputed] = []
        self.repeated: list[Repeated] = []
        self.gathered: list[Gathered] = []
        self.one_hot: list[OneHot] = []
        self.repeated_rows: list[RepeatedRow] = []
        self.zero_rows: list[ZeroRow] = []
        self.sparse_products: list[SparseProduct] = []
        self.attention_masks: list[AttentionMask] = []
        self.looped_layers: list[LoopedLayer] = []
        self.same_rows: list[SameRow] = []
        self.copied_operands: list[CopiedOperand] = []
        self._fixed: list[Frozen] = []
        self._repeats = Repeats(self._torch, self._numbers, self._sameness.alike)
        self._gathers = Gathers(self._torch)
        self._one_hots = OneHots(self._torch)
        self._zeros = ZeroRows(self._torch)
        self._sparse = SparseProducts(self._torch)
        self._masks = AttentionMasks(self._torch)
        self._looped = LoopedLayers(self._torch)
        self._same = SameRows(self._torch)
        self._copied = CopiedOperands(self._torch)
        self._rows = RepeatedRows(self._torch, lambda: self._gathers.counted, self.watching)
        self.remade: dict[str, float] = {}
        self.remade_share, self.remade_bytes = 0.0, 0.0
        self._remade = RemadeWeights()
        self._frozen = FrozenParts(self._torch, self._numbers, self._sameness.alike, self._trained)

    def give_up(self) -> None:
        """Never watch again: a mode is one of the things that what is compiled is compiled anew for."""
        self._given_up = True
        self._over()

    def hide(self) -> None:
        """What went into a tensor may be unknown from here on."""
        self._hidden = True

    def stop(self) -> None:
        """Watch no more; what is known stays."""
        self._over()
        self._forget()
        self._ended = _FIRST + _WATCHED

    def _forget(self) -> None:
        """Let go of all tensors, and of what was seen of them."""
        self._forget_step()
        self._frozen.clear()
        self._steps.clear()

    def _forget_step(self) -> None:
        for each in (self._repeats, self._gathers, self._one_hots, self._rows, self._copied):
            each.clear()

    def step_ended(self, *, untrained: bool = False) -> None:
        """One of the steps that the timing window waits for is over.

        `untrained`: methods of models are listened to also where nothing is trained.
        """
        self._forward_ends()
        self._method = False  # one that goes through several steps, an evaluation, is none of theirs
        self._frozen.step_ends()
        if self._steps:
            by_line = self._repeats, self._gathers, self._one_hots, self._rows, self._zeros, self._same, self._looped
            for each in (*by_line, self._copied, self._masks):
                each.lines.step_ends()
            self._sparse.step_ends()
        self._ended += 1
        self._methods_called = 0
        if self._ended == 1 and not self._given_up:
            with contextlib.suppress(Exception):
                self._methods.on(self._models(), self._trained(), untrained=untrained)
        if self._ended == _FIRST + _WATCHED:
            self._methods.off()
            with contextlib.suppress(Exception):
                if len(self._steps) == _WATCHED:
                    self.found = self._sameness.constants(self._steps, self._sites, self._timed)
                    share = undisturbed(self._steps, self._timed)
                    # What is small and called often is held up most by being watched.
                    repeated = self._repeats.lines.per_step(_WATCHED, _LEAST_S)
                    self.repeated = [unwatched(each, share) for each in repeated]
                    same = self._same.lines.per_step(_WATCHED, _LEAST_S)
                    self.same_rows = [unwatched(each, share) for each in same]
                    self.gathered = self._gathers.lines.per_step(_WATCHED, _LEAST_S)
                    self.one_hot = self._one_hots.lines.per_step(_WATCHED, _LEAST_S)
                    self.repeated_rows = self._rows.lines.per_step(_WATCHED, _LEAST_S)
                    self.zero_rows = self._zeros.lines.per_step(_WATCHED, _LEAST_S)
                    self.sparse_products = self._sparse.per_step(_WATCHED, _LEAST_S)
                    self.attention_masks = self._masks.lines.per_step(_WATCHED, _LEAST_S)
                    self.looped_layers = self._looped.per_step(_WATCHED, _LEAST_S)
                    self.copied_operands = self._copied.lines.per_step(_WATCHED, _LEAST_S)
                    watched = sum(each.seconds for step in self._steps for each in step.forwards)
                    self.remade_share = self._remade.total() / watched if watched else 0.0
                    self.remade = self._remade.per_step(_WATCHED, share)
                    self.remade_bytes = self._remade.bytes / _WATCHED
                    self._fixed = self._frozen.found(_WATCHED)
            self._forget()
        elif self._ended < _FIRST:
            self._timed.append([])
        elif self._ended < _FIRST + _WATCHED:
            self._steps.append(Step())
            self._forget_step()
            self._frozen.step_begins()

    def backward_begins(self) -> None:
        """The script differentiates a loss."""
        self._repeats.backward_begins()
        self._rows.backward_begins()

    def batch(self, loader: int, tensors: Iterable[Any]) -> None:
        """A loader has delivered a batch of these tensors."""
        if not self._given_up and self._ended < _FIRST + _WATCHED:
            with contextlib.suppress(Exception):
                delivered = list(tensors)
                self._frozen.batch(loader, delivered)
                with unseen(self._torch), self._torch.no_grad():
                    self._rows.batch(delivered)

    def frozen(self) -> list[Frozen]:
        """What forwards compute of the samples alone, unless its weights have changed since that was seen."""
        with contextlib.suppress(Exception):
            return self._fixed if self._fixed and self._frozen.still() else []
        return []

    def forward_begins(self, module: Any, given: Iterable[Any]) -> None:
        """A model is called with the tensors `given`."""
        if not self._method:
            self._forward_begins(module, given)

    def _method_begins(self, module: Any, given: list[Any]) -> bool:
        """The same by another name; whether that is the outermost such call."""
        if self._method or self._mode is not None or self._began or not _in_main_thread():
            return False
        self._methods_called += 1
        if self._methods_called > _MOST_METHODS:
            self._methods.off()
            return False
        self._forward_begins(module, given)
        self._method = True
        return True

    def _method_ends(self, output: Any) -> None:
        self._method = False
        self._forward_ends(output)

    def _over(self) -> None:
        """Listen to nothing any more."""
        self._methods.off()
        self._method = False
        self._forward_ends()

    def _forward_begins(self, module: Any, given: Iterable[Any]) -> None:
        if self._timed and self._ended < _FIRST and len(self._timed[-1]) <= _MOST_FORWARDS and _in_main_thread():
            self._began = time.perf_counter()
        if not self._steps or self._given_up or self._mode is not None or not _in_main_thread():
            return
        began = time.perf_counter()
        self._watch(module, given)
        self._frozen.watching(time.perf_counter() - began)

    def _watch(self, module: Any, given: Iterable[Any]) -> None:
        if is_taken_down(self._torch) or is_transformed(self._torch) or compiled_frames() or is_replaced(self._torch):
            return
        with contextlib.suppress(Exception):
            tensors = list(given)
            with unseen(self._torch), Inert.ours():
                batch = {id(each) for each in tensors if not self._is_graph(each, tensors)}
                forward = Forward([self._numbers(each) for each in tensors], {id(each) for each in tensors}, batch)
            self._steps[-1].forwards.append(forward)
            if len(self._steps[-1].forwards) > _MOST_FORWARDS:
                self.stop()
            elif not tensors or any(each is not None for each in forward.given):
                mode, self._caller = _watching(self), user_frame()
                forward.called_from = [site_of(each) for each in islice(user_frames(), FRAMES)]
                with contextlib.suppress(Exception), unseen(self._torch), self._torch.no_grad(), Inert.ours():
                    self._frozen.forward_begins(tensors, self._caller)
                with contextlib.suppress(Exception), unseen(self._torch), self._torch.no_grad(), Inert.ours():
                    self._rows.forward_begins(module, tensors)
                with contextlib.suppress(Exception), unseen(self._torch), Inert.ours():
                    self._same.forward_begins(tensors)
                mode.__enter__()
                self._mode = mode
                self._fast_paths.on()
                self._last = time.perf_counter()

    def forward_ends(self, output: Any = None) -> None:
        """The model's call is over, if one was timed or watched, and gives this."""
        if not self._method:
            self._forward_ends(output)

    def _forward_ends(self, output: Any = None) -> None:
        if self._began and _in_main_thread():
            self._timed[-1].append(time.perf_counter() - self._began)
            self._began = 0.0
        if self._mode is None or not _in_main_thread():
            return
        # What is ended is the last mode that was begun, whosever that is: while it is another one, ours goes on, and
        # sees nothing more.
        began, modes = time.perf_counter(), function_modes(self._torch)
        if modes and modes[-1] is self._mode:
            self._mode.__exit__(None, None, None)
            self._mode = self._caller = None
            self._fast_paths.off()
            with Inert.ours():
                with contextlib.suppress(Exception):
                    self._frozen.forward_ends(output)
                with contextlib.suppress(Exception), unseen(self._torch), self._torch.no_grad():
                    self._rows.forward_ends(output)
                with contextlib.suppress(Exception):
                    self._forward_over()
            self._frozen.watching(time.perf_counter() - began)
        else:
            self._given_up = True
            self._rows.off()
            self._steps.clear()

    def _forward_over(self) -> None:
        if self._steps and self._steps[-1].forwards:
            forward = self._steps[-1].forwards[-1]
            last, forward.last = forward.last, []
            if not forward.differentiable:
                forward.result = [self._numbers(each) for each in last]

    def called(self, name: str, given: tuple[Any, Any], result: Any, seconds: float) -> None:
        """One of torch's functions has run in a watched forward."""
        if not self._steps:
            return
        made = list(tensors_in(result, self._torch, limit=MOST_TENSORS))
        forward = self._steps[-1].forwards[-1]
        forward.seconds += seconds
        forward.last = made or forward.last
        forward.differentiable |= any(each.requires_grad for each in made)
        went_in = list(tensors_in(given, self._torch, limit=MOST_TENSORS))
        # x[i] = y, x.copy_(y), x += y: x, and what x is a view of.
        in_place = name == "__setitem__" or name.startswith("__i") or (name.endswith("_") and name[-2:] != "__")
        written = [each for each in (went_in[0], went_in[0]._base) if each is not None] if in_place and went_in else []
        # Of many not all are looked at.
        many = len(went_in) == MOST_TENSORS or forward.much
        both = forward.derived, forward.batch
        derived, of_batch = (many or not those.isdisjoint(map(id, went_in)) for those in both)
        of_batch |= self._hidden
        for those, follows in zip(both, (derived, of_batch), strict=True):
            those.difference_update(map(id, made))  # an identity may be another one's that is gone
            if follows:
                those.update(map(id, (*made, *written)))
        forward.much |= derived and len(made) == MOST_TENSORS
        frame = user_frame() if made else None
        if frame is None or self._remade.making:  # of weights it is told by whom they are made
            return
        # Each is counted, for what takes longer in one step than in another would have other numbers there.
        step, site = self._steps[-1], id(site_of(frame))
        number = step.count[site, name] = step.count.get((site, name), 0) + 1
        short = seconds < _LONG_S
        least = _SHORT_S if step.short < _MOST_SHORT else _LONG_S
        if seconds < least or name in _ROOM or (name.endswith("_") and not name.endswith("__")):
            return
        inside = frame is self._caller
        if inside and not derived:
            return  # a library's own: the script has nothing to compute once
        if any(each.requires_grad or each.device.type != "cpu" for each in made):
            return
        numbers, results = ([self._numbers(each) for each in tensors] for tensors in (went_in, made))
        if name.startswith(DECOMPOSES):
            known = [each for each, seen in zip(went_in, numbers, strict=True) if seen is not None]
            numbers = [*numbers, *map(self._by_place, known)]
        self._sites[site] = site_of(frame), [site_of(each) for each in islice(user_frames(), FRAMES)]
        step.calls[site, name, number] = Call(seconds, len(step.forwards) - 1, numbers, results, of_batch, inside)
        step.short += short
        if len(step.calls) - step.short > _MOST_CALLS:
            self.stop()

    def watching(self, seconds: float) -> None:
        """To watch one of torch's functions has taken so long, beside the function itself."""
        self._frozen.watching(seconds)
        self._last = time.perf_counter()

    def in_python(self, result: Any, began: float) -> float:
        """Seconds that Python and NumPy took for the numbers of `result`, which a call that `began` then was given."""
        numbers = result.numel()
        return min(max(0.0, began - self._last), numbers * _NUMBER_S) if numbers >= _LEAST_NUMBERS else 0.0

    def array_made(self, result: Any, began: float, seconds: float) -> None:
        """``torch.from_numpy``, of which no mode is told, has made `result` of an array."""
        if self._mode is None or not self._steps or not _in_main_thread():
            return
        with contextlib.suppress(Exception), unseen(self._torch):
            self.called(_FROM_ARRAY, ((), {}), result, seconds + self.in_python(result, began))
            self._last = time.perf_counter()

    def key(self, name: str, given: tuple[Any, Any]) -> Any:
        """What a call is, by which :class:`Repeats` knows it again; None for one that does not matter."""
        if not self._steps:
            return None
        with unseen(self._torch):
            return self._repeats.key(name, given)

    def _by_place(self, tensor: Any) -> Any:
        """The sum of its numbers by where they are: a matrix whose rows change places keeps all others."""
        with unseen(self._torch), self._torch.no_grad():
            flat = tensor.detach().reshape(-1)
            flat = self._torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
            places = self._torch.arange(1, flat.numel() + 1, device="cpu", dtype=self._torch.float64)
            return tuple(tensor.shape), (flat.to(self._torch.float64) * places.sqrt()).sum()

    def called_again(self, key: Any, result: Any, seconds: float) -> None:
        """The call with this key has run, perhaps not for the first time in the step."""
        if key is not None and self._steps:
            with unseen(self._torch):
                own = user_frame() is self._caller  # a library's model at work, with nothing of the user's in between
                self._repeats.called(key, result, seconds, len(self._steps[-1].forwards), own)

    def looked_up(self, name: str, given: tuple[Any, Any], result: Any, seconds: float) -> None:
        """One of torch's functions has run in a watched forward, perhaps on rows that were looked up."""
        if self._steps:
            with unseen(self._torch):
                self._remade.called(result, seconds)
                self._rows.called(seconds)
                self._gathers.called(name, given[0], given[1] or {}, result, seconds)
                self._one_hots.called(name, given[0], result, seconds)
                self._zeros.called(name, given[0], result, seconds)
                self._sparse.called(name, given[0], result, seconds)
                self._masks.called(name, given[0], given[1] or {}, result, seconds)
                self._looped.called(name, given[0], result, seconds)
                if user_frame() is not self._caller:  # a library's model at work: nothing of that is the user's
                    self._same.called(given[0], name, result, seconds)
                    self._copied.called(name, given[0], result)

    def begins(self, given: tuple[Any, Any]) -> None:
        """One of torch's functions is about to run in a watched forward."""
        if self._steps:
            with unseen(self._torch):
                self._frozen.begins(*given)

    def made(self, name: str, given: tuple[Any, Any], result: Any, seconds: float) -> None:
        """It has run."""
        if self._steps:
            with unseen(self._torch), self._torch.no_grad():
                self._frozen.called(name, given[0], given[1] or {}, result, seconds)

    def _numbers(self, tensor: Any) -> Any:
        """A few of its numbers and their sum, with its shape; None for what cannot be looked at.

        Of a sparse matrix its shape, what stands in it, and where.
        """
        with unseen(self._torch), self._torch.no_grad():
            stored = stored_values(self._torch, tensor)
            if not may_compute(self._torch, stored) or stored.device.type != "cpu":
                return None
            shape = tuple(tensor.shape) if stored is tensor else (*tensor.shape, *stored.shape)
            if not stored.numel():
                return shape, None, None
            few = stored[self._places(stored)].clone()
            numbers = shape, few, stored.sum()
            if stored is tensor and few.numel() > 1 and bool((few == few.flatten()[0]).all()):
                # Mostly one number, as what is written one-hot: what tells two of them apart is where the others are.
                others = (stored != few.flatten()[0]).nonzero()
                return *numbers, others[self._places(others)[0]].clone() if others.numel() else None  # whole places
            if stored is tensor:
                return numbers
            at = stored_at(self._torch, tensor)
            return *numbers, at[self._places(at)].clone()

    def _is_graph(self, tensor: Any, given: list[Any]) -> bool:
        """Whether a tensor that a model is given says what the rows of another one have to do with one another.

        A matrix with as many rows and columns that is symmetric, or mostly zeros; or two rows of numbers, the ends of
        edges between them.
        """
        if tensor.is_nested or tensor.dim() != 2 or not may_compute(self._torch, stored_values(self._torch, tensor)):
            return False
        beside = [each for each in given if each is not tensor and not each.is_nested and each.dim() > 1]
        others = [each.shape[0] for each in beside if each.is_floating_point() and each.shape[:2] != tensor.shape]
        rows, columns = tensor.shape
        if rows != columns:
            ends = rows == 2 and not tensor.is_floating_point()
            return ends and any(_LEAST_NODES <= each <= columns for each in others)
        if rows < _LEAST_NODES or rows not in others or tensor.device.type != "cpu":
            return False
        if tensor.layout is not self._torch.strided:
            return True
        with unseen(self._torch), self._torch.no_grad():
            return bool((tensor == 0).sum() * 2 > tensor.numel()) or bool(self._torch.equal(tensor, tensor.T))

    def _places(self, tensor: Any) -> tuple[Any, ...]:
        """A few of its elements, spread over it."""
        number = self._torch.arange(_SAMPLED, device="cpu")
        sizes = enumerate(tensor.shape)
        # The squares' parts differ, or of an even number of columns only the even ones would be looked at.
        return tuple((number * _STRIDES[i % len(_STRIDES)] + number * number // (i + 2)) % size for i, size in sizes)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _watching(constants: Constants) -> Any:
    """A mode that times torch's functions, and changes none of them."""
    from torch.overrides import TorchFunctionMode

    class Watching(TorchFunctionMode):  # type: ignore[misc, unused-ignore]
        takes_encoders = "with weights"

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            called = time.perf_counter()
            name, key = getattr(func, "__name__", ""), None
            with Inert.ours():  # what we read of tensors is no reading of the script's
                with contextlib.suppress(Exception):
                    key = constants.key(name, (args, kwargs))
                with contextlib.suppress(Exception):
                    constants.begins((args, kwargs))
            began = time.perf_counter()
            result = func(*args, **(kwargs or {}))
            seconds = time.perf_counter() - began
            with Inert.ours():
                with contextlib.suppress(Exception):
                    constants.called_again(key, result, seconds)
                with contextlib.suppress(Exception):
                    constants.looked_up(name, (args, kwargs), result, seconds)
                with contextlib.suppress(Exception):
                    constants.made(name, (args, kwargs), result, seconds)
                with contextlib.suppress(Exception):
                    more = constants.in_python(result, called) if name in _OF_NUMBERS else 0.0
                    # What an encoder's weights are is seen by what they make of the same.
                    own = {each: value for each, value in (kwargs or {}).items() if each != HELD}
                    constants.called(name, (args, own), result, seconds + more)
                with contextlib.suppress(Exception):
                    constants.watching(time.perf_counter() - called - seconds)
            return result

    return Watching()
