"""Frames with heavy tails: Student's t distribution, features independent.

EM takes a precision of each frame and feature for hidden: t is a Gaussian of gamma distributed precision.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rankfold.errors import UnsupportedError
from rankfold.params.networks import take_rows
from rankfold.params.observations.multivariate_student import (
    LEAST_DOF,
    MOST_DOF,
    MultivariateTObservation,
    best_dof,
)
from rankfold.params.observations.protocol import (
    CollapseError,
    ObservationModule,
    Sizes,
    draw_table,
    log_above,
    moments_of,
)
from rankfold.params.prior import Prior, Table

MOST = 2**24  # numbers of one tensor of states, frames and features


class StudentT(NamedTuple):
    """Centre, squared scale and degrees of freedom, of the states that dropout keeps."""

    mean: Tensor  # "z f"
    scale: Tensor  # "z f"   squared
    dof: Tensor  # "z f"

    def log_obs(self, frames: Tensor) -> Tensor:  # "b t f" -> "b t z"
        """The log-density over the features that are not NaN, in float64, a feature at a time: never "b t z f"."""
        found: Tensor | float = 0.0
        x, mean, scale, dof = frames.double(), self.mean.double(), self.scale.double(), self.dof.double()
        level = torch.lgamma((dof + 1) / 2) - torch.lgamma(dof / 2) - (dof * math.pi * scale).log() / 2
        for f in range(x.shape[-1]):
            one = x[..., f : f + 1]
            here = ~one.isnan()
            away = (torch.where(here, one, 0.0) - mean[:, f]).square() / (dof[:, f] * scale[:, f])
            found = found + torch.where(here, level[:, f] - (dof[:, f] + 1) / 2 * torch.log1p(away), 0.0)
        assert isinstance(found, Tensor)
        return found.to(self.mean.dtype)

    def sample(self, states: Tensor, generator: torch.Generator | None) -> Tensor:  # "n" -> "n f"
        mean, dof = self.mean[states], self.dof[states]
        noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)
        precision = torch._standard_gamma(dof / 2, generator=generator) / (dof / 2)
        return mean + noise * (self.scale[states] / precision).sqrt()


class StudentTObservation(ObservationModule):
    """Free centres, logarithms of squared scales and of degrees of freedom, "z f" each.

    Degrees of freedom are between 0.5 and 1000. Priors and floor of variances are those of squared scales.
    """

    measured = True
    priors = ("mean", "variance")

    def __init__(self, mean: Tensor, log_scale: Tensor, log_dof: Tensor, min_variance: float = 0.0) -> None:  # "z f"
        super().__init__()
        self.mean, self.log_scale, self.log_dof = nn.Parameter(mean), nn.Parameter(log_scale), nn.Parameter(log_dof)
        self.min_variance = min_variance

    @classmethod
    def draw(cls, sizes: Sizes, generator: torch.Generator) -> ObservationModule:  # type: ignore[override]
        """Scales of 1 and ten degrees around drawn centres; of "full" and "tied" a matrix of scales."""
        if sizes.covariance in ("full", "tied"):
            return MultivariateTObservation.draw(sizes, generator)
        if sizes.covariance != "diag":
            raise UnsupportedError(
                f'the covariance of student_t is {sizes.covariance!r}, but it is "diag", "full" or "tied".'
            )
        mean = draw_table(sizes, generator)
        start = math.log(1 - sizes.min_variance) if sizes.min_variance < 1 else 0.0
        return cls(mean, torch.full_like(mean, start), torch.full_like(mean, math.log(10.0)), sizes.min_variance)

    @classmethod
    def residuals(cls, sizes: Sizes) -> int:
        if sizes.covariance != "diag":
            return MultivariateTObservation.residuals(sizes)
        return sizes.num_states * sizes.num_features

    @property
    def scale(self) -> Tensor:  # "z f"
        """Squared scales."""
        scale = self.log_scale.exp()
        return scale + self.min_variance if self.min_variance else scale

    def forward(self, keep: Tensor | None = None) -> StudentT:
        dof = self.log_dof.exp().clamp(LEAST_DOF, MOST_DOF)
        return StudentT(*(take_rows(x, keep) for x in (self.mean, self.scale, dof)))

    def statistics(self, frames: Tensor, prior: Prior) -> Tensor:  # "n f" -> "n 2f"
        """The features around the centre of all frames, NaN where missing; and that centre."""
        centre = torch.as_tensor(prior.centre).to(frames.device).double()
        return torch.cat([frames.double() - centre, centre.expand(*frames.shape)], 1)

    @torch.no_grad()
    def count(self, statistics: Tensor, posterior: Tensor) -> Tensor:  # "n 2f", "n z" -> "z 5f"
        """u x^2, u x, u, 1 and log u - u, in expectation over the precisions u, features that are missing left out."""
        x, centre = statistics.chunk(2, 1)
        here, weights = (~x.isnan()).double(), posterior.double()
        x = torch.where(here > 0, x, 0.0)
        own = self.forward()
        mean, scale, dof = own.mean.double() - centre[0], own.scale.double(), own.dof.double()
        found = []
        for z in range(len(mean)):
            away = (x - mean[z]).square() / scale[z]
            u = (dof[z] + 1) / (dof[z] + away)
            log_u = torch.digamma((dof[z] + 1) / 2) - torch.log((dof[z] + away) / 2)
            w = weights[:, z : z + 1] * here
            found.append(torch.cat([(w * y).sum(0) for y in (u * x * x, u * x, u, torch.ones_like(u), log_u - u)]))
        return torch.stack(found)

    @torch.no_grad()
    def maximise(self, counts: Tensor, prior: Prior) -> None:  # "z 5f"
        """Centres and scales of the frames weighted by their precisions; degrees of freedom by bisection."""
        squares, sums, precision, number, level = counts.chunk(5, 1)
        seen = number > 0
        before = self.mean.double() - prior.centre
        at = torch.as_tensor(prior.mean).to(before) - prior.centre
        weight = precision + prior.mean_frames
        mean = torch.where(weight > 0, (sums + prior.mean_frames * at) / torch.where(weight > 0, weight, 1.0), before)
        mean = before if "mean" in prior.fixed else mean
        scatter = squares - 2 * mean * sums + mean * mean * precision + prior.mean_frames * (mean - at).square()
        total = number + prior.variance_frames
        scale = (scatter + prior.variance_frames * prior.spread) / torch.where(total > 0, total, 1.0)
        scale = torch.maximum(scale, torch.as_tensor(prior.min_variance).to(scale))
        scale = torch.where(seen, scale, self.scale.double())
        scale = self.scale.double() if "scale" in prior.fixed else scale
        low = scale <= 4 * torch.finfo(scale.dtype).eps * (mean * mean + prior.spread)
        if bool(low.any()):
            z, f = low.nonzero()[0].tolist()
            raise CollapseError(
                f"the scale of feature {f} in state {z} went to 0: the likelihood has no maximum.\n"
                "  Give variances a floor (min_variance above 0), a prior (variance_prior above 0), or fewer states."
            )
        dof = self.log_dof.double().exp().clamp(LEAST_DOF, MOST_DOF)
        if "dof" not in prior.fixed:
            dof = torch.where(seen, best_dof(level / torch.where(seen, number, 1.0)), dof)
        self.fill(mean=mean + prior.centre, scale=scale, dof=dof)

    def log_prior(self, prior: Prior) -> Tensor:  # ""
        """That of Gaussians, of the centres and squared scales."""
        return prior.of_normals(self.mean, self.scale)

    @torch.no_grad()
    def keep_within(self, prior: Prior) -> None:
        self.log_dof.clamp_(math.log(LEAST_DOF), math.log(MOST_DOF))
        least = torch.as_tensor(prior.min_variance).to(self.scale)
        if bool((least > 0).any()):
            self.fill(scale=torch.maximum(self.scale, least))

    def move_to(self, frames: NDArray[np.float64]) -> None:  # "n f"
        """Drawn centres are taken as standard scores of all frames; squared scales are their variances."""
        centre, variance = (torch.from_numpy(x).to(self.mean.device) for x in (frames.mean(0), frames.var(0)))
        self.fill(mean=centre + self.mean.detach().double() * variance.sqrt(), scale=variance.expand(*self.mean.shape))

    def initialise(
        self, frames: Tensor, states: Tensor, means: Tensor, prior: Prior, rng: np.random.Generator, *, near: bool
    ) -> None:
        """Means of the frames, half their variances and one more frame of the variance of all; ten degrees."""
        mean, scale, _ = moments_of(frames, states, means, prior, near=near)
        scale = torch.maximum(scale / 2, torch.as_tensor(prior.min_variance).to(scale))
        self.fill(mean=mean, scale=scale, dof=torch.full_like(mean, 10.0))

    def tables(self) -> dict[str, Table]:
        own = self.forward()
        return {
            "mean": Table(own.mean.detach().double()),
            "scale": Table(own.scale.detach().double(), positive="entries"),
            "dof": Table(own.dof.detach().double(), positive="entries"),
        }

    def fill(  # type: ignore[override]
        self, *, mean: Tensor | None = None, scale: Tensor | None = None, dof: Tensor | None = None
    ) -> None:
        """Set the centres, squared scales and degrees of freedom, "z f" each."""
        with torch.no_grad():
            if mean is not None:
                self.mean.copy_(mean)
            if scale is not None:
                self.log_scale.copy_(log_above(scale, self.min_variance))
            if dof is not None:
                self.log_dof.copy_(dof.double().clamp(LEAST_DOF, MOST_DOF).log())
