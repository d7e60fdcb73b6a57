"""Counts that vary more than Poisson's, features independent: a Poisson count whose rate has a gamma distribution.

EM takes the rate of each frame and feature for hidden, so its parameters and its M step are those of the gamma
distribution of the rates.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankfold.errors import DataError
from rankfold.params.networks import take_rows
from rankfold.params.observations.gamma import GammaObservation
from rankfold.params.observations.poisson import CountObservation
from rankfold.params.observations.protocol import Sizes, means_of
from rankfold.params.prior import Prior


class NegativeBinomial(NamedTuple):
    """Logarithms of shape and rate of the gamma distributions, in the states that dropout keeps."""

    log_shape: Tensor  # "z f"
    log_rate: Tensor  # "z f"

    def log_obs(self, frames: Tensor) -> Tensor:  # "b t f" -> "b t z"
        """The log-mass over the features that are not NaN, in float64, a feature at a time: never "b t z f".

        log Gamma(x + k) / (Gamma(k) x!) + k log r - (x + k) log(1 + r)
        """
        found: Tensor | float = 0.0
        frames, shape, log_rate = frames.double(), self.log_shape.double().exp(), self.log_rate.double()
        rate = log_rate.exp()
        for f in range(frames.shape[-1]):
            one = frames[..., f : f + 1]
            here = ~one.isnan()
            x, k, r = torch.where(here, one, 0.0), shape[:, f], rate[:, f]
            mass = torch.lgamma(x + k) - torch.lgamma(k) - torch.lgamma(x + 1)
            mass = mass - k * torch.log1p(1 / r) - x * torch.log1p(r)
            found = found + torch.where(here, mass, 0.0)
        assert isinstance(found, Tensor)
        return found.to(self.log_shape.dtype)

    def sample(self, states: Tensor, generator: torch.Generator | None) -> Tensor:  # "n" -> "n f"
        rate = torch._standard_gamma(self.log_shape.exp()[states], generator=generator) / self.log_rate.exp()[states]
        return torch.poisson(rate, generator=generator)


class NegativeBinomialObservation(GammaObservation):
    """Free logarithms of the shapes and rates of gamma distributions, "z f".

    scipy's nbinom has n = shape and p = rate / (1 + rate); the mean is shape / rate. `smoothing` counts as so many
    frames whose Poisson rate has an exponential distribution with the mean of all counts.
    """

    values, remedy = CountObservation.values, CountObservation.remedy

    @classmethod
    def invalid(cls, frames: Tensor) -> Tensor:
        return CountObservation.invalid(frames)

    @classmethod
    def residuals(cls, sizes: Sizes) -> int:
        return sizes.num_states * sizes.num_features

    def forward(self, keep: Tensor | None = None) -> NegativeBinomial:  # type: ignore[override]
        return NegativeBinomial(take_rows(self.log_shape, keep), take_rows(self.log_rate, keep))

    def statistics(self, frames: Tensor, prior: Prior) -> Tensor:  # "n f" -> "n f"
        return frames.double()

    @torch.no_grad()
    def count(self, statistics: Tensor, posterior: Tensor) -> Tensor:  # "n f", "n z" -> "z 3f"
        """log rate, rate and 1, in expectation over the rates of the frames, which have a gamma posterior."""
        here = (~statistics.isnan()).double()
        x = torch.where(here > 0, statistics, 0.0)
        shape, rate = self.log_shape.double().exp(), self.log_rate.double().exp()
        found = []
        for z in range(len(shape)):
            w, own = posterior[:, z : z + 1].double() * here, x + shape[z]
            logs = torch.digamma(own) - torch.log1p(rate[z])
            found.append(torch.cat([(w * y).sum(0) for y in (logs, own / (1 + rate[z]), torch.ones_like(w))]))
        return torch.stack(found)

    def move_to(self, frames: NDArray[np.float64]) -> None:  # "n f"
        """Drawn rates are taken relative to the mean of all frames, and of one more with a 1."""
        super().move_to(np.concatenate([frames, np.ones((1, frames.shape[1]))]))

    def initialise(
        self, frames: Tensor, states: Tensor, means: Tensor, prior: Prior, rng: np.random.Generator, *, near: bool
    ) -> None:
        """Mean and variance of each state's frames, and of one more of the mean of all; above Poisson's."""
        if bool((frames.sum(0) == 0).any()):
            raise DataError(
                f"feature {int((frames.sum(0) == 0).nonzero()[0])} is 0 in every frame: it tells no states apart.\n"
                "  Leave it out."
            )
        number = torch.bincount(states, minlength=len(means)).to(frames.dtype)[:, None]
        overall = (frames.sum(0) + 1) / (len(frames) + 1)
        mean = (means_of(frames, states, means) * number + overall) / (number + 1)
        squares = torch.zeros_like(means).index_add_(0, states, (frames - mean[states]).square())
        more = torch.maximum((squares + overall.square()) / (number + 1) - mean, mean / 10)
        self.fill(shape=mean.square() / more, rate=mean / more)
