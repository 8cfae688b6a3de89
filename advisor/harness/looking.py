"""When the harness may compute with the script's tensors: nobody must take down what it does, or meet what it makes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from types import FunctionType
from typing import Any


def is_taken_down(torch: Any) -> bool:
    """Whether somebody takes down what is computed now: a tracer, a mode that sees every operator, a CUDA graph.

    TorchScript's tracer, and what works by ``__torch_dispatch__`` (fake tensors, ``make_fx``, ``FlopCounterMode``):
    even to ask for a shape may put a guard into what they make.
    """
    if _asked(torch._C, "_get_tracing_state") is not None or _asked(torch._C, "_len_torch_dispatch_stack"):
        return True
    return is_capturing(torch)


def is_capturing(torch: Any) -> bool:
    """Whether the device's work is taken down into a CUDA graph now, not done: to wait for it, or to ask for memory,
    ends that with an error, and a kernel of ours would be run whenever the graph is.
    """
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


def is_transformed(torch: Any) -> bool:
    """Whether a transform of ``torch.func`` runs (``vmap``, ``grad``): it shows its function parts of what it got."""
    return _asked(getattr(torch._C, "_functorch", None), "peek_interpreter_stack") is not None


def unseen(torch: Any) -> contextlib.AbstractContextManager[None]:
    """In which no mode and no user's own kind of tensor (``__torch_function__``) is told of what we do: what a script
    has put around torch's functions would count ours.
    """
    disabled: contextlib.AbstractContextManager[None] = torch._C.DisableTorchFunction()
    return disabled


def may_compute(torch: Any, tensor: Any) -> bool:
    """Whether `tensor` has values of its own that can be computed with, unseen: a plain one, in no transform of
    ``torch.func`` (which wraps what is computed, and forbids to keep it), in no tracer, in no CUDA graph.
    """
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.is_nested or tensor.layout is not torch.strided:
        return False
    return not (tensor.is_meta or is_taken_down(torch) or is_transformed(torch))


def times_written(tensor: Any) -> int:
    """How often a tensor has been written to; -1 for what nobody counts: one of inference mode, an array."""
    with contextlib.suppress(RuntimeError, AttributeError):
        return int(tensor._version)
    return -1


def stored_values(torch: Any, tensor: Any) -> Any:
    """What stands in a plain sparse matrix, of COO or CSR; any other tensor itself."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or is_transformed(torch) or is_taken_down(torch):
        return tensor
    if tensor.layout is torch.sparse_coo:
        return tensor.detach()._values()
    return tensor.detach().values() if tensor.layout in (torch.sparse_csr, torch.sparse_csc) else tensor


def stored_at(torch: Any, tensor: Any) -> Any:
    """Where the values of a plain sparse matrix stand: COO's indices, or those of CSR's columns (CSC's rows)."""
    if tensor.layout is torch.sparse_coo:
        return tensor.detach()._indices().flatten()
    return tensor.detach().col_indices() if tensor.layout is torch.sparse_csr else tensor.detach().row_indices()


def is_replaced(torch: Any) -> bool:
    """Whether functions of somebody else's stand for methods of tensors: while a mode is on, each is called twice.

    For the method that it calls hands itself to the mode by its name, under which the mode finds that function again.
    """
    own = tuple(os.path.join(os.path.dirname(path), "") for path in (torch.__file__, __file__))  # not torchvision's
    methods = (each for each in vars(torch.Tensor).values() if isinstance(each, FunctionType))
    return not all(each.__code__.co_filename.startswith(own) for each in methods)


def each_tensor(value: Any, tensor: type, depth: int = 0) -> Iterator[Any]:
    """The tensors of a value that is made of tuples, lists and dicts, depth first."""
    if isinstance(value, tensor):
        yield value
    elif isinstance(value, (tuple, list)) and depth < 6:
        for each in value:
            yield from each_tensor(each, tensor, depth + 1)
    elif isinstance(value, dict) and depth < 6:
        for each in value.values():
            yield from each_tensor(each, tensor, depth + 1)
    elif isinstance(value, slice):
        yield from each_tensor((value.start, value.stop, value.step), tensor, depth + 1)


def function_modes(torch: Any) -> list[Any]:
    """The modes that see torch's functions in this thread (``TorchFunctionMode``), the innermost last."""
    return list(_asked(torch.overrides, "_get_current_function_mode_stack") or ())


def _asked(module: Any, name: str) -> Any:
    """What a function of torch's without documentation says; None in a version that lacks it."""
    function = getattr(module, name, None)
    return function() if function is not None else None


def storage_key(tensor: Any) -> int:
    """Which storage it is; raises for a tensor that has none, and for one that wraps others."""
    if hasattr(type(tensor), "__tensor_flatten__"):
        raise TypeError("a tensor that wraps others")
    return int(tensor.untyped_storage()._cdata)


def weak_storage(tensor: Any) -> Any:
    """Tells whether its storage still exists; as long as it is held, no other storage has the same identity."""
    from torch.multiprocessing.reductions import StorageWeakRef

    holder: Any = StorageWeakRef
    return holder(tensor.untyped_storage())
