"""Which fixes are on in which run, for TensorBoard's HParams tab.

The plugin's own writers need TensorFlow; these do not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from advisor.findings import Findings, Trial
from advisor.report import FINDINGS_JSON
from advisor.session import BASELINE, TRIALS_JSON

if TYPE_CHECKING:
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams.api_pb2 import HParamInfo
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

SPEEDUP = "run/speedup"
# tag → what its column is called
METRICS = {"run/samples_per_s": "samples per second", "run/mean_step_ms": "step, ms", SPEEDUP: "speedup"}


class _Trials(msgspec.Struct):
    """What we need of a session's ``trials.json``."""

    trials: list[Trial] = []


@dataclass(frozen=True)
class Tried:
    """One run of a session in which fixes were tried.

    ``fixes`` has an entry for every rule that was tried in that session: whether its fix is on in this run. ``rules``
    are those of all sessions that are shown together (the tab has one set of columns). ``speedup`` is measured, against
    the script as it was: the product over the fixes that are on.
    """

    fixes: Mapping[str, bool]
    rules: tuple[str, ...]
    speedup: float | None = None
    failed: bool = False

    @property
    def digest(self) -> str:
        """Differs where anything differs that is written."""
        told = repr((sorted(self.fixes.items()), self.rules, self.speedup, self.failed))
        return hashlib.sha256(told.encode()).hexdigest()[:16]


def describe(runs: Iterable[Path]) -> dict[Path, Tried]:
    """What is on in each of the runs; those of sessions without trials are left out."""
    wanted = set(runs)
    trials = {folder: _trials(folder) for folder in {run.parent for run in wanted}}
    rules = tuple(sorted({trial.rule for tried in trials.values() for trial in tried}))
    found = {}
    for folder, tried in trials.items():
        if not tried:
            continue
        off = dict.fromkeys(sorted({trial.rule for trial in tried}), False)
        # The script as it was is the one run of a session that is no trial's.
        found[folder / BASELINE] = Tried(off, rules, 1.0)
        on: dict[str, bool] = {}
        so_far = 1.0
        for trial in tried:
            with_it = {**on, trial.rule: True}
            speedup = so_far * trial.measured.speedup if trial.measured else None
            found[folder / trial.folder] = Tried({**off, **with_it}, rules, speedup, trial.status == "failed")
            if trial.status == "kept":
                on, so_far = with_it, speedup or so_far
    return {run: tried for run, tried in found.items() if run in wanted}


def _trials(session: Path) -> list[Trial]:
    """The trials of a session, from its report or, while there is none of them, from the list that the loop keeps."""
    reported: list[Trial] = []
    running: list[Trial] = []
    # A session that is damaged, or was written by another version, is shown without them.
    with suppress(OSError, msgspec.DecodeError):
        outcome = msgspec.json.decode((session / FINDINGS_JSON).read_bytes(), type=Findings).outcome
        reported = outcome.trials if outcome is not None else []
    with suppress(OSError, msgspec.DecodeError):
        running = msgspec.json.decode((session / TRIALS_JSON).read_bytes(), type=_Trials).trials
    return max(reported, running, key=len)


def summaries(tried: Tried, started: float, ended: float) -> list[Summary]:
    """What makes a run a row of the tab. The columns go with every run: the plugin takes the first that it finds."""
    from tensorboard.plugins.hparams import api_pb2, metadata
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo

    columns = api_pb2.Experiment(
        description="Which fixes are on, and how fast the script is with them",
        hparam_infos=[_column(rule) for rule in tried.rules],
        metric_infos=[
            api_pb2.MetricInfo(name=api_pb2.MetricName(tag=tag), display_name=name) for tag, name in METRICS.items()
        ],
    )
    start = SessionStartInfo(start_time_secs=started)
    for rule, on in tried.fixes.items():
        start.hparams[rule].bool_value = on
    status = api_pb2.STATUS_FAILURE if tried.failed else api_pb2.STATUS_SUCCESS
    end = SessionEndInfo(status=status, end_time_secs=ended)
    return [
        _summary(metadata.EXPERIMENT_TAG, HParamsPluginData(experiment=columns)),
        _summary(metadata.SESSION_START_INFO_TAG, HParamsPluginData(session_start_info=start)),
        _summary(metadata.SESSION_END_INFO_TAG, HParamsPluginData(session_end_info=end)),
    ]


def _column(rule: str) -> HParamInfo:
    from tensorboard.plugins.hparams.api_pb2 import DATA_TYPE_BOOL, HParamInfo

    column = HParamInfo(name=rule, type=DATA_TYPE_BOOL)
    column.domain_discrete.extend([False, True])
    return column


def _summary(tag: str, data: HParamsPluginData) -> Summary:
    # As the plugin's summary.py does it, which imports TensorFlow.
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import metadata

    value = Summary.Value(tag=tag, metadata=metadata.create_summary_metadata(data), tensor=metadata.NULL_TENSOR)
    return Summary(value=[value])
