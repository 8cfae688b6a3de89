"""What the README says of the rules is what they say themselves."""

from __future__ import annotations

from tests.readme import README, with_catalogue


def test_the_catalogue_is_up_to_date() -> None:
    text = README.read_text(encoding="utf-8")
    assert with_catalogue(text) == text, "the rules have changed: run `make readme`"
