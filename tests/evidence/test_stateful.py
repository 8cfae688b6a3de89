"""Whether the rounds of a loop call a module that remembers, read in the source."""

from __future__ import annotations

import pytest

from advisor.evidence.python_loops.stateful import remembers
from advisor.harness.layout import Model, RunRecord, Site

NEURON = """
class Neuron(nn.Module):
    def forward(self, x):
        self.v = 0.9 * self.v + x
        return self.v

"""
PLAIN = """
class Neuron(nn.Module):
    def forward(self, x):
        return x.relu()

"""
LOOP = """
class Net(nn.Module):
    def forward(self, x):
        self.seen = len(x)
        for t in range(8):
            {body}

"""
SPIKES = "import snntorch as snn\nfor step in range(data.size(0)):\n    {body}\n"
CASES = {
    "a neuron of the script's own": (NEURON + LOOP.format(body="out.append(self.neuron(x[t]))"), True),
    "by another name": (NEURON + LOOP.format(body="out.append(cell(x[t]))"), True),
    "operators only": (NEURON + LOOP.format(body="out.append(torch.relu(x[t]) * x[t].sum())"), False),
    "its own helper": (NEURON + LOOP.format(body="out.append(scaled(x[t]))") + "def scaled(x):\n    return x\n", False),
    "a module without": (PLAIN + LOOP.format(body="out.append(self.neuron(x[t]))"), False),
    "a library's": (SPIKES.format(body="out.append(net(data[step]))"), True),
    "a library's, beside the loop": (SPIKES.format(body="out.append(data[step].sum())"), False),
}


@pytest.mark.parametrize(("text", "expected"), CASES.values(), ids=CASES.keys())
def test_rounds_that_call_what_remembers(text: str, expected: bool) -> None:
    own = {name: "net.py" for name in ("Net", "Neuron") if f"class {name}" in text}
    line = next(number for number, each in enumerate(text.splitlines(), 1) if each.lstrip().startswith("for "))
    record = RunRecord(models=[Model(cls="Net", own=own)])
    assert remembers(record, Site("net.py", line), lambda _: text) is expected


SOLVER = """
class Solver:
    def integrate(self, t):
        for i in range(1, len(t)):
            solution[i] = self.advance(t[i])

    def advance(self, t):
        raise NotImplementedError
"""
INHERITS = """
from solver import Solver

class Fixed({base}):
    pass

class RungeKutta(Fixed):
    def advance(self, t):
        {body}
        return self.y
"""


@pytest.mark.parametrize(
    ("base", "body", "expected"),
    [
        ("Solver", "self.y = self.y + t", True),
        ("solver.Solver", "self.y += t", True),
        ("Other", "self.y = self.y + t", False),
        ("Solver", "self.y[0] = self.y[0] + t", True),
        ("Solver", "y = t", False),
    ],
)
def test_a_method_that_another_file_s_class_writes_to_itself_in(base: str, body: str, expected: bool) -> None:
    texts = {"solver.py": SOLVER, "kutta.py": INHERITS.format(base=base, body=body)}
    line = SOLVER.splitlines().index("        for i in range(1, len(t)):") + 1
    record = RunRecord(modules={"solver.py": "solver", "kutta.py": "kutta"})
    assert remembers(record, Site("solver.py", line), texts.__getitem__) is expected


def test_a_method_that_the_loop_s_class_inherits() -> None:
    base = "class Base(nn.Module):\n    def advance(self, t):\n        self.y = self.y + t\n"
    loop = (
        "class Kutta(Base):\n    def run(self, t):\n        for i in range(9):\n            y[i] = self.advance(t[i])\n"
    )
    other = "class Other(nn.Module):\n    def advance(self, t):\n        self.y = t\n"
    record = RunRecord(modules={"base.py": "base", "kutta.py": "kutta"})
    for text, expected in ((base, True), (other + "class Base(nn.Module):\n    pass\n", False)):
        assert remembers(record, Site("kutta.py", 3), {"base.py": text, "kutta.py": loop}.__getitem__) is expected
