"""The command around the reports: what it prints, and how it ends."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib import resources
from pathlib import Path

import click
import jsonschema
import pytest
from rich.console import Console

from advisor import cli, report
from advisor.errors import AdvisorError
from advisor.findings import FindingDocument, Findings, FixDocument, Predicted, Range, decode
from tests.conftest import Command


@pytest.fixture
def trace(shared_traces: Path) -> Path:
    return shared_traces / "h100-vit-inference.json.gz"


@pytest.fixture
def document() -> Findings:
    finding = FindingDocument(
        rank=1,
        rule="compile",
        title="Compile the model",
        summary="s",
        safety="numeric",
        evidence={},
        predicted=Predicted(speedup=Range(low=1.1, likely=1.2, high=1.3)),
        fix=FixDocument(kind="advice", text="t"),
    )
    return Findings(
        verdict="launch-bound",
        script="a.py",
        step_ms=1.0,
        samples_per_s=2.0,
        device="d",
        figures={},
        findings=[finding],
    )


# What it prints


@pytest.mark.parametrize("arguments", [(), ("analyze",), ("report",), ("rules",), ("tensorboard",), ("profile",)])
def test_help_reads_as_sentences(arguments: tuple[str, ...]) -> None:
    command: click.Command = cli.cli
    for name in arguments:
        assert isinstance(command, click.Group)
        command = command.commands[name]
    assert command.help
    sentences = [command.help, *(option.help for option in command.params if isinstance(option, click.Option))]
    for text in sentences:
        assert text, command.params
        assert text[0].isupper() and text.rstrip()[-1] in ".)]", text


def test_help_and_version_are_printed_and_end_well(advisor: Command) -> None:
    shown = advisor("--help")
    assert shown.returncode == 0
    assert [name for name in ("profile", "analyze", "report", "rules", "tensorboard") if name in shown.stdout]
    assert re.fullmatch(r"advisor \d+\.\d+\.\d+\n", advisor("--version").stdout)


def test_python_runs_the_package_as_the_command(advisor: Command) -> None:
    done = subprocess.run([sys.executable, "-m", "advisor", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == advisor("--version").stdout


def test_analyze_prints_a_report_that_a_log_file_can_hold(advisor: Command, trace: Path) -> None:
    shown = advisor("analyze", str(trace))
    assert shown.returncode == 0, shown.stderr
    assert "Where a step's time goes" in shown.stdout
    assert "\x1b" not in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80


def test_json_is_the_findings_document_alone(advisor: Command, trace: Path, shared_traces: Path) -> None:
    shown = advisor("analyze", str(trace), "--format", "json")
    assert shown.returncode == 0, shown.stderr
    schema = json.loads((resources.files("advisor.report") / "findings.schema.json").read_text())
    found = json.loads(shown.stdout)
    jsonschema.validate(found, schema, cls=jsonschema.Draft202012Validator)
    expected = json.loads((shared_traces / "expected.json").read_text())[trace.name]
    for key, amount in expected.items():
        if isinstance(amount, (int, float)) and key in found["figures"]:
            assert found["figures"][key] == pytest.approx(amount, rel=1e-3), key
    assert "gpu_busy_share" in found["figures"]


def test_several_ranks_are_one_job(advisor: Command, shared_traces: Path) -> None:
    shown = advisor("analyze", str(shared_traces / "two-ranks"), "--format", "json")
    found = decode(shown.stdout.encode())
    assert [rank["rank"] for rank in found.ranks] == [0, 1]
    low, high = sorted(float(rank["gpu_busy_share"] or 0) for rank in found.ranks)
    assert low <= float(found.figures["gpu_busy_share"] or 0) <= high


def test_output_writes_every_report(advisor: Command, trace: Path, tmp_path: Path) -> None:
    shown = advisor("analyze", str(trace), "--output", "out")
    assert shown.returncode == 0, shown.stderr
    assert "out/report.html" in shown.stdout
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"report.html", "report.md", "findings.json"}


@pytest.mark.parametrize(("format_", "start"), [("html", "<!doctype html>"), ("md", "# ")])
def test_other_formats_go_to_the_output_too(advisor: Command, trace: Path, format_: str, start: str) -> None:
    assert advisor("analyze", str(trace), "--format", format_).stdout.startswith(start)


def test_source_turns_advice_into_a_diff_that_applies(advisor: Command, shared_traces: Path, tmp_path: Path) -> None:
    script = (
        "loader = DataLoader(dataset, batch_size=32)  # CIFAR\n"
        "for images, labels in loader:\n"
        "    loss = criterion(model(images), labels)\n"
        "    loss.backward()\n"
    )
    (tmp_path / "train.py").write_text("from torch.utils.data import DataLoader\n" + script)
    trace = str(shared_traces / "v100-resnet50-workers0.pt.trace.json.gz")
    bare = decode(advisor("analyze", trace, "--format", "json").stdout.encode())
    with_source = decode(advisor("analyze", trace, "--source", "train.py", "--format", "json").stdout.encode())
    (advice,) = [each for each in bare.findings if each.rule == "loader-workers"]
    (edit,) = [each for each in with_source.findings if each.rule == "loader-workers"]
    assert advice.fix.kind == "advice" and not advice.fix.diff
    assert (edit.file, edit.line) == ("train.py", 2)
    subprocess.run(["git", "apply", "-"], input=edit.fix.diff, text=True, cwd=tmp_path, check=True)
    assert "num_workers=" in (tmp_path / "train.py").read_text()
    assert "# CIFAR" in (tmp_path / "train.py").read_text()


def test_report_shows_a_session_again(advisor: Command, document: Findings, tmp_path: Path) -> None:
    report.write(document, tmp_path / "advisor_runs" / "a-1")
    os.utime(tmp_path / "advisor_runs" / "a-1" / "findings.json", (1, 1))
    report.write(Findings("newest", None, None, None, "", {}, []), tmp_path / "advisor_runs" / "a-2")
    assert "launch-bound" in advisor("report", "advisor_runs/a-1").stdout
    assert advisor("report", "advisor_runs/a-1", "--format", "json").stdout == (
        tmp_path / "advisor_runs" / "a-1" / "findings.json"
    ).read_text(encoding="utf-8")
    assert "newest" in advisor("report").stdout


def test_rules_lists_every_rule_and_explains_one(advisor: Command) -> None:
    from advisor.rulebook import load_rules

    listed = advisor("rules").stdout
    assert [rule.id for rule in load_rules() if rule.id not in listed] == []
    explained = advisor("rules", "loader-workers").stdout
    assert "num_workers" in explained
    assert "Source:" in explained


def test_an_example_is_a_diff_without_marks_and_advice_has_none() -> None:
    from advisor.report.catalogue import show
    from advisor.rulebook import load_rules

    for rule in load_rules():
        console = Console(width=120, record=True, file=io.StringIO())
        show(rule.id, console, [rule])
        text = console.export_text()
        assert "# <-" not in text, rule.id
        assert ("For example" in text) == any(not each.advice for each in rule.EXAMPLES), rule.id


# How it ends


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("analyse",), 2, "No such command"),
        (("analyze",), 2, "Missing argument"),
        (("analyze", "nowhere.json"), 2, "nowhere.json"),
        (("analyze", "--format", "xml", "x"), 2, "xml"),
        (("report", "nowhere"), 2, "does not exist"),
        (("report",), 2, "advisor_runs"),
        (("rules", "loader-wrkers"), 2, "did you mean loader-workers?"),
        (("tensorboard", "nowhere"), 2, "not a folder"),
        (("tensorboard", "--port", "70000"), 2, "70000"),
    ],
)
def test_wrong_usage_is_one_clear_line(advisor: Command, arguments: tuple[str, ...], status: int, said: str) -> None:
    ended = advisor(*arguments)
    assert ended.returncode == status
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""


@pytest.mark.parametrize("content", [b"", b"not json", b'{"a": 1}', b"\x1f\x8b\x08\x00rubbish"])
def test_a_file_that_is_no_trace_ends_with_status_4(advisor: Command, content: bytes, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_bytes(content)
    ended = advisor("analyze", "bad.json")
    assert ended.returncode == 4
    assert len(ended.stderr.strip().splitlines()) == 1, ended.stderr


def test_the_detail_of_an_error_follows_its_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**_: object) -> None:
        raise AdvisorError("the script failed.", 1, "Traceback of the script\nValueError: no")

    monkeypatch.setattr(cli.cli, "main", fail)
    assert cli.run([]) == 1
    assert capsys.readouterr().err == "advisor: the script failed.\nTraceback of the script\nValueError: no\n"


def test_a_bug_of_ours_is_said_and_its_traceback_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def fail(**_: object) -> None:
        raise ZeroDivisionError("a test")

    monkeypatch.setattr(cli.cli, "main", fail)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert cli.run([]) == 70
    said = capsys.readouterr().err
    assert "a bug of ours" in said and "Traceback (most recent" not in said
    kept = list(tmp_path.glob("advisor-bug-*.txt"))
    assert len(kept) == 1 and str(kept[0]) in said
    assert "ZeroDivisionError: a test" in kept[0].read_text()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_what_ends_advisor_ends_tensorboard_too(tmp_path: Path, number: signal.Signals, status: int) -> None:
    (tmp_path / "advisor_runs").mkdir()
    started = subprocess.Popen(
        [sys.executable, "-u", "-m", "advisor.cli", "tensorboard", "--port", "0"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert started.stdout is not None
    line = started.stdout.readline()
    assert "http://localhost:" in line
    started.send_signal(number)
    _, errors = started.communicate(timeout=30)
    assert started.returncode == status
    assert "Traceback" not in errors
    port = int(re.findall(r":(\d+)/", line)[0])
    assert _closed(port)


def _closed(port: int) -> bool:
    import socket

    for _ in range(50):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return True
        time.sleep(0.1)
    return False


def test_a_reader_that_has_seen_enough_is_no_error(trace: Path, tmp_path: Path) -> None:
    ended = subprocess.run(
        f"{sys.executable} -m advisor.cli analyze {trace} --format html | head -c 10; echo ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
    )
    assert ended.stdout == "<!doctype 0\n"
    assert "Traceback" not in ended.stderr


def test_a_terminal_without_the_characters_still_gets_the_report(advisor: Command, trace: Path) -> None:
    shown = advisor("analyze", str(trace), env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C"})
    assert shown.returncode == 0, shown.stderr


def test_trace_larger_than_the_limit_is_refused_until_the_limit_is_raised(advisor: Command, trace: Path) -> None:
    refused = advisor("analyze", "--trace-limit", "0.0001", str(trace))
    assert refused.returncode == 4
    assert "raise the limit (--trace-limit)" in refused.stderr
    assert advisor("analyze", "--trace-limit", "1", str(trace)).returncode == 0


def test_analyze_exports_the_tables_of_each_trace(advisor: Command, tmp_path: Path) -> None:
    polars = pytest.importorskip("polars")
    event = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 5}
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "rank.pt.trace.json").write_text(json.dumps([event]))
    done = advisor("analyze", "a", "b", "--export", "parquet")
    assert done.returncode == 0, done.stderr
    assert "tables/rank-2" in done.stdout
    for name in ("rank", "rank-2"):
        kernels = polars.read_parquet(tmp_path / "tables" / name / "kernels.parquet")
        assert kernels["name"].to_list() == ["k"] and kernels["end"].to_list() == [6000]
        assert polars.read_parquet(tmp_path / "tables" / name / "copies.parquet").height == 0
    advisor("analyze", "a", "--export", "parquet", "-o", "out", "--format", "json")
    assert (tmp_path / "out" / "tables" / "rank" / "kernels.parquet").is_file()
    refused = advisor("analyze", "a", "--export", "csv")
    assert refused.returncode == 2 and "parquet" in refused.stderr
