"""``self.conv(F.interpolate(x, …))`` as ``F.interpolate(self.conv(x), …)``, where the convolution is one of 1x1."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from advisor.edit.calls import argument
from advisor.edit.draft import Draft, Statement
from advisor.edit.models import made_once
from advisor.edit.names import full_name, own_attribute
from advisor.edit.scopes import held_once, parse_number, self_assignments, variables

_INTERPOLATES = ("torch.nn.functional.interpolate", "torch.nn.functional.upsample")
_UPSAMPLES = ("torch.nn.Upsample", "torch.nn.UpsamplingBilinear2d", "torch.nn.UpsamplingNearest2d")
_CONVOLUTIONS = tuple(f"torch.nn.Conv{each}d" for each in (1, 2, 3))
# Of a convolution of one pixel: where each stands among its arguments, and what it may be.
_OF_ONE_PIXEL = (("kernel_size", 2, 1.0), ("stride", 3, 1.0), ("padding", 4, 0.0), ("dilation", 5, 1.0))


@dataclass(frozen=True)
class Enlarging:
    """An upsampling and the call of a convolution that is given what it gives, in one expression or in two lines."""

    upsampling: cst.Call
    convolution: cst.Call
    lines: tuple[Statement, ...]  # that of the upsampling, if it has one of its own, and the convolution's


def enlargings(draft: Draft, line: int) -> list[Enlarging]:
    """Those in the function that begins at `line` (0: outside of all), in the order of the text."""
    found = []
    for call in draft.nodes(cst.Call):
        if draft.function_line(call) == line and len(call.args) == 1 and _of_one_pixel(draft, call.func):
            given = call.args[0]
            each = _enlarging(draft, call, given.value) if given.keyword is None and not given.star else None
            found += [each] if each is not None else []
    return found


def convolve_first(draft: Draft, found: Enlarging) -> str:
    """Have the convolution come first; why not, as a clause."""
    upsampling, convolution = found.upsampling, found.convolution
    given = upsampling.args[0]
    if any("#" in draft.code(each) for each in (upsampling, convolution)):
        return "comments stand between the two"
    if given.keyword is not None or given.star:
        return "what is enlarged is not its first argument"
    inner, layer = draft.code(given.value), draft.code(convolution.func)
    if len(found.lines) == 1:
        changed = given.with_changes(value=cst.parse_expression(f"{layer}({inner})"))
        outer = upsampling.with_changes(args=[changed, *upsampling.args[1:]])
        draft.change(convolution, lambda _: outer)
        return ""
    name = draft.code(convolution.args[0].value)
    read = [each for rest in upsampling.args[1:] for each in draft.nodes(cst.Name, rest) if each.value == name]
    if read:
        return f"how large it becomes depends on {name}"
    renamed = upsampling.with_changes(args=[given.with_changes(value=cst.Name(name)), *upsampling.args[1:]])
    draft.replace(upsampling, f"{layer}({inner})")
    draft.change(convolution, lambda _: renamed)
    return ""


def _enlarging(draft: Draft, convolution: cst.Call, given: cst.BaseExpression) -> Enlarging | None:
    here = draft.statement(convolution)
    if here is None:
        return None
    if isinstance(given, cst.Call):
        return Enlarging(given, convolution, (here,)) if _upsamples(draft, given) else None
    before = _before(draft, convolution, given, here) if isinstance(given, cst.Name) else None
    if before is None:
        return None
    value = cst.ensure_type(cst.ensure_type(before, cst.SimpleStatementLine).body[0], cst.Assign).value
    if not isinstance(value, cst.Call) or not _upsamples(draft, value):
        return None
    return Enlarging(value, convolution, (before, here))


def _before(draft: Draft, convolution: cst.Call, given: cst.Name, here: Statement) -> cst.SimpleStatementLine | None:
    """The line right before `here` that gives a name its value, which nothing needs but the convolution."""
    held = held_once(draft, given)
    if held is not None:
        return held[1]
    siblings = draft.siblings(here)
    before = siblings[siblings.index(here) - 1] if siblings.index(here) else None
    if not isinstance(here, cst.SimpleStatementLine) or not isinstance(before, cst.SimpleStatementLine):
        return None
    if len(before.body) != 1 or _assigned(before.body[0]) != given.value:
        return None
    last = here.body[0]
    if not isinstance(last, (cst.Return, cst.Assign)) or last.value is not convolution:
        return None
    again = _assigned(last) == given.value  # from here on the name is what the convolution gives
    others = [each for each in variables(draft, given.value, here) if each is not given]
    return before if (again or isinstance(last, cst.Return)) and len(others) == again else None


def _assigned(statement: cst.BaseSmallStatement) -> str:
    """The one name that a statement gives a value."""
    if not isinstance(statement, cst.Assign) or len(statement.targets) != 1:
        return ""
    target = statement.targets[0].target
    return target.value if isinstance(target, cst.Name) else ""


def _upsamples(draft: Draft, call: cst.Call) -> bool:
    if not call.args:
        return False
    if full_name(draft, call.func) in _INTERPOLATES:
        return True
    made = _made(draft, call.func)
    return made is not None and full_name(draft, made.func) in _UPSAMPLES and len(call.args) == 1


def _made(draft: Draft, func: cst.BaseExpression) -> cst.Call | None:
    """The call that makes what a name is, or what ``self.name`` is in its class."""
    holder, name = draft.enclosing_class(func), own_attribute(func)
    if holder is None or not name:
        return made_once(draft, func)
    values = self_assignments(draft, holder, name)
    value = values[0] if len(values) == 1 else None
    return value if isinstance(value, cst.Call) else None


def _of_one_pixel(draft: Draft, func: cst.BaseExpression) -> bool:
    """Whether a name or ``self.name`` is a convolution that treats each pixel for itself, as the file says."""
    made = _made(draft, func)
    if made is None or full_name(draft, made.func) not in _CONVOLUTIONS or any(each.star for each in made.args):
        return False
    positional = [each for each in made.args if each.keyword is None]
    for name, at, value in _OF_ONE_PIXEL:
        given = argument(made, name) or (positional[at] if at < len(positional) else None)
        if given is None and name == "kernel_size":
            return False
        if given is not None and not _is(given.value, value):
            return False
    return True


def _is(node: cst.BaseExpression, value: float) -> bool:
    """Whether a number, or each of a tuple, is `value`."""
    if isinstance(node, cst.Tuple):
        return bool(node.elements) and all(_is(each.value, value) for each in node.elements)
    return parse_number(node) == value
