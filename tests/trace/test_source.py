"""Finding traces in folders, patterns and URLs; what importing the room costs."""

from __future__ import annotations

import functools
import gzip
import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from advisor.errors import USAGE, AdvisorError
from advisor.trace import find_traces, read_trace

Document = dict[str, Any]


@pytest.fixture
def folder(tmp_path: Path, document: Document) -> Path:
    """Two profiler traces, one of another name, and JSON files that are no traces."""
    text = json.dumps(document).encode()
    (tmp_path / "b_2.17.pt.trace.json.gz").write_bytes(gzip.compress(text))
    (tmp_path / "a_1.17.pt.trace.json").write_bytes(text)
    (tmp_path / "exported.json").write_bytes(text)
    (tmp_path / "findings.json").write_text('{"schema": 1, "findings": []}')
    (tmp_path / "broken.json.gz").write_bytes(b"\x1f\x8b")
    (tmp_path / "detail").mkdir()
    (tmp_path / "detail" / "a.trace.json.gz").write_bytes(gzip.compress(text))
    return tmp_path


def names(paths: list[str]) -> list[str]:
    return [Path(path).name for path in paths]


def test_a_folder_means_its_profiler_traces(folder: Path) -> None:
    assert names(find_traces([folder])) == ["a_1.17.pt.trace.json", "b_2.17.pt.trace.json.gz"]


def test_a_folder_without_them_means_every_json_that_looks_like_a_trace(folder: Path, document: Document) -> None:
    for path in folder.glob("*.pt.trace*"):
        path.unlink()
    (folder / "list.json").write_text("\n" + json.dumps(document["traceEvents"]))
    assert names(find_traces([folder])) == ["exported.json", "list.json"]
    assert names(find_traces([folder / "detail"])) == ["a.trace.json.gz"]


def test_files_and_patterns_keep_their_order_and_come_once(folder: Path) -> None:
    found = find_traces([folder / "exported.json", str(folder / "*.pt.trace.json*"), folder])
    assert names(found) == ["exported.json", "a_1.17.pt.trace.json", "b_2.17.pt.trace.json.gz"]
    assert names(find_traces([str(folder / "**" / "a.trace.json.gz")])) == ["a.trace.json.gz"]


def test_a_file_whose_name_is_a_pattern_is_that_file(folder: Path) -> None:
    odd = folder / "run[1].json"
    odd.write_bytes((folder / "exported.json").read_bytes())
    assert find_traces([odd]) == [str(odd)]


@pytest.mark.parametrize("path", ["missing.json", "no-*.json", "empty"])
def test_nothing_found_is_wrong_usage(folder: Path, path: str) -> None:
    (folder / "empty").mkdir()
    with pytest.raises(AdvisorError, match=r"there is no (file|trace)") as caught:
        find_traces([folder / path])
    assert caught.value.exit_status == USAGE


def test_urls_may_name_files_folders_and_patterns(document: Document) -> None:
    import fsspec

    for rank in (0, 1):
        with fsspec.open(f"memory://job/rank{rank}.pt.trace.json", "wb") as file:
            file.write(json.dumps(document).encode())
    expected = ["rank0.pt.trace.json", "rank1.pt.trace.json"]
    assert names(find_traces(["memory://job"])) == expected
    assert names(find_traces(["memory://job/*.json"])) == expected
    assert find_traces(["memory://job/rank1.pt.trace.json"]) == ["memory://job/rank1.pt.trace.json"]
    with pytest.raises(AdvisorError, match="there is no trace"):
        find_traces(["memory://job/*.gz"])


def test_importing_the_room_brings_only_numpy_and_msgspec() -> None:
    heavy = {"polars", "fsspec", "isal", "zstandard", "torch"}
    code = f"import sys, advisor.trace; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The address of a web server for `tmp_path`, on this machine."""
    handler = functools.partial(Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()
        thread.join()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def test_a_trace_on_a_web_server_is_read(server: str, tmp_path: Path, document: Document) -> None:
    many = document["traceEvents"] * 2000
    (tmp_path / "a.pt.trace.json.gz").write_bytes(gzip.compress(json.dumps(document | {"traceEvents": many}).encode()))
    (tmp_path / "b.json").write_text(json.dumps(document))
    assert find_traces([f"{server}/a.pt.trace.json.gz"]) == [f"{server}/a.pt.trace.json.gz"]
    assert len(read_trace(f"{server}/a.pt.trace.json.gz").operators) == 2000
    assert len(read_trace(f"{server}/b.json").operators) == 1
    with pytest.raises(AdvisorError, match=r"nothing\.json") as caught:
        read_trace(f"{server}/nothing.json")
    assert "\n" not in str(caught.value)
