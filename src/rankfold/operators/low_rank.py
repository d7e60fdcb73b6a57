"""The low-rank matrix: two thin factors and a rank between them; and the factorisation of a given matrix."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from rankfold.errors import DomainError, expect, expect_logs, expect_weights, may_look, same_kind
from rankfold.kernels.log_products import log_matmul
from rankfold.numerics.log_space import log_weights, x_log_x
from rankfold.numerics.precision import Rounded, long_product, product, summed_outer
from rankfold.operators.factor import Factor, OfFactors
from rankfold.operators.protocol import Inner, factor_logs
from rankfold.operators.row_operator import RowOperator

T = TypeVar("T")


class Fit(NamedTuple, Generic[T]):
    """An approximation and its error; `operator` is the fitted operator."""

    operator: T
    relative_error: float  # ||A - left right^T|| / ||A||, Frobenius
    largest_error: float  # max |A - left right^T|
    num_steps: int  # updates made; fewer than allowed if the divergence settled


class LowRank(OfFactors, RowOperator):
    """A[z, y] = sum_r left[z, r] right[y, r].   push and pull: (z + y) r multiply-adds per vector.

    The papers' U V^T. Any rank, above the number of states too. A maximum does not pass through the sum
    over ranks: `push_max` visits U V^T in blocks of rows, z y r + b z y operations, never stored.
    """

    _unit_right: tuple[Tensor, Tensor] | None = None  # kept by log_rows, which is asked at every step of a sample

    def __init__(self, left: Tensor, right: Tensor) -> None:  # "z r", "y r"
        _expect_pair(left, right, "")
        expect_weights(left, name="left")
        expect_weights(right, name="right")
        self.held = Factor(left, is_log=False), Factor(right, is_log=False)

    @classmethod
    def from_log(cls, log_left: Tensor, log_right: Tensor) -> LowRank:  # "z r", "y r"
        """The same from the logarithms of both factors, of any range."""
        _expect_pair(log_left, log_right, "log_")
        expect_logs(log_left, name="log_left")
        expect_logs(log_right, name="log_right")
        return cls._of(Factor(log_left, is_log=True), Factor(log_right, is_log=True))

    @classmethod
    def unchecked(
        cls, left: Tensor, right: Tensor, rounded: tuple[Rounded | None, Rounded | None] = (None, None)
    ) -> LowRank:  # "z r", "y r"
        """The same without a look at the values: for weights that are distributions by construction."""
        return cls._of(*(Factor(x, is_log=False, rounded=copy) for x, copy in zip((left, right), rounded, strict=True)))

    @classmethod
    def fit(cls, dense: Tensor, rank: int, *, seed: int = 0, num_steps: int = 2000) -> Fit[LowRank]:
        """The non-negative factorisation of a matrix, an approximation, with the error it leaves.

        Returns `Fit(operator, relative_error, largest_error, num_steps)`.
        """
        left, right, report = _factorise(dense, rank, seed=seed, num_steps=num_steps)
        return Fit(cls(left, right), *report)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self)._of, (self._left, self._right)

    @property
    def _left(self) -> Factor:
        return self.held[0]

    @property
    def _right(self) -> Factor:
        return self.held[1]

    @property
    def shape(self) -> tuple[int, int]:
        return self._left.value.shape[0], self._right.value.shape[0]

    @property
    def rank(self) -> int:
        return self._left.value.shape[1]

    def log_pair(self) -> tuple[Tensor, Tensor]:  # "z r", "y r"
        """The logarithms of both factors, for questions about states and ranks jointly."""
        return self._left.log, self._right.log

    def push_joint_log_weighted(self, x: Tensor) -> Tensor:  # "... z" -> "... y"
        """x C, where C[z, y] = sum_r B[z, r, y] log B[z, r, y] and B = left right is taken rank by rank."""
        left, right = self._left, self._right
        by_left = (x @ x_log_x(left.linear)) @ right.linear.mT
        return by_left + (x @ left.linear) @ x_log_x(right.linear).mT

    def push(self, x: Tensor) -> Tensor:  # "... z" -> "... y"
        return long_product(long_product(x, self._left.linear), self._right.linear.mT)

    def pull(self, x: Tensor) -> Tensor:  # "... y" -> "... z"
        return long_product(long_product(x, self._right.linear), self._left.linear.mT)

    @property
    def is_written(self) -> bool:
        return True

    def maps(self) -> tuple[Tensor, ...]:
        """The matrices `push` multiplies by, in order."""
        return self._left.linear, self._right.linear.mT

    def rounded_maps(self) -> tuple[Rounded | None, ...]:
        return self._left.rounded, self._right.rounded

    def gradients(self, source: Tensor, target: Tensor, inner: Inner | None = None) -> tuple[Tensor, ...] | None:
        """d sum_n source[n] A target[n] / d factors; None where autograd has to find it."""
        if any(self.log_factors):
            return None
        left, right = self._left.linear, self._right.linear
        ahead, behind = inner or (product(source, left), product(target, right))
        return summed_outer(source, behind, left), summed_outer(target, ahead, right)

    def log_gradients(self, log_x: Tensor, log_y: Tensor) -> list[Tensor]:  # "n z", "n y"
        left, right = factor_logs(self)
        return [log_matmul(log_x.mT, log_matmul(log_y, right)), log_matmul(log_y.mT, log_matmul(log_x, left))]

    def push_loss(self) -> Tensor:  # "y"
        return _loss(self._left.linear, self._right.linear)

    def pull_loss(self) -> Tensor:  # "z"
        return _loss(self._right.linear, self._left.linear)

    def push_log(self, log_x: Tensor) -> Tensor:  # "... z" -> "... y"
        return _through(log_x, self._left.log, self._right.log)

    def pull_log(self, log_x: Tensor) -> Tensor:  # "... y" -> "... z"
        return _through(log_x, self._right.log, self._left.log)

    def rows(self, index: Tensor) -> Tensor:  # "k" -> "k y"
        return self._left.linear[index] @ self._right.linear.mT

    def log_rows(self, index: Tensor) -> Tensor:  # "k" -> "k y"
        if self._left.is_log:
            return log_matmul(self._left.log[index], self._right.log.mT)
        # float64 and rows scaled to 1: a product of two small weights may be smaller than their dtype holds.
        left, log_left = _unit_rows(self._left.value[index])
        right, log_right = self._kept_right() or _unit_rows(self._right.value)
        if not self._right.value.requires_grad:
            self._unit_right = right, log_right
        product = left @ right.mT
        if self._lost(product, index):
            return log_matmul(self._left.log[index], self._right.log.mT)
        return (log_weights(product) + log_left + log_right.mT).to(self._left.value.dtype)

    def _lost(self, product: Tensor, index: Tensor) -> bool:  # "k y", "k"
        """Whether terms of scaled rows lie below float64's smallest number: weights of float32 never do."""
        if self._left.value.dtype != torch.float64 or not may_look(product):
            return False
        info = torch.finfo(product.dtype)
        small = product.detach() < info.tiny * self.rank / info.eps
        if not bool(small.any()):
            return False
        terms = (self._left.value[index] > 0).to(product.dtype) @ (self._right.value > 0).to(product.dtype).mT
        return bool((small & (terms > 0)).any())

    def _kept_right(self) -> tuple[Tensor, Tensor] | None:
        """The table kept by log_rows; None if there is none, or if autograd would refuse it (inference mode)."""
        kept = self._unit_right
        return None if kept is not None and kept[0].is_inference() and not torch.is_inference_mode_enabled() else kept


def _through(log_x: Tensor, log_in: Tensor, log_out: Tensor) -> Tensor:
    inner = log_matmul(log_x.reshape(-1, log_x.shape[-1]), log_in)
    return log_matmul(inner, log_out.mT).reshape(*log_x.shape[:-1], log_out.shape[0])


def _loss(first: Tensor, second: Tensor) -> Tensor:  # "z r", "y r" -> "y"
    """The loss to underflow: in the first product, times the second's weights; in the second one; in the weights."""
    return 2.0 * first.shape[0] * second.sum(1) + second.shape[1] + first.sum()


def _unit_rows(x: Tensor) -> tuple[Tensor, Tensor]:  # "z r" -> "z r", "z 1", float64
    """Rows divided by their largest entry, and the log of that entry."""
    x = x.double()
    top = x.detach().amax(1, keepdim=True)
    top = top.masked_fill(top == 0, 1.0)
    return x / top, top.log()


def _expect_pair(left: Tensor, right: Tensor, prefix: str) -> None:
    expect(left, "z r", name=f"{prefix}left")
    expect(right, "y r", name=f"{prefix}right", r=left.shape[1], hint=f"{prefix}left has shape {tuple(left.shape)}.")
    same_kind(left, f"{prefix}left", {f"{prefix}right": right})


def _factorise(
    dense: Tensor, rank: int, *, seed: int, num_steps: int
) -> tuple[Tensor, Tensor, tuple[float, float, int]]:  # "z y" -> left "z r", right "y r", report
    """Factors whose product is near `dense`: rows keep their sums, zero rows and columns stay zero.

    Minimises sum A log(A / B) - A + B over B = left right^T from a seeded start; a local optimum. Multiplicative
    updates (Lee and Seung 2001), which for a transition matrix are the EM steps of a chain with a hidden rank.
    """
    expect(dense, "z y", name="dense")
    expect_weights(dense, name="dense")
    if not isinstance(rank, int) or rank < 1:
        raise DomainError(f"rank is {rank}, but must be a whole number of at least 1.")
    target = dense.detach().double()
    generator = torch.Generator().manual_seed(seed)
    left, right = (
        torch.rand(size, rank, generator=generator, dtype=torch.float64).to(target.device) + 0.5
        for size in target.shape
    )
    left, right = left / rank, right / right.sum(0)
    previous, step = float("inf"), 0
    for step in range(1, num_steps + 1):
        right = right * (_ratio(target, left @ right.mT).mT @ left)
        right = right / torch.where(right.sum(0) > 0, right.sum(0), 1.0)
        left = left * (_ratio(target, left @ right.mT) @ right)  # last, so that rows keep their sums
        if step % 50 == 0:
            divergence = torch.xlogy(target, _ratio(target, left @ right.mT)).sum().item()
            if previous < float("inf") and previous - divergence <= 1e-6 * divergence:  # settled
                break
            previous = divergence
    left, right = left.to(dense.dtype), right.to(dense.dtype)
    error = target - left.double() @ right.double().mT
    scale = target.norm().item()
    return left, right, (error.norm().item() / scale if scale else 0.0, error.abs().max().item(), step)


def _ratio(target: Tensor, model: Tensor) -> Tensor:
    """target / model where the target has weight; 0 elsewhere, where the model may be 0 too."""
    return torch.where(target > 0, target / torch.where(model > 0, model, 1.0), 0.0)
