"""In which order the tensors of a fragment are multiplied and summed, pair by pair, and what that costs.

Equation 4 of Yang, Liu, Tu 2022 is one sum over all inner nodes of a fragment; done pair by pair it is variable
elimination. Orders come from opt_einsum where it is installed, else from the greedy rule below. Read next:
`fgg/semirings.py`.
"""

from __future__ import annotations

import math
import string
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

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
    out_entries: int

    @property
    def is_pointwise(self) -> bool:
        """Whether both tensors have the same axes in the same order, and those that stay are in the order of the
        output."""
        kept = tuple(axis for axis in self.left_axes if axis in self.out_axes)
        return self.left_axes == self.right_axes and kept == self.out_axes

    @property
    def is_matrix_product(self) -> bool:
        """Whether it is rows of the left times one matrix, the right or its transpose."""
        if len(self.right_axes) != 2 or self.left_axes[-1:] == self.out_axes[-1:]:
            return False
        first, last = self.right_axes
        other = last if self.left_axes[-1:] == (first,) else first if self.left_axes[-1:] == (last,) else None
        return other is not None and other not in self.left_axes and self.out_axes == (*self.left_axes[:-1], other)


class Contraction(NamedTuple):
    """The steps of one sum of products."""

    steps: tuple[Step, ...]

    @property
    def multiply_adds(self) -> int:
        """Multiplications with an addition each, of all steps."""
        return sum(step.multiply_adds for step in self.steps)

    @property
    def entries(self) -> int:
        """Numbers written by all steps."""
        return sum(step.out_entries for step in self.steps)


def plan_contraction(inputs: Sequence[Axes], output: Axes, sizes: Mapping[int, int]) -> Contraction:
    """The steps that sum the product of the inputs over every axis that is not in the output.

    Axes are numbers; no axis comes twice within one input, and every axis of the output is in some input.
    """
    return _planned(tuple(inputs), output, tuple(sorted(sizes.items())))


@lru_cache(maxsize=4096)
def _planned(inputs: tuple[Axes, ...], output: Axes, size_items: tuple[tuple[int, int], ...]) -> Contraction:
    sizes = dict(size_items)
    left = list(inputs)
    steps: list[Step] = []
    for i, j in _order(inputs, output, sizes):
        a, b = left[i], left[j]
        left = [axes for k, axes in enumerate(left) if k not in (i, j)]
        needed = set(output).union(*left)
        out = output if not left else tuple(axis for axis in dict.fromkeys((*a, *b)) if axis in needed)
        steps.append(_step(i, j, a, b, out, sizes))
        left.append(out)
    if left[0] != output:
        steps.append(_step(0, None, left[0], (), output, sizes))
    return Contraction(tuple(steps))


def _step(i: int, j: int | None, a: Axes, b: Axes, out: Axes, sizes: Mapping[int, int]) -> Step:
    letter = {axis: LETTERS[k] for k, axis in enumerate(dict.fromkeys((*a, *b)))}
    text = ["".join(letter[axis] for axis in axes) for axes in (a, b, out)]
    equation = f"{text[0]}->{text[2]}" if j is None else f"{text[0]},{text[1]}->{text[2]}"
    work = math.prod(sizes[axis] for axis in letter)
    return Step(i, j, a, b, out, equation, work, math.prod(sizes[axis] for axis in out))


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
