"""Loops over groups: each round compares labels with its own number, and takes the rows that are equal."""

from __future__ import annotations

import ast

from advisor.evidence.bindings import bound, last_name, made_of, names_in
from advisor.evidence.python_loops.rounds import loops_at, over

# What a group's rows are needed side by side for: no sum by group says it for all of them.
_SIDE_BY_SIDE = frozenset(
    ("median", "nanmedian", "quantile", "nanquantile", "sort", "argsort", "topk", "kthvalue", "mode", "unique", "cdist",
     "pdist", "cov", "corrcoef", "svd", "eigh", "qr", "cholesky", "inverse", "inv", "solve", "lstsq", "det",
     "cumsum", "multinomial", "randperm")
)  # fmt: skip


def group_loop(text: str, line: int) -> bool | None:
    """Whether the loop at `line` is over groups, ``x[labels == c]`` with its variable c; None where sums do not help.

    That is, where a round needs the rows of its group side by side: their median, distances, singular values.
    """
    loops = loops_at(text, line)
    if len(loops) != 1:
        return False
    inside = [
        node for each in (loops[0].body if isinstance(loops[0], ast.For) else [loops[0].elt]) for node in ast.walk(each)
    ]
    own = names_in(over(loops[0])[0])
    masks = [each for each in inside if isinstance(each, ast.Compare) and _equals(each, own)]
    if not masks:
        return False
    pairs = list(bound(inside))
    equal = set[str]()
    for target, value in pairs:
        if any(each in masks for each in ast.walk(value)):
            equal |= names_in(target)
    named = made_of(equal, pairs)
    picked = [each for each in inside if isinstance(each, ast.Subscript)]
    if not any(names_in(each.slice) & named or any(one in masks for one in ast.walk(each.slice)) for each in picked):
        return False
    called = {last_name(each.func) for each in inside if isinstance(each, ast.Call)}
    return None if called & _SIDE_BY_SIDE else True


def _equals(node: ast.Compare, own: set[str]) -> bool:
    sides = [node.left, *node.comparators]
    return all(isinstance(each, ast.Eq) for each in node.ops) and any(
        isinstance(each, ast.Name) and each.id in own for each in sides
    )
