"""Whether random numbers are drawn while a batch is made: a sample is then another one each time it is asked for.

Nothing is made twice for that: the first fetches of each process are asked where the generators are before and after.
Those are the three that everybody shares, Python's, NumPy's and torch's, and such as the dataset, its transforms, the
collate function or the modules of their classes hold.
"""

from __future__ import annotations

import inspect
import random
import sys
from itertools import islice
from types import FunctionType, MethodType, ModuleType
from typing import Any

_FETCHES = 3  # of each dataset, in each process
_MOST_OBJECTS, _MOST_ITEMS = 2000, 64
_LIBRARIES = ("torch", "numpy", "builtins", "random")  # whose modules hold nobody's generators


class Drawing:
    """One fetch; made before it, and asked after it."""

    def __init__(self, torch: Any, fetcher: Any) -> None:
        self._torch = torch
        roots = (getattr(fetcher, name, None) for name in ("dataset", "collate_fn"))
        self._own = _generators_in(torch, [each for each in roots if each is not None])
        self._before = self._states()

    def drew(self) -> bool:
        """Whether a generator has moved since."""
        return self._before != self._states()

    def drew_own(self) -> bool:
        """Whether one has that is not of the three that everybody shares, which workers are given seeds for."""
        moved = self._before[len(self._before) - len(self._own) :]
        return moved != [_state(each) for each in self._own]

    def _states(self) -> list[Any]:
        return [*shared_states(), *map(_state, [self._torch.default_generator, *self._own])]


def shared_states() -> list[Any]:
    """Where Python's generator is, and NumPy's, if that is loaded."""
    numpy_random: Any = sys.modules.get("numpy.random")
    return [random.getstate(), *([] if numpy_random is None else [_plain(numpy_random.get_state())])]


def may_look(looked: int) -> bool:
    """Whether a fetch is asked, after so many that were."""
    return looked < _FETCHES


def _state(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    if hasattr(generator, "bit_generator"):  # of NumPy's
        return _plain(generator.bit_generator.state)
    if hasattr(generator, "initial_seed"):  # of torch's
        return generator.get_state().numpy().tobytes()
    return _plain(generator.get_state())  # a RandomState


def _plain(value: Any) -> Any:
    """A state with its arrays as bytes, which compare as a whole."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return value.tobytes() if hasattr(value, "tobytes") else value


def _generators_in(torch: Any, roots: list[Any]) -> list[Any]:
    """The generators that are held by these, or by the modules in which the classes and functions in them are."""
    numpy_random: Any = sys.modules.get("numpy.random")
    kinds: tuple[Any, ...] = (random.Random, torch.Generator)
    if numpy_random is not None:
        kinds += (numpy_random.Generator, numpy_random.RandomState)
    found: dict[int, Any] = {}
    seen: set[int] = set()
    stack = list(roots)
    while stack and len(seen) < _MOST_OBJECTS:
        each = stack.pop()
        if id(each) in seen or isinstance(each, (str, bytes, int, float, torch.Tensor, ModuleType)):
            continue
        seen.add(id(each))
        if isinstance(each, kinds):
            found[id(each)] = each
        elif isinstance(each, dict):
            stack.extend(islice(each.values(), _MOST_ITEMS))
        elif isinstance(each, (list, tuple, set, frozenset)):
            stack.extend(islice(each, _MOST_ITEMS))
        else:
            stack.extend(_held(each, kinds))
    return list(found.values())


def _held(value: Any, kinds: tuple[Any, ...]) -> list[Any]:
    """What an object or a function refers to."""
    if isinstance(value, MethodType):
        return [value.__self__, value.__func__]
    names = inspect.getattr_static(value, "__dict__", {}) if isinstance(value, type) else getattr(value, "__dict__", {})
    held = list(dict(names).values()) if not isinstance(value, type) else []
    held += [getattr(value, each) for each in ("func", "args", "keywords") if type(value).__name__ == "partial"]
    if isinstance(value, FunctionType):
        held += [each.cell_contents for each in value.__closure__ or () if _filled(each)]
        held += [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    name = value.__module__ if isinstance(value, FunctionType) else type(value).__module__
    module = sys.modules.get(name or "")
    if module is not None and name.partition(".")[0] not in _LIBRARIES:
        held += [each for each in vars(module).values() if isinstance(each, kinds)]
    return held


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # of a variable that has no value yet
        return False
