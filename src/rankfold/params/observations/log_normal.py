"""Positive numbers whose logarithms are Gaussian: sizes, prices, durations; with any covariance of the logarithms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from rankfold.params.observations.gamma import GammaObservation
from rankfold.params.observations.gaussian import GaussianObservation
from rankfold.params.observations.protocol import Observation, Sizes
from rankfold.params.observations.wrapped import WrappedObservation
from rankfold.params.prior import Prior


class LogNormal(NamedTuple):
    """The Gaussians of logarithms."""

    inner: Observation

    def log_obs(self, frames: Tensor) -> Tensor:  # "b t f" -> "b t z"
        """log N(log x) - sum_f log x over the features that are not NaN."""
        logs = frames.log()
        found = self.inner.log_obs(logs)
        return (found.double() - logs.double().nansum(-1, keepdim=True)).to(found.dtype)

    def sample(self, states: Tensor, generator: torch.Generator | None) -> Tensor:  # "n" -> "n f"
        return self.inner.sample(states, generator).exp()


class LogNormalObservation(WrappedObservation):
    """Means and covariances are those of logarithms, and so are their priors and `min_variance`."""

    values, remedy = GammaObservation.values, GammaObservation.remedy
    priors = GaussianObservation.priors

    @classmethod
    def draw(cls, sizes: Sizes, generator: torch.Generator) -> Self:
        return cls(GaussianObservation.draw(sizes, generator))

    @classmethod
    def residuals(cls, sizes: Sizes) -> int:
        return GaussianObservation.residuals(sizes)

    @classmethod
    def invalid(cls, frames: Tensor) -> Tensor:
        return GammaObservation.invalid(frames)

    @classmethod
    def on_scale(cls, frames: Tensor, columns: Sequence[str] = ()) -> Tensor:  # "n f" -> "n f"
        return frames.log()

    def forward(self, keep: Tensor | None = None) -> LogNormal:
        return LogNormal(self.inner(keep))

    def statistics(self, frames: Tensor, prior: Prior) -> Tensor:  # "n f" -> "n s"
        """Those of the logarithms."""
        return self.inner.statistics(frames.double().log(), prior)

    def move_to(self, frames: Any) -> None:  # "n f"
        self.inner.move_to(np.log(frames))

    def initialise(
        self, frames: Tensor, states: Tensor, means: Tensor, prior: Prior, rng: np.random.Generator, *, near: bool
    ) -> None:
        """As Gaussians from logarithms; `means` are of logarithms, too."""
        self.inner.initialise(frames.log(), states, means, prior, rng, near=near)
