"""The script's other files: which one an import means, and which of them have a word in them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import libcst as cst
from libcst.helpers import get_full_name_for_node

from advisor.edit.draft import Draft, Drafts
from advisor.errors import AdvisorError

MOST_FILES = 15  # of those that have a word: to read more takes seconds, and a word that common says little


class TooManyFilesError(Exception):
    """A word is in more of the script's modules than are looked through."""


def beside(drafts: Drafts, draft: Draft, module: str) -> Draft | None:
    """The draft of the user's module that is imported by this name; None where there is none.

    That is the one which the run loaded by the name; else the file that lies beside the given one, or where a relative
    import points.
    """
    path = _path_of(drafts, draft, module)
    try:
        return drafts[path] if path else None
    except AdvisorError:  # what cannot be read says nothing
        return None


def _path_of(drafts: Drafts, draft: Draft, module: str) -> str:
    name = module.lstrip(".")
    if not module:
        return ""
    folder = os.path.dirname(draft.source.path)
    for _ in range(len(module) - len(name) - 1):
        folder = os.path.dirname(folder)
    place = os.path.join(folder, *name.split(".")) if name else folder
    sources = drafts.sources
    loaded = [path for path, called in sources.modules.items() if called == module]
    # A file that was loaded under another name is not what is imported by this one.
    found = [f"{place}.py", os.path.join(place, "__init__.py")]
    if name == module:
        found = [each for each in found if each not in sources.modules]
    return next((each for each in (*loaded, *found) if sources.has(each) and sources.editable(each)), "")


def with_neighbours(drafts: Drafts, draft: Draft) -> Iterator[Draft]:
    """This file, and the modules beside it that it imports from."""
    yield draft
    for path in dict.fromkeys(_neighbours(drafts, draft)):
        try:
            found = drafts[path]
        except AdvisorError:  # what cannot be read says nothing
            continue
        yield found


def _neighbours(drafts: Drafts, draft: Draft) -> Iterator[str]:
    for statement in draft.nodes(cst.ImportFrom):
        module = "." * len(statement.relative)
        module += (get_full_name_for_node(statement.module) or "") if statement.module is not None else ""
        path = _path_of(drafts, draft, module)
        if path and path != draft.source.path:
            yield path


def with_word(drafts: Drafts, draft: Draft, word: str) -> Iterator[Draft]:
    """This file, and those that it imports from and the script's other modules whose text has the word.

    Raises TooManyFilesError where these are more than are looked through.
    """
    yield draft
    says = re.compile(rf"\b{re.escape(word)}\b")
    paths = dict.fromkeys((*_neighbours(drafts, draft), *drafts.sources.modules))
    number = 0
    for path in paths:
        if path == draft.source.path or not drafts.sources.has(path) or not drafts.sources.editable(path):
            continue
        try:
            if not says.search(drafts.sources.text(path)):
                continue
            found = drafts[path]
        except AdvisorError:  # what cannot be read says nothing
            continue
        number += 1
        if number > MOST_FILES:
            raise TooManyFilesError(word)
        yield found
