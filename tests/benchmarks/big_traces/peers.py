"""What other tools do with a trace by default, each in a process of its own. Prints its version.

    python tests/benchmarks/big_traces/peers.py torch-tb-profiler|HTA TRACE.json.gz [--version]
"""

from __future__ import annotations

import importlib.metadata
import sys
import tempfile
from collections.abc import Callable


def torch_tb_profiler(trace: str) -> None:
    """Parse and overview, as TensorBoard asks for them first."""
    from torch_tb_profiler.profiler.data import RunProfileData
    from torch_tb_profiler.profiler.run_generator import RunGenerator

    with tempfile.TemporaryDirectory() as folder:
        profile = RunProfileData.parse("worker", 0, trace, folder)
        RunGenerator("worker", 0, profile).generate_run_profile()


def hta(trace: str) -> None:
    """The breakdowns of time and of idle time."""
    from hta.trace_analysis import TraceAnalysis

    analysis = TraceAnalysis(trace_files={0: trace})
    analysis.get_temporal_breakdown(visualize=False)
    analysis.get_idle_time_breakdown(visualize=False, ranks=[0])


PEERS: dict[str, tuple[str, Callable[[str], None]]] = {
    "torch-tb-profiler": ("torch-tb-profiler", torch_tb_profiler),
    "HTA": ("HolisticTraceAnalysis", hta),
}


if __name__ == "__main__":
    package, work = PEERS[sys.argv[1]]
    print(importlib.metadata.version(package))
    if "--version" not in sys.argv:
        work(sys.argv[2])
