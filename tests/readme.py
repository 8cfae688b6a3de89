"""The README's catalogue of rules, made from their docstrings.

python -m tests.readme          writes it (`make readme`)
"""

from __future__ import annotations

import re
from pathlib import Path

from advisor.report import catalogue
from advisor.rulebook import load_rules

README = Path(__file__).parents[1] / "README.md"
_CATALOGUE = re.compile(r"(<!-- rules: made by `make readme` -->\n).*?(<!-- end of rules -->)", re.DOTALL)


def with_catalogue(text: str) -> str:
    """`text` with the catalogue as the rules have it now. Raises ValueError where it has no place for it."""
    new, places = _CATALOGUE.subn(lambda match: f"{match[1]}\n{catalogue.markdown(load_rules())}\n{match[2]}", text)
    if places != 1:
        raise ValueError(f"{places} places for the catalogue in {README}, not one")
    return new


if __name__ == "__main__":
    README.write_text(with_catalogue(README.read_text(encoding="utf-8")), encoding="utf-8")
