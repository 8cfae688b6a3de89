"""What looks at gradients where steps end: asked step by step until it knows, with hooks only while it needs them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..layout import Site

MOST_PARTS = 20  # of a model are named


class GradientWatch:
    """Asks :meth:`_first` when the first step ends, and at each later end what that has put in its place."""

    def __init__(self, roots: Callable[[], Iterable[Any]], made: Callable[[Any], Site | None]) -> None:
        """`roots` are the models, `made` says where a module was made."""
        self._roots, self._made = roots, made
        self._handles: list[Any] = []
        self._given_up = False
        self.start()

    def start(self) -> None:
        """What there is to see is not known yet, or not any more: another training begins."""
        self._hooks_off()
        self._ask: Callable[[], Any] = _nothing if self._given_up else self._first
        self._clear()

    def step_ended(self) -> None:
        """What fails here does not fail in the script: then nothing is known."""
        try:
            self._ask()
        except Exception:
            self.stop()

    def stop(self) -> None:
        """Look no more; what is known stays."""
        self._hooks_off()
        self._ask = _nothing

    def give_up(self) -> None:
        """Never look again: what is compiled would be compiled anew for parameters with hooks."""
        self._given_up = True
        self.stop()

    def _clear(self) -> None:
        """Forget what was seen, and what is known."""
        raise NotImplementedError

    def _first(self) -> None:
        raise NotImplementedError

    def _parameters(self, frozen: bool = False) -> Iterator[Any]:
        """The models' parameters that get gradients, each once; with `frozen` those that get none now as well."""
        seen = set[int]()
        for root in self._roots():
            for each in weights_of(root):
                if (each.requires_grad or frozen) and each.is_leaf and id(each) not in seen:
                    seen.add(id(each))
                    yield each

    def _hook(self, parameter: Any, called: Callable[[Any], None]) -> None:
        """Have `called` be told when a gradient was added to the parameter's."""
        self._handles.append(parameter.register_post_accumulate_grad_hook(called))

    def _hooks_off(self) -> None:
        for each in self._handles:
            with contextlib.suppress(Exception):
                each.remove()
        self._handles = []


def weights_of(module: Any, recurse: bool = True) -> Iterator[Any]:
    """All of a module's parameters: a ``parameters`` of its own may name those alone that are to be trained."""
    from torch.nn import Module

    return (parameter for _, parameter in Module.named_parameters(module, recurse=recurse))


def size_of(parameter: Any) -> Any:
    """Its 2-norm, on its device: who trains it changes that."""
    return parameter.detach().norm()


def whole_parts(module: Any, chosen: set[int], name: str = "") -> Iterator[str]:
    """The outermost modules below `module`, by their dotted names, all of whose parameters are `chosen` (identities).

    "" for the module itself, and where some that are chosen belong to a module beside others that are not.
    """
    own = [id(each) in chosen for each in weights_of(module)]
    if own and all(own):
        yield name
    elif any(own):
        if any(id(each) in chosen for each in weights_of(module, recurse=False)):
            yield ""
        for key, child in module.named_children():
            yield from whole_parts(child, chosen, f"{name}.{key}" if name else key)


def _nothing() -> None:
    pass
