"""Two thin factors, multiplied out once: a dense matrix whose gradient goes back to the factors."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from rankfold.numerics.precision import STRETCH, current_precision, product, summed_outer
from rankfold.operators.dense import Dense
from rankfold.operators.factor import Factor
from rankfold.operators.low_rank import LowRank
from rankfold.operators.protocol import Inner


class Product(Dense):
    """A[z, y] = sum_r left[z, r] right[y, r], written out at first use.   push and pull: z y multiply-adds per vector.

    z y r multiply-adds once, and twice that for the gradient. In the precision of the recursion that uses it.
    For distributions: an entry that its dtype has no number for is 0 or infinite, and nothing widens.
    """

    def __init__(self, left: Tensor, right: Tensor) -> None:  # "z r", "y r", not looked at
        self._left, self._right = left, right
        self._tables: dict[tuple[bool, bool], Factor] = {}  # once asked for, in each mode of autograd

    @property
    def _weight(self) -> Factor:
        watched = torch.is_grad_enabled() and (self._left.requires_grad or self._right.requires_grad)
        key = watched, torch.is_inference_mode_enabled()
        if key not in self._tables:
            self._tables[key] = Factor(multiply_out(self._left, self._right), is_log=False)
        return self._tables[key]

    @property
    def shape(self) -> tuple[int, int]:
        return len(self._left), len(self._right)

    @property
    def log_factors(self) -> tuple[bool, ...]:
        return False, False

    @property
    def log_scale(self) -> float:
        return 0.0

    def factors(self) -> tuple[Tensor, ...]:
        return self._left, self._right

    def with_factors(self, *factors: Tensor) -> Self:
        return self.__class__(*factors)

    def gradients(self, source: Tensor, target: Tensor, inner: Inner | None = None) -> tuple[Tensor, ...]:
        table = product(source.mT, target)
        return summed_outer(table.mT, self._right, self._left), summed_outer(table, self._left, self._right)

    # Logarithms of any range are those of the factors: a written entry may be too small or too large for the dtype.

    def log_gradients(self, log_x: Tensor, log_y: Tensor) -> list[Tensor]:  # "n z", "n y"
        return self._pair().log_gradients(log_x, log_y)

    def push_log(self, log_x: Tensor) -> Tensor:  # "... z" -> "... y"
        return self._pair().push_log(log_x)

    def pull_log(self, log_x: Tensor) -> Tensor:  # "... y" -> "... z"
        return self._pair().pull_log(log_x)

    def push_max(self, log_x: Tensor) -> tuple[Tensor, Tensor]:  # "b z" -> best "b y", argmax "b y"
        return self._pair().push_max(log_x)

    def log_rows(self, index: Tensor) -> Tensor:  # "k" -> "k y"
        return self._pair().log_rows(index)

    def _pair(self) -> LowRank:
        return LowRank.unchecked(self._left, self._right)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.factors()

    def push_loss(self) -> float:
        return (2.0 + self._left.shape[1]) * self.shape[0]  # of every term of an entry, too

    def pull_loss(self) -> float:
        return (2.0 + self._left.shape[1]) * self.shape[1]


def multiply_out(left: Tensor, right: Tensor) -> Tensor:  # "z r", "y r" -> "z y"
    """left right^T, a stretch of ranks at a time: tensor cores cut their running sums off, always downwards.

    On an H200 in TF32 log Z loses 2.4e-5 of itself in one sum of 32,768 terms, and a quarter of that in sums of 8,192.
    """
    if current_precision(left.device) == "float32":
        return left @ right.mT
    total: Tensor | None = None
    for start in range(0, left.shape[1], STRETCH):
        part = product(left[:, start : start + STRETCH], right[:, start : start + STRETCH].mT)
        total = part if total is None else total + part
    assert total is not None
    return total
