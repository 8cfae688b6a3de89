"""Debug modes switched off in the source: each of these says why an edit was not made, or ""."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

import libcst as cst
import libcst.matchers as m

from advisor.edit.calls import argument, unpacked
from advisor.edit.draft import Draft, Drafts, Statement
from advisor.edit.locate import call_at, last_name
from advisor.edit.names import ensure_name, full_name
from advisor.edit.origins.values import EDITED, give, give_setting
from advisor.edit.scopes import is_literal, string_value
from advisor.harness.layout import Site

SwitchOff = Callable[[Drafts, Draft, cst.Call | None], str]
# What a script asks its profiler, to print or to see it: without a profiler it goes. What is written to a file may be
# read later.
_OF_PROFILERS = ("step", "key_averages", "table", "total_average", "events")
_WRITES = ("on_trace_ready", "execution_trace_observer")
_FAILS = re.compile(r"\b(RuntimeError|Exception)\b")  # what anomaly detection raises, and what catches it
_LOGGERS = ("log", "logger", "logging", "_log", "_logger", "LOG", "LOGGER")
_LEVELS = ("debug", "info", "warning")


def edit_each(drafts: Drafts, found: Iterable[Site], names: tuple[str, ...], edit: SwitchOff) -> str:
    """`edit` the call of one of `names` at each site; the first reason why not."""
    for site in found:
        why = edit(drafts, drafts[site.file], call_at(drafts[site.file], site, names))
        if why:
            return why
    return ""


def without_anomaly_detection(drafts: Drafts, draft: Draft, call: cst.Call | None) -> str:
    """Switch off what ``detect_anomaly`` or ``set_detect_anomaly`` switches on; with no call a Trainer's argument."""
    if call is None:
        calls = draft.nodes(cst.Call)
        trainers = [each for each in calls if argument(each, "detect_anomaly") is not None]
        trainers = trainers or [each for each in calls if last_name(draft, each) == "Trainer" and unpacked(each)]
        if (
            len(trainers) == 1
            and give(drafts, draft, trainers[0], "detect_anomaly", "False", (), True, alone=True) == EDITED
        ):
            return ""
        if _told_by_name(drafts, draft):
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


def _told_by_name(drafts: Drafts, draft: Draft) -> bool:
    """Have the setting say False by whose name a table of functions calls ``set_detect_anomaly``."""
    names = [
        string_value(each.key)
        for each in draft.nodes(cst.DictElement)
        if full_name(draft, each.value).rpartition(".")[2] == "set_detect_anomaly" and string_value(each.key)
    ]
    return len(names) == 1 and give_setting(drafts, names[0], "False", True)


def skips_what_fails(draft: Draft) -> bool:
    """Whether the file goes on where a backward raises, as anomaly detection has it do at a NaN (RuntimeError)."""
    functions, before = {"backward"}, 0
    while len(functions) > before:
        before = len(functions)
        functions |= {each.name.value for each in draft.nodes(cst.FunctionDef) if _calls(draft, each) & functions}
    repeated = {last_name(draft, each) for each in draft.nodes(cst.Call) if draft.loop(each) is not None}
    blocks: list[cst.Try | cst.With] = [*draft.nodes(cst.Try), *draft.nodes(cst.With)]
    for block in blocks:
        function = draft.function(block)
        if draft.loop(block) is None and (function is None or function.name.value not in repeated):
            continue  # around all the steps: the first that fails ends them
        if _calls(draft, block.body) & functions and any(_FAILS.search(each) for each in _passed_over(draft, block)):
            return True
    return False


def _passed_over(draft: Draft, block: cst.Try | cst.With) -> Iterator[str]:
    """The errors, as code, behind which a script goes on."""
    if isinstance(block, cst.With):
        for item in block.items:
            if isinstance(item.item, cst.Call) and full_name(draft, item.item.func) == "contextlib.suppress":
                yield draft.code(item.item)
        return
    for handler in block.handlers:
        if not draft.nodes(cst.Raise, handler):
            yield draft.code(handler.type) if handler.type is not None else "Exception"


def _calls(draft: Draft, node: cst.CSTNode) -> set[str]:
    return {last_name(draft, each) for each in draft.nodes(cst.Call, node)}


def without_statement(drafts: Drafts, draft: Draft, call: cst.Call | None) -> str:
    """Take out a call that is a statement, or all that an ``assert`` asks."""
    statement = draft.statement(call) if call is not None else None
    if isinstance(statement, cst.SimpleStatementLine):
        (small,) = statement.body
        plain = isinstance(small, cst.Expr) and small.value is call
        if plain or (isinstance(small, cst.Assert) and small.test is call):
            draft.remove(statement)
            return ""
    return "the script uses what it returns"


def without_profiler(drafts: Drafts, draft: Draft, call: cst.Call | None) -> str:
    """Take out a profiler that a ``with`` enters, and what only shows what it has seen."""
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


def without_filling(drafts: Drafts, draft: Draft, call: cst.Call | None) -> str:
    """Keep deterministic algorithms, without filling fresh memory with NaN."""
    statement = draft.statement(call) if call is not None else None
    if not isinstance(statement, cst.SimpleStatementLine) or not m.matches(statement.body[0], m.Expr()):
        return "the call is no statement of its own"
    module = ensure_name(draft, "torch.utils.deterministic")
    draft.insert_after(statement, f"{module}.fill_uninitialized_memory = False")
    return ""
