"""A compiled model that is compiled again and again, until the compiler gives it up."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.edit import Drafts
from advisor.edit.left_out import leave_out
from advisor.edit.locate import call_at
from advisor.edit.origins.values import EDITED, give
from advisor.evidence.fusion import basis, fused, graphs_expected, graphs_per_step, runs_model
from advisor.evidence.set_aside import pauses_of
from advisor.fixes import by_option, edited
from advisor.harness.places import is_user_file
from advisor.harness.timing import ENOUGH_PAUSES
from advisor.rule import Advice, Argument, Example, Finding, Gain, Rule, Safety, at, call_sites, site_list, where

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence
    from advisor.harness.layout import CallSite, Recompiled, Site

_LEAST_GAIN = 1.10  # a prior asks for more than what could just be measured
_STILL_COMPILED = 0.5  # of the graphs that would run: with more of them, most steps find a graph that fits
# Guards that fail because the script passes something else: sizes, or a number that Python holds. All others (hooks,
# gradient mode, identities of objects) may be ours, or a change of mode between training and evaluation.
_SIZE = re.compile(r"(size|stride|rank) mismatch|\.(size|stride)\(\)|\.shape\[|Eq\(|Ne\(|Mod\(")
_NUMBER = re.compile(r"^(?P<name>[\w.\[\]'\"]+) == (?P<value>-?[\d.]+(e-?\d+)?)$")
_LENGTH = re.compile(r"^len\((?P<name>.+)\) [=!]= \d+$")  # of a list or dictionary
_GRAD = re.compile(r"requires_grad mismatch")
_LOCAL = re.compile(r"^L\['(\w+)'\]")  # how Dynamo writes a local variable until torch 2.7
_PART, _ITEM = re.compile(r"\._modules\['([A-Za-z_]\w*)'\]"), re.compile(r"\._modules\['(\d+)'\]")  # a module's


_TITLES = {
    "number": "Keep numbers that change out of the compiled graph",
    "length": "Give the compiled graph always as many items",
    "grad": "Compile each stage of the training for itself",
    "reset": "Keep what is compiled",
}
_HEAVY = 0.05  # of the time
_MOST_GRAPHS = 8  # of a function: then Dynamo gives it up (recompile_limit)
_BASIS = "measured: the share of the time in steps in which Dynamo compiles"


class CompileRecompiles(Rule):
    """The compiled model is compiled anew for each new input size or number, until Dynamo gives up and runs it eagerly.

    A graph holds for what it was compiled for: other sizes, or another value of a Python number, fail one of its
    guards and are compiled for themselves, for seconds each. After eight graphs of one function (``recompile_limit``)
    Dynamo stops compiling it, and what fits none of the eight runs operator by operator. A graph with dynamic shapes
    holds for all sizes; a number that changes from step to step belongs into a tensor; layers that are unfrozen stage
    by stage make a graph per stage, and ``torch.compiler.reset()`` forgets those of earlier ones. Reported only where
    that limit was reached and most of the steps run uncompiled; two or three sizes that are compiled once each cost
    nothing more.

    And one that is told to forget it: ``torch.compiler.reset()`` (``torch._dynamo.reset()``) between epochs, to free
    memory, say, throws away every graph, and the next step makes them anew, from the disk's cache at best. The steps in
    which Dynamo compiles are set aside from the others; where they come regularly, and the script resets as it goes,
    their seconds and the steps between them give their share of the run. So they do where a number that the graph was
    compiled for changes at each of them, once an epoch, say, and Dynamo has not given up yet: of the eight graphs that
    it makes until then, one is needed.

    When not: there are only a few sizes, and each graph of its own is faster than the one for all of them: then pad to
    those sizes, or raise ``torch._dynamo.config.recompile_limit``.

    Source: PyTorch, "torch.compile Programming Model", "Recompilations" and "Dynamic Shapes";
    ``torch/_dynamo/config.py``, ``recompile_limit = 8``.
    """

    id = "compile-recompiles"
    title = "Compile once for all sizes"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        if (forgotten := _forgotten(evidence)) is not None:
            yield forgotten
            return
        given_up = [
            each for each in (evidence.record.recompiled if evidence.record is not None else []) if each.given_up
        ]
        running, expected = graphs_per_step(evidence), graphs_expected(evidence)
        if not given_up:
            yield from _at_each_change(evidence)
        if not given_up or running > _STILL_COMPILED * expected:
            return
        for each in given_up:
            cause = _cause(each) if _wanted(evidence, each) else ""
            gain = Gain.prior(evidence.what_if(fused(evidence)), basis(evidence))
            if not cause or gain.likely < _LEAST_GAIN:
                continue
            made = _compiled_at(evidence, each)
            found = _NUMBER.match(each.reasons[0])
            named = found or _LENGTH.match(each.reasons[0])
            number = _written(named["name"]) if named else ""
            if found and "." not in number and found["value"].isdigit() and _static(made):
                cause = "size"  # a whole number that is passed: with dynamic shapes any will do
            fixed = _static(made)
            edits = cause == "size" and len(fixed) == 1
            first = fixed[0].site if edits else (each.guarded or each.site)
            yield Finding(
                rule=self.id,
                title=_TITLES.get(cause, self.title),
                summary=f"{_name(each)} was compiled {each.graphs} times, then given up: {_written(each.reasons[0])}. "
                "What fits none of these graphs runs operator by operator.",
                gain=gain,
                evidence={
                    "graphs_compiled": each.graphs,
                    "graphs_per_step": running,
                    "failed_guard": each.reasons[0],
                    "step_s": evidence.step_s,
                },
                site=first,
                parameters={
                    "cause": cause,
                    "compile": tuple(call.site for call in (fixed if edits else made)),
                    "static": edits,
                    "number": number,
                },
            )
            return  # what is given up costs the same time, whichever of several functions it is

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        calls = site_list(finding, "compile")
        if finding.parameters.get("cause") == "reset":
            return _kept(site_list(finding, "resets"), sources)
        if finding.parameters.get("cause") == "number":
            number = finding.parameters.get("number") or "the number that changes"
            return Advice(
                f"Pass {number} to what is compiled {where(finding.site)} as a tensor (a 0-dim tensor, or a buffer of "
                "the module that is changed with fill_()), or leave it out of the compiled code.",
                "which of its uses have to stay Python numbers, only its author knows",
            )
        if finding.parameters.get("cause") == "length":
            return Advice(
                f"Give what is compiled {where(finding.site)} always as many items in "
                f"{finding.parameters.get('number') or 'its list'}: stack them into one tensor, or pad their number.",
                "how the items are made equal in number, only their author knows",
            )
        if finding.parameters.get("cause") == "grad":
            return Advice(
                "Call torch.compiler.reset() after each change of which parameters are trained (requires_grad_): the "
                "graphs of earlier stages go, and no more than one for each stage is compiled.",
                "where a stage ends, only the script's author knows",
            )
        place = calls[0] if calls else finding.site
        text = f"Compile with dynamic=True {where(place)}: one graph for all sizes."
        if not finding.parameters.get("static") or not calls:
            return Advice(
                text + " Or pad the inputs to a few sizes; torch._dynamo.mark_dynamic(x, dimension) says which vary.",
                "dynamic=False is not what the call says: something else holds the sizes fixed",
            )
        drafts = Drafts(sources)
        draft = drafts[calls[0].file]
        call = call_at(draft, calls[0], ("compile",))
        given = None
        if call is not None:
            given = give(drafts, draft, call, "dynamic", "True", (), False, flags=True, alone=True)
        if given == EDITED:
            return edited(drafts, text)
        if not given:
            return Advice(text, "where its value comes from is not known")
        if given.endswith("!"):
            return Argument({given.removesuffix("!"): ""}, text)
        return by_option(drafts, draft, given, "True", text, text)

    EXAMPLES = (
        Example(
            before="model = torch.compile(Net(), dynamic=False)  # <- compile\n",
            after="model = torch.compile(Net(), dynamic=True)\n",
            parameters={"cause": "size", "static": True},
        ),
        Example(
            before="net.compile(mode='default', dynamic=False)  # <- compile\n",
            after="net.compile(mode='default', dynamic=True)\n",
            parameters={"cause": "size", "static": True},
        ),
        Example(
            before="DYNAMIC = False\nstep = torch.compile(step, dynamic=DYNAMIC)  # <- compile\n",
            after="DYNAMIC = True\nstep = torch.compile(step, dynamic=DYNAMIC)\n",
            parameters={"cause": "size", "static": True},
        ),
        Example(
            before="""
parser = argparse.ArgumentParser()
parser.add_argument("--dynamic", action="store_true")
args = parser.parse_args()
net = torch.compile(Net(), dynamic=args.dynamic)  # <- compile
""",
            after="",
            parameters={"cause": "size", "static": True},
            options={"--dynamic": ""},
        ),
        Example(
            before="""
parser = argparse.ArgumentParser()
parser.add_argument("--dynamic", type=int, default=False)
args = parser.parse_args()
net = torch.compile(Net(), dynamic=args.dynamic)  # <- compile
""",
            after="",
            parameters={"cause": "size", "static": True},
            options={"--dynamic": "1"},
        ),
        Example(
            before="DEBUG = False\nnet = torch.compile(Net(), dynamic=DEBUG, fullgraph=DEBUG)  # <- compile\n",
            after="DEBUG = False\nnet = torch.compile(Net(), dynamic=True, fullgraph=DEBUG)\n",
            parameters={"cause": "size", "static": True},
        ),
        Example(
            before="""
for epoch in range(epochs):
    for x in batches:
        train(model, x)
    gc.collect()
    torch._dynamo.reset()  # <- resets
""",
            after="""
for epoch in range(epochs):
    for x in batches:
        train(model, x)
    gc.collect()
""",
            parameters={"cause": "reset"},
        ),
        Example(
            before="model = torch.compile(Net())\ny = model(x, temperature)  # <-\n",
            after="",
            parameters={"cause": "number"},
            advice="as a tensor",
        ),
        Example(
            before="def forward(self, crops):\n    return torch.stack(crops).mean(0)  # <-\n",
            after="",
            parameters={"cause": "length", "number": "crops"},
            advice="as many items in crops",
        ),
    )
    LEAVES_ALONE = (
        Example("model = make(torch.compiler.reset())  # <- resets=torch.compiler.reset()\n", "", {"cause": "reset"}),
        Example(
            "try:\n    y = model(x)\nexcept RuntimeError:\n    torch.compiler.reset()  # <- resets\n",
            "",
            {"cause": "reset"},
        ),
        Example(
            "model = torch.compile(Net(), dynamic=choose())  # <- compile\n", "", {"cause": "size", "static": True}
        ),
        Example("model = torch.compile(Net(), **options)  # <- compile\n", "", {"cause": "size", "static": True}),
        Example("model = torch.compile(Net())  # <- compile\n", "", {"cause": "size"}),
    )


def _at_each_change(evidence: Evidence) -> Iterator[Finding]:
    """Steps that wait for another graph whenever a number changes, which Dynamo makes until it gives up."""
    record = evidence.record
    pauses = pauses_of(record.timing, "compilation", record.timing.compilation_every) if record is not None else None
    if record is None or pauses is None or pauses.share < _HEAVY:
        return
    for each in record.recompiled:
        named = _NUMBER.match(each.reasons[0]) if each.reasons else None
        if each.graphs <= ENOUGH_PAUSES or named is None or _cause(each) != "number" or not _wanted(evidence, each):
            continue
        number = _written(named["name"])
        yield Finding(
            rule=CompileRecompiles.id,
            title=_TITLES["number"],
            summary=f"Every {pauses.every:.0f} steps {_name(each)} is compiled anew for another {number}, in "
            f"{pauses.each_s * 1e3:,.0f} ms, {pauses.share:.0%} of the time, until Dynamo gives it up.",
            gain=Gain.of_pauses(pauses.period_s, pauses.each_s * (1 - 1 / _MOST_GRAPHS), pauses.steps_s, _BASIS),
            evidence={
                "compilation_share": pauses.share,
                "compilation_s": pauses.each_s,
                "steps_between_compilations": pauses.every,
                "graphs_compiled": each.graphs,
                "failed_guard": each.reasons[0],
                "step_s": evidence.step_s,
            },
            site=each.guarded or each.site,
            parameters={"cause": "number", "number": number},
        )
        return


def _forgotten(evidence: Evidence) -> Finding | None:
    """What is compiled is thrown away again and again, and the steps wait until it is there once more."""
    places = [each for each in call_sites(evidence, "dynamo.reset", every_step=False) if each.calls >= ENOUGH_PAUSES]
    record = evidence.record
    if record is None or not places:
        return None
    pauses = pauses_of(record.timing, "compilation", record.timing.compilation_every)
    if pauses is None:
        return None
    collected = record.timing.aside_gc_s.get("compilation", 0.0) / record.timing.aside_counts["compilation"]
    saved = max(0.0, pauses.each_s - collected)  # who forgets graphs often collects garbage at the same time
    if saved < _HEAVY * pauses.period_s:
        return None
    resets = tuple(each.site for each in places)
    return Finding(
        rule=CompileRecompiles.id,
        title=_TITLES["reset"],
        summary=f"Every {pauses.every:.0f} steps what is compiled is thrown away, at {', '.join(map(at, resets))}, and "
        f"made again in {saved * 1e3:,.0f} ms: {saved / pauses.period_s:.0%} of the time.",
        gain=Gain.of_pauses(pauses.period_s, saved, pauses.period_s - saved, _BASIS),
        evidence={
            "compilation_share": saved / pauses.period_s,
            "compilation_s": saved,
            "steps_between_compilations": pauses.every,
            "step_s": evidence.step_s,
        },
        site=resets[0],
        parameters={"cause": "reset", "resets": resets},
        safety=Safety.EXACT,
    )


def _kept(resets: tuple[Site, ...], sources: Sources) -> Edit | Advice:
    text = f"Leave out the reset at {', '.join(map(at, resets)) or 'its place'}: each step finds its graphs then."
    drafts = Drafts(sources)
    for site in resets:
        if why := leave_out(drafts, site, ("reset",)):
            return Advice(text, f"the call at {at(site)} {why}")
    return edited(drafts, text) if resets else Advice(text, "the place is unknown")


def _written(guard: str) -> str:
    """A guard as the script would write it: ``self.layers[0].passes``."""
    return _ITEM.sub(r"[\1]", _PART.sub(r".\1", _LOCAL.sub(r"\1", guard)))


def _cause(each: Recompiled) -> str:
    """``size``, ``number``, ``length``, or "" where most of the guards that failed are about none of them."""
    causes = {"grad": _GRAD, "size": _SIZE, "length": _LENGTH, "number": _NUMBER}
    kinds = [next((name for name, one in causes.items() if one.search(text)), "") for text in each.reasons]
    most = max(causes, key=kinds.count)
    return most if 2 * kinds.count(most) > len(kinds) else ""


def _wanted(evidence: Evidence, each: Recompiled) -> bool:
    """Whether it is the step's model that was given up; an optimizer's compiled step, say, is a library's."""
    models = evidence.record.models if evidence.record is not None else []
    own = each.site is not None and is_user_file(each.site.file)
    return runs_model(evidence) and (own or any(model.compiled for model in models))


def _compiled_at(evidence: Evidence, each: Recompiled) -> tuple[CallSite, ...]:
    """The calls that may have compiled this function: those of its name, or of a module where it is a method."""
    calls = call_sites(evidence, "torch.compile", "Module.compile", every_step=False)
    name = each.site.function if each.site is not None else ""
    named = tuple(call for call in calls if name and call.details.get("name") == name)
    return named or calls


def _static(made: tuple[CallSite, ...]) -> tuple[CallSite, ...]:
    """Those of the calls that ask for a graph per size."""
    return tuple(call for call in made if call.details.get("options", {}).get("dynamic") == "False")


def _name(each: Recompiled) -> str:
    return f"{each.site.function} {where(each.site)}" if each.site is not None else "A function"
