"""The Kronecker product of two matrices: two chains that run side by side, each with its own transition."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from rankfold.operators.protocol import Operator, expect_operator, max_operator
from rankfold.operators.row_operator import RowOperator


class Kronecker(RowOperator):
    """A[(i, j), (k, l)] = first[i, k] second[j, l], the state (i, j) being number i * (states of the second) + j.

    push and pull: the second's product for each state of the first, then the first's for each of the second; for dense
    ones of a and b states a b (a + b) multiply-adds instead of (a b)^2. The transition of a factorial HMM; nest it for
    more than two chains. Best predecessors and logarithms go through both in turn, too.
    """

    def __init__(self, first: Operator, second: Operator) -> None:
        expect_operator(first, name="first")
        expect_operator(second, name="second")
        self.first, self.second = first, second

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.first, self.second)

    @property
    def shape(self) -> tuple[int, int]:
        (a, c), (b, d) = self.first.shape, self.second.shape
        return a * b, c * d

    @property
    def log_scale(self) -> Tensor | float:
        return self.first.log_scale + self.second.log_scale

    @property
    def log_factors(self) -> tuple[bool, ...]:
        return (*self.first.log_factors, *self.second.log_factors)

    def factors(self) -> tuple[Tensor, ...]:
        return (*self.first.factors(), *self.second.factors())

    def with_factors(self, *factors: Tensor) -> Self:
        num = len(self.first.factors())
        return self.__class__(self.first.with_factors(*factors[:num]), self.second.with_factors(*factors[num:]))

    def push(self, x: Tensor) -> Tensor:  # "... z" -> "... y"
        return self._through(x, self.first.push, self.second.push, self.first.shape[0])

    def pull(self, x: Tensor) -> Tensor:  # "... y" -> "... z"
        return self._through(x, self.first.pull, self.second.pull, self.first.shape[1])

    def push_log(self, log_x: Tensor) -> Tensor:  # "... z" -> "... y"
        return self._through(log_x, self.first.push_log, self.second.push_log, self.first.shape[0])

    def pull_log(self, log_x: Tensor) -> Tensor:  # "... y" -> "... z"
        return self._through(log_x, self.first.pull_log, self.second.pull_log, self.first.shape[1])

    def push_log_weighted(self, x: Tensor) -> Tensor:  # "... z" -> "... y"
        """x (B log B), with log B the sum of both logarithms."""
        a = self.first.shape[0]
        by_first = self._through(x, self.first.push_log_weighted, self.second.push, a)
        return by_first + self._through(x, self.first.push, self.second.push_log_weighted, a)

    @staticmethod
    def _through(x: Tensor, first: Any, second: Any, num: int) -> Tensor:  # "... (a b)" -> "... (c d)"
        inner = second(x.reshape(*x.shape[:-1], num, -1))  # "... a d"
        found: Tensor = first(inner.mT).mT.flatten(-2)
        return found

    def push_max(self, log_x: Tensor) -> tuple[Tensor, Tensor]:  # "b z" -> best "b y", argmax "b y"
        """The best second state for each first one, then the best first one; ties go to the smallest number."""
        first, second = (max_operator(part, "a Kronecker product") for part in (self.first, self.second))
        num, (a, c), (b, d) = len(log_x), first.shape, second.shape
        best, inner = second.push_max(log_x.reshape(num * a, b))
        best, inner = best.reshape(num, a, d), inner.reshape(num, a, d)
        found, outer = first.push_max(best.mT.reshape(num * d, a))
        found, outer = (x.reshape(num, d, c).mT for x in (found, outer))  # "b c d"
        return found.flatten(1), (outer * b + inner.gather(1, outer)).flatten(1)

    def push_loss(self) -> Tensor | float:  # "y"
        return self._loss("push", self.first.shape[0], self.second.shape[0])

    def pull_loss(self) -> Tensor | float:  # "z"
        return self._loss("pull", self.first.shape[1], self.second.shape[1])

    def _loss(self, way: str, num_first: int, num_second: int) -> Tensor:
        """The second's loss times the first's weights; the first's own, of messages as large as the second's sums."""
        like = self.factors()[0]
        sums, mass = (
            getattr(op, way)(like.new_ones(num)).detach()
            for op, num in ((self.first, num_first), (self.second, num_second))
        )
        own, inner = (
            torch.as_tensor(getattr(op, f"{way}_loss")(), dtype=like.dtype, device=like.device).expand(len(x))
            for op, x in ((self.first, sums), (self.second, mass))
        )
        largest = torch.maximum(mass, torch.ones_like(mass))
        total: Tensor = (sums[:, None] * inner + own[:, None] * largest).flatten()
        return total

    def rows(self, index: Tensor) -> Tensor:  # "k" -> "k y"
        i, j = index // self.second.shape[0], index % self.second.shape[0]
        return (self.first.rows(i).unsqueeze(-1) * self.second.rows(j).unsqueeze(-2)).flatten(-2)

    def log_rows(self, index: Tensor) -> Tensor:  # "k" -> "k y"
        i, j = index // self.second.shape[0], index % self.second.shape[0]
        return (self.first.log_rows(i).unsqueeze(-1) + self.second.log_rows(j).unsqueeze(-2)).flatten(-2)
