"""Where a script writes into a tensor or an array that it has: ``x[i] = 1``, ``x += 1``, ``x.fill_(0)``, ``out=x``."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from advisor.edit.dataflow import loops
from advisor.edit.draft import Draft
from advisor.edit.sums import elements, root


def written_in_place(draft: Draft, within: cst.CSTNode | None = None) -> Iterator[cst.BaseExpression]:
    """What is written to in place in the file, or below `within`: the ``x`` of ``x[i] = 1``, ``x += 1``, ``out=x``.

    By its text alone: the number of ``count += 1`` is given, too.
    """
    targets = [each.target for each in draft.nodes(cst.AssignTarget, within)]
    targets += [each.target for each in loops(draft, within)]
    yield from (root(each) for target in targets for each in elements(target) if isinstance(each, cst.Subscript))
    yield from (root(each.target) for each in draft.nodes(cst.AugAssign, within))
    methods = (each for each in draft.nodes(cst.Attribute, within) if re.search(r"[^_]_$", each.attr.value))
    yield from (root(each.value) for each in methods)
    keywords = (each for each in draft.nodes(cst.Arg, within) if each.keyword is not None)
    yield from (root(each.value) for each in keywords if each.keyword is not None and each.keyword.value == "out")
