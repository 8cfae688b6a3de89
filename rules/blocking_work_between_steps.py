"""In every step the script waits for a clock, the disk or a server."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

import libcst as cst
import libcst.matchers as m

from advisor.edit import Draft, Drafts, Sources
from advisor.edit.every import done_every
from advisor.edit.locate import call_at, last_name
from advisor.edit.sources import text_of
from advisor.errors import AdvisorError
from advisor.evidence import Change
from advisor.evidence.asleep import ASLEEP_AFTER_S, asleep_s
from advisor.evidence.bindings import on_line
from advisor.evidence.blocked import beside_the_waits_s
from advisor.evidence.facts import OTHER
from advisor.evidence.outside import LEAST_LOOKING_ON, looks_on, own_files, source_of, users_files
from advisor.evidence.python_loops.reports import computed_for_reports, is_used, keeps_nothing
from advisor.evidence.steps import step_windows
from advisor.fixes import edited, given_fix
from advisor.harness.layout import Site
from advisor.rule import (
    WIDEST,
    Advice,
    Argument,
    Example,
    Finding,
    Gain,
    Rule,
    Safety,
    at,
    call_sites,
    epoch_steps,
    number_of,
    site_list,
)
from advisor.shared.frameworks import configured, construction, told

if TYPE_CHECKING:
    from advisor.edit import Edit
    from advisor.evidence import Evidence
    from advisor.evidence.outside import Outside
    from advisor.harness.layout import CallSite

_EVERY = 50  # steps: what a log or a checkpoint in every step becomes in the prediction
_SLEEP = "time.sleep"
# What waits little and computes: a thread for it leaves the steps fewer cores.
_COMPUTES = ("torch.save", "numpy.save", "safetensors.", "PIL.", "matplotlib.")
_KEPT_BASIS = "prior: in a thread of its own, which takes a core while it computes"
_TOLD_S = 5e-5  # seconds: what takes less is not spoken of
_NAMED = 3  # so many of the waits behind one line are named
_CHECKPOINTS = re.compile(r"checkpoint-|resume_from_checkpoint|get_last_checkpoint")
_COLD_BASIS = "the waits, and what operators take longer whose threads slept meanwhile (measured)"
_WORKING = "prior: what stacks say of the time beside the step's own work"
_BETTER = re.compile(
    r"[<>].*(best|min|max|lowest|highest)|(best|min|max|lowest|highest).*[<>]|best$|improve", re.IGNORECASE
)
_SAVES = ("torch.save", "safetensors.torch.save_file")
# As people call what trains or infers.
_TAKES_STEP = re.compile(r"(?i)backward|step|train|fit$|optimi[sz]e|learn|model|forward|predict|infer|generat")


# What an answer comes by: of a simulator, a solver, a device; of one that only sleeps by what it is asked.
_ANSWERS = ("os.system", "subprocess.", "http.client.", "socket.")
_ASKS = re.compile(r"\.(step|reset|act|ask|query|request|recv|receive|poll|read|observe)\w*\(")
# What works beside the steps, in a thread or a process of the script's own, and what the steps take of it: that may be
# what they wait for.
_TAKES = re.compile(r"\.(latest|read|get|grab|poll|recv|receive|retrieve|snapshot|current)\w*\(\)")
_WORKS_BESIDE = re.compile(
    r"\b(threading\.Timer|Thread|Process|\w+PoolExecutor|InputStream|VideoCapture)\(|\.submit\("
    r"|\(([\w.]+\.)?(Thread|Process)\):"
)


# Sleeps that wait for something that others do: without them the loop would only go round faster.
_POLLING = (
    """
while True:
    while len(buffer) < 256:
        time.sleep(0.01)  # <-
    train_step(buffer.take(256))
""",
    """
while step < 100:
    while not ready():
        counter.update()
        time.sleep(0.01)  # <-
    step = train(step)
""",
    """
for x in xs:
    while True:
        if os.path.exists(path):
            break
        time.sleep(0.01)  # <-
    step(x)
""",
    """
while True:
    try:
        batch = batches.get_nowait()
    except queue.Empty:
        time.sleep(0.01)  # <-
    else:
        train_step(batch)
""",
    """
while step < 100:
    if not buffer:
        time.sleep(0.01)  # <-
        continue
    step = train(step)
""",
)


class BlockingWorkBetweenSteps(Rule):
    """In every step the script's own thread waits for something outside of the process.

    A record forced to disk (``fsync``), an answer of a tracking server, a checkpoint, a picture, a leftover ``sleep``:
    meanwhile no operator is called, and a GPU runs out of work as soon as its queue is empty. What is done for every
    step can mostly be done for every fiftieth, or be handed to a thread through a queue; a checkpoint each few minutes
    loses no more than those minutes. The waits are timed where they happen and put down to the line of the loop over
    steps from which they are reached. A callback that computes for the log in every step is told of, too, whether it
    waits or not: the time of its function, by the stacks of a few steps.

    What an inference writes are its results, each of which is wanted: there a thread is all that is advised.

    When not: the step needs the answer (an environment of reinforcement learning, a parameter server); each record has
    to survive a crash; on a GPU, where enough work is queued, so that the wait is hidden behind it.

    Source: Python's Logging Cookbook, "Dealing with handlers that block"; fsync(2): "The call blocks until the device
    reports that the transfer has completed".
    """

    id = "blocking-work-between-steps"
    title = "Do not wait for disk, network or clock in every step"
    safety = Safety.EXACT

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        for place in call_sites(evidence, "blocking"):
            if _when_better(place.site):
                continue  # often at the beginning only
            waits = _by_place(place)
            sleeps = _only_sleeps_here(place, waits)
            if sleeps and (_polls_at(place.site) or _paced(evidence, place.site)):
                continue  # for what the step cannot go on without
            if not sleeps and _answers(place.site, waits):
                continue  # likewise
            works = 0.0 if sleeps else _works_s(evidence, place, waits)
            saved = (place.seconds_per_step + works) * (1.0 if sleeps else 1.0 - 1.0 / _EVERY)
            gain = _gain(evidence, place.seconds_per_step, saved)
            kept = not sleeps and not evidence.trains  # what an inference gives, each of it
            if kept:
                gain = _gain_of_a_thread(evidence, place, waits, works)
            if not gain.worth_it:
                continue
            named = ", ".join(list(waits)[:_NAMED])
            yield Finding(
                rule=self.id,
                title=self.title,
                summary=f"{at(place.site)} waits {place.seconds_per_step * 1e3:.1f} ms in every step: {named}."
                + (f" What it does beside that takes {works * 1e3:.1f} ms." if works >= _TOLD_S else ""),
                gain=gain,
                evidence={
                    "blocked_s": place.seconds_per_step,
                    "blocked_calls_per_step": place.calls_per_step,
                    "works_s": works,
                    "waits": named,
                    "step_s": evidence.step_s,
                },
                site=place.site,
                # What is logged more seldom is another log; a sleep, and how often a Trainer saves, nobody misses.
                safety=None if sleeps or kept or construction(evidence) else Safety.BEHAVIOUR,
                parameters={
                    "sleeps": sleeps,
                    "kept": kept,
                    "epoch": epoch_steps(evidence),
                    "waits": named,
                    "saves": all(each.startswith(_SAVES) and each.endswith(f" at {at(place.site)}") for each in waits),
                    **construction(evidence),
                },
            )

        yield from self._in_a_hook(evidence)

    def _in_a_hook(self, evidence: Evidence) -> Iterator[Finding]:
        """What a callback, or a function that the loop calls, works in every step for the log, without any wait."""
        found = evidence.outside
        if found is None or evidence.device_is_gpu or not evidence.step_s:
            return
        reported = _reported(evidence, found)
        if reported is None and not looks_on(found, text_of(found.file)):
            return
        # Stacks make what is mostly Python look longer beside the rest, whose share they do not change.
        works = min(found.share, evidence.breakdown.share(OTHER)) * evidence.step_s
        # Collections that the script asks for are told of by themselves (gc-pauses).
        works -= (evidence.record.timing.gc_asked_s or 0.0) if evidence.record is not None else 0.0
        gain = Gain.prior(evidence.what_if(Change(remove_host_s=works * (1.0 - 1.0 / _EVERY))), _WORKING)
        if works < LEAST_LOOKING_ON * evidence.step_s:
            return
        yield Finding(
            rule=self.id,
            title="Do not work for the log in every step",
            summary=f"{found} works {works * 1e3:.1f} ms in every step, beside forward, backward and optimizer"
            + (f"; what comes of it is read at {at(reported[1])} only, every so many steps." if reported else "."),
            gain=gain,
            evidence={"works_s": works, "step_s": evidence.step_s},
            site=reported[0] if reported else Site(found.file, found.line),
            safety=None if reported else Safety.BEHAVIOUR,
            parameters={"reported": (reported[1],)} if reported else {},
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        for reported in site_list(finding, "reported"):
            text = f"Move the call at {at(finding.site)} to where its results are read: below the if at {at(reported)}."
            drafts = Drafts(sources)
            if finding.site is None or not _moved(drafts[reported.file], finding.site, reported):
                return Advice(text, "what lies between may change what it is given")
            return edited(drafts, text)
        waits = finding.parameters.get("waits", "")
        text = (
            f"Do what {at(finding.site)} does every {_EVERY} steps only, or hand it to a thread through a queue (for "
            "logs: logging.handlers.QueueHandler and QueueListener)" + (f"; it waits in {waits}." if waits else ".")
        )
        if finding.site is None:
            return Advice(text, "its place is unknown")
        if finding.parameters.get("kept"):
            return Advice(
                f"Hand what {at(finding.site)} does to a thread through a queue, which writes one result while the "
                f"model computes the next (concurrent.futures.ThreadPoolExecutor); it waits in {waits}.",
                "whether the model needs it first only its author can tell",
            )
        every = told(finding, "save_steps") if told(finding, "save_strategy") == "steps" else None
        if finding.parameters.get("saves") and isinstance(every, (int, float)) and 1 <= every < _EVERY:
            steps = int(every) * _EVERY
            text = f"Have the Trainer save a checkpoint every {steps} steps"
            if told(finding, "load_best_model_at_end") or _CHECKPOINTS.search(sources.source(finding.site.file).text):
                return Advice(f"{text}: save_steps={steps}.", "the script goes back to one of the checkpoints")
            return configured(
                finding, sources, "transformers", {"save_steps": str(steps)}, text, "it is not the Trainer's"
            )
        if not finding.parameters.get("sleeps"):
            seldom = done_every(drafts := Drafts(sources), finding.site, _EVERY, epoch=number_of(finding, "epoch"))
            if seldom is not None:
                text = f"Do what {at(finding.site)} does every {_EVERY} steps only."
                return given_fix(drafts, drafts[finding.site.file], seldom, str(_EVERY), text, text)
            return Advice(text, "what else the line does, and which steps it has to do it for, only its author knows")
        drafts = Drafts(sources)
        draft = drafts[finding.site.file]
        call = call_at(draft, finding.site, ("sleep",))
        statement = draft.statement(call) if call is not None else None
        alone = m.SimpleStatementLine(body=[m.Expr(m.Call(args=[m.Arg(m.Integer() | m.Float())]))])
        if call is None or statement is None or not m.matches(statement, alone) or draft.loop(call) is None:
            return Advice(
                f"Remove the sleep at {at(finding.site)}, or do not sleep in every step.",
                "how long it sleeps is computed, or it is part of another statement",
            )
        if _polls(draft, call):
            return Advice(text, "its loop waits for something, and would go round as fast as it can")
        draft.remove(statement)
        return edited(drafts, text, f"Remove the sleep at {at(finding.site)}, which nothing in the step waits for.")

    EXAMPLES = (
        Example(  # the results themselves
            before="for x, name in loader:\n    save_image(net(x), name)  # <-\n",
            after="",
            parameters={"kept": True, "waits": "PIL.Image.Image.save at enhance.py:9"},
            advice="to a thread",
        ),
        Example(
            before="""
import time

for x, y in loader:
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    # be nice to the others
    time.sleep(0.05)  # <-
print(loss)
""",
            after="""
import time

for x, y in loader:
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
print(loss)
""",
            parameters={"sleeps": True},
        ),
        Example(
            before="""
for step, (x, y) in enumerate(loader):
    train(x, y)
    # how well it ranks
    auc, ks = quality(recent)  # <-
    seen += len(x)
    if step % 50 == 0:  # <- reported
        print(auc, ks)
""",
            after="""
for step, (x, y) in enumerate(loader):
    train(x, y)
    seen += len(x)
    if step % 50 == 0:
        auc, ks = quality(recent)
        print(auc, ks)
""",
        ),
        Example(
            before="""
LOG_EVERY = 1

def report(step, row):
    with open(path, "a") as log:
        os.fsync(log.fileno())

for step, (x, y) in enumerate(loader):
    row = train(x, y)
    if writes and (step + 1) % LOG_EVERY == 0:
        report(step, row)  # <-
""",
            after="""
LOG_EVERY = 50

def report(step, row):
    with open(path, "a") as log:
        os.fsync(log.fileno())

for step, (x, y) in enumerate(loader):
    row = train(x, y)
    if writes and (step + 1) % LOG_EVERY == 0:
        report(step, row)
""",
        ),
        Example(
            before="""
@dataclass
class Settings:
    spectra_every: int = 1

class Callback:
    def __init__(self, settings):
        self.settings = settings

    def on_step_end(self, step, model):  # <-
        if step % self.settings.spectra_every:
            return
        for weight in model.parameters():
            self.rows.append(svdvals(weight))

Callback(Settings())
""",
            after="""
@dataclass
class Settings:
    spectra_every: int = 50

class Callback:
    def __init__(self, settings):
        self.settings = settings

    def on_step_end(self, step, model):
        if step % self.settings.spectra_every:
            return
        for weight in model.parameters():
            self.rows.append(svdvals(weight))

Callback(Settings())
""",
        ),
        Example(
            before="""
parser.add_argument("--dump-every", type=int, default=1)
args = parser.parse_args()
for step, (x, y) in enumerate(loader):
    train(x, y)
    if not step % args.dump_every:
        dump(model)  # <-
""",
            after="",
            options={"--dump-every": "50"},
        ),
        Example(
            before="while step < 100:\n    if gpu:\n        sleep(1)  # <-\n    step = train(step)\n",
            after="while step < 100:\n    if gpu:\n        pass\n    step = train(step)\n",
            parameters={"sleeps": True},
        ),
        Example(
            before="""
from transformers import Trainer, TrainingArguments

args = TrainingArguments(  # <- config
    output_dir="out",
    save_strategy="steps",
    save_steps=1,  # spot instances
)
Trainer(model, args).train()  # <-
""",
            after="""
from transformers import Trainer, TrainingArguments

args = TrainingArguments(
    output_dir="out",
    save_strategy="steps",
    save_steps=50,  # spot instances
)
Trainer(model, args).train()
""",
            parameters={
                "saves": True,
                "config_kind": "TrainingArguments",
                "config_values": {"save_strategy": "steps", "save_steps": 1},
            },
        ),
    )
    LEAVES_ALONE = (
        Example(
            "EVERY = 1\nfor step, x in enumerate(xs):\n    if step % EVERY == 0:\n        loss.backward()\n"
            "        log.record(loss)  # <-\n",
            "",
        ),
        Example(
            "EVERY = 1\nfor step, x in enumerate(xs):\n    train(x)\n    if step % EVERY == 0:\n"
            "        log.record(loss)  # <-\n    else:\n        quick(loss)\n",
            "",
        ),
        Example(
            "EVERY = 1\nfor epoch in range(9):\n    if epoch % EVERY == 0:\n        for x in xs:\n"
            "            log.record(loss(x))  # <-\n",
            "",
        ),
        Example(
            "EVERY = 2\nfor step, x in enumerate(xs):\n    if step % EVERY == 0:\n        log.record(loss)  # <-\n", ""
        ),
        Example("for x in xs:\n    log.record(step(x))  # <-\n", ""),
        Example("for x in xs:\n    step(x)\n    time.sleep(period - elapsed)  # <-\n", "", {"sleeps": True}),
        Example(
            "for x in xs:\n    auc = quality(recent)  # <-\n    recent.clear()\n    if step % 9 == 0:  # <- reported\n"
            "        print(auc)\n",
            "",
        ),
        Example("def wait():\n    time.sleep(1)  # <-\n", "", {"sleeps": True}),
        *(Example(text, "", {"sleeps": True}) for text in _POLLING),
    )


def _when_better(site: Site) -> bool:
    """Whether the line runs only where something got better: ``if loss < best:``, ``if is_best:``."""
    try:
        tree = ast.parse(text_of(site.file))
    except (SyntaxError, ValueError):
        return False
    return any(
        isinstance(node, ast.If)
        and node.body[0].lineno <= site.line <= (node.body[-1].end_lineno or 0)
        and _BETTER.search(ast.unparse(node.test))
        for node in ast.walk(tree)
    )


def _polls_at(site: Site) -> bool:
    """The same of the sleep at a recorded place, as far as the source on disk tells."""
    drafts = Drafts(Sources())
    try:
        draft = drafts[site.file]
    except AdvisorError:
        return False
    call = call_at(draft, site, ("sleep",))
    return call is not None and _polls(draft, call)


def _paced(evidence: Evidence, site: Site) -> bool:
    """Whether the script has others work beside its steps, and takes something from them where it sleeps."""
    files = own_files(evidence.record) if evidence.record is not None else ()
    if not any(_WORKS_BESIDE.search(text_of(each)) for each in files):
        return False
    try:
        loops = [each for each in ast.walk(ast.parse(text_of(site.file))) if isinstance(each, (ast.For, ast.While))]
    except (SyntaxError, ValueError):
        return False
    around = [each for each in loops if on_line(each, site.line)]
    innermost = max(around, key=lambda each: each.lineno, default=None)
    return innermost is not None and _TAKES.search(ast.unparse(innermost)) is not None


def _answers(site: Site, waits: Collection[str]) -> bool:
    """Whether the line waits for an answer that the step goes on with: of a simulator in another process, say."""
    text = text_of(site.file)
    line = "".join(text.splitlines()[site.line - 1 : site.line]) if site.line > 0 else ""
    asks = any(each.startswith(_ANSWERS) for each in waits) or _ASKS.search(line) is not None
    return asks and any(each.startswith((*_ANSWERS, _SLEEP)) for each in waits) and is_used(text, site.line)


def _polls(draft: Draft, call: cst.Call) -> bool:
    """Whether a sleep waits for what somebody else does: its loop tries again, and takes no step meanwhile."""
    loop, statement = draft.loop(call), draft.statement(call)
    if loop is None or statement is None:
        return False
    failed = any(isinstance(each, cst.ExceptHandler) for each in draft.ancestors(statement))
    if failed or m.matches(draft.siblings(statement)[-1], m.SimpleStatementLine(body=[m.Continue()])):
        return True
    own = [each for each in draft.nodes(cst.FunctionDef) if _steps_in(draft, each)]
    if _steps_in(draft, loop.body, {each.name.value for each in own}):
        return False
    if isinstance(loop, cst.While) and not m.matches(loop.test, m.Name("True") | m.Integer("1")):
        return True
    leaves = [*draft.nodes(cst.Break, loop), *draft.nodes(cst.Return, loop)]
    return any(draft.loop(each) is loop for each in leaves)


def _steps_in(draft: Draft, node: cst.CSTNode, own: Collection[str] = ()) -> bool:
    """Whether a step is taken there, as far as the names of what is called tell; `own` are functions that take one."""
    names = {last_name(draft, each) for each in draft.nodes(cst.Call, node)}
    return bool(names & set(own)) or any(_TAKES_STEP.search(each) for each in names)


def _moved(draft: Draft, site: Site, reported: Site) -> bool:
    """Put the statement at `site` below the ``if`` at `reported`; not where what lies between names the same."""
    lines = [each for each in draft.nodes(cst.SimpleStatementLine) if draft.line(each) == site.line]
    statement = lines[0] if len(lines) == 1 and len(lines[0].body) == 1 else None
    block = draft.siblings(statement) if statement is not None else []
    branches = [each for each in block if isinstance(each, cst.If) and draft.line(each) == reported.line]
    if statement is None or not branches or not isinstance(branches[0].body, cst.IndentedBlock):
        return False
    first = draft.siblings(branches[0].body.body[0])[0]
    between = block[block.index(statement) + 1 : block.index(branches[0])]
    names = {each.value for each in draft.nodes(cst.Name, statement)}
    if any(each.value in names for other in (*between, branches[0].test) for each in draft.nodes(cst.Name, other)):
        return False
    draft.insert_before(first, draft.code(statement.body[0]))
    draft.remove(statement)
    return True


def _reported(evidence: Evidence, found: Outside) -> tuple[Site, Site] | None:
    """Where the loop over steps calls a function, and the line, not of every step, that alone reads its results."""
    if found.called or not keeps_nothing(source_of(found, text_of(found.file))):
        return None
    files = {found.file, *(users_files(evidence.record) if evidence.record is not None else ())}
    for file in sorted(files):
        lines = computed_for_reports(text_of(file), found.name)
        if lines is not None:
            return Site(file, lines[0]), Site(file, lines[1])
    return None


def _gain(evidence: Evidence, waits_s: float, saved: float) -> Gain:
    """The step without `saved` seconds, of which it waits for `waits_s`, and what computing takes longer after them."""
    plain = Gain.of(evidence.what_if(Change(remove_host_s=saved)))
    rest_s = (evidence.step_s or 0.0) - saved
    likely_s, most_s = asleep_s(evidence, rest_s) if waits_s >= ASLEEP_AFTER_S else (0.0, 0.0)
    if not most_s:
        return plain
    likely, high = (evidence.what_if(Change(remove_host_s=saved + more)).speedup[1] for more in (likely_s, most_s))
    return Gain(max(plain.low, high / WIDEST), max(likely, high / WIDEST), high, _COLD_BASIS)


def _gain_of_a_thread(evidence: Evidence, place: CallSite, waits: dict[str, float], works_s: float) -> Gain:
    """The gain where what is written for each step is written by a thread, meanwhile.

    A wait goes, as far as the rest of the step is long enough to hide it. What computes shares the cores: of that half
    is gained at best, where the step uses all of them.
    """
    step_s = evidence.step_s or 0.0
    computes = sum(seconds for what, seconds in waits.items() if what.startswith(_COMPUTES))
    share = computes / sum(waits.values()) if waits else 0.0
    rest_s = max(0.0, step_s - place.seconds_per_step - works_s)
    hidden = min(rest_s, place.seconds_per_step * (1.0 - share))
    busy = place.seconds_per_step * share + works_s
    likely, high = (
        evidence.what_if(Change(remove_host_s=hidden + min(rest_s, busy * part))).speedup[1] for part in (0.25, 0.5)
    )
    return Gain(max(min(1.0, likely), high / WIDEST), likely, high, _KEPT_BASIS)


def _by_place(place: CallSite) -> dict[str, float]:
    """Seconds by what waits where ("time.sleep at log.py:12"), the longest first."""
    seconds = place.details.get("seconds")
    return dict(sorted(seconds.items(), key=lambda each: -each[1])) if isinstance(seconds, dict) else {}


def _works_s(evidence: Evidence, place: CallSite, waits: dict[str, float]) -> float:
    """Seconds per step that the line works beside its waits: without the profiler, which slows work and no wait."""
    if evidence.detail is None or evidence.step_s is None:
        return 0.0
    steps = step_windows(evidence.detail)
    if not len(steps):
        return 0.0
    waited = place.seconds_per_step
    others = [each for each in call_sites(evidence, "blocking") if each.site.function == place.site.function]
    if sum(bool({*_by_place(each)} & {*waits}) for each in others) > 1:
        return 0.0  # which of the function's lines made which of the calls, the stacks do not say
    beside = beside_the_waits_s(evidence.detail, steps, place.site, waits)
    rest, traced = evidence.step_s - waited, steps.total_ns / 1e9 / len(steps) - waited
    return min(beside * min(1.0, rest / traced), rest) if min(rest, traced) > 0 else 0.0


def _only_sleeps_here(place: CallSite, waits: dict[str, float]) -> bool:
    """Whether the line itself sleeps, and does nothing else that waits."""
    return list(waits) == [f"{_SLEEP} at {at(place.site)}"]
