"""Batch norms of a step, by the operators that PyTorch runs them with."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from advisor.evidence import Evidence

# torch's own (torch's batch_norm_collect_statistics), cuDNN's and MIOpen's.
BATCH_NORMS = ("aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::miopen_batch_norm")


def batch_norms(evidence: Evidence) -> float:
    """How many a step calls."""
    return sum(row.count for name in BATCH_NORMS if (row := evidence.operators.row(name)) is not None)
