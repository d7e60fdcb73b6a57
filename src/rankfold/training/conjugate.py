"""Conjugate beliefs about the tables of an HMM: Dirichlet and normal-Wishart distributions, in float64.

Variational Bayes needs their expected logarithms, updates and divergences, Gibbs sampling their draws.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Dirichlet(NamedTuple):
    """Independent beliefs about distributions over k, p ~ prod p^(concentration - 1)."""

    concentration: Tensor  # "... k"   above 0

    def mean(self) -> Tensor:  # "... k"
        return self.concentration / self.concentration.sum(-1, keepdim=True)

    def expected_log(self) -> Tensor:  # "... k"
        """E log p."""
        return torch.digamma(self.concentration) - torch.digamma(self.concentration.sum(-1, keepdim=True))

    def plus(self, counts: Tensor) -> Dirichlet:  # "... k"
        return Dirichlet(self.concentration + counts)

    def divergence(self, prior: Dirichlet) -> Tensor:  # ""
        """KL(self || prior), of all distributions together."""
        own, other = self.concentration, prior.concentration
        norms = _log_beta(other).sum() - _log_beta(own).sum()
        return norms + ((own - other) * self.expected_log()).sum()

    def draw(self, rng: np.random.Generator) -> Tensor:  # "... k"
        rows = self.concentration.reshape(-1, self.concentration.shape[-1]).cpu().numpy()
        drawn = np.stack([rng.dirichlet(row) for row in rows])
        return torch.from_numpy(drawn).to(self.concentration).reshape(self.concentration.shape)


def _log_beta(concentration: Tensor) -> Tensor:  # "... k" -> "..."
    return torch.lgamma(concentration).sum(-1) - torch.lgamma(concentration.sum(-1))


class NormalWishart(NamedTuple):
    """Beliefs about the means and precisions of blocks of features, for every state.

        precision ~ Wishart(dof, inverse scale)        mean | precision ~ N(mean, (weight precision)^-1)

    g blocks of k features: one block of all for full covariances, as many as there are features for diagonal ones.
    Precisions may be shared, by all states (tied) or by all blocks (spherical): dof and scale have size 1 there.
    """

    mean: Tensor  # "z g k"
    weight: Tensor  # "z g"      as if the mean had been seen so often
    dof: Tensor  # "z g"         above k - 1
    scale: Tensor  # "z g k k"   the expected covariance times dof

    def expected_log(self, frames: Tensor) -> Tensor:  # "n g k" -> "n z"
        """E log N(frame | mean, precision); 0 for a block that is missing (NaN)."""
        size = frames.shape[-1]
        here = ~frames.isnan().any(-1)  # "n g"
        inner: Tensor = self.dof.mT[None] * self._squares(frames) + size / self.weight.mT[None]  # "n g z"
        found = 0.5 * (self._expected_log_det().mT[None] - size * math.log(2 * math.pi) - inner)
        return torch.where(here.unsqueeze(-1), found, 0.0).sum(1)

    def _squares(self, frames: Tensor) -> Tensor:  # "n g k" -> "n g z"
        """(x - mean)^T scale^-1 (x - mean)."""
        root = torch.linalg.cholesky(self.scale)  # "z g k k"
        delta = _without_missing(frames).unsqueeze(1) - self.mean  # "n z g k"
        solved: Tensor = torch.linalg.solve_triangular(root, delta.permute(1, 2, 3, 0), upper=False)  # "z g k n"
        return solved.square().sum(2).permute(2, 1, 0)

    def _expected_log_det(self) -> Tensor:  # "z g"
        size = self.mean.shape[-1]
        below = torch.arange(size, dtype=self.dof.dtype, device=self.dof.device)
        digammas = torch.digamma((self.dof.unsqueeze(-1) - below) / 2).sum(-1)
        return digammas + size * math.log(2) - torch.logdet(self.scale)

    def plus(self, frames: Tensor, posterior: Tensor) -> NormalWishart:  # "n g k", "n z"
        """The beliefs after frames that are each state's with these probabilities."""
        here = (~frames.isnan().any(-1)).to(posterior)  # "n g"
        centre = self.mean.mean(0)  # squares around it have digits left when those of the mean are taken away
        x = _without_missing(frames - centre)
        before = self.mean - centre
        number = posterior.mT @ here
        sums = torch.einsum("nz,ngk,ng->zgk", posterior, x, here)
        squares = torch.einsum("nz,ngk,ngl,ng->zgkl", posterior, x, x, here)
        weight = self.weight + number
        mean = (self.weight.unsqueeze(-1) * before + sums) / weight.unsqueeze(-1)
        around = squares + _outer(self.weight, before) - _outer(weight, mean)
        scale = self.scale + around.sum_to_size(*self.scale.shape)
        dof = self.dof + number.sum_to_size(*self.dof.shape)
        return NormalWishart(mean + centre, weight, dof, (scale + scale.mT) / 2)

    def divergence(self, prior: NormalWishart) -> Tensor:  # ""
        """KL(self || prior), of all states and blocks together."""
        size = self.mean.shape[-1]
        ratio = prior.weight / self.weight
        moved = (self.mean - prior.mean).unsqueeze(-1)  # "z g k 1"
        inverse = torch.linalg.inv(self.scale)
        far = prior.weight * self.dof * (moved.mT @ inverse @ moved)[..., 0, 0]
        of_means = 0.5 * (size * (ratio - 1 - ratio.log()) + far)
        trace = (prior.scale * inverse.mT).sum((-2, -1))
        of_precisions: Tensor = (
            (self.dof - prior.dof) / 2 * self._expected_log_det()
            + self.dof / 2 * (trace - size)
            + prior._log_norm()
            - self._log_norm()
        )
        total: Tensor = of_means.sum() + of_precisions.sum()
        return total

    def _log_norm(self) -> Tensor:  # "z g"
        """The logarithm of the Wishart distribution's normaliser."""
        size = self.mean.shape[-1]
        below = torch.arange(size, dtype=self.dof.dtype, device=self.dof.device)
        gammas = torch.lgamma((self.dof.unsqueeze(-1) - below) / 2).sum(-1)
        return (
            self.dof / 2 * (size * math.log(2) - torch.logdet(self.scale)) + size * (size - 1) / 4 * math.log(math.pi)
        ) + gammas

    def covariance(self) -> Tensor:  # "z g k k"
        """The inverse of the expected precision."""
        return self.scale / self.dof[..., None, None]

    def draw(self, rng: np.random.Generator) -> tuple[Tensor, Tensor]:  # "z g k", "z g k k"
        """Means and covariances, those shared as `scale` is. Precisions by Bartlett's decomposition."""
        size = self.mean.shape[-1]
        lower = np.tril(rng.standard_normal(self.scale.shape), -1)
        shape = (self.dof.cpu().numpy()[..., None] - np.arange(size)) / 2
        lower[..., np.arange(size), np.arange(size)] = np.sqrt(2 * rng.standard_gamma(shape))
        # precision = R^-T A A^T R^-1 with scale = R R^T, so covariance = (R A^-T)(R A^-T)^T.
        root = torch.linalg.cholesky(self.scale)
        half = torch.linalg.solve_triangular(torch.from_numpy(lower).to(root), root.mT, upper=False).mT
        noise = torch.from_numpy(rng.standard_normal((*self.mean.shape, 1))).to(root)
        mean = self.mean + (half @ noise)[..., 0] / self.weight.sqrt().unsqueeze(-1)
        return mean, half @ half.mT


def _without_missing(frames: Tensor) -> Tensor:
    """The frames, 0 where they are missing; what is made of those is not used."""
    return torch.where(frames.isnan(), 0.0, frames)


def _outer(weight: Tensor, x: Tensor) -> Tensor:  # "z g", "z g k" -> "z g k k"
    return weight[..., None, None] * x.unsqueeze(-1) * x.unsqueeze(-2)


class Beliefs(NamedTuple):
    """Beliefs about all tables of an HMM."""

    initial: Dirichlet  # "z"
    transition: Dirichlet  # "z y"
    observation: Dirichlet | NormalWishart  # "z v"; means and precisions

    def expected_logs(self, frames: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # "z", "z y", "n z"
        """Expected logarithms of start and transitions, and of each frame in each state; a missing frame has 0."""
        if isinstance(self.observation, Dirichlet):
            log_obs = symbol_logs(self.observation.expected_log(), frames)
        else:
            log_obs = self.observation.expected_log(frames)
        return self.initial.expected_log(), self.transition.expected_log(), log_obs

    def plus(self, initial: Tensor, transition: Tensor, frames: Tensor, posterior: Tensor) -> Beliefs:
        """The beliefs after expected or drawn uses; frames "n" or "n g k", posterior "n z"."""
        if isinstance(self.observation, Dirichlet):
            seen = frames >= 0
            counts = torch.zeros_like(self.observation.concentration.mT)
            counts.index_add_(0, frames[seen], posterior[seen])
            observation: Dirichlet | NormalWishart = self.observation.plus(counts.mT)
        else:
            observation = self.observation.plus(frames, posterior)
        return Beliefs(self.initial.plus(initial), self.transition.plus(transition), observation)

    def divergence(self, prior: Beliefs) -> float:
        """KL(self || prior) in nats."""
        pairs = zip(self, prior, strict=True)
        return float(torch.stack([own.divergence(other) for own, other in pairs]).sum())  # type: ignore[arg-type]


def symbol_logs(log_table: Tensor, symbols: Tensor) -> Tensor:  # "z v", "n" -> "n z"
    """The row of each symbol; 0 where it is missing, -1."""
    seen = symbols >= 0
    return torch.where(seen[:, None], log_table.mT[torch.where(seen, symbols, 0)], 0.0)


def density_logs(mean: Tensor, covariance: Tensor, frames: Tensor) -> Tensor:  # "z g k", "z g k k", "n g k" -> "n z"
    """log N(frame) of drawn means and covariances; 0 for a block that is missing."""
    here = ~frames.isnan().any(-1)
    root = torch.linalg.cholesky(covariance)
    delta = (_without_missing(frames).unsqueeze(1) - mean).permute(1, 2, 3, 0)
    squares = torch.linalg.solve_triangular(root, delta, upper=False).square().sum(2).permute(2, 1, 0)  # "n g z"
    log_det = 2 * torch.diagonal(root, dim1=-2, dim2=-1).log().sum(-1)  # "z g"
    found = -0.5 * (squares + log_det.mT + frames.shape[-1] * math.log(2 * math.pi))
    return torch.where(here.unsqueeze(-1), found, 0.0).sum(1)
