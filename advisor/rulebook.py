"""Which rules there are: the project's own, those that installed packages bring, those in folders that a user names."""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import pkgutil
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from advisor.errors import USAGE, AdvisorError
from advisor.rule import Rule

ENTRY_POINTS = "advisor.rules"
"""The group of entry points: each names a module with rules, or one class."""

_folders: tuple[Path, ...] = ()


def use(folders: Iterable[str | os.PathLike[str]]) -> None:
    """From now on the rules in `folders` count as well, and those of folders named before no more."""
    global _folders
    chosen = tuple(Path(folder).resolve() for folder in folders)
    if chosen != _folders:
        _folders = chosen
        load_rules.cache_clear()


@cache
def load_rules() -> tuple[Rule, ...]:
    """One instance of every rule, the project's own first, each group in order of its files' or entry points' names.

    A file of the project that cannot be imported is an error as it stands: the package is broken then. Raises
    AdvisorError (USAGE) for rules from elsewhere that cannot be used.
    """
    found = list(_own())
    found += _from_packages()
    for number, folder in enumerate(_folders):
        found += _from_folder(folder, number)
    known: dict[str, Rule] = {}
    for rule in found:
        other = known.setdefault(rule.id, rule)
        if other is not rule:
            raise AdvisorError(
                f"two rules are called {rule.id}, one in {_file(other)} and one in {_file(rule)}; rename the second.",
                USAGE,
            )
    return tuple(found)


def meant(name: str, known: Iterable[str]) -> str:
    """What to say to someone who names a rule that there is not: the one whose name is like it, or where all are."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {close[0]}?" if close else "`advisor rules` lists them all."


@cache
def _own() -> tuple[Rule, ...]:
    package = importlib.import_module("advisor.rules")
    modules = sorted(pkgutil.iter_modules(package.__path__), key=lambda each: each.name)
    return tuple(
        rule for module in modules for rule in _in_module(importlib.import_module(f"advisor.rules.{module.name}"))
    )


def _from_packages() -> list[Rule]:
    rules: list[Rule] = []
    for point in sorted(importlib.metadata.entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        source = f"the entry point {point.name} = {point.value}" + (f" of {point.dist.name}" if point.dist else "")
        try:
            loaded: Any = point.load()
            found: list[Any] = [loaded()] if inspect.isclass(loaded) else [*_in_module(loaded)]
        except Exception as error:  # whatever a stranger's package raises
            raise AdvisorError(f"{source} cannot be loaded: {_line(error)}", USAGE) from None
        rules += _usable(found, source)
    return rules


def _from_folder(folder: Path, number: int) -> list[Rule]:
    if not folder.is_dir():
        raise AdvisorError(f"there is no folder {folder} with rules; check --rules.", USAGE)
    rules: list[Rule] = []
    for path in sorted(folder.glob("*.py")):
        if path.name != "__init__.py":
            rules += _usable(_in_module(_import(path, f"advisor_rules_{number}_{path.stem}")), str(path))
    if not rules:
        raise AdvisorError(
            f"{folder} holds no rule (a .py file with a subclass of advisor.rule.Rule); "
            "`advisor rules new my-rule` writes one to start from.",
            USAGE,
        )
    return rules


def _import(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise AdvisorError(f"{path} is no Python file.", USAGE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's file raises
        raise AdvisorError(f"{path} cannot be imported: {_line(error)}", USAGE) from None
    return module


def _in_module(module: ModuleType) -> list[Rule]:
    rules = []
    for value in vars(module).values():
        # The module first: to Python 3.10 a generic alias, whose module is its origin's, is a class as well.
        own = getattr(value, "__module__", "") == module.__name__
        if own and inspect.isclass(value) and issubclass(value, Rule) and not inspect.isabstract(value):
            rules.append(value())
    return rules


def _usable(rules: Sequence[Rule], source: str) -> Sequence[Rule]:
    """Raises AdvisorError for what lacks what every rule has to say."""
    for rule in rules:
        missing = [name for name in ("id", "title", "safety") if not getattr(rule, name, None)]
        if not isinstance(rule, Rule) or missing:
            what = f"{type(rule).__name__} has no {', '.join(missing)}" if missing else f"{rule!r} is no rule"
            raise AdvisorError(f"{source}: {what}; `advisor rules new my-rule` shows what a rule has to have.", USAGE)
    return rules


def _file(rule: Rule) -> str:
    return inspect.getsourcefile(type(rule)) or type(rule).__module__


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
