"""Whether the rounds of a loop call a module that remembers: a neuron's potential, the state of a cell."""

from __future__ import annotations

import ast
import builtins
import functools
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from advisor.evidence.bindings import last_name
from advisor.evidence.python_loops.called_from import assigns, keeps_state
from advisor.evidence.python_loops.rounds import Loop, loops_at
from advisor.harness.layout import Site

if TYPE_CHECKING:
    from advisor.harness.layout import RunRecord

# Libraries of spiking neurons, which by default, or where they are told to, keep their potential from call to call.
_SPIKES = re.compile(r"^\s*(from|import) (snntorch|spikingjelly|norse|sinabs|bindsnet|lava|slayer\w*)\b", re.M)


def remembers(record: RunRecord, site: Site, text_of: Callable[[str], str]) -> bool:
    """Whether the loop at `site` calls an object, and may call a module whose next call needs what this one computed.

    By the text of the script's own modules: their forwards assign attributes. The class that the loop is written in
    aside: what that assigns in the loop anybody sees. So does a method that the loop calls on its own object, and that
    keeps something, in the loop's class or one that inherits from it or the other way round, in whatever file.
    `text_of` gives a file's text, "" where there is none.
    """
    text = text_of(site.file)
    if _inherited(record, site, text, text_of):
        return True
    if not any(_calls_an_object(text, loop) for loop in loops_at(text, site.line)):
        return False
    own = {pair for model in record.models for pair in model.own.items()}
    if any(_SPIKES.search(text_of(path)) for path in {site.file, *(path for _, path in own)}):
        return True
    holder = _class_around(text, site.line)
    return any(keeps_state(text_of(path), cls) for cls, path in own if (path, cls) != (site.file, holder))


def _inherited(record: RunRecord, site: Site, text: str, text_of: Callable[[str], str]) -> bool:
    """Whether a method that the loop calls on its own object keeps something there, in a class of its family."""
    calls = (node for loop in loops_at(text, site.line) for node in ast.walk(loop) if isinstance(node, ast.Call))
    asked = {
        each.func.attr
        for each in calls
        if isinstance(each.func, ast.Attribute)
        and isinstance(each.func.value, ast.Name)
        and each.func.value.id == "self"
    }
    holder = _class_around(text, site.line) if asked else ""
    if not holder:
        return False
    classes = [each for path in sorted({site.file, *record.modules}) for each in _classes(text_of(path))]
    bases = {each.name: {last_name(base) for base in each.bases} for each in classes}
    related, before = {holder}, 0
    while len(related) > before:  # up and down
        before = len(related)
        related |= {name for name, those in bases.items() if those & related}
        related |= {base for name in related for base in bases.get(name, ()) if base in bases}
    return any(
        assigns(method)
        for each in classes
        if each.name in related
        for method in each.body
        if isinstance(method, ast.FunctionDef) and method.name in asked
    )


@functools.lru_cache(maxsize=64)
def _classes(text: str) -> list[ast.ClassDef]:
    try:
        return [each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.ClassDef)]
    except (SyntaxError, ValueError):
        return []


def _calls_an_object(text: str, loop: Loop) -> bool:
    """Whether a round calls ``self.neuron(x)``, or by its name what is no function of the file, builtin or class."""
    functions = {each.name for each in ast.walk(ast.parse(text)) if isinstance(each, (ast.FunctionDef, ast.ClassDef))}
    for node in ast.walk(loop):
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id == "self":
            if called.attr not in functions:
                return True
        elif isinstance(called, ast.Name) and called.id not in functions and not hasattr(builtins, called.id):
            return True
    return False


def _class_around(text: str, line: int) -> str:
    """The name of the innermost class around a line; "" for none."""
    inside = [each for each in _classes(text) if each.lineno <= line <= (each.end_lineno or 0)]
    return max(inside, key=lambda each: each.lineno).name if inside else ""
