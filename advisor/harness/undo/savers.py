"""Savers that write from native code, where no audit event is raised: the journal is told by hand."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from ..imports import PostImport
from ..patches import Patch
from .journal import Journal

# Module, attribute in it, and which argument is the file (by position and by name); for a method, counted with `self`.
_SAVERS = (
    ("torch", "save", 1, "f"),
    ("torch", "jit.save", 1, "f"),
    # A scripted module's own `save` goes straight to C++; its class exists only in builds with TorchScript.
    ("torch", "jit.RecursiveScriptModule.save", 1, "f"),
    # Under torch.save, torch.package, torch.export.save and compiled packages.
    ("torch", "_C.PyTorchFileWriter.__init__", 1, "file_name"),
    ("torch", "autograd.profiler.profile.export_chrome_trace", 1, "path"),
    ("safetensors.torch", "save_file", 1, "filename"),
    ("safetensors.torch", "serialize_file", 1, "filename"),
    ("safetensors.numpy", "save_file", 1, "filename"),
    ("safetensors.numpy", "serialize_file", 1, "filename"),
    ("tokenizers", "Tokenizer.save", 1, "path"),
    ("torchvision.io", "write_file", 0, "filename"),
    ("torchvision.io", "write_png", 1, "filename"),
    ("torchvision.io", "write_jpeg", 1, "filename"),
    ("h5py", "File.__init__", 1, "name"),
    ("pyarrow.parquet", "ParquetWriter.__init__", 1, "where"),
    ("cv2", "imwrite", 0, "filename"),
    ("soundfile", "SoundFile.__init__", 1, "file"),
)


def protect(imports: PostImport, journal: Journal) -> None:
    """Tell the journal before a library's native code opens a file for writing."""
    for module in dict.fromkeys(entry[0] for entry in _SAVERS):
        entries = [entry[1:] for entry in _SAVERS if entry[0] == module]
        imports.when_imported(module, lambda loaded, entries=entries: _wrap(loaded, entries, journal))  # type: ignore[misc]


def _wrap(module: ModuleType, entries: list[tuple[str, int, str]], journal: Journal) -> None:
    for name, position, keyword in entries:
        *path, last = name.split(".")
        owner: Any = module
        for part in path:
            owner = getattr(owner, part, None)
        if owner is None or not hasattr(owner, last) or _inherited(owner, last):
            continue
        try:
            Patch(owner, last, _before(position, keyword, journal)).on()
        except (AttributeError, TypeError):
            continue  # a native class that takes no attributes


def _inherited(owner: Any, name: str) -> bool:
    return isinstance(owner, type) and name not in vars(owner)


def _before(position: int, keyword: str, journal: Journal) -> Callable[[Any], Any]:
    def make(original: Any) -> Any:
        def save(*args: Any, **kwargs: Any) -> Any:
            journal.guard(kwargs.get(keyword, args[position] if len(args) > position else None))
            return original(*args, **kwargs)

        return save

    return make
