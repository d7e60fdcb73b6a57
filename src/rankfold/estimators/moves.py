"""Transitions: the operator their tables make, and the tables that maximise its expected counts.

Low-rank factors are two distributions, ranks given a state and states given a rank: their expected counts are those of
a hidden rank between two states, and EM needs nothing else. Read next: `em.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rankfold.estimators.observations import shares
from rankfold.operators import Dense, LowRank, Operator, RowScaled, WithoutDiagonal


class Moves(NamedTuple):
    """The tables of a transition: "z y", or the factors "z r" (rows sum to 1) and "y r" (columns sum to 1)."""

    tables: tuple[Tensor, ...]
    diagonal: bool = True  # whether a state may follow itself

    @property
    def low_rank(self) -> bool:
        return len(self.tables) == 2

    def to(self, dtype: torch.dtype) -> Moves:
        """The same tables in another dtype."""
        return self._replace(tables=tuple(x.to(dtype) for x in self.tables))

    def operator(self) -> Operator:
        """The transition; O(z r) to make for a low-rank one."""
        if not self.low_rank:
            return Dense.unchecked(self.tables[0])
        left, right = self.tables
        product = LowRank.unchecked(left, right)
        if self.diagonal:
            return product
        apart = WithoutDiagonal(product)
        return RowScaled(apart, 1 / apart.pull(torch.ones_like(self.tables[0][:, 0])))

    def counts(self, by_factor: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The expected uses of the tables, from those of the operator's factors.

        Without a diagonal a low-rank move is a draw that is repeated until it leaves the state. The draws that did
        not are hidden too: for each departure from z, left[z, r] right[z, r] / (1 - their sum) of them are expected
        through rank r. With them counted, EM stays EM, and never decreases the likelihood.
        """
        if not self.low_rank or self.diagonal:
            return by_factor
        _, left, right = by_factor
        scale = self.operator().factors()[0]
        stayed = (left.sum(1) * scale)[:, None] * self.tables[0] * self.tables[1]
        return left + stayed, right + stayed

    def maximise(self, counts: tuple[Tensor, ...], smoothing: float, forbidden: Tensor | None) -> Moves:
        """The tables that maximise the expected log-weight; rows without any use stay as they are."""
        if self.low_rank:
            left, right = counts
            new = shares(left + smoothing, self.tables[0]), shares(right + smoothing, self.tables[1], 0)
            return self._replace(tables=new)
        found = counts[0] + smoothing
        if forbidden is not None:
            found = found.masked_fill(forbidden, 0.0)
        return self._replace(tables=(shares(found, self.tables[0]),))

    def log_prior(self, smoothing: float, forbidden: Tensor | None) -> Tensor:  # ""
        """The log-density of the Dirichlet prior, up to a constant; 0 without smoothing."""
        if not smoothing:
            return self.tables[0].new_zeros(())
        tables = self.tables if forbidden is None else (self.tables[0].masked_fill(forbidden, 1.0),)
        return smoothing * torch.stack([x.log().sum() for x in tables]).sum()
