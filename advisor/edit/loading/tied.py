"""What is tied to the size of the batches, and would have to change with it: the same number elsewhere, and counts."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

import libcst as cst
import libcst.matchers as m

from advisor.edit.calls import argument
from advisor.edit.draft import Draft, Drafts
from advisor.edit.loading.batches import is_harmless, is_name, is_number, read_within, readers
from advisor.edit.names import full_name, last_part
from advisor.edit.origins.origin import origin_of
from advisor.edit.origins.values import bound_to
from advisor.edit.scopes import parameter_names, parse_number, string_value

# Calls that lay out a tensor: those of torch that make one, and methods.
_MADE = ("zeros", "ones", "randn", "rand", "empty", "full", "arange", "eye", "randint", "randperm")
_REPEATED = ("expand", "repeat", "repeat_interleave")
_LAID_OUT = ("view", "reshape", "new_zeros", "new_ones", "new_empty", "new_full", *_REPEATED)

# What is divided by the size of a batch: samples of a data set, to count steps; or those of a larger batch.
_OF_DATA = re.compile(r"\blen\(|\.shape\b|\.size\(|\.numel\(")
_OF_BATCHES = re.compile(r"batch|effective|global|accum", re.IGNORECASE)
_ACCUMULATED = re.compile(r"accum|micro", re.IGNORECASE)
_TO_COUNT = ("int", "round", "math.ceil", "math.floor", "numpy.ceil", "numpy.floor")
_MANY = 20  # batches, and what is divided is the data: the fewest that the rule leaves of an epoch
_ZERO = m.Integer("0")
# len(x), x.size(0), x.shape[0]
_LENGTH = (
    m.Call(m.Name("len"), [m.Arg(m.Name())])
    | m.Call(m.Attribute(attr=m.Name("size")), [m.Arg(_ZERO)])
    | m.Subscript(m.Attribute(attr=m.Name("shape")), [m.SubscriptElement(m.Index(_ZERO))])
)
_SHAPE = m.Attribute(attr=m.Name("shape")) | m.Call(m.Attribute(attr=m.Name("size")), [])
_IS_DATA = re.compile(r"(?i)data|load|batch|train|sampl|_set\b|\bds\b")
_COMMON = 2  # and one: they say anything
_TYPED = re.compile(r"(Float|Double|Half|Long|Int|Byte|Bool)?Tensor")  # torch.cuda.FloatTensor(32, 1).fill_(1.0)
# x[0], x[0, :8], x.squeeze(0)
_FIRST = m.Subscript(slice=[m.SubscriptElement(m.Index(_ZERO)), m.ZeroOrMore()]) | m.Call(
    m.Attribute(attr=m.Name("squeeze")), [m.Arg(_ZERO)]
)


# Counts ------------------------------------------------------------------------------------------------------------


def divided_by(drafts: Drafts, draft: Draft, names: Collection[str], size: int) -> str:
    """Where the file counts something by dividing by the batch's size, in a clause; empty where nothing is seen.

    Of the data's samples, these are the steps of an epoch, which become fewer, as they should with batches of `size`.
    Of a larger batch's, they are the batches to accumulate, which become none.
    """
    for division, dividend, divisor in _divisions(draft):
        words = [node.value for node in draft.nodes(cst.Name, divisor)]
        words += [string_value(node) for node in draft.nodes(cst.SimpleString, divisor)]
        name = next((each for each in words if each and each in names), "")
        if name and not _of_data(drafts, draft, dividend, bound_to(draft, division), name, size):
            return f"line {draft.line(division)} divides by {name}, too, and what it counts would change with it"
    return ""


def _divisions(draft: Draft) -> Iterator[tuple[cst.CSTNode, cst.BaseExpression, cst.BaseExpression]]:
    """What a whole number comes out of, its dividend and its divisor: ``n // k``, ``n //= k``, ``divmod(n, k)``."""
    for division in draft.nodes(cst.BinaryOperation):
        if _counts(draft, division):
            yield division, division.left, division.right
    for update in draft.nodes(cst.AugAssign):
        if isinstance(update.operator, cst.FloorDivideAssign):
            yield update, update.target, update.value
    for call in draft.nodes(cst.Call):
        if m.matches(call, m.Call(m.Name("divmod"), [m.Arg(), m.Arg()])):
            yield call, call.args[0].value, call.args[1].value


def _counts(draft: Draft, division: cst.BinaryOperation) -> bool:
    """Whether a whole number comes out."""
    if isinstance(division.operator, cst.Divide):
        around = next((each for each in draft.ancestors(division) if isinstance(each, cst.Call)), None)
        return around is not None and full_name(draft, around.func) in _TO_COUNT
    return isinstance(division.operator, cst.FloorDivide)


def _of_data(drafts: Drafts, draft: Draft, dividend: cst.BaseExpression, bound: str, name: str, size: int) -> bool:
    """Whether samples of the data are divided: as many as something has, or too many for one batch.

    What comes out is called `bound`.
    """
    names = _names(draft, dividend)
    assigned = [each for each in draft.nodes(cst.Assign) if any(names & _names(draft, to) for to in each.targets)]
    values = [draft.code(each.value) for each in assigned]
    if any(_OF_DATA.search(each) for each in (draft.code(dividend), *values)):
        return True
    said = draft.code(dividend).replace(name, "")
    if _OF_BATCHES.search(said) or _ACCUMULATED.search(bound):
        return False
    parts = [each for kind in (cst.Integer, cst.Name, cst.Attribute) for each in draft.nodes(kind, dividend)]
    origins = [origin_of(drafts, draft, each) for each in parts]
    return any((parse_number(each.node) or 0) >= _MANY * size for each in origins if each is not None)


def _names(draft: Draft, node: cst.CSTNode) -> set[str]:
    """The names that are read or bound there: of ``self.n`` it is ``n``."""
    names = [(each, draft.parent(each)) for each in draft.nodes(cst.Name, node)]
    return {each.value for each, above in names if not (isinstance(above, cst.Attribute) and above.value is each)}


# The same number ----------------------------------------------------------------------------------------------------


def said_to_others(draft: Draft, size: int, own: Collection[cst.CSTNode]) -> int | None:
    """The line of a number beside `own` that says the batch's size, and to what is no loader: it would have to change.

    An argument for a parameter that is called so, or the default that a call leaves it at; a constant that is.
    """
    takers: dict[str, cst.FunctionDef] = {}
    for function in draft.nodes(cst.FunctionDef):
        holder = draft.enclosing_class(function) if function.name.value == "__init__" else None
        takers[holder.name.value if holder is not None else function.name.value] = function
    for call in draft.nodes(cst.Call):
        name = last_part(call.func)
        for value in _given_sizes(draft, call, takers.get(name)) if not is_harmless(name) else ():
            if is_number(value, size) and value not in own:
                return draft.line(call)
    known = {bound_to(draft, each) for each in own}
    assigns: list[cst.Assign | cst.AnnAssign] = [*draft.nodes(cst.Assign), *draft.nodes(cst.AnnAssign)]
    for assign in assigns:
        constant = assign.value
        if constant is None or constant in own or not is_number(constant, size):
            continue
        name = bound_to(draft, constant)
        if is_name(name) and name not in known and _is_read_by_others(draft, name, read_within(draft, constant)):
            return draft.line(assign)
    return None


def _given_sizes(draft: Draft, call: cst.Call, taker: cst.FunctionDef | None) -> Iterator[cst.BaseExpression]:
    """What a call gives parameters that are called like a batch's size; `taker` is the file's function that it calls.

    Those that the function gives to nothing but loaders are left out.
    """
    taken = {each.name.value: each for each in draft.nodes(cst.Param, taker.params)} if taker is not None else {}
    in_order = parameter_names(draft, taker) if taker is not None else []
    keywords = [arg.keyword.value for arg in call.args if arg.keyword is not None]
    for name in filter(is_name, dict.fromkeys((*keywords, *taken))):
        passed = argument(call, name, in_order)
        value = passed.value if passed is not None else taken[name].default
        if passed is None and any(arg.star for arg in call.args):
            continue
        if value is not None and (taker is None or name not in taken or _is_read_by_others(draft, name, taker.body)):
            yield value


def _is_read_by_others(draft: Draft, name: str, within: cst.CSTNode | None) -> bool:
    """Whether anything but loaders, and what only shows it, reads the name."""
    return any(not is_harmless(called) for _, called in readers(draft, name, within))


def fixed_by_hand(draft: Draft, size: int) -> int | None:
    """The line of a call that lays out a tensor for batches of `size`, written as a number: it would have to change.

    That is the first dimension, or the only one; or the second of three, as recurrent layers have their state. Weights
    and buffers, and what a data set makes of one sample, have none of the batch.
    """
    for call in draft.nodes(cst.Call):
        name = last_part(call.func)
        makes = name in _MADE and full_name(draft, call.func).startswith("torch.")
        # Of a list torch.LongTensor takes the values.
        makes = makes or (bool(_TYPED.fullmatch(name)) and not m.matches(call, m.Call(args=[m.Arg(m.List())])))
        if not makes and not (name in _LAID_OUT and isinstance(call.func, cst.Attribute)):
            continue
        sizes = _sizes(call, name)
        if not sizes or _kept_by_module(draft, call):
            continue
        state = len(sizes) == 3 and (makes or (name in _REPEATED and size > 1)) and is_number(sizes[1], size)
        # One is a dimension for broadcasting as often as a batch: flat samples, x.view(1, -1), are batches.
        rows = _is_times(sizes[0], size) and (size > 1 or (name in ("view", "reshape") and len(sizes) == 2))
        first = rows and not (makes and _is_of_one(draft, call))
        if state or first:
            return draft.line(call)
    return None


def counted_by_hand(draft: Draft, size: int) -> int | None:
    """The line of a number that says how many samples are in a batch of `size`: it would have to change.

    ``len(x) != 32``, ``x.shape == (32, 3, 8, 8)``; ``len(loader) * 32`` and ``i * 32`` of samples that were seen,
    ``len(data) // 32`` of batches; ``[1.0] * 32``; the two halves ``x[:32]`` and ``x[32:]``; and ``x[i]`` of each ``i``
    in ``range(32)``. One and two are too common to mean a batch.
    """
    return min((draft.line(each) for each in _counting(draft, size)), default=None) if size > _COMMON else None


def _counting(draft: Draft, size: int) -> Iterator[cst.CSTNode]:
    grown = {draft.code(each.value) for each in draft.nodes(cst.Attribute) if each.attr.value in ("append", "extend")}
    for comparison in draft.nodes(cst.Comparison):
        target = comparison.comparisons[0].comparator
        of_batch = m.matches(comparison.left, _LENGTH) and not grown & _names(draft, comparison.left)
        if of_batch and is_number(target, size):
            yield comparison
        if m.matches(comparison.left, _SHAPE) and isinstance(target, cst.Tuple) and _starts_with(target, size):
            yield comparison
    for product in draft.nodes(cst.BinaryOperation):
        for side, other in ((product.left, product.right), (product.right, product.left)):
            if not is_number(side, size) or not isinstance(product.operator, cst.Multiply):
                continue
            if _is_length_of_data(draft, other) or (isinstance(other, cst.List) and _becomes_tensor(draft, product)):
                yield product
            elif m.matches(draft.parent(product) or product, m.Index() | m.Slice()) or _is_share(draft, product):
                continue  # a tile of a picture; a percentage
            elif _counters(draft, product) & _names(draft, other):
                yield product
        floored = isinstance(product.operator, (cst.FloorDivide, cst.Divide)) and is_number(product.right, size)
        if floored and _counts(draft, product) and _is_length_of_data(draft, product.left):
            yield product
    begun = {draft.code(each.value) for each in draft.nodes(cst.Subscript) if _is_slice(each, None, size)}
    yield from (
        each for each in draft.nodes(cst.Subscript) if _is_slice(each, size, None) and draft.code(each.value) in begun
    )
    yield from (each for each in draft.nodes(cst.For) if _takes_each(draft, each, size))


def _becomes_tensor(draft: Draft, node: cst.BaseExpression) -> bool:
    """Whether it is what ``torch.tensor`` and the like are given, and no list of layers' sizes."""
    name, above = bound_to(draft, node), draft.parent(draft.parent(node) or node)
    for call in (each for each in draft.nodes(cst.Call) if "ensor" in last_part(each.func)):
        if call is above or (name and any(m.matches(arg.value, m.Name(name)) for arg in call.args)):
            return True
    return False


def _is_share(draft: Draft, product: cst.BinaryOperation) -> bool:
    """``100 * i / len(loader)``"""
    above = draft.parent(product)
    divides = isinstance(above, cst.BinaryOperation) and isinstance(above.operator, cst.Divide)
    return divides and "len(" in draft.code(cst.ensure_type(above or product, cst.BinaryOperation).right)


def _takes_each(draft: Draft, loop: cst.For, size: int) -> bool:
    """``for i in range(32):``, in each round of another loop, which takes ``x[i]`` of what that one gives."""
    around = draft.parent(draft.parent(loop) or loop)
    if not m.matches(loop.iter, m.Call(m.Name("range"), [m.Arg()])) or not isinstance(around, (cst.For, cst.While)):
        return False
    number = m.Name(draft.code(loop.target))
    taken = m.findall(loop.body, m.Subscript(m.Name(), [m.SubscriptElement(m.Index(number)), m.ZeroOrMore()]))
    given = _names(draft, around.target) if isinstance(around, cst.For) else set[str]()
    for assign in draft.nodes(cst.Assign, around):
        given |= {name for to in assign.targets for name in _names(draft, to)}
    known = any(draft.code(cst.ensure_type(each, cst.Subscript).value) in given for each in taken)
    return known and is_number(cst.ensure_type(loop.iter, cst.Call).args[0].value, size)


def _counters(draft: Draft, node: cst.CSTNode) -> set[str]:
    """What counts the batches of a loader around `node`: ``for i, x in enumerate(loader)``."""
    found = set[str]()
    for loop in (each for each in draft.ancestors(node) if isinstance(each, cst.For)):
        counted = m.matches(loop.iter, m.Call(m.Name("enumerate")) | m.Call(m.Attribute(attr=m.Name("enumerate"))))
        if counted and isinstance(loop.target, cst.Tuple) and _IS_DATA.search(draft.code(loop.iter)):
            found |= _names(draft, loop.target.elements[0].value)
    return found


def _is_length_of_data(draft: Draft, node: cst.BaseExpression) -> bool:
    return m.matches(node, m.Call(m.Name("len"), [m.Arg()])) and bool(_IS_DATA.search(draft.code(node)))


def _starts_with(sizes: cst.Tuple, size: int) -> bool:
    return bool(sizes.elements) and is_number(sizes.elements[0].value, size)


def _is_slice(node: cst.Subscript, lower: int | None, upper: int | None) -> bool:
    """``x[lower:upper]``, with nothing written for None."""
    part = node.slice[0].slice
    if not isinstance(part, cst.Slice) or part.step is not None:
        return False
    pairs = ((part.lower, lower), (part.upper, upper))
    return all(
        (given is None) == (said is None) and (given is None or said is None or is_number(given, said))
        for given, said in pairs
    )


def _is_times(node: cst.BaseExpression, size: int) -> bool:
    """The number, or a multiple that says it: ``2 * 32``."""
    if m.matches(node, m.BinaryOperation(m.Integer(), m.Multiply(), m.Integer())) and size > _COMMON:
        product = cst.ensure_type(node, cst.BinaryOperation)
        return is_number(product.left, size) or is_number(product.right, size)
    return is_number(node, size)


def takes_first(draft: Draft, call: cst.Call) -> int | None:
    """The line where a loop over the batches of the loader that `call` makes takes the first sample of one.

    ``x[0]``, ``x[0, :8]`` or ``x.squeeze(0)``, of what the loop is given or of what it makes of that: where batches are
    of one, the rest of larger ones would be left out. Of a batch that is a tuple, ``batch[0]`` is all of one part.
    """
    names = {bound_to(draft, call)} - {""}
    for assign in draft.nodes(cst.Assign):
        if names & _words(draft, assign.value):  # tqdm(loader)
            names |= {each for to in assign.targets for each in _names(draft, to)}
    for loop in draft.nodes(cst.For):
        if not names & _words(draft, loop.iter) and call not in draft.nodes(cst.Call, loop.iter):
            continue
        whole = loop.target.value if isinstance(loop.target, cst.Name) else ""
        known = _names(draft, loop.target)
        for assign in draft.nodes(cst.Assign, loop.body):
            if known & _words(draft, assign.value):
                known |= {each for to in assign.targets for each in _names(draft, to)}
        for taken in m.findall(loop.body, _FIRST):
            of = taken if isinstance(taken, cst.Subscript) else cst.ensure_type(taken, cst.Call).func
            assert isinstance(of, (cst.Subscript, cst.Attribute))
            all_of_a_part = isinstance(taken, cst.Subscript) and draft.code(of.value) == whole
            if known & _words(draft, of.value) and not all_of_a_part:
                return draft.line(taken)
    return None


def _words(draft: Draft, node: cst.CSTNode) -> set[str]:
    """All names there, of ``self.n`` both."""
    return {each.value for each in draft.nodes(cst.Name, node)}


def _sizes(call: cst.Call, name: str) -> list[cst.BaseExpression]:
    """The dimensions that a call lays a tensor out in, as far as they are written there one by one."""
    said = argument(call, "size")
    given = [arg.value for arg in call.args if arg.keyword is None and not arg.star]
    if said is not None:
        given = [said.value]
    elif name == "arange":  # from, to
        given = given[:1] if len(given) == 1 else given[1:2] if len(given) == 2 and is_number(given[0], 0) else []
    elif name == "randint":  # the numbers come first
        given = [each for each in given if isinstance(each, (cst.Tuple, cst.List))]
    if given and isinstance(given[0], (cst.Tuple, cst.List)):
        return [each.value for each in given[0].elements]
    return given


def _kept_by_module(draft: Draft, call: cst.Call) -> bool:
    """Whether the tensor becomes a weight or a buffer."""
    above = [each for each in draft.ancestors(call) if isinstance(each, cst.Call)]
    return any(last_part(each.func) in ("Parameter", "register_buffer", "register_parameter") for each in above)


def _is_of_one(draft: Draft, call: cst.Call) -> bool:
    """Whether it is made with its module, or is a data set's sample."""
    function = draft.function(call)
    return function is not None and function.name.value in ("__init__", "__getitem__", "__iter__")
