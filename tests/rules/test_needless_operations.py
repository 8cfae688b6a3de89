"""What takes fewer operations is found in real runs: sorts, inverses, chains of products, modules one after another."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from advisor.edit import Edit, Sources
from advisor.evidence import Evidence
from advisor.evidence.python_loops.module_loops import loops_over_modules
from advisor.launch import Command, measure
from advisor.rule import Advice, Finding, Gain, Rule
from rules.fft_convolution import FftConvolution
from rules.inverse_product import InverseProduct
from rules.product_order import ProductOrder
from rules.python_loop_over_modules import PythonLoopOverModules
from rules.reduced_svd import ReducedSvd
from rules.sort_for_topk import SortForTopk
from tests.conftest import PYTHON, QUICK

SCRIPT = """\
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 16)
        self.parts = nn.ModuleList([nn.Linear(16, 16) for _ in range(24)])
        self.sizes = nn.ModuleList([nn.Linear(16, 8 + size) for size in range(24)])
        self.register_buffer("wide", torch.rand(300, 300) / 300 + torch.eye(300))

    def forward(self, x):
        h = torch.tanh(self.inner(x))
        {body}


net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
for step in range(300):
    loss = net(torch.randn(300, 16)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def findings(rule: Rule, folder: Path, body: str) -> list[Finding]:
    body = body.replace("\n", "\n        ")
    (folder / "train.py").write_text(SCRIPT.format(body=body))
    run = measure(Command(str(folder / "train.py"), python=PYTHON, cwd=str(folder)), folder / "run", QUICK)
    return list(rule.check(Evidence.from_run(run)))


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(
    ("rule", "body", "line", "after"),
    [
        pytest.param(
            SortForTopk(),
            "near = (h @ h.T).repeat(1, 40)\nvalues, order = near.sort(dim=1, descending=True)\n"
            "return values[:, :5] + h.sum() * order[:, :5].float()",
            19,
            "near.topk(min(5, near.shape[-1]), dim=-1, largest=True)",
            id="sort",
        ),
        pytest.param(
            InverseProduct(),
            "k = h @ h.T + 300 * self.wide\nreturn torch.inverse(k) @ h",
            19,
            "torch.linalg.solve(k, h)",
            id="inverse",
        ),
        pytest.param(
            ProductOrder(),
            "return self.wide @ self.wide @ h",
            18,
            "self.wide @ (self.wide @ h)",
            id="product",
        ),
        pytest.param(
            ReducedSvd(),
            "with torch.no_grad():\n    U, S, Vh = torch.linalg.svd(h)\nreturn h @ Vh[:4].mT",
            19,
            "torch.linalg.svd(h, full_matrices=False)",
            id="decomposition",
        ),
        pytest.param(
            ReducedSvd(),
            "with torch.no_grad():\n    size = torch.linalg.svd(h.repeat(1, 4)[:, :40])[1]\nreturn h / size[0]",
            19,
            "size = torch.linalg.svdvals(h.repeat(1, 4)[:, :40])",
            id="singular values",
        ),
    ],
)
def test_operations_that_are_not_needed_are_found(rule: Rule, body: str, line: int, after: str, tmp_path: Path) -> None:
    (finding,) = findings(rule, tmp_path, body)
    assert finding.site is not None and finding.site.line == line
    assert finding.gain.likely > 1.1
    fix = rule.fix(finding, Sources())
    assert isinstance(fix, Edit)
    assert after in fix.diff(tmp_path)


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(
    ("rule", "body"),
    [
        pytest.param(
            SortForTopk(),
            "values, order = (h @ h.T).sort(dim=1)\nreturn values[:, :5].sum() + values[:, 7:].square()",
            id="more of the order is read",
        ),
        pytest.param(
            SortForTopk(),
            "seen = (h @ h.T > 0).long().repeat(1, 40)\norder = seen.argsort(dim=1, descending=True)\n"
            "return (h @ h.T).repeat(1, 40).gather(1, order[:, :5])",
            id="whole numbers, of which many are equal",
        ),
        pytest.param(
            InverseProduct(),
            "k = h @ h.T + 300 * self.wide\nreturn torch.inverse(k) @ self.wide",
            id="of a wide matrix",
        ),
        pytest.param(ProductOrder(), "return h.T @ self.wide @ self.wide", id="the narrow one is first"),
        pytest.param(
            ReducedSvd(),
            "with torch.no_grad():\n    U, S, Vh = torch.linalg.svd(h)\nreturn U[:, 16:].mT @ h",
            id="the other columns are read",
        ),
        pytest.param(
            ReducedSvd(), "return h / torch.linalg.svd(h[:16])[1][0]", id="singular values that have a gradient"
        ),
        pytest.param(
            FftConvolution(),
            "return nn.functional.conv1d(h.reshape(1, 1, -1), self.wide[:1, None], stride=3)",
            id="a long filter with a stride",
        ),
        pytest.param(ProductOrder(), "return torch.tanh(self.wide @ self.wide) @ h", id="something in between"),
    ],
)
def test_operations_that_are_needed_are_not_reported(rule: Rule, body: str, tmp_path: Path) -> None:
    assert findings(rule, tmp_path, body) == []


@pytest.mark.slow
@pytest.mark.sessions
def test_modules_that_are_called_one_after_another_are_found(tmp_path: Path) -> None:
    (finding,) = findings(PythonLoopOverModules(), tmp_path, "return torch.stack([part(h) for part in self.parts])")
    assert finding.site is not None and finding.site.line == 18
    assert finding.evidence["modules"] == 24 and finding.gain.likely > 1.2
    fix = PythonLoopOverModules().fix(finding, Sources())
    assert isinstance(fix, Advice) and "baddbmm" in fix.text


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(
    "body",
    [
        pytest.param("for part in self.parts:\n    h = part(h)\nreturn h", id="one on top of the other"),
        pytest.param("return torch.cat([part(h) for part in self.sizes], 1)", id="of different sizes"),
    ],
)
def test_modules_that_are_no_loop_at_once_are_not_reported(body: str, tmp_path: Path) -> None:
    assert findings(PythonLoopOverModules(), tmp_path, body) == []


LOOPS = """\
def forward(self, x):
    a = [head(x) for head in self.heads]
    for i, net in enumerate(self.nets):
        b.append(net(x[i]))
    for i in range(3):
        c[i] = self.layers[i](x)
    for layer in self.layers:
        x = layer(x)
    for name in names:
        d.append(look(name))
    for net in nets:
        net.reset()
    return a
"""


def test_the_loops_over_modules_of_a_function_are_told_by_what_they_call() -> None:
    assert loops_over_modules(LOOPS, 1) == [2, 3, 5]
    assert loops_over_modules(LOOPS, 0) == [2, 3, 5]
    assert loops_over_modules(LOOPS, 2) == []
    assert loops_over_modules("def f(:", 1) == []


@pytest.mark.slow
@pytest.mark.sessions
def test_long_filters_are_found(tmp_path: Path) -> None:
    body = (
        "long = self.wide[:1].repeat(1, 4)[:, None]\nreturn nn.functional.conv1d(h.reshape(1, 1, -1), long, padding=7)"
    )
    (finding,) = findings(FftConvolution(), tmp_path, body)
    assert finding.site is not None and finding.site.line == 19
    assert finding.evidence["taps"] == 1200 and finding.evidence["samples"] == 4800
    assert finding.gain.likely > 1.2


@pytest.mark.parametrize(
    ("channels", "filters", "groups", "padding"),
    [(1, 1, 1, 150), (1, 3, 1, 0), (4, 4, 4, 299), (2, 5, 1, 7), (4, 6, 2, 150), (2, 4, 2, 0)],
)
def test_the_transforms_that_are_advised_give_what_the_convolution_does(
    channels: int, filters: int, groups: int, padding: int
) -> None:
    x, weight = torch.randn(3, channels, 700), torch.randn(filters, channels // groups, 300)
    parameters = {
        "padding": padding,
        "taps": 300,
        "channels": channels // groups,
        "groups": groups,
        "filters": filters,
    }
    finding = Finding("fft-convolution", "", "", Gain(1, 1, 1), {}, parameters=parameters)
    text = FftConvolution().fix(finding, Sources()).text
    names: dict[str, object] = {"torch": torch, "x": x, "weight": weight, "t": 700, "k": 300}
    parts = re.search(r", p = (.+?) \(the padding\) and n = (.+?), spectrum = (.+), the result is (.+\]), plus", text)
    assert parts is not None
    for name, code in zip(("p", "n", "spectrum", "y"), parts.groups(), strict=True):
        names[name] = eval(code, names)
    directly = torch.nn.functional.conv1d(x, weight, padding=padding, groups=groups)
    torch.testing.assert_close(names["y"], directly, rtol=1e-3, atol=1e-3)
