"""Samples that are taken out of a DataFrame: what pandas takes of making a batch, and what is left without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advisor.edit import Edit, Sources
from advisor.harness.layout import FetchPart, Loader, Site
from advisor.rule import WIDEST, Advice, Finding
from rules.dataframe_rows import DataframeRows

RULE = DataframeRows()

FLIGHTS = """class Flights:
    def __init__(self, frame, columns):
        self.frame = frame
        self.columns = columns

    def __getitem__(self, i):
        row = self.frame.iloc[i]
        return row[self.columns].values.astype("float32"), float(row["late"])
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(FLIGHTS)
    return str(path)


def fed(made: Any, script: str, row_ms: float, rest_ms: float, **facts: Any) -> Loader:
    """A loader that takes 25 ms for each batch of 100, all of which the step waits; pandas takes so long of a look."""
    loader: Loader = made.loader(**{"wait_ms": 25.0, "fetch_ms": 25.0, "cpu_ms": 25.0, **facts})
    made.record.script = loader.dataset_file = script
    loader.batch_size = 100
    loader.looks, loader.look_s = 2, (row_ms + rest_ms) / 1e3
    loader.item_lines, loader.item_calls = 3.0, 1.0
    loader.parts = [
        FetchPart("line", "__getitem__", Site(script, 8), (0.7 * row_ms + rest_ms) / 1e3),
        FetchPart("pandas", "__getitem__", Site(script, 8), 0.7 * row_ms / 1e3),
        FetchPart("line", "__getitem__", Site(script, 7), 0.3 * row_ms / 1e3),
        FetchPart("pandas", "__getitem__", Site(script, 7), 0.3 * row_ms / 1e3),
        FetchPart("collate", "default_collate", Site("/env/site-packages/torch/collate.py", 340), 0.5e-3),
    ]
    if not row_ms:
        loader.parts = [part for part in loader.parts if part.kind != "pandas"]
    return loader


def found(made: Any, tmp_path: Path) -> Finding | None:
    findings = list(RULE.check(made.evidence(tmp_path)))
    assert len(findings) <= 1
    return findings[0] if findings else None


def test_rows_of_a_frame_are_found_and_become_arrays(scene: Any, script: str, tmp_path: Path) -> None:
    made = scene(30.0)
    fed(made, script, row_ms=50.0, rest_ms=10.0)
    finding = found(made, tmp_path)
    assert finding is not None and finding.site is not None and finding.site.line == 8
    # Of 25 ms pandas takes 50 / 2.1, and at most what is not the collate function, or a line: 24.2 ms.
    assert finding.gain.likely == pytest.approx(30 / (30 - 50 / 2.1), rel=0.05)
    assert finding.gain.low < finding.gain.likely < finding.gain.high <= WIDEST * finding.gain.low
    assert "train.py:8 (and 1 more)" in finding.summary and "95%" in finding.summary
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Edit)
    (after,) = fix.after.values()
    assert "        self.late_values = self.frame[\"late\"].to_numpy()\n" in after.text
    assert 'return self.columns_values[i].astype("float32"), float(self.late_values[i])' in after.text


def test_no_more_is_saved_than_pandas_can_take(scene: Any, script: str, tmp_path: Path) -> None:
    made = scene(30.0)
    fed(made, script, row_ms=200.0, rest_ms=1.0)
    finding = found(made, tmp_path)
    assert finding is not None
    # 100 samples of three lines and a call of torch take 0.31 ms, the collate function 0.5.
    assert finding.gain.likely == pytest.approx(30 / (5 + 0.81), rel=0.01)


def test_what_workers_make_is_told_by_their_own_time(scene: Any, script: str, tmp_path: Path) -> None:
    made = scene(30.0)
    fed(made, script, row_ms=50.0, rest_ms=10.0, num_workers=1, fetch_ms=30.0, cpu_ms=30.0, wait_ms=20.0)
    finding = found(made, tmp_path)
    assert finding is not None and finding.gain.likely > 1.5


@pytest.mark.parametrize(
    ("row_ms", "rest_ms", "facts"),
    [
        (2.0, 24.0, {}),  # a picture is decoded, say
        (50.0, 10.0, {"wait_ms": 0.2}),  # made beside the step
        (0.0, 25.0, {}),
    ],
    ids=["little of it", "nothing waits", "no pandas"],
)
def test_rows_that_cost_nothing_are_not_reported(
    row_ms: float, rest_ms: float, facts: dict[str, float], scene: Any, script: str, tmp_path: Path
) -> None:
    made = scene(30.0)
    fed(made, script, row_ms, rest_ms, **facts)
    assert found(made, tmp_path) is None


def test_rows_that_several_files_take_are_for_the_author(scene: Any, script: str, tmp_path: Path) -> None:
    made = scene(30.0)
    loader = fed(made, script, row_ms=50.0, rest_ms=10.0)
    helper = tmp_path / "rows.py"
    helper.write_text("def row(frame, i):\n    return frame.iloc[i]\n")
    loader.parts[3].site = Site(str(helper), 2)
    finding = found(made, tmp_path)
    assert finding is not None
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Advice) and "several files" in fix.why and "to_numpy()" in fix.text


def test_a_row_of_one_type_is_for_the_author_where_it_shows(scene: Any, script: str, tmp_path: Path) -> None:
    Path(script).write_text(FLIGHTS.replace('float(row["late"])', 'row["late"]'))
    made = scene(30.0)
    loader = fed(made, script, row_ms=50.0, rest_ms=10.0)
    loader.frames = ["upcast"]
    finding = found(made, tmp_path)
    assert finding is not None
    fix = RULE.fix(finding, Sources())
    assert isinstance(fix, Advice) and "one type" in fix.why
