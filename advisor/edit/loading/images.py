"""What datasets of the script's own do with images: what they hand to a transform, and what comes of the result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst
import libcst.matchers as m

from advisor.edit.callers import callers
from advisor.edit.calls import argument
from advisor.edit.dataflow import Dataflow
from advisor.edit.draft import Draft
from advisor.edit.names import full_name, last_part
from advisor.edit.preceding import last_given
from advisor.edit.scopes import parameter_names
from advisor.edit.sums import elements, root

# Whose functions make arrays, numbers of a random generator aside.
_ARRAYS = ("numpy.", "np.", "cv2.", "skimage.", "imageio.", "tifffile.", "scipy.")
_READS_ARRAYS = ("imread", "imdecode")
# What gives a PIL image, whatever it is made of.
_IMAGES = ("open", "fromarray", "convert", "to_pil_image", "ToPILImage", "pil_loader", "default_loader")
_FETCHES = ("__getitem__", "__getitems__", "__iter__", "__next__")
_HOLDS = (cst.Element, cst.DictElement, cst.Tuple, cst.List, cst.Dict, cst.IfExp)
_FOLLOWED = 4  # names and methods that an image is followed through
SIZES = m.Attribute(attr=m.Name("shape") | m.Name("size") | m.Name("ndim") | m.Name("dim"))


def makes_arrays(draft: Draft, node: cst.CSTNode) -> bool:
    """Whether a transform makes an array of an image: there, or in the class or function of the file that it names."""
    names = {each.value for each in draft.nodes(cst.Name, node)}
    definitions: list[cst.FunctionDef | cst.ClassDef] = [*draft.nodes(cst.FunctionDef), *draft.nodes(cst.ClassDef)]
    parts = [node, *(each for each in definitions if each.name.value in names)]
    named = (full_name(draft, each) for each in draft.nodes(cst.Attribute, node))  # T.Lambda(np.asarray)
    return any(_arrays(draft, each) for each in parts) or any(map(_is_of_arrays, named))


def passes_images_on(files: Sequence[Draft], call: cst.Call, given: cst.BaseExpression, arrays: bool = False) -> bool:
    """Whether the dataset that `call` makes hands PIL images to `given`, and nobody else what it makes of them.

    `given` is a transform, which may take `arrays` as well, or another dataset; `files` are those that the class may be
    in. A class of none of them is taken for one that does, unless it is told how to read an image.
    """
    name = last_part(call.func)
    found = ((draft, each) for draft in files for each in draft.nodes(cst.ClassDef) if each.name.value == name)
    draft, cls = next(found, (None, None))
    if draft is None or cls is None:
        return arrays or argument(call, "loader") is None
    classes = [cls, *_bases(draft, cls)]
    uses = list(_uses(draft, classes, _attributes(draft, classes, call, given)))
    if not uses:  # by what it inherits from elsewhere, if at all
        methods = [each.name.value for cls in classes for each in draft.nodes(cst.FunctionDef, cls)]
        return not any(each in _FETCHES for each in methods)
    flow = _Arrays(draft, _arrays(draft, draft.module))
    images = (each.args[0].value for each in uses if isinstance(each, cst.Call) and each.args)
    return (arrays or not any(map(flow.may_be, images))) and all(_only_returned(draft, each) for each in uses)


class _Arrays(Dataflow):
    """What may be an array, and no PIL image."""

    def may_be(self, node: cst.BaseExpression | None, depth: int = 2 * _FOLLOWED) -> bool:
        """Whether an expression may give an array: by what its names were given last, as far as that decides."""
        given = last_given(self.draft, node) if isinstance(node, cst.Name) else None
        if given is not None and depth:
            return self.may_be(given, depth - 1)
        if isinstance(node, cst.Call) and depth and node not in self._seeds:
            parts: list[cst.BaseExpression | None] = [*_worked_on(node)]
            if own := self._own(node):
                parts = [each.value for function in own for each in self.draft.nodes(cst.Return, function)]
            return any(self.may_be(each, depth - 1) for each in parts)
        return self.carries(node)

    def called(self, call: cst.Call) -> bool:
        return any(map(self.carries, _worked_on(call)))


def _worked_on(call: cst.Call) -> list[cst.BaseExpression]:
    """What a function or a method makes something else of: what else it is given says how. Nothing for an image."""
    function = call.func.func if isinstance(call.func, cst.Call) else call.func  # T.ToPILImage()(array)
    if last_part(function) in _IMAGES:
        return []
    first = [each.value for each in call.args[:1]]
    return [function.value, *first] if isinstance(function, cst.Attribute) else first


def _arrays(draft: Draft, within: cst.CSTNode) -> list[cst.Call]:
    """The calls that make arrays."""
    names = ((each, full_name(draft, each.func)) for each in draft.nodes(cst.Call, within))
    return [each for each, name in names if _is_of_arrays(name) or last_part(each.func) in _READS_ARRAYS]


def _is_of_arrays(name: str) -> bool:
    return name.startswith(_ARRAYS) and ".random" not in name


def _bases(draft: Draft, cls: cst.ClassDef) -> Iterator[cst.ClassDef]:
    """The classes of the file that a class inherits, directly or not."""
    defined = {each.name.value: each for each in draft.nodes(cst.ClassDef)}
    for base in cls.bases:
        above = defined.get(last_part(base.value))
        if above is not None and above is not cls:
            yield above
            yield from _bases(draft, above)


def _attributes(draft: Draft, classes: Sequence[cst.ClassDef], call: cst.Call, given: cst.BaseExpression) -> set[str]:
    """The attributes that may keep what the classes' constructor is given: of its name, or assigned from it."""
    inits = [each for cls in classes for each in draft.nodes(cst.FunctionDef, cls) if each.name.value == "__init__"]
    names = parameter_names(draft, inits[0]) if inits else []
    keywords = {arg.keyword.value for arg in call.args if arg.keyword is not None and arg.value is given}
    places = {name for name, arg in zip(names, call.args, strict=False) if arg.keyword is None and arg.value is given}
    kept = keywords | places
    for cls in classes:
        for assign in draft.nodes(cst.Assign, cls):
            for to, value in zip(elements(assign.targets[0].target), elements(assign.value), strict=False):
                if kept & {each.value for each in _alternatives(value)}:
                    kept.add(last_part(to))
        for arg in draft.nodes(cst.Arg, cls):  # super().__init__(root, transform=augment)
            if arg.keyword is not None and last_part(arg.value) in kept:
                kept.add(arg.keyword.value)
    return kept - {""}


def _alternatives(value: cst.BaseExpression) -> list[cst.Name]:
    """The names that an expression stands for: ``transform``, ``transform or ToTensor()``."""
    if isinstance(value, cst.BooleanOperation):
        return [*_alternatives(value.left), *_alternatives(value.right)]
    if isinstance(value, cst.IfExp):
        return [*_alternatives(value.body), *_alternatives(value.orelse)]
    return [value] if isinstance(value, cst.Name) else []


def _uses(draft: Draft, classes: Sequence[cst.ClassDef], kept: set[str]) -> Iterator[cst.Call | cst.Subscript]:
    """Where methods call a transform that the object keeps, or ask a dataset that it keeps, or a base, for a sample."""
    own = m.Attribute(value=m.Name("self"), attr=m.Name(m.MatchIfTrue(lambda name: name in kept)))
    for cls in classes:
        for call in draft.nodes(cst.Call, cls):
            if m.matches(call.func, own | m.Attribute(attr=m.Name("__getitem__"))):
                yield call
        for item in draft.nodes(cst.Subscript, cls):
            if m.matches(item.value, own):
                yield item


def _only_returned(draft: Draft, node: cst.BaseExpression, depth: int = _FOLLOWED) -> bool:
    """Whether an image goes nowhere but into what a method returns: as it is, by a name, or by way of its callers."""
    function = draft.function(node)
    if function is None or not depth:
        return False
    target = _given_to(draft, node)
    if target is not None:
        return all(_only_returned(draft, each, depth - 1) for each in _read(draft, target, function))
    above = draft.parent(node)
    if m.matches(above or node, SIZES) or m.matches(draft.parent(above or node) or node, m.Call(func=m.Name("len"))):
        return True
    if isinstance(above, cst.Subscript) and above.value is node:
        return _only_returned(draft, above, depth)  # an item of a sample
    while isinstance(above, _HOLDS):
        above = draft.parent(above)
    if not isinstance(above, (cst.Return, cst.Yield)):
        return False
    name = function.name.value
    own = [each for each in callers(draft, function) if draft.code(each.func) in (name, f"self.{name}")]
    return name in _FETCHES or all(_only_returned(draft, each, depth - 1) for each in own)


def _given_to(draft: Draft, node: cst.BaseExpression) -> cst.Name | cst.Subscript | None:
    """The name, or the item of a sample, that an expression is assigned to; the first of several that take it apart."""
    around: list[cst.CSTNode] = [node]
    above = draft.parent(node)
    while isinstance(above, _HOLDS):
        around.append(above)
        above = draft.parent(above)
    if not isinstance(above, cst.Assign) or len(above.targets) != 1:
        return None
    target: cst.BaseExpression = above.targets[0].target
    value = above.value
    if isinstance(target, cst.Tuple):
        place = 0  # the image comes first
        if isinstance(value, cst.Tuple) and len(value.elements) == len(target.elements):
            place = next(index for index, each in enumerate(value.elements) if each in around)
        target = target.elements[place].value
    return target if isinstance(target, (cst.Name, cst.Subscript)) and isinstance(root(target), cst.Name) else None


def _read(draft: Draft, target: cst.Name | cst.Subscript, function: cst.FunctionDef) -> Iterator[cst.BaseExpression]:
    """Where a method reads what it has assigned to `target`, below that; of an item, also the whole sample."""
    assign = next(each for each in draft.ancestors(target) if isinstance(each, cst.Assign))
    whole = cst.ensure_type(root(target), cst.Name)
    for name in draft.nodes(cst.Name, function):
        above = draft.parent(name)
        labels = (isinstance(above, cst.Attribute) and above.attr is name) or (
            isinstance(above, cst.Arg) and above.keyword is name
        )
        if name.value != whole.value or labels or draft.line(name) <= draft.position(assign).end.line:
            continue
        item = isinstance(target, cst.Subscript) and isinstance(above, cst.Subscript) and above.value is name
        if item and not cst.ensure_type(above or name, cst.Subscript).deep_equals(target):
            continue
        if not any(isinstance(each, cst.AssignTarget) for each in draft.ancestors(name)):
            yield cst.ensure_type(above or name, cst.Subscript) if item else name
