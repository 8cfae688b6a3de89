"""A step computes something that nothing ever reads."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from advisor.edit import Drafts
from advisor.edit.sources import text_of
from advisor.edit.unread_results import leave_out
from advisor.evidence import Change
from advisor.fixes import edited
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, at, by_way_of, site_list

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence
    from advisor.harness.layout import Site, Unread

_LEAST_GAIN = 1.05
# Of all that is computed in a step: then nobody reads anything, and the script measures its model, or warms it up.
_MOST = 0.9
_MOST_AROUND = 1.25  # times as long as its calls a step takes, at most, for what is done around them
_LEAST_PART = 0.1  # of what is computed for nobody: places below are not named, though they go with the others


class UnreadResults(Rule):
    """A step computes tensors that nothing ever reads: no loss, no number that is printed, nothing that is kept.

    A decoder whose reconstruction has no term in the loss, a distance matrix from yesterday's experiment, a metric
    that is overwritten by the next step's, a branch of the model that the caller unpacks into ``_``. PyTorch computes
    at once what it is told to, and does not know that nobody will look. Reported where a run has seen it: of steps that
    were watched call by call, what a call gave was not asked for its numbers, not differentiated, not written into
    anything that lives on, not used by any call of which one of these is true, and had gone two steps later.

    When not: it is wanted in other steps than those that were watched, each hundredth, say; it is then best computed
    there. Where nearly all of a step is for nobody, the script measures how fast its model is, and nothing is reported;
    nor on a GPU, where calls take no time of their own.

    Source: the time that these calls took in the run.
    """

    id = "unread-results"
    title = "Leave out what nothing reads"
    safety = Safety.EXACT

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record, step_s = evidence.record, evidence.step_s
        if record is None or not record.unread or evidence.device_is_gpu or evidence.compiled or not step_s:
            return
        computed = record.computed_s
        if not computed or sum(each.seconds for each in record.unread) > _MOST * computed:
            return
        for unread in _by_function([each for each in record.unread if not _is_tried(each.site)]):
            # What Python does around the calls, and to let go of what they gave, goes with them. Other programs may
            # have held the steps up while they were watched, too: then all of it took too long.
            seconds = sum(each.seconds for each in unread) * min(_MOST_AROUND, step_s / computed)
            gain = Gain.of(evidence.what_if(Change(remove_host_s=seconds)))
            if gain.likely >= _LEAST_GAIN:
                yield self._of(unread, seconds, step_s, gain)

    def _of(self, unread: Sequence[Unread], seconds: float, step_s: float, gain: Gain) -> Finding:
        """What nothing reads, in one function; the longest is the first."""
        named = [each for each in unread if each.seconds >= _LEAST_PART * unread[0].seconds]
        first = min(named, key=lambda each: each.site.line)
        places = ", ".join(dict.fromkeys(at(each.site) for each in named))
        function = f" in {first.site.function}()" if first.site.function not in ("", "<module>") else ""
        way = by_way_of(first.site, [first.site, *first.called_from])
        return Finding(
            rule=self.id,
            title=self.title,
            summary=f"{seconds / step_s:.0%} of the step computes what nothing reads, at {places}{function}{way}: in "
            "the steps that were watched it is in no loss, no number of it is asked for, and nothing keeps it.",
            gain=gain,
            evidence={
                "unread_s": seconds,
                "calls_per_step": sum(each.calls for each in unread),
                "step_s": step_s,
            },
            site=first.site,
            parameters={
                "places": tuple(each.site for each in named),
                "calls": tuple(site for each in unread for site in (each.site, *each.inside)),
                "updates": any(each.updates for each in unread),
                "library": any(each.library for each in unread),
            },
            safety=Safety.BEHAVIOUR if any(each.draws for each in unread) else None,
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Advice:
        places, calls = (site_list(finding, name) for name in ("places", "calls"))
        places = places or ((finding.site,) if finding.site is not None else ())
        where = ", ".join(dict.fromkeys(map(at, places))) or "your script"
        text = f"Leave out what is computed at {where}; if you want it every so often, compute it in these steps only."
        if finding.parameters.get("updates"):
            return Advice(text, "batch norms in it keep running statistics, which an evaluation may read")
        if finding.parameters.get("library"):
            return Advice(text, "a library other than torch is called for it, which may do more than that")
        drafts = Drafts(sources)
        why = leave_out(drafts, places, calls or places)
        return Advice(text, why) if why else edited(drafts, text)

    EXAMPLES = (
        Example(
            before="""
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        z = self.encoder(x)
        # for the picture in the paper
        recon = self.decoder(z)  # <-
        return self.head(z)
""",
            after="""
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        z = self.encoder(x)
        return self.head(z)
""",
        ),
        Example(
            before="""
for x, y in loader:
    out = model(x)
    loss = F.cross_entropy(out, y)
    with torch.no_grad():
        dist = torch.cdist(out, centers)  # <-
    loss.backward()
""",
            after="""
for x, y in loader:
    out = model(x)
    loss = F.cross_entropy(out, y)
    loss.backward()
""",
        ),
        Example(
            before="for x in xs:\n    d = torch.cdist(x, x)  # <- places=torch.cdist(x, x)\n    net(x).backward()\n",
            after="for x in xs:\n    net(x).backward()\n",
        ),
        Example(
            before="def forward(self, x):\n    aux = self.aux(x)  # <-\n    return self.net(x), aux\n",
            after="",
            advice="Leave out",
        ),
    )
    LEAVES_ALONE = tuple(
        Example(f"def step(self, x):\n    {line}\n    {use}\n", "")
        for line, use in (
            ("aux = self.aux(x)  # <-", "return self.net(x), aux"),
            ("aux = self.aux(x)  # <-", "aux += 1"),
            ("aux = self.aux(x)  # <-", "del aux"),
            ("aux = self.aux(x)  # <-", "return locals()"),
            ("aux = self.aux(x)  # <-", "return lambda: aux"),
            ("self.aux_out = self.aux(x)  # <-", "return self.net(x)"),
            ("kept[0] = self.aux(x)  # <-", "return self.net(x)"),
            ("out, aux = self.net(x), self.aux(x)  # <- self.aux(x)", "return out"),
            ("aux = self.aux(self.net(x))  # <- self.aux(self.net(x))", "return x"),
            ("aux = self.aux(y := x + 1)  # <-", "return y"),
            ("if self.aux(x) is not None:  # <-", "    return x"),
            ("return self.aux(x)  # <-", "pass"),
            ("aux = self.aux(x); y = 1  # <-", "return y"),
        )
    )


def _is_tried(site: Site) -> bool:
    """Whether it stands in a ``try``: whether it can be computed may be what is asked."""
    tries = (each for each in _blocks(text_of(site.file)) if isinstance(each, ast.Try))
    return any(each.body[0].lineno <= site.line <= (each.body[-1].end_lineno or 0) for each in tries)


def _by_function(unread: Sequence[Unread]) -> list[list[Unread]]:
    """Those of one function together: what one gives the next may take."""
    found: dict[tuple[str, int], list[Unread]] = {}
    for each in unread:
        functions = (node for node in _blocks(text_of(each.site.file)) if not isinstance(node, ast.Try))
        around = (node.lineno for node in functions if node.lineno <= each.site.line <= (node.end_lineno or 0))
        found.setdefault((each.site.file, max(around, default=0)), []).append(each)
    return list(found.values())


@functools.lru_cache(maxsize=16)
def _blocks(text: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef | ast.Try]:
    """The functions and the ``try`` of a file; none where it does not parse."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError):
        return []
    return [each for each in nodes if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Try))]
