"""What a script's text says of gradients of weights: not of those of its inputs, which it asks for by name."""

from __future__ import annotations

import re
from collections.abc import Callable

# ``torch.autograd.grad`` makes gradients of its own, and reads none.
# Lightning's grad_norm, and what watches a model for a log, read them all.
_READS = re.compile(r"(?<!autograd)\.grad\b|\bgrad_norm\(|\.watch\(|track_grad_norm")
_NAME = r"(?:self\.)?[A-Za-z_]\w*"
# x.requires_grad = True, x.requires_grad_(), x = start.clone().requires_grad_(), x = torch.zeros(3, requires_grad=True)
_WANTED = re.compile(
    rf"^[ \t]*({_NAME})\.(?:requires_grad *= *True|(?:requires_grad_|retain_grad)\((?:True)?\))|"
    rf"^[ \t]*({_NAME}) *= *(?![^\n]*\bParameter\()[^\n]*(?:\.requires_grad_\((?:True)?\)|\brequires_grad *= *True\b)",
    re.MULTILINE,
)
_ITEM = re.compile(r"\bfor +(?:\w+ *, *)*(\w+)(?: *, *\w+)* +in\b")  # of a loop: one of many, weights maybe
_WEIGHT = re.compile(r"param|weight|^(?:self\.)?[pw]$", re.IGNORECASE)


def reads_gradients(text: str) -> bool:
    """Whether a script reads gradients of its weights, or may."""
    return _READS.search(without_inputs(text)) is not None


def without_inputs(text: str) -> str:
    """The text without what it says of the gradients of tensors that are no weights: what an attack changes, an image.

    Those are the names that it has say so themselves, and whose gradients it reads, of what no loop hands out one by
    one, and what is never called, as a model is. It has as many lines.
    """
    wanted = {name for found in _WANTED.findall(text) for name in found if name} - set(_ITEM.findall(text))
    for name in sorted(filter(_is_input(text), wanted), key=len, reverse=True):
        told, by_call, by_argument = re.escape(name), r"\.requires_grad_\((?:True)?\)", r"\brequires_grad *= *True\b"
        text = re.sub(rf"(?<![\w.]){told}\.(?:data\.)?(?:grad|requires_grad_?|retain_grad)\b", name, text)
        text = re.sub(rf"^([ \t]*{told} *= *[^\n]*?)(?:{by_call}|{by_argument})", r"\1", text, flags=re.MULTILINE)
    return text


def _is_input(text: str) -> Callable[[str], bool]:
    def answer(name: str) -> bool:
        told = rf"(?<![\w.]){re.escape(name)}"
        read = re.search(rf"{told}\.(?:data\.)?grad\b", text) is not None
        called = re.search(rf"{told}(?:\.(?:named_)?parameters)?\(", text) is not None
        return read and not called and not _WEIGHT.search(name)

    return answer
