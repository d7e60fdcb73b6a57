"""A non-negative tensor, held as weights or as their logarithms.

Logarithms may span more than the dtype can hold once exponentiated: their largest is kept apart as
`log_scale`, so that products see weights of at most 1.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from rankfold.numerics.log_space import log_weights
from rankfold.numerics.precision import Rounded


class Factor:
    """weights = linear * exp(log_scale);  log = log weights;  value = the tensor it was made of."""

    def __init__(self, value: Tensor, *, is_log: bool, rounded: Rounded | None = None) -> None:
        self.value = value
        self.rounded = rounded  # its copy in bfloat16, until it is taken
        self.is_log = is_log
        self.log_scale: Tensor | float = 0.0  # "" float64, a constant to autograd
        self.linear = value
        if is_log:
            top = value.detach().amax()
            top = torch.where(top > float("-inf"), top, 0.0)
            self.log_scale = top.double()
            self.linear = torch.exp(value - top)
        self._logs: dict[tuple[bool, bool], Tensor] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles are made of the tensor alone: tensors computed from it have a history of their own."""
        return _made, (self.value, self.is_log)

    @property
    def log(self) -> Tensor:
        """The logarithm of the weights, computed once in each mode of autograd: watched, not watched, inference."""
        if self.is_log:
            return self.value
        watched = torch.is_grad_enabled() and self.value.requires_grad
        key = watched, torch.is_inference_mode_enabled()
        if key not in self._logs:
            self._logs[key] = log_weights(self.value)
        return self._logs[key]

    def like(self, value: Tensor) -> Factor:
        """Another tensor held the same way; the copy goes with it only if it is the same memory."""
        same = self.rounded is not None and value.data_ptr() == self.value.data_ptr()
        return Factor(value, is_log=self.is_log, rounded=self.rounded if same else None)

    def weights(self) -> Tensor:
        """The weights themselves, scale included."""
        return torch.exp(self.value) if self.is_log else self.value

    def most(self, *axes: int) -> Tensor:  # "" or "b"   float64
        """The largest sum of linear weights along these of the last axes, at least 1: how far a product may amplify."""
        total = self.linear.detach().sum(axes, dtype=torch.float64)
        most = total.amax(-1)
        return torch.where(most > 1.0, most, 1.0)


class OfFactors:
    """Mix-in of operators, matrices and rules: the members that follow from `held`, the factors they are made of."""

    held: tuple[Factor, ...]  # in the order of `factors`

    @classmethod
    def _of(cls, *held: Factor) -> Self:
        """The operator of these factors, not looked at."""
        self = cls.__new__(cls)
        self.held = held
        return self

    @property
    def log_scale(self) -> Tensor | float:
        total = self.held[0].log_scale
        for x in self.held[1:]:
            total = total + x.log_scale
        return total

    @property
    def log_factors(self) -> tuple[bool, ...]:
        return tuple([x.is_log for x in self.held])

    def factors(self) -> tuple[Tensor, ...]:
        return tuple([x.value for x in self.held])

    def with_factors(self, *factors: Tensor) -> Self:
        return self._of(*[own.like(x) for own, x in zip(self.held, factors, strict=True)])


def _made(value: Tensor, is_log: bool) -> Factor:
    return Factor(value, is_log=is_log)
