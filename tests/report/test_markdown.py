"""The Markdown report, as a Markdown parser understands it."""

from __future__ import annotations

import pytest
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


@pytest.mark.parametrize("name", ["hostile_document", "hostile_outcome"])
def test_texts_of_others_are_shown_not_interpreted(name: str, request: pytest.FixtureRequest) -> None:
    tokens = _tokens(request.getfixturevalue(name))
    inline = [child for token in tokens for child in token.children or []]
    assert not [token for token in tokens if token.type == "html_block"]
    assert not [child for child in inline if child.type in ("html_inline", "image", "link_open")]


def test_a_document_of_which_little_is_known_is_short(empty_document: Findings) -> None:
    assert markdown.render(empty_document) == "# nothing worth changing: kernels fill 97% of the step\n"


def test_the_outcome_is_a_table_with_a_row_for_each_version(tried_document: Findings) -> None:
    lines = markdown.render(tried_document).splitlines()
    assert "## 400 → 1,233 samples/s: 3.08× (2.90–3.30) with loader-workers, batch-size" in lines
    start = next(index for index, line in enumerate(lines) if line.startswith("|  | samples/s"))
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start + 2 : start + 6]]
    assert [row[:2] for row in rows] == [
        ["as it was", "400"],
        ["1. loader-workers", "838"],
        ["5. batch-size", "1,233"],
        ["all together", "1,233"],
    ]
    assert rows[1][2:] == ["2.10× (2.05–2.16)", "1.9–2.5×", "01-loader-workers"]


def test_what_was_not_kept_is_a_table_with_reasons(tried_document: Findings) -> None:
    text = markdown.render(tried_document)
    assert "| 4. amp-autocast | failed | RuntimeError: expected scalar type Float but found BFloat16 |" in text
    assert "| before | 2.31 | 2.287 | 2.264 | 2.241 | … | 1.455 | 1.44 | 1.426 | 1.412 |" in text
    fences = [token.content for token in _tokens(tried_document) if token.type == "fence" and token.info == "sh"]
    assert fences == ["python train.py --batch-size 128\n"]
