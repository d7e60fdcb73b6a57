"""Every operator the suites run on. A new operator joins by adding one line to CASES."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from rankfold.operators import Banded, Dense, Kronecker, LowRank, Operator, Product, RowScaled, Sum, WithoutDiagonal
from rankfold.operators.row_operator import RowOperator


class Case(NamedTuple):
    """A named operator: `build(z, generator, dtype)` gives a square one of z states, random and non-negative."""

    name: str
    build: Callable[[int, Generator, torch.dtype], Operator]
    positive: bool = True  # whether every factor is above zero (for logs: finite)


class Outer(RowOperator):
    """A[z, y] = weight[z] weight[y]: an operator of a user's own, that inherits all it can."""

    def __init__(self, weight: Tensor) -> None:  # "z"
        self._weight = weight

    @property
    def shape(self) -> tuple[int, int]:
        return len(self._weight), len(self._weight)

    def factors(self) -> tuple[Tensor, ...]:
        return (self._weight,)

    def with_factors(self, *factors: Tensor) -> "Outer":
        return Outer(*factors)

    def push(self, x: Tensor) -> Tensor:  # "... z" -> "... y"
        return (x * self._weight).sum(-1, keepdim=True) * self._weight

    def pull(self, x: Tensor) -> Tensor:  # "... y" -> "... z"
        return self.push(x)

    def rows(self, index: Tensor) -> Tensor:  # "k" -> "k y"
        return self._weight[index, None] * self._weight


def weights(*shape: int, g: Generator, dtype: torch.dtype, zeros: float = 0.0) -> Tensor:
    """Random weights between 0.1 and 1.1, a share of them exactly 0."""
    x = torch.rand(shape, generator=g, dtype=torch.float64) + 0.1
    x = torch.where(torch.rand(shape, generator=g, dtype=torch.float64) < zeros, 0.0, x)
    return x.to(dtype)


def logs(*shape: int, g: Generator, dtype: torch.dtype, zeros: float = 0.0, shift: float = 0.0) -> Tensor:
    """Random log-weights around `shift`, a share of them -inf."""
    x = torch.randn(shape, generator=g, dtype=torch.float64) + shift
    x = torch.where(torch.rand(shape, generator=g, dtype=torch.float64) < zeros, float("-inf"), x)
    return x.to(dtype)


def _dense(z: int, g: Generator, dtype: torch.dtype) -> Operator:
    return Dense(weights(z, z, g=g, dtype=dtype))


def _dense_empty(z: int, g: Generator, dtype: torch.dtype) -> Operator:
    """A state that leads nowhere and one that nobody reaches."""
    weight = weights(z, z, g=g, dtype=dtype)
    weight[z // 2] = 0.0
    weight[:, z - 1] = 0.0
    return Dense(weight)


def _low_rank(r: int | None = None, zeros: float = 0.0) -> Callable[[int, Generator, torch.dtype], Operator]:
    """Rank r; None means two more than there are states."""

    def build(z: int, g: Generator, dtype: torch.dtype) -> Operator:
        rank = z + 2 if r is None else r
        return LowRank(weights(z, rank, g=g, dtype=dtype, zeros=zeros), weights(z, rank, g=g, dtype=dtype, zeros=zeros))

    return build


def _multiplied(r: int | None = None, zeros: float = 0.0) -> Callable[[int, Generator, torch.dtype], Operator]:
    """The factors of `_low_rank`, written out as one matrix."""

    def build(z: int, g: Generator, dtype: torch.dtype) -> Operator:
        return Product(*_low_rank(r, zeros)(z, g, dtype).factors())

    return build


def _without_diagonal(r: int, zeros: float = 0.0) -> Callable[[int, Generator, torch.dtype], Operator]:
    return lambda z, g, dtype: WithoutDiagonal(_low_rank(r, zeros)(z, g, dtype))


def _low_rank_log(z: int, g: Generator, dtype: torch.dtype) -> Operator:
    return LowRank.from_log(logs(z, 2, g=g, dtype=dtype), logs(z, 2, g=g, dtype=dtype))


def _banded(low: float, high: float, *, log: bool = False, zeros: float = 0.0):
    """All diagonals from low * (z - 1) to high * (z - 1), rounded: (-1, 1) is the full matrix."""

    def build(z: int, g: Generator, dtype: torch.dtype) -> Operator:
        first, last = round(low * (z - 1)), round(high * (z - 1))
        if log:
            return Banded.from_log(logs(z, last - first + 1, g=g, dtype=dtype, zeros=zeros), first)
        return Banded(weights(z, last - first + 1, g=g, dtype=dtype, zeros=zeros), first)

    return build


def _sum(z: int, g: Generator, dtype: torch.dtype) -> Operator:
    return Sum([_low_rank(2)(z, g, dtype), _banded(-0.3, 0.3)(z, g, dtype)])


def _sum_scales(z: int, g: Generator, dtype: torch.dtype) -> Operator:
    """Linear and log terms whose scales lie 40 nats apart."""
    dense = Dense.from_log(logs(z, z, g=g, dtype=dtype, shift=25.0))
    far = LowRank.from_log(logs(z, 2, g=g, dtype=dtype, shift=-10.0), logs(z, 2, g=g, dtype=dtype, shift=-5.0))
    return Sum([_banded(-0.3, 0.3)(z, g, dtype), dense, far])


def _row_scaled(z: int, g: Generator, dtype: torch.dtype) -> Operator:
    return RowScaled(_low_rank(2)(z, g, dtype), weights(z, g=g, dtype=dtype))


def _row_scaled_log(z: int, g: Generator, dtype: torch.dtype) -> Operator:
    band = _banded(-0.4, 0.4, log=True)(z, g, dtype)
    return RowScaled.from_log(band, logs(z, g=g, dtype=dtype, shift=-3.0))


def _row_scaled_empty(z: int, g: Generator, dtype: torch.dtype) -> Operator:
    return RowScaled(_banded(-0.4, 0.4)(z, g, dtype), weights(z, g=g, dtype=dtype, zeros=0.4))


def _dense_log(zeros: float, shift: float) -> Callable[[int, Generator, torch.dtype], Operator]:
    return lambda z, g, dtype: Dense.from_log(logs(z, z, g=g, dtype=dtype, zeros=zeros, shift=shift))


def _kronecker(log: bool = False, zeros: float = 0.0) -> Callable[[int, Generator, torch.dtype], Operator]:
    """Two chains whose numbers of states multiply to z, as near to each other as can be; the second of rank 2."""

    def build(z: int, g: Generator, dtype: torch.dtype) -> Operator:
        a = max(n for n in range(1, math.isqrt(z) + 1) if z % n == 0)
        if log:
            first = Dense.from_log(logs(a, a, g=g, dtype=dtype, shift=-20.0))
            return Kronecker(first, Dense.from_log(logs(z // a, z // a, g=g, dtype=dtype, shift=15.0)))
        return Kronecker(Dense(weights(a, a, g=g, dtype=dtype, zeros=zeros)), _low_rank(2, zeros)(z // a, g, dtype))

    return build


CASES = [
    Case("dense", _dense),
    Case("dense_zero_row_column", _dense_empty, positive=False),
    Case("dense_log", _dense_log(zeros=0.0, shift=-30.0)),
    Case("dense_log_zeros", _dense_log(zeros=0.4, shift=10.0), positive=False),
    Case("low_rank_1", _low_rank(1)),
    Case("low_rank_2", _low_rank(2)),
    Case("low_rank_2_zeros", _low_rank(2, zeros=0.5), positive=False),
    Case("low_rank_above_states", _low_rank()),
    Case("low_rank_log", _low_rank_log),
    Case("multiplied", _multiplied()),
    Case("multiplied_2_zeros", _multiplied(2, zeros=0.5), positive=False),
    Case("banded_near", _banded(-0.3, 0.3)),
    Case("banded_full", _banded(-1.0, 1.0)),
    Case("banded_lower", _banded(-1.0, -0.6)),
    Case("banded_upper_zeros", _banded(0.3, 0.8, zeros=0.4), positive=False),
    Case("banded_diagonal", _banded(0.0, 0.0)),
    Case("banded_log", _banded(-0.5, 0.2, log=True)),
    Case("banded_log_zeros", _banded(-0.2, 0.5, log=True, zeros=0.4), positive=False),
    Case("sum", _sum),
    Case("sum_scales_apart", _sum_scales),
    Case("without_diagonal", _without_diagonal(2)),
    Case("without_diagonal_zeros", _without_diagonal(2, zeros=0.5), positive=False),
    Case("without_diagonal_log", lambda z, g, dtype: WithoutDiagonal(_low_rank_log(z, g, dtype))),
    Case("row_scaled", _row_scaled),
    Case("row_scaled_log_banded", _row_scaled_log),
    Case("row_scaled_empty_rows", _row_scaled_empty, positive=False),
    Case("kronecker_log", _kronecker(log=True)),
    Case("kronecker_zeros", _kronecker(zeros=0.4), positive=False),
    Case("from_rows_alone", lambda z, g, dtype: Outer(weights(z, g=g, dtype=dtype))),
    Case("from_rows_alone_zeros", lambda z, g, dtype: Outer(weights(z, g=g, dtype=dtype, zeros=0.4)), positive=False),
]
