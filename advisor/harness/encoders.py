"""``nn.TransformerEncoder`` where it is called: how much of its input is padding, and what keeps it from skipping it.

In inference the encoder drops the padded tokens and runs each layer as one fused operator, if it was made and is called
in a way that allows it (torch/nn/modules/transformer.py, ``TransformerEncoder.forward``). In place in the profile and
detail windows of scripts that compile nothing: a wrapper around a traced forward would have it compiled anew.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from .layout import ENCODER_RANGE, Encoder, Site
from .looking import may_compute
from .patches import Patch
from .places import maker_site


class Encoders:
    """The encoders that were called, by identity."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch: Any = torch
        self._layers: dict[int, Site] = {}  # id of a layer → where it was made
        self._made: dict[int, tuple[Site | None, Site | None]] = {}  # id of an encoder → its own place, its layer's
        self._seen: dict[int, Encoder] = {}
        self._masked: dict[int, Any] = {}  # share of masked tokens, on its device
        self._aligned: dict[int, Any] = {}
        self._detail = False
        nn: Any = self._torch.nn
        self._births = [
            Patch(nn.TransformerEncoderLayer, "__init__", self._layer_made),
            Patch(nn.TransformerEncoder, "__init__", self._encoder_made),
        ]
        self._call = Patch(nn.TransformerEncoder, "forward", self._called)

    def install(self) -> None:
        """See where encoders are made."""
        for patch in self._births:
            patch.on()

    def on(self, compiled: bool, detail: bool) -> None:
        """A profiled window begins; the padding is read in the detail window only."""
        self._detail = detail
        if not compiled:
            self._call.on()

    def off(self) -> None:
        """The timing window begins, or another one: nothing of ours is in the way."""
        for patch in (*self._births, self._call):
            patch.off()

    def records(self) -> list[Encoder]:
        """What was seen; read late, because reading waits for the device."""
        for key, encoder in self._seen.items():
            if key in self._masked:
                encoder.padding = float(self._masked[key])
                encoder.left_aligned = bool(self._aligned[key])
        return list(self._seen.values())

    def _layer_made(self, original: Any) -> Any:
        def init(layer: Any, *args: Any, **kwargs: Any) -> None:
            site = maker_site(layer)
            if site is not None:
                self._layers[id(layer)] = site
            original(layer, *args, **kwargs)

        return init

    def _encoder_made(self, original: Any) -> Any:
        def init(encoder: Any, *args: Any, **kwargs: Any) -> None:
            layer = args[0] if args else kwargs.get("encoder_layer")
            self._made[id(encoder)] = maker_site(encoder), self._layers.get(id(layer))
            original(encoder, *args, **kwargs)

        return init

    def _called(self, original: Any) -> Any:
        compiling, record_function = self._torch.compiler.is_compiling, self._torch.autograd.profiler.record_function

        def forward(encoder: Any, src: Any, mask: Any = None, src_key_padding_mask: Any = None, *args: Any,
                    **kwargs: Any) -> Any:  # fmt: skip
            if compiling():
                return original(encoder, src, mask, src_key_padding_mask, *args, **kwargs)
            with record_function(ENCODER_RANGE):
                result = original(encoder, src, mask, src_key_padding_mask, *args, **kwargs)
            try:
                self._observe(encoder, src, mask, src_key_padding_mask)
            except (AttributeError, RuntimeError, TypeError, IndexError):
                return result  # an encoder put together in another way: what is not known is not recorded
            return result

        return forward

    def _observe(self, encoder: Any, src: Any, mask: Any, padding: Any) -> None:
        torch, layer = self._torch, encoder.layers[0]
        key = id(encoder)
        record = self._seen.get(key)
        if record is None:
            site, layer_site = self._made.get(key, (None, None))
            record = self._seen[key] = Encoder(site=site, layer_site=layer_site, layers=len(encoder.layers))
        record.calls += 1
        record.width, record.feedforward = int(layer.self_attn.embed_dim), int(layer.linear1.out_features)
        first = bool(layer.self_attn.batch_first)
        record.length = int(src.shape[1 if first else 0])
        record.sequences = int(src.shape[0 if first else 1]) if src.dim() == 3 else 1
        record.obstacles = _obstacles(torch, encoder, layer)
        attributes = {
            "training mode": encoder.training,
            "autograd": torch.is_grad_enabled() and any(weight.requires_grad for weight in layer.parameters()),
            "an attention mask": mask is not None,
            "autocast": any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")),
            "no batch": src.dim() != 3,
            "no padding mask": padding is None,
        }
        record.calls_with = [name for name, there in attributes.items() if there]
        if self._detail and padding is not None and key not in self._masked and may_compute(torch, padding):
            masked = padding if padding.dtype == torch.bool else padding != 0
            self._masked[key] = masked.float().mean()
            # Padding behind the tokens: once masked, masked to the end.
            self._aligned[key] = (masked[:, 1:] >= masked[:, :-1]).all()


def _obstacles(torch: Any, encoder: Any, layer: Any) -> list[str]:
    """What in the way the encoder was made rules the fast path out, by the names of its arguments."""
    if type(encoder) is not torch.nn.TransformerEncoder or type(layer) is not torch.nn.TransformerEncoderLayer:
        return ["class"]
    found = {
        "norm_first": layer.norm_first,
        "batch_first": not layer.self_attn.batch_first,
        "activation": not layer.activation_relu_or_gelu,
        "nhead": layer.self_attn.num_heads % 2 == 1,
        "bias": layer.self_attn.in_proj_bias is None,
        "layer_norm_eps": layer.norm1.eps != layer.norm2.eps,
        "enable_nested_tensor": not encoder.enable_nested_tensor,
    }
    return [name for name, there in found.items() if there]
