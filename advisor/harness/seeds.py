"""What the script draws by chance is the same in each run."""

from __future__ import annotations

import random

from .imports import PostImport


def seed_generators(seed: int, imports: PostImport) -> None:
    """Python's generator now, NumPy's once it is there; torch's are the observer's, the order of sets the parent's.

    Workers of a loader take theirs from torch's. Generators that the script makes without a seed stay as they are.
    """
    random.seed(seed)
    imports.when_imported("numpy.random", lambda module: module.seed(seed % 2**32))
