"""Whether code takes derivatives of derivatives, or forward derivatives, which fused and compiled code may not have."""

from __future__ import annotations

import re

# torch.autograd's and torch.func's names for it. Fused attention raises "derivative for
# aten::_scaled_dot_product_flash_attention_backward is not implemented", and a compiled function "torch.compile with
# aot_autograd does not currently support double backward".
_TWICE = re.compile(r"create_graph\s*=\s*True|\b(jvp|hvp|vhp|hessian|jacfwd|jacrev|forward_ad)\b")


def differentiates_twice(text: str) -> bool:
    """Whether the text of a file asks for second derivatives, or for forward ones."""
    return bool(_TWICE.search(text))
