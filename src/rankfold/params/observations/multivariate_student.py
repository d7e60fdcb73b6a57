"""Frames with heavy tails in all features together: Student's t distribution with a scale matrix.

EM takes a precision of each frame for hidden: t is a Gaussian of gamma distributed precision.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from rankfold.params.networks import take_rows
from rankfold.params.observations.linear_gaussian import (
    FullGaussianObservation,
    conditional,
    distances,
    draw_noise,
    marginal_root,
    patterns,
)
from rankfold.params.prior import Prior, Table

# Bounds of the parameter: below 0.5 tails are heavier than data can tell, at 1000 it is a Gaussian to three digits.
LEAST_DOF, MOST_DOF = 0.5, 1000.0


class MultivariateT(NamedTuple):
    """Centres, Cholesky factors of the scale matrices, and degrees of freedom, of the states that dropout keeps."""

    mean: Tensor  # "z f"
    root: Tensor  # "c f f"
    dof: Tensor  # "z"

    def log_obs(self, frames: Tensor) -> Tensor:  # "b t f" -> "b t z"
        """The log-density over the features that are not NaN: of some of them it is a t distribution again."""
        x, dof = frames.flatten(0, 1).double(), self.dof.double()
        squares, log_det = distances(x, self.mean, self.root)
        size = (~x.isnan()).sum(1, keepdim=True).double()
        level = torch.lgamma((dof + size) / 2) - torch.lgamma(dof / 2) - size / 2 * (dof * math.pi).log()
        found = level - log_det - (dof + size) / 2 * torch.log1p(squares / dof)
        return found.reshape(*frames.shape[:2], -1).to(self.mean.dtype)

    def sample(self, states: Tensor, generator: torch.Generator | None) -> Tensor:  # "n" -> "n f"
        dof = self.dof[states]
        precision = torch._standard_gamma(dof / 2, generator=generator) / (dof / 2)
        return self.mean[states] + draw_noise(self.root, states, len(self.mean), generator) / precision.sqrt()[:, None]


class MultivariateTObservation(FullGaussianObservation):
    """As a Gaussian with scale matrices for covariances, and degrees of freedom "z", between 0.5 and 1000."""

    def __init__(
        self, mean: Tensor, num_scales: int, *, min_variance: float = 0.0, shared: bool = False
    ) -> None:  # "z f"
        super().__init__(mean, num_scales, min_variance=min_variance, shared=shared)
        self.log_dof = nn.Parameter(torch.full_like(mean[:, 0], math.log(10.0)))

    @property
    def dof(self) -> Tensor:  # "z"
        """Degrees of freedom."""
        return self.log_dof.exp().clamp(LEAST_DOF, MOST_DOF)

    def forward(self, keep: Tensor | None = None) -> MultivariateT:  # type: ignore[override]
        return MultivariateT(take_rows(self.mean, keep), self._kept_root(keep), take_rows(self.dof, keep))

    @torch.no_grad()
    def count(self, statistics: Tensor, posterior: Tensor) -> Tensor:  # "n (2f + 2)", "n z" -> "z (2 + f + f f + 1)"
        """u, u y, u y y^T, 1 and log u - u, in expectation over the precisions u and the features that are missing."""
        num_states, size = self.mean.shape
        y, centre = statistics[:, :size], statistics[:1, size + 1 : 2 * size + 1]
        mean, dof, root = self.mean.double() - centre, self.dof.double(), self.root.double()
        scale, each = root @ root.mT, num_states // len(root)
        weights = posterior.double()
        found = y.new_zeros(num_states, 3 + size + size * size)
        for rows, features in patterns(~y.isnan()):
            squares, _ = distances(y[rows], mean, root)
            total = dof + len(features)
            u = total / (dof + squares)
            log_u = torch.digamma(total / 2) - torch.log((dof + squares) / 2)
            part = marginal_root(root, features)
            for z in range(num_states):
                w, own = weights[rows, z], u[:, z]
                filled, left = y[rows], y.new_zeros(size, size)
                if len(features) < size:
                    filled, left = conditional(
                        y[rows], mean[z].expand(len(rows), -1), scale[z // each], part[z // each], features
                    )
                wu = w * own
                products = filled.mT @ (filled * wu[:, None]) + left * w.sum()
                ends = torch.stack([w.sum(), (w * (log_u[:, z] - own)).sum()])
                found[z] += torch.cat([wu.sum()[None], wu @ filled, products.flatten(), ends])
        return found

    @torch.no_grad()
    def maximise(self, counts: Tensor, prior: Prior) -> None:  # "z (3 + f + f f)"
        """Centres and scale matrices of the frames weighted by their precisions; degrees of freedom by bisection."""
        size = self.mean.shape[1]
        precision, sums, products = counts[:, :1], counts[:, 1 : size + 1], counts[:, size + 1 : -2]
        number, level = counts[:, -2], counts[:, -1]
        self.maximise_sums(precision.unsqueeze(2), sums.unsqueeze(2), products.reshape(-1, size, size), number, prior)
        if "dof" not in prior.fixed:
            best = best_dof(level / torch.where(number > 0, number, 1.0))
            self.log_dof.copy_(torch.where(number > 0, best.log(), self.log_dof.double()))

    @torch.no_grad()
    def keep_within(self, prior: Prior) -> None:
        super().keep_within(prior)
        self.log_dof.clamp_(math.log(LEAST_DOF), math.log(MOST_DOF))

    def initialise(
        self, frames: Tensor, states: Tensor, means: Tensor, prior: Prior, rng: np.random.Generator, *, near: bool
    ) -> None:
        """As a Gaussian, with ten degrees."""
        super().initialise(frames, states, means, prior, rng, near=near)
        self.fill(dof=torch.full_like(self.log_dof, 10.0))

    def tables(self) -> dict[str, Table]:
        found = super().tables()
        return {
            "mean": found["mean"],
            "scale": found["covariance"],
            "dof": Table(self.dof.detach().double(), positive="entries"),
        }

    def fill(  # type: ignore[override]
        self, *, mean: Tensor | None = None, scale: Tensor | None = None, dof: Tensor | None = None
    ) -> None:
        """Set the centres "z f", scale matrices "z f f" ("f f" where all states share one) and degrees "z"."""
        super().fill(mean=mean, covariance=scale)
        if dof is not None:
            with torch.no_grad():
                self.log_dof.copy_(dof.double().clamp(LEAST_DOF, MOST_DOF).log())

    @property
    def num_free(self) -> int:
        return super().num_free + self.log_dof.numel()


def best_dof(level: Tensor) -> Tensor:  # the mean of log u - u
    """The maximum over v of v/2 log(v/2) - log Gamma(v/2) + v/2 level, by bisection: its derivative falls."""
    low, high = torch.full_like(level, math.log(LEAST_DOF)), torch.full_like(level, math.log(MOST_DOF))
    for _ in range(60):
        middle = (low + high) / 2
        half = middle.exp() / 2
        rising = half.log() + 1 - torch.digamma(half) + level > 0
        low, high = torch.where(rising, middle, low), torch.where(rising, high, middle)
    return ((low + high) / 2).exp()
