"""Sums of products of tensors: the order in which pairs are multiplied and summed, its cost, and the arithmetics.

Equation 4 of Yang, Liu, Tu 2022 is one sum over all inner nodes of a fragment; done pair by pair it is variable
elimination. Elimination orders come from opt_einsum where it is installed, else from the greedy rule below.
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from rankfold.kernels.log_products import BLOCK, log_matmul
from rankfold.numerics.log_space import log_sum, log_weights

Axes = tuple[int, ...]
LETTERS = string.ascii_letters
EXHAUSTIVE = 6  # opt_einsum's search over all orders takes under a millisecond up to here


class Step(NamedTuple):
    """Multiply two of the tensors that are left (or take one, `right` = None), sum, and put the result at the end."""

    left: int
    right: int | None
    left_axes: Axes
    right_axes: Axes
    out_axes: Axes
    equation: str  # the same for torch.einsum
    multiply_adds: int
    entries: int  # numbers read and written

    @property
    def is_pointwise(self) -> bool:
        """Whether both tensors have the same axes in one order, and the output keeps that order."""
        kept = tuple(axis for axis in self.left_axes if axis in self.out_axes)
        return self.left_axes == self.right_axes and kept == self.out_axes

    @property
    def is_matrix_product(self) -> bool:
        """Whether it is rows of the left times one matrix, the right or its transpose; several axes may be summed."""
        rows, other, num = self.out_axes[:-1], self.out_axes[-1:], len(self.right_axes) - 1
        summed = self.left_axes[-num:]
        is_matrix = num > 0 and self.right_axes in ((*summed, *other), (*other, *summed))
        return is_matrix and self.left_axes == (*rows, *summed)


class Contraction(NamedTuple):
    """The steps of one sum of products."""

    steps: tuple[Step, ...]

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds of all steps."""
        return sum(step.multiply_adds for step in self.steps)

    @property
    def entries(self) -> int:
        """Numbers read and written by all steps."""
        return sum(step.entries for step in self.steps)


def plan_contraction(inputs: Sequence[Axes], output: Axes, sizes: Mapping[int, int]) -> Contraction:
    """The steps that sum the product of the inputs over every axis that is not in the output.

    Axes are numbers; no axis comes twice within one input, and every axis of the output is in some input.
    """
    return _plan(tuple(inputs), output, tuple(sorted(sizes.items())))


def plan_with_ones(
    inputs: Sequence[Axes], summed: Iterable[int], output: Iterable[int], sizes: Mapping[int, int]
) -> Contraction:
    """The same with ones for axes to be summed that no input has; of the output, only axes that are there."""
    present = {axis for own in inputs for axis in own}
    inputs = [*inputs, *((axis,) for axis in summed if axis not in present)] or [()]
    present = {axis for own in inputs for axis in own}
    own = tuple(axis for axis in output if axis in present)
    return plan_contraction(inputs, own, {axis: sizes[axis] for axis in present})


@lru_cache(maxsize=4096)
def _plan(inputs: tuple[Axes, ...], output: Axes, size_items: tuple[tuple[int, int], ...]) -> Contraction:
    sizes = dict(size_items)
    left = list(inputs)
    steps: list[Step] = []
    for i, j in _order(inputs, output, sizes):
        a, b = left[i], left[j]
        left = [axes for k, axes in enumerate(left) if k not in (i, j)]
        needed = set(output).union(*left)
        out = output if not left else tuple(axis for axis in dict.fromkeys((*a, *b)) if axis in needed)
        step, turned = _step(i, j, a, b, out, sizes), _step(j, i, b, a, out, sizes)
        steps.append(turned if turned.is_matrix_product else step)
        left.append(out)
    if left[0] != output:
        steps.append(_step(0, None, left[0], (), output, sizes))
    return Contraction(tuple(steps))


def _step(i: int, j: int | None, a: Axes, b: Axes, out: Axes, sizes: Mapping[int, int]) -> Step:
    letter = {axis: LETTERS[k] for k, axis in enumerate(dict.fromkeys((*a, *b)))}
    text = ["".join(letter[axis] for axis in axes) for axes in (a, b, out)]
    equation = f"{text[0]}->{text[2]}" if j is None else f"{text[0]},{text[1]}->{text[2]}"
    work = math.prod(sizes[axis] for axis in letter)
    entries = sum(math.prod(sizes[axis] for axis in axes) for axes in ((a, out) if j is None else (a, b, out)))
    return Step(i, j, a, b, out, equation, work, entries)


def _order(inputs: tuple[Axes, ...], output: Axes, sizes: Mapping[int, int]) -> list[tuple[int, int]]:
    """Pairs of positions, each in the list that is left after the pairs before it."""
    if len(inputs) < 3:
        return [(0, 1)] * (len(inputs) - 1)
    try:
        import opt_einsum  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        return greedy_order(inputs, output, sizes)
    axes_sets = [frozenset(axes) for axes in inputs]
    search = opt_einsum.paths.optimal if len(inputs) <= EXHAUSTIVE else opt_einsum.paths.auto
    path = search(axes_sets, frozenset(output), dict(sizes))
    return [(min(pair), max(pair)) for pair in path]


def greedy_order(inputs: Sequence[Axes], output: Axes, sizes: Mapping[int, int]) -> list[tuple[int, int]]:
    """The pair that costs least next, the smaller result first among equals, until one tensor is left."""
    left = [frozenset(axes) for axes in inputs]
    pairs = []
    while len(left) > 1:

        def price(pair: tuple[int, int], left: list[frozenset[int]] = left) -> tuple[int, int]:
            i, j = pair
            both = left[i] | left[j]
            needed = frozenset(output).union(*(axes for k, axes in enumerate(left) if k not in pair))
            return math.prod(sizes[x] for x in both), math.prod(sizes[x] for x in both & needed)

        best = min(((i, j) for i in range(len(left)) for j in range(i + 1, len(left))), key=price)
        kept = [axes for k, axes in enumerate(left) if k not in best]
        needed = frozenset(output).union(*kept)
        left = [*kept, (left[best[0]] | left[best[1]]) & needed]
        pairs.append(best)
    return pairs


def num_terms(sizes: Iterable[int], num_operands: int) -> float:
    """No fewer than the products, and the roundings on their way, in a sum over axes of these sizes."""
    return math.prod(map(float, sizes)) * (1 + num_operands) ** 2


def sound_level(dtype: torch.dtype, terms: float) -> float:
    """The level from which a sum of so many products of numbers of at most 1 has all its digits.

    Underflow takes less than `terms` times the smallest number; sums above that by the inverse of the rounding error
    do not notice.
    """
    info = torch.finfo(dtype)
    return info.tiny * terms / info.eps


class Semiring(Protocol):
    """A commutative semiring on tensors: weights are lifted into it; then products of a step, sums, 1 and 0."""

    is_scaled: bool  # whether vectors carry a scale of their own

    def lift(self, weights: Tensor) -> Tensor: ...
    def product(self, step: Step, left: Tensor, right: Tensor | None) -> Tensor: ...
    def add(self, left: Tensor, right: Tensor) -> Tensor: ...
    def one(self, like: Tensor, shape: tuple[int, ...]) -> Tensor: ...
    def zero(self, like: Tensor, shape: tuple[int, ...]) -> Tensor: ...


class Linear:
    """Sums of products of the weights themselves, by matrix products. Differentiable, right at zeros."""

    def __init__(self, *, is_scaled: bool = False) -> None:
        self.is_scaled = is_scaled

    def lift(self, weights: Tensor) -> Tensor:
        return weights

    def product(self, step: Step, left: Tensor, right: Tensor | None) -> Tensor:
        if right is None:
            return torch.einsum(step.equation, left)
        if step.is_pointwise:
            # As a matrix product this would be a stack of single rows times single columns.
            summed = [k for k, axis in enumerate(step.left_axes) if axis not in step.out_axes]
            return (left * right).sum(summed) if summed else left * right
        if step.is_matrix_product:
            num = right.ndim - 1
            is_first = step.right_axes[0] == step.out_axes[-1]
            return left.flatten(-num) @ (right.flatten(1).mT if is_first else right.flatten(0, -2))
        return torch.einsum(step.equation, left, right)

    def add(self, left: Tensor, right: Tensor) -> Tensor:
        return left + right

    def one(self, like: Tensor, shape: tuple[int, ...]) -> Tensor:
        return like.new_ones(shape)

    def zero(self, like: Tensor, shape: tuple[int, ...]) -> Tensor:
        return like.new_zeros(shape)


class Support(Linear):
    """Zeros and ones: whether there is any weight at all. Not differentiable."""

    def lift(self, weights: Tensor) -> Tensor:
        return (weights != 0).to(weights.dtype)

    def product(self, step: Step, left: Tensor, right: Tensor | None) -> Tensor:
        return (super().product(step, left, right) > 0).to(left.dtype)

    def add(self, left: Tensor, right: Tensor) -> Tensor:
        return torch.maximum(left, right)


class Logs:
    """Logarithms in float64: any range, an exponential for every term. Differentiable; the gradient is 0 at terms
    without weight, whose own `inference/zero_gradients.py` finds."""

    is_scaled = False

    def lift(self, weights: Tensor) -> Tensor:
        return log_weights(weights.double())

    def product(self, step: Step, left: Tensor, right: Tensor | None) -> Tensor:
        return _by_matrices(step, left, right, _log_sum_axes, log_matmul)

    def add(self, left: Tensor, right: Tensor) -> Tensor:
        return log_sum(torch.stack((left, right), -1))

    def one(self, like: Tensor, shape: tuple[int, ...]) -> Tensor:
        return like.new_zeros(shape)

    def zero(self, like: Tensor, shape: tuple[int, ...]) -> Tensor:
        return like.new_full(shape, float("-inf"))


class Max(Logs):
    """Logarithms, with the largest term in place of the sum. Not differentiable."""

    @torch.no_grad()
    def product(self, step: Step, left: Tensor, right: Tensor | None) -> Tensor:
        return _by_matrices(step, left, right, lambda x, axes: x.amax(axes), _max_matmul)

    def add(self, left: Tensor, right: Tensor) -> Tensor:
        return torch.maximum(left, right)


REAL = Linear()
SCALED = Linear(is_scaled=True)
SUPPORT = Support()
LOGS = Logs()
MAX = Max()


def contract(plan: Contraction, tensors: list[Tensor], arithmetic: Semiring) -> Tensor:
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
    left, left_axes = _reduce(left, step.left_axes, {*step.right_axes, *step.out_axes}, reduce)
    if right is None:
        return left.permute([left_axes.index(axis) for axis in step.out_axes])
    right, right_axes = _reduce(right, step.right_axes, {*left_axes, *step.out_axes}, reduce)
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


def _reduce(
    x: Tensor, axes: Axes, kept: set[int], reduce: Callable[[Tensor, tuple[int, ...]], Tensor]
) -> tuple[Tensor, list[int]]:
    """The tensor summed over the axes that no other tensor has."""
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
