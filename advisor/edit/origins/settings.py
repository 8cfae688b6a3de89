"""Values in the user's YAML, JSON and TOML files: where each one stands, and another one put there.

A file is never written anew from what was read: comments, order and spelling of everything else stay as they are.
"""

from __future__ import annotations

import ast
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import tomlkit
import yaml

from advisor.edit.sources import Source
from advisor.errors import AdvisorError

_OTHER = object()
_DEEPEST = 20  # keys that lead to a value; aliases may make a circle


@dataclass(frozen=True)
class Entry:
    """A value: the keys that lead to it, and the characters of the text that say it (none for TOML)."""

    keys: tuple[str, ...]
    value: object  # str, int, float, bool or None
    start: int
    end: int


class SettingsDraft:
    """One settings file and the changes asked for so far. Raises AdvisorError for a file that is none."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._changes: dict[Entry, str] = {}
        self.entries, self.mappings = _read(source)

    def give(self, entry: Entry, code: str) -> bool:
        """Have the entry's value be the one that the Python literal `code` says; False where it cannot be written."""
        try:
            value = ast.literal_eval(code)
        except (ValueError, SyntaxError):
            return False
        if not isinstance(value, (str, int, float, bool)) or (isinstance(value, float) and not math.isfinite(value)):
            return False
        self._changes[entry] = _written(value, _is_json(self.source) or _is_toml(self.source))
        return True

    @property
    def changed(self) -> bool:
        return bool(self._changes)

    def render(self) -> str:
        """The new text. Raises AdvisorError if it would say anything else that is different."""
        as_toml = _is_toml(self.source)
        text = _with_values(self.source.text, self._changes) if as_toml else self.source.text
        for entry in sorted(self._changes, key=lambda each: -each.start) if not as_toml else ():
            text = text[: entry.start] + self._changes[entry] + text[entry.end :]
        new, _ = _read(Source(self.source.path, text))
        load = json.loads if as_toml or _is_json(self.source) else yaml.safe_load
        wanted = {entry.keys: load(code) for entry, code in self._changes.items()}
        if [(each.keys, each.value) for each in new] != [
            (each.keys, wanted.get(each.keys, each.value)) for each in self.entries
        ]:
            raise AdvisorError(f"the edit of {self.source.path} would change more than it should")
        return text


def _written(value: str | int | float, as_json: bool) -> str:
    """A value as the file's language spells it: JSON's way is YAML's, but for numbers like 1e-3."""
    if not as_json and isinstance(value, float):
        return str(yaml.safe_dump(value).split("\n", 1)[0])
    if not as_json and isinstance(value, str) and value.isidentifier() and yaml.safe_load(value) == value:
        return value
    return json.dumps(value)


def _is_json(source: Source) -> bool:
    return source.path.endswith(".json")


def _is_toml(source: Source) -> bool:
    return source.path.endswith(".toml")


def _with_values(text: str, changes: Mapping[Entry, str]) -> str:
    """A TOML text with other values, which JSON's spelling says; what stands around them stays."""
    document = tomlkit.parse(text)
    for entry, code in changes.items():
        table: Any = document
        for key in entry.keys[:-1]:
            table = table[key]
        table[entry.keys[-1]] = json.loads(code)
    return tomlkit.dumps(document)


def _in_toml(source: Source) -> tuple[tuple[Entry, ...], tuple[tuple[str, ...], ...]]:
    """As :func:`_read`, of a TOML file; what stands in its arrays is left out."""
    try:
        tree = tomlkit.parse(source.text).unwrap()
    except (tomlkit.exceptions.TOMLKitError, RecursionError) as error:
        raise AdvisorError(f"{source.path} cannot be read as settings: {error}") from None
    entries: list[Entry] = []
    mappings: list[tuple[str, ...]] = []
    todo: list[tuple[tuple[str, ...], Any]] = [((), tree)]
    while todo:
        keys, value = todo.pop()
        if isinstance(value, dict) and len(keys) <= _DEEPEST:
            mappings.append(keys)
            todo += [((*keys, key), inner) for key, inner in reversed(value.items())]
        elif keys and isinstance(value, (str, int, float, bool)):
            entries.append(Entry(keys, value, 0, 0))
    return tuple(entries), tuple(mappings)


@lru_cache(maxsize=64)  # each finding makes drafts of its own
def _read(source: Source) -> tuple[tuple[Entry, ...], tuple[tuple[str, ...], ...]]:
    """The values of a file, and the keys that lead to each of its mappings."""
    if _is_toml(source):
        return _in_toml(source)
    # A tab that indents JSON is no YAML; inside its strings there is none.
    text = source.text.replace("\t", " ") if _is_json(source) else source.text
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        raise AdvisorError(f"{source.path} cannot be read as settings: {error}") from None
    nodes = list(_below(root, ())) if root is not None else []
    times = Counter(id(node) for _, node in nodes)  # an alias leads to the same one again
    entries = []
    for keys, node in nodes:
        start, end = node.start_mark.index, node.end_mark.index
        if isinstance(node, yaml.ScalarNode) and keys and times[id(node)] == 1:
            value = _value(node, text[start:end], _is_json(source))
            if value is not _OTHER:
                entries.append(Entry(keys, value, start, end))
    return tuple(entries), tuple(keys for keys, node in nodes if isinstance(node, yaml.MappingNode))


def find(drafts: Sequence[SettingsDraft], names: Sequence[str], recorded: object) -> tuple[SettingsDraft, Entry] | None:
    """The entry that an expression with these names reads (``cfg["train"]["lr"]``: cfg, train, lr).

    All of its keys are the last names, and it says what the run saw. None when that is not one.
    """
    found = [
        (draft, entry)
        for draft in drafts
        for entry in draft.entries
        if _ends(names, entry.keys) and type(entry.value) is type(recorded) and entry.value == recorded
    ]
    return found[0] if len(found) == 1 else None


def may_say(drafts: Sequence[SettingsDraft], names: Sequence[str], recorded: object) -> bool | None:
    """Whether an entry that an expression with these names may read says what the run saw; None where there is none."""
    values = [each.value for draft in drafts for each in draft.entries if _ends(names, each.keys)]
    return any(type(each) is type(recorded) and each == recorded for each in values) if values else None


def _ends(names: Sequence[str], keys: tuple[str, ...]) -> bool:
    return len(keys) <= len(names) and tuple(names[len(names) - len(keys) :]) == keys


def known_without(drafts: Sequence[SettingsDraft], names: Sequence[str], key: str) -> bool:
    """Whether an expression with these names is a mapping of the files in which `key` does not stand."""
    found = [keys for draft in drafts for keys in draft.mappings if _ends(names, keys) and (keys or len(names) == 1)]
    return len(found) == 1 and not any(entry.keys == (*found[0], key) for draft in drafts for entry in draft.entries)


def _below(node: yaml.Node, keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], yaml.Node]]:
    """All mappings and scalars, each with the keys that lead to it."""
    if len(keys) > _DEEPEST:
        return
    yield keys, node
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                yield from _below(value, (*keys, key.value))


def _value(node: yaml.ScalarNode, written: str, as_json: bool) -> object:
    """What a scalar says; :data:`_OTHER` for what is no plain value (a date, an anchor, a text of several lines)."""
    if not written or written[0] in "&!*|>":
        return _OTHER
    try:
        # JSON has numbers that YAML 1.1 takes for words: 1e-3.
        value = json.loads(written) if as_json else yaml.constructor.SafeConstructor().construct_document(node)
    except (ValueError, yaml.YAMLError):
        return _OTHER
    return value if value is None or isinstance(value, (str, int, float, bool)) else _OTHER
