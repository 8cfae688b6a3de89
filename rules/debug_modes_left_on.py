"""A debug mode that was switched on once is still on, in every step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import libcst as cst

from advisor.edit import Draft, Drafts
from advisor.edit.debugging import (
    edit_each,
    skips_what_fails,
    without_anomaly_detection,
    without_filling,
    without_profiler,
    without_statement,
)
from advisor.evidence import Change
from advisor.evidence.debugging import blocked_launches_s, filled_memory_s, nan_checks_s
from advisor.fixes import edited
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

# Of a step, what goes at most: anomaly detection made the steps of six scripts 2.5 to 12 times as long. Where the
# tracebacks alone are nearly all of it, the window that they were taken in was rather a slower one.
_MOST_OF_STEP, _MOST_OF_SLOWER, _MOST_WRITTEN = 0.92, 0.75, 0.95
# What anomaly detection costs beside the tracebacks themselves (keeping them, linking nodes to their parents, freeing
# it all), over their own time: 1.01 to 1.04 in chains of 20 and 100 layers under 5 and 40 frames, 1.00, 1.02 and 1.07
# in three scripts, torch 2.14; 1.25 and more in the 73 nodes of fixtures/planted/anomaly_left_on with torch 2.15.
_KEEPING = 1.05
_BLOCKING = "CUDA_LAUNCH_BLOCKING"
# CPU time that a profiler without a schedule takes to write down one operator, torch 2.15, one thread: 0.45 to 0.87 us
# in a network on a graph (0.8 ms a step, 434 operators), 2.0 there over 1500 steps in memory that is fresh, 0.9 to 1.4
# in 16 small layers, 0.26 to 0.39 in 80 products of 64 numbers without gradients; torch.autograd.profiler and
# torch.profiler cost the same.
_EVENT_S = 1.0e-6
_PROFILING = "prior: 1 us for each operator that a profiler writes down (three models on a CPU)"
_PROFILERS = ("profile", "emit_nvtx")


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
            why = edit_each(drafts, site_list(finding, "gradcheck"), ("gradcheck",), without_statement)
        elif site_list(finding, "profiler"):
            text = f"Take the profiler at {place} out, or give torch.profiler.profile a schedule of a few steps."
            why = edit_each(drafts, site_list(finding, "profiler"), _PROFILERS, without_profiler)
        elif site_list(finding, "deterministic"):
            text = f"Keep deterministic algorithms ({place}) but do not fill fresh memory with NaN."
            sites_of_fills = site_list(finding, "deterministic")
            why = edit_each(drafts, sites_of_fills, ("use_deterministic_algorithms",), without_filling)
        else:
            text = f"Switch anomaly detection off at {place}." if finding.site else "Switch anomaly detection off."
            found = site_list(finding, "anomaly")
            names = ("detect_anomaly", "set_detect_anomaly")
            why = edit_each(drafts, found, names, without_anomaly_detection)
            if not found:
                why = "the place that switches it on is unknown"
            if any(skips_what_fails(drafts[site.file]) for site in found):
                why = "the script catches the error that it raises at a NaN: test for one there yourself (isfinite)"
        if why:
            return Advice(text, why)
        return edited(drafts, text)

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
        *(
            Example(  # by whatever way
                "import contextlib\nimport torch\n\ntorch.autograd.set_detect_anomaly(True)  # <- anomaly\n\n"
                "def back(x):\n    model(x).backward()\n\ndef step(x):\n    back(x)\n    optimizer.step()\n\n"
                f"for x in loader:\n    {passes}",
                "",
            )
            for passes in (
                "with contextlib.suppress(RuntimeError):\n        step(x)\n",
                "try:\n        step(x)\n    except Exception:\n        skipped += 1\n",
            )
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
    most = step_s * (_MOST_OF_STEP if written <= _MOST_WRITTEN * step_s else _MOST_OF_SLOWER)
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
