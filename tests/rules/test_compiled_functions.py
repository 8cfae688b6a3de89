"""A step without any module: the function that calls its operators is what is compiled."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from advisor.edit import Edit, Sources
from advisor.evidence import Evidence
from advisor.launch import Command, measure
from rules.compile import Compile
from tests.conftest import PYTHON, QUICK

RULE = Compile()

SCRIPT = """
import torch

torch.set_num_threads(1)
STEPS = 12


def slope(v, w, a):
    return v - v**3 / 3 - w + a, 0.08 * (v + 0.7 - 0.8 * w)


def advance(v, w, a):
    dv, dw = slope(v, w, a)
    ev, ew = slope(v + 0.1 * dv, w + 0.1 * dw, a)
    return v + 0.05 * (dv + ev), w + 0.05 * (dw + ew)


a = torch.tensor(0.3, requires_grad=True)
optimizer = torch.optim.SGD([a], lr=1e-3)
start = torch.randn(64)
for step in range(2000):
    v, w = start, torch.zeros(64)
    for _ in range(STEPS):
        v, w = advance(v, w, a)
    loss = (v - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def evidence_of(path: Path, run: Path) -> Evidence:
    command = Command(script=str(path), python=PYTHON, environment={"OMP_NUM_THREADS": "1"}, cwd=str(path.parent))
    return Evidence.from_run(measure(command, run, QUICK, timeout=240))


@pytest.mark.slow
@pytest.mark.sessions
def test_the_repeated_function_is_compiled(tmp_path: Path) -> None:
    path = tmp_path / "fit.py"
    path.write_text(SCRIPT)
    evidence = evidence_of(path, tmp_path / "run")
    found = evidence.repeated_function
    assert found is not None and (found.name, found.line) == ("advance", 12)
    assert found.calls == 12 and 20 <= found.operators <= 40 and found.share > 0.9
    (finding,) = RULE.check(evidence)
    assert finding.site is not None and finding.site.line == 12 and finding.gain.likely > 1.5
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Edit)
    assert "\n\n\n@torch.compile\ndef advance(v, w, a):\n" in fix.texts[str(path)]
    path.write_text(fix.texts[str(path)].replace("range(2000)", "range(2)"))
    subprocess.run([PYTHON, str(path)], check=True, cwd=tmp_path, timeout=240)


@pytest.mark.slow
@pytest.mark.sessions
def test_large_tensors_need_no_compiler(tmp_path: Path) -> None:
    path = tmp_path / "fit.py"
    path.write_text(SCRIPT.replace("(64)", "(400_000)"))
    assert list(RULE.check(evidence_of(path, tmp_path / "run"))) == []
