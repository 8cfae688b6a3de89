"""A cache is asked for the key that it is filled under: ``if name not in basis`` for ``if fmax not in basis``."""

from __future__ import annotations

import libcst as cst

from advisor.edit.draft import Draft
from advisor.edit.loading.only_read import only_read
from advisor.edit.names import last_part
from advisor.edit.scopes import assigned_once, imports, is_parameter, is_target, scope_of, variables

# What keeps all of what it is given, so that two keys are equal only where their parts are.
_WHOLE = ("str", "repr")
_OTHERWISE = (cst.Yield, cst.Await, cst.NamedExpr)
_PLAIN = (cst.Name, cst.Attribute, cst.Subscript, cst.Call, cst.FormattedString, cst.SimpleString, cst.Integer)


def ask_for_the_key(draft: Draft, line: int, cache: str) -> str:
    """Have the ``if key not in cache`` at `line` ask for the key that its body fills; why not, as a clause, or "".

    That what makes the value gives the same of the same is for the caller to know.
    """
    guard = next((each for each in draft.nodes(cst.If) if draft.line(each) == line), None)
    if guard is None or guard.orelse is not None or not isinstance(guard.body, cst.IndentedBlock):
        return "its source is not where it was"
    compared = draft.nodes(cst.Comparison, guard.test)
    filled = [each for each in draft.nodes(cst.Subscript, guard.body) if is_target(draft, each)]
    own = [each for each in filled if draft.code(each.value) == cache]
    index = _key(own[0]) if len(own) == 1 else None
    if len(compared) != 1 or index is None:
        return "the key that it is filled under is not one expression"
    if not _only_fills(draft, guard.body):
        return "more is done there than to fill it"
    for name in _names(draft, index):
        if not _known_before(draft, name, guard):
            return f"{name} is not known yet where the cache is asked"
    scope, last = scope_of(draft, guard), draft.position(guard.body).end.line
    for made in {each.value for each in draft.nodes(cst.Name, guard.body) if is_target(draft, each)}:
        if any(not line <= draft.line(each) <= last for each in variables(draft, made, scope)):
            return f"{made}, which is made there, is read behind it"
    for each in draft.nodes(cst.Subscript, scope):
        if draft.code(each.value) != cache or each is own[0]:
            continue
        if (key := _key(each)) is None or draft.code(key) != draft.code(index):
            return "it is read under another key"
        if not only_read(draft, each):
            return "what it keeps may be written to where it is read"
    # What differs from sample to sample has to be in the key, all of it: else samples would share what is another's.
    whole = _made_whole_of(draft, index, guard)
    for read_there in _reads(draft, guard.body):
        if not whole & set(_beginnings(read_there)):
            return f"what is kept depends on {read_there}, which its key may not tell"
    code = draft.code(index)
    draft.replace(compared[0].left, code if isinstance(index, _PLAIN) or index.lpar else f"({code})")
    return ""


def _key(item: cst.Subscript) -> cst.BaseExpression | None:
    """The one index of ``cache[key]``."""
    index = item.slice[0].slice if len(item.slice) == 1 else None
    return index.value if isinstance(index, cst.Index) else None


def _only_fills(draft: Draft, body: cst.IndentedBlock) -> bool:
    """Whether all it does is to give names and items a value."""
    statements = [small for line in body.body if isinstance(line, cst.SimpleStatementLine) for small in line.body]
    lines = all(isinstance(each, cst.SimpleStatementLine) for each in body.body)
    targets = [target.target for each in statements if isinstance(each, cst.Assign) for target in each.targets]
    return (
        lines
        and all(isinstance(each, cst.Assign) for each in statements)
        and all(isinstance(each, (cst.Name, cst.Subscript)) for each in targets)
        and not any(draft.nodes(kind, body) for kind in _OTHERWISE)
    )


def _names(draft: Draft, node: cst.CSTNode) -> set[str]:
    """The variables that it reads."""
    return {each.value for each in draft.nodes(cst.Name, node) if each in variables(draft, each.value, node)}


def _known_before(draft: Draft, name: str, guard: cst.If) -> bool:
    """Whether a name of the guarded code means the same at its test: a parameter, bound before it, or not in here."""
    scope = scope_of(draft, guard)
    bound = [each for each in variables(draft, name, scope) if is_target(draft, each)]
    if any(draft.line(each) >= draft.line(guard) for each in bound) or imports(draft, name, scope):
        return False
    around = [guard, *draft.ancestors(guard)]
    return not bound or is_parameter(scope, name) or any(_beside(draft, each, around) for each in bound)


def _beside(draft: Draft, target: cst.CSTNode, around: list[cst.CSTNode]) -> bool:
    """Whether the line that binds it always runs before: it stands in a block that is around the guard."""
    statement = draft.statement(target)
    return statement is not None and draft.parent(statement) in around


def _made_whole_of(draft: Draft, key: cst.BaseExpression, guard: cst.If) -> set[str]:
    """What two equal keys have in common, as it is written: parts of a tuple, or of a string that has them whole."""
    scope, found, todo = scope_of(draft, guard), set[str](), [key]
    while todo:
        part = todo.pop()
        if (code := draft.code(part)) in found:
            continue
        found.add(code)
        if isinstance(part, cst.FormattedString):
            inside = [each for each in part.parts if isinstance(each, cst.FormattedStringExpression)]
            todo.extend(each.expression for each in inside if each.format_spec is None)
        elif isinstance(part, cst.Tuple):
            todo.extend(each.value for each in part.elements)
        elif isinstance(part, cst.BinaryOperation) and isinstance(part.operator, cst.Add):
            todo.extend((part.left, part.right))
        elif isinstance(part, cst.Call) and last_part(part.func) in _WHOLE and len(part.args) == 1:
            todo.append(part.args[0].value)
        elif isinstance(part, cst.Name) and (value := assigned_once(draft, code, scope)) is not None:
            todo.append(value)
    return found


def _reads(draft: Draft, body: cst.IndentedBlock) -> list[str]:
    """What is read there of the function's own: its variables and their attributes, each as far as it is followed."""
    made = {each.value for each in draft.nodes(cst.Name, body) if is_target(draft, each)}
    scope = scope_of(draft, body.body[0])
    found = []
    for name in draft.nodes(cst.Name, body):
        if name not in variables(draft, name.value, body) or is_target(draft, name) or name.value in made:
            continue
        bound = any(is_target(draft, each) for each in variables(draft, name.value, scope))
        if not bound and not is_parameter(scope, name.value):
            continue  # of the module: a function, a setting
        whole: cst.CSTNode = name
        while isinstance(above := draft.parent(whole), cst.Attribute) and above.value is whole:
            whole = above
        found.append(draft.code(whole))
    return found


def _beginnings(dotted: str) -> list[str]:
    """``x.device.type`` → ``x``, ``x.device`` and itself: what says all of an object says all of its attributes."""
    parts = dotted.split(".")
    return [".".join(parts[: at + 1]) for at in range(len(parts))]
