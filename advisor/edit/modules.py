"""The script's other files: which one an import means."""

from __future__ import annotations

import os
from collections.abc import Iterator

import libcst as cst
from libcst.helpers import get_full_name_for_node

from advisor.edit.draft import Draft, Drafts


def beside(drafts: Drafts, draft: Draft, module: str) -> Draft | None:
    """The draft of a module whose file lies beside the given file, or where a relative import points."""
    if not module.strip("."):
        return None
    folder = os.path.dirname(draft.source.path)
    name = module.lstrip(".")
    for _ in range(len(module) - len(name) - 1):
        folder = os.path.dirname(folder)
    path = os.path.join(folder, *name.split(".")) + ".py"
    return drafts[path] if drafts.sources.has(path) and drafts.sources.editable(path) else None


def with_neighbours(drafts: Drafts, draft: Draft) -> Iterator[Draft]:
    """This file, and the modules beside it that it imports from."""
    yield draft
    seen = {draft.source.path}
    for statement in draft.nodes(cst.ImportFrom):
        module = "." * len(statement.relative)
        module += (get_full_name_for_node(statement.module) or "") if statement.module is not None else ""
        other = beside(drafts, draft, module)
        if other is not None and other.source.path not in seen:
            seen.add(other.source.path)
            yield other
