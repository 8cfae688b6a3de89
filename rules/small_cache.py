"""A cache of the script's own lets go what is asked for again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from advisor.edit import Draft, Drafts
from advisor.edit.calls import argument
from advisor.edit.locate import code_at
from advisor.edit.modules import TooManyFilesError, with_word
from advisor.edit.names import last_part
from advisor.edit.origins.values import EDITED, give
from advisor.evidence import Change
from advisor.fixes import given_fix
from advisor.harness.layout import Site
from advisor.rule import Advice, Argument, Example, Finding, Gain, Rule, Safety, at

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence

_LEFT = 0.02  # of what is computed: what is asked for the first time
_MOST_MEMORY = 0.25  # of what the host has free
# What a size is called that decides about nothing else.
_KEPT = re.compile(r"(?i)cache|lru|memo|maxsize|max_size|\bkept|\bkeep")
_BASIS = "prior: what the cache's function takes in a few traced steps, but for a fiftieth"


class SmallCache(Rule):
    """A function is cached, and the cache is too small: what it computes is gone before it is asked for again.

    ``functools.lru_cache`` keeps 128 results unless it is told otherwise. Samples that are drawn in any order from more
    files than that find few of them in it, and samples that are taken in turn find none: each time the file is read and
    prepared again. The cache's own books tell how often in the timed steps, and how many different things it is asked
    for: where a share h of the calls finds one of n results, there are about n / h. Reported where the cache is full,
    where what it was given in these steps had been in it before, and where the stacks of a few steps show what
    computing it again takes.

    When not: there is no memory for all results (the report says what one takes). Workers of a loader have a cache
    each, which is not seen.

    Source: Python docs, ``functools.lru_cache``: ``cache_info()``, "a measure of the effectiveness of the cache".
    """

    id = "small-cache"
    title = "Make the cache as large as what is asked of it"
    safety = Safety.EXACT

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        found = evidence.thrashing
        if found is None or not evidence.step_s:
            return
        saved, cache = found.seconds * (1.0 - _LEFT), found.cache
        change = Change(remove_host_s=saved)
        if found.in_loader:
            loader = next((each.record for each in evidence.loaders if each.record is not None), None)
            if loader is None or not loader.fetch_s:
                return
            left = max(0.0, loader.fetch_s - saved / evidence.step_model.batches_per_step)
            change = Change(fetch_s=left, fetch_cpu_s=min(left, loader.fetch_cpu_s or left))
        gain = Gain.prior(evidence.what_if(change), _BASIS)
        if not gain.worth_it:
            return
        calls = cache.hits + cache.misses
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{cache.site.function}() ({at(cache.site)}) is cached, {cache.size} results of about "
            f"{found.asked} that are asked for: {cache.misses:.3g} of {calls:.3g} calls in each step compute theirs "
            f"again, {found.seconds / evidence.step_s:.0%} of it.",
            gain=gain,
            evidence={
                "misses_per_step": cache.misses,
                "calls_per_step": calls,
                "cached_results": cache.size,
                "result_bytes": cache.bytes,
                "cached_s": found.seconds,
                "step_s": evidence.step_s,
            },
            site=cache.site,
            parameters={"size": cache.size, "enough": _enough(found.asked), "fits": _fits(evidence, found.asked)},
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        size, enough, site = finding.parameters.get("size"), finding.parameters.get("enough"), finding.site
        name = f"{site.function}()" if site is not None and site.function else "the function"
        text = f"Let the cache around {name} keep {enough} results: maxsize={enough}."
        why = "where the cache is made was not found, or what says its size decides about something else, too"
        if not finding.parameters.get("fits"):
            why = "all results together may not fit into the memory that is free"
        elif site is not None:
            drafts = Drafts(sources)
            made = _made(drafts, site)
            answer = _resize(drafts, *made, str(enough), size) if made is not None else None
            if made is not None and answer is not None:
                return given_fix(drafts, made[0], answer, str(enough), text, text)
        return Advice(text + " Or keep what it gives in a file, prepared once, before the training.", why)

    EXAMPLES = (
        Example(
            before="""
from functools import lru_cache


@lru_cache(maxsize=16)  # <-
def load(name):
    return numpy.load(name)
""",
            after="""
from functools import lru_cache


@lru_cache(maxsize=256)
def load(name):
    return numpy.load(name)
""",
            parameters={"size": 16, "enough": 256, "fits": True},
        ),
        Example(
            before="""
import functools


@functools.lru_cache  # <-
def load(name):
    return numpy.load(name)
""",
            after="""
import functools


@functools.lru_cache(maxsize=512)
def load(name):
    return numpy.load(name)
""",
            parameters={"size": 128, "enough": 512, "fits": True},
        ),
        Example(
            before="""
from functools import lru_cache


class Store:
    def __init__(self, root, kept):
        self.root = root
        self.trace = lru_cache(maxsize=kept)(self._trace)

    def _trace(self, name):  # <-
        return numpy.load(self.root / name)


store = Store(root, kept=8)
""",
            after="""
from functools import lru_cache


class Store:
    def __init__(self, root, kept):
        self.root = root
        self.trace = lru_cache(maxsize=kept)(self._trace)

    def _trace(self, name):
        return numpy.load(self.root / name)


store = Store(root, kept=128)
""",
            parameters={"size": 8, "enough": 128, "fits": True},
        ),
    )
    LEAVES_ALONE = (
        Example(
            before="""
from functools import lru_cache


@lru_cache(maxsize=16)  # <-
def load(name):
    return numpy.load(name)
""",
            after="",
            parameters={"size": 16, "enough": 256, "fits": False},
        ),
    )


def _enough(asked: int) -> int:
    """Twice as many as there seem to be, as a power of two: none is kept that is not asked for."""
    return int(2 ** (2 * asked - 1).bit_length())


def _fits(evidence: Evidence, asked: int) -> bool:
    record, found = evidence.record, evidence.thrashing
    free = record.memory.host_available if record is not None else None
    return free is not None and found is not None and 2 * asked * found.cache.bytes < _MOST_MEMORY * free


def _made(drafts: Drafts, site: Site) -> tuple[Draft, cst.Call | cst.Decorator] | None:
    """The one place where the function at `site` is put into a cache; None where there are several, or none."""
    draft = drafts[site.file]
    function = code_at(draft, site.line)
    if not isinstance(function, cst.FunctionDef):
        return None
    made: list[tuple[Draft, cst.Call | cst.Decorator]] = [
        (draft, each) for each in function.decorators if _is_cache(each.decorator)
    ]
    try:
        files = with_word(drafts, draft, "lru_cache")
    except TooManyFilesError:
        return None
    for file in files:
        made += ((file, call) for call in _around(file, function.name.value))
    return made[0] if len(made) == 1 else None


def _around(draft: Draft, name: str) -> Iterator[cst.Call]:
    """``lru_cache(…)`` of ``lru_cache(…)(self.name)``."""
    for call in draft.nodes(cst.Call):
        given = call.args[0].value if len(call.args) == 1 else None
        named = given is not None and last_part(given) == name
        if named and isinstance(call.func, cst.Call) and _is_cache(call.func):
            yield call.func


def _is_cache(made: cst.BaseExpression) -> bool:
    return last_part(made.func if isinstance(made, cst.Call) else made) == "lru_cache"


def _resize(drafts: Drafts, draft: Draft, made: cst.Call | cst.Decorator, code: str, recorded: object) -> str | None:
    call = made.decorator if isinstance(made, cst.Decorator) else made
    if not isinstance(call, cst.Call):
        draft.replace(call, f"{draft.code(call)}(maxsize={code})")
        return EDITED
    value = argument(call, "maxsize", ("maxsize",))
    # A number that says nothing but how much is kept may be handed on to it from anywhere.
    alone = value is not None and not _KEPT.search(draft.code(value.value))
    return give(drafts, draft, call, "maxsize", code, ("maxsize",), recorded, alone=alone)
