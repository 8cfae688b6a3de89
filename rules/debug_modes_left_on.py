"""A debug mode that was switched on once is still on, in every step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import libcst as cst
import libcst.matchers as m

from advisor.edit import Draft, Drafts
from advisor.edit.calls import argument, unpacked
from advisor.edit.draft import Statement
from advisor.edit.locate import call_at, last_name
from advisor.edit.names import ensure_name, full_name
from advisor.edit.origin import is_literal
from advisor.edit.values import EDITED, give
from advisor.evidence import Change
from advisor.evidence.debugging import blocked_launches_s, filled_memory_s, nan_checks_s
from advisor.rule import (
    Advice,
    Argument,
    Example,
    Finding,
    Gain,
    Rule,
    Safety,
    Variable,
    at,
    call_sites,
    site_list,
    sites,
)

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence
    from advisor.harness.layout import CallSite, Site

_Edit = Callable[[Drafts, Draft, cst.Call | None], str]
# Of a step: with anomaly detection it took 2.5, 3.5 and 3.9 times as long in the three scripts measured.
_MOST_OF_STEP = 0.75
# Where the tracebacks alone are more than that, up to here: 0.92 of a step were, which took 12 times as long. Of still
# more it is rather so that the window they were taken in was a slower one.
_MOST_WRITTEN = 0.95
# What anomaly detection costs beside the tracebacks themselves (keeping them, linking nodes to their parents, freeing
# it all), over their own time. Measured with torch 2.15 on the 73 nodes of fixtures/planted/anomaly_left_on, CPU time
# of a step: 3.9 ms off, 10 to 12 on, 4.0 to 5.0 of it in tracebacks, 0.5 in looking for NaN.
_KEEPING = 1.25
_BLOCKING = "CUDA_LAUNCH_BLOCKING"
# CPU time that a profiler without a schedule takes to write down one operator, torch 2.15, one thread: 0.45 to 0.87 us
# in a network on a graph (0.8 ms a step, 434 operators), 2.0 there over 1500 steps in memory that is fresh, 0.9 to 1.4
# in 16 small layers, 0.26 to 0.39 in 80 products of 64 numbers without gradients; torch.autograd.profiler and
# torch.profiler cost the same.
_EVENT_S = 1.0e-6
_PROFILING = "prior: 1 us for each operator that a profiler writes down (three models on a CPU)"
_PROFILERS = ("profile", "emit_nvtx")
# What a script asks its profiler, to print or to see it: without a profiler it goes. What is written to a file may be
# read later.
_OF_PROFILERS = ("step", "key_averages", "table", "total_average", "events")
_WRITES = ("on_trace_ready", "execution_trace_observer")
_LOGGERS = ("log", "logger", "logging", "_log", "_logger", "LOG", "LOGGER")
_LEVELS = ("debug", "info", "warning")


class DebugModesLeftOn(Rule):
    """A mode that helps to find errors is on in every step, long after the error was found.

    Anomaly detection writes down a Python traceback for each operation that autograd records, and looks for NaN in
    each gradient of the backward pass. ``gradcheck`` computes gradients numerically, one forward pass per input
    value. Deterministic algorithms fill all fresh memory with NaN, so that nothing can depend on what was there.
    ``CUDA_LAUNCH_BLOCKING`` has the host wait for each kernel. A profiler without a schedule writes down every operator
    of the whole training, in memory. Each of them is measured: seconds in tracebacks and checks, in ``gradcheck``, in
    fills of fresh memory, in launches that block, operators that were written down. A mode that was switched off again
    before the loop costs nothing, and is not reported; nor is a profiler with a schedule.

    When not: you are looking for the NaN or the wrong gradient right now. Deterministic results stay deterministic
    without the filling, as long as no operation reads memory that was never written.

    Source: PyTorch performance tuning guide, "Disable debugging APIs"; torch.utils.deterministic,
    ``fill_uninitialized_memory``; torch.profiler, ``schedule``; CUDA C++ programming guide,
    "Concurrent Execution between Host and Device".
    """

    id = "debug-modes-left-on"
    title = "Switch debug modes off"
    safety = Safety.EXACT

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        looks = (_anomaly, _gradcheck, _fills, _blocking, _profiling)
        for found in (look(evidence) for look in looks):
            if found is not None and found.gain.worth_it:
                yield found

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Variable | Advice:
        place, drafts = at(finding.site), Drafts(sources)
        if finding.parameters.get("blocking"):
            return _unblock(drafts, str(finding.parameters.get("script") or ""))
        if site_list(finding, "gradcheck"):
            text = f"Take the call of gradcheck at {place} out of the loop: it belongs in a test."
            why = _each(drafts, site_list(finding, "gradcheck"), ("gradcheck",), _remove)
        elif site_list(finding, "profiler"):
            text = f"Take the profiler at {place} out, or give torch.profiler.profile a schedule of a few steps."
            why = _each(drafts, site_list(finding, "profiler"), _PROFILERS, _no_profiler)
        elif site_list(finding, "deterministic"):
            text = f"Keep deterministic algorithms ({place}) but do not fill fresh memory with NaN."
            why = _each(drafts, site_list(finding, "deterministic"), ("use_deterministic_algorithms",), _no_filling)
        else:
            text = f"Switch anomaly detection off at {place}." if finding.site else "Switch anomaly detection off."
            found = site_list(finding, "anomaly")
            names = ("detect_anomaly", "set_detect_anomaly")
            why = _each(drafts, found, names, _no_anomalies) if found else "the place that switches it on is unknown"
            if any(_skips_what_fails(drafts[site.file]) for site in found):
                why = "the script catches the error that it raises at a NaN: test for one there yourself (isfinite)"
        if why:
            return Advice(text, why)
        return drafts.edit(text) or Advice(text, "the file is not the script's own")

    EXAMPLES = (
        Example(
            before="torch.autograd.set_detect_anomaly(True)  # NaN?  # <- anomaly\n",
            after="torch.autograd.set_detect_anomaly(False)  # NaN?\n",
        ),
        Example(
            before="""
import torch
from torch.autograd import detect_anomaly

def train(loader):
    with detect_anomaly():  # <- anomaly
        for x in loader:
            step(x)
""",
            after="""
import torch
from torch.autograd import detect_anomaly

def train(loader):
    with torch.autograd.set_detect_anomaly(False):
        for x in loader:
            step(x)
""",
        ),
        Example(
            before="""
@dataclass
class Config:
    debug: bool = True

cfg = Config()
th.autograd.set_detect_anomaly(cfg.debug)  # <- anomaly
""",
            after="""
@dataclass
class Config:
    debug: bool = False

cfg = Config()
th.autograd.set_detect_anomaly(cfg.debug)
""",
        ),
        Example(  # an error ends it, in any case
            before="""
import torch

def main():
    for x in loader:
        step(x).backward()

try:
    torch.autograd.set_detect_anomaly(True)  # <- anomaly
    main()
except Exception:
    traceback.print_exc()
""",
            after="""
import torch

def main():
    for x in loader:
        step(x).backward()

try:
    torch.autograd.set_detect_anomaly(False)
    main()
except Exception:
    traceback.print_exc()
""",
        ),
        Example(
            before="trainer = Trainer(max_epochs=3, detect_anomaly=True)\ntrainer.fit(model)  # <- anomaly\n",
            after="trainer = Trainer(max_epochs=3, detect_anomaly=False)\ntrainer.fit(model)\n",
        ),
        Example(
            before="""
options = {"max_epochs": 3, "detect_anomaly": True}
L.Trainer(**options).fit(model)  # <- anomaly
""",
            after="""
options = {"max_epochs": 3, "detect_anomaly": False}
L.Trainer(**options).fit(model)
""",
        ),
        Example(
            before="""
for x in loader:
    # is my operator right?
    assert gradcheck(op, (x.double().requires_grad_(),))  # <- gradcheck
    step(x)
""",
            after="""
for x in loader:
    step(x)
""",
        ),
        Example(
            before="""
from torch.autograd.profiler import profile

def fit(loader):
    with profile() as prof:  # <- profiler
        for x in loader:
            step(x)
    print(prof.key_averages().table(sort_by="self_cpu_time_total"))
    return step
""",
            after="""
from torch.autograd.profiler import profile

def fit(loader):
    with profile(enabled=False):
        for x in loader:
            step(x)
    return step
""",
        ),
        Example(
            before="""
import torch

with torch.profiler.profile(record_shapes=True) as p:  # <- profiler
    for x in loader:
        step(x)
        p.step()
""",
            after="""
import torch
import contextlib

with contextlib.nullcontext():
    for x in loader:
        step(x)
""",
        ),
        Example(
            before="import torch\n\ntorch.use_deterministic_algorithms(True)  # <- deterministic\nmain()\n",
            after=(
                "import torch\n\ntorch.use_deterministic_algorithms(True)\n"
                "torch.utils.deterministic.fill_uninitialized_memory = False\nmain()\n"
            ),
        ),
        Example(
            before='import os\nos.environ["CUDA_LAUNCH_BLOCKING"] = "1"  # that assert\nimport torch\n',
            after='import os\nos.environ["CUDA_LAUNCH_BLOCKING"] = "0"  # that assert\nimport torch\n',
            parameters={"blocking": True},
        ),
        Example(  # the constant says what else the script does
            before="""
DEBUG = True
torch.autograd.set_detect_anomaly(DEBUG)  # <- anomaly
if DEBUG:
    dataset = Subset(dataset, range(100))
""",
            after="""
DEBUG = True
torch.autograd.set_detect_anomaly(False)
if DEBUG:
    dataset = Subset(dataset, range(100))
""",
        ),
        Example(
            before="""
with profile() as prof:  # <- profiler=profile()
    main()
logger.info("%s", prof.key_averages().table(sort_by="cpu_time", row_limit=-1))
prof.key_averages()
print("done")
""",
            after="""
import contextlib
with contextlib.nullcontext():
    main()
print("done")
""",
        ),
    )
    LEAVES_ALONE = (
        *(
            Example(f"with profile() as prof:  # <- profiler\n    main()\n{use}\n", "")
            for use in (
                'save_results(model, "run1.json", prof.key_averages().table())',
                "checkpoint(dict(model=model, ops=len(prof.events())))",
                "losses.append(len(prof.events()))",
                'prof.export_chrome_trace("trace.json")',
                "print(prof.key_averages().table(), file=report)",
                "print(train(model), prof.key_averages().table())",
                "print(prof.key_averages().table(row_limit=train(model)))",
                "prof.key_averages().table().save(model)",
            )
        ),
        Example(  # a step that is left out where there is a NaN
            """
torch.autograd.set_detect_anomaly(True)  # <- anomaly
for x in loader:
    try:
        step(x).backward()
    except RuntimeError as error:
        log.warning("left out: %s", error)
        continue
    optimizer.step()
""",
            "",
        ),
        Example('os.environ.update({"CUDA_LAUNCH_BLOCKING": "1"})\n', "", {"blocking": True}),
        Example("torch.autograd.set_detect_anomaly(args.debug)  # <- anomaly\n", ""),
        Example("ok = gradcheck(op, x)  # <- gradcheck\nprint(ok)\n", ""),
        Example("if blocking: torch.use_deterministic_algorithms(True)  # <- deterministic\n", ""),
        Example("import torch\n\nmain()\n", "", {"blocking": True}),
        Example("with profile() as p:  # <- profiler\n    main()\nseen = p.key_averages()\n", ""),
        Example("with profile() as p:  # <- profiler\n    main()\nfor p in ps:\n    p.detach_()\n", ""),
        Example("profile().__enter__()  # <- profiler\nmain()\n", ""),
        Example('with profile(on_trace_ready=tensorboard_trace_handler("log")):  # <- profiler\n    main()\n', ""),
        Example("with profile(**options):  # <- profiler\n    main()\n", ""),
    )


# What is on, and what it costs ---------------------------------------------------------------------------------------


def _anomaly(evidence: Evidence) -> Finding | None:
    record = evidence.record
    written = (record.tracebacks_s or 0.0) if record is not None else 0.0
    checks = nan_checks_s(evidence)
    # The checks' own operators are what a script may use as well: without the mode seen, a trace says nothing.
    if record is None or not (written or (record.environment.anomaly and checks)):
        return None
    waits = [row.index for row in evidence.syncs if row.operator.startswith("autograd::engine::evaluate_function")]
    # Both were taken in a window of its own, in which a busy machine may have been slower.
    step_s = evidence.step_s or 0.0
    most = max(_MOST_OF_STEP * step_s, written if written <= _MOST_WRITTEN * step_s else 0.0)
    removed = min(written * _KEEPING + checks, most)
    change = Change(remove_host_s=removed, remove_syncs=waits)
    places = _modes(evidence, "anomaly")
    told = [each for each in call_sites(evidence, "Trainer", every_step=False) if _asks_for_anomalies(each)]
    return Finding(
        rule=DebugModesLeftOn.id,
        title="Switch anomaly detection off",
        summary=f"Anomaly detection is on: each step spends {written * 1e3:.1f} ms writing down tracebacks, and "
        f"{checks * 1e3:.1f} ms looking for NaN in gradients.",
        gain=Gain.of(evidence.what_if(change)),
        evidence={"tracebacks_s": written, "nan_checks_s": checks, "step_s": evidence.step_s},
        site=told[0].site if len(told) == 1 else places[0].site if places else None,  # Lightning's, by an argument
        parameters={"anomaly": sites(places)},
    )


def _asks_for_anomalies(trainer: CallSite) -> bool:
    values = trainer.details.get("values")
    return isinstance(values, dict) and bool(values.get("detect_anomaly"))


def _gradcheck(evidence: Evidence) -> Finding | None:
    places = tuple(each for each in _modes(evidence, "gradcheck") if each.calls_per_step > 0)
    taken = sum(each.seconds_per_step for each in places) / evidence.inflation
    if not places or not taken:
        return None
    return Finding(
        rule=DebugModesLeftOn.id,
        title="Do not check gradients numerically in every step",
        summary=f"gradcheck takes {taken * 1e3:.1f} ms of each step, at {', '.join(at(each.site) for each in places)}.",
        gain=Gain.of(evidence.what_if(Change(remove_host_s=taken))),
        evidence={"gradcheck_s": taken, "step_s": evidence.step_s},
        site=places[0].site,
        parameters={"gradcheck": sites(places)},
    )


def _fills(evidence: Evidence) -> Finding | None:
    record = evidence.record
    places = _modes(evidence, "deterministic")
    taken = filled_memory_s(evidence)
    if record is None or not record.environment.deterministic or not places or not taken:
        return None
    return Finding(
        rule=DebugModesLeftOn.id,
        title="Do not fill fresh memory in deterministic mode",
        summary=f"Deterministic algorithms fill all memory that a step takes with NaN first: {taken * 1e3:.1f} ms.",
        gain=Gain.of(evidence.what_if(Change(remove_host_s=taken))),
        evidence={"fill_s": taken, "step_s": evidence.step_s},
        site=places[0].site,
        parameters={"deterministic": sites(places)},
    )


def _blocking(evidence: Evidence) -> Finding | None:
    record = evidence.record
    if record is None or record.environment.variables.get(_BLOCKING, "0") in ("", "0") or not evidence.device_is_gpu:
        return None
    taken = blocked_launches_s(evidence)
    return Finding(
        rule=DebugModesLeftOn.id,
        title=f"Unset {_BLOCKING}",
        summary=f"{_BLOCKING} is set: each launch waits until its kernel is done, {taken * 1e3:.1f} ms a step.",
        gain=Gain.of(evidence.what_if(Change(remove_host_s=taken))),
        evidence={"blocked_launches_s": taken, "step_s": evidence.step_s},
        parameters={"blocking": True, "script": evidence.script},
    )


def _profiling(evidence: Evidence) -> Finding | None:
    places = tuple(each for each in _modes(evidence, "profiler") if each.details.get("timed"))
    events = sum(row.count for row in evidence.operators)
    if not places or not events:
        return None
    return Finding(
        rule=DebugModesLeftOn.id,
        title="Do not profile the whole training",
        summary=f"A profiler without a schedule is on in every step ({at(places[0].site)}): it writes down "
        f"{events:.0f} operators a step, and keeps them all.",
        gain=Gain.prior(evidence.what_if(Change(remove_host_s=events * _EVENT_S)), _PROFILING),
        evidence={"profiled_operators": events, "step_s": evidence.step_s},
        site=places[0].site,
        parameters={"profiler": tuple(_line(each.site) for each in places)},
    )


def _line(site: Site) -> Site:
    """Without columns: those of entering a ``with`` are the whole statement's, which may end as a call in it does."""
    return replace(site, column=None, end_line=None, end_column=None)


def _modes(evidence: Evidence, mode: str) -> tuple[CallSite, ...]:
    """Where this mode was switched on."""
    found = call_sites(evidence, "debug_mode", every_step=False)
    return tuple(each for each in found if each.details.get("mode") == mode and each.details.get("on"))


# The edits: each says why it was not made, or "" --------------------------------------------------------------------


def _each(drafts: Drafts, found: tuple[Site, ...], names: tuple[str, ...], edit: _Edit) -> str:
    for site in found:
        why = edit(drafts, drafts[site.file], call_at(drafts[site.file], site, names))
        if why:
            return why
    return ""


def _no_anomalies(drafts: Drafts, draft: Draft, call: cst.Call | None) -> str:
    if call is None:
        calls = draft.nodes(cst.Call)
        trainers = [each for each in calls if argument(each, "detect_anomaly") is not None]
        trainers = trainers or [each for each in calls if last_name(draft, each) == "Trainer" and unpacked(each)]
        if (
            len(trainers) == 1
            and give(drafts, draft, trainers[0], "detect_anomaly", "False", (), True, alone=True) == EDITED
        ):
            return ""
        return "the call that switches it on was not found"
    if last_name(draft, call) == "set_detect_anomaly":
        if give(drafts, draft, call, "mode", "False", ("mode", "check_nan"), True, alone=True) == EDITED:
            return ""
        return "where its argument comes from cannot be told from the source"
    if isinstance(call.func, cst.Attribute):
        draft.change(call.func.attr, lambda _: cst.Name("set_detect_anomaly"))
    else:
        draft.replace(call.func, ensure_name(draft, "torch.autograd.set_detect_anomaly"))
    draft.change(call, lambda updated: updated.with_changes(args=[cst.Arg(cst.Name("False"))]))
    return ""


def _skips_what_fails(draft: Draft) -> bool:
    """Whether the file goes on where a backward raises, as anomaly detection has it do at a NaN (RuntimeError)."""
    functions = {each.name.value for each in draft.nodes(cst.FunctionDef) if _goes_back(draft, each)}
    repeated = {last_name(draft, each) for each in draft.nodes(cst.Call) if draft.loop(each) is not None}
    for block in draft.nodes(cst.Try):
        function = draft.function(block)
        if draft.loop(block) is None and (function is None or function.name.value not in repeated):
            continue  # around all the steps: the first that fails ends them
        called = {last_name(draft, each) for each in draft.nodes(cst.Call, block.body)}
        if not (_goes_back(draft, block.body) or called & functions):
            continue
        for handler in block.handlers:
            kinds = draft.code(handler.type) if handler.type is not None else "Exception"
            goes_on = not draft.nodes(cst.Raise, handler)
            if goes_on and any(kind in kinds for kind in ("RuntimeError", "Exception")):
                return True
    return False


def _goes_back(draft: Draft, node: cst.CSTNode) -> bool:
    return any(each.attr.value == "backward" for each in draft.nodes(cst.Attribute, node))


def _remove(drafts: Drafts, draft: Draft, call: cst.Call | None) -> str:
    statement = draft.statement(call) if call is not None else None
    if isinstance(statement, cst.SimpleStatementLine):
        (small,) = statement.body
        plain = isinstance(small, cst.Expr) and small.value is call
        if plain or (isinstance(small, cst.Assert) and small.test is call):
            draft.remove(statement)
            return ""
    return "the script uses what it returns"


def _no_profiler(drafts: Drafts, draft: Draft, call: cst.Call | None) -> str:
    item = draft.parent(call) if call is not None else None
    block = draft.parent(item) if item is not None else None
    if call is None or not isinstance(item, cst.WithItem) or not isinstance(block, cst.With):
        return "the profiler is not what a with statement enters"
    handlers = [arg for name in _WRITES if (arg := argument(call, name)) and not m.matches(arg.value, m.Name("None"))]
    if handlers or unpacked(call):
        return "the profiler may write a trace that somebody reads"
    uses: list[Statement] = []
    if item.asname is not None:
        if not isinstance(item.asname.name, cst.Name):
            return "the script keeps the profiler"
        name, scope = item.asname.name, draft.function(call) or draft.module
        for each in draft.nodes(cst.Name, scope):
            if each.value != name.value or each is name:
                continue
            statement = draft.statement(each)
            if not isinstance(statement, cst.SimpleStatementLine) or not _only_shows(statement, each):
                return "the script uses what the profiler has seen"
            uses.append(statement)
    if "enabled" in _parameters_of(draft, call):
        if give(drafts, draft, call, "enabled", "False", ("enabled",), alone=True) != EDITED:
            return "whether it is enabled comes from somewhere else"
    else:
        draft.replace(call, f"{ensure_name(draft, 'contextlib.nullcontext')}()")
    for statement in dict.fromkeys(uses):
        draft.remove(statement)
    draft.change(item, lambda updated: updated.with_changes(asname=None))
    return ""


def _only_shows(statement: cst.SimpleStatementLine, profiler: cst.Name) -> bool:
    """``prof.key_averages().table(…)`` as the statement, or all that it prints or logs."""
    small = statement.body[0]
    call = small.value if isinstance(small, cst.Expr) else None
    if not isinstance(call, cst.Call):
        return False
    if _asked(call) is profiler:
        return True
    logs = m.Attribute(value=m.OneOf(*map(m.Name, _LOGGERS)), attr=m.OneOf(*map(m.Name, _LEVELS)))
    if not m.matches(call.func, m.OneOf(m.Name("print"), logs)) or any(arg.keyword or arg.star for arg in call.args):
        return False
    shown = [arg.value for arg in call.args if not isinstance(arg.value, cst.SimpleString)]
    return len(shown) == 1 and _asked(shown[0]) is profiler


def _asked(node: cst.BaseExpression) -> cst.Name | None:
    """The profiler that a chain of calls asks, with nothing but plain values for arguments; None for other code."""
    chain = 0
    while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value in _OF_PROFILERS:
        if not all(is_literal(arg.value) and not arg.star for arg in node.args):
            return None
        node, chain = node.func.value, chain + 1
    return node if isinstance(node, cst.Name) and chain else None


def _parameters_of(draft: Draft, call: cst.Call) -> tuple[str, ...]:
    """What a profiler that can be told not to run takes: those of torch.autograd, not torch.profiler's."""
    return ("enabled",) if "autograd" in full_name(draft, call.func) else ()


def _no_filling(drafts: Drafts, draft: Draft, call: cst.Call | None) -> str:
    statement = draft.statement(call) if call is not None else None
    if not isinstance(statement, cst.SimpleStatementLine) or not m.matches(statement.body[0], m.Expr()):
        return "the call is no statement of its own"
    module = ensure_name(draft, "torch.utils.deterministic")
    draft.insert_after(statement, f"{module}.fill_uninitialized_memory = False")
    return ""


def _unblock(drafts: Drafts, script: str) -> Edit | Variable | Advice:
    text = f"Run the script without {_BLOCKING}."
    if script and drafts.sources.has(script):
        draft = drafts[script]
        for statement in draft.nodes(cst.Assign):
            named = _BLOCKING in draft.code(statement.targets[0].target)
            if named and isinstance(statement.value, cst.SimpleString):
                draft.replace(statement.value, '"0"')
        if draft.changed or any(_may_set(draft, node) for node in draft.nodes(cst.BaseExpression)):  # type: ignore[type-abstract]
            return drafts.edit(text) or Advice(text, "the script sets it in a way that was not understood")
    return Variable({_BLOCKING: "0"})


def _may_set(draft: Draft, node: cst.BaseExpression) -> bool:
    """Whether the code may set the variable there, or asks for it: a comment or a docstring that names it does not."""
    if isinstance(node, (cst.SimpleString, cst.FormattedString)):
        return _BLOCKING in draft.code(node) and not isinstance(draft.parent(node), cst.Expr)
    return isinstance(node, cst.Name) and node.value == _BLOCKING
