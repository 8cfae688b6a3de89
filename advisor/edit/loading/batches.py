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
from advisor.edit.origins.option_origin import Origin
from advisor.edit.origins.origin import origin_of
from advisor.edit.origins.values import bound_to, give, in_mapping, is_bound, last_name_of
from advisor.edit.scopes import assigned_once, is_literal, scope_of, string_value
from advisor.harness.layout import Site

_NAME = re.compile(
    r"(?:(?:train(?:ing)?|mini|per_?device|local)_?)*(?:batch(?:_?(?:size|sz))?|bs|bsz|bsize)", re.IGNORECASE
)

_OF_SAMPLERS = ("sampler", "batch_size", "drop_last")  # parameters of torch.utils.data.BatchSampler, in order
# What may read a number that is the batch's, whatever its name: other loaders, and what only shows it.
_HARMLESS = re.compile(r".*(loader|sampler|print|log|info|debug|format)", re.IGNORECASE)


@dataclass(frozen=True)
class SaidSize:
    """A number in the source; ``option`` is what sets it on the command line, empty for a constant."""

    node: cst.BaseExpression
    option: str = ""


@dataclass(frozen=True)
class Written:
    """The expressions that say how large the batches are, what they are called, and in which files."""

    nodes: tuple[cst.BaseExpression, ...]
    names: tuple[str, ...]
    files: tuple[str, ...] = ()


def said_sizes(draft: Draft, size: int, argv: Sequence[str] = ()) -> Iterator[SaidSize]:
    """Places where a batch size of `size` is written: constants, fields, defaults, entries, keyword arguments.

    An option counts with another default, too, if `argv` gives it that size.
    """
    for call in draft.nodes(cst.Call):
        flags = [flag for arg in call.args if (flag := string_value(arg.value)) and arg.keyword is None]
        named = [flag for flag in flags if flag.startswith("-") and is_name(flag.lstrip("-").replace("-", "_"))]
        if named:
            default = argument(call, "default")
            written = default.value if default is not None else call
            if _given(argv, flags) == str(size) or (is_number(written, size) and _given(argv, flags) is None):
                yield SaidSize(written, max(named, key=len))
            continue
        for arg in call.args:
            if arg.keyword is not None and is_name(arg.keyword.value) and is_number(arg.value, size):
                yield SaidSize(arg.value)
    for assign in draft.nodes(cst.Assign):
        if len(assign.targets) == 1 and is_name(last_part(assign.targets[0].target)) and is_number(assign.value, size):
            yield SaidSize(assign.value)
    for field in draft.nodes(cst.AnnAssign):
        if field.value is not None and is_name(last_part(field.target)) and is_number(field.value, size):
            yield SaidSize(field.value)
    for parameter in draft.nodes(cst.Param):
        if parameter.default is not None and is_name(parameter.name.value) and is_number(parameter.default, size):
            yield SaidSize(parameter.default)
    for entry in draft.nodes(cst.DictElement):
        if is_name(string_value(entry.key) or "") and is_number(entry.value, size):
            yield SaidSize(entry.value)


def is_name(name: str) -> bool:
    """Whether it is what people call the size of their batches."""
    return _NAME.fullmatch(name) is not None


def is_number(node: cst.BaseExpression, size: int) -> bool:
    """Whether that number is written there."""
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
    passed = _passed(draft, call)
    if passed is None:
        return None, "its batch sampler makes the batches"
    call, parameters, value = passed
    if value is None and not unpacked(call) and recorded not in (None, 1):  # what a class of its own passes on
        return None, unknown
    origin = origin_of(drafts, draft, value) if value is not None else None
    meant = _another_meaning(draft, value, origin) if value is not None else ""
    if meant:
        return None, meant
    return give(drafts, draft, call, "batch_size", str(size), parameters, recorded), unknown


def written_at(drafts: Drafts, draft: Draft, call: cst.Call) -> Written:
    """Where a loader has its batch size from: in the call, and where that value is written."""
    passed = _passed(draft, call)
    return value_written_at(drafts, draft, passed[2] if passed is not None else None)


def value_written_at(drafts: Drafts, draft: Draft, value: cst.BaseExpression | None) -> Written:
    """The same of the expression that says it; nothing where there is none."""
    if value is None or is_literal(value):
        return Written(() if value is None else (value,), ())
    origin = origin_of(drafts, draft, value)
    if origin is None:
        return Written((value,), (last_name_of(value),), (draft.source.path,))
    name = _of_option(origin.option) if origin.option else bound_to(origin.draft, origin.node)
    files = (draft.source.path, origin.draft.source.path)
    return Written((value, origin.node), (last_name_of(value), name), files)


def said_at(drafts: Drafts, said: Sequence[tuple[Site, str]], size: int) -> Written:
    """The same for places that :func:`said_sizes` has found, each with its option."""
    nodes: list[cst.BaseExpression] = []
    names: list[str] = []
    for site, option in said:
        draft = drafts[site.file]
        found = [each.node for each in said_sizes(draft, size) if draft.line(each.node) == site.line]
        names += [_of_option(option)] if option else [bound_to(draft, each) for each in found]
        nodes += found
    return Written(tuple(nodes), tuple(names), tuple(site.file for site, _ in said))


def _of_option(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


def _passed(draft: Draft, call: cst.Call) -> tuple[cst.Call, Sequence[str], cst.BaseExpression | None] | None:
    """The call that says how large a loader's batches are, its own or its sampler's: its parameters, and the value.

    None where a sampler makes the batches that says no size, or not in the source.
    """
    parameters: Sequence[str] = DATALOADER_PARAMETERS
    sampler = argument(call, "batch_sampler", parameters)
    made_by = sampler.value if sampler is not None else in_mapping(draft, call, "batch_sampler")
    if made_by is not None and not (isinstance(made_by, cst.Name) and made_by.value == "None"):
        made = _made(draft, made_by)
        parameters = _OF_SAMPLERS if made is not None and last_name(draft, made) == "BatchSampler" else ()
        if made is None or argument(made, "batch_size", parameters) is None:
            return None
        call = made
    passed = argument(call, "batch_size", parameters)
    return call, parameters, passed.value if passed is not None else in_mapping(draft, call, "batch_size")


def _made(draft: Draft, node: cst.BaseExpression) -> cst.Call | None:
    """The call that a value is, or that its name is given by the only assignment to it."""
    if isinstance(node, cst.Name):
        scopes = dict.fromkeys((scope_of(draft, node), draft.module))
        found = [value for scope in scopes if (value := assigned_once(draft, node.value, scope)) is not None]
        return found[0] if found and isinstance(found[0], cst.Call) else None
    return node if isinstance(node, cst.Call) else None


def _another_meaning(draft: Draft, value: cst.BaseExpression, origin: Origin | None) -> str:
    """What else the name stands for that gives `value` its number, in a clause; empty where nothing is seen.

    A name that says batch may size tensors, which then grow together; no module of torch.nn. Any other name may be read
    by loaders, and shown.
    """
    if origin is not None and origin.node is value:
        return ""
    if found := _sizes_layers(draft, value):
        return f"line {draft.line(found)} reads {draft.code(value)}, too, for something else than batches"
    if origin is None or origin.option:
        return ""
    name = bound_to(origin.draft, origin.node)
    says_so = "batch" in name.lower() or is_name(name)
    within = read_within(origin.draft, origin.node)
    places = [(origin.draft, *each) for each in readers(origin.draft, name, within)]
    if origin.draft is not draft and within is origin.draft.module:  # imported
        places += [(draft, *each) for each in readers(draft, name, draft.module)]
    for place, node, written in places:
        of_module = written.startswith("torch.nn.") and written.rpartition(".")[2][:1].isupper()
        if of_module or not (says_so or is_harmless(written)):
            return f"line {place.line(node)} reads {name}, too, for something else than batches"
    return ""


def _sizes_layers(draft: Draft, value: cst.BaseExpression) -> cst.Call | None:
    """A module of torch.nn that is made with the same option, entry or setting; if its name is no batch's, any class's.

    ``nn.Linear(args.size, 10)``, ``Net(cfg["size"])``, beside ``DataLoader(ds, cfg["size"])``.
    """
    if not isinstance(value, (cst.Attribute, cst.Subscript)):
        return None
    name, code = last_name_of(value), draft.code(value)
    says_so = "batch" in name.lower() or is_name(name)
    for node in draft.nodes(type(value)):
        call = next((each for each in draft.ancestors(node) if isinstance(each, cst.Call)), None)
        called = full_name(draft, call.func) if call is not None and draft.code(node) == code else ""
        made = called.rpartition(".")[2][:1].isupper() and not is_harmless(called) and "data" not in called.lower()
        if made and (called.startswith("torch.nn.") or not says_so):
            return call
    return None


def read_within(draft: Draft, node: cst.BaseExpression) -> cst.CSTNode | None:
    """Where the name can be read that `node` is the value of: its scope, or the function whose parameter it is."""
    above = draft.parent(node)
    if isinstance(above, cst.Param):
        return draft.parent(draft.parent(above) or above)
    scope = scope_of(draft, node)
    return draft.module if isinstance(scope, cst.ClassDef) else scope  # a field is read as an attribute


def readers(draft: Draft, name: str, within: cst.CSTNode | None) -> Iterator[tuple[cst.Name, str]]:
    """Where a name is read, each with the full name of what is called with it, "" outside of any call."""
    for node in draft.nodes(cst.Name, within):
        if node.value != name or is_bound(draft, node) or isinstance(draft.parent(node), cst.ImportAlias):
            continue
        reader = next((each for each in draft.ancestors(node) if isinstance(each, cst.Call)), None)
        yield node, full_name(draft, reader.func) if reader is not None else ""


def is_harmless(called: str) -> bool:
    """Whether what is called so may be given the batch's size, or another number: a loader, or what only shows it."""
    return _HARMLESS.fullmatch(called.rpartition(".")[2]) is not None
