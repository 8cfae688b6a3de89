"""What every room's tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def repo() -> Path:
    """The root of the repository."""
    return REPO


@pytest.fixture(scope="session")
def shared_traces() -> Path:
    """The folder of the reference traces; the test is skipped where it is absent (they are not part of the project)."""
    folder = REPO.parent / "shared" / "traces"
    if not folder.is_dir():
        pytest.skip("the reference traces are not here")
    return folder
