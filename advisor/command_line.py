"""A fix that is an option of the script's own."""

from __future__ import annotations

from advisor.edit import Draft, Drafts
from advisor.edit.options import option_value
from advisor.rule import Advice, Argument


def by_option(
    drafts: Drafts, draft: Draft, option: str, code: str, text: str, considered: str = ""
) -> Argument | Advice:
    """Have the command line say the literal `code` by `option`; the advice `text` where its parser may not take that.

    `considered` is what to consider besides the option.
    """
    word = option_value(drafts, draft, option, code)
    if word is None:
        return Advice(text, f"{option} may not take {code}, by its type or choices")
    return Argument({option: word}, considered)
