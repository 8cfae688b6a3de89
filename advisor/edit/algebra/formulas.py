"""Which of torch's functions gives what a text computes: norms and activations, told by trying them with numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np

from advisor.edit.algebra.arithmetic import UnknownError, Value, erf

Shape = tuple[int, ...]
Compute = Callable[[Mapping[str, Value]], Value]
"""What a text gives, of values by name. Raises UnknownError."""

FUNCTIONAL = "torch.nn.functional"
RANKS = range(1, 5)
EPSILON = 0.1  # what stands for a small number, as large as can be told
PROBES = (-3.1, -1.2, -0.4, 0.3, 0.9, 2.2)  # what tells activations apart
_SIZES = (6, 3, 4, 5)  # no two dimensions alike
_CLOSE, _EXACT = 1e-5, 1e-9  # an activation's constants are rounded (1.41421 for a root of two)
_LARGEST_OUTSIDE = 1e-6  # of an epsilon that is added to the deviation: a larger one gives other numbers
_ROLES = ("weight", "bias", "eps")


@dataclass(frozen=True)
class Form:
    """A call that gives the same. ``axes`` are those that are summed over, none of an activation's.

    ``weights``: how many it has, weight and bias, and whether they are ``of_channels``, or of the last dimensions.
    """

    kind: str
    code: str
    axes: tuple[int, ...] = ()
    weights: int = 0
    of_channels: bool = False

    def fits(self, shapes: Collection[Shape]) -> bool:
        """Whether such operands, of all operators of a call, are the tensor, what is left of it, and its weights."""
        largest = max(shapes, key=lambda each: (len(each), math.prod(each)))
        if self.of_channels:
            ones = (1,) * (len(largest) - 2)
            weights = {(largest[1], *ones), (1, largest[1], *ones)}
        else:
            weights = {largest[self.axes[0] :]} if self.weights else set()
        left = tuple(size for axis, size in enumerate(largest) if axis not in self.axes)
        known = {(), largest, left, *weights}
        if not all(each in known or self._is_left(each, largest) for each in shapes):
            return False
        return sum(each in weights for each in shapes) == self.weights

    def _is_left(self, shape: Shape, largest: Shape) -> bool:
        """Whether `largest` is that once it is summed over some of the axes, which are kept."""
        if len(shape) != len(largest) or shape[0] != largest[0]:
            return False
        sizes = enumerate(zip(shape, largest, strict=True))
        return all(left == size or (axis in self.axes and left == 1) for axis, (left, size) in sizes)


@dataclass(frozen=True)
class Epsilon:
    """How a small number is written, and what it is; None where that is not certain."""

    code: str = "0.0"
    value: float | None = 0.0


def activations(x: Value, result: Value, code: str) -> Iterator[Form]:
    """What gives `result` of each number of `x`, which is written as `code`."""
    for kind, (function, call) in _ACTIVATIONS.items():
        if _same(function(x), result, _CLOSE):
            yield Form(kind, f"{FUNCTIONAL}.{call.format(code)}")


def elementwise_or_shares(compute: Compute, tensor: str, rank: int) -> list[Form] | None:
    """Activations and softmax, of a tensor of so many dimensions; None where the text gives nothing of one."""
    x = _tried(rank)
    try:
        result = compute({tensor: x})
    except UnknownError:
        return None
    return [*activations(x, result, tensor), *_shares(x, result, tensor)]


def norms(
    compute: Compute,
    tensor: str,
    others: Sequence[str],
    numbers: Mapping[str, float | None],
    epsilon: Epsilon,
    rank: int,
) -> list[Form]:
    """Norms of a tensor of so many dimensions.

    `others` are what else the text reads, `numbers` those of them that are no tensors; `epsilon` is a number in it.
    """
    found = []
    for axes in [tuple(range(first, rank)) for first in range(1, rank)]:
        for roles in permutations(_ROLES, len(others)):
            role = dict(zip(roles, others, strict=True))
            if any((name in numbers) is not (each == "eps") for each, name in role.items()):
                continue
            small = Epsilon(role["eps"], numbers[role["eps"]]) if "eps" in role else epsilon
            for shape in _weights(_tried(rank), axes) if {*role} - {"eps"} else [()]:
                norm = _Norm(tensor, _tried(rank), axes, role, shape, small)
                try:
                    result = compute(norm.known)
                except UnknownError:
                    continue
                if (form := norm.form(result)) is not None:
                    found.append(form)
    return found


def _tried(rank: int) -> Value:
    """A tensor to compute with."""
    x = np.random.default_rng(rank).normal(size=_SIZES[:rank])
    x.reshape(-1)[: len(PROBES)] = PROBES
    return x


def _shares(x: Value, result: Value, code: str) -> Iterator[Form]:
    for dim in range(-x.ndim, x.ndim):
        powers = np.exp(x - x.max(axis=dim, keepdims=True))
        if _same(powers / powers.sum(axis=dim, keepdims=True), result, _EXACT):
            yield Form("softmax", f"torch.softmax({code}, {dim})", (dim % x.ndim,))


def _same(one: Value, other: Value, tolerance: float) -> bool:
    return isinstance(other, np.ndarray) and one.shape == other.shape and bool(np.allclose(one, other, 0.0, tolerance))


_ACTIVATIONS: dict[str, tuple[Callable[[Value], Value], str]] = {
    "gelu": (lambda x: 0.5 * x * (1.0 + erf(x / math.sqrt(2.0))), "gelu({})"),
    "gelu_tanh": (
        lambda x: 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3))),
        'gelu({}, approximate="tanh")',
    ),
    "silu": (lambda x: x / (1.0 + np.exp(-x)), "silu({})"),
}


def _weights(x: Value, axes: tuple[int, ...]) -> list[Shape]:
    """Shapes that a norm's weights may have: over all of a sample those of channels."""
    if len(axes) == x.ndim - 1 and x.ndim > 2:
        channels, ones = x.shape[1], (1,) * (x.ndim - 2)
        return [(channels,), (channels, *ones), (1, channels, *ones)]
    return [tuple(x.shape[each] for each in axes)]


@dataclass(frozen=True)
class _Norm:
    """A norm as it is tried: over these axes, with names by their roles, and weights of that shape."""

    tensor: str
    x: np.ndarray[Any, Any]
    axes: tuple[int, ...]
    role: dict[str, str]
    shape: Shape
    epsilon: Epsilon

    @property
    def known(self) -> dict[str, Value]:
        """Values by name."""
        return {self.tensor: self.x, **{name: self._value(each) for each, name in self.role.items()}}

    @property
    def of_sample(self) -> bool:
        """Over all of a sample's numbers, of channels and places."""
        return self.x.ndim > 2 and len(self.axes) + 1 == self.x.ndim

    def _value(self, role: str) -> Value:
        return EPSILON if role == "eps" else np.random.default_rng(len(role)).uniform(0.5, 1.5, size=self.shape)

    def form(self, result: Value) -> Form | None:
        """The call that gives the same; None where none is known."""
        small = EPSILON if self.epsilon.value != 0.0 else 0.0
        for outside in (False, True):
            for unbiased in (False, True):
                if not _same(self._normal(small, outside, unbiased), result, _EXACT):
                    continue
                value = self.epsilon.value
                if outside and not (value is not None and value <= _LARGEST_OUTSIDE):
                    return None
                if unbiased and ("weight" not in self.role or len(self.axes) > 1):
                    return None
                kind, code = self._call(outside, unbiased)
                weights = len({*self.role} - {"eps"})
                return Form(kind, code, self.axes, weights, self.of_sample and weights > 0)
        return None

    def _normal(self, small: float, outside: bool, unbiased: bool) -> Value:
        x, axes = self.x, self.axes
        spread = np.var(x, axis=axes, ddof=int(unbiased), keepdims=True)
        below = np.sqrt(spread) + small if outside else np.sqrt(spread + small)
        normal = (x - x.mean(axis=axes, keepdims=True)) / below
        channels = (1, -1, *((1,) * (x.ndim - 2)))
        weight, bias = (self._value(each) if each in self.role else None for each in ("weight", "bias"))
        if weight is not None:
            normal = normal * (weight.reshape(channels) if self.of_sample else weight)
        return normal if bias is None else normal + (bias.reshape(channels) if self.of_sample else bias)

    def _call(self, outside: bool, unbiased: bool) -> tuple[str, str]:
        x, epsilon = self.tensor, self.epsilon.code
        weight, bias = self.role.get("weight", "None"), self.role.get("bias", "None")
        epsilon = f"{epsilon} ** 2" if outside and self.epsilon.value != 0.0 else epsilon
        if unbiased:  # the deviation of a sample is that of all its values, by this
            weight = f"{weight} * (1 - 1 / {x}.shape[-1]) ** 0.5"
            epsilon = epsilon if outside or self.epsilon.value == 0.0 else f"{epsilon} * (1 - 1 / {x}.shape[-1])"
        if self.of_sample:
            weight, bias = (each if each == "None" else f"{each}.flatten()" for each in (weight, bias))
        rest = f"eps={epsilon}" if weight == bias == "None" else f"{weight}, {bias}, {epsilon}"
        if self.of_sample:
            return "group_norm", f"{FUNCTIONAL}.group_norm({x}, 1, {rest})"
        return "layer_norm", f"{FUNCTIONAL}.layer_norm({x}, {x}.shape[-{len(self.axes)}:], {rest})"
