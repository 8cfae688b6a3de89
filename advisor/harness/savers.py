"""Savers that write from native code, where no audit event is raised: the journal is told by hand."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from .imports import PostImport
from .journal import Journal
from .patches import Patch


def protect(imports: PostImport, journal: Journal) -> None:
    """Tell the journal before torch, TorchScript or safetensors open a file for writing."""

    def before(position: int, keyword: str) -> Callable[[Any], Any]:
        def make(original: Any) -> Any:
            def save(*args: Any, **kwargs: Any) -> Any:
                target = kwargs.get(keyword, args[position] if len(args) > position else None)
                journal.guard(target)
                return original(*args, **kwargs)

            return save

        return make

    def torch_loaded(torch: ModuleType) -> None:
        Patch(torch, "save", before(1, "f")).on()
        jit: Any = torch.jit
        Patch(jit, "save", before(1, "f")).on()
        Patch(torch.autograd.profiler.profile, "export_chrome_trace", before(1, "path")).on()
        # A scripted module's own `save` goes straight to C++; its class exists only in builds with TorchScript.
        scripted = getattr(jit, "RecursiveScriptModule", None)
        if scripted is not None and "save" in vars(scripted):
            Patch(scripted, "save", before(1, "f")).on()

    def safetensors_loaded(module: ModuleType) -> None:
        Patch(module, "save_file", before(1, "filename")).on()
        if hasattr(module, "serialize_file"):
            Patch(module, "serialize_file", before(1, "filename")).on()

    imports.when_imported("torch", torch_loaded)
    for name in ("safetensors.torch", "safetensors.numpy"):
        imports.when_imported(name, safetensors_loaded)
