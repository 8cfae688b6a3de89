"""Whether all that meets the model on another device is moved there, as far as the source shows."""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from advisor.edit.calls import argument
from advisor.edit.draft import Draft
from advisor.edit.names import last_part
from advisor.edit.scopes import assignments, scope_of

_ON_CPU = m.Call(func=m.Attribute(attr=m.OneOf(*map(m.Name, ("cpu", "tolist", "item")))))
_SIZES = ("shape", "size", "dim", "ndim", "dtype", "numel", "item", "tolist")


def moves_to(draft: Draft, call: cst.Call, device: str) -> bool:
    """Whether the call is ``….to(device)``, the device written as it is given."""
    moves = m.matches(call.func, m.Attribute(attr=m.Name("to"))) and bool(call.args)
    return moves and draft.code(call.args[0].value) == device


def stays_behind(draft: Draft, device: str) -> str:
    """What is not moved to `device`, or cannot be read from there, as a clause; "" where nothing is seen."""
    read = [each for each in draft.nodes(cst.Call) if argument(each, "force") is None]
    for call in read:
        numpy = call.func if m.matches(call.func, m.Attribute(attr=m.Name("numpy"))) else None
        if isinstance(numpy, cst.Attribute) and not _from_cpu(draft, numpy.value):
            return "the script reads tensors as NumPy arrays, which refuse those on a GPU"
    for loop in draft.nodes(cst.For):
        moves = [each for each in draft.nodes(cst.Call, loop.body) if moves_to(draft, each, device)]
        names = _targets(draft, loop) if any(draft.loop(each) is loop for each in moves) else []
        if left := next((name for name in names if not _moved(draft, loop, name, device)), ""):
            return f"the loop's {left} is used without being moved to the device"
    return ""


def _from_cpu(draft: Draft, node: cst.BaseExpression, depth: int = 4) -> bool:
    """``loss.detach().cpu()``, or a name that is given such a value."""
    if m.findall(node, _ON_CPU):
        return True
    values = assignments(draft, last_part(node), scope_of(draft, node)) if isinstance(node, cst.Name) and depth else ()
    return any(each is not None and _from_cpu(draft, each, depth - 1) for each in values)


def _targets(draft: Draft, loop: cst.For) -> list[str]:
    """The names that a loop gives its items, numbers of ``enumerate`` and ``range`` left out."""
    if m.findall(loop.iter, m.Call(func=m.Name("range"))):
        return []
    names = [each.value for each in draft.nodes(cst.Name, loop.target)]
    return names[1:] if m.matches(loop.iter, m.Call(func=m.Name("enumerate"))) else names


def _moved(draft: Draft, loop: cst.For, name: str, device: str) -> bool:
    """Whether each use of a loop's name moves it, comes after that, or does not meet the model."""
    moving: list[cst.Assign] = []  # ``x = x.to(device)``
    for assign in draft.nodes(cst.Assign, loop.body):
        given = {each.value for target in assign.targets for each in draft.nodes(cst.Name, target)}
        if name in given and any(moves_to(draft, each, device) for each in draft.nodes(cst.Call, assign.value)):
            moving.append(assign)
    for use in draft.nodes(cst.Name, loop.body):
        fine = use.value != name or _is_moved(draft, use, device) or _looks(draft, use)
        if not fine and (not moving or any(above in moving for above in draft.ancestors(use))):
            return False
    return True


def _is_moved(draft: Draft, use: cst.Name, device: str) -> bool:
    """``x.to(device)``, ``batch["x"].to(device)``, ``to_device(x, device)``, ``[t.to(device) for t in batch]``."""
    node: cst.CSTNode = use
    for above in draft.ancestors(use):
        if isinstance(above, cst.Call) and above.func is node and moves_to(draft, above, device):
            return True
        if isinstance(above, cst.CompFor) and above.iter is node:
            made = draft.parent(above)
            return made is not None and any(moves_to(draft, each, device) for each in draft.nodes(cst.Call, made))
        if isinstance(above, cst.Arg):
            call = draft.parent(above)
            return isinstance(call, cst.Call) and any(draft.code(each.value) == device for each in call.args)
        if not isinstance(above, (cst.Attribute, cst.Subscript, cst.Call)) or node is getattr(above, "attr", None):
            return False
        node = above
    return False


def _looks(draft: Draft, use: cst.Name) -> bool:
    """A use that binds the name, is of another thing of that name, or takes no more than a size, an index or a text."""
    above = draft.parent(use)
    if isinstance(above, (cst.AssignTarget, cst.Index, cst.FormattedStringExpression)):
        return True
    if isinstance(above, cst.Element) and any(isinstance(each, cst.AssignTarget) for each in draft.ancestors(use)):
        return True
    if isinstance(above, cst.Attribute):
        return above.attr is use or above.attr.value in _SIZES
    if isinstance(above, cst.Arg):
        return above.keyword is use or m.matches(
            draft.parent(above) or above, m.Call(func=m.Name("len") | m.Name("print"))
        )
    return False
