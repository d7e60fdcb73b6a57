"""Positive numbers with a gamma distribution, features independent: waiting times, amounts; shape 1 is exponential."""

from __future__ import annotations

import math
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rankfold.params.networks import take_rows
from rankfold.params.observations.protocol import CollapseError, ObservationModule, Sizes, draw_table, means_of
from rankfold.params.prior import Prior, Table

EULER = 0.5772156649015329  # the mean of -log x of an exponential distribution of mean 1


class Gamma(NamedTuple):
    """Logarithms of shape and rate in the states that dropout keeps."""

    log_shape: Tensor  # "z f"
    log_rate: Tensor  # "z f"

    def log_obs(self, frames: Tensor) -> Tensor:  # "b t f" -> "b t z"
        """sum_f (k - 1) log x - r x + k log r - log Gamma(k) over the features that are not NaN: one product."""
        here = ~frames.isnan()
        x = torch.where(here, frames.double(), 1.0)
        shape, log_rate = self.log_shape.double().exp(), self.log_rate.double()
        parts = torch.cat([shape - 1, -log_rate.exp(), shape * log_rate - torch.lgamma(shape)], 1)
        both = torch.cat([x.log(), torch.where(here, x, 0.0), here.double()], -1)
        return (both @ parts.mT).to(self.log_shape.dtype)

    def sample(self, states: Tensor, generator: torch.Generator | None) -> Tensor:  # "n" -> "n f"
        return torch._standard_gamma(self.log_shape.exp()[states], generator=generator) / self.log_rate.exp()[states]


class GammaObservation(ObservationModule):
    """Free logarithms of shapes and rates. `smoothing` counts as so many frames of an exponential distribution with the
    mean of all frames.
    """

    values = "above 0"
    remedy = 'Mark what is missing as NaN; for other numbers use observations="gaussian".'

    def __init__(self, log_shape: Tensor, log_rate: Tensor) -> None:  # "z f"
        super().__init__()
        self.log_shape, self.log_rate = nn.Parameter(log_shape), nn.Parameter(log_rate)

    @classmethod
    def draw(cls, sizes: Sizes, generator: torch.Generator) -> Self:
        """Exponential distributions of means around 1; with `init` "papers" all of mean 1."""
        rate = draw_table(sizes, generator)
        return cls(torch.zeros_like(rate), rate)

    @classmethod
    def invalid(cls, frames: Tensor) -> Tensor:
        return ~(((frames > 0) & frames.isfinite()) | frames.isnan())

    def forward(self, keep: Tensor | None = None) -> Gamma:
        return Gamma(take_rows(self.log_shape, keep), take_rows(self.log_rate, keep))

    def statistics(self, frames: Tensor, prior: Prior) -> Tensor:  # "n f" -> "n 3f"
        """log x, x, and whether it is there."""
        here = ~frames.isnan()
        x = torch.where(here, frames.double(), 1.0)
        return torch.cat([x.log(), torch.where(here, x, 0.0), here.double()], 1)

    def _with_prior(self, counts: Tensor, prior: Prior) -> tuple[Tensor, Tensor, Tensor]:  # "z 3f" -> "z f" each
        logs, sums, number = counts.chunk(3, 1)
        if not prior.smoothing:
            return logs, sums, number
        mean = torch.as_tensor(prior.centre).to(counts)
        return logs + prior.smoothing * (mean.log() - EULER), sums + prior.smoothing * mean, number + prior.smoothing

    @torch.no_grad()
    def maximise(self, counts: Tensor, prior: Prior) -> None:  # "z 3f"
        """The shape whose log k - psi(k) is that of log mean - mean log, by bisection; then the rate k / mean."""
        logs, sums, number = self._with_prior(counts, prior)
        seen = number > 0
        number = torch.where(seen, number, 1.0)
        mean = torch.where(seen, sums / number, 1.0)
        spread = torch.where(seen, mean.log() - logs / number, 1.0)
        before = self.log_shape.double().exp()
        fixed = prior.fixed & {"shape", "rate"}
        low = spread <= 16 * torch.finfo(spread.dtype).eps * (1 + mean.log().abs())
        if bool(low.any()) and "shape" not in fixed:
            z, f = low.nonzero()[0].tolist()
            raise CollapseError(
                f"the values of feature {f} in state {z} became all alike: the likelihood has no maximum.\n"
                "  Give a prior (smoothing above 0), or fewer states."
            )
        shape = before
        if not fixed:
            shape = torch.where(seen, _best_shape(spread), before)
        elif fixed == {"rate"}:
            shape = torch.where(seen, _digamma_inverse(logs / number + self.log_rate.double()), before)
        self.log_shape.copy_(shape.log())
        if "rate" not in fixed:
            self.log_rate.copy_(torch.where(seen, (shape / mean).log(), self.log_rate.double()))

    def log_prior(self, prior: Prior) -> Tensor:  # ""
        if not prior.smoothing:
            return super().log_prior(prior)
        shape, log_rate = self.log_shape.double().exp(), self.log_rate.double()
        mean = torch.as_tensor(prior.centre).to(log_rate)
        terms = (shape - 1) * (mean.log() - EULER) - log_rate.exp() * mean + shape * log_rate - torch.lgamma(shape)
        return prior.smoothing * terms.sum()

    def move_to(self, frames: NDArray[np.float64]) -> None:  # "n f"
        """Drawn rates are taken relative to the mean of all frames."""
        with torch.no_grad():
            self.log_rate.sub_(torch.from_numpy(np.log(frames.mean(0))).to(self.log_rate))

    def initialise(
        self, frames: Tensor, states: Tensor, means: Tensor, prior: Prior, rng: np.random.Generator, *, near: bool
    ) -> None:
        """Mean and variance of each state's frames, and of one more of an exponential of the mean of all."""
        number = torch.bincount(states, minlength=len(means)).to(frames.dtype)[:, None]
        overall = frames.mean(0)
        mean = (means_of(frames, states, means) * number + overall) / (number + 1)
        squares = torch.zeros_like(means).index_add_(0, states, (frames - mean[states]).square())
        variance = (squares + overall.square()) / (number + 1)
        self.fill(shape=mean.square() / variance, rate=mean / variance)

    def tables(self) -> dict[str, Table]:
        shape, rate = (x.detach().double().exp() for x in (self.log_shape, self.log_rate))
        return {"shape": Table(shape, positive="entries"), "rate": Table(rate, positive="entries")}

    def fill(self, *, shape: Tensor | None = None, rate: Tensor | None = None) -> None:  # type: ignore[override]
        """Set the shapes and rates, "z f" each."""
        with torch.no_grad():
            for own, table in ((self.log_shape, shape), (self.log_rate, rate)):
                if table is not None:
                    own.copy_(table.double().log())


def _best_shape(spread: Tensor) -> Tensor:  # "z f"
    """The root of log k - psi(k) = spread, which falls from infinity to 0: between 1 / (2 spread) and 1 / spread."""
    low, high = -(2 * spread).log(), -spread.log()
    for _ in range(60):
        middle = (low + high) / 2
        above = middle - torch.digamma(middle.exp()) > spread
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    return ((low + high) / 2).exp()


def _digamma_inverse(y: Tensor) -> Tensor:  # "z f"
    """The root of psi(k) = y, which rises: between exp(y), below 0 rather 1 / (1 - y), and exp(y) + 1/2."""
    low, high = torch.where(y < 0, -torch.log1p(-y), y), torch.logaddexp(y, torch.full_like(y, math.log(0.5)))
    for _ in range(80):
        middle = (low + high) / 2
        below = torch.digamma(middle.exp()) < y
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return ((low + high) / 2).exp()
