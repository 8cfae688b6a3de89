"""Functions of a script's own that write out their backward (``torch.autograd.Function``), under autocast."""

from __future__ import annotations

import libcst as cst

from advisor.edit.draft import Draft
from advisor.edit.names import full_name, last_part

_BASES = ("torch.autograd.Function", "torch.autograd.function.Function", "torch.autograd.function.InplaceFunction")
_TOLD = "custom_fwd"
# What autocast computes in 16 bits (https://docs.pytorch.org/docs/stable/amp.html, "Autocast Op Reference"), and other
# products, which want both of their tensors of one type.
_PRODUCTS = frozenset(
    (
        *("mm", "matmul", "addmm", "addmv", "bmm", "baddbmm", "addbmm", "mv", "linear", "einsum", "chain_matmul"),
        *("tensordot", "inner", "outer", "dot", "vdot", "ger", "bilinear", "multi_dot", "matrix_exp"),
        *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
    )
)


def untold_function(draft: Draft) -> str:
    """Why autocast may not be switched on around what this file computes, as a clause; "" for nothing of the kind.

    A product in such a function's forward is in 16 bits under autocast, and one in its backward is not: autocast is off
    there, unless ``custom_fwd`` and ``custom_bwd`` say otherwise. Tensors of two types then meet, or a product is to be
    written to a tensor of another one. Functions of the file that these call count as theirs.
    """
    classes, functions = draft.nodes(cst.ClassDef), draft.nodes(cst.FunctionDef)
    own: set[str] = set()
    for _ in classes:  # those that derive from one that does
        own |= {each.name.value for each in classes for base in each.bases if _is_function(draft, base.value, own)}
    multiplying: set[str] = set()
    for _ in functions:  # those that call one that does
        more = {each.name.value for each in functions if _multiplies(draft, each, multiplying)}
        if more == multiplying:
            break
        multiplying = more
    for holder in (each for each in classes if each.name.value in own):
        methods = [each for each in draft.nodes(cst.FunctionDef, holder) if each.name.value in ("forward", "backward")]
        told = any(last_part(_called(each.decorator)) == _TOLD for method in methods for each in method.decorators)
        if not told and any(_multiplies(draft, each, multiplying - {"forward", "backward"}) for each in methods):
            return (
                f"{holder.name.value}, which has a backward of its own, multiplies, and is not told of autocast: "
                "torch.amp.custom_fwd and custom_bwd do"
            )
    return ""


def _is_function(draft: Draft, base: cst.BaseExpression, own: set[str]) -> bool:
    return full_name(draft, base) in _BASES or last_part(base) in own


def _called(decorator: cst.BaseExpression) -> cst.BaseExpression:
    return decorator.func if isinstance(decorator, cst.Call) else decorator


def _multiplies(draft: Draft, method: cst.FunctionDef, others: set[str]) -> bool:
    called = {last_part(each.func) for each in draft.nodes(cst.Call, method)}
    operators = (*draft.nodes(cst.MatrixMultiply, method), *draft.nodes(cst.MatrixMultiplyAssign, method))
    return bool(operators) or bool(called & (_PRODUCTS | others))
