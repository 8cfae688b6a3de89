"""Call sites read from a script's source, for traces that were recorded elsewhere.

A run observes where its calls are made; of a bare trace only the source can tell. What is read here is what a
reader would be sure of: calls inside the loop that trains (the one with ``backward()``), and the loader that this loop
goes over. Where two readings are possible there is no site, and a finding stays advice.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

from advisor.edit import Sources
from advisor.errors import AdvisorError
from advisor.harness.layout import CallSite, Site

_Loop = ast.For | ast.While | ast.AsyncFor
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def read_call_sites(path: str | os.PathLike[str], sources: Sources | None = None) -> tuple[CallSite, ...]:
    """The sites of one script that its step surely passes, each once per step.

    Raises AdvisorError when the file cannot be read or is not Python.
    """
    file = str(Path(path).resolve())
    text = (sources or Sources()).text(file)
    try:
        tree = ast.parse(text, filename=file)
    except (SyntaxError, ValueError) as error:
        raise AdvisorError(f"{path} is not Python that this interpreter understands: {error}.") from error
    return tuple(_Script(tree, file).sites())


class _Script:
    def __init__(self, tree: ast.Module, file: str) -> None:
        self.tree, self.file = tree, file
        self.parent = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        self.calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]

    def sites(self) -> Iterator[CallSite]:
        backward = [call for call in self.calls if _method(call) == "backward"]
        bodies = list(dict.fromkeys(self._body(call) for call in backward))
        loader = self._loader(bodies)
        if loader is not None:
            yield self._site("DataLoader", loader)
        # Two loops with a backward may be two phases, of which the trace saw one: no telling which.
        if len(bodies) == 1:
            made = [call for _, call in self._assigned() if _is_optimizer(call)]
            if len(made) == 1:
                yield self._site("Optimizer", made[0])
            yield from self._in_step(bodies[0])

    def _in_step(self, body: ast.AST) -> Iterator[CallSite]:
        models = {
            ast.dump(call.func.value)
            for call in self.calls
            if isinstance(call.func, ast.Attribute) and call.func.attr == "parameters"
        }
        optimizers = {name for name, call in self._assigned() if _is_optimizer(call)}
        batch = _batch_names(body)
        for call in ast.walk(body):
            if not isinstance(call, ast.Call) or not self._every_step(call, body):
                continue
            method = _method(call)
            receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
            if method == "backward":
                yield self._site("backward", call)
            elif method == "zero_grad":
                yield self._site("zero_grad", call)
            elif method == "step" and isinstance(receiver, ast.Name) and receiver.id in optimizers:
                yield self._site("Optimizer.step", call)
            elif method == "item" and not call.args:
                yield self._site("Tensor.item", call, device="cuda")
            elif method in ("to", "cuda") and _part_of(receiver, batch):
                blocking = not any(keyword.arg == "non_blocking" for keyword in call.keywords)
                details = {"from_device": "cpu", "to_device": "cuda", "non_blocking": not blocking}
                yield self._site(f"Tensor.{method}", call, **details)
            elif ast.dump(call.func) in models:
                yield self._site("Module.call", call)

    def _loader(self, bodies: list[ast.AST]) -> ast.Call | None:
        """The DataLoader that the training loop goes over; of several the one whose name the loop's own is."""
        made = [call for call in self.calls if _last_name(call.func) == "DataLoader"]
        if len(made) == 1:
            return made[0]
        names = {
            node.id
            for body in bodies
            if isinstance(body, ast.For)
            for node in ast.walk(body.iter)
            if isinstance(node, ast.Name)
        }
        found = [call for name, call in self._assigned() if call in made and name in names]
        return found[0] if len(found) == 1 else None

    def _assigned(self) -> Iterator[tuple[str, ast.Call]]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                yield from ((target.id, node.value) for target in node.targets if isinstance(target, ast.Name))

    def _body(self, node: ast.AST) -> ast.AST:
        """The innermost loop around a node, or the function that a loop calls, or the module."""
        while node in self.parent:
            node = self.parent[node]
            if isinstance(node, _Loop | _Function):
                return node
        return node

    def _every_step(self, call: ast.Call, body: ast.AST) -> bool:
        """No condition, inner loop or function definition stands between the call and the loop's body."""
        node: ast.AST = call
        while node is not body:
            above = self.parent[node]
            if above is body:
                return not (isinstance(body, ast.For) and node in (body.iter, *body.orelse))
            if isinstance(above, ast.If | ast.IfExp | ast.Try | ast.Lambda | _Loop | _Function):
                return False
            node = above
        return False

    def _site(self, kind: str, call: ast.Call, **details: object) -> CallSite:
        function = self._function(call)
        where = Site(self.file, call.lineno, call.col_offset, call.end_lineno, call.end_col_offset, function)
        return CallSite(kind, where, calls=1, calls_per_step=1.0, details=details)

    def _function(self, node: ast.AST) -> str:
        while node in self.parent:
            node = self.parent[node]
            if isinstance(node, _Function):
                return node.name
        return "<module>"


def _method(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_optimizer(call: ast.Call) -> bool:
    """Made by ``torch.optim``, or from a model's parameters."""
    inside = [_last_name(node.func) for node in ast.walk(call) if isinstance(node, ast.Call)]
    return "optim" in ast.unparse(call.func).split(".") or "parameters" in inside


def _part_of(node: ast.expr | None, names: set[str]) -> bool:
    """``x``, ``batch[0]`` or ``batch["x"]``, for a name that the loop delivers."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return isinstance(node, ast.Name) and node.id in names


def _batch_names(body: ast.AST) -> set[str]:
    """What the loop over the loader delivers: the loop's targets, and what is unpacked from them."""
    names: set[str] = set()
    if isinstance(body, ast.For):
        names |= {node.id for node in ast.walk(body.target) if isinstance(node, ast.Name)}
    for node in ast.walk(body):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id in names:
            names |= {inner.id for target in node.targets for inner in ast.walk(target) if isinstance(inner, ast.Name)}
    return names
