"""Whether code takes derivatives of derivatives, or forward derivatives, which fused and compiled code may not have."""

from __future__ import annotations

import ast

# torch.autograd's and torch.func's names. Fused attention raises "derivative for
# aten::_scaled_dot_product_flash_attention_backward is not implemented", and a compiled function "torch.compile with
# aot_autograd does not currently support double backward".
_TWICE = frozenset(("jvp", "hvp", "vhp", "hessian", "jacfwd", "jacrev", "forward_ad"))


def differentiates_twice(text: str) -> bool:
    """Whether a file of this text asks for second derivatives, or for forward ones; True for what cannot be parsed."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return True
    return any(map(_asks, ast.walk(tree)))


def _asks(node: ast.AST) -> bool:
    if isinstance(node, ast.keyword):
        return node.arg == "create_graph" and not (isinstance(node.value, ast.Constant) and not node.value.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "backward":
        return len(node.args) > 2  # gradient, retain_graph, create_graph
    names = {node.id} if isinstance(node, ast.Name) else {node.attr} if isinstance(node, ast.Attribute) else set()
    if isinstance(node, ast.alias):
        names = {node.name.rpartition(".")[2]}
    return not names.isdisjoint(_TWICE)
