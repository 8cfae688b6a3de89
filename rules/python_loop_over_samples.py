"""A loop in Python computes for one sample after another what one operator could do for all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst
import libcst.matchers as m

from advisor.edit import Draft, Drafts
from advisor.edit.names import ensure_name, full_name, last_part
from advisor.edit.scopes import scope_of
from advisor.edit.sources import text_of
from advisor.edit.sums import elements
from advisor.evidence import Change
from advisor.evidence.facts import BACKWARD, FORWARD, LOADER
from advisor.evidence.python_loops.asked import asked_by_environment, asked_one_by_one
from advisor.evidence.python_loops.drawn_rounds import draw_loop
from advisor.evidence.python_loops.groups import group_loop
from advisor.evidence.python_loops.over_samples import loops_over_samples
from advisor.evidence.python_loops.rounds import called_loop, differentiates
from advisor.evidence.python_loops.stateful import remembers
from advisor.evidence.python_loops.taken_loops import at_once_s
from advisor.evidence.spread import spread_s
from advisor.fixes import edited
from advisor.rule import WIDEST, Advice, Argument, Example, Finding, Gain, Rule, Safety, at, forward_sites

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence
    from advisor.evidence.python_loops.loops import SampleLoop
    from advisor.harness.layout import Site

_LEAST_OF_CALLS = 1.2  # what is put together costs something, too
# What is left of calls for one sample each when one call answers for all of them, best, likely, worst: one round of as
# many as there are samples, 8 to 64, say, and what its larger tensors take.
_ONE_QUESTION = (0.03, 0.08, 0.25)
# The same of a loop over several environments, which can take their steps together, one question for all of them.
_ONE_FOR_EACH = (0.1, 0.2, 0.4)
_ASKED_BASIS = "prior: one call for all samples takes a 30th to a quarter of one for each"
_EACH_BASIS = "prior: one call for all environments takes a tenth to two fifths of one for each"


class PythonLoopOverSamples(Rule):
    """A loop in Python takes a tensor apart and computes for each sample what one operator could do for all of them.

    Each round calls its operators anew, and calling one takes some µs, however little it has to do; the backward then
    walks through as many nodes, and the gradient of each ``x[i]`` is a tensor of zeros as large as ``x``. Most such
    loops are one expression over the whole tensor: ``x[:, None] - y`` for all pairs, ``amax(1)`` for the maximum of
    each row, ``torch.bmm`` for a product per sample, ``torch.gather`` for an element of each, ``index_add`` for sums by
    group (``x[labels == c]`` for one c after another), ``torch.vmap(f)(x)`` where the expression is long. A whole model
    that is called in each round is such a loop, too, and so is a policy that is asked for the state of one environment
    after another, where it could be asked for those of several. Reported only where a trace of the steps shows the
    rounds, and the source shows that none of them needs what another has computed, or that it is an environment's.

    When not: the rounds depend on each other (a recurrence); the parts have different shapes (padding or
    ``torch.nested`` may help); all pairs at once would not fit into memory.

    Source: PyTorch docs, ``torch.vmap``: "vmap() can also help vectorize computations that were previously difficult or
    impossible to batch"; "Numerical accuracy", "Batched computations or slice computations", for the last digits, which
    may differ; Gymnasium docs, ``gymnasium.vector.VectorEnv``, for several copies of an environment.
    """

    id = "python-loop-over-samples"
    title = "Compute for all samples at once, not in a Python loop"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        finding = _of_parts(evidence) or _of_calls(evidence) or _of_questions(evidence) or _of_draws(evidence)
        if finding is not None:
            yield finding

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        if finding.parameters.get("plays"):
            text = (
                f"Let several environments take the steps of the loop at {at(finding.site)} side by side, in as many "
                "times fewer rounds: gymnasium.vector.SyncVectorEnv, or a list of environments, torch.stack() of what "
                "they show, one call of the model, and an action for each (AsyncVectorEnv where the environments take "
                "long themselves)."
            )
            return Advice(
                text,
                "the steps that it learns from come in another order, and only its author can tell "
                "whether that will do",
            )
        if finding.parameters.get("each"):
            text = (
                f"Go through what the loop at {at(finding.site)} does one after the other together: in each round of "
                "the loop inside, torch.stack() what all of them would ask, call the model once, and hand each its row "
                "(of environments, as gymnasium.vector does)."
            )
            return Advice(text, "how they are to be brought into step only their author can tell")
        if finding.parameters.get("calls"):
            text = (
                f"Call the model once, not in each round of the loop at {at(finding.site)}: torch.stack() inputs of "
                "one shape, pad those of different lengths, join graphs into one by adding to their indices, and take "
                "the result apart afterwards."
            )
            return Advice(text, "how its inputs go together only their author can tell")
        text = (
            f"Write the loop at {at(finding.site)} as operations on whole tensors: x[:, None] - y for all pairs, "
            "amax(1) or sum(1) for each row, torch.bmm for a product per sample, torch.gather for an element of each, "
            "index_add for sums by group, torch.vmap where the body is long."
        )
        if finding.parameters.get("nested"):
            text = (
                f"Go through all samples of the loop at {at(finding.site)} at once: pad them to one length, have "
                "the loop inside take a part of each in its rounds, x[:, t], and keep what those have that are over "
                "by torch.where(mask[:, t], new, old)."
            )
            return Advice(text, "how samples of different lengths go together only their author can tell")
        if finding.parameters.get("recurs"):
            text = (
                f"Draw all samples of the loop at {at(finding.site)} together: give what the loop inside begins with "
                "k rows for each of its own, state.repeat_interleave(k, 0), go through it once, and take the samples "
                "apart behind it, paths.unflatten(0, (-1, k)); in pieces of k where they do not fit into memory. The "
                "numbers drawn are others."
            )
            return Advice(text, "what the loop inside begins with only their author can tell")
        if finding.parameters.get("draws"):
            text = (
                f"Give the tensors of the loop at {at(finding.site)} one dimension more, for its rounds: "
                "torch.randn(k, *x.shape) instead of k times torch.randn_like(x), distribution.rsample((k,)), "
                "x.expand(k, *x.shape) in front of a dropout; layers take what is in front of their last dimensions "
                "as a batch, and what was stacked is there already (mean(0) over it). Where a layer wants one "
                "dimension for the batch, .flatten(0, 1) and .unflatten(0, (k, -1)). The numbers drawn are others."
            )
            return Advice(text, "which of the tensors a round makes anew only their author can tell")
        if finding.parameters.get("groups"):
            text = (
                f"Compute the loop at {at(finding.site)} for all groups at once: "
                "sums = x.new_zeros(groups, x.shape[1]).index_add(0, labels, x), "
                "counts = torch.bincount(labels, minlength=groups), means = sums / counts.clamp(min=1)[:, None]; "
                "means[labels] has each row's own, for what is subtracted from it, and "
                "torch.zeros(groups).scatter_reduce(0, labels, values, 'amax') the largest of each group."
            )
            return Advice(text, "what the body says for all groups at once cannot be told from the source")
        if finding.parameters.get("differentiates"):
            text = (
                f"Take the gradients that the loop at {at(finding.site)} asks for all at once: "
                "torch.autograd.grad(y.sum(), x) has each sample's by its own input, for what the others give does "
                "not depend on it."
            )
            return Advice(text, "where samples meet in the model (batch norm in training) they are others")
        if finding.site is None:
            return Advice(text, "its place is unknown")
        drafts = Drafts(sources)
        draft = drafts[finding.site.file]
        known = [each for call in draft.nodes(cst.Call) if (each := _known(draft, call, finding.site.line)) is not None]
        if len(known) != 1:
            return Advice(text, "what the body says for all samples at once cannot be told from the source")
        call, whole = known[0]
        draft.replace(call, whole)
        return edited(drafts, text, f"Compute {whole} for all samples at {at(finding.site)}.")

    EXAMPLES = (
        Example(
            before="""
import torch

def attend(query, key):
    scores = torch.stack([torch.mm(query[i], key[i]) for i in range(len(query))])  # per sample  # <-
    return scores.softmax(-1)
""",
            after="""
import torch

def attend(query, key):
    scores = torch.bmm(query, key)  # per sample
    return scores.softmax(-1)
""",
        ),
        Example(
            before="""
for emit, tags in zip(emissions, targets):  # <-
    alpha = start + emit[0]
    for e in emit[1:]:
        alpha = torch.logsumexp(alpha[:, None] + moves, 0) + e
    losses.append(alpha.logsumexp(0))
""",
            after="",
            parameters={"nested": True},
            advice="x[:, t]",
        ),
        Example(
            before="""
for _ in range(k):  # <-
    z = mean + std * torch.randn_like(std)
    terms.append(log_weight(decoder(z), z))
""",
            after="",
            parameters={"draws": True},
            advice="torch.randn(k, *x.shape)",
        ),
        Example(
            before="""
for _ in range(k):  # <-
    h, last, path = state, now, []
    for _ in range(hours):
        h = cell(last, h)
        last = mean(h) + scale(h) * torch.randn_like(last)
        path.append(last)
    paths.append(torch.cat(path, 1))
""",
            after="",
            parameters={"draws": True, "recurs": True},
            advice="state.repeat_interleave(k, 0)",
        ),
        Example(
            before="""
for c in range(classes):  # <-
    own = features[labels == c]
    loss = loss + ((own - own.mean(0)) ** 2).sum()
""",
            after="",
            parameters={"groups": True},
            advice="index_add(0, labels, x)",
        ),
        Example(
            before="""
for i in range(len(energies)):  # <-
    (gradient,) = torch.autograd.grad(energies[i], positions, create_graph=True)
    forces.append(-gradient[i])
""",
            after="",
            parameters={"differentiates": True},
            advice="torch.autograd.grad(y.sum(), x)",
        ),
        Example(
            before="""
import torch

a, b = left(x), right(x)
products = torch.stack([torch.mm(a[i], b[i]) for i in range(len(a))])  # <-
""",
            after="""
import torch

a, b = left(x), right(x)
products = torch.bmm(a, b)
""",
        ),
        Example(
            before="""
import torch

similarity = torch.stack([torch.dot(a, b) for a, b in zip(left, right)])  # <-
""",
            after="""
import torch

similarity = (left * right).sum(-1)
""",
        ),
    )
    LEAVES_ALONE = (
        Example("import torch\ny = torch.stack([w[n] @ x[n] for n in range(x.size(0))])  # <-\n", ""),
        Example("losses = []\nfor i in range(len(x)):  # <-\n    losses.append(f(x[i]))\n", ""),
        Example("import torch\nh = torch.stack([torch.mm(a[i], b[0]) for i in range(len(a))])  # <-\n", ""),
        Example("import torch\nh = torch.stack([torch.mm(a[i], b[i]) for i in range(2)])  # <-\n", ""),
        Example("import torch\nh = torch.stack([torch.mm(a[i], b[i]) for i in range(len(a))], 1)  # <-\n", ""),
        Example("import torch\nh = torch.stack([torch.mm(a[i], b[i]) for i in range(len(a)) if i])  # <-\n", ""),
        *(
            Example(f"import torch\n{made}\nh = torch.stack([torch.dot(p, q) for p, q in zip(a, b)])  # <-\n", "")
            for made in (
                *("a = [f(x) for x in xs]", "a, b = zip(*pairs)", "b = y.unbind(0)", "a.append(x)"),
                "a, b = f(x), [g(x) for x in xs]",
            )
        ),
    )


# What a product of one sample is for all of them: each takes parts of one number of dimensions only.
_FOR_ALL = {"torch.mm": "{torch}.bmm({0}, {1})", "torch.dot": "({0} * {1}).sum(-1)"}
_LISTS = frozenset(("list", "tuple", "zip", "split", "chunk", "unbind", "sorted", "reversed", "map"))


def _of_parts(evidence: Evidence) -> Finding | None:
    """A loop over parts of a tensor, by the operators that its rounds call: the one by which most is saved."""
    loops = loops_over_samples(evidence, text_of)
    longest = max(loops, key=lambda each: at_once_s(evidence, each[0]), default=None)
    return _parts_finding(evidence, *longest) if longest is not None else None


def _remembers(evidence: Evidence, loop: Site) -> bool:
    return evidence.record is not None and remembers(evidence.record, loop, text_of)


def _parts_finding(evidence: Evidence, found: SampleLoop, place: Site) -> Finding | None:
    spent = (found.forward_s + found.backward_s) / evidence.inflation
    gain = Gain.of(evidence.what_if(Change(remove_host_s=at_once_s(evidence, found))))
    if not gain.worth_it:
        return None
    return Finding(
        rule=PythonLoopOverSamples.id,
        title=PythonLoopOverSamples.title,
        summary=f"The loop at {at(place)} calls {'the same' if found.alike else 'about'} {found.operators:.0f} "
        f"operators {found.rounds:.0f} times in every step, {spent * 1e3:.1f} ms with their backward"
        + (", in loops of different lengths." if found.nested else "."),
        gain=gain,
        evidence={
            "loop_s": spent,
            "rounds_per_step": found.rounds,
            "operators_per_round": found.operators,
            "work_share": found.work_share,
            "step_s": evidence.step_s,
        },
        site=place,
        parameters={
            "nested": found.nested,
            "groups": group_loop(text_of(place.file), place.line),
            "differentiates": differentiates(text_of(place.file), place.line),
        },
    )


def _of_calls(evidence: Evidence) -> Finding | None:
    """A loop whose rounds each call the model: what does not grow with the rows of a call is paid in each of them."""
    if evidence.device_is_gpu or evidence.record is None or evidence.compiled:
        return None
    found = called_loop(forward_sites(evidence), text_of)
    if found is None or _remembers(evidence, found.site):
        return None
    once = 1.0 - sum(evidence.breakdown.share(part) for part in (FORWARD, BACKWARD, LOADER))
    saved = spread_s(evidence, found.calls, once)
    gain = Gain.of(evidence.what_if(Change(remove_host_s=saved))) if saved > 0 else None
    if gain is None or gain.likely < _LEAST_OF_CALLS:
        return None
    return Finding(
        rule=PythonLoopOverSamples.id,
        title="Call the model once for all samples, not in a Python loop",
        summary=f"The loop at {at(found.site)} calls the model {found.calls:.0f} times in every step, each time for "
        "a part of the batch; most of what that takes is calling operators, not computing.",
        gain=gain,
        evidence={"calls_per_step": found.calls, "calling_s": saved, "step_s": evidence.step_s},
        site=found.site,
        parameters={"calls": True},
    )


def _of_questions(evidence: Evidence) -> Finding | None:
    """A loop that asks the model for one sample after another, beside what it learns."""
    if evidence.device_is_gpu or evidence.compiled or not evidence.step_s:
        return None
    found = asked_one_by_one(evidence, text_of) or asked_by_environment(evidence, text_of)
    if found is None:
        return None
    spent = min(found.seconds / evidence.inflation, evidence.step_s)
    goes = spent * found.calling  # what is computed stays, in larger pieces
    lefts, basis = (_ONE_FOR_EACH, _EACH_BASIS) if found.each else (_ONE_QUESTION, _ASKED_BASIS)
    best, likely, worst = (evidence.what_if(Change(remove_host_s=goes * (1.0 - left))) for left in lefts)
    high = best.speedup[1]
    gain = Gain(max(worst.speedup[1], high / WIDEST), likely.speedup[1], high, basis)
    if gain.likely < _LEAST_OF_CALLS:
        return None
    return Finding(
        rule=PythonLoopOverSamples.id,
        title="Ask the model for several environments at once"
        if found.plays
        else "Call the model once for all samples, not in a Python loop",
        summary=f"The loop at {at(found.site)} asks the model for one {'state' if found.plays else 'sample'} after "
        f"another, {'' if found.plays else f'{found.calls:.0f} times '}in every step: {spent / evidence.step_s:.0%} of "
        f"it, and {found.calling:.0%} of that is calling operators.",
        gain=gain,
        evidence={
            "calls_per_step": found.calls,
            "asking_s": spent,
            "calling_share": found.calling,
            "step_s": evidence.step_s,
        },
        site=found.site,
        parameters={"calls": True, "each": found.each, "plays": found.plays},
        safety=Safety.BEHAVIOUR if found.plays else None,
    )


def _of_draws(evidence: Evidence) -> Finding | None:
    """A loop whose rounds differ by what they draw only."""
    if evidence.device_is_gpu or evidence.compiled or not evidence.step_s:
        return None
    found = draw_loop(evidence, text_of)
    if found is None:
        return None
    place, taken = found.site, found.taken
    if _remembers(evidence, place):
        return None
    rounds = taken.rounds / taken.times if found.recurs else taken.rounds
    each = f", {taken.times:.0f} rounds of its own each time" if found.recurs else ""
    spent = (taken.forward_s + taken.backward_s) / evidence.inflation
    gain = Gain.of(evidence.what_if(Change(remove_host_s=at_once_s(evidence, taken))))
    if gain.likely < _LEAST_OF_CALLS:
        return None
    return Finding(
        rule=PythonLoopOverSamples.id,
        title="Draw all samples at once, not in a Python loop",
        summary=f"The loop at {at(place)} draws and computes the same {taken.operators:.0f} operators "
        f"{rounds:.0f} times in every step{each}, {spent * 1e3:.1f} ms with their backward; no sample needs another.",
        gain=gain,
        evidence={
            "loop_s": spent,
            "rounds_per_step": rounds,
            "operators_per_round": taken.operators,
            "work_share": taken.work_share,
            "step_s": evidence.step_s,
        },
        site=place,
        parameters={"draws": True, "recurs": found.recurs},
        safety=Safety.BEHAVIOUR,
    )


def _known(draft: Draft, call: cst.Call, line: int) -> tuple[cst.Call, str] | None:
    """``torch.stack([torch.mm(a[i], b[i]) for i in range(len(a))])`` on `line`: (it, ``torch.bmm(a, b)``)."""
    position = draft.position(call)
    stacks = full_name(draft, call.func) == "torch.stack" and len(call.args) == 1
    if not stacks or not position.start.line <= line <= position.end.line:
        return None
    comprehension = call.args[0].value
    if not isinstance(comprehension, (cst.ListComp, cst.GeneratorExp)):
        return None
    loop, body = comprehension.for_in, comprehension.elt
    if loop.ifs or loop.inner_for_in is not None or not isinstance(body, cst.Call) or len(body.args) != 2:
        return None
    form = _FOR_ALL.get(full_name(draft, body.func))
    whole = _zipped(draft, loop, body) or _counted(draft, loop, body)
    if form is None or whole is None or any(_is_list(draft, each, call) for each in whole):
        return None
    return call, form.format(*whole, torch=ensure_name(draft, "torch"))


def _is_list(draft: Draft, name: str, call: cst.Call) -> bool:
    """Whether what the call's function, or the file, gives the name is a list of tensors, or it is put together."""
    scopes = {scope_of(draft, call), draft.module}
    for assign in draft.nodes(cst.Assign):
        for target in assign.targets if scope_of(draft, assign) in scopes else ():
            if any(draft.code(each) == name and _lists(value) for each, value in _given(target.target, assign.value)):
                return True
    takes = (each for each in draft.nodes(cst.Attribute) if each.attr.value in ("append", "extend", "insert"))
    return any(draft.code(each.value) == name and scope_of(draft, each) in scopes for each in takes)


def _given(
    target: cst.BaseExpression, value: cst.BaseExpression
) -> list[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """What each target gets: of ``a, b = x, y`` one each, of ``a, b = pairs`` both the same."""
    if isinstance(target, cst.Tuple) and isinstance(value, cst.Tuple) and len(target.elements) == len(value.elements):
        return [(one.value, other.value) for one, other in zip(target.elements, value.elements, strict=True)]
    return [(each, value) for each in elements(target)]


def _lists(value: cst.BaseExpression) -> bool:
    called = last_part(value.func) if isinstance(value, cst.Call) else ""
    return isinstance(value, (cst.List, cst.Tuple, cst.ListComp)) or called in _LISTS


def _zipped(draft: Draft, loop: cst.CompFor, body: cst.Call) -> tuple[str, ...] | None:
    """``f(a, b) for a, b in zip(x, y)`` → (x, y)."""
    if not isinstance(loop.target, cst.Tuple) or not m.matches(loop.iter, m.Call(func=m.Name("zip"))):
        return None
    over = cst.ensure_type(loop.iter, cst.Call).args
    parts = [draft.code(element.value) for element in loop.target.elements]
    if len(over) != 2 or any(each.keyword or each.star for each in (*over, *body.args)):
        return None
    if not all(m.matches(each.value, m.Name() | m.Attribute()) for each in over):
        return None
    passed = [draft.code(each.value) for each in body.args]
    return tuple(draft.code(each.value) for each in over) if passed == parts else None


def _counted(draft: Draft, loop: cst.CompFor, body: cst.Call) -> tuple[str, ...] | None:
    """``f(a[i], b[i]) for i in range(len(a))`` → (a, b)."""
    if not isinstance(loop.target, cst.Name):
        return None
    index = loop.target.value
    whole = []
    for each in body.args:
        part = m.Subscript(value=m.Name(), slice=[m.SubscriptElement(slice=m.Index(value=m.Name(index)))])
        if each.keyword or each.star or not m.matches(each.value, part):
            return None
        whole.append(draft.code(cst.ensure_type(each.value, cst.Subscript).value))
    counts = {f"range({count})" for name in whole for count in (f"len({name})", f"{name}.size(0)", f"{name}.shape[0]")}
    return tuple(whole) if draft.code(loop.iter) in counts else None
