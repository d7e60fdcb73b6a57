"""Gaussian frames: independent features, a mean for each state, variances of each state's own or shared by all.

Densities are one matrix product in float64, of frames and means that are centred first: squares of large numbers
cancel, and a float32 has no digits to spare.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rankfold.errors import DomainError, expect, expect_weights, same_kind
from rankfold.params.networks import normal, taken

LOG_TWO_PI = math.log(2 * math.pi)


def log_density(frames: Tensor, mean: Tensor, variance: Tensor) -> Tensor:  # "b t f", "z f", "z f" or "f" -> "b t z"
    """log p(x_t | z) = sum_f log N(x_tf; mean_zf, variance_zf) over the features that are not NaN; in `mean`'s dtype.

        -1/2 sum_f  x^2 / v  -  2 x m / v  +  m^2 / v  +  log 2 pi v

    each a sum over features: one product of "t 3f" and "3f z" (a shared variance: "t 2f" and "2f z"), never a
    tensor of frames, states and features. In float64, around the mean of the means, which changes nothing but the
    rounding. Cost: 3 t f z multiply-adds.
    """
    centre = mean.detach().double().mean(0)
    seen = ~torch.isnan(frames)
    x = torch.where(seen, frames.double() - centre, 0.0)
    there = seen.double()
    m, v = mean.double() - centre, variance.double()
    level = torch.log(v) + LOG_TWO_PI
    if variance.ndim == 1:
        own = (x.square() / v + there * level).sum(-1, keepdim=True) / 2
        total = torch.cat([x, there], -1) @ torch.cat([m / v, m.square() / (-2 * v)], -1).mT - own
    else:
        parts = torch.cat([-1 / v, 2 * m / v, -(m.square() / v + level)], -1) / 2
        total = torch.cat([x.square(), x, there], -1) @ parts.mT
    return total.to(mean.dtype)


class Gaussian(NamedTuple):
    """Means and variances of the states that are kept."""

    mean: Tensor  # "z f"
    variance: Tensor  # "z f", or "f": shared

    def log_obs(self, frames: Tensor) -> Tensor:  # "b t f" -> "b t z"
        return log_density(frames, self.mean, self.variance)

    def sample(self, states: Tensor, generator: torch.Generator | None) -> Tensor:  # "n" -> "n f"
        mean = self.mean[states]
        variance = self.variance if self.variance.ndim == 1 else self.variance[states]
        noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)
        return mean + variance.sqrt() * noise


class GaussianObservation(nn.Module):
    """mean and variance = min_variance + exp(log_spread) as parameters.

    The floor is one of the parameter: no variance is below it, so no state collapses onto a frame, and densities are
    exactly those of the variances there are. It is in the features' own units, squared.
    """

    def __init__(self, mean: Tensor, log_spread: Tensor, min_variance: float = 0.0) -> None:  # "z f", "z f" or "f"
        super().__init__()
        self.mean, self.log_spread, self.min_variance = nn.Parameter(mean), nn.Parameter(log_spread), min_variance

    @classmethod
    def draw(
        cls, num_states: int, num_features: int, *, tied: bool, min_variance: float, generator: torch.Generator | None
    ) -> GaussianObservation:
        """Variances 1 and means drawn from the standard normal; without a generator all states are alike, at 0."""
        shape = (num_states, num_features)
        mean = (
            torch.zeros(shape, dtype=torch.float32) if generator is None else normal(*shape, generator=generator).data
        )
        ones = torch.ones(num_features if tied else shape, dtype=torch.float32)
        return cls(mean, _log_spread(ones, min_variance), min_variance)

    @classmethod
    def of(cls, mean: Tensor, variance: Tensor, min_variance: float = 0.0) -> GaussianObservation:
        """With these means and variances, after the checks at the door."""
        expect(mean, "z f", name="mean")
        num_states, num_features = mean.shape
        if isinstance(variance, Tensor) and variance.ndim == 1:
            expect(variance, "f", name="variance", f=num_features)
        else:
            expect(variance, "z f", name="variance", z=num_states, f=num_features)
        same_kind(mean, "mean", {"variance": variance})
        expect_weights(variance, name="variance")
        if not bool(mean.isfinite().all()):
            raise DomainError("mean has an entry that is not finite; every feature has a mean in every state.")
        least = float(variance.detach().min())
        if least < min_variance or least == 0.0:
            raise DomainError(
                f"a variance is {least:g}, but must be above 0 and at least min_variance = {min_variance:g}.\n"
                "  A feature that never changes has no density: leave it out, or give its variance a floor."
            )
        return cls(mean.detach().clone(), _log_spread(variance.detach(), min_variance), min_variance)

    def begin(self, mean: Tensor, variance: Tensor) -> None:  # "z f" or "f", "z f" or "f"
        """Set the means and variances, one vector for all states or one for each, as a start.

        No variance begins below twice the floor: at the floor itself no gradient leads away.
        """
        least = torch.full_like(variance, 2 * self.min_variance)
        variance = torch.maximum(variance, least)
        if not bool((variance > 0).all()):
            raise DomainError(
                "a variance is 0, but there is no floor.\n  Set min_variance, or leave features out that never change."
            )
        with torch.no_grad():
            self.mean.copy_(mean.expand(*self.mean.shape))
            self.log_spread.copy_(_log_spread(variance, self.min_variance).expand(*self.log_spread.shape))

    @property
    def variance(self) -> Tensor:  # "z f" or "f"
        spread = torch.exp(self.log_spread)
        return spread + self.min_variance if self.min_variance else spread

    def log_prior(self, strength: float) -> Tensor:  # ""
        """As if each variance had seen `strength` frames of variance 1: -strength / 2 sum (log v + 1 / v), plus const.

        The inverse gamma distribution; the variance it makes most probable is (squares + strength) / (n + strength).
        """
        v = self.variance.double()
        return -strength / 2 * (v.log() + 1 / v).sum()

    def forward(self, keep: Tensor | None = None) -> Gaussian:
        variance = self.variance
        return Gaussian(taken(self.mean, keep), variance if variance.ndim == 1 else taken(variance, keep))

    def log_obs(self, frames: Tensor) -> Tensor:  # "b t f" -> "b t z"
        """The log-density of every frame in every state."""
        return self.forward().log_obs(frames)


def _log_spread(variance: Tensor, min_variance: float) -> Tensor:
    """log(variance - min_variance); -inf at the floor itself, from where no gradient leads away."""
    return (variance.double() - min_variance).log().to(variance.dtype)
