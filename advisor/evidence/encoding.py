"""How much of the steps the encoder takes of a model that decodes: by the modules that a window with stacks names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from advisor.evidence.coded import names_like
from advisor.evidence.host import select
from advisor.evidence.steps import step_windows

if TYPE_CHECKING:
    from advisor.trace.tables import Trace

# As the profiler names the calls of modules (torch/csrc/autograd/profiler_python.cpp): "nn.Module: BartEncoder_0".
_ENCODER = re.compile(r"nn\.Module: \w*Encoder_\d+$")


def encoding_share(detail: Trace | None) -> float:
    """The share of the steps in which an encoder runs; 0 without a window with stacks, or an encoder in it."""
    if detail is None:
        return 0.0
    steps, python = step_windows(detail), detail.python
    rows = names_like(detail, python.name, _ENCODER.match) & np.isin(python.lane, [steps.lane])
    return float(select(python, rows).within(steps.start, steps.end).sum()) / max(1, steps.total_ns)
