"""An operator whose rows are scaled: how an unnormalised matrix becomes a distribution over targets."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from rankfold.errors import expect, expect_logs, expect_weights, same_kind
from rankfold.numerics.log_space import log_sum, x_log_x
from rankfold.numerics.precision import Rounded
from rankfold.operators.factor import Factor
from rankfold.operators.protocol import (
    Blocked,
    Blocks,
    Composed,
    MaxOperator,
    Operator,
    expect_operator,
    factor_logs,
    log_gradients,
)
from rankfold.operators.row_operator import RowOperator


class RowScaled(RowOperator):
    """A[z, y] = scale[z] operator[z, y].   push and pull: the operator's, plus z products."""

    def __init__(self, operator: Operator, scale: Tensor) -> None:  # "z"
        _expect_scale(operator, scale, "scale")
        expect_weights(scale, name="scale")
        self._set(operator, Factor(scale, is_log=False))

    @classmethod
    def from_log(cls, operator: Operator, log_scale: Tensor) -> RowScaled:  # "z"
        """The same from the logarithm of the scale, of any range."""
        _expect_scale(operator, log_scale, "log_scale")
        expect_logs(log_scale, name="log_scale")
        return cls._of(operator, Factor(log_scale, is_log=True))

    @classmethod
    def _of(cls, operator: Operator, scale: Factor) -> Self:
        self = cls.__new__(cls)
        self._set(operator, scale)
        return self

    def over(self, operator: Operator) -> Self:
        """The same scale of another operator's rows."""
        return self._of(operator, self._scale)

    def _set(self, operator: Operator, scale: Factor) -> None:
        self.operator, self._scale = operator, scale

    @property
    def shape(self) -> tuple[int, int]:
        return self.operator.shape

    @property
    def log_scale(self) -> Tensor | float:
        return self._scale.log_scale + self.operator.log_scale

    @property
    def log_factors(self) -> tuple[bool, ...]:
        return (self._scale.is_log, *self.operator.log_factors)

    def factors(self) -> tuple[Tensor, ...]:
        return (self._scale.value, *self.operator.factors())

    def with_factors(self, *factors: Tensor) -> Self:
        scale, *rest = factors
        return self._of(self.operator.with_factors(*rest), self._scale.like(scale))

    def push(self, x: Tensor) -> Tensor:  # "... z" -> "... y"
        return self.operator.push(x * self._scale.linear)

    def pull(self, x: Tensor) -> Tensor:  # "... y" -> "... z"
        return self.operator.pull(x) * self._scale.linear

    @property
    def is_written(self) -> bool:
        return (
            isinstance(self.operator, Composed) and self.operator.is_written and len(self.operator.rounded_maps()) == 1
        )

    def maps(self) -> tuple[Tensor, ...]:
        """The matrix `push` multiplies by, where the operator is one (has one copy: to count maps would make them)."""
        assert isinstance(self.operator, Composed)
        (weight,) = self.operator.maps()
        return (weight * self._scale.linear[:, None],)

    def rounded_maps(self) -> tuple[Rounded | None, ...]:
        return (None,)

    def blocks(self) -> Blocks | None:
        """The operator's blocks, if it has some: their rows scaled."""
        found = self.operator.blocks() if isinstance(self.operator, Blocked) else None
        if found is None:
            return None
        left, right, pairs = found
        num_blocks, size, _ = left.shape
        scale = pad(self._scale.linear, (0, num_blocks * size - self.shape[0])).reshape(num_blocks, size, 1)
        return left * scale, right, pairs * scale

    def log_gradients(self, log_x: Tensor, log_y: Tensor) -> list[Tensor] | None:  # "n z", "n y"
        rest = log_gradients(self.operator, log_x + factor_logs(self)[0], log_y)
        return None if rest is None else [log_sum((log_x + self.operator.pull_log(log_y)).mT), *rest]

    def push_log(self, log_x: Tensor) -> Tensor:  # "... z" -> "... y"
        return self.operator.push_log(log_x + self._scale.log)

    def pull_log(self, log_x: Tensor) -> Tensor:  # "... y" -> "... z"
        return self.operator.pull_log(log_x) + self._scale.log

    def push_max(self, log_x: Tensor) -> tuple[Tensor, Tensor]:  # "b z" -> best "b y", argmax "b y"
        if isinstance(self.operator, MaxOperator):
            return self.operator.push_max(log_x + self._scale.log)
        return super().push_max(log_x)

    def push_loss(self) -> Tensor | float:  # "y"
        """Of a product with the scale, or of weights that hold it: these lose at most what the operator's own do."""
        return 2 * self.operator.push(torch.ones_like(self._scale.linear)) + 2 * self.operator.push_loss()

    def pull_loss(self) -> Tensor | float:  # "z"
        row = self.operator.pull(self._scale.linear.new_ones(self.shape[1]))
        return (self._scale.linear + 1) * self.operator.pull_loss() + row + 1

    def push_log_weighted(self, x: Tensor) -> Tensor:  # "... z" -> "... y"
        own = x_log_x(self._scale.linear)
        return self.operator.push_log_weighted(x * self._scale.linear) + self.operator.push(x * own)

    def rows(self, index: Tensor) -> Tensor:  # "k" -> "k y"
        return self.operator.rows(index) * self._scale.linear[index, None]

    def log_rows(self, index: Tensor) -> Tensor:  # "k" -> "k y"
        return self.operator.log_rows(index) + self._scale.log[index, None]


def _expect_scale(operator: Operator, scale: Tensor, name: str) -> None:
    expect_operator(operator, name="operator")
    expect(scale, "z", name=name, z=operator.shape[0], hint=f"The operator maps {operator.shape}.")
    same_kind(operator.factors()[0], "the operator", {name: scale})
