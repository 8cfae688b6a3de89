"""advisor: ranked, measured, ready-to-apply fixes for the PyTorch script you already have.

A script needs nothing from this package. The one thing it may use is :func:`step`, which says
where one step ends when the advisor cannot see it (no optimizer, no loader, no module call).
"""

from __future__ import annotations

from collections.abc import Callable

__version__ = "0.1.0"
__all__ = ["__version__", "step"]

# Set by the harness while a run is measured; outside a run it stays None.
_on_step: Callable[[], None] | None = None


def step() -> None:
    """Mark the end of one step; does nothing outside an advisor run.

    Once called, it alone defines the steps: optimizers, loaders and forwards are no boundaries any more.
    """
    if _on_step is not None:
        _on_step()
