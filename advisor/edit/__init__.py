"""Source edits with LibCST at recorded call sites.

``Sources`` gives the texts, ``Drafts`` collects changes of one or several files, ``Drafts.edit`` makes them an
``Edit``: a diff that is taken or left as a whole. What edits of one family need is in a package each (``algebra``,
``gradients``, ``loading``, ``precision``, ``python_loops``); ``origins`` finds where a value is really written.
"""

from __future__ import annotations

from advisor.edit.draft import Draft, Drafts
from advisor.edit.patch import Edit, common_root
from advisor.edit.sources import Source, Sources

__all__ = ["Draft", "Drafts", "Edit", "Source", "Sources", "common_root"]
