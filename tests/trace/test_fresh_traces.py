"""What the installed torch.profiler writes is read whole: windows 2 and 3 of a run on this machine."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from advisor.trace import intervals as iv
from advisor.trace import read_trace

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps of a small training loop, with stacks, shapes and memory, as plain and as gzip."""
    from torch.profiler import ProfilerActivity, profile, schedule

    folder = tmp_path_factory.mktemp("fresh")
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=1, active=2),
        with_stack=True,
        record_shapes=True,
        profile_memory=True,
        on_trace_ready=lambda done: done.export_chrome_trace(str(folder / "a.pt.trace.json.gz")),
    ) as profiler:
        for _ in range(3):
            loss = model(torch.randn(8, 16)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            profiler.step()
    return folder / "a.pt.trace.json.gz"


def test_steps_operators_shapes_stacks_and_memory(recorded: Path) -> None:
    import gzip

    trace = read_trace(recorded)
    assert trace.warnings == ()
    events = json.loads(gzip.decompress(recorded.read_bytes()))["traceEvents"]
    counts = Counter(event.get("cat") for event in events if event["ph"] == "X")
    assert len(trace.operators) == counts["cpu_op"] > 50
    assert len(trace.python) == counts["python_function"] > 10
    assert len(trace.steps) == 2
    assert len(trace.annotations) == counts["user_annotation"] - 2
    assert len(trace.memory.at) == sum(event["name"] == "[memory]" for event in events) > 0
    names = np.array(trace.names)
    linear = trace.operators.name == names.tolist().index("aten::linear")
    assert {trace.name(code) for code in trace.operators.shapes[linear]} == {
        "[[8,16],[32,16],[32]]", "[[8,32],[4,32],[4]]"}  # fmt: skip
    assert (trace.operators.sequence >= 0).any()
    assert trace.base_ns > 1_600_000_000 * 10**9


def test_operators_lie_inside_the_steps_and_nest(recorded: Path) -> None:
    trace = read_trace(recorded)
    low, high = int(trace.steps.start[0]), int(trace.steps.end[-1])
    lane = trace.operators.lane == trace.steps.lane[0]
    start, end = trace.operators.start[lane], trace.operators.end[lane]
    assert (start >= low).mean() > 0.9 and (end <= high).mean() > 0.9
    parents = iv.parents(start, end)
    children = parents >= 0
    assert children.any() and (~children).any()
    assert (start[parents[children]] <= start[children]).all()
    assert (end[parents[children]] >= end[children]).all()
