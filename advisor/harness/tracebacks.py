"""What anomaly detection costs: it writes down a traceback for every operation that autograd records."""

from __future__ import annotations

import sys
import time
from typing import Any

from .patches import Patch


class Tracebacks:
    """Seconds in ``torch.fx.traceback.format_stack``, which autograd calls for each node while the mode is on.

    (torch/csrc/autograd/python_anomaly_mode.cpp, ``PyAnomalyMetadata::store_stack``.)
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._patch: Patch | None = None
        self.seconds = 0.0

    def on(self) -> None:
        """Begin anew; nothing is looked at in a script that never switched the mode on."""
        self.seconds = 0.0
        module = sys.modules.get("torch.fx.traceback")
        if module is not None and hasattr(module, "format_stack"):
            self._patch = self._patch or Patch(module, "format_stack", self._timed)
            self._patch.on()

    def off(self) -> None:
        if self._patch is not None:
            self._patch.off()

    def _timed(self, original: Any) -> Any:
        def format_stack() -> Any:
            if not self._torch.is_anomaly_enabled():
                return original()
            began = time.perf_counter()
            try:
                return original()
            finally:
                self.seconds += time.perf_counter() - began

        return format_stack
