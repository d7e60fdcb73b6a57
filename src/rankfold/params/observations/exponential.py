"""Positive numbers that are most often small, features independent: exponential waiting times, half-normal sizes.

    log p(x) = c - log(m) / q - x^q / (q m),   x >= 0,   m the mean of x^q

q = 1: exponential, c = 0. q = 2: half-normal, c = log(2 / pi) / 2, the size of a normal number of variance m around 0.
"""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rankfold.params.networks import take_rows
from rankfold.params.observations.protocol import CollapseError, ObservationModule, Sizes, draw_table, means_of
from rankfold.params.prior import Prior, Table


class Falling(NamedTuple):
    """The logarithm of the mean of x^q in the states that dropout keeps."""

    log_mean: Tensor  # "z f"
    power: int

    def log_obs(self, frames: Tensor) -> Tensor:  # "b t f" -> "b t z"
        """The log-density over the features that are not NaN: one product."""
        q, log_mean = self.power, self.log_mean.double()
        constant = 0.0 if q == 1 else math.log(2 / math.pi) / 2
        weights = torch.cat([-(-log_mean).exp() / q, constant - log_mean / q], 1)
        return (_statistics(frames, q) @ weights.mT).to(self.log_mean.dtype)

    def sample(self, states: Tensor, generator: torch.Generator | None) -> Tensor:  # "n" -> "n f"
        """x^q / (q m) has a gamma distribution of shape 1 / q."""
        mean = self.log_mean.exp()[states]
        drawn = torch._standard_gamma(torch.full_like(mean, 1 / self.power), generator=generator)
        return (self.power * mean * drawn).pow(1 / self.power)


def _statistics(frames: Tensor, power: int) -> Tensor:  # "... f" -> "... 2f"
    """x^q, and whether it is there; 0 where it is missing."""
    here = ~frames.isnan()
    return torch.cat([torch.where(here, frames.double(), 0.0).pow(power), here.double()], -1)


def _expect_above_zero(mean: Tensor) -> None:  # "z f"
    if bool((mean <= 0).any()):
        z, f = (mean <= 0).nonzero()[0].tolist()
        raise CollapseError(
            f"the values of feature {f} in state {z} are all 0: the likelihood has no maximum.\n"
            "  Give a prior (smoothing above 0), fewer states, or observations with zeros of their own "
            '("zero_inflated_gamma").'
        )


class ExponentialObservation(ObservationModule):
    """Free logarithms of the means of x^q. `smoothing` counts as so many frames in which x^q has the mean of all."""

    power: ClassVar[int] = 1
    values = "at least 0"
    remedy = 'Mark what is missing as NaN; for other numbers use observations="gaussian".'

    def __init__(self, log_mean: Tensor) -> None:  # "z f"
        super().__init__()
        self.log_mean = nn.Parameter(log_mean)

    @classmethod
    def draw(cls, sizes: Sizes, generator: torch.Generator) -> Self:
        return cls(draw_table(sizes, generator))

    @classmethod
    def invalid(cls, frames: Tensor) -> Tensor:
        return (frames < 0) | frames.isinf()

    def forward(self, keep: Tensor | None = None) -> Falling:
        return Falling(take_rows(self.log_mean, keep), self.power)

    def statistics(self, frames: Tensor, prior: Prior) -> Tensor:  # "n f" -> "n 2f"
        return _statistics(frames, self.power)

    def _overall(self, prior: Prior) -> Tensor:  # "" or "f"
        """The mean of x^q in all frames."""
        centre, spread = (torch.as_tensor(x).to(self.log_mean.device).double() for x in (prior.centre, prior.spread))
        return centre if self.power == 1 else spread + centre.square()

    @torch.no_grad()
    def maximise(self, counts: Tensor, prior: Prior) -> None:  # "z 2f"
        """The mean of x^q."""
        if prior.fixed & set(self.tables()):
            return
        total, number = counts.chunk(2, 1)
        total, number = total + prior.smoothing * self._overall(prior), number + prior.smoothing
        before = self.log_mean.double().exp()
        mean = torch.where(number > 0, total / torch.where(number > 0, number, 1.0), before)
        _expect_above_zero(mean)
        self.log_mean.copy_(mean.log())

    def log_prior(self, prior: Prior) -> Tensor:  # ""
        """-smoothing / q times the sum of log m + (mean of all) / m: an inverse gamma distribution."""
        if not prior.smoothing:
            return super().log_prior(prior)
        log_mean = self.log_mean.double()
        return -prior.smoothing / self.power * (log_mean + self._overall(prior) * (-log_mean).exp()).sum()

    def move_to(self, frames: NDArray[np.float64]) -> None:  # "n f"
        """Drawn means are taken as multiples of that of all frames."""
        with torch.no_grad():
            self.log_mean.add_(torch.from_numpy(np.log((frames**self.power).mean(0))).to(self.log_mean))

    def initialise(
        self, frames: Tensor, states: Tensor, means: Tensor, prior: Prior, rng: np.random.Generator, *, near: bool
    ) -> None:
        """The means of x^q in each state's frames, and in one more with the mean of all."""
        powers = frames.double().pow(self.power)
        number = torch.bincount(states, minlength=len(means)).to(powers)[:, None]
        overall = powers.mean(0)
        mean = (means_of(powers, states, means) * number + overall) / (number + 1)
        _expect_above_zero(mean)
        with torch.no_grad():
            self.log_mean.copy_(mean.log())

    def tables(self) -> dict[str, Table]:
        return {"rate": Table((-self.log_mean.detach().double()).exp(), positive="entries")}

    def fill(self, *, rate: Tensor) -> None:  # type: ignore[override]
        """Set the rates "z f", 1 / mean."""
        with torch.no_grad():
            self.log_mean.copy_(-rate.double().log())


class HalfNormalObservation(ExponentialObservation):
    """Its table is the deviation of the normal numbers whose sizes are seen."""

    power = 2

    def tables(self) -> dict[str, Table]:
        return {"deviation": Table((self.log_mean.detach().double() / 2).exp(), positive="entries")}

    def fill(self, *, deviation: Tensor) -> None:  # type: ignore[override]
        """Set the deviations, "z f"."""
        with torch.no_grad():
            self.log_mean.copy_(2 * deviation.double().log())
