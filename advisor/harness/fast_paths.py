"""Torch's encoders in evaluation, while a mode of ours sees torch's functions.

They leave their fast path, fused layers that skip padding, as soon as any mode is on (torch/nn/modules/transformer.py
and activation.py, ``has_torch_function``): to be watched would change what a script computes, and how long it takes.
So our modes are told of each such call from outside, as if it were one of torch's functions, and are off while it runs.
"""

from __future__ import annotations

from typing import Any

from .looking import each_tensor, function_modes
from .patches import Patch

HELD = "held"  # by which a mode is given the tensors that the module has, and …
HOOKED = "hooked"  # … one of its parts that hooks of the script's hang on, which may read anything


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
            if compiling():
                return original(module, *args, **kwargs)
            takes = getattr(next(reversed(function_modes(torch)), None), "takes_encoders", "")
            if not takes or not _may_be_fused(torch, module):
                return original(module, *args, **kwargs)
            more = _held(torch, module) if takes == "with weights" else {}

            def encoder(*given: Any, **named: Any) -> Any:
                """Without the mode that was told: there may be another one of ours below it."""
                return forward(module, *given, **{name: each for name, each in named.items() if name not in more})

            return torch.overrides.handle_torch_function(encoder, (), *args, **kwargs, **more)

        return forward


def _may_be_fused(torch: Any, module: Any) -> bool:
    """Whether a call may take the fast path, as far as its module tells: nothing is trained."""
    if module.training:
        return False
    return not (torch.is_grad_enabled() and any(each.requires_grad for each in module.parameters()))


def _held(torch: Any, module: Any) -> dict[str, Any]:
    """What a call reads besides its arguments."""
    parts = list(module.modules())
    hooked = [each for each in parts if each is not module and (each._forward_hooks or each._forward_pre_hooks)]
    held = [tensor for each in parts for tensor in each_tensor(vars(each), torch.Tensor)]
    return {HELD: held} | ({HOOKED: hooked[0]} if hooked else {})
