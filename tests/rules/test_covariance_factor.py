"""Covariances that are multiplied out to be factored again are found, and the factor gives the same distribution."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from advisor.edit import Draft, Edit, Sources
from advisor.edit.algebra.covariances import covariances, factored
from advisor.edit.sources import Source
from advisor.evidence import Evidence
from advisor.harness.layout import Site
from advisor.launch import Command, measure
from advisor.rule import Advice, Finding, Gain
from rules.covariance_factor import CovarianceFactor
from tests.conftest import PYTHON, QUICK

SCRIPT = """\
import torch
from torch import nn
from torch.distributions import MultivariateNormal

torch.manual_seed(0)
torch.set_num_threads(1)


class Posterior(nn.Module):
    def __init__(self):
        super().__init__()
        self.loc = nn.Linear(8, 6)
        self.raw = nn.Linear(8, 36)

    def factor(self, x):
        raw = self.raw(x).view(-1, 6, 6)
        diagonal = nn.functional.softplus(raw.diagonal(dim1=-2, dim2=-1)) + 0.1
        return raw.tril(-1) + torch.diag_embed(diagonal)

    def forward(self, x):
        {made}


model = Posterior()
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for step in range(300):
    loss = -model(torch.randn(1000, 8)).log_prob(torch.randn(1000, 6)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
OUT = "factor = self.factor(x)\n        return MultivariateNormal(self.loc(x), covariance_matrix=factor @ factor.mT)"


def findings(folder: Path, made: str) -> list[Finding]:
    (folder / "train.py").write_text(SCRIPT.format(made=made))
    run = measure(Command(str(folder / "train.py"), python=PYTHON, cwd=str(folder)), folder / "run", QUICK)
    return list(CovarianceFactor().check(Evidence.from_run(run)))


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(
    ("made", "given"),
    [
        pytest.param(OUT, "scale_tril=factor", id="product"),
        pytest.param(
            "covariance = torch.diag_embed(self.loc(x).exp())\n"
            "        return MultivariateNormal(self.loc(x), covariance)",
            "scale_tril=torch.diag_embed(self.loc(x).exp().sqrt())",
            id="diagonal",
        ),
        pytest.param(OUT.replace("self.factor(x)", "self.factor(x) * 2"), "", id="not certain"),
    ],
)
def test_covariances_that_are_made_of_their_factor_are_found(made: str, given: str, tmp_path: Path) -> None:
    (finding,) = findings(tmp_path, made)
    assert finding.site is not None and finding.site.line == 22
    assert finding.evidence["distributions_per_step"] == 1 and finding.gain.likely > 1.2
    fix = CovarianceFactor().fix(finding, Sources())
    assert isinstance(fix, Edit if given else Advice)
    assert not isinstance(fix, Edit) or given in next(iter(fix.texts.values()))


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(
    "made",
    [
        OUT.replace("covariance_matrix=factor @ factor.mT", "scale_tril=factor"),
        OUT.replace("factor @ factor.mT", "factor @ factor.mT + torch.eye(6)"),
    ],
    ids=["factor", "more than a product"],
)
def test_silent_where_the_factor_is_not_at_hand(made: str, tmp_path: Path) -> None:
    assert not findings(tmp_path, made)


LOW = """\
loadings = self.raw(x).view(-1, {rows}, {rank})
        noise = nn.functional.softplus(self.raw(x)[:, :{rows}]) + 0.1
        covariance = loadings @ loadings.mT + torch.diag_embed(noise)
        return MultivariateNormal(noise, covariance)"""


@pytest.mark.slow
@pytest.mark.sessions
@pytest.mark.parametrize(("rows", "rank", "told"), [(18, 2, True), (6, 6, False)])
def test_a_covariance_of_low_rank_is_found(rows: int, rank: int, told: bool, tmp_path: Path) -> None:
    body = LOW.format(rows=rows, rank=rank)
    body += f"\n\n\nx, y = torch.randn(1000, 8), torch.randn(1000, {rows})"
    script = SCRIPT.replace("torch.randn(1000, 8)", "x").replace("torch.randn(1000, 6)", "y")
    (tmp_path / "train.py").write_text(script.format(made=body))
    run = measure(Command(str(tmp_path / "train.py"), python=PYTHON, cwd=str(tmp_path)), tmp_path / "run", QUICK)
    found = list(CovarianceFactor().check(Evidence.from_run(run)))
    assert len(found) == told
    for each in found:
        assert "18x18, though they are of rank 2" in each.summary and each.gain.likely > 1.5
        fix = CovarianceFactor().fix(each, Sources())
        assert isinstance(fix, Advice) and "cov_factor=loadings, cov_diag=noise" in fix.text


@pytest.mark.parametrize(
    ("written", "parts"),
    [
        ("x @ x.mT + torch.diag_embed(m)", ("x", "m")),
        ("torch.diag(m) + torch.matmul(x, x.transpose(-1, -2))", ("x", "m")),
        ("x @ x.T + 1e-3 * torch.eye(3)", ("x", "1e-3")),
        ("x @ m.mT + torch.diag_embed(m)", None),
        ("x @ x.mT + m", None),
        ("x @ x.mT - torch.diag_embed(m)", None),
    ],
)
def test_a_matrix_by_its_own_transpose_and_a_diagonal(written: str, parts: tuple[str, str] | None) -> None:
    text = f"import torch\nimport torch.distributions as D\n\ndef f(m, x):\n    c = {written}\n"
    (found,) = covariances(Draft(Source("train.py", text + "    return D.MultivariateNormal(m, c)\n")), 4)
    assert found.parts == parts and not found.factor


def values(text: str) -> torch.Tensor:
    torch.manual_seed(0)
    space: dict[str, object] = {}
    exec(text, space)
    distribution = space["f"](torch.randn(5, 3).double(), torch.randn(5, 3, 3).double())  # type: ignore[operator]
    samples = distribution.sample()
    return torch.cat([samples, distribution.log_prob(samples)[:, None], distribution.entropy()[:, None]], 1)


@pytest.mark.parametrize(
    "body",
    [
        "return D.MultivariateNormal(m, lower @ lower.mT)",
        "return D.MultivariateNormal(m, torch.bmm(lower, lower.transpose(1, 2)), validate_args=False)",
        "c = lower @ lower.transpose(-2, -1); return D.MultivariateNormal(loc=m, covariance_matrix=c)",
        "return D.MultivariateNormal(m, torch.diag_embed(m.exp() + 1))",
    ],
)
def test_the_same_is_drawn(body: str) -> None:
    lower = "lower = x.tril(-1) + torch.diag_embed(x.diagonal(dim1=1, dim2=2).exp()); "
    text = "import torch\nimport torch.distributions as D\n\ndef f(m, x):\n    "
    text += (lower + body).replace("; ", "\n    ") + "\n"
    draft = Draft(Source("train.py", text))
    (found,) = covariances(draft, 4)
    assert found.certain
    factored(draft, found)
    assert "scale_tril=" in draft.render() and "@" not in draft.render() and "bmm" not in draft.render()
    torch.testing.assert_close(values(draft.render()), values(text))


@pytest.mark.parametrize(
    "body",
    [
        "return D.MultivariateNormal(m, x @ x.mT)",  # not triangular
        "return D.MultivariateNormal(m, torch.linalg.cholesky(x) @ x.mT)",
        "return D.MultivariateNormal(m, precision_matrix=x)",
        "return D.MultivariateNormal(*given)",
        "return D.MultivariateNormal(m, x.tril() + x.mT)",
        "c = torch.tril(x); return D.MultivariateNormal(m, c @ c.mT)",  # its diagonal may be negative
        "c = x.tril(-1) + torch.diag_embed(m); return D.MultivariateNormal(m, c @ c.mT)",
        "c = torch.linalg.cholesky(x, upper=True); return D.MultivariateNormal(m, c @ c.mT)",
        "c = torch.diag_embed(x[0]); x = x * 2; return D.MultivariateNormal(m, c)",
        "if given is None: given = torch.diag_embed(m.exp());\n    return D.MultivariateNormal(m, given)",
        "return D.MultivariateNormal(m, torch.diag_embed(m.exp()), None, None, False)",
    ],
)
def test_what_may_be_no_factor(body: str) -> None:
    text = "import torch\nimport torch.distributions as D\n\ndef f(m, x, given):\n    "
    text += body.replace("; ", "\n    ") + "\n"
    assert not any(each.certain for each in covariances(Draft(Source("train.py", text)), 4))


def test_what_needs_no_matrices_is_said(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    text = "import torch\nimport torch.distributions as D\n\ndef f(m, x):\n    return D.MultivariateNormal(m, {})\n"
    for given, said in (("torch.diag_embed(x.exp())", True), ("torch.linalg.cholesky(x) @ x.mT", False)):
        script.write_text(text.format(given))
        site = Site(str(script), 5)
        finding = Finding("covariance-factor", "", "", Gain(1.2, 1.5, 2.0), {}, site, {"distributions": (site,)})
        fix = CovarianceFactor().fix(finding, Sources())
        assert isinstance(fix, Edit) == said
        assert not isinstance(fix, Edit) or "needs no matrices at all" in fix.summary
