"""``nn.TransformerEncoder`` on its fast path: fed with batches first, where nothing reads the padding of its output."""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m
from libcst.helpers import get_full_name_for_node

from advisor.edit.callers import callers
from advisor.edit.calls import argument
from advisor.edit.dataflow import targets_of
from advisor.edit.draft import Draft
from advisor.edit.locate import end_of, start_of
from advisor.edit.names import full_name, last_part
from advisor.edit.scopes import assignments, scope_of

# The parameters of nn.TransformerEncoderLayer, in order.
LAYER = (
    "d_model", "nhead", "dim_feedforward", "dropout", "activation", "layer_norm_eps", "batch_first", "norm_first",
)  # fmt: skip
_ACTIVATIONS = {
    "torch.relu": "relu",
    "torch.nn.functional.relu": "relu",
    "torch.nn.functional.gelu": "gelu",
}
_SWAPS = (m.Arg(m.Integer("0")), m.Arg(m.Integer("1")))
_TRANSPOSE = m.Attribute(attr=m.OneOf(m.Name("transpose"), m.Name("swapaxes")))
_SWAPPED = m.OneOf(
    m.Call(func=_TRANSPOSE, args=[*_SWAPS]),
    m.Call(func=_TRANSPOSE, args=[*reversed(_SWAPS)]),
    m.Call(func=m.Attribute(attr=m.Name("permute")), args=[m.Arg(m.Integer(n)) for n in "102"]),
)
_FIRST = m.SubscriptElement(m.Index(value=m.Integer("0")))
_ALL = m.SubscriptElement(m.Slice(lower=None, upper=None, step=None))
_FIRST_TOKEN = m.Subscript(slice=[_FIRST])  # of sequences first
_FIRST_OF_BATCH = m.Subscript(slice=[_ALL, _FIRST])
_SUM = m.Call(
    func=m.Attribute(attr=m.Name("sum")),
    args=[m.OneOf(m.Arg(m.Integer("1"), keyword=None), m.Arg(m.Integer("1"), keyword=m.Name("dim")))],
)
# What leaves a mask the same mask, with other dimensions or as another type.
_SAME_MASK = m.Call(
    func=m.Attribute(attr=m.OneOf(*map(m.Name, ("unsqueeze", "float", "to", "type_as", "half", "bfloat16", "double"))))
)
_NOT = m.Call(func=m.Attribute(attr=m.Name("logical_not")), args=[])
# What may be asked of a module beside calling it: none of it reads its output.
_HARMLESS = (
    "to", "cuda", "cpu", "eval", "train", "half", "bfloat16", "float", "double", "requires_grad_", "parameters",
    "named_parameters", "state_dict", "load_state_dict", "apply",
)  # fmt: skip
_NO_CALL = "where it is called, or what else the script does with it, cannot be told from the source"
_UNCLEAR = (
    "the fast path fills its output with zeros where there is padding, and that the script does not read those "
    "cannot be told from the source"
)


def calls_of(draft: Draft, made: cst.Call) -> list[cst.Call]:
    """Where the module made by `made` is called, by the name that it is given: ``self.encoder(…)``.

    Empty also where the file does anything else with that name than to call it: its output may go anywhere.
    """
    statement = draft.statement(made)
    if not isinstance(statement, cst.SimpleStatementLine) or not isinstance(statement.body[0], cst.Assign):
        return []
    assign = statement.body[0]
    if assign.value is not made or len(assign.targets) != 1:
        return []
    target = assign.targets[0].target
    name = get_full_name_for_node(target) or ""
    if not (isinstance(target, cst.Name) or (name.startswith("self.") and name.count(".") == 1)):
        return []
    holder = draft.enclosing_class(made) if "." in name else draft.module
    found = [each for each in draft.nodes(cst.Call, holder) if get_full_name_for_node(each.func) == name]
    called = {each.func for each in found}
    for each in draft.nodes(cst.Name):
        if each.value != name.rpartition(".")[2]:
            continue
        above = draft.parent(each)
        attribute = isinstance(above, cst.Attribute) and above.attr is each
        if attribute != ("." in name):
            continue  # a name and an attribute that are called the same are different things
        node: cst.CSTNode = above if attribute and above is not None else each
        if node is target or node in called or _of_another_class(draft, node, name, holder) or _harmless(draft, node):
            continue
        return []
    return found


def made_for_one(draft: Draft, layer: cst.Call) -> bool:
    """Whether what `layer` makes is copied by one encoder only: written in its call, or under a name read once."""
    statement = draft.statement(layer)
    small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    if isinstance(small, cst.Return) and small.value is layer:
        function = draft.function(layer)
        return function is not None and len(callers(draft, function)) == 1
    if not isinstance(small, cst.Assign) or small.value is not layer:
        return any(isinstance(above, cst.Call) for above in draft.ancestors(layer))
    if len(small.targets) != 1:
        return False
    target = small.targets[0].target
    written = get_full_name_for_node(target)
    within = scope_of(draft, layer) if isinstance(target, cst.Name) else draft.module
    uses = [each for each in draft.nodes(type(target), within) if get_full_name_for_node(each) == written]
    return len(uses) == 2  # where it gets its value, and where that is read


def batch_first(draft: Draft, call: cst.Call) -> str:
    """Have the encoder's call take batches first, and what follows take its result so; why not, where unclear."""
    given = call.args[0] if call.args else None
    if given is None or given.keyword is not None or not m.matches(given.value, _SWAPPED):
        return "what the encoder is called with is not transposed right there"
    found = _reads(draft, call)
    if not found or not all(_reads_no_padding(draft, call, read, len(swaps) == 0) for read, swaps in found):
        return _UNCLEAR
    if any(len(swaps) > 1 for _, swaps in found):
        return "its result is transposed several times"
    for read, swaps in found:
        if not swaps:
            draft.change(cst.ensure_type(draft.parent(read), cst.Subscript), _of_every_sequence)
    for swap in dict.fromkeys(swap for _, swaps in found for swap in swaps):
        draft.change(swap, _without_method)
    draft.change(given.value, _without_method)
    return ""


def skips_padding(draft: Draft, calls: list[cst.Call]) -> str:
    """Why an encoder that takes batches first may not have its output filled with zeros for padding, or ""."""
    if not calls:
        return _NO_CALL
    for call in calls:
        found = _reads(draft, call)
        if not found or not all(_reads_no_padding(draft, call, read, len(swaps) % 2 == 1) for read, swaps in found):
            return _UNCLEAR
    return ""


def _of_another_class(draft: Draft, node: cst.CSTNode, name: str, holder: cst.CSTNode | None) -> bool:
    """Whether a ``self.encoder`` is that of another class, which makes one itself."""
    other = draft.enclosing_class(node)
    if other is None or other is holder or not isinstance(node, cst.Attribute) or get_full_name_for_node(node) != name:
        return False
    return any(get_full_name_for_node(each.target) == name for each in draft.nodes(cst.AssignTarget, other))


def _harmless(draft: Draft, node: cst.CSTNode) -> bool:
    """``encoder.eval()`` as a statement, ``encoder.parameters()`` anywhere."""
    above = draft.parent(node)
    call = draft.parent(above) if isinstance(above, cst.Attribute) and above.value is node else None
    if not isinstance(above, cst.Attribute) or not isinstance(call, cst.Call) or call.func is not above:
        return False
    if above.attr.value.endswith(("parameters", "state_dict")):
        return above.attr.value in _HARMLESS
    return above.attr.value in _HARMLESS and isinstance(draft.parent(call), cst.Expr)


_Read = tuple[cst.CSTNode, tuple[cst.CSTNode, ...]]


def _reads(draft: Draft, call: cst.Call) -> list[_Read]:
    """Each place that reads the output, with the transpositions on the way there; empty where that is not clear."""
    found: list[_Read] = []
    todo: list[_Read] = [(call, ())]
    seen = 0
    while todo:
        node, swaps = todo.pop()
        seen += 1
        above = draft.parent(node)
        method = draft.parent(above) if above is not None else None
        if isinstance(above, cst.Attribute) and isinstance(method, cst.Call) and m.matches(method, _SWAPPED):
            todo.append((method, (*swaps, method)))
        elif isinstance(above, cst.Assign):
            uses = _uses(draft, above)
            if not uses or seen > 20:
                return []
            todo.extend((use, swaps) for use in uses)
        else:
            found.append((node, swaps))
    return found


def _uses(draft: Draft, assign: cst.Assign) -> list[cst.Name]:
    """The uses of the one name that is given a value there, until it is given another; empty where that is not clear.

    All its values are given in statements of the function itself: nothing is given in a branch, or again in a loop.
    """
    target = assign.targets[0].target
    scope = scope_of(draft, assign)
    if len(assign.targets) != 1 or not isinstance(target, cst.Name) or not isinstance(scope, cst.FunctionDef):
        return []
    named = {each for each in draft.nodes(cst.Name, scope) if each.value == target.value}
    bound = [each for each in targets_of(draft, scope) if not named.isdisjoint(draft.nodes(cst.Name, each))]
    given = [draft.statement(each) for each in bound if not isinstance(each, (cst.Attribute, cst.Subscript))]
    # The name may stand for something else where the assignment is left out, and before it.
    if not all(each is not None and draft.block(each) is scope.body for each in given):
        return []
    end = end_of(draft, assign)
    nexts = [each for each in given if each is not None and end_of(draft, each) > end]
    until = min((end_of(draft, each) for each in nexts), default=end_of(draft, scope))
    own = {each for each in bound if isinstance(each, cst.Name)}
    names = [each for each in draft.nodes(cst.Name, scope.body) if each.value == target.value and each not in own]
    uses = [each for each in names if end <= start_of(draft, each) < until]
    adds = [each for each in draft.nodes(cst.AugAssign, scope.body) if each.target in own]
    if any(end < end_of(draft, each) <= until for each in adds):
        return []  # which reads it, too
    return uses if all(scope_of(draft, each) is scope for each in uses) else []  # one of them is run later


def _reads_no_padding(draft: Draft, call: cst.Call, read: cst.CSTNode, sequence_first: bool) -> bool:
    """Whether the output is read at its first token there, or multiplied by the call's mask and summed."""
    above = draft.parent(read)
    if isinstance(above, cst.Subscript) and above.value is read:
        return m.matches(above, _FIRST_TOKEN if sequence_first else _FIRST_OF_BATCH)
    if sequence_first or not isinstance(above, cst.BinaryOperation) or not isinstance(above.operator, cst.Multiply):
        return False
    method = draft.parent(draft.parent(above) or above)
    if not isinstance(method, cst.Call) or draft.parent(above) is not method.func or not m.matches(method, _SUM):
        return False
    padding = argument(call, "src_key_padding_mask")
    if padding is None:
        return False
    factor = above.right if above.left is read else above.left
    masked, kept = _mask(draft, padding.value), _mask(draft, factor)
    return masked is not None and kept is not None and masked[0] == kept[0] and masked[1] != kept[1]


def _mask(draft: Draft, node: cst.BaseExpression, depth: int = 8) -> tuple[str, bool] | None:
    """What a mask says, and whether it says the opposite; None where its names have more than one value."""
    opposite = False
    for _ in range(depth):
        if m.matches(node, _SAME_MASK) or m.matches(node, _NOT):
            opposite ^= m.matches(node, _NOT)
            node = cst.ensure_type(cst.ensure_type(node, cst.Call).func, cst.Attribute).value
        elif isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.BitInvert):
            opposite, node = not opposite, node.expression
        elif isinstance(node, cst.Subscript) and all(_adds_dimension(each) for each in node.slice):
            node = node.value
        elif isinstance(node, cst.Name):
            values = list(assignments(draft, node.value, scope_of(draft, node)))
            if not values:
                break
            if len(values) > 1 or values[0] is None or _is_parameter(draft, node) or _written_into(draft, node):
                return None
            node = values[0]
        else:
            break
    if isinstance(node, cst.Comparison) and len(node.comparisons) == 1:
        (compared,) = node.comparisons
        if isinstance(compared.operator, (cst.Equal, cst.NotEqual)):
            opposite ^= isinstance(compared.operator, cst.NotEqual)
            sides = (node.left, compared.comparator)
            if all(_constant(draft, side) for side in sides):
                return " == ".join(draft.code(side.with_changes(lpar=[], rpar=[])) for side in sides), opposite
        return None
    return (draft.code(node), opposite) if _constant(draft, node) else None


def _adds_dimension(element: cst.SubscriptElement) -> bool:
    return m.matches(element.slice, m.OneOf(m.Index(value=m.Name("None")), m.Index(value=m.Ellipsis()))) or m.matches(
        element, _ALL
    )


def _constant(draft: Draft, node: cst.BaseExpression) -> bool:
    """A number, or a name or attribute of one that the function gives no other value."""
    if isinstance(node, cst.Integer):
        return True
    while isinstance(node, cst.Attribute):
        node = node.value
    if not isinstance(node, cst.Name):
        return False
    bound = list(assignments(draft, node.value, scope_of(draft, node)))
    return len(bound) + _is_parameter(draft, node) <= 1 and not _written_into(draft, node)


def _written_into(draft: Draft, name: cst.Name) -> bool:
    """``padding[:, 0] = False``, anywhere in the name's function."""
    return any(
        isinstance(each.target, cst.Subscript) and get_full_name_for_node(each.target.value) == name.value
        for each in draft.nodes(cst.AssignTarget, scope_of(draft, name))
    )


def _is_parameter(draft: Draft, name: cst.Name) -> bool:
    scope = scope_of(draft, name)
    return isinstance(scope, cst.FunctionDef) and any(
        each.name.value == name.value for each in draft.nodes(cst.Param, scope.params)
    )


def _of_every_sequence(node: cst.CSTNode) -> cst.CSTNode:
    """``h[0]`` → ``h[:, 0]``."""
    index = cst.ensure_type(node, cst.Subscript).slice[0]
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    return node.with_changes(slice=(cst.SubscriptElement(cst.Slice(lower=None, upper=None), comma), index))


def _without_method(node: cst.CSTNode) -> cst.CSTNode:
    """``x.transpose(0, 1)`` → ``x``."""
    return cst.ensure_type(cst.ensure_type(node, cst.Call).func, cst.Attribute).value


def activation_said(draft: Draft, layer: cst.Call) -> str:
    """The activation that a layer is given in other words; "" for all else.

    ``lambda x: F.gelu(x)``, ``partial(F.gelu)``, or a function of the file that returns just that.
    """
    given = argument(layer, "activation", LAYER)
    value = given.value if given is not None else None
    if isinstance(value, cst.Lambda):
        return _passed_on(draft, value.params, value.body)
    if isinstance(value, cst.Call) and full_name(draft, value.func) == "functools.partial" and len(value.args) == 1:
        return _ACTIVATIONS.get(full_name(draft, value.args[0].value), "")
    if isinstance(value, cst.Name):
        named = [each for each in draft.nodes(cst.FunctionDef) if each.name.value == value.value]
        if len(named) != 1 or named[0].decorators or draft.parent(named[0]) is not draft.module:
            return ""
        # A parameter of that name, or another value for it, is something else.
        others = (*draft.nodes(cst.Param), *(each.target for each in draft.nodes(cst.AssignTarget)))
        if any(last_part(each.name if isinstance(each, cst.Param) else each) == value.value for each in others):
            return ""
        (function,) = named
        returned = [each.value for each in draft.nodes(cst.Return, function)]
        if len(function.body.body) == 1 + (function.get_docstring() is not None) and len(returned) == 1:
            return _passed_on(draft, function.params, returned[0])
    return ""


def _passed_on(draft: Draft, parameters: cst.Parameters, value: cst.BaseExpression | None) -> str:
    """The activation that a function of one parameter gives it to; "" where it does anything else."""
    plain = len(parameters.params) == 1 and parameters.params[0].default is None and not parameters.kwonly_params
    if not plain or not isinstance(value, cst.Call) or len(value.args) != 1:
        return ""
    same = draft.code(value.args[0].value) == parameters.params[0].name.value
    return _ACTIVATIONS.get(full_name(draft, value.func), "") if same else ""
