"""Which names of a file may hold a value, or a part of it, or what is made of it: followed through the text.

Through assignments, loops, lists and dictionaries, the parameters and the results of the file's own functions. What
else hands a value on depends on what is asked: :class:`Dataflow` takes every computation for one that does, and its
subclasses say which do not.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from itertools import islice

import libcst as cst

from advisor.edit.calls import argument
from advisor.edit.draft import Draft, Drafts
from advisor.edit.locate import last_name
from advisor.edit.modules import TooManyFilesError, with_word
from advisor.edit.names import full_name, imported_as, imports_anywhere
from advisor.edit.scopes import parameter_names, scope_of
from advisor.edit.sums import CUT_ATTRIBUTES, CUT_FUNCTIONS, CUT_METHODS, TAKES_IN, elements, root

# A name in the scope that binds it; of an attribute, whichever object's, only the name.
_Holder = tuple[cst.CSTNode | None, str]
_COMPREHENSIONS = (cst.ListComp, cst.SetComp, cst.GeneratorExp)
_WITH_INDICES = frozenset(["max", "min", "sort", "topk", "kthvalue", "median", "mode"])  # indices: other numbers
_MOST_USERS = 10  # modules that are looked through for calls of one function
_TURNS = frozenset(["enumerate", "tqdm", "zip", "list", "tuple", "reversed", "iter", "next", "dict", "sorted"])


def _users(drafts: Drafts, draft: Draft, name: str) -> Iterator[Draft]:
    with contextlib.suppress(TooManyFilesError):
        yield from with_word(drafts, draft, name)


class Dataflow:
    """What the expressions `seeds` give, and what becomes of it."""

    cut_attributes: frozenset[str] = CUT_ATTRIBUTES
    cut_functions: frozenset[str] = CUT_FUNCTIONS
    cut_methods: frozenset[str] = CUT_METHODS
    through_sums = True  # ``total += x`` makes `total` one that holds it

    def __init__(self, draft: Draft, seeds: Iterable[cst.CSTNode]) -> None:
        self.draft = draft
        self._seeds = set(seeds)
        self._returning: set[cst.FunctionDef] = set()  # functions whose results are the value
        self._held: set[_Holder] = set()
        self._containers: set[_Holder] = set()  # lists and dictionaries that took it in
        self._bound = self._bindings()
        self._functions: dict[str, list[cst.FunctionDef]] = {}
        for function in draft.nodes(cst.FunctionDef):
            holder = draft.enclosing_class(function)
            own = holder.name.value if function.name.value == "__init__" and holder is not None else ""
            self._functions.setdefault(own or function.name.value, []).append(function)
        for name, function in _called_objects(draft):
            self._functions.setdefault(name, []).append(function)
        self._calls = draft.nodes(cst.Call)
        while self._follow():
            pass

    def calls_elsewhere(self, drafts: Drafts) -> Iterator[tuple[Draft, list[cst.Call]]]:
        """In the script's other modules: the calls, by name, of functions of this file that give the value."""
        for function in sorted(self._returning, key=self.draft.line):
            name = function.name.value
            if name in ("forward", "__call__", "__init__", "main"):
                continue
            for user in islice(_users(drafts, self.draft, name), _MOST_USERS):
                named = [each for each in user.nodes(cst.Call) if last_name(user, each) == name]
                calls = [each for each in named if self._is_of(function, user, each)]
                if calls and user is not self.draft:
                    yield user, calls

    def _is_of(self, function: cst.FunctionDef, user: Draft, call: cst.Call) -> bool:
        """Whether a call in another file, by what that imports and by what the object is made of, is of `function`."""
        module = os.path.splitext(os.path.basename(self.draft.source.path))[0]
        holder = self.draft.enclosing_class(function)
        if holder is None:
            return full_name(user, call.func).rpartition(".")[0].rpartition(".")[2] == module
        imported = any(module in full.split(".") for _, full in imports_anywhere(user))
        if not imported or not isinstance(call.func, cst.Attribute):
            return False
        of = user.code(call.func.value)
        made = [each.value for each in user.nodes(cst.Assign) if any(user.code(t.target) == of for t in each.targets)]
        classes = [last_name(user, each) if isinstance(each, cst.Call) else "" for each in made]
        return holder.name.value in classes if made else not imported_as(user, of.partition(".")[0])

    # What holds it ------------------------------------------------------------------------------------------------

    def carries(self, node: cst.CSTNode | None) -> bool:
        """Whether an expression gives the value, or what is made of it."""
        if node is None:
            return False
        if node in self._seeds:
            return True
        if isinstance(node, cst.Name):
            return self._holder(node) in self._held
        if isinstance(node, cst.Attribute):
            known = (None, node.attr.value) in self._held
            return known or (node.attr.value not in self.cut_attributes and self.carries(node.value))
        if isinstance(node, cst.Subscript):
            return self.carries(node.value) and not self.picks_other(node)
        if isinstance(node, cst.Call):
            own = [each for each in self._own(node) if each.name.value != "__init__"]
            if own:
                return any(each in self._returning for each in own)
            if isinstance(node.func, cst.Name) and node.func.value in _TURNS:
                return any(self.carries(arg.value) for arg in node.args)
            return self.called(node)
        if isinstance(node, _COMPREHENSIONS):
            return self.carries(node.elt)
        if isinstance(node, cst.DictComp):
            return self.carries(node.value)
        if isinstance(node, cst.IfExp):
            return self.carries(node.body) or self.carries(node.orelse)
        if isinstance(node, (cst.Tuple, cst.List, cst.Set, cst.Dict)):
            return any(self.carries(each.value) for each in node.elements)
        if isinstance(node, (cst.NamedExpr, cst.Arg, cst.Index)):
            return self.carries(node.value)
        return isinstance(node, cst.BaseExpression) and self.computed(node)

    def called(self, call: cst.Call) -> bool:
        """Whether a call of what is not this file's own gives what is made of the value."""
        if isinstance(call.func, cst.Attribute) and self.carries(call.func.value):
            return call.func.attr.value not in self.cut_methods
        if last_name(self.draft, call) in self.cut_functions | self.cut_methods:
            return False
        return any(self.carries(arg.value) for arg in call.args)

    def computed(self, node: cst.BaseExpression) -> bool:
        """Whether an expression of operators gives what is made of the value."""
        if isinstance(node, (cst.Comparison, cst.FormattedString, cst.Lambda)):
            return False
        return any(self.carries(child) for child in node.children)

    def picks_other(self, node: cst.Subscript) -> bool:
        """Whether a subscript of what carries the value takes something else: the indices of ``x.max(1)[1]``."""
        found = isinstance(node.value, cst.Call) and _last_part(node.value.func) in _WITH_INDICES
        return found and self.draft.code(node).endswith("[1]")

    def handles(self, call: cst.Call) -> bool:
        """Whether a function of this file may do anything with the value where it is called from there."""
        return False

    def is_container(self, node: cst.CSTNode) -> bool:
        """Whether a name is that of a list or a dictionary which took the value in, and never the value itself."""
        holder = self._holder(node)
        return holder in self._containers

    # Following ------------------------------------------------------------------------------------------------------

    def _follow(self) -> bool:
        """Go through the file once; whether more holds the value than before."""
        before = len(self._held), len(self._returning)
        for assign in self.draft.nodes(cst.Assign):
            for target in assign.targets:
                self._give(target.target, assign.value)
        for annotated in self.draft.nodes(cst.AnnAssign):
            self._give(annotated.target, annotated.value)
        for update in self.draft.nodes(cst.AugAssign):
            if isinstance(update.value, (cst.List, cst.ListComp)) and self.carries(update.value):
                self._hold(root(update.target), self._containers)
            elif self.through_sums:
                self._give(update.target, update.value)
        for named in self.draft.nodes(cst.NamedExpr):
            self._give(named.target, named.value)
        for loop in loops(self.draft):
            self._give(loop.target, loop.iter)
        for call in self._calls:
            self._take(call)
        returns: list[cst.Return | cst.Yield] = [*self.draft.nodes(cst.Return), *self.draft.nodes(cst.Yield)]
        for each in returns:
            function = self.draft.function(each)
            value = each.value.item if isinstance(each.value, cst.From) else each.value
            if function is not None and function not in self._returning and self.carries(value):
                self._returning.add(function)
        return (len(self._held), len(self._returning)) != before

    def _give(self, target: cst.BaseExpression, value: cst.BaseExpression | None) -> None:
        """A target is given a value, or by a loop the elements of one."""
        for each, given in _pairs(target, value):
            if not self.carries(given):
                continue
            for element in elements(each):
                if isinstance(element, cst.Subscript):
                    self._hold(root(element), self._containers)
                elif not self.leaves(element):
                    self._hold(element, self._held)

    def leaves(self, target: cst.BaseExpression) -> bool:
        """Whether what a target is called says that it is something else."""
        return False

    def _take(self, call: cst.Call) -> None:
        """A call hands the value to a list, or to a function of this file."""
        takes = isinstance(call.func, cst.Attribute) and call.func.attr.value in TAKES_IN
        if takes and any(self.carries(arg.value) for arg in call.args):
            self._hold(root(cst.ensure_type(call.func, cst.Attribute).value), self._containers)
        for function in () if self.handles(call) else self._own(call):
            names = parameter_names(self.draft, function)
            for name in (*names, *(each.name.value for each in function.params.kwonly_params)):
                passed = argument(call, name, names)
                if passed is not None and not passed.star and self.carries(passed.value):
                    self._held.add((function, name))

    def _hold(self, node: cst.CSTNode, into: set[_Holder]) -> None:
        holder = self._holder(node)
        if holder is not None and (into is self._held or holder not in self._held):
            into.add(holder)
            self._held.add(holder)
            if into is self._held:
                self._containers.discard(holder)

    def _holder(self, node: cst.CSTNode) -> _Holder | None:
        if isinstance(node, cst.Attribute):
            return None, node.attr.value
        if not isinstance(node, cst.Name):
            return None
        inner: cst.CSTNode = node
        for above in self.draft.ancestors(node):
            if isinstance(above, cst.BaseComp) and node.value in self._bound.get(above, ()):
                return above, node.value
            if isinstance(above, cst.FunctionDef) and inner is above.body and node.value in self._bound.get(above, ()):
                return above, node.value
            inner = above
        return self.draft.module, node.value

    def _bindings(self) -> dict[cst.CSTNode, set[str]]:
        """The names that each function and comprehension binds."""
        found: dict[cst.CSTNode, set[str]] = {}
        draft = self.draft
        for target in targets_of(draft):
            for element in elements(target):
                found.setdefault(scope_of(draft, target), set()).add(draft.code(element))
        for function in draft.nodes(cst.FunctionDef):
            own = found.setdefault(function, set())
            own |= {each.name.value for each in draft.nodes(cst.Param, function.params)}
            for statement in draft.nodes(cst.Global, function):
                own -= {each.name.value for each in statement.names}
        for comprehension in draft.nodes(cst.CompFor):
            above = next(each for each in draft.ancestors(comprehension) if isinstance(each, cst.BaseComp))
            found.setdefault(above, set()).update(draft.code(each) for each in elements(comprehension.target))
        return found

    def _own(self, call: cst.Call) -> list[cst.FunctionDef]:
        """The functions of this file that a call may be of, by their name."""
        return self._functions.get(_last_part(call.func), [])


def _called_objects(draft: Draft) -> Iterator[tuple[str, cst.FunctionDef]]:
    """What the file names objects of its classes that can be called, each with the class's ``__call__``."""
    methods: dict[str, cst.FunctionDef] = {}
    for function in draft.nodes(cst.FunctionDef):
        holder = draft.enclosing_class(function)
        if function.name.value == "__call__" and holder is not None:
            methods[holder.name.value] = function
    for assign in draft.nodes(cst.Assign) if methods else ():
        made = _last_part(assign.value.func) if isinstance(assign.value, cst.Call) else ""
        if made in methods:
            yield from ((_last_part(each.target), methods[made]) for each in assign.targets)


def targets_of(draft: Draft, within: cst.CSTNode | None = None) -> list[cst.BaseExpression]:
    """What is given a value in the file, or below `within`: by assignments, ``for`` statements and ``as``."""
    targets: list[cst.BaseExpression] = [each.target for each in draft.nodes(cst.AssignTarget, within)]
    targets += [each.target for each in draft.nodes(cst.AnnAssign, within)]
    targets += [each.target for each in draft.nodes(cst.AugAssign, within)]
    targets += [each.target for each in draft.nodes(cst.For, within)]
    targets += [each.target for each in draft.nodes(cst.NamedExpr, within)]
    targets += [each.name for each in draft.nodes(cst.AsName, within)]
    return targets


def loops(draft: Draft, within: cst.CSTNode | None = None) -> list[cst.For | cst.CompFor]:
    """The loops of the file, or below `within`, those of comprehensions, too."""
    return [*draft.nodes(cst.For, within), *draft.nodes(cst.CompFor, within)]


def _pairs(
    target: cst.BaseExpression, value: cst.BaseExpression | None
) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression | None]]:
    """Which part of a target takes which part of what it is given, as far as the text tells."""
    if isinstance(target, (cst.Tuple, cst.List)):
        parts: list[cst.BaseExpression] | None = None
        if isinstance(value, (cst.Tuple, cst.List)):
            parts = [each.value for each in value.elements]
        elif isinstance(value, cst.Call) and isinstance(value.func, cst.Name) and value.func.value == "zip":
            parts = [each.value for each in value.args]
        if parts is not None and len(parts) == len(target.elements):
            for element, part in zip(target.elements, parts, strict=True):
                yield from _pairs(element.value, part)
            return
        name = _last_part(value.func) if isinstance(value, cst.Call) else ""
        if isinstance(value, cst.Call) and len(target.elements) == 2:
            if name in ("enumerate", "items"):
                taken = value.args[0].value if name == "enumerate" and value.args else value
                yield from _pairs(target.elements[1].value, taken)
                return
            if name in _WITH_INDICES:
                yield target.elements[0].value, value
                return
    yield target, value


def _last_part(function: cst.BaseExpression) -> str:
    """``max`` of ``torch.max`` and of ``model(x).max``."""
    if isinstance(function, cst.Attribute):
        return function.attr.value
    return function.value if isinstance(function, cst.Name) else ""
