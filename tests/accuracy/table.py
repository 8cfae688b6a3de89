"""The page ``tests/benchmarks/results/accuracy.md``: per rule and in all, and other tools on the same cases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from fixtures.expectations import Found

from .judge import Count, Said, total
from .peers import PEERS, Peer
from .results import CaseResult, Duel, counts, duels, fixes, gains, unheard
from .scores import COVERAGE, WIDEST, Interval, holds

# Cores in use by other programs when a case began: more is other work, not a system's idling.
BUSY = 0.3


@dataclass(frozen=True)
class Page:
    """What the page says. ``out`` are cases that cannot run here, and why; ``part`` what was chosen of all.

    ``peers`` are the versions of other tools by name, empty for one that is not installed; none where none was asked.
    ``known`` are the rules that there are; others that cases expect are missed, and said to be still to come.
    """

    results: list[CaseResult]
    out: dict[str, str] = field(default_factory=dict)
    date: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    peers: dict[str, str] = field(default_factory=dict)
    short: bool = False
    gains: bool = False
    part: str = ""
    known: frozenset[str] = frozenset()

    @property
    def failed(self) -> list[CaseResult]:
        """Cases that could not be profiled: what is expected of them counts as missed."""
        return [result for result in self.results if result.answer.error]

    @property
    def disturbed(self) -> list[CaseResult]:
        """Scripts that were profiled beside other work."""
        return [result for result in self.results if result.answer.busy > BUSY and not result.case.trace]

    @property
    def waiting(self) -> list[CaseResult]:
        """Cases whose rule is still to come."""
        return [result for result in self.results if result.case.waits_for]


def render(page: Page) -> str:
    """The page as Markdown."""
    return "\n".join(_lines(page)) + "\n"


def _lines(page: Page) -> Iterator[str]:
    yield "# How right the advice is"
    yield ""
    kinds = [result.case.kind for result in page.results]
    traces = sum(bool(result.case.trace) for result in page.results)
    versions = ", ".join(f"{name} {version}" for name, version in page.versions.items())
    windows = ", windows as short as the tests'" if page.short else ""
    yield (
        f"{page.date}; {versions}{windows}. Cases: {len(kinds) - traces} scripts"
        + (f" and {traces} traces that others recorded on GPUs" if traces else "")
        + f", of these {kinds.count('planted')} with something "
        f"planted, {kinds.count('near-miss')} near-misses, {kinds.count('clean')} clean."
        + (f" A part of all: {page.part}." if page.part else "")
    )
    if page.disturbed:
        most = max(result.answer.busy for result in page.disturbed)
        yield ""
        yield (
            f"**Not on a quiet machine**: when {len(page.disturbed)} of the cases began, other programs kept up to "
            f"{most:.1f} cores busy. What these runs found, and missed, is not the scripts' alone."
        )
    yield ""
    yield (
        "Precision: of what is reported, how much the case expects; findings that a case allows count neither way, all "
        "others that it does not expect are false alarms. Recall: of what is expected, how much is reported. Place: of "
        "those whose line matters, how many point to it. Fix: of those found, how many have the kind of fix that is "
        "expected (edit, argument, environment, advice). Applies, runs: of the fixes that are more than advice, how "
        "many diffs `git apply` takes, and how many scripts then run."
    )
    if page.gains:
        yield ""
        yield (
            "Inside: of the speedups measured in alternating pairs of runs, how many lie in the predicted range; one "
            f"that is wider than {WIDEST:g} is a miss. Score: the mean interval score of the ranges (Gneiting and "
            f"Raftery 2007, on logarithms of speedups, coverage {COVERAGE:.0%}; 0 is best). Rank: Spearman's "
            "correlation between likely and measured speedups."
        )
    yield ""
    yield from _rules(page)
    yield from _listed(page)
    if page.peers:
        yield from _all_peers(page)


# Per rule ------------------------------------------------------------------------------------------------------------


def _rules(page: Page) -> Iterator[str]:
    names = ["rule", "cases", "precision", "recall", "place", "fix", "applies", "runs"]
    if page.gains:
        names += ["inside", "score", "rank"]
    yield _row(names)
    yield _row(["---"] * len(names))
    found = counts(page.results)
    for rule in sorted(found):
        yield _row([rule, *_cells(page, found[rule], rule)])
    yield _row(["**all**", *_cells(page, total(found.values()), None)])


def _cells(page: Page, one: Count, rule: str | None) -> list[str]:
    tried = fixes(page.results, rule)
    cells = [
        str(one.hits + one.missed),
        _part(one.hits, one.hits + one.false),
        _part(one.hits, one.hits + one.missed),
        _part(one.placed, one.asked),
        _part(one.fixed, one.hits),
        _part(tried.applied, tried.tried),
        _part(tried.ran, tried.tried),
    ]
    if page.gains:
        gained = gains(page.results, rule)
        inside = None if gained.inside is None else round(gained.inside * len(gained.measured))
        cells += [_part(inside or 0, len(gained.measured)), _number(gained.score), _number(gained.correlation)]
    return cells


def _listed(page: Page) -> Iterator[str]:
    """By name: what is behind the shares that are less than 1."""
    found = counts(page.results)
    unlabelled = {(result.case.name, said.rule) for result in page.results for said in result.judgement.unlabelled}

    def marked(rule: str, name: str) -> str:
        return f"{name}*" if (name, rule) in unlabelled else name

    def to_come(rule: str) -> str:
        return f"{rule} (there is no such rule yet)" if page.known and rule not in page.known else rule

    sections = {
        "Missed": [(to_come(rule), one.where_missed) for rule, one in sorted(found.items())],
        "False alarms (* where the case says nothing of that rule)": [
            (rule, [marked(rule, name) for name in one.where_false]) for rule, one in sorted(found.items())
        ],
        "Not in its place": [
            (f"{result.case.name}, {expected.rule}", [f"{said.file}:{said.line}, not {expected.file}:{expected.line}"])
            for result, expected, said in _hits(page)
            if not said.is_at(expected)
        ],
        "Another kind of fix": [
            (f"{result.case.name}, {expected.rule}", [f"{said.fix}, not {expected.fix}"])
            for result, expected, said in _hits(page)
            if said.fix != expected.fix
        ],
        "Diffs that do not apply, or do not run": [
            (f"{result.case.name}, {each.rule}", [" ".join(each.trouble.split())[:300] or "no reason given"])
            for result in page.results
            for each in result.fixes
            if not each.runs
        ],
        "Gains outside the predicted range": [
            (
                f"{result.case.name}, {each.rule}",
                [
                    f"{each.low:.2f}–{each.high:.2f} predicted, {each.speedup:.2f} measured "
                    f"({each.measured_low:.2f}–{each.measured_high:.2f})"
                ],
            )
            for result in page.results
            for each in result.measured
            if not holds(Interval(each.low, each.likely, each.high), each.speedup)
        ],
        "Could not be profiled": [(r.case.name, [" ".join(r.answer.error.split())[:300]]) for r in page.failed],
        "Left out": [(name, [why]) for name, why in page.out.items()],
        "No rule of today finds": [(r.case.name, [f"waits for {r.case.waits_for}"]) for r in page.waiting],
    }
    for title, entries in sections.items():
        entries = [(name, what) for name, what in entries if what]
        if entries:
            yield ""
            yield f"{title}:"
            yield ""
            for name, what in entries:
                yield f"- {name}: {', '.join(what)}"


def _hits(page: Page) -> list[tuple[CaseResult, Found, Said]]:
    return [(result, *hit) for result in page.results for hit in result.judgement.hits]


# Other tools ---------------------------------------------------------------------------------------------------------


def _all_peers(page: Page) -> Iterator[str]:
    yield ""
    yield "## Other tools on the same cases"
    yield ""
    yield (
        "What they say, taken for the rules of ours that would make it true (`tests/accuracy/peers`), and judged as "
        "above but for the place. Beside it the advisor on the cases that both could judge."
    )
    for peer in PEERS:
        version = page.peers.get(peer.name, "")
        yield ""
        if not version:
            yield f"**{peer.name}** could not run: {peer.package} is not installed in its environment."
            continue
        yield f"**{peer.name}** ({peer.package} {version})"
        yield ""
        yield from _peer(page, peer)


def _peer(page: Page, peer: Peer) -> Iterator[str]:
    found = duels(page.results, peer)
    if found:
        yield _row(["rule", "its precision", "its recall", "our precision", "our recall"])
        yield _row(["---"] * 5)
        for duel in [*found, Duel("**all these**", total(d.theirs for d in found), total(d.ours for d in found))]:
            yield _row([duel.rule, *_two(duel.theirs), *_two(duel.ours)])
    else:
        yield "Nothing of what it said is about speed, and nothing of what is expected is in its vocabulary."
    heard = [result.heard[peer.name] for result in page.results if peer.name in result.heard]
    silent = sum(not each.error and not peer.said(each) for each in heard)
    yield ""
    yield f"It had nothing to say, in these terms, of {silent} of {len(heard)} cases."
    failed = unheard(page.results, peer)
    if failed:
        reasons: dict[str, list[str]] = {}
        for name, why in failed:
            reasons.setdefault(_last_line(why), []).append(name)
        for why, names in reasons.items():
            yield f"It could not judge {', '.join(names)}: {why}."


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[-1] if lines else "no reason given")[:200].rstrip(".")


def _two(one: Count) -> list[str]:
    return [_part(one.hits, one.hits + one.false), _part(one.hits, one.hits + one.missed)]


# Cells ---------------------------------------------------------------------------------------------------------------


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _part(part: int, whole: int) -> str:
    return f"{part / whole:.0%} ({part}/{whole})" if whole else "–"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


# The same as data ----------------------------------------------------------------------------------------------------


def as_json(page: Page) -> dict[str, object]:
    """The figures for programs: shares of 1, None where nothing was counted."""
    found = counts(page.results)

    def figures(one: Count, rule: str | None) -> dict[str, object]:
        tried, gained = fixes(page.results, rule), gains(page.results, rule)
        return {
            "expected": one.hits + one.missed,
            "found": one.hits,
            "false": one.false,
            "precision": one.precision,
            "recall": one.recall,
            "place": one.place,
            "fix": one.fix,
            "applies": tried.applies,
            "runs": tried.runs,
            "inside": gained.inside,
            "interval_score": gained.score,
            "rank_correlation": gained.correlation,
            "missed_in": one.where_missed,
            "false_in": one.where_false,
        }

    return {
        "date": page.date,
        "versions": page.versions,
        "cases": len(page.results),
        "left_out": page.out,
        "failed": {result.case.name: result.answer.error for result in page.failed},
        "all": figures(total(found.values()), None),
        "rules": {rule: figures(one, rule) for rule, one in sorted(found.items())},
        "peers": {
            peer.name: {
                "version": page.peers[peer.name],
                "rules": {
                    duel.rule: {
                        "precision": duel.theirs.precision,
                        "recall": duel.theirs.recall,
                        "our_precision": duel.ours.precision,
                        "our_recall": duel.ours.recall,
                    }
                    for duel in duels(page.results, peer)
                },
            }
            for peer in PEERS
            if page.peers.get(peer.name)
        },
    }
