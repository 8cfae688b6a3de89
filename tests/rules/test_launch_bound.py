"""Many short kernels, launched one by one: found where the GPU waits for them, and only there."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from advisor.rules.launch_bound import LaunchBound

from advisor.analyze import analyze
from advisor.edit import Edit, Sources
from advisor.harness.layout import CallSite, Site
from advisor.rule import Advice, Finding

A100 = "NVIDIA A100-SXM4-40GB"
KERNEL = "void at::native::vectorized_elementwise_kernel<4>"


def launching(scene: Any, kernel_ms: float, calls: int = 60, call: str = "") -> Any:
    """Steps of 6 ms in which the host launches so many kernels at even distances, each after an operator's work."""
    made = scene(6.0, A100)
    every = 6.0 / calls
    for number in range(calls):
        start = number * every
        made.operator("aten::add", start, start + 0.95 * every)
        made.kernel(KERNEL, start + 0.8 * every, start + 0.8 * every + kernel_ms, launched=start + 0.7 * every)
    if call:
        made.each("cuda_runtime", call, 5.99, 5.995)
    return made


def replaced(finding: Finding, line: int) -> Finding:
    """The same finding with the model's call at another line."""
    site = Site("/nowhere/train.py", line)
    return dataclasses.replace(finding, site=site, parameters=finding.parameters | {"forward": (site,)})


def found(made: Any, folder: Path) -> Finding | None:
    findings = list(LaunchBound().check(made.evidence(folder)))
    assert len(findings) <= 1
    for each in findings:
        assert each.gain.low <= each.gain.likely <= each.gain.high <= 2.000001 * each.gain.low
    return findings[0] if findings else None


def test_short_kernels_far_apart_are_found(scene: Any, tmp_path: Path) -> None:
    finding = found(launching(scene, 0.005), tmp_path)
    assert finding is not None and finding.gain.likely > 2
    assert finding.evidence["launches_per_step"] == 60
    fix = LaunchBound().fix(finding, Sources())
    assert isinstance(fix, Advice) and "reduce-overhead" in fix.text


def test_a_launchs_latency_is_gone_with_the_launches(scene: Any, tmp_path: Path) -> None:
    """An H200's liquid network: 4438 kernels of 1.5 us, each 9 us after its launch; as a graph a tenth of the step."""
    made = scene(6.0, A100)
    for number in range(300):
        start = 0.02 * number
        made.operator("aten::mul", start, start + 0.015)
        made.kernel(KERNEL, start + 0.015, start + 0.0165, launched=start + 0.006)
    finding = found(made, tmp_path)
    # 0.45 ms of kernels, 0.3 of pauses between them, and what is left of 6 ms of launching.
    assert finding is not None and 4.5 < finding.gain.likely < 8.5


def test_sizes_that_only_the_gpu_knows_keep_a_graph_from_holding_the_step(scene: Any, tmp_path: Path) -> None:
    made = launching(scene, 0.005)
    made.operator("aten::nonzero", 5.9, 5.999)
    made.copy("Memcpy DtoH (Device -> Pinned)", 5.99, 5.992, 8, launched=5.91, returned=5.92)
    made.each("cuda_runtime", "cudaStreamSynchronize", 5.93, 5.995)
    finding = found(made, tmp_path)
    assert finding is not None
    assert "decide the size of others 1 time(s) a step (nonzero)" in " ".join(finding.unmet)


TRAINING = """\
import torch
from torch import nn

net = nn.Linear(4, 4).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
kept = []


for x in batches:
    out = net(x)
    out.sum().backward()
"""


def test_a_model_that_is_not_compiled_is_compiled_into_graphs(scene: Any, tmp_path: Path) -> None:
    finding = found(launching(scene, 0.005), tmp_path)
    assert finding is not None and not finding.unmet
    made = LaunchBound().fix(replaced(finding, 10), Sources({"/nowhere/train.py": TRAINING}))
    assert isinstance(made, Edit)
    assert 'net.compile(mode="reduce-overhead")\n' in next(iter(made.texts.values()))


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("    out.sum()", "    kept.append(out)\n    out.sum()", "keeps an output beyond"),
        ("kept = []", "torch.jit.trace(net, example)", "traces or exports"),
        ("from torch import nn", "import lightning as L\nfrom torch import nn", "lightning runs the model"),
    ],
)
def test_graphs_are_not_made_where_the_script_forbids_it(
    old: str, new: str, why: str, scene: Any, tmp_path: Path
) -> None:
    finding = found(launching(scene, 0.005), tmp_path)
    assert finding is not None
    text = TRAINING.replace(old, new)
    line = next(at for at, each in enumerate(text.splitlines(), 1) if "net(x)" in each)
    made = LaunchBound().fix(replaced(finding, line), Sources({"/nowhere/train.py": text}))
    assert isinstance(made, Advice) and why in made.why


def test_without_a_compiler_there_are_no_graphs_to_be_had_by_it(scene: Any, tmp_path: Path) -> None:
    made = launching(scene, 0.005)
    made.record.environment.compiler = ""
    finding = found(made, tmp_path)
    assert finding is not None and "There is no C++ compiler" in " ".join(finding.unmet)


@pytest.mark.parametrize(
    ("calls", "found_here"), [pytest.param(62, True, id="97-us-a-launch"), pytest.param(40, False, id="150-us")]
)
def test_a_host_that_does_more_than_launch_is_not_what_a_graph_replaces(
    calls: int, found_here: bool, scene: Any, tmp_path: Path
) -> None:
    assert (found(launching(scene, 0.002, calls), tmp_path) is not None) == found_here


def test_the_model_s_own_doubt_is_in_the_range(scene: Any, tmp_path: Path) -> None:
    finding = found(launching(scene, 0.04), tmp_path)  # what is left is the device's time, whatever a graph leaves
    assert finding is not None and finding.gain.low < finding.gain.likely


def test_a_gpu_older_than_triton_gets_no_mode(scene: Any, tmp_path: Path) -> None:
    made = launching(scene, 0.005)
    made.record.device.capability = [6, 1]
    finding = found(made, tmp_path)
    assert finding is not None and "this one has 6.1" in finding.unmet[0]


@pytest.mark.parametrize(
    ("backwards", "steps", "summed"),
    [
        pytest.param((4.0,), (1.0,), True, id="accumulation"),
        pytest.param((1.0, 1.0, 1.0), (1.0, 1.0), True, id="a-gan-with-two-for-one-optimizer"),
        pytest.param((1.0, 1.0), (1.0, 1.0), False, id="a-gan"),
        pytest.param((1.0,), (), False, id="steps-not-seen"),
    ],
)
def test_gradients_that_are_summed_up_get_no_graph(
    backwards: tuple[float, ...], steps: tuple[float, ...], summed: bool, scene: Any, tmp_path: Path
) -> None:
    made = launching(scene, 0.005)
    made.record.call_sites = [each for each in made.record.call_sites if each.kind != "backward"]
    for kind, counts in (("backward", backwards), ("Optimizer.step", steps)):
        for line, count in enumerate(counts, 20):
            made.call(kind, line, per_step=count)
    finding = found(made, tmp_path)
    assert finding is not None and any("several backwards" in each for each in finding.unmet) is summed


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({"kernel_ms": 0.095}, id="the-gpu-is-busy"),
        pytest.param({"kernel_ms": 0.005, "calls": 20}, id="few-launches"),
        pytest.param({"kernel_ms": 0.005, "call": "cudaGraphLaunch"}, id="graphs-are-replayed-already"),
    ],
)
def test_left_alone(arguments: dict[str, Any], scene: Any, tmp_path: Path) -> None:
    assert found(launching(scene, **arguments), tmp_path) is None


def test_a_compiled_model_gets_the_mode(scene: Any, tmp_path: Path) -> None:
    made = launching(scene, 0.005)
    path = tmp_path / "train.py"
    path.write_text("import torch\nmodel = torch.compile(Net().cuda())\n")
    made.record.call_sites.append(CallSite("torch.compile", Site(str(path), 2), calls=1))
    finding = found(made, tmp_path)
    assert finding is not None
    fix = LaunchBound().fix(finding, Sources())
    assert isinstance(fix, Edit)
    assert 'torch.compile(Net().cuda(), mode="reduce-overhead")' in fix.texts[str(path)]
    made.record.shapes_vary = True
    varying = found(made, tmp_path)
    assert varying is not None
    assert isinstance(LaunchBound().fix(varying, Sources()), Advice)


@pytest.mark.parametrize(
    ("rows", "forward", "varies"),
    [
        pytest.param((8, 8, 8), True, False, id="one-size"),
        pytest.param((8, 8, 5), True, False, id="a-smaller-last-batch"),
        pytest.param((8, 31, 5), True, True, id="requests-as-they-come"),
        pytest.param((8, 31, 5), False, False, id="not-in-the-model"),
    ],
)
def test_batches_of_many_sizes_would_be_many_graphs(
    rows: tuple[int, ...], forward: bool, varies: bool, scene: Any, tmp_path: Path
) -> None:
    made = launching(scene, 0.005)
    made.each("user_annotation", "advisor.forward", *((0.0, 5.9) if forward else (0.0, 5.0)))
    for step, blocks in enumerate(rows):
        made._device("kernel", KERNEL, step, 5.85, 5.855, 5.8, 5.805, "cudaLaunchKernel", grid=[blocks, 1, 1],
                     block=[256, 1, 1])  # fmt: skip
    finding = found(made, tmp_path)
    assert finding is not None and any("Input shapes change" in each for each in finding.unmet) is varies


def test_a_trace_of_several_ranks_is_left_alone(scene: Any, tmp_path: Path) -> None:
    evidence = launching(scene, 0.005).evidence(tmp_path)
    several = dataclasses.replace(evidence, others=(evidence.trace,))
    assert not list(LaunchBound().check(several))


@pytest.mark.parametrize("name", ["h100-vit-inference", "h100-bert-small-inference"])
def test_inference_that_is_launches_only(name: str, shared_traces: Path) -> None:
    document, _ = analyze([shared_traces / f"{name}.json.gz"])
    (each,) = [each for each in document.findings if each.rule == "launch-bound"]
    assert each.predicted.speedup.likely > 2.5 and each.fix.why_advice


@pytest.mark.parametrize("name", ["mi300x-qwen-inference", "mi300x-vllm-decode-graphs", "b200-eager-inference"])
def test_busy_captured_or_another_engines(name: str, shared_traces: Path) -> None:
    document, _ = analyze([shared_traces / f"{name}.json.gz"])
    assert "launch-bound" not in {each.rule for each in document.findings}
