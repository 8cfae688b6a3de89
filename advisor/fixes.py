"""What a rule's ``fix`` gives: the edit that was made, an option of the script's own, a variable, or advice."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from advisor.edit import Draft, Drafts
from advisor.edit.origins.options import option_value
from advisor.edit.origins.values import EDITED
from advisor.edit.sources import text_of
from advisor.evidence.outside import users_files
from advisor.rule import Advice, Argument

if TYPE_CHECKING:
    from advisor.edit import Edit
    from advisor.harness.layout import RunRecord


def edited(drafts: Drafts, text: str, summary: str = "") -> Edit | Advice:
    """The edit that `drafts` hold; the advice `text` where a file is not the script's own.

    `summary` says what the edit does where `text` does not.
    """
    return drafts.edit(summary or text) or Advice(text, "the file is not the script's own")


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


def given_fix(
    drafts: Drafts, draft: Draft, answer: str, code: str, text: str, considered: str = ""
) -> Edit | Argument | Advice:
    """The fix that `answer` of :func:`.edit.origins.values.give` stands for: the edit in `drafts`, or an option."""
    if answer != EDITED:
        return by_option(drafts, draft, answer, code, text, considered)
    return edited(drafts, text)


def sets_variable(record: RunRecord, name: str) -> bool:
    """Whether the script seems to write that variable of the environment: one from outside would not last."""
    return not os.path.isfile(record.script) or any(name in text_of(file) for file in users_files(record))
