"""Other tools on the same cases: what they say, and what that means in terms of our rules.

Each runs in the environment ``.venv-peers`` (``make accuracy`` makes it), with its own defaults, in a process of its
own. torch-tb-profiler reads the trace that our session recorded, in our environment. A tool that cannot run is said so.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fixtures.expectations import Case

from ..judge import Said
from ..runs import Runner

FEW_STEPS = Path(__file__).with_name("few_steps.py")
RECOMMENDATIONS = Path(__file__).with_name("recommendations.py")
STEPS = 8  # that the pattern matcher sees: its event tree has every Python call of them
TRACEML_STEPS = 60  # it is confident from 20 on (min_steps_for_confident_diag)
TIMEOUT = 180.0  # seconds, each


class Saying(msgspec.Struct, frozen=True):
    """One sentence of a tool; ``code`` is what it calls it."""

    code: str
    text: str


class Heard(msgspec.Struct, frozen=True):
    """All that a tool said of a case; ``error`` why it could not, or only in part."""

    sayings: list[Saying] = []
    error: str = ""


@dataclass(frozen=True)
class Ask:
    """What a tool is given: the case in a folder of its own, an interpreter that has it, the recorded trace."""

    case: Case
    copy: Path
    python: str
    trace: Path | None
    runner: Runner


@dataclass(frozen=True)
class Peer:
    """A tool. ``means`` maps patterns of what it says (its code, else its text) to the rules that make it true.

    One that ``reads_trace`` is told of the trace that we recorded, and is asked anew about another one.
    """

    name: str
    package: str
    ask: Callable[[Ask], Heard]
    means: Mapping[str, tuple[str, ...]]
    reads_trace: bool = False

    def said(self, heard: Heard) -> list[Said]:
        """In terms of our rules; sayings that none of our rules has a word on are left out."""
        return [
            Said(rules)
            for saying in heard.sayings
            for pattern, rules in self.means.items()
            if re.search(pattern, saying.code or saying.text)
        ]

    @property
    def rules(self) -> tuple[str, ...]:
        """Those of our rules that it has a word on."""
        return tuple(sorted({rule for rules in self.means.values() for rule in rules}))


# torch.profiler._pattern_matcher -------------------------------------------------------------------------------------


def _pattern_matcher(ask: Ask) -> Heard:
    report = ask.copy.parent / "patterns.json"
    report.unlink(missing_ok=True)
    status, said = ask.runner.run(
        [ask.python, str(FEW_STEPS), str(STEPS), "script.py", *ask.case.args],
        cwd=ask.copy,
        timeout=TIMEOUT,
        environment={"ANTI_PATTERNS": str(report)},
    )
    return _read(report, status, said)


# torch-tb-profiler ---------------------------------------------------------------------------------------------------


def _tb_profiler(ask: Ask) -> Heard:
    if ask.trace is None or not ask.trace.is_file():
        return Heard(error="no trace was recorded")
    report = ask.copy.parent / "recommendations.json"
    report.unlink(missing_ok=True)
    status, said = ask.runner.run(
        [ask.python, str(RECOMMENDATIONS), str(ask.trace), str(report)], cwd=ask.copy, timeout=TIMEOUT
    )
    return _read(report, status, said)


# TorchFix ------------------------------------------------------------------------------------------------------------


def _torchfix(ask: Ask) -> Heard:
    # Its options are those of the command; it has no other interface that takes all rules.
    command = [str(Path(ask.python).with_name("torchfix")), "--select=ALL", "--jobs=1", str(ask.copy)]
    status, said = ask.runner.run(command, cwd=ask.copy, timeout=TIMEOUT)
    found = re.findall(r"^(\S+?:\d+:\d+): (TOR\d+) (.*)$", said, re.MULTILINE)
    if not found and "Finished checking" not in said:
        return Heard(error=f"status {status}: {said[-500:]}")
    return Heard([Saying(code, f"{Path(place).name}: {text}") for place, code, text in found])


# TraceML -------------------------------------------------------------------------------------------------------------


def _traceml(ask: Ask) -> Heard:
    logs = ask.copy.parent / "traceml"
    shutil.rmtree(logs, ignore_errors=True)
    command = [
        str(Path(ask.python).with_name("traceml")), "run", str(FEW_STEPS), "--logs-dir", str(logs), "--run-name", "run",
        "--args", str(TRACEML_STEPS), "script.py", *ask.case.args,
    ]  # fmt: skip
    status, said = ask.runner.run(
        command, cwd=ask.copy, timeout=TIMEOUT, environment={"PATH": f"{Path(ask.python).parent}:/usr/bin:/bin"}
    )
    try:
        primary = json.loads((logs / "run" / "final_summary.json").read_text())["primary_diagnosis"]
        return Heard([Saying(primary["kind"], primary.get("summary") or "")])
    except (OSError, ValueError, KeyError, TypeError) as error:
        return Heard(error=f"status {status}, {type(error).__name__}: {said[-500:]}")


def _read(report: Path, status: int, said: str) -> Heard:
    try:
        return msgspec.convert(json.loads(report.read_text()), Heard)
    except (OSError, ValueError) as error:
        return Heard(error=f"status {status}, {type(error).__name__}: {said[-500:]}")


PEERS = (
    Peer(
        "pattern matcher",
        "torch",
        _pattern_matcher,
        {
            # Each pattern by its class. On a CPU extra copies never match, and TF32 does wherever PyTorch was built
            # without CUDA: no architecture is too old then.
            "ExtraCUDACopy": ("tensor-born-on-cpu",),
            "ForLoopIndexing": ("python-loop-over-samples",),  # report_all_anti_patterns leaves it out
            "FP32MatMul": ("tf32-matmul",),
            "OptimizerSingleTensor": ("fused-optimizer",),  # it asks for foreach=True, which fused=True succeeds
            "SynchronizedDataLoader": ("loader-workers",),
            "GradNotSetToNone": ("zero-grad",),
            "Conv2dBiasFollowedByBatchNorm2d": ("conv-bias-before-batchnorm",),
            "MatMulDimInFP16": ("tensor-core-alignment",),
        },
    ),
    Peer(
        "torch-tb-profiler",
        "torch-tb-profiler",
        _tb_profiler,
        {
            # By its sentences: torch_tb_profiler/profiler/data.py, RunProfileData. It drops the loader's ranges where
            # they are user annotations (trace.py, create_trace_event), as they are in today's traces.
            "time cost on input data loading": ("loader-workers",),
            "launched by Tensor Cores eligible operators": ("amp-autocast",),
            "low utilization": ("batch-size",),
            "Device memory usage is at the limit": ("activation-checkpointing", "amp-autocast"),
            "DistributedDataParallel instead of DataParallel": ("dataparallel-to-ddp",),
        },
        reads_trace=True,
    ),
    Peer(
        "TorchFix",
        "torchfix",
        _torchfix,
        # The others are about deprecated and unsafe functions, not about speed.
        {"TOR401": ("loader-workers",)},
    ),
    Peer(
        "TraceML",
        "traceml-ai",
        _traceml,
        {
            # The primary diagnosis (diagnostics/DIAGNOSIS.md) names a part of the step; any of our rules about that
            # part makes it true. COMPUTE_BOUND and BALANCED ask for nothing.
            "^INPUT_BOUND": (
                "loader-workers", "slow-transform", "slow-collate", "loader-prefetch", "loader-oversubscribed",
            ),
            "^RESIDUAL_HEAVY": ("host-sync", "gc-pauses", "blocking-work-between-steps", "evaluation-heavy"),
            "^CREEP": ("loss-accumulates-graph",),
        },
    ),
)  # fmt: skip


def version_of(python: str, package: str) -> str:
    """The version of `package` that this interpreter has; empty when it has none, or there is no such interpreter."""
    code = f"import importlib.metadata; print(importlib.metadata.version({package!r}))"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
