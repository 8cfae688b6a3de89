"""Images that are normalized where they are copied to, by the script's own loop, instead of by their transform."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst
import libcst.matchers as m

from advisor.edit.callers import callers
from advisor.edit.calls import argument
from advisor.edit.draft import Draft, Statement
from advisor.edit.loading.images import SIZES, makes_arrays, passes_images_on
from advisor.edit.locate import last_name
from advisor.edit.names import add_import, ensure_name, fresh_name
from advisor.edit.regions import bound_names
from advisor.edit.sums import root


def normalizing_behind(files: Sequence[Draft], loader: cst.Call) -> cst.Call | None:
    """The ``Normalize(…)`` behind a ``ToTensor()`` at the end of the only Compose, if it feeds this loader alone.

    And if what it is given are PIL images, which nobody looks at on their way; `files` are the loader's, and others.
    """
    draft = files[0]
    composed = [call for call in draft.nodes(cst.Call) if last_name(draft, call) == "Compose"]
    if len(composed) != 1 or not composed[0].args or not isinstance(composed[0].args[0].value, cst.List):
        return None
    steps = [each.value for each in composed[0].args[0].value.elements]
    before, last = steps[:-2], steps[-2:]
    names = [last_name(draft, each) for each in last if isinstance(each, cst.Call)]
    pil = "PIL" in draft.source.text or "torchvision.datasets" in draft.source.text or "datasets." in draft.source.text
    way = _way(draft, composed[0], loader)
    if names != ["ToTensor", "Normalize"] or not pil or way is None:
        return None
    if any(makes_arrays(draft, each) for each in before):
        return None
    made_images = any(isinstance(each, cst.Call) and last_name(draft, each) == "ToPILImage" for each in before)
    if not all(passes_images_on(files, call, given, arrays=made_images) for given, call in way):
        return None
    normalize = cst.ensure_type(last[1], cst.Call)
    return normalize if len(normalize.args) == 2 and not any(arg.star for arg in normalize.args) else None


def _way(draft: Draft, value: cst.BaseExpression, loader: cst.Call) -> list[tuple[cst.BaseExpression, cst.Call]] | None:
    """The calls that a value is handed to on its way to this loader, each with what it is handed.

    None where it reaches anything else: inline, or through names each used once (and in ``len``).
    """
    way: list[tuple[cst.BaseExpression, cst.Call]] = []
    for _ in range(4):
        above = draft.parent(value)
        while isinstance(above, cst.Arg):
            call = draft.parent(above)
            if call is loader:
                return way
            if not isinstance(call, cst.Call):
                return None
            way.append((value, call))
            value, above = call, draft.parent(call)
        if not isinstance(above, cst.Assign) or len(above.targets) != 1:
            return None
        target = above.targets[0].target
        uses = [
            name
            for name in draft.nodes(cst.Name)
            if name is not target and m.matches(target, m.Name(name.value)) and not _keyword(draft, name)
        ]
        uses = [name for name in uses if not _measured(draft, name)]
        if len(uses) != 1:
            return None
        value = uses[0]
    return None


def _keyword(draft: Draft, name: cst.Name) -> bool:
    """Whether the name only labels an argument, a parameter or an attribute."""
    above = draft.parent(name)
    if isinstance(above, cst.Arg):
        return above.keyword is name
    if isinstance(above, cst.Attribute):
        return above.attr is name
    return isinstance(above, cst.Param) or _inside_other_function(draft, name)


def _inside_other_function(draft: Draft, name: cst.Name) -> bool:
    """Whether a parameter of the same name hides it: ``def __init__(self, transform)`` and what uses it there."""
    function = draft.function(name)
    return function is not None and any(
        each.name.value == name.value for each in (*function.params.params, *function.params.kwonly_params)
    )


def _measured(draft: Draft, name: cst.CSTNode) -> bool:
    above = draft.parent(draft.parent(name) or name)
    return m.matches(above or name, m.Call(func=m.Name("len")))


def reads_only_copies(draft: Draft, loader: cst.Call, copy: cst.Call) -> bool:
    """Whether the loop around the copy is all that reads the loader's batches, and the copy all that reads floats."""
    assign = draft.parent(loader)
    function = draft.function(copy)
    read: cst.CSTNode = loader
    if isinstance(assign, cst.Assign) and len(assign.targets) == 1:
        uses = _uses(draft, assign.targets[0].target)
        if len(uses) != 1:
            return False
        read = uses[0]
    loops = [each for each in draft.ancestors(copy) if isinstance(each, cst.For)]
    around = {id(each) for each in draft.ancestors(read)}
    iterated = next((each for each in loops if id(each.iter) in around | {id(read)}), None)
    if iterated is None and function is not None:  # train(model, loader)
        calls = callers(draft, function)
        if len(calls) != 1 or id(calls[0]) not in around:
            return False
        parameters = {each.name.value for each in function.params.params}
        iterated = next(
            (each for each in loops if parameters & {name.value for name in draft.nodes(cst.Name, each.iter)}), None
        )
    if iterated is None:
        return False
    copied = cst.ensure_type(copy.func, cst.Attribute).value
    receiver = root(copied)
    # Under another name, what was copied is still there behind the copy, and still bytes.
    stays = isinstance(copied, cst.Name) and _copied_to(draft.statement(copy), copy) != copied.value
    parts = draft.nodes(cst.Subscript, iterated.body)
    if any(each is not copied and each.deep_equals(copied) for each in parts):
        return False
    before = [
        name
        for name in draft.nodes(cst.Name, iterated.body)
        if m.matches(receiver, m.Name(name.value)) and name is not copied
        if stays or draft.line(name) < draft.line(copy)
    ]
    return all(
        m.matches(draft.parent(each) or each, SIZES)
        or _measured(draft, each)
        or any(isinstance(above, cst.AssignTarget) for above in draft.ancestors(each))
        for each in before
    )


def _uses(draft: Draft, target: cst.BaseExpression) -> list[cst.CSTNode]:
    """Where a loader is used by its name, other than for its length or an attribute."""
    nodes: list[cst.Name | cst.Attribute] = [*draft.nodes(cst.Name), *draft.nodes(cst.Attribute)]
    found = [each for each in nodes if each is not target and each.deep_equals(target)]
    found = [each for each in found if not isinstance(draft.parent(each), cst.Attribute)]
    return [
        each
        for each in found
        if not _measured(draft, each) and not (isinstance(each, cst.Name) and _keyword(draft, each))
    ]


def way_there(draft: Draft, copy: cst.Call) -> tuple[str, str] | None:
    """How a constant gets where the copy goes: (what its factory is told, which method is called on it), one is "".

    None where the copy casts as well: the bytes would be cast before they travel, and normalized be float32 again.
    """
    function = cst.ensure_type(copy.func, cst.Attribute)
    if {last_name(draft, call) for call in draft.nodes(cst.Call, function.value)} - {"pin_memory", "contiguous"}:
        return None
    method = function.attr.value
    parameters = ("device", "non_blocking") if method == "cuda" else ("device",)
    given = argument(copy, "device", parameters)
    allowed = [given, *(argument(copy, name, parameters) for name in ("non_blocking", "memory_format"))]
    if any(arg.star or arg not in allowed for arg in copy.args):
        return None
    if method == "cuda" and given is not None:
        return "", f".cuda({draft.code(given.value)})"  # None is the current device here, and the CPU to a factory
    if method == "to" and given is None:
        return None
    return ', device="cuda"' if given is None else f", device={draft.code(given.value)}", ""


def normalize_after(draft: Draft, copy: cst.Call, normalize: cst.Call, way: tuple[str, str]) -> bool:
    """Have the copied images normalized behind the statement that copies them, with constants made before the loop."""
    statement = draft.statement(copy)
    name = _copied_to(statement, copy)
    loop: Statement | None = draft.loop(copy)
    while loop is not None and (outer := draft.loop(loop)) is not None:
        loop = outer
    if statement is None or loop is None or not name or draft.block(loop) is None:
        return False
    if _left_out(draft, copy):
        return False
    if _bound_in(draft, loop) & {each.value for arg in copy.args for each in draft.nodes(cst.Name, arg.value)}:
        return False
    given = [argument(normalize, each, ("mean", "std")) for each in ("mean", "std")]
    values = [draft.code(each.value) for each in given if each is not None]
    if len(values) != 2 or _local_to_another(draft, normalize, loop):
        return False
    tensor = ensure_name(draft, "torch.tensor")
    mean, std = (fresh_name(draft, each) for each in ("mean", "std"))
    for constant, code in zip((mean, std), values, strict=True):
        draft.insert_before(loop, f"{constant} = {tensor}({code}{way[0]}).view(1, -1, 1, 1){way[1]}")
    draft.insert_after(statement, f"{name} = {name}.float().div_(255).sub_({mean}).div_({std})")
    return True


def _left_out(draft: Draft, copy: cst.Call) -> bool:
    """Whether a round of the loop may go on without the copy: ``if cuda:``, where bytes would reach the model."""
    for above in draft.ancestors(copy):
        if isinstance(above, (cst.For, cst.While)):
            return False
        if isinstance(above, (cst.If, cst.Try)):
            return True
    return False


def _local_to_another(draft: Draft, normalize: cst.Call, loop: Statement) -> bool:
    """Whether a transform is given what only the function around it knows, and the loop is in another one."""
    function = draft.function(normalize)
    if function is None or function is draft.function(loop):
        return False
    local = bound_names(draft, function) | {each.name.value for each in draft.nodes(cst.Param, function.params)}
    return bool(local & {each.value for arg in normalize.args for each in draft.nodes(cst.Name, arg.value)})


def _bound_in(draft: Draft, loop: Statement) -> set[str]:
    targets = {name.value for each in draft.nodes(cst.For, loop) for name in draft.nodes(cst.Name, each.target)}
    return targets | bound_names(draft, loop)


def _copied_to(statement: cst.CSTNode | None, copy: cst.Call) -> str:
    """The name that the copied tensor is given by ``x = x.to(d)`` or ``x, y = x.to(d), y.to(d)``."""
    if not m.matches(statement or copy, m.SimpleStatementLine([m.Assign(targets=[m.AssignTarget()])])):
        return ""
    assign = cst.ensure_type(cst.ensure_type(statement or copy, cst.SimpleStatementLine).body[0], cst.Assign)
    target: cst.CSTNode = assign.targets[0].target
    value = assign.value
    if isinstance(target, cst.Tuple) and isinstance(value, cst.Tuple) and len(target.elements) == len(value.elements):
        pairs = zip(target.elements, value.elements, strict=True)
        target = next((each.value for each, given in pairs if given.value is copy), target)
    elif value is not copy:
        return ""
    return target.value if isinstance(target, cst.Name) else ""


def deliver_bytes(draft: Draft, normalize: cst.Call) -> None:
    """Have the list of transforms end in PILToTensor."""
    element = draft.parent(normalize)
    holder = cst.ensure_type(draft.parent(element or normalize) or normalize, cst.List)
    convert = cst.ensure_type(holder.elements[-2].value, cst.Call)
    if isinstance(convert.func, cst.Attribute):
        draft.change(convert.func.attr, lambda _: cst.Name("PILToTensor"))
    else:
        draft.change(convert.func, lambda _: cst.Name("PILToTensor"))
        add_import(draft, "from torchvision.transforms import PILToTensor")

    def change(node: cst.CSTNode) -> cst.CSTNode:
        elements = list(cst.ensure_type(node, cst.List).elements)
        removed = elements.pop()
        elements[-1] = elements[-1].with_changes(comma=removed.comma)
        return node.with_changes(elements=elements)

    draft.change(holder, change)
