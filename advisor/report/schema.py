"""``findings.schema.json``: the contract of findings.json as a file that ships with the package.

``python -m advisor.report.schema`` writes it anew after the structs of :mod:`advisor.findings` have changed.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

from advisor import findings

FILE = Path(__file__).with_name("findings.schema.json")


def text() -> str:
    """The schema as it is written; the same for every version of Python (3.13 dedents docstrings, others do not)."""
    return json.dumps(_dedented(findings.json_schema()), indent=2, ensure_ascii=False) + "\n"


def _dedented(node: Any) -> Any:
    if isinstance(node, dict):
        return {
            key: inspect.cleandoc(entry) if key == "description" and isinstance(entry, str) else _dedented(entry)
            for key, entry in node.items()
        }
    return [_dedented(entry) for entry in node] if isinstance(node, list) else node


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
