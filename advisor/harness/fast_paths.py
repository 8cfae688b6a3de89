"""Torch's encoders in evaluation, while a mode of ours sees torch's functions.

They leave their fast path, fused layers that skip padding, as soon as any mode is on (torch/nn/modules/transformer.py
and activation.py, ``has_torch_function``): to be watched would change what a script computes, and how long it takes.
So our modes are told of each such call from outside, as if it were one of torch's functions, and are off while it runs.
"""

from __future__ import annotations

import contextlib
from typing import Any

from .looking import each_tensor, function_modes
from .patches import Patch

HELD = "held"  # by which a mode is given the tensors that the module has, and …
HOOKED = "hooked"  # … one of its parts that is the script's own, or has hooks of the script's: they may read anything


class FastPaths:
    """Lets encoders keep it while it is on.

    Of a mode's class the attribute ``takes_encoders`` says that it is ours: "whole", or "with weights", for which the
    call has the arguments HELD and HOOKED besides its own. They must be on for as long as such a mode is.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        kinds = torch.nn.MultiheadAttention, torch.nn.TransformerEncoderLayer, torch.nn.TransformerEncoder
        self._patches = [Patch(each, "forward", self._whole) for each in kinds]

    def on(self) -> None:
        for each in self._patches:
            each.on()

    def off(self) -> None:
        for each in self._patches:
            each.off()

    def _whole(self, original: Any) -> Any:
        torch, compiling = self._torch, self._torch.compiler.is_compiling

        def forward(module: Any, *args: Any, **kwargs: Any) -> Any:
            more: dict[str, Any] | None = None
            with contextlib.suppress(Exception):  # what fails here does not fail in the script
                more = None if compiling() else _told(torch, module)
            if more is None:
                return original(module, *args, **kwargs)

            def encoder(*given: Any, **named: Any) -> Any:
                """Without the mode that was told: there may be another one of ours below it."""
                return forward(module, *given, **{name: each for name, each in named.items() if name not in more})

            return torch.overrides.handle_torch_function(encoder, (), *args, **kwargs, **more)

        return forward


def _told(torch: Any, module: Any) -> dict[str, Any] | None:
    """What the mode that would see the call is told besides its arguments; None where it is to see what is in it.

    That is no mode of ours, or it is off; or the layer takes no fast path anyway, for it is trained.
    """
    takes = getattr(next(reversed(function_modes(torch)), None), "takes_encoders", "")
    if not takes or not torch.overrides._is_torch_function_mode_enabled():
        return None
    if module.training or (torch.is_grad_enabled() and _is_trained(module)):
        return None
    return _held(torch, module) if takes == "with weights" else {}


def _is_trained(module: Any) -> bool:
    """Whether one of the weights needs gradients that torch asks for before it takes the fast path."""
    layer = next(iter(getattr(module, "layers", ())), module)
    attention = getattr(layer, "self_attn", layer)
    parts = [attention, getattr(attention, "out_proj", None)]
    parts += [getattr(layer, name, None) for name in ("linear1", "linear2", "norm1", "norm2")]
    names = ("in_proj_weight", "in_proj_bias", "weight", "bias")
    return any(getattr(getattr(part, name, None), "requires_grad", False) for part in parts for name in names)


def _held(torch: Any, module: Any) -> dict[str, Any]:
    """What a call reads besides its arguments."""
    parts = list(module.modules())
    hooked = [each for each in parts if each is not module and (each._forward_hooks or each._forward_pre_hooks)]
    hooked += [each for each in parts if not type(each).__module__.startswith("torch.nn.")]
    held = [tensor for each in parts for tensor in each_tensor(vars(each), torch.Tensor)]
    return {HELD: held} | ({HOOKED: hooked[0]} if hooked else {})
