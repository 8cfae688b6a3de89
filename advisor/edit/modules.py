"""The script's other files: which one an import means, and which of them have a word in them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import libcst as cst
from libcst.helpers import get_full_name_for_node

from advisor.edit.draft import Draft, Drafts
from advisor.errors import AdvisorError


def beside(drafts: Drafts, draft: Draft, module: str) -> Draft | None:
    """The draft of a module whose file lies beside the given file, where a relative import points, or which was loaded.

    Of a package, its ``__init__``. The run says what was loaded: a name that is the end of two paths means neither.
    """
    name = module.lstrip(".")
    parts = name.split(".") if name else []
    folder = os.path.dirname(draft.source.path)
    for _ in range(len(module) - len(name) - 1):
        folder = os.path.dirname(folder)
    endings = [os.path.join(*parts, "__init__.py")] if parts or module else []
    endings = [os.path.join(*parts) + ".py", *endings] if parts else endings
    for path in (os.path.join(folder, each) for each in endings):
        if drafts.sources.has(path) and drafts.sources.editable(path):
            return drafts[path]
    loaded = [path for path in drafts.sources.modules if path.endswith(tuple(os.sep + each for each in endings))]
    if not parts or len(loaded) != 1 or not drafts.sources.has(loaded[0]) or not drafts.sources.editable(loaded[0]):
        return None
    return drafts[loaded[0]]


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


def with_word(drafts: Drafts, draft: Draft, word: str) -> Iterator[Draft]:
    """This file, what it imports from, and then the script's other modules whose text has the word."""
    seen = set[str]()
    for each in with_neighbours(drafts, draft):
        seen.add(each.source.path)
        yield each
    for path in drafts.sources.modules:
        if path in seen or not drafts.sources.has(path) or not drafts.sources.editable(path):
            continue
        try:
            if word in drafts.sources.text(path):
                yield drafts[path]
        except AdvisorError:  # what cannot be read says nothing
            continue
