"""findings.json is a public contract: its schema ships with the package, and documents keep to it."""

from __future__ import annotations

import copy
import json
from importlib import resources
from pathlib import Path

import jsonschema
import pytest

from advisor import findings
from advisor.errors import AdvisorError
from advisor.findings import Findings
from advisor.report import read, schema, write


def _shipped() -> dict[str, object]:
    text = (resources.files("advisor.report") / "findings.schema.json").read_text(encoding="utf-8")
    schema: dict[str, object] = json.loads(text)
    return schema


def test_the_shipped_schema_is_that_of_the_structs() -> None:
    assert schema.FILE.read_text(encoding="utf-8") == schema.text(), "run: python -m advisor.report.schema"
    shipped = schema._dedented(findings.json_schema())
    assert _shipped() == shipped


@pytest.mark.parametrize(
    "name", ["rich_document", "empty_document", "hostile_document", "tried_document", "hostile_outcome"]
)
def test_documents_keep_to_the_schema(name: str, request: pytest.FixtureRequest) -> None:
    document = json.loads(findings.encode(request.getfixturevalue(name)))
    jsonschema.Draft202012Validator.check_schema(_shipped())
    jsonschema.validate(document, _shipped(), cls=jsonschema.Draft202012Validator)


def test_the_schema_refuses_what_is_no_document(rich_document: Findings) -> None:
    good = json.loads(findings.encode(rich_document))
    for spoil in (
        lambda d: d.pop("verdict"),
        lambda d: d["findings"][0].update(safety="harmless"),
        lambda d: d["findings"][0]["predicted"]["speedup"].pop("low"),
        lambda d: d.update(step_ms="fast"),
    ):
        bad = copy.deepcopy(good)
        spoil(bad)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(bad, _shipped(), cls=jsonschema.Draft202012Validator)


def test_what_is_written_is_read_again(rich_document: Findings, tmp_path: Path) -> None:
    files = write(rich_document, tmp_path / "new" / "folder")
    assert read(tmp_path / "new" / "folder") == rich_document
    assert {Path(path).name for path in files.values()} == {"findings.json", "report.html", "report.md"}
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == [
        "findings.json",
        "report.html",
        "report.md",
    ]


def test_a_folder_that_cannot_be_written_is_a_clear_error(rich_document: Findings, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AdvisorError, match="cannot write the report"):
        write(rich_document, tmp_path / "file" / "below")


@pytest.mark.parametrize("content", [b"", b"{}", b"[1, 2]", b"\xff\xfe", b'{"verdict": 3}'])
def test_a_file_that_is_no_findings_document_is_a_clear_error(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "findings.json").write_bytes(content)
    with pytest.raises(AdvisorError, match="no findings document"):
        read(tmp_path)
