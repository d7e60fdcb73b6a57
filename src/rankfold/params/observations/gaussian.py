"""Gaussian frames: independent features, a mean for each state; variances per feature, shared, or one per state.

Densities are one matrix product in float64, of centred frames and means: its large squares cancel, and float32 would
lose the digits that are left.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import linear

from rankfold.errors import DomainError, expect, expect_weights, has_nan, may_look, same_kind
from rankfold.kernels.dispatch import loops_serve
from rankfold.params.networks import take_rows
from rankfold.params.observations.factor_gaussian import FactorGaussianObservation
from rankfold.params.observations.linear_gaussian import LOG_TWO_PI, FullGaussianObservation
from rankfold.params.observations.protocol import CollapseError, ObservationModule, Sizes, draw_table, moments_of
from rankfold.params.prior import Prior, Table

# States up to which loops over frames serve. Densities of 2, 4, 16 and 64 states and 12 features were 2.3, 2.1, 1.2 and
# 1.3 times as fast as one product with the statistics, of 3 features and 4, 16 and 64 states 1.5, 0.7 and 0.5 times.
FEW_STATES = 8


def log_density(frames: Tensor, mean: Tensor, variance: Tensor) -> Tensor:  # "b t f", "z f", "z f" or "f" -> "b t z"
    """log p(x_t | z) = sum_f log N(x_tf; mean_zf, variance_zf) over the features that are not NaN; in `mean`'s dtype.

        -1/2 sum_f  x^2 / v  -  2 x m / v  +  m^2 / v  +  log 2 pi v

    each a sum over features: one product of "t 3f" and "3f z" (a shared variance: "t 2f" and "2f z"; on a CPU, where
    nothing is missing, no ones), never a tensor of frames, states and features. In float64, around the mean of the
    means, which changes nothing but the rounding. Cost: 3 t f z multiply-adds. Of few states, on a CPU and without
    gradients, a compiled loop over frames.
    """
    watched = torch.is_grad_enabled() and any(x.requires_grad for x in (frames, mean, variance))
    if not watched and _looped(mean, frames):
        from rankfold.kernels import chain_loops

        found = chain_loops.log_density(frames.flatten(0, -2), mean.double(), variance.double().expand_as(mean))
        if not has_nan(found):  # no feature is missing
            return found.reshape(*frames.shape[:-1], -1).to(mean.dtype)
    centre = mean.detach().double().mean(0)
    m, v = mean.double() - centre, variance.double()
    plain = variance.ndim == 2 and not frames.is_cuda and not frames.requires_grad
    if plain and may_look(frames) and not has_nan(frames):
        of_frames, of_ones = _weights(m, v).tensor_split((2 * frames.shape[-1],), -1)
        both = torch.empty(*frames.shape[:-1], of_frames.shape[-1], dtype=torch.float64)
        squares, x = both.chunk(2, -1)
        torch.sub(frames, centre, out=x)
        torch.mul(x, x, out=squares)
        return linear(both, of_frames, of_ones.sum(-1)).to(mean.dtype)
    x = frames.double() - centre
    seen = ~torch.isnan(frames)
    x = torch.where(seen, x, 0.0)
    ones = seen.double()  # 0 where a feature is missing
    if variance.ndim == 1:
        level = torch.log(v) + LOG_TWO_PI
        state_free = (x.square() / v + ones * level).sum(-1, keepdim=True) / 2
        total = torch.cat([x, ones], -1) @ torch.cat([m / v, m.square() / (-2 * v)], -1).mT - state_free
    else:
        total = torch.cat([x.square(), x, ones], -1) @ _weights(m, v).mT
    return total.to(mean.dtype)


def _looped(mean: Tensor, frames: Tensor) -> bool:
    """Whether compiled loops over frames take the place of products with their squares."""
    return len(mean) <= FEW_STATES and loops_serve(len(mean), frames, mean)


def _weights(mean: Tensor, variance: Tensor) -> Tensor:  # "z f", "z f" or "f" -> "z 3f"
    """What x^2, x and 1 of every feature are multiplied by in the log-density."""
    v = variance.expand_as(mean)
    return torch.cat([-1 / v, 2 * mean / v, -(mean.square() / v + torch.log(v) + LOG_TWO_PI)], -1) / 2


class Gaussian(NamedTuple):
    """Means and variances of the states that dropout keeps."""

    mean: Tensor  # "z f"
    variance: Tensor  # "z f", or "f": shared

    def log_obs(self, frames: Tensor) -> Tensor:  # "b t f" -> "b t z"
        return log_density(frames, self.mean, self.variance)

    def sample(self, states: Tensor, generator: torch.Generator | None) -> Tensor:  # "n" -> "n f"
        mean = self.mean[states]
        variance = self.variance if self.variance.ndim == 1 else self.variance[states]
        noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)
        return mean + variance.sqrt() * noise


class GaussianObservation(ObservationModule):
    """The parameters are mean and log_spread "z f", "f" (shared) or "z 1" (one variance for all features).

    variance = min_variance + exp(log_spread).

    So no variance is below the floor `min_variance`, and no state collapses onto a single frame. The floor is in the
    features' own units, squared.
    """

    measured = True
    priors = ("mean", "variance")

    def __init__(
        self, mean: Tensor, log_spread: Tensor, min_variance: float = 0.0, *, spherical: bool = False
    ) -> None:  # "z f", "z f", "f" or "z 1"
        super().__init__()
        self.spherical = spherical  # whether a state has one variance for all features
        self.mean, self.log_spread, self.min_variance = nn.Parameter(mean), nn.Parameter(log_spread), min_variance

    @classmethod
    def draw(cls, sizes: Sizes, generator: torch.Generator) -> ObservationModule:  # type: ignore[override]
        """Variances 1 and means drawn from the standard normal; with `init` "papers" all means are 0."""
        if sizes.covariance in ("full", "tied"):
            return FullGaussianObservation.draw(sizes, generator)
        if sizes.covariance == "low_rank":
            return FactorGaussianObservation.draw(sizes, generator)
        mean, spherical = draw_table(sizes, generator), sizes.covariance == "spherical"
        rows = (sizes.num_states, 1) if spherical else sizes.num_features if sizes.tied_variance else mean.shape
        ones = torch.ones(rows, dtype=torch.float32)
        return cls(mean, _log_spread(ones, sizes.min_variance), sizes.min_variance, spherical=spherical)

    @classmethod
    def residuals(cls, sizes: Sizes) -> int:
        return 0 if sizes.covariance in ("diag", "spherical") else sizes.num_states * sizes.num_features

    @classmethod
    def of(cls, mean: Tensor, variance: Tensor, min_variance: float = 0.0) -> GaussianObservation:
        """The module with these means and variances, validated."""
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

    def fill(self, *, mean: Tensor | None = None, variance: Tensor | None = None) -> None:  # type: ignore[override]
        """Set the means "z f" and variances "z f" or "f", one vector for all states or one for each.

        No variance is set below twice the parameter's own floor: at the floor itself no gradient leads away.
        """
        with torch.no_grad():
            if mean is not None:
                self.mean.copy_(mean)
            if variance is None:
                return
            if self.spherical and variance.ndim == 1:
                variance = variance[:, None]
            if self.spherical and variance.shape[1] > 1:
                variance = variance.mean(1, keepdim=True)
            if self.min_variance:
                variance = torch.maximum(variance, variance.new_tensor(2 * self.min_variance))
            if not bool(variance.amin() > 0):
                raise DomainError(
                    "a variance is 0, but there is no floor.\n"
                    "  Set min_variance, or leave features out that never change."
                )
            self.log_spread.copy_(_log_spread(variance, self.min_variance))

    @property
    def variance(self) -> Tensor:  # "z f" or "f"
        spread = torch.exp(self.log_spread)
        spread = spread + self.min_variance if self.min_variance else spread
        return spread.expand(*self.mean.shape) if self.spherical else spread

    def forward(self, keep: Tensor | None = None) -> Gaussian:
        variance = self.variance
        return Gaussian(take_rows(self.mean, keep), variance if variance.ndim == 1 else take_rows(variance, keep))

    def statistics(self, frames: Tensor, prior: Prior) -> Tensor:  # "n f" -> "n 3f"
        """x^2, x and 1 of each feature that is not missing, x relative to the centre of all frames."""
        here = ~frames.isnan()
        x = torch.where(here, frames.double() - prior.centre, 0.0)
        return torch.cat([x * x, x, here.to(x.dtype)], 1)

    def sequence_statistics(self, frames: Tensor, prior: Prior) -> Tensor:  # "b t f" -> "n 3f", "n 2f+1" or "n f"
        """The same; where nothing is missing, with a single 1 for all features, and of few states x alone.

        Every step of EM reads them.
        """
        frames = frames.transpose(0, 1).flatten(0, 1)
        if has_nan(frames):
            return self.statistics(frames, prior)
        centre = torch.as_tensor(prior.centre).to(frames.device, torch.float64)
        if _looped(self.mean, frames):
            return (frames - centre).contiguous()
        found = torch.empty(len(frames), 2 * frames.shape[1] + 1, dtype=torch.float64, device=frames.device)
        squares, x = found[:, :-1].chunk(2, 1)
        torch.sub(frames, centre, out=x)
        torch.mul(x, x, out=squares)
        found[:, -1] = 1.0
        return found

    @torch.no_grad()
    def log_obs_of(self, statistics: Tensor, prior: Prior) -> Tensor:  # "n 3f", "n 2f+1" or "n f" -> "n z"
        mean, variance, width = self.mean.double() - prior.centre, self.variance.double(), self.mean.shape[1]
        if statistics.shape[1] == width:
            from rankfold.kernels import chain_loops

            return chain_loops.log_density(statistics, mean, variance.expand_as(mean))
        weight = _weights(mean, variance)
        if statistics.shape[1] != 3 * width:
            of_frames, of_ones = weight.tensor_split((statistics.shape[1] - 1,), 1)
            weight = torch.cat([of_frames, of_ones.sum(1, keepdim=True)], 1)
        return linear(statistics, weight)

    def count(self, statistics: Tensor, posterior: Tensor) -> Tensor:  # "n 3f", "n 2f+1" or "n f", "n z" -> "z 3f"
        width = self.mean.shape[1]
        if statistics.shape[1] == width:
            from rankfold.kernels import chain_loops

            return chain_loops.moments(statistics, posterior.double())
        counts = super().count(statistics, posterior)
        return counts if counts.shape[1] == 3 * width else torch.cat([counts, counts[:, -1:].expand(-1, width - 1)], 1)

    @torch.no_grad()
    def maximise(self, counts: Tensor, prior: Prior) -> None:  # "z 3f"
        """Means and variances of the weighted frames, variances together with the prior's frames.

        With a floor the maximum is the one without it, clamped: the likelihood still never decreases.
        """
        squares, sums, number = counts.chunk(3, 1)
        before, total, weight = self.mean.double() - prior.centre, sums, number
        if prior.mean_frames:
            at = torch.as_tensor(prior.mean).to(sums) - prior.centre
            total, weight = sums + prior.mean_frames * at, number + prior.mean_frames
        mean = before if "mean" in prior.fixed else torch.where(weight > 0, total / weight, before)
        scatter = squares - mean * (2 * sums - mean * number)
        if prior.mean_frames:
            scatter = scatter + prior.mean_frames * (mean - at).square()
        variance = self._best_variance(scatter, number, prior)
        tied = self.log_spread.ndim == 1
        # A variance is a difference of sums: below their rounding error it is taken for 0.
        rounding = 4 * torch.finfo(mean.dtype).eps * (mean * mean + prior.spread)
        collapsed = variance <= (rounding.amax(0) if tied else rounding)
        if bool(collapsed.any()):
            *state, feature = collapsed.nonzero()[0].tolist()
            whose = f"state {state[0]}" if state else "all states"
            raise CollapseError(
                f"the variance of feature {feature} in {whose} went to 0: the likelihood has no maximum.\n"
                "  Give variances a floor (min_variance above 0), a prior (variance_prior above 0), or fewer states."
            )
        self.fill(mean=mean + prior.centre, variance=variance)

    def _best_variance(self, scatter: Tensor, number: Tensor, prior: Prior) -> Tensor:  # "z f" -> "z f" or "f"
        """The variances of this scatter around the means, with the prior's frames and above the floor."""
        if "variance" in prior.fixed:
            return self.variance.double()
        least, frames = torch.as_tensor(prior.min_variance).to(scatter), prior.variance_frames
        if self.log_spread.ndim == 1:
            scatter, number = scatter.sum(0), number.sum(0)
        if frames:
            scatter = scatter + frames * torch.as_tensor(prior.spread).to(scatter)
        if self.spherical:
            frames, least = frames * scatter.shape[1], least.mean()
            scatter, number = (x.sum(1, keepdim=True) for x in (scatter, number))
        variance = torch.maximum(scatter / (number + frames if frames else number), least)
        return torch.where(number > 0, variance, self.variance.double())

    def log_prior(self, prior: Prior) -> Tensor:  # ""
        """-variance_frames / 2 sum (log v + spread / v), up to a constant: an inverse gamma distribution.

        It counts as n' = variance_frames more frames of variance `spread`: the most probable variance is
        (squares + n' spread) / (n + n'). Of means -mean_frames / 2 sum (m - mean)^2 / v, a normal distribution.
        """
        if not (prior.variance_frames or prior.mean_frames):
            return self.mean.new_zeros((), dtype=torch.float64)
        return prior.of_normals(self.mean, self.variance)

    @torch.no_grad()
    def rounding(self, prior: Prior) -> float:
        """The rounding of the squares whose difference is a density, and of the means to the parameters' dtype."""
        mean, variance = self.mean.double(), self.variance.double()
        squares = (((mean - prior.centre).square() + prior.spread) / variance).sum(1).amax()
        moved = ((mean * torch.finfo(self.mean.dtype).eps).square() / variance).sum(1).amax()
        return float(torch.finfo(torch.float64).eps * squares + moved)

    @torch.no_grad()
    def keep_within(self, prior: Prior) -> None:
        floor = torch.as_tensor(prior.min_variance, device=self.log_spread.device)
        floor = floor.mean() if self.spherical else floor
        self.log_spread.copy_(torch.maximum(self.log_spread, floor.log().to(self.log_spread.dtype)))

    def move_to(self, frames: NDArray[np.float64]) -> None:  # "n f"
        """Drawn means are taken as standard scores: mean + score * deviation of all frames; variances are theirs."""
        centre, variance = (torch.from_numpy(x).to(self.mean.device) for x in (frames.mean(0), frames.var(0)))
        self.fill(mean=centre + self.mean.detach().double() * variance.sqrt(), variance=variance)

    def initialise(
        self, frames: Tensor, states: Tensor, means: Tensor, prior: Prior, rng: np.random.Generator, *, near: bool
    ) -> None:
        """The means of the frames; their variances as if each state had seen one more frame, of the variance of all."""
        mean, variance, number = moments_of(frames, states, means, prior, near=near)
        if self.log_spread.ndim == 1:
            variance = (variance * (number + 1)).sum(0) / (number + 1).sum(0)
        least = torch.as_tensor(prior.min_variance).to(variance)
        if self.spherical:
            variance, least = variance.mean(1, keepdim=True), least.mean()
        self.fill(mean=mean, variance=torch.maximum(variance, least))

    def tables(self) -> dict[str, Table]:
        variance = self.variance.detach().double()
        variance = variance[:, 0] if self.spherical else variance
        return {"mean": Table(self.mean.detach().double()), "variance": Table(variance, positive="entries")}


def _log_spread(variance: Tensor, min_variance: float) -> Tensor:
    """log(variance - min_variance); -inf at the floor itself, from where no gradient leads away."""
    spread = variance.double()
    return (spread - min_variance if min_variance else spread).log().to(variance.dtype)
