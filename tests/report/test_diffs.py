"""Diffs as highlighted HTML."""

from __future__ import annotations

import html
import re

from advisor.report import diffs


def _plain(line: diffs.Line) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", str(line.code)))


DIFF = """\
--- a/train.py
+++ b/train.py
@@ -3,3 +3,5 @@
 x = 1
--- old
+++ new
+y = '''a
+b'''
 z = "<b>&"
@@ -20 +22 @@
-a
+b
\\ No newline at end of file
"""


def test_each_line_has_its_kind_and_the_numbers_of_its_side() -> None:
    found = [(line.kind, line.old, line.new) for line in diffs.lines(DIFF)]
    assert found == [
        ("file", None, None),
        ("file", None, None),
        ("hunk", None, None),
        ("context", 3, 3),
        ("removed", 4, None),
        ("added", None, 4),
        ("added", None, 5),
        ("added", None, 6),
        ("context", 5, 7),
        ("hunk", None, None),
        ("removed", 20, None),
        ("added", None, 22),
        ("note", None, None),
    ]


def test_the_text_survives_the_colours() -> None:
    lines = diffs.lines(DIFF)
    assert [_plain(line) for line in lines[3:9]] == ["x = 1", "-- old", "++ new", "y = '''a", "b'''", 'z = "<b>&"']


def test_a_string_over_two_lines_is_one_string() -> None:
    lines = diffs.lines(DIFF)
    inside = re.search(r'class="(s\w*)"', str(lines[7].code))
    assert inside, lines[7].code


def test_nothing_in_the_source_becomes_markup() -> None:
    line = diffs.lines("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-<script>x</script>\n+</code><img onerror=x>\n")
    assert "<script" not in str(line[3].code)
    assert "<img" not in str(line[4].code)


def test_wrong_counts_in_a_header_still_show_every_line() -> None:
    right, wrong = diffs.lines(DIFF), diffs.lines(DIFF.replace("-3,3 +3,5", "-3,9 +3,9"))
    assert [_plain(line) for line in wrong[3:]] == [_plain(line) for line in right[3:]]


def test_windows_line_ends_and_odd_characters_do_not_break_the_count() -> None:
    lines = diffs.lines("--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n-a = 1\r\n+a = 2\r\n b = '\x0c\u2028'\r\n")
    assert [line.kind for line in lines] == ["file", "file", "hunk", "removed", "added", "context"]
