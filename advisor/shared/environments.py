"""Scripts whose policy acts in an environment: what it does there makes what is trained on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from advisor.edit.sources import text_of
from advisor.rule import model_files

if TYPE_CHECKING:
    from advisor.evidence import Evidence

_ENVIRONMENTS = re.compile(
    r"^\s*(import|from)\s+(gym|gymnasium|pettingzoo|procgen|dm_control|stable_baselines3)\b", re.M
)


def acts_in_environment(evidence: Evidence) -> bool:
    """Whether any file of the model's own imports one of the libraries that have environments."""
    return any(_ENVIRONMENTS.search(text_of(path)) for path in model_files(evidence))
