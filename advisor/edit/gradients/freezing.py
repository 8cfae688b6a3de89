"""Weights that need no gradients, for good or of one loss, and what a script does that speaks against telling so."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import libcst as cst
import libcst.matchers as m

from advisor.edit.callers import given
from advisor.edit.draft import Draft, Drafts, Statement
from advisor.edit.gradients.asked_gradients import without_inputs
from advisor.edit.locate import call_at, last_name
from advisor.edit.models import Binding, assigned_once, made_at
from advisor.edit.names import full_name, last_part, plain_name
from advisor.edit.origins.values import EDITED, give_value
from advisor.edit.scopes import assignments, is_literal, is_parameter, is_target, variables
from advisor.harness.layout import Site

_CLIPS = re.compile(r"\bclip_grad_(norm|value)_\(|\bget_total_norm\(")
# What a script may do with gradients, or what would go wrong with weights that need none; by its text.
_SAYS = re.compile(r"\brequires_grad")
_NEEDS = (
    (re.compile(r"\.grad\b"), "reads gradients"),
    (re.compile(r"\bregister_(?:post_accumulate_grad_)?hook\("), "hooks gradients"),
    (_CLIPS, "clips gradients, maybe by these too"),
    (_SAYS, "says itself what needs gradients"),
    (re.compile(r"\badd_param_group\("), "gives its optimizer more to train later"),
    (re.compile(r"\bcheckpoint(_sequential)?\(|gradient_checkpointing"), "computes activations anew in the backward"),
    (re.compile(r"DistributedDataParallel|FullyShardedDataParallel|\bfully_shard\("), "trains with several processes"),
)
_WEIGHTS = ("parameters", "named_parameters")
_NUMBERS = ("sum", "len", "any", "all", "max", "min", "numel", "count_parameters")  # what makes a number of them
_FOR_EACH = "_foreach_"  # torch's operators over lists: in place, or as many tensors as they are given
_PASSES = ("list", "tuple", "zip", "enumerate", "map", "filter", "sorted", "next", "print", "parameters_to_vector")
_TURNS = ("backward", "step")  # calls that end one pass and begin the next
_READS = ("item", "detach", "data", "shape", "size", "dtype")  # what may be asked of a result that has no graph


@dataclass(frozen=True)
class Named:
    """A model by where it is made, where that is known, and by what a function in `file` calls it ("" for nothing)."""

    made: Site | None = None
    name: str = ""
    file: str = ""


def needed(drafts: Drafts, files: Sequence[str], *names: str, told: bool = False, clipped: str = "") -> str:
    """What the script does that needs gradients of all weights, as a clause; "" for nothing of the kind.

    With the `names` of a model, and of the part of it that is meant, what it says of other tensors' gradients is no
    matter: an image that is optimized, a student whose gradients are clipped. With `told`, nor is what it says of what
    needs gradients, and nor is that it clips those of the weights that the code `clipped` gives.
    """
    by_these = re.compile(rf"(?:{_CLIPS.pattern})\s*{re.escape(clipped)}\s*[,)]") if clipped else None
    for draft in (drafts[path] for path in dict.fromkeys(files)):
        said = without_inputs("\n".join(draft.lines)).split("\n")
        for pattern, what in _NEEDS:
            lines = [] if told and pattern is _SAYS else [*filter(pattern.search, said)]
            if pattern is _CLIPS and by_these is not None:
                lines = [each for each in lines if not by_these.search(each)]
            if any(_concerns(line, pattern, names, draft.lines) for line in lines):
                return f"the script {what}, in {os.path.basename(draft.source.path)}"
    return ""


def _concerns(line: str, pattern: re.Pattern[str], names: Sequence[str], lines: Sequence[str]) -> bool:
    """Whether what a line says may be about the model of one of the names; about any, where it has none.

    `lines` are those of its file.
    """
    if not all(names) or any(re.search(rf"\b{re.escape(name)}\b", line) for name in names or [""]):
        return True
    if len(names) > 1 and (pattern is _SAYS or not _of_another(line, lines)):  # of what has that part, maybe
        return True
    if pattern is _SAYS:
        return re.search("[Pp]aram", line) is not None
    return pattern is not _CLIPS or re.search(r"\w\.parameters\(", line) is None  # those of another model


def _of_another(line: str, lines: Sequence[str]) -> bool:
    """Whether a line is about the parameters of what its file gives a name: no function's parameter, no ``self``."""
    found = re.search(r"\b(\w+)\.(?:named_)?parameters\(", line)
    given = re.compile(rf"^\s*(?:\w+, *)*{found[1]}(?:, *\w+)* *=[^=]") if found is not None else None
    return given is not None and any(map(given.search, lines))


def freeze_made(drafts: Drafts, model: Named, files: Sequence[str], parts: Sequence[str] = ()) -> str:
    """Have a model, or its one of these `parts`, need no gradients from where it is made on; why not, as a clause."""
    if len(parts) > 1 or not all(name.isidentifier() for part in parts for name in part.split(".")):
        return "it is made of several parts of a model that is trained"
    bound = made_at(drafts, model.made) if model.made is not None else None
    if bound is None and not parts:
        bound = _assigned(drafts, model)
    member = _member(drafts, model, parts[0], files) if bound is None and parts else None
    if member is not None:
        if why := needed(drafts, files, "self", parts[0]):
            return why
        if line := _goes_on(member.draft, member.name):
            return f"line {line} hands it, a copy or a part of it on to what may be trained"
        member.draft.insert_after(member.statement, f"{member.name}.requires_grad_(False)")
        return ""
    if bound is None:
        return "where the script gives that model its name cannot be told from the source"
    # What is said of all of a model is said of its parts.
    names = [path.rpartition(".")[2] for path in (bound.name, *parts)]
    if why := needed(drafts, files, *names):
        told = not parts and not needed(drafts, files, *names, told=True) and tell_otherwise(drafts, files)
        return "" if told else why
    whole = ".".join((bound.name, *parts))
    if line := _goes_on(bound.draft, whole):
        return f"line {line} hands it, a copy or a part of it on to what may be trained"
    bound.draft.insert_after(bound.statement, f"{whole}.requires_grad_(False)")
    return ""


def _goes_on(draft: Draft, name: str) -> int | None:
    """The line where a model is copied, lends another one its part, or is given to an optimizer."""
    for node in (*draft.nodes(cst.Name), *draft.nodes(cst.Attribute)):
        if draft.code(node) != name:
            continue
        part, above = cast(cst.CSTNode, node), draft.parent(node)
        while isinstance(above, cst.Attribute) and above.value is part:
            part, above = above, draft.parent(above)
        call = draft.parent(above) if isinstance(above, cst.Arg) else None
        if isinstance(call, cst.Call) and full_name(draft, call.func) in ("copy.deepcopy", "copy.copy"):
            return draft.line(node)
        if isinstance(above, cst.Assign) and part is not node:  # student.stem = teacher.stem
            owners = [each.target.value for each in above.targets if isinstance(each.target, cst.Attribute)]
            if any(draft.code(each) != "self" for each in owners):
                return draft.line(node)
        calls = [each for each in draft.ancestors(node) if isinstance(each, cst.Call)]
        if any(full_name(draft, each.func).startswith("torch.optim.") for each in calls):
            return draft.line(node)
        weights = isinstance(above, cst.Call) and isinstance(part, cst.Attribute) and part.attr.value in _WEIGHTS
        for taking in (last_part(each.func) for each in calls if weights and each is not above):
            if taking in _NUMBERS or taking.startswith(_FOR_EACH):
                break
            if taking not in _PASSES:
                return draft.line(node)
    return None


def tell_otherwise(drafts: Drafts, files: Sequence[str]) -> bool:
    """Have the one ``requires_grad_(x)`` of the script say False, where the value True that was seen comes from."""
    found: list[tuple[Draft, cst.Call]] = []
    for draft in (drafts[path] for path in dict.fromkeys(files)):
        lines = {number for number, line in enumerate(draft.lines, 1) if _SAYS.search(line)}
        found += [(draft, call) for call in draft.nodes(cst.Call) if last_part(call.func) == "requires_grad_"]
        if len(lines) != sum(of is draft for of, _ in found):
            return False
    if len(found) != 1 or len(found[0][1].args) != 1 or is_literal(found[0][1].args[0].value):
        return False
    draft, call = found[0]
    value, loop, function = call.args[0].value, draft.loop(call), draft.function(call)
    weights = m.Call(m.Attribute(value=m.Name(), attr=m.Name("parameters")))
    if not isinstance(loop, cst.For) or not m.matches(loop.iter, weights):
        return False
    if not isinstance(value, cst.Name) or function is None:
        return False
    # A parameter that says this and nothing else, of a model that the function makes; one call says so.
    alone = len(variables(draft, value.value, function.body)) == 1 and is_parameter(function, value.value)
    model = cst.ensure_type(cst.ensure_type(cst.ensure_type(loop.iter, cst.Call).func, cst.Attribute).value, cst.Name)
    made = len(list(assignments(draft, model.value, function))) == 1
    passed = [value for _, value in given(drafts, draft, function, value.value) or () if value is not None]
    if not alone or not made or len(passed) != 1 or not m.matches(passed[0], m.Name("True")):
        return False
    return give_value(drafts, draft, value, "False", True) == EDITED


def freeze_around(drafts: Drafts, backward: Site, model: Named, parts: Sequence[str]) -> str:
    """Have a model, or one of its `parts`, need no gradients where the loss of `backward` is computed.

    From the first statement that calls it for that loss, to the statement of the backward. Why not, as a clause.
    """
    draft = drafts[backward.file]
    call = call_at(draft, backward, ("backward",))
    last = draft.statement(call) if call is not None else None
    if call is None or last is None:
        return "the backward call cannot be told from others of its line"
    bound = made_at(drafts, model.made) if model.made is not None else None
    name = parts[0] if len(parts) == 1 else "" if parts else model.name or (bound.name if bound is not None else "")
    name = name.rpartition(".")[2]
    if not name or name.isdigit():
        return "what the script calls that model is not known"
    before = draft.siblings(last)
    before = before[: before.index(last) + 1]
    turns = [index for index, each in enumerate(before[:-1]) if _calls(draft, each, _TURNS)]
    stretch = before[turns[-1] + 1 if turns else 0 :]
    calls = [(each, full) for each in stretch for full in _called(draft, each, name)]
    if not calls or len({full for _, full in calls}) != 1:
        return "where the model is called for that loss cannot be told from the source"
    first, full = calls[0]
    stretch = stretch[stretch.index(first) :]
    if any(each is not last and not _gives_names(draft, each) for each, _ in calls):
        return "what becomes of the model's outputs there cannot be told from the source"
    if _may_leave(draft, stretch, last):
        return "what is in between may leave out what would make them need gradients again"
    if used := _used_later(draft, stretch, last):
        return f"`{used}`, which is computed there, is used again later"
    draft.insert_before(first, f"{full}.requires_grad_(False)")
    draft.insert_after(last, f"{full}.requires_grad_(True)")
    return ""


def _may_leave(draft: Draft, stretch: Sequence[Statement], last: Statement) -> bool:
    """Whether the statement behind `last` may be left out, and the loop or its caller goes on: by an error, too."""
    leaves = [each for kind in (cst.Return, cst.Yield) for one in stretch for each in draft.nodes(kind, one)]
    around = draft.loop(last)
    turns = [each for kind in (cst.Break, cst.Continue) for one in stretch for each in draft.nodes(kind, one)]
    if leaves or any(draft.loop(each) is around for each in turns):
        return True
    for above in draft.ancestors(last):
        if isinstance(above, (cst.For, cst.While, cst.FunctionDef)):
            return False
        if isinstance(above, cst.Try) and above.handlers:
            return True
    return False


def detach_handed(drafts: Drafts, backward: Site, model: Named, files: Sequence[str]) -> str:
    """Have the loss of `backward` get what a model made without the way back to it. Why not, as a clause.

    Between the one statement ``made = model(...)`` and that of the backward, ``made`` is handed on as
    ``made.detach()``; behind it, it is what it was.
    """
    draft = drafts[backward.file]
    call = call_at(draft, backward, ("backward",))
    last = draft.statement(call) if call is not None else None
    name = model.name.rpartition(".")[2]
    if last is None or not name:
        return "what the script calls that model, and where it goes back, is not known"
    if why := needed(drafts, files, name):
        return why
    before = draft.siblings(last)
    before = before[: before.index(last) + 1]
    makes = [index for index, each in enumerate(before) if _called(draft, each, name)]
    made = _made(draft, before[makes[0]], name) if len(makes) == 1 else ""
    if not made:
        return "which tensor that is cannot be told from the source"
    stretch = before[makes[0] + 1 :]
    uses = [each for within in stretch for each in draft.nodes(cst.Name, within) if each.value == made]
    uses = [each for each in uses if not isinstance(above := draft.parent(each), cst.Attribute) or above.value is each]
    if not uses or any(_calls(draft, each, _TURNS) for each in stretch[:-1]):
        return f"how `{made}` comes into that loss cannot be told from the source"
    if not all(isinstance(draft.parent(each), cst.Arg) for each in uses):
        return f"`{made}` is used there for more than to be handed on"
    within = [draft.statement(each) for each in uses]
    if not all(each is last or (each is not None and _gives_names(draft, each)) for each in within):
        return f"what becomes of `{made}` there cannot be told from the source"
    if used := _used_later(draft, stretch, last):
        return f"`{used}`, which is computed of it, is used again later"
    for each in uses:
        draft.replace(each, f"{made}.detach()")
    return ""


def _made(draft: Draft, statement: Statement, name: str) -> str:
    """The variable of ``made = model(...)``, where a statement is just that; "" otherwise."""
    if not isinstance(statement, cst.SimpleStatementLine) or not isinstance(given := statement.body[0], cst.Assign):
        return ""
    (target, *others), value = given.targets, given.value
    if others or not isinstance(target.target, cst.Name) or not isinstance(value, cst.Call):
        return ""
    return target.target.value if plain_name(value.func).rpartition(".")[2] == name else ""


def _assigned(drafts: Drafts, model: Named) -> Binding | None:
    """The one statement of its file that gives the model its name."""
    if not model.name or not drafts.sources.editable(model.file):
        return None
    draft = drafts[model.file]
    target = assigned_once(draft, model.name)
    statement = draft.statement(target) if target is not None else None
    if target is None or not isinstance(statement, cst.SimpleStatementLine) or draft.loop(target) is not None:
        return None
    if any(each.name.value == model.name for each in draft.nodes(cst.Param)):
        return None  # a function's own name for it, and another one's for something else
    return Binding(draft, model.name, statement)


def _member(drafts: Drafts, model: Named, part: str, files: Sequence[str]) -> Binding | None:
    """The one statement that makes that part of the model's class, in ``__init__``, where the model has no name itself.

    Only where the script names the class for this one model, and asks for the part in that class alone.
    """
    made = call_at(drafts[model.made.file], model.made) if model.made is not None else None
    if made is None or model.made is None:
        return None
    called = last_name(drafts[model.made.file], made)
    editable = [drafts[path] for path in dict.fromkeys(files) if drafts.sources.editable(path)]
    holders = [(draft, each) for draft in editable for each in draft.nodes(cst.ClassDef) if each.name.value == called]
    named = [each for draft in editable for each in draft.nodes(cst.Name) if each.value == called]
    if len(holders) != 1 or len(named) != 2 or last_part(made.func) != called:
        return None  # the class and the one call: no other class is made of it, nor another model
    ((draft, holder),) = holders
    asked = [(each, of) for of in editable for each in of.nodes(cst.Attribute) if each.attr.value == part]
    if any(of.code(each) != f"self.{part}" or holder not in of.ancestors(each) for each, of in asked):
        return None
    targets = [each for each, _ in asked if is_target(draft, each)]
    statement = draft.statement(targets[0]) if len(targets) == 1 else None
    if not isinstance(statement, cst.SimpleStatementLine) or draft.loop(statement) is not None:
        return None
    function, value = draft.function(targets[0]), statement.body[0]
    if function is None or function.name.value != "__init__" or not isinstance(value, cst.Assign):
        return None
    return Binding(draft, f"self.{part}", statement) if isinstance(value.value, cst.Call) else None


def _calls(draft: Draft, within: cst.CSTNode, names: Sequence[str]) -> bool:
    return any(last_name(draft, each) in names for each in draft.nodes(cst.Call, within))


def _called(draft: Draft, within: cst.CSTNode, name: str) -> list[str]:
    """What is called there whose name ends in `name`: ``critic``, ``self.critic``."""
    names = [plain_name(each.func) for each in draft.nodes(cst.Call, within)]
    return [each for each in names if each.rpartition(".")[2] == name]


def _gives_names(draft: Draft, statement: Statement) -> bool:
    """Whether what a statement computes is given to names of the function, and to nothing else."""
    if not isinstance(statement, cst.SimpleStatementLine) or not isinstance(statement.body[0], cst.Assign):
        return False
    targets = draft.nodes(cst.AssignTarget, statement)
    return all(_names(each.target) for each in targets)


def _used_later(draft: Draft, stretch: Sequence[Statement], last: Statement) -> str:
    """A name that `stretch` gives a tensor, and that is used behind it for more than its number; "" for none."""
    given = {
        name
        for statement in stretch
        for target in draft.nodes(cst.AssignTarget, statement)
        for name in _names(target.target)
    }
    scope: cst.CSTNode = draft.loop(last) or draft.function(last) or draft.module
    behind = draft.line(last)
    for node in draft.nodes(cst.Name, scope):
        if node.value not in given or draft.line(node) <= behind:
            continue
        above = draft.parent(node)
        if isinstance(above, cst.AssignTarget):
            made = draft.parent(above)
            if isinstance(made, cst.Assign) and node.value in {
                each.value for each in draft.nodes(cst.Name, made.value)
            }:
                return node.value
            given.discard(node.value)  # another tensor from here on
        elif isinstance(above, cst.Attribute) and above.value is not node:
            continue  # an attribute of that name
        elif isinstance(above, cst.Attribute) and above.attr.value in _READS:
            continue
        elif not isinstance(above, cst.FormattedStringExpression):
            return node.value
    return ""


def _names(target: cst.CSTNode) -> list[str]:
    """The names that a target is made of; none where part of it is an attribute or an item, which others may read."""
    if isinstance(target, (cst.Tuple, cst.List)):
        parts = [_names(each.value) for each in target.elements]
        return [name for part in parts for name in part] if all(parts) else []
    return [target.value] if isinstance(target, cst.Name) else []
