"""What Dynamo says of the graphs that it made: where they break, what they were compiled again for.

Read once, when the run is over, from the module's own books, and only where the script has imported them. They are no
public interface: whatever a version of torch lacks is left out. Sources: ``torch/_dynamo/utils.py`` (``counters``,
``graph_break_reasons``, ``guard_failures``, ``CompilationMetrics``), ``torch/_dynamo/convert_frame.py``.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from .layout import GraphBreak, Recompiled, Site
from .places import is_user_file

MOST = 50  # breaks and functions that are kept: a model that breaks in a hundred places needs another cure
MOST_REASONS = 8  # of one function
_LONGEST = 300  # characters of a reason
_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
# A compiled step of an optimizer breaks at the optimizer's hooks, which are ours.
_HOOKED = os.path.join("torch", "optim", "optimizer.py")
_ENTRY = re.compile(r"^(\d+)/(\d+): ")  # "0/7: tensor 'x' size mismatch …": the frame and which of its graphs
_FROM = re.compile(r"\s{3,}# .*# (\S+):(\d+) in (\w+)")  # "n == 2      # return x[:n]  # train.py:12 in forward"
_LIMIT = re.compile(r"(recompile|cache_size)_limit")


def graph_breaks() -> list[GraphBreak]:
    """The places where a graph had to end, each with the first reason given; in the order in which they were met."""
    found: dict[tuple[str, int], GraphBreak] = {}
    for reason, site, skipped in _breaks():
        one = found.setdefault((site.file, site.line), GraphBreak(reason=reason, site=site))
        one.skipped = one.skipped or skipped
        one.count += 1
    return list(found.values())[:MOST]


def _breaks() -> Iterator[tuple[str, Site, bool]]:
    for each in _listed("graph_break_reasons"):
        frames = [frame for frame in getattr(each, "user_stack", ()) or () if getattr(frame, "filename", "")]
        if not frames or not getattr(each, "graph_break", True) or _HOOKED in frames[-1].filename:
            continue
        own = [frame for frame in frames if is_user_file(frame.filename)]
        if own:
            yield first_line(each.reason), _site(own[-1].filename, own[-1].lineno, own[-1].name), False
    for each in _metrics():
        # A frame that was given up: none of it is compiled. Its failure names the innermost line.
        file, line = getattr(each, "fail_user_frame_filename", None), getattr(each, "fail_user_frame_lineno", None)
        reason = str(getattr(each, "fail_reason", None) or "")
        if not file or not reason or _LIMIT.search(reason) or str(file).startswith(_HERE):
            continue
        if is_user_file(str(file)):
            yield first_line(reason), _site(str(file), line, str(getattr(each, "co_name", "") or "")), True


def recompiled() -> list[Recompiled]:
    """Functions that were compiled again because a guard failed, those of the harness left out."""
    limit = _limit()
    given_up = any(_LIMIT.search(str(reason)) or "recompile limit" in str(reason) for reason in _unimplemented())
    found = []
    for code, failures in list(_books("guard_failures", {}).items()):
        file = str(getattr(code, "co_filename", ""))
        if not file or file.startswith(_HERE) or not failures:
            continue
        reasons = [text for each in failures if (text := first_line(each))]
        # A failure names the graph that it is about: there were so many when the last one was looked for.
        graphs = 1 + max((int(entry[2]) for text in reasons if (entry := _ENTRY.match(text))), default=0)
        site = _site(file, getattr(code, "co_firstlineno", 0), str(getattr(code, "co_name", "")))
        reached = given_up and graphs >= limit
        found.append(
            Recompiled(
                site=site,
                graphs=graphs if reached else graphs + 1,
                guarded=_guarded(str(failures[0]), site),
                reasons=list(dict.fromkeys(_ENTRY.sub("", text) for text in reasons))[:MOST_REASONS],
                given_up=reached,
            )
        )
    return sorted(found, key=lambda each: -each.graphs)[:MOST]


def _guarded(failure: str, function: Site) -> Site | None:
    found = _FROM.search(failure)
    if found is None or not function.file.endswith(found[1]):  # the path is cut from the left
        return None
    return _site(function.file, found[2], found[3])


def first_line(reason: object) -> str:
    """What Dynamo says in its first line; its hints and the address of its manual left out."""
    lines = str(reason).strip().splitlines()
    # Of a guard the line of source that it comes from stands behind it, as a comment (torch 2.15).
    return re.split(r"\s{3,}#", lines[0])[0].strip()[:_LONGEST] if lines else ""


def _site(file: str, line: Any, function: str) -> Site:
    return Site(file=os.path.realpath(file), line=int(line or 0), function=function)


def _books(name: str, default: Any) -> Any:
    utils = sys.modules.get("torch._dynamo.utils")
    return getattr(utils, name, default) if utils is not None else default


def _listed(name: str) -> Iterable[Any]:
    return list(_books(name, ()))


def _metrics() -> Iterable[Any]:
    read = _books("get_compilation_metrics", None)
    return list(read()) if read is not None else ()


def _unimplemented() -> Iterable[Any]:
    return list(_books("counters", {}).get("unimplemented", ()))


def _limit() -> int:
    config = sys.modules.get("torch._dynamo.config")
    for name in ("recompile_limit", "cache_size_limit"):  # the name until torch 2.6
        value = getattr(config, name, None)
        if isinstance(value, int):
            return value
    return 8
