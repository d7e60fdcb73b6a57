"""A low-rank matrix without its diagonal: no state follows itself, and nothing is ever subtracted.

A row less its diagonal entry would cancel; sums over the other states are exact. States are cut into blocks:
pairs inside a block are written out, pairs of different blocks go through the ranks, where each block receives
the sum of all others.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from rankfold.errors import ShapeError, UnsupportedError
from rankfold.kernels.log_products import log_matmul
from rankfold.numerics.log_space import log_sum
from rankfold.numerics.precision import Rounded
from rankfold.operators.low_rank import LowRank
from rankfold.operators.protocol import Blocks, factor_logs
from rankfold.operators.row_operator import RowOperator, row_blocks

# Above this many blocks a table of all their pairs outgrows what is summed: it would have more than 1 MiB.
MANY = 512
# Up to this many states all pairs are written out: one product takes less time than the calls of three.
FEW = 256


class WithoutDiagonal(RowOperator):
    """A[z, y] = operator[z, y] for z != y, and 0 for z = y.   push and pull: about 2 z r + z s multiply-adds.

    `s`, the states of a block, is the rank, or 16 if that is more, up to twice as many where that divides the
    states evenly: the written pairs, z s entries, then take as much memory as a factor. Few states, or ranks of a sixth
    of them and more, are one block: a matrix. Rows do not sum to 1: `RowScaled(op, 1 / op.pull(ones))` normalises
    them. Logarithms and best predecessors visit the matrix in blocks of rows, z y r operations. Dense and banded
    operators need none of this: set their diagonals to 0.
    """

    def __init__(self, operator: LowRank) -> None:
        if not isinstance(operator, LowRank):
            raise UnsupportedError(
                f"WithoutDiagonal takes a LowRank, but got a {type(operator).__name__}.\n"
                "  Of a Dense or Banded operator set the diagonal itself to 0."
            )
        if operator.shape[0] != operator.shape[1]:
            raise ShapeError(f"only a square matrix has a diagonal, but this one maps {operator.shape}.")
        self.operator = operator
        self._kept: dict[tuple[bool, bool], _Tables] = {}  # once asked for, in each mode of autograd

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.operator,)

    @property
    def shape(self) -> tuple[int, int]:
        return self.operator.shape

    @property
    def log_scale(self) -> Tensor | float:
        return self.operator.log_scale

    @property
    def log_factors(self) -> tuple[bool, ...]:
        return self.operator.log_factors

    def factors(self) -> tuple[Tensor, ...]:
        return self.operator.factors()

    def with_factors(self, *factors: Tensor) -> Self:
        return self.__class__(self.operator.with_factors(*factors))

    def push(self, x: Tensor) -> Tensor:  # "... z" -> "... y"
        return self._through(x, self._tables().forth)

    def pull(self, x: Tensor) -> Tensor:  # "... y" -> "... z"
        return self._through(x, self._tables().back)

    @property
    def is_written(self) -> bool:
        return self._sizes()[0] == self.shape[0]

    def maps(self) -> tuple[Tensor, ...]:
        """Of one block: the matrix `push` multiplies by."""
        assert self.is_written
        return (self._tables().pairs[0],)

    def rounded_maps(self) -> tuple[Rounded | None, ...]:
        return (None,)

    def blocks(self) -> Blocks:
        """Both factors by blocks, and the pairs inside each; zeros where states are missing from the last block."""
        found = self._tables()
        return found.left, found.right, found.pairs

    def _through(self, x: Tensor, way: tuple[Tensor, Tensor]) -> Tensor:
        """Each block's own pairs and its sums over ranks in one product, then the sums of the other blocks."""
        first, second = way
        num_blocks, size, _ = first.shape
        if num_blocks == 1:
            return x @ first[0]
        num_states = self.shape[0]
        flat = x.reshape(-1, num_states)
        if num_blocks * size > num_states:
            flat = pad(flat, (0, num_blocks * size - num_states))
        both = torch.bmm(flat.reshape(-1, num_blocks, size).transpose(0, 1), first)  # "k n (s + r)"
        out = torch.baddbmm(both[..., :size], self._of_others(both[..., size:]), second)
        return out.transpose(0, 1).reshape(len(flat), -1)[:, :num_states].reshape(x.shape)

    def _of_others(self, sums: Tensor) -> Tensor:  # "k n r" -> "k n r"
        """For each block the sum of all others: one product, or, of many blocks, those before and those after."""
        others = self._tables().others
        if others is not None:
            return (others @ sums.flatten(1)).reshape(sums.shape)
        before = pad(sums[:-1].cumsum(0), (0, 0, 0, 0, 1, 0))
        return before + pad(sums[1:].flip(0).cumsum(0).flip(0), (0, 0, 0, 0, 0, 1))

    def _tables(self) -> _Tables:
        watched = torch.is_grad_enabled() and any(x.requires_grad for x in self.factors())
        key = watched, torch.is_inference_mode_enabled()
        if key not in self._kept:
            left, right = self.operator.maps()
            size, missing = self._sizes()
            left, right = (pad(x, (0, 0, 0, missing)).reshape(-1, size, x.shape[1]) for x in (left, right.mT))
            self._kept[key] = _Tables.of(left, right)
        return self._kept[key]

    def _sizes(self) -> tuple[int, int]:
        """How many states a block has, and how many are missing from the last."""
        size = block_size(self.shape[0], self.operator.rank)
        return size, -self.shape[0] % size

    def rows(self, index: Tensor) -> Tensor:  # "k" -> "k y"
        return self.operator.rows(index).masked_fill(self._own(index), 0.0)

    def log_rows(self, index: Tensor) -> Tensor:  # "k" -> "k y"
        return self.operator.log_rows(index).masked_fill(self._own(index), float("-inf"))

    def _own(self, index: Tensor) -> Tensor:  # "k" -> "k y"
        return torch.arange(self.shape[1], device=index.device) == index[:, None]

    def log_gradients(self, log_x: Tensor, log_y: Tensor) -> list[Tensor]:  # "n z", "n y"
        """Pairs of states in blocks of rows, none with itself."""
        left, right = factor_logs(self)
        of_left, of_right = [], torch.full_like(right, float("-inf"))
        for rows in row_blocks(self, log_x):
            pairs = log_matmul(log_x[:, rows].mT, log_y)
            pairs = pairs.masked_fill(rows[:, None] == torch.arange(len(right), device=rows.device), float("-inf"))
            of_left.append(log_matmul(pairs, right))
            of_right = log_sum(torch.stack([of_right, log_matmul(pairs.mT, left[rows])], -1))
        return [torch.cat(of_left), of_right]

    def push_loss(self) -> Tensor | float:  # "y"
        return self.operator.push_loss() + self._inside_loss()

    def pull_loss(self) -> Tensor | float:  # "z"
        return self.operator.pull_loss() + self._inside_loss()

    def _inside_loss(self) -> float:
        """Of every pair of a block: the terms of its weight, the weight, its product."""
        return (2.0 + self.operator.rank) * self._sizes()[0]


def block_size(num_states: int, rank: int) -> int:
    """How many states a block has: all, where the matrix is about as cheap as its replacement."""
    least = max(16, rank)
    if num_states <= max(FEW, 2 * (2 * rank + least)):
        return num_states
    return next((size for size in range(least, 2 * least) if num_states % size == 0), least)


class _Tables(NamedTuple):
    """The tables that products read, made once."""

    left: Tensor  # "k s r"
    right: Tensor  # "k s r"
    pairs: Tensor  # "k s s"    inside a block, 0 on the diagonal
    forth: tuple[Tensor, Tensor]  # "k s (s + r)", "k r s": pairs next to left, then right; of one block pairs alone
    back: tuple[Tensor, Tensor]
    others: Tensor | None  # "k k"   1 but on the diagonal; None of many blocks

    @classmethod
    def of(cls, left: Tensor, right: Tensor) -> _Tables:
        pairs = (left @ right.mT).masked_fill(_diagonal(left.shape[1], left), 0.0)
        if len(left) == 1:
            return cls(left, right, pairs, (pairs, right.mT), (pairs.mT, left.mT), None)
        forth, back = torch.cat([pairs, left], 2), torch.cat([pairs.mT, right], 2)
        others = None
        if len(left) <= MANY:
            others = left.new_ones(len(left), len(left)).masked_fill_(_diagonal(len(left), left), 0.0)
        return cls(left, right, pairs, (forth, right.mT), (back, left.mT), others)


def _diagonal(size: int, like: Tensor) -> Tensor:  # "k k"
    return torch.eye(size, dtype=torch.bool, device=like.device)
