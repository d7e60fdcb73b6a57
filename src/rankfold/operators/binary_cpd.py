"""Rules of low rank: T[a, n, m] = sum_r head[a, r] left[n, r] right[m, r], the CPD of a tensor.

Read next: `operators/binary_dense.py`.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from rankfold.errors import ShapeError, expect, expect_logs, expect_weights, same_kind
from rankfold.kernels.log_matmul import log_matmul
from rankfold.numerics.log_space import log_sum
from rankfold.operators.factor import Factor


class BinaryCPD:
    """Three thin factors and a rank between them.   A span costs (n + m + a) r, a split r multiply-adds.

    The TN-PCFG's rules. Source: Yang, Zhao, Tu 2021; Cohen, Satta, Collins 2013.
    """

    def __init__(self, head: Tensor, left: Tensor, right: Tensor) -> None:  # "a r", "n r", "m r", or with a leading b
        _expect_three(head, left, right, "")
        for name, x in (("head", head), ("left", left), ("right", right)):
            expect_weights(x, name=name)
        self._head, self._left, self._right = (Factor(x, is_log=False) for x in (head, left, right))

    @classmethod
    def from_log(cls, log_head: Tensor, log_left: Tensor, log_right: Tensor) -> BinaryCPD:
        """The same from the logarithms of all factors, of any range."""
        _expect_three(log_head, log_left, log_right, "log_")
        for name, x in (("log_head", log_head), ("log_left", log_left), ("log_right", log_right)):
            expect_logs(x, name=name)
        return cls._of(*(Factor(x, is_log=True) for x in (log_head, log_left, log_right)))

    @classmethod
    def unchecked(cls, head: Tensor, left: Tensor, right: Tensor) -> BinaryCPD:
        """The same without a look at the values: for weights that are distributions by construction."""
        return cls._of(*(Factor(x, is_log=False) for x in (head, left, right)))

    @classmethod
    def _of(cls, head: Factor, left: Factor, right: Factor) -> Self:
        self = cls.__new__(cls)
        self._head, self._left, self._right = head, left, right
        return self

    @property
    def shape(self) -> tuple[int, int, int]:
        return self._head.value.shape[-2], self._left.value.shape[-2], self._right.value.shape[-2]

    @property
    def batch(self) -> int | None:
        return next((len(x) for x in self.factors() if x.ndim == 3), None)

    @property
    def log_scale(self) -> Tensor | float:
        return self._head.log_scale + self._left.log_scale + self._right.log_scale

    @property
    def head_of(self) -> tuple[object, ...]:
        return BinaryCPD, id(self._head.value), self._head.is_log

    def factors(self) -> tuple[Tensor, ...]:
        return self._head.value, self._left.value, self._right.value

    @property
    def log_factors(self) -> tuple[bool, ...]:
        return self._head.is_log, self._left.is_log, self._right.is_log

    def with_factors(self, *factors: Tensor) -> Self:
        head, left, right = factors
        return self._of(self._head.like(head), self._left.like(left), self._right.like(right))

    def take(self, index: Tensor) -> Self:  # "k"
        return self.with_factors(*(x[index] if x.ndim == 3 else x for x in self.factors()))

    def left(self, x: Tensor) -> Tensor:  # "b s n" -> "b s r"
        return x @ self._left.linear

    def right(self, x: Tensor) -> Tensor:  # "b s m" -> "b s r"
        return x @ self._right.linear

    def combine(self, left: Tensor, right: Tensor) -> Tensor:  # "b s k r", "b s k r" -> "b s r"
        return (left * right).sum(-2)

    def head(self, x: Tensor) -> Tensor:  # "b s r" -> "b s a"
        return x @ self._head.linear.mT

    def left_log(self, log_x: Tensor) -> Tensor:
        return log_product(log_x, self._left.log)

    def right_log(self, log_x: Tensor) -> Tensor:
        return log_product(log_x, self._right.log)

    def combine_log(self, left: Tensor, right: Tensor) -> Tensor:
        return log_sum((left + right).mT)

    def head_log(self, log_x: Tensor) -> Tensor:
        return log_product(log_x, self._head.log.mT)

    def to_dense(self) -> Tensor:  # "a n m"
        head, left, right = (x.weights() for x in (self._head, self._left, self._right))
        return torch.einsum("...ar,...nr,...mr->...anm", head, left, right)


def log_product(log_x: Tensor, log_w: Tensor) -> Tensor:  # "b s n", "n r" or "b n r" -> "b s r"
    """log(x w), for each sentence by its own matrix or by one for all."""
    if log_w.ndim == 2:
        return log_matmul(log_x.flatten(0, -2), log_w).reshape(*log_x.shape[:-1], log_w.shape[-1])
    return log_matmul(log_x, log_w)


def _expect_three(head: Tensor, left: Tensor, right: Tensor, prefix: str) -> None:
    named = {f"{prefix}head": head, f"{prefix}left": left, f"{prefix}right": right}
    expect_factors(named, dict(zip(named, ("a r", "n r", "m r"), strict=True)))
    ranks = {name: x.shape[-1] for name, x in named.items()}
    if len(set(ranks.values())) > 1:
        raise ShapeError(
            f"the last axis of each factor is the rank, but they are {ranks}.\n  head[a, r], left[n, r], right[m, r]."
        )


def expect_factors(named: dict[str, Tensor], axes: dict[str, str]) -> None:
    """Raise unless these are floating tensors of these axes, sentences before them or not, all of one kind."""
    batches = {}
    for name, x in named.items():
        own = isinstance(x, Tensor) and x.ndim == len(axes[name].split()) + 1
        expect(x, f"b {axes[name]}" if own else axes[name], name=name, hint="An axis before these: one for a sentence.")
        if own:
            batches[name] = len(x)
    first, *rest = named
    same_kind(named[first], first, {name: named[name] for name in rest})
    if len(set(batches.values())) > 1:
        raise ShapeError(f"factors with rules of their own for each sentence differ in how many: {batches}.")
