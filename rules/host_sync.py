"""The script reads a value back from the GPU in every step, and waits for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import takewhile
from typing import TYPE_CHECKING

import libcst as cst
import libcst.matchers as m

from advisor.edit import Draft, Drafts
from advisor.edit.calls import call_method
from advisor.edit.locate import call_at
from advisor.edit.names import last_part
from advisor.edit.scopes import assignments, scope_of
from advisor.evidence import Change
from advisor.fixes import edited
from advisor.rule import Advice, Argument, Example, Finding, Gain, Rule, Safety, at, call_sites, site_list, sites

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence
    from advisor.harness.layout import CallSite

_SCALER = "torch.amp.grad_scaler"
_FUSED = ("Adam", "AdamW", "SGD", "Adagrad")  # those of torch.optim that take fused=True
_BESIDE_SCALER = "prior: the model of a step without GradScaler's own reading, which stays, and hides some of the gain"

# What reads values for a purpose of its own, by its module's name, and what makes it stop.
_OWN = {
    _SCALER: "pass fused=True to the optimizer, which then looks for infinities on the GPU itself",
    "torch.distributions": "pass validate_args=False to the distribution, or call "
    "torch.distributions.Distribution.set_default_validate_args(False) once",
    "transformers.trainer": "pass TrainingArguments(logging_nan_inf_filter=False)",
}

_LEAST_WAIT = 0.02  # of the step: a step that waits less gains nothing that could be measured
# Seconds of the host to read a value that is there already (0-dim .item() beside an H200, torch 2.11: 10.8 us; to keep
# the tensor in a list instead: 1.1).
_READ_S = 9.7e-6
_KINDS = ("Tensor.item", "Tensor.cpu", "Tensor.numpy", "Tensor.tolist", "Tensor.print", "synchronize")


class HostSync(Rule):
    """A value is read from the GPU in every step, so the script waits until the GPU has done all its work.

    ``loss.item()``, ``.cpu()``, ``.tolist()``, ``print(loss)`` and ``if loss > x`` need the number, and the number is
    there only when everything launched before it has finished. Meanwhile the script launches nothing, and then the
    GPU waits for the next launches. Sums can stay on the GPU (``total += loss.detach().double()``) and be read where
    they are printed; values for a log can be collected as tensors and read every hundred steps.

    When not: the value decides what the next step does (early stopping, gradient scaling by hand, sampling a token);
    the GPU is busy all the time anyway, because the launches are far ahead again soon.

    Source: PyTorch performance tuning guide, "Avoid unnecessary CPU-GPU synchronization".
    """

    id = "host-sync"
    title = "Do not read values back in every step"
    safety = Safety.EXACT

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        if not evidence.device_is_gpu:
            return
        places = tuple(
            each
            for each in call_sites(evidence, *_KINDS)
            if each.kind == "synchronize" or each.details.get("device", each.details.get("from_device")) == "cuda"
        )
        rows = [row for row in evidence.syncs if row.cause == "item" or (row.cause != "copy" and row.sites)]
        if evidence.record is None and len(evidence.steps) > 1:
            # torch.cuda.synchronize(); a single one is the profiler's own, at the end of its window.
            rows += [row for row in evidence.syncs if row.cause == "explicit" and row.count >= 1]
        # A copy to the GPU waits, too, but for nothing that is read: copy-pinned-async has it.
        back = [row for row in evidence.syncs if row.cause == "copy" and row.direction != "HtoD"]
        rows += [row for row in back if any(site.kind in _KINDS for site in row.sites)]
        scaled = _scaler_reads_on(evidence, places)
        places = tuple(each for each in places if each not in scaled)
        if not rows or (evidence.record is not None and not places):
            return
        # No more can go than the host was seen to wait, and what it takes to read a value that is there.
        reads = sum(row.count for row in rows if row.direction == "DtoH") - sum(each.calls_per_step for each in scaled)
        reading_s = max(0.0, reads) * _READ_S
        waiting_s = sum(row.total_s for row in rows)
        if waiting_s + reading_s * evidence.inflation < _LEAST_WAIT * (evidence.trace_step_s or 0.0):
            return
        syncs = [row.index for row in rows]
        estimate = evidence.what_if(Change(remove_syncs=syncs))
        # All of a read goes, and the synchronization is a part of it.
        rest_s = reading_s - (estimate.before - estimate.likely)
        if rest_s > 0.0:
            estimate = evidence.what_if(Change(remove_syncs=syncs, remove_host_s=rest_s))
        gain = Gain.prior(estimate, _BESIDE_SCALER) if scaled else Gain.of(estimate)
        if not gain.worth_it:
            return
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"Each step waits for the GPU {sum(row.count for row in rows):.0f} time(s), "
            f"{sum(row.wait_s for row in rows) * 1e3:.2f} ms in all"
            + (f", and reading takes the host {reading_s * 1e3:.1f} ms" if reading_s > 0.5 * waiting_s else "")
            + (f", at {', '.join(at(each.site) for each in places[:4])}." if places else "."),
            gain=gain,
            evidence={
                "syncs_per_step": sum(row.count for row in rows),
                "sync_wait_s": sum(row.wait_s for row in rows),
                "step_s": evidence.step_s,
            },
            site=places[0].site if places else None,
            parameters={
                "syncs": sites(tuple(each for each in places if not _reader(each))),
                "inside": {at(each.site): reader for each in places if (reader := _reader(each))},
            },
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        found = site_list(finding, "syncs")
        inside = finding.parameters.get("inside")
        inside = inside if isinstance(inside, dict) else {}
        where = ", ".join(dict.fromkeys(at(site) for site in found)) or "your script"
        text = (
            f"Do not read values from the GPU in every step at {where}: sum or collect tensors (x.detach()), and call "
            ".item() where they are printed, every 50 steps or once an epoch. torch.cuda.synchronize() belongs in "
            "benchmarks only."
        )
        if inside:
            others = "; ".join(f"at {place} {_OWN[reader]}" for place, reader in inside.items())
            text = f"{text} And {others}." if found else f"{others[0].upper()}{others[1:]}."
            return Advice(text, "it is a library that reads the value")
        if not found:
            return Advice(text, "the places are unknown")
        drafts = Drafts(sources)
        for site in found:
            draft = drafts[site.file]
            call = call_at(draft, site, ("item",))
            if call is None or not _keep_on_device(draft, call):
                return Advice(text, f"what is done with the value at {at(site)} may need the number itself")
        return edited(drafts, text, f"Sum the values of {where} on the GPU; they are read where they are printed.")

    EXAMPLES = (
        Example(
            before="""
seen = 0
for x in loader:
    seen += mask(x).sum().item()  # <- syncs
print("{} of them: {}".format(len(loader), "%d" % seen))
print(f"{seen:,}")
""",
            after="""
seen = 0
for x in loader:
    seen += mask(x).sum().detach()
print("{} of them: {}".format(len(loader), "%d" % seen))
print(f"{seen:,}")
""",
        ),
        Example(  # a number of hits, which is shown as one
            before="""
hits = 0
for x, y in loader:
    hits += (model(x).argmax(1) == y).sum().item()  # <- syncs=(model(x).argmax(1) == y).sum().item()
print(f"{hits:5d} right")
""",
            after="""
hits = 0
for x, y in loader:
    hits += (model(x).argmax(1) == y).sum().detach()
print(f"{hits:5d} right")
""",
        ),
        Example(
            before="""
def train(loader):
    running_loss = 0.0
    for i, (x, y) in enumerate(loader):
        loss = step(x, y)
        running_loss += loss.item()  # for the log  # <- syncs
        if i % 100 == 99:
            print(f"{i}: {running_loss / 100:.3f}")
            running_loss = 0.0
""",
            after="""
def train(loader):
    running_loss = 0.0
    for i, (x, y) in enumerate(loader):
        loss = step(x, y)
        running_loss += loss.detach().double()  # for the log
        if i % 100 == 99:
            print(f"{i}: {running_loss / 100:.3f}")
            running_loss = 0.0
""",
        ),
        *(
            Example(  # Python's floats, however they are shown
                before=f"total = {start}\nfor x in xs:\n    total += f(x).item()  # <- syncs=f(x).item()\n"
                f'print(f"{{{shown}}}")\n',
                after=f'total = {start}\nfor x in xs:\n    total += f(x).detach().double()\nprint(f"{{{shown}}}")\n',
            )
            for start, shown in (
                ("0.0", "total / 100:.4"),
                ("0", "total:8.4"),
                ("0", "total:.{digits}"),
                ("0", "total / 100:>8"),
                ("0.0", "total:>8"),
            )
        ),
        Example(  # a sum of means, shown without a precision
            before="""
right = 0
for x, y in loader:
    right += (model(x).argmax(1) == y).float().mean().item()  # <- syncs=(model(x).argmax(1) == y).float().mean().item()
print(f"{right:10}")
""",
            after="""
right = 0
for x, y in loader:
    right += (model(x).argmax(1) == y).float().mean().detach().double()
print(f"{right:10}")
""",
        ),
        Example(
            before="""
total = 0
for x, y in loader:
    total += criterion(model(x), y).item() * x.size(0)  # <- syncs=criterion(model(x), y).item()
print("loss %.4f" % (total / len(dataset)))
""",
            after="""
total = 0
for x, y in loader:
    total += criterion(model(x), y).detach().double() * x.size(0)
print("loss %.4f" % (total / len(dataset)))
""",
        ),
    )
    LEAVES_ALONE = (
        Example(  # formatting reads it in each round
            'total = 0.0\nfor x in xs:\n    total += f(x).item()  # <- syncs=f(x).item()\n    print(f"{total:.3f}")\n',
            "",
        ),
        Example("for x in xs:\n    losses.append(step(x).item())  # <- syncs=step(x).item()\n", ""),
        Example(
            "def f():\n    t = 0\n    for x in xs:\n        t += g(x).item()  # <- syncs=g(x).item()\n    return t\n",
            "",
        ),
        Example("t = 0\nfor x in xs:\n    t += y.item()  # <- syncs\n    if t > 3:\n        break\n", ""),
        Example("for x in xs:\n    if loss.item() > 3:  # <- syncs\n        break\n", ""),
        *(
            Example(f"t = 0.0\nfor x in xs:\n    t += y.item()  # <- syncs\nprint({shown})\n", "")
            for shown in ("'epoch %d loss %s' % (e, t / n)", "'loss %r' % t", "f'{t / n!r:>9}'", "'%*.3f' % (9, t)")
        ),
    )


def _reader(place: CallSite) -> str:
    """Which of _OWN reads the value at `place`; "" where the script does, or a library for it (a log, a metric)."""
    module = str(place.details.get("inside", ""))
    return next((name for name in _OWN if module == name or module.startswith(name + ".")), "")


def _scaler_reads_on(evidence: Evidence, places: tuple[CallSite, ...]) -> tuple[CallSite, ...]:
    """Those of the places where a GradScaler reads, if no optimizer could be fused so that it need not."""
    stepping = [each for each in evidence.record.optimizers if each.steps] if evidence.record is not None else []
    if not stepping or any(each.cls in _FUSED and each.written is None for each in stepping):
        return ()
    return tuple(each for each in places if _reader(each) == _SCALER)


_NO_COUNT = re.compile(r"(?i)^(mean|norm|std|var)$|loss$|criterion$|cross_entropy$")
_NUMBER = m.Integer() | m.Float()
_FORMATTED = m.FormattedStringExpression(format_spec=m.MatchIfTrue(bool), conversion=None)
_TEXT = m.SimpleString() | m.ConcatenatedString() | m.FormattedString()
_CONVERSION = re.compile(r"%[-#0 +]*[\d*]*(?:\.[\d*]+)?[hlL]?[a-zA-Z]")  # of the % operator, without a mapping's key
_AS_NUMBERS = "dieEfFgG"
_READ = m.Call(func=m.Name("float")) | m.Call(func=m.Attribute(attr=m.Name("item")))


def _keep_on_device(draft: Draft, call: cst.Call) -> bool:
    """Have ``total += x.item()`` keep a tensor, where all that happens to `total` else is to be formatted or reset."""
    statement = draft.statement(call)
    if not m.matches(statement or call, m.SimpleStatementLine([m.AugAssign(m.Name(), m.AddAssign())])):
        return False
    update = cst.ensure_type(cst.ensure_type(statement or call, cst.SimpleStatementLine).body[0], cst.AugAssign)
    name, scope = cst.ensure_type(update.target, cst.Name).value, scope_of(draft, call)
    func = cst.ensure_type(call.func, cst.Attribute)
    if not _linear(draft, call, update):
        return False
    uses = [use for use in draft.nodes(cst.Name, scope) if use.value == name and use is not update.target]
    if not all(_harmless(draft, use) for use in uses) or any(_read_at_once(draft, update, use) for use in uses):
        return False
    draft.change(func.attr, lambda _: cst.Name("detach"))
    starts_as_float = any(isinstance(each, cst.Float) for each in assignments(draft, name, scope))
    if starts_as_float or _is_mean(func.value) or not any(_shown_as_whole(draft, use) for use in uses):
        # What the script sums are Python's floats: in float32 a long sum would differ from the fourth digit on.
        call_method(draft, call, "double")
    return True


def _read_at_once(draft: Draft, update: cst.AugAssign, use: cst.Name) -> bool:
    """Whether a use is in each round that has the update: formatting a tensor waits for it as well."""
    loop, above = draft.loop(update), draft.parent(use)
    if loop is None or draft.loop(use) is not loop or isinstance(above, (cst.AssignTarget, cst.AugAssign)):
        return False
    inside = takewhile(lambda each: each is not loop, draft.ancestors(use))
    return not any(isinstance(each, (cst.If, cst.IfExp)) for each in inside)


def _is_mean(value: cst.BaseExpression) -> bool:
    """Whether what is read is no whole number, by the call that gives it: a mean, a norm, a loss."""
    return isinstance(value, cst.Call) and bool(_NO_COUNT.search(last_part(value.func)))


def _shown_as_whole(draft: Draft, use: cst.Name) -> bool:
    """Whether it may be a whole number, by how it is formatted: ``{hits:5d}``, ``{hits:,}``, and not ``{loss:.3f}``.

    None has a precision, ``{loss:.4}``; and what is divided, ``{hits / n:8}``, is none any more when it is shown.
    """
    for above in draft.ancestors(use):
        if m.matches(above, m.BinaryOperation(operator=m.Divide())):
            return False
        if isinstance(above, cst.FormattedStringExpression) and above.format_spec:
            said = "".join(part.value for part in above.format_spec if isinstance(part, cst.FormattedStringText))
            return "." not in said and not said.endswith(tuple("eEfFgG%"))
    return False


def _linear(draft: Draft, call: cst.Call, update: cst.AugAssign) -> bool:
    """Whether the value is used as it is, or multiplied or divided: all of which tensors do alike."""
    node: cst.CSTNode = call
    while node is not update.value:
        above = draft.parent(node)
        if above is None or not m.matches(above, m.BinaryOperation(operator=m.Multiply() | m.Divide())):
            return False
        node = above
    return True


def _shown_as_number(draft: Draft, formatting: cst.BinaryOperation, use: cst.Name) -> bool:
    """Whether ``text % values`` shows `use` as it does a number: by ``%s`` and ``%r`` it would be a tensor."""
    values = formatting.right.elements if isinstance(formatting.right, cst.Tuple) else ()
    place = next((i for i, each in enumerate(values) if use in draft.nodes(cst.Name, each)), 0)
    told = _CONVERSION.findall(draft.code(formatting.left).replace("%%", ""))
    return place < len(told) and "*" not in "".join(told) and told[place][-1] in _AS_NUMBERS


def _harmless(draft: Draft, use: cst.Name) -> bool:
    above = draft.parent(use)
    if isinstance(above, cst.AssignTarget):
        return m.matches(draft.parent(above) or above, m.Assign(value=_NUMBER))
    if isinstance(above, cst.AugAssign) and above.target is use:
        return m.matches(above, m.AugAssign(operator=m.AddAssign()))
    for node in draft.ancestors(use):
        if m.matches(node, _FORMATTED | _READ):
            return True
        if isinstance(node, cst.BinaryOperation):
            if m.matches(node, m.BinaryOperation(left=_TEXT, operator=m.Modulo())):
                return _shown_as_number(draft, node, use)
        elif not isinstance(node, (cst.Tuple, cst.Element)):
            return False
    return False
