"""Gaussian frames whose covariance is of low rank plus a diagonal: a few factors and independent noise."""

from __future__ import annotations

from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from rankfold.errors import DomainError
from rankfold.params.networks import normal, take_rows
from rankfold.params.observations.linear_gaussian import FullGaussian, FullGaussianObservation
from rankfold.params.observations.protocol import CollapseError, Sizes, log_above, means_of
from rankfold.params.prior import Prior, Table


class FactorGaussianObservation(FullGaussianObservation):
    """covariance = loading loading^T + diag(noise), a loading "f r" for each state: factor analysis in each.

    EM takes the factors for hidden, too: a step is one of EM for factor analysis, and never lowers the likelihood.
    The prior and the floor of variances are of the noise.
    Source: Rubin, Thayer 1982. Cost: that of a full covariance.
    """

    def __init__(self, mean: Tensor, loading: Tensor, min_variance: float = 0.0) -> None:  # "z f", "z f r"
        super().__init__(mean, len(mean), min_variance=min_variance)
        del self.lower
        self.loading = nn.Parameter(loading)

    @classmethod
    def draw(cls, sizes: Sizes, generator: torch.Generator) -> Self:
        rank, size = sizes.covariance_rank, sizes.num_features
        if rank > size:
            raise DomainError(f"covariance_rank is {rank}, but there are {size} features.")
        mean = normal(sizes.num_states, size, generator=generator).data
        return cls(mean, normal(sizes.num_states, size, rank, spread=0.1, generator=generator).data, sizes.min_variance)

    @property
    def noise(self) -> Tensor:  # "z f"
        """The variances of the noise."""
        return (2 * self.log_diagonal).exp() + self.min_variance

    @property
    def covariance(self) -> Tensor:  # "z f f"
        loading = self.loading.double()
        return loading @ loading.mT + torch.diag_embed(self.noise.double())

    @property
    def root(self) -> Tensor:  # "z f f"
        found: Tensor = torch.linalg.cholesky(self.covariance)
        return found.to(self.weight.dtype)

    def forward(self, keep: Tensor | None = None) -> FullGaussian:
        root: Tensor = torch.linalg.cholesky(self.covariance)
        return FullGaussian(take_rows(self.mean, keep), take_rows(root.to(self.weight.dtype), keep))

    def set_covariance(self, scatter: Tensor, number: Tensor, weight: Tensor, prior: Prior) -> None:
        if {"loading", "noise"} <= prior.fixed:
            return
        seen = number > 0
        share = scatter / torch.where(seen, number, 1.0)[:, None, None]
        before = self.loading.detach().double()
        gain = torch.linalg.solve(self.covariance.detach(), before).mT  # "z r f", of factors given frames
        eye = torch.eye(before.shape[2], dtype=before.dtype, device=before.device)
        factors = eye - gain @ before + gain @ share @ gain.mT
        loading = before if "loading" in prior.fixed else torch.linalg.solve(factors, gain @ share).mT
        left = share - 2 * loading @ gain @ share + loading @ factors @ loading.mT
        left = left.diagonal(dim1=1, dim2=2) * number[:, None]
        spread = torch.as_tensor(prior.spread).to(share).expand(left.shape[1])
        total = (number + prior.variance_frames)[:, None]
        noise = (left + prior.variance_frames * spread) / torch.where(total > 0, total, 1.0)
        noise = torch.maximum(noise, torch.as_tensor(prior.min_variance).to(noise))
        noise = torch.where(seen[:, None] & ("noise" not in prior.fixed), noise, self.noise.double())
        low = noise <= 4 * torch.finfo(noise.dtype).eps * (weight[:, :, -1].square() + spread)
        if bool(low.any()):
            z, f = low.nonzero()[0].tolist()
            raise CollapseError(
                f"the noise of feature {f} in state {z} went to 0: the likelihood has no maximum.\n"
                "  Give variances a floor (min_variance above 0), a prior (variance_prior above 0), a smaller "
                "covariance_rank, or fewer states."
            )
        self.fill(loading=torch.where(seen[:, None, None], loading, before), noise=noise)

    def log_prior(self, prior: Prior) -> Tensor:
        """-n/2 sum (log v + s / v) of the noise v, n = variance_frames, s = spread; and that of means."""
        total = super().log_prior(prior._replace(variance_frames=0.0))
        if prior.variance_frames:
            v = self.noise.double()
            total = total - prior.variance_frames / 2 * (v.log() + prior.spread / v).sum()
        return total

    @torch.no_grad()
    def keep_within(self, prior: Prior) -> None:
        least = torch.as_tensor(prior.min_variance).to(self.noise)
        self.fill(noise=torch.maximum(self.noise, least))

    def fill_covariance(self, covariance: Tensor) -> None:  # "z f f"
        """The largest principal components as loadings, the rest of each variance as noise."""
        rank = self.loading.shape[2]
        values, vectors = torch.linalg.eigh(covariance.double())
        largest = vectors.gather(1, vectors.abs().argmax(1, keepdim=True))
        vectors = vectors * largest.sign()  # of either sign, by the machine: the same everywhere
        below = values[:, :-rank] if rank < values.shape[1] else values[:, :1] / 2
        rest = below.mean(1)
        kept = (values[:, -rank:, None] - below[:, None]).mean(2)  # eigenvalues rise: no difference is below 0
        loading = vectors[:, :, -rank:] * kept.sqrt().unsqueeze(1)
        noise = covariance.diagonal(dim1=1, dim2=2) - loading.square().sum(2)
        self.fill(loading=loading, noise=torch.maximum(noise, rest[:, None] / 2))

    def initialise(
        self, frames: Tensor, states: Tensor, means: Tensor, prior: Prior, rng: np.random.Generator, *, near: bool
    ) -> None:
        """As a full covariance, cut to its largest components; random small loadings where there is nothing to see."""
        super().initialise(frames, states, means, prior, rng, near=near)
        spread = torch.as_tensor(prior.spread).to(frames).expand(means.shape[1])
        noise = torch.from_numpy(rng.standard_normal(tuple(self.loading.shape))).to(frames)
        with torch.no_grad():
            self.weight.copy_(means_of(frames, states, means).unsqueeze(2))
            self.loading.add_(0.1 * spread.sqrt()[:, None] * noise)
            least = torch.as_tensor(prior.min_variance).to(self.noise)
            self.fill(noise=torch.maximum(self.noise, least))

    def tables(self) -> dict[str, Table]:
        return {
            "mean": Table(self.mean.detach().double()),
            "loading": Table(self.loading.detach().double()),
            "noise": Table(self.noise.detach().double(), positive="entries"),
        }

    def fill(  # type: ignore[override]
        self, *, mean: Tensor | None = None, loading: Tensor | None = None, noise: Tensor | None = None
    ) -> None:
        """Set the means "z f", loadings "z f r" and variances of the noise "z f"."""
        with torch.no_grad():
            if mean is not None:
                self.weight.copy_(mean.unsqueeze(2))
            if loading is not None:
                self.loading.copy_(loading)
            if noise is not None:
                self.log_diagonal.copy_(log_above(noise, self.min_variance) / 2)

    @property
    def num_free(self) -> int:
        """Rotations of the factors change nothing."""
        num_states, size, rank = self.loading.shape
        return num_states * (2 * size + size * rank - rank * (rank - 1) // 2)
