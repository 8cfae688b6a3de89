"""The Markdown report, as a Markdown parser understands it."""

from __future__ import annotations

from markdown_it import MarkdownIt

from advisor.findings import Findings
from advisor.report import markdown


def _tokens(document: Findings):  # type: ignore[no-untyped-def]
    return MarkdownIt("commonmark").enable("table").parse(markdown.render(document))


def test_the_diff_is_one_fenced_block_with_every_character(rich_document: Findings) -> None:
    fences = [token for token in _tokens(rich_document) if token.type == "fence" and token.info == "diff"]
    assert [fence.content for fence in fences] == [rich_document.findings[0].fix.diff]


def test_tables_have_a_row_for_each_finding(rich_document: Findings) -> None:
    lines = markdown.render(rich_document).splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("| # | change"))
    rows = lines[start + 2 : start + 5]
    assert [row.split(" | ")[1] for row in rows] == [finding.title for finding in rich_document.findings]
    assert all(row.count(" | ") == lines[start].count(" | ") for row in rows)


def test_texts_of_others_are_shown_not_interpreted(hostile_document: Findings) -> None:
    inline = [child for token in _tokens(hostile_document) for child in token.children or []]
    assert not [token for token in _tokens(hostile_document) if token.type == "html_block"]
    assert not [child for child in inline if child.type in ("html_inline", "image", "link_open")]


def test_a_document_of_which_little_is_known_is_short(empty_document: Findings) -> None:
    assert markdown.render(empty_document) == "# nothing worth changing: kernels fill 97% of the step\n"
