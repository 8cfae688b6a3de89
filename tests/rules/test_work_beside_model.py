"""What takes most of a step beside the model is told of where it is called, in real runs, and only there."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from advisor.diagnose import diagnose
from advisor.edit import Edit, Sources
from advisor.evidence import Evidence
from advisor.evidence.beside import Beside
from advisor.evidence.scattered import Scattered
from advisor.findings import FindingDocument
from advisor.launch import Command, measure
from advisor.rule import Advice
from rules.work_beside_model import WorkBesideModel, _cheaper
from tests.conftest import PYTHON, QUICK

SCRIPT = """\
import random
from collections import deque

import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
SAMPLES, BATCH = 1_600_000, 64
data, labels = torch.randn(SAMPLES, 4), torch.randn(SAMPLES, 1)
rng = np.random.default_rng(0)
weights = np.full(SAMPLES, 1 / SAMPLES)


class Sampler:
    def __init__(self, size):
        self.size = size

    def pick(self):
        return torch.as_tensor(rng.choice(SAMPLES, self.size, p=weights))

    def remember(self):
        self.memory = deque(range(SAMPLES))

    def recall(self):
        return torch.as_tensor(random.sample(self.memory, 4 * self.size)[: self.size])

    def __call__(self):
        return self.pick()


sampler = Sampler(BATCH)
model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
history = []
sampler.remember()
for step in range(600):
    {index}
    loss = nn.functional.mse_loss(model(data[index]), labels[index])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    {after}
"""


def told(folder: Path, index: str, after: str = "pass") -> list[FindingDocument]:
    script = folder / "train.py"
    indented = textwrap.indent(after, "    ").strip()
    script.write_text(SCRIPT.format(index=index, after=indented))
    run = measure(Command(str(script), python=PYTHON, cwd=str(folder)), folder / "run", QUICK, timeout=120)
    return diagnose(Evidence.from_run(run)).document.findings


@pytest.mark.slow
@pytest.mark.parametrize(
    ("index", "line", "name", "cheaper"),
    [
        pytest.param("index = torch.randperm(SAMPLES)[:BATCH]", 39, "torch.randperm at", "an order of all", id="flat"),
        pytest.param("index = sampler()", 20, "pick", "cumsum", id="function", marks=pytest.mark.sessions),
        pytest.param("index = sampler.recall()", 27, "sample, called at", "A deque has no", id="deque"),
    ],
)
def test_draws_that_take_most_of_a_step_are_found(
    index: str, line: int, name: str, cheaper: str, tmp_path: Path
) -> None:
    (found,) = [each for each in told(tmp_path, index) if each.rule in ("work-beside-model", "costly-draws")]
    assert found.file == "train.py" and found.line in (line, line - 1)  # the call, or its function
    assert name in found.summary and cheaper in found.fix.text
    assert found.evidence["share_of_step"] > 0.5 and found.predicted.speedup.likely > 1.5


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(
    ("index", "after"),
    [
        ("index = torch.randint(SAMPLES, (BATCH,))", "pass"),
        ("index = torch.randint(SAMPLES, (BATCH,))", "for _ in range(20000): history.append(step)\nhistory.clear()"),
        ("index = torch.randint(SAMPLES, (BATCH,))", "import time; time.sleep(0.01)"),
    ],
    ids=["cheap", "lines-of-the-loop", "another-rule"],
)
def test_silent_where_nothing_takes_most_or_another_rule_tells_of_it(index: str, after: str, tmp_path: Path) -> None:
    assert "work-beside-model" not in {each.rule for each in told(tmp_path, index, after)}


@pytest.mark.parametrize(
    ("calls", "source", "part"),
    [
        ("cat", "seen = torch.cat([seen, scores])", "join the list once"),
        ("", "negatives = rng.choice(len(self.p), size=9, p=self.p)", "numpy.cumsum"),
        ("", "word = random.choice(words)", ""),  # nothing is added up
        ("stack", "negatives = torch.stack([rng.choice(9, p=p) for _ in rows])", ""),  # something else takes the time
        ("sorted", "order = sorted(rows)", ""),
        ("", 'def overlap(a, b):\n    """Intersection over union."""', "batched_nms"),
        ("", "def f(a, b):\n    return inter / (area_a + area_b - inter)", "batched_nms"),
        ("box_iou_loop", "keep = box_iou_loop(rows, kept)", "batched_nms"),
        ("", "share = interest / (debt + rest)", ""),
        ("copy", "rows[key] = self.buffers[key][:self.size].copy()", "by their numbers"),
        ("argsort", "order = scores.argsort(1)\nposition = order.argsort(1)", "how many are larger"),
        ("argsort", "order = scores.argsort(1)\nrank = (order == target).nonzero()[:, 1]", "how many are larger"),
        ("argsort", "order = scores.argsort(1)\nreturn items[order]", ""),
        ("argsort", "near = d.argsort(1)\nsame = a == b\nreturn torch.where(same.gather(1, near), near, -1)", ""),
        ("copy", "settings = config.copy()", ""),
        ("copy", "part = frame[y0:y1, x0:x1].copy()", ""),
    ],
)
def test_a_cheaper_way_is_told_of_what_is_called(calls: str, source: str, part: str) -> None:
    cheaper = _cheaper(calls, source)
    assert part in cheaper and bool(cheaper) == bool(part)


@pytest.mark.parametrize(("share", "told"), [(0.3, True), (1.1, True), (1.77, False), (0.2, False)])
def test_what_takes_longer_than_a_step_is_not_in_each(share: float, told: bool, scene: Any, tmp_path: Path) -> None:
    made = scene(step_ms=100)
    made.operator("aten::conv2d", 3, 85)
    evidence = made.evidence(tmp_path)
    vars(evidence)["scattered"] = Scattered("audio.py", 44, "record", share, 1.0, 1, "", ("record",))
    assert bool(list(WorkBesideModel().check(evidence))) is told


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("rate, ir = wavfile.read(path)\n    return resample_poly(ir, 160, 441)", True),
        ("return resample_poly(load_wav(path), 160, 441)", True),
        ("return resample_poly(path, 160, 441)", False),  # compiled code that the model is made of
        ("return resample_poly(path.spread(), 160, 441)", False),
    ],
)
def test_a_file_that_the_forward_reads_again(body: str, told: bool, scene: Any, tmp_path: Path) -> None:
    script = tmp_path / "audio.py"
    script.write_text(f"def read_ir(path):\n    {body}\n")
    made = scene(step_ms=100)
    made.operator("aten::conv2d", 3, 85)
    made.operator("autograd::engine::evaluate_function: AddBackward0", 90, 95)
    evidence = made.evidence(tmp_path)
    vars(evidence)["scattered"] = Scattered(
        str(script), 1, "read_ir", 0.6, 24.0, 1, "resample_poly", ("read_ir",), in_forward=True
    )
    found = list(WorkBesideModel().check(evidence))
    assert bool(found) is told
    for each in found:
        fix = WorkBesideModel().fix(each, Sources())
        assert isinstance(fix, Advice) and "functools.lru_cache" in fix.text


@pytest.mark.parametrize(
    ("made", "taken", "told"),
    [
        ("collections.deque(maxlen=capacity)", "self.rows[i + k]", True),
        ("collections.deque(maxlen=9)", "self.rows[i + k]", False),  # short
        ("collections.deque(maxlen=90_000)", "self.rows[i]", True),
        ("deque()", "self.rows[-1]", False),
        ("deque()", "[self.rows[i] for i in start]", True),
        ("deque()", "self.rows[0]", False),  # its end
        ("[]", "self.rows[i]", False),
        ("deque()", "self.others[i]", False),
    ],
)
def test_items_of_a_deque_by_their_numbers(made: str, taken: str, told: bool, scene: Any, tmp_path: Path) -> None:
    script = tmp_path / "memory.py"
    script.write_text(
        f"class Memory:\n    def __init__(self):\n        self.rows = {made}\n\n"
        f"    def sample(self, start):\n        return {taken}\n"
    )
    made_run = scene(step_ms=100)
    made_run.operator("aten::conv2d", 3, 40)
    evidence = made_run.evidence(tmp_path)
    vars(evidence)["scattered"] = Scattered(str(script), 5, "sample", 0.5, 2.0, 1, "", ("sample",))
    (found,) = WorkBesideModel().check(evidence)
    fix = WorkBesideModel().fix(found, Sources())
    assert isinstance(fix, Advice) and ("A deque has no index" in fix.text) is told


@pytest.mark.parametrize(
    ("taken", "told"),
    [
        ("self.frames[..., idx]", True),
        ("self.frames[:, :, picked].copy()", True),
        ("self.frames[idx]", False),
        ("self.frames[idx, ...]", False),
        ("self.frames[..., 0]", False),
        ("self.frames[0:1, idx]", False),
        ("[np.convolve(self.frames[:, idx], k) for idx in range(9)]", False),
    ],
)
def test_items_that_lie_along_the_last_axis(taken: str, told: bool, scene: Any, tmp_path: Path) -> None:
    script = tmp_path / "replay.py"
    script.write_text(f"class Memory:\n    def sample(self, idx, picked):\n        return {taken}\n")
    made_run = scene(step_ms=100)
    made_run.operator("aten::conv2d", 3, 40)
    evidence = made_run.evidence(tmp_path)
    vars(evidence)["scattered"] = Scattered(str(script), 2, "sample", 0.5, 2.0, 1, "", ("sample",))
    (found,) = WorkBesideModel().check(evidence)
    fix = WorkBesideModel().fix(found, Sources())
    assert isinstance(fix, Advice) and ("(capacity, ...)" in fix.text) is told


@pytest.mark.parametrize(("name", "told"), [("recv", False), ("sleep", False), ("histogram", True)])
def test_to_wait_is_no_work(name: str, told: bool, scene: Any, tmp_path: Path) -> None:
    made = scene(step_ms=100)
    made.operator("aten::conv2d", 3, 40)
    evidence = made.evidence(tmp_path)
    vars(evidence)["beside"] = Beside("/nowhere/train.py", 4, "step", name, 0.9, function=0.9)
    assert bool(list(WorkBesideModel().check(evidence))) is told


MATCHED = """\
def train(model, x, events):
    places = model(x)
    chosen = match(places, events)
    loss = (places[chosen] - events).square().mean()
    loss.backward()
"""


@pytest.mark.parametrize(("called", "told"), [("match", False), ("look", True)])
def test_a_matching_for_the_loss_is_part_of_the_step(called: str, told: bool, scene: Any, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(MATCHED)
    made = scene(step_ms=100)
    made.operator("aten::conv2d", 3, 40)
    made.record.call_sites = [each for each in made.record.call_sites if each.kind != "Module.call"]
    made.call("Module.call", 2, module="Net", grad=True)
    made.record.call_sites[-1].site.file = str(script)
    evidence = made.evidence(tmp_path)
    vars(evidence)["beside"] = Beside(str(script), 3, called, "linear_sum_assignment", 0.9, function=0.9)
    assert bool(list(WorkBesideModel().check(evidence))) is told


GROWS = """\
import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)
net = nn.Linear(16, 2048).eval()


def describe(batches):
    codes = {first}
    for batch in batches:
        code = net(batch)
        codes = {join}
    return codes


with torch.inference_mode():
    print(describe(torch.randn(32, 16) for _ in range(600)).shape)
"""


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(
    ("first", "join"),
    [
        ("np.zeros((0, 2048), dtype=np.float32)", "np.concatenate([codes, code.numpy()])"),
        ("torch.zeros(0, 2048)", "torch.cat([codes, code])"),
    ],
    ids=["numpy", "torch"],
)
def test_what_grows_is_joined_once(first: str, join: str, tmp_path: Path) -> None:
    script = tmp_path / "describe.py"
    script.write_text(GROWS.format(first=first, join=join))
    run = measure(Command(str(script), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK, timeout=120)
    (told,) = [each for each in diagnose(Evidence.from_run(run)).found if each.rule.id == "work-beside-model"]
    assert told.finding.site is not None and told.finding.site.line == 13
    assert isinstance(told.fix, Edit)
    (text,) = told.fix.texts.values()
    assert "codes_parts.append(code" in text and f"codes = {join}" not in text


LOOKS_UP = """\
import functools
import json
from pathlib import Path

import torch
from torch import nn

torch.set_num_threads(1)
FILE = Path(__file__).with_name("settings.json")
FILE.write_text(json.dumps({{f"part{{i}}": list(range(40)) for i in range(150)}} | {{"noise": 0.1, "scale": 2.0}}))


{kept}
def settings({given}):
    with open(FILE) as file:
        return json.load(file)


def setting(name):
    return settings()[name]


def noisy(x):
    return x + setting("noise") * torch.randn_like(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(64, 256), nn.Linear(256, 1)

    def forward(self, x):
        return self.outer(torch.relu(self.inner(x)) * setting("scale"))


def rate():
    return 0.01 / setting("scale")


net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(600):
    loss = net(noisy(torch.randn(256, 64))).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.param_groups[0]["lr"] = rate()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(
    ("kept", "given", "told"),
    [("", "", "functools.lru_cache"), ("", "file=FILE", ""), ("@functools.lru_cache", "", None)],
    ids=["the same each time", "what it is told", "kept"],
)
def test_what_many_places_ask_for_adds_up(kept: str, given: str, told: str | None, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(LOOKS_UP.format(kept=kept, given=given))
    run = measure(Command(str(script), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK, timeout=120)
    found = [each for each in diagnose(Evidence.from_run(run)).document.findings if each.rule == "work-beside-model"]
    assert len(found) == (told is not None)
    for each in found:
        lines = script.read_text().splitlines()
        assert lines[(each.line or 0) - 1].startswith("def settings(")
        assert "asked by 3 functions by way of setting()" in each.summary and (told or "") in each.fix.text
        assert ("functools.lru_cache" in each.fix.text) == bool(told)


GRAPHS = """\
import random

import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)
random.seed(0)


def molecule():
    atoms = random.randint(25, 35)
    return torch.randn(atoms, 8), [(i, random.randrange(i)) for i in range(1, atoms) for _ in range(3)]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift, self.out = nn.Linear(8, 16), nn.Linear(16, 1)

    def neighbours(self, graphs):
        rows, columns, start = [], [], 0
        for atoms, bonds in graphs:
            near = {{i: {{i}} for i in range(len(atoms))}}
            for a, b in bonds:
                near[a].add(b)
                near[b].add(a)
            for i in range(len(atoms)):
                for j in sorted(near[i]):
                    rows.append(start + i)
                    columns.append(start + j)
            start += len(atoms)
        return torch.from_numpy(np.array(rows)), torch.from_numpy(np.array(columns))

    def forward(self, graphs, edges):
        rows, columns = {edges}
        h = torch.relu(self.lift(torch.cat([atoms for atoms, _ in graphs])))
        return self.out(torch.zeros_like(h).index_add(0, rows, h[columns])).mean()


data = [molecule() for _ in range(400)]
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
batches = [random.sample(data, 48) for _ in range(8)]
prepared = [net.neighbours(batch) for batch in batches]
for step in range(600):
    loss = net(batches[step % 8], prepared[step % 8]).square()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(("edges", "told"), [("self.neighbours(graphs)", 1), ("edges", 0)], ids=["anew", "prepared"])
def test_what_the_forward_puts_together_in_python(edges: str, told: int, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(GRAPHS.format(edges=edges))
    run = measure(Command(str(script), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK, timeout=120)
    found = [each for each in diagnose(Evidence.from_run(run)).document.findings if each.rule == "work-beside-model"]
    assert len(found) == told
    for each in found:
        assert script.read_text().splitlines()[(each.line or 0) - 1].startswith("    def neighbours(")
        assert "within the model's forward" in each.summary


DRAWS = """\
import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)


class Board:
    def __init__(self):
        self.cells = np.random.rand(40, 40)

    def render(self):
        return np.kron(self.cells, np.ones((8, 8))).round(2).tobytes()

    def moves(self):
        return np.sort(np.repeat(self.cells, 12, axis=1), axis=0).sum(0)[:40].tolist()

    def score(self):
        return float(np.median(np.repeat(self.cells, 24, axis=1), axis=0).sum())

    def step(self, move, render):
        self.cells[move % 40] = np.random.rand(40)
        if render:
            self.render()


board = Board()
net = nn.Sequential(nn.Linear(40, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
for episode in range(1500):
    for move in range(8):
        seen = board.moves()
        board.step(move, render={render})
        gained = board.score()
    loss = net(torch.tensor(seen)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.sessions
def test_what_is_drawn_while_nobody_looks_on(tmp_path: Path) -> None:
    script = tmp_path / "play.py"
    script.write_text(DRAWS.format(render=True))
    run = measure(Command(str(script), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK, timeout=120)
    (told,) = [each for each in diagnose(Evidence.from_run(run)).document.findings if each.rule == "work-beside-model"]
    assert "render() (play.py:12)" in told.summary and "render_mode=None" in told.fix.text


OWN_OPTIMIZER = """\
import torch
from torch import nn

torch.set_num_threads(1)
net = nn.Sequential(*[nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32)) for _ in range(40)])
velocity = {}


def update(parameters, lr=0.01, momentum=0.9, decay=1e-4):
    with torch.no_grad():
        for p in parameters:
            g = p.grad + decay * p
            v = velocity.setdefault(p, torch.zeros_like(p))
            v.mul_(momentum).add_(g)
            p -= lr * (g + momentum * v)
            p.grad = None


for step in range(300):
    net(torch.randn(16, 32)).square().mean().backward()
    update(net.parameters())
"""


@pytest.mark.slow
@pytest.mark.sessions
def test_an_optimizer_that_is_written_out_is_told_of_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(OWN_OPTIMIZER)
    run = measure(Command(str(tmp_path / "train.py"), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK)
    evidence = Evidence.from_run(run)
    assert evidence.beside is not None and evidence.beside.name == "update"  # what would be told of otherwise
    rules = {each.rule for each in diagnose(evidence).document.findings}
    assert "fused-optimizer" in rules and "work-beside-model" not in rules
