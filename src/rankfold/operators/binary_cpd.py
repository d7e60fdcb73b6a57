"""Rules of low rank: T[a, n, m] = sum_r head[a, r] left[n, r] right[m, r], the CPD of a tensor."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from rankfold.errors import ShapeError, expect, expect_logs, expect_weights, same_kind
from rankfold.kernels.log_products import log_matmul
from rankfold.numerics.log_space import log_sum
from rankfold.numerics.scaled import largest
from rankfold.operators.binary import CPD, EVERY, Divide, rows_of
from rankfold.operators.factor import Factor, OfFactors


class BinaryCPD(OfFactors):
    """Three thin factors and a rank between them.   A span costs (n + m + a) r, a split r multiply-adds.

    The TN-PCFG's rules. `head` None is the identity: parents are the ranks themselves, T[a, n, m] = left[n, a]
    right[m, a], as in rank space (`operators/rank_space.py`) and in the simple PCFG, whose children are independent.
    Source: Yang, Zhao, Tu 2021; Cohen, Satta, Collins 2013.
    """

    def __init__(self, head: Tensor | None, left: Tensor, right: Tensor) -> None:  # "a r", "n r", "m r", or with b
        for name, x in _expect_three(head, left, right, "").items():
            expect_weights(x, name=name)
        self._set(*_parts(head, left, right, is_log=False))

    @classmethod
    def from_log(cls, log_head: Tensor | None, log_left: Tensor, log_right: Tensor) -> BinaryCPD:
        """The same from the logarithms of all factors, of any range; a head of None is the identity here, too."""
        for name, x in _expect_three(log_head, log_left, log_right, "log_").items():
            expect_logs(x, name=name)
        return cls.of_parts(*_parts(log_head, log_left, log_right, is_log=True))

    @classmethod
    def unchecked(cls, head: Tensor | None, left: Tensor, right: Tensor) -> BinaryCPD:
        """The same without a look at the values: for weights that are distributions by construction."""
        return cls.of_parts(*_parts(head, left, right, is_log=False))

    @classmethod
    def of_parts(cls, head: Factor | None, left: Factor, right: Factor) -> Self:
        """The same of existing factors: some may be weights and some logarithms."""
        self = cls.__new__(cls)
        self._set(head, left, right)
        return self

    def _set(self, head: Factor | None, left: Factor, right: Factor) -> None:
        self.parts = head, left, right
        self.held = (left, right) if head is None else (head, left, right)

    @property
    def shape(self) -> tuple[int, int, int]:
        head, left, right = self.parts
        parents = self.rank if head is None else head.value.shape[-2]
        return parents, left.value.shape[-2], right.value.shape[-2]

    @property
    def rank(self) -> int:
        return self.parts[1].value.shape[-1]

    @property
    def batch(self) -> int | None:
        return next((len(x) for x in self.factors() if x.ndim == 3), None)

    @property
    def head_of(self) -> tuple[object, ...]:
        head = self.parts[0]
        return (BinaryCPD, self.rank) if head is None else (BinaryCPD, id(head.value), head.is_log)

    @property
    def left_of(self) -> tuple[object, ...]:
        return BinaryCPD, id(self.parts[1].value), self.parts[1].is_log

    @property
    def right_of(self) -> tuple[object, ...]:
        return BinaryCPD, id(self.parts[2].value), self.parts[2].is_log

    @property
    def gain(self) -> Tensor:  # "" or "b"
        head, left, right = self.parts
        sides = torch.maximum(left.most(-2), right.most(-2))
        return sides if head is None else sides * head.most(-1)

    def with_factors(self, *factors: Tensor) -> Self:
        head, left, right = self.parts
        *heads, new_left, new_right = factors
        new_head = None if head is None else head.like(*heads)
        return self.of_parts(new_head, left.like(new_left), right.like(new_right))

    def take(self, index: Tensor) -> Self:  # "k"
        return self.with_factors(*(x[index] if x.ndim == 3 else x for x in self.factors()))

    def left(self, x: Tensor) -> Tensor:  # "b s n" -> "b s r"
        return x @ self.parts[1].linear

    def right(self, x: Tensor) -> Tensor:  # "b s m" -> "b s r"
        return x @ self.parts[2].linear

    def combine(self, left: Tensor, right: Tensor) -> Tensor:  # "b s k r", "b s k r" -> "b s r"
        return (left * right).sum(-2)

    def head(self, x: Tensor) -> Tensor:  # "b s r" -> "b s a"
        head = self.parts[0]
        return x if head is None else x @ head.linear.mT

    def left_log(self, log_x: Tensor) -> Tensor:
        return log_product(log_x, self.parts[1].log)

    def right_log(self, log_x: Tensor) -> Tensor:
        return log_product(log_x, self.parts[2].log)

    def combine_log(self, left: Tensor, right: Tensor) -> Tensor:
        return log_sum((left + right).mT)

    def head_log(self, log_x: Tensor) -> Tensor:
        head = self.parts[0]
        return log_x if head is None else log_product(log_x, head.log.mT)

    def to_dense(self) -> Tensor:  # "a n m"
        head, left, right = (None if x is None else x.weights() for x in self.parts)
        if head is None:
            return torch.einsum("...na,...ma->...anm", left, right)
        return torch.einsum("...ar,...nr,...mr->...anm", head, left, right)

    @property
    def cpd(self) -> CPD:
        return self.parts

    @property
    def row_cost(self) -> int:
        return self.rank

    def log_rows(self, sentence: Tensor, parent: Tensor, rows: slice = EVERY) -> Tensor:  # "k", "k" -> "k n m"
        head, left, right = self.parts
        if head is None:
            one, other = (rows_of(x.log.mT, sentence, parent) for x in (left, right))
            return one[:, rows, None] + other[:, None]
        one, other = (x if x.ndim == 2 else x[sentence] for x in (left.log[..., rows, :], right.log))
        return log_by_products(rows_of(head.log, sentence, parent).unsqueeze(1) + one, other.mT)

    def given_right(self, right: Tensor) -> Tensor:  # "b m" -> "b a n"   a n r multiply-adds
        return self._given(right, self.parts[1], self.parts[2])

    def given_left(self, left: Tensor) -> Tensor:  # "b n" -> "b a m"
        return self._given(left, self.parts[2], self.parts[1])

    def _given(self, weight: Tensor, side: Factor, other: Factor) -> Tensor:
        head, by_rank = self.parts[0], weight.unsqueeze(-2) @ other.linear  # "b 1 r"
        found = (side.linear * by_rank).mT if head is None else (head.linear * by_rank) @ side.linear.mT
        return times_scale(found, self.log_scale)

    def to_right(self, parents: Tensor, left: Tensor) -> Tensor:  # "b s a", "b s n" -> "b m"   (a + n) r for each s
        head, one, other = self.parts
        ranks = parents if head is None else parents @ head.linear
        both = (ranks * (left @ one.linear)).sum(-2, keepdim=True)
        return times_scale(both @ other.linear.mT, self.log_scale).squeeze(-2)

    def of_parents(self, index: Tensor) -> Self:  # "k"
        head, left, right = self.parts
        if head is None:  # parents are the ranks: the last axis of both sides
            return self.of_parts(None, *(x.like(x.value[..., index]) for x in (left, right)))
        return self.of_parts(head.like(head.value[..., index, :]), left, right)

    def divide_parents(self, divide: Divide) -> Self:
        head, left, right = self.parts
        if head is None:
            return self.of_parts(None, divide(left, -1), right)
        return self.of_parts(divide(head, -2), left, right)


def times_scale(x: Tensor, log_scale: Tensor | float) -> Tensor:
    """x exp(log_scale)."""
    return x * torch.exp(torch.as_tensor(log_scale, dtype=x.dtype, device=x.device))


def log_by_products(log_x: Tensor, log_w: Tensor) -> Tensor:  # "k n r", "r m" or "k r m" -> "k n m"
    """log(x w) by a product of scaled vectors; in logarithms if an entry comes near underflow, or is 0."""
    top, most = largest(log_x), largest(log_w.flatten())
    total = torch.exp(log_x - top) @ torch.exp(log_w - most)
    info = torch.finfo(total.dtype)
    if (total < info.tiny / info.eps).any():
        return log_product(log_x, log_w)
    return total.log() + top + most


def log_product(log_x: Tensor, log_w: Tensor) -> Tensor:  # "b s n", "n r" or "b n r" -> "b s r"
    """log(x w), for each sentence by its own matrix or by one for all."""
    if log_w.ndim == 2:
        return log_matmul(log_x.flatten(0, -2), log_w).reshape(*log_x.shape[:-1], log_w.shape[-1])
    return log_matmul(log_x, log_w)


def _parts(head: Tensor | None, left: Tensor, right: Tensor, *, is_log: bool) -> tuple[Factor | None, Factor, Factor]:
    """The factors, all weights or all logarithms."""
    top = None if head is None else Factor(head, is_log=is_log)
    return top, Factor(left, is_log=is_log), Factor(right, is_log=is_log)


def _expect_three(head: Tensor | None, left: Tensor, right: Tensor, prefix: str) -> dict[str, Tensor]:
    """The factors by name, the head only if there is one; raises if they do not fit together."""
    named = {f"{prefix}left": left, f"{prefix}right": right}
    axes = dict(zip(named, ("n r", "m r"), strict=True))
    if head is not None:
        named, axes = {f"{prefix}head": head, **named}, {f"{prefix}head": "a r", **axes}
    expect_factors(named, axes)
    ranks = {name: x.shape[-1] for name, x in named.items()}
    if len(set(ranks.values())) > 1:
        raise ShapeError(
            f"the last axis of each factor is the rank, but they are {ranks}.\n  head[a, r], left[n, r], right[m, r]."
        )
    return named


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
