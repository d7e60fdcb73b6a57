"""The second half of the operator protocol, derived from `rows` in blocks that are never all in memory.

A new operator gets exact log arithmetic, best predecessors and a dense form from its `rows` alone; it
may override any of them with something faster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rankfold.kernels.log_products import BLOCK, log_matmul, max_matmul
from rankfold.numerics.log_space import log_sum, log_weights, x_log_x
from rankfold.operators.protocol import Operator


class RowOperator:
    """Mix-in: needs `shape`, `rows` and `factors`; gives the rest of `Operator` and `push_max`."""

    if TYPE_CHECKING:

        @property
        def shape(self) -> tuple[int, int]: ...
        def rows(self, index: Tensor) -> Tensor: ...
        def factors(self) -> tuple[Tensor, ...]: ...

    @property
    def log_scale(self) -> Tensor | float:
        return 0.0

    @property
    def log_factors(self) -> tuple[bool, ...]:
        return (False,) * len(self.factors())

    def log_rows(self, index: Tensor) -> Tensor:  # "k" -> "k y"
        return log_weights(self.rows(index)) + self.log_scale

    def push_log(self, log_x: Tensor) -> Tensor:  # "... z" -> "... y"
        flat = log_x.reshape(-1, self.shape[0])
        total: Tensor | None = None
        for index in row_blocks(self, flat):
            part = log_matmul(flat[:, index], self._log_block(index, flat))
            total = part if total is None else log_sum(torch.stack([total, part], -1))
        assert total is not None
        return total.reshape(*log_x.shape[:-1], self.shape[1])

    def pull_log(self, log_x: Tensor) -> Tensor:  # "... y" -> "... z"
        flat = log_x.reshape(-1, self.shape[1])
        parts = [log_matmul(flat, self._log_block(index, flat).mT) for index in row_blocks(self, flat)]
        return torch.cat(parts, -1).reshape(*log_x.shape[:-1], self.shape[0])

    def push_max(self, log_x: Tensor) -> tuple[Tensor, Tensor]:  # "b z" -> best "b y", argmax "b y"
        """Best predecessors, visiting the matrix in blocks of rows: its cost is that of all its rows."""
        best = log_x.new_full((log_x.shape[0], self.shape[1]), float("-inf"))
        where = torch.zeros_like(best, dtype=torch.int64)
        for index in row_blocks(self, log_x):
            value, row = max_matmul(log_x[:, index], self.log_rows(index))
            better = value > best  # ties stay with the smaller index
            best = torch.where(better, value, best)
            where = torch.where(better, row + index[0], where)
        return best, where

    def push_loss(self) -> Tensor | float:  # "y"
        return 2.0 * self.shape[0]  # of a weight and of its product, for every source

    def pull_loss(self) -> Tensor | float:  # "z"
        return 2.0 * self.shape[1]

    def push_log_weighted(self, x: Tensor) -> Tensor:  # "... z" -> "... y"
        flat = x.reshape(-1, self.shape[0])
        total = flat.new_zeros(flat.shape[0], self.shape[1])
        for index in row_blocks(self, flat):
            total = total + _recomputed(self._log_weighted_block, flat, index)
        return total.reshape(*x.shape[:-1], self.shape[1])

    def _log_weighted_block(self, x: Tensor, index: Tensor) -> Tensor:
        return x[:, index] @ x_log_x(self.rows(index))

    def to_dense(self) -> Tensor:  # "z y"
        index = torch.arange(self.shape[0], device=self.factors()[0].device)
        return torch.exp(self.log_rows(index)) if any(self.log_factors) else self.rows(index)

    def _log_block(self, index: Tensor, like: Tensor) -> Tensor:
        return self.log_rows(index).to(like.dtype)


def _recomputed(block: Callable[[Tensor, Tensor], Tensor], x: Tensor, index: Tensor) -> Tensor:
    """A block's result; where autograd is watching it is computed again in the backward pass, not kept."""
    if not torch.is_grad_enabled():
        return block(x, index)
    result: Tensor = checkpoint(block, x, index, use_reentrant=False)
    return result


def row_blocks(operator: RowOperator | Operator, like: Tensor) -> list[Tensor]:
    """The row numbers of an operator, cut so that the rows of one block have at most BLOCK entries."""
    num_rows, num_columns = operator.shape
    height = max(1, min(num_rows, BLOCK // num_columns))
    every = torch.arange(num_rows, device=like.device)
    return [every[start : start + height] for start in range(0, num_rows, height)]
