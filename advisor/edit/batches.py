"""How large the batches are: where the source says so, and where the same number has another meaning.

A script that makes its batches by hand is known by the name that it gives the number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from advisor.edit.calls import DATALOADER_PARAMETERS, argument, unpacked
from advisor.edit.draft import Draft, Drafts
from advisor.edit.locate import last_name
from advisor.edit.names import full_name, last_part
from advisor.edit.origin import assigned_once, origin_of, scope_of, string_value
from advisor.edit.values import bound_to, give, in_mapping, is_bound

_NAME = re.compile(
    r"(?:(?:train(?:ing)?|mini|per_?device|local)_?)*(?:batch(?:_?(?:size|sz))?|bs|bsz|bsize)", re.IGNORECASE
)

# Calls that lay out a tensor: those of torch that make one, and methods.
_MADE = ("zeros", "ones", "randn", "rand", "empty", "full")
_LAID_OUT = ("view", "reshape", "expand", "new_zeros", "new_ones", "new_empty", "new_full")
_OF_SAMPLERS = ("sampler", "batch_size", "drop_last")  # parameters of torch.utils.data.BatchSampler, in order
# What may read a number that is the batch's, whatever its name: other loaders, and what only shows it.
_HARMLESS = re.compile(r".*(loader|sampler|print|log|info|debug|format)", re.IGNORECASE)


@dataclass(frozen=True)
class SaidSize:
    """A number in the source; ``option`` is what sets it on the command line, empty for a constant."""

    node: cst.BaseExpression
    option: str = ""


def said_sizes(draft: Draft, size: int, argv: Sequence[str] = ()) -> Iterator[SaidSize]:
    """Places where a batch size of `size` is written: constants, fields, defaults, entries, keyword arguments.

    An option counts with another default, too, if `argv` gives it that size.
    """
    for call in draft.nodes(cst.Call):
        flags = [flag for arg in call.args if (flag := string_value(arg.value)) and arg.keyword is None]
        named = [flag for flag in flags if flag.startswith("-") and _is_name(flag.lstrip("-").replace("-", "_"))]
        if named:
            default = argument(call, "default")
            written = default.value if default is not None else call
            if _given(argv, flags) == str(size) or (_is(written, size) and _given(argv, flags) is None):
                yield SaidSize(written, max(named, key=len))
            continue
        for arg in call.args:
            if arg.keyword is not None and _is_name(arg.keyword.value) and _is(arg.value, size):
                yield SaidSize(arg.value)
    for assign in draft.nodes(cst.Assign):
        if len(assign.targets) == 1 and _is_name(last_part(assign.targets[0].target)) and _is(assign.value, size):
            yield SaidSize(assign.value)
    for field in draft.nodes(cst.AnnAssign):
        if field.value is not None and _is_name(last_part(field.target)) and _is(field.value, size):
            yield SaidSize(field.value)
    for parameter in draft.nodes(cst.Param):
        if parameter.default is not None and _is_name(parameter.name.value) and _is(parameter.default, size):
            yield SaidSize(parameter.default)
    for entry in draft.nodes(cst.DictElement):
        if _is_name(string_value(entry.key) or "") and _is(entry.value, size):
            yield SaidSize(entry.value)


def _is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def _is(node: cst.BaseExpression, size: int) -> bool:
    return isinstance(node, cst.Integer) and node.evaluated_value == size


def _given(argv: Sequence[str], flags: Sequence[str]) -> str | None:
    """What the command line says for an option; None where it says nothing."""
    for number, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if name in flags:
            return value if equals else next(iter(argv[number + 1 :]), "")
    return None


# The batch of a loader ---------------------------------------------------------------------------------------------


def give_batch_size(
    drafts: Drafts, draft: Draft, call: cst.Call, size: int, recorded: object
) -> tuple[str | None, str]:
    """Have a loader make batches of `size`: what :func:`give` answers, and where that is None, why."""
    unknown = "where the batch size comes from cannot be told from the source"
    parameters: Sequence[str] = DATALOADER_PARAMETERS
    sampler = argument(call, "batch_sampler", parameters)
    made_by = sampler.value if sampler is not None else in_mapping(draft, call, "batch_sampler")
    if made_by is not None and not (isinstance(made_by, cst.Name) and made_by.value == "None"):
        made = _made(draft, made_by)
        if made is None:
            return None, "its batch sampler makes the batches"
        call, parameters = made, _OF_SAMPLERS if last_name(draft, made) == "BatchSampler" else ()
        if argument(call, "batch_size", parameters) is None:
            return None, "its batch sampler makes the batches"
    passed = argument(call, "batch_size", parameters)
    value = passed.value if passed is not None else in_mapping(draft, call, "batch_size")
    if value is None and not unpacked(call) and recorded not in (None, 1):  # what a class of its own passes on
        return None, unknown
    meant = _another_meaning(drafts, draft, value) if value is not None else ""
    if meant:
        return None, meant
    return give(drafts, draft, call, "batch_size", str(size), parameters, recorded), unknown


def _made(draft: Draft, node: cst.BaseExpression) -> cst.Call | None:
    """The call that a value is, or that its name is given by the only assignment to it."""
    if isinstance(node, cst.Name):
        scopes = dict.fromkeys((scope_of(draft, node), draft.module))
        found = [value for scope in scopes if (value := assigned_once(draft, node.value, scope)) is not None]
        return found[0] if found and isinstance(found[0], cst.Call) else None
    return node if isinstance(node, cst.Call) else None


def _another_meaning(drafts: Drafts, draft: Draft, value: cst.BaseExpression) -> str:
    """What else the name stands for that gives `value` its number, in a clause; empty where nothing is seen.

    A name that says batch may size tensors, which then grow together; no module of torch.nn. Any other name may be read
    by loaders, and shown.
    """
    origin = origin_of(drafts, draft, value)
    if origin is None or origin.option or origin.node is value:
        return ""
    name = bound_to(origin.draft, origin.node)
    says_so = "batch" in name.lower() or _is_name(name)
    above = origin.draft.parent(origin.node)
    within: cst.CSTNode | None = scope_of(origin.draft, origin.node)
    if isinstance(above, cst.Param):
        within = origin.draft.parent(origin.draft.parent(above) or above)
    elif isinstance(within, cst.ClassDef):  # a field, read as an attribute
        within = origin.draft.module
    places = [(origin.draft, node) for node in origin.draft.nodes(cst.Name, within)]
    if origin.draft is not draft and within is origin.draft.module:  # imported
        places += [(draft, node) for node in draft.nodes(cst.Name)]
    for place, node in places:
        above = place.parent(node)
        if node.value != name or is_bound(place, node) or isinstance(above, cst.ImportAlias):
            continue
        reader = next((each for each in place.ancestors(node) if isinstance(each, cst.Call)), None)
        written = full_name(place, reader.func) if reader is not None else ""
        of_module = written.startswith("torch.nn.") and written.rpartition(".")[2][:1].isupper()
        if of_module or not (says_so or _HARMLESS.fullmatch(written.rpartition(".")[2])):
            return f"line {place.line(node)} reads {name}, too, for something else than batches"
    return ""


def fixed_by_hand(draft: Draft, size: int) -> int | None:
    """The line of a call that lays out a tensor for batches of `size`, written as a number: it would have to change.

    That is the first dimension; or the second of three, as recurrent layers have their state. Weights and buffers have
    none of the batch.
    """
    for call in draft.nodes(cst.Call):
        name = last_part(call.func)
        makes = name in _MADE and full_name(draft, call.func).startswith("torch.")
        if not makes and not (name in _LAID_OUT and isinstance(call.func, cst.Attribute)):
            continue
        sizes = [arg.value for arg in call.args if arg.keyword is None and not arg.star]
        if sizes and isinstance(sizes[0], (cst.Tuple, cst.List)):
            sizes = [each.value for each in sizes[0].elements]
        if len(sizes) < 2 or _kept_by_module(draft, call):
            continue
        state = makes and len(sizes) == 3 and _is(sizes[1], size)
        # One is a dimension for broadcasting as often as a batch: flat samples, x.view(1, -1), are batches.
        rows = _is(sizes[0], size) and (size > 1 or (name in ("view", "reshape") and len(sizes) == 2))
        first = rows and not (makes and _in_constructor(draft, call))
        if state or first:
            return draft.line(call)
    return None


def _kept_by_module(draft: Draft, call: cst.Call) -> bool:
    """Whether the tensor becomes a weight or a buffer."""
    above = [each for each in draft.ancestors(call) if isinstance(each, cst.Call)]
    return any(last_part(each.func) in ("Parameter", "register_buffer", "register_parameter") for each in above)


def _in_constructor(draft: Draft, call: cst.Call) -> bool:
    function = draft.function(call)
    return function is not None and function.name.value == "__init__"
