"""Weights that need no gradients, and what a script does that speaks against telling them so."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import libcst as cst
import libcst.matchers as m
from libcst.helpers import get_full_name_for_node

from advisor.edit.draft import Draft, Drafts, Statement
from advisor.edit.locate import call_at, last_name
from advisor.edit.models import made_at
from advisor.edit.names import plain_name
from advisor.harness.layout import Site

# ``torch.autograd.grad`` makes gradients of its own, and reads none.
READS_GRADIENTS = re.compile(r"(?<!autograd)\.grad\b")
_CLIPS = re.compile(r"\bclip_grad_(norm|value)_\(|\bget_total_norm\(")
# What a script may do with gradients, or what would go wrong with weights that need none; by its text.
_SAYS = re.compile(r"\brequires_grad")
_NEEDS = (
    (re.compile(r"\.grad\b"), "reads gradients"),
    (_CLIPS, "clips gradients, maybe by these too"),
    (_SAYS, "says itself what needs gradients"),
    (re.compile(r"\badd_param_group\("), "gives its optimizer more to train later"),
    (re.compile(r"\bcheckpoint(_sequential)?\(|gradient_checkpointing"), "computes activations anew in the backward"),
    (re.compile(r"DistributedDataParallel|FullyShardedDataParallel|\bfully_shard\("), "trains with several processes"),
)
_TURNS = ("backward", "step")  # calls that end one pass and begin the next
_READS = ("item", "detach", "data", "shape", "size", "dtype")  # what may be asked of a result that has no graph


def needed(drafts: Drafts, files: Sequence[str], name: str = "") -> str:
    """What the script does that needs gradients of all weights, as a clause; "" for nothing of the kind.

    With the `name` of a model, what it says of other tensors' gradients is no matter: an image that is optimized, a
    student whose gradients are clipped.
    """
    for draft in (drafts[path] for path in dict.fromkeys(files)):
        for pattern, what in _NEEDS:
            if any(_concerns(line, pattern, name) for line in filter(pattern.search, draft.lines)):
                return f"the script {what}, in {os.path.basename(draft.source.path)}"
    return ""


def _concerns(line: str, pattern: re.Pattern[str], name: str) -> bool:
    """Whether what a line says may be about the model of that name; about any, where it has none."""
    if not name or re.search(rf"\b{re.escape(name)}\b", line):
        return True
    if pattern is _SAYS:
        return re.search("[Pp]aram", line) is not None
    return pattern is not _CLIPS or re.search(r"\w\.parameters\(", line) is None  # those of another model


def freeze_made(drafts: Drafts, site: Site, files: Sequence[str]) -> str:
    """Have the model that is made at `site` need no gradients from there on; why not, as a clause."""
    bound = made_at(drafts, site)
    if bound is None:
        return "what the script calls that model cannot be told from the source"
    if why := needed(drafts, files, bound.name.rpartition(".")[2]):
        return why
    bound.draft.insert_after(bound.statement, f"{bound.name}.requires_grad_(False)")
    return ""


def freeze_around(drafts: Drafts, backward: Site, made: Site | None, parts: Sequence[str]) -> str:
    """Have a model need no gradients where the loss of one `backward` is computed; why not, as a clause.

    The model that is made at `made`, or the one of its `parts` that the loss goes through: from the first statement
    that calls it for that loss, to the statement of the backward.
    """
    draft = drafts[backward.file]
    call = call_at(draft, backward, ("backward",))
    last = draft.statement(call) if call is not None else None
    if call is None or last is None:
        return "the backward call cannot be told from others of its line"
    bound = made_at(drafts, made) if made is not None else None
    name = bound.name.rpartition(".")[2] if bound is not None and not parts else ""
    if len(parts) == 1:
        name = parts[0].rpartition(".")[2]
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
    if used := _used_later(draft, stretch[stretch.index(first) :], last):
        return f"`{used}`, which is computed there, is used again later"
    draft.insert_before(first, f"{full}.requires_grad_(False)")
    draft.insert_after(last, f"{full}.requires_grad_(True)")
    return ""


def _calls(draft: Draft, within: cst.CSTNode, names: Sequence[str]) -> bool:
    return any(last_name(draft, each) in names for each in draft.nodes(cst.Call, within))


def _called(draft: Draft, within: cst.CSTNode, name: str) -> list[str]:
    """What is called there whose name ends in `name`: ``critic``, ``self.critic``."""
    names = [plain_name(each.func) for each in draft.nodes(cst.Call, within)]
    return [each for each in names if each.rpartition(".")[2] == name]


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
        if isinstance(above, (cst.AssignTarget, cst.AnnAssign)):
            given.discard(node.value)  # another tensor from here on
        elif isinstance(above, cst.Attribute) and above.value is not node:
            continue  # an attribute of that name
        elif isinstance(above, cst.Attribute) and above.attr.value in _READS:
            continue
        elif not isinstance(above, cst.FormattedStringExpression):
            return node.value
    return ""


def _names(target: cst.CSTNode) -> list[str]:
    if isinstance(target, (cst.Tuple, cst.List)):
        return [name for each in target.elements for name in _names(each.value)]
    full = get_full_name_for_node(target) if m.matches(target, m.Name() | m.Attribute()) else None
    return [full.rpartition(".")[2]] if full else []
