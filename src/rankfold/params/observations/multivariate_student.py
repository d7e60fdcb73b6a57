"""Frames with heavy tails in all features together: Student's t noise around a mean, a regression or an autoregression.

EM takes a precision of each frame for hidden: t is a Gaussian of gamma distributed precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rankfold.params.observations.linear_gaussian import (
    FullGaussianObservation,
    LinearGaussianObservation,
    distances,
)
from rankfold.params.observations.protocol import Sizes
from rankfold.params.observations.regression import AutoregressiveObservation, RegressionObservation
from rankfold.params.prior import Prior, Table

# Bounds of the parameter: below 0.5 tails are heavier than data can tell, at 1000 it is a Gaussian to three digits.
LEAST_DOF, MOST_DOF = 0.5, 1000.0


class StudentNoise(LinearGaussianObservation):
    """Before another base: its covariances are scale matrices, with degrees of freedom "z" between 0.5 and 1000."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.log_dof = nn.Parameter(torch.full_like(self.weight[:, 0, 0].detach(), math.log(10.0)))

    @classmethod
    def residuals(cls, sizes: Sizes) -> int:
        """With the terms of a frame besides the squares, as much as of four features."""
        return super().residuals(sizes) + 4 * sizes.num_states

    @property
    def dof(self) -> Tensor:  # "z"
        return self.log_dof.exp().clamp(LEAST_DOF, MOST_DOF)

    @torch.no_grad()
    def weigh(
        self, y: Tensor, mean: Callable[[], Tensor], posterior: Tensor
    ) -> tuple[Tensor, Tensor]:  # "n o", "z f" or "z n f", "n z" -> "n z", "z 2"
        """Expected precisions u; and how many frames, and log u - u, of those that have some feature."""
        squares, _ = distances(y, mean(), self.root)
        size = (~y.isnan()).sum(1, keepdim=True)
        weights, dof = torch.where(size > 0, posterior, 0.0), self.dof.double()
        u = (dof + size) / (dof + squares)
        log_u = torch.digamma((dof + size) / 2) - torch.log((dof + squares) / 2)
        return weights * u, torch.stack([weights.sum(0), (weights * (log_u - u)).sum(0)], 1)

    @torch.no_grad()
    def maximise_tails(self, counts: Tensor) -> None:  # "z 2"
        """Degrees of freedom by bisection."""
        number, level = counts.unbind(1)
        best = best_dof(level / torch.where(number > 0, number, 1.0))
        self.log_dof.copy_(torch.where(number > 0, best.log(), self.log_dof.double()))

    @torch.no_grad()
    def keep_within(self, prior: Prior) -> None:
        super().keep_within(prior)
        self.log_dof.clamp_(math.log(LEAST_DOF), math.log(MOST_DOF))

    def initialise(
        self, frames: Tensor, states: Tensor, means: Tensor, prior: Prior, rng: np.random.Generator, *, near: bool
    ) -> None:
        """As with Gaussian noise, with ten degrees."""
        super().initialise(frames, states, means, prior, rng, near=near)
        self.fill(dof=torch.full_like(self.log_dof, 10.0))

    def tables(self) -> dict[str, Table]:
        found = dict(super().tables())
        scale = found.pop("variance" if self.lower is None else "covariance")
        return {**found, "scale": scale, "dof": Table(self.dof.detach().double(), positive="entries")}

    def fill(self, *, scale: Tensor | None = None, dof: Tensor | None = None, **tables: Any) -> None:
        """Set the degrees "z", scales as the covariances are, and the other tables."""
        if scale is not None:
            tables["variance" if self.lower is None else "covariance"] = scale
        super().fill(**tables)
        if dof is not None:
            with torch.no_grad():
                self.log_dof.copy_(dof.double().clamp(LEAST_DOF, MOST_DOF).log())

    @property
    def num_free(self) -> int:
        return super().num_free + self.log_dof.numel()


class MultivariateTObservation(StudentNoise, FullGaussianObservation):
    """Around a centre, with a scale matrix for each state or one for all."""


class RegressionTObservation(StudentNoise, RegressionObservation):
    """Around a regression on inputs: all outputs of a frame have one precision, those of a diagonal scale, too."""


class AutoregressiveTObservation(StudentNoise, AutoregressiveObservation):
    """Around an autoregression: all features of a frame have one precision, those of a diagonal scale, too."""


def best_dof(level: Tensor) -> Tensor:  # the mean of log u - u
    """The maximum over v of v/2 log(v/2) - log Gamma(v/2) + v/2 level, by bisection: its derivative falls."""
    low, high = torch.full_like(level, math.log(LEAST_DOF)), torch.full_like(level, math.log(MOST_DOF))
    for _ in range(60):
        middle = (low + high) / 2
        half = middle.exp() / 2
        rising = half.log() + 1 - torch.digamma(half) + level > 0
        low, high = torch.where(rising, middle, low), torch.where(rising, high, middle)
    return ((low + high) / 2).exp()
