"""Outputs of a model that a script keeps until after the model's next call, which a CUDA graph writes over them.

"Error: accessing tensor output of CUDAGraphs that has been overwritten by a subsequent run." What is computed with an
output, and copies of it (``.clone()``, ``.cpu()``), have memory of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst
import libcst.matchers as m

from advisor.edit.dataflow import Dataflow, loops
from advisor.edit.draft import Draft, Drafts
from advisor.edit.locate import last_name
from advisor.edit.preceding import bindings_before, bound_in, bound_within
from advisor.edit.sums import elements, root
from advisor.harness.layout import Site

# What gives the memory of the tensor that it is asked of, or a part of what holds several.
_SAME = frozenset((
    "detach", "view", "view_as", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "transpose", "t",
    "permute", "movedim", "expand", "expand_as", "narrow", "select", "unbind", "chunk", "split", "contiguous", "to",
    "cuda", "float", "half", "bfloat16", "type_as", "values", "items", "get", "pop",
))  # fmt: skip
_TAKES = frozenset(("append", "appendleft", "extend", "insert", "put"))
_STEPS = frozenset(("backward", "step", "zero_grad"))
_Loop = cst.For | cst.While


def kept_output(drafts: Drafts, draft: Draft, calls: Sequence[cst.Call]) -> Site | None:
    """Where an output of `calls`, a model's, is kept beyond its next call; or None.

    In their file, or in one that gets it from a function there.
    """
    outputs = _Outputs(draft, calls)
    for user, of in ((draft, calls), *outputs.calls_elsewhere(drafts)):
        kept = outputs if user is draft else _Outputs(user, of)
        if lines := sorted(map(user.line, kept.kept())):
            return Site(user.source.path, lines[0])
    return None


class _Outputs(Dataflow):
    """The memory that a model's outputs are in, by whatever names."""

    cut_attributes = frozenset(["shape", "dtype", "device", "ndim", "grad"])
    through_sums = False

    def called(self, call: cst.Call) -> bool:
        if last_name(self.draft, call) not in _SAME or any("cpu" in self.draft.code(arg) for arg in call.args):
            return False
        if isinstance(call.func, cst.Attribute) and self.carries(call.func.value):
            return True
        return bool(call.args) and self.carries(call.args[0].value)  # torch.squeeze(out)

    def computed(self, node: cst.BaseExpression) -> bool:
        return False

    def kept(self) -> Iterator[cst.CSTNode]:
        """Where an output is put that lasts for longer than a step, and what is read in the next one."""
        for call in self.draft.nodes(cst.Call):
            into = call.func.value if isinstance(call.func, cst.Attribute) and call.func.attr.value in _TAKES else None
            if into is not None and any(self.carries(arg.value) for arg in call.args) and self._lasts(into):
                yield call
        for update in self.draft.nodes(cst.AugAssign):
            listed = isinstance(update.value, (cst.List, cst.ListComp)) and self.carries(update.value)
            if listed and self._lasts(update.target):
                yield update
        for made in self.draft.nodes(cst.CompFor):
            whole = self.draft.parent(made)
            element = getattr(whole, "elt", None) or getattr(whole, "value", None)  # a dictionary's has a value
            several = element is not None and any(map(self._gives_output, self.draft.nodes(cst.Call, element)))
            if several and self.carries(element) and not any(map(self._trains, self._loops(made))):
                yield made
        for assign in self.draft.nodes(cst.Assign):
            for target in (each for one in assign.targets for each in elements(one.target)):
                if not (self.carries(assign.value) and self.carries(target)):
                    continue
                if isinstance(target, cst.Name):
                    yield from self._read_later(target, assign)
                elif isinstance(target, cst.Attribute) or (self._is_display(root(target)) and self._lasts(target)):
                    yield assign

    def _gives_output(self, call: cst.Call) -> bool:
        return call in self._seeds or any(each in self._returning for each in self._own(call))

    def _calls_again(self, loop: _Loop) -> bool:
        """Whether each round of the loop calls the model; of a loop over one output's parts none does."""
        generators = self.draft.nodes(cst.Call, loop.iter) if isinstance(loop, cst.For) else []
        yields = any(self.draft.nodes(cst.Yield, each) for call in generators for each in self._own(call))
        return yields or any(map(self._gives_output, self.draft.nodes(cst.Call, loop.body)))

    def _loops(self, node: cst.CSTNode) -> list[_Loop]:
        """The loops around `node` within its function, from the inside out."""
        found: list[_Loop] = []
        loop = self.draft.loop(node)
        while loop is not None:
            found.append(loop)
            loop = self.draft.loop(loop)
        return found

    def _trains(self, loop: _Loop) -> bool:
        """Whether the loop is over steps of training: until the backward all outputs of a step have their memory."""
        return any(last_name(self.draft, call) in _STEPS for call in self.draft.nodes(cst.Call, loop))

    def _lasts(self, holder: cst.BaseExpression) -> bool:
        """Whether a list or dictionary is not made anew in each step."""
        name, around = root(holder), [each for each in self._loops(holder) if self._calls_again(each)]
        step = next(filter(self._trains, around), around[0] if around else None)
        if not isinstance(name, cst.Name):
            return True
        if step is None:
            return next(bindings_before(self.draft, name), None) is None  # not this function's own
        return not bound_within(self.draft, name, step)

    def _read_later(self, target: cst.Name, assign: cst.Assign) -> Iterator[cst.CSTNode]:
        """Where the name is read in the next round of a loop; or behind the loop, which binds it now and then."""
        draft, around = self.draft, [*self.draft.ancestors(assign)]
        for loop in self._loops(assign):
            sometimes = any(isinstance(each, cst.If) for each in around[: around.index(loop)])
            for name in self._reads(target):
                if loop in draft.ancestors(name):
                    stale = not _before(draft, assign, name) and not bound_within(draft, name, loop)
                    if stale and not self._copied(target, loop):
                        yield name
                elif sometimes and next(bindings_before(draft, name), None) in around:
                    yield name

    def _reads(self, target: cst.Name) -> Iterator[cst.Name]:
        """Where the same name is read, and not only compared."""
        givers = [each.target for each in (*self.draft.nodes(cst.AssignTarget), *loops(self.draft))]
        bound = {name for each in givers for name in elements(each)}
        for name in self.draft.nodes(cst.Name):
            if name.value != target.value or name in bound or self._holder(name) != self._holder(target):
                continue
            above = self.draft.parent(name)
            other = getattr(above, "attr", None) is name or getattr(above, "keyword", None) is name
            if not other and not isinstance(above, (cst.Param, cst.Comparison, cst.ComparisonTarget, cst.Del)):
                yield name

    def _copied(self, target: cst.Name, loop: _Loop) -> bool:
        """Whether the last statement of each round that binds the name gives it memory of its own."""
        for statement in reversed(loop.body.body):
            if target.value in bound_in(self.draft, statement):
                last = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
                return isinstance(last, cst.Assign) and not self.carries(last.value)
        return False

    def _is_display(self, name: cst.BaseExpression) -> bool:
        """Whether a list or a dictionary, written out, is what a name is given."""
        display = m.Dict() | m.List() | m.Call(func=m.Name("dict") | m.Name("list") | m.Name("defaultdict"))
        return any(
            m.matches(each.value, display)
            for each in self.draft.nodes(cst.Assign)
            if any(target.target.deep_equals(name) for target in each.targets)
        )


def _before(draft: Draft, one: cst.CSTNode, other: cst.CSTNode) -> bool:
    """Whether one node ends in front of the other in the text."""
    end, start = draft.position(one).end, draft.position(other).start
    return (end.line, end.column) <= (start.line, start.column)
