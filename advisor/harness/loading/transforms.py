"""The transforms that a dataset holds: which they are, where they are written, what they are given."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from collections.abc import Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any

from ..places import is_user_file

_MOST_TRANSFORMS = 64
_CHOOSES = re.compile(r"\brandom\.[a-z]|choice\(|randint|shuffle|\bif\b")  # one of several, or each by chance
_MOST_CHANNELS = 4  # of an image whose last dimension they are
_LIBRARIES = ("torchvision", "albumentations", "kornia", "monai", "torchaudio")  # of transforms
_OF_PICTURES = ("PIL", "numpy", "torch", "torchvision")


def attribute(item: Any, name: str) -> Any:
    """``item.name``; None where it has none, or fails: a ``__getattr__`` of the user's may raise what it likes."""
    try:
        return getattr(item, name, None)
    except Exception:
        return None


def transforms_of(dataset: Any) -> Iterator[Any]:
    """The callable objects that a dataset holds, each of a chain's (``Compose``) for itself; of wrapped ones, too.

    With those by global names that its own ``__getitem__`` uses, or the function that a dataset of Hugging Face's was
    given by ``set_transform``.
    """
    stack: list[tuple[Any, bool]] = [(dataset, True)]
    seen: set[int] = set()
    found = 0
    while stack and found < _MOST_TRANSFORMS and len(seen) < 10 * _MOST_TRANSFORMS:
        item, is_dataset = stack.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        held = attribute(item, "__dict__") or {}
        inner = [held.get(name) for name in ("transforms", "_modules")]
        chain = next((each for each in inner if isinstance(each, (list, tuple, dict)) and each), None)
        if chain is None and not is_dataset:
            chain = _own_chain(item, held)
        if is_dataset:
            given = held.get("_format_kwargs")
            told = given.get("transform") if isinstance(given, dict) else None
            for function in (attribute(type(item), "__getitem__"), told):
                stack.extend((each, False) for each in _used_by(function))
            for name, value in list(held.items()):
                wrapped = value if name == "datasets" and isinstance(value, (list, tuple)) else [value]
                stack.extend((each, True) for each in wrapped if name in ("dataset", "datasets"))
                if name not in ("dataset", "datasets") and callable(value) and not isinstance(value, type):
                    stack.append((value, False))
        elif chain is not None:
            stack.extend((each, False) for each in (chain.values() if isinstance(chain, dict) else chain))
        else:
            both = [held.get(name) for name in ("transform", "target_transform")]  # torchvision's StandardTransform
            stack.extend((each, False) for each in both if callable(each))
            found += 1
            yield item


def _own_chain(item: Any, held: dict[str, Any]) -> list[Any] | None:
    """What a class of the script's own calls one after another: the objects in its one list, all of which can be."""
    code = code_of(item)
    if isinstance(item, FunctionType) or code is None or not is_user_file(code.co_filename):
        return None
    lists = [(name, each) for name, each in held.items() if isinstance(each, (list, tuple)) and each]
    if len(lists) != 1 or len(lists[0][1]) > _MOST_TRANSFORMS:
        return None
    ((name, parts),) = lists
    said = ""
    with contextlib.suppress(OSError, TypeError):  # no source
        said = inspect.getsource(code)
    if re.search(rf"\bfor \w+ in self\.{name}:", said) is None or _CHOOSES.search(said):
        return None
    called = [each for each in parts if callable(each) and not isinstance(each, type) and code_of(each) is not None]
    return called if len(called) == len(parts) else None


def _used_by(function: Any) -> Iterator[Any]:
    """The transforms, and chains of them, that a function knows by global names or those of functions around it."""
    if not isinstance(function, FunctionType):
        return
    codes, names = [function.__code__], set[str]()
    for code in codes:  # which grows meanwhile: comprehensions have codes of their own
        names |= {*code.co_names, *code.co_freevars}
        codes += [each for each in code.co_consts if isinstance(each, CodeType)]
    with contextlib.suppress(ValueError):  # a name that has no value yet
        known = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
        for value in (known[name] for name in sorted(names & known.keys())):
            of_library = type(value).__module__.partition(".")[0] in _LIBRARIES
            chain = (attribute(value, "__dict__") or {}).get("transforms")
            if callable(value) and not isinstance(value, type) and (of_library or isinstance(chain, (list, tuple))):
                yield value


def code_of(transform: Any) -> CodeType | None:
    """The function that runs when `transform` is called; None where it is not written in Python."""
    kinds = type(transform).__mro__
    for function in (transform, *(vars(cls).get(name) for name in ("forward", "__call__") for cls in kinds)):
        code = attribute(attribute(function, "__func__") or function, "__code__")
        if isinstance(code, CodeType):
            return code
    return None


def written_at(function: Any) -> tuple[str, str, int]:
    """(name, file, line) of a callable object; "" and 0 where it is not written in Python."""
    while isinstance(function, functools.partial):
        function = function.func
    code = code_of(function)
    name = str(attribute(function, "__qualname__") or type(function).__name__)
    return name, *((code.co_filename, code.co_firstlineno) if code is not None else ("", 0))


def collate_of(function: Any) -> Any:
    """The collate function that another one calls: ``Trainer`` wraps the user's, to leave columns out first."""
    inner = attribute(function, "data_collator")
    return inner if type(function).__module__.partition(".")[0] == "transformers" and callable(inner) else function


def first_argument(frame: FrameType) -> Any:
    """The first argument of a call that begins, its object aside; None where it has none."""
    code = frame.f_code
    names, positional = code.co_varnames, code.co_argcount
    first = 1 if positional and names[0] == "self" else 0
    if positional > first:
        return frame.f_locals.get(names[first])
    if code.co_flags & inspect.CO_VARARGS:
        rest = frame.f_locals.get(names[positional + code.co_kwonlyargcount])
        return rest[0] if isinstance(rest, tuple) and rest else None
    return None


def pixels_of(image: Any) -> int:
    """Height times width of an image (PIL's, an array, a tensor), and times the depth of a volume; 0 for all else.

    Of the first one in a tuple, of the largest in a dictionary (``{"image": image, "label": mask}``).
    """
    if isinstance(image, tuple) and image:
        image = image[0]
    if isinstance(image, dict):
        return max((pixels_of(each) for each in image.values() if not isinstance(each, (dict, tuple))), default=0)
    size, shape = attribute(image, "size"), attribute(image, "shape")
    if isinstance(size, tuple) and len(size) == 2:
        return int(size[0]) * int(size[1]) if all(isinstance(each, int) for each in size) else 0
    if not isinstance(shape, tuple) or len(shape) < 2:  # torch.Size is one
        return 0
    channels_last = len(shape) == 3 and shape[2] <= _MOST_CHANNELS < shape[0]
    height, width = shape[:2] if channels_last else shape[-2:]
    deep = len(shape) > 2 and min(shape[-3:]) > _MOST_CHANNELS
    return int(height) * int(width) * (int(shape[-3]) if deep else 1)


def images_in(frame: FrameType) -> dict[str, tuple[int, int]]:
    """Identity and pixels of the pictures in a function's variables, by name; objects of the user's are not asked."""
    return {
        name: (id(value), pixels)
        for name, value in frame.f_locals.items()
        if type(value).__module__.partition(".")[0] in _OF_PICTURES and (pixels := pixels_of(value))
    }
