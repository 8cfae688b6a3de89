"""Models that compile() leaves as they are: it is known before anybody compiles them."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.launch import Command, measure
from tests.conftest import PYTHON, QUICK

pytestmark = pytest.mark.oldest

SCRIPT = """
import sys
import torch

class Own(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    def forward(self, x):
        return self.layers(x)

model = Own() if sys.argv[1] == "own" else torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
if len(sys.argv) > 2:
    model.compile(backend=sys.argv[2])
for _ in range(200):
    model(torch.randn(2, 4)).sum().backward()
"""


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize("kind", ["own", "sequential"])
def test_what_is_said_is_what_happens(kind: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    plain, compiled = (
        measure(Command(str(script), (kind, *more), python=PYTHON, cwd=str(tmp_path)), tmp_path / name, QUICK).record
        for name, more in (("plain", ()), ("compiled", ("eager",)))
    )
    (model,) = plain.models
    assert model.compiles_in_place == (compiled.compiles > 0)
    assert kind == "sequential" or model.compiles_in_place
