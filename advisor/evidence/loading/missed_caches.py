"""A cache of the user's that is filled under another key than it is asked for, and so makes its value every time.

``if fmax not in basis: basis[f"{fmax}_{device}"] = make(fmax)``: what is kept there is never found again. Told by the
source, and by what was seen to run: a function that is given one and the same object for most of the samples.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from dataclasses import dataclass

from advisor.evidence.bindings import last_name
from advisor.evidence.loading.deterministic import computes_the_same
from advisor.evidence.loading.fetching import parsed, share
from advisor.harness.layout import FetchPart, Loader, Site

_LEAST = 0.2  # of making a batch: what is wrong with it is certain
_FILLS = ("update", "setdefault", "get")  # of a mapping: who asks it otherwise, or fills it, may find what is there
_ALIKE = ("str", "int", "repr", "float", "item", "hex")  # what is made of a key by these may well be equal to it


@dataclass(frozen=True)
class MissedCache:
    """What is asked whether it has a key, at `site`, and is then given a value under another one, as they are written.

    ``share`` of making a batch is what the function takes that makes the value: of one and the same object each time,
    and by its source the same.
    """

    site: Site
    cache: str
    asked: str
    filled: str
    share: float


def missed_cache(loader: Loader) -> MissedCache | None:
    """The one whose values take longest, where they are seen to be made for the samples that come."""
    found = [
        MissedCache(Site(part.site.file, guard.lineno), *texts, share(loader, part))
        for part in loader.parts
        if part.kind == "lasting"  # it has run for most of the samples, of one object
        for guard, texts in _guards(part)
    ]
    most = max(found, key=lambda each: each.share, default=None)
    return most if most is not None and most.share >= _LEAST else None


def _guards(part: FetchPart) -> Iterator[tuple[ast.If, tuple[str, str, str]]]:
    """``if asked not in cache: cache[filled] = …function(…)…`` in its file, the only call of that function.

    With cache, asked and filled as they are written.
    """
    file = part.site.file
    tree = parsed(file)
    calls = [each for each in ast.walk(tree) if isinstance(each, ast.Call)] if tree is not None else []
    calls = [each for each in calls if last_name(each.func) == part.name]
    if tree is None or len(calls) != 1 or not _makes_the_same(file, part.name):
        return
    for function in ast.walk(tree):
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.If) and any(each is calls[0] for one in node.body for each in ast.walk(one)):
                texts = _misses(tree, function, node)
                if texts is not None:
                    yield node, texts


def _makes_the_same(file: str, function: str) -> bool:
    """Whether that function of the file gives the same of the same each time, by its source."""
    lines = [*"".join(linecache.getlines(file)).splitlines(), "", "def _asks(x):", f"    made = {function}(x)"]
    return function in computes_the_same("\n".join(lines), len(lines)).split(", ")


def _misses(
    tree: ast.Module, function: ast.FunctionDef | ast.AsyncFunctionDef, guard: ast.If
) -> tuple[str, str, str] | None:
    """Cache, asked and filled key of a guard that lets everything in; None where it may find what it asks for."""
    test = _not_in(guard.test)
    if test is None:
        return None
    asked, cache = test
    name, named = ast.unparse(cache), _named_once(function)
    bound = {each.id for each in ast.walk(function) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    parameters = {each.arg for each in ast.walk(function) if isinstance(each, ast.arg)}
    if isinstance(cache, ast.Name) and cache.id in bound | parameters:
        return None  # made in each call
    if isinstance(asked, ast.Constant):
        return None
    # Whoever fills it under what is asked for, here or elsewhere, may have done so before.
    filled = [each for each in ast.walk(tree) if isinstance(each, ast.Subscript) and isinstance(each.ctx, ast.Store)]
    filled = [each for each in filled if last_name(each.value) == last_name(cache)]
    others = [each for each in ast.walk(tree) if isinstance(each, ast.Attribute) and each.attr in _FILLS]
    if len(filled) != 1 or any(last_name(each.value) == last_name(cache) for each in others):
        return None
    (store,) = filled
    own = [each for each in guard.body if isinstance(each, ast.Assign) and store in each.targets]  # in no loop
    key, wanted = _resolved(store.slice, named), _resolved(asked, named)
    if not own or ast.unparse(store.value) != name or _bare(key) == _bare(wanted):
        return None
    return name, ast.unparse(asked), ast.unparse(store.slice)


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


def _named_once(function: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, ast.expr]:
    """What the names mean that a function gives a value at one place only."""
    stored = [each.id for each in ast.walk(function) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)]
    values = {
        each.targets[0].id: each.value
        for each in ast.walk(function)
        if isinstance(each, ast.Assign) and len(each.targets) == 1 and isinstance(each.targets[0], ast.Name)
    }
    return {name: value for name, value in values.items() if stored.count(name) == 1}


def _resolved(key: ast.expr, named: dict[str, ast.expr]) -> ast.expr:
    """A key, a name by what it means."""
    seen = set[str]()
    while isinstance(key, ast.Name) and key.id in named and key.id not in seen:
        seen.add(key.id)
        key = named[key.id]
    return key


def _bare(key: ast.expr) -> str:
    """What a key is made of, as it is written, without what may leave it equal: ``str(x)``, ``x.item()``."""
    while isinstance(key, ast.Call) and last_name(key.func) in _ALIKE:
        key = key.args[0] if key.args else key.func.value if isinstance(key.func, ast.Attribute) else key.func
        if isinstance(key, ast.Name) and key.id in _ALIKE:
            break
    return ast.unparse(key)
