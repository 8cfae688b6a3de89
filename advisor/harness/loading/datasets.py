"""What dataset a loader's samples come from, below those that choose from others or put them together."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from ..layout import Loader, Site
from ..layout.loading import LONG_LIST
from ..places import source_of

_DEEPEST = 8  # of datasets that hold one another


def describe_source(torch: Any, record: Loader, dataset: Any, sampler: Any = None) -> None:
    """Into `record`: the class that makes the samples, and which of its attributes have a row in memory for each.

    `sampler` is the loader's, where it has one: its indices may be the elements of a tensor as a Subset's may.
    """
    data, joined = torch.utils.data, False
    chosen = (sampler, getattr(sampler, "indices", None))
    record.chosen_by_tensor |= any(isinstance(each, torch.Tensor) for each in chosen)
    while True:
        if type(dataset) is data.Subset:
            record.chosen_by_tensor |= isinstance(dataset.indices, torch.Tensor)
            dataset = dataset.dataset
        elif type(dataset) is data.ConcatDataset and len({type(each) for each in dataset.datasets}) == 1:
            joined = True  # of a single one as well: it looks for the part by comparing the index, and takes no list
            dataset = dataset.datasets[0]
        else:
            break
    kind = type(dataset)
    record.source = f"{kind.__module__}.{kind.__qualname__}"
    file, line = source_of(kind)
    if file:
        record.source_site = Site(file, line)
    within = _innermost(data, dataset)
    record.wraps = f"{type(within).__module__}.{type(within).__qualname__}" if within is not dataset else ""
    record.lists = _long_lists(dataset)
    if joined:
        return
    with contextlib.suppress(TypeError, NotImplementedError, ValueError):
        length = len(dataset)
        held = {name: value for name, value in vars(dataset).items() if _has_rows(torch, value, length)}
        tensors = getattr(dataset, "tensors", None)
        if getattr(kind, "__getitem__", None) is data.TensorDataset.__getitem__ and isinstance(tensors, tuple):
            held = {"tensors": tensors} if all(_has_rows(torch, each, length) for each in tensors) else {}
        record.rows = [] if hasattr(kind, "__getitems__") else sorted(held)


def _long_lists(dataset: Any) -> dict[str, int]:
    """The lists of words or numbers that a dataset holds, or its module, by what its methods call them."""
    held = ((f"self.{name}", value) for name, value in getattr(dataset, "__dict__", {}).items())
    module = list(vars(sys.modules.get(type(dataset).__module__, object)).items())
    found = {}
    for name, value in (*held, *module):
        if type(value) in (list, tuple) and len(value) >= LONG_LIST and type(value[0]) in (str, int):
            found[name] = len(value)
    return found


def _innermost(data: Any, dataset: Any) -> Any:
    """What a dataset takes its samples from that holds another one, and only that; else itself."""
    for _ in range(_DEEPEST):
        held = [each for each in getattr(dataset, "__dict__", {}).values() if isinstance(each, data.Dataset)]
        if len(held) != 1:
            break
        (dataset,) = held
    return dataset


def _has_rows(torch: Any, value: Any, length: int) -> bool:
    """Whether it is a plain tensor or array on the CPU, a row for each sample."""
    if type(value) is torch.Tensor:
        plain = value.layout is torch.strided and value.device.type == "cpu" and not value.requires_grad
        return plain and value.dim() > 0 and value.shape[0] == length
    numpy = sys.modules.get("numpy")
    if numpy is None or type(value) is not numpy.ndarray:  # what is mapped from a file is of a class of its own
        return False
    # Of a single number older versions make another type than of an array, when it is multiplied.
    least = 1 if int(numpy.__version__.partition(".")[0]) >= 2 else 2
    return value.ndim >= least and value.shape[0] == length and value.dtype.kind in "biuf"
