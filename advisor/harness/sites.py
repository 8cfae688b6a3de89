"""Call sites: thin wrappers that remember where the script does what a fix could change.

They are in place outside the timing window only. Each walks to the first user frame, adds to that place's
counters, and calls through; a call nested in another wrapped one (``.item()`` inside ``format``) is the outer's.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
import time
import weakref
from collections.abc import Callable
from types import CodeType, FrameType, ModuleType
from typing import Any

from .from_lists import FromLists
from .jacobians import Jacobians
from .layout import BACKWARD_RANGE, CallSite, Site
from .looking import is_capturing, may_compute, unseen
from .patches import Patch
from .places import is_ours, is_users, user_site
from .profiling import Inert

# Where a tensor's own methods read its values for each other.
_TENSORS_OWN = ("torch._tensor", "torch._tensor_str")
_READS = frozenset(("Tensor.item", "Tensor.tolist", "Tensor.numpy"))  # a value: of a tensor on the CPU, without waiting
# Values of tensors on the CPU, whose places matter little: so many reads are seen, for a loop makes thousands a step.
_MOST_CPU_READS = 2000
_LATER_LOSSES = 5  # how many of the last losses are kept, to know whether they became NaN

Details = Callable[[tuple[Any, ...], dict[str, Any], Any], dict[str, Any]]


class CallSites:
    """The places seen so far, and the wrappers that see them."""

    def __init__(self, torch: ModuleType, losses: int, listener: Any) -> None:
        self._torch: Any = torch
        self._listener = listener
        self._nested = threading.local()
        self._by_identity: dict[tuple[str, int], CallSite] = {}
        self._keep_losses = losses
        self._losses: list[Any] = []  # detached, on their device
        self._later_losses: list[Any] = []  # the last of those that are not among the first
        # ``Tensor.backward`` comes to the first of these.
        self._asking = [Patch(torch.autograd, name, self._gradients_of) for name in ("backward", "grad")]
        self._gap = False  # a backward has gone by unseen
        self._scaled: dict[int, tuple[Any, Any]] = {}  # id of a scaled loss → a weak reference to it, the loss itself
        self.annotate = False
        self.counted_steps = 0  # steps over which `counts` and `seconds` ran
        self.count = False
        self._counts: dict[int, int] = {}
        self._cpu_reads = 0  # of values, since a training began
        self._read_steps = 0  # of the counted ones those in which reads of values were seen, where that is not all
        self._seconds: dict[int, float] = {}
        self._patches = self._make_patches()
        self._made_others: set[int] = set()  # identities of the sites that made tensors of other types than float64
        with contextlib.suppress(AttributeError, ImportError):
            # `with torch.device("meta"):` knows what makes tensors by a set of functions that is put together once,
            # now of torch's own. With a wrapper in it, the function that this calls would be none of them.
            importlib.import_module("torch.utils._device")._device_constructors()
        self._been_off = False
        self.from_lists = FromLists(self)
        # Of functions, not methods: a compiled function that calls one is compiled anew when the wrapper goes.
        self._makers = [Patch(torch, name, self._made) for name in ("from_numpy", "tensor", "as_tensor")]

    def on(self) -> None:
        """Put the wrappers in place; those of functions that make tensors once a training."""
        for patch in self._asking:
            patch.off()
        for patch in (*self._patches, *(self._makers if not self._been_off else ())):
            patch.on()
        self._read_steps = 0

    def off(self, all_but_gradients: bool = False) -> None:
        """Take the wrappers away; what they see when they are back is no longer among the first.

        With `all_but_gradients` it is still told when gradients are asked for, and no more of that.
        """
        self._been_off = self._gap = True
        for patch in (*self._patches, *self._makers):
            patch.off()
        if all_but_gradients:
            for patch in self._asking:
                patch.on()

    def leave_many_reads(self) -> None:
        """Take the wrappers of what reads a tensor's value away where there are thousands.

        For the window with stacks, which record whatever is called for each; on a GPU the places are known by then.
        """
        if self._cpu_reads > _MOST_CPU_READS:
            self._read_steps = self.counted_steps
            for patch in self._reading:
                patch.off()

    def leave_makers(self) -> None:
        """Take the wrappers of what makes tensors away for good: Dynamo knows torch's functions by identity."""
        for patch in self._makers:
            patch.off()
        self._makers.clear()

    def keep_class(self, helpers: ModuleType) -> None:
        """torchvision's tensors stay what they are in some of torch's methods, of which it has a set: wrapped ones.

        What they are asked for then is the method itself, which has to be in that set, too.
        """
        known = getattr(helpers, "_FORCE_TORCHFUNCTION_SUBCLASS", None)
        if isinstance(known, set):
            known.update([patch.original for patch in self._patches if patch.replacement in known])

    def dynamo_loaded(self, dynamo: ModuleType) -> None:
        """See who makes Dynamo forget what is compiled, in the timing window, too: that costs a wrapper nothing."""
        Patch(dynamo, "reset", self._wrap("dynamo.reset")).on()

    def also(self, patch: Patch) -> None:
        """Another wrapper, in place when these are: now."""
        self._patches.append(patch)
        patch.on()

    def add(self, kind: str, site: Site | None, details: dict[str, Any] | None = None) -> CallSite | None:
        """Count one call; the entry, or None when no user frame is involved."""
        if site is None:
            return None
        key = (kind, id(site))
        if key not in self._by_identity:
            self._by_identity[key] = CallSite(kind=kind, site=site)
        entry = self._by_identity[key]
        entry.calls += 1
        if details:
            entry.details.update(details)
        if self.count:
            self._counts[id(entry)] = self._counts.get(id(entry), 0) + 1
        return entry

    def took(self, entry: CallSite, seconds: float) -> None:
        """So long did a call of `entry` take; counted in the windows that count."""
        if self.count:
            self._seconds[id(entry)] = self._seconds.get(id(entry), 0.0) + seconds

    def records(self) -> list[CallSite]:
        """All entries, per-step figures filled in, in order of file and line."""
        steps = max(self.counted_steps, 1)
        for entry in self._by_identity.values():
            counted = self._read_steps or steps if entry.kind in _READS else steps
            entry.calls_per_step = self._counts.get(id(entry), 0) / counted
            entry.seconds_per_step = self._seconds.get(id(entry), 0.0) / counted
        self.from_lists.fill()
        return sorted(self._by_identity.values(), key=lambda e: (e.site.file, e.site.line, e.site.column or 0, e.kind))

    def forget(self) -> None:
        """What is seen from here on is of another training."""
        self._losses, self._gap, self._cpu_reads = [], False, 0
        self._been_off = False
        for patch in self._makers:
            patch.on()

    def read_losses(self) -> tuple[list[float], list[float]]:
        """The first losses and, beyond those, the last; unscaled. Read late, because reading waits for the device."""
        return read_scalars(self._losses), read_scalars(self._later_losses)

    # The wrappers.

    def _wrap(self, kind: str, details: Details | None = None) -> Callable[[Any], Any]:
        nested, torch = self._nested, self._torch
        compiling = torch.compiler.is_compiling  # a constant to Dynamo, so asked first: nothing else is traced
        listener = self._listener
        reads = kind in _READS and listener is not None

        def make(original: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                if compiling() or getattr(nested, "on", False) or Inert.depth or is_capturing(torch):
                    return original(*args, **kwargs)  # our own profiler synchronizes
                if reads and self._is_on_cpu(args[0]):
                    self._cpu_reads += 1
                    if self._cpu_reads > _MOST_CPU_READS or listener.fetching():
                        return original(*args, **kwargs)  # what makes batches may do so for every number
                nested.on = True
                try:
                    site = user_site(2)
                    began = time.perf_counter()
                    result = original(*args, **kwargs)
                    elapsed = time.perf_counter() - began
                finally:
                    nested.on = False
                told = None
                if details and site:
                    with contextlib.suppress(Exception), unseen(torch):  # of a kind of tensor that lacks something
                        told = details(args, kwargs, result)
                entry = self.add(kind, site, told)
                if entry is not None:
                    self.took(entry, elapsed)
                return result

            leave_to_python(self._torch, call.__code__)
            return call

        return make

    def _is_on_cpu(self, tensor: Any) -> bool:
        with unseen(self._torch):
            return bool(tensor.is_cpu)

    def _make_patches(self) -> list[Patch]:
        torch = self._torch
        tensor, module, optimizer = torch.Tensor, torch.nn.Module, torch.optim.Optimizer
        self._reading = [
            Patch(tensor, "item", self._wrap("Tensor.item", _source)),
            Patch(tensor, "tolist", self._wrap("Tensor.tolist", _source)),
            Patch(tensor, "numpy", self._wrap("Tensor.numpy", _source)),
            Patch(tensor, "__float__", self._wrap("Tensor.item", _source)),
            Patch(tensor, "__int__", self._wrap("Tensor.item", _source)),
            Patch(tensor, "__index__", self._wrap("Tensor.item", _source)),  # range(n), x[:n]
            Patch(tensor, "__bool__", self._wrap("Tensor.item", _source)),
        ]
        patches = [
            *self._reading,
            Patch(tensor, "to", self._wrap("Tensor.to", _copied)),
            Patch(tensor, "cuda", self._wrap("Tensor.cuda", _copied)),
            Patch(tensor, "cpu", self._wrap("Tensor.cpu", _copied)),
            Patch(tensor, "__format__", self._wrap("Tensor.print", _source)),
            Patch(tensor, "__repr__", self._wrap("Tensor.print", _source)),
            Patch(tensor, "backward", self._backward),
            Patch(torch.autograd, "backward", self._backward_of),
            Patch(torch.autograd, "grad", self._gradients_of),
            Patch(torch.autograd.functional, "jacobian", Jacobians(torch, self).wrapped),
            Patch(module, "to", self._wrap("Module.to", _moved)),
            Patch(module, "cuda", self._wrap("Module.cuda", _moved)),
            Patch(module, "half", self._wrap("Module.half", _moved)),
            Patch(module, "eval", self._wrap("Module.eval", _moved)),
            Patch(optimizer, "__init__", self._wrap("Optimizer", _optimizer)),
            Patch(optimizer, "zero_grad", self._wrap("zero_grad", _zeroed)),
            Patch(module, "zero_grad", self._wrap("zero_grad", _zeroed)),
            Patch(torch.amp.GradScaler, "scale", self._scale),
            Patch(torch.amp.GradScaler, "__init__", self._wrap("GradScaler")),
            Patch(torch.amp.autocast_mode.autocast, "__enter__", self._wrap("autocast", _autocast)),
            Patch(torch, "compile", self._wrap("torch.compile", _compiled)),
            Patch(module, "compile", self._wrap("Module.compile", _compiled)),
            Patch(torch.nn.DataParallel, "__init__", self._wrap("DataParallel", _replicated)),
            Patch(
                torch.nn.parallel.DistributedDataParallel,
                "__init__",
                self._wrap("DistributedDataParallel", _replicated),
            ),
            Patch(torch.autograd.anomaly_mode.set_detect_anomaly, "__init__", self._wrap("debug_mode", _mode)),
            Patch(torch.autograd.anomaly_mode.detect_anomaly, "__init__", self._wrap("debug_mode", _mode)),
            Patch(torch.autograd, "gradcheck", self._wrap("debug_mode", _checked)),
            Patch(torch, "use_deterministic_algorithms", self._wrap("debug_mode", _deterministic)),
            Patch(module, "double", self._wrap("Module.double", _moved)),
            Patch(tensor, "double", self._wrap("Tensor.double", _copied)),
            Patch(torch, "set_default_dtype", self._wrap("default_dtype", _chosen)),
            Patch(torch, "set_num_threads", self._wrap("set_num_threads", _threads)),
            Patch(torch.cuda, "synchronize", self._wrap("synchronize")),
            Patch(torch.cuda.Event, "synchronize", self._wrap("synchronize")),
            Patch(torch.cuda.Stream, "synchronize", self._wrap("synchronize")),
            Patch(torch.cuda, "empty_cache", self._wrap("empty_cache")),
            Patch(torch.cuda.memory, "empty_cache", self._wrap("empty_cache")),
        ]
        return patches

    def _made(self, original: Any) -> Any:
        """``torch.from_numpy`` and the like: of note where what it makes is in float64, and whether all of it is."""
        compiling, float64 = self._torch.compiler.is_compiling, self._torch.float64
        others = self._made_others

        def make(*args: Any, **kwargs: Any) -> Any:
            # The script may have kept the wrapper: `from torch import tensor`.
            if compiling() or self._been_off or Inert.depth:
                return original(*args, **kwargs)
            began = time.perf_counter()
            result = original(*args, **kwargs)
            took, site = time.perf_counter() - began, user_site()
            self._listener.array_made(getattr(original, "__name__", ""), result, began, took)
            if is_users(sys._getframe(1)):  # a library's own call is none that the script could write otherwise
                data, listener = args[0] if args else kwargs.get("data"), self._listener
                self.from_lists.saw(site, data, result, took, listener.loaders.fetching, listener.in_step())
            if result.dtype != float64:
                others.add(id(site))
                entry = self._by_identity.get(("float64", id(site)))
                if entry is not None:
                    entry.details["others"] = True
            elif result.numel() > 1:
                self.add("float64", site, {"others": True} if id(site) in others else None)
            return result

        return make

    def _scale(self, original: Any) -> Any:
        inner = self._wrap("GradScaler.scale")(original)

        def scale(scaler: Any, outputs: Any) -> Any:
            result = inner(scaler, outputs)
            if self._listener.recording():
                return result
            # `backward` will see the scaled loss; the record wants the script's own.
            pairs = [(result, outputs)] if isinstance(outputs, self._torch.Tensor) else []
            if isinstance(outputs, (list, tuple)):
                pairs = list(zip(result, outputs, strict=False))
            self._scaled = {key: pair for key, pair in self._scaled.items() if pair[0]() is not None}
            for scaled, own in pairs:
                if isinstance(own, self._torch.Tensor):
                    self._scaled[id(scaled)] = weakref.ref(scaled), own.detach()
            return result

        return scale

    def _backward(self, original: Any) -> Any:
        inner = self._wrap("backward")(original)
        compiling = self._torch.compiler.is_compiling

        def backward(loss: Any, *args: Any, **kwargs: Any) -> Any:
            if compiling() or getattr(self._nested, "on", False):
                return original(loss, *args, **kwargs)
            self._saw(loss)
            if not self.annotate:
                return inner(loss, *args, **kwargs)
            with self._torch.autograd.profiler.record_function(BACKWARD_RANGE):
                return inner(loss, *args, **kwargs)

        return backward

    def _backward_of(self, original: Any) -> Any:
        """``torch.autograd.backward(loss)``, which is also what ``loss.backward()`` comes to."""
        inner = self._backward(original)
        compiling = self._torch.compiler.is_compiling

        def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
            if compiling():
                return original(tensors, grad_tensors, *args, **kwargs)
            self._listener.differentiates(tensors, grad_tensors)
            if getattr(self._nested, "on", False):
                return original(tensors, grad_tensors, *args, **kwargs)
            losses = [tensors] if isinstance(tensors, self._torch.Tensor) else tensors
            first = losses[0] if isinstance(losses, (list, tuple)) and losses else None
            # With gradients given it is a part of another backward (checkpointed layers, stages of a pipeline).
            if grad_tensors is None and isinstance(first, self._torch.Tensor) and first.numel() == 1:
                return inner(tensors, grad_tensors, *args, **kwargs)
            return original(tensors, grad_tensors, *args, **kwargs)

        return backward

    def _gradients_of(self, original: Any) -> Any:
        compiling, nested = self._torch.compiler.is_compiling, self._nested

        def grad(*args: Any, **kwargs: Any) -> Any:
            if compiling() or getattr(nested, "on", False):
                return original(*args, **kwargs)
            self._listener.gradients_asked()
            nested.on = True  # a backward within it is a part of it (checkpointed layers)
            try:
                return original(*args, **kwargs)
            finally:
                nested.on = False

        return grad

    def _saw(self, loss: Any) -> None:
        """A backward begins: keep its loss. Nothing waits for the device here, and no kernel of ours is profiled."""
        with unseen(self._torch):
            self._listener.backward(loss)
            if isinstance(loss, (list, tuple)):
                loss = loss[0]
            self._listener.made_graph(loss, loss=True)
            if loss.numel() != 1 or not may_compute(self._torch, loss):
                return
            first = not self._gap and len(self._losses) < self._keep_losses
            if not first and self._listener.recording():
                return
            scaled, own = self._scaled.pop(id(loss), (None, None))
            value = (own if scaled is not None and scaled() is loss else loss.detach()).clone()
            if first:
                self._losses.append(value)
            else:
                self._later_losses = [*self._later_losses[1 - _LATER_LOSSES :], value]


def leave_to_python(torch: Any, code: CodeType) -> None:
    """Keep Dynamo from compiling a wrapper for itself, as it would where it gave up the function that calls it.

    Compiled, the wrapper would believe itself part of a graph and see nothing.
    """
    frames: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    with contextlib.suppress(AttributeError, TypeError):  # a version that has neither
        if hasattr(frames, "skip_code"):  # torch 2.6
            frames.skip_code(code)
        else:
            leave = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)
            frames.set_code_exec_strategy(code, leave)


def read_scalars(tensors: list[Any]) -> list[float]:
    """The values of tensors with one element, those left out that have none (they were traced, not computed)."""
    values = []
    for tensor in tensors:
        try:
            values.append(float(tensor))
        except (RuntimeError, ValueError, TypeError):
            continue
    return values


def _copied(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> dict[str, Any]:
    source = args[0]
    # In whatever way .to() and .cuda() are called, their first positional truth value is this one.
    by_position = next((value for value in args[1:] if isinstance(value, bool)), False)
    details: dict[str, Any] = {
        "from_device": source.device.type,
        "to_device": result.device.type,
        "from_dtype": str(source.dtype).removeprefix("torch."),
        "to_dtype": str(result.dtype).removeprefix("torch."),
        "bytes": int(source.numel() * source.element_size()),
        "non_blocking": bool(kwargs.get("non_blocking", by_position)),
        **_caller(sys._getframe(2)),
    }
    if source.device.type == "cpu" and result.device.type == "cuda":
        details["pinned"] = bool(source.is_pinned())
    return details


def _source(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> dict[str, Any]:
    return {"device": args[0].device.type, **_caller(sys._getframe(2))}


def _caller(frame: FrameType | None) -> dict[str, str]:
    """The module that reads or moves a tensor, where that is a library which the script called; else nothing."""
    while frame is not None and (frame.f_globals.get("__name__") in _TENSORS_OWN or is_ours(frame)):
        frame = frame.f_back
    return {"inside": str(frame.f_globals.get("__name__"))} if frame is not None and not is_users(frame) else {}


def _moved(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> dict[str, Any]:
    return {"module": type(args[0]).__name__, "arguments": [str(value) for value in (*args[1:], *kwargs.values())]}


def _optimizer(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> dict[str, Any]:
    return {"class": type(args[0]).__name__}


def _zeroed(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> dict[str, Any]:
    chosen = args[1] if len(args) > 1 else kwargs.get("set_to_none", True)
    return {"set_to_none": bool(chosen), "class": type(args[0]).__name__}


def _autocast(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> dict[str, Any]:
    context = args[0]
    return {
        "device": context.device,
        "dtype": str(context.fast_dtype).removeprefix("torch."),
        "enabled": bool(context._enabled),
    }


def _compiled(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> dict[str, Any]:
    target = args[0] if args else kwargs.get("model")
    return {
        "target": type(target).__name__,
        "name": getattr(target, "__name__", ""),
        "options": {key: str(value) for key, value in kwargs.items() if key != "model"},
    }


def _replicated(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> dict[str, Any]:
    inner = args[0].module
    return {
        "devices": len(getattr(args[0], "device_ids", None) or ()),
        "compiled": hasattr(inner, "_orig_mod") or getattr(inner, "_compiled_call_impl", None) is not None,
    }


def _mode(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> dict[str, Any]:
    chosen = args[1] if len(args) > 1 else kwargs.get("mode", True)
    on = type(args[0]).__name__ == "detect_anomaly" or bool(chosen)
    return {"mode": "anomaly", "on": on, "arguments": [str(value) for value in (*args[1:], *kwargs.values())]}


def _checked(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> dict[str, Any]:
    return {"mode": "gradcheck", "on": True}


def _deterministic(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> dict[str, Any]:
    return {"mode": "deterministic", "on": bool(args[0] if args else kwargs.get("mode"))}


def _chosen(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> dict[str, Any]:
    return {"dtype": str(args[0] if args else kwargs.get("d")).removeprefix("torch.")}


def _threads(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> dict[str, Any]:
    return {"threads": next((value for value in args if isinstance(value, int)), None)}
