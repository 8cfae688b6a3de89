"""What is asked of values that several modules give: of a DataLoader's batch, 4 in the run, to be 64."""

from __future__ import annotations

import textwrap
from pathlib import Path

import libcst as cst

from advisor.edit import Drafts, Sources
from advisor.edit.calls import DATALOADER_PARAMETERS
from advisor.edit.locate import last_name
from advisor.edit.origins.values import EDITED, give


def _imported_as(path: str) -> str:
    name = str(Path(path).relative_to("/nowhere").with_suffix("")).replace("/", ".")
    return name.removesuffix(".__init__")


def attempt(files: dict[str, str], alone: bool = False) -> tuple[str | None, dict[str, str]]:
    """What `give` answers for the DataLoader of the first of the files, and the texts of those that are changed."""
    texts = {f"/nowhere/{path}": textwrap.dedent(text) for path, text in files.items()}
    modules = {path: _imported_as(path) for path in texts if path.endswith(".py")}
    drafts = Drafts(Sources(texts, settings=[path for path in texts if path not in modules], modules=modules))
    draft = drafts[next(iter(modules))]
    (call,) = [each for each in draft.nodes(cst.Call) if last_name(draft, each) == "DataLoader"]
    answer = give(drafts, draft, call, "batch_size", "64", DATALOADER_PARAMETERS, 4, alone=alone)
    edit = drafts.edit("")
    changed = edit.texts if edit is not None else {}
    return answer, {str(Path(path).relative_to("/nowhere")): text for path, text in changed.items()}


def check_edit(files: dict[str, str]) -> None:
    """The one value that is marked, as ``[4]``, is changed, and nothing else; the file with the loader comes first."""
    before = {path: text.replace("[4]", "4").replace("['4']", "'4'") for path, text in files.items()}
    after = {path: text.replace("[4]", "64").replace("['4']", '"64"') for path, text in files.items()}
    changed = {path: text for path, text in after.items() if text != before[path]}
    assert len(changed) == 1
    assert attempt(before) == (EDITED, changed)
