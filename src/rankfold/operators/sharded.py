"""Matrices whose rows and columns are states of several processes, each with the rows of its own states alone.

`push` and `pull` take and give a process's own states, and send messages, never a table: of low rank one sum of "b r"
numbers, of a dense matrix "b z" numbers.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from rankfold.errors import ShapeError, UnsupportedError, expect, expect_logs, expect_weights, same_kind
from rankfold.kernels.log_products import BLOCK, log_matmul
from rankfold.numerics.precision import long_product, product, summed_outer
from rankfold.numerics.shard import Shard
from rankfold.operators.factor import Factor, OfFactors
from rankfold.operators.protocol import Inner, factor_logs


class Step(NamedTuple):
    """A product of messages with a matrix, divided by a number that all processes have alike."""

    message: Tensor  # "b z"   of its own states; no entry is above 1
    norm: Tensor  # "b 1"      the divisor
    inner: Tensor | None = None  # "b r"   between two factors, of all states


class SharedFactor(Factor):
    """Its own rows of a table whose logarithms all processes divide by the same largest one."""

    def __init__(self, value: Tensor, shard: Shard, *, is_log: bool) -> None:
        super().__init__(value, is_log=False)
        self.is_log, self.shard = is_log, shard
        if is_log:
            top = shard.most(value.amax())
            top = torch.where(top > float("-inf"), top, 0.0)
            self.log_scale = top.double()
            self.linear = torch.exp(value - top)

    def like(self, value: Tensor) -> SharedFactor:
        return SharedFactor(value, self.shard, is_log=self.is_log)


class Sharded(OfFactors):
    """The operators of this file: `shape` is that of their own states."""

    shard: Shard
    name: ClassVar[str]

    @property
    def shape(self) -> tuple[int, int]:
        return self.shard.height, self.shard.height

    def with_factors(self, *factors: Tensor) -> Self:
        other = super().with_factors(*factors)
        other.shard = self.shard
        return other

    @abstractmethod
    def push_scaled(self, x: Tensor) -> Step:  # "b z" -> "b y"
        """x A over a number that no entry of it exceeds on any process; one message."""

    @abstractmethod
    def pull_scaled(self, x: Tensor) -> Step:  # "b y" -> "b z"
        """A x likewise."""

    def push_log_weighted(self, x: Tensor) -> Tensor:
        raise UnsupportedError(f"the entropy of paths is not computed over shards.\n  {REMEDY}")

    def _expect_shard(self, *rows: Tensor) -> None:
        for x in rows:
            if len(x) != self.shard.height:
                raise ShapeError(
                    f"{len(x)} rows were given, but this process has states {self.shard.start} to "
                    f"{self.shard.stop - 1} of {self.shard.size}: {self.shard.height}.\n  Cut with shard.own."
                )


REMEDY = "Load the model in one process for it."


class ShardedLowRank(Sharded):
    """A[z, y] = sum_r left[z, r] right[y, r], of which a process has the rows of its states in both factors.

    push and pull: 2 z r multiply-adds per vector, shared by all, and one sum over all of r numbers per vector.
    """

    name = "low rank"
    _tops: tuple[Tensor, Tensor] | None = None  # the largest entry of each column of both factors

    def __init__(self, left: Tensor, right: Tensor, shard: Shard) -> None:  # "z r", "y r"
        self._take(shard, left, right, is_log=False)

    @classmethod
    def from_log(cls, log_left: Tensor, log_right: Tensor, shard: Shard) -> Self:  # "z r", "y r"
        """The same from the logarithms of both factors, of any range."""
        self = cls.__new__(cls)
        self._take(shard, log_left, log_right, is_log=True)
        return self

    @classmethod
    def unchecked(cls, left: Tensor, right: Tensor, shard: Shard) -> Self:  # "z r", "y r"
        """The same without a look at the values."""
        self = cls._of(*(SharedFactor(x, shard, is_log=False) for x in (left, right)))
        self.shard = shard
        return self

    def _take(self, shard: Shard, left: Tensor, right: Tensor, *, is_log: bool) -> None:
        self.shard = shard
        with shard.together():
            expect(left, "z r", name="left")
            expect(right, "y r", name="right", r=left.shape[1])
            same_kind(left, "left", {"right": right})
            self._expect_shard(left, right)
            for name, x in (("left", left), ("right", right)):
                (expect_logs if is_log else expect_weights)(x, name=name)
        self.held = tuple(SharedFactor(x, shard, is_log=is_log) for x in (left, right))

    @property
    def rank(self) -> int:
        return self.held[0].value.shape[1]

    def push(self, x: Tensor) -> Tensor:  # "... z" -> "... y"
        left, right = self.held
        return long_product(self.shard.sum(long_product(x, left.linear)), right.linear.mT)

    def pull(self, x: Tensor) -> Tensor:  # "... y" -> "... z"
        left, right = self.held
        return long_product(self.shard.sum(long_product(x, right.linear)), left.linear.mT)

    def push_scaled(self, x: Tensor) -> Step:  # "b z" -> "b y"
        return self._step(x, 0, 1)

    def pull_scaled(self, x: Tensor) -> Step:  # "b y" -> "b z"
        return self._step(x, 1, 0)

    def _step(self, x: Tensor, first: int, second: int) -> Step:
        inner = self.shard.total(long_product(x, self.held[first].linear)).to(x.dtype)
        norm = (inner @ self._most()[second])[..., None]
        out = long_product(inner, self.held[second].linear.mT).to(x.dtype)
        return Step(_divided(out, norm), norm, inner)

    def _most(self) -> tuple[Tensor, Tensor]:  # "r" each
        if self._tops is None:
            most = self.shard.most(torch.stack([x.linear.amax(0) for x in self.held]))
            self._tops = most[0], most[1]
        return self._tops

    def gradients(self, source: Tensor, target: Tensor, inner: Inner | None = None) -> tuple[Tensor, ...] | None:
        """d sum_n source[n] A target[n] / d its own rows of the factors; with `inner` nothing is sent."""
        if any(self.log_factors):
            return None
        left, right = (x.linear for x in self.held)
        ahead, behind = inner or tuple(self.shard.total(product(x, w)) for x, w in ((source, left), (target, right)))
        return summed_outer(source, behind, left), summed_outer(target, ahead, right)

    def log_gradients(self, log_x: Tensor, log_y: Tensor) -> list[Tensor]:  # "n z", "n y"
        left, right = factor_logs(self)
        behind, ahead = (self.shard.log_sum(log_matmul(x, w)) for x, w in ((log_y, right), (log_x, left)))
        return [log_matmul(log_x.mT, behind), log_matmul(log_y.mT, ahead)]

    def push_loss(self) -> Tensor:  # "y"
        return self._loss(0, 1)

    def pull_loss(self) -> Tensor:  # "z"
        return self._loss(1, 0)

    def _loss(self, first: int, second: int) -> Tensor:
        """As of `LowRank`, with the first product over all processes' states."""
        own, out = self.held[first].linear, self.held[second].linear
        return 2.0 * self.shard.size * out.sum(1) + out.shape[1] + self.shard.total(own.sum())

    def push_log(self, log_x: Tensor) -> Tensor:  # "... z" -> "... y"
        return self._through(log_x, 0, 1)

    def pull_log(self, log_x: Tensor) -> Tensor:  # "... y" -> "... z"
        return self._through(log_x, 1, 0)

    def _through(self, log_x: Tensor, first: int, second: int) -> Tensor:
        inner = self.shard.log_sum(log_matmul(log_x.reshape(-1, log_x.shape[-1]), self.held[first].log))
        out = log_matmul(inner, self.held[second].log.mT)
        return out.reshape(*log_x.shape[:-1], out.shape[-1])

    def rows(self, index: Tensor) -> Tensor:  # "k" -> "k y"
        """Rows of B by their number among all states, for targets of its own."""
        return self.shard.sum(_rows_of(self.shard, self.held[0].linear, index)) @ self.held[1].linear.mT

    def log_rows(self, index: Tensor) -> Tensor:  # "k" -> "k y"
        return log_matmul(self.shard.sum(_rows_of(self.shard, self.held[0].log, index)), self.held[1].log.mT)

    def to_dense(self) -> Tensor:  # "z y"   its own rows, all columns
        right = self.shard.gather(self.held[1].weights().mT.contiguous())
        return self.held[0].weights() @ right


class ShardedDense(Sharded):
    """A[z, y] = weight[z, y], of which a process has the rows of its states, with all columns.

    push and pull: z y multiply-adds per vector, shared by all; push adds up and deals "b z" numbers, pull gathers them.
    """

    name = "dense"
    _tops: tuple[Tensor, Tensor] | None = None  # the largest entry of its own rows, and of all columns

    def __init__(self, weight: Tensor, shard: Shard) -> None:  # "z y"
        self._take(shard, weight, is_log=False)

    @classmethod
    def from_log(cls, log_weight: Tensor, shard: Shard) -> Self:  # "z y"
        """The same from logarithms, of any range."""
        self = cls.__new__(cls)
        self._take(shard, log_weight, is_log=True)
        return self

    @classmethod
    def unchecked(cls, weight: Tensor, shard: Shard) -> Self:  # "z y"
        """The same without a look at the values."""
        self = cls._of(SharedFactor(weight, shard, is_log=False))
        self.shard = shard
        return self

    def _take(self, shard: Shard, weight: Tensor, *, is_log: bool) -> None:
        self.shard = shard
        with shard.together():
            expect(weight, "z y", name="weight", y=shard.size)
            self._expect_shard(weight)
            (expect_logs if is_log else expect_weights)(weight, name="weight")
        self.held = (SharedFactor(weight, shard, is_log=is_log),)

    @property
    def _weight(self) -> Tensor:
        return self.held[0].linear

    def push(self, x: Tensor) -> Tensor:  # "... z" -> "... y"
        return self.shard.scatter(long_product(x, self._weight))

    def pull(self, x: Tensor) -> Tensor:  # "... y" -> "... z"
        return long_product(self.shard.gather(x), self._weight.mT)

    def push_scaled(self, x: Tensor) -> Step:  # "b z" -> "b y"
        also = (x @ self._most()[0])[..., None]
        out, norm = self.shard.scatter_with(long_product(x, self._weight).to(x.dtype), also)
        return Step(_divided(out, norm), norm)

    def pull_scaled(self, x: Tensor) -> Step:  # "b y" -> "b z"
        whole = self.shard.gather(x)
        norm = (whole @ self._most()[1])[..., None]
        return Step(_divided(long_product(whole, self._weight.mT).to(x.dtype), norm), norm)

    def _most(self) -> tuple[Tensor, Tensor]:  # "z", "y"
        if self._tops is None:
            self._tops = self._weight.amax(1), self.shard.most(self._weight.amax(0))
        return self._tops

    def gradients(self, source: Tensor, target: Tensor, inner: Inner | None = None) -> tuple[Tensor, ...] | None:
        """d sum_n source[n] A target[n] / d its own rows: the targets of all are gathered, block by block."""
        outer, height = torch.zeros_like(self._weight), max(1, BLOCK // self.shard.size)
        for at in range(0, len(source), height):
            outer += summed_outer(source[at : at + height], self.shard.gather(target[at : at + height]), self._weight)
        return (outer * self._weight if self.held[0].is_log else outer,)

    def log_gradients(self, log_x: Tensor, log_y: Tensor) -> list[Tensor]:  # "n z", "n y"
        return [log_matmul(log_x.mT, self.shard.gather(log_y))]

    def push_loss(self) -> float:
        return 2.0 * self.shard.size

    def pull_loss(self) -> float:
        return 2.0 * self.shard.size

    def push_log(self, log_x: Tensor) -> Tensor:  # "... z" -> "... y"
        part = log_matmul(log_x.reshape(-1, log_x.shape[-1]), self.held[0].log)
        return self.shard.log_sum(part)[:, self.shard.own].reshape(log_x.shape)

    def pull_log(self, log_x: Tensor) -> Tensor:  # "... y" -> "... z"
        whole = self.shard.gather(log_x.reshape(-1, log_x.shape[-1]))
        return log_matmul(whole, self.held[0].log.mT).reshape(log_x.shape)

    def rows(self, index: Tensor) -> Tensor:  # "k" -> "k y"
        """Rows of B by their number among all states, for targets of its own."""
        return self.shard.scatter(_rows_of(self.shard, self._weight, index))

    def log_rows(self, index: Tensor) -> Tensor:  # "k" -> "k y"
        return self.shard.scatter(_rows_of(self.shard, self.held[0].log, index))

    def to_dense(self) -> Tensor:  # "z y"   its own rows, all columns
        return self.held[0].weights()


def _divided(x: Tensor, norm: Tensor) -> Tensor:  # "b z", "b 1"
    """x / norm; 0 where norm is 0, and no entry above it."""
    tiny = torch.finfo(x.dtype).tiny
    return x / norm.clamp(min=tiny)


def _rows_of(shard: Shard, table: Tensor, index: Tensor) -> Tensor:  # "k" -> "k r"
    """Its own rows among those that are asked for; 0 for those of others, so that their sum over all is the rows."""
    return torch.where(shard.holds(index)[:, None], table[shard.local(index)], 0.0)


def whole_shard(op: object) -> Shard | None:
    """The share of this process in the states of an operator; None where it has all of them."""
    return op.shard if isinstance(op, Sharded) else None
