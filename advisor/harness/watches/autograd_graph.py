"""Which leaves a backward comes to through which nodes: the graph as numbers, which keep nothing alive."""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

_MOST_NODES = 50_000
_LEAF = "torch::autograd::AccumulateGrad"
# They hand a gradient on to the parameter that they are a view of, or a copy.
_PASSED_ON = frozenset(
    f"{name}Backward0"
    for name in ("T", "Transpose", "Permute", "View", "UnsafeView", "Expand", "Unsqueeze", "Squeeze", "ToCopy", "Alias")
)


# Of what these hand gradients on to, which is their bias.
_BIASES = {"AddmmBackward0": 0, "BaddbmmBackward0": 0, "ConvolutionBackward0": 2, "LinearBackward0": 2}
_HOOKED = "BackwardHookFunctionBackward"  # where a module's hook reads a gradient


@dataclass(frozen=True)
class AutogradGraph:
    """Nodes by number, each after all that lead to it: ``below`` are those that it hands gradients on to.

    ``leaves``: node → identity of the leaf whose gradient it adds up; ``passes``: those that only hand on;
    ``made``: the numbers that autograd gave them when they were made, by which a trace has them; ``biases``: node of a
    product → below it what its bias comes from, whose gradient is a sum and takes next to nothing; ``read``: those of
    tensors and modules whose gradients a hook reads, or which keep theirs.
    """

    below: list[list[int]]
    leaves: dict[int, int]
    passes: set[int]
    made: list[int]
    biases: dict[int, int]
    read: set[int]

    @classmethod
    def of(cls, loss: Any, read: Collection[int] = ()) -> AutogradGraph | None:
        """The graph behind `loss`; None where there is none, or too much of it.

        `read` are nodes (:func:`read_by_hooks`), in this graph or in others, by autograd's numbers.
        """
        root = _root(loss)
        found = _below(root) if root is not None else None
        if found is None:
            return None
        order = _from_the_top(root, found)
        number = {node: index for index, node in enumerate(order)}
        return cls(
            below=[[number[each] for each in found[node]] for node in order],
            leaves={number[node]: id(node.variable) for node in order if node.name() == _LEAF},
            passes={number[node] for node in order if node.name() in _PASSED_ON},
            made=[node._sequence_nr() for node in order],
            biases={number[node]: number[bias] for node in order if (bias := _bias(node)) is not None},
            read={number[node] for node in order if node._sequence_nr() in read or node.name() == _HOOKED},
        )

    def kinds(self, dropped: Iterable[int]) -> list[str]:
        """What becomes of what the nodes that are no leaves give, in the order in which they were made.

        "branch": all that they lead to is leaves `dropped` (identities). "weights": a gradient that they compute is for
        such leaves only, beside others. Else "used".
        """
        leads = self._leads(set(dropped))
        nodes = sorted((node for node in range(len(self.below)) if node not in self.leaves), key=self.made.__getitem__)

        def kind(node: int) -> str:
            if not leads[node]:
                return "branch"
            bias = self.biases.get(node)
            below = (leads[each] or each in self.read for each in self.below[node] if each != bias)
            return "used" if all(below) else "weights"

        return [kind(node) for node in nodes]

    def _leads(self, dropped: set[int]) -> list[bool]:
        """Whether what each node gives leads to a leaf that is used, or is read."""
        leads = [False] * len(self.below)
        for node in reversed(range(len(self.below))):
            leaf, below = self.leaves.get(node), self.below[node]
            leads[node] = leaf not in dropped if leaf is not None else any(leads[e] or e in self.read for e in below)
        return leads

    def for_somebody(self, dropped: Iterable[int]) -> str:
        """Who uses what a backward gives beside the leaves `dropped`: "leaf", "hook", or "" for nobody."""
        if not self._leads(set(dropped))[0] and 0 not in self.read:
            return ""
        return "leaf" if not {*self.leaves.values()} <= {*dropped} else "hook"

    def branches(self, dropped: Iterable[int]) -> set[int]:
        """Those of the leaves `dropped` (identities) whose own operator leads to no other leaf than such."""
        dropped = set(dropped)
        leads = self._leads(dropped)
        above: list[list[int]] = [[] for _ in self.below]
        for node, below in enumerate(self.below):
            for each in below:
                above[each].append(node)
        found = set[int]()
        for node, leaf in self.leaves.items():
            operators = above[node]
            while any(each in self.passes for each in operators):
                operators = [up for each in operators for up in (above[each] if each in self.passes else [each])]
            if leaf in dropped and operators and not any(leads[each] for each in operators):
                found.add(leaf)
        return found


def read_by_hooks(torch: Any) -> set[int]:
    """The nodes of tensors that are there now and whose gradients hooks read, or that keep theirs, by their numbers."""
    found = set()
    for each in gc.get_objects():
        if type(each) is torch.Tensor and (each._backward_hooks or each.retains_grad) and each.grad_fn is not None:
            found.add(each.grad_fn._sequence_nr())
    return found


def leaves_beside(loss: Any, known: Collection[int]) -> list[Any]:
    """The tensors that a backward of `loss` adds gradients to, but for those that are `known` (identities)."""
    root = _root(loss)
    nodes = _below(root) if root is not None else None
    leaves = {id(each): each for each in (node.variable for node in nodes or () if node.name() == _LEAF)}
    return [each for key, each in leaves.items() if key not in known]


def _bias(node: Any) -> Any:
    """The node that the gradient of a product's bias is handed on to; None of another node, or without one."""
    at, following = _BIASES.get(node.name()), node.next_functions
    return following[at][0] if at is not None and at < len(following) else None


def _root(loss: Any) -> Any:
    """The first node of what is differentiated; None where there is none, or more than one."""
    if isinstance(loss, (list, tuple)):
        loss = loss[0] if len(loss) == 1 else None
    return getattr(loss, "grad_fn", None)


def _below(root: Any) -> dict[Any, list[Any]] | None:
    """All nodes behind `root`, and those that each hands gradients on to; None of too many."""
    found: dict[Any, list[Any]] = {}
    todo = [root]
    while todo:
        node = todo.pop()
        if node not in found:
            found[node] = [each for each, _ in node.next_functions if each is not None]
            todo += found[node]
        if len(found) > _MOST_NODES:
            return None
    return found


def _from_the_top(root: Any, below: dict[Any, list[Any]]) -> list[Any]:
    """All nodes, each after all that lead to it."""
    leading = dict.fromkeys(below, 0)
    for nodes in below.values():
        for each in nodes:
            leading[each] += 1
    order, ready = [], [root]
    while ready:
        node = ready.pop()
        order.append(node)
        for each in below[node]:
            leading[each] -= 1
            if not leading[each]:
                ready.append(each)
    return order
