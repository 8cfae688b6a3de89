"""What is remembered of the models that a script calls: what they are made of, and what they are called with."""

from __future__ import annotations

import contextlib
import inspect
import os
import weakref
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from .classes import own_classes
from .filling import features, filled, lengthwise
from .layout import Model, Site, TensorInfo
from .places import source_of
from .sites import read_scalars
from .tokens import columns, grown, is_filled_in, padding, token_ids, unevenness

_LEAST_WIDTHS = 3  # queries and passages have two, or training and evaluation
_PADDED_CALLS = 16  # how many of a model's first calls are asked for their padding


@dataclass
class _Padding:
    """How much padding a model's first calls were given."""

    record: Model
    calls: int = 0  # with token ids and without
    in_all: list[Any] = field(default_factory=list)  # of each call with ids the share that is padding in all rows, …
    in_each: list[Any] = field(default_factory=list)  # … and what else is padding in some; on their device
    filled_in: list[Any] = field(default_factory=list)  # of each whether it is the call before, with more of it written
    ids: Any = None  # a copy of the latest call's
    widths: set[int] = field(default_factory=set)
    pads: bool = False  # it is told what is padding: by a mask, or by the number of it
    features: tuple[int, ...] = ()  # the shape of the latest call's
    filled: list[Any] = field(default_factory=list)  # likewise of features: what fills samples up, …
    lengths: set[int] = field(default_factory=set)  # … to these lengths

    @property
    def has_own_widths(self) -> bool:
        """Whether each batch seems as wide as its longest row: not one of a few widths that all are padded to.

        Where few calls have ids, the others are one token each of a text that is written: padding costs them little.
        """
        return self._differ(self.widths, self.in_all)

    @property
    def has_own_lengths(self) -> bool:
        """The same of features."""
        return self._differ(self.lengths, self.filled)

    def _differ(self, widths: set[int], asked: list[Any]) -> bool:
        return 2 * len(asked) > self.calls and len(widths) >= max(_LEAST_WIDTHS, len(asked) / 4)


class ModelRecords:
    """A record of each module that was called, kept when the module is no more."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch: Any = torch
        self._records: dict[int, Model] = {}  # by identity of the module
        self._gone: list[Model] = []  # records of modules that are no more
        self._made: dict[int, Site] = {}  # by identity: where the user's code makes a module
        self._lazy: set[int] = set()  # by identity: records of modules whose layers have not seen their first input
        self._padding: dict[int, _Padding] = {}  # by identity of a record
        self._last_input: dict[int, Any] = {}  # by identity of the module: a weak reference to its latest input

    def of(self, module: Any) -> Model | None:
        """The record of a module; None for one that was not called."""
        return self._records.get(id(module))

    def called(self) -> list[Model]:
        """The records of all that was called."""
        return [*self._records.values(), *self._gone]

    def made_at(self, module: Any, site: Site) -> None:
        """The user's code makes it at `site`."""
        self._made[id(module)] = site

    def made(self, module: Any) -> Site | None:
        """Where the user's code makes it; None inside a library."""
        return self._made.get(id(module))

    def forget(self, key: int) -> None:
        """A module is gone, and another one may get its number."""
        self._made.pop(key, None)
        self._last_input.pop(key, None)
        self._lazy.discard(key)
        record = self._records.pop(key, None)
        if record is not None:
            self._gone.append(record)

    def observe(self, module: Any, inputs: list[TensorInfo], tensor_first: bool) -> bool:
        """It is called with `inputs`, `tensor_first`: in the first place. Whether their shapes vary, batches aside."""
        torch, key, vary = self._torch, id(module), False
        record = self._records.get(key)
        if record is None or key in self._lazy:
            described = self.describe(module)
            if record is None:
                record = self._made_before(described) or described
            else:
                described.calls = record.calls
                record = described
            self._records[key] = record
            (self._lazy.add if _has_lazy(torch, module) else self._lazy.discard)(key)
        elif record.inputs and inputs and [i.shape[1:] for i in inputs] != [i.shape[1:] for i in record.inputs]:
            vary = True
        record.calls += 1
        wider = grown(record.inputs, inputs)
        if wider:
            record.grown, record.grown_to = record.grown + 1, max(wider, record.grown_to)
        elif begun := columns(inputs):
            record.grown_from = min(begun, record.grown_from or begun)
        record.inputs = inputs or record.inputs
        record.tensor_first = tensor_first and record.tensor_first is not False
        record.training = bool(module.training)
        record.grad_enabled = torch.is_grad_enabled()
        record.inference_mode = torch.is_inference_mode_enabled()
        record.autocast = autocast_dtype(torch)
        return vary

    def _made_before(self, record: Model) -> Model | None:
        """The record of a module like it that was made at its place, and is no more: of the task or fold before."""
        same = ("cls", "parameters", "dtypes", "devices", "layers", "compiled", "channels_last", "checkpointing")
        for index, each in enumerate(self._gone):
            there = each.made is not None and each.made is record.made
            if there and all(getattr(each, name) == getattr(record, name) for name in same):
                return self._gone.pop(index)
        return None

    def ask_padding(self, module: Any, tensors: list[Any]) -> None:
        """How much of what it is given is padding, in its first calls."""
        record = self._records[id(module)]
        known = self._padding.setdefault(id(record), _Padding(record))
        if max(len(known.in_all), len(known.filled)) == _PADDED_CALLS:
            return
        known.calls += 1
        self._ask_filling(known, tensors)
        if ids := token_ids(self._torch, tensors):
            in_all = padding(self._torch, ids)
            known.in_all.append(in_all)
            known.in_each.append(unevenness(self._torch, ids) - in_all)
            known.filled_in.append(is_filled_in(self._torch, known.ids, ids[0]))
            known.ids = ids[0].detach().clone()
            record.width = ids[0].shape[1]
            known.widths.add(record.width)
            known.pads = known.pads or _knows_padding(self._torch, module, ids[0], tensors)

    def _ask_filling(self, known: _Padding, tensors: list[Any]) -> None:
        given = features(self._torch, tensors)
        if given is None:
            return
        shape, before = tuple(given.shape), known.features
        known.features = shape
        if dimension := lengthwise(shape, before):
            known.filled.append(filled(self._torch, given, dimension))
            known.lengths.add(shape[dimension])

    def compare_input(self, module: Any, tensors: list[Any]) -> None:
        """Is it called with the tensor of the call before, as Monte Carlo dropout does, and a benchmark?"""
        before = self._last_input.get(id(module))
        if tensors and before is not None and before() is tensors[0]:
            self._records[id(module)].repeats += 1
        self._last_input[id(module)] = weakref.ref(tensors[0]) if tensors else None

    def describe(self, module: Any) -> Model:
        """A record of what a module is made of."""
        torch = self._torch
        inner = getattr(module, "_orig_mod", module)
        record = Model(cls=type(inner).__name__)
        record.file, record.line = source_of(type(inner))
        forward = None
        with contextlib.suppress(Exception):  # of TorchScript's modules it is an object that has not even a name
            forward = type(inner).forward
            record.takes = [*inspect.signature(forward).parameters][1:]
        record.made = self.made(inner)
        record.compiled = inner is not module or getattr(module, "_compiled_call_impl", None) is not None
        parameters = [each for each in torch.nn.Module.parameters(module) if not torch.nn.parameter.is_lazy(each)]
        record.parameters = sum(parameter.numel() for parameter in parameters)
        record.parameter_bytes = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
        record.frozen = sum(parameter.numel() for parameter in parameters if not parameter.requires_grad)
        record.dtypes = sorted({str(parameter.dtype).removeprefix("torch.") for parameter in parameters})
        record.devices = sorted({str(parameter.device) for parameter in parameters})
        containers = (torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict)
        for child in inner.modules():
            name = type(child).__name__
            flags = (vars(child).get(flag) is True for flag in ("gradient_checkpointing", "grad_checkpointing"))
            record.checkpointing |= name == "CheckpointWrapper" or any(flags)
            fuses = getattr(type(child), "_supports_sdpa", None)
            if fuses is not None:
                capped = getattr(getattr(child, "config", None), "attn_logit_softcapping", None)
                record.fuses_attention = bool(fuses) and not capped and record.fuses_attention is not False
            if next(child.children(), None) is None:
                record.layers[name] = record.layers.get(name, 0) + 1
                if not _is_switched(torch, child):
                    record.unswitched[name] = record.unswitched.get(name, 0) + 1
            elif child is not inner and not isinstance(child, containers):
                record.blocks[name] = record.blocks.get(name, 0) + 1
        record.own = own_classes(inner.modules())
        module_of = forward.__module__ or "" if inspect.isfunction(forward) else ""
        record.compiles_in_place = not module_of.startswith("torch.nn.") or _wraps_library_calls(torch)
        # A number per channel has no order.
        weights = [each for each in parameters if each.dim() == 4 and each.numel() > each.shape[0]]
        if weights:
            record.channels_last = all(channels_innermost(weight) for weight in weights)
        return record

    def read_padding(self) -> None:
        """Have the records say how much padding their models were given; late, because reading waits for the device."""
        for known in self._padding.values():
            written = read_scalars(known.filled_in)
            if 2 * sum(written) >= len(written) > 0:
                continue  # an answer that is to come
            if values := read_scalars(known.in_all):
                known.record.padded = sum(values) / len(values)
            if values := read_scalars(known.in_each):
                uneven = sum(values) / len(values)
                if known.has_own_widths:
                    known.record.uneven = uneven
                elif len(known.widths) == 1 and 2 * len(values) > known.calls and known.pads:
                    known.record.short = uneven
            if known.has_own_lengths and (values := read_scalars(known.filled)):
                known.record.filled = sum(values) / len(values)


def _knows_padding(torch: Any, module: Any, ids: Any, tensors: list[Any]) -> bool:
    """Whether a model is given a mask beside its token ids, or looks a number up that is padding."""
    like = [each for each in tensors if each is not ids and each.shape == ids.shape]
    if any(each.dtype is torch.bool or (each.device.type == "cpu" and int(each.max()) <= 1) for each in like):
        return True  # of a mask of whole numbers a GPU would be waited for
    return any(isinstance(each, torch.nn.Embedding) and each.padding_idx is not None for each in module.modules())


def _wraps_library_calls(torch: Any) -> bool:
    """Whether ``compile()`` reaches a forward of ``torch.nn``'s own: 2.6 compiles nothing then, 2.15 does.

    By the text of what wraps modules: importing it takes a second.
    """
    path = os.path.join(os.path.dirname(torch.__file__), "_dynamo", "eval_frame.py")
    try:
        with open(path, "rb") as file:
            return b"_should_wrap_module_call_impl" in file.read()
    except OSError:
        return True


def _is_switched(torch: Any, layer: Any) -> bool:
    """Whether ``eval()`` has a norm use statistics that it has learned, or a dropout of torch's drop nothing.

    Of a dropout that somebody else has written nobody knows: there are such as drop in any mode.
    """
    if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm):
        return layer.running_mean is not None
    if "Dropout" not in type(layer).__name__:
        return True
    own = getattr(type(layer).forward, "__module__", "").startswith("torch.nn.")
    return own and isinstance(layer, torch.nn.modules.dropout._DropoutNd) and layer.p > 0


def _has_lazy(torch: Any, module: Any) -> bool:
    return any(map(torch.nn.parameter.is_lazy, torch.nn.Module.parameters(module)))


def autocast_dtype(torch: Any) -> str:
    """The autocast type in force on the accelerator or, failing that, on the CPU; "" when off."""
    for kind in ("cuda", "cpu"):
        try:
            if torch.is_autocast_enabled(kind):
                return str(torch.get_autocast_dtype(kind)).removeprefix("torch.")
        except (RuntimeError, TypeError):
            continue
    return ""


def channels_innermost(weight: Any) -> bool:
    """Whether a convolution takes this weight for channels-last.

    Kernels of one pixel, or of one channel, are contiguous in either order: their strides tell, as they do torch
    (``is_channels_last_strides_2d`` in c10/core/MemoryFormat.h).
    """
    least = 0
    for dimension in (1, 3, 2, 0):
        size, stride = weight.shape[dimension], weight.stride(dimension)
        if size == 0 or stride < least or (dimension == 0 and least == weight.stride(1)):
            return False
        least = stride * max(1, size)
    return True
