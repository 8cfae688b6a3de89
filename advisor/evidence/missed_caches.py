"""A cache of the user's that is filled under another key than it is asked for, and so makes its value every time.

``if fmax not in basis: basis[f"{fmax}_{device}"] = make(fmax)``: what is kept there is never found again.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from advisor.evidence.bindings import last_name
from advisor.evidence.fetching import by_statement, parsed, share
from advisor.harness.layout import Loader, Site

_LEAST = 0.2  # of making a batch: what is wrong with it is certain


@dataclass(frozen=True)
class MissedCache:
    """What is asked whether it has a key, at `site`, and is then given a value under another one, as they are written.

    ``share`` of making a batch is what making the value takes.
    """

    site: Site
    cache: str
    asked: str
    filled: str
    share: float


@dataclass(frozen=True)
class _Guard:
    """``if asked not in cache:`` at the line, from the first to the last line of what it guards."""

    line: int
    first: int
    last: int
    cache: str
    asked: str
    filled: str
    body: list[ast.stmt]


def missed_cache(loader: Loader) -> MissedCache | None:
    """The one whose values take longest, where they are seen to be made for the samples that come."""
    lines = [*by_statement(loader, "line"), *by_statement(loader, "inside")]
    lasting = [each for each in loader.parts if each.kind == "lasting"]  # functions that run for most of the samples
    found: list[MissedCache] = []
    for file in dict.fromkeys(each.site.file for each in (*lines, *lasting)):
        for guard in _guards(parsed(file)):
            own = [each for each in lines if each.site.file == file and guard.first <= each.site.line <= guard.last]
            calls = {last_name(each.func) for one in guard.body for each in ast.walk(one) if isinstance(each, ast.Call)}
            called = [each for each in lasting if each.site.file == file and each.name in calls]
            taken = max(sum(share(loader, each) for each in parts) for parts in (own, called))
            found.append(
                MissedCache(Site(file, guard.line), guard.cache, guard.asked, guard.filled, min(1.0, taken))
            )
    most = max(found, key=lambda each: each.share, default=None)
    return most if most is not None and most.share >= _LEAST else None


def _guards(tree: ast.Module | None) -> Iterator[_Guard]:
    """Those of the functions whose two keys cannot be told to be the same."""
    for function in ast.walk(tree) if tree is not None else ():
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        named = _named_once(function)
        for node in ast.walk(function):
            if not isinstance(node, ast.If) or (test := _not_in(node.test)) is None:
                continue
            asked, cache = test
            filled = [each for each in _filled(function) if ast.unparse(each.value) == ast.unparse(cache)]
            inside = [each for each in filled if node.lineno < each.lineno <= (node.end_lineno or 0)]
            # Whoever fills it under the key that is asked for, here or elsewhere, may have done so before.
            keys = {_spelled(each.slice, named) for each in filled}
            if len(inside) == 1 and _spelled(asked, named) not in keys and not isinstance(inside[0].slice, ast.Slice):
                yield _Guard(
                    node.lineno,
                    node.body[0].lineno,
                    node.body[-1].end_lineno or node.body[-1].lineno,
                    ast.unparse(cache),
                    ast.unparse(asked),
                    ast.unparse(inside[0].slice),
                    node.body,
                )


def _not_in(test: ast.expr) -> tuple[ast.expr, ast.expr] | None:
    """Key and cache of ``key not in cache`` and ``not key in cache``."""
    within: type[ast.cmpop] = ast.NotIn
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, within = test.operand, ast.In
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], within):
        return None
    cache = test.comparators[0]
    if isinstance(cache, ast.Call) and isinstance(cache.func, ast.Attribute) and cache.func.attr == "keys":
        cache = cache.func.value
    return (test.left, cache) if isinstance(cache, (ast.Name, ast.Attribute)) else None


def _filled(function: ast.AST) -> list[ast.Subscript]:
    """``cache[key]`` where it is given a value."""
    return [
        each for each in ast.walk(function) if isinstance(each, ast.Subscript) and isinstance(each.ctx, ast.Store)
    ]


def _named_once(function: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, ast.expr]:
    """What the names mean that a function gives a value at one place only."""
    stored = [each.id for each in ast.walk(function) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)]
    values = {
        each.targets[0].id: each.value
        for each in ast.walk(function)
        if isinstance(each, ast.Assign) and len(each.targets) == 1 and isinstance(each.targets[0], ast.Name)
    }
    return {name: value for name, value in values.items() if stored.count(name) == 1}


def _spelled(key: ast.expr, named: dict[str, ast.expr]) -> str:
    """A key as it is written, a name by what it means."""
    seen = set[str]()
    while isinstance(key, ast.Name) and key.id in named and key.id not in seen:
        seen.add(key.id)
        key = named[key.id]
    return ast.unparse(key)
