"""Small copies of run folders, to test against where there is no GPU: the record, and traces that are not too large."""

from __future__ import annotations

import gzip
import json
import platform
import re
import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from advisor.harness import layout
from advisor.run import Run

from .parts import REPO

LARGEST = 2 * 1024 * 1024


def record(run_dir: Path, place: Path, largest: int = LARGEST) -> list[str]:
    """Copy a run into `place`, without this machine's paths and name; returns a sentence for each trace left out."""
    run = Run.load(run_dir)
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    facts = json.loads((run.folder / layout.RUN_JSON).read_bytes())
    left_out = []
    for field, paths, names in (
        ("traces", run.traces, _names("", layout.TRACE_SUFFIX)),
        ("details", run.detail_traces, _names(f"{layout.DETAIL_DIR}/", layout.DETAIL_SUFFIX)),
    ):
        facts[field] = []
        for path, name in zip(paths, names, strict=False):
            small = gzip.compress(_anonymous(gzip.decompress(path.read_bytes()).decode(), run).encode(), 9, mtime=0)
            if len(small) > largest:
                left_out.append(f"{place.name}: {name} has {len(small) / 1e6:.1f} MB, and was left out.")
                continue
            (place / name).parent.mkdir(exist_ok=True)
            (place / name).write_bytes(small)
            facts[field].append(name)
    facts["notes"] += left_out
    (place / layout.RUN_JSON).write_text(_anonymous(json.dumps(facts), run))
    return left_out


def _names(folder: str, suffix: str) -> Iterator[str]:
    rank = 0
    while True:
        yield f"{folder}rank{rank}{suffix}"
        rank += 1


def _anonymous(text: str, run: Run) -> str:
    """Paths of the run, the repository and the installed packages without what comes before them; no host's name."""
    purelib = sysconfig.get_paths()["purelib"]
    stdlib = sysconfig.get_paths()["stdlib"]
    for old, new in (
        (f"{run.folder}/", ""),
        (f"{REPO}/", ""),
        (str(run.folder), "."),
        (str(REPO), "."),
        (purelib, "site-packages"),
        (stdlib, "lib/python"),
    ):
        text = text.replace(json.dumps(old)[1:-1], new)
    return re.sub(rf"\b{re.escape(platform.node())}\b", "host", text) if platform.node() else text
