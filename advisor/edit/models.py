"""Where a script has its model ready: the statement to put a change of the model behind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import libcst as cst
import libcst.matchers as m
from libcst.helpers import get_full_name_for_node

from advisor.edit.callers import calls_of
from advisor.edit.dataflow import targets_of
from advisor.edit.draft import Draft, Drafts, Statement
from advisor.edit.locate import call_at, outermost_at
from advisor.edit.modules import TooManyFilesError
from advisor.edit.names import plain_name
from advisor.edit.scopes import assignments, scope_of
from advisor.edit.sums import elements, root
from advisor.harness.layout import Site

# Methods that return the module itself and so may stand between it and the name it is given.
_CHAIN = ("to", "cuda", "cpu", "eval", "train", "half", "float", "double", "bfloat16", "requires_grad_")


_FACTORIES = 3  # functions that hand a module on, from where it is made to where it gets its name


@dataclass(frozen=True)
class Binding:
    """``name`` (``model``, ``self.net``) holds the model once ``statement`` has run; ``moved`` is the call that put it
    on its device there, when there is one."""

    draft: Draft
    name: str
    statement: Statement
    moved: cst.Call | None = None


def model_name(draft: Draft, forward: cst.Call) -> str:
    """What the script calls the model where it is called: ``model(x)`` → ``model``; empty for other expressions."""
    return plain_name(forward.func)


def binding(
    drafts: Drafts, forwards: Sequence[Site], moves: Sequence[Site], optimizers: Sequence[Site]
) -> Binding | None:
    """The last statement that makes or moves the model that is called at `forwards`.

    `moves` are sites of ``Module.to``, ``.cuda``, ``.eval``; `optimizers` of optimizers, whose
    ``model.parameters()`` names it. None when the places contradict each other, or several models are called.
    """
    called = {name for site in forwards for name in [_called(drafts, site)]}
    if len(called) != 1 or "" in called:
        return None
    last_part = called.pop().rpartition(".")[2]
    candidates = [
        each
        for each in (*_moved(drafts, moves, forwards), *_optimized(drafts, optimizers))
        if each.name.rpartition(".")[2] == last_part and not _behind(drafts, forwards, each)
    ]
    candidates = candidates or list(_assigned(drafts, forwards, last_part))
    if not candidates:
        candidates = [each for each in _optimized(drafts, optimizers) if not _is_part(each)]
        candidates = candidates if len({(id(each.draft), each.name) for each in candidates}) == 1 else []
    if not candidates or len({id(each.draft) for each in candidates}) != 1:
        return None
    scopes = {id(scope_of(each.draft, each.statement)) for each in candidates}
    if len(scopes) != 1:
        return None
    moved = [each for each in candidates if each.moved is not None]
    return max(moved or candidates, key=lambda each: each.draft.line(each.statement))


def made_once(draft: Draft, func: cst.BaseExpression) -> cst.Call | None:
    """The call that makes what a name or ``self.name`` is, where the file assigns it once."""
    name = get_full_name_for_node(func) or ""
    if not isinstance(func, (cst.Name, cst.Attribute)) or (isinstance(func, cst.Attribute) and name[:5] != "self."):
        return None
    target = assigned_once(draft, name)
    statement = draft.parent(target) if target is not None else None
    value = statement.value if isinstance(statement, cst.Assign) else None
    return value if isinstance(value, cst.Call) else None


def assigned_once(draft: Draft, name: str) -> cst.AssignTarget | None:
    """The one place where the file assigns to a name or ``self.name``."""
    targets = [each for each in draft.nodes(cst.AssignTarget) if get_full_name_for_node(each.target) == name]
    return targets[0] if len(targets) == 1 else None


def made_at(drafts: Drafts, site: Site) -> Binding | None:
    """The statement that gives the module made at `site` its name: there, or where the one call of its factory is.

    ``model = Net()``, ``self.net = Net().to(device)``; ``return Net()`` in a function that is called once, in ``model =
    load()``. None for anything else, and for what is made in a loop.
    """
    draft = drafts[site.file]
    call = call_at(draft, site)
    for _ in range(_FACTORIES):
        statement = draft.statement(call) if call is not None else None
        if call is None or statement is None or draft.loop(call) is not None:
            return None
        name = _bound_to(draft, statement, call)
        if name:
            return Binding(draft, name, statement)
        factory = draft.function(call)
        if factory is None or not isinstance(statement, cst.SimpleStatementLine):
            return None
        returned = statement.body[0]
        if not isinstance(returned, cst.Return) or returned.value is None or not _through(returned.value, call):
            return None
        found = _one_call(drafts, draft, factory)
        if found is None:
            return None
        draft, call = found
    return None


def _one_call(drafts: Drafts, draft: Draft, function: cst.FunctionDef) -> tuple[Draft, cst.Call] | None:
    """The one call of a function in all of the script's modules."""
    try:
        calls = calls_of(drafts, draft, function)
    except TooManyFilesError:
        return None
    return calls[0] if calls is not None and len(calls) == 1 else None


def put_together(bound: Binding) -> Binding:
    """The same, once the model has all of its parts: behind an ``if`` of which each branch makes one, and behind the
    last statement of its block that gives it another part (``model.fc = nn.Linear(512, 10)``) before it is called."""
    draft, statement = bound.draft, bound.statement
    while (whole := _choice(draft, statement)) is not None and _always_gives(draft, whole, bound.name):
        statement = whole
    siblings = draft.siblings(statement)
    for each in siblings[siblings.index(statement) + 1 :]:
        if any(plain_name(call.func) == bound.name for call in draft.nodes(cst.Call, each)):
            break
        targets = (element for target in targets_of(draft, each) for element in elements(target))
        if any(plain_name(root(target)).startswith(f"{bound.name}.") for target in targets):
            statement = each
    return replace(bound, statement=statement)


def _choice(draft: Draft, statement: Statement) -> cst.If | None:
    """The whole ``if … elif … else`` that a statement is in a branch of."""
    above = draft.parent(draft.parent(statement) or statement)
    above = draft.parent(above) if isinstance(above, cst.Else) else above
    while isinstance(above, cst.If) and isinstance(outer := draft.parent(above), cst.If) and outer.orelse is above:
        above = outer
    return above if isinstance(above, cst.If) else None


def _always_gives(draft: Draft, choice: cst.If, name: str) -> bool:
    """Whether each branch gives `name` a value, whichever is taken."""
    branch: cst.If | cst.Else | None = choice
    while branch is not None:
        targets = (element for target in targets_of(draft, branch.body) for element in elements(target))
        if not any(plain_name(each) == name for each in targets):
            return False
        if isinstance(branch, cst.Else):
            return True
        branch = branch.orelse
    return False


def _called(drafts: Drafts, site: Site) -> str:
    draft = drafts[site.file]
    call = call_at(draft, site)
    return model_name(draft, call) if call is not None else ""


def _moved(drafts: Drafts, moves: Sequence[Site], forwards: Sequence[Site]) -> Iterator[Binding]:
    for site in moves:
        draft = drafts[site.file]
        call = call_at(draft, site, _CHAIN)
        statement = draft.statement(call) if call is not None else None
        if call is None or statement is None or draft.loop(call) is not None:
            continue
        name = _bound_to(draft, statement, call)
        if name and not _only_switches(draft, name, statement, call, forwards):
            yield Binding(draft, name, statement, call)


def _only_switches(draft: Draft, name: str, statement: Statement, call: cst.Call, forwards: Sequence[Site]) -> bool:
    """Whether it is the ``model.eval()`` of a function that gets its model from elsewhere: an evaluation's, say.

    Not one that has the recorded forward in it, which is what the model is for.
    """
    scope = scope_of(draft, statement)
    if not isinstance(scope, cst.FunctionDef) or not m.matches(call.func, m.Attribute(attr=m.Name("eval"))):
        return False
    own = [call_at(draft, site) for site in forwards if site.file == draft.source.path]
    if any(each is not None and scope_of(draft, each) is scope for each in own):
        return False
    targets = [each for whole in targets_of(draft, scope) for each in elements(whole)]
    return not any(get_full_name_for_node(each) == name for each in targets)


def _behind(drafts: Drafts, forwards: Sequence[Site], found: Binding) -> bool:
    """Whether it is behind a forward in the same function: ``model.eval()`` once the training is over."""
    draft, scope = found.draft, scope_of(found.draft, found.statement)
    calls = [call_at(draft, site) for site in forwards if drafts[site.file] is draft]
    same = [each for each in calls if each is not None and scope_of(draft, each) is scope]
    return any(draft.line(each) < draft.line(found.statement) for each in same)


def _is_part(found: Binding) -> bool:
    """Whether a model is known by a name that the script calls, or hands on, something larger by: ``net.head``."""
    whole = found.name.rpartition(".")[0]
    used = [each.func for each in found.draft.nodes(cst.Call)]
    used += [each.value for each in found.draft.nodes(cst.Arg)]
    return whole not in ("", "self") and any(get_full_name_for_node(each) == whole for each in used)


def _pairs(
    target: cst.BaseExpression, value: cst.BaseExpression
) -> list[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """What an assignment gives to what: ``a, b = x, y`` gives x to a, and y to b."""
    if isinstance(target, (cst.Tuple, cst.List)) and isinstance(value, (cst.Tuple, cst.List)):
        starred = any(isinstance(each, cst.StarredElement) for each in (*target.elements, *value.elements))
        if not starred and len(target.elements) == len(value.elements):
            return [(each.value, given.value) for each, given in zip(target.elements, value.elements, strict=True)]
    return [(target, value)]


def _bound_to(draft: Draft, statement: Statement, call: cst.Call) -> str:
    """The name that holds the module: of the assignment, else of the object of a statement ``model.to(…)``."""
    if not isinstance(statement, cst.SimpleStatementLine):
        return ""
    small = statement.body[0]
    if isinstance(small, cst.AnnAssign) and small.value is not None and _through(small.value, call):
        return plain_name(small.target)
    if isinstance(small, cst.Assign) and len(small.targets) == 1:
        for target, given in _pairs(small.targets[0].target, small.value):
            if _through(given, call):
                return plain_name(target)
    if isinstance(small, cst.Expr) and _through(small.value, call) and isinstance(call.func, cst.Attribute):
        value: cst.BaseExpression = call.func.value
        while isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute) and value.func.attr.value in _CHAIN:
            value = value.func.value
        return plain_name(value)
    return ""


def _through(value: cst.BaseExpression, call: cst.Call) -> bool:
    """Whether `value` is the call, or it with methods behind it that return the module."""
    while value is not call:
        if not (isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute)):
            return False
        if value.func.attr.value not in _CHAIN:
            return False
        value = value.func.value
    return True


def _optimized(drafts: Drafts, optimizers: Sequence[Site]) -> Iterator[Binding]:
    """The statement before which a model is ready because an optimizer takes ``model.parameters()``."""
    for site in optimizers:
        draft = drafts[site.file]
        call = outermost_at(draft, site)
        statement = draft.statement(call) if call is not None else None
        if call is None or not isinstance(statement, cst.SimpleStatementLine) or not call.args:
            continue
        if isinstance(statement.body[0], cst.Return):
            continue  # nothing can follow it
        first = call.args[0].value
        if (
            isinstance(first, cst.Call)
            and isinstance(first.func, cst.Attribute)
            and first.func.attr.value == "parameters"
        ):
            name = plain_name(first.func.value)
            if name:
                yield Binding(draft, name, statement)


def _assigned(drafts: Drafts, forwards: Sequence[Site], name: str) -> Iterator[Binding]:
    """A plain ``model = Net()``, the only one in the scope of the call or of its module; ``self.net = net`` alike."""
    draft = drafts[forwards[0].file]
    call = call_at(draft, forwards[0])
    if call is not None and get_full_name_for_node(call.func) == f"self.{name}":
        yield from _own(draft, call, name)
    if call is None or not isinstance(call.func, cst.Name):
        return
    for scope in dict.fromkeys((scope_of(draft, call), draft.module)):
        values = list(assignments(draft, name, scope))
        if len(values) == 1 and isinstance(values[0], cst.Call):
            statement = draft.statement(values[0])
            if statement is not None and draft.loop(statement) is None:
                yield Binding(draft, name, statement)
            return


def _own(draft: Draft, call: cst.Call, name: str) -> Iterator[Binding]:
    """The one place of the file where a class gets its ``self.net``."""
    target = assigned_once(draft, f"self.{name}")
    statement = draft.statement(target) if target is not None else None
    assign = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    if statement is None or not isinstance(assign, cst.Assign) or draft.loop(statement) is not None:
        return
    given = isinstance(assign.value, (cst.Call, cst.Name)) and draft.code(assign.value) != "None"
    if given and draft.enclosing_class(statement) is draft.enclosing_class(call):
        yield Binding(draft, f"self.{name}", statement)
