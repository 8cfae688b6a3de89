"""What is done once a module is imported is done once, whoever asked for the module before."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from advisor.harness.imports import PostImport


@pytest.fixture
def finder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PostImport]:
    (tmp_path / "awaited_here.py").write_text("VALUE = 3\n")
    (tmp_path / "broken_here.py").write_text("import awaited_here\nraise ImportError('not today')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    made = PostImport()
    yield made
    sys.meta_path[:] = [each for each in sys.meta_path if each is not made]
    for name in ("awaited_here", "broken_here"):
        sys.modules.pop(name, None)


def test_a_module_that_was_only_looked_for_is_still_waited_for(finder: PostImport) -> None:
    seen: list[ModuleType] = []
    finder.when_imported("awaited_here", seen.append)
    for _ in range(2):  # as transformers does, to know whether torch is installed
        assert importlib.util.find_spec("awaited_here") is not None
    assert seen == []
    module = importlib.import_module("awaited_here")
    assert seen == [module] and module.VALUE == 3
    assert module.__spec__ is not None and type(module.__spec__.loader).__name__ == "SourceFileLoader"
    importlib.reload(module)
    assert seen == [module]


def test_what_is_imported_already_is_called_for_at_once(finder: PostImport) -> None:
    module = importlib.import_module("awaited_here")
    seen: list[ModuleType] = []
    finder.when_imported("awaited_here", seen.append)
    assert seen == [module]


def test_a_module_that_fails_calls_for_nothing(finder: PostImport) -> None:
    seen: list[str] = []
    finder.when_imported("broken_here", lambda module: seen.append(module.__name__))
    finder.when_imported("awaited_here", lambda module: seen.append(module.__name__))
    with pytest.raises(ImportError, match="not today"):
        importlib.import_module("broken_here")
    assert seen == ["awaited_here"]
