"""The HTML report as text: complete, self-contained, escaped."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from advisor.evidence import Evidence
from advisor.findings import Findings
from advisor.report import page
from advisor.report.details import details
from advisor.trace import read_trace

_VOID = {"meta", "br", "img", "link", "input", "hr"}


class _Reader(HTMLParser):
    """Collects elements and checks that they are closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, (tag, self.open)
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.mark.parametrize(
    "name", ["rich_document", "empty_document", "hostile_document", "tried_document", "hostile_outcome"]
)
def test_every_element_is_closed(name: str, request: pytest.FixtureRequest) -> None:
    assert _Reader(page.render(request.getfixturevalue(name))).open == []


@pytest.mark.parametrize("name", ["rich_document", "tried_document"])
def test_nothing_is_loaded_from_anywhere(name: str, request: pytest.FixtureRequest) -> None:
    shown = page.render(request.getfixturevalue(name))
    reader = _Reader(shown)
    for tag, attributes in reader.elements:
        assert "src" not in attributes and tag not in ("link", "iframe", "object"), (tag, attributes)
        assert (attributes.get("href") or "#").startswith("#")
    assert not re.search(r"@import|url\(", shown)


def test_every_trial_names_the_runs_that_its_numbers_come_from(tried_document: Findings) -> None:
    text = _Reader(page.render(tried_document)).text
    assert tried_document.outcome
    for trial in tried_document.outcome.trials:
        assert trial.folder in text
        for folder in (*trial.before, *trial.after):
            assert folder.removeprefix(f"{trial.folder}/") in text, folder
    for folder in tried_document.outcome.runs:
        assert folder in text


def test_it_tells_everything_that_the_outcome_holds(tried_document: Findings) -> None:
    text = _Reader(page.render(tried_document)).text
    for said in (
        "400 → 1,233 samples/s: 3.08× (2.90–3.30) with loader-workers, batch-size",
        "2.10× (2.05–2.16)",
        "predicted 1.9–2.5×",
        "No gain of 2%",
        "the smallest gain that could have been seen was 4.0%",
        "RuntimeError: expected scalar type Float but found BFloat16",
        "The first 50 losses differ by 0.04% (allowed 5%, unchanged runs 0%).",
        "python train.py --batch-size 128",
        "CUDA out of memory",
        "compute-bound: 88% of the step is kernels",
        "Ended: nothing is left to try; 12:25 in all.",
    ):
        assert said in text, said


def test_it_tells_everything_that_the_document_holds(rich_document: Findings) -> None:
    text = _Reader(page.render(rich_document)).text
    for said in (
        rich_document.verdict,
        "51.2 ms",
        "625",
        "NVIDIA H200",
        "idle: waiting for data",
        "1.9–2.5×",
        "train.py:40",
        "same batches, same arithmetic",
        "51.2 ms → 22 ms per step: 2.33×",
        "--batch-size 256",
        "The step time had not settled after 200 steps.",
        "two calls on line 12",
        "torchvision 0.29",
    ):
        assert said in text, said


def test_the_copied_diff_is_the_document_s_own(rich_document: Findings) -> None:
    shown = page.render(rich_document)
    stored = re.search(r'<template id="diff-1"><pre>\n(.*?)</pre></template>', shown, re.DOTALL)
    assert stored
    assert html.unescape(stored[1]) == rich_document.findings[0].fix.diff


@pytest.mark.parametrize("name", ["hostile_document", "hostile_outcome"])
def test_texts_of_others_stay_text(name: str, request: pytest.FixtureRequest) -> None:
    reader = _Reader(page.render(request.getfixturevalue(name)))
    assert not [tag for tag, _ in reader.elements if tag == "img"]
    assert len([tag for tag, _ in reader.elements if tag == "script"]) == 1
    assert not [name for _, attributes in reader.elements for name in attributes if name.startswith("on")]
    assert "</script><script>document.title='owned'</script>" in reader.text
    assert "{{7*7}}" in reader.text


def test_nothing_to_change_is_said_plainly(empty_document: Findings) -> None:
    text = _Reader(page.render(empty_document)).text
    assert "Nothing worth changing" in text
    assert "What to change" not in text


def test_a_real_trace_gives_a_picture_tables_and_a_small_file(shared_traces: Path, rich_document: Findings) -> None:
    evidence = Evidence.from_trace(read_trace(shared_traces / "v100-resnet50-workers0.pt.trace.json.gz"))
    shown = page.render(rich_document, details(evidence))
    reader = _Reader(shown)
    assert len(shown) < 300_000
    assert any(attributes.get("id") == "picture-data" for _, attributes in reader.elements)
    headings = [title for title in ("Loaders", "Kernels", "Copies", "Operators") if title in reader.text]
    assert headings == ["Loaders", "Kernels", "Copies", "Operators"]
    assert "enumerate(DataLoader)" in shown


def test_every_reference_trace_makes_a_page(shared_traces: Path, empty_document: Findings) -> None:
    for path in sorted(shared_traces.glob("*.json.gz")):
        evidence = Evidence.from_trace(read_trace(path))
        reader = _Reader(page.render(empty_document, details(evidence)))
        assert reader.open == [], path.name
        assert "One step, as it ran" in reader.text, path.name
