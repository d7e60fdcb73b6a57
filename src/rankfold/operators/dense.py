"""The dense matrix: the operator every other one is compared with."""

from __future__ import annotations

from torch import Tensor

from rankfold.errors import expect, expect_logs, expect_weights
from rankfold.kernels.log_products import log_matmul, max_matmul
from rankfold.numerics.log_space import x_log_x
from rankfold.numerics.precision import Rounded, long_product, summed_outer
from rankfold.operators.factor import Factor, OfFactors
from rankfold.operators.protocol import Inner


class Dense(OfFactors):
    """A[z, y] = weight[z, y].   push and pull: z y multiply-adds per vector."""

    def __init__(self, weight: Tensor) -> None:  # "z y"
        expect(weight, "z y", name="weight")
        expect_weights(weight, name="weight")
        self.held = (Factor(weight, is_log=False),)

    @classmethod
    def from_log(cls, log_weight: Tensor) -> Dense:  # "z y"
        """A[z, y] = exp(log_weight[z, y]), also where that is smaller or larger than the dtype can hold."""
        expect(log_weight, "z y", name="log_weight")
        expect_logs(log_weight, name="log_weight")
        return cls._of(Factor(log_weight, is_log=True))

    @classmethod
    def unchecked(cls, weight: Tensor, rounded: Rounded | None = None) -> Dense:  # "z y"
        """The same without a look at the values: for weights that are distributions by construction."""
        return cls._of(Factor(weight, is_log=False, rounded=rounded))

    @property
    def _weight(self) -> Factor:
        return self.held[0]

    @property
    def shape(self) -> tuple[int, int]:
        num_sources, num_targets = self._weight.value.shape
        return num_sources, num_targets

    def push(self, x: Tensor) -> Tensor:  # "... z" -> "... y"
        return long_product(x, self._weight.linear)

    def pull(self, x: Tensor) -> Tensor:  # "... y" -> "... z"
        return long_product(x, self._weight.linear.mT)

    @property
    def is_written(self) -> bool:
        return True

    def maps(self) -> tuple[Tensor, ...]:
        """The matrices `push` multiplies by, in order."""
        return (self._weight.linear,)

    def rounded_maps(self) -> tuple[Rounded | None, ...]:
        return (self._weight.rounded,)

    def gradients(self, source: Tensor, target: Tensor, inner: Inner | None = None) -> tuple[Tensor, ...] | None:
        """d sum_n source[n] A target[n] / d factors; None where autograd has to find it."""
        outer = summed_outer(source, target, self._weight.value)
        return (outer * self._weight.linear if self._weight.is_log else outer,)

    def log_gradients(self, log_x: Tensor, log_y: Tensor) -> list[Tensor]:  # "n z", "n y"
        return [log_matmul(log_x.mT, log_y)]

    def push_log(self, log_x: Tensor) -> Tensor:  # "... z" -> "... y"
        out = log_matmul(log_x.reshape(-1, self.shape[0]), self._weight.log)
        return out.reshape(*log_x.shape[:-1], self.shape[1])

    def pull_log(self, log_x: Tensor) -> Tensor:  # "... y" -> "... z"
        out = log_matmul(log_x.reshape(-1, self.shape[1]), self._weight.log.mT)
        return out.reshape(*log_x.shape[:-1], self.shape[0])

    def push_max(self, log_x: Tensor) -> tuple[Tensor, Tensor]:  # "b z" -> best "b y", argmax "b y"
        return max_matmul(log_x, self._weight.log)

    def push_loss(self) -> float:
        return 2.0 * self.shape[0]  # of a weight and of its product, for every source

    def pull_loss(self) -> float:
        return 2.0 * self.shape[1]

    def push_log_weighted(self, x: Tensor) -> Tensor:  # "... z" -> "... y"
        return x @ x_log_x(self._weight.linear)

    def rows(self, index: Tensor) -> Tensor:  # "k" -> "k y"
        return self._weight.linear[index]

    def log_rows(self, index: Tensor) -> Tensor:  # "k" -> "k y"
        return self._weight.log[index]

    def to_dense(self) -> Tensor:  # "z y"
        return self._weight.weights()
