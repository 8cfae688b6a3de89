"""What a script's text says of gradients of weights: not of those of its inputs, which it asks for by name."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator

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
_ITEM = re.compile(r"\bfor +([\w, ()]+?) +in\b([^\n]*)")  # of a loop: one of many, weights maybe, if not …
_BATCHES = re.compile(r"load|data|batch|image|stream", re.IGNORECASE)  # … a batch
_OF_WEIGHTS = re.compile(r"param|weight|modules|state_dict", re.IGNORECASE)
_WEIGHT = re.compile(r"param|weight|kernel|bias|theta|^(?:self\.)?[pwW]\d*$", re.IGNORECASE)
_Lines = list[tuple[int, int]]
"""From the first line to the last, by their numbers."""


def mentions_gradients(text: str) -> bool:
    """Whether a script reads gradients, of whatever."""
    return _READS.search(text) is not None


def reads_gradients(text: str) -> bool:
    """Whether a script reads gradients of its weights, or may."""
    return _READS.search(without_inputs(text)) is not None


def without_lines(text: str, numbers: Collection[int]) -> str:
    """The text without the lines of these numbers, counted from 1; as many lines."""
    return "\n".join("" if number in numbers else line for number, line in enumerate(text.split("\n"), 1))


def asks_for_inputs(text: str) -> bool:
    """Whether a script reads the gradients of what it has itself require some, and what is no weight."""
    return without_inputs(text) != text


def beside_optimizers(text: str) -> str:
    """The text without the optimizers' classes in it, which read gradients where one is made of them; as many lines."""
    lines = text.split("\n")
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return text
    for each in ast.walk(tree):
        if isinstance(each, ast.ClassDef) and any("Optimizer" in ast.unparse(base) for base in each.bases):
            last = each.end_lineno or each.lineno
            lines[each.lineno - 1 : last] = [""] * (last - each.lineno + 1)
    return "\n".join(lines)


def without_inputs(text: str) -> str:
    """The text without what it says of the gradients of tensors that are no weights: what an attack changes, an image.

    Those are the names that a function says so of, and whose gradients it reads (an attribute of ``self``: the file),
    where no loop but one over batches hands them out one by one and no lambda takes them, they are never called, as a
    model is, nor made of weights. It has as many lines.
    """
    lines = text.split("\n")
    for own in _functions(text, len(lines)):
        numbers = [number for first, last in own for number in range(first, last)]
        said = _without([lines[number] for number in numbers], lambda name: not name.startswith("self."))
        for number, line in zip(numbers, said, strict=True):
            lines[number] = line
    return "\n".join(_without(lines, lambda name: name.startswith("self.")))


def _functions(text: str, count: int) -> Iterator[_Lines]:
    """The lines of each function, inner ones aside, and those of none."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    spans = [(each.lineno - 1, each.end_lineno or each.lineno) for each in ast.walk(tree) if isinstance(each, kinds)]
    for first, last in [*sorted(spans), (0, count)]:
        inner = sorted(span for span in spans if first <= span[0] and span[1] <= last and span != (first, last))
        own: _Lines = []
        for begin, end in inner:
            if begin >= first:
                own.append((first, begin))
                first = max(first, end)
        yield [*own, (first, last)]


def _without(lines: list[str], chosen: Callable[[str], bool]) -> list[str]:
    text = "\n".join(lines)
    items = {
        name
        for targets, over in _ITEM.findall(text)
        if _OF_WEIGHTS.search(over) or not _BATCHES.search(over)
        for name in re.findall(r"\w+", targets)
    }
    wanted = {name for found in _WANTED.findall(text) for name in found if name} - items
    for name in sorted((each for each in wanted if chosen(each) and _is_input(each, text)), key=len, reverse=True):
        told, by_call, by_argument = re.escape(name), r"\.requires_grad_\((?:True)?\)", r"\brequires_grad *= *True\b"
        text = re.sub(rf"(?<![\w.]){told}\.(?:data\.)?(?:grad|requires_grad_?|retain_grad)\b", name, text)
        text = re.sub(rf"^([ \t]*{told} *= *[^\n]*?)(?:{by_call}|{by_argument})", r"\1", text, flags=re.MULTILINE)
    return text.split("\n")


def _is_input(name: str, text: str) -> bool:
    told = rf"(?<![\w.]){re.escape(name)}"
    read = re.search(rf"{told}\.(?:data\.)?grad\b", text) is not None
    called = re.search(rf"{told}(?:\.(?:named_)?parameters)?\(", text) is not None
    of_weights = re.search(rf"{told} *= *[^\n]*(?:\.weight\b|\.bias\b|parameters\()", text) is not None
    taken = re.search(rf"\blambda\b[^:\n]*\b{re.escape(name)}\b[^:\n]*:", text) is not None
    return read and not (called or of_weights or taken or _WEIGHT.search(name))
