"""A loop that has a model of transformers decode token by token, and has it encode the same input each time: once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from advisor.edit.dataflow import targets_of
from advisor.edit.draft import Draft, Statement
from advisor.edit.in_place import written_in_place
from advisor.edit.names import fresh_name, last_part

_ENCODED = ("input_ids", "input_features", "pixel_values", "inputs_embeds")  # what an encoder is given, by its kind
# What else a model may be given there: nothing that its encoder reads as well, but for the mask.
_TAKEN = (
    *("attention_mask", "use_cache", "past_key_values", "cache_position"),
    *("decoder_input_ids", "decoder_attention_mask", "decoder_position_ids"),
)
_TRAINS = ("backward", "step", "zero_grad")
_DECODES, _GIVEN = "decoder_input_ids", "encoder_outputs"


def encode_before_loop(draft: Draft, call: cst.Call) -> str:
    """Have the encoder called in front of the loop around `call`, and its outputs given to the model; why not, or "".

    ``model(input_ids=x, attention_mask=m, decoder_input_ids=y)`` encodes `x` and decodes `y`. What is encoded has to be
    names that no round of the loop gives another value.
    """
    given = {arg.keyword.value: arg for arg in call.args if arg.keyword is not None}
    encoded = [name for name in _ENCODED if name in given]
    others = given.keys() - {*encoded, *_TAKEN}
    if len(given) != len(call.args) or _DECODES not in given or others or len(encoded) != 1:
        return "which part of the model computes it only its author can tell"
    loop = _loop(draft, call)
    if loop is None:
        return "no loop calls the model there"
    if any(last_part(each.func) in _TRAINS for each in draft.nodes(cst.Call, loop)):
        return "the loop trains, and what the encoder gives changes with its weights"
    taken = [given[name] for name in (encoded[0], "attention_mask") if name in given]
    bound = set(_changed(draft, loop))
    read = {name.value for node in (call.func, *taken) for name in draft.nodes(cst.Name, node)}
    plain = all(isinstance(arg.value, (cst.Name, cst.Attribute)) for arg in taken)
    if bound & read or _may_rebind(draft, loop, call, taken) or not plain:
        return "what the model encodes may be something else in each round"
    name = fresh_name(draft, _GIVEN)
    arguments = ", ".join(draft.code(arg.with_changes(comma=cst.MaybeSentinel.DEFAULT)).strip() for arg in taken)
    draft.insert_before(loop, f"{name} = {draft.code(call.func)}.get_encoder()({arguments})")
    old = given[encoded[0]]
    draft.change(old, lambda each: each.with_changes(keyword=cst.Name(_GIVEN), value=cst.Name(name)))
    return ""


def _loop(draft: Draft, call: cst.Call) -> Statement | None:
    """The innermost loop around a call, where nothing but branches is between them."""
    for above in draft.ancestors(call):
        if isinstance(above, (cst.For, cst.While)):
            return above
        if isinstance(above, (cst.FunctionDef, cst.Lambda, cst.CompFor, cst.With, cst.Try)):
            return None
    return None


def _may_rebind(draft: Draft, loop: Statement, call: cst.Call, taken: Sequence[cst.Arg]) -> bool:
    """Whether the loop calls another method of an object whose attribute is encoded: ``self.x`` may be another then."""
    roots = {draft.code(arg.value).partition(".")[0] for arg in taken if isinstance(arg.value, cst.Attribute)}
    called = [each.func for each in draft.nodes(cst.Call, loop) if each is not call]
    return any(isinstance(each, cst.Attribute) and draft.code(each.value) in roots for each in called)


def _changed(draft: Draft, loop: Statement) -> Iterator[str]:
    """Names that a loop may give another value, or change in place: ``x``, ``self.x``, ``x[i]``, ``x.add_(1)``."""
    for target in targets_of(draft, loop):
        if isinstance(target, cst.Attribute):
            yield target.attr.value
        else:
            yield from (name.value for name in draft.nodes(cst.Name, target))
    for written in written_in_place(draft, loop):
        yield from (name.value for name in draft.nodes(cst.Name, written))
