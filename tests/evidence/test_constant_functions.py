"""Which function returns what is the same in every step, by its source."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.evidence.constant_functions import _returning
from advisor.harness.layout import Recomputed, Site

TEXT = """\
import torch
from torch.distributions import MultivariateNormal


def anchors(sizes):
    boxes = [torch.arange(each) for each in sizes]
    {body}
"""


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("return torch.cat(boxes)", True),
        ("found = torch.cat(boxes)\n    return found", True),
        ("return MultivariateNormal(boxes[0], boxes[1])", False),  # what it checks is constant, it is not
        ("return torch.distributions.Normal(boxes[0], 1.0)", False),
        ("found = torch.cat(boxes)\n    return found + 1", False),
        ("self.kept = torch.cat(boxes)\n    return self.kept", False),
    ],
)
def test_a_function_returns_what_is_constant(body: str, told: bool, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(TEXT.format(body=body))
    site = Site(str(path), TEXT.splitlines().index("    {body}") + 1)
    assert (
        _returning(Recomputed(site=site, called_from=[site]), lambda file: Path(file).read_text()) is not None
    ) is told
