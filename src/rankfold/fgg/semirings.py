"""The arithmetics in which a grammar's sum of products is taken: what a weight becomes, and what one step of a
contraction does.

"real" are weights themselves; "log" gives their logarithm, by scaled products where those are sound and in
logarithms (`LOGS`) where they are not; "max" is the logarithm of the best weight; "counting" counts what has weight
at all, exactly. Read next: `fgg/schedule.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, Protocol

import torch
from torch import Tensor

from rankfold.fgg.contraction import Axes, Contraction, Step
from rankfold.kernels.blocks import BLOCK
from rankfold.kernels.log_matmul import log_matmul
from rankfold.numerics.log_space import log_sum, log_weights

Semiring = Literal["real", "log", "max", "counting"]


class Arithmetic(Protocol):
    """A commutative semiring on tensors."""

    is_scaled: bool  # whether vectors carry a scale of their own

    def lift(self, weights: Tensor) -> Tensor: ...  # what a factor's weights become
    def product(self, step: Step, left: Tensor, right: Tensor | None) -> Tensor: ...
    def add(self, left: Tensor, right: Tensor) -> Tensor: ...
    def one(self, like: Tensor, shape: tuple[int, ...]) -> Tensor: ...
    def zero(self, like: Tensor, shape: tuple[int, ...]) -> Tensor: ...


class Linear:
    """Sums of products of weights, by torch.einsum: matrix products. Differentiable, right at zeros."""

    def __init__(self, *, is_scaled: bool) -> None:
        self.is_scaled = is_scaled

    def lift(self, weights: Tensor) -> Tensor:
        """The weights themselves."""
        return weights

    def product(self, step: Step, left: Tensor, right: Tensor | None) -> Tensor:
        """One step of a contraction."""
        if right is None:
            return torch.einsum(step.equation, left)
        if step.is_pointwise:
            # As a matrix product this would be a stack of single rows times single columns.
            summed = [k for k, axis in enumerate(step.left_axes) if axis not in step.out_axes]
            return (left * right).sum(summed) if summed else left * right
        if step.is_matrix_product:
            return left @ (right if step.left_axes[-1] == step.right_axes[0] else right.mT)
        return torch.einsum(step.equation, left, right)

    def add(self, left: Tensor, right: Tensor) -> Tensor:
        """The sum."""
        return left + right

    def one(self, like: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Ones."""
        return like.new_ones(shape)

    def zero(self, like: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Zeros."""
        return like.new_zeros(shape)


class Support(Linear):
    """Zeros and ones: whether there is any weight at all. Not differentiable."""

    def __init__(self) -> None:
        super().__init__(is_scaled=False)

    def lift(self, weights: Tensor) -> Tensor:
        """1 where there is weight."""
        return (weights != 0).to(weights.dtype)

    def product(self, step: Step, left: Tensor, right: Tensor | None) -> Tensor:
        """Whether any product is not 0."""
        return (super().product(step, left, right) > 0).to(left.dtype)

    def add(self, left: Tensor, right: Tensor) -> Tensor:
        """Whether either."""
        return torch.maximum(left, right)


class Counting(Linear):
    """Counts modulo a number so small that float64 holds every sum of products exactly. Not differentiable."""

    def __init__(self, modulus: int) -> None:
        super().__init__(is_scaled=False)
        self.modulus = modulus

    def lift(self, weights: Tensor) -> Tensor:
        """1 where there is weight, in float64."""
        return (weights != 0).double()

    def product(self, step: Step, left: Tensor, right: Tensor | None) -> Tensor:
        """The counts of one step, reduced."""
        return super().product(step, left, right).remainder(self.modulus)

    def add(self, left: Tensor, right: Tensor) -> Tensor:
        """The sum, reduced."""
        return (left + right).remainder(self.modulus)


class Logs:
    """Logarithms throughout: any range, an exponential for every term. Differentiable; gradient 0 at terms without
    weight, whose own is found by `fgg/zeros.py`."""

    is_scaled = False

    def lift(self, weights: Tensor) -> Tensor:
        """Logarithms, in float64."""
        return log_weights(weights.double())

    def product(self, step: Step, left: Tensor, right: Tensor | None) -> Tensor:
        """The log-sum of one step."""
        return _by_matrices(step, left, right, _log_sum_axes, log_matmul)

    def add(self, left: Tensor, right: Tensor) -> Tensor:
        """The logarithm of the sum."""
        return log_sum(torch.stack((left, right), -1))

    def one(self, like: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Zeros, the logarithm of 1."""
        return like.new_zeros(shape)

    def zero(self, like: Tensor, shape: tuple[int, ...]) -> Tensor:
        """-inf, the logarithm of 0."""
        return like.new_full(shape, float("-inf"))


class Max(Logs):
    """Logarithms, with the largest term in place of the sum. Not differentiable."""

    @torch.no_grad()
    def product(self, step: Step, left: Tensor, right: Tensor | None) -> Tensor:
        """The largest term of one step."""
        return _by_matrices(step, left, right, lambda x, axes: x.amax(axes), _max_matmul)

    def add(self, left: Tensor, right: Tensor) -> Tensor:
        """The larger."""
        return torch.maximum(left, right)


REAL = Linear(is_scaled=False)
SCALED = Linear(is_scaled=True)
SUPPORT = Support()
LOGS = Logs()
MAX = Max()


def contracted(plan: Contraction, tensors: list[Tensor], arithmetic: Arithmetic) -> Tensor:
    """The result of a contraction's steps."""
    left = list(tensors)
    for step in plan.steps:
        a, b = left[step.left], None if step.right is None else left[step.right]
        left = [x for k, x in enumerate(left) if k not in (step.left, step.right)]
        left.append(arithmetic.product(step, a, b))
    return left[0]


def _by_matrices(
    step: Step,
    left: Tensor,
    right: Tensor | None,
    reduce: Callable[[Tensor, tuple[int, ...]], Tensor],
    matmul: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """A step as one product of stacks of matrices: axes of both, of the left alone, summed, of the right alone."""
    left, left_axes = _reduced(left, step.left_axes, {*step.right_axes, *step.out_axes}, reduce)
    if right is None:
        return left.permute([left_axes.index(axis) for axis in step.out_axes])
    right, right_axes = _reduced(right, step.right_axes, {*left_axes, *step.out_axes}, reduce)
    both = [axis for axis in left_axes if axis in right_axes and axis in step.out_axes]
    rows = [axis for axis in left_axes if axis not in right_axes]
    summed = [axis for axis in left_axes if axis in right_axes and axis not in step.out_axes]
    columns = [axis for axis in right_axes if axis not in left_axes]
    sizes = dict(zip(left_axes, left.shape, strict=True)) | dict(zip(right_axes, right.shape, strict=True))

    def count(axes: list[int]) -> int:
        return math.prod(sizes[axis] for axis in axes)

    a = left.permute([left_axes.index(axis) for axis in (*both, *rows, *summed)])
    b = right.permute([right_axes.index(axis) for axis in (*both, *summed, *columns)])
    if summed:
        found = matmul(
            a.reshape(count(both), count(rows), count(summed)), b.reshape(count(both), count(summed), count(columns))
        )
    else:
        found = a.reshape(count(both), count(rows), 1) + b.reshape(count(both), 1, count(columns))
    made = [*both, *rows, *columns]
    return found.reshape([sizes[axis] for axis in made]).permute([made.index(axis) for axis in step.out_axes])


def _reduced(
    x: Tensor, axes: Axes, kept: set[int], reduce: Callable[[Tensor, tuple[int, ...]], Tensor]
) -> tuple[Tensor, list[int]]:
    """The tensor without the axes that nobody else has."""
    gone = tuple(k for k, axis in enumerate(axes) if axis not in kept)
    return (reduce(x, gone) if gone else x), [axis for axis in axes if axis in kept]


def _log_sum_axes(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    kept = [k for k in range(x.ndim) if k not in axes]
    flat = x.permute([*kept, *axes]).reshape([*(x.shape[k] for k in kept), -1])
    return log_sum(flat)


def _max_matmul(a: Tensor, b: Tensor) -> Tensor:  # "n i k", "n k j" -> "n i j"
    """max_k a[n, i, k] + b[n, k, j]; temporaries of at most BLOCK entries, or one row of the sum."""
    num, rows, inner = a.shape
    columns = b.shape[-1]
    out = a.new_empty((num, rows, columns))
    by_column = b.mT
    height = max(1, min(rows, BLOCK // max(1, inner * columns)))
    depth = max(1, min(num, BLOCK // max(1, height * inner * columns)))
    for n in range(0, num, depth):
        for i in range(0, rows, height):
            part = a[n : n + depth, i : i + height, None, :] + by_column[n : n + depth, None]
            out[n : n + depth, i : i + height] = part.amax(-1)
    return out
