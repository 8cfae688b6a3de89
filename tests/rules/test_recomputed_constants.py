"""What a forward computes from constants in each step is found by running scripts that do, and only there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advisor.edit import Sources
from advisor.evidence import Evidence
from advisor.harness.layout import Recomputed, Site
from advisor.launch import Command, measure
from advisor.rule import Advice
from advisor.run import Run
from rules.recomputed_constants import RecomputedConstants
from tests.conftest import PYTHON, QUICK

SCRIPT = """\
import torch
from torch import nn

torch.manual_seed(0)


def modes(adjacency):
    laplacian = torch.diag(adjacency.sum(1)) - adjacency
    return torch.linalg.eigh(laplacian)[1]


class Graph(nn.Module):
    def __init__(self, nodes=200):
        super().__init__()
        weights = torch.rand(nodes, nodes)
        self.register_buffer("adjacency", weights + weights.T)
        self.out = nn.Linear(nodes, nodes)

    def forward(self, x=None, links=None):
        {forward}


model = Graph()
{before}
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batch = torch.randn(32, 200)
for step in range(300):
    {drawn}
    loss = {loss}.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
PARTS = {
    "forward": "return self.out(x @ modes(self.adjacency))",
    "before": "",
    "drawn": "batch = torch.randn(32, 200)",
    "loss": "model(batch)",
}


def run_of(folder: Path, **parts: str) -> Run:
    (folder / "train.py").write_text(SCRIPT.format(**{**PARTS, **parts}))
    return measure(Command(str(folder / "train.py"), python=PYTHON, cwd=str(folder)), folder / "run", QUICK)


@pytest.mark.slow
@pytest.mark.sessions
def test_a_constant_of_each_forward_is_found(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    (line,) = [each for each in run.record.recomputed if each.site.line == 9]
    assert line.calls == 1 and line.site.function == "modes"
    assert [each.line for each in line.called_from][:2] == [9, 20]
    (finding,) = RecomputedConstants().check(Evidence.from_run(run))
    assert finding.site is not None and finding.site.line == 9
    assert "called at train.py:20" in finding.summary and finding.gain.likely > 1.1
    advice = RecomputedConstants().fix(finding, Sources())
    assert isinstance(advice, Advice) and "register_buffer" in advice.text


SCRIPTED = """
@torch.jit.script
def gate(x):
    return x * torch.sigmoid(x)


"""


@pytest.mark.slow
@pytest.mark.sessions
def test_beside_an_encoder_on_its_fast_path_it_is_found(tmp_path: Path) -> None:
    """A mode would switch that off: the encoder is told of from outside."""
    script = SCRIPT.format(
        **{
            **PARTS,
            "before": "layer = nn.TransformerEncoderLayer(200, 4, 64, batch_first=True)\n"
            "model = nn.Sequential(model, nn.Unflatten(0, (8, 4)), nn.TransformerEncoder(layer, 1)).eval()\n"
            "torch.set_grad_enabled(False)",
        }
    )
    (tmp_path / "train.py").write_text(script.partition("    optimizer.zero_grad")[0])
    run = measure(Command(str(tmp_path / "train.py"), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK)
    assert {each.site.function for each in run.record.recomputed} == {"modes"}
    finding, *_ = RecomputedConstants().check(Evidence.from_run(run))
    assert finding.site is not None and finding.site.line == 9
    trace = Evidence.from_run(run).trace
    assert "aten::_transformer_encoder_layer_fwd" in map(trace.name, set(trace.operators.name.tolist()))


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize("drawn", [True, False])
def test_beside_a_function_of_torchscript_it_is_found_where_the_batches_differ(tmp_path: Path, drawn: bool) -> None:
    parts = {**PARTS, "forward": "return self.out(gate(x) @ gate(modes(self.adjacency)))"}
    if not drawn:  # what the function gives is the same in each step, as all is
        parts["drawn"] = "pass"
    (tmp_path / "train.py").write_text(SCRIPT.format(**parts).replace("\n\ndef modes", SCRIPTED + "\n\ndef modes"))
    run = measure(Command(str(tmp_path / "train.py"), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK)
    found = [each.site.function for each in run.record.recomputed]
    assert ("modes" in found) == drawn and run.record.complete
    assert drawn or not found


@pytest.mark.slow
@pytest.mark.sessions
def test_a_constant_beside_what_a_model_is_given_each_time_is_found(tmp_path: Path) -> None:
    """A graph's nodes are the batch of each step, and what is made of the graph alone depends on none of them."""
    run = run_of(tmp_path, drawn="pass")
    (line,) = [each for each in run.record.recomputed if each.site.line == 9]
    assert line.calls == 1 and line.site.function == "modes" and not line.whole


@pytest.mark.slow
@pytest.mark.sessions
def test_what_is_made_of_a_graph_that_a_model_is_given_each_time_is_found(tmp_path: Path) -> None:
    """It comes with the features of its nodes: all that there is, and no batch that could be another one."""
    run = run_of(
        tmp_path,
        before="links = torch.rand(300, 300)\nwhole = torch.randn(300, 200), links + links.T",
        drawn="batch, links = whole",
        forward="return self.out(modes(links) @ (x @ modes(x.T @ x)))",
        loss="model(batch, links)",
    )
    (line,) = [each for each in run.record.recomputed if each.site.line == 9]
    assert line.calls == 1 and not line.whole  # not the modes of what the nodes' features make


BANDS = """
import numpy as np

def bands(shift=0.0):
    rows = [[max(0.0, 1.0 - abs(i - 2 * j) / 3) + shift for j in range(200)] for i in range(200)]
    return np.array(rows, dtype=np.float32)
"""


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(
    ("made", "told"),
    [
        ("torch.from_numpy(bands())", True),
        ("torch.tensor(bands())", True),
        ("torch.from_numpy(bands(float(x[0, 0])))", False),
        ("torch.full((200, 200), float(len(bands(float(x[0, 0])))))", False),  # after what is no constant
    ],
)
def test_a_constant_that_python_makes_is_found(made: str, told: bool, tmp_path: Path) -> None:
    """What Python and NumPy take for its numbers is seen by none of torch's functions."""
    run = run_of(tmp_path, before=BANDS, forward=f"return self.out(x @ {made})")
    found = list(RecomputedConstants().check(Evidence.from_run(run)))
    assert len(found) == told
    if told:
        (line,) = run.record.recomputed
        assert line.seconds > 2e-3 and line.site.line == 20 and found[0].gain.likely > 1.3


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize("layout", ["", ".to_sparse_csr()"])
def test_products_of_a_sparse_matrix_that_a_model_keeps_are_found(tmp_path: Path, layout: str) -> None:
    """It is given nothing: what it computes on, a whole graph, it has."""
    links = "torch.sparse_coo_tensor(torch.randint(3000, (2, 60000)), torch.rand(60000), (3000, 3000)).coalesce()"
    run = run_of(
        tmp_path,
        forward="return self.out(self.links @ self.adjacency)",
        before=f"model.links, model.adjacency = {links}{layout}, torch.rand(3000, 200)",
        drawn="pass",
        loss="model()",
    )
    (line,) = run.record.recomputed
    assert (line.site.line, line.calls, line.whole) == (20, 1, False)


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(
    "parts",
    [
        {"drawn": "pass", "forward": "return self.out(x @ modes((x.T @ x).relu()))"},  # one batch for ever
        {  # two of them, as wide as they are long: no graph
            "before": "whole = torch.randn(200, 200), torch.randn(200, 200)",
            "drawn": "batch, links = whole",
            "forward": "return self.out(x @ modes(links + links.T))",
            "loss": "model(batch, links)",
        },
        {  # the same batch each time, written into a buffer first
            "drawn": "pass",
            "forward": "room = torch.zeros(200, 200)\n        room[:32] = x\n"
            "        return self.out(x @ modes(room @ room.T))",
        },
        {"forward": "return self.out(x @ modes(self.adjacency + x.mean()))"},
        {"forward": "return self.out(x @ modes(torch.rand(200, 200)))"},
        {"forward": "return self.out(x @ modes(self.out.weight.detach()))"},
        {"forward": "return torch.compile(self.out, backend='eager')(x @ modes(self.adjacency))"},
        {
            "forward": "return self.out(x)",
            "before": "for _ in range(3):\n    modes(model.adjacency)",
        },
        {  # three steps of as many forwards would take long
            "forward": "return self.out(x @ modes(self.adjacency) if torch.is_grad_enabled() else x)",
            "drawn": "batch = torch.randn(32, 200)\n    with torch.no_grad():\n"
            "        for _ in range(201):\n            model(batch)",
        },
    ],
    ids=[
        "one-batch",
        "two-batches",
        "one-batch-written",
        "batch",
        "random",
        "weights",
        "compiled",
        "before",
        "many-forwards",
    ],
)
def test_silent_where_nothing_is_constant(tmp_path: Path, parts: dict[str, str]) -> None:
    run = run_of(tmp_path, **parts)
    assert run.record.ended in ("stopped", "finished")
    assert not list(RecomputedConstants().check(Evidence.from_run(run)))


@pytest.mark.slow
@pytest.mark.sessions
def test_modes_of_the_script_stay_what_they_are(tmp_path: Path) -> None:
    """A default device is such a mode; the forward here sets another one, and ends it."""
    (tmp_path / "train.py").write_text(
        SCRIPT.format(
            **{
                **PARTS,
                "forward": "with torch.device('meta'):\n            made = torch.ones(3)\n"
                "        assert made.device.type == 'meta' and torch.ones(3).device.type == 'cpu'\n"
                "        return self.out(x @ modes(self.adjacency))",
                "before": "torch.set_default_device('cpu')",
            }
        )
    )
    run = measure(Command(str(tmp_path / "train.py"), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK)
    assert run.record.ended in ("stopped", "finished") and run.record.failure is None
    assert run.record.recomputed


CATALOGUE = """\
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
items, shoppers = nn.GRU(16, 64, batch_first=True).eval(), nn.Linear(16, 64).eval()
catalogue = torch.randn(200, 24, 16)


@torch.inference_mode()
def answer(request):
    known = items({given})[1][-1]
    return (shoppers(request) @ known.T).topk(5, 1).indices.tolist()


for number in range(400):
    answer(torch.randn(32, 16){scale})
"""


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(
    ("given", "scale", "whole"),
    [
        ("catalogue", "", True),
        ("torch.randn(200, 24, 16)", "", False),
        ("catalogue", " * 0", False),  # requests that are all the same: nothing tells what depends on them
    ],
    ids=["the same catalogue", "another one", "the same requests"],
)
def test_a_model_that_gives_the_same_each_time_is_found_as_a_whole(
    given: str, scale: str, whole: bool, tmp_path: Path
) -> None:
    (tmp_path / "serve.py").write_text(CATALOGUE.format(given=given, scale=scale))
    run = measure(Command(str(tmp_path / "serve.py"), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK)
    findings = list(RecomputedConstants().check(Evidence.from_run(run)))
    assert len(findings) == whole
    for finding in findings:
        assert finding.site is not None and finding.site.line == 12 and finding.gain.likely > 1.5
        assert "where a model is called" in finding.summary
        advice = RecomputedConstants().fix(finding, Sources())
        assert isinstance(advice, Advice) and "Call the model that is called at serve.py:12 once" in advice.text


@pytest.mark.parametrize(
    ("kind", "step_ms", "reported"), [("forward", 0.5, False), ("forward", 5.0, True), ("optimizer", 0.5, True)]
)
def test_what_short_forwards_have_in_common_may_be_one_request_s(
    kind: str, step_ms: float, reported: bool, scene: Any, tmp_path: Path
) -> None:
    made = scene(step_ms=step_ms)
    made.record.step_kind = kind
    made.record.recomputed = [Recomputed(Site("ranker.py", 21), seconds=0.4e-3 * step_ms)]
    assert bool(list(RecomputedConstants().check(made.evidence(tmp_path)))) == reported
