"""Root modules: those the script calls itself, and what they are called with.

Hooks sit on the instances, not globally (a global module hook makes ``torch.compile(fullgraph=True)`` raise), and
return at once while Dynamo traces: ``is_compiling()`` is a constant there, so nothing of them is left in a graph.
They are off in the timing window, and taken off a module before TorchScript or ``torch.export`` looks at it, or
``torch.cuda.make_graphed_callables``.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

from .classes import called_methods
from .layout import FORWARD_RANGE, Model, Site
from .loading.loaders import tensor_info, tensors_in
from .looking import is_taken_down, is_transformed, may_compute, unseen
from .model_records import ModelRecords
from .passes import Passes
from .patches import Patch
from .places import maker_site, user_site
from .sites import read_scalars

_active: Models | None = None


_FRAMEWORKS = ("lightning", "pytorch_lightning", "transformers")
_MARKED = 4  # outputs of a call whose graphs are watched
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")  # attributes of a module
_GROWN = 10  # looks for new models, a tenth of a second each
_UNCALLED = 1.0  # seconds for which no root was called: then the script may call parts of one
_PARTS_DEPTH = 3  # how far below a root these are looked for: model.base_model.encoder.layer


class _Hooks(OrderedDict[int, Any]):
    """A module's hooks, ours among them, that pickle and copy as if ours were not there.

    A model that is saved whole must load where we are not, and a copy (an averaged model) has no hooks but its own.
    """

    def __reduce_ex__(self, protocol: Any) -> Any:
        own = [(key, hook) for key, hook in self.items() if hook is not _before and hook is not _after]
        return OrderedDict, (own,)


def _before(module: Any, arguments: Any, kwargs: Any = None) -> None:
    if _active is not None and not _active.compiling():
        _active.enter(module, arguments, kwargs)


def _after(module: Any, arguments: Any, output: Any) -> None:
    if _active is not None and not _active.compiling():
        _active.leave(module, output)


class _Hook:
    """One of our hooks among a module's own: what is pickled and copied with them does nothing."""

    def __init__(self, hook: Callable[..., None]) -> None:
        self._hook = hook

    def __call__(self, *args: Any) -> None:
        self._hook(*args)

    def __reduce__(self) -> Any:
        return getattr, (contextlib.nullcontext(), "__exit__")  # takes anything, and gives None


def _of_a_framework(cls: type) -> bool:
    """Whether a module of a framework is among its bases."""
    return any(base.__module__.partition(".")[0] in _FRAMEWORKS for base in cls.__mro__)


class Models:
    """All modules made since torch was loaded; hooks on the roots among them."""

    def __init__(self, torch: ModuleType, outputs: int, listener: Any) -> None:
        global _active
        self._torch: Any = torch
        self._listener = listener
        self.compiling = torch.compiler.is_compiling
        # By identity: a module's own __hash__ or __eq__ may not work yet while it is being made (torchmetrics).
        self._modules: dict[int, weakref.ref[Any]] = {}
        self._count, self._hooked_at = 0, 0  # modules made so far; when the watching thread last put hooks on
        self._hooks: dict[int, list[Any]] = {}
        self._roots: list[weakref.ref[Any]] = []
        self._parts: set[int] | None = None  # by identity: modules below the roots, hooked because no root is called
        # Root, by identity → what it holds under the name that transformers gives to a model without its head: hooked
        # until the root itself is called (then None), for it may be called instead.
        self._bases: dict[int, weakref.ref[Any] | None] = {}
        self._headless = False  # one of those was called
        self._late = False  # parts were hooked by the clock, before anything was called
        self._methods: dict[type, list[Patch]] = {}  # of classes without a forward: those that stand for it
        self._records = ModelRecords(torch)
        self._passes = Passes(torch)
        self._depth = 0
        self._range: Any = None
        self._range_owner: Any = None
        self._keep_outputs = outputs
        self._pending: list[Any] = []  # mean absolute outputs, on their device
        self._states: list[Any] = []  # of the last hidden states, where an output has them
        self._contiguous = True  # no forward has gone by unseen
        self.announced = False  # the script gave a sign of its model before it first called it
        self.annotate = False  # put a range around each outermost forward: in the profiled windows
        self.samples = 0
        self._first_method = 0, ""  # of the model that was called first in a step: its identity, and which one
        self._first: tuple[int, int] | None = None  # identity of a step's first module, and the rows that it was given
        self.rows_differ = False  # another module of the same step was given another number of them
        self._counted: list[weakref.ref[Any]] = []  # what they are rows of
        self.forwards = 0
        self.level = 0
        self._lock = threading.RLock()  # hooks are put on by the thread that watches, too
        self._quiet = False  # let the calls of compiled functions pass unseen: in the timing window
        nn: Any = torch.nn
        # Copied or loaded from a file, a module is not made by its constructor.
        self._births = [Patch(nn.Module, "__init__", self._born), Patch(nn.Module, "__setstate__", self._restored)]
        self._without = 0  # calls going on before which hooks were taken off, and during which none are put on
        self._jit = [
            Patch(owner, name, self._traced)
            for owner, name in ((torch.jit, "script"), (torch.jit, "trace"), (torch.export, "export"))
            if hasattr(owner, name)
        ]
        self._jit += [  # which takes no module with hooks
            Patch(owner, "make_graphed_callables", self._captured)
            for owner in (torch.cuda, torch.cuda.graphs, torch.xpu, getattr(torch.xpu, "graphs", None))
            if hasattr(owner, "make_graphed_callables")
        ]
        # At once: the wrapper that remembers call sites goes around this one.
        Patch(torch, "compile", self._compiled).on()
        self._graphs = False  # something is compiled: hooks below a root would be in its graph
        self._inside_graphs = False
        _active = self

    def install(self) -> None:
        for patch in (*self._births, *self._jit):
            patch.on()

    def watch(self, waiting: Callable[[], bool], follows: Callable[[], bool]) -> None:
        """Hook the roots while the first step is awaited, for scripts that give no other sign of a model.

        While `follows`, too: where forwards are the steps, a model that is made anew goes on with them. Looks ten times
        a second, and hooks once no module was added since it last looked (a model under construction has children that
        are not held yet). Where one always was (a loop may make its loss anew each time), roots that are there for a
        second will do; where none is, forwards would be seen of a few models only, and taken for all.
        """

        def look() -> None:
            count, grown, hooked = -1, 0, 0.0
            old: list[weakref.ref[Any]] = []
            while waiting() or follows():
                time.sleep(0.1)
                try:
                    previous, count = count, self._count
                    grown = grown + 1 if count != previous else 0
                    settled = count and not grown
                    if grown and grown % _GROWN == 0:
                        settled = any(reference() is not None for reference in old)
                        old = [weakref.ref(root) for root in self.roots()]
                    if settled and (waiting() or (count != self._hooked_at and follows())):
                        self.hooks_on()
                        hooked = hooked if self._hooked_at == count else time.monotonic()
                        self._hooked_at = count
                        if waiting() and not self.forwards and time.monotonic() - hooked > _UNCALLED:
                            self._hook_parts()
                except RuntimeError:  # modules were made at this very moment
                    continue

        threading.Thread(target=look, name="advisor-roots", daemon=True).start()

    def stop_collecting(self, births: bool) -> None:
        """The timing window begins: its forwards go by unseen, and those after it are not the first ones.

        Modules that are made in it are seen with `births`: where forwards are the steps, they will be called in it.
        """
        self._contiguous = False
        for patch in self._births if not births else ():
            patch.off()

    def collect(self) -> None:
        """The timing window has ended."""
        for patch in self._births:
            patch.on()

    def _born(self, original: Any) -> Any:
        def init(module: Any, *args: Any, **kwargs: Any) -> None:
            original(module, *args, **kwargs)
            self._remember(module, maker_site(module))

        return init

    def _restored(self, original: Any) -> Any:
        def setstate(module: Any, state: Any) -> None:
            original(module, state)
            self._remember(module, maker_site(module))

        return setstate

    def _remember(self, module: Any, made: Site | None) -> None:
        if type(module).__module__.startswith("torch.jit."):  # never a root; a dozen are made for each that is traced
            return
        key = id(module)
        self._modules[key] = weakref.ref(module, lambda _: self._forget(key))
        self._count += 1
        if made is not None:
            self._records.made_at(module, made)

    def made(self, module: Any) -> Site | None:
        """Where the user's code makes it; None inside a library."""
        return self._records.made(module)

    def _forget(self, key: int) -> None:
        """A module is gone, and another one may get its number."""
        self._modules.pop(key, None)
        self._hooks.pop(key, None)
        self._bases.pop(key, None)
        if self._parts is not None:
            self._parts.discard(key)
        self._records.forget(key)

    @contextlib.contextmanager
    def _unhooked(self) -> Iterator[None]:
        """No hooks meanwhile, not even by the thread that watches; afterwards those that there were."""
        with self._lock:
            hooked = bool(self._hooks)
            self._without += 1
            self._unhook()
        try:
            yield
        finally:
            with self._lock:
                self._without -= 1
            if hooked:
                self.hooks_on()

    def _captured(self, original: Any) -> Any:
        def make(*args: Any, **kwargs: Any) -> Any:
            with self._unhooked():
                return original(*args, **kwargs)

        return make

    def _traced(self, original: Any) -> Any:
        # torch.jit.script looks the names of a function up in the frame of who calls it: one farther out than ours.
        frames = "_frames_up" in getattr(getattr(original, "__code__", None), "co_varnames", ())

        def prepare(*args: Any, **kwargs: Any) -> Any:
            if frames and args and isinstance(args[0], FunctionType):  # it has no hooks, nor is told of by any mode
                self._listener.scripts()
            else:
                self._listener.compiles()
            if frames and len(args) < 3:
                kwargs["_frames_up"] = kwargs.get("_frames_up", 0) + 1
            with self._unhooked():
                return original(*args, **kwargs)

        return prepare

    def _compiled(self, original: Any) -> Any:
        def compile(*args: Any, **kwargs: Any) -> Any:
            self._listener.compiles()
            self._graphs = True
            self._drop_parts()
            for root in list(self._bases):
                self._drop_base(root)
            target = args[0] if args else kwargs.get("model")
            result = original(*args, **kwargs)
            if target is None or isinstance(target, (self._torch.nn.Module, type)):
                return result
            # The graph of a function guards on the hooks of the modules in it: put on and off, they would compile it
            # again each time. The compiled function itself stands for the forward instead, from outside.
            self._inside_graphs = True
            self.hooks_off()
            method_of = getattr(target, "__self__", None)  # Module.compile() compiles the module's own call
            return self._outermost(result, method_of if isinstance(method_of, self._torch.nn.Module) else result)

        return compile

    def _outermost(self, function: Any, subject: Any) -> Any:
        compiling = self.compiling

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if compiling() or self._quiet:
                return function(*args, **kwargs)
            self.enter(subject, args, kwargs)
            try:
                output = function(*args, **kwargs)
            except Exception:
                self.leave(subject, None)
                raise
            self.leave(subject, output)
            return output

        return call

    def outermost(self) -> list[Any]:
        """Modules that no other module holds."""
        modules = [module for reference in list(self._modules.values()) if (module := reference()) is not None]
        held = {id(child) for module in modules for child in vars(module).get("_modules", {}).values()}
        return [module for module in modules if id(module) not in held]

    def roots(self) -> list[Any]:
        """The outermost modules with parameters; `level` steps lower when those are never called."""
        roots = self.outermost()
        for _ in range(self.level):
            roots = [child for root in roots for child in vars(root).get("_modules", {}).values() if child is not None]
        return [root for root in roots if self._has_own_calls(root)]

    def _has_own_calls(self, module: Any) -> bool:
        """Whether it may be called, and has parameters."""
        nn = self._torch.nn
        return (
            not isinstance(module, (nn.ModuleList, nn.ModuleDict, self._torch.jit.ScriptModule))
            and next(iter(nn.Module.parameters(module)), None) is not None
        )

    def hooks_on(self) -> None:
        """Put hooks on the roots that have none yet."""
        self._quiet = False
        if self._inside_graphs:
            return
        with self._lock:
            self._hook_roots()

    def hook_new(self) -> None:
        """The same where modules were made since the watching thread looked."""
        if self._count != self._hooked_at:
            self._hooked_at = self._count
            self.hooks_on()

    def _hook_roots(self) -> None:
        if self._without:
            return
        roots = self.roots()
        parts = self._below(roots) if self._parts is not None else []
        if self._parts is not None:
            self._parts.update(map(id, parts))
        for root in (*roots, *self._without_heads(roots), *parts):
            if id(root) in self._hooks:
                continue
            for name in _HOOKS:
                if not vars(root)[name]:  # to take its hooks away, their handles know the dictionary they are in
                    vars(root)[name] = _Hooks()
            before: Any = _before if type(vars(root)["_forward_pre_hooks"]) is _Hooks else _Hook(_before)
            after: Any = _after if type(vars(root)["_forward_hooks"]) is _Hooks else _Hook(_after)
            handles = [
                root.register_forward_pre_hook(before, with_kwargs=True),
                root.register_forward_hook(after, always_call=True),  # of a forward that raises, too: it has ended
            ]
            self._hooks[id(root)] = handles
            self._roots.append(weakref.ref(root))
            for patch in self._methods_of(type(root)):
                patch.on()

    def _hook_parts(self) -> None:
        """No root is called: the script may call what is in one (``model.encoder(x)``, then ``model.head(z)``).

        Roots keep their hooks: when one is called after all, what is called within it does not count.
        """
        if self._parts is not None or self._graphs:
            return
        with self._lock:
            self._parts = set()
            self._hook_roots()
        self._late = not self.forwards and not self._depth

    def _below(self, roots: list[Any]) -> list[Any]:
        """The modules with parameters in `roots`, down to a depth."""
        found, level = list[Any](), roots
        for _ in range(_PARTS_DEPTH):
            level = [child for each in level for child in vars(each).get("_modules", {}).values() if child is not None]
            found += level
        return [each for each in found if self._has_own_calls(each)]

    def _without_heads(self, roots: list[Any]) -> list[Any]:
        """What roots of transformers' hold without their heads, where the roots themselves were not called."""
        found = []
        for root in roots if not self._graphs else ():
            base = vars(root).get("_modules", {}).get(getattr(type(root), "base_model_prefix", ""))
            if base is None or not self._has_own_calls(base):
                continue
            known = self._bases.setdefault(id(root), weakref.ref(base))
            if known is not None and known() is base:
                found.append(base)
        return found

    def _drop_base(self, root: int) -> None:
        """The root itself is called, or it may be compiled: what it holds is hooked no more."""
        with self._lock:
            known = self._bases.get(root)
            if known is None:
                return
            self._bases[root] = None
            for handle in self._hooks.pop(id(known()), ()):
                handle.remove()

    def _is_part(self, module: Any) -> bool:
        """Whether it is below a root, and no model without its head."""
        return self._parts is not None and id(module) in self._parts and not self._is_base(module)

    def _recomputes(self) -> bool:
        """Whether a backward is running: what is called in it, it computes anew (activation checkpointing)."""
        running = getattr(self._torch._C, "_current_graph_task_id", None)
        return running is not None and self._parts is not None and running() != -1

    def _is_base(self, module: Any) -> bool:
        return any(known is not None and known() is module for known in self._bases.values())

    def _drop_parts(self) -> None:
        with self._lock:
            kept = {id(known()) for known in self._bases.values() if known is not None}
            for key in (self._parts or set()) - kept:
                for handle in self._hooks.pop(key, ()):
                    handle.remove()
            self._parts = None

    def _methods_of(self, cls: type) -> list[Patch]:
        """Stand-ins for the methods of a class that has no forward: ``model.greedy(x)``, say, is one by another name.

        Not those of a framework's modules: its trainer calls them, a dozen for each step.
        """
        base: Any = self._torch.nn.Module
        if cls.forward is not base.forward or _of_a_framework(cls):  # type: ignore[attr-defined]
            return []
        if cls not in self._methods:
            self._methods[cls] = [
                Patch(owner, name, self._method)
                for owner in cls.__mro__[: cls.__mro__.index(base)]
                for name in called_methods(owner, base)
            ]
        return self._methods[cls]

    def _method(self, original: Any) -> Any:
        compiling = self.compiling

        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            if compiling() or id(module) not in self._hooks:
                return original(module, *args, **kwargs)
            self.enter(module, args, kwargs, original.__name__)
            try:
                output = original(module, *args, **kwargs)
            except Exception:
                self.leave(module, None)
                raise
            self.leave(module, output)
            return output

        return call

    def hooks_off(self) -> None:
        """Take all hooks off again."""
        with self._lock:
            self._unhook()

    def _unhook(self) -> None:
        for patches in self._methods.values():
            for patch in patches:
                patch.off()
        for handles in list(self._hooks.values()):
            for handle in handles:
                handle.remove()
        for reference in self._roots:
            root = reference()
            for name in _HOOKS if root is not None else ():
                if isinstance(vars(root)[name], _Hooks) and not vars(root)[name]:
                    vars(root)[name] = OrderedDict()
        self._roots.clear()
        self._hooks.clear()
        if not self._depth:
            self._range_owner = None  # in a forward that has begun, what it gives is still looked at
        self._depth = 0

    def forget(self) -> None:
        """In a process that was forked off: look at nothing. A thread that is not here may have had the lock."""
        self._lock = threading.RLock()
        self.quiet()

    def quiet(self) -> None:
        """Hooks off, compiled functions unseen."""
        self.hooks_off()
        self._quiet = True

    def descend(self) -> None:
        """No root was called in a whole step (a LightningModule is a root whose children are called): look lower."""
        if self.level < 3 and not self._inside_graphs:
            self.level += 1
            self.hooks_off()
            self.hooks_on()

    def step_ended(self) -> None:
        """A forward that raised, or is suspended over a step boundary, must not leave its range open."""
        self._depth = 0
        self._close()

    def _close(self) -> None:
        if self._range is not None:
            self._range.__exit__(None, None, None)
            self._range = None

    def enter(self, module: Any, arguments: Any, kwargs: Any, method: str = "") -> None:
        """`method`: what stands for its forward, of several the one that is called."""
        self._depth += 1
        if self._depth > 1:
            return
        if self._recomputes():
            return
        base = bool(self._bases) and self._is_base(module)
        self._headless |= base
        whole = self._bases.get(id(module)) is not None  # what was hooked in its place is called by it
        if self._parts is not None and id(module) not in self._parts and (whole or not self._headless):
            self._drop_parts()
        if whole:
            self._drop_base(id(module))
        if base:  # and its head may be called by itself
            self._hook_parts()
        self.forwards += 1
        if self.forwards == 1 and (not self.announced or (self._late and self._is_part(module))):
            self._contiguous = False  # hooked by the clock: who knows how many went by before
        self._range_owner = module
        site = user_site(3)
        taken_down, shape, another = is_taken_down(self._torch), None, False
        tensors: list[Any] = []
        if not taken_down:
            with self._looking("given"):
                tensors, shape = self._look_at_inputs(module, arguments, kwargs)
                another = self._passes.another(module, tensors)
        record = self._records.of(module)
        model = id(module) if record is None else id(record)
        # Of a decoder's steps and the encoding before them the rarer one begins a step.
        self._listener.before_forward(module, site, (model, method) if method else model, shape, another)
        if shape:
            with self._looking("given"):
                self._count_rows(module, tensors, shape, method)
        if shape:  # the step that this forward ended is over: it belongs to the next one
            key, rows = self._first = self._first or (id(module), shape[0])
            other = key != id(module) and rows != shape[0]
            self.rows_differ |= other and not (self._headless and self._is_part(module))
        self._listener.forward_begins(module, tensors)
        # A step that it has ended forgot that this forward has begun; where its hooks went off, nothing will end it.
        self._depth = int(id(module) in self._hooks)
        if self.annotate and not taken_down:
            self._close()  # of a compiled function that calls this one
            self._range = self._torch.autograd.profiler.record_function(FORWARD_RANGE)
            self._range.__enter__()

    def leave(self, module: Any, output: Any) -> None:
        """`output` is None, too, for a forward that raised."""
        self._depth = max(self._depth - 1, 0)
        if self._depth or module is not self._range_owner:
            return
        self._range_owner = None
        self._listener.forward_ends(output)
        self._close()
        if output is not None and not is_taken_down(self._torch):
            with self._looking("gives"):
                self._look_at_output(module, output)

    @contextlib.contextmanager
    def _looking(self, what: str) -> Iterator[None]:
        """What cannot be looked at (a kind of tensor that lacks a method) must not cost the script its run."""
        try:
            with unseen(self._torch):
                yield
        except Exception as error:
            self._listener.note(f"what a model is {what} could not be looked at: {type(error).__name__}")

    def _look_at_inputs(self, module: Any, arguments: Any, kwargs: Any) -> tuple[list[Any], list[int] | None]:
        """The tensors among them, and the shape of the first that has dimensions."""
        given = () if is_transformed(self._torch) else (arguments, kwargs)
        tensors = list(tensors_in(given, self._torch, limit=8))
        inputs = [tensor_info(tensor) for tensor in tensors]
        if isinstance(module, self._torch.nn.Module):
            first = bool(arguments) and isinstance(arguments[0], self._torch.Tensor)
            if self._records.observe(module, inputs, first):
                self._listener.shapes_vary()
            if not self.annotate:  # what it computes is none of the profiled windows' business
                self._records.ask_padding(module, tensors)
            self._records.compare_input(module, tensors)
        shape = next((info.shape for info in inputs if info.shape), None)
        return tensors, shape

    def begin_interval(self) -> None:
        """Count samples anew."""
        self.samples, self._first, self.rows_differ = 0, None, False

    def _count_rows(self, module: Any, tensors: list[Any], shape: list[int] | None, method: str) -> None:
        """Count what a model is given, but for parts behind the first one, and another method of the first model.

        Parts are given one batch after the other, and so are the methods of a model that is never called itself.
        """
        if not self.samples:
            self._first_method = id(module), method
        first, name = self._first_method
        another_method = bool(method) and first == id(module) and name != method
        another_part = self._parts is not None and (not self._headless or self._is_part(module))
        if not self.samples or not (another_part or another_method):
            self._add_rows(next((each for each in tensors if each.dim()), None), shape)

    def _add_rows(self, first: Any, shape: list[int] | None) -> None:
        """Add the rows of a model's first input to the step's samples, once: it may be called again with the same."""
        if not self.samples:
            self._counted.clear()
        if first is not None and shape and not any(known() is first for known in self._counted):
            self._counted.append(weakref.ref(first))
            self.samples += shape[0]

    def _look_at_output(self, module: Any, output: Any) -> None:
        outputs = list(tensors_in(output, self._torch, limit=_MARKED))
        tensor = outputs[0] if outputs else None
        record = self._records.of(module)
        if record is not None:
            record.output = "tensor" if tensor is output else type(output).__name__
            record.output_dtype = "" if tensor is None else str(tensor.dtype).removeprefix("torch.")
            record.output_grad = None if tensor is None else bool(tensor.requires_grad)
        for number, each in enumerate(outputs):
            if each.requires_grad:
                self._listener.made_graph(each, number)
        if not self._contiguous:
            return
        self._keep_size(self._pending, tensor)
        states = getattr(output, "hidden_states", None)
        if isinstance(states, tuple) and states:
            self._keep_size(self._states, states[-1])

    def _keep_size(self, kept: list[Any], tensor: Any) -> None:
        """The mean absolute value of an output, if it is one of the first."""
        if not isinstance(tensor, self._torch.Tensor) or len(kept) >= self._keep_outputs:
            return
        if may_compute(self._torch, tensor) and tensor.is_floating_point() and tensor.numel():
            # The 1-norm: unlike `abs().mean()` it needs no second tensor of that size. It cannot narrow float64.
            wide = self._torch.promote_types(tensor.dtype, self._torch.float32)
            size = self._torch.linalg.vector_norm(tensor.detach(), 1, dtype=wide)
            kept.append(size / tensor.numel())

    def records(self) -> list[Model]:
        """The roots that were called, most parameters first; where no call could be seen, all there are."""
        called = self._records.called()
        if self._parts is not None and any(record.calls > 1 for record in called):
            # Hooked in the midst of a forward, what is called within it looks as if the script called it.
            called = [record for record in called if record.calls > 1]
        called = called or [self._records.describe(root) for root in self.roots()]
        return sorted(called, key=lambda record: -record.parameters)

    def devices(self) -> list[str]:
        return [device for record in self.records() for device in record.devices]

    def read_padding(self) -> None:
        """Have the records say how much padding their models were given; late, because reading waits for the device."""
        self._records.read_padding()

    def forget_outputs(self) -> None:
        """Those from here on are of another training."""
        self._pending, self._states, self._contiguous = [], [], True

    def read_outputs(self) -> list[float]:
        """Mean absolute outputs of the first forwards; read late, because reading waits for the device."""
        return read_scalars(self._pending)

    def read_states(self) -> list[float]:
        """The same of the last hidden states."""
        return read_scalars(self._states)
