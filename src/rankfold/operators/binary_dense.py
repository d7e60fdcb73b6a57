"""Rules as they are: a weight for every parent and pair of children, or parents and pairs through a rank.

Both sum the splits first, over all pairs of children at once, and go to the parents in one product per span.
"""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from rankfold.errors import ShapeError, expect_logs, expect_weights
from rankfold.kernels.log_products import log_matmul
from rankfold.operators.binary import EVERY, Divide, TensorRule, rows_of
from rankfold.operators.binary_cpd import expect_factors, log_by_products, log_product, times_scale
from rankfold.operators.factor import Factor, OfFactors


class PairRule(OfFactors, TensorRule):
    """Children as they are; all pairs of them, summed over splits: a product "n k" by "k m"."""

    @property
    def left_of(self) -> tuple[object, ...]:
        return (PairRule,)

    @property
    def right_of(self) -> tuple[object, ...]:
        return (PairRule,)

    def left(self, x: Tensor) -> Tensor:  # "b s n" -> "b s n"
        return x

    def right(self, x: Tensor) -> Tensor:  # "b s m" -> "b s m"
        return x

    def combine(self, left: Tensor, right: Tensor) -> Tensor:  # "b s k n", "b s k m" -> "b s nm"
        return (left.mT @ right).flatten(-2)

    def left_log(self, log_x: Tensor) -> Tensor:
        return log_x

    def right_log(self, log_x: Tensor) -> Tensor:
        return log_x

    def combine_log(self, left: Tensor, right: Tensor) -> Tensor:
        return log_matmul(left.mT, right).flatten(-2)


class BinaryDense(PairRule):
    """T[a, n, m] = weight[a, n, m].   A span costs a n m, a split n m multiply-adds."""

    def __init__(self, weight: Tensor) -> None:  # "a n m", or "b a n m"
        expect_factors({"weight": weight}, {"weight": "a n m"})
        expect_weights(weight, name="weight")
        self.held = (Factor(weight, is_log=False),)

    @classmethod
    def from_log(cls, log_weight: Tensor) -> BinaryDense:
        """The same from logarithms of any range."""
        expect_factors({"log_weight": log_weight}, {"log_weight": "a n m"})
        expect_logs(log_weight, name="log_weight")
        return cls._of(Factor(log_weight, is_log=True))

    @classmethod
    def unchecked(cls, weight: Tensor) -> BinaryDense:
        """The same without a look at the values: for weights that are distributions by construction."""
        return cls._of(Factor(weight, is_log=False))

    @property
    def weight(self) -> Factor:
        return self.held[0]

    @property
    def shape(self) -> tuple[int, int, int]:
        parents, left, right = self.weight.value.shape[-3:]
        return parents, left, right

    @property
    def batch(self) -> int | None:
        return len(self.weight.value) if self.weight.value.ndim == 4 else None

    @property
    def head_of(self) -> tuple[object, ...]:
        return BinaryDense, id(self.weight.value), self.weight.is_log

    @property
    def gain(self) -> Tensor:  # "" or "b"
        return self.weight.most(-2, -1)

    def take(self, index: Tensor) -> Self:  # "k"
        return self if self.batch is None else self.with_factors(self.weight.value[index])

    def head(self, x: Tensor) -> Tensor:  # "b s nm" -> "b s a"
        return x @ self.weight.linear.flatten(-2).mT

    def head_log(self, log_x: Tensor) -> Tensor:
        return log_product(log_x, self.weight.log.flatten(-2).mT)

    def to_dense(self) -> Tensor:  # "a n m"
        return self.weight.weights()

    def log_rows(self, sentence: Tensor, parent: Tensor, rows: slice = EVERY) -> Tensor:  # "k", "k" -> "k n m"
        return rows_of(self.weight.log, sentence, parent, 3)[:, rows]

    def given_right(self, right: Tensor) -> Tensor:  # "b m" -> "b a n"   all cells once
        return times_scale(torch.einsum("...anm,...m->...an", self.weight.linear, right), self.log_scale)

    def given_left(self, left: Tensor) -> Tensor:  # "b n" -> "b a m"
        return times_scale(torch.einsum("...anm,...n->...am", self.weight.linear, left), self.log_scale)

    def to_right(self, parents: Tensor, left: Tensor) -> Tensor:  # "b s a", "b s n" -> "b m"
        found = torch.einsum("...an,...anm->...m", parents.mT @ left, self.weight.linear)
        return times_scale(found, self.log_scale)

    def of_parents(self, index: Tensor) -> Self:  # "k"
        return self.with_factors(self.weight.value[..., index, :, :])

    def divide_parents(self, divide: Divide) -> Self:
        return self.with_factors(divide(self.weight, -3).value)


class BinaryMatricised(PairRule):
    """T[a, n, m] = sum_r parent[a, r] pair[n, m, r]: low rank between a parent and its pair of children.

    A span costs (a + n m) r, a split n m multiply-adds. The LPCFG's rules. Source: Chiu, Deng, Rush 2021, App. F.
    """

    def __init__(self, parent: Tensor, pair: Tensor) -> None:  # "a r", "n m r", or with a leading b
        _expect_two(parent, pair, "")
        expect_weights(parent, name="parent")
        expect_weights(pair, name="pair")
        self.held = Factor(parent, is_log=False), Factor(pair, is_log=False)

    @classmethod
    def from_log(cls, log_parent: Tensor, log_pair: Tensor) -> BinaryMatricised:
        """The same from logarithms of any range."""
        _expect_two(log_parent, log_pair, "log_")
        expect_logs(log_parent, name="log_parent")
        expect_logs(log_pair, name="log_pair")
        return cls._of(Factor(log_parent, is_log=True), Factor(log_pair, is_log=True))

    @classmethod
    def unchecked(cls, parent: Tensor, pair: Tensor) -> BinaryMatricised:
        """The same without a look at the values: for weights that are distributions by construction."""
        return cls._of(Factor(parent, is_log=False), Factor(pair, is_log=False))

    @property
    def _parent(self) -> Factor:
        return self.held[0]

    @property
    def _pair(self) -> Factor:
        return self.held[1]

    @property
    def shape(self) -> tuple[int, int, int]:
        return self._parent.value.shape[-2], self._pair.value.shape[-3], self._pair.value.shape[-2]

    @property
    def batch(self) -> int | None:
        if self._parent.value.ndim == 3:
            return len(self._parent.value)
        return len(self._pair.value) if self._pair.value.ndim == 4 else None

    @property
    def head_of(self) -> tuple[object, ...]:
        parent, pair = self.held
        return BinaryMatricised, id(parent.value), parent.is_log, id(pair.value), pair.is_log

    @property
    def gain(self) -> Tensor:  # "" or "b"
        return self._parent.most(-1) * self._pair.most(-3, -2)

    def take(self, index: Tensor) -> Self:  # "k"
        parent, pair = self.factors()
        return self.with_factors(parent[index] if parent.ndim == 3 else parent, pair[index] if pair.ndim == 4 else pair)

    def head(self, x: Tensor) -> Tensor:  # "b s nm" -> "b s a"
        return (x @ self._pair.linear.flatten(-3, -2)) @ self._parent.linear.mT

    def head_log(self, log_x: Tensor) -> Tensor:
        return log_product(log_product(log_x, self._pair.log.flatten(-3, -2)), self._parent.log.mT)

    def to_dense(self) -> Tensor:  # "a n m"
        parent, pair = self._parent.weights(), self._pair.weights()
        flat = parent @ pair.flatten(-3, -2).mT
        return flat.reshape(*flat.shape[:-1], *pair.shape[-3:-1])

    def log_rows(self, sentence: Tensor, parent: Tensor, rows: slice = EVERY) -> Tensor:  # "k", "k" -> "k n m"
        parents, pair = (x.log for x in self.held)
        pair = pair[..., rows, :, :]
        row, flat = rows_of(parents, sentence, parent).unsqueeze(1), pair.flatten(-3, -2).mT
        found = log_by_products(row, flat if flat.ndim == 2 else flat[sentence])
        return found.reshape(len(sentence), *pair.shape[-3:-1])

    def given_right(self, right: Tensor) -> Tensor:  # "b m" -> "b a n"   all cells of the pairs once
        return self._given("...nmr,...m->...rn", right)

    def given_left(self, left: Tensor) -> Tensor:  # "b n" -> "b a m"
        return self._given("...nmr,...n->...rm", left)

    def _given(self, letters: str, weight: Tensor) -> Tensor:
        parent, pair = (x.linear for x in self.held)
        return times_scale(parent @ torch.einsum(letters, pair, weight), self.log_scale)

    def to_right(self, parents: Tensor, left: Tensor) -> Tensor:  # "b s a", "b s n" -> "b m"
        parent, pair = (x.linear for x in self.held)
        found = torch.einsum("...rn,...nmr->...m", (parents @ parent).mT @ left, pair)
        return times_scale(found, self.log_scale)

    def of_parents(self, index: Tensor) -> Self:  # "k"
        parent, pair = self.factors()
        return self.with_factors(parent[..., index, :], pair)

    def divide_parents(self, divide: Divide) -> Self:
        parent, pair = self.held
        return self.with_factors(divide(parent, -2).value, pair.value)


def _expect_two(parent: Tensor, pair: Tensor, prefix: str) -> None:
    named = {f"{prefix}parent": parent, f"{prefix}pair": pair}
    expect_factors(named, dict(zip(named, ("a r", "n m r"), strict=True)))
    if parent.shape[-1] != pair.shape[-1]:
        raise ShapeError(
            f"the last axis of both factors is the rank, but {prefix}parent has {parent.shape[-1]} and "
            f"{prefix}pair {pair.shape[-1]}.\n  parent[a, r], pair[n, m, r]."
        )
