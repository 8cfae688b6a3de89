"""Places in the user's source, and what the script does there that a fix could change."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Site:
    """A call in the user's own source. Lines count from 1; columns are UTF-8 byte offsets from 0, as in `ast`.

    Columns are None before Python 3.11. ``end_line``/``end_column`` end the call expression.
    """

    file: str = ""
    line: int = 0
    column: int | None = None
    end_line: int | None = None
    end_column: int | None = None
    function: str = ""


@dataclass
class CallSite:
    """Calls of one kind made from one place.

    ``kind`` is one of: ``DataLoader``, ``Optimizer``, ``Optimizer.step``, ``zero_grad``, ``backward``,
    ``Module.to``, ``Module.cuda``, ``Module.half``, ``Module.eval``, ``Module.train``, ``Module.compile``,
    ``Module.call`` (a root module's forward; ``details``: "module", its class, "grad", whether gradients are on,
    "shape" of the first tensor that its last call was given), ``Tensor.to``, ``Tensor.cuda``, ``Tensor.cpu``,
    ``Tensor.item``, ``Tensor.numpy``, ``Tensor.tolist``, ``Tensor.print``, ``autocast``, ``GradScaler``,
    ``GradScaler.scale``, ``torch.compile``, ``DataParallel``, ``DistributedDataParallel``, ``debug_mode``,
    ``synchronize``, ``empty_cache``, ``gc.collect``, ``dynamo.reset`` (``torch.compiler.reset``, too),
    ``Module.double``, ``Tensor.double``, ``float64`` (a tensor of several float64 values made by
    ``torch.from_numpy``, ``tensor``, ``as_tensor``; ``details``: "others", the same call makes tensors of other types,
    too), ``default_dtype``, ``set_num_threads`` (``details``: "threads"),
    ``from_list`` (a tensor of many values that ``torch.tensor`` or ``as_tensor`` makes of a list; figures per step from
    before the timing window; ``details``: "given", ``arrays`` or ``numbers``, "dtype" and "device" of the tensor,
    "numbers" per step, "loader", the index of that whose batch it was made for, -1 for none, and "others", the same
    call got, or made, something else, too).

    ``evaluation``: the line of the loop over steps from which an evaluation is reached (a module is put into
    evaluation mode, or a loader that does not feed the steps gives a batch). ``debug_mode`` of ``details["mode"]``
    "profiler": the script's own, on from before the steps; ``details["timed"]``: it was on in the timing window, too.

    ``blocking``: a line of the loop over steps from which something outside of the process is waited for; ``details``:
    "seconds", in all, by what waits where. ``Tensor.index``: ``x[i]`` with a number, mask or rows, or (``details``:
    "iterates", "rows" of x) ``for row in x``, seen in the detail window only. ``Tensor.part``, likewise: ``x[:, i]``,
    or ``x[:, i] = y``, that a graph is recorded of, on a line of the script's own (``details``: "dim", which dimension
    the first number takes one of, "keys", how many the index has, "mixed", one of these was another before; added up
    over all calls "size" of that dimension, and "numbers" in the index; "written", something is written there, "fits",
    that has the part's shape and is another tensor each time).
    ``sized``: a call whose result has a size that depends on values (``details``: "operator": ``mask`` for ``x[mask]``,
    ``nonzero``, ``unique`` …; "device"), seen in the detail window only. ``cross_entropy``, likewise (``details``: how
    many "classes" it has, "ignored", the mean share of the labels that it ignores, "own", the script itself calls it).

    ``details["inside"]`` of what reads a tensor's value, or moves it: the module that does, where it is none of the
    script's.

    And where a framework is told its settings (:mod:`..frameworks`): ``TrainingArguments``, ``Trainer``,
    ``Trainer.fit``, ``Fabric``, ``Accelerator``.
    """

    kind: str = ""
    site: Site = field(default_factory=Site)
    calls: int = 0  # in the whole run, timing window aside (there the wrappers are off)
    # In the profile and detail windows. Of values read from tensors on the CPU a training's first 2000 are counted.
    calls_per_step: float = 0.0
    seconds_per_step: float = 0.0  # host time inside the call, in the profile window
    details: dict[str, Any] = field(default_factory=dict)
    # Of Module.call: the user's frames around its first call in the profiled windows, from the inside out, as far as
    # they were kept.
    called_from: list[Site] = field(default_factory=list)
