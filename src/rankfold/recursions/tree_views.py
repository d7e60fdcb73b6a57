"""What there is to choose at a node of a tree, given its parent's symbol: a rank, or a pair of children.

Best trees, best trees with ranks and samples take the same way from the top; they differ in the chart they read, in how
a rule is seen, and in how they choose. Read next: `recursions/tree_trace.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from rankfold.errors import UnsupportedError
from rankfold.numerics.scaled import largest
from rankfold.operators.binary import BinaryOperator
from rankfold.operators.binary_cpd import BinaryCPD, log_product
from rankfold.operators.binary_dense import BinaryDense, BinaryMatricised
from rankfold.operators.factor import Factor

Choose = Callable[[Tensor], Tensor]  # "k n" logarithms -> "k" indices
LogSide = Callable[[Tensor, Factor], Tensor]  # "b s n", the factor "n r" -> "b s r"


EVERY = slice(None)


class View(Protocol):
    """A rule as a tree is traced through it; k nodes, their sentences b, all in logarithms."""

    width: int  # options of a split
    cost: int  # numbers held for an option while all are made

    def left(self, x: Tensor) -> Tensor: ...  # "b s n" -> "b s l"   what options need of a left child
    def right(self, x: Tensor) -> Tensor: ...
    def options(self, b: Tensor, parent: Tensor, left: Tensor, right: Tensor) -> Tensor: ...  # "k c l" -> "k c o"
    def children(
        self, b: Tensor, option: Tensor, left: Tensor, right: Tensor, choose: Choose
    ) -> tuple[Tensor, Tensor]: ...  # "k", "k n", "k m" -> "k" twice


class Ranks:
    """A CPD by its rank first, r options a split, then each child by itself, n and m."""

    def __init__(self, rule: BinaryCPD, log_side: LogSide) -> None:
        self._rule, self._log_side = rule, log_side
        self.width, self.cost = rule.rank, 1

    def left(self, x: Tensor) -> Tensor:
        return self._log_side(x, self._rule.parts[1])

    def right(self, x: Tensor) -> Tensor:
        return self._log_side(x, self._rule.parts[2])

    def options(self, b: Tensor, parent: Tensor, left: Tensor, right: Tensor) -> Tensor:
        head, both = self._rule.parts[0], left + right
        if head is not None:
            return both + _of(head.log, b, parent).unsqueeze(1)
        only = both.new_full((len(b), self.width), float("-inf"))
        return both + only.scatter(1, parent[:, None], 0.0).unsqueeze(1)

    def children(self, b: Tensor, option: Tensor, left: Tensor, right: Tensor, choose: Choose) -> tuple[Tensor, Tensor]:
        one, other = (x.log.mT for x in self._rule.parts[1:])
        return choose(_of(one, b, option) + left), choose(_of(other, b, option) + right)


class Pairs:
    """Any rule by its pair of children, n m options a split."""

    def __init__(self, rule: BinaryOperator) -> None:
        self._rule = rule
        self.width = rule.shape[1] * rule.shape[2]
        self.cost = rule.rank if isinstance(rule, BinaryCPD) else 1

    def left(self, x: Tensor) -> Tensor:
        return x

    def right(self, x: Tensor) -> Tensor:
        return x

    def options(self, b: Tensor, parent: Tensor, left: Tensor, right: Tensor) -> Tensor:
        both = left.unsqueeze(-1) + right.unsqueeze(-2)
        return (both + log_rows(self._rule, b, parent).unsqueeze(1)).flatten(-2)

    def children(self, b: Tensor, option: Tensor, left: Tensor, right: Tensor, choose: Choose) -> tuple[Tensor, Tensor]:
        many = self._rule.shape[2]
        return option // many, option % many


def log_rows(rule: BinaryOperator, b: Tensor, parent: Tensor, rows: slice = EVERY) -> Tensor:  # "k", "k" -> "k n m"
    """log T[parent, rows], for each node its own: rows of dense rules, or made of factors, n m r of them."""
    if isinstance(rule, BinaryDense):
        return _of(rule.weight.log, b, parent, 3)[:, rows]
    if isinstance(rule, BinaryMatricised):
        parents, pair = (x.log for x in rule.parts)
        pair = pair[..., rows, :, :]
        row, flat = _of(parents, b, parent).unsqueeze(1), pair.flatten(-3, -2).mT
        found = _log_by_products(row, flat if flat.ndim == 2 else flat[b])
        return found.reshape(len(b), *pair.shape[-3:-1])
    if isinstance(rule, BinaryCPD):
        head, left, right = rule.parts
        one, other = (x if x.ndim == 2 else x[b] for x in (left.log[..., rows, :], right.log))
        if head is None:
            return _of(left.log.mT, b, parent)[:, rows, None] + _of(right.log.mT, b, parent)[:, None]
        return _log_by_products(_of(head.log, b, parent).unsqueeze(1) + one, other.mT)
    raise UnsupportedError(
        f"a {type(rule).__name__} does not say its rules one by one; BinaryDense, BinaryCPD and BinaryMatricised do."
    )


def _log_by_products(log_x: Tensor, log_w: Tensor) -> Tensor:  # "k n r", "r m" or "k r m" -> "k n m"
    """log(x w) by a product of scaled vectors; in logarithms if an entry comes near underflow, or is 0."""
    top, most = largest(log_x), largest(log_w.flatten())
    total = torch.exp(log_x - top) @ torch.exp(log_w - most)
    info = torch.finfo(total.dtype)
    if (total < info.tiny / info.eps).any():
        return log_product(log_x, log_w)
    return total.log() + top + most


def _of(table: Tensor, b: Tensor, row: Tensor, axes: int = 2) -> Tensor:
    """Rows of a table of so many axes, of each sentence's own where it has one more."""
    return table[row] if table.ndim == axes else table[b, row]
